// Which files are modules, and how they are started.

package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

// A file's name says whether it is a module, its name and its kind.
func TestFileNameSaysTheKind(t *testing.T) {
	for file, want := range map[string]string{
		"a.usher.go": "a go", "a.usher.py": "a python", "a.usher.ts": "a node",
		"a.usher.mjs": "a node",
		"a.usher.sh":  "a shell", "a.usher": "a executable", "a-b_1.usher.go": "a-b_1 go",
		"a.usher.rb": "", "a.go": "", "usher.go": "", "a.usher.go.bak": "", "a.usher~": "",
		"a.b.usher": "a.b executable", ".usher": "",
	} {
		name, kind, ok := moduleFile(file)
		got := ""
		if ok {
			got = name + " " + string(kind)
		}
		check(t, file, got, want)
	}
}

// configFile is the file of the entries that tests read.
var configFile = source{Kind: kindConfig, Source: "/w/.mcp.json"}

// Variables in a .mcp.json are expanded, except secrets. An entry that can't be hosted says
// why.
func TestConfigIsExpanded(t *testing.T) {
	for name, value := range map[string]string{
		"HOME": "/h", "EMPTY": "", "ODD": "\"\n\\\"", webhookSecretVar: "s3cret",
		"stripe_signing_secret": "s3cret",
	} {
		t.Setenv(name, value)
	}
	for _, tt := range []struct{ name, entry, want string }{
		{"a command and its arguments", `{"command":"node","args":["x","y z"]}`, "node x|y z"},
		{"variables",
			`{"command":"${HOME}/bin/${NAME:-srv}","args":["${EMPTY:-d}","$5","${EMPTY}"]}`,
			"/h/bin/srv d|$5|"},
		{"a variable that JSON has to escape",
			`{"command":"x","args":["${ODD}","${NO:-\"}"],"env":{"A":"${NO:-}${HOME}","B":"1"}}`,
			"x \"\n\\\"|\" A=/h|B=1"},
		{"a variable that is not set", `{"command":"x","args":["${NOPE}"]}`,
			"${NOPE} is not set"},
		{"the daemon's secret with a default",
			`{"command":"x","env":{"K":"${SERVICE_WEBHOOK_SECRET:-x}"}}`,
			"secrets of usher"},
		{"variables as others write them",
			`{"command":"x","args":["${env:HOME}/y","${env:NO:-d}"]}`, "x /h/y|d"},
		{"what a client would ask for", `{"command":"x","env":{"K":"${input:api-key}"}}`,
			"${input:api-key} is not set"},
		{"what looks like a variable", `{"command":"$x","args":["$5","echo $HOME","$","a~"]}`,
			`$x $5|echo $HOME|$|a~`},
		{"what a shell would expand",
			`{"command":"x","args":["--dir=$HOME/a","b"],"env":{"A":"$A_1","B":"~"}}`,
			`x --dir=$HOME/a|b A=$A_1|B=~ "args": write ${HOME}: usher expands neither ~ nor $HOME, ` +
				`"env": write ${A_1}: usher expands neither ~ nor $A_1`},
		{"a command that a shell would expand", `{"command":"~/bin/x"}`,
			`"command": write ${HOME}: usher expands neither ~ nor $HOME`},
		{"a folder that a shell would expand", `{"command":"x","cwd":"$WORK/x"}`,
			`"cwd": write ${WORK}: usher expands neither ~ nor $WORK`},
		{"no command", `{"args":[]}`, `no "command"`},
		{"a server elsewhere", `{"type":"http","url":"http://x"}`,
			`"args": ["-y", "mcp-remote", URL]`},
		{"a folder elsewhere", `{"command":"x","cwd":"${HOME}/sub"}`, "x   /h/sub"},
		{"one process for all", `{"command":"x","shared":true}`, "x   shared"},
		{"what is not", `{"command":"x","timeout":5,"Args":[]}`,
			`x   unknown field "timeout" is ignored, unknown field "Args" is ignored`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			list, err := configModules([]byte(`{"mcpServers":{"m":`+tt.entry+`}}`), configFile)
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
			got += " " + strings.Join(list[0].Notes, ", ")
			if list[0].Invalid != nil {
				got = list[0].Invalid.Error()
				checkContains(t, "error", got, tt.want)
				return
			}
			check(t, "entry", strings.TrimRight(got, " "), tt.want)
		})
	}
	const bad, good = `"a b":{"command":"x"}`, `"c":{"command":"x"}`
	const off = `"d":{"command":"x","disabled":true},"e":{"command":"x","enabled":false}`
	list, err := configModules([]byte("\ufeff"+`{"mcpServers":{`+bad+`,`+good+`,`+off+
		`}}`), configFile)
	must(t, err)
	check(t, "entries that are not disabled", len(list), 2)
	check(t, "a bad name is refused", list[0].Invalid != nil, true)
	check(t, "a good name", list[1].Invalid, nil)
}

// The error of a .mcp.json that can't be read names the line, and what is often wrong there.
func TestConfigErrorNamesTheLine(t *testing.T) {
	const hint = " (want UTF-8, no comments, no comma at the end)"
	const key = " looking for beginning of object key string" + hint
	for raw, want := range map[string]string{
		``:                                "unexpected end",
		"{\"a\":\"\xe4\"}":                "the file is not valid UTF-8" + hint,
		`{"servers":{}}`:                  `no "mcpServers" (not "servers"): want {"mcp`,
		`{"a":{"command":"x"}}`:           `no "mcpServers"`,
		"{\n // no\n}":                    "at line 2: invalid character '/'" + key,
		"{\"mcpServers\":{\n\"a\":1,\n}}": "at line 3: invalid character '}'" + key,
	} {
		_, err := configModules([]byte(raw), configFile)
		checkContains(t, raw, fmt.Sprint(err), want)
	}
}

// The error for a program or folder that does not exist names it, with its whole path. Clients don't
// see it.
func TestMissingProgramIsExplained(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir)
	write(t, dir+"/my apps/tool", "#!/bin/sh\n")
	must(t, os.Chmod(dir+"/my apps/tool", 0o700))
	write(t, dir+"/plain", "")
	must(t, os.Chmod(dir+"/plain", 0o600))
	const missing = ": the program is missing, or not executable"
	for _, tt := range []struct {
		program, folder string
		env             []string
		want            string
	}{
		{"python3", "", nil, "running python3" + missing},
		{"npx -y foo", "", nil, "running npx -y foo" + missing},
		{"/bin/sh -c x", "", nil, "running /bin/sh -c x" + missing},
		{"/opt/absent/bin/python", "", nil, "running /opt/absent/bin/python" + missing},
		{"/opt/My Apps/node", "", nil, "running /opt/My Apps/node" + missing},
		{"./absent", "", nil, "running " + dir + "/absent" + missing},
		{dir + "/plain", "", nil, "running " + dir + "/plain" + missing},
		{"tool", dir + "/absent", nil, "running in " + dir + "/absent: no such file or directory"},
		{dir + "/my apps/tool", "", nil, dir + "/my apps/tool"},
		{"./my apps/tool", "", nil, dir + "/my apps/tool"},
		{"tool", "", []string{"PATH=/none:" + dir + "/my apps"}, dir + "/my apps/tool"},
		{"tool", "", []string{"PATH=" + dir + "/my apps", "PATH=/none"}, "running tool" + missing},
		{"sh", "", []string{"PATH=/none"}, "running sh" + missing},
	} {
		l, err := launch{Path: tt.program, Dir: cmp.Or(tt.folder, dir), Env: tt.env}.resolve()
		got := l.Path
		if err != nil {
			got = err.Error()
		}
		check(t, fmt.Sprint(tt.program, tt.env), got, tt.want)
	}
	write(t, dir+"/.mcp.json", `{"mcpServers":{"gone":{"command":"/opt/absent/tool"}}}`)
	d := startDaemon(t, dir)
	d.awaitLog(t, "running /opt/absent/tool: the program is missing")
	told := connect(t, d.URL).Call("gone_x", "").Text()
	checkContains(t, "the client's error", told, "can't be hosted"+missing)
	checkOmits(t, "the client's error", told, "/opt")
	links := &os.LinkError{Op: "rename", Old: "/w/a", New: "/w/b", Err: fs.ErrNotExist}
	check(t, "links without paths", errText(fmt.Errorf("%w", links)), fs.ErrNotExist.Error())
}

// No child process gets a webhook secret or signing key.
func TestSecretsStayHere(t *testing.T) {
	for _, name := range []string{"A_KEY", webhookSecretVar, "Github_Webhook_Secret",
		"X_SIGNING_SECRET", "Usher_claim", claimVar} {
		t.Setenv(name, "1")
	}
	t.Setenv(nestedVar, "\n/m")
	cmd := &exec.Cmd{Dir: "/d", Env: []string{"B=2", insideOf("/s p:")}}
	startChild(cmd) // there is no program to start
	environ := strings.Join(cmd.Env, "\n")
	checkContains(t, "environment", environ, "\nA_KEY=1\n", "\nB=2\n"+nestedVar+
		"=\n/m\n/s p:\nPWD=/d")
	checkOmits(t, "environment", strings.ToUpper(environ), "_SECRET=", claimVar+"=")
}

// No file of another folder is read while a folder is exchanged for a link to it.
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
		for _, d := range scanFolders([]string{dir}, nil).sources {
			if text, _, err := readSource(d.Source, d.Kind); err == nil {
				check(t, d.Source, string(text), owner[filepath.Dir(d.Source)])
			}
		}
	}
	close(stop)
	<-stopped
}

// A link that is turned to another name of the same file is another version: its folder is another.
func TestTurnedLinkIsAVersion(t *testing.T) {
	dir := tempDir(t)
	write(t, dir+"/a/m.usher.py", "def f(): pass\n")
	must(t, os.Mkdir(dir+"/b", 0o755))
	must(t, os.Link(dir+"/a/m.usher.py", dir+"/b/m.usher.py"))
	link := dir + "/link/m.usher.py"
	must(t, os.Mkdir(dir+"/link", 0o755))
	version := func(folder string) string {
		os.Remove(link)
		must(t, os.Symlink(dir+folder+"/m.usher.py", link))
		return scanFolders([]string{dir + "/link"}, nil).sources[link+"#m"].Version
	}
	first := version("/a")
	check(t, "the version has changed", first != version("/b"), true)
	check(t, "it is the first again", first == version("/a") && first != "", true)
}

// A folder that can't be read at the moment keeps its modules. One that is gone does not.
func TestUnreadableFilesKeepTheirModules(t *testing.T) {
	s := newScan(nil, nil)
	s.fail(source{Path: "/w/p"}, errors.New("too many open files"))
	s.fail(source{Path: "/w/q"}, &fs.PathError{Err: fs.ErrNotExist})
	still := map[string]bool{
		"/w/p/a.usher":  true,
		"/w/p":          true,
		"/w/pp/a.usher": false,
		"/w/q/a.usher":  false,
	}
	for path, want := range still {
		check(t, path+" is still there", s.has(source{Path: path, Source: path}), want)
	}
}

// An entry of a .mcp.json that can be started gets no secret, has a name and a folder, and
// reads the same each time.
func FuzzParseConfig(f *testing.F) {
	const secret = "5e0c1a7"
	f.Setenv("GITHUB_WEBHOOK_SECRET", secret)
	f.Setenv("x_signing_secret", secret)
	f.Fuzz(func(t *testing.T, raw []byte) {
		list, err := configModules(raw, configFile)
		if again, _ := configModules(raw, configFile); len(again) != len(list) ||
			err != nil && list != nil {
			t.Fatalf("%q: %v, %v", raw, list, err)
		}
		for _, d := range list {
			if d.Invalid != nil {
				continue
			}
			named := moduleName.MatchString(d.Name) && d.Kind == kindConfig && d.Version != ""
			if !named || !filepath.IsAbs(d.Launch.Dir) {
				t.Fatalf("%q: %+v", raw, d)
			}
			whole := string(marshal(d.Launch))
			if strings.Contains(whole, secret) && !bytes.Contains(raw, []byte(secret)) {
				t.Fatalf("%q: a secret is in %s", raw, whole)
			}
			for _, entry := range d.Launch.Env {
				if !strings.Contains(entry, "=") {
					t.Fatalf("%q: %q", raw, d.Launch.Env)
				}
			}
		}
	})
}

// A link that replaces the served folder is followed, and widens no scope.
func TestWorkspaceReplacedByALink(t *testing.T) {
	t.Parallel()
	dir := tempDir(t)
	workspace := dir + "/workspace"
	write(t, dir+"/other/new.usher.sh", "")
	write(t, workspace+"/gone.usher.sh", "")
	r := registryOf(t, registryConfig{Roots: []string{workspace}})
	must(t, os.RemoveAll(workspace))
	must(t, os.Symlink(dir+"/other", workspace))
	r.Watch = true
	r.Refresh(t.Context(), time.Now())
	r.WaitAll(t.Context(), patience, scopeAll())
	check(t, "the modules", labelsOf(r.View(scopeAll(), nil)), " new")
	check(t, "those in the old folder", labelsOf(r.View(scopeDir(workspace), nil)), "")
	check(t, "those in the new folder", labelsOf(r.View(scopeDir(dir+"/other"), nil)), " new")
}

// An entry of a .mcp.json belongs to the folder of the real file, also if that is exchanged for one with
// the same bytes.
func TestTurnedConfigMovesItsEntries(t *testing.T) {
	t.Parallel()
	dir := tempDir(t)
	const config = `{"mcpServers": {"a": {"command": "false", "cwd": "/"}}}`
	write(t, dir+"/one/.mcp.json", config)
	write(t, dir+"/two/.mcp.json", config)
	served := dir + "/current"
	must(t, os.Symlink("one", served))
	r := registryOf(t, registryConfig{Roots: []string{served}, Watch: true})
	check(t, "before", labelsOf(r.View(scopeDir(dir+"/one"), nil)), " a")
	must(t, errors.Join(os.Remove(served), os.Symlink("two", served)))
	r.Refresh(t.Context(), time.Now())
	r.WaitAll(t.Context(), patience, scopeAll())
	check(t, "the first folder", labelsOf(r.View(scopeDir(dir+"/one"), nil)), "")
	check(t, "the second folder", labelsOf(r.View(scopeDir(dir+"/two"), nil)), " a")
}

// Only files in folders that are searched can be parts.
func TestPartsAreInSearchedFolders(t *testing.T) {
	for path, want := range map[string]bool{
		"/w/a.py":                    true,
		"/w/lib/.a.py":               true,
		"/v/a.py":                    true,
		"/wx/a.py":                   false,
		"/a.py":                      false,
		"/w/.venv/lib/a.py":          false,
		"/w/x/node_modules/p/a.js":   false,
		"/w/../w/vendor/a.go":        false,
		"/w/node_modules_of_x/a.mjs": true,
	} {
		check(t, path, isSearched(path, []string{"/w", "/v"}), want)
	}
}

// A server gets its entry's env, without secrets of webhooks.
func TestEntryEnvironment(t *testing.T) {
	long(t)
	dir := t.TempDir()
	write(t, dir+"/.mcp.json", fmt.Sprintf(`{"mcpServers":{"m":{"command":%q,"cwd":"/",`+
		`"env":{%q:"good tools=env","B":"entry","A_WEBHOOK_SECRET":"s","B_SIGNING_SECRET":"s"}}}}`,
		testBinary(t), runAsFake))
	c := connect(t, startDaemon(t, dir).URL)
	for name, want := range map[string]string{
		"B": "true entry", "A_WEBHOOK_SECRET": "false ", "B_SIGNING_SECRET": "false ",
	} {
		check(t, name, c.Call("m_env", `{"name":"`+name+`"}`).Text(), want)
	}
}
