// Tests of gobuild.go and of the generated main: modules are built, spoken to
// over their pipes, and built again after a change.

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/parser"
	"go/token"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// goTestTree writes files into a new folder whose path has a space in it. What
// is written is a minute old, as stamps of files that change during a build do
// not count.
func goTestTree(t *testing.T, files map[string]string) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	dir = filepath.Join(dir, "work space")
	for name, text := range files {
		goTestWrite(t, filepath.Join(dir, name), text, -time.Minute)
	}
	return dir
}

func goTestWrite(t *testing.T, path, text string, age time.Duration) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	at := time.Now().Add(age)
	for _, path := range []string{path, filepath.Dir(path)} {
		if err := os.Chtimes(path, at, at); err != nil {
			t.Fatal(err)
		}
	}
}

func goTestBuild(t *testing.T, path, cache string) *goBuild {
	t.Helper()
	b, err := buildGoModule(context.Background(), path, cache)
	if err != nil {
		var wrong *goBuildError
		if errors.As(err, &wrong) {
			t.Fatal(strings.Join(wrong.Lines, "\n"))
		}
		t.Fatal(err)
	}
	return b
}

// A goTestPeer is a running module and its client.
type goTestPeer struct {
	t      *testing.T
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *bufio.Scanner
	stderr bytes.Buffer
}

func goTestStart(t *testing.T, binary string) *goTestPeer {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	p := &goTestPeer{t: t, cmd: exec.CommandContext(ctx, binary)}
	p.cmd.Stderr = &p.stderr
	p.in, _ = p.cmd.StdinPipe()
	out, err := p.cmd.StdoutPipe()
	if err == nil {
		err = p.cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	p.out = bufio.NewScanner(out)
	p.out.Buffer(nil, 64<<20)
	return p
}

func (p *goTestPeer) send(line string) {
	p.t.Helper()
	if _, err := io.WriteString(p.in, line+"\n"); err != nil {
		p.t.Fatal(err)
	}
}

func (p *goTestPeer) sendCall(id, tool, arguments string) {
	p.t.Helper()
	p.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":"tools/call","params":{"name":%q,"arguments":%s}}`, id, tool, arguments))
}

// next is the next line that the module writes.
func (p *goTestPeer) next() string {
	p.t.Helper()
	if !p.out.Scan() {
		p.t.Fatalf("the module ended: %v\n%s", p.out.Err(), p.stderr.String())
	}
	return p.out.Text()
}

// call is the result or the error of a call, without the frame around it.
func (p *goTestPeer) call(tool, arguments string) string {
	p.t.Helper()
	p.sendCall("7", tool, arguments)
	line := json.RawMessage(p.next())
	if string(field(line, "id")) != "7" || string(field(line, "jsonrpc")) != `"2.0"` {
		p.t.Fatalf("answer is %s", line)
	}
	if fault := field(line, "error"); fault != nil {
		return string(fault)
	}
	return string(field(line, "result"))
}

// end closes stdin and returns what was written since the last line read.
func (p *goTestPeer) end() string {
	p.t.Helper()
	p.in.Close()
	var rest []string
	for p.out.Scan() {
		rest = append(rest, p.out.Text())
	}
	if err := p.cmd.Wait(); err != nil {
		p.t.Errorf("exit: %v\n%s", err, p.stderr.String())
	}
	return strings.Join(rest, "\n")
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

func goTestCallsModule(t *testing.T) *goBuild {
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
	b := goTestCallsModule(t)
	if len(b.Problems) > 0 {
		t.Errorf("problems: %q", b.Problems)
	}
	p := goTestStart(t, b.Binary)
	// An imported package prints before anything of ours runs: the daemon logs
	// such a line.
	if got := p.next(); got != "greet init" {
		t.Errorf("first line is %s", got)
	}
	p.send(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{}}}`)
	if got, want := p.next(), `{"jsonrpc":"2.0","id":0,"result":{"capabilities":{"tools":{}},"protocolVersion":"2025-06-18",`+
		`"serverInfo":{"name":"_calls_windows","version":"1"}}}`; got != want {
		t.Errorf("initialize answers\n%s, want\n%s", got, want)
	}
	p.send(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	for _, row := range [][2]string{
		{`{"jsonrpc":"2.0","id":"i","method":"initialize","params":{"protocolVersion":"1999-01-01"}}`, `"protocolVersion":"2025-11-25"`},
		{`{"jsonrpc":"2.0","id":"p","method":"ping"}`, `{"jsonrpc":"2.0","id":"p","result":{}}`},
		{`{"jsonrpc":"2.0","id":5,"method":"server/discover"}`, `"error":{"code":-32601,"message":"unknown method \"server/discover\""}`},
		{`{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":"none"}}`, `"error":{"code":-32602,"message":"unknown tool \"none\""}`},
		{`{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":3}}`, `"code":-32602,"message":"reading the parameters`},
		{`{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":"fine"}}`, `{"jsonrpc":"2.0","id":5,"result":{"content":[]}}`},
		{`{"jsonrpc":`, `{"jsonrpc":"2.0","id":null,"error":{"code":-32700,`},
	} {
		p.send(row[0])
		if got := p.next(); !strings.Contains(got, row[1]) {
			t.Errorf("%s answers %s, want %s", row[0], got, row[1])
		}
	}
	p.send(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`)
	if got, want := p.next(), `{"jsonrpc":"2.0","id":1,"result":`+string(marshal(map[string]json.RawMessage{"tools": marshal(b.Tools)}))+`}`; got != want {
		t.Errorf("tools/list answers\n%s, want\n%s", got, want)
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
		{`{"name":"a","unknown":[1],"Name":"b","NAME":"c"}`, `"structuredContent":{"name":"a",`},
		{`{"name":"a","big":12345678901234567890.10}`, `"structuredContent":{"name":"a","big":12345678901234567890.10,`},
		{`{"name":"a","big":"<&>"}`, `"big":"<&>"`},
		{`{"name":"a","long":9007199254740993}`, `"long":9007199254740993`},
		{`{"name":"a","loose":9007199254740993}`, `"loose":9007199254740992`},
		{`{"name":"a","_webhook":{"method":"POST"}}`, `"_webhook":{"method":"POST"}`},
		{`{"name":"a","_Webhook":{"method":"POST"},"_WEBHOOK":{}}`, `"_webhook":null`},
		{`{"name":"a","big":"<","_WEBHOO\u212a":{}}`, `"big":"<","when":null,"address":null,"_webhook":null`},
		{`{"name":"a","when":"2026-01-02T03:04:05Z","data":"aGk="}`, `"when":"2026-01-02T03:04:05Z"`},
		{`{"name":"a","tags":null,"address":null}`, `"structuredContent":{"name":"a",`},
		{`{"name":"a","address":{"city":"b","next":[{"city":"c"}]}}`, `"address":{"city":"b","next":[{"city":"c"}]}`},
		{`{}`, `{"code":-32602,"message":"parameter \"name\" is required","data":{"parameter":"name"}}`},
		{`null`, `arguments: want an object, got null`},
		{`[1]`, `arguments: want an object, got an array`},
		{`{"name":null}`, `parameter \"name\": want a string, got null`},
		{`{"name":1}`, `{"code":-32602,"message":"parameter \"name\": want a string, got a number","data":{"parameter":"name"}}`},
		{`{"name":"a","tags":["x",[],3]}`, `parameter \"tags.1\": want a string, got an array","data":{"parameter":"tags"}`},
		{`{"name":"a","tags":{}}`, `parameter \"tags\": want an array, got an object`},
		{`{"name":"a","address":{}}`, `parameter \"address.city\" is required","data":{"parameter":"address"}`},
		{`{"name":"a","address":{"city":"b","next":[{"city":"b","next":[{"city":{}}]}]}}`, `parameter \"address.next.0.next.0.city\": want a string, got an object`},
		{`{"name":"a","byName":{"k":{"city":true}}}`, `parameter \"byName.k.city\": want a string, got a boolean`},
		{`{"name":"a","count":1.5}`, `parameter \"count\": want an integer, got 1.5`},
		{`{"name":"a","count":"1"}`, `parameter \"count\": want an integer, got a string`},
		{`{"name":"a","count":300}`, `parameter \"count\": want a Go int8, got number 300","data":{"parameter":"count"}`},
		{`{"name":"a","size":-1}`, `parameter \"size\": want an integer of 0 or more, got -1`},
		{`{"name":"a","when":"tomorrow"}`, `parameter \"when\": want a time such as 2006-01-02T15:04:05Z, got \"tomorrow\"`},
		{`{"name":"a","data":"%"}`, `parameter \"data\": want base64`},
	} {
		for _, tool := range []string{"echo", "echoValue"} {
			if got := p.call(tool, row.arguments); !strings.Contains(got, row.want) {
				t.Errorf("%s %s answers %s, want %s", tool, row.arguments, got, row.want)
			}
		}
	}
}

func goTestResults(t *testing.T, p *goTestPeer) {
	text := func(s string) string { return `{"content":[{"text":` + string(quote(s)) + `,"type":"text"}]}` }
	failure := func(s string) string {
		return strings.TrimSuffix(text(s), "}") + `,"isError":true}`
	}
	for tool, want := range map[string]string{
		"greet":      text("hello embedded"),
		"nothing":    `{"content":[]}`,
		"nil":        `{"content":[]}`,
		"null":       `{"content":[]}`,
		"fine":       `{"content":[]}`,
		"text":       text("a <b> & \"c\"\n"),
		"number":     text("1.5"),
		"list":       text("[1,2]"),
		"bytes":      text("aGk="),
		"fail":       failure("no <way>"),
		"onlyFail":   failure("never"),
		"errorValue": `{"content":[{"text":"{}","type":"text"}],"structuredContent":{}}`,
		"panic":      failure("panic: at the disco"),
		"panicError": failure("panic: runtime error: invalid memory address or nil pointer dereference"),
		"goexit":     failure("the method ended its goroutine without returning"),
		"naN":        failure("the result can't be written as JSON: json: unsupported value: NaN"),
		"chan":       failure("the result can't be written as JSON: json: unsupported type: chan int"),
		"print":      text("printed"),
		"read":       text("read "),
		"result":     `{"content":[{"text":"mine","type":"text"}],"isError":true}`,
		"notResult": `{"content":[{"text":"{\"content\":[{\"type\":\"text\"}],\"other\":12345678901234567890}","type":"text"}],` +
			`"structuredContent":{"content":[{"type":"text"}],"other":12345678901234567890}}`,
		"oddContent": `{"content":[{"text":"{\"content\":[{\"type\":\"poem\"}]}","type":"text"}],"structuredContent":{"content":[{"type":"poem"}]}}`,
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
		`{"jsonrpc":"2.0","id":"x","result":{"content":[{"text":"3","type":"text"}]}}`,
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
	// The cancelled call has returned by now, or will: either way the next line
	// is the answer to this one.
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
	ask func(string, interface{}) ([]byte, error)) (map[string]any, error) {
	answer, err := ask(p.Item.Ask, p.Item.Params)
	return map[string]any{"answer": json.RawMessage(answer)}, err
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
		got := p.next()
		if string(field(json.RawMessage(got), "id")) != id || !strings.Contains(got, want) {
			t.Errorf("got %s, want %s for %s", got, want, id)
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
			`"error":{"code":-1}`: "the client refused without a message",
			`"error":"odd"`:       "the client refused without a message",
			`"other":1`:           "the client's answer has no result",
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
	p.call("seen", "{}") // and no answer before this one
}

func TestGoModuleAsks(t *testing.T) {
	t.Parallel()
	dir := goTestTree(t, map[string]string{"go.mod": "module example.com/asks\n\ngo 1.22\n", "asks.usher.go": goTestAsks})
	b := goTestBuild(t, filepath.Join(dir, "asks.usher.go"), filepath.Join(dir, "cache"))
	if len(b.Problems) > 0 {
		t.Fatalf("problems: %q", b.Problems)
	}
	p := goTestStart(t, b.Binary)
	goTestAnswers(t, p, "", "_async")
	goTestAskCancelled(t, p, "wait", "context canceled")

	// Numbers keep their digits, there and back.
	const digits = "12345678901234567890.50"
	p.sendCall("18446744073709551616", "ask", `{"item":{"ask":"m","params":{"n":`+digits+`}}}`)
	ask := goTestAsk(p, "18446744073709551616", "m", `{"n":`+digits+`,"_meta":{"usher/call":18446744073709551616}}`)
	p.send(`{"jsonrpc":"2.0","id":` + ask + `,"result":{"n":` + digits + `}}`)
	if got := p.next(); !strings.Contains(got, `"structuredContent":{"n":`+digits+`}`) {
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
	if got := p.next(); !strings.Contains(got, string(quote(string(marshal(want))))) {
		t.Error(got)
	}

	p.sendCall(`"last"`, "wait", "{}")
	goTestAsk(p, `"last"`, "roots/list", "")
	if p.end(); strings.Count(p.stderr.String(), "cleaned up") != 2 {
		t.Errorf("the log: %s", p.stderr.String())
	}
}

func TestGoModuleStamps(t *testing.T) {
	t.Parallel()
	dir := goTestTree(t, map[string]string{
		"go.mod":       "module example.com/tree\n\ngo 1.22\n",
		"pkg/pkg.go":   "package pkg\n\nconst Word = \"one\"\n",
		"a.usher.go":   "//go:build usher\n\npackage main\n\nimport \"example.com/tree/pkg\"\n\nfunc A() string { return pkg.Word }\n",
		"plain/run.go": "package plain\n",
	})
	module, pkg, cache := filepath.Join(dir, "a.usher.go"), filepath.Join(dir, "pkg", "pkg.go"), filepath.Join(dir, "cache")
	first := goTestBuild(t, module, cache)
	if stale := goTestStale(first); len(stale) > 0 {
		t.Fatalf("stale at once: %q", stale)
	}
	data, err := json.Marshal(first)
	var read goBuild
	if err == nil {
		err = json.Unmarshal(data, &read)
	}
	if err != nil || len(goTestStale(&read)) > 0 || !bytes.Contains(data, []byte(`{"p":"`)) {
		t.Errorf("read again from %s: %v", data, err)
	}
	// The same content under a new time: looked at again, but not built again.
	goTestWrite(t, pkg, "package pkg\n\nconst Word = \"one\"\n", -time.Second)
	if stale := goTestStale(first); !slices.Equal(stale, []string{filepath.Dir(pkg), pkg}) {
		t.Errorf("after a touch, stale are %q", stale)
	}
	info, _ := os.Stat(first.Binary)
	second := goTestBuild(t, module, cache)
	again, err := os.Stat(second.Binary)
	if err != nil || second.Binary != first.Binary || !os.SameFile(info, again) {
		t.Errorf("a touched import was built again: %v", err)
	}
	// Other content: another binary, while the first stays where it was.
	goTestWrite(t, pkg, "package pkg\n\nconst Word = \"two\"\n", 0)
	third := goTestBuild(t, module, cache)
	if third.Binary == first.Binary {
		t.Error("a changed import made no other binary")
	}
	if _, err := os.Stat(first.Binary); err != nil {
		t.Errorf("the binary that may be running is gone: %v", err)
	}
	p := goTestStart(t, third.Binary)
	if got := p.call("a", "{}"); !strings.Contains(got, "two") {
		t.Errorf("answer is %s", got)
	}
	p.end()
	// A new file beside the import, and a go.mod between it and the module.
	for _, name := range []string{"pkg/more.go", "go.work", "go.mod", "go.sum"} {
		b := goTestBuild(t, module, cache)
		path := filepath.Join(dir, name)
		if !slices.ContainsFunc(b.Inputs, func(s fileStamp) bool { return s.Path == path || s.Path == filepath.Dir(path) }) {
			t.Errorf("%s is not watched", name)
		}
	}
	entries, _ := os.ReadDir(dir)
	if len(entries) != 5 { // go.mod, pkg, plain, a.usher.go, cache
		t.Errorf("the build left something in the tree: %v", entries)
	}
}

func goTestStale(b *goBuild) []string {
	var stale []string
	for _, s := range b.Inputs {
		if !s.current() {
			stale = append(stale, s.Path)
		}
	}
	slices.Sort(stale)
	return stale
}

// A file that changes after the build began has a stamp that is never current,
// because it may change again within the clock's grain.
func TestGoModuleRacyStamp(t *testing.T) {
	t.Parallel()
	dir := goTestTree(t, map[string]string{"a.usher.go": "package foo\n"})
	path := filepath.Join(dir, "a.usher.go")
	// But one that is dated far ahead, as an archive of another time zone has it,
	// gets another stamp by any change, and must not be built again for ever.
	for ahead, current := range map[time.Duration]bool{10 * time.Second: false, time.Hour: true} {
		goTestWrite(t, path, "package foo\n", ahead)
		b, err := buildGoModule(context.Background(), path, filepath.Join(dir, "cache"))
		if err == nil || len(b.Inputs) != 1 || b.Inputs[0].current() != current {
			t.Errorf("%v ahead: inputs %v, error %v", ahead, b.Inputs, err)
		}
	}
}

// Two modules in one folder don't see each other, need no go.mod, and may be
// links.
func TestGoModuleNames(t *testing.T) {
	t.Parallel()
	const src = "//go:build usher\n\npackage main\n\nvar shared = 1\n\nfunc Same() int { return shared }\n"
	dir := goTestTree(t, map[string]string{"one.usher.go": src, "deploy_plan9.usher.go": strings.Replace(src, "= 1", "= 2", 1)})
	cache := filepath.Join(dir, "cache")
	link := filepath.Join(dir, "elsewhere", "linked.usher.go")
	os.Mkdir(filepath.Dir(link), 0o755)
	wants := map[string]string{filepath.Join(dir, "one.usher.go"): `"1"`, filepath.Join(dir, "deploy_plan9.usher.go"): `"2"`}
	if err := os.Symlink(filepath.Join("..", "one.usher.go"), link); err == nil {
		wants[link] = `"1"`
	}
	for path, want := range wants {
		b := goTestBuild(t, path, cache)
		p := goTestStart(t, b.Binary)
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
		"syntax":    {"module example.com/tree\n", head + "func A( {}\n", "a.usher.go:5:9: expected ')', found '{'"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := goTestTree(t, map[string]string{"go.mod": row.mod, "a.usher.go": row.src, "bad/bad.go": "package bad\n\nvar _ = x\n"})
			b, err := buildGoModule(context.Background(), filepath.Join(dir, "a.usher.go"), filepath.Join(dir, "cache"))
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
			if stale := goTestStale(b); len(b.Inputs) == 0 || len(stale) > 0 {
				t.Errorf("inputs %v, stale %q", b.Inputs, stale)
			}
			if name == "import" { // the remedy is noticed
				goTestWrite(t, filepath.Join(dir, "none", "none.go"), "package none\n", -time.Minute)
				if len(goTestStale(b)) == 0 {
					t.Error("a package that came to be is not noticed")
				}
			}
		})
	}
}

func TestGoModuleCancelled(t *testing.T) {
	t.Parallel()
	dir := goTestTree(t, map[string]string{"a.usher.go": "//go:build usher\n\npackage main\n"})
	ctx, cancel := context.WithCancelCause(context.Background())
	cause := errors.New("enough")
	cancel(cause)
	if _, err := buildGoModule(ctx, filepath.Join(dir, "a.usher.go"), filepath.Join(dir, "cache")); !errors.Is(err, cause) {
		t.Errorf("error is %v", err)
	}
	if _, err := buildGoModule(context.Background(), filepath.Join(dir, "none.usher.go"), dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("error is %v", err)
	}
}

func TestGoModuleWithoutGo(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	dir := goTestTree(t, map[string]string{"a.usher.go": "//go:build usher\n\npackage main\n"})
	_, err := buildGoModule(context.Background(), filepath.Join(dir, "a.usher.go"), filepath.Join(dir, "cache"))
	if err == nil || !strings.Contains(err.Error(), "install Go from") {
		t.Errorf("error is %v", err)
	}
}

func TestGoModuleWorkspace(t *testing.T) {
	t.Parallel()
	dir := goTestTree(t, map[string]string{
		"go.work":        "go 1.22\n\nuse (\n\t./app\n\t./lib\n)\n",
		"app/go.mod":     "module example.com/app\n\ngo 1.22\n",
		"lib/go.mod":     "module example.com/lib\n\ngo 1.22\n",
		"lib/lib.go":     "package lib\n\nimport _ \"embed\"\n\n//go:embed data\nvar Data string\n",
		"lib/data":       "x",
		"app/a.usher.go": "//go:build usher\n\npackage main\n\nimport \"example.com/lib\"\n\nfunc A() string { return lib.Data }\n",
	})
	b := goTestBuild(t, filepath.Join(dir, "app", "a.usher.go"), filepath.Join(dir, "cache"))
	for _, name := range []string{"go.work", "go.work.sum", "app/go.work", "app/go.mod", "app/go.sum", "lib", "lib/go.mod", "lib/lib.go", "lib/data"} {
		if !slices.ContainsFunc(b.Inputs, func(s fileStamp) bool { return s.Path == filepath.Join(dir, name) }) {
			t.Errorf("%s is not watched", name)
		}
	}
}

func TestGoEnvKey(t *testing.T) {
	t.Setenv("GOFLAGS", "-tags=x")
	before := goEnvKey()
	t.Setenv("UNRELATED", "x")
	if goEnvKey() != before {
		t.Error("an unrelated variable changes the key")
	}
	for _, name := range []string{"GOFLAGS", "GOOS", "GOARCH", "CGO_ENABLED", "GOWORK", "GOTOOLCHAIN", "GOEXPERIMENT", "GOPATH", "GOMODCACHE"} {
		t.Run(name, func(t *testing.T) {
			if t.Setenv(name, "other"); goEnvKey() == before {
				t.Errorf("%s does not change the key", name)
			}
		})
	}
}

// The shim is read by people, and must not use a name that modules often take.
func TestGoMainText(t *testing.T) {
	fset := token.NewFileSet()
	if _, err := parser.ParseFile(fset, "main.go", goMainText, parser.SkipObjectResolution); err != nil {
		t.Fatal(err)
	}
	names := slices.DeleteFunc(slices.Sorted(maps.Keys(goReservedNames())), func(name string) bool {
		return strings.HasPrefix(name, "usher__")
	})
	want := "append bool byte error false float64 int len make nil recover string true"
	if got := strings.Join(names, " "); got != want {
		t.Errorf("the generated main uses %s, want %s", got, want)
	}
}

// BenchmarkGoModule measures a build after a change, one after a touch, and the
// look that needs no process.
func BenchmarkGoModule(b *testing.B) {
	dir := b.TempDir()
	path, cache := filepath.Join(dir, "a.usher.go"), filepath.Join(dir, "cache")
	build := func(n int) *goBuild {
		src := fmt.Sprintf("//go:build usher\n\npackage main\n\nfunc A() int { return %d }\n", n)
		if err := os.WriteFile(path, []byte(src), 0o644); err != nil {
			b.Fatal(err)
		}
		built, err := buildGoModule(context.Background(), path, cache)
		if err != nil {
			b.Fatal(err)
		}
		return built
	}
	n := 0
	b.Run("changed", func(b *testing.B) {
		for b.Loop() {
			n++
			build(n)
		}
	})
	b.Run("touched", func(b *testing.B) {
		for b.Loop() {
			build(n)
		}
	})
	b.Run("stamps", func(b *testing.B) {
		built := build(n)
		for b.Loop() {
			for _, s := range built.Inputs {
				s.current()
			}
		}
	})
}
