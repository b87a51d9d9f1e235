// Tests of runtimes/shim.py: modules in Python, spoken to over their pipes, and
// as usher hosts them.

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// pythonTestVersion is the minor version of Python 3. Without one that is new
// enough the test is skipped, unless CI requires it.
func pythonTestVersion(t *testing.T) (minor int) {
	t.Helper()
	out, err := exec.Command(pythonFor(t.TempDir()), "-c", "import sys; print(sys.version_info[1])").Output()
	if minor, _ = strconv.Atoi(strings.TrimSpace(string(out))); err == nil && minor >= 9 {
		return minor
	}
	if os.Getenv("CI_REQUIRE") != "" {
		t.Fatal("CI requires Python 3.9 or newer")
	}
	t.Skip("needs Python 3.9 or newer")
	return 0
}

// What usher ships must be Python 3.9, whatever runs the tests.
func TestPythonSyntax(t *testing.T) {
	t.Parallel()
	pythonTestVersion(t)
	const check = "import ast, sys\nfor f in sys.argv[1:]: ast.parse(open(f, encoding='utf-8').read(), f, feature_version=(3, 9))"
	files := []string{"runtimes/shim.py", "runtimes/new.usher.py.txt", "testdata/python/beds.usher.py", "examples/shop/tables.usher.py", "examples/dates/dates.py"}
	if out, err := exec.Command(pythonFor("."), append([]string{"-c", check}, files...)...).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// Annotations that older versions of Python can't evaluate.
func TestPythonNewAnnotations(t *testing.T) {
	t.Parallel()
	minor := pythonTestVersion(t)
	file := filepath.Join(t.TempDir(), "json.usher.py") // the name of a module that all need
	write(t, file, "from __future__ import annotations\nimport json\ndef f(a: int | None, b: list[int | str] = [], c: int = json.loads('1')): return [a, b, c]\n")
	p := startShim(t, kindPython, file)
	got := string(field(p.request("tools/list", `{}`), "tools"))
	want := `"a":{"type":["integer","null"]},"b":{"type":"array","items":{"type":["integer","string"]},"default":[]},"c":{"type":"integer","default":1}`
	if minor < 10 {
		want = `"a":{},"b":{"default":[]},"c":{"type":"integer","default":1}`
	}
	if !strings.Contains(got, want) {
		t.Errorf("got %s, want %s", got, want)
	}
	if got := p.call("f", `{"a":null}`); got != shownText("[null,[],1]") {
		t.Error(got)
	}
	p.end()
}

// Tags also count in a comment above a function; other comments do not. They come
// from the text that usher hands over, even if the file has changed since.
func TestPythonTagsAbove(t *testing.T) {
	t.Parallel()
	pythonTestVersion(t)
	const text = "# A remark.\n# @webhook a/b\n#@readonly\n@staticmethod\n" +
		"def f(**fields):\n    '''Takes it.\n\n    All of it.'''\n"
	file := filepath.Join(t.TempDir(), "m.usher.py")
	write(t, file, text)
	p := startShim(t, kindPython, file)
	m := p.methods["f"]
	if m == nil || m.Hook != "a/b" || len(m.annotations) != 1 || m.description != "Takes it.\n\nAll of it." {
		t.Errorf("got %+v", m)
	}
	p.end()

	write(t, file, strings.Replace(text, "a/b", "c/d", 1))
	cmd := shimCommand(t, kindPython, file)
	cmd.Args = append(cmd.Args, strconv.Itoa(len(text)))
	cmd.Stdin = strings.NewReader(text + `{"jsonrpc":"2.0","id":1,"method":"tools/list"}` + "\n")
	out, err := cmd.Output()
	if err != nil || !strings.Contains(string(out), "@webhook a/b") {
		t.Errorf("want the tags of the text on stdin, got %v: %s", err, out)
	}
}

func TestPythonParameters(t *testing.T) {
	t.Parallel()
	pythonTestVersion(t)
	p := startShim(t, kindPython, "testdata/python/calls.usher.py")
	for _, row := range []struct{ tool, arguments, want string }{
		{"echo", `{}`, `{}`},
		{"echo", `{"bed":{"rows":1,"next":{"rows":2,"color":"red"}},"unknown":1}`,
			`{"bed":["Bed",{"rows":1,"color":"red","next":{"rows":2,"color":"red","next":null}}]}`},
		{"echo", `{"beds":[{"rows":1}],"by_name":{"a":{"rows":1}},"by_day":{"7":"x"}}`, `{"beds":["list",[{"rows":1,"color":"red","next":null}]],` +
			`"by_name":["dict",{"a":{"rows":1,"color":"red","next":null}}],"by_day":["dict",{"7":"x"}]}`},
		{"echo", `{"n":12345678901234567890123,"x":1}`, `{"n":["int",12345678901234567890123],"x":["float",1.0]}`},
		{"echo", `{"n":2.0,"either":2}`, `{"n":["int",2],"either":["int",2]}`},
		{"echo", `{"either":{"rows":1}}`, `{"either":["Bed",{"rows":1,"color":"red","next":null}]}`},
		{"echo", `{"at":"2026-01-02T03:04:05.123456789Z","on":"2026-01-02","data":"aGk="}`,
			`{"at":["datetime","2026-01-02T03:04:05.123456+00:00"],"on":["date","2026-01-02"],"data":["bytes","aGk="]}`},
		{"echo", `{"at":"2026-01-02T03:04:05+02:00"}`, `{"at":["datetime","2026-01-02T03:04:05+02:00"]}`},
		{"echo", `{"some":[1,1],"pair":[1,"a"],"anything":[{}]}`, `{"some":["set",[1]],"pair":["tuple",[1,"a"]],"anything":["list",[{}]]}`},
		{"echo", `{"bed":null,"n":null,"nullable":null}`, `{"nullable":["NoneType",null]}`},
		{"echo", `{"bed":{"rows":1,"next":{"rows":2,"color":null}},"AT":1}`, `{"bed":["Bed",{"rows":1,"color":"red","next":{"rows":2,"color":"red","next":null}}]}`},
		// What fits the schema may still be no value of the type.
		{"echo", `{"bed":{"rows":-1}}`, `parameter "bed": rows: less than none`},
		{"echo", `{"by_day":{"x":"y"}}`, `parameter "by_day": invalid literal for int() with base 10: 'x'`},
		{"echo", `{"on":"2026-01-99"}`, `parameter "on": day is out of range for month`},
		{"required", `{"name":"a","times":null}`, `["a",null]`},
		{"keywords", `{"n":2,"a":[1],"_webhook":{"method":"POST"}}`, `{"n":2,"rest":{"a":[1],"_webhook":{"method":"POST"}}}`},
		{"positional", `{"a":1}`, `[1,2,3]`},
		{"positional", `{"a":1,"b":null,"c":4}`, `[1,null,4]`},
		{"positional", `{"a":1,"c":4}`, `[1,2,4]`},
		{"handle_hook", `{"_webhook":{"method":"POST"}}`, `{"name":"none","webhook":{"method":"POST"}}`},
		{"handle_hook", `{}`, `{"name":"none","webhook":null}`},
		{"echo", `{"anything":` + strings.Repeat("[", 60000) + strings.Repeat("]", 60000) + `}`, `reading the arguments: `},
		{"echo", `{"n":` + strings.Repeat("1", 5000) + `}`, ``}, // read or refused, by the version; but answered
	} {
		got := json.RawMessage(p.call(row.tool, row.arguments))
		text := resultText(got)
		if text != row.want && !(len(row.arguments) > 1000 && strings.HasPrefix(text, row.want)) {
			t.Errorf("%s %.200s: %.300s, want %s", row.tool, row.arguments, text, row.want)
		}
	}
	p.end()
}

func TestPythonResults(t *testing.T) {
	t.Parallel()
	pythonTestVersion(t)
	p := startShim(t, kindPython, "testdata/python/calls.usher.py")
	unwritable := "the result can't be written as JSON: "
	for tool, want := range map[string]string{
		"nothing":         `{"content":[]}`,
		"text":            strings.ReplaceAll(shownText("a <b> \u2028 \"c\"\n"), `\u2028`, "\u2028"),
		"number":          shownText("1.5"),
		"yes":             shownText("true"),
		"big":             shownObject(`{"n":1267650600228229401496703205376}`),
		"items":           shownText(`[1,"x",null]`),
		"structured":      shownObject(`{"a":1,"2":"b","null":3}`),
		"record":          shownObject(`{"rows":1,"color":"red","next":{"rows":2,"color":"red","next":null}}`),
		"member":          shownText("red"),
		"result":          `{"content":[{"type":"text","text":"mine"}],"isError":true}`,
		"surrogate":       `{"content":[{"type":"text","text":"{\"text\":\"\\ud800 and \\ud83d\\ude00\"}"}],"structuredContent":{"text":"\ud800 and \ud83d\ude00"}}`,
		"proto":           shownObject(`{"__proto__":1}`),
		"converted":       shownText(`["2026-01-02T03:04:05+00:00","2026-01-02","03:04:05",60.0,[1,2,3],["a"],"aGk=","a/b",[],[0,1],"red"]`),
		"rows":            shownText(`[{"a":1,"b":"x"}]`),
		"fail":            shownFailure("no <way>"),
		"fail_empty":      shownFailure("RuntimeError"),
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
		"a_class":         shownFailure(unwritable + "a value of type type"),
		"bad_key":         shownFailure(unwritable + "keys must be str, int, float, bool or None, not tuple"),
		"noise":           shownObject(`{"stdin":"","line":""}`),
		"last":            shownText("2"),
		"locked":          shownText("true"),
		"a-method-unseen": `{"code":-32601,"message":"unknown method or tool in tools/call"}`,
	} {
		if got := p.call(tool, "{}"); got != want && (strings.HasPrefix(want, "{") || !strings.Contains(got, want)) {
			t.Errorf("%s answers %.300s, want %.300s", tool, got, want)
		}
	}
	if got := p.call("wrapped", `{"n":3}`); got != shownText("3") {
		t.Error(got)
	}
	if got := p.call("large", `{"mib":20}`); got != shownText(strings.Repeat("x", 20<<20)) {
		t.Errorf("%d bytes", len(got))
	}
	p.end()
	log := p.stderr.String()
	for _, text := range []string{"at the top level\n", "printed \\ud800\n", "original\n", "descriptor\n", "child\n",
		"calls.usher.py\", line ", "ValueError: no <way>\n", "ZeroDivisionError"} {
		if !strings.Contains(log, text) {
			t.Errorf("the log lacks %q", text)
		}
	}
	if strings.Contains(log, "in in_thread") || strings.Contains(log, "in on_loop") {
		t.Errorf("the log has stacks of the shim's own:\n%s", log)
	}
}

func TestPythonProtocol(t *testing.T) {
	t.Parallel()
	pythonTestVersion(t)
	p := startShim(t, kindPython, "testdata/python/calls.usher.py")
	for _, row := range [][2]string{
		{`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{}}}`,
			`{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":"2025-06-18","capabilities":{"tools":{},"logging":{}},` +
				`"serverInfo":{"name":"calls","version":"1"},"instructions":"Returns, raises, prints and waits in all ways there are."}}`},
		{`{"jsonrpc":"2.0","id":"p","method":"ping"}`, `{"jsonrpc":"2.0","id":"p","result":{}}`},
		{`{"jsonrpc":"2.0","id":5,"method":"server/discover"}`, `"error":{"code":-32601,"message":"unknown method or tool in server/discover"}`},
		{`{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":"nothing"}}`, `{"jsonrpc":"2.0","id":5,"result":{"_meta":{"usher/value":null}}}`},
		// Nothing says nothing; the pings tell.
		{`{"jsonrpc":"2.0","method":"notifications/initialized"}` + "\n" + `{"jsonrpc":"2.0","id":9,"result":{}}` + "\n" +
			`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":77}}` + "\n" +
			`{"jsonrpc":"2.0","id":"q","method":"ping"}`, `{"jsonrpc":"2.0","id":"q","result":{}}`},
	} {
		p.send(row[0])
		if got := p.next(); !strings.Contains(got, row[1]) {
			t.Errorf("%s answers %s, want %s", row[0], got, row[1])
		}
	}
	p.send(`{"jsonrpc":"2.0","id":"x","method":"tools/call","params":{"name":"progress","arguments":{"steps":1},"_meta":{"progressToken":0}}}`)
	for _, want := range []string{
		`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":0,"progress":0,"total":1,"message":"step"}}`,
		`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","logger":"calls","data":"half way","_meta":{"usher/call":"x"}}}`,
		`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"warning","logger":"calls","data":{"n":1},"_meta":{"usher/call":"x"}}}`,
		`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","logger":"calls","data":2,"_meta":{"usher/call":"x"}}}`,
		`{"jsonrpc":"2.0","id":"x","result":{"_meta":{"usher/value":"done"}}}`,
	} {
		if got := p.next(); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	p.sendCall(`"y"`, "progress_async", "{}")
	if got := p.next(); !strings.Contains(got, `"data":"end"`) {
		t.Error(got)
	}
	if _, got := p.answer(); got != shownObject(`{"progress":2,"more":"a value, not progress"}`) {
		t.Error(got)
	}
	p.end()
}

func TestPythonCancel(t *testing.T) {
	t.Parallel()
	pythonTestVersion(t)
	p := startShim(t, kindPython, "testdata/python/calls.usher.py")
	cancel := func(id string) {
		p.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":` + id + `}}`)
	}
	for i, tool := range []string{"wait", "generate", "generate_async"} {
		p.sendCall(strconv.Itoa(i), tool, "{}")
	}
	await(t, "the call to wait", func() bool { return strings.Contains(p.call("seen", "{}"), "waits") })
	p.sendCall(`"s"`, "sleep", `{"seconds":0.5}`)
	for _, id := range []string{"0", "1", "2", `"s"`, "77"} {
		cancel(id)
	}
	p.sendCall("8", "wait", "{}")
	cancel("8") // before its first step, it may be
	await(t, "the end of all that was cancelled", func() bool {
		got := p.call("seen", "{}")
		return strings.Contains(got, "cancelled") && strings.Contains(got, `closed\",\"closed async`)
	})
	if got := p.call("sleep", `{"seconds":0.6}`); got != shownText("slept") { // and not the other's answer
		t.Error(got)
	}
	if p.cancelled != 5 {
		t.Errorf("%d cancelled calls have ended, of 5", p.cancelled)
	}
	// Calls under way don't hold the process.
	p.sendCall("9", "wait", "{}")
	p.sendCall("10", "sleep", `{"seconds":60}`)
	p.request("ping", "{}")
	start := time.Now()
	if rest := p.end(); rest != "" || time.Since(start) > 20*time.Second {
		t.Errorf("after %v: %s", time.Since(start), rest)
	}
	if strings.Contains(p.stderr.String(), "Traceback") || strings.Contains(p.stderr.String(), "never awaited") {
		t.Errorf("the log: %s", p.stderr.String())
	}
	p = startShim(t, kindPython, "testdata/python/calls.usher.py")
	p.request("ping", "{}")
	start = time.Now()
	if rest := p.end(); rest != "" || time.Since(start) > 10*time.Second {
		t.Errorf("idle, after %v: %s", time.Since(start), rest)
	}
}

func TestPythonFailsToLoad(t *testing.T) {
	t.Parallel()
	pythonTestVersion(t)
	dir := t.TempDir()
	write(t, filepath.Join(dir, "helper.py"), "def go():\n    import no_such_thing\n\ngo()\n")
	write(t, filepath.Join(dir, "broken.py"), "x = (\n")
	want := map[string]string{
		"syntax":   "syntax.usher.py:2: SyntaxError: ",
		"import":   "import.usher.py:3: ModuleNotFoundError: No module named 'no_such_thing'",
		"inner":    "helper.py:2: ModuleNotFoundError: No module named 'no_such_thing'",
		"neighbor": "broken.py:1: SyntaxError: ",
		"library":  "library.usher.py:2: JSONDecodeError: ",
		"leaves":   "leaves.usher.py:2: SystemExit: no configuration",
		"null":     "null.usher.py: ",
	}
	for name, text := range map[string]string{
		"syntax": "\ndef f(:\n", "import": "\n\nimport no_such_thing\n", "inner": "import helper\n", "neighbor": "import broken\n",
		"library": "import json\njson.loads('{')\n", "leaves": "import sys\nsys.exit('no configuration')\n", "null": "x = 1\x00",
	} {
		write(t, filepath.Join(dir, name+".usher.py"), text)
	}
	var out, log output
	if code := run(context.Background(), []string{"modules", "-base", t.TempDir(), dir}, strings.NewReader(""), &out, &log, noEnv); code != 0 {
		t.Errorf("status %d: %s", code, log.String())
	}
	for name, text := range want {
		if name == "neighbor" && strings.Contains(out.String(), "broken.py:2: SyntaxError: unexpected EOF") {
			continue // Python 3.9 sees it a line later
		}
		if !strings.Contains(out.String(), `module "`+name+`" ended at its start (exit status 1): `+text) {
			t.Errorf("%s: want %q in\n%s", name, text, out.String())
		}
	}
}

// A module finds its neighbors and its own name, and writes nothing beside itself.
func TestPythonHosted(t *testing.T) {
	t.Parallel()
	pythonTestVersion(t)
	dir := t.TempDir()
	write(t, filepath.Join(dir, "m.usher.py"), `import os
import neighbor

def large(): return "x" * (64 << 20)

def where(): return {"file": os.path.basename(__file__), "name": __name__, "here": os.listdir(".") == os.listdir(os.path.dirname(__file__)), "neighbor": neighbor.X}

if __name__ == "__main__":
    raise SystemExit("is not run")
`)
	write(t, filepath.Join(dir, "neighbor.py"), "X = 5\n")
	c := connect(t, startDaemon(t, dir).URL)
	c.awaitTools("m_large", "m_where")
	if got := resultText(c.call("m_where", "").result()); got != `{"file":"m.usher.py","name":"m","here":true,"neighbor":5}` {
		t.Error(got)
	}
	if got := c.call("m_large", "").failure(); got != "the module's answer is larger than 64 MiB" {
		t.Error(got)
	}
	if found, _ := filepath.Glob(dir + "/*"); len(found) != 2 {
		t.Errorf("beside the module: %q", found)
	}
}

func TestPythonExample(t *testing.T) {
	t.Parallel()
	pythonTestVersion(t)
	text, err := os.ReadFile("testdata/python/beds.usher.py")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "beds.usher.py")
	write(t, file, string(text))
	p := startShim(t, kindPython, file)
	for _, row := range []struct{ tool, arguments, want string }{
		{"dig", `{"name":"north","rows":3,"light":"half"}`, `{"name":"north","rows":3,"light":"half"}`},
		{"dig", `{"name":"north","rows":3}`, `there is a bed 'north' already`},
		{"dig", `{"name":"south","rows":1}`, `{"name":"south","rows":1,"light":"sun"}`},
		{"sow", `{"bed":"north","sowings":[{"row":1,"crop":"peas","days":60,"sown":"2026-03-01"},{"row":2,"crop":"kale","days":90,"sown":"2026-01-01"}]}`,
			`[{"row":1,"crop":"peas","days":60,"sown":"2026-03-01"},{"row":2,"crop":"kale","days":90,"sown":"2026-01-01"}]`},
		{"sow", `{"bed":"north","sowings":[{"row":3,"crop":"leek","days":1},{"row":1,"crop":"peas","days":1}]}`, `row 1 of bed 'north' is taken`},
		{"sow", `{"bed":"west","sowings":[]}`, `there is no bed 'west'; there is north, south`},
		{"beds", `{"light":"half"}`, `[{"name":"north","rows":3,"light":"half","crops":{"1":"peas","2":"kale"}}]`},
		{"ripe", `{"on":"2026-04-29"}`, `[{"bed":"north","row":2,"crop":"kale","since":"2026-04-01"}]`},
		{"harvest", `{"bed":"north","row":2}`, `kale`},
		{"harvest", `{"bed":"north","row":2}`, `nothing grows in row 2 of bed 'north'`},
		{"ripe", `{"on":"2026-04-29"}`, `[]`},
	} {
		if got := resultText(json.RawMessage(p.call(row.tool, row.arguments))); got != row.want {
			t.Errorf("%s(%s) is %s, want %s", row.tool, row.arguments, got, row.want)
		}
	}
	// Beds dug side by side: the file is one.
	for i := range 20 {
		p.sendCall(strconv.Itoa(i), "dig", fmt.Sprintf(`{"name":"bed %d","rows":1}`, i))
	}
	for range 20 {
		if line := p.next(); strings.Contains(line, "isError") {
			t.Error(line)
		}
	}
	p.end()
}

// A folder's own virtual environment runs its modules.
func TestPythonVirtualEnvironment(t *testing.T) {
	t.Parallel()
	minor := pythonTestVersion(t)
	dir := t.TempDir()
	if out, err := exec.Command(pythonFor(dir), "-m", "venv", "--without-pip", filepath.Join(dir, ".venv")).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	write(t, filepath.Join(dir, ".venv", "lib", fmt.Sprintf("python3.%d", minor), "site-packages", "only_here.py"), "def answer(): return undefined\n")
	file := filepath.Join(dir, "m.usher.py")
	write(t, file, "import only_here\nX = 42\ndef f(): return X\n")
	p := startShim(t, kindPython, file)
	if got := p.call("f", `{}`); got != shownText("42") {
		t.Error(got)
	}
	p.end()
	// Of a failure, the user's own line is shown, not the library's.
	write(t, file, "import only_here\nonly_here.answer()\n")
	if out, err := shimCommand(t, kindPython, file).CombinedOutput(); err == nil || string(out) != "m.usher.py:2: NameError: name 'undefined' is not defined\n" {
		t.Errorf("the log: %s", out)
	}
}
