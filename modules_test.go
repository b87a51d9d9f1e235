// The workspace while it changes, and the cache of what modules offer.

package main

import (
	"encoding/json"
	"fmt"
	"io"
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

// registryOf returns a registry of a folder, which is not scanned.
func registryOf(t *testing.T, dir string, log io.Writer) *Registry {
	t.Helper()
	handler := slog.NewTextHandler(log, nil)
	r := newRegistry(registryConfig{Roots: []string{dir}, CacheDir: dir, Log: slog.New(handler)})
	t.Cleanup(r.Close)
	return r
}

func TestWhatIsSearched(t *testing.T) {
	long(t)
	dir, outside := t.TempDir(), t.TempDir()
	for _, file := range []string{
		outside + "/far.usher", outside + "/folder/unseen.usher", dir + "/a.usher", dir + "/deep/er/b.usher",
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
		must(t, os.Symlink(target, filepath.Join(dir, link)))
	}
	for name, text := range map[string]string{
		"no_line.usher": "exit", "crlf.usher": "#!/bin/sh\r\n", "x.usher.rb": "",
	} {
		write(t, dir+"/"+name, text)
		must(t, os.Chmod(dir+"/"+name, 0o755))
	}
	connect(t, startDaemon(t, dir).URL).awaitTools("a_x", "again_x", "b_x", "near_x")
	out, _, _ := usher(t, "", "modules", "-base", t.TempDir(), "-scope", dir, dir)
	checkContains(t, "usher modules -scope", out, outside+"/far.usher is not in "+dir,
		"gone.usher\n  not hosted: no such file",
		"no_line\" can't start: it must begin with a line such as #!/bin/sh\n",
		"crlf\" can't start: its \"cwd\" or the program in its first", "unsupported file")
}

// TestHotReload edits the workspace under a stream of calls.
func TestHotReload(t *testing.T) {
	long(t)
	dir := t.TempDir()
	writeFake(t, dir+"/a.usher", "good tools=x")
	writeFake(t, dir+"/b.usher", "good tools=x")
	writeFake(t, dir+"/c.usher", "dies")
	d := startDaemon(t, dir)
	c := connect(t, d.URL)
	c.awaitTools("a_x", "b_x")
	checkContains(t, "a call of a broken module", c.call("c_x", "").failure(), `module "c" can't be hosted: `)
	messages, _ := c.listen()
	var stop atomic.Bool
	var calls sync.WaitGroup
	for i := range 4 {
		calls.Go(func() {
			mine := connect(t, d.URL)
			for n := 0; !stop.Load() && !t.Failed(); n++ {
				a := mine.call("a_x", fmt.Sprintf(`{"n":%d}`, n))
				check(t, fmt.Sprint("failure of caller ", i), a.failure(), "")
				checkContains(t, fmt.Sprint("answer of caller ", i), a.Body, fmt.Sprintf(`\"n\":%d}`, n))
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
	c.awaitTools("a_x", "a_y", "b_x")
	writeFake(t, dir+"/new.usher", "good tools=x") // add
	c.awaitTools("a_x", "a_y", "b_x", "new_x")
	must(t, os.Rename(dir+"/new.usher", dir+"/other.usher"))
	c.awaitTools("a_x", "a_y", "b_x", "other_x")
	must(t, os.Remove(dir+"/other.usher"))
	c.awaitTools("a_x", "a_y", "b_x")
	end()
	writeFake(t, dir+"/a.usher", "dies") // break
	failure := c.call("a_x", "").failure()
	checkContains(t, "a call of the broken version", failure, `module "a" can't be hosted: `)
	c.awaitTools("a_x", "a_y", "b_x")
	writeFake(t, dir+"/a.usher", "good tools=x,z") // repair
	check(t, "a call of a new method", c.call("a_z", "").failure(), "")
	writeFake(t, dir+"/a.usher", "good tools=x,handleIt")
	wantStatus(t, "a delivery to a new method", d.deliver(t, "a/handleIt", "{}"), 200)
	checkContains(t, "the log", d.Log.String(), `"module added" module=new kind=executable file=new.usher tools=1`,
		`"module changed" module=a kind=executable file=a.usher tools=2`,
		`"module failed" module=a kind=executable file=a.usher why=`,
		`"module removed" module=other kind=executable file=other.usher`)
}

// TestFailureIsLoggedOnce has a module that can't be started, for an hour.
func TestFailureIsLoggedOnce(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, approved := range []string{"", dir + "/approved.json"} {
		synctest.Test(t, func(t *testing.T) {
			log := &output{}
			r := registryOf(t, dir, log)
			r.Approved = approved
			for range 2 {
				s := &scan{seen: make(map[string]bool), root: dir}
				s.add(dir+"/m.usher", dir+"/m.usher", discovered{Name: "m", Kind: kindExecutable})
				r.update(s)
				pass(time.Hour)
			}
			check(t, "times that it is logged", strings.Count(log.String(), "module failed"), 1)
		})
	}
}

// TestOddFiles has files that must not be read like files; others are hosted all
// the same.
func TestOddFiles(t *testing.T) {
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
	connect(t, d.URL).awaitTools("a_x")
	logged := func(text string) int { return strings.Count(d.Log.String(), text) }
	await(t, "the odd files in the log", func() bool {
		return logged("it is not a regular file") == 3 && logged("it is larger than 1 MiB") == 2
	})
}

// introspecting returns a registry with a module p that is introspected without end.
func introspecting(t *testing.T, dir string) *Registry {
	t.Helper()
	r := registryOf(t, dir, io.Discard)
	r.introspecting.reserve(kindExecutable, maxIntrospections) // so that no introspection begins
	r.update(scanOf("p"))
	return r
}

// scanOf returns a scan that finds modules in folders of these names.
func scanOf(names ...string) *scan {
	s := &scan{seen: make(map[string]bool)}
	for _, name := range names {
		s.add("", "/w/"+name+"/m.usher", discovered{Name: name, Kind: kindExecutable})
	}
	return s
}

// TestInitializeIsAnsweredAtOnce begins a session while a module is introspected: lists wait for it, initialize
// does not.
func TestInitializeIsAnsweredAtOnce(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	inBubble(t, func(t *testing.T, b *bubble) {
		b.server.modules = introspecting(t, dir)
		begun := time.Now()
		c := b.open(protocols[0])
		check(t, "the wait of initialize", time.Since(begun), 0)
		c.tools()
		check(t, "the wait of a list", time.Since(begun), startupTime)
	})
}

// TestWhoWaitsForModules asks for lists while modules are introspected that take for
// ever: only modules in the scope count, and only at the start.
func TestWhoWaitsForModules(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		begun, r := time.Now(), introspecting(t, dir)
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
		check(t, "pending in its folder", r.Pending(scopeDir("/w/q")), true)
		check(t, "pending in another folder", r.Pending(scopeDir("/w/r")), false)
	})
}

// TestIntrospectionOutlivesItsModule removes a module and adds it again while it is
// introspected: the result of the first introspection does not count.
func TestIntrospectionOutlivesItsModule(t *testing.T) {
	t.Parallel()
	r := registryOf(t, t.TempDir(), io.Discard)
	r.cancel() // no introspection begins
	var versions []*moduleVersion
	for range 2 {
		there := &scan{seen: make(map[string]bool)}
		there.add("", "/nowhere/a.usher", discovered{Name: "a", Kind: kindExecutable})
		r.update(there)
		for _, v := range r.modules {
			versions = append(versions, v)
		}
		for range 2 {
			check(t, "modules after a scan that missed the file", len(r.modules), 1)
			r.update(&scan{})
		}
	}
	check(t, "versions", len(versions), 2)
	check(t, "modules", len(r.modules), 0)
	r.modules[versions[1].key()] = versions[1]
	r.buildModule(&moduleVersion{Status: versions[0].Status}, &manifest{})
	check(t, "the first version is hosted", versions[1].Module != nil, false)
}

// TestListsThatFail has servers that can't list their prompts, and one with a tool that
// MCP forbids: their other tools are hosted.
func TestListsThatFail(t *testing.T) {
	slow(t) // for a list of maxList bytes from a shell
	t.Parallel()
	dir := t.TempDir()
	writeScript(t, dir+"/a.usher", `"tools":{},"prompts":{}`, "")
	writeScript(t, dir+"/b.usher", `"tools":{},"prompts":{}`, `prompts=endless
page=$(head -c 999999 /dev/zero | tr '\0' x)
endless() { result '{"prompts":[],"x":"'$page'","nextCursor":"c"}'; }`)
	writeFake(t, dir+"/c.usher", "good toolsIn="+dir+"/tools")
	write(t, dir+"/tools", `[{"Name":"bad","Schema":{"type":"array"}},{"Name":"x"}]`)
	connect(t, startDaemon(t, dir).URL).awaitTools("a_x", "b_x", "c_x")
	out, _, _ := usher(t, "", "modules", "-base", t.TempDir(), dir)
	checkContains(t, "usher modules", out, "note: prompts/list: no prompts today",
		"note: prompts/list: the list is larger than 16 MiB", "note: tools/list: bad is left out")
	for list, item := range map[string]string{
		"tools": `{"inputSchema":{"type":"object"}}`, "resources": `{"name":"a"}`,
		"prompts": `{}`, "resourceTemplates": `{"uriTemplate":"x://{a}"}`,
	} {
		check(t, list+" may have "+item, checkDefinition(list, json.RawMessage(item)) == nil, false)
	}
}

// TestListsOfASession has processes add a tool: that of a session adds it for nobody, but
// usher looks again at what a new process has.
func TestListsOfASession(t *testing.T) {
	long(t)
	dir := t.TempDir()
	tools := func(more string) { write(t, dir+"/tools", `[{"Name":"grow","Does":"grow"}`+more+"]") }
	tools("")
	writeFake(t, dir+"/own.usher", "good toolsIn="+dir+"/tools")
	writeShared(t, dir, "shared", "good tools=grow")
	c := connect(t, startDaemon(t, dir).URL)
	c.awaitTools("own_grow", "shared_grow")
	tools(`,{"Name":"late"}`)
	check(t, "failure", c.call("own_grow", "").failure()+c.call("shared_grow", "").failure(), "")
	c.awaitTools("own_grow", "own_late", "shared_extra1", "shared_grow")
}

// writeScript writes a module with one tool, x, which begins with a shell command.
func writeScript(t *testing.T, path, capabilities, begin string) {
	t.Helper()
	write(t, path, "#!/bin/sh\n"+begin+"\n"+`
result() { echo '{"jsonrpc":"2.0","id":'$id',"result":'"$1"'}'; }
refuse() { echo '{"jsonrpc":"2.0","id":'$id',"error":{"code":'$1',"message":"'"$2"'"}}'; }
while read -r line; do
	id=${line#*'"id":'}; id=${id%%[,\}]*}
	case $line in
	*'"server/discover"'*) refuse -32601 unknown ;;
	*'"initialize"'*) result '{"protocolVersion":"2025-11-25","capabilities":{`+capabilities+`},
		"serverInfo":{"name":"x","version":"1"}}' | tr -d '\n\t'; echo ;;
	*'"tools/list"'*) result '{"tools":[{"name":"x","inputSchema":{"type":"object"}}]}' ;;
	*'"prompts/list"'*) ${prompts:-refuse -32603} "no prompts today" ;;
	esac
done
`)
	must(t, os.Chmod(path, 0o755))
}

func TestConfigFiles(t *testing.T) {
	long(t)
	dir := t.TempDir()
	exe := testBinary(t)
	entry := func(name, tools string) string {
		return fmt.Sprintf(`%q:{"command":%q,"env":{%q:"good tools=%s"}}`, name, exe, runAsFake, tools)
	}
	path := dir + "/" + configName
	replace := func(entries ...string) {
		write(t, path+".new", `{"mcpServers":{`+strings.Join(entries, ",")+`}}`)
		must(t, os.Rename(path+".new", path))
	}
	replace(entry("one", "x"), entry("two", "pid"))
	d := startDaemon(t, dir)
	c := connect(t, d.URL)
	c.awaitTools("one_x", "two_pid")
	pid := resultText(c.call("two_pid", "").result())
	replace(entry("one", "x"), entry("two", "pid"), `"late":{"command":"${NOPE_NOT_SET}"}`)
	d.awaitLog(t, "module=late kind=.mcp.json")
	replace(`"one":{`) // half an edit
	d.awaitLog(t, "at line 1")
	c.awaitTools("one_x", "two_pid")
	must(t, os.Mkdir(dir+"/sub", 0o755))
	in := fmt.Sprintf(`"three":{"command":%q,"env":{%q:"good tools=env"},"cwd":"sub"}`, exe, runAsFake)
	replace(entry("one", "y"), entry("two", "pid"), in)
	c.awaitTools("one_y", "three_env", "two_pid")
	check(t, "PWD", resultText(c.call("three_env", `{"name":"PWD"}`).result()), "true "+dir+"/sub")
	check(t, "the process of an unchanged entry", resultText(c.call("two_pid", "").result()), pid)
}
