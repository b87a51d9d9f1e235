// Asking: what a module asks of its client in the middle of a call, such as a
// model's answer or the user's input. It must reach the one client whose call
// caused it and never another, but on stdio a request does not say which call
// that is. It is certain where the module's message names its call, as those of
// our shims do, and where the process has served one session alone, or one call
// at a time of one client. Nothing else is passed on. Here is a worker's side of
// it; it names no scope and no view.

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// asksCapability is what a module declares, among its experimental capabilities,
// that asks its client without saying in which call.
const asksCapability = "usher/asks"

const (
	askPatience = 10 * time.Minute // for a client's answer: often a person's
)

// asking is a process's requests to its clients, and whom it serves.
type asking struct {
	ctx  context.Context // ends with the process
	stop context.CancelFunc
	wg   sync.WaitGroup               // requests being answered
	open inflight[context.CancelFunc] // by the module's own id
	late atomic.Int32                 // answers that wait to be queued

	mu    sync.Mutex
	owner *Caller       // the latest
	mixed bool          // it has served more than one kin
	owned chan struct{} // closed once the first owner's call is under way
	began func()        // notes that a call of the owner's is
	urls  []elicited    // the last, at most maxAsks
}

// elicited is a URL that a client was asked to open, of whose end it is told.
type elicited struct {
	id     string
	caller Caller
}

// sentTo notes whom a request to open a URL was for.
func (a *asking) sentTo(id string, c Caller) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.urls = append(a.urls, elicited{id, c}); len(a.urls) > maxAsks {
		a.urls = a.urls[1:]
	}
}

// passElicited tells the client that was asked to open a URL that this is done
// (MCP 2025-11-25, client/elicitation, "Completion Notifications").
func (a *asking) passElicited(params json.RawMessage) {
	id := stringField(params, "elicitationId")
	a.mu.Lock()
	i := slices.IndexFunc(a.urls, func(e elicited) bool { return e.id == id })
	var caller Caller
	if i >= 0 {
		caller = a.urls[i].caller
		a.urls = slices.Delete(a.urls, i, i+1)
	}
	a.mu.Unlock()
	if !caller.Stateless && caller.authorized() { // the other revision has no such thing
		caller.notify("notifications/elicitation/complete", params)
	}
}

func (a *asking) begin() {
	a.ctx, a.stop = context.WithCancel(context.Background())
	a.owned = make(chan struct{})
	a.began = sync.OnceFunc(func() { close(a.owned) })
}

// finish ends all that is under way, and waits for it.
func (a *asking) finish() {
	a.stop()
	a.wg.Wait()
}

// own notes that the process serves a caller.
func (a *asking) own(c Caller) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.owner != nil && a.owner.Affinity != c.Affinity {
		a.mixed = true
	}
	a.owner = &c
}

// only is the latest caller of the process; nil where there is none, or where it
// may have to do with several kin.
func (a *asking) only() *Caller {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.mixed {
		return nil
	}
	return a.owner
}

// sole is the one session that the process serves; nil where there are several,
// or where it serves one call at a time.
func (a *asking) sole() *Caller {
	if c := a.only(); c != nil && !c.Stateless {
		return c
	}
	return nil
}

// abandon notes that the process may go on with a call whose caller does not wait
// any more: what it asks from now on may be for that one.
func (a *asking) abandon(c Caller) {
	if c.Stateless {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.mixed = true
	}
}

// several reports whether the process may still have to do with several callers.
func (a *asking) several() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.mixed
}

// cancel ends a request at the module's wish.
func (a *asking) cancel(id json.RawMessage) {
	if cancel, ok := a.open.take(string(id)); ok {
		cancel()
	}
}

// Why a request of a module has no answer of a client's.
var (
	errNoAnswer  = rpcErrorf(codeInternal, "the client did not answer within %v", askPatience)
	errNoClient  = rpcErrorf(codeInternal, "no client can be asked here: the module serves no call of one")
	errNotSure   = rpcErrorf(codeInternal, "usher can't tell which client this is for; from now on each client has a process of this module of its own: call again")
	errNoScope   = rpcErrorf(codeInternal, "the client may not reach the module any more")
	errNotInCall = rpcErrorf(codeInternal, "the call that this is for is not under way")
	errManyAsks  = rpcErrorf(codeInternal, "too many requests to clients wait for an answer (%d)", maxAsks)
)

// handleRequest answers what a module asks. Whom it is for is found before the
// next message of the module is read, which may end the call.
func (w *Worker) handleRequest(msg *Message) {
	if msg.Method == "ping" {
		w.answer(encodeResult(msg.ID, json.RawMessage(`{}`)))
		return
	}
	needs, known := needsOf(msg.Method, msg.Params)
	if !known {
		w.answer(encodeError(msg.ID, rpcErrorf(codeNoMethod, "this client does not answer %s", msg.Method)))
		return
	}
	calls, err := w.whose(msg.Params)
	if err == nil && w.asks.open.len() >= maxAsks {
		err = errManyAsks
	}
	if err != nil {
		w.log.Info("a request of the module to a client was refused", "method", msg.Method, "why", err)
		w.answer(encodeError(msg.ID, asRPCError(err)))
		return
	}
	ctx, cancel := context.WithTimeoutCause(w.asks.ctx, askPatience, errNoAnswer)
	if err := w.asks.open.add(string(msg.ID), cancel); err != nil {
		cancel()
		w.answer(encodeError(msg.ID, asRPCError(err)))
		return
	}
	w.asks.wg.Go(func() {
		defer cancel()
		result, err := w.ask(ctx, calls, needs, msg)
		if ctx.Err() != context.Canceled { // else it is taken, and the id may be another's by now, as it may once this is answered
			w.asks.open.take(string(msg.ID))
		}
		answer := encodeResult(msg.ID, result)
		if err != nil {
			answer = encodeError(msg.ID, asRPCError(err))
		}
		_ = w.send(w.asks.ctx, answer) // fails with the process alone
	})
}

// answer queues the answer to a request of the module. It does not wait for the
// module to read, which may be waiting for us to.
func (w *Worker) answer(msg []byte) {
	if w.offer(msg) {
		return
	}
	if w.asks.late.Add(1) > maxRefused {
		w.asks.late.Add(-1)
		w.log.Warn("an answer was dropped: the module does not read its stdin")
		return
	}
	w.asks.wg.Go(func() {
		defer w.asks.late.Add(-1)
		select {
		case w.out <- msg:
		case <-w.asks.ctx.Done():
		}
	})
}

// saysCall finds the call that a message of the module says it belongs to. It is
// nil for one that is not in flight.
func (w *Worker) saysCall(params json.RawMessage) (c *call, said bool) {
	id := field(field(params, "_meta"), metaCall)
	if id == nil {
		return nil, false
	}
	c, _ = w.calls.get(string(id))
	if c != nil && c.caller.Session == "" {
		c = nil // usher's own
	}
	return c, true
}

// unsaid is params without the name of the call, which is no client's business.
func unsaid(params json.RawMessage) json.RawMessage {
	own := field(params, "_meta")
	switch meta := dropMembers(own, metaCall); {
	case len(meta) == len(own):
		return params
	case string(meta) == "{}":
		return dropMembers(params, "_meta")
	default:
		return withMember(params, "_meta", meta)
	}
}

// whose finds the calls that a request of the module may be for: the one that it
// names, else all of the one session that it serves, the newest first. There are
// none, with no error, where that session has no call in flight, or may yet come.
func (w *Worker) whose(params json.RawMessage) ([]*call, error) {
	if c, said := w.saysCall(params); said {
		if c == nil {
			return nil, errNotInCall
		}
		return []*call{c}, nil
	}
	if !w.watch.private.Load() {
		w.watch.asks()
	}
	calls := w.callersInFlight()
	if w.asks.several() || len(calls) > 1 && calls[0].caller.Stateless { // several also if another came meanwhile
		return nil, errNotSure
	}
	if !w.watch.serves {
		return nil, errNoClient
	}
	slices.SortFunc(calls, func(a, b *call) int { return cmp.Compare(b.number, a.number) })
	return calls, nil
}

// ask asks the caller of calls, or where there are none, the one session that
// the process serves.
func (w *Worker) ask(ctx context.Context, calls []*call, needs clientCaps, msg *Message) (json.RawMessage, error) {
	caller, err := w.listener(ctx, calls)
	if err != nil {
		return nil, err
	}
	if lacked := needs &^ caller.Caps; lacked != 0 {
		for _, c := range calls {
			c.lacked.Or(uint32(lacked))
		}
		if caller.Ask == nil && !caller.Stateless {
			return nil, noClient(needs)
		}
		return nil, lacks(lacked)
	}
	if caller.Ask == nil {
		return nil, errNoClient
	}
	if len(calls) > 0 {
		defer heldBy(calls, func() {
			if ctx.Err() == nil {
				w.asks.cancel(json.RawMessage(msg.ID))
			}
		})()
		if !slices.ContainsFunc(calls, func(c *call) bool { return c.ctx.Err() == nil }) {
			return nil, errNotInCall
		}
	}
	if needs == capElicitURL {
		w.asks.sentTo(stringField(msg.Params, "elicitationId"), caller)
	}
	result, err := caller.Ask(ctx, msg.Method, unsaid(msg.Params))
	if err != nil && ctx.Err() != nil && !errors.As(err, new(*rpcError)) {
		return nil, errNotInCall
	}
	return result, err
}

// heldBy has calls wait for something asked, until over is called. With the last
// of them to end, end is called.
func heldBy(calls []*call, end func()) (over func()) {
	var left atomic.Int32
	left.Store(int32(len(calls)))
	var letGo []func()
	for _, c := range calls {
		c.asking.Add(1)
		done := sync.OnceFunc(func() {
			poke(c.beat) // from here on the module's silence counts
			c.asking.Add(-1)
			poke(c.beat) // for settle
		})
		stop := context.AfterFunc(c.ctx, func() {
			if left.Add(-1) == 0 {
				end()
			} else {
				done() // it is another's, or that one would not have ended
			}
		})
		letGo = append(letGo, func() {
			stop()
			done()
		})
	}
	return func() {
		for _, f := range letGo {
			f()
		}
	}
}

// listener is whom to ask.
func (w *Worker) listener(ctx context.Context, calls []*call) (Caller, error) {
	if len(calls) > 0 {
		return calls[0].caller, nil
	}
	timer := time.NewTimer(ownerPatience)
	defer timer.Stop()
	select {
	case <-w.asks.owned:
	case <-timer.C:
	case <-ctx.Done():
	}
	if sole := w.asks.sole(); sole != nil && !sole.authorized() {
		return Caller{}, errNoScope
	} else if sole != nil {
		return *sole, nil
	}
	if calls := w.callersInFlight(); w.watch.private.Load() && len(calls) == 1 {
		return calls[0].caller, nil // it asked before it was called
	}
	return Caller{}, errNoClient
}

// lacks is the error for a request that the client has not declared that it
// answers: as it would have said itself.
func lacks(lacked clientCaps) *rpcError {
	if lacked&capElicitURL != 0 {
		return rpcErrorf(codeInvalidParams, "the client can't be asked to open a URL") // client/elicitation, "Error Handling"
	}
	return rpcErrorf(codeNoMethod, "the client can't be asked for %s", lacked.names()[0])
}

// noClient is the error for a request in a call that no client makes.
func noClient(needs clientCaps) *rpcError {
	return rpcErrorf(codeNoMethod, "this needs a client that can be asked for %s, which a webhook and usher call are not: call it as a tool, from an MCP client", strings.Join(needs.names(), ", "))
}

// answerRounds makes a call of a stateless module for a caller with a session:
// what the module wants to be told is asked of the caller, and call made again.
func answerRounds(ctx context.Context, module string, caller Caller, params json.RawMessage, call func(params json.RawMessage) (json.RawMessage, error)) (json.RawMessage, error) {
	result, err := call(params)
	for round := 0; err == nil && stringField(result, "resultType") == resultInput; round++ {
		if round == maxRounds {
			return nil, rpcErrorf(codeInternal, "module %q asks without end", module)
		}
		if params, err = answerInput(ctx, caller, params, result); err != nil {
			return nil, err
		}
		result, err = call(params)
	}
	return legacyResult(result), err
}

// answerInput gets from the caller what a result asks for, and returns params
// with the answers (MCP 2026-07-28, basic/patterns/mrtr). The error is for the
// caller: what it can't be asked for, or did not answer.
func answerInput(ctx context.Context, caller Caller, params, result json.RawMessage) (json.RawMessage, error) {
	requests, _ := members(field(result, "inputRequests"))
	var answers []member
	for _, r := range requests {
		method, wish := stringField(r.value, "method"), field(r.value, "params")
		needs, known := needsOf(method, wish)
		if !known {
			return nil, rpcErrorf(codeInternal, "the module asks for %q, which no client answers", clipText(method, 100))
		}
		if caller.Ask == nil {
			return nil, noClient(needs)
		}
		if lacked := needs &^ caller.Caps; lacked != 0 {
			return nil, rpcErrorf(codeInternal, "this needs a client that can be asked for %s", strings.Join(needs.names(), ", "))
		}
		ctx, cancel := context.WithTimeoutCause(ctx, askPatience, errNoAnswer)
		answer, err := caller.Ask(ctx, method, wish)
		cancel()
		if err != nil {
			return nil, err
		}
		answers = append(answers, member{r.key, answer})
	}
	params = dropMembers(params, "inputResponses", "requestState")
	if answers != nil {
		params = withMember(params, "inputResponses", joinMembers(answers))
	}
	if state := field(result, "requestState"); state != nil {
		params = withMember(params, "requestState", state)
	}
	return params, nil
}
