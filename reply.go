// Replies: one answer over HTTP, as JSON or as a stream of server-sent events,
// which it turns into when there is something to say before it (MCP,
// basic/transports). This file writes messages; it knows no session.

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"mime"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	keepAlive = 15 * time.Second // between comments on a silent stream
	reconnect = 1 * time.Second  // what a client is told to wait before it resumes a stream
)

// accepts is what a client's Accept header allows.
type accepts struct {
	json, stream bool
	streamFirst  bool // the stream is preferred: it comes first
	streamNamed  bool // and not only part of what a browser takes, which is anything
}

// parseAccept reads an Accept header. None at all allows anything.
func parseAccept(values []string) accepts {
	var a accepts
	if len(values) == 0 {
		return accepts{json: true, stream: true}
	}
	for part := range strings.SplitSeq(strings.Join(values, ","), ",") {
		kind, params, err := mime.ParseMediaType(strings.TrimSpace(part))
		if err != nil || params["q"] == "0" {
			continue
		}
		all := kind == "*/*"
		if all || kind == "text/event-stream" || kind == "text/*" {
			a.streamFirst = a.streamFirst || !a.json && !all
			a.stream = true
		}
		a.streamNamed = a.streamNamed || kind == "text/event-stream"
		a.json = a.json || all || kind == "application/json" || kind == "application/*"
	}
	return a
}

// reply is the answer to one POST. It is plain JSON until there is something to
// say before the answer; then it turns into a stream. Nothing is on the wire
// before the first output. But for offer and there it is for one goroutine.
type reply struct {
	w      http.ResponseWriter
	accept accepts
	logger *slog.Logger
	notes  chan []byte              // what is to be said before the answer
	modern bool                     // errors have an HTTP status, and nothing is kept
	primed bool                     // the stream begins with an event that it can be resumed from
	keep   func() *eventLog         // nil where nothing is
	sse    *sseWriter               // nil before the reply is a stream
	log    atomic.Pointer[eventLog] // of the stream, if it is kept
	unread func()                   // ends the connection's reading of the log
	unborn bool                     // the connection ended before it was a stream

	mu   sync.Mutex
	over bool // nothing more goes out here
}

func newReply(w http.ResponseWriter, accept accepts, logger *slog.Logger) *reply {
	return &reply{w: w, accept: accept, logger: logger, notes: make(chan []byte, maxQueued)}
}

// offer is how others have messages written before the answer. It never blocks:
// a client that does not keep up loses some. It is false for what can't go out
// here.
func (o *reply) offer(msg []byte) bool {
	o.mu.Lock() // so that what is taken is in the queue before it is over
	defer o.mu.Unlock()
	if o.over || !o.accept.stream {
		return false
	}
	select {
	case o.notes <- msg:
		return true
	default:
		o.logger.Warn("a message was dropped: the client does not keep up")
		return false
	}
}

// there reports whether the client may still read this.
func (o *reply) there() bool {
	if l := o.log.Load(); l != nil {
		return !l.lost()
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return !o.over
}

// shut says that nothing more is to be said before the answer.
func (o *reply) shut() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.over = true
}

// begin turns the reply into a stream, if the client takes one.
func (o *reply) begin() bool {
	if o.sse == nil && o.accept.stream && !o.unborn {
		o.sse = newSSE(o.w)
		if o.keep != nil {
			l := o.keep()
			o.unread = l.read()
			o.log.Store(l)
			if o.primed {
				o.sse.prime(l.eventID(0))
			}
		}
		o.sse.comment()
	}
	return o.sse != nil
}

// say writes a message, and keeps it.
func (o *reply) say(msg []byte) {
	id := ""
	if l := o.log.Load(); l != nil {
		id = l.eventID(l.add(msg))
	}
	o.sse.event(id, msg)
}

// end is the end of the connection.
func (o *reply) end() {
	o.shut()
	o.lose()
	if l := o.log.Load(); l != nil {
		l.end()
	}
}

// lose notes that the connection is no more, though the reply may go on.
func (o *reply) lose() {
	if o.unread != nil {
		o.unread()
		o.unread = nil
	}
}

// carry writes what comes before the answer while work finds it, and then the
// answer, as the function does that work returns. The end of gone is that of the
// connection.
func (o *reply) carry(gone context.Context, work func() (write func())) {
	done := make(chan func(), 1)
	go func() { done <- work() }() // which the loop waits for
	tick := time.NewTicker(keepAlive)
	defer tick.Stop()
	lost := gone.Done()
	for {
		select {
		case note := <-o.notes:
			if o.begin() {
				o.say(note)
			}
		case <-tick.C:
			if o.begin() {
				o.sse.comment()
			}
		case <-lost:
			lost = nil
			o.lose()
			if o.sse != nil {
				o.sse.err = gone.Err()
			} else { // nobody knows of an event to resume it from
				o.unborn = true
				o.shut()
			}
		case write := <-done:
			o.shut()
			for len(o.notes) > 0 { // what was said before the answer comes before it
				if note := <-o.notes; o.begin() {
					o.say(note)
				}
			}
			write()
			return
		}
	}
}

// answer writes the answer, or none where the request was cancelled.
func (o *reply) answer(id ID, result json.RawMessage, err error) {
	if err == nil {
		o.finish(http.StatusOK, encodeResult(id, result))
		return
	}
	if isCancel(err) && o.begin() {
		o.sse.comment()
		return
	}
	rpc, status := asRPCError(err), http.StatusOK
	if o.modern {
		status = rpcStatus(rpc.Code)
	}
	o.finish(status, encodeError(id, rpc))
}

// finish writes the last message.
func (o *reply) finish(status int, msg []byte) {
	if !o.accept.json || o.modern && o.accept.streamFirst && status == http.StatusOK {
		o.begin()
	}
	if o.sse != nil {
		o.say(msg)
		return
	}
	writeJSON(o.w, status, msg)
}

// sseWriter writes server-sent events. Once a write has failed, the peer is
// gone and nothing more is written. It is for one goroutine.
type sseWriter struct {
	w       http.ResponseWriter
	control *http.ResponseController
	err     error
}

// newSSE commits the answer to being a stream. Something should be written at
// once: a proxy may wait for the first byte.
func newSSE(w http.ResponseWriter) *sseWriter {
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no")
	w.WriteHeader(http.StatusOK)
	return &sseWriter{w: w, control: http.NewResponseController(w)}
}

// event writes one message, which must be one line, as one event. It can be
// resumed from where it has an id.
func (s *sseWriter) event(id string, msg []byte) {
	b := make([]byte, 0, len(msg)+len(id)+40)
	if id != "" {
		b = append(append(append(b, "id: "...), id...), '\n')
	}
	b = append(append(b, "event: message\ndata: "...), msg...)
	s.write(append(b, "\n\n"...))
}

// prime writes an event without a message, so that a client knows from where to
// resume should it never get another (MCP 2025-11-25, basic/transports).
func (s *sseWriter) prime(id string) {
	s.write(fmt.Appendf(nil, "id: %s\nretry: %d\ndata: \n\n", id, reconnect.Milliseconds()))
}

// comment writes what readers skip: it keeps a silent stream open through
// proxies, and finds out whether the peer still lives.
func (s *sseWriter) comment() { s.write([]byte(":\n\n")) }

// carry writes what is queued, and comments in between, until ctx ends or the peer
// is gone. keep gives each message its id.
func (s *sseWriter) carry(ctx context.Context, queue <-chan []byte, keep func(msg []byte) string) {
	tick := time.NewTicker(keepAlive)
	defer tick.Stop()
	for s.err == nil {
		select {
		case <-ctx.Done():
			return
		case msg := <-queue:
			s.event(keep(msg), msg)
		case <-tick.C:
			s.comment()
		}
	}
}

func (s *sseWriter) write(b []byte) {
	if s.err != nil {
		return
	}
	if s.err = writeBody(s.w, b); s.err == nil {
		s.err = s.control.Flush()
	}
}

func writeJSON(w http.ResponseWriter, status int, body []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = writeBody(w, append(body, '\n')) // a peer that is gone is no one to tell
}
