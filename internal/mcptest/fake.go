package mcptest

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

// FakeVar is the variable of the environment with the traits of a fake. A test binary that finds it
// set calls RunFake.
const FakeVar = "USHER_TEST_FAKE"

// WriteFake writes an executable module that runs a fake with these traits, separated by spaces. Tools
// given here replace those of the trait tools=. The file is replaced at once, as editors do.
func WriteFake(t testing.TB, path, traits string, tools ...string) {
	if len(tools) > 0 {
		traits += " " + FakeTools(t, tools...)
	}
	Write(t, path+".new", fmt.Sprintf("#!/bin/sh\n%s='%s' exec '%s'\n", FakeVar, traits, Binary(t)))
	Must(t, os.Rename(path+".new", path))
}

// WriteShared adds a fake, one process of which serves all callers, to the .mcp.json of a folder.
func WriteShared(t testing.TB, dir, name, traits string) {
	path := dir + "/.mcp.json"
	config, _ := os.ReadFile(path) // there may be none
	entry := fmt.Sprintf(`{"command":%q,"env":{%q:%s},"shared":true}`, Binary(t), FakeVar, encode(traits))
	servers := with(Field(config, "mcpServers"), name, json.RawMessage(entry))
	Write(t, path, string(with(config, "mcpServers", servers)))
}

// FakeTools returns the trait of a fake with these tools.
func FakeTools(t testing.TB, tools ...string) string {
	path := t.TempDir() + "/tools.json"
	Write(t, path, string(encode(tools)))
	return "toolsIn=" + path
}

// FakeAsk is the arguments of the tool ask. It sends all requests at once, and returns the list of what
// came back, after a number that identifies its process. It reports its steps on stderr, with its Mark.
type FakeAsk struct {
	Mark  string     `json:"mark"`
	Asks  []FakeWish `json:"asks"`
	Copes bool       `json:"copes,omitempty"` // a refusal is no failure
	Bold  bool       `json:"bold,omitempty"`  // asks whatever the client has declared
}

// FakeWish is a request to the client.
type FakeWish struct {
	Method string          `json:"method"`
	Params json.RawMessage `json:"params,omitempty"`
}

// fakeTool is a tool: does is one of the words at the top of this package, or "", which returns the
// arguments.
type fakeTool struct {
	Name   string          `json:"name"`
	Doc    string          `json:"description"`
	Schema json.RawMessage `json:"inputSchema"`
	does   string
}

// parseTool returns a tool written as "NAME=DOES SCHEMA: DOC". Only the name is required.
func parseTool(text string) fakeTool {
	head, doc, _ := strings.Cut(text, ": ")
	head, schema, _ := strings.Cut(head, " ")
	name, does, _ := strings.Cut(head, "=")
	return fakeTool{name, doc, json.RawMessage(cmp.Or(schema, `{"type":"object"}`)), does}
}

// fake is an MCP server on stdin and stdout.
type fake struct {
	traits map[string]string
	roots  chan string // 1-buffered: what came back for roots/list

	outMu sync.Mutex // guards stdout
	out   *bufio.Writer

	mu         sync.Mutex
	tools      []fakeTool
	calls      map[string]chan struct{} // by id; closed when cancelled
	asked      map[string]chan message  // its own requests, by id
	asks       int
	runs       map[string]int // by tool
	subscribed map[string]bool
	gate       chan struct{} // closed and replaced by release
}

// process identifies this process, as a pid does until it is used again.
var process = strconv.FormatInt(time.Now().UnixNano(), 10)

// RunFake runs a fake with these traits until its stdin ends. It returns the status of the process.
func RunFake(traits string) int {
	f := &fake{
		traits:     make(map[string]string),
		roots:      make(chan string, 1),
		out:        bufio.NewWriter(os.Stdout),
		calls:      make(map[string]chan struct{}),
		asked:      make(map[string]chan message),
		runs:       make(map[string]int),
		subscribed: make(map[string]bool),
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
	for lines := bufio.NewReader(os.Stdin); ; {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return 0
		}
		var msg message
		if json.Unmarshal(line, &msg) == nil && !f.has("mute") {
			f.handle(msg)
		}
	}
}

func (f *fake) has(trait string) bool {
	_, ok := f.traits[trait]
	return ok
}

// setTools sets the tools that the traits name.
func (f *fake) setTools() {
	if path, ok := f.traits["toolsIn"]; ok {
		var tools []string
		text, _ := os.ReadFile(path)
		if err := json.Unmarshal(text, &tools); err != nil {
			panic(err)
		}
		for _, tool := range tools {
			f.tools = append(f.tools, parseTool(tool))
		}
		return
	}
	const usual = "echo,sleep,crash,progress,log,pid,env,fail,big,error,grow"
	for name := range strings.SplitSeq(cmp.Or(f.traits["tools"], usual), ",") {
		f.addTool(name)
	}
}

// addTool adds a tool that does what its name says.
func (f *fake) addTool(name string) {
	tool := parseTool(name + ": The tool " + name + ".")
	tool.does = strings.ToLower(strings.TrimPrefix(name, "handle"))
	f.tools = append(f.tools, tool)
}

func (f *fake) send(msg message) {
	f.outMu.Lock()
	defer f.outMu.Unlock()
	if f.has("garbage") {
		f.out.WriteString("starting up...\n{\"half\":\n\xff\xfe\n[]\n")
	}
	msg.Version = "2.0"
	f.out.Write(append(encode(msg), '\n'))
	f.out.Flush()
}

// reply answers a request with a result, which is JSON or is encoded.
func (f *fake) reply(id json.RawMessage, result any) {
	f.send(message{ID: id, Result: encode(result)})
}

// refuse answers a request with an error; data is JSON, nil for none.
func (f *fake) refuse(id json.RawMessage, code int, text string, data json.RawMessage) {
	f.send(message{ID: id, Error: &rpcError{code, text, data}})
}

func (f *fake) notify(method string, params any) {
	f.send(message{Method: method, Params: encode(params)})
}

const changedTools = "notifications/tools/list_changed"

func (f *fake) handle(msg message) {
	params := msg.params()
	switch {
	case msg.Method == "":
		f.mu.Lock()
		answer := f.asked[string(msg.ID)]
		delete(f.asked, string(msg.ID))
		f.mu.Unlock()
		if answer != nil {
			answer <- msg
		}
	case f.has("modern") && msg.ID != nil &&
		(msg.Method == "initialize" || params.Meta["io.modelcontextprotocol/protocolVersion"] == nil):
		f.refuse(msg.ID, -32022, "want "+latest, json.RawMessage(`{"supported":["`+latest+`"]}`))
	case f.has("wants") &&
		slices.Contains([]string{"prompts/get", "resources/read", "resources/subscribe"}, msg.Method):
		go f.askForm(msg)
	case msg.Method == "notifications/initialized":
		f.initialized()
	case msg.Method == "notifications/cancelled":
		f.cancel(string(params.RequestID))
	case msg.Method == "tools/call":
		f.begin(msg)
	case msg.ID != nil:
		if result := f.answer(msg.Method, params); result != nil {
			f.reply(msg.ID, result)
		} else if f.has("prompts") {
			f.refuse(msg.ID, -32603, "no "+msg.Method, nil)
		} else {
			f.refuse(msg.ID, -32601, "no "+msg.Method, nil)
		}
	}
}

func (f *fake) initialized() {
	if f.has("roots") {
		answer := f.request(nil, "roots/list", nil)
		go func() { f.roots <- (<-answer).outcome() }()
	}
	if f.has("grows") {
		f.grow()
	}
}

func (f *fake) grow() {
	f.mu.Lock()
	n := 1
	for _, tool := range f.tools {
		if strings.HasPrefix(tool.Name, "extra") {
			n++
		}
	}
	f.addTool(fmt.Sprint("extra", n))
	f.mu.Unlock()
	f.notify(changedTools, struct{}{})
}

// answer returns the result of a request that is no call, or nil if there is no such method.
func (f *fake) answer(method string, params params) any {
	switch method {
	case "initialize":
		return f.initialize()
	case "server/discover":
		if f.has("modern") {
			return json.RawMessage(`{"resultType":"complete","supportedVersions":["` + latest + `"],
				"capabilities":{"tools":{}},"instructions":"A fake module. It is for tests."}`)
		}
	case "tools/list":
		if f.has("restless") {
			f.grow()
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		return map[string]any{"tools": append([]fakeTool{}, f.tools...)}
	case "prompts/list":
		if f.traits["prompts"] == "endless" {
			return json.RawMessage(`{"prompts":[],"x":"` + strings.Repeat("x", 1<<20) + `","nextCursor":"c"}`)
		}
	}
	if strings.HasSuffix(method, "subscribe") {
		f.mu.Lock()
		f.subscribed[params.URI] = method == "resources/subscribe"
		f.mu.Unlock()
	}
	if text, ok := resources[method]; ok && f.has("res") {
		named := strings.NewReplacer("NAME", f.traits["res"], "URI", params.URI)
		return json.RawMessage(named.Replace(text))
	}
	return nil
}

func (f *fake) initialize() any {
	ms, _ := strconv.Atoi(f.traits["slowstart"])
	<-time.After(time.Duration(ms) * time.Millisecond)
	if conn, err := net.Dial("tcp", f.traits["await"]); err == nil {
		io.Copy(io.Discard, conn) // until nothing listens there any longer
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
	return json.RawMessage(`{"protocolVersion":"2025-11-25","capabilities":{` + capabilities + `},
		"serverInfo":{"name":"fake","version":"1"},"instructions":"A fake module. It is for tests."}`)
}

// resources are the answers of a fake that has resources: NAME is its name, URI what is asked for.
var resources = map[string]string{
	"resources/list":           `{"resources":[{"uri":"NAME://one","name":"one"}]}`,
	"resources/templates/list": `{"resourceTemplates":[{"uriTemplate":"NAME://many/{n}","name":"many"}]}`,
	"resources/read":           `{"contents":[{"uri":"URI","text":"what NAME has"}]}`,
	"resources/subscribe":      `{}`,
	"resources/unsubscribe":    `{}`,
	"prompts/list":             `{"prompts":[{"name":"say","arguments":[{"name":"x"}]}]}`,
	"prompts/get": `{"messages":[{"role":"user",` +
		`"content":{"type":"text","text":"what NAME says"}}]}`,
	"completion/complete": `{"completion":{"values":["NAME's"]}}`,
}

func (f *fake) cancel(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if cancelled := f.calls[id]; cancelled != nil {
		close(cancelled)
		delete(f.calls, id)
	}
}

// fakeCall is a call of a tool.
type fakeCall struct {
	f         *fake
	tool      fakeTool
	id        json.RawMessage
	sent      string // its params
	params    params
	args      fakeArguments
	cancelled chan struct{}   // closed when the call is cancelled
	gate      <-chan struct{} // closed by the next release
}

// fakeArguments are those of all tools. Each reads its own.
type fakeArguments struct {
	FakeAsk
	Code, Bytes, MS, N, Hold        int
	Name, Level, Message, Data, URI string
	Result                          json.RawMessage
}

// begin begins a call.
func (f *fake) begin(msg message) {
	c := &fakeCall{
		f:         f,
		id:        msg.ID,
		sent:      string(msg.Params),
		params:    msg.params(),
		cancelled: make(chan struct{}),
	}
	json.Unmarshal(c.params.Arguments, &c.args) // tools that read none take any
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls[string(msg.ID)] = c.cancelled
	f.runs[c.params.Name]++
	c.gate = f.gate
	if i := slices.IndexFunc(f.tools, func(t fakeTool) bool { return t.Name == c.params.Name }); i >= 0 {
		c.tool = f.tools[i]
	}
	go c.run()
}

// run answers the call, unless it was cancelled.
func (c *fakeCall) run() {
	switch {
	case c.tool.does == "fault":
		c.f.refuse(c.id, c.args.Code, c.args.Message, nil)
	case c.tool.does == "error":
		c.f.refuse(c.id, -32099, "an error of its own", json.RawMessage(`{"n":9007199254740993}`))
	case c.tool.does == "ask" && c.f.has("modern"):
		c.requireInput()
	default:
		result := c.result()
		if result == nil {
			return
		}
		c.f.reply(c.id, result)
	}
	if c.f.has("twice") {
		c.f.reply(c.id, textResult("the second answer"))
	}
}

// result does what the tool does, and returns its result; nil if the call was cancelled.
func (c *fakeCall) result() any {
	f := c.f
	switch c.tool.does {
	case "":
		return structured(cmp.Or(string(c.params.Arguments), "{}"))
	case "result":
		return c.args.Result
	case "sleep":
		return c.wait("fake: sleeping", time.After(time.Duration(c.args.MS)*time.Millisecond), nil)
	case "hold":
		return c.wait("fake: began "+c.tool.Name, nil, c.gate)
	case "never":
		return c.wait("fake: began "+c.tool.Name, nil, nil)
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
		for i := range c.args.N {
			f.notify("notifications/progress",
				map[string]any{"progressToken": c.params.Meta["progressToken"], "progress": i + 1})
			if i+1 == c.args.Hold {
				<-c.gate
			}
		}
	case "log":
		params := encode(map[string]any{"level": c.args.Level, "data": c.args.Data})
		if f.has("names") {
			params = withMeta(params, "usher/call", c.id)
		}
		f.notify("notifications/message", params)
	case "pid":
		return textResult(strconv.Itoa(os.Getpid()))
	case "env":
		v, ok := os.LookupEnv(c.args.Name)
		return textResult(fmt.Sprint(ok, " ", v))
	case "runs":
		f.mu.Lock()
		defer f.mu.Unlock()
		return structured(string(encode(f.runs)))
	case "fail":
		return failure("it did not work")
	case "big":
		return textResult(strings.Repeat("x", c.args.Bytes))
	case "grow":
		f.grow()
	case "touch":
		f.mu.Lock()
		subscribed := f.subscribed[c.args.URI]
		f.mu.Unlock()
		if !subscribed {
			return textResult("nobody wants to know")
		}
		f.notify("notifications/resources/updated", map[string]any{"uri": c.args.URI})
		return textResult("told")
	case "roots":
		got := <-f.roots
		f.roots <- got
		return textResult(got)
	case "ask":
		return c.ask()
	}
	return textResult(c.sent)
}

// wait waits for one of two events, or for the call to be cancelled.
func (c *fakeCall) wait(said string, timer <-chan time.Time, gate <-chan struct{}) any {
	fmt.Fprintln(os.Stderr, said)
	select {
	case <-timer:
	case <-gate:
	case <-c.cancelled:
		fmt.Fprintln(os.Stderr, "fake: cancelled", c.tool.Name)
		return nil
	}
	return textResult(c.sent)
}

// request asks the client on behalf of a call, nil for none.
func (f *fake) request(call json.RawMessage, method string, params json.RawMessage) <-chan message {
	if f.has("names") && call != nil {
		params = withMeta(params, "usher/call", call)
	}
	answer := make(chan message, 1)
	f.mu.Lock()
	f.asks++
	id := fmt.Sprintf(`"ask %d"`, f.asks)
	f.asked[id] = answer
	f.mu.Unlock()
	f.send(message{ID: json.RawMessage(id), Method: method, Params: params})
	return answer
}

// askForm answers a request with what the client answers to a form.
func (f *fake) askForm(msg message) {
	params := fmt.Sprintf(`{"message":"%s","requestedSchema":{"type":"object","properties":{}}}`, msg.Method)
	said := encode((<-f.request(msg.ID, "elicitation/create", json.RawMessage(params))).outcome())
	form := `{"messages":[{"content":{"text":%s,"type":"text"},"role":"user"}]}`
	if msg.Method == "resources/read" {
		form = `{"contents":[{"text":%s,"uri":` + string(encode(msg.params().URI)) + `}]}`
	}
	f.reply(msg.ID, json.RawMessage(fmt.Sprintf(form, said)))
}

// report writes a step of the tool ask to stderr.
func (a FakeAsk) report(step string) {
	fmt.Fprintf(os.Stderr, "fake: %s %s %d\n", step, a.Mark, os.Getpid())
}

// ask is the tool ask. It returns nil for a call that was cancelled.
func (c *fakeCall) ask() any {
	a := c.args.FakeAsk
	go func() {
		<-c.cancelled
		a.report("cancelled")
	}()
	var answers []<-chan message
	for _, wish := range a.Asks {
		answers = append(answers, c.f.request(c.id, wish.Method, wish.Params))
	}
	a.report("asked")
	got, failed := []string{process}, false
	for _, answer := range answers {
		select {
		case msg := <-answer:
			got = append(got, msg.outcome())
			failed = failed || msg.Error != nil
		case <-c.cancelled:
			return nil
		}
	}
	a.report("answered")
	result := textResult("[" + strings.Join(got, ",") + "]")
	result.IsError = failed && !a.Copes
	return result
}

// requireInput is the tool ask of a module that speaks 2026-07-28 only.
func (c *fakeCall) requireInput() {
	a := c.args.FakeAsk
	state := "state of " + a.Mark
	if c.params.Responses != nil {
		if c.params.State != state {
			c.f.refuse(c.id, -32602, "the state of another", nil)
			return
		}
		got := []string{process}
		for i := range a.Asks {
			got = append(got, string(c.params.Responses[fmt.Sprint("wish", i)]))
		}
		a.report("answered")
		result := textResult("[" + strings.Join(got, ",") + "]")
		result.Type = "complete"
		c.f.reply(c.id, result)
		return
	}
	requests := make(map[string]FakeWish)
	for i, wish := range a.Asks {
		need := wish.need()
		if Field(c.params.Meta["io.modelcontextprotocol/clientCapabilities"], need...) == nil && !a.Bold {
			lacked := `{"requiredCapabilities":{"` + strings.Join(need, `":{"`) + `":{}` +
				strings.Repeat("}", len(need)) + `}`
			c.f.refuse(c.id, -32021, "a client without "+strings.Join(need, " "), json.RawMessage(lacked))
			return
		}
		if wish.Params == nil {
			wish.Params = json.RawMessage(`{}`)
		}
		requests[fmt.Sprint("wish", i)] = wish
	}
	a.report("asked")
	c.f.reply(c.id, map[string]any{
		"resultType":    "input_required",
		"inputRequests": requests,
		"requestState":  state,
	})
}

// need returns the keys of the capability that a client needs to be asked.
func (w FakeWish) need() []string {
	switch {
	case w.Method == "roots/list":
		return []string{"roots"}
	case Field(w.Params, "tools") != nil:
		return []string{"sampling", "tools"}
	case w.Method == "sampling/createMessage":
		return []string{"sampling"}
	case StringField(w.Params, "mode") == "url":
		return []string{"elicitation", "url"}
	}
	return []string{"elicitation", "form"}
}
