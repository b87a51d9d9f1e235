// The command line: what is printed, word for word, and what is refused.

package main

import (
	"context"
	"encoding/json"
	"flag"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

var updateCLI = flag.Bool("update-cli", false, "write testdata/cli anew")

// columns are the lines whose columns are as wide as a temporary path.
var (
	columns = regexp.MustCompile(`(?m)^(CODE|  \S+ +\().*$`)
	gaps    = regexp.MustCompile(` {2,}`)
)

// golden compares what was printed with testdata/cli/NAME.txt.
func golden(t *testing.T, name, got string, dirs ...string) {
	t.Helper()
	for i, dir := range dirs {
		got = strings.ReplaceAll(got, dir, "/DIR"+strings.Repeat("'", i))
	}
	for line := range strings.Lines(got) {
		line = strings.TrimSuffix(line, "\n")
		if wide := utf8.RuneCountInString(strings.ReplaceAll(line, "\t", "    ")); strings.TrimRight(line, " ") != line || strings.HasPrefix(name, "help") && wide > 80 {
			t.Errorf("%s: a line that ends in blanks, or of over 80 columns: %q", name, line)
		}
	}
	for _, m := range masks {
		got = m.form.ReplaceAllString(got, m.with)
	}
	got = columns.ReplaceAllStringFunc(got, func(line string) string { return gaps.ReplaceAllString(line, "   ") })
	path := "testdata/cli/" + name + ".txt"
	if *updateCLI {
		write(t, path, got)
	}
	want, err := os.ReadFile(path)
	must(t, err)
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s: %s", name, diff)
	}
}

func TestPrinted(t *testing.T) {
	t.Parallel()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	must(t, err)
	base := t.TempDir()
	writeFake(t, dir+"/proj/a.usher", "good tools=x,handleY")
	writeFake(t, dir+"/other/a.usher", "good tools=x")
	write(t, dir+"/proj/broken.usher.go", "//go:build usher\n\npackage main\n\nfunc X( {}\n")
	must(t, os.Mkdir(dir+"/empty", 0o755))
	for _, tt := range []struct {
		name string
		args string
	}{
		{"help", "help"},
		{"help-serve", "help serve"},
		{"help-claim", "help claim"},
		{"help-claim", "claim revoke -h"},
		{"help-modules", "help modules"},
		{"help-call", "call --help"},
		{"help-new", "help new"},
		{"help-stdio", "help stdio"},
		{"help-completion", "help completion"},
		{"help-version", "help version"},
		{"version", "-v"},
		{"version", "version"},
		{"list-none", "claim list"},
		{"list-none-json", "claim list -json"},
		{"claim", "claim -scope PROJ -label phone -ttl 2h"},
		{"claim-json", "claim -scope PROJ -json -ttl 90m"},
		{"claim-empty", "claim -scope EMPTY"},
		{"list", "-base-first claim list"},
		{"list-json", "claim list --json"},
		{"modules", "modules DIR"},
		{"modules-scope", "modules DIR -scope PROJ"},
		{"modules-json", "modules -json -scope PROJ DIR"},
		{"call", "call a handleY {\"n\":1} -dir PROJ"},
		{"call-scope", "call a x -dir DIR -scope OTHER"},
	} {
		args := strings.Fields(strings.NewReplacer("PROJ", dir+"/proj", "OTHER", dir+"/other", "EMPTY", dir+"/empty", "DIR", dir, "-base-first ", "").Replace(tt.args))
		if args[0] != "version" && args[0] != "-v" && args[0] != "help" && !strings.HasSuffix(tt.args, "-h") {
			args = append(args, "-base", base)
		}
		out, errs, code := usher(t, "", args...)
		if code != 0 {
			t.Errorf("%s: status %d", tt.name, code)
		}
		if errs != "" {
			out += "--- stderr\n" + errs
		}
		golden(t, tt.name, out, dir, base)
	}
}

func TestRevokePrinted(t *testing.T) {
	t.Parallel()
	dir, base := twoProjects(t), t.TempDir()
	c := newClaimFor(t, base, dir+"/proj")
	out, errs, code := usher(t, "", "claim", "revoke", "-base", base, strings.ToLower(c.Code.Dashed()))
	if code != 0 || errs != "" {
		t.Errorf("%d %s", code, errs)
	}
	golden(t, "revoke", out, dir, base)
	if out, errs, code = usher(t, "", "claim", "revoke", c.Code.Reveal(), "-base", base); code != 1 || out != "" || strings.Contains(errs, c.Code.Reveal()) {
		t.Errorf("again: %d %s%s", code, out, errs)
	}
	if raw, err := os.ReadFile(base + "/.data/claims.json"); strings.TrimSpace(strings.Trim(strings.TrimSpace(string(raw)), "[]")) != "" {
		t.Errorf("the file holds %s %v", raw, err)
	}
}

// TestFlagsAnywhere holds that flags may stand before and after arguments, with
// one dash or two, with a space or an equals sign.
func TestFlagsAnywhere(t *testing.T) {
	t.Parallel()
	dir := twoProjects(t)
	const day = 24 * time.Hour
	for _, tt := range []struct {
		args string // BASE and DIR stand for folders
		life time.Duration
		say  string // the label
	}{
		{"claim -base BASE -scope DIR", day, ""},
		{"claim --base=BASE --scope=DIR --ttl=90m --label=list", 90 * time.Minute, "list"},
		{"claim -label revoke -ttl 7d -scope DIR -base BASE", 7 * day, "revoke"},
		{"claim -ttl 1h30m -label=-json -base=BASE -scope=DIR", 90 * time.Minute, "-json"},
		{"claim -ttl 2w -ttl 30s -base BASE -scope DIR", 30 * time.Second, ""},
		{"claim -ttl 1.5h -label ☎ -base BASE -scope DIR --", 90 * time.Minute, "☎"},
	} {
		base := t.TempDir()
		fill := strings.NewReplacer("BASE", base, "DIR", dir+"/proj")
		before := time.Now()
		if out, errs, code := usher(t, "", strings.Fields(fill.Replace(tt.args))...); code != 0 || errs != "" || !strings.HasPrefix(out, "Claim code: ") {
			t.Errorf("usher %s: %d %s%s", tt.args, code, out, errs)
			continue
		}
		for _, args := range []string{"claim list -json -base BASE", "claim -json list -base BASE", "claim -base BASE list --json", "claim --base=BASE -json=true list"} {
			out, errs, code := usher(t, "", strings.Fields(fill.Replace(args))...)
			list, err := parseClaims([]byte(out))
			if code != 0 || errs != "" || err != nil || len(list.claims) != 1 {
				t.Errorf("usher %s: %d %v %s%s", args, code, err, out, errs)
				continue
			}
			c := list.claims[0]
			if left := c.ExpiresAt.Sub(before); c.ScopeDir != dir+"/proj" || c.Label != tt.say || left < tt.life-time.Millisecond || left > tt.life+patience {
				t.Errorf("usher %s: it holds for %v, says %q: %s", tt.args, left, c.Label, out)
			}
		}
		for path, mode := range map[string]os.FileMode{"": 0o700, "/claims.json": 0o600} {
			if info, err := os.Stat(base + "/.data" + path); err != nil || runtime.GOOS != "windows" && info.Mode().Perm() != mode {
				t.Errorf("%s: %v %v", path, info.Mode(), err)
			}
		}
	}
}

// TestListIsPlain prints claims that were written by hand, with what could play
// with a terminal.
func TestListIsPlain(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	write(t, base+"/.data/claims.json", `[
		{"code":"CCCCCC","scopeDir":"/w/ümläut ünd space","expiresAt":"2099-03-01T00:00:00Z","createdAt":1700000000000,"note":{"kept":1}},
		{"code":"BBBBBB","scopeDir":"/w/\u001b[31mred\n/w/two\tthree","label":"\u001b]0;title\u0007\r\u202eab","expiresAt":"2099-02-01T00:00:00Z"},
		{"code":"AAAAAA","scopeDir":"/w","label":"over","expiresAt":"2020-01-01T00:00:00Z"}]`)
	out, errs, code := usher(t, "", "claim", "list", "-base", base)
	lines := strings.Split(strings.TrimSuffix(out, "\n"), "\n")
	if code != 0 || errs != "" || len(lines) != 3 || strings.Contains(out, "AAA") {
		t.Fatalf("%d %s%s", code, out, errs)
	}
	if strings.ContainsFunc(out, func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }) {
		t.Errorf("the table plays with the terminal: %q", out)
	}
	if !strings.HasPrefix(lines[1], "BBB-BBB") || !strings.HasPrefix(lines[2], "CCC-CCC   /w/ümläut ünd space ") {
		t.Errorf("the soonest is not first: %s", out)
	}
	for name := range map[string]bool{"SCOPE": true, "EXPIRES IN": true, "CREATED": true, "LABEL": true} {
		if at := strings.Index(lines[0], name); at < 3 || lines[0][at-3:at] != "   " {
			t.Errorf("no column %s: %s", name, lines[0])
		}
	}
	raw, _ := os.ReadFile(base + "/.data/claims.json")
	if strings.Contains(string(raw), "AAAAAA") || !strings.Contains(string(raw), `"kept": 1`) || !strings.Contains(string(raw), "1700000000000") {
		t.Errorf("the list left %s", raw)
	}
}

func TestClaimOfARunningDaemon(t *testing.T) {
	t.Parallel()
	dir, base := twoProjects(t), t.TempDir()
	d := daemonOptions{base: base}.start(t, dir)
	out, _, _ := usher(t, "", "claim", "-base", base, "-scope", dir+"/proj")
	if !strings.Contains(out, "usher "+d.URL+" --header") || strings.Contains(out, "No usher serves") {
		t.Errorf("usher claim beside %s:\n%s", d.URL, out)
	}
	var list []struct {
		Code, ScopeDir string
		ExpiresAt      time.Time
	}
	out, _, _ = usher(t, "", "claim", "list", "-json", "-base", base)
	if err := json.Unmarshal([]byte(out), &list); err != nil || len(list) != 1 || list[0].ScopeDir != dir+"/proj" {
		t.Fatalf("%v %s", err, out)
	}
	c, _ := openSession(t, d.URL, presentNothing)
	c.Header.Set(claimHeader, list[0].Code)
	c.awaitTools(projTools...)
	out, _, _ = usher(t, "", "modules", "-claim", list[0].Code, "-base", base, dir)
	if !strings.Contains(out, "a_x") || strings.Contains(out, "b_x") || strings.Count(out, "  hidden: ") != 2 || strings.LastIndex(out, "_x") > strings.Index(out, "  hidden: ") {
		t.Errorf("usher modules -claim:\n%s", out)
	}
	code := strings.ToLower(list[0].Code[:3] + "-" + list[0].Code[3:])
	if out, errs, status := usher(t, "", "claim", "revoke", code, "-base", base); status != 0 || !strings.HasPrefix(out, "Revoked ") {
		t.Errorf("revoke: %d %s%s", status, out, errs)
	}
	if got := c.tools(); len(got) != 0 {
		t.Errorf("after the revoke: %v", got)
	}
	for _, way := range ways {
		openSession(t, d.URL, func(r *http.Request) { way(r, list[0].Code) })
	}
	d.hidesCodes(t, list[0].Code)
	d.stop(t)
	if out, _, _ = usher(t, "", "claim", "-base", base, "-scope", dir+"/proj"); !strings.Contains(out, "No usher serves") || strings.Contains(out, d.URL) {
		t.Errorf("usher claim after the daemon's end:\n%s", out)
	}
	killed := daemonOptions{base: base, ownProcess: true}.start(t, dir)
	killed.signal(t, os.Kill)
	if out, _, _ = usher(t, "", "claim", "-base", base, "-scope", dir+"/proj"); !strings.Contains(out, "No usher serves") || strings.Contains(out, killed.URL) {
		t.Errorf("usher claim after the daemon was killed:\n%s", out)
	}
}

func TestRefusedCommands(t *testing.T) {
	t.Parallel()
	dir, base := t.TempDir(), t.TempDir()
	locked := t.TempDir()
	write(t, locked+"/.data/claims.lock", "a file where a folder should be")
	unreadable := t.TempDir()
	must(t, os.MkdirAll(unreadable+"/.data/claims.json", 0o700))
	dangling := dir + "/dangling.usher.sh"
	must(t, os.Symlink(dir+"/nowhere", dangling))
	file := dir + "/file.usher.go"
	write(t, file, "mine")
	corrupt := t.TempDir()
	write(t, corrupt+"/.data/claims.json", `{"version":9}`)
	writeFake(t, dir+"/a.usher", "good tools=fail,x")
	write(t, dir+"/none.usher.sh", "f() { echo; }\n")
	for _, tt := range []struct {
		args string
		code int
		says string
	}{
		{"nope", 2, `unknown command "nope"`},
		{"srve", 2, "did you mean serve?"},
		{"claims", 2, "did you mean claim?"},
		{"list", 2, "did you mean claim list?"},
		{"rm", 2, "did you mean claim revoke?"},
		{"-base x nope", 2, `unknown command "-base"`},
		{"claim ls", 2, "did you mean claim list?"},
		{"claim revok", 2, "did you mean claim revoke?"},
		{"claim examples", 2, "did you mean -scope examples?"},
		{"serve -prot 3001", 2, "unknown flag -prot: did you mean -addr 127.0.0.1:3001?"},
		{"-require-claims serve", 2, "did you mean -require-claim?"},
		{"claim -port 3001", 2, "unknown flag -port"},
		{"serve -addr :4000", 2, "for this machine only: -addr 127.0.0.1:4000"},
		{"serve -idle 5", 2, "such as 5m"},
		{"call a x name=Ada -dir " + dir, 2, `'{"name":"Ada"}'`},
		{"call a_x {} -dir " + dir, 1, "MODULE METHOD would be a x"},
		{"call a fial -dir " + dir, 1, "did you mean fail?"},
		{"call a nothing -dir " + dir, 1, "it has fail, x"},
		{"call none x -dir " + dir, 1, "it has no methods"},
		{"serve -allow-host x.example", 2, "without -allow-host"},
		{"completion tcsh", 2, "want bash, zsh or fish"},
		{"help nope", 2, `unknown command "nope"`},
		{"version x", 2, "unexpected argument"},
		{"claim -ttl 0", 2, "30m, 1h, 7d"},
		{"claim -ttl abc", 2, "30m, 1h, 7d"},
		{"claim -ttl ", 2, "30m, 1h, 7d"},
		{"claim -ttl 9223372036854775807s", 2, "30m, 1h, 7d"},
		{"claim -base " + base + " -ttl", 2, "flag needs an argument"},
		{"claim -scope ", 2, "no such folder"},
		{"modules -scope ", 2, "no such folder"},
		{"modules -claim ", 2, "6 of 23456789"},
		{"call a x -scope ", 2, "no such folder"},
		{"call a x -scope " + dir + "/nope", 2, "no such folder"},
		{"claim -scope " + dir + "/nope", 2, "no such folder"},
		{"claim -scope " + file, 2, "not a folder"},
		{"claim -label a\xffb", 1, "UTF-8"},
		{"claim list revoke", 2, "want no argument, list"},
		{"claim revoke ", 2, "6 of 23456789"},
		{"claim revoke ABC-DEF-", 1, "no active claim has this code"},
		{"claim revoke ABCDE0", 2, "6 of 23456789"},
		{"claim revoke -base " + base + " -- -ABCDEF", 1, "no active claim has this code"},
		{"claim -base " + locked, 1, "claims.lock"},
		{"claim -base " + unreadable, 1, "claims.json"},
		{"claim list -base " + unreadable, 1, "claims.json"},
		{"modules -claim ABCDEF -base " + corrupt, 1, "claims.json"},
		{"claim lsit", 2, "want no argument, list"},
		{"claim revoke", 2, "revoke CODE"},
		{"claim revoke ABCDEF ABCDEG", 1, "code 2 of 2: no active claim has this code"},
		{"claim revoke ABCDEF hello", 2, "6 of 23456789"},
		{"claim revoke ABCDEF", 1, "no active claim has this code"},
		{"claim revoke hello", 2, "6 of 23456789"},
		{"claim -base " + corrupt, 1, "claims.json"},
		{"claim list -base " + corrupt, 1, "claims.json"},
		{"claim revoke ABCDEF -base " + corrupt, 1, "claims.json"},
		{"claim -base " + file, 1, "-base"},
		{"modules -scope . -claim ABCDEF", 2, "exclude"},
		{"modules -claim hello", 2, "6 of 23456789"},
		{"modules -claim ABCDEF", 1, "no active claim has this code"},
		{"modules " + dir + "/nope", 2, "no such folder"},
		{"call", 2, "MODULE METHOD"},
		{"call a x [] -dir " + dir, 2, "want an object"},
		{"call a x {", 2, "want an object"},
		{"call b x -dir " + dir, 1, `no module "b" with a method "x"`},
		{"call a y -dir " + dir, 1, `with a method "y"`},
		{"call a fail -dir " + dir, 1, "it did not work"},
		{"call a fail -dir " + dir + " -scope " + base, 1, `no module "a"`},
		{"call file x -dir " + dir, 1, `no module "file"`},
		{"call a x null -dir " + dir, 2, "want an object"},
		{"call a x - -dir " + dir, 2, "JSON"},
		{"call a x {} {}", 2, "unexpected argument"},
		{"new", 2, "want FILE"},
		{"new x.go", 2, ".usher.go"},
		{"new a@b.usher.go", 2, "a module name"},
		{"new .usher.go", 2, "module name"},
		{"new " + strings.Repeat("a", 65) + ".usher.sh", 2, "module name"},
		{"new a.usher", 2, ".usher.go"},
		{"new a.usher.rb", 2, ".usher.go"},
		{"new a.usher.go b.usher.go", 2, "unexpected argument"},
		{"new " + dangling, 1, "file exists"},
		{"new " + file, 1, "file exists"},
		{"new " + dir + "/nope/x.usher.go", 1, "no such file"},
	} {
		args := strings.Split(tt.args, " ")
		if !strings.Contains(tt.args, "-base") && args[0] != "new" && args[0] != "version" && args[0] != "help" && args[0] != "completion" {
			args = append(args, "-base", base)
		}
		out, errs, code := usher(t, "", args...)
		first, rest, _ := strings.Cut(errs, "\n")
		if code != tt.code || !strings.Contains(first, tt.says) || !strings.HasPrefix(first, "usher: ") || out != "" {
			t.Errorf("usher %s: status %d, want %d\n%s%s", tt.args, code, tt.code, out, errs)
		}
		if code == 1 && rest != "" {
			t.Errorf("usher %s: more than a line: %s", tt.args, errs)
		}
	}
	if _, err := os.Lstat(dir + "/nowhere"); err == nil {
		t.Error("usher new wrote through a link")
	}
	for path, want := range map[string]string{file: "mine", locked + "/.data/claims.lock": "a file where a folder should be", corrupt + "/.data/claims.json": `{"version":9}`} {
		if got, _ := os.ReadFile(path); string(got) != want {
			t.Errorf("%s was overwritten: %q", path, got)
		}
	}
	if _, errs, code := usher(t, ""); code != 2 || !strings.Contains(errs, "Begin with:") {
		t.Errorf("usher alone: %d %s", code, errs)
	}
	if out, errs, code := usher(t, `{"n":1}`, "call", "a", "x", "-", "-dir", dir, "-base", base); code != 0 || !strings.Contains(out, `"arguments":{"n":1}`) {
		t.Errorf("arguments from stdin: %d %s%s", code, out, errs)
	}
}

// TestRevokeSeveral removes all claims that hold, whatever else is named.
func TestRevokeSeveral(t *testing.T) {
	t.Parallel()
	dir, base := t.TempDir(), t.TempDir()
	a, b, kept := newClaimFor(t, base, dir), newClaimFor(t, base, dir), newClaimFor(t, base, dir)
	out, errs, code := usher(t, "", "claim", "revoke", "-base", base, a.Code.Reveal(), "222222", b.Code.Dashed())
	if code != 1 || strings.Count(out, "Revoked ") != 2 || !strings.Contains(errs, "code 2 of 3") {
		t.Errorf("%d %s%s", code, out, errs)
	}
	if out, _, _ := usher(t, "", "claim", "list", "-base", base); strings.Count(out, dir) != 1 || !strings.Contains(out, kept.Code.Dashed()) {
		t.Errorf("left: %s", out)
	}
}

// TestPlainOutput prints modules whose folders, names and documentation hold what
// could play with the terminal.
func TestPlainOutput(t *testing.T) {
	t.Parallel()
	dir, base := t.TempDir(), t.TempDir()
	odd := dir + "/x\x1b]0;title\a\u202ey"
	writeFake(t, odd+"/a.usher", "good tools=x")
	writeFake(t, odd+"/b\x1b[2J.usher", "good tools=x")
	write(t, odd+"/c.usher.sh", "# Clears the \x1b[2J screen.\nclear() { echo; }\n")
	write(t, odd+"/d.usher", "not executable")
	d := daemonOptions{base: base}.start(t, dir)
	connect(t, d.URL).awaitTools("a_x", "c_clear")
	out, errs, _ := usher(t, "", "modules", "-base", base, dir)
	for what, text := range map[string]string{"usher modules": out + errs, "usher serve": d.Out.String()} {
		if strings.ContainsFunc(text, func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }) {
			t.Errorf("%s: %q", what, text)
		}
	}
	if !strings.Contains(out, "�[2J screen.") {
		t.Errorf("usher modules: %q", out)
	}
}

// TestPrivateData holds that nobody else may write into the data folder: who can
// makes claims.
func TestPrivateData(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("a folder's mode says nothing")
	}
	for _, folder := range []string{"", "/.data"} {
		base := t.TempDir()
		newClaimFor(t, base, base)
		claim := func(want string) {
			t.Helper()
			out, errs, code := usher(t, "", "claim", "-base", base, "-scope", base)
			if !strings.Contains(out+errs, want) || (code == 0) != (want == "Claim code: ") {
				t.Errorf("%s: %s%s, want %q", folder, out, errs, want)
			}
		}
		for mode, want := range map[os.FileMode]string{0o722: "chmod go-w", 0o770: "chmod go-w", 0o755: "Claim code: "} {
			must(t, os.Chmod(base+folder, mode))
			claim(want)
		}
		if os.Chmod(base+folder, 0o700) == nil && os.Chown(base+folder, 1234, -1) == nil { // only root may
			claim("another user")
		}
	}
}

// TestPublicURL holds that what is printed is what clients can reach.
func TestPublicURL(t *testing.T) {
	t.Parallel()
	dir, base := twoProjects(t), t.TempDir()
	writeFake(t, dir+"/hooks.usher", "good tools=handleX")
	const public = "https://usher.example/below/"
	d := daemonOptions{base: base}.start(t, dir, "-public-url", strings.TrimSuffix(public, "/"), "-require-claim")
	if d.URL != public {
		t.Errorf("serve is at %s", d.URL)
	}
	await(t, "the webhooks' line", func() bool { return strings.Contains(d.Out.String(), "Webhooks") })
	if !strings.Contains(d.Out.String(), "Webhooks are off") {
		t.Errorf("webhooks without a secret: %s", d.Out)
	}
	for _, args := range [][]string{{"claim", "-scope", dir}, {"modules", dir}} {
		if out, errs, _ := usher(t, "", append(args, "-base", base)...); !strings.Contains(out, public) || args[0] == "modules" && !strings.Contains(out, public+"webhook/hooks/handleX") {
			t.Errorf("usher %s: %s%s", args, out, errs)
		}
	}
	_, address, _ := strings.Cut(d.Log.String(), "address=")
	address, _, _ = strings.Cut(address, "\n")
	for host, want := range map[string]int{"usher.example": http.StatusBadRequest, "other.example": http.StatusForbidden} {
		req, err := http.NewRequest(http.MethodPost, "http://"+address, strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"ping"}`))
		must(t, err)
		req.Host = host
		req.Header.Set("Content-Type", "application/json")
		res, err := http.DefaultClient.Do(req)
		must(t, err)
		res.Body.Close()
		if res.StatusCode != want {
			t.Errorf("%s: %s", host, res.Status)
		}
	}
	for _, url := range []string{"", "usher.example", "ftp://usher.example/", "https://", "https://a:b@usher.example/", "https://usher.example/?claim=x"} {
		if _, errs, code := usher(t, "", "serve", "-public-url", url, "-base", base); code != 2 || !strings.Contains(errs, "-public-url") {
			t.Errorf("%q: %d %s", url, code, errs)
		}
	}
	if _, errs, code := usher(t, "", "serve", "-public-url", public, "-base", t.TempDir()); code != 2 || !strings.Contains(errs, "-require-claim") {
		t.Errorf("without a claim: %d %s", code, errs)
	}
}

// TestOneDaemonABase starts a second daemon beside one, which then ends.
func TestOneDaemonABase(t *testing.T) {
	t.Parallel()
	dir, base := twoProjects(t), t.TempDir()
	d := daemonOptions{base: base}.start(t, dir)
	if _, errs, code := usher(t, "", "serve", "-base", base, "-addr", "127.0.0.1:0", dir); code != 1 || !strings.Contains(errs, d.URL) || !strings.Contains(errs, "-base") {
		t.Errorf("a second daemon: %d %s", code, errs)
	}
	record := base + "/.data/daemon.json"
	await(t, "the whole record", func() bool { return readDaemon(base+"/.data").Roots != nil })
	other := string(marshal(daemonRecord{PID: os.Getppid(), Start: processStartTime(os.Getppid()), URL: "http://127.0.0.1:1/"}))
	write(t, record, other)
	d.stop(t)
	if text, _ := os.ReadFile(record); string(text) != other {
		t.Errorf("a daemon that has ended took away another's record, and left %q", text)
	}
	os.Remove(record)
	daemonOptions{base: base}.start(t, dir).stop(t)
	if _, err := os.Stat(record); err == nil {
		t.Error("a daemon that has ended left its record")
	}
}

// TestCallStartsOneModule holds that a call does not start the modules that it is
// not of.
func TestCallStartsOneModule(t *testing.T) {
	t.Parallel()
	dir, base := t.TempDir(), t.TempDir()
	for _, path := range []string{"/p/a", "/q/a", "/b", "/q/p-b"} {
		writeFake(t, dir+path+".usher", "good tools=x")
	}
	for n, module := range []string{"p-b", "p-a"} { // p-b might be b in a folder p
		if _, errs, code := usher(t, "", "call", module, "x", "-dir", dir, "-base", base); code != 0 {
			t.Errorf("%s: %s", module, errs)
		}
		if list, err := os.ReadDir(base + "/.data/cache/modules"); err != nil || len(list) != 2+2*n {
			t.Errorf("%s: %d modules were started %v", module, len(list), err)
		}
	}
}

func TestTTL(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{
		"30m": 30 * time.Minute, "1h": time.Hour, "7d": 7 * 24 * time.Hour, "90s": 90 * time.Second, "2w": 14 * 24 * time.Hour,
		"1h30m": 90 * time.Minute, "1.5h": 90 * time.Minute, "36500d": maxTTL,
		"7D": 7 * 24 * time.Hour, "": 0, "d": 0, "7": 0, "-1d": 0, "+1d": 0, "-5m": 0, "0h0m": 0, "1h30": 0, "1d12h": 0, "36501d": 0, "9999999h": 0, "106752w": 0,
		"9223372036854775807s": 0, "99999999999999999999d": 0, "NaN": 0, "1e9h": 0,
	} {
		if got, err := parseTTL(text); got != want || (err == nil) != (want > 0) {
			t.Errorf("%q: %v %v, want %v", text, got, err, want)
		}
	}
}

func FuzzParseTTL(f *testing.F) {
	f.Add("7d")
	f.Add("1h30m")
	f.Add("9223372036854775807w")
	f.Fuzz(func(t *testing.T, s string) {
		d, err := parseTTL(s)
		if (err == nil) != (d > 0) || d > maxTTL {
			t.Errorf("%q: %v %v", s, d, err)
		}
		if err != nil && !strings.Contains(err.Error(), "30m, 1h, 7d") {
			t.Errorf("%q: the error does not name the forms: %v", s, err)
		}
		if again, err := parseTTL(d.String()); d > 0 && (err != nil || again != d) {
			t.Errorf("%q is %v, which is read as %v: %v", s, d, again, err)
		}
	})
}

func TestStarters(t *testing.T) {
	t.Parallel()
	dir, base := t.TempDir(), t.TempDir()
	for ending, needs := range map[string]string{"go": "go", "js": "node", "sh": "sh", "py": "python3"} {
		out, errs, code := usher(t, "", "new", dir+"/hello_"+ending+".usher."+ending)
		if code != 0 {
			t.Errorf("%s: %d %s%s", ending, code, out, errs)
		}
		need(t, needs)
		out, errs, code = usher(t, "", "call", "hello_"+ending, "greet", `{"name":"Ada"}`, "-dir", dir, "-base", base)
		if code != 0 || !strings.Contains(out, "Hello, Ada!") {
			t.Errorf("%s: %d %s%s", ending, code, out, errs)
		}
	}
}

// TestInterrupted holds that a command that waits says for what, and that it was
// interrupted.
func TestInterrupted(t *testing.T) {
	t.Parallel()
	dir, base := t.TempDir(), t.TempDir()
	writeFake(t, dir+"/db.usher", "mute")
	for _, args := range []string{"call db x -dir DIR", "modules DIR"} {
		ctx, interrupt := context.WithCancel(t.Context())
		out, errs, exit := &output{}, &output{}, make(chan int, 1)
		fields := strings.Fields(strings.Replace(args, "DIR", dir, 1))
		go func() {
			exit <- run(ctx, append(fields, "-base", base), strings.NewReader(""), out, errs, noEnv)
		}()
		await(t, "the word", func() bool { return strings.Contains(errs.String(), "building db…\n") })
		interrupt()
		if code := <-exit; code != 1 || out.String() != "" || errs.String() != "usher: building db…\nusher: "+fields[0]+": interrupted\n" {
			t.Errorf("%s: %d %s%s", args, code, out, errs)
		}
	}
}

// TestBanner reads what usher serve prints for people.
func TestBanner(t *testing.T) {
	t.Parallel()
	claim, mcp := "usher claim -scope ", "claude mcp add --transport http usher "
	for _, tt := range []struct {
		flags, secret    string
		empty            bool
		says, doesNotSay []string
	}{
		{"", "", false, []string{mcp + "http", "Webhooks need no secret"}, []string{claim, "no module is ready", "-accept-signatures"}},
		{"-accept-signatures", "", true, []string{"no module is ready yet; make one: usher new ", "-accept-signatures has no effect"}, nil},
		{"-accept-signatures", "s", false, []string{"X-Webhook-Secret or a verified signature."}, []string{"no effect"}},
		{"-require-claim -watch", "", false, []string{claim, "Webhooks are off"}, []string{mcp}},
	} {
		dir := t.TempDir()
		if !tt.empty {
			writeFake(t, dir+"/a_name_of_20_letters.usher", "good tools=x")
			writeFake(t, dir+"/db.usher", "good slowstart=1500 tools=x,"+strings.Repeat("y", 90))
		}
		d := daemonOptions{env: map[string]string{webhookSecretVar: tt.secret}}.start(t, dir, strings.Fields(tt.flags)...)
		d.awaitReady(t)
		out := d.Out.String()
		if !tt.empty {
			tt.says = append(tt.says, "  building db…\n", "  ready   a_name_of_20_letters a_name_of_20_letters_x\n", "  ready   db                   db_x, ")
		}
		for _, text := range tt.says {
			if !strings.Contains(out, text) {
				t.Errorf("%s: no %q in\n%s", tt.flags, text, out)
			}
		}
		for _, text := range tt.doesNotSay {
			if strings.Contains(out, text) {
				t.Errorf("%s: %q in\n%s", tt.flags, text, out)
			}
		}
		for line := range strings.Lines(out) {
			if strings.TrimRight(line, " \n") != strings.TrimSuffix(line, "\n") || utf8.RuneCountInString(strings.ReplaceAll(line, dir, "")) > 81 {
				t.Errorf("%s: %q", tt.flags, line)
			}
		}
		if !tt.empty { // a new version is told of
			writeFake(t, dir+"/db.usher", "good tools=x,"+strings.Repeat("y", 90)+"  ")
			await(t, "the new version", func() bool { return strings.Count(d.Out.String(), "  ready   db ") == 2 })
		}
		d.stop(t)
	}
}

// TestPrintedCurl runs the lines that usher modules prints for webhooks.
func TestPrintedCurl(t *testing.T) {
	t.Parallel()
	need(t, "curl")
	need(t, "python3")
	dir, base := t.TempDir(), t.TempDir()
	write(t, dir+"/forms.usher.py", `
from typing import Literal
def handle_all(text: str, n: int, x: float, yes: bool, some: list, other: dict, kind: Literal["it's", "b"], left: int = 3):
    """Takes everything."""
    return kind
def handle_signed():
    """Takes what is signed.

    @signature github GITHUB_WEBHOOK_SECRET
    """
`)
	d := daemonOptions{base: base, env: guarded}.start(t, dir)
	d.awaitReady(t)
	out, _, _ := usher(t, "", "modules", "-base", base, dir)
	_, line, ok := strings.Cut(out, "webhook: curl ")
	line, rest, _ := strings.Cut(line, "\n")
	cmd := exec.Command("sh", "-c", "curl -sS "+line)
	cmd.Env = append(os.Environ(), webhookSecretVar+"="+testSecret)
	if got, err := cmd.CombinedOutput(); !ok || err != nil || strings.TrimSpace(string(got)) != "it's" {
		t.Errorf("curl %s: %s %v", line, got, err)
	}
	if !strings.Contains(rest, "forms/handle_signed, signed by its sender\n") {
		t.Error(rest)
	}
	d.stop(t)
	daemonOptions{base: base}.start(t, dir, "-require-claim")
	if out, _, _ = usher(t, "", "modules", "-base", base, dir); strings.Contains(out, "curl ") || !strings.Contains(out, "forms/handle_all, off: ") {
		t.Errorf("while webhooks are off: %s", out)
	}
}

// TestClaimWarns makes claims that are less, or more, than one would think.
func TestClaimWarns(t *testing.T) {
	t.Parallel()
	dir, base := twoProjects(t), t.TempDir()
	if out, _, code := usher(t, "", "claim", "list", "-base", base+"/new"); code != 0 || !strings.HasPrefix(out, "No claims hold.") {
		t.Errorf("%d %s", code, out)
	}
	if _, err := os.Stat(base + "/new"); err == nil {
		t.Error("usher claim list made a folder")
	}
	const open, elsewhere = "no -require-claim: a client with a mistyped code, or none, gets everything", "serves "
	for flags, wants := range map[string]bool{"-open": true, "-require-claim": false} {
		d := daemonOptions{base: base}.start(t, dir+"/proj", flags)
		await(t, "what the daemon says of itself", func() bool { return readDaemon(base+"/.data").Roots != nil })
		for folder, served := range map[string]bool{"/proj": true, "": true, "/other": false} {
			_, errs, code := usher(t, "", "claim", "-base", base, "-scope", dir+folder)
			if code != 0 || strings.Contains(errs, open) != wants || strings.Contains(errs, elsewhere) == served {
				t.Errorf("%s, %s: %d %s", flags, folder, code, errs)
			}
		}
		if out, errs, code := usher(t, "", "call", "a", "pid", "-dir", dir+"/proj", "-base", base); code != 0 {
			t.Errorf("%s: what is served can't be called: %s%s", flags, out, errs)
		}
		d.stop(t)
	}
}

// TestMisspeltParameter holds that usher call tells of parameters that a method
// takes no notice of.
func TestMisspeltParameter(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	usher(t, "", "new", dir+"/hello.usher.sh")
	out, errs, code := usher(t, "", "call", "hello", "greet", `{"name":"Ada","tmies":3}`, "-dir", dir, "-base", t.TempDir())
	if code != 0 || out != "Hello, Ada!\n\n" && out != "Hello, Ada!\n" || errs != "usher: call: the method has no parameter \"tmies\": did you mean times?\n" {
		t.Errorf("%d %q %q", code, out, errs)
	}
}

// TestPaint holds that only a terminal is painted, unless NO_COLOR is set.
func TestPaint(t *testing.T) {
	t.Parallel()
	device, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0) // a character device, as a terminal is
	if err != nil || runtime.GOOS == "windows" {
		t.Skip(err)
	}
	defer device.Close()
	for _, tt := range []struct {
		out  io.Writer
		env  map[string]string
		want string
	}{
		{&output{}, nil, "x"}, {device, nil, "\x1b[1mx\x1b[0m"}, {device, map[string]string{"NO_COLOR": "1"}, "x"}, {device, map[string]string{"TERM": "dumb"}, "x"},
	} {
		if got := newPainter(tt.out, func(name string) string { return tt.env[name] }).paint(bold, "x"); got != tt.want {
			t.Errorf("%T, %v: %q", tt.out, tt.env, got)
		}
	}
}

func TestFormatLeft(t *testing.T) {
	t.Parallel()
	for want, d := range map[string]time.Duration{
		"1s": time.Millisecond, "45s": 45 * time.Second, "30m": 30*time.Minute - time.Millisecond, "29m 59s": 30*time.Minute - time.Second,
		"1h": time.Hour - time.Millisecond, "1h 30m": 90*time.Minute - time.Second, "24h": 24*time.Hour - time.Millisecond,
		"1d 1h": 24*time.Hour + time.Second, "7d": 7*24*time.Hour - time.Millisecond, "6d 23h": 6*24*time.Hour + 22*time.Hour + time.Minute, "10d": 240 * time.Hour,
	} {
		if got := formatLeft(d); got != want {
			t.Errorf("%v: %s, want %s", d, got, want)
		}
	}
}

// TestCompletion has the shells that are here complete command lines.
func TestCompletion(t *testing.T) {
	t.Parallel()
	dir, base := twoProjects(t), t.TempDir()
	c := newClaimFor(t, base, dir)
	exe, err := os.Executable()
	must(t, err)
	write(t, dir+"/bin/usher", "#!/bin/sh\n"+runAsUsher+"=1 exec '"+exe+"' \"$@\"\n")
	must(t, os.Chmod(dir+"/bin/usher", 0o755))
	writeFake(t, dir+"/odd.usher", "good tools=say,$(touch${IFS}"+base+"/ran)")
	shells := map[string][]string{
		"bash": {"bash", "--norc", "-c", `source <(usher completion bash); COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _usher; printf '%s\n' "${COMPREPLY[@]}"`, "-"},
		"zsh":  {"zsh", "-f", "-c", `compdef() {}; source <(usher completion zsh); compgen() { for w in ${=2}; do [[ $w = $4* ]] && print -r -- $w; done }; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _usher; print -rl -- $COMPREPLY`, "-"},
		"fish": {"fish", "--no-config", "-c", `usher completion fish | source; complete -C "$argv" | string replace -r '\t.*' ''; true`},
	}
	for shell, command := range shells {
		t.Run(shell, func(t *testing.T) {
			if shell == "bash" {
				need(t, shell)
			} else if _, err := exec.LookPath(shell); err != nil {
				t.Skip(err)
			}
			for line, want := range map[string]string{
				"usher comp":                             "completion",
				"usher help st":                          "stdio",
				"usher claim ":                           "list revoke",
				"usher claim -base " + base + " revoke ": c.Code.Dashed(),
				"usher serve -allow":                     "-allow-host -allow-origin",
				"usher completion f":                     "fish",
				"usher call -base " + base + " -dir " + dir + " ":           "a b c odd",
				"usher call -dir " + dir + " -base " + base + " odd ":       "say",
				"usher call -dir " + dir + " -base " + base + " a s":        "sleep",
				"usher call -scope " + dir + "/proj -dir " + dir + " zzz z": "",
			} {
				args := strings.Split(line, " ")
				if shell == "fish" {
					args = []string{line}
				}
				cmd := exec.Command(command[0], append(command[1:], args...)...)
				cmd.Env = append(os.Environ(), "PATH="+dir+"/bin:"+os.Getenv("PATH"), "USHER_BASE="+base, "HOME="+base)
				got, err := cmd.Output()
				words := strings.Fields(string(got))
				slices.Sort(words)
				if err != nil || strings.Join(words, " ") != want {
					t.Errorf("%s: %q, want %q %v", line, words, want, err)
				}
			}
			if _, err := os.Stat(base + "/ran"); err == nil {
				t.Error("the name of a tool was run")
			}
		})
	}
}

// TestWebhookPathsMeet holds that the log tells of a path that two methods want.
func TestWebhookPathsMeet(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range []string{"a", "b"} {
		write(t, dir+"/"+name+".usher.sh", "# Takes.\n#\n# @webhook same/path\ntake() { echo; }\n")
	}
	d := startDaemon(t, dir)
	d.awaitReady(t)
	if log := d.Log.String(); !strings.Contains(log, "a webhook is not served") || !strings.Contains(log, "path=same/path") {
		t.Error(log)
	}
}
