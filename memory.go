// Bytes: what usher holds in memory for others, by one rule. A byte of a body, message, answer
// or page counts for its principal from the moment usher reads or makes it until usher has
// written or dropped it. A reservation counts the bytes of one request or connection. The
// request's body is read and its answer is written through the reservation, which ends when
// net/http has taken the last byte: net/http buffers a few KiB. Nothing here depends on MCP
// methods or webhooks.
//
// Data that usher makes from a body or from a line of a process counts as much as that body or line,
// in its place. It may use more: decoded objects can be thirty times as large for a moment, and a
// request that its process has not read yet is in memory twice. usher does not count
// headers; lists that all callers share, until one is copied for an answer; errors that answer an HTTP
// request; its own notifications; and a line of a process, until an answer is made of it.
//
//	what                                 is counted by                   until
//	a body, and the call made of it      the reservation of its request  the answer is written
//	an answer, a page                    the reservation of its request  it is written
//	messages on a stream                 outbox.held                     they are written
//	a suspended call with its arguments  suspendedCall.held              the call ends
//	a question to a client               that of request.beginAsk        it is answered
//	the client's answer                  the same, or that of resume     the call ends

package main

import (
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

const (
	bodyTimeout        = 30 * time.Second // for a request's headers and body to arrive
	unknownBodyTimeout = 10 * time.Second // for a whole body of an unauthenticated sender to arrive
	writeTimeout       = 30 * time.Second // for the client to accept the next maxWrite of an answer
)

// memory limits the bytes that are held for principals. Safe for concurrent use.
type memory struct {
	maxBody   int     // bytes of one body
	strangers any     // the principal of all unauthenticated senders
	unknown   counter // bytes held for strangers
	known     counter // bytes held for the other principals

	mu       sync.Mutex
	arriving []*reservation // for bodies of strangers, the oldest first
}

// newMemory returns a memory for requests whose bodies have at most maxBody bytes.
func newMemory(maxBody int, strangers any) *memory {
	m := &memory{maxBody: maxBody, strangers: strangers}
	m.unknown.perKey = max(maxHeldUnknown, maxBody)
	m.known.perKey = max(maxHeldOf, 2*maxBody)
	m.known.total = max(maxHeld-m.unknown.perKey, m.known.perKey)
	return m
}

// reserve returns an empty reservation for a principal. Principals are compared with ==. The
// caller must end the reservation.
func (m *memory) reserve(principal any) *reservation {
	r := &reservation{memory: m, principal: principal, counter: &m.known}
	if principal == m.strangers {
		r.counter = &m.unknown
	}
	return r
}

// serve returns the reservation of an HTTP request, whose principal is not known yet. The
// caller must set refuse, and end the reservation when the request is answered.
func (m *memory) serve(w http.ResponseWriter, req *http.Request) *reservation {
	r := m.reserve(nil)
	r.w = w
	r.control = http.NewResponseController(w)
	r.req = req
	return r
}

// dropOldest drops the oldest arriving body, and reports whether there was one.
func (m *memory) dropOldest() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.arriving) == 0 {
		return false
	}
	oldest := m.arriving[0]
	m.arriving = m.arriving[1:]
	oldest.control.SetReadDeadline(time.Unix(1, 0)) // its read ends now
	oldest.end()
	return true
}

// errNoRoom refuses a request that finds no room, or is dropped to make room for others. It is also
// sent instead of an answer to a client that finds no room.
var errNoRoom error = httpErrorf(http.StatusServiceUnavailable,
	"too many requests and unread answers: try again")

// reservation counts the bytes of a memory that one request or connection uses. The methods
// that count are safe for concurrent use; those that read and write are for one goroutine.
type reservation struct {
	memory    *memory
	principal any
	counter   *counter     // of bytes held for principals like this one
	size      atomic.Int64 // bytes

	// Of an HTTP request, else zero:
	w       http.ResponseWriter
	control *http.ResponseController // of w
	req     *http.Request
	id      json.RawMessage            // of the message in the body; nil until it is parsed, or for none
	refuse  func(*reservation, *fault) // writes an error in the endpoint's format
}

// isUnknown reports whether the reservation is that of an unauthenticated sender.
func (r *reservation) isUnknown() bool { return r.counter == &r.memory.unknown }

// countFor makes the reservation count for a principal from now on, or returns errNoRoom. No
// other goroutine may use the reservation meanwhile.
func (r *reservation) countFor(principal any) error {
	if principal == r.principal {
		return nil
	}
	next := r.memory.reserve(principal)
	size := int(r.size.Load())
	if err := next.grow(size); err != nil {
		return err
	}
	r.counter.release(r.principal, size)
	r.principal = next.principal
	r.counter = next.counter
	return nil
}

// grow counts n more bytes, or returns errNoRoom. If unauthenticated senders have no room,
// their oldest bodies that are still arriving make room.
func (r *reservation) grow(n int) error {
	for !r.counter.reserve(r.principal, n) {
		if !r.isUnknown() || !r.memory.dropOldest() {
			return errNoRoom
		}
	}
	r.size.Add(int64(n))
	return nil
}

// shrink gives back n bytes.
func (r *reservation) shrink(n int) {
	r.size.Add(int64(-n))
	r.counter.release(r.principal, n)
}

// end gives back all bytes. It may be called again.
func (r *reservation) end() { r.counter.release(r.principal, int(r.size.Swap(0))) }

// handle answers an HTTP request by serve, which writes an answer or returns an error. handle logs
// the error and refuses the request with it, while what usher holds for the request still counts.
// Every request passes handle once.
func (r *reservation) handle(log *slog.Logger, serve func() error) {
	err := func() (err error) {
		defer catch(log, &err)
		return serve()
	}()
	if err == nil {
		return
	}
	// The path is not logged, because people type codes as paths.
	log = log.With("request", r.w.Header().Get(requestIDHeader), senderAttrs(r.req))
	log.Info("refused", "status", r.fail(err), "why", logText(explain(err)))
}

// fail refuses the request with err, and returns the HTTP status of the answer. The sender sees an
// error that is no fault as an internal error.
func (r *reservation) fail(err error) (status int) {
	e, isFault := errors.AsType[*fault](err)
	if !isFault {
		e = errInternal
	}
	status = e.status()
	switch status {
	case http.StatusUnauthorized: // some senders, such as Twilio, send the password only when asked
		r.w.Header().Set("WWW-Authenticate", `Basic realm="usher"`)
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		r.w.Header().Set("Retry-After", "5")
	}
	r.refuse(r, e)
	return status
}

// errMethod returns the refusal of a request whose method is not one of allowed, such as "GET, POST".
// It also sets the header Allow of the answer.
func (r *reservation) errMethod(allowed string) error {
	r.w.Header().Set("Allow", allowed)
	return httpErrorf(http.StatusMethodNotAllowed, "this method is not allowed here: use %s", allowed)
}

// receive reads the body of a request for its principal. If the announced length of the body is
// over the limit, receive reads nothing. The body of an unauthenticated sender may be dropped to
// make room. Errors are *fault. Reading a body to its end also lets net/http notice that the client
// disconnects.
func (r *reservation) receive(principal any) (body []byte, err error) {
	_ = r.countFor(principal) // counts nothing yet
	limit := int64(r.memory.maxBody)
	if r.req.ContentLength > limit {
		err = &http.MaxBytesError{Limit: limit}
	} else {
		body, err = r.readAll(http.MaxBytesReader(r.w, r.req.Body, limit))
	}
	if err == nil {
		r.req.Body = http.NoBody // nothing is left to skip
		// net/http lifts the deadline at the end of a body, but there may be none.
		r.control.SetReadDeadline(time.Time{})
		markAdmitted(r.req)
		return body, nil
	}
	r.w.Header().Set("Connection", "close") // the rest of the body is not read
	_, tooLarge := errors.AsType[*http.MaxBytesError](err)
	switch {
	case err == errNoRoom:
	case tooLarge:
		err = httpErrorf(http.StatusRequestEntityTooLarge,
			"the body is larger than %s (-max-body)", formatSize(limit))
	default:
		err = httpErrorf(http.StatusRequestTimeout, "the body did not arrive").because(err)
	}
	return nil, err
}

// readAll reads a body until its end or its deadline, or until it is dropped. The deadline is
// that of the server, and an earlier one for unauthenticated senders.
func (r *reservation) readAll(body io.Reader) ([]byte, error) {
	m := r.memory
	if r.isUnknown() {
		r.control.SetReadDeadline(time.Now().Add(unknownBodyTimeout))
		m.mu.Lock()
		m.arriving = append(m.arriving, r)
		m.mu.Unlock()
	}
	all, err := io.ReadAll(io.TeeReader(body, r))
	m.mu.Lock()
	if r.isUnknown() && !slices.Contains(m.arriving, r) {
		err = errNoRoom // it was dropped
	}
	m.arriving = remove(m.arriving, r)
	m.mu.Unlock()
	return all, err
}

// Write counts bytes of the body that have arrived.
func (r *reservation) Write(part []byte) (int, error) { return len(part), r.grow(len(part)) }

// write writes a complete answer, which must count already unless it is short. kind is its
// content type, "" for none.
func (r *reservation) write(status int, kind string, body []byte) {
	h := r.w.Header()
	if kind != "" {
		h.Set("Content-Type", kind)
	}
	if status != http.StatusNoContent && status != http.StatusNotModified {
		h.Set("Content-Length", strconv.Itoa(len(body))) // else net/http sends chunks
	}
	r.w.WriteHeader(status)
	_ = r.writeParts(body) // an error means that the client has gone
}

// writeJSON writes a complete answer: value, which is JSON and may be modified, and a newline.
func (r *reservation) writeJSON(status int, value []byte) {
	r.write(status, "application/json", append(value, '\n'))
}

// writeParts writes parts in chunks, each with a deadline. Without deadlines, a write to a
// client that vanished would never end once the buffers are full.
func (r *reservation) writeParts(parts ...[]byte) error {
	for _, part := range parts {
		for chunk := range slices.Chunk(part, maxWrite) {
			_ = r.control.SetWriteDeadline(time.Now().Add(writeTimeout)) // some tests don't support it
			if _, err := r.w.Write(chunk); err != nil {
				return err
			}
		}
	}
	return nil
}

// flush sends what net/http still buffers: a header of any size, and the last KiB of a body.
func (r *reservation) flush() error {
	_ = r.control.SetWriteDeadline(time.Now().Add(writeTimeout))
	return r.control.Flush()
}
