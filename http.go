// HTTP: what both endpoints share. It decides who may talk to the daemon at all (Host,
// Origin, proxies), and how: errors with a status, a limit for connections. Nothing here depends on
// MCP methods or webhooks.

package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"
)

// explain returns the text of an error for the owner: its innermost detail.
func explain(err error) string {
	e, ok := errors.AsType[*fault](err)
	if !ok || e.Err == nil {
		return err.Error()
	}
	return explain(e.Err)
}

// httpErrorf returns the refusal of an HTTP request: see rpcErrorf.
func httpErrorf(status int, format string, args ...any) *fault {
	e := rpcErrorf(codeRefused, format, args...)
	e.Status = status
	return e
}

// because adds the detail to a new error, and returns the error.
func (e *fault) because(cause error) *fault {
	e.Err = cause
	return e
}

// errInternal is sent in place of an error whose text is only for the log.
var errInternal = httpErrorf(http.StatusInternalServerError, "internal error: see usher's log")

// senderAttrs returns log attributes that say where a request came from: the address of the
// connection and, as sent and unverified, what X-Forwarded-For says.
func senderAttrs(r *http.Request) slog.Attr {
	host, _, _ := net.SplitHostPort(r.RemoteAddr)
	remote := slog.String("remote", host)
	forwarded := strings.Join(r.Header.Values("X-Forwarded-For"), ", ")
	if forwarded == "" {
		return remote
	}
	return slog.GroupAttrs("", remote, slog.String("forwarded_for", logText(forwarded)))
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
// anywhere, even if the daemon listens on loopback only. nginx before 1.30 adds no header, but
// sends HTTP/1.0, which clients hardly do.
func isProxied(r *http.Request) bool {
	proxied := !r.ProtoAtLeast(1, 1)
	for name := range r.Header {
		proxied = proxied || strings.HasPrefix(name, "X-Forwarded-") || slices.Contains(proxyHeaders, name)
	}
	return proxied
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
			"host %q is not allowed: start usher serve with -allow-host %[1]s", host)
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
				"origin %q is not allowed: start usher serve with -allow-origin %[1]s", origin)
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
	host = strings.ToLower(host)
	return host == "localhost" || strings.HasSuffix(host, ".localhost") && consistsOf(host, plainHost)
}

// plainHost contains the characters of host names, in lower case.
const plainHost = "abcdefghijklmnopqrstuvwxyz0123456789-_."

// connections closes connections when there are too many. Safe for concurrent use.
type connections struct {
	maxUnadmitted int // the limit for connections without an admitted request
	maxOpen       int // the limit for all

	mu sync.Mutex
	// open maps a connection to the time since when it has no admitted request (see idleAge), or to the
	// zero time if it has one.
	open map[net.Conn]time.Time
}

// idleAge is added to the age of an idle connection, one between two requests. This makes idle
// connections the oldest, because no request waits for its admission as long as that.
const idleAge = time.Hour

// limitConnections limits the connections of a server. files is the number of files that
// the process may open; some remain for the claims file and for new processes.
func limitConnections(web *http.Server, files int) {
	c := &connections{
		maxUnadmitted: max(200, min(maxConns, files/2)),
		maxOpen:       max(200, files/4*3),
		open:          make(map[net.Conn]time.Time),
	}
	web.ConnState = c.set
	web.ConnContext = func(ctx context.Context, conn net.Conn) context.Context {
		return context.WithValue(ctx, connsKey{}, func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.open[conn] = time.Time{} // until the connection's next change of state
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
	since := time.Now()
	if state == http.StateIdle {
		since = since.Add(-idleAge)
	}
	c.open[conn] = since
	if state != http.StateNew {
		return
	}
	unadmitted := 0
	victim := conn // if there is no other
	for other, since := range c.open {
		if since.IsZero() {
			continue
		}
		unadmitted++
		if victim == conn || since.Before(c.open[victim]) {
			victim = other
		}
	}
	if unadmitted > c.maxUnadmitted || len(c.open) > c.maxOpen {
		delete(c.open, victim) // or else those that are being closed would count
		victim.Close()
	}
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

// logText returns a text of a client or a module, cut to maxLogged bytes for the log.
func logText(s string) string { return clipText(s, maxLogged) }

// consistsOf reports whether s contains only characters of alphabet.
func consistsOf(s, alphabet string) bool { return strings.Trim(s, alphabet) == "" }
