// Lists: what a module offers, and what its processes offer. usher reads the lists of a process
// when it introspects the module, when another process starts, and when a process announces a
// change or loads another file. What a process for one Member offers is for the callers of that
// process only.

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
)

// manifest is everything that a module offers. It is cached.
type manifest struct {
	Key       string                       // see cacheKey
	Lists     map[string][]json.RawMessage // its MCP definitions, by the keys of listTable
	About     string                       // one sentence, "" for none
	Problems  []string                     // for the module's author
	Stateless bool                         // it speaks a revision without sessions
	Parts     parts                        // of the module, when the manifest was cached
}

// hash returns a hash of what the module offers.
func (m manifest) hash() string {
	m.Key = ""
	m.Parts = parts{}
	return hashOf(string(marshal(m)))
}

// introspect asks the first process of a version for its lists. The process of a single-file module
// then waits for calls, unless more modules are about to be introspected: they might be a thousand.
func (o *moduleOwner) introspect(p *pool) (m *manifest, err error) {
	r := o.registry
	defer catch(o.log, &err)
	slot := &slot[Kind]{counter: &r.introspecting, key: p.Kind}
	if p.needsBuild() {
		slot.counter = &r.building
		o.log.Info("building")
	}
	defer slot.release()
	if err := waitFor(p.ctx, slot.grant()); err != nil {
		return nil, err
	}
	if p.shell != nil {
		return p.shell.introspect(p.ctx)
	}
	m, err = p.introspect()
	if !p.perSession && slot.counter.busy() { // else the process has ended
		p.reap(time.Now(), 1)
	}
	return m, err
}

// listTable contains, for each list of what a module offers, the method that reads the list and
// the member that distinguishes its items.
var listTable = map[string]struct{ method, id string }{
	"tools":             {"tools/list", "name"},
	"prompts":           {"prompts/list", "name"},
	"resources":         {"resources/list", "uri"},
	"resourceTemplates": {"resources/templates/list", "uriTemplate"},
}

// readManifest asks a process for everything that it offers. If the process answers the request for
// its prompts or resources with an error, readManifest adds a problem, and the module is hosted
// with its tools.
func readManifest(ctx context.Context, w *Worker) (*manifest, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	m := &manifest{
		Lists:     make(map[string][]json.RawMessage),
		About:     firstSentence(w.info.text("instructions")),
		Stateless: w.stateless,
	}
	// usher's own runtimes list here the functions that they can't offer.
	problems := members(w.capability("experimental")).object("usher/problems").get("problems")
	_ = json.Unmarshal(problems, &m.Problems)
	for _, key := range sortedKeys(listTable) {
		items, err := w.list(ctx, key)
		answered, ok := errors.AsType[*rpcError](err)
		switch {
		case ok && answered.Code == codeNoMethod: // a server may have resources and no templates
		case err != nil && (key == "tools" || !ok): // the lists of a process that ended say nothing
			return nil, err
		case err != nil:
			m.Problems = append(m.Problems, err.Error())
		}
		seen := make(map[string]bool)
		for _, item := range items {
			id := members(item).text(listTable[key].id)
			err := checkDefinition(key, item)
			if err == nil && seen[id] {
				err = fmt.Errorf("%s: %s is a duplicate, left out", listTable[key].method, id)
			}
			seen[id] = true
			if err != nil {
				m.Problems = append(m.Problems, err.Error())
			} else {
				m.Lists[key] = append(m.Lists[key], item)
			}
		}
	}
	return m, nil
}

// checkDefinition returns an error if MCP's schema forbids a definition in the list under
// key. Clients would refuse the whole list because of it.
func checkDefinition(key string, item json.RawMessage) error {
	list := listTable[key]
	definition := members(item)
	name := definition.text("name")
	missing := ""
	switch {
	case name == "":
		missing = "name"
	case definition.text(list.id) == "":
		missing = list.id
	case key == "tools" && definition.object("inputSchema").text("type") != "object":
		missing = `inputSchema of "type": "object"`
	default:
		return nil
	}
	return fmt.Errorf("%s: %s is left out: it has no %s", list.method, cmp.Or(name, "an item"), missing)
}

// list returns the whole list under a key of listTable, read page by page. The list of a
// module without the capability is empty.
func (w *Worker) list(ctx context.Context, key string) ([]json.RawMessage, error) {
	method := listTable[key].method
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
		size += result.size()
		list := result.get(key)
		page := items(list)
		if page == nil && !isNull(list) {
			return nil, fmt.Errorf("%s: the answer has no list %q", method, key)
		}
		all = append(all, page...)
		cursor := result.get("nextCursor")
		if isNull(cursor) {
			return all, nil
		}
		params = object{{"cursor", cursor}}
	}
	return nil, rpcErrorf(codeInternal, "%s: the list is larger than %s", method, formatSize(maxList))
}

// ---- Changes

// reading reads the lists of a process, because they may have changed. moduleOwner.mu guards it.
type reading struct {
	again bool          // a change was announced since the current attempt began
	done  chan struct{} // closed at the end of the current attempt; the next one has its own
}

// listsChanged reports that the lists of w, a process of p, may have changed. They are read soon,
// at most once per readInterval. isNew says that the process has just started.
func (o *moduleOwner) listsChanged(p *pool, w *Worker, isNew bool) {
	o.do(func() {
		r := o.readings[w]
		if r != nil {
			r.again = true
			return
		}
		r = &reading{done: make(chan struct{})}
		o.readings[w] = r
		o.registry.running.Go(func() { o.read(p, w, r, isNew) })
	})
}

// read reads the lists of a process, again and again until no change is announced during a reading.
func (o *moduleOwner) read(p *pool, w *Worker, r *reading, isNew bool) {
	defer func() { close(r.done) }() // not close(r.done): each attempt has a channel of its own
	defer catch(o.log, nil)
	for again := true; again; {
		pauseFor(w.ctx, readInterval) // more changes are likely to follow
		o.do(func() { r.again = false })
		m, err := readManifest(p.ctx, w)
		again = false
		o.do(func() {
			if err == nil {
				o.offer(p, w, m, isNew)
			}
			again = r.again && w.alive()
			if again {
				close(r.done)
				r.done = make(chan struct{})
			} else {
				delete(o.readings, w)
			}
		})
	}
}
