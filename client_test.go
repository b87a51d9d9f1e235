// MCP clients: in a session, without one, over HTTP+SSE and stdio, and one that can
// be asked over each of these.

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// testClient is an MCP client in one session.
type testClient struct {
	t       *testing.T
	URL     string
	Session string
	Header  http.Header // sent with each request
	http    *http.Client
	daemon  *testDaemon // where a test needs it
	mu      sync.Mutex
	id      int
}

// answer is what came back for a POST.
type answer struct {
	Status int
	Header http.Header
	Body   string
	Events []json.RawMessage // the messages, for a stream; the one, for JSON
}

// last is the message that answers: the last one.
func (a answer) last() json.RawMessage {
	if len(a.Events) == 0 {
		return nil
	}
	return a.Events[len(a.Events)-1]
}

// result is the result of the answer, nil for none.
func (a answer) result() json.RawMessage { return field(a.last(), "result") }

// failure is the message of a JSON-RPC error, or of a result that is one.
func (a answer) failure() string {
	if e := field(a.last(), "error"); e != nil {
		return stringField(e, "message")
	}
	if string(field(a.result(), "isError")) == "true" {
		return resultText(a.result())
	}
	return ""
}

const initialize = `{"jsonrpc":"2.0","id":"init","method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{}}}`

func initializeAs(version string) string {
	return `{"jsonrpc":"2.0","id":"init","method":"initialize","params":{"protocolVersion":"` + version + `","capabilities":{}}}`
}

// connect begins a session.
func connect(t *testing.T, url string) *testClient {
	t.Helper()
	c := &testClient{t: t, URL: url, Header: http.Header{}, http: &http.Client{Timeout: 2 * patience}}
	res := c.post(fmt.Sprintf(`{"jsonrpc":"2.0","id":"init","method":"initialize","params":{"protocolVersion":%q,"capabilities":{},"clientInfo":{"name":"test","version":"1"}}}`, protocols[0]))
	if res.Status != http.StatusOK {
		t.Fatalf("initialize: %d %s", res.Status, res.Body)
	}
	c.Session = res.Header.Get(sessionHeader)
	if res := c.post(`{"jsonrpc":"2.0","method":"notifications/initialized"}`); res.Status != http.StatusAccepted {
		t.Fatalf("initialized: %d %s", res.Status, res.Body)
	}
	return c
}

// connectAs begins a session of a version, by a request that present changes.
func connectAs(t *testing.T, url, version string, present ...func(*http.Request)) *testClient {
	t.Helper()
	c := newStateless(t, url)
	req := c.request(http.MethodPost, initializeAs(version))
	presentAll(present...)(req)
	a := c.do(req)
	if c.Session = a.Header.Get(sessionHeader); a.Status != 200 || c.Session == "" {
		t.Fatalf("initialize with %s: %d %s", version, a.Status, a.Body)
	}
	return c
}

// session begins a session by a request that present changes.
func openSession(t *testing.T, url string, present func(*http.Request)) (*testClient, answer) {
	t.Helper()
	c := &testClient{t: t, URL: url, Header: http.Header{}, http: &http.Client{Transport: spy{t}, Timeout: 2 * patience}}
	req := c.request(http.MethodPost, initialize)
	present(req)
	a := c.do(req)
	c.Session = a.Header.Get(sessionHeader)
	return c, a
}

// stateless is a client that never says initialize.
func newStateless(t *testing.T, url string) *testClient {
	t.Helper()
	return &testClient{t: t, URL: url, Header: http.Header{}, http: &http.Client{Transport: spy{t}, Timeout: 2 * patience}}
}

// spy passes requests on, and holds that no answer names a path of this machine.
type spy struct{ t *testing.T }

func (s spy) RoundTrip(req *http.Request) (*http.Response, error) {
	res, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	res.Body = io.NopCloser(bytes.NewReader(body))
	s.look(fmt.Sprint(res.Header, string(body)))
	return res, err
}

// look fails the test for a text that names a folder of this run.
func (s spy) look(text string) {
	here, _ := os.Getwd()
	home, _ := os.UserHomeDir()
	for _, dir := range []string{os.TempDir(), here, home} {
		if len(dir) > 1 && strings.Contains(text, dir+string(filepath.Separator)) {
			s.t.Errorf("an answer names %s: %s", dir, clipText(text, 500))
		}
	}
}

// request makes a POST with the client's session.
func (c *testClient) request(method, body string) *http.Request {
	req, err := http.NewRequest(method, c.URL, strings.NewReader(body))
	if err != nil {
		c.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	if c.Session != "" {
		req.Header.Set(sessionHeader, c.Session)
	}
	for k, v := range c.Header {
		req.Header[k] = v
	}
	return req
}

func (c *testClient) post(body string) answer {
	c.t.Helper()
	return c.do(c.request(http.MethodPost, body))
}

func (c *testClient) do(req *http.Request) answer {
	c.t.Helper()
	a, err := c.try(req)
	if err != nil {
		c.t.Fatalf("%s: %v", req.Method, err)
	}
	return a
}

// try is do for what may fail on the way.
func (c *testClient) try(req *http.Request) (answer, error) {
	res, err := c.http.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	a := answer{Status: res.StatusCode, Header: res.Header, Body: string(body)}
	if strings.HasPrefix(res.Header.Get("Content-Type"), "text/event-stream") {
		for line := range strings.Lines(a.Body) {
			if data, ok := strings.CutPrefix(line, "data: "); ok && strings.TrimSpace(data) != "" {
				a.Events = append(a.Events, json.RawMessage(strings.TrimSpace(data)))
			}
		}
	} else if len(body) > 0 {
		a.Events = []json.RawMessage{bytes.TrimSpace(body)}
	}
	return a, err
}

// ask makes a request; params are JSON, "" for none.
func (c *testClient) ask(method, params string) answer {
	c.t.Helper()
	return c.post(c.message(method, params))
}

func (c *testClient) message(method, params string) string {
	c.mu.Lock()
	c.id++
	id := c.id
	c.mu.Unlock()
	return string(encodeRequest(json.RawMessage(fmt.Sprint(id)), method, rawOrNil(params)))
}

// call calls a tool; arguments are JSON, "" for none.
func (c *testClient) call(tool, arguments string) answer {
	c.t.Helper()
	params := object{{"name", quote(tool)}}
	if arguments != "" {
		params = append(params, member{"arguments", json.RawMessage(arguments)})
	}
	return c.ask("tools/call", string(params.encode()))
}

// end ends the session.
func (c *testClient) end() {
	c.t.Helper()
	if a := c.do(c.request(http.MethodDelete, "")); a.Status != http.StatusNoContent {
		c.t.Errorf("DELETE: %d %s", a.Status, a.Body)
	}
}

func rawOrNil(s string) json.RawMessage {
	if s == "" {
		return nil
	}
	return json.RawMessage(s)
}

// tools is the names that tools/list has, in its order.
func (c *testClient) tools() []string {
	c.t.Helper()
	var list struct{ Tools []struct{ Name string } }
	a := c.ask("tools/list", "")
	if err := json.Unmarshal(a.result(), &list); err != nil {
		c.t.Fatalf("tools/list: %d %s", a.Status, a.Body)
	}
	names := []string{}
	for _, tool := range list.Tools {
		names = append(names, tool.Name)
	}
	return names
}

// awaitTools waits until the client sees these tools.
func (c *testClient) awaitTools(want ...string) {
	c.t.Helper()
	await(c.t, fmt.Sprintf("the tools %v", want), func() bool {
		return strings.Join(c.tools(), " ") == strings.Join(want, " ")
	})
}

// list is what a request of the session that present changes sees, or its status.
func listTools(c *testClient, present func(*http.Request)) string {
	c.t.Helper()
	req := c.request(http.MethodPost, c.message("tools/list", ""))
	present(req)
	a := c.do(req)
	if a.Status != 200 {
		return fmt.Sprint(a.Status)
	}
	var l struct{ Tools []struct{ Name string } }
	json.Unmarshal(a.result(), &l)
	names := []string{}
	for _, tool := range l.Tools {
		names = append(names, tool.Name)
	}
	return strings.Join(names, " ")
}

// sees is what a request of a client without a session is shown: its tools, or
// its status.
func (c *testClient) sees(present func(*http.Request)) string {
	c.t.Helper()
	a := c.modern("tools/list", "", present)
	if a.Status != 200 {
		return fmt.Sprint(a.Status)
	}
	var l struct{ Tools []struct{ Name string } }
	json.Unmarshal(a.result(), &l)
	names := []string{}
	for _, tool := range l.Tools {
		names = append(names, tool.Name)
	}
	return strings.Join(names, " ")
}

// modernMeta is what each request says of its client.
const modernMeta = `"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"test","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}`

// modernPOST is a request as a client makes it that keeps to all rules. What
// params have in _meta goes with it.
func (c *testClient) modernPOST(id, method, params string) *http.Request {
	c.t.Helper()
	own, _ := members(field(rawOrNil(params), "_meta"))
	meta, _ := members(json.RawMessage("{" + modernMeta + "}"))
	for _, f := range own {
		meta = meta.set(f.key, f.value)
	}
	full := withMember(rawOrNil(params), "_meta", meta.encode())
	req := c.request(http.MethodPost, string(encodeRequest(json.RawMessage(id), method, full)))
	req.Header.Set(protocolHeader, statelessProtocol)
	req.Header.Set(methodHeader, method)
	if name := stringField(full, "name") + stringField(full, "uri"); name != "" {
		req.Header.Set(nameHeader, name)
	}
	return req
}

// modern makes such a request, changed by present.
func (c *testClient) modern(method, params string, present ...func(*http.Request)) answer {
	c.t.Helper()
	req := c.modernPOST("1", method, params)
	presentAll(present...)(req)
	return c.do(req)
}

// modernListen opens a subscriptions/listen, whose first message must be that
// it is honoured as wanted.
func (c *testClient) modernListen(id, filter, honoured string, present ...func(*http.Request)) (<-chan event, func()) {
	c.t.Helper()
	req := c.modernPOST(id, "subscriptions/listen", `{"notifications":`+filter+`}`)
	presentAll(present...)(req)
	res, events, hangUp := openStream(c.t, req)
	if res.StatusCode != 200 || !strings.HasPrefix(res.Header.Get("Content-Type"), "text/event-stream") {
		c.t.Fatalf("listen: %s", res.Status)
	}
	wantEvent(c.t, events, `"method":"notifications/subscriptions/acknowledged"`, `"notifications":`+honoured, `"`+metaSubscription+`":`+id)
	return events, hangUp
}

// ways are the ways to present a code.
var ways = map[string]func(*http.Request, string){
	"in the header":    func(r *http.Request, code string) { r.Header.Set(claimHeader, code) },
	"in the URL":       func(r *http.Request, code string) { r.URL.RawQuery = "claim=" + code },
	"as bearer":        func(r *http.Request, code string) { r.Header.Set("Authorization", "Bearer "+code) },
	"lower and dashed": func(r *http.Request, code string) { r.Header.Set(claimHeader, strings.ToLower(code[:3]+"-"+code[3:])) },
}

func presentNothing(*http.Request) {}

// header is a request's way to present a code that most tests take.
func inHeader(code string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Set(claimHeader, code) }
}

func inQuery(code string) func(*http.Request) {
	return func(r *http.Request) { r.URL.RawQuery = "claim=" + code }
}

func inAuthorization(value string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Set("Authorization", value) }
}

func presentAll(present ...func(*http.Request)) func(*http.Request) {
	return func(r *http.Request) {
		for _, p := range present {
			p(r)
		}
	}
}

// setHeaders sets lines of "Name: value", or takes "Name:" away.
func setHeaders(req *http.Request, lines string) {
	for line := range strings.Lines(lines) {
		name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ":")
		if req.Header.Del(name); value != "" {
			req.Header.Set(name, strings.TrimPrefix(value, " "))
		}
	}
}

// event is one event of a stream, or a comment.
type event struct {
	id, retry, name, data string
	hasData, comment      bool
}

func (e event) msg() json.RawMessage { return json.RawMessage(e.data) }

// follow opens a stream. Its events arrive on the channel, which is closed at
// its end.
func openStream(t *testing.T, req *http.Request) (res *http.Response, events <-chan event, hangUp func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := client.Do(req.WithContext(ctx))
	if err != nil {
		t.Fatal(err)
	}
	out := make(chan event, 10_000)
	go func() {
		defer close(out)
		defer res.Body.Close()
		lines := bufio.NewReader(res.Body)
		var e event
		for {
			line, err := lines.ReadString('\n')
			if err != nil {
				return
			}
			key, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ":")
			value = strings.TrimPrefix(value, " ")
			switch {
			case line == "\n" && e != event{}:
				out <- e
				e = event{}
			case key == "":
				e.comment = true
			case key == "id":
				e.id = value
			case key == "retry":
				e.retry = value
			case key == "event":
				e.name = value
			case key == "data":
				e.data, e.hasData = value, true
			}
		}
	}()
	return res, out, cancel
}

// next is the next event with a message.
func nextEvent(t *testing.T, events <-chan event) (event, bool) {
	t.Helper()
	deadline := time.After(patience)
	for {
		select {
		case e, ok := <-events:
			if !ok || e.data != "" {
				return e, ok
			}
		case <-deadline:
			t.Fatal("gave up waiting for a message on a stream")
		}
	}
}

// rest is the messages until the stream's end.
func remainingEvents(t *testing.T, events <-chan event) (list []event) {
	t.Helper()
	for {
		e, ok := nextEvent(t, events)
		if !ok {
			return list
		}
		list = append(list, e)
	}
}

// mustNext is next, which has to have this in it.
func wantEvent(t *testing.T, events <-chan event, want ...string) event {
	t.Helper()
	e, ok := nextEvent(t, events)
	if !ok {
		t.Fatalf("the stream ended before %v", want)
	}
	for _, w := range want {
		if !strings.Contains(e.data, w) {
			t.Fatalf("the stream says %s, want %s", e.data, w)
		}
	}
	return e
}

// data is what events say, and which ids they have.
func eventTexts(events []event) (texts, ids []string) {
	for _, e := range events {
		texts, ids = append(texts, e.data), append(ids, e.id)
	}
	return texts, ids
}

// resume opens the rest of a stream.
func (c *testClient) resume(lastEvent string, present ...func(*http.Request)) (*http.Response, <-chan event, func()) {
	c.t.Helper()
	get := c.request(http.MethodGet, "")
	get.Header.Set("Accept", "text/event-stream")
	get.Header.Set(eventHeader, lastEvent)
	presentAll(present...)(get)
	return openStream(c.t, get)
}

// listen opens the session's notification stream. Messages arrive on the
// channel, which is closed at the stream's end.
func (c *testClient) listen() (messages <-chan json.RawMessage, hangUp func()) {
	c.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	req := c.request(http.MethodGet, "").WithContext(ctx)
	req.Header.Set("Accept", "text/event-stream")
	res, err := (&http.Client{}).Do(req)
	if err != nil {
		c.t.Fatal(err)
	}
	if res.StatusCode != http.StatusOK {
		c.t.Fatalf("GET: %s", res.Status)
	}
	c.t.Cleanup(cancel)
	out := make(chan json.RawMessage, 100)
	go func() {
		defer close(out)
		defer res.Body.Close()
		lines := bufio.NewScanner(res.Body)
		for lines.Scan() {
			if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok && data != "" {
				out <- json.RawMessage(data)
			}
		}
	}()
	return out, cancel
}

// hear waits for a notification on a stream.
func hear(t *testing.T, messages <-chan json.RawMessage, method string) json.RawMessage {
	t.Helper()
	deadline := time.After(patience)
	for {
		select {
		case msg, ok := <-messages:
			if !ok {
				t.Fatalf("the stream ended before %s", method)
			}
			if stringField(msg, "method") == method {
				return msg
			}
		case <-deadline:
			t.Fatalf("gave up waiting for %s", method)
		}
	}
}

// oldClient is a client of HTTP+SSE.
type sseClient struct {
	*testClient
	events <-chan event
	hangUp func()
}

// connectOld opens a stream, by a request that present changes.
func connectSSE(t *testing.T, url string, present ...func(*http.Request)) *sseClient {
	t.Helper()
	c := &sseClient{testClient: newStateless(t, url)}
	get := c.request(http.MethodGet, "")
	get.Header.Set("Accept", "text/event-stream")
	presentAll(present...)(get)
	res, events, hangUp := openStream(t, get)
	if res.StatusCode != 200 {
		t.Fatalf("GET: %s", res.Status)
	}
	c.events, c.hangUp = events, hangUp
	e := wantEvent(t, events)
	if e.name != "endpoint" || !strings.HasPrefix(e.data, get.URL.Path+"?sessionId=") || strings.Contains(e.data, "claim") {
		t.Fatalf("the first event: %+v", e)
	}
	where, err := get.URL.Parse(e.data)
	if err != nil {
		t.Fatal(err)
	}
	c.URL = where.String()
	return c
}

// ask makes a request whose answer comes on the stream, maybe after others.
func (c *sseClient) ask(method, params string) json.RawMessage {
	c.t.Helper()
	text := c.message(method, params)
	if a := c.post(text); a.Status != 202 || a.Body != "" {
		c.t.Fatalf("%s: %d %s", method, a.Status, a.Body)
	}
	for {
		if e := wantEvent(c.t, c.events); string(field(e.msg(), "id")) == string(field(json.RawMessage(text), "id")) {
			return e.msg()
		}
	}
}

// sees is the tools that there are for it.
func (c *sseClient) sees() string {
	c.t.Helper()
	var l struct{ Tools []struct{ Name string } }
	json.Unmarshal(field(c.ask("tools/list", ""), "result"), &l)
	var names []string
	for _, tool := range l.Tools {
		names = append(names, tool.Name)
	}
	return strings.Join(names, " ")
}

// stdio runs usher stdio over a workspace; messages go in and out by the pipes.
func startStdio(t *testing.T, dir string) (in io.WriteCloser, out *lineReader, exit chan int) {
	t.Helper()
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	exit = make(chan int, 1)
	ctx, cancel := context.WithCancel(context.Background())
	base := t.TempDir()
	go func() {
		exit <- run(ctx, []string{"stdio", "-base", base, dir}, inR, outW, io.Discard, noEnv)
		outW.Close()
	}()
	t.Cleanup(func() {
		cancel()
		inW.Close()
		go io.Copy(io.Discard, outR)
		<-exit
	})
	return inW, newLineReader(outR, 64<<20), exit
}

// askClient is a client that can be asked, of any revision and transport.
type askClient struct {
	t      *testing.T
	answer func(method string, params json.RawMessage) json.RawMessage // a result, or an object with an error; nil for none
	asked  chan json.RawMessage                                        // each request to the client
	http   *testClient                                                 // nil on stdio
	meta   string                                                      // of modern requests: their capabilities; "" for a client with a session
	level  string                                                      // of modern requests
	name   string                                                      // of the client program, in modern requests
	post   func(ctx context.Context, msg []byte) error                 // sends a message, and takes in what comes back of it
	hangUp func()                                                      // ends its stream
	mu     sync.Mutex
	id     int
	wait   map[string]chan json.RawMessage // for answers, by id
	heard  []json.RawMessage               // notifications
}

// askHTTP has connections of its own: one that was opened and not used would
// keep the daemon waiting at its end.
func askHTTP(t *testing.T, url, code string) *testClient {
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	c := &testClient{t: t, URL: url, Header: http.Header{}, http: &http.Client{Transport: transport}}
	if code != "" {
		c.Header.Set(claimHeader, code)
	}
	return c
}

func newAskClient(t *testing.T) *askClient {
	return &askClient{t: t, answer: askAnswer("none"), asked: make(chan json.RawMessage, 2000), name: "test", wait: make(map[string]chan json.RawMessage)}
}

// take takes one message from usher.
func (c *askClient) take(msg json.RawMessage) {
	id, method := field(msg, "id"), stringField(msg, "method")
	switch {
	case method != "" && id != nil:
		c.asked <- msg
		answer := c.answer(method, field(msg, "params"))
		if answer == nil {
			return
		}
		go func() { // the answer comes on another request
			body := encodeResult(id, answer)
			if e := field(answer, "error"); e != nil {
				body = encodeError(id, parseRPCError(e))
			}
			if err := c.post(context.Background(), body); err != nil {
				c.t.Errorf("answering: %v", err)
			}
		}()
	case method != "":
		c.mu.Lock()
		c.heard = append(c.heard, msg)
		c.mu.Unlock()
	default:
		c.mu.Lock()
		wait := c.wait[string(id)]
		delete(c.wait, string(id))
		c.mu.Unlock()
		if wait != nil {
			wait <- msg
		}
	}
}

// hears waits for a notification of a method that names all words.
func (c *askClient) hears(method string, words ...string) {
	c.t.Helper()
	await(c.t, method+" "+strings.Join(words, " "), func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return slices.ContainsFunc(c.heard, func(msg json.RawMessage) bool {
			return stringField(msg, "method") == method && !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(string(msg), w) })
		})
	})
}

// nextID is the id of the client's next request.
func (c *askClient) nextID() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.id++
	return strconv.Itoa(c.id)
}

// send makes a request of a client with a session, and returns what will answer
// it.
func (c *askClient) send(ctx context.Context, id, method, params string) <-chan json.RawMessage {
	wait := make(chan json.RawMessage, 1)
	c.mu.Lock()
	c.wait[id] = wait
	c.mu.Unlock()
	go func() {
		if err := c.post(ctx, encodeRequest(json.RawMessage(id), method, rawOrNil(params))); err != nil && ctx.Err() == nil {
			c.t.Errorf("%s: %v", method, err)
		}
	}()
	return wait
}

// call calls a tool, and answers what is asked meanwhile. It returns the message
// that is the answer.
func (c *askClient) call(tool string, arguments any) json.RawMessage {
	c.t.Helper()
	params := object{{"name", quote(tool)}, {"arguments", marshal(arguments)}}.encode()
	if c.meta != "" && c.http != nil {
		return c.callModern(tool, arguments)
	}
	for range 100 {
		own := params
		if c.meta != "" {
			own = c.modern(params)
		}
		msg := c.get(c.send(c.t.Context(), c.nextID(), "tools/call", string(own)))
		result := field(msg, "result")
		if stringField(result, "resultType") != resultInput {
			return msg
		}
		params = c.answered(params, result)
	}
	c.t.Error("asked without end")
	return nil
}

// get waits for an answer.
func (c *askClient) get(wait <-chan json.RawMessage) json.RawMessage {
	c.t.Helper()
	select {
	case msg := <-wait:
		return msg
	case <-time.After(patience):
		c.t.Error("gave up waiting for an answer")
		return nil
	}
}

// modern is params of a request of a client without a session.
func (c *askClient) modern(params json.RawMessage) json.RawMessage {
	params = setMeta(params, metaProtocol, quote(statelessProtocol))
	params = setMeta(params, metaClientCaps, json.RawMessage(c.meta))
	params = setMeta(params, metaClientInfo, json.RawMessage(`{"name":"`+c.name+`","version":"1"}`))
	if c.level != "" {
		params = setMeta(params, metaLogLevel, quote(c.level))
	}
	return params
}

// answered is params with answers to what a result asks.
func (c *askClient) answered(params, result json.RawMessage) json.RawMessage {
	requests, _ := members(field(result, "inputRequests"))
	var responses object
	for _, r := range requests {
		c.asked <- r.value
		if answer := c.answer(stringField(r.value, "method"), field(r.value, "params")); answer != nil {
			responses = append(responses, member{r.key, answer})
		}
	}
	params = withMember(params, "inputResponses", responses.encode())
	return withMember(params, "requestState", field(result, "requestState"))
}

// round makes one request to call a tool, as a client without a session does.
func (c *askClient) round(tool string, arguments any, more ...member) answer {
	c.t.Helper()
	params := append(object{{"name", quote(tool)}, {"arguments", marshal(arguments)}}, more...).encode()
	a, err := c.http.try(c.modernRequest(params))
	if err != nil {
		c.t.Errorf("POST: %v", err)
	}
	return a
}

func (c *askClient) modernRequest(params json.RawMessage) *http.Request {
	body := encodeRequest(json.RawMessage(c.nextID()), "tools/call", c.modern(params))
	req := c.http.request(http.MethodPost, string(body))
	req.Header.Set(protocolHeader, statelessProtocol)
	req.Header.Set(methodHeader, "tools/call")
	req.Header.Set(nameHeader, stringField(params, "name"))
	return req
}

// callModern is call for a client without a session, over HTTP.
func (c *askClient) callModern(tool string, arguments any) json.RawMessage {
	c.t.Helper()
	var more object
	for range 100 {
		a := c.round(tool, arguments, more...)
		for _, msg := range a.Events[:max(len(a.Events)-1, 0)] {
			c.take(msg)
		}
		if stringField(a.result(), "resultType") != resultInput {
			return a.last()
		}
		more, _ = members(c.answered(nil, a.result()))
	}
	c.t.Error("asked without end")
	return nil
}

// askLines hands over the events of a stream as they come.
func askLines(r io.Reader, take func(event, data string)) {
	lines, event := bufio.NewReader(r), ""
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			return
		}
		key, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
		switch {
		case key == "event":
			event = value
		case key == "data" && value != "":
			take(event, value)
		}
	}
}

// askOverPOST is a client with a session of a version over streamable HTTP.
func askOverPOST(t *testing.T, url, version, caps, code string) *askClient {
	c := newAskClient(t)
	c.http = askHTTP(t, url, code)
	a := c.http.post(fmt.Sprintf(`{"jsonrpc":"2.0","id":"init","method":"initialize","params":{"protocolVersion":%q,"capabilities":%s,"clientInfo":{"name":"test","version":"1"}}}`, version, caps))
	c.http.Session = a.Header.Get(sessionHeader)
	c.http.post(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	c.post = func(ctx context.Context, msg []byte) error {
		res, err := c.http.http.Do(c.http.request(http.MethodPost, string(msg)).WithContext(ctx))
		if err != nil {
			return err
		}
		defer res.Body.Close()
		if strings.HasPrefix(res.Header.Get("Content-Type"), "text/event-stream") {
			askLines(res.Body, func(_, data string) { c.take(json.RawMessage(data)) })
			return nil
		}
		body, err := io.ReadAll(res.Body)
		if err == nil && len(body) > 0 {
			c.take(bytes.TrimSpace(body))
		}
		return err
	}
	return c
}

// askModern is a client without a session.
func askModern(t *testing.T, url, caps, code string) *askClient {
	c := newAskClient(t)
	c.meta = caps
	c.http = askHTTP(t, url, code)
	return c
}

// askOverSSE is a client of HTTP+SSE.
func askOverSSE(t *testing.T, url, caps, code string) *askClient {
	c := newAskClient(t)
	ctx, cancel := context.WithCancel(context.Background())
	c.hangUp = cancel
	t.Cleanup(cancel)
	c.http = askHTTP(t, url, code)
	req := c.http.request(http.MethodGet, "").WithContext(ctx)
	req.Header.Set("Accept", "text/event-stream")
	res, err := c.http.http.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	endpoint := make(chan string, 1)
	go func() {
		defer res.Body.Close()
		askLines(res.Body, func(event, data string) {
			if event == "endpoint" {
				endpoint <- data
			} else {
				c.take(json.RawMessage(data))
			}
		})
	}()
	c.http.URL = strings.TrimSuffix(url, "/") + <-endpoint
	c.post = func(ctx context.Context, msg []byte) error {
		a, err := c.http.try(c.http.request(http.MethodPost, string(msg)).WithContext(ctx))
		if err == nil && a.Status != http.StatusAccepted {
			err = fmt.Errorf("%d %s", a.Status, a.Body)
		}
		return err
	}
	c.get(c.send(ctx, c.nextID(), "initialize", `{"protocolVersion":"2024-11-05","capabilities":`+caps+`,"clientInfo":{"name":"test","version":"1"}}`))
	return c
}

// askOverStdio is a client on stdio: with a session, or, where modern, without.
func askOverStdio(t *testing.T, dir, caps string, modern bool) *askClient {
	c := newAskClient(t)
	in, out, _ := startStdio(t, dir)
	var writing sync.Mutex
	c.post = func(_ context.Context, msg []byte) error {
		writing.Lock()
		defer writing.Unlock()
		_, err := in.Write(append(msg, '\n'))
		return err
	}
	go func() {
		for {
			line, err := out.next()
			if err != nil {
				return
			}
			c.take(bytes.Clone(line))
		}
	}()
	if modern {
		c.meta = caps
		return c
	}
	c.get(c.send(t.Context(), c.nextID(), "initialize", `{"protocolVersion":"2025-11-25","capabilities":`+caps+`,"clientInfo":{"name":"test","version":"1"}}`))
	return c
}

// askWays are the clients that there are.
var askWays = map[string]func(t *testing.T, url, dir, caps string) *askClient{
	"2025-11-25": func(t *testing.T, url, _, caps string) *askClient { return askOverPOST(t, url, "2025-11-25", caps, "") },
	"2025-06-18": func(t *testing.T, url, _, caps string) *askClient { return askOverPOST(t, url, "2025-06-18", caps, "") },
	"2025-03-26": func(t *testing.T, url, _, caps string) *askClient { return askOverPOST(t, url, "2025-03-26", caps, "") },
	"HTTP+SSE":   func(t *testing.T, url, _, caps string) *askClient { return askOverSSE(t, url, caps, "") },
	"2026-07-28": func(t *testing.T, url, _, caps string) *askClient { return askModern(t, url, caps, "") },
	"stdio":      func(t *testing.T, _, dir, caps string) *askClient { return askOverStdio(t, dir, caps, false) },
	"stdio, 2026-07-28": func(t *testing.T, _, dir, caps string) *askClient {
		return askOverStdio(t, dir, caps, true)
	},
}
