// Schemas and documentation: tags, parameters, the check of arguments.

package main

import (
	"encoding/json"
	"testing"
)

func TestDocTags(t *testing.T) {
	for _, tt := range []struct{ name, kind, doc, schema, want string }{
		{"text stays", "go", "Adds.\\n\\nMore.", `{"type":"object"}`, `{"description":"Adds.\n\nMore.","inputSchema":{"type":"object"}}`},
		{"annotations", "go", "Adds.\\n@readonly\\n@idempotent", `{"type":"object"}`, `{"description":"Adds.","inputSchema":{"type":"object"},"annotations":{"readOnlyHint":true,"idempotentHint":true}}`},
		{"annotations are text to a server", ".mcp.json", "Adds.\\n@readonly", `{"type":"object"}`, `{"description":"Adds.\n@readonly","inputSchema":{"type":"object"}}`},
		{"a webhook is taken out everywhere", ".mcp.json", "Adds.\\n@webhook a/b", `{"type":"object"}`, `{"description":"Adds.","inputSchema":{"type":"object"}}`},
		{"a parameter's text", "go", "@param a the a", `{"type":"object","properties":{"a":{"type":"string"}}}`, `{"inputSchema":{"type":"object","properties":{"a":{"type":"string","description":"the a"}}}}`},
		{"parameters of a shell function", "shell", "@param {string} a - the a\\n@param {integer} [n=3] how many", `{"type":"object"}`,
			`{"inputSchema":{"type":"object","properties":{"a":{"type":"string","description":"the a"},"n":{"type":"integer","default":3,"description":"how many"}},"required":["a"]}}`},
		{"columns made with tabs", "shell", "@param\\t{string}\\ta\\tthe a\\n@param b\\tthe b", `{"type":"object"}`,
			`{"inputSchema":{"type":"object","properties":{"a":{"type":"string","description":"the a"},"b":{"description":"the b"}},"required":["a","b"]}}`},
		{"a JavaScript method's one object", "node", "@param {object} p\\n@param {string} p.a the a\\n@param {number[]} [p.b]", `{"type":"object"}`,
			`{"inputSchema":{"type":"object","properties":{"a":{"type":"string","description":"the a"},"b":{"type":"array","items":{"type":"number"}}},"required":["a"]}}`},
		{"_webhook is in no schema", "go", "", `{"type":"object","properties":{"_webhook":{},"a":{}},"required":["a","_webhook"]}`,
			`{"inputSchema":{"type":"object","properties":{"a":{}},"required":["a"]}}`},
		{"no schema is any object", ".mcp.json", "x", `null`, `{"description":"x","inputSchema":{"type":"object"}}`},
		{"other tags are text", "go", "@returns nothing\\nmail me@example.com", `{"type":"object"}`, `{"description":"@returns nothing\nmail me@example.com","inputSchema":{"type":"object"}}`},
	} {
		m, _, err := parseMethod(json.RawMessage(`{"name":"x","description":"`+tt.doc+`","inputSchema":`+tt.schema+`}`), Kind(tt.kind))
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		if got := string(joinMembers(m.definition)); got != tt.want {
			t.Errorf("%s:\n got %s\nwant %s", tt.name, got, tt.want)
		}
	}
}

func TestHooks(t *testing.T) {
	for _, tt := range []struct {
		name, doc string
		isHook    bool
		path      string
		problems  int
	}{
		{"handlePush", "", true, "", 0},
		{"handle", "", true, "", 0},
		{"push", "", false, "", 0},
		{"Handle", "", false, "", 0},
		{"push", "@webhook", true, "", 0},
		{"push", "@webhook /git/push", true, "git/push", 0},
		{"handlePush", "@webhook git/push", true, "git/push", 0},
		{"push", "@webhook a b", false, "a b", 1},
		{"push", "@webhook a/../b", false, "a/../b", 1},
		{"push", "@webhook a//b", false, "a//b", 1},
		{"push", "@webhook a\\n@webhook b", true, "a", 1},
		{"push", "@webhook\\n@signature github KEY", true, "", 0},
		{"push", "@webhook\\n@signature rot13 KEY", true, "", 1},
		{"push", "@signature github KEY", false, "", 1},
	} {
		m, problems, err := parseMethod(json.RawMessage(`{"name":"`+tt.name+`","description":"`+tt.doc+`"}`), kindGo)
		if err != nil || m.IsHook != tt.isHook || m.Hook != tt.path || len(problems) != tt.problems {
			t.Errorf("%s %q: %v %q %v %v", tt.name, tt.doc, m.IsHook, m.Hook, problems, err)
		}
	}
}

func TestCheckArguments(t *testing.T) {
	m, _, err := parseMethod(json.RawMessage(`{"name":"x","inputSchema":{"type":"object","properties":{
		"s":{"type":"string"},"i":{"type":"integer"},"n":{"type":"number"},"b":{"type":"boolean"},
		"a":{"type":"array"},"o":{"type":"object"},"any":{},"two":{"type":["string","null"]}},"required":["s","gone"]}}`), kindGo)
	if err != nil {
		t.Fatal(err)
	}
	for args, want := range map[string]string{
		`{"s":"","gone":1}`: "",
		`{"s":"","gone":1,"i":3,"n":1.5,"b":true,"a":[],"o":{},"any":[],"two":null,"more":1}`: "",
		`{"s":"","gone":1,"i":3.0,"n":3}`: "",
		`{"s":"","gone":1,"i":null}`:      "",
		`{"gone":1}`:                      `parameter "s" is required: a string`,
		`{"s":""}`:                        `parameter "gone" is required`,
		`{"s":null,"gone":1}`:             `parameter "s": want a string, got null`,
		`{"s":1,"gone":1}`:                `parameter "s": want a string, got an integer`,
		`{"S":"","gone":1}`:               `parameter "s" is required: a string`,
		`{"s":"","gone":1,"i":1.5}`:       `parameter "i": want an integer, got a number`,
		`{"s":"","gone":1,"i":"1"}`:       `parameter "i": want an integer, got a string`,
		`{"s":"","gone":1,"i":1e3}`:       `parameter "i": want an integer, got a number`,
		`{"s":"","gone":1,"b":1}`:         `parameter "b": want a boolean, got an integer`,
		`{"s":"","gone":1,"a":{}}`:        `parameter "a": want an array, got an object`,
		`{"s":"","gone":1,"o":[]}`:        `parameter "o": want an object, got an array`,
		`{"s":"","gone":1,"two":3}`:       `parameter "two": want a string or null, got an integer`,
	} {
		got := ""
		if err := m.checkArguments(json.RawMessage(args)); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%s: %q, want %q", args, got, want)
		}
	}
}

func TestToolResult(t *testing.T) {
	text := func(s string) string { return `{"content":[{"type":"text","text":` + string(quote(s)) + `}]` }
	for value, want := range map[string]string{
		``:                             `{"content":[]}`,
		`null`:                         `{"content":[]}`,
		`"a <b>\u00e9"`:                `{"content":[{"type":"text","text":"a <b>\u00e9"}]}`,
		`1.50`:                         text("1.50") + `}`,
		`false`:                        text("false") + `}`,
		`[1,{"a":2}]`:                  text(`[1,{"a":2}]`) + `}`,
		`{}`:                           text(`{}`) + `,"structuredContent":{}}`,
		"{\"n\":\n123456789012345678}": text(`{"n":123456789012345678}`) + `,"structuredContent":{"n":123456789012345678}}`,
		`{"content":"x"}`:              text(`{"content":"x"}`) + `,"structuredContent":{"content":"x"}}`,
		`{"content":[{"type":"text","text":"x"}],"other":1}`:                 text(`{"content":[{"type":"text","text":"x"}],"other":1}`) + `,"structuredContent":{"content":[{"type":"text","text":"x"}],"other":1}}`,
		`{"content":[{"type":"poem"}]}`:                                      text(`{"content":[{"type":"poem"}]}`) + `,"structuredContent":{"content":[{"type":"poem"}]}}`,
		`{"content":[{"type":"text","text":"x"}],"isError":true,"_meta":{}}`: `{"content":[{"type":"text","text":"x"}],"isError":true,"_meta":{}}`,
		`{"content":[]}`: `{"content":[]}`,
	} {
		if got := string(toolResult(json.RawMessage(value))); got != want {
			t.Errorf("%s becomes\n%s, want\n%s", value, got, want)
		}
		if value != "" {
			if got := string(methodResult(json.RawMessage(`{"_meta":{"usher/value":` + value + `}}`))); got != want {
				t.Errorf("%s handed over becomes\n%s, want\n%s", value, got, want)
			}
		}
	}
	for _, answer := range []string{`{"content":[{"type":"text","text":"why"}],"isError":true}`, `{"content":[],"_meta":{"a":1}}`, `{}`} {
		if got := string(methodResult(json.RawMessage(answer))); got != answer {
			t.Errorf("%s becomes %s", answer, got)
		}
	}
}

func FuzzParseMethod(f *testing.F) {
	f.Add(`{"name":"x","description":"a\n@param {string} [b=1] c\n@webhook d/e\n@signature github F","inputSchema":{"type":"object","properties":{"b":{}}}}`, "shell")
	f.Add(`{"name":"x","description":"@param {object} p\n@param p.q.r s"}`, "node")
	f.Fuzz(func(t *testing.T, definition, kind string) {
		if checkJSON([]byte(definition)) != nil {
			return
		}
		m, _, err := parseMethod(json.RawMessage(definition), Kind(kind))
		if err == nil && !json.Valid(m.toolJSON("t")) {
			t.Errorf("no JSON: %s", m.toolJSON("t"))
		}
	})
}
