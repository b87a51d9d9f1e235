// Tests of runtimes/shim.py and runtimes/environment.py: modules in Python, both over their pipes
// and hosted by usher.

package main

import (
	"archive/zip"
	"bytes"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

const pythonCalls = "testdata/python/calls.usher.py"

// What usher ships is Python 3.9.
func TestPythonSyntax(t *testing.T) {
	long(t)
	pythonTestVersion(t)
	const code = "import ast, sys\n" +
		"for f in sys.argv[1:]: ast.parse(open(f, encoding='utf-8').read(), f, feature_version=(3, 9))"
	files := []string{"runtimes/shim.py", "runtimes/environment.py", "runtimes/new.usher.py.txt",
		"examples/shop/tables.usher.py",
		"examples/dates/dates.py"}
	out, err := exec.Command(testPython,
		append([]string{"-c", code}, files...)...).CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// Arguments become values of the annotated types.
func TestPythonParameters(t *testing.T) {
	long(t)
	p := startFile(t, pythonCalls)
	// bed returns how a bed of one row is written back.
	bed := func(next string) string { return `{"rows":1,"color":"red","next":` + next + `}` }
	const bed2 = `{"rows":2,"color":"red","next":null}`
	for _, row := range []struct{ tool, arguments, want string }{
		{"echo", `{"bed":{"rows":1,"next":{"rows":2,"color":"red"}}}`,
			`{"bed":["Bed",` + bed(bed2) + `]}`},
		{"echo", `{"beds":[{"rows":1}],"by_name":{"a":{"rows":1}},"by_day":{"7":"x"}}`,
			`{"beds":["list",[` + bed("null") + `]],` +
				`"by_name":["dict",{"a":` + bed("null") + `}],"by_day":["dict",{"7":"x"}]}`},
		{"echo", `{"n":12345678901234567890123,"x":1}`,
			`{"n":["int",12345678901234567890123],"x":["float",1.0]}`},
		{"echo", `{"at":"2026-01-02T03:04:05.123456Z","on":"2026-01-02","data":"aGk="}`,
			`{"at":["datetime","2026-01-02T03:04:05.123456+00:00"],` +
				`"on":["date","2026-01-02"],"data":["bytes","aGk="]}`},
		{"echo", `{"some":[1,1],"pair":[1,"a"],"anything":[{}]}`,
			`{"some":["set",[1]],"pair":["tuple",[1,"a"]],"anything":["list",[{}]]}`},
		{"echo", `{"bed":null,"n":null,"nullable":null}`, `{"nullable":["NoneType",null]}`},
		{"echo", `{"bed":{"rows":1,"next":{"rows":2,"color":null}}}`,
			`{"bed":["Bed",` + bed(bed2) + `]}`},
		// What fits the schema may still be no value of the type.
		{"echo", `{"bed":{"rows":-1}}`, `parameter "bed": rows: less than none`},
		{"echo", `{"by_day":{"x":"y"}}`,
			`parameter "by_day": invalid literal for int() with base 10: 'x'`},
		{"required", `{"name":"a","times":null}`, `["a",null]`},
		{"price", `{"of":0.10}`, `0.1`},
		{"keywords", `{"n":2,"a":[1],"_webhook":{"method":"POST"}}`,
			`{"n":2,"rest":{"a":[1],"_webhook":{"method":"POST"}}}`},
		{"positional", `{"a":1,"b":null,"c":4}`, `[1,null,4]`},
		{"handle_hook", `{"_webhook":{"method":"POST"}}`,
			`{"name":"none","webhook":{"method":"POST"}}`},
	} {
		t.Run(row.tool+row.arguments, func(t *testing.T) {
			check(t, "result", p.CallText(row.tool, row.arguments), row.want)
		})
	}
	deep := strings.Repeat("[", 60000) + strings.Repeat("]", 60000)
	checkContains(t, "deep arguments", p.CallText("echo", `{"anything":`+deep+`}`),
		`reading the arguments: `)
	p.Call("echo", `{"n":`+strings.Repeat("1", 5000)+`}`) // its version decides what becomes of it
	p.End()
}

// A value, an exception and a print of a Python method become results, errors and lines of
// the log.
func TestPythonResults(t *testing.T) {
	long(t)
	p := startFile(t, pythonCalls)
	const unwritable = "the result can't be written as JSON: "
	const known = "want ask and params, progress and total and message, or log and level; " +
		"an asynchronous generator can also yield its result, once"
	for tool, want := range map[string]string{
		"nothing":    `{"content":[]}`,
		"text":       strings.ReplaceAll(shownText("a <b> \u2028 \"c\"\n"), `\u2028`, "\u2028"),
		"big":        shownObject(`{"n":1267650600228229401496703205376}`),
		"structured": shownObject(`{"a":1,"2":"b","null":3}`),
		"record":     shownObject(`{"rows":1,"color":"red","next":{"rows":2,"color":"red","next":null}}`),
		"surrogate": `{"content":[{"type":"text","text":"{\"text\":\"\\ud800 and \\ud83d\\ude00\"}"}],` +
			`"structuredContent":{"text":"\ud800 and \ud83d\ude00"}}`,
		"converted": shownText(`["2026-01-02T03:04:05+00:00","2026-01-02","03:04:05",60.0,[1,2,3],["a"],` +
			`"aGk=","a/b",[],[0,1],"red"]`),
		"fail":           shownFailure("no <way>"),
		"fail_chained":   shownFailure("chained"),
		"leave":          shownFailure("SystemExit: 3"),
		"leave_in_task":  shownText("stayed"),
		"interrupt":      shownFailure("KeyboardInterrupt"),
		"unknown":        shownFailure("unknown yield of aks, params: " + known),
		"unknown_async":  shownFailure("unknown yield of int: " + known),
		"progress_async": shownText("not this"),
		"nan":            unwritable + "Out of range float values are not JSON compliant",
		"cycle":          shownFailure(unwritable + "Circular reference detected"),
		"unserialisable": shownFailure(unwritable + "a value of type Lock"),
		"bad_key": shownFailure(unwritable +
			"keys must be str, int, float, bool or None, not tuple"),
		"noise":           shownObject(`{"stdin":"","line":""}`),
		"locked":          shownText("true"),
		"a-method-unseen": `{"code":-32601,"message":"unknown method or tool in tools/call"}`,
	} {
		t.Run(tool, func(t *testing.T) {
			got := p.Call(tool, "{}")
			if strings.HasPrefix(want, "{") {
				check(t, "result", got, want)
			} else {
				checkContains(t, "result", got, want)
			}
		})
	}
	check(t, "a decorated method", p.Call("wrapped", `{"n":3}`), shownText("3"))
	check(t, "bytes of a large result", len(p.CallText("large", `{"mib":5}`)), 5<<20)
	p.End()
	log := p.Stderr.String()
	checkContains(t, "the log", log, "at the top level\n", "printed \\ud800\n",
		"original\n", "descriptor\n", "child\n",
		"calls.usher.py\", line ", "ValueError: no <way>\n", "ZeroDivisionError")
	checkOmits(t, "the log", log, "in in_thread", "in on_loop") // the shim's own stacks
}

// A cancelled coroutine or generator ends, and a cancelled call is answered after its end.
func TestPythonConfirmsCancellation(t *testing.T) {
	long(t)
	p := startFile(t, pythonCalls)
	for i, tool := range []string{"wait", "generate", "generate_async"} {
		p.SendCall(strconv.Itoa(i), tool, "{}")
	}
	await(t, "the call to wait", func() bool {
		return strings.Contains(p.Call("seen", "{}"), "waits")
	})
	p.CancelCall("0")
	await(t, "the answer to the cancelled coroutine", func() bool {
		got := p.Call("seen", "{}")
		check(t, "it is answered after its end", p.Cancelled["0"] &&
			!strings.Contains(got, "cancelled"), false)
		return p.Cancelled["0"]
	})
	p.SendCall(`"s"`, "sleep", `{"seconds":0.5}`)
	for _, id := range []string{"1", "2", `"s"`, "77"} {
		p.CancelCall(id)
	}
	p.SendCall("8", "wait", "{}")
	p.CancelCall("8") // maybe before its first step
	await(t, "the end of all that was cancelled", func() bool {
		got := p.Call("seen", "{}")
		return strings.Contains(got, "cancelled") &&
			strings.Contains(got, `closed\",\"closed async`)
	})
	check(t, "another call", p.Call("sleep", `{"seconds":0.6}`), shownText("slept"))
	p.CheckCancelled(`"s"`, "0", "1", "2", "8")
	// Calls under way don't keep the process.
	p.SendCall("9", "wait", "{}")
	p.SendCall("10", "sleep", `{"seconds":600}`)
	p.Request("tools/list", "{}")
	check(t, "output after the end", p.End(), "")
	checkOmits(t, "the log", p.Stderr.String(), "Traceback", "never awaited")
}

// A file that can't be loaded ends the shim with one line, which names the file's line.
func TestPythonLoadErrorIsOneLine(t *testing.T) {
	long(t)
	pythonTestVersion(t)
	dir := t.TempDir()
	write(t, dir+"/helper.py", "def go():\n    no_such_thing\n\ngo()\n")
	write(t, dir+"/broken.py", "x = (\n")
	files := map[string]struct{ text, want string }{
		"syntax": {"\ndef f(:\n", "syntax.usher.py:2: SyntaxError: "},
		"inner": {"import helper\n",
			"helper.py:2: NameError: name 'no_such_thing' is not defined"},
		"neighbor": {"import broken\n", "broken.py:"}, // the line is the version's choice
		"leaves": {"import sys\nsys.exit('no configuration')\n",
			"leaves.usher.py:2: SystemExit: no configuration"},
		"null": {"x = 1\x00", "null.usher.py: "},
	}
	for name, file := range files {
		write(t, dir+"/"+name+".usher.py", file.text)
	}
	write(t, dir+"/odd.usher.py", "from __future__ import annotations\ndef f(a: Gone): pass\n")
	out := modulesOf(t, dir)
	checkContains(t, "usher modules", out,
		"note: f: a may be anything, because its annotation is invalid: name 'Gone' is not defined")
	for _, name := range slices.Sorted(maps.Keys(files)) {
		t.Run(name, func(t *testing.T) {
			want := fmt.Sprintf("module %q exited at startup (exit status 1): %s", name,
				files[name].want)
			checkContains(t, "usher modules", out, want)
		})
	}
}

// A module finds its neighbors and its own name, and writes nothing beside it. A traceback
// is one record of the log.
func TestPythonModuleFindsItsNeighbors(t *testing.T) {
	long(t)
	pythonTestVersion(t)
	dir := t.TempDir()
	copyFiles(t, "testdata/python/hosted", dir, "m.usher.py", "neighbor.py")
	d := startDaemon(t, dir)
	c := connect(t, d.URL)
	c.AwaitTools("m_large", "m_small", "m_where")
	check(t, "small", c.Call("m_small", "").Failure(), "KeyError: 'x'")
	d.awaitLog(t, `line="Traceback (most recent call last):\n  File \"`+dir+
		`/m.usher.py\", line 5, in small\n`)
	check(t, "where", c.Call("m_where", "").Text(), `["m.usher.py","m_usher",true,5]`)
	check(t, "large", c.Call("m_large", "").Failure(),
		"the module's answer can't be read: it is larger than 64 MiB")
	check(t, "files", folderNames(t, dir), []string{"m.usher.py", "neighbor.py"})
}

// The nearest virtual environment runs a module, from its folder up to the outermost served one.
// The error of an import names the interpreter.
func TestPythonVirtualEnvironment(t *testing.T) {
	long(t)
	minor := pythonTestVersion(t)
	dir, base := t.TempDir(), t.TempDir()
	python, err := exec.LookPath(testPython)
	must(t, err)
	must(t, exec.Command(python, "-m", "venv", "--without-pip", dir+"/.venv").Run())
	write(t, fmt.Sprintf("%s/.venv/lib/python3.%d/site-packages/only_here.py", dir, minor),
		"def answer(): return undefined\n")
	write(t, dir+"/a/m.usher.py", "import only_here\nX = 42\ndef f(): return X\n")
	call := func(code int, says, served string) {
		wantUsher(t, code, says, "call", "-base", base, "-dir", served, "m", "f")
	}
	call(0, "42", dir)
	call(1, "run by "+python+": m.usher.py:1: ModuleNotFoundError: No module named 'only_here': "+
		"install it into a .venv, or list it in a # /// script block", dir+"/a")
	// A failure shows the user's own line, not the library's.
	write(t, dir+"/a/m.usher.py", "import only_here\nonly_here.answer()\n")
	call(1, ": m.usher.py:2: NameError: name 'undefined' is not defined", dir)
}

// A Python file that lists its dependencies runs in an environment of its own, which is made once.
// Why one can't be made, the client reads too.
func TestPythonDependencies(t *testing.T) {
	long(t)
	minor := pythonTestVersion(t)
	if exec.Command(testPython, "-c", "import ensurepip, venv").Run() != nil {
		lack(t, "Python's venv and pip")
	}
	dir, wheels := t.TempDir(), t.TempDir()
	var wheel bytes.Buffer
	archive := zip.NewWriter(&wheel)
	must(t, archive.AddFS(os.DirFS("testdata/python/wheel")))
	must(t, archive.Close())
	write(t, wheels+"/here-1.5-py3-none-any.whl", wheel.String())
	env := map[string]string{"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": wheels}
	d := daemonOptions{ownProcess: true, env: env}.start(t, dir)
	c := connect(t, d.URL)
	save := func(block, text string) {
		write(t, dir+"/m.usher.py", "# /// script\n# "+block+"\n# ///\n"+text)
	}
	wants := func(what, want string) {
		t.Helper()
		checkContains(t, what, c.Call("m_f", "").Text(), want)
	}
	const good = `dependencies = ["here>=1"]`
	save(good, "import here\ndef f(): return here.version\n")
	d.awaitLog(t, `msg="module added" module=m`)
	wants("the first version", "1.5")
	checkContains(t, "the log", d.Log.String(), "msg=building module=m")
	must(t, os.RemoveAll(wheels))
	save(good, "import here\ndef f(): return 'new ' + here.version\n")
	wants("another version with the same block", "new 1.5")
	d.stop(t)
	cache := d.Base + "/.data/cache/python"
	folder := cache + "/" + folderNames(t, cache)[0]
	info, err := os.Stat(folder)
	must(t, err)
	check(t, "its mode", info.Mode().Perm(), 0o700)

	// The next interpreter takes the pip of that environment: installing pip is slow.
	bare := t.TempDir()
	must(t, exec.Command(testPython, "-m", "venv", "--without-pip", bare).Run())
	env["PATH"] = bare + "/bin:" + os.Getenv("PATH")
	site := fmt.Sprintf("/lib/python3.%d/site-packages/", minor)
	restart := func(custom string) {
		write(t, bare+site+"sitecustomize.py", custom)
		d = daemonOptions{base: d.Base, ownProcess: true, env: env}.start(t, dir)
		c = connect(t, d.URL)
	}
	const fails = `module "m" can't be hosted: can't be installed: m.usher.py: `
	save(`dependencies = ["absent"]`, "")
	restart("import os, venv\n" +
		"def link(_, new): os.symlink('" + folder + site + "pip', new.env_dir + '" + site + "pip')\n" +
		"venv.EnvBuilder._setup_pip = link\n")
	wants("a package that is not there", fails+"ERROR: Could not find a version")
	checkContains(t, "the log", d.Log.String(), "No matching distribution found for absent")
	save(`requires-python = ">=3.99"`, "")
	wants("another Python", fmt.Sprint(fails, "requires-python is >=3.99, but this is Python 3.", minor))
	check(t, "environments", len(folderNames(t, cache)), 1)

	// A daemon's start removes an old one. An interpreter without pip can't make another.
	d.stop(t)
	old := time.Now().Add(-keepVenvs)
	must(t, os.Chtimes(folder, old, old))
	restart("import sys\nsys.modules['ensurepip'] = None\n")
	d.awaitLog(t, "install Python's venv and pip (Debian: python3-venv)")
	check(t, "environments at last", len(folderNames(t, cache)), 0)
}
