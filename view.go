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
	slices.SortFunc(modules, compareModules)
	return &Catalog{modules: modules, views: make(map[Scope]*View)}
}

// compareModules orders modules by file, and by name within one file.
func compareModules(a, b *Module) int {
	return cmp.Or(strings.Compare(a.Source, b.Source), strings.Compare(a.Name, b.Name))
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

	tools       []*Tool                 // sorted by name
	toolsByName map[string]*Tool        //
	toolsOf     map[*Module][]*Tool     // in the module's own order
	ambiguous   map[string][]*namedItem // a name that belongs to nobody → the tools that would have it
	prompts     map[string]*Prompt      // by name
	resources   map[string]*Module      // by URI
	templates   []uriTemplate           // longest prefix first
	webhooks    map[string][]*Tool      // by path, those who would have it; see Hook
	lists       map[string]viewList     // by what they list: "tools", "prompts", …
}

// ViewModule is a module and its label in a view.
type ViewModule struct {
	Label string // the module's name, with parent folders or a hash where the name is not unique
	*Module
}

// namedItem is what tools and prompts have in common: an item of a module under
// the name that it has in a view.
type namedItem struct {
	Name     string
	Label    string // of the module in this view
	origName string // the module's own name for the item
	module   *Module
}

// Tool is a method of a module in a view.
type Tool struct {
	namedItem
	Method *Method
}

// Prompt is a prompt of a module in a view.
type Prompt struct {
	namedItem
	definition object
}

// Resource is a resource of a module in a view.
type Resource struct{ module *Module }

// uriTemplate is a resource template, of which only the beginning counts: the
// module that the URI then goes to knows what it stands for.
type uriTemplate struct {
	prefix string // up to the first expression
	module *Module
}

// viewList is the result of a request for a list.
type viewList struct {
	json   json.RawMessage // on one line
	digest string          // differs where the list does
}

// newView is the only place where modules are chosen by a scope.
func newView(all []*Module, scope Scope) *View {
	var inside []*Module
	for _, m := range all {
		if scope.Contains(m.Source) {
			inside = append(inside, m)
		}
	}
	v := &View{
		toolsByName: make(map[string]*Tool),
		toolsOf:     make(map[*Module][]*Tool),
		prompts:     make(map[string]*Prompt),
		resources:   make(map[string]*Module),
		webhooks:    make(map[string][]*Tool),
		lists:       make(map[string]viewList),
	}
	for i, label := range labels(inside, scope) {
		v.Modules = append(v.Modules, ViewModule{label, inside[i]})
	}
	slices.SortStableFunc(v.Modules, func(a, b ViewModule) int { return strings.Compare(a.Label, b.Label) })
	v.addTools()
	v.addPrompts()
	v.addResources()
	return v
}

// addTools enters the modules' methods and the webhooks among them.
func (v *View) addTools() {
	var items []*namedItem
	for _, m := range v.Modules {
		for _, method := range m.Methods {
			t := &Tool{namedItem{Label: m.Label, origName: method.Name, module: m.Module}, method}
			v.tools = append(v.tools, t)
			v.toolsOf[m.Module] = append(v.toolsOf[m.Module], t)
			items = append(items, &t.namedItem)
		}
	}
	v.ambiguous = nameItems(items)
	slices.SortFunc(v.tools, func(a, b *Tool) int { return strings.Compare(a.Name, b.Name) })
	definitions := make([]json.RawMessage, len(v.tools))
	for i, t := range v.tools {
		v.toolsByName[t.Name] = t
		definitions[i] = t.Method.toolJSON(t.Name)
		v.addWebhook(t)
	}
	v.addList("tools", definitions)
}

// addWebhook enters a tool at the path of its webhook. Where that path bears a
// label, the path with the module's bare name is entered too: it belongs to
// nobody, and must not go to a method that asks for it by @webhook.
func (v *View) addWebhook(t *Tool) {
	path := t.HookPath()
	if path == "" {
		return
	}
	v.webhooks[path] = append(v.webhooks[path], t)
	if t.Method.Hook == "" && t.Label != t.module.Name {
		bare := t.module.Name + "/" + t.Method.Name
		v.webhooks[bare] = append(v.webhooks[bare], t)
	}
}

// addPrompts enters the modules' prompts, named as tools are.
func (v *View) addPrompts() {
	var items []*namedItem
	var prompts []*Prompt
	for _, m := range v.Modules {
		for _, raw := range m.Prompts {
			definition, _ := members(raw)
			p := &Prompt{namedItem{Label: m.Label, origName: stringField(raw, "name"), module: m.Module}, definition}
			prompts = append(prompts, p)
			items = append(items, &p.namedItem)
		}
	}
	nameItems(items)
	slices.SortFunc(prompts, func(a, b *Prompt) int { return strings.Compare(a.Name, b.Name) })
	definitions := make([]json.RawMessage, len(prompts))
	for i, p := range prompts {
		v.prompts[p.Name] = p
		definitions[i] = p.definition.set("name", quote(p.Name)).json()
	}
	v.addList("prompts", definitions)
}

// addResources enters the modules' resources. Where two modules offer one URI,
// the one counts whose file comes first in the order of paths (of one file,
// whose name does); the other's is not listed. The same order decides between
// templates that begin alike.
func (v *View) addResources() {
	byPath := slices.Clone(v.Modules)
	slices.SortFunc(byPath, func(a, b ViewModule) int { return compareModules(a.Module, b.Module) })
	var resources, templates []json.RawMessage
	for _, m := range byPath {
		for _, raw := range m.Resources {
			uri := stringField(raw, "uri")
			if v.resources[uri] == nil {
				v.resources[uri] = m.Module
				resources = append(resources, raw)
			}
		}
		for _, raw := range m.Templates {
			if text := stringField(raw, "uriTemplate"); text != "" {
				prefix, _, _ := strings.Cut(text, "{")
				v.templates = append(v.templates, uriTemplate{prefix, m.Module})
				templates = append(templates, raw)
			}
		}
	}
	slices.SortStableFunc(v.templates, func(a, b uriTemplate) int { return len(b.prefix) - len(a.prefix) })
	v.addList("resources", resources)
	v.addList("resourceTemplates", templates)
}

// addList makes the result of a request for a list.
func (v *View) addList(what string, items []json.RawMessage) {
	list := oneLine(object{{what, joinItems(items)}}.json())
	v.lists[what] = viewList{json: list, digest: hashOf(string(list))}
}

// ListJSON is the result of a request for a list, on one line: of "tools",
// "prompts", "resources" or "resourceTemplates".
func (v *View) ListJSON(what string) json.RawMessage { return v.lists[what].json }

// announcedLists are the lists whose changes clients are told of. MCP has no
// notification of its own for templates: they count as resources.
var announcedLists = []string{"tools", "prompts", "resources"}

// Fingerprint differs between views that differ in one of announcedLists.
func (v *View) Fingerprint(list string) string {
	if list == "resources" {
		return v.lists[list].digest + v.lists["resourceTemplates"].digest
	}
	return v.lists[list].digest
}

// Tools is the view's tools, sorted by name. The slice must not be changed.
func (v *View) Tools() []*Tool { return v.tools }

// ToolsOf is the tools of one of the view's modules, in the module's own order.
func (v *View) ToolsOf(m *Module) []*Tool { return v.toolsOf[m] }

// Lookup finds a tool by its name. It is nil for a tool that does not exist and
// for one that is out of scope alike.
func (v *View) Lookup(name string) *Tool { return v.toolsByName[name] }

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

// Prompt finds a prompt by its name, as Lookup does a tool.
func (v *View) Prompt(name string) *Prompt { return v.prompts[name] }

// Resource finds the module of a resource: the one that lists its URI, or else
// the one with the template that begins most like it. Nil for none, and for a URI
// longer than maxURI.
func (v *View) Resource(uri string) *Resource {
	if len(uri) > maxURI {
		return nil
	}
	if m := v.resources[uri]; m != nil {
		return &Resource{m}
	}
	for _, t := range v.templates {
		if strings.HasPrefix(uri, t.prefix) {
			return &Resource{t.module}
		}
	}
	return nil
}

// HookPath is the path below /webhook/ at which the tool's method is to receive
// webhooks; "" for a method that receives none, or whose name could not stand in
// a URL as it is.
func (t *Tool) HookPath() string {
	path := cmp.Or(t.Method.Hook, t.Label+"/"+t.Method.Name)
	if !t.Method.IsHook || checkHookPath(path) != nil {
		return ""
	}
	return path
}

// Hook finds the method that receives webhooks at a path. Where several methods
// would have the path it belongs to none of them, and Hook returns what tells
// them apart: other paths, or the names of the tools.
func (v *View) Hook(path string) (*Tool, []string) {
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

// Call calls the tool: params are those of tools/call, whose name is replaced
// by the method's own. It returns errRetired, and has done nothing, when the
// module was replaced after the view was made; so do the other requests below.
func (t *Tool) Call(ctx context.Context, caller Caller, params json.RawMessage) (json.RawMessage, error) {
	result, err := t.module.request(ctx, caller, "tools/call", withMember(params, "name", quote(t.origName)))
	if err == nil && t.Checked() {
		result = methodResult(result)
	}
	return result, err
}

// Checked reports whether calls of the tool are checked against its schema
// before they are made.
func (t *Tool) Checked() bool { return t.module.Kind.singleFile() }

// Get asks for the prompt: params are those of prompts/get.
func (p *Prompt) Get(ctx context.Context, caller Caller, params json.RawMessage) (json.RawMessage, error) {
	return p.module.request(ctx, caller, "prompts/get", withMember(params, "name", quote(p.origName)))
}

// Complete asks for completions of one of the prompt's arguments: params are
// those of completion/complete.
func (p *Prompt) Complete(ctx context.Context, caller Caller, params json.RawMessage) (json.RawMessage, error) {
	ref := withMember(field(params, "ref"), "name", quote(p.origName))
	return p.module.request(ctx, caller, "completion/complete", withMember(params, "ref", ref))
}

// Ask makes a request about the resource, whose URI stands in params.
func (r *Resource) Ask(ctx context.Context, caller Caller, method string, params json.RawMessage) (json.RawMessage, error) {
	return r.module.request(ctx, caller, method, params)
}

// Subscribe has the resource's module say when it changes, to notify, until the
// subscription is released, or the module's process ends.
func (r *Resource) Subscribe(ctx context.Context, caller Caller, uri string, notify func(params json.RawMessage)) (*subscription, error) {
	return r.module.pool.subscribe(ctx, caller, uri, notify)
}

// Same reports whether other belongs to the same module, in the same version of
// its file.
func (r *Resource) Same(other *Resource) bool {
	return r != nil && other != nil && r.module.pool == other.module.pool
}

// Stateless reports whether the module speaks a revision without sessions.
func (n *namedItem) Stateless() bool { return n.module.Stateless }

// Stateless reports whether the module speaks a revision without sessions.
func (r *Resource) Stateless() bool { return r.module.Stateless }

// request makes one request of the module.
func (m *Module) request(ctx context.Context, caller Caller, method string, params json.RawMessage) (json.RawMessage, error) {
	return m.pool.call(ctx, caller, method, params, m.callTimeout)
}

// nameItems names items LABEL_NAME. A name belongs to nobody if several items
// would have it, or if it is what an item of a relabelled module would be called
// by the module's bare name; who would have such a name gets a hash behind it. A
// name that only looks as if it had one gets one too, so that nobody can choose
// the name of another. nameItems returns the items that would have each name
// that belongs to nobody.
func nameItems(items []*namedItem) map[string][]*namedItem {
	wanted := make(map[string]int, len(items))
	ambiguous := make(map[string][]*namedItem)
	for _, item := range items {
		item.Name = itemName(item.Label, item.origName)
		wanted[item.Name]++
		if item.Label != item.module.Name {
			bare := itemName(item.module.Name, item.origName)
			wanted[bare] += 2
			ambiguous[bare] = append(ambiguous[bare], item)
		}
	}
	for _, item := range items {
		if name := item.Name; wanted[name] > 1 || hashedName.MatchString(name) {
			item.Name = name + "_" + nameHash(item.module.Source, item.module.Name, item.origName)
			ambiguous[name] = append(ambiguous[name], item)
		}
	}
	return ambiguous
}

// hashedName is the form of a name with a hash behind it.
var hashedName = regexp.MustCompile(`_[0-9a-f]{12}$`)

// itemName joins the label of a module and its own name for an item.
func itemName(label, item string) string { return label + "_" + plainName(item) }

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
		possible := possibleLabels(m, scope)
		shortest := slices.IndexFunc(possible, func(label string) bool { return shared[label] == 1 })
		switch {
		case named[m.Name] == 1:
			list[i] = m.Name
		case shortest >= 0:
			list[i] = possible[shortest]
		default:
			list[i] = m.Name + "-" + nameHash(m.Source, m.Name)
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
