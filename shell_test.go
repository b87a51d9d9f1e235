// Shell modules: what their functions receive and return, and that they don't affect other modules.

package main

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
)

// A shell function gets its arguments in order, unevaluated, and all of them on stdin. Its
// output is the result.
func TestShellFunctions(t *testing.T) {
	long(t)
	need(t, "bash")
	mark, processes := markProcesses(t)
	dir := t.TempDir()
	copyFiles(t, "testdata/shell", dir, "s.usher.sh")
	d := daemonOptions{ownProcess: true, env: map[string]string{markVar: mark}}.start(t, dir)
	c := connect(t, d.URL)
	await(t, "the module", func() bool { return len(c.Tools()) == 13 })
	for _, tt := range []struct{ name, tool, arguments, want string }{
		{"arguments in order", "args", `{"c":true,"a":"x y","b":{"k":[1]}}`,
			`[./s.usher.sh][x y][{"k":[1]}][true]`},
		{"those left out are empty", "args", `{"a":""}`, `[./s.usher.sh][][][]`},
		{"nothing is evaluated", "args", `{"a":"$(touch bad); ` + "`touch bad`" +
			` '; touch bad #\""}`,
			"[$(touch bad); `touch bad` '; touch bad #\"]"},
		{"all of them on stdin", "whole", `{"a":"é\n","n":9007199254740993}`,
			`{"a":"é\n","n":9007199254740993}`},
		{"an object keeps its digits", "object", ``,
			`"structuredContent":{"a":12345678901234567890}`},
		{"its file", "file", ``, "BASH_SOURCE s.usher.sh"},
		{"nothing", "nothing", ``, `{"content":[]}`},
		{"the last lines of a failure", "fail", ``, "5\n6\n7\n8\n9"},
		{"a failure without a word", "mute", ``, "s.usher.sh ended with exit status 4"},
		{"a flood", "flood", ``, "larger than 4 MiB"},
		{"a process left behind", "forks", `{"unread":"` +
			strings.Repeat("x", 200_000) + `"}`, "done"},
		{"all memory", "hog", ``, `"isError":true`},
		{"an argument that is too long", "args", `{"a":"` + strings.Repeat("x", 200_000) + `"}`,
			"argument list too long"},
		{"a NUL", "args", `{"a":"x\u0000y"}`, `invalid argument`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			result := c.Call("s_"+tt.tool, tt.arguments).Result()
			checkContains(t, "result", string(result)+resultText(members(result)), tt.want)
		})
	}
	t.Run("cancelled", func(t *testing.T) {
		stuck := make(chan answer, 1)
		go func() {
			stuck <- c.Post(rpcAs(`"stuck"`, "tools/call", `{"name":"s_stubborn"}`))
		}()
		await(t, "the function to run", func() bool {
			return strings.Contains(processes(), "stubborn")
		})
		c.Cancel(`"stuck"`)
		<-stuck
		await(t, "its processes to end", func() bool {
			return !strings.Contains(processes(), "sleep 1000")
		})
		check(t, "the next call", c.Call("s_nothing", "").Failure(), "")
	})
	check(t, "files", folderNames(t, dir), []string{"s.usher.sh"})
	d.stop(t)
	await(t, "all processes to end", func() bool { return processes() == "" })
}

// The call of a function has released its slot when it is answered.
func TestShellCallReleasesItsSlot(t *testing.T) {
	t.Parallel()
	var processes sync.WaitGroup
	defer processes.Wait()
	dir := t.TempDir()
	path := dir + "/m.usher.sh"
	write(t, path, "# Does nothing.\nf() { :; }\n")
	runner := &shellRunner{
		poolConfig: poolConfig{
			source:  source{Name: "m", Kind: kindShell, Source: path, Launch: launch{Dir: dir}},
			log:     quiet,
			running: &processes,
		},
		kept:  t.Context(),
		check: func(s source) (source, error) { return s, nil },
	}
	running := counter{perKey: 1}
	c := newCall(t.Context(), Caller{})
	c.slot = &slot{counter: &running, key: everyone}
	<-c.slot.queue()
	_, err := runner.request(c, "tools/call", object{{"name", quote("f")}})
	must(t, err)
	check(t, "running calls", running.count(everyone), 0)
}

// A background process that writes keeps running until its module is removed.
func TestShellBackgroundEndsWithItsModule(t *testing.T) {
	long(t)
	need(t, "sh")
	dir := t.TempDir()
	const script = "# Leaves a process behind.\nforks() { while echo here; do sleep 0.1; done & echo $!; }\n"
	write(t, dir+"/m.usher.sh", script)
	c := connect(t, startDaemon(t, dir).URL)
	c.AwaitTools("m_forks")
	var pid int
	_, err := fmt.Sscan(strings.Trim(c.Call("m_forks", "").Text(), "her\n"), &pid)
	must(t, err)
	write(t, dir+"/m.usher.sh", script+"# More.\nmore() { :; }\n")
	c.AwaitTools("m_forks", "m_more")
	check(t, "it lives after an edit", processAlive(pid), true)
	must(t, os.Remove(dir+"/m.usher.sh"))
	await(t, "its end", func() bool { return !processAlive(pid) })
}

// A script that no shell reads is reported with the reason.
func TestShellFaultsAreReported(t *testing.T) {
	t.Parallel()
	need(t, "sh")
	dir := t.TempDir()
	write(t, dir+"/a.usher.sh", "#!/bin/sh\n\n# A.\na() {\n\tif\n}\n")
	write(t, dir+"/b.usher.sh", "#!/usr/bin/perl\n")
	write(t, dir+"/c.usher.sh", "#!/bin/sh\r\n\r\n# C.\r\nc() { :; }\r\n")
	write(t, dir+"/d.usher.sh", "# D.\nd() { local -a list=(a b); }\n")
	write(t, dir+"/e.usher.sh", "#!/bin/sh\n# E.\ne() { :; }\ntrap 'echo end' EXIT\necho usage >&2\nexit 0\n")
	write(t, dir+"/f.usher.sh", "#!/bin/sh\n# F.\nf() { :; }\nexit 3\n")
	out := modulesOf(t, dir)
	checkContains(t, "usher modules", out, "a.usher.sh: ", "yntax error",
		"want sh, bash", "its lines end with",
		"d.usher.sh: ", " unexpected", " (bash syntax needs #!/usr/bin/env bash in line 1)\n",
		"\"e\" can't be read: usage\n      it ends itself: move its commands below "+
			"if [ \"${BASH_SOURCE[0]}\" = \"$0\" ]\n",
		"\"f\" can't be read: it ends itself: ")
	checkOmits(t, "a script that names its shell", out, "needs #!/usr/bin/env bash in line 1)\n\nb")
}

// A function is a method if the shell reports it as a function. Reserved words are refused:
// one would run the caller's argument. A script that runs its own arguments, as many do at their
// end, gets none: no value of a call becomes a command.
func TestShellNames(t *testing.T) {
	long(t)
	need(t, "sh")
	script := readFile(t, "testdata/shell/names.usher.sh")
	reserved := readFile(t, "testdata/shell/reserved.sh")
	values := readFile(t, "testdata/shell/values.sh")
	functions := []string{"say", "test", "touch", "echo"}
	for shell, more := range map[string]string{
		"sh":   "",
		"dash": "",
		"bash": reserved,
		"zsh":  reserved,
		"ksh":  "",
	} {
		t.Run(shell, func(t *testing.T) {
			if _, err := exec.LookPath(shell); err != nil {
				skip(t, err) // CI has sh and bash
			}
			dir, base := t.TempDir(), t.TempDir()
			write(t, dir+"/m.usher.sh", "#!/usr/bin/env "+shell+"\n"+script+more)
			write(t, dir+"/values.usher.sh", "#!/usr/bin/env "+shell+"\n"+values)
			out, _, _ := usher(t, "modules", "-json", "-base", base, dir)
			for _, name := range append(functions, "builtin", "mkdir", "time") {
				hosted := strings.Contains(out, `"method": "`+name+`"`)
				check(t, name+" is hosted", hosted, slices.Contains(functions, name))
			}
			check(t, "say-so is hosted", strings.Contains(out, `"method": "say-so"`),
				more != "")
			checkContains(t, "problems", out, "mkdir: "+shell+" can't call")
			for _, tt := range []struct{ name, text, want string }{
				{"say", "a", "said a"},
				{"test", "a", "tested a"},
				{"touch", "a", "touched a"},
				{"touch", "gone", "the script defines no function touch"},
			} {
				arguments := `{"text":"` + tt.text + `"}`
				said := callSays(t, base, dir, "m", tt.name, arguments)
				checkContains(t, tt.name+" "+tt.text, said, tt.want)
			}
			said := callSays(t, base, dir, "values", "values", `{"a":"touch","b":"bad *"}`)
			check(t, "the values of a call", said, "[2][touch][bad *]\n")
			check(t, "files", folderNames(t, dir), []string{"m.usher.sh", "values.usher.sh"})
		})
	}
}

// Functions have any form that shells accept, and output that is not UTF-8 is bytes. :: and . in their
// names become _, and two functions that get the same name are no methods. A comment with a @param may
// be apart. An argument without a @param is reported. The main function of the script does not run.
func TestShellLibrary(t *testing.T) {
	long(t)
	need(t, "bash")
	dir, base := t.TempDir(), t.TempDir()
	copyFiles(t, "testdata/shell", dir, "library.usher.sh")
	out, _, _ := usher(t, "modules", "-base", base, dir)
	for _, line := range []string{
		"  Shows how libraries of functions look.",
		"    library_say_hello(name: string, times: integer)\n        Says hello to somebody.",
		"    library_clean\n        Removes old files.",
		"    library_own\n        Runs in a shell of its own.",
	} {
		checkContains(t, "usher modules", out, line+"\n")
	}
	checkContains(t, "usher modules", out, "    library_text_join_all(arg1: string, arg2: string)\n",
		"    library_apart(word: string)\n        Is apart.\n", "    library_bare\n",
		"note: a_b: bash can't call a function of this name, or has two: rename it\n",
		"note: undescribed: @param $1: want {type} name text\n",
		"note: counts: @param $1: want {type} name text\n",
		"note: second: @param $1: want {type} name text\n",
		"note: code: @param $1: want {type} name text\n",
		"note: there: @param $1: want {type} name text\n",
		"note: below: @param $1: want {type} name text\n")
	checkOmits(t, "usher modules", out, "library_a_b", "library_without_comment", "gone", "note: column",
		"note: length", "note: silent", "library_without_comment_too")
	for _, tt := range []struct{ method, arguments, want string }{
		{"say_hello", `{"name":"a b","times":2}`, "[a b][2]\n"},
		{"say_hello", `{"name":"a","times":"b"}`, `parameter "times": want integer`},
		{"clean", `{}`, "cleaned\n"},
		{"text_join_all", `{"arg1":"a","arg2":"b"}`, "a-b"},
		{"apart", `{"word":"a"}`, "apart a\n"},
		{"bare", `{}`, "0\n"},
		{"picture", `{}`, `{"type":"image","data":"iVBORw0KGgo=","mimeType":"image/png"}` + "\n"},
		{"latin", `{}`, "Y2Fm6Q==\n"},
	} {
		checkContains(t, tt.method, callSays(t, base, dir, "library", tt.method, tt.arguments), tt.want)
	}
}

// A first line for shellcheck determines the shell. The first comment that is no licence describes the
// module, unless a function or a variable is above it.
func TestShellBeginning(t *testing.T) {
	long(t)
	need(t, "bash")
	dir := t.TempDir()
	write(t, dir+"/m.usher.sh",
		"# shellcheck shell=bash disable=SC2034\n# Lists.\n\n"+
			"# All.\nall() { local a=(b c); echo \"${a[1]}\"; }\n")
	write(t, dir+"/late.usher.sh", "#!/bin/sh\nset -e\nhelp() { :; }\n# Today.\nday=1\n# A.\na() { :; }\n")
	write(t, dir+"/var.usher.sh", "#!/bin/sh\n# Copyright A.\n\nday=1\n# Tomorrow.\nat=2\n# A.\na() { :; }\n")
	write(t, dir+"/set.usher.sh", "#!/bin/sh\nset -e\n# Copyright A.\n\n# Deploys.\n\n# A.\na() { :; }\n")
	out := modulesOf(t, dir)
	checkContains(t, "usher modules", out, "  Lists.\n    m_all\n        All.\n", "  Deploys.\n    set_a\n")
	checkOmits(t, "usher modules", out, "Today", "Tomorrow", "Copyright")
	check(t, "a call", callSays(t, t.TempDir(), dir, "m", "all", `{}`), "c\n")
}

// Options in the first line count.
func TestShellOptions(t *testing.T) {
	long(t)
	need(t, "bash")
	const script = "\n\n# Deploys.\n# @param {string} text what\ndeploy() { false; echo DEPLOYED; }\n"
	// Only with this option, the shell can read the function.
	const extended = "other() { case $1 in !(a)) ;; esac; }\n"
	for first, want := range map[string]string{
		"#!/bin/bash":                          "DEPLOYED",
		"#!/bin/bash -eu":                      "m.usher.sh ended with exit status 1",
		"#!/bin/bash -o errexit -":             "m.usher.sh ended with exit status 1",
		"#!/usr/bin/env -S bash -euo pipefail": "m.usher.sh ended with exit status 1",
		"#!/bin/bash -O extglob":               "DEPLOYED",
	} {
		dir := t.TempDir()
		text := first + script
		if strings.Contains(first, "extglob") {
			text += extended
		}
		write(t, dir+"/m.usher.sh", text)
		said := callSays(t, t.TempDir(), dir, "m", "deploy", `{"text":""}`)
		checkContains(t, first, said, want)
	}
}
