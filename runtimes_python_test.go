// Tests of runtimes/shim.py: modules in Python, both over their pipes
// and hosted by usher.

package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

const pythonCalls = "testdata/python/calls.usher.py"

// pythonTestVersion returns the minor version of Python 3. Without one that is
// new enough the test is skipped, unless CI requires it.
func pythonTestVersion(t *testing.T) int {
	t.Helper()
	if pythonMinor() < 9 {
		lack(t, "Python 3.9 or newer")
	}
	return pythonMinor()
}

// What usher ships is Python 3.9.
func TestPythonSyntax(t *testing.T) {
	long(t)
	pythonTestVersion(t)
	const code = "import ast, sys\n" +
		"for f in sys.argv[1:]: ast.parse(open(f, encoding='utf-8').read(), f, feature_version=(3, 9))"
	files := []string{"runtimes/shim.py", "runtimes/new.usher.py.txt",
		"examples/shop/tables.usher.py",
		"examples/dates/dates.py"}
	out, err := exec.Command(testPython,
		append([]string{"-c", code}, files...)...).CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// Arguments become values of the annotated types.
func TestPythonParameters(t *testing.T) {
	long(t)
	p := startFile(t, pythonCalls)
	// bed returns how a bed of one row is written back.
	bed := func(next string) string { return `{"rows":1,"color":"red","next":` + next + `}` }
	const bed2 = `{"rows":2,"color":"red","next":null}`
	for _, row := range []struct{ tool, arguments, want string }{
		{"echo", `{"bed":{"rows":1,"next":{"rows":2,"color":"red"}}}`,
			`{"bed":["Bed",` + bed(bed2) + `]}`},
		{"echo", `{"beds":[{"rows":1}],"by_name":{"a":{"rows":1}},"by_day":{"7":"x"}}`,
			`{"beds":["list",[` + bed("null") + `]],` +
				`"by_name":["dict",{"a":` + bed("null") + `}],"by_day":["dict",{"7":"x"}]}`},
		{"echo", `{"n":12345678901234567890123,"x":1}`,
			`{"n":["int",12345678901234567890123],"x":["float",1.0]}`},
		{"echo", `{"at":"2026-01-02T03:04:05.123456Z","on":"2026-01-02","data":"aGk="}`,
			`{"at":["datetime","2026-01-02T03:04:05.123456+00:00"],` +
				`"on":["date","2026-01-02"],"data":["bytes","aGk="]}`},
		{"echo", `{"some":[1,1],"pair":[1,"a"],"anything":[{}]}`,
			`{"some":["set",[1]],"pair":["tuple",[1,"a"]],"anything":["list",[{}]]}`},
		{"echo", `{"bed":null,"n":null,"nullable":null}`, `{"nullable":["NoneType",null]}`},
		{"echo", `{"bed":{"rows":1,"next":{"rows":2,"color":null}}}`,
			`{"bed":["Bed",` + bed(bed2) + `]}`},
		// What fits the schema may still be no value of the type.
		{"echo", `{"bed":{"rows":-1}}`, `parameter "bed": rows: less than none`},
		{"echo", `{"by_day":{"x":"y"}}`,
			`parameter "by_day": invalid literal for int() with base 10: 'x'`},
		{"required", `{"name":"a","times":null}`, `["a",null]`},
		{"price", `{"of":0.10}`, `0.1`},
		{"keywords", `{"n":2,"a":[1],"_webhook":{"method":"POST"}}`,
			`{"n":2,"rest":{"a":[1],"_webhook":{"method":"POST"}}}`},
		{"positional", `{"a":1,"b":null,"c":4}`, `[1,null,4]`},
		{"gathered", `{"first":1}`, `[1,2,[],4]`},
		{"gathered", `{"first":1,"others":[3,5],"last":0}`, `[1,2,[3,5],0]`},
		{"gathered", `{"first":1,"others":[3,"x"]}`, `parameter "others.1": want integer, got string`},
		{"named", `{"one":{"name":"a"}}`, `["a",{"name":"a"}]`},
		{"named", `{"one":{"name":"a"},"more":[{"name":"b"}]}`,
			`["a",{"name":"a"},{"name":"b"}]`},
		{"named", `{"one":{"name":"wrong"}}`, `parameter "one": name: it is wrong`},
		{"handle_hook", `{"_webhook":{"method":"POST"}}`,
			`{"name":"none","webhook":{"method":"POST"}}`},
	} {
		t.Run(row.tool+row.arguments, func(t *testing.T) {
			check(t, "result", p.CallText(row.tool, row.arguments), row.want)
		})
	}
	deep := strings.Repeat("[", 60000) + strings.Repeat("]", 60000)
	checkContains(t, "deep arguments", p.CallText("echo", `{"anything":`+deep+`}`),
		`reading the arguments: `)
	p.Call("echo", `{"n":`+strings.Repeat("1", 5000)+`}`) // its version decides what becomes of it
	p.End()
}

// A value, an exception and a print of a Python method become results, errors and lines of
// the log.
func TestPythonResults(t *testing.T) {
	long(t)
	p := startFile(t, pythonCalls)
	const unwritable = "the result can't be written as JSON: "
	const known = "want ask and params, progress and total and message, or log and level; " +
		"return the result (an asynchronous generator yields it once)"
	for tool, want := range map[string]string{
		"nothing":    `{"content":[]}`,
		"text":       strings.ReplaceAll(shownText("a <b> \u2028 \"c\"\n"), `\u2028`, "\u2028"),
		"big":        shownObject(`{"n":1267650600228229401496703205376}`),
		"structured": shownObject(`{"a":1,"2":"b","null":3}`),
		"record":     shownObject(`{"rows":1,"color":"red","next":{"rows":2,"color":"red","next":null}}`),
		"surrogate": `{"content":[{"type":"text","text":"{\"text\":\"\\ud800 and \\ud83d\\ude00\"}"}],` +
			`"structuredContent":{"text":"\ud800 and \ud83d\ude00"}}`,
		"converted": shownText(`["2026-01-02T03:04:05+00:00","2026-01-02","03:04:05",60.0,[1,2,3],["a"],` +
			`"aGk=","a/b",[],[0,1],"red"]`),
		"fail":           shownFailure("no <way>"),
		"fail_chained":   shownFailure("chained"),
		"leave":          shownFailure("SystemExit: 3"),
		"leave_in_task":  shownText("stayed"),
		"interrupt":      shownFailure("KeyboardInterrupt"),
		"unknown":        shownFailure("unknown yield of aks, params: " + known),
		"unknown_async":  shownFailure("unknown yield of int: " + known),
		"progress_async": shownText("not this"),
		"nan":            unwritable + "Out of range float values are not JSON compliant",
		"cycle":          shownFailure(unwritable + "Circular reference detected"),
		"unserialisable": shownFailure(unwritable + "a value of type Lock"),
		"bad_key": shownFailure(unwritable +
			"keys must be str, int, float, bool or None, not tuple"),
		"noise":           shownObject(`{"stdin":"","line":""}`),
		"locked":          shownText("true"),
		"a-method-unseen": `{"code":-32601,"message":"unknown method or tool in tools/call"}`,
	} {
		t.Run(tool, func(t *testing.T) {
			got := p.Call(tool, "{}")
			if strings.HasPrefix(want, "{") {
				check(t, "result", got, want)
			} else {
				checkContains(t, "result", got, want)
			}
		})
	}
	check(t, "a decorated method", p.Call("wrapped", `{"n":3}`), shownText("3"))
	check(t, "bytes of a large result", len(p.CallText("large", `{"mib":5}`)), 5<<20)
	p.End()
	log := p.Stderr.String()
	checkContains(t, "the log", log, "at the top level\n", "printed \\ud800\n",
		"original\n", "descriptor\n", "child\n",
		"calls.usher.py\", line ", "ValueError: no <way>\n", "ZeroDivisionError")
	checkOmits(t, "the log", log, "in in_thread", "in on_loop") // the shim's own stacks
}

// A cancelled coroutine or generator ends, and a cancelled call is answered after its end.
func TestPythonConfirmsCancellation(t *testing.T) {
	long(t)
	p := startFile(t, pythonCalls)
	for i, tool := range []string{"wait", "generate", "generate_async"} {
		p.SendCall(strconv.Itoa(i), tool, "{}")
	}
	await(t, "the call to wait", func() bool {
		return strings.Contains(p.Call("seen", "{}"), "waits")
	})
	p.CancelCall("0")
	await(t, "the answer to the cancelled coroutine", func() bool {
		got := p.Call("seen", "{}")
		check(t, "it is answered after its end", p.Cancelled["0"] &&
			!strings.Contains(got, "cancelled"), false)
		return p.Cancelled["0"]
	})
	p.SendCall(`"s"`, "sleep", `{"seconds":0.5}`)
	for _, id := range []string{"1", "2", `"s"`, "77"} {
		p.CancelCall(id)
	}
	p.SendCall("8", "wait", "{}")
	p.CancelCall("8") // maybe before its first step
	await(t, "the end of all that was cancelled", func() bool {
		got := p.Call("seen", "{}")
		return strings.Contains(got, "cancelled") &&
			strings.Contains(got, `closed\",\"closed async`)
	})
	check(t, "another call", p.Call("sleep", `{"seconds":0.6}`), shownText("slept"))
	checkCancelled(p, `"s"`, "0", "1", "2", "8")
	// Calls under way don't keep the process.
	p.SendCall("9", "wait", "{}")
	p.SendCall("10", "sleep", `{"seconds":600}`)
	p.Request("tools/list", "{}")
	check(t, "output after the end", p.End(), "")
	checkOmits(t, "the log", p.Stderr.String(), "Traceback", "never awaited")
}

// A file that can't be loaded ends the shim with one line, which names the file's line or what to do.
func TestPythonLoadErrorIsOneLine(t *testing.T) {
	long(t)
	pythonTestVersion(t)
	dir := t.TempDir()
	write(t, dir+"/helper.py", "def go():\n    no_such_thing\n\ngo()\n")
	write(t, dir+"/broken.py", "x = (\n")
	const server = "it is an MCP server: rename it, and host it by a .mcp.json: "
	files := map[string]struct{ text, want string }{
		"syntax": {"\ndef f(:\n", "syntax.usher.py:2: SyntaxError: "},
		"inner": {"import helper\n",
			"helper.py:2: NameError: name 'no_such_thing' is not defined"},
		"neighbor": {"import broken\n", "broken.py:"}, // the line is the version's choice
		"leaves": {"import sys\nsys.exit('no configuration')\n",
			"leaves.usher.py:2: SystemExit: no configuration: to run as a script only, check __name__ == " +
				`"__main__"`},
		"null": {"x = 1\x00", "null.usher.py: "},
		"fast": {"from fastmcp import FastMCP\nmcp = FastMCP('x')\n@mcp.tool\ndef f(): ...\n",
			"fast.usher.py: " + server + `{"command": "python3", "args": ["fast.py"]}`},
		"sdk": {
			"import mcp.server.lowlevel as low\ns = low.Server('x')\n",
			"sdk.usher.py: " + server,
		},
		"alias": {
			"from mcp.server.fastmcp import FastMCP as F\ns = F('x')\n",
			"alias.usher.py: " + server,
		},
		"packed": {"from .lib import f\n",
			"with no known parent package: a module is in no package: write import NAME"},
		"client": {
			"from fastmcp import Client\ndef f(): ...\n",
			"No module named 'fastmcp': install it",
		},
	}
	for name, file := range files {
		write(t, dir+"/"+name+".usher.py", file.text)
	}
	out := modulesOf(t, dir)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		t.Run(name, func(t *testing.T) {
			want := fmt.Sprintf("module %q exited at startup (exit status 1): ", name)
			_, line, _ := strings.Cut(out, want)
			line, _, _ = strings.Cut(line, "\n")
			checkContains(t, "usher modules", line, files[name].want)
		})
	}
}

// The methods are the file's own functions, those of __all__ if it has one. What else looks like a
// method, and a parameter of an unknown type, is noted.
func TestPythonNotesWhatIsMissing(t *testing.T) {
	long(t)
	pythonTestVersion(t)
	// JSON has a form for these results.
	results := `import abc, dataclasses, datetime, enum, pathlib, sqlite3, typing as t, uuid
@dataclasses.dataclass
class D: pass
class E(enum.Enum): A = 1
class B(abc.ABC): pass
class N(t.NamedTuple): a: int
class T(t.TypedDict): a: int
`
	var names []string
	for i, result := range strings.Fields("D E B N T t.Optional[int] pathlib.Path datetime.date uuid.UUID " +
		"sqlite3.Row int bytes dict list[int] set object t.Any None t.Iterator[int] t.Literal[1]") {
		names = append(names, fmt.Sprintf("f%02d", i))
		results += fmt.Sprintf("def %s() -> %s: pass\n", names[i], result)
	}
	files := map[string]struct{ text, methods, note string }{
		"invalid_annotation": {"from __future__ import annotations\ndef f(a: Gone): pass\n", "f",
			"f: a may be anything, because its annotation is invalid: name 'Gone' is not defined"},
		"results": {results, strings.Join(names, " "), ""},
		"unwritten_result": {"import argparse\ndef f() -> argparse.Namespace: pass\n", "f",
			"f: JSON may have no form for its result Namespace"},
		"invalid_result": {"def f(a: int) -> 'Gone': pass\n", "f", ""},
		"unknown_class": {"class Shape: pass\ndef f(a: int, b: 'dict[str, Shape]'): pass\n", "f",
			"f: b accepts any value for the type Shape"},
		"callable": {"import typing\ndef f(a: typing.Callable[[int], int]): pass\n", "f",
			"f: a accepts any value for the type Callable"},
		"any": {
			"import typing as t\nT = t.TypeVar('T')\ndef f(a: t.Any, b: object, c: T, d): pass\n",
			"f",
			"",
		},
		"exported": {
			"__all__ = ['a', 'join']\nfrom os.path import join\ndef a(): pass\ndef b(): pass\n",
			"a",
			"",
		},
		"builtin": {"def f(): pass\nf = len\ndef g(): pass\n", "g",
			"f is not offered: a value of type builtin_function_or_method has replaced it " +
				"(a decorator needs functools.wraps)"},
		"imported": {"def f(): pass\nfrom os.path import join as f\ndef g(): pass\n", "g",
			"f is not offered: a value of type function has replaced it (a decorator needs functools.wraps)"},
		"alias": {"def f(): pass\ndef g(): pass\nf = g\n", "g",
			"f is not offered: a value of type function has replaced it (a decorator needs functools.wraps)"},
		"object": {"class Tool:\n    def __init__(self, f): ...\n@Tool\ndef f(): pass\n", "",
			"f is not offered: a value of type Tool has replaced it (a decorator needs functools.wraps)"},
		"class": {"import enum as e\nclass Tools:\n    def f(self, a: int): pass\n", "",
			"Tools is not offered: write its methods as functions at the top level"},
		"partial": {"import functools as ft\n@ft.partial(ft.partial, print)\ndef f(): pass\n", "",
			"f is not offered: a value of type partial has replaced it (a decorator needs functools.wraps)"},
		"wrapped": {"_wrap = lambda f: lambda *a, **k: f(*a, **k)\n" +
			"@_wrap\ndef f(a):\n  '@signature github K'\n", "",
			"f is not offered: a value of type function has replaced it (a decorator needs functools.wraps)"},
		"nested": {"def _wrap(f):\n  def f(*a): pass\n  return f\n" +
			"@_wrap\ndef f(a):\n  '@unshared'\n", "",
			"f is not offered: a value of type function has replaced it (a decorator needs functools.wraps)"},
		"cached":  {"import functools\n@functools.lru_cache()\ndef f(a): pass\n", "f", ""},
		"deleted": {"def f(): pass\ndef g(): pass\ndel f\ng = None\ndef h(): pass\n", "h", ""},
		"unreadable": {"def f(a): pass\nf.__signature__ = 1\ndef g(): pass\n", "g",
			"f is not offered: unexpected object 1 in __signature__ attribute"},
	}
	dir := t.TempDir()
	for name, file := range files {
		write(t, dir+"/"+name+".usher.py", file.text)
	}
	out, _, _ := usher(t, "modules", "-json", "-base", t.TempDir(), dir)
	var modules []struct {
		Name     string
		Tools    []struct{ Method string }
		Problems []string
	}
	must(t, json.Unmarshal([]byte(out), &modules))
	check(t, "modules", len(modules), len(files))
	for _, m := range modules {
		t.Run(m.Name, func(t *testing.T) {
			var methods []string
			for _, tool := range m.Tools {
				methods = append(methods, tool.Method)
			}
			check(t, "methods", strings.Join(methods, " "), files[m.Name].methods)
			check(t, "notes", strings.Join(m.Problems, "\n"), files[m.Name].note)
		})
	}
}

// A module finds its neighbors and its own name, and writes nothing beside it. A traceback
// is one record of the log.
func TestPythonModuleFindsItsNeighbors(t *testing.T) {
	long(t)
	pythonTestVersion(t)
	dir := t.TempDir()
	copyFiles(t, "testdata/python/hosted", dir, "m.usher.py", "neighbor.py")
	d := startDaemon(t, dir)
	c := connect(t, d.URL)
	c.AwaitTools("m_large", "m_small", "m_where")
	check(t, "small", c.Call("m_small", "").Failure(), "KeyError: 'x'")
	d.awaitLog(t, `line="Traceback (most recent call last):\n  File \"`+dir+
		`/m.usher.py\", line 5, in small\n`)
	check(t, "where", c.Call("m_where", "").Text(), `["m.usher.py","m_usher",true,5]`)
	check(t, "large", c.Call("m_large", "").Failure(),
		"the module's answer can't be read: it is larger than 64 MiB")
	check(t, "files", folderNames(t, dir), []string{"m.usher.py", "neighbor.py"})
}

// The nearest virtual environment runs a module, from its folder up to the outermost served one.
// The error of an import names the interpreter.
func TestPythonVirtualEnvironment(t *testing.T) {
	long(t)
	minor := pythonTestVersion(t)
	dir, base := t.TempDir(), t.TempDir()
	python, err := exec.LookPath(testPython)
	must(t, err)
	must(t, exec.Command(python, "-m", "venv", "--without-pip", dir+"/.venv").Run())
	write(t, fmt.Sprintf("%s/.venv/lib/python3.%d/site-packages/only_here.py", dir, minor),
		"def answer(): return undefined\n")
	write(t, dir+"/a/m.usher.py", "import only_here\nX = 42\ndef f(): return X\n")
	call := func(code int, says, served string) {
		wantUsher(t, code, says, "call", "-base", base, "-dir", served, "m", "f")
	}
	call(0, "42", dir)
	call(1, "run by "+python+": m.usher.py:1: ModuleNotFoundError: No module named 'only_here': "+
		"install it into a .venv", dir+"/a")
	// A failure shows the user's own line, not the library's.
	write(t, dir+"/a/m.usher.py", "import only_here\nonly_here.answer()\n")
	call(1, ": m.usher.py:2: NameError: name 'undefined' is not defined", dir)
}

// testPython is the Python outside of virtual environments.
var testPython, _ = pythonFor(os.DevNull, nil)

// pythonMinor returns the minor version of Python 3, 0 without Python. It puts the program first
// in PATH: what pyenv has there takes longer to find Python than Python takes to start.
var pythonMinor = sync.OnceValue(func() (minor int) {
	const print = "import sys; print(sys.version_info[1], sys.executable)"
	out, err := exec.Command(testPython, "-c", print).Output()
	version, program, _ := strings.Cut(strings.TrimSpace(string(out)), " ")
	minor, _ = strconv.Atoi(version)
	if err == nil {
		os.Setenv("PATH", filepath.Dir(program)+string(os.PathListSeparator)+os.Getenv("PATH"))
	}
	return minor
})
