// Tests of era.go: requests of 2026-07-28, their headers and their results.

package main

import (
	"encoding/base64"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// Members of _meta.
const (
	metaCaps  = `"io.modelcontextprotocol/clientCapabilities":{}`
	metaNow   = `"io.modelcontextprotocol/protocolVersion":"2026-07-28"`
	metaLater = `"io.modelcontextprotocol/protocolVersion":"2030-01-01"`
)

const laterVersion = protocolHeader + ": 2030-01-01"

// modernRequests are requests without a session, in the order of the checks: one with two faults is
// refused for the first.
var modernRequests = []struct {
	name   string
	header string // lines of "Name: value", or "Name:" to leave one out
	meta   string // instead of the usual _meta; "-" for none
	method string
	params string // beside _meta
	code   int    // of the error; 0 if the request is answered
	says   string
}{
	{"a good request", "", "", "tools/list", "", 0, ""},
	{"an unknown version in the header alone", laterVersion + "\nMcp-Method:", "-", "tools/list", "",
		codeUnsupportedVersion,
		`"supported":["2026-07-28","2025-11-25","2025-06-18","2025-03-26","2024-11-05"],` +
			`"requested":"2030-01-01"`},
	{"no Mcp-Method", "Mcp-Method:", "-", "tools/list", "", -32020, `Mcp-Method is \"\"`},
	{"another Mcp-Method", "Mcp-Method: tools/call", "", "tools/list", "", codeHeaderMismatch,
		`the body's \"method\" is \"tools/list\"`},
	{"nothing at all", "Mcp-Method:", "-", "tools/list", "", codeHeaderMismatch,
		`protocolVersion\" and an object \"io.modelcontextprotocol/clientCapabilities`},
	{"no _meta", "", "-", "tools/list", "", codeInvalidParams, "protocolVersion"},
	{"_meta without capabilities", laterVersion, metaNow, "tools/list", "", codeInvalidParams,
		"clientCapabilities"},
	{"_meta without the client's name", "", metaNow + "," + metaCaps, "tools/list", "", 0, ""},
	{"no version in the header", protocolHeader + ":", "", "tools/list", "", codeHeaderMismatch, `is \"\"`},
	{"a later version in both", laterVersion, metaLater + "," + metaCaps, "nope", "",
		codeUnsupportedVersion, `"requested":"2030-01-01"`},
	{"an unknown method", "", "", "nope", "", codeNoMethod, ""},
	{"ping", "", "", "ping", "", codeNoMethod, ""},
	{"initialize", "", "", "initialize", `"protocolVersion":"2025-11-25"`, codeNoMethod, ""},
	{"an unknown log level", "", modernMeta + `,"io.modelcontextprotocol/logLevel":"loud"`, "tools/list", "",
		codeInvalidParams, "unknown log level"},
	{"a log level of null", "", modernMeta + `,"io.modelcontextprotocol/logLevel":null`, "tools/list", "",
		0, ""},
	{"no Mcp-Name", "Mcp-Name:", "", "tools/call", `"name":"a_x"`, codeHeaderMismatch, `Mcp-Name is \"\"`},
	{"Mcp-Name in base64", "Mcp-Name: =?base64?YV94?=", "", "tools/call", `"name":"a_x"`, 0, ""},
	{"an unknown resource, beside another one's reference", // that one's module must not get the request
		"", "", "resources/read", `"uri":"x://nope","ref":{"type":"ref/resource","uri":"r://one"}`,
		codeInvalidParams, `unknown resource \"x://nope\"`},
	{"a listener that accepts no stream", "Accept: application/json", "", "subscriptions/listen",
		`"notifications":{}`, codeInvalidRequest, ""},
}

// A request of 2026-07-28 has matching headers and _meta. It is refused for its first
// fault.
func TestStatelessRequestsAreChecked(t *testing.T) {
	long(t)
	c := newClient(t, startFakes(t, "a: good tools=x res=r").URL)
	for _, tt := range modernRequests {
		t.Run(tt.name, func(t *testing.T) {
			req := c.ModernPOST(`"q"`, tt.method, "{"+tt.params+"}")
			if tt.meta != "" {
				params := `{}`
				if tt.meta != "-" {
					params = `{"_meta":{` + tt.meta + `}}`
				}
				body := encodeRequest(json.RawMessage(`"q"`), tt.method, objectOf(params))
				own := c.Request("POST", string(body))
				own.Header = req.Header
				req = own
			}
			setHeaders(req, tt.header)
			a := c.Do(req)
			status := 400
			switch tt.code {
			case 0:
				status = 200
			case codeNoMethod:
				status = 404
			}
			check(t, "status", a.Status, status)
			code := 0
			json.Unmarshal(field(a.Last(), "error", "code"), &code)
			check(t, "code", code, tt.code)
			checkContains(t, "the answer", a.Body, tt.says)
			check(t, "id", string(field(a.Last(), "id")), `"q"`)
		})
	}
}

// mirrorSchema has parameters that are repeated in headers.
const mirrorSchema = `{"type":"object","properties":{"region":{"type":"string","x-mcp-header":"Region"},
	"n":{"type":"integer","x-mcp-header":"Number"},"on":{"type":"boolean","x-mcp-header":"On"},
	"deep":{"type":"object","properties":{"er":{"type":"string","x-mcp-header":"Deeper"}}}}}`

// Params that repeat are dropped in a time that grows with their number, not with its square.
func TestRepeatedParamsEnd(t *testing.T) {
	const many = 300_000
	params := slices.Repeat(object{{"name", quote("x")}}, many)
	params = append(params, slices.Repeat(object{{"", quote("x")}}, many)...)
	check(t, "what is left", len(params.withoutLookalikes()), 1+many)
}

// A header that repeats an argument must equal it.
func TestParamHeadersMatch(t *testing.T) {
	long(t)
	dir := t.TempDir()
	writeFake(t, dir+"/a.usher", "good slowstart=1000", "mirror=echo "+mirrorSchema)
	c := newClient(t, startDaemon(t, dir).URL)
	for _, tt := range []struct {
		arguments, header string
		ok                bool
	}{
		{`{"region":"eu"}`, "", false}, // first, while the module is still starting
		{`{"other":1}`, "", true},
		{`{"region":"eu"}`, "mcp-param-region: eu", true},
		{`{"region":"eu"}`, "Mcp-Param-Region: EU", false},
		{`{"region":"é"}`, "Mcp-Param-Region: =?base64?w6k=?=", true},
		{`{}`, "Mcp-Param-Region: eu", false},
		{`{"n":42.0}`, "Mcp-Param-Number: 42", true},
		{`{"n":9007199254740993}`, "Mcp-Param-Number: 9007199254740992", false},
		{`{"n":"42"}`, "Mcp-Param-Number: 42.0", false},
		{`{"n":16}`, "Mcp-Param-Number: 0x1p4", false},
		{`{"on":false}`, "", false},
		{`{"deep":{"er":"x"}}`, "Mcp-Param-Deeper: x", true},
	} {
		t.Run(tt.arguments+" with "+tt.header, func(t *testing.T) {
			set := func(r *http.Request) { setHeaders(r, tt.header) }
			a := c.Modern("tools/call", `{"name":"a_mirror","arguments":`+tt.arguments+`}`, set)
			if tt.ok {
				check(t, "status", a.Status, 200)
				check(t, "failure", a.Failure(), "")
				return
			}
			check(t, "status", a.Status, 400)
			checkContains(t, "the answer", a.Body, `"code":-32020`)
		})
	}
}

// A result of 2026-07-28 has its type, the server's name and, if it may be kept, for how
// long.
func TestStatelessResultsAreComplete(t *testing.T) {
	long(t)
	c := newClient(t, startFakes(t, "a: good tools=x,fail res=r").URL)
	const promptRef = `{"type":"ref/prompt","name":"a_say"}`
	const resourceRef = `{"type":"ref/resource","uri":"r://many/{n}"}`
	const list, read, never = "list", "read", "never" // how long a client may keep the result
	for _, tt := range []struct{ method, params, says, kept string }{
		{"server/discover", "", `"supportedVersions":["2026-07-28",`, list},
		{"server/discover", "", `- a: A fake module.`, list},
		{"tools/list", "", `"a_x"`, list},
		{"resources/list", "", `"r://one"`, list},
		{"tools/call", `{"name":"a_x"}`, `"content"`, never},
		{"prompts/get", `{"name":"a_say"}`, `what r says`, never},
		{"resources/read", `{"uri":"r://many/3"}`, `what r has`, read},
		{"completion/complete", `{"ref":` + promptRef +
			`,"argument":{"name":"x","value":""}}`, `r's`, never},
		{"completion/complete", `{"ref":` + resourceRef +
			`,"argument":{"name":"n","value":""}}`, `r's`, never},
	} {
		t.Run(tt.method+" "+tt.params, func(t *testing.T) {
			a := c.Modern(tt.method, tt.params)
			checkContains(t, "the answer", a.Body, tt.says)
			check(t, "resultType", stringField(a.Result(), "resultType"), "complete")
			server := field(a.Result(), "_meta", "io.modelcontextprotocol/serverInfo")
			check(t, "server", stringField(server, "name"), "usher")
			scope := "private"
			if tt.kept == never {
				scope = ""
			}
			check(t, "cacheScope", stringField(a.Result(), "cacheScope"), scope)
			ttl := -1
			json.Unmarshal(field(a.Result(), "ttlMs"), &ttl)
			check(t, "ttlMs is 1 to 5000", ttl > 0 && ttl <= 5000, tt.kept == list)
			check(t, "ttlMs is 0", ttl == 0, tt.kept == read)
			check(t, "session", a.Header.Get(sessionHeader), "")
		})
	}
}

// A session begins in a version that has sessions. Its client's capabilities encode to what
// was read.
func FuzzParseInitialize(f *testing.F) {
	f.Fuzz(func(t *testing.T, params string) {
		if checkJSON([]byte(params), "it") != nil {
			return
		}
		protocol, caps := parseInitialize(objectOf(params))
		if !hasSessions(protocol) || parseClientCaps(members(caps.encode())) != caps {
			t.Fatalf("%s: %q, %b, which is %s", params, protocol, caps, caps.encode())
		}
	})
}

// A header's value is the text that was encoded in it, and only one form encodes it.
func FuzzDecodeHeader(f *testing.F) {
	f.Fuzz(func(t *testing.T, value string) {
		if strings.ContainsAny(value, "\r\n") {
			return // no header has line breaks
		}
		got, ok := decodeHeader(value)
		coded := strings.HasPrefix(value, "=?base64?") && strings.HasSuffix(value[9:], "?=")
		switch {
		case ok && !coded && got != value:
			t.Fatalf("%q was read as %q", value, got)
		case ok && coded && "=?base64?"+base64.StdEncoding.EncodeToString([]byte(got))+
			"?=" != value:
			t.Fatalf("%q was read as %q, which is written otherwise", value, got)
		}
		encoded := "=?base64?" + base64.StdEncoding.EncodeToString([]byte(value)) + "?="
		if back, ok := decodeHeader(encoded); !ok || back != value {
			t.Fatalf("%q came back as %q", value, back)
		}
		twice := http.Header{nameHeader: {value, value}}
		if checkHeader(twice, nameHeader, "name", quote(value)) == nil {
			t.Fatal("a header twice is taken")
		}
	})
}

// A request without a session is admitted only with one version in header and body, and
// with capabilities.
func FuzzCheckStateless(f *testing.F) {
	f.Fuzz(func(t *testing.T, meta, version, method string) {
		params := json.RawMessage(`{"_meta":` + meta + `}`)
		if checkJSON(params, "it") != nil || !utf8.ValidString(method) || method == "" {
			return
		}
		msg, err := parseMessage(encodeRequest(json.RawMessage("1"), method, members(params)))
		if err != nil {
			t.Fatalf("%q: %v", params, err)
		}
		_, list := parseParams(msg.Params)
		h := http.Header{protocolHeader: {version}, methodHeader: {method}}
		if version == "" {
			h.Del(protocolHeader)
		}
		if !isStateless(h, list) {
			return
		}
		from, err := admission{principal: everyone}.sessionless(t.Context(), h, msg.Method, list)
		if err == nil {
			said := msg.Params.get("_meta")
			object := members(field(said, metaClientCaps)) != nil
			versions := version == statelessProtocol &&
				stringField(said, metaProtocol) == version
			if !versions || !object {
				t.Fatalf("%s %s %q was let in", meta, version, method)
			}
			if from.session.era != stateless {
				t.Fatalf("%s: it has the session %+v", meta, from.session)
			}
			return
		}
		switch rpc := asFault(err); rpc.Code {
		case codeHeaderMismatch, codeInvalidParams:
		case codeUnsupportedVersion:
			if !json.Valid(rpc.Data) || field(rpc.Data, "supported") == nil ||
				field(rpc.Data, "requested") == nil {
				t.Fatalf("%s", rpc.Data)
			}
		default:
			t.Fatalf("%d %v", rpc.Code, err)
		}
		if asFault(err).status() < 400 {
			t.Fatalf("%v has a status of success", err)
		}
	})
}

// without is a JSON object without one of its members.
func without(raw, key string) string {
	list := objectOf(raw)
	return string(slices.DeleteFunc(list, func(f member) bool { return f.key == key }).encode())
}
