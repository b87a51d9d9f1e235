// Tests of runtimes/shim.mjs: modules in JavaScript and TypeScript, both over their pipes and
// hosted by usher.

package main

import (
	"bytes"
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// A value, an exception and a print of a JavaScript method become results, errors and lines
// of the log.
func TestNodeResults(t *testing.T) {
	long(t)
	p := startFile(t, "testdata/node/calls.usher.js")
	const not = "the result can't be written as JSON: "
	const known = ": want { ask, params }, { progress, total, message } or { log, level }, " +
		"and return the result"
	for _, row := range []struct{ tool, arguments, want string }{
		{"echo", `{"b":1,"a":[true,null,"é"],"_webhook":{"headers":{}}}`,
			shownObject(`{"b":1,"a":[true,null,"é"],"_webhook":{"headers":{}}}`)},
		{"keys", `{"__proto__":{"polluted":1},"constructor":{"prototype":{"polluted":1}}}`,
			shownObject(`{"own":["__proto__","constructor"],"polluted":"no","proto":true}`)},
		{"nothing", `{}`, `{"content":[]}`},
		{"object", `{}`, shownObject(`{"a":1,"when":"1970-01-01T00:00:00.000Z"}`)},
		{"throws", `{}`, shownFailure("no <way>")},
		{"rejects", `{}`, shownFailure("never")},
		{"throwsText", `{}`, shownFailure("just text")},
		{"throwsHostile", `{}`,
			shownFailure("the method failed with something that has no text")},
		{"nan", `{}`, shownFailure(not + `"mean" is NaN`)},
		{"map", `{}`, shownFailure(not + `"m" is a Map`)},
		{"cycle", `{}`, shownFailure(not + "it contains itself")},
		{"hostile", `{}`, shownFailure(not + "not for you")},
		{"print", `{}`, shownText("printed")},
		{"read", `{}`, shownObject(`{"own":"","child":"end"}`)},
		{"argv", `{}`, shownText("2")},
		{"caused", `{}`, shownFailure("outer")},
		{"next", `{}`, shownText("1")},
		{"next", `{}`, shownText("2")},
		{"timer", `{}`, shownFailure("in a timer")},
		{"forgotten", `{}`, shownFailure("forgotten")},
		{"later", `{}`, shownText("answered")},
		{"sleep", `{"ms":20}`, shownText("slept")},   // until that error has come
		{"steps", `{"n":2}`, shownObject(`{"n":2}`)}, // nobody asked for progress
		{"unknown", `{}`, shownFailure("unknown yield of { aks, params }" + known)},
		{"unknownValue", `{}`, shownFailure("unknown yield of number" + known)},
	} {
		t.Run(row.tool, func(t *testing.T) {
			check(t, "result of "+row.arguments, p.Call(row.tool, row.arguments), row.want)
		})
	}
	check(t, "output after the end", p.End(), "")
	checkContains(t, "stderr", p.Stderr.String(), "printed while loading",
		"by console.log\n", "by process.stdout\n",
		"by an import of stdout\n", "by its number", "by a child\n",
		"RangeError: no <way>\v    at ", "[cause]: RangeError: inner\v",
		"uncaught: Error: after the answer")
}

// A cancelled generator ends, and a cancelled call is answered after its end.
func TestNodeConfirmsCancellation(t *testing.T) {
	long(t)
	p := startFile(t, "testdata/node/calls.usher.js")
	p.SendCall("1", "endless", `{}`)
	p.SendCall("2", "sleep", `{"ms":50}`)
	for _, id := range []string{"1", "2", "3"} {
		p.CancelCall(id)
	}
	check(t, "another call", p.Call("sleep", `{"ms":100}`), shownText("slept"))
	check(t, "how it ended", p.Call("howEnded", `{}`), shownText("returned"))
	checkCancelled(p, "1", "2")
	p.SendCall("8", "sleep", `{"ms":600000}`) // does not keep the process
	check(t, "output after the end", p.End(), "")
}

func nodeTestVersion(t *testing.T) (major, minor int) {
	t.Helper()
	out, err := nodeVersion()
	if err != nil {
		lack(t, "Node.js")
	}
	if _, err := fmt.Sscanf(string(out), "v%d.%d", &major, &minor); err != nil || major < 20 {
		lack(t, "Node.js 20 or newer, not "+strings.TrimSpace(string(out)))
	}
	return major, minor
}

// A function with several parameters, or one that is no object, gets them by name, each in its
// place, if each is described. Notes name what is not offered and what may be any value.
func TestNodeParametersByName(t *testing.T) {
	long(t)
	nodeTestVersion(t)
	out := modulesOf(t, "testdata/node/several")
	const notAll = " is not offered: describe each parameter by a type or a @param: "
	const unknown = " accepts any value for the type "
	const onlyFunctions = " is not offered: export functions, or a default class"
	for _, want := range []string{
		"a_hail(name: string)", "a_one", "a_stale(who: string, times?: number)",
		"a_mixed(first: number, opts: object with a, second?: number, more?: array)",
		"a_listed(names: array, then: any)", "a_sum(a: number, b: number)",
		"a_dotted(a: string, rest?: array)",
		"  Shifts.\n    b_shift(by: number, _?: string)", "c_add(a: number, b: number)",
		"note: add" + notAll + "a, b", "note: greet" + notAll + "times",
		"note: all" + notAll + "{ … }, more",
		"note: bound is not offered: declare it in this file",
		"note: one takes one object, but nothing names its fields",
		"a_known(value: any)", "a_handlePush", "a_push",
		"note: listed: then" + unknown + "Function",
		"note: stale: @param wh: the method has no such parameter",
		"note: Box" + onlyFunctions,
		"note: group" + onlyFunctions,
		"note: make is not offered: remove the word static",
	} {
		checkContains(t, "the output", out, want+"\n")
	}
	checkOmits(t, "the output", out, "a_add", "a_greet", "a_all",
		"note: fine", "note: hail", "note: sum")
	p := startFile(t, "testdata/node/several/a.usher.js")
	for _, row := range []struct{ tool, arguments, want string }{
		{"hail", `{"name":"x"}`, shownText("x")},
		{"sum", `{"b":2,"a":1}`, shownText("3")},
		{"mixed", `{"second":2,"opts":{"a":3},"more":[4,5],"first":1}`,
			shownText("[1,3,2,4,5]")},
		{"mixed", `{"opts":{"a":3},"first":1}`, shownText("[1,3,7]")},
		{"known", `{"value":[1]}`, shownText("[1]")},
		{"handlePush", `{"ref":"x"}`, `{"content":[{"type":"text","text":"{\"ref\":\"x\"}"}],` +
			`"structuredContent":{"ref":"x"}}`},
		{"push", `{"ref":"x"}`, `{"content":[{"type":"text","text":"{\"ref\":\"x\"}"}],` +
			`"structuredContent":{"ref":"x"}}`},
		{"delivered", `{"name":"n","_webhook":{"method":"POST"}}`,
			shownText(`["POST","n"]`)},
	} {
		check(t, row.tool+row.arguments, p.Call(row.tool, row.arguments), row.want)
	}
	p.End()
}

// The file's first comment that is no licence describes the module, unless it belongs to a function.
// Inline tags are no text.
func TestNodeFirstComment(t *testing.T) {
	long(t)
	nodeTestVersion(t)
	dir := t.TempDir()
	const more = "\n\n/** Adds, like {@link sub} and {@link https://x.org that}. */\n" +
		"export function add() {}\n"
	for i, row := range []struct{ text, want string }{
		{"/* Copyright (c) 2026 A. B.\n * Licensed under X.\n */\n\n// Counts.", "Counts."},
		{"// SPDX-License-Identifier: MIT\n// Copyright A.\n\n/** Counts\n * {@link x}. */",
			"Counts\nx."},
		{"/**\n * @license\n * Copyright A.\n */\n", ""},
		{"/** This file is part of X.\n * Copyright A. */\n// Counts.\n  // Twice.\n", "Counts.\nTwice."},
		{"// @ts-check\n// Counts. Copyright A.\n", "Counts. Copyright A."},
		{"/** Skips. */\nexport function skip(a, b) {}", ""},
		{"// Skips.\nexport default async function skip(a, b) {}", ""},
		{"/* Counts. */\nimport fs from 'fs'", "Counts."},
	} {
		file := fmt.Sprintf("%s/m%d.usher.mjs", dir, i)
		write(t, file, row.text+more)
		p := startFile(t, file)
		check(t, row.text, stringField(p.Request("initialize", `{}`), "instructions"), row.want)
		tool := string(p.Request("tools/list", `{}`))
		checkContains(t, row.text, tool, `"Adds, like sub and https://x.org that."`)
		p.End()
	}
}

// A file that can't be loaded ends the shim with one line, which names the file's line.
func TestNodeLoadErrorIsOneLine(t *testing.T) {
	long(t)
	nodeTestVersion(t)
	dir := t.TempDir()
	write(t, dir+"/broken.js", "\nmodule.exports = {")
	write(t, dir+"/fine.mjs", "export const a = 1")
	write(t, dir+"/commonjs/package.json", `{"type": "commonjs"}`)
	for i, row := range []struct{ ending, text, want string }{
		{".js", "export function a() {}\n\nexport function b( {", ":3: SyntaxError: "},
		{".mjs", "\nimport 'nopackage'\n", ":2: Error: Cannot find package 'nopackage' imported from " +
			dir + "/m1.usher.mjs (npm install it)"},
		{".mjs", "import '@/lib/a'\n", ":1: Error: Cannot find package '@/lib' imported from " +
			dir + "/m2.usher.mjs (use a relative path)"},
		{".mjs", "exports.a = 1\n",
			":1: ReferenceError: exports is not defined in ES module scope (write export)"},
		{".mjs", "export const a = __dirname\n",
			":1: ReferenceError: __dirname is not defined in ES module scope\n"},
		{".mjs", "import 'src/a.js'\n", ":1: Error: Cannot find package 'src' imported from " +
			dir + "/m5.usher.mjs (use a relative path)"},
		{".js", "const a = require('./fine')\n",
			":1: Error: Cannot find module './fine' (Node needs the whole path, such as ./lib.ts)"},
		{".js", "const a = require('nopackage')\n",
			":1: Error: Cannot find module 'nopackage' (npm install it)"},
		{".js", "const a = require('@a/b')\n",
			":1: Error: Cannot find module '@a/b' (npm install it)"},
		{".mjs", "import { b } from './fine.mjs'\n",
			":1: SyntaxError: The requested module './fine.mjs' does not provide an export named 'b' " +
				"(a type needs: import type)"},
		{".mjs", "\n\nnull.x", ":3: TypeError: Cannot read properties of null"},
		{".mjs",
			"export default class {\n  constructor() { throw new Error('not now') }\n}",
			":2: Error: not now"},
		{".mjs", "process.exit(1)", ""},
		{".mjs", "import { McpServer } from '@modelcontextprotocol/sdk/server/mcp.js'\n" +
			"const server = new McpServer({ name: 'x' })\n",
			": it is an MCP server: rename it, and host it by a .mcp.json, with the command node"},
		{".ts", "function d(x: any) {}\n@d\nexport default class T {}\n",
			":2: SyntaxError: Invalid or unexpected token (Node reads no decorators)"},
		{".ts", "export const v = (a: string) => <b>{a}</b>\n",
			":1: SyntaxError: Unterminated regexp literal (Node reads no JSX)"},
		{".mjs", "export const v = a => <b>{a}</b>\n",
			":1: SyntaxError: Unexpected token '<' (Node reads no JSX)"},
		{".js", "export const a = 1\n",
			":1: SyntaxError: Unexpected token 'export' (does package.json say \"type\": \"commonjs\"? " +
				"Run npm pkg set type=module, or name it .usher.mjs)"},
		{".js", "\nimport './fine.mjs'\n",
			":2: SyntaxError: Cannot use import statement outside a module (does package.json say "},
	} {
		t.Run(strconv.Itoa(i), func(t *testing.T) {
			t.Parallel()
			needLanguage(t, row.ending)
			folder := dir
			if strings.Contains(row.want, "commonjs") || strings.Contains(row.want, "outside a module") {
				folder = dir + "/commonjs"
			}
			file := filepath.Join(folder, fmt.Sprintf("m%d.usher%s", i, row.ending))
			write(t, file, row.text)
			cmd := shimCommand(t, kindNode, file)
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			cmd.Run()
			got := stderr.String()
			check(t, "exit status", cmd.ProcessState.ExitCode(), 1)
			if row.want != "" && !strings.HasPrefix(got, filepath.Base(file)+row.want) {
				t.Errorf("%q: stderr is %s, want …%s", row.text, got, row.want)
			}
			if strings.Count(got, "\n") > 1 {
				t.Errorf("%q: stderr has more than a line: %s", row.text, got)
			}
		})
	}
}

// nodeTestTyped skips a test whose Node can't strip types.
func nodeTestTyped(t *testing.T) {
	t.Helper()
	if major, minor := nodeTestVersion(t); major < 22 || major == 22 && minor < 18 {
		lack(t, "Node.js 22.18 or newer")
	}
}

// TypeScript runs if Node strips types. Otherwise the error says what is needed.
func TestNodeTypeScript(t *testing.T) {
	long(t)
	major, minor := nodeTestVersion(t)
	dir := t.TempDir()
	file := dir + "/m.usher.ts"
	// failsWith runs a text that does not load.
	failsWith := func(text, want string) {
		t.Helper()
		write(t, file, text)
		out, err := shimCommand(t, kindNode, file).CombinedOutput()
		check(t, "it fails", err != nil, true)
		checkContains(t, text, out, "m.usher.ts"+want)
		check(t, "lines of output", strings.Count(string(out), "\n"), 1)
	}
	if major < 22 || major == 22 && minor < 18 {
		failsWith("export const f = 1\n",
			fmt.Sprintf(": TypeScript needs Node.js 22.18 or newer; this is v%d.%d.",
				major, minor))
	}
	nodeTestTyped(t)
	write(t, dir+"/lib.ts",
		"export const twice = (s: string): string => s + s\n")
	write(t, file,
		"import { twice } from './lib.ts'\nexport const f = ({ a }: { a: string }): string => twice(a)\n")
	p := startFile(t, file)
	check(t, "result", p.Call("f", `{"a":"x"}`), shownText("xx"))
	p.End()
	failsWith("\nexport const f = (p: { a string }) => 1", ":2: SyntaxError: ")
	failsWith("\n\nenum E { A }\nexport const f = 1",
		":3: SyntaxError: TypeScript enum is not supported in "+
			"strip-only mode (Node only removes types: use a union of strings, or plain fields)")
	failsWith("const a = 1\nconst a: number = 2\nexport {}",
		":2: SyntaxError: Identifier 'a' has already been declared")
}

// What a function takes out of an object is a parameter, even if usher knows only a part of the object's
// type. A function in a public field of the class is noted.
func TestNodeTypesInPart(t *testing.T) {
	long(t)
	nodeTestTyped(t)
	dir := t.TempDir()
	write(t, dir+"/a.usher.ts", `
import type { Base } from './base.ts'
type Item = { name: string }
interface More extends Base { more: string }
export const add = ({ name, n = 3 }: Pick<Item, 'name'> & { n?: number }) => [name, n]
export const extend = ({ id, more }: More) => [id, more]
export const whole = (item: Partial<More> & { n: number }) => item
export const area = (base: Base) => base
export const time = (x: ReturnType<typeof add>) => x
const plain = { a: 1 }
export function bound(this: Window, a: string) { return a }
export const same = (x: typeof plain) => x
export function first<T>(list: T[]) { return list[0] }
`)
	write(t, dir+"/b.usher.ts", `
export default class Box {
  private inner = async () => 1
  protected readonly own: (x: number) => number = x => x
  _hidden = () => 1
  public later = async (name: string) => name
  size = 5
  put(privateNote: string) { return privateNote }
}
`)
	write(t, dir+"/c.usher.ts",
		"/** A shape. */\nexport type Shape = { a: string }\nexport const c = () => 1\n")
	write(t, dir+"/d.usher.ts", "// Draws.\nimport type { A } from './a.ts'\nexport const d = () => 1\n")
	out := modulesOf(t, dir)
	const unknown = " accepts any value for the type "
	checkContains(t, "usher modules", out, "c_c\n", "  Draws.\n    d_d\n",
		"a_add(n?: number, name?: any)\n", "a_extend(more: string, id?: any)\n",
		"note: add: it"+unknown+"Pick\n", "note: extend: it"+unknown+"Base\n",
		"note: whole: item"+unknown+"Base\n", "a_area(base: any)\n", "note: area: base"+unknown+"Base\n",
		"a_time(x: any)\n", "note: time: x"+unknown+"ReturnType\n",
		"a_first(list: array)\n", "note: first: list"+unknown+"T\n",
		"a_same(x: any)\n", "note: same: x"+unknown+"typeof\n",
		"b_put(privateNote: string)\n", "note: later is not offered: write it as a method\n")
	checkOmits(t, "usher modules", out, "Window", "inner", "own", "_hidden", "size", "A shape")
	p := startFile(t, dir+"/a.usher.ts")
	check(t, "a call", p.Call("add", `{"name":"x"}`), shownText(`["x",3]`))
	p.End()
}

// Instances of the file's classes, and groups of functions at any of three levels, are noted, but no other
// objects. No getter runs.
func TestNodeNotesGroups(t *testing.T) {
	long(t)
	nodeTestVersion(t)
	dir := t.TempDir()
	const file = `
class Client { get() {} }
export const client = new Client()
export const api = { v1: { users: { list() {} } } }
export const typed = { Client }
export const data = { a: { b: { c: { d() {} } } }, list: [() => 1] }
export const url = new URL('https://x.org')
export const map = new Map([['f', () => 1]])
export const bare = Object.create(null)
export const loop = { a: 1 }
loop.loop = loop
export const lazy = { db: { get url() { throw new Error('not set') },
  client: new Proxy({}, { get() { throw new Error('not connected') } }) } }
export const f = () => 1
`
	write(t, dir+"/a.usher.mjs", file+"export default new Client()\n")
	write(t, dir+"/b.usher.js", "class C { get() {} }\nmodule.exports = { c: new C(), f: () => 1 }\n")
	write(t, dir+"/c.usher.js", "// C.\nmodule.exports = async () => 1\n")
	write(t, dir+"/e.usher.mjs", "export class Both { get() {} }\nexport default Both\n")
	write(t, dir+"/d.usher.js", "class C { get() {} }\nmodule.exports = new C()\n")
	out := modulesOf(t, dir)
	const onlyFunctions = " is not offered: export functions, or a default class\n"
	for _, name := range []string{"client", "api", "typed", "c"} {
		checkContains(t, "usher modules", out, "note: "+name+onlyFunctions)
	}
	check(t, "notes on default instances", strings.Count(out, "note: default"+onlyFunctions), 2)
	checkContains(t, "usher modules", out, "note: default is not offered: give it a name\n")
	checkOmits(t, "usher modules", out, "note: data", "note: url", "note: map", "note: bare", "note: loop",
		"note: lazy", "not set", "not connected", "note: f", "note: Both")
}

// In TypeScript, a literal as the default of a parameter is its type.
func TestNodeTypesOfDefaults(t *testing.T) {
	long(t)
	nodeTestTyped(t)
	dir := t.TempDir()
	write(t, dir+"/a.usher.ts", `
export const round = (value: number, digits = 2, mode = 'up', on = true) => [value, digits, mode, on]
export const tag = (name = 'x') => name
export const add = (list = [1]) => list
export const made = (a: string, b = a.length) => [a, b]
export const fields = ({ a = 1 } = {}) => a
`)
	out := modulesOf(t, dir)
	checkContains(t, "usher modules", out,
		"a_round(value: number, digits?: number, mode?: string, on?: boolean)\n",
		"a_tag(name?: string)\n", "a_add(list?: array)\n", "a_fields(a?: any)\n",
		"note: made is not offered: describe each parameter by a type or a @param: b\n")
	p := startFile(t, dir+"/a.usher.ts")
	check(t, "a call", p.Call("round", `{"value":1,"mode":"down"}`), shownText(`[1,2,"down",true]`))
	check(t, "a call with one value", p.Call("tag", `{"name":"y"}`), shownText("y"))
	p.End()
}

// A .js file has the module system that Node gives it.
func TestNodeModuleSystems(t *testing.T) {
	long(t)
	nodeTestVersion(t)
	for i, row := range []struct{ pkg, text string }{
		{``, "export const f = () => 'f'"},
		{``, "module.exports = { f() { return 'f' } }"},
		{`{"type":"module"}`, "export const f = () => 'f'"},
		{`{"type":"commonjs"}`, "const s = 'export const f = 1'\nmodule.exports.f = () => 'f'"},
		{`{"name":"x"}`, "import 'node:fs'\nexport { f }\nfunction f() { return 'f' }"},
		{``, "module.exports = class { #x = 'f'; f() { return this.#x } }"},
		{``, "const x = await Promise.resolve('f')\nexport const f = () => x"},
	} {
		t.Run(strconv.Itoa(i), func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir() + "/a b #%"
			write(t, dir+"/m.usher.js", row.text)
			if row.pkg != "" {
				write(t, dir+"/package.json", row.pkg)
			}
			p := startFile(t, dir+"/m.usher.js")
			check(t, "tools", len(p.Tools()), 1)
			check(t, "result", p.Call("f", `{}`), shownText("f"))
			p.End()
			if files := folderNames(t, dir); len(files) > 2 {
				t.Errorf("files beside the module: %v", files)
			}
		})
	}
}

// nodeVersion returns what node --version prints.
var nodeVersion = sync.OnceValues(func() ([]byte, error) {
	return exec.Command("node", "--version").Output()
})
