// The MCP endpoint, as clients and others meet it: over HTTP and over stdio.

package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
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

func TestBadRequests(t *testing.T) {
	t.Parallel()
	c := oneFake(t, "-max-body", "1MiB", "-allow-host", "usher.example", "-allow-origin", "https://app.example", "-open", "-open-webhooks")
	ping := `{"jsonrpc":"2.0","id":1,"method":"ping"}`
	long := strings.Repeat("x", 1<<20)
	deep := strings.Repeat("[", 10_001) + strings.Repeat("]", 10_001)
	tests := []struct {
		name   string
		method string // POST if empty
		path   string
		header string // "Name: value", or "Name:" to leave one out
		body   string // a ping if empty
		status int
		says   string
	}{
		{name: "a ping", status: 200, says: `{"jsonrpc":"2.0","id":1,"result":{}}`},
		{name: "a ping at /mcp", path: "mcp", status: 200, says: `"result":{}`},
		{name: "malformed JSON", body: `{"jsonrpc":"2.0",`, status: 400, says: `"code":-32700`},
		{name: "an empty body", body: ` `, status: 400, says: "the message is empty"},
		{name: "text after the message", body: ping + `x`, status: 400, says: `"code":-32700`},
		{name: "invalid UTF-8", body: "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"pi\xffng\"}", status: 400, says: "not valid UTF-8"},
		{name: "10,000 levels", body: `{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":` + deep + `}}`, status: 400, says: `"code":-32700`},
		{name: "a body over the limit", body: `{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":"` + long + `"}}`, status: 413, says: "1 MiB (-max-body)"},
		{name: "no JSON-RPC version", body: `{"id":1,"method":"ping"}`, status: 400, says: `"id":1,"error":{"code":-32600`},
		{name: "no method", body: `{"jsonrpc":"2.0","id":1}`, status: 400, says: "a message needs a method"},
		{name: "a method that is a number", body: `{"jsonrpc":"2.0","id":1,"method":7}`, status: 400, says: "non-empty string"},
		{name: "params that are a list", body: `{"jsonrpc":"2.0","id":1,"method":"ping","params":[]}`, status: 400, says: "params must be an object"},
		{name: "an id that is null", body: `{"jsonrpc":"2.0","id":null,"method":"ping"}`, status: 400, says: "id must be"},
		{name: "an id that is a fraction", body: `{"jsonrpc":"2.0","id":1.5,"method":"ping"}`, status: 400, says: "id must be"},
		{name: "a key in another case", body: `{"jsonrpc":"2.0","id":1,"method":"ping","METHOD":"nope"}`, status: 200, says: `"result":{}`},
		{name: "a batch", body: `[` + ping + `]`, status: 400, says: "batches"},
		{name: "an unknown method", body: `{"jsonrpc":"2.0","id":1,"method":"nope"}`, status: 200, says: `"code":-32601`},
		{name: "a string id comes back as one", body: `{"jsonrpc":"2.0","id":"1","method":"ping"}`, status: 200, says: `"id":"1"`},
		{name: "a message over several lines", body: "{\n\"jsonrpc\":\"2.0\",\n\"id\":1,\n\"method\":\"tools/call\",\"params\":{\"name\":\"a_echo\",\n\"arguments\":{\"x\":\n1}}}", status: 200, says: `{\"x\":1}`},
		{name: "a response to nothing", body: `{"jsonrpc":"2.0","id":9,"result":{}}`, status: 202},
		{name: "an unknown notification", body: `{"jsonrpc":"2.0","method":"notifications/nope"}`, status: 202},
		{name: "an unknown tool", body: `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"nope"}}`, status: 200, says: `"code":-32602,"message":"unknown tool \"nope\""`},
		{name: "a call without a name", body: `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{}}`, status: 200, says: `"code":-32602`},
		{name: "arguments that are a list", body: `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a_echo","arguments":[]}}`, status: 200, says: "arguments must be an object"},
		{name: "arguments that are null", body: `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a_echo","arguments":null}}`, status: 200, says: "arguments must be an object"},
		{name: "an unknown log level", body: `{"jsonrpc":"2.0","id":1,"method":"logging/setLevel","params":{"level":"loud"}}`, status: 200, says: `"code":-32602`},
		{name: "a prompt that is not there", body: `{"jsonrpc":"2.0","id":1,"method":"prompts/get","params":{"name":"nope"}}`, status: 200, says: `"code":-32602`},
		{name: "a resource that is not there", body: `{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"x://y"}}`, status: 200, says: `"code":-32002`},
		{name: "another content type", header: "Content-Type: text/plain", status: 415},
		{name: "no content type", header: "Content-Type:", status: 415},
		{name: "JSON with a charset", header: "Content-Type: application/json; charset=utf-8", status: 200},
		{name: "an Accept of neither", header: "Accept: text/html", status: 406},
		{name: "no Accept", header: "Accept:", status: 200, says: `"result":{}`},
		{name: "an Accept of streams alone", header: "Accept: text/event-stream", status: 200, says: "data: {"},
		{name: "an Accept with streams first", header: "Accept: text/event-stream, application/json", status: 200, says: "event: message\ndata: {"},
		{name: "an unknown version", header: "MCP-Protocol-Version: 1999-01-01", status: 400, says: "1999-01-01"},
		{name: "an older version", header: "MCP-Protocol-Version: 2025-03-26", status: 200},
		{name: "no session", header: "Mcp-Session-Id:", status: 400, says: "send initialize first"},
		{name: "a forged session", header: "Mcp-Session-Id: " + strings.Repeat("A", 75), status: 404, says: "send initialize again"},
		{name: "a session that is no base64", header: "Mcp-Session-Id: %%%", status: 404},
		{name: "half a session", header: "Mcp-Session-Id: " + c.Session[:20], status: 404},
		{name: "a foreign Host", header: "Host: evil.example", status: 403, says: "-allow-host evil.example"},
		{name: "a Host that was allowed", header: "Host: usher.example:8443", status: 200},
		{name: "a Host that is an address", header: "Host: 10.1.2.3:3000", status: 200},
		{name: "a Host that is localhost", header: "Host: LOCALHOST.", status: 200},
		{name: "a Host that only begins so", header: "Host: localhost.evil.example", status: 403},
		{name: "a Host that a shell would run", header: "Host: $(id).localhost", status: 403},
		{name: "a Host under localhost", header: "Host: my-app.localhost:3000", status: 200},
		{name: "a foreign Origin", header: "Origin: https://evil.example", status: 403, says: "-allow-origin https://evil.example"},
		{name: "an Origin of null", header: "Origin: null", status: 403},
		{name: "an Origin that can't be read", header: "Origin: ://", status: 403},
		{name: "an Origin that was allowed", header: "Origin: https://app.example", status: 200},
		{name: "an Origin on this machine", header: "Origin: http://localhost:5173", status: 200},
		{name: "an Origin that only looks allowed", header: "Origin: https://app.example.evil.example", status: 403},
		{name: "another site's form", header: "Sec-Fetch-Site: cross-site", status: 403},
		{name: "another site's picture", method: "GET", header: "Sec-Fetch-Site: cross-site", status: 403},
		{name: "PUT", method: "PUT", status: 405, says: "POST, GET or DELETE"},
		{name: "HEAD", method: "HEAD", status: 405},
		{name: "a path where nothing is", path: "nope", status: 404, says: `"error"`},
		{name: "a GET without Accept", method: "GET", header: "Accept:", status: 406},
		{name: "a browser's GET", method: "GET", header: "Accept: text/html,application/xhtml+xml,*/*;q=0.8", status: 200},
		{name: "a huge header", header: "X-Big: " + strings.Repeat("x", 200<<10), status: 431},
		{name: "health, whatever the Host", method: "GET", path: "healthz", header: "Host: probe.example", status: 200, says: "ok"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			method, body := tt.method, tt.body
			if method == "" {
				method = http.MethodPost
			}
			if body == "" {
				body = ping
			}
			req := c.request(method, body)
			req.URL.Path += tt.path
			if name, value, ok := strings.Cut(tt.header, ":"); ok {
				if value = strings.TrimSpace(value); name == "Host" {
					req.Host = value
				} else if req.Header.Del(name); value != "" {
					req.Header.Set(name, value)
				}
			}
			a := c.do(req)
			if a.Status != tt.status || !strings.Contains(a.Body, tt.says) {
				t.Errorf("%d %s, want %d with %q", a.Status, clipText(a.Body, 300), tt.status, tt.says)
			}
			if a.Header.Get(requestIDHeader) == "" && tt.status != 431 {
				t.Error("the answer has no request id")
			}
		})
	}
}

func TestPreflight(t *testing.T) {
	t.Parallel()
	c := oneFake(t, "-allow-origin", "https://app.example")
	for _, tt := range []struct {
		origin string
		status int
	}{{"https://app.example", 204}, {"https://other.example", 403}} {
		req := c.request(http.MethodOptions, "")
		req.Header.Set("Origin", tt.origin)
		req.Header.Set("Access-Control-Request-Method", "POST")
		req.Header.Set("Access-Control-Request-Headers", "content-type,Mcp-Session-Id")
		a := c.do(req)
		if a.Status != tt.status {
			t.Errorf("preflight from %s: %d, want %d", tt.origin, a.Status, tt.status)
		}
		if tt.status != 204 {
			continue
		}
		if !strings.Contains(a.Header.Get("Access-Control-Allow-Headers"), "Mcp-Session-Id") || a.Header.Get("Access-Control-Allow-Origin") != tt.origin {
			t.Errorf("preflight answered %v", a.Header)
		}
	}
	req := c.request(http.MethodPost, `{"jsonrpc":"2.0","id":1,"method":"ping"}`)
	req.Header.Set("Origin", "https://app.example")
	if a := c.do(req); !strings.Contains(a.Header.Get("Access-Control-Expose-Headers"), "Mcp-Session-Id") {
		t.Errorf("the session id is not exposed to scripts: %v", a.Header)
	}
}

func TestVersionNegotiation(t *testing.T) {
	t.Parallel()
	c := oneFake(t)
	for asked, want := range map[string]string{
		"2025-11-25": "2025-11-25", "2025-06-18": "2025-06-18", "2025-03-26": "2025-03-26",
		"2024-01-01": "2025-11-25", "3000-01-01": "2025-11-25",
	} {
		a := c.post(fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":%q}}`, asked))
		if got := stringField(a.result(), "protocolVersion"); got != want {
			t.Errorf("asked for %s: got %s, want %s", asked, got, want)
		}
		for _, r := range a.Header.Get(sessionHeader) {
			if r < 0x21 || r > 0x7e {
				t.Errorf("session id has a character %q", r)
			}
		}
	}
	if a := c.post(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}`); !strings.Contains(a.Body, "protocolVersion") {
		t.Errorf("initialize without a version: %s", a.Body)
	}
	a := c.post(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25"}}`)
	if got := stringField(a.result(), "instructions"); !strings.Contains(got, "- a: A fake module.") {
		t.Errorf("instructions: %q", got)
	}
}

func TestCallsPassThrough(t *testing.T) {
	t.Parallel()
	c := oneFake(t)
	for _, tt := range []struct{ name, tool, arguments, want string }{
		{"big integers keep their digits", "a_echo", `{"n":9007199254740993123}`, `9007199254740993123`},
		{"unknown fields stay", "a_echo", `{"x":{"y":[1,{"z":null}]}}`, `{\"x\":{\"y\":[1,{\"z\":null}]}}`},
		{"_webhook does not", "a_echo", `{"_webhook":{"method":"POST"},"x":1}`, `\"arguments\":{\"x\":1}`},
		{"no arguments are none", "a_echo", ``, `{\"name\":\"echo\",`},
		{"a module's own error passes", "a_error", ``, `"error":{"code":-32099,"message":"an error of its own","data":{"n":9007199254740993}}`},
		{"a failure is a result", "a_fail", ``, `"isError":true`},
		{"the webhook secret stays here", "a_env", `{"name":"SERVICE_WEBHOOK_SECRET"}`, `"text":"false "`},
	} {
		if a := c.call(tt.tool, tt.arguments); !strings.Contains(a.Body, tt.want) {
			t.Errorf("%s: %s, want %s", tt.name, a.Body, tt.want)
		}
	}
	if a := c.call("a_big", `{"bytes":20000000}`); len(a.Body) < 20_000_000 {
		t.Errorf("a big result came as %d bytes", len(a.Body))
	}
}

// TestLookalikes sends params with members that a module in Go would take for usher's own.
func TestLookalikes(t *testing.T) {
	t.Parallel()
	c := oneFake(t)
	for _, params := range []string{
		`{"name":"a_echo","Arguments":{"_webhook":{},"x":9}}`,
		`{"name":"a_echo","arguments":{"_webhook":{},"x":9},"arguments":{"x":1}}`,
		`{"name":"a_echo","arguments":{"x":1},"ARGUMENT\u017f":{"_webhook":{}}}`,
		`{"name":"a_echo","arguments":{"x":1,"_webhooK":{},"_Webhook":{}}}`,
		`{"name":"a_fail","name":"a_echo","Name":"fail","NAME":"fail","nam\u0065":"a_echo"}`,
		`{"name":"a_echo","_meta":{},"_Meta":{"progressToken":9}}`,
		`{"name":"a_echo","_meta":{"progressToken":9,"ProgressToken":9,"progresstoken":9,"Usher/call":9},"_META":{}}`,
		`{"_meta":{"progressToken":9},"name":"a_echo","_meta":{"x":1,"usher/Call":9}}`,
	} {
		a := c.ask("tools/call", params)
		var got struct {
			Name      string
			Arguments map[string]any
			Meta      map[string]any `json:"_meta"`
		}
		text := resultText(a.result())
		if err := json.Unmarshal([]byte(text), &got); err != nil || got.Name != "echo" {
			t.Errorf("%s: %s", params, a.Body)
		}
		for key, value := range got.Arguments {
			if key != "x" || value != 1.0 {
				t.Errorf("%s: the arguments are %v", params, got.Arguments)
			}
		}
		for key := range got.Meta {
			if key != "x" && (key != "progressToken" || strings.Count(text, "rogress") != 1) {
				t.Errorf("%s: the module gets %s", params, text)
			}
		}
	}
}

func TestParseParams(t *testing.T) {
	for params, want := range map[string]string{
		``:                                      `{}`,
		`{"name": "x", "X":1, "x":2, "x":3}`:    `{"name":"x","X":1,"x":2,"x":3}`,
		`{"n":12345678901234567890,"URI":"b"}`:  `{"n":12345678901234567890}`,
		`{"uri":"a","x":1,"uri":"b","Uri":"c"}`: `{"x":1,"uri":"b"}`,
		`{"ref":{"type":"ref/prompt","name":"a","Name":"b"},"Ref":{}}`:           `{"ref":{"type":"ref/prompt","name":"a"}}`,
		`{"ref":{"Type":1,"URI":2,"uri":3}}`:                                     `{"ref":{"uri":3}}`,
		`{"_meta":{"IO.modelcontextprotocol/clientCapabilities":{},"y":[]}}`:     `{"_meta":{"y":[]}}`,
		`{"RequestState":"s","inputresponses":{},"inputResponses":{"a":"Name"}}`: `{"inputResponses":{"a":"Name"}}`,
	} {
		if got := string(parseParams(rawOrNil(params)).encode()); got != want {
			t.Errorf("%s: %s, want %s", params, got, want)
		}
	}
}

func TestProgressUnderTheCallersToken(t *testing.T) {
	t.Parallel()
	c := oneFake(t)
	for _, token := range []string{`"t"`, `7`, `"7"`} {
		a := c.ask("tools/call", fmt.Sprintf(`{"name":"a_progress","arguments":{"n":3},"_meta":{"progressToken":%s}}`, token))
		if len(a.Events) != 4 {
			t.Fatalf("token %s: %d messages: %s", token, len(a.Events), a.Body)
		}
		for i, e := range a.Events[:3] {
			params := field(e, "params")
			if string(field(params, "progressToken")) != token || string(field(params, "progress")) != fmt.Sprint(i+1) {
				t.Errorf("token %s: note %d is %s", token, i, e)
			}
		}
	}
	if a := c.call("a_progress", `{"n":3}`); len(a.Events) != 1 {
		t.Errorf("progress that nobody asked for: %s", a.Body)
	}
	req := c.request(http.MethodPost, c.message("tools/call", `{"name":"a_progress","arguments":{"n":3},"_meta":{"progressToken":1}}`))
	req.Header.Set("Accept", "application/json")
	if a := c.do(req); len(a.Events) != 1 || a.result() == nil {
		t.Errorf("a client that takes no stream: %s", a.Body)
	}
}

func TestManyClientsWithOneToken(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	writeFake(t, dir+"/a.usher", "good shared")
	d := startDaemon(t, dir)
	connect(t, d.URL).awaitTools(namesOf("a")...)
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			mine := connect(t, d.URL)
			a := mine.ask("tools/call", fmt.Sprintf(`{"name":"a_progress","arguments":{"n":%d},"_meta":{"progressToken":"same"}}`, i+1))
			if len(a.Events) != i+2 {
				t.Errorf("client %d got %d messages", i, len(a.Events))
			}
		})
	}
	wg.Wait()
}

func TestLogMessagesReachOneSessionOnly(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	writeFake(t, dir+"/a.usher", "good shared")
	d := startDaemon(t, dir)
	one, other := connect(t, d.URL), connect(t, d.URL)
	say := `{"level":"warning","data":"hello"}`
	if a := one.call("a_log", say); len(a.Events) != 2 || !strings.Contains(a.Body, "hello") {
		t.Errorf("alone: %s", a.Body)
	}
	one.ask("logging/setLevel", `{"level":"error"}`)
	if a := one.call("a_log", say); len(a.Events) != 1 {
		t.Errorf("below the level: %s", a.Body)
	}
	one.ask("logging/setLevel", `{"level":"debug"}`)
	done := make(chan answer, 1)
	go func() { done <- other.call("a_sleep", `{"ms":60000}`) }()
	await(t, "a call that is not answered yet", func() bool {
		return len(one.call("a_log", say).Events) == 1
	})
	other.post(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`)
	<-done
}

func TestCancel(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	writeFake(t, dir+"/a.usher", "good")
	d := startDaemon(t, dir)
	c := connect(t, d.URL)
	c.call("a_pid", "")
	done := make(chan answer, 1)
	go func() {
		done <- c.post(`{"jsonrpc":"2.0","id":"slow","method":"tools/call","params":{"name":"a_sleep","arguments":{"ms":60000}}}`)
	}()
	await(t, "the call to be in flight", func() bool { return strings.Contains(d.Log.String(), "fake: sleeping") })
	if a := c.post(`{"jsonrpc":"2.0","id":"slow","method":"ping"}`); !strings.Contains(a.Body, "already being answered") {
		t.Errorf("an id that is in flight: %d %s", a.Status, a.Body)
	}
	c.post(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"other"}}`)
	c.post(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"slow"}}`)
	if a := <-done; len(a.Events) != 0 {
		t.Errorf("a cancelled call was answered: %s", a.Body)
	}
	await(t, "the module to hear of it", func() bool { return strings.Contains(d.Log.String(), "fake: cancelled") })
	if a := c.call("a_echo", ""); a.result() == nil {
		t.Errorf("the next call: %s", a.Body)
	}
}

func TestCallTimeout(t *testing.T) {
	t.Parallel()
	c := oneFake(t, "-call-timeout", "200ms")
	c.call("a_pid", "")
	if a := c.call("a_sleep", `{"ms":60000}`); !strings.Contains(a.failure(), "no answer and no progress within 200ms") {
		t.Errorf("a silent call: %s", a.Body)
	}
	if a := c.call("a_echo", ""); a.result() == nil {
		t.Errorf("the next call: %s", a.Body)
	}
}

func TestSilentClientIsGivenUp(t *testing.T) {
	t.Parallel()
	slow(t) // for bodyTimeout
	c := oneFake(t)
	u, _ := url.Parse(c.URL)
	conn, err := net.Dial("tcp", u.Host)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{")
	conn.SetReadDeadline(time.Now().Add(2 * bodyTimeout))
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil || res.StatusCode != http.StatusRequestTimeout {
		t.Errorf("a body that never ends: %v %v", res, err)
	}
}

func TestListChangedGoesToWhomItConcerns(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	writeFake(t, dir+"/a.usher", "good tools=x")
	c := connect(t, startDaemon(t, dir).URL)
	first, hangUp := c.listen()
	second, _ := c.listen()
	c.awaitTools("a_x")
	writeFake(t, dir+"/b.usher", "good tools=y")
	hear(t, second, "notifications/tools/list_changed")
	c.awaitTools("a_x", "b_y")
	hangUp()
	for msg := range first {
		t.Errorf("the older stream was told too: %s", msg)
	}
	write(t, dir+"/readme.txt", "of no interest")
	writeFake(t, dir+"/b.usher", "good tools=y,z")
	hear(t, second, "notifications/tools/list_changed")
	c.awaitTools("a_x", "b_y", "b_z")
}

func TestDeleteEndsASession(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	writeFake(t, dir+"/a.usher", "good")
	base := t.TempDir()
	d := daemonOptions{base: base}.start(t, dir)
	c := connect(t, d.URL)
	messages, _ := c.listen()
	if a := c.do(c.request(http.MethodDelete, "")); a.Status != http.StatusNoContent {
		t.Fatalf("DELETE: %d", a.Status)
	}
	for range messages { // until the stream's end
	}
	if a := c.ask("ping", ""); a.Status != http.StatusNotFound {
		t.Errorf("after DELETE: %d", a.Status)
	}
	d.stop(t)
	c.URL = daemonOptions{base: base}.start(t, dir).URL
	if a := c.ask("ping", ""); a.Status != http.StatusNotFound {
		t.Errorf("after a restart: %d", a.Status)
	}
}

func TestStdio(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	writeFake(t, dir+"/a.usher", "good")
	in, out, exit := startStdio(t, dir)
	next := func() json.RawMessage {
		t.Helper()
		line, err := out.next()
		if err != nil {
			t.Fatal(err)
		}
		if checkJSON(line, "it") != nil || stringField(line, "jsonrpc") != "2.0" {
			t.Fatalf("a line that is no JSON-RPC: %s", line)
		}
		return line
	}
	say := func(s string) { io.WriteString(in, s+"\n") }
	say(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18"}}`)
	if got := stringField(field(next(), "result"), "protocolVersion"); got != "2025-06-18" {
		t.Errorf("initialize: %s", got)
	}
	say(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	say(`{"half`)
	if got := string(next()); !strings.Contains(got, "-32700") || strings.Contains(got, `"id"`) {
		t.Errorf("garbage: %s", got)
	}
	say(`{"jsonrpc":"2.0","id":2,"method":"tools/list"}`)
	if got := string(next()); !strings.Contains(got, `"a_echo"`) {
		t.Errorf("tools/list: %s", got)
	}
	say(`{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"a_progress","arguments":{"n":2},"_meta":{"progressToken":"p"}}}`)
	for i, want := range []string{`"progress":1`, `"progress":2`, `"id":3,"result"`} {
		if got := string(next()); !strings.Contains(got, want) {
			t.Errorf("message %d: %s, want %s", i, got, want)
		}
	}
	say(`{"jsonrpc":"2.0","id":4,"method":"tools/call","params":{"name":"a_sleep","arguments":{"ms":60000}}}`)
	say(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":4}}`)
	say(`{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":"a_sleep","arguments":{"ms":100}}}`)
	in.Close() // what is under way is still answered
	if got := string(next()); !strings.Contains(got, `"id":5,"result"`) {
		t.Errorf("after the end of input: %s", got)
	}
	if code := <-exit; code != 0 {
		t.Errorf("exit status %d", code)
	}
	exit <- 0
}

func TestStreamsAreNotForOneSessionAlone(t *testing.T) {
	t.Parallel()
	c := oneFake(t)
	for i := range maxStreams {
		if _, hangUp := c.listen(); hangUp == nil {
			t.Fatalf("stream %d", i)
		}
	}
	req := c.request(http.MethodGet, "")
	if a := c.do(req); a.Status != http.StatusTooManyRequests || a.Header.Get("Retry-After") == "" {
		t.Errorf("one stream too many: %d", a.Status)
	}
}

func TestAccept(t *testing.T) {
	for header, want := range map[string]accepts{
		"application/json, text/event-stream": {json: true, stream: true},
		"text/event-stream, application/json": {json: true, stream: true, streamFirst: true},
		"text/event-stream":                   {stream: true, streamFirst: true},
		"application/json":                    {json: true},
		"*/*":                                 {json: true, stream: true},
		"text/html, */*;q=0.8":                {json: true, stream: true, html: true},
		"text/html":                           {html: true},
		"":                                    {json: true, stream: true},
	} {
		if got := parseAccept([]string{header}); got != want {
			t.Errorf("%q: %+v, want %+v", header, got, want)
		}
	}
}

func TestCapabilitiesAreKept(t *testing.T) {
	store, err := openSessions(t.TempDir(), slog.New(slog.DiscardHandler), time.Now)
	if err != nil {
		t.Fatal(err)
	}
	for _, protocol := range protocols {
		caps := parseClientCaps(json.RawMessage(`{"roots":{},"sampling":{},"x":{}}`))
		got, ok := store.open(store.seal(newSessionToken(protocol, caps, Principal{}, time.Now())))
		if !ok || got.Protocol != protocol || got.Caps != capRoots|capSampling {
			t.Errorf("%s: %+v %v", protocol, got, ok)
		}
	}
	if !slices.IsSortedFunc(protocols, func(a, b string) int { return strings.Compare(b, a) }) {
		t.Error("protocols are not newest first")
	}
}
