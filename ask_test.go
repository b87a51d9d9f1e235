// Modules that ask their clients in the middle of a call: that the answer comes
// from the one client whose call it was and reaches the one module that asked,
// whichever revisions the two speak, and that nothing is left when it does not.

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

const askAllCaps = `{"roots":{},"sampling":{"tools":{}},"elicitation":{"form":{},"url":{}}}`

// askKinds is what a client can be asked for. What is asked names a word, where
// it can name anything, and each answer names one.
var askKinds = []struct{ name, method, params, answer, declares string }{
	{"sampling", "sampling/createMessage", `{"messages":[{"role":"user","content":{"type":"text","text":"WORD"}}],"maxTokens":9}`,
		`{"role":"assistant","content":{"type":"text","text":"WORD"},"model":"m"}`, `{"sampling":{}}`},
	{"form", "elicitation/create", `{"message":"WORD","requestedSchema":{"type":"object","properties":{}}}`,
		`{"action":"accept","content":{"word":"WORD"}}`, `{"elicitation":{}}`},
	{"url", "elicitation/create", `{"mode":"url","message":"WORD","url":"https://example.com/WORD","elicitationId":"WORD"}`,
		`{"action":"accept","_meta":{"word":"WORD"}}`, `{"elicitation":{"url":{}}}`},
	{"roots", "roots/list", ``,
		`{"roots":[{"uri":"file:///WORD"}]}`, `{"roots":{}}`},
}

// askFor is a wish of a kind about a word.
func askFor(kind, word string) fakeWish {
	for _, k := range askKinds {
		if k.name == kind {
			return fakeWish{k.method, rawOrNil(strings.ReplaceAll(k.params, "WORD", word))}
		}
	}
	panic(kind)
}

// askAnswer is a client's answer that names a word.
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

// askRefuses is a client's answer that is an error.
func askRefuses(string, json.RawMessage) json.RawMessage {
	return json.RawMessage(`{"error":{"code":-1,"message":"the user said no"}}`)
}

// askGot takes the result of the tool ask apart: the process, and what it got.
func askGot(msg json.RawMessage) (pid int, got []string, text string) {
	text = resultText(field(msg, "result"))
	var list []json.RawMessage
	if json.Unmarshal([]byte(text), &list) != nil || len(list) == 0 {
		return 0, nil, string(msg)
	}
	pid, _ = strconv.Atoi(string(list[0]))
	for _, one := range list[1:] {
		got = append(got, string(one))
	}
	return pid, got, text
}

// askDir is a workspace with fakes that ask.
func askDir(t *testing.T, fakes map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, traits := range fakes {
		writeFake(t, dir+"/"+name+".usher", traits)
	}
	return dir
}

func TestAskAcrossRevisions(t *testing.T) {
	t.Parallel()
	dir := askDir(t, map[string]string{"old": "fixed tools=ask,pid", "named": "fixed names tools=ask", "new": "modern tools=ask"})
	d := startDaemon(t, dir)
	connect(t, d.URL).awaitTools("named_ask", "new_ask", "old_ask", "old_pid")
	for _, way := range slices.Sorted(maps.Keys(askWays)) {
		t.Run(way, func(t *testing.T) {
			c := askWays[way](t, d.URL, dir, askAllCaps)
			for _, module := range []string{"old", "named", "new"} {
				for _, kind := range askKinds {
					word := fmt.Sprint(way, " ", module, " ", kind.name)
					c.answer = askAnswer(word)
					wish := askFor(kind.name, "to "+word)
					want := string(c.answer(kind.method, wish.Params))
					msg := c.call(module+"_ask", fakeAsk{Mark: word, Asks: []fakeWish{wish}})
					if _, got, text := askGot(msg); len(got) != 1 || got[0] != want {
						t.Errorf("%s: %s, want %s", word, text, want)
					}
					if len(c.asked) != 1 {
						t.Fatalf("%s: the client was asked %d times", word, len(c.asked))
					}
					asked := <-c.asked
					if params := field(asked, "params"); kind.name == "roots" && params != nil && string(params) != "{}" ||
						kind.name != "roots" && !bytes.Equal(canonical(params), canonical(wish.Params)) {
						t.Errorf("%s: asked with %s, want %s", word, params, wish.Params)
					}
				}
				// All at once, and one that is refused.
				c.answer = askAnswer("each")
				var wishes []fakeWish
				var want []string
				for _, kind := range askKinds {
					wish := askFor(kind.name, "each")
					wishes = append(wishes, wish)
					want = append(want, string(c.answer(wish.Method, wish.Params)))
				}
				_, got, text := askGot(c.call(module+"_ask", fakeAsk{Mark: "all", Asks: wishes}))
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("%s: all at once: %s\n%s", module, text, diff)
				}
				for len(c.asked) > 0 {
					<-c.asked
				}
				if c.meta != "" {
					continue // an input response is no error
				}
				c.answer = askRefuses
				msg := c.call(module+"_ask", fakeAsk{Mark: "refused", Asks: wishes[:1]})
				<-c.asked
				if !strings.Contains(string(msg), "the user said no") || string(field(field(msg, "result"), "isError")) != "true" && field(msg, "error") == nil {
					t.Errorf("%s: a refusal of the client's: %s", module, msg)
				}
			}
		})
	}
}

const (
	askNodeModule = `export function* ask({ method, params }) { return yield { ask: method, params } }
`
	askPythonModule = `from typing import Any


def ask(method: str, params: Any):
    return (yield {"ask": method, "params": params})
`
	askGoModule = `//go:build usher

package main

import "encoding/json"

type Params struct {
	Method string          ` + "`json:\"method\"`" + `
	Params json.RawMessage ` + "`json:\"params,omitempty\"`" + `
}

// Ask asks.
func Ask(p Params, ask func(method string, params any) (json.RawMessage, error)) (json.RawMessage, error) {
	return ask(p.Method, p.Params)
}
`
)

func TestAskInEachLanguage(t *testing.T) {
	t.Parallel()
	for _, row := range []struct{ program, file, text, tool string }{
		{"node", "js.usher.mjs", askNodeModule, "js_ask"},
		{"python3", "py.usher.py", askPythonModule, "py_ask"},
		{"go", "g.usher.go", askGoModule, "g_Ask"},
	} {
		t.Run(row.program, func(t *testing.T) {
			t.Parallel()
			need(t, row.program)
			dir := t.TempDir()
			write(t, dir+"/"+row.file, row.text)
			write(t, dir+"/go.mod", "module example.com/ask\n\ngo 1.22\n")
			d := startDaemon(t, dir)
			first := connect(t, d.URL)
			await(t, "the tool", func() bool { return len(first.tools()) == 1 })
			tool := first.tools()[0]
			for _, way := range []string{"2025-11-25", "2026-07-28"} {
				c := askWays[way](t, d.URL, dir, askAllCaps)
				for _, kind := range askKinds {
					word := row.program + way + kind.name
					c.answer = askAnswer(word)
					wish := askFor(kind.name, word)
					if wish.Params == nil {
						wish.Params = json.RawMessage(`{}`)
					}
					want := canonical(c.answer(wish.Method, wish.Params))
					msg := c.call(tool, wish)
					if got := canonical(json.RawMessage(resultText(field(msg, "result")))); !bytes.Equal(got, want) {
						t.Errorf("%s: %s, want %s", word, msg, want)
					}
				}
				if len(c.asked) != len(askKinds) {
					t.Errorf("%s: asked %d times", way, len(c.asked))
				}
			}
			if c := askModern(t, d.URL, `{}`, ""); true {
				a := c.round(tool, fakeWish{"roots/list", json.RawMessage(`{}`)})
				checkLacks(t, row.program, a, `{"roots":{}}`)
			}
		})
	}
}

// checkLacks holds that an answer is the error for a capability that the client
// has not declared.
func checkLacks(t *testing.T, what string, a answer, want string) {
	t.Helper()
	e := field(a.last(), "error")
	if a.Status != http.StatusBadRequest || string(field(e, "code")) != "-32021" || string(field(field(e, "data"), "requiredCapabilities")) != want {
		t.Errorf("%s: %d %s, want the error for %s", what, a.Status, a.Body, want)
	}
}

func TestAskWhatWasNotDeclared(t *testing.T) {
	t.Parallel()
	dir := askDir(t, map[string]string{"old": "fixed tools=ask", "new": "modern tools=ask"})
	d := startDaemon(t, dir)
	connect(t, d.URL).awaitTools("new_ask", "old_ask")
	for _, kind := range askKinds {
		for _, other := range append(slices.Clone(askKinds), struct{ name, method, params, answer, declares string }{name: "nothing", declares: `{}`}) {
			if other.name == kind.name || kind.name == "form" && strings.Contains(other.declares, "elicitation\":{}") {
				continue
			}
			what := fmt.Sprintf("%s, of a client that declares %s", kind.name, other.declares)
			ask := fakeAsk{Mark: what, Asks: []fakeWish{askFor(kind.name, "x")}}
			copes, bold := ask, ask
			copes.Copes, bold.Bold = true, true
			lacked := map[string]string{"url": `{"elicitation":{"url":{}}}`}[kind.name]
			if lacked == "" {
				lacked = kind.declares
			}
			code := "-32601"
			if kind.name == "url" {
				code = "-32602"
			}

			c := askModern(t, d.URL, other.declares, "")
			checkLacks(t, "2026-07-28: old: "+what, c.round("old_ask", ask), lacked)
			checkLacks(t, "2026-07-28: new: "+what, c.round("new_ask", ask), lacked)
			if a := c.round("old_ask", copes); a.Status != 200 || a.failure() != "" || !strings.Contains(resultText(a.result()), code) {
				t.Errorf("2026-07-28: %s, and the module copes: %d %s", what, a.Status, a.Body)
			}

			s := askOverPOST(t, d.URL, "2025-11-25", other.declares, "")
			if msg := s.call("old_ask", ask); string(field(field(msg, "result"), "isError")) != "true" || !strings.Contains(resultText(field(msg, "result")), `"code":`+code) {
				t.Errorf("2025-11-25: %s: %s", what, msg)
			}
			if msg := s.call("old_ask", copes); field(field(msg, "result"), "isError") != nil || !strings.Contains(resultText(field(msg, "result")), `"code":`+code) {
				t.Errorf("2025-11-25: %s, and the module copes: %s", what, msg)
			}
			if msg := s.call("new_ask", ask); field(msg, "error") == nil {
				t.Errorf("2025-11-25: new: %s: %s", what, msg)
			}
			if msg := s.call("new_ask", bold); !strings.Contains(string(msg), "this needs a client that can be asked for") {
				t.Errorf("2025-11-25: new, asking all the same: %s: %s", what, msg)
			}
			if len(c.asked)+len(s.asked) != 0 {
				t.Errorf("%s: a client was asked", what)
			}
		}
	}
	c := askModern(t, d.URL, `{"sampling":{}}`, "") // and a part of a capability
	ask := fakeAsk{Mark: "tools", Asks: []fakeWish{{"sampling/createMessage", json.RawMessage(`{"messages":[],"maxTokens":1,"tools":[]}`)}}}
	checkLacks(t, "sampling with tools", c.round("old_ask", ask), `{"sampling":{"tools":{}}}`)
}

// TestAskWithoutAClient is of calls that no client makes: who made them is told
// what to do instead.
func TestAskWithoutAClient(t *testing.T) {
	t.Parallel()
	dir := askDir(t, map[string]string{"old": "fixed tools=ask,handleAsk", "named": "fixed names tools=ask,handleAsk", "new": "modern tools=ask,handleAsk"})
	d := startDaemon(t, dir)
	connect(t, d.URL).awaitTools("named_ask", "named_handleAsk", "new_ask", "new_handleAsk", "old_ask", "old_handleAsk")
	ask := string(marshal(fakeAsk{Mark: "x", Bold: true, Asks: []fakeWish{askFor("form", "x")}}))
	const want = "call it as a tool, from an MCP client"
	for _, module := range []string{"old", "named", "new"} {
		var out, log output
		status := run(t.Context(), []string{"call", "-base", t.TempDir(), "-dir", dir, module, "ask", ask}, strings.NewReader(""), &out, &log, noEnv)
		lines := strings.Split(strings.TrimSpace(log.String()), "\n") // one, but for the one that says what takes long
		if text := lines[len(lines)-1]; status != 1 || len(lines) > 2 || !strings.Contains(text, want) {
			t.Errorf("usher call %s: %d %s%s", module, status, out.String(), text)
		}
		res, err := http.Post(d.URL+"webhook/"+module+"/handleAsk", "application/json", strings.NewReader(ask))
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(res.Body)
		res.Body.Close()
		if res.StatusCode != http.StatusInternalServerError || !strings.Contains(string(body), want) {
			t.Errorf("a webhook of %s: %d %s", module, res.StatusCode, body)
		}
	}
}

// TestAskBeforeTheFirstCall is of modules that ask as soon as they are started,
// as many do for roots.
func TestAskBeforeTheFirstCall(t *testing.T) {
	t.Parallel()
	dir := askDir(t, map[string]string{"a": "fixed roots tools=roots"})
	d := startDaemon(t, dir)
	connect(t, d.URL).awaitTools("a_roots")
	for _, way := range slices.Sorted(maps.Keys(askWays)) {
		c := askWays[way](t, d.URL, dir, askAllCaps)
		c.answer = askAnswer(way)
		msg := c.call("a_roots", struct{}{})
		if text := resultText(field(msg, "result")); !strings.Contains(text, way) && !strings.Contains(text, `file:///`+way) {
			t.Errorf("%s: %s", way, msg)
		}
		if len(c.asked) != 1 {
			t.Errorf("%s: asked %d times", way, len(c.asked))
		}
	}
}

// TestAskDeclared is of modules that say that they ask: no first request of one
// is refused, however many use it.
func TestAskDeclared(t *testing.T) {
	t.Parallel()
	dir := askDir(t, map[string]string{"a": "fixed tools=ask"})
	d := startDaemon(t, dir)
	connect(t, d.URL).awaitTools("a_ask")
	var all sync.WaitGroup
	var mu sync.Mutex
	pids := map[int]bool{}
	for i := range 4 {
		c := askOverPOST(t, d.URL, "2025-11-25", askAllCaps, "")
		c.answer = askAnswer(fmt.Sprint("client", i))
		all.Go(func() {
			pid, got, text := askGot(c.call("a_ask", fakeAsk{Mark: fmt.Sprint(i), Asks: []fakeWish{askFor("form", "x")}}))
			if len(got) != 1 || !strings.Contains(got[0], fmt.Sprint("client", i)) {
				t.Errorf("client %d: %s", i, text)
			}
			mu.Lock()
			defer mu.Unlock()
			pids[pid] = true
		})
	}
	all.Wait()
	if len(pids) != 4 {
		t.Errorf("4 clients had the processes %v", pids)
	}
}

// askStorm has many clients of all scopes ask at once, in so many rounds. Each
// answer names its client and its round, and must be what the very call gets
// that caused the question.
func askStorm(t *testing.T, sessions, rounds int) {
	dir, base := t.TempDir(), t.TempDir()
	writeFake(t, dir+"/proj/silent.usher", "fixed tools=ask")
	writeFake(t, dir+"/proj/named.usher", "fixed names tools=ask")
	writeFake(t, dir+"/proj/new.usher", "modern tools=ask")
	d := daemonOptions{base: base}.start(t, dir)
	connect(t, d.URL).awaitTools("named_ask", "new_ask", "silent_ask")
	proj, whole := newClaimFor(t, base, dir+"/proj").Code.Reveal(), newClaimFor(t, base, dir).Code.Reveal()
	type client struct {
		*askClient
		name, code string
	}
	var clients []client
	for i := range sessions {
		own := newClaimFor(t, base, dir+"/proj").Code.Reveal()
		clients = append(clients, client{askOverPOST(t, d.URL, protocols[i%len(protocols)], askAllCaps, own), fmt.Sprint("session ", i), own})
	}
	clients = append(clients, client{askOverPOST(t, d.URL, "2025-11-25", askAllCaps, whole), "session of the whole", whole},
		client{askOverPOST(t, d.URL, "2025-11-25", askAllCaps, ""), "session of none", ""})
	for i, code := range []string{proj, whole, "", "", ""} {
		c := client{askModern(t, d.URL, askAllCaps, code), fmt.Sprint("stateless ", i), code}
		if i == 4 {
			c.askClient.name = "another"
		}
		clients = append(clients, c)
	}
	var mu sync.Mutex
	owners := map[string]string{} // the code whose calls a process of the silent module has served
	var all sync.WaitGroup
	for nth, c := range clients {
		under := "" // the word of the call under way; one client makes one call at a time
		var undermu sync.Mutex
		c.answer = func(method string, params json.RawMessage) json.RawMessage {
			undermu.Lock()
			defer undermu.Unlock()
			if under == "" || !strings.Contains(string(params), "<"+under+">") {
				t.Errorf("%s, in the call %q, was asked with %s", c.name, under, params)
			}
			return askAnswer("<"+under+">")(method, params)
		}
		all.Go(func() {
			for i := range rounds {
				module := []string{"silent", "silent", "named", "new"}[(i+nth)%4]
				kind := askKinds[i%2].name // those that name a word
				word := fmt.Sprintf("%s, round %d", c.name, i)
				undermu.Lock()
				under = word
				undermu.Unlock()
				for again := true; again; {
					pid, got, text := askGot(c.call(module+"_ask", fakeAsk{Mark: word, Asks: []fakeWish{askFor(kind, "<"+word+">")}}))
					again = module == "silent" && strings.Contains(text, "can't tell which client") || strings.Contains(text, "is busy")
					if !again && (len(got) != 1 || strings.Count(text, "<") != 1 || !strings.Contains(text, "<"+word+">")) {
						t.Errorf("%s of %s got %s", word, module, text)
					}
					if module == "silent" && !again {
						mu.Lock()
						key := strconv.Itoa(pid)
						if was, ok := owners[key]; ok && was != c.code {
							t.Errorf("a process served callers of two scopes")
						}
						owners[key] = c.code
						mu.Unlock()
					}
				}
				undermu.Lock()
				under = ""
				undermu.Unlock()
				for len(c.asked) > 0 {
					<-c.asked
				}
			}
		})
	}
	all.Wait()
}

func TestAskManyAtOnce(t *testing.T) {
	t.Parallel()
	askStorm(t, 6, 5)
}

// TestAskThousandAtOnce has a thousand rounds, or USHER_STORM of them.
func TestAskThousandAtOnce(t *testing.T) {
	slow(t)
	rounds := 1000
	if text := os.Getenv("USHER_STORM"); text != "" {
		var err error
		if rounds, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	askStorm(t, 20, rounds)
}

// askState is the state that an answer gives out, which must ask for n things.
func askState(t *testing.T, a answer, n int) string {
	t.Helper()
	requests, _ := members(field(a.result(), "inputRequests"))
	state := stringField(a.result(), "requestState")
	if a.Status != 200 || stringField(a.result(), "resultType") != resultInput || len(requests) != n || state == "" {
		t.Fatalf("want %d questions: %d %s", n, a.Status, a.Body)
	}
	return state
}

// withState is the parts of a request that comes back.
func withState(state, responses string) object {
	more := object{{"requestState", quote(state)}}
	if responses != "" {
		more = append(more, member{"inputResponses", json.RawMessage(responses)})
	}
	return more
}

// wantStale holds that an answer is the error for a state that is no good.
func wantStale(t *testing.T, what string, a answer) {
	t.Helper()
	e := field(a.last(), "error")
	if a.Status != http.StatusBadRequest || string(field(e, "code")) != "-32602" || !strings.Contains(stringField(e, "message"), "requestState") {
		t.Errorf("%s: %d %s", what, a.Status, a.Body)
	}
}

func TestAskStates(t *testing.T) {
	t.Parallel()
	dir, base := t.TempDir(), t.TempDir()
	writeFake(t, dir+"/proj/a.usher", "fixed tools=ask,again")
	d := daemonOptions{base: base}.start(t, dir)
	connect(t, d.URL).awaitTools("a_again", "a_ask")
	proj, whole := newClaimFor(t, base, dir+"/proj").Code.Reveal(), newClaimFor(t, base, dir).Code.Reveal()
	c := askModern(t, d.URL, askAllCaps, proj)
	ask := fakeAsk{Mark: "states", Asks: []fakeWish{askFor("form", "x"), askFor("roots", "x")}}
	const good1, good2 = `{"action":"accept","content":{"n":1}}`, `{"roots":[]}`

	// Both questions are there at once, or the second after the first.
	a := c.round("a_ask", ask)
	if requests, _ := members(field(a.result(), "inputRequests")); len(requests) == 1 {
		first := stringField(a.result(), "requestState")
		a = c.round("a_ask", ask, withState(first, "")...)
		await(t, "the second question", func() bool {
			requests, _ := members(field(a.result(), "inputRequests"))
			if len(requests) == 2 {
				return true
			}
			a = c.round("a_ask", ask, withState(stringField(a.result(), "requestState"), "")...)
			return false
		})
		wantStale(t, "the state before", c.round("a_ask", ask, withState(first, "")...))
	}
	state := askState(t, a, 2)
	form, roots := "ask-1", "ask-2" // which of the two is first is left to chance
	if stringField(field(field(a.result(), "inputRequests"), form), "method") == "roots/list" {
		form, roots = roots, form
	}
	answers := func(pattern string) string { return strings.NewReplacer("FORM", form, "ROOTS", roots).Replace(pattern) }
	good := answers(`{"FORM":` + good1 + `,"ROOTS":` + good2 + `}`)
	flip := func(i int) string {
		b := []byte(state)
		b[i] = map[bool]byte{true: 'B', false: 'A'}[b[i] == 'A']
		return string(b)
	}
	for what, bad := range map[string]string{
		"first byte": flip(0), "in the nonce": flip(10), "middle": flip(len(state) / 2), "last but one": flip(len(state) - 2), "last": flip(len(state) - 1),
		"appended": state + "A", "padded": state + "=", "cut short": state[:len(state)-1], "half": state[:len(state)/2], "empty": "",
		"newline within": state[:9] + "\n" + state[9:], "newline after": state + "\n", "CR LF": state[:20] + "\r\n" + state[20:], "space": " " + state,
		"twice": state + state, "of something else": base64.RawURLEncoding.EncodeToString(make([]byte, 80)),
	} {
		wantStale(t, what, c.round("a_ask", ask, withState(bad, good)...))
	}
	for what, raw := range map[string]string{"a number": "7", "null": "null", "an object": `{"a":"` + state + `"}`, "a list": `["` + state + `"]`} {
		wantStale(t, what, c.round("a_ask", ask, member{"requestState", json.RawMessage(raw)}, member{"inputResponses", json.RawMessage(good)}))
	}
	for i := range state { // each byte
		if a := c.round("a_ask", ask, withState(flip(i), good)...); a.Status != http.StatusBadRequest {
			t.Errorf("byte %d: %d %s", i, a.Status, a.Body)
		}
	}
	for what, code := range map[string]string{"another claim": whole, "no claim": ""} {
		wantStale(t, what, askModern(t, d.URL, askAllCaps, code).round("a_ask", ask, withState(state, good)...))
	}
	wantStale(t, "other capabilities", askModern(t, d.URL, `{"elicitation":{},"roots":{}}`, proj).round("a_ask", ask, withState(state, good)...))
	other := ask
	other.Mark = "stolen"
	wantStale(t, "other arguments", c.round("a_ask", other, withState(state, good)...))
	wantStale(t, "another tool", c.round("a_again", ask, withState(state, good)...))

	// None of that has used the state up. What is no answer is asked for again.
	for _, responses := range []string{`[]`, `null`, `"x"`, `{"FORM":3}`, `{"FORM":null}`, `{"ROOTS":[]}`} {
		state = askState(t, c.round("a_ask", ask, withState(state, answers(responses))...), 2)
	}
	second := askState(t, c.round("a_ask", ask, withState(state, answers(`{"ROOTS":`+good2+`,"ask-9":{}}`))...), 1)
	if second == state {
		t.Error("a new round has the old state")
	}
	wantStale(t, "used", c.round("a_ask", ask, withState(state, good)...))
	// The same arguments, written in another way, by several requests at once:
	// one goes on with the call.
	spaced := json.RawMessage(` { "asks" : ` + string(marshal(ask.Asks)) + ` , "mark" : "states" } `)
	back := make(chan answer, 8)
	for range cap(back) {
		go func() {
			back <- c.round("a_ask", spaced, withState(second, answers(`{"FORM":`+good1+`}`))...)
		}()
	}
	finished := 0
	for range cap(back) {
		if a := <-back; a.Status == http.StatusOK {
			finished++
			if _, got, text := askGot(a.last()); !slices.Equal(got, []string{good1, good2}) {
				t.Errorf("the end: %s", text)
			}
		} else {
			wantStale(t, "at once", a)
		}
	}
	if finished != 1 {
		t.Errorf("%d of the requests with one state went on", finished)
	}
	wantStale(t, "after the end", c.round("a_ask", ask, withState(second, good)...))
	askStep(t, d, "answered", "states")
	if log := d.Log.String(); strings.Count(log, "fake: asked states ") != 1 || strings.Contains(log, "stolen") || strings.Count(log, "fake: answered states ") != 1 {
		t.Errorf("the module was called more than once:\n%s", log)
	}
}

func TestAskStateAfterARestart(t *testing.T) {
	t.Parallel()
	dir, base := askDir(t, map[string]string{"a": "fixed tools=ask"}), t.TempDir()
	ask := fakeAsk{Mark: "restart", Asks: []fakeWish{askFor("form", "x")}}
	d := daemonOptions{base: base, ownProcess: true}.start(t, dir)
	connect(t, d.URL).awaitTools("a_ask")
	state := askState(t, askModern(t, d.URL, askAllCaps, "").round("a_ask", ask), 1)
	pid := askPID(t, d, "restart")
	d.stop(t)
	if processAlive(pid) {
		t.Error("the parked call's process lives on")
	}
	d = daemonOptions{base: base, ownProcess: true}.start(t, dir)
	connect(t, d.URL).awaitTools("a_ask")
	wantStale(t, "after a restart", askModern(t, d.URL, askAllCaps, "").round("a_ask", ask, withState(state, `{"ask-1":{"action":"cancel"}}`)...))
	if strings.Contains(d.Log.String(), "fake: asked") {
		t.Error("the state of another run reached the module")
	}
}

// TestAskAnsweredAfterARestart is of a client that answers, after a restart of the
// daemon, what it was asked before: that is no answer to what it is asked since.
func TestAskAnsweredAfterARestart(t *testing.T) {
	t.Parallel()
	dir, base := askDir(t, map[string]string{"a": "fixed tools=ask"}), t.TempDir()
	d := daemonOptions{base: base, ownProcess: true}.start(t, dir)
	connect(t, d.URL).awaitTools("a_ask")
	c := askOverPOST(t, d.URL, "2025-11-25", askAllCaps, "")
	c.answer = askSilent
	asks := func(word string) (id json.RawMessage, answer <-chan json.RawMessage) {
		ask := fakeAsk{Mark: word, Asks: []fakeWish{askFor("form", word)}}
		answer = c.send(t.Context(), c.nextID(), "tools/call", string(object{{"name", quote("a_ask")}, {"arguments", marshal(ask)}}.encode()))
		return field(<-c.asked, "id"), answer
	}
	says := func(id json.RawMessage, word string) {
		t.Helper()
		if err := c.post(t.Context(), encodeResult(id, askAnswer(word)("elicitation/create", nil))); err != nil {
			t.Error(err)
		}
	}
	before, _ := asks("one thing")
	d.stop(t)
	d = daemonOptions{base: base, ownProcess: true}.start(t, dir)
	c.http.URL = d.URL
	after, answer := asks("another")
	says(before, "to the one")
	says(after, "to the other")
	if _, got, text := askGot(c.get(answer)); len(got) != 1 || !strings.Contains(got[0], "to the other") {
		t.Errorf("the module got %s", text)
	}
}

// askPID waits for the step of a fake that asks, and returns its process.
func askPID(t *testing.T, d *testDaemon, mark string) int { return askStep(t, d, "asked", mark) }

func askStep(t *testing.T, d *testDaemon, step, mark string) (pid int) {
	t.Helper()
	await(t, step+" "+mark, func() bool {
		_, rest, ok := strings.Cut(d.Log.String(), "fake: "+step+" "+mark+" ")
		fmt.Sscan(rest, &pid)
		return ok && pid > 0 && strings.Contains(rest, "\n")
	})
	return pid
}

// TestSuspendedForTooLong is of a client that comes back in time, and not, and of
// the daemon's end.
func TestSuspendedForTooLong(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		k := newSuspendedCalls(ctx)
		var failed error // of the latest call
		do := func(params string) (json.RawMessage, error) {
			return k.do(ctx, Caller{}, "tools/call", objectOf(params), func(ctx context.Context, caller Caller) (json.RawMessage, error) {
				var got json.RawMessage
				for range 2 {
					answer, err := caller.Ask(ctx, "roots/list", nil)
					if err != nil {
						failed = context.Cause(ctx)
						return nil, err
					}
					got = append(got, answer...)
				}
				return got, nil
			})
		}
		begin := func() string {
			result, err := do(`{}`)
			if err != nil {
				t.Fatal(err)
			}
			return stringField(result, "requestState")
		}
		resume := func(state, key string) (json.RawMessage, error) {
			return do(`{"requestState":"` + state + `","inputResponses":{"` + key + `":{"roots":[]}}}`)
		}
		state := begin()
		pass(suspendTimeout - time.Second)
		result, err := resume(state, "ask-1")
		if err != nil {
			t.Fatal(err)
		}
		state = stringField(result, "requestState")
		pass(suspendTimeout - time.Second) // counted from the last round
		if result, err := resume(state, "ask-2"); err != nil || string(result) != `{"roots":[]}{"roots":[]}` {
			t.Errorf("in time: %s %v", result, err)
		}
		state = begin()
		pass(suspendTimeout + time.Second)
		synctest.Wait()
		if failed != errNotResumed {
			t.Errorf("the call ended with %v", failed)
		}
		if _, err := resume(state, "ask-1"); err == nil || asRPCError(err).Code != codeInvalidParams || len(k.calls) != 0 {
			t.Errorf("too late: %v, %d calls left", err, len(k.calls))
		}
		state = begin() // and one that the daemon's end ends
		cancel()
		k.wg.Wait()
		if _, err := resume(state, "ask-1"); err == nil || !errors.Is(failed, context.Canceled) {
			t.Errorf("after the end: %v %v", err, failed)
		}
	})
}

// TestAskClientGone is of a client that was there when it was asked, and is not
// any more.
func TestAskClientGone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var s pendingRequests
		var sent []string
		send := func(msg []byte) bool { sent = append(sent, stringField(msg, "method")); return true }
		ctx, cancel := context.WithCancelCause(context.Background())
		time.AfterFunc(time.Hour, func() { cancel(errCancelled) })
		_, err := s.ask(ctx, send, "roots/list", nil)
		if want := []string{"roots/list", "notifications/cancelled"}; err != errCancelled || !slices.Equal(sent, want) {
			t.Errorf("cancelled: %v, sent %v", err, sent)
		}
		if _, err := s.ask(context.Background(), func([]byte) bool { return false }, "roots/list", nil); err != errUnheard {
			t.Errorf("unheard: %v", err)
		}
		time.AfterFunc(time.Second, s.fail)
		if _, err := s.ask(context.Background(), send, "roots/list", nil); err != errGone {
			t.Errorf("hung up: %v", err)
		}
		if _, err := s.ask(context.Background(), send, "roots/list", nil); err != errGone || s.size() != 0 {
			t.Errorf("after that: %v, %d waiting", err, s.size())
		}
	})
}

// TestAskPatience is of clients that are there and never answer. What then
// becomes of the call is the module's to say.
func TestAskPatience(t *testing.T) {
	t.Parallel()
	const late = "the client did not answer within 10m0s"
	for _, tt := range []struct {
		name, version, tool string
		modern              bool // the module
		answer              string
	}{
		{"it copes", "2025-11-25", "m_ask", false, `"content":[{"type":"text","text":"{\"code\":-32603,\"refused\":\"` + late + `\"}"}]`},
		{"it does not", "2025-11-25", "m_need", false, `"error":{"code":-32050,"message":"without it: ` + late + `"}`},
		{"it speaks of no sessions", "2025-11-25", "m_ask", true, `"error":{"code":-32603,"message":"` + late + `"}`},
		{"a batch", "2025-03-26", "m_ask", false, `[{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"{\"code\":-32603,\"refused\":\"` + late + `\"}"}]}}]`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *bubble) {
				b.native, b.m.Stateless = tt.modern, tt.modern
				b.m.callTimeout = askTimeout / 2 // it is not the module that is slow
				c := b.open(tt.version)
				body := c.message("tools/call", `{"name":"`+tt.tool+`"}`)
				if tt.version == batchProtocol {
					body = "[" + body + "]"
				}
				x := b.begin(c.request(http.MethodPost, body))
				pass(askTimeout - time.Nanosecond)
				if heard := b.hears(); heard != "tools/call" {
					t.Errorf("until then the module hears %q", heard)
				}
				if _, text := x.got(); !strings.Contains(text, `"method":"elicitation/create"`) || strings.Contains(text, "notifications/cancelled") {
					t.Errorf("until then its client has %q", text)
				}
				pass(time.Nanosecond)
				_, text := x.got()
				if _, after, _ := strings.Cut(text, `"method":"notifications/cancelled","params":{"requestId":"usher-`); !strings.Contains(after, tt.answer) {
					t.Errorf("then it has %q, want an answer with %s", text, tt.answer)
				}
				if heard := b.hears(); !tt.modern && heard != `{"code":-32603,"refused":"`+late+`"}` || tt.modern && heard != "" {
					t.Errorf("then the module hears %q", heard)
				}
				<-x.done
			})
		})
	}
	t.Run("a client without a session comes back empty-handed", func(t *testing.T) {
		inBubble(t, func(t *testing.T, b *bubble) {
			const params = `{"name":"m_ask","_meta":{"io.modelcontextprotocol/clientCapabilities":{"elicitation":{}}}}`
			state := askState(t, b.modern("tools/call", params), 1)
			back := func() answer {
				return b.modern("tools/call", string(withMember(json.RawMessage(params), "requestState", quote(state))))
			}
			for range 2 {
				pass(suspendTimeout - time.Second)
				state = askState(t, back(), 1)
			}
			b.hears()
			pass(2 * time.Second)
			if heard := b.hears(); heard != `{"code":-32603,"refused":"`+late+`"}` {
				t.Errorf("the module hears %q", heard)
			}
			wantStale(t, "afterwards", back())
			pass(recheckInterval)
			if n := b.suspended(); n != 0 {
				t.Errorf("%d calls are parked", n)
			}
		})
	})
}

func TestAskBounds(t *testing.T) {
	t.Parallel()
	dir, base := askDir(t, map[string]string{"a": "fixed names tools=ask", "b": "fixed names tools=ask", "c": "fixed names tools=ask"}), t.TempDir()
	d := daemonOptions{base: base}.start(t, dir)
	connect(t, d.URL).awaitTools("a_ask", "b_ask", "c_ask")
	c := askModern(t, d.URL, askAllCaps, "")
	ask := fakeAsk{Mark: "bounds", Asks: []fakeWish{askFor("form", "x")}}
	states, elsewhere := make(chan string, maxSuspended), make(chan string, maxSuspended)
	var all sync.WaitGroup
	for range maxRunningOf {
		all.Go(func() { states <- stringField(c.round("a_ask", ask).result(), "requestState") })
	}
	for range maxSuspended - maxRunningOf {
		all.Go(func() { elsewhere <- stringField(c.round("b_ask", ask).result(), "requestState") })
	}
	all.Wait()
	if a := c.round("c_ask", ask); !strings.Contains(a.failure(), "too many calls are waiting for client input") {
		t.Errorf("one call too many: %s", a.Body)
	}
	other := askModern(t, d.URL, askAllCaps, newClaimFor(t, base, dir).Code.Reveal())
	askState(t, other.round("a_ask", ask), 1)
	const good = `{"ask-1":{"action":"decline"}}`
	if a := c.round("a_ask", ask, withState(<-states, good)...); a.failure() != "" || !strings.Contains(resultText(a.result()), "decline") {
		t.Errorf("one of them: %s", a.Body)
	}
	askState(t, c.round("c_ask", ask), 1)
	close(states)
	for state := range states {
		all.Go(func() {
			if a := c.round("a_ask", ask, withState(state, good)...); a.failure() != "" || !strings.Contains(resultText(a.result()), "decline") {
				t.Errorf("one of them: %s", a.Body)
			}
		})
	}
	all.Wait()

	// A flood of questions in one call: some are refused, and none is forgotten.
	var flood fakeAsk
	for range 5 * maxAsks {
		flood.Asks = append(flood.Asks, askFor("form", "x"))
	}
	flood.Copes = true
	s := askOverPOST(t, d.URL, "2025-11-25", askAllCaps, "")
	s.answer = askAnswer("flood")
	if _, got, text := askGot(s.call("a_ask", flood)); len(got) != len(flood.Asks) || !strings.Contains(text, "flood") {
		t.Errorf("a flood: %s", text)
	}
}

// TestAskEndsCleanly ends calls in each way while their clients are asked, and
// looks for what is left.
func TestAskEndsCleanly(t *testing.T) {
	before := runtime.NumGoroutine()
	dir := askDir(t, map[string]string{"a": "fixed tools=ask", "n": "fixed names tools=ask"})
	d := startDaemon(t, dir)
	connect(t, d.URL).awaitTools("a_ask", "n_ask")
	var pids []int
	begin := func(c *askClient, mark string, late bool) (id string, answer <-chan json.RawMessage) {
		t.Helper()
		asked := 0
		c.answer = func(method string, params json.RawMessage) json.RawMessage {
			if asked++; asked == 1 {
				return nil
			}
			return askAnswer("late")(method, params)
		}
		id = c.nextID()
		answer = c.send(t.Context(), id, "tools/call", string(object{{"name", quote("a_ask")},
			{"arguments", marshal(fakeAsk{Mark: mark, Late: late, Asks: []fakeWish{askFor("form", mark)}})}}.encode()))
		<-c.asked
		pids = append(pids, askPID(t, d, mark))
		return id, answer
	}
	cancel := func(c *askClient, id string) {
		c.post(context.Background(), encodeRequest(nil, "notifications/cancelled", json.RawMessage(`{"requestId":`+id+`}`)))
	}
	t.Run("its stream ends", func(t *testing.T) {
		c := askOverSSE(t, d.URL, askAllCaps, "")
		begin(c, "hangs-up", false)
		c.hangUp()
		await(t, "the end of the process, which was the session's alone", func() bool { return !processAlive(pids[len(pids)-1]) })
	})
	t.Run("its session ends", func(t *testing.T) {
		c := askOverPOST(t, d.URL, "2025-11-25", askAllCaps, "")
		_, answer := begin(c, "deleted", false)
		if a := c.http.do(c.http.request(http.MethodDelete, "")); a.Status != http.StatusNoContent {
			t.Errorf("DELETE: %d", a.Status)
		}
		await(t, "the end of the process, which was the session's alone", func() bool { return !processAlive(pids[len(pids)-1]) })
		if msg := c.get(answer); field(msg, "error") == nil {
			t.Errorf("the call: %s", msg)
		}
	})
	t.Run("the module crashes", func(t *testing.T) {
		c := askOverPOST(t, d.URL, "2025-11-25", askAllCaps, "")
		_, answer := begin(c, "crashes", false)
		p, _ := os.FindProcess(pids[len(pids)-1])
		p.Kill()
		if msg := c.get(answer); !strings.Contains(string(msg), "crashed") {
			t.Errorf("the call: %s", msg)
		}
		c.answer = askAnswer("again")
		if _, got, text := askGot(c.call("a_ask", fakeAsk{Mark: "again", Asks: []fakeWish{askFor("form", "x")}})); len(got) != 1 {
			t.Errorf("the next call: %s", text)
		}
	})
	for name, connect := range map[string]func(*testing.T) *askClient{
		"2025-11-25": func(t *testing.T) *askClient { return askOverPOST(t, d.URL, "2025-11-25", askAllCaps, "") },
		"HTTP+SSE":   func(t *testing.T) *askClient { return askOverSSE(t, d.URL, askAllCaps, "") },
	} {
		t.Run("its client cancels, "+name, func(t *testing.T) {
			for i := range 5 {
				c := connect(t)
				mark := fmt.Sprintf("cancels-%s-%d", name, i)
				id, _ := begin(c, mark, false)
				cancel(c, id)
				askStep(t, d, "cancelled", mark)
				c.hears("notifications/cancelled", "usher-")
			}
		})
	}
	t.Run("it asks after the cancellation", func(t *testing.T) {
		c := askOverPOST(t, d.URL, "2025-11-25", askAllCaps, "")
		id, _ := begin(c, "late", true)
		cancel(c, id)
		await(t, "the refusal", func() bool { return strings.Contains(d.Log.String(), "fake: late, got ") })
		if _, rest, _ := strings.Cut(d.Log.String(), "fake: late, got "); !strings.Contains(rest, "no stream open") && !strings.Contains(rest, "is not under way") && len(c.asked) != 1 {
			t.Errorf("what is asked late: %s", rest)
		}
	})
	modern := askModern(t, d.URL, askAllCaps, "") // parked when the daemon ends
	for _, tool := range []string{"a_ask", "n_ask"} {
		askState(t, modern.round(tool, fakeAsk{Mark: "parked-" + tool, Asks: []fakeWish{askFor("form", "x")}}), 1)
		pids = append(pids, askPID(t, d, "parked-"+tool))
	}
	modern.http.http.CloseIdleConnections()
	http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	d.stop(t)
	for _, pid := range pids {
		await(t, "the end of a process", func() bool { return !processAlive(pid) })
	}
	await(t, "all goroutines to end", func() bool { return runtime.NumGoroutine() <= before })
}

// TestAskOfOneOfSeveral is of a module that does not say in which of its session's
// calls it asks: that a later one ends does not end what an earlier one asks.
func TestAskOfOneOfSeveral(t *testing.T) {
	t.Parallel()
	dir := askDir(t, map[string]string{"a": "fixed tools=ask"})
	d := startDaemon(t, dir)
	connect(t, d.URL).awaitTools("a_ask")
	for _, way := range []string{"2025-11-25", "HTTP+SSE", "stdio"} {
		c := askWays[way](t, d.URL, dir, askAllCaps)
		c.answer = askSilent
		call := func(words ...string) <-chan json.RawMessage {
			ask := fakeAsk{Mark: words[0], Turns: true}
			for _, word := range words {
				ask.Asks = append(ask.Asks, askFor("form", word))
			}
			return c.send(t.Context(), c.nextID(), "tools/call", string(object{{"name", quote("a_ask")}, {"arguments", marshal(ask)}}.encode()))
		}
		asks := func(word string) json.RawMessage {
			t.Helper()
			question := <-c.asked
			if stringField(field(question, "params"), "message") != word {
				t.Fatalf("%s: asked %s, want one about %s", way, question, word)
			}
			return field(question, "id")
		}
		answer := func(id json.RawMessage, word string) {
			if err := c.post(t.Context(), encodeResult(id, askAnswer("said to "+word)("elicitation/create", nil))); err != nil {
				t.Error(err)
			}
		}
		ends := func(answer <-chan json.RawMessage, words ...string) {
			t.Helper()
			_, got, text := askGot(c.get(answer))
			for i, word := range words {
				if len(got) != len(words) || !strings.Contains(got[i], "said to "+word) {
					t.Errorf("%s: %s", way, text)
				}
			}
		}
		early := call("first", "second")
		first := asks("first")
		late := call("other")
		other := asks("other")
		answer(first, "first")
		second := asks("second") // while two calls are under way
		answer(other, "other")
		ends(late, "other")
		answer(second, "second")
		ends(early, "first", "second")
		if len(c.heard) > 0 {
			t.Errorf("%s: the client heard %s", way, c.heard)
		}
	}
}

// TestAskResumed is of a client whose stream broke off before it had the
// question, and which comes back for it.
func TestAskResumed(t *testing.T) {
	t.Parallel()
	dir := askDir(t, map[string]string{"a": "fixed tools=ask"})
	d := startDaemon(t, dir)
	connect(t, d.URL).awaitTools("a_ask")
	c := askOverPOST(t, d.URL, "2025-11-25", askAllCaps, "")
	c.answer = askAnswer("resumed")
	ctx, hangUp := context.WithCancel(t.Context())
	req := c.http.request(http.MethodPost, string(encodeRequest(json.RawMessage("7"), "tools/call", object{{"name", quote("a_ask")},
		{"arguments", marshal(fakeAsk{Mark: "resumed", Asks: []fakeWish{askFor("form", "x")}})}}.encode()))).WithContext(ctx)
	req.Header.Set("Accept", "text/event-stream, application/json") // a stream from the start
	res, err := c.http.http.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(res.Body).ReadString('\n')
	id, ok := strings.CutPrefix(strings.TrimSpace(line), "id: ")
	if !ok {
		t.Fatalf("the stream begins with %q, %v", line, err)
	}
	hangUp()
	res.Body.Close()
	askPID(t, d, "resumed")
	answer := make(chan json.RawMessage, 1)
	c.wait["7"] = answer
	get := c.http.request(http.MethodGet, "")
	get.Header.Set(eventHeader, id)
	get.Header.Set("Accept", "text/event-stream")
	res, err = c.http.http.Do(get)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	c.takeEvents(res.Body)
	if msg := c.get(answer); !strings.Contains(string(msg), "resumed") || len(c.asked) != 1 {
		t.Errorf("%s, asked %d times", msg, len(c.asked))
	}
}

// TestAskOfWhoTakesNoStream is of clients that take no stream as an answer: they
// can be asked if they listen.
func TestAskOfWhoTakesNoStream(t *testing.T) {
	t.Parallel()
	dir := askDir(t, map[string]string{"a": "fixed tools=ask"})
	d := startDaemon(t, dir)
	connect(t, d.URL).awaitTools("a_ask")
	c := askOverPOST(t, d.URL, "2025-03-26", askAllCaps, "")
	c.http.Header.Set("Accept", "application/json")
	c.answer = askAnswer("heard")
	ask := fakeAsk{Mark: "no-stream", Asks: []fakeWish{askFor("form", "x")}}
	if msg := c.call("a_ask", ask); !strings.Contains(string(msg), "no stream open") {
		t.Errorf("without a stream: %s", msg)
	}
	messages, _ := c.http.listen()
	go func() {
		for msg := range messages {
			c.take(msg)
		}
	}()
	if _, got, text := askGot(c.call("a_ask", ask)); len(got) != 1 || !strings.Contains(text, "heard") {
		t.Errorf("with one: %s", text)
	}
}

// TestAskTellsItsCallerAlone is of progress and log messages beside a question.
func TestAskTellsItsCallerAlone(t *testing.T) {
	t.Parallel()
	dir := askDir(t, map[string]string{"old": "fixed tools=ask", "named": "fixed names tools=ask"})
	d := startDaemon(t, dir)
	connect(t, d.URL).awaitTools("named_ask", "old_ask")
	for _, module := range []string{"named", "old"} {
		var all sync.WaitGroup
		clients := map[string]*askClient{}
		for _, way := range []string{"2025-11-25", "2025-03-26", "HTTP+SSE", "2026-07-28"} {
			c := askWays[way](t, d.URL, dir, askAllCaps)
			c.level = "info"
			c.answer = askAnswer(way)
			if strings.HasPrefix(way, "2025") {
				messages, _ := c.http.listen()
				go func() {
					for msg := range messages {
						c.take(msg)
					}
				}()
			}
			if module == "old" { // so that each has a process of its own
				c.call("old_ask", fakeAsk{Mark: "first", Asks: []fakeWish{askFor("form", "x")}})
			}
			clients[way] = c
		}
		idle := askOverPOST(t, d.URL, "2025-11-25", askAllCaps, "")
		clients["idle"] = idle
		messages, _ := idle.http.listen()
		go func() {
			for msg := range messages {
				idle.take(msg)
			}
		}()
		for way, c := range clients {
			if way == "idle" {
				continue
			}
			all.Go(func() {
				params := object{{"name", quote(module + "_ask")},
					{"arguments", marshal(fakeAsk{Mark: "of " + way, Tells: true, Asks: []fakeWish{askFor("form", way)}})}}.encode()
				for round := 0; round < 9; round++ {
					token := fmt.Sprintf("%s round %d", way, round)
					own := setMeta(params, "progressToken", quote(token))
					var result json.RawMessage
					if c.meta == "" {
						result = field(c.get(c.send(t.Context(), c.nextID(), "tools/call", string(own))), "result")
					} else {
						a, err := c.http.try(c.modernRequest(own))
						if err != nil {
							t.Errorf("%s: %v", way, err)
							return
						}
						for _, msg := range a.Events[:len(a.Events)-1] {
							if method := stringField(msg, "method"); method == "notifications/progress" && stringField(field(msg, "params"), "progressToken") != token {
								t.Errorf("%s: in round %d came %s", way, round, msg)
							}
							c.take(msg)
						}
						result = a.result()
					}
					if stringField(result, "resultType") != resultInput {
						if result == nil || !strings.Contains(resultText(result), way) {
							t.Errorf("%s of %s: %s", way, module, result)
						}
						return
					}
					params = c.answered(params, result)
				}
			})
		}
		all.Wait()
		for way, c := range clients {
			if way == "idle" {
				continue
			}
			for _, when := range []string{"before", "after"} {
				c.hears("notifications/progress", "of "+way+" "+when)
				c.hears("notifications/message", "of "+way+" "+when)
			}
		}
		for way, c := range clients {
			c.mu.Lock()
			for _, msg := range c.heard {
				if strings.Contains(string(msg), `"of `) && !strings.Contains(string(msg), `"of `+way+` `) || strings.Contains(string(msg), metaCall) {
					t.Errorf("%s heard %s", way, msg)
				}
			}
			c.mu.Unlock()
		}
	}
}

// TestAskLate is of a module that asks when its call is over, and of a client that
// may not reach the module any more by then.
func TestAskLate(t *testing.T) {
	t.Parallel()
	for _, way := range []string{"2025-11-25", "HTTP+SSE"} {
		present := func(t *testing.T, c *askClient, claims *ClaimStore) {
			other, err := claims.Create(t.Context(), t.TempDir(), "", time.Hour)
			if err != nil {
				t.Fatal(err)
			}
			c.http.Header.Set(claimHeader, other.Code.Reveal())
		}
		for _, tt := range []struct {
			name string
			end  func(t *testing.T, c *askClient, claims *ClaimStore, code Code)
			says string
			only string // the way that it is about; "" for both
		}{
			{"it still may", func(*testing.T, *askClient, *ClaimStore, Code) {}, `"action":"accept"`, ""},
			{"its claim is revoked", func(t *testing.T, _ *askClient, claims *ClaimStore, code Code) {
				if _, err := claims.Revoke(t.Context(), code); err != nil {
					t.Error(err)
				}
			}, "may not reach", ""},
			{"it moves to another claim", func(t *testing.T, c *askClient, claims *ClaimStore, _ Code) {
				present(t, c, claims)
			}, "may not reach", "2025-11-25"},
			{"another claim is refused", func(t *testing.T, c *askClient, claims *ClaimStore, _ Code) {
				own := c.http.Header.Clone()
				present(t, c, claims)
				if a := c.http.ask("ping", ""); a.Status != http.StatusBadRequest || a.failure() != errKeepsClaim.Error() {
					t.Errorf("%d %s", a.Status, a.Body)
				}
				c.http.Header = own
			}, `"action":"accept"`, "HTTP+SSE"},
		} {
			if tt.only != "" && tt.only != way {
				continue
			}
			t.Run(way+", "+tt.name, func(t *testing.T) {
				t.Parallel()
				dir := askDir(t, map[string]string{"a": "fixed tools=ask"})
				d := startDaemon(t, dir)
				store := openStore(t, d.Base)
				claim, err := store.Create(t.Context(), dir, "", time.Hour)
				if err != nil {
					t.Fatal(err)
				}
				connect(t, d.URL).awaitTools("a_ask")
				c := askWays[way](t, d.URL, dir, askAllCaps)
				c.http.Header.Set(claimHeader, claim.Code.Reveal())
				c.answer = askAnswer("yes")
				if way != "HTTP+SSE" {
					messages, _ := c.http.listen()
					go func() {
						for msg := range messages {
							c.take(msg)
						}
					}()
				}
				id := c.nextID()
				c.send(t.Context(), id, "tools/call", string(object{{"name", quote("a_ask")},
					{"arguments", marshal(fakeAsk{Mark: "m", Late: true, Stays: true, Asks: []fakeWish{askFor("url", "x")}})}}.encode()))
				askStep(t, d, "answered", "m")
				<-c.asked
				tt.end(t, c, store, claim.Code)
				if err := c.post(t.Context(), encodeRequest(nil, "notifications/cancelled", json.RawMessage(`{"requestId":`+id+`}`))); err != nil {
					t.Error(err)
				}
				await(t, "what came back", func() bool { return strings.Contains(d.Log.String(), "fake: late, got ") })
				if _, rest, _ := strings.Cut(d.Log.String(), "fake: late, got "); !strings.Contains(strings.ReplaceAll(rest, `\`, ""), tt.says) {
					t.Errorf("the module got %s", rest)
				}
				if tt.says != "may not reach" {
					c.hears("notifications/elicitation/complete", `"x"`)
					return
				}
				c.mu.Lock()
				defer c.mu.Unlock()
				if heard := fmt.Sprintf("%s", c.heard); len(c.asked) > 0 || strings.Contains(heard, "elicitation") {
					t.Errorf("it was asked %d times, and heard %s", len(c.asked), heard)
				}
			})
		}
	}
}

// TestAskOfASubscription is of a module that asks when somebody subscribes to a
// resource: that is no question to somebody else, whose calls it has served.
func TestAskOfASubscription(t *testing.T) {
	t.Parallel()
	d := startDaemon(t, askDir(t, map[string]string{"a": "good tools=pid res=a wants"}))
	connect(t, d.URL).awaitTools("a_pid")
	listening := func() *askClient {
		c := askOverPOST(t, d.URL, "2025-11-25", askAllCaps, "")
		messages, _ := c.http.listen()
		go func() {
			for msg := range messages {
				c.take(msg)
			}
		}()
		return c
	}
	caller, subscriber := listening(), listening()
	caller.call("a_pid", struct{}{})
	result := subscriber.get(subscriber.send(t.Context(), subscriber.nextID(), "resources/subscribe", `{"uri":"a://one"}`))
	if field(result, "result") == nil {
		t.Errorf("subscribing: %s", result)
	}
	if len(caller.asked) != 0 || len(subscriber.asked) != 1 {
		t.Errorf("who calls is asked %d times, who subscribes %d times", len(caller.asked), len(subscriber.asked))
	}
}

// TestAskProgressOfARound is of a call whose rounds differ in whether they want
// progress, and under which token.
func TestAskProgressOfARound(t *testing.T) {
	t.Parallel()
	dir := askDir(t, map[string]string{"a": "fixed tools=ask"})
	d := startDaemon(t, dir)
	connect(t, d.URL).awaitTools("a_ask")
	c := askModern(t, d.URL, askAllCaps, "")
	for _, row := range []struct{ first, then string }{{``, `"b"`}, {`"a"`, ``}, {`7`, `"7"`}, {``, ``}} {
		params := object{{"name", quote("a_ask")}, {"arguments", marshal(fakeAsk{Mark: "progress", Tells: true, Asks: []fakeWish{askFor("form", "x")}})}}.encode()
		for _, token := range []string{row.first, row.then} {
			own := params
			if token != "" {
				own = setMeta(params, "progressToken", json.RawMessage(token))
			}
			a, err := c.http.try(c.modernRequest(own))
			if err != nil {
				t.Fatal(err)
			}
			var got, want []string
			for _, msg := range a.Events {
				if stringField(msg, "method") == "notifications/progress" {
					got = append(got, string(field(field(msg, "params"), "progressToken")))
				}
			}
			if token != "" {
				want = []string{token}
			}
			if !slices.Equal(got, want) {
				t.Errorf("%+v: with the token %s came progress under %v", row, token, got)
			}
			if stringField(a.result(), "resultType") == resultInput {
				params = c.answered(params, a.result())
			}
		}
	}
}
