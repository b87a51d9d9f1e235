package mcptest

import (
	"encoding/json"
	"strings"
)

// AskKind is a kind of request that a client can be asked. In Params and Answer, WORD is replaced by the
// word of a test.
type AskKind struct{ Name, Method, Params, Answer string }

// AskKinds are the requests that a client can be asked.
var AskKinds = []AskKind{
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

// AskFor returns a request of a kind that contains a word.
func AskFor(kind, word string) FakeWish {
	for _, k := range AskKinds {
		if k.Name == kind {
			return FakeWish{k.Method, json.RawMessage(strings.ReplaceAll(k.Params, "WORD", word))}
		}
	}
	panic(kind)
}

// AskForms returns arguments of the tool ask that ask for a form with each word; the first word is the
// mark.
func AskForms(words ...string) FakeAsk {
	ask := FakeAsk{Mark: words[0]}
	for _, word := range words {
		ask.Asks = append(ask.Asks, AskFor("form", word))
	}
	return ask
}
