// Outboxes: everything that is sent to a client, whatever the transport. An outbox is a
// queue of messages, bounded in bytes, and one loop that writes them to the client's
// connection, as server-sent events or as lines. The answer to a POST remains plain JSON
// if nothing has to be sent before it. Nothing here depends on sessions or modules.

package main

import (
	"context"
	"encoding/json"
	"io"
	"sync"
	"time"
)

// keepAlive is the time between comments on a silent stream.
const keepAlive = 15 * time.Second

// outbox contains the messages to one client, in order, each on one line. If the client accepts
// a stream, the first message that is sent before the answer turns the answer into a stream. Safe
// for concurrent use.
type outbox struct {
	ctx   context.Context      // ends with the connection to the client
	held  *reservation         // counts messages that are not yet written, and perhaps other bytes
	write func(outEvent) error // nil if the client accepts no stream
	more  chan struct{}        // 1-buffered: there is more to write, or nothing will follow; nil: no stream
	done  chan struct{}        // closed when nothing more is written to the stream

	mu    sync.Mutex
	ended bool // the outbox accepts no more messages
	queue []outEvent
	bytes int // in queue
}

// outEvent is a message to a client, or a comment. A comment begins a stream, keeps a silent stream
// open through proxies, and detects a client that has gone.
type outEvent struct {
	name string // "message", or another one of HTTP+SSE; "" for a comment
	data []byte
	held int // how many bytes of data count; 0 for usher's own events
}

// send queues a message, which counts, and reports whether it may arrive. It never waits for the
// client: a client that reads too slowly, or for whose message there is no room, is disconnected.
func (o *outbox) send(msg []byte) bool {
	return o.sendEvent(outEvent{"message", msg, len(msg)})
}

// sendOwn queues an event of usher itself, which is not counted.
func (o *outbox) sendOwn(name string, msg []byte) { o.sendEvent(outEvent{name, msg, 0}) }

// sendEvent queues an event, which counts as e.held bytes, and reports whether it may arrive: see send.
func (o *outbox) sendEvent(e outEvent) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.startLocked() {
		return false
	}
	if o.held.grow(e.held) != nil {
		o.disconnectLocked()
		return false
	}
	return o.queueLocked(e)
}

// open makes the outbox a stream, which begins with a comment, and reports whether it is one.
func (o *outbox) open() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.startLocked()
}

// answer queues msg, the answer to the request with an id. The answer counts; without room for it,
// answer queues an error instead. The last answer, which may be nil, ends the outbox, and is queued
// only if the outbox is a stream by then. answer reports whether the outbox is a stream.
func (o *outbox) answer(id json.RawMessage, msg []byte, last bool) (isStream bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	isStream = o.more != nil || !last && o.startLocked()
	if isStream && !o.ended && msg != nil {
		n := len(msg)
		if o.held.grow(n) != nil {
			msg = encodeError(id, errNoRoom)
			n = 0
		}
		o.queueLocked(outEvent{"message", msg, n})
	}
	o.ended = o.ended || last
	wake(o.more)
	return isStream
}

// end makes the outbox accept no more messages. Queued messages are still written.
func (o *outbox) end() { o.answer(nil, nil, true) }

// startLocked makes the outbox a stream, if the client accepts one and is connected. It
// reports whether the outbox is a stream that accepts messages. The caller holds o.mu.
func (o *outbox) startLocked() bool {
	if o.more == nil && !o.ended && o.write != nil && o.ctx.Err() == nil {
		o.more = make(chan struct{}, 1)
		o.done = make(chan struct{})
		o.queueLocked(outEvent{})
		go o.writeLoop()
	}
	return o.more != nil && !o.ended
}

// queueLocked queues an event, wakes the writer, and reports whether the event may arrive. If
// too much is queued, queueLocked disconnects the client. The caller holds o.mu.
func (o *outbox) queueLocked(e outEvent) bool {
	isFull := o.bytes > 0 && o.bytes+len(e.data) > maxOutbox
	o.queue = append(o.queue, e)
	o.bytes += len(e.data)
	if isFull {
		o.disconnectLocked()
		return false
	}
	wake(o.more)
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
		e, ok := o.next()
		if !ok {
			return
		}
		err := o.write(e)
		o.held.shrink(e.held)
		if err != nil {
			return
		}
	}
}

// next takes the next event off the queue. It waits for one, and returns a comment if there
// is none within keepAlive. It returns false if nothing more must be written.
func (o *outbox) next() (e outEvent, ok bool) {
	for {
		o.mu.Lock()
		ended := o.ended
		if len(o.queue) > 0 {
			e, ok = o.queue[0], true
			o.queue[0] = outEvent{} // so that the array does not keep the message in memory
			o.queue = o.queue[1:]
			o.bytes -= len(e.data)
		}
		o.mu.Unlock()
		if ok || ended {
			return e, ok
		}
		select {
		case <-o.ctx.Done():
			return e, false
		case <-o.more:
		case <-time.After(keepAlive):
			return e, true
		}
	}
}

// disconnectLocked gives up the connection and drops the queued events. The caller holds o.mu.
func (o *outbox) disconnectLocked() {
	for _, e := range o.queue {
		o.held.shrink(e.held)
	}
	o.ended = true
	o.queue = nil
	o.bytes = 0
	wake(o.more)
}

// sseWriter returns a function that writes server-sent events. The first one makes the HTTP
// answer a stream of them.
func sseWriter(r *reservation) func(outEvent) error {
	return func(e outEvent) error {
		h := r.w.Header()
		h.Set("Content-Type", "text/event-stream")
		h.Set("Cache-Control", "no-store")
		h.Set("X-Accel-Buffering", "no")
		begin := ":"
		if e.name != "" {
			begin = "event: " + e.name + "\ndata: "
		}
		if err := r.writeParts([]byte(begin), e.data, []byte("\n\n")); err != nil {
			return err
		}
		return r.flush()
	}
}

// lineWriter returns a function that writes messages as lines, and no comments.
func lineWriter(w io.Writer) func(outEvent) error {
	return func(e outEvent) error {
		if e.name == "" {
			return nil
		}
		_, err := w.Write(append(e.data, '\n'))
		return err
	}
}
