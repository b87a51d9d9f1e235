// Clients without sessions (MCP 2026-07-28): what their requests must contain, what answers contain, and what each
// client hears and sees.

package main

import (
	"encoding/json"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
)

const changedTools = "notifications/tools/list_changed"

// Members of _meta.
const (
	metaCaps  = `"io.modelcontextprotocol/clientCapabilities":{}`
	metaNow   = `"io.modelcontextprotocol/protocolVersion":"2026-07-28"`
	metaLater = `"io.modelcontextprotocol/protocolVersion":"2030-01-01"`
)

const (
	noVersion     = protocolHeader + ":"
	laterVersion  = protocolHeader + ": 2030-01-01"
	callParamsOfX = `"name":"a_x"`
)

// modernRequest is a request without a session.
type modernRequest struct {
	name   string
	header string // lines of "Name: value", or "Name:" to leave one out
	meta   string // instead of the usual _meta; "-" for none
	method string // tools/list if empty
	params string // beside _meta
	code   int    // of the error; 0 if the request is answered
	says   string
}

// modernRequests are in the order of the checks: a request with two faults is refused for the first.
var modernRequests = []modernRequest{
	{name: "a good request"},
	{
		name:   "an unknown version in the header alone",
		header: laterVersion + "\nMcp-Method:",
		meta:   "-",
		code:   codeUnsupportedVersion,
		says: `"supported":["2026-07-28","2025-11-25","2025-06-18","2025-03-26","2024-11-05"],` +
			`"requested":"2030-01-01"`,
	},
	{name: "no Mcp-Method", header: "Mcp-Method:", meta: "-", code: -32020, says: `Mcp-Method is \"\"`},
	{name: "another Mcp-Method", header: "Mcp-Method: tools/call", code: codeHeaderMismatch,
		says: `the body's \"method\" is \"tools/list\"`},
	{name: "no _meta", meta: "-", code: codeInvalidParams, says: "protocolVersion"},
	{name: "_meta without capabilities", header: laterVersion, meta: metaNow, code: codeInvalidParams,
		says: "clientCapabilities"},
	{name: "_meta without the client's name", meta: metaNow + "," + metaCaps},
	{name: "no version in the header", header: noVersion, code: codeHeaderMismatch, says: `is \"\"`},
	{name: "a later version in _meta", meta: metaLater + "," + metaCaps, code: codeHeaderMismatch},
	{name: "a later version in both", header: laterVersion, method: "nope", meta: metaLater + "," + metaCaps,
		code: codeUnsupportedVersion, says: `"requested":"2030-01-01"`},
	{name: "an unknown method", method: "nope", code: codeNoMethod},
	{name: "ping", method: "ping", code: codeNoMethod},
	{name: "a subscription", method: "resources/subscribe", params: `"uri":"r://one"`, code: codeNoMethod},
	{name: "an older version in both", header: protocolHeader + ": 2025-11-25",
		meta: `"io.modelcontextprotocol/protocolVersion":"2025-11-25",` + metaCaps, code: codeUnsupportedVersion},
	{name: "initialize", method: "initialize", params: `"protocolVersion":"2025-11-25"`, code: codeNoMethod},
	{name: "an unknown log level", meta: modernMeta + `,"io.modelcontextprotocol/logLevel":"loud"`,
		code: codeInvalidParams, says: "unknown log level"},
	{name: "no Mcp-Name", header: "Mcp-Name:", method: "tools/call", params: callParamsOfX, code: codeHeaderMismatch,
		says: `Mcp-Name is \"\"`},
	{name: "Mcp-Name in base64", header: "Mcp-Name: =?base64?YV94?=", method: "tools/call", params: callParamsOfX},
	{name: "Mcp-Name beyond ASCII", header: "Mcp-Name: a_é", method: "tools/call", params: `"name":"a_é"`,
		code: codeHeaderMismatch, says: "but the body's"},
	{name: "another Mcp-Name for a resource", header: "Mcp-Name: r://two", method: "resources/read",
		params: `"uri":"r://one"`, code: codeHeaderMismatch},
	{
		name:   "an unknown resource, beside another one's reference", // that one's module must not get the request
		method: "resources/read",
		params: `"uri":"x://nope","ref":{"type":"ref/resource","uri":"r://one"}`,
		code:   codeInvalidParams,
		says:   `unknown resource \"x://nope\"`,
	},
	{name: "a listener that accepts no stream", header: "Accept: application/json", method: "subscriptions/listen",
		params: `"notifications":{}`, code: codeInvalidRequest},
}

// do makes the request. Its status follows from its code.
func (m modernRequest) do(c *testClient) (a answer, status int) {
	method := m.method
	if method == "" {
		method = "tools/list"
	}
	req := c.modernPOST(`"q"`, method, "{"+m.params+"}")
	if m.meta != "" {
		params := `{}`
		if m.meta != "-" {
			params = `{"_meta":{` + m.meta + `}}`
		}
		body := encodeRequest(json.RawMessage(`"q"`), method, json.RawMessage(params))
		own := c.request(http.MethodPost, string(body))
		own.Header = req.Header
		req = own
	}
	setHeaders(req, m.header)
	switch m.code {
	case 0:
		status = http.StatusOK
	case codeNoMethod:
		status = http.StatusNotFound
	default:
		status = http.StatusBadRequest
	}
	return c.do(req), status
}

func TestModernRequests(t *testing.T) {
	long(t)
	c := newStateless(t, startFakes(t, "a: good tools=x res=r").URL)
	for _, tt := range modernRequests {
		t.Run(tt.name, func(t *testing.T) {
			a, status := tt.do(c)
			check(t, "status", a.Status, status)
			code := 0
			json.Unmarshal(field(field(a.last(), "error"), "code"), &code)
			check(t, "code", code, tt.code)
			checkContains(t, "the answer", a.Body, tt.says)
			check(t, "id", string(field(a.last(), "id")), `"q"`)
		})
	}
}

// TestModernParamHeaders compares arguments with the headers that repeat them.
func TestModernParamHeaders(t *testing.T) {
	long(t)
	dir := t.TempDir()
	writeFake(t, dir+"/a.usher", "good tools=mirror slowstart=1000")
	c := newStateless(t, startDaemon(t, dir).URL)
	for _, tt := range []struct {
		arguments, header string
		ok                bool
	}{
		{`{"region":"eu"}`, "", false}, // first, while the module is still starting
		{`{"other":1}`, "", true},
		{`{"region":"eu"}`, "mcp-param-region: eu", true},
		{`{"region":"eu"}`, "Mcp-Param-Region: EU", false},
		{`{"region":"é"}`, "Mcp-Param-Region: =?base64?w6k=?=", true},
		{`{"region":"é"}`, "Mcp-Param-Region: é", false},
		{`{"region":null}`, "", true},
		{`{}`, "Mcp-Param-Region: eu", false},
		{`{"n":42.0}`, "Mcp-Param-Number: 42", true},
		{`{"n":42}`, "Mcp-Param-Number: 42.0", true},
		{`{"n":9007199254740993}`, "Mcp-Param-Number: 9007199254740992", false},
		{`{"n":"42"}`, "Mcp-Param-Number: 42.0", false},
		{`{"n":16}`, "Mcp-Param-Number: 0x1p4", false},
		{`{"on":true}`, "Mcp-Param-On: true", true},
		{`{"on":false}`, "", false},
		{`{"deep":{"er":"x"}}`, "Mcp-Param-Deeper: x", true},
		{`{"deep":"x"}`, "", true},
		{`{"other":1}`, "Mcp-Param-Unknown: x", true},
	} {
		t.Run(tt.arguments+" with "+tt.header, func(t *testing.T) {
			set := func(r *http.Request) { setHeaders(r, tt.header) }
			a := c.modern("tools/call", `{"name":"a_mirror","arguments":`+tt.arguments+`}`, set)
			if tt.ok {
				check(t, "status", a.Status, 200)
				check(t, "failure", a.failure(), "")
				return
			}
			check(t, "status", a.Status, 400)
			checkContains(t, "the answer", a.Body, `"code":-32020`)
		})
	}
}

func TestModernResults(t *testing.T) {
	long(t)
	c := newStateless(t, startFakes(t, "a: good tools=x,fail res=r").URL)
	const promptRef = `{"type":"ref/prompt","name":"a_say"}`
	const resourceRef = `{"type":"ref/resource","uri":"r://many/{n}"}`
	const list, read, never = "list", "read", "never" // how long a client may keep the result
	for _, tt := range []struct{ method, params, says, kept string }{
		{"server/discover", "", `"supportedVersions":["2026-07-28",`, list},
		{"server/discover", "", `- a: A fake module.`, list},
		{"prompts/list", "", `"a_say"`, list},
		{"resources/templates/list", "", `"r://many/{n}"`, list},
		{"tools/list", "", `"a_x"`, list},
		{"resources/list", "", `"r://one"`, list},
		{"tools/call", `{"name":"a_x"}`, `"content"`, never},
		{"prompts/get", `{"name":"a_say"}`, `what r says`, never},
		{"resources/read", `{"uri":"r://many/3"}`, `what r has`, read},
		{"completion/complete", `{"ref":` + promptRef + `,"argument":{"name":"x","value":""}}`, `r's`, never},
		{"completion/complete", `{"ref":` + resourceRef + `,"argument":{"name":"n","value":""}}`, `r's`, never},
	} {
		t.Run(tt.method+" "+tt.params, func(t *testing.T) {
			a := c.modern(tt.method, tt.params)
			checkContains(t, "the answer", a.Body, tt.says)
			check(t, "resultType", stringField(a.result(), "resultType"), resultComplete)
			server := field(field(a.result(), "_meta"), metaServerInfo)
			check(t, "server", stringField(server, "name"), "usher")
			scope := "private"
			if tt.kept == never {
				scope = ""
			}
			check(t, "cacheScope", stringField(a.result(), "cacheScope"), scope)
			ttl := -1
			json.Unmarshal(field(a.result(), "ttlMs"), &ttl)
			check(t, "ttlMs is 1 to 5000", ttl > 0 && ttl <= 5000, tt.kept == list)
			check(t, "ttlMs is 0", ttl == 0, tt.kept == read)
			check(t, "session", a.Header.Get(sessionHeader), "")
		})
	}
}

// TestModernNotifications checks what comes before an answer.
func TestModernNotifications(t *testing.T) {
	long(t)
	c := newStateless(t, oneFake(t).URL)
	for level, heard := range map[string]bool{"": false, "debug": true, "warning": true, "error": false} {
		t.Run("log level "+level, func(t *testing.T) {
			meta := ""
			if level != "" {
				meta = `,"_meta":{"io.modelcontextprotocol/logLevel":"` + level + `"}`
			}
			a := c.modern("tools/call", `{"name":"a_log","arguments":{"level":"warning","data":"hello"}`+meta+`}`)
			check(t, "the client hears the warning", strings.Contains(a.Body, "notifications/message"), heard)
			checkContains(t, "the answer", a.Body, `"result"`)
		})
	}
	for _, token := range []string{`"t"`, `7`, `"7"`} {
		params := `{"name":"a_progress","arguments":{"n":3},"_meta":{"progressToken":` + token + `}}`
		a := c.modern("tools/call", params)
		check(t, "messages with the token "+token, len(a.Events), 4)
		check(t, "progress under the token "+token, strings.Count(a.Body, `"progressToken":`+token), 3)
	}
	a := c.modern("tools/call", `{"name":"a_progress","arguments":{"n":3}}`)
	check(t, "messages without a token", len(a.Events), 1)
}

// TestModernListeners has listeners with ids of two types hear of changes until the daemon stops.
func TestModernListeners(t *testing.T) {
	long(t)
	d := startFakes(t, "a: good tools=x")
	c := newStateless(t, d.URL)
	const bothLists = `"toolsListChanged":true,"promptsListChanged":true`
	both, _ := c.modernListen(`7`, `{`+bothLists+`,"resources":true,"nope":true}`, `{`+bothLists+`}`)
	const promptsAlone = `{"promptsListChanged":true}`
	prompts, _ := c.modernListen(`"7"`, `{"promptsListChanged":true,"toolsListChanged":false}`, promptsAlone)
	none, _ := c.modernListen(`"none"`, `{}`, `{}`)
	hearAll := func(step, id string, events <-chan event, want ...string) {
		t.Helper()
		var got []string
		for range want {
			e := wantEvent(t, events, "list_changed", `"`+metaSubscription+`":`+id)
			got = append(got, strings.Split(stringField(e.msg(), "method"), "/")[1])
		}
		slices.Sort(got)
		check(t, step+": lists that "+id+" hears of", got, want)
	}
	writeFake(t, d.Dir+"/b.usher", "good tools=y")
	hearAll("a module is added", `7`, both, "tools")
	writeFake(t, d.Dir+"/b.usher", "good tools=y,z")
	hearAll("it is edited", `7`, both, "tools")
	writeFake(t, d.Dir+"/b.usher", "good tools=y,z res=r")
	hearAll("it gets a prompt", `7`, both, "prompts")
	hearAll("it gets a prompt", `"7"`, prompts, "prompts")
	os.Remove(d.Dir + "/b.usher")
	hearAll("it is removed", `7`, both, "prompts", "tools")
	hearAll("it is removed", `"7"`, prompts, "prompts")
	d.cancel()
	for id, events := range map[string]<-chan event{`7`: both, `"7"`: prompts, `"none"`: none} {
		last := remainingEvents(t, events)
		if len(last) != 1 {
			t.Errorf("%s at the daemon's stop: %d messages, want one: %v", id, len(last), last)
			continue
		}
		result := field(last[0].msg(), "result")
		check(t, "id", string(field(last[0].msg(), "id")), id)
		check(t, "resultType", stringField(result, "resultType"), resultComplete)
		check(t, "subscription", string(field(field(result, "_meta"), metaSubscription)), id)
	}
}

// TestModernListenersInAScope follows listeners under a claim until its end.
func TestModernListenersInAScope(t *testing.T) {
	long(t)
	p := startProjects(t)
	writeShared(t, p.dir+"/proj", "r", "good tools=touch res=r")
	writeShared(t, p.dir+"/other", "o", "good tools=touch res=o")
	c := newStateless(t, p.URL)
	await(t, "both modules", func() bool { return len(strings.Fields(c.sees(presentNothing))) == 7 })
	code := p.code("/proj")
	scoped := inHeader(code)
	const tools = `{"toolsListChanged":true}`
	lists, _ := c.modernListen(`1`, tools, tools, scoped)
	wanted := `{"resourceSubscriptions":["r://one","o://one","r://many/3","x://y"]}`
	updates, _ := c.modernListen(`2`, wanted, `{"resourceSubscriptions":["r://one","r://many/3"]}`, scoped)
	const all = `{"toolsListChanged":true,"resourceSubscriptions":["o://one"]}`
	free, _ := c.modernListen(`3`, all, all)

	touch := func(tool, uri string) string {
		return c.modern("tools/call", `{"name":"`+tool+`","arguments":{"uri":"`+uri+`"}}`).Body
	}
	hearUpdate := func(id string, events <-chan event, tool, uri string) {
		t.Helper()
		await(t, uri+" to be subscribed to", func() bool { return strings.Contains(touch(tool, uri), "told") })
		wantEvent(t, events, `"method":"notifications/resources/updated"`, `"uri":"`+uri+`"`,
			`"`+metaSubscription+`":`+id)
	}
	hearUpdate("3", free, "o_touch", "o://one")
	hearUpdate("2", updates, "r_touch", "r://one")
	hearUpdate("2", updates, "r_touch", "r://many/3")

	p.revoke(code)
	touch("r_touch", "r://one") // of which usher is still notified
	await(t, "the end of the subscription", func() bool {
		return strings.Contains(touch("r_touch", "r://one"), "nobody")
	})
	writeFake(t, p.dir+"/proj/new.usher", "good tools=x")
	for !strings.Contains(wantEvent(t, free).data, changedTools) { // after the updates of o
	}
	listen := c.modern("subscriptions/listen", `{"notifications":`+tools+`}`, scoped)
	check(t, "status of a listener after the claim's end", listen.Status, 400)
	check(t, "messages after the claim's end", len(remainingEvents(t, lists)), 1) // the stream's result
	remainingEvents(t, updates)                                                   // that stream ends too
}
