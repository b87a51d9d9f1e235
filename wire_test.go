// The wire of clients with sessions: HTTP+SSE, streams, subscriptions, and batches, which are
// refused.

package main

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
)

// TestBatchesAreRefused sends a batch in each version, over each transport. The next message is answered.
func TestBatchesAreRefused(t *testing.T) {
	long(t)
	d := startFakes(t, "a: good")
	const ping = `{"jsonrpc":"2.0","id":7,"method":"ping"}`
	for _, version := range protocols {
		for _, body := range []string{"[" + ping + "," + ping + "]", " \n[]"} {
			a := connectAs(t, d.URL, version).post(body)
			check(t, version+": status", a.Status, 400)
			checkContains(t, version, a.Body, `"code":-32600`, "batches")
			checkOmits(t, version, a.Body, `"id"`)
		}
	}
	checkNext := func(t *testing.T, send func(string), next func() string) {
		send(initializeAs("2025-03-26"))
		next()
		send("[" + ping + "]")
		checkContains(t, "the answer to a batch", next(), `"code":-32600`, "batches")
		send(ping)
		checkContains(t, "the answer to a ping", next(), `"id":7,"result"`)
	}
	t.Run("stdio", func(t *testing.T) {
		in, out, _ := startStdio(t, d.Dir)
		checkNext(t, func(s string) { io.WriteString(in, s+"\n") }, func() string {
			line, err := out.next()
			must(t, err)
			return string(line)
		})
	})
	t.Run("HTTP+SSE", func(t *testing.T) {
		c := connectSSE(t, d.URL, func(r *http.Request) { r.URL.Path = "/mcp" })
		checkNext(t, func(s string) { c.post(s) }, func() string { return wantEvent(t, c.events).data })
	})
}

// TestOldSSECancels cancels a call by a message, by another session, and by hanging up, which ends the session.
func TestOldSSECancels(t *testing.T) {
	long(t)
	d := startFakes(t, "a: shared good")
	c, other := connectSSE(t, d.URL), connectSSE(t, d.URL)
	cancelled := func() int { return strings.Count(d.Log.String(), "fake: cancelled") }
	call := func() {
		t.Helper()
		before := strings.Count(d.Log.String(), "fake: sleeping")
		c.post(`{"jsonrpc":"2.0","id":"s","method":"tools/call","params":{"name":"a_sleep","arguments":{"ms":60000}}}`)
		await(t, "the call to begin", func() bool { return strings.Count(d.Log.String(), "fake: sleeping") > before })
	}
	const cancel = `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"s"}}`
	call()
	c.post(`{"jsonrpc":"2.0","id":"s","method":"ping"}`)
	wantEvent(t, c.events, `"id":"s"`, "is already in use")
	other.post(cancel)
	other.ask("ping", "")
	check(t, "calls that another session cancelled", cancelled(), 0)
	c.post(cancel)
	await(t, "the module to hear of it", func() bool { return cancelled() == 1 })
	call()
	c.hangUp()
	await(t, "the module to hear that the client is gone", func() bool { return cancelled() == 2 })
	await(t, "404", func() bool { return c.post(`{"jsonrpc":"2.0","id":1,"method":"ping"}`).Status == 404 })
	res, _, _ := c.get()
	check(t, "status of a GET of an ended session", res.StatusCode, 404)
	checkContains(t, "the other session", string(other.ask("ping", "")), `"result"`)
}

// TestOldSSETakesStatelessMessages sends requests of 2026-07-28 to an HTTP+SSE session, whose address counts.
func TestOldSSETakesStatelessMessages(t *testing.T) {
	long(t)
	url := startFakes(t, "a: good").URL
	for _, header := range []string{protocolHeader + ":", protocolHeader + ": " + statelessProtocol} {
		c := connectSSE(t, url, func(r *http.Request) { r.Header.Set("Accept", "*/*") })
		req := c.request(http.MethodPost, c.message("server/discover", `{"_meta":{`+modernMeta+`}}`))
		setHeaders(req, header)
		check(t, header+" status", c.do(req).Status, http.StatusAccepted)
		wantEvent(t, c.events, `"supportedVersions"`)
		c.post(initializeAs(oldestProtocol))
		wantEvent(t, c.events, `"id":"init"`, `"protocolVersion":"2024-11-05"`)
	}
}

// TestBrokenStream hangs up during a call of a session: the call continues, and its answer is
// lost. Last-Event-ID opens an ordinary stream.
func TestBrokenStream(t *testing.T) {
	long(t)
	d := startFakes(t, "a: good tools=progress,release")
	c := connect(t, d.URL)
	const params = `{"name":"a_progress","arguments":{"n":4,"hold":2},"_meta":{"progressToken":"p"}}`
	_, events, hangUp := openStream(t, c.request(http.MethodPost, c.message("tools/call", params)))
	check(t, "the id of an event", wantEvent(t, events, `"progress":1`).id, "")
	hangUp()
	c.call("a_release", "")
	await(t, "the end of the call", func() bool {
		return strings.Contains(d.Log.String(), "method=progress outcome=done")
	})
	c.Header.Set("Last-Event-ID", "1")
	events, hangUp = c.listen()
	hangUp()
	check(t, "messages of a later stream", len(remainingEvents(t, events)), 0)
}

// TestSlowClientIsDropped has a client that reads nothing.
func TestSlowClientIsDropped(t *testing.T) {
	t.Parallel()
	writing, unblock := make(chan bool), make(chan bool)
	conn := connection{ctx: t.Context(), write: func(f frame) error {
		if f.msg != nil {
			writing <- true
			<-unblock
		}
		return nil
	}}
	held := account{newMemory(0, strangers), everyone}
	out := newOutbox(held, conn)
	msg := make([]byte, maxOutbox+1)
	for i, want := range []bool{true, true, false, false} { // one is written, one waits
		check(t, fmt.Sprint("message ", i, " is accepted"), out.send(frame{msg: msg}), want)
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

// heldBytes returns the bytes that are held for all principals.
func heldBytes(m *memory) int64 {
	m.known.mu.Lock()
	defer m.known.mu.Unlock()
	return m.known.all
}

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
	writeShared(t, p.dir+"/proj", "r", "good tools=touch,crash res=r")
	writeShared(t, p.dir+"/other", "o", "good tools=touch res=o")
	free := connect(t, p.URL)
	await(t, "both modules", func() bool { return len(free.tools()) == 8 })
	touch := func(uri string) string { return free.call("r_touch", `{"uri":"`+uri+`"}`).Body }
	code := p.code("/proj")
	var c *askClient
	if way == "HTTP+SSE" {
		c = askOverSSE(t, p.URL, askAllCaps, code)
	} else {
		c = askOverPOST(t, p.URL, way, askAllCaps, code)
	}
	var reading sync.WaitGroup
	listen := func() {
		if way == "HTTP+SSE" {
			return // it has a stream
		}
		events, hangUp := c.http.listen()
		c.hangUp = hangUp
		reading.Go(func() { c.takeAll(events) })
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
	c.get(c.send(t.Context(), c.nextID(), "tools/list", ""))
	writeFake(t, p.dir+"/other/new.usher", "good tools=x") // of which it must not hear
	await(t, "the new module", func() bool { return len(free.tools()) == 9 })
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
	c.hears(changedTools)
	touch("r://many/5") // of which usher is still notified
	awaitNobody("r://many/5")
	if way != "HTTP+SSE" { // such a session ends with its claim
		checkContains(t, "after the claim's end", ask("subscribe", "r://many/5"), "has ended")
		c.http.do(c.http.request(http.MethodDelete, ""))
		reading.Wait()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	changes := 0
	for _, msg := range c.heard {
		checkOmits(t, "what it heard", string(msg), "r://many/4", "r://many/5")
		changes += strings.Count(string(msg), changedTools)
	}
	check(t, "changes of its list that it heard of", changes, 1)
}
