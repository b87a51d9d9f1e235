// Asking clients: how what a module asks in the middle of a call, such as the
// user's input, reaches the client that made the call. A client with a session is
// sent a request, and answers it. One without can't be sent anything: its call is
// suspended, its request is answered with what is asked, and its next request
// brings the answers and goes on with the call (MCP 2026-07-28,
// basic/patterns/mrtr). Whom a module's request is for, the worker has found out;
// this file knows no module and no transport.

package main

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"
)

const (
	suspendTimeout  = 5 * time.Minute // for a client to come back
	recheckInterval = 2 * time.Second // between looks whether a suspended call's claim still holds
)

// Why a client that has a session does not answer.
var (
	errUnheard = rpcErrorf(codeInternal, "the client has no stream open on which it could be asked")
	errGone    = rpcErrorf(codeInternal, "the client has gone away")
)

// pendingRequests are the requests to one client that wait for its answers. The
// zero value is ready for use. Safe for concurrent use.
type pendingRequests struct {
	inflight[chan *Message] // by our ids
}

// ask sends a request to the client and waits for its answer. send reports
// whether a message has gone out to where it may be read.
func (p *pendingRequests) ask(ctx context.Context, send func([]byte) bool, method string, params json.RawMessage) (json.RawMessage, error) {
	id := quote("usher-" + rand.Text()) // no count: an answer may come after a restart, to what was asked before
	answer := make(chan *Message, 1)
	if err := p.add(string(id), answer); err != nil {
		return nil, errGone
	}
	defer p.remove(string(id))
	if !send(encodeRequest(id, method, params)) {
		return nil, errUnheard
	}
	select {
	case msg := <-answer:
		if msg.Err != nil {
			return nil, msg.Err
		}
		return msg.Result, nil
	case <-ctx.Done():
		send(encodeRequest(nil, "notifications/cancelled", object{{"requestId", id}}.encode()))
		return nil, context.Cause(ctx)
	}
}

// answer gives the client's answer to whoever asked.
func (p *pendingRequests) answer(msg *Message) {
	if answer, ok := p.remove(string(msg.ID)); ok {
		answer <- msg
	}
}

// fail ends all requests to the client: no answer can come any more.
func (p *pendingRequests) fail() {
	for _, answer := range p.close(errGone) {
		answer <- &Message{Err: errGone}
	}
}

// suspendedCalls are the calls of clients without sessions that may wait for their
// clients to come back. Safe for concurrent use.
type suspendedCalls struct {
	ctx context.Context // ends when calls are to
	wg  sync.WaitGroup  // calls under way, suspended or not

	mu    sync.Mutex
	calls map[string]*suspendedCall // by the state under which they go on, once
}

func newSuspendedCalls(ctx context.Context) *suspendedCalls {
	return &suspendedCalls{ctx: ctx, calls: make(map[string]*suspendedCall)}
}

// suspendedCall is one call of a client without a session, for as long as it
// takes, over as many requests as it takes.
type suspendedCall struct {
	all     *suspendedCalls
	caller  Caller   // of the first request
	binding [32]byte // what all its requests must have in common
	ctx     context.Context
	cancel  context.CancelCauseFunc
	wake    chan struct{} // 1-buffered: something is asked
	done    chan struct{} // closed when result and err are set
	result  json.RawMessage
	err     error

	// Guarded by all.mu.
	notify    func(method string, params json.RawMessage) // of the request under way; nil while suspended
	asked     int                                         // questions so far
	questions []*inputRequest
}

// inputRequest is what a module asked and has no answer to.
type inputRequest struct {
	key, method string
	params      json.RawMessage
	answer      chan json.RawMessage // 1-buffered
}

// Why a suspended call does not go on.
var (
	errNotResumed    = rpcErrorf(codeInternal, "the client did not come back with the answer")
	errUsedState     = rpcErrorf(codeInvalidParams, "requestState: it was used already, or its call has ended: make the call anew, without it")
	errOtherState    = rpcErrorf(codeInvalidParams, "requestState: it belongs to another call, another claim or other capabilities: make the call anew, without it")
	errManySuspended = rpcErrorf(codeInternal, "too many calls are waiting for client input (%d)", maxSuspended)
)

// do answers one request of a call: it makes the call, or goes on with the one
// whose state the params bring, until that ends or asks something. method and
// params are what all requests of one call must have in common.
func (k *suspendedCalls) do(ctx context.Context, caller Caller, method string, params object, call func(context.Context, Caller) (json.RawMessage, error)) (json.RawMessage, error) {
	var own map[string]any // printed with its keys in order, as a client may write the same thing in two ways
	_ = json.Unmarshal(params.without("_meta", "inputResponses", "requestState").encode(), &own)
	binding := sha256.Sum256(fmt.Appendf(nil, "%q %q %d %#v", caller.Principal, method, caller.Caps, own))
	if state := params.get("requestState"); state != nil {
		c, err := k.resume(state, binding, params.get("inputResponses"), caller.Notify)
		if err != nil {
			return nil, err
		}
		return c.next(ctx)
	}
	c := &suspendedCall{all: k, caller: caller, binding: binding, notify: caller.Notify, wake: make(chan struct{}, 1), done: make(chan struct{})}
	c.ctx, c.cancel = context.WithCancelCause(k.ctx)
	caller.Notify, caller.Ask = c.pass, c.ask
	k.wg.Go(func() {
		c.result, c.err = call(c.ctx, caller)
		c.cancel(nil)
		close(c.done)
	})
	return c.next(ctx)
}

// pass gives a notification to the request that waits, if one does.
func (c *suspendedCall) pass(method string, params json.RawMessage) {
	c.all.mu.Lock()
	notify := c.notify
	c.all.mu.Unlock()
	if notify != nil {
		notify(method, params)
	}
}

// ask is what the module asks of the client.
func (c *suspendedCall) ask(ctx context.Context, method string, params json.RawMessage) (json.RawMessage, error) {
	if params == nil {
		params = json.RawMessage(`{}`)
	}
	q := &inputRequest{method: method, params: params, answer: make(chan json.RawMessage, 1)}
	if err := c.all.add(c, q); err != nil {
		return nil, err
	}
	wake(c.wake)
	select {
	case answer := <-q.answer:
		return answer, nil
	case <-c.ctx.Done():
	case <-ctx.Done():
	}
	c.all.mu.Lock()
	defer c.all.mu.Unlock()
	c.questions = slices.DeleteFunc(c.questions, func(other *inputRequest) bool { return other == q })
	if c.ctx.Err() != nil {
		return nil, errNotInCall
	}
	return nil, context.Cause(ctx)
}

// add enters a question of a call, unless too many calls of its principal have
// some.
func (k *suspendedCalls) add(c *suspendedCall, q *inputRequest) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	others := 0
	for _, other := range k.calls {
		if other != c && other.caller.Principal == c.caller.Principal {
			others++
		}
	}
	if others >= maxSuspended {
		return errManySuspended
	}
	c.asked++
	q.key = fmt.Sprint("ask-", c.asked)
	c.questions = append(c.questions, q)
	return nil
}

// next waits for the call's end, or for something that it asks. A client that
// goes away meanwhile cancels the call.
func (c *suspendedCall) next(ctx context.Context) (json.RawMessage, error) {
	for {
		select {
		case <-c.done:
			return c.result, c.err
		case <-c.wake:
			if result := c.suspend(); result != nil {
				return result, nil
			}
		case <-ctx.Done():
			c.cancel(context.Cause(ctx))
			<-c.done
			return nil, context.Cause(ctx)
		}
	}
}

// suspend is the answer that says what is asked for, with a state under which the
// call goes on; nil when nothing is asked any more.
func (c *suspendedCall) suspend() json.RawMessage {
	c.all.mu.Lock()
	defer c.all.mu.Unlock()
	if len(c.questions) == 0 {
		return nil
	}
	var requests object
	for _, q := range c.questions {
		requests = append(requests, member{q.key, object{{"method", quote(q.method)}, {"params", q.params}}.encode()})
	}
	state := rand.Text()
	c.all.calls[state], c.notify = c, nil
	c.watch(state, time.Now().Add(suspendTimeout))
	return object{{"resultType", quote(resultInput)}, {"inputRequests", requests.encode()}, {"requestState", quote(state)}}.encode()
}

// watch ends the call if it is still suspended under a state at a time, or as soon
// as its caller's access has ended. The state is worth nothing then.
func (c *suspendedCall) watch(state string, until time.Time) {
	time.AfterFunc(min(recheckInterval, time.Until(until)), func() {
		authorized := c.caller.authorized()
		c.all.mu.Lock()
		defer c.all.mu.Unlock()
		switch {
		case c.all.calls[state] == nil: // it has gone on
			return
		case c.ctx.Err() != nil: // it has ended
		case !authorized:
			c.cancel(errNoScope)
		case !time.Now().Before(until):
			c.cancel(errNotResumed)
		default:
			c.watch(state, until)
			return
		}
		delete(c.all.calls, state)
	})
}

// resume finds the call of a state, gives it the answers that are some, and makes
// the state worthless.
func (k *suspendedCalls) resume(raw json.RawMessage, binding [32]byte, responses json.RawMessage, notify func(string, json.RawMessage)) (*suspendedCall, error) {
	state, _ := unquote(raw)
	k.mu.Lock()
	defer k.mu.Unlock()
	c := k.calls[state]
	if c == nil || c.ctx.Err() != nil {
		return nil, errUsedState
	}
	if c.binding != binding {
		return nil, errOtherState
	}
	delete(k.calls, state)
	c.notify = notify
	c.questions = slices.DeleteFunc(c.questions, func(q *inputRequest) bool {
		answer := field(responses, q.key)
		if isObject(answer) {
			q.answer <- answer
		}
		return isObject(answer)
	})
	if len(c.questions) > 0 {
		wake(c.wake) // what is missing is asked for again
	}
	return c, nil
}
