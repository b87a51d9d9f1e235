package mcptest

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// CallParams returns the params of a tools/call.
func CallParams(tool string, arguments any) json.RawMessage {
	raw, ok := arguments.(json.RawMessage)
	if !ok {
		raw = encode(arguments)
	}
	return json.RawMessage(`{"name":"` + tool + `","arguments":` + string(raw) + `}`)
}

// Resume returns params that continue a call: with its state, and with responses, "" for none.
func Resume(params, state, responses string) string {
	resumed := with(json.RawMessage(params), "requestState", encode(state))
	if responses != "" {
		resumed = with(resumed, "inputResponses", json.RawMessage(responses))
	}
	return string(resumed)
}

// AskClient is a client that can be asked, of any revision and transport.
type AskClient struct {
	T      *testing.T
	Asked  chan json.RawMessage // each request to the client
	Heard  chan json.RawMessage // each notification
	HTTP   *Client              // nil on stdio
	Meta   string               // the capabilities in modern requests; "" for a client with a session
	Name   string               // of the client program, in modern requests
	HangUp func()               // ends its stream

	// Answer returns a result, or an object with an error; nil for none.
	Answer func(method string, params json.RawMessage) json.RawMessage
	// post sends a message, and takes in what comes back of it.
	post func(ctx context.Context, msg []byte) error

	ids  atomic.Int64
	mu   sync.Mutex
	wait map[string]chan json.RawMessage // for answers, by id
}

// newAskClient returns a client for a URL, "" for stdio, which presents a code, "" for none.
func newAskClient(t *testing.T, url, code string) *AskClient {
	c := &AskClient{
		T:      t,
		Answer: accept,
		Asked:  make(chan json.RawMessage, 2000),
		Heard:  make(chan json.RawMessage, 2000),
		Name:   "test",
		wait:   make(map[string]chan json.RawMessage),
	}
	if url != "" {
		c.HTTP = NewClient(t, url)
	}
	if code != "" {
		c.HTTP.Header.Set(ClaimHeader, code)
	}
	return c
}

func accept(string, json.RawMessage) json.RawMessage { return json.RawMessage(`{"action":"accept"}`) }

// AskOverPOST returns a client with a session of a version over streamable HTTP.
func AskOverPOST(t *testing.T, url, version, caps, code string) *AskClient {
	c := newAskClient(t, url, code)
	c.HTTP.Begin(InitializeWith(version, caps))
	c.HTTP.Post(Initialized)
	c.post = func(ctx context.Context, msg []byte) error {
		res, err := c.HTTP.HTTP.Do(c.HTTP.Request("POST", string(msg)).WithContext(ctx))
		if err != nil {
			return err
		}
		defer res.Body.Close()
		return readMessages(res, res.Body, func(e Event) { c.take(e.Msg()) })
	}
	return c
}

// AskModern returns a client without a session.
func AskModern(t *testing.T, url, caps, code string) *AskClient {
	c := newAskClient(t, url, code)
	c.Meta = caps
	return c
}

// AskOverSSE returns a client of HTTP+SSE.
func AskOverSSE(t *testing.T, url, caps string) *AskClient {
	c := newAskClient(t, url, "")
	sse := c.HTTP.openSSE()
	c.HangUp = sse.HangUp
	go c.takeAll(sse.Events)
	c.post = func(ctx context.Context, msg []byte) error {
		a, err := c.HTTP.try(c.HTTP.Request("POST", string(msg)).WithContext(ctx))
		if err == nil && a.Status != 202 {
			err = fmt.Errorf("%d %s", a.Status, a.Body)
		}
		return err
	}
	c.initialize("2024-11-05", caps)
	return c
}

// AskOverPipes returns a client with a session over the stdin and stdout of a server.
func AskOverPipes(t *testing.T, in io.Writer, out *bufio.Reader, caps string) *AskClient {
	c := newAskClient(t, "", "")
	var writing sync.Mutex
	c.post = func(_ context.Context, msg []byte) error {
		writing.Lock()
		defer writing.Unlock()
		_, err := in.Write(append(msg, '\n'))
		return err
	}
	go func() {
		for {
			line, err := out.ReadBytes('\n')
			if err != nil {
				return
			}
			c.take(line)
		}
	}()
	c.initialize("2025-11-25", caps)
	return c
}

// initialize sends initialize, and waits for the answer.
func (c *AskClient) initialize(version, caps string) {
	_, answer := c.Send("initialize", Field(InitializeWith(version, caps), "params"))
	c.Get(answer)
}

// take takes one message from usher.
func (c *AskClient) take(raw json.RawMessage) {
	var msg message
	if err := json.Unmarshal(raw, &msg); err != nil || msg.Version != "2.0" {
		report(c.T, "the client gets %.2000s: %v", string(raw), err)
	}
	switch {
	case msg.Method != "" && msg.ID != nil:
		c.Asked <- raw
		if answer := c.Answer(msg.Method, msg.Params); answer != nil {
			go c.reply(msg.ID, answer) // the answer comes on another request
		}
	case msg.Method != "":
		c.Heard <- raw
	default:
		c.mu.Lock()
		wait := c.wait[string(msg.ID)]
		delete(c.wait, string(msg.ID))
		c.mu.Unlock()
		if wait != nil {
			wait <- raw
		}
	}
}

// reply sends an answer, which is a result or an object with an error.
func (c *AskClient) reply(id, answer json.RawMessage) {
	body := with(json.RawMessage(`{"jsonrpc":"2.0"}`), "id", id)
	if e := Field(answer, "error"); e != nil {
		body = with(body, "error", e)
	} else {
		body = with(body, "result", answer)
	}
	if err := c.post(context.Background(), body); err != nil {
		report(c.T, "answering: %v", err)
	}
}

// takeAll takes the messages of a stream, to its end.
func (c *AskClient) takeAll(events <-chan Event) {
	for e := range events {
		c.take(e.Msg())
	}
}

// Listen opens the session's notification stream and takes its messages.
func (c *AskClient) Listen() {
	events, _ := c.HTTP.Listen()
	go c.takeAll(events)
}

// ForgetAsked drops the requests to the client so far.
func (c *AskClient) ForgetAsked() {
	for len(c.Asked) > 0 {
		<-c.Asked
	}
}

// Send makes a request of a client with a session, whose answer arrives on the channel.
func (c *AskClient) Send(method string, params json.RawMessage) (id string, answer <-chan json.RawMessage) {
	id = fmt.Sprint(c.ids.Add(1))
	wait := make(chan json.RawMessage, 1)
	c.mu.Lock()
	c.wait[id] = wait
	c.mu.Unlock()
	go func() {
		err := c.post(c.T.Context(), []byte(RPC(id, method, string(params))))
		if err != nil && c.T.Context().Err() == nil {
			report(c.T, "%s: %v", method, err)
		}
	}()
	return id, wait
}

// Get waits for an answer or another message.
func (c *AskClient) Get(wait <-chan json.RawMessage) json.RawMessage {
	select {
	case msg := <-wait:
		return msg
	case <-time.After(Patience):
		report(c.T, "gave up waiting for a message")
		return nil
	}
}

// Call calls a tool, and answers what is asked meanwhile. It returns the message that is the answer.
func (c *AskClient) Call(tool string, arguments any) json.RawMessage {
	params := CallParams(tool, arguments)
	for range 100 {
		msg := c.CallOnce(params)
		result := Field(msg, "result")
		if StringField(result, "resultType") != "input_required" {
			return msg
		}
		params = c.answered(params, result)
	}
	report(c.T, "asked without end")
	return nil
}

// CallOnce makes one tools/call and returns its answer.
func (c *AskClient) CallOnce(params json.RawMessage) json.RawMessage {
	if c.Meta != "" {
		return c.roundOf(params).Last()
	}
	_, answer := c.Send("tools/call", params)
	return c.Get(answer)
}

// Round makes one request to call a tool, as a client without a session does. If it continues a call,
// resume is the call's state and the responses.
func (c *AskClient) Round(tool string, arguments any, resume ...string) Answer {
	params := CallParams(tool, arguments)
	if resume != nil {
		params = json.RawMessage(Resume(string(params), resume[0], resume[1]))
	}
	return c.roundOf(params)
}

// roundOf makes one request of a client without a session over HTTP.
func (c *AskClient) roundOf(params json.RawMessage) Answer {
	params = withMeta(params, "io.modelcontextprotocol/clientCapabilities", json.RawMessage(c.Meta))
	params = withMeta(params, "io.modelcontextprotocol/clientInfo",
		encode(map[string]string{"name": c.Name, "version": "1"}))
	a, err := c.HTTP.try(c.HTTP.ModernPOST(fmt.Sprint(c.ids.Add(1)), "tools/call", string(params)))
	if err != nil {
		report(c.T, "POST: %v", err)
	}
	for _, msg := range a.Events[:max(len(a.Events)-1, 0)] {
		c.take(msg)
	}
	return a
}

// answered returns params with answers to what a result asks.
func (c *AskClient) answered(params, result json.RawMessage) json.RawMessage {
	responses := make(map[string]json.RawMessage)
	for key, request := range members(Field(result, "inputRequests")) {
		c.Asked <- request
		answer := c.Answer(StringField(request, "method"), Field(request, "params"))
		if answer != nil {
			responses[key] = answer
		}
	}
	state := StringField(result, "requestState")
	return json.RawMessage(Resume(string(params), state, string(encode(responses))))
}
