// All languages side by side: the tests talk to modules over their pipes, and call the same module,
// written in each language, as a tool and as a webhook.

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// modulePeer is a running module, spoken to over its stdin and stdout as the
// daemon speaks to it.
type modulePeer struct {
	t         *testing.T
	cmd       *exec.Cmd
	in        io.WriteCloser
	out       *bufio.Scanner
	stderr    bytes.Buffer
	methods   map[string]*Method // check the arguments of calls
	cancelled map[string]bool    // ids of cancelled calls: whether they have been answered
	confirmed map[string]bool    // ids of calls whose cancellation the module has confirmed
}

func startPeer(t *testing.T, cmd *exec.Cmd) *modulePeer {
	t.Helper()
	p := &modulePeer{
		t:         t,
		cmd:       cmd,
		methods:   make(map[string]*Method),
		cancelled: make(map[string]bool),
		confirmed: make(map[string]bool),
	}
	p.cmd.Stderr = &p.stderr
	var err error
	p.in, err = p.cmd.StdinPipe()
	must(t, err)
	out, err := p.cmd.StdoutPipe()
	must(t, err)
	must(t, p.cmd.Start())
	p.out = bufio.NewScanner(out)
	p.out.Buffer(nil, 128<<20)
	return p
}

// shimCommand returns the command that runs a file by its language's shim.
func shimCommand(t *testing.T, kind Kind, file string) *exec.Cmd {
	t.Helper()
	file, err := filepath.Abs(file)
	must(t, err)
	l, err := launchFile(discovered{Kind: kind, Source: file}, t.TempDir())
	must(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, l.Path, l.Args...)
	cmd.Dir = l.Dir
	return cmd
}

func startShim(t *testing.T, kind Kind, file string) *modulePeer {
	t.Helper()
	p := startPeer(t, shimCommand(t, kind, file))
	for _, tool := range p.tools() {
		m, _ := parseMethod(tool, kind)
		p.methods[m.Name] = m
	}
	return p
}

// startFile starts a module of any language.
func startFile(t *testing.T, file string) *modulePeer {
	t.Helper()
	if filepath.Ext(file) != ".go" {
		return startShim(t, needLanguage(t, file), file)
	}
	source := readFile(t, file)
	name := filepath.Base(file)
	dir := goTestTree(t, map[string]string{name: string(source)})
	return startBinary(t, goTestBuild(t, filepath.Join(dir, name), filepath.Join(dir, "cache")))
}

func (p *modulePeer) send(line string) {
	p.t.Helper()
	_, err := io.WriteString(p.in, line+"\n")
	must(p.t, err)
}

func (p *modulePeer) sendCall(id, tool, arguments string) {
	p.t.Helper()
	p.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":"tools/call","params":{"name":%q,"arguments":%s}}`,
		id, tool, arguments))
}

// cancelCall cancels a call; answers to it are passed over from then on.
func (p *modulePeer) cancelCall(id string) {
	p.t.Helper()
	p.cancelled[id] = false
	p.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":` + id + `}}`)
}

// checkCancelled checks which cancelled calls have been answered. Their cancellation must have been confirmed.
func (p *modulePeer) checkCancelled(want ...string) {
	p.t.Helper()
	answered := []string{}
	for id, ok := range p.cancelled {
		if ok {
			answered = append(answered, id)
			check(p.t, "the cancellation of "+id+" is confirmed", p.confirmed[id], true)
		}
	}
	slices.Sort(answered)
	check(p.t, "answers to cancelled calls", answered, want)
}

// next returns the next line that the module writes, except confirmations of cancelled calls.
func (p *modulePeer) next() string {
	p.t.Helper()
	for {
		if !p.out.Scan() {
			p.t.Fatalf("the module ended: %v\n%s", p.out.Err(), p.stderr.String())
		}
		line := json.RawMessage(p.out.Text())
		if stringField(line, "method") != cancelConfirmed {
			return string(line)
		}
		p.confirmed[string(field(field(line, "params"), "requestId"))] = true
	}
}

// answer reads the answer to a call that was not cancelled, and returns the
// call's id and its result or error.
func (p *modulePeer) answer() (id, result string) {
	p.t.Helper()
	for {
		line := json.RawMessage(p.next())
		id = string(field(line, "id"))
		if _, ok := p.cancelled[id]; ok {
			p.cancelled[id] = true
			continue
		}
		if e := field(line, "error"); e != nil {
			return id, string(e)
		}
		return id, string(methodResult(field(line, "result")))
	}
}

func (p *modulePeer) wantAnswer(id, want string) {
	p.t.Helper()
	got, result := p.answer()
	check(p.t, "the call that is answered", got, id)
	checkContains(p.t, "the answer to "+id, result, want)
}

// call calls a tool as the daemon does, and returns its result or error.
func (p *modulePeer) call(tool, arguments string) string {
	p.t.Helper()
	checked := json.RawMessage(arguments)
	if m := p.methods[tool]; m != nil {
		var err error
		if checked, err = m.checkArguments(checked); err != nil {
			return shownFailure(err.Error())
		}
	}
	p.sendCall("7", tool, string(checked))
	id, result := p.answer()
	if id != "7" {
		p.t.Fatalf("%s: answer is for %s: %s", tool, id, result)
	}
	return result
}

// callText returns the text of a call's result.
func (p *modulePeer) callText(tool, arguments string) string {
	p.t.Helper()
	return resultText(json.RawMessage(p.call(tool, arguments)))
}

// request makes a request and returns its result.
func (p *modulePeer) request(method, params string) json.RawMessage {
	p.t.Helper()
	p.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":0,"method":%q,"params":%s}`, method, params))
	line := json.RawMessage(p.next())
	if field(line, "result") == nil {
		p.t.Fatalf("%s: %s", method, line)
	}
	return field(line, "result")
}

func (p *modulePeer) tools() (tools []json.RawMessage) {
	p.t.Helper()
	must(p.t, json.Unmarshal(field(p.request("tools/list", "{}"), "tools"), &tools))
	return tools
}

// lineExchange is a line sent to a module ("" for none) and a part of its next line.
type lineExchange struct{ send, want string }

func (p *modulePeer) exchange(lines []lineExchange) {
	p.t.Helper()
	for _, line := range lines {
		if line.send != "" {
			p.send(line.send)
		}
		checkContains(p.t, "after "+line.send, p.next(), line.want)
	}
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

// nextAsk reads the next line, which must be a request to the client for a call.
// It returns the request's id, as JSON.
func (p *modulePeer) nextAsk(call, method, params string) string {
	p.t.Helper()
	line := json.RawMessage(p.next())
	got := field(line, "params")
	if stringField(line, "method") != method || string(field(field(got, "_meta"), "usher/call")) != call {
		p.t.Fatalf("got %s, want call %s to ask for %s", line, call, method)
	}
	if params != "" {
		check(p.t, "params", sortedJSON(p.t, string(got)), sortedJSON(p.t, params))
	}
	return string(field(line, "id"))
}

func (p *modulePeer) reply(ask, result string) {
	p.t.Helper()
	p.send(`{"jsonrpc":"2.0","id":` + ask + `,"result":` + result + `}`)
}

func (p *modulePeer) replyError(ask, err string) {
	p.t.Helper()
	p.send(`{"jsonrpc":"2.0","id":` + ask + `,"error":` + err + `}`)
}

// sortedJSON returns JSON with its keys sorted and its numbers unchanged.
func sortedJSON(t *testing.T, text string) string {
	t.Helper()
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.UseNumber()
	var v any
	must(t, decoder.Decode(&v))
	return string(marshal(v))
}

func shownText(text string) string     { return string(toolResult(quote(text))) }
func shownObject(object string) string { return string(toolResult(json.RawMessage(object))) }
func shownFailure(text string) string  { return string(failure(text)) }

// needLanguage returns the kind of a file, and skips the test if its language is
// not installed.
func needLanguage(t *testing.T, file string) Kind {
	t.Helper()
	switch filepath.Ext(file) {
	case ".go":
		return kindGo
	case ".sh":
		need(t, "sh")
		return kindShell
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

var updateGolden = flag.Bool("update-golden", false, "rewrite the golden files of modules in testdata")

// checkGolden compares JSON with a file.
func checkGolden(t *testing.T, path string, got json.RawMessage) {
	t.Helper()
	var text bytes.Buffer
	must(t, json.Indent(&text, got, "", "  "))
	text.WriteByte('\n')
	if *updateGolden {
		write(t, path, text.String())
	}
	want := readFile(t, path)
	check(t, path, text.String(), string(want))
}

// TestShimGolden checks what is read from each file: methods, types and
// documentation.
func TestShimGolden(t *testing.T) {
	long(t)
	for _, pattern := range []string{"testdata/python/*.py.json", "testdata/node/*s.json"} {
		files, _ := filepath.Glob(pattern)
		if len(files) == 0 {
			t.Fatal("no files")
		}
		for _, golden := range files {
			file := strings.TrimSuffix(golden, ".json")
			t.Run(filepath.Base(file), func(t *testing.T) {
				t.Parallel()
				p := startShim(t, needLanguage(t, file), file)
				about := firstSentence(stringField(p.request("initialize", `{}`), "instructions"))
				tools := field(p.request("tools/list", `{}`), "tools")
				p.end()
				checkGolden(t, golden, object{{"about", quote(about)}, {"tools", tools}}.encode())
			})
		}
	}
}

// TestModuleAsks has modules ask the client: by a function in Go, by what
// generators yield in other languages.
func TestModuleAsks(t *testing.T) {
	long(t)
	for _, tt := range []struct {
		file    string
		seen    [2]string // what the cancelled calls saw
		refused string    // params that this language's modules can't ask with
	}{
		{"testdata/gomodule/run/asks.usher.go", [2]string{`context canceled\"`, "async context canceled"}, `[]`},
		{"testdata/python/asks.usher.py", [2]string{"GeneratorExit", "async GeneratorExit"}, `null`},
		{"testdata/node/asks.usher.js", [2]string{`returned\"`, "returned async"}, `null`},
	} {
		t.Run(filepath.Ext(tt.file), func(t *testing.T) {
			t.Parallel()
			p := startFile(t, tt.file)
			for i, kind := range []string{"", "_async"} {
				p.testAsks(kind, tt.refused)
				p.testAsksInTurn(kind)
				// A call that is cancelled while it asks ends.
				id := fmt.Sprintf(`"w%d"`, i)
				p.sendCall(id, "wait"+kind, "{}")
				ask := p.nextAsk(id, "roots/list", "")
				p.cancelCall(id)
				p.reply(ask, "{}")
				await(t, "the end of wait"+kind, func() bool {
					return strings.Contains(p.call("seen", "{}"), tt.seen[i]) && p.cancelled[id]
				})
			}
			p.sendCall("8", "wait", "{}")
			p.sendCall("10", "wait_async", "{}")
			p.next()
			p.next()
			for line := range strings.Lines(p.end()) { // Go answers at its end
				checkContains(t, "after the end", line, "context canceled")
			}
			checkOmits(t, "the log", p.stderr.String(), "never", "in drain")
		})
	}
}

// testAsks asks by the method ask+kind, and replies with results and errors.
func (p *modulePeer) testAsks(kind, refused string) {
	p.t.Helper()
	// Replies that no call waits for are passed over.
	p.reply(`"ask-1"`, "{}")
	p.replyError("1", `{"code":1,"message":"x"}`)
	for _, row := range []struct{ id, item, params string }{
		{`7`, `{"ask":"m"}`, `{"_meta":{"usher/call":7}}`},
		{`"é\"7"`, `{"ask":"m","params":{}}`, `{"_meta":{"usher/call":"é\"7"}}`},
		{`8`, `{"ask":"m","params":{"a":[1.5,{"b":null}],"_meta":{"c":"<d>"}}}`,
			`{"a":[1.5,{"b":null}],"_meta":{"c":"<d>","usher/call":8}}`},
	} {
		p.sendCall(row.id, "ask"+kind, `{"item":`+row.item+`}`)
		ask := p.nextAsk(row.id, "m", row.params)
		p.reply(ask, `{"é<":1}`)
		p.reply(ask, `{"é<":2}`)
		p.wantAnswer(row.id, `{"é<":1}`)
	}
	p.sendCall("1", "ask"+kind, `{"item":{"ask":"m"}}`)
	p.replyError(p.nextAsk("1", "m", ""), `{"code":-32601,"message":"no <way>","data":{"n":[1]}}`)
	p.wantAnswer("1", `"no <way>"`)
	for _, params := range []string{`[1]`, `"text"`, `1`, `true`, refused} {
		got := p.call("ask"+kind, `{"item":{"ask":"m","params":`+params+`}}`)
		checkContains(p.t, "params "+params, got, `ask: params`, `must be an object`, `"isError":true`)
	}
}

// testAsksInTurn has a method ask again after a refusal and after an answer, and
// two calls ask at once.
func (p *modulePeer) testAsksInTurn(kind string) {
	p.t.Helper()
	p.sendCall("1", "careful"+kind, `{"item":{"ask":"m"}}`)
	p.replyError(p.nextAsk("1", "m", ""), `{"code":1,"message":"not now"}`)
	p.reply(p.nextAsk("1", "again", ""), `{"text":"yes"}`)
	p.wantAnswer("1", "not now, then yes")

	p.sendCall("3", "twice"+kind, `{}`)
	p.reply(p.nextAsk("3", "first", ""), `{"n":1}`)
	line := p.next()
	if strings.Contains(line, "notifications/message") { // what some yield in between
		line = p.next()
	}
	p.reply(string(field(json.RawMessage(line), "id")), `{"n":2}`)
	p.wantAnswer("3", `[{\"n\":1},null,{\"n\":2}]`)

	p.sendCall("4", "ask"+kind, `{"item":{"ask":"a"}}`)
	a := p.nextAsk("4", "a", "")
	p.sendCall(`"4"`, "ask"+kind, `{"item":{"ask":"b"}}`)
	b := p.nextAsk(`"4"`, "b", "")
	p.reply(b, `{"for":"b"}`)
	p.wantAnswer(`"4"`, `{"for":"b"}`)
	p.reply(a, `{"for":"a"}`)
	p.wantAnswer("4", `{"for":"a"}`)
}

// TestHosted hosts the same module in each language that a shim runs.
func TestHosted(t *testing.T) {
	long(t)
	for _, file := range []string{"m.usher.py", "m.usher.js"} {
		t.Run(filepath.Ext(file), func(t *testing.T) {
			t.Parallel()
			needLanguage(t, file)
			dir := t.TempDir()
			copyFiles(t, "testdata/hosted", dir, file)
			d := startDaemon(t, dir)
			c := connect(t, d.URL)
			c.awaitTools("m_add", "m_crash", "m_handleForm", "m_walk")
			for _, row := range []struct{ tool, arguments, want string }{
				{"m_add", `{"by":2}`, `{"count":2}`},
				{"m_handleForm", `{"text":"t","_webhook":{"headers":{"x-own":"forged"}}}`, `{"text":"t","own":null}`},
				{"m_add", `{"by":"2"}`, `parameter "by": want an integer, got a string`},
				{"m_crash", ``, `module "m" crashed (exit status 3); the next call starts it again`},
				{"m_add", ``, `{"count":1}`},
			} {
				check(t, row.tool+row.arguments, resultText(c.call(row.tool, row.arguments).result()), row.want)
			}
			a := c.ask("tools/call", `{"name":"m_walk","arguments":{"steps":2},"_meta":{"progressToken":"mine"}}`)
			var progress []string
			for _, event := range a.Events[:len(a.Events)-1] {
				params := field(event, "params")
				progress = append(progress, stringField(params, "progressToken")+string(field(params, "progress"))+
					stringField(params, "data"))
			}
			check(t, "progress", progress, []string{"mine1", "step 0", "mine2", "step 1"})
			check(t, "the result after progress", resultText(a.result()), "there")
			a = d.deliver(t, "m/handleForm", `{"text":"by hook"}`, "X-Own: seen")
			check(t, "a delivery", sortedJSON(t, a.Body), `{"own":"seen","text":"by hook"}`)
		})
	}
}

// TestCancelledCallsEnd cancels calls that never end. The module answers the next call: in the same process, except
// that usher ends processes that can't do anything else meanwhile, and replaces others after the time-out of calls.
func TestCancelledCallsEnd(t *testing.T) {
	t.Parallel()
	slow(t) // for cancelTimeout
	dir := t.TempDir()
	modules := map[string]string{
		"busygo.usher.go": goHead + "import \"os\"\nfunc Pid() int { return os.Getpid() }\n" +
			"func Spin() { println(\"busygo spins\"); for {} }\n",
		"busypy.usher.py": "import os\ndef pid(): return os.getpid()\n" +
			"def spin():\n  print('busypy spins')\n  while True: pass\n",
		"endsh.usher.sh": "# Pid.\npid() { echo $PPID; }\n" +
			"# Spins.\nspin() { echo endsh spins >&2; while :; do :; done; }\n",
		"stuckasync.usher.py": "import os\nasync def pid(): return os.getpid()\n" +
			"async def spin():\n  print('stuckasync spins')\n  while True: pass\n",
		"stuckjs.usher.js": "export const pid = () => process.pid\n" +
			"export const spin = () => { console.log('stuckjs spins'); for (;;); }\n",
	}
	var names, tools []string
	for _, file := range sortedKeys(modules) {
		needLanguage(t, file)
		write(t, dir+"/"+file, modules[file])
		name, _, _ := strings.Cut(file, ".")
		names = append(names, name)
		tools = append(tools, name+"_pid", name+"_spin")
	}
	d := startDaemon(t, dir, "-call-timeout", (cancelTimeout + 2*time.Second).String())
	c := connect(t, d.URL)
	c.awaitTools(tools...)
	pidOf := func(name string) (pid int) {
		await(t, name+"_pid", func() bool {
			_, err := fmt.Sscan(resultText(c.call(name+"_pid", "").result()), &pid)
			return err == nil && pid > 0
		})
		return pid
	}
	var all sync.WaitGroup
	for _, name := range names {
		all.Go(func() {
			first := pidOf(name)
			const format = `{"jsonrpc":"2.0","id":%q,"method":"tools/call","params":{"name":"%s_spin"}}`
			all.Go(func() { c.post(fmt.Sprintf(format, name, name)) })
			d.awaitLog(t, name+" spins")
			c.post(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"` + name + `"}}`)
			next := pidOf(name)
			check(t, name+" was ended", next != first, strings.HasPrefix(name, "stuck"))
			if strings.HasPrefix(name, "busy") {
				await(t, "another process of "+name, func() bool { return pidOf(name) != first })
			}
			if !strings.HasPrefix(name, "end") {
				await(t, "the end of the process of "+name, func() bool { return !processAlive(first) })
			}
			line := `a cancelled call blocks the module: ending its process" module=` + name + "\n"
			check(t, name+" was blocked", strings.Contains(d.Log.String(), line), strings.HasPrefix(name, "stuck"))
		})
	}
	all.Wait()
}

// languages copies the modules of testdata/languages that can run here into a
// folder, and returns their names.
func languages(t *testing.T) (dir string, names []string) {
	t.Helper()
	dir = t.TempDir()
	for _, file := range folderNames(t, "testdata/languages") {
		t.Run(file+" is copied", func(t *testing.T) {
			needLanguage(t, file)
			copyFiles(t, "testdata/languages", dir, file)
			name, _, _ := strings.Cut(file, ".")
			names = append(names, name)
		})
	}
	return dir, names
}
