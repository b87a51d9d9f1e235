// Clients that go away, come back or end while they are asked, and modules that ask after the end of a call.

package main

import (
	"encoding/json"
	"net/http"
	"os"
	"runtime"
	"testing"
	"testing/synctest"
	"time"
)

// askedCall is a call whose client was asked and has not answered.
type askedCall struct {
	id     string
	answer <-chan json.RawMessage
	pid    int // of the module
}

// callAndBeAsked makes a call that asks the client. The client does not answer.
func callAndBeAsked(t *testing.T, d *testDaemon, c *askClient, mark string) askedCall {
	t.Helper()
	c.answer = askSilent
	id, answer := c.startCall("a_ask", askForms(mark))
	<-c.asked
	return askedCall{id, answer, awaitStep(t, d, "asked", mark)}
}

// TestAskEndsCleanly ends calls in each way while their clients are asked. It counts goroutines, so it runs alone.
func TestAskEndsCleanly(t *testing.T) {
	alone(t)
	before := runtime.NumGoroutine()
	d := startFakes(t, "a: fixed tools=ask")
	var pids []int
	awaitEnd := func(pid int) {
		await(t, "the end of the module's process", func() bool { return !processAlive(pid) })
	}
	// At the end of a subtest its clients close their connections: the daemon's end waits five
	// seconds for one that was opened and never used.
	post := func(t *testing.T) *askClient { return askOverPOST(t, d.URL, "2025-11-25", askAllCaps, "") }
	sse := func(t *testing.T) *askClient { return askOverSSE(t, d.URL, askAllCaps, "") }
	t.Run("the stream ends", func(t *testing.T) {
		c := sse(t)
		call := callAndBeAsked(t, d, c, "hangs-up")
		c.hangUp()
		awaitEnd(call.pid)
	})
	t.Run("the session ends", func(t *testing.T) {
		c := post(t)
		call := callAndBeAsked(t, d, c, "deleted")
		c.http.end()
		awaitEnd(call.pid)
		checkContains(t, "the call", string(c.get(call.answer)), `"error":`)
	})
	t.Run("the module crashes", func(t *testing.T) {
		c := post(t)
		call := callAndBeAsked(t, d, c, "crashes")
		p, _ := os.FindProcess(call.pid)
		p.Kill()
		checkContains(t, "the call", string(c.get(call.answer)), "crashed")
		c.answer = askAnswer("answered")
		checkGot(t, "the next call", c.call("a_ask", askForms("again")), "answered")
	})
	for name, connect := range map[string]func(*testing.T) *askClient{"2025-11-25": post, "HTTP+SSE": sse} {
		t.Run("the client cancels, "+name, func(t *testing.T) {
			c := connect(t)
			call := callAndBeAsked(t, d, c, "cancels-"+name)
			c.cancelCall(call.id)
			awaitStep(t, d, "cancelled", "cancels-"+name)
			c.hears("notifications/cancelled", "usher-")
			pids = append(pids, call.pid)
		})
	}
	http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	d.stop(t)
	for _, pid := range pids {
		awaitEnd(pid)
	}
	await(t, "all goroutines to end", func() bool { return runtime.NumGoroutine() <= before })
}

// TestAskWithoutAStream has a client that accepts no stream as an answer: it can be asked only if it listens.
func TestAskWithoutAStream(t *testing.T) {
	long(t)
	d := startFakes(t, "a: fixed tools=ask")
	c := askOverPOST(t, d.URL, "2025-03-26", askAllCaps, "")
	c.http.Header.Set("Accept", "application/json")
	c.answer = askAnswer("heard")
	checkContains(t, "without a stream", string(c.call("a_ask", askForms("one"))), "no stream open")
	c.listen()
	checkGot(t, "with one", c.call("a_ask", askForms("two")), "heard")
}

// TestAskLate has a module ask after its call was cancelled, when the client may still reach the module.
func TestAskLate(t *testing.T) {
	long(t)
	for _, way := range []string{"2025-11-25", "HTTP+SSE"} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			d := startFakes(t, "a: fixed tools=ask")
			c := askWays[way](t, d.URL, d.Dir, askAllCaps)
			c.answer = askAnswer("yes")
			if way != "HTTP+SSE" {
				c.listen()
			}
			ask := fakeAsk{Mark: "m", Late: true, Stays: true, Asks: []fakeWish{askFor("url", "x")}}
			id, _ := c.startCall("a_ask", ask)
			awaitStep(t, d, "answered", "m")
			c.cancelCall(id)
			checkContains(t, "the module got", awaitLate(t, d), `"action":"accept"`)
			c.hears("notifications/elicitation/complete", `"x"`)
		})
	}
}

// TestAskOutsideOfCallsAtTheEnd has a module ask the client of its last call after that client's session has lost its
// scope.
func TestAskOutsideOfCallsAtTheEnd(t *testing.T) {
	long(t)
	for name, end := range map[string]func(t *testing.T, b *bubble, c *testClient, own Code){
		"its claim is revoked": func(t *testing.T, b *bubble, _ *testClient, own Code) {
			revoke(t, b.base, own)
		},
		"it moves to another folder": func(t *testing.T, b *bubble, c *testClient, _ Code) {
			c.Header.Set(claimHeader, newClaimFor(t, b.base, "/v").Code.Reveal())
			c.tools()
		},
	} {
		runInBubble(t, name, func(t *testing.T, b *bubble) {
			own := newClaimFor(t, b.base, "/w").Code
			c := b.open("2025-11-25")
			c.Header.Set(claimHeader, own.Reveal())
			x := b.begin(c.getRequest())
			pass(time.Second) // in which its claim is written down
			c.call("m_wait", `{"seconds":0}`)
			b.asks("outside")
			x.got() // it has arrived
			params := `{"name":"m_wait","arguments":{"seconds":60},"_meta":{"progressToken":"t"}}`
			call := b.begin(c.request(http.MethodPost, c.message("tools/call", params)))
			call.got()
			call.hangUp()
			<-call.done
			synctest.Wait() // the server has seen it
			b.progress("progress before")
			x.got()
			b.asks("before")
			_, text := x.got()
			checkContains(t, "before the end", text, `"outside"`, `"before"`, "progress before")
			b.hears()

			end(t, b, c, own)
			pass(2 * streamInterval)
			b.progress("progress after")
			b.asks("after")
			checkContains(t, "after the end: the module", b.hears(), errUnheard.Message)
			pass(time.Minute) // the call ends
			b.hears()
			b.asks("after all")
			checkContains(t, "after the call: the module", b.hears(), errNoScope.Message)
			_, text = x.got()
			checkOmits(t, "the stream", text, "after")
			x.hangUp()
			<-x.done
		})
	}
}
