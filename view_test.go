// Views: which modules are in a scope, and which names they have there.

package main

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// module makes a module out of "PATH:NAME tool tool", below the hosted DIR /w. A "!" before
// it is an absent module; a tool "m@webhook" has that path in its documentation.
func module(t testing.TB, text string) *Module {
	t.Helper()
	words := strings.Fields(strings.TrimPrefix(text, "!"))
	source, name, _ := strings.Cut(words[0], ":")
	found := discovered{Name: name, Kind: kindExecutable, Source: source, Root: "/w"}
	m := &Module{discovered: found, checkCurrent: func() error { return nil }}
	if text[0] != '!' {
		m.pool = &pool{}
	}
	if strings.HasSuffix(source, configName) {
		m.Kind = kindConfig
	}
	for _, tool := range words[1:] {
		tool, path, _ := strings.Cut(tool, "@")
		description := ""
		if path != "" {
			description = "@webhook " + path
		}
		definition := object{{"name", quote(tool)}, {"description", quote(description)}}.encode()
		method, _ := parseMethod(definition, m.Kind)
		m.Methods = append(m.Methods, method)
	}
	return m
}

// viewOf returns a scope's view of modules, written as for module.
func viewOf(t *testing.T, scope Scope, modules ...string) *View {
	t.Helper()
	var list []*Module
	for _, i := range rand.Perm(len(modules)) { // in any order of discovery
		list = append(list, module(t, modules[i]))
	}
	return newCatalog(list).View(scope)
}

var hashDigits = regexp.MustCompile(`[0-9a-f]{12}`)

// viewNames returns the names of a view's tools, with a "#" for a hash.
func viewNames(v *View) []string {
	names := []string{}
	for _, tool := range v.Tools {
		names = append(names, hashDigits.ReplaceAllString(tool.Name, "#"))
	}
	return names
}

func TestToolNames(t *testing.T) {
	tests := []struct {
		name    string
		modules []string
		want    []string // a "#" stands for a hash
	}{
		{"one module", []string{"/w/a.usher:a x y"}, []string{"a_x", "a_y"}},
		{"two of one name in two folders",
			[]string{"/w/p/d.usher:d x", "/w/q/d.usher:d x"}, []string{"p-d_x", "q-d_x"}},
		{"each has the run that it needs", []string{"/w/p/s/d.usher:d x", "/w/q/s/d.usher:d x", "/w/r/d.usher:d x"},
			[]string{"p-s-d_x", "q-s-d_x", "r-d_x"}},
		{"the hosted folder's own name", []string{"/w/d.usher:d x", "/w/p/d.usher:d x"}, []string{"p-d_x", "w-d_x"}},
		{"no folder above the hosted one",
			[]string{"/w/d.usher:d x", "/w/w/d.usher:d x"}, []string{"d-#_x", "w-w-d_x"}},
		{"a link to elsewhere", []string{"/v/p/d.usher:d x", "/w/q/d.usher:d x"}, []string{"d-#_x", "q-d_x"}},
		{"folders with odd names",
			[]string{"/w/my+proj/d.usher:d x", "/w/q/d.usher:d x"}, []string{"my_proj-d_x", "q-d_x"}},
		{"folders that are one when joined",
			[]string{"/w/a-b/d.usher:d x", "/w/a/b/d.usher:d x", "/w/q/b/d.usher:d x"},
			[]string{"d-#_x", "d-#_x", "q-b-d_x"}},
		{"two files of one folder",
			[]string{"/w/p/d.usher.py:d x", "/w/p/d.usher.go:d x"}, []string{"d-go_x", "d-py_x"}},
		{"two files of one folder, and one of another",
			[]string{"/w/p/d.usher.py:d x", "/w/p/d.usher.go:d x", "/w/q/d.usher.go:d x"},
			[]string{"d-py_x", "p-d-go_x", "q-d_x"}},
		{"one that can't be hosted", []string{"/w/p/d.usher:d x", "!/w/q/d.usher:d x"}, []string{"p-d_x"}},
		{"a_b and c, a and b_c", []string{"/w/a.usher:a b_c", "/w/a_b.usher:a_b c"}, []string{"a_b_c_#", "a_b_c_#"}},
		{"x.y and x_y of one server", []string{"/w/a.usher:a x.y x_y z"}, []string{"a_x_y_#", "a_x_y_#", "a_z"}},
		{"a module that is called as a longer name",
			[]string{"/w/p/d.usher:d x", "/w/q/d.usher:d x", "/w/p-d.usher:p-d x"},
			[]string{"p-d_x_#", "p-d_x_#", "q-d_x"}},
		{"a bare name that is nobody's", []string{"/w/p/d.usher:d a_x", "/w/q/d.usher:d y", "/w/q/d_a.usher:d_a x"},
			[]string{"d_a_x_#", "p-d_a_x", "q-d_y"}},
		{"a name that looks as if it had a hash", []string{"/w/a.usher:a x_0123456789ab"}, []string{"a_x_#_#"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var first []string
			for range 5 { // in several orders of discovery
				view := viewOf(t, scopeAll(), tt.modules...)
				var names []string
				for _, tool := range view.Tools {
					names = append(names, tool.Name)
					check(t, tool.Name+" is found", view.Lookup("tools", tool.Name) == tool, true)
				}
				if first == nil {
					first = names
				}
				check(t, "names in another order", names, first)
				check(t, "names", viewNames(view), tt.want)
			}
		})
	}
}

func TestBareNamesAreNobodys(t *testing.T) {
	both := []string{"/w/p/d.usher:d x handleX", "/w/q/d.usher:d x handleX"}
	view := viewOf(t, scopeAll(), both...)
	check(t, "d_x is a tool", view.Lookup("tools", "d_x") != nil, false)
	check(t, "tools that d_x may mean", len(view.ambiguous["tools"]["d_x"]), 2)
	check(t, "x is one of two", view.Lookup("tools", "x") != nil, false)
	one := viewOf(t, scopeDir("/w/p"), both...)
	check(t, "names in one folder", viewNames(one), []string{"d_handleX", "d_x"})
	check(t, "x is its tool", one.Lookup("tools", "x") == one.Lookup("tools", "d_x"), true)
	// Nothing else can take the name.
	view = viewOf(t, scopeAll(), append(both, "/w/q/d_x.usher:d_x y", "/w/q/e.usher:e y d_x f_x", "!/w/f.usher:f x")...)
	check(t, "d_x or f_x is a tool", view.Lookup("tools", "d_x") != nil || view.Lookup("tools", "f_x") != nil, false)
	check(t, "d_x is listed", slices.Contains(viewNames(view), "d_x"), false)
}

// TestNamesTellNothingAboveTheScope has two modules of one name that only
// folders above the scope, or none, tell apart.
func TestNamesTellNothingAboveTheScope(t *testing.T) {
	modules := []string{"/w/secret/p/d.usher:d handleX", "/w/secret/p/p/d.usher:d handleX"}
	view := viewOf(t, scopeDir("/w/secret/p"), modules...)
	check(t, "tools", viewNames(view), []string{"d-#_handleX", "p-p-d_handleX"})
	_, others := view.Hook("d/handleX")
	checkOmits(t, "webhooks", strings.Join(others, " "), "secret")
	for i, m := range modules {
		modules[i] = strings.Replace(m, "secret", "moved", 1)
	}
	moved := viewOf(t, scopeDir("/w/moved/p"), modules...)
	check(t, "a name with a hash", moved.Tools[0].Name, view.Tools[0].Name)
}

func TestViewsAreForgotten(t *testing.T) {
	c := newCatalog(nil)
	for n := range 2 * maxViews {
		c.View(scopeDir(fmt.Sprint("/w/", n)))
	}
	check(t, "too many views are kept", len(c.views) > maxViews, false)
	check(t, "an empty list", string(c.View(scopeAll()).Lists["tools"]), `{"tools":[]}`)
}

// TestResourcesHaveOneOwner looks up URIs that several modules of a view list, name as the page of a tool, or match
// with a template: no module takes the listed URI of another one, and none has a URI that two list.
func TestResourcesHaveOneOwner(t *testing.T) {
	list := func(texts ...string) (list []json.RawMessage) {
		for _, text := range texts {
			list = append(list, json.RawMessage(text))
		}
		return list
	}
	a, b, c := module(t, "/w/a.usher:a"), module(t, "/w/b.usher:b"), module(t, "/w/c.usher:c")
	a.Lists = map[string][]json.RawMessage{
		"resources":         list(`{"uri":"x://1","name":"a"}`),
		"resourceTemplates": list(`{"uriTemplate":"x://{any}"}`),
	}
	b.Lists = map[string][]json.RawMessage{
		"resources": list(`{"uri":"x://1","name":"b"}`, `{"uri":"x://2","name":"b"}`, `{"uri":"x://2","name":"b"}`,
			`{"uri":"x://named","name":"b"}`),
		"resourceTemplates": list(`{"uriTemplate":"x://t/{id}/data"}`, `{"uriTemplate":"f:///{+path}"}`),
	}
	c.Lists = map[string][]json.RawMessage{"resourceTemplates": list(`{"uriTemplate":"x://2{any}"}`)}
	for _, m := range []*Module{a, c} {
		for _, uri := range []string{"x://named", "ui://both", "ui://" + m.Name} {
			method, _ := parseMethod(json.RawMessage(`{"name":"x","_meta":{"ui":{"resourceUri":"`+uri+`"}}}`), m.Kind)
			m.Methods = append(m.Methods, method)
		}
	}
	catalog := newCatalog([]*Module{c, b, a})
	owner := func(scope Scope, uri string) string {
		item := catalog.View(scope).Lookup("resources", uri)
		if item == nil {
			return ""
		}
		return item.module.Name
	}
	for uri, want := range map[string]string{
		"x://1":                               "",
		"x://2":                               "b",
		"x://named":                           "",
		"x://22":                              "c",
		"x://t/7/data":                        "b",
		"f:///a/b/c":                          "b",
		"x://3":                               "a",
		"y://3":                               "",
		"ui://a":                              "a",
		"ui://both":                           "",
		"":                                    "",
		"f:///" + strings.Repeat("a", maxURI): "",
	} {
		check(t, clipText(uri, 20), owner(scopeAll(), uri), want)
	}
	check(t, "in b's scope", owner(scopeDir("/w/b.usher"), "x://1"), "b")
	view := catalog.View(scopeAll())
	checkOmits(t, "the list", string(view.Lists["resources"]), "x://1", "x://named")
	checkContains(t, "the list", string(view.Lists["resources"]), "x://2")
}

// TestSharedURIsAreReported has usher modules name the URIs that two modules list.
func TestSharedURIsAreReported(t *testing.T) {
	long(t)
	dir := t.TempDir()
	writeFake(t, dir+"/a.usher", "good tools=x res=r")
	writeFake(t, dir+"/b.usher", "good tools=x res=r")
	const note = "note: r://one: this resource is not offered, as several modules have its URI"
	check(t, "notes", strings.Count(modulesOf(t, dir, nil), note), 2)
}

func TestScopeContains(t *testing.T) {
	for _, tt := range []struct {
		scope  Scope
		source string
		want   bool
	}{
		{scopeAll(), "/anything", true},
		{scopeAll(), "", true},
		{Scope{}, "/anything", false},
		{Scope{}, "", false},
		{scopeDir("/w/proj"), "/w/proj", true},
		{scopeDir("/w/proj"), "/w/proj/a.usher", true},
		{scopeDir("/w/proj"), "/w/proj/deep/er/a.usher", true},
		{scopeDir("/w/proj"), "/w/projX/a.usher", false},
		{scopeDir("/w/proj"), "/w/pro", false},
		{scopeDir("/w/proj"), "/W/proj/a.usher", false},
		{scopeDir("/w/proj"), "/x/w/proj/a.usher", false},
		{scopeDir("/w/proj"), "", false},
		{scopeDir("/"), "/a.usher", true},
		{scopeDir(""), "/a.usher", false},
	} {
		check(t, fmt.Sprintf("%+v contains %q", tt.scope, tt.source), tt.scope.Contains(tt.source), tt.want)
	}
}

// TestToolPages looks up the page that MCP Apps shows for a tool. No list has to have it.
func TestToolPages(t *testing.T) {
	m := module(t, "/w/proj/a.usher:a")
	method, _ := parseMethod(json.RawMessage(`{"name":"x","_meta":{"ui":{"resourceUri":"ui://page"}}}`), m.Kind)
	m.Methods = append(m.Methods, method)
	catalog := newCatalog([]*Module{m, module(t, "/w/other/b.usher:b tool")})
	for scope, want := range map[Scope]bool{scopeAll(): true, scopeDir("/w/proj"): true, scopeDir("/w/other"): false} {
		page := catalog.View(scope).Lookup("resources", "ui://page")
		check(t, fmt.Sprint(scope, " has the page"), page != nil && page.module == m, want)
		check(t, "an empty URI is none", catalog.View(scope).Lookup("resources", "") == nil, true)
	}
	const declared = `{"extensions":{"io.modelcontextprotocol/ui":{"mimeTypes":["text/html;profile=mcp-app"]}}}`
	check(t, "capabilities", string(parseClientCaps(json.RawMessage(declared)).encode()), declared)
}
