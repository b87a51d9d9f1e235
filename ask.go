// Asking clients. A module may ask for something during a call, such as the user's input.
// The request must reach the client that made the call. usher sends the request to a
// client with a session, and the client answers it. It can send nothing to a client
// without a session: usher suspends the call and answers the client's request with the
// module's questions. The client's next request contains the answers and continues the
// call (MCP 2026-07-28, basic/patterns/mrtr). caller.go decides which client a module's
// request is for.

package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
)

// checkAsk returns an error unless a module may ask the client, and the capabilities that the
// client lacks.
func (r *request) checkAsk(method string, params object) (lacked clientCaps, err error) {
	if r.principal.Ended() || r.principal.Unreadable() != nil {
		return 0, errNoScope
	}
	return r.caller.Client.caps.checkAsk(method, params)
}

// ask sends a module's request to the session's client and waits for its answer.
func (r *request) ask(ctx context.Context, method string, params object) (object, error) {
	if _, err := r.checkAsk(method, params); err != nil {
		return nil, err
	}
	// The id is random, so that a late answer to an earlier daemon matches no request of
	// this one.
	id := quote("usher-" + rand.Text())
	answer := make(chan *Message, 1)
	r.session.asked.Store(string(id), answer)
	defer r.session.asked.Delete(string(id))
	if !r.send(encodeRequest(id, method, params)) {
		return nil, errUnheard
	}
	var err error
	select {
	case msg := <-answer:
		return r.hold(msg)
	case <-r.session.hears.Done():
		return nil, errUnheard
	case <-r.principal.ctx.Done():
		err = errNoScope
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	r.send(encodeRequest(nil, "notifications/cancelled", object{{"requestId", id}}))
	return nil, err
}

// hold returns what a client answered to a module. It counts the answer until the request ends,
// because the call may keep it until then.
func (r *request) hold(answer *Message) (object, error) {
	size := answer.Result.size()
	if answer.Err != nil {
		size = len(answer.Err.Message) + len(answer.Err.Data)
	}
	held := r.server.memory.open(r.principal)
	err := held.grow(int64(size))
	context.AfterFunc(r.ctx, held.end)
	switch {
	case err != nil:
		return nil, err
	case answer.Err != nil:
		return nil, answer.Err
	}
	return answer.Result, nil
}

// statePrefix begins usher's own states. A module of the same era has states of its own.
const statePrefix = "usher-"

// errStaleState refuses a state that continues no call.
var errStaleState = rpcErrorf(codeInvalidParams, "requestState is no longer valid: call again without it")

// suspendedCalls are the calls of clients without sessions that may have to wait for
// their clients to return. Safe for concurrent use.
type suspendedCalls struct {
	running sync.WaitGroup      // all calls, suspended or not
	asking  counter[*Principal] // calls in which the module asked something

	mu    sync.Mutex
	calls map[string]*suspendedCall // by the requestState that continues them; each state is used once
}

// suspendedCall is one call of a client without a session, over all its requests.
type suspendedCall struct {
	all     *suspendedCalls
	request request       // a copy of the client's first request; its caller asks through the call
	held    *reservation  // of the first request
	wake    chan struct{} // 1-buffered: the module asked something
	done    chan struct{} // closed when result and err are set
	result  object
	err     error

	// Guarded by all.mu.
	current   *request        // the request in progress; nil while the call is suspended
	token     json.RawMessage // its progress token; nil for none
	asked     int             // number of questions so far; all.asking counts the call from the first on
	lacked    clientCaps      // what the module asked for and the client lacks
	state     string          // under which the call is suspended; "" if it never was
	questions []*inputRequest
}

// inputRequest is a question of a module that has not been answered.
type inputRequest struct {
	member             // of inputRequests
	answer chan object // 1-buffered
}

// call answers one request of a client. It starts a call, or continues the call whose
// requestState the params contain, and returns when the call ends or the module asks
// something.
func (k *suspendedCalls) call(r *request) (object, error) {
	if strings.HasPrefix(r.params.text("requestState"), statePrefix) {
		c, err := k.resume(r)
		if err != nil {
			return nil, err
		}
		return c.next(r.ctx)
	}
	held := r.server.memory.open(r.principal)
	if err := held.grow(int64(r.params.size())); err != nil {
		return nil, err
	}
	c := &suspendedCall{
		all:     k,
		request: *r,
		current: r,
		token:   r.progressToken(),
		held:    held,
		wake:    make(chan struct{}, 1),
		done:    make(chan struct{}),
	}
	c.request.caller.Notify = c.notify
	c.request.caller.Ask = c.ask
	c.request.params = withMeta(r.params, "progressToken", json.RawMessage("0")) // see notify
	c.request.ctx, c.request.cancel = context.WithCancelCause(r.server.stopped)
	k.running.Go(c.run)
	return c.next(r.ctx)
}

// run makes the call.
func (c *suspendedCall) run() {
	defer close(c.done)
	defer c.held.end()
	defer c.request.cancel(nil)
	defer catch(c.request.server.log, &c.err)
	c.result, c.err = c.request.forward()
	c.all.mu.Lock()
	defer c.all.mu.Unlock()
	failed := c.err != nil || isTrue(c.result.get("isError"))
	if failed && c.lacked != 0 {
		c.result = nil
		c.err = c.lacked.errMissing(codeMissingCapability)
	}
	if c.asked > 0 {
		c.all.asking.release(c.request.principal, 1)
	}
	delete(c.all.calls, c.state)
	c.questions = nil // so that suspend does not suspend the call
}

// notify passes a notification to the request in progress, if there is one. Progress is
// reported under that request's own token, and only if it has one.
func (c *suspendedCall) notify(method string, params object) {
	c.all.mu.Lock()
	current, token := c.current, c.token
	c.all.mu.Unlock()
	if current == nil {
		return
	}
	if method == "notifications/progress" {
		if isNull(token) {
			return
		}
		params = params.set("progressToken", token)
	}
	current.caller.Notify(method, params)
}

// ask asks the client a question of the module, and waits for the answer.
func (c *suspendedCall) ask(
	ctx context.Context, method string, params object,
) (object, error) {
	lacked, err := c.request.checkAsk(method, params)
	if err != nil {
		c.all.mu.Lock()
		defer c.all.mu.Unlock()
		c.lacked |= lacked
		return nil, err
	}
	q := &inputRequest{answer: make(chan object, 1)}
	q.value = object{{"method", quote(method)}, {"params", params.encode()}}.encode()
	if err := c.add(q); err != nil {
		return nil, err
	}
	wake(c.wake)
	select {
	case answer := <-q.answer:
		return answer, nil
	case <-c.request.ctx.Done():
		return nil, errNotInCall
	case <-c.request.principal.ctx.Done(): // the claim has ended
		c.request.cancel(errNoScope)
		return nil, errNoScope
	case <-ctx.Done():
	}
	c.all.mu.Lock()
	defer c.all.mu.Unlock()
	c.questions = remove(c.questions, q)
	return nil, context.Cause(ctx)
}

// add adds a question, unless too many calls of the principal have asked something.
func (c *suspendedCall) add(q *inputRequest) error {
	c.all.mu.Lock()
	defer c.all.mu.Unlock()
	if c.asked == 0 && !c.all.asking.reserve(c.request.principal, 1) {
		return rpcErrorf(codeInternal,
			"too many calls await client input (limit %d): answer some", maxSuspended)
	}
	c.asked++
	q.key = fmt.Sprint("ask-", c.asked)
	c.questions = append(c.questions, q)
	return nil
}

// next waits until the call ends or the module asks something. If ctx ends, because the
// client has gone away, next cancels the call.
func (c *suspendedCall) next(ctx context.Context) (object, error) {
	for {
		select {
		case <-c.done:
			return c.result, c.err
		case <-c.wake:
			if result := c.suspend(); result != nil {
				return result, nil
			}
		case <-ctx.Done():
			c.request.cancel(context.Cause(ctx))
			<-c.done
			return nil, context.Cause(ctx)
		}
	}
}

// suspend returns the result with the module's questions and the state that continues
// the call. It returns nil if the module withdrew its questions.
func (c *suspendedCall) suspend() object {
	c.all.mu.Lock()
	defer c.all.mu.Unlock()
	if len(c.questions) == 0 {
		return nil
	}
	var requests object
	for _, q := range c.questions {
		requests = append(requests, q.member)
	}
	c.state = statePrefix + rand.Text()
	c.all.calls[c.state] = c
	c.current = nil
	c.token = nil // it would keep the whole body
	return object{
		{"resultType", quote(resultInput)},
		{"inputRequests", requests.encode()},
		{"requestState", quote(c.state)},
	}
}

// resume returns the suspended call that a request continues, and delivers the answers, which count
// for the call. The state becomes invalid. The call may have ended just before, without the answers.
// After an error, the call is still suspended: the request is not the same as the first, or the
// answers find no room.
func (k *suspendedCalls) resume(r *request) (*suspendedCall, error) {
	state := r.params.text("requestState")
	token := r.progressToken()
	responses := r.params.object("inputResponses")
	k.mu.Lock()
	c := k.calls[state]
	k.mu.Unlock()
	if c == nil || !c.continuedBy(r) { // without the lock, because it may take long
		return nil, errStaleState
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.calls[state] != c { // it has ended, or another request has continued it
		return nil, errStaleState
	}
	if err := c.held.grow(int64(responses.size())); err != nil {
		return nil, err
	}
	delete(k.calls, c.state)
	c.current = r
	c.token = token
	c.questions = slices.DeleteFunc(c.questions, func(q *inputRequest) bool {
		answer := responses.object(q.key)
		if answer != nil {
			q.answer <- answer
		}
		return answer != nil
	})
	if len(c.questions) > 0 {
		wake(c.wake) // ask again for the missing answers
	}
	return c, nil
}

// continuedBy reports whether a request is from the call's principal and repeats the
// call's first request.
func (c *suspendedCall) continuedBy(r *request) bool {
	first := &c.request
	same := first.principal == r.principal && first.caller.Client.caps == r.caller.Client.caps
	if !same || first.name != r.name {
		return false
	}
	const arguments = "arguments"
	own := []string{arguments, "_meta", "inputResponses", "requestState"}
	return sameMembers(first.params.without(own...), r.params.without(own...)) &&
		sameMembers(first.params.object(arguments), r.params.object(arguments))
}

// sameMembers reports whether two objects have the same members, in any order.
func sameMembers(a, b object) bool {
	byKey := func(x, y member) int { return strings.Compare(x.key, y.key) }
	slices.SortFunc(a, byKey)
	slices.SortFunc(b, byKey)
	return slices.EqualFunc(a, b, func(x, y member) bool {
		return x.key == y.key && bytes.Equal(x.value, y.value)
	})
}
