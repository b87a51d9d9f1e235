// Reports: what is told of modules, claims and results, as tables and lines for
// people, and as JSON for scripts. It prints what it is given and decides
// nothing.

package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
)

// defaultURL is where a daemon is that was not told otherwise.
const defaultURL = "http://127.0.0.1:3000/"

// moduleLine is a module, or a file that is none, as usher modules shows it.
type moduleLine struct {
	Name     string     `json:"name,omitempty"`
	Label    string     `json:"label,omitempty"` // in tool names
	Kind     Kind       `json:"kind,omitempty"`
	Path     string     `json:"path"`
	About    string     `json:"about,omitempty"`
	Hosted   bool       `json:"hosted"`
	Hidden   string     `json:"hidden,omitempty"` // why a session of the scope does not see it
	Tools    []toolLine `json:"tools"`
	Error    string     `json:"error,omitempty"` // why it, or its newest version, is not hosted
	Problems []string   `json:"problems,omitempty"`
	pending  bool       // it is being looked at
}

type toolLine struct {
	Name    string `json:"name"`
	Method  string `json:"method"`
	About   string `json:"about,omitempty"`
	Webhook string `json:"webhook,omitempty"` // its URL
}

// moduleReport is all modules as they look in a view through scope.
// url is where the daemon is, for webhooks, whose paths are those of the whole
// workspace in any scope.
func moduleReport(r *Registry, scope Scope, url string, getenv func(string) string) []moduleLine {
	view, whole := r.Source().View(scope), r.Source().View(scopeAll())
	names := make(map[*Module]string)
	for _, m := range view.Modules {
		names[m.Module] = m.Label
	}
	status, problems := r.Report()
	list := []moduleLine{}
	for _, s := range status {
		line := moduleLine{Name: s.Name, Kind: s.Kind, Path: s.Path, Tools: []toolLine{}, pending: s.Pending}
		if s.Err != nil {
			line.Error = explain(s.Err)
		}
		if !scope.Contains(s.Source) {
			line.Hidden = "its file is not in " + scope.dir
			if s.Path != s.Source {
				line.Hidden = fmt.Sprintf("it is a link to %s, which is not in %s", s.Source, scope.dir)
			}
			line.Error = ""
		} else if s.Module != nil {
			line.Hosted, line.Label, line.About, line.Problems = true, names[s.Module], s.Module.About, s.Module.Problems
			line.Problems = slices.Clone(line.Problems)
			for i, t := range view.ToolsOf(s.Module) {
				tool := toolLine{Name: t.Name, Method: t.Method.Name, About: firstSentence(t.Method.description)}
				hook := whole.ToolsOf(s.Module)[i]
				if path := hook.HookPath(); path != "" {
					tool.Webhook = strings.TrimSuffix(url, "/") + webhookPrefix + path
				}
				line.Tools = append(line.Tools, tool)
				line.Problems = append(line.Problems, toolProblems(whole, hook, t.Name, getenv)...)
			}
		}
		list = append(list, line)
	}
	for _, p := range problems {
		list = append(list, moduleLine{Path: p.Path, Tools: []toolLine{}, Error: p.Text})
	}
	return list
}

// toolProblems is what the author of a tool should know. name is what it is
// called in the view shown.
func toolProblems(whole *View, t *Tool, name string, getenv func(string) string) []string {
	var list []string
	if len(name) > maxToolName {
		list = append(list, name+": with the prefix mcp__usher__ the name is over 64 characters, which some clients refuse")
	}
	if t.HookPath() == "" {
		return list
	}
	if _, others := whole.Hook(t.HookPath()); len(others) > 0 {
		list = append(list, fmt.Sprintf("%s: its webhook is not served, as several have the path %s: %s", t.Method.Name, t.HookPath(), strings.Join(others, ", ")))
	}
	if rule := t.Method.Signature; rule != nil && rule.Err == nil {
		if err := rule.ready(getenv(rule.Var)); err != nil {
			list = append(list, fmt.Sprintf("%s: %v, so its webhook answers 503", t.Method.Name, err))
		}
	}
	return list
}

func printModules(w io.Writer, list []moduleLine) {
	if len(list) == 0 {
		fmt.Fprintln(w, "No modules here. Make one: usher new hello.usher.go")
		return
	}
	hidden := slices.DeleteFunc(slices.Clone(list), func(m moduleLine) bool { return m.Hidden == "" })
	for i, m := range slices.DeleteFunc(list, func(m moduleLine) bool { return m.Hidden != "" }) {
		if i > 0 {
			fmt.Fprintln(w)
		}
		printModule(w, m)
	}
	if len(hidden) == 0 {
		return
	}
	fmt.Fprintln(w, "\nHidden from this scope:")
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	for _, m := range hidden {
		fmt.Fprintf(t, "  %s\t(%s)\t%s\t%s\n", m.Name, m.Kind, m.Path, m.Hidden)
	}
	t.Flush()
}

func printModule(w io.Writer, m moduleLine) {
	switch {
	case m.Name == "":
		fmt.Fprintln(w, m.Path)
	case m.Label != "" && m.Label != m.Name:
		fmt.Fprintf(w, "%s (%s, as %s)  %s\n", m.Name, m.Kind, m.Label, m.Path)
	default:
		fmt.Fprintf(w, "%s (%s)  %s\n", m.Name, m.Kind, m.Path)
	}
	if m.About != "" {
		fmt.Fprintf(w, "  %s\n", m.About)
	}
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	for _, tool := range m.Tools {
		fmt.Fprintf(t, "    %s\t%s\n", tool.Name, tool.About)
	}
	t.Flush()
	for _, tool := range m.Tools {
		if tool.Webhook != "" {
			fmt.Fprintf(w, "    webhook: curl %s -H 'Content-Type: application/json' -d '{}'\n", tool.Webhook)
		}
	}
	for _, p := range m.Problems {
		fmt.Fprintf(w, "  note: %s\n", p)
	}
	if m.Error != "" {
		what := "not hosted"
		if m.Hosted {
			what = "its newest version is not hosted"
		}
		fmt.Fprintf(w, "  %s: %s\n", what, strings.ReplaceAll(m.Error, "\n", "\n      "))
	}
}

// printClaim prints a new claim and how to use it. url is where the daemon is,
// "" when none runs.
func printClaim(w io.Writer, c Claim, url string) {
	fmt.Fprintf(w, "Claim code: %s\nScope:      %s\nExpires in: %s\n", c.Code.Dashed(), plain(c.ScopeDir), formatLeft(time.Until(c.ExpiresAt)))
	if c.Label != "" {
		fmt.Fprintf(w, "Label:      %s\n", plain(c.Label))
	}
	running := url != ""
	url = cmp.Or(url, defaultURL)
	fmt.Fprintf(w, "\nSet this header on the MCP client's connection:\n  %s: %s\n", claimHeader, c.Code.Reveal())
	fmt.Fprintf(w, "\nFor example:\n  claude mcp add --transport http usher %s --header \"%s: %s\"\n", url, claimHeader, c.Code.Reveal())
	fmt.Fprintf(w, "A client that can't set headers: %s?claim=%s\n", url, c.Code.Reveal())
	if !running {
		fmt.Fprintln(w, "\nNo usher serves this base folder at the moment: start one with usher serve.")
	}
}

// formatLeft is a duration for people, in its two largest units.
func formatLeft(d time.Duration) string {
	d = max(d, 0).Truncate(time.Second)
	days, hours, minutes := int(d/(24*time.Hour)), int(d/time.Hour)%24, int(d/time.Minute)%60
	switch {
	case days > 0:
		return fmt.Sprintf("%dd %dh", days, hours)
	case hours > 0:
		return fmt.Sprintf("%dh %dm", hours, minutes)
	case minutes > 0:
		return fmt.Sprintf("%dm %ds", minutes, int(d/time.Second)%60)
	}
	return fmt.Sprintf("%ds", int(d/time.Second))
}

func printClaims(w io.Writer, list []Claim) {
	if len(list) == 0 {
		fmt.Fprintln(w, "No claims hold. Make one: usher claim -scope DIR")
		return
	}
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintln(t, "CODE\tSCOPE\tEXPIRES IN\tCREATED\tLABEL")
	for _, c := range list {
		created := "-"
		if !c.CreatedAt.IsZero() {
			created = c.CreatedAt.Local().Format("2006-01-02 15:04")
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\n", c.Code.Dashed(), plain(c.ScopeDir), formatLeft(time.Until(c.ExpiresAt)), created, plain(c.Label))
	}
	t.Flush()
}

// plain is a text that was written by others, quoted where it could play with
// the terminal or break a table.
func plain(s string) string {
	if strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return strconv.Quote(s)
	}
	return s
}

// noteText is a notification for people.
func noteText(method string, params json.RawMessage) string {
	if method != "notifications/progress" {
		return fmt.Sprintf("%s: %s", stringField(params, "level"), field(params, "data"))
	}
	text := string(field(params, "progress"))
	if total := field(params, "total"); total != nil {
		text += " of " + string(total)
	}
	if message := stringField(params, "message"); message != "" {
		text += ": " + message
	}
	return text
}
