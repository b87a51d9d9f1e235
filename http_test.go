// Tests of http.go: proxies, Host and Origin, and connections.

package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"
)

// A request that came through a proxy counts as coming from another machine.
func TestProxyIsForeign(t *testing.T) {
	needLanguage(t, ".sh")
	long(t)
	dir := t.TempDir()
	write(t, dir+"/a.usher.sh", "# Takes it.\nhandleIt() { printf done; }\n")
	for _, row := range []struct {
		flags        string
		secret       bool
		mcp, webhook int // the status of a request that came through a proxy
		own          int // of a delivery that did not
	}{
		{"", false, 400, 401, 200},
		{"-open", false, 200, 401, 200},
		{"-require-claim", false, 0, 401, 401},
		{"-open-webhooks", false, 400, 200, 200},
		{"-require-claim -open-webhooks", false, 0, 200, 200},
		{"-addr 0.0.0.0:0 -open", false, 200, 401, 401},
		{"", true, 400, 200, 200},
	} {
		t.Run(fmt.Sprint(row.flags, " ", row.secret), func(t *testing.T) {
			t.Parallel()
			env := map[string]string{}
			if row.secret {
				env = guarded
			}
			d := daemonOptions{env: env}.startReady(t, dir, strings.Fields(row.flags)...)
			wantStatus(t, "a delivery", d.deliver(t, "a/handleIt", `{}`, shown), row.own)
			for _, header := range []string{
				"X-Forwarded-For: 198.51.100.1",
				"X-Forwarded-Proto: https",
				"Forwarded: for=198.51.100.1",
				"Via: 1.1 proxy.example",
				"X-Real-Ip: 198.51.100.1",
				"Cf-Connecting-Ip: 198.51.100.1",
			} {
				wantStatus(t, "with "+header,
					d.deliver(t, "a/handleIt", `{}`, shown, header), row.webhook)
				if a := d.deliver(t, "nothing/here", `{}`, shown, header); row.webhook == 401 {
					checkError(t, "a path of none", a, 401)
				}
				c := newClient(t, d.URL)
				req := c.Request("POST", initialize)
				setHeaders(req, header)
				a := c.Do(req)
				if row.mcp != 0 && a.Status != row.mcp ||
					strings.Contains(a.Body, "proxy") != (row.mcp == 400) {
					t.Errorf("MCP with %s: %d, want %d: %s", header, a.Status, row.mcp, a.Body)
				}
			}
			// nginx before 1.30 sends HTTP/1.0 by default, and no header.
			post := func(version, path, body string) answer {
				return d.raw(t, fmt.Sprintf("POST /%s HTTP/%s\r\nHost: localhost\r\n%s\r\n"+
					"Accept: application/json, text/event-stream\r\nContent-Type: application/json\r\n"+
					"Connection: close\r\nContent-Length: "+
					"%d\r\n\r\n%s", path, version, shown, len(body), body))
			}
			wantStatus(
				t,
				"a delivery over HTTP/1.0",
				post("1.0", "webhook/a/handleIt", `{}`),
				row.webhook,
			)
			wantStatus(
				t,
				"a delivery over HTTP/1.1",
				post("1.1", "webhook/a/handleIt", `{}`),
				row.own,
			)
			if row.mcp != 0 {
				wantStatus(t, "MCP over HTTP/1.0", post("1.0", "", initialize), row.mcp)
				wantStatus(t, "MCP over HTTP/1.1", post("1.1", "", initialize), 200)
			}
			health := d.raw(t, "GET /healthz HTTP/1.0\r\nHost: x\r\n\r\n")
			wantStatus(t, "a probe over HTTP/1.0", health, 200)
		})
	}
}

// A Host is admitted if it is loopback, an address or allowed, and safe in a printed
// command.
func TestHostsAreChecked(t *testing.T) {
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
		"[::ffff:0.0.0.0]:3000":    false,
		"[fe80::1%25eth0]":         false,
		"[::1%25$(id)]":            false,
		"[::1]$(id)":               false,
		"$(id).localhost":          false,
		"$(id)@localhost":          false,
		"localhost:$(id)":          false,
		"localhost%2e$(id)":        false,
		"[::1]:3000,usher.example": false,
	} {
		r := httptest.NewRequest("GET", "/", nil)
		r.Host = host
		check(t, fmt.Sprintf("Host %q is admitted", host), policy.admit(r) == nil, want)
	}
}

// Connections that show nothing are bounded: idle ones make room, then the oldest. Others
// stay, and newcomers are served.
func TestConnectionsAreBounded(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ files, most int }{
		{3 * maxConns, maxConns},
		{500, 250},
		{1, 199}, // a stream is in the total
	} {
		t.Run(fmt.Sprint(tt.files, " files"), func(t *testing.T) {
			inBubbleWith(t, tt.files, func(t *testing.T, b *bubble) {
				stream := b.begin(b.open(protocols[0]).GetRequest())
				older := b.dial("", false)
				pass(time.Second)
				idle := b.dial(probe, true)
				for range tt.most - 2 {
					defer b.dial("", false).Close()
				}
				checkOpen(t, "an idle connection", idle, true)
				defer b.dial("", false).Close()
				checkOpen(t, "an idle connection beside too many", idle, false)
				checkOpen(t, "an older one", older, true)
				defer b.dial("", false).Close()
				checkOpen(t, "an older one beside too many", older, false)
				start := time.Now()
				check(t, "a newcomer's call",
					b.open(protocols[0]).Call("m_wait", "").Failure(), "")
				check(t, "how long it waited", time.Since(start), 0)
				status, _ := stream.got()
				check(t, "status of the stream", status, 200)
				check(t, "the stream has ended", stream.ended(), false)
				stream.hangUp()
			})
		})
	}
}

// Bodies that arrive slowly shut out nobody, whoever sends them.
func TestSlowBodiesShutOutNobody(t *testing.T) {
	t.Parallel()
	inBubbleWith(t, 500, func(t *testing.T, b *bubble) {
		slow := "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n" +
			"Content-Length: 9\r\n%s: %s\r\n\r\n{"
		for _, code := range []string{newCode(t, b.base, "/w"), ""} {
			for range 400 {
				defer b.dial(fmt.Sprintf(slow, claimHeader, code), false).Close()
			}
			check(t, "a newcomer's call", b.open(protocols[0]).Call("m_wait", "").Failure(), "")
		}
	})
}

// The connection of a client that does not read its answer ends.
func TestEveryAnswerHasADeadline(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		for name, request := range map[string]string{
			"a probe":                 probe,
			"a path with two slashes": "GET //mcp?claim=R3K9QZ HTTP/1.1\r\nHost: localhost\r\n\r\n",
			"a notification": fmt.Sprintf("POST / HTTP/1.1\r\nHost: localhost\r\nContent-Type: "+
				"application/json\r\n"+
				"%s: %s\r\nContent-Length: %d\r\n\r\n%s", sessionHeader,
				b.open(protocols[0]).Session,
				len(initialized), initialized),
			"a preflight": "OPTIONS / HTTP/1.1\r\nHost: localhost\r\nOrigin: http://localhost\r\n" +
				"Access-Control-Request-Method: POST\r\n\r\n",
		} {
			conn := b.dial(request, false)
			pass(writeTimeout + time.Second)
			checkOpen(t, name+": a connection whose answer is not read", conn, false)
			checkOpen(t, name+": a connection whose answer was read",
				b.dial(request, true), true)
		}
	})
}

// An admitted request names this machine, an address, or what was allowed.
func FuzzAdmit(f *testing.F) {
	policy := &originPolicy{
		hosts:   []string{"usher.example.com"},
		origins: []string{"https://example.com"},
	}
	port := regexp.MustCompile(`:[0-9]*$`)
	local := func(host string) bool {
		host = strings.ToLower(strings.Trim(port.ReplaceAllString(host, ""), "[]"))
		addr, err := netip.ParseAddr(host)
		return host == "localhost" || strings.HasSuffix(host, ".localhost") ||
			err == nil && addr.Unmap().IsLoopback()
	}
	f.Fuzz(func(t *testing.T, host, origin string, sends bool) {
		r := &http.Request{Host: host, Header: http.Header{}}
		if sends {
			r.Header.Set("Origin", origin)
		}
		if policy.admit(r) != nil {
			return
		}
		name := strings.ToLower(
			strings.TrimSuffix(strings.Trim(port.ReplaceAllString(host, ""), "[]"), "."),
		)
		_, bare := netip.ParseAddr(host) // an IPv6 address without brackets has no port
		if _, err := netip.ParseAddr(name); err != nil && bare != nil &&
			name != "usher.example.com" && !local(name) {
			t.Fatalf("the host %q is let in", host)
		}
		if !sends || strings.EqualFold(origin, "https://example.com") {
			return
		}
		_, place, _ := strings.Cut(origin, "//")
		if end := strings.IndexAny(place, `/\?#`); end >= 0 {
			place = place[:end]
		}
		if i := strings.LastIndexByte(place, '@'); i >= 0 {
			place = place[i+1:]
		}
		if place, err := url.PathUnescape(place); err != nil || !local(place) {
			t.Fatalf("the origin %q is let in", origin)
		}
	})
}

func (zeros) Read(b []byte) (int, error) { return len(b), nil }
