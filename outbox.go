// Outboxes: everything that goes to a client, whatever the transport. An outbox
// is a queue of messages, bounded in bytes, and one loop that writes them to the
// client's connection: as server-sent events, or as lines. The answer to a POST
// stays plain JSON if nothing has to be sent before it. What is sent on streams
// that a client may resume is kept in the daemon's one replay buffer. This file
// writes bytes; it knows neither sessions nor modules.

package main

import (
	"bytes"
	"cmp"
	"context"
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
	replayLife     = 2 * time.Minute  // for which a stream can be resumed after its connection has ended

	streamInterval = 2 * time.Second        // how often an open stream looks at its session's claim
	coalesce       = 300 * time.Millisecond // changes this close make one list_changed
)

// frame is what is written to a client at once. With an id and no message it
// tells the client from where to resume (MCP 2025-11-25, basic/transports); with
// neither it is a comment, which begins a stream, keeps a silent one open through
// proxies, and finds out whether the client still lives.
type frame struct {
	id    string
	msg   []byte // one line
	event string // the kind of event; "" for a message
}

// connection is what an outbox writes to.
type connection struct {
	ctx   context.Context   // ends with it
	write func(frame) error // nil where the client accepts no stream
	// end is called when nothing more is written to a stream. Who sets it calls
	// follow too; else a stream that begins has a goroutine do so.
	end func()

	// Of a stream that was begun on it.
	wake chan struct{}   // 1-buffered: there is more to write, or nothing will follow
	done context.Context // ends with what that goroutine writes
}

// outbox is the messages to one client, in order. It becomes a stream, where the
// client accepts one, with the first that is sent before the answer. Safe for
// concurrent use.
type outbox struct {
	limit int         // bytes that may wait behind the message being written
	kept  *keptStream // nil if the stream can't be resumed

	mu    sync.Mutex
	conn  *connection // nil once the client has gone
	begun bool        // it is a stream
	ended bool        // no more messages are taken
	queue []frame
	bytes int // of queue
}

// newOutbox returns an outbox. If kept is not nil, the client can resume its stream.
// missed contains events of an earlier stream to replay first.
func newOutbox(conn *connection, kept *keptStream, missed ...frame) *outbox {
	o := &outbox{limit: maxOutbox, kept: kept, conn: conn}
	o.queueLocked(missed...) // nobody else knows it yet
	return o
}

func (o *outbox) queueLocked(frames ...frame) {
	for _, f := range frames {
		o.bytes += len(f.msg)
	}
	o.queue = append(o.queue, frames...)
	wake(o.conn.wake)
}

// startLocked makes the outbox a stream, if the client accepts one and is there.
// It reports whether it is one.
func (o *outbox) startLocked() bool {
	if o.begun || o.ended || o.conn.write == nil || o.conn.ctx.Err() != nil {
		return o.begun
	}
	o.begun = true
	if o.kept != nil {
		o.kept.buffer.streams.Store(o.kept.session+o.kept.id, o)
		if o.kept.resumableFromStart {
			o.queueLocked(frame{id: o.kept.eventID(0)})
		}
	}
	o.queueLocked(frame{})
	o.conn.wake = make(chan struct{}, 1)
	if o.conn.end == nil {
		o.conn.done, o.conn.end = context.WithCancel(context.Background())
		go o.writeLoop(o.conn, nil)
	}
	return true
}

// send queues a message, and reports whether it may arrive. It does not block. A
// client that does not keep up is dropped. A message that is nil only begins the
// stream.
func (o *outbox) send(msg []byte) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return !o.ended && o.startLocked() && (msg == nil || o.sendLocked(msg))
}

func (o *outbox) sendLocked(msg []byte) bool {
	f := frame{msg: msg}
	if o.kept != nil {
		f = o.kept.buffer.keep(o.kept, msg)
	}
	if o.conn != nil && o.bytes > 0 && o.bytes+len(msg) > o.limit {
		o.disconnectLocked(o.conn)
	}
	if o.conn == nil {
		return o.kept != nil
	}
	o.queueLocked(f)
	return true
}

// end takes no more messages. Those that are queued are still written.
func (o *outbox) end() { o.finish(nil, false) }

// finish is end with a last message, nil for none. It goes out if the outbox is a
// stream, or stream has it become one; finish reports that.
func (o *outbox) finish(last []byte, stream bool) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	isStream := o.begun || stream && o.startLocked()
	if isStream && last != nil {
		o.sendLocked(last)
	}
	o.ended = true
	if o.conn != nil {
		wake(o.conn.wake)
	}
	return isStream
}

// writeLoop writes what is queued to a connection until the outbox has ended, or the
// connection has, or another one has taken its place. Meanwhile it calls look, if
// that is not nil, every streamInterval, and soon after what look returns is closed.
func (o *outbox) writeLoop(conn *connection, look func() (changed <-chan struct{})) {
	defer conn.end()
	defer o.disconnect(conn)
	silent, next := time.NewTicker(keepAlive), time.NewTimer(0)
	defer silent.Stop()
	defer next.Stop()
	var changed <-chan struct{}
	for err := error(nil); err == nil; {
		o.mu.Lock()
		waits := len(o.queue) == 0
		over := o.conn != conn || waits && o.ended
		var f frame
		if !over && !waits {
			f, o.queue[0] = o.queue[0], frame{} // so that the message is not held
			o.queue = o.queue[1:]
			o.bytes -= len(f.msg)
		}
		o.mu.Unlock()
		switch {
		case over:
			err = io.EOF
		case !waits:
			err = conn.write(f)
		default:
			select {
			case <-conn.ctx.Done():
				err = conn.ctx.Err()
			case <-conn.wake:
			case <-silent.C:
				err = conn.write(frame{})
			case <-changed:
				changed = nil
				next.Reset(coalesce)
			case <-next.C:
				if look != nil {
					changed = look()
					next.Reset(streamInterval)
				}
			}
		}
	}
}

// disconnect gives a connection up. What was queued for it may be kept for the next one.
func (o *outbox) disconnect(conn *connection) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.disconnectLocked(conn)
}

// disconnectLocked is lose for who holds mu.
func (o *outbox) disconnectLocked(conn *connection) {
	if conn == nil || o.conn != conn {
		return
	}
	o.conn, o.queue, o.bytes = nil, nil, 0
	wake(conn.wake)
	if o.kept != nil {
		o.kept.forgetting = time.AfterFunc(replayLife, func() { o.kept.buffer.forget(o.kept) })
	}
}

// resume has a connection, which is then to follow, take the place of the one
// before, and begin after message n. It reports false where not all of that is kept.
func (o *outbox) resume(conn *connection, n int) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	missed, ok := o.kept.buffer.after(o, n)
	if !ok {
		return false
	}
	o.disconnectLocked(o.conn)
	o.kept.forgetting.Stop()
	o.conn, conn.wake = conn, make(chan struct{}, 1)
	o.queueLocked(append(missed, frame{})...)
	return true
}

// keptStream is how a stream can be resumed.
type keptStream struct {
	buffer             *replayBuffer
	id                 string
	session            string
	resumableFromStart bool // the stream begins with an event that it can be resumed from
	last               int  // number of the message sent last; the first is 1. The buffer guards it
	// owner is whose messages they are. While that is not authorized, nothing is
	// kept, and nothing of what was kept is given.
	owner      string
	authorized func() bool
	forgetting *time.Timer // since the connection has ended; the outbox guards it
}

// eventID is the id of the stream's message n; 0 stands before the first.
func (k *keptStream) eventID(n int) string { return k.id + "-" + strconv.Itoa(n) }

// parseEventID takes an event id apart. The stream of what is none is "".
func parseEventID(s string) (stream string, n int) {
	stream, number, _ := strings.Cut(s, "-")
	n, err := strconv.Atoi(number)
	if err != nil || n < 0 {
		return "", 0
	}
	return stream, n
}

// replayBuffer is the messages of all streams that were sent lately, so that a
// client whose connection broke can have them again (MCP 2025-11-25,
// basic/transports, "Resumability and Redelivery"). Where there are too many, the
// oldest go first. The zero value is empty. Safe for concurrent use.
type replayBuffer struct {
	streams sync.Map // *outbox by session and id

	mu   sync.Mutex
	kept []keptMessage  // oldest first
	size int            // of kept, in bytes
	own  map[string]int // of these, by owner
}

type keptMessage struct {
	of    *keptStream
	n     int
	frame frame
}

// find returns a stream of a session; nil for one that is not known any more.
func (b *replayBuffer) find(session, stream string) *outbox {
	found, _ := b.streams.Load(session + stream)
	o, _ := found.(*outbox)
	return o
}

// keep gives a message its id, and takes it in unless it is too long.
func (b *replayBuffer) keep(k *keptStream, msg []byte) frame {
	authorized := k.authorized()
	b.mu.Lock()
	defer b.mu.Unlock()
	k.last++
	f := frame{id: k.eventID(k.last), msg: msg}
	if !authorized || len(msg) > maxReplayMessage {
		return f
	}
	b.kept = append(b.kept, keptMessage{k, k.last, f})
	b.countLocked(k.owner, len(msg), 1)
	for b.size > maxReplayBytes || b.own[k.owner] > maxReplayBytesOf {
		oldest := 0
		if b.size <= maxReplayBytes {
			oldest = slices.IndexFunc(b.kept, func(m keptMessage) bool { return m.of.owner == k.owner })
		}
		m := b.kept[oldest]
		b.countLocked(m.of.owner, len(m.frame.msg), -1)
		if m.n == m.of.last { // with its last message the stream is forgotten
			b.streams.Delete(m.of.session + m.of.id)
		}
		copy(b.kept[1:], b.kept[:oldest]) // which is none, mostly
		b.kept[0] = keptMessage{}
		b.kept = b.kept[1:]
	}
	return f
}

// forget drops a stream and its messages.
func (b *replayBuffer) forget(k *keptStream) {
	b.streams.Delete(k.session + k.id)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.kept = slices.DeleteFunc(b.kept, func(m keptMessage) bool {
		if m.of == k {
			b.countLocked(k.owner, len(m.frame.msg), -1)
		}
		return m.of == k
	})
}

// countLocked counts a message of so many bytes that is taken in, 1, or dropped, -1.
func (b *replayBuffer) countLocked(owner string, bytes, sign int) {
	if b.own == nil {
		b.own = make(map[string]int)
	}
	b.size += sign * max(bytes, minKept)
	if b.own[owner] += sign * max(bytes, minKept); b.own[owner] == 0 {
		delete(b.own, owner)
	}
}

// after returns the messages of a stream after n; nil is a stream that is not
// known. It reports false when some of them are not kept, or nobody may have them.
func (b *replayBuffer) after(o *outbox, n int) (missed []frame, ok bool) {
	if o == nil || !o.kept.authorized() {
		return nil, false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, m := range b.kept {
		if m.of == o.kept && m.n > n {
			missed = append(missed, m.frame)
		}
	}
	return missed, len(missed) == o.kept.last-n
}

// sseWriter returns what writes frames as server-sent events. The first one
// commits the HTTP answer to being a stream of them.
func sseWriter(w http.ResponseWriter) func(frame) error {
	return func(f frame) error {
		w.Header().Set("Content-Type", "text/event-stream")
		w.Header().Set("Cache-Control", "no-store")
		w.Header().Set("X-Accel-Buffering", "no")
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
		return errors.Join(writeBody(w, text.Bytes()), http.NewResponseController(w).Flush())
	}
}

// lineWriter returns what writes messages as lines, and nothing else.
func lineWriter(w io.Writer) func(frame) error {
	return func(f frame) error {
		if f.msg == nil {
			return nil
		}
		_, err := w.Write(append(f.msg, '\n'))
		return err
	}
}

func writeJSON(w http.ResponseWriter, status int, body []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)+1)) // else net/http sends it in chunks
	w.WriteHeader(status)
	_ = writeBody(w, append(body, '\n')) // a peer that is gone is no one to tell
}
