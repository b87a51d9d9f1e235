// The registry: which modules there are in the workspace. It finds their files,
// watches them, learns what each offers, remembers that between starts, and
// publishes the whole as a Catalog, swapped at once when something changes. It
// knows no session, and hands out nothing but catalogs.

package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	settlePatience = 3 * time.Second        // how long lists wait for modules being looked at
	slowLook       = 10 * time.Second       // after that nobody waits for a module's
	listSettle     = 250 * time.Millisecond // in which a new process may still change its list
	minPoll        = 500 * time.Millisecond // between two looks at the workspace
	maxPoll        = 30 * time.Second
	pollShare      = 20 // a look may take one part in so many of the time
	vanishPatience = 100 * time.Millisecond
	firstRetry     = 10 * time.Second // of a module that could not be looked at
	maxRetry       = 5 * time.Minute
)

// registryConfig is what a registry needs to know.
type registryConfig struct {
	Roots    []string // absolute, symlinks resolved
	CacheDir string
	Patience time.Duration // how long a call may be silent; 0 for ever
	Idle     time.Duration // after which an unused process is stopped; 0 never
	Log      *slog.Logger
}

// Registry finds and keeps the modules under its roots. Safe for concurrent use.
type Registry struct {
	registryConfig
	reaper  *reaper
	builder *goBuilder
	catalog atomic.Pointer[Catalog]

	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
	looks  chan struct{} // a place each for introspections at once

	mu       sync.Mutex
	entries  map[entryKey]*entry
	unusable []Problem     // files that are modules of no kind, as last seen
	pools    []*pool       // all that may still have a process
	pending  int           // entries being introspected
	looked   int           // counts introspections, of all entries: one may go and come back
	settled  chan struct{} // closed while pending is 0
	news     time.Time     // when the last module began to be introspected that is new or has changed
	changed  chan struct{} // closed at the next change of the catalog
}

// entry is what is known of one module.
type entry struct {
	found   found
	module  *Module // the newest that worked; nil for none yet
	offer   *offer  // what module was made from
	err     error   // why the newest version is not hosted
	version int     // of the newest introspection; an older one's result is dropped
	pending bool
	retryAt time.Time // of an introspection that failed, the file unchanged
	backoff time.Duration
}

// offer is what a module was found to offer; the part of it that is cached.
type offer struct {
	Tools     []json.RawMessage `json:"tools"`
	Prompts   []json.RawMessage `json:"prompts,omitempty"`
	Resources []json.RawMessage `json:"resources,omitempty"`
	Templates []json.RawMessage `json:"templates,omitempty"`
	About     string            `json:"about,omitempty"`
	Problems  []string          `json:"problems,omitempty"`
	Era       era               `json:"era,omitempty"`    // eraUnknown for our own shims, who are asked nothing
	Shared    bool              `json:"shared,omitempty"` // a hosted server that has one process for all callers
}

// keep takes over from was all lists but those named.
func (o *offer) keep(was *offer, but []string) {
	if !slices.Contains(but, "tools") {
		o.Tools = was.Tools
	}
	if !slices.Contains(but, "prompts") {
		o.Prompts = was.Prompts
	}
	if !slices.Contains(but, "resources") {
		o.Resources, o.Templates = was.Resources, was.Templates
	}
}

// ModuleSource is what the rest of usher has of the registry. Its functions are
// safe for concurrent use.
type ModuleSource struct {
	// View is the current catalog through a scope.
	View func(Scope) *View
	// Changed is closed when the catalog is next replaced. Ask for it before
	// the view.
	Changed func() <-chan struct{}
	// WaitReady waits a few seconds for modules inside a scope whose tools are not
	// known yet.
	WaitReady func(context.Context, Scope)
	// Pending reports whether there are such modules.
	Pending func(Scope) bool
	// EndAffinity ends the processes that serve no other callers than those of
	// this Caller.Affinity, after the calls under way.
	EndAffinity func(affinity string)
}

// Call finds something of a module in a view and asks the module, as attempt
// does: anew when the module was reloaded between the two, so that an edit fails
// no call.
func (s ModuleSource) Call(ctx context.Context, attempt func() (json.RawMessage, error)) (json.RawMessage, error) {
	for range maxReloads {
		changed := s.Changed()
		result, err := attempt()
		if !errors.Is(err, errRetired) {
			return result, err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	return nil, errors.New("the module keeps being reloaded")
}

// newRegistry looks at the workspace once and returns with what the cache knows
// of it. What it does not know is introspected from then on, beside the caller.
// Close ends all that it started.
func newRegistry(c registryConfig) (*Registry, error) {
	r := &Registry{
		registryConfig: c, reaper: &reaper{}, builder: &goBuilder{Folder: filepath.Join(c.CacheDir, "go")}, looks: make(chan struct{}, maxLooks), entries: make(map[entryKey]*entry),
		settled: make(chan struct{}), changed: make(chan struct{}),
	}
	close(r.settled)
	if err := os.MkdirAll(filepath.Join(r.CacheDir, "modules"), 0o700); err != nil {
		return nil, fmt.Errorf("preparing the cache: %w", err)
	}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	r.publish()
	r.update(r.scan())
	return r, nil
}

// Source is the way to the modules for those who serve them.
func (r *Registry) Source() ModuleSource {
	return ModuleSource{
		View:        func(s Scope) *View { return r.catalog.Load().View(s) },
		Changed:     r.Changed,
		WaitReady:   r.settleNews,
		Pending:     r.Pending,
		EndAffinity: r.release,
	}
}

func (r *Registry) release(affinity string) {
	for _, p := range r.allPools() {
		p.endAffinity(affinity)
	}
}

func (r *Registry) allPools() []*pool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.pools)
}

// Changed returns a channel that is closed when the catalog is next replaced.
func (r *Registry) Changed() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.changed
}

// Pending reports whether modules are being introspected.
func (r *Registry) Pending(Scope) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.pending > 0
}

// Settle waits until no module is being introspected, for patience at most.
func (r *Registry) Settle(ctx context.Context, patience time.Duration) {
	r.mu.Lock()
	settled := r.settled
	r.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	select {
	case <-settled:
	case <-ctx.Done():
	case <-r.ctx.Done():
	}
}

// settleNews is Settle for clients: they wait for what is new or has changed, and
// not each time for a module that hangs, or is tried again.
func (r *Registry) settleNews(ctx context.Context, _ Scope) {
	r.mu.Lock()
	left := slowLook - time.Since(r.news)
	r.mu.Unlock()
	if left > 0 {
		r.Settle(ctx, min(settlePatience, left))
	}
}

// Watch looks at the workspace again and again until ctx ends. The time between
// two looks follows what a look costs, so that a huge tree is not read all day.
func (r *Registry) Watch(ctx context.Context) {
	wait := minPoll
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.ctx.Done():
			return
		case <-time.After(wait):
		}
		start := time.Now()
		found := r.scan()
		wait = min(max(minPoll, pollShare*time.Since(start)), maxPoll)
		r.update(found)
		r.reap()
	}
}

// Close ends every process of every module and waits for them.
func (r *Registry) Close() {
	r.cancel()
	var wg sync.WaitGroup
	for _, f := range r.allPools() {
		wg.Go(f.close)
	}
	wg.Wait()
	r.wg.Wait()
	r.reaper.Close()
}

// reap stops processes that are idle, starts again those that are missed, and
// forgets pools that are finished.
func (r *Registry) reap() {
	for _, p := range r.allPools() {
		p.reap(time.Now(), r.Idle)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pools = slices.DeleteFunc(r.pools, (*pool).finished)
}

// scan finds what there is in the workspace, by reading folders only.
func (r *Registry) scan() *look {
	s := newLook()
	for _, root := range r.Roots {
		// The root, or a folder above it, may have become a link since the start;
		// what a scope is compared with is where the files really are.
		if dir, err := filepath.EvalSymlinks(root); err == nil {
			root = dir
		}
		s.root = root
		s.folder(root)
	}
	return s
}

// update takes in what a look at the workspace found.
func (r *Registry) update(l *look) {
	l = r.lookAgain(l)
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range l.problems {
		if !slices.Contains(r.unusable, p) {
			r.Log.Warn("a file can't be used", "file", filepath.Base(p.Path), "why", p.Text)
		}
	}
	changed := !slices.Equal(r.unusable, l.problems)
	r.unusable = l.problems
	for _, f := range l.found {
		if e := r.entries[f.key()]; e != nil && !e.stale(f) {
			continue
		}
		changed = r.take(f) || changed
	}
	for key, e := range r.entries {
		if l.has(key) {
			continue
		}
		if e.module != nil {
			e.module.pool.retire()
			r.Log.Info("module removed", "module", key.name)
		}
		r.settleEntry(e)
		delete(r.entries, key)
		changed = true
	}
	if changed {
		r.publish()
	}
}

// lookAgain looks a second time when a file that was there is gone: editors
// replace a file by removing it for a moment.
func (r *Registry) lookAgain(l *look) *look {
	r.mu.Lock()
	gone := false
	for key := range r.entries {
		gone = gone || !l.has(key)
	}
	r.mu.Unlock()
	if !gone {
		return l
	}
	select {
	case <-time.After(vanishPatience):
	case <-r.ctx.Done():
	}
	return r.scan()
}

// stale reports whether the module has to be looked at again.
func (e *entry) stale(f found) bool {
	if e.found.Stamp != f.Stamp || e.found.Kind != f.Kind || fmt.Sprint(e.found.Err) != fmt.Sprint(f.Err) {
		return true
	}
	if e.pending {
		return false
	}
	return e.err != nil && !e.retryAt.IsZero() && time.Now().After(e.retryAt)
}

// take starts on a module that is new or has changed. It reports whether what
// is known of it changes at once. Called with mu held.
func (r *Registry) take(f found) bool {
	e := r.entries[f.key()]
	if e == nil {
		e = &entry{}
		r.entries[f.key()] = e
	}
	again := e.err != nil && e.found.Stamp == f.Stamp
	if e.found.Stamp != f.Stamp {
		e.backoff = 0
	}
	r.looked++
	e.found, e.version, e.retryAt = f, r.looked, time.Time{}
	if f.Err != nil {
		r.settleEntry(e)
		e.err = f.Err
		if e.module != nil {
			e.module.pool.retire()
			e.module = nil
		}
		r.Log.Warn("a module can't be hosted", "module", f.Name, "why", f.Err)
		return true
	}
	if e.module == nil {
		if c := r.readCache(f); c != nil {
			r.settleEntry(e)
			e.err = nil
			e.offer = &c.Offer
			e.module = r.makeModule(e, nil)
			return true
		}
	}
	if !e.pending {
		e.pending = true
		if r.pending++; r.pending == 1 {
			r.settled = make(chan struct{})
		}
	}
	if !again {
		r.news = time.Now()
	}
	version := e.version
	r.wg.Go(func() { r.introspect(f, version) })
	return false
}

// settleEntry ends an entry's being introspected. Called with mu held.
func (r *Registry) settleEntry(e *entry) {
	if !e.pending {
		return
	}
	e.pending = false
	if r.pending--; r.pending == 0 {
		close(r.settled)
	}
}

// introspect finds out what a module offers, and takes it in.
func (r *Registry) introspect(f found, version int) {
	select {
	case r.looks <- struct{}{}:
		defer func() { <-r.looks }()
	case <-r.ctx.Done():
		return
	}
	o, err := r.introspectProcess(f)
	if r.ctx.Err() != nil {
		return
	}
	r.mu.Lock()
	e := r.entries[f.key()]
	if e == nil || e.version != version {
		r.mu.Unlock()
		return
	}
	if err != nil {
		r.failEntry(e, err)
	} else {
		r.acceptOffer(e, o)
	}
	r.publish() // before who waits for it to settle goes on
	r.settleEntry(e)
	r.mu.Unlock()
}

// failEntry keeps the newest version that worked, if there is one. Called with
// mu held.
func (r *Registry) failEntry(e *entry, err error) {
	e.err = err
	e.backoff = min(max(2*e.backoff, firstRetry), maxRetry)
	e.retryAt = time.Now().Add(e.backoff)
	if e.module != nil {
		r.Log.Error("the module's new version can't be hosted; the last one goes on", "module", e.found.Name, "why", explain(err))
		return
	}
	r.Log.Error("the module can't be hosted", "module", e.found.Name, "why", explain(err))
}

// acceptOffer makes an entry's module anew. Called with mu held.
func (r *Registry) acceptOffer(e *entry, o *offer) {
	e.err, e.backoff = nil, 0
	for _, p := range o.Problems {
		r.Log.Warn("module", "module", e.found.Name, "problem", p)
	}
	old := e.module
	e.offer = o
	e.module = r.makeModule(e, nil)
	r.writeCache(e)
	if old != nil {
		old.pool.retire()
	}
}

// explain is an error for people at this machine: with the last words of a
// process that did not start.
func explain(err error) string {
	text := err.Error()
	if s := (*startError)(nil); errors.As(err, &s) && len(s.stderr) > 0 {
		text += ": " + strings.Join(s.stderr, "\n")
	}
	if b := (*goBuildError)(nil); errors.As(err, &b) {
		text = strings.Join(b.Lines, "\n")
	}
	return text
}

// introspectProcess starts a module to ask it what it offers, and ends it.
func (r *Registry) introspectProcess(f found) (*offer, error) {
	dirty := make(chan struct{}, 1)
	events := workerEvents{listChanged: func(string) { wake(dirty) }, updated: func(json.RawMessage) {}}
	w, err := r.startProcess(r.ctx, f, nil, events)
	if err != nil {
		return nil, err
	}
	defer func() { // nobody need wait for its end, but we do at ours
		w.stop()
		r.wg.Go(func() { <-w.done })
	}()
	ctx, cancel := context.WithTimeout(r.ctx, startTimeout)
	defer cancel()
	o, err := listOffer(ctx, w, f.Kind)
	if err != nil {
		return nil, err
	}
	// Some servers register the rest of their tools only once they know their
	// client, and say so.
	for changing := announces(w.info.Capabilities); changing; {
		select {
		case <-dirty:
			if o, err = listOffer(ctx, w, f.Kind); err != nil {
				return nil, err
			}
		case <-time.After(listSettle):
			changing = false
		case <-w.done:
			return nil, w.err
		}
	}
	return o, nil
}

// announces reports whether a server says when one of its lists changes.
func announces(capabilities json.RawMessage) bool {
	for _, list := range announcedLists {
		if string(field(field(capabilities, list), "listChanged")) == "true" {
			return true
		}
	}
	return false
}

// listOffer asks a process for all that it offers.
func listOffer(ctx context.Context, w *Worker, kind Kind) (*offer, error) {
	o := &offer{About: firstSentence(w.info.Instructions), Era: eraSession, Shared: w.info.shared()}
	if w.info.Stateless {
		o.Era = eraStateless
	}
	for _, list := range []struct {
		method, key string
		into        *[]json.RawMessage
	}{
		{"tools/list", "tools", &o.Tools},
		{"prompts/list", "prompts", &o.Prompts},
		{"resources/list", "resources", &o.Resources},
		{"resources/templates/list", "resourceTemplates", &o.Templates},
	} {
		items, err := w.list(ctx, list.method, list.key)
		if rpc := (*rpcError)(nil); errors.As(err, &rpc) && rpc.Code == codeNoMethod {
			continue // a server may have resources and no templates
		}
		if err != nil {
			return nil, err
		}
		for _, item := range items {
			*list.into = append(*list.into, oneLine(item))
		}
	}
	// The file and line of functions that a Go module can't offer.
	_ = json.Unmarshal(field(field(field(w.info.Capabilities, "experimental"), "usher/problems"), "problems"), &o.Problems)
	if o.About == "" && !kind.singleFile() { // our shims know no title but the name
		o.About = firstSentence(w.info.Title)
	}
	return o, nil
}

// startProcess starts a process of a module. o is what is known of it, nil for
// nothing yet.
func (r *Registry) startProcess(ctx context.Context, f found, o *offer, events workerEvents) (*Worker, error) {
	l := f.Launch
	switch f.Kind {
	case kindConfig:
	case kindGo:
		path, err := r.builder.Build(ctx, f.Source, workerEnv(os.Environ(), f.Source, nil))
		if err != nil {
			return nil, err
		}
		l = launch{Path: path, Dir: filepath.Dir(f.Source)}
	default:
		var err error
		if l, err = launchFile(f.Kind, f.Source, r.CacheDir); err != nil {
			return nil, cantStart(f.Name, err)
		}
	}
	l, err := l.resolve()
	if err != nil {
		return nil, cantStart(f.Name, err)
	}
	l.Env = workerEnv(os.Environ(), f.Source, l.Env)
	known := eraUnknown
	if f.Kind.singleFile() {
		known = eraSession
	} else if o != nil {
		known = o.Era
	}
	return startWorker(ctx, f.Name, l, known, r.reaper, r.Log, events)
}

// cantStart is an error before there was a process, whose reason names no path.
func cantStart(module string, err error) error {
	return &startError{reason: fmt.Sprintf("module %q can't start: %s", module, reason(err)), stderr: []string{err.Error()}}
}

// makeModule turns an entry's offer into a module, with processes of its own
// unless it goes on with those of p. Called with mu held.
func (r *Registry) makeModule(e *entry, p *pool) *Module {
	f := e.found
	m := &Module{Name: f.Name, Kind: f.Kind, Source: f.Source, About: e.offer.About, Root: f.Root, callTimeout: r.Patience, Stateless: e.offer.Era == eraStateless,
		Prompts: e.offer.Prompts, Resources: e.offer.Resources, Templates: e.offer.Templates}
	names := make(map[string]bool)
	for _, raw := range e.offer.Tools {
		method, problems, err := parseMethod(raw, f.Kind.docRules())
		if err == nil && names[method.Name] {
			err = fmt.Errorf("%s: a second tool of this name", method.Name)
		}
		if err != nil {
			r.Log.Warn("module", "module", f.Name, "problem", err.Error())
			continue
		}
		names[method.Name] = true
		m.Methods = append(m.Methods, method)
		m.Problems = append(m.Problems, problems...)
	}
	m.Problems = append(m.Problems, e.offer.Problems...)
	perSession := !f.Kind.singleFile() && !e.offer.Shared
	if p != nil && p.perSession != perSession {
		p.retire()
		p = nil
	}
	if p == nil {
		o := e.offer
		p = newPool(r.ctx, f.Name, perSession, func(ctx context.Context, events workerEvents) (*Worker, error) {
			return r.startServing(ctx, f, o, events)
		})
		r.pools = append(r.pools, p)
	}
	m.pool = p
	return m
}

// startServing starts a process that answers calls. What it offers is compared
// with what is known, then and whenever it says that it changed. Of several
// processes one that begins has nothing new to say: what another has grown since
// is not to be taken back.
func (r *Registry) startServing(ctx context.Context, f found, o *offer, events workerEvents) (*Worker, error) {
	dirty := &dirtyLists{wake: make(chan struct{}, 1)}
	events.listChanged = func(list string) { dirty.add(list) }
	w, err := r.startProcess(ctx, f, o, events)
	if errors.As(err, new(*goBuildError)) {
		return nil, &startError{reason: fmt.Sprintf("module %q can't be built: see usher modules", f.Name), stderr: []string{explain(err)}}
	}
	if err != nil {
		return nil, err
	}
	if !events.second {
		dirty.add(announcedLists...)
	}
	r.wg.Go(func() { r.follow(f, w, dirty) })
	return w, nil
}

// dirtyLists is the lists of a process that have to be asked for again. Safe for
// concurrent use.
type dirtyLists struct {
	wake  chan struct{} // 1-buffered
	mu    sync.Mutex
	lists []string
}

func (d *dirtyLists) add(lists ...string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lists = append(d.lists, lists...)
	wake(d.wake)
}

func (d *dirtyLists) take() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	lists := d.lists
	d.lists = nil
	return lists
}

// follow keeps what is known of a module up to its running process, until that
// ends.
func (r *Registry) follow(f found, w *Worker, dirty *dirtyLists) {
	for {
		select {
		case <-w.done:
			return
		case <-dirty.wake:
		}
		lists := dirty.take()
		ctx, cancel := context.WithTimeout(r.ctx, startTimeout)
		o, err := listOffer(ctx, w, f.Kind)
		cancel()
		if err != nil {
			if w.alive() {
				r.Log.Warn("the module does not list what it offers", "module", f.Name, "err", err)
			}
			continue
		}
		r.revise(f, o, lists)
	}
}

// revise takes in what a running process offers now, if that is new: of the
// lists that are said to have changed. The others may be another process's.
func (r *Registry) revise(f found, o *offer, lists []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.entries[f.key()]
	if e == nil || e.module == nil || e.found.Stamp != f.Stamp {
		return
	}
	o.keep(e.offer, lists)
	if bytes.Equal(marshal(o), marshal(e.offer)) {
		return
	}
	e.offer = o
	e.module = r.makeModule(e, e.module.pool)
	r.writeCache(e)
	r.publish()
}

// publish makes a new catalog of the modules there are and tells who waits.
// Called with mu held.
func (r *Registry) publish() {
	var modules []*Module
	for _, e := range r.entries {
		if e.module != nil {
			modules = append(modules, e.module)
		}
	}
	r.catalog.Store(newCatalog(modules))
	close(r.changed)
	r.changed = make(chan struct{})
}

// Status is what is known of one module, for people at this machine.
type Status struct {
	found
	Module  *Module // nil when it is not hosted
	Err     error   // why the newest version is not hosted
	Pending bool
}

// Report is the state of all modules, sorted by path, and the problems with
// files that are none.
func (r *Registry) Report() ([]Status, []Problem) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var list []Status
	for _, e := range r.entries {
		list = append(list, Status{found: e.found, Module: e.module, Err: e.err, Pending: e.pending})
	}
	slices.SortFunc(list, func(a, b Status) int {
		return cmp.Or(strings.Compare(a.Path, b.Path), strings.Compare(a.Name, b.Name))
	})
	return list, slices.Clone(r.unusable)
}
