// Callers: who a call is made for, and how a module asks them. Nothing here depends on sessions
// or transports: a Caller contains functions that reach the client.
//
// A module may ask its client in the middle of a call, for example for the user's input.
// The request must reach the client whose call caused it and no other, but on stdio a
// request need not say which call it belongs to. A request that names its call, as those of
// usher's shims do, is for that call's client. In a process of one session, all requests are
// for the session. In a process for the callers of one principal without sessions, a
// request is for the only call in flight, unless a call was ever cancelled. Other requests
// are refused.

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"sync/atomic"
)

// Caller is the client, or part of usher, that a call is made for.
type Caller struct {
	Principal *Principal // by which limits are counted; nil for usher itself
	// Member ends when the caller no longer belongs to the principal: the claim has ended, or the
	// session has ended, got another principal or was forgotten. Member is nil for callers that
	// are not clients. All requests of a session have the same Member, and so have all callers of
	// a principal without a session. Callers with the same Member share one process of a hosted
	// server. When Member ends, the process answers its calls and ends.
	Member context.Context
	// Sessionless says that the caller is an MCP client without a session.
	Sessionless bool
	Client      clientProfile

	// Notify passes a notification on to the caller. The goroutine that reads the
	// module's output calls it, so it must not wait for a client or a module. nil drops
	// notifications.
	Notify func(method string, params object)
	// Ask asks the caller, if it has the capabilities, and waits for the answer until ctx
	// ends. Its errors are *rpcError, errNoRoom, or ctx's cause. Ask is nil for callers that have
	// no client.
	Ask func(ctx context.Context, method string, params object) (object, error)
}

// reachable reports whether the caller may get a message outside of its calls: it still belongs
// to its principal, whose claim can be read.
func (c Caller) reachable() bool {
	return (c.Member == nil || c.Member.Err() == nil) && c.Principal.Unreadable() == nil
}

// hasClaim reports whether the caller has a claim. c may be nil.
func (c *Caller) hasClaim() bool { return c != nil && c.Principal != nil && c.Principal.exists() }

// ask asks the caller, if it is a client that can be asked.
func (c Caller) ask(ctx context.Context, method string, params object) (object, error) {
	if c.Ask == nil {
		_, err := clientCaps(0).checkAsk(method, params)
		return nil, err
	}
	return c.Ask(ctx, method, params)
}

// clientRequest is a request of the module that waits for a client's answer.
type clientRequest struct {
	*Message
	caller Caller // to ask
	call   *call  // in which the module asks, without its slot meanwhile; nil if only the session is known
	ctx    context.Context
	cancel context.CancelFunc
	done   chan struct{} // closed when the client is no longer asked

	withdrawn atomic.Bool // the module does not want the answer
}

// Why a request of a module has no answer.
var (
	errNoAnswer = rpcErrorf(codeInternal, "the client did not answer within %v", askTimeout)
	errNotSure  = rpcErrorf(codeInternal,
		"can't tell which call this is for, as the process may run several: call again")
	errNoScope   = rpcErrorf(codeInternal, "the client has lost its access")
	errNotInCall = rpcErrorf(codeInternal, "the call this belongs to has ended")
)

// recipient returns the caller that a message of the module is for, and the call that it
// belongs to, or a nil call if only the session is known.
func (w *Worker) recipient(s *workerState, params object) (Caller, *call, error) {
	if id := params.object("_meta").get(metaCall); id != nil {
		c := s.calls[string(id)]
		if c == nil || !c.ofClient() {
			return Caller{}, nil, errNotInCall
		}
		return c.caller, c, nil
	}
	var calls []*call
	for _, c := range s.calls {
		if c.ofClient() {
			calls = append(calls, c)
		}
	}
	switch {
	case w.owner == nil || w.owner.Sessionless && (s.unsure || len(calls) != 1):
		return Caller{}, nil, errNotSure
	case len(calls) == 0:
		return *w.owner, nil, nil
	case len(calls) == 1:
		return calls[0].caller, calls[0], nil
	}
	return calls[0].caller, nil, nil // of the same session as the others, or a delivery, which can't be asked
}

// handleRequest answers a request of the module, or starts to ask a client for the
// answer. It finds the client before usher reads the module's next message, which may end
// the call.
func (w *Worker) handleRequest(msg *Message) {
	if msg.Method == "ping" {
		w.reply(nil, msg.ID, object{}, nil)
		return
	}
	var a *clientRequest
	var err error
	w.update(func(s *workerState) { a, err = w.newAsk(s, msg) })
	if err != nil {
		w.log.Info("a request of the module to a client was refused", "method", msg.Method, "err", err)
		w.reply(nil, msg.ID, nil, err)
		return
	}
	w.running.Go(func() { w.ask(a) })
}

// newAsk finds the client that a request is for, and adds the request to the open ones.
func (w *Worker) newAsk(s *workerState, msg *Message) (*clientRequest, error) {
	caller, c, err := w.recipient(s, msg.Params)
	if err == nil {
		_, err = w.caps.checkAsk(msg.Method, msg.Params)
	}
	if err != nil {
		return nil, err
	}
	if s.asks[string(msg.ID)] != nil {
		return nil, rpcErrorf(codeInvalidRequest, "request id %s is already in use", msg.ID)
	}
	if !w.asking.reserve(caller.Principal, 1) {
		return nil, rpcErrorf(codeInternal, "too many open requests to clients (limit %d)", maxAsks)
	}
	a := &clientRequest{Message: msg, caller: caller, call: c, done: make(chan struct{})}
	if c != nil {
		c.slot.free(slotPaused)
	}
	a.ctx, a.cancel = context.WithTimeoutCause(w.ctx, askTimeout, errNoAnswer)
	s.asks[string(a.ID)] = a
	return a, nil
}

// ask asks the client and answers the module, unless the module has withdrawn its request.
func (w *Worker) ask(a *clientRequest) {
	defer catch(w.log, nil)
	defer close(a.done)
	defer a.cancel()
	result, err := w.askClient(a)
	if a.call != nil && waitFor(a.ctx, a.call.slot.grant()) != nil {
		err = cmp.Or[error](err, errNotInCall)
	}
	w.asking.release(a.caller.Principal, 1)
	if !a.withdrawn.Load() {
		w.reply(a.caller.Principal, a.ID, result, err) // first: without open requests, the process may end
	}
	w.update(func(s *workerState) {
		delete(s.asks, string(a.ID))
		for _, c := range s.calls {
			if a.call == c || a.call == nil {
				wake(c.progress) // the time-out begins again, for the module's own silence
			}
		}
	})
}

// askClient asks the client and returns its answer.
func (w *Worker) askClient(a *clientRequest) (result object, err error) {
	defer catch(w.log, &err)
	result, err = a.caller.ask(a.ctx, a.Method, stripCallID(a.Params))
	if errors.Is(err, context.Canceled) {
		err = errNotInCall
	}
	return result, err
}

// withdrawAsk cancels a request to a client that the module has cancelled.
func (w *Worker) withdrawAsk(id json.RawMessage) {
	w.update(func(s *workerState) {
		if a := s.asks[string(id)]; a != nil {
			a.withdrawn.Store(true)
			a.cancel()
		}
	})
}

// answerInput asks the caller for the input that a result asks for, and returns params
// with the answers (MCP 2026-07-28, basic/patterns/mrtr). The error, which may be shown
// to the caller, says that the caller can't be asked or did not answer.
func answerInput(ctx context.Context, caller Caller, params, result object) (object, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, askTimeout, errNoAnswer)
	defer cancel()
	var answers object
	for _, request := range result.object("inputRequests") {
		asked := members(request.value)
		method := asked.text("method")
		wanted := asked.object("params")
		answer, err := caller.ask(ctx, method, wanted)
		if err != nil {
			return nil, rpcErrorf(codeInternal, "%v", err)
		}
		answers = append(answers, member{request.key, answer.encode()})
	}
	params = params.without("requestState").set("inputResponses", answers.encode())
	if state := result.get("requestState"); state != nil {
		params = params.set("requestState", state)
	}
	return params, nil
}
