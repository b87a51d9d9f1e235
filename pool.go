// Pools: the processes of one module. A hosted server has one for each session,
// as the session's client would have started it; callers without a session share
// one for each claim and client program. A module that is written for it has one
// for all. Here is whose process a call goes to, how many there may be and until
// when; how usher itself speaks with a process, to know what the module is and
// offers; and the reaper, which ends them all when the daemon is killed.

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"
	"time"
)

const (
	sessionIdle = 10 * time.Minute // for how long a process of one affinity is kept without a call
	crashMemory = time.Minute      // for how long a crash is remembered, once the process may be started again
)

// Why a pool makes no call.
var (
	// errRetired says that the module was replaced by a newer version of itself
	// before the call began: look it up again.
	errRetired = errors.New("the module was reloaded")
	// errChanged says that the module's file is not what is to be run.
	errChanged = errors.New("changed since the start: " + reloadHint)
	errBusy    = errors.New("is busy: as many calls as there may be are running, or cancelled and not ended; try again")
)

// reloadHint says how to load changes into a daemon that does not follow them.
const reloadHint = "restart usher serve"

// startFunc starts a process of a module, one of an affinity for its owner's call.
type startFunc func(ctx context.Context, owner *Caller) (*Worker, error)

// pool is all processes of one module. Safe for concurrent use.
type pool struct {
	name       string
	perSession bool            // one process for each affinity, and not one for all
	ctx        context.Context // ends when the registry does
	start      startFunc
	wg         sync.WaitGroup // goroutines of processes
	running    sync.Map       // chan bool by principal: a place for each of its calls that may run; cancelled ones run until they have ended
	allRunning chan bool      // likewise for all calls

	mu      sync.Mutex
	procs   map[string]*process // that take calls, by affinity; under "" the one for all
	ending  map[*process]bool   // those that do not, and have not ended yet
	crashes map[string]crashes  // of processes that no call has succeeded at since, by affinity
	retired bool                // no new calls
	closed  bool                // and those under way fail
}

// crashes says how often a process has crashed, or could not be started, and when
// it may be started again.
type crashes struct {
	count     int
	notBefore time.Time
}

// process is one process of a module, from its start on. Its fields are guarded by
// the pool's mu; worker and err do not change any more once ready is closed.
type process struct {
	affinity  string
	principal string        // whose it counts as
	ready     chan struct{} // closed when it is started, or could not be
	worker    *Worker
	err       error
	active    int // calls under way
	lastUse   time.Time
}

func newPool(ctx context.Context, name string, perSession bool, start startFunc) *pool {
	return &pool{name: name, perSession: perSession, ctx: ctx, start: start,
		procs: make(map[string]*process), ending: make(map[*process]bool), crashes: make(map[string]crashes), allRunning: make(chan bool, maxRunning)}
}

// call makes one request of the module; see Worker.request. A caller with a
// session gets the input that a module without asks for as requests. The error is
// errRetired, and nothing was done, when the pool has been retired.
func (p *pool) call(ctx context.Context, caller Caller, method string, params object, timeout time.Duration) (json.RawMessage, error) {
	for range maxRounds {
		if err := p.acquireSlots(ctx, caller.Principal, timeout); err != nil {
			return nil, err
		}
		c, err := p.enter(ctx, caller)
		if err != nil {
			p.releaseSlots(caller.Principal)
			return nil, err
		}
		result, err := c.worker.request(ctx, caller, method, params, timeout)
		ended := errors.Is(err, errNotSent)
		p.leave(c, !ended && !errors.As(err, new(*processError)))
		if ended {
			continue
		}
		if err != nil || caller.Stateless || stringField(result, "resultType") != resultInput {
			return result, err
		}
		if params, err = answerInput(ctx, caller, params, result); err != nil {
			return nil, err
		}
	}
	return nil, rpcErrorf(codeInternal, "module %q asks without end", p.name)
}

// acquireSlots waits for a place among the calls of a principal that run, and then for one
// among those of the module, in order, for timeout (0: ever) at most each. The call
// has both until over.
func (p *pool) acquireSlots(ctx context.Context, principal string, timeout time.Duration) error {
	own, known := p.running.Load(principal)
	if !known {
		own, _ = p.running.LoadOrStore(principal, make(chan bool, maxRunningOf))
	}
	err := p.acquireSlot(ctx, own.(chan bool), timeout)
	if err == nil {
		if err = p.acquireSlot(ctx, p.allRunning, timeout); err != nil {
			<-own.(chan bool)
		}
	}
	return err
}

// acquireSlot waits for a place. Who waits longest has the first that is free.
func (p *pool) acquireSlot(ctx context.Context, places chan bool, timeout time.Duration) error {
	select {
	case places <- true:
		return nil
	default:
	}
	select {
	case places <- true:
		return nil
	case <-time.After(cmp.Or(timeout, math.MaxInt64)):
		return fmt.Errorf("module %q %w", p.name, errBusy)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// releaseSlots is the end of a call that had its places.
func (p *pool) releaseSlots(principal string) {
	own, _ := p.running.Load(principal)
	<-own.(chan bool)
	<-p.allRunning
}

// enter finds the process for a caller, or starts one and waits for it. It is held
// until leave: it is not stopped.
func (p *pool) enter(ctx context.Context, caller Caller) (*process, error) {
	c, err := p.pick(caller)
	if err != nil {
		return nil, err
	}
	select {
	case <-c.ready:
		if err = c.err; err == nil {
			return c, nil
		}
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	p.leave(c, false)
	return nil, err
}

func (p *pool) pick(caller Caller) (*process, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	affinity := "" // one for all
	if p.perSession {
		affinity = caller.Affinity
	}
	c := p.procs[affinity]
	if c != nil && c.worker != nil && !c.worker.alive() {
		p.end(c)
		c = nil
	}
	crashed := p.crashes[affinity]
	switch {
	case p.retired:
		return nil, errRetired
	case c != nil:
	case time.Now().Before(crashed.notBefore):
		return nil, fmt.Errorf("module %q keeps crashing; it is started again in %v at the earliest", p.name, time.Until(crashed.notBefore).Round(100*time.Millisecond))
	case p.perSession && !p.makeRoom(caller.Principal):
		return nil, fmt.Errorf("module %q %w", p.name, errBusy)
	default:
		c = &process{affinity: affinity, principal: caller.Principal, ready: make(chan struct{})}
		p.procs[affinity] = c
		p.wg.Go(func() { p.run(c, caller) })
	}
	c.active++
	return c, nil
}

// leave is the end of a call. One that succeeded says that the process does not
// keep crashing.
func (p *pool) leave(c *process, succeeded bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c.active--
	c.lastUse = time.Now()
	if succeeded {
		delete(p.crashes, c.affinity)
	}
	if p.ending[c] || p.perSession && c.active == 0 && c.worker != nil && c.worker.attributionLost.Load() {
		p.end(c)
	}
}

// end has a process take no more calls, and end after those under way. Called with
// mu held, and again when they have ended.
func (p *pool) end(c *process) {
	if p.procs[c.affinity] == c {
		delete(p.procs, c.affinity)
		p.ending[c] = true
	}
	if c.worker != nil && (c.active == 0 || p.closed) {
		c.worker.stop()
	}
}

// run starts a process, and stays until it has ended. Its first crash, or failed
// start, costs nothing; from then on the wait doubles, up to half a minute.
func (p *pool) run(c *process, caller Caller) {
	var owner *Caller
	if p.perSession {
		owner = &caller
	}
	w, err := p.start(p.ctx, owner)
	if err == nil {
		w.onCallDone = p.releaseSlots
	}
	p.mu.Lock()
	c.worker, c.err = w, err
	if p.ending[c] {
		p.end(c)
	}
	p.mu.Unlock()
	close(c.ready)
	if err == nil {
		<-w.done
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil && !errors.Is(err, errChanged) || err == nil && !w.stopping.Load() {
		maps.DeleteFunc(p.crashes, func(_ string, last crashes) bool { return time.Since(last.notBefore) > crashMemory })
		n := crashes{p.crashes[c.affinity].count + 1, time.Now()}
		if n.count > 1 {
			n.notBefore = n.notBefore.Add(min(250*time.Millisecond<<min(n.count, 10), 30*time.Second))
		}
		p.crashes[c.affinity] = n
	}
	p.end(c)
	delete(p.ending, c)
}

// busy reports whether somebody calls the process, or listens to it.
func (c *process) busy() bool { return c.active > 0 || c.worker != nil && c.worker.listened() }

// makeRoom ends an idle process if there are as many as there may be: of the same
// principal first, then the one idle longest. It reports whether there is room for
// one more. Those on their way out count by themselves. Called with mu held.
func (p *pool) makeRoom(principal string) bool {
	if len(p.ending) >= maxProcs {
		return false
	}
	all := slices.Collect(maps.Values(p.procs))
	own := slices.DeleteFunc(slices.Clone(all), func(c *process) bool { return c.principal != principal })
	full := principal != "" && len(own) >= maxProcsOf
	if len(all) < maxProcs && !full {
		return true
	}
	idle := slices.DeleteFunc(own, (*process).busy)
	if len(idle) == 0 && !full {
		idle = slices.DeleteFunc(all, (*process).busy)
	}
	if len(idle) == 0 {
		return false
	}
	p.end(slices.MinFunc(idle, func(a, b *process) int { return a.lastUse.Compare(b.lastUse) }))
	return true
}

// stopFor ends the process that serves no one but these callers, after the
// calls under way.
func (p *pool) stopFor(affinity string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c := p.procs[affinity]; c != nil && p.perSession {
		p.end(c)
	}
}

// retire refuses further calls and ends the processes after those under way.
func (p *pool) retire() { p.endAll(false) }

// close ends the processes, calls under way or not, and waits until they are gone.
func (p *pool) close() {
	p.endAll(true)
	p.wg.Wait()
}

func (p *pool) endAll(now bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.retired, p.closed = true, p.closed || now
	for c := range p.ending {
		p.end(c)
	}
	for _, c := range p.procs {
		p.end(c)
	}
}

// reap ends the processes that were not used for idle (0: ever) and that nobody
// listens to.
func (p *pool) reap(now time.Time, idle time.Duration) {
	if p.perSession && (idle == 0 || idle > sessionIdle) {
		idle = sessionIdle
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.DeleteFunc(p.crashes, func(_ string, c crashes) bool { return now.Sub(c.notBefore) > time.Minute })
	for _, c := range p.procs {
		if !c.busy() && idle > 0 && now.Sub(c.lastUse) > idle {
			p.end(c)
		}
	}
}

// finished reports whether the pool is retired and has no process left.
func (p *pool) finished() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.retired && len(p.ending) == 0
}

// subscribe has the caller's process say when a resource changes, to notify.
func (p *pool) subscribe(ctx context.Context, caller Caller, uri string, notify func(params json.RawMessage)) (*subscription, error) {
	c, err := p.enter(ctx, caller)
	if err != nil {
		return nil, err
	}
	defer p.leave(c, false)
	if !caller.authorized() { // any more: it may have waited for the process
		return nil, errNotMade
	}
	return c.worker.subscribe(ctx, uri, notify)
}

// answerInput gets from the caller what a result asks for, and returns params
// with the answers (MCP 2026-07-28, basic/patterns/mrtr). The error is for the
// caller: what it can't be asked for, or did not answer.
func answerInput(ctx context.Context, caller Caller, params object, result json.RawMessage) (object, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, askTimeout, errNoAnswer)
	defer cancel()
	var answers object
	for key, request := range fields(field(result, "inputRequests")) {
		method, wish := stringField(request, "method"), field(request, "params")
		if _, err := caller.checkAskable(method, wish); err != nil {
			return nil, rpcErrorf(codeInternal, "%v", err)
		}
		answer, err := caller.Ask(ctx, method, wish)
		if err != nil {
			return nil, err
		}
		answers = append(answers, member{key, answer})
	}
	params = params.without("requestState").set("inputResponses", answers.encode())
	if state := field(result, "requestState"); state != nil {
		params = params.set("requestState", state)
	}
	return params, nil
}
