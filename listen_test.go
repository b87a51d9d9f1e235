// What clients with sessions are told of resources: over crashes of the module,
// and until their claim ends. Of those without sessions, see TestModernListenersInAScope.

package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
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
