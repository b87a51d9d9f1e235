// HTTP: what both endpoints share. It decides who may talk to the daemon at all (Host,
// Origin, proxies), reads and writes bodies within limits, and adapts handlers that return
// errors. It limits connections and the bytes held for each principal. Nothing here depends
// on MCP methods or webhooks.

package main

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	bodyTimeout        = 30 * time.Second // for a request's headers and body to arrive
	unknownBodyTimeout = 10 * time.Second // for a whole body of an unauthenticated sender to arrive
	writeTimeout       = 30 * time.Second // for the client to accept the next maxWrite of an answer
)

// fault is an error with a text for clients, a detail for the owner, and an HTTP status.
type fault struct {
	Status int
	Msg    string          // for clients
	Err    error           // for the owner, instead of Msg; nil if Msg says everything
	RPC    *rpcError       // the JSON-RPC error to answer with; nil: Msg with codeRefused
	ID     json.RawMessage // of the failed JSON-RPC request, if known
	Header http.Header
}

func (e *fault) Error() string { return e.Msg }
func (e *fault) Unwrap() error { return e.Err }

// explain returns the text of an error for the owner: its innermost detail.
func explain(err error) string {
	e, ok := errors.AsType[*fault](err)
	if !ok || e.Err == nil {
		return err.Error()
	}
	return explain(e.Err)
}

// httpErrorf returns a fault with a formatted Msg.
func httpErrorf(status int, format string, args ...any) *fault {
	return &fault{Status: status, Msg: fmt.Sprintf(format, args...)}
}

// errMethod returns the refusal of a request whose method is not one of allowed.
func errMethod(allowed string) *fault {
	e := httpErrorf(http.StatusMethodNotAllowed, "this method is not allowed here: use %s", allowed)
	e.Header = http.Header{"Allow": {allowed}}
	return e
}

// retryAfter adds a Retry-After header of the given number of seconds to a new error, and
// returns the error.
func (e *fault) retryAfter(seconds int) *fault {
	e.Header = http.Header{"Retry-After": {strconv.Itoa(seconds)}}
	return e
}

// because adds the detail to a new error, and returns the error.
func (e *fault) because(cause error) *fault {
	e.Err = cause
	return e
}

// errInternal is sent in place of an error whose text is only for the log.
var errInternal = httpErrorf(http.StatusInternalServerError, "internal error: see usher's log")

// handle calls serve, which answers a request or returns an error. It logs the error and
// writes it in the endpoint's format. An error without a status is shown as an internal error.
func handle(
	w http.ResponseWriter, r *http.Request, log *slog.Logger,
	write func(http.ResponseWriter, *fault), serve func() error,
) {
	err := func() (err error) {
		defer catch(log, &err)
		return serve()
	}()
	if err == nil {
		return
	}
	id := w.Header().Get(requestIDHeader)
	log = log.With("path", clipText(r.URL.Path, maxLogged), "request", id, senderAttrs(r))
	e, known := errors.AsType[*fault](err)
	switch {
	case !known:
		log.Error("internal error", "err", err)
		e = errInternal
	case e != errInternal:
		log.Info("refused", "status", e.Status, "why", clipText(explain(e), maxLogged))
	}
	maps.Copy(w.Header(), e.Header)
	write(w, e)
}

// senderAttrs returns log attributes that say where a request came from: the address of the
// connection and, as sent and unverified, what X-Forwarded-For says.
func senderAttrs(r *http.Request) slog.Attr {
	host, _, _ := net.SplitHostPort(r.RemoteAddr)
	remote := slog.String("remote", host)
	forwarded := strings.Join(r.Header.Values("X-Forwarded-For"), ", ")
	if forwarded == "" {
		return remote
	}
	return slog.GroupAttrs("", remote, slog.String("forwarded_for", clipText(forwarded, maxLogged)))
}

// catch recovers a panic and logs it. If the pointer err is not nil, *err becomes errInternal. Use
// catch with defer.
func catch(log *slog.Logger, err *error) {
	if p := recover(); p != nil {
		log.Error("panic", "panic", p, "stack", string(debug.Stack()))
		if err != nil {
			*err = errInternal
		}
	}
}

// requestIDHeader carries a request's id, which the log contains too.
const requestIDHeader = "X-Request-Id"

// isProxied reports whether a request came through a proxy. Such a request may come from
// anywhere, even if the daemon listens on loopback only.
func isProxied(r *http.Request) bool {
	for name := range r.Header {
		if strings.HasPrefix(name, "X-Forwarded-") || slices.Contains(proxyHeaders, name) {
			return true
		}
	}
	return false
}

// proxyHeaders are headers that only proxies add, in addition to X-Forwarded-*.
var proxyHeaders = []string{"Forwarded", "Via", "X-Real-Ip", "Cf-Connecting-Ip"}

// originPolicy decides which requests may reach the daemon. The zero value admits only
// loopback names and IP addresses, but not 0.0.0.0 and ::. It must not be changed while it is
// in use.
type originPolicy struct {
	hosts   []string // lower case, without port
	origins []string // lower case, "scheme://host[:port]"
}

// mcpFlags are the flags that admit MCP requests from other machines.
const mcpFlags = "-require-claim (clients need a code) or -open (no code)"

// admit refuses requests that a web page may have made (MCP, basic/transports, "Security
// Warning"). The error names the flag that allows the request.
func (p *originPolicy) admit(r *http.Request) error {
	// In a DNS rebinding attack, the Host is a foreign name. An IP address can't be
	// rebound. But browsers reach this machine at 0.0.0.0 too, and do not say there which
	// site a request comes from. A Host that url.Parse changes or refuses has a zone, or is
	// malformed.
	host := r.Host
	if u, err := url.Parse("http://" + r.Host); err == nil && u.Host == r.Host {
		host = strings.ToLower(strings.TrimSuffix(u.Hostname(), "."))
	}
	addr, err := netip.ParseAddr(host)
	isAddr := err == nil && !addr.Unmap().IsUnspecified()
	if !isAddr && !isLoopback(host) && !slices.Contains(p.hosts, host) {
		return httpErrorf(http.StatusForbidden,
			"host %q is not allowed: start usher serve with -allow-host %[1]s", clipText(host, 100))
	}
	origins := r.Header.Values("Origin")
	// A frame in a page of another site sends no Origin, and could be used to guess codes.
	// Top-level navigation, as by a link, is allowed.
	crossSite := r.Header.Get("Sec-Fetch-Site") == "cross-site"
	if len(origins) == 0 && crossSite && r.Header.Get("Sec-Fetch-Dest") != "document" {
		return httpErrorf(http.StatusForbidden, "cross-site request without an Origin")
	}
	for _, origin := range origins {
		u, err := url.Parse(origin)
		local := err == nil && isLoopback(u.Hostname())
		if !local && !slices.Contains(p.origins, strings.ToLower(origin)) {
			return httpErrorf(http.StatusForbidden,
				"origin %q is not allowed: start usher serve with -allow-origin %[1]s", clipText(origin, 100))
		}
	}
	return nil
}

// cors adds the headers that let a script of an admitted origin read the answer. It
// answers a preflight and reports whether the request was one. Call it only after admit.
func (p *originPolicy) cors(w http.ResponseWriter, r *http.Request) (preflight bool) {
	origin := r.Header.Get("Origin")
	h := w.Header()
	h.Add("Vary", "Origin")
	if origin == "" {
		return false
	}
	h.Set("Access-Control-Allow-Origin", origin)
	h.Set("Access-Control-Expose-Headers", "Mcp-Session-Id, "+requestIDHeader)
	if r.Method != http.MethodOptions {
		return false
	}
	h.Set("Access-Control-Allow-Methods", "GET, POST, DELETE")
	h.Set("Access-Control-Allow-Headers", r.Header.Get("Access-Control-Request-Headers"))
	w.WriteHeader(http.StatusNoContent)
	return true
}

// isLoopback reports whether a host name or address is this machine. It accepts only plain
// characters before ".localhost": the page for people shows commands that contain the Host,
// and a shell would run $(…).localhost. (admit refuses addresses with a zone.)
func isLoopback(host string) bool {
	if addr, err := netip.ParseAddr(host); err == nil {
		return addr.Unmap().IsLoopback()
	}
	const plain = "abcdefghijklmnopqrstuvwxyz0123456789-_."
	host = strings.ToLower(host)
	return host == "localhost" || strings.HasSuffix(host, ".localhost") && consistsOf(host, plain)
}

// connections closes connections when there are too many. Safe for concurrent use.
type connections struct {
	maxUnadmitted int // the limit for connections without an admitted request
	maxOpen       int // the limit for all

	mu   sync.Mutex
	open map[net.Conn]connInfo
}

// connInfo describes the state of a connection.
type connInfo struct {
	idle     bool      // between two requests
	since    time.Time // in this state
	admitted bool      // the request in progress is admitted; until the connection's next change of state
}

// limitConnections limits the connections of a server. files is the number of files that
// the process may open; some remain for the claims file and for new processes.
func limitConnections(web *http.Server, files int) {
	c := &connections{
		maxUnadmitted: max(200, min(maxConns, files/2)),
		maxOpen:       max(200, files/4*3),
		open:          make(map[net.Conn]connInfo),
	}
	web.ConnState = c.set
	web.ConnContext = func(ctx context.Context, conn net.Conn) context.Context {
		return context.WithValue(ctx, connsKey{}, func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			if _, open := c.open[conn]; open {
				c.open[conn] = connInfo{admitted: true}
			}
		})
	}
}

// connsKey is the key of a function in a request's context: see markAdmitted.
type connsKey struct{}

// markAdmitted records that a request is admitted until it ends. Its body must have arrived:
// from then on, the limits of its principal apply to it.
func markAdmitted(r *http.Request) {
	if mark, ok := r.Context().Value(connsKey{}).(func()); ok {
		mark()
	}
}

// set records the state of a connection. If there are too many connections, set closes one
// without an admitted request. It prefers idle connections, and among them, or if there are none,
// the one that has been in its state for the longest time. So a newcomer is served, unless all
// others have an admitted request.
func (c *connections) set(conn net.Conn, state http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if state == http.StateClosed {
		delete(c.open, conn)
		return
	}
	c.open[conn] = connInfo{idle: state == http.StateIdle, since: time.Now()}
	if state != http.StateNew {
		return
	}
	var victim net.Conn
	unadmitted := 0
	for other, info := range c.open {
		if info.admitted {
			continue
		}
		unadmitted++
		chosen := c.open[victim]
		isOlder := info.idle == chosen.idle && info.since.Before(chosen.since)
		if victim == nil || info.idle && !chosen.idle || isOlder {
			victim = other
		}
	}
	if unadmitted <= c.maxUnadmitted && len(c.open) <= c.maxOpen {
		return
	}
	delete(c.open, victim)
	if secure, ok := victim.(*tls.Conn); ok {
		victim = secure.NetConn() // the Close of a TLS connection may wait for the client
	}
	victim.Close()
}

// memory limits the bytes that are held for principals. A request counts from the first
// byte of its body until the last byte of its answer has been written, together with what its
// client answers to modules meanwhile. Messages to clients count until they have been written.
// Only these bytes count: what usher makes of them, such as decoded objects, can be twenty times
// as large. Safe for concurrent use.
type memory struct {
	maxBody   int64        // bytes of one body
	strangers any          // the principal of all unauthenticated senders
	unknown   counter[any] // bytes held for strangers
	known     counter[any] // bytes held for the other principals

	mu       sync.Mutex
	arriving []*reservation // for bodies of strangers, the oldest first
}

// newMemory returns a memory for requests whose bodies have at most maxBody bytes.
func newMemory(maxBody int64, strangers any) *memory {
	m := &memory{maxBody: maxBody, strangers: strangers}
	m.unknown.perKey = max(maxHeldUnknown, maxBody)
	m.known.perKey = max(maxHeldOf, 2*maxBody)
	m.known.total = max(maxHeld-m.unknown.perKey, m.known.perKey)
	return m
}

// open returns an empty reservation for a principal. Principals are compared with ==. The
// caller must end the reservation.
func (m *memory) open(principal any) *reservation {
	r := &reservation{memory: m, principal: principal, counter: &m.known}
	if principal == m.strangers {
		r.counter = &m.unknown
	}
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

// errNoRoom refuses a request that finds no room, or is dropped to make room for others.
// errNoRoomToAnswer is sent instead of an answer that finds no room.
var (
	errNoRoom error = httpErrorf(http.StatusServiceUnavailable,
		"too many requests and unread answers: try again").retryAfter(5)
	errNoRoomToAnswer error = httpErrorf(http.StatusInternalServerError,
		"too many unread answers: read some")
)

// reservation counts the bytes of a memory that one request or connection uses. Safe for
// concurrent use.
type reservation struct {
	memory    *memory
	principal any
	counter   *counter[any]            // of bytes held for principals like this one
	size      atomic.Int64             // bytes
	control   *http.ResponseController // of a request whose body arrives; some tests support no deadlines
}

// isUnknown reports whether the reservation is that of an unauthenticated sender.
func (r *reservation) isUnknown() bool { return r.counter == &r.memory.unknown }

// grow counts n more bytes, or returns errNoRoom. If unauthenticated senders have no room,
// their oldest bodies that are still arriving make room.
func (r *reservation) grow(n int64) error {
	for !r.counter.reserve(r.principal, n) {
		if !r.isUnknown() || !r.memory.dropOldest() {
			return errNoRoom
		}
	}
	r.size.Add(n)
	return nil
}

// shrink gives back n bytes.
func (r *reservation) shrink(n int64) {
	r.size.Add(-n)
	r.counter.release(r.principal, n)
}

// end gives back all bytes. It may be called again.
func (r *reservation) end() { r.counter.release(r.principal, r.size.Swap(0)) }

// receive reads the body of a request. If the announced length of the body is over the limit,
// receive reads nothing. The body of an unauthenticated sender may be dropped to make room. Errors
// are *fault. Reading a body to its end also lets net/http notice that the client disconnects.
func (r *reservation) receive(w http.ResponseWriter, req *http.Request) (body []byte, err error) {
	limit := r.memory.maxBody
	r.control = http.NewResponseController(w)
	if req.ContentLength > limit {
		err = &http.MaxBytesError{Limit: limit}
	} else {
		body, err = r.readAll(http.MaxBytesReader(w, req.Body, limit))
	}
	if err == nil {
		req.Body = http.NoBody // nothing is left to skip
		// net/http lifts the deadline at the end of a body, but there may be none.
		r.control.SetReadDeadline(time.Time{})
		markAdmitted(req)
		return body, nil
	}
	w.Header().Set("Connection", "close") // the rest of the body is not read
	_, tooLarge := errors.AsType[*http.MaxBytesError](err)
	switch {
	case err == errNoRoom:
	case tooLarge:
		err = httpErrorf(http.StatusRequestEntityTooLarge,
			"the body is larger than %s (-max-body)", formatSize(limit))
	case errors.Is(err, os.ErrDeadlineExceeded):
		err = httpErrorf(http.StatusRequestTimeout, "the body did not arrive in time")
	default:
		err = httpErrorf(http.StatusBadRequest, "can't read the body").because(err)
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
func (r *reservation) Write(part []byte) (int, error) { return len(part), r.grow(int64(len(part))) }

// writeBody writes parts in chunks, each with a deadline. Without deadlines, a write to a
// client that vanished would never end once the buffers are full.
func writeBody(w http.ResponseWriter, parts ...[]byte) error {
	control := http.NewResponseController(w)
	for _, part := range parts {
		for chunk := range slices.Chunk(part, maxWrite) {
			_ = control.SetWriteDeadline(time.Now().Add(writeTimeout)) // some tests don't support it
			if _, err := w.Write(chunk); err != nil {
				return err
			}
		}
	}
	return nil
}

// hashOf returns a hash of the parts, in 32 hexadecimal digits. It quotes the parts, so
// that different lists of parts have different hashes.
func hashOf(parts ...string) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%q", parts))
	return fmt.Sprintf("%x", sum[:16])
}

// errText returns an error's text without paths. Callers add the path if the reader may
// see it.
func errText(err error) string {
	for e := err; e != nil; e = errors.Unwrap(e) {
		switch e.(type) {
		case *fs.PathError, *os.LinkError, *exec.Error:
			err = errors.Unwrap(e)
		}
	}
	return err.Error()
}

// clipText cuts s after at most n bytes, at the end of a character.
func clipText(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "") + "…"
}

// consistsOf reports whether s contains only characters of alphabet.
func consistsOf(s, alphabet string) bool { return strings.Trim(s, alphabet) == "" }
