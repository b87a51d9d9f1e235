// Asking across the revisions: clients and modules of each revision and transport, what a client
// has declared, and callers that can't be asked.

package main

import (
	"encoding/json"
	"net/http"
	"slices"
	"testing"

	"usher/internal/mcptest"
)

// Every client can be asked by every kind of module, whatever the revision of each. A module may ask
// for roots as soon as it starts: the ask waits for the first call.
func TestAskReachesEveryClient(t *testing.T) {
	long(t)
	d := startFakes(t,
		"early: fixed roots tools=roots",
		"old: fixed tools=ask",
		"named: fixed names tools=ask",
		"new: modern tools=ask",
	)
	for way, connect := range askWays {
		t.Run(way, func(t *testing.T) {
			c := connect(t, d.URL, d.Dir, askAllCaps)
			c.Answer = askAnswer("some-roots")
			checkContains(t, "the result", c.Call("early_roots", struct{}{}), "some-roots")
			check(t, "requests to the client", len(c.Asked), 1)
			c.ForgetAsked()
			for _, module := range []string{"old", "named", "new"} {
				t.Run(module+" asks for all at once", func(t *testing.T) {
					askForAll(t, c, module)
				})
				if c.Meta != "" {
					continue // such a client can't answer with an error
				}
				t.Run(module+" is refused", func(t *testing.T) {
					c.Answer = func(string, json.RawMessage) json.RawMessage {
						return json.RawMessage(`{"error":{"code":-1,"message":"the user said no"}}`)
					}
					msg := c.Call(module+"_ask", askForms("refused"))
					c.ForgetAsked()
					checkContains(t, "the result", msg, "the user said no")
					failed := string(field(msg, "result", "isError")) == "true" ||
						field(msg, "error") != nil
					check(t, "the call failed", failed, true)
				})
			}
		})
	}
}

// askForAll has a module ask for each kind of input in one call.
func askForAll(t *testing.T, c *askClient, module string) {
	c.Answer = askAnswer(module)
	ask := fakeAsk{Mark: "all"}
	var wants, params, asked []string
	for _, kind := range askKinds {
		wish := askFor(kind.Name, module)
		ask.Asks = append(ask.Asks, wish)
		wants = append(wants, string(c.Answer(wish.Method, wish.Params)))
		params = append(params, mcptest.Canonical(wish.Params))
	}
	checkGot(t, "the answers", c.Call(module+"_ask", ask), wants...)
	for len(c.Asked) > 0 {
		asked = append(asked, mcptest.Canonical(field(<-c.Asked, "params")))
	}
	slices.Sort(params)
	slices.Sort(asked)
	check(t, "params", asked, params)
}

// A client is asked only for what it has declared. The module hears which capability is
// missing.
func TestAskNeedsACapability(t *testing.T) {
	long(t)
	d := startFakes(t, "old: fixed tools=ask", "new: modern tools=ask")
	const code = "-32601" // as the client itself would have answered
	withTools := fakeWish{
		Method: "sampling/createMessage",
		Params: json.RawMessage(`{"messages":[],"maxTokens":1,"tools":[]}`),
	}
	for _, tt := range []struct {
		says              string
		wish              fakeWish
		declared, missing string
	}{
		{"sampling (tools)", withTools, `{"sampling":{}}`, `{"sampling":{"tools":{}}}`},
		{"elicitation (form)", askFor("form", "x"), `{"roots":{},"sampling":{},"elicitation":{"url":{}}}`,
			`{"elicitation":{"form":{}}}`},
		{"elicitation (url)", askFor("url", "x"), `{"roots":{},"sampling":{},"elicitation":{}}`,
			`{"elicitation":{"url":{}}}`},
	} {
		t.Run(tt.says, func(t *testing.T) {
			ask := fakeAsk{Mark: tt.says, Asks: []fakeWish{tt.wish}}
			copes, bold := ask, ask
			copes.Copes = true
			bold.Bold = true

			c := askModern(t, d.URL, tt.declared, "")
			checkLacks(t, "2026-07-28, old", c.Round("old_ask", ask), tt.missing)
			checkLacks(t, "2026-07-28, new", c.Round("new_ask", ask), tt.missing)
			a := c.Round("old_ask", copes)
			check(t, "2026-07-28, a module that copes: failure", a.Failure(), "")
			checkContains(t, "2026-07-28, a module that copes", a.Text(), code)

			s := askOverPOST(t, d.URL, "2025-11-25", tt.declared, "")
			result := field(s.Call("old_ask", ask), "result")
			check(t, "2025-11-25, old: isError", string(field(result, "isError")), "true")
			checkContains(t, "2025-11-25, old", resultText(members(result)),
				`"code":`+code, "client for "+tt.says+": use")
			result = field(s.Call("old_ask", copes), "result")
			check(t, "2025-11-25, a module that copes: isError",
				string(field(result, "isError")), "")
			checkContains(t, "2025-11-25, a module that copes",
				resultText(members(result)), `"code":`+code)
			checkContains(t, "2025-11-25, a new module that asks all the same",
				s.Call("new_ask", bold),
				"client")
			check(t, "requests to the clients", len(c.Asked)+len(s.Asked), 0)
		})
	}
}

// A caller that is no MCP client can't be asked. It reads what to use instead.
func TestAskWithoutAClient(t *testing.T) {
	long(t)
	d := startFakes(t,
		"old: fixed tools=ask,handleAsk",
		"named: fixed names tools=ask,handleAsk",
		"new: modern tools=ask,handleAsk",
	)
	ask := askForms("x")
	ask.Bold = true
	const want = "use an MCP client"
	for _, module := range []string{"old", "named", "new"} {
		t.Run("usher call, "+module, func(t *testing.T) {
			_, stderr, status := usher(t, "call", "-dir", d.Dir, module, "ask", string(marshal(ask)))
			check(t, "exit status", status, 1)
			checkContains(t, "stderr", stderr, want)
		})
		t.Run("a webhook of "+module, func(t *testing.T) {
			a := d.deliver(t, module+"/handleAsk", string(marshal(ask)))
			check(t, "status", a.Status, 500)
			checkContains(t, "the body", a.Body, want)
		})
	}
}

// A module may ask in each method that 2026-07-28 allows, of a client without a session.
func TestAskInEachMethod(t *testing.T) {
	long(t)
	d := startFakes(t, "a: good tools=ask res=a wants")
	c := newClient(t, d.URL)
	for _, tt := range []struct{ method, name, want string }{
		{"tools/call", "ask", `"content":[{"type":"text","text":"[`},
		{"prompts/get", "say", `"messages":[{"content":{"text":"{`},
		{"resources/read", "say", `"contents":[{"text":"{`},
	} {
		t.Run(tt.method, func(t *testing.T) {
			params := string(object{
				{"name", quote("a_" + tt.name)},
				{"uri", quote("a://one")},
				{"arguments", marshal(askForms("tools/call"))},
				{"_meta", json.RawMessage(`{"` + metaClientCaps + `":{"elicitation":{}}}`)},
			}.encode())
			send := func(method, params string) answer {
				return c.Modern(method, params, func(r *http.Request) {
					name := stringField(params, "name")
					if method == "resources/read" {
						name = stringField(params, "uri")
					}
					r.Header.Set(nameHeader, name)
				})
			}
			a := send(tt.method, params)
			back := goOn(params, askState(t, a, 1),
				`{"ask":{"action":"accept","content":{"word":"yes"}}}`)
			want := `{"method":"elicitation/create","params":{"message":"` + tt.method + `",`
			checkContains(t, "the question",
				field(a.Result(), "inputRequests", "ask"), want)
			a = send(tt.method, back)
			check(t, "resumed: failure", a.Failure(), "")
			check(t, "resumed: resultType", stringField(a.Result(), "resultType"),
				"complete")
			checkContains(t, "resumed", a.Body, tt.want, "yes")
			wantStale(t, "its state once more", send(tt.method, back))
		})
	}
}

// askWay begins a client of the daemon at a URL or, on stdio, of a workspace.
type askWay func(t *testing.T, url, dir, caps string) *askClient

// askWays are the clients that there are.
var askWays = map[string]askWay{
	"2025-11-25": askInSession("2025-11-25"),
	"2025-06-18": askInSession("2025-06-18"),
	"2025-03-26": askInSession("2025-03-26"),
	"HTTP+SSE": func(t *testing.T, url, _, caps string) *askClient {
		return mcptest.AskOverSSE(t, url, caps)
	},
	"2026-07-28": func(t *testing.T, url, _, caps string) *askClient {
		return askModern(t, url, caps, "")
	},
	"stdio": func(t *testing.T, _, dir, caps string) *askClient {
		in, out, _ := startStdio(t, dir)
		return mcptest.AskOverPipes(t, in, out, caps)
	},
}

func askInSession(version string) askWay {
	return func(t *testing.T, url, _, caps string) *askClient {
		return askOverPOST(t, url, version, caps, "")
	}
}
