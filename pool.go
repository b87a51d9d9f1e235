// Pools. A pool consists of the processes of one module. A hosted server has one process
// for each session, as if the session's client had started it; callers without a session
// share one for each principal. Other modules have one process for all
// callers. This file decides which process a call goes to, how many processes and running
// calls there may be, and when a process ends.

package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"slices"
	"sync"
	"time"
)

const (
	sessionIdle = 10 * time.Minute       // how long a process of one Member is kept without a call
	slowCall    = 10 * time.Second       // after which the log says that a call is running
	crashMemory = time.Minute            // how long a crash counts
	crashPause  = 5 * time.Second        // between a crash, from the second on, and a new start
	settleTime  = 250 * time.Millisecond // in which a new process may still add to its lists
)

// pool is all processes of one version of a module. Safe for concurrent use.
type pool struct {
	source
	log        *slog.Logger
	perSession bool            // one process for each Member, and not one for all callers
	ctx        context.Context // ends when the pool accepts no new calls; starts of processes end with it
	cancel     context.CancelFunc
	// start starts a process. owner is the caller that a process for one Member is
	// started for; nil for a shared process.
	start   func(owner *Caller) (*Worker, error)
	shell   *shellRunner        // runs the calls of a shell module instead of processes; else nil
	timeout time.Duration       // how long a call may be silent, and wait before it is made; 0 is unlimited
	calls   counter[*Principal] // running
	started counter[*Principal] // processes, until they have ended, except those of needsNoRoom
	running *sync.WaitGroup     // counts the processes
	offers  string              // a hash of the manifest that is served; see moduleOwner

	mu      sync.Mutex                    // guards the fields below
	procs   []*process                    // waiting, running or ending, in the order of their first calls
	crashed map[context.Context]time.Time // by Member, after a crash: the earliest time of the next start
}

// process is one process of a module, from before its start. The pool's mu guards its
// fields; worker and err are constant once ready is closed.
type process struct {
	// caller is the first caller, whose principal the process counts for; without Notify and Ask if
	// it has no session. Zero if the process is shared.
	caller  Caller
	state   processState
	ready   chan struct{} // closed when worker or err is set
	worker  *Worker
	err     error // why it could not be started
	active  int   // calls under way
	kept    bool  // reap does not stop it for being idle, but makeRoom does
	lastUse time.Time
}

// processState is the state of a process in its pool, from before its start. It only advances. A
// process that has started also has a workerPhase: it may have crashed while the pool says
// processRunning.
type processState int

const (
	processWaiting processState = iota // for room; it accepts calls, which wait for it
	processRunning                     // it has been or is being started; it accepts calls
	processEnding                      // it accepts no calls, and ends after those under way
)

// call makes one request of the module; see Worker.request. If a stateless module answers that it
// needs input, call asks a caller with a session for it. If the error is errRetired, the pool was
// retired before the module asked anything, and the call may be made again.
func (p *pool) call(ctx context.Context, caller Caller, method string,
	params object) (object, error) {
	if p.Launch.Shared { // the folders of one client would count for all
		caller.Client.caps &^= capRoots
	}
	if caller.Client.caps&capRoots == 0 {
		params = params.withoutRoots()
	}
	asked := false
	for range maxRounds {
		result, err := p.callOnce(ctx, caller, method, params)
		if errors.Is(err, errNotSent) {
			continue
		}
		if errors.Is(err, errRetired) && asked { // to begin again would ask again
			err = rpcErrorf(codeInternal, "module %q was reloaded during the call: call again", p.Name)
		}
		if err != nil || result.text("resultType") != resultInput {
			return result, err
		}
		if err := caller.Client.caps.checkInput(result); err != nil {
			return nil, err
		}
		if caller.Sessionless {
			return result, nil
		}
		asked = true
		params, err = answerInput(ctx, caller, params, result)
		if err != nil {
			return nil, err
		}
	}
	return nil, rpcErrorf(codeInternal, "module %q keeps asking for input or ending", p.Name)
}

// subscribeMethod makes a module report the changes of a resource.
const subscribeMethod = "resources/subscribe"

// callOnce makes one request, when there is a process and a slot for it.
func (p *pool) callOnce(ctx context.Context, caller Caller, method string,
	params object) (object, error) {
	if p.ctx.Err() != nil {
		return nil, errRetired
	}
	request := p.shell.request
	if p.shell == nil {
		c, err := p.enter(ctx, caller)
		if err != nil {
			return nil, err
		}
		defer p.leave(c)
		request = c.worker.request
		if method == subscribeMethod && !p.keep(c) {
			return nil, rpcErrorf(codeNoMethod, "module %q does not report resource changes", p.Name)
		}
	}
	slot := &slot[*Principal]{counter: &p.calls, key: caller.Principal}
	err := p.await(ctx, caller, slot.grant())
	if err == nil {
		defer time.AfterFunc(slowCall, func() { p.logSlow(caller, method, params) }).Stop()
		err = lastCheck(caller)
	}
	if err == nil {
		if caller.Running != nil {
			ctx = caller.Running
		}
		return request(ctx, caller, method, params, p.timeout, slot)
	}
	slot.release()
	return nil, err
}

// logSlow logs that a call is still running.
func (p *pool) logSlow(caller Caller, method string, params object) {
	name := cmp.Or(params.text("name"), params.text("uri"))
	p.log.Warn("a call is still running", "request", method, "method", clipText(name, maxLogged),
		caller.Principal.logAttrs())
}

// keep makes a process live as long as its session, which gets the module's reports of changes,
// unless another process needs its room. It reports whether the process can report changes to one
// session.
func (p *pool) keep(c *process) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	c.kept = p.perSession && !c.worker.stateless
	return c.kept
}

// lastCheck checks a caller's claim for the last time. Call it immediately before a call is
// handed to a process. The error is errEnded if the claim has ended, or says that the
// claim can't be checked at the moment.
func lastCheck(caller Caller) error {
	err := caller.Principal.Check()
	if errors.Is(err, errClaimsUnreadable) {
		return rpcErrorf(codeRefused, "%v, so the call was not made: try again", errClaimsUnreadable)
	}
	return err
}

// introspect reads the module's lists. If all callers share a process, introspect starts it and
// leaves it to their calls; otherwise, introspect starts a process of its own, which then ends. It
// waits for the start as long as that takes, and then a moment longer if the lists may change,
// because some servers register the rest of their tools only once they know their client.
func (p *pool) introspect() (*manifest, error) {
	member, end := context.WithCancel(p.ctx)
	defer end()
	c, err := p.pick(Caller{Member: member})
	if err != nil {
		return nil, err
	}
	defer p.leave(c)
	<-c.ready
	if c.err != nil {
		return nil, c.err
	}
	if bytes.Contains(c.worker.info.get("capabilities"), []byte(`"listChanged"`)) {
		pauseFor(p.ctx, settleTime)
	}
	return readManifest(p.ctx, c.worker)
}

// enter returns the process for a caller, and starts it if there is none. Until leave, the process
// is not stopped for being idle.
func (p *pool) enter(ctx context.Context, caller Caller) (*process, error) {
	c, err := p.pick(caller)
	if err != nil {
		return nil, err
	}
	if err = p.await(ctx, caller, c.ready); err == nil {
		err = c.err
	}
	if err != nil {
		p.leave(c)
		return nil, err
	}
	return c, nil
}

// await waits until done is closed, for at most p.timeout. The error is errEnded if the
// caller's claim ends first.
func (p *pool) await(ctx context.Context, caller Caller, done <-chan struct{}) error {
	select {
	case <-done:
		return nil
	default: // only a call that has to wait costs a timer
	}
	busy := fmt.Errorf("module %q is busy or still starting: try again", p.Name)
	ctx, cancel := context.WithTimeoutCause(ctx, cmp.Or(p.timeout, math.MaxInt64), busy)
	defer cancel()
	return caller.Principal.waitFor(ctx, done)
}

// pick returns the process for a caller, which may not have started yet.
func (p *pool) pick(caller Caller) (*process, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ctx.Err() != nil {
		return nil, errRetired
	}
	if !p.perSession {
		caller = Caller{}
	}
	c := p.find(caller.Member)
	if c == nil || p.replace(c) {
		if wait := time.Until(p.crashed[caller.Member]); wait > 0 {
			return nil, fmt.Errorf("module %q keeps crashing: try again in %.1f s", p.Name, wait.Seconds())
		}
		if caller.Sessionless { // its functions are only for its own call, and would keep the call
			caller.Notify = nil
			caller.Ask = nil
		}
		c = &process{caller: caller, ready: make(chan struct{})}
		p.procs = append(p.procs, c)
		p.startWaiting()
	}
	c.active++
	return c, nil
}

// find returns the process that accepts the calls of a member (nil if it is shared), or nil.
// The caller holds p.mu.
func (p *pool) find(member context.Context) *process {
	for _, c := range p.procs {
		dead := c.worker != nil && !c.worker.alive()
		if c.caller.Member == member && c.state != processEnding && !dead {
			return c
		}
	}
	return nil
}

// replace ends a process that cancelled calls crowd, and reports whether it did; then new calls
// need another one. It does nothing while another process of the pool is ending. The caller holds
// p.mu.
func (p *pool) replace(c *process) bool {
	ending := slices.ContainsFunc(p.procs, func(o *process) bool { return o.state == processEnding })
	if ending || !c.worker.crowded(p.timeout) {
		return false
	}
	c.worker.log.Warn("cancelled calls still run: starting another process")
	p.end(c)
	if p.timeout > 0 {
		time.AfterFunc(p.timeout, c.worker.stopBlocked)
	}
	return true
}

// startWaiting starts the waiting processes, in order, within the limits, and makes room
// for those that must wait. The caller holds p.mu.
func (p *pool) startWaiting() {
	for _, c := range p.procs {
		switch {
		case c.state != processWaiting:
		case c.needsNoRoom() || p.started.reserve(c.caller.Principal, 1):
			c.state = processRunning
			p.running.Go(func() { p.run(c) })
		default:
			p.makeRoom(c.caller.Principal)
		}
	}
}

// needsNoRoom reports whether the process is for usher itself or for all callers. There is hardly
// ever more than one of these, beside one that is ending.
func (c *process) needsNoRoom() bool { return c.caller.Principal == nil }

// makeRoom makes the process end that has been idle longest, if possible one of the
// principal who needs room. It does nothing while another process makes room. The caller
// holds p.mu.
func (p *pool) makeRoom(principal *Principal) {
	onlyOwn := p.started.count(principal) >= maxProcsOf
	var own, all []*process // idle
	for _, c := range p.procs {
		isOwn := c.caller.Principal == principal
		switch {
		case c.state == processWaiting || onlyOwn && !isOwn:
		case c.state == processEnding:
			return
		case c.active == 0:
			all = append(all, c)
			if isOwn {
				own = append(own, c)
			}
		}
	}
	if len(own) > 0 {
		all = own
	}
	if len(all) > 0 {
		p.end(slices.MinFunc(all, func(a, b *process) int { return a.lastUse.Compare(b.lastUse) }))
	}
}

// leave ends a call.
func (p *pool) leave(c *process) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c.active--
	c.lastUse = time.Now()
	member := c.caller.Member
	if c.active == 0 && (c.state == processWaiting || member != nil && member.Err() != nil) {
		p.end(c)
	}
	p.startWaiting()
}

// end refuses new calls of a process, and stops the process when it has answered its calls. A
// call that has not reached the process is made again, in another. The caller holds p.mu.
func (p *pool) end(c *process) {
	if c.state == processWaiting {
		p.procs = remove(p.procs, c)
		c.err = errRetired
		close(c.ready)
	}
	c.state = processEnding
	if c.worker != nil {
		c.worker.drain()
	}
}

// run starts a process, and returns when it has ended. After the first crash or failed
// start of a Member, the next process may start at once; after each further one within
// crashMemory, only after crashPause.
func (p *pool) run(c *process) {
	if member := c.caller.Member; member != nil {
		defer context.AfterFunc(member, func() { p.onMemberEnd(c) })()
	}
	var owner *Caller
	if p.perSession {
		owner = &c.caller
	}
	w, err := p.start(owner)
	if err != nil && p.ctx.Err() != nil {
		err = errRetired
	}
	p.mu.Lock()
	c.worker = w
	c.err = err
	if c.state == processEnding {
		p.end(c)
	}
	p.mu.Unlock()
	close(c.ready)
	crashed := err != nil && !errors.Is(err, errUnapproved)
	if err == nil {
		<-w.done
		crashed = w.snapshot().reason == ""
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if crashed {
		next := time.Now()
		if _, again := p.crashed[c.caller.Member]; again {
			next = next.Add(crashPause)
		}
		p.crashed[c.caller.Member] = next
	}
	if !c.needsNoRoom() {
		p.started.release(c.caller.Principal, 1)
	}
	p.procs = remove(p.procs, c)
	p.startWaiting()
}

// onMemberEnd ends a process, after the calls under way, because its caller's membership has ended.
func (p *pool) onMemberEnd(c *process) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c.active == 0 { // else the last call ends it
		p.end(c)
	}
}

// retire refuses new calls, and ends the processes after the calls under way. A new call waits for
// the next catalog: see Registry.Call. p may be nil.
func (p *pool) retire() {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cancel()
	for _, c := range slices.Clone(p.procs) {
		p.end(c)
	}
}

// reap ends the processes that have had no call for idle (0: unlimited), and those that cancelled
// calls crowd and that no other call uses. It also forgets old crashes.
func (p *pool) reap(now time.Time, idle time.Duration) {
	if p.perSession && (idle == 0 || idle > sessionIdle) {
		idle = sessionIdle
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.DeleteFunc(p.crashed, func(_ context.Context, next time.Time) bool {
		return now.Sub(next) > crashMemory
	})
	p.startWaiting()
	for _, c := range p.procs {
		isIdle := !c.kept && idle > 0 && now.Sub(c.lastUse) > idle
		if c.active == 0 && (isIdle || c.worker.crowded(p.timeout)) {
			p.end(c)
		}
	}
}
