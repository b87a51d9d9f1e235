// Views: what lies in a scope, and the names that it has there.

package main

import (
	"encoding/json"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// module makes a module out of "PATH:NAME tool tool", below the hosted DIR /w. A
// tool "m@webhook" has that path in its documentation.
func module(t testing.TB, text string) *Module {
	t.Helper()
	words := strings.Fields(text)
	source, name, _ := strings.Cut(words[0], ":")
	m := &Module{Name: name, Kind: kindExecutable, Source: source, Root: "/w"}
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
		method, _, err := parseMethod(definition, m.Kind.docRules())
		if err != nil {
			t.Fatal(err)
		}
		m.Methods = append(m.Methods, method)
	}
	return m
}

// viewOf is what a scope sees of modules as module has them.
func viewOf(t *testing.T, scope Scope, modules ...string) *View {
	t.Helper()
	var list []*Module
	for _, i := range rand.Perm(len(modules)) { // in any order of discovery
		list = append(list, module(t, modules[i]))
	}
	return newCatalog(list).View(scope)
}

var hashDigits = regexp.MustCompile(`[0-9a-f]{12}`)

// viewNames is the names of a view's tools, with a "#" for a hash.
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
		{"two of one name in two folders", []string{"/w/p/d.usher:d x", "/w/q/d.usher:d x"}, []string{"p-d_x", "q-d_x"}},
		{"a run of two folders where one does not do", []string{"/w/p/s/d.usher:d x", "/w/q/s/d.usher:d x"}, []string{"p-s-d_x", "q-s-d_x"}},
		{"each has the run that it needs", []string{"/w/p/s/d.usher:d x", "/w/q/s/d.usher:d x", "/w/r/d.usher:d x"}, []string{"p-s-d_x", "q-s-d_x", "r-d_x"}},
		{"the hosted folder's own name", []string{"/w/d.usher:d x", "/w/p/d.usher:d x"}, []string{"p-d_x", "w-d_x"}},
		{"no folder above the hosted one", []string{"/w/d.usher:d x", "/w/w/d.usher:d x"}, []string{"d-#_x", "w-w-d_x"}},
		{"a link to elsewhere", []string{"/v/p/d.usher:d x", "/w/q/d.usher:d x"}, []string{"d-#_x", "q-d_x"}},
		{"folders with odd names", []string{"/w/my+proj/d.usher:d x", "/w/q/d.usher:d x"}, []string{"my_proj-d_x", "q-d_x"}},
		{"folders that are one when joined", []string{"/w/a-b/d.usher:d x", "/w/a/b/d.usher:d x", "/w/q/b/d.usher:d x"}, []string{"d-#_x", "d-#_x", "q-b-d_x"}},
		{"two files of one folder", []string{"/w/p/d.usher:d x", "/w/p/d.usher.go:d x"}, []string{"d-#_x", "d-#_x"}},
		{"a_b and c, a and b_c", []string{"/w/a.usher:a b_c", "/w/a_b.usher:a_b c"}, []string{"a_b_c_#", "a_b_c_#"}},
		{"x.y and x_y of one server", []string{"/w/a.usher:a x.y x_y z"}, []string{"a_x_y_#", "a_x_y_#", "a_z"}},
		{"a module that is called as a longer name", []string{"/w/p/d.usher:d x", "/w/q/d.usher:d x", "/w/p-d.usher:p-d x"}, []string{"p-d_x_#", "p-d_x_#", "q-d_x"}},
		{"a bare name that is nobody's", []string{"/w/p/d.usher:d a_x", "/w/q/d.usher:d y", "/w/q/d_a.usher:d_a x"}, []string{"d_a_x_#", "p-d_a_x", "q-d_y"}},
		{"a name that looks as if it had a hash", []string{"/w/a.usher:a x_0123456789ab"}, []string{"a_x_#_#"}},
	}
	for _, tt := range tests {
		var before []string
		for range 5 {
			view := viewOf(t, scopeAll(), tt.modules...)
			var names []string
			for _, tool := range view.Tools {
				names = append(names, tool.Name)
				if view.Lookup("tools", tool.Name) != tool {
					t.Errorf("%s: %s is not found", tt.name, tool.Name)
				}
			}
			if before != nil && !slices.Equal(before, names) {
				t.Errorf("%s: %v, and in another order %v", tt.name, before, names)
			}
			before = names
			if diff := cmp.Diff(tt.want, viewNames(view)); diff != "" {
				t.Fatalf("%s: %s", tt.name, diff)
			}
		}
	}
}

func TestBareNamesAreNobodys(t *testing.T) {
	both := []string{"/w/p/d.usher:d x handleX", "/w/q/d.usher:d x handleX"}
	view := viewOf(t, scopeAll(), both...)
	if view.Lookup("tools", "d_x") != nil {
		t.Error("d_x is a tool")
	}
	if got := view.Alternatives("d_x"); !slices.Equal(got, []string{"p-d_x", "q-d_x"}) {
		t.Errorf("instead of d_x: %v", got)
	}
	if got := viewNames(viewOf(t, scopeDir("/w/p"), both...)); !slices.Equal(got, []string{"d_handleX", "d_x"}) {
		t.Errorf("in one folder: %v", got)
	}
	// Nothing else can take it, whatever it is called.
	view = viewOf(t, scopeAll(), append(both, "/w/q/d_x.usher:d_x y", "/w/q/e.usher:e y")...)
	for _, tool := range view.Tools {
		if tool.Name == "d_x" || view.Lookup("tools", "d_x") != nil {
			t.Errorf("d_x is %s of %s", tool.Method.Name, tool.module.Source)
		}
	}
}

func TestWebhookPaths(t *testing.T) {
	for _, tt := range []struct {
		name    string
		modules []string
		path    string
		want    string // MODULE/METHOD of the one that receives it, else what to use instead
	}{
		{"by its name", []string{"/w/a.usher:a handleX"}, "a/handleX", "a/handleX"},
		{"a method that is none", []string{"/w/a.usher:a x"}, "a/x", ""},
		{"a path of its own", []string{"/w/a.usher:a x@some/path"}, "some/path", "a/x"},
		{"and no other", []string{"/w/a.usher:a handleX@some/path"}, "a/handleX", ""},
		{"by its label", []string{"/w/p/d.usher:d handleX", "/w/q/d.usher:d y"}, "p-d/handleX", "d/handleX"},
		{"the bare name of one of two", []string{"/w/p/d.usher:d handleX", "/w/q/d.usher:d y"}, "d/handleX", "p-d/handleX"},
		{"the bare name of two", []string{"/w/p/d.usher:d handleX", "/w/q/d.usher:d handleX"}, "d/handleX", "p-d/handleX q-d/handleX"},
		{"a bare name that another asks for", []string{"/w/p/d.usher:d handleX", "/w/q/d.usher:d y", "/w/q/e.usher:e z@d/handleX"}, "d/handleX", "e_z p-d/handleX"},
		{"a path of two", []string{"/w/a.usher:a x@p", "/w/b.usher:b y@p"}, "p", "a_x b_y"},
		{"a name that another asks for", []string{"/w/a.usher:a handleX", "/w/b.usher:b y@a/handleX"}, "a/handleX", "a_handleX b_y"},
		{"two files of one folder", []string{"/w/d.usher:d handleX", "/w/d.usher.go:d handleX"}, "d/handleX", "d-#/handleX d-#/handleX"},
		{"an entry of a .mcp.json", []string{"/w/.mcp.json:a handleX"}, "a/handleX", ""},
		{"a path that one asks for", []string{"/w/.mcp.json:a y@path"}, "path", ""},
		{"a name that can't stand in a URL", []string{"/w/a.usher:a handle$(X)"}, "a/handle$(X)", ""},
	} {
		tool, others := viewOf(t, scopeAll(), tt.modules...).Hook(tt.path)
		got := hashDigits.ReplaceAllString(strings.Join(others, " "), "#")
		if tool != nil {
			got = tool.module.Name + "/" + tool.Method.Name
		}
		if got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}

// TestNamesTellNothingAboveTheScope has two modules of one name that only
// folders above the scope, or none, tell apart.
func TestNamesTellNothingAboveTheScope(t *testing.T) {
	modules := []string{"/w/secret/p/d.usher:d handleX", "/w/secret/p/p/d.usher:d handleX"}
	view := viewOf(t, scopeDir("/w/secret/p"), modules...)
	if got := viewNames(view); !slices.Equal(got, []string{"d-#_handleX", "p-p-d_handleX"}) {
		t.Errorf("tools: %v", got)
	}
	if _, others := view.Hook("d/handleX"); strings.Contains(strings.Join(others, " "), "secret") {
		t.Errorf("webhooks: %v", others)
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
	a.Templates = []json.RawMessage{json.RawMessage(`{"uriTemplate":"x://{any}"}`)}
	b.Resources = []json.RawMessage{json.RawMessage(`{"uri":"x://1","name":"b"}`), json.RawMessage(`{"uri":"x://2","name":"b"}`)}
	b.Templates = []json.RawMessage{json.RawMessage(`{"uriTemplate":"x://t/{id}/data"}`), json.RawMessage(`{"uriTemplate":"f:///{+path}"}`)}
	view := newCatalog([]*Module{b, a}).View(scopeAll())
	for uri, owner := range map[string]*Module{
		"x://1": a, "x://2": b, "x://t/7/data": b, "x://many/7": a, "f:///a/b/c": b, "x://3": a, "y://3": nil, "": nil,
	} {
		got := view.Lookup("resources", uri)
		if owner == nil && got != nil || owner != nil && (got == nil || got.module != owner) {
			t.Errorf("%q: %v", uri, got)
		}
	}
	if long := "f:///" + strings.Repeat("a", maxURI); view.Lookup("resources", long) != nil {
		t.Error("a URI of any length is matched")
	}
	if got := newCatalog([]*Module{a, b}).View(scopeDir("/w/b.usher")).Lookup("resources", "x://1"); got == nil || got.module != b {
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
