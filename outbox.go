// Outboxes: everything that goes to a client, whatever the transport. An outbox
// is a queue of messages, bounded in bytes, and one loop that writes them to the
// client's connection: as server-sent events, or as lines. The answer to a POST
// stays plain JSON if nothing has to be sent before it. What is sent on streams
// that a client may resume is kept in the daemon's one replay buffer. This file
// writes bytes; it knows neither sessions nor modules.

package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	keepAlive      = 15 * time.Second // between comments on a silent stream
	reconnectDelay = 1 * time.Second  // what a client is told to wait before it resumes a stream
	replayLife     = 2 * time.Minute  // for which a stream can be resumed after its end
)

// frame is what is written to a client at once. With an id and no message it
// tells the client from where to resume (MCP 2025-11-25, basic/transports); with
// neither it is a comment, which keeps a silent stream open through proxies and
// finds out whether the client still lives.
type frame struct {
	id  string
	msg []byte // one line
}

// connection is what an outbox writes to.
type connection struct {
	ctx  context.Context          // ends with it
	open func() func(frame) error // begins a stream on it and returns what writes to it; nil where the client accepts none
	wake chan struct{}            // 1-buffered: there is more, or the end
}

func newConnection(ctx context.Context, open func() func(frame) error) *connection {
	return &connection{ctx: ctx, open: open, wake: make(chan struct{}, 1)}
}

// outbox is the messages to one client, in order. Safe for concurrent use. Its
// fields up to mu are not changed once it is used.
type outbox struct {
	limit  int            // bytes that may wait behind the message being written
	kept   *keptStream    // how the stream can be resumed; nil where it can't be
	silent *time.Timer    // starts the stream of an answer that takes long; nil for other outboxes
	writer sync.WaitGroup // the goroutine that follow runs in, where the outbox has one of its own

	mu     sync.Mutex
	conn   *connection // nil once the client has gone
	lostAt time.Time   // when it went
	begun  bool        // it is a stream
	ended  bool        // no more messages are taken
	queue  []frame
	bytes  int // of queue
}

// newAnswer is the outbox of the answer to an HTTP request. It becomes a stream,
// where the client accepts one, with the first message before the answer, or once
// the request has been silent for keepAlive.
func newAnswer(w http.ResponseWriter, r *http.Request, stream bool, kept *keptStream) *outbox {
	o := &outbox{limit: maxOutbox, kept: kept, conn: newConnection(r.Context(), nil)}
	if stream {
		o.conn.open = func() func(frame) error { return openSSE(w) }
		o.silent = time.AfterFunc(keepAlive, o.start)
	}
	return o
}

// newStream is an outbox that is a stream from the start, which follow is to
// write. What its client missed of another stream comes first.
func newStream(conn *connection, kept *keptStream, missed []frame) *outbox {
	o := &outbox{limit: maxOutbox, kept: kept, conn: conn, queue: missed}
	o.beginLocked() // nobody else knows it yet
	return o
}

// start turns an answer into a stream, if the client accepts one and is there.
func (o *outbox) start() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.startLocked()
}

func (o *outbox) startLocked() bool {
	if o.begun || o.ended || o.conn.open == nil || o.conn.ctx.Err() != nil {
		return o.begun
	}
	o.beginLocked()
	conn := o.conn
	o.writer.Go(func() { o.follow(conn) })
	return true
}

// beginLocked makes the outbox a stream, which follow is to write.
func (o *outbox) beginLocked() {
	o.begun = true
	if o.kept != nil {
		o.kept.buffer.enter(o)
		if o.kept.primed {
			o.queue = append(o.queue, frame{id: o.kept.eventID(0)})
		}
	}
	o.queue = append(o.queue, frame{})
}

// send queues a message, and reports whether it may arrive. It does not block. A
// client that does not keep up is dropped.
func (o *outbox) send(msg []byte) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return !o.ended && o.startLocked() && o.sendLocked(msg)
}

func (o *outbox) sendLocked(msg []byte) bool {
	e := frame{msg: msg}
	if o.kept != nil {
		e = o.kept.buffer.keep(o, msg)
	}
	if o.conn != nil && len(o.queue) > 0 && o.bytes+len(msg) > o.limit {
		o.loseLocked(o.conn)
	}
	if o.conn == nil {
		return o.kept != nil
	}
	o.queue = append(o.queue, e)
	o.bytes += len(msg)
	wakeUp(o.conn.wake)
	return true
}

// reachable reports whether the client may still read what is sent: it is
// connected, or may resume the stream.
func (o *outbox) reachable() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	connected := o.conn != nil && o.conn.ctx.Err() == nil
	resumable := o.kept != nil && o.begun && (o.conn != nil || time.Since(o.lostAt) < replayLife)
	return !o.ended && (connected || resumable)
}

// finish sends the answer to an HTTP request, and returns when it is written. It
// is plain JSON with this status, unless the outbox has become a stream or stream
// has it become one. msg is nil where there is nothing to answer.
func (o *outbox) finish(w http.ResponseWriter, status int, msg []byte, stream bool) {
	o.mu.Lock()
	isStream := o.begun || stream && o.startLocked()
	if isStream && msg != nil {
		o.sendLocked(msg)
	}
	o.mu.Unlock()
	o.end()
	switch {
	case isStream:
	case msg == nil:
		w.WriteHeader(status)
	default:
		writeJSON(w, status, msg)
	}
}

// end takes no more messages, and returns when a goroutine of the outbox's own
// has written those that were queued. It may be called again.
func (o *outbox) end() {
	if o.silent != nil {
		o.silent.Stop()
	}
	o.mu.Lock()
	if !o.ended && o.begun && o.kept != nil {
		time.AfterFunc(replayLife, func() { o.kept.buffer.forget(o) })
	}
	o.ended = true
	if o.conn != nil {
		wakeUp(o.conn.wake)
	}
	o.mu.Unlock()
	o.writer.Wait()
}

// errSlowClient is why a client was dropped.
var errSlowClient = errors.New("the client does not keep up with what is sent to it")

// follow writes what is queued to a connection until the outbox has ended, or the
// connection has, or another one has taken its place. The error says why not all
// was written.
func (o *outbox) follow(conn *connection) (err error) {
	defer func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.loseLocked(conn)
	}()
	write := conn.open()
	tick := time.NewTicker(keepAlive)
	defer tick.Stop()
	for err == nil {
		o.mu.Lock()
		lost, ended, waits := o.conn != conn, o.ended, len(o.queue) == 0
		var e frame
		if !lost && !waits {
			e, o.queue[0] = o.queue[0], frame{} // so that the message is not held
			o.queue = o.queue[1:]
			o.bytes -= len(e.msg)
		}
		o.mu.Unlock()
		switch {
		case lost:
			return errSlowClient
		case waits && ended:
			return nil
		case waits:
			select {
			case <-conn.ctx.Done():
				return conn.ctx.Err()
			case <-conn.wake:
				continue
			case <-tick.C: // e is a comment
			}
		}
		err = write(e)
	}
	return err
}

// loseLocked gives a connection up. What was queued for it may be kept for the
// next one.
func (o *outbox) loseLocked(conn *connection) {
	if o.conn == conn {
		o.conn, o.queue, o.bytes, o.lostAt = nil, nil, 0, time.Now()
	}
}

// resume has a connection follow the stream from after message n, in the place of
// the one before. It reports false where not all of that is kept.
func (o *outbox) resume(conn *connection, n int) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	missed, ok := o.kept.buffer.after(o, n)
	if !ok {
		return false
	}
	if o.conn != nil {
		wakeUp(o.conn.wake) // it has been replaced
	}
	o.conn, o.queue, o.bytes = conn, append([]frame{{}}, missed...), 0
	for _, e := range missed {
		o.bytes += len(e.msg)
	}
	return true
}

// wakeUp fills a 1-buffered channel.
func wakeUp(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// keptStream is how a stream is known to who resumes it.
type keptStream struct {
	buffer  *replayBuffer
	kind    string // the first letter of its id
	id      string // given at its begin
	session string
	primed  bool // the stream begins with an event that it can be resumed from
	last    int  // number of the message sent last; the first is 1. The buffer guards it
	// owner is whose messages they are. While that is not authorized, nothing is
	// kept, and nothing of what was kept is given.
	owner      string
	authorized func() bool
}

// eventID is the id of the stream's message n; 0 stands before the first.
func (k keptStream) eventID(n int) string { return k.id + "-" + strconv.Itoa(n) }

// parseEventID takes an event id apart.
func parseEventID(s string) (stream string, n int, ok bool) {
	stream, number, ok := strings.Cut(s, "-")
	n, err := strconv.Atoi(number)
	return stream, n, ok && err == nil && n >= 0
}

// replayBuffer is the messages of all streams that were sent lately, so that a
// client whose connection broke can have them again (MCP 2025-11-25,
// basic/transports, "Resumability and Redelivery"). Where there are too many, the
// oldest go first. The zero value is empty. Safe for concurrent use.
type replayBuffer struct {
	mu      sync.Mutex
	streams map[string]*outbox // by id
	kept    []keptMessage      // oldest first
	bytes   map[string]int     // of kept, by owner
	all     int                // bytes of kept
}

type keptMessage struct {
	of    *outbox
	n     int
	frame frame
}

// size is what the message counts for. It is never less than minKept, which
// bounds how many there can be.
func (m keptMessage) size() int { return max(len(m.frame.msg), minKept) }

// enter has a stream be found, by an id that it gets.
func (b *replayBuffer) enter(o *outbox) {
	o.kept.id = o.kept.kind + strings.ToLower(rand.Text())
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.streams == nil {
		b.streams, b.bytes = make(map[string]*outbox), make(map[string]int)
	}
	b.streams[o.kept.id] = o
}

// find returns a stream of a session; nil for one that is not known any more.
func (b *replayBuffer) find(stream, session string) *outbox {
	b.mu.Lock()
	defer b.mu.Unlock()
	if o := b.streams[stream]; o != nil && o.kept.session == session {
		return o
	}
	return nil
}

// keep gives a message its id, and takes it in unless it is too long.
func (b *replayBuffer) keep(o *outbox, msg []byte) frame {
	authorized := o.kept.authorized()
	b.mu.Lock()
	defer b.mu.Unlock()
	o.kept.last++
	m := keptMessage{o, o.kept.last, frame{o.kept.eventID(o.kept.last), msg}}
	if !authorized || m.size() > maxReplayMessage {
		return m.frame
	}
	b.kept = append(b.kept, m)
	b.all += m.size()
	b.bytes[m.of.kept.owner] += m.size()
	for b.bytes[m.of.kept.owner] > maxReplayBytesOf {
		b.dropLocked(slices.IndexFunc(b.kept, func(k keptMessage) bool { return k.of.kept.owner == m.of.kept.owner }))
	}
	for b.all > maxReplayBytes {
		b.dropLocked(0)
	}
	return m.frame
}

func (b *replayBuffer) dropLocked(i int) {
	m := b.kept[i]
	b.kept = slices.Delete(b.kept, i, i+1)
	b.all -= m.size()
	if b.bytes[m.of.kept.owner] -= m.size(); b.bytes[m.of.kept.owner] == 0 {
		delete(b.bytes, m.of.kept.owner)
	}
}

// forget drops a stream and its messages.
func (b *replayBuffer) forget(o *outbox) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.streams, o.kept.id)
	for i := len(b.kept) - 1; i >= 0; i-- {
		if b.kept[i].of == o {
			b.dropLocked(i)
		}
	}
}

// after returns the messages of a stream after n. It reports false when some of
// them are not kept, or nobody may have them.
func (b *replayBuffer) after(o *outbox, n int) ([]frame, bool) {
	if !o.kept.authorized() {
		return nil, false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	var events []frame
	for _, m := range b.kept {
		if m.of == o && m.n > n {
			events = append(events, m.frame)
		}
	}
	if n > o.kept.last || len(events) != o.kept.last-n {
		return nil, false
	}
	return events, true
}

// openSSE commits an HTTP answer to being a stream of server-sent events, and
// returns what writes one.
func openSSE(w http.ResponseWriter) func(frame) error {
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no")
	w.WriteHeader(http.StatusOK)
	control := http.NewResponseController(w)
	return func(e frame) error {
		if err := writeBody(w, e.format()); err != nil {
			return err
		}
		return control.Flush()
	}
}

// format is the frame as it stands in a stream of server-sent events.
func (e frame) format() []byte {
	switch {
	case e.msg == nil && e.id == "":
		return []byte(":\n\n")
	case e.msg == nil:
		return fmt.Appendf(nil, "id: %s\nretry: %d\ndata: \n\n", e.id, reconnectDelay.Milliseconds())
	}
	b := make([]byte, 0, len(e.msg)+len(e.id)+40)
	if e.id != "" {
		b = append(append(append(b, "id: "...), e.id...), '\n')
	}
	b = append(append(b, "event: message\ndata: "...), e.msg...)
	return append(b, "\n\n"...)
}

// openLines has the messages of events written as lines, and nothing else.
func openLines(w io.Writer) func(frame) error {
	return func(e frame) error {
		if e.msg == nil {
			return nil
		}
		_, err := w.Write(append(e.msg, '\n'))
		return err
	}
}

func writeJSON(w http.ResponseWriter, status int, body []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = writeBody(w, append(body, '\n')) // a peer that is gone is no one to tell
}
