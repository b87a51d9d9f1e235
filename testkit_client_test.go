// MCP clients: in a session, without one, over HTTP+SSE and stdio.

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
	"strings"
	"sync"
	"testing"
	"time"
)

// testClient is an MCP client, in a session or without one.
type testClient struct {
	t       *testing.T
	URL     string
	Session string
	Header  http.Header // sent with each request
	http    *http.Client
	daemon  *testDaemon // if a test needs it
	mu      sync.Mutex
	id      int
}

// initialize begins a session of a client without capabilities.
const initialize = `{"jsonrpc":"2.0","id":"init","method":"initialize","params":{` +
	`"protocolVersion":"2025-11-25",` +
	`"capabilities":{},"clientInfo":{"name":"test","version":"1"}}}`

func initializeAs(version string) string { return initializeWith(version, `{}`) }

const initialized = `{"jsonrpc":"2.0","method":"notifications/initialized"}`

// initializeWith begins a session of a version, by a client with these capabilities.
func initializeWith(version, caps string) string {
	return strings.NewReplacer("2025-11-25", version, `"capabilities":{}`,
		`"capabilities":`+caps).Replace(initialize)
}

// newClient returns a client with connections of its own.
func newClient(t *testing.T, url string) *testClient {
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	return clientOver(t, url, &http.Client{Transport: transport, Timeout: 2 * patience})
}

// clientOver returns a client with the connections of an HTTP client.
func clientOver(t *testing.T, url string, over *http.Client) *testClient {
	return &testClient{t: t, URL: url, Header: http.Header{}, http: over}
}

// newStateless returns a client that never sends initialize.
func newStateless(t *testing.T, url string) *testClient {
	c := newClient(t, url)
	c.http.Transport = spy{t}
	return c
}

// connect begins a session of the latest revision that has sessions.
func connect(t *testing.T, url string) *testClient {
	t.Helper()
	c := newClient(t, url)
	c.begin(initialize)
	if c.Session == "" {
		t.Fatal("initialize: no session")
	}
	if a := c.post(initialized); a.Status != 202 {
		t.Fatalf("initialized: %d %s", a.Status, a.Body)
	}
	return c
}

// connectAs begins a session of a version, by a request that present changes.
func connectAs(t *testing.T, url, version string, present ...presenter) *testClient {
	t.Helper()
	c := newStateless(t, url)
	if a := c.begin(initializeAs(version), present...); c.Session == "" {
		t.Fatalf("initialize with %s: %d %s", version, a.Status, a.Body)
	}
	return c
}

// openSession tries to begin a session by a request that present changes.
func openSession(t *testing.T, url string, present ...presenter) (*testClient, answer) {
	t.Helper()
	c := newStateless(t, url)
	return c, c.begin(initialize, present...)
}

// begin sends initialize, and stays in the session that there is then.
func (c *testClient) begin(initialize string, present ...presenter) answer {
	c.t.Helper()
	req := c.request("POST", initialize)
	presentAll(present...)(req)
	a := c.do(req)
	c.Session = a.Header.Get(sessionHeader)
	return a
}

// answer is the answer to a POST.
type answer struct {
	Status int
	Header http.Header
	Body   string
	Events []json.RawMessage // the messages of a stream, or the one message
}

// wantStatus checks the status of an answer.
func wantStatus(t testing.TB, what string, a answer, status int) {
	t.Helper()
	if a.Status != status {
		t.Errorf("%s: status %d, want %d: %s", what, a.Status, status, clipText(a.Body, 2000))
	}
}

// last returns the message that answers: the last one.
func (a answer) last() json.RawMessage {
	if len(a.Events) == 0 {
		return nil
	}
	return a.Events[len(a.Events)-1]
}

// field returns the value under the last of keys in a JSON object, the others lead to it, or nil.
func field[T ~[]byte | ~string](raw T, keys ...string) json.RawMessage {
	value := json.RawMessage(raw)
	for _, key := range keys {
		value = members(value).get(key)
	}
	return value
}

// stringField is field for a string, or "".
func stringField[T ~[]byte | ~string](raw T, keys ...string) string {
	last := len(keys) - 1
	return members(field(raw, keys[:last]...)).text(keys[last])
}

// withMember returns a JSON object with key set to value.
func withMember(raw json.RawMessage, key string, value json.RawMessage) json.RawMessage {
	return members(raw).set(key, value).encode()
}

// result returns the result, nil for none.
func (a answer) result() json.RawMessage { return field(a.last(), "result") }

// text returns the text of a tool's result.
func (a answer) text() string { return resultText(members(a.result())) }

// failure returns the message of a JSON-RPC error, or of a result that is an error.
func (a answer) failure() string {
	if e := field(a.last(), "error"); e != nil {
		return stringField(e, "message")
	}
	if string(field(a.result(), "isError")) == "true" {
		return a.text()
	}
	return ""
}

// toolNames returns the names in the result of tools/list, separated by blanks, or the
// status of a refusal.
func (a answer) toolNames() string {
	if a.Status != 200 {
		return fmt.Sprint(a.Status)
	}
	var list struct{ Tools []struct{ Name string } }
	json.Unmarshal(a.result(), &list)
	names := []string{}
	for _, tool := range list.Tools {
		names = append(names, tool.Name)
	}
	return strings.Join(names, " ")
}

// spy passes requests on, and checks that no answer names a path of this machine.
type spy struct{ t *testing.T }

func (s spy) RoundTrip(req *http.Request) (*http.Response, error) {
	res, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	res.Body = io.NopCloser(bytes.NewReader(body))
	text := fmt.Sprint(res.Header, string(body))
	here, _ := os.Getwd()
	home, _ := os.UserHomeDir()
	for _, dir := range []string{os.TempDir(), here, home} {
		if len(dir) > 1 && strings.Contains(text, dir+string(filepath.Separator)) {
			s.t.Errorf("an answer names %s: %s", dir, clipText(text, 500))
		}
	}
	return res, err
}

// request returns a request with the client's session.
func (c *testClient) request(method, body string) *http.Request {
	req, err := http.NewRequest(method, c.URL, strings.NewReader(body))
	must(c.t, err)
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
	return c.do(c.request("POST", body))
}

func (c *testClient) do(req *http.Request) answer {
	c.t.Helper()
	a, err := c.try(req)
	if err != nil {
		c.t.Fatalf("%s: %v", req.Method, err)
	}
	return a
}

// try makes a request that may fail on its way.
func (c *testClient) try(req *http.Request) (answer, error) {
	res, err := c.http.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	a := answer{Status: res.StatusCode, Header: res.Header, Body: string(body)}
	if strings.HasPrefix(res.Header.Get("Content-Type"), "text/event-stream") {
		readEvents(strings.NewReader(a.Body), func(e event) {
			if e.data != "" {
				a.Events = append(a.Events, e.msg())
			}
		})
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

// asking returns a request by POST.
func (c *testClient) asking(method, params string) *http.Request {
	return c.request("POST", c.message(method, params))
}

// cancel cancels the request with an id, which is JSON.
func (c *testClient) cancel(id string) {
	c.t.Helper()
	c.post(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":` + id + `}}`)
}

// awaitText waits until a call of a tool returns a text.
func (c *testClient) awaitText(tool, arguments, want string) {
	c.t.Helper()
	await(c.t, tool+" to return "+want, func() bool { return c.call(tool, arguments).text() == want })
}

func (c *testClient) message(method, params string) string {
	c.mu.Lock()
	c.id++
	id := c.id
	c.mu.Unlock()
	return string(encodeRequest(json.RawMessage(fmt.Sprint(id)), method, objectOf(params)))
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
	if a := c.do(c.request("DELETE", "")); a.Status != 204 {
		c.t.Errorf("DELETE: %d %s", a.Status, a.Body)
	}
}

// tools returns the names of the tools that there are.
func (c *testClient) tools() []string {
	c.t.Helper()
	a := c.ask("tools/list", "")
	if a.result() == nil {
		c.t.Fatalf("tools/list: %d %s", a.Status, a.Body)
	}
	return strings.Fields(a.toolNames())
}

// awaitTools waits until the client sees these tools.
func (c *testClient) awaitTools(want ...string) {
	c.t.Helper()
	await(c.t, fmt.Sprintf("the tools %v", want), func() bool {
		return strings.Join(c.tools(), " ") == strings.Join(want, " ")
	})
}

// listTools returns the tools that a request of the session sees which present
// changes, or its status.
func listTools(c *testClient, present ...presenter) string {
	c.t.Helper()
	req := c.asking("tools/list", "")
	presentAll(present...)(req)
	return c.do(req).toolNames()
}

// sees is listTools for a client without a session.
func (c *testClient) sees(present ...presenter) string {
	c.t.Helper()
	return c.modern("tools/list", "", present...).toolNames()
}

// modernMeta is the _meta of each request of 2026-07-28.
const modernMeta = `"io.modelcontextprotocol/protocolVersion":"2026-07-28",` +
	`"io.modelcontextprotocol/clientInfo":{"name":"test","version":"1"},` +
	`"io.modelcontextprotocol/clientCapabilities":{}`

// modernPOST returns a request of 2026-07-28 that keeps to all rules. It keeps the
// members of the params' own _meta.
func (c *testClient) modernPOST(id, method, params string) *http.Request {
	c.t.Helper()
	meta := objectOf("{" + modernMeta + "}")
	for _, own := range members(field(params, "_meta")) {
		meta = meta.set(own.key, own.value)
	}
	full := objectOf(params).set("_meta", meta.encode())
	req := c.request("POST", string(encodeRequest(json.RawMessage(id), method, full)))
	req.Header.Set(protocolHeader, statelessProtocol)
	req.Header.Set(methodHeader, method)
	if name := full.text("name") + full.text("uri"); name != "" {
		req.Header.Set(nameHeader, name)
	}
	return req
}

// modern makes such a request, changed by present.
func (c *testClient) modern(method, params string, present ...presenter) answer {
	c.t.Helper()
	req := c.modernPOST("1", method, params)
	presentAll(present...)(req)
	return c.do(req)
}

// modernListen opens a subscriptions/listen, whose first message must be that
// it is honoured as wanted.
func (c *testClient) modernListen(
	id, filter, honoured string, present ...presenter,
) (<-chan event, func()) {
	c.t.Helper()
	req := c.modernPOST(id, "subscriptions/listen", `{"notifications":`+filter+`}`)
	presentAll(present...)(req)
	res, events, hangUp := openStream(c.t, req)
	if res.StatusCode != 200 ||
		!strings.HasPrefix(res.Header.Get("Content-Type"), "text/event-stream") {
		c.t.Fatalf("listen: %s", res.Status)
	}
	wantEvent(c.t, events, `"method":"notifications/subscriptions/acknowledged"`,
		`"notifications":`+honoured,
		`"`+metaSubscription+`":`+id)
	return events, hangUp
}

// presenter changes a request, mostly so that it presents a code.
type presenter = func(*http.Request)

func presentNothing(*http.Request) {}

// inHeader presents a code in the header, as most tests do.
func inHeader(code string) presenter { return setHeader(claimHeader, code) }

func inQuery(code string) presenter {
	return func(r *http.Request) { r.URL.RawQuery = "claim=" + code }
}

func inAuthorization(value string) presenter { return setHeader("Authorization", value) }

func presentAll(present ...presenter) presenter {
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
	id, name, data string
}

func (e event) msg() json.RawMessage { return json.RawMessage(e.data) }

// readEvents reads a stream to its end.
func readEvents(stream io.Reader, take func(event)) {
	lines := bufio.NewReader(stream)
	var e event
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			return
		}
		key, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ":")
		value = strings.TrimPrefix(value, " ")
		switch {
		case line == "\n":
			if e != (event{}) {
				take(e)
			}
			e = event{}
		case key == "id":
			e.id = value
		case key == "event":
			e.name = value
		case key == "data":
			e.data = value
		}
	}
}

// openStream opens a stream. Its events arrive on the channel, which is closed at its
// end.
func openStream(t *testing.T, req *http.Request) (res *http.Response, events <-chan event, hangUp func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := client.Do(req.WithContext(ctx))
	must(t, err)
	out := make(chan event, 10_000)
	go func() {
		defer close(out)
		defer res.Body.Close()
		readEvents(res.Body, func(e event) { out <- e })
	}()
	return res, out, cancel
}

// nextEvent returns the next event with a message, or false at the end.
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

// remainingEvents returns the events with a message until the stream's end.
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

// wantEvent returns the next event with a message, which must contain these texts.
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

// get opens a stream by a GET that present changes.
func (c *testClient) get(present ...presenter) (*http.Response, <-chan event, func()) {
	c.t.Helper()
	req := c.getRequest()
	presentAll(present...)(req)
	return openStream(c.t, req)
}

// listen opens the session's notification stream.
func (c *testClient) listen() (events <-chan event, hangUp func()) {
	c.t.Helper()
	res, events, hangUp := c.get()
	if res.StatusCode != 200 {
		c.t.Fatalf("GET: %s", res.Status)
	}
	return events, hangUp
}

// hear waits for a notification on a stream.
func hear(t *testing.T, events <-chan event, method string) json.RawMessage {
	t.Helper()
	for {
		if msg := wantEvent(t, events).msg(); stringField(msg, "method") == method {
			return msg
		}
	}
}

// sseClient is a client of HTTP+SSE.
type sseClient struct {
	*testClient
	events <-chan event
	hangUp func()
}

// connectSSE opens a stream, by a request that present changes.
func connectSSE(t *testing.T, url string, present ...presenter) *sseClient {
	t.Helper()
	return newStateless(t, url).openSSE(present...)
}

func (c *testClient) openSSE(present ...presenter) *sseClient {
	c.t.Helper()
	res, events, hangUp := c.get(present...)
	if res.StatusCode != 200 {
		c.t.Fatalf("GET: %s", res.Status)
	}
	asked := res.Request.URL
	e := wantEvent(c.t, events)
	if e.name != "endpoint" || !strings.HasPrefix(e.data, asked.Path+"?sessionId=") ||
		strings.Contains(e.data, "claim") {
		c.t.Fatalf("the first event: %+v", e)
	}
	where, err := asked.Parse(e.data)
	must(c.t, err)
	c.URL = where.String()
	return &sseClient{c, events, hangUp}
}

// ask makes a request whose answer comes on the stream, maybe after others.
func (c *sseClient) ask(method, params string) json.RawMessage {
	c.t.Helper()
	text := c.message(method, params)
	if a := c.post(text); a.Status != 202 || a.Body != "" {
		c.t.Fatalf("%s: %d %s", method, a.Status, a.Body)
	}
	for {
		msg := wantEvent(c.t, c.events).msg()
		if string(field(msg, "id")) == string(field(text, "id")) {
			return msg
		}
	}
}

// startStdio runs usher stdio over a workspace; messages go in and out by the pipes.
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

func setHeader(name string, values ...string) presenter {
	return func(r *http.Request) { r.Header[http.CanonicalHeaderKey(name)] = values }
}

func rpcText(method, params string) string { return rpcAs("1", method, params) }

// rpcAs is rpcText for a request with an id, which is JSON.
func rpcAs(id, method, params string) string {
	return `{"jsonrpc":"2.0","id":` + id + `,"method":"` + method + `","params":` + params + `}`
}

const changedTools = "notifications/tools/list_changed"

const bothKinds = "application/json, text/event-stream"
