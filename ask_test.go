// Helpers of the ask tests, in which a module asks its client in the middle of a call. The client's answer must
// come from the client that made the call, and reach only the module that asked.

package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
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
