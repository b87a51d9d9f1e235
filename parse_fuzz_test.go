// Fuzz tests of the parsers that decide on access: session ids and their log, codes,
// Host and Origin, Accept; of what owners and authors write: sizes, documentation,
// .mcp.json files, schemas; and of what clients write: messages, event ids, headers.

package main

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"math/big"
	"net/http"
	"net/netip"
	"net/url"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// FuzzSessionID checks that only the text that a table sealed opens.
func FuzzSessionID(f *testing.F) {
	table, other := newSessionTable(newSessionKey()), newSessionTable(newSessionKey())
	f.Add("", "2025-11-25", uint16(3), "R3K9QZ", "/w", 0, byte('A'))
	f.Add("AAAA", "2024-11-05", uint16(0), "", "", 40, byte('='))
	f.Add("\n", "", uint16(9), "222222", "/", -1, byte('\n'))
	f.Fuzz(func(t *testing.T, stranger, protocol string, caps uint16, code, dir string, at int, char byte) {
		if !utf8.ValidString(protocol) || !utf8.ValidString(code) || !utf8.ValidString(dir) {
			return
		}
		origin := newOrigin(protocol, clientCaps(caps), claimID{Code(code), "", dir})
		id := table.seal(origin)
		if got, ok := table.unseal(id); !ok || !reflect.DeepEqual(got, origin) {
			t.Fatalf("%+v came back as %+v, %v", origin, got, ok)
		}
		if _, ok := other.unseal(id); ok {
			t.Fatal("another daemon's id is taken")
		}
		at = max(at, -at, 0) % len(id)
		oneCharacter := id[:at] + string(char) + id[at+1:]
		cases := []string{stranger, stranger + id, id + stranger, id[:at], oneCharacter, id[at:] + id[:at]}
		for _, forged := range cases {
			if _, ok := table.unseal(forged); ok && forged != id {
				t.Fatalf("%q opens, %q was sealed", forged, id)
			}
		}
	})
}

// FuzzPresentedCode checks that the code comes from the first of three places that is not
// empty, and that no query that mentions a claim counts as no code.
func FuzzPresentedCode(f *testing.F) {
	f.Add("R3K-9QZ", "claim=222222", "Bearer 333333")
	f.Add("", "x=1&claim=r3k9qz&claim=222222", "")
	f.Add("", "claim=%zz;claim=222222", "bearer r3k 9qz")
	f.Add(" ", "claim=", "Bearer eyJhbGciOi")
	f.Add("", "", "Basic 222222")
	f.Add("", "%43laim=222222", "Bearer 2222223333334")
	f.Fuzz(func(t *testing.T, header, query, authorization string) {
		r := &http.Request{URL: &url.URL{RawQuery: query}}
		r.Header = http.Header{claimHeader: {header}, "Authorization": {authorization}}
		code, presents := presentedCode(r)
		inURL, err := url.ParseQuery(query)
		token, isBearer := strings.CutPrefix(strings.ToLower(authorization), "bearer ")
		token = strings.TrimSpace(token)
		mentions := strings.Count(strings.ToLower(query), "claim")
		text := ""
		switch {
		case header != "":
			text = header
		case mentions > 1 || mentions == 1 && (err != nil || len(inURL["claim"]) != 1):
			check(t, "a slip is presented", presents, true)
			return
		case inURL.Get("claim") != "":
			text = inURL.Get("claim")
		case isBearer && len(token) <= maxBearerCode:
			text = token
		}
		if strings.Contains(query, "%") {
			return // it may mention a claim
		}
		want, _ := parseCode(text)
		if code != want || presents != (text != "") {
			t.Fatalf("%q %q %q: %q, %v; want %q", header, query, authorization, code.Reveal(), presents, want.Reveal())
		}
	})
}

// FuzzAdmit checks that an admitted request names this machine, an address, or what
// was allowed.
func FuzzAdmit(f *testing.F) {
	policy := &originPolicy{hosts: []string{"usher.example.com"}, origins: []string{"https://example.com"}}
	for _, host := range []string{
		"localhost:3000", "[::1]:3000", "a.localhost.", "usher.example.com.", "127.0.0.1.example.com",
		"localhost.example.com", "2130706433", "[localhost]", "localhost:80:90", "",
	} {
		f.Add(host, "http://"+host, true)
	}
	f.Add("localhost", "null", true)
	f.Add("localhost", "http://localhost@example.com", true)
	f.Add("localhost", "https://example.com:443", true)
	f.Add("localhost", `http://example.com\.localhost`, true)
	port := regexp.MustCompile(`:[0-9]*$`)
	local := func(host string) bool {
		host = strings.ToLower(strings.Trim(port.ReplaceAllString(host, ""), "[]"))
		addr, err := netip.ParseAddr(host)
		return host == "localhost" || strings.HasSuffix(host, ".localhost") || err == nil && addr.Unmap().IsLoopback()
	}
	f.Fuzz(func(t *testing.T, host, origin string, sends bool) {
		r := &http.Request{Host: host, Header: http.Header{}}
		if sends {
			r.Header.Set("Origin", origin)
		}
		if policy.admit(r) != nil {
			return
		}
		name := strings.ToLower(strings.TrimSuffix(strings.Trim(port.ReplaceAllString(host, ""), "[]"), "."))
		if _, err := netip.ParseAddr(name); err != nil && name != "usher.example.com" && !local(name) {
			t.Fatalf("the host %q is let in", host)
		}
		if !sends || strings.EqualFold(origin, "https://example.com") {
			return
		}
		_, place, _ := strings.Cut(origin, "//")
		if end := strings.IndexAny(place, `/\?#`); end >= 0 {
			place = place[:end]
		}
		if i := strings.LastIndexByte(place, '@'); i >= 0 {
			place = place[i+1:]
		}
		if place, err := url.PathUnescape(place); err != nil || !local(place) {
			t.Fatalf("the origin %q is let in", origin)
		}
	})
}

// FuzzParseAccept checks that several lines of Accept count as one, and that a
// longer list never allows less.
func FuzzParseAccept(f *testing.F) {
	f.Add("application/json", "text/event-stream")
	f.Add("text/event-stream;q=0.9, */*", "text/html")
	f.Add("TEXT/*", "application/*;v=\",\"")
	f.Add("", ",")
	f.Fuzz(func(t *testing.T, a, b string) {
		parse := func(values ...string) accepts { return parseAccept(http.Header{"Accept": values}) }
		one, two := parse(a), parse(b)
		both := parse(a, b)
		if both != parse(a+","+b) {
			t.Fatalf("%q and %q differ from one line", a, b)
		}
		if a == "" || b == "" {
			return // nothing said allows anything, and an empty item nothing
		}
		want := both
		want.json = one.json || two.json
		want.stream = one.stream || two.stream
		want.html = one.html || two.html
		want.streamFirst = one.streamFirst || !one.json && two.streamFirst
		if both != want || both.streamFirst && !both.stream {
			t.Fatalf("%q: %+v, %q: %+v, both: %+v", a, one, b, two, both)
		}
		allowed := map[string]bool{"application/json": one.json, "text/event-stream": one.stream, "text/html": one.html}
		for kind, said := range allowed {
			first, _, _ := strings.Cut(a, ";")
			if strings.EqualFold(strings.TrimSpace(first), kind) && !strings.ContainsAny(a, ";,\"") && !said {
				t.Fatalf("%q does not allow %s", a, kind)
			}
		}
	})
}

// FuzzParseSize checks that a size is a number and a unit, and nothing else.
func FuzzParseSize(f *testing.F) {
	for _, s := range []string{
		"4MiB", "1", "1024GiB", "1025GiB", "0", "-1", "4 MiB", "4MiB x", "+4", "1e3", "4MB",
		"99999999999999999999", "1099511627776", "0x10", "٤",
	} {
		f.Add(s)
	}
	check(f, "no bytes", formatSize(0), "0 bytes")
	form := regexp.MustCompile(`^([0-9]+)(KiB|MiB|GiB)?$`)
	f.Fuzz(func(t *testing.T, s string) {
		var flags serveFlags
		err := flags.setMaxBody(s)
		want := new(big.Int)
		if match := form.FindStringSubmatch(s); match != nil {
			want.SetString(match[1], 10)
			want.Lsh(want, map[string]uint{"": 0, "KiB": 10, "MiB": 20, "GiB": 30}[match[2]])
		}
		fits := want.Sign() > 0 && want.Cmp(big.NewInt(1<<40)) <= 0
		if (err == nil) != fits || fits && flags.maxBody != want.Int64() {
			t.Fatalf("%q is %d, %v; want %d", s, flags.maxBody, err, want)
		}
		shown := strings.TrimSuffix(strings.ReplaceAll(formatSize(flags.maxBody), " ", ""), "bytes")
		if again := (serveFlags{}); fits && (again.setMaxBody(shown) != nil || again.maxBody != flags.maxBody) {
			t.Fatalf("%d is shown as %q, which is another size", flags.maxBody, shown)
		}
	})
}

// FuzzParseDoc checks that the text that is left has no tags, and that there are
// none if the rules allow none.
func FuzzParseDoc(f *testing.F) {
	f.Add("Text.\n@param {string} [a=1] text\n  more\n@webhook a/b\n" +
		" @signature\tgithub X_WEBHOOK_SECRET\n@readonly\n@other")
	f.Add("@param {{a: {b}}} p - text\r\n@webhook")
	f.Add("\u00a0@webhook\u2003x\n@webhooks y\n@param\n  z")
	f.Fuzz(func(t *testing.T, doc string) {
		tagged := func(tags docTags) bool {
			// A misplaced @signature stays in the text, and lets nothing in.
			signed := strings.HasPrefix(tags.Signature, "@signature")
			return tags.IsHook || signed || len(tags.params)+len(tags.annotations) > 0
		}
		plain := parseDoc(doc, kindConfig)
		if tagged(plain) || plain.Signature != "" || plain.description != strings.TrimSpace(plain.description) {
			t.Fatalf("%q has tags: %+v", doc, plain)
		}
		tags := parseDoc(doc, kindNode)
		again := parseDoc(tags.description, kindNode)
		if tagged(again) || again.description != tags.description {
			t.Fatalf("%q leaves %q, which is read as %+v", doc, tags.description, again)
		}
		for _, p := range tags.params {
			if p.name == "" || strings.ContainsAny(p.name, " \n.") {
				t.Fatalf("%q: the parameter's name in %+v", doc, p)
			}
			if p.defaultValue != nil && (!json.Valid(p.defaultValue) || !p.optional) {
				t.Fatalf("%q: the parameter's default value in %+v", doc, p)
			}
		}
		if tags.Hook != "" && checkHookPath(tags.Hook) == nil {
			u, err := url.Parse(webhookPrefix + tags.Hook)
			if err != nil || u.Path != webhookPrefix+tags.Hook || u.RawQuery != "" {
				t.Fatalf("%q can't be asked for as it is written: %v", tags.Hook, u)
			}
		}
	})
}

// FuzzParseMethod checks that a tool's definition stays the same when it is read
// again, and has no parameter _webhook.
func FuzzParseMethod(f *testing.F) {
	f.Add(`{"name":"x","description":"a\n@param {string} [b=1] c\n@webhook d/e\n@signature github F",`+
		`"inputSchema":{"type":"object","properties":{"b":{}}}}`, "shell")
	f.Add(`{"name":"x","description":"@param {object} p\n@param p.q.r s","inputSchema":{"type":"object"}}`, "node")
	f.Add(`{"name":"x","inputSchema":{"type":"object","required":["_webhook","a"],`+
		`"properties":{"_webhook":{},"a":{"x-mcp-header":"A","type":"string"}}}}`, "hosted")
	f.Fuzz(func(t *testing.T, definition, kind string) {
		raw := json.RawMessage(definition)
		if checkJSON(raw, "it") != nil || checkDefinition("tools", raw) != nil {
			return
		}
		m, _ := parseMethod(raw, kindOf[kind])
		shown := m.toolJSON("t")
		again, _ := parseMethod(shown, kindOf[kind])
		if !json.Valid(shown) || string(again.toolJSON("t")) != string(shown) || again.Name != "t" {
			t.Fatalf("%s is read again as %s", shown, again.toolJSON("t"))
		}
		schema := field(shown, "inputSchema")
		if field(field(schema, "properties"), webhookParam) != nil || !isObject(schema) {
			t.Fatalf("the schema of %s", shown)
		}
		for name, header := range m.headerParams {
			if !headerToken.MatchString(header) || m.paramTypes(name) == nil {
				t.Fatalf("the parameter %q in the header %q", name, header)
			}
		}
	})
}

// FuzzCheckArguments checks that arguments that fit are an object, and fit again as
// they were returned.
func FuzzCheckArguments(f *testing.F) {
	f.Add(`{"type":"object","properties":{"a":{"type":"integer","minimum":1},`+
		`"b":{"anyOf":[{"type":"string"},{"$ref":"#/$defs/c"}]}},"required":["a"],"additionalProperties":false,`+
		`"$defs":{"c":{"type":["null","array"],"items":{"enum":["x",1]}}}}`, `{"a":1,"b":["x",1]}`)
	f.Add(`{"$ref":"#/$defs/a","$defs":{"a":{"$ref":"#/$defs/a"}}}`, `{}`)
	f.Add(`{"properties":{"a":{"type":"string","format":"date-time"},`+
		`"b":{"type":"string","contentEncoding":"base64"}}}`,
		`{"a":null,"a":"2026-11-21T10:00:00Z","b":"AA=="}`)
	f.Add(`{"properties":{"a":false,"b":true},"additionalProperties":{"type":"number"}}`, `{"b":1e999,"c":1.0}`)
	f.Fuzz(func(t *testing.T, schema, arguments string) {
		invalid := checkJSON([]byte(schema), "it") != nil || checkJSON([]byte(arguments), "it") != nil
		if invalid || !isObject([]byte(arguments)) {
			return
		}
		var object map[string]any
		_ = json.Unmarshal([]byte(schema), &object)
		m := &Method{schema: func() map[string]any { return object }}
		fit, err := m.checkArguments(json.RawMessage(arguments))
		if err != nil {
			if wrong, ok := errors.AsType[*argumentError](err); !ok || wrong.Error() == "" {
				t.Fatalf("%v", err)
			}
			return
		}
		again, err := m.checkArguments(fit)
		if err != nil || string(again) != string(fit) || !json.Valid(fit) || !isObject(fit) {
			t.Fatalf("%s took %s, returned %s, and then %s, %v", schema, arguments, fit, again, err)
		}
		for _, name := range textList(object["required"]) {
			if object["$ref"] == nil && field(fit, name) == nil {
				t.Fatalf("%s took %s without %q", schema, arguments, name)
			}
		}
	})
}

// FuzzParseConfig checks that an entry of a .mcp.json file that can be started gets
// no secret of the daemon, has a name and a folder, and reads the same each time.
func FuzzParseConfig(f *testing.F) {
	f.Add([]byte(`{"mcpServers":{"m":{"command":"${A:-b}","args":["${C}"],"env":{"D":"e"}}}}`))
	f.Add([]byte(`{"mcpServers":{"m":{"command":"${GITHUB_WEBHOOK_SECRET}","cwd":"${x_signing_secret:-a}"},` +
		`"a b":{"command":"c"},"d":{"disabled":true}}}`))
	f.Add([]byte("\ufeff" + `{"mcpServers":{"m":{"command":"c","cwd":"../d","shared":true,"type":"stdio","url":"x"},` +
		`"n":{"url":"http://x"}}}`))
	const secret = "5e0c1a7"
	f.Setenv("GITHUB_WEBHOOK_SECRET", secret)
	f.Setenv("x_signing_secret", secret)
	f.Fuzz(func(t *testing.T, raw []byte) {
		list, err := configModules(raw, "/w")
		if again, _ := configModules(raw, "/w"); len(again) != len(list) || err != nil && list != nil {
			t.Fatalf("%q: %v, %v", raw, list, err)
		}
		for _, d := range list {
			if d.Err != nil {
				continue
			}
			named := moduleName.MatchString(d.Name) && d.Kind == kindConfig && d.Version != ""
			if !named || !filepath.IsAbs(d.Launch.Dir) {
				t.Fatalf("%q: %+v", raw, d)
			}
			whole := string(marshal(d.Launch))
			if strings.Contains(whole, secret) && !bytes.Contains(raw, []byte(secret)) {
				t.Fatalf("%q: a secret is in %s", raw, whole)
			}
			for _, entry := range d.Launch.Env {
				if !strings.Contains(entry, "=") {
					t.Fatalf("%q: %q", raw, d.Launch.Env)
				}
			}
		}
	})
}

// FuzzLineReader checks that lines are read in order, without those that are blank
// or too long.
func FuzzLineReader(f *testing.F) {
	f.Add([]byte("one\r\n\n  \ntwo\nthree"), uint8(4))
	f.Add(append(bytes.Repeat([]byte("x"), 70_000), "\nok"...), uint8(200))
	f.Fuzz(func(t *testing.T, text []byte, limit uint8) {
		var want []string
		for line := range bytes.Lines(text) {
			if len(line) > int(limit)+1 { // with its end
				want = append(want, "(too long)")
			} else if line = bytes.TrimRight(line, " \t\r\n"); len(line) > 0 {
				want = append(want, string(line))
			}
		}
		var got []string
		for r := newLineReader(bytes.NewReader(text), int(limit)); ; {
			line, err := r.next()
			if err == io.EOF {
				break
			}
			if errors.Is(err, errLineTooLong) {
				line = []byte("(too long)")
			} else if err != nil {
				t.Fatal(err)
			}
			got = append(got, string(line))
		}
		if !slices.Equal(got, want) {
			t.Fatalf("%q within %d: %q, want %q", text, limit, got, want)
		}
	})
}

// FuzzParseInitialize checks that a session begins in a version that has sessions,
// and that its client's capabilities encode to what was read.
func FuzzParseInitialize(f *testing.F) {
	f.Add(`{"protocolVersion":"2025-11-25","capabilities":{"elicitation":{"url":{}},"sampling":{"tools":{}},` +
		`"roots":{"listChanged":true}}}`)
	f.Add(`{"protocolVersion":"1","capabilities":{"elicitation":{}}}`)
	f.Add(`{"protocolVersion":1}`)
	f.Fuzz(func(t *testing.T, params string) {
		if checkJSON([]byte(params), "it") != nil {
			return
		}
		protocol, caps, err := parseInitialize(objectOf(params))
		if err != nil {
			if asRPCError(err).Code != codeInvalidParams {
				t.Fatal(err)
			}
			return
		}
		if !hasSessions(protocol) || parseClientCaps(caps.encode()) != caps {
			t.Fatalf("%s: %q, %b, which is %s", params, protocol, caps, caps.encode())
		}
	})
}

func FuzzMembers(f *testing.F) {
	f.Add([]byte(`{"a":1,"b":{"c":[1,"}",{}]},"\u00e9\"":"\\","d":-1.5e+3 , "e":null}`))
	f.Add([]byte("{\n\t\"a\" : [ ] , \"a\" : true\r}"))
	f.Add([]byte(`[]`))
	f.Add([]byte(`{"abcde\`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		if checkJSON(raw, "it") != nil {
			members(slices.Clip(raw)) // of text that is none it need only return
			field(raw, "a")
			return
		}
		var want map[string]json.RawMessage
		isObject := json.Unmarshal(raw, &want) == nil && want != nil
		list := members(raw)
		if ok := list != nil; ok != isObject {
			t.Fatalf("%q: an object: %v, want %v", raw, ok, isObject)
		}
		if !isObject {
			return
		}
		got := map[string]json.RawMessage{}
		for _, m := range list {
			got[m.key] = m.value
		}
		for key, value := range want {
			if !bytes.Equal(got[key], value) || !bytes.Equal(field(raw, key), value) {
				t.Errorf("%q: %q is %q, its field %q, want %q", raw, key, got[key], field(raw, key), value)
			}
		}
		if len(got) != len(want) || !json.Valid(list.encode()) {
			t.Errorf("%q: %d members, want %d; joined %s", raw, len(got), len(want), list.encode())
		}
		if line := oneLine(raw); bytes.ContainsAny(line, "\r\n") || !json.Valid(line) {
			t.Errorf("%q on one line: %q", raw, line)
		}
	})
}

func FuzzParseMessage(f *testing.F) {
	f.Add([]byte(`{"jsonrpc":"2.0","id":1,"method":"ping","params":{}}`))
	f.Add([]byte(`{"jsonrpc":"2.0","id":"x","error":{"code":-1,"message":"m","data":[]}}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		m, err := parseMessage(raw)
		if err != nil {
			if rpc := (*rpcError)(nil); !errors.As(err, &rpc) {
				t.Errorf("%q: an error of another kind: %v", raw, err)
			}
			return
		}
		if !m.isRequest() && !m.isNotification() && m.Result == nil && m.Err == nil {
			t.Errorf("%q: a message of no kind: %+v", raw, m)
		}
		if m.Method != "" && !json.Valid(encodeRequest(m.ID, m.Method, m.Params)) {
			t.Errorf("%q: can't be sent on", raw)
		}
	})
}

func FuzzDecodeHeader(f *testing.F) {
	f.Fuzz(func(t *testing.T, value string) {
		got, ok := decodeHeader(value)
		coded := strings.HasPrefix(value, "=?base64?") && strings.HasSuffix(value[9:], "?=")
		switch {
		case ok && !coded && got != value:
			t.Fatalf("%q was read as %q", value, got)
		case ok && coded && "=?base64?"+base64.StdEncoding.EncodeToString([]byte(got))+"?=" != value:
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

func FuzzCheckStateless(f *testing.F) {
	f.Fuzz(func(t *testing.T, meta, version, method string) {
		params := json.RawMessage(`{"_meta":` + meta + `}`)
		if checkJSON(params, "it") != nil || !utf8.ValidString(method) || method == "" {
			return
		}
		msg, err := parseMessage(encodeRequest(json.RawMessage("1"), method, params))
		if err != nil {
			t.Fatalf("%q: %v", params, err)
		}
		list := parseParams(msg.Params)
		h := http.Header{protocolHeader: {version}, methodHeader: {method}}
		if version == "" {
			h.Del(protocolHeader)
		}
		if !isStateless(h, list) {
			return
		}
		session, err := newStatelessSession(h, msg.Method, list, everyone)
		if err == nil {
			said := field(msg.Params, "_meta")
			object := isObject(field(said, metaClientCaps))
			versions := version == statelessProtocol && stringField(said, metaProtocol) == version
			if !versions || !object {
				t.Fatalf("%s %s %q was let in", meta, version, method)
			}
			if session.era != stateless || session.Claim.exists() {
				t.Fatalf("%s: it has the session %+v", meta, session)
			}
			return
		}
		switch rpc := asRPCError(err); rpc.Code {
		case codeHeaderMismatch, codeInvalidParams:
		case codeUnsupportedVersion:
			if !json.Valid(rpc.Data) || field(rpc.Data, "supported") == nil || field(rpc.Data, "requested") == nil {
				t.Fatalf("%s", rpc.Data)
			}
		default:
			t.Fatalf("%d %v", rpc.Code, err)
		}
		if rpcStatus(asRPCError(err).Code) < 400 {
			t.Fatalf("%v has a status of success", err)
		}
	})
}
