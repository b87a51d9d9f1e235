package mcptest

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// ClaimHeader is the header that presents a code.
const ClaimHeader = "Mcp-Claim-Code"

// Client is an MCP client over HTTP, in a session or without one. It checks that answers are JSON, and that
// none names a path of this machine.
type Client struct {
	T       *testing.T
	URL     string
	Session string
	Header  http.Header // sent with each request
	HTTP    *http.Client
	Paths   bool // answers may name paths
	id      atomic.Int64
}

const (
	// Initialize begins a session of a client without capabilities.
	Initialize = `{"jsonrpc":"2.0","id":"init","method":"initialize","params":{` +
		`"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"test","version":"1"}}}`
	// Initialized follows it.
	Initialized = `{"jsonrpc":"2.0","method":"notifications/initialized"}`
)

// InitializeWith begins a session of a version, by a client with these capabilities.
func InitializeWith(version, caps string) string {
	return strings.NewReplacer("2025-11-25", version, `"capabilities":{}`, `"capabilities":`+caps).
		Replace(Initialize)
}

// RPC returns a request. id and params are JSON.
func RPC(id, method, params string) string {
	return `{"jsonrpc":"2.0","id":` + id + `,"method":"` + method + `","params":` + params + `}`
}

// NewClient returns a client with connections of its own.
func NewClient(t *testing.T, url string) *Client {
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	return ClientOver(t, url, &http.Client{Transport: transport, Timeout: 2 * Patience})
}

// ClientOver returns a client with the connections of an HTTP client.
func ClientOver(t *testing.T, url string, over *http.Client) *Client {
	return &Client{T: t, URL: url, Header: http.Header{}, HTTP: over}
}

// Connect begins a session of the latest revision that has sessions.
func Connect(t *testing.T, url string) *Client {
	c, a := OpenSession(t, url)
	if b := c.Post(Initialized); c.Session == "" || b.Status != 202 {
		Stop(t, "initialize: %s, then %d %s", a.Body, b.Status, b.Body)
	}
	return c
}

// OpenSession tries to begin a session by a request that present changes.
func OpenSession(t *testing.T, url string, present ...Presenter) (*Client, Answer) {
	c := NewClient(t, url)
	return c, c.Begin(Initialize, present...)
}

// Begin sends initialize, and stays in the session that there is then.
func (c *Client) Begin(initialize string, present ...Presenter) Answer {
	a := c.Do(presented(c.Request("POST", initialize), present))
	c.Session = a.Header.Get("Mcp-Session-Id")
	return a
}

// Answer is the answer to a POST.
type Answer struct {
	Status int
	Header http.Header
	Body   string
	Events []json.RawMessage // the messages of a stream, or the one message
}

// WantStatus checks the status of an answer.
func WantStatus(t testing.TB, what string, a Answer, status int) {
	if a.Status != status {
		report(t, "%s: status %d, want %d: %.2000s", what, a.Status, status, a.Body)
	}
}

// Last returns the message that answers: the last one.
func (a Answer) Last() json.RawMessage {
	if len(a.Events) == 0 {
		return nil
	}
	return a.Events[len(a.Events)-1]
}

// Result returns the result, nil for none.
func (a Answer) Result() json.RawMessage { return Field(a.Last(), "result") }

// Text returns the text of a tool's result, or its structured content.
func (a Answer) Text() string { return resultText(a.Result()) }

// resultText returns the structured content of a tool's result or, without it, its blocks, one a line:
// their text or what they are.
func resultText(result json.RawMessage) string {
	if structured := Field(result, "structuredContent"); structured != nil {
		return string(structured)
	}
	var blocks []json.RawMessage
	json.Unmarshal(Field(result, "content"), &blocks)
	var lines []string
	for _, block := range blocks {
		if text := Field(block, "text"); text != nil {
			lines = append(lines, StringField(block, "text"))
		} else {
			lines = append(lines, string(block))
		}
	}
	return strings.Join(lines, "\n")
}

// Failure returns the message of a JSON-RPC error, or of a result that is an error.
func (a Answer) Failure() string {
	if e := Field(a.Last(), "error"); e != nil {
		return StringField(e, "message")
	}
	if string(Field(a.Result(), "isError")) == "true" {
		return a.Text()
	}
	return ""
}

// ToolNames returns the names in the result of tools/list, separated by blanks, or the status of a
// refusal.
func (a Answer) ToolNames() string {
	if a.Status != 200 {
		return fmt.Sprint(a.Status)
	}
	var list struct{ Tools []fakeTool }
	json.Unmarshal(a.Result(), &list)
	var names []string
	for _, tool := range list.Tools {
		names = append(names, tool.Name)
	}
	return strings.Join(names, " ")
}

// Request returns a request with the client's session.
func (c *Client) Request(method, body string) *http.Request {
	req, err := http.NewRequest(method, c.URL, strings.NewReader(body))
	Must(c.T, err)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	if c.Session != "" {
		req.Header.Set("Mcp-Session-Id", c.Session)
	}
	for k, v := range c.Header {
		req.Header[k] = v
	}
	return req
}

// GetRequest returns the request for the session's notification stream.
func (c *Client) GetRequest() *http.Request {
	req := c.Request("GET", "")
	req.Header.Set("Accept", "text/event-stream")
	return req
}

// Post sends a message.
func (c *Client) Post(body string) Answer { return c.Do(c.Request("POST", body)) }

// Do makes a request.
func (c *Client) Do(req *http.Request) Answer {
	a, err := c.try(req)
	if err != nil {
		Stop(c.T, "%s: %v", req.Method, err)
	}
	return a
}

// try makes a request that may fail on its way.
func (c *Client) try(req *http.Request) (Answer, error) {
	res, err := c.HTTP.Do(req)
	if err != nil {
		return Answer{}, err
	}
	defer res.Body.Close()
	a := Answer{Status: res.StatusCode, Header: res.Header}
	var body bytes.Buffer
	err = readMessages(res, io.TeeReader(res.Body, &body), func(e Event) {
		a.Events = append(a.Events, e.Msg())
	})
	a.Body = body.String()
	here, _ := os.Getwd()
	home, _ := os.UserHomeDir()
	for _, dir := range []string{os.TempDir(), here, home} {
		if !c.Paths && len(dir) > 1 && strings.Contains(fmt.Sprint(a.Header, a.Body), dir+"/") {
			report(c.T, "an answer names %s: %.2000s", dir, a.Body)
		}
	}
	return a, err
}

// readMessages reads the messages of an answer, which is one or a stream of them.
func readMessages(res *http.Response, body io.Reader, take func(Event)) error {
	if strings.HasPrefix(res.Header.Get("Content-Type"), "text/event-stream") {
		return readEvents(body, take)
	}
	text, err := io.ReadAll(body)
	text = bytes.TrimSpace(text)
	if len(text) > 0 {
		take(Event{Data: string(text)})
	}
	if err == nil && len(text) > 0 && res.Header.Get("Content-Type") == "application/json" &&
		!json.Valid(text) {
		return fmt.Errorf("the answer is no JSON: %.2000s", string(text))
	}
	return err
}

// Ask makes a request; params are JSON, "" for none.
func (c *Client) Ask(method, params string) Answer {
	return c.Post(c.Message(method, params))
}

// Asking returns a request by POST.
func (c *Client) Asking(method, params string) *http.Request {
	return c.Request("POST", c.Message(method, params))
}

// Message returns a request with the next id.
func (c *Client) Message(method, params string) string {
	return RPC(fmt.Sprint(c.id.Add(1)), method, cmp.Or(params, "{}"))
}

// Call calls a tool; arguments are JSON, "" for none.
func (c *Client) Call(tool, arguments string) Answer {
	if arguments != "" {
		arguments = `,"arguments":` + arguments
	}
	return c.Ask("tools/call", `{"name":`+string(encode(tool))+arguments+`}`)
}

// Cancel cancels the request with an id, which is JSON.
func (c *Client) Cancel(id string) { c.Post(cancellation(id)) }

func cancellation(id string) string {
	return `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":` + id + `}}`
}

// AwaitText waits until a call of a tool returns a text.
func (c *Client) AwaitText(tool, arguments, want string) {
	Await(c.T, tool+" to return "+want, func() bool { return c.Call(tool, arguments).Text() == want })
}

// End ends the session.
func (c *Client) End() { WantStatus(c.T, "DELETE", c.Do(c.Request("DELETE", "")), 204) }

// Tools returns the names of the tools that there are.
func (c *Client) Tools() []string { return strings.Fields(ListTools(c)) }

// AwaitTools waits until the client sees these tools.
func (c *Client) AwaitTools(want ...string) {
	list := strings.Join(want, " ")
	Await(c.T, "the tools "+list, func() bool { return ListTools(c) == list })
}

// ListTools returns the tools that a request which present changes sees, or its status.
func ListTools(c *Client, present ...Presenter) string {
	return c.Do(presented(c.Asking("tools/list", ""), present)).ToolNames()
}

// ModernMeta is the _meta of each request of 2026-07-28.
const ModernMeta = `"io.modelcontextprotocol/protocolVersion":"2026-07-28",` +
	`"io.modelcontextprotocol/clientInfo":{"name":"test","version":"1"},` +
	`"io.modelcontextprotocol/clientCapabilities":{}`

// ModernPOST returns a request of 2026-07-28 that keeps to all rules. It keeps the members of the params'
// own _meta.
func (c *Client) ModernPOST(id, method, params string) *http.Request {
	meta := members(json.RawMessage("{" + ModernMeta + "}"))
	maps.Copy(meta, members(Field(params, "_meta")))
	full := with(json.RawMessage(params), "_meta", encode(meta))
	req := c.Request("POST", RPC(id, method, string(full)))
	req.Header.Set("Mcp-Protocol-Version", latest)
	req.Header.Set("Mcp-Method", method)
	if name := StringField(full, "name") + StringField(full, "uri"); name != "" {
		req.Header.Set("Mcp-Name", name)
	}
	return req
}

// Modern makes such a request, changed by present.
func (c *Client) Modern(method, params string, present ...Presenter) Answer {
	return c.Do(presented(c.ModernPOST("1", method, params), present))
}

// Presenter changes a request, mostly so that it presents a code.
type Presenter = func(*http.Request)

// InHeader presents a code in the header, as most tests do.
func InHeader(code string) Presenter { return SetHeader(ClaimHeader, code) }

// InQuery presents a code in the URL.
func InQuery(code string) Presenter {
	return func(r *http.Request) { r.URL.RawQuery = "claim=" + code }
}

// SetHeader sets the values of a header.
func SetHeader(name string, values ...string) Presenter {
	return func(r *http.Request) { r.Header[http.CanonicalHeaderKey(name)] = values }
}

// PresentAll does what each of present does.
func PresentAll(present ...Presenter) Presenter {
	return func(r *http.Request) { presented(r, present) }
}

// presented returns a request after its changes.
func presented(req *http.Request, present []Presenter) *http.Request {
	for _, p := range present {
		p(req)
	}
	return req
}

// SetHeaders sets lines of "Name: value", or takes "Name:" away.
func SetHeaders(req *http.Request, lines string) {
	for line := range strings.Lines(lines) {
		name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ":")
		if req.Header.Del(name); value != "" {
			req.Header.Set(name, strings.TrimPrefix(value, " "))
		}
	}
}

// Event is one event of a stream.
type Event struct{ ID, Name, Data string }

// Msg returns the message of an event.
func (e Event) Msg() json.RawMessage { return json.RawMessage(e.Data) }

// readEvents reads the events of a stream that have a message, to its end.
func readEvents(stream io.Reader, take func(Event)) error {
	var e Event
	fields := map[string]*string{"id": &e.ID, "event": &e.Name, "data": &e.Data}
	lines := bufio.NewScanner(stream)
	lines.Buffer(nil, 128<<20)
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), ":")
		if field := fields[name]; field != nil {
			*field = strings.TrimPrefix(value, " ")
		} else if lines.Text() == "" && e.Data != "" {
			take(e)
			e = Event{}
		}
	}
	return lines.Err()
}

// OpenStream opens a stream. Its events arrive on the channel, which is closed at its end.
func OpenStream(t *testing.T, req *http.Request) (res *http.Response, events <-chan Event, hangUp func()) {
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := client.Do(req.WithContext(ctx))
	Must(t, err)
	out := make(chan Event, 10_000)
	go func() {
		defer close(out)
		defer res.Body.Close()
		readEvents(res.Body, func(e Event) { out <- e })
	}()
	return res, out, cancel
}

// nextEvent returns the next event, or false at the end.
func nextEvent(t *testing.T, events <-chan Event) (e Event, ok bool) {
	select {
	case e, ok = <-events:
	case <-time.After(Patience):
		Stop(t, "gave up waiting for a message on a stream")
	}
	return e, ok
}

// RemainingEvents returns the events until the stream's end.
func RemainingEvents(t *testing.T, events <-chan Event) (list []Event) {
	for e, ok := nextEvent(t, events); ok; e, ok = nextEvent(t, events) {
		list = append(list, e)
	}
	return list
}

// WantEvent returns the next event, which must contain these texts.
func WantEvent(t *testing.T, events <-chan Event, want ...string) Event {
	e, ok := nextEvent(t, events)
	if !ok {
		Stop(t, "the stream ended before %v", want)
	}
	for _, w := range want {
		if !strings.Contains(e.Data, w) {
			Stop(t, "the stream says %s, want %s", e.Data, w)
		}
	}
	return e
}

// Hear waits for a notification on a stream.
func Hear(t *testing.T, events <-chan Event, method string) json.RawMessage {
	for {
		if msg := WantEvent(t, events).Msg(); StringField(msg, "method") == method {
			return msg
		}
	}
}

// open opens a stream, whose answer must be one.
func (c *Client) open(req *http.Request) (*http.Response, <-chan Event, func()) {
	res, events, hangUp := OpenStream(c.T, req)
	if res.StatusCode != 200 || res.Header.Get("Content-Type") != "text/event-stream" {
		Stop(c.T, "%s: %s, %s", req.Method, res.Status, res.Header.Get("Content-Type"))
	}
	return res, events, hangUp
}

// Listen opens the session's notification stream.
func (c *Client) Listen() (events <-chan Event, hangUp func()) {
	_, events, hangUp = c.open(c.GetRequest())
	return events, hangUp
}

// SSEClient is a client of HTTP+SSE.
type SSEClient struct {
	*Client
	Events <-chan Event
	HangUp func()
}

// ConnectSSE opens a stream, by a request that present changes.
func ConnectSSE(t *testing.T, url string, present ...Presenter) *SSEClient {
	return NewClient(t, url).openSSE(present...)
}

func (c *Client) openSSE(present ...Presenter) *SSEClient {
	res, events, hangUp := c.open(presented(c.GetRequest(), present))
	asked := res.Request.URL
	e := WantEvent(c.T, events)
	if e.Name != "endpoint" || !strings.HasPrefix(e.Data, asked.Path+"?sessionId=") ||
		strings.Contains(e.Data, "claim") {
		Stop(c.T, "the first event: %+v", e)
	}
	where, err := asked.Parse(e.Data)
	Must(c.T, err)
	c.URL = where.String()
	return &SSEClient{c, events, hangUp}
}
