// Tests of gomodule.go and of the generated main: modules are built, spoken to
// over their pipes, and built again after a change.

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

// goTestTree writes files into a new folder whose path has a space in it.
func goTestTree(t *testing.T, files map[string]string) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	dir = filepath.Join(dir, "work space")
	for name, text := range files {
		write(t, filepath.Join(dir, name), text)
	}
	return dir
}

// buildGoFile is buildGoModule of what the file holds.
func buildGoFile(ctx context.Context, folder, path string, environ []string) (string, error) {
	src, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	return buildGoModule(ctx, folder, path, src, environ)
}

// goTestBuild builds a module with the environment of this process.
func goTestBuild(t *testing.T, path, cache string) (binary string) {
	t.Helper()
	binary, err := buildGoFile(context.Background(), cache, path, os.Environ())
	var wrong *goBuildError
	if errors.As(err, &wrong) {
		t.Fatal(strings.Join(wrong.Lines, "\n"))
	}
	if err != nil {
		t.Fatal(err)
	}
	return binary
}

// A goTestOffer is what a module says of itself.
type goTestOffer struct {
	Doc      string            `json:"doc,omitempty"`
	Tools    []json.RawMessage `json:"tools,omitempty"`
	Problems []string          `json:"problems,omitempty"`
	Error    []string          `json:"error,omitempty"`
}

// goTestAskOffer builds the module and asks it what it offers.
func goTestAskOffer(t *testing.T, name, text string) (o goTestOffer) {
	t.Helper()
	dir := goTestTree(t, map[string]string{name: text})
	binary, err := buildGoFile(context.Background(), filepath.Join(dir, "cache"), filepath.Join(dir, name), os.Environ())
	var wrong *goBuildError
	if errors.As(err, &wrong) {
		o.Error = wrong.Lines
		return o
	}
	if err != nil {
		t.Fatal(err)
	}
	p := goTestStart(t, binary)
	defer p.end()
	p.send(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}`)
	p.send(`{"jsonrpc":"2.0","id":2,"method":"tools/list"}`)
	info, list := field([]byte(p.next()), "result"), field([]byte(p.next()), "result")
	o.Doc = stringField(info, "instructions")
	problems := field(field(field(field(info, "capabilities"), "experimental"), "usher/problems"), "problems")
	if err := errors.Join(json.Unmarshal(problems, &o.Problems), json.Unmarshal(field(list, "tools"), &o.Tools)); err != nil {
		t.Fatalf("%s\n%s: %v", info, list, err)
	}
	for i, tool := range o.Tools {
		ordered := object{{"name", field(tool, "name")}, {"description", field(tool, "description")}, {"inputSchema", field(tool, "inputSchema")}}
		if stringField(tool, "description") == "" {
			ordered = ordered.without("description")
		}
		o.Tools[i] = ordered.encode()
	}
	return o
}

// goTestTools is the tools of a module, as those of other languages are written.
func goTestTools(t *testing.T, text string) json.RawMessage {
	t.Helper()
	o := goTestAskOffer(t, "x.usher.go", text)
	if len(o.Error)+len(o.Problems) > 0 {
		t.Fatalf("%q %q", o.Error, o.Problems)
	}
	for i, tool := range o.Tools {
		schema := cleanSchema(field(tool, "inputSchema"), nil, false)
		o.Tools[i] = withMember(tool, "inputSchema", schema)
	}
	return marshal(o.Tools)
}

// A goTestPeer is a running module and its client.
type goTestPeer struct{ modulePeer }

func goTestStart(t *testing.T, binary string) *goTestPeer {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	p := &goTestPeer{modulePeer{t: t, cmd: exec.CommandContext(ctx, binary)}}
	p.start()
	return p
}

// call is what the daemon makes of a call's result, or the error.
func (p *goTestPeer) call(tool, arguments string) string {
	p.t.Helper()
	p.sendCall("7", tool, arguments)
	line := json.RawMessage(p.next())
	for string(field(line, "id")) == `"w"` { // a cancelled call has ended
		line = json.RawMessage(p.next())
	}
	if string(field(line, "id")) != "7" || string(field(line, "jsonrpc")) != `"2.0"` {
		p.t.Fatalf("answer is %s", line)
	}
	if fault := field(line, "error"); fault != nil {
		return string(fault)
	}
	return string(methodResult(field(line, "result")))
}

// goTestCalls is a module that does all it can to be in the way of the main that
// is generated for it: its names, its imports and its printing.
const goTestCalls = `//go:build usher

package main

import (
	"context"
	stdjson "encoding/json"
	"embed"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"runtime"
	"strings"
	"time"

	"example.com/tree/internal/greet"
)

//go:embed static
var static embed.FS

var printed = func() bool { fmt.Println("set at init"); return true }()

type Server struct{}
type json struct{}

var reflect, os_, context_ = 1, 2, 3

func main_()                     {}
func min(a, b int) int           { return a }
func max(a, b int) int           { return b }
func new() json                  { return json{} }
func close()                     {}
func delete()                    {}
func clear()                     {}
func copy()                      {}
func print()                     {}
func any(xs ...bool) bool        { return false }
func init()                      { fmt.Print("init without end of line") }

var waiting, met = make(chan bool), make(chan bool)
var cancelled = make(chan error, 9)

type Params struct {
	Name    string             ` + "`json:\"name\"`" + `
	Count   int8               ` + "`json:\"count,omitempty\"`" + `
	Big     stdjson.RawMessage ` + "`json:\"big,omitempty\"`" + `
	Loose   interface{}        ` + "`json:\"loose,omitempty\"`" + `
	Long    int64              ` + "`json:\"long,omitempty\"`" + `
	Size    uint               ` + "`json:\"size,omitempty\"`" + `
	Tags    []string           ` + "`json:\"tags,omitempty\"`" + `
	When    *time.Time         ` + "`json:\"when\"`" + `
	Data    []byte             ` + "`json:\"data,omitempty\"`" + `
	Address *Address           ` + "`json:\"address\"`" + `
	ByName  map[string]Address ` + "`json:\"byName,omitempty\"`" + `
	Webhook map[string]interface{} ` + "`json:\"_webhook\"`" + `
}
type Address struct {
	City string    ` + "`json:\"city\"`" + `
	Next []Address ` + "`json:\"next,omitempty\"`" + `
}

func Echo(p *Params) (*Params, error)    { return p, nil }
func EchoValue(p Params) Params          { return p }
func Greet() string                      { b, _ := static.ReadFile("static/a.txt"); return greet.Hello(string(b)) }
func Nothing()                           {}
func Nil() ([]string, error)             { return nil, nil }
func Null() *Params                      { return nil }
func Text() (string, error)              { return "a <b> & \"c\"\n", nil }
func Number() float64                    { return 1.5 }
func List() []int                        { return []int{1, 2} }
func Bytes() []byte                      { return []byte("hi") }
func Fail() (int, error)                 { return 1, errors.New("no <way>") }
func OnlyFail() error                    { return errors.New("never") }
func Fine() error                        { return nil }
func ErrorValue() interface{}            { return fmt.Errorf("a value") }
func Panic()                             { panic("at the disco") }
func PanicError() int                    { var p *Params; return len(p.Name) }
func Goexit()                            { runtime.Goexit() }
func NaN() float64                       { return math.NaN() }
func Chan() interface{}                  { return struct{ C chan int }{} }
func Print() string                      { fmt.Println("to stdout"); fmt.Fprintln(os.Stdout, "again"); return "printed" }
func Read() (string, error)              { b, err := io.ReadAll(os.Stdin); return "read " + string(b), err }
func Cycle() interface{} {
	m := map[string]interface{}{}
	m["m"] = m
	return m
}
func Result() map[string]interface{} {
	return map[string]interface{}{"content": []map[string]string{{"type": "text", "text": "mine"}}, "isError": true}
}
func NotResult() stdjson.RawMessage {
	return stdjson.RawMessage("{\n\"content\": [{\"type\": \"text\"}], \"other\": 12345678901234567890}")
}
func OddContent() stdjson.RawMessage { return stdjson.RawMessage("{\"content\":[{\"type\":\"poem\"}]}") }
func Large() string                  { return strings.Repeat("x", 1<<20) }
func Length(p Params) int            { return len(p.Name) }
func Meet()                          { select { case waiting <- true: case <-waiting: } }
func Wait(ctx context.Context) error { met <- true; <-ctx.Done(); cancelled <- ctx.Err(); return ctx.Err() }
func Started()                       { <-met }
func Cancelled() string              { return (<-cancelled).Error() }

var late func(float64, float64, string)

func Progress(report func(progress, total float64, message string)) int {
	report(1, 2, "half <way>")
	report(2, 0, "")
	report(math.NaN(), 0, "")
	late = report
	return 3
}
func Late() { late(9, 9, "too late") }
`

func goTestCallsModule(t *testing.T) (binary string) {
	t.Helper()
	// A name that go build would ignore twice over, a go.mod of an old language,
	// a folder with a space, a file to embed, and an internal package that
	// prints and keeps os.Stdout before the module's first line runs.
	dir := goTestTree(t, map[string]string{
		"go.mod":             "module example.com/tree\n\ngo 1.16\n",
		"sub/static/a.txt":   "embedded",
		"sub/other.usher.go": "//go:build usher\n\npackage main\n\nfunc Greet() {}\n",
		"internal/greet/greet.go": "package greet\n\nimport (\"fmt\"; \"log\"; \"os\")\n\n" +
			"var logger = log.New(os.Stdout, \"kept \", 0)\n\nfunc init() { fmt.Println(\"greet init\") }\n\n" +
			"func Hello(s string) string { logger.Print(\"hello\"); return \"hello \" + s }\n",
		"sub/_calls_windows.usher.go": goTestCalls,
	})
	return goTestBuild(t, filepath.Join(dir, "sub", "_calls_windows.usher.go"), filepath.Join(dir, "cache"))
}

func TestGoModuleSpeaksMCP(t *testing.T) {
	t.Parallel()
	p := goTestStart(t, goTestCallsModule(t))
	// An imported package prints before anything of ours runs: the daemon logs
	// such a line.
	if got := p.next(); got != "greet init" {
		t.Errorf("first line is %s", got)
	}
	p.send(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{}}}`)
	if got, want := p.next(), `{"jsonrpc":"2.0","id":0,"result":{"capabilities":{"experimental":{"usher/problems":{"problems":null}},"tools":{}},`+
		`"instructions":"","protocolVersion":"2025-11-25","serverInfo":{"name":"_calls_windows","version":"1"}}}`; got != want {
		t.Errorf("initialize answers\n%s, want\n%s", got, want)
	}
	p.send(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	for _, row := range [][2]string{
		{`{"jsonrpc":"2.0","id":"p","method":"ping"}`, `{"jsonrpc":"2.0","id":"p","result":{}}`},
		{`{"jsonrpc":"2.0","id":5,"method":"server/discover"}`, `"error":{"code":-32601,"message":"unknown method \"server/discover\""}`},
		{`{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":"length","arguments":{"name":"\"}"},"ARGUMENTS":{"name":"x"},"NAME":"none"}}`, // what usher has not checked
			`{"jsonrpc":"2.0","id":5,"result":{"_meta":{"usher/value":2}}}`},
		{`{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":"none"}}`, `"error":{"code":-32602,"message":"unknown tool \"none\""}`},
		{`{"jsonrpc":` + "\n" + `{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":"fine"}}`, `{"jsonrpc":"2.0","id":5,"result":{"_meta":{"usher/value":null}}}`},
	} {
		p.send(row[0])
		if got := p.next(); !strings.Contains(got, row[1]) {
			t.Errorf("%s answers %s, want %s", row[0], got, row[1])
		}
	}
	t.Run("parameters", func(t *testing.T) { goTestParameters(t, p) })
	t.Run("results", func(t *testing.T) { goTestResults(t, p) })
	t.Run("progress", func(t *testing.T) { goTestProgress(t, p) })
	t.Run("concurrency", func(t *testing.T) { goTestConcurrency(t, p) })

	// The end of stdin cancels what runs, and the process goes.
	p.sendCall(`"last"`, "wait", "{}")
	p.call("started", "{}")
	if rest := p.end(); rest != "" && !strings.Contains(rest, `"context canceled"`) {
		t.Errorf("after the end: %s", rest)
	}
	for _, text := range []string{"set at init", "init without", "kept hello", "to stdout", "again", "panic in panic: at the disco", "main.Panic("} {
		if !strings.Contains(p.stderr.String(), text) {
			t.Errorf("the log lacks %q", text)
		}
	}
}

func goTestParameters(t *testing.T, p *goTestPeer) {
	for _, row := range []struct{ arguments, want string }{
		{`{"name":"a"}`, `"structuredContent":{"name":"a","when":null,"address":null,"_webhook":null}`},
		{`{"name":"a","big":12345678901234567890.10}`, `"structuredContent":{"name":"a","big":12345678901234567890.10,`},
		{`{"name":"a","big":"<&>"}`, `"big":"<&>"`},
		{`{"name":"a","long":9007199254740993}`, `"long":9007199254740993`},
		{`{"name":"a","loose":9007199254740993}`, `"loose":9007199254740992`},
		{`{"name":"a","_webhook":{"method":"POST"}}`, `"_webhook":{"method":"POST"}`},
		{`{"name":"a","when":"2026-01-02T03:04:05Z","data":"aGk="}`, `"when":"2026-01-02T03:04:05Z"`},
		{`{"name":"a","tags":null,"address":null}`, `"structuredContent":{"name":"a",`},
		{`{"name":"a","address":{"city":"b","next":[{"city":"c"}]}}`, `"address":{"city":"b","next":[{"city":"c"}]}`},
		{`{"name":"a","unknown":[1]}`, `"structuredContent":{"name":"a",`},
		{`{"name":"a","count":300}`, `{"code":-32602,"message":"reading arguments: json: cannot unmarshal number 300 into Go struct field Params.count of type int8"}`},
	} {
		for _, tool := range []string{"echo", "echoValue"} {
			if got := p.call(tool, row.arguments); !strings.Contains(got, row.want) {
				t.Errorf("%s %s answers %s, want %s", tool, row.arguments, got, row.want)
			}
		}
	}
}

func goTestResults(t *testing.T, p *goTestPeer) {
	text := func(s string) string { return `{"content":[{"type":"text","text":` + string(quote(s)) + `}]}` }
	failure := func(s string) string {
		return `{"content":[{"text":` + string(quote(s)) + `,"type":"text"}],"isError":true}`
	}
	for tool, want := range map[string]string{
		"greet":      text("hello embedded"),
		"nothing":    `{"content":[]}`,
		"nil":        text("[]"),
		"null":       `{"content":[]}`,
		"fine":       `{"content":[]}`,
		"text":       text("a <b> & \"c\"\n"),
		"number":     text("1.5"),
		"list":       text("[1,2]"),
		"bytes":      text("aGk="),
		"fail":       failure("no <way>"),
		"onlyFail":   failure("never"),
		"errorValue": `{"content":[{"type":"text","text":"{}"}],"structuredContent":{}}`,
		"panic":      failure("panic: at the disco"),
		"panicError": failure("panic: runtime error: invalid memory address or nil pointer dereference"),
		"goexit":     failure("the method ended its goroutine without returning"),
		"naN":        failure("the result can't be written as JSON: json: unsupported value: NaN"),
		"chan":       failure("the result can't be written as JSON: json: unsupported type: chan int"),
		"print":      text("printed"),
		"read":       text("read "),
		"result":     `{"content":[{"text":"mine","type":"text"}],"isError":true}`,
		"notResult": `{"content":[{"type":"text","text":"{\"content\":[{\"type\":\"text\"}],\"other\":12345678901234567890}"}],` +
			`"structuredContent":{"content":[{"type":"text"}],"other":12345678901234567890}}`,
		"oddContent": `{"content":[{"type":"text","text":"{\"content\":[{\"type\":\"poem\"}]}"}],"structuredContent":{"content":[{"type":"poem"}]}}`,
		"large":      text(strings.Repeat("x", 1<<20)),
	} {
		if got := p.call(tool, "{}"); got != want {
			t.Errorf("%s answers %.300s, want %.300s", tool, got, want)
		}
	}
	if got := p.call("cycle", "{}"); !strings.Contains(got, "can't be written as JSON: json: unsupported value: encountered a cycle") {
		t.Errorf("cycle answers %s", got)
	}
	if got, want := p.call("length", `{"name":"`+strings.Repeat("y", 5<<20)+`"}`), text("5242880"); got != want {
		t.Errorf("length answers %s", got)
	}
}

func goTestProgress(t *testing.T, p *goTestPeer) {
	p.send(`{"jsonrpc":"2.0","id":"x","method":"tools/call","params":{"name":"progress","_meta":{"progressToken":12345678901234567890}}}`)
	for _, want := range []string{
		`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":12345678901234567890,"progress":1,"total":2,"message":"half <way>"}}`,
		`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":12345678901234567890,"progress":2}}`,
		`{"jsonrpc":"2.0","id":"x","result":{"_meta":{"usher/value":3}}}`,
	} {
		if got := p.next(); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	if got := p.call("late", "{}"); got != `{"content":[]}` { // and no report before it
		t.Errorf("late answers %s", got)
	}
	if got := p.call("progress", "{}"); !strings.Contains(got, `"3"`) { // no token, no report
		t.Errorf("progress answers %s", got)
	}
}

func goTestConcurrency(t *testing.T, p *goTestPeer) {
	p.sendCall("1", "meet", "{}")
	p.sendCall("2", "meet", "{}")
	ids := []string{string(field([]byte(p.next()), "id")), string(field([]byte(p.next()), "id"))}
	slices.Sort(ids)
	if !slices.Equal(ids, []string{"1", "2"}) {
		t.Errorf("answers to %q", ids)
	}
	p.sendCall(`"w"`, "wait", "{}")
	p.call("started", "{}")
	p.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"other"}}`)
	p.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"w","reason":"enough"}}`)
	if got := p.call("cancelled", "{}"); !strings.Contains(got, "context canceled") {
		t.Errorf("cancelled answers %s", got)
	}
	p.call("fine", "{}")
}

// goTestAsks is a module that asks its client.
const goTestAsks = `//go:build usher

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sync"
)

type Item struct {
	Item struct {
		Ask    string          ` + "`json:\"ask\"`" + `
		Params json.RawMessage ` + "`json:\"params,omitempty\"`" + `
	} ` + "`json:\"item\"`" + `
}
type asker func(method string, params any) (json.RawMessage, error)

func Ask(p Item, ask asker) (json.RawMessage, error) { return ask(p.Item.Ask, p.Item.Params) }
func Ask_async(ctx context.Context, p *Item, report func(progress, total float64, message string),
	ask func(string, interface{}) (json.RawMessage, error)) (map[string]any, error) {
	answer, err := ask(p.Item.Ask, p.Item.Params)
	return map[string]any{"answer": answer}, err
}
func Careful(p Item, ask asker) (string, error) {
	if _, err := ask(p.Item.Ask, p.Item.Params); err != nil {
		var again struct{ Text string }
		answer, _ := ask("again", nil)
		json.Unmarshal(answer, &again)
		return fmt.Sprintf("%v, then %s", err, again.Text), nil
	}
	return "", nil
}
func Twice(ask asker) ([]json.RawMessage, error) {
	first, _ := ask("first", struct{}{})
	second, err := ask("second", map[string]any(nil))
	return []json.RawMessage{first, nil, second}, err
}

var mu sync.Mutex
var events = []string{}

func Wait(ask asker) error {
	_, err := ask("roots/list", nil)
	mu.Lock()
	events = append(events, err.Error())
	mu.Unlock()
	fmt.Fprintln(os.Stderr, "cleaned up")
	return err
}
func Seen() []string {
	mu.Lock()
	defer mu.Unlock()
	return events
}
func Unwritable(ask asker) error { _, err := ask("x", make(chan int)); return err }
func Many(ask asker) []string {
	texts := make([]string, 20)
	var all sync.WaitGroup
	for i := range texts {
		all.Add(1)
		go func() {
			defer all.Done()
			answer, err := ask("number", map[string]any{"i": i})
			texts[i] = fmt.Sprint(string(answer), err)
		}()
	}
	all.Wait()
	return texts
}

var late asker

func Keep(ask asker) { late = ask }
func Late() error    { _, err := late("late", nil); return err }
`

// goTestAsk is the next line, which must ask the client on behalf of a call. It
// returns the id to answer to, as JSON.
func goTestAsk(p *goTestPeer, call, method, params string) string {
	p.t.Helper()
	line := json.RawMessage(p.next())
	id := string(field(line, "id"))
	got := field(line, "params")
	if !strings.HasPrefix(id, `"ask-`) || stringField(line, "method") != method || string(field(field(got, "_meta"), "usher/call")) != call {
		p.t.Fatalf("got %s, want call %s to ask for %s", line, call, method)
	}
	if params != "" && goTestSorted(p.t, string(got)) != goTestSorted(p.t, params) {
		p.t.Errorf("params are %s, want %s", got, params)
	}
	return id
}

// goTestSorted is JSON with sorted keys, and numbers as they are.
func goTestSorted(t *testing.T, text string) string {
	t.Helper()
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.UseNumber()
	var v any
	if err := decoder.Decode(&v); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return string(marshal(v))
}

// goTestAnswers asks by each kind of method that asks, in one of the languages,
// whose names end as in kinds. What is sent is the same in all.
func goTestAnswers(t *testing.T, p *goTestPeer, kinds ...string) {
	result := func(id, want string) {
		t.Helper()
		line := json.RawMessage(p.next())
		if got := methodResult(field(line, "result")); string(field(line, "id")) != id || !strings.Contains(string(got), want) {
			t.Errorf("got %s, want %s for %s", line, want, id)
		}
	}
	// Answers that nobody waits for say nothing.
	p.send(`{"jsonrpc":"2.0","id":"ask-1","result":{}}` + "\n" + `{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"x"}}` + "\n" +
		`{"jsonrpc":"2.0","id":["ask-1"],"result":{}}` + "\n" + `{"jsonrpc":"2.0","id":{},"result":{}}`)
	for _, kind := range kinds {
		for _, row := range []struct{ id, item, params string }{
			{`7`, `{"ask":"m"}`, `{"_meta":{"usher/call":7}}`},
			{`"é\"7"`, `{"ask":"m","params":{}}`, `{"_meta":{"usher/call":"é\"7"}}`},
			{`8`, `{"ask":"m","params":{"a":[1.5,{"b":null}],"_meta":{"c":"<d>"}}}`, `{"a":[1.5,{"b":null}],"_meta":{"c":"<d>","usher/call":8}}`},
		} {
			p.sendCall(row.id, "ask"+kind, `{"item":`+row.item+`}`)
			ask := goTestAsk(p, row.id, "m", row.params)
			p.send(`{"jsonrpc":"2.0","id":` + ask + `,"result":{"é<":1}}` + "\n" + `{"jsonrpc":"2.0","id":` + ask + `,"result":{"é<":2}}`)
			result(row.id, `{"é<":1}`)
		}
		for answer, want := range map[string]string{
			`"error":{"code":-32601,"message":"no <way>","data":{"n":[1]}}`: `no <way>`,
		} {
			p.sendCall("1", "ask"+kind, `{"item":{"ask":"m"}}`)
			p.send(`{"jsonrpc":"2.0","id":` + goTestAsk(p, "1", "m", "") + `,` + answer + `}`)
			if got := p.next(); !strings.Contains(got, `"text":"`+want+`"`) || !strings.Contains(got, `"isError":true`) {
				t.Errorf("%s: the call ends with %s", answer, got)
			}
		}
		for _, params := range []string{`[1]`, `"text"`, `1`, `true`, `{"_meta":[]}`} {
			if got := p.call("ask"+kind, `{"item":{"ask":"m","params":`+params+`}}`); !strings.Contains(got, `"isError":true`) ||
				!strings.Contains(got, `"ask: params`) || !strings.Contains(got, "must be an object") {
				t.Errorf("params %s: %s", params, got)
			}
		}
	}
	goTestAnswersInTurn(t, p, kinds[0], result)
}

// goTestAnswersInTurn has a method ask again after a refusal and after an
// answer, and two calls ask at once.
func goTestAnswersInTurn(t *testing.T, p *goTestPeer, kind string, result func(id, want string)) {
	answer := func(ask, result string) { p.send(`{"jsonrpc":"2.0","id":` + ask + `,"result":` + result + `}`) }
	p.sendCall("1", "careful"+kind, `{"item":{"ask":"m"}}`)
	p.send(`{"jsonrpc":"2.0","id":` + goTestAsk(p, "1", "m", "") + `,"error":{"code":1,"message":"not now"}}`)
	answer(goTestAsk(p, "1", "again", ""), `{"text":"yes"}`)
	result("1", "not now, then yes")
	p.sendCall("2", "careful"+kind, `{"item":{"ask":"m","params":[]}}`)
	answer(goTestAsk(p, "2", "again", ""), `{"text":"yes"}`)
	result("2", "must be an object")

	p.sendCall("3", "twice"+kind, `{}`)
	answer(goTestAsk(p, "3", "first", ""), `{"n":1}`)
	line := p.next()
	if strings.Contains(line, "notifications/message") { // what the other yields in between
		line = p.next()
	}
	answer(string(field(json.RawMessage(line), "id")), `{"n":2}`)
	result("3", `"[{\"n\":1},null,{\"n\":2}]"`)

	p.sendCall("4", "ask"+kind, `{"item":{"ask":"a"}}`)
	a := goTestAsk(p, "4", "a", "")
	p.sendCall(`"4"`, "ask"+kind, `{"item":{"ask":"b"}}`)
	b := goTestAsk(p, `"4"`, "b", "")
	if a == b {
		t.Errorf("both ask by the id %s", a)
	}
	answer(b, `{"for":"b"}`)
	result(`"4"`, `{"for":"b"}`)
	answer(a, `{"for":"a"}`)
	result("4", `{"for":"a"}`)
}

// goTestAskCancelled cancels a call that asks, and ends stdin under another; seen
// is what the method saw of it.
func goTestAskCancelled(t *testing.T, p *goTestPeer, tool, seen string) {
	p.sendCall(`"w"`, tool, "{}")
	ask := goTestAsk(p, `"w"`, "roots/list", "")
	p.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"w"}}`)
	p.send(`{"jsonrpc":"2.0","id":` + ask + `,"result":{}}`)
	await(t, "the end of "+tool, func() bool { return strings.Contains(p.call("seen", "{}"), seen) })
}

func TestGoModuleAsks(t *testing.T) {
	t.Parallel()
	dir := goTestTree(t, map[string]string{"go.mod": "module example.com/asks\n\ngo 1.22\n", "asks.usher.go": goTestAsks})
	p := goTestStart(t, goTestBuild(t, filepath.Join(dir, "asks.usher.go"), filepath.Join(dir, "cache")))
	goTestAnswers(t, p, "", "_async")
	goTestAskCancelled(t, p, "wait", "context canceled")

	// Numbers keep their digits, there and back.
	const digits = "12345678901234567890.50"
	p.sendCall("18446744073709551616", "ask", `{"item":{"ask":"m","params":{"n":`+digits+`}}}`)
	ask := goTestAsk(p, "18446744073709551616", "m", `{"n":`+digits+`,"_meta":{"usher/call":18446744073709551616}}`)
	p.send(`{"jsonrpc":"2.0","id":` + ask + `,"result":{"n":` + digits + `}}`)
	if got := p.next(); !strings.Contains(got, `"usher/value":{"n":`+digits+`}`) {
		t.Error(got)
	}
	if got := p.call("unwritable", "{}"); !strings.Contains(got, "ask: params can't be written as JSON: json: unsupported type: chan int") {
		t.Error(got)
	}
	p.call("keep", "{}")
	if got := p.call("late", "{}"); !strings.Contains(got, "context canceled") { // and nothing is sent
		t.Error(got)
	}

	// Many at once, answered from the last to the first.
	p.sendCall("1", "many", "{}")
	var answers, want []string
	for i := range 20 {
		line := json.RawMessage(p.next())
		n := string(field(field(line, "params"), "i"))
		answers = append(answers, `{"jsonrpc":"2.0","id":`+string(field(line, "id"))+`,"result":`+n+`}`)
		want = append(want, fmt.Sprintf("%d<nil>", i))
	}
	slices.Reverse(answers)
	p.send(strings.Join(answers, "\n"))
	if got := p.next(); !strings.Contains(got, `"usher/value":`+string(marshal(want))) {
		t.Error(got)
	}

	p.sendCall(`"last"`, "wait", "{}")
	goTestAsk(p, `"last"`, "roots/list", "")
	if p.end(); strings.Count(p.stderr.String(), "cleaned up") != 2 {
		t.Errorf("the log: %s", p.stderr.String())
	}
}

// What a module is built from is seen at each build, and what was built before
// stays what it is.
func TestGoModuleFresh(t *testing.T) {
	t.Parallel()
	dir := goTestTree(t, map[string]string{
		"go.mod":     "module example.com/tree\n\ngo 1.22\n",
		"pkg/pkg.go": "package pkg\n\nconst Word = \"one\"\n",
		"a.usher.go": "//go:build usher\n\npackage main\n\nimport \"example.com/tree/pkg\"\n\nfunc A() string { return pkg.Word }\n",
	})
	module, cache := filepath.Join(dir, "a.usher.go"), filepath.Join(dir, "cache")
	first := goTestBuild(t, module, cache)
	was, err := os.Stat(first)
	if err != nil || was.Mode().Perm()&0o077 != 0 {
		t.Errorf("%v: mode %v", err, was.Mode())
	}
	write(t, filepath.Join(dir, "pkg", "pkg.go"), "package pkg\n\nconst Word = \"two\"\n")
	second := goTestBuild(t, module, cache)
	for binary, want := range map[string]string{first: "one", second: "two"} {
		p := goTestStart(t, binary)
		if got := p.call("a", "{}"); !strings.Contains(got, want) {
			t.Errorf("%s answers %s, want %s", binary, got, want)
		}
		p.end()
	}
	// Side by side: builds of one content have one name.
	others := make(chan string, 2)
	for range 2 {
		go func() {
			binary, err := buildGoFile(context.Background(), cache, module, os.Environ())
			others <- fmt.Sprint(binary, err)
		}()
	}
	if a, b := <-others, <-others; a != b || a != second+"<nil>" {
		t.Errorf("builds side by side: %s and %s, want %s", a, b, second)
	}
	// What nobody has asked for since long goes, of modules that are gone too.
	old := time.Now().Add(-2 * keepBuilds)
	left := filepath.Join(cache, "module-x")
	write(t, left, "")
	for _, path := range []string{left, first} {
		if err := os.Chtimes(path, old, old); err != nil {
			t.Fatal(err)
		}
	}
	goTestBuild(t, module, cache)
	for path, want := range map[string]bool{first: false, second: true, left: false} {
		if _, err := os.Stat(path); (err == nil) != want {
			t.Errorf("%s is there: %v", path, err == nil)
		}
	}
	entries, _ := os.ReadDir(dir)
	if len(entries) != 4 { // go.mod, pkg, a.usher.go, cache
		t.Errorf("the build left something in the tree: %v", entries)
	}
}

// Two modules in one folder don't see each other, and need no go.mod.
func TestGoModuleNames(t *testing.T) {
	t.Parallel()
	const src = "//go:build usher\n\npackage main\n\nvar shared = 1\n\nfunc Same() int { return shared }\n"
	dir := goTestTree(t, map[string]string{"one.usher.go": src, "deploy_plan9.usher.go": strings.Replace(src, "= 1", "= 2", 1)})
	cache := filepath.Join(dir, "cache")
	wants := map[string]string{filepath.Join(dir, "one.usher.go"): `"1"`, filepath.Join(dir, "deploy_plan9.usher.go"): `"2"`}
	for path, want := range wants {
		p := goTestStart(t, goTestBuild(t, path, cache))
		if got := p.call("same", "{}"); !strings.Contains(got, want) {
			t.Errorf("%s answers %s", path, got)
		}
		p.end()
	}
}

func TestGoModuleBuildErrors(t *testing.T) {
	t.Parallel()
	const head = "//go:build usher\n\npackage main\n\n"
	const missing = `a.usher.go:5:8: no required module provides package example.com/tree/none; to add it: go get example.com/tree/none`
	for name, row := range map[string]struct{ mod, src, want string }{
		"types": {"module example.com/tree\n\ngo 1.22\n", head + "import \"os\"\n\nfunc A() int { return \"x\" }\n\nfunc B() { f(1, 2) }\nfunc f() {}\n",
			"a.usher.go:5:8: \"os\" imported and not used\n" +
				"a.usher.go:7:23: cannot use \"x\" (untyped string constant) as int value in return statement\n" +
				"a.usher.go:9:14: too many arguments in call to f have (number, number) want ()"},
		"import":    {"module example.com/tree\n\ngo 1.22\n", head + "import \"example.com/tree/none\"\n", missing},
		"package":   {"module example.com/tree\n\ngo 1.22\n", head + "import _ \"example.com/tree/bad\"\n", "bad/bad.go:3:9: undefined: x"},
		"toolchain": {"module example.com/tree\n\ngo 1.999\n", head, "go: go.mod requires go >= 1.999 (running "},
		"go.mod":    {"nonsense\n", head, "go.mod:1: unknown directive: nonsense"},
		"main":      {"module example.com/tree\n", head + "func main() {}\n", "a.usher.go:5:6: main redeclared in this block the generated main:"},
		"syntax":    {"module example.com/tree\n", head + "func A( {}\n", "a.usher.go:5:9: expected ')', found '{'"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := goTestTree(t, map[string]string{"go.mod": row.mod, "a.usher.go": row.src, "bad/bad.go": "package bad\n\nvar _ = x\n"})
			_, err := buildGoFile(context.Background(), filepath.Join(dir, "cache"), filepath.Join(dir, "a.usher.go"), os.Environ())
			var wrong *goBuildError
			if !errors.As(err, &wrong) {
				t.Fatalf("error is %v", err)
			}
			if got := strings.Join(wrong.Lines, "\n"); !strings.Contains(got, row.want) || strings.Contains(got, "usher__") {
				t.Errorf("lines are\n%s\nwant\n%s", got, row.want)
			}
			if !strings.HasPrefix(err.Error(), wrong.Lines[0]) || strings.Contains(err.Error(), "\n") {
				t.Errorf("error is %q", err)
			}
		})
	}
}

func TestGoModuleNotBuilt(t *testing.T) {
	dir := goTestTree(t, map[string]string{"a.usher.go": "//go:build usher\n\npackage main\n"})
	cache := filepath.Join(dir, "cache")
	ctx, cancel := context.WithCancelCause(context.Background())
	cause := errors.New("enough")
	cancel(cause)
	if _, err := buildGoFile(ctx, cache, filepath.Join(dir, "a.usher.go"), os.Environ()); !errors.Is(err, cause) {
		t.Errorf("error is %v", err)
	}
	if _, err := buildGoFile(context.Background(), cache, filepath.Join(dir, "none.usher.go"), os.Environ()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("error is %v", err)
	}
	t.Setenv("PATH", t.TempDir())
	if _, err := buildGoFile(context.Background(), cache, filepath.Join(dir, "a.usher.go"), os.Environ()); err == nil || !strings.Contains(err.Error(), "install Go from") {
		t.Errorf("error is %v", err)
	}
}

// The go command, which runs what a workspace says (cgo, a toolchain of its own),
// gets no secret of webhooks.
func TestGoCommandGetsNoSecrets(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("no shell")
	}
	dir := goTestTree(t, map[string]string{"a.usher.go": "//go:build usher\n\npackage main\n"})
	seen := filepath.Join(t.TempDir(), "seen")
	write(t, filepath.Join(dir, "bin", "go"), "#!/bin/sh\nenv >'"+seen+"'\nexit 1\n")
	if err := os.Chmod(filepath.Join(dir, "bin", "go"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", filepath.Join(dir, "bin")+":"+os.Getenv("PATH"))
	t.Setenv("GITHUB_WEBHOOK_SECRET", "hidden")
	t.Setenv("stripe_Signing_secret", "hidden")
	t.Setenv("OTHER_SECRET", "shown")
	usher(t, "", "modules", "-base", t.TempDir(), dir)
	if env, err := os.ReadFile(seen); err != nil || strings.Contains(string(env), "hidden") || !strings.Contains(string(env), "OTHER_SECRET=shown") {
		t.Errorf("the go command has (%v)\n%s", err, env)
	}
}

// A module imports what its own Go module and workspace have, and is built for
// this machine whatever the environment says.
func TestGoModuleWorkspace(t *testing.T) {
	t.Parallel()
	dir := goTestTree(t, map[string]string{
		"go.work":        "go 1.22\n\nuse (\n\t./app\n\t./lib\n)\n",
		"app/go.mod":     "module example.com/app\n\ngo 1.22\n",
		"lib/go.mod":     "module example.com/lib\n\ngo 1.22\n",
		"lib/lib.go":     "package lib\n\nimport _ \"embed\"\n\n//go:embed data\nvar Data string\n",
		"lib/data":       "x y",
		"app/a.usher.go": "//go:build usher\n\npackage main\n\nimport \"example.com/lib\"\n\nfunc A() string { return lib.Data }\n",
	})
	binary, err := buildGoFile(context.Background(), filepath.Join(dir, "cache"),
		filepath.Join(dir, "app", "a.usher.go"), append(os.Environ(), "GOOS=plan9", "GOARCH=arm"))
	if err != nil {
		t.Fatal(err)
	}
	p := goTestStart(t, binary)
	if got := p.call("a", "{}"); !strings.Contains(got, "x y") {
		t.Errorf("answer is %s", got)
	}
	p.end()
}

var updateGomodule = flag.Bool("update-gomodule", false, "rewrite the golden files of testdata/gomodule")

func TestGoModuleGolden(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/gomodule/*.go.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no golden files: %v", err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".go.txt")
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			src, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var got bytes.Buffer
			if err := json.Indent(&got, marshal(goTestAskOffer(t, name+".usher.go", string(src))), "", "  "); err != nil {
				t.Fatal(err)
			}
			got.WriteByte('\n')
			path := strings.TrimSuffix(file, ".go.txt") + ".json"
			if *updateGomodule {
				write(t, path, got.String())
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got.Bytes(), want) {
				t.Errorf("%s differs; got:\n%s", path, got.Bytes())
			}
		})
	}
}

func TestGoMethodName(t *testing.T) {
	for fn, want := range map[string]string{
		"HandleContact": "handleContact", "URLFor": "urlFor", "URL": "url", "A": "a", "AB": "ab", "HTTP2Get": "http2Get",
		"GetURL": "getURL", "ABTest": "abTest", "X1": "x1", "Über": "über", "Do_It": "do_It",
	} {
		if got := goMethodName(fn); got != want {
			t.Errorf("%s is %s, want %s", fn, got, want)
		}
	}
}

func TestGoModuleConstraint(t *testing.T) {
	for head, warned := range map[string]bool{
		"//go:build usher\n\n":                 false,
		"// Copyright\n\n//go:build usher\n\n": false,
		"//go:build usher && linux\n\n":        false,
		"":                                     true,
		"// go:build usher\n\n":                true,
		"\uFEFF//go:build usher\r\n\r\n":       false,
	} {
		source, err := parseGoModule("x.usher.go", []byte(head+"package main\n"))
		if err != nil {
			t.Errorf("%q: %v", head, err)
		} else if got := len(source.problems) == 1; got != warned {
			t.Errorf("%q: problems %q", head, source.problems)
		}
	}
}

// goTestFields is structs with fields that hide each other.
const goTestFields = `type (
	A struct {
		X, Y int
		Z    string ` + "`" + `json:"zed"` + "`" + `
	}
	B struct {
		X int ` + "`" + `json:"x"` + "`" + `
		Y int
	}
	C struct {
		A
		B
		W bool
	}
	D struct {
		C
		Y      string ` + "`" + `json:"Y"` + "`" + `
		hidden int
		Skip   int ` + "`" + `json:"-"` + "`" + `
		Dash   int ` + "`" + `json:"-,"` + "`" + `
	}
	E struct {
		Named A
		A     A ` + "`" + `json:"a"` + "`" + `
		T
		N
		U ` + "`" + `json:"u"` + "`" + `
	}
	T []int
	N int
	U struct{ Q int }
	GoTestM map[string]int
	F struct {
		GoTestM
		E
		Bad int ` + "`" + `json:"a,b"` + "`" + `
	}
	G struct {
		A
		H
	}
	H struct{ A }
	I struct {
		J
		K
		L
	}
	J struct{ U }
	K struct{ U }
	L struct{ U }
	O struct {
		A int ` + "`" + `json:"B"` + "`" + `
		B int
		C int ` + "`" + `json:"D"` + "`" + `
		D int
	}
	P struct {
		*P
		B int
	}
)`

// The parameters of a struct are the fields that encoding/json finds in it.
func TestGoModuleFields(t *testing.T) {
	t.Parallel()
	src := "//go:build usher\n\npackage main\n\n" + goTestFields
	names := strings.Split("ACDEFGIOP", "")
	for _, name := range names {
		src += fmt.Sprintf("\nfunc Zero%s(p %s) (%s, error) { return p, nil }\n", name, name, name)
	}
	dir := goTestTree(t, map[string]string{"x.usher.go": src})
	p := goTestStart(t, goTestBuild(t, filepath.Join(dir, "x.usher.go"), filepath.Join(dir, "cache")))
	defer p.end()
	p.send(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`)
	var tools []json.RawMessage
	if err := json.Unmarshal(field(field([]byte(p.next()), "result"), "tools"), &tools); err != nil || len(tools) != len(names) {
		t.Fatalf("%s: %v", tools, err)
	}
	keys := func(raw json.RawMessage) (keys []string) {
		for key := range fields(raw) {
			keys = append(keys, key)
		}
		return keys
	}
	for i, name := range names {
		got := keys(field(field(tools[i], "inputSchema"), "properties"))
		want := keys(field([]byte(p.call("zero"+name, "{}")), "structuredContent"))
		if !slices.Equal(got, want) {
			t.Errorf("%s: fields %q, want %q", name, got, want)
		}
	}
}

// The generated main is Go for whatever is read from a module.
func FuzzParseGoModule(f *testing.F) {
	files, _ := filepath.Glob("testdata/gomodule/*.go.txt")
	for _, file := range files {
		src, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(src)
	}
	f.Fuzz(func(t *testing.T, src []byte) {
		source, err := parseGoModule("x.usher.go", src)
		var wrong *goBuildError
		if err != nil {
			if !errors.As(err, &wrong) || len(wrong.Lines) == 0 {
				t.Errorf("error without lines: %v", err)
			}
			return
		}
		if _, err := parser.ParseFile(token.NewFileSet(), "main.go", source.generateMain(), 0); err != nil {
			t.Error(err)
		}
	})
}
