// Replay: what went out on a stream, kept for a while, so that a client whose
// connection broke can have the rest of it (MCP 2025-11-25, basic/transports,
// "Resumability and Redelivery"). It knows no HTTP and no session.

package main

import (
	"crypto/rand"
	"encoding/hex"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	replayLife = 2 * time.Minute // of a stream that nobody reads, or that has ended
)

// eventLog is the messages of one stream, each under an id that says which
// stream and where in it. Safe for concurrent use.
type eventLog struct {
	id     string
	claim  Principal     // of its session at its begin
	budget *atomic.Int64 // bytes that all logs hold

	mu      sync.Mutex
	events  [][]byte // the last of them
	first   int      // number of events[0]; the stream's first message is 1
	bytes   int
	readers int
	idle    time.Time     // since when it has had no reader
	ended   bool          // no more will come
	dropped bool          // nothing is kept any more
	grown   chan struct{} // closed when there is more, or the end
}

// newEventLog begins the log of a stream of a kind, which is one letter.
func newEventLog(kind string, claim Principal, budget *atomic.Int64) *eventLog {
	var b [8]byte
	rand.Read(b[:]) // never fails
	return &eventLog{id: kind + hex.EncodeToString(b[:]), claim: claim, budget: budget, first: 1, idle: time.Now(), grown: make(chan struct{})}
}

// eventID is the id of the stream's message n; 0 stands before the first.
func (l *eventLog) eventID(n int) string { return l.id + "-" + strconv.Itoa(n) }

// parseEventID takes an event id apart.
func parseEventID(s string) (log string, n int, ok bool) {
	log, number, ok := strings.Cut(s, "-")
	n, err := strconv.Atoi(number)
	return log, n, ok && err == nil && n >= 0 && len(log) == 17
}

// add takes in a message and returns its number. What would be too much drives
// out the oldest.
func (l *eventLog) add(msg []byte) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.events = append(l.events, msg)
	l.count(len(msg))
	n := l.first + len(l.events) - 1
	for len(l.events) > 0 && (l.dropped || l.bytes > maxReplay || l.bytes > smallReplay && l.budget.Load() > maxReplayAll) {
		l.count(-len(l.events[0]))
		l.events = l.events[1:]
		l.first++
	}
	close(l.grown)
	l.grown = make(chan struct{})
	return n
}

func (l *eventLog) count(n int) {
	l.bytes += n
	l.budget.Add(int64(n))
}

// end says that no more will come.
func (l *eventLog) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.ended {
		l.ended = true
		close(l.grown)
		l.grown = make(chan struct{})
	}
}

// drop forgets all messages, and those to come.
func (l *eventLog) drop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.count(-l.bytes)
	l.first += len(l.events)
	l.events, l.dropped = nil, true
}

// after returns the messages after number n, whether the stream has ended with
// them, and a channel that is closed when there is more. ok is false when some
// are not kept any more, or were never sent.
func (l *eventLog) after(n int) (events [][]byte, ended bool, grown <-chan struct{}, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	at := n + 1 - l.first
	if at < 0 || at > len(l.events) {
		return nil, false, nil, false
	}
	return l.events[at:len(l.events):len(l.events)], l.ended, l.grown, true
}

// read notes that somebody reads the stream, until done is called.
func (l *eventLog) read() (done func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.readers++
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.readers--
		l.idle = time.Now()
	}
}

// crowded reports whether as many read the stream as may.
func (l *eventLog) crowded() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.readers >= maxReaders
}

// lost reports whether nobody has read the stream for so long that nobody will.
func (l *eventLog) lost() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.readers == 0 && time.Since(l.idle) > replayLife
}
