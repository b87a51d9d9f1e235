// Tests of runtimes/shim.py: modules in Python, both over their pipes and hosted by usher.

package main

import (
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

// testPython is the Python outside of virtual environments.
var testPython, _ = pythonFor(os.DevNull)

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

// pythonTestVersion returns the minor version of Python 3. Without one that is
// new enough the test is skipped, unless CI requires it.
func pythonTestVersion(t *testing.T) int {
	t.Helper()
	if pythonMinor() < 9 {
		lack(t, "Python 3.9 or newer")
	}
	return pythonMinor()
}

// TestPythonSyntax checks that what usher ships is Python 3.9, whatever version
// runs the tests.
func TestPythonSyntax(t *testing.T) {
	long(t)
	pythonTestVersion(t)
	const code = "import ast, sys\n" +
		"for f in sys.argv[1:]: ast.parse(open(f, encoding='utf-8').read(), f, feature_version=(3, 9))"
	files := []string{"runtimes/shim.py", "runtimes/new.usher.py.txt", "examples/shop/tables.usher.py",
		"examples/dates/dates.py"}
	out, err := exec.Command(testPython, append([]string{"-c", code}, files...)...).CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestPythonNewAnnotations has annotations that older versions of Python can't
// evaluate, in a file named after a module that all need.
func TestPythonNewAnnotations(t *testing.T) {
	long(t)
	minor := pythonTestVersion(t)
	file := filepath.Join(t.TempDir(), "json.usher.py")
	write(t, file, "from __future__ import annotations\nimport json\n"+
		"def f(a: int | None, b: list[int | str] = [], c: int = json.loads('1')): return [a, b, c]\n")
	p := startShim(t, kindPython, file)
	want := `"a":{"type":["integer","null"]},"b":{"type":"array","items":{"type":["integer","string"]},"default":[]},` +
		`"c":{"type":"integer","default":1}`
	if minor < 10 {
		want = `"a":{},"b":{"default":[]},"c":{"type":"integer","default":1}`
	}
	checkContains(t, "tools", string(p.request("tools/list", `{}`)), want)
	check(t, "the result", p.call("f", `{"a":null}`), shownText("[null,[],1]"))
	p.end()
}

// TestPythonTagsAbove has tags in a comment above a function, where other
// comments don't count.
func TestPythonTagsAbove(t *testing.T) {
	long(t)
	pythonTestVersion(t)
	const text = "# A remark.\n# @webhook a/b\n#@readonly\n@(lambda f: f)\n" +
		"def f(**fields):\n    '''Takes it.\n\n    All of it.'''\n"
	file := filepath.Join(t.TempDir(), "m.usher.py")
	write(t, file, text)
	p := startShim(t, kindPython, file)
	m := p.methods["f"]
	check(t, "path", m.Hook, "a/b")
	check(t, "annotations", len(m.annotations), 1)
	check(t, "description", m.description, "Takes it.\n\nAll of it.")
	p.end()
}

func TestPythonParameters(t *testing.T) {
	long(t)
	pythonTestVersion(t)
	p := startShim(t, kindPython, pythonCalls)
	// bed returns how a bed of one row is written back.
	bed := func(next string) string { return `{"rows":1,"color":"red","next":` + next + `}` }
	const bed2 = `{"rows":2,"color":"red","next":null}`
	for _, row := range []struct{ tool, arguments, want string }{
		{"echo", `{"bed":{"rows":1,"next":{"rows":2,"color":"red"}},"unknown":1}`, `{"bed":["Bed",` + bed(bed2) + `]}`},
		{"echo", `{"beds":[{"rows":1}],"by_name":{"a":{"rows":1}},"by_day":{"7":"x"}}`,
			`{"beds":["list",[` + bed("null") + `]],` +
				`"by_name":["dict",{"a":` + bed("null") + `}],"by_day":["dict",{"7":"x"}]}`},
		{"echo", `{"n":12345678901234567890123,"x":1}`, `{"n":["int",12345678901234567890123],"x":["float",1.0]}`},
		{"echo", `{"numbers":[1.5]}`, `{"numbers":["list",[1.5]]}`},
		{"echo", `{"either":{"rows":1}}`, `{"either":["Bed",` + bed("null") + `]}`},
		{"echo", `{"at":"2026-01-02T03:04:05.123456789Z","on":"2026-01-02","data":"aGk="}`,
			`{"at":["datetime","2026-01-02T03:04:05.123456+00:00"],` +
				`"on":["date","2026-01-02"],"data":["bytes","aGk="]}`},
		{"echo", `{"some":[1,1],"pair":[1,"a"],"anything":[{}]}`,
			`{"some":["set",[1]],"pair":["tuple",[1,"a"]],"anything":["list",[{}]]}`},
		{"echo", `{"bed":null,"n":null,"nullable":null}`, `{"nullable":["NoneType",null]}`},
		{"echo", `{"bed":{"rows":1,"next":{"rows":2,"color":null}},"AND":1}`, `{"bed":["Bed",` + bed(bed2) + `]}`},
		// What fits the schema may still be no value of the type.
		{"echo", `{"bed":{"rows":-1}}`, `parameter "bed": rows: less than none`},
		{"echo", `{"by_day":{"x":"y"}}`, `parameter "by_day": invalid literal for int() with base 10: 'x'`},
		{"echo", `{"on":"2026-01-99"}`, `parameter "on": day is out of range for month`},
		{"required", `{"name":"a","times":null}`, `["a",null]`},
		{"price", `{"of":0.10}`, `0.1`},
		{"price", `{"of":"0.10"}`, `0.10`},
		{"keywords", `{"n":2,"a":[1],"_webhook":{"method":"POST"}}`,
			`{"n":2,"rest":{"a":[1],"_webhook":{"method":"POST"}}}`},
		{"positional", `{"a":1,"b":null,"c":4}`, `[1,null,4]`},
		{"positional", `{"a":1,"c":4}`, `[1,2,4]`},
		{"handle_hook", `{"_webhook":{"method":"POST"}}`, `{"name":"none","webhook":{"method":"POST"}}`},
	} {
		t.Run(row.tool+row.arguments, func(t *testing.T) {
			check(t, "result", p.callText(row.tool, row.arguments), row.want)
		})
	}
	deep := strings.Repeat("[", 60000) + strings.Repeat("]", 60000)
	checkContains(t, "deep arguments", p.callText("echo", `{"anything":`+deep+`}`), `reading the arguments: `)
	p.call("echo", `{"n":`+strings.Repeat("1", 5000)+`}`) // its version decides what becomes of it
	p.end()
}

func TestPythonResults(t *testing.T) {
	long(t)
	pythonTestVersion(t)
	p := startShim(t, kindPython, pythonCalls)
	const unwritable = "the result can't be written as JSON: "
	for tool, want := range map[string]string{
		"nothing":    `{"content":[]}`,
		"text":       strings.ReplaceAll(shownText("a <b> \u2028 \"c\"\n"), `\u2028`, "\u2028"),
		"big":        shownObject(`{"n":1267650600228229401496703205376}`),
		"structured": shownObject(`{"a":1,"2":"b","null":3}`),
		"record":     shownObject(`{"rows":1,"color":"red","next":{"rows":2,"color":"red","next":null}}`),
		"member":     shownText("red"),
		"surrogate": `{"content":[{"type":"text","text":"{\"text\":\"\\ud800 and \\ud83d\\ude00\"}"}],` +
			`"structuredContent":{"text":"\ud800 and \ud83d\ude00"}}`,
		"converted": shownText(`["2026-01-02T03:04:05+00:00","2026-01-02","03:04:05",60.0,[1,2,3],["a"],` +
			`"aGk=","a/b",[],[0,1],"red"]`),
		"rows":            shownText(`[{"a":1,"b":"x"}]`),
		"fail":            shownFailure("no <way>"),
		"fail_key":        shownFailure("KeyError: 'k'"),
		"fail_chained":    shownFailure("chained"),
		"leave":           shownFailure("the method called sys.exit(3)"),
		"leave_async":     shownFailure("the method called sys.exit(later)"),
		"leave_in_task":   shownText("stayed"),
		"interrupt":       shownFailure("KeyboardInterrupt"),
		"rude":            shownFailure("Rude"),
		"nan":             unwritable + "Out of range float values are not JSON compliant",
		"cycle":           shownFailure(unwritable + "Circular reference detected"),
		"deep":            unwritable + "maximum recursion depth exceeded",
		"unserialisable":  shownFailure(unwritable + "a value of type Lock"),
		"bad_key":         shownFailure(unwritable + "keys must be str, int, float, bool or None, not tuple"),
		"noise":           shownObject(`{"stdin":"","line":""}`),
		"last":            shownText("2"),
		"locked":          shownText("true"),
		"a-method-unseen": `{"code":-32601,"message":"unknown method or tool in tools/call"}`,
	} {
		t.Run(tool, func(t *testing.T) {
			got := p.call(tool, "{}")
			if strings.HasPrefix(want, "{") {
				check(t, "result", got, want)
			} else {
				checkContains(t, "result", got, want)
			}
		})
	}
	check(t, "a decorated method", p.call("wrapped", `{"n":3}`), shownText("3"))
	check(t, "bytes of a large result", len(p.callText("large", `{"mib":5}`)), 5<<20)
	p.end()
	log := p.stderr.String()
	checkContains(t, "the log", log, "at the top level\n", "printed \\ud800\n", "original\n", "descriptor\n", "child\n",
		"calls.usher.py\", line ", "ValueError: no <way>\n", "ZeroDivisionError")
	checkOmits(t, "the log", log, "in in_thread", "in on_loop") // the shim's own stacks
}

func TestPythonProtocol(t *testing.T) {
	long(t)
	pythonTestVersion(t)
	p := startShim(t, kindPython, pythonCalls)
	const message = `{"jsonrpc":"2.0","method":"notifications/message","params":{`
	const info, warning = message + `"level":"info","logger":"calls",`, message + `"level":"warning","logger":"calls",`
	p.exchange([]lineExchange{
		{`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{}}}`,
			`{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":"2025-06-18",` +
				`"capabilities":{"tools":{}},"serverInfo":{"name":"calls","version":"1"},` +
				`"instructions":"Returns, raises, prints and waits in all ways there are."}}`},
		// Notifications have no answer.
		{`{"jsonrpc":"2.0","method":"notifications/initialized"}` + "\n" +
			`{"jsonrpc":"2.0","id":9,"result":{}}` + "\n" +
			`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":77}}` + "\n" +
			`{"jsonrpc":"2.0","id":"q","method":"tools/list"}`, `{"jsonrpc":"2.0","id":"q","result":{"tools":[`},
		{`{"jsonrpc":"2.0","id":"x","method":"tools/call","params":` +
			`{"name":"progress","arguments":{"steps":1},"_meta":{"progressToken":0}}}`,
			`"notifications/progress","params":{"progressToken":0,"progress":0,"total":1,"message":"step"}}`},
		{"", info + `"data":"half way","_meta":{"usher/call":"x"}}}`},
		{"", warning + `"data":{"n":1},"_meta":{"usher/call":"x"}}}`},
		{"", info + `"data":2,"_meta":{"usher/call":"x"}}}`},
		{"", `{"jsonrpc":"2.0","id":"x","result":{"_meta":{"usher/value":"done"}}}`},
		{`{"jsonrpc":"2.0","id":"y","method":"tools/call","params":{"name":"progress_async"}}`, `"data":"end"`},
		{"", `"usher/value":{"progress":2,"more":"a value, not progress"}`},
	})
	p.end()
}

func TestPythonCancel(t *testing.T) {
	long(t)
	pythonTestVersion(t)
	p := startShim(t, kindPython, pythonCalls)
	for i, tool := range []string{"wait", "generate", "generate_async"} {
		p.sendCall(strconv.Itoa(i), tool, "{}")
	}
	await(t, "the call to wait", func() bool { return strings.Contains(p.call("seen", "{}"), "waits") })
	p.cancelCall("0")
	await(t, "the answer to the cancelled coroutine", func() bool {
		got := p.call("seen", "{}")
		check(t, "it is answered after its end", p.cancelled["0"] && !strings.Contains(got, "cancelled"), false)
		return p.cancelled["0"]
	})
	p.sendCall(`"s"`, "sleep", `{"seconds":0.5}`)
	for _, id := range []string{"1", "2", `"s"`, "77"} {
		p.cancelCall(id)
	}
	p.sendCall("8", "wait", "{}")
	p.cancelCall("8") // maybe before its first step
	await(t, "the end of all that was cancelled", func() bool {
		got := p.call("seen", "{}")
		return strings.Contains(got, "cancelled") && strings.Contains(got, `closed\",\"closed async`)
	})
	check(t, "another call", p.call("sleep", `{"seconds":0.6}`), shownText("slept"))
	p.checkCancelled(`"s"`, "0", "1", "2", "8")
	// Calls under way don't keep the process.
	p.sendCall("9", "wait", "{}")
	p.sendCall("10", "sleep", `{"seconds":600}`)
	p.request("tools/list", "{}")
	check(t, "output after the end", p.end(), "")
	checkOmits(t, "the log", p.stderr.String(), "Traceback", "never awaited")
}

func TestPythonFailsToLoad(t *testing.T) {
	long(t)
	pythonTestVersion(t)
	dir := t.TempDir()
	write(t, filepath.Join(dir, "helper.py"), "def go():\n    import no_such_thing\n\ngo()\n")
	write(t, filepath.Join(dir, "broken.py"), "x = (\n")
	files := map[string]struct{ text, want string }{
		"syntax":   {"\ndef f(:\n", "syntax.usher.py:2: SyntaxError: "},
		"inner":    {"import helper\n", "helper.py:2: ModuleNotFoundError: No module named 'no_such_thing'"},
		"neighbor": {"import broken\n", "broken.py:"}, // the line is the version's choice
		"leaves":   {"import sys\nsys.exit('no configuration')\n", "leaves.usher.py:2: SystemExit: no configuration"},
		"null":     {"x = 1\x00", "null.usher.py: "},
	}
	for name, file := range files {
		write(t, filepath.Join(dir, name+".usher.py"), file.text)
	}
	out, _, _ := usher(t, "", "modules", "-base", t.TempDir(), dir)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		t.Run(name, func(t *testing.T) {
			want := fmt.Sprintf("module %q exited at startup (exit status 1): %s", name, files[name].want)
			checkContains(t, "usher modules", out, want)
		})
	}
}

// TestPythonHosted has a module find its neighbors and its own name, and writes
// nothing beside it. A traceback is one record of the log.
func TestPythonHosted(t *testing.T) {
	long(t)
	pythonTestVersion(t)
	dir := t.TempDir()
	copyFiles(t, "testdata/python/hosted", dir, "m.usher.py", "neighbor.py")
	d := startDaemon(t, dir)
	c := connect(t, d.URL)
	c.awaitTools("m_large", "m_small", "m_where")
	check(t, "small", c.call("m_small", "").failure(), "KeyError: 'x'")
	d.awaitLog(t, `line="Traceback (most recent call last):\n  File \"`+dir+`/m.usher.py\", line 5, in small\n`)
	check(t, "where", resultText(c.call("m_where", "").result()), `["m.usher.py","m",true,5]`)
	check(t, "large", c.call("m_large", "").failure(), "the module's answer can't be read: it is larger than 64 MiB")
	check(t, "files", folderNames(t, dir), []string{"m.usher.py", "neighbor.py"})
}

// TestPythonVirtualEnvironment has a folder's own virtual environment run its
// modules.
func TestPythonVirtualEnvironment(t *testing.T) {
	long(t)
	minor := pythonTestVersion(t)
	dir := t.TempDir()
	venv := filepath.Join(dir, ".venv")
	if out, err := exec.Command(testPython, "-m", "venv", "--without-pip", venv).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	library := filepath.Join(venv, "lib", fmt.Sprintf("python3.%d", minor), "site-packages", "only_here.py")
	write(t, library, "def answer(): return undefined\n")
	file := filepath.Join(dir, "m.usher.py")
	write(t, file, "import only_here\nX = 42\ndef f(): return X\n")
	p := startShim(t, kindPython, file)
	check(t, "result", p.call("f", `{}`), shownText("42"))
	p.end()
	// A failure shows the user's own line, not the library's.
	write(t, file, "import only_here\nonly_here.answer()\n")
	out, err := shimCommand(t, kindPython, file).CombinedOutput()
	check(t, "it fails", err != nil, true)
	check(t, "output", string(out), "m.usher.py:2: NameError: name 'undefined' is not defined\n")
}
