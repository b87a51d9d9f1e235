// Modules spoken to over their pipes, without usher.

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"usher/internal/mcptest"
)

// shimCommand returns the command that runs a file by its language's shim.
func shimCommand(t *testing.T, kind Kind, file string) *exec.Cmd {
	t.Helper()
	file, err := filepath.Abs(file)
	must(t, err)
	python, _ := pythonFor(filepath.Dir(file), nil)
	l, err := launchFile(source{Kind: kind, Source: file, Interpreter: python}, t.TempDir())
	must(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, l.Path, l.Args...)
	cmd.Dir = l.Dir
	return cmd
}

// startFile starts a module of any language.
func startFile(t *testing.T, file string) *modulePeer {
	t.Helper()
	kind := needLanguage(t, file)
	if kind == kindGo {
		name := filepath.Base(file)
		dir := goTestTree(t, map[string]string{name: readFile(t, file)})
		return startBinary(t, goTestBuild(t, dir+"/"+name, dir+"/cache"))
	}
	p := startPeer(t, shimCommand(t, kind, file))
	methods := make(map[string]*Method)
	for _, tool := range p.Tools() {
		m := parseMethod(tool, kind)
		methods[m.Name] = m
	}
	p.Check = func(tool string, arguments json.RawMessage) (json.RawMessage, error) {
		if m := methods[tool]; m != nil {
			return m.checkArguments(arguments)
		}
		return arguments, nil
	}
	return p
}

// startPeer starts a module, whose results are shown as the daemon shows them.
func startPeer(t *testing.T, cmd *exec.Cmd) *modulePeer {
	t.Helper()
	p := mcptest.StartPeer(t, cmd)
	p.Show = func(result json.RawMessage) json.RawMessage { return methodResult(members(result)).encode() }
	return p
}

// needLanguage returns the kind of a file, and skips the test if its language is
// not installed.
func needLanguage(t *testing.T, file string) Kind {
	t.Helper()
	switch filepath.Ext(file) {
	case ".go":
		return kindGo
	case ".sh":
		need(t, "sh")
		return kindShell
	case ".py":
		pythonTestVersion(t)
		return kindPython
	case ".ts", ".mts":
		nodeTestTyped(t)
	default:
		nodeTestVersion(t)
	}
	return kindNode
}

// languages copies the modules of a folder that can run here into a new one, and returns their names.
func languages(t *testing.T, from string) (dir string, names []string) {
	t.Helper()
	dir = t.TempDir()
	for _, file := range folderNames(t, from) {
		t.Run(file+" is copied", func(t *testing.T) {
			needLanguage(t, file)
			copyFiles(t, from, dir, file)
			name, _, _ := strings.Cut(file, ".")
			names = append(names, name)
		})
	}
	return dir, names
}

// nodeVersion returns what node --version prints.
var nodeVersion = sync.OnceValues(func() ([]byte, error) {
	return exec.Command("node", "--version").Output()
})

func nodeTestVersion(t *testing.T) (major, minor int) {
	t.Helper()
	out, err := nodeVersion()
	if err != nil {
		lack(t, "Node.js")
	}
	if _, err := fmt.Sscanf(string(out), "v%d.%d", &major, &minor); err != nil || major < 20 {
		lack(t, "Node.js 20 or newer, not "+strings.TrimSpace(string(out)))
	}
	return major, minor
}

// nodeTestTyped skips a test whose Node can't strip types.
func nodeTestTyped(t *testing.T) {
	t.Helper()
	if major, minor := nodeTestVersion(t); major < 22 || major == 22 && minor < 18 {
		lack(t, "Node.js 22.18 or newer")
	}
}

// testPython is the Python outside of virtual environments.
var testPython, _ = pythonFor(os.DevNull, nil)

// pythonMinor returns the minor version of Python 3, 0 without Python. It puts the program first
// in PATH: what pyenv has there takes longer to find Python than Python takes to start.
var pythonMinor = sync.OnceValue(func() (minor int) {
	const print = "import sys; print(sys.version_info[1], sys.executable)"
	out, err := exec.Command(testPython, "-c", print).Output()
	version, program, _ := strings.Cut(strings.TrimSpace(string(out)), " ")
	minor, _ = strconv.Atoi(version)
	if err == nil {
		os.Setenv("PATH", filepath.Dir(program)+string(os.PathListSeparator)+os.Getenv("PATH"))
	}
	return minor
})

// pythonTestVersion returns the minor version of Python 3. Without one that is
// new enough the test is skipped, unless CI requires it.
func pythonTestVersion(t *testing.T) int {
	t.Helper()
	if pythonMinor() < 9 {
		lack(t, "Python 3.9 or newer")
	}
	return pythonMinor()
}
