// Tests of schema.go and worker.go: what usher makes of the definitions and pages of foreign servers.

package main

import (
	"encoding/json"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"usher/internal/mcptest"
)

// usableDefinitions are the smallest definitions that MCP allows, by list.
var usableDefinitions = map[string]string{
	"tools":             `{"name":"x","inputSchema":{"type":"object"}}`,
	"prompts":           `{"name":"x"}`,
	"resources":         `{"name":"x","uri":"x://y"}`,
	"resourceTemplates": `{"name":"x","uriTemplate":"x://{y}"}`,
}

// optionalMembers are the optional members of MCP's definitions, by list and path, with values that
// MCP allows, separated by spaces. The path 0 is an item of a list.
var optionalMembers = map[string]map[string]string{
	"tools": {
		"title":                       `"" "t"`,
		"description":                 `"" "t"`,
		"icons":                       `[]`,
		"icons/0/mimeType":            `"image/png"`,
		"icons/0/sizes":               `["any"] []`,
		"icons/0/theme":               `"light" "dark"`,
		"_meta":                       `{} {"a":[null]}`,
		"annotations":                 `{} {"more":null}`,
		"annotations/title":           `"t"`,
		"annotations/readOnlyHint":    `true false`,
		"annotations/destructiveHint": `true false`,
		"annotations/idempotentHint":  `true false`,
		"annotations/openWorldHint":   `true false`,
		"outputSchema":                `{"type":"object"} {"type":"object","a":null}`,
		"inputSchema/properties":      `{} {"a":{}}`,
		"inputSchema/required":        `[] ["a"]`,
		"inputSchema/$schema":         `"http://json-schema.org/draft-07/schema#"`,
	},
	"prompts": {
		"title":                   `"t"`,
		"description":             `"t"`,
		"icons":                   `[] [{"src":"data:image/png;base64,AAAA"}]`,
		"_meta":                   `{}`,
		"arguments":               `[] [{"name":"a"}]`,
		"arguments/0/title":       `"t"`,
		"arguments/0/description": `"t"`,
		"arguments/0/required":    `true false`,
	},
	"resources": {
		"title":                    `"t"`,
		"description":              `"t"`,
		"icons":                    `[]`,
		"_meta":                    `{}`,
		"mimeType":                 `"text/plain"`,
		"size":                     `0 9007199254740993`,
		"annotations":              `{}`,
		"annotations/audience":     `[] ["user","assistant"]`,
		"annotations/priority":     `0 0.5 1 1.0 0.125 1e-7 2.5E-3`,
		"annotations/lastModified": `"2026-11-28T10:00:00Z" "2026-11-28T10:00:00.5+01:00"`,
	},
	"resourceTemplates": {
		"title":                `"t"`,
		"description":          `"t"`,
		"icons":                `[]`,
		"_meta":                `{}`,
		"mimeType":             `"text/plain"`,
		"annotations":          `{}`,
		"annotations/audience": `[]`,
	},
}

// optionalKeywords are keywords of JSON Schema, with values that it allows.
var optionalKeywords = map[string]string{
	"$comment":             `"a"`,
	"$defs":                `{} {"a":{}}`,
	"$ref":                 `"#" "#/properties/p"`,
	"additionalProperties": `true false {}`,
	"allOf":                `[{}]`,
	"anyOf":                `[{},{"type":"null"}]`,
	"contains":             `{}`,
	"deprecated":           `true`,
	"description":          `"a"`,
	"enum":                 `[1] [null,{}]`,
	"exclusiveMinimum":     `1.5`,
	"format":               `"date-time"`,
	"if":                   `{}`,
	"items":                `{} true`,
	"maxItems":             `0 3`,
	"maximum":              `-1.5`,
	"minLength":            `0 3`,
	"minimum":              `-1.5`,
	"multipleOf":           `2`,
	"not":                  `{}`,
	"oneOf":                `[{}]`,
	"properties":           `{} {"a":{}}`,
	"propertyNames":        `{}`,
	"required":             `[] ["a"]`,
	"title":                `"a"`,
	"type":                 `"string" ["string","null"]`,
	"uniqueItems":          `true`,
}

// anyValues are values of all types, many of which a member must not have.
const anyValues = `null true "t" "" 1 1.5 -1 [] [null] [1] ["t"] {} {"a":1} {"a":null} ` +
	`"2026-11-28" "2026-11-28t10:00:00z" "#/nowhere" "https://example.com/schema" [{}] [true]`

// definitionWith returns a definition with a value at a path. What is above it gets what it requires.
func definitionWith(definition json.RawMessage, path []string, value string) json.RawMessage {
	if len(path) == 0 {
		return json.RawMessage(value)
	}
	if path[0] == "0" {
		item := `{"name":"a","src":"x:y"}`
		return json.RawMessage(
			"[" + string(definitionWith(json.RawMessage(item), path[1:], value)) + "]",
		)
	}
	o := members(definition)
	inside := o.get(path[0])
	if inside == nil {
		inside = json.RawMessage("{}")
	}
	return o.set(path[0], definitionWith(inside, path[1:], value)).encode()
}

// An optional member keeps a value that MCP allows, and is dropped and noted with any other. The
// definition stays.
func TestDefinitionsKeepWhatMCPAllows(t *testing.T) {
	checkMember := func(key, path, allowed string, within json.RawMessage) {
		steps := strings.Split(path, "/")
		for value := range strings.SplitSeq(allowed, " ") {
			definition := definitionWith(within, steps, value)
			cleaned, problem := cleanDefinition(key, definition)
			check(
				t,
				key+" with "+path+" "+value,
				mcptest.Canonical(cleaned),
				mcptest.Canonical(definition),
			)
			check(t, "problem of "+path+" "+value, problem, "")
		}
		for value := range strings.SplitSeq(anyValues, " ") {
			definition := definitionWith(within, steps, value)
			cleaned, problem := cleanDefinition(key, definition)
			if cleaned == nil {
				t.Errorf("%s: nothing is left of %s: %s", key, definition, problem)
			} else if mcptest.Canonical(cleaned) == mcptest.Canonical(definition) {
				check(t, "problem of "+string(definition), problem, "")
			} else {
				checkContains(t, "problem of "+string(definition), problem, "; without ")
			}
			again, more := cleanDefinition(key, cleaned)
			check(t, "cleaned again", string(again)+more, string(cleaned))
		}
		cleaned, _ := cleanDefinition(key, definitionWith(within, steps, "null"))
		checkOmits(t, key+" with "+path+" null", cleaned, steps[len(steps)-1]+`":null`)
	}
	for key, list := range optionalMembers {
		for path, allowed := range list {
			checkMember(key, path, allowed, json.RawMessage(usableDefinitions[key]))
		}
	}
	for keyword, allowed := range optionalKeywords {
		const tool = `{"name":"x","inputSchema":{"type":"object","properties":{"p":{}}},` +
			`"outputSchema":{"type":"object","properties":{"p":{}}}}`
		for _, schema := range []string{"inputSchema/properties/q/", "outputSchema/properties/q/not/"} {
			checkMember("tools", schema+keyword, allowed, json.RawMessage(tool))
		}
	}
}

// A definition with a depth or a number that some client can't read is left out, with a note, because
// such a client would lose the whole list.
func TestUnreadableDefinitions(t *testing.T) {
	const named = `{"name":"x","inputSchema":{"type":"object"`
	nested := func(levels int) string {
		return strings.Repeat("[", levels) + `"a\"[["` + strings.Repeat("]", levels)
	}
	schemas := strings.Repeat(`,"properties":{"a":{"type":"object"`, 1000) + strings.Repeat("}}", 1000)
	for tool, want := range map[string]string{
		named + `,"default":` + nested(maxSchemaDepth-3) + `}}`:      "",
		named + `,"default":` + nested(maxSchemaDepth) + `}}`:        "is nested too deeply",
		named + `},"_meta":{"a":` + nested(3000) + `}}`:              "is nested too deeply",
		named + schemas + `}}`:                                       "is nested too deeply",
		named + `,"maximum":1e400}}`:                                 "number 1e400",
		named + `,"enum":[` + strings.Repeat("9", 5000) + `]}}`:      "number 999",
		named + `},"annotations":{"title":"1e400"},"_meta":{"a":1}}`: "",
	} {
		got, lost := cleanDefinition("tools", json.RawMessage(tool))
		what := clipText(tool, 100)
		check(t, "it is offered: "+what, got != nil, want == "")
		checkContains(t, "the note: "+what, lost, want)
	}
}

// Of many losses of a definition, the note names only the first, as each of them copies the text.
func TestManyLossesAreClipped(t *testing.T) {
	many := strings.Repeat(`,"title":null`, 3000)
	_, problem := cleanDefinition("prompts", json.RawMessage(`{"name":"x"`+many+`}`))
	check(t, "the note is long", len(problem) > 2*maxLoggedLine, false)
}

// A pattern is read, but not compiled, which can take a thousand times its size.
func TestPatternsAreNotCompiled(t *testing.T) {
	pattern := strings.Repeat("a{1000}", 500)
	tool := `{"name":"x","inputSchema":{"type":"object"},"outputSchema":{"type":"object",` +
		`"properties":{"p":{"type":"string","pattern":"` + pattern + `"}}}}`
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	got, _ := cleanDefinition("tools", json.RawMessage(tool))
	runtime.ReadMemStats(&after)
	checkContains(t, "the definition", string(got), pattern)
	took := after.TotalAlloc - before.TotalAlloc
	check(t, "it takes 100 times its size", took > uint64(100*len(tool)), false)
}

// A large outputSchema is kept, and a parameter of that name is none.
func TestOutputSchemaIsKept(t *testing.T) {
	schema := `{"anyOf":[{"type":"string"},{"type":"null"}]}`
	for range 5 {
		var list []string
		for i := range 5 {
			list = append(list, fmt.Sprintf(`"p%d":%s`, i, schema))
		}
		schema = `{"type":"object","properties":{` + strings.Join(list, ",") + `}}`
	}
	for name, tool := range map[string]string{
		"large": `{"name":"x","outputSchema":` + schema + `,"inputSchema":{"type":"object"}}`,
		"a parameter": `{"name":"x","inputSchema":{"type":"object",` +
			`"properties":{"outputSchema":{"title":5}}}}`,
	} {
		got, lost := cleanDefinition("tools", json.RawMessage(tool))
		checkContains(t, name, string(got), `"outputSchema":{`)
		check(t, name+": it has lost outputSchema", strings.Contains(lost, `outputSchema"`), false)
	}
}

// Pages end when a cursor repeats, or when three in a row bring nothing new. What came stays, also if
// a later page fails.
func TestPagesEnd(t *testing.T) {
	t.Parallel()
	page := func(more string, names ...string) string {
		var tools []string
		for _, name := range names {
			tools = append(tools, `{"name":"`+name+`","inputSchema":{"type":"object"}}`)
		}
		return resultLine("ID", `{"tools":[`+strings.Join(tools, ",")+`]`+more+`}`)
	}
	next := func(cursor string) string { return `,"nextCursor":"` + cursor + `"` }
	for _, tt := range []struct {
		name  string
		pages map[string]string
		want  string // the tools
		note  string
	}{
		{"three pages", map[string]string{
			"tools/list":   page(next("1"), "x"),
			"tools/list 1": page(next("2"), "y"),
			"tools/list 2": page(`,"nextCursor":null`, "z"),
		}, "x y z", ""},
		{"an empty cursor that leads on", map[string]string{
			"tools/list":  page(next(""), "x"),
			"tools/list ": page("", "y"),
		}, "x y", ""},
		{"an empty cursor for ever", map[string]string{"tools/list": page(next(""), "x")},
			"x", "pages repeat"},
		{"an empty cursor that is refused", map[string]string{
			"tools/list":  page(next(""), "x"),
			"tools/list ": `{"jsonrpc":"2.0","id":ID,"error":{"code":-32602,"message":"Invalid cursor"}}`,
		}, "x", "tools/list: Invalid cursor"},
		{"a cursor that repeats", map[string]string{
			"tools/list":   page(next("8"), "x"),
			"tools/list 8": page(next("8"), "y"),
		}, "x y", "pages repeat"},
		{"a cursor that repeats with new tools", map[string]string{
			"tools/list":   page(next("8"), "x"),
			"tools/list 8": page(next("8"), "y", "tID"),
		}, "x y", "pages repeat"},
		{"new cursors for ever", map[string]string{"tools/list": page(next("cID"), "x")},
			"x", "pages repeat"},
		{"empty pages for ever", map[string]string{"tools/list": page(next("cID"))}, "", "pages repeat"},
		{"a page that is no list", map[string]string{
			"tools/list":   page(next("1"), "x"),
			"tools/list 1": resultLine("ID", `{"tools":{}}`),
		}, "x", `no list "tools"`},
		{"a first page that fails", map[string]string{
			"tools/list": `{"jsonrpc":"2.0","id":ID,"error":{"code":-32000,"message":"No"}}`,
		}, "", "not hosted: tools/list: No"},
		{"a name twice", map[string]string{"tools/list": page("", "x", "x", "y")},
			"x y", "x has no own name"},
		{"an end between pages", map[string]string{
			"tools/list":   page(next("1"), "x"),
			"tools/list 1": "",
		}, "", "not hosted: "},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			writeServer(t, dir+"/a.usher", tt.pages)
			out := modulesOf(t, dir)
			var tools []string
			for _, tool := range []string{"x", "y", "z"} {
				if strings.Contains(out, "    a_"+tool+"\n") {
					tools = append(tools, tool)
				}
			}
			check(t, "tools of "+out, strings.Join(tools, " "), tt.want)
			checkContains(t, "usher modules", out, tt.note)
			check(
				t,
				"there is a note",
				strings.Contains(out, "note:"),
				tt.note != "" && !strings.HasPrefix(tt.note, "not"),
			)
		})
	}
}

// The length of each reference counts as work, so that many long ones end the check.
func TestReferencesAreBounded(t *testing.T) {
	c := argumentCheck{
		left:  100,
		path:  []string{"inputSchema"},
		whole: map[string]any{"inputSchema": map[string]any{"a": map[string]any{"$ref": "#/a"}}},
	}
	check(t, "a circle leads somewhere", c.leads("#/a", 9), false)
	check(t, "the work that is left", c.left, 100-10*len("#/a"))
}

// A definition that is of no use without what MCP forbids is left out, and the others stay.
func TestUnusableDefinitionsAreLeftOut(t *testing.T) {
	for _, tt := range []struct{ key, definition, problem string }{
		{"tools", `{"inputSchema":{"type":"object"}}`, `"name" is required`},
		{"tools", `{"name":"x"}`, `"inputSchema" is required`},
		{"tools", `{"name":"x","inputSchema":{"type":"array"}}`, `"inputSchema.type": want one of "object"`},
		{"tools", `{"name":"x","inputSchema":{"properties":{}},"title":1}`, `"inputSchema.type" is required`},
		{"tools", `{"name":"x","inputSchema":{"type":"object"},"execution":{"taskSupport":"required"}}`,
			"needs tasks"},
		{"tools", "null", "want object"},
		{"prompts", `{"name":null}`, `"name": want string`},
		{"resources", `{"name":"x"}`, `"uri" is required`},
		{"resources", `{"uri":"x:y"}`, `"name" is required`},
		{"resourceTemplates", `{"name":"x","uriTemplate":null}`, `"uriTemplate": want string`},
	} {
		cleaned, problem := cleanDefinition(tt.key, json.RawMessage(tt.definition))
		check(t, "what is left of "+tt.definition, string(cleaned), "")
		checkContains(t, "problem of "+tt.definition, problem, "left out", tt.problem)
	}
}

// Some members are written otherwise without a note, as they mean the same.
func TestDefinitionsAreWrittenOtherwise(t *testing.T) {
	for _, tt := range [][2]string{
		{`"properties":{"a":true,"b":false}`, `"properties":{"a":{},"b":{"not":{}}}`},
		{`"additionalProperties":false`, `"additionalProperties":false`},
		{`"properties":{"a":{"type":"array"}}`, `"properties":{"a":{"type":"array","items":{}}}`},
		{`"properties":{"a":{"type":["null",` +
			`"array"]}}`, `"properties":{"a":{"type":["null","array"],"items":{}}}`},
		{`"properties":{"a":{"type":"string",` +
			`"nullable":true}}`, `"properties":{"a":{"type":"string","nullable":true}}`},
		{`"$defs":{"a":{}},"$ref":"#/$defs/a"`, `"$defs":{"a":{}},"$ref":"#/$defs/a"`},
		{`"properties":{"a":{},"inputSchema":{"$ref":"#/properties/a"}}`,
			`"properties":{"a":{},"inputSchema":{"$ref":"#/properties/a"}}`},
		{`"properties":{"pattern":{},"title":{}}`, `"properties":{"pattern":{},"title":{}}`},
		// What looks like a keyword may be a name, and what looks like a schema may be a value.
		{`"properties":{"type":{"enum":["array"]}}`, `"properties":{"type":{"enum":["array"]}}`},
		{`"properties":{"properties":{"readOnly":true}}`, `"properties":{"properties":{"readOnly":true}}`},
		{`"default":{"type":"array","properties":{"a":true}}`,
			`"default":{"type":"array","properties":{"a":true}}`},
		{`"examples":[{"$ref":"x"}],"enum":[{"type":"array"}]`,
			`"examples":[{"$ref":"x"}],"enum":[{"type":"array"}]`},
		{`"dependentRequired":{"type":["array"]}`, `"dependentRequired":{"type":["array"]}`},
	} {
		const begin, end = `{"name":"x","inputSchema":{"type":"object"},` +
			`"outputSchema":{"type":"object",`, `}}`
		tool := json.RawMessage(begin + tt[0] + end)
		cleaned, problem := cleanDefinition("tools", tool)
		check(t, tt[0], mcptest.Canonical(cleaned), mcptest.Canonical(begin+tt[1]+end))
		check(t, "problem of "+tt[0], problem, "")
	}
	cleaned, problem := cleanDefinition(
		"tools",
		json.RawMessage(`{"name":"x","execution":{"taskSupport":"optional"},`+
			`"inputSchema":{"type":"object"}}`),
	)
	check(
		t,
		"without execution",
		mcptest.Canonical(cleaned),
		`{"inputSchema":{"type":"object"},"name":"x"}`,
	)
	check(t, "problem", problem, "")
	const meta = `{"_meta":{"a":{"$ref":"x","type":"array"}},"inputSchema":{"type":"object"},"name":"x"}`
	cleaned, problem = cleanDefinition("tools", json.RawMessage(meta))
	check(t, "with _meta", mcptest.Canonical(cleaned)+problem, meta)
	cleaned, _ = cleanDefinition("tools", json.RawMessage(`{"name":"x","inputSchema":{"type":"object",`+
		`"properties":{"a":{"type":"array","items":5}}}}`))
	checkContains(t, "items that were wrong", string(cleaned), `"items":{}`)
}

// An outputSchema that the official SDKs can't compile, as conformance/definitions.mjs shows, is dropped
// whole: the rest would mean something else. What they compile stays.
func TestOutputSchemasCompile(t *testing.T) {
	for _, tt := range []struct{ schema, wrong string }{
		{`{"nullable":true}`, `.type" is required`},
		{`{"type":["string","null"],"nullable":false}`, ".type"},
		{`{"type":"string","nullable":false}`, ""},
		{`{"type":[],"nullable":true}`, ".type"},
		{`{"enum":[ ]}`, ".enum"},
		{`{"id":"x"}`, ".id"},
		{`{"$id":"https://example.com/x"}`, ".$id"},
		{`{"$anchor":"x"}`, ".$anchor"},
		{`{"$schema":"http://json-schema.org/draft-04/schema#"}`, ".$schema"},
		{`{"$schema":"http://json-schema.org/draft-07/schema#"}`, ""},
		{`{"$ref":"x/properties/b"}`, ".$ref"},
		{`{"$ref":"#/properties/b"}`, ""},
		{`{"dependencies":{"x":1}}`, ".dependencies.x"},
		{`{"dependencies":{"x":["y"],"z":{"type":"string"}}}`, ""},
		{`{"patternProperties":{"(":{}}}`, ".patternProperties.("},
		{`{"allOf":[{"required":[1]}]}`, ".allOf.0.required.0"},
		{`{"properties":{"$ref":{},"$id":{},"id":{},"enum":{"type":"string"}}}`, ""},
		{`{"pattern":"(?P<a>b)"}`, ".pattern"},
		{`{"pattern":"(?i)a"}`, ".pattern"},
		{`{"pattern":"a\\_b"}`, ".pattern"},
		{`{"pattern":"^\\d{3}\\-\\d{4}$"}`, ".pattern"},
		{`{"pattern":"[\\w-\\.]+@"}`, ".pattern"},
		{`{"pattern":"[[:alpha:]]"}`, ".pattern"},
		{`{"pattern":"\\Aa\\z"}`, ".pattern"},
		{`{"pattern":"a{"}`, ".pattern"},
		{`{"pattern":"a]"}`, ".pattern"},
		{`{"pattern":"("}`, ".pattern"},
		{`{"pattern":"[z-a]"}`, ".pattern"},
		{`{"pattern":"\\b+"}`, ".pattern"},
		{`{"pattern":"\u005c_"}`, ".pattern"},
		{`{"pattern":"^[a-z0-9]+(?:-[a-z0-9]+)*$"}`, ""},
		{`{"pattern":"^(?!^[-+.]*$)[+-]?0*\\d*\\.?\\d*$"}`, ""},
		{`{"pattern":"^([\\w'+\\-\\.]*)[\\w+-]@([a-z][a-z\\-]*\\.)+[A-Z]{2,}?$"}`, ""},
		{`{"pattern":"\\$\\/\\\\|\"é"}`, ""},
	} {
		const tool = `{"name":"x","inputSchema":{"type":"object"}%s}`
		given := fmt.Sprintf(tool,
			`,"outputSchema":{"type":"object","properties":{"b":{},"a":`+tt.schema+`}}`)
		want := given
		if tt.wrong != "" {
			want = fmt.Sprintf(tool, "")
		}
		cleaned, problem := cleanDefinition("tools", json.RawMessage(given))
		check(t, tt.schema, mcptest.Canonical(cleaned), mcptest.Canonical(want))
		if tt.wrong == "" {
			check(t, "problem of "+tt.schema, problem, "")
		} else {
			checkContains(t, "problem of "+tt.schema, problem, `; without parameter "outputSchema.`)
			checkContains(t, "problem of "+tt.schema, problem, tt.wrong)
		}
	}
}

// A $ref that leads nowhere, or in a circle, is dropped: the SDK would refuse the whole list. Others stay,
// however many steps they have.
func TestReferencesLeadSomewhere(t *testing.T) {
	const tool = `{"name":"x","inputSchema":{"type":"object"},"outputSchema":{"type":"object",` +
		`"$defs":{"A":{},"B":{"properties":{"b":{"anyOf":[{},{"items":{}}]}}}},` +
		`"properties":{"a":{"items":{"$ref":"%s"}}}}}`
	for _, ref := range []string{"#/$defs/Missing", "#/nowhere", "#a", "x/$defs/A", "",
		"https://example.com/s", "#/$defs/A/properties/b", "#/$defs/B/properties/b/anyOf/2",
		"#/properties/a/items"} {
		cleaned, problem := cleanDefinition("tools", fmt.Appendf(nil, tool, ref))
		checkOmits(t, ref, cleaned, "outputSchema")
		checkContains(t, "problem of "+ref, problem,
			`"outputSchema.properties.a.items.$ref": want string with the place of a definition`)
	}
	for _, ref := range []string{"#", "#/$defs/A", "#/$defs/B/properties/b",
		"#/$defs/B/properties/b/anyOf/1/items"} {
		_, problem := cleanDefinition("tools", fmt.Appendf(nil, tool, ref))
		check(t, "problem of "+ref, problem, "")
	}
	const circles = `{"name":"x","inputSchema":{"type":"object","$defs":{"A":{"$ref":"#/$defs/B"},` +
		`"B":{"$ref":"#/$defs/A","title":"b"},"C":{"items":{"$ref":"#/$defs/C"}}}}}`
	cleaned, problem := cleanDefinition("tools", json.RawMessage(circles))
	checkContains(t, "circles", problem, `"inputSchema.$defs.A.$ref"`, `"inputSchema.$defs.B.$ref"`)
	checkContains(t, "what is left", cleaned, `"A":{},"B":{"title":"b"},"C":{"items":{"$ref":"#/$defs/C"}}`)
}
