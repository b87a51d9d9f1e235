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
	T       *testing.T
	URL     string
	Session string
	Header  http.Header // sent with each request
	HTTP    *http.Client
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
	return &testClient{T: t, URL: url, Header: http.Header{}, HTTP: over}
}

// newStateless returns a client that never sends initialize.
func newStateless(t *testing.T, url string) *testClient {
	c := newClient(t, url)
	c.HTTP.Transport = spy{t}
	return c
}

// connect begins a session of the latest revision that has sessions.
func connect(t *testing.T, url string) *testClient {
	t.Helper()
	c := newClient(t, url)
	c.Begin(initialize)
	if c.Session == "" {
		t.Fatal("initialize: no session")
	}
	if a := c.Post(initialized); a.Status != 202 {
		t.Fatalf("initialized: %d %s", a.Status, a.Body)
	}
	return c
}

// connectAs begins a session of a version, by a request that present changes.
func connectAs(t *testing.T, url, version string, present ...presenter) *testClient {
	t.Helper()
	c := newStateless(t, url)
	if a := c.Begin(initializeAs(version), present...); c.Session == "" {
		t.Fatalf("initialize with %s: %d %s", version, a.Status, a.Body)
	}
	return c
}

// openSession tries to begin a session by a request that present changes.
func openSession(t *testing.T, url string, present ...presenter) (*testClient, answer) {
	t.Helper()
	c := newStateless(t, url)
	return c, c.Begin(initialize, present...)
}

// begin sends initialize, and stays in the session that there is then.
func (c *testClient) Begin(initialize string, present ...presenter) answer {
	c.T.Helper()
	req := c.Request("POST", initialize)
	presentAll(present...)(req)
	a := c.Do(req)
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
func (a answer) Last() json.RawMessage {
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
func (a answer) Result() json.RawMessage { return field(a.Last(), "result") }

// text returns the text of a tool's result.
func (a answer) Text() string { return resultText(members(a.Result())) }

// failure returns the message of a JSON-RPC error, or of a result that is an error.
func (a answer) Failure() string {
	if e := field(a.Last(), "error"); e != nil {
		return stringField(e, "message")
	}
	if string(field(a.Result(), "isError")) == "true" {
		return a.Text()
	}
	return ""
}

// toolNames returns the names in the result of tools/list, separated by blanks, or the
// status of a refusal.
func (a answer) ToolNames() string {
	if a.Status != 200 {
		return fmt.Sprint(a.Status)
	}
	var list struct{ Tools []struct{ Name string } }
	json.Unmarshal(a.Result(), &list)
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
func (c *testClient) Request(method, body string) *http.Request {
	req, err := http.NewRequest(method, c.URL, strings.NewReader(body))
	must(c.T, err)
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

func (c *testClient) Post(body string) answer {
	c.T.Helper()
	return c.Do(c.Request("POST", body))
}

func (c *testClient) Do(req *http.Request) answer {
	c.T.Helper()
	a, err := c.Try(req)
	if err != nil {
		c.T.Fatalf("%s: %v", req.Method, err)
	}
	return a
}

// try makes a request that may fail on its way.
func (c *testClient) Try(req *http.Request) (answer, error) {
	res, err := c.HTTP.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	a := answer{Status: res.StatusCode, Header: res.Header, Body: string(body)}
	if strings.HasPrefix(res.Header.Get("Content-Type"), "text/event-stream") {
		readEvents(strings.NewReader(a.Body), func(e event) {
			if e.Data != "" {
				a.Events = append(a.Events, e.Msg())
			}
		})
	} else if len(body) > 0 {
		a.Events = []json.RawMessage{bytes.TrimSpace(body)}
	}
	return a, err
}

// ask makes a request; params are JSON, "" for none.
func (c *testClient) Ask(method, params string) answer {
	c.T.Helper()
	return c.Post(c.Message(method, params))
}

// asking returns a request by POST.
func (c *testClient) Asking(method, params string) *http.Request {
	return c.Request("POST", c.Message(method, params))
}

// cancel cancels the request with an id, which is JSON.
func (c *testClient) Cancel(id string) {
	c.T.Helper()
	c.Post(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":` + id + `}}`)
}

// awaitText waits until a call of a tool returns a text.
func (c *testClient) AwaitText(tool, arguments, want string) {
	c.T.Helper()
	await(c.T, tool+" to return "+want, func() bool { return c.Call(tool, arguments).Text() == want })
}

func (c *testClient) Message(method, params string) string {
	c.mu.Lock()
	c.id++
	id := c.id
	c.mu.Unlock()
	return string(encodeRequest(json.RawMessage(fmt.Sprint(id)), method, objectOf(params)))
}

// call calls a tool; arguments are JSON, "" for none.
func (c *testClient) Call(tool, arguments string) answer {
	c.T.Helper()
	params := object{{"name", quote(tool)}}
	if arguments != "" {
		params = append(params, member{"arguments", json.RawMessage(arguments)})
	}
	return c.Ask("tools/call", string(params.encode()))
}

// end ends the session.
func (c *testClient) End() {
	c.T.Helper()
	if a := c.Do(c.Request("DELETE", "")); a.Status != 204 {
		c.T.Errorf("DELETE: %d %s", a.Status, a.Body)
	}
}

// tools returns the names of the tools that there are.
func (c *testClient) Tools() []string {
	c.T.Helper()
	a := c.Ask("tools/list", "")
	if a.Result() == nil {
		c.T.Fatalf("tools/list: %d %s", a.Status, a.Body)
	}
	return strings.Fields(a.ToolNames())
}

// awaitTools waits until the client sees these tools.
func (c *testClient) AwaitTools(want ...string) {
	c.T.Helper()
	await(c.T, fmt.Sprintf("the tools %v", want), func() bool {
		return strings.Join(c.Tools(), " ") == strings.Join(want, " ")
	})
}

// listTools returns the tools that a request of the session sees which present
// changes, or its status.
func listTools(c *testClient, present ...presenter) string {
	c.T.Helper()
	req := c.Asking("tools/list", "")
	presentAll(present...)(req)
	return c.Do(req).ToolNames()
}

// sees is listTools for a client without a session.
func (c *testClient) Sees(present ...presenter) string {
	c.T.Helper()
	return c.Modern("tools/list", "", present...).ToolNames()
}

// modernMeta is the _meta of each request of 2026-07-28.
const modernMeta = `"io.modelcontextprotocol/protocolVersion":"2026-07-28",` +
	`"io.modelcontextprotocol/clientInfo":{"name":"test","version":"1"},` +
	`"io.modelcontextprotocol/clientCapabilities":{}`

// modernPOST returns a request of 2026-07-28 that keeps to all rules. It keeps the
// members of the params' own _meta.
func (c *testClient) ModernPOST(id, method, params string) *http.Request {
	c.T.Helper()
	meta := objectOf("{" + modernMeta + "}")
	for _, own := range members(field(params, "_meta")) {
		meta = meta.set(own.key, own.value)
	}
	full := objectOf(params).set("_meta", meta.encode())
	req := c.Request("POST", string(encodeRequest(json.RawMessage(id), method, full)))
	req.Header.Set(protocolHeader, statelessProtocol)
	req.Header.Set(methodHeader, method)
	if name := full.text("name") + full.text("uri"); name != "" {
		req.Header.Set(nameHeader, name)
	}
	return req
}

// modern makes such a request, changed by present.
func (c *testClient) Modern(method, params string, present ...presenter) answer {
	c.T.Helper()
	req := c.ModernPOST("1", method, params)
	presentAll(present...)(req)
	return c.Do(req)
}

// modernListen opens a subscriptions/listen, whose first message must be that
// it is honoured as wanted.
func (c *testClient) ModernListen(
	id, filter, honoured string, present ...presenter,
) (<-chan event, func()) {
	c.T.Helper()
	req := c.ModernPOST(id, "subscriptions/listen", `{"notifications":`+filter+`}`)
	presentAll(present...)(req)
	res, events, hangUp := openStream(c.T, req)
	if res.StatusCode != 200 ||
		!strings.HasPrefix(res.Header.Get("Content-Type"), "text/event-stream") {
		c.T.Fatalf("listen: %s", res.Status)
	}
	wantEvent(c.T, events, `"method":"notifications/subscriptions/acknowledged"`,
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
	ID, Name, Data string
}

func (e event) Msg() json.RawMessage { return json.RawMessage(e.Data) }

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
			e.ID = value
		case key == "event":
			e.Name = value
		case key == "data":
			e.Data = value
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
			if !ok || e.Data != "" {
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
		if !strings.Contains(e.Data, w) {
			t.Fatalf("the stream says %s, want %s", e.Data, w)
		}
	}
	return e
}

// get opens a stream by a GET that present changes.
func (c *testClient) Get(present ...presenter) (*http.Response, <-chan event, func()) {
	c.T.Helper()
	req := c.GetRequest()
	presentAll(present...)(req)
	return openStream(c.T, req)
}

// listen opens the session's notification stream.
func (c *testClient) Listen() (events <-chan event, hangUp func()) {
	c.T.Helper()
	res, events, hangUp := c.Get()
	if res.StatusCode != 200 {
		c.T.Fatalf("GET: %s", res.Status)
	}
	return events, hangUp
}

// hear waits for a notification on a stream.
func hear(t *testing.T, events <-chan event, method string) json.RawMessage {
	t.Helper()
	for {
		if msg := wantEvent(t, events).Msg(); stringField(msg, "method") == method {
			return msg
		}
	}
}

// sseClient is a client of HTTP+SSE.
type sseClient struct {
	*testClient
	Events <-chan event
	HangUp func()
}

// connectSSE opens a stream, by a request that present changes.
func connectSSE(t *testing.T, url string, present ...presenter) *sseClient {
	t.Helper()
	return newStateless(t, url).OpenSSE(present...)
}

func (c *testClient) OpenSSE(present ...presenter) *sseClient {
	c.T.Helper()
	res, events, hangUp := c.Get(present...)
	if res.StatusCode != 200 {
		c.T.Fatalf("GET: %s", res.Status)
	}
	asked := res.Request.URL
	e := wantEvent(c.T, events)
	if e.Name != "endpoint" || !strings.HasPrefix(e.Data, asked.Path+"?sessionId=") ||
		strings.Contains(e.Data, "claim") {
		c.T.Fatalf("the first event: %+v", e)
	}
	where, err := asked.Parse(e.Data)
	must(c.T, err)
	c.URL = where.String()
	return &sseClient{c, events, hangUp}
}

// ask makes a request whose answer comes on the stream, maybe after others.
func (c *sseClient) Ask(method, params string) json.RawMessage {
	c.T.Helper()
	text := c.Message(method, params)
	if a := c.Post(text); a.Status != 202 || a.Body != "" {
		c.T.Fatalf("%s: %d %s", method, a.Status, a.Body)
	}
	for {
		msg := wantEvent(c.T, c.Events).Msg()
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
