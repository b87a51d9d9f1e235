// The wire of clients with sessions: HTTP+SSE, streams that can be resumed, subscriptions,
// and batches, which are refused.

package main

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
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
	d := startFakes(t, "a: good shared")
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

// heldProgress starts a call whose progress pauses after the second of four messages, until release is called. It
// returns the events until then.
func (c *testClient) heldProgress(t *testing.T) (first event, got []event, hangUp func()) {
	t.Helper()
	const params = `{"name":"a_progress","arguments":{"n":4,"hold":2},"_meta":{"progressToken":"p"}}`
	_, events, hangUp := openStream(t, c.request(http.MethodPost, c.message("tools/call", params)))
	first = <-events
	got = append(got, wantEvent(t, events, `"progress":1`), wantEvent(t, events, `"progress":2`))
	return first, got, hangUp
}

func TestResume(t *testing.T) {
	long(t)
	c := connect(t, startFakes(t, "a: good tools=progress,release,big").URL)
	first, got, hangUp := c.heldProgress(t)
	check(t, "the first event has an id and retry", first.id != "" && first.retry != "" && first.hasData, true)
	check(t, "data of the first event", first.data, "")
	hangUp()
	_, events, _ := c.resume(got[0].id) // during the call
	got[1] = wantEvent(t, events, `"progress":2`)
	c.call("a_release", "")
	got = append(got, remainingEvents(t, events)...)
	texts, ids := eventTexts(append([]event{first}, got...))
	check(t, "events", len(ids), 6)
	checkContains(t, "the rest", strings.Join(texts, "\n"), `"progress":3`, `"progress":4`, `"result"`)
	for range 2 { // as often as the client likes
		for i, id := range ids {
			_, events, _ := c.resume(id)
			more, moreIDs := eventTexts(remainingEvents(t, events))
			check(t, fmt.Sprint("messages after event ", i), strings.Join(more, "\n"), strings.Join(texts[i+1:], "\n"))
			check(t, fmt.Sprint("ids after event ", i), strings.Join(moreIDs, " "), strings.Join(ids[i+1:], " "))
		}
	}
	other := connect(t, c.URL)
	stream, _, _ := strings.Cut(ids[0], "-")
	for name, tt := range map[string]struct {
		c  *testClient
		id string
	}{
		"another session's": {other, ids[0]},
		"unknown":           {c, "p0123456789abcdef-0"},
	} {
		res, events, _ := tt.c.resume(tt.id)
		check(t, name+": status", res.StatusCode, http.StatusGone)
		check(t, name+": messages", len(remainingEvents(t, events)), 0)
	}
	for _, id := range []string{"x", stream, stream + "--1", "g0123456789abcdef-3"} { // not the id of an answer
		res, events, hangUp := c.resume(id)
		check(t, id+": status", res.StatusCode, 200)
		e := <-events
		check(t, id+": a notification stream begins", strings.HasPrefix(e.id, "g") && e.data == "", true)
		hangUp()
		check(t, id+": messages", len(remainingEvents(t, events)), 0)
	}
	c.end()
	res, _, _ := c.resume(ids[0])
	check(t, "status after DELETE", res.StatusCode, 404)
}

// TestResumeInAScope resumes streams of a version whose streams begin without an id, before and after the end of a
// claim.
func TestResumeInAScope(t *testing.T) {
	long(t)
	p := startProjects(t)
	writeFake(t, p.dir+"/proj/a.usher", "good tools=progress,release")
	connect(t, p.URL).awaitTools("a_progress", "a_release", "b_x", "c_x")
	proj := p.code("/proj")
	c := connectAs(t, p.URL, "2025-06-18", inHeader(proj))
	begin, got, hangUp := c.heldProgress(t)
	check(t, "id and retry of the first event in this version", begin.id+begin.retry, "")
	call := got[0]
	hangUp()
	c.call("a_release", "")
	_, events, _ := c.resume(call.id)
	check(t, "messages while the claim is active", len(remainingEvents(t, events)), 4)
	c.tools()
	_, events, hangUp = c.resume("")
	writeFake(t, p.dir+"/proj/new.usher", "good tools=x")
	first := wantEvent(t, events, changedTools)
	writeFake(t, p.dir+"/proj/newer.usher", "good tools=x")
	second := wantEvent(t, events, changedTools)
	hangUp()
	_, events, hangUp = c.resume(first.id)
	check(t, "the id of what it missed", wantEvent(t, events, changedTools).id, second.id)
	hangUp()
	p.revoke(proj)
	res, _, _ := c.resume(call.id)
	check(t, "status after the claim's end", res.StatusCode, http.StatusGone)
	_, events, _ = c.resume(first.id)
	stream, _ := parseEventID(first.id)
	e := <-events
	checkOmits(t, "the first id after the claim's end", e.id, stream)
	c.tools()
	c.do(c.request(http.MethodDelete, ""))
	_, ids := eventTexts(remainingEvents(t, events))
	checkOmits(t, "ids after the claim's end", strings.Join(ids, " "), stream)
}

// TestReplayBounds fills what replay may use of the memory.
func TestReplayBounds(t *testing.T) {
	t.Parallel()
	m := newMemory(0)
	stream := func() *outbox {
		k := &keptStream{known: &sync.Map{}, authorized: func() bool { return true }}
		return newOutbox(account{m, "one"}, &connection{}, k)
	}
	want := func(o *outbox, n, want int) { // -1: not all of it is kept
		t.Helper()
		missed, ok := o.after(n)
		got := len(missed)
		if !ok {
			got = -1
		}
		check(t, fmt.Sprintf("messages after %d", n), got, want)
	}
	msg := make([]byte, maxReplayMessage)
	first, second := stream(), stream()
	first.keepLocked(frame{msg: append(msg, 'x')}) // too long
	const most = maxHeldOf / 2 / (maxReplayMessage + minHeld)
	for range most {
		first.keepLocked(frame{msg: msg})
	}
	for n, kept := range map[int]int{most + 2: -1, most + 1: 0, 2: most - 1, 1: most, 0: -1} {
		want(first, n, kept)
	}
	check(t, "the principal's requests have room", first.held.reserve(maxHeldOf/2), true)
	first.held.release(maxHeldOf / 2)
	second.keepLocked(frame{msg: msg})
	want(second, 0, -1)
	first.forget()
	for range maxHeldOf / 2 / minHeld {
		second.keepLocked(frame{msg: []byte("x")})
	}
	want(second, 1, -1) // many short ones
	second.forget()
	check(t, "bytes in the end", heldBytes(m), 0)
}

// TestStreamsLeaveNothing has clients hang up: a stream that has ended and of which nothing is kept is forgotten at
// once, the others after a while.
func TestStreamsLeaveNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(0)
		var known sync.Map
		begin := func(id string) *outbox {
			conn := &connection{ctx: t.Context(), write: func(frame) error { return io.EOF }}
			k := &keptStream{known: &known, id: id}
			o := newOutbox(account{memory: m}, conn, k)
			k.authorized = func() bool { // it may read the claims file, which may take long
				unlocked := o.mu.TryLock()
				check(t, "the outbox is unlocked while a claim is checked", unlocked, true)
				if unlocked {
					o.mu.Unlock()
				}
				return true
			}
			o.send(frame{})
			<-conn.done
			return o
		}
		checkKnown := func(what, want string) {
			t.Helper()
			var ids []string
			known.Range(func(id, _ any) bool {
				ids = append(ids, id.(string))
				return true
			})
			slices.Sort(ids)
			check(t, "streams "+what, strings.Join(ids, " "), want)
		}
		begin("waits")
		begin("empty").end()
		begin("full").finish(frame{msg: []byte("x")}, true)
		begin("long").finish(frame{msg: make([]byte, maxReplayMessage+1)}, true)
		checkKnown("at once", "full waits")
		pass(replayLife + 1)
		checkKnown("after a while", "")
		check(t, "bytes", heldBytes(m), 0)
	})
}

// TestSlowClientIsDropped has a client that reads nothing.
func TestSlowClientIsDropped(t *testing.T) {
	t.Parallel()
	writing, unblock := make(chan bool), make(chan bool)
	conn := &connection{ctx: t.Context(), write: func(f frame) error {
		if f.msg != nil {
			writing <- true
			<-unblock
		}
		return nil
	}}
	held := account{memory: newMemory(0)}
	out := newOutbox(held, conn, nil)
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
	<-conn.done
	check(t, "bytes in the end", heldBytes(held.memory), 0)
}

// heldBytes returns the bytes that are held for all principals.
func heldBytes(m *memory) int64 {
	m.bytes.mu.Lock()
	defer m.bytes.mu.Unlock()
	return m.bytes.all
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
	checkContains(t, "after the claim's end", ask("subscribe", "r://many/5"), "has ended")
	if way == "HTTP+SSE" {
		ask("unsubscribe", "r://many/1") // all before its answer has arrived
	} else {
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
