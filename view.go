// The view: the one way to a module. A Catalog is all modules hosted at one
// instant; a View is what a scope contains of them, under the names that they
// have there. Everything a caller may list or call is found in the view of that
// caller's scope, so no handler can forget to check.
//
// This file decides names and looks things up. It knows neither claims nor
// sessions, reads no files and starts nothing.
//
// Invariants, all held by view_test.go:
//   - A view holds nothing of a module that its scope does not contain, and no
//     name in it tells of a folder above the scope.
//   - No two tools (prompts, webhooks) of a view share a name (a path). A name
//     that several would have belongs to none of them.
//   - Nothing depends on the order in which modules were found.

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
)

// Module is a unit of functionality, a source file or an entry of a .mcp.json
// file, and what it offers. It is not changed once made; a module that changes
// is replaced by a new one.
type Module struct {
	Name      string // the file's name up to ".usher", or the entry's key
	Kind      Kind
	Source    string // absolute, symlinks resolved; what a scope is compared with
	Root      string // the hosted DIR that it was found below
	About     string // one sentence, "" for none
	Methods   []*Method
	Problems  []string // with what it offers, for its author
	Stateless bool     // it speaks a revision without sessions

	Prompts   []json.RawMessage // MCP definitions, as the module gave them
	Resources []json.RawMessage // likewise
	Templates []json.RawMessage // of resources, likewise

	pool        *pool
	callTimeout time.Duration // how long a call may be silent; 0 for ever
}

// Catalog is an immutable set of modules. Safe for concurrent use.
type Catalog struct {
	modules []*Module // sorted by source and name

	mu    sync.Mutex
	views map[Scope]*View
}

func newCatalog(modules []*Module) *Catalog {
	slices.SortFunc(modules, func(a, b *Module) int {
		return cmp.Or(strings.Compare(a.Source, b.Source), strings.Compare(a.Name, b.Name))
	})
	return &Catalog{modules: modules, views: make(map[Scope]*View)}
}

// View is the part of the catalog that scope contains. It is built at the first
// request for it and kept as long as the catalog.
func (c *Catalog) View(scope Scope) *View {
	c.mu.Lock()
	defer c.mu.Unlock()
	v := c.views[scope]
	if v == nil {
		v = newView(c.modules, scope)
		c.views[scope] = v
	}
	return v
}

// View is the modules inside one scope, under the names they have there. It is
// immutable.
type View struct {
	Modules []ViewModule // sorted by label
	Tools   []*Item      // sorted by name

	toolsOf      map[*Module][]*Item         // in the module's own order
	items        map[string]map[string]*Item // by the list that has them, and by name or URI
	ambiguous    map[string][]*Item          // a name that belongs to nobody → the tools that would have it
	templates    []*Item                     // longest prefix first
	webhooks     map[string][]*Item          // by path, those who would have it; see Hook
	lists        map[string]json.RawMessage  // results of requests for them, on one line
	fingerprints map[string]string           // of announcedLists
}

// ViewModule is a module and its label in a view.
type ViewModule struct {
	Label string // the module's name, with parent folders or a hash where the name is not unique
	*Module
}

// Item is what a module in a view offers: a tool, a prompt, a resource, or a
// resource template, of which only the beginning counts, as the module that a URI
// then goes to knows what it stands for.
type Item struct {
	Name   string  // in the view; of a resource its URI, of a template that up to the first expression
	Label  string  // of the module in the view
	Method *Method // of a tool

	hookPath   string          // of a tool, see HookPath
	ownName    string          // the module's own name for a tool or prompt
	definition json.RawMessage // of a prompt
	module     *Module
}

// newView is the only place where modules are chosen by a scope.
func newView(all []*Module, scope Scope) *View {
	inside := slices.DeleteFunc(slices.Clone(all), func(m *Module) bool { return !scope.Contains(m.Source) })
	v := &View{
		toolsOf:      make(map[*Module][]*Item),
		items:        make(map[string]map[string]*Item),
		webhooks:     make(map[string][]*Item),
		lists:        make(map[string]json.RawMessage),
		fingerprints: make(map[string]string),
	}
	for i, label := range labels(inside, scope) {
		v.Modules = append(v.Modules, ViewModule{label, inside[i]})
	}
	slices.SortStableFunc(v.Modules, func(a, b ViewModule) int { return strings.Compare(a.Label, b.Label) })
	v.addToolsAndPrompts()
	v.addResources(inside)
	return v
}

// addToolsAndPrompts enters the modules' methods, the webhooks among them, and the
// modules' prompts.
func (v *View) addToolsAndPrompts() {
	var prompts []*Item
	for _, m := range v.Modules {
		for _, method := range m.Methods {
			v.toolsOf[m.Module] = append(v.toolsOf[m.Module], &Item{Label: m.Label, Method: method, ownName: method.Name, module: m.Module})
		}
		v.Tools = append(v.Tools, v.toolsOf[m.Module]...)
		for _, raw := range m.Prompts {
			prompts = append(prompts, &Item{Label: m.Label, ownName: stringField(raw, "name"), definition: raw, module: m.Module})
		}
	}
	v.ambiguous = v.addNamed("tools", v.Tools)
	v.addNamed("prompts", prompts)
	for _, t := range v.Tools {
		v.addWebhook(t)
	}
}

// addNamed enters a list of items under names that it gives them, as nameItems
// does, and sorts it by those.
func (v *View) addNamed(list string, items []*Item) (ambiguous map[string][]*Item) {
	ambiguous = nameItems(items)
	slices.SortFunc(items, func(a, b *Item) int { return strings.Compare(a.Name, b.Name) })
	v.items[list] = make(map[string]*Item)
	var definitions []json.RawMessage
	for _, item := range items {
		v.items[list][item.Name] = item
		if item.Method != nil {
			definitions = append(definitions, item.Method.toolJSON(item.Name))
		} else {
			definitions = append(definitions, withMember(item.definition, "name", quote(item.Name)))
		}
	}
	v.addList(list, list, definitions)
	return ambiguous
}

// addWebhook enters a tool at the path of its webhook. Where that path bears a
// label, the path with the module's bare name is entered too: it belongs to
// nobody, and must not go to a method that asks for it by @webhook.
func (v *View) addWebhook(t *Item) {
	path := cmp.Or(t.Method.Hook, t.Label+"/"+t.Method.Name)
	if !t.Method.IsHook || checkHookPath(path) != nil {
		return
	}
	t.hookPath = path
	v.webhooks[path] = append(v.webhooks[path], t)
	if t.Method.Hook == "" && t.Label != t.module.Name {
		bare := t.module.Name + "/" + t.Method.Name
		v.webhooks[bare] = append(v.webhooks[bare], t)
	}
}

// addResources enters the modules' resources. Where two modules offer one URI,
// the one counts whose file comes first in the order of paths (of one file,
// whose name does), as modules are sorted; the other's is not listed. The same
// order decides between templates that begin alike.
func (v *View) addResources(modules []*Module) {
	var resources, templates []json.RawMessage
	byURI := make(map[string]*Item)
	for _, m := range modules {
		for _, raw := range m.Resources {
			uri := stringField(raw, "uri")
			if byURI[uri] == nil {
				byURI[uri] = &Item{Name: uri, module: m}
				resources = append(resources, raw)
			}
		}
		for _, raw := range m.Templates {
			if text := stringField(raw, "uriTemplate"); text != "" {
				prefix, _, _ := strings.Cut(text, "{")
				v.templates = append(v.templates, &Item{Name: prefix, module: m})
				templates = append(templates, raw)
			}
		}
	}
	slices.SortStableFunc(v.templates, func(a, b *Item) int { return len(b.Name) - len(a.Name) })
	v.items["resources"] = byURI
	v.addList("resources", "resources", resources)
	v.addList("resourceTemplates", "resources", templates) // MCP has no notification of their own for templates
}

// addList makes the result of a request for a list. announced is the list as which
// clients are told of its changes.
func (v *View) addList(what, announced string, items []json.RawMessage) {
	list := oneLine(object{{what, joinItems(items)}}.encode())
	v.lists[what] = list
	v.fingerprints[announced] = hashOf(v.fingerprints[announced], string(list))
}

// ListJSON is the result of a request for a list, on one line: of "tools",
// "prompts", "resources" or "resourceTemplates".
func (v *View) ListJSON(what string) json.RawMessage { return v.lists[what] }

// announcedLists are the lists whose changes clients are told of.
var announcedLists = []string{"tools", "prompts", "resources"}

// Fingerprint differs between views that differ in one of announcedLists.
func (v *View) Fingerprint(list string) string { return v.fingerprints[list] }

// ToolsOf is the tools of one of the view's modules, in the module's own order.
func (v *View) ToolsOf(m *Module) []*Item { return v.toolsOf[m] }

// Lookup finds an item of a list: a tool or prompt by its name, the module of a
// resource by its URI. That is the one that lists the URI, or else the one with
// the template that begins most like it. Lookup gives nil for what does not exist
// and for what is out of scope alike, and for a URI longer than maxURI.
func (v *View) Lookup(list, name string) *Item {
	if len(name) > maxURI {
		return nil
	}
	if item := v.items[list][name]; item != nil || list != "resources" {
		return item
	}
	for _, t := range v.templates {
		if strings.HasPrefix(name, t.Name) {
			return t
		}
	}
	return nil
}

// Alternatives is, for a name that belongs to no tool because several would
// have it, the names that they have instead.
func (v *View) Alternatives(name string) []string {
	var names []string
	for _, item := range v.ambiguous[name] {
		names = append(names, item.Name)
	}
	slices.Sort(names)
	return names
}

// HookPath is the path below /webhook/ at which the tool's method is to receive
// webhooks; "" for a method that receives none, or whose name could not stand in
// a URL as it is.
func (t *Item) HookPath() string { return t.hookPath }

// Hook finds the method that receives webhooks at a path. Where several methods
// would have the path it belongs to none of them, and Hook returns what tells
// them apart: other paths, or the names of the tools.
func (v *View) Hook(path string) (*Item, []string) {
	claimants := v.webhooks[path]
	if len(claimants) == 1 && claimants[0].HookPath() == path {
		return claimants[0], nil
	}
	var alternatives []string
	for _, t := range claimants {
		if t.HookPath() == path {
			alternatives = append(alternatives, t.Name)
		} else {
			alternatives = append(alternatives, t.HookPath())
		}
	}
	slices.Sort(alternatives)
	return nil, alternatives
}

// Call makes a request about the item, in whose params the module's own name takes
// the place of that in the view. The error is an *argumentError where arguments do
// not fit, and errRetired, and nothing was done, when the module was replaced after
// the view was made.
func (i *Item) Call(ctx context.Context, caller Caller, method string, params object) (json.RawMessage, error) {
	switch {
	case i.ownName == "": // a URI is the module's own
	case method == "completion/complete":
		params = params.set("ref", withMember(params.get("ref"), "name", quote(i.ownName)))
	default:
		params = params.set("name", quote(i.ownName))
	}
	checked := i.ChecksArguments()
	if checked {
		arguments, err := i.Method.checkArguments(params.get("arguments"))
		if err != nil {
			return nil, err
		}
		params = params.set("arguments", arguments)
	}
	result, err := i.module.pool.call(ctx, caller, method, params, i.module.callTimeout)
	if err == nil && checked {
		result = methodResult(result)
	}
	return result, err
}

// ChecksArguments reports whether Call checks arguments, and not the module itself.
func (i *Item) ChecksArguments() bool { return i.Method != nil && i.module.Kind.singleFile() }

// Subscribe has the module of a resource say when it changes, to notify, until the
// subscription is released, or the module's process ends.
func (i *Item) Subscribe(ctx context.Context, caller Caller, uri string, notify func(params json.RawMessage)) (*subscription, error) {
	return i.module.pool.subscribe(ctx, caller, uri, notify)
}

// Same reports whether other belongs to the same module, in the same version of
// its file.
func (i *Item) Same(other *Item) bool {
	return i != nil && other != nil && i.module.pool == other.module.pool
}

// Stateless reports whether the module speaks a revision without sessions.
func (i *Item) Stateless() bool { return i.module.Stateless }

// nameItems names items LABEL_NAME. A name belongs to nobody if several items
// would have it, or if it is what an item of a relabelled module would be called
// by the module's bare name; who would have such a name gets a hash behind it. A
// name that only looks as if it had one gets one too, so that nobody can choose
// the name of another. nameItems returns the items that would have each name
// that belongs to nobody.
func nameItems(items []*Item) map[string][]*Item {
	wanted := make(map[string]int, len(items))
	ambiguous := make(map[string][]*Item)
	for _, item := range items {
		item.Name = item.Label + "_" + plainName(item.ownName)
		wanted[item.Name]++
		if item.Label != item.module.Name {
			bare := item.module.Name + "_" + plainName(item.ownName)
			wanted[bare] += 2
			ambiguous[bare] = append(ambiguous[bare], item)
		}
	}
	for _, item := range items {
		if name := item.Name; wanted[name] > 1 || hashedName.MatchString(name) {
			item.Name = name + "_" + nameHash(item.module.Source, item.module.Name, item.ownName)
			ambiguous[name] = append(ambiguous[name], item)
		}
	}
	return ambiguous
}

// hashedName is the form of a name with a hash behind it.
var hashedName = regexp.MustCompile(`_[0-9a-f]{12}$`)

// nameHash is 12 hexadecimal digits that tell apart what shares a name.
func nameHash(parts ...string) string { return hashOf(parts...)[:12] }

var notPlain = regexp.MustCompile(`[^A-Za-z0-9_-]`)

// plainName replaces what may not stand in a tool's name.
func plainName(s string) string { return notPlain.ReplaceAllString(s, "_") }

// labels names the modules of a view: by their own names, and where several
// share one, with the shortest run of parent folders before it that tells them
// apart, or else with a hash behind it.
func labels(modules []*Module, scope Scope) []string {
	named := make(map[string]int)
	for _, m := range modules {
		named[m.Name]++
	}
	shared := make(map[string]int) // of labels, how many modules could have them
	for _, m := range modules {
		if named[m.Name] > 1 {
			for _, label := range possibleLabels(m, scope) {
				shared[label]++
			}
		}
	}
	list := make([]string, len(modules))
	for i, m := range modules {
		list[i] = m.Name
		if named[m.Name] == 1 {
			continue
		}
		list[i] += "-" + nameHash(m.Source, m.Name)
		for _, label := range slices.Backward(possibleLabels(m, scope)) { // longest first
			if shared[label] == 1 {
				list[i] = label
			}
		}
	}
	return list
}

// possibleLabels is a module's name with one parent folder before it, with two,
// and so on. The topmost folder that may stand in a label is the scope's own, or
// in the view of everything the hosted DIR. A file that was reached by a link
// from there has no such folders.
func possibleLabels(m *Module, scope Scope) []string {
	top := cmp.Or(scope.dir, m.Root)
	if !scopeDir(top).Contains(m.Source) {
		return nil
	}
	below, _ := filepath.Rel(filepath.Dir(top), filepath.Dir(m.Source)) // no error: it is below
	var list []string
	label := m.Name
	for _, folder := range slices.Backward(strings.Split(filepath.ToSlash(below), "/")) {
		label = plainName(folder) + "-" + label
		list = append(list, label)
	}
	return list
}
