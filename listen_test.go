// Subscriptions of clients with sessions, over crashes of the module and until their claim ends. Listeners without
// sessions are in modern_test.go.

package main

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
)

func TestSubscriptionsOfASession(t *testing.T) {
	long(t)
	for _, way := range []string{"2025-11-25", "HTTP+SSE"} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			subscribeAndCrash(t, way)
		})
	}
}

func subscribeAndCrash(t *testing.T, way string) {
	p := startProjects(t)
	writeFake(t, p.dir+"/proj/r.usher", "good shared tools=touch,crash res=r")
	writeFake(t, p.dir+"/other/o.usher", "good shared tools=touch res=o")
	free := connect(t, p.URL)
	await(t, "both modules", func() bool { return len(free.tools()) == 8 })
	touch := func(uri string) string { return free.call("r_touch", `{"uri":"`+uri+`"}`).Body }
	code := p.code("/proj")
	c := askWays[way](t, p.URL, p.dir, askAllCaps)
	c.http.Header.Set(claimHeader, code)
	var reading sync.WaitGroup
	listen := func() {
		if way == "HTTP+SSE" {
			return // it has a stream
		}
		messages, hangUp := c.http.listen()
		c.hangUp = hangUp
		reading.Go(func() {
			for msg := range messages {
				c.take(msg)
			}
		})
	}
	ask := func(method, uri string) string {
		t.Helper()
		return string(c.get(c.send(t.Context(), c.nextID(), "resources/"+method, `{"uri":"`+uri+`"}`)))
	}
	hearUpdate := func(uri string) {
		t.Helper()
		await(t, "a subscription", func() bool { return strings.Contains(touch(uri), "told") })
		c.hears("notifications/resources/updated", `"uri":"`+uri+`"`)
	}
	awaitNobody := func(uri string) {
		t.Helper()
		await(t, "the end of a subscription", func() bool { return strings.Contains(touch(uri), "nobody") })
	}
	listen()
	checkContains(t, "out of scope", ask("subscribe", "o://one"), "unknown resource")
	for n := range 5 {
		checkContains(t, "subscribing", ask("subscribe", fmt.Sprint("r://many/", n+1)), `"result":{}`)
	}
	hearUpdate("r://many/1")
	ask("unsubscribe", "r://many/4")
	awaitNobody("r://many/4")
	free.call("r_crash", "")
	hearUpdate("r://many/2")
	if way != "HTTP+SSE" { // such a session ends with its stream
		c.hangUp()
		awaitNobody("r://many/3")
		listen()
		hearUpdate("r://many/3")
	}
	p.revoke(code)
	touch("r://many/5") // of which usher is still notified
	awaitNobody("r://many/5")
	checkContains(t, "after the claim's end", ask("subscribe", "r://many/5"), "has ended")
	if way == "HTTP+SSE" {
		ask("unsubscribe", "r://many/1") // all before its answer has arrived
	} else {
		c.http.do(c.http.request(http.MethodDelete, ""))
		reading.Wait()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, msg := range c.heard {
		checkOmits(t, "what it heard", string(msg), "r://many/4", "r://many/5")
	}
}
