// Schemas and documentation: tags, parameters, the check of arguments.

package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"runtime"
	"strconv"
	"strings"
	"testing"
)

// Tags become annotations and parameters of the tool, and leave its description.
func TestTagsBecomeSchemas(t *testing.T) {
	const object = `{"type":"object"}`
	const closed = `{"type":"object","additionalProperties":false,"properties":`
	// noText and text return definitions: with a schema, and with a description.
	noText := func(schema string) string { return `{"inputSchema":` + schema + `}` }
	text := func(doc string) string {
		return `{"description":"` + doc + `","inputSchema":{"type":"object","properties":{}}}`
	}
	for _, tt := range []struct{ name, rules, doc, schema, want string }{
		{"annotations", "go", `Adds.\n@readonly\n@idempotent`, object,
			`{"description":"Adds.","inputSchema":{"type":"object","properties":{}},` +
				`"annotations":{"readOnlyHint":true,"idempotentHint":true}}`},
		{"tags above and below an empty line", "node", `Adds.\n@webhook a/b\n\n@readonly`, object,
			`{"description":"Adds.","inputSchema":{"type":"object","properties":{}},` +
				`"annotations":{"readOnlyHint":true}}`},
		{"annotations are text to a server", "server", `Adds.\n@readonly`, object,
			text(`Adds.\n@readonly`)},
		{"a webhook of a program written for usher", "server", `Adds.\n@webhook a/b`,
			object, text(`Adds.`)},
		{"a parameter's text", "go", "@param a the a",
			`{"type":"object","properties":{"a":{"type":"string"}}}`,
			noText(closed + `{"a":{"type":"string","description":"the a"}}}`)},
		{"the default of the code", "node", "@param [a=2] the a",
			`{"type":"object","properties":{"a":{"type":"number","default":1}}}`,
			noText(closed + `{"a":{"type":"number","default":1,"description":"the a"}}}`)},
		{"parameters of a shell function", "shell",
			`@param {string} a - the a\n@param {integer} [n=3] how many`, object,
			noText(closed + `{"a":{"type":"string","description":"the a"},` +
				`"n":{"type":"integer","default":3,"description":"how many"}},"required":["a"]}`)},
		{"a colon after a parameter's name, as Epytext has it", "python", "@param a: the a",
			`{"type":"object","properties":{"a":{"type":"string"}}}`,
			noText(closed + `{"a":{"type":"string","description":"the a"}}}`)},
		{"_webhook is in no schema", "go", "",
			`{"type":"object","properties":{"_webhook":{},"a":{}},"required":["a","_webhook"]}`,
			noText(closed + `{"a":{}},"required":["a"]}`)},
		{"literals, and fields of a parameter", "shell",
			`@param {object} p\n@param {'x' | 'y'} [kind=x] which\n@param {(1|2)[]} n\n` +
				`@param {'a'|string} s\n@param {string} p.deep.er`,
			`{"type":"object","properties":{"p":{"enum":["of TypeScript"]}}}`,
			noText(closed + `{"p":{"enum":["of TypeScript"]},` +
				`"kind":{"enum":["x","y"],"default":"x","description":"which"},` +
				`"n":{"type":"array","items":{"enum":[1,2]}},"s":{}},"required":["n","s"]}`)},
		{"literals that contain | accept any value", "shell",
			`@param {'a|b'|'c'|3} k which`, object,
			noText(closed + `{"k":{"description":"which"}},"required":["k"]}`)},
		{"a method that takes the rest", "node", "@param a",
			`{"type":"object","additionalProperties":true}`,
			noText(`{"type":"object","additionalProperties":true,"properties":{}}`)},
		{"a program's own schema", "server", "",
			`{"type":"object","properties":{"a":{}}}`,
			noText(`{"type":"object","properties":{"a":{}}}`)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := methodOf(t, tt.rules, `"description":"`+tt.doc+`","inputSchema":`+tt.schema)
			check(t, "definition", string(m.definition.encode()), tt.want)
		})
	}
}

// Slips in tags are reported: they would otherwise take effect as something else, or not at all.
func TestSlipsInTagsAreReported(t *testing.T) {
	const wantType = "want integer, number, string, boolean, object, array"
	tenLists := strings.Repeat("[]", 10)
	for doc, want := range map[string]string{
		`@param {string} a\n@param {'x'|'y'} b\n@param {integer[][]} c\n@param d`: "",
		`@param {int} a\n@param {bool[]} b`: "@param {int} a: " + wantType +
			"; @param {bool[]} b: " + wantType,
		"@param {string" + tenLists + "} a":   "@param {string" + tenLists + "} a: " + wantType,
		`@description @readonly`:              "begin a line with @readonly",
		`Reads it (@read-only)`:               "",
		`Reads it. @read-only`:                "begin a line with @readonly",
		`@param {'a'|string} a`:               "@param {'a'|string} a: " + wantType,
		`@arg $@ string x`:                    "@param $@ string x: want {type} name text",
		`@arg $1 string x\n@arg $12 int`:      "@param {int} arg12: " + wantType,
		`@param {string}`:                     "@param {string}: want {type} name text",
		`Mail a@param.example, or @parameter`: "",

		`Looks up npm:@internal/tools, or @internal/x`: "",
	} {
		check(t, doc, strings.Join(withDoc(t, "shell", doc).problems, "; "), want)
		check(t, doc+" in a program", len(withDoc(t, "server", doc).problems), 0)
	}
	m := methodOf(t, "node", `"description":"@param {Stop} a","inputSchema":{"type":"object",`+
		`"properties":{"a":{"type":"string"}}}`)
	check(t, "a type that the language has", len(m.problems), 0)
	m = methodOf(t, "node", `"description":"@param nam who","inputSchema":{"type":"object",`+
		`"properties":{"name":{},"_webhook":{},"n":{}}}`)
	check(t, "the notes on a name that the method lacks", m.problems,
		[]string{"@param nam: the method has no such parameter"})
	for _, doc := range []string{
		`@param x what @signature github K`, `@param x what\n  and @signature github K`,
		`@webhook a/b @signature github K`, `Takes it. @signature github K`,
		`@description @signature github K`, `@desc:@signature github K`,
		`Tags: @readonly, @signature github K`, `Adds. @readonly @signature github K`,
		`See @see @signature github K`, `  Adds. @idempotent @signature`,
	} {
		checkContains(t, doc, withDoc(t, "shell", doc).refused, "begin a line with @signature")
	}
}

// The tags that protect are known in any case and with a colon. A method with a slip in one of them
// is not offered.
func TestSlipsInProtectingTags(t *testing.T) {
	t.Parallel()
	for _, doc := range []string{
		"@Signature github K", "@SIGNATURE github K", "@signature: github K", "@signature:github K",
		`@signature\tgithub K`, "  @signature   github K",
	} {
		m := withDoc(t, "server", doc)
		check(t, doc, strings.Fields(m.Signature), []string{"@signature", "github", "K"})
		check(t, doc+" is offered", m.refused, "")
	}
	check(t, "a path", withDoc(t, "node", "@Webhook: /a/b").Hook, "a/b")
	for _, doc := range []string{
		"@signatur github K", "@signnature github K", "@singature github K", "@signaturee github K",
		"@Signatures github K", "@sygnature github K", "@signature-github K", "@signaturegithub K", "@webhok",
		"@webhooks", "@wbehook: a", "@Webhookpath a", "Takes it. @Signature: github K", "* @webhook a",
		"@webhook/a", "@s1gnature github K", "@signature(github, K)", "@internally",
		"@interna", "@un-share", "Lists it. @Internal", `- @un-shared`,
		`a\u00a0@unshared`, `\u200b@signature github K`,
	} {
		for _, kind := range []string{"server", "node", "shell"} {
			check(t, doc+" is refused", withDoc(t, kind, doc).refused != "", true)
		}
		check(t, doc+" of a .mcp.json", withDoc(t, "config", doc).refused, "")
	}
	for _, doc := range []string{
		"@web a", "@sign it", "mail@signature.example", "(@webhook)", "@shook",
		"@external", "@interface", "the @interval", "it is @private", "@shared",
	} {
		check(t, doc+" is refused", withDoc(t, "node", doc).refused, "")
	}
	m := methodOf(t, "python",
		`"inputSchema":{"properties":{"a":{"description":"@signature github K"}}}`)
	check(t, "a line that became the text of a parameter", m.refused != "", true)
}

// Each tag has its effect in any case, with a colon and with -. It leaves the description, and so
// does what continues it: up to the next tag and, outside JavaScript, up to a blank line.
func TestTagsLeaveTheDescription(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ kind, doc, description, annotations, unknown string }{
		{"go", `Adds.\n@ReadOnly\nMore.`, `Adds.\nMore.`, `{"readOnlyHint":true}`, ``},
		{"shell", `@read-only:\n@Destructive\n@idem-potent`, ``,
			`{"readOnlyHint":true,"destructiveHint":true,"idempotentHint":true}`, ``},
		{"python", `@openWorld\n@title: Adds numbers`, ``,
			`{"openWorldHint":true,"title":"Adds numbers"}`, ``},
		{"go", `@openworld\n@closed-world`, ``, `{"openWorldHint":false}`, ``},
		{"node", `@summary Adds.\n@returns {Promise<{a: string}>} - its\n  text` +
			`\n@throws {Error} no\n\nor so`, `Adds.\nReturns: its text`, ``, ``},
		{"shell", `@cmd Adds.`, `Adds.`, ``, ``},
		{"go", `@brief Adds.\n@return its text\n@since 1\n\nMore.`,
			`Adds.\n\nMore.\nReturns: its text`, ``, ``},
		{"python", `@example f()\ng()\n\nReturns:\n    A text.`,
			`Returns:\n    A text.`, ``, ``},
		{"node", `@description @see x`, `@see x`, ``, ``},
		{"node", `Adds.\n@locked board:write\n@Format md\n@locked`, `Adds.`, ``,
			`locked format locked`},
		{"node", `@app.route(\"/\")\n@a/b is one`,
			`@app.route(\"/\")\n@a/b is one`, ``, ``},
		{"shell", `shellcheck disable=SC1\n#######\nAdds.\n=====\n  .. note::`,
			`Adds.`, ``, ``},
		{"go", `@param a how\n  often, see\nor not`, ``, ``, ``},
		{"server", `Adds.\n@title x\n@locked\n@unshared`,
			`Adds.\n@title x\n@locked`, ``, ``},
		{"config", `Adds.\n@unshared\nx @webhook`,
			`Adds.\n@unshared\nx @webhook`, ``, ``},
	} {
		m := methodOf(t, tt.kind, `"description":"`+tt.doc+
			`","inputSchema":{"properties":{"a":{}}}`)
		description, _ := unquote(json.RawMessage(`"` + tt.description + `"`))
		check(t, "the description of "+tt.doc, m.description, description)
		annotations := string(m.definition.get("annotations"))
		check(t, "the annotations of "+tt.doc, annotations, tt.annotations)
		unknown := strings.Join(m.unknown, " ")
		check(t, "the unknown tags of "+tt.doc, unknown, tt.unknown)
		properties := m.definition.object("inputSchema").object("properties")
		if text := properties.object("a").text("description"); text != "" {
			check(t, "the text of "+tt.doc, text, "how often, see or not")
		}
	}
}

// The first sentence ends at a mark, at the end of the paragraph, or before a copyright.
func TestFirstSentence(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"Reads\nfiles. Writes.":                      "Reads files.",
		"Reads v1.2 files!":                          "Reads v1.2 files!",
		"Title\n=====\n\nReads files.":               "Title",
		"read_all.py\n\nReads files":                 "Reads files",
		"Import as:\n\n  import a\n":                 "Import as: import a",
		"Says hello\n  to all. B.":                   "Says hello to all.",
		"Tools for X\n \nReads files.":               "Tools for X",
		"\n\nReads":                                  "Reads",
		"Copyright 2026 A. B.\nUnder terms.":         "",
		"SPDX-License-Identifier: MIT\n\nReads.":     "Reads.",
		"SPDX-License-Identifier: MIT\nCopyright A.": "",
		"Reads files\nCopyright 2026 A. B.":          "Reads files",
		"Checks Copyright lines.":                    "Checks Copyright lines.",
		"shellcheck shell=bash\n=====\nReads a. B.":  "Reads a.",
		"src/lib/dates.ts\nReads dates.":             "Reads dates.",
		"=====\nFile: log.sh\n=====\nReads logs.":    "Reads logs.",
		"Created on Aug 9, 2016\n\nReads files.":     "Reads files.",
		"Created on demand.":                         "Created on demand.",
		"Authors: lists the authors.":                "Authors: lists the authors.",
		"vim: et\nCopyright A. B.":                   "",
		"log.sh\nAuthor: A. B.\n\nReads\nlog.sh.":    "Reads log.sh.",
		"read.sh":                                   "",
		"vim: et sw=2\n=====\nReads files.":         "Reads files.",
		"-*- coding: utf-8 -*-\nReads files.":       "Reads files.",
		"=====\n\nModule:  read.sh\n\nReads files.": "Reads files.",
		"Author: A. B. <a@b.c>\nReads files.":       "Reads files.",
		"":                                          "",
	} {
		check(t, text, firstSentence(parseDoc(text, kindPython).description), want)
	}
}

// A rule around a title is no text. A line that names an author still must have no protecting tag.
func TestRules(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"── Init log file ──────────":          "Init log file",
		"---- Adds days. ----":                 "Adds days.",
		"=== onexit() ======\nEnds.":           "onexit()\nEnds.",
		"Übersicht ====":                       "Übersicht",
		"--- Init ---":                         "Init",
		"Compares a and b with ===":            "Compares a and b with ===",
		"Separators are lines of ---":          "Separators are lines of ---",
		"ShellCheck a script, and report.":     "ShellCheck a script, and report.",
		"Masks it as ***":                      "Masks it as ***",
		"Reads.\n----------\nWrites.":          "Reads.\nWrites.",
		"| a | b |\n| - | --- |\na | ---":      "| a | b |\n| - | --- |\na | ---",
		"===== =====\nTrue  False\n===== ====": "===== =====\nTrue  False\n===== ====",
		"Ends a -- b ---> c":                   "Ends a -- b ---> c",
		"@param x a text ----\nReads.":         "",
		"Takes:\n  a.js\nAuthor: the author":   "Takes:\n  a.js\nAuthor: the author",
	} {
		doc := parseDoc(text, kindShell)
		check(t, text, doc.description, want)
		check(t, text+": from a server", parseDoc(text, kindConfig).description, text)
	}
	doc := parseDoc("Author: A. B. @internal", kindShell)
	check(t, "a tag in a line of an author: refused", doc.refused != "", true)
}

// shdoc documents a parameter by its place. Its type may be missing.
func TestPlacedParameters(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"$1 string the text":       `{"name":"arg1","kind":"string","text":"the text"}`,
		"$2 int number of seconds": `{"name":"arg2","kind":"int","text":"number of seconds"}`,
		"$1 Line. (optional)":      `{"name":"arg1","kind":"","text":"Line. (optional)","optional":true}`,
		"$1 - the start":           `{"name":"arg1","kind":"","text":"the start"}`,
		"$1 string - a path":       `{"name":"arg1","kind":"string","text":"a path"}`,
		"$12 intact bytes":         `{"name":"arg12","kind":"intact","text":"bytes"}`,
	} {
		p, _ := parseParam(text)
		got := object{{"name", quote(p.name)}, {"kind", quote(p.kind)}, {"text", quote(p.text)}}
		if p.optional {
			got = got.set("optional", json.RawMessage("true"))
		}
		check(t, text, string(got.encode()), want)
	}
}

// A method with @internal is no tool, and a webhook only with @webhook.
func TestInternalMethods(t *testing.T) {
	t.Parallel()
	for _, tag := range []string{"@internal", "@Private", "@ignore", "@hidden"} {
		definition := `{"name":"handleX","description":"` + tag + `"}`
		handler := parseMethod(json.RawMessage(definition), kindNode)
		check(t, tag+" without @webhook: why it is refused", handler.refused != "", true)
		hook := withDoc(t, "node", tag+`\n@webhook`)
		check(t, tag+" with @webhook: a webhook", hook.IsHook, true)
		check(t, tag+" with @webhook: no tool", hook.Internal, true)
		check(t, tag+" with @webhook: why it is refused", hook.refused, "")
	}
}

// withDoc reads a method with a description, the inside of a JSON string.
func withDoc(t *testing.T, rules, doc string) *Method {
	t.Helper()
	return methodOf(t, rules, `"description":"`+doc+`"`)
}

var kindOf = map[string]Kind{
	"go":     kindGo,
	"node":   kindNode,
	"shell":  kindShell,
	"server": kindExecutable,
	"config": kindConfig,
}

// methodOf reads a method's definition, without its name.
func methodOf(t *testing.T, rules, definition string) *Method {
	t.Helper()
	return parseMethod(json.RawMessage(`{"name":"x",`+definition+`}`), kindOf[rules])
}

// Arguments are checked against the schema. An error names the parameter and what is
// wanted.
func TestArgumentsAreChecked(t *testing.T) {
	schema := readFile(t, "testdata/schema/arguments.json")
	m := methodOf(t, "go", `"inputSchema":`+schema)
	// Beside "s" and "gone", each is accepted unchanged (""), left out ("-"), or wrong.
	for given, want := range map[string]string{
		`"i":3,"n":1.5,"b":true,"a":[],"o":{},"any":[],"two":null,"more":null`: "",
		`"i":3,"n":3.0,"list":[1,2]`:                              "",
		`"n":12345678901234567890123,"i":12345678901234567890123`: "",
		`"kind":"é","level":1.0`:                                  "",
		`"either":{"rows":1,"more":[null]},"one":1`:               "",
		`"either":["a"],"one":"all"`:                              "",
		`"counts":{"a":1},"strict":{"a":1}`:                       "",
		`"either":{"rows":1,"note":null}`:                         "",
		`"at":"2026-01-02T03:04:05.123456789+02:00"`:              "",
		`"lost":1`:                     "",
		`"_webhook":{"method":"POST"}`: "",
		`"i":null`:                     "-",
		`"i":1.5`:                      `parameter "i": want integer, got number`,
		`"list":[1,null]`:              `parameter "list.1": want integer, got null`,
		`"either":true`: `parameter "either": want integer or ` +
			`object with rows or array, got boolean`,
		`"either":{}`: `parameter "either.rows" is required: integer`,
		`"shape":{}`: `parameter "shape": want object with kind, radius or ` +
			`object with kind, size, got object`,
		`"square":{"kind":"square"}`:    `parameter "square.size" is required`,
		`"square":{"kind":"cube"}`:      `parameter "square.kind": want one of "square"`,
		`"square":[]`:                   `parameter "square": want object with kind, size or null, got`,
		`"strict":{"b":1}`:              `parameter "strict.b" is unknown: want a`,
		`"strict":{"b":1,"_webhook":1}`: `parameter "strict.b" is unknown: want a`,
		`"I":1`:                         `parameter "I" is unknown: want a, any, at, b, counts,`,
		`"either":{"rows":1,"ROWS":2}`:  `parameter "either.ROWS" is unknown: want note, rows`,
		`"level":[]`:                    `parameter "level": want one of 1,"x",null`,
		`"at":"tomorrow"`: `parameter "at": ` +
			`want a time such as 2006-01-02T15:04:05Z`,
		`"tree":` + strings.Repeat(`{"left":`, 999) + `{}` +
			strings.Repeat(`}`, 999): `too complex`,
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
	// An integer reaches the method as one, however it was written.
	for given, want := range map[string]string{
		`"i":3.0,"n":3.0`:                           `"i":3,"n":3.0`,
		`"i":3e0,"any":3e0`:                         `"i":3,"any":3e0`,
		`"i":1e3`:                                   `"i":1000`,
		`"i":-12.50e1`:                              `"i":-125`,
		`"list":[1,2.0,30e-1]`:                      `"list":[1,2,3]`,
		`"either":{"rows":2.0,"more":[1.0]}`:        `"either":{"rows":2,"more":[1.0]}`,
		`"either":4.0`:                              `"either":4`,
		`"counts":{"a":1.0}`:                        `"counts":{"a":1}`,
		`"i":1e400`:                                 "want integer, got number",
		`"i":` + strings.Repeat("7", 401):           "want integer, got number",
		`"i":3.0,"more":null,"kind":null,"at":null`: `"i":3,"more":null`,
	} {
		got, err := m.checkArguments(json.RawMessage(`{"s":"","gone":1,` + given + `}`))
		if err != nil {
			checkContains(t, given, err.Error(), want)
		} else {
			check(t, given, string(got), `{"s":"","gone":1,`+want+`}`)
		}
	}
	for sent, want := range map[string]string{
		``:                    `parameter "s" is required: string`,
		`{"s":null,"gone":1}`: `parameter "s": want string, got null`,
	} {
		_, err := m.checkArguments(json.RawMessage(sent))
		check(t, sent, fmt.Sprint(err), want)
	}
}

// An integer that JavaScript would round is refused for a method in JavaScript, unless it is in a
// delivery, or the schema allows any value.
func TestRoundedIntegersAreRefused(t *testing.T) {
	const schema = `"inputSchema":{"type":"object","properties":{"i":{"type":"integer"},"n":{"type":"number"},
		"list":{"type":"array","items":{"type":["integer","null"]}},"any":{},"s":{"type":"string"}}}`
	for arguments, refused := range map[string]string{
		`"i":9007199254740992`:               "",
		`"i":9007199254740993`:               "i",
		`"i":725653563933458432`:             "i",
		`"i":-725653563933458432.0`:          "i",
		`"i":1732800000000000`:               "",
		`"i":1e20`:                           "",
		`"n":9007199254740993`:               "n",
		`"n":0.12345678901234567890123`:      "",
		`"list":[1,9007199254740993]`:        "list.1",
		`"any":{"id":9007199254740993}`:      "",
		`"s":"9007199254740993"`:             "",
		`"_webhook":{},"i":9007199254740993`: "",
	} {
		for _, kind := range []string{"node", "python"} {
			_, err := methodOf(
				t,
				kind,
				schema,
			).checkArguments(json.RawMessage("{" + arguments + "}"))
			if refused == "" || kind == "python" {
				check(t, kind+" "+arguments, err, nil)
			} else {
				checkContains(t, kind+" "+arguments, fmt.Sprint(err), strconv.Quote(refused),
					"declare a string")
			}
		}
	}
}

// Neither the path of each item nor an error for each alternative costs memory.
func TestCheckIsLinear(t *testing.T) {
	const size = 50_000
	const integers = `{"type":"object","additionalProperties":{"type":"array","items":{"type":"integer"}}}`
	long := strings.Repeat("k", size)
	for _, tt := range []struct{ name, schema, arguments, item, want string }{
		{"a long key", integers, `{"x":{"` + long + `":[%s]}}`, `1`, ``},
		{"a wrong item", integers, `{"x":{"` + long + `":[%s,""]}}`, `1`,
			`.50000": want integer, got string`},
		{"a union", `{"type":"array","items":{"anyOf":[{"type":"integer"},{"enum":["` +
			long + `"]},{"type":"boolean"},
			{"type":"object","required":["a"]},{"type":"string"}]}}`, `{"x":[%s]}`, `""`, ``},
	} {
		m := methodOf(t, "node", `"inputSchema":{"type":"object","properties":{"x":`+
			tt.schema+`}}`)
		items := strings.Repeat(tt.item+",", size-1) + tt.item
		arguments := json.RawMessage(fmt.Sprintf(tt.arguments, items))
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := m.checkArguments(arguments)
		runtime.ReadMemStats(&after)
		checkContains(t, tt.name, fmt.Sprint(err), cmp.Or(tt.want, "<nil>"))
		perByte := int(after.TotalAlloc-before.TotalAlloc) / len(arguments)
		if perByte > 500 {
			t.Errorf("%s: %d bytes of memory per byte of the message", tt.name, perByte)
		}
	}
}

// A check ends, even if each $ref leads to itself, which would overflow the stack. Nulls that count
// as omitted are omitted at once, however often they repeat. Long lists of values and of names are
// too complex, if too many values and keys are compared with them.
func TestCheckEnds(t *testing.T) {
	const chain, size = 500, 100_000
	const tooComplex = "is too complex to check"
	name := func(i int) string { return fmt.Sprintf(`"n%d":{}`, i) }
	value := func(i int) string { return fmt.Sprintf(`"v%d"`, i) }
	list := func(n int, item func(int) string) string {
		var items []string
		for i := range n {
			items = append(items, item(i))
		}
		return strings.Join(items, ",")
	}
	many := func(text string) string {
		return strings.TrimSuffix(strings.Repeat(text+",", size), ",")
	}
	defs := `{"Self":{"$ref":"#/$defs/Self"},
		"A":{"anyOf":[{"$ref":"#/$defs/A"},{"$ref":"#/$defs/B"}]},"B":{"$ref":"#/$defs/A"},
		"List":{"anyOf":[{"type":"array","items":{"$ref":"#/$defs/List"}},{"type":"integer"}]}`
	for i := range chain {
		defs += fmt.Sprintf(`,"C%d":{"$ref":"#/$defs/C%d"}`, i, i+1)
		defs += fmt.Sprintf(
			`,"D%d":{"anyOf":[{"$ref":"#/$defs/D%d"},{"$ref":"#/$defs/D%[2]d"}]}`,
			i,
			i+1,
		)
	}
	defs += fmt.Sprintf(`,"C%d":{"type":"array","items":{"$ref":"#/$defs/C0"}},"D%[1]d":{`+
		`"type":"string"}}`, chain)
	nested := strings.Repeat("[", 50) + strings.Repeat("]", 50)
	large := strings.Repeat("y", 1<<20)
	ref := func(name string) string { return `"x":{"$ref":"#/$defs/` + name + `"}` }
	for _, tt := range []struct{ name, properties, arguments, want string }{
		{"itself", ref("Self"), `"x":1`, tooComplex},
		{"each other", ref("A"), `"x":1`, tooComplex},
		{"a wrong one inside", ref("List"), `"x":[[1],[["a",3]],[]]`,
			`parameter "x.1.0.0": want array or integer, got string`},
		{"a long chain in each level", ref("C0"), `"x":` + nested + `,"y":"` + large + `"`, "<nil>"},
		{"alternatives that double", ref("D0"), `"x":1,"y":"yyyy"`, tooComplex},
		{"nulls", `"x":{"type":"integer"}`, many(`"x":null`), "{} <nil>"},
		{"values", `"x":{"items":{"enum":[` + list(10_000, value) + `]}}`,
			`"x":[` + many(`"v9999"`) + `]`, tooComplex},
		{"names", list(10_000, name), many(`"u":1`), tooComplex},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := methodOf(t, "node", `"inputSchema":{"type":"object","additionalProperties":true,`+
				`"properties":{`+tt.properties+`},"$defs":`+defs+`}`)
			fit, err := m.checkArguments(json.RawMessage("{" + tt.arguments + "}"))
			checkContains(t, "what fits, and the error", fmt.Sprintf("%s %v", fit, err), tt.want)
			if n := len(fmt.Sprint(err)); n > 1000+len(nested) {
				t.Errorf("an error of %d bytes", n)
			}
		})
	}
}

// A value becomes a tool's result: a result as it is, content blocks as its content, an object as
// structured content, all else as text.
func TestValueBecomesAResult(t *testing.T) {
	text := func(s string) string { return `{"content":[` + block(s) + `]` }
	// structured returns how an object is shown: as text too.
	structured := func(s string) string { return text(s) + `,"structuredContent":` + s + `}` }
	const (
		xText    = `{"type":"text","text":"x"}`
		xContent = `{"content":[` + xText + `],`
		image    = `{"type":"image","data":"","mimeType":"image/png","annotations":{},"_meta":{}}`
		link     = `{"type":"resource_link","name":"n","uri":"u:","size":1,"description":"d"}`
		page     = `{"type":"resource","resource":{"uri":"u:","text":"t"}}`
	)
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
		`[]`:                                    text(`[]`) + `}`,
		xText:                                   `{"content":[` + xText + `]}`,
		`[` + xText + `,` + image + `]`:         `{"content":[` + xText + `,` + image + `]}`,
		`[` + xText + `,1]`:                     text(`[`+xText+`,1]`) + `}`,
		link:                                    `{"content":[` + link + `]}`,
		page:                                    `{"content":[` + page + `]}`,
		`{"type":"text"}`:                       structured(`{"type":"text"}`),
		`{"type":"text","text":1}`:              structured(`{"type":"text","text":1}`),
		`{"type":"text","text":"x","id":1}`:     structured(`{"type":"text","text":"x","id":1}`),
		`{"type":"text","text":"x","title":""}`: structured(`{"type":"text","text":"x","title":""}`),
		`{"type":"image","data":""}`:            structured(`{"type":"image","data":""}`),
		`{"type":"resource","resource":{}}`:     structured(`{"type":"resource","resource":{}}`),
		`{"content":[{"type":"text"}]}`:         structured(`{"content":[{"type":"text"}]}`),
	} {
		check(t, value, string(toolResult(json.RawMessage(value)).encode()), want)
		if value != "" {
			handed := methodResult(objectOf(`{"_meta":{"usher/value":` + value + `}}`))
			check(t, value+" handed over", string(handed.encode()), want)
		}
	}
}

// Bytes become an image or audio if they begin like one, else text.
func TestBytesBecomeAResult(t *testing.T) {
	t.Parallel()
	// media returns the result with one block.
	media := func(kind, mime string) string {
		return `{"content":[{"type":"` + kind + `","data":"%s","mimeType":"` + kind + "/" + mime + `"}]}`
	}
	for data, want := range map[string]string{
		"\x89PNG\r\n\x1a\n":                media("image", "png"),
		"\xff\xd8\xff\xe0":                 media("image", "jpeg"),
		"GIF89a":                           media("image", "gif"),
		"RIFF\x00\x00\x00\x00WEBPVP8 ":     media("image", "webp"),
		"RIFF\x00\x00\x00\x00WAVEfmt ":     media("audio", "wav"),
		"ID3\x04":                          media("audio", "mpeg"),
		"\xff\xfb\x90":                     media("audio", "mpeg"),
		"\xff\xf2":                         media("audio", "mpeg"),
		"\xff\xfa\x90":                     shownText("%s"),
		"%PDF-1.4 é":                       shownText("%PDF-1.4 é"),
		"":                                 shownText(""),
		"\x1f\x8b\x08":                     shownText("%s"),
		"\xff\xfeh\x00i\x00":               shownText("%s"),
		"RIFF\x00\x00\x00\x00AVI \xff\xff": shownText("%s"),
	} {
		base64 := strings.Trim(string(marshal([]byte(data))), `"`)
		got := methodResult(objectOf(`{"_meta":{"usher/bytes":"` + base64 + `"}}`))
		check(
			t,
			fmt.Sprintf("%q", data),
			string(got.encode()),
			strings.ReplaceAll(want, "%s", base64),
		)
	}
}

// The text that is left has no tags, and there are none if the rules allow none.
func FuzzParseDoc(f *testing.F) {
	f.Fuzz(func(t *testing.T, doc string) {
		tagged := func(tags docTags) bool {
			marked := tags.IsHook || tags.Internal || tags.Unshared
			others := len(tags.params) + len(tags.annotations) + len(tags.unknown)
			return marked || tags.Signature != "" || others > 0
		}
		plain := parseDoc(doc, kindConfig)
		if tagged(plain) || plain.description != strings.TrimSpace(plain.description) {
			t.Fatalf("%q has tags: %+v", doc, plain)
		}
		tags := parseDoc(doc, kindNode)
		again := parseDoc(tags.description, kindNode)
		if tagged(again) || again.description != tags.description {
			t.Fatalf("%q leaves %q, which is read as %+v", doc, tags.description, again)
		}
		for _, p := range tags.params {
			if p.name == "" || strings.ContainsAny(p.name, " \n.") {
				t.Fatalf("%q: the parameter's name in %+v", doc, p)
			}
			if p.defaultValue != nil && (!json.Valid(p.defaultValue) || !p.optional) {
				t.Fatalf("%q: the parameter's default value in %+v", doc, p)
			}
		}
		if tags.Hook != "" && checkHookPath(tags.Hook) == nil {
			u, err := url.Parse(webhookPrefix + tags.Hook)
			if err != nil || u.Path != webhookPrefix+tags.Hook || u.RawQuery != "" {
				t.Fatalf("%q can't be asked for as it is written: %v", tags.Hook, u)
			}
		}
	})
}

// A tool's definition is the same when it is read again, and has no parameter _webhook.
func FuzzParseMethod(f *testing.F) {
	f.Fuzz(func(t *testing.T, definition, kind string) {
		raw := json.RawMessage(definition)
		if checkJSON(raw, "it") != nil {
			return
		}
		raw, _ = cleanDefinition("tools", raw)
		if raw == nil {
			return
		}
		m := parseMethod(raw, kindOf[kind])
		named := object{{"name", quote("t")}}
		shown := append(named, m.definition...).encode()
		again := parseMethod(shown, kindOf[kind])
		reread := append(named, again.definition...).encode()
		if !json.Valid(shown) || string(reread) != string(shown) || again.Name != "t" {
			t.Fatalf("%s is read again as %s", shown, reread)
		}
		schema := field(shown, "inputSchema")
		if field(schema, "properties", webhookParam) != nil || members(schema) == nil {
			t.Fatalf("the schema of %s", shown)
		}
	})
}

// Arguments that fit are an object, and fit again as they were returned.
func FuzzCheckArguments(f *testing.F) {
	f.Fuzz(func(t *testing.T, text, arguments string) {
		invalid := checkJSON([]byte(text), "it") != nil ||
			checkJSON([]byte(arguments), "it") != nil
		if invalid || members([]byte(arguments)) == nil {
			return
		}
		m := &Method{schema: decodeSchema(json.RawMessage(text))}
		fit, err := m.checkArguments(json.RawMessage(arguments))
		if err != nil {
			if wrong, ok := errors.AsType[*argumentError](err); !ok || wrong.Error() == "" {
				t.Fatalf("%v", err)
			}
			return
		}
		again, err := m.checkArguments(fit)
		if err != nil || string(again) != string(fit) || !json.Valid(fit) || members(fit) == nil {
			t.Fatalf("%s took %s, returned %s, and then %s, %v", text, arguments, fit,
				again, err)
		}
		for _, name := range m.schema.Required {
			if m.schema.Ref == "" && field(fit, name) == nil {
				t.Fatalf("%s took %s without %q", text, arguments, name)
			}
		}
	})
}

// If the alternatives of a union differ in a constant, the error is about the one that the constant
// of the value selects.
func TestUnionErrorFollowsTheConstant(t *testing.T) {
	t.Parallel()
	shape := func(kind, size string) string {
		return `{"type":"object","properties":{"kind":{"const":"` + kind + `"},"` + size +
			`":{"type":"integer"}},"required":["kind","` + size + `"]}`
	}
	m := methodOf(t, "go", `"inputSchema":{"type":"object","properties":{"shape":{"anyOf":[`+
		shape("circle", "radius")+`,`+shape("square", "side")+`]}}}`)
	for given, want := range map[string]string{
		`{"kind":"circle","radius":"x"}`: `parameter "shape.radius": want integer, got string`,
		`{"kind":"square","radius":1}`:   `parameter "shape.side" is required: integer`,
		`{"kind":"cube"}`:                `parameter "shape": want object`,
	} {
		_, err := m.checkArguments(json.RawMessage(`{"shape":` + given + `}`))
		checkContains(t, given, fmt.Sprint(err), want)
	}
}

// A long list that is no content is not split into its items.
func TestLongResultIsNotSplit(t *testing.T) {
	value := json.RawMessage("[" + strings.Repeat("0,", 100_000) + "0]")
	allocations := testing.AllocsPerRun(1, func() { toolResult(value) })
	check(t, "it takes an allocation for each item", allocations > 1000, false)
}
