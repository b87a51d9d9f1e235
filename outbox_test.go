// Tests of outbox.go: streams over time, and clients that do not read.

package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
)

// The answer to a call becomes a stream after 15 s of silence, if the client accepts one.
func TestSilentCallBecomesAStream(t *testing.T) {
	long(t)
	const params = `{"name":"m_wait","arguments":{"seconds":40}}`
	for _, version := range []string{"2025-11-25", "2025-03-26", "2026-07-28"} {
		for accept, kind := range map[string]string{
			bothKinds:          "text/event-stream",
			"application/json": "application/json",
		} {
			runInBubble(t, version+", "+accept, func(t *testing.T, b *bubble) {
				req := b.ModernPOST("1", "tools/call", params)
				if version != statelessProtocol {
					c := b.open(version)
					req = c.Asking("tools/call", params)
				}
				req.Header.Set("Accept", accept)
				x := b.begin(req)
				pass(keepAlive - time.Nanosecond)
				status, _ := x.got()
				check(t, "status before its time", status, 0)
				pass(time.Nanosecond)
				for n := 1; n <= 2 && accept == bothKinds; n++ {
					_, text := x.got()
					check(t, "X-Accel-Buffering", x.header.Get("X-Accel-Buffering"), "no")
					check(t, "comments", strings.Count(text, ":\n\n") >= n, true)
					checkOmits(t, "the stream", text, "result")
					pass(keepAlive)
				}
				<-x.done
				status, text := x.got()
				check(t, "status", status, 200)
				check(t, "Content-Type", x.header.Get("Content-Type"), kind)
				check(t, "answers", strings.Count(text, "waited"), 1)
			})
		}
	}
}

// A stream begins with a comment, and has another one every 15 s.
func TestIdleStreamsAreKeptAlive(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		request func(*bubble) *http.Request
		begins  string
	}{
		"2025-11-25": {
			func(b *bubble) *http.Request { return b.open("2025-11-25").GetRequest() },
			`^:\n\n$`,
		},
		"HTTP+SSE": {
			func(b *bubble) *http.Request { return b.GetRequest() },
			`^:\n\nevent: endpoint\ndata: \S+\n\n$`,
		},
		"2026-07-28": {
			func(b *bubble) *http.Request {
				return b.ModernPOST("1", "subscriptions/listen", `{"notifications":{}}`)
			},
			`^:\n\nevent: message\ndata: \S+acknowledged\S+\n\n$`,
		},
	} {
		runInBubble(t, name, func(t *testing.T, b *bubble) {
			x := b.begin(tt.request(b))
			status, first := x.got()
			check(t, "status", status, 200)
			if !regexp.MustCompile(tt.begins).MatchString(first) {
				t.Errorf("at once: %q, want %s", first, tt.begins)
			}
			for n := range 3 {
				pass(keepAlive - time.Nanosecond)
				_, text := x.got()
				check(t, "before the comment", text, first+strings.Repeat(":\n\n", n))
				pass(time.Nanosecond)
				_, text = x.got()
				check(t, "at the comment", text, first+strings.Repeat(":\n\n", n+1))
			}
			x.close()
		})
	}
}

// A client that reads slowly gets all. One that stops reading loses its connection after
// writeTimeout.
func TestSlowReadersHaveTime(t *testing.T) {
	t.Parallel()
	long := []byte(`"` + strings.Repeat("x", 1<<20) + `"`)
	for name, answer := range map[string]func(*reservation){
		"JSON":      func(x *reservation) { x.writeJSON(200, long) },
		"a stream":  func(x *reservation) { sseWriter(x)(outEvent{name: "message", data: long}) },
		"a webhook": func(x *reservation) { x.write(200, "", long) },
	} {
		for _, reads := range []bool{true, false} {
			runSynced(t, fmt.Sprint(name, ", read to the end: ", reads), func(t *testing.T) {
				answered := make(chan struct{})
				conns := make(pipes)
				handler := func(w http.ResponseWriter, r *http.Request) {
					answer(newMemory(0, strangers).serve(w, r))
					close(answered)
				}
				web := &http.Server{Handler: http.HandlerFunc(handler)}
				var serving sync.WaitGroup
				serving.Go(func() { web.Serve(conns) })
				ours, theirs := net.Pipe()
				conns <- theirs
				io.WriteString(ours, "GET / HTTP/1.0\r\n\r\n")
				got := 0
				for part := make([]byte, 10_000); reads; pass(time.Second) {
					n, err := ours.Read(part)
					got += n
					if err != nil {
						break
					}
				}
				check(t, "it got all", got >= len(long), reads)
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
		}
	}
}

// heldBytes returns the bytes that are held for all principals.
func heldBytes(m *memory) (sum int) {
	for _, c := range []*counter{&m.known, &m.unknown} {
		c.mu.Lock()
		sum += c.all
		c.mu.Unlock()
	}
	return sum
}

// A client whose outbox is full is dropped. One message of any size fits.
func TestSlowClientIsDropped(t *testing.T) {
	t.Parallel()
	writing, unblock := make(chan bool), make(chan bool)
	write := func(e outEvent) error {
		if e.name != "" {
			writing <- true
			<-unblock
		}
		return nil
	}
	held := newMemory(0, strangers).reserve(everyone)
	out := &outbox{ctx: t.Context(), held: held, write: write}
	msg := make([]byte, maxOutbox+1)
	for i, want := range []bool{true, true, false, false} { // one is written, one waits
		check(t, fmt.Sprint("message ", i, " is accepted"), out.send(msg), want)
		if i == 0 {
			<-writing
		}
	}
	check(t, "bytes that wait for the dropped client", out.bytes, 0)
	check(t, "bytes being written", heldBytes(held.memory), maxOutbox+1)
	close(unblock)
	<-out.done
	check(t, "bytes in the end", heldBytes(held.memory), 0)
}
