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

	"usher/internal/mcptest"
)

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

// checkLacks checks that an answer is the error for a capability that the client has not declared.
func checkLacks(t *testing.T, what string, a answer, want string) {
	t.Helper()
	check(t, what+": status", a.Status, 400)
	check(t, what+": code", string(field(a.Last(), "error", "code")), "-32021")
	check(t, what+": capabilities",
		string(field(a.Last(), "error", "data", "requiredCapabilities")), want)
}

// ---- Late answers and questions

// askKind is a kind of request that a client can be asked. In Params and Answer, WORD is replaced by the
// word of a test.
type askKind struct{ Name, Method, Params, Answer string }

// askKinds are the requests that a client can be asked.
var askKinds = []askKind{
	{
		Name:   "sampling",
		Method: "sampling/createMessage",
		Params: `{"messages":[{"role":"user","content":{"type":"text","text":"WORD"}}],"maxTokens":9}`,
		Answer: `{"role":"assistant","content":{"type":"text","text":"WORD"},"model":"m"}`,
	},
	{
		Name:   "form",
		Method: "elicitation/create",
		Params: `{"message":"WORD","requestedSchema":{"type":"object","properties":{}}}`,
		Answer: `{"action":"accept","content":{"word":"WORD"}}`,
	},
	{
		Name:   "url",
		Method: "elicitation/create",
		Params: `{"mode":"url","message":"WORD","url":"https://example.com/WORD","elicitationId":"WORD"}`,
		Answer: `{"action":"accept","_meta":{"word":"WORD"}}`,
	},
	{
		Name:   "roots",
		Method: "roots/list",
		Params: `{}`,
		Answer: `{"roots":[{"uri":"file:///WORD"}]}`,
	},
}

// askFor returns a request of a kind that contains a word.
func askFor(kind, word string) fakeWish {
	for _, k := range askKinds {
		if k.Name == kind {
			return fakeWish{
				Method: k.Method,
				Params: json.RawMessage(strings.ReplaceAll(k.Params, "WORD", word)),
			}
		}
	}
	panic(kind)
}

// askAllCaps are the capabilities of a client that can be asked everything.
const askAllCaps = `{"roots":{},"sampling":{"tools":{}},"elicitation":{"form":{},"url":{}}}`

// askAnswer returns a client's way to answer: each answer contains a word.
func askAnswer(word string) func(string, json.RawMessage) json.RawMessage {
	return func(method string, params json.RawMessage) json.RawMessage {
		for _, k := range askKinds {
			if k.Method == method && (k.Name == "url") == (stringField(params, "mode") == "url") {
				return json.RawMessage(strings.ReplaceAll(k.Answer, "WORD", word))
			}
		}
		return nil
	}
}

// askForms returns arguments of the tool ask that ask for a form with each word; the first
// word is the mark.
func askForms(words ...string) fakeAsk {
	ask := fakeAsk{Mark: words[0]}
	for _, word := range words {
		ask.Asks = append(ask.Asks, askFor("form", word))
	}
	return ask
}

// askState returns the state of an answer, which must ask for n things.
func askState(t *testing.T, a answer, n int) string {
	t.Helper()
	var requests map[string]json.RawMessage
	json.Unmarshal(field(a.Result(), "inputRequests"), &requests)
	state := stringField(a.Result(), "requestState")
	if a.Status != 200 || stringField(a.Result(), "resultType") != resultInput ||
		len(requests) != n || state == "" {
		t.Fatalf("want %d questions: %d %s", n, a.Status, a.Body)
	}
	return state
}

// askGot parses a result of the tool ask: the process that asked, and the answers it got.
func askGot(msg json.RawMessage) (pid int, got []string, text string) {
	text = answer{Events: []json.RawMessage{msg}}.Text()
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

// askedCall is a call whose client was asked and has not answered.
type askedCall struct {
	id     string
	answer <-chan json.RawMessage
	pid    int // of the module
}

// callAndBeAsked makes a call that asks the client. The client does not answer.
func callAndBeAsked(t *testing.T, d *testDaemon, c *askClient, mark string) askedCall {
	t.Helper()
	c.Answer = func(string, json.RawMessage) json.RawMessage { return nil }
	id, answer := c.Send("tools/call", callParams("a_ask", askForms(mark)))
	<-c.Asked
	return askedCall{id, answer, awaitStep(t, d, "asked", mark)}
}

// A call that ends while its client is asked leaves no goroutine and no process. The test
// counts goroutines, so it runs alone.
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
	post := func(t *testing.T) *askClient {
		return askOverPOST(t, d.URL, "2025-11-25", askAllCaps, "")
	}
	sse := func(t *testing.T) *askClient { return mcptest.AskOverSSE(t, d.URL, askAllCaps) }
	t.Run("the stream ends", func(t *testing.T) {
		c := sse(t)
		call := callAndBeAsked(t, d, c, "hangs-up")
		c.HangUp()
		awaitEnd(call.pid)
	})
	t.Run("the session ends", func(t *testing.T) {
		c := post(t)
		call := callAndBeAsked(t, d, c, "deleted")
		c.HTTP.End()
		awaitEnd(call.pid)
		checkContains(t, "the call", c.Get(call.answer), `"error":`)
	})
	t.Run("the module crashes", func(t *testing.T) {
		c := post(t)
		call := callAndBeAsked(t, d, c, "crashes")
		p, _ := os.FindProcess(call.pid)
		p.Kill()
		checkContains(t, "the call", c.Get(call.answer), "crashed")
		c.Answer = askAnswer("answered")
		checkGot(t, "the next call", c.Call("a_ask", askForms("again")), "answered")
	})
	for name, connect := range map[string]func(*testing.T) *askClient{
		"2025-11-25": post,
		"HTTP+SSE":   sse,
	} {
		t.Run("the client cancels, "+name, func(t *testing.T) {
			c := connect(t)
			call := callAndBeAsked(t, d, c, "cancels-"+name)
			c.HTTP.Cancel(call.id)
			awaitStep(t, d, "cancelled", "cancels-"+name)
			heard := ""
			for !t.Failed() && !strings.Contains(heard, "notifications/cancelled") {
				heard = string(c.Get(c.Heard))
			}
			checkContains(t, "what the client hears", heard, "usher-")
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

// A client that accepts no stream as an answer can be asked only while it listens.
func TestAskNeedsAStream(t *testing.T) {
	long(t)
	d := startFakes(t, "a: fixed tools=ask")
	c := askOverPOST(t, d.URL, "2025-03-26", askAllCaps, "")
	c.HTTP.Header.Set("Accept", "application/json")
	c.Answer = askAnswer("heard")
	checkContains(t, "without a stream", c.Call("a_ask", askForms("one")),
		"no stream open")
	c.Listen()
	checkGot(t, "with one", c.Call("a_ask", askForms("two")), "heard")
}

// A client with a claim has no roots: neither does a module learn that its client has some, nor
// does the client's answer reach it. A shared server gets roots from nobody.
func TestClaimHasNoRoots(t *testing.T) {
	p := newPool(t.Context(), testConfig("m", true))
	for _, owner := range []*Principal{everyone, aClaim("m")} {
		caps := newWorker(p, Caller{Principal: owner}).caps
		check(t, "its process may ask for roots", caps&capRoots != 0, owner == everyone)
	}
	long(t)
	need(t, "python3")
	dir := t.TempDir()
	write(t, dir+"/file.usher.py", "def ask(**kwargs):\n    return (yield {'ask': 'roots/list'})\n")
	writeFakes(t, dir, "old: fixed roots tools=ask,roots,result", "new: modern tools=ask,echo,result",
		"all: shared modern tools=ask,echo,result")
	d := startDaemon(t, dir)
	d.awaitReady(t)
	code := newClaimFor(t, d.Base, d.Dir).Code.Reveal()
	const refused = "this tool asks its client for roots: use an MCP client that supports it"
	ask := fakeAsk{Mark: "roots", Asks: []fakeWish{askFor("roots", "w")}, Bold: true, Copes: true}
	session := func(code string) *askClient {
		return askOverPOST(t, d.URL, "2025-11-25", askAllCaps, code)
	}
	later := func(code string) *askClient {
		c := session("")
		c.Answer = askAnswer("mine")
		checkGot(t, "before its claim", c.Call("old_ask", ask), "mine")
		c.ForgetAsked()
		c.HTTP.Header.Set(claimHeader, code)
		return c
	}
	modern := func(code string) *askClient { return askModern(t, d.URL, askAllCaps, code) }
	for name, connect := range map[string]func(string) *askClient{
		"session": session, "2026-07-28": modern, "a session that gets a claim": later,
	} {
		t.Run(name, func(t *testing.T) {
			c := connect(code)
			for _, tool := range []string{"old_ask", "new_ask", "all_ask", "file_ask"} {
				checkContains(t, tool, string(c.Call(tool, ask)), "roots")
			}
			const answers = `"inputResponses":{"a":{"roots":[{"uri":"file:///WORD"}]},` +
				`"b":{"Roots":[]},"c":{"action":"accept"},"d":{"r\u006fots":["WORD"],"action":"accept"}}`
			for _, tool := range []string{"new_echo", "all_echo"} {
				got := string(c.CallOnce(json.RawMessage(`{"name":"` + tool + `",` + answers + `}`)))
				checkContains(t, tool, got, "accept")
				checkOmits(t, tool, got, "roots", "Roots", "WORD", "u006f")
			}
			const form = `{"method":"elicitation/create","params":{"message":"m"}}`
			const roots = `{"method":"roots/list"}`
			for _, requests := range []string{
				`{"a":` + form + `,"b":` + roots + `}`,
				`{"a":` + roots + `,"a":` + form + `}`,
				`{"a":` + form + `,"a":` + roots + `}`,
				`{"a":` + form + `},"inputRequests":{"a":` + roots + `}`,
				`{"a":{"method":"elicitation/create","method":"roots\/list"}}`,
			} {
				result := `{"resultType":"input_required","inputRequests":` + requests + `}`
				for _, tool := range []string{"old_result", "new_result", "all_result"} {
					got := c.Call(tool, json.RawMessage(`{"result":`+result+`}`))
					checkContains(t, tool+" asks for "+requests, string(got), refused)
				}
			}
			check(t, "requests to the client", len(c.Asked), 0)
		})
	}
	atStart := session(code).Call("old_roots", json.RawMessage(`{}`))
	checkContains(t, "at its start", string(atStart), refused)
	open := session("")
	open.Listen()
	open.Answer = askAnswer("mine")
	checkGot(t, "without a claim", open.Call("old_ask", ask), "mine")
	checkGot(t, "without a claim, 2026-07-28", open.Call("new_ask", ask), "mine")
	checkContains(t, "a shared server", string(open.Call("all_ask", ask)), refused)
}

// progress has m report progress of its first call.
func (b *bubble) progress(text string) {
	var token string
	b.process.update(func() { token = sortedKeys(b.process.calls)[0] })
	params := `{"progressToken":` + token + `,"message":"` + text + `"}`
	b.process.handle(&Message{Method: "notifications/progress", Params: objectOf(params)})
}

// asks has m ask the client in no call that it names.
func (b *bubble) asks(word string) { ask(b.process, `"`+word+`"`, `{"message":"`+word+`"}`) }

// A module can't ask the client of its last call once that client's session has lost its
// scope.
func TestAskEndsWithTheScope(t *testing.T) {
	long(t)
	for name, end := range map[string]func(t *testing.T, b *bubble, c *testClient, own Code){
		"its claim is revoked": func(t *testing.T, b *bubble, _ *testClient, own Code) {
			revoke(t, b.base, own)
		},
		"it moves to another folder": func(t *testing.T, b *bubble, c *testClient, _ Code) {
			c.Header.Set(claimHeader, newCode(t, b.base, "/v"))
			c.Tools()
		},
	} {
		runInBubble(t, name, func(t *testing.T, b *bubble) {
			own := newClaimFor(t, b.base, "/w").Code
			c := b.openScoped(own.Reveal())
			x := b.begin(c.GetRequest())
			pass(time.Second) // in which its claim is written down
			c.Call("m_wait", `{"seconds":0}`)
			b.asks("outside")
			x.got() // it has arrived
			params := `{"name":"m_wait","arguments":{"seconds":60},"_meta":{"progressToken":"t"}}`
			call := b.begin(c.Asking("tools/call", params))
			call.got()
			call.close()
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
			x.close()
		})
	}
}

// Once the claim of a call has ended, its module's questions do not reach the client on the stream of
// the call's own request either.
func TestAskEndsWithTheClaimOfItsCall(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		own := newClaimFor(t, b.base, "/w").Code
		c := b.openScoped(own.Reveal())
		call := b.begin(c.Asking("tools/call", `{"name":"m_wait","arguments":{"seconds":60}}`))
		call.got()
		b.asks("before")
		_, text := call.got()
		checkContains(t, "before the end", text, `"before"`)
		b.hears()
		revoke(t, b.base, own)
		pass(2 * watchInterval)
		b.asks("after")
		checkContains(t, "after the end: the module", b.hears(), `"refused"`)
		<-call.done
		_, text = call.got()
		checkOmits(t, "the stream of the call", text, "after")
	})
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
	c.Answer = func(method string, params json.RawMessage) json.RawMessage {
		word := *s.word.Load()
		if word == "" || !strings.Contains(string(params), word) {
			t.Errorf("%s, in the call %q, was asked with %s", name, word, params)
		}
		return askAnswer(word)(method, params)
	}
	return s
}

func (s *stormClient) setWord(word string) { s.word.Store(&word) }

// callOnce makes one call, which must get this client's answer to this call's question. owners is
// the code whose calls each process of the module "silent" has served.
func (s *stormClient) callOnce(t *testing.T, module, kind, word string, owners *sync.Map) {
	s.setWord(word)
	defer s.setWord("")
	ask := fakeAsk{Mark: word, Asks: []fakeWish{askFor(kind, word)}}
	for {
		pid, got, text := askGot(s.Call(module+"_ask", ask))
		notSure := module == "silent" && strings.Contains(text, "can't tell which")
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
	s.ForgetAsked()
}

// A client is asked only about its own calls, and only the module that asked gets the
// answer, while many clients of all scopes ask at once. USHER_STORM is the number of rounds.
func TestAskStorm(t *testing.T) {
	long(t)
	rounds := slowTests(5, 100)
	if text := os.Getenv("USHER_STORM"); text != "" {
		var err error
		rounds, err = strconv.Atoi(text)
		must(t, err)
	}
	d := startFakes(t, "proj/silent: fixed tools=ask", "proj/named: fixed names tools=ask",
		"proj/new: modern tools=ask")
	proj, whole := newCode(t, d.Base, d.Dir+"/proj"), newCode(t, d.Base, d.Dir)
	var clients []*stormClient
	add := func(c *askClient, code string) {
		clients = append(clients,
			newStormClient(t, c, fmt.Sprint("client ", len(clients)), code))
	}
	// Fewer clients than a server may have processes: others would wait for one that is idle for a minute.
	for i := range slowTests(6, 9) {
		own := newCode(t, d.Base, d.Dir+"/proj")
		add(askOverPOST(t, d.URL, protocols[i%len(protocols)], askAllCaps, own), own)
	}
	for _, code := range []string{whole, ""} {
		add(askOverPOST(t, d.URL, "2025-11-25", askAllCaps, code), code)
	}
	for _, code := range []string{proj, whole, "", "", ""} {
		add(askModern(t, d.URL, askAllCaps, code), code)
	}
	clients[len(clients)-1].askClient.Name = "another"
	var owners sync.Map
	var all sync.WaitGroup
	for nth, c := range clients {
		all.Go(func() {
			for i := range rounds {
				module := []string{"silent", "silent", "named", "new"}[(i+nth)%4]
				kind := askKinds[i%2].Name // these contain a word
				c.callOnce(t, module, kind, fmt.Sprintf("<%s, round %d>", c.name, i), &owners)
			}
		})
	}
	all.Wait()
}
