// Tests of usher call: its words, and calls of a daemon at -url.

package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// wordsSchema has a parameter of each type.
const wordsSchema = `{"type":"object","properties":{"text":{"type":"string"},` +
	`"n":{"type":"integer"},"x":{"type":"number"},"on":{"type":"boolean"},` +
	`"flags":{"type":"array","items":{"type":"boolean"}},` +
	`"list":{"type":"array","items":{"type":"string"}},` +
	`"ints":{"type":"array","items":{"type":"integer"}},"o":{"type":"object"},"any":{},` +
	`"maybe":{"anyOf":[{"type":"integer"},{"type":"null"}]},"kind":{"enum":["1",2]},` +
	`"ref":{"$ref":"#/$defs/R"},"lost":{"$ref":"#/$defs/none"}},"$defs":{"R":{"type":"boolean"}}}`

// The words of a call become what the tool's schema wants, in a file as in a daemon.
func TestCallReadsWords(t *testing.T) {
	long(t)
	dir, base := t.TempDir(), t.TempDir()
	writeTools(t, dir+"/m.usher", "take "+wordsSchema)
	d := daemonOptions{base: base}.startReady(t, dir, "-require-claim")
	code := newCode(t, base, dir)
	for _, tt := range []struct{ words, want string }{
		{`text=Ada`, `{"text":"Ada"}`},
		{`text=5`, `{"text":"5"}`},
		{`text=`, `{"text":""}`},
		{`text=a=b`, `{"text":"a=b"}`},
		{`text={"a":1}`, `{"text":"{\"a\":1}"}`},
		{`n=5 x=2.50 on=true`, `{"n":5,"on":true,"x":2.50}`},
		{`flags=on flags=on`, `{"flags":[true,true]}`},
		{`n=five`, `{"n":"five"}`},
		{`list=a`, `{"list":["a"]}`},
		{`list=1 list=b`, `{"list":["1","b"]}`},
		{`list=["a","b"]`, `{"list":["a","b"]}`},
		{`ints=1 ints=2`, `{"ints":[1,2]}`},
		{`ints=1`, `{"ints":[1]}`},
		{`o={"a":[1]}`, `{"o":{"a":[1]}}`},
		{`any=1`, `{"any":"1"}`},
		{`any=1 any=x`, `{"any":["1","x"]}`},
		{`maybe=null`, `{"maybe":null}`},
		{`maybe=7`, `{"maybe":7}`},
		{`kind=1`, `{"kind":"1"}`},
		{`kind=2`, `{"kind":2}`},
		{`ref=false`, `{"ref":false}`},
		{`lost=1`, `{"lost":"1"}`},
		{`other=1`, `{"other":"1"}`},
		{`n=18446744073709551617`, `{"n":18446744073709551617}`},
		{`{"n":1}`, `{"n":1}`},
		{`-`, `{"text":"stdin"}`},
	} {
		t.Run(tt.words, func(t *testing.T) {
			for _, where := range []string{
				"m take -dir " + dir,
				"m_take -dir " + dir,
				"m_take -url " + d.URL,
			} {
				name, flags, _ := strings.Cut(where, " -")
				args := append([]string{"call"}, strings.Fields(name)...)
				args = append(args, strings.Fields(tt.words)...)
				args = append(args, strings.Fields("-"+flags)...)
				env := map[string]string{claimVar: code}
				out, errs, status := usherIn(t, env, `{"text":"stdin"}`, args...)
				check(t, where+": status", status, 0)
				check(t, where+errs, out, tt.want+"\n")
			}
		})
	}
	for _, words := range []string{`text`, `n=1 {"n":1}`, `{"n":1} n=1`, `{`, `[1]`, `n=1 -`} {
		args := append([]string{"call", "m", "take", "-dir", dir}, strings.Fields(words)...)
		_, errs, status := usherIn(t, nil, `{"n":1}`, args...)
		check(t, words+": status", status, 2)
		checkContains(t, words, errs, "ARGUMENTS: want name=value words")
	}
}

// usher call -url sees what the code shows, and fails if the tool does.
func TestCallOfADaemon(t *testing.T) {
	long(t)
	p := startProjects(t, "-require-claim", "-watch")
	writeFake(t, p.dir+"/proj/rich.usher", "good",
		"mirror "+mirrorSchema, "fail=fail", "log=log", "ask=ask", "x")
	code := newCode(t, p.Base, p.dir+"/proj")
	// This call waits for the new module.
	newClient(t, p.URL).Modern("tools/call", `{"name":"rich_x"}`, inHeader(code))
	for _, tt := range []struct {
		what, code, args string
		status           int
		out, errs        string
	}{
		{"the list", code, "", 0, "rich_mirror(region?: string, n?: integer, on?: boolean", ""},
		{"a call", code, "rich_x", 0, "{}", ""},
		{"a code from a file", " " + code + "\r\n", "rich_x", 0, "{}", ""},
		{"its headers", code, "rich_mirror region=Zürich n=5 on=true", 0, "Zürich", ""},
		{"a failed tool", code, "rich_fail", 1, "", "usher: call: it did not work\n"},
		{"a log message", code, "rich_log level=debug data=half", 0, "", "usher: half\n"},
		{"an unknown tool", code, "rich_xx", 1, "", `unknown tool "rich_xx"`},
		{"a tool out of scope", code, "b_x", 1, "", `unknown tool "b_x"`},
		{"an ask", code, `rich_ask {"asks":[{"method":"elicitation/create"}]}`, 1, "",
			"use an MCP client"},
		{"a wrong code", "ABCDEF", "rich_x", 1, "", "claim code is unknown"},
		{"no code", "", "", 1, "", "a claim code is required"},
	} {
		t.Run(tt.what, func(t *testing.T) {
			args := append([]string{"call", "-url", p.URL}, strings.Fields(tt.args)...)
			env := map[string]string{claimVar: tt.code}
			out, errs, status := usherIn(t, env, "", args...)
			check(t, "status", status, tt.status)
			checkContains(t, "stdout"+errs, out, tt.out)
			checkContains(t, "stderr", errs, tt.errs)
			checkOmits(t, "stderr", errs, code)
		})
	}
	p.hidesCodes(t, code)
}

// usher call -url reads all pages and streams, follows no redirect, and takes nothing else for an
// answer.
func TestCallReadsAnswers(t *testing.T) {
	t.Parallel()
	const result = `{"jsonrpc":"2.0","id":1,"result":`
	const tools = result +
		`{"resultType":"complete","tools":[{"name":"t","inputSchema":{"type":"object"}}]}}`
	const hi = result + `{"content":[{"type":"text","text":"hi"}]}}`
	follow := func(http.ResponseWriter, *http.Request) { t.Error("a redirect was followed") }
	elsewhere := httptest.NewServer(http.HandlerFunc(follow))
	defer elsewhere.Close()
	for _, tt := range []struct {
		what, list, answer string // a Location begins with http
		status             int
		says               string
	}{
		{"pages", result + `{"tools":[],"nextCursor":"2"}}`, hi, 0, "hi\n"},
		{"a stream", tools, ": \n\nevent: message\ndata: {\"jsonrpc\":\"2.0\"," +
			"\"method\":\"notifications/progress\",\"params\":{\"message\":\"half\"}}\n\n" +
			"data: " + hi + "\n\n", 0, "hi\nusher: half\n"},
		{"a stream that breaks", tools, "data: {\"jsonrpc\"", 1, "200 OK: no answer of MCP"},
		{"an ask", tools, result + `{"resultType":"input_required","inputRequests":{}}}`, 1,
			"asks its client"},
		{"an ask on the stream", tools,
			"data: {\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}\n\n", 1, "asks its client"},
		{"a redirect", elsewhere.URL, "", 1, "302 Found: no answer of MCP"},
		{"a page", "<html>\n{</html>", "", 1, "200 OK: no answer of MCP"},
	} {
		t.Run(tt.what, func(t *testing.T) {
			serve := func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				answer := tt.answer
				if r.Header.Get(methodHeader) == "tools/list" {
					answer = tt.list
					if strings.Contains(string(body), `"cursor":"2"`) {
						answer = tools
					}
				}
				if strings.HasPrefix(answer, "http") {
					w.Header().Set("Location", answer)
					w.WriteHeader(http.StatusFound)
				}
				fmt.Fprint(w, answer)
			}
			server := httptest.NewServer(http.HandlerFunc(serve))
			defer server.Close()
			out, errs, status := usher(t, "call", "-url", server.URL, "t")
			check(t, "status", status, tt.status)
			checkContains(t, "the output", out+errs, tt.says)
		})
	}
}
