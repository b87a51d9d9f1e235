// Tests of SECURITY.md: the tests that it names exist, its bounds are those of the program, and
// files are as private as it says.

package main

import (
	"fmt"
	"go/constant"
	"go/token"
	"go/types"
	"io/fs"
	"math"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The tests that SECURITY.md names exist, and its bounds are the program's.
func TestSecurityDocument(t *testing.T) {
	document, tests := readFile(t, "SECURITY.md"), testNames(t)
	named := regexp.MustCompile("`((?:Test|Fuzz)[A-Za-z]+)`").FindAllStringSubmatch(document, -1)
	for _, name := range named {
		if !tests[name[1]] {
			t.Errorf("SECURITY.md names %s, which is no test", name[1])
		}
	}
	bounds := make(map[string]string)
	for _, line := range limitRow.FindAllStringSubmatch(readFile(t, "limit.go"), -1) {
		value, err := types.Eval(token.NewFileSet(), nil, token.NoPos, line[2])
		if err != nil || value.Value.Kind() != constant.Int {
			continue // a time
		}
		n, _ := constant.Int64Val(value.Value)
		bounds[line[1]] = fmt.Sprint(n)
		if n >= 1<<10 && n%(1<<10) == 0 {
			bounds[line[1]] = formatSize(n)
		}
	}
	_, table, _ := strings.Cut(document, "\n## Bounds\n")
	rows := regexp.MustCompile("(?m)^\\| (`.*?) \\| (.*?) \\|").FindAllStringSubmatch(table, -1)
	for _, row := range rows {
		values := strings.Split(row[2], ", ")
		for i, name := range strings.Split(row[1], ", ") {
			if bound := bounds[strings.Trim(name, "`")]; i >= len(values) ||
				bound != values[i] {
				t.Errorf("SECURITY.md has %s as %s, and it is %q", name, row[2], bound)
			}
		}
	}
	perDay := guessRate * 24 * 60 * 60
	checkContains(t, "SECURITY.md", document,
		fmt.Sprint(guessBudget, " different"),
		fmt.Sprint(guessRate, " codes"),
		fmt.Sprint(turnWait.Seconds(), " s away"),
		fmt.Sprintf("1 in 1,%03.0f", math.Pow(31, 6)/float64(perDay)-1000))
	if size := len(document); size > 11<<10 {
		t.Errorf("SECURITY.md has %d bytes: want at most 11 KiB", size)
	}
	if len(named) < 50 || len(rows) < 4 {
		t.Errorf("%d tests and %d bounds were found in SECURITY.md", len(named), len(rows))
	}
}

// A daemon writes only to its base folder, and what it writes is private, whatever the
// umask.
func TestDataIsPrivate(t *testing.T) {
	needLanguage(t, ".sh")
	needLanguage(t, ".py")
	long(t)
	dir, base := t.TempDir(), t.TempDir()+"/base"
	write(t, dir+"/g.usher.go", "//go:build usher\n\npackage main\n\nfunc Go() {}\n")
	write(t, dir+"/p.usher.py", "def py(): pass\n")
	d := daemonOptions{base: base, ownProcess: true, shell: "umask 0"}.start(t, dir)
	c := connect(t, d.URL)
	c.AwaitTools("g_go", "p_py")
	listTools(c, inHeader(newCode(t, base, dir)))
	c.Call("g_go", "")
	c.Call("p_py", "")
	files := 0
	err := filepath.WalkDir(base, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err == nil && info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s is %v", path, info.Mode())
		}
		files++
		return err
	})
	if err != nil || files < 8 {
		t.Errorf("%d files: %v", files, err)
	}
	if names := folderNames(t, dir); !slices.Equal(names,
		[]string{"g.usher.go", "p.usher.py"}) {
		t.Errorf("the workspace has %q", names)
	}
}

// randomID matches the ids of requests, and the beginnings of the ids of sessions, which may
// contain a part of a code by chance.
var randomID = regexp.MustCompile(`\b[A-Z2-7]{8}([A-Z2-7]{18}\b|…)`)

var queryWithCode = regexp.MustCompile(`[?&]claim=[A-Za-z0-9%-].*`)

// hidesCodes checks that nothing the daemon wrote names a code, in whole or in part.
func (d *testDaemon) hidesCodes(t *testing.T, codes ...string) {
	t.Helper()
	text := randomID.ReplaceAllString(d.Log.String()+d.Out.String(), "")
	for _, code := range codes {
		for _, spelled := range []string{code[:3] + "-" + code[3:], code, code[:4],
			code[2:], code[1:5],
			strings.ToLower(code)} {
			onlyDigits := strings.Trim(spelled, "0123456789-") == ""
			if !onlyDigits && strings.Contains(text, spelled) {
				t.Errorf("the log names a code, or a part of it: %s", spelled)
			}
		}
	}
	if found := queryWithCode.FindString(text); found != "" {
		t.Errorf("the log has a URL with its query: %s", found)
	}
}
