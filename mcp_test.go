// The MCP endpoint as clients meet it, over HTTP and over stdio.

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
)

// oneFake serves a workspace with one module, "a", that is a good fake.
func oneFake(t *testing.T, flags ...string) *testClient {
	t.Helper()
	dir := t.TempDir()
	writeFake(t, dir+"/a.usher", "good")
	d := startDaemon(t, dir, flags...)
	c := connect(t, d.URL)
	c.daemon = d
	return c
}

// badRequest is a request, bad or not. It is a ping by POST unless it says otherwise.
type badRequest struct {
	name   string
	method string
	path   string
	header string // "Name: value", or "Name:" to leave one out
	body   string
	status int
	says   string
}

func rpcText(method, params string) string {
	return `{"jsonrpc":"2.0","id":1,"method":"` + method + `","params":` + params + `}`
}

func badRequests() []badRequest {
	call := func(arguments string) string {
		return rpcText("tools/call", `{"name":"a_echo","arguments":`+arguments+`}`)
	}
	deep := strings.Repeat("[", 10_001) + strings.Repeat("]", 10_001)
	lines := strings.ReplaceAll(call(`{"x":1}`), ",", ",\n")
	return []badRequest{
		{name: "a ping", status: 200, says: `{"jsonrpc":"2.0","id":1,"result":{}}`},
		{name: "a ping at /mcp", path: "mcp", status: 200, says: `"result":{}`},
		{name: "malformed JSON", body: `{"jsonrpc":"2.0",`, status: 400, says: `"code":-32700`},
		{name: "invalid UTF-8", body: rpcText("pi\xffng", "{}"), status: 400, says: "not valid UTF-8"},
		{name: "10,000 levels", body: rpcText("ping", `{"x":`+deep+`}`), status: 400, says: `"code":-32700`},
		{name: "a body over the limit", body: rpcText("ping", `{"x":"`+strings.Repeat("x", 1<<20)+`"}`), status: 413,
			says: "1 MiB (-max-body)"},
		{name: "no JSON-RPC version", body: `{"id":1,"method":"ping"}`, status: 400,
			says: `"id":1,"error":{"code":-32600`},
		{name: "params that are a list", body: rpcText("ping", "[]"), status: 400, says: "params must be an object"},
		{name: "an id that is null", body: `{"jsonrpc":"2.0","id":null,"method":"ping"}`, status: 400,
			says: "id must be"},
		{name: "a key in another case", body: `{"jsonrpc":"2.0","id":1,"method":"ping","METHOD":"nope"}`,
			status: 200, says: `"result":{}`},
		{name: "an unknown method", body: rpcText("nope", "{}"), status: 200, says: `"code":-32601`},
		{name: "a message in several lines", body: lines, status: 200, says: `{\"x\":1}`},
		{name: "an unknown notification", body: `{"jsonrpc":"2.0","method":"notifications/nope"}`, status: 202},
		{name: "an unknown tool", body: rpcText("tools/call", `{"name":"nope"}`), status: 200,
			says: `"code":-32602,"message":"unknown tool \"nope\""`},
		{name: "a list as arguments", body: call("[]"), status: 200, says: "arguments must be an object"},
		{name: "an unknown resource", body: rpcText("resources/read", `{"uri":"x://y"}`), status: 200,
			says: `"code":-32002`},
		{name: "another content type", header: "Content-Type: text/plain", status: 415},
		{name: "no content type", header: "Content-Type:", status: 415},
		{name: "an Accept of neither", header: "Accept: text/html", status: 406},
		{name: "no Accept", header: "Accept:", status: 200, says: `"result":{}`},
		{name: "an Accept with streams first", header: "Accept: text/event-stream, application/json", status: 200,
			says: "event: message\ndata: {"},
		{name: "an unknown version", header: "MCP-Protocol-Version: 1999-01-01", status: 400, says: "1999-01-01"},
		{name: "no session", header: "Mcp-Session-Id:", status: 400, says: "send initialize first"},
		{name: "a forged session", header: "Mcp-Session-Id: " + strings.Repeat("A", 75), status: 404,
			says: "send initialize again"},
		{name: "a foreign Host", header: "Host: evil.example", status: 403, says: "-allow-host evil.example"},
		{name: "a Host that was allowed", header: "Host: usher.example:8443", status: 200},
		{name: "a Host that is an address", header: "Host: 10.1.2.3:3000", status: 200},
		{name: "a Host that is localhost", header: "Host: LOCALHOST.", status: 200},
		{name: "a Host that a shell would run", header: "Host: $(id).localhost", status: 403},
		{name: "a Host under localhost", header: "Host: my-app.localhost:3000", status: 200},
		{name: "a foreign Origin", header: "Origin: https://evil.example", status: 403,
			says: "-allow-origin https://evil.example"},
		{name: "an Origin of null", header: "Origin: null", status: 403},
		{name: "an unreadable Origin", header: "Origin: ://", status: 403},
		{name: "an Origin that was allowed", header: "Origin: https://app.example", status: 200},
		{name: "an Origin on this machine", header: "Origin: http://localhost:5173", status: 200},
		{name: "an Origin that only looks allowed", header: "Origin: https://app.example.evil.example", status: 403},
		{name: "another site's form", header: "Sec-Fetch-Site: cross-site", status: 403},
		{name: "another site's picture", method: "GET", header: "Sec-Fetch-Site: cross-site", status: 403},
		{name: "a GET of 2026-07-28", method: "GET", header: "MCP-Protocol-Version: 2026-07-28", status: 405},
		{name: "a notification of that revision", header: "MCP-Protocol-Version: 2026-07-28",
			body: `{"jsonrpc":"2.0","method":"notifications/x"}`, status: 202},
		{name: "a response of that revision", header: "MCP-Protocol-Version: 2026-07-28",
			body: `{"jsonrpc":"2.0","id":1,"result":{}}`, status: 400},
		{name: "HEAD", method: "HEAD", status: 405},
		{name: "an unknown session log level", body: rpcText("logging/setLevel", `{"level":"loud"}`), status: 200,
			says: `"code":-32602`},
		{name: "PUT", method: "PUT", status: 405, says: "POST, GET, DELETE"},
		{name: "an unknown path", path: "nope", status: 404, says: `"error"`},
		{name: "a path with two slashes", path: "/mcp?claim=R3K9QZ", status: 404, says: `"error"`},
		{name: "a GET without Accept", method: "GET", header: "Accept:", status: 406},
		{name: "a browser's GET", method: "GET", header: "Accept: text/html,*/*;q=0.8", status: 200},
		{name: "a huge header", header: "X-Big: " + strings.Repeat("x", 24<<10), status: 431},
		{name: "health, with any Host", method: "GET", path: "healthz", header: "Host: probe.example", status: 200,
			says: "ok"},
	}
}

func TestBadRequests(t *testing.T) {
	long(t)
	c := oneFake(t, "-max-body", "1MiB", "-allow-host", "usher.example", "-allow-origin", "https://app.example",
		"-open", "-open-webhooks")
	for _, tt := range badRequests() {
		t.Run(tt.name, func(t *testing.T) {
			if tt.method == "" {
				tt.method = http.MethodPost
			}
			if tt.body == "" {
				tt.body = rpcText("ping", "{}")
			}
			req := c.request(tt.method, tt.body)
			req.URL.Path += tt.path
			if host, ok := strings.CutPrefix(tt.header, "Host: "); ok {
				req.Host = host
			} else {
				setHeaders(req, tt.header)
			}
			a := c.do(req)
			check(t, "status", a.Status, tt.status)
			checkContains(t, "the answer", a.Body, tt.says)
			check(t, "it has a request id", a.Header.Get(requestIDHeader) != "", tt.status != 431)
		})
	}
}

func TestPreflight(t *testing.T) {
	long(t)
	c := oneFake(t, "-allow-origin", "https://app.example")
	preflight := func(origin string) answer {
		req := c.request(http.MethodOptions, "")
		req.Header.Set("Origin", origin)
		req.Header.Set("Access-Control-Request-Method", "POST")
		req.Header.Set("Access-Control-Request-Headers", "content-type,Mcp-Session-Id")
		return c.do(req)
	}
	check(t, "status for another origin", preflight("https://other.example").Status, 403)
	a := preflight("https://app.example")
	check(t, "status", a.Status, 204)
	check(t, "the allowed origin", a.Header.Get("Access-Control-Allow-Origin"), "https://app.example")
	checkContains(t, "the allowed headers", a.Header.Get("Access-Control-Allow-Headers"), "Mcp-Session-Id")
	req := c.request(http.MethodPost, c.message("ping", ""))
	req.Header.Set("Origin", "https://app.example")
	checkContains(t, "the exposed headers", c.do(req).Header.Get("Access-Control-Expose-Headers"), "Mcp-Session-Id")
}

func TestVersionNegotiation(t *testing.T) {
	t.Parallel()
	c := oneFake(t)
	c.tools() // the instructions name the modules that are ready
	for asked, want := range map[string]string{
		"2025-11-25": "2025-11-25",
		"2024-01-01": "2025-11-25",
	} {
		a := c.post(initializeAs(asked))
		check(t, "the version for "+asked, stringField(a.result(), "protocolVersion"), want)
		checkContains(t, "the instructions", stringField(a.result(), "instructions"), "- a: A fake module.")
	}
	a := c.post(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}`)
	checkContains(t, "initialize without a version", a.failure(), "protocolVersion")
}

func TestCallsPassThrough(t *testing.T) {
	long(t)
	c := oneFake(t)
	for _, tt := range []struct{ name, tool, arguments, want string }{
		{"a big integer", "a_echo", `{"n":9007199254740993123}`, `9007199254740993123`},
		{"unknown fields", "a_echo", `{"x":{"y":[1,{"z":null}]}}`, `{\"x\":{\"y\":[1,{\"z\":null}]}}`},
		{"_webhook is left out", "a_echo", `{"_webhook":{"method":"POST"},"x":1}`, `\"arguments\":{\"x\":1}`},
		{name: "a module's own error", tool: "a_error",
			want: `"error":{"code":-32099,"message":"an error of its own","data":{"n":9007199254740993}}`},
		{"a failure is a result", "a_fail", ``, `"isError":true`},
	} {
		checkContains(t, tt.name, c.call(tt.tool, tt.arguments).Body, tt.want)
	}
	big := c.call("a_big", `{"bytes":5000000}`)
	check(t, "a big result is complete", len(big.Body) > 5_000_000, true)
}

// TestLookalikes sends params with members that a module in Go would take for usher's own.
func TestLookalikes(t *testing.T) {
	long(t)
	c := oneFake(t)
	for _, params := range []string{
		`{"name":"a_echo","Arguments":{"_webhook":{},"x":9}}`,
		`{"name":"a_echo","arguments":{"_webhook":{},"x":9},"arguments":{"x":1}}`,
		`{"name":"a_echo","arguments":{"x":1},"ARGUMENT\u017f":{"_webhook":{}}}`,
		`{"name":"a_echo","arguments":{"x":1,"_webhooK":{},"_Webhook":{}}}`,
		`{"name":"a_fail","name":"a_echo","Name":"fail","NAME":"fail","nam\u0065":"a_echo"}`,
		`{"name":"a_echo","_meta":{},"_Meta":{"progressToken":9}}`,
		`{"name":"a_echo","_meta":{"progressToken":9,"ProgressToken":9,"usher/call":9,"Usher/call":9},"_META":{}}`,
		`{"_meta":{"progressToken":9},"name":"a_echo","_meta":{"x":1,"usher/Call":9}}`,
	} {
		t.Run(params, func(t *testing.T) {
			var got struct {
				Name      string
				Arguments map[string]any
				Meta      map[string]any `json:"_meta"`
			}
			text := resultText(c.ask("tools/call", params).result())
			must(t, json.Unmarshal([]byte(text), &got))
			check(t, "name", got.Name, "echo")
			for key, value := range got.Arguments {
				if key != "x" || value != 1.0 {
					t.Errorf("the module gets the arguments %v", got.Arguments)
				}
			}
			for key := range got.Meta {
				if key != "x" && (key != "progressToken" || strings.Count(text, "rogress") != 1) {
					t.Errorf("the module gets %s", text)
				}
			}
		})
	}
}

func TestParseParams(t *testing.T) {
	for params, want := range map[string]string{
		``:                                         `{}`,
		`{"name": "x", "X":1, "x":2, "x":3}`:       `{"name":"x","X":1,"x":2,"x":3}`,
		`{"n":12345678901234567890,"URI":"b"}`:     `{"n":12345678901234567890}`,
		`{"uri":"a","x":1,"uri":"b","Uri":"c"}`:    `{"x":1,"uri":"b"}`,
		`{"ref":{"name":"a","Name":"b"},"Ref":{}}`: `{"ref":{"name":"a"}}`,
		`{"_meta":{"IO.modelcontextprotocol/clientCapabilities":{},"y":[]}}`:     `{"_meta":{"y":[]}}`,
		`{"RequestState":"s","inputresponses":{},"inputResponses":{"a":"Name"}}`: `{"inputResponses":{"a":"Name"}}`,
	} {
		check(t, params, string(parseParams(rawOrNil(params)).encode()), want)
	}
}

// TestProgress has many sessions wait for progress of one process under the same token.
func TestProgress(t *testing.T) {
	long(t)
	d := startFakes(t, "a: shared good")
	c := connect(t, d.URL)
	c.awaitTools(namesOf("a")...)
	var all sync.WaitGroup
	for n := range 12 {
		token := []string{`"t"`, `7`, `"7"`}[n%3]
		all.Go(func() {
			const params = `{"name":"a_progress","arguments":{"n":%d},"_meta":{"progressToken":%s}}`
			a := connect(t, d.URL).ask("tools/call", fmt.Sprintf(params, n, token))
			check(t, "messages with the token "+token, len(a.Events), n+1)
			for i := range n {
				params := field(a.Events[i], "params")
				check(t, "token", string(field(params, "progressToken")), token)
				check(t, "progress", string(field(params, "progress")), fmt.Sprint(i+1))
			}
		})
	}
	all.Wait()
}

// TestLogMessagesReachOneSessionOnly has modules log: a message reaches the session of its call or process, unless the
// session wants less. In a process for all callers, it has to name its call.
func TestLogMessagesReachOneSessionOnly(t *testing.T) {
	long(t)
	d := startFakes(t, "own: good", "all: shared good", "named: shared good names", "new: modern tools=echo")
	one, other := connect(t, d.URL), connect(t, d.URL)
	messages, hangUp := other.listen()
	say := func(module string) int {
		a := one.call(module+"_log", `{"level":"warning","data":"hello"}`)
		return len(a.Events) - 1
	}
	check(t, "messages from the session's process", say("own"), 1)
	check(t, "messages that name their call", say("named"), 1)
	check(t, "messages that don't", say("all"), 0)
	d.awaitLog(t, `"module message"`)
	one.ask("logging/setLevel", `{"level":"error"}`)
	check(t, "messages below the level", say("own")+say("named"), 0)
	params := resultText(one.call("new_echo", "").result())
	checkContains(t, "params for a module without sessions", params, `logLevel":"error"`)
	hangUp()
	for e := range messages {
		checkOmits(t, "another session's stream", e.data, "hello")
	}
}

func TestCancel(t *testing.T) {
	long(t)
	c := oneFake(t)
	call := c.message("tools/call", `{"name":"a_sleep","arguments":{"ms":60000}}`)
	id := string(field(json.RawMessage(call), "id"))
	cancel := func(id string) {
		c.post(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":` + id + `}}`)
	}
	for n, accept := range []string{bothKinds, "application/json", "text/event-stream"} {
		t.Run(accept, func(t *testing.T) {
			done := make(chan answer, 1)
			req := c.request(http.MethodPost, call)
			req.Header.Set("Accept", accept)
			go func() { done <- c.do(req) }()
			logged := func(text string) func() bool {
				return func() bool { return strings.Count(c.daemon.Log.String(), text) > n }
			}
			await(t, "the call to begin", logged("fake: sleeping"))
			a := c.post(`{"jsonrpc":"2.0","id":` + id + `,"method":"ping"}`)
			checkContains(t, "an id in flight", a.Body, "is already in use")
			cancel(`"other"`)
			cancel(id)
			a = <-done
			check(t, "the cancelled call succeeded", a.Status/100, 2)
			check(t, "answers to the cancelled call", len(a.Events), 0)
			await(t, "the module to hear of it", logged("fake: cancelled"))
		})
	}
	checkContains(t, "the next call", c.call("a_echo", "").Body, `"result"`)
	checkOmits(t, "the log", c.daemon.Log.String(), "superfluous") // a status that is written twice
}

func TestCallTimeout(t *testing.T) {
	long(t)
	c := oneFake(t, "-call-timeout", "200ms")
	c.call("a_pid", "")
	silent := c.call("a_sleep", `{"ms":60000}`)
	checkContains(t, "a silent call", silent.failure(), "no answer and no progress within 200ms")
	checkContains(t, "the next call", c.call("a_echo", "").Body, `"result"`)
}

func TestStdio(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	writeFake(t, dir+"/a.usher", "good")
	in, out, exit := startStdio(t, dir)
	send := func(id, method, params string) {
		io.WriteString(in, string(encodeRequest(rawOrNil(id), method, rawOrNil(params)))+"\n")
	}
	want := func(what string, texts ...string) {
		t.Helper()
		line, err := out.next()
		must(t, err)
		must(t, checkJSON(line, "it"))
		check(t, what+": jsonrpc", stringField(line, "jsonrpc"), "2.0")
		checkContains(t, what, string(line), texts...)
	}
	send("1", "initialize", `{"protocolVersion":"2025-06-18"}`)
	want("initialize", `"protocolVersion":"2025-06-18"`)
	send("", "notifications/initialized", "")
	io.WriteString(in, `{"half`+"\n")
	want("half a line", `{"jsonrpc":"2.0","error":{"code":-32700`)
	send("2", "tools/list", "")
	want("tools/list", `"a_echo"`)
	send("3", "tools/call", `{"name":"a_progress","arguments":{"n":2},"_meta":{"progressToken":"p"}}`)
	want("progress", `"progress":1`)
	want("progress", `"progress":2`)
	want("the call", `"id":3,"result"`)
	send("4", "tools/call", `{"name":"a_sleep","arguments":{"ms":60000}}`)
	send("", "notifications/cancelled", `{"requestId":4}`)
	send("5", "tools/call", `{"name":"a_sleep","arguments":{"ms":100}}`)
	in.Close()
	want("a call under way at the end of input", `"id":5,"result"`)
	code := <-exit
	check(t, "exit status", code, 0)
	exit <- code
}
