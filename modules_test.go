// The workspace while it changes, and what is remembered of it.

package main

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestWhatIsSearched(t *testing.T) {
	long(t)
	t.Parallel()
	dir := t.TempDir()
	outside := t.TempDir()
	writeFake(t, outside+"/far.usher", "good tools=x")
	writeFake(t, outside+"/folder/unseen.usher", "good tools=x")
	writeFake(t, dir+"/a.usher", "good tools=x")
	writeFake(t, dir+"/deep/er/b.usher", "good tools=x")
	for _, skipped := range []string{".hidden", "node_modules", "vendor"} {
		writeFake(t, dir+"/"+skipped+"/c.usher", "good tools=x")
	}
	for link, target := range map[string]string{
		"near.usher": outside + "/far.usher", "linked": outside + "/folder", "again.usher": dir + "/a.usher", "gone.usher": dir + "/nope",
	} {
		if err := os.Symlink(target, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	c := connect(t, startDaemon(t, dir).URL)
	c.awaitTools("a_x", "again_x", "b_x", "near_x")
	var out, errs bytes.Buffer
	run(t.Context(), []string{"modules", "-base", t.TempDir(), "-scope", dir, dir}, nil, &out, &errs, noEnv)
	if !strings.Contains(out.String(), outside+"/far.usher is not in "+dir) || !strings.Contains(out.String(), "gone.usher\n  not hosted: no such file") {
		t.Errorf("usher modules -scope:\n%s%s", out.String(), errs.String())
	}
}

// TestHotReload edits the workspace under a stream of calls.
func TestHotReload(t *testing.T) {
	long(t)
	t.Parallel()
	dir := t.TempDir()
	writeFake(t, dir+"/a.usher", "good tools=x")
	writeFake(t, dir+"/b.usher", "good tools=x")
	d := startDaemon(t, dir)
	c := connect(t, d.URL)
	c.awaitTools("a_x", "b_x")
	messages, _ := c.listen()
	var stop atomic.Bool
	var calls sync.WaitGroup
	for i := range 4 {
		calls.Go(func() {
			mine := connect(t, d.URL)
			for n := 0; !stop.Load(); n++ {
				if a := mine.call("a_x", fmt.Sprintf(`{"n":%d}`, n)); a.failure() != "" || !strings.Contains(a.Body, fmt.Sprintf(`\"n\":%d}`, n)) {
					t.Errorf("caller %d, call %d: %s", i, n, a.Body)
					return
				}
			}
		})
	}
	t.Cleanup(func() { stop.Store(true); calls.Wait() })

	writeFake(t, dir+"/a.usher", "good tools=x,y") // edit
	hear(t, messages, "notifications/tools/list_changed")
	c.awaitTools("a_x", "a_y", "b_x")
	writeFake(t, dir+"/new.usher", "good tools=x") // add
	c.awaitTools("a_x", "a_y", "b_x", "new_x")
	if err := os.Rename(dir+"/new.usher", dir+"/other.usher"); err != nil { // rename
		t.Fatal(err)
	}
	c.awaitTools("a_x", "a_y", "b_x", "other_x")
	os.Remove(dir + "/other.usher") // remove
	c.awaitTools("a_x", "a_y", "b_x")
	writeFake(t, dir+"/a.usher", "dies") // break
	await(t, "the broken version to be told of", func() bool {
		return strings.Contains(d.Log.String(), `old_version_kept=true`)
	})
	c.awaitTools("a_x", "a_y", "b_x")
	writeFake(t, dir+"/a.usher", "good tools=x,z") // mend
	c.awaitTools("a_x", "a_z", "b_x")
	stop.Store(true)
	calls.Wait()
	for _, line := range []string{`"module added" module=new kind=executable file=new.usher tools=1`, `"module changed" module=a kind=executable file=a.usher tools=2`,
		`"module failed" module=a kind=executable file=a.usher why=`, `"module removed" module=other kind=executable file=other.usher`} {
		if !strings.Contains(d.Log.String(), line) {
			t.Errorf("the log has no line %s:\n%s", line, d.Log.String())
		}
	}
}

// TestFailureIsLoggedOnce has a module that can't be started tried again for an
// hour, after ever longer pauses.
func TestFailureIsLoggedOnce(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		log := &output{}
		r, err := newRegistry(registryConfig{Roots: []string{dir}, CacheDir: dir, Log: slog.New(slog.NewTextHandler(log, nil))})
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		s := &scan{seen: make(map[entryKey]bool)}
		s.add(discovered{Name: "m", Kind: kindExecutable, Path: dir + "/m.usher", Source: dir + "/m.usher", Root: dir})
		r.update(s)
		pass(time.Hour)
		if got := strings.Count(log.String(), "module failed"); got != 1 {
			t.Errorf("it is logged %d times:\n%s", got, log.String())
		}
	})
}

// TestOddFiles has files that must not be read like files, and shows that the
// others are hosted all the same.
func TestOddFiles(t *testing.T) {
	long(t)
	t.Parallel()
	dir := t.TempDir()
	writeFake(t, dir+"/a.usher", "good tools=x")
	for _, name := range []string{"p/.mcp.json", "b.usher.go", "c.usher.py"} {
		write(t, dir+"/"+name, "")
		os.Remove(dir + "/" + name)
		if err := exec.Command("mkfifo", dir+"/"+name).Run(); err != nil {
			t.Skip("no FIFOs here")
		}
	}
	for _, name := range []string{"q/.mcp.json", "d.usher.go"} {
		write(t, dir+"/"+name, "")
		if err := os.Truncate(dir+"/"+name, 1<<40); err != nil {
			t.Fatal(err)
		}
	}
	d := startDaemon(t, dir)
	connect(t, d.URL).awaitTools("a_x")
	await(t, "what is odd to be told of", func() bool {
		return strings.Count(d.Log.String(), "it is not a regular file") == 3 && strings.Count(d.Log.String(), "it is larger than 1 MiB") == 2
	})
}

// TestWhoWaitsForModules has lists asked for while modules are introspected that
// take for ever: only those of the scope count, and only at the start.
func TestWhoWaitsForModules(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		r, err := newRegistry(registryConfig{Roots: []string{dir}, CacheDir: dir, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		for range cap(r.slots) {
			r.slots <- struct{}{} // so that no introspection begins
		}
		waits := func(when string, scope Scope, want time.Duration) {
			t.Helper()
			start := time.Now()
			if r.WaitReady(t.Context(), scope); time.Since(start) != want {
				t.Errorf("%s: a list waits %v, want %v", when, time.Since(start), want)
			}
		}
		there := func(names ...string) *scan {
			s := &scan{seen: make(map[entryKey]bool)}
			for _, name := range names {
				s.add(discovered{Name: name, Kind: kindExecutable, Source: "/w/" + name + "/m.usher"})
			}
			return s
		}
		r.update(there("p"))
		waits("another scope", scopeDir("/w/q"), 0)
		pass(startupTime - time.Second)
		waits("at the start", scopeAll(), time.Second)
		waits("for too long", scopeAll(), 0)
		r.update(there("p", "q"))
		waits("later", scopeAll(), 0)
		if !r.Pending(scopeDir("/w/q")) || r.Pending(scopeDir("/w/r")) {
			t.Error("what is pending does not follow the scope")
		}
	})
}

// TestIntrospectionOutlivesItsModule has a module go and come back while it is
// introspected: what the first introspection finds is of the file that is gone.
func TestIntrospectionOutlivesItsModule(t *testing.T) {
	t.Parallel()
	r, err := newRegistry(registryConfig{Roots: []string{t.TempDir()}, CacheDir: t.TempDir(), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	r.cancel() // no introspection begins
	var versions []*moduleVersion
	for range 2 {
		there := &scan{seen: make(map[entryKey]bool)}
		there.add(discovered{Name: "a", Kind: kindExecutable, Source: "/nowhere/a.usher"})
		r.update(there)
		for _, v := range r.modules {
			versions = append(versions, v)
		}
		for range removalScans {
			if len(r.modules) == 0 {
				t.Error("one scan that misses a file removes the module")
			}
			r.update(&scan{})
		}
	}
	if len(r.modules) != 0 || len(versions) != 2 {
		t.Errorf("%d modules are left of %d", len(r.modules), len(versions))
	}
	r.modules[versions[1].key()] = versions[1]
	r.buildModule(&moduleVersion{discovered: versions[0].discovered}, &manifest{})
	if versions[1].module != nil {
		t.Error("the first version is hosted")
	}
}

// TestListsThatFail has a server that can't list its prompts: its tools are
// hosted.
func TestListsThatFail(t *testing.T) {
	long(t)
	t.Parallel()
	dir := t.TempDir()
	writeScript(t, dir+"/a.usher", `"tools":{},"prompts":{}`, "")
	connect(t, startDaemon(t, dir).URL).awaitTools("a_x")
	var out, errs bytes.Buffer
	run(t.Context(), []string{"modules", "-base", t.TempDir(), dir}, nil, &out, &errs, noEnv)
	if !strings.Contains(out.String(), "note: prompts/list: no prompts today") {
		t.Errorf("usher modules:\n%s%s", out.String(), errs.String())
	}
}

// writeScript writes a module with one tool, x, which begins with a shell
// command.
func writeScript(t *testing.T, path, capabilities, begin string) {
	t.Helper()
	write(t, path, "#!/bin/sh\n"+begin+"\n"+`while read -r line; do
id=${line#*'"id":'}; id=${id%%[,\}]*}
case $line in
*'"server/discover"'*) echo '{"jsonrpc":"2.0","id":'$id',"error":{"code":-32601,"message":"unknown"}}' ;;
*'"initialize"'*) echo '{"jsonrpc":"2.0","id":'$id',"result":{"protocolVersion":"2025-11-25","capabilities":{`+capabilities+`},"serverInfo":{"name":"x","version":"1"}}}' ;;
*'"tools/list"'*) echo '{"jsonrpc":"2.0","id":'$id',"result":{"tools":[{"name":"x","inputSchema":{"type":"object"}}]}}' ;;
*'"prompts/list"'*) echo '{"jsonrpc":"2.0","id":'$id',"error":{"code":-32603,"message":"no prompts today"}}' ;;
esac
done
`)
	if err := os.Chmod(path, 0o755); err != nil {
		t.Fatal(err)
	}
}

func TestConfigFiles(t *testing.T) {
	long(t)
	t.Parallel()
	dir := t.TempDir()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	entry := func(tools string) string {
		return fmt.Sprintf(`{"command":%q,"env":{%q:"good tools=%s"}}`, exe, runAsFake, tools)
	}
	path := dir + "/" + configName
	replace := func(text string) {
		write(t, path+".new", text)
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
	replace(`{"mcpServers":{"one":` + entry("x") + `,"two":` + entry("pid") + `,"bad":{"command":"${NOPE_NOT_SET}"}}}`)
	d := startDaemon(t, dir)
	c := connect(t, d.URL)
	c.awaitTools("one_x", "two_pid")
	pid := c.call("two_pid", "").Body
	replace(`{"mcpServers":{"one":` + entry("x") + `,"two":` + entry("pid") + `,"bad":{"command":"${NOPE_NOT_SET}"},"late":{"command":"${NOPE_NOT_SET}"}}}`)
	await(t, "the bad entry to be shown", func() bool { return strings.Contains(d.Log.String(), "module=late kind=.mcp.json") })
	replace(`{"mcpServers":{"one":`) // half an edit
	await(t, "the file to be told of", func() bool {
		return strings.Contains(d.Log.String(), ".mcp.json")
	})
	c.awaitTools("one_x", "two_pid")
	replace(`{"mcpServers":{"one":` + entry("y") + `,"two":` + entry("pid") + `}}`)
	c.awaitTools("one_y", "two_pid")
	if again := c.call("two_pid", "").Body; field([]byte(again), "result") == nil || string(field([]byte(again), "result")) != string(field([]byte(pid), "result")) {
		t.Errorf("an entry that did not change was started again: %s, before %s", again, pid)
	}
}

func TestGoModuleLifeInUsher(t *testing.T) {
	long(t)
	t.Parallel()
	dir, base := t.TempDir(), t.TempDir()
	path := dir + "/m.usher.go"
	source := "//go:build usher\n\npackage main\n\nfunc Say() string { return \"%s\" }\n"
	write(t, path, fmt.Sprintf(source, "one"))
	d := daemonOptions{base: base}.start(t, dir)
	c := connect(t, d.URL)
	c.awaitTools("m_say")
	says := func(want string) {
		t.Helper()
		await(t, "the answer "+want, func() bool { return resultText(c.call("m_say", "").result()) == want })
	}
	says("one")
	write(t, path, fmt.Sprintf(source, "two!"))
	says("two!")
	write(t, path, strings.Replace(source, "return", "retrun", 1))
	await(t, "the fault to be told of", func() bool { return strings.Contains(d.Log.String(), "m.usher.go:5") })
	says("two!")
	d.stop(t)
	if err := os.RemoveAll(base + "/.data/cache"); err != nil {
		t.Fatal(err)
	}
	write(t, path, fmt.Sprintf(source, "three"))
	c.URL = daemonOptions{base: base}.start(t, dir).URL
	c.awaitTools("m_say")
	says("three")
}

// TestCache has what is remembered read for another version of a file.
func TestCache(t *testing.T) {
	t.Parallel()
	r := &Registry{registryConfig: registryConfig{CacheDir: t.TempDir(), Log: slog.New(slog.DiscardHandler)}}
	one := discovered{Name: "a", Kind: kindExecutable, Source: "/nowhere/a.usher", Version: "1"}
	two := one
	two.Version = "2"
	write(t, r.cachePath(one), "{")
	if r.readCache(one) != nil {
		t.Error("half a file was taken")
	}
	write(t, r.cachePath(one), string(marshal(&manifest{Version: one.cacheVersion()})))
	if r.readCache(one) == nil || r.readCache(two) != nil {
		t.Error("what was written is not known, or for another version")
	}
	one.Content = "other" // with the same size and times
	if r.readCache(one) != nil {
		t.Error("what was written is known for another content")
	}
}

// TestThousandModules shows that a start with known modules starts none.
func TestThousandModules(t *testing.T) {
	long(t)
	t.Parallel()
	n := slowTests(100, 1000)
	dir, base := t.TempDir(), t.TempDir()
	trace := dir + "/trace"
	for i := range n {
		path := fmt.Sprintf("%s/%d/m%d.usher", dir, i/100, i)
		writeScript(t, path, `"tools":{}`, "echo >> "+trace)
	}
	d := daemonOptions{base: base, ownProcess: true}.start(t, dir)
	c := connect(t, d.URL)
	deadline := time.Now().Add(10 * time.Minute)
	for len(c.tools()) < n && time.Now().Before(deadline) {
	}
	d.stop(t)
	before, err := os.ReadFile(trace)
	if err != nil || len(before) < n {
		t.Fatalf("the first start introspected %d of %d: %v", len(before), n, err)
	}
	start := time.Now()
	c.URL = daemonOptions{base: base, ownProcess: true}.start(t, dir).URL
	if got := len(c.tools()); got != n {
		t.Errorf("%d tools, want %d", got, n)
	}
	t.Logf("%d modules: listed %v after the start of the process", n, time.Since(start).Round(time.Millisecond))
	if after, _ := os.ReadFile(trace); len(after) != len(before) {
		t.Errorf("the second start started %d processes", len(after)-len(before))
	}
}
