// All languages side by side: modules over their pipes, and the same module, written in each
// language, as a tool and as a webhook.

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"usher/internal/mcptest"
)

var updateGolden = flag.Bool("update-golden", false,
	"rewrite the golden files of modules in testdata")

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
	check(t, path, text.String(), want)
}

// startPeer starts a module, whose results are shown as the daemon shows them.
func startPeer(t *testing.T, cmd *exec.Cmd) *modulePeer {
	t.Helper()
	p := mcptest.StartPeer(t, cmd)
	p.Show = func(result json.RawMessage) json.RawMessage { return methodResult(members(result)).encode() }
	return p
}

// shimCommand returns the command that runs a file by its language's shim.
func shimCommand(t *testing.T, kind Kind, file string) *exec.Cmd {
	t.Helper()
	file, err := filepath.Abs(file)
	must(t, err)
	s := source{Kind: kind, Source: file, Launch: launch{Dir: filepath.Dir(file)}}
	s.Launch.Path, _ = pythonFor(s.Launch.Dir, nil)
	l, err := s.command(t.TempDir())
	must(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, l.Path, l.Args...)
	cmd.Dir = l.Dir
	return cmd
}

// startFile starts a module of any language.
func startFile(t *testing.T, file string) *modulePeer {
	t.Helper()
	kind := needLanguage(t, file)
	if kind == kindGo {
		name := filepath.Base(file)
		dir := goTestTree(t, map[string]string{name: readFile(t, file)})
		return startBinary(t, goTestBuild(t, dir+"/"+name, dir+"/cache"))
	}
	p := startPeer(t, shimCommand(t, kind, file))
	methods := make(map[string]*Method)
	for _, tool := range p.Tools() {
		m := parseMethod(tool, kind)
		methods[m.Name] = m
	}
	p.Check = func(tool string, arguments json.RawMessage) (json.RawMessage, error) {
		if m := methods[tool]; m != nil {
			return m.checkArguments(arguments)
		}
		return arguments, nil
	}
	return p
}

// Methods, types and documentation of each file are those in its golden file.
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
				p := startFile(t, file)
				about := stringField(p.Request("initialize", `{}`), "instructions")
				about = firstSentence(parseDoc(about, kindNode).description)
				tools := field(p.Request("tools/list", `{}`), "tools")
				p.End()
				checkGolden(t, golden,
					object{{"about", quote(about)}, {"tools", tools}}.encode())
			})
		}
	}
}

// A module asks its client by a function in Go, and by what generators yield in other
// languages.
func TestModuleAsks(t *testing.T) {
	long(t)
	for _, tt := range []struct {
		file    string
		seen    [2]string // what the cancelled calls saw
		refused string    // params that this language's modules can't ask with
	}{
		{"testdata/gomodule/run/asks.usher.go",
			[2]string{`context canceled\"`, "async context canceled"}, `[]`},
		{"testdata/python/asks.usher.py",
			[2]string{"GeneratorExit", "async GeneratorExit"}, `null`},
		{"testdata/node/asks.usher.js", [2]string{`returned\"`, "returned async"}, `null`},
	} {
		t.Run(filepath.Ext(tt.file), func(t *testing.T) {
			t.Parallel()
			p := startFile(t, tt.file)
			for i, kind := range []string{"", "_async"} {
				testAsks(p, kind, tt.refused)
				testAsksInTurn(p, kind)
				// A call that is cancelled while it asks ends.
				id := fmt.Sprintf(`"w%d"`, i)
				p.SendCall(id, "wait"+kind, "{}")
				ask := p.NextAsk(id, "roots/list", "")
				p.CancelCall(id)
				p.Reply(ask, "{}")
				await(t, "the end of wait"+kind, func() bool {
					return strings.Contains(p.Call("seen", "{}"), tt.seen[i]) && p.Cancelled[id]
				})
			}
			p.SendCall("8", "wait", "{}")
			p.SendCall("10", "wait_async", "{}")
			p.Next()
			p.Next()
			for line := range strings.Lines(p.End()) { // Go answers at its end
				checkContains(t, "after the end", line, "context canceled")
			}
			checkOmits(t, "the log", p.Stderr.String(), "never", "in drain")
		})
	}
}

// replyError refuses a request of a module; err is JSON.
func replyError(p *modulePeer, ask, err string) {
	p.Send(`{"jsonrpc":"2.0","id":` + ask + `,"error":` + err + `}`)
}

// checkCancelled checks which cancelled calls have been answered. Their cancellation must have been
// confirmed.
func checkCancelled(p *modulePeer, want ...string) {
	p.T.Helper()
	answered := []string{}
	for id, ok := range p.Cancelled {
		if ok {
			answered = append(answered, id)
			check(p.T, "the cancellation of "+id+" is confirmed", p.Confirmed[id], true)
		}
	}
	slices.Sort(answered)
	check(p.T, "answers to cancelled calls", answered, want)
}

// testAsks asks by the method ask+kind, and replies with results and errors.
func testAsks(p *modulePeer, kind, refused string) {
	p.T.Helper()
	// Replies that no call waits for are passed over.
	p.Reply(`"ask-1"`, "{}")
	for _, row := range []struct{ id, item, params string }{
		{`"é\"7"`, `{"ask":"m","params":{}}`, `{"_meta":{"usher/call":"é\"7"}}`},
		{`8`, `{"ask":"m","params":{"a":[1.5,{"b":null}],"_meta":{"c":"<d>"}}}`,
			`{"a":[1.5,{"b":null}],"_meta":{"c":"<d>","usher/call":8}}`},
	} {
		p.SendCall(row.id, "ask"+kind, `{"item":`+row.item+`}`)
		ask := p.NextAsk(row.id, "m", row.params)
		p.Reply(ask, `{"é<":1}`)
		p.Reply(ask, `{"é<":2}`)
		p.WantAnswer(row.id, `{"é<":1}`)
	}
	p.SendCall("1", "ask"+kind, `{"item":{"ask":"m"}}`)
	replyError(p, p.NextAsk("1", "m", ""),
		`{"code":-32601,"message":"no <way>","data":{"n":[1]}}`)
	p.WantAnswer("1", `"no <way>"`)
	for _, params := range []string{`[1]`, `"text"`, `1`, `true`, refused} {
		got := p.Call("ask"+kind, `{"item":{"ask":"m","params":`+params+`}}`)
		checkContains(p.T, "params "+params, got, `ask: params`, `must be an object`,
			`"isError":true`)
	}
}

// testAsksInTurn has a method ask again after a refusal and after an answer, and
// two calls ask at once.
func testAsksInTurn(p *modulePeer, kind string) {
	p.T.Helper()
	p.SendCall("1", "careful"+kind, `{"item":{"ask":"m"}}`)
	replyError(p, p.NextAsk("1", "m", ""), `{"code":1,"message":"not now"}`)
	p.Reply(p.NextAsk("1", "again", ""), `{"text":"yes"}`)
	p.WantAnswer("1", "not now, then yes")

	p.SendCall("3", "twice"+kind, `{}`)
	p.Reply(p.NextAsk("3", "first", ""), `{"n":1}`)
	line := p.Next()
	if strings.Contains(line, "notifications/message") { // what some yield in between
		line = p.Next()
	}
	p.Reply(string(field(line, "id")), `{"n":2}`)
	p.WantAnswer("3", `[{\"n\":1},null,{\"n\":2}]`)

	p.SendCall("4", "ask"+kind, `{"item":{"ask":"a"}}`)
	a := p.NextAsk("4", "a", "")
	p.SendCall(`"4"`, "ask"+kind, `{"item":{"ask":"b"}}`)
	b := p.NextAsk(`"4"`, "b", "")
	p.Reply(b, `{"for":"b"}`)
	p.WantAnswer(`"4"`, `{"for":"b"}`)
	p.Reply(a, `{"for":"a"}`)
	p.WantAnswer("4", `{"for":"a"}`)
}

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

// copyFiles copies files from a folder to another.
func copyFiles(t *testing.T, from, to string, names ...string) {
	for _, name := range names {
		content := readFile(t, from+"/"+name)
		write(t, to+"/"+name, content)
	}
}

// The same module does the same in each language that a shim runs.
func TestLanguagesAreHostedAlike(t *testing.T) {
	long(t)
	for _, file := range []string{"m.usher.py", "m.usher.js"} {
		t.Run(filepath.Ext(file), func(t *testing.T) {
			t.Parallel()
			needLanguage(t, file)
			dir := t.TempDir()
			copyFiles(t, "testdata/hosted", dir, file)
			c := connect(t, startDaemon(t, dir).URL)
			c.AwaitTools("m_add", "m_crash", "m_walk")
			for _, row := range []struct{ tool, arguments, want string }{
				{"m_add", `{"by":2}`, `{"count":2}`},
				{"m_add", `{"by":"2"}`, `parameter "by": want integer, got string`},
				{"m_crash", ``,
					`module "m" crashed (exit status 3); the next call starts it again`},
				{"m_add", ``, `{"count":1}`},
			} {
				check(t, row.tool+row.arguments, c.Call(row.tool, row.arguments).Text(),
					row.want)
			}
			a := c.Ask("tools/call",
				`{"name":"m_walk","arguments":{"steps":2},"_meta":{"progressToken":"mine"}}`)
			var progress []string
			for _, event := range a.Events[:len(a.Events)-1] {
				params := field(event, "params")
				progress = append(progress, stringField(params, "progressToken")+
					string(field(params, "progress"))+
					stringField(params, "data"))
			}
			check(t, "progress", progress, []string{"mine1", "step 0", "mine2", "step 1"})
			check(t, "the result after progress", a.Text(), "there")
		})
	}
}

// languages copies the modules of a folder that can run here into a new one, and returns their names.
func languages(t *testing.T, from string) (dir string, names []string) {
	t.Helper()
	dir = t.TempDir()
	for _, file := range folderNames(t, from) {
		t.Run(file+" is copied", func(t *testing.T) {
			needLanguage(t, file)
			copyFiles(t, from, dir, file)
			name, _, _ := strings.Cut(file, ".")
			names = append(names, name)
		})
	}
	return dir, names
}

// In each language, bytes that a method returns are an image to a client; content blocks are passed on;
// and a parameter that the method does not declare is refused, unless the method takes the rest or declares
// none.
func TestLanguagesTakeAndReturnAlike(t *testing.T) {
	long(t)
	dir, names := languages(t, "testdata/results")
	more := map[string][]string{"js": {"js_rest", "js_whole"}, "py": {"py_rest"}}
	var tools []string
	for _, name := range names {
		tools = append(tools, name+"_blocks", name+"_handleDraw", name+"_one", name+"_text")
		tools = append(tools, more[name]...)
	}
	d := startDaemon(t, dir)
	c := connect(t, d.URL)
	c.AwaitTools(slices.Sorted(slices.Values(tools))...)
	for _, tool := range c.Tools() {
		_, method, _ := strings.Cut(tool, "_")
		a := c.Call(tool, `{"a":1,"b":2}`)
		want := "1"
		switch method {
		case "one":
			want = `parameter "b" is unknown: want a`
		case "text":
			want = "hi"
		case "blocks":
			want = `"data":"aGk="`
		case "handleDraw":
			want = `"data":"iVBORw0KGgo="`
		}
		checkContains(t, tool, a.Text(), want)
		check(t, tool+" returns an image", strings.Contains(a.Text(), `"type":"image"`), want[0] == '"')
	}
}

// After a cancelled call that never ends, the module answers the next one: in the same process, except
// that usher ends processes that can't do anything else meanwhile, and others after the time-out of
// calls.
func TestCancelledCallsEnd(t *testing.T) {
	t.Parallel()
	slow(t) // for cancelTimeout
	dir, names := languages(t, "testdata/busy")
	var tools []string
	for _, name := range names {
		tools = append(tools, name+"_pid", name+"_spin")
	}
	d := startDaemon(t, dir, "-call-timeout", (cancelTimeout + 2*time.Second).String())
	c := connect(t, d.URL)
	c.AwaitTools(tools...)
	pidOf := func(name string) (pid int) {
		await(t, name+"_pid", func() bool {
			_, err := fmt.Sscan(c.Call(name+"_pid", "").Text(), &pid)
			return err == nil && pid > 0
		})
		return pid
	}
	var all sync.WaitGroup
	for _, name := range names {
		all.Go(func() {
			first := pidOf(name)
			id := string(quote(name))
			all.Go(func() { c.Post(rpcAs(id, "tools/call", `{"name":"`+name+`_spin"}`)) })
			d.awaitLog(t, name+" spins")
			c.Cancel(id)
			next := pidOf(name)
			check(t, name+" was ended", next != first, strings.HasPrefix(name, "stuck"))
			if strings.HasPrefix(name, "busy") {
				await(t, "another process of "+name, func() bool {
					return pidOf(name) != first
				})
			}
			if !strings.HasPrefix(name, "end") {
				await(t, "the end of the process of "+name, func() bool {
					return !processAlive(first)
				})
			}
			line := `a cancelled call blocks the module: ending its process" module=` +
				name + "\n"
			check(t, name+" was blocked", d.logged(line) > 0, !strings.HasPrefix(name, "end"))
		})
	}
	all.Wait()
}
