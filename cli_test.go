// The command line: its output, word for word, and the commands that it refuses.

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"
)

// columns are the lines whose columns are as wide as a temporary path.
var (
	columns = regexp.MustCompile(`(?m)^(CODE|  \S+ +\().*$`)
	gaps    = regexp.MustCompile(` {2,}`)
)

// masks hide what differs from run to run.
var masks = []struct {
	form *regexp.Regexp
	with string
}{
	{regexp.MustCompile(`\b[2-9A-HJKMNP-Z]{3}-[2-9A-HJKMNP-Z]{3}\b`), "CODE-D"},
	{regexp.MustCompile(`(claim=|Code: |"code": ")[2-9A-HJKMNP-Z]{6}\b`), "${1}CODE--"},
	{regexp.MustCompile(`\d{4}-\d\d-\d\d \d\d:\d\d`), "YYYY-MM-DD HH:MM"},
	{regexp.MustCompile(`\d{4}-\d\d-\d\dT[0-9:.]+Z`), "TIME"},
	{regexp.MustCompile(`"progressToken":\d+`), `"progressToken":N`},
	{regexp.MustCompile(`usher \S+ \(go\S+ \S+\)`), "usher VERSION"},
	{regexp.MustCompile(`usher \S+ serves`), "usher VERSION serves"},
}

// masked returns a text without what differs from run to run.
func masked(text string) string {
	for _, m := range masks {
		text = m.form.ReplaceAllString(text, m.with)
	}
	return text
}

// golden compares what was printed with testdata/cli/NAME.txt.
func golden(t *testing.T, name, got string, dirs ...string) {
	t.Helper()
	for i, dir := range dirs {
		got = strings.ReplaceAll(got, dir, "/DIR"+strings.Repeat("'", i))
	}
	for line := range strings.Lines(got) {
		line = strings.TrimSuffix(line, "\n")
		if strings.TrimRight(line, " ") != line {
			t.Errorf("%s: a line ends in blanks: %q", name, line)
		}
		if strings.HasPrefix(name, "help") &&
			utf8.RuneCountInString(strings.ReplaceAll(line, "\t", "    ")) > 80 {
			t.Errorf("%s: a line of over 80 columns: %q", name, line)
		}
	}
	got = columns.ReplaceAllStringFunc(masked(got), func(line string) string {
		return gaps.ReplaceAllString(line, "   ")
	})
	path := "testdata/cli/" + name + ".txt"
	if *updateCLI {
		write(t, path, got)
	}
	want := readFile(t, path)
	check(t, name, got, want)
}

// lookupIn returns a lookup in an environment.
func lookupIn(env map[string]string) func(name string) (string, bool) {
	return func(name string) (string, bool) {
		value, set := env[name]
		return value, set
	}
}

// usherIn is usher with an environment and a stdin.
func usherIn(
	t *testing.T, env map[string]string, stdin string, args ...string,
) (stdout, stderr string, code int) {
	t.Helper()
	var out, errs bytes.Buffer
	all := map[string]string{"USHER_BASE": t.TempDir()}
	maps.Copy(all, env)
	code = run(t.Context(), args, strings.NewReader(stdin), &out, &errs, lookupIn(all))
	return out.String(), errs.String(), code
}

// usher runs a command in this process, with a base folder of its own unless -base names one.
func usher(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	return usherIn(t, nil, "", args...)
}

// building matches what commands say while they wait for a module.
var building = regexp.MustCompile(`(?m)^usher: waiting for .*…\n`)

// Each command prints what testdata/cli contains.
func TestOutputIsGolden(t *testing.T) {
	long(t)
	dir := tempDir(t)
	base := t.TempDir()
	writeFakes(t, dir, "proj/a: good tools=x,handleY", "other/a: good tools=x")
	write(t, dir+"/proj/broken.usher.go", "//go:build usher\n\npackage main\n\nfunc X( {}\n")
	must(t, os.Mkdir(dir+"/empty", 0o755))
	folders := strings.NewReplacer("PROJ", dir+"/proj", "OTHER", dir+"/other", "EMPTY",
		dir+"/empty", "DIR", dir)
	for _, tt := range []struct{ name, args string }{
		{"help", "help"},
		{"help", "help help"},
		{"version", "version"},
		{"list-none", "claim list"},
		{"list-none-json", "claim list -json"},
		{"claim", "claim -scope PROJ -label phone -ttl 2h"},
		{"claim-json", "claim -scope PROJ -json -ttl 90m"},
		{"claim-empty", "claim -scope EMPTY"},
		{"list", "claim list"},
		{"list-json", "claim list --json"},
		{"modules", "modules DIR"},
		{"modules-scope", "modules DIR -scope PROJ"},
		{"modules-json", "modules -json -scope PROJ DIR"},
		{"call", "call a handleY {\"n\":1} -dir PROJ"},
		{"call-scope", "call a x -dir DIR -scope OTHER"},
	} {
		t.Run(tt.args, func(t *testing.T) {
			args := strings.Fields(folders.Replace(tt.args))
			if !strings.HasPrefix(tt.name, "help") && tt.name != "version" {
				args = append(args, "-base", base)
			}
			out, errs, code := usher(t, args...)
			check(t, "status", code, 0)
			if errs = building.ReplaceAllString(errs, ""); errs != "" {
				out += "--- stderr\n" + errs
			}
			golden(t, tt.name, out, dir, base)
		})
	}
}

// wantUsher runs a command, checks its status, and that stdout or, if it fails, stderr
// contains a text. It returns stdout.
func wantUsher(t *testing.T, code int, says string, args ...string) string {
	t.Helper()
	out, errs, got := usher(t, args...)
	what := "usher " + strings.Join(args, " ")
	if got != code {
		t.Errorf("%s: status %d, want %d: %s%s", what, got, code, out, errs)
	}
	if code == 0 {
		check(t, what+": stderr", building.ReplaceAllString(errs, ""), "")
		checkContains(t, what, out, says)
	} else {
		check(t, what+": stdout", out, "")
		checkContains(t, what, errs, says)
	}
	return out
}

// Flags may come before and after arguments, with one dash or two, with a space or an
// equals sign.
func TestFlagsAnywhere(t *testing.T) {
	t.Parallel()
	dir := twoProjects(t)
	const day = 24 * time.Hour
	for _, tt := range []struct {
		args  string // BASE and DIR stand for folders
		life  time.Duration
		label string
	}{
		{"claim -base BASE -scope DIR", day, ""},
		{"claim -ttl 1h30m -label=-json -base=BASE -scope=DIR", 90 * time.Minute, "-json"},
		{"claim -ttl 2w -ttl 30s -base BASE -scope DIR", 30 * time.Second, ""},
		{"claim -ttl 1.5h -label ☎ -base BASE -scope DIR --", 90 * time.Minute, "☎"},
	} {
		t.Run(tt.args, func(t *testing.T) {
			base := t.TempDir()
			fill := strings.NewReplacer("BASE", base, "DIR", dir+"/proj")
			wantUsher(t, 0, "Claim code: ", strings.Fields(fill.Replace(tt.args))...)
			args := strings.Fields(fill.Replace("claim --base=BASE -json=true list"))
			list, err := parseClaims([]byte(wantUsher(t, 0, "", args...)))
			must(t, err)
			check(t, "claims", len(list.claims), 1)
			c := list.claims[0]
			check(t, "scope", c.ScopeDir, dir+"/proj")
			check(t, "label", c.Label, tt.label)
			check(t, "life", c.ExpiresAt.Sub(c.CreatedAt).Round(time.Second), tt.life)
		})
	}
}

// Claims and modules are printed without what could change a terminal.
func TestOutputIsPlain(t *testing.T) {
	needLanguage(t, ".sh")
	long(t)
	isPlain := func(what, text string) {
		if strings.ContainsFunc(text, func(r rune) bool {
			return r != '\n' && !unicode.IsPrint(r)
		}) {
			t.Errorf("%s: %q", what, text)
		}
	}
	base := t.TempDir()
	write(t, base+"/.data/claims.json", `[
		{"code":"CCCCCC","scopeDir":"/w/ümläut ünd space","expiresAt":"2099-03-01T00:00:00Z"},
		{"code":"BBBBBB","scopeDir":"/w/\u001b[31mred\n/w/two\tthree",
			"label":"\u001b]0;title\u0007\r\u202eab","expiresAt":"2099-02-01T00:00:00Z"},
		{"code":"AAAAAA","scopeDir":"/w","label":"over","expiresAt":"2020-01-01T00:00:00Z"}]`)
	out := wantUsher(t, 0, "CCC-CCC   /w/ümläut ünd space ", "claim", "list", "-base", base)
	isPlain("usher claim list", out)
	check(t, "lines", strings.Count(out, "\n"), 3)

	dir := t.TempDir()
	odd := dir + "/x\x1b]0;title\a\u202ey"
	writeFake(t, odd+"/a.usher", "good tools=x")
	writeFake(t, odd+"/b\x1b[2J.usher", "good tools=x")
	write(t, odd+"/c.usher.sh", "# Clears the \x1b[2J screen.\nclear() { echo; }\n")
	write(t, odd+"/d.usher", "not executable")
	daemonOptions{base: base}.startReady(t, dir)
	out, errs, _ := usher(t, "modules", "-base", base, dir)
	isPlain("usher modules", out+errs)
	checkContains(t, "usher modules", out, "�[2J screen.")
}

// A claim of usher claim is valid in the daemon at once, until usher claim revoke. While a
// daemon runs, its URL is printed.
func TestClaimOfARunningDaemon(t *testing.T) {
	long(t)
	dir, base := twoProjects(t), t.TempDir()
	newClaim := func(says string) {
		out, _, _ := usher(t, "claim", "-base", base, "-scope", dir+"/proj")
		checkContains(t, "usher claim", out, says)
	}
	d := daemonOptions{base: base}.start(t, dir)
	newClaim("usher " + d.URL + " --header")
	var list []struct{ Code, ScopeDir string }
	must(t, json.Unmarshal([]byte(wantUsher(t, 0, "", "claim", "list", "-json", "-base",
		base)), &list))
	check(t, "claims", len(list), 1)
	check(t, "scope", list[0].ScopeDir, dir+"/proj")
	code := list[0].Code
	c, _ := openSession(t, d.URL)
	c.Header.Set(claimHeader, code)
	c.AwaitTools(projTools...)
	shown, hidden, _ := strings.Cut(wantUsher(t, 0, "", "modules", "-scope",
		dir+"/proj", "-base", base, dir), "  hidden: ")
	checkContains(t, "usher modules -scope", shown, "a_x")
	checkOmits(t, "usher modules -scope", shown+hidden, "b_x")
	check(t, "hidden modules", strings.Count(hidden, "  hidden: "), 1)
	out, _, _ := usher(t, "claim", "revoke", strings.ToLower(code[:3]+"-"+code[3:]), "-base", base)
	checkContains(t, "usher claim revoke", out, "Revoked ")
	check(t, "tools after the revoke", len(c.Tools()), 0)
	for _, present := range []presenter{inHeader(code), inQuery(code),
		setHeader("Authorization", "Bearer "+code)} {
		openSession(t, d.URL, present)
	}
	d.hidesCodes(t, code)
	d.stop(t)
	newClaim("No daemon is running")
	daemonOptions{base: base, ownProcess: true}.start(t, dir).signal(t, os.Kill)
	newClaim("No daemon is running")
}

// A command that can't do what it is asked says why on one line, and exits 1, or 2 for its
// usage.
func TestCommandsAreRefused(t *testing.T) {
	needLanguage(t, ".sh")
	long(t)
	dir, base := t.TempDir(), t.TempDir()
	locked := t.TempDir()
	write(t, locked+"/.data/claims.lock", "a file where a folder should be")
	dangling := dir + "/dangling.usher.sh"
	must(t, os.Symlink(dir+"/nowhere", dangling))
	file := dir + "/file.usher.go"
	write(t, file, "mine")
	corrupt := t.TempDir()
	write(t, corrupt+"/.data/claims.json", `{"version":9}`)
	writeFake(t, dir+"/a.usher", "good tools=fail,x")
	write(t, dir+"/none.usher.sh", "f() { echo; }\n")
	write(t, dir+"/p/m.usher.sh", "# F.\nf() { echo; }\n")
	write(t, dir+"/q/m.usher.sh", "# F.\nf() { echo; }\n")
	folders := strings.NewReplacer("DANGLING", dangling, "LOCKED", locked,
		"CORRUPT", corrupt, "FILE", file, "BASE", base, "DIR", dir)
	for _, tt := range []struct {
		args string
		code int
		says string
	}{
		{"nope", 2, `unknown command "nope": see usher help`},
		{"srve", 2, "did you mean usher serve?"},
		{"help claims", 2, "did you mean usher claim?"},
		{"revoke ABCDEF", 2, "did you mean usher claim revoke?"},
		{"claim revok ABCDEF", 2, "revoke CODE…"},
		{"serve -port 3001", 2, "serve: unknown flag -port: did you mean -addr?"},
		{"serve --require-claims", 2, "did you mean -require-claim?"},
		{"claim -lable=x", 2, "did you mean -label?"},
		{"call -url 127.0.0.1:3000", 2, "-url: want a URL such as"},
		{"call -url=", 2, "-url: want a URL such as"},
		{"call -url localhost a_x", 2, "-url: want a URL such as"},
		{"claim -port 3001", 2, "unknown flag -port: see usher help"},
		{"claim examples", 2, "-scope takes a folder"},
		{"serve -addr :4000", 2, "use -addr 127.0.0.1:4000"},
		{"serve -idle 5", 2, "-idle: want a duration, such as 5m"},
		{"serve -open=yes", 2, "-open: want true or false"},
		{"serve -watch=yes", 2, "-watch: want true or false"},
		{"call a x Ada -dir DIR", 2, "want name=value words, a JSON object"},
		{"call none x -dir DIR", 1, "none.usher.sh has no methods: see docs/modules.md"},
		{"modules -scope ", 2, "no such folder"},
		{"modules -scope cli.go", 2, "no such folder"},
		{"claim -base LOCKED", 1, "claims.lock"},
		{"claim revoke ABCDEF hello", 2, "6 characters of 23456789"},
		{"claim -base CORRUPT", 1, "claims.json"},
		{"call", 2, "wrong number of arguments"},
		{"call a fail -dir DIR", 1, "it did not work"},
		{"call a fial -dir DIR", 1, "no tool a fial here: did you mean a_fail?"},
		{"call a.fail -dir DIR", 1, "no tool a.fail here: did you mean a_fail?"},
		{"new", 2, "want one FILE"},
		{"new DIR/a.usher.py DIR/b.usher.py", 2, "want one FILE"},
		{"new DIR/foo.mjs", 2, "such as notes.usher.py"},
		{"call a other -dir DIR", 1, "here: a.usher has a_fail, a_x"},
		{"call a fail -dir DIR -scope BASE", 1, "a.usher is outside the scope"},
		{"call m x -dir DIR", 1, "p/m.usher.sh has p-m_f; q/m.usher.sh has q-m_f"},
		{"call m f -dir DIR", 1, "p/m.usher.sh has p-m_f; q/m.usher.sh has q-m_f"},
		{"call file x -dir DIR", 1,
			`file.usher.go is not hosted: module "file" can't be built: file.usher.go:1:`},
		{"new " + strings.Repeat("a", 65) + ".usher.sh", 2, "module name"},
		{"new foo.usher.rb", 2, "(or go, js, "},
		{"new DANGLING", 1, "file exists"},
	} {
		t.Run(tt.args, func(t *testing.T) {
			args := strings.Split(folders.Replace(tt.args), " ")
			out, errs, code := usher(t, args...)
			check(t, "status", code, tt.code)
			check(t, "stdout", out, "")
			first, rest, _ := strings.Cut(building.ReplaceAllString(errs, ""), "\n")
			checkContains(t, "the first line", first, tt.says)
			if !strings.HasPrefix(tt.args, "call ruby ") {
				checkOmits(t, "the first line", first, "ruby")
			}
			if !strings.HasPrefix(first, "usher: ") || code == 1 && rest != "" {
				t.Errorf("not one line of usher's: %s", errs)
			}
		})
	}
	checkExists(t, dir+"/nowhere", false) // usher new writes through no link
	for path, want := range map[string]string{
		file:                           "mine",
		corrupt + "/.data/claims.json": `{"version":9}`,
	} {
		got, _ := os.ReadFile(path)
		check(t, path, string(got), want)
	}
	wantUsher(t, 2, "Begin with:")
	out, _, _ := usherIn(t, nil, "\ufeff{\"n\":1}", "call", "a", "x", "-", "-dir", dir)
	checkContains(t, "arguments from stdin", out, `"arguments":{"n":1}`)
	wantUsher(t, 0, `"arguments":{"n":2}`, "call", "a_x", `{"n":2}`, "-dir", dir)
}

// A command that is refused because of its base folder has created nothing.
func TestRefusedBaseIsUnchanged(t *testing.T) {
	t.Parallel()
	open := t.TempDir()
	must(t, os.Chmod(open, 0o777))
	for _, base := range []string{open, open + "/base", open + "/a/b"} {
		wantUsher(t, 1, "other users can write into "+open, "claim", "-base", base)
		check(t, "files in "+open, len(folderNames(t, open)), 0)
	}
	must(t, os.Chmod(open, 0o777|os.ModeSticky))
	wantUsher(t, 1, "other users can write into "+open, "claim", "list", "-base", open)
	wantUsher(t, 0, "", "claim", "list", "-base", open+"/a/b")
}

// usher call prints what the module prints, and where an error comes from.
func TestCallExplains(t *testing.T) {
	long(t)
	dir, err := filepath.Abs("testdata/call")
	must(t, err)
	for _, file := range folderNames(t, dir) {
		t.Run(file, func(t *testing.T) {
			needLanguage(t, file)
			name, _, _ := strings.Cut(file, ".")
			_, errs, _ := usher(t, "call", name, "f", "-dir", dir)
			golden(t, "call-"+name, building.ReplaceAllString(errs, ""), dir)
		})
	}
}

func noEnv(string) (string, bool) { return "", false }

// Output that can't be written is a failure.
func TestFailedOutputIsAFailure(t *testing.T) {
	t.Parallel()
	reader, full := io.Pipe()
	reader.CloseWithError(syscall.ENOSPC)
	base := t.TempDir()
	for _, command := range []string{
		"version", "help", "help claim", "claim -json -scope . -base " + base,
		"claim -base " + base,
		"claim list -base " + base,
	} {
		var errs strings.Builder
		code := run(t.Context(), strings.Fields(command), strings.NewReader(""), full,
			&errs, noEnv)
		check(t, command+": status", code, 1)
		checkContains(t, command, errs.String(), syscall.ENOSPC.Error())
	}
	wantUsher(t, 0, "No active claims", "claim", "list", "-base", base) // nobody knows their codes
}

// A reader of its output that goes away does not end usher, which ends in order later.
func TestClosedPipeEndsNothing(t *testing.T) {
	long(t)
	dir, base := twoProjects(t), t.TempDir()
	exe := testBinary(t)
	r, w, err := os.Pipe()
	must(t, err)
	r.Close()
	defer w.Close()
	cmd := exec.Command(exe, "serve", "-addr", "127.0.0.1:0", "-base", base, dir)
	cmd.Env = append(os.Environ(), runAsUsher+"=1")
	cmd.Stdout = w
	cmd.Stderr = w
	must(t, cmd.Start())
	await(t, "the daemon", func() bool { return (&app{data: base + "/.data"}).readDaemon().Roots != nil })
	cmd.Process.Signal(os.Interrupt)
	cmd.Wait()
	check(t, "it ended in order", cmd.ProcessState.Exited(), true)
}

// callSays returns what usher call prints, on both streams, without what it says while it waits.
func callSays(t *testing.T, base, dir string, args ...string) string {
	t.Helper()
	out, errs, _ := usher(t, append([]string{"call", "-base", base, "-dir", dir}, args...)...)
	return building.ReplaceAllString(out+errs, "")
}

// A result is printed unchanged, except on a terminal, which it could control.
func TestResultIsPlainOnATerminal(t *testing.T) {
	long(t)
	need(t, "sh")
	dir, base := t.TempDir(), t.TempDir()
	write(t, dir+"/m.usher.sh",
		"# Clears the screen.\nclear() { printf '\\033[2J a\\n\\tb'; }\n")
	args := []string{"call", "-base", base, "-dir", dir, "m", "clear"}
	check(t, "the result", callSays(t, base, dir, args[5:]...), "\033[2J a\n\tb\n")
	terminal, shown := openTerminal(t)
	run(t.Context(), args, strings.NewReader(""), terminal, io.Discard, noEnv)
	shown.await(t, "the result", nil, func(text string) bool {
		return strings.Contains(text, "\uFFFD[2J a\n b")
	})
}

// A revoke of several codes revokes all valid ones, whatever else is named.
func TestRevokeTakesSeveralCodes(t *testing.T) {
	t.Parallel()
	dir, base := tempDir(t), t.TempDir()
	a, b, kept := newClaimFor(
		t,
		base,
		dir+"/proj",
	), newClaimFor(
		t,
		base,
		dir,
	), newClaimFor(
		t,
		base,
		dir,
	)
	revoked := wantUsher(
		t,
		0,
		"",
		"claim",
		"revoke",
		"-base",
		base,
		strings.ToLower(a.Code.Dashed()),
	)
	golden(t, "revoke", revoked, dir, base)
	out, errs, code := usher(t, "claim", "revoke", "-base", base, a.Code.Reveal(),
		"222222", b.Code.Dashed())
	check(t, "status", code, 1)
	check(t, "revoked", strings.Count(out, "Revoked "), 1)
	checkContains(t, "stderr", errs, "code 1 of 3: no active claim",
		"; code 2 of 3: no active claim")
	checkOmits(t, "stderr", errs, a.Code.Reveal())
	left := wantUsher(t, 0, kept.Code.Dashed(), "claim", "list", "-base", base)
	check(t, "claims that are left", strings.Count(left, dir), 1)
}

// Nobody else may write to the data folder: who can write there can make claims.
func TestDataFolderIsPrivate(t *testing.T) {
	t.Parallel()
	for _, folder := range []string{"", "/.data", "/.."} {
		base := t.TempDir() + "/base"
		newClaimFor(t, base, base)
		claim := []string{"claim", "-base", base, "-scope", base}
		for _, mode := range []os.FileMode{0o722, 0o770} {
			must(t, os.Chmod(base+folder, mode))
			wantUsher(t, 1, "chmod go-w", claim...)
		}
		must(t, os.Chmod(base+folder, os.ModeSticky|0o777))
		_, _, code := usher(t, claim...)
		check(t, "a sticky "+folder+" is refused", code == 1, folder != "/..")
		must(t, os.Chmod(base+folder, 0o755))
		out, _, _ := usher(t, claim...)
		checkContains(t, "usher claim", out, "Claim code: ")
		if os.Chmod(base+folder, 0o700) == nil &&
			os.Chown(base+folder, 1234, -1) == nil { // only root may
			wantUsher(t, 1, "another user", claim...)
		}
	}
}

// The folder that contains a link to the base folder, or to one above it, must be private as well.
func TestLinkToDataFolderIsPrivate(t *testing.T) {
	t.Parallel()
	for _, below := range []string{"", "/base"} {
		target, folder := t.TempDir(), t.TempDir()
		write(t, folder+"/m.usher.sh", "")
		must(t, os.Symlink(target, folder+"/link"))
		claim := []string{"claim", "-base", folder + "/link" + below, "-scope", folder}
		must(t, os.Chmod(folder, 0o777))
		wantUsher(t, 1, "chmod go-w", claim...)
		checkExists(t, target+below+"/.data", false)
		must(t, os.Chmod(folder, 0o755))
		wantUsher(t, 0, "Claim code: ", claim...)
	}
}

// So must the folder of a link that a link to the base folder leads to.
func TestLinksToDataFolderArePrivate(t *testing.T) {
	t.Parallel()
	target, middle, folder := t.TempDir(), t.TempDir(), t.TempDir()
	write(t, folder+"/m.usher.sh", "")
	must(t, os.Symlink(target, middle+"/link"))
	must(t, os.Symlink("../"+filepath.Base(middle)+"/link", folder+"/link"))
	claim := []string{"claim", "-base", folder + "/link", "-scope", folder}
	must(t, os.Chmod(middle, 0o777))
	wantUsher(t, 1, "chmod go-w", claim...)
	must(t, os.Chmod(middle, 0o755))
	wantUsher(t, 0, "Claim code: ", claim...)
}

// With -public-url, usher prints that URL, and admits its host.
func TestPublicURLIsPrinted(t *testing.T) {
	long(t)
	dir, base := twoProjects(t), t.TempDir()
	writeFake(t, dir+"/hooks.usher", "good tools=handleX")
	const public = "https://usher.example/below/"
	d := daemonOptions{base: base}.startReady(t, dir, "-public-url",
		strings.TrimSuffix(public, "/"),
		"-require-claim", "-allow-host", "2001:db8::1")
	check(t, "the URL of serve", d.URL, public)
	checkOmits(t, "the log", d.Log.String(), "set -public-url")
	wantUsher(t, 0, public, "claim", "-scope", dir, "-base", base)
	wantUsher(t, 0, public+"webhook/hooks/handleX", "modules", dir, "-base", base)
	_, address, _ := strings.Cut(d.Log.String(), "address=")
	address, _, _ = strings.Cut(address, " ")
	for host, status := range map[string]int{"usher.example": 400, "other.example": 403} {
		c := newClient(t, "http://"+address)
		req := c.Asking("ping", "")
		req.Host = host
		wantStatus(t, host, c.Do(req), status)
	}
	for _, url := range []string{
		"", "usher.example", "ftp://usher.example/", "https://", "https://a:b@usher.example/",
		"https://usher.example/?claim=x",
	} {
		wantUsher(t, 2, "-public-url", "serve", "-public-url", url)
	}
	wantUsher(t, 2, "-require-claim", "serve", "-public-url", public)
}

// usher new writes modules that run.
func TestStarters(t *testing.T) {
	long(t)
	dir, base := t.TempDir(), t.TempDir()
	for _, ending := range []string{"go", "sh", "py", "js", "ts"} {
		t.Run(ending, func(t *testing.T) {
			needLanguage(t, "."+ending)
			wantUsher(t, 0, "", "new", dir+"/hello_"+ending+".usher."+ending)
			out := callSays(t, base, dir, "hello_"+ending, "greet", `{"name":"Ada"}`)
			checkContains(t, "usher call", out, "Hello, Ada!")
		})
	}
}

// A command that waits says for what, and that it was interrupted.
func TestWaitingCommandSaysSo(t *testing.T) {
	long(t)
	dir, base := t.TempDir(), t.TempDir()
	writeFake(t, dir+"/db.usher", "mute")
	for name, args := range map[string][]string{
		"call":    {"call", "db", "x", "-dir", dir},
		"modules": {"modules", dir},
	} {
		ctx, interrupt := context.WithCancel(t.Context())
		out, errs, exit := &output{}, &output{}, make(chan int, 1)
		go func() {
			exit <- run(ctx, append(args, "-base", base), strings.NewReader(""), out,
				errs, noEnv)
		}()
		errs.await(t, "the word", nil, func(said string) bool {
			return strings.Contains(said, "waiting for modules…")
		})
		interrupt()
		check(t, name+": status", <-exit, 1)
		check(t, name+": stdout", out.String(), "")
		check(t, name+": stderr", errs.String(), "usher: waiting for modules…\nusher: "+
			name+": interrupted\n")
	}
}

// The line that usher modules prints for a webhook delivers to it.
func TestPrintedCurlWorks(t *testing.T) {
	long(t)
	need(t, "curl")
	dir, base := t.TempDir(), t.TempDir()
	writeTools(t, dir+"/forms.usher", "handle_all",
		"handle_signed: @signature github X_SIGNING_SECRET")
	env := map[string]string{webhookSecretVar: testSecret, "X_SIGNING_SECRET": "k"}
	daemonOptions{base: base, env: env}.startReady(t, dir)
	_, line, _ := strings.Cut(wantUsher(t, 0, "", "modules", "-base", base, dir),
		"webhook: curl ")
	line, rest, _ := strings.Cut(line, "\n")
	cmd := exec.Command("sh", "-c", "curl -sS "+line)
	cmd.Env = append(os.Environ(), webhookSecretVar+"="+testSecret)
	got, err := cmd.CombinedOutput()
	must(t, err)
	checkContains(t, "curl "+line, got, `"rawBody":"{}"`)
	checkContains(t, "usher modules", rest, "forms/handle_signed, signed by its sender\n")
}

// While a daemon serves a folder, usher modules prints the modules below it from the
// daemon's report.
func TestModulesComeFromTheReport(t *testing.T) {
	t.Parallel()
	dir, base := twoProjects(t), t.TempDir()
	report := base + "/.data/" + reportName
	d := daemonOptions{base: base}.startReady(t, dir)
	text := readFile(t, report)
	write(t, report, strings.ReplaceAll(text, "The tool x.", "From the report."))
	out := wantUsher(t, 0, "From the report.", "modules", "-base", base, dir+"/proj")
	checkOmits(t, "modules below another folder", out, "b_x")
	out = wantUsher(t, 0, "a_x", "modules", "-base", base, "-scope", dir+"/proj", dir)
	checkOmits(t, "modules inside a scope", out, "From the report.")
	outside := t.TempDir()
	writeFake(t, outside+"/d.usher", "good tools=x")
	wantUsher(t, 0, "d_x", "modules", "-base", base, outside)
	d.stop(t)
	out = wantUsher(t, 0, "a_x", "modules", "-base", base, dir)
	checkOmits(t, "modules without a daemon", out, "From the report.")
}

var updateCLI = flag.Bool("update-cli", false, "write testdata/cli anew")

// A folder without modules, such as one with files that are not named like modules, says what to do.
func TestNoModulesSaysWhatToDo(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range []string{"hello.py", "mcp.json", "tables.usher.PY"} {
		write(t, dir+"/"+name, "{}")
	}
	out := modulesOf(t, dir)
	checkContains(t, "usher modules", out, "usher new hello.usher.go",
		"hello.py or hello.usher.PY to hello.usher.py", "mcp.json to .mcp.json")
}

// modulesOf returns what usher modules prints.
func modulesOf(t *testing.T, dir string) string {
	t.Helper()
	out, errs, code := usher(t, "modules", dir)
	check(t, "status of usher modules: "+errs, code, 0)
	return out
}
