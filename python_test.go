// Tests of runtimes/shim.py: modules in Python, spoken to over their pipes, and
// as usher hosts them.

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

var updatePython = flag.Bool("update-python", false, "rewrite the golden files of testdata/python")

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

// pythonTestStart runs a file by the shim, as launchFile has it.
func pythonTestStart(t *testing.T, file string) *goTestPeer {
	t.Helper()
	file, err := filepath.Abs(file)
	if err != nil {
		t.Fatal(err)
	}
	l, err := launchFile(kindPython, file, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	p := &goTestPeer{t: t, cmd: exec.CommandContext(ctx, l.Path, l.Args...)}
	p.cmd.Dir, p.cmd.Stderr = l.Dir, &p.stderr
	p.in, _ = p.cmd.StdinPipe()
	out, err := p.cmd.StdoutPipe()
	if err == nil {
		err = p.cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	p.out = bufio.NewScanner(out)
	p.out.Buffer(nil, 128<<20)
	return p
}

// pythonTestAsk is the result of a request.
func pythonTestAsk(p *goTestPeer, method, params string) json.RawMessage {
	p.t.Helper()
	p.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":0,"method":%q,"params":%s}`, method, params))
	line := json.RawMessage(p.next())
	if field(line, "result") == nil {
		p.t.Fatalf("%s: %s", method, line)
	}
	return field(line, "result")
}

func pythonTestText(text string) string {
	return `{"content":[{"text":` + string(quote(text)) + `,"type":"text"}]}`
}

func pythonTestObject(object string) string {
	return strings.TrimSuffix(pythonTestText(object), "}") + `,"structuredContent":` + object + "}"
}

func pythonTestFailure(text string) string {
	return strings.TrimSuffix(pythonTestText(text), "}") + `,"isError":true}`
}

// What usher ships must be Python 3.9, whatever runs the tests.
func TestPythonSyntax(t *testing.T) {
	t.Parallel()
	pythonTestVersion(t)
	const check = "import ast, sys\nfor f in sys.argv[1:]: ast.parse(open(f, encoding='utf-8').read(), f, feature_version=(3, 9))"
	files := []string{"runtimes/shim.py", "runtimes/new.usher.py.txt", "examples/garden/beds.usher.py"}
	if out, err := exec.Command(pythonFor("."), append([]string{"-c", check}, files...)...).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestPythonGolden(t *testing.T) {
	t.Parallel()
	pythonTestVersion(t)
	p := pythonTestStart(t, "testdata/python/kinds.usher.py")
	about := pythonTestAsk(p, "initialize", `{}`)
	tools := pythonTestAsk(p, "tools/list", `{}`)
	p.end()
	var got bytes.Buffer
	golden := joinMembers([]member{{"about", quote(stringField(about, "instructions"))}, {"tools", field(tools, "tools")}})
	if err := json.Indent(&got, golden, "", "  "); err != nil {
		t.Fatal(err)
	}
	got.WriteByte('\n')
	path := "testdata/python/kinds.usher.py.json"
	if *updatePython {
		if err := os.WriteFile(path, got.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if want, err := os.ReadFile(path); err != nil || !bytes.Equal(got.Bytes(), want) {
		t.Errorf("%s differs (%v); got:\n%s", path, err, got.Bytes())
	}
	if log := p.stderr.String(); strings.Count(log, "\n") != 1 || !strings.Contains(log, "plain: the annotation of missing can't be read") {
		t.Errorf("the log: %s", log)
	}
}

// One method in two languages is one tool, to the byte.
func TestPythonAndGoAgree(t *testing.T) {
	t.Parallel()
	pythonTestVersion(t)
	want := string(goTestTools(t, `//go:build usher

package main

import "time"

// Contact takes a message.
//
// @webhook contact
func Contact(p struct {
	Email string   `+"`json:\"email\"`"+` // where to answer
	Age   *int     `+"`json:\"age\"`"+`
	Tags  []string `+"`json:\"tags,omitempty\"`"+`
	// What it is
	// about.
	Subject *string `+"`json:\"subject\"`"+`
	Rate    float64 `+"`json:\"rate\"`"+`
	Home    Address `+"`json:\"home\"`"+`
	Work    Address `+"`json:\"work\"`"+` // where they work
	Ratings map[string]float64 `+"`json:\"ratings\"`"+`
	Extra   any `+"`json:\"extra,omitempty\"`"+`
	When    time.Time `+"`json:\"when\"`"+`
	Data    []byte `+"`json:\"data\"`"+`
	Tree    *Tree `+"`json:\"tree\"`"+`
	Webhook map[string]any `+"`json:\"_webhook\"`"+`
}) {
}

// Address is where someone lives.
type Address struct {
	Street string `+"`json:\"street\"`"+` // with the number
	City   *string `+"`json:\"city\"`"+`
}

type Tree struct {
	Left *Tree `+"`json:\"left\"`"+`
}

func Nothing() {}
`))
	file := filepath.Join(t.TempDir(), "x.usher.py")
	write(t, file, `
import dataclasses, datetime
from typing import Any, Dict, List, Optional

@dataclasses.dataclass
class Address:
    """Address is where someone lives.

    :ivar street: with the number
    """
    street: str
    city: Optional[str] = None

@dataclasses.dataclass
class Tree:
    left: "Optional[Tree]" = None

def contact(*, email: str, age: Optional[int] = None, tags: List[str] = None, subject: str = None, rate: float, home: Address,
            work: Address, ratings: Dict[str, float], extra: Any = None, when: datetime.datetime, data: bytes, tree: Tree = None, _webhook):
    """Contact takes a message.

    @webhook contact

    Args:
        email: where to answer
        subject: What it is
            about.
        work: where they work
    """

def nothing(): ...
`)
	p := pythonTestStart(t, file)
	got := string(field(pythonTestAsk(p, "tools/list", `{}`), "tools"))
	p.end()
	if got != want {
		t.Errorf("Python: %s\nGo:     %s", got, want)
	}
}

// Annotations that older versions of Python can't evaluate.
func TestPythonNewAnnotations(t *testing.T) {
	t.Parallel()
	minor := pythonTestVersion(t)
	file := filepath.Join(t.TempDir(), "json.usher.py") // the name of a module that all need
	write(t, file, "from __future__ import annotations\nimport json\ndef f(a: int | None, b: list[int | str] = [], c: int = json.loads('1')): return [a, b, c]\n")
	p := pythonTestStart(t, file)
	got := string(field(pythonTestAsk(p, "tools/list", `{}`), "tools"))
	want := `"a":{"type":["integer","null"]},"b":{"type":"array","items":{"type":["integer","string"]},"default":[]},"c":{"type":"integer","default":1}`
	if minor < 10 {
		want = `"a":{},"b":{"default":[]},"c":{"type":"integer","default":1}`
	}
	if !strings.Contains(got, want) {
		t.Errorf("got %s, want %s", got, want)
	}
	if got := p.call("f", `{"a":null}`); got != pythonTestText("[null,[],1]") {
		t.Error(got)
	}
	p.end()
}

func TestPythonParameters(t *testing.T) {
	t.Parallel()
	pythonTestVersion(t)
	p := pythonTestStart(t, "testdata/python/calls.usher.py")
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
		{"echo", `{"at":"2026-01-02T03:04+02:00"}`, `{"at":["datetime","2026-01-02T03:04:00+02:00"]}`},
		{"echo", `{"some":[1,1],"pair":[1,"a"],"anything":[{}]}`, `{"some":["set",[1]],"pair":["tuple",[1,"a"]],"anything":["list",[{}]]}`},
		{"echo", `{"bed":null,"n":null,"nullable":null}`, `{"nullable":["NoneType",null]}`},
		{"echo", `null`, `arguments: want an object, got null`},
		{"echo", `[1]`, `arguments: want an object, got an array`},
		{"echo", `{"n":1.5}`, `parameter "n": want an integer, got 1.5`},
		{"echo", `{"n":true}`, `parameter "n": want an integer, got a boolean`},
		{"echo", `{"x":"1"}`, `parameter "x": want a number, got a string`},
		{"echo", `{"bed":{}}`, `parameter "bed.rows" is required`},
		{"echo", `{"bed":{"rows":"1"}}`, `parameter "bed.rows": want an integer, got a string`},
		{"echo", `{"bed":{"rows":1,"next":{"rows":null}}}`, `parameter "bed.next.rows": want an integer, got null`},
		{"echo", `{"bed":{"rows":1,"color":"blue"}}`, `parameter "bed.color": want one of "red", got "blue"`},
		{"echo", `{"bed":{"rows":-1}}`, `parameter "bed": rows: less than none`},
		{"echo", `{"beds":[{"rows":1},[]]}`, `parameter "beds.1": want an object, got an array`},
		{"echo", `{"by_name":{"k":{"rows":[]}}}`, `parameter "by_name.k.rows": want an integer, got an array`},
		{"echo", `{"by_day":{"x":"y"}}`, `parameter "by_day": want numbers as keys, got "x"`},
		{"echo", `{"either":"x"}`, `parameter "either": want an integer or an object, got a string`},
		{"echo", `{"either":{"rows":"x"}}`, `parameter "either.rows": want an integer, got a string`},
		{"echo", `{"at":"tomorrow"}`, `parameter "at": want a time such as 2006-01-02T15:04:05Z, got "tomorrow"`},
		{"echo", `{"on":"20260102"}`, `parameter "on": want a date such as 2006-01-02, got "20260102"`},
		{"echo", `{"data":"%"}`, `parameter "data": want base64, got "%"`},
		{"echo", `{"pair":[1]}`, `parameter "pair": want an array of 2, got one of 1`},
		{"required", `{"name":"a","times":null}`, `["a",null]`},
		{"required", `{"name":"a"}`, `parameter "times" is required`},
		{"required", `{"times":1}`, `parameter "name" is required`},
		{"required", `{"name":null,"times":1}`, `parameter "name": want a string, got null`},
		{"keywords", `{"n":2,"a":[1],"_webhook":{"method":"POST"}}`, `{"n":2,"rest":{"a":[1],"_webhook":{"method":"POST"}}}`},
		{"positional", `{"a":1}`, `[1,2,3]`},
		{"positional", `{"a":1,"b":null,"c":4}`, `[1,null,4]`},
		{"positional", `{"a":1,"c":4}`, `[1,2,4]`},
		{"handle_hook", `{"_webhook":{"method":"POST"}}`, `{"name":"none","webhook":{"method":"POST"}}`},
		{"handle_hook", `{}`, `{"name":"none","webhook":null}`},
		{"echo", `{"anything":` + strings.Repeat("[", 60000) + strings.Repeat("]", 60000) + `}`, `reading a message: `},
		{"echo", `{"n":` + strings.Repeat("1", 5000) + `}`, ``}, // read or refused, by the version; but answered
	} {
		got := json.RawMessage(p.call(row.tool, row.arguments))
		text := resultText(got)
		if message := stringField(got, "message"); message != "" {
			text = message
			if _, path, ok := strings.Cut(message, `parameter "`); ok {
				top := path[:strings.IndexAny(path, `."`)]
				if stringField(field(got, "data"), "parameter") != top || string(field(got, "code")) != "-32602" {
					t.Errorf("%s %s: %s", row.tool, row.arguments, got)
				}
			}
		}
		if text != row.want && !(len(row.arguments) > 1000 && strings.HasPrefix(text, row.want)) {
			t.Errorf("%s %.200s: %.300s, want %s", row.tool, row.arguments, text, row.want)
		}
	}
	p.end()
}

func TestPythonResults(t *testing.T) {
	t.Parallel()
	pythonTestVersion(t)
	p := pythonTestStart(t, "testdata/python/calls.usher.py")
	unwritable := "the result can't be written as JSON: "
	for tool, want := range map[string]string{
		"nothing":         `{"content":[]}`,
		"text":            strings.ReplaceAll(pythonTestText("a <b> \u2028 \"c\"\n"), `\u2028`, "\u2028"),
		"number":          pythonTestText("1.5"),
		"yes":             pythonTestText("true"),
		"big":             pythonTestObject(`{"n":1267650600228229401496703205376}`),
		"items":           pythonTestText(`[1,"x",null]`),
		"structured":      pythonTestObject(`{"a":1,"2":"b","null":3}`),
		"record":          pythonTestObject(`{"rows":1,"color":"red","next":{"rows":2,"color":"red","next":null}}`),
		"member":          pythonTestText("red"),
		"result":          `{"content":[{"type":"text","text":"mine"}],"isError":true}`,
		"like_result":     pythonTestObject(`{"content":[{"type":"text"}],"other":1}`),
		"odd_content":     pythonTestObject(`{"content":[{"type":"poem"}]}`),
		"surrogate":       `{"content":[{"text":"{\"text\":\"\ud800 and \ud83d\ude00\"}","type":"text"}],"structuredContent":{"text":"\ud800 and \ud83d\ude00"}}`,
		"proto":           pythonTestObject(`{"__proto__":1}`),
		"converted":       pythonTestText(`["2026-01-02T03:04:05+00:00","2026-01-02","03:04:05",60.0,[1,2,3],["a"],"aGk=","a/b",[],[0,1],"red"]`),
		"rows":            pythonTestText(`[{"a":1,"b":"x"}]`),
		"fail":            pythonTestFailure("no <way>"),
		"fail_empty":      pythonTestFailure("RuntimeError"),
		"fail_key":        pythonTestFailure("KeyError: 'k'"),
		"fail_chained":    pythonTestFailure("chained"),
		"leave":           pythonTestFailure("the method called sys.exit(3)"),
		"leave_async":     pythonTestFailure("the method called sys.exit(later)"),
		"leave_in_task":   pythonTestText("stayed"),
		"interrupt":       pythonTestFailure("KeyboardInterrupt"),
		"rude":            pythonTestFailure("Rude"),
		"nan":             unwritable + "Out of range float values are not JSON compliant",
		"cycle":           pythonTestFailure(unwritable + "Circular reference detected"),
		"deep":            unwritable + "maximum recursion depth exceeded",
		"unserialisable":  pythonTestFailure(unwritable + "a value of type Lock"),
		"a_class":         pythonTestFailure(unwritable + "the class Bed"),
		"bad_key":         pythonTestFailure(unwritable + "keys must be str, int, float, bool or None, not tuple"),
		"noise":           pythonTestObject(`{"stdin":"","line":""}`),
		"last":            pythonTestText("2"),
		"locked":          pythonTestText("true"),
		"a-method-unseen": `{"code":-32602,"message":"unknown tool \"a-method-unseen\""}`,
	} {
		if got := p.call(tool, "{}"); got != want && (strings.HasPrefix(want, "{") || !strings.Contains(got, want)) {
			t.Errorf("%s answers %.300s, want %.300s", tool, got, want)
		}
	}
	if got := p.call("wrapped", `{"n":3}`); got != pythonTestText("3") {
		t.Error(got)
	}
	if got := p.call("large", `{"mib":20}`); got != pythonTestText(strings.Repeat("x", 20<<20)) {
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
	p := pythonTestStart(t, "testdata/python/calls.usher.py")
	for _, row := range [][2]string{
		{`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{}}}`,
			`{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":"2025-06-18","capabilities":{"tools":{},"logging":{}},` +
				`"serverInfo":{"name":"calls","version":"1"},"instructions":"Returns, raises, prints and waits in all ways there are."}}`},
		{`{"jsonrpc":"2.0","id":"i","method":"initialize","params":{"protocolVersion":"1999-01-01"}}`, `"protocolVersion":"2025-11-25"`},
		{`{"jsonrpc":"2.0","id":"p","method":"ping"}`, `{"jsonrpc":"2.0","id":"p","result":{}}`},
		{`{"jsonrpc":"2.0","id":5,"method":"server/discover"}`, `"error":{"code":-32601,"message":"unknown method \"server/discover\""}`},
		{`{"jsonrpc":"2.0","id":5,"method":7}`, `"code":-32601`},
		{`{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":3}}`, `"code":-32602`},
		{`{"jsonrpc":"2.0","id":5,"method":"tools/call","params":[]}`, `"code":-32602,"message":"params must be an object"`},
		{`{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":"nothing"}}`, `{"jsonrpc":"2.0","id":5,"result":{"content":[]}}`},
		{`{"jsonrpc":`, `{"jsonrpc":"2.0","id":null,"error":{"code":-32700,`},
		{"\xff\xfe", `{"jsonrpc":"2.0","id":null,"error":{"code":-32700,`},
		{`[1]`, `{"jsonrpc":"2.0","id":null,"error":{"code":-32600,`},
		// Nothing says nothing; the pings tell.
		{"\n  \n" + `{"jsonrpc":"2.0","method":"notifications/initialized"}` + "\n" + `{"jsonrpc":"2.0","id":9,"result":{}}` + "\n" +
			`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":{}}}` + "\n" +
			`{"jsonrpc":"2.0","method":"notifications/cancelled","params":3}` + "\n" +
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
		`{"jsonrpc":"2.0","id":"x","result":` + pythonTestText("done") + `}`,
	} {
		if got := p.next(); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	p.sendCall(`"y"`, "progress_async", "{}")
	if got := p.next(); !strings.Contains(got, `"data":"end"`) {
		t.Error(got)
	}
	if got, want := p.next(), pythonTestObject(`{"progress":2,"more":"a value, not progress"}`); !strings.HasSuffix(got, want+"}") {
		t.Error(got)
	}
	pythonTestAsk(p, "logging/setLevel", `{"level":"error"}`)
	if got := p.call("progress", `{"steps":1}`); got != pythonTestText("done") { // no token, no progress
		t.Error(got)
	}
	p.end()
}

func TestPythonSideBySide(t *testing.T) {
	t.Parallel()
	pythonTestVersion(t)
	p := pythonTestStart(t, "testdata/python/calls.usher.py")
	pythonTestAsk(p, "ping", `{}`)
	start := time.Now()
	seen := make(map[string]bool)
	for i := range 40 {
		p.sendCall(strconv.Itoa(i), []string{"sleep", "sleep_async"}[i%2], `{"seconds":1}`)
	}
	for range 40 {
		seen[string(field(json.RawMessage(p.next()), "id"))] = true
	}
	if d := time.Since(start); len(seen) != 40 || d > 3*time.Second {
		t.Errorf("%d answers in %v", len(seen), d)
	}
	p.end()
}

func TestPythonCancel(t *testing.T) {
	t.Parallel()
	pythonTestVersion(t)
	p := pythonTestStart(t, "testdata/python/calls.usher.py")
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
	if got := p.call("sleep", `{"seconds":0.6}`); got != pythonTestText("slept") { // and not the other's answer
		t.Error(got)
	}
	// Calls under way don't hold the process.
	p.sendCall("9", "wait", "{}")
	p.sendCall("10", "sleep", `{"seconds":60}`)
	pythonTestAsk(p, "ping", "{}")
	start := time.Now()
	if rest := p.end(); rest != "" || time.Since(start) > 2*time.Second {
		t.Errorf("after %v: %s", time.Since(start), rest)
	}
	if strings.Contains(p.stderr.String(), "Traceback") || strings.Contains(p.stderr.String(), "never awaited") {
		t.Errorf("the log: %s", p.stderr.String())
	}
	p = pythonTestStart(t, "testdata/python/calls.usher.py")
	pythonTestAsk(p, "ping", "{}")
	start = time.Now()
	if rest := p.end(); rest != "" || time.Since(start) > time.Second {
		t.Errorf("idle, after %v: %s", time.Since(start), rest)
	}
}

func TestPythonAsks(t *testing.T) {
	t.Parallel()
	pythonTestVersion(t)
	p := pythonTestStart(t, "testdata/python/asks.usher.py")
	goTestAnswers(t, p, "", "_async")
	goTestAnswersInTurn(t, p, "_async", func(id, want string) {
		t.Helper()
		if got := p.next(); string(field(json.RawMessage(got), "id")) != id || !strings.Contains(got, want) {
			t.Errorf("got %s, want %s for %s", got, want, id)
		}
	})
	goTestAskCancelled(t, p, "wait", "GeneratorExit")
	goTestAskCancelled(t, p, "wait_async", "async GeneratorExit")
	// Numbers keep their digits, there and back.
	const digits = "12345678901234567890"
	p.sendCall(digits, "ask", `{"item":{"ask":"m","params":{"n":`+digits+`}}}`)
	ask := goTestAsk(p, digits, "m", `{"n":`+digits+`,"_meta":{"usher/call":`+digits+`}}`)
	p.send(`{"jsonrpc":"2.0","id":` + ask + `,"result":{"n":` + digits + `}}`)
	if got := p.next(); !strings.Contains(got, `"structuredContent":{"n":`+digits+`}`) {
		t.Error(got)
	}
	// An answer that Python can't read is one all the same.
	p.sendCall("1", "ask", `{"item":{"ask":"m"}}`)
	ask = goTestAsk(p, "1", "m", "")
	p.send(`{"jsonrpc":"2.0","id":` + ask + `,"result":` + strings.Repeat("[", 100000) + strings.Repeat("]", 100000) + `}`)
	if got := p.next(); !strings.Contains(got, `"id":1,"result":{"content":[{"text":"reading the answer: `) {
		t.Error(got)
	}
	if got := p.call("ask", `{"item":{"ask":3}}`); got != pythonTestFailure("ask: the method must be a string, not int") {
		t.Error(got)
	}
	if got, want := p.call("ask", `{"item":{"ask":"m","other":1}}`), pythonTestObject(`{"ask":"m","other":1}`); got != want { // a value like any other
		t.Error(got)
	}
	p.sendCall("8", "wait", "{}")
	p.sendCall("9", "wait_async", "{}")
	for range 2 {
		p.next()
	}
	start := time.Now()
	if rest := p.end(); rest != "" || time.Since(start) > 2*time.Second {
		t.Errorf("after %v: %s", time.Since(start), rest)
	}
	if log := p.stderr.String(); strings.Count(log, "cleaned up") != 2 || strings.Contains(log, "never") || strings.Contains(log, "in drain") {
		t.Errorf("the log: %s", log)
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
		"inner":    "inner.usher.py:1: in <module>\n      helper.py:4: in <module>\n      helper.py:2: ModuleNotFoundError: No module named 'no_such_thing'",
		"neighbor": "neighbor.usher.py:1: in <module>\n      broken.py:1: SyntaxError: ",
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

const pythonTestHosted = `"""Is hosted. Here."""
import os
import neighbor

count = 0

def add(by: int = 1):
    """Adds."""
    global count
    count += by
    return {"count": count}

def walk(steps: int):
    for n in range(steps):
        yield {"progress": n, "total": steps}
        yield {"log": f"step {n}"}
    return "there"

def crash(): os._exit(3)

def large(): return "x" * (64 << 20)

def deep(rows: list[int]): return rows

def handle_form(text: str, _webhook=None):
    """Takes a form.

    :param text: what it says
    """
    return {"text": text, "own": _webhook and _webhook["headers"]["x-own"]}

def where(): return {"file": os.path.basename(__file__), "name": __name__, "here": os.listdir(".") == os.listdir(os.path.dirname(__file__)), "neighbor": neighbor.X}

def version(): return 1

if __name__ == "__main__":
    raise SystemExit("is not run")
`

func TestPythonHosted(t *testing.T) {
	t.Parallel()
	pythonTestVersion(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "m.usher.py")
	write(t, file, pythonTestHosted)
	write(t, filepath.Join(dir, "neighbor.py"), "X = 5\n")
	write(t, filepath.Join(dir, "fake", "m2.usher.py"), "def f(): ...\n")
	d := serveHere(t, dir)
	c := connect(t, d.URL)
	c.awaitTools("m2_f", "m_add", "m_crash", "m_deep", "m_handle_form", "m_large", "m_version", "m_walk", "m_where")
	for _, row := range []struct{ tool, arguments, want string }{
		{"m_add", `{"by":2}`, `{"count":2}`},
		{"m_add", ``, `{"count":3}`},
		{"m_where", ``, `{"file":"m.usher.py","name":"m","here":true,"neighbor":5}`},
		{"m_handle_form", `{"text":"t","_webhook":{"headers":{"x-own":"forged"}}}`, `{"text":"t","own":null}`},
		{"m_add", `{"by":"2"}`, `parameter "by": want an integer, got a string`},
		{"m_handle_form", `{}`, `parameter "text" is required: a string`},
		{"m_deep", `{"rows":[1,"x"]}`, `parameter "rows.1": want an integer, got a string`},
		{"m_crash", ``, `module "m" crashed (exit status 3); the next call starts it again`},
		{"m_add", ``, `{"count":1}`},
	} {
		if got := resultText(c.call(row.tool, row.arguments).result()); got != row.want {
			t.Errorf("%s(%s) is %s, want %s", row.tool, row.arguments, got, row.want)
		}
	}
	if got := c.call("m_large", "").failure(); got != "the module's answer is larger than 64 MiB" {
		t.Error(got)
	}
	a := c.ask("tools/call", `{"name":"m_walk","arguments":{"steps":2},"_meta":{"progressToken":"mine"}}`)
	if len(a.Events) != 5 || string(field(field(a.Events[2], "params"), "progress")) != "1" || stringField(field(a.Events[0], "params"), "progressToken") != "mine" ||
		stringField(field(a.Events[1], "params"), "data") != "step 0" || resultText(a.result()) != "there" {
		t.Errorf("progress: %s", a.Body)
	}
	for body, want := range map[string]string{
		`{"text":"by hook"}`:           `200 {"text":"by hook","own":"seen"}`,
		`{"text":"t","_webhook":null}`: `200 {"text":"t","own":"seen"}`,
		`{}`:                           `400 {"error":"parameter \"text\" is required: a string"}`,
	} {
		req, _ := http.NewRequest(http.MethodPost, d.URL+"webhook/m/handle_form", strings.NewReader(body))
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("X-Own", "seen")
		if a := c.do(req); fmt.Sprint(a.Status, " ", strings.TrimSpace(a.Body)) != want {
			t.Errorf("webhook %s: %d %s, want %s", body, a.Status, a.Body, want)
		}
	}
	pythonTestEdits(t, d, c, file)
	if found, _ := filepath.Glob(dir + "/*"); len(found) != 3 {
		t.Errorf("beside the module: %q", found)
	}
}

// pythonTestEdits changes a module that is served: to a new version, to one
// that is broken, and to one that works again.
func pythonTestEdits(t *testing.T, d *testDaemon, c *testClient, file string) {
	version := func(want string) func() bool {
		return func() bool { return resultText(c.call("m_version", "").result()) == want }
	}
	await(t, "version 1", version("1"))
	write(t, file, strings.Replace(pythonTestHosted, "version(): return 1", "version(): return 22", 1))
	await(t, "version 22", version("22"))
	write(t, file, pythonTestHosted+"\ndef broken(:\n")
	await(t, "the report of the failure", func() bool { return strings.Contains(d.Log.String(), "m.usher.py:39: SyntaxError") })
	if !version("22")() {
		t.Error("the last good version does not go on")
	}
	write(t, file, strings.Replace(pythonTestHosted, "version(): return 1", "version(): return 333", 1))
	await(t, "version 333", version("333"))
}

func TestPythonExample(t *testing.T) {
	t.Parallel()
	pythonTestVersion(t)
	text, err := os.ReadFile("examples/garden/beds.usher.py")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "beds.usher.py")
	write(t, file, string(text))
	p := pythonTestStart(t, file)
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
	p := pythonTestStart(t, file)
	if got := p.call("f", `{}`); got != pythonTestText("42") {
		t.Error(got)
	}
	p.end()
	// Of a failure, the user's own line is shown, not the library's.
	write(t, file, "import only_here\nonly_here.answer()\n")
	p = pythonTestStart(t, file)
	if p.out.Scan() || p.cmd.Wait() == nil || p.stderr.String() != "m.usher.py:2: NameError: name 'undefined' is not defined\n" {
		t.Errorf("the log: %s", p.stderr.String())
	}
}

// What usher new writes works as it says.
func TestPythonStarter(t *testing.T) {
	t.Parallel()
	pythonTestVersion(t)
	file := filepath.Join(t.TempDir(), "hello.usher.py")
	var out, log output
	if code := run(context.Background(), []string{"new", file}, strings.NewReader(""), &out, &log, noEnv); code != 0 {
		t.Fatal(log.String())
	}
	p := pythonTestStart(t, file)
	for _, row := range []struct{ arguments, want string }{
		{`{"name":"Ada"}`, `{"text":"Hello, Ada!","times":1,"greeted":1}`},
		{`{"name":"Ada","times":2,"title":"Dr"}`, `{"text":"Hello, Dr Ada!","times":2,"greeted":3}`},
		{`{"name":""}`, "name is empty"},
	} {
		if got := resultText(json.RawMessage(p.call("greet", row.arguments))); got != row.want {
			t.Errorf("%s: %s", row.arguments, got)
		}
	}
	p.end()
}
