package main

import (
	"archive/zip"
	"encoding/json"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
)

// A clone can be released under another module path, as CONTRIBUTING.md says. A clone of
// the clone is the same: nothing depends on the path or the folder. The bundle runs the
// program, and install.sh installs it, unless its checksum is wrong.
func TestRelease(t *testing.T) {
	slow(t)
	need(t, "git")
	need(t, "curl")
	t.Parallel()
	first, second, home := t.TempDir(), t.TempDir(), t.TempDir()
	server := httptest.NewServer(http.FileServer(http.Dir(first + "/dist")))
	t.Cleanup(server.Close)
	run := func(dir string, line ...string) (string, error) {
		cmd := exec.Command(line[0], line[1:]...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "RELEASE_TARGETS="+runtime.GOOS+"/"+
			runtime.GOARCH, "RELEASE_URL="+server.URL, "GIT_AUTHOR_NAME=a",
			"GIT_AUTHOR_EMAIL=a@b", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@b")
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	mustRun := func(dir string, line ...string) string {
		t.Helper()
		out, err := run(dir, line...)
		if err != nil {
			t.Fatalf("%q: %v\n%s", line, err, out)
		}
		return out
	}
	mustRun(".", "git", "clone", "-q", "--no-tags", ".", first)
	out, _ := run(first, "./release")
	checkContains(t, "a release without a module path", out, "go mod edit -module")
	mustRun(first, "go", "mod", "edit", "-module", "example.com/ada/usher")
	sums := mustRun(first, "./release")
	mustRun(".", "git", "clone", "-q", first, second)
	check(t, "the checksums of the second clone", mustRun(second, "./release"), sums)
	programs, _ := filepath.Glob(first + "/dist/usher-*")
	checkContains(t, "the version", mustRun(".", programs[0], "version"), "usher v0.")
	mustRun(first, "go", "test", "-run", "Layers|House|Tour|DocsFlags|GoModule", ".")

	checkBundle(t, programs[0])

	install := func(script string) string {
		out, _ := run(".", "env", "-u", "RELEASE_URL", "HOME="+home, "sh", script)
		return out
	}
	checkContains(t, "no address", install("install.sh"), "install.sh: set RELEASE_URL")
	installed := home + "/.local/bin/usher"
	checkContains(t, "the installation", install(first+"/dist/install.sh"),
		"Installed "+filepath.Base(programs[0])+" as "+installed+"\n")
	write(t, programs[0], "not the program")
	checkContains(t, "a wrong sum", install(first+"/dist/install.sh"), "installed nothing")
	checkContains(t, "what is installed", mustRun(".", installed, "version"), "usher v0.")
	check(t, "the files", folderNames(t, home+"/.local/bin"), []string{"usher"})
}

// checkBundle checks the bundle beside a program of a release: its manifest runs the
// program, and the program in it is the same.
func checkBundle(t *testing.T, program string) {
	t.Helper()
	bundle, err := zip.OpenReader(program + ".mcpb")
	must(t, err)
	defer bundle.Close()
	raw, err := fs.ReadFile(bundle, "manifest.json")
	must(t, err)
	var manifest struct {
		Server struct {
			Config struct {
				Command string
				Args    []string
			} `json:"mcp_config"`
		}
	}
	must(t, json.Unmarshal(raw, &manifest))
	name := filepath.Base(program)
	check(t, "the bundle's command", fmt.Sprint(manifest.Server.Config),
		"{${__dirname}/"+name+" [stdio ${user_config.folder}]}")
	bundled, err := fs.ReadFile(bundle, name)
	must(t, err)
	same := string(bundled) == readFile(t, program)
	check(t, "the bundle contains the program", same, true)
	info, err := fs.Stat(bundle, name)
	must(t, err)
	check(t, "its mode", info.Mode(), fs.FileMode(0o755))
}
