// Tests of streams: notifications and subscriptions.

package main

import (
	"context"
	"fmt"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"usher/internal/mcptest"
)

// A session's streams end with its claim, after a last list_changed. A stream that is
// opened later hears nothing.
func TestStreamsEndWithClaim(t *testing.T) {
	long(t)
	p := startProjects(t)
	claim := newClaimFor(t, p.Base, p.dir+"/proj")
	code := claim.Code.Reveal()
	c := p.session()
	c.AwaitTools(allTools...)
	first, _ := c.Listen()
	second, _ := c.Listen()
	checkSees(t, "with a claim", c, seesProj, inHeader(code))
	hear(t, second, changedTools)
	for n, events := range []<-chan event{first, second} { // they end, as the session has a claim now
		check(t, fmt.Sprint("messages on stream ", n+1), len(remainingEvents(t, events)), 0)
	}
	c.AwaitTools(projTools...)
	third, _ := c.Listen()
	writeFake(t, p.dir+"/proj/new.usher", "good tools=x")
	hear(t, third, changedTools)
	c.AwaitTools("a_pid", "a_sleep", "a_x", "new_x")
	p.putClaims("[" + p.claimRecord(code, "/proj", claim.CreatedAt, time.Second) + "]")
	hear(t, third, changedTools)
	check(t, "messages on the stream of the ended claim", len(remainingEvents(t, third)), 0)
	// From here on it hears nothing, whatever happens in the workspace.
	free := p.session()
	free.Tools()
	control, _ := free.Listen()
	writeFakes(t, p.dir, "proj/newer: good tools=x", "other/newer: good tools=x")
	hear(t, control, changedTools)
	checkEnded(t, c)
	last, _ := c.Listen()
	free.Call("a_x", "")
	c.End() // which ends the stream
	check(t, "messages on the last stream", len(remainingEvents(t, last)), 0)
	checkSees(t, "after DELETE", c, "404")
	checkSees(t, "after DELETE, with a code", c, "404", inHeader(p.code("")))
}

// checkEnded checks what a session whose claim has ended gets.
func checkEnded(t *testing.T, c *testClient) {
	t.Helper()
	again := c.Post(initialize)
	check(t, "the id of a session that it begins", again.Header.Get(sessionHeader), "")
	checkContains(t, "a session that it begins", again.Failure(),
		"claim of this session has ended")
	for _, method := range lists {
		checkContains(t, method, c.Ask(method, "").Body, ":[]}")
	}
	for method, params := range map[string]string{
		"tools/call":     `{"name":"a_x"}`,
		"prompts/get":    `{"name":"a_x"}`,
		"resources/read": `{"uri":"a://x"}`,
		"completion/complete": `{"ref":{"type":"ref/prompt","name":"a_x"},"argument":{"name":"n",` +
			`"value":""}}`,
	} {
		a := c.Ask(method, params)
		check(t, "status of "+method, a.Status, 200)
		checkContains(t, method, a.Failure(), "claim of this session has ended")
	}
	check(t, "ping", c.Ask("ping", "").Failure(), "")
}

// modernListen opens a subscriptions/listen, whose first message must be that it is honoured as wanted.
func modernListen(
	c *testClient, id, filter, honoured string, present ...presenter,
) (<-chan event, func()) {
	c.T.Helper()
	req := c.ModernPOST(id, "subscriptions/listen", `{"notifications":`+filter+`}`)
	presentAll(present...)(req)
	_, events, hangUp := mcptest.OpenStream(c.T, req)
	wantEvent(c.T, events, `"method":"notifications/subscriptions/acknowledged"`,
		`"notifications":`+honoured, `"`+metaSubscription+`":`+id)
	return events, hangUp
}

// A listener hears of the changes it asked for, under its id, until the daemon stops.
func TestListenersHearOfChanges(t *testing.T) {
	long(t)
	d := startFakes(t, "a: good tools=x")
	c := newClient(t, d.URL)
	const bothLists = `"toolsListChanged":true,"promptsListChanged":true`
	both, _ := modernListen(c, `7`, `{`+bothLists+`,"resources":true,"nope":true}`, `{`+
		bothLists+`}`)
	const promptsAlone = `{"promptsListChanged":true}`
	prompts, _ := modernListen(c, `"7"`,
		`{"promptsListChanged":true,"toolsListChanged":false}`, promptsAlone)
	hearAll := func(step, id string, events <-chan event, want ...string) {
		t.Helper()
		var got []string
		for range want {
			e := wantEvent(t, events, "list_changed", `"`+metaSubscription+`":`+id)
			got = append(got, strings.Split(stringField(e.Msg(), "method"), "/")[1])
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
		result := field(last[0].Msg(), "result")
		check(t, "id", string(field(last[0].Msg(), "id")), id)
		check(t, "resultType", stringField(result, "resultType"), "complete")
		check(t, "subscription", string(field(result, "_meta", metaSubscription)), id)
	}
}

// A listener hears of what is in its scope, until its claim ends.
func TestListenersStayInTheirScope(t *testing.T) {
	long(t)
	p := startProjects(t)
	writeShared(t, p.dir+"/proj", "r", "good tools=touch res=r")
	writeShared(t, p.dir+"/other", "o", "good tools=touch res=o")
	c := newClient(t, p.URL)
	await(t, "both modules", func() bool {
		return len(strings.Fields(c.Modern("tools/list", "").ToolNames())) == 7
	})
	code := p.code("/proj")
	scoped := inHeader(code)
	const tools = `{"toolsListChanged":true}`
	lists, _ := modernListen(c, `1`, tools, tools, scoped)
	// Changes of resources are not reported to clients without sessions.
	const resources = `{"toolsListChanged":true,"resourceSubscriptions":["r://one"]}`
	free, _ := modernListen(c, `3`, resources, tools)

	p.revoke(code)
	listen := c.Modern("subscriptions/listen", `{"notifications":`+tools+`}`, scoped)
	check(t, "status of a listener after the claim's end", listen.Status, 400)
	writeFake(t, p.dir+"/proj/new.usher", "good tools=x")
	wantEvent(t, free, changedTools)
	check(t, "messages after the claim's end", len(remainingEvents(t, lists)), 1) // the stream's result
}

// A session hears of the changes of the resources that it has subscribed to, and no other session
// does. A module whose process serves all sessions can't be subscribed to.
func TestSubscriptionsBelongToSessions(t *testing.T) {
	long(t)
	p := startProjects(t)
	writeFakes(t, p.dir, "proj/r: good tools=touch res=r", "other/o: good tools=touch res=o")
	writeShared(t, p.dir+"/proj", "s", "good tools=x res=s")
	free := connect(t, p.URL)
	await(t, "the modules", func() bool { return len(free.Tools()) == 8 })
	code := p.code("/proj")
	c := p.session(inHeader(code))
	other := p.session(inHeader(code))
	events, _ := c.Listen()
	others, hangUp := other.Listen()
	ask := func(method, uri string) string {
		return c.Ask("resources/"+method, `{"uri":"`+uri+`"}`).Body
	}
	touch := func(uri string) string { return c.Call("r_touch", `{"uri":"`+uri+`"}`).Body }
	checkContains(t, "out of scope", ask("subscribe", "o://one"), "unknown resource")
	checkContains(t, "a shared process", ask("subscribe", "s://one"), "does not report resource changes")
	checkContains(t, "a subscription", ask("subscribe", "r://one"), `"result":{}`)
	checkContains(t, "one to a template", ask("subscribe", "r://many/1"), `"result":{}`)
	for _, uri := range []string{"r://one", "r://many/1"} {
		checkContains(t, "a change of "+uri, touch(uri), "told")
		wantEvent(t, events, `"method":"notifications/resources/updated"`, `"uri":"`+uri+`"`)
	}
	ask("unsubscribe", "r://one")
	checkContains(t, "a change after the end of the subscription", touch("r://one"), "nobody")
	inOther := other.Call("r_touch", `{"uri":"r://many/1"}`).Body
	checkContains(t, "another session's process", inOther, "nobody")
	hangUp()
	check(t, "what the other session heard of", len(remainingEvents(t, others)), 0)
	p.revoke(code)
	checkContains(t, "after the claim's end", ask("subscribe", "r://one"), "has ended")
}

// What a module says in a call reaches no stream that the session opened after it got another claim.
func TestMovedSessionHearsNoEarlierCall(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		c := b.open(protocols[0])
		req := c.Asking("tools/call", `{"name":"m_wait","arguments":{"seconds":60}}`)
		req.Header.Set("Accept", "application/json") // so that messages of the call need the stream
		call := b.begin(req)
		says := func(stream *exchange, word string) bool {
			stream.got()
			params := objectOf(`{"level":"error","data":"` + word + `"}`)
			b.process.handle(&Message{Method: "notifications/message", Params: params})
			_, text := stream.got()
			return strings.Contains(text, word)
		}
		before := b.begin(c.GetRequest())
		check(t, "the stream hears the call", says(before, "before"), true)
		c.Header.Set(claimHeader, newCode(t, b.base, "/w"))
		c.Ask("ping", "") // gives the session the claim
		after := b.begin(c.GetRequest())
		check(t, "a later stream hears it", says(after, "after"), false)
		<-call.done
		after.close()
	})
}

// The stream that moves a session to another claim hears of that claim's end, although an older
// stream has ended meanwhile.
func TestMovedStreamHearsTheEnd(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		changes := func(stream *exchange) int {
			_, text := stream.got()
			return strings.Count(text, changedTools)
		}
		c := b.openScoped(newCode(t, b.base, "/w"))
		c.Ask("tools/list", "")
		before := b.begin(c.GetRequest())
		before.got()
		code := newCode(t, b.base, "/w")
		c.Header.Set(claimHeader, code)
		after := b.begin(c.GetRequest())
		<-before.done
		already := changes(after)
		revoke(t, b.base, Code(code))
		<-after.done
		check(t, "messages about the end", changes(after)-already, 1)
	})
}

// stuckWriter is the answer to a client that reads nothing: writes end when stuck is closed.
type stuckWriter struct {
	*httptest.ResponseRecorder
	stuck chan struct{}
}

func (w stuckWriter) Write(b []byte) (int, error) {
	<-w.stuck
	return len(b), nil
}

// The handler of a stream does not return while the stream is being written: after that, the
// connection, and its buffer, may be those of another client.
func TestHandlerOutlivesItsWriter(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		ctx, cancel := context.WithCancel(t.Context())
		req := httptest.NewRequestWithContext(ctx, "GET", "/", nil)
		req.Header.Set("Accept", "text/event-stream")
		w := stuckWriter{httptest.NewRecorder(), make(chan struct{})}
		x := b.server.memory.serve(w, req)
		x.refuse = writeMCPError
		returned := make(chan struct{})
		go func() {
			defer close(returned)
			if err := b.server.serve(x); err != nil {
				t.Error(err)
			}
		}()
		synctest.Wait()
		cancel()
		select {
		case <-returned:
			t.Error("the handler has returned")
		case <-time.After(time.Minute):
		}
		close(w.stuck)
		<-returned
	})
}
