// Clients that can be asked, over each transport, and the requests that modules make to them.

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// askState returns the state of an answer, which must ask for n things.
func askState(t *testing.T, a answer, n int) string {
	t.Helper()
	requests := members(field(a.result(), "inputRequests"))
	state := stringField(a.result(), "requestState")
	if a.Status != 200 || stringField(a.result(), "resultType") != resultInput ||
		len(requests) != n || state == "" {
		t.Fatalf("want %d questions: %d %s", n, a.Status, a.Body)
	}
	return state
}

// goOn returns the params of a request that continues a call.
func goOn(params, state, responses string) string {
	list := objectOf(params)
	return string(append(list, withState(state, responses)...).encode())
}

const askAllCaps = `{"roots":{},"sampling":{"tools":{}},"elicitation":{"form":{},"url":{}}}`

// askKind is a kind of request that a client can be asked. In params and answer, WORD is replaced
// by the word of a test.
type askKind struct{ name, method, params, answer string }

var askKinds = []askKind{
	{
		name:   "sampling",
		method: "sampling/createMessage",
		params: `{"messages":[{"role":"user","content":{"type":"text","text":"WORD"}}],"maxTokens":9}`,
		answer: `{"role":"assistant","content":{"type":"text","text":"WORD"},"model":"m"}`,
	},
	{
		name:   "form",
		method: "elicitation/create",
		params: `{"message":"WORD","requestedSchema":{"type":"object","properties":{}}}`,
		answer: `{"action":"accept","content":{"word":"WORD"}}`,
	},
	{
		name:   "url",
		method: "elicitation/create",
		params: `{"mode":"url","message":"WORD","url":"https://example.com/WORD","elicitationId":"WORD"}`,
		answer: `{"action":"accept","_meta":{"word":"WORD"}}`,
	},
	{
		name:   "roots",
		method: "roots/list",
		params: `{}`,
		answer: `{"roots":[{"uri":"file:///WORD"}]}`,
	},
}

// askFor returns a request of a kind that contains a word.
func askFor(kind, word string) fakeWish {
	for _, k := range askKinds {
		if k.name == kind {
			return fakeWish{k.method,
				json.RawMessage(strings.ReplaceAll(k.params, "WORD", word))}
		}
	}
	panic(kind)
}

// askForms returns arguments of the tool ask that ask for a form with each word; the first word is the mark.
func askForms(words ...string) fakeAsk {
	ask := fakeAsk{Mark: words[0]}
	for _, word := range words {
		ask.Asks = append(ask.Asks, askFor("form", word))
	}
	return ask
}

// askAnswer returns a client's way to answer: each answer contains a word.
func askAnswer(word string) func(string, json.RawMessage) json.RawMessage {
	return func(method string, params json.RawMessage) json.RawMessage {
		for _, k := range askKinds {
			if k.method == method &&
				(k.name == "url") == (stringField(params, "mode") == "url") {
				return json.RawMessage(strings.ReplaceAll(k.answer, "WORD", word))
			}
		}
		return nil
	}
}

func askSilent(string, json.RawMessage) json.RawMessage { return nil }

// askGot parses a result of the tool ask: the process that asked, and the answers it got.
func askGot(msg json.RawMessage) (pid int, got []string, text string) {
	text = resultText(members(field(msg, "result")))
	var list []json.RawMessage
	if json.Unmarshal([]byte(text), &list) != nil || len(list) == 0 {
		return 0, nil, string(msg)
	}
	pid, _ = strconv.Atoi(string(list[0]))
	for _, answer := range list[1:] {
		got = append(got, string(answer))
	}
	return pid, got, text
}

// checkGot checks that the tool ask got one answer for each of wants, which contains it.
func checkGot(t *testing.T, what string, msg json.RawMessage, wants ...string) {
	t.Helper()
	_, got, text := askGot(msg)
	if len(got) != len(wants) {
		t.Errorf("%s: the module got %d answers, want %d: %s", what, len(got), len(wants), text)
		return
	}
	for i, want := range wants {
		checkContains(t, what, got[i], want)
	}
}

// callParams returns the params of a tools/call.
func callParams(tool string, arguments any) json.RawMessage {
	return object{{"name", quote(tool)}, {"arguments", marshal(arguments)}}.encode()
}

// startCall calls a tool in a session. The answer arrives on the channel.
func (c *askClient) startCall(tool string, ask fakeAsk) (id string, answer <-chan json.RawMessage) {
	id = c.nextID()
	return id, c.send(c.t.Context(), id, "tools/call", string(callParams(tool, ask)))
}

// cancelCall cancels a call of the client's session.
func (c *askClient) cancelCall(id string) {
	c.t.Helper()
	params := object{{"requestId", json.RawMessage(id)}}
	must(c.t, c.post(c.t.Context(), encodeRequest(nil, "notifications/cancelled", params)))
}

// listen opens the session's notification stream and takes its messages.
func (c *askClient) listen() {
	c.t.Helper()
	events, _ := c.http.listen()
	go c.takeAll(events)
}

// takeAll takes the messages of a stream, to its end.
func (c *askClient) takeAll(events <-chan event) {
	for e := range events {
		c.takeEvent(e)
	}
}

func (c *askClient) takeEvent(e event) {
	if e.data != "" {
		c.take(e.msg())
	}
}

// forgetAsked drops the requests to the client so far.
func (c *askClient) forgetAsked() {
	for len(c.asked) > 0 {
		<-c.asked
	}
}

// askClient is a client that can be asked, of any revision and transport.
type askClient struct {
	t      *testing.T
	asked  chan json.RawMessage // each request to the client
	http   *testClient          // nil on stdio
	meta   string               // the capabilities in modern requests; "" for a client with a session
	name   string               // of the client program, in modern requests
	hangUp func()               // ends its stream

	// answer returns a result, or an object with an error; nil for none.
	answer func(method string, params json.RawMessage) json.RawMessage
	// post sends a message, and takes in what comes back of it.
	post func(ctx context.Context, msg []byte) error

	mu    sync.Mutex
	id    int
	wait  map[string]chan json.RawMessage // for answers, by id
	heard []json.RawMessage               // notifications
}

// newAskClient returns a client for a URL, "" for stdio, which presents a code, "" for
// none.
func newAskClient(t *testing.T, url, code string) *askClient {
	c := &askClient{
		t:      t,
		answer: askAnswer("none"),
		asked:  make(chan json.RawMessage, 2000),
		name:   "test",
		wait:   make(map[string]chan json.RawMessage),
	}
	if url != "" {
		c.http = newClient(t, url)
	}
	if code != "" {
		c.http.Header.Set(claimHeader, code)
	}
	return c
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
			body := encodeResult(id, members(answer))
			if e := field(answer, "error"); e != nil {
				body = members(body).without("result").set("error", e).encode()
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
			missing := func(word string) bool { return !strings.Contains(string(msg), word) }
			return stringField(msg, "method") == method && !slices.ContainsFunc(words, missing)
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
		err := c.post(ctx, encodeRequest(json.RawMessage(id), method, objectOf(params)))
		if err != nil && ctx.Err() == nil {
			c.t.Errorf("%s: %v", method, err)
		}
	}()
	return wait
}

// call calls a tool, and answers what is asked meanwhile. It returns the message
// that is the answer.
func (c *askClient) call(tool string, arguments any) json.RawMessage {
	c.t.Helper()
	params := callParams(tool, arguments)
	for range 100 {
		msg := c.callOnce(params)
		result := field(msg, "result")
		if stringField(result, "resultType") != resultInput {
			return msg
		}
		params = c.answered(params, result)
	}
	c.t.Error("asked without end")
	return nil
}

// callOnce makes one tools/call and returns its answer.
func (c *askClient) callOnce(params json.RawMessage) json.RawMessage {
	c.t.Helper()
	if c.meta != "" {
		return c.roundOf(params).last()
	}
	return c.get(c.send(c.t.Context(), c.nextID(), "tools/call", string(params)))
}

// roundOf makes one request of a client without a session over HTTP.
func (c *askClient) roundOf(params json.RawMessage) answer {
	c.t.Helper()
	a, err := c.http.try(c.http.modernPOST(c.nextID(), "tools/call", string(c.modern(params))))
	if err != nil {
		c.t.Errorf("POST: %v", err)
	}
	for _, msg := range a.Events[:max(len(a.Events)-1, 0)] {
		c.take(msg)
	}
	return a
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
	return setMeta(params, metaClientInfo,
		object{{"name", quote(c.name)}, {"version", quote("1")}}.encode())
}

// answered is params with answers to what a result asks.
func (c *askClient) answered(params, result json.RawMessage) json.RawMessage {
	requests := members(field(result, "inputRequests"))
	var responses object
	for _, r := range requests {
		c.asked <- r.value
		if answer := c.answer(stringField(r.value, "method"),
			field(r.value, "params")); answer != nil {
			responses = append(responses, member{r.key, answer})
		}
	}
	params = withMember(params, "inputResponses", responses.encode())
	return withMember(params, "requestState", field(result, "requestState"))
}

// round makes one request to call a tool, as a client without a session does.
func (c *askClient) round(tool string, arguments any, more ...member) answer {
	c.t.Helper()
	return c.roundOf(append(members(callParams(tool, arguments)), more...).encode())
}

// askOverPOST is a client with a session of a version over streamable HTTP.
func askOverPOST(t *testing.T, url, version, caps, code string) *askClient {
	c := newAskClient(t, url, code)
	c.http.begin(initializeWith(version, caps))
	c.http.post(initialized)
	c.post = func(ctx context.Context, msg []byte) error {
		res, err := c.http.http.Do(c.http.request("POST",
			string(msg)).WithContext(ctx))
		if err != nil {
			return err
		}
		defer res.Body.Close()
		if strings.HasPrefix(res.Header.Get("Content-Type"), "text/event-stream") {
			readEvents(res.Body, c.takeEvent)
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
	c := newAskClient(t, url, code)
	c.meta = caps
	return c
}

// askOverSSE is a client of HTTP+SSE.
func askOverSSE(t *testing.T, url, _, caps string) *askClient {
	c := newAskClient(t, url, "")
	sse := c.http.openSSE()
	c.hangUp = sse.hangUp
	go c.takeAll(sse.events)
	c.post = func(ctx context.Context, msg []byte) error {
		a, err := c.http.try(c.http.request("POST", string(msg)).WithContext(ctx))
		if err == nil && a.Status != 202 {
			err = fmt.Errorf("%d %s", a.Status, a.Body)
		}
		return err
	}
	c.initialize("2024-11-05", caps)
	return c
}

// initialize sends initialize, and waits for the answer.
func (c *askClient) initialize(version, caps string) {
	params := field(initializeWith(version, caps), "params")
	c.get(c.send(c.t.Context(), c.nextID(), "initialize", string(params)))
}

// askOverStdio is a client with a session on stdio.
func askOverStdio(t *testing.T, _, dir, caps string) *askClient {
	c := newAskClient(t, "", "")
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
	c.initialize("2025-11-25", caps)
	return c
}

// askWay begins a client of the daemon at a URL or, on stdio, of a workspace.
type askWay func(t *testing.T, url, dir, caps string) *askClient

// askWays are the clients that there are.
var askWays = map[string]askWay{
	"2025-11-25": askInSession("2025-11-25"),
	"2025-06-18": askInSession("2025-06-18"),
	"2025-03-26": askInSession("2025-03-26"),
	"HTTP+SSE":   askOverSSE,
	"2026-07-28": func(t *testing.T, url, _, caps string) *askClient {
		return askModern(t, url, caps, "")
	},
	"stdio": askOverStdio,
}

func askInSession(version string) askWay {
	return func(t *testing.T, url, _, caps string) *askClient {
		return askOverPOST(t, url, version, caps, "")
	}
}
