// Tests of runtimes/shim.mjs: modules in JavaScript and TypeScript, both over their pipes and
// hosted by usher.

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// nodeVersion returns what node --version prints.
var nodeVersion = sync.OnceValues(func() ([]byte, error) { return exec.Command("node", "--version").Output() })

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

// nodeTestTyped skips a test whose Node can't strip types.
func nodeTestTyped(t *testing.T) {
	t.Helper()
	if major, minor := nodeTestVersion(t); major < 22 || major == 22 && minor < 13 {
		lack(t, "Node.js 22.13 or newer")
	}
}

// nodeTestInstall returns the program of npm's package node, kept between runs.
func nodeTestInstall(t *testing.T, version string) string {
	t.Helper()
	cache, err := os.UserCacheDir()
	must(t, err)
	dir := filepath.Join(cache, "usher-test", strings.ReplaceAll(version, "@", "-"))
	node := filepath.Join(dir, "node_modules", "node", "bin", "node")
	if _, err := os.Stat(node); err == nil {
		return node
	}
	write(t, filepath.Join(dir, "package.json"), `{"private":true}`)
	need(t, "npm")
	if out, _, err := runIn(dir, "npm", "install", version, "--no-audit", "--no-fund"); err != nil {
		t.Fatalf("npm install %s: %v\n%s", version, err, out)
	}
	return node
}

// TestNodeScannerTakesAnything scans pieces and scrambled copies of the files
// here: reading ends without an error, whatever the text.
func TestNodeScannerTakesAnything(t *testing.T) {
	long(t)
	nodeTestVersion(t)
	shim, err := runtimeFiles.ReadFile("runtimes/shim.mjs")
	must(t, err)
	head, _, ok := strings.Cut(string(shim), "// ---- The start")
	if !ok {
		t.Fatal("the shim has no start")
	}
	scan := readFile(t, "testdata/node/scan.mjs")
	file := filepath.Join(t.TempDir(), "scan.mjs")
	write(t, file, head+string(scan))
	cmd := exec.Command("node", file, "calls.usher.js")
	cmd.Dir = "testdata/node"
	cmd.Env = append(os.Environ(), fmt.Sprint("ROUNDS=", slowTests(30, 100)))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

func TestNodeCalls(t *testing.T) {
	long(t)
	nodeTestVersion(t)
	p := startShim(t, kindNode, "testdata/node/calls.usher.js")
	not := "the result can't be written as JSON: "
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
		{"throwsObject", `{}`, shownFailure(`{"code":7}`)},
		{"throwsEmpty", `{}`, shownFailure("TypeError")},
		{"throwsHostile", `{}`, shownFailure("the method failed with something that has no text")},
		{"nan", `{}`, shownFailure(not + `"mean" is NaN`)},
		{"map", `{}`, shownFailure(not + `"m" is a Map`)},
		{"big", `{}`, shownFailure(not + `"n" is a bigint`)},
		{"func", `{}`, shownFailure(not + `"f" is a function`)},
		{"bareFunc", `{}`, shownFailure(not + "it is a function")},
		{"cycle", `{}`, shownFailure(not + "it contains itself")},
		{"hostile", `{}`, shownFailure(not + "not for you")},
		{"print", `{}`, shownText("printed")},
		{"read", `{}`, shownObject(`{"own":"","child":"end"}`)},
		{"stdin", `{}`, shownText("read \"\"")},
		{"argv", `{}`, shownText("2")},
		{"second", `{}`, shownText("undefined")},
		{"next", `{}`, shownText("1")},
		{"next", `{}`, shownText("2")},
		{"timer", `{}`, shownFailure("in a timer")},
		{"forgotten", `{}`, shownFailure("forgotten")},
		{"later", `{}`, shownText("answered")},
		{"sleep", `{"ms":20}`, shownText("slept")},   // until that error has come
		{"steps", `{"n":2}`, shownObject(`{"n":2}`)}, // nobody asked for progress
	} {
		t.Run(row.tool, func(t *testing.T) {
			check(t, "result of "+row.arguments, p.call(row.tool, row.arguments), row.want)
		})
	}
	check(t, "output after the end", p.end(), "")
	checkContains(t, "stderr", p.stderr.String(), "printed while loading", "by console.log\n", "by process.stdout\n",
		"by an import of stdout\n", "by its number", "by a child\n", "RangeError: no <way>\v    at ",
		"uncaught: Error: after the answer")
}

func TestNodeProtocol(t *testing.T) {
	long(t)
	nodeTestVersion(t)
	p := startShim(t, kindNode, "testdata/node/calls.usher.js")
	const notification = `{"jsonrpc":"2.0","method":"notifications/`
	p.exchange([]lineExchange{
		{`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18"}}`,
			`{"protocolVersion":"2025-06-18"`},
		{`{"jsonrpc":"2.0","id":"3","method":"tools/list"}`, `{"jsonrpc":"2.0","id":"3","result":{"tools":[`},
		{`{"jsonrpc":"2.0","id":4,"method":"resources/list"}`,
			`{"jsonrpc":"2.0","id":4,"error":{"code":-32601,"message":"unknown method or tool in resources/list"}}`},
		{"{\"jsonrpc\":\"2.0\",\"method\":\"notifications/initialized\"}\n{\"id\":9}\n" +
			`{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":"toString"}}`,
			`{"jsonrpc":"2.0","id":5,"error":{"code":-32601,`},
		{`{"jsonrpc":"2.0","id":"é\n","method":"tools/call","params":` +
			`{"name":"steps","arguments":{"n":1},"_meta":{"progressToken":"t"}}}`,
			notification + `progress","params":{"progressToken":"t","progress":1,"total":1,"message":"step 1"}}`},
		{"", `{"jsonrpc":"2.0","id":"é\n","result":{"_meta":{"usher/value":`},
		{`{"jsonrpc":"2.0","id":6,"method":"tools/call","params":{"name":"logs"}}`,
			notification + `message","params":{"level":"info","logger":"calls","data":"plain",` +
				`"_meta":{"usher/call":6}}}`},
		{"", `{"level":"warning","logger":"calls","data":{"deep":[1]},"_meta":{"usher/call":6}}`},
		{"", `{"level":"info","logger":"calls","data":"1n","_meta":{"usher/call":6}}`},
		{"", `{"jsonrpc":"2.0","id":6,"result":{"_meta":{"usher/value":"the last value"}}`},
		{`{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"fails","_meta":{"progressToken":0}}}`,
			`{"progressToken":0,"progress":1}`},
		{"", `"id":7,"result":` + shownFailure("half way")},
	})
	p.end()
}

func TestNodeCancel(t *testing.T) {
	long(t)
	nodeTestVersion(t)
	p := startShim(t, kindNode, "testdata/node/calls.usher.js")
	p.sendCall("1", "endless", `{}`)
	p.sendCall("2", "sleep", `{"ms":50}`)
	for _, id := range []string{"1", "2", "3"} {
		p.cancelCall(id)
	}
	check(t, "another call", p.call("sleep", `{"ms":100}`), shownText("slept"))
	check(t, "how it ended", p.call("howEnded", `{}`), shownText("returned"))
	p.checkCancelled("1", "2")
	p.sendCall("8", "sleep", `{"ms":600000}`) // does not keep the process
	check(t, "output after the end", p.end(), "")
}

func TestNodeExit(t *testing.T) {
	long(t)
	nodeTestVersion(t)
	p := startShim(t, kindNode, "testdata/node/calls.usher.js")
	p.sendCall("1", "largeThenExit", `{"size":2621440}`) // 5 MiB
	line := p.next()
	check(t, "5 MiB arrived", len(line) >= 5<<20, true)
	check(t, "they are JSON", json.Valid([]byte(line)), true)
	if p.out.Scan() {
		t.Errorf("more output: %.100s", p.out.Text())
	}
	p.cmd.Wait()
}

// TestNodeWithoutPipes has stdin be a file, so that the descriptors can't be moved
// away: prints don't get between the messages.
func TestNodeWithoutPipes(t *testing.T) {
	long(t)
	nodeTestVersion(t)
	in := filepath.Join(t.TempDir(), "in")
	write(t, in, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"print"}}`+"\n")
	cmd := shimCommand(t, kindNode, "testdata/node/calls.usher.js")
	var err error
	cmd.Stdin, err = os.Open(in)
	must(t, err)
	out, err := cmd.Output()
	must(t, err)
	check(t, "output", string(out), "by its number, without an end of lineby a child\n\n"+
		`{"jsonrpc":"2.0","id":1,"result":{"_meta":{"usher/value":"printed"}}}`+"\n")
}

// TestNodePositional checks that functions with several parameters are reported: a method gets
// one object.
func TestNodePositional(t *testing.T) {
	long(t)
	nodeTestVersion(t)
	dir := t.TempDir()
	write(t, dir+"/a.usher.js", "export function add(a, b) {}\nexport const fine = ({ a }) => a\n")
	write(t, dir+"/b.usher.js", "exports.add = (a, b) => a + b\n")
	write(t, dir+"/c.usher.js", "export default class { add(a, b) {} }\n")
	out, _, _ := usher(t, "", "modules", "-base", t.TempDir(), dir)
	check(t, "notes", strings.Count(out, "note: add: a method gets one object: declare add({ … })"), 3)
	checkOmits(t, "the output", out, "note: fine")
}

func TestNodeFailsToLoad(t *testing.T) {
	long(t)
	nodeTestVersion(t)
	dir := t.TempDir()
	write(t, filepath.Join(dir, "broken.js"), "\nmodule.exports = {")
	write(t, filepath.Join(dir, "fine.mjs"), "export const a = 1")
	for i, row := range []struct{ ending, text, want string }{
		{".js", "export function a() {}\n\nexport function b( {", ":3: SyntaxError: "},
		{".mjs", "\nimport 'nopackage'\n", ":2: Error: Cannot find package 'nopackage'"},
		{".mjs", "import { b } from './fine.mjs'\n",
			":1: SyntaxError: The requested module './fine.mjs' does not provide an export named 'b'"},
		{".js", "\nrequire('./broken.js')", ":2: SyntaxError: Unexpected end of input (broken.js:2)"},
		{".mjs", "\n\nnull.x", ":3: TypeError: Cannot read properties of null"},
		{".mjs", "throw 'a text'", ": a text"},
		{".mjs", "export default class {\n  constructor() { throw new Error('not now') }\n}", ":2: Error: not now"},
		{".mjs", "process.exit(1)", ""},
	} {
		t.Run(strconv.Itoa(i), func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(dir, fmt.Sprintf("m%d.usher%s", i, row.ending))
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

func TestNodeTypeScript(t *testing.T) {
	long(t)
	major, minor := nodeTestVersion(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "m.usher.ts")
	// failsWith runs a text that does not load.
	failsWith := func(text, want string) {
		t.Helper()
		write(t, file, text)
		out, err := shimCommand(t, kindNode, file).CombinedOutput()
		check(t, "it fails", err != nil, true)
		checkContains(t, text, string(out), "m.usher.ts"+want)
		check(t, "lines of output", strings.Count(string(out), "\n"), 1)
	}
	if major < 22 || major == 22 && minor < 13 {
		failsWith("export const f = 1\n",
			fmt.Sprintf(": TypeScript needs Node.js 22.13 or newer; this is v%d.%d.", major, minor))
	}
	nodeTestTyped(t)
	write(t, filepath.Join(dir, "lib.ts"), "export const twice = (s: string): string => s + s\n")
	write(t, file, "import { twice } from './lib.ts'\nexport const f = ({ a }: { a: string }): string => twice(a)\n")
	p := startShim(t, kindNode, file)
	check(t, "result", p.call("f", `{"a":"x"}`), shownText("xx"))
	p.end()
	failsWith("\nexport const f = (p: { a string }) => 1", ":2: SyntaxError: ")
	failsWith("\n\nenum E { A }\nexport const f = 1", ":3: SyntaxError: TypeScript enum is not supported in "+
		"strip-only mode (Node only removes types: use a union of strings, or plain fields)")
	failsWith("const a = 1\nconst a: number = 2\nexport {}",
		":2: SyntaxError: Identifier 'a' has already been declared")
}

// TestNodeOlderVersions runs modules by versions of Node in which types, or
// export in a .js file, need the shim's help.
func TestNodeOlderVersions(t *testing.T) {
	slow(t)
	nodeTestVersion(t)
	path := os.Getenv("PATH")
	for _, tt := range []struct{ version, ending, lib, typed string }{
		{"node@20.10.0", "js", "lib.mjs", ""},
		{"node@22.13.0", "ts", "lib.ts", ": { a: string }"},
		{"node@22.15.0", "ts", "lib.ts", ": { a: string }"},
	} {
		t.Run(tt.version, func(t *testing.T) {
			t.Setenv("PATH", filepath.Dir(nodeTestInstall(t, tt.version))+string(os.PathListSeparator)+path)
			dir := t.TempDir()
			file := filepath.Join(dir, "a.usher."+tt.ending)
			write(t, filepath.Join(dir, tt.lib), "export const one = (p"+tt.typed+") => p.a\n")
			for _, text := range []string{
				"import { one } from './" + tt.lib + "'\nexport function f(p" + tt.typed + ") { return one(p) }\n",
				"exports.f = (p" + tt.typed + ") => p.a\n",
			} {
				write(t, file, text)
				p := startShim(t, kindNode, file)
				check(t, text, p.call("f", `{"a":"x"}`), shownText("x"))
				p.end()
			}
		})
	}
}

// TestNodeModuleSystems checks that a .js file has the module system that Node gives it.
func TestNodeModuleSystems(t *testing.T) {
	long(t)
	nodeTestVersion(t)
	for i, row := range []struct{ pkg, text string }{
		{``, "export const f = () => 'f'"},
		{``, "module.exports = { f() { return 'f' } }"},
		{`{"type":"module"}`, "export const f = () => 'f'"},
		{`{"type":"commonjs"}`, "const s = 'export const f = 1'\nmodule.exports.f = () => 'f'"},
		{`{"name":"x"}`, "import 'node:fs'\nexport { f }\nfunction f() { return 'f' }"},
		{``, "module.exports = function f() { return 'f' }"},
		{``, "module.exports = class { #x = 'f'; f() { return this.#x } }"},
		{``, "class X { f() { return 'f' } static g() {} get h() {} }\nexport default X"},
		{``, "const x = await Promise.resolve('f')\nexport const f = () => x"},
	} {
		t.Run(strconv.Itoa(i), func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), "a b #%")
			write(t, filepath.Join(dir, "m.usher.js"), row.text)
			if row.pkg != "" {
				write(t, filepath.Join(dir, "package.json"), row.pkg)
			}
			p := startShim(t, kindNode, filepath.Join(dir, "m.usher.js"))
			check(t, "tools", len(p.tools()), 1)
			check(t, "result", p.call("f", `{}`), shownText("f"))
			p.end()
			if files := folderNames(t, dir); len(files) > 2 {
				t.Errorf("files beside the module: %v", files)
			}
		})
	}
}
