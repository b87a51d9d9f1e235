// Tests of http.go: requests that a proxy passed on, and what all bodies together
// may take. Host, Origin and the limit of one body are
// held by mcp_test.go and webhook_test.go.

package main

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"
)

func TestProxiedRequests(t *testing.T) {
	long(t)
	t.Parallel()
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
			d := daemonOptions{env: env}.start(t, dir, row.flags...)
			d.awaitReady(t)
			if a := d.deliver(t, "a/handleIt", `{}`, shown); a.Status != row.own {
				t.Errorf("a delivery: %d, want %d: %s", a.Status, row.own, a.Body)
			}
			for _, header := range []string{
				"X-Forwarded-For: 198.51.100.1",
				"X-Forwarded-Proto: https",
				"Forwarded: for=198.51.100.1",
				"Via: 1.1 proxy.example",
				"X-Real-Ip: 198.51.100.1",
				"Cf-Connecting-Ip: 198.51.100.1",
			} {
				if a := d.deliver(t, "a/handleIt", `{}`, shown, header); a.Status != row.webhook {
					t.Errorf("a delivery with %s: %d, want %d: %s", header, a.Status, row.webhook, a.Body)
				}
				if a := d.deliver(t, "nothing/here", `{}`, shown, header); row.webhook == 401 {
					checkError(t, "a path of none", a, 401)
				}
				a := post(t, d.URL, initialize, header)
				if row.mcp != 0 && a.Status != row.mcp || strings.Contains(a.Body, "proxy") != (row.mcp == 400) {
					t.Errorf("MCP with %s: %d, want %d: %s", header, a.Status, row.mcp, a.Body)
				}
			}
		})
	}
}

// post sends an MCP message with one more header.
func post(t *testing.T, url, message, header string) answer {
	t.Helper()
	req, _ := http.NewRequest(http.MethodPost, url, strings.NewReader(message))
	req.Header.Set("Content-Type", "application/json")
	name, value, _ := strings.Cut(header, ": ")
	req.Header.Set(name, value)
	res, err := http.DefaultClient.Do(req)
	must(t, err)
	defer res.Body.Close()
	text, _ := io.ReadAll(res.Body)
	return answer{Status: res.StatusCode, Body: string(text)}
}

// bodyServer answers with how much it read, and knows who says so.
func bodyServer(t *testing.T, limit int64) (*httptest.Server, *bodyReader) {
	bodies := newBodyReader(limit)
	write := func(w http.ResponseWriter, e *httpError) { http.Error(w, e.Msg, e.Status) }
	s := httptest.NewServer(handle(slog.New(slog.DiscardHandler), write,
		func(w http.ResponseWriter, r *http.Request) error {
			body, err := bodies.Read(w, r, r.Header.Get("Known") != "", r.Header.Get("Known"))
			if err == nil {
				fmt.Fprint(w, len(body))
			}
			return err
		}))
	t.Cleanup(s.Close)
	return s, bodies
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

func TestBodiesHaveOneBudget(t *testing.T) {
	long(t)
	t.Parallel()
	const mib = 1 << 20
	s, _ := bodyServer(t, 12*mib)
	small := sendBody(t, s, "", 100, 50) // the slowest of all
	first := sendBody(t, s, "", 10*mib, 6*mib)
	second := sendBody(t, s, "", 10*mib, 9*mib)
	known := sendBody(t, s, "Known: yes\r\n", 11*mib, 10*mib)
	third := sendBody(t, s, "", 4*mib, 4*mib) // there is no room for all three
	io.CopyN(first, zeros{}, 4*mib)
	io.CopyN(second, zeros{}, mib)
	if n := first.status(t) + second.status(t) + third.status(t); n != 503+503+200 && n != 503+200+200 {
		t.Errorf("the statuses of three senders are %d in all", n)
	}
	io.CopyN(small, zeros{}, 50)
	if n := small.status(t); n != 200 {
		t.Errorf("a small body: %d", n)
	}
	io.CopyN(known, zeros{}, mib)
	if n := known.status(t); n != 200 {
		t.Errorf("a sender who is known: %d", n)
	}
}

func TestBodiesOfKnownSendersAreRefusedPastTheBudget(t *testing.T) {
	long(t)
	t.Parallel()
	const mib = 1 << 20
	s, bodies := bodyServer(t, 14*mib)
	var held []*slowBody
	for i := range maxBodies / (14 * mib) {
		held = append(held, sendBody(t, s, fmt.Sprintf("Known: %d\r\n", i), 14*mib, 13*mib))
		await(t, "a body to arrive", func() bool {
			return bodies.bySender.count(strconv.Itoa(i)) == 13*mib
		})
		if n := sendBody(t, s, fmt.Sprintf("Known: %d\r\n", i), 4*mib, 4*mib).status(t); n != 503 {
			t.Errorf("past what one sender may hold: %d", n)
		}
	}
	if n := sendBody(t, s, "Known: another\r\n", 14*mib, 14*mib).status(t); n != 503 {
		t.Errorf("past the budget: %d", n)
	}
	if n := sendBody(t, s, "Known: another\r\n", 2*mib, 2*mib).status(t); n != 200 {
		t.Errorf("another, while there is room: %d", n)
	}
	for _, b := range held {
		io.CopyN(b, zeros{}, mib)
		if n := b.status(t); n != 200 {
			t.Errorf("who was there: %d", n)
		}
	}
}

// A length over the limit is refused before anything is read, and nobody is told
// to go on with it.
func TestBodyAnnouncedTooLarge(t *testing.T) {
	t.Parallel()
	s, _ := bodyServer(t, 1000)
	b := sendBody(t, s, "Expect: 100-continue\r\n", 1001, 0)
	if n := b.status(t); n != 413 {
		t.Errorf("status %d", n)
	}
}
