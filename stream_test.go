// Streams over time: what keeps silent ones alive, and how long what went out on
// one can be had again.

package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

const bothKinds = "application/json, text/event-stream"

// TestSilentCallBecomesAStream is of calls whose modules say nothing for long.
func TestSilentCallBecomesAStream(t *testing.T) {
	t.Parallel()
	const params = `{"name":"m_wait","arguments":{"seconds":40}}`
	for name, tt := range map[string]struct {
		accept  string
		request func(*bubble) *http.Request
		stream  bool
	}{
		"2025-11-25": {bothKinds, func(b *bubble) *http.Request {
			c := b.open("2025-11-25")
			return c.request(http.MethodPost, c.message("tools/call", params))
		}, true},
		"2025-03-26": {bothKinds, func(b *bubble) *http.Request {
			c := b.open("2025-03-26")
			return c.request(http.MethodPost, c.message("tools/call", params))
		}, true},
		"2026-07-28": {bothKinds, func(b *bubble) *http.Request { return b.modernPOST("1", "tools/call", params) }, true},
		"2025-11-25, JSON alone": {"application/json", func(b *bubble) *http.Request {
			c := b.open("2025-11-25")
			return c.request(http.MethodPost, c.message("tools/call", params))
		}, false},
		"2026-07-28, JSON alone": {"application/json", func(b *bubble) *http.Request { return b.modernPOST("1", "tools/call", params) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *bubble) {
				req := tt.request(b)
				req.Header.Set("Accept", tt.accept)
				x := b.begin(req)
				pass(keepAlive - time.Nanosecond)
				if status, text := x.got(); status != 0 {
					t.Errorf("before its time: %d %q", status, text)
				}
				pass(time.Nanosecond)
				for n := 1; n <= 2; n++ {
					status, text := x.got()
					if !tt.stream && status != 0 {
						t.Errorf("to a client that takes no stream: %d %q", status, text)
					}
					if tt.stream && (status != 200 || !strings.HasPrefix(x.header.Get("Content-Type"), "text/event-stream") || x.header.Get("X-Accel-Buffering") != "no" ||
						strings.Count(text, ":\n\n") < n || strings.Contains(text, "result")) {
						t.Errorf("silent for %d times as long: %d %v %q", n, status, x.header, text)
					}
					pass(keepAlive)
				}
				<-x.done
				kind := map[bool]string{true: "text/event-stream", false: "application/json"}[tt.stream]
				if status, text := x.got(); status != 200 || x.header.Get("Content-Type") != kind || strings.Count(text, "waited") != 1 {
					t.Errorf("the answer: %d %v %q", status, x.header, text)
				}
			})
		})
	}
}

// TestIdleStreamsAreKeptAlive is of streams on which there is nothing to say.
func TestIdleStreamsAreKeptAlive(t *testing.T) {
	t.Parallel()
	get := func(c *testClient) *http.Request {
		req := c.request(http.MethodGet, "")
		req.Header.Set("Accept", "text/event-stream")
		return req
	}
	for name, tt := range map[string]struct {
		request func(*bubble) *http.Request
		begins  string
	}{
		"2025-11-25": {func(b *bubble) *http.Request { return get(b.open("2025-11-25")) }, `^id: g\w+-0\nretry: 1000\ndata: \n\n:\n\n$`},
		"2025-03-26": {func(b *bubble) *http.Request { return get(b.open("2025-03-26")) }, `^:\n\n$`},
		"HTTP+SSE":   {func(b *bubble) *http.Request { return get(b.testClient) }, `^event: endpoint\ndata: \S+\n\n:\n\n$`},
		"2026-07-28": {func(b *bubble) *http.Request {
			return b.modernPOST("1", "subscriptions/listen", `{"notifications":{}}`)
		},
			`^:\n\nevent: message\ndata: \S+acknowledged\S+\n\n$`},
		"a call's that is resumed": {func(b *bubble) *http.Request {
			c := b.open("2025-11-25")
			call := c.request(http.MethodPost, c.message("tools/call", `{"name":"m_wait","arguments":{"seconds":1000}}`))
			call.Header.Set("Accept", "text/event-stream, application/json")
			x := b.begin(call)
			_, text := x.got()
			x.hangUp()
			req := get(c)
			req.Header.Set(eventHeader, firstID(t, text))
			return req
		}, `^:\n\n$`},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *bubble) {
				x := b.begin(tt.request(b))
				status, first := x.got()
				if status != 200 || !regexp.MustCompile(tt.begins).MatchString(first) {
					t.Errorf("at once: %d %q, want %s", status, first, tt.begins)
				}
				for n := range 3 {
					pass(keepAlive - time.Nanosecond)
					if _, text := x.got(); text != first+strings.Repeat(":\n\n", n) {
						t.Errorf("before the comment %d: %q", n+1, text)
					}
					pass(time.Nanosecond)
					if _, text := x.got(); text != first+strings.Repeat(":\n\n", n+1) {
						t.Errorf("at the comment %d: %q", n+1, text)
					}
				}
				x.hangUp()
				<-x.done
			})
		})
	}
}

// firstID is the id of a stream's first event that has one.
func firstID(t *testing.T, stream string) string {
	t.Helper()
	_, rest, _ := strings.Cut(stream, "id: ")
	id, _, ok := strings.Cut(rest, "\n")
	if !ok {
		t.Fatalf("no event has an id: %q", stream)
	}
	return id
}

// TestStreamThatNobodyReadsIsForgotten has streams resumed in time, and too late.
func TestStreamThatNobodyReadsIsForgotten(t *testing.T) {
	t.Parallel()
	const forgets = 2 * replayLife // it is looked at from time to time
	for _, tt := range []struct {
		name string
		call bool // a call's answer, and not a session's notifications
		read time.Duration
		away time.Duration // since it was read
		kept bool
	}{
		{"an answer, in time", true, time.Second, replayLife - time.Second, true},
		{"an answer, too late", true, time.Second, forgets, false},
		{"an answer, read for long", true, 3 * forgets, replayLife - time.Second, true},
		{"notifications, in time", false, time.Second, replayLife - time.Second, true},
		{"notifications, too late", false, time.Second, forgets, false},
		{"notifications, read for long", false, 3 * forgets, replayLife - time.Second, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *bubble) {
				c := b.open("2025-11-25")
				resume := func(id string) *exchange {
					req := c.request(http.MethodGet, "")
					req.Header.Set("Accept", "text/event-stream")
					if id != "" {
						req.Header.Set(eventHeader, id)
					}
					return b.begin(req)
				}
				var x *exchange
				message := "waited"
				if tt.call {
					seconds := string(marshal(int(tt.read.Seconds()) + 1)) // the answer comes when nobody reads
					req := c.request(http.MethodPost, c.message("tools/call", `{"name":"m_wait","arguments":{"seconds":`+seconds+`}}`))
					req.Header.Set("Accept", "text/event-stream, application/json")
					x = b.begin(req)
				} else {
					x = resume("")
					x.got()
					message = "notifications/of/test"
					token, ok := b.server.gate.sessions.open(c.Session)
					if !ok {
						t.Fatal("no session")
					}
					b.server.sessions.open(token, "").send(encodeRequest(nil, message, nil))
				}
				pass(tt.read)
				_, text := x.got()
				x.hangUp()
				<-x.done
				id := firstID(t, text)
				pass(tt.away)
				x = resume(id)
				status, text := x.got()
				x.hangUp()
				<-x.done
				switch {
				case strings.Contains(text, message) != tt.kept:
					t.Errorf("resumed: %d %q", status, text)
				case tt.call && !tt.kept && (status != http.StatusGone || !strings.Contains(text, "send the request again")):
					t.Errorf("an answer that is gone: %d %q", status, text)
				case !tt.call && (status != 200 || strings.Contains(text, id) || !strings.Contains(text, "\nretry: ")):
					t.Errorf("its next stream: %d %q", status, text)
				}
			})
		})
	}
}

// TestSlowReaders has a client take a long message slowly, which gets it all, and
// one that takes no more of it, which is not waited for for long.
func TestSlowReaders(t *testing.T) {
	t.Parallel()
	long := []byte(`"` + strings.Repeat("x", 1<<20) + `"`)
	for name, answer := range map[string]http.HandlerFunc{
		"JSON":      func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, 200, slices.Clone(long)) },
		"a stream":  func(w http.ResponseWriter, _ *http.Request) { sseWriter(w)(frame{msg: long}) },
		"a webhook": func(w http.ResponseWriter, _ *http.Request) { writeBody(w, long) },
	} {
		for _, reads := range []bool{true, false} {
			t.Run(fmt.Sprint(name, ", read to the end: ", reads), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					answered := make(chan struct{})
					conns := make(pipes)
					web := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						answer(w, r)
						close(answered)
					})}
					var serving sync.WaitGroup
					serving.Go(func() { web.Serve(conns) })
					ours, theirs := net.Pipe()
					conns <- theirs
					io.WriteString(ours, "GET / HTTP/1.0\r\n\r\n")
					got := 0
					for part := make([]byte, 10_000); reads; pass(time.Second) {
						n, err := ours.Read(part)
						if got += n; err != nil {
							break
						}
					}
					if reads && got < len(long) {
						t.Errorf("it got %d of %d bytes", got, len(long))
					}
					pass(writeTimeout + time.Second)
					select {
					case <-answered:
					default:
						t.Errorf("the answer is still being written after %v", writeTimeout)
					}
					ours.Close()
					web.Close()
					serving.Wait()
				})
			})
		}
	}
}

// TestResumeUnderAnotherClaim moves a session to another folder between the begin
// of a call and that of its stream, which is none of the other claim's.
func TestResumeUnderAnotherClaim(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, b *bubble) {
		c := b.open("2025-11-25")
		move := func(dir string) {
			c.Header.Set(claimHeader, newClaimFor(t, b.base, dir).Code.Reveal())
			c.tools()
		}
		move("/w")
		x := b.begin(c.request(http.MethodPost, c.message("tools/call", `{"name":"m_wait","arguments":{"seconds":60}}`)))
		pass(time.Second)
		move("/v")
		<-x.done
		_, text := x.got()
		if !strings.Contains(text, "waited") {
			t.Errorf("the call itself: %q", text)
		}
		req := c.request(http.MethodGet, "")
		req.Header.Set("Accept", "text/event-stream")
		req.Header.Set(eventHeader, firstID(t, text))
		if a := c.do(req); a.Status != http.StatusGone {
			t.Errorf("resumed: %d %s", a.Status, a.Body)
		}
	})
}

// TestStreamIsSmall holds what the open streams of clients that did something before
// take of the stacks, 12 or 13 KiB: one of 16 KiB of which a quarter is in use stays that large. All
// stacks of the process are counted, so it runs beside no other test.
func TestStreamIsSmall(t *testing.T) {
	const n = 200
	if info, _ := debug.ReadBuildInfo(); slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
		t.Skip("the race detector has stacks of its own size")
	}
	address := strings.Trim(strings.TrimPrefix(startDaemon(t, t.TempDir()).URL, "http:"), "/")
	stacks := func() uint64 {
		for range 4 { // each halves a stack once
			runtime.GC()
		}
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.StackInuse
	}
	before := stacks()
	for range n {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		in := bufio.NewReader(conn)
		var session string
		for _, head := range []string{"POST", "GET"} {
			body := map[string]string{"POST": initialize}[head]
			fmt.Fprintf(conn, "%s / HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nAccept: text/event-stream, application/json;q=1\r\nContent-Length: %d\r\n%s: %s\r\n\r\n%s", head, len(body), sessionHeader, session, body)
			res, err := http.ReadResponse(in, nil)
			if err != nil || res.StatusCode != http.StatusOK {
				t.Fatalf("%s: %v %v", head, res, err)
			}
			if session = res.Header.Get(sessionHeader); session != "" {
				io.Copy(io.Discard, res.Body)
			}
		}
	}
	if each := (stacks() - before) / n; each > 18<<10 {
		t.Errorf("an open stream has %d bytes of stacks", each)
	}
}
