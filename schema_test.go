// Schemas and documentation: tags, parameters, the check of arguments.

package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"runtime"
	"strings"
	"testing"
)

var kindOf = map[string]Kind{
	"go":     kindGo,
	"node":   kindNode,
	"shell":  kindShell,
	"server": kindExecutable,
	"config": kindConfig,
}

func TestDocTags(t *testing.T) {
	const object = `{"type":"object"}`
	// noText and text return definitions: with a schema, and with a description.
	noText := func(schema string) string { return `{"inputSchema":` + schema + `}` }
	text := func(doc string) string {
		return `{"description":"` + doc + `","inputSchema":{"type":"object","properties":{}}}`
	}
	for _, tt := range []struct{ name, rules, doc, schema, want string }{
		{"annotations", "go", `Adds.\n@readonly\n@idempotent`, object, `{"description":"Adds.",` +
			`"inputSchema":{"type":"object","properties":{}},` +
			`"annotations":{"readOnlyHint":true,"idempotentHint":true}}`},
		{"annotations are text to a server", "server", `Adds.\n@readonly`, object, text(`Adds.\n@readonly`)},
		{"a webhook of a program written for usher", "server", `Adds.\n@webhook a/b`, object, text(`Adds.`)},
		{"a parameter's text", "go", "@param a the a", `{"type":"object","properties":{"a":{"type":"string"}}}`,
			noText(`{"type":"object","properties":{"a":{"type":"string","description":"the a"}}}`)},
		{"parameters of a shell function", "shell",
			`@param {string} a - the a\n@param {integer} [n=3] how many`, object,
			noText(`{"type":"object","properties":{"a":{"type":"string","description":"the a"},` +
				`"n":{"type":"integer","default":3,"description":"how many"}},"required":["a"]}`)},
		{"columns made with tabs", "shell", `@param\t{string}\ta\tthe a\n@param b\tthe b`, object,
			noText(`{"type":"object","properties":{"a":{"type":"string","description":"the a"},` +
				`"b":{"description":"the b"}},"required":["a","b"]}`)},
		{"_webhook is in no schema", "go", "",
			`{"type":"object","properties":{"_webhook":{},"a":{}},"required":["a","_webhook"]}`,
			noText(`{"type":"object","properties":{"a":{}},"required":["a"]}`)},
		{"literals, and fields of the one parameter", "node",
			`@param {object} p\n@param {'x' | 'y'} [kind=x] which\n@param {(1|2)[]} n\n` +
				`@param {'a'|string} s\n@param {string} p.deep.er`,
			`{"type":"object","properties":{"p":{"enum":["of TypeScript"]}}}`,
			noText(`{"type":"object","properties":{"p":{"enum":["of TypeScript"]},` +
				`"kind":{"enum":["x","y"],"default":"x","description":"which"},` +
				`"n":{"type":"array","items":{"enum":[1,2]}},"s":{}},"required":["n","s"]}`)},
		{"literals that contain | accept any value", "shell", `@param {'a|b'|'c'|3} k which`, object,
			noText(`{"type":"object","properties":{"k":{"description":"which"}},"required":["k"]}`)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := methodOf(t, tt.rules, `"description":"`+tt.doc+`","inputSchema":`+tt.schema)
			check(t, "definition", string(m.definition.encode()), tt.want)
		})
	}
}

// methodOf reads a method's definition, without its name.
func methodOf(t *testing.T, rules, definition string) *Method {
	t.Helper()
	m, _ := parseMethod(json.RawMessage(`{"name":"x",`+definition+`}`), kindOf[rules])
	return m
}

// TestSignatureTag reads which signature a method needs: the first tag counts. A misplaced
// tag lets nothing in (see TestSignatureUnusable).
func TestSignatureTag(t *testing.T) {
	const github, slack = "@signature github A_SIGNING_SECRET", "@signature slack B_SIGNING_SECRET"
	for doc, want := range map[string]string{
		"@webhook":                           "",
		github:                               github,
		`@webhook\n` + github + `\n` + slack: github,
		"Takes it. @webhook a/b":             "Takes it. @webhook a/b",
		"Takes it. " + github:                "Takes it. " + github,
	} {
		check(t, doc, methodOf(t, "go", `"description":"`+doc+`"`).Signature, want)
	}
}

func TestCheckArguments(t *testing.T) {
	m := methodOf(t, "go", `"inputSchema":{"type":"object","properties":{
		"s":{"type":"string"},"i":{"type":"integer"},"n":{"type":"number"},"b":{"type":"boolean"},
		"a":{"type":"array"},"o":{"type":"object"},"any":{},"two":{"type":["string","null"]},
		"list":{"type":"array","items":{"type":"integer"}},
		"kind":{"type":"string","enum":["a","é"]},"level":{"enum":[1,"x",null]},
		"either":{"anyOf":[{"type":"integer"},{"$ref":"#/$defs/Bed"},{"type":"array","items":{"type":"string"}}]},
		"one":{"oneOf":[{"type":"integer"},{"type":"string","enum":["all"]}]},
		"tree":{"$ref":"#/$defs/Tree"},"counts":{"type":"object","additionalProperties":{"type":"integer"}},
		"strict":{"type":"object","properties":{"a":{}},"additionalProperties":false},
		"square":{"anyOf":[{"type":"object","properties":{"kind":{"const":"square"}},"required":["kind","size"]},
			{"type":"null"}]},
		"nothing":{"enum":[]},
		"at":{"type":"string","format":"date-time"},
		"lost":{"$ref":"#/$defs/Gone"},"shape":{"anyOf":[{"$ref":"#/$defs/Circle"},
			{"type":"object","properties":{"kind":{"enum":["box"]},"at":{"type":"array"},
				"to":{"enum":[[]]}},"required":["kind","size"]}]}
		},"required":["s","gone"],"$defs":{
		"Circle":{"type":"object","properties":{"at":{"type":"integer"},"kind":{"enum":["circle"]}},
			"required":["kind","radius"]},
		"Bed":{"type":"object","properties":{"rows":{"type":"integer"},"note":{"type":"string"}},"required":["rows"]},
		"Tree":{"type":"object","properties":{"left":{"$ref":"#/$defs/Tree"},
			"more":{"type":"array","items":{"$ref":"#/$defs/Tree"}}}}}}`)
	// Beside "s" and "gone", each is accepted unchanged (""), left out ("-"), or wrong.
	for given, want := range map[string]string{
		`"i":3,"n":1.5,"b":true,"a":[],"o":{},"any":[],"two":null,"more":null`: "",
		`"i":3.0,"n":3,"list":[1,2]`:                              "",
		`"n":12345678901234567890123,"i":12345678901234567890123`: "",
		`"kind":"\u0061"`:                                         "",
		`"kind":"é","level":1.0`:                                  "",
		`"either":{"rows":1,"more":[null]},"one":1`:               "",
		`"either":["a"],"one":"all"`:                              "",
		`"tree":{"left":{"more":[{}]},"x":null}`:                  "",
		`"counts":{"a":1},"strict":{"a":1}`:                       "",
		`"at":"2026-01-02T03:04:05.123456789+02:00"`:              "",
		`"lost":1`:                     "",
		`"_webhook":{"method":"POST"}`: "",
		`"i":null`:                     "-",
		`"i":1.5`:                      `parameter "i": want an integer, got a number`,
		`"i":1e3`:                      `parameter "i": want an integer, got a number`,
		`"list":[1,null]`:              `parameter "list.1": want an integer, got null`,
		`"either":true`: `parameter "either": want an integer or ` +
			`an object with rows or an array, got a boolean`,
		`"either":{}`:           `parameter "either.rows" is required: an integer`,
		`"either":{"rows":"x"}`: `parameter "either.rows": want an integer, got a string`,
		`"one":"some"`:          `parameter "one": want an integer or "all", got a string`,
		`"kind":1`:              `parameter "kind": want one of "a","é"`,
		`"shape":{}`: `parameter "shape": want an object with kind, radius or ` +
			`an object with kind, size, got an object`,
		`"shape":{"kind":"x"}`:                   `kind, size, got an object`,
		`"shape":{"at":[],"kind":"box","to":[]}`: `parameter "shape.size" is required`,
		`"shape":{"at":1,"kind":"box"}`:          `parameter "shape.at": want an array, got an integer`,
		`"shape":{"at":[],"kind":"circle"}`:      `parameter "shape.at": want an integer, got an array`,
		`"square":{"kind":"square"}`:             `parameter "square.size" is required`,
		`"square":{"kind":"cube"}`:               `parameter "square": want an object with kind, size or null, got`,
		`"strict":{"b":1}`:                       `parameter "strict.b" is unknown: want a`,
		`"counts":{"a":"x"}`:                     `parameter "counts.a": want an integer, got a string`,
		`"I":1`:                                  `parameter "I" is unknown: want a, any, at, b, counts,`,
		`"either":{"rows":1,"ROWS":2}`:           `parameter "either.ROWS" is unknown: want note, rows`,
		`"tree":{"more":[{"Left":1}]}`:           `parameter "tree.more.0.Left" is unknown: want left, more`,
		`"strict":{"a":1,"A":1}`:                 `parameter "strict.A" is unknown: want a`,
		`"level":[]`:                             `parameter "level": want one of 1,"x",null`,
		`"nothing":1`:                            `parameter "nothing": want one of `,
		`"at":"tomorrow"`: `parameter "at": ` +
			`want a time such as 2006-01-02T15:04:05Z`,
		`"tree":` + strings.Repeat(`{"left":`, 999) + `{}` + strings.Repeat(`}`, 999): `too complex`,
	} {
		t.Run(clipText(given, 50), func(t *testing.T) {
			sent := `{"s":"","gone":1,` + given + `}`
			got, err := m.checkArguments(json.RawMessage(sent))
			if want == "-" {
				sent, want = `{"s":"","gone":1}`, ""
			}
			if want != "" {
				checkContains(t, "error", fmt.Sprint(err), want)
				return
			}
			must(t, err)
			check(t, "arguments", string(got), sent)
		})
	}
	for sent, want := range map[string]string{
		``:                    `parameter "s" is required: a string`,
		`{"s":null,"gone":1}`: `parameter "s": want a string, got null`,
		`{"gone":1}`:          `parameter "s" is required: a string`,
	} {
		_, err := m.checkArguments(json.RawMessage(sent))
		check(t, sent, fmt.Sprint(err), want)
	}
	// Deeper, a null for what may be left out is passed on.
	const nested = `{"s":"\u0061","gone":1,"either":{"rows":1,"note":null,"more":2},` +
		`"tree":{"more":[{"left":null},{"x": 1.50}]}}`
	got, err := m.checkArguments(json.RawMessage(nested))
	must(t, err)
	check(t, "nested arguments", string(got), nested)
}

// TestCheckIsLinear checks arguments that have a long key and many items, or many items of a
// union: neither the path of each item nor an error for each alternative costs memory.
func TestCheckIsLinear(t *testing.T) {
	const size = 50_000
	long := strings.Repeat("k", size)
	for _, tt := range []struct{ name, schema, arguments, item, want string }{
		{"a long key", `{"type":"object","additionalProperties":{"type":"array","items":{"type":"integer"}}}`,
			`{"x":{"` + long + `":[%s]}}`, `1`, ``},
		{"a wrong item", `{"type":"object","additionalProperties":{"type":"array","items":{"type":"integer"}}}`,
			`{"x":{"` + long + `":[%s,""]}}`, `1`, `.50000": want an integer, got a string`},
		{"a union", `{"type":"array","items":{"anyOf":[{"type":"integer"},{"enum":["` + long + `"]},{"type":"boolean"},
			{"type":"object","required":["a"]},{"type":"string"}]}}`, `{"x":[%s]}`, `""`, ``},
	} {
		m := methodOf(t, "node", `"inputSchema":{"type":"object","properties":{"x":`+tt.schema+`}}`)
		items := strings.Repeat(tt.item+",", size-1) + tt.item
		arguments := json.RawMessage(fmt.Sprintf(tt.arguments, items))
		m.schema()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := m.checkArguments(arguments)
		runtime.ReadMemStats(&after)
		checkContains(t, tt.name, fmt.Sprint(err), cmp.Or(tt.want, "<nil>"))
		perByte := int(after.TotalAlloc-before.TotalAlloc) / len(arguments)
		t.Logf("%s: %d bytes of memory per byte", tt.name, perByte)
		if perByte > 500 {
			t.Errorf("%s: %d bytes of memory per byte of the message", tt.name, perByte)
		}
	}
}

// TestHostileSchemas has a schema nested without end, which is read once.
func TestHostileSchemas(t *testing.T) {
	deep := strings.Repeat(`{"properties":{"a":`, 4500) + `{}` + strings.Repeat(`}}`, 4500)
	long := string(quote(strings.Repeat("x", 4<<20)))
	methodOf(t, "config", `"inputSchema":{"type":"object","description":`+long+`,"properties":{"deep":`+deep+`}}`)
}

// TestCircularReferences has each $ref lead to itself, which once overflowed the
// stack and so ended the daemon.
func TestCircularReferences(t *testing.T) {
	const chain = 500
	const tooComplex = "is too complex to check"
	large := strings.Repeat("y", 1<<20)
	defs := `{"Self":{"$ref":"#/$defs/Self"},
		"A":{"anyOf":[{"$ref":"#/$defs/A"},{"$ref":"#/$defs/B"}]},"B":{"$ref":"#/$defs/A"},
		"List":{"anyOf":[{"type":"array","items":{"$ref":"#/$defs/List"}},{"type":"integer"}]}`
	for i := range chain {
		defs += fmt.Sprintf(`,"C%d":{"$ref":"#/$defs/C%d"}`, i, i+1)
		defs += fmt.Sprintf(`,"D%d":{"anyOf":[{"$ref":"#/$defs/D%d"},{"$ref":"#/$defs/D%[2]d"}]}`, i, i+1)
	}
	defs += fmt.Sprintf(`,"C%d":{"type":"array","items":{"$ref":"#/$defs/C0"}},"D%[1]d":{"type":"string"}}`, chain)
	nested := strings.Repeat("[", 50) + strings.Repeat("]", 50)
	for _, tt := range []struct{ name, schema, arguments, want string }{
		{"itself", "Self", `{"x":1}`, tooComplex},
		{"each other", "A", `{"x":1}`, tooComplex},
		{"a wrong one inside", "List", `{"x":[[1],[["a",3]],[]]}`,
			`parameter "x.1.0.0": want an array or an integer, got a string`},
		{"a long chain in each level", "C0", `{"x":` + nested + `,"y":"` + large + `"}`, tooComplex},
		{"alternatives that double", "D0", `{"x":1,"y":"yyyy"}`, tooComplex},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := methodOf(t, "node", `"inputSchema":{"type":"object",`+
				`"properties":{"x":{"$ref":"#/$defs/`+tt.schema+`"}},"required":["x"],"$defs":`+defs+`}`)
			_, err := m.checkArguments(json.RawMessage(tt.arguments))
			if tt.want == "" {
				must(t, err)
				return
			}
			checkContains(t, "error", fmt.Sprint(err), tt.want)
			if n := len(fmt.Sprint(err)); n > 1000+len(nested) {
				t.Errorf("an error of %d bytes", n)
			}
		})
	}
}

func TestToolResult(t *testing.T) {
	text := func(s string) string { return `{"content":[{"type":"text","text":` + string(quote(s)) + `}]` }
	// structured returns how an object is shown: as text too.
	structured := func(s string) string { return text(s) + `,"structuredContent":` + s + `}` }
	const xContent = `{"content":[{"type":"text","text":"x"}],`
	for value, want := range map[string]string{
		``:                                      `{"content":[]}`,
		`null`:                                  `{"content":[]}`,
		`"a <b>\u00e9"`:                         `{"content":[{"type":"text","text":"a <b>\u00e9"}]}`,
		`1.50`:                                  text("1.50") + `}`,
		`[1,{"a":2}]`:                           text(`[1,{"a":2}]`) + `}`,
		`{}`:                                    structured(`{}`),
		"{\"n\":\n123456789012345678}":          structured(`{"n":123456789012345678}`),
		`{"content":"x"}`:                       structured(`{"content":"x"}`),
		xContent + `"other":1}`:                 structured(xContent + `"other":1}`),
		`{"content":[{"type":"poem"}]}`:         structured(`{"content":[{"type":"poem"}]}`),
		xContent + `"isError":true,"_meta":{}}`: xContent + `"isError":true,"_meta":{}}`,
		`{"content":[]}`:                        `{"content":[]}`,
	} {
		check(t, value, string(toolResult(json.RawMessage(value))), want)
		if value != "" {
			handed := methodResult(json.RawMessage(`{"_meta":{"usher/value":` + value + `}}`))
			check(t, value+" handed over", string(handed), want)
		}
	}
	for _, answer := range []string{xContent + `"isError":true}`, `{"content":[],"_meta":{"a":1}}`, `{}`} {
		check(t, answer, string(methodResult(json.RawMessage(answer))), answer)
	}
}
