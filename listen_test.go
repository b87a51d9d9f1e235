// What clients with sessions are told of resources: over crashes of the module,
// and until their claim ends. Of those without sessions, see listenersInAScope.

package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestSubscriptionsOfASession(t *testing.T) {
	t.Parallel()
	for _, way := range []string{"2025-11-25", "2025-03-26", "HTTP+SSE"} {
		t.Run(way, func(t *testing.T) {
			t.Parallel() // for the end of a claim is looked at from time to time
			dir, base := twoProjects(t), t.TempDir()
			writeFake(t, dir+"/proj/r.usher", "good shared tools=touch,crash res=r")
			writeFake(t, dir+"/other/o.usher", "good shared tools=touch res=o")
			d := daemonOptions{base: base}.start(t, dir)
			free := connect(t, d.URL)
			free.awaitTools("a_pid", "a_sleep", "a_x", "b_x", "c_x", "o_touch", "r_crash", "r_touch")
			touch := func(uri string) string { return free.call("r_touch", `{"uri":"`+uri+`"}`).Body }
			proj := newClaimFor(t, base, dir+"/proj")
			var c *askClient
			listen, drain := func() {}, func() {} // to have a stream; to have all that is on it
			if way == "HTTP+SSE" {
				c = askOverSSE(t, d.URL, askAllCaps, proj.Code.Reveal())
				drain = func() { c.get(c.send(t.Context(), c.nextID(), "ping", "")) }
			} else {
				c = askOverPOST(t, d.URL, way, askAllCaps, proj.Code.Reveal())
				var reading sync.WaitGroup
				listen = func() {
					var messages <-chan json.RawMessage
					messages, c.hangUp = c.http.listen()
					reading.Go(func() {
						for msg := range messages {
							c.take(msg)
						}
					})
				}
				drain = func() {
					c.http.do(c.http.request(http.MethodDelete, ""))
					reading.Wait()
				}
			}
			ask := func(method, uri string) string {
				t.Helper()
				return string(c.get(c.send(t.Context(), c.nextID(), "resources/"+method, `{"uri":"`+uri+`"}`)))
			}
			told := func(when, uri string) {
				t.Helper()
				await(t, when+": a subscription", func() bool { return strings.Contains(touch(uri), "told") })
				c.hears("notifications/resources/updated", `"uri":"`+uri+`"`)
			}
			listen()
			if got := ask("subscribe", "o://one"); !strings.Contains(got, "unknown resource") {
				t.Errorf("out of scope: %s", got)
			}
			for _, uri := range []string{"r://many/1", "r://many/2", "r://many/3", "r://many/4", "r://many/5"} {
				if got := ask("subscribe", uri); !strings.Contains(got, `"result":{}`) {
					t.Errorf("%s: %s", uri, got)
				}
			}
			told("first", "r://many/1")
			ask("unsubscribe", "r://many/4")
			await(t, "the end of what is unsubscribed from", func() bool { return strings.Contains(touch("r://many/4"), "nobody") })
			free.call("r_crash", "")
			told("after a crash", "r://many/2")
			if way != "HTTP+SSE" { // whose session ends with its stream
				c.hangUp()
				await(t, "nobody to listen", func() bool { return strings.Contains(touch("r://many/3"), "nobody") })
				listen()
				told("on its next stream", "r://many/3")
			}
			if _, err := openStore(t, base).Revoke(t.Context(), proj.Code); err != nil {
				t.Fatal(err)
			}
			touch("r://many/5") // which usher still hears of
			await(t, "the end of the subscription", func() bool { return strings.Contains(touch("r://many/5"), "nobody") })
			if got := ask("subscribe", "r://many/5"); !strings.Contains(got, "has ended") {
				t.Errorf("after the claim's end: %s", got)
			}
			drain()
			c.mu.Lock()
			defer c.mu.Unlock()
			for _, msg := range c.heard {
				if strings.Contains(string(msg), "r://many/4") || strings.Contains(string(msg), "r://many/5") {
					t.Errorf("it heard %s", msg)
				}
			}
		})
	}
}

// TestListenerWantsTooMuch has what bounds a list of resources hold for several
// of them too.
func TestListenerWantsTooMuch(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	writeFake(t, dir+"/r.usher", "good tools=x res=r")
	d := startDaemon(t, dir)
	connect(t, d.URL).awaitTools("r_x")
	uris := func(from, n int) string {
		var list []string
		for i := range n {
			list = append(list, fmt.Sprint("r://many/", from+i))
		}
		return string(marshal(list))
	}
	for name, filter := range map[string]string{
		"one list":  `{"resourceSubscriptions":` + uris(0, maxWanted+1) + `}`,
		"long URIs": `{"resourceSubscriptions":` + string(marshal(slices.Repeat([]string{"r://many/" + strings.Repeat("x", maxURI-9)}, maxWantedBytes/maxURI+1))) + `}`,
	} {
		meta := object{{"_meta", json.RawMessage("{" + modernMeta + "}")}, {"notifications", json.RawMessage(filter)}}.encode()
		req := newStateless(t, d.URL).request(http.MethodPost, string(encodeRequest(json.RawMessage("1"), listenMethod, meta)))
		req.Header.Set(protocolHeader, statelessProtocol)
		req.Header.Set(methodHeader, listenMethod)
		res, _, hangUp := openStream(t, req)
		if res.StatusCode != http.StatusBadRequest {
			t.Errorf("%s: %d", name, res.StatusCode)
		}
		hangUp()
	}
}

// TestAskOutsideOfCallsAtTheEnd has a module ask the client of its last call, and
// tell of one whose connection is gone, when that client's session is not any more
// what it was.
func TestAskOutsideOfCallsAtTheEnd(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(t *testing.T, b *bubble, c *testClient, own Code){
		"its claim is revoked": func(t *testing.T, b *bubble, _ *testClient, own Code) {
			if _, err := openStore(t, b.base).Revoke(t.Context(), own); err != nil {
				t.Fatal(err)
			}
		},
		"it moves to another folder": func(t *testing.T, b *bubble, c *testClient, _ Code) {
			c.Header.Set(claimHeader, newClaimFor(t, b.base, "/v").Code.Reveal())
			c.tools()
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *bubble) {
				own := newClaimFor(t, b.base, "/w").Code
				c := b.open("2025-11-25")
				c.Header.Set(claimHeader, own.Reveal())
				req := c.request(http.MethodGet, "")
				req.Header.Set("Accept", "text/event-stream")
				x := b.begin(req)
				pass(time.Second) // in which its claim is written down
				c.call("m_wait", `{"seconds":0}`)
				ask := func(word string) {
					b.process.handle(&Message{ID: quote(word), Method: "elicitation/create", Params: json.RawMessage(`{"message":"` + word + `"}`)})
				}
				ask("outside")
				x.got() // it has arrived
				call := b.begin(c.request(http.MethodPost, c.message("tools/call", `{"name":"m_wait","arguments":{"seconds":60},"_meta":{"progressToken":"t"}}`)))
				call.got()
				call.hangUp()
				<-call.done
				synctest.Wait() // the server has seen it
				progress := func(word string) {
					b.process.handle(&Message{Method: "notifications/progress",
						Params: json.RawMessage(`{"progressToken":` + sortedKeys(b.process.calls)[0] + `,"message":"progress ` + word + `"}`)})
				}
				progress("before")
				x.got()
				ask("before")
				if status, text := x.got(); !strings.Contains(text, `"outside"`) || !strings.Contains(text, `"before"`) || !strings.Contains(text, "progress before") {
					t.Fatalf("before: the stream says %d %q", status, text)
				}
				b.hears()
				end(t, b, c, own)
				pass(2 * streamInterval)
				progress("after")
				ask("after")
				if _, text := x.got(); strings.Contains(text, "after") {
					t.Errorf("after: the stream says %q", text)
				}
				if heard := b.hears(); !strings.Contains(heard, errUnheard.Message) {
					t.Errorf("after: the module heard %q", heard)
				}
				pass(time.Minute) // the call ends
				b.hears()
				ask("after all")
				if _, text := x.got(); strings.Contains(text, "after") {
					t.Errorf("after all: the stream says %q", text)
				}
				if heard := b.hears(); !strings.Contains(heard, errNoScope.Message) {
					t.Errorf("after all: the module heard %q", heard)
				}
				x.hangUp()
				<-x.done
			})
		})
	}
}
