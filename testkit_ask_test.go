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
	requests := members(field(a.Result(), "inputRequests"))
	state := stringField(a.Result(), "requestState")
	if a.Status != 200 || stringField(a.Result(), "resultType") != resultInput ||
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

// askAnswer returns a client's way to answer: each answer contains a word.
func askAnswer(word string) func(string, json.RawMessage) json.RawMessage {
	return func(method string, params json.RawMessage) json.RawMessage {
		for _, k := range askKinds {
			if k.Method == method &&
				(k.Name == "url") == (stringField(params, "mode") == "url") {
				return json.RawMessage(strings.ReplaceAll(k.Answer, "WORD", word))
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
func (c *askClient) StartCall(tool string, ask fakeAsk) (id string, answer <-chan json.RawMessage) {
	id = c.nextID()
	return id, c.send(c.t.Context(), id, "tools/call", string(callParams(tool, ask)))
}

// cancelCall cancels a call of the client's session.
func (c *askClient) CancelCall(id string) {
	c.t.Helper()
	params := object{{"requestId", json.RawMessage(id)}}
	must(c.t, c.post(c.t.Context(), encodeRequest(nil, "notifications/cancelled", params)))
}

// listen opens the session's notification stream and takes its messages.
func (c *askClient) Listen() {
	c.t.Helper()
	events, _ := c.HTTP.Listen()
	go c.takeAll(events)
}

// takeAll takes the messages of a stream, to its end.
func (c *askClient) takeAll(events <-chan event) {
	for e := range events {
		c.takeEvent(e)
	}
}

func (c *askClient) takeEvent(e event) {
	if e.Data != "" {
		c.take(e.Msg())
	}
}

// forgetAsked drops the requests to the client so far.
func (c *askClient) ForgetAsked() {
	for len(c.Asked) > 0 {
		<-c.Asked
	}
}

// askClient is a client that can be asked, of any revision and transport.
type askClient struct {
	t      *testing.T
	Asked  chan json.RawMessage // each request to the client
	HTTP   *testClient          // nil on stdio
	Meta   string               // the capabilities in modern requests; "" for a client with a session
	Name   string               // of the client program, in modern requests
	HangUp func()               // ends its stream

	// answer returns a result, or an object with an error; nil for none.
	Answer func(method string, params json.RawMessage) json.RawMessage
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
		Answer: askAnswer("none"),
		Asked:  make(chan json.RawMessage, 2000),
		Name:   "test",
		wait:   make(map[string]chan json.RawMessage),
	}
	if url != "" {
		c.HTTP = newClient(t, url)
	}
	if code != "" {
		c.HTTP.Header.Set(claimHeader, code)
	}
	return c
}

// take takes one message from usher.
func (c *askClient) take(msg json.RawMessage) {
	id, method := field(msg, "id"), stringField(msg, "method")
	switch {
	case method != "" && id != nil:
		c.Asked <- msg
		answer := c.Answer(method, field(msg, "params"))
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
func (c *askClient) Hears(method string, words ...string) {
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
func (c *askClient) Call(tool string, arguments any) json.RawMessage {
	c.t.Helper()
	params := callParams(tool, arguments)
	for range 100 {
		msg := c.CallOnce(params)
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
func (c *askClient) CallOnce(params json.RawMessage) json.RawMessage {
	c.t.Helper()
	if c.Meta != "" {
		return c.roundOf(params).Last()
	}
	return c.Get(c.send(c.t.Context(), c.nextID(), "tools/call", string(params)))
}

// roundOf makes one request of a client without a session over HTTP.
func (c *askClient) roundOf(params json.RawMessage) answer {
	c.t.Helper()
	a, err := c.HTTP.Try(c.HTTP.ModernPOST(c.nextID(), "tools/call", string(c.modern(params))))
	if err != nil {
		c.t.Errorf("POST: %v", err)
	}
	for _, msg := range a.Events[:max(len(a.Events)-1, 0)] {
		c.take(msg)
	}
	return a
}

// get waits for an answer.
func (c *askClient) Get(wait <-chan json.RawMessage) json.RawMessage {
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
	params = setMeta(params, metaClientCaps, json.RawMessage(c.Meta))
	return setMeta(params, metaClientInfo,
		object{{"name", quote(c.Name)}, {"version", quote("1")}}.encode())
}

// answered is params with answers to what a result asks.
func (c *askClient) answered(params, result json.RawMessage) json.RawMessage {
	requests := members(field(result, "inputRequests"))
	var responses object
	for _, r := range requests {
		c.Asked <- r.value
		if answer := c.Answer(stringField(r.value, "method"),
			field(r.value, "params")); answer != nil {
			responses = append(responses, member{r.key, answer})
		}
	}
	params = withMember(params, "inputResponses", responses.encode())
	return withMember(params, "requestState", field(result, "requestState"))
}

// round makes one request to call a tool, as a client without a session does.
func (c *askClient) Round(tool string, arguments any, more ...member) answer {
	c.t.Helper()
	return c.roundOf(append(members(callParams(tool, arguments)), more...).encode())
}

// askOverPOST is a client with a session of a version over streamable HTTP.
func askOverPOST(t *testing.T, url, version, caps, code string) *askClient {
	c := newAskClient(t, url, code)
	c.HTTP.Begin(initializeWith(version, caps))
	c.HTTP.Post(initialized)
	c.post = func(ctx context.Context, msg []byte) error {
		res, err := c.HTTP.HTTP.Do(c.HTTP.Request("POST",
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
	c.Meta = caps
	return c
}

// askOverSSE is a client of HTTP+SSE.
func askOverSSE(t *testing.T, url, _, caps string) *askClient {
	c := newAskClient(t, url, "")
	sse := c.HTTP.OpenSSE()
	c.HangUp = sse.HangUp
	go c.takeAll(sse.Events)
	c.post = func(ctx context.Context, msg []byte) error {
		a, err := c.HTTP.Try(c.HTTP.Request("POST", string(msg)).WithContext(ctx))
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
	c.Get(c.send(c.t.Context(), c.nextID(), "initialize", string(params)))
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
