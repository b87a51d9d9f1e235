// Tests of runtimes/shim.mjs: modules in JavaScript and TypeScript, spoken to
// over their pipes, and as usher hosts them.

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// nodeTestNeeds skips a test for want of something, unless CI requires it.
func nodeTestNeeds(t *testing.T, what string) {
	t.Helper()
	if os.Getenv("CI_REQUIRE") != "" {
		t.Fatalf("CI requires %s", what)
	}
	t.Skipf("needs %s", what)
}

func nodeTestVersion(t *testing.T) (major, minor int) {
	t.Helper()
	out, err := exec.Command("node", "--version").Output()
	if err != nil {
		nodeTestNeeds(t, "Node.js")
	}
	if _, err := fmt.Sscanf(string(out), "v%d.%d", &major, &minor); err != nil || major < 20 {
		nodeTestNeeds(t, "Node.js 20 or newer, not "+strings.TrimSpace(string(out)))
	}
	return major, minor
}

// nodeTestTyped puts a Node that takes types out into the PATH: the one that is
// there, that of USHER_TEST_NODE, or, for slow tests, one from npm.
func nodeTestTyped(t *testing.T) {
	t.Helper()
	if major, minor := nodeTestVersion(t); major > 22 || major == 22 && minor >= 13 {
		return
	}
	node := os.Getenv("USHER_TEST_NODE")
	if node == "" && os.Getenv("USHER_SLOW") != "" {
		node = nodeTestInstall(t, "node@22")
	}
	if node == "" {
		nodeTestNeeds(t, "Node.js 22.13 or newer: in PATH, by USHER_TEST_NODE, or with USHER_SLOW=1 from npm")
	}
	t.Setenv("PATH", filepath.Dir(node)+string(os.PathListSeparator)+os.Getenv("PATH"))
}

// nodeTestInstall is the program of npm's package node, kept between runs.
func nodeTestInstall(t *testing.T, version string) string {
	t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(cache, "usher-test", strings.ReplaceAll(version, "@", "-"))
	node := filepath.Join(dir, "node_modules", "node", "bin", "node")
	if _, err := os.Stat(node); err == nil {
		return node
	}
	write(t, filepath.Join(dir, "package.json"), `{"private":true}`)
	nodeTestNpm(t, dir, "install", version)
	return node
}

func nodeTestNpm(t *testing.T, dir string, args ...string) {
	t.Helper()
	if _, err := exec.LookPath("npm"); err != nil {
		nodeTestNeeds(t, "npm")
	}
	cmd := exec.Command("npm", append(args, "--no-audit", "--no-fund")...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("npm %v: %v\n%s", args, err, out)
	}
}

// Whatever the text, reading it ends, and without an error: the scanner is run
// over pieces and scrambled copies of all the files here.
func TestNodeScannerTakesAnything(t *testing.T) {
	t.Parallel()
	nodeTestVersion(t)
	shim, err := runtimeFiles.ReadFile("runtimes/shim.mjs")
	if err != nil {
		t.Fatal(err)
	}
	head, _, ok := strings.Cut(string(shim), "// ---- The start")
	if !ok {
		t.Fatal("the shim has no start")
	}
	dir := t.TempDir()
	write(t, filepath.Join(dir, "scan.mjs"), head+`
function read(text) {
  const s = new Source(text)
  s.read()
  for (const [name, e] of [...s.local, ...s.exported]) {
    s.tool(name, s.resolve(e))
    for (const [inner, m] of s.resolve(e).members ?? []) s.tool(inner, s.resolve(m))
  }
}
let seed = 7
const random = n => (seed = (seed * 1103515245 + 12345) & 0x7fffffff) % n
for (const file of fs.readdirSync('.').filter(f => /[jt]s$/.test(f))) {
  const text = fs.readFileSync(file, 'utf8')
  for (let i = 0; i < 100; i++) {
    const at = random(text.length)
    let odd = [text.slice(0, at), text.slice(at)][i % 2]
    for (let k = 0; k < 3; k++) odd = odd.slice(0, random(odd.length + 1)) + [...'{}()[]<>'+"'"+'"/*=:;,|&$#@\\'+'\x60'][random(24)] + odd.slice(random(odd.length + 1))
    try { read(odd) } catch (err) { log(file + ': ' + err.stack + '\n' + odd.slice(0, 2000)); process.exit(1) }
  }
}
process.exit(0)
`)
	cmd := exec.Command("node", filepath.Join(dir, "scan.mjs"), "calls.usher.js")
	cmd.Dir = "testdata/node"
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

func TestNodeCalls(t *testing.T) {
	t.Parallel()
	nodeTestVersion(t)
	p := startShim(t, kindNode, "testdata/node/calls.usher.js")
	not := "the result can't be written as JSON: "
	for _, row := range []struct{ tool, arguments, want string }{
		{"echo", `{"b":1,"a":[true,null,"é"],"_webhook":{"headers":{}}}`, shownObject(`{"b":1,"a":[true,null,"é"],"_webhook":{"headers":{}}}`)},
		{"keys", `{"__proto__":{"polluted":1},"constructor":{"prototype":{"polluted":1}}}`, shownObject(`{"own":["__proto__","constructor"],"polluted":"no","proto":true}`)},
		{"nothing", `{}`, `{"content":[]}`},
		{"nul", `{}`, `{"content":[]}`},
		{"text", `{}`, shownText("a <b> & \"c\"\n")},
		{"number", `{}`, shownText("1.5")},
		{"list", `{}`, shownText("[1,\"a\",null]")},
		{"object", `{}`, shownObject(`{"a":1,"when":"1970-01-01T00:00:00.000Z"}`)},
		{"date", `{}`, shownText("1970-01-01T00:00:00.000Z")},
		{"result", `{}`, shownFailure("mine")},
		{"throws", `{}`, shownFailure("no <way>")},
		{"rejects", `{}`, shownFailure("never")},
		{"throwsText", `{}`, shownFailure("just text")},
		{"throwsObject", `{}`, shownFailure(`{"code":7}`)},
		{"throwsNothing", `{}`, shownFailure("undefined")},
		{"throwsEmpty", `{}`, shownFailure("TypeError")},
		{"throwsHostile", `{}`, shownFailure("the method failed with something that has no text")},
		{"nan", `{}`, shownFailure(not + `"mean" is NaN`)},
		{"infinity", `{}`, shownFailure(not + "it is -Infinity")},
		{"big", `{}`, shownFailure(not + `"n" is a bigint`)},
		{"func", `{}`, shownFailure(not + `"f" is a function`)},
		{"bareFunc", `{}`, shownFailure(not + "it is a function")},
		{"map", `{}`, shownFailure(not + `"m" is a Map`)},
		{"cycle", `{}`, shownFailure(not + "it contains itself")},
		{"hostile", `{}`, shownFailure(not + "not for you")},
		{"proxy", `{}`, shownFailure("trapped")},
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
		if got := p.call(row.tool, row.arguments); got != row.want {
			t.Errorf("%s(%s)\n got %s\nwant %s", row.tool, row.arguments, got, row.want)
		}
	}
	if rest := p.end(); rest != "" {
		t.Errorf("more output: %s", rest)
	}
	for _, want := range []string{"printed while loading", "by console.log\n", "by process.stdout\n", "by an import of stdout\n",
		"by its number", "by a child\n", "RangeError: no <way>\n    at ", "uncaught: Error: after the answer"} {
		if !strings.Contains(p.stderr.String(), want) {
			t.Errorf("stderr lacks %q:\n%s", want, p.stderr.String())
		}
	}
}

func TestNodeProtocol(t *testing.T) {
	t.Parallel()
	nodeTestVersion(t)
	p := startShim(t, kindNode, "testdata/node/calls.usher.js")
	for _, row := range []struct{ line, want string }{
		{`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18"}}`, `{"protocolVersion":"2025-06-18"`},
		{`{"jsonrpc":"2.0","id":"3","method":"ping"}`, `{"jsonrpc":"2.0","id":"3","result":{}}`},
		{`{"jsonrpc":"2.0","id":4,"method":"resources/list"}`, `{"jsonrpc":"2.0","id":4,"error":{"code":-32601,"message":"unknown method or tool in resources/list"}}`},
		{"{\"jsonrpc\":\"2.0\",\"method\":\"notifications/initialized\"}\n{\"id\":9}\n" +
			`{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":"toString"}}`, `{"jsonrpc":"2.0","id":5,"error":{"code":-32601,`},
		{`{"jsonrpc":"2.0","id":"é\n","method":"tools/call","params":{"name":"steps","arguments":{"n":1},"_meta":{"progressToken":"t"}}}`,
			`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"t","progress":1,"total":1,"message":"step 1"}}`},
		{``, `{"jsonrpc":"2.0","id":"é\n","result":{"_meta":{"usher/value":`},
		{`{"jsonrpc":"2.0","id":6,"method":"tools/call","params":{"name":"logs"}}`,
			`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","logger":"calls","data":"plain","_meta":{"usher/call":6}}}`},
		{``, `{"level":"warning","logger":"calls","data":{"deep":[1]},"_meta":{"usher/call":6}}`},
		{``, `{"level":"info","logger":"calls","data":"1n","_meta":{"usher/call":6}}`},
		{``, `{"jsonrpc":"2.0","id":6,"result":{"_meta":{"usher/value":"the last value"}}`},
		{`{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"fails","_meta":{"progressToken":0}}}`, `{"progressToken":0,"progress":1}`},
		{``, `"id":7,"result":` + shownFailure("half way")},
	} {
		if row.line != "" {
			p.send(row.line)
		}
		if got := p.next(); !strings.Contains(got, row.want) {
			t.Errorf("%s\n got %s\nwant %s", row.line, got, row.want)
		}
	}
	p.end()
}

func TestNodeCancel(t *testing.T) {
	t.Parallel()
	nodeTestVersion(t)
	p := startShim(t, kindNode, "testdata/node/calls.usher.js")
	p.sendCall("1", "endless", `{}`)
	p.sendCall("2", "sleep", `{"ms":50}`)
	p.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`)
	p.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":2}}`)
	p.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":3}}`)
	if got := p.call("sleep", `{"ms":100}`); got != shownText("slept") {
		t.Error(got)
	}
	if got := p.call("howEnded", `{}`); got != shownText("returned") {
		t.Error(got)
	}
	if p.cancelled != 2 {
		t.Errorf("%d cancelled calls have ended, of 2", p.cancelled)
	}
	p.sendCall("8", "sleep", `{"ms":60000}`) // does not keep the process
	start := time.Now()
	if rest := p.end(); rest != "" || time.Since(start) > 2*time.Second {
		t.Errorf("after %v: %s", time.Since(start), rest)
	}
}

func TestNodeExit(t *testing.T) {
	t.Parallel()
	nodeTestVersion(t)
	p := startShim(t, kindNode, "testdata/node/calls.usher.js")
	p.sendCall("1", "largeThenExit", `{"size":10485760}`) // 20 MiB
	if line := p.next(); len(line) < 20<<20 || !json.Valid([]byte(line)) {
		t.Errorf("%d bytes arrived", len(line))
	}
	if p.out.Scan() {
		t.Errorf("more output: %.100s", p.out.Text())
	}
	p.cmd.Wait()
}

// Where the descriptors can't be moved away, a file on stdin say, prints still
// do not get between the messages.
func TestNodeWithoutPipes(t *testing.T) {
	t.Parallel()
	nodeTestVersion(t)
	in := filepath.Join(t.TempDir(), "in")
	write(t, in, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"print"}}`+"\n")
	cmd := shimCommand(t, kindNode, "testdata/node/calls.usher.js")
	var err error
	if cmd.Stdin, err = os.Open(in); err != nil {
		t.Fatal(err)
	}
	out, err := cmd.Output()
	want := "by its number, without an end of lineby a child\n\n" + `{"jsonrpc":"2.0","id":1,"result":{"_meta":{"usher/value":"printed"}}}` + "\n"
	if err != nil || string(out) != want {
		t.Errorf("%v: %s", err, out)
	}
}

func TestNodeChecks(t *testing.T) {
	nodeTestTyped(t)
	file := filepath.Join(t.TempDir(), "check.usher.ts")
	write(t, file, `
type Tree = { name: string; more?: Tree[] }
export function f(p: {
  bed?: { rows: number; kind?: 'a' | 'b'; at?: { x: number }[] }
  both?: string | number
  either?: string | string[]
  maybe?: string | null
  counts?: Record<string, number>
  tree?: Tree
}) { return p }
export function g({ n = 5, deep = {} }: { n?: number; deep?: { m?: number } }) { return { n, deep } }
`)
	p := startShim(t, kindNode, file)
	for arguments, want := range map[string]string{
		`{"bed":{"rows":1,"kind":"c"}}`:             `parameter "bed.kind": want one of "a","b", got "c"`,
		`{"both":true}`:                             `parameter "both": want a string or a number, got a boolean`,
		`{"either":1}`:                              `parameter "either": want a string or an array, got an integer`,
		`{"maybe":1}`:                               `parameter "maybe": want a string or null, got an integer`,
		`{"counts":{"a":1,"b":"2"}}`:                `parameter "counts.b": want a number, got a string`,
		`{"tree":{"name":"a","more":[{"name":1}]}}`: `parameter "tree.more.0.name": want a string, got an integer`,
	} {
		if got := p.call("f", arguments); got != shownFailure(want) {
			t.Errorf("%s: %s", arguments, got)
		}
	}
	for _, arguments := range []string{`{"bed":{"rows":1.5,"kind":"a","more":1},"both":2,"either":["a"],"maybe":null,"extra":{"constructor":1,"__proto__":2},"constructor":1}`,
		`{"either":"a","tree":{"name":"a","more":[]}}`} {
		if got := p.call("f", arguments); got != shownObject(arguments) {
			t.Errorf("%s: %s", arguments, got)
		}
	}
	if got := p.call("g", `{"n":null,"deep":{"m":null}}`); got != shownObject(`{"n":5,"deep":{"m":null}}`) {
		t.Errorf("null is not left out: %s", got)
	}
	p.end()
}

func TestNodeFailsToLoad(t *testing.T) {
	t.Parallel()
	nodeTestVersion(t)
	dir := t.TempDir()
	write(t, filepath.Join(dir, "broken.js"), "\nmodule.exports = {")
	write(t, filepath.Join(dir, "fine.mjs"), "export const a = 1")
	for i, row := range []struct{ ending, text, want string }{
		{".js", "export function a() {}\n\nexport function b( {", ":3: SyntaxError: "},
		{".js", "const a = 1\nmodule.exports = { a ( }", ":2: SyntaxError: "},
		{".mjs", "export const a = 1\nlet 1x", ":2: SyntaxError: "},
		{".mjs", "\nimport 'nopackage'\n", ":2: Error: Cannot find package 'nopackage'"},
		{".mjs", "\nimport './nofile.mjs'\n", ":2: Error: Cannot find module '"},
		{".js", "\n\nrequire('nopackage')\n", ":3: Error: Cannot find module 'nopackage'"},
		{".mjs", "import { b } from './fine.mjs'\n", ":1: SyntaxError: The requested module './fine.mjs' does not provide an export named 'b'"},
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
			if code := cmd.ProcessState.ExitCode(); code != 1 || !strings.HasPrefix(got, filepath.Base(file)+row.want) && row.want != "" || strings.Count(got, "\n") > 1 {
				t.Errorf("%q: exit %d, %s; want …%s", row.text, code, got, row.want)
			}
		})
	}
}

func TestNodeTypeScript(t *testing.T) {
	major, minor := nodeTestVersion(t)
	file := filepath.Join(t.TempDir(), "m.usher.ts")
	write(t, file, "export const f = ({ a }: { a: string }): string => a\n")
	if major < 22 || major == 22 && minor < 13 {
		cmd := shimCommand(t, kindNode, file)
		out, _ := cmd.CombinedOutput()
		want := fmt.Sprintf("m.usher.ts: TypeScript needs Node.js 22.13 or newer; this is v%d.%d.", major, minor)
		if !strings.HasPrefix(string(out), want) || strings.Count(string(out), "\n") != 1 || cmd.ProcessState.ExitCode() != 1 {
			t.Errorf("%s", out)
		}
	}
	nodeTestTyped(t)
	dir := filepath.Dir(file)
	write(t, filepath.Join(dir, "lib.ts"), "export const twice = (s: string): string => s + s\n")
	write(t, file, "import { twice } from './lib.ts'\nexport const f = ({ a }: { a: string }): string => twice(a)\n")
	p := startShim(t, kindNode, file)
	if got := p.call("f", `{"a":"x"}`); got != shownText("xx") {
		t.Error(got)
	}
	p.end()
	for text, want := range map[string]string{
		"\nexport const f = (p: { a string }) => 1":   ":2: SyntaxError: ",
		"\n\nenum E { A }\nexport const f = 1":        ":3: SyntaxError: ",
		"const a = 1\nconst a: number = 2\nexport {}": ":2: SyntaxError: Identifier 'a' has already been declared",
	} {
		write(t, file, text)
		cmd := shimCommand(t, kindNode, file)
		out, _ := cmd.CombinedOutput()
		if !strings.HasPrefix(string(out), "m.usher.ts"+want) || strings.Count(string(out), "\n") != 1 {
			t.Errorf("%q: %s", text, out)
		}
	}
}

// Versions in which types, or export in a .js file, need the shim's help.
func TestNodeOlderVersions(t *testing.T) {
	slow(t)
	nodeTestVersion(t)
	path := os.Getenv("PATH")
	for version, file := range map[string]string{"node@20.10.0": "a.usher.js", "node@22.13.0": "a.usher.ts", "node@22.15.0": "a.usher.ts"} {
		node := nodeTestInstall(t, version)
		t.Setenv("PATH", filepath.Dir(node)+string(os.PathListSeparator)+path)
		dir := t.TempDir()
		typed, lib := "", "lib.mjs"
		if strings.HasSuffix(file, "ts") {
			typed, lib = ": { a: string }", "lib.ts"
		}
		write(t, filepath.Join(dir, lib), "export const one = (p"+typed+") => p.a\n")
		write(t, filepath.Join(dir, file), "import { one } from './"+lib+"'\nexport function f(p"+typed+") { return one(p) }\n")
		p := startShim(t, kindNode, filepath.Join(dir, file))
		if got := p.call("f", `{"a":"x"}`); got != shownText("x") {
			t.Errorf("%s: %s", version, got)
		}
		p.end()
		write(t, filepath.Join(dir, file), "exports.f = (p"+typed+") => p.a\n")
		p = startShim(t, kindNode, filepath.Join(dir, file))
		if got := p.call("f", `{"a":"x"}`); got != shownText("x") {
			t.Errorf("%s, CommonJS: %s", version, got)
		}
		p.end()
	}
}

// Which of the two module systems a .js file is in is decided as Node does.
func TestNodeModuleSystems(t *testing.T) {
	t.Parallel()
	nodeTestVersion(t)
	for i, row := range []struct{ pkg, text string }{
		{``, "export const f = () => 'f'"},
		{``, "module.exports = { f() { return 'f' } }"},
		{``, "exports.f = () => 'f' // not export default"},
		{`{"type":"module"}`, "export const f = () => 'f'"},
		{`{"type":"commonjs"}`, "const s = 'export const f = 1'\nmodule.exports.f = () => 'f'"},
		{`{"name":"x"}`, "import 'node:fs'\nexport { f }\nfunction f() { return 'f' }"},
		{``, "module.exports = function f() { return 'f' }"},
		{``, "module.exports = class { #x = 'f'; f() { return this.#x } }"},
		{``, "Object.defineProperty(exports, '__esModule', { value: true }); exports.default = class { f() { return 'f' } }"},
		{``, "Object.defineProperty(exports, '__esModule', { value: true }); exports.f = () => 'f'; exports.default = 1"},
		{``, "export default { f() { return 'f' }, _g() {} }"},
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
			if got := string(p.request("tools/list", `{}`)); strings.Count(got, `"name":`) != 1 {
				t.Errorf("%s: %s", row.text, got)
			}
			if got := p.call("f", `{}`); got != shownText("f") {
				t.Errorf("%s: %s", row.text, got)
			}
			p.end()
			if list, _ := os.ReadDir(dir); len(list) > 2 {
				t.Errorf("something was written beside the module: %v", list)
			}
		})
	}
}

func TestNodeExample(t *testing.T) {
	t.Parallel()
	nodeTestVersion(t)
	p := startShim(t, kindNode, "testdata/node/words.usher.js")
	if got := p.call("frequent", `{"file":"feed.xml","limit":1}`); got != shownObject(`{"words":[{"word":"horn","count":2}]}`) {
		t.Error(got)
	}
	got := json.RawMessage(p.call("readability", `{"text":"The cat sat on the mat. It was warm."}`))
	if s := string(field(got, "structuredContent")); s != `{"words":9,"sentences":2,"readingEase":117.7,"minutes":1}` {
		t.Error(s)
	}
	for arguments, want := range map[string]string{
		`{"file":"../python/beds.usher.py"}`: "file: want one of this folder", `{"text":""}`: "there are no words in it", `{}`: "want text or file",
	} {
		if got := p.call("readability", arguments); got != shownFailure(want) {
			t.Errorf("%s: %s", arguments, got)
		}
	}
	p.end()
}

// A package of npm behind three functions with types.
func TestNodeRealPackage(t *testing.T) {
	nodeTestTyped(t)
	dir := filepath.Join(t.TempDir(), "real")
	if err := os.CopyFS(dir, os.DirFS("testdata/node/real")); err != nil {
		t.Fatal(err)
	}
	os.RemoveAll(filepath.Join(dir, "node_modules"))
	nodeTestNpm(t, dir, "ci")
	d := startDaemon(t, dir)
	c := connect(t, d.URL)
	c.awaitTools("nouns_count", "nouns_forms", "nouns_singular")
	for _, row := range []struct{ tool, arguments, want string }{
		{"nouns_count", `{"word":"mouse","count":3}`, "3 mice"},
		{"nouns_count", `{"word":"mice","count":1,"inclusive":false}`, "mouse"},
		{"nouns_singular", `{"word":"indices"}`, "index"},
		{"nouns_forms", `{"words":["goose","people"]}`, `{"forms":[{"one":"goose","many":"geese","isPlural":false},{"one":"person","many":"people","isPlural":true}]}`},
		{"nouns_forms", `{"words":["goose",1]}`, `parameter "words.1": want a string, got an integer`},
		{"nouns_count", `{"word":"mouse"}`, `parameter "count" is required: a number`},
	} {
		if a := c.call(row.tool, row.arguments); !slices.Contains([]string{resultText(a.result()), a.failure()}, row.want) {
			t.Errorf("%s(%s): %s", row.tool, row.arguments, a.Body)
		}
	}
}
