// Views: which modules are in a scope, and which names they have there.

package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// A catalog keeps at most maxViews views.
func TestViewsAreForgotten(t *testing.T) {
	c := newCatalog(nil)
	for n := range 2 * maxViews {
		c.View(scopeDir(fmt.Sprint("/w/", n)), nil)
	}
	check(t, "too many views are kept", len(c.views) > maxViews, false)
	check(t, "an empty list", string(c.View(scopeAll(), nil).Lists["tools"]), `[]`)
}

// A large view delays only its own callers: the catalog is not locked while it is built.
func TestViewsAreBuiltApart(t *testing.T) {
	c := newCatalog(nil)
	isFree := false
	c.views[viewKey{scope: scopeAll()}] = func() *View {
		isFree = c.mu.TryLock()
		return nil
	}
	c.View(scopeAll(), nil)
	check(t, "the lock of the catalog is free", isFree, true)
}

// labelsOf returns the labels of a view's modules, with a space before each.
func labelsOf(v *View) (text string) {
	for _, m := range v.Modules {
		text += " " + m.Label
	}
	return text
}

// module makes a module out of "PATH:NAME tool tool", below the hosted DIR /w. A PATH below /v has a
// link below /w. A "!" before it is an absent module; a tool "m@webhook" has that path in its
// documentation.
func module(t testing.TB, text string) *Module {
	t.Helper()
	words := strings.Fields(strings.TrimPrefix(text, "!"))
	path, name, _ := strings.Cut(words[0], ":")
	found := source{
		Name:   name,
		Kind:   kindExecutable,
		Path:   strings.Replace(path, "/v/", "/w/", 1),
		Source: path,
		Root:   "/w",
	}
	m := &Module{source: found, owner: &moduleOwner{registry: &Registry{}}}
	if text[0] == '!' {
		return m
	}
	m.pool = &pool{}
	if strings.HasSuffix(path, string(kindConfig)) {
		m.Kind = kindConfig
	}
	for _, tool := range words[1:] {
		tool, path, _ := strings.Cut(tool, "@")
		description := ""
		if path != "" {
			description = "@webhook " + path
		}
		definition := object{{"name", quote(tool)},
			{"description", quote(description)}}.encode()
		method := parseMethod(definition, m.Kind)
		m.Methods = append(m.Methods, method)
	}
	return m
}

// A method with @unshared is in no scoped view, nor is a module that has nothing else. Its webhook
// stays. A webhook with @internal is no tool.
func TestUnsharedMethods(t *testing.T) {
	t.Parallel()
	a, b := module(t, "/w/a.usher.py:a"), module(t, "/w/x/b.usher.py:b")
	twin, prompter := module(t, "/w/y/b.usher.py:b"), module(t, "/w/z/p.usher:p")
	prompter.Lists = map[string][]json.RawMessage{"prompts": {json.RawMessage(`{"name":"x"}`)}}
	for m, docs := range map[*Module][]string{
		a:        {"", "@webhook a\\n@unshared", "@internal\\n@webhook c"},
		b:        {"@webhook b\\n@unshared"},
		twin:     {""},
		prompter: {"@unshared"},
	} {
		m.Methods = nil
		for i, doc := range docs {
			page := fmt.Sprintf("ui://%s/%d", m.Source, i)
			text := fmt.Sprintf(
				`{"name":"f%d","description":"%s","_meta":{"ui":{"resourceUri":%q}}}`, i,
				strings.ReplaceAll(doc, `\\`, `\`), page)
			m.Methods = append(m.Methods, parseMethod(json.RawMessage(text), m.Kind))
		}
	}
	catalog := newCatalog([]*Module{a, b, twin, prompter})
	for scope, want := range map[Scope]string{
		scopeAll():       "a_f0, a_f1, p_f0, x-b_f0, y-b_f0 of a p x-b y-b",
		scopeDir("/w"):   "a_f0, b_f0 of a b p",
		scopeDir("/w/x"): " of",
		scopeDir("/w/z"): " of p",
	} {
		v := catalog.View(scope, nil)
		got := itemNames(v.Tools) + " of" + labelsOf(v)
		check(t, fmt.Sprintf("the tools and modules of %v", scope), got, want)
		for page, isThere := range map[string]bool{
			"ui:///w/a.usher.py/0":   scope.Contains(a.Source),
			"ui:///w/a.usher.py/1":   scope == scopeAll(),
			"ui:///w/x/b.usher.py/0": scope == scopeAll(),
		} {
			got := v.Lookup("resources", page) != nil
			check(t, fmt.Sprintf("%s in %v", page, scope), got, isThere)
		}
		isThere := v.Lookup("tools", "f1") != nil
		check(t, "the module's own name of a kept method", isThere, scope == scopeAll())
	}
	for _, path := range []string{"a", "b", "c"} {
		tool, _ := catalog.View(scopeAll(), nil).Hook(path)
		check(t, "the webhook "+path, tool != nil, true)
	}
}

// No module takes a URI that another one lists, and none has a URI that two list or name as
// a tool's page.
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
		"resources": list(`{"uri":"x://1","name":"b"}`, `{"uri":"x://2","name":"b"}`,
			`{"uri":"x://2","name":"b"}`,
			`{"uri":"x://named","name":"b"}`),
		"resourceTemplates": list(`{"uriTemplate":"x://t/{id}/data"}`,
			`{"uriTemplate":"f:///{+path}"}`),
	}
	c.Lists = map[string][]json.RawMessage{"resourceTemplates": list(`{"uriTemplate":"x://2{any}"}`)}
	for _, m := range []*Module{a, c} {
		for _, uri := range []string{"x://named", "ui://both", "ui://" + m.Name} {
			method := parseMethod(json.RawMessage(`{"name":"x","_meta":{"ui":{`+
				`"resourceUri":"`+uri+`"}}}`), m.Kind)
			m.Methods = append(m.Methods, method)
		}
	}
	catalog := newCatalog([]*Module{c, b, a})
	owner := func(scope Scope, uri string) string {
		item := catalog.View(scope, nil).Lookup("resources", uri)
		if item == nil {
			return ""
		}
		return item.Module.Name
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
	view := catalog.View(scopeAll(), nil)
	checkOmits(t, "the list", view.Lists["resources"], "x://1", "x://named")
	checkContains(t, "the list", view.Lists["resources"], "x://2")
}
