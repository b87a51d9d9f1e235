// Tests of claims.go: the store through its methods, and its parsers.

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"
)

const (
	claimA = `{"code":"AAAAAA","scopeDir":"/w/a","createdAt":"2026-11-21T10:00:00Z",` +
		`"expiresAt":"2999-01-01T00:00:00Z"}`
	claimB = `{"code":"BBBBBB","scopeDir":"/w/b","createdAt":"2026-11-21T10:00:00Z",` +
		`"expiresAt":"2999-01-01T00:00:00Z"}`
	claimX = `{"code":"XXXXXX","scopeDir":"/w/x","createdAt":"2020-11-21T10:00:00Z",` +
		`"expiresAt":"2020-11-22T10:00:00Z"}`
)

// A code is printed and logged only by Reveal, Dashed and its JSON.
func TestCodeIsRedacted(t *testing.T) {
	c, err := parseClaim(json.RawMessage(strings.Replace(claimA, "AAAAAA", "R3K9QZ", 1)))
	must(t, err)
	var out bytes.Buffer
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d",
		"%10.2s", "%T"} {
		fmt.Fprintf(&out, verb+"\n", c.Code)
		fmt.Fprintf(&out, verb+"\n", []Code{c.Code})
	}
	fmt.Fprintf(&out, "%v %+v\n", struct{ C Code }{c.Code}, &struct{ C Code }{c.Code})
	for _, h := range []slog.Handler{slog.NewTextHandler(&out, nil),
		slog.NewJSONHandler(&out, nil)} {
		slog.New(h).Info("x", "code", c.Code, "claim", c)
	}
	fmt.Fprintf(&out, "%v %+v %#v %s", c, c, c, c)
	checkOmits(t, "output", strings.ToUpper(out.String()), "R3K", "9QZ", "52334B39515A",
		"82, 51", "82 51", "0X52")
	check(t, "JSON of a code", string(marshal(c.Code)), `"R3K9QZ"`)
}

// A code is drawn uniformly from the alphabet.
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

// newDataDir returns a data folder that does not exist yet.
func newDataDir(t testing.TB) string { return t.TempDir() + "/base/.data" }

func writeClaimsFile(t testing.TB, dataDir, content string) string {
	t.Helper()
	path := dataDir + "/claims.json"
	must(t, os.MkdirAll(dataDir, 0o700))
	must(t, os.WriteFile(path, []byte(content), 0o600))
	return path
}

// A file that is not an array of records, or can't be read, is an error and never changed.
func TestUnusableFileIsAnError(t *testing.T) {
	long(t)
	with := func(old, new string) string {
		return "[" + strings.Replace(claimA, old, new, 1) + "]"
	}
	for _, tt := range []struct{ name, content string }{
		{"empty", ""},
		{"null instead of a list", "null"},
		{"trailing garbage", "[" + claimA + "]]"},
		{"no code", with(`"code":"AAAAAA",`, "")},
		{"code with an O", with("AAAAAA", "AAAAAO")},
		{"code in lower case", with("AAAAAA", "aaaaaa")},
		{"no scope", with(`"scopeDir":"/w/a",`, "")},
		{"no expiry", with(`,"expiresAt":"2999-01-01T00:00:00Z"`, "")},
		{"scope relative", with("/w/a", "w/a")},
		{"expiry a boolean", with(`"2999-01-01T00:00:00Z"`, "true")},
		{"expiry a number too large", with(`"2999-01-01T00:00:00Z"`, "1e300")},
		{"one code twice", "[" + claimA + "," +
			strings.Replace(claimA, "/w/a", "/w/b", 1) + "]"},
		{"invalid UTF-8", with("/w/a", "/w/\xff")},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := newDataDir(t)
			path := writeClaimsFile(t, dir, tt.content)
			wantUnreadable(t, dir, "AAAAAA")
			check(t, "the file", readFile(t, path), tt.content)
		})
	}
	t.Run("a folder", func(t *testing.T) {
		dir := t.TempDir()
		must(t, os.Mkdir(dir+"/claims.json", 0o700))
		wantUnreadable(t, dir, "AAAAAA")
	})
	t.Run("a symlink", func(t *testing.T) {
		dir := newDataDir(t)
		path := writeClaimsFile(t, dir, "["+claimA+"]")
		must(t, os.Rename(path, dir+"/real.json"))
		must(t, os.Symlink("real.json", path))
		wantUnreadable(t, dir, "AAAAAA")
	})
}

func testStore(t testing.TB, dataDir string) *ClaimStore {
	s := openClaims(dataDir)
	t.Cleanup(s.Close)
	return s
}

// wantUnreadable checks that nothing can be had from, or done to, the file.
func wantUnreadable(t *testing.T, dir string, code Code) {
	t.Helper()
	s := testStore(t, dir)
	_, created := s.Create(t.Context(), "/w", "", time.Hour)
	_, listed := s.List(t.Context())
	_, revoked := s.Revoke(t.Context(), code)
	_, found := s.Lookup(code)
	for name, err := range map[string]error{
		"Create": created, "List": listed, "Revoke": revoked, "Lookup": found,
	} {
		check(t, name, err, errClaimsUnreadable)
		path := strconv.Quote(filepath.Join(dir, "claims.json"))
		checkContains(t, name, fmt.Sprint(err), path, "move it away")
		checkOmits(t, name, fmt.Sprint(err), code.Reveal())
	}
}

func mustCreate(t testing.TB, s *ClaimStore) Claim {
	t.Helper()
	c, err := s.Create(t.Context(), "/w/p", "", time.Hour)
	must(t, err)
	return c
}

// Unknown fields and the digits of numbers survive a rewrite.
func TestRecordsSurviveRewriting(t *testing.T) {
	dir := newDataDir(t)
	odd := `{"big":12345678901234567890123,"Code":"x","code":"R3K9QZ","deep":{"a":[1,2.50,null]},` +
		`"scopeDir":"/w/\u00fc","createdAt":1795255200000,"expiresAt":32472144000000,"label":null,` +
		`"html":"<&>"}`
	spaced := strings.ReplaceAll(strings.ReplaceAll(odd, ",", " ,\n\t"), ":", " : ")
	writeClaimsFile(t, dir, "[\n"+spaced+"\n,"+claimX+"]")
	s := testStore(t, dir)
	added := mustCreate(t, s)
	_, err := s.Revoke(t.Context(), added.Code)
	must(t, err)
	var text bytes.Buffer
	must(t, json.Compact(&text, []byte(readFile(t, dir+"/claims.json"))))
	check(t, "the file", text.String(), "["+odd+"]")
	list, err := s.List(t.Context())
	must(t, err)
	check(t, "claims", len(list), 1)
	checkContains(t, "JSON of the claims", marshal(list), "12345678901234567890123")
}

// A time is RFC 3339 or a number of Unix milliseconds.
func TestTimesAreTextOrMilliseconds(t *testing.T) {
	want := time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)
	for in, off := range map[string]time.Duration{
		`"2026-11-21T10:00:00Z"`:      0,
		`"2026-11-21T12:00:00+02:00"`: 0,
		`"2026-11-21T10:00:00.25Z"`:   250 * time.Millisecond,
		`1795255200000`:               0,
		`1795255200001`:               time.Millisecond,
		`1.7952552e12`:                0,
		`1795255200000.9`:             0,
	} {
		c, err := parseClaim(json.RawMessage(`{"code":"AAAAAA","scopeDir":"/w",` +
			`"createdAt":` + in + `,"expiresAt":` +
			in + `}`))
		must(t, err)
		check(t, in, c.ExpiresAt, want.Add(off))
		check(t, in, c.CreatedAt, c.ExpiresAt)
	}
}

// wantActive checks whether a code is that of an active claim.
func wantActive(t testing.TB, s *ClaimStore, code Code, want bool) {
	t.Helper()
	p, err := s.Lookup(code)
	must(t, err)
	check(t, code.Reveal()+" is valid", p != nil && p.Code == code, want)
}

// A claim is invalid from the instant of its expiry. The next lookup or list removes it
// from the file.
func TestExpiredClaimEndsAtOnce(t *testing.T) {
	dir := newDataDir(t)
	synctest.Test(t, func(t *testing.T) {
		s := testStore(t, dir)
		first := mustCreate(t, s)
		second, err := s.Create(t.Context(), "/w", "", 2*time.Hour)
		must(t, err)
		<-time.After(time.Until(first.ExpiresAt) - 1)
		wantActive(t, s, first.Code, true)
		synctest.Wait()
		check(t, "claims in the file before the expiry", len(fileCodes(t, dir)), 2)
		<-time.After(1)
		wantActive(t, s, first.Code, false)
		wantActive(t, s, second.Code, true)
		synctest.Wait() // for the purge that the look-up began
		check(t, "codes in the file", fileCodes(t, dir), map[Code]bool{second.Code: true})
		_, err = s.Revoke(t.Context(), first.Code)
		check(t, "revoking an expired claim", err, errNoClaim)
		<-time.After(time.Until(second.ExpiresAt))
		list, err := s.List(t.Context())
		must(t, err)
		check(t, "listed claims", len(list), 0)
		got, _ := os.ReadFile(dir + "/claims.json")
		check(t, "the file", string(got), "[]")
		s.Close()
	})
}

// A claim that expires while a lookup waits for the file is not returned.
func TestExpiryDuringALookup(t *testing.T) {
	t.Parallel()
	s := openClaims(t.TempDir())
	defer s.Close()
	claim, err := s.Create(t.Context(), "/w", "", 300*time.Millisecond)
	must(t, err)
	s.mu.Lock() // until it has expired
	time.AfterFunc(time.Until(claim.ExpiresAt), s.mu.Unlock)
	wantActive(t, s, claim.Code, false)
}

// A purge that fails is logged once and changes no answer.
func TestFailedPurgeIsLogged(t *testing.T) {
	dir := newDataDir(t)
	content := "[" + claimA + "," + claimX + "]"
	path := writeClaimsFile(t, dir, content)
	// A file where the token's folder belongs stops every writer, root too.
	must(t, os.WriteFile(dir+"/claims.lock", nil, 0o600))
	var logged bytes.Buffer
	s := openClaims(dir)
	s.log = logTo(&logged)
	list, err := s.List(t.Context())
	check(t, "claims", len(list), 1)
	check(t, "an error beside them", err != nil && !errors.Is(err, errClaimsUnreadable), true)
	for range 20 {
		wantActive(t, s, "AAAAAA", true)
		wantActive(t, s, "XXXXXX", false)
	}
	s.purges.Wait()
	s.Close()
	check(t, "lines of the log", strings.Count(logged.String(), "\n"), 1)
	check(t, "the file", readFile(t, path), content)
}

// A reader notices every replacement of the file, even by one of the same size and time: a
// kept inode can't come back.
func TestLookupSeesEveryReplacement(t *testing.T) {
	long(t)
	dir := newDataDir(t)
	path := writeClaimsFile(t, dir, "["+claimA+"]")
	at := time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)
	s := testStore(t, dir)
	for n := range 60 {
		code, other, record := Code("AAAAAA"), Code("BBBBBB"), claimA
		if n%2 == 1 {
			code, other, record = other, code, claimB
		}
		temp := dir + "/t"
		for range 2 { // the second would get the inode of the one that was read
			err := os.WriteFile(temp, []byte("["+record+"]"), 0o600)
			must(t, errors.Join(err, os.Chtimes(temp, at, at), os.Rename(temp, path)))
		}
		wantActive(t, s, code, true)
		wantActive(t, s, other, false)
	}
}

// A code is six characters of the alphabet, in any case, with dashes and spaces anywhere.
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
		for _, again := range []string{code.Reveal(), code.Dashed(),
			strings.ToLower(code.Dashed())} {
			if got, ok := parseCode(again); got != code || !ok {
				t.Fatalf("parseCode(%q) = %q, %v", again, got.Reveal(), ok)
			}
		}
	})
}

// What is accepted as claims is JSON, complete, and the same when it is written and read
// again.
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
			if a.Code != c.Code || !a.CreatedAt.Equal(c.CreatedAt) ||
				a.ScopeDir != c.ScopeDir || a.Label != c.Label ||
				!a.ExpiresAt.Equal(c.ExpiresAt) {
				t.Fatalf("%q became %q", data, out)
			}
			if _, ok := parseCode(c.Code.Reveal()); !ok || c.ScopeDir == "" ||
				c.ExpiresAt.IsZero() {
				t.Fatalf("accepted %q", data)
			}
			var last map[string]json.RawMessage // as encoding/json has it
			_ = json.Unmarshal(c.raw, &last)
			for key, got := range map[string]string{
				"code":     c.Code.Reveal(),
				"scopeDir": c.ScopeDir,
				"label":    c.Label,
			} {
				var want *string
				if err := json.Unmarshal(last[key], &want); err == nil && want != nil &&
					*want != got {
					t.Fatalf("%s of %q is %q", key, data, got)
				}
			}
		}
	})
}

// A principal ends at the instant of its claim's expiry, without a request.
func TestWatchWakesAtExpiry(t *testing.T) {
	dir := newDataDir(t)
	inSync(t, func(t *testing.T) {
		store := testStore(t, dir)
		c, err := store.Create(t.Context(), "/w/p", "", 7*time.Second+time.Second/2)
		must(t, err)
		p, err := store.Lookup(c.Code)
		must(t, err)
		ctx, stop := context.WithCancel(t.Context())
		var watching sync.WaitGroup
		watching.Go(func() { store.Watch(ctx) })
		<-time.After(time.Until(c.ExpiresAt) - time.Nanosecond)
		synctest.Wait()
		check(t, "it has ended before the expiry", p.Ended(), false)
		<-time.After(time.Nanosecond)
		synctest.Wait()
		check(t, "it has ended at the expiry", p.Ended(), true)
		stop()
		watching.Wait()
	})
}

// newStore returns a store in a data folder that does not exist yet.
func newStore(t *testing.T) (dir string, s *ClaimStore) {
	dir = newDataDir(t)
	return dir, testStore(t, dir)
}

// openStore opens the claim store of a daemon's base folder.
func openStore(t *testing.T, base string) *ClaimStore {
	t.Helper()
	return testStore(t, base+"/.data")
}

func newClaimFor(t *testing.T, base, dir string) Claim {
	t.Helper()
	c, err := openStore(t, base).Create(t.Context(), dir, "test", time.Hour)
	must(t, err)
	return c
}

// newCode creates a claim for a folder and returns its code.
func newCode(t *testing.T, base, dir string) string {
	t.Helper()
	return newClaimFor(t, base, dir).Code.Reveal()
}

// revoke revokes a claim of a base folder.
func revoke(t *testing.T, base string, code Code) {
	t.Helper()
	_, err := openStore(t, base).Revoke(t.Context(), code)
	must(t, err)
}
