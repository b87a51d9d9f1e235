// The registry. It finds the modules of the workspace, watches their files, asks each
// module what it offers, caches the answers between starts, and publishes everything as a
// Catalog, which is replaced when something changes. Sessions and requests get only views
// of it. If modules need an approval, the registry runs only content that the owner has
// approved.
//
// Each version of a module's file that can be hosted has one goroutine (followLists), which
// does the slow work for it. Registry.mu is never held while a file is read, a list is
// parsed or a process starts.

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

	publishDelay     = 50 * time.Millisecond  // from a change to the catalog that shows it
	revisionInterval = time.Second            // at least, between two readings of one module's lists
	retryInterval    = 2 * time.Minute        // before a failed introspection is repeated
	settleTime       = 250 * time.Millisecond // in which a new process may still change its lists

	startupTime = 5 * time.Second // after the start, in which clients wait for modules
)

// registryConfig configures a registry.
type registryConfig struct {
	Roots       []string // absolute, symlinks resolved
	CacheDir    string
	CallTimeout time.Duration // how long a call may be silent; 0 is unlimited
	Idle        time.Duration // after which an unused process is stopped; 0 is never
	Log         *slog.Logger
	Only        func(name string) bool // selects the modules to host; nil selects all
	CachedOnly  bool                   // host only modules with cached lists; start none
	Watch       bool                   // scan the workspace again and again

	Approved string   // the path of the record of approved modules; "" if all modules may run
	Served   []string // with Approved, the daemon's DIRs: modules below them need an approval
}

// Registry finds and keeps the modules under its roots. Safe for concurrent use.
type Registry struct {
	registryConfig
	groups  *groups
	catalog atomic.Pointer[Catalog]

	ctx           context.Context // ends with the registry
	cancel        context.CancelFunc
	running       sync.WaitGroup // goroutines, and processes of modules
	introspecting counter[Kind]  // modules that need no build
	building      counter[Kind]  // modules whose introspection begins with a build

	updating sync.Mutex // held while versions are compared with files and replaced

	mu      sync.Mutex                // guards the fields below
	modules map[string]*moduleVersion // the latest versions by their keys; only scans add and remove them
	due     bool                      // the catalog is about to be replaced
	changed chan struct{}             // closed when the catalog has been replaced
}

// moduleVersion is one version of a module's file, or of its entry in one.
type moduleVersion struct {
	Status                  // guarded by Registry.mu, except discovered
	ctx     context.Context // ends when a newer version replaces this one, or the module is removed
	cancel  context.CancelFunc
	kept    context.Context // ends when the module is removed
	remove  context.CancelFunc
	shell   *shellRunner  // nil if the module is of another kind
	changed chan struct{} // 1-buffered: newest may offer something new
	newest  atomic.Pointer[Worker]
	imports atomic.Pointer[goImports] // of the newest build; nil if they are not known

	// Only one goroutine at a time uses the next two fields: startVersion, then followLists.
	offers string // a hash of the manifest; "" if there is none yet
	pool   *pool  // made with the first manifest

	// Guarded by Registry.mu.
	settled bool // it has been introspected, or can't be hosted
	missing bool // the last scan did not find the file
}

// Status is the state of one module, for people at this machine.
type Status struct {
	discovered
	Module  *Module // the newest that worked, of this version or an earlier one; nil for none
	Err     error   // why the newest version is not hosted
	Pending bool    // it is being introspected, or the catalog does not show its outcome yet
}

// manifest is everything that a module offers. It is cached.
type manifest struct {
	Version   string                       // see cacheVersion
	Lists     map[string][]json.RawMessage // its MCP definitions, by the keys of listMethods
	About     string                       // one sentence, "" for none
	Problems  []string
	Stateless bool // it speaks a revision without sessions
	Imports   *goImports
}

// hash returns a hash of the manifest.
func (m *manifest) hash() string { return hashOf(string(marshal(m))) }

// newRegistry returns a registry after one scan of the workspace. Its catalog contains the
// modules that the cache knows; the others are introspected in the background. Close ends
// everything that newRegistry started.
func newRegistry(c registryConfig) *Registry {
	r := &Registry{
		registryConfig: c,
		groups:         newGroups(c.Log),
		introspecting:  counter[Kind]{perKey: maxIntrospections, total: maxIntrospections},
		building:       counter[Kind]{perKey: int64(max(1, runtime.NumCPU()/2))},
		modules:        make(map[string]*moduleVersion),
		changed:        make(chan struct{}),
	}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	r.update(scanFolders(r.Roots))
	r.publish()
	if r.Watch {
		r.running.Go(r.watch)
	}
	return r
}

// Call runs attempt, which finds something in a view and asks its module for a principal. If
// the module was reloaded between the two, or its file has changed, Call runs attempt again
// once the new version is ready. So an edit makes no call fail, unless the new version can't
// be hosted, and the next call uses that version. The error is errEnded if the principal's
// claim ends while Call waits.
func (r *Registry) Call(ctx context.Context, p *Principal,
	attempt func() (json.RawMessage, error)) (json.RawMessage, error) {
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

// View returns the modules of the current catalog that are inside a scope.
func (r *Registry) View(scope Scope) *View { return r.catalog.Load().View(scope) }

// Changed returns a channel that is closed when the catalog is next replaced.
func (r *Registry) Changed() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.changed
}

// Pending reports whether modules inside a scope are being introspected for the first time
// since they were found or changed.
func (r *Registry) Pending(scope Scope) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, v := range r.modules {
		if v.Pending && scope.Contains(v.Source) {
			return true
		}
	}
	return false
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

// pools returns the pools of the modules. The processes of modules that were replaced end
// by themselves, after the calls under way.
func (r *Registry) pools() (list []*pool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, v := range r.modules {
		if v.Module != nil {
			list = append(list, v.Module.pool)
		}
	}
	return list
}

// watch scans the workspace again and again. The time between two scans is proportional to
// the time that a scan takes, so that usher does not read a huge tree all day.
func (r *Registry) watch() {
	wait := minPoll
	for pauseFor(r.ctx, wait) {
		start := time.Now()
		r.rescan()
		wait = min(max(minPoll, pollShare*time.Since(start)), maxPoll)
	}
}

// rescan scans the workspace once. It also stops idle processes.
func (r *Registry) rescan() {
	defer catch(r.Log, nil)
	r.updating.Lock()
	defer r.updating.Unlock()
	r.update(scanFolders(r.Roots))
	for _, p := range r.pools() {
		p.reap(time.Now(), r.Idle)
	}
}

// Close ends every process of every module and waits for them.
func (r *Registry) Close() {
	r.cancel()
	r.running.Wait()
	r.groups.Close()
}

// update hosts the modules that a scan has found, and removes those that are gone. The caller
// holds r.updating.
func (r *Registry) update(s *scan) {
	check := r.approval()
	for _, d := range r.compare(s, check) {
		refused := d.Err
		if refused == nil {
			refused = check(&d)
		}
		r.startVersion(d, refused)
	}
}

// startVersion replaces a module's version with a new one. The old version's Module stays
// until the new version has one. refused says why the new version can't be hosted, or is
// nil. The caller holds r.updating.
func (r *Registry) startVersion(d discovered, refused error) {
	v := &moduleVersion{
		Status:  Status{discovered: d, Pending: true},
		changed: make(chan struct{}, 1),
	}
	known := r.readCache(d)
	r.mu.Lock()
	if last := r.modules[d.key()]; last != nil {
		last.cancel()
		v.Module = last.Module
		v.kept = last.kept
		v.remove = last.remove
	} else {
		v.kept, v.remove = context.WithCancel(r.ctx)
	}
	if d.Kind == kindShell {
		v.shell = &shellRunner{d, r.Log.With("module", d.Name), r.groups, v.kept, r.checkApproved}
	}
	v.ctx, v.cancel = context.WithCancel(r.ctx)
	r.modules[d.key()] = v
	r.publishSoon() // so that everything that waits on Changed sees that the module is pending
	r.mu.Unlock()
	switch {
	case refused != nil:
		r.finishVersion(v, nil, refused)
	case known == nil && r.CachedOnly:
		r.finishVersion(v, nil, errors.New("not in the cache: omit -cached"))
	default:
		if known != nil {
			v.imports.Store(known.Imports)
			r.buildModule(v, known)
		}
		r.running.Go(func() { r.followLists(v) })
	}
}

// hasChanged reports whether the version's file has changed. A file that is gone does not
// count as changed: scans notice its removal.
func (v *moduleVersion) hasChanged() bool {
	info, err := os.Lstat(v.Source)
	return err == nil && fileVersion(info) != v.FileVersion
}

// checkCurrent returns nil if a module has not changed since its version v was found, if its
// file is gone, or if usher does not follow changes of its file. Otherwise it scans the
// workspace, unless a scan has found the change. The error is errRetired while the new version is
// pending and when it is ready, else the reason why it can't be hosted.
func (r *Registry) checkCurrent(v *moduleVersion) error {
	if !r.Watch || r.Approved != "" || v.Kind == kindConfig || !v.hasChanged() {
		return nil
	}
	r.updating.Lock()
	defer r.updating.Unlock()
	last, failed := r.latest(v.discovered)
	if last != nil && last.hasChanged() {
		r.update(scanFolders(r.Roots))
		last, failed = r.latest(v.discovered)
	}
	if last == v { // the file is gone, or has changed back
		return nil
	}
	return v.failure(failed)
}

// latest returns the latest version of a module, or nil, and why that version is not hosted.
func (r *Registry) latest(d discovered) (v *moduleVersion, failed error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if v = r.modules[d.key()]; v != nil {
		failed = v.Err
	}
	return v, failed
}

// failure returns an error for clients that says why the module can't be hosted. It returns
// errRetired if why is nil: then a version is being introspected, or a newer one is ready.
func (v *moduleVersion) failure(why error) error {
	if why == nil {
		return errRetired
	}
	text := strings.TrimPrefix(errText(why), fmt.Sprintf("module %q ", v.Name))
	line := faultLine(why, filepath.Base(v.Source))
	f := httpErrorf(http.StatusBadGateway, "module %q can't be hosted: %s%s", v.Name, text, line)
	return f.because(why)
}

// absolutePath matches an absolute path, or something like one, in a line of text.
var absolutePath = regexp.MustCompile(`(^|[^\w.])/\w|\b[A-Za-z]:\\`)

// faultLine returns a colon and the first line of a fault's detail that begins with the name
// of the module's file and contains no absolute path. If there is no such line, it says where
// to look. It returns "" if there is no detail.
func faultLine(err error, file string) string {
	detail := explain(err)
	if detail == err.Error() {
		return ""
	}
	for line := range strings.SplitSeq(strings.TrimPrefix(detail, err.Error()+": "), "\n") {
		if strings.HasPrefix(line, file+":") && !absolutePath.MatchString(line) {
			return ": " + line
		}
	}
	return ": see usher modules"
}

// compare returns the modules that are new, and those that have changed, been approved or
// lost their approval since the last scan. check returns an error for a module without
// approval. If modules need no approval, a changed import changes a Go module. compare also
// removes the modules that are gone.
func (r *Registry) compare(s *scan, check func(*discovered) error) []discovered {
	r.removeMissing(s)
	return slices.DeleteFunc(s.modules, func(d discovered) bool {
		v, failed := r.latest(d)
		switch {
		case r.Only != nil && !r.Only(d.Name):
			return true
		case v == nil || v.Version != d.Version:
			return false
		case v.discovered.Err != nil:
			return true
		case r.Approved == "" && v.imports.Load().changed():
			return false
		}
		last := v.discovered
		refused := errors.Is(check(&last), errUnapproved)
		return last.Content == v.Content && refused == errors.Is(failed, errUnapproved)
	})
}

// removeMissing removes the modules that are gone. Editors replace a file by removing it for a
// moment, so one scan that misses a file does not count.
func (r *Registry) removeMissing(s *scan) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for key, v := range r.modules {
		missed := v.missing
		v.missing = !s.has(v.discovered)
		if !v.missing || !missed {
			continue
		}
		if v.Name != "" {
			r.Log.Info("module removed", "module", v.Name, "kind", v.Kind, "file", v.file())
		}
		v.cancel()
		v.remove()
		r.replace(v, nil)
		delete(r.modules, key)
	}
}

// replace replaces the module of a version with m, or removes it if m is nil. The processes
// of the old module end after the calls under way. A new call of the old module waits for
// the next catalog: see Registry.Call. The caller holds r.mu.
func (r *Registry) replace(v *moduleVersion, m *Module) {
	if old := v.Module; old != nil && (m == nil || m.pool != old.pool) {
		old.pool.retire()
	}
	v.Module = m
	r.publishSoon()
}

// followLists introspects a version that the cache does not know, retrying until it
// succeeds. Then it reads the lists again when a process announces a change, until the
// version is replaced. If the process serves only one Member and its lists differ,
// followLists offers the lists of a new process: names from one claim's process must not
// reach other claims.
func (r *Registry) followLists(v *moduleVersion) {
	defer catch(r.Log, nil)
	if v.offers == "" && v.Kind == kindGo {
		r.Log.Info("building", "module", v.Name)
	}
	for v.offers == "" && v.ctx.Err() == nil {
		if m, err := r.introspect(v); err == nil {
			r.offer(v, m)
		} else if v.ctx.Err() == nil {
			r.finishVersion(v, nil, err)
			pauseFor(v.ctx, retryInterval)
		}
	}
	for waitFor(v.ctx, v.changed) == nil {
		pauseFor(v.ctx, revisionInterval) // more changes are likely to follow
		m, err := v.readManifest(v.newest.Load())
		if err == nil && m.hash() != v.offers && v.pool.perSession {
			m, err = r.introspect(v)
		}
		if err == nil {
			r.offer(v, m)
		}
	}
}

// offer hosts and caches what a version offers, unless the manifest is unchanged.
func (r *Registry) offer(v *moduleVersion, m *manifest) {
	if m.hash() == v.offers {
		return
	}
	r.buildModule(v, m)
	if err := writeCacheFile(r.cachePath(v.discovered), marshal(m), os.O_TRUNC); err != nil {
		r.Log.Warn("writing the cache", "err", err) // it costs time at the next start
	}
}

// listsChanged makes followLists read the lists of w, now the version's newest process.
func (v *moduleVersion) listsChanged(w *Worker) {
	v.newest.Store(w)
	wake(v.changed)
}

// finishVersion records the outcome for a version: its module, or why it can't be hosted. On
// failure the last working module stays, unless the file itself is invalid.
func (r *Registry) finishVersion(v *moduleVersion, m *Module, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.modules[v.key()] != v {
		return
	}
	log := r.Log.With("module", v.Name, "kind", v.Kind, "file", v.file())
	switch {
	case err != nil && v.Err != nil: // logged before
	case err != nil:
		log.Error("module failed", "why", explain(err))
	case v.Module != nil:
		log.Info("module changed", "tools", len(m.Methods))
	default:
		log.Info("module added", "tools", len(m.Methods))
	}
	if m != nil || v.discovered.Err != nil {
		r.replace(v, m)
	}
	v.Err = err
	v.settled = true
	r.publishSoon()
}

// buildModule makes the module of a version out of its manifest. When a process of the
// version starts, its lists are compared with the manifest.
func (r *Registry) buildModule(v *moduleVersion, m *manifest) {
	perSession := !v.Kind.singleFile() && !v.Launch.Shared
	stateful := !m.Stateless
	if v.pool == nil || v.pool.perSession != perSession {
		v.pool = &pool{
			name:       v.Name,
			perSession: perSession,
			timeout:    r.CallTimeout,
			running:    &r.running,
			calls:      counter[*Principal]{perKey: maxRunningOf, total: maxRunning},
			started:    counter[*Principal]{perKey: maxProcsOf, total: maxProcs},
			crashed:    make(map[context.Context]time.Time),
			shell:      v.shell,
			start: func(owner *Caller) (*Worker, error) {
				w, err := r.startProcess(r.ctx, v, stateful, owner)
				if err == nil {
					v.listsChanged(w)
				}
				return w, err
			},
		}
	}
	v.offers = m.hash()
	module := &Module{
		discovered: v.discovered,
		manifest:   *m,
		Problems:   slices.Concat(v.Problems, m.Problems),
		pool:       v.pool,
	}
	module.addMethods(m.Lists["tools"])
	module.checkCurrent = func() error { return r.checkCurrent(v) }
	r.finishVersion(v, module, nil)
}

// addMethods adds a method for each definition of a tool, and the problems of these
// definitions.
func (m *Module) addMethods(tools []json.RawMessage) {
	names := make(map[string]bool)
	for _, raw := range tools {
		method, problem := parseMethod(raw, m.Kind)
		if names[method.Name] {
			problem = method.Name + ": a duplicate, left out"
		} else {
			m.Methods = append(m.Methods, method)
		}
		names[method.Name] = true
		if problem != "" {
			m.Problems = append(m.Problems, problem)
		}
	}
	if rule := methodRules[m.Kind]; len(tools)+len(m.Problems) == 0 && rule != "" {
		m.Problems = append(m.Problems, "no methods: a method is "+rule)
	}
}

// introspect starts a module to read its lists, and ends it.
func (r *Registry) introspect(v *moduleVersion) (*manifest, error) {
	slot := &slot[Kind]{counter: &r.introspecting, key: v.Kind}
	if v.Kind == kindGo {
		slot.counter = &r.building
	}
	defer slot.release()
	if err := waitFor(v.ctx, slot.grant()); err != nil {
		return nil, err
	}
	if v.shell != nil {
		return v.shell.introspect(v.ctx)
	}
	w, err := r.startProcess(v.ctx, v, false, nil)
	if err != nil {
		return nil, err
	}
	defer r.running.Go(func() { // only Close has to wait for its end
		w.stop()
		<-w.done
	})
	m, err := v.readManifest(w)
	// Some servers register the rest of their tools only once they know their
	// client, and announce that.
	settled := time.After(settleTime)
	for err == nil && bytes.Contains(w.info, []byte(`"listChanged"`)) {
		select {
		case <-v.changed:
			m, err = v.readManifest(w)
		case <-settled:
			return m, nil
		}
	}
	return m, err
}

// listMethods are the methods that list what a module offers.
var listMethods = map[string]string{
	"tools":             "tools/list",
	"prompts":           "prompts/list",
	"resources":         "resources/list",
	"resourceTemplates": "resources/templates/list",
}

// readManifest asks a process for everything that the version offers. If the process
// can't list its prompts or resources, readManifest adds a problem, and the module is
// hosted with its tools.
func (v *moduleVersion) readManifest(w *Worker) (*manifest, error) {
	ctx, cancel := context.WithTimeout(v.ctx, startTimeout)
	defer cancel()
	extensions := w.capability("experimental")
	m := &manifest{
		Version:   v.cacheVersion(),
		Lists:     make(map[string][]json.RawMessage),
		About:     firstSentence(stringField(w.info, "instructions")),
		Stateless: w.stateless,
		Imports:   v.imports.Load(),
	}
	// usher's own runtimes list here the functions that they can't offer.
	_ = json.Unmarshal(field(field(extensions, "usher/problems"), "problems"), &m.Problems)
	for _, key := range sortedKeys(listMethods) {
		items, err := w.list(ctx, key)
		answered, ok := errors.AsType[*rpcError](err)
		switch {
		case ok && answered.Code == codeNoMethod: // a server may have resources and no templates
		case err != nil && (key == "tools" || !ok): // the lists of a process that ended say nothing
			return nil, err
		case err != nil:
			m.Problems = append(m.Problems, err.Error())
		}
		for _, item := range items {
			if err := checkDefinition(key, item); err != nil {
				m.Problems = append(m.Problems, err.Error())
			} else {
				m.Lists[key] = append(m.Lists[key], oneLine(item))
			}
		}
	}
	return m, nil
}

// checkDefinition returns an error if MCP's schema forbids a definition in the list under
// key. Clients would refuse the whole list because of it.
func checkDefinition(key string, item json.RawMessage) error {
	name := stringField(item, "name")
	missing := ""
	switch {
	case name == "":
		missing = "name"
	case key == "resources" && stringField(item, "uri") == "":
		missing = "uri"
	case key == "resourceTemplates" && stringField(item, "uriTemplate") == "":
		missing = "uriTemplate"
	case key == "tools" && stringField(field(item, "inputSchema"), "type") != "object":
		missing = `inputSchema of "type": "object"`
	default:
		return nil
	}
	return fmt.Errorf("%s: %s is left out: it has no %s", listMethods[key], cmp.Or(name, "an item"), missing)
}

// list returns the whole list under a key of listMethods, read page by page. The list of a
// module without the capability is empty.
func (w *Worker) list(ctx context.Context, key string) ([]json.RawMessage, error) {
	method := listMethods[key]
	capability, _, _ := strings.Cut(method, "/")
	if w.capability(capability) == nil {
		return nil, nil
	}
	var all []json.RawMessage
	params := object{}
	for size := 0; size < maxList; {
		result, err := w.request(ctx, Caller{}, method, params, 0, nil)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", method, err)
		}
		size += len(result)
		list := field(result, key)
		page := items(list)
		if page == nil && !isNull(list) {
			return nil, fmt.Errorf("%s: the answer has no list %q", method, key)
		}
		all = append(all, page...)
		cursor := field(result, "nextCursor")
		if isNull(cursor) {
			return all, nil
		}
		params = object{{"cursor", cursor}}
	}
	return nil, rpcErrorf(codeInternal, "%s: the list is larger than %s", method, formatSize(maxList))
}

// startProcess starts a process of a version. stateful says that the module is known to
// have sessions; owner is the caller that a process for one Member is started for. The
// error is a *fault. If no process was started, the error's text contains no
// path.
func (r *Registry) startProcess(ctx context.Context, v *moduleVersion, stateful bool,
	owner *Caller) (w *Worker, err error) {
	defer catch(r.Log, &err)
	w = newWorker(r.ctx, workerConfig{
		module:      v.Name,
		log:         r.Log,
		owner:       owner,
		confirms:    v.Kind.singleFile(),
		listChanged: v.listsChanged,
	})
	l, err := r.launch(ctx, v.discovered)
	v.imports.Store(l.Imports)
	if err == nil {
		l, err = l.resolve()
	}
	if err == nil {
		l.Env = moduleEnv(v.Source, l.Env)
		err = startError(w.spawn(l, r.groups))
	}
	if err == nil {
		err = w.shakeHands(ctx, stateful)
	}
	if err == nil {
		return w, nil
	}
	w.cancel()
	if _, ok := errors.AsType[*fault](err); ok {
		return nil, err
	}
	f := processFault(v.Name, "can't start: "+errText(err), "")
	return nil, f.because(fmt.Errorf("module %q can't start: %w", v.Name, err))
}

// launch returns how to start a process of a module, if the content that the module has now
// is approved or needs no approval. It builds a Go module first.
func (r *Registry) launch(ctx context.Context, d discovered) (l launch, err error) {
	if d, err = r.checkApproved(d); err != nil {
		return launch{}, err
	}
	switch d.Kind {
	case kindConfig:
		return d.Launch, nil
	case kindGo:
		l, err = buildGoModule(ctx, r.groups, filepath.Join(r.CacheDir, "go"), d.Source)
		if err == nil {
			_, err = r.checkApproved(d) // the file may have changed during the build
		}
		return l, err
	}
	return launchFile(d, r.CacheDir)
}

// checkApproved reads a module again if it needs an approval, and returns it with the content
// that it has now. The error says why that content can't run.
func (r *Registry) checkApproved(d discovered) (discovered, error) {
	if r.Approved == "" {
		return d, nil
	}
	d = d.reread()
	err := d.Err
	if err == nil {
		err = r.approval()(&d)
	}
	return d, err
}

// publishSoon schedules a publication, unless one is scheduled already: at a first start,
// a thousand modules become ready one by one. The caller holds r.mu.
func (r *Registry) publishSoon() {
	if !r.due {
		r.due = true
		time.AfterFunc(publishDelay, r.publish)
	}
}

// publish replaces the catalog and wakes everything that waits on Changed.
func (r *Registry) publish() {
	defer catch(r.Log, nil)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.due = false
	var modules []*Module
	for _, v := range r.modules {
		m := v.Module
		if m == nil {
			failed := v.failure(v.Err)
			m = &Module{discovered: v.discovered}
			m.checkCurrent = func() error { return cmp.Or(r.checkCurrent(v), failed) }
		}
		modules = append(modules, m)
		v.Pending = !v.settled
	}
	r.catalog.Store(newCatalog(modules))
	close(r.changed)
	r.changed = make(chan struct{})
}

// Report returns the state of all modules, sorted by source and name, and the catalog.
func (r *Registry) Report() (list []Status, catalog *Catalog) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, key := range sortedKeys(r.modules) {
		list = append(list, r.modules[key].Status)
	}
	return list, r.catalog.Load()
}

// ---- Approval

// approvedName is the file in the data folder that records the approved modules.
const approvedName = "approved.json"

// approvals maps each hosted DIR to the approved modules below it, which are a map from
// approvalKey to discovered.Content.
type approvals map[string]map[string]string

// readApprovals reads the record. If there is none, nothing is approved.
func readApprovals(path string) (list approvals, err error) {
	raw, err := readRegular(path)
	if errors.Is(err, fs.ErrNotExist) {
		return approvals{}, nil
	}
	if err == nil {
		err = json.Unmarshal(raw, &list)
	}
	if err != nil || list == nil {
		return nil, fmt.Errorf("%q is broken (%v): restore it (a start without it approves all)", path, err)
	}
	return list, nil
}

// approval reads the record. The function that it returns sets the module's Content if modules
// need an approval. It returns errUnapproved if the module is below a served DIR whose record
// has no such module with this content.
func (r *Registry) approval() func(*discovered) error {
	list, _ := readApprovals(r.Approved) // usher approve shows the error
	return func(d *discovered) error {
		if r.Approved == "" {
			return nil
		}
		if err := d.readContent(r.Served); err != nil {
			return err
		}
		for _, root := range r.Served {
			if d.isBelow(root) && list[root][d.approvalKey()] != d.Content {
				return errUnapproved
			}
		}
		return nil
	}
}

// approve records the modules below one of paths, with the content they have now. It writes
// the records of roots, which are some of served, the hosted DIRs: each gets the modules
// below it. approve returns the modules that were new or had changed.
func approve(
	ctx context.Context, dataDir string, served, roots, paths []string,
) (news []discovered, err error) {
	var found []discovered
	for _, d := range scanFolders(roots).modules {
		if d.Name != "" && slices.ContainsFunc(paths, d.isBelow) && d.readContent(served) == nil {
			found = append(found, d)
		}
	}
	path := filepath.Join(dataDir, approvedName)
	token := newWriteToken(dataDir)
	err = token.do(ctx, func(held string) error {
		list, err := readApprovals(path)
		if err != nil {
			return err
		}
		for _, root := range roots {
			if list[root] == nil {
				list[root] = make(map[string]string)
			}
		}
		news = nil
		for _, d := range found {
			key := d.approvalKey()
			isNew := false
			for _, root := range roots {
				if d.isBelow(root) && list[root][key] != d.Content {
					list[root][key] = d.Content
					isNew = true
				}
			}
			if isNew {
				news = append(news, d)
			}
		}
		return token.replace(held, path, marshal(list), func() error { return nil })
	})
	return news, err
}

// cacheFormat must change when the meaning of a cached manifest changes.
const cacheFormat = "6"

// cachePath returns the file that caches what a module offers, so that a restart need not
// start known modules. It may be deleted at any time.
func (r *Registry) cachePath(d discovered) string {
	return filepath.Join(r.CacheDir, "modules", hashOf(d.Source, d.Name)+".json")
}

// cacheVersion returns a hash that changes with the file, with usher, and with cacheFormat.
// It includes the content, if that is known, because a file's times can be set.
func (d discovered) cacheVersion() string {
	return hashOf(version(), cacheFormat, d.Version, d.Content)
}

// readCache returns the cached manifest of this version of a module, or nil if there is none
// or the file is incomplete.
func (r *Registry) readCache(d discovered) *manifest {
	m := &manifest{}
	raw, err := os.ReadFile(r.cachePath(d))
	if err != nil || json.Unmarshal(raw, m) != nil || m.Version != d.cacheVersion() || m.Imports.changed() {
		return nil
	}
	return m
}
