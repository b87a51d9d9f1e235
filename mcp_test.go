// The MCP endpoint as clients meet it, over HTTP and over stdio.

package main

import (
	"encoding/json"
	"fmt"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// A session has the version that its client asks for, or the latest one.
func TestVersionIsNegotiated(t *testing.T) {
	t.Parallel()
	c := connect(t, startFakes(t, "a: good").URL)
	c.Tools() // the instructions describe the modules that are ready
	for asked, want := range map[string]string{
		"2025-11-25": "2025-11-25",
		"2024-01-01": "2025-11-25",
	} {
		a := c.Post(initializeWith(asked, `{}`))
		check(t, "the version for "+asked, stringField(a.Result(), "protocolVersion"), want)
		checkContains(t, "the instructions", stringField(a.Result(), "instructions"),
			"- a: A fake module.")
	}
	a := c.Post(rpcText("initialize", "{}"))
	check(t, "the version for none", stringField(a.Result(), "protocolVersion"), "2025-11-25")
}

// The instructions name as many modules as find room in 2,000 characters, with as much of their
// sentences as possible.
func TestInstructionsAreShort(t *testing.T) {
	for _, tt := range []struct {
		modules, letters int
		short, long      string // what a short and a long sentence become
		last             string // line
	}{
		{3, 100, "Short.", strings.Repeat("ä", 100), "- m2: "},
		{45, 90, "Short.", "ääää", "- m44: "},
		{300, 90, "", "", "and "},
	} {
		view := &View{}
		for i := range tt.modules {
			about := "Short."
			if i > 0 {
				about = strings.Repeat("ä", tt.letters)
			}
			label := fmt.Sprint("m", i)
			view.Modules = append(view.Modules, ViewModule{label, &Module{manifest: manifest{About: about}}})
		}
		text := instructions(view)
		lines := strings.Split(text, "\n")
		what := fmt.Sprint(tt.modules, " modules: ")
		check(t, what+"they are short", len(text) <= 2000, true)
		check(t, what+"they use the room", tt.modules == 3 || len(text) > 1500, true)
		checkContains(t, what+"the first", lines[1], "- m0: "+tt.short)
		checkContains(t, what+"the second", lines[2], "- m1: "+tt.long)
		checkContains(t, what+"the last", lines[len(lines)-1], tt.last)
		hidden, _ := strconv.Atoi(strings.Trim(lines[len(lines)-1], "and more."))
		check(t, what+"named and counted", len(lines)-1-min(hidden, 1)+hidden, tt.modules)
	}
}

// Arguments and results reach the other side unchanged, except _webhook.
func TestCallsPassThrough(t *testing.T) {
	long(t)
	c := connect(t, startFakes(t, "a: good").URL)
	for _, tt := range []struct{ name, tool, arguments, want string }{
		{"a big integer", "a_echo", `{"n":9007199254740993123}`, `9007199254740993123`},
		{"unknown fields", "a_echo", `{"x":{"y":[1,{"z":null}]}}`,
			`{\"x\":{\"y\":[1,{\"z\":null}]}}`},
		{"_webhook is left out", "a_echo", `{"_webhook":{"method":"POST"},"x":1}`,
			`\"arguments\":{\"x\":1}`},
		{name: "a module's own error", tool: "a_error",
			want: `"error":{"code":-32099,"message":"an error of its own","data":{"n":9007199254740993}}`},
		{"a failure is a result", "a_fail", ``, `"isError":true`},
	} {
		checkContains(t, tt.name, c.Call(tt.tool, tt.arguments).Body, tt.want)
	}
	big := c.Call("a_big", `{"bytes":5000000}`)
	check(t, "a big result is complete", len(big.Body) > 5_000_000, true)
}

// Members that a module in Go would take for usher's own do not reach it.
func TestLookalikesAreDropped(t *testing.T) {
	long(t)
	c := connect(t, startFakes(t, "a: good").URL)
	for _, params := range []string{
		`{"name":"a_echo","Arguments":{"_webhook":{},"x":9}}`,
		`{"name":"a_echo","arguments":{"_webhook":{},"x":9},"arguments":{"x":1}}`,
		`{"name":"a_echo","arguments":{"x":1},"ARGUMENT\u017f":{"_webhook":{}}}`,
		`{"name":"a_echo","arguments":{"x":1,"_webhooK":{},"_Webhook":{}}}`,
		`{"name":"a_echo","arguments":{"x":1,"__proto__":{"_webhook":{}}}}`,
		`{"name":"a_fail","name":"a_echo","Name":"fail","NAME":"fail","nam\u0065":"a_echo"}`,
		`{"name":"a_echo","_meta":{},"_Meta":{"progressToken":9}}`,
		`{"name":"a_echo","_meta":{"progressToken":9,"ProgressToken":9,"usher/call":9,` +
			`"Usher/call":9},"_META":{}}`,
		`{"_meta":{"progressToken":9},"name":"a_echo","_meta":{"x":1,"usher/Call":9}}`,
	} {
		t.Run(params, func(t *testing.T) {
			var got struct {
				Name      string
				Arguments map[string]any
				Meta      map[string]any `json:"_meta"`
			}
			text := c.Ask("tools/call", params).Text()
			must(t, json.Unmarshal([]byte(text), &got))
			check(t, "name", got.Name, "echo")
			for key, value := range got.Arguments {
				if key != "x" || value != 1.0 {
					t.Errorf("the module gets the arguments %v", got.Arguments)
				}
			}
			for key := range got.Meta {
				if key != "x" &&
					(key != "progressToken" || strings.Count(text, "rogress") != 1) {
					t.Errorf("the module gets %s", text)
				}
			}
		})
	}
}

// Progress reaches its own call, under the client's token, even if sessions use equal ones. A client
// that gives no token gets none.
func TestProgressKeepsItsToken(t *testing.T) {
	long(t)
	d := startFakes(t, "a: shared good")
	var all sync.WaitGroup
	for n := range 12 {
		token := []string{`"t"`, `7`, `"7"`}[n%3]
		all.Go(func() {
			const params = `{"name":"a_progress","arguments":{"n":%d},"_meta":{"progressToken":%s}}`
			a := connect(t, d.URL).Ask("tools/call", fmt.Sprintf(params, n, token))
			check(t, "messages with the token "+token, len(a.Events), n+1)
			for i := range n {
				params := field(a.Events[i], "params")
				check(t, "token", string(field(params, "progressToken")), token)
				check(t, "progress", string(field(params, "progress")), fmt.Sprint(i+1))
			}
		})
	}
	all.Wait()
	quiet := connect(t, d.URL).Ask("tools/call", `{"name":"a_progress","arguments":{"n":1}}`)
	const what = "the answer to a request without a token"
	checkOmits(t, what, quiet.Body, "notifications/progress")
	checkContains(t, what, quiet.Body, `"result"`)
}

// A log message reaches the session of its call or process, unless the session wants less.
// In a process for all callers, it has to name its call.
func TestLogMessagesReachOneSessionOnly(t *testing.T) {
	long(t)
	d := startFakes(t, "own: good", "all: shared good", "named: shared good names",
		"new: modern tools=echo")
	one, other := connect(t, d.URL), connect(t, d.URL)
	messages, hangUp := other.Listen()
	say := func(module string) int {
		a := one.Call(module+"_log", `{"level":"warning","data":"hello"}`)
		return len(a.Events) - 1
	}
	check(t, "messages from the session's process", say("own"), 1)
	check(t, "messages that name their call", say("named"), 1)
	check(t, "messages that don't", say("all"), 0)
	d.awaitLog(t, `"module message"`)
	one.Ask("logging/setLevel", `{"level":"error"}`)
	check(t, "messages below the level", say("own")+say("named"), 0)
	params := one.Call("new_echo", "").Text()
	checkContains(t, "params for a module without sessions", params, `logLevel":"error"`)
	hangUp()
	for e := range messages {
		checkOmits(t, "another session's stream", e.Data, "hello")
	}
}

// A cancelled call gets no answer, and its module hears of it.
func TestCancelReachesTheModule(t *testing.T) {
	long(t)
	d := startFakes(t, "a: good")
	c := connect(t, d.URL)
	call := c.Message("tools/call", `{"name":"a_sleep","arguments":{"ms":60000}}`)
	id := string(field(call, "id"))
	for n, accept := range []string{bothKinds, "application/json", "text/event-stream"} {
		t.Run(accept, func(t *testing.T) {
			done := make(chan answer, 1)
			req := c.Request("POST", call)
			req.Header.Set("Accept", accept)
			go func() { done <- c.Do(req) }()
			logged := func(text string) func() bool {
				return func() bool { return d.logged(text) > n }
			}
			await(t, "the call to begin", logged("fake: sleeping"))
			for range maxInFlight { // refused requests do not count
				a := c.Post(rpcAs(id, "ping", "{}"))
				checkContains(t, "an id in flight", a.Body, "is already in use")
			}
			c.Cancel(`"other"`)
			c.Cancel(id)
			a := <-done
			check(t, "the cancelled call succeeded", a.Status/100, 2)
			check(t, "answers to the cancelled call", len(a.Events), 0)
			await(t, "the module to hear of it", logged("fake: cancelled"))
		})
	}
	checkContains(t, "the next call", c.Call("a_echo", "").Body, `"result"`)
	checkOmits(t, "the log", d.Log.String(), "superfluous") // a status that is written twice
}

// Each session, call, claim and invalid code is a line of the log, which names the client, the
// address, and the claim by its creation and its label, also after its end. It contains no code.
func TestLogNamesCalls(t *testing.T) {
	long(t)
	p := startProjects(t)
	claim, err := openStore(t, p.Base).Create(t.Context(), p.dir+"/proj", "a phone", time.Hour)
	must(t, err)
	writeFake(t, p.dir+"/proj/rich.usher", "good tools=tell,fail res=rich")
	c := p.session(inHeader(claim.Code.Reveal()))
	c.AwaitTools("a_pid", "a_sleep", "a_x", "rich_fail", "rich_tell")
	c.Call("a_x", "")
	c.Call("rich_fail", "")
	c.Call("no_such", "")
	c.Ask("prompts/get", `{"name":"no_such"}`)
	c.Ask("prompts/get", `{"name":"rich_say"}`)
	c.Ask("resources/read", `{"uri":"rich://one"}`)
	c.Ask("resources/subscribe", `{"uri":"rich://one"}`)
	c.Ask("completion/complete",
		`{"ref":{"type":"ref/prompt","name":"rich_say"},"argument":{"name":"x","value":""}}`)
	listTools(c, inHeader("ABCDEF"))
	p.revoke(claim.Code.Reveal())
	c.Call("a_pid", "")
	newClient(t, p.URL).Modern("tools/list", "{}", inHeader(claim.Code.Reveal()))
	of := `claim=` + regexp.QuoteMeta(claim.Created()) + ` label="a phone"`
	const session, remote = `session=[A-Z2-7]{8}… `, ` remote=127.0.0.1`
	how := ` took=[0-9.]+[mµ]?s bytes=[0-9]+ client="test 1" ` + session + of + remote
	for _, want := range []string{
		`msg=session client="test 1" ` + session + of + remote,
		`msg=call request=tools/call method=a_pid outcome="the claim .* ended.*"` + how,
		`msg=call request=tools/call module=a method=x outcome=done` + how,
		`msg=call request=tools/call module=rich method=fail outcome="failed: .*"` + how,
		`msg=call request=tools/call method=no_such outcome="unknown tool \\"no_such\\""` + how,
		`msg=call request=prompts/get method=no_such outcome="unknown prompt \\"no_such\\""` + how,
		`msg=call request=prompts/get module=rich method=say outcome=done` + how,
		`msg=call request=resources/read module=rich method=rich://one outcome=done` + how,
		`msg=call request=completion/complete module=rich method=say outcome=done` + how,
		`msg="an invalid claim code was presented" ` + session + of + remote,
		`msg="an invalid claim code was presented"` + remote,
		`msg=refused request=[A-Z2-7]+` + remote + ` status=400 why="the presented .*"`,
		`msg="claim ended" ` + of,
	} {
		line := regexp.MustCompile(`(?m)^time=20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\S+ level=[A-Z]+ ` + want + `$`)
		log := p.Log.String()
		if n := len(line.FindAllString(log, -1)); n != 1 {
			t.Errorf("%d lines like %s in:\n%s", n, want, log)
		}
	}
	p.hidesCodes(t, claim.Code.Reveal(), "ABCDEF")
}

// A request of 2026-07-28 hears log messages of its level only.
func TestLogLevelOfARequest(t *testing.T) {
	long(t)
	c := newClient(t, startFakes(t, "a: good").URL)
	for level, heard := range map[string]bool{
		"":        false,
		"debug":   true,
		"warning": true,
		"error":   false,
	} {
		t.Run("log level "+level, func(t *testing.T) {
			meta := ""
			if level != "" {
				meta = `,"_meta":{"io.modelcontextprotocol/logLevel":"` + level + `"}`
			}
			a := c.Modern("tools/call",
				`{"name":"a_log","arguments":{"level":"warning","data":"hello"}`+meta+`}`)
			check(t, "the client hears the warning",
				strings.Contains(a.Body, "notifications/message"), heard)
			checkContains(t, "the answer", a.Body, `"result"`)
		})
	}
}

// A process does not keep the call that it was started for.
func TestProcessKeepsNoCall(t *testing.T) {
	alone(t) // it measures memory
	inBubbleWith(t, 1<<20, func(t *testing.T, b *bubble) {
		heap := func() int {
			runtime.GC()
			var stats runtime.MemStats
			runtime.ReadMemStats(&stats)
			return int(stats.HeapAlloc)
		}
		before := heap()
		arguments := `{"echo":"` + strings.Repeat("x", 1_000_000) + `"}`
		for range maxProcsOf {
			b.open(protocols[0]).Call("m_wait", arguments)
		}
		b.Modern("tools/call", `{"name":"m_wait","arguments":`+arguments+`}`)
		pass(time.Minute)
		b.hears() // drops what m was sent
		check(t, "processes", b.m.pool.count(workerReady), maxProcsOf+1)
		check(t, "it keeps calls", heap()-before > 2_000_000, false)
	})
}
