// HTTP: what both endpoints share. It decides who may talk to the daemon at all (Host,
// Origin, proxies), reads and writes bodies within limits, and adapts handlers that return
// errors. It also contains the table of all limits. Nothing here depends on MCP methods or
// webhooks.

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

// The limits of usher: every size and count that bounds something, by the file that
// enforces it. Each line says the unit and what the limit applies to. A principal is one
// claim, or everyone without a claim. A request beyond a limit is refused, or evicts the
// oldest entry of its principal. Other principals are not affected. Time limits are
// declared where they are used.
const (
	// http.go: bodies and headers of requests.
	maxHeader      = 64 << 10 // bytes of one request's headers
	defaultMaxBody = 4 << 20  // bytes of one request's body (-max-body)
	maxBodies      = 64 << 20 // bytes received of all bodies being read; at least -max-body
	maxBodiesOf    = 16 << 20 // bytes of maxBodies per principal (webhook senders are two: see bodyReader)
	bodyChunk      = 64 << 10 // bytes of a body that must arrive within bodyTimeout
	maxWrite       = 64 << 10 // bytes of an answer that the client must accept within writeTimeout
	maxLogged      = 200      // bytes of one value in the log that a client chose

	// outbox.go: messages to clients.
	maxOutbox        = 4 << 20  // bytes queued in one outbox, behind the message being written
	maxDuplexOutbox  = 32 << 20 // bytes queued for one client on stdio or HTTP+SSE
	maxReplayBytes   = 16 << 20 // bytes in the replay buffer, for all streams
	maxReplayBytesOf = 4 << 20  // bytes in the replay buffer per principal
	maxReplayMessage = 1 << 20  // bytes of one message in the replay buffer
	minKept          = 4 << 10  // bytes that a shorter message counts for in the replay buffer

	// sealed.go, scope.go: the log of sessions; invalid codes, with -require-claim.
	maxRecordsOf    = 20_000   // sessions in the log (ended, or moved to another claim) per principal
	sessionLogSlack = 64 << 10 // bytes that the log may grow by, beyond doubling
	guessBudget     = 60       // different invalid codes per minute looked up at once, for the whole daemon
	guessRate       = 10       // lookups per second after that, for the whole daemon

	// gomodule.go, runtimes.go: files of the workspace.
	maxSource     = 1 << 20 // bytes of one source file or .mcp.json
	maxExecutable = 1 << 30 // bytes of one executable module

	// shell.go: shell modules.
	maxShellOutput = 32 << 20 // bytes of one call's result
	shellTail      = 5        // lines of stderr in the error of one failed call

	// worker.go: one process of a module.
	maxWorkerLine = 64 << 20 // bytes of one message from a process
	maxInput      = 16 << 20 // bytes queued for one process, behind the message being written
	maxAsks       = 64       // unanswered asks of one process to clients of one principal
	maxLoggedLine = 4 << 10  // bytes logged of one stray line
	tailLines     = 8        // lines of stderr in the error of one failed start
	maxPages      = 1000     // pages of one list of a module

	// pool.go: the processes of one module.
	maxProcs     = 16 // processes of one module
	maxProcsOf   = 4  // processes of one module per claim
	maxRunning   = 64 // running calls of one module, cancelled ones included; more calls wait
	maxRunningOf = 32 // running calls of one module per principal, and for all webhooks
	maxRounds    = 32 // times that one call may ask for input

	// modules.go, view.go: the registry and its tool names.
	maxIntrospections = 8                        // modules being introspected at once
	maxToolName       = 64 - len("mcp__usher__") // characters of one tool name without a warning

	// mcp.go: requests and lists.
	maxURI          = 8 << 10 // bytes of one resource URI from a client
	maxInstructions = 50      // modules named in the instructions

	// ask.go: requests of modules to clients.
	maxSuspended = 64 // suspended calls per principal

	// session.go, transport.go: sessions and their streams.
	maxSessionsOf    = 1000     // sessions in memory per principal; the oldest idle ones are forgotten
	maxInFlight      = 256      // requests in flight per principal
	maxInFlightBytes = 32 << 20 // bytes of requests in flight per principal
	maxStreams       = 16       // notification streams per session
	maxStreamsOf     = 256      // notification streams per principal
	maxWanted        = 256      // resources that one session is subscribed to
	maxWantedBytes   = 32 << 10 // bytes of the URIs of these resources per session

	// webhook.go: deliveries.
	defaultWebhookLimit = 256     // deliveries in flight (-webhook-limit)
	maxSignatures       = 16      // signatures compared per delivery
	maxSignatureHeaders = 4 << 10 // bytes of the signature headers of one delivery
)

const (
	bodyTimeout  = 30 * time.Second // for the next bodyChunk of a body to arrive
	writeTimeout = 30 * time.Second // for the client to accept the next maxWrite of an answer
)

// httpError is an error with an HTTP status. The client sees Msg; Err, if not nil, is only
// logged.
type httpError struct {
	Status int
	Msg    string
	Err    error
	RPC    *rpcError       // the JSON-RPC error to answer with; nil: Msg with codeRefused
	ID     json.RawMessage // of the failed JSON-RPC request, if known
	Header http.Header
}

func (e *httpError) Error() string { return e.Msg }
func (e *httpError) Unwrap() error { return e.Err }

// httpErrorf returns an error with a formatted Msg.
func httpErrorf(status int, format string, args ...any) *httpError {
	return &httpError{Status: status, Msg: fmt.Sprintf(format, args...)}
}

// retryAfter adds a Retry-After header of the given number of seconds to a new error, and
// returns the error.
func (e *httpError) retryAfter(seconds int) *httpError {
	e.Header = http.Header{"Retry-After": {strconv.Itoa(seconds)}}
	return e
}

// because adds the cause to a new error, for the log only, and returns the error.
func (e *httpError) because(cause error) *httpError {
	e.Err = cause
	return e
}

// why returns the innermost reason of the error, for the log.
func (e *httpError) why() string {
	for inner, ok := e, true; ok; inner, ok = errors.AsType[*httpError](e.Err) {
		e = inner
	}
	return clipText(cmp.Or(e.Err, error(e)).Error(), maxLogged)
}

// loggedError marks an error that the handler has logged.
type loggedError struct{ error }

func (e loggedError) Unwrap() error { return e.error }

// errorWriter writes an error in an endpoint's format.
type errorWriter func(http.ResponseWriter, *httpError)

// handle adapts a handler that returns its error to one that writes the error. An error
// without a status is logged whole and shown as an internal error.
func handle(
	log *slog.Logger, write errorWriter, serve func(http.ResponseWriter, *http.Request) error,
) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var err error
		defer func() {
			if err != nil {
				refuse(log, write, w, r, err)
			}
		}()
		defer catch(log, &err)
		err = serve(w, r)
	}
}

// catch recovers a panic, logs it and stores an internal error in *err. Use it with defer.
func catch(log *slog.Logger, err *error) {
	if p := recover(); p != nil {
		log.Error("panic", "panic", p, "stack", string(debug.Stack()))
		*err = loggedError{httpErrorf(http.StatusInternalServerError, "internal error: see usher's log")}
	}
}

// refuse logs and writes the error of a handler.
func refuse(log *slog.Logger, write errorWriter, w http.ResponseWriter, r *http.Request, err error) {
	id := w.Header().Get(requestIDHeader)
	log = log.With("path", clipText(r.URL.Path, maxLogged), "request", id)
	e, known := errors.AsType[*httpError](err)
	if !known {
		log.Error("internal error", "err", err)
		e = httpErrorf(http.StatusInternalServerError, "internal error, request %s: see usher's log", id)
	} else if _, logged := errors.AsType[loggedError](err); !logged {
		log.Info("refused", "status", e.Status, "why", e.why())
	}
	maps.Copy(w.Header(), e.Header)
	write(w, e)
}

// requestIDHeader carries a request's id, which the log contains too.
const requestIDHeader = "X-Request-Id"

// newRequestID returns a random id, which need not be secret.
func newRequestID() string { return strconv.FormatUint(rand.Uint64(), 36) }

// audience is the set of clients that are served without a secret or a claim code.
type audience int

const (
	nobody      audience = iota
	thisMachine          // requests without a proxy's headers
	anyone
)

// includes reports whether a request is from the audience. A proxied request may come from
// anywhere, even if the daemon listens on loopback only.
func (a audience) includes(r *http.Request) bool {
	return a == anyone || a == thisMachine && !isProxied(r.Header)
}

// proxyHeaders are headers that only proxies add, in addition to X-Forwarded-*.
var proxyHeaders = []string{"Forwarded", "Via", "X-Real-Ip", "Cf-Connecting-Ip"}

// isProxied reports whether a header shows that a proxy forwarded the request.
func isProxied(h http.Header) bool {
	for name := range h {
		if strings.HasPrefix(name, "X-Forwarded-") || slices.Contains(proxyHeaders, name) {
			return true
		}
	}
	return false
}

// originPolicy decides which requests may reach the daemon. The zero value admits only
// loopback names and IP addresses. It must not be changed while it is in use.
type originPolicy struct {
	hosts   []string // lower case, without port
	origins []string // lower case, "scheme://host[:port]"
	mcp     audience // of the MCP endpoint, before claims are checked
}

// mcpFlags are the flags that admit MCP requests from other machines.
const mcpFlags = "-require-claim (MCP clients need a code from usher claim), " +
	"or -open (every MCP client gets every module)"

// admitMCP refuses a proxied MCP request, unless usher was started to be reachable from
// other machines.
func (p *originPolicy) admitMCP(r *http.Request) error {
	if p.mcp.includes(r) {
		return nil
	}
	return httpErrorf(http.StatusBadRequest,
		"this request came through a proxy, from elsewhere: start usher serve with %s", mcpFlags)
}

// admit refuses requests that a web page may have made (MCP, basic/transports, "Security
// Warning"). The error names the flag that allows the request.
func (p *originPolicy) admit(r *http.Request) error {
	// DNS rebinding shows as a foreign Host. No page can be rebound to an IP address.
	host := strings.ToLower(strings.TrimSuffix((&url.URL{Host: r.Host}).Hostname(), "."))
	_, notAddr := netip.ParseAddr(host)
	if notAddr != nil && !isLoopback(host) && !slices.Contains(p.hosts, host) {
		return httpErrorf(http.StatusForbidden,
			"host %q is not allowed: start usher serve with -allow-host %[1]s", clipText(host, 100))
	}
	origins := r.Header.Values("Origin")
	// A page of another site sends no Origin for a frame, with which it could guess codes. A
	// link that a person follows is allowed.
	crossSite := r.Header.Get("Sec-Fetch-Site") == "cross-site"
	if len(origins) == 0 && crossSite && r.Header.Get("Sec-Fetch-Dest") != "document" {
		return httpErrorf(http.StatusForbidden, "a web page of another, unnamed site made this request")
	}
	for _, origin := range origins {
		if err := p.admitOrigin(origin); err != nil {
			return err
		}
	}
	return nil
}

// admitOrigin refuses the origin of a page that is neither allowed nor from this machine.
func (p *originPolicy) admitOrigin(origin string) error {
	if origin == "null" { // any local file or sandboxed page can send it
		return httpErrorf(http.StatusForbidden, `origin "null" is not allowed: serve the page over HTTP`)
	}
	u, err := url.Parse(origin)
	if err == nil && isLoopback(u.Hostname()) || slices.Contains(p.origins, strings.ToLower(origin)) {
		return nil
	}
	return httpErrorf(http.StatusForbidden,
		"origin %q is not allowed: start usher serve with -allow-origin %[1]s", clipText(origin, 100))
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
	if r.Method != http.MethodOptions || r.Header.Get("Access-Control-Request-Method") == "" {
		return false
	}
	h.Set("Access-Control-Allow-Methods", "GET, POST, DELETE")
	h.Set("Access-Control-Allow-Headers", r.Header.Get("Access-Control-Request-Headers"))
	h.Set("Access-Control-Max-Age", "600")
	w.WriteHeader(http.StatusNoContent)
	return true
}

// isLoopback reports whether a host name or address is this machine. It accepts only plain
// characters before ".localhost", because the page for people shows commands that contain
// the host, and a shell would run $(…).localhost.
func isLoopback(host string) bool {
	if addr, err := netip.ParseAddr(host); err == nil {
		return addr.Unmap().IsLoopback()
	}
	const plain = "abcdefghijklmnopqrstuvwxyz0123456789-_."
	host = strings.ToLower(host)
	return host == "localhost" || strings.HasSuffix(host, ".localhost") && consistsOf(host, plain)
}

// bodyReader reads request bodies, within a limit for each body, for each sender and for
// all bodies being read. Safe for concurrent use.
type bodyReader struct {
	limit int64 // bytes of one body

	mu       sync.Mutex
	pending  map[*pendingBody]bool
	all      int64 // bytes received of all pending bodies
	bySender quota // bytes received of pending bodies
}

// unauthenticated is the one sender that all unauthenticated requests count for.
const unauthenticated = "?"

// newBodyReader returns a reader of bodies of at most limit bytes.
func newBodyReader(limit int64) *bodyReader {
	return &bodyReader{limit: limit, pending: make(map[*pendingBody]bool)}
}

// Read reads a whole body. It reads nothing of a body with an announced length over the
// limit. Each sender may use a share of the total. If known is false, the request is
// unauthenticated and sender is ignored. Errors are *httpError. Reading a body to its end
// also lets net/http notice that the client disconnects.
func (b *bodyReader) Read(
	w http.ResponseWriter, r *http.Request, known bool, sender string,
) ([]byte, error) {
	if !known {
		sender = unauthenticated
	}
	body, err := b.read(w, r, sender)
	if err == nil {
		return body, nil
	}
	w.Header().Set("Connection", "close") // the rest of the body is not read
	_, tooLarge := errors.AsType[*http.MaxBytesError](err)
	switch {
	case err == errNoRoom:
		return nil, err
	case tooLarge:
		return nil, httpErrorf(http.StatusRequestEntityTooLarge,
			"the body is larger than %s (-max-body)", formatSize(b.limit))
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, httpErrorf(http.StatusRequestTimeout, "the body did not arrive in time")
	}
	return nil, httpErrorf(http.StatusBadRequest, "the body could not be read").because(err)
}

// read reads a body that counts for sender.
func (b *bodyReader) read(w http.ResponseWriter, r *http.Request, sender string) ([]byte, error) {
	if r.ContentLength > b.limit {
		return nil, &http.MaxBytesError{Limit: b.limit}
	}
	p := &pendingBody{
		control: http.NewResponseController(w),
		reader:  b,
		from:    http.MaxBytesReader(w, r.Body, b.limit),
		sender:  sender,
		since:   time.Now(),
	}
	p.control.SetReadDeadline(p.since.Add(bodyTimeout))
	body, err := io.ReadAll(p)
	b.mu.Lock()
	b.removeLocked(p)
	b.mu.Unlock()
	p.control.SetReadDeadline(time.Time{})
	return body, err
}

// errNoRoom refuses a body that makes room for others, or finds none.
var errNoRoom error = httpErrorf(http.StatusServiceUnavailable,
	"too many requests are being received: try again").retryAfter(5)

// received counts n more bytes of a body, and drops the slowest bodies until all fit. It
// reports whether reading this body may continue.
func (b *bodyReader) received(p *pendingBody, n int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if p.dropped {
		return false
	}
	if (p.size+n)/bodyChunk > p.size/bodyChunk {
		p.control.SetReadDeadline(time.Now().Add(bodyTimeout))
	}
	b.pending[p] = true
	for {
		release, ok := b.bySender.reserve(p.sender, n, max(maxBodiesOf, b.limit))
		if ok && b.all+n <= max(maxBodies, b.limit) {
			p.size += n
			b.all += n
			return true
		}
		if ok {
			release()
		}
		slow := p
		for other := range b.pending { // if only the sender's share is spent, ok is false
			if (ok || other.sender == p.sender) && other.rate() < slow.rate() {
				slow = other
			}
		}
		b.removeLocked(slow)
		slow.dropped = true
		slow.control.SetReadDeadline(time.Unix(1, 0)) // its read ends now
		if slow == p {
			return false
		}
	}
}

// removeLocked stops counting a body.
func (b *bodyReader) removeLocked(p *pendingBody) {
	if !b.pending[p] {
		return
	}
	delete(b.pending, p)
	b.all -= p.size
	b.bySender.release(p.sender, p.size)
	p.size = 0
}

// pendingBody is a body being read. The reader's mu guards size and dropped.
type pendingBody struct {
	control *http.ResponseController // some tests don't support deadlines
	reader  *bodyReader
	from    io.Reader
	sender  string
	since   time.Time
	size    int64 // bytes received
	dropped bool  // to make room for other bodies
}

// Read reads more of the body, unless the body was dropped.
func (p *pendingBody) Read(buf []byte) (int, error) {
	n, err := p.from.Read(buf)
	if err == io.EOF && p.size == 0 { // the whole body arrived with the first read: no need to count it
		return n, err
	}
	if !p.reader.received(p, int64(n)) {
		return n, errNoRoom
	}
	return n, err
}

// rate returns how fast a body arrives, in bytes per nanosecond. Only unauthenticated
// bodies over bodyChunk may be dropped to make room, slowest first. All others have an
// infinite rate, so their own request fails instead.
func (p *pendingBody) rate() float64 {
	if p.sender != unauthenticated || p.size <= bodyChunk {
		return math.Inf(1)
	}
	return float64(p.size) / float64(time.Since(p.since))
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

// writeBody writes b in parts, each with a deadline. Without deadlines, a write to a client
// that vanished would never end once the buffers are full.
func writeBody(w http.ResponseWriter, b []byte) error {
	control := http.NewResponseController(w)
	for part := range slices.Chunk(b, maxWrite) {
		_ = control.SetWriteDeadline(time.Now().Add(writeTimeout)) // some tests don't support it
		if _, err := w.Write(part); err != nil {
			return err
		}
	}
	return nil
}

// hashOf returns a hash of the parts, in 32 hexadecimal digits. It quotes the parts, so
// that different lists of parts have different hashes.
func hashOf(parts ...string) string {
	var text []byte
	for _, part := range parts {
		text = strconv.AppendQuote(text, part)
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:16])
}

// errText returns an error's text without the path, which the caller names anyway.
func errText(err error) string {
	if p, ok := errors.AsType[*fs.PathError](err); ok {
		return p.Err.Error()
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

// formatSize formats a number of bytes for people, in the units that flags accept.
func formatSize(n int64) string {
	for i, unit := range []string{"GiB", "MiB", "KiB"} {
		if size := int64(1) << (30 - 10*i); n >= size && n%size == 0 {
			return fmt.Sprintf("%d %s", n/size, unit)
		}
	}
	return fmt.Sprintf("%d bytes", n)
}

// consistsOf reports whether s contains only characters of alphabet.
func consistsOf(s, alphabet string) bool { return strings.Trim(s, alphabet) == "" }
