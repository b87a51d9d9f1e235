// Pools: one process of a module, or the place for one, started by the first
// call, stopped when idle, and started again after a crash; and the resources
// whose changes it is to tell of. Whose process it is, the fleet decides.

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// pool is one process of a module, or the place for one: it is started by the
// first call, stopped when it was not used for long, and started again after a
// crash. It is safe for concurrent use.
type pool struct {
	name  string
	start func(ctx context.Context) (*Worker, error)
	ctx   context.Context // ends when the registry does
	wg    sync.WaitGroup  // starts under way and processes that live

	onLeave func()
	private atomic.Bool // it is one session's, or one call's at a time
	kin     string      // of a lane: whose calls it serves; guarded by the fleet's mu
	alone   bool        // of a lane: one call at a time; guarded likewise

	subscribing sync.Mutex // held while subscriptions are made

	mu        sync.Mutex
	subs      map[string]*subscription // by URI
	worker    *Worker                  // nil for none
	starting  *starting                // nil when no start is under way
	active    int                      // calls under way
	living    int                      // starts under way and processes not yet gone
	lastUse   time.Time
	retired   bool // no new calls; the process ends with the last one
	closed    bool // no new processes either
	outdated  bool // the process ends with its last call; the next starts another
	pinned    bool // not stopped when idle: it could not be started again
	failures  int  // crashes and failed starts since a call succeeded
	notBefore time.Time
}

// starting is a start that several calls may wait for.
type starting struct {
	done   chan struct{}
	worker *Worker
	err    error
}

// errRetired says that the module was replaced by a newer version of itself
// before the call began: look it up again.
var errRetired = errors.New("the module was reloaded")

// enter holds the process, or the place, until leave: it is not stopped.
func (p *pool) enter() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.active++
}

func (p *pool) running() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.worker != nil && p.worker.alive()
}

func (p *pool) busy() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.active > 0
}

func (p *pool) lastUsed() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lastUse
}

func (p *pool) subscribed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.subs) > 0
}

// crashMemory is for how long after its last use a process of one caller's is
// known to have crashed. It is more than it ever waits to be started again.
const crashMemory = time.Minute

// asleep reports whether there is no process, nobody who needs one, and no crash
// that the next start has to wait for.
func (p *pool) asleep() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	crashed := p.failures > 0 || p.worker != nil // which no call has missed yet
	return p.active == 0 && p.living == 0 && len(p.subs) == 0 && (!crashed || time.Since(p.lastUse) > crashMemory)
}

// owner is the latest caller of the process, if it has served and will serve no
// other kin.
func (p *pool) owner() *Caller {
	p.mu.Lock()
	w, active := p.worker, p.active
	p.mu.Unlock()
	if w == nil || active > len(w.callersInFlight()) { // somebody is about to call it
		return nil
	}
	return w.asks.only()
}

// do makes one request of a pool that was entered.
func (p *pool) do(ctx context.Context, caller Caller, method string, params json.RawMessage, idle time.Duration) (json.RawMessage, error) {
	for {
		w, err := p.acquire(ctx)
		if err != nil {
			return nil, err
		}
		result, err := w.request(ctx, caller, method, params, idle)
		if errors.Is(err, errNotSent) {
			continue
		}
		if !errors.As(err, new(*crashError)) {
			p.mu.Lock()
			p.failures = 0
			p.mu.Unlock()
		}
		return result, err
	}
}

func (p *pool) leave() {
	defer p.onLeave() // after the lock is given back
	p.mu.Lock()
	defer p.mu.Unlock()
	p.active--
	p.lastUse = time.Now()
	if (p.retired || p.outdated) && p.active == 0 {
		p.stopLocked()
	}
}

// acquire returns the running process, or starts one and waits for it.
func (p *pool) acquire(ctx context.Context) (*Worker, error) {
	p.mu.Lock()
	if p.worker != nil && p.worker.alive() {
		defer p.mu.Unlock()
		return p.worker, nil
	}
	if p.worker != nil {
		p.worker = nil
		p.failedLocked()
	}
	if p.closed {
		p.mu.Unlock()
		return nil, errRetired
	}
	s := p.starting
	if s == nil {
		if wait := time.Until(p.notBefore); wait > 0 {
			p.mu.Unlock()
			return nil, fmt.Errorf("module %q keeps crashing; it is started again in %v at the earliest", p.name, wait.Round(100*time.Millisecond))
		}
		s = &starting{done: make(chan struct{})}
		p.starting = s
		p.living++
		p.wg.Go(func() { p.run(s) })
	}
	p.mu.Unlock()
	select {
	case <-s.done:
		return s.worker, s.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// run starts a process, and stays until it has ended.
func (p *pool) run(s *starting) {
	s.worker, s.err = p.start(p.ctx)
	p.mu.Lock()
	p.starting = nil
	if s.err != nil {
		p.failedLocked()
	} else {
		p.worker = s.worker
		if p.closed || (p.retired || p.outdated) && p.active == 0 {
			p.stopLocked()
		} else if p.forsakenLocked() { // a call was the first to miss the process
			p.renewLocked()
		}
	}
	p.mu.Unlock()
	close(s.done)
	if s.worker != nil {
		<-s.worker.done
	}
	p.mu.Lock()
	p.living--
	p.mu.Unlock()
	p.onLeave()
}

// failedLocked counts a crash or a failed start. The first costs nothing; from
// then on the wait doubles, up to half a minute.
func (p *pool) failedLocked() {
	if p.failures++; p.failures > 1 {
		p.notBefore = time.Now().Add(min(250*time.Millisecond<<min(p.failures, 10), 30*time.Second))
	}
}

func (p *pool) stopLocked() {
	if p.worker != nil {
		p.worker.stop()
		p.worker = nil
	}
	p.outdated = false
}

// retire refuses further calls and ends the process after those under way.
func (p *pool) retire() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.retired = true
	if p.active == 0 {
		p.stopLocked()
	}
}

// renew has the next process take the place of this one, which must not go on
// with the environment that it has.
func (p *pool) renew() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.outdated = p.worker != nil || p.starting != nil; p.active == 0 && p.starting == nil {
		p.stopLocked()
	}
}

// pin keeps the process, if it runs, from being stopped for being idle.
func (p *pool) pin(pinned bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pinned = pinned
}

// reap stops a process that was not used since before.
func (p *pool) reap(before time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.active == 0 && !p.pinned && len(p.subs) == 0 && p.lastUse.Before(before) {
		p.stopLocked()
	}
}

// close ends the process, calls under way or not, and waits until it is gone.
func (p *pool) close() {
	p.mu.Lock()
	p.retired, p.closed = true, true
	p.stopLocked()
	p.mu.Unlock()
	p.wg.Wait()
}

// over reports whether the pool is retired and has no process left.
func (p *pool) over() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.retired && p.active == 0 && p.living == 0
}

// subscription is a resource whose changes somebody wants to hear of.
type subscription struct {
	notify map[*func(json.RawMessage)]Caller // and for whom
	stop   func()                            // of the process that has it now; nil for none
	of     *Worker
}

// serve notes whom the process serves by this: what it asks may be for them.
func (s *subscription) serve(w *Worker) {
	for _, caller := range s.notify {
		w.asks.own(caller)
	}
}

// hold has the process say when a resource changes, to notify, until release is
// called; also after a crash.
func (p *pool) hold(ctx context.Context, caller Caller, uri string, notify func(json.RawMessage)) (release func(), err error) {
	p.mu.Lock()
	s := p.subs[uri]
	if s == nil {
		s = &subscription{notify: make(map[*func(json.RawMessage)]Caller)}
		p.subs[uri] = s
	}
	s.notify[&notify] = caller
	p.mu.Unlock()
	release = func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(s.notify, &notify)
		if len(s.notify) > 0 {
			return
		}
		if p.subs[uri] == s {
			delete(p.subs, uri)
		}
		if s.stop != nil && s.of != nil && s.of.alive() {
			s.stop()
		}
	}
	if err := p.renewSubscriptions(ctx, uri); err != nil {
		release()
		return nil, err
	}
	return release, nil
}

// renewSubscriptions has the process say what changes of all that is wanted,
// starting it if need be. Of the module's errors it returns the one that is about
// asked.
func (p *pool) renewSubscriptions(ctx context.Context, asked string) error {
	w, err := p.acquire(ctx)
	if err != nil {
		return err
	}
	p.subscribing.Lock() // so that who comes second does not take for done what is under way
	defer p.subscribing.Unlock()
	p.mu.Lock()
	var missing []string
	for uri, s := range p.subs {
		if s.of != w || uri == asked {
			s.serve(w)
		}
		if s.of != w {
			s.of, s.stop = w, nil
			missing = append(missing, uri)
		}
	}
	p.mu.Unlock()
	for _, uri := range missing {
		stop, failed := w.subscribe(ctx, uri)
		if uri == asked {
			err = failed
		}
		p.mu.Lock()
		s := p.subs[uri]
		wanted := s != nil && s.of == w
		switch {
		case wanted && failed != nil:
			s.of = nil // to be tried again
		case wanted:
			s.stop = stop
		}
		p.mu.Unlock()
		if !wanted && failed == nil {
			stop()
		}
	}
	return err
}

// revive starts the process again for those who want to hear of its resources.
func (p *pool) revive() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.subs) > 0 && !p.retired && p.starting == nil && time.Now().After(p.notBefore) && (p.worker == nil || !p.worker.alive()) {
		p.renewLocked()
	}
}

// renewLocked has the process say again what a former one was to.
func (p *pool) renewLocked() {
	p.active++
	p.wg.Go(func() {
		defer p.leave()
		_ = p.renewSubscriptions(p.ctx, "") // tried again at the next look, or with the next process
	})
}

// forsakenLocked reports whether something is wanted of a process that is no more.
func (p *pool) forsakenLocked() bool {
	for _, s := range p.subs {
		if s.of != nil && s.of != p.worker {
			return true
		}
	}
	return false
}

// updated tells those who want to know that a resource has changed: the one
// that they named, or one below it (MCP, server/resources, "Subscriptions").
func (p *pool) updated(params json.RawMessage) {
	uri := stringField(params, "uri")
	p.mu.Lock()
	var tell []*func(json.RawMessage)
	for held, s := range p.subs {
		if rest, below := strings.CutPrefix(uri, held); below && (rest == "" || rest[0] == '/' || strings.HasSuffix(held, "/")) {
			for notify := range s.notify {
				tell = append(tell, notify)
			}
		}
	}
	p.mu.Unlock()
	for _, notify := range tell {
		(*notify)(params)
	}
}
