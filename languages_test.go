// All languages side by side: one contact form, written in each, is one tool to
// a client and one webhook to a website.

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// modulePeer is a running module, spoken to over its stdin and stdout.
type modulePeer struct {
	t      *testing.T
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *bufio.Scanner
	stderr bytes.Buffer
}

// start starts the module's process.
func (p *modulePeer) start() {
	p.t.Helper()
	p.cmd.Stderr = &p.stderr
	p.in, _ = p.cmd.StdinPipe()
	out, err := p.cmd.StdoutPipe()
	if err == nil {
		err = p.cmd.Start()
	}
	if err != nil {
		p.t.Fatal(err)
	}
	p.out = bufio.NewScanner(out)
	p.out.Buffer(nil, 128<<20)
}

// A shimPeer speaks with the process of a module as the daemon does: it checks
// the arguments of calls, and makes the results.
type shimPeer struct {
	modulePeer
	methods   map[string]*Method
	cancelled int // calls that were, and have ended
}

// shimCommand runs a file by its language's shim, as launchFile has it.
func shimCommand(t *testing.T, kind Kind, file string) *exec.Cmd {
	t.Helper()
	file, err := filepath.Abs(file)
	if err != nil {
		t.Fatal(err)
	}
	l, err := launchFile(kind, file, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, l.Path, l.Args...)
	cmd.Dir = l.Dir
	return cmd
}

func startShim(t *testing.T, kind Kind, file string) *shimPeer {
	t.Helper()
	p := &shimPeer{modulePeer{t: t, cmd: shimCommand(t, kind, file)}, make(map[string]*Method), 0}
	p.start()
	var tools []json.RawMessage
	if err := json.Unmarshal(field(p.request("tools/list", "{}"), "tools"), &tools); err != nil {
		t.Fatal(err)
	}
	for _, tool := range tools {
		m, _, err := parseMethod(tool, kind.docRules())
		if err != nil {
			t.Fatal(err)
		}
		p.methods[m.Name] = m
	}
	return p
}

func (p *modulePeer) send(line string) {
	p.t.Helper()
	if _, err := io.WriteString(p.in, line+"\n"); err != nil {
		p.t.Fatal(err)
	}
}

func (p *modulePeer) sendCall(id, tool, arguments string) {
	p.t.Helper()
	p.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":"tools/call","params":{"name":%q,"arguments":%s}}`, id, tool, arguments))
}

// next is the next line that the module writes.
func (p *modulePeer) next() string {
	p.t.Helper()
	if !p.out.Scan() {
		p.t.Fatalf("the module ended: %v\n%s", p.out.Err(), p.stderr.String())
	}
	return p.out.Text()
}

// answer is the result of the call that the next line answers, and that call's id.
func (p *shimPeer) answer() (id, result string) {
	p.t.Helper()
	line := json.RawMessage(p.next())
	for string(field(line, "result")) == "{}" { // a cancelled call has ended
		p.cancelled++
		line = json.RawMessage(p.next())
	}
	if e := field(line, "error"); e != nil {
		return string(field(line, "id")), string(e)
	}
	return string(field(line, "id")), string(methodResult(field(line, "result")))
}

// call is the result of a call.
func (p *shimPeer) call(tool, arguments string) string {
	p.t.Helper()
	checked := json.RawMessage(arguments)
	if m := p.methods[tool]; m != nil {
		var err error
		if checked, err = m.checkArguments(checked); err != nil {
			return string(failure(err.Error()))
		}
	}
	p.sendCall("7", tool, string(checked))
	id, result := p.answer()
	if id != "7" {
		p.t.Fatalf("%s: answer is for %s: %s", tool, id, result)
	}
	return result
}

// request is the result of a request.
func (p *shimPeer) request(method, params string) json.RawMessage {
	p.t.Helper()
	p.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":0,"method":%q,"params":%s}`, method, params))
	line := json.RawMessage(p.next())
	if field(line, "result") == nil {
		p.t.Fatalf("%s: %s", method, line)
	}
	return field(line, "result")
}

// end closes stdin and returns what was written since the last line read.
func (p *modulePeer) end() string {
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

func shownText(text string) string     { return string(toolResult(quote(text))) }
func shownObject(object string) string { return string(toolResult(json.RawMessage(object))) }
func shownFailure(text string) string  { return string(failure(text)) }

var updateGolden = flag.Bool("update-golden", false, "rewrite the golden files of testdata/python and testdata/node")

// What each file is to usher: its methods, with types and documentation.
func TestShimGolden(t *testing.T) {
	for _, pattern := range []string{"testdata/python/*.usher.py", "testdata/node/*.usher.*s"} {
		files, _ := filepath.Glob(pattern)
		if len(files) == 0 {
			t.Fatal("no files")
		}
		for _, file := range files {
			golden := file + ".json"
			if _, err := os.Stat(golden); err != nil {
				continue
			}
			t.Run(filepath.Base(file), func(t *testing.T) {
				kind := needLanguage(t, file)
				p := startShim(t, kind, file)
				about := p.request("initialize", `{}`)
				tools := p.request("tools/list", `{}`)
				p.end()
				var got bytes.Buffer
				err := json.Indent(&got, object{{"about", quote(firstSentence(stringField(about, "instructions")))}, {"tools", field(tools, "tools")}}.encode(), "", "  ")
				if err != nil {
					t.Fatal(err)
				}
				got.WriteByte('\n')
				if *updateGolden {
					write(t, golden, got.String())
				}
				if want, err := os.ReadFile(golden); err != nil || !bytes.Equal(got.Bytes(), want) {
					t.Errorf("%s differs (%v); got:\n%s", golden, err, got.Bytes())
				}
			})
		}
	}
}

// needLanguage is the kind of a file, whose language must be here.
func needLanguage(t *testing.T, file string) Kind {
	t.Helper()
	switch filepath.Ext(file) {
	case ".py":
		pythonTestVersion(t)
		return kindPython
	case ".ts", ".mts":
		nodeTestTyped(t)
	default:
		nodeTestVersion(t)
	}
	return kindNode
}

// nextAsk is the next line, which must ask the client on behalf of a call. It
// returns the id to answer to, as JSON.
func (p *shimPeer) nextAsk(call, method, params string) string {
	p.t.Helper()
	line := json.RawMessage(p.next())
	got := field(line, "params")
	if stringField(line, "method") != method || string(field(field(got, "_meta"), "usher/call")) != call {
		p.t.Fatalf("got %s, want call %s to ask for %s", line, call, method)
	}
	if params != "" && string(got) != params {
		p.t.Errorf("params are %s, want %s", got, params)
	}
	return string(field(line, "id"))
}

func (p *shimPeer) reply(ask, result string) {
	p.t.Helper()
	p.send(`{"jsonrpc":"2.0","id":` + ask + `,"result":` + result + `}`)
}

func (p *shimPeer) wantAnswer(id, want string) {
	p.t.Helper()
	if got, result := p.answer(); got != id || !strings.Contains(result, want) {
		p.t.Errorf("got %s for %s, want %s for %s", result, got, want, id)
	}
}

// Generators ask the client by what they yield.
func TestShimAsks(t *testing.T) {
	t.Parallel()
	for file, seen := range map[string][2]string{
		"testdata/python/asks.usher.py": {"GeneratorExit", "async GeneratorExit"},
		"testdata/node/asks.usher.js":   {`returned\"`, "returned async"},
	} {
		t.Run(filepath.Base(file), func(t *testing.T) {
			t.Parallel()
			p := startShim(t, needLanguage(t, file), file)
			for i, kind := range []string{"", "_async"} {
				p.testAsks(kind)
				// A call that is cancelled ends where it asks, and says only that.
				p.sendCall("9", "wait"+kind, "{}")
				ask := p.nextAsk("9", "roots/list", "")
				p.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":9}}`)
				p.reply(ask, "{}")
				await(t, "the end of wait"+kind, func() bool { return strings.Contains(p.call("seen", "{}"), seen[i]) && p.cancelled > i })
			}
			if got := p.call("ask", `{"item":{"ask":"m","other":1}}`); got != shownObject(`{"ask":"m","other":1}`) { // a value like any other
				t.Error(got)
			}
			p.sendCall("8", "wait", "{}")
			p.sendCall("10", "wait_async", "{}")
			p.next()
			p.next()
			start := time.Now()
			if rest := p.end(); rest != "" || time.Since(start) > 2*time.Second {
				t.Errorf("after %v: %s", time.Since(start), rest)
			}
			if log := p.stderr.String(); strings.Contains(log, "never") || strings.Contains(log, "in drain") {
				t.Errorf("the log: %s", log)
			}
		})
	}
}

// testAsks asks by the methods whose names end in kind.
func (p *shimPeer) testAsks(kind string) {
	for item, params := range map[string]string{
		`{"ask":"m"}`:             `{"_meta":{"usher/call":7}}`,
		`{"ask":"m","params":{}}`: `{"_meta":{"usher/call":7}}`,
		`{"ask":"m","params":{"a":[1.5,{"b":null}],"_meta":{"c":"<d>"}}}`: `{"a":[1.5,{"b":null}],"_meta":{"c":"<d>","usher/call":7}}`,
	} {
		p.sendCall("7", "ask"+kind, `{"item":`+item+`}`)
		ask := p.nextAsk("7", "m", params)
		p.reply(ask, `{"é<":1}`)
		p.reply(ask, `{"é<":2}`) // nobody waits for it
		p.wantAnswer("7", `{"é<":1}`)
	}
	p.sendCall("1", "ask"+kind, `{"item":{"ask":"m"}}`)
	p.send(`{"jsonrpc":"2.0","id":` + p.nextAsk("1", "m", "") + `,"error":{"code":-32601,"message":"no <way>","data":{"n":[1]}}}`)
	p.wantAnswer("1", `no <way>"}],"isError":true`)
	for _, params := range []string{`[1]`, `"text"`, `1`, `true`, `null`} {
		if got := p.call("ask"+kind, `{"item":{"ask":"m","params":`+params+`}}`); !strings.Contains(got, `ask: params must be an object`) || !strings.Contains(got, `"isError":true`) {
			p.t.Errorf("params %s: %s", params, got)
		}
	}

	// It may ask again, after a refusal and after an answer.
	p.sendCall("1", "careful"+kind, `{"item":{"ask":"m"}}`)
	p.send(`{"jsonrpc":"2.0","id":` + p.nextAsk("1", "m", "") + `,"error":{"code":1,"message":"not now"}}`)
	p.reply(p.nextAsk("1", "again", ""), `{"text":"yes"}`)
	p.wantAnswer("1", "not now, then yes")
	p.sendCall("3", "twice"+kind, `{}`)
	p.reply(p.nextAsk("3", "first", ""), `{"n":1}`)
	line := p.next()
	if strings.Contains(line, "notifications/message") { // what the other yields in between
		line = p.next()
	}
	p.reply(string(field(json.RawMessage(line), "id")), `{"n":2}`)
	p.wantAnswer("3", `[{\"n\":1},null,{\"n\":2}]`)

	// Two calls ask at once.
	p.sendCall("4", "ask"+kind, `{"item":{"ask":"a"}}`)
	a := p.nextAsk("4", "a", "")
	p.sendCall("5", "ask"+kind, `{"item":{"ask":"b"}}`)
	b := p.nextAsk("5", "b", "")
	p.reply(b, `{"for":"b"}`)
	p.wantAnswer("5", `{"for":"b"}`)
	p.reply(a, `{"for":"a"}`)
	p.wantAnswer("4", `{"for":"a"}`)
}

// hostedModules are one module in each language that a shim runs.
var hostedModules = map[string]string{
	".py": `"""Is hosted. Here."""
import os

count = 0

def add(by: int = 1):
    """Adds."""
    global count
    count += by
    return {"count": count}

def walk(steps: int):
    for n in range(steps):
        yield {"progress": n + 1, "total": steps}
        yield {"log": f"step {n}"}
    return "there"

def crash(): os._exit(3)

def rows(rows: list[int]): return rows

def handleForm(text: str, _webhook=None):
    """Takes a form.

    :param text: what it says
    """
    return {"text": text, "own": _webhook and _webhook["headers"]["x-own"]}

def version(): return 1
`,
	".js": `// Is hosted. Here.
let count = 0
/**
 * Adds.
 * @param {integer} [by=1] how much
 */
export function add({ by = 1 }) { return { count: count += by } }
export function* walk({ steps }) {
  for (let n = 0; n < steps; n++) {
    yield { progress: n + 1, total: steps }
    yield { log: 'step ' + n }
  }
  return 'there'
}
export const crash = () => process.exit(3)
/** @param {integer[]} p.rows */
export const rows = (p) => p.rows
/** @param {{ text: string }} params */
export function handleForm(params) { return { text: params.text, own: params._webhook?.headers['x-own'] ?? null } }
export const version = () => 1
`,
}

func TestHosted(t *testing.T) {
	t.Parallel()
	for ending, text := range hostedModules {
		t.Run(ending, func(t *testing.T) {
			t.Parallel()
			needLanguage(t, ending)
			dir := t.TempDir()
			file := filepath.Join(dir, "m.usher"+ending)
			write(t, file, text)
			d := startDaemon(t, dir)
			c := connect(t, d.URL)
			c.awaitTools("m_add", "m_crash", "m_handleForm", "m_rows", "m_version", "m_walk")
			for _, row := range []struct{ tool, arguments, want string }{
				{"m_add", `{"by":2}`, `{"count":2}`},
				{"m_add", ``, `{"count":3}`},
				{"m_add", `{"by":null}`, `{"count":4}`},
				{"m_handleForm", `{"text":"t","_webhook":{"headers":{"x-own":"forged"}}}`, `{"text":"t","own":null}`},
				{"m_add", `{"by":"2"}`, `parameter "by": want an integer, got a string`},
				{"m_handleForm", `{}`, `parameter "text" is required: a string`},
				{"m_handleForm", `{"text":1}`, `parameter "text": want a string, got an integer`},
				{"m_rows", `{"rows":[1,"x"]}`, `parameter "rows.1": want an integer, got a string`},
				{"m_crash", ``, `module "m" crashed (exit status 3); the next call starts it again`},
				{"m_add", ``, `{"count":1}`},
			} {
				if got := resultText(c.call(row.tool, row.arguments).result()); got != row.want {
					t.Errorf("%s(%s) is %s, want %s", row.tool, row.arguments, got, row.want)
				}
			}
			a := c.ask("tools/call", `{"name":"m_walk","arguments":{"steps":2},"_meta":{"progressToken":"mine"}}`)
			if len(a.Events) != 5 || string(field(field(a.Events[2], "params"), "progress")) != "2" || stringField(field(a.Events[0], "params"), "progressToken") != "mine" ||
				stringField(field(a.Events[1], "params"), "data") != "step 0" || resultText(a.result()) != "there" {
				t.Errorf("progress: %s", a.Body)
			}
			for body, want := range map[string]string{
				`{"text":"by hook"}`:           `200 {"text":"by hook","own":"seen"}`,
				`{"text":"t","_webhook":null}`: `200 {"text":"t","own":"seen"}`,
				`{}`:                           `400 {"error":"parameter \"text\" is required: a string"}`,
			} {
				req, _ := http.NewRequest(http.MethodPost, d.URL+"webhook/m/handleForm", strings.NewReader(body))
				req.Header.Set("Content-Type", "application/json")
				req.Header.Set("X-Own", "seen")
				if a := c.do(req); fmt.Sprint(a.Status, " ", strings.TrimSpace(a.Body)) != want {
					t.Errorf("webhook %s: %d %s, want %s", body, a.Status, a.Body, want)
				}
			}

			// It changes while it is served: to a new version, to a broken one, and to one that works again.
			version := func(want string) func() bool {
				return func() bool { return resultText(c.call("m_version", "").result()) == want }
			}
			last := strings.TrimSpace(text[strings.LastIndex(strings.TrimSpace(text), "\n"):])
			edit := func(number string) string {
				return strings.Replace(text, last, strings.TrimSuffix(last, "1")+number, 1)
			}
			await(t, "version 1", version("1"))
			write(t, file, edit("22"))
			await(t, "version 22", version("22"))
			write(t, file, text+map[string]string{".py": "def broken(:\n", ".js": "export function broken( {"}[ending])
			place := fmt.Sprintf("m.usher%s:%d: SyntaxError", ending, strings.Count(text, "\n")+1)
			await(t, "the report of the failure", func() bool { return strings.Contains(d.Log.String(), place) })
			if !version("22")() {
				t.Error("the last good version does not go on")
			}
			write(t, file, edit("333"))
			await(t, "version 333", version("333"))
		})
	}
}

// What usher new writes works as it says.
func TestShimStarters(t *testing.T) {
	for _, ending := range []string{".py", ".js", ".ts"} {
		t.Run(ending, func(t *testing.T) {
			needLanguage(t, ending)
			dir := t.TempDir()
			var out, log output
			if code := run(context.Background(), []string{"new", filepath.Join(dir, "hello.usher"+ending)}, strings.NewReader(""), &out, &log, noEnv); code != 0 {
				t.Fatal(log.String())
			}
			c := connect(t, startDaemon(t, dir).URL)
			c.awaitTools("hello_greet")
			for _, row := range []struct{ arguments, want string }{
				{`{"name":"Ada"}`, `{"text":"Hello, Ada!","times":1,"greeted":1}`},
				{`{"name":"Ada","times":2}`, `{"text":"Hello, Ada!","times":2,"greeted":3}`},
				{`{"name":""}`, "name is empty"},
				{`{}`, `parameter "name" is required: a string`},
			} {
				if got := resultText(c.call("hello_greet", row.arguments).result()); got != row.want {
					t.Errorf("%s: %s", row.arguments, got)
				}
			}
		})
	}
}

// languages is the modules of testdata/languages that can run here, and what
// each needs.
func languages(t *testing.T) (dir string, names []string) {
	t.Helper()
	dir = t.TempDir()
	for name, program := range map[string]string{"go.usher.go": "go", "py.usher.py": "python3", "js.usher.js": "node", "ts.usher.ts": "node", "sh.usher.sh": "sh"} {
		if _, err := exec.LookPath(program); err != nil {
			if os.Getenv("CI_REQUIRE") != "" {
				t.Fatalf("CI needs %s", program)
			}
			t.Logf("%s is left out: no %s here", name, program)
			continue
		}
		if strings.HasSuffix(name, ".ts") && exec.Command(program, "-e", "process.exit(require('node:module').stripTypeScriptTypes ? 0 : 1)").Run() != nil {
			if os.Getenv("CI_REQUIRE") != "" {
				t.Fatal("CI needs a node that strips types")
			}
			t.Logf("%s is left out: this node does not strip types", name)
			continue
		}
		text, err := os.ReadFile("testdata/languages/" + name)
		if err != nil {
			t.Fatal(err)
		}
		write(t, dir+"/"+name, string(text))
		label, _, _ := strings.Cut(name, ".")
		names = append(names, label)
	}
	slices.Sort(names)
	return dir, names
}

func TestOneFormInEachLanguage(t *testing.T) {
	t.Parallel()
	dir, names := languages(t)
	d := startDaemon(t, dir)
	c := connect(t, d.URL)
	var tools []string
	for _, name := range names {
		tools = append(tools, name+"_handleContact", name+"_pause")
	}
	c.awaitTools(tools...)

	var list struct{ Tools []json.RawMessage }
	if err := json.Unmarshal(c.ask("tools/list", "").result(), &list); err != nil {
		t.Fatal(err)
	}
	const schema = `{"type":"object","properties":{"email":{"type":"string","description":"where to answer"},"message":{"type":"string","description":"what it is about"},"copies":{"type":"integer","description":"how many to send"}},"required":["email","message"]}`
	for _, tool := range list.Tools {
		if name := stringField(tool, "name"); strings.HasSuffix(name, "_handleContact") {
			if diff := cmp.Diff(schema, string(field(tool, "inputSchema"))); diff != "" {
				t.Errorf("%s: %s", name, diff)
			}
			if text := stringField(tool, "description"); !strings.HasSuffix(text, "akes a contact form.") && !strings.Contains(text, "takes a contact form.") {
				t.Errorf("%s: description %q", name, text)
			}
		}
	}
	for _, name := range names {
		post := func(kind, body string) answer {
			res, err := http.Post(d.URL+"webhook/"+name+"/handleContact", kind, strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			var text strings.Builder
			fmt.Fprint(&text, res.StatusCode, " ")
			var v any
			json.NewDecoder(res.Body).Decode(&v)
			text.Write(marshal(v))
			return answer{Body: text.String()}
		}
		for _, tt := range []struct{ kind, body, want string }{
			{"application/json", `{"email":"a@b","message":"hi","copies":3}`, `200 {"copies":3,"thanks":"a@b"}`},
			{"application/x-www-form-urlencoded", "email=a%40b&message=hi&copies=2", `200 {"copies":2,"thanks":"a@b"}`},
			{"application/x-www-form-urlencoded", "email=a%40b&message=hi&copies=", `200 {"copies":1,"thanks":"a@b"}`},
			{"application/json", `{"email":"a@b","message":"hi"}`, `200 {"copies":1,"thanks":"a@b"}`},
			{"application/json", `{"email":"a@b"}`, `400 {"error":"parameter \"message\" is required: a string"}`},
			{"application/json", `{"email":1,"message":"hi"}`, `400 {"error":"parameter \"email\": want a string, got an integer"}`},
		} {
			if got := post(tt.kind, tt.body).Body; got != tt.want {
				t.Errorf("%s: %s gave %s, want %s", name, tt.body, got, tt.want)
			}
		}
		if got := c.call(name+"_handleContact", `{"email":"a@b"}`).failure(); got != `parameter "message" is required: a string` {
			t.Errorf("%s: a call without a message: %q", name, got)
		}
		if got := string(field(c.call(name+"_handleContact", `{"email":"a@b","message":"","_webhook":{"timestamp":1}}`).result(), "isError")); got != "" {
			t.Errorf("%s: a client set _webhook", name)
		}
	}
}

// TestOldRequestsAreRefused gives the forms a request of long ago, which only
// usher itself can.
func TestOldRequestsAreRefused(t *testing.T) {
	t.Parallel()
	dir, names := languages(t)
	r, err := newRegistry(registryConfig{Roots: []string{dir}, CacheDir: t.TempDir(), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	r.AllReady(t.Context(), patience, scopeAll())
	for _, name := range names {
		tool := r.View(scopeAll()).Lookup("tools", name+"_handleContact")
		if tool == nil {
			t.Fatalf("%s is not hosted", name)
		}
		for age, want := range map[time.Duration]string{2 * time.Second: "", 2 * time.Minute: "too old"} {
			params := fmt.Sprintf(`{"arguments":{"email":"a","message":"b","_webhook":{"method":"POST","timestamp":%d}}}`, time.Now().Add(-age).UnixMilli())
			result, err := tool.Call(context.Background(), Caller{Session: "test"}, "tools/call", objectOf(params))
			got := (answer{Events: []json.RawMessage{object{{"result", result}}.encode()}}).failure()
			if err != nil || (got == "") != (want == "") || !strings.Contains(got, want) {
				t.Errorf("%s: a request %v old: %q %v", name, age, got, err)
			}
		}
	}
}

func TestCallsRunSideBySide(t *testing.T) {
	slow(t)
	dir, names := languages(t)
	c := connect(t, startDaemon(t, dir).URL)
	for _, name := range names {
		await(t, name, func() bool { return slices.Contains(c.tools(), name+"_pause") })
		c.call(name+"_pause", "")
		start := time.Now()
		var calls sync.WaitGroup
		for range 20 {
			calls.Go(func() {
				if a := c.call(name+"_pause", ""); resultText(a.result()) != "done" {
					t.Errorf("%s: %s", name, a.Body)
				}
			})
		}
		calls.Wait()
		if took := time.Since(start); took > 3*time.Second {
			t.Errorf("%s: 20 calls of a second took %v", name, took)
		}
	}
}

func TestShellExampleOverARealRepository(t *testing.T) {
	t.Parallel()
	need(t, "git")
	dir := t.TempDir()
	text, err := os.ReadFile("examples/site/changes.usher.sh")
	if err != nil {
		t.Fatal(err)
	}
	write(t, dir+"/changes.usher.sh", string(text))
	git := func(args ...string) {
		t.Helper()
		cmd := exec.Command("git", append([]string{"-c", "user.name=Ada; touch x", "-c", "user.email=ada@example.com"}, args...)...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v %s", args, err, out)
		}
	}
	git("init", "-q")
	git("add", ".")
	git("commit", "-qm", "first $(touch y)")
	git("commit", "-qm", "second", "--allow-empty")
	c := connect(t, startDaemon(t, dir).URL)
	c.awaitTools("changes_author", "changes_recent")
	if got := strings.Split(resultText(c.call("changes_recent", "").result()), "\n"); len(got) != 2 || !strings.HasSuffix(got[1], "first $(touch y)") {
		t.Errorf("recent: %q", got)
	}
	if got := c.call("changes_author", `{"name":"ada@"}`); string(field(field(got.result(), "structuredContent"), "commits")) != "2" {
		t.Errorf("author: %s", got.Body)
	}
	for _, name := range []string{"$(touch z)", "`touch z`", "'; touch z; '", "--help", "\\n"} {
		c.call("changes_author", string(object{{"name", quote(name)}}.encode()))
	}
	entries, _ := os.ReadDir(dir)
	if len(entries) != 2 { // .git and the module
		t.Errorf("something was run: %v", entries)
	}
}
