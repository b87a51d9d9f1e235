// The report: the state of all modules, for usher modules, the banner and the page.

package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// moduleReport describes a module, or a file that is not hosted.
type moduleReport struct {
	Name     string       `json:"name,omitempty"`
	Label    string       `json:"label,omitempty"` // in tool names
	Kind     Kind         `json:"kind,omitempty"`
	Path     string       `json:"path"`
	About    string       `json:"about,omitempty"`
	State    string       `json:"state"`            // ready, building or failed
	Hidden   string       `json:"hidden,omitempty"` // why a session of the scope does not see it
	Tools    []toolReport `json:"tools"`
	Error    string       `json:"error,omitempty"` // why the module, or its newest version, is not hosted
	Problems []string     `json:"problems,omitempty"`
}

// toolReport is a tool of a moduleReport.
type toolReport struct {
	Name    string `json:"name"`
	Method  string `json:"method"`
	About   string `json:"about,omitempty"`
	Params  string `json:"parameters,omitempty"` // their names
	Webhook string `json:"webhook,omitempty"`    // its URL

	// For the example command that delivers to the URL: whether webhooks are off, whether
	// the sender must sign or needs the secret, and the arguments.
	Off, Signed, Secret bool   `json:"-"`
	Example             string `json:"-"`
}

// Summary returns the beginning of a list of the module's tools, for one line.
func (m moduleReport) Summary() string {
	var names []string
	for _, t := range m.Tools {
		names = append(names, t.Name)
	}
	text := cmp.Or(strings.Join(names, ", "), "no tools")
	if len(m.Problems) > 0 {
		text = "(see usher modules) " + text
	}
	return clipText(text, 47)
}

// report returns all modules, as the view of scope shows them, those in scope first. The
// webhooks are those of the view of hooks, with URLs of a daemon.
func (a *app) report(r *Registry, scope, hooks Scope, daemon daemonRecord) []moduleReport {
	list := []moduleReport{}
	states, catalog := r.Report()
	for _, s := range states {
		m := moduleReport{Name: s.Name, Kind: s.Kind, Path: s.Path, State: "ready", Tools: []toolReport{}}
		switch {
		case !scope.Contains(s.Source):
			m.Hidden = fmt.Sprintf("%s is not in %s", s.Source, scope.dir)
		case s.Module == nil:
			m.Problems = s.Problems
		default:
			a.addModule(&m, s.Module, catalog.View(scope), catalog.View(hooks), daemon)
		}
		switch {
		case s.Err != nil:
			m.State = "failed"
		case s.Pending:
			m.State = "building"
		}
		if s.Err != nil && m.Hidden == "" {
			m.Error = explain(s.Err)
		}
		list = append(list, m)
	}
	slices.SortStableFunc(list, func(m, n moduleReport) int { return strings.Compare(m.Hidden, n.Hidden) })
	return list
}

// addModule adds a hosted module, its tools in view and notes for its author to a line.
// whole is the view that has the paths of webhooks.
func (a *app) addModule(l *moduleReport, m *Module, view, whole *View, daemon daemonRecord) {
	l.About = m.About
	l.Problems = slices.Clone(m.Problems)
	note := func(format string, args ...any) {
		l.Problems = append(l.Problems, fmt.Sprintf(format, args...))
	}
	for i, t := range view.ToolsOf[m] {
		l.Label = t.Label
		hook := whole.ToolsOf[m][i]
		tool := toolReport{
			Name:    t.Name,
			Method:  t.Method.Name,
			About:   t.Method.About(),
			Params:  t.Method.Parameters(),
			Off:     daemon.WebhooksOff,
			Signed:  t.Method.Signature != "",
			Secret:  daemon.Secret || a.getenv(webhookSecretVar) != "",
			Example: strings.ReplaceAll(string(t.Method.exampleArguments()), "'", `\u0027`), // for shells
		}
		if path := whole.WebhookPath(hook); path != "" {
			tool.Webhook = cmp.Or(daemon.URL, defaultURL) + webhookPrefix[1:] + path
		}
		l.Tools = append(l.Tools, tool)
		if len(t.Name) > maxToolName {
			note("%s: some clients refuse this name: with mcp__usher__ it has over 64 characters", t.Name)
		}
		if _, others := whole.Hook(hook.HookPath); len(others) > 0 {
			note("%s: its webhook is not served, as several webhooks have the path %s: %s",
				tool.Method, hook.HookPath, strings.Join(others, ", "))
		}
		if _, err := parseSignature(t.Method.Signature, a.getenv); err != nil {
			note("%s: in this environment, its deliveries fail: %v", tool.Method, err)
		}
	}
	for _, raw := range m.Lists["resources"] {
		uri := stringField(raw, "uri")
		if view.items["resources"][uri] == nil {
			note("%s: this resource is not offered, as several modules have its URI", uri)
		}
	}
	if l.Label != "" && l.Label != m.Name {
		note("its name is not unique: its tools begin with %s", l.Label)
	}
}
