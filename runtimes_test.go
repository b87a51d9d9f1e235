// Which files are modules, and how they are started.

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

func TestModuleFiles(t *testing.T) {
	for file, want := range map[string]string{
		"a.usher.go": "a go", "a.usher.py": "a python", "a.usher.ts": "a node", "a.usher.mjs": "a node",
		"a.usher.sh": "a shell", "a.usher": "a executable", "a-b_1.usher.go": "a-b_1 go",
		"a.usher.rb": "", "a.go": "", "usher.go": "", "a.usher.go.bak": "", "a.usher~": "",
		"a.b.usher": "a.b executable", "a.usher.exe": "a executable",
	} {
		name, kind, ok := moduleFile(file)
		got := ""
		if ok {
			got = name + " " + string(kind)
		}
		check(t, file, got, want)
	}
}

func TestParseConfig(t *testing.T) {
	for name, value := range map[string]string{
		"HOME": "/h", "EMPTY": "", "ODD": "\"\n\\\"", webhookSecretVar: "s3cret", "stripe_signing_secret": "s3cret",
	} {
		t.Setenv(name, value)
	}
	for _, tt := range []struct{ name, entry, want string }{
		{"a command and its arguments", `{"command":"node","args":["x","y z"]}`, "node x|y z"},
		{"variables", `{"command":"${HOME}/bin/${NAME:-srv}","args":["${EMPTY:-d}","$5","${EMPTY}"]}`,
			"/h/bin/srv d|$5|"},
		{"a variable that JSON has to escape",
			`{"command":"x","args":["${ODD}","${NO:-\"}"],"env":{"A":"${NO:-}${HOME}"}}`, "x \"\n\\\"|\" A=/h"},
		{"two in one default", `{"command":"x","args":["${NO:-y","z}"]}`, "x ${NO:-y|z}"},
		{"environment", `{"command":"x","env":{"B":"${HOME}","A":"1"}}`, "x  A=1|B=/h"},
		{"a variable that is not set", `{"command":"x","args":["${NOPE}"]}`, "${NOPE} is not set"},
		{"the daemon's secret with a default", `{"command":"x","env":{"K":"${SERVICE_WEBHOOK_SECRET:-x}"}}`,
			"webhook secrets"},
		{"variables as others write them", `{"command":"x","args":["${env:HOME}/y","${env:NO:-d}"]}`, "x /h/y|d"},
		{"a secret as others write it", `{"command":"x","args":["${env:stripe_signing_secret}"]}`,
			"webhook secrets"},
		{"what a client would ask for", `{"command":"x","env":{"K":"${input:api-key}"}}`,
			"can't expand ${input:api-key}"},
		{"what a shell would replace", `{"command":"~/x","args":["$HOME/y","a$1","~"]}`,
			`~/x $HOME/y|a$1|~`},
		{"no command", `{"args":[]}`, `no "command"`},
		{"a server elsewhere", `{"type":"http","url":"http://x"}`, `"args": ["-y", "mcp-remote", URL]`},
		{"a folder below", `{"command":"x","cwd":"sub"}`, "x   /w/sub"},
		{"a folder elsewhere", `{"command":"x","cwd":"${HOME}/sub"}`, "x   /h/sub"},
		{"one process for all", `{"command":"x","shared":true}`, "x   shared"},
		{"what is known", `{"type":"stdio","command":"x","disabled":false}`, "x"},
		{"what is not", `{"command":"x","timeout":5,"Args":[]}`,
			`x   unknown field "timeout" is ignored, unknown field "Args" is ignored`},
		{"a command that is a list", `{"command":["x"]}`, `"command": want string, got array`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			list, err := configModules([]byte(`{"mcpServers":{"m":`+tt.entry+`}}`), "/w")
			must(t, err)
			if len(list) != 1 {
				t.Fatalf("got %+v", list)
			}
			l := list[0].Launch
			got := l.Path + " " + strings.Join(l.Args, "|") + " " + strings.Join(l.Env, "|")
			if l.Dir != "/w" {
				got += " " + l.Dir
			}
			if l.Shared {
				got += " shared"
			}
			got += " " + strings.Join(list[0].Problems, ", ")
			if list[0].Err != nil {
				got = list[0].Err.Error()
				checkContains(t, "error", got, tt.want)
				return
			}
			check(t, "entry", strings.TrimRight(got, " "), tt.want)
		})
	}
	const bad, good = `"a b":{"command":"x"}`, `"c":{"command":"x"}`
	const off = `"d":{"command":"x","disabled":true},"e":{"command":"x","enabled":false}`
	list, err := configModules([]byte("\ufeff"+`{"mcpServers":{`+bad+`,`+good+`,`+off+`}}`), "/w")
	must(t, err)
	check(t, "entries that are not disabled", len(list), 2)
	check(t, "a bad name is refused", list[0].Err != nil, true)
	check(t, "a good name", list[1].Err, nil)
}

func TestParseConfigErrors(t *testing.T) {
	for raw, want := range map[string]string{
		``:                                "unexpected end",
		`{"servers":{}}`:                  `not "servers"`,
		"{\n // no\n}":                    "at line 2: invalid character '/'",
		"{\"mcpServers\":{\n\"a\":1,\n}}": "at line 3: ",
	} {
		_, err := configModules([]byte(raw), "/w")
		checkContains(t, raw, fmt.Sprint(err), want)
	}
}

func TestMissingPrograms(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	const missing = ": executable file not found in $PATH"
	const python = ": install Python 3.9 or newer, or make a .venv beside the module"
	for program, want := range map[string]string{
		"python3":           `command "python3"` + missing + python,
		"npx -y @scope/foo": `command "npx": "command" is only the program: the rest belongs in "args"`,
		"/w/bin/gone":       `command "gone": no such file or directory`,
	} {
		_, err := launch{Path: program, Dir: "/w"}.resolve()
		check(t, program, fmt.Sprint(err), want)
	}
	links := &os.LinkError{Op: "rename", Old: "/w/a", New: "/w/b", Err: fs.ErrNotExist}
	check(t, "links without paths", errText(fmt.Errorf("%w", links)), fs.ErrNotExist.Error())
}

func TestWorkerEnv(t *testing.T) {
	for _, name := range []string{"A_KEY", webhookSecretVar, "Github_Webhook_Secret", "X_SIGNING_SECRET"} {
		t.Setenv(name, "1")
	}
	t.Setenv(nestedVar, "\n/m")
	cmd := &exec.Cmd{Dir: "/d", Env: moduleEnv("/s p:", []string{"B=2"})}
	newGroups(slog.New(slog.DiscardHandler)).start(cmd) // there is no program to start
	environ := strings.Join(cmd.Env, "\n")
	checkContains(t, "environment", environ, "\nA_KEY=1\n", "\nB=2\n"+nestedVar+"=\n/m\n/s p:\nPWD=/d")
	checkOmits(t, "environment", strings.ToUpper(environ), "_SECRET=")
	check(t, "nesting is noticed", checkNesting("\n/m\n/s p:/x", []string{"/s p:"}) != nil, true)
}

// A file is not read on a path with a link, even if it has the right name.
func TestReadBelowALink(t *testing.T) {
	dir := tempDir(t)
	write(t, dir+"/real/m.usher.py", "")
	must(t, os.Symlink("real", dir+"/link"))
	_, _, err := readSource(dir+"/real/m.usher.py", kindPython)
	must(t, err)
	_, _, err = readSource(dir+"/link/m.usher.py", kindPython)
	check(t, "the file is refused", errors.Is(err, errMoved), true)
}

// TestFoldersExchangedForLinks exchanges a folder for a link to another folder and
// back, while modules are searched and read: no file of the other folder is read.
func TestFoldersExchangedForLinks(t *testing.T) {
	long(t)
	if runtime.GOOS != "linux" {
		skip(t, "only Linux tells an opened file's own path")
	}
	dir := t.TempDir()
	write(t, dir+"/projA/sub/own.usher.py", "projA")
	write(t, dir+"/projB/own.usher.py", "projB")
	owner := map[string]string{dir + "/projA/sub": "projA", dir + "/projB": "projB"}
	sub, away := dir+"/projA/sub", dir+"/projA/.away"
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
			}
			os.Rename(sub, away)
			os.Symlink(dir+"/projB", sub)
			os.Remove(sub)
			os.Rename(away, sub)
		}
	}()
	for range 500 {
		for _, d := range scanFolders([]string{dir}).modules {
			if text, _, err := readSource(d.Source, d.Kind); err == nil {
				check(t, d.Source, string(text), owner[filepath.Dir(d.Source)])
			}
		}
	}
	close(stop)
	<-stopped
}

func TestUnreadableFilesKeepTheirModules(t *testing.T) {
	s := &scan{seen: make(map[string]bool)}
	s.fail("/w/p", errors.New("too many open files"))
	s.fail("/w/q", &fs.PathError{Err: fs.ErrNotExist})
	still := map[string]bool{"/w/p/a.usher": true, "/w/p": true, "/w/pp/a.usher": false, "/w/q/a.usher": false}
	for path, want := range still {
		check(t, path+" is still there", s.has(discovered{Path: path, Source: path}), want)
	}
}
