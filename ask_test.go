// Modules that ask their clients in the middle of a call. The client's answer must come from
// the client that made the call, and reach only the module that asked.
//
// The first part contains helpers. Then come clients that go away, come back or end while
// they are asked, and modules that ask after the end of a call; at last attribution: a
// client is asked and notified only about its own calls.

package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

const askAllCaps = `{"roots":{},"sampling":{"tools":{}},"elicitation":{"form":{},"url":{}}}`

// askKind is a kind of request that a client can be asked. In params and answer, WORD is replaced by the word of a
// test.
type askKind struct{ name, method, params, answer string }

var askKinds = []askKind{
	{
		name:   "sampling",
		method: "sampling/createMessage",
		params: `{"messages":[{"role":"user","content":{"type":"text","text":"WORD"}}],"maxTokens":9}`,
		answer: `{"role":"assistant","content":{"type":"text","text":"WORD"},"model":"m"}`,
	},
	{
		name:   "form",
		method: "elicitation/create",
		params: `{"message":"WORD","requestedSchema":{"type":"object","properties":{}}}`,
		answer: `{"action":"accept","content":{"word":"WORD"}}`,
	},
	{
		name:   "url",
		method: "elicitation/create",
		params: `{"mode":"url","message":"WORD","url":"https://example.com/WORD","elicitationId":"WORD"}`,
		answer: `{"action":"accept","_meta":{"word":"WORD"}}`,
	},
	{name: "roots", method: "roots/list", params: `{}`, answer: `{"roots":[{"uri":"file:///WORD"}]}`},
}

// askFor returns a request of a kind that contains a word.
func askFor(kind, word string) fakeWish {
	for _, k := range askKinds {
		if k.name == kind {
			return fakeWish{k.method, json.RawMessage(strings.ReplaceAll(k.params, "WORD", word))}
		}
	}
	panic(kind)
}

// askForms returns arguments of the tool ask that ask for a form with each word; the first word is the mark.
func askForms(words ...string) fakeAsk {
	ask := fakeAsk{Mark: words[0]}
	for _, word := range words {
		ask.Asks = append(ask.Asks, askFor("form", word))
	}
	return ask
}

// askAnswer returns a client's way to answer: each answer contains a word.
func askAnswer(word string) func(string, json.RawMessage) json.RawMessage {
	return func(method string, params json.RawMessage) json.RawMessage {
		for _, k := range askKinds {
			if k.method == method && (k.name == "url") == (stringField(params, "mode") == "url") {
				return json.RawMessage(strings.ReplaceAll(k.answer, "WORD", word))
			}
		}
		return nil
	}
}

func askSilent(string, json.RawMessage) json.RawMessage { return nil }

// askGot parses a result of the tool ask: the process that asked, and the answers it got.
func askGot(msg json.RawMessage) (pid int, got []string, text string) {
	text = resultText(field(msg, "result"))
	var list []json.RawMessage
	if json.Unmarshal([]byte(text), &list) != nil || len(list) == 0 {
		return 0, nil, string(msg)
	}
	pid, _ = strconv.Atoi(string(list[0]))
	for _, answer := range list[1:] {
		got = append(got, string(answer))
	}
	return pid, got, text
}

// checkGot checks that the tool ask got one answer for each of wants, which contains it.
func checkGot(t *testing.T, what string, msg json.RawMessage, wants ...string) {
	t.Helper()
	_, got, text := askGot(msg)
	if len(got) != len(wants) {
		t.Errorf("%s: the module got %d answers, want %d: %s", what, len(got), len(wants), text)
		return
	}
	for i, want := range wants {
		checkContains(t, what, got[i], want)
	}
}

// callParams returns the params of a tools/call.
func callParams(tool string, arguments any) json.RawMessage {
	return object{{"name", quote(tool)}, {"arguments", marshal(arguments)}}.encode()
}

// startCall calls a tool in a session. The answer arrives on the channel.
func (c *askClient) startCall(tool string, ask fakeAsk) (id string, answer <-chan json.RawMessage) {
	id = c.nextID()
	return id, c.send(c.t.Context(), id, "tools/call", string(callParams(tool, ask)))
}

// cancelCall cancels a call of the client's session.
func (c *askClient) cancelCall(id string) {
	c.t.Helper()
	params := json.RawMessage(`{"requestId":` + id + `}`)
	must(c.t, c.post(c.t.Context(), encodeRequest(nil, "notifications/cancelled", params)))
}

// reply answers a request to the client.
func (c *askClient) reply(id json.RawMessage, word string) {
	c.t.Helper()
	must(c.t, c.post(c.t.Context(), encodeResult(id, askAnswer(word)("elicitation/create", nil))))
}

// listen opens the session's notification stream and takes its messages.
func (c *askClient) listen() {
	c.t.Helper()
	events, _ := c.http.listen()
	go c.takeAll(events)
}

// takeAll takes the messages of a stream, to its end.
func (c *askClient) takeAll(events <-chan event) {
	for e := range events {
		if e.data != "" {
			c.take(e.msg())
		}
	}
}

// forgetAsked drops the requests to the client so far.
func (c *askClient) forgetAsked() {
	for len(c.asked) > 0 {
		<-c.asked
	}
}

// awaitStep waits for a step of the tool ask and returns the process.
func awaitStep(t *testing.T, d *testDaemon, step, mark string) (pid int) {
	t.Helper()
	await(t, step+" "+mark, func() bool {
		_, rest, ok := strings.Cut(d.Log.String(), "fake: "+step+" "+mark+" ")
		fmt.Sscan(rest, &pid)
		return ok && pid > 0 && strings.Contains(rest, "\n")
	})
	return pid
}

// awaitLate waits for the answer to what a module asked after its call was cancelled.
func awaitLate(t *testing.T, d *testDaemon) string {
	t.Helper()
	const prefix = "fake: late, got "
	d.awaitLog(t, prefix)
	_, rest, _ := strings.Cut(d.Log.String(), prefix)
	return strings.ReplaceAll(rest, `\`, "")
}

// checkLacks checks that an answer is the error for a capability that the client has not declared.
func checkLacks(t *testing.T, what string, a answer, want string) {
	t.Helper()
	e := field(a.last(), "error")
	check(t, what+": status", a.Status, http.StatusBadRequest)
	check(t, what+": code", string(field(e, "code")), "-32021")
	check(t, what+": capabilities", string(field(field(e, "data"), "requiredCapabilities")), want)
}

// ---- Late answers and questions

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
			pass(2 * watchInterval)
			b.progress("progress after")
			b.asks("after")
			checkContains(t, "after the end: the module", b.hears(), `"refused"`)
			pass(2 * time.Minute) // the call ends, and with it the process
			check(t, "the process has ended", b.process.alive(), false)
			_, text = x.got()
			checkOmits(t, "the stream", text, "after")
			x.hangUp()
			<-x.done
		})
	}
}

// ---- Attribution

// stormClient is one of many clients that call at once. It makes one call at a time.
type stormClient struct {
	*askClient
	name, code string
	word       atomic.Pointer[string] // of the call under way
}

func newStormClient(t *testing.T, c *askClient, name, code string) *stormClient {
	s := &stormClient{askClient: c, name: name, code: code}
	s.setWord("")
	c.answer = func(method string, params json.RawMessage) json.RawMessage {
		word := *s.word.Load()
		if word == "" || !strings.Contains(string(params), word) {
			t.Errorf("%s, in the call %q, was asked with %s", name, word, params)
		}
		return askAnswer(word)(method, params)
	}
	return s
}

func (s *stormClient) setWord(word string) { s.word.Store(&word) }

// callOnce makes one call, which must get this client's answer to this call's question. owners is the code whose calls
// each process of the module "silent" has served.
func (s *stormClient) callOnce(t *testing.T, module, kind, word string, owners *sync.Map) {
	s.setWord(word)
	defer s.setWord("")
	ask := fakeAsk{Mark: word, Asks: []fakeWish{askFor(kind, word)}}
	for {
		pid, got, text := askGot(s.call(module+"_ask", ask))
		notSure := module == "silent" && strings.Contains(text, "can't tell which call")
		if notSure || strings.Contains(text, "is busy") {
			continue
		}
		if len(got) != 1 || strings.Count(text, "<") != 1 || !strings.Contains(text, word) {
			t.Errorf("%s of %s got %s", word, module, text)
		}
		if module != "silent" {
			break
		}
		if owner, loaded := owners.LoadOrStore(pid, s.code); loaded && owner != s.code {
			t.Error("a process served callers of two scopes")
		}
		break
	}
	s.forgetAsked()
}

// askStorm has many clients of all scopes ask at once.
func askStorm(t *testing.T, sessions, rounds int) {
	dir, base := t.TempDir(), t.TempDir()
	writeFake(t, dir+"/proj/silent.usher", "fixed tools=ask")
	writeFake(t, dir+"/proj/named.usher", "fixed names tools=ask")
	writeFake(t, dir+"/proj/new.usher", "modern tools=ask")
	d := daemonOptions{base: base}.startReady(t, dir)
	proj, whole := newClaimFor(t, base, dir+"/proj").Code.Reveal(), newClaimFor(t, base, dir).Code.Reveal()
	var clients []*stormClient
	add := func(c *askClient, code string) {
		clients = append(clients, newStormClient(t, c, fmt.Sprint("client ", len(clients)), code))
	}
	for i := range sessions {
		own := newClaimFor(t, base, dir+"/proj").Code.Reveal()
		add(askOverPOST(t, d.URL, protocols[i%len(protocols)], askAllCaps, own), own)
	}
	for _, code := range []string{whole, ""} {
		add(askOverPOST(t, d.URL, "2025-11-25", askAllCaps, code), code)
	}
	for _, code := range []string{proj, whole, "", "", ""} {
		add(askModern(t, d.URL, askAllCaps, code), code)
	}
	clients[len(clients)-1].askClient.name = "another"
	var owners sync.Map
	var all sync.WaitGroup
	for nth, c := range clients {
		all.Go(func() {
			for i := range rounds {
				module := []string{"silent", "silent", "named", "new"}[(i+nth)%4]
				kind := askKinds[i%2].name // these contain a word
				c.callOnce(t, module, kind, fmt.Sprintf("<%s, round %d>", c.name, i), &owners)
			}
		})
	}
	all.Wait()
}

func TestAskManyAtOnce(t *testing.T) {
	long(t)
	askStorm(t, 6, 5)
}

// TestAskStorm has a hundred rounds, or USHER_STORM of them.
func TestAskStorm(t *testing.T) {
	slow(t)
	rounds := 100
	if text := os.Getenv("USHER_STORM"); text != "" {
		var err error
		rounds, err = strconv.Atoi(text)
		must(t, err)
	}
	askStorm(t, 20, rounds)
}

// TestAskOfASubscription has a module ask when a session subscribes: another session, whose call it has served, must
// not be asked.
func TestAskOfASubscription(t *testing.T) {
	long(t)
	d := startFakes(t, "a: good tools=pid res=a wants")
	caller := askOverPOST(t, d.URL, "2025-11-25", askAllCaps, "")
	subscriber := askOverPOST(t, d.URL, "2025-11-25", askAllCaps, "")
	caller.listen()
	subscriber.listen()
	caller.call("a_pid", struct{}{})
	msg := subscriber.get(subscriber.send(t.Context(), subscriber.nextID(), "resources/subscribe", `{"uri":"a://one"}`))
	checkContains(t, "the answer to the subscriber", string(msg), `"result":`)
	check(t, "requests to the caller", len(caller.asked), 0)
	check(t, "requests to the subscriber", len(subscriber.asked), 1)
}

// TestAskProgressOfARound has a client ask for progress in one round of a call and not in another, or under another
// token.
func TestAskProgressOfARound(t *testing.T) {
	long(t)
	d := startFakes(t, "a: fixed tools=ask")
	c := askModern(t, d.URL, askAllCaps, "")
	ask := askForms("progress")
	ask.Tells = true
	for _, tokens := range [][2]string{{``, `"b"`}, {`"a"`, ``}, {`7`, `"7"`}, {``, ``}} {
		t.Run(tokens[0]+" then "+tokens[1], func(t *testing.T) {
			params := callParams("a_ask", ask)
			for i, token := range tokens {
				own := params
				if token != "" {
					own = setMeta(params, "progressToken", json.RawMessage(token))
				}
				a, err := c.http.try(c.modernRequest(own))
				must(t, err)
				var got, want []string
				for _, msg := range a.Events {
					if stringField(msg, "method") == "notifications/progress" {
						got = append(got, string(field(field(msg, "params"), "progressToken")))
					}
				}
				if token != "" {
					want = []string{token}
				}
				check(t, fmt.Sprintf("tokens of progress in round %d", i+1), got, want)
				if i == 0 {
					params = c.answered(params, a.result())
				}
			}
		})
	}
}
