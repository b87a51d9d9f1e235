// Suspended calls: the states under which clients without sessions continue them, how such calls end, and limits of
// asking.

package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// askState returns the state of an answer, which must ask for n things.
func askState(t *testing.T, a answer, n int) string {
	t.Helper()
	requests := members(field(a.result(), "inputRequests"))
	state := stringField(a.result(), "requestState")
	if a.Status != 200 || stringField(a.result(), "resultType") != resultInput || len(requests) != n || state == "" {
		t.Fatalf("want %d questions: %d %s", n, a.Status, a.Body)
	}
	return state
}

// withState returns the members of a request that continues a call.
func withState(state, responses string) object {
	more := object{{"requestState", quote(state)}}
	if responses != "" {
		more = append(more, member{"inputResponses", json.RawMessage(responses)})
	}
	return more
}

// goOn returns the params of a request that continues a call.
func goOn(params, state, responses string) string {
	list := members(json.RawMessage(params))
	return string(append(list, withState(state, responses)...).encode())
}

// wantStale checks that an answer is the error for a state that is not valid.
func wantStale(t *testing.T, what string, a answer) {
	t.Helper()
	e := field(a.last(), "error")
	check(t, what+": status", a.Status, http.StatusBadRequest)
	check(t, what+": code", string(field(e, "code")), "-32602")
	checkContains(t, what, stringField(e, "message"), "requestState")
}

// sayYes answers the first question of a call.
const sayYes = `{"ask-1":{"action":"accept"}}`

// TestStateIsBound checks that a state is valid only unchanged, for its principal, its client and its params.
func TestStateIsBound(t *testing.T) {
	long(t)
	dir, base := t.TempDir(), t.TempDir()
	writeFake(t, dir+"/proj/a.usher", "fixed tools=ask,again")
	d := daemonOptions{base: base}.startReady(t, dir)
	proj, whole := newClaimFor(t, base, dir+"/proj").Code.Reveal(), newClaimFor(t, base, dir).Code.Reveal()
	c := askModern(t, d.URL, askAllCaps, proj)
	ask := askForms("bound")
	state := askState(t, c.round("a_ask", ask), 1)
	for name, bad := range map[string]string{
		"appended":         state + "A",
		"cut short":        state[:len(state)-1],
		"empty":            "",
		"a newline at end": state + "\n",
	} {
		wantStale(t, name, c.round("a_ask", ask, withState(bad, sayYes)...))
	}
	for _, raw := range []string{`7`, `["` + state + `"]`} {
		more := object{{"requestState", json.RawMessage(raw)}, {"inputResponses", json.RawMessage(sayYes)}}
		wantStale(t, raw, c.round("a_ask", ask, more...))
	}
	for i := range state {
		changed := []byte(state)
		changed[i] = 'A'
		if state[i] == 'A' {
			changed[i] = 'B'
		}
		wantStale(t, fmt.Sprint("byte ", i), c.round("a_ask", ask, withState(string(changed), sayYes)...))
	}
	yes := withState(state, sayYes)
	wantStale(t, "another claim", askModern(t, d.URL, askAllCaps, whole).round("a_ask", ask, yes...))
	wantStale(t, "no claim", askModern(t, d.URL, askAllCaps, "").round("a_ask", ask, yes...))
	lessCaps := askModern(t, d.URL, `{"elicitation":{},"roots":{}}`, proj)
	wantStale(t, "other capabilities", lessCaps.round("a_ask", ask, yes...))
	wantStale(t, "other arguments", c.round("a_ask", askForms("stolen"), yes...))
	wantStale(t, "another tool", c.round("a_again", ask, yes...))

	checkGot(t, "after all that", c.round("a_ask", ask, yes...).last(), "accept")
	wantStale(t, "used", c.round("a_ask", ask, yes...))
	checkOmits(t, "the log", d.Log.String(), "stolen")
	check(t, "calls of the module", strings.Count(d.Log.String(), "fake: asked bound "), 1)
}

// TestRoundsOfACall answers a call's questions in parts, and by several requests at once.
func TestRoundsOfACall(t *testing.T) {
	t.Parallel()
	d := startFakes(t, "a: fixed tools=ask")
	c := askModern(t, d.URL, askAllCaps, "")
	ask := fakeAsk{Mark: "rounds", Asks: []fakeWish{askFor("form", "x"), askFor("roots", "x")}}
	const formAnswer, rootsAnswer = `{"action":"accept","content":{"n":1}}`, `{"roots":[]}`

	var state string
	var requests json.RawMessage
	a := c.round("a_ask", ask)
	await(t, "both questions", func() bool {
		previous := state
		state, requests = stringField(a.result(), "requestState"), field(a.result(), "inputRequests")
		if list := members(requests); len(list) == 2 {
			return true
		}
		a = c.round("a_ask", ask, withState(state, "")...)
		if previous != "" {
			wantStale(t, "the state before", c.round("a_ask", ask, withState(previous, "")...))
		}
		return false
	})
	form, roots := "ask-1", "ask-2" // in either order
	if stringField(field(requests, form), "method") == "roots/list" {
		form, roots = roots, form
	}
	for _, responses := range []string{`[]`, `null`, `"x"`, `{"FORM":3}`, `{"FORM":null}`, `{"ROOTS":[]}`} {
		responses = strings.NewReplacer("FORM", form, "ROOTS", roots).Replace(responses)
		state = askState(t, c.round("a_ask", ask, withState(state, responses)...), 2)
	}
	part := `{"` + roots + `":` + rootsAnswer + `,"ask-9":{}}`
	second := askState(t, c.round("a_ask", ask, withState(state, part)...), 1)
	wantStale(t, "the state of the round before", c.round("a_ask", ask, withState(state, part)...))

	// The same arguments, written differently, by several requests at once: one of these requests continues the call.
	spaced := json.RawMessage(` { "asks" : ` + string(marshal(ask.Asks)) + ` , "mark" : "rounds" } `)
	rest := withState(second, `{"`+form+`":`+formAnswer+`}`)
	answers := make(chan answer, 8)
	for range cap(answers) {
		go func() { answers <- c.round("a_ask", spaced, rest...) }()
	}
	finished := 0
	for range cap(answers) {
		a := <-answers
		if a.Status != http.StatusOK {
			wantStale(t, "at the same time", a)
			continue
		}
		finished++
		checkGot(t, "the end", a.last(), formAnswer, rootsAnswer)
	}
	check(t, "requests that went on", finished, 1)
	wantStale(t, "after the end", c.round("a_ask", ask, rest...))
	check(t, "calls of the module", strings.Count(d.Log.String(), "fake: asked rounds "), 1)
}

// TestAskAcrossARestart checks that a restart of the daemon ends its suspended calls, and that an answer to a question
// from before is no answer to a later one.
func TestAskAcrossARestart(t *testing.T) {
	long(t)
	dir := t.TempDir()
	writeFake(t, dir+"/a.usher", "fixed tools=ask")
	options := daemonOptions{base: t.TempDir(), ownProcess: true}
	d := options.startReady(t, dir)
	state := askState(t, askModern(t, d.URL, askAllCaps, "").round("a_ask", askForms("suspended")), 1)
	pid := awaitStep(t, d, "asked", "suspended")
	c := askOverPOST(t, d.URL, "2025-11-25", askAllCaps, "")
	c.answer = askSilent
	c.startCall("a_ask", askForms("before"))
	before := field(<-c.asked, "id")
	d.stop(t)
	check(t, "the suspended call's process is alive", processAlive(pid), false)

	d = options.startReady(t, dir)
	modern := askModern(t, d.URL, askAllCaps, "")
	wantStale(t, "the state", modern.round("a_ask", askForms("suspended"), withState(state, sayYes)...))
	checkOmits(t, "the log", d.Log.String(), "fake: asked")
	c.http.URL = d.URL
	_, answer := c.startCall("a_ask", askForms("after"))
	after := field(<-c.asked, "id")
	c.reply(before, "to the earlier")
	c.reply(after, "to the later")
	checkGot(t, "the later call", c.get(answer), "to the later")
}

// withForms is the _meta of a client without a session that can be asked for forms.
const withForms = `"_meta":{"io.modelcontextprotocol/clientCapabilities":{"elicitation":{}}}`

// TestAskTimeout has a client listen and never answer. The module decides what becomes of the call.
func TestAskTimeout(t *testing.T) {
	t.Parallel()
	const late = "the client did not answer within 10m0s"
	for _, tt := range []struct {
		name, tool string
		modern     bool // the module
		answer     string
	}{
		{name: "it copes", tool: "m_ask",
			answer: `"content":[{"type":"text","text":"{\"code\":-32603,\"refused\":\"` + late + `\"}"}]`},
		{name: "it does not", tool: "m_need", answer: `"error":{"code":-32050,"message":"without it: ` + late + `"}`},
		{name: "it has no sessions", tool: "m_ask", modern: true,
			answer: `"error":{"code":-32603,"message":"` + late + `"}`},
	} {
		runInBubble(t, tt.name, func(t *testing.T, b *bubble) {
			b.native, b.m.Stateless = tt.modern, tt.modern
			b.m.pool.timeout = askTimeout / 2 // it is not the module that is slow
			c := b.open("2025-11-25")
			x := b.begin(c.request(http.MethodPost, c.message("tools/call", `{"name":"`+tt.tool+`"}`)))
			pass(askTimeout - time.Nanosecond)
			check(t, "before: the module hears", b.hears(), "tools/call")
			_, text := x.got()
			checkContains(t, "before: the client", text, `"method":"elicitation/create"`)
			checkOmits(t, "before: the client", text, "notifications/cancelled")

			pass(time.Nanosecond)
			_, text = x.got()
			_, after, _ := strings.Cut(text, `"method":"notifications/cancelled","params":{"requestId":"usher-`)
			checkContains(t, "after: the client", after, tt.answer)
			want := `{"code":-32603,"refused":"` + late + `"}`
			if tt.modern {
				want = ""
			}
			check(t, "after: the module hears", b.hears(), want)
			<-x.done
		})
	}
	runInBubble(t, "a client without a session comes back without an answer", func(t *testing.T, b *bubble) {
		const params = `{"name":"m_ask",` + withForms + `}`
		state := askState(t, b.modern("tools/call", params), 1)
		for range 2 {
			pass(suspendTimeout - time.Second)
			state = askState(t, b.modern("tools/call", goOn(params, state, "")), 1)
		}
		b.hears()
		pass(2 * time.Second)
		check(t, "the module hears", b.hears(), `{"code":-32603,"refused":"`+late+`"}`)
		wantStale(t, "afterwards", b.modern("tools/call", goOn(params, state, "")))
		check(t, "suspended calls", b.suspended(), 0)
	})
}

// TestSuspendedCallsEnd disconnects clients at different times: the module is notified, and the call is forgotten.
func TestSuspendedCallsEnd(t *testing.T) {
	long(t)
	params := func(tool string) string {
		return `{"name":"m_` + tool + `","arguments":{"seconds":1000},` + withForms + `}`
	}
	resume := func(t *testing.T, b *bubble) (x *exchange, state string) {
		state = askState(t, b.modern("tools/call", params("stay")), 1)
		return b.begin(b.modernPOST("2", "tools/call", goOn(params("stay"), state, sayYes))), state
	}
	for _, tt := range []struct {
		name  string
		leave func(t *testing.T, b *bubble) (tool, state string)
		hears string // what the module is sent, sorted
	}{
		{"it was not asked anything", func(t *testing.T, b *bubble) (string, string) {
			x := b.begin(b.modernPOST("1", "tools/call", params("wait")))
			x.got()
			x.hangUp()
			return "wait", ""
		}, "notifications/cancelled\ntools/call"},
		{"it never comes back", func(t *testing.T, b *bubble) (string, string) {
			state := askState(t, b.modern("tools/call", params("ask")), 1)
			pass(suspendTimeout - time.Nanosecond)
			check(t, "suspended calls before its time", b.suspended(), 1)
			pass(time.Nanosecond)
			return "ask", state
		}, "notifications/cancelled\ntools/call\n" +
			`{"code":-32603,"refused":"the call this belongs to has ended"}`},
		{"it comes back, and goes away before the answer", func(t *testing.T, b *bubble) (string, string) {
			x, state := resume(t, b)
			x.got()
			x.hangUp()
			return "stay", state
		}, "notifications/cancelled\ntools/call\n" + `{"action":"accept"}`},
		{"it comes back, and goes away after a while", func(t *testing.T, b *bubble) (string, string) {
			x, state := resume(t, b)
			pass(2 * suspendTimeout) // it is not suspended any more
			status, _ := x.got()
			check(t, "status", status, 200)
			check(t, "suspended calls before it goes away", b.suspended(), 0)
			x.hangUp()
			return "stay", state
		}, "notifications/cancelled\ntools/call\n" + `{"action":"accept"}`},
	} {
		runInBubble(t, tt.name, func(t *testing.T, b *bubble) {
			tool, state := tt.leave(t, b)
			lines := strings.Split(b.hears(), "\n")
			slices.Sort(lines)
			check(t, "the module hears", strings.Join(lines, "\n"), tt.hears)
			check(t, "suspended calls", b.suspended(), 0)
			if state != "" {
				wantStale(t, "afterwards", b.modern("tools/call", goOn(params(tool), state, sayYes)))
			}
		})
	}
}

// TestSuspendedUnderAClaim ends the claim of a suspended call, which then ends without another
// request, and can't be continued.
func TestSuspendedUnderAClaim(t *testing.T) {
	t.Parallel()
	const params = `{"name":"m_ask",` + withForms + `}`
	for _, revoke := range []bool{true, false} {
		runInBubble(t, fmt.Sprint("it is revoked: ", revoke), func(t *testing.T, b *bubble) {
			claims := openStore(t, b.base)
			claim, err := claims.Create(t.Context(), "/w", "", suspendTimeout/2)
			must(t, err)
			own := inHeader(claim.Code.Reveal())
			back := goOn(params, askState(t, b.modern("tools/call", params, own), 1), sayYes)
			if revoke {
				_, err := claims.Revoke(t.Context(), claim.Code)
				must(t, err)
			} else {
				pass(time.Until(claim.ExpiresAt))
			}
			pass(watchInterval)
			checkContains(t, "the module hears", b.hears(), "tools/call", "notifications/cancelled", `"refused"`)
			check(t, "suspended calls", b.suspended(), 0)
			a := b.modern("tools/call", back, own)
			checkContains(t, "its owner", a.failure(), "has ended")
			checkOmits(t, "its owner", a.Body, `"result"`)
			wantStale(t, "without a claim", b.modern("tools/call", back))
		})
	}
}

// TestUnreadableClaimsEndNothing makes the claims unreadable for a moment: a suspended call and a
// stream of the claim continue afterwards.
func TestUnreadableClaimsEndNothing(t *testing.T) {
	t.Parallel()
	const params = `{"name":"m_ask",` + withForms + `}`
	inBubble(t, func(t *testing.T, b *bubble) {
		code := newClaimFor(t, b.base, "/w").Code.Reveal()
		back := goOn(params, askState(t, b.modern("tools/call", params, inHeader(code)), 1), sayYes)
		c := b.open(protocols[0])
		c.Header.Set(claimHeader, code)
		c.ask("ping", "")
		stream := b.begin(c.getRequest())
		status, _ := stream.got()
		check(t, "status of the stream", status, http.StatusOK)
		path := b.base + "/.data/claims.json"
		claims := readFile(t, path)
		write(t, path, "[")
		pass(5 * watchInterval)
		wantStatus(t, "meanwhile", b.modern("tools/call", back, inHeader(code)), http.StatusServiceUnavailable)
		write(t, path, string(claims))
		pass(watchInterval)
		checkContains(t, "the call afterwards", b.modern("tools/call", back, inHeader(code)).Body, "accept")
		select {
		case <-stream.done:
			t.Error("the stream has ended")
		default:
		}
		stream.hangUp()
		<-stream.done
	})
}

func TestAskBounds(t *testing.T) {
	long(t)
	d := startFakes(t,
		"a: fixed names tools=ask",
		"b: fixed names tools=ask",
		"c: fixed names tools=ask",
	)
	c := askModern(t, d.URL, askAllCaps, "")
	ask := askForms("bounds")
	suspend := func(tool string, n int) (states []string) {
		var all sync.WaitGroup
		states = make([]string, n)
		for i := range states {
			all.Go(func() { states[i] = stringField(c.round(tool, ask).result(), "requestState") })
		}
		all.Wait()
		return states
	}
	states := suspend("a_ask", maxRunningOf)
	suspend("b_ask", maxSuspended-maxRunningOf)
	tooMany := c.round("c_ask", ask)
	checkContains(t, "one call too many", tooMany.failure(), "too many calls")
	other := askModern(t, d.URL, askAllCaps, newClaimFor(t, d.Base, d.Dir).Code.Reveal())
	askState(t, other.round("a_ask", ask), 1) // another principal

	resume := func(state string) {
		a := c.round("a_ask", ask, withState(state, `{"ask-1":{"action":"decline"}}`)...)
		check(t, "a suspended call: failure", a.failure(), "")
		checkContains(t, "a suspended call", resultText(a.result()), "decline")
	}
	resume(states[0])
	askState(t, c.round("c_ask", ask), 1) // which has made room
	var all sync.WaitGroup
	for _, state := range states[1:] {
		all.Go(func() { resume(state) })
	}
	all.Wait()
}

// TestAskFlood has one call ask more than it may at once: some questions are refused, and each gets an answer.
func TestAskFlood(t *testing.T) {
	long(t)
	d := startFakes(t, "a: fixed names tools=ask")
	var flood fakeAsk
	for range 5 * maxAsks {
		flood.Asks = append(flood.Asks, askFor("form", "x"))
	}
	flood.Copes = true
	c := askOverPOST(t, d.URL, "2025-11-25", askAllCaps, "")
	c.answer = askAnswer("flood")
	_, got, text := askGot(c.call("a_ask", flood))
	check(t, "answers", len(got), len(flood.Asks))
	checkContains(t, "the answers", text, "flood")
}
