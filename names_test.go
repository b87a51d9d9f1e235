// Tests of names.go: tool names in a view.

package main

import (
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// viewOf returns a scope's view of modules, written as for module.
func viewOf(t *testing.T, scope Scope, modules ...string) *View {
	t.Helper()
	var list []*Module
	for _, i := range rand.Perm(len(modules)) { // in any order of discovery
		list = append(list, module(t, modules[i]))
	}
	return newCatalog(list).View(scope, nil)
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

// Tool names are unique and do not depend on the order of discovery.
func TestToolNamesAreUnique(t *testing.T) {
	tests := []struct {
		name    string
		modules []string
		want    []string // a "#" stands for a hash
	}{
		{"one module", []string{"/w/a.usher:a x y"}, []string{"a_x", "a_y"}},
		{"two of one name in two folders",
			[]string{"/w/p/d.usher:d x", "/w/q/d.usher:d x"}, []string{"p-d_x", "q-d_x"}},
		{"each has the run that it needs",
			[]string{"/w/p/s/d.usher:d x", "/w/q/s/d.usher:d x", "/w/r/d.usher:d x"},
			[]string{"p-s-d_x", "q-s-d_x", "r-d_x"}},
		{"the hosted folder's own name", []string{"/w/d.usher:d x", "/w/p/d.usher:d x"},
			[]string{"p-d_x", "w-d_x"}},
		{"no folder above the hosted one",
			[]string{"/w/d.usher:d x", "/w/w/d.usher:d x"}, []string{"d-#_x", "w-w-d_x"}},
		{"a link in the hosted folder itself", []string{"/v/d.usher:d x", "/w/q/d.usher:d x"},
			[]string{"q-d_x", "w-d_x"}},
		{"a link to elsewhere", []string{"/v/p/d.usher:d x", "/w/q/d.usher:d x"},
			[]string{"p-d_x", "q-d_x"}},
		{"folders that are one when joined",
			[]string{"/w/a-b/d.usher:d x", "/w/a/b/d.usher:d x", "/w/q/b/d.usher:d x"},
			[]string{"d-#_x", "d-#_x", "q-b-d_x"}},
		{"two files of one folder, and one of another",
			[]string{"/w/p/d.usher.py:d x", "/w/p/d.usher.go:d x", "/w/q/d.usher.go:d x"},
			[]string{"d-py_x", "p-d-go_x", "q-d_x"}},
		{"one that can't be hosted", []string{"/w/p/d.usher:d x", "!/w/q/d.usher:d x"},
			[]string{"p-d_x"}},
		{"a_b and c, a and b_c", []string{"/w/a.usher:a b_c", "/w/a_b.usher:a_b c"},
			[]string{"a_b_c_#", "a_b_c_#"}},
		{"x.y and x_y of one server", []string{"/w/a.usher:a x.y x_y z"},
			[]string{"a_x_y_#", "a_x_y_#", "a_z"}},
		{"a module that is called as a longer name",
			[]string{"/w/p/d.usher:d x", "/w/q/d.usher:d x", "/w/p-d.usher:p-d x"},
			[]string{"p-d_x_#", "p-d_x_#", "q-d_x"}},
		{"a bare name that is nobody's",
			[]string{"/w/p/d.usher:d a_x", "/w/q/d.usher:d y", "/w/q/d_a.usher:d_a x"},
			[]string{"d_a_x_#", "p-d_a_x", "q-d_y"}},
		{"a name that looks as if it had a hash",
			[]string{"/w/a.usher:a x_0123456789ab"}, []string{"a_x_#_#"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var first []string
			for range 5 { // in several orders of discovery
				view := viewOf(t, scopeAll(), tt.modules...)
				var names []string
				for _, tool := range view.Tools {
					names = append(names, tool.Name)
					check(t, tool.Name+" is found",
						view.Lookup("tools", tool.Name) == tool, true)
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

// A name that two modules share belongs to neither.
func TestSharedNamesAreNobodys(t *testing.T) {
	both := []string{"/w/p/d.usher:d x handleX", "/w/q/d.usher:d x handleX"}
	view := viewOf(t, scopeAll(), both...)
	check(t, "d_x is a tool", view.Lookup("tools", "d_x") != nil, false)
	check(t, "tools that d_x may mean", len(view.items["tools"]["d_x"]), 2)
	check(t, "x is one of two", view.Lookup("tools", "x") != nil, false)
	one := viewOf(t, scopeDir("/w/p"), both...)
	check(t, "names in one folder", viewNames(one), []string{"d_handleX", "d_x"})
	check(t, "x is its tool", one.Lookup("tools", "x") == one.Lookup("tools", "d_x"), true)
	// Nothing else can take the name.
	view = viewOf(t, scopeAll(),
		append(both, "/w/q/d_x.usher:d_x y", "/w/q/e.usher:e y d_x f_x", "!/w/f.usher:f x")...)
	check(t, "d_x or f_x is a tool", view.Lookup("tools", "d_x") != nil ||
		view.Lookup("tools", "f_x") != nil, false)
	check(t, "d_x is listed", slices.Contains(viewNames(view), "d_x"), false)
	// Nor can one of the two, if the other has nothing of the name.
	view = viewOf(t, scopeAll(), both[0], "/w/q/d.usher:d y")
	check(t, "d_x is a tool of one", view.Lookup("tools", "d_x") != nil, false)
	hook, claimants := view.Hook("d/handleX")
	check(t, "d/handleX is a webhook of one", hook != nil || len(claimants) != 1, false)
}

// If a module keeps serving the old file of its link, and another link leads to that file, only the
// module of the other link has names.
func TestOldFileOfALinkHasNoNames(t *testing.T) {
	old, link := module(t, "/x.usher:x f"), module(t, "/x.usher:x f")
	old.Path = "/w/a/x.usher"
	link.Path = "/w/b/x.usher"
	for _, old.Err = range []error{errUnapproved, nil} {
		old.Pending = old.Err == nil
		for _, modules := range [][]*Module{{old, link}, {link, old}} {
			view := newCatalog(modules).View(scopeAll(), nil)
			check(t, "names", viewNames(view), []string{"x_f"})
			check(t, "its module is that of the link", view.Tools[0].Module == link, true)
		}
	}
}

// Names contain no folder above the scope.
func TestNamesTellNothingAboveTheScope(t *testing.T) {
	modules := []string{"/w/secret/p/d.usher:d handleX", "/w/secret/p/p/d.usher:d handleX"}
	view := viewOf(t, scopeDir("/w/secret/p"), modules...)
	check(t, "tools", viewNames(view), []string{"d-#_handleX", "p-p-d_handleX"})
	_, claimants := view.Hook("d/handleX")
	checkOmits(t, "webhooks", itemNames(claimants), "secret")
	for i, m := range modules {
		modules[i] = strings.Replace(m, "secret", "moved", 1)
	}
	moved := viewOf(t, scopeDir("/w/moved/p"), modules...)
	check(t, "a name with a hash", moved.Tools[0].Name, view.Tools[0].Name)
}
