// One fake MCP server, run by the test binary, whose traits and tools a test chooses.

package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// writeFake writes an executable module that runs a fake with these traits, separated
// by spaces. Tools given here replace those of the trait tools=. The file is replaced
// at once, as editors do.
func writeFake(t *testing.T, path, traits string, tools ...string) {
	t.Helper()
	exe := testBinary(t)
	if len(tools) > 0 {
		traits += " " + fakeTools(t, tools...)
	}
	write(t, path+".new", fmt.Sprintf("#!/bin/sh\n%s='%s' exec '%s'\n", runAsFake, traits, exe))
	must(t, os.Rename(path+".new", path))
}

// writeTools writes a fake with these tools.
func writeTools(t *testing.T, path string, tools ...string) {
	t.Helper()
	writeFake(t, path, "fixed", tools...)
}

// writeShared adds a fake, one process of which serves all callers, to the .mcp.json of a folder.
func writeShared(t *testing.T, dir, name, traits string) {
	t.Helper()
	path := dir + "/" + string(kindConfig)
	text, _ := os.ReadFile(path) // there may be none
	entry := fmt.Sprintf(`{"command":%q,"env":{%q:%q},"shared":true}`, testBinary(t),
		runAsFake, traits)
	servers := withMember(field(text, "mcpServers"), name, json.RawMessage(entry))
	write(t, path, string(object{{"mcpServers", servers}}.encode()))
}

// fakeTools returns the trait of a fake with these tools.
func fakeTools(t *testing.T, tools ...string) string {
	t.Helper()
	path := t.TempDir() + "/tools.json"
	write(t, path, string(marshal(tools)))
	return "toolsIn=" + path
}

// fakeTool describes a tool of a fake. does is one of the words at the top of
// testkit_main_test.go; "" returns the arguments.
type fakeTool struct{ name, doc, does, schema string }

// parseTool returns a tool written as "NAME=DOES SCHEMA: DOC". Only the name is required.
func parseTool(text string) fakeTool {
	head, doc, _ := strings.Cut(text, ": ")
	head, schema, _ := strings.Cut(head, " ")
	name, does, _ := strings.Cut(head, "=")
	return fakeTool{name, doc, does, schema}
}

// usualTools are the tools of a fake without the trait tools.
const usualTools = "echo,sleep,crash,progress,log,pid,env,count,fail,big,error,grow"

// mirrorSchema is the schema of the tool mirror.
const mirrorSchema = `{"type":"object","properties":{"region":{"type":"string","x-mcp-header":"Region"},
	"n":{"type":"integer","x-mcp-header":"Number"},"on":{"type":"boolean","x-mcp-header":"On"},
	"deep":{"type":"object","properties":{"er":{"type":"string","x-mcp-header":"Deeper"}}}}}`

// fakeServer is an MCP server on stdin and stdout, with the traits that are listed at the top of
// testkit_main_test.go.
type fakeServer struct {
	traits map[string]string
	roots  chan string // 1-buffered: what came back for roots/list

	outMu sync.Mutex // guards stdout
	out   *bufio.Writer

	mu         sync.Mutex
	tools      []fakeTool
	calls      map[string]chan struct{} // by id; closed when cancelled
	asked      map[string]chan *Message // its own requests, by id
	asks       int
	runs       map[string]int // by tool
	subscribed map[string]bool
	gate       chan struct{} // closed and replaced by release
}

// fakeProcess identifies this process, as a pid does until it is used again.
var fakeProcess = strconv.FormatInt(time.Now().UnixNano(), 10)

func runFake(traits string) int {
	f := &fakeServer{
		traits:     map[string]string{},
		roots:      make(chan string, 1),
		out:        bufio.NewWriter(os.Stdout),
		calls:      map[string]chan struct{}{},
		asked:      map[string]chan *Message{},
		runs:       map[string]int{},
		subscribed: map[string]bool{},
		gate:       make(chan struct{}),
	}
	for word := range strings.FieldsSeq(traits) {
		key, value, _ := strings.Cut(word, "=")
		f.traits[key] = value
	}
	if f.has("dies") {
		fmt.Fprintln(os.Stderr, "fake: no module named turbo")
		return 3
	}
	f.setTools()
	if f.has("child") {
		exec.Command("sleep", "1000").Start()
	}
	lines := newLineReader(os.Stdin, 64<<20)
	for {
		line, err := lines.next()
		if err != nil {
			break
		}
		if msg, err := parseMessage(line); err == nil && !f.has("mute") {
			f.handle(msg)
		}
	}
	return 0
}

func (f *fakeServer) has(trait string) bool {
	_, ok := f.traits[trait]
	return ok
}

// setTools sets the tools that the traits name.
func (f *fakeServer) setTools() {
	if path, ok := f.traits["toolsIn"]; ok {
		var tools []string
		raw, err := os.ReadFile(path)
		if err == nil {
			err = json.Unmarshal(raw, &tools)
		}
		if err != nil {
			panic(err)
		}
		for _, tool := range tools {
			f.tools = append(f.tools, parseTool(tool))
		}
		return
	}
	names := usualTools
	if own, ok := f.traits["tools"]; ok {
		names = own
	}
	for name := range strings.SplitSeq(names, ",") {
		f.addTool(name)
	}
}

// addTool adds a tool that does what its name says.
func (f *fakeServer) addTool(name string) {
	does := strings.ToLower(strings.TrimPrefix(name, "handle"))
	tool := fakeTool{name, "The tool " + name + ".", does, ""}
	if name == "mirror" {
		tool.schema = mirrorSchema
	}
	f.tools = append(f.tools, tool)
}

func (f *fakeServer) send(msg []byte) {
	f.outMu.Lock()
	defer f.outMu.Unlock()
	if f.has("garbage") {
		f.out.WriteString("starting up...\n{\"half\":\n\xff\xfe\n[]\n")
	}
	f.out.Write(append(msg, '\n'))
	f.out.Flush()
}

func (f *fakeServer) notify(method string, params object) {
	f.send(encodeRequest(nil, method, params))
}

func (f *fakeServer) handle(msg *Message) {
	switch {
	case msg.Method == "":
		f.mu.Lock()
		answer := f.asked[string(msg.ID)]
		delete(f.asked, string(msg.ID))
		f.mu.Unlock()
		if answer != nil {
			answer <- msg
		}
	case f.has("modern") && msg.isRequest() &&
		(msg.Method == "initialize" || !isStateless(nil, msg.Params.object("_meta"))):
		e := rpcErrorf(codeUnsupportedVersion, "want "+statelessProtocol)
		e.Data = json.RawMessage(`{"supported":["` + statelessProtocol + `"]}`)
		f.send(encodeError(msg.ID, e))
	case f.has("wants") && slices.Contains(askingMethods, msg.Method):
		go f.askForm(msg)
	case msg.Method == "notifications/initialized":
		f.initialized()
	case msg.Method == "notifications/cancelled":
		f.cancel(string(msg.Params.get("requestId")))
	case msg.Method == "tools/call":
		f.begin(msg)
	case msg.isRequest():
		code := codeNoMethod
		if f.has("prompts") {
			code = -32603
		}
		if result := f.answer(msg); result != nil {
			f.send(encodeResult(msg.ID, result))
		} else {
			f.send(encodeError(msg.ID, rpcErrorf(code, "no %s", msg.Method)))
		}
	}
}

// askingMethods are the methods in which a fake that wants asks.
var askingMethods = []string{"prompts/get", "resources/read", "resources/subscribe"}

func (f *fakeServer) initialized() {
	if f.has("roots") {
		answer := f.request(nil, "roots/list", nil)
		go func() { f.roots <- fakeAnswer(<-answer) }()
	}
	if f.has("grows") {
		f.grow()
	}
}

func (f *fakeServer) grow() {
	f.mu.Lock()
	n := 1
	for _, tool := range f.tools {
		if strings.HasPrefix(tool.name, "extra") {
			n++
		}
	}
	f.addTool(fmt.Sprint("extra", n))
	f.mu.Unlock()
	f.notify("notifications/tools/list_changed", nil)
}

// answer answers the requests that are no calls; nil means that there is no such method.
func (f *fakeServer) answer(msg *Message) object {
	switch msg.Method {
	case "initialize":
		return f.initialize()
	case "server/discover":
		if f.has("modern") {
			return objectOf(`{"resultType":"complete","supportedVersions":["` +
				statelessProtocol + `"],
				"capabilities":{"tools":{}},"instructions":"A fake module. It is for tests."}`)
		}
	case "tools/list":
		if f.has("restless") {
			f.notify("notifications/tools/list_changed", nil)
		}
		return f.list()
	case "prompts/list":
		if f.traits["prompts"] == "endless" {
			page := strings.Repeat("x", 1<<20)
			return objectOf(`{"prompts":[],"x":"` + page + `","nextCursor":"c"}`)
		}
	}
	if f.has("res") {
		return f.answerResource(msg)
	}
	return nil
}

func (f *fakeServer) initialize() object {
	ms, _ := strconv.Atoi(f.traits["slowstart"])
	<-time.After(time.Duration(ms) * time.Millisecond)
	if address := f.traits["await"]; address != "" {
		awaitEnd(address)
	}
	capabilities := `"tools":{"listChanged":true}`
	if f.has("fixed") {
		capabilities = `"tools":{}`
	}
	if f.has("res") {
		capabilities += `,"resources":{"subscribe":true},"prompts":{},"completions":{}`
	}
	if f.has("prompts") {
		capabilities += `,"prompts":{}`
	}
	return objectOf(`{"protocolVersion":"2025-11-25","capabilities":{` +
		capabilities + `},
		"serverInfo":{"name":"fake","version":"1"},"instructions":"A fake module. It is for tests."}`)
}

// awaitEnd returns when nothing listens at an address any longer.
func awaitEnd(address string) {
	if conn, err := net.Dial("tcp", address); err == nil {
		io.Copy(io.Discard, conn)
	}
}

func (f *fakeServer) list() object {
	f.mu.Lock()
	defer f.mu.Unlock()
	tools := []json.RawMessage{}
	for _, tool := range f.tools {
		schema := json.RawMessage(cmp.Or(tool.schema, `{"type":"object"}`))
		text := object{{"name", quote(tool.name)}, {"description", quote(tool.doc)},
			{"inputSchema", schema}}
		tools = append(tools, text.encode())
	}
	return object{{"tools", marshal(tools)}}
}

// answerResource answers for a fake that has resources.
func (f *fakeServer) answerResource(msg *Message) object {
	name, uri := f.traits["res"], msg.Params.text("uri")
	format := func(text string, args ...any) object { return objectOf(fmt.Sprintf(text, args...)) }
	switch msg.Method {
	case "resources/list":
		return format(`{"resources":[{"uri":"%s://one","name":"one"}]}`, name)
	case "resources/templates/list":
		return format(`{"resourceTemplates":[{"uriTemplate":"%s://many/{n}","name":"many"}]}`, name)
	case "resources/read":
		return format(`{"contents":[{"uri":%q,"text":"what %s has"}]}`, uri, name)
	case "prompts/list":
		return format(`{"prompts":[{"name":"say","arguments":[{"name":"x"}]}]}`)
	case "prompts/get":
		return format(`{"messages":[{"role":"user","content":{"type":"text","text":"what %s says"}}]}`, name)
	case "completion/complete":
		return format(`{"completion":{"values":["%s's"]}}`, name)
	case "resources/subscribe", "resources/unsubscribe":
		f.mu.Lock()
		defer f.mu.Unlock()
		f.subscribed[uri] = msg.Method == "resources/subscribe"
		return format(`{}`)
	}
	return nil
}

func (f *fakeServer) cancel(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if cancelled := f.calls[id]; cancelled != nil {
		close(cancelled)
		delete(f.calls, id)
	}
}

// begin begins a call.
func (f *fakeServer) begin(msg *Message) {
	c := &fakeCall{f: f, id: msg.ID, params: msg.Params.encode(),
		args:      msg.Params.get("arguments"),
		cancelled: make(chan struct{})}
	name := msg.Params.text("name")
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls[string(msg.ID)] = c.cancelled
	f.runs[name]++
	c.gate = f.gate
	for _, tool := range f.tools {
		if tool.name == name {
			c.tool = tool
		}
	}
	go c.run()
}

// fakeCall is a call of a tool.
type fakeCall struct {
	f            *fakeServer
	tool         fakeTool
	id           json.RawMessage
	params, args json.RawMessage
	cancelled    chan struct{}   // closed when the call is cancelled
	gate         <-chan struct{} // closed by the next release
}

func (c *fakeCall) run() {
	answer := c.answer()
	if answer == nil {
		return
	}
	c.f.send(answer)
	if c.f.has("twice") {
		c.f.send(encodeResult(c.id, textResult("the second answer")))
	}
}

// answer does what the tool does, and returns the message that answers; nil for none.
func (c *fakeCall) answer() []byte {
	switch c.tool.does {
	case "fault":
		return encodeError(c.id,
			rpcErrorf(c.number("code"), "%s", stringField(c.args, "message")))
	case "error":
		e := &rpcError{
			Code:    -32099,
			Message: "an error of its own",
			Data:    json.RawMessage(`{"n":9007199254740993}`),
		}
		return encodeError(c.id, e)
	case "ask":
		if c.f.has("modern") {
			return c.requireInput()
		}
	}
	if result := c.result(); result != nil {
		return encodeResult(c.id, result)
	}
	return nil
}

func (c *fakeCall) number(key string) int {
	n, _ := strconv.Atoi(string(field(c.args, key)))
	return n
}

func textResult(s string) object { return objectOf(`{"content":[` + block(s) + `]}`) }

// result does what the tool does, and returns its result; nil if the call was cancelled.
func (c *fakeCall) result() object {
	f := c.f
	switch c.tool.does {
	case "":
		return toolResult(json.RawMessage(cmp.Or(string(c.args), "{}")))
	case "result":
		return members(field(c.args, "result"))
	case "sleep":
		return c.wait("fake: sleeping",
			time.After(time.Duration(c.number("ms"))*time.Millisecond), nil)
	case "hold":
		return c.wait("fake: began "+c.tool.name, nil, c.gate)
	case "never":
		return c.wait("fake: began "+c.tool.name, nil, nil)
	case "release":
		f.mu.Lock()
		close(f.gate)
		f.gate = make(chan struct{})
		f.mu.Unlock()
	case "crash":
		p, _ := os.FindProcess(os.Getpid())
		p.Kill()
		select {}
	case "progress":
		for i := range c.number("n") {
			c.progress(i + 1)
			if i+1 == c.number("hold") {
				<-c.gate
			}
		}
	case "log":
		params := object{{"level", quote(stringField(c.args, "level"))},
			{"data", quote(stringField(c.args, "data"))}}
		if f.has("names") {
			params = withMeta(params, metaCall, c.id)
		}
		f.notify("notifications/message", params)
	case "pid":
		return textResult(strconv.Itoa(os.Getpid()))
	case "env":
		v, ok := os.LookupEnv(stringField(c.args, "name"))
		return textResult(fmt.Sprint(ok, " ", v))
	case "runs", "count":
		f.mu.Lock()
		defer f.mu.Unlock()
		if c.tool.does == "count" {
			return textResult(strconv.Itoa(f.runs[c.tool.name]))
		}
		return toolResult(marshal(f.runs))
	case "fail":
		return failure("it did not work")
	case "big":
		return textResult(strings.Repeat("x", c.number("bytes")))
	case "grow":
		f.grow()
	case "touch":
		return f.touch(stringField(c.args, "uri"))
	case "roots":
		got := <-f.roots
		f.roots <- got
		return textResult(got)
	case "ask":
		return c.ask()
	}
	return textResult(string(c.params))
}

// wait waits for one of two events, or for the call to be cancelled.
func (c *fakeCall) wait(said string, timer <-chan time.Time, gate <-chan struct{}) object {
	fmt.Fprintln(os.Stderr, said)
	select {
	case <-timer:
	case <-gate:
	case <-c.cancelled:
		fmt.Fprintln(os.Stderr, "fake: cancelled", c.tool.name)
		return nil
	}
	return textResult(string(c.params))
}

func (c *fakeCall) progress(n int) {
	token := field(c.params, "_meta", "progressToken")
	params := object{{"progressToken", token}, {"progress", json.RawMessage(strconv.Itoa(n))}}
	c.f.notify("notifications/progress", params)
}

// touch changes a resource, and notifies its subscribers.
func (f *fakeServer) touch(uri string) object {
	f.mu.Lock()
	subscribed := f.subscribed[uri]
	f.mu.Unlock()
	if !subscribed {
		return textResult("nobody wants to know")
	}
	f.notify("notifications/resources/updated", object{{"uri", quote(uri)}})
	return textResult("told")
}

// fakeAsk is the arguments of the tool ask. It sends all requests at once, and returns
// the list of what came back, after the id of its process. It reports its steps on
// stderr, with its Mark.
type fakeAsk struct {
	Mark  string     `json:"mark"`
	Asks  []fakeWish `json:"asks"`
	Copes bool       `json:"copes,omitempty"` // a refusal is no failure
	Bold  bool       `json:"bold,omitempty"`  // asks whatever the client has declared
}

type fakeWish struct {
	Method string          `json:"method"`
	Params json.RawMessage `json:"params,omitempty"`
}

// request asks the client on behalf of a call, nil for none.
func (f *fakeServer) request(call json.RawMessage, method string, params json.RawMessage) <-chan *Message {
	if f.has("names") && call != nil {
		params = setMeta(params, metaCall, call)
	}
	answer := make(chan *Message, 1)
	f.mu.Lock()
	f.asks++
	id := fmt.Sprintf(`"ask %d"`, f.asks)
	f.asked[id] = answer
	f.mu.Unlock()
	f.send(encodeRequest(json.RawMessage(id), method, members(params)))
	return answer
}

// askForm answers a request with what the client answers to a form.
func (f *fakeServer) askForm(msg *Message) {
	wish := askFor("form", msg.Method)
	said := quote(fakeAnswer(<-f.request(msg.ID, wish.Method, wish.Params)))
	result := `{"messages":[{"content":{"text":` + string(said) +
		`,"type":"text"},"role":"user"}]}`
	if msg.Method == "resources/read" {
		result = `{"contents":[{"text":` + string(said) + `,"uri":` +
			string(msg.Params.get("uri")) + `}]}`
	}
	f.send(encodeResult(msg.ID, objectOf(result)))
}

// fakeAnswer returns an answer as JSON.
func fakeAnswer(msg *Message) string {
	if msg.Err != nil {
		return fmt.Sprintf(`{"code":%d,"refused":%s}`, msg.Err.Code, quote(msg.Err.Message))
	}
	return string(msg.Result.encode())
}

// report writes a step of the tool ask to stderr.
func (a *fakeAsk) report(step string) {
	fmt.Fprintf(os.Stderr, "fake: %s %s %d\n", step, a.Mark, os.Getpid())
}

// ask is the tool ask. It returns nil for a call that was cancelled.
func (c *fakeCall) ask() object {
	var a fakeAsk
	json.Unmarshal(c.args, &a)
	go func() {
		<-c.cancelled
		a.report("cancelled")
	}()
	var answers []<-chan *Message
	for _, wish := range a.Asks {
		answers = append(answers, c.f.request(c.id, wish.Method, wish.Params))
	}
	a.report("asked")
	got, failed := []string{fakeProcess}, false
	for _, answer := range answers {
		select {
		case msg := <-answer:
			got = append(got, fakeAnswer(msg))
			failed = failed || msg.Err != nil
		case <-c.cancelled:
			return nil
		}
	}
	a.report("answered")
	result := textResult("[" + strings.Join(got, ",") + "]")
	if failed && !a.Copes {
		result = result.set("isError", json.RawMessage("true"))
	}
	return result
}

// requireInput is the tool ask of a module that speaks 2026-07-28 only.
func (c *fakeCall) requireInput() []byte {
	var a fakeAsk
	json.Unmarshal(c.args, &a)
	state := "state of " + a.Mark
	responses := field(c.params, "inputResponses")
	if responses != nil && stringField(c.params, "requestState") != state {
		return encodeError(c.id, rpcErrorf(codeInvalidParams, "the state of another"))
	}
	if responses != nil {
		got := []string{fakeProcess}
		for i := range a.Asks {
			got = append(got, string(field(responses, fmt.Sprint("wish", i))))
		}
		a.report("answered")
		result := textResult("[" + strings.Join(got, ",") + "]")
		return encodeResult(c.id, result.set("resultType", quote(resultComplete)))
	}
	caps := parseClientCaps(members(field(c.params, "_meta", metaClientCaps)))
	var requests object
	for i, wish := range a.Asks {
		lacked, _ := caps.checkAsk(wish.Method, members(wish.Params))
		if lacked != 0 && !a.Bold {
			return encodeError(c.id, lacked.errMissing(codeMissingCapability))
		}
		params := wish.Params
		if params == nil {
			params = json.RawMessage(`{}`)
		}
		request := object{{"method", quote(wish.Method)}, {"params", params}}
		requests = append(requests, member{fmt.Sprint("wish", i), request.encode()})
	}
	a.report("asked")
	return encodeResult(c.id, object{
		{"resultType", quote(resultInput)},
		{"inputRequests", requests.encode()},
		{"requestState", quote(state)},
	})
}
