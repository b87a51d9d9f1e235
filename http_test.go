// Tests of http.go: requests that a proxy passed on, and what all bodies together
// may take. Host, Origin and the limit of one body are
// held by mcp_test.go and webhook_test.go.

package main

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

func TestProxiedRequests(t *testing.T) {
	needLanguage(t, ".sh")
	long(t)
	dir := t.TempDir()
	write(t, dir+"/a.usher.sh", "# Takes it.\nhandleIt() { printf done; }\n")
	for _, row := range []struct {
		flags        []string
		secret       bool
		mcp, webhook int // the status of a request that came through a proxy
		own          int // of a delivery that did not
	}{
		{nil, false, 400, 401, 200},
		{[]string{"-open"}, false, 200, 401, 200},
		{[]string{"-require-claim"}, false, 0, 401, 401},
		{[]string{"-open-webhooks"}, false, 400, 200, 200},
		{[]string{"-require-claim", "-open-webhooks"}, false, 0, 200, 200},
		{[]string{"-addr", "0.0.0.0:0", "-open"}, false, 200, 401, 401},
		{nil, true, 400, 200, 200},
	} {
		t.Run(fmt.Sprint(row.flags, row.secret), func(t *testing.T) {
			t.Parallel()
			env := map[string]string{}
			if row.secret {
				env = guarded
			}
			d := daemonOptions{env: env}.startReady(t, dir, row.flags...)
			wantStatus(t, "a delivery", d.deliver(t, "a/handleIt", `{}`, shown), row.own)
			for _, header := range []string{
				"X-Forwarded-For: 198.51.100.1",
				"X-Forwarded-Proto: https",
				"Forwarded: for=198.51.100.1",
				"Via: 1.1 proxy.example",
				"X-Real-Ip: 198.51.100.1",
				"Cf-Connecting-Ip: 198.51.100.1",
			} {
				wantStatus(t, "with "+header, d.deliver(t, "a/handleIt", `{}`, shown, header), row.webhook)
				if a := d.deliver(t, "nothing/here", `{}`, shown, header); row.webhook == 401 {
					checkError(t, "a path of none", a, 401)
				}
				c := newClient(t, d.URL)
				req := c.request(http.MethodPost, initialize)
				setHeaders(req, header)
				a := c.do(req)
				if row.mcp != 0 && a.Status != row.mcp || strings.Contains(a.Body, "proxy") != (row.mcp == 400) {
					t.Errorf("MCP with %s: %d, want %d: %s", header, a.Status, row.mcp, a.Body)
				}
			}
		})
	}
}

// TestHosts checks which values of Host are admitted: the page for people shows them in commands.
func TestHosts(t *testing.T) {
	policy := originPolicy{hosts: []string{"usher.example", "::"}}
	for host, want := range map[string]bool{
		"localhost":                true,
		"LOCALHOST.:3000":          true,
		"localhost:":               true,
		"my-app.localhost":         true,
		"127.0.0.1:3000":           true,
		"192.168.1.20":             true,
		"[::1]:3000":               true,
		"[fe80::1]":                true,
		"Usher.Example:8443":       true,
		"[::]:3000":                true, // allowed by a flag
		"":                         false,
		"evil.example":             false,
		"0.0.0.0:3000":             false,
		"0.0.0.0.":                 false,
		"[::ffff:0.0.0.0]":         false,
		"[fe80::1%25eth0]":         false,
		"[fe80::1%25$(id)]:3000":   false,
		"[::1%25$(id)]":            false,
		"[::1%$(id)]":              false,
		"[::1]$(id)":               false,
		"$(id).localhost":          false,
		"$(id)@localhost":          false,
		"localhost:$(id)":          false,
		"127.0.0.1:80$(id)":        false,
		"localhost/$(id)":          false,
		"usher.example?$(id)":      false,
		"localhost:3000#$(id)":     false,
		"localhost%2e$(id)":        false,
		"[::1]:3000,usher.example": false,
	} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Host = host
		check(t, fmt.Sprintf("Host %q is admitted", host), policy.admit(r) == nil, want)
	}
}

// bodyServer answers with how much it read, for the principal in a header.
func bodyServer(t *testing.T, limit int64) (*httptest.Server, *memory) {
	m := newMemory(limit, "unknown")
	write := func(w http.ResponseWriter, e *fault) { http.Error(w, e.Msg, e.Status) }
	s := httptest.NewServer(handle(slog.New(slog.DiscardHandler), write,
		func(w http.ResponseWriter, r *http.Request) error {
			known := r.Header.Get("Known")
			body, held, err := account{m, cmp.Or(known, "unknown")}.receive(w, r)
			if err == nil {
				held.end()
				fmt.Fprint(w, len(body))
			}
			return err
		}))
	t.Cleanup(s.Close)
	return s, m
}

// slowBody announces a body, sends a part of it, and waits for the server to
// have read that.
type slowBody struct {
	net.Conn
	answer *bufio.Reader
}

func sendBody(t *testing.T, s *httptest.Server, header string, announced, sent int) *slowBody {
	t.Helper()
	conn, err := net.Dial("tcp", s.Listener.Addr().String())
	must(t, err)
	t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(patience))
	fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: localhost\r\n%sContent-Length: %d\r\n\r\n", header, announced)
	io.CopyN(conn, zeros{}, int64(sent))
	return &slowBody{conn, bufio.NewReader(conn)}
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { return len(b), nil }

func (b *slowBody) status(t *testing.T) int {
	t.Helper()
	res, err := http.ReadResponse(b.answer, nil)
	if err != nil {
		t.Error(err)
		return 0
	}
	res.Body.Close()
	return res.StatusCode
}

// TestBodiesMakeRoom fills what unauthenticated senders may take with bodies that have not arrived completely: the
// oldest make room for another one. It then fills the whole memory: such bodies make no room for other principals.
func TestBodiesMakeRoom(t *testing.T) {
	long(t)
	const size = 4 << 20
	s, m := bodyServer(t, size)
	var bodies []*slowBody // the oldest first
	for n := range int64(maxHeldUnknown/size - 1) {
		bodies = append(bodies, sendBody(t, s, "", size, size-1))
		await(t, "a body to arrive", func() bool { return m.unknown.count("unknown") >= (n+1)*(size-1) })
	}
	rest := maxHeldUnknown - m.unknown.count("unknown")
	check(t, "no room is left", account{m, "unknown"}.reserve(rest), true)
	check(t, "a new body", sendBody(t, s, "", size-1, size-1).status(t), 200)
	check(t, "the oldest", bodies[0].status(t), 503)
	m.unknown.release("unknown", rest)
	for n := range maxHeld/maxHeldOf - 1 {
		check(t, "a principal has its share", account{m, fmt.Sprint(n)}.reserve(maxHeldOf), true)
		check(t, "a principal has more", account{m, fmt.Sprint(n)}.reserve(1), false)
	}
	last := account{m, "last"}
	check(t, "the last principal takes the part of unauthenticated senders", last.reserve(maxHeldOf), false)
	check(t, "it has the rest", last.reserve(maxHeldOf-maxHeldUnknown), true)
	check(t, "a small body of another", sendBody(t, s, "Known: another\r\n", 1, 1).status(t), 503)
	last.release(maxHeldOf - maxHeldUnknown)
	for _, b := range bodies[1:] {
		io.CopyN(b, zeros{}, 1)
		check(t, "a body that arrives in the end", b.status(t), 200)
	}
	check(t, "bytes of unauthenticated senders in the end", m.unknown.count("unknown"), 0)
}

// A length over the limit is refused before anything is read, and nobody is told
// to go on with it.
func TestBodyAnnouncedTooLarge(t *testing.T) {
	t.Parallel()
	s, _ := bodyServer(t, 1000)
	b := sendBody(t, s, "Expect: 100-continue\r\n", 1001, 0)
	check(t, "status", b.status(t), 413)
}

// The owner reads the innermost detail of a fault, the client only its text.
func TestExplain(t *testing.T) {
	t.Parallel()
	inner := httpErrorf(500, "inner").because(errors.New("the detail"))
	outer := httpErrorf(401, "outer").because(fmt.Errorf("wrapped: %w", inner))
	check(t, "to clients", outer.Error(), "outer")
	check(t, "to the owner", explain(fmt.Errorf("wrapped: %w", outer)), "the detail")
	check(t, "without a detail", explain(httpErrorf(500, "all")), "all")
}
