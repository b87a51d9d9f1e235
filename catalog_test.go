// Views: what lies in a scope, and the names that it has there.

package main

import (
	"encoding/json"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// module makes a module of tools out of "PATH:NAME tool tool".
func module(t *testing.T, text string) *Module {
	t.Helper()
	words := strings.Fields(text)
	source, name, _ := strings.Cut(words[0], ":")
	m := &Module{Name: name, Kind: kindConfig, Source: source}
	for _, tool := range words[1:] {
		method, _, err := parseMethod(json.RawMessage(`{"name":"`+tool+`"}`), kindConfig)
		if err != nil {
			t.Fatal(err)
		}
		m.Methods = append(m.Methods, method)
	}
	return m
}

func viewNames(v *View) []string {
	names := []string{}
	for _, tool := range v.Tools() {
		names = append(names, tool.Name)
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
		{"two of one name in two folders", []string{"/w/p/d.usher:d x", "/w/q/d.usher:d x"}, []string{"p-d_x", "q-d_x"}},
		{"a run of two folders where one does not do", []string{"/w/p/s/d.usher:d x", "/w/q/s/d.usher:d x"}, []string{"p-s-d_x", "q-s-d_x"}},
		{"each has the run that it needs", []string{"/w/p/s/d.usher:d x", "/w/q/s/d.usher:d x", "/w/r/d.usher:d x"}, []string{"p-s-d_x", "q-s-d_x", "r-d_x"}},
		{"one above the other", []string{"/w/d.usher:d x", "/w/w/d.usher:d x"}, []string{"w-d_x", "w-w-d_x"}},
		{"folders with odd names", []string{"/w/my+proj/d.usher:d x", "/w/q/d.usher:d x"}, []string{"my_proj-d_x", "q-d_x"}},
		{"two files of one folder", []string{"/w/p/d.usher:d x", "/w/p/d.usher.go:d x"}, []string{"p-d_x_#", "p-d_x_#"}},
		{"a_b and c, a and b_c", []string{"/w/a.usher:a b_c", "/w/a_b.usher:a_b c"}, []string{"a_b_c_#", "a_b_c_#"}},
		{"x.y and x_y of one server", []string{"/w/a.usher:a x.y x_y z"}, []string{"a_x_y_#", "a_x_y_#", "a_z"}},
		{"a module that is called as a longer name", []string{"/w/p/d.usher:d x", "/w/q/d.usher:d x", "/w/p-d.usher:p-d x"}, []string{"p-d_x_#", "p-d_x_#", "q-d_x"}},
	}
	for _, tt := range tests {
		var before []string
		for range 5 { // in any order of discovery
			var list []*Module
			for _, i := range rand.Perm(len(tt.modules)) {
				list = append(list, module(t, tt.modules[i]))
			}
			view := newCatalog(list).View(scopeAll())
			names := viewNames(view)
			if before != nil && !slices.Equal(before, names) {
				t.Errorf("%s: %v, and in another order %v", tt.name, before, names)
			}
			before = slices.Clone(names)
			for i := range names {
				if i < len(tt.want) && strings.HasSuffix(tt.want[i], "#") {
					names[i] = names[i][:len(names[i])-6] + "#"
				}
			}
			if diff := cmp.Diff(tt.want, names); diff != "" {
				t.Fatalf("%s: %s", tt.name, diff)
			}
			for _, tool := range view.Tools() {
				if view.Lookup(tool.Name) != tool {
					t.Errorf("%s: %s is not found", tt.name, tool.Name)
				}
			}
		}
	}
}

func TestBareNamesAreNobodys(t *testing.T) {
	view := newCatalog([]*Module{module(t, "/w/p/d.usher:d x handleX"), module(t, "/w/q/d.usher:d x handleX")}).View(scopeAll())
	if view.Lookup("d_x") != nil {
		t.Error("d_x is a tool")
	}
	if got := view.Others("d_x"); !slices.Equal(got, []string{"p-d_x", "q-d_x"}) {
		t.Errorf("instead of d_x: %v", got)
	}
	if tool, others := view.Hook("d/handleX"); tool != nil || !slices.Equal(others, []string{"p-d/handleX", "q-d/handleX"}) {
		t.Errorf("webhook at the bare name: %v %v", tool, others)
	}
	if tool, _ := view.Hook("p-d/handleX"); tool == nil {
		t.Error("no webhook at p-d/handleX")
	}
	scoped := newCatalog([]*Module{module(t, "/w/p/d.usher:d x"), module(t, "/w/q/d.usher:d x")}).View(scopeDir("/w/p"))
	if got := viewNames(scoped); !slices.Equal(got, []string{"d_x"}) {
		t.Errorf("in one folder: %v", got)
	}
}

func TestViewsDifferInWhatTheyList(t *testing.T) {
	a, b := module(t, "/w/p/a.usher:a x"), module(t, "/w/q/b.usher:b x")
	whole, same := newCatalog([]*Module{a, b}).View(scopeAll()), newCatalog([]*Module{b, a}).View(scopeDir("/w"))
	part := newCatalog([]*Module{a, b}).View(scopeDir("/w/p"))
	if whole.Fingerprint("tools") != same.Fingerprint("tools") {
		t.Error("equal lists have different fingerprints")
	}
	if whole.Fingerprint("tools") == part.Fingerprint("tools") {
		t.Error("different lists have one fingerprint")
	}
	if got := string(newCatalog(nil).View(scopeAll()).ListJSON("tools")); got != `{"tools":[]}` {
		t.Errorf("an empty list is %s", got)
	}
}

func TestResourcesHaveOneOwner(t *testing.T) {
	a, b := module(t, "/w/a.usher:a"), module(t, "/w/b.usher:b")
	a.Resources = []json.RawMessage{json.RawMessage(`{"uri":"x://1","name":"a"}`)}
	b.Resources = []json.RawMessage{json.RawMessage(`{"uri":"x://1","name":"b"}`), json.RawMessage(`{"uri":"x://2","name":"b"}`)}
	b.Templates = []json.RawMessage{json.RawMessage(`{"uriTemplate":"x://t/{id}/data"}`), json.RawMessage(`{"uriTemplate":"f:///{+path}"}`)}
	view := newCatalog([]*Module{b, a}).View(scopeAll())
	for uri, owner := range map[string]*Module{
		"x://1": a, "x://2": b, "x://t/7/data": b, "x://t/7/8/data": nil, "x://t//data": nil, "f:///a/b/c": b, "x://3": nil, "": nil,
	} {
		got := view.Resource(uri)
		if owner == nil && got != nil || owner != nil && (got == nil || got.module != owner) {
			t.Errorf("%q: %v", uri, got)
		}
	}
	if got := newCatalog([]*Module{a, b}).View(scopeDir("/w/b.usher")).Resource("x://1"); got == nil || got.module != b {
		t.Errorf("in b's scope: %v", got)
	}
}

func TestScopeContains(t *testing.T) {
	for _, tt := range []struct {
		scope  Scope
		source string
		want   bool
	}{
		{scopeAll(), "/anything", true},
		{scopeAll(), "", true},
		{scopeNone(), "/anything", false},
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
		if got := tt.scope.Contains(tt.source); got != tt.want {
			t.Errorf("%+v contains %q: %v", tt.scope, tt.source, got)
		}
	}
}
