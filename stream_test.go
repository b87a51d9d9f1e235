// Tests of stream.go: notifications and subscriptions.

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// A session's streams end with its claim, after a last list_changed. A stream that is
// opened later hears nothing.
func TestStreamsEndWithClaim(t *testing.T) {
	long(t)
	p := startProjects(t)
	claim := newClaimFor(t, p.Base, p.dir+"/proj")
	code := claim.Code.Reveal()
	c := p.session(presentNothing)
	c.awaitTools(allTools...)
	first, _ := c.listen()
	second, _ := c.listen()
	checkSees(t, "with a claim", c, inHeader(code), seesProj)
	hear(t, second, changedTools)
	for n, events := range []<-chan event{first, second} { // they end, as the session has a claim now
		check(t, fmt.Sprint("messages on stream ", n+1), len(remainingEvents(t, events)), 0)
	}
	c.awaitTools("a_pid", "a_sleep", "a_x")
	third, _ := c.listen()
	writeFake(t, p.dir+"/proj/new.usher", "good tools=x")
	hear(t, third, changedTools)
	c.awaitTools("a_pid", "a_sleep", "a_x", "new_x")
	p.putClaims("[" + p.claimRecord(code, "/proj", claim.CreatedAt, time.Second) + "]")
	hear(t, third, changedTools)
	check(t, "messages on the stream of the ended claim", len(remainingEvents(t, third)), 0)
	// From here on it hears nothing, whatever happens in the workspace.
	free := p.session(presentNothing)
	free.tools()
	control, _ := free.listen()
	writeFake(t, p.dir+"/proj/newer.usher", "good tools=x")
	writeFake(t, p.dir+"/other/newer.usher", "good tools=x")
	hear(t, control, changedTools)
	checkEnded(t, c)
	last, _ := c.listen()
	free.call("a_x", "")
	c.end() // which ends the stream
	check(t, "messages on the last stream", len(remainingEvents(t, last)), 0)
	checkSees(t, "after DELETE", c, presentNothing, "404")
	checkSees(t, "after DELETE, with a code", c, inHeader(p.code("")), "404")
}

// checkEnded checks what a session whose claim has ended gets.
func checkEnded(t *testing.T, c *testClient) {
	t.Helper()
	again := c.post(initialize)
	check(t, "the id of a session that it begins", again.Header.Get(sessionHeader), "")
	checkContains(t, "a session that it begins", again.failure(),
		"claim of this session has ended")
	for _, method := range []string{"tools/list", "prompts/list", "resources/list",
		"resources/templates/list"} {
		checkContains(t, method, c.ask(method, "").Body, ":[]}")
	}
	for method, params := range map[string]string{
		"tools/call":     `{"name":"a_x"}`,
		"prompts/get":    `{"name":"a_x"}`,
		"resources/read": `{"uri":"a://x"}`,
		"completion/complete": `{"ref":{"type":"ref/prompt","name":"a_x"},"argument":{"name":"n",` +
			`"value":""}}`,
	} {
		a := c.ask(method, params)
		check(t, "status of "+method, a.Status, 200)
		checkContains(t, method, a.failure(), "claim of this session has ended")
	}
	check(t, "ping", c.ask("ping", "").failure(), "")
}

// A principal's sessions are notified of at most maxWantedOf resources.
func TestSubscriptionsAreBounded(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, b *bubble) {
		b.m.Lists = map[string][]json.RawMessage{
			"resourceTemplates": {json.RawMessage(`{"uriTemplate":"m://{x}"}`)},
		}
		one, two, other := b.open(protocols[0]), b.open(protocols[0]), b.open(protocols[0])
		other.Header.Set(claimHeader, newCode(t, b.base, "/w"))
		ask := func(c *testClient, method string, n int) string {
			return c.ask("resources/"+method, fmt.Sprintf(`{"uri":"m://%d"}`, n)).failure()
		}
		all := ""
		for n := range maxWantedOf {
			check(t, "a subscription", ask(one, "subscribe", n), "")
			all += fmt.Sprintf(`"m://%d",`, n)
		}
		checkContains(t, "one more of another session", ask(two, "subscribe", 0),
			"too many subscriptions")
		params := `{"notifications":{"resourceSubscriptions":["m://1"]}}`
		checkContains(t, "one more, without one",
			b.modern(listenMethod, params).failure(), "too many subscriptions")
		asOther := b.modernPOST("1", listenMethod,
			`{"notifications":{"resourceSubscriptions":[`+all+`"m://x"]}}`)
		asOther.Header.Set(claimHeader, other.Header.Get(claimHeader))
		checkContains(t, "another principal's, all at once", b.do(asOther).failure(),
			"too many subscriptions")
		check(t, "another principal's", ask(other, "subscribe", 0), "")
		ask(one, "unsubscribe", 1)
		check(t, "one after an end", ask(two, "subscribe", 0), "")
		one.end()
		check(t, "one after a session's end", ask(two, "subscribe", 1), "")
		check(t, "what is counted", b.server.gate.sessions.wanted.count(everyone), 2)
		x := b.begin(b.modernPOST("1", listenMethod, params))
		x.got()
		check(t, "with a listener", b.server.gate.sessions.wanted.count(everyone), 3)
		check(t, "streams", b.server.streams.count(everyone), 1)
		x.hangUp()
		<-x.done
		synctest.Wait()
		check(t, "after the listener", b.server.gate.sessions.wanted.count(everyone), 2)
		check(t, "streams after it", b.server.streams.count(everyone), 0)
	})
}

// A listener hears of the changes it asked for, under its id, until the daemon stops.
func TestListenersHearOfChanges(t *testing.T) {
	long(t)
	d := startFakes(t, "a: good tools=x")
	c := newStateless(t, d.URL)
	const bothLists = `"toolsListChanged":true,"promptsListChanged":true`
	both, _ := c.modernListen(`7`, `{`+bothLists+`,"resources":true,"nope":true}`, `{`+
		bothLists+`}`)
	const promptsAlone = `{"promptsListChanged":true}`
	prompts, _ := c.modernListen(`"7"`,
		`{"promptsListChanged":true,"toolsListChanged":false}`, promptsAlone)
	hearAll := func(step, id string, events <-chan event, want ...string) {
		t.Helper()
		var got []string
		for range want {
			e := wantEvent(t, events, "list_changed", `"`+metaSubscription+`":`+id)
			got = append(got, strings.Split(stringField(e.msg(), "method"), "/")[1])
		}
		slices.Sort(got)
		check(t, step+": lists that "+id+" hears of", got, want)
	}
	writeFake(t, d.Dir+"/b.usher", "good tools=y")
	hearAll("a module is added", `7`, both, "tools")
	writeFake(t, d.Dir+"/b.usher", "good tools=y,z")
	hearAll("it is edited", `7`, both, "tools")
	writeFake(t, d.Dir+"/b.usher", "good tools=y,z res=r")
	hearAll("it gets a prompt", `7`, both, "prompts")
	hearAll("it gets a prompt", `"7"`, prompts, "prompts")
	os.Remove(d.Dir + "/b.usher")
	hearAll("it is removed", `7`, both, "prompts", "tools")
	hearAll("it is removed", `"7"`, prompts, "prompts")
	d.cancel()
	for id, events := range map[string]<-chan event{`7`: both, `"7"`: prompts} {
		last := remainingEvents(t, events)
		if len(last) != 1 {
			t.Errorf("%s at the daemon's stop: %d messages, want one: %v", id, len(last), last)
			continue
		}
		result := field(last[0].msg(), "result")
		check(t, "id", string(field(last[0].msg(), "id")), id)
		check(t, "resultType", stringField(result, "resultType"), resultComplete)
		check(t, "subscription", string(field(field(result, "_meta"), metaSubscription)), id)
	}
}

// A listener hears of what is in its scope, until its claim ends.
func TestListenersStayInTheirScope(t *testing.T) {
	long(t)
	p := startProjects(t)
	writeShared(t, p.dir+"/proj", "r", "good tools=touch res=r")
	writeShared(t, p.dir+"/other", "o", "good tools=touch res=o")
	c := newStateless(t, p.URL)
	await(t, "both modules", func() bool {
		return len(strings.Fields(c.sees(presentNothing))) == 7
	})
	code := p.code("/proj")
	scoped := inHeader(code)
	const tools = `{"toolsListChanged":true}`
	lists, _ := c.modernListen(`1`, tools, tools, scoped)
	wanted := `{"resourceSubscriptions":["r://one","o://one","r://many/3","x://y"]}`
	updates, _ := c.modernListen(`2`, wanted,
		`{"resourceSubscriptions":["r://one","r://many/3"]}`, scoped)
	const all = `{"toolsListChanged":true,"resourceSubscriptions":["o://one"]}`
	free, _ := c.modernListen(`3`, all, all)

	touch := func(tool, uri string) string {
		return c.modern("tools/call", `{"name":"`+tool+`","arguments":{"uri":"`+uri+`"}}`).Body
	}
	hearUpdate := func(id string, events <-chan event, tool, uri string) {
		t.Helper()
		await(t, uri+" to be subscribed to", func() bool {
			return strings.Contains(touch(tool, uri), "told")
		})
		wantEvent(t, events, `"method":"notifications/resources/updated"`, `"uri":"`+uri+`"`,
			`"`+metaSubscription+`":`+id)
	}
	hearUpdate("3", free, "o_touch", "o://one")
	hearUpdate("2", updates, "r_touch", "r://one")
	hearUpdate("2", updates, "r_touch", "r://many/3")

	p.revoke(code)
	touch("r_touch", "r://one") // of which usher is still notified
	await(t, "the end of the subscription", func() bool {
		return strings.Contains(touch("r_touch", "r://one"), "nobody")
	})
	writeFake(t, p.dir+"/proj/new.usher", "good tools=x")
	for !strings.Contains(wantEvent(t, free).data, changedTools) { // after the updates of o
	}
	listen := c.modern("subscriptions/listen", `{"notifications":`+tools+`}`, scoped)
	check(t, "status of a listener after the claim's end", listen.Status, 400)
	check(t, "messages after the claim's end", len(remainingEvents(t, lists)), 1) // the stream's result
	remainingEvents(t, updates)                                                   // that stream ends too
}

// A session hears of the resources it subscribed to, also after a crash of the module,
// until its claim ends.
func TestSubscriptionsOutliveCrashes(t *testing.T) {
	long(t)
	p := startProjects(t)
	writeShared(t, p.dir+"/proj", "r", "good tools=touch,crash res=r")
	writeShared(t, p.dir+"/other", "o", "good tools=touch res=o")
	free := connect(t, p.URL)
	await(t, "both modules", func() bool { return len(free.tools()) == 8 })
	touch := func(uri string) string { return free.call("r_touch", `{"uri":"`+uri+`"}`).Body }
	code := p.code("/proj")
	c := askOverPOST(t, p.URL, "2025-11-25", askAllCaps, code)
	var reading sync.WaitGroup
	listen := func() {
		events, hangUp := c.http.listen()
		c.hangUp = hangUp
		reading.Go(func() { c.takeAll(events) })
	}
	ask := func(method, uri string) string {
		t.Helper()
		return string(c.get(c.send(t.Context(), c.nextID(), "resources/"+method,
			`{"uri":"`+uri+`"}`)))
	}
	hearUpdate := func(uri string) {
		t.Helper()
		await(t, "a subscription", func() bool { return strings.Contains(touch(uri), "told") })
		c.hears("notifications/resources/updated", `"uri":"`+uri+`"`)
	}
	awaitNobody := func(uri string) {
		t.Helper()
		await(t, "the end of a subscription", func() bool {
			return strings.Contains(touch(uri), "nobody")
		})
	}
	listen()
	c.get(c.send(t.Context(), c.nextID(), "tools/list", ""))
	writeFake(t, p.dir+"/other/new.usher", "good tools=x") // of which it must not hear
	await(t, "the new module", func() bool { return len(free.tools()) == 9 })
	checkContains(t, "out of scope", ask("subscribe", "o://one"), "unknown resource")
	for n := range 5 {
		checkContains(t, "subscribing", ask("subscribe", fmt.Sprint("r://many/", n+1)),
			`"result":{}`)
	}
	hearUpdate("r://many/1")
	ask("unsubscribe", "r://many/4")
	awaitNobody("r://many/4")
	free.call("r_crash", "")
	hearUpdate("r://many/2")
	c.hangUp()
	awaitNobody("r://many/3")
	listen()
	hearUpdate("r://many/3")
	p.revoke(code)
	c.hears(changedTools)
	touch("r://many/5") // of which usher is still notified
	awaitNobody("r://many/5")
	checkContains(t, "after the claim's end", ask("subscribe", "r://many/5"), "has ended")
	c.http.end()
	reading.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	changes := 0
	for _, msg := range c.heard {
		checkOmits(t, "what it heard", string(msg), "r://many/4", "r://many/5")
		changes += strings.Count(string(msg), changedTools)
	}
	check(t, "changes of its list that it heard of", changes, 1)
}
