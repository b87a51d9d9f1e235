// The report: the state of all modules, for usher modules, the banner, the page for browsers,
// and the daemon's file report.json. This file also contains the record of the daemon, and
// the page.

package main

import (
	"bytes"
	"cmp"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"html/template"
	"net/http"
	"os"
	"slices"
	"strings"
)

// moduleReport describes a module, or a file that is not hosted.
type moduleReport struct {
	Name     string       `json:"name,omitempty"`
	Label    string       `json:"label,omitempty"` // in tool names
	Kind     Kind         `json:"kind,omitempty"`
	Path     string       `json:"path"`
	File     string       `json:"-"` // the path below the hosted DIR
	About    string       `json:"about,omitempty"`
	State    string       `json:"state"`            // ready, building or failed
	Hidden   string       `json:"hidden,omitempty"` // why a session of the scope does not see it
	Tools    []toolReport `json:"tools"`
	Error    string       `json:"error,omitempty"` // why the module, or its newest version, is not hosted
	Problems []string     `json:"problems,omitempty"`
	Names    string       `json:"-"` // of the tools
}

// toolReport is a tool of a moduleReport.
type toolReport struct {
	Name    string `json:"name"`
	Method  string `json:"method"`
	About   string `json:"about,omitempty"`
	Params  string `json:"parameters,omitempty"` // their names and types
	Webhook string `json:"webhook,omitempty"`    // its URL
	Signed  bool   `json:"signed,omitempty"`     // its sender must sign deliveries
}

// newToolReport returns a report of a tool's method and parameters. A question mark follows the
// name of a parameter that is optional.
func newToolReport(name string, m *Method) toolReport {
	s := m.schema
	var params []string
	for _, p := range m.definition.object("inputSchema").object("properties") {
		key := p.key
		check := argumentCheck{root: s, left: 100} // references that are followed
		kind := cmp.Or(clipText(check.wanted(s.property(key)), 60), "any")
		if !slices.Contains(s.Required, key) {
			key += "?"
		}
		params = append(params, key+": "+kind)
	}
	return toolReport{
		Name:   name,
		Method: m.Name,
		About:  firstSentence(m.description),
		Params: strings.Join(params, ", "),
	}
}

// report returns all modules, as the view of scope shows them, those in scope first. The
// webhooks, which are not scoped, have URLs of the daemon that runs.
func (a *app) report(r *Registry, scope Scope) []moduleReport {
	list := []moduleReport{}
	daemon := a.readDaemon()
	catalog := r.catalog.Load()
	for _, s := range catalog.modules {
		m := newModuleReport(s)
		switch {
		case !scope.Contains(s.Source):
			m.Hidden = fmt.Sprintf("%s is not in %s", s.Source, scope.dir)
		case scope.hides(s):
			m.Hidden = "all its methods are @unshared"
		default:
			a.addModule(&m, s, catalog.View(scope, nil), catalog.View(scopeAll(), nil), daemon.URL)
		}
		list = append(list, m)
	}
	slices.SortStableFunc(list, func(m, n moduleReport) int { return strings.Compare(m.Hidden, n.Hidden) })
	return list
}

// newModuleReport returns a report of a module's source and state.
func newModuleReport(s *Module) moduleReport {
	m := moduleReport{
		Name:  s.Name,
		Kind:  s.Kind,
		Path:  s.Path,
		File:  s.file(),
		State: "ready",
		Tools: []toolReport{},
	}
	switch {
	case s.Err != nil:
		m.State = "failed"
	case s.Pending:
		m.State = "building"
	}
	return m
}

// addModule adds a hosted module, its tools in view and notes for its author to l.
// unscoped is the view that has the paths of webhooks.
func (a *app) addModule(l *moduleReport, m *Module, view, unscoped *View, daemonURL string) {
	if m.Err != nil {
		l.Error = explain(m.Err)
	}
	l.About = m.About
	l.Names = itemNames(view.ToolsOf[m])
	l.Problems = slices.Concat(m.Notes, m.Problems)
	note := func(format string, args ...any) {
		l.Problems = append(l.Problems, fmt.Sprintf(format, args...))
	}
	hooks := make(map[*Method]*Item)
	for _, t := range unscoped.ToolsOf[m] {
		hooks[t.Method] = t
	}
	for _, t := range view.ToolsOf[m] {
		l.Label = t.Label
		hook := hooks[t.Method]
		tool := newToolReport(t.Name, t.Method)
		receiver, claimants := unscoped.Hook(hook.HookPath)
		if receiver == hook {
			root := cmp.Or(daemonURL, "http://127.0.0.1:3000/") // by default
			tool.Webhook = root + webhookPrefix[1:] + hook.HookPath
			tool.Signed = t.Method.Signature != ""
		}
		rule, err := parseSignature(t.Method.Signature, a.getenv)
		if err != nil {
			note("%s: deliveries fail: %v", tool.Method, err)
		} else if rule.quoted {
			note("%s: the key in %s has quotes, which count", tool.Method, rule.variable)
		}
		l.Tools = append(l.Tools, tool)
		if len(t.Name) > maxToolName {
			note("%s: some clients refuse it: with mcp__usher__, it has over 64 characters", t.Name)
		}
		if claimants != nil {
			note("%s: not served, as several webhooks have the path %s: %s",
				tool.Method, hook.HookPath, itemNames(claimants))
		}
	}
	for _, raw := range m.Lists["resources"] {
		uri := members(raw).text("uri")
		if len(view.items["resources"][uri]) > 1 {
			note("%s: not offered, as several modules have this URI", uri)
		}
	}
}

// In the data folder, lockName is the file that its daemon has locked as long as it runs,
// recordName the daemon's record, and reportName its report of the modules.
const (
	lockName   = "daemon.lock"
	recordName = "daemon.json"
	reportName = "report.json"
)

// daemonRecord describes a running daemon to the other commands.
type daemonRecord struct {
	URL             string   // the URL by which clients reach the daemon
	Roots           []string // the folders that it serves
	RequireClaim    bool
	RequireApproval bool
}

// readDaemon reads the record of the daemon that runs in the data folder. It returns the
// zero value if none runs. While a daemon starts, the record may be of an earlier one, or
// missing.
func (a *app) readDaemon() (d daemonRecord) {
	raw, _ := os.ReadFile(a.dataFile(recordName))
	// Without the lock, the daemon has ended.
	if json.Unmarshal(raw, &d) != nil || !isLocked(a.dataFile(lockName)) {
		return daemonRecord{}
	}
	return d
}

// readReport returns the modules below dirs from the report of a running daemon, or nil if no
// daemon serves each of dirs.
func (a *app) readReport(dirs []string) (list []moduleReport) {
	served := realPaths(a.readDaemon().Roots...)
	isElsewhere := func(dir string) bool { return !isBelow(dir, served) }
	raw, _ := os.ReadFile(a.dataFile(reportName))
	folders := realPaths(dirs...)
	if slices.ContainsFunc(folders, isElsewhere) || json.Unmarshal(raw, &list) != nil {
		return nil
	}
	isOther := func(m moduleReport) bool {
		return !isBelow(m.Path, dirs) && !isBelow(realPaths(m.Path)[0], folders)
	}
	return slices.DeleteFunc(list, isOther)
}

// pageContent is the content of the page for people.
type pageContent struct {
	Refused    string         // why no modules are shown, or ""
	Modules    []moduleReport // in the requester's own view; the page does not show their webhooks
	Index      bool           // a list of all tools comes first
	Coded      bool           // clients must present a code
	Code       string         // that the visitor has presented, or ""
	Left       string         // the time until the code's claim ends
	URL, Nonce string
}

// servePage shows a browser the modules in the requester's own view. The page counts for its
// principal until it is written.
func (d *daemon) servePage(x *reservation) error {
	url := cmp.Or(d.flags.publicURL, "http://"+x.req.Host+"/")
	x.refuse = func(_ *reservation, e *fault) {
		reason := strings.TrimSuffix(e.Message, ": "+howToPresent) // the page has a field for a code
		_ = d.writePage(x, e.status(), pageContent{Refused: reason, Coded: true, URL: url})
	}
	from, err := d.server.admitGET(x)
	if err != nil {
		return err
	}
	scope, err := from.principal.scope()
	if err := cmp.Or(from.badCode, err); err != nil {
		return httpErrorf(http.StatusBadRequest, "%v", err)
	}
	_ = x.countFor(from.principal) // counts nothing yet
	d.registry.WaitStart(x.req.Context(), scope)
	view := d.registry.View(scope, nil)
	p := pageContent{Index: len(view.Tools) >= 30, Coded: from.principal.exists(), URL: url}
	if p.Coded {
		p.Left = formatLeft(from.principal.ExpiresAt)
	}
	// The page contains a code only for a visitor who has presented this code. The id of a
	// session must not lead to the code.
	if code, _ := presentedCode(x.req); code == from.principal.Code {
		p.Code = code.Reveal()
	}
	for _, s := range view.Modules {
		m := newModuleReport(s.Module)
		d.app.addModule(&m, s.Module, view, view, "")
		if s.Err != nil {
			m.Error = s.Err.Error() // what clients may read of it
		}
		p.Modules = append(p.Modules, m)
	}
	return d.writePage(x, http.StatusOK, p)
}

// writePage writes the page. The page contains no script, and its inline style carries a CSP nonce. A
// page that refuses counts for nobody.
func (d *daemon) writePage(x *reservation, status int, p pageContent) error {
	p.Nonce = rand.Text()
	var page bytes.Buffer
	_ = template.Must(template.New("page").Parse(helpText("page.html"))).Execute(&page, p) // never fails
	if p.Refused == "" && x.grow(page.Len()) != nil {
		return errNoRoom
	}
	h := x.w.Header()
	h.Set("Content-Security-Policy", "default-src 'none'; style-src 'nonce-"+p.Nonce+"'; "+
		"img-src data:; base-uri 'none'; form-action 'self'; frame-ancestors 'none'")
	h.Set("Cache-Control", "no-store")
	h.Set("Referrer-Policy", "no-referrer")
	x.write(status, "text/html; charset=utf-8", page.Bytes())
	return nil
}
