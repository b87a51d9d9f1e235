// Outboxes: everything that is sent to a client, whatever the transport. An outbox is a
// queue of messages, bounded in bytes, and one loop that writes them to the client's
// connection, as server-sent events or as lines. The answer to a POST remains plain JSON
// if nothing has to be sent before it. Messages of streams that a client may resume are
// also kept in the daemon's one replay buffer. Nothing here depends on sessions or modules.

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

// frame is what one write to a client contains. With an id but no message, it tells the
// client where it can resume the stream (MCP 2025-11-25, basic/transports). With neither,
// it is a comment, which begins a stream, keeps a silent stream open through proxies, and
// detects a client that has gone.
type frame struct {
	id    string
	msg   []byte // one line
	event string // the kind of event; "" for a message
}

// connection is what an outbox writes to.
type connection struct {
	ctx    context.Context   // ends with the connection
	cancel func()            // ends ctx; nil for a POST
	write  func(frame) error // nil if the client accepts no stream

	// For a stream:
	wake chan struct{} // 1-buffered: there is more to write, or nothing will follow
	done chan struct{} // closed when nothing more is written
}

// outbox contains the messages to one client, in order. If the client accepts a stream, the
// first message that is sent before the answer turns the answer into one. Safe for
// concurrent use.
type outbox struct {
	limit int         // bytes that may be queued behind the message being written
	kept  *keptStream // nil if the stream can't be resumed

	mu    sync.Mutex
	conn  *connection // nil once the client has gone
	begun bool        // it is a stream
	ended bool        // it accepts no more messages
	queue []frame
	bytes int // in queue
}

// newOutbox returns an outbox. If kept is not nil, the client can resume its stream. missed
// contains events of an earlier stream to replay first.
func newOutbox(conn *connection, kept *keptStream, missed ...frame) *outbox {
	o := &outbox{limit: maxOutbox, kept: kept, conn: conn}
	o.queueLocked(missed...) // not shared yet
	return o
}

// send queues a message and reports whether it may arrive. It never waits for the client: a
// client that reads too slowly is disconnected. If msg is nil, send only begins the stream.
// If the stream can be resumed, send may read the claims file (keptStream.authorized).
func (o *outbox) send(msg []byte) bool {
	o.mu.Lock()
	sent := !o.ended && o.startLocked() && o.sendLocked(msg)
	o.mu.Unlock()
	if sent {
		o.kept.recheck()
	}
	return sent
}

// end accepts no more messages. Queued messages are still written.
func (o *outbox) end() { o.finish(nil, false) }

// finish ends the outbox with a last message, or nil for none. The message is sent only if the outbox is a
// stream, or if stream is set and the client accepts one. finish reports whether the outbox
// is a stream.
func (o *outbox) finish(last []byte, stream bool) bool {
	o.mu.Lock()
	isStream := o.begun || stream && o.startLocked()
	if isStream {
		o.sendLocked(last)
	}
	o.ended = true
	if o.conn != nil {
		wake(o.conn.wake)
	}
	o.mu.Unlock()
	if isStream && last != nil {
		o.kept.recheck()
	}
	return isStream
}

// startLocked makes the outbox a stream, if the client accepts one and is connected. It
// reports whether the outbox is a stream.
func (o *outbox) startLocked() bool {
	if o.begun || o.ended || o.conn.write == nil || o.conn.ctx.Err() != nil {
		return o.begun
	}
	o.begun = true
	if o.kept != nil {
		o.kept.buffer.streams.Store(o.kept.key(), o)
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

// sendLocked queues a message, or nothing if it is nil, and reports whether it may arrive.
func (o *outbox) sendLocked(msg []byte) bool {
	if msg == nil {
		return true
	}
	f := frame{msg: msg}
	if o.kept != nil {
		f = o.kept.buffer.keep(o.kept, msg)
	}
	if o.bytes > 0 && o.bytes+len(msg) > o.limit {
		o.disconnectLocked(o.conn)
	}
	if o.conn == nil {
		return o.kept != nil
	}
	o.queueLocked(f)
	return true
}

// queueLocked queues frames and wakes the writer. The caller holds o.mu.
func (o *outbox) queueLocked(frames ...frame) {
	for _, f := range frames {
		o.bytes += len(f.msg)
	}
	o.queue = append(o.queue, frames...)
	wake(o.conn.wake)
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

// next takes the next frame off the queue, or returns nil if the queue is empty. It reports
// whether nothing more is to be written to conn.
func (o *outbox) next(conn *connection) (f *frame, over bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.conn != conn || len(o.queue) == 0 {
		return nil, o.conn != conn || o.ended
	}
	first := o.queue[0]
	o.queue[0] = frame{} // so that the array does not keep the message in memory
	o.queue = o.queue[1:]
	o.bytes -= len(first.msg)
	return &first, false
}

// disconnect gives up a connection. Messages queued for it may be in the replay buffer.
func (o *outbox) disconnect(conn *connection) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.disconnectLocked(conn)
}

// disconnectLocked gives up a connection. The caller holds o.mu.
func (o *outbox) disconnectLocked(conn *connection) {
	if conn == nil || o.conn != conn {
		return
	}
	o.conn = nil
	o.queue = nil
	o.bytes = 0
	wake(conn.wake)
	if o.kept != nil {
		o.kept.forgetting = time.AfterFunc(replayLife, o.kept.forget)
	}
}

// resume switches the outbox to conn and replays the messages after n. It returns false if
// some of them are no longer buffered.
func (o *outbox) resume(conn *connection, n int) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	missed, ok := o.kept.after(n)
	if !ok {
		return false
	}
	o.disconnectLocked(o.conn)
	o.kept.forgetting.Stop()
	o.connectLocked(conn)
	o.queueLocked(append(missed, frame{})...)
	return true
}

// keptStream describes a stream that can be resumed.
type keptStream struct {
	buffer  *replayBuffer
	id      string
	session string
	primed  bool // the stream begins with an event that it can be resumed from
	last    int  // number of the last message; the first is 1. Guarded by the buffer's mu

	// owner is the principal the messages belong to. While authorized returns false, messages
	// are neither buffered nor replayed. It may read the claims file, so it is never called
	// with a lock held.
	owner      string
	authorized func() bool

	forgetting *time.Timer // runs since the connection ended. Guarded by the outbox's mu
}

// recheck forgets the stream if the client has lost access. It does nothing if k is nil.
func (k *keptStream) recheck() {
	if k != nil && !k.authorized() {
		k.forget()
	}
}

// forget drops the stream and its messages.
func (k *keptStream) forget() {
	b := k.buffer
	b.streams.Delete(k.key())
	b.mu.Lock()
	defer b.mu.Unlock()
	b.kept = slices.DeleteFunc(b.kept, func(m keptMessage) bool {
		if m.of == k {
			b.releaseLocked(m)
		}
		return m.of == k
	})
}

// after returns the messages after n, and reports whether they are all still buffered.
func (k *keptStream) after(n int) (missed []frame, ok bool) {
	k.buffer.mu.Lock()
	defer k.buffer.mu.Unlock()
	for _, m := range k.buffer.kept {
		if m.of == k && m.n > n {
			missed = append(missed, m.frame)
		}
	}
	return missed, len(missed) == k.last-n
}

// key identifies the stream among those of all sessions.
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

// replayBuffer contains recent messages of all streams, so that a client whose connection
// broke can get them again (MCP 2025-11-25, basic/transports, "Resumability and
// Redelivery"). Beyond its limits, it drops the oldest messages first. The zero value is
// empty. Safe for concurrent use.
type replayBuffer struct {
	streams sync.Map // *outbox by key of its keptStream

	mu      sync.Mutex
	kept    []keptMessage // oldest first
	size    int64         // bytes of kept
	byOwner quota         // bytes of kept
}

type keptMessage struct {
	of    *keptStream
	n     int
	frame frame
}

// size returns the bytes that the message counts for.
func (m keptMessage) size() int64 { return int64(max(len(m.frame.msg), minKept)) }

// find returns a stream of a session, or nil if it is no longer known or if the client has
// lost access.
func (b *replayBuffer) find(session, stream string) *outbox {
	found, _ := b.streams.Load(session + stream)
	o, ok := found.(*outbox)
	if !ok || !o.kept.authorized() {
		return nil
	}
	return o
}

// keep gives a message its id, and buffers it unless it is too long.
func (b *replayBuffer) keep(k *keptStream, msg []byte) frame {
	b.mu.Lock()
	defer b.mu.Unlock()
	k.last++
	m := keptMessage{k, k.last, frame{id: k.eventID(k.last), msg: msg}}
	if len(msg) > maxReplayMessage {
		return m.frame
	}
	for b.size+m.size() > maxReplayBytes {
		b.evictLocked(0)
	}
	for b.byOwner.count(k.owner)+m.size() > maxReplayBytesOf {
		b.evictLocked(slices.IndexFunc(b.kept, func(m keptMessage) bool { return m.of.owner == k.owner }))
	}
	b.kept = append(b.kept, m)
	b.size += m.size()
	b.byOwner.reserve(k.owner, m.size(), maxReplayBytesOf)
	return m.frame
}

// evictLocked drops the message at index i. A stream is forgotten with its last message.
func (b *replayBuffer) evictLocked(i int) {
	m := b.kept[i]
	b.releaseLocked(m)
	if m.n == m.of.last {
		b.streams.Delete(m.of.key())
	}
	copy(b.kept[1:], b.kept[:i]) // usually nothing: i is 0
	b.kept[0] = keptMessage{}
	b.kept = b.kept[1:]
}

// releaseLocked stops counting a message.
func (b *replayBuffer) releaseLocked(m keptMessage) {
	b.size -= m.size()
	b.byOwner.release(m.of.owner, m.size())
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
		if f.id != "" {
			fmt.Fprintf(&text, "id: %s\n", f.id)
		}
		switch {
		case f.msg != nil:
			fmt.Fprintf(&text, "event: %s\ndata: %s\n\n", cmp.Or(f.event, "message"), f.msg)
		case f.id != "":
			fmt.Fprintf(&text, "retry: %d\ndata: \n\n", reconnectDelay.Milliseconds())
		default:
			text.WriteString(":\n\n")
		}
		if err := writeBody(w, text.Bytes()); err != nil {
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
		_, err := w.Write(append(f.msg, '\n'))
		return err
	}
}

// writeJSON writes a complete JSON answer.
func writeJSON(w http.ResponseWriter, status int, body []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)+1)) // else net/http sends it in chunks
	w.WriteHeader(status)
	_ = writeBody(w, append(body, '\n')) // an error means that the client has gone
}
