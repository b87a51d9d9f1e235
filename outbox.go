// Outboxes: everything that is sent to a client, whatever the transport. An outbox is a
// queue of messages, bounded in bytes, and one loop that writes them to the client's
// connection, as server-sent events or as lines. The answer to a POST remains plain JSON
// if nothing has to be sent before it. Nothing here depends on sessions or modules.

package main

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// keepAlive is the time between comments on a silent stream.
const keepAlive = 15 * time.Second

// outbox contains the messages to one client, in order, each on one line. If the client accepts
// a stream, the first message that is sent before the answer turns the answer into a stream. A nil
// message is a comment: it begins a stream, keeps a silent stream open through proxies, and
// detects a client that has gone. Safe for concurrent use.
type outbox struct {
	ctx   context.Context    // ends with the connection to the client
	held  *reservation       // of messages that are not yet written; may count other bytes too
	write func([]byte) error // nil if the client accepts no stream
	wake  chan struct{}      // 1-buffered: there is more to write, or nothing will follow; nil: no stream
	done  chan struct{}      // closed when nothing more is written to the stream

	mu    sync.Mutex
	ended bool // the outbox accepts no more messages
	queue [][]byte
	bytes int64 // in queue
}

// newOutbox returns an outbox that writes to a client until ctx ends, or that only accepts
// an answer if write is nil. Its messages count for held.
func newOutbox(ctx context.Context, held *reservation, write func([]byte) error) *outbox {
	return &outbox{ctx: ctx, held: held, write: write}
}

// send queues a message and reports whether it may arrive. It never waits for the client:
// a client that reads too slowly is disconnected. With nil, send only begins the stream.
func (o *outbox) send(msg []byte) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.startLocked() && (msg == nil || o.queueLocked(msg))
}

// end makes the outbox accept no more messages. Queued messages are still written.
func (o *outbox) end() { o.finish(nil) }

// finish ends the outbox with a last message, unless it is nil. It sends the message only
// if the outbox is a stream, and reports whether it is one.
func (o *outbox) finish(last []byte) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	isStream := o.wake != nil
	if isStream && !o.ended && last != nil {
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
	o.queueLocked(nil)
	go o.writeLoop()
	return true
}

// queueLocked queues a message, wakes the writer, and reports whether the message may arrive. If
// there is no room for it, queueLocked disconnects the client. The caller holds o.mu.
func (o *outbox) queueLocked(msg []byte) bool {
	n := int64(len(msg))
	full := o.bytes > 0 && o.bytes+n > maxOutbox
	if full || o.held.grow(n) != nil {
		o.disconnectLocked()
		return false
	}
	o.bytes += n
	o.queue = append(o.queue, msg)
	wake(o.wake)
	return true
}

// writeLoop writes queued messages until the outbox or the connection ends.
func (o *outbox) writeLoop() {
	defer close(o.done)
	defer func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.disconnectLocked()
	}()
	for {
		msg, ok := o.next()
		if !ok {
			return
		}
		err := o.write(msg)
		o.held.shrink(int64(len(msg)))
		if err != nil {
			return
		}
	}
}

// next takes the next message off the queue. It waits for one, and returns a comment if there
// is none within keepAlive. It returns false if nothing more must be written.
func (o *outbox) next() (msg []byte, ok bool) {
	for {
		o.mu.Lock()
		ended := o.ended
		if len(o.queue) > 0 {
			msg, ok = o.queue[0], true
			o.queue[0] = nil // so that the array does not keep the message in memory
			o.queue = o.queue[1:]
			o.bytes -= int64(len(msg))
		}
		o.mu.Unlock()
		if ok || ended {
			return msg, ok
		}
		select {
		case <-o.ctx.Done():
			return nil, false
		case <-o.wake:
		case <-time.After(keepAlive):
			return nil, true
		}
	}
}

// disconnectLocked gives up the connection and drops the queued messages. The caller holds o.mu.
func (o *outbox) disconnectLocked() {
	o.held.shrink(o.bytes)
	o.ended = true
	o.queue = nil
	o.bytes = 0
	wake(o.wake)
}

// sseWriter returns a function that writes messages as server-sent events. The first one makes
// the HTTP answer a stream of them.
func sseWriter(w http.ResponseWriter) func([]byte) error {
	return func(msg []byte) error {
		h := w.Header()
		h.Set("Content-Type", "text/event-stream")
		h.Set("Cache-Control", "no-store")
		h.Set("X-Accel-Buffering", "no")
		begin := ":"
		if bytes.HasPrefix(msg, []byte("/")) { // the address of an HTTP+SSE session
			begin = "event: endpoint\ndata: "
		} else if msg != nil {
			begin = "event: message\ndata: "
		}
		if err := writeBody(w, []byte(begin), msg, []byte("\n\n")); err != nil {
			return err
		}
		return http.NewResponseController(w).Flush()
	}
}

// lineWriter returns a function that writes messages as lines, and no comments.
func lineWriter(w io.Writer) func([]byte) error {
	return func(msg []byte) error {
		if msg == nil {
			return nil
		}
		_, err := w.Write(append(msg, '\n'))
		return err
	}
}

// writeJSON writes a complete JSON answer.
func writeJSON(w http.ResponseWriter, status int, answer []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(answer)+1)) // else net/http sends chunks
	w.WriteHeader(status)
	_ = writeBody(w, append(answer, '\n')) // an error means that the client has gone
}
