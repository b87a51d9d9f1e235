// What was there at the start: with -require-claim nothing that is written into
// the workspace later is run, until someone says so.

package main

import (
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// frozenTool writes files, as a module does that a session is meant to have.
const frozenTool = `# Writes a file.
# @param {string} path where
# @param {string} text what
# @param {string} [mode] as chmod has it
put() { printf '%s' "$2" >"$1" && chmod "${3:-644}" "$1"; }

# Writes a file, and sets its time back.
# @param {string} path where
# @param {string} text what
back() { touch -r "$1" time && printf '%s' "$2" >"$1" && touch -r time "$1"; }
`

// TestDroppedModule has a session with a claim write modules by a tool that it may
// call: sources, a .mcp.json, a program, and other texts for those there are.
func TestDroppedModule(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("no shell")
	}
	dir, base := t.TempDir(), t.TempDir()
	script := func(says string) string { return "# Says it.\nsay() { echo " + says + "; }\n" }
	source := func(says string) string {
		return "//go:build usher\n\npackage main\n\nfunc Say() string { return \"" + says + "\" }\n"
	}
	write(t, dir+"/tool.usher.sh", frozenTool)
	write(t, dir+"/sub/note", "")
	writeFake(t, dir+"/file.usher", "good tools=x")
	write(t, dir+"/run.usher.sh", script("old"))
	write(t, dir+"/time.usher.sh", script("old"))
	write(t, dir+"/idle.usher.sh", script("old"))
	write(t, dir+"/built.usher.go", source("old"))
	old := []string{"built_say", "file_x", "idle_say", "run_say", "time_say", "tool_back", "tool_put"}
	_, noPython := exec.LookPath("python3")
	if noPython == nil {
		write(t, dir+"/folder/snake.usher.py", "def say(): return 'old'\n")
		write(t, dir+"/folder/.venv/bin/note", "")
		old = slices.Insert(old, 4, "snake_say")
	}
	d := daemonOptions{base: base, ownProcess: true}.start(t, dir, "-require-claim")
	c, _ := openSession(t, d.URL, inHeader(newClaimFor(t, base, dir).Code.Reveal()))
	c.awaitTools(old...)
	says := func(tool, want string) {
		t.Helper()
		if a := c.call(tool, ""); a.failure()+strings.TrimSpace(resultText(a.result())) != want {
			t.Errorf("%s: %s, want %q", tool, a.Body, want)
		}
	}
	says("run_say", "old")

	ran := t.TempDir() + "/ran"
	evil := "#!/bin/sh\ntouch " + ran + "\n"
	for _, file := range [][]string{
		{"evil.usher.sh", evil + script("new")}, {"evil.usher.py", "open('" + ran + "', 'w')\n"}, {"evil.usher", evil, "755"},
		{"sub/.mcp.json", `{"mcpServers":{"entry":{"command":"sh","args":["-c","touch ` + ran + `"]}}}`},
		{"run.usher.sh", evil + script("new")}, {"idle.usher.sh", evil + script("new")}, {"file.usher", evil, "755"}, {"built.usher.go", source("new")},
	} {
		mode := append(file, "644")[2]
		if a := c.call("tool_put", fmt.Sprintf(`{"path":%q,"text":%q,"mode":%q}`, file[0], file[1], mode)); a.failure() != "" {
			t.Fatalf("%s: %s", file[0], a.Body)
		}
	}
	c.call("tool_back", fmt.Sprintf(`{"path":"time.usher.sh","text":%q}`, script("new")))
	if noPython == nil {
		c.call("tool_put", fmt.Sprintf(`{"path":"folder/.venv/bin/python","text":%q,"mode":"755"}`, evil))
		says("snake_say", "old")
		os.RemoveAll(dir + "/folder/.venv")
	}
	const changed = "changed since the start: restart usher serve"
	for line, why := range map[string]string{
		"evil kind=shell file=evil.usher.sh": "new", "evil kind=python file=evil.usher.py": "new", "evil kind=executable file=evil.usher": "new",
		"entry kind=.mcp.json file=sub/.mcp.json": "new", "run kind=shell file=run.usher.sh": "changed", "idle kind=shell file=idle.usher.sh": "changed",
		"file kind=executable file=file.usher": "changed", "built kind=go file=built.usher.go": "changed",
	} {
		line = fmt.Sprintf("\"module not taken up\" module=%s why=\"%s since the start: restart usher serve\"\n", line, why)
		await(t, line, func() bool { return strings.Contains(d.Log.String(), line) })
	}
	says("run_say", "old") // its process runs
	says("built_say", "old")
	for _, tool := range []string{"idle", "file", "time"} {
		for range 3 { // which is no crash, and so no reason to wait
			a := c.call(tool+map[bool]string{true: "_x", false: "_say"}[tool == "file"], "")
			if want := fmt.Sprintf(`module %q can't start: %s`, tool, changed); a.failure() != want {
				t.Errorf("%s: %s, want %s", tool, a.Body, want)
			}
		}
	}
	if n := strings.Count(d.Log.String(), "module not taken up"); n != 9 {
		t.Errorf("the log has %d lines of what is not taken up, want 9:\n%s", n, d.Log.String())
	}
	c.awaitTools(old...)
	out, _, _ := usher(t, "", "modules", "-base", base, dir)
	if strings.Count(out, "not hosted: new or "+changed) != 9 {
		t.Errorf("usher modules:\n%s", out)
	}
	if _, err := os.Stat(ran); err == nil {
		t.Fatal("what was written was run")
	}

	c.call("tool_put", fmt.Sprintf(`{"path":"file.usher","text":%q,"mode":"644"}`, evil)) // so that it is one no more
	os.Remove(dir + "/evil.usher")
	os.Remove(dir + "/evil.usher.py")
	os.Remove(dir + "/sub/.mcp.json")
	d.stop(t)
	d = daemonOptions{base: base, ownProcess: true}.start(t, dir, "-require-claim")
	c, _ = openSession(t, d.URL, inHeader(newClaimFor(t, base, dir).Code.Reveal()))
	c.awaitTools(append([]string{"built_say", "evil_say"}, slices.DeleteFunc(old, func(s string) bool { return s == "built_say" || s == "file_x" })...)...)
	for _, tool := range []string{"run_say", "idle_say", "time_say", "evil_say", "built_say"} {
		await(t, tool, func() bool { return strings.TrimSpace(resultText(c.call(tool, "").result())) == "new" })
	}
	if out, _, _ := usher(t, "", "modules", "-base", base, dir); strings.Contains(out, "since the start") {
		t.Errorf("usher modules after the restart:\n%s", out)
	}
}

// TestWatchFlag says when a module is hosted that comes later: -watch, given, is
// heeded.
func TestWatchFlag(t *testing.T) {
	t.Parallel()
	for flags, want := range map[string]bool{
		"": true, "-watch=false": false, "-require-claim -watch": true, "-require-claim": false,
	} {
		t.Run(flags, func(t *testing.T) {
			t.Parallel()
			dir, base := t.TempDir(), t.TempDir()
			writeFake(t, dir+"/a.usher", "good tools=x")
			d := daemonOptions{base: base}.start(t, dir, strings.Fields(flags)...)
			c, _ := openSession(t, d.URL, inHeader(newClaimFor(t, base, dir).Code.Reveal()))
			c.awaitTools("a_x")
			writeFake(t, dir+"/b.usher", "good tools=x")
			await(t, "the log", func() bool {
				return strings.Contains(d.Log.String(), map[bool]string{true: `"module added" module=b`, false: `"module not taken up" module=b`}[want])
			})
			if want {
				c.awaitTools("a_x", "b_x")
			} else {
				c.awaitTools("a_x")
			}
		})
	}
}

// TestTextIsHandedOver has a module's file changed after usher has read it and
// before its process is there: what runs is what was read.
func TestTextIsHandedOver(t *testing.T) {
	t.Parallel()
	modules := map[string]string{".go": "//go:build usher\n\npackage main\n\nfunc Add() {}\n", ".sh": "# A.\nadd() { :; }\n",
		".mjs": "export const add = () => 1\n"}
	for _, file := range hostedFiles {
		source, err := os.ReadFile(file)
		must(t, err)
		ending, text := filepath.Ext(file), string(source)
		modules[ending] = text
	}
	for ending, text := range modules {
		t.Run(ending, func(t *testing.T) {
			t.Parallel()
			if ending != ".go" && ending != ".sh" {
				needLanguage(t, ending)
			}
			dir := t.TempDir()
			path := filepath.Join(dir, "m.usher"+ending)
			write(t, path, text)
			r := &Registry{registryConfig: registryConfig{Roots: []string{dir}, CacheDir: t.TempDir(), Log: slog.New(slog.DiscardHandler)}, reaper: &reaper{}}
			defer r.reaper.Close()
			v := &moduleVersion{discovered: scanFolders(r.Roots, 0).modules[0]}
			l, err := r.launch(t.Context(), v)
			if err == nil {
				l, err = l.resolve()
			}
			if err != nil {
				t.Fatal(err)
			}
			write(t, path, "this is no module")
			l.Env = os.Environ()
			w := newWorker("m", r.Log, nil, func(*Worker) {})
			if err := w.spawn(l, r.reaper); err != nil {
				t.Fatal(err)
			}
			defer func() { w.stop(); <-w.done }()
			if err := w.shakeHands(t.Context(), true); err != nil {
				t.Fatal(explain(err))
			}
			if m, err := readManifest(t.Context(), w, ""); err != nil || len(m.Lists["tools"]) == 0 {
				t.Errorf("it offers %v, %v", m, err)
			}
		})
	}
}

// TestHangup closes the terminal of a daemon: that ends the daemon, unless nohup
// started it.
func TestHangup(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("no SIGHUP")
	}
	dir := t.TempDir()
	writeFake(t, dir+"/a.usher", "good tools=x")
	d := daemonOptions{ownProcess: true}.start(t, dir)
	d.signal(t, syscall.SIGHUP)

	kept := daemonOptions{ownProcess: true, shell: `trap "" HUP`}.start(t, dir) // as nohup does
	if err := kept.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	connect(t, kept.URL).awaitTools("a_x")
}
