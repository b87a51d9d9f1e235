// Suspended calls: the states under which clients without sessions continue them, how such calls
// end, and limits of asking.

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// wantStale checks that an answer is the error for a state that is not valid.
func wantStale(t *testing.T, what string, a answer) {
	t.Helper()
	check(t, what+": status", a.Status, 400)
	check(t, what+": code", string(field(a.Last(), "error", "code")), "-32602")
	checkContains(t, what, a.Failure(), "requestState")
}

// sayYes answers the first question of a call.
const sayYes = `{"ask":{"action":"accept"}}`

// A state continues a call only unchanged and for its principal.
func TestStateIsBound(t *testing.T) {
	long(t)
	d := startFakes(t, "proj/a: fixed tools=ask")
	proj, whole := newCode(t, d.Base, d.Dir+"/proj"), newCode(t, d.Base, d.Dir)
	c := askModern(t, d.URL, askAllCaps, proj)
	ask := askForms("bound")
	state := askState(t, c.Round("a_ask", ask), 1)
	for name, bad := range map[string]string{
		"appended":         state + "A",
		"cut short":        state[:len(state)-1],
		"empty":            "",
		"a newline at end": state + "\n",
	} {
		wantStale(t, name, c.Round("a_ask", ask, bad, sayYes))
	}
	yes := []string{state, sayYes}
	wantStale(t, "another claim",
		askModern(t, d.URL, askAllCaps, whole).Round("a_ask", ask, yes...))
	wantStale(t, "no claim", askModern(t, d.URL, askAllCaps, "").Round("a_ask", ask, yes...))

	checkGot(t, "after all that", c.Round("a_ask", ask, yes...).Last(), "accept")
	wantStale(t, "used", c.Round("a_ask", ask, yes...))
	check(t, "calls of the module", d.logged("fake: asked bound "), 1)
}

// A state continues a call once. Of several requests with one state, one continues the call.
func TestOneRequestContinuesACall(t *testing.T) {
	t.Parallel()
	d := startFakes(t, "a: fixed tools=ask")
	c := askModern(t, d.URL, askAllCaps, "")
	ask := askForms("rounds")
	state := askState(t, c.Round("a_ask", ask), 1)
	for _, responses := range []string{`[]`, `null`, `"x"`, `{"ask":3}`,
		`{"ask":null}`, `{"ask-9":{}}`} {
		again := askState(t, c.Round("a_ask", ask, state, responses), 1)
		check(t, "the state after "+responses, again, state)
	}
	// The same arguments, written differently, by several requests at once.
	spaced := json.RawMessage(` { "asks" : ` + string(marshal(ask.Asks)) +
		` , "mark" : "rounds" } `)
	rest := []string{state, sayYes}
	answers := make(chan answer, 8)
	for range cap(answers) {
		go func() { answers <- c.Round("a_ask", spaced, rest...) }()
	}
	finished := 0
	for range cap(answers) {
		a := <-answers
		if a.Status != 200 {
			wantStale(t, "at the same time", a)
			continue
		}
		finished++
		checkGot(t, "the end", a.Last(), "accept")
	}
	check(t, "requests that went on", finished, 1)
	wantStale(t, "after the end", c.Round("a_ask", ask, rest...))
	check(t, "calls of the module", d.logged("fake: asked rounds "), 1)
}

// withForms is the _meta of a client without a session that can be asked for forms.
const withForms = `"_meta":{"io.modelcontextprotocol/clientCapabilities":{"elicitation":{}}}`

// A client has ten minutes to answer. The module decides what becomes of the call.
func TestAskTimesOut(t *testing.T) {
	t.Parallel()
	const late = "the client did not answer within 10m0s"
	for _, tt := range []struct {
		name, tool string
		modern     bool // the module
		answer     string
	}{
		{"it copes", "m_ask", false,
			`"content":[{"type":"text","text":"{\"code\":-32603,\"refused\":\"` + late + `\"}"}]`},
		{"it does not", "m_need", false, `"error":{"code":-32050,"message":"without it: ` + late + `"}`},
		{"it has no sessions", "m_ask", true, `"error":{"code":-32603,"message":"` + late + `"}`},
	} {
		runInBubble(t, tt.name, func(t *testing.T, b *bubble) {
			b.native, b.m.Stateless = tt.modern, tt.modern
			b.m.pool.timeout = askTimeout / 2 // it is not the module that is slow
			c := b.open("2025-11-25")
			x := b.begin(c.Asking("tools/call", `{"name":"`+tt.tool+`"}`))
			pass(askTimeout - time.Nanosecond)
			check(t, "before: the module hears", b.hears(), "tools/call")
			_, text := x.got()
			checkContains(t, "before: the client", text, `"method":"elicitation/create"`)
			checkOmits(t, "before: the client", text, "notifications/cancelled")

			pass(time.Nanosecond)
			_, text = x.got()
			_, after, _ := strings.Cut(text,
				`"method":"notifications/cancelled","params":{"requestId":"usher-`)
			checkContains(t, "after: the client", after, tt.answer)
			want := `{"code":-32603,"refused":"` + late + `"}`
			if tt.modern {
				want = ""
			}
			check(t, "after: the module hears", b.hears(), want)
			<-x.done
		})
	}
}

// suspended returns how many calls wait for input of clients without sessions.
func (b *bubble) suspended() (n int) {
	synctest.Wait()
	for range b.server.suspended.questions.Range {
		n++
	}
	return n
}

// When the client of a suspended call goes away, usher cancels the call at the module and
// forgets its state.
func TestSuspendedCallsEnd(t *testing.T) {
	long(t)
	params := func(tool string) string {
		return `{"name":"m_` + tool + `","arguments":{"seconds":1000},` + withForms + `}`
	}
	resume := func(t *testing.T, b *bubble) (x *exchange, state string) {
		state = askState(t, b.Modern("tools/call", params("stay")), 1)
		return b.begin(b.ModernPOST("2", "tools/call",
			goOn(params("stay"), state, sayYes))), state
	}
	for _, tt := range []struct {
		name  string
		leave func(t *testing.T, b *bubble) (tool, state string)
		hears string // what the module is sent, sorted
	}{
		{"it was not asked anything", func(t *testing.T, b *bubble) (string, string) {
			x := b.begin(b.ModernPOST("1", "tools/call", params("wait")))
			x.got()
			x.hangUp()
			return "wait", ""
		}, "notifications/cancelled\ntools/call"},
		{"it never comes back", func(t *testing.T, b *bubble) (string, string) {
			state := askState(t, b.Modern("tools/call", params("ask")), 1)
			pass(askTimeout - time.Nanosecond)
			check(t, "suspended calls before its time", b.suspended(), 1)
			pass(time.Nanosecond)
			return "ask", state
		}, "tools/call\n" +
			`{"code":-32603,"refused":"the client did not answer within 10m0s"}`},
		{"it comes back, and goes away before the answer",
			func(t *testing.T, b *bubble) (string, string) {
				x, state := resume(t, b)
				x.got()
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
				wantStale(t, "afterwards",
					b.Modern("tools/call", goOn(params(tool), state, sayYes)))
			}
		})
	}
}

// A suspended call ends with its claim, without another request, and can't be continued.
func TestSuspendedEndsWithClaim(t *testing.T) {
	t.Parallel()
	const params = `{"name":"m_stay",` + withForms + `}`
	for _, revoked := range []bool{true, false} {
		runInBubble(t, fmt.Sprint("it is revoked: ", revoked), func(t *testing.T, b *bubble) {
			claim, err := openStore(t, b.base).Create(t.Context(), "/w", "", askTimeout/2)
			must(t, err)
			own := inHeader(claim.Code.Reveal())
			back := goOn(params, askState(t, b.Modern("tools/call", params, own), 1), sayYes)
			if revoked {
				revoke(t, b.base, claim.Code)
			} else {
				pass(time.Until(claim.ExpiresAt))
			}
			pass(watchInterval)
			checkContains(t, "the module hears", b.hears(), "tools/call",
				"notifications/cancelled", `"refused"`)
			check(t, "suspended calls", b.suspended(), 0)
			a := b.Modern("tools/call", back, own)
			checkContains(t, "its owner", a.Failure(), "has ended")
			checkOmits(t, "its owner", a.Body, `"result"`)
			wantStale(t, "without a claim", b.Modern("tools/call", back))
		})
	}
}

// Unreadable claims end nothing: suspended calls and streams continue once the claims can
// be read. Meanwhile, an HTTP+SSE stream carries only comments and answers, whatever the
// module says outside of a call.
func TestUnreadableClaimsEndNothing(t *testing.T) {
	const params = `{"name":"m_ask",` + withForms + `}`
	inBubble(t, func(t *testing.T, b *bubble) {
		code := newCode(t, b.base, "/w")
		back := goOn(params,
			askState(t, b.Modern("tools/call", params, inHeader(code)), 1), sayYes)
		stream := b.begin(b.openScoped(code).GetRequest())
		status, _ := stream.got()
		check(t, "status of the stream", status, 200)
		old, x := b.openSSE(code)
		old.Post(old.Message("tools/call", `{"name":"m_wait"}`))
		says := func(when string) (heard bool) {
			x.got()
			b.hears()
			params := objectOf(`{"level":"error","data":"data ` + when + `","uri":"uri ` + when + `"}`)
			b.process.handle(&Message{Method: "notifications/message", Params: params})
			b.process.handle(&Message{Method: "notifications/resources/updated", Params: params})
			b.asks("ask " + when)
			_, text := x.got()
			n := strings.Count(text, "data "+when) + strings.Count(text, `"uri":"uri `+when)
			n += strings.Count(text, `"ask `+when)
			refused := strings.Contains(b.hears(), "lost its access")
			check(t, when+": messages", n > 0, !refused)
			check(t, when+": all of them", n == 0 || n == 5, true)
			return n > 0
		}
		check(t, "before: the HTTP+SSE session hears the module", says("before"), true)
		path := b.base + "/.data/claims.json"
		claims := readFile(t, path)
		write(t, path, "[")
		pass(5 * watchInterval)
		wantStatus(t, "meanwhile", b.Modern("tools/call", back, inHeader(code)), 503)
		check(t, "while unreadable: it hears the module", says("meanwhile"), false)
		write(t, path, claims)
		pass(watchInterval)
		check(t, "after: it hears the module", says("after"), true)
		checkContains(t, "the call afterwards",
			b.Modern("tools/call", back, inHeader(code)).Body, "accept")
		check(t, "the stream has ended", stream.ended(), false)
		for _, open := range []*exchange{stream, x} {
			open.close()
		}
	})
}

// While the claims can't be read, a waiting call is refused when its turn comes, and a stream ends
// when its claim would have expired.
func TestUnreadableClaimsRefuseWaitingCalls(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		c := b.openScoped(newCode(t, b.base, "/w"))
		for range maxRunningOf {
			b.begin(c.Asking("tools/call", `{"name":"m_wait","arguments":{"seconds":60}}`))
		}
		synctest.Wait()
		waiting := b.begin(c.Asking("tools/call", `{"name":"m_wait","arguments":{"seconds":0}}`))
		stream := b.begin(c.GetRequest())
		stream.got()
		synctest.Wait()
		write(t, b.base+"/.data/claims.json", "[")
		pass(59 * time.Second)
		check(t, "the stream has ended meanwhile", stream.ended(), false)
		pass(2 * time.Second)
		_, text := waiting.got()
		checkContains(t, "the waiting call", text, "so the call was not made")
		pass(time.Hour)
		check(t, "the stream has ended at the expiry", stream.ended(), true)
	})
}

// A principal has at most maxSuspended suspended calls. They release their slots of the
// module.
func TestSuspendedCallsAreBounded(t *testing.T) {
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
			all.Go(func() {
				states[i] = stringField(c.Round(tool, ask).Result(), "requestState")
			})
		}
		all.Wait()
		return states
	}
	states := suspend("a_ask", maxRunningOf)
	suspend("b_ask", maxSuspended-maxRunningOf)
	tooMany := c.Round("c_ask", ask)
	checkContains(t, "one call too many", tooMany.Failure(), "too many calls")
	other := askModern(t, d.URL, askAllCaps, newCode(t, d.Base, d.Dir))
	askState(t, other.Round("a_ask", ask), 1) // another principal

	resume := func(state string) {
		a := c.Round("a_ask", ask, state, `{"ask":{"action":"decline"}}`)
		check(t, "a suspended call: failure", a.Failure(), "")
		checkContains(t, "a suspended call", a.Text(), "decline")
	}
	resume(states[0])
	askState(t, c.Round("c_ask", ask), 1) // which has made room
	var all sync.WaitGroup
	for _, state := range states[1:] {
		all.Go(func() { resume(state) })
	}
	all.Wait()
}

// A call has at most maxAsks questions at once. Each further one is answered with an error.
func TestAsksOfACallAreBounded(t *testing.T) {
	long(t)
	d := startFakes(t, "a: fixed names tools=ask")
	var flood fakeAsk
	for range 5 * maxAsks {
		flood.Asks = append(flood.Asks, askFor("form", "x"))
	}
	flood.Copes = true
	c := askOverPOST(t, d.URL, "2025-11-25", askAllCaps, "")
	c.Answer = askAnswer("flood")
	_, got, text := askGot(c.Call("a_ask", flood))
	check(t, "answers", len(got), len(flood.Asks))
	checkContains(t, "the answers", text, "flood")
}

// Progress carries the token of the request in progress. A suspended call keeps no request.
func TestProgressHasTheCurrentToken(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		params := func(token string) string {
			return `{"name":"m_wait","arguments":{"seconds":60},` +
				strings.TrimSuffix(withForms, "}") + `,"progressToken":"` + token + `"}}`
		}
		first := b.begin(b.ModernPOST("1", "tools/call", params("one")))
		synctest.Wait()
		b.asks("word")
		<-first.done
		_, text := first.got()
		_, state, _ := strings.Cut(text, `"requestState":"`)
		state, _, _ = strings.Cut(state, `"`)
		q, _ := b.server.suspended.questions.Load(state)
		current := q.(*question).call.current.Load()
		check(t, "the suspended call notifies nobody", current == nil, true)
		second := b.begin(b.ModernPOST("2", "tools/call", goOn(params("two"), state, sayYes)))
		synctest.Wait()
		b.progress("half")
		_, text = second.got()
		checkContains(t, "the second request", text, `"progressToken":"two"`)
		second.close()
	})
}

// suspendedOnce returns calls of which one is suspended, under the state "s".
func suspendedOnce(t *testing.T, m *memory) *suspendedCalls {
	c := &suspendedCall{held: m.reserve(everyone), done: make(chan struct{})}
	close(c.done) // it ends as soon as it is continued
	c.request.principal = everyone
	c.request.ctx = t.Context()
	q := &question{call: c, answer: make(chan object, 1)}
	k := &suspendedCalls{}
	k.questions.Store("s", q)
	return k
}

// Of requests that continue a call at the same time, one does.
func TestStateContinuesOneRequest(t *testing.T) {
	t.Parallel()
	params := object{
		{"requestState", quote("s")},
		{"inputResponses", json.RawMessage(`{"ask":{"x":"` + strings.Repeat("x", 4<<20) + `"}}`)},
	}
	m := newMemory(defaultMaxBody, strangers)
	k := suspendedOnce(t, m)
	var continued atomic.Int64
	var requests sync.WaitGroup
	for range 8 {
		requests.Go(func() {
			r := &request{params: params, ctx: t.Context()}
			r.server = &Server{serverConfig: serverConfig{memory: m}}
			r.principal = everyone
			if _, err := k.resume(r); err == nil {
				continued.Add(1)
			}
		})
	}
	requests.Wait()
	check(t, "requests that continue the call", continued.Load(), 1)
	size := params.object("inputResponses").object("ask").size()
	check(t, "bytes that count", m.known.count(everyone), size)
}

// What a client answers to a module counts for the client until the call ends. An answer that finds
// no room leaves the call suspended.
func TestAnswersToModulesCount(t *testing.T) {
	t.Parallel()
	big := quote(strings.Repeat("x", maxHeldOf/2))
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(defaultMaxBody, strangers)
		r := &request{server: &Server{serverConfig: serverConfig{memory: m}}}
		r.principal = everyone
		r.session = newSession(sessionOrigin{})
		r.caller.Client.caps = capRoots
		r.ctx, r.cancel = context.WithCancelCause(t.Context())
		var answer Message
		r.out = &outbox{ctx: t.Context(), held: m.reserve(everyone), write: func(e outEvent) error {
			if asked, err := parseMessage(e.data); err == nil && asked.isRequest() {
				client := answer
				client.ID = asked.ID
				r.session.handleNotification(&client)
			}
			return nil
		}}
		defer r.out.end()
		ask := func(sent Message) error {
			answer = sent
			_, err := r.ask(t.Context(), "roots/list", nil)
			return err
		}
		large := object{{"x", quote(strings.Repeat("x", maxHeldOf/8))}}
		_, err := r.ask(t.Context(), "roots/list", large)
		check(t, "a large question", err, nil)
		synctest.Wait()
		kept := m.known.count(everyone)
		check(t, "it counts once it is answered", kept > maxHeldOf/8, false)
		check(t, "the first answer", ask(Message{Result: object{{"x", big}}}), nil)
		check(t, "the second", ask(Message{Result: object{{"x", big}}}), errNoRoom)
		check(t, "an error instead", ask(Message{Err: &fault{Data: big}}), errNoRoom)

		k := suspendedOnce(t, m)
		r.params = object{
			{"requestState", quote("s")},
			{"inputResponses", object{{"ask", object{{"x", big}}.encode()}}.encode()},
		}
		_, err = k.resume(r)
		check(t, "the answer of a client without a session", err, errNoRoom)
		r.cancel(nil)
		synctest.Wait()
		check(t, "bytes held after the call", m.known.count(everyone), 0)
		r.ctx = t.Context()
		_, err = k.resume(r)
		check(t, "the answer again", err, nil)
		check(t, "it counts", m.known.count(everyone) > maxHeldOf/2, true)
	})
}
