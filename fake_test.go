// Fakes: modules that behave as a test needs it, run by the test binary. The
// name of a fake is a list of words, each a trait.

package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"
)

// fakeServer is an MCP server on stdin and stdout with faults. Traits:
//
//	good            none
//	tools=a,b       the names of its tools, each of which echoes its arguments
//	garbage         lines on stdout that are no JSON-RPC
//	mute            answers nothing, ever
//	dies            ends at once, with a word on stderr
//	twice           answers every call twice
//	slowstart=MS    initialize takes so long
//	grows           says list_changed after initialized, and has one tool more
//	deaf            ignores TERM and the end of stdin
//	child           starts a grandchild that sleeps
//	res=NAME        has the resource NAME://one, the template NAME://many/{n} and
//	                the prompt say; it tells of changes of what is subscribed to
//	fixed           does not declare that its tools may change
//	shared          declares that one process of it is to serve all callers
//	names           says in which call it asks, as usher's own shims do
//	roots           asks for roots as soon as it is initialized
//	wants           asks for a form in prompts/get, resources/read and
//	                resources/subscribe, and answers with what came back
//	modern          speaks 2026-07-28 alone
//
// Its tools, but for tools=, are echo, sleep {ms}, crash, exit, progress {n, hold},
// log {level}, pid, env {name}, count, fail, big {bytes}, error, grow. Where they
// are named, also touch {uri}, which changes a resource, and mirror, whose
// parameters are repeated in headers, and release, at which a progress goes on
// that holds after so many. With tools= there may be ask too (see
// fakeAsk), and roots, which tells what came back for those of the trait.
type fakeServer struct {
	traits map[string]string
	mu     sync.Mutex // guards stdout
	out    *bufio.Writer
	stop   map[string]chan struct{} // calls by id; closed when cancelled
	stopMu sync.Mutex
	asked  map[string]chan *Message // its own requests, by id
	roots  chan string              // 1-buffered: what came back for the roots
	asks   int
	count  int
	extra  int             // tools added
	wanted map[string]bool // resources subscribed to, by URI
	held   chan struct{}   // unbuffered: where progress waits for release
}

func runFake(name string) int {
	f := &fakeServer{traits: map[string]string{}, out: bufio.NewWriter(os.Stdout), stop: map[string]chan struct{}{}, wanted: map[string]bool{}, held: make(chan struct{}),
		asked: map[string]chan *Message{}, roots: make(chan string, 1)}
	for word := range strings.FieldsSeq(name) {
		key, value, _ := strings.Cut(word, "=")
		f.traits[key] = value
	}
	if f.has("dies") {
		fmt.Fprintln(os.Stderr, "fake: no module named turbo")
		return 3
	}
	if f.has("child") {
		child := exec.Command("sleep", "1000")
		child.Start()
	}
	if f.has("deaf") {
		ignoreTerm()
	}
	lines := newLineReader(os.Stdin, 64<<20)
	for {
		line, err := lines.next()
		if err != nil {
			break
		}
		if msg, err := parseMessage(line); err == nil && !f.has("mute") {
			f.take(msg)
		}
	}
	if f.has("deaf") {
		select {}
	}
	return 0
}

func (f *fakeServer) has(trait string) bool { _, ok := f.traits[trait]; return ok }

func (f *fakeServer) send(msg []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.has("garbage") {
		f.out.WriteString("starting up...\n{\"half\":\n\xff\xfe\n[]\n")
	}
	f.out.Write(append(msg, '\n'))
	f.out.Flush()
}

func (f *fakeServer) take(msg *Message) {
	switch {
	case msg.Method == "":
		f.stopMu.Lock()
		answer := f.asked[string(msg.ID)]
		delete(f.asked, string(msg.ID))
		f.stopMu.Unlock()
		if answer != nil {
			answer <- msg
		}
		return
	case f.has("modern") && msg.isRequest() && (msg.Method == "initialize" || !isStateless(msg.Params)):
		e := rpcErrorf(codeUnsupportedVersion, "want "+statelessProtocol)
		e.Data = json.RawMessage(`{"supported":["` + statelessProtocol + `"]}`)
		f.send(encodeError(msg.ID, e))
		return
	case f.has("modern") && msg.Method == "server/discover":
		f.send(encodeResult(msg.ID, object{{"resultType", quote(resultComplete)}, {"supportedVersions", json.RawMessage(`["` + statelessProtocol + `"]`)},
			{"capabilities", json.RawMessage(`{"tools":{}}`)}, {"instructions", quote("A fake module. It is for tests.")}}.encode()))
		return
	}
	switch msg.Method {
	case "initialize":
		ms, _ := strconv.Atoi(f.traits["slowstart"])
		<-time.After(time.Duration(ms) * time.Millisecond)
		capabilities := `"tools":{"listChanged":true}`
		if f.has("res") {
			capabilities += `,"resources":{"subscribe":true},"prompts":{},"completions":{}`
		}
		if f.has("fixed") {
			capabilities = `"tools":{}`
		}
		if f.has("shared") {
			capabilities += `,"experimental":{"usher/shared":{}}`
		}
		f.send(encodeResult(msg.ID, json.RawMessage(`{"protocolVersion":"2025-11-25","capabilities":{`+capabilities+`},"serverInfo":{"name":"fake","version":"1"},"instructions":"A fake module. It is for tests."}`)))
	case "notifications/initialized":
		if f.has("roots") {
			answer := f.request(nil, "roots/list", nil)
			go func() { f.roots <- fakeAnswer(<-answer) }()
		}
		if f.has("grows") {
			f.grow()
		}
	case "notifications/cancelled":
		f.stopMu.Lock()
		if c, ok := f.stop[string(field(msg.Params, "requestId"))]; ok {
			close(c)
			delete(f.stop, string(field(msg.Params, "requestId")))
		}
		f.stopMu.Unlock()
	case "tools/list":
		f.send(encodeResult(msg.ID, f.list()))
	case "tools/call":
		stop := make(chan struct{})
		f.stopMu.Lock()
		f.stop[string(msg.ID)] = stop
		f.stopMu.Unlock()
		go f.call(msg, stop)
	default:
		if f.has("wants") && (msg.Method == "prompts/get" || msg.Method == "resources/read" || msg.Method == "resources/subscribe") {
			go f.want(msg)
		} else if result := f.other(msg); result != nil {
			f.send(encodeResult(msg.ID, result))
		} else if msg.isRequest() {
			f.send(encodeError(msg.ID, rpcErrorf(codeNoMethod, "no %s", msg.Method)))
		}
	}
}

// other answers what only a fake with resources answers; nil for nothing.
func (f *fakeServer) other(msg *Message) json.RawMessage {
	name, uri := f.traits["res"], stringField(msg.Params, "uri")
	if name == "" {
		return nil
	}
	switch msg.Method {
	case "resources/list":
		return json.RawMessage(fmt.Sprintf(`{"resources":[{"uri":"%s://one","name":"one"}]}`, name))
	case "resources/templates/list":
		return json.RawMessage(fmt.Sprintf(`{"resourceTemplates":[{"uriTemplate":"%s://many/{n}","name":"many"}]}`, name))
	case "resources/read":
		return json.RawMessage(fmt.Sprintf(`{"contents":[{"uri":%q,"text":"what %s has"}]}`, uri, name))
	case "prompts/list":
		return json.RawMessage(`{"prompts":[{"name":"say","arguments":[{"name":"x"}]}]}`)
	case "prompts/get":
		return json.RawMessage(fmt.Sprintf(`{"messages":[{"role":"user","content":{"type":"text","text":"what %s says"}}]}`, name))
	case "completion/complete":
		return json.RawMessage(fmt.Sprintf(`{"completion":{"values":["%s's"]}}`, name))
	case "resources/subscribe", "resources/unsubscribe":
		f.mu.Lock()
		defer f.mu.Unlock()
		f.wanted[uri] = msg.Method == "resources/subscribe"
		return json.RawMessage(`{}`)
	}
	return nil
}

// mirrorSchema is of a tool whose parameters are repeated in headers.
const mirrorSchema = `{"type":"object","properties":{"region":{"type":"string","x-mcp-header":"Region"},"n":{"type":"integer","x-mcp-header":"Number"},` +
	`"on":{"type":"boolean","x-mcp-header":"On"},"deep":{"type":"object","properties":{"er":{"type":"string","x-mcp-header":"Deeper"}}}}}`

func (f *fakeServer) grow() {
	f.mu.Lock()
	f.extra++
	f.mu.Unlock()
	f.send(encodeRequest(nil, "notifications/tools/list_changed", nil))
}

// fakeProcess tells processes of fakes apart, as a pid does until it is used again.
var fakeProcess = time.Now().UnixNano()

var fakeTools = "echo,sleep,crash,exit,progress,log,pid,env,count,fail,big,error,grow"

func (f *fakeServer) list() json.RawMessage {
	names := fakeTools
	if own, ok := f.traits["tools"]; ok {
		names = own
	}
	f.mu.Lock()
	for i := range f.extra {
		names += fmt.Sprintf(",extra%d", i+1)
	}
	f.mu.Unlock()
	var tools []json.RawMessage
	for name := range strings.SplitSeq(names, ",") {
		schema := `{"type":"object"}`
		if name == "mirror" {
			schema = mirrorSchema
		}
		tools = append(tools, json.RawMessage(fmt.Sprintf(`{"name":%q,"description":"The tool %s.","inputSchema":%s}`, name, name, schema)))
	}
	return marshal(map[string]any{"tools": tools})
}

func textResult(s string) json.RawMessage {
	return append(append([]byte(`{"content":[{"type":"text","text":`), quote(s)...), "}]}"...)
}

func (f *fakeServer) call(msg *Message, stop <-chan struct{}) {
	args := field(msg.Params, "arguments")
	number := func(key string) int { n, _ := strconv.Atoi(string(field(args, key))); return n }
	token := field(field(msg.Params, "_meta"), "progressToken")
	result := textResult(string(msg.Params))
	switch stringField(msg.Params, "name") {
	case "sleep":
		fmt.Fprintln(os.Stderr, "fake: sleeping")
		select {
		case <-time.After(time.Duration(number("ms")) * time.Millisecond):
		case <-stop:
			fmt.Fprintln(os.Stderr, "fake: cancelled")
			return
		}
	case "crash":
		p, _ := os.FindProcess(os.Getpid())
		p.Kill()
		select {}
	case "exit":
		os.Exit(7)
	case "progress":
		for i := range number("n") {
			f.send(encodeRequest(nil, "notifications/progress", object{{"progressToken", token}, {"progress", json.RawMessage(strconv.Itoa(i + 1))}}.encode()))
			if i+1 == number("hold") {
				<-f.held
			}
		}
	case "release":
		f.held <- struct{}{}
	case "log":
		f.send(encodeRequest(nil, "notifications/message", marshal(map[string]string{"level": stringField(args, "level"), "data": stringField(args, "data")})))
	case "pid":
		result = textResult(strconv.Itoa(os.Getpid()))
	case "env":
		v, ok := os.LookupEnv(stringField(args, "name"))
		result = textResult(fmt.Sprint(ok, " ", v))
	case "count":
		f.mu.Lock()
		f.count++
		result = textResult(strconv.Itoa(f.count))
		f.mu.Unlock()
	case "fail":
		result = failure("it did not work")
	case "big":
		result = textResult(strings.Repeat("x", number("bytes")))
	case "error":
		f.send(encodeError(msg.ID, &rpcError{Code: -32099, Message: "an error of its own", Data: json.RawMessage(`{"n":9007199254740993}`)}))
		return
	case "grow":
		f.grow()
	case "touch":
		result = f.touch(stringField(args, "uri"))
	case "roots":
		got := <-f.roots
		f.roots <- got
		result = textResult(got)
	case "ask", "handleAsk":
		if f.has("modern") {
			f.send(f.wish(msg))
			return
		}
		if result = f.ask(msg, args, stop); result == nil {
			return
		}
	}
	f.send(encodeResult(msg.ID, result))
	if f.has("twice") {
		f.send(encodeResult(msg.ID, textResult("the second answer")))
	}
}

// touch changes a resource, which those are told who want to know.
func (f *fakeServer) touch(uri string) json.RawMessage {
	f.mu.Lock()
	wanted := f.wanted[uri]
	f.mu.Unlock()
	if !wanted {
		return textResult("nobody wants to know")
	}
	f.send(encodeRequest(nil, "notifications/resources/updated", object{{"uri", quote(uri)}}.encode()))
	return textResult("told")
}

// fakeAsk is the arguments of the tool ask: it sends the requests all at once,
// and its result is the list of what came back, after the process's id. Stderr
// tells of its steps under its Mark.
type fakeAsk struct {
	Mark  string     `json:"mark"`
	Asks  []fakeWish `json:"asks"`
	Copes bool       `json:"copes,omitempty"` // a refusal is no failure
	Tells bool       `json:"tells,omitempty"` // with progress and log messages before and after
	Late  bool       `json:"late,omitempty"`  // when cancelled, tells that a URL was opened, asks once more, and tells on stderr what came back
	Bold  bool       `json:"bold,omitempty"`  // asks whatever the client has declared
	Turns bool       `json:"turns,omitempty"` // asks for one after the other
	Stays bool       `json:"stays,omitempty"` // answers only when cancelled, which is never
}

type fakeWish struct {
	Method string          `json:"method"`
	Params json.RawMessage `json:"params,omitempty"`
}

// request asks the client in a call, nil for none.
func (f *fakeServer) request(call json.RawMessage, method string, params json.RawMessage) <-chan *Message {
	if f.has("names") && call != nil {
		params = setMeta(params, metaCall, call)
	}
	answer := make(chan *Message, 1)
	f.stopMu.Lock()
	f.asks++
	id := fmt.Sprintf(`"ask %d"`, f.asks)
	f.asked[id] = answer
	f.stopMu.Unlock()
	f.send(encodeRequest(json.RawMessage(id), method, params))
	return answer
}

// want answers a request with what the client says to a form.
func (f *fakeServer) want(msg *Message) {
	wish := askFor("form", msg.Method)
	said := fakeAnswer(<-f.request(msg.ID, wish.Method, wish.Params))
	result := marshal(map[string]any{"messages": []any{map[string]any{"role": "user", "content": map[string]string{"type": "text", "text": said}}}})
	if msg.Method == "resources/read" {
		result = marshal(map[string]any{"contents": []any{map[string]string{"uri": stringField(msg.Params, "uri"), "text": said}}})
	}
	f.send(encodeResult(msg.ID, result))
}

// fakeAnswer is an answer as JSON.
func fakeAnswer(msg *Message) string {
	if msg.Err != nil {
		return fmt.Sprintf(`{"code":%d,"refused":%s}`, msg.Err.Code, quote(msg.Err.Message))
	}
	return string(msg.Result)
}

// ask is the tool ask. It is nil for a call that was cancelled.
func (f *fakeServer) ask(msg *Message, args json.RawMessage, stop <-chan struct{}) json.RawMessage {
	var a fakeAsk
	json.Unmarshal(args, &a)
	say := func(what string) { fmt.Fprintf(os.Stderr, "fake: %s %s %d\n", what, a.Mark, os.Getpid()) }
	tell := func(n int, when string) {
		if !a.Tells {
			return
		}
		token := field(field(msg.Params, "_meta"), "progressToken")
		f.send(encodeRequest(nil, "notifications/progress", object{{"progressToken", token}, {"progress", json.RawMessage(strconv.Itoa(n))}, {"message", quote(a.Mark + when)}}.encode()))
		log := marshal(map[string]string{"level": "error", "data": a.Mark + when})
		if f.has("names") {
			log = setMeta(log, metaCall, msg.ID)
		}
		f.send(encodeRequest(nil, "notifications/message", log))
	}
	go func() {
		<-stop
		say("cancelled")
		if a.Late {
			if id := field(a.Asks[0].Params, "elicitationId"); id != nil {
				f.send(encodeRequest(nil, "notifications/elicitation/complete", object{{"elicitationId", id}}.encode()))
			}
			say("late, got " + fakeAnswer(<-f.request(msg.ID, a.Asks[0].Method, a.Asks[0].Params)))
		}
	}()
	tell(1, " before")
	var answers []<-chan *Message
	for i, wish := range a.Asks {
		if !a.Turns || i == 0 {
			answers = append(answers, f.request(msg.ID, wish.Method, wish.Params))
		}
	}
	say("asked")
	got, failed := []string{strconv.FormatInt(fakeProcess, 10)}, false
	for i := range a.Asks {
		if i == len(answers) {
			answers = append(answers, f.request(msg.ID, a.Asks[i].Method, a.Asks[i].Params))
		}
		select {
		case msg := <-answers[i]:
			got = append(got, fakeAnswer(msg))
			failed = failed || msg.Err != nil
		case <-stop:
			return nil
		}
	}
	say("answered")
	tell(2, " after")
	if a.Stays {
		<-stop
		return nil
	}
	result := textResult("[" + strings.Join(got, ",") + "]")
	if failed && !a.Copes {
		result = withMember(result, "isError", json.RawMessage("true"))
	}
	return result
}

// wish is the answer of a modern module to a call of the tool ask.
func (f *fakeServer) wish(msg *Message) []byte {
	var a fakeAsk
	json.Unmarshal(field(msg.Params, "arguments"), &a)
	state := "state of " + a.Mark
	responses := field(msg.Params, "inputResponses")
	if responses == nil {
		caps := parseClientCaps(field(field(msg.Params, "_meta"), metaClientCaps))
		var requests object
		for i, wish := range a.Asks {
			needs, _ := needsOf(wish.Method, wish.Params)
			if lacked := needs &^ caps; lacked != 0 && !a.Bold {
				return encodeError(msg.ID, missingCapability(lacked))
			}
			params := wish.Params
			if params == nil {
				params = json.RawMessage(`{}`)
			}
			requests = append(requests, member{"wish" + strconv.Itoa(i), object{{"method", quote(wish.Method)}, {"params", params}}.encode()})
		}
		fmt.Fprintf(os.Stderr, "fake: asked %s %d\n", a.Mark, os.Getpid())
		return encodeResult(msg.ID, object{{"resultType", quote(resultInput)}, {"inputRequests", requests.encode()}, {"requestState", quote(state)}}.encode())
	}
	if stringField(msg.Params, "requestState") != state {
		return encodeError(msg.ID, rpcErrorf(codeInvalidParams, "the state of another"))
	}
	got := []string{strconv.FormatInt(fakeProcess, 10)}
	for i := range a.Asks {
		got = append(got, string(field(responses, "wish"+strconv.Itoa(i))))
	}
	fmt.Fprintf(os.Stderr, "fake: answered %s %d\n", a.Mark, os.Getpid())
	return encodeResult(msg.ID, withMember(textResult("["+strings.Join(got, ",")+"]"), "resultType", quote(resultComplete)))
}

// canonical is JSON with its keys in order and no white space.
func canonical(raw json.RawMessage) []byte {
	var v any
	if json.Unmarshal(raw, &v) != nil {
		return raw
	}
	return marshal(v)
}
