// Fleets: the processes of one module. There is one for all callers; a module
// that asks its client has one for each session instead, or for each call of a
// client without sessions, so that who is asked is certain.

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// lanePatience is for how long a caller waits for a process of its own.
const lanePatience = 10 * time.Second

// fleet is all processes of one module. Safe for concurrent use.
type fleet struct {
	name   string
	ctx    context.Context // ends when the registry does
	start  startFunc
	onAsks func() // called once, when the module is seen to ask

	mu      sync.Mutex
	shared  *pool
	lanes   []*pool // of a module that asks: each for callers of one kin
	gone    []*pool // on their way out
	asks    bool    // the module asks: callers get lanes
	retired bool
	freed   chan struct{} // closed when a lane may have become free
}

// startFunc starts a process of a module.
type startFunc func(ctx context.Context, watch watcher) (*Worker, error)

func newFleet(ctx context.Context, name string, asks bool, start startFunc, onAsks func()) *fleet {
	f := &fleet{name: name, ctx: ctx, start: start, onAsks: onAsks, asks: asks, freed: make(chan struct{})}
	f.shared = f.newPool(false)
	return f
}

// newPool is a place for a process. Called with mu held.
func (f *fleet) newPool(private bool) *pool {
	p := &pool{name: f.name, ctx: f.ctx, retired: f.retired, lastUse: time.Now(), subs: make(map[string]*subscription), onLeave: f.free}
	p.private.Store(private)
	p.start = func(ctx context.Context) (*Worker, error) {
		return f.start(ctx, watcher{second: f.runs(p), private: &p.private, updated: p.updated, asks: func() { f.seenAsking(p) }})
	}
	return p
}

// runs reports whether the module has a process other than p's.
func (f *fleet) runs(p *pool) bool {
	return slices.ContainsFunc(f.all(), func(other *pool) bool { return other != p && other.running() })
}

// free tells who waits for a lane to look again.
func (f *fleet) free() {
	f.mu.Lock()
	defer f.mu.Unlock()
	close(f.freed)
	f.freed = make(chan struct{})
}

// seenAsking notes that the module asks its client: from now on callers get
// processes of their own. The one that asked goes on as its caller's, if it has
// served no other.
func (f *fleet) seenAsking(p *pool) {
	f.mu.Lock()
	if f.asks {
		f.mu.Unlock()
		return
	}
	f.asks = true
	if owner := p.owner(); owner != nil && p == f.shared {
		p.private.Store(true)
		p.kin, p.alone = owner.Affinity, owner.Stateless
		f.lanes = append(f.lanes, p)
		f.shared = f.newPool(false)
	}
	f.mu.Unlock()
	f.onAsks()
}

// giveLanes gives callers processes of their own from now on.
func (f *fleet) giveLanes() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asks = true
}

// call makes one request of the module; see Worker.request. It returns
// errRetired, and has done nothing, when the fleet has been retired.
func (f *fleet) call(ctx context.Context, caller Caller, method string, params json.RawMessage, idle time.Duration) (json.RawMessage, error) {
	p, err := f.enter(ctx, caller)
	if err != nil {
		return nil, err
	}
	defer p.leave()
	result, err := p.do(ctx, caller, method, params, idle)
	if caller.Stateless && err != nil && (ctx.Err() != nil || errors.Is(err, errTimeout)) {
		f.abandon(p) // what it may still ask is of nobody's call
	}
	return result, err
}

// enter finds the process for a caller, and holds it until it is left. Where
// all are busy that may be, it waits.
func (f *fleet) enter(ctx context.Context, caller Caller) (*pool, error) {
	for {
		f.mu.Lock()
		if f.retired {
			f.mu.Unlock()
			return nil, errRetired
		}
		p := f.pickLocked(caller)
		freed := f.freed
		f.mu.Unlock()
		if p != nil {
			return p, nil
		}
		select {
		case <-freed:
		case <-time.After(lanePatience):
			return nil, fmt.Errorf("module %q: as many calls wait for their clients as may, %d in all and %d of one client: try again", f.name, maxLanes, maxKinLanes)
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// pickLocked is enter without waiting: nil when nothing is free.
func (f *fleet) pickLocked(caller Caller) *pool {
	if !f.asks || caller.Session == "" {
		f.shared.enter()
		return f.shared
	}
	var best *pool
	own := 0
	for _, l := range f.lanes {
		if l.kin != caller.Affinity || l.alone != caller.Stateless {
			continue
		}
		own++
		if (!l.alone || !l.busy()) && (best == nil || l.lastUsed().After(best.lastUsed())) {
			best = l
		}
	}
	if best == nil {
		if own >= maxKinLanes || !f.roomLocked() {
			return nil
		}
		best = f.newPool(true)
		best.kin, best.alone = caller.Affinity, caller.Stateless
		f.lanes = append(f.lanes, best)
	}
	best.enter()
	return best
}

// roomLocked makes room for one more lane, if it can.
func (f *fleet) roomLocked() bool {
	f.gone = slices.DeleteFunc(f.gone, (*pool).over)
	if len(f.gone) >= maxLanes {
		return false // they count until they have ended
	}
	if len(f.lanes) < maxLanes {
		return true
	}
	var idle *pool
	for _, l := range f.lanes {
		if !l.busy() && !l.subscribed() && (idle == nil || l.lastUsed().Before(idle.lastUsed())) {
			idle = l
		}
	}
	if idle == nil {
		return false
	}
	f.dropLocked(idle)
	return true
}

// abandon ends a process that is not to serve anyone else.
func (f *fleet) abandon(p *pool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if p != f.shared {
		f.dropLocked(p)
	}
}

func (f *fleet) dropLocked(p *pool) {
	f.lanes = slices.DeleteFunc(f.lanes, func(l *pool) bool { return l == p })
	f.gone = append(f.gone, p)
	p.retire()
}

// release ends the processes that serve no one but this kin, after the calls
// under way.
func (f *fleet) release(kin string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, l := range slices.Clone(f.lanes) {
		if l.kin == kin {
			f.dropLocked(l)
		}
	}
}

// all is every pool that may still have a process.
func (f *fleet) all() []*pool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Concat([]*pool{f.shared}, f.gone, f.lanes)
}

// retire refuses further calls and ends the processes after those under way.
func (f *fleet) retire() {
	f.mu.Lock()
	f.retired = true
	f.mu.Unlock()
	f.free()
	for _, p := range f.all() {
		p.retire()
	}
}

// renew has other processes take the place of these, which must not go on with
// the environment that they have.
func (f *fleet) renew() {
	for _, p := range f.all() {
		p.renew()
	}
}

// pin keeps processes that run from being stopped for being idle.
func (f *fleet) pin(pinned bool) {
	for _, p := range f.all() {
		p.pin(pinned)
	}
}

// reap stops processes not used since before, and forgets those that are gone.
func (f *fleet) reap(before time.Time) {
	for _, p := range f.all() {
		p.reap(before)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.gone = slices.DeleteFunc(f.gone, (*pool).over)
	f.lanes = slices.DeleteFunc(f.lanes, (*pool).asleep)
}

// close ends the processes, calls under way or not, and waits until they are gone.
func (f *fleet) close() {
	f.retire()
	var wg sync.WaitGroup
	for _, p := range f.all() {
		wg.Go(p.close)
	}
	wg.Wait()
}

// over reports whether the fleet is retired and has no process left.
func (f *fleet) over() bool {
	return !slices.ContainsFunc(f.all(), func(p *pool) bool { return !p.over() })
}

// hold has a module say when a resource changes, to notify, until release is
// called; also after a crash. A session's own process is asked, as that may know
// more; but those who only listen leave room for those who call.
func (f *fleet) hold(ctx context.Context, caller Caller, uri string, notify func(params json.RawMessage)) (release func(), err error) {
	f.mu.Lock()
	own := slices.ContainsFunc(f.lanes, func(l *pool) bool { return l.kin == caller.Affinity && !l.alone })
	place := caller
	if caller.Stateless || !own && len(f.lanes) >= maxLanes/2 {
		place = Caller{}
	}
	f.mu.Unlock()
	p, err := f.enter(ctx, place)
	if err != nil {
		return nil, err
	}
	defer p.leave()
	return p.hold(ctx, caller, uri, notify)
}
