// Schemas and documentation: tags, parameters, the check of arguments.

package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"
)

var docRulesOf = map[string]docRules{
	"go":     {Hooks: true, Tags: true},
	"node":   {Hooks: true, Tags: true, Undeclared: true},
	"shell":  {Hooks: true, Tags: true, Undeclared: true},
	"server": {Hooks: true},
	"config": {},
}

func TestDocTags(t *testing.T) {
	for _, tt := range []struct{ name, rules, doc, schema, want string }{
		{"text stays", "go", "Adds.\\n\\nMore.", `{"type":"object"}`, `{"description":"Adds.\n\nMore.","inputSchema":{"type":"object"}}`},
		{"annotations", "go", "Adds.\\n@readonly\\n@idempotent", `{"type":"object"}`, `{"description":"Adds.","inputSchema":{"type":"object"},"annotations":{"readOnlyHint":true,"idempotentHint":true}}`},
		{"annotations are text to a server", "server", "Adds.\\n@readonly", `{"type":"object"}`, `{"description":"Adds.\n@readonly","inputSchema":{"type":"object"}}`},
		{"a webhook of a program written for usher", "server", "Adds.\\n@webhook a/b", `{"type":"object"}`, `{"description":"Adds.","inputSchema":{"type":"object"}}`},
		{"a server of .mcp.json has no tags", "config", "Adds.\\n@webhook a/b", `{"type":"object"}`, `{"description":"Adds.\n@webhook a/b","inputSchema":{"type":"object"}}`},
		{"a parameter's text", "go", "@param a the a", `{"type":"object","properties":{"a":{"type":"string"}}}`, `{"inputSchema":{"type":"object","properties":{"a":{"type":"string","description":"the a"}}}}`},
		{"parameters of a shell function", "shell", "@param {string} a - the a\\n@param {integer} [n=3] how many", `{"type":"object"}`,
			`{"inputSchema":{"type":"object","properties":{"a":{"type":"string","description":"the a"},"n":{"type":"integer","default":3,"description":"how many"}},"required":["a"]}}`},
		{"columns made with tabs", "shell", "@param\\t{string}\\ta\\tthe a\\n@param b\\tthe b", `{"type":"object"}`,
			`{"inputSchema":{"type":"object","properties":{"a":{"type":"string","description":"the a"},"b":{"description":"the b"}},"required":["a","b"]}}`},
		{"_webhook is in no schema", "go", "", `{"type":"object","properties":{"_webhook":{},"a":{}},"required":["a","_webhook"]}`,
			`{"inputSchema":{"type":"object","properties":{"a":{}},"required":["a"]}}`},
		{"no schema is any object", "config", "x", `null`, `{"description":"x","inputSchema":{"type":"object"}}`},
		{"literals, and fields of the one parameter", "node", "@param {object} p\\n@param {'x' | 'y'} [kind=x] which\\n@param {(1|2)[]} n\\n@param {'a'|string} s\\n@param {string} p.deep.er", `{"type":"object","properties":{"p":{"enum":["of TypeScript"]}}}`,
			`{"inputSchema":{"type":"object","properties":{"p":{"enum":["of TypeScript"]},"kind":{"enum":["x","y"],"default":"x","description":"which"},"n":{"type":"array","items":{"enum":[1,2]}},"s":{}},"required":["n","s"]}}`},
		{"other tags are text", "go", "@returns nothing\\nmail me@example.com", `{"type":"object"}`, `{"description":"@returns nothing\nmail me@example.com","inputSchema":{"type":"object"}}`},
	} {
		m, _, err := parseMethod(json.RawMessage(`{"name":"x","description":"`+tt.doc+`","inputSchema":`+tt.schema+`}`), docRulesOf[tt.rules])
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		if got := string(m.definition.encode()); got != tt.want {
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
		{"push", "Takes it. @webhook a/b", false, "", 1},
		{"handlePush", "Takes it. @signature github MY_WEBHOOK_SECRET", true, "", 1},
		{"push", "@webhook a/../b", false, "a/../b", 1},
		{"push", "@webhook a//b", false, "a//b", 1},
		{"push", "@webhook a\\n@webhook b", true, "a", 0},
		{"push", "@webhook a/.", false, "a/.", 1},
		{"push", "@webhook ..", false, "..", 1},
		{"push", "@webhook a/", false, "a/", 1},
		{"push", "@webhook\\n@signature github MY_WEBHOOK_SECRET", true, "", 0},
		{"push", "@webhook\\n@signature github my_signing_secret", true, "", 0},
		{"push", "@webhook\\n@signature github PATH", true, "", 1},
		{"push", "@webhook\\n@signature github _WEBHOOK_SECRETS", true, "", 1},
		{"push", "@webhook\\n@signature github MY_SECRET", true, "", 1},
		{"push", "@webhook\\n@signature github A_SIGNING_SECRET\\n@signature github B_SIGNING_SECRET", true, "", 0},
		{"push", "@signature github MY_WEBHOOK_SECRET", false, "", 0},
	} {
		m, problems, err := parseMethod(json.RawMessage(`{"name":"`+tt.name+`","description":"`+tt.doc+`"}`), docRulesOf["go"])
		if err != nil || m.IsHook != tt.isHook || m.Hook != tt.path || len(problems) != tt.problems {
			t.Errorf("%s %q: %v %q %v %v", tt.name, tt.doc, m.IsHook, m.Hook, problems, err)
		}
	}
}

func TestCheckArguments(t *testing.T) {
	m, _, err := parseMethod(json.RawMessage(`{"name":"x","inputSchema":{"type":"object","properties":{
		"s":{"type":"string"},"i":{"type":"integer"},"n":{"type":"number"},"b":{"type":"boolean"},
		"a":{"type":"array"},"o":{"type":"object"},"any":{},"two":{"type":["string","null"]},
		"list":{"type":"array","items":{"type":"integer"}},
		"kind":{"type":"string","enum":["a","é"]},"level":{"enum":[1,"x",null]},
		"either":{"anyOf":[{"type":"integer"},{"$ref":"#/$defs/Bed"},{"type":"array","items":{"type":"string"}}]},
		"one":{"oneOf":[{"type":"integer"},{"type":"string","enum":["all"]}]},
		"tree":{"$ref":"#/$defs/Tree"},"counts":{"type":"object","additionalProperties":{"type":"integer"}},
		"strict":{"type":"object","properties":{"a":{}},"additionalProperties":false},
		"few":{"type":"integer","minimum":0},"at":{"type":"string","format":"date-time"},"data":{"type":"string","contentEncoding":"base64"},
		"lost":{"$ref":"#/$defs/Gone"},"loop":{"$ref":"#/$defs/Loop"}
		},"required":["s","gone"],"$defs":{
		"Bed":{"type":"object","properties":{"rows":{"type":"integer"},"note":{"type":"string"}},"required":["rows"]},
		"Tree":{"type":"object","properties":{"left":{"$ref":"#/$defs/Tree"},"more":{"type":"array","items":{"$ref":"#/$defs/Tree"}}}},
		"Loop":{"anyOf":[{"$ref":"#/$defs/Loop"},{"$ref":"#/$defs/Loop"}]}}}}`), docRulesOf["go"])
	if err != nil {
		t.Fatal(err)
	}
	// What stands in one of these beside "s" and "gone" is taken as it is (""), left out ("-"), or wrong.
	for given, want := range map[string]string{
		`"i":3,"n":1.5,"b":true,"a":[],"o":{},"any":[],"two":null,"more":null`: "",
		`"i":3.0,"n":3,"list":[1,2],"few":0`:                                   "",
		`"n":12345678901234567890123,"i":12345678901234567890123`:              "",
		`"kind":"\u0061"`:                            "",
		`"kind":"é","level":1.0`:                     "",
		`"level":null`:                               "",
		`"either":{"rows":1,"more":[null]},"one":1`:  "",
		`"either":["a"],"one":"all"`:                 "",
		`"tree":{"left":{"more":[{}]},"x":null}`:     "",
		`"counts":{"a":1},"strict":{"a":1}`:          "",
		`"at":"2026-01-02T03:04:05.123456789+02:00"`: "",
		`"data":"aGk="`:                              "",
		`"lost":1`:                                   "",
		`"_webhook":{"method":"POST"}`:               "",
		`"i":null`:                                   "-",
		`"either":null`:                              "-",
		`"i":1.5`:                                    `parameter "i": want an integer, got a number`,
		`"i":"1"`:                                    `parameter "i": want an integer, got a string`,
		`"i":1e3`:                                    `parameter "i": want an integer, got a number`,
		`"b":1`:                                      `parameter "b": want a boolean, got an integer`,
		`"a":{}`:                                     `parameter "a": want an array, got an object`,
		`"o":[]`:                                     `parameter "o": want an object, got an array`,
		`"two":3`:                                    `parameter "two": want a string or null, got an integer`,
		`"list":[1,null]`:                            `parameter "list.1": want an integer, got null`,
		`"kind":"c"`:                                 `parameter "kind": want one of "a","é", got "c"`,
		`"either":true`:                              `parameter "either": want an integer or an object or an array, got a boolean`,
		`"either":{}`:                                `parameter "either.rows" is required: an integer`,
		`"either":{"rows":"x"}`:                      `parameter "either.rows": want an integer, got a string`,
		`"either":["a",1]`:                           `parameter "either.1": want a string, got an integer`,
		`"one":"some"`:                               `parameter "one": want an integer or one of "all", got a string`,
		`"tree":{"left":{"more":[{},{"left":1}]}}`: `parameter "tree.left.more.1.left": want an object, got an integer`,
		`"counts":{"a":"1"}`:                       `parameter "counts.a": want an integer, got a string`,
		`"strict":{"b":1}`:                         `parameter "strict.b" is not known`,
		`"few":-1`:                                 `parameter "few": want at least 0, got -1`,
		`"at":"tomorrow"`:                          `parameter "at": want a time such as 2006-01-02T15:04:05Z, got "tomorrow"`,
		`"data":"%"`:                               `parameter "data": want base64, got "%"`,
		`"loop":1`:                                 `parameter "loop" has a schema that only refers to itself`,
		`"tree":` + strings.Repeat(`{"left":`, 999) + `{}` + strings.Repeat(`}`, 999): `too complex`,
	} {
		sent := `{"s":"","gone":1,` + given + `}`
		got, err := m.checkArguments(json.RawMessage(sent))
		switch {
		case want == "" && (err != nil || string(got) != sent):
			t.Errorf("%s gives %s, %v", given, got, err)
		case want == "-" && (err != nil || string(got) != `{"s":"","gone":1}`):
			t.Errorf("%s is not left out: %s, %v", given, got, err)
		case len(want) > 1 && (err == nil || !strings.HasSuffix(err.Error(), want) && !strings.Contains(err.Error(), "too complex")):
			t.Errorf("%.100s gives %v, want %s", given, err, want)
		}
	}
	for sent, want := range map[string]string{
		``:                    `parameter "s" is required: a string`,
		`{"gone":1}`:          `parameter "s" is required: a string`,
		`{"s":""}`:            `parameter "gone" is required`,
		`{"s":null,"gone":1}`: `parameter "s": want a string, got null`,
		`{"s":1,"gone":1}`:    `parameter "s": want a string, got an integer`,
		`{"S":"","gone":1}`:   `parameter "s" is required: a string`,
	} {
		if _, err := m.checkArguments(json.RawMessage(sent)); err == nil || err.Error() != want {
			t.Errorf("%s gives %v, want %s", sent, err, want)
		}
	}
	// Deeper, what counts as left out is let through.
	const nested = `{"s":"\u0061","gone":1,"either":{"rows":1,"note":null,"Rows":2},"tree":{"more":[{"left":null},{"x": 1.50}]}}`
	if got, err := m.checkArguments(json.RawMessage(nested)); err != nil || string(got) != nested {
		t.Errorf("%s, %v, want %s", got, err, nested)
	}
}

// A schema nested without end is read once, and a check ends whatever is tried.
func TestHostileSchemas(t *testing.T) {
	start := time.Now()
	deep := strings.Repeat(`{"properties":{"a":`, 4500) + `{}` + strings.Repeat(`}}`, 4500)
	schema := `{"type":"object","description":` + string(quote(strings.Repeat("x", 4<<20))) + `,"properties":{"deep":` + deep + `}}`
	if _, _, err := parseMethod(json.RawMessage(`{"name":"x","inputSchema":`+schema+`}`), docRulesOf["config"]); err != nil {
		t.Fatal(err)
	}
	m, _, err := parseMethod(json.RawMessage(`{"name":"x","inputSchema":{"type":"object","properties":{"t":{"$ref":"#/$defs/T"}},"$defs":{
		"T":{"anyOf":[{"type":"object","properties":{"t":{"$ref":"#/$defs/T"}}},{"type":"object","properties":{"t":{"$ref":"#/$defs/T"}}}]}}}}`), docRulesOf["config"])
	if err != nil {
		t.Fatal(err)
	}
	arguments := strings.Repeat(`{"t":`, 60) + `1` + strings.Repeat(`}`, 60)
	if _, err := m.checkArguments(json.RawMessage(arguments)); err == nil {
		t.Error("a value that fits nothing is taken")
	}
	if took := time.Since(start); took > 2*time.Second {
		t.Errorf("it took %v", took)
	}
}

// A $ref that leads to itself once overflowed the stack, which ends the daemon.
func TestCircularReferences(t *testing.T) {
	const chain = 500
	const tooComplex = "is too complex to be checked"
	large := strings.Repeat("y", 1<<20)
	defs := `{"Self":{"$ref":"#/$defs/Self"},
		"A":{"anyOf":[{"$ref":"#/$defs/A"},{"$ref":"#/$defs/B"}]},"B":{"$ref":"#/$defs/A"},
		"Text":{"anyOf":[{"$ref":"#/$defs/Text"},{"type":"string"},{"$ref":"#/$defs/Text"}]},
		"List":{"anyOf":[{"$ref":"#/$defs/List"},{"type":"array","items":{"$ref":"#/$defs/List"}},{"type":"integer"}]}`
	for i := range chain {
		defs += fmt.Sprintf(`,"C%d":{"$ref":"#/$defs/C%d"}`, i, i+1)
		defs += fmt.Sprintf(`,"D%d":{"anyOf":[{"$ref":"#/$defs/D%d"},{"$ref":"#/$defs/D%[2]d"}]}`, i, i+1)
	}
	defs += fmt.Sprintf(`,"C%d":{"type":"array","items":{"$ref":"#/$defs/C0"}},"D%[1]d":{"type":"string"}}`, chain)
	nested := strings.Repeat("[", 50) + strings.Repeat("]", 50)
	start := time.Now()
	for _, tt := range []struct{ name, schema, arguments, want string }{
		{"itself", "Self", `{"x":1}`, `parameter "x" has a schema that only refers to itself`},
		{"each other", "A", `{"x":1}`, `parameter "x" has a schema that only refers to itself`},
		{"beside a large value", "A", `{"x":1,"y":"` + large + `"}`, "only refers to itself"},
		{"one that fits otherwise", "Text", `{"x":"a"}`, ""},
		{"one that does not", "Text", `{"x":1}`, `parameter "x": want a string, got an integer`},
		{"values inside values", "List", `{"x":[[1],[[2,3]],[]]}`, ""},
		{"a wrong one inside", "List", `{"x":[[1],[["a",3]],[]]}`,
			`parameter "x.1.0.0": want an array or an integer, got a string`},
		{"a long chain in each level", "C0", `{"x":` + nested + `,"y":"` + large + `"}`, tooComplex},
		{"alternatives that double", "D0", `{"x":1,"y":"yyyy"}`, tooComplex},
	} {
		schema := `{"type":"object","properties":{"x":{"$ref":"#/$defs/` + tt.schema + `"}},` +
			`"required":["x"],"$defs":` + defs + `}`
		m, _, err := parseMethod(json.RawMessage(`{"name":"x","inputSchema":`+schema+`}`), docRulesOf["node"])
		if err != nil {
			t.Fatal(err)
		}
		_, err = m.checkArguments(json.RawMessage(tt.arguments))
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.HasSuffix(err.Error(), tt.want)) {
			t.Errorf("%s: %.200v, want %s", tt.name, err, tt.want)
		}
		if err != nil && len(err.Error()) > 2*maxWantedText+len(nested) {
			t.Errorf("%s: an error of %d bytes", tt.name, len(err.Error()))
		}
	}
	if took := time.Since(start); took > 2*time.Second {
		t.Errorf("it took %v", took)
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
