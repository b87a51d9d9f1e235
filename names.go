// Names: what the modules and their tools and prompts are called in a view. Nothing here
// decides what a view contains, or depends on the order in which modules were found.

package main

import (
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// nameItems names each item LABEL_NAME. No item gets a name that several items would
// have, or that another item would have with its module's bare name instead of the label.
// An item that would have such a name gets a hash suffix, and so does an item whose name
// already ends like a hash suffix: no module can choose another module's name. nameItems
// returns, for each name, the items that would have it. If an item has it, it is the only one.
func nameItems(items []*Item) map[string][]*Item {
	claimants := make(map[string][]*Item)
	for _, item := range items {
		own := "_" + plainName(item.ownName)
		item.Name = item.Label + own
		claimants[item.Name] = append(claimants[item.Name], item)
		if bare := item.Module.Name + own; bare != item.Name {
			claimants[bare] = append(claimants[bare], item)
		}
	}
	for _, item := range items {
		if len(claimants[item.Name]) > 1 || hashedName.MatchString(item.Name) {
			item.Name += "_" + hashOf(item.Module.Name, item.Label, item.ownName)[:12]
			claimants[item.Name] = []*Item{item} // no other item keeps a name with a hash
		}
	}
	return claimants
}

// hashedName matches a name with a hash suffix.
var hashedName = regexp.MustCompile(`_[0-9a-f]{12}$`)

// notPlain matches characters that tool names must not contain.
var notPlain = regexp.MustCompile(`[^A-Za-z0-9_-]`)

// plainName replaces characters that tool names must not contain.
func plainName(s string) string { return notPlain.ReplaceAllString(s, "_") }

// labels returns the labels of a view's modules. A module's label is the shortest of its
// possible labels that no other module with the same name could have. If there is none,
// the label ends with a hash of the path below the scope, which discloses nothing of the
// folders above.
func labels(modules []*Module, scope Scope) []string {
	shared := make(map[[2]string]int) // how many modules of a name could have a label
	for _, m := range modules {
		for _, label := range possibleLabels(m, scope) {
			shared[[2]string{m.Name, label}]++
		}
	}
	list := make([]string, len(modules))
	for i, m := range modules {
		list[i] = m.Name + "-" + hashOf(strings.TrimPrefix(m.Source, scope.dir))[:12]
		for _, label := range possibleLabels(m, scope) {
			if shared[[2]string{m.Name, label}] == 1 {
				list[i] = label
				break
			}
		}
	}
	return list
}

// possibleLabels returns a module's name alone, with one parent folder before it, with
// two, and so on, and then each of these with the file's ending. The topmost folder is
// the scope's own or, in the view of everything, the hosted DIR.
func possibleLabels(m *Module, scope Scope) []string {
	list := []string{m.Name}
	top, path := scope.dir, m.Source
	if scope.all {
		top, path = m.Root, m.Path
	}
	below, _ := filepath.Rel(filepath.Dir(top), filepath.Dir(path)) // no error: it is below
	for _, folder := range slices.Backward(strings.Split(below, "/")) {
		list = append(list, plainName(folder)+"-"+list[len(list)-1])
	}
	for _, label := range list {
		list = append(list, label+"-"+plainName(strings.TrimPrefix(filepath.Ext(m.Source), ".")))
	}
	return list
}

// itemNames returns the names of items, for people.
func itemNames(items []*Item) string {
	var names []string
	for _, i := range items {
		if i.Name != "" { // of a tool
			names = append(names, i.Name)
		}
	}
	return strings.Join(names, ", ")
}
