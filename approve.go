// Approval: which content may run. The processes of modules start here, each after a check of its
// content.

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// approvedName is the file in the data folder that records the approved modules.
const approvedName = "approved.json"

// approvals maps each hosted DIR to the approved modules below it, which are a map from
// approvalKey to source.Content.
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

// approve records the modules below one of paths, with the content they have now. It writes
// the records of roots, which are some of served, the hosted DIRs: each gets the modules
// below it. approve returns the modules that were new or had changed.
func approve(
	ctx context.Context, dataDir string, served, roots, paths []string,
) (news []source, err error) {
	var found []source
	scan := scanFolders(roots, served...)
	for _, key := range sortedKeys(scan.sources) {
		s := scan.sources[key]
		if s.Name != "" && slices.ContainsFunc(paths, s.isBelow) && s.readContent(served) == nil {
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
		for _, root := range roots {
			if list[root] == nil {
				list[root] = make(map[string]string)
			}
		}
		news = nil // of an attempt that has failed
		for _, s := range found {
			key := s.approvalKey()
			isNew := false
			for _, root := range roots {
				if s.isBelow(root) && list[root][key] != s.Content {
					list[root][key] = s.Content
					isNew = true
				}
			}
			if isNew {
				news = append(news, s)
			}
		}
		return token.replace(held, path, marshal(list), func() error { return nil })
	})
	return news, err
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
	return func(s *source) {
		if s.Invalid != nil || r.Approved == "" {
			return
		}
		s.Invalid = s.readContent(r.Served)
		for _, root := range r.Served {
			if s.Invalid == nil && s.isBelow(root) && list[root][s.approvalKey()] != s.Content {
				s.Invalid = unapproved
			}
		}
	}
}

// checkApproved reads a source again if it needs an approval, and returns it with the content
// that it has now. The error says why that content can't run.
func (r *Registry) checkApproved(s source) (source, error) {
	if r.Approved == "" {
		return s, nil
	}
	again := newScan()
	again.root = s.Root
	again.served = slices.Concat(r.Roots, r.Served)
	again.file(s.Path, s.Name, s.Kind)
	found, ok := again.sources[s.key()]
	if !ok {
		return s, errMoved
	}
	r.approval()(&found)
	return found, found.Invalid
}

// newPool returns the pool of a version.
func (o *moduleOwner) newPool(s source) *pool {
	r := o.registry
	p := &pool{
		source:     s,
		log:        o.log,
		perSession: !s.Kind.singleFile() && !s.Launch.Shared,
		timeout:    r.CallTimeout,
		running:    &r.running,
		calls:      counter[*Principal]{perKey: maxRunningOf, total: maxRunning},
		started:    counter[*Principal]{perKey: maxProcsOf, total: maxProcs},
		crashed:    make(map[context.Context]time.Time),
	}
	p.ctx, p.cancel = context.WithCancel(o.ctx)
	context.AfterFunc(p.ctx, p.retire)
	if s.Kind == kindShell {
		p.shell = &shellRunner{s, r.Log.With("module", s.Name), r.groups, o.ctx, r.checkApproved}
	}
	p.start = func(owner *Caller) (w *Worker, err error) {
		defer catch(o.log, &err)
		w, err = o.startProcess(p, owner)
		if _, isFault := errors.AsType[*fault](err); err != nil && !isFault {
			err = processFault(s.Name, "can't start: "+errText(err), "").
				because(fmt.Errorf("module %q can't start: %w", s.Name, err))
		}
		return w, err
	}
	return p
}

// startProcess starts a process of a version. owner is the caller that a process for one Member is
// started for. If no process was started, the error's text contains no path.
func (o *moduleOwner) startProcess(p *pool, owner *Caller) (*Worker, error) {
	r := o.registry
	l, err := o.launch(p)
	if err != nil {
		return nil, err
	}
	caps := clientCaps(allCaps)
	if p.Launch.Shared || owner.hasClaim() {
		caps &^= capRoots
	}
	w := newWorker(r.ctx, workerConfig{
		module:      p.Name,
		log:         r.Log,
		owner:       owner,
		confirms:    p.Kind.singleFile(),
		caps:        caps,
		listChanged: func(w *Worker) { o.listsChanged(p, w, false) },
		partsLoaded: func(w *Worker, paths []string) { o.addParts(p, w, paths) },
	})
	l.Env = append(slices.Clip(l.Env), insideOf(p.Source))
	if err := startError(w.spawn(l, r.groups)); err != nil {
		w.cancel()
		return nil, err
	}
	m := o.latest.Load()
	isServed := m.pool == p
	if err := w.shakeHands(p.ctx, p.Kind.singleFile() || isServed && !m.Stateless); err != nil {
		return nil, err
	}
	if isServed {
		o.listsChanged(p, w, true) // perhaps, since the manifest was made
	}
	if owner != nil {
		context.AfterFunc(w.ctx, func() { o.do(func() { o.setOwn(p, w, nil) }) })
	}
	return w, nil
}

// launch returns how to start a process of a version, if the content that its source has now is
// approved or needs no approval. It builds a Go module first, unless its parts are unchanged, and
// installs the dependencies that a Python file lists, unless they are installed.
func (o *moduleOwner) launch(p *pool) (l launch, err error) {
	r := o.registry
	s, err := r.checkApproved(p.source)
	if err != nil {
		return launch{}, err
	}
	switch s.Kind {
	case kindConfig:
		l, err = s.Launch.withEnvFile()
	case kindGo:
		folder := filepath.Join(r.CacheDir, "go")
		loaded, err := buildGoModule(p.ctx, r.groups, folder, s.Source, s.Content, o.loaded.Load())
		o.loaded.Store(loaded)
		if err != nil {
			return launch{}, err
		}
		l = launch{Path: loaded.Binary, Dir: filepath.Dir(s.Source)}
	default:
		l, err = launchFile(s, r.CacheDir)
	}
	if err == nil {
		l, err = l.resolve()
	}
	if err != nil || !s.needsBuild() {
		return l, err
	}
	if s.Kind == kindPython {
		l.Path, err = r.installPackages(p.ctx, l, s)
	}
	if err == nil {
		_, err = r.checkApproved(s) // the file may have changed during the build
	}
	return l, err
}

const (
	installTimeout = 5 * time.Minute     // for the dependencies of one Python module
	keepVenvs      = 30 * 24 * time.Hour // how long an unused one is kept, at least until the next start
	venvFolder     = "python"            // their folder in CacheDir
)

// installPackages makes the virtual environment for the dependencies that a Python file lists,
// unless there is one, with the Python of l. It returns the environment's Python. The error is a
// *fault if the file is at fault or the installation takes too long, or ctx's cause if ctx ended it.
func (r *Registry) installPackages(ctx context.Context, l launch, s source) (python string, err error) {
	const reason = "can't be installed"
	slow := processFault(s.Name, reason, fmt.Sprintf("it took over %v", installTimeout))
	ctx, cancel := context.WithTimeoutCause(ctx, installTimeout, slow)
	defer cancel()
	script, err := placeShim("environment.py", r.CacheDir)
	if err != nil {
		return "", err
	}
	cmd := exec.Command(l.Path, "-B", "-I", script, s.Source, filepath.Join(r.CacheDir, venvFolder))
	cmd.Dir = l.Dir
	output, err := r.groups.output(ctx, cmd)
	lines := strings.Split(strings.TrimSpace(output), "\n")
	_, failed := errors.AsType[*exec.ExitError](err)
	switch {
	case ctx.Err() != nil:
		return "", context.Cause(ctx)
	case failed:
		last := strings.Join(lines[max(0, len(lines)-tailLines):], "\n")
		return "", processFault(s.Name, reason, filepath.Base(s.Source)+": "+last)
	}
	return lines[len(lines)-1], err
}
