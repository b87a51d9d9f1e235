// Clients without sessions (MCP 2026-07-28): what is asked of each request, what
// an answer has, what they are told, and who of them sees what.

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
)

const changedTools = "notifications/tools/list_changed"

// What _meta may have in it.
const (
	metaCaps  = `"io.modelcontextprotocol/clientCapabilities":{}`
	metaNow   = `"io.modelcontextprotocol/protocolVersion":"2026-07-28"`
	metaLater = `"io.modelcontextprotocol/protocolVersion":"2030-01-01"`
)

// modernRefusals is what is asked of a request, in the order in which it is
// looked at: a row with two faults is refused for the first.
var modernRefusals = []struct {
	name   string
	header string // lines of "Name: value", or "Name:" to leave one out
	meta   string // instead of what a client says
	method string // tools/list if empty
	params string // beside _meta
	status int
	code   int
	says   string
}{
	{name: "all is well", status: 200},
	{name: "a version in the header alone that is not known", header: protocolHeader + ": 2030-01-01\nMcp-Method:", meta: "-", status: 400, code: -32022, says: `"supported":["2026-07-28","2025-11-25","2025-06-18","2025-03-26","2024-11-05"],"requested":"2030-01-01"`},
	{name: "a word as version", header: protocolHeader + ": newest", meta: "-", status: 400, code: -32022, says: `"requested":"newest"`},
	{name: "no Mcp-Method", header: "Mcp-Method:", status: 400, code: -32020, says: `Mcp-Method is missing`},
	{name: "no Mcp-Method, nor _meta", header: "Mcp-Method:", meta: "-", status: 400, code: -32020, says: `Mcp-Method is missing`},
	{name: "another Mcp-Method", header: "Mcp-Method: tools/call", status: 400, code: -32020, says: `\"tools/call\", and the body's \"method\" is \"tools/list\"`},
	{name: "Mcp-Method in another case", header: "Mcp-Method: Tools/List", status: 400, code: -32020},
	{name: "Mcp-Method in another case, and half a _meta", header: "Mcp-Method: TOOLS/LIST", meta: metaNow, status: 400, code: -32020},
	{name: "Mcp-Method with the name of another method, that is not known", header: "Mcp-Method: tools/list", method: "nope", status: 400, code: -32020},
	{name: "no _meta", meta: "-", status: 400, code: -32602, says: "protocolVersion"},
	{name: "an empty _meta", meta: " ", status: 400, code: -32602, says: "protocolVersion"},
	{name: "_meta without a version", meta: metaCaps, status: 400, code: -32602, says: "protocolVersion"},
	{name: "a version that is a number", meta: `"io.modelcontextprotocol/protocolVersion":2026,` + metaCaps, status: 400, code: -32602, says: "protocolVersion"},
	{name: "_meta without capabilities", meta: metaNow, status: 400, code: -32602, says: "clientCapabilities"},
	{name: "capabilities that are a list", meta: metaNow + `,"io.modelcontextprotocol/clientCapabilities":[]`, status: 400, code: -32602, says: "clientCapabilities"},
	{name: "_meta without capabilities, and another version in the header", header: protocolHeader + ": 2030-01-01", meta: metaNow, status: 400, code: -32602, says: "clientCapabilities"},
	{name: "_meta without who asks is well", meta: metaNow + "," + metaCaps, status: 200},
	{name: "no version header", header: protocolHeader + ":", status: 400, code: -32020, says: "is missing"},
	{name: "the header's version is older", header: protocolHeader + ": 2025-11-25", status: 400, code: -32020},
	{name: "the header's version is newer", header: protocolHeader + ": 2030-01-01", status: 400, code: -32020},
	{name: "_meta's version is newer", meta: metaLater + "," + metaCaps, status: 400, code: -32020},
	{name: "both are newer", header: protocolHeader + ": 2030-01-01", meta: metaLater + "," + metaCaps, status: 400, code: -32022, says: `"requested":"2030-01-01"`},
	{name: "both are newer, and the method is not known", header: protocolHeader + ": 2030-01-01", method: "nope", meta: metaLater + "," + metaCaps, status: 400, code: -32022},
	{name: "both are of the time of sessions", header: protocolHeader + ": 2025-11-25", meta: `"io.modelcontextprotocol/protocolVersion":"2025-11-25",` + metaCaps, status: 400, code: -32022, says: `"requested":"2025-11-25"`},
	{name: "an unknown method", method: "nope", status: 404, code: -32601},
	{name: "a method in another case", method: "Tools/List", status: 404, code: -32601},
	{name: "initialize", method: "initialize", params: `"protocolVersion":"2025-11-25","capabilities":{}`, status: 404, code: -32601},
	{name: "ping", method: "ping", status: 404, code: -32601},
	{name: "logging/setLevel", method: "logging/setLevel", params: `"level":"info"`, status: 404, code: -32601},
	{name: "resources/subscribe", method: "resources/subscribe", params: `"uri":"r://one"`, status: 404, code: -32601},
	{name: "resources/unsubscribe", method: "resources/unsubscribe", params: `"uri":"r://one"`, status: 404, code: -32601},
	{name: "an unknown log level", meta: modernMeta + `,"io.modelcontextprotocol/logLevel":"loud"`, status: 400, code: -32602, says: "logLevel"},
	{name: "a log level that is a number", meta: modernMeta + `,"io.modelcontextprotocol/logLevel":3`, status: 400, code: -32602, says: "logLevel"},
	{name: "no Mcp-Name", header: "Mcp-Name:", method: "tools/call", params: `"name":"a_x"`, status: 400, code: -32020, says: "Mcp-Name is missing"},
	{name: "another Mcp-Name", header: "Mcp-Name: a_y", method: "tools/call", params: `"name":"a_x"`, status: 400, code: -32020},
	{name: "Mcp-Name in another case", header: "Mcp-Name: A_x", method: "tools/call", params: `"name":"a_x"`, status: 400, code: -32020},
	{name: "Mcp-Name in base64", header: "Mcp-Name: =?base64?YV94?=", method: "tools/call", params: `"name":"a_x"`, status: 200},
	{name: "Mcp-Name in base64 of another", header: "Mcp-Name: =?base64?YV95?=", method: "tools/call", params: `"name":"a_x"`, status: 400, code: -32020},
	{name: "Mcp-Name in base64 without padding", header: "Mcp-Name: =?base64?YV9?=", method: "tools/call", params: `"name":"a_x"`, status: 400, code: -32020, says: "malformed"},
	{name: "Mcp-Name in base64 that is none", header: "Mcp-Name: =?base64?*?=", method: "tools/call", params: `"name":"a_x"`, status: 400, code: -32020, says: "malformed"},
	{name: "Mcp-Name in base64 with bits over", header: "Mcp-Name: =?base64?YV94YR==?=", method: "tools/call", params: `"name":"a_xa"`, status: 400, code: -32020, says: "malformed"},
	{name: "Mcp-Name that only begins as base64", header: "Mcp-Name: =?base64?YV94", method: "tools/call", params: `"name":"=?base64?YV94"`, status: 400, code: -32602, says: "unknown tool"},
	{name: "Mcp-Name as base64 of nothing", header: "Mcp-Name: =?base64??=", method: "tools/call", params: `"name":""`, status: 400, code: -32602, says: "unknown tool"},
	{name: "a name beyond ASCII in base64", header: "Mcp-Name: =?base64?YV/DqQ==?=", method: "tools/call", params: `"name":"a_é"`, status: 400, code: -32602, says: "unknown tool"},
	{name: "a name beyond ASCII as it is", header: "Mcp-Name: a_é", method: "tools/call", params: `"name":"a_é"`, status: 400, code: -32020, says: "malformed"},
	{name: "no Mcp-Name for a prompt", header: "Mcp-Name:", method: "prompts/get", params: `"name":"a_say"`, status: 400, code: -32020},
	{name: "no Mcp-Name for a resource", header: "Mcp-Name:", method: "resources/read", params: `"uri":"r://one"`, status: 400, code: -32020},
	{name: "another Mcp-Name for a resource", header: "Mcp-Name: r://two", method: "resources/read", params: `"uri":"r://one"`, status: 400, code: -32020},
	{name: "an unknown tool", method: "tools/call", params: `"name":"a_nope"`, status: 400, code: -32602, says: "unknown tool"},
	{name: "an unknown resource", method: "resources/read", params: `"uri":"r://nope"`, status: 400, code: -32602, says: `"uri":"r://nope"`},
	{name: "a listener that takes no stream", header: "Accept: application/json", method: "subscriptions/listen", params: `"notifications":{}`, status: 406, code: codeRefused},
	{name: "a listener without a filter", method: "subscriptions/listen", status: 400, code: -32602, says: "notifications"},
}

func TestModernRefusals(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	writeFake(t, dir+"/a.usher", "good tools=x res=r")
	c := newStateless(t, startDaemon(t, dir).URL)
	for _, tt := range modernRefusals {
		method := tt.method
		if method == "" {
			method = "tools/list"
		}
		req := c.modernPOST(`"q"`, method, "{"+tt.params+"}")
		if tt.meta != "" {
			params := `{"_meta":{` + tt.meta + `}}`
			if tt.meta == "-" {
				params = `{}`
			}
			plain := c.request(http.MethodPost, string(encodeRequest(json.RawMessage(`"q"`), method, json.RawMessage(params))))
			plain.Header = req.Header
			req = plain
		}
		setHeaders(req, tt.header)
		a := c.do(req)
		code := string(field(field(a.last(), "error"), "code"))
		if code == "" {
			code = "0"
		}
		if a.Status != tt.status || code != fmt.Sprint(tt.code) || !strings.Contains(a.Body, tt.says) || tt.status != 406 && string(field(a.last(), "id")) != `"q"` {
			t.Errorf("%s: %d %s, want %d with %d and %q", tt.name, a.Status, clipText(a.Body, 400), tt.status, tt.code, tt.says)
		}
	}
}

// TestModernParamHeaders holds arguments against the headers that repeat them.
func TestModernParamHeaders(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	writeFake(t, dir+"/a.usher", "good tools=mirror")
	c := newStateless(t, startDaemon(t, dir).URL)
	for _, tt := range []struct {
		arguments, header string
		ok                bool
	}{
		{`{"other":1}`, "", true},
		{`{"region":"eu"}`, "Mcp-Param-Region: eu", true},
		{`{"region":"eu"}`, "mcp-param-region: eu", true},
		{`{"region":"eu"}`, "Mcp-Param-Region: =?base64?ZXU=?=", true},
		{`{"region":"eu"}`, "Mcp-Param-Region: =?base64?ZXU?=", false},
		{`{"region":"eu"}`, "", false},
		{`{"region":"eu"}`, "Mcp-Param-Region: us", false},
		{`{"region":"eu"}`, "Mcp-Param-Region: EU", false},
		{`{"region":"é"}`, "Mcp-Param-Region: =?base64?w6k=?=", true},
		{`{"region":"é"}`, "Mcp-Param-Region: é", false},
		{`{"region":null}`, "", true},
		{`{"region":null}`, "Mcp-Param-Region: null", false},
		{`{}`, "Mcp-Param-Region: eu", false},
		{`{"n":42}`, "Mcp-Param-Number: 42", true},
		{`{"n":42.0}`, "Mcp-Param-Number: 42", true},
		{`{"n":42}`, "Mcp-Param-Number: 42.0", true},
		{`{"n":42}`, "Mcp-Param-Number: 43", false},
		{`{"n":42}`, "Mcp-Param-Number: x", false},
		{`{"n":9007199254740993}`, "Mcp-Param-Number: 9007199254740993", true},
		{`{"n":9007199254740993}`, "Mcp-Param-Number: 9007199254740992", false},
		{`{"n":"42"}`, "Mcp-Param-Number: 42.0", false},
		{`{"n":16}`, "Mcp-Param-Number: 0x1p4", false},
		{`{"on":true}`, "Mcp-Param-On: true", true},
		{`{"on":true}`, "Mcp-Param-On: True", false},
		{`{"on":false}`, "", false},
		{`{"deep":{"er":"x"}}`, "Mcp-Param-Deeper: x", true},
		{`{"deep":"x"}`, "", true},
		{`{"region":"eu","n":1,"deep":{"er":"x"}}`, "Mcp-Param-Region: eu\nMcp-Param-Number: 1\nMcp-Param-Deeper: x", true},
		{`{"other":1}`, "Mcp-Param-Unheard-Of: x", true},
	} {
		a := c.modern("tools/call", `{"name":"a_mirror","arguments":`+tt.arguments+`}`, func(r *http.Request) { setHeaders(r, tt.header) })
		if ok := a.Status == 200 && a.failure() == ""; ok != tt.ok || !ok && (a.Status != 400 || !strings.Contains(a.Body, `"code":-32020`)) {
			t.Errorf("%s with %q: %d %s", tt.arguments, tt.header, a.Status, a.Body)
		}
	}
	// Headers of the same name twice say two things.
	if a := c.modern("tools/call", `{"name":"a_mirror","arguments":{"region":"eu"}}`, func(r *http.Request) { r.Header["Mcp-Param-Region"] = []string{"eu", "us"} }); a.Status != 400 {
		t.Errorf("a header twice: %d %s", a.Status, a.Body)
	}
}

// TestModernParamHeadersAtTheStart calls a tool while it is not known yet what
// its headers are.
func TestModernParamHeadersAtTheStart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	writeFake(t, dir+"/a.usher", "good tools=mirror slowstart=1000")
	c := newStateless(t, startDaemon(t, dir).URL)
	a := c.modern("tools/call", `{"name":"a_mirror","arguments":{"region":"eu"}}`)
	if a.Status != 400 || !strings.Contains(a.Body, `"code":-32020`) {
		t.Errorf("without its header: %d %s", a.Status, a.Body)
	}
}

// TestReadIsOfItsURI asks for a resource, and in a member that belongs to
// completion names another, whose module must not get the request.
func TestReadIsOfItsURI(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	writeFake(t, dir+"/r.usher", "good tools=x res=r")
	d := startDaemon(t, dir)
	c := connect(t, d.URL)
	c.awaitTools("r_x")
	const params = `{"uri":"file:///etc/passwd","ref":{"type":"ref/resource","uri":"r://one"}}`
	for way, a := range map[string]answer{
		"2025-11-25": c.ask("resources/read", params),
		"2026-07-28": newStateless(t, d.URL).modern("resources/read", params),
	} {
		if !strings.Contains(a.Body, `unknown resource \"file:///etc/passwd\"`) {
			t.Errorf("%s: %d %s", way, a.Status, a.Body)
		}
	}
}

// TestModernResults looks at what answers have.
func TestModernResults(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	writeFake(t, dir+"/a.usher", "good tools=x,fail res=r")
	c := newStateless(t, startDaemon(t, dir).URL)
	for _, tt := range []struct {
		method, params, says string
		list                 bool
	}{
		{"server/discover", "", `"supportedVersions":["2026-07-28",`, true},
		{"server/discover", "", `- a: A fake module.`, true},
		{"server/discover", "", `"listChanged":true`, true},
		{"tools/list", "", `"a_x"`, true},
		{"prompts/list", "", `"a_say"`, true},
		{"resources/list", "", `"r://one"`, true},
		{"resources/templates/list", "", `"r://many/{n}"`, true},
		{"tools/call", `{"name":"a_x"}`, `"content"`, false},
		{"tools/call", `{"name":"a_fail"}`, `"isError":true`, false},
		{"prompts/get", `{"name":"a_say"}`, `what r says`, false},
		{"resources/read", `{"uri":"r://one"}`, `what r has`, false},
		{"resources/read", `{"uri":"r://many/3"}`, `what r has`, false},
		{"completion/complete", `{"ref":{"type":"ref/prompt","name":"a_say"},"argument":{"name":"x","value":""}}`, `r's`, false},
		{"completion/complete", `{"ref":{"type":"ref/resource","uri":"r://many/{n}"},"argument":{"name":"n","value":""}}`, `r's`, false},
	} {
		a := c.modern(tt.method, tt.params)
		var r struct {
			ResultType string
			TTL        *int `json:"ttlMs"`
			CacheScope string
			Meta       map[string]struct{ Name, Version string } `json:"_meta"`
		}
		json.Unmarshal(a.result(), &r)
		kept := tt.list || tt.method == "resources/read"
		if a.Status != 200 || r.ResultType != "complete" || r.Meta[metaServerInfo].Name != "usher" || !strings.Contains(a.Body, tt.says) ||
			kept != (r.TTL != nil) || kept != (r.CacheScope == "private") || tt.list && (*r.TTL <= 0 || *r.TTL > 5000) || !tt.list && kept && *r.TTL != 0 {
			t.Errorf("%s %s: %d %s", tt.method, tt.params, a.Status, a.Body)
		}
		if a.Header.Get(sessionHeader) != "" {
			t.Errorf("%s gives a session", tt.method)
		}
	}
	for _, id := range []string{`1`, `"1"`, `-5`, `0`, `9007199254740993`, `""`, `"a\u00e9"`} {
		for method, params := range map[string]string{"tools/list": "", "tools/call": `{"name":"a_x"}`, "nope": ""} {
			if a := c.do(c.modernPOST(id, method, params)); string(field(a.last(), "id")) != id {
				t.Errorf("the id %s of %s came back in %s", id, method, a.Body)
			}
		}
	}
	for name, body := range map[string]string{"a notification": `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1,"_meta":{` + modernMeta + `}}}`,
		"one that is not known": `{"jsonrpc":"2.0","method":"notifications/nope"}`} {
		req := c.request(http.MethodPost, body)
		req.Header.Set(protocolHeader, statelessProtocol)
		if a := c.do(req); a.Status != 202 || a.Body != "" {
			t.Errorf("%s: %d %s", name, a.Status, a.Body)
		}
	}
	req := c.request(http.MethodPost, `{"jsonrpc":"2.0","id":1,"result":{}}`)
	req.Header.Set(protocolHeader, statelessProtocol)
	if a := c.do(req); a.Status != 400 {
		t.Errorf("an answer: %d %s", a.Status, a.Body)
	}
	for name, session := range map[string]string{"a forged session": "nope", "somebody's": connect(t, c.URL).Session} {
		if a := c.modern("tools/list", "", func(r *http.Request) { r.Header.Set(sessionHeader, session) }); a.Status != 200 || a.Header.Get(sessionHeader) != "" {
			t.Errorf("with %s: %d %s", name, a.Status, a.Body)
		}
	}
	get := c.request(http.MethodGet, "")
	get.Header.Set(protocolHeader, statelessProtocol)
	if a := c.do(get); a.Status != 405 {
		t.Errorf("GET: %d", a.Status)
	}
	if a := c.modern("tools/list", "", func(r *http.Request) { r.Header.Set("Accept", "text/event-stream") }); !strings.HasPrefix(a.Header.Get("Content-Type"), "text/event-stream") || a.result() == nil {
		t.Errorf("a client that takes streams alone: %v %s", a.Header, a.Body)
	}
}

// TestModernNotifications looks at what comes before an answer.
func TestModernNotifications(t *testing.T) {
	t.Parallel()
	c := oneFake(t)
	d := c.daemon
	c = newStateless(t, c.URL)
	for level, want := range map[string]int{"": 1, "debug": 2, "warning": 2, "error": 1, "emergency": 1} {
		meta := ""
		if level != "" {
			meta = `,"_meta":{"io.modelcontextprotocol/logLevel":"` + level + `"}`
		}
		a := c.modern("tools/call", `{"name":"a_log","arguments":{"level":"warning","data":"hello"}`+meta+`}`)
		if len(a.Events) != want || strings.Contains(a.Body, "notifications/message") != (want == 2) || a.result() == nil {
			t.Errorf("log level %q: %s", level, a.Body)
		}
	}
	for _, token := range []string{`"t"`, `7`, `"7"`} {
		a := c.modern("tools/call", `{"name":"a_progress","arguments":{"n":3},"_meta":{"progressToken":`+token+`}}`)
		if len(a.Events) != 4 || strings.Count(a.Body, `"progressToken":`+token) != 3 || strings.Contains(a.Body, "\nid:") {
			t.Errorf("progress with the token %s: %s", token, a.Body)
		}
	}
	if a := c.modern("tools/call", `{"name":"a_progress","arguments":{"n":3}}`); len(a.Events) != 1 {
		t.Errorf("progress that nobody asked for: %s", a.Body)
	}
	// A client that closes its stream has the module told that nobody waits.
	ctx, goAway := context.WithCancel(t.Context())
	gone := make(chan error, 1)
	go func() {
		_, err := c.try(c.modernPOST("9", "tools/call", `{"name":"a_sleep","arguments":{"ms":60000}}`).WithContext(ctx))
		gone <- err
	}()
	await(t, "the call to be under way", func() bool { return strings.Contains(d.Log.String(), "fake: sleeping") })
	goAway()
	if err := <-gone; err == nil {
		t.Error("the call was answered")
	}
	await(t, "the module to hear of it", func() bool { return strings.Contains(d.Log.String(), "fake: cancelled") })
}

// TestInTime spends its time waiting, so it does all side by side.
func TestInTime(t *testing.T) {
	t.Parallel()
	var tests sync.WaitGroup
	for _, test := range []func(*testing.T){listenersHear, listenersInAScope, oldSSEToTheEnd, resumeInAScope} {
		tests.Go(func() { test(t) })
	}
	tests.Wait()
}

// listenersHear has two listeners at once, with ids of two types, until the
// daemon stops.
func listenersHear(t *testing.T) {
	dir := t.TempDir()
	writeFake(t, dir+"/a.usher", "good tools=x")
	d := startDaemon(t, dir)
	c := newStateless(t, d.URL)
	both, _ := c.modernListen(`7`, `{"toolsListChanged":true,"promptsListChanged":true,"resources":true,"nope":true}`, `{"toolsListChanged":true,"promptsListChanged":true}`)
	prompts, _ := c.modernListen(`"7"`, `{"promptsListChanged":true,"toolsListChanged":false}`, `{"promptsListChanged":true}`)
	none, _ := c.modernListen(`"none"`, `{}`, `{}`)
	gone, hangUp := c.modernListen(`8`, `{"toolsListChanged":true}`, `{"toolsListChanged":true}`)
	hangUp()
	remainingEvents(t, gone)
	for _, step := range []struct {
		what        string
		do          func()
		told, other []string
	}{
		{"a module is added", func() { writeFake(t, dir+"/b.usher", "good tools=y") }, []string{"tools"}, nil},
		{"it is edited", func() { writeFake(t, dir+"/b.usher", "good tools=y,z") }, []string{"tools"}, nil},
		{"it gets a prompt", func() { writeFake(t, dir+"/b.usher", "good tools=y,z res=r") }, []string{"prompts"}, []string{"prompts"}},
		{"it is removed", func() { os.Remove(dir + "/b.usher") }, []string{"prompts", "tools"}, []string{"prompts"}},
	} {
		step.do()
		hearAll := func(id string, events <-chan event, lists []string) {
			var got []string
			for range lists {
				e := wantEvent(t, events, "list_changed", `"`+metaSubscription+`":`+id)
				got = append(got, strings.Split(stringField(e.msg(), "method"), "/")[1])
			}
			if slices.Sort(got); !slices.Equal(got, lists) {
				t.Errorf("%s: %s is told of %v, want %v", step.what, id, got, lists)
			}
		}
		hearAll(`7`, both, step.told)
		hearAll(`"7"`, prompts, step.other)
	}
	d.cancel()
	for id, events := range map[string]<-chan event{`7`: both, `"7"`: prompts, `"none"`: none} {
		last := remainingEvents(t, events)
		if len(last) != 1 || string(field(last[0].msg(), "id")) != id || stringField(field(last[0].msg(), "result"), "resultType") != "complete" ||
			string(field(field(field(last[0].msg(), "result"), "_meta"), metaSubscription)) != id {
			t.Errorf("%s at the daemon's stop: %v", id, last)
		}
	}
}

// listenersInAScope follows listeners under a claim to its end.
func listenersInAScope(t *testing.T) {
	dir, base := twoProjects(t), t.TempDir()
	writeFake(t, dir+"/proj/r.usher", "good shared tools=touch,crash res=r")
	writeFake(t, dir+"/other/o.usher", "good shared tools=touch res=o")
	d := daemonOptions{base: base}.start(t, dir)
	c := newStateless(t, d.URL)
	proj := newClaimFor(t, base, dir+"/proj")
	scoped := inHeader(proj.Code.Reveal())
	const tools = `{"toolsListChanged":true}`
	lists, _ := c.modernListen(`1`, tools, tools, scoped)
	updates, _ := c.modernListen(`2`, `{"resourceSubscriptions":["r://one","o://one","r://many/3","x://y"]}`, `{"resourceSubscriptions":["r://one","r://many/3"]}`, scoped)
	free, _ := c.modernListen(`3`, `{"toolsListChanged":true,"resourceSubscriptions":["o://one"]}`, `{"toolsListChanged":true,"resourceSubscriptions":["o://one"]}`)

	touch := func(tool, uri string) string {
		return c.modern("tools/call", `{"name":"`+tool+`","arguments":{"uri":"`+uri+`"}}`).Body
	}
	await(t, "o to be subscribed to", func() bool { return strings.Contains(touch("o_touch", "o://one"), "told") })
	wantEvent(t, free, `"method":"notifications/resources/updated"`, `"uri":"o://one"`, `"`+metaSubscription+`":3`)
	for _, uri := range []string{"r://one", "r://many/3"} {
		await(t, uri+" to be subscribed to", func() bool { return strings.Contains(touch("r_touch", uri), "told") })
		wantEvent(t, updates, `"method":"notifications/resources/updated"`, `"uri":"`+uri+`"`, `"`+metaSubscription+`":2`)
	}
	for range 2 { // the call after the crash starts the process again
		c.modern("tools/call", `{"name":"r_crash"}`)
		await(t, "the new process to be subscribed to", func() bool { return strings.Contains(touch("r_touch", "r://one"), "told") })
		wantEvent(t, updates, `"uri":"r://one"`, `"`+metaSubscription+`":2`)
	}
	if _, err := openStore(t, base).Revoke(t.Context(), proj.Code); err != nil {
		t.Fatal(err)
	}
	touch("r_touch", "r://one") // which usher still hears of
	wantEvent(t, lists, changedTools, `"`+metaSubscription+`":1`)
	await(t, "nobody to be subscribed to r any more", func() bool { return strings.Contains(touch("r_touch", "r://one"), "nobody") })
	writeFake(t, dir+"/proj/new.usher", "good shared tools=x")
	for !strings.Contains(wantEvent(t, free).data, changedTools) { // updates of o, as often as it was touched
	}
	if a := c.modern("subscriptions/listen", `{"notifications":`+tools+`}`, scoped); a.Status != 400 {
		t.Errorf("listen after the claim's end: %d %s", a.Status, a.Body)
	}
	for id, events := range map[string]<-chan event{"1": lists, "2": updates} { // the streams end with the claim
		if list := remainingEvents(t, events); len(list) != 1 || field(list[0].msg(), "result") == nil {
			t.Errorf("after the claim's end %s is told %+v", id, list)
		}
	}
}
