// Outboxes: everything that is sent to a client, whatever the transport. An outbox is a
// queue of messages, bounded in bytes, and one loop that writes them to the client's
// connection, as server-sent events or as lines. The answer to a POST remains plain JSON
// if nothing has to be sent before it. Messages of streams that a client may resume are
// also kept for a while. Nothing here depends on sessions or modules.

package main

import (
	"bytes"
	"cmp"
	"context"
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
	reconnectDelay = 1 * time.Second  // how long a client should wait before it resumes a stream
	replayLife     = 2 * time.Minute  // how long a stream can be resumed after its connection has ended
)

// frame is the content of one write to a client. A frame with an id but no message tells
// the client where it can resume the stream (MCP 2025-11-25, basic/transports). A frame
// with neither is a comment: it begins a stream, keeps a silent stream open through
// proxies, and detects a client that has gone.
type frame struct {
	id    string
	msg   []byte // one line
	list  []byte // an object that many messages share: its members and "}}" follow msg
	event string // the kind of event; "" for a message
}

// parts returns the pieces of the message, with tail at the end. It may write into the spare
// capacity of msg, so a message that several connections can write must be clipped: see
// keepLocked.
func (f frame) parts(tail string) [][]byte {
	if f.list == nil {
		return [][]byte{append(f.msg, tail...)}
	}
	return [][]byte{f.msg, f.list[1:], []byte("}" + tail)}
}

// size returns the bytes that a frame counts for while it is kept.
func (f frame) size() int64 { return int64(len(f.msg) + minHeld) }

// connection is what an outbox writes to.
type connection struct {
	ctx    context.Context   // ends with the connection
	cancel func()            // ends ctx; nil for a POST
	write  func(frame) error // nil if the client accepts no stream

	// For a stream:
	wake chan struct{} // 1-buffered: there is more to write, or nothing will follow
	done chan struct{} // closed when nothing more is written
}

// outbox contains the messages to one client, in order. If the client accepts a stream,
// the first message that is sent before the answer turns the answer into a stream. Safe
// for concurrent use.
type outbox struct {
	held account // the account that queued messages count for

	mu    sync.Mutex
	kept  *keptStream // nil if the stream can't be resumed
	conn  *connection // nil once the client has gone
	begun bool        // the outbox is a stream
	ended bool        // the outbox accepts no more messages
	queue []frame
	bytes int64 // in queue
}

// newOutbox returns an outbox whose messages count for held. If kept is not nil, the client
// can resume its stream. missed contains events of an earlier stream to replay first.
func newOutbox(held account, conn *connection, kept *keptStream, missed ...frame) *outbox {
	o := &outbox{held: held, kept: kept, conn: conn}
	o.queueLocked(missed...) // not shared yet
	return o
}

// send queues a message and reports whether it may arrive. It never waits for the client:
// a client that reads too slowly is disconnected. Without a message, send only begins the
// stream. If the stream can be resumed, send may read the claims file
// (keptStream.authorized).
func (o *outbox) send(f frame) bool {
	o.mu.Lock()
	sent := !o.ended && o.startLocked() && o.sendLocked(f)
	o.mu.Unlock()
	if sent && f.msg != nil {
		o.resumable() // forgets the stream if the client has lost access
	}
	return sent
}

// end makes the outbox accept no more messages. Queued messages are still written.
func (o *outbox) end() { o.finish(frame{}, false) }

// finish ends the outbox with a last message, if there is one. It sends the message only
// if the outbox is a stream, or if stream is set and the client accepts one. finish
// reports whether the outbox is a stream.
func (o *outbox) finish(last frame, stream bool) bool {
	o.mu.Lock()
	isStream := o.begun || stream && o.startLocked()
	if isStream {
		o.sendLocked(last)
	}
	o.ended = true
	if o.conn != nil {
		wake(o.conn.wake)
	}
	o.expireLocked()
	o.mu.Unlock()
	if isStream && last.msg != nil {
		o.resumable() // forgets the stream if the client has lost access
	}
	return isStream
}

// startLocked makes the outbox a stream, if the client accepts one and is connected. It
// reports whether the outbox is a stream.
func (o *outbox) startLocked() bool {
	if o.begun {
		return true
	}
	if o.ended || o.conn == nil || o.conn.write == nil || o.conn.ctx.Err() != nil {
		return false
	}
	o.begun = true
	if o.kept != nil {
		o.kept.known.Store(o.kept.key(), o)
		if o.kept.primed {
			o.queueLocked(frame{id: o.kept.eventID(0)})
		}
	}
	o.queueLocked(frame{})
	o.connectLocked(o.conn)
	return true
}

// connectLocked makes conn the stream's connection, and starts writing to it.
func (o *outbox) connectLocked(conn *connection) {
	o.conn = conn
	conn.wake = make(chan struct{}, 1)
	conn.done = make(chan struct{})
	go o.writeLoop(conn)
}

// sendLocked queues a message, or nothing if there is none, and reports whether it may arrive.
func (o *outbox) sendLocked(f frame) bool {
	if f.msg == nil {
		return true
	}
	if o.kept != nil {
		f = o.keepLocked(f)
	}
	if o.bytes > 0 && o.bytes+int64(len(f.msg)) > maxOutbox {
		o.disconnectLocked(o.conn)
	}
	queued := o.conn != nil && o.queueLocked(f)
	return queued || o.kept != nil
}

// queueLocked queues frames and wakes the writer. If there is no room for them, it
// disconnects the client and returns false. The caller holds o.mu.
func (o *outbox) queueLocked(frames ...frame) bool {
	var n int64
	for _, f := range frames {
		n += int64(len(f.msg))
	}
	if !o.held.reserve(n) {
		o.disconnectLocked(o.conn)
		return false
	}
	o.bytes += n
	o.queue = append(o.queue, frames...)
	wake(o.conn.wake)
	return true
}

// writeLoop writes queued messages to a connection until the outbox or the connection ends,
// or the outbox has another connection.
func (o *outbox) writeLoop(conn *connection) {
	defer close(conn.done)
	defer o.disconnect(conn)
	silent := time.NewTicker(keepAlive)
	defer silent.Stop()
	for {
		var err error
		f, over := o.next(conn)
		switch {
		case over:
			return
		case f != nil:
			err = conn.write(*f)
			o.held.release(int64(len(f.msg)))
		default:
			select {
			case <-conn.ctx.Done():
				return
			case <-conn.wake:
			case <-silent.C:
				err = conn.write(frame{})
			}
		}
		if err != nil {
			return
		}
	}
}

// next takes the next frame off the queue, or returns nil if the queue is empty. It
// reports over if nothing more must be written to conn.
func (o *outbox) next(conn *connection) (f *frame, over bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.conn != conn || len(o.queue) == 0 {
		return nil, o.conn != conn || o.ended
	}
	first := o.queue[0]
	o.queue[0] = frame{} // so that the array does not keep the message in memory
	o.queue = o.queue[1:]
	o.bytes -= int64(len(first.msg))
	return &first, false
}

// disconnect locks o.mu and calls disconnectLocked.
func (o *outbox) disconnect(conn *connection) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.disconnectLocked(conn)
}

// disconnectLocked gives up a connection and drops the messages queued for it. The replay
// buffer may still contain them. The caller holds o.mu.
func (o *outbox) disconnectLocked(conn *connection) {
	if conn == nil || o.conn != conn {
		return
	}
	o.held.release(o.bytes)
	o.conn = nil
	o.queue = nil
	o.bytes = 0
	wake(conn.wake)
	o.expireLocked()
}

// resume switches the outbox to conn and replays the messages after n. It returns false if
// some of them are no longer buffered.
func (o *outbox) resume(conn *connection, n int) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	missed, ok := o.afterLocked(n)
	if !ok {
		return false
	}
	o.disconnectLocked(o.conn)
	// kept is nil if the stream has ended and the client has missed nothing. Stop returns
	// false if the stream is about to be forgotten.
	if o.kept == nil || !o.kept.forgetting.Stop() {
		return false
	}
	o.kept.forgetting = nil
	o.connectLocked(conn)
	return o.queueLocked(append(slices.Clip(missed), frame{})...)
}

// keptStream is a stream that can be resumed (MCP 2025-11-25, basic/transports,
// "Resumability and Redelivery"). Its outbox's mu guards the last three fields.
type keptStream struct {
	known   *sync.Map // the outboxes of all streams that can be resumed, by keptStream.key
	id      string
	session string
	primed  bool // the stream begins with an event that it can be resumed from

	// authorized reports whether the client still has access; if not, the stream is forgotten
	// for good. authorized may read the claims file, so callers hold no lock.
	authorized func() bool

	messages   []frame     // the latest messages, as many as there is room for
	last       int         // number of the last message; the first is 1
	forgetting *time.Timer // runs since the connection ended; nil while the stream has a connection
}

// resumable reports whether the stream can be resumed. If the client has lost access,
// resumable forgets the stream.
func (o *outbox) resumable() bool {
	o.mu.Lock()
	kept := o.kept
	o.mu.Unlock()
	if kept != nil && !kept.authorized() {
		o.forget()
		kept = nil
	}
	return kept != nil
}

// forget drops the stream's kept messages. From then on the stream can't be resumed.
func (o *outbox) forget() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.forgetLocked()
}

// forgetLocked does the work of forget. The caller holds o.mu.
func (o *outbox) forgetLocked() {
	if o.kept == nil {
		return
	}
	o.dropLocked()
	o.kept.known.Delete(o.kept.key())
	if o.kept.forgetting != nil {
		o.kept.forgetting.Stop()
	}
	o.kept = nil
}

// dropLocked drops the messages that are kept. The caller holds o.mu.
func (o *outbox) dropLocked() {
	for _, f := range o.kept.messages {
		o.held.release(f.size())
	}
	o.kept.messages = nil
}

// expireLocked limits the time in which a client that has gone can resume the stream to
// replayLife. If the stream has ended and no message is kept, expireLocked forgets it at
// once. The caller holds o.mu.
func (o *outbox) expireLocked() {
	if o.kept == nil || o.conn != nil {
		return
	}
	if o.ended && o.kept.messages == nil {
		o.forgetLocked()
	} else if o.kept.forgetting == nil {
		o.kept.forgetting = time.AfterFunc(replayLife, o.forget)
	}
}

// keepLocked gives a message its id, and keeps it unless it is too long. Replay uses at
// most half of what may be held, so that requests find room. If there is no room for the
// message, keepLocked drops the earlier ones too: a client must not miss one in between.
// The caller holds o.mu.
func (o *outbox) keepLocked(f frame) frame {
	k := o.kept
	k.last++
	f.id = k.eventID(k.last)
	f.msg = slices.Clip(f.msg) // it may be written to several connections at once
	bytes := &o.held.memory.bytes
	if len(f.msg) <= maxReplayMessage && bytes.add(o.held.principal, f.size(), maxHeldOf/2, maxHeld/2) {
		k.messages = append(k.messages, f)
	} else {
		o.dropLocked()
	}
	return f
}

// after returns the messages after n, and reports whether they are all still kept.
func (o *outbox) after(n int) (missed []frame, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.afterLocked(n)
}

// afterLocked does the work of after. The caller holds o.mu.
func (o *outbox) afterLocked(n int) (missed []frame, ok bool) {
	if o.kept == nil || n > o.kept.last {
		return nil, false
	}
	first := o.kept.last - len(o.kept.messages)
	return o.kept.messages[max(0, n-first):], n >= first
}

// key identifies the stream among the streams of all sessions.
func (k *keptStream) key() string { return k.session + k.id }

// eventID returns the id of the stream's message n. The id of 0 precedes the first message.
func (k *keptStream) eventID(n int) string { return k.id + "-" + strconv.Itoa(n) }

// parseEventID splits an event id. It returns an empty stream if s is malformed.
func parseEventID(s string) (stream string, n int) {
	stream, number, _ := strings.Cut(s, "-")
	n, err := strconv.Atoi(number)
	if err != nil || n < 0 {
		return "", 0
	}
	return stream, n
}

// findStream looks up a session's stream in known. It returns nil if there is none, or if
// the client has lost access.
func findStream(known *sync.Map, session, stream string) *outbox {
	found, _ := known.Load(session + stream)
	o, ok := found.(*outbox)
	if !ok || !o.resumable() {
		return nil
	}
	return o
}

// sseWriter returns a function that writes frames as server-sent events. The first frame
// makes the HTTP answer a stream of them.
func sseWriter(w http.ResponseWriter) func(frame) error {
	return func(f frame) error {
		h := w.Header()
		h.Set("Content-Type", "text/event-stream")
		h.Set("Cache-Control", "no-store")
		h.Set("X-Accel-Buffering", "no")
		var text bytes.Buffer
		var parts [][]byte
		if f.id != "" {
			fmt.Fprintf(&text, "id: %s\n", f.id)
		}
		switch {
		case f.msg != nil:
			fmt.Fprintf(&text, "event: %s\ndata: ", cmp.Or(f.event, "message"))
			parts = f.parts("\n\n")
		case f.id != "":
			fmt.Fprintf(&text, "retry: %d\ndata: \n\n", reconnectDelay.Milliseconds())
		default:
			text.WriteString(":\n\n")
		}
		if err := writeBody(w, slices.Insert(parts, 0, text.Bytes())...); err != nil {
			return err
		}
		return http.NewResponseController(w).Flush()
	}
}

// lineWriter returns a function that writes messages as lines, and ignores other frames.
func lineWriter(w io.Writer) func(frame) error {
	return func(f frame) error {
		if f.msg == nil {
			return nil
		}
		for _, part := range f.parts("\n") {
			if _, err := w.Write(part); err != nil {
				return err
			}
		}
		return nil
	}
}

// writeJSON writes a complete JSON answer.
func writeJSON(w http.ResponseWriter, status int, answer frame) {
	size := 0
	parts := answer.parts("\n")
	for _, part := range parts {
		size += len(part)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(size)) // else net/http sends it in chunks
	w.WriteHeader(status)
	_ = writeBody(w, parts...) // an error means that the client has gone
}
