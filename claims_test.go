// Tests of claims.go: the store through its methods, and its writer through
// processes that are raced, stopped and killed. Such a process is this test
// binary again, running TestClaimsChild. With USHER_SLOW=1 they run at full size.

package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"
)

const (
	claimA = `{"code":"AAAAAA","scopeDir":"/w/a","createdAt":"2026-11-21T10:00:00Z","expiresAt":"2999-01-01T00:00:00Z"}`
	claimB = `{"code":"BBBBBB","scopeDir":"/w/b","createdAt":"2026-11-21T10:00:00Z","expiresAt":"2999-01-01T00:00:00Z"}`
	claimX = `{"code":"XXXXXX","scopeDir":"/w/x","createdAt":"2020-11-21T10:00:00Z","expiresAt":"2020-11-22T10:00:00Z"}`
)

// slowTests gives full where USHER_SLOW is set, and quick otherwise.
func slowTests(quick, full int) int {
	if os.Getenv("USHER_SLOW") != "" {
		return full
	}
	return quick
}

func testStore(t testing.TB, dataDir string) *ClaimStore {
	s := openClaims(dataDir, nil)
	t.Cleanup(s.Close)
	return s
}

// newDataDir gives a data folder that does not exist yet.
func newDataDir(t testing.TB) string { return filepath.Join(t.TempDir(), "base", ".data") }

func writeClaimsFile(t testing.TB, dataDir, content string) string {
	t.Helper()
	path := filepath.Join(dataDir, "claims.json")
	must(t, os.MkdirAll(dataDir, 0o700))
	must(t, os.WriteFile(path, []byte(content), 0o600))
	return path
}

func mustCreate(t testing.TB, s *ClaimStore) Claim {
	t.Helper()
	c, err := s.Create(t.Context(), "/w/p", "", time.Hour)
	must(t, err)
	return c
}

// fileCodes gives the codes that stand in the file, which must be readable.
func fileCodes(t testing.TB, dataDir string) map[Code]bool {
	t.Helper()
	snap, err := readClaims(filepath.Join(dataDir, "claims.json"))
	must(t, err)
	snap.file.Close()
	codes := map[Code]bool{}
	for _, c := range snap.claims {
		codes[c.Code] = true
	}
	return codes
}

// wantTidy checks that the data folder holds the file and a free token only.
func wantTidy(t testing.TB, dataDir string) {
	t.Helper()
	if got := folderNames(t, dataDir); !slices.Equal(got, []string{"claims.json", "claims.lock"}) {
		t.Errorf("data folder holds %q", got)
	}
	if got := folderNames(t, filepath.Join(dataDir, "claims.lock")); !slices.Equal(got, []string{"free"}) {
		t.Errorf("token folder holds %q", got)
	}
}

func TestParseCode(t *testing.T) {
	for _, tt := range []struct{ in, want string }{
		{"R3K9QZ", "R3K9QZ"},
		{"R3K-9QZ", "R3K9QZ"},
		{"r3k-9qz", "R3K9QZ"},
		{" r-3 k9--QZ ", "R3K9QZ"},
		{"", ""},
		{"------", ""},
		{"R3K9Q", ""},
		{"R3K9QZ2", ""},
		{"R3K9Q0", ""},
		{"R3K9QI", ""},
		{"R3K9Qo", ""},
		{"R3K9QL", ""},
		{"R3K\t9QZ", ""},
		{"R3K_9QZ", ""},
		{"R3K–9QZ", ""},     // an en dash
		{"R3K9Q\u017f", ""}, // ſ, whose upper case is S
		{"\u212a3K9QZ", ""}, // the Kelvin sign, whose lower case is k
		{"R3K9QZ\x00", ""},
		{"R3K9Q\xff", ""},
	} {
		got, ok := parseCode(tt.in)
		if string(got) != tt.want || ok != (tt.want != "") {
			t.Errorf("parseCode(%q) = %q, %v, want %q", tt.in, got.Reveal(), ok, tt.want)
		}
	}
	if got := Code("R3K9QZ").Dashed(); got != "R3K-9QZ" {
		t.Errorf("Dashed() = %q", got)
	}
}

func TestCodeIsRedacted(t *testing.T) {
	c, err := parseClaim(json.RawMessage(strings.Replace(claimA, "AAAAAA", "R3K9QZ", 1)))
	must(t, err)
	var out bytes.Buffer
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%10.2s", "%T"} {
		fmt.Fprintf(&out, verb+"\n", c.Code)
		fmt.Fprintf(&out, verb+"\n", []Code{c.Code})
	}
	fmt.Fprintf(&out, "%v %+v\n", struct{ C Code }{c.Code}, &struct{ C Code }{c.Code})
	for _, h := range []slog.Handler{slog.NewTextHandler(&out, nil), slog.NewJSONHandler(&out, nil)} {
		slog.New(h).Info("x", "code", c.Code, "claim", c)
	}
	fmt.Fprintf(&out, "%v %+v %#v %s", c, c, c, c)
	for _, leak := range []string{"R3K", "9QZ", "52334b39515a", "82, 51", "82 51", "0x52"} {
		if strings.Contains(strings.ToUpper(out.String()), strings.ToUpper(leak)) {
			t.Errorf("%q leaks in\n%s", leak, out.String())
		}
	}
	if b, _ := json.Marshal(c.Code); string(b) != `"R3K9QZ"` {
		t.Errorf("JSON of a code: %s", b)
	}
}

func TestDrawCodeIsUniform(t *testing.T) {
	const draws = 20000
	counts := map[rune]int{}
	for range draws {
		code := drawCode()
		if got, ok := parseCode(code.Reveal()); !ok || got != code {
			t.Fatalf("drew %q", code.Reveal())
		}
		for _, r := range code.Reveal() {
			counts[r]++
		}
	}
	// 3871 of each are expected, with a standard deviation of 61; a remainder
	// of a byte would give the first eight 12 % more than the others.
	want := draws * codeLength / len(codeAlphabet)
	for _, r := range codeAlphabet {
		if n := counts[r]; n < want*91/100 || n > want*109/100 {
			t.Errorf("%q was drawn %d times, want about %d", r, n, want)
		}
	}
}

func TestCreateListRevoke(t *testing.T) {
	dir := newDataDir(t)
	s := testStore(t, dir)
	ctx := t.Context()
	long, err := s.Create(ctx, "/w/<p>", "phone & co", 2*time.Hour)
	must(t, err)
	short := mustCreate(t, s)
	if got := long.ExpiresAt.Sub(long.CreatedAt); got != 2*time.Hour {
		t.Errorf("lives for %v", got)
	}
	list, err := s.List(ctx)
	if err != nil || len(list) != 2 || list[0].Code != short.Code || list[1].Code != long.Code {
		t.Fatalf("List() = %+v, %v", list, err)
	}
	if l := list[1]; l.Label != "phone & co" || l.ScopeDir != "/w/<p>" || !l.ExpiresAt.Equal(long.ExpiresAt) {
		t.Errorf("listed %+v, created %+v", l, long)
	}
	data, err := os.ReadFile(filepath.Join(dir, "claims.json"))
	if err != nil || !strings.Contains(string(data), `"scopeDir": "/w/<p>"`) {
		t.Errorf("the file holds %s, %v", data, err)
	}
	if gone, err := s.Revoke(ctx, long.Code); err != nil || gone.Code != long.Code {
		t.Errorf("Revoke() = %+v, %v", gone, err)
	}
	if _, err := s.Revoke(ctx, long.Code); !errors.Is(err, errNoClaim) {
		t.Errorf("second Revoke() = %v", err)
	}
	if list, err := s.List(ctx); err != nil || len(list) != 1 || list[0].Code != short.Code {
		t.Errorf("List() = %+v, %v", list, err)
	}
	wantTidy(t, dir)
}

func TestReadersMakeNothing(t *testing.T) {
	dir := newDataDir(t)
	s := testStore(t, dir)
	if list, err := s.List(t.Context()); list == nil || len(list) != 0 || err != nil {
		t.Errorf("List() = %v, %v", list, err)
	}
	if _, ok, err := s.Lookup("AAAAAA"); ok || err != nil {
		t.Errorf("Lookup() = %v, %v", ok, err)
	}
	if _, err := os.Stat(filepath.Dir(dir)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("reading made the folder: %v", err)
	}
}

func TestPermissions(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("no such permissions")
	}
	dir := newDataDir(t)
	mustCreate(t, testStore(t, dir))
	for path, want := range map[string]fs.FileMode{
		filepath.Dir(dir):                 0o700,
		dir:                               0o700,
		filepath.Join(dir, "claims.lock"): 0o700,
		filepath.Join(dir, "claims.lock", "free"): 0o600,
		filepath.Join(dir, "claims.json"):         0o600,
	} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v, want %v", path, info.Mode(), err, want)
		}
	}
}

func TestUnusableFile(t *testing.T) {
	with := func(old, new string) string { return "[" + strings.Replace(claimA, old, new, 1) + "]" }
	for _, tt := range []struct{ name, content string }{
		{"empty", ""},
		{"white space", " \n"},
		{"object", claimA},
		{"null", "null"},
		{"string", `"[]"`},
		{"half", "[" + claimA[:40]},
		{"no end", "[" + claimA},
		{"trailing garbage", "[" + claimA + "]]"},
		{"two arrays", "[][]"},
		{"trailing comma", "[" + claimA + ",]"},
		{"byte order mark", "\ufeff[]"},
		{"NUL after the end", "[]\x00"},
		{"record null", "[null]"},
		{"record a string", `["AAAAAA"]`},
		{"record an array", `[[]]`},
		{"second record bad", "[" + claimA + ",{}]"},
		{"no code", with(`"code":"AAAAAA",`, "")},
		{"key in another case", with(`"code"`, `"CODE"`)},
		{"expiry in another case", with(`"expiresAt"`, `"expiresat"`)},
		{"code null", with(`"AAAAAA"`, "null")},
		{"code a number", with(`"AAAAAA"`, "222222")},
		{"code too short", with("AAAAAA", "AAAAA")},
		{"code with an O", with("AAAAAA", "AAAAAO")},
		{"code in lower case", with("AAAAAA", "aaaaaa")},
		{"code dashed", with("AAAAAA", "AAA-AAA")},
		{"no scope", with(`"scopeDir":"/w/a",`, "")},
		{"scope empty", with("/w/a", "")},
		{"scope a number", with(`"/w/a"`, "1")},
		{"no expiry", with(`,"expiresAt":"2999-01-01T00:00:00Z"`, "")},
		{"scope relative", with("/w/a", "w/a")},
		{"expiry null", with(`"2999-01-01T00:00:00Z"`, "null")},
		{"expiry a word", with("2999-01-01T00:00:00Z", "never")},
		{"expiry a date", with("2999-01-01T00:00:00Z", "2999-01-01")},
		{"expiry a boolean", with(`"2999-01-01T00:00:00Z"`, "true")},
		{"expiry a number too large", with(`"2999-01-01T00:00:00Z"`, "1e300")},
		{"creation unusable", with("2026-11-21T10:00:00Z", "then")},
		{"label a number", with(`{`, `{"label":1,`)},
		{"one code twice", "[" + claimA + "," + strings.Replace(claimA, "/w/a", "/w/b", 1) + "]"},
		{"invalid UTF-8", with("/w/a", "/w/\xff")},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := newDataDir(t)
			path := writeClaimsFile(t, dir, tt.content)
			wantUnreadable(t, dir, "AAAAAA")
			if got, err := os.ReadFile(path); err != nil || string(got) != tt.content {
				t.Errorf("the file is now %q, %v", got, err)
			}
		})
	}
}

// wantUnreadable checks that nothing can be had from, or done to, the file.
func wantUnreadable(t *testing.T, dir string, code Code) {
	t.Helper()
	s := testStore(t, dir)
	calls := map[string]func() error{
		"Create": func() error { _, err := s.Create(t.Context(), "/w", "", time.Hour); return err },
		"List":   func() error { _, err := s.List(t.Context()); return err },
		"Revoke": func() error { _, err := s.Revoke(t.Context(), code); return err },
		"Lookup": func() error { _, _, err := s.Lookup(code); return err },
	}
	for name, call := range calls {
		err := call()
		if !errors.Is(err, errClaimsUnreadable) {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for _, want := range []string{strconv.Quote(filepath.Join(dir, "claims.json")), "move it away", "usher did not change it"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %q does not say %s", name, err, want)
			}
		}
		if code != "" && strings.Contains(err.Error(), code.Reveal()) {
			t.Errorf("%s: %q tells the code", name, err)
		}
	}
}

// The permission bits that would make a file unreadable mean nothing to root,
// as whom tests may run; other things than a file do.
func TestFileThatIsNone(t *testing.T) {
	t.Run("folder", func(t *testing.T) {
		dir := newDataDir(t)
		must(t, os.MkdirAll(filepath.Join(dir, "claims.json"), 0o700))
		wantUnreadable(t, dir, "")
	})
	t.Run("link to nowhere", func(t *testing.T) {
		dir := newDataDir(t)
		must(t, os.MkdirAll(dir, 0o700))
		if err := os.Symlink("nowhere", filepath.Join(dir, "claims.json")); err != nil {
			t.Skip(err)
		}
		wantUnreadable(t, dir, "")
	})
	t.Run("link to a file", func(t *testing.T) {
		dir := newDataDir(t)
		real := writeClaimsFile(t, t.TempDir(), "["+claimA+"]")
		must(t, os.MkdirAll(dir, 0o700))
		if err := os.Symlink(real, filepath.Join(dir, "claims.json")); err != nil {
			t.Skip(err)
		}
		wantUnreadable(t, dir, "AAAAAA") // and the link is not replaced by a file
	})
	t.Run("heals", func(t *testing.T) {
		dir := newDataDir(t)
		s := testStore(t, dir)
		for range 3 {
			path := writeClaimsFile(t, dir, "[")
			if _, _, err := s.Lookup("AAAAAA"); !errors.Is(err, errClaimsUnreadable) {
				t.Fatal(err)
			}
			writeClaimsFile(t, dir, "["+claimA+"]")
			if _, ok, err := s.Lookup("AAAAAA"); !ok || err != nil {
				t.Fatal(ok, err)
			}
			os.Remove(path)
			if _, ok, err := s.Lookup("AAAAAA"); ok || err != nil {
				t.Fatal(ok, err)
			}
		}
	})
}

func TestRecordsSurviveRewriting(t *testing.T) {
	dir := newDataDir(t)
	odd := `{"big":12345678901234567890123,"Code":"x","code":"R3K9QZ","deep":{"a":[1,2.50,null]},` +
		`"scopeDir":"/w/\u00fc","createdAt":1795255200000,"expiresAt":32472144000000,"label":null,"html":"<&>"}`
	spaced := strings.ReplaceAll(strings.ReplaceAll(odd, ",", " ,\n\t"), ":", " : ")
	writeClaimsFile(t, dir, "[\n"+spaced+"\n,"+claimX+"]")
	s := testStore(t, dir)
	added := mustCreate(t, s)
	if _, err := s.Revoke(t.Context(), added.Code); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(dir, "claims.json"))
	var text bytes.Buffer
	if err := cmp.Or(err, json.Compact(&text, got)); err != nil || text.String() != "["+odd+"]" {
		t.Errorf("got %s, %v\nwant %s", got, err, odd)
	}
	list, err := s.List(t.Context())
	if err != nil || len(list) != 1 {
		t.Fatal(list, err)
	}
	if b, err := json.Marshal(list[0]); err != nil || !bytes.Contains(b, []byte("12345678901234567890123")) {
		t.Errorf("JSON of the claim: %s, %v", b, err)
	}
}

func TestTimes(t *testing.T) {
	want := time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)
	for _, tt := range []struct {
		in  string
		off time.Duration
	}{
		{`"2026-11-21T10:00:00Z"`, 0},
		{`"2026-11-21T12:00:00+02:00"`, 0},
		{`"2026-11-21T10:00:00.25Z"`, 250 * time.Millisecond},
		{`1795255200000`, 0},
		{`1795255200001`, time.Millisecond},
		{`1.7952552e12`, 0},
		{`1795255200000.9`, 0},
	} {
		c, err := parseClaim(json.RawMessage(`{"code":"AAAAAA","scopeDir":"/w","createdAt":` + tt.in + `,"expiresAt":` + tt.in + `}`))
		if err != nil || !c.ExpiresAt.Equal(want.Add(tt.off)) || c.CreatedAt != c.ExpiresAt || c.CreatedAt.Location() != time.UTC {
			t.Errorf("%s: %v and %v, %v", tt.in, c.CreatedAt, c.ExpiresAt, err)
		}
	}
}

func TestExpiry(t *testing.T) {
	dir := newDataDir(t)
	synctest.Test(t, func(t *testing.T) {
		s := testStore(t, dir)
		first := mustCreate(t, s)
		second, err := s.Create(t.Context(), "/w", "", 2*time.Hour)
		must(t, err)
		want := func(code Code, ok bool) {
			t.Helper()
			if _, got, err := s.Lookup(code); got != ok || err != nil {
				t.Errorf("at %v: %v, %v, want %v", time.Now(), got, err, ok)
			}
		}
		<-time.After(time.Until(first.ExpiresAt) - 1)
		want(first.Code, true)
		synctest.Wait()
		if got := fileCodes(t, dir); len(got) != 2 {
			t.Errorf("purged early: %d left", len(got))
		}
		<-time.After(1)
		want(first.Code, false)
		want(second.Code, true)
		synctest.Wait() // for the purge that the look-up began
		if got := fileCodes(t, dir); len(got) != 1 || !got[second.Code] {
			t.Errorf("the file holds %d claims", len(got))
		}
		if _, err := s.Revoke(t.Context(), first.Code); !errors.Is(err, errNoClaim) {
			t.Errorf("revoking an expired claim: %v", err)
		}
		<-time.After(time.Until(second.ExpiresAt))
		if list, err := s.List(t.Context()); len(list) != 0 || err != nil {
			t.Errorf("List() = %v, %v", list, err)
		}
		if got, _ := os.ReadFile(filepath.Join(dir, "claims.json")); string(got) != "[]" {
			t.Errorf("the file holds %q", got)
		}
		s.Close()
	})
}

func TestPurgeThatFails(t *testing.T) {
	dir := newDataDir(t)
	content := "[" + claimA + "," + claimX + "]"
	path := writeClaimsFile(t, dir, content)
	// A file where the token's folder belongs stops every writer, root too.
	must(t, os.WriteFile(filepath.Join(dir, "claims.lock"), nil, 0o600))
	var logged bytes.Buffer
	s := openClaims(dir, slog.New(slog.NewTextHandler(&logged, nil)))
	list, err := s.List(t.Context())
	if len(list) != 1 || err == nil || errors.Is(err, errClaimsUnreadable) {
		t.Errorf("List() = %v, %v, want a list and an error", list, err)
	}
	for range 20 {
		if _, ok, err := s.Lookup("AAAAAA"); !ok || err != nil {
			t.Fatal(ok, err)
		}
		if _, ok, err := s.Lookup("XXXXXX"); ok || err != nil {
			t.Fatal(ok, err)
		}
	}
	s.purges.Wait()
	s.Close()
	if n := strings.Count(logged.String(), "\n"); n != 1 {
		t.Errorf("logged %d times:\n%s", n, logged.String())
	}
	if got, _ := os.ReadFile(path); string(got) != content {
		t.Errorf("the file holds %s", got)
	}
}

// holdElsewhere has a writer of another host hold the token.
func holdElsewhere(t *testing.T, token *writeToken) {
	t.Helper()
	setTokens(t, token, fmt.Sprintf("held.%d.elsewhere.7.1", time.Now().UnixMilli()))
}

// setTokens makes these the files of the token's folder.
func setTokens(t *testing.T, token *writeToken, names ...string) {
	t.Helper()
	must(t, errors.Join(os.RemoveAll(token.dir), os.MkdirAll(token.dir, 0o700)))
	for _, name := range names {
		must(t, os.WriteFile(filepath.Join(token.dir, name), nil, 0o600))
	}
}

func TestTakingTheToken(t *testing.T) {
	token := newWriteToken("")
	held := func(age time.Duration, host string, pid int) string {
		return fmt.Sprintf("held.%d.%s.%d.1", time.Now().Add(-age).UnixMilli(), host, pid)
	}
	dead := deadPID(t)
	here, me := token.host, os.Getpid()
	for _, tt := range []struct {
		name   string
		tokens []string
		want   string // in the error; "" where it can be had
	}{
		{"free", []string{"free"}, ""},
		{"free beside what is no token", []string{"free", ".DS_Store"}, ""},
		{"none", nil, ""},
		{"none, and what is no token", []string{".DS_Store"}, `has been ""`},
		{"alive here", []string{held(0, here, me)}, fmt.Sprintf("%s.%d", here, me)},
		{"dead here", []string{held(0, here, dead)}, ""},
		{"elsewhere", []string{held(0, "elsewhere", dead)}, "elsewhere." + strconv.Itoa(dead)},
		{"elsewhere, old", []string{held(31*time.Second, "elsewhere", 7)}, ""},
		{"alive here, old", []string{held(31*time.Second, here, me)}, ""},
		{"elsewhere, a little ahead", []string{held(-20*time.Second, "elsewhere", 7)}, "elsewhere"},
		{"elsewhere, from the future", []string{held(-40*time.Second, "elsewhere", 7)}, ""},
		{"of no known form", []string{"held.by.me"}, ""},
		{"two, both to be had", []string{"free", held(0, here, dead)}, "free held"},
		{"two, one in use", []string{"free", held(0, "elsewhere", 7)}, "elsewhere"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := testStore(t, newDataDir(t))
			s.token.timeout = 300 * time.Millisecond
			setTokens(t, s.token, tt.tokens...)
			_, err := s.Create(t.Context(), "/w", "", time.Hour)
			if tt.want == "" {
				must(t, err)
				got := slices.DeleteFunc(folderNames(t, s.token.dir), func(n string) bool { return n == ".DS_Store" })
				if !slices.Equal(got, []string{"free"}) {
					t.Errorf("token folder holds %q", got)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
			if got := folderNames(t, s.token.dir); len(got) != len(tt.tokens) {
				t.Errorf("token folder holds %q", got)
			}
		})
	}
}

// deadPID gives the id of a process that has ended.
func deadPID(t *testing.T) int {
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0")
	must(t, cmd.Run())
	return cmd.Process.Pid
}

func TestWaitingEndsWithTheContext(t *testing.T) {
	s := testStore(t, newDataDir(t))
	holdElsewhere(t, s.token)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := s.Create(ctx, "/w", "", time.Hour); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
}

func TestHostName(t *testing.T) {
	if host := newWriteToken("").host; strings.ContainsAny(host, "./\\") || host == "" {
		t.Errorf("host %q", host)
	}
}

// A reader notices every replacement of the file, even by one of the same size
// and time: a kept inode can't come back.
func TestLookupSeesEveryReplacement(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("sizes and times are all there is to see within a tick")
	}
	dir := newDataDir(t)
	path := writeClaimsFile(t, dir, "["+claimA+"]")
	at := time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)
	s := testStore(t, dir)
	var last *claimsFile
	for n := range 200 {
		code, other, record := Code("AAAAAA"), Code("BBBBBB"), claimA
		if n%2 == 1 {
			code, other, record = other, code, claimB
		}
		temp := filepath.Join(dir, "t")
		for range 2 { // the second would get the inode of the one that was read
			err := os.WriteFile(temp, []byte("["+record+"]"), 0o600)
			must(t, errors.Join(err, os.Chtimes(temp, at, at), os.Rename(temp, path)))
		}
		if _, ok, err := s.Lookup(code); !ok || err != nil {
			t.Fatalf("round %d: new code: %v, %v", n, ok, err)
		}
		if _, ok, err := s.Lookup(other); ok || err != nil {
			t.Fatalf("round %d: old code: %v, %v", n, ok, err)
		}
		if now := s.current.Load(); now == last {
			t.Fatalf("round %d: the file was not read again", n)
		} else {
			last = now
		}
	}
}

func TestOtherStoreSeesChangesAtOnce(t *testing.T) {
	dir := newDataDir(t)
	daemon, cli := testStore(t, dir), testStore(t, dir)
	for range 20 {
		c := mustCreate(t, cli)
		if got, ok, err := daemon.Lookup(c.Code); !ok || err != nil || principalOf(got) != principalOf(c) {
			t.Fatal("a new claim is not seen", got, ok, err)
		}
		before := daemon.current.Load()
		if _, _, err := daemon.Lookup(c.Code); daemon.current.Load() != before || err != nil {
			t.Fatal("the file was read again for nothing", err)
		}
		if _, err := cli.Revoke(t.Context(), c.Code); err != nil {
			t.Fatal(err)
		}
		if _, ok, err := daemon.Lookup(c.Code); ok || err != nil {
			t.Fatal("a revoked claim is seen", ok, err)
		}
	}
}

func TestGoroutines(t *testing.T) {
	dir := newDataDir(t)
	stores := []*ClaimStore{testStore(t, dir), testStore(t, dir)}
	var all sync.WaitGroup
	for n := range 8 {
		all.Go(func() {
			s, reader := stores[n%2], stores[0]
			for range 5 {
				keep, drop := mustCreate(t, s), mustCreate(t, s)
				if _, err := s.Revoke(t.Context(), drop.Code); err != nil {
					t.Error(err)
				}
				if _, ok, err := reader.Lookup(drop.Code); ok || err != nil {
					t.Error("revoked, and looked up", ok, err)
				}
				if _, ok, err := reader.Lookup(keep.Code); !ok || err != nil {
					t.Error("created, and not looked up", ok, err)
				}
			}
		})
	}
	all.Wait()
	if got := len(fileCodes(t, dir)); got != 40 {
		t.Errorf("%d claims, want 40", got)
	}
	wantTidy(t, dir)
}

// A deletion at any step up to the last look, and one after the rename, stands.
func TestDeletionIsNotUndone(t *testing.T) {
	for _, step := range []string{"taken", "swept", "written", "checked", "ended"} {
		t.Run(step, func(t *testing.T) {
			dir := newDataDir(t)
			path := writeClaimsFile(t, dir, "["+claimA+"]")
			s := testStore(t, dir)
			var once sync.Once
			s.token.step = func(at string) {
				if at == step {
					once.Do(func() { os.Remove(path) })
				}
			}
			made := mustCreate(t, s)
			_, old, err := s.Lookup("AAAAAA")
			_, isNew, err2 := s.Lookup(made.Code)
			if old || isNew != (step != "ended") || err != nil || err2 != nil {
				t.Errorf("old claim: %v, new one: %v, %v, %v", old, isNew, err, err2)
			}
		})
	}
	t.Run("another put in its place", func(t *testing.T) {
		dir := newDataDir(t)
		s := testStore(t, dir)
		var once sync.Once
		s.token.step = func(at string) {
			if at == "written" {
				once.Do(func() { writeClaimsFile(t, dir, "["+claimA+"]") })
			}
		}
		made := mustCreate(t, s)
		if got := fileCodes(t, dir); len(got) != 2 || !got[made.Code] || !got["AAAAAA"] {
			t.Errorf("%d claims", len(got))
		}
	})
}

// Deletions at random instants, beside writers at work, stand too. A few in a
// thousand fall between a writer's last look and its rename, which can't be
// helped; without that look it would be every eighth.
func TestDeletedAtRandom(t *testing.T) {
	dir := newDataDir(t)
	path := filepath.Join(dir, "claims.json")
	for range 2 {
		child := startClaimsChild(t, dir, 1_000_000, 30*time.Second, "")
		var reading sync.WaitGroup
		reading.Go(func() { child.codes() })
		t.Cleanup(func() { child.cmd.Process.Kill(); reading.Wait() })
	}
	rounds := slowTests(60, 600)
	deadline := time.Now().Add(time.Minute)
	deleted := map[Code]bool{}
	undone := 0
	for done := 0; done < rounds; {
		if time.Now().After(deadline) {
			t.Fatalf("%d deletions in a minute", done)
		}
		<-time.After(rand.N(6 * time.Millisecond)) // the random instant
		// Moving it away is deleting it and seeing what was deleted.
		trash := filepath.Join(dir, "trash")
		if err := os.Rename(path, trash); errors.Is(err, fs.ErrNotExist) {
			continue
		} else if err != nil {
			t.Fatal(err)
		}
		done++
		snap, err := readClaims(trash)
		must(t, err)
		snap.file.Close()
		if slices.ContainsFunc(snap.claims, func(c Claim) bool { return deleted[c.Code] }) {
			undone++
		}
		for _, c := range snap.claims {
			deleted[c.Code] = true
		}
	}
	if undone > rounds/10 {
		t.Errorf("%d of %d deletions were undone", undone, rounds)
	}
	t.Logf("%d of %d deletions were undone", undone, rounds)
}

// childEnv tells TestClaimsChild what to do: data folder, how many claims to
// create, the age at which a token is old, and the step at which to stop once.
const childEnv = "USHER_TEST_CLAIMS_CHILD"

// TestClaimsChild is a process of the tests below. It prints every code that it
// created, and at the step named says so and waits for a line on stdin.
func TestClaimsChild(t *testing.T) {
	job := strings.Split(os.Getenv(childEnv), "\n")
	if len(job) != 4 {
		t.Skip("not a child")
	}
	s := openClaims(job[0], nil)
	defer s.Close()
	count, err1 := strconv.Atoi(job[1])
	stale, err2 := time.ParseDuration(job[2])
	must(t, errors.Join(err1, err2))
	s.token.stale = stale
	var once sync.Once
	s.token.step = func(at string) {
		if at == job[3] {
			once.Do(func() {
				fmt.Println("at", at)
				bufio.NewReader(os.Stdin).ReadString('\n')
			})
		}
	}
	for range count {
		c, err := s.Create(t.Context(), "/w/child", "child", time.Hour)
		if err != nil {
			fmt.Println("failed", err)
			os.Exit(1)
		}
		fmt.Println("code", c.Code.Reveal())
	}
}

// claimsChild is a running TestClaimsChild.
type claimsChild struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
	lines *bufio.Scanner
}

func startClaimsChild(t *testing.T, dir string, count int, stale time.Duration, step string) *claimsChild {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestClaimsChild$")
	// A race-enabled process lingers for a second at its end unless told not to.
	cmd.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0",
		fmt.Sprintf("%s=%s\n%d\n%s\n%s", childEnv, dir, count, stale, step))
	cmd.Stderr = os.Stderr
	stdin, err1 := cmd.StdinPipe()
	stdout, err2 := cmd.StdoutPipe()
	must(t, errors.Join(err1, err2, cmd.Start()))
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	return &claimsChild{cmd, stdin, bufio.NewScanner(stdout)}
}

// next gives the child's next line that begins with word, without it; false at
// its end.
func (c *claimsChild) next(word string) (string, bool) {
	for c.lines.Scan() {
		if rest, ok := strings.CutPrefix(c.lines.Text(), word+" "); ok {
			return rest, true
		}
		if strings.HasPrefix(c.lines.Text(), "failed") {
			fmt.Fprintln(os.Stderr, "child:", c.lines.Text())
		}
	}
	return "", false
}

func (c *claimsChild) codes() []Code {
	var codes []Code
	for code, ok := c.next("code"); ok; code, ok = c.next("code") {
		codes = append(codes, Code(code))
	}
	return codes
}

func TestProcessesAtOnce(t *testing.T) {
	processes, each := slowTests(12, 64), slowTests(10, 20)
	dir := newDataDir(t)
	begun := time.Now()
	printed := make([][]Code, processes)
	var all sync.WaitGroup
	for n := range printed {
		child := startClaimsChild(t, dir, each, 30*time.Second, "")
		all.Go(func() {
			printed[n] = child.codes()
			child.cmd.Wait()
		})
	}
	all.Wait()
	got := fileCodes(t, dir)
	s := testStore(t, dir)
	for _, codes := range printed {
		for _, code := range codes {
			if _, ok, err := s.Lookup(code); !ok || err != nil {
				t.Errorf("a printed code is not valid: %v", err)
			}
		}
	}
	if len(got) != processes*each || len(slices.Concat(printed...)) != processes*each {
		t.Errorf("%d records and %d printed codes, want %d", len(got), len(slices.Concat(printed...)), processes*each)
	}
	wantTidy(t, dir)
	t.Logf("%d processes × %d claims in %v", processes, each, time.Since(begun).Round(time.Millisecond))
}

// wantNextWriter checks that a writer gets its turn soon, and returns how soon.
func wantNextWriter(t *testing.T, s *ClaimStore) time.Duration {
	t.Helper()
	begun := time.Now()
	mustCreate(t, s)
	took := time.Since(begun)
	if took > time.Second {
		t.Errorf("the next writer took %v", took)
	}
	return took
}

func TestKilledAtRandom(t *testing.T) {
	t.Parallel()
	const crowd = 3 // writers at a time, one of whom is killed
	dir := newDataDir(t)
	s := testStore(t, dir)
	var printed []Code
	var longest time.Duration
	total := 0
	rounds := slowTests(20, 220)
	for range rounds {
		// Two writers go on and end by themselves; the third is killed.
		var others sync.WaitGroup
		var codes [crowd][]Code
		for n := range crowd - 1 {
			child := startClaimsChild(t, dir, 2, 30*time.Second, "")
			others.Go(func() { codes[n] = child.codes() })
		}
		victim := startClaimsChild(t, dir, 1000, 30*time.Second, "")
		first, ok := victim.next("code")
		if !ok {
			t.Fatal("the writer created nothing")
		}
		kill := time.AfterFunc(rand.N(8*time.Millisecond), func() { victim.cmd.Process.Kill() })
		codes[crowd-1] = append(victim.codes(), Code(first))
		kill.Stop()
		victim.cmd.Wait()
		others.Wait()
		longest = max(longest, wantNextWriter(t, s))
		printed = append(printed, slices.Concat(codes[:]...)...)
		total += len(slices.Concat(codes[:]...))
		got := fileCodes(t, dir)
		for _, code := range printed {
			if !got[code] {
				t.Fatal("a printed code is missing")
			}
		}
		if len(printed) > 200 { // begin a new file: a long one is slow to write
			os.Remove(filepath.Join(dir, "claims.json"))
			printed = nil
		}
	}
	t.Logf("%d kills, %d codes printed, next writer at most %v", rounds, total, longest)
}

func TestKilledAtEachStep(t *testing.T) {
	for _, step := range []string{"taken", "swept", "written", "checked", "renaming", "ended"} {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			dir := newDataDir(t)
			s := testStore(t, dir)
			mustCreate(t, s)
			victim := startClaimsChild(t, dir, 1, 30*time.Second, step)
			if _, ok := victim.next("at"); !ok {
				t.Fatal("the writer did not come to that step")
			}
			victim.cmd.Process.Kill()
			victim.cmd.Wait()
			want := 1
			if step == "ended" {
				want = 2
			}
			if got := len(fileCodes(t, dir)); got != want {
				t.Errorf("%d claims in the file, want %d", got, want)
			}
			wantNextWriter(t, s)
			if got := len(fileCodes(t, dir)); got != want+1 {
				t.Errorf("%d claims in the file then, want %d", got, want+1)
			}
			wantTidy(t, dir)
		})
	}
}

func TestKilledWhilePreparing(t *testing.T) {
	dir := newDataDir(t)
	s := testStore(t, dir)
	must(t, os.MkdirAll(s.token.dir+".tmp."+s.token.newName(), 0o700))
	wantNextWriter(t, s)
	wantTidy(t, dir)
}

// A writer that is stopped for longer than a token lasts, between any two steps,
// loses nobody's record when it goes on, its own included.
func TestStoppedWriter(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("no way to stop a process")
	}
	stop, cont := syscall.Signal(19), syscall.Signal(18) // SIGSTOP, SIGCONT
	if runtime.GOOS == "darwin" {
		stop, cont = 17, 19
	}
	stale := time.Duration(slowTests(300, 30_500)) * time.Millisecond
	for _, step := range []string{"taken", "swept", "written", "checked", "renaming", "ended"} {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			dir := newDataDir(t)
			s := testStore(t, dir)
			s.token.stale, s.token.timeout = min(stale, 30*time.Second), 2*stale
			before := mustCreate(t, s)
			child := startClaimsChild(t, dir, 1, s.token.stale, step)
			if _, ok := child.next("at"); !ok {
				t.Fatal("the writer did not come to that step")
			}
			must(t, child.cmd.Process.Signal(stop))
			want := map[Code]bool{before.Code: true}
			for range 3 {
				want[mustCreate(t, s).Code] = true
			}
			if _, err := s.Revoke(t.Context(), before.Code); err != nil {
				t.Fatal(err)
			}
			delete(want, before.Code)
			io.WriteString(child.stdin, "\n")
			must(t, child.cmd.Process.Signal(cont))
			codes := child.codes()
			if len(codes) != 1 {
				t.Fatalf("the stopped writer created %d claims", len(codes))
			}
			want[codes[0]] = true
			got := fileCodes(t, dir)
			for code := range want {
				if !got[code] {
					t.Error("a claim is missing")
				}
			}
			if len(got) != len(want) {
				t.Errorf("%d claims, want %d", len(got), len(want))
			}
			child.cmd.Wait()
			wantTidy(t, dir)
		})
	}
}

// A writer whose token was taken over writes nothing and starts over, but not for
// ever.
func TestTokenLost(t *testing.T) {
	dir := newDataDir(t)
	s, thief := testStore(t, dir), testStore(t, dir)
	thief.token.stale = -time.Second // every token is old
	written, thefts := 0, 1
	s.token.step = func(step string) {
		if step != "written" {
			return
		}
		if written++; written <= thefts {
			mustCreate(t, thief)
		}
	}
	mustCreate(t, s)
	if claims := len(fileCodes(t, dir)); claims != 2 || written != 2 {
		t.Errorf("%d claims after %d tries", claims, written)
	}
	written, thefts = 0, tokenTries
	_, err := s.Create(t.Context(), "/w", "", time.Hour)
	if claims := len(fileCodes(t, dir)); !errors.Is(err, errStartOver) || written != tokenTries || claims != 2+tokenTries {
		t.Errorf("%d claims after %d tries: %v", claims, written, err)
	}
}

func FuzzParseCode(f *testing.F) {
	f.Fuzz(func(t *testing.T, in string) {
		code, ok := parseCode(in)
		folded := strings.Map(func(r rune) rune {
			switch {
			case r == '-' || r == ' ':
				return -1
			case 'a' <= r && r <= 'z':
				return r - 'a' + 'A'
			}
			return r
		}, in)
		valid := len(folded) == codeLength && strings.Trim(folded, codeAlphabet) == ""
		if ok != valid || ok && string(code) != folded || !ok && code != "" {
			t.Fatalf("parseCode(%q) = %q, %v", in, code.Reveal(), ok)
		}
		if !ok {
			return
		}
		for _, again := range []string{code.Reveal(), code.Dashed(), strings.ToLower(code.Dashed())} {
			if got, ok := parseCode(again); got != code || !ok {
				t.Fatalf("parseCode(%q) = %q, %v", again, got.Reveal(), ok)
			}
		}
	})
}

func FuzzParseClaims(f *testing.F) {
	f.Fuzz(func(t *testing.T, data []byte) {
		read, err := parseClaims(data)
		if err != nil {
			return
		}
		claims := read.claims
		if !utf8.Valid(data) || !json.Valid(data) {
			t.Fatalf("accepted %q", data)
		}
		out := marshal(append([]Claim{}, claims...))
		again, err := parseClaims(out)
		if err != nil || len(again.claims) != len(claims) {
			t.Fatalf("%q became %q: %v", data, out, err)
		}
		for i, c := range claims {
			a := again.claims[i]
			if a.Code != c.Code || !a.CreatedAt.Equal(c.CreatedAt) || a.ScopeDir != c.ScopeDir || a.Label != c.Label || !a.ExpiresAt.Equal(c.ExpiresAt) {
				t.Fatalf("%q became %q", data, out)
			}
			if _, ok := parseCode(c.Code.Reveal()); !ok || c.ScopeDir == "" || c.ExpiresAt.IsZero() {
				t.Fatalf("accepted %q", data)
			}
			var last map[string]json.RawMessage // as encoding/json has it
			_ = json.Unmarshal(c.raw, &last)
			for key, got := range map[string]string{"code": c.Code.Reveal(), "scopeDir": c.ScopeDir, "label": c.Label} {
				var want *string
				if err := json.Unmarshal(last[key], &want); err == nil && want != nil && *want != got {
					t.Fatalf("%s of %q is %q", key, data, got)
				}
			}
		}
	})
}

// BenchmarkLookup compares the look-up of every request with the one stat that
// it can't do without.
func BenchmarkLookup(b *testing.B) {
	dir := newDataDir(b)
	s := testStore(b, dir)
	var last Claim
	for range 20 {
		last = mustCreate(b, s)
	}
	path := filepath.Join(dir, "claims.json")
	b.Run("os.Stat", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := os.Stat(path); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("Lookup", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, ok, err := s.Lookup(last.Code); !ok || err != nil {
				b.Fatal(ok, err)
			}
		}
	})
}
