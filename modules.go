// The registry. It finds the modules of the workspace, follows their changes, has each module
// introspected, caches the answers between starts, and publishes everything as a Catalog, which
// is replaced when something changes. Sessions and requests get only views of it.
//
// A scan finds sources. Each source has a moduleOwner, which decides what is served from it. A
// new or changed source begins a version, which has a pool of its own. The version is served as
// soon as its lists are known, from the cache or from its first process; until then, the version
// before it stays. Registry.mu is never held while a file is read, a list is parsed or a
// process starts.
//
// The lists of a process are read when it introspects the module, when another process starts, and
// when a process announces a change or loads another file. What a process for one Member offers is
// for the callers of that process only.
//
// If modules need an approval, the registry runs only content that the owner has approved: each
// process starts here, after a check of its content.

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	minPoll   = 500 * time.Millisecond // between two scans of the workspace
	maxPoll   = 30 * time.Second
	pollShare = 20 // scans may take 1/pollShare of the time

	publishDelay  = 50 * time.Millisecond // the least time between two catalogs
	retryDelay    = 5 * time.Second       // before a call tries a module again that failed
	retryInterval = time.Minute           // before a scan tries it again; see also moduleOwner.onLists

	startupTime = 5 * time.Second // after the start, in which clients wait for modules
)

// registryConfig configures a registry.
type registryConfig struct {
	Roots       []string // absolute, as their owner gave them: a DIR may be a link
	CacheDir    string
	CallTimeout time.Duration // how long a call may be silent; 0 is unlimited
	Idle        time.Duration // after which an unused process is stopped; 0 is never
	Log         *slog.Logger
	Only        func(name string) bool // selects the modules to host; nil selects all
	Watch       bool                   // scan the workspace again and again

	Approved string   // the path of the record of approved modules; "" if all modules may run
	Served   []string // the daemon's DIRs; with Approved, modules below them need an approval
}

// Registry finds and keeps the modules under its roots. Safe for concurrent use.
type Registry struct {
	registryConfig
	catalog atomic.Pointer[Catalog]
	started time.Time // after the first scan

	ctx           context.Context // ends with the registry
	cancel        context.CancelFunc
	running       sync.WaitGroup // goroutines; one of them waits for the end of each process
	introspecting counter        // modules that need no build
	building      counter        // modules whose introspection begins with a build

	scanning sync.Mutex    // held during a scan
	scanned  time.Time     // when the last scan began; guarded by scanning
	scanTook time.Duration // the time that it took; guarded by scanning

	mu        sync.Mutex              // guards the fields below
	modules   map[string]*moduleOwner // by source.key; only scans add and remove them
	files     map[string]string       // as scan.files, of the last scan
	due       bool                    // the catalog is about to be replaced
	published time.Time               // when the catalog was last replaced
	changed   chan struct{}           // closed when the catalog has been replaced
	pools     sync.Map                // of *pool: those that are not gone
}

// newRegistry returns a registry after one scan of the workspace. Its catalog contains the
// modules that the cache knows; the others are introspected in the background. Close ends
// everything that newRegistry started.
func newRegistry(c registryConfig) *Registry {
	r := &Registry{
		registryConfig: c,
		introspecting:  counter{perKey: maxIntrospections},
		building:       counter{perKey: max(1, runtime.NumCPU()/2)},
		modules:        make(map[string]*moduleOwner),
		changed:        make(chan struct{}),
	}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	r.update(scanFolders(r.Roots, r.Served))
	r.publish()
	r.started = time.Now() // not before the scan, which may take long
	r.running.Go(r.sweep)
	if r.Watch {
		r.running.Go(r.watch)
	}
	return r
}

// Close ends every process of every module and waits for them. All requests must have ended, and none
// may begin.
func (r *Registry) Close() {
	r.cancel()
	r.running.Wait()
}

// ---- What requests need

// View returns the modules of the current catalog that are inside a scope, as the callers with a
// Member see them: see Catalog.View.
func (r *Registry) View(scope Scope, member context.Context) *View {
	return r.catalog.Load().View(scope, member)
}

// Call runs attempt, which finds something in a view and asks its module for a principal. If
// the module was reloaded between the two, or its file has changed, Call runs attempt again
// once the new version is ready. So the next call after an edit of the source file waits for the
// new version, and fails only if that can't be hosted. (The next scan notices edits of parts.) The
// error is errEnded if the principal's claim ends while Call waits.
func (r *Registry) Call(ctx context.Context, p *Principal,
	attempt func() (object, error)) (object, error) {
	for {
		changed := r.Changed()
		result, err := attempt()
		if !errors.Is(err, errRetired) {
			return result, err
		}
		if err := p.waitFor(ctx, changed); err != nil {
			return nil, err
		}
	}
}

// Changed returns a channel that is closed when the catalog is next replaced.
func (r *Registry) Changed() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.changed
}

// Pending reports whether the newest version of any module inside a scope is still being
// introspected, or whether the catalog is about to be replaced.
func (r *Registry) Pending(scope Scope) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, o := range r.modules {
		if m := o.latest.Load(); m.Pending && scope.Contains(m.Source) {
			return true
		}
	}
	return r.due
}

// WaitAll waits until no module inside a scope is pending, for at most timeout. It
// reports false if one still is.
func (r *Registry) WaitAll(ctx context.Context, timeout time.Duration, scope Scope) bool {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for {
		changed := r.Changed()
		if !r.Pending(scope) {
			return true
		}
		if waitFor(ctx, changed) != nil {
			return false
		}
	}
}

// WaitStart waits for modules inside a scope that are being introspected, until startupTime after
// the start: a module that hangs must not delay every request.
func (r *Registry) WaitStart(ctx context.Context, scope Scope) {
	if left := startupTime - time.Since(r.started); left > 0 {
		r.WaitAll(ctx, left, scope)
	}
}

// isStarting reports whether requests may have to wait for modules, as WaitStart does.
func (r *Registry) isStarting() bool { return time.Since(r.started) < startupTime }

// AwaitName waits for what may bring a name that is unknown in a caller's view: a scan, unless one
// has begun since a time; one reading of the lists of the caller's processes, if they have announced
// changes; and modules of the view's scope that are being introspected. It does not wait until lists
// no longer change. The error is ctx's cause, or errEnded if the principal's claim ends first.
func (r *Registry) AwaitName(
	ctx context.Context, caller Caller, view *View, name string, since time.Time,
) error {
	r.Refresh(ctx, since)
	for _, m := range view.candidates(name, nil) {
		var read chan struct{}
		m.pool.ofMember(caller.Member, func(w *Worker) { read = cmp.Or(w.due, w.reading) })
		if read == nil {
			continue
		}
		if err := caller.Principal.waitFor(ctx, read); err != nil {
			return err
		}
	}
	for changed := r.Changed(); r.Pending(view.scope); changed = r.Changed() {
		if err := caller.Principal.waitFor(ctx, changed); err != nil {
			return err
		}
	}
	return nil
}

// Failure returns why a module of a view that a name may belong to can't be hosted, or nil. It
// returns errRetired if such a module is tried again.
func (r *Registry) Failure(ctx context.Context, view *View, name string) error {
	for _, m := range view.candidates(name, nil) {
		if m.Err != nil { // the version before an edit that is not approved may still be served
			return m.owner.checkCurrent(ctx, nil)
		}
	}
	return nil
}

// ---- Scans

// watch scans the workspace again and again. The time between two scans is proportional to
// the time that a scan takes, so that usher does not read a huge tree all day.
func (r *Registry) watch() {
	wait := minPoll
	for pauseFor(r.ctx, wait) {
		start := time.Now()
		r.Refresh(r.ctx, start)
		wait = min(max(minPoll, pollShare*time.Since(start)), maxPoll)
	}
}

// sweep looks for calls and processes that have taken too long, in all pools.
func (r *Registry) sweep() {
	for pauseFor(r.ctx, sweepTime) {
		r.pools.Range(func(p, _ any) bool {
			if p.(*pool).sweep(time.Now()) {
				r.pools.Delete(p)
			}
			return true
		})
	}
}

// Refresh scans the workspace, unless a scan has begun since a time, or usher does not follow
// changes. It does not wait longer than ctx, although the scan may have to wait.
func (r *Registry) Refresh(ctx context.Context, since time.Time) {
	scanned := make(chan struct{})
	r.running.Go(func() {
		defer close(scanned)
		defer catch(r.Log, nil)
		r.scanning.Lock()
		defer r.scanning.Unlock()
		if !r.Watch || r.scanned.After(since) {
			return
		}
		// Calls of unknown names cause scans, which may take half of the time.
		pauseFor(r.ctx, r.scanTook-time.Since(r.scanned.Add(r.scanTook)))
		r.scanned = time.Now()
		r.update(scanFolders(r.Roots, r.Served))
		r.scanTook = time.Since(r.scanned)
	})
	_ = waitFor(ctx, scanned) // the caller notices the end of ctx itself
}

// update tells the owners of modules what a scan has found, and removes the modules that are gone.
// If a scan does not find a module's file, the module stays until the next scan, because editors remove
// a file for a moment to replace it. If the scan found a new module, the file may have moved: then update
// removes the old module at once. The caller holds r.scanning.
func (r *Registry) update(s *scan) {
	check := r.approval()
	isMove := false
	for _, key := range sortedKeys(s.sources) {
		if found := s.sources[key]; r.Only == nil || r.Only(found.Name) {
			isMove = isMove || found.Name != "" && r.modules[key] == nil
			r.compare(found, check)
		}
	}
	for key, o := range r.modules {
		wasMissed := o.missed
		o.missed = !s.has(o.source)
		path := o.source.Path
		switch {
		case !o.missed:
			continue
		case s.files[path] == "" && !wasMissed && !isMove: // else its entry is gone, and not the file
			s.files[path] = "" // a file that comes back has changed
			continue
		}
		if o.source.Name != "" {
			o.log.Info("module removed")
		}
		o.cancel()
		r.mu.Lock()
		delete(r.modules, key)
		r.publishSoon()
		r.mu.Unlock()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.files = s.files
}

// compare begins a version of a module if its source is new, has changed, or has been approved or
// lost its approval since the last scan. check looks for its approval. If modules need no approval,
// a changed part changes the module. The caller holds r.scanning.
func (r *Registry) compare(found source, check func(*source)) {
	o := r.modules[found.key()]
	if o == nil {
		o = r.addOwner(found)
	}
	last := o.source
	if last.Version == found.Version {
		found.Content = last.Content
	}
	check(&found)
	if last.Version == found.Version && fmt.Sprint(last.Invalid) == fmt.Sprint(found.Invalid) &&
		(r.Approved != "" || !o.loaded.Load().changed()) {
		o.do(func() { o.tryAgain(retryInterval) })
		return
	}
	known := r.readCache(found)
	if known != nil {
		o.loaded.Store(&known.Parts)
	} else {
		o.loaded.Store(newParts(o.loaded.Load().Paths))
	}
	o.source = found
	o.do(func() { o.begin(found, known) })
}

// publishSoon schedules a publication, unless one is scheduled already: at a first start,
// a thousand modules become ready one by one. The caller holds r.mu.
func (r *Registry) publishSoon() {
	if !r.due {
		r.due = true
		time.AfterFunc(time.Until(r.published.Add(publishDelay)), r.publish)
	}
}

// publish replaces the catalog and wakes everything that waits on Changed.
func (r *Registry) publish() {
	defer catch(r.Log, nil)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.due = false
	r.published = time.Now()
	var modules []*Module
	for _, o := range r.modules {
		modules = append(modules, o.latest.Load())
	}
	r.catalog.Store(newCatalog(modules))
	close(r.changed)
	r.changed = make(chan struct{})
}

// ---- The state of one module

// moduleOwner owns the state of one module: it alone begins versions and changes what the catalog
// shows. Its lock is never held for long: slow work runs in other goroutines, which report back.
type moduleOwner struct {
	registry *Registry
	log      *slog.Logger
	ctx      context.Context // ends when the module is removed
	cancel   context.CancelFunc
	latest   atomic.Pointer[Module] // for the next catalog; changed with mu locked
	loaded   atomic.Pointer[parts]  // of the newest version, as far as they are known
	slots    counter                // running calls, of all versions
	rooms    counter                // processes of all versions; see pool

	// Guarded by Registry.scanning.
	source source // the newest; zero until its first version begins
	missed bool   // by the last scan

	mu       sync.Mutex // guards the fields below
	pool     *pool      // of the newest version
	examined time.Time  // when a process last caused an introspection
	failed   time.Time  // when its introspection failed; else zero
	reported string     // why the module could not be hosted
}

// addOwner adds a module that a scan has found, which is pending.
func (r *Registry) addOwner(found source) *moduleOwner {
	o := &moduleOwner{
		registry: r,
		log:      r.Log.With("module", found.Name, "kind", found.Kind, "file", found.file()),
		slots:    counter{perKey: maxRunningOf, total: maxRunning},
		rooms:    counter{limitOf: roomsOf, total: maxProcs},
	}
	o.latest.Store(&Module{source: found, owner: o, Pending: true})
	o.loaded.Store(&parts{})
	o.ctx, o.cancel = context.WithCancel(r.ctx)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.modules[found.key()] = o
	return o
}

// do changes the module's state, unless the module has been removed. If change panics, do
// marks the module as failed, so that no caller waits for it.
func (o *moduleOwner) do(change func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.ctx.Err() != nil {
		return
	}
	err := func() (err error) {
		defer catch(o.log, &err)
		change()
		return nil
	}()
	if err != nil {
		o.fail(err)
	}
}

// setLatest sets what the next catalog shows of the module.
func (o *moduleOwner) setLatest(m Module) {
	m.owner = o
	o.registry.mu.Lock()
	defer o.registry.mu.Unlock()
	o.latest.Store(&m)
	o.registry.publishSoon()
}

// begin begins a version of the module, which is pending until it is served or has failed. The
// version that is served stays until then. known is what the cache knows of the new one.
func (o *moduleOwner) begin(found source, known *manifest) {
	m := *o.latest.Load()
	if o.pool != m.pool { // else it serves until then
		o.pool.retire()
	}
	o.pool = o.newPool(found)
	o.failed = time.Time{}
	if m.pool == nil {
		m = Module{source: found}
	}
	m.Pending = true
	m.Err = nil
	o.setLatest(m)
	switch {
	case found.Invalid != nil:
		o.fail(found.Invalid)
	case known != nil:
		o.publishLists(known)
	default:
		o.introspectLater()
	}
}

// introspectLater introspects the newest version in the background, and serves what it offers.
func (o *moduleOwner) introspectLater() {
	p := o.pool
	o.registry.running.Go(func() {
		m, err := o.introspect(p)
		if err == nil {
			o.writeCache(p.source, m)
		}
		o.do(func() {
			switch {
			case p != o.pool: // a newer version has begun
			case err == nil:
				o.publishLists(m)
			case o.latest.Load().pool != p:
				o.failed = time.Now()
				o.fail(err)
			}
		})
	})
}

// publishLists serves what the newest version offers, if that is new.
func (o *moduleOwner) publishLists(offered *manifest) {
	p := o.pool
	m := newModule(o, p, offered)
	last := o.latest.Load()
	if last.pool == p && last.Hash == m.Hash {
		return
	}
	what := "module changed"
	if last.pool == nil {
		what = "module added"
	}
	o.log.Info(what, "tools", len(m.Methods))
	o.reported = ""
	o.setLatest(*m)
	if last.pool != p {
		last.pool.retire()
	}
}

// onLists handles what a process lists. A process for all callers changes the module. What a
// process for one Member lists is only for the callers of that process, because its names must not
// reach other claims: their views ask the pool for it. If such a process lists something else when
// it starts, the module itself may have changed what it offers: then it is introspected again, at
// most once per retryInterval. m is nil at the end of such a process: then its callers see what the
// module lists again.
func (o *moduleOwner) onLists(w *Worker, m *manifest) {
	p := w.pool
	if !p.perSession && o.latest.Load().pool == p {
		o.writeCache(p.source, m)
	}
	o.do(func() {
		served := o.latest.Load()
		switch {
		case p != served.pool || p != o.pool: // a newer version has begun
		case !p.perSession:
			o.publishLists(m)
		default:
			var before *manifest
			w.update(func() {
				before = w.lists
				w.lists = m
			})
			differ := func(m *manifest) bool { return m != nil && m.Hash != served.Hash }
			if before == nil && differ(m) && time.Since(o.examined) > retryInterval {
				o.examined = time.Now()
				o.introspectLater()
			}
			if differ(m) || differ(before) {
				o.setLatest(*served)
			}
		}
	})
}

// fail records why the newest version can't be hosted.
func (o *moduleOwner) fail(err error) {
	if why := explain(err); why != o.reported {
		o.reported = why
		o.log.Error("module failed", "why", why)
	}
	o.pool.retire()
	m := *o.latest.Load()
	m.Err = err
	m.Pending = false
	o.setLatest(m)
}

// addParts adds files to the parts of the module, which a process has loaded, unless scans do
// not search their folders. The cache gets them when the lists of the process are read.
func (o *moduleOwner) addParts(w *Worker, paths []string) {
	last := o.loaded.Load()
	paths = slices.DeleteFunc(paths, func(path string) bool {
		return slices.Contains(last.Paths, path) || !isSearched(path, realPaths(o.registry.Roots...))
	})
	if len(paths) == 0 || last.changed() { // then the next scan begins a version
		return
	}
	o.loaded.Store(newParts(slices.Concat(last.Paths, paths)))
	if o.latest.Load().pool == w.pool {
		w.listsChanged()
	}
}

// tryAgain begins the newest version again if it could not be introspected, at least wait ago.
func (o *moduleOwner) tryAgain(wait time.Duration) {
	if !o.failed.IsZero() && time.Since(o.failed) >= wait {
		o.begin(o.pool.source, nil)
	}
}

// checkCurrent returns nil if p serves the newest version, or if usher does not follow changes, or runs
// only approved content: then scans alone begin versions. p is nil if no version is served. If the
// source file has changed since the last scan, checkCurrent scans the workspace. A file that is gone
// does not count as changed: scans notice its removal. The error is errRetired if a newer version is
// ready or pending, else the reason why that can't be hosted.
func (o *moduleOwner) checkCurrent(ctx context.Context, p *pool) error {
	r := o.registry
	if p != nil && (!r.Watch || r.Approved != "") {
		return nil
	}
	m := o.latest.Load()
	info, err := os.Stat(m.Path)
	r.mu.Lock()
	scanned, known := r.files[m.Path] // unknown if its folder can't be listed at the moment
	r.mu.Unlock()
	if err == nil && known && fileVersion(info) != scanned {
		r.Refresh(ctx, time.Now())
	}
	o.do(func() { o.tryAgain(retryDelay) })
	m = o.latest.Load()
	if m.Pending || m.Err == nil && m.pool != p {
		return errRetired
	}
	return m.failure()
}

// ownLists returns what the process of a Member lists, or nil if the Member has no process of its own,
// or one that lists what the module does. For senders, who have no Member, it returns nil: they see
// the view of everything.
func (m *Module) ownLists(member context.Context) (lists *manifest) {
	if member != nil {
		m.pool.ofMember(member, func(w *Worker) {
			if w.lists != nil && w.lists.Hash != m.Hash {
				lists = w.lists
			}
		})
	}
	return lists
}

// failure returns an error for clients that says why the newest version of the module can't be
// hosted, or nil.
func (m *Module) failure() error {
	if m.Err == nil {
		return nil
	}
	text := strings.TrimPrefix(errText(m.Err), fmt.Sprintf("module %q ", m.Name))
	if details := explain(m.Err); details != m.Err.Error() {
		text += ": " + faultLine(details, filepath.Base(m.Source)+":")
	}
	return httpErrorf(http.StatusBadGateway, "module %q can't be hosted: %s", m.Name, text).because(m.Err)
}

// absolutePath matches an absolute path, or something like one, in a line of text.
var absolutePath = regexp.MustCompile(`(^|[^\w.])/\w|\b[A-Za-z]:\\`)

// faultLine returns the first line of a fault's details that contains the name of the module's
// file, from the name on, if no absolute path follows. If there is none, it says where to look.
func faultLine(details, file string) string {
	for line := range strings.SplitSeq(details, "\n") {
		_, rest, found := strings.Cut(line, file)
		if found && !absolutePath.MatchString(rest) {
			return file + rest
		}
	}
	return "see usher modules"
}

// newModule returns the module that a pool serves, if that offers what the manifest says.
func newModule(o *moduleOwner, p *pool, offered *manifest) *Module {
	m := &Module{source: p.source, manifest: *offered, owner: o, pool: p}
	m.About = firstSentence(parseDoc(m.About, m.Kind).description)
	for _, raw := range m.Lists["tools"] {
		method := parseMethod(raw, m.Kind)
		if method.refused == "" {
			m.Methods = append(m.Methods, method)
		} else {
			method.problems = append(method.problems, "not offered: "+method.refused)
		}
		for _, problem := range method.problems {
			m.Problems = append(m.Problems, method.Name+": "+problem)
		}
		for _, tag := range method.unknown {
			if note := "unknown tag @" + tag; !slices.Contains(m.Problems, note) {
				m.Problems = append(m.Problems, note)
			}
		}
	}
	if len(m.Methods)+len(m.Problems) == 0 && m.Kind.singleFile() {
		m.Problems = append(m.Problems, "no methods: see docs/modules.md")
	}
	return m
}

// ---- The cache

// cacheFormat must change when the meaning of a cached manifest changes.
const cacheFormat = "14"

// cachePath returns the file that caches what a module offers, so that a restart need not
// start known modules. It may be deleted at any time.
func (r *Registry) cachePath(s source) string {
	return filepath.Join(r.CacheDir, "modules", hashOf(s.key())+".json")
}

// cacheKey returns a hash that changes with the file, with usher, and with cacheFormat.
// It includes the content, if that is known, because a file's times can be set.
func (s source) cacheKey() string { return hashOf(version(), cacheFormat, s.Version, s.Content) }

// readCache returns the cached manifest of a source, or nil if there is none, the file is
// incomplete, or a part has changed.
func (r *Registry) readCache(s source) *manifest {
	m := &manifest{}
	raw, err := os.ReadFile(r.cachePath(s))
	if err != nil || json.Unmarshal(raw, m) != nil || m.Key != s.cacheKey() || m.Parts.changed() {
		return nil
	}
	return m
}

// writeCache caches the manifest of a source.
func (o *moduleOwner) writeCache(s source, m *manifest) {
	m.Key = s.cacheKey()
	m.Parts = *o.loaded.Load()
	if err := writeFile(o.registry.cachePath(s), marshal(m), os.O_TRUNC, 0o600); err != nil {
		o.log.Warn("the cache was not written", "err", err) // it costs time at the next start
	}
}

// ---- Lists

// introspect asks the first process of a version for its lists. The process of a single-file module
// then waits for calls, unless more modules are about to be introspected: otherwise a first start would
// leave one process per module running.
func (o *moduleOwner) introspect(p *pool) (m *manifest, err error) {
	r := o.registry
	defer catch(o.log, &err)
	slot := &slot{counter: &r.introspecting}
	if p.Kind == kindGo {
		slot.counter = &r.building
		o.log.Info("building")
	}
	defer slot.release()
	if err := waitFor(p.ctx, slot.queue()); err != nil {
		return nil, err
	}
	if p.shell != nil {
		return p.shell.introspect(p.ctx)
	}
	m, err = p.introspect()
	if !p.perSession && slot.counter.busy() { // else the process has ended
		p.drain()
	}
	return m, err
}

// ---- Approval

// approvedName is the file in the data folder that records the approved modules.
const approvedName = "approved.json"

// approvals maps each hosted DIR to the approved modules below it, which are a map from
// approvalKey to source.Content. A DIR has the path that its owner gave, links not resolved.
//
//	what a source has  is                                         and matters for
//	Path               the path below the DIR, links not resolved the record: approvalKey
//	Source             the real path of the file                  the scope, and the working directory
//	Content            a hash of what can run, by readContent     the record: approvedContent
//	Version            what a scan sees of the file               whether a new version begins
//	Invalid            why it can't run, also errUnapproved       whether a process starts
//
// The record is asked by a scan (compare) and right before each start (checkApproved). It is written
// by the first start with a DIR (approveFirst) and by usher approve.
type approvals map[string]map[string]string

// readApprovals reads the record. If there is none, nothing is approved.
func readApprovals(path string) (list approvals, err error) {
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return approvals{}, nil
	}
	if err == nil {
		err = json.Unmarshal(raw, &list)
	}
	broken := list == nil
	for _, modules := range list {
		broken = broken || modules == nil
	}
	if err != nil || broken {
		err = cmp.Or(err, errors.New("want an object of objects"))
		return nil, fmt.Errorf("%q is broken (%v): restore it (a start without it approves all)", path, err)
	}
	return list, nil
}

// adopt returns a record for a DIR that has none. If the record of another path to the same folder is
// known, it is a copy of that, with the paths below the DIR.
func (list approvals) adopt(dir string) (record map[string]string, known bool) {
	record = make(map[string]string)
	for _, other := range sortedKeys(list) {
		if realPaths(other)[0] != realPaths(dir)[0] {
			continue
		}
		for key, content := range list[other] {
			if below, ok := strings.CutPrefix(key, other); ok {
				key = dir + below
			}
			record[key] = content
		}
		return record, true
	}
	return record, false
}

// approvalKey identifies a module in a record of approved modules, by its path. A link can give a
// file another kind.
func (s source) approvalKey(path string) string {
	return fmt.Sprintf("%s#%s (%s)", path, s.Name, s.Kind)
}

// approvedContent returns what is recorded under the path of an approved module. A link out of served,
// the real hosted DIRs, is approved with the folder that it leads to.
func (s source) approvedContent(served []string) string {
	content := s.Content
	if !isBelow(s.Source, served) {
		content += fmt.Sprintf(" in %q", filepath.Dir(s.Source))
	}
	return content
}

// approves reports whether a module is approved below root. Earlier versions recorded the path with
// its links resolved.
func (list approvals) approves(s source, root string, served []string) bool {
	modules := list[root]
	return modules[s.approvalKey(s.Path)] == s.approvedContent(served) ||
		modules[s.approvalKey(s.Source)] == s.Content
}

// approve records the modules below one of paths, with the content they have now. It writes
// the records of dirs, which lead to some of served, the hosted DIRs: each gets the modules
// below it. approve returns the modules that were new or had changed.
func approve(
	ctx context.Context, dataDir string, served, dirs, paths []string,
) (changed []source, err error) {
	var found []source
	scan := scanFolders(dirs, served)
	for _, key := range sortedKeys(scan.sources) {
		s := scan.sources[key]
		if s.Name != "" && slices.ContainsFunc(paths, s.isBelow) && s.readContent(scan.served) == nil {
			found = append(found, s)
		}
	}
	path := filepath.Join(dataDir, approvedName)
	token := newWriteToken(dataDir)
	err = token.do(ctx, func(held string) error {
		list, err := readApprovals(path)
		if err != nil {
			return err
		}
		for _, dir := range dirs {
			if list[dir] == nil {
				list[dir], _ = list.adopt(dir)
			}
		}
		changed = nil // of an attempt that has failed
		for _, s := range found {
			isNew := false
			for _, root := range dirs {
				if s.isBelow(root) && !list.approves(s, root, scan.served) {
					list[root][s.approvalKey(s.Path)] = s.approvedContent(scan.served)
					isNew = true
				}
			}
			if isNew {
				changed = append(changed, s)
			}
		}
		return token.replace(held, path, marshal(list), func() error { return nil })
	})
	return changed, err
}

// approval reads the record. If modules need an approval, the function that it returns sets the
// Content of a valid source, and its Invalid: to an error that matches errUnapproved if the source
// is below a served DIR whose record has no such source with this content, or if the record is
// broken.
func (r *Registry) approval() func(*source) {
	list, err := readApprovals(r.Approved)
	unapproved := errUnapproved
	if err != nil {
		unapproved = fmt.Errorf("%w, which says why %s is broken", errUnapproved, approvedName)
	}
	served := realPaths(r.Served...)
	return func(s *source) {
		if s.Invalid != nil || r.Approved == "" {
			return
		}
		s.Invalid = s.readContent(served)
		for _, root := range r.Served {
			if s.Invalid == nil && s.isBelow(root) && !list.approves(*s, root, served) {
				s.Invalid = unapproved
			}
		}
	}
}

// checkApproved reads a source again and returns its present state. The error says why the source can't
// run. It is errMoved if the file is gone, or if the source's path now leads to another file, because
// the source has the scope of the file that a scan found. Without approvals, checkApproved accepts an
// entry of a .mcp.json that can't be read at the moment.
func (r *Registry) checkApproved(s source) (source, error) {
	again := newScan(r.Roots, r.Served)
	again.file(source{Root: s.Root, Path: s.Path, Name: s.Name, Kind: s.Kind})
	found, ok := again.sources[s.key()]
	switch {
	case ok:
	case r.Approved == "" && again.has(s):
		return s, nil // the .mcp.json may be half written
	default:
		return s, errMoved
	}
	r.approval()(&found)
	if found.Invalid == nil && found.Source != s.Source {
		return s, errMoved
	}
	return found, found.Invalid
}

// ---- Starting processes

// newPool returns the pool of a version.
func (o *moduleOwner) newPool(s source) *pool {
	r := o.registry
	config := poolConfig{
		source:     s,
		log:        r.Log.With("module", s.Name),
		perSession: !s.Kind.singleFile() && !s.Launch.Shared,
		ends:       r.ctx,
		timeout:    r.CallTimeout,
		idle:       r.Idle,
		running:    &r.running,
		slots:      &o.slots,
		rooms:      &o.rooms,
		onLists:    o.onLists,
		onParts:    o.addParts,
		start:      o.startProcess,
	}
	if config.perSession && (r.Idle == 0 || r.Idle > sessionIdle) {
		config.idle = sessionIdle
	}
	if s.Kind == kindShell {
		config.shell = &shellRunner{config, o.ctx, r.checkApproved}
	}
	p := newPool(o.ctx, config)
	r.pools.Store(p, true)
	return p
}

// startProcess starts a process of a version. If none was started, the error's text contains no path.
func (o *moduleOwner) startProcess(w *Worker) (err error) {
	defer catch(o.log, &err)
	p := w.pool
	l, err := o.launch(p)
	if err == nil {
		l.Env = append(slices.Clip(l.Env), insideOf(p.Source))
		err = w.spawn(l)
	}
	if _, isFault := errors.AsType[*fault](err); err != nil && !isFault {
		return w.fault("can't start: " + errText(err)).because(err)
	}
	if err != nil {
		return err
	}
	m := o.latest.Load()
	isServed := m.pool == p
	begins := !m.Stateless || m.Sessions && w.owner.Stream != nil
	w.shakeHands(p.Kind.singleFile() || isServed && begins || p.refusesDiscover.Load())
	if isServed {
		w.listsChanged() // perhaps, since the manifest was made
	}
	if p.perSession {
		context.AfterFunc(w.ctx, func() { o.onLists(w, nil) })
	}
	return nil
}

// launch returns how to start a process of a version, if the content that its source has now is
// approved or needs no approval. It builds a Go module first, unless its parts are unchanged.
func (o *moduleOwner) launch(p *pool) (launch, error) {
	r := o.registry
	s, err := r.checkApproved(p.source)
	if err == nil && s.Kind == kindGo {
		var loaded *parts
		folder := filepath.Join(r.CacheDir, "go")
		loaded, err = buildGoModule(p.ctx, folder, s.Source, s.Content, o.loaded.Load())
		o.loaded.Store(loaded)
		s.Launch.Path = loaded.Binary
		if err == nil {
			_, err = r.checkApproved(s) // the file may have changed during the build
		}
	}
	if err != nil {
		return launch{}, err
	}
	return s.command(r.CacheDir)
}
