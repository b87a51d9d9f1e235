// Approval (modules.go): usher runs no module that is written into the workspace after
// the start, until the owner approves it.

package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"usher/internal/mcptest"
)

// checkExists checks whether there is a file.
func checkExists(t *testing.T, path string, want bool) {
	t.Helper()
	_, err := os.Lstat(path)
	check(t, path+" exists", err == nil, want)
}

// With -require-claim, a module that is written or changed by a tool does not run before it
// is approved, whatever its kind.
func TestNewModuleIsRefused(t *testing.T) {
	needLanguage(t, ".sh")
	long(t)
	dir, base := t.TempDir(), t.TempDir()
	script := func(says string) string { return "# Says it.\nsay() { echo " + says + "; }\n" }
	source := func(says string) string {
		return goHead + "func Say() string { return \"" + says + "\" }\n"
	}
	copyFiles(t, "testdata/shell/put", dir, "tool.usher.sh")
	write(t, dir+"/sub/note", "")
	writeFake(t, dir+"/file.usher", "good tools=x")
	write(t, dir+"/run.usher.sh", script("old"))
	write(t, dir+"/time.usher.sh", script("old"))
	write(t, dir+"/idle.usher.sh", script("old"))
	write(t, dir+"/built.usher.go", source("old"))
	exe := testBinary(t)
	server := func(tools string) string {
		return fmt.Sprintf(`{"mcpServers":{"srv":{"command":%q,"env":{%q:"good `+
			`tools=%s"}}}}`, exe, runAsFake, tools)
	}
	write(t, dir+"/.mcp.json", server("x"))
	old := []string{"built_say", "file_x", "idle_say", "run_say", "srv_x", "time_say",
		"tool_back", "tool_put"}
	d := daemonOptions{base: base, ownProcess: true}.start(t, dir, "-require-claim",
		"-idle", "1ms")
	c, _ := openSession(t, d.URL, inHeader(newCode(t, base, dir)))
	c.AwaitTools(old...)
	says := func(tool, want string) {
		t.Helper()
		a := c.Call(tool, "")
		check(t, tool, strings.TrimSpace(a.Text()), want)
	}
	says("run_say", "old")

	ran := t.TempDir() + "/ran"
	evil := "#!/bin/sh\ntouch " + ran + "\n"
	put := func(tool, path, text, mode string) {
		t.Helper()
		a := c.Call("tool_"+tool,
			fmt.Sprintf(`{"path":%q,"text":%q,"mode":%q}`, path, text, mode))
		check(t, "writing "+path, a.Failure(), "")
	}
	entry := `{"mcpServers":{"entry":{"command":"sh","args":["-c","touch ` + ran + `"]}}}`
	changed := errUnapproved.Error()
	written := []struct{ module, path, text, mode string }{
		{"evil kind=shell", "evil.usher.sh", evil + script("new"), "644"},
		{"evil kind=python", "evil.usher.py", "open('" + ran + "', 'w')\n", "644"},
		{"evil kind=executable", "evil.usher", evil, "755"},
		{"entry kind=.mcp.json", "sub/.mcp.json", entry, "644"},
		{"run kind=shell", "run.usher.sh", evil + script("new"), "644"},
		{"idle kind=shell", "idle.usher.sh", evil + script("new"), "644"},
		{"file kind=executable", "file.usher", evil, "755"},
		{"built kind=go", "built.usher.go", source("new"), "644"},
		{"srv kind=.mcp.json", ".mcp.json", server("x,y"), "644"},
	}
	for _, w := range written {
		put("put", w.path, w.text, w.mode)
	}
	put("back", "time.usher.sh", script("new"), "")
	for _, w := range written {
		d.awaitLog(t, fmt.Sprintf(`"module failed" module=%s file=%s why=%q`, w.module, w.path, changed))
	}
	for _, tool := range []string{"run_say", "idle_say", "time_say"} {
		says(tool, changed)
	}
	for _, tool := range []string{"file_x", "built_say", "srv_x"} {
		module, _, _ := strings.Cut(tool, "_")
		await(t, "the end of a running process", func() bool {
			return c.Call(tool, "").Text() != "old"
		})
		for range 3 { // a refusal is no crash, so no call has to wait
			says(tool, fmt.Sprintf("module %q can't start: %s", module, changed))
		}
	}
	refused := strings.ReplaceAll(d.Log.String(), "file=time.usher.sh why=", "") // few scans find its change
	check(t, "lines of refused modules in the log", strings.Count(refused, fmt.Sprintf("why=%q", changed)), 9)
	c.AwaitTools(old...)
	await(t, "the modules that are not hosted", func() bool {
		out, _, _ := usher(t, "modules", "-base", base, dir)
		return strings.Count(out, "not hosted: "+changed) >= 9
	})
	checkContains(t, "usher call", callSays(t, base, dir, "evil", "say"),
		"evil.usher.py is not hosted: "+changed)

	write(t, dir+"/idle.usher.sh", script("old"))
	await(t, "the module with its old text", func() bool {
		return strings.TrimSpace(c.Call("idle_say", "").Text()) == "old"
	})

	d.stop(t) // a restart approves nothing
	d = daemonOptions{base: base, ownProcess: true}.start(t, dir, "-require-claim")
	c, _ = openSession(t, d.URL, inHeader(newCode(t, base, dir)))
	c.AwaitTools("idle_say", "tool_back", "tool_put")
	checkExists(t, ran, false)
	wantUsher(t, 0, "Approved run (shell)  "+dir+"/run", "approve", "-base", base, dir+
		"/run.usher.sh")
	c.AwaitTools("idle_say", "run_say", "tool_back", "tool_put")
	says("run_say", "new")
	for _, file := range []string{"file.usher", "evil.usher", "evil.usher.py", "sub/.mcp.json"} {
		must(t, os.Remove(dir+"/"+file))
	}
	out := wantUsher(t, 0, "", "approve", "-base", base)
	check(t, "approved modules", strings.Count(out, "Approved "), 4)
	c.AwaitTools("built_say", "evil_say", "idle_say", "run_say", "srv_x", "srv_y",
		"time_say", "tool_back", "tool_put")
	for _, tool := range []string{"time_say", "evil_say", "built_say"} {
		says(tool, "new")
	}
	d.stop(t)
	must(t, os.Remove(base+"/.data/"+approvedName))
	d = daemonOptions{base: base}.start(t, dir, "-require-claim")
	d.awaitLog(t, `usher approve" below=`+dir+" modules=7\n")
}

// approveAll approves the modules below the folders, as the first start does, and returns how many were new.
func approveAll(t *testing.T, data string, dirs ...string) int {
	t.Helper()
	news, err := approve(t.Context(), data, dirs, dirs, dirs)
	must(t, err)
	return len(news)
}

// approvingRegistry returns a registry of the folders, whose modules need an approval.
func approvingRegistry(t *testing.T, data string, dirs ...string) *Registry {
	t.Helper()
	return registryOf(t, registryConfig{
		Roots:    dirs,
		Approved: data + "/" + approvedName,
		Served:   dirs,
	})
}

// refusedModules returns the names of the modules that a start with the folders refuses.
func refusedModules(t *testing.T, data string, dirs ...string) (names []string) {
	t.Helper()
	for _, s := range approvingRegistry(t, data, dirs...).catalog.Load().modules {
		if errors.Is(s.Err, errUnapproved) {
			names = append(names, s.Name)
		}
	}
	return names
}

// A module below two served DIRs needs the record of both.
func TestApprovalCountsUnderItsDIR(t *testing.T) {
	t.Parallel()
	dir, data := tempDir(t), t.TempDir()
	sub := dir + "/sub"
	module := func(text string) { write(t, sub+"/m.usher.py", text) }
	module("# old")
	check(t, "approved under DIR", approveAll(t, data, dir), 1)
	check(t, "refused under both", refusedModules(t, data, dir, sub), []string{"m"})
	check(t, "approved under both", approveAll(t, data, dir, sub), 1)
	check(t, "refused under both then", refusedModules(t, data, dir, sub), nil)
	module("# new")
	check(t, "approved under DIR again", approveAll(t, data, dir), 1)
	check(t, "refused under the other", refusedModules(t, data, sub), []string{"m"})
	module("# old")
	check(t, "refused with the old text", refusedModules(t, data, dir, sub), []string{"m"})
	check(t, "not refused by the other", refusedModules(t, data, sub), nil)

	// A linked file is below the DIR of the link and that of the file.
	other := tempDir(t)
	must(t, os.Symlink(sub+"/m.usher.py", other+"/m.usher.py"))
	check(t, "approved by its link", approveAll(t, data, other), 1)
	check(t, "refused by its link", refusedModules(t, data, other, dir), []string{"m"})

	// A DIR that is a link counts as well.
	must(t, os.Symlink(sub, other+"/link"))
	check(t, "approved under DIR", approveAll(t, data, dir), 1)
	check(t, "refused by a linked DIR", refusedModules(t, data, dir, other+"/link"), []string{"m"})
}

// A broken record approves nothing, and the owner reads that it is broken.
func TestBrokenRecordApprovesNothing(t *testing.T) {
	t.Parallel()
	dir, data := tempDir(t), t.TempDir()+"/.data"
	write(t, dir+"/m.usher.py", "")
	for _, broken := range []string{"{", "", "null", "[]", `{"` + dir + `":null}`, `{"/other":null}`} {
		write(t, data+"/"+approvedName, broken)
		err := approvingRegistry(t, data, dir).catalog.Load().modules[0].Err
		check(t, broken+" approves nothing", errors.Is(err, errUnapproved), true)
		checkContains(t, broken, err.Error(), "run usher approve, which says why approved.json is broken")
		out, errs, status := usher(t, "serve", "-base", data+"/..", "-require-claim", dir)
		check(t, "serve with "+broken+": "+out+errs, status, 1)
		checkOmits(t, "the reason", errs, "nil")
	}
}

// A virtual environment that appears beside an approved module does not run before it is
// approved.
func TestNewPythonIsRefused(t *testing.T) {
	needLanguage(t, ".py")
	long(t)
	dir, base, ran := tempDir(t), t.TempDir(), t.TempDir()+"/ran"
	write(t, dir+"/m.usher.py", "def say(): return 'said'\n")
	d := daemonOptions{base: base}.start(t, dir, "-require-claim", "-idle", "1ms") // ends the running process
	c, _ := openSession(t, d.URL, inHeader(newCode(t, base, dir)))
	c.AwaitTools("m_say")
	python := dir + "/.venv/bin/python"
	write(t, python+".new", "#!/bin/sh\ntouch '"+ran+"'\nexec python3 \"$@\"\n")
	must(t, os.Rename(python+".new", python))
	c.AwaitText("m_say", "", `module "m" can't start: `+errUnapproved.Error())
	d.awaitLog(t,
		fmt.Sprintf(`"module failed" module=m kind=python file=m.usher.py why=%q`,
			errUnapproved))
	await(t, "usher modules", func() bool {
		out, _, _ := usher(t, "modules", "-base", base, dir)
		return strings.Contains(out, "not hosted: "+errUnapproved.Error())
	})
	checkExists(t, ran, false)
	wantUsher(t, 0, "Approved m (python)", "approve", "-base", base)
	c.AwaitText("m_say", "", "said")
	checkExists(t, ran, true)
}

// Approval covers the interpreter of a Python module: its path, its target and pyvenv.cfg.
func TestInterpreterIsHashed(t *testing.T) {
	dir, outside, data := tempDir(t), tempDir(t), t.TempDir()
	t.Setenv("PATH", dir+"/.bin:"+os.Getenv("PATH"))
	python, config := dir+"/.venv/bin/python", dir+"/.venv/pyvenv.cfg"
	write(t, dir+"/sub/m.usher.py", "# A module.\n")
	write(t, dir+"/.bin/own", "1")
	write(t, outside+"/system", "1")
	write(t, outside+"/other", "1")
	link := func(target string) {
		os.Remove(python)
		must(t, os.Symlink(target, python))
	}
	for _, step := range []struct {
		what    string
		change  func()
		refused []string
	}{
		{"nothing", func() {}, nil},
		{"a new interpreter", func() { write(t, python, "1") }, []string{"m"}},
		{"a link", func() { link(outside + "/system") }, []string{"m"}},
		{"another target", func() { link(outside + "/other") }, []string{"m"}},
		{"the content of a target outside", func() { write(t, outside+"/other", "2") }, nil},
		{"a target inside", func() { link(dir + "/.bin/own") }, []string{"m"}},
		{"the content of a target inside", func() {
			write(t, dir+"/.bin/own", "2")
		}, []string{"m"}},
		{"a new pyvenv.cfg", func() { write(t, config, "home = /a") }, []string{"m"}},
		{"a nearer interpreter", func() {
			write(t, dir+"/sub/.venv/bin/python", "1")
		}, []string{"m"}},
		{"no virtual environment", func() {
			must(t, errors.Join(os.RemoveAll(dir+"/.venv"), os.RemoveAll(dir+"/sub/.venv")))
		}, []string{"m"}},
	} {
		approveAll(t, data, dir)
		r := approvingRegistry(t, data, dir)
		for _, m := range r.catalog.Load().modules {
			_, err := r.checkApproved(m.source)
			check(t, "the check before a start, before a change of "+step.what, err, nil)
		}
		step.change()
		check(t, "refused after a change of "+step.what, refusedModules(t, data, dir),
			step.refused)
	}
}

// A link that runs an approved file as another kind of module is not approved.
func TestApprovalIsForOneKind(t *testing.T) {
	t.Parallel()
	dir, data := t.TempDir(), t.TempDir()
	write(t, dir+"/z/a.usher.sh", "#!/bin/sh\n# Says it.\nsay() { :; }\n")
	check(t, "approved modules", approveAll(t, data, dir), 1)
	check(t, "the file is refused", refusedModules(t, data, dir), nil)
	must(t, errors.Join(os.Mkdir(dir+"/b", 0o755),
		os.Symlink("../z/a.usher.sh", dir+"/b/c.usher")))
	check(t, "the link is refused", refusedModules(t, data, dir), []string{"c"})
}

// A DIR without a record takes over that of another path to the same folder.
func TestRecordIsAdopted(t *testing.T) {
	dir := t.TempDir()
	must(t, errors.Join(os.Mkdir(dir+"/z", 0o755), os.Symlink("z", dir+"/a")))
	list := approvals{dir + "/a": {dir + "/a/m.usher#m (executable)": "x", "/other": "y"}}
	record, known := list.adopt(dir + "/z")
	check(t, "a record of the folder is known", known, true)
	want := map[string]string{dir + "/z/m.usher#m (executable)": "x", "/other": "y"}
	check(t, "the copy of it", record, want)
	record, known = list.adopt(dir)
	check(t, "a record of another folder is known", known, false)
	check(t, "a new record", record, map[string]string{})
}

// A link can't take the place of the module that it leads to.
func TestLinkLeavesItsTargetAlone(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, dir+"/z/a.usher.sh", "#!/bin/sh\n# Says it.\nsay() { :; }\n")
	must(t, errors.Join(os.Mkdir(dir+"/b", 0o755),
		os.Symlink("../z/a.usher.sh", dir+"/b/a.usher.sh"),
		os.Symlink("../z/a.usher.sh", dir+"/b/a.usher.py")))
	check(t, "modules", sortedKeys(scanFolders([]string{dir}, nil).sources),
		[]string{dir + "/z/a.usher.sh#a"})
	// With several DIRs, a link belongs to the one that it was found below.
	other := t.TempDir()
	must(t, os.Symlink(dir+"/z/a.usher.sh", other+"/far.usher.sh"))
	found := scanFolders([]string{other, t.TempDir()}, nil).sources[other+"/far.usher.sh#far"]
	check(t, "the DIR of a link", found.Root, other)
}

// Earlier versions recorded a module under the real path of its file.
func TestEarlierRecordsCount(t *testing.T) {
	t.Parallel()
	s := source{
		Name:    "m",
		Kind:    kindShell,
		Path:    "/w/m.usher.sh",
		Source:  "/v/m.usher.sh",
		Root:    "/w",
		Content: "c",
	}
	list := approvals{"/w": {"/v/m.usher.sh#m (shell)": "c"}}
	check(t, "approved", list.approves(s, "/w", []string{"/w"}), true)
}

// The settings of a virtual environment count, also outside the hosted DIRs; its Python does not there.
func TestEnvironmentOutsideIsHashed(t *testing.T) {
	t.Parallel()
	dir, outside := tempDir(t), tempDir(t)
	write(t, dir+"/m.usher.py", "")
	content := func(python, settings string) string {
		write(t, outside+"/python", python)
		write(t, outside+"/pyvenv.cfg", settings)
		files := []string{outside + "/python", outside + "/pyvenv.cfg"}
		s := source{Kind: kindPython, Source: dir + "/m.usher.py", Python: files}
		must(t, s.readContent([]string{dir}))
		return s.Content
	}
	before := content("a", "b")
	check(t, "a new Python counts", content("other", "b") != before, false)
	check(t, "new settings count", content("a", "other") != before, true)
}

// Without approvals too, a module starts only if its path leads to the file that it was found as.
func TestMovedFileDoesNotStart(t *testing.T) {
	t.Parallel()
	dir := tempDir(t)
	r := registryOf(t, registryConfig{})
	s := source{Name: "m", Kind: kindShell, Path: dir + "/m.usher.sh", Source: dir + "/v1/m.usher.sh"}
	write(t, s.Source, "one")
	write(t, dir+"/v2/m.usher.sh", "one")
	for _, tt := range []struct {
		what, target string
		want         error
	}{
		{"nowhere", "v3/m.usher.sh", errMoved},
		{"to another file", "v2/m.usher.sh", errMoved},
		{"to its file", "v1/m.usher.sh", nil},
	} {
		os.Remove(s.Path)
		must(t, os.Symlink(tt.target, s.Path))
		_, err := r.checkApproved(s)
		check(t, "error, if the path leads "+tt.what, err, tt.want)
	}
}

// A module that comes later is hosted with -watch, which is the default without
// -require-claim.
func TestWatchHostsLaterModules(t *testing.T) {
	long(t)
	for flags, want := range map[string]bool{
		"": true, "-watch=false": false, "-require-claim -watch": true, "-require-claim": false,
	} {
		t.Run(flags, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			writeFake(t, dir+"/a.usher", "good tools=x")
			d := startDaemon(t, dir, strings.Fields(flags)...)
			c, _ := openSession(t, d.URL, inHeader(newCode(t, d.Base, dir)))
			c.AwaitTools("a_x")
			writeFake(t, dir+"/b.usher", "good tools=x")
			line := `"module failed" module=b`
			if want {
				line = `"module added" module=b`
			}
			d.awaitLog(t, line)
			if want {
				c.AwaitTools("a_x", "b_x")
			} else {
				c.AwaitTools("a_x")
			}
		})
	}
}

// The program of a Go module whose file changed while it was built does not run.
func TestBuildChecksApproval(t *testing.T) {
	alone(t) // it sets a variable
	dir, data, bin := tempDir(t), t.TempDir(), t.TempDir()
	module, ran := dir+"/a.usher.go", bin+"/ran"
	write(t, module, goHead+"import \"os\"\n\nfunc A() { os.Exit(1) }\n")
	approveAll(t, data, dir)
	program, err := exec.LookPath("go")
	must(t, err)
	write(t, bin+"/go", `#!/bin/sh
[ "$1" = build ] && echo 'func init() { os.Create("`+ran+`") }' >>'`+module+`'
exec '`+program+`' "$@"
`)
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	r := registryOf(t, registryConfig{
		Roots:    []string{dir},
		Approved: data + "/" + approvedName,
		Served:   []string{dir},
	})
	states := r.catalog.Load().modules
	check(t, "the module at first", states[0].Err, nil)
	r.WaitAll(t.Context(), patience, scopeAll())
	states = r.catalog.Load().modules
	check(t, "the module after the build", states[0].Err, errUnapproved)
	checkExists(t, ran, false)
}

// An approval is for the path in the served folder. A link that is turned to equal bytes keeps it;
// other bytes, and a folder outside of the served ones, need a new one. No turned link widens a
// scope.
func TestTurnedLinkNeedsApproval(t *testing.T) {
	needLanguage(t, ".sh")
	long(t)
	script := func(says string) string { return "# Says it.\nsay() { echo '" + says + "'; }\n" }
	parent := tempDir(t)
	dir, outside := parent+"/dir", parent+"/outside"
	for path, text := range map[string]string{
		dir + "/..1/m.usher.sh":    script("old"),
		dir + "/..2/m.usher.sh":    script("old"),
		dir + "/..3/m.usher.sh":    script("new"),
		outside + "/m.usher.sh":    script("old"),
		dir + "/secret/other.sh":   script("secret"),
		dir + "/secret/same.sh":    script("own"),
		dir + "/proj/own.usher.sh": script("own"),
	} {
		write(t, path, text)
	}
	turn := func(path, target string) {
		t.Helper()
		must(t, os.Symlink(target, path+".new"))
		must(t, os.Rename(path+".new", path))
	}
	turn(dir+"/m.usher.sh", "..1/m.usher.sh")
	turn(dir+"/proj/link.usher.sh", "own.usher.sh")
	served := parent + "/current"
	turn(served, "dir")
	base := t.TempDir()
	d := daemonOptions{base: base}.start(t, served, "-require-claim")
	d.awaitReady(t)
	c, _ := openSession(t, d.URL, inHeader(newCode(t, base, dir)))
	says := func(what, want string) {
		t.Helper()
		await(t, what, func() bool {
			return strings.Contains(c.Call("m_say", "").Body, want)
		})
	}
	says("the approved file", "old")
	for _, step := range []struct{ target, want string }{
		{"..2/m.usher.sh", "old"},
		{"..3/m.usher.sh", errUnapproved.Error()},
		{"..1/m.usher.sh", "old"},
		{outside + "/m.usher.sh", errUnapproved.Error()},
		{"..2/m.usher.sh", "old"},
	} {
		turn(dir+"/m.usher.sh", step.target)
		says(step.target, step.want)
	}

	proj, _ := openSession(t, d.URL, inHeader(newCode(t, base, dir+"/proj")))
	proj.AwaitTools("link_say", "own_say")
	for _, step := range []struct{ target, want string }{
		{"../secret/other.sh", errUnapproved.Error()},
		{"../secret/same.sh", `unknown tool "link_say"`},
	} {
		turn(dir+"/proj/link.usher.sh", step.target)
		await(t, step.target+" to be refused", func() bool {
			a := proj.Call("link_say", "")
			checkOmits(t, "a link out of the scope", a.Body, "secret")
			return strings.Contains(a.Failure(), step.want)
		})
	}

	d.stop(t)
	d = daemonOptions{base: base}.start(t, dir, "-require-claim")
	d.awaitReady(t)
	checkOmits(t, "a start by the real path", d.Log.String(), "approved all modules")
	d.stop(t)
	turn(served, "outside")
	d = daemonOptions{base: base}.start(t, served, "-require-claim")
	d.awaitReady(t)
	checkOmits(t, "a start after the folder was exchanged", d.Log.String(), "approved all modules")
	d.stop(t)
	write(t, dir+"/planted.usher.sh", script("planted"))
	d = daemonOptions{base: base}.start(t, dir, "-require-claim")
	d.awaitReady(t)
	checkOmits(t, "a start after the link left it", d.Log.String(), "approved all modules")
	checkContains(t, "the log", d.Log.String(), "not approved")
}

// A served DIR that is a link can be turned while the daemon runs. The modules are those of the folder
// that it leads to, their approvals stay, and a scope is still a real folder.
func TestServedLinkIsTurned(t *testing.T) {
	needLanguage(t, ".sh")
	long(t)
	parent := tempDir(t)
	const approved = "# Says it.\nsay() { cat word; }\n"
	for folder, script := range map[string]string{"v1": approved, "v2": approved, "v3": approved + "#\n"} {
		write(t, parent+"/"+folder+"/m.usher.sh", script)
		write(t, parent+"/"+folder+"/word", "from "+folder)
	}
	served := parent + "/current"
	turn := func(target string) {
		t.Helper()
		must(t, os.Symlink(target, served+".new"))
		must(t, os.Rename(served+".new", served))
	}
	turn("v1")
	base := t.TempDir()
	d := daemonOptions{base: base}.start(t, served, "-require-claim")
	d.awaitReady(t)
	all, _ := openSession(t, d.URL, inHeader(newCode(t, base, parent)))
	first, _ := openSession(t, d.URL, inHeader(newCode(t, base, parent+"/v1")))
	says := func(what string, c *mcptest.Client, want string) {
		t.Helper()
		await(t, what, func() bool { return strings.Contains(c.Call("m_say", "").Body, want) })
	}
	says("the first folder", all, "from v1")
	says("a claim for it", first, "from v1")
	turn("v2")
	says("the second folder", all, "from v2")
	says("the claim for the first", first, "unknown tool")
	turn("v3")
	says("other bytes", all, errUnapproved.Error())
	output, _, _ := usher(t, "approve", "-base", base, served)
	checkContains(t, "the output of approve", output, "m.usher.sh")
	says("other bytes that are approved", all, "from v3")
	listed, _, _ := usher(t, "modules", "-base", base, served)
	checkContains(t, "the modules of the folder as it was given", listed, "m_say")
	listed, _, _ = usher(t, "modules", "-base", base, parent+"/v3")
	checkContains(t, "the modules of the real folder", listed, "m_say")
}
