// Tests of worker.go and schema.go: what foreign servers say, and what usher makes of it.

package main

import (
	"slices"
	"strings"
	"testing"
)

// writeServer writes an executable module that answers requests by method, or by method and cursor,
// each with lines in which ID is the request's id. At a request with no lines, it ends. It answers initialize itself, with all
// capabilities.
func writeServer(t *testing.T, path string, lines map[string]string) {
	t.Helper()
	need(t, "sh")
	const about = `{"jsonrpc":"2.0","id":ID,"result":{"protocolVersion":"2025-11-25",` +
		`"capabilities":{"tools":{},"prompts":{},"resources":{}},"serverInfo":{"name":"s","version":"1"}}}`
	script := "#!/bin/sh\nwhile read -r line; do\nid=${line#*'\"id\":'}; id=${id%%,*}\ncase $line in\n"
	answer := func(pattern, text string) {
		text = strings.ReplaceAll(text, "'", `'\''`)
		text = strings.ReplaceAll(text, "ID", `'"$id"'`)
		if text == "" {
			script += pattern + ") exit;;\n"
			return
		}
		script += pattern + ") printf '%s\\n' '" + text + "';;\n"
	}
	for _, request := range slices.Backward(sortedKeys(lines)) {
		method, cursor, hasCursor := strings.Cut(request, " ")
		pattern := `*'"method":"` + method + `"'*`
		if hasCursor {
			pattern += `'"cursor":"` + cursor + `"'*`
		}
		answer(pattern, lines[request])
	}
	answer(`*'"method":"initialize"'*`, about)
	answer(
		`*'"id":'*`,
		`{"jsonrpc":"2.0","id":ID,"error":{"code":-32601,"message":"no such method"}}`,
	)
	script += "esac\ndone\n"
	write(t, path, script)
}

// resultLine returns the answer with a result to the request whose id is written as id.
func resultLine(id, result string) string {
	return `{"jsonrpc":"2.0","id":` + id + `,"result":` + result + `}`
}

// oneTool is the list of a server with the tool x.
const oneTool = `{"tools":[{"name":"x","inputSchema":{"type":"object"}}]}`

// A server may write the id of a call, and the token of its progress, as another form of the number.
func TestIDsOfServersAreNumbers(t *testing.T) {
	t.Parallel()
	for _, id := range []string{"ID", "ID.0", "ID.000e0", `"ID"`} {
		t.Run(id, func(t *testing.T) {
			dir := t.TempDir()
			progress := `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":` + id +
				`,"progress":1}}` + "\n"
			writeServer(t, dir+"/a.usher", map[string]string{
				"tools/list": resultLine(id, oneTool),
				"tools/call": progress + resultLine(id, `{"content":[]}`),
			})
			c := connect(t, startDaemon(t, dir).URL)
			c.AwaitTools("a_x")
			a := c.Ask("tools/call", `{"name":"a_x","_meta":{"progressToken":"mine"}}`)
			checkContains(
				t,
				"the answer",
				a.Body,
				`"progressToken":"mine"`,
				`"result":{"content":[]}`,
			)
		})
	}
}

// No answer, definition or error of a module contains half a surrogate pair.
func TestSurrogatesOfModulesAreReplaced(t *testing.T) {
	long(t)
	need(t, "sh")
	const half = `\ud83d`
	dir := t.TempDir()
	writeServer(t, dir+"/a.usher", map[string]string{
		"tools/list": resultLine(
			"ID",
			strings.Replace(oneTool, `"x"`, `"x","description":"`+half+`"`, 1),
		),
		"tools/call": resultLine(
			"ID",
			`{"content":[{"type":"text","text":"`+half+`"}],`+
				`"structuredContent":{"`+half+`":"\\`+half+`"}}`,
		),
		"resources/read": `{"jsonrpc":"2.0","id":ID,"error":{"code":-1,"message":"` + half + `"}}`,
	})
	write(
		t,
		dir+"/s.usher.sh",
		"# Says half.\nhandle_half() { printf '%s' '{\"a\":\""+half+"\"}'; }\n",
	)
	d := startDaemon(t, dir, "-open-webhooks")
	c := connect(t, d.URL)
	c.AwaitTools("a_x", "s_handle_half")
	for what, body := range map[string]string{
		"the list":           c.Ask("tools/list", "{}").Body,
		"a result":           c.Call("a_x", "").Body,
		"the shell's result": c.Call("s_handle_half", "").Body,
		"a webhook's answer": d.deliver(t, "s/handle_half", "").Body,
	} {
		checkOmits(t, what, body, half)
		checkContains(t, what, strings.ReplaceAll(body, `\ufffd`, "\uFFFD"), "\uFFFD")
	}
}

// A server that refuses initialize is asked again in earlier revisions, without newer capabilities.
func TestHandshakeGoesBack(t *testing.T) {
	t.Parallel()
	need(t, "sh")
	const refusal = `{"jsonrpc":"2.0","id":ID,"error":{"code":-32603,"message":"Unrecognized field"}}`
	const params = `initialize","params":{"protocolVersion":"`
	for name, refused := range map[string][]string{
		"the newest revision":   {params + "2025-11-25"},
		"all but the oldest":    {params + "2025-11-25", params + "2025-06-18", params + "2025-03-26"},
		"a form of elicitation": {`initialize"'*'"elicitation":{"form":{},`},
		"parts of sampling":     {`initialize"'*'"sampling":{"tools":{},`},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			lines := map[string]string{"tools/list": resultLine("ID", oneTool)}
			for _, request := range refused {
				lines[request] = refusal
			}
			writeServer(t, dir+"/a.usher", lines)
			checkContains(t, "usher modules", modulesOf(t, dir), "    a_x\n")
		})
	}
}

// A server without sessions that was too slow for its first request is asked once more what it is.
func TestSlowServerIsDiscovered(t *testing.T) {
	inSync(t, func(t *testing.T) {
		w := testWorker(kindExecutable, true, Caller{})
		defer w.cancel()
		go func() {
			isFirst := true
			for waitFor(w.ctx, w.queued) == nil {
				for line := range strings.Lines(w.takeAll()) {
					msg, _ := parseMessage([]byte(line))
					switch {
					case msg.Method == "initialize":
						w.handle(&Message{ID: msg.ID, Err: rpcErrorf(codeNoMethod, "no sessions")})
					case msg.Method == "server/discover" && isFirst: // it is not answered
						isFirst = false
					case msg.Method == "server/discover":
						result := objectOf(`{"supportedVersions":["` + statelessProtocol + `"]}`)
						w.handle(&Message{ID: msg.ID, Result: result})
					}
				}
			}
		}()
		check(t, "the handshake", w.handshake(t.Context(), false), nil)
		check(t, "it has no sessions", w.stateless, true)
	})
}

// A server that does not answer the request for one of its lists keeps what it has listed before.
func TestSilentListIsGivenUp(t *testing.T) {
	for _, silent := range []string{"tools/list", "prompts/list", "resources/list"} {
		runSynced(t, silent, func(t *testing.T) {
			w := testWorker(kindExecutable, false, Caller{})
			defer w.cancel()
			w.info = objectOf(
				`{"capabilities":{"tools":{},"prompts":{},"resources":{}}}`,
			)
			w.makeReady()
			lists := map[string]object{
				"tools/list": append(
					objectOf(oneTool),
					member{"nextCursor", quote("2")},
				),
			}
			go func() {
				for waitFor(w.ctx, w.queued) == nil {
					for line := range strings.Lines(w.takeAll()) {
						msg, _ := parseMessage([]byte(line))
						isFirst := msg.Method == "tools/list" && msg.Params.get("cursor") == nil
						if isFirst || msg.Method != silent {
							w.handle(&Message{ID: msg.ID, Result: lists[msg.Method]})
						}
						if msg.Method == "tools/list" {
							lists["tools/list"] = objectOf(oneTool)
						}
					}
				}
			}()
			m, err := w.readManifest()
			must(t, err)
			check(t, "tools", len(m.Lists["tools"]), 1)
			problems := strings.Join(m.Problems, "\n")
			checkContains(t, "problems", problems, silent+": "+errTimeout.Error())
		})
	}
}

// A server that asks its client for something unknown fails its own call: the client's request was right.
func TestUnknownAskFailsItsCall(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	writeServer(t, dir+"/a.usher", map[string]string{
		"tools/list": resultLine("ID", oneTool),
		"tools/call": resultLine(
			"ID",
			`{"resultType":"input_required","inputRequests":{"k":{"method":"tasks/x"}}}`,
		),
	})
	c := connect(t, startDaemon(t, dir).URL)
	c.AwaitTools("a_x")
	a := c.Modern("tools/call", `{"name":"a_x"}`)
	check(t, "status", a.Status, 200)
	checkContains(t, "failure", a.Failure(), "unknown method tasks/x")
	failure := c.Call("a_x", "").Failure()
	checkContains(t, "failure in a session", failure, "unknown method tasks/x")
}
