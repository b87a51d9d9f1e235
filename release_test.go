package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
)

// A clone can be released under another module path, as CONTRIBUTING.md says. A clone of
// the clone is the same: nothing depends on the path or the folder.
func TestRelease(t *testing.T) {
	slow(t)
	need(t, "git")
	t.Parallel()
	first, second := t.TempDir(), t.TempDir()
	run := func(dir string, line ...string) (string, error) {
		cmd := exec.Command(line[0], line[1:]...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "RELEASE_TARGETS="+runtime.GOOS+"/"+
			runtime.GOARCH, "GIT_AUTHOR_NAME=a",
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
}
