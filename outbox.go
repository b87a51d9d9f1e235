// Outboxes: everything that is sent to a client, whatever the transport. An outbox is a
// queue of messages, bounded in bytes, and one loop that writes them to the client's
// connection, as server-sent events or as lines. The answer to a POST remains plain JSON
// if nothing has to be sent before it. Nothing here depends on sessions or modules.

package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"
)

// keepAlive is the time between comments on a silent stream.
const keepAlive = 15 * time.Second

// frame is the content of one write to a client. A frame without a message is a comment: it
// begins a stream, keeps a silent stream open through proxies, and detects a client that
// has gone.
type frame struct {
	msg   []byte // one line
	list  []byte // a value that many messages share: it and "}}" follow msg
	event string // the kind of event; "" for a message
}

// parts returns the pieces of the message, with tail at the end. It may write into the spare
// capacity of msg, so it must be called once.
func (f frame) parts(tail string) [][]byte {
	if f.list == nil {
		return [][]byte{append(f.msg, tail...)}
	}
	return [][]byte{f.msg, f.list, []byte("}}" + tail)}
}

// outbox contains the messages to one client, in order. If the client accepts a stream,
// the first message that is sent before the answer turns the answer into a stream. Safe
// for concurrent use.
type outbox struct {
	ctx   context.Context   // ends with the connection to the client
	held  *reservation      // of messages that are not yet written; may count other bytes too
	write func(frame) error // nil if the client accepts no stream
	wake  chan struct{}     // 1-buffered: there is more to write, or nothing will follow; nil: no stream
	done  chan struct{}     // closed when nothing more is written to the stream

	mu    sync.Mutex
	ended bool // the outbox accepts no more messages
	queue []frame
	bytes int64 // in queue
}

// newOutbox returns an outbox that writes to a client until ctx ends, or that only accepts
// an answer if write is nil. Its messages count for held.
func newOutbox(ctx context.Context, held *reservation, write func(frame) error) *outbox {
	return &outbox{ctx: ctx, held: held, write: write}
}

// send queues a message and reports whether it may arrive. It never waits for the client:
// a client that reads too slowly is disconnected. Without a message, send only begins the
// stream.
func (o *outbox) send(f frame) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.startLocked() && (f.msg == nil || o.queueLocked(f))
}

// end makes the outbox accept no more messages. Queued messages are still written.
func (o *outbox) end() { o.finish(frame{}) }

// finish ends the outbox with a last message, if there is one. It sends the message only
// if the outbox is a stream, and reports whether it is one.
func (o *outbox) finish(last frame) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	isStream := o.wake != nil
	if isStream && !o.ended && last.msg != nil {
		o.queueLocked(last)
	}
	o.ended = true
	wake(o.wake)
	return isStream
}

// startLocked makes the outbox a stream, if the client accepts one and is connected. It
// reports whether the outbox is a stream that accepts messages. The caller holds o.mu.
func (o *outbox) startLocked() bool {
	if o.ended {
		return false
	}
	if o.wake != nil {
		return true
	}
	if o.write == nil || o.ctx.Err() != nil {
		return false
	}
	o.wake = make(chan struct{}, 1)
	o.done = make(chan struct{})
	o.queueLocked(frame{})
	go o.writeLoop()
	return true
}

// queueLocked queues a frame, wakes the writer, and reports whether the frame may arrive. If
// there is no room for it, queueLocked disconnects the client. The caller holds o.mu.
func (o *outbox) queueLocked(f frame) bool {
	n := int64(len(f.msg))
	full := o.bytes > 0 && o.bytes+n > maxOutbox
	if full || o.held.grow(n) != nil {
		o.disconnectLocked()
		return false
	}
	o.bytes += n
	o.queue = append(o.queue, f)
	wake(o.wake)
	return true
}

// writeLoop writes queued messages until the outbox or the connection ends.
func (o *outbox) writeLoop() {
	defer close(o.done)
	defer o.disconnect()
	for {
		f, ok := o.next()
		if !ok {
			return
		}
		err := o.write(f)
		o.held.shrink(int64(len(f.msg)))
		if err != nil {
			return
		}
	}
}

// next takes the next frame off the queue. It waits for one, and returns a comment if there
// is none within keepAlive. It returns false if nothing more must be written.
func (o *outbox) next() (f frame, ok bool) {
	for {
		o.mu.Lock()
		ended := o.ended
		if len(o.queue) > 0 {
			f, ok = o.queue[0], true
			o.queue[0] = frame{} // so that the array does not keep the message in memory
			o.queue = o.queue[1:]
			o.bytes -= int64(len(f.msg))
		}
		o.mu.Unlock()
		if ok || ended {
			return f, ok
		}
		select {
		case <-o.ctx.Done():
			return frame{}, false
		case <-o.wake:
		case <-time.After(keepAlive):
			return frame{}, true
		}
	}
}

// disconnect gives up the connection and drops the queued messages.
func (o *outbox) disconnect() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.disconnectLocked()
}

// disconnectLocked does the work of disconnect. The caller holds o.mu.
func (o *outbox) disconnectLocked() {
	o.held.shrink(o.bytes)
	o.ended = true
	o.queue = nil
	o.bytes = 0
	wake(o.wake)
}

// sseWriter returns a function that writes frames as server-sent events. The first frame
// makes the HTTP answer a stream of them.
func sseWriter(w http.ResponseWriter) func(frame) error {
	return func(f frame) error {
		h := w.Header()
		h.Set("Content-Type", "text/event-stream")
		h.Set("Cache-Control", "no-store")
		h.Set("X-Accel-Buffering", "no")
		parts := [][]byte{[]byte(":\n\n")}
		if f.msg != nil {
			line := fmt.Sprintf("event: %s\ndata: ", cmp.Or(f.event, "message"))
			parts = slices.Insert(f.parts("\n\n"), 0, []byte(line))
		}
		if err := writeBody(w, parts...); err != nil {
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
		parts := net.Buffers(f.parts("\n"))
		_, err := parts.WriteTo(w)
		return err
	}
}

// writeJSON writes a complete JSON answer.
func writeJSON(w http.ResponseWriter, status int, answer frame) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = writeBody(w, answer.parts("\n")...) // an error means that the client has gone
}
