// The catalog: the modules that are hosted at one instant, and views of it. A
// View is the only way to a module. It is built for a scope and holds what lies
// in that scope and nothing else, so that no handler can forget to ask.

package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
)

// Module is a unit of functionality: a source file, or an entry of one, and the
// methods it offers. It is not changed once made; a module that changes is
// replaced by a new one.
type Module struct {
	Name     string // the file's name up to ".usher", or the entry's key
	Kind     Kind
	Source   string // absolute, symlinks resolved; what a scope is compared with
	About    string // one sentence, "" for none
	Methods  []*Method
	Problems []string // with what it offers, for its author
	Modern   bool     // it speaks a revision without sessions

	Prompts              []json.RawMessage // MCP definitions, as the module gave them
	Resources, Templates []json.RawMessage // of resources too

	fleet    *fleet
	patience time.Duration // how long a call may be silent; 0 for ever
}

// Catalog is an immutable set of modules. Nothing in it depends on the order in
// which they were found.
type Catalog struct {
	modules []*Module // sorted by source and name
	mu      sync.Mutex
	views   map[Scope]*View
}

func newCatalog(modules []*Module) *Catalog {
	slices.SortFunc(modules, compareModules)
	return &Catalog{modules: modules, views: make(map[Scope]*View)}
}

// compareModules orders modules by file, and by name within one.
func compareModules(a, b *Module) int {
	return cmp.Or(strings.Compare(a.Source, b.Source), strings.Compare(a.Name, b.Name))
}

// View is the catalog as it is seen through scope. It is built once and kept as
// long as the catalog. Safe for concurrent use.
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

	tools   []*Tool             // sorted by name
	byName  map[string]*Tool    //
	toolsIn map[*Module][]*Tool // in the module's own order
	bare    map[string][]string // a name that several tools would have → theirs
	prompts map[string]*Prompt  // by name
	owners  map[string]*Module  // of resources, by URI
	shapes  []uriShape          // of resource templates, the first that matches counts
	hooks   map[string][]*Tool  // webhooks by path; more than one: none is served
	lists   map[string]viewList // by what they are of: "tools", "prompts", …
}

// viewList is the answer to a request for a list.
type viewList struct {
	json  json.RawMessage // the result, on one line
	print string          // tells lists with another content apart
}

// uriShape is the form of the URIs that a resource template stands for.
type uriShape struct {
	template string
	form     *regexp.Regexp
	owner    *Module
}

// ViewModule is a module and what it is called in a view.
type ViewModule struct {
	Label string // its name, with parent folders where that is not unique
	*Module
}

// offered is what tools and prompts have in common: a module's own, under the
// name that it has in a view.
type offered struct {
	Name   string
	Label  string // of the module in this view
	own    string // the module's own name for it
	module *Module
}

// Tool is a method of a module in a view.
type Tool struct {
	offered
	Method *Method
}

// Prompt is a prompt of a module in a view.
type Prompt struct {
	offered
	definition []member
}

// Resource is a resource of a module in a view.
type Resource struct{ module *Module }

func newView(all []*Module, scope Scope) *View {
	var inside []*Module
	for _, m := range all {
		if scope.Contains(m.Source) {
			inside = append(inside, m)
		}
	}
	v := &View{byName: make(map[string]*Tool), toolsIn: make(map[*Module][]*Tool), prompts: make(map[string]*Prompt),
		owners: make(map[string]*Module), hooks: make(map[string][]*Tool), lists: make(map[string]viewList)}
	for i, label := range labels(inside) {
		v.Modules = append(v.Modules, ViewModule{label, inside[i]})
	}
	slices.SortStableFunc(v.Modules, func(a, b ViewModule) int { return strings.Compare(a.Label, b.Label) })
	v.addTools()
	v.addPrompts()
	v.addResources()
	return v
}

// addList makes the answer to a request for a list of what.
func (v *View) addList(what string, items []json.RawMessage) {
	list := oneLine(joinMembers([]member{{what, joinItems(items)}}))
	sum := sha256.Sum256(list)
	v.lists[what] = viewList{list, hex.EncodeToString(sum[:])}
}

// ListJSON is the result of a request for a list, on one line: of "tools",
// "prompts", "resources" or "resourceTemplates".
func (v *View) ListJSON(what string) json.RawMessage { return v.lists[what].json }

// announcedLists are the lists whose changes clients are told of. A template is
// to them a resource.
var announcedLists = []string{"tools", "prompts", "resources"}

// Fingerprint tells views apart that differ in one of announcedLists.
func (v *View) Fingerprint(list string) string {
	if list == "resources" {
		return v.lists[list].print + v.lists["resourceTemplates"].print
	}
	return v.lists[list].print
}

// Prompt finds a prompt by its name, as Lookup does a tool.
func (v *View) Prompt(name string) *Prompt { return v.prompts[name] }

// Resource finds whose a resource is: the module that lists its URI, or else
// one with a template that it fits. Nil for none.
func (v *View) Resource(uri string) *Resource {
	if m := v.owners[uri]; m != nil {
		return &Resource{m}
	}
	for _, shape := range v.shapes {
		if shape.template == uri || shape.form.MatchString(uri) {
			return &Resource{shape.owner}
		}
	}
	return nil
}

// Tools is the view's tools, sorted by name. The slice is not to be changed.
func (v *View) Tools() []*Tool { return v.tools }

// ToolsOf is the tools of one of the view's modules, in the module's own order.
func (v *View) ToolsOf(m *Module) []*Tool { return v.toolsIn[m] }

// Lookup finds a tool by its name. It is nil for a tool that does not exist and
// for one that is out of scope alike.
func (v *View) Lookup(name string) *Tool { return v.byName[name] }

// Others is, for a name that is no tool's because several would have it, the
// names that they have instead.
func (v *View) Others(name string) []string { return v.bare[name] }

// HookPath is the path below /webhook/ at which the tool's method takes
// webhooks, if it does.
func (t *Tool) HookPath() string {
	if t.Method.Hook != "" {
		return t.Method.Hook
	}
	return t.Label + "/" + t.Method.Name
}

// Hook finds the method that takes webhooks at a path. Where the path is not
// one method's, because several would have it, it returns the paths or tools
// that they are.
func (v *View) Hook(path string) (*Tool, []string) {
	at := v.hooks[path]
	if len(at) == 1 {
		return at[0], nil
	}
	var others []string
	for _, t := range at {
		others = append(others, t.Name)
	}
	for own, tools := range v.hooks {
		for _, t := range tools {
			if t.Method.Hook == "" && t.Label != t.module.Name && t.module.Name+"/"+t.Method.Name == path {
				others = append(others, own)
			}
		}
	}
	slices.Sort(others)
	return nil, others
}

// Call calls the tool: params are those of tools/call, whose name is replaced
// by the method's own. It returns errRetired, and has done nothing, when the
// module has been replaced since the view was made; so do the others below.
func (t *Tool) Call(ctx context.Context, caller Caller, params json.RawMessage) (json.RawMessage, error) {
	list, _ := members(params)
	result, err := t.module.ask(ctx, caller, "tools/call", joinMembers(setMember(list, "name", quote(t.own))))
	if err == nil && t.Checked() {
		result = methodResult(result)
	}
	return result, err
}

// Get asks for the prompt: params are those of prompts/get.
func (p *Prompt) Get(ctx context.Context, caller Caller, params json.RawMessage) (json.RawMessage, error) {
	list, _ := members(params)
	return p.module.ask(ctx, caller, "prompts/get", joinMembers(setMember(list, "name", quote(p.own))))
}

// Complete asks for completions of one of the prompt's arguments: params are
// those of completion/complete.
func (p *Prompt) Complete(ctx context.Context, caller Caller, params json.RawMessage) (json.RawMessage, error) {
	list, _ := members(params)
	ref, _ := members(field(params, "ref"))
	ref = setMember(ref, "name", quote(p.own))
	return p.module.ask(ctx, caller, "completion/complete", joinMembers(setMember(list, "ref", joinMembers(ref))))
}

// Ask makes a request about the resource, whose URI in params stays as it is.
func (r *Resource) Ask(ctx context.Context, caller Caller, method string, params json.RawMessage) (json.RawMessage, error) {
	return r.module.ask(ctx, caller, method, params)
}

// Subscribe has the resource's module say when it changes, to notify, until
// release is called.
func (r *Resource) Subscribe(ctx context.Context, caller Caller, uri string, notify func(params json.RawMessage)) (release func(), err error) {
	return r.module.fleet.hold(ctx, caller, uri, notify)
}

// Same reports whether other is of the same processes.
func (r *Resource) Same(other *Resource) bool {
	return r != nil && other != nil && r.module.fleet == other.module.fleet
}

// Modern reports whether the module speaks a revision without sessions.
func (o *offered) Modern() bool { return o.module.Modern }

// Modern reports whether the module speaks a revision without sessions.
func (r *Resource) Modern() bool { return r.module.Modern }

// ask makes a request of the module's process. A caller with a session gets the
// input that a module without asks for as requests, in the course of this one.
func (m *Module) ask(ctx context.Context, caller Caller, method string, params json.RawMessage) (json.RawMessage, error) {
	result, err := m.fleet.call(ctx, caller, method, params, m.patience)
	if !m.Modern || caller.Stateless {
		return result, err
	}
	for round := 0; err == nil && stringField(result, "resultType") == resultInput; round++ {
		if round == maxRounds {
			return nil, rpcErrorf(codeInternal, "module %q asks without end", m.Name)
		}
		if params, err = answerInput(ctx, caller, params, result); err != nil {
			return nil, err
		}
		result, err = m.fleet.call(ctx, caller, method, params, m.patience)
	}
	return legacyResult(result), err
}

// Checked reports whether calls of the tool are checked against its schema.
func (t *Tool) Checked() bool { return t.module.Kind.singleFile() }

// addTools takes in the modules' methods.
func (v *View) addTools() {
	var names []*offered
	for _, m := range v.Modules {
		for _, method := range m.Methods {
			t := &Tool{offered{Label: m.Label, own: method.Name, module: m.Module}, method}
			v.tools = append(v.tools, t)
			v.toolsIn[m.Module] = append(v.toolsIn[m.Module], t)
			names = append(names, &t.offered)
		}
	}
	v.bare = nameAll(names)
	slices.SortFunc(v.tools, func(a, b *Tool) int { return strings.Compare(a.Name, b.Name) })
	items := make([]json.RawMessage, len(v.tools))
	for i, t := range v.tools {
		v.byName[t.Name] = t
		items[i] = t.Method.toolJSON(t.Name)
		if t.Method.IsHook {
			v.hooks[t.HookPath()] = append(v.hooks[t.HookPath()], t)
		}
	}
	v.addList("tools", items)
}

// addPrompts takes in the modules' prompts, named as tools are.
func (v *View) addPrompts() {
	var names []*offered
	var list []*Prompt
	for _, m := range v.Modules {
		for _, raw := range m.Prompts {
			definition, _ := members(raw)
			p := &Prompt{offered{Label: m.Label, own: stringField(raw, "name"), module: m.Module}, definition}
			list = append(list, p)
			names = append(names, &p.offered)
		}
	}
	nameAll(names)
	slices.SortFunc(list, func(a, b *Prompt) int { return strings.Compare(a.Name, b.Name) })
	items := make([]json.RawMessage, len(list))
	for i, p := range list {
		v.prompts[p.Name] = p
		items[i] = joinMembers(setMember(p.definition, "name", quote(p.Name)))
	}
	v.addList("prompts", items)
}

// addResources takes in the modules' resources. Where two offer one URI, it is
// that of the module whose file comes first in the order of paths, and where
// two are of one file, of names; the other's is not listed. The same order
// decides between templates that match one URI.
func (v *View) addResources() {
	byPath := slices.Clone(v.Modules)
	slices.SortFunc(byPath, func(a, b ViewModule) int { return compareModules(a.Module, b.Module) })
	var resources, templates []json.RawMessage
	for _, m := range byPath {
		for _, raw := range m.Resources {
			uri := stringField(raw, "uri")
			if v.owners[uri] == nil {
				v.owners[uri] = m.Module
				resources = append(resources, raw)
			}
		}
		for _, raw := range m.Templates {
			template := stringField(raw, "uriTemplate")
			if form := templateForm(template); form != nil {
				v.shapes = append(v.shapes, uriShape{template, form, m.Module})
				templates = append(templates, raw)
			}
		}
	}
	v.addList("resources", resources)
	v.addList("resourceTemplates", templates)
}

var templateExpression = regexp.MustCompile(`\{([+#./;?&]?)[^{}]*\}`)

// templateForm is the form of the URIs that a template (RFC 6570) stands for:
// an expression is any run of characters but "/", one that may expand to
// several segments any run at all. It is nil for what is no template.
func templateForm(template string) *regexp.Regexp {
	if template == "" {
		return nil
	}
	form, last := "^", 0
	for _, at := range templateExpression.FindAllStringSubmatchIndex(template, -1) {
		form += regexp.QuoteMeta(template[last:at[0]])
		if at[2] == at[3] && template[at[1]-2] != '*' {
			form += "[^/]+"
		} else {
			form += ".*"
		}
		last = at[1]
	}
	re, err := regexp.Compile(form + regexp.QuoteMeta(template[last:]) + "$")
	if err != nil {
		return nil
	}
	return re
}

// nameAll names what modules offer: MODULE_NAME, and a hash behind it where two
// would meet. It returns, for each name that is nobody's because several would
// have it, the names that they have instead.
func nameAll(list []*offered) map[string][]string {
	base := make(map[*offered]string, len(list))
	for _, o := range list {
		o.Name = toolName(o.Label, o.own)
		base[o] = o.Name
	}
	// A name with a hash may meet one that is written so; hence the rounds.
	for digits := 6; digits <= 64; digits *= 2 {
		for _, group := range meeting(list) {
			for _, o := range group {
				o.Name = base[o] + "_" + o.hash()[:digits]
			}
		}
	}
	bare := make(map[string][]string)
	for _, o := range list {
		for _, name := range []string{base[o], toolName(o.module.Name, o.own)} {
			if name != o.Name && !slices.Contains(bare[name], o.Name) {
				bare[name] = append(bare[name], o.Name)
			}
		}
	}
	for _, names := range bare {
		slices.Sort(names)
	}
	return bare
}

// meeting is the groups of those that have one name.
func meeting(list []*offered) [][]*offered {
	byName := make(map[string][]*offered, len(list))
	for _, o := range list {
		byName[o.Name] = append(byName[o.Name], o)
	}
	var groups [][]*offered
	for _, group := range byName {
		if len(group) > 1 {
			groups = append(groups, group)
		}
	}
	return groups
}

// hash tells what has one name apart, by where it comes from.
func (o *offered) hash() string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\x00%s\x00%s", o.module.Source, o.module.Name, o.own))
	return hex.EncodeToString(sum[:])
}

// toolName joins a module's and a method's name to that of a tool.
func toolName(module, method string) string { return module + "_" + plainName(method) }

// plainName replaces what may not stand in a tool's name.
func plainName(s string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' || r == '-' {
			return r
		}
		return '_'
	}, s)
}

// labels names modules: by their own name, and where several have it, with the
// shortest run of parent folders before it that no other of them has.
func labels(modules []*Module) []string {
	same := make(map[string][]int)
	for i, m := range modules {
		same[m.Name] = append(same[m.Name], i)
	}
	out := make([]string, len(modules))
	for name, group := range same {
		if len(group) == 1 {
			out[group[0]] = name
			continue
		}
		for n := 1; len(group) > 0; n++ {
			group = labelRuns(modules, group, n, out)
		}
	}
	return out
}

// labelRuns labels those of the group that a run of n parent folders tells
// apart, and returns the others. Modules of one name in one folder are told
// apart by nothing; they share a label, and their tools get a hash.
func labelRuns(modules []*Module, group []int, n int, out []string) []int {
	runs := make(map[string]int, len(group))
	run := func(i, n int) string {
		dir := strings.Trim(filepath.ToSlash(filepath.Dir(modules[i].Source)), "/")
		parts := strings.Split(dir, "/")
		return strings.Join(parts[max(0, len(parts)-n):], "/")
	}
	whole := func(i int) bool { return run(i, n) == run(i, n+1) }
	for _, i := range group {
		runs[run(i, n)]++
	}
	var rest []int
	for _, i := range group {
		if runs[run(i, n)] > 1 && !whole(i) {
			rest = append(rest, i)
			continue
		}
		parents := run(i, n)
		if runs[parents] > 1 {
			parents = run(i, 1)
		}
		out[i] = plainName(strings.ReplaceAll(parents, "/", "-") + "-" + modules[i].Name)
	}
	return rest
}
