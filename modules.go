// The registry: which modules there are in the workspace. It watches their
// files, asks each module what it offers, remembers the answer between starts,
// and publishes the whole as a Catalog, which is replaced whenever something
// changes. It knows no session, and hands out nothing but views.
//
// Each version of a module's file has at most one goroutine (Registry.keep), which
// does all that takes time for it. Registry.mu is held for moments only: never while
// a file is read, a list parsed, or a process started.

package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	minPoll   = 500 * time.Millisecond // between two scans of the workspace
	maxPoll   = 30 * time.Second
	pollShare = 20 // a scan may take one part in so many of the time

	publishDelay     = 50 * time.Millisecond  // from a change to the catalog that shows it
	revisionInterval = time.Second            // between two revisions of what one module offers
	retryInterval    = 30 * time.Second       // between two introspections of a module that fails, at first;
	maxRetryInterval = 10 * time.Minute       // it doubles up to this
	settleTime       = 250 * time.Millisecond // in which a new process may still change its lists

	startupTime = 5 * time.Second // after the start, clients wait for modules

	removalScans = 2 // scans that miss a file before its module is removed
)

// registryConfig is what a registry needs to know.
type registryConfig struct {
	Roots       []string // absolute, symlinks resolved
	CacheDir    string
	CallTimeout time.Duration // how long a call may be silent; 0 for ever
	Idle        time.Duration // after which an unused process is stopped; 0 never
	Log         *slog.Logger
	Only        func(name string) bool // the modules to look at; nil is all
	Watch       bool                   // the workspace is looked through again and again
	Frozen      bool                   // changes are reported and not loaded
	Refuse      func(discovered) error // why a module is not to be started; nil is none
}

// Registry finds and keeps the modules under its roots. Safe for concurrent use.
type Registry struct {
	registryConfig
	started time.Time
	reaper  *reaper
	catalog atomic.Pointer[Catalog]

	ctx     context.Context // ends with the registry
	cancel  context.CancelFunc
	running sync.WaitGroup
	slots   chan struct{} // a place for each introspection under way

	mu      sync.Mutex
	modules map[entryKey]*moduleVersion // the newest of each; only the goroutine that scans changes which
	drift   map[entryKey]string         // how modules differ from what is frozen: new, changed, gone
	pools   []*pool                     // all that may still have a process
	due     bool                        // the catalog is about to be replaced
	changed chan struct{}               // closed when it has been
}

// moduleVersion is a module's file, or its entry in one, as it stands until it
// changes.
type moduleVersion struct {
	discovered
	ctx     context.Context // ends when there is a newer version, or none
	cancel  context.CancelFunc
	changed chan struct{} // 1-buffered: newest may offer something new
	newest  atomic.Pointer[Worker]

	revising atomic.Bool // keep or revise runs

	build func() (string, error) // builds a Go module, once

	offers string // a hash of its manifest, "" until that is known; belongs to keep, as pool does
	pool   *pool  // made with the first manifest

	// Guarded by Registry.mu.
	module    *Module // the newest that worked, of this version or one before
	err       error   // why this version is not hosted
	settled   bool    // it was introspected, or need not be
	published bool    // and that shows in the catalog
	missing   int     // scans in a row that did not see the file
}

// manifest is what a module was found to offer; the part of it that is cached.
type manifest struct {
	Version   string                       `json:"version"` // see cacheVersion
	Lists     map[string][]json.RawMessage `json:"lists"`   // by what they are of: "tools", "prompts", "resources", "resourceTemplates"
	About     string                       `json:"about,omitempty"`
	Problems  []string                     `json:"problems,omitempty"`
	Stateless bool                         `json:"stateless,omitempty"`
	Shared    bool                         `json:"shared,omitempty"` // it says that one process serves all callers
}

// newRegistry scans the workspace once and returns with what the cache knows of
// it. What the cache does not know is introspected in the background. Close ends all
// that it started.
func newRegistry(c registryConfig) (*Registry, error) {
	r := &Registry{
		registryConfig: c,
		started:        time.Now(),
		reaper:         &reaper{},
		slots:          make(chan struct{}, maxIntrospections),
		modules:        make(map[entryKey]*moduleVersion),
		drift:          make(map[entryKey]string),
		changed:        make(chan struct{}),
	}
	if err := os.MkdirAll(filepath.Join(r.CacheDir, "modules"), 0o700); err != nil {
		return nil, fmt.Errorf("preparing the cache: %w", err)
	}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	r.update(scanFolders(r.Roots, len(r.modules)))
	r.publish()
	if r.Watch {
		r.running.Go(r.watch)
	}
	return r, nil
}

// Call runs attempt, which finds something in a view and asks its module. If the module
// was reloaded between the two, Call runs attempt again, so an edit fails no call.
func (r *Registry) Call(ctx context.Context, attempt func() (json.RawMessage, error)) (json.RawMessage, error) {
	for {
		changed := r.Changed()
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
}

// View is the current catalog through a scope.
func (r *Registry) View(scope Scope) *View { return r.catalog.Load().View(scope) }

// Changed returns a channel that is closed when the catalog is next replaced.
func (r *Registry) Changed() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.changed
}

// AllReady reports whether the catalog shows the tools of all modules inside a scope.
// It waits for that, but not longer than timeout.
func (r *Registry) AllReady(ctx context.Context, timeout time.Duration, scope Scope) bool {
	expired := time.After(timeout)
	for {
		r.mu.Lock()
		changed, ready := r.changed, true
		for _, v := range r.modules {
			ready = ready && (v.published || !scope.Contains(v.Source))
		}
		r.mu.Unlock()
		if ready {
			return true
		}
		select {
		case <-changed:
		case <-expired:
			return false
		case <-ctx.Done():
			return false
		}
	}
}

// Pending reports whether modules inside a scope are being introspected for the
// first time since they came or changed.
func (r *Registry) Pending(scope Scope) bool { return !r.AllReady(r.ctx, 0, scope) }

// WaitReady waits for modules inside a scope that are pending, but only while the
// start is recent: one that hangs must not delay each list for ever.
func (r *Registry) WaitReady(ctx context.Context, scope Scope) {
	r.AllReady(ctx, startupTime-time.Since(r.started), scope)
}

// EndAffinity ends the processes that serve only the callers of this
// Caller.Affinity, after the calls under way.
func (r *Registry) EndAffinity(affinity string) {
	for _, p := range r.allPools() {
		p.stopFor(affinity)
	}
}

func (r *Registry) allPools() []*pool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.pools)
}

// watch scans the workspace again and again. The time between two scans follows what
// a scan costs, so that a huge tree is not read all day. It also stops processes
// that are idle, and forgets pools that have none left.
func (r *Registry) watch() {
	for wait := minPoll; pauseFor(r.ctx, wait); {
		wait = r.rescan()
	}
}

// rescan scans the workspace once. A frozen registry only reports what has changed.
// rescan returns how long to wait until the next scan.
func (r *Registry) rescan() (wait time.Duration) {
	defer catch(r.Log, new(error))
	start, wait := time.Now(), minPoll
	if s := scanFolders(r.Roots, len(r.modules)); r.Frozen {
		r.findDrift(s)
	} else {
		r.update(s)
	}
	wait = min(max(minPoll, pollShare*time.Since(start)), maxPoll)
	for _, p := range r.allPools() {
		p.reap(time.Now(), r.Idle)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pools = slices.DeleteFunc(r.pools, (*pool).finished)
	return wait
}

// Close ends every process of every module and waits for them.
func (r *Registry) Close() {
	r.cancel()
	var closing sync.WaitGroup
	for _, p := range r.allPools() {
		closing.Go(p.close)
	}
	closing.Wait()
	r.running.Wait()
	r.reaper.Close()
}

// findDrift finds what a frozen registry has not taken up.
func (r *Registry) findDrift(s *scan) {
	r.mu.Lock()
	modules := maps.Clone(r.modules)
	maps.DeleteFunc(r.drift, func(key entryKey, _ string) bool { return modules[key] == nil && !s.seen[key] })
	r.mu.Unlock()
	for _, d := range s.modules {
		switch v := modules[d.key()]; {
		case d.Name == "":
		case v == nil:
			r.reportDrift(d, "new")
		case v.Version != d.Version && (d.readContent() != nil || d.Content != v.Content):
			r.reportDrift(d, "changed")
		}
	}
	for _, v := range modules {
		if v.Name != "" && !s.has(v.discovered) {
			r.reportDrift(v.discovered, "gone")
		}
	}
}

// reportDrift logs how a module differs from what was taken up, once.
func (r *Registry) reportDrift(d discovered, state string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.drift[d.key()] != state {
		r.drift[d.key()] = state
		r.Log.Warn("module not taken up", "module", d.Name, "kind", d.Kind, "file", d.file(), "why", state+" since the start: "+reloadHint)
	}
}

// update takes in what a scan found. A frozen registry notes what files hold, and
// what runs a module: that must not turn up beside it later.
func (r *Registry) update(s *scan) {
	for i := range s.modules {
		d := &s.modules[i]
		if d.Err == nil && r.Frozen {
			d.Err = d.readContent()
		}
		if d.Err == nil && r.Refuse != nil {
			d.Err = r.Refuse(*d)
		}
		if r.Frozen && d.Kind == kindPython {
			d.Launch.Path = pythonFor(filepath.Dir(d.Source))
		}
	}
	for _, d := range r.compare(s) {
		r.startVersion(d)
	}
}

// startVersion makes a version of a module, which takes the place of the one before. That
// one's module goes on until this one has its own.
func (r *Registry) startVersion(d discovered) {
	v := &moduleVersion{discovered: d, changed: make(chan struct{}, 1)}
	v.ctx, v.cancel = context.WithCancel(r.ctx)
	v.build = sync.OnceValues(func() (string, error) { return r.buildGo(v.ctx, v.discovered) })
	known := r.readCache(d)
	r.mu.Lock()
	if last := r.modules[d.key()]; last != nil {
		last.cancel()
		v.module = last.module
	}
	r.modules[d.key()] = v
	r.publishSoon() // so that those who wait for changes see that one is pending
	r.mu.Unlock()
	if d.Err != nil {
		r.finishVersion(v, nil, d.Err)
		return
	}
	if known != nil && !(r.Frozen && d.Kind == kindGo) { // which is to be built now
		r.buildModule(v, known)
		return
	}
	v.revising.Store(true)
	r.running.Go(func() { r.introspectUntilDone(v) })
}

// compare returns the modules that are new or have changed since the last scan,
// and removes those that are gone. Editors replace a file by removing it for a
// moment, so one scan that misses it does not count.
func (r *Registry) compare(s *scan) []discovered {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.drift)
	for key, v := range r.modules {
		if v.missing++; s.has(v.discovered) {
			v.missing = 0
		}
		if v.missing == removalScans || v.missing > 0 && r.Frozen {
			if v.Name != "" {
				r.Log.Info("module removed", "module", v.Name, "kind", v.Kind, "file", v.file())
			}
			v.cancel()
			r.replace(v, nil)
			delete(r.modules, key)
		}
	}
	return slices.DeleteFunc(s.modules, func(d discovered) bool {
		v := r.modules[d.key()]
		same := v != nil && v.Version == d.Version && (!r.Frozen || v.Content == d.Content && v.Kind != kindGo)
		return same || r.Only != nil && !r.Only(d.Name)
	})
}

// replace puts a module, or none, in the place of a version's. The processes of the
// old one end after the calls under way. A new call of the old one waits until the
// next catalog is published: see Registry.Call. Called with mu held.
func (r *Registry) replace(v *moduleVersion, m *Module) {
	if old := v.module; old != nil && (m == nil || m.pool != old.pool) {
		old.pool.retire()
	}
	if m != nil && !slices.Contains(r.pools, m.pool) {
		r.pools = append(r.pools, m.pool)
	}
	v.module = m
	r.publishSoon()
}

// introspectUntilDone introspects a version, again and again while that fails and until that ends.
// Of several processes the newest list counts then: see revise.
func (r *Registry) introspectUntilDone(v *moduleVersion) {
	defer catch(r.Log, new(error))
	for pause := retryInterval; v.offers == ""; pause = min(2*pause, maxRetryInterval) {
		m, err := r.introspect(v)
		switch {
		case v.ctx.Err() != nil:
			return
		case err == nil:
			r.buildModule(v, m)
			r.writeCache(v.discovered, m)
		default:
			r.finishVersion(v, nil, err)
			pauseFor(v.ctx, pause)
		}
	}
	r.revise(v)
}

// revise follows what the running processes of a version say that they offer, and
// returns when none has announced a change for a while: an idle module has no
// goroutine.
func (r *Registry) revise(v *moduleVersion) {
	defer catch(r.Log, new(error))
	for pauseFor(v.ctx, revisionInterval) {
		select {
		default:
			v.revising.Store(false)
			if len(v.changed) == 0 || !v.revising.CompareAndSwap(false, true) {
				return
			}
		case <-v.changed:
			m, err := readManifest(v.ctx, v.newest.Load(), v.cacheVersion())
			if err == nil && hashOf(string(marshal(m))) != v.offers {
				r.buildModule(v, m)
				r.writeCache(v.discovered, m)
			}
		}
	}
}

// listsChanged has a process asked what it offers now, in place of any earlier
// process of its version.
func (r *Registry) listsChanged(v *moduleVersion, w *Worker) {
	v.newest.Store(w)
	wake(v.changed)
	if v.revising.CompareAndSwap(false, true) {
		r.running.Go(func() { r.revise(v) })
	}
}

// finishVersion takes in what became of a version: a module, or the reason why it is not
// hosted. The newest module that worked then goes on, unless the file itself says
// that there is to be none.
func (r *Registry) finishVersion(v *moduleVersion, m *Module, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.modules[v.key()] != v {
		return
	}
	if err != nil && v.err == nil && v.Name == "" {
		r.Log.Error("a file or folder can't be read", "file", v.file(), "why", explain(err))
	} else if err != nil && v.err == nil {
		r.Log.Error("module failed", "module", v.Name, "kind", v.Kind, "file", v.file(), "why", explain(err), "an older version goes on", v.module != nil && v.Err == nil)
	} else if m != nil && (!v.settled || v.err != nil) {
		what := "module added"
		if v.module != nil {
			what = "module changed"
		}
		r.Log.Info(what, "module", v.Name, "kind", v.Kind, "file", v.file(), "tools", len(m.Methods))
	}
	if m != nil || v.Err != nil {
		r.replace(v, m)
	}
	v.err, v.settled = err, true
	r.publishSoon()
}

// buildModule makes a module of what a version offers. What its processes offer is
// compared with that, when they start and whenever they say that it changed.
func (r *Registry) buildModule(v *moduleVersion, m *manifest) {
	perSession, stateful := !v.Kind.singleFile() && !v.Launch.Shared && !m.Shared, !m.Stateless
	if v.pool == nil || v.pool.perSession != perSession {
		v.pool = newPool(r.ctx, v.Name, perSession, func(ctx context.Context, owner *Caller) (*Worker, error) {
			w, err := r.startProcess(ctx, v, stateful, owner)
			if err == nil {
				r.listsChanged(v, w)
			}
			return w, err
		})
	}
	v.offers = hashOf(string(marshal(m)))
	module := &Module{
		Name: v.Name, Kind: v.Kind, Source: v.Source, Root: v.Root, About: m.About,
		Problems: slices.Concat(v.Problems, m.Problems), Stateless: m.Stateless,
		Prompts: m.Lists["prompts"], Resources: m.Lists["resources"], Templates: m.Lists["resourceTemplates"],
		pool: v.pool, callTimeout: r.CallTimeout,
	}
	names := make(map[string]bool)
	for _, raw := range m.Lists["tools"] {
		method, problems, err := parseMethod(raw, v.Kind.docRules())
		if err == nil && names[method.Name] {
			err = fmt.Errorf("%s: a second tool of this name", method.Name)
		}
		if err != nil {
			module.Problems = append(module.Problems, err.Error())
			continue
		}
		names[method.Name] = true
		module.Methods = append(module.Methods, method)
		module.Problems = append(module.Problems, problems...)
	}
	if rule := methodRules[v.Kind]; len(m.Lists["tools"])+len(module.Problems) == 0 && rule != "" {
		module.Problems = append(module.Problems, "it has no methods: "+rule)
	}
	r.finishVersion(v, module, nil)
}

// introspect starts a module to ask it what it offers, and ends it.
func (r *Registry) introspect(v *moduleVersion) (*manifest, error) {
	select {
	case r.slots <- struct{}{}:
		defer func() { <-r.slots }()
	case <-v.ctx.Done():
		return nil, v.ctx.Err()
	}
	w, err := r.startProcess(v.ctx, v, false, nil)
	if err != nil {
		return nil, err
	}
	defer r.running.Go(func() { // only Close need wait for its end
		w.stop()
		<-w.done
	})
	m, err := readManifest(v.ctx, w, v.cacheVersion())
	// Some servers register the rest of their tools only once they know their
	// client, and say so.
	settled := time.After(settleTime)
	for err == nil && bytes.Contains(w.info.Capabilities, []byte(`"listChanged"`)) {
		select {
		case <-v.changed:
			m, err = readManifest(v.ctx, w, v.cacheVersion())
		case <-settled:
			return m, nil
		}
	}
	return m, err
}

// readManifest asks a process for all that it offers. That it can't list its
// prompts or resources is no reason to do without its tools.
func readManifest(ctx context.Context, w *Worker, version string) (*manifest, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	extensions := field(w.info.Capabilities, "experimental")
	m := &manifest{Lists: make(map[string][]json.RawMessage), About: firstSentence(w.info.Instructions), Stateless: w.info.Stateless, Shared: field(extensions, "usher/shared") != nil, Version: version}
	// The functions that a Go module can't offer.
	_ = json.Unmarshal(field(field(extensions, "usher/problems"), "problems"), &m.Problems)
	for _, key := range []string{"tools", "prompts", "resources", "resourceTemplates"} {
		method := key + "/list"
		if key == "resourceTemplates" {
			method = "resources/templates/list"
		}
		items, err := w.list(ctx, method, key)
		rpc, answered := errors.AsType[*rpcError](err)
		switch {
		case answered && rpc.Code == codeNoMethod: // a server may have resources and no templates
		case err != nil && (key == "tools" || !answered): // a process that ended says nothing of what the module offers
			return nil, err
		case err != nil:
			m.Problems = append(m.Problems, err.Error())
		}
		for _, item := range items {
			m.Lists[key] = append(m.Lists[key], oneLine(item))
		}
	}
	return m, nil
}

// startProcess starts a process of a module, which may be known to have sessions.
func (r *Registry) startProcess(ctx context.Context, v *moduleVersion, stateful bool, owner *Caller) (*Worker, error) {
	d := v.discovered
	l, err := r.launch(ctx, v)
	if err == nil {
		l, err = l.resolve()
	}
	w := newWorker(d.Name, r.Log, owner, func(w *Worker) { r.listsChanged(v, w) })
	w.answersAll = d.Kind.singleFile()
	if err == nil {
		l.Env = workerEnv(os.Environ(), d.Source, d.Launch.Env)
		err = w.spawn(l, r.reaper)
	}
	if err != nil {
		return nil, cantStart(d.Name, err)
	}
	if err := w.shakeHands(ctx, stateful); err != nil {
		return nil, err
	}
	return w, nil
}

// launch says how a process of a version is started. What usher's own programs run
// is handed to them as it was read here, and opened by none of them again.
func (r *Registry) launch(ctx context.Context, v *moduleVersion) (launch, error) {
	d := v.discovered
	if d.Kind == kindGo {
		build := v.build // what it is made of may have changed since, and nobody looks
		if !r.Frozen {
			build = func() (string, error) { return r.buildGo(ctx, d) }
		}
		program, err := build()
		return launch{Path: program, Dir: filepath.Dir(d.Source)}, err
	}
	text, err := r.readVersion(d)
	if err != nil || d.Kind == kindConfig {
		return d.Launch, err
	}
	l, err := launchFile(d.Kind, d.Source, r.CacheDir)
	l.Path = cmp.Or(d.Launch.Path, l.Path)
	if d.Kind.singleFile() {
		l.Args, l.Input = append(l.Args, fmt.Sprint(len(text))), text
	}
	return l, err
}

// buildGo has a Go module built as it is now. What a frozen registry has built must
// not be removed by others.
func (r *Registry) buildGo(ctx context.Context, d discovered) (string, error) {
	text, err := r.readVersion(d)
	if err != nil {
		return "", err
	}
	folder := map[bool]string{false: "go", true: "go-frozen"}[r.Frozen]
	return buildGoModule(ctx, filepath.Join(r.CacheDir, folder), d.Source, text, workerEnv(os.Environ(), d.Source, nil))
}

// readVersion reads the file of a module, which has to be where it was found and,
// in a frozen registry, as it was taken up. Entries of a .mcp.json are as they were.
func (r *Registry) readVersion(d discovered) ([]byte, error) {
	text, content, err := readSource(d.Source, d.Kind)
	gone := errors.Is(err, fs.ErrNotExist) || errors.Is(err, errMoved)
	if !r.Frozen || !gone && (err != nil || d.Kind == kindConfig || content == d.Content) {
		return text, err
	}
	r.reportDrift(d, "changed") // which no scan may have seen, as times can be set
	return nil, errChanged
}

// cantStart is an error before there was a process, whose reason names no path.
func cantStart(module string, err error) error {
	if build, ok := errors.AsType[*goBuildError](err); ok {
		return &processError{reason: fmt.Sprintf("module %q can't be built", module), stderr: build.Lines}
	}
	return &processError{reason: fmt.Sprintf("module %q can't start: %s", module, errText(err)), stderr: []string{err.Error()}, cause: err}
}

// explain is an error for people at this machine: with the last words of a
// process that did not start.
func explain(err error) string {
	text := err.Error()
	if start, ok := errors.AsType[*processError](err); ok && !strings.HasSuffix(text, strings.Join(start.stderr, "\n")) {
		text += ": " + strings.Join(start.stderr, "\n")
	}
	return text
}

// publishSoon has the catalog replaced, once for all that changes meanwhile: at a
// first start a thousand modules become ready one by one. Called with mu held.
func (r *Registry) publishSoon() {
	if !r.due {
		r.due = true
		time.AfterFunc(publishDelay, r.publish)
	}
}

// publish makes a new catalog of the modules there are and tells who waits.
func (r *Registry) publish() {
	defer catch(r.Log, new(error))
	r.mu.Lock()
	defer r.mu.Unlock()
	r.due = false
	var modules []*Module
	for _, v := range r.modules {
		if v.module != nil {
			modules = append(modules, v.module)
		}
		v.published = v.settled
	}
	r.catalog.Store(newCatalog(modules))
	close(r.changed)
	r.changed = make(chan struct{})
}

// Status is what is known of one module, for people at this machine.
type Status struct {
	discovered
	Module  *Module // nil when it is not hosted
	Err     error   // why the newest version is not hosted
	Pending bool    // the newest version is being introspected
}

// Report is the state of all modules, sorted by path.
func (r *Registry) Report() (list []Status) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, v := range r.modules {
		list = append(list, Status{v.discovered, v.module, v.err, !v.published})
	}
	slices.SortFunc(list, func(a, b Status) int {
		return cmp.Or(strings.Compare(a.Path, b.Path), strings.Compare(a.Name, b.Name))
	})
	return list
}

// cacheFormat is to be raised when what is cached changes its meaning.
const cacheFormat = "5"

// cachePath is where it is remembered between starts what a module offers, so that
// a start with a thousand known modules starts no process. The file may be deleted
// at any time.
func (r *Registry) cachePath(d discovered) string {
	return filepath.Join(r.CacheDir, "modules", hashOf(d.Source, d.Name)+".json")
}

// cacheVersion changes with the file, with usher, and with cacheFormat.
func (d discovered) cacheVersion() string { return hashOf(version(), cacheFormat, d.Version) }

// readCache returns what is remembered of this version of a module; nil for
// nothing.
func (r *Registry) readCache(d discovered) *manifest {
	m := &manifest{}
	raw, err := os.ReadFile(r.cachePath(d))
	if err != nil || json.Unmarshal(raw, m) != nil || m.Version != d.cacheVersion() {
		return nil
	}
	return m
}

// writeCache remembers what a version offers. A cache that can't be written costs
// time at the next start and nothing else.
func (r *Registry) writeCache(d discovered, m *manifest) {
	if err := replaceFile(r.cachePath(d), marshal(m)); err != nil {
		r.Log.Warn("writing the cache", "err", err)
	}
}
