// The catalog: the modules that are hosted at one instant, and views of it. A
// View is the only way to a module. It is built for a scope and holds what lies
// in that scope and nothing else, so that no handler can forget to ask.

package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"path/filepath"
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

	pool     *pool
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
	slices.SortFunc(modules, func(a, b *Module) int {
		if c := strings.Compare(a.Source, b.Source); c != 0 {
			return c
		}
		return strings.Compare(a.Name, b.Name)
	})
	return &Catalog{modules: modules, views: make(map[Scope]*View)}
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
	hooks   map[string][]*Tool  // webhooks by path; more than one: none is served
	json    json.RawMessage     // the result of tools/list
	print   string              // of json
}

// ViewModule is a module and what it is called in a view.
type ViewModule struct {
	Label string // its name, with parent folders where that is not unique
	*Module
}

// Tool is a method of a module under the name it has in a view.
type Tool struct {
	Name   string
	Label  string // of the module in this view
	Method *Method
	module *Module
}

func newView(all []*Module, scope Scope) *View {
	var inside []*Module
	for _, m := range all {
		if scope.Contains(m.Source) {
			inside = append(inside, m)
		}
	}
	v := &View{byName: make(map[string]*Tool), toolsIn: make(map[*Module][]*Tool), bare: make(map[string][]string), hooks: make(map[string][]*Tool)}
	for i, label := range labels(inside) {
		v.Modules = append(v.Modules, ViewModule{label, inside[i]})
	}
	slices.SortStableFunc(v.Modules, func(a, b ViewModule) int { return strings.Compare(a.Label, b.Label) })
	v.nameTools()
	for _, t := range v.tools {
		if t.Method.IsHook {
			v.hooks[t.HookPath()] = append(v.hooks[t.HookPath()], t)
		}
	}
	list := make([]byte, 0, 1024)
	list = append(list, `{"tools":[`...)
	for i, t := range v.tools {
		if i > 0 {
			list = append(list, ',')
		}
		list = append(list, t.Method.toolJSON(t.Name)...)
	}
	v.json = oneLine(append(list, "]}"...))
	sum := sha256.Sum256(v.json)
	v.print = hex.EncodeToString(sum[:])
	return v
}

// ToolsJSON is the result of tools/list, on one line.
func (v *View) ToolsJSON() json.RawMessage { return v.json }

// Fingerprint tells views with different lists apart.
func (v *View) Fingerprint() string { return v.print }

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
// module has been replaced since the view was made.
func (t *Tool) Call(ctx context.Context, caller Caller, params json.RawMessage) (json.RawMessage, error) {
	list, _ := members(params)
	params = joinMembers(setMember(list, "name", quote(t.Method.Name)))
	return t.module.pool.call(ctx, caller, "tools/call", params, t.module.patience)
}

// Checked reports whether calls of the tool are checked against its schema.
func (t *Tool) Checked() bool { return t.module.Kind.singleFile() }

// nameTools gives every tool of the view its name: MODULE_METHOD, and a hash
// behind it where two would meet.
func (v *View) nameTools() {
	for _, m := range v.Modules {
		for _, method := range m.Methods {
			t := &Tool{Name: toolName(m.Label, method.Name), Label: m.Label, Method: method, module: m.Module}
			v.tools = append(v.tools, t)
			v.toolsIn[m.Module] = append(v.toolsIn[m.Module], t)
		}
	}
	base := make(map[*Tool]string, len(v.tools))
	for _, t := range v.tools {
		base[t] = t.Name
	}
	// A name with a hash may meet one that is written so; hence the rounds.
	for digits := 6; digits <= 64; digits *= 2 {
		for _, group := range meeting(v.tools) {
			for _, t := range group {
				t.Name = base[t] + "_" + t.hash()[:min(digits, 64)]
			}
		}
	}
	for _, t := range v.tools {
		v.byName[t.Name] = t
		for _, bare := range []string{base[t], toolName(t.module.Name, t.Method.Name)} {
			if bare != t.Name && !slices.Contains(v.bare[bare], t.Name) {
				v.bare[bare] = append(v.bare[bare], t.Name)
			}
		}
	}
	slices.SortFunc(v.tools, func(a, b *Tool) int { return strings.Compare(a.Name, b.Name) })
	for _, names := range v.bare {
		slices.Sort(names)
	}
}

// meeting is the groups of tools that have one name.
func meeting(tools []*Tool) [][]*Tool {
	byName := make(map[string][]*Tool, len(tools))
	for _, t := range tools {
		byName[t.Name] = append(byName[t.Name], t)
	}
	var groups [][]*Tool
	for _, group := range byName {
		if len(group) > 1 {
			groups = append(groups, group)
		}
	}
	return groups
}

// hash tells tools of one name apart, by where they come from.
func (t *Tool) hash() string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\x00%s\x00%s", t.module.Source, t.module.Name, t.Method.Name))
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
