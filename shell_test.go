// Shell modules: what their functions get and give, and what they may do to
// others, which is nothing.

package main

import (
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"
)

const shellModule = `#!/bin/bash
# Does as it is told.

# Gives its arguments back.
# @param {string} a first
# @param {object} [b] second
# @param {boolean} [c] third
args() { printf '[%s]' "$0" "$@" | sed "s|$PWD|.|"; }

# Gives its input back.
whole() { cat; }

# Counts.
# @param {integer} n how far
count() { for i in $(seq "$1"); do echo "::progress $i $1 step $i" >&2; done; echo over; }

# Fails.
fail() { seq 9 >&2; return 3; }

# Fails without a word.
mute() { return 4; }

# Gives an object.
object() { printf '{\n"a": 12345678901234567890\n}\n'; }

# Gives a result of MCP's own form.
result() { echo '{"content":[{"type":"image","data":"","mimeType":"image/png"}],"isError":false}'; }

# Gives nothing.
nothing() { :; }

# Gives no UTF-8.
noise() { printf '\377\376{"jsonrpc":"2.0","id":1}'; }

# Floods.
flood() { head -c 100000000 /dev/zero | tr '\0' x; }

# Leaves a process behind.
forks() { sleep 999 & echo done; }

# Leaves one behind that writes.
# @param {string} file when it is there, so does that process
lives() { { until [ -e "$1" ]; do echo still here; echo and here >&2; sleep 0.1; done; echo over >"$1"; } & echo left; }

# Takes all memory, but for a limit.
hog() { ulimit -v 300000; x=xxxxxxxx; while :; do x=$x$x; done; }

# Does not listen.
stubborn() { trap '' TERM; while :; do sleep 1000; done; }

_hidden() { :; }
undocumented() { :; }
`

func TestShellModule(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("no shell")
	}
	need(t, "bash")
	marker := "USHER_TEST_SHELL=" + t.TempDir()
	key, value, _ := strings.Cut(marker, "=")
	t.Setenv(key, value)
	dir := t.TempDir()
	write(t, dir+"/s.usher.sh", shellModule)
	d := startDaemon(t, dir, "-call-timeout", "10s")
	c := connect(t, d.URL)
	await(t, "the module", func() bool { return len(c.tools()) == 14 })
	for _, tt := range []struct{ name, tool, arguments, want string }{
		{"arguments in order", "args", `{"c":true,"a":"x y","b":{"k":[1]}}`, `[./s.usher.sh][x y][{"k":[1]}][true]`},
		{"those left out are empty", "args", `{"a":""}`, `[./s.usher.sh][][][]`},
		{"nothing is evaluated", "args", `{"a":"$(touch bad); ` + "`touch bad`" + ` '; touch bad #\""}`, "[$(touch bad); `touch bad` '; touch bad #\"]"},
		{"an option is no option", "args", `{"a":"-n"}`, "[-n]"},
		{"all of them on stdin", "whole", `{"a":"é\n","n":9007199254740993}`, `{"a":"é\n","n":9007199254740993}`},
		{"an object keeps its digits", "object", ``, `"structuredContent":{"a":12345678901234567890}`},
		{"a result of MCP's own form", "result", ``, `"type":"image"`},
		{"nothing", "nothing", ``, `{"content":[]}`},
		{"what is no UTF-8", "noise", ``, "\uFFFD{"},
		{"the last lines of a failure", "fail", ``, "5\n6\n7\n8\n9"},
		{"a failure without a word", "mute", ``, "mute ended with exit status 4"},
		{"a flood", "flood", ``, "larger than 32 MiB"},
		{"a process left behind", "forks", ``, "done"},
		{"all memory", "hog", ``, `"isError":true`},
		{"an argument that is too long", "args", `{"a":"` + strings.Repeat("x", 200_000) + `"}`, "argument list too long"},
		{"a NUL", "args", `{"a":"x\u0000y"}`, "invalid argument"},
	} {
		a := c.call("s_"+tt.tool, tt.arguments)
		if !strings.Contains(string(a.result()), tt.want) && !strings.Contains(resultText(a.result()), tt.want) {
			t.Errorf("%s: %s", tt.name, clipText(a.Body, 300))
		}
	}
	if a := c.ask("tools/call", `{"name":"s_count","arguments":{"n":3},"_meta":{"progressToken":"p"}}`); len(a.Events) != 4 || !strings.Contains(string(a.Events[1]), `"progress":2,"message":"step 2","total":3`) {
		t.Errorf("progress: %s", a.Body)
	}
	stuck := make(chan answer, 1)
	go func() {
		stuck <- c.post(`{"jsonrpc":"2.0","id":"stuck","method":"tools/call","params":{"name":"s_stubborn"}}`)
	}()
	await(t, "the function to run", func() bool {
		return strings.Contains(strings.Join(marked(t, marker), "\n"), "stubborn")
	})
	c.post(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"stuck"}}`)
	<-stuck
	await(t, "its processes to end", func() bool { return !strings.Contains(strings.Join(marked(t, marker), "\n"), "sleep 1000") })
	if a := c.call("s_nothing", ""); a.failure() != "" {
		t.Errorf("after all that: %s", a.Body)
	}
	// What a function leaves running lives on, also where it writes.
	file := t.TempDir() + "/file"
	if a := c.call("s_lives", `{"file":`+string(quote(file))+`}`); !strings.Contains(resultText(a.result()), "left") {
		t.Errorf("what leaves a process behind: %s", a.Body)
	}
	if !strings.Contains(strings.Join(marked(t, marker), "\n"), "sleep 999") {
		t.Error("what was left behind has ended")
	}
	write(t, file, "")
	await(t, "what was left behind", func() bool { text, _ := os.ReadFile(file); return string(text) == "over\n" })
	if entries, _ := os.ReadDir(dir); len(entries) != 1 {
		t.Errorf("something was written: %v", entries)
	}
	d.stop(t)
	await(t, "all processes to end", func() bool { return len(marked(t, marker)) == 0 })
}

func TestShellFaults(t *testing.T) {
	t.Parallel()
	need(t, "sh")
	dir := t.TempDir()
	write(t, dir+"/a.usher.sh", "#!/bin/sh\n\n# A.\na() {\n\tif\n}\n")
	write(t, dir+"/b.usher.sh", "#!/usr/bin/perl\n")
	out, _, _ := usher(t, "", "modules", "-base", t.TempDir(), dir)
	for _, want := range []string{"a.usher.sh: ", "yntax error", `names no shell`} {
		if !strings.Contains(out, want) {
			t.Errorf("usher modules does not say %q:\n%s", want, out)
		}
	}
}

// A function is a method if the shell reports it as a function. A reserved word, or a
// name in a here-document, once ran the caller's argument, or a program on PATH.
func TestShellNames(t *testing.T) {
	t.Parallel()
	need(t, "sh")
	const script = `
# Says it.
# @param {string} text what
say() { printf 'said %s' "$1"; }

# Tests it. The name is also a command's.
# @param {string} text what
test() { printf 'tested %s' "$1"; }

# Prints it.
# @param {string} text what
echo() { printf 'printed %s' "$1"; }

# Runs it.
# @param {string} text what
builtin() { printf '%s' "$1"; }

# Is defined in some calls only.
# @param {string} text what
touch() { printf 'touched %s' "$1"; }
read line
case $line in *gone*) unset -f touch ;; esac

cat <<X
# Makes a folder.
# @param {string} text which
mkdir() {
X
`
	const reserved = "\n# Runs it.\n# @param {string} text what\nfunction time() { printf '%s' \"$1\"; }\n"
	shells := map[string]string{"sh": "", "dash": "", "bash": reserved, "zsh": reserved, "ksh": ""}
	for shell, more := range shells {
		if _, err := exec.LookPath(shell); err != nil {
			continue // CI has sh and bash
		}
		dir, base := t.TempDir(), t.TempDir()
		write(t, dir+"/m.usher.sh", "#!/usr/bin/env "+shell+"\n"+script+more)
		out, _, _ := usher(t, "", "modules", "-json", "-base", base, dir)
		for _, name := range []string{"say", "test", "touch", "echo", "builtin", "mkdir", "time"} {
			hosted := strings.Contains(out, `"method": "`+name+`"`)
			if want := slices.Contains([]string{"say", "test", "touch", "echo"}, name); hosted != want {
				t.Errorf("%s: %s is hosted: %v, want %v:\n%s", shell, name, hosted, want, out)
			}
			if name == "mkdir" && !strings.Contains(out, name+": "+shell+" can't call") {
				t.Errorf("%s: no problem names %s:\n%s", shell, name, out)
			}
		}
		for _, tt := range []struct{ name, text, want string }{
			{"say", "a", "said a"},
			{"test", "a", "tested a"},
			{"echo", "a", "printed a"},
			{"touch", "a", "touched a"},
			{"touch", "gone", "the script defines no function touch"},
		} {
			out, stderr, _ := usher(t, "", "call", "-base", base, "-dir", dir, "m", tt.name, `{"text":"`+tt.text+`"}`)
			if !strings.Contains(out+stderr, tt.want) {
				t.Errorf("%s: a call of %s gives %q, %q, want %q", shell, tt.name, out, stderr, tt.want)
			}
		}
		if _, err := os.Stat(dir + "/gone"); err == nil {
			t.Errorf("%s: a call has run the program touch", shell)
		}
	}
}

// Options in the first line once counted for nothing.
func TestShellOptions(t *testing.T) {
	t.Parallel()
	need(t, "bash")
	const script = "\n\n# Deploys.\n# @param {string} text what\ndeploy() { false; echo DEPLOYED; }\n"
	for first, deploys := range map[string]bool{
		"#!/bin/bash":                          true,
		"#!/bin/bash -":                        true,
		"#!/bin/bash -eu":                      false,
		"#!/bin/bash -o errexit -":             false,
		"#!/usr/bin/env bash -e\r":             false,
		"#!/bin/bash\nset -e":                  false,
		"#!/usr/bin/env -S bash -euo pipefail": false,
	} {
		dir, base := t.TempDir(), t.TempDir()
		write(t, dir+"/m.usher.sh", first+script)
		out, stderr, _ := usher(t, "", "call", "-base", base, "-dir", dir, "m", "deploy", `{"text":""}`)
		fails := strings.Contains(stderr, "deploy ended with exit status 1")
		if strings.Contains(out, "DEPLOYED") != deploys || fails == deploys {
			t.Errorf("%q: %q, %q", first, out, stderr)
		}
	}
}
