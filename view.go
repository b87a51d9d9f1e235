// The view: the only way to a module. A Catalog is the set of all modules at one instant, also of
// those that can't be hosted. A View is the part of it that a scope contains, with the names that
// the modules have there, and with what the caller's own processes list. Everything that a caller
// may list or call is found in the view of that caller's scope, so no handler can forget to check.
//
// This file selects modules, looks things up, and passes calls on to the pool of a module; names.go
// assigns the names. Nothing here depends on the state of claims or sessions.
//
// Invariants, tested by view_test.go, names_test.go and webhook_routing_test.go:
//   - A view contains nothing of a module outside its scope, and no name in it discloses a
//     folder above the scope.
//   - No two tools of a view share a name, no two prompts a name, no two webhooks a path, and
//     no two resources a URI. A name, path or URI that several would have belongs to none.
//   - Nothing depends on the order in which modules were found.
//
// A server may list more to one session than to others, and no such name may reach another claim. So
// what a process of one Member lists stays with the process (Worker.lists). Module.ownLists asks the
// pool for it, and Catalog.View builds a view that only this Member gets. moduleOwner.onLists gets
// each reading of lists: only processes for all callers change the module and its cache.

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"strings"
	"sync"
)

// Module is the unit of functionality that is served from a source, and its state.
// Immutable; a module that changes is replaced by a new one.
type Module struct {
	source   // of the version that is served; of the newest if none is
	manifest // its Problems are also those of Methods
	Methods  []*Method

	Pending bool  // the newest version is being introspected
	Err     error // why the newest version is not hosted; nil while it is pending

	owner *moduleOwner // knows whether the module is current
	pool  *pool        // nil if no version is served: then the module offers nothing, but affects names
}

// Catalog is an immutable set of modules. Safe for concurrent use.
type Catalog struct {
	modules []*Module // sorted by source and name

	mu    sync.Mutex
	views map[viewKey]func() *View // each builds its view once, without the lock
}

// viewKey identifies a view of a catalog.
type viewKey struct {
	scope  Scope
	member context.Context // nil unless its callers have a process that lists other things
}

// newCatalog returns a catalog of the modules, which it sorts.
func newCatalog(modules []*Module) *Catalog {
	slices.SortFunc(modules, func(a, b *Module) int { return strings.Compare(a.key(), b.key()) })
	return &Catalog{modules: modules, views: make(map[viewKey]func() *View)}
}

// View returns the part of the catalog that scope contains, as the callers with a Member see it:
// with what their own processes offer. View builds it at the first request, and keeps at most
// maxViews views.
func (c *Catalog) View(scope Scope, member context.Context) *View {
	hasOwn := func(m *Module) bool { return m.ownLists(member) != nil }
	if !slices.ContainsFunc(c.modules, hasOwn) {
		member = nil
	}
	key := viewKey{scope, member}
	c.mu.Lock()
	view := c.views[key]
	if view == nil {
		if len(c.views) >= maxViews { // most are of claims that have ended
			clear(c.views)
		}
		view = sync.OnceValue(func() *View { return newView(c, key) })
		c.views[key] = view
	}
	c.mu.Unlock()
	return view()
}

// View is the set of modules inside one scope, with the names they have there. Immutable.
type View struct {
	scope   Scope
	Modules []ViewModule // also those that can't be hosted at the moment; sorted by label
	Tools   []*Item      // sorted by name

	// ToolsOf maps the view's modules to their tools, in the modules' own order, and to the webhooks
	// that are no tools, whose Name is "".
	ToolsOf map[*Module][]*Item
	// Lists maps "tools", "prompts", "resources" and "resourceTemplates" to the lists that
	// clients get, each a JSON array on one line.
	Lists map[string]json.RawMessage
	// Fingerprints maps the name of each list in announcedLists to a hash of the list.
	Fingerprints map[string]string

	items     map[string]map[string][]*Item // by list, and by name, URI or path: the items that would have it
	templates []*Item                       // longest prefix first
}

// ViewModule is a module and its label in a view.
type ViewModule struct {
	Label string // the module's name; if it is not unique, with parent folders or a hash
	*Module
}

// Item is something that a module in a view offers: a tool, a prompt, a resource, or a
// resource template.
type Item struct {
	// Name is the tool's or prompt's name in the view, the resource's URI, or the part of a
	// template before its first expression: the module itself interprets the rest.
	Name   string
	Method *Method // of a tool
	// HookPath is the path below /webhook/ for the tool's method, or "" for a method that
	// receives no webhooks.
	HookPath string

	ownName    string // the module's own name for a tool or prompt
	definition object // of a tool or prompt, without its name
	ViewModule
}

// addURI adds a URI of the module to byURI.
func (m ViewModule) addURI(byURI map[string][]*Item, uri string) {
	list := byURI[uri]
	if len(list) == 0 || list[len(list)-1].Module != m.Module { // a module adds all of its URIs at once
		byURI[uri] = append(list, &Item{Name: uri, ViewModule: m})
	}
}

// newView selects the modules inside a scope, each replaced by what the callers with a Member have
// in its place. No other function does.
func newView(c *Catalog, key viewKey) *View {
	scope := key.scope
	v := &View{
		scope:        scope,
		ToolsOf:      make(map[*Module][]*Item),
		items:        map[string]map[string][]*Item{"resources": {}, "webhooks": {}},
		Lists:        make(map[string]json.RawMessage),
		Fingerprints: make(map[string]string),
	}
	// A link may have been changed to a file that can't be hosted. Its module then keeps serving the old
	// file. If another module serves the old file too, only that other module gets names.
	ofFile := make(map[string]*Module)
	for _, m := range c.modules {
		file := m.Source + "#" + m.Name
		if other := ofFile[file]; other == nil || other.Pending || other.Err != nil {
			ofFile[file] = m
		}
	}
	inside := slices.DeleteFunc(slices.Clone(c.modules), func(m *Module) bool {
		isOld := ofFile[m.Source+"#"+m.Name] != m
		return m.Name == "" || isOld || !scope.Contains(m.Source) || scope.hides(m)
	})
	for i, label := range labels(inside, scope) {
		m := inside[i]
		if own := m.ownLists(key.member); own != nil {
			m = newModule(m.owner, m.pool, own)
		}
		v.Modules = append(v.Modules, ViewModule{label, m})
	}
	v.addResources()
	slices.SortStableFunc(v.Modules, func(a, b ViewModule) int { return strings.Compare(a.Label, b.Label) })
	v.addToolsAndPrompts()
	return v
}

// shows reports whether the views of a scope show a method.
func (s Scope) shows(m *Method) bool { return s.all || !m.Unshared }

// hides reports whether a module in a scope offers only methods that its views do not show.
func (s Scope) hides(m *Module) bool {
	others := len(m.Lists["prompts"]) + len(m.Lists["resources"]) + len(m.Lists["resourceTemplates"])
	return len(m.Methods) > 0 && others == 0 && !slices.ContainsFunc(m.Methods, s.shows)
}

// addToolsAndPrompts adds the modules' tools, webhooks and prompts.
func (v *View) addToolsAndPrompts() {
	var prompts []*Item
	for _, m := range v.Modules {
		for _, method := range m.Methods {
			if !v.scope.shows(method) {
				continue
			}
			tool := &Item{
				ViewModule: m,
				Method:     method,
				ownName:    method.Name,
				definition: method.definition,
			}
			if !method.Internal {
				v.Tools = append(v.Tools, tool)
			}
			v.ToolsOf[m.Module] = append(v.ToolsOf[m.Module], tool)
			v.addWebhook(tool)
		}
		for _, raw := range m.Lists["prompts"] {
			prompts = append(prompts, &Item{
				ViewModule: m,
				ownName:    members(raw).text("name"),
				definition: members(raw).without("name"),
			})
		}
	}
	v.addNamed("tools", v.Tools)
	v.addNamed("prompts", prompts)
}

// addNamed names the items, as nameItems does, sorts them by name and adds them under list.
func (v *View) addNamed(list string, items []*Item) {
	v.items[list] = nameItems(items)
	slices.SortFunc(items, func(a, b *Item) int { return strings.Compare(a.Name, b.Name) })
	var definitions []json.RawMessage
	for _, item := range items {
		named := append(object{{"name", quote(item.Name)}}, item.definition...)
		definitions = append(definitions, named.encode())
	}
	v.addList(list, list, definitions)
}

// addWebhook adds a tool under the path of its webhook. If the path contains a label that
// differs from the module's name, addWebhook also adds the tool under the path with the
// bare name. That path then belongs to no tool; otherwise another method could take it
// with @webhook.
func (v *View) addWebhook(t *Item) {
	if !t.Method.IsHook {
		return
	}
	t.HookPath = cmp.Or(t.Method.Hook, t.Label+"/"+t.Method.Name)
	hooks := v.items["webhooks"]
	hooks[t.HookPath] = append(hooks[t.HookPath], t)
	if t.Method.Hook == "" && t.Label != t.Module.Name {
		bare := t.Module.Name + "/" + t.Method.Name
		hooks[bare] = append(hooks[bare], t)
	}
}

// addResources adds the modules' resources and templates. A page that MCP Apps shows for a
// tool can be read even if no module lists it. The modules are still sorted by source: among
// templates with the same prefix, the first module's has priority.
func (v *View) addResources() {
	var resources, templates []json.RawMessage
	byURI := v.items["resources"]
	for _, m := range v.Modules {
		for _, raw := range m.Lists["resources"] {
			m.addURI(byURI, members(raw).text("uri"))
			resources = append(resources, raw)
		}
		for _, method := range m.Methods {
			if v.scope.shows(method) {
				m.addURI(byURI, method.definition.object("_meta").object("ui").text("resourceUri"))
			}
		}
		for _, raw := range m.Lists["resourceTemplates"] {
			prefix, _, _ := strings.Cut(members(raw).text("uriTemplate"), "{")
			v.templates = append(v.templates, &Item{Name: prefix, ViewModule: m})
			templates = append(templates, raw)
		}
	}
	delete(byURI, "") // of methods without a page
	resources = slices.DeleteFunc(resources, func(raw json.RawMessage) bool {
		return len(byURI[members(raw).text("uri")]) > 1
	})
	slices.SortStableFunc(v.templates, func(a, b *Item) int { return len(b.Name) - len(a.Name) })
	v.addList("resources", "resources", resources)
	v.addList("resourceTemplates", "resources", templates) // MCP has no separate notification for templates
}

// addList encodes a list, and adds it to the fingerprint of the announced list.
func (v *View) addList(what, announced string, items []json.RawMessage) {
	list := marshal(append([]json.RawMessage{}, items...))
	v.Lists[what] = list
	v.Fingerprints[announced] = hashOf(v.Fingerprints[announced], string(list))
}

// Lookup returns an item of a list: a tool or prompt by its name, or a resource by its URI.
// A tool can also be found by the module's own name for it, as the pages of MCP Apps do, if
// no other module has a tool of that name and the name does not begin with another module's
// name. If no module offers the URI, Lookup returns the template with the longest matching
// prefix. It returns nil for an unknown name, one out of scope, a URI that several modules
// offer, and a URI longer than maxURI.
func (v *View) Lookup(list, name string) *Item {
	claimants := v.items[list][name]
	switch {
	case len(name) > maxURI:
	case len(claimants) == 1 && claimants[0].Name == name:
		return claimants[0]
	case claimants != nil: // the name belongs to none of them
	case list == "tools":
		own := slices.DeleteFunc(slices.Clone(v.Tools), func(t *Item) bool { return t.ownName != name })
		if len(own) == 1 && v.candidates(name, own[0].Module) == nil {
			return own[0]
		}
	case list == "resources":
		for _, t := range v.templates {
			if strings.HasPrefix(name, t.Name) {
				return t
			}
		}
	}
	return nil
}

// candidates returns the modules, except own, whose name or label begins the name of a tool.
func (v *View) candidates(name string, own *Module) (list []ViewModule) {
	for _, m := range v.Modules {
		begins := strings.HasPrefix(name, m.Label+"_") || strings.HasPrefix(name, m.Name+"_")
		if begins && m.Module != own {
			list = append(list, m)
		}
	}
	return list
}

// Hook returns the tool that receives webhooks at a path. If several would have the path, it
// belongs to none of them, and Hook returns them all as claimants. A tool whose module shares its
// name is a claimant of the path with the bare name.
func (v *View) Hook(path string) (tool *Item, claimants []*Item) {
	claimants = v.items["webhooks"][path]
	if len(claimants) == 1 && claimants[0].HookPath == path {
		return claimants[0], nil
	}
	return nil, claimants
}

// Call sends a request about the item to its module, with the module's own name for it in
// params. The error is an *argumentError if the arguments are invalid. It is errRetired if
// the module was replaced after the view was made, or its file has changed; then nothing was
// done. Other errors are the module's, or say why its newest version can't be hosted.
func (i *Item) Call(ctx context.Context, from Caller, method string, params object) (object, error) {
	if err := i.owner.checkCurrent(ctx, i.pool); err != nil {
		return nil, err
	}
	switch {
	case i.ownName == "": // a URI is the module's own
	case method == "completion/complete":
		params = params.set("ref", params.object("ref").set("name", quote(i.ownName)).encode())
	default:
		params = params.set("name", quote(i.ownName))
	}
	// A hosted program checks its arguments itself, but senders can't read errors of MCP.
	own := i.Method != nil && i.Kind.singleFile()
	if own || i.Method != nil && from.Principal == senders {
		arguments, err := i.Method.checkArguments(params.get("arguments"))
		if err != nil {
			return nil, err
		}
		params = params.set("arguments", arguments)
	}
	result, err := i.pool.call(ctx, from, method, params)
	if err == nil && own {
		result = methodResult(result)
	}
	return result, err
}
