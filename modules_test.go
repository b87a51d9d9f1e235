// The workspace while it changes, and the cache of what modules offer.

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// registryOf returns a registry with a cache and a log. It is not scanned, unless it watches.
func registryOf(t *testing.T, c registryConfig) *Registry {
	t.Helper()
	if c.Log == nil {
		c.Log = quiet
	}
	c.CacheDir = t.TempDir()
	r := newRegistry(c)
	t.Cleanup(r.Close)
	return r
}

// Folders are searched, except hidden ones, node_modules, vendor and links. What can't be
// hosted is reported.
func TestFoldersAreSearched(t *testing.T) {
	long(t)
	dir, outside := t.TempDir(), t.TempDir()
	for _, file := range []string{
		outside + "/far.usher", outside + "/folder/unseen.usher", dir + "/a.usher",
		dir + "/deep/er/b.usher",
		dir + "/.hidden/c.usher", dir + "/node_modules/c.usher", dir + "/vendor/c.usher",
	} {
		writeFake(t, file, "good tools=x")
	}
	for link, target := range map[string]string{
		"near.usher":  outside + "/far.usher",
		"linked":      outside + "/folder",
		"again.usher": dir + "/a.usher",
		"gone.usher":  dir + "/nope",
	} {
		must(t, os.Symlink(target, dir+"/"+link))
	}
	for name, text := range map[string]string{
		"no_line.usher": "exit", "crlf.usher": "#!/bin/sh\r\n",
	} {
		write(t, dir+"/"+name, text)
		must(t, os.Chmod(dir+"/"+name, 0o755))
	}
	connect(t, startDaemon(t, dir).URL).AwaitTools("a_x", "again_x", "b_x", "near_x")
	out, _, _ := usher(t, "modules", "-scope", dir, dir)
	checkContains(t, "usher modules -scope", out, outside+"/far.usher is not in "+dir,
		"gone.usher\n  not hosted: no such file",
		"/no_line.usher: exec format error", "/crlf.usher: no such file or directory")
}

// A client hears that a module can't be hosted, whatever error its process answered with.
func TestFailureNamesTheModule(t *testing.T) {
	m := module(t, "/w/a.usher:a x")
	m.Err = fmt.Errorf("tools/list: %w", rpcErrorf(codeNoMethod, "no such thing"))
	checkContains(t, "the error for a client", string(encodeError(quote("1"), m.failure())),
		`module \"a\" can't be hosted: tools/list: no such thing`)
}

// A call after an edit reaches the new version, and no call under way fails. A call of an unknown
// tool reaches a module that was just written.
func TestEditReloadsOneModule(t *testing.T) {
	long(t)
	d := startFakes(t, "a: good tools=x", "b: good tools=x", "c: dies")
	dir, c := d.Dir, connect(t, d.URL)
	c.AwaitTools("a_x", "b_x")
	checkContains(t, "a call of a broken module", c.Call("c_x", "").Failure(),
		`module "c" can't be hosted: `)
	messages, _ := c.Listen()
	var stop atomic.Bool
	var calls sync.WaitGroup
	for i := range 4 {
		calls.Go(func() {
			mine := connect(t, d.URL)
			for n := 0; !stop.Load() && !t.Failed(); n++ {
				a := mine.Call("a_x", fmt.Sprintf(`{"n":%d}`, n))
				check(t, fmt.Sprint("failure of caller ", i), a.Failure(), "")
				checkContains(t, fmt.Sprint("answer of caller ", i), a.Body,
					fmt.Sprintf(`\"n\":%d}`, n))
			}
		})
	}
	end := func() {
		stop.Store(true)
		calls.Wait()
	}
	t.Cleanup(end)
	writeFake(t, dir+"/a.usher", "good tools=x,y") // edit
	hear(t, messages, "notifications/tools/list_changed")
	c.AwaitTools("a_x", "a_y", "b_x")
	writeFake(t, dir+"/new.usher", "good tools=x") // add
	c.AwaitTools("a_x", "a_y", "b_x", "new_x")
	must(t, os.Rename(dir+"/new.usher", dir+"/other.usher"))
	c.AwaitTools("a_x", "a_y", "b_x", "other_x")
	must(t, os.Remove(dir+"/other.usher"))
	c.AwaitTools("a_x", "a_y", "b_x")
	end()
	writeFake(t, dir+"/a.usher", "dies") // break
	failure := c.Call("a_x", "").Failure()
	checkContains(t, "a call of the broken version", failure, `module "a" can't be hosted: `)
	c.AwaitTools("a_x", "a_y", "b_x")
	writeFake(t, dir+"/a.usher", "good tools=x,z") // repair
	check(t, "a call of a new method", c.Call("a_z", "").Failure(), "")
	for i := range 3 {
		name := fmt.Sprint("new", i)
		writeFake(t, dir+"/"+name+".usher", "good tools=x")
		check(t, "a call of "+name, c.Call(name+"_x", "").Failure(), "")
	}
	checkContains(t, "an unknown tool", c.Call("new0_y", "").Failure(), `unknown tool "new0_y"`)
	writeFake(t, dir+"/a.usher", "good tools=x,handleIt")
	wantStatus(t, "a delivery to a new method", d.deliver(t, "a/handleIt", "{}"), 200)
	checkContains(t, "the log", d.Log.String(),
		`"module added" module=new kind=executable file=new.usher tools=1`,
		`"module changed" module=a kind=executable file=a.usher tools=2`,
		`"module failed" module=a kind=executable file=a.usher why=`,
		`"module removed" module=other kind=executable file=other.usher`)
}

// An edit ends the introspection or the process of the version before. The end of an introspection
// does not count as a failure of the new version.
func TestEditEndsWhatItReplaces(t *testing.T) {
	long(t)
	need(t, "sh")
	dir, started := t.TempDir(), t.TempDir()+"/pid"
	write(t, dir+"/a.usher", "#!/bin/sh\necho $$ >'"+started+"'\nexec sleep 600\n")
	d := startDaemon(t, dir)
	c := connect(t, d.URL)
	var old int
	await(t, "the introspection", func() bool {
		text, _ := os.ReadFile(started)
		_, err := fmt.Sscan(string(text), &old)
		return err == nil
	})
	for _, tools := range []string{"tools=pid", "tools=pid,x"} {
		writeFake(t, dir+"/a.usher", tools)
		text := c.Call("a_pid", "").Text()
		await(t, "the end of the process before "+tools, func() bool { return !processAlive(old) })
		_, err := fmt.Sscan(text, &old)
		must(t, err)
	}
	checkOmits(t, "the log", d.Log.String(), `"module failed" module=a `)
}

// A call of an unknown tool waits for one reading of the lists of its own process, if these may have
// changed, and only while its claim is active.
func TestUnknownToolWaitsForOneReading(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		claim := newClaimFor(t, b.base, "/w")
		c := b.openScoped(claim.Code.Reveal())
		begin := func() *exchange { return b.begin(c.Asking("tools/call", `{"name":"m_new"}`)) }
		ended := func(x *exchange) (text string) {
			_, text = x.got()
			return text
		}
		c.Call("m_wait", `{"seconds":0}`)
		checkContains(t, "if nothing is announced", ended(begin()), "unknown tool")
		b.process.update(func() { b.process.info = objectOf(`{"capabilities":{"tools":{}}}`) })
		b.process.listsChanged() // m does not answer tools/list
		first := begin()
		pass(startTimeout - sweepTime)
		checkOmits(t, "during the reading", ended(first), "unknown tool")
		pass(3 * sweepTime)
		checkContains(t, "after the reading", ended(first), "unknown tool")
		b.process.listsChanged()
		second := begin()
		pass(2 * sweepTime)
		revoke(t, b.base, claim.Code)
		pass(3 * time.Second)
		checkContains(t, "after the end of the claim", ended(second), errEnded.Error())
		pass(startTimeout)
	})
}

// A module whose lists change all the time holds up no call of an unknown tool.
func TestChangingListsHoldNothingUp(t *testing.T) {
	long(t)
	c := connect(t, startFakes(t, "own: good restless").URL)
	c.Call("own_echo", "") // its process begins to list its tools again and again
	checkContains(t, "an unknown tool", c.Call("own_y", "").Failure(), `unknown tool "own_y"`)
}

// An edit of a file that a module has loaded is an edit of the module, at the module's start or
// later, and so is its repair.
func TestPartsAreFollowed(t *testing.T) {
	long(t)
	for ending, row := range map[string]struct{ module, part, text, broken string }{
		".py": {
			"import part1\n\ndef first(): return part1.N\n\n" +
				"def second():\n    import part2\n    return part2.N\n",
			"part%d.py", "N = %d\n", "N = (\n",
		},
		".mjs": {
			"import { N } from './part1.mjs'\nexport function first() { return N }\n" +
				"export async function second() { return (await import('./part2.mjs')).N }\n",
			"part%d.mjs", "export const N = %d\n", "export const N = (\n",
		},
	} {
		t.Run(ending, func(t *testing.T) {
			t.Parallel()
			needLanguage(t, ending)
			if ending == ".mjs" {
				nodeTestTyped(t) // its version has load hooks
			}
			dir, base := t.TempDir(), t.TempDir()
			edit := func(part int, text string) { write(t, fmt.Sprintf(dir+"/"+row.part, part), text) }
			set := func(part, n int) { edit(part, fmt.Sprintf(row.text, n)) }
			set(1, 10)
			set(2, 20)
			write(t, dir+"/m.usher"+ending, row.module)
			d := daemonOptions{base: base}.start(t, dir)
			c := connect(t, d.URL)
			c.AwaitText("m_first", "", "10")
			set(1, 101)
			c.AwaitText("m_first", "", "101")
			c.AwaitText("m_second", "", "20") // now part2 is known
			set(2, 202)
			c.AwaitText("m_second", "", "202")
			edit(1, row.broken)
			await(t, "the broken part", func() bool {
				return strings.Contains(c.Call("m_first", "").Failure(), "can't be hosted: ")
			})
			set(1, 1001)
			c.AwaitText("m_first", "", "1001")
			d.stop(t)
			write(t, dir+"/"+fmt.Sprintf(row.part, 1), strings.Replace(row.broken, "N", "M", 1))
			d = daemonOptions{base: base}.start(t, dir)
			c = connect(t, d.URL)
			checkContains(t, "after a restart", c.Call("m_first", "").Failure(), "can't be hosted: ")
		})
	}
}

// A file is a part only if scans search its folder, also if the served DIR is a link. A file that is
// loaded after an edit of another part does not hide the edit.
func TestPartsAreAdded(t *testing.T) {
	dir := tempDir(t)
	link := t.TempDir() + "/link"
	must(t, os.Symlink(dir, link))
	r := registryOf(t, registryConfig{Roots: []string{link}})
	o := r.addOwner(source{Name: "m", Path: link + "/m.usher.py", Root: link})
	w := testWorker(kindPython, false, Caller{})
	defer w.cancel()
	part := dir + "/a.py"
	write(t, part, "")
	o.addParts(w, []string{part, dir + "/node_modules/b.py"})
	check(t, "parts", o.loaded.Load().Paths, []string{part})
	write(t, part, "edited")
	o.addParts(w, []string{dir + "/c.py"})
	check(t, "the edit is known", o.loaded.Load().changed(), true)
}

// A module whose import was missing is tried again, and reported once.
func TestFailedModuleIsTriedAgain(t *testing.T) {
	needLanguage(t, ".py")
	long(t)
	dir := t.TempDir()
	write(t, dir+"/m.usher.py", "import package_that_comes_later\n\ndef f(): return 1\n")
	d := startDaemon(t, dir)
	c := connect(t, d.URL)
	checkContains(t, "without the package", c.Call("m_f", "").Failure(), "can't be hosted: ")
	write(t, dir+"/package_that_comes_later.py", "")
	c.AwaitText("m_f", "", "1")
	check(t, "reports of the failure", d.logged("module failed"), 1)
}

// A version that is retired, without processes and calls, is forgotten.
func TestRetiredVersionsAreForgotten(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/m.usher", "not executable")
	synctest.Test(t, func(t *testing.T) {
		r := registryOf(t, registryConfig{Roots: []string{dir}})
		pass(3 * sweepTime)
		r.pools.Range(func(p, _ any) bool {
			t.Error("a pool is kept")
			return true
		})
	})
}

// A module that can't be started is logged once, as long as its error stays the same.
func TestFailureIsLoggedOnce(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, approved := range []string{"", dir + "/approved.json"} {
		synctest.Test(t, func(t *testing.T) {
			log := &output{}
			r := registryOf(t, registryConfig{Roots: []string{dir}, Log: logTo(log)})
			r.Approved = approved
			for range 2 {
				s := newScan(nil, nil)
				s.add(source{
					Name:    "m",
					Kind:    kindExecutable,
					Path:    dir + "/m.usher",
					Source:  dir + "/m.usher",
					Root:    dir,
					Version: "1",
				})
				r.update(s)
				pass(time.Hour)
			}
			check(t, "times that it is logged", strings.Count(log.String(), "module failed"), 1)
		})
	}
}

// A file that is not regular or too large is not read. Other modules are hosted all the
// same.
func TestOnlyRegularFilesAreRead(t *testing.T) {
	long(t)
	dir := t.TempDir()
	writeFake(t, dir+"/a.usher", "good tools=x")
	for _, name := range []string{"p/.mcp.json", "b.usher.go", "c.usher.py"} {
		write(t, dir+"/"+name, "")
		must(t, os.Remove(dir+"/"+name))
		if err := exec.Command("mkfifo", dir+"/"+name).Run(); err != nil {
			skip(t, "no FIFOs here")
		}
	}
	for _, name := range []string{"q/.mcp.json", "d.usher.go"} {
		write(t, dir+"/"+name, "")
		must(t, os.Truncate(dir+"/"+name, 1<<40))
	}
	d := startDaemon(t, dir)
	connect(t, d.URL).AwaitTools("a_x")
	await(t, "the odd files in the log", func() bool {
		return d.logged("it is not a regular file") == 3 && d.logged("it is larger than 1 MiB") == 2
	})
}

// introspecting returns a registry with a module p that is introspected without end.
func introspecting(t *testing.T) *Registry {
	t.Helper()
	r := registryOf(t, registryConfig{Roots: []string{t.TempDir()}})
	r.introspecting.reserve(nil, maxIntrospections) // so that no introspection begins
	r.update(scanOf("p"))
	return r
}

// scanOf returns a scan that finds modules in folders of these names.
func scanOf(names ...string) *scan {
	s := newScan(nil, nil)
	for _, name := range names {
		path := "/w/" + name + "/m.usher"
		s.add(source{Name: name, Kind: kindExecutable, Path: path, Source: path, Version: "1"})
	}
	return s
}

// initialize does not wait for modules that are introspected. Lists do.
func TestInitializeIsAnsweredAtOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		b.server.modules = introspecting(t)
		begun := time.Now()
		c := b.open(protocols[0])
		check(t, "the wait of initialize", time.Since(begun), 0)
		c.Tools()
		check(t, "the wait of a list", time.Since(begun), startupTime)
	})
}

// A call of a known tool does not wait for modules that are introspected.
func TestKnownToolIsCalledAtOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		r := introspecting(t)
		pass(2 * publishDelay)
		r.catalog.Store(newCatalog(append(r.catalog.Load().modules, b.m)))
		b.server.modules = r
		c := b.open(protocols[0])
		begun := time.Now()
		check(t, "the failure of a call", c.Call("m_wait", `{"seconds":0}`).Failure(), "")
		check(t, "the wait of a call", time.Since(begun), 0)
		c.Call("wait", `{"seconds":0}`) // other modules may turn out to have such a tool
		check(t, "the wait of a bare name", time.Since(begun), startupTime-2*publishDelay)
	})
}

// Lists wait for modules in the scope only, and only at the start.
func TestListsWaitForTheirScope(t *testing.T) {
	inSync(t, func(t *testing.T) {
		r := introspecting(t)
		pass(2 * publishDelay)
		begun := time.Now()
		waits := func(when string, scope Scope, want time.Duration) {
			t.Helper()
			start := time.Now()
			r.WaitAll(t.Context(), startupTime-start.Sub(begun), scope)
			check(t, "the wait of a list, "+when, time.Since(start), want)
		}
		waits("another scope", scopeDir("/w/q"), 0)
		pass(startupTime - time.Second)
		waits("at the start", scopeAll(), time.Second)
		waits("for too long", scopeAll(), 0)
		r.update(scanOf("p", "q"))
		waits("later", scopeAll(), 0)
		pass(2 * publishDelay)
		check(t, "pending in its folder", r.Pending(scopeDir("/w/q")), true)
		check(t, "pending in another folder", r.Pending(scopeDir("/w/r")), false)
	})
}

// If a scan does not find a module, the module stays until the next scan, unless its file may have moved.
func TestMissedModuleGoesOn(t *testing.T) {
	t.Parallel()
	unreadable := newScan(nil, nil)
	unreadable.fail(source{Path: "/w/p/m.usher"}, os.ErrNotExist)
	withoutEntry := newScan(nil, nil)
	withoutEntry.files["/w/p/m.usher"] = "2"
	for _, tt := range []struct {
		name  string
		scans []*scan
		want  bool
	}{
		{"missed once", []*scan{scanOf()}, true},
		{"missed twice", []*scan{scanOf(), scanOf()}, false},
		{"missed, found, missed", []*scan{scanOf(), scanOf("p"), scanOf()}, true},
		{"another was found instead", []*scan{scanOf("q")}, false},
		{"something unreadable was found instead", []*scan{unreadable}, true},
		{"its file is there without it", []*scan{withoutEntry}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := introspecting(t)
			first := r.modules["/w/p/m.usher#p"]
			for _, s := range tt.scans {
				r.update(s)
			}
			isSame := r.modules["/w/p/m.usher#p"] == first
			check(t, "it goes on", isSame && first.ctx.Err() == nil, tt.want)
		})
	}
}

// A panic while usher changes the state of a module makes the module fail, so it does not stay pending.
func TestPanicFailsTheModule(t *testing.T) {
	t.Parallel()
	r := introspecting(t)
	o := r.modules["/w/p/m.usher#p"]
	o.do(func() { panic("a defect") })
	check(t, "it is pending", o.latest.Load().Pending, false)
	check(t, "it has failed", o.latest.Load().Err != nil, true)
}

// The result of an introspection does not count for a module that was removed and added
// again meanwhile, and the lists of an old process do not count for a newer version.
func TestLateIntrospectionIsDropped(t *testing.T) {
	t.Parallel()
	r := introspecting(t)
	first := r.modules["/w/p/m.usher#p"]
	r.update(newScan(nil, nil))
	r.update(newScan(nil, nil))
	check(t, "modules after two scans that missed the file", len(r.modules), 0)
	r.update(scanOf("p"))
	second := r.modules["/w/p/m.usher#p"]
	check(t, "it is the same module", first == second, false)
	first.do(func() { first.publishLists(&manifest{}) })
	check(t, "the first result counts", second.latest.Load().pool != nil, false)
	second.do(func() { second.publishLists(&manifest{}) })
	old := second.pool
	old.perSession = false
	second.do(func() { second.begin(second.source, nil) })
	second.onLists(newWorker(old, Caller{}), &manifest{About: "late"})
	check(t, "the newer version is pending", second.latest.Load().Pending, true)
}

// A server that can't list its prompts, or has a tool that MCP forbids, is hosted with its
// other tools. usher modules names the URIs that two modules list.
func TestFailedListHidesNoTools(t *testing.T) {
	long(t)
	dir := t.TempDir()
	writeFakes(t, dir, "a: good tools=x prompts=fail", "b: good tools=x prompts=endless",
		"d: good tools=x res=r", "e: good tools=x res=r")
	writeFake(t, dir+"/c.usher", "good toolsIn="+dir+"/tools")
	write(t, dir+"/tools", `["bad {\"type\":\"array\"}","x"]`)
	connect(t, startDaemon(t, dir).URL).AwaitTools("a_x", "b_x", "c_x", "d_x", "e_x")
	out := modulesOf(t, dir)
	checkContains(t, "usher modules", out, "note: prompts/list: no prompts/list",
		"note: prompts/list: pages repeat",
		"note: tools/list: bad is left out")
	const shared = "note: r://one: not offered, as several modules have this URI"
	check(t, "notes of shared URIs", strings.Count(out, shared), 2)
}

// What a session's process adds is for that session, at once and until the process ends. If
// processes offer more from their start, all sessions see it.
func TestListsBelongToProcesses(t *testing.T) {
	long(t)
	dir := t.TempDir()
	tools := func(more string) {
		write(t, dir+"/tools", `["grow=grow","crash=crash"`+more+"]")
	}
	tools("")
	writeFake(t, dir+"/own.usher", "good toolsIn="+dir+"/tools")
	writeShared(t, dir, "shared", "good tools=grow")
	d := startDaemon(t, dir)
	c, other := connect(t, d.URL), connect(t, d.URL)
	c.AwaitTools("own_crash", "own_grow", "shared_grow")
	tools(`,"late"`)
	events, _ := c.Listen()
	check(t, "failure", c.Call("own_grow", "").Failure()+
		c.Call("shared_grow", "").Failure(), "")
	check(t, "a call of the new tool at once", c.Call("own_extra1", "").Failure(), "")
	wantEvent(t, events, changedTools)
	c.AwaitTools("own_crash", "own_extra1", "own_grow", "own_late", "shared_extra1", "shared_grow")
	other.AwaitTools("own_crash", "own_grow", "own_late", "shared_extra1", "shared_grow")
	checkContains(t, "another session's call of it", other.Call("own_extra1", "").Failure(), "unknown tool")
	c.Call("own_crash", "")
	c.AwaitTools("own_crash", "own_grow", "own_late", "shared_extra1", "shared_grow")
	other.Call("own_grow", "")
	other.AwaitTools(
		"own_crash", "own_extra1", "own_grow", "own_late", "shared_extra1", "shared_grow")
	d.stop(t)
	d = daemonOptions{base: d.Base}.startReady(t, dir) // which knows the modules from the cache
	c = connect(t, d.URL)
	c.AwaitTools("own_crash", "own_grow", "own_late", "shared_extra1", "shared_grow")
}

// An edit of a .mcp.json restarts the changed entries only. Half an edit changes nothing.
func TestConfigReloadsChangedEntries(t *testing.T) {
	long(t)
	dir := t.TempDir()
	exe := testBinary(t)
	entry := func(name, tools string) string {
		return fmt.Sprintf(`%q:{"command":%q,"env":{%q:"good tools=%s"}}`, name, exe,
			runAsFake, tools)
	}
	path := dir + "/" + string(kindConfig)
	replace := func(entries ...string) {
		write(t, path+".new", `{"mcpServers":{`+strings.Join(entries, ",")+`}}`)
		must(t, os.Rename(path+".new", path))
	}
	replace(entry("one", "x"), entry("two", "pid"))
	d := startDaemon(t, dir)
	c := connect(t, d.URL)
	c.AwaitTools("one_x", "two_pid")
	pid := c.Call("two_pid", "").Text()
	replace(entry("one", "x"), entry("two", "pid"), `"late":{"command":"${NOPE_NOT_SET}"}`)
	d.awaitLog(t, "module=late kind=.mcp.json")
	replace(`"one":{`) // half an edit
	d.awaitLog(t, "at line 1")
	c.AwaitTools("one_x", "two_pid")
	another := connect(t, d.URL)
	check(t, "a call that starts a process", another.Call("two_pid", "").Failure(), "")
	must(t, os.Mkdir(dir+"/sub", 0o755))
	in := fmt.Sprintf(`"three":{"command":%q,"env":{%q:"good tools=env"},"cwd":"sub"}`,
		exe, runAsFake)
	replace(entry("one", "y"), entry("two", "pid"), in)
	c.AwaitTools("one_y", "three_env", "two_pid")
	c.Paths = true
	check(t, "PWD", c.Call("three_env", `{"name":"PWD"}`).Text(), "true "+dir+"/sub")
	check(t, "the process of an unchanged entry", c.Call("two_pid", "").Text(), pid)
}

// A panic ends one scan of the workspace. The next one happens.
func TestPanicEndsScan(t *testing.T) {
	long(t)
	dir, first := t.TempDir(), true
	var out output
	r := registryOf(t, registryConfig{
		Roots: []string{dir},
		Log:   logTo(&out),
		Watch: true,
		Only: func(string) bool {
			if first {
				first = false
				panic("in a scan")
			}
			return true
		},
	})
	writeFake(t, dir+"/a.usher", "good tools=x")
	await(t, "the module", func() bool { return len(r.View(scopeAll(), nil).Modules) == 1 })
	checkContains(t, "the log", out.String(), "in a scan")
}

// The reason that clients see is about the module's file, and contains no absolute path.
func TestFaultHasNoPath(t *testing.T) {
	for details, want := range map[string]string{
		"m.usher.py:3: SyntaxError":                 "m.usher.py:3: SyntaxError",
		"warning\nm.usher.py:3: a/b is no module":   "m.usher.py:3: a/b is no module",
		"m.usher.py:3: can't read /home/ada/x":      "see usher modules",
		`m.usher.py:3: can't read "C:\Users\ada\x"`: "see usher modules",
		"/home/ada/m.usher.py:3: SyntaxError":       "m.usher.py:3: SyntaxError",
		"other.py:3: SyntaxError":                   "see usher modules",
	} {
		check(t, details, faultLine(details, "m.usher.py:"), want)
	}
}

// fixedRegistry returns a registry whose catalog does not change. Without a catalog,
// every View panics.
func fixedRegistry(catalog *Catalog) *Registry {
	r := &Registry{changed: make(chan struct{})}
	r.catalog.Store(catalog)
	return r
}

// Processes whose lists differ from the module's cause one introspection a minute.
func TestOddProcessesCauseFewIntrospections(t *testing.T) {
	inSync(t, func(t *testing.T) {
		r := fixedRegistry(newCatalog(nil)) // it has no room for introspections, so they wait
		p := newPool(t.Context(), testConfig("a", true))
		o := &moduleOwner{registry: r, log: quiet, ctx: t.Context(), pool: p}
		o.latest.Store(&Module{pool: p})
		var w *Worker
		for n, want := range []int{1, 1, 2, 2} {
			if n < 3 { // the last one lists something else later, which is its own affair
				w = newWorker(p, Caller{Principal: everyone, Member: aMember()})
			}
			lists := &manifest{About: fmt.Sprint(n)}
			lists.setHash()
			o.onLists(w, lists)
			synctest.Wait()
			check(t, fmt.Sprint("introspections after lists ", n+1), len(r.introspecting.waiting), want)
			pass(retryInterval/2 + time.Second)
			if n == 2 {
				pass(retryInterval)
			}
		}
		p.cancel()
		r.running.Wait()
	})
}

// While a file moves, its module is never ambiguous: the old path yields its names to the new one.
// The same holds for a link that is turned, and for the folders of a Kubernetes ConfigMap.
func TestMovedFileIsNotAmbiguous(t *testing.T) {
	needLanguage(t, ".sh")
	long(t)
	script := func(says string) string { return "# Says it.\nhandle_it() { echo '" + says + "'; }\n" }
	dir := tempDir(t)
	write(t, dir+"/old/mv.usher.sh", script("moved"))
	write(t, dir+"/v1/ln.usher.sh", script("one"))
	write(t, dir+"/v2/ln.usher.sh", script("two"))
	write(t, dir+"/..4/cm.usher.sh", script("four"))
	write(t, dir+"/new/empty", "")
	for _, link := range [][2]string{
		{"..4", "/..data"}, {"..data/cm.usher.sh", "/cm.usher.sh"},
	} {
		must(t, os.Symlink(link[0], dir+link[1]))
	}
	must(t, os.Rename(dir+"/v2", dir+"/.v2"))
	d := daemonOptions{}.startReady(t, dir)
	for _, tt := range []struct {
		module, before, after string
		change                func()
	}{
		{"mv", "moved", "moved", func() {
			must(t, os.Rename(dir+"/old/mv.usher.sh", dir+"/new/mv.usher.sh"))
		}},
		{"ln", "one", "two", func() {
			must(t, os.Rename(dir+"/.v2", dir+"/v2"))
			must(t, os.RemoveAll(dir+"/v1"))
		}},
		{"cm", "four", "five", func() {
			write(t, dir+"/..5/cm.usher.sh", script("five"))
			must(t, os.Symlink("..5", dir+"/..tmp"))
			must(t, os.Rename(dir+"/..tmp", dir+"/..data"))
			must(t, os.RemoveAll(dir+"/..4"))
		}},
	} {
		t.Run(tt.module, func(t *testing.T) {
			path := tt.module + "/handle_it"
			removed := d.logged(`"module removed"`)
			checkContains(t, "before", d.deliver(t, path, "").Body, tt.before)
			tt.change()
			await(t, "the answer of the new file", func() bool {
				a := d.deliver(t, path, "")
				if a.Status == 409 || a.Status == 404 {
					t.Fatalf("meanwhile: %d %s", a.Status, a.Body)
				}
				return a.Status == 200 && strings.Contains(a.Body, tt.after)
			})
			for tt.module != "cm" && d.logged(`"module removed"`) == removed {
				wantStatus(t, "until the old path is forgotten", d.deliver(t, path, ""), 200)
			}
		})
	}
}

// A call of a module causes a scan if its file has changed since the last one, but not if the scan
// could not see the file because its folder can't be listed. It waits no longer than its context.
func TestScansThatCallsCause(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := dir + "/a.usher"
	write(t, path, "not executable")
	r := registryOf(t, registryConfig{Roots: []string{dir}})
	r.Watch = true
	o := r.modules[path+"#a"]
	scans := func(what string, want bool) {
		t.Helper()
		before := r.scanned
		o.checkCurrent(t.Context(), nil)
		check(t, "a scan, if the file "+what, r.scanned != before, want)
	}
	scans("is the same", false)
	delete(r.files, path)
	scans("can't be listed", false)
	r.files[path] = "older"
	scans("has changed", true)
	must(t, os.Rename(path, path+"~")) // as an editor does
	r.Refresh(t.Context(), time.Now())
	must(t, os.Rename(path+"~", path))
	scans("is back", true)
	earlier := time.Now()
	r.Refresh(t.Context(), earlier)
	last := r.scanned
	r.Refresh(t.Context(), earlier)
	check(t, "a scan after a later one", r.scanned != last, false)
	r.scanning.Lock()
	defer r.scanning.Unlock()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r.Refresh(ctx, time.Now())
}
