// HTTP: what both endpoints share. Who may speak to the daemon at all (Host,
// Origin, proxies), the reading and writing of bodies within limits, request
// ids, and errors with a status, which one adapter writes. The table of all
// limits of usher stands here too. It knows neither MCP methods nor webhooks.

package main

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"math"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// The limits of usher: every size and count that bounds something, by the room
// that it is enforced in, with its unit and whom it is per. A principal is a
// claim, or everybody who has none. Past a limit the one who asks is refused, or
// loses the oldest, and nobody else notices. Time-outs stand where they are used.
const (
	// http.go: bodies and headers of requests.
	maxHeader      = 64 << 10 // bytes of one request's headers
	defaultMaxBody = 4 << 20  // bytes of one request's body (-max-body)
	maxBodies      = 64 << 20 // bytes of all bodies being read, as received; or -max-body, if that is more
	maxBodiesOf    = 16 << 20 // of these, of one principal; of all who have shown the secret; of all who have shown nothing; or -max-body, likewise
	bodyChunk      = 64 << 10 // bytes of a body that have to arrive within bodyTimeout; larger ones make room for others first
	maxWrite       = 64 << 10 // bytes that a peer has to take within writeTimeout

	// outbox.go: messages to clients.
	maxOutbox        = 4 << 20  // bytes queued in one outbox, behind the message being written
	maxDuplexOutbox  = 32 << 20 // bytes queued for a client with one connection for all that goes to it: stdio, HTTP+SSE
	maxReplayBytes   = 16 << 20 // bytes kept for resuming, of all streams
	maxReplayBytesOf = 4 << 20  // of these, of one principal
	maxReplayMessage = 1 << 20  // bytes of one message that is kept for resuming
	minKept          = 4 << 10  // bytes that a shorter message counts for there

	// scope.go: codes that do not hold, with -require-claim; the log of sessions.
	maxRecordsOf    = 20_000   // sessions whose end, or move to another claim, is remembered, of one principal
	guessBudget     = 60       // different codes a minute that are looked up at once, for the whole daemon
	guessRate       = 10       // look-ups a second after that, for the whole daemon
	maxOpened       = 1 << 10  // session ids that need not be opened again, of those opened lately
	sessionLogSlack = 64 << 10 // bytes that the log may grow by, beside doubling, until it is compacted

	// gomodule.go, runtimes.go: files of the workspace.
	maxSource     = 1 << 20 // bytes of one source file or .mcp.json
	maxExecutable = 1 << 30 // bytes of an executable that is a module

	// shell.go: shell modules.
	maxShellOutput = 32 << 20 // bytes of one call's result
	shellTail      = 5        // lines of stderr that a failure shows

	// worker.go: one process of a module.
	maxWorkerLine = 64 << 20 // bytes of one message from a process
	maxInput      = 16 << 20 // bytes queued for one process, behind what is being written
	maxAsks       = 64       // requests to clients of one principal that wait for answers, of one process
	maxLoggedLine = 4 << 10  // bytes of one stray line that are logged
	tailLines     = 8        // lines of stderr that say why a process did not start
	maxPages      = 1000     // pages of one list of a module

	// pool.go: the processes of one module.
	maxProcs     = 16 // processes of one module
	maxProcsOf   = 4  // of these, of one claim
	maxRunning   = 64 // calls of one module that run at once, cancelled ones until they have ended; more wait their turn
	maxRunningOf = 32 // of these, of one principal, or of webhooks
	maxRounds    = 32 // times that one call is answered with a wish for input

	// modules.go, view.go: the registry and what it shows.
	maxIntrospections = 8                        // modules being introspected at once
	maxToolName       = 64 - len("mcp__usher__") // characters of a tool's name that every client takes

	// mcp.go: requests and lists.
	maxURI          = 8 << 10 // bytes of a resource URI of a client
	maxInstructions = 50      // modules that the instructions name

	// ask.go: requests of modules to clients.
	maxSuspended = 64 // calls of one principal that wait for input of their clients

	// session.go, transport.go: sessions and their streams.
	maxSessionsOf    = 1000     // sessions in memory, of one principal; those that nothing is under way for make room
	maxInFlight      = 256      // requests being answered, of one principal
	maxInFlightBytes = 32 << 20 // bytes of their messages, each counted as one part in maxInFlight at least
	maxStreams       = 16       // notification streams of one session
	maxStreamsOf     = 256      // notification streams of one principal
	maxBatch         = 100      // messages of one batch
	maxWanted        = 256      // resources that one session listens to
	maxWantedBytes   = 32 << 10 // bytes of their URIs

	// webhook.go: deliveries.
	defaultWebhookLimit = 256     // deliveries being answered (-webhook-limit)
	maxSignatures       = 16      // signatures of one delivery that are compared
	maxSignatureHeaders = 4 << 10 // bytes of one delivery's signature headers
)

const (
	bodyTimeout  = 30 * time.Second // for the next bodyChunk of a body to arrive
	writeTimeout = 30 * time.Second // for a peer to take the next maxWrite of an answer
)

// httpError is an error with its HTTP status. Msg is for the peer; Err, if any,
// only for the log.
type httpError struct {
	Status int
	Msg    string
	Err    error
	RPC    *rpcError       // the JSON-RPC error to answer with; nil for Msg under codeRefused
	ID     json.RawMessage // of the request that failed, where it is known
	Header http.Header
	Logged bool // the handler has told the log already
}

func (e *httpError) Error() string { return e.Msg }
func (e *httpError) Unwrap() error { return e.Err }

func httpErrorf(status int, format string, args ...any) *httpError {
	return &httpError{Status: status, Msg: fmt.Sprintf(format, args...)}
}

// retryAfter is the header of a refusal that will pass.
func retryAfter(seconds int) http.Header {
	return http.Header{"Retry-After": {strconv.Itoa(seconds)}}
}

// catch is deferred where a panic must end neither the daemon nor what others do: it
// logs the panic, and sets err.
func catch(log *slog.Logger, err *error) {
	if p := recover(); p != nil {
		log.Error("panic", "panic", p, "stack", string(debug.Stack()))
		*err = &httpError{Status: http.StatusInternalServerError, Msg: "internal error: see usher's log", Logged: true}
	}
}

// handle adapts a handler that returns its error to one that writes it. write
// gives the endpoint's form to the body. An error without a status is logged
// whole and shown as an internal error.
func handle(log *slog.Logger, write func(http.ResponseWriter, *httpError), f func(http.ResponseWriter, *http.Request) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		err := func() (err error) {
			defer catch(log, &err)
			return f(w, r)
		}()
		if err != nil {
			refuse(log, write, w, r, err)
		}
	}
}

// refuse writes and logs the error of a handler.
func refuse(log *slog.Logger, write func(http.ResponseWriter, *httpError), w http.ResponseWriter, r *http.Request, err error) {
	id := w.Header().Get(requestIDHeader)
	path := clipText(r.URL.Path, 200)
	e := (*httpError)(nil)
	if !errors.As(err, &e) {
		log.Error("internal error", "path", path, "request", id, "err", err)
		e = httpErrorf(http.StatusInternalServerError, "internal error, request %s: see usher's log", id)
	} else if !e.Logged {
		log.Info("refused", "status", e.Status, "path", path, "request", id, "why", cmp.Or(e.Err, error(e)))
	}
	maps.Copy(w.Header(), e.Header)
	write(w, e)
}

// requestIDHeader names a request, in the answer and in the log.
const requestIDHeader = "X-Request-Id"

// newRequestID draws such a name, which need not be secret.
func newRequestID() string { return strconv.FormatUint(rand.Uint64(), 36) }

// audience says who is served without showing a secret or a claim code.
type audience int

const (
	nobody      audience = iota
	thisMachine          // whose requests no proxy says to have passed on
	anyone
)

// includes reports whether a request is of the audience. Who sent one that a
// proxy says to have passed on can be anywhere, whatever address the daemon
// listens on.
func (a audience) includes(r *http.Request) bool {
	for name := range r.Header {
		if name == "Forwarded" || strings.HasPrefix(name, "X-Forwarded-") {
			return a == anyone
		}
	}
	return a != nobody
}

// originPolicy decides who may speak to the daemon. The zero value admits
// loopback names and IP literals only. It is not changed once it serves.
type originPolicy struct {
	hosts   []string // lower case, without port
	origins []string // lower case, "scheme://host[:port]"
	mcp     audience // of the MCP endpoint, as far as claims let them in
}

// admitMCP refuses an MCP request that came through a proxy, and so from
// elsewhere, where usher was not started to be reachable from there.
func (p *originPolicy) admitMCP(r *http.Request) error {
	if p.mcp.includes(r) {
		return nil
	}
	return httpErrorf(http.StatusBadRequest, "this request came through a proxy, from elsewhere: start usher serve with %s", mcpFlags)
}

// mcpFlags is what lets MCP requests of elsewhere in.
const mcpFlags = "-require-claim (MCP clients need a code from usher claim), or -open (every MCP client gets every module)"

// admit refuses a foreign Host, which is what DNS rebinding looks like, and a
// foreign Origin, which is some website's script (MCP, basic/transports,
// "Security Warning"). A Host may be a loopback name, an IP literal (no page can
// be rebound to one), or what was allowed by flag; an Origin a page served from
// this machine, or what was allowed. ("null" is what sandboxed and local pages
// send: anyone's.) What another site has a browser do without naming an origin is
// refused too, but for a link that is followed: a frame of that site could guess.
func (p *originPolicy) admit(r *http.Request) error {
	host := strings.ToLower(strings.TrimSuffix((&url.URL{Host: r.Host}).Hostname(), "."))
	_, notAddr := netip.ParseAddr(host)
	if notAddr != nil && !isLoopback(host) && !slices.Contains(p.hosts, host) {
		return httpErrorf(http.StatusForbidden, "host %q is not allowed: start usher serve with -allow-host %[1]s", clipText(host, 100))
	}
	origins := r.Header.Values("Origin")
	if len(origins) == 0 && r.Header.Get("Sec-Fetch-Site") == "cross-site" && r.Header.Get("Sec-Fetch-Dest") != "document" {
		return httpErrorf(http.StatusForbidden, "a web page of another site made this request, and does not say which")
	}
	for _, origin := range origins {
		u, err := url.Parse(origin)
		if origin == "null" {
			return httpErrorf(http.StatusForbidden, "origin null is not allowed, which files and sandboxed pages have: serve the page by HTTP, and give -allow-origin its address")
		}
		if (err != nil || !isLoopback(u.Hostname())) && !slices.Contains(p.origins, strings.ToLower(origin)) {
			return httpErrorf(http.StatusForbidden, "origin %q is not allowed: start usher serve with -allow-origin %[1]s", clipText(origin, 100))
		}
	}
	return nil
}

// isLoopback reports whether a host, given by name or address, is this machine. A
// name that only browsers take for one is not: the page for people shows commands
// with the host in them, and a shell would run what stands in $(…).localhost.
func isLoopback(host string) bool {
	if addr, err := netip.ParseAddr(host); err == nil {
		return addr.Unmap().IsLoopback()
	}
	host = strings.ToLower(host)
	return host == "localhost" || strings.HasSuffix(host, ".localhost") && strings.Trim(host, "abcdefghijklmnopqrstuvwxyz0123456789-_.") == ""
}

// hashOf names what is made of the parts, in hexadecimal digits. Quoted, no two
// lists of parts make one text.
func hashOf(parts ...string) string {
	text := []byte{'['}
	for _, part := range parts {
		text = append(strconv.AppendQuote(text, part), ' ')
	}
	text[len(text)-1] = ']'
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:16])
}

// errText is an error without the path that the caller names anyway.
func errText(err error) string {
	if p := (*fs.PathError)(nil); errors.As(err, &p) {
		return p.Err.Error()
	}
	return err.Error()
}

func clipText(s string, n int) string {
	if len(s) > n {
		return s[:n] + "…"
	}
	return s
}

// cors adds the answer headers that let an admitted origin's script read the
// answer, and reports whether the request was a preflight, which is then
// answered. Only for requests that admit let through.
func (p *originPolicy) cors(w http.ResponseWriter, r *http.Request) (preflight bool) {
	origin := r.Header.Get("Origin")
	h := w.Header()
	h.Add("Vary", "Origin")
	if origin == "" {
		return false
	}
	h.Set("Access-Control-Allow-Origin", origin)
	h.Set("Access-Control-Expose-Headers", "Mcp-Session-Id, "+requestIDHeader)
	if r.Method != http.MethodOptions || r.Header.Get("Access-Control-Request-Method") == "" {
		return false
	}
	h.Set("Access-Control-Allow-Methods", "GET, POST, DELETE")
	h.Set("Access-Control-Allow-Headers", r.Header.Get("Access-Control-Request-Headers"))
	h.Set("Access-Control-Max-Age", "600")
	w.WriteHeader(http.StatusNoContent)
	return true
}

// bodyReader reads the bodies of requests, within a limit for each and a common
// one for all that are being read. Safe for concurrent use.
type bodyReader struct {
	limit int64 // bytes of one body

	mu      sync.Mutex
	pending map[*pendingBody]bool
	all     int            // bytes received of all pending bodies
	of      map[string]int // of these, by sender
}

// unauthenticated is the sender of whoever has shown nothing.
const unauthenticated = "?"

func newBodyReader(limit int64) *bodyReader {
	return &bodyReader{limit: limit, pending: make(map[*pendingBody]bool), of: make(map[string]int)}
}

// Read reads a whole body. Nothing is read of one whose announced length is over
// the limit. Of what all bodies may take one sender has a part; known says that it
// has shown something that holds, and all others are one sender. The errors are
// *httpError. Reading a body to its end is also what lets net/http notice that the
// client went away.
func (b *bodyReader) Read(w http.ResponseWriter, r *http.Request, known bool, sender string) (body []byte, err error) {
	if !known {
		sender = unauthenticated
	}
	err = new(http.MaxBytesError)
	if r.ContentLength <= b.limit {
		p := &pendingBody{ResponseController: http.NewResponseController(w), common: b, from: http.MaxBytesReader(w, r.Body, b.limit), sender: sender, since: time.Now()}
		p.SetReadDeadline(p.since.Add(bodyTimeout))
		body, err = io.ReadAll(p)
		b.mu.Lock()
		b.remove(p)
		b.mu.Unlock()
		p.SetReadDeadline(time.Time{})
	}
	status, why := http.StatusBadRequest, "the body could not be read"
	switch {
	case err == nil:
		r.Body = http.NoBody // nothing is left of it
		return body, nil
	case errors.As(err, new(*http.MaxBytesError)):
		status, why = http.StatusRequestEntityTooLarge, "the body is larger than "+formatSize(b.limit)+" (-max-body)"
	case errors.Is(err, errNoRoom):
		status, why = http.StatusServiceUnavailable, errNoRoom.Error()
		w.Header().Set("Retry-After", "5")
	case errors.Is(err, os.ErrDeadlineExceeded):
		status, why = http.StatusRequestTimeout, "the body did not arrive in time"
	}
	w.Header().Set("Connection", "close") // the rest of the body is not read
	return nil, &httpError{Status: status, Msg: why, Err: err}
}

var errNoRoom = errors.New("too many requests are being received: try again")

// pendingBody is a body being read. The mu of its bodyReader guards what changes.
type pendingBody struct {
	*http.ResponseController // whose deadlines are not there in some tests

	common  *bodyReader
	from    io.Reader
	sender  string
	since   time.Time
	size    int  // bytes received
	dropped bool // to make room for others
}

// Read reads on, unless the body was dropped to make room for others.
func (p *pendingBody) Read(buf []byte) (int, error) {
	n, err := p.from.Read(buf)
	if err == io.EOF && p.size == 0 { // it was there as a whole, and is in nobody's way
		return n, err
	}
	if !p.common.received(p, n) {
		return n, errNoRoom
	}
	return n, err
}

// received counts n more bytes of a body, and drops bodies while there is no room
// for all. It reports whether this one may be read on.
func (b *bodyReader) received(p *pendingBody, n int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if p.dropped {
		return false
	}
	if (p.size+n)/bodyChunk > p.size/bodyChunk {
		p.SetReadDeadline(time.Now().Add(bodyTimeout))
	}
	b.pending[p] = true
	p.size += n
	b.all += n
	b.of[p.sender] += n
	for {
		own := b.of[p.sender] > max(maxBodiesOf, int(b.limit))
		if !own && b.all <= max(maxBodies, int(b.limit)) {
			return !p.dropped
		}
		slow := p
		for other := range b.pending {
			if (other.sender == p.sender || !own) && other.rate() < slow.rate() {
				slow = other
			}
		}
		b.remove(slow)
		slow.dropped = true
		slow.SetReadDeadline(time.Unix(1, 0)) // its read ends now
	}
}

// remove ends the counting of a body. The caller holds b.mu.
func (b *bodyReader) remove(p *pendingBody) {
	if !b.pending[p] {
		return
	}
	delete(b.pending, p)
	b.all -= p.size
	if b.of[p.sender] -= p.size; b.of[p.sender] == 0 {
		delete(b.of, p.sender)
	}
	p.size = 0
}

// rate is how fast a body comes, in bytes per nanosecond. Who has shown nothing and
// is over bodyChunk makes room for others, the slowest first; for any other sender
// there is no rate, so that one who asks for room that is not there is refused.
func (p *pendingBody) rate() float64 {
	if p.sender != unauthenticated || p.size <= bodyChunk {
		return math.Inf(1)
	}
	return float64(p.size) / float64(time.Since(p.since))
}

// writeBody writes b, as long as the peer takes some of it. Without deadlines a
// vanished peer takes what fits into the buffers, and the rest never ends.
func writeBody(w http.ResponseWriter, b []byte) error {
	control := http.NewResponseController(w)
	for part := range slices.Chunk(b, maxWrite) {
		_ = control.SetWriteDeadline(time.Now().Add(writeTimeout)) // not there in some tests
		if _, err := w.Write(part); err != nil {
			return err
		}
	}
	return nil
}

// formatSize is a number of bytes for people, in the units that flags take.
func formatSize(n int64) string {
	for i, unit := range []string{"GiB", "MiB", "KiB"} {
		if size := int64(1) << (30 - 10*i); n >= size && n%size == 0 {
			return fmt.Sprintf("%d %s", n/size, unit)
		}
	}
	return fmt.Sprintf("%d bytes", n)
}

// quota counts what principals use: bytes or things, as its user decides. It forgets a
// principal whose count is zero. The zero value is empty. Safe for concurrent use.
type quota struct {
	mu   sync.Mutex
	used map[string]int64 // by principal
}

// reserve counts n more for a principal, unless its total would exceed limit. A
// principal that uses nothing may reserve any n. The caller must call release once.
func (q *quota) reserve(principal string, n, limit int64) (release func(), ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	used := q.used[principal]
	if used > 0 && used+n > limit {
		return nil, false
	}
	if q.used == nil {
		q.used = make(map[string]int64)
	}
	q.used[principal] = used + n
	return func() { q.release(principal, n) }, true
}

// release counts n less for a principal.
func (q *quota) release(principal string, n int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.used[principal] -= n
	if q.used[principal] == 0 {
		delete(q.used, principal)
	}
}

// count returns what a principal uses.
func (q *quota) count(principal string) int64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.used[principal]
}
