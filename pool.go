// Pools. A pool is the processes of one version of a module, and the calls under way in them. A
// hosted server has one process for each session, as if the session's client had started it;
// callers without a session share one for each principal. Other modules have one process for all
// callers, except shell modules, which have one for each call. This file decides which process a
// call goes to, when a process starts, when it is no longer needed, and when a call has taken too
// long.
//
// The pool's lock guards everything that changes: which processes there are, the state of each, and
// their calls. So a process is in the state that its field state says. Nothing slow
// happens under the lock: a process starts, and a list is read, in a goroutine of its own. The
// exception is a line for the log, if whatever reads stderr is slow.
//
// A call passes through enter, which finds or starts its process, waits for the process and for a
// slot of the module, and is handed to a runner: the process, or the shell for a shell module.
// Its context ends if its caller cancels it, if its process ends, or if sweep finds that it takes too
// long. sweep looks at all calls and processes once a second, so silence and idleness need no timers.

package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	sweepTime   = time.Second            // between two sweeps
	sessionIdle = 10 * time.Minute       // how long a process of one Member is kept without a call
	roomIdle    = time.Minute            // without a call, after which a process may make room for another
	slowCall    = 10 * time.Second       // after which the log says that a call is running
	crashMemory = time.Minute            // how long a crash counts
	crashPause  = 5 * time.Second        // between a crash, from the second on, and a new start
	settleTime  = 250 * time.Millisecond // in which a new process may still add to its lists
)

// poolConfig is the part of a pool that does not change.
type poolConfig struct {
	source
	log        *slog.Logger
	perSession bool            // one process for each Member, and not one for all callers
	ends       context.Context // the processes end with it
	timeout    time.Duration   // how long a call may be silent, and wait before it is made; 0 is unlimited
	idle       time.Duration   // how long a process is kept without a call; 0 is unlimited
	running    *sync.WaitGroup // counts the processes
	shell      *shellRunner    // runs the calls of a shell module instead of processes; else nil

	// The limits are those of the module: its versions share them.
	slots *counter // running calls
	rooms *counter // processes, until they have ended; nil counts all without a claim

	// start starts w's process. It returns when w is ready or has ended, or an error if w has got no
	// process. onLists is called when the lists of a process have been read, and onParts when a shim
	// reports files that the module has loaded.
	start   func(w *Worker) error
	onLists func(w *Worker, m *manifest)
	onParts func(w *Worker, paths []string)
}

// pool is the processes of one version of a module. Safe for concurrent use.
type pool struct {
	poolConfig
	ctx    context.Context // ends when the pool accepts no new calls; builds end with it
	cancel context.CancelFunc

	refusesDiscover atomic.Bool // a process ended when it was asked server/discover

	// mu is the only lock of the pool, its processes and its calls. It guards the fields below.
	mu    sync.Mutex
	procs []*Worker                    // that have not ended, in the order of their first calls
	calls map[*call]bool               // under way, or waiting to be made
	lost  map[context.Context]lostProc // by Member
}

// lostProc is what the next call of a Member must know of the Member's last process.
type lostProc struct {
	restart time.Time // after a crash: the earliest time of the next start
	evicted bool      // it has made room, and its session has not made a call since
}

// newPool returns a pool without processes, which accepts calls until ctx ends.
func newPool(ctx context.Context, config poolConfig) *pool {
	p := &pool{
		poolConfig: config,
		calls:      make(map[*call]bool),
		lost:       make(map[context.Context]lostProc),
	}
	p.ctx, p.cancel = context.WithCancel(ctx)
	context.AfterFunc(p.ctx, p.retire) // also if the module is removed, or usher ends
	return p
}

// call makes one request of the module; see Worker.request. If a stateless module answers that it
// needs input, call asks a caller with a session for it. If the error is errRetired, the pool was
// retired, and the call may be made again.
func (p *pool) call(ctx context.Context, caller Caller, method string,
	params object) (object, error) {
	if p.Launch.Shared { // the folders of one client would count for all
		caller.Client.caps &^= capRoots
	}
	if caller.Client.caps&capRoots == 0 {
		params = params.withoutRoots()
	}
	// A round ends with the result, with an error, or because the process ended before it got the call.
	for range maxRounds {
		result, err := p.callOnce(ctx, caller, method, params)
		if errors.Is(err, errNotSent) {
			continue
		}
		if err != nil || result.text("resultType") != resultInput {
			return result, err
		}
		if err := caller.Client.caps.checkInput(result); err != nil {
			return nil, err
		}
		if caller.Member != nil && caller.Stream == nil { // a client without a session answers by itself
			return result, nil
		}
		params, err = answerInput(ctx, caller, params, result)
		if err != nil {
			return nil, err
		}
	}
	return nil, rpcErrorf(codeInternal, "module %q keeps asking for input or ending", p.Name)
}

// subscribeMethod makes a module report the changes of a resource.
const subscribeMethod = "resources/subscribe"

// callOnce makes one request, when there is a process and a slot for it. It returns errNotSent if
// the process did not take the request: then the call can be made again, in another one.
func (p *pool) callOnce(ctx context.Context, caller Caller, method string,
	params object) (object, error) {
	c := newCall(ctx, caller)
	defer c.cancel(nil)
	c.method = method
	c.name = cmp.Or(params.text("name"), params.text("uri"))
	if err := p.enter(c); err != nil {
		return nil, err
	}
	defer p.leave(c)
	request := p.shell.request
	if w := c.worker; w != nil {
		// ready is also closed if the start has failed. From then on, started and failure don't change.
		if err := caller.Principal.waitFor(c.ctx, w.ready); err != nil {
			return nil, err
		}
		if !w.started {
			return nil, w.failure
		}
		request = w.request
		if method == subscribeMethod {
			if !p.perSession || w.stateless {
				return nil, rpcErrorf(codeNoMethod, "module %q does not report resource changes", p.Name)
			}
			w.update(func() { w.subscribed = true }) // it lives as long as its session, if there is room
		}
	}
	// The process comes first: a slot that waits for a build would keep others from running.
	c.slot = &slot{counter: p.slots, key: caller.Principal}
	err := caller.Principal.waitFor(c.ctx, c.slot.queue())
	if err == nil && caller.Begun != nil {
		err = caller.Begun()
	}
	if err == nil {
		p.setHeard(c)
		err = lastCheck(caller)
	}
	if err == nil {
		return request(c, method, params)
	}
	c.slot.release()
	return nil, err
}

// setHeard records that a call no longer waits.
func (p *pool) setHeard(c *call) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c.heard = time.Now()
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
	c := newCall(p.ctx, Caller{Member: member})
	defer c.cancel(nil)
	if err := p.enter(c); err != nil {
		return nil, err
	}
	defer p.leave(c)
	w := c.worker
	before := p.refusesDiscover.Load()
	<-w.ready
	if !w.started && before != p.refusesDiscover.Load() {
		return p.introspect() // in a process that is asked something else
	}
	if !w.started {
		return nil, w.failure
	}
	if bytes.Contains(w.info.get("capabilities"), []byte(`"listChanged"`)) {
		pauseFor(p.ctx, settleTime)
	}
	return w.readManifest()
}

// enter finds the process for a call, and starts one if there is none. Until leave, the process is in
// use. It may not have started yet.
func (p *pool) enter(c *call) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ctx.Err() != nil {
		return errRetired
	}
	var owner Caller
	if p.perSession {
		owner = c.caller
	}
	member := owner.Member
	lost := p.lost[member]
	pause := time.Until(lost.restart)
	c.worker = p.find(member)
	switch {
	case p.shell != nil || c.worker != nil:
	case lost.evicted:
		delete(p.lost, member)
		return fmt.Errorf("module %q ended to make room, so its state is lost: call again", p.Name)
	case pause > 0:
		return fmt.Errorf("module %q keeps crashing: try again in %.1f s", p.Name, pause.Seconds())
	default:
		w := newWorker(p, owner)
		c.worker = w
		p.procs = append(p.procs, w)
		p.running.Go(func() { p.run(w) })
	}
	c.heard = time.Now()
	p.calls[c] = true
	return nil
}

// find returns the process that accepts the calls of a Member, or nil. The caller holds p.mu.
func (p *pool) find(member context.Context) *Worker {
	for _, w := range p.procs {
		if w.owner.Member == member && w.state < workerDraining {
			return w
		}
	}
	return nil
}

// leave ends a call that has entered. The process may still have to confirm its cancellation: see
// Worker.endCall.
func (p *pool) leave(c *call) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.calls, c)
}

// run starts a process once it has room, and returns when the process has ended. After the first
// crash or failed start of a Member, the next process may start at once; after each further one
// within crashMemory, only after crashPause.
func (p *pool) run(w *Worker) {
	var err error
	if w.room != nil {
		err = waitFor(w.ctx, w.room.queue())
	}
	if err == nil {
		w.update(func() { w.advance(workerStarting) })
		err = p.start(w)
	}
	if err != nil && p.ctx.Err() != nil { // that is why
		err = errNotSent
	}
	if err != nil {
		w.stop(err)
		w.finish("")
	}
	// Nothing of the process runs any longer, so its place may go to another one.
	<-w.done
	if !w.started { // only now failure says why
		close(w.ready)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	member := w.owner.Member
	if w.crashed {
		// sweep forgets the time of a crash after crashMemory, so a crash now and then costs nothing.
		next := time.Now()
		if _, again := p.lost[member]; again {
			next = next.Add(crashPause)
		}
		p.lost[member] = lostProc{restart: next}
	}
	p.procs = remove(p.procs, w)
	w.room.release()
}

// roomsOf returns how many processes of a module the principal key may have; nil counts all principals
// without a claim together.
func roomsOf(key any) int {
	if key == nil {
		return maxProcsOpen
	}
	return maxProcsOf
}

// makeRoom ends an idle process if w waits for room, unless another one makes room already. It
// prefers processes of w's principal, then those whose session has no open stream, then those that
// have been idle longest. The caller holds p.mu.
func (p *pool) makeRoom(w *Worker, now time.Time) {
	if w.room == nil || w.state != workerWaiting {
		return
	}
	isOwn := func(o *Worker) bool { return o.room.key == w.room.key }
	isSilent := func(o *Worker) bool { return o.owner.Stream == nil || o.owner.Stream() == nil }
	// If the principal has as many as it may have, the end of another's process would not help.
	onlyOwn := p.rooms.count(w.room.key) >= roomsOf(w.room.key)
	var idle []*Worker
	for _, o := range p.procs {
		switch {
		case o.room == nil || o.state == workerWaiting || onlyOwn && !isOwn(o):
		case o.state >= workerDraining:
			return
		case now.Sub(o.lastUse) >= roomIdle:
			idle = append(idle, o)
		}
	}
	if idle == nil {
		return
	}
	idle = prefer(prefer(idle, isOwn), isSilent)
	chosen := slices.MinFunc(idle, func(a, b *Worker) int { return a.lastUse.Compare(b.lastUse) })
	p.log.Warn("a process of a session ends to make room for another")
	if chosen.owner.Stream != nil { // the session must learn that its state is lost
		p.lost[chosen.owner.Member] = lostProc{evicted: true}
	}
	chosen.advance(workerDraining)
}

// prefer returns the processes that have a property or, if none has it, all.
func prefer(list []*Worker, has func(*Worker) bool) []*Worker {
	if !slices.ContainsFunc(list, has) {
		return list
	}
	return slices.DeleteFunc(list, func(w *Worker) bool { return !has(w) })
}

// retire refuses new calls, and ends the processes after the calls under way. A new call waits for
// the next catalog: see Registry.Call. p may be nil.
func (p *pool) retire() {
	if p != nil {
		p.cancel()
		p.drain()
	}
}

// drain ends the processes after the calls under way. New calls go to others, which enter starts when
// the first of these calls comes.
func (p *pool) drain() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, w := range p.procs {
		w.advance(workerDraining)
	}
}

// ofMember calls look with the process that accepts the calls of a Member, if there is one. Views and
// the registry see the state of a process only in this way: with the lock held, and for a moment. look
// must not block. p may be nil.
func (p *pool) ofMember(member context.Context, look func(*Worker)) {
	if p == nil {
		return
	}
	if !p.perSession {
		member = nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if w := p.find(member); w != nil {
		look(w)
	}
}

// sweep ends what has taken too long: calls, cancelled ones that still count as running, and
// processes that nobody needs. It reports whether the pool has retired, and nothing is left of it.
func (p *pool) sweep(now time.Time) (gone bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	// First what the modules have asked clients: while a client is asked, its call is not silent.
	for _, w := range p.procs {
		w.sweepCalls(now)
		w.readLists()
	}
	for c := range p.calls {
		p.sweepCall(c, now)
	}
	// Now lastUse says which processes are in use, because sweepCall has set it for all calls.
	for _, w := range p.procs {
		p.makeRoom(w, now)
		unused := now.Sub(w.lastUse)
		member := w.owner.Member
		isIdle := p.idle > 0 && unused > p.idle && !w.subscribed
		isUnwanted := w.state == workerWaiting || member != nil && member.Err() != nil
		if isIdle || isUnwanted && unused > 0 {
			w.advance(workerDraining)
		}
	}
	maps.DeleteFunc(p.lost, func(member context.Context, l lostProc) bool {
		isOld := !l.evicted && now.Sub(l.restart) > crashMemory
		return isOld || member != nil && member.Err() != nil
	})
	return p.ctx.Err() != nil && len(p.procs)+len(p.calls) == 0
}

// sweepCall ends a call that has waited, or whose module has been silent, for too long, logs one that
// takes long, and records that its process is in use. The caller holds p.mu.
func (p *pool) sweepCall(c *call, now time.Time) {
	if c.worker != nil {
		c.worker.lastUse = now
	}
	if !c.ofClient() {
		return
	}
	if p.timeout > 0 && now.Sub(c.heard) >= p.timeout {
		c.cancel(fmt.Errorf("module %q: %w within %v", p.Name, errTimeout, p.timeout))
	}
	if !c.isSlow && now.Sub(c.arrived) >= slowCall {
		c.isSlow = true
		p.log.Warn("a call is still running",
			"request", c.method,
			"method", logText(c.name),
			c.caller.Principal.logAttrs())
	}
}
