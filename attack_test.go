// Attacks: each way that we could think of to get a scoped session to see more
// than its claim is for, or to go on after its end.

package main

import (
	"encoding/json"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// turned is a session id with one bit of what it encodes turned.
func turned(id string, at int) string {
	const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	b := []byte(id)
	i := (at + len(b)) % len(b)
	b[i] = letters[strings.IndexByte(letters, b[i])^4]
	return string(b)
}

// TestAttacks presents what was never given out, in a scoped session. The row
// says what comes of it; the session itself is as it was after each.
func TestAttacks(t *testing.T) {
	t.Parallel()
	dir, base := twoProjects(t), t.TempDir()
	longAgo, err := openSessions(base+"/.data", slog.New(slog.DiscardHandler), func() time.Time { return time.Now().Add(-sessionLife) })
	if err != nil {
		t.Fatal(err)
	}
	expired := longAgo.seal(newSessionToken(protocols[0], 0, Principal{}, longAgo.now()))
	d := daemonOptions{base: base}.start(t, dir)
	connect(t, d.URL).awaitTools(allTools...)
	proj := newClaimFor(t, base, dir+"/proj")
	foreign := startDaemon(t, dir)
	stranger, _ := openSession(t, foreign.URL, presentNothing)
	deleted, _ := openSession(t, d.URL, presentNothing)
	if a := deleted.do(deleted.request(http.MethodDelete, "")); a.Status != 204 {
		t.Fatalf("DELETE: %d", a.Status)
	}
	some, code := strings.Join(projTools, " "), proj.Code.Reveal()
	set := func(name string, values ...string) func(*http.Request) {
		return func(r *http.Request) { r.Header[http.CanonicalHeaderKey(name)] = values }
	}
	change := func(f func(id string) string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set(sessionHeader, f(r.Header.Get(sessionHeader))) }
	}
	fullwidth := strings.Map(func(r rune) rune { return r - 'A' + 'Ａ' }, "ABCDEF")
	rows := []struct {
		name string
		do   func(*http.Request)
		want string // what it sees, or its status
	}{
		{"dropping the header", presentNothing, some},
		{"an empty code", set(claimHeader, ""), some},
		{"a star", set(claimHeader, "*"), some},
		{"the folder for a code", set(claimHeader, "/"), some},
		{"another scheme of authorization", inAuthorization("Basic " + code), some},
		{"two headers with codes, neither known", set(claimHeader, "ABCDEF", "GHJKMN"), some},
		{"two codes in one header", set(claimHeader, "ABCDEF, "+code), some},
		{"two codes in one query", func(r *http.Request) { r.URL.RawQuery = "claim=ABCDEF&claim=GHJKMN" }, some},
		{"a query with a semicolon", func(r *http.Request) { r.URL.RawQuery = "a=b;claim=ABCDEF" }, some},
		{"a code in fullwidth letters", set(claimHeader, fullwidth), some},
		{"a code in long s", set(claimHeader, "ſſſſſſ"), some},
		{"a code in Kelvin signs", set(claimHeader, "KKKKKK"), some},
		{"a code with a soft hyphen", set(claimHeader, code[:3]+"\u00ad"+code[3:]), some},
		{"a code with a NUL behind it, in the query", func(r *http.Request) { r.URL.RawQuery = "claim=" + code + "%00" }, some},
		{"a scope in a header of its own", set("Mcp-Claim-Scope-Dir", dir), some},
		{"a word of a proxy", set("X-Forwarded-For", "127.0.0.1"), "400"},
		{"another version of the protocol", set(protocolHeader, "2025-03-26"), some},
		{"no session", func(r *http.Request) { r.Header.Del(sessionHeader) }, "400"},
		{"no session, but one in the query", func(r *http.Request) {
			r.URL.RawQuery = "sessionId=" + r.Header.Get(sessionHeader)
			r.Header.Del(sessionHeader)
		}, "400"},
		{"an empty session", set(sessionHeader, ""), "400"},
		{"a session made up", set(sessionHeader, strings.Repeat("A", 100)), "404"},
		{"a session of letters that are no base64", set(sessionHeader, strings.Repeat("*", 75)), "404"},
		{"a session of one letter", set(sessionHeader, "A"), "404"},
		{"a session of another daemon", set(sessionHeader, stranger.Session), "404"},
		{"a session from before its days were over", set(sessionHeader, expired), "404"},
		{"a session that was ended", set(sessionHeader, deleted.Session), "404"},
		{"two sessions, the first of another daemon", func(r *http.Request) {
			set(sessionHeader, stranger.Session, r.Header.Get(sessionHeader))(r)
		}, "404"},
		{"two sessions, the second of another daemon", func(r *http.Request) {
			set(sessionHeader, r.Header.Get(sessionHeader), stranger.Session)(r)
		}, some},
		{"a session twice in one header", change(func(id string) string { return id + ", " + id }), "404"},
		{"a session with a space in it", change(func(id string) string { return id[:10] + " " + id[10:] }), "404"},
		{"a session with a tab in it", change(func(id string) string { return id[:10] + "\t" + id[10:] }), "404"},
		{"a session with more behind it", change(func(id string) string { return id + "A" }), "404"},
		{"a session with padding", change(func(id string) string { return id + "=" }), "404"},
		{"a session in upper case", change(strings.ToUpper), "404"},
		{"a session cut to an unscoped one's length", change(func(id string) string { return id[:len(stranger.Session)] }), "404"},
		{"a session without its last letter", change(func(id string) string { return id[:len(id)-1] }), "404"},
		{"a session without its first four letters", change(func(id string) string { return id[4:] }), "404"},
		{"a session with its first bits turned", change(func(id string) string { return turned(id, 0) }), "404"},
		{"a session with its version turned", change(func(id string) string { return turned(id, 16) }), "404"},
		{"a session with a bit of its claim turned", change(func(id string) string { return turned(id, 60) }), "404"},
		{"a session with its last bits turned", change(func(id string) string { return turned(id, -2) }), "404"},
		{"a session whose last letter has another spare bit", change(func(id string) string {
			const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
			if len(id)%4 == 0 {
				return id + "A" // there is none to spare
			}
			return id[:len(id)-1] + string(letters[strings.IndexByte(letters, id[len(id)-1])^1])
		}), "404"},
		{"the head of this session and the tail of another", change(func(id string) string { return id[:40] + stranger.Session[40:] }), "404"},
	}
	c, _ := openSession(t, d.URL, inHeader(code))
	for _, row := range rows {
		if got := listTools(c, row.do); got != row.want {
			t.Errorf("%s: %q, want %q", row.name, got, row.want)
		}
		if got := listTools(c, presentNothing); got != some {
			t.Errorf("%s, and the session after that: %q", row.name, got)
		}
	}
	for i := range c.Session { // and every single bit
		if got := listTools(c, change(func(id string) string { return turned(id, i) })); got != "404" {
			t.Errorf("letter %d turned: %q", i, got)
		}
	}
	for _, name := range []string{"b_x", "c_x", "other-b_x", "../other/b_x", "other/b_x", "projX_x", "proj-a_x", "proj_a_x",
		"A_X", "a_X", " a_x", "a_x ", "a_x\u0000", "a_x\u0000b_x", "a_x/../../other/b_x", "", "x", "_x", "a", "*", "a_*", "mcp__usher__b_x", "../../other/b.usher"} {
		if a := c.call(name, ""); a.failure() == "" {
			t.Errorf("the tool %q: %s", name, a.Body)
		}
	}
	for _, body := range []string{
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a_x","name":"b_x"}}`,
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"b_x","Name":"a_x"}}`,
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"NAME":"b_x"}}`,
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":["b_x"]}}`,
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"b\u005fx"}}`,
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"b_x","_meta":{"io.usher/scope":"/"}}}`,
		`[{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"b_x"}}]`,
		`{"jsonrpc":"2.0","id":1,"method":"b_x","params":{}}`,
	} {
		if a := c.post(body); a.failure() == "" && a.Status == 200 {
			t.Errorf("%s: %d %s", body, a.Status, a.Body)
		}
	}
	d.hidesCodes(t, code, "ABCDEF", "GHJKMN")
}

// TestEndedSessionStaysEnded tries to bring a session back whose claim has
// ended. What is done to the claims is one row after the other.
func TestEndedSessionStaysEnded(t *testing.T) {
	t.Parallel()
	dir, base := twoProjects(t), t.TempDir()
	d := daemonOptions{base: base}.start(t, dir)
	connect(t, d.URL).awaitTools(allTools...)
	path := base + "/.data/claims.json"
	created := time.Now().Add(-time.Minute).UTC().Round(time.Millisecond)
	claim := func(code, scope string, created time.Time, life time.Duration) string {
		return string(marshal([]map[string]any{{"code": code, "scopeDir": scope, "createdAt": created, "expiresAt": time.Now().Add(life).UTC()}}))
	}
	put := func(text string) {
		t.Helper()
		write(t, path+".new", text)
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
	good, some := claim("ABCDEF", dir+"/proj", created, time.Hour), strings.Join(projTools, " ")
	put(good)
	c, _ := openSession(t, d.URL, inHeader("ABCDEF"))
	for _, tt := range []struct {
		name, text string
		want       string
	}{
		{"its claim", good, some},
		{"no claims", "[]", ""},
		{"its claim again, as a backup puts it back", good, some},
		{"its code for another folder", claim("ABCDEF", dir, created, time.Hour), ""},
		{"its code for another folder, made later", claim("ABCDEF", dir+"/other", created.Add(time.Second), time.Hour), ""},
		{"its code for its folder, made a millisecond later", claim("ABCDEF", dir+"/proj", created.Add(time.Millisecond), time.Hour), ""},
		{"its code for its folder with a slash behind it", claim("ABCDEF", dir+"/proj/", created, time.Hour), ""},
		{"its code for its folder, made at no time", `[{"code":"ABCDEF","scopeDir":"` + dir + `/proj","expiresAt":"2099-01-01T00:00:00Z"}]`, ""},
		{"its code in lower case", claim("abcdef", dir+"/proj", created, time.Hour), "503"},
		{"another code", claim("GHJKMN", dir+"/proj", created, time.Hour), ""},
		{"its claim twice", good[:len(good)-1] + "," + good[1:], "503"},
		{"half its claim", good[:len(good)/2], "503"},
		{"nothing at all", "", "503"},
		{"null", "null", "503"},
		{"its claim, with a longer life", claim("ABCDEF", dir+"/proj", created, 2*time.Hour), some},
	} {
		put(tt.text)
		if got := listTools(c, presentNothing); got != tt.want {
			t.Errorf("%s: it sees %q, want %q", tt.name, got, tt.want)
		}
		a := c.call("a_x", "")
		switch tt.want {
		case some:
			if a.failure() != "" {
				t.Errorf("%s: a call: %s", tt.name, a.Body)
			}
		case "":
			if !strings.Contains(a.failure(), "has ended") || a.Status != 200 || !strings.Contains(a.Body, `"error"`) {
				t.Errorf("%s: a call: %d %s", tt.name, a.Status, a.Body)
			}
		default:
			if a.Status != 503 || a.Header.Get("Retry-After") == "" {
				t.Errorf("%s: a call: %d %s", tt.name, a.Status, a.Body)
			}
		}
		now, err := os.ReadFile(path)
		if err != nil || tt.want == "503" && string(now) != tt.text {
			t.Errorf("%s: the file was overwritten with %q", tt.name, now)
		}
	}
}

// TestRevokeAgainstCalls races revokes against calls: from the instant a revoke
// has returned, and once a call was refused, none is let in any more.
func TestRevokeAgainstCalls(t *testing.T) {
	t.Parallel()
	rounds := slowTests(40, 400)
	dir, base := twoProjects(t), t.TempDir()
	d := daemonOptions{base: base}.start(t, dir)
	connect(t, d.URL).awaitTools(allTools...)
	store := openStore(t, base)
	var in, out atomic.Int64
	for round := range rounds {
		claim, err := store.Create(t.Context(), dir+"/proj", "", time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		c, _ := openSession(t, d.URL, inHeader(claim.Code.Reveal()))
		var wg sync.WaitGroup
		revoked := make(chan struct{})
		wg.Go(func() {
			if round%4 == 3 {
				os.Remove(base + "/.data/claims.json")
			} else {
				store.Revoke(t.Context(), claim.Code)
			}
			close(revoked)
		})
		for range 4 {
			wg.Go(func() {
				refused := false
				for range 8 {
					after := false
					select {
					case <-revoked:
						after = true
					default:
					}
					a := c.call("a_x", "")
					ok := a.failure() == ""
					if ok && (refused || after) {
						t.Errorf("let in after the end: %s", a.Body)
					}
					if !ok && !strings.Contains(a.failure(), "has ended") {
						t.Errorf("refused for another reason: %s", a.Body)
					}
					if refused = refused || !ok; ok {
						in.Add(1)
					} else {
						out.Add(1)
					}
					if got := listTools(c, presentNothing); got != "" && (refused || got != strings.Join(projTools, " ")) {
						t.Errorf("it sees %q", got)
					}
					if b := c.call("b_x", ""); b.failure() == "" {
						t.Errorf("out of scope: %s", b.Body)
					}
				}
			})
		}
		wg.Wait()
	}
	if in.Load() == 0 || out.Load() == 0 {
		t.Errorf("there was no race: %d calls in, %d refused", in.Load(), out.Load())
	}
}

// TestMovesAgainstLists races requests of one session that present different
// codes: it sees the one folder or the other, and never more.
func TestMovesAgainstLists(t *testing.T) {
	t.Parallel()
	dir, base := twoProjects(t), t.TempDir()
	d := daemonOptions{base: base}.start(t, dir)
	connect(t, d.URL).awaitTools(allTools...)
	codes := []string{newClaimFor(t, base, dir+"/proj").Code.Reveal(), newClaimFor(t, base, dir+"/other").Code.Reveal(), "", "ABCDEF"}
	c, _ := openSession(t, d.URL, inHeader(codes[0]))
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for n := range 15 {
				if got := listTools(c, inHeader(codes[(i+n)%len(codes)])); got != strings.Join(projTools, " ") && got != "b_x" {
					t.Errorf("it sees %q", got)
				}
			}
		})
	}
	wg.Wait()
	last := listTools(c, presentNothing)
	d.stop(t)
	d = daemonOptions{base: base}.start(t, dir)
	c.URL = d.URL
	if got := listTools(c, presentNothing); got != last || last == "" {
		t.Errorf("after a restart it sees %q, before it %q", got, last)
	}
}

// TestWaitingCallOfAnEndedClaim ends a claim while a call waits for its module
// to be looked at: the call has not started, and does not.
func TestWaitingCallOfAnEndedClaim(t *testing.T) {
	t.Parallel()
	dir, base := twoProjects(t), t.TempDir()
	d := daemonOptions{base: base}.start(t, dir)
	connect(t, d.URL).awaitTools(allTools...)
	proj := newClaimFor(t, base, dir+"/proj")
	c, _ := openSession(t, d.URL, inHeader(proj.Code.Reveal()))
	d.stop(t)
	writeFake(t, dir+"/proj/slow.usher", "slowstart=2500 tools=x")
	d = daemonOptions{base: base}.start(t, dir)
	c.URL = d.URL
	waiting := make(chan answer, 1)
	go func() {
		for {
			a := c.post(`{"jsonrpc":"2.0","id":"waits","method":"tools/call","params":{"name":"slow_x"}}`)
			if !strings.Contains(a.Body, "already being answered") { // its id was awaitUnderWay's
				waiting <- a
				return
			}
		}
	}()
	awaitUnderWay(t, c, "waits")
	if _, err := openStore(t, base).Revoke(t.Context(), proj.Code); err != nil {
		t.Fatal(err)
	}
	if a := <-waiting; !strings.Contains(a.failure(), "has ended") {
		t.Errorf("the call that waited: %s", a.Body)
	}
}

// awaitUnderWay waits until a request of that id is being answered: a second of
// the same id is refused then.
func awaitUnderWay(t *testing.T, c *testClient, id string) {
	t.Helper()
	await(t, "the request "+id+" to be under way", func() bool {
		return strings.Contains(c.post(`{"jsonrpc":"2.0","id":"`+id+`","method":"ping"}`).Body, "already being answered")
	})
}

// TestStreamsAtTheEnd follows the streams of a scoped session to its claim's end
// and beyond.
func TestStreamsAtTheEnd(t *testing.T) {
	t.Parallel()
	dir, base := twoProjects(t), t.TempDir()
	d := daemonOptions{base: base}.start(t, dir)
	connect(t, d.URL).awaitTools(allTools...)
	proj := newClaimFor(t, base, dir+"/proj")
	c, _ := openSession(t, d.URL, inHeader(proj.Code.Reveal()))
	c.awaitTools(projTools...)
	first, _ := c.listen()
	second, _ := c.listen()
	const changed = "notifications/tools/list_changed"
	writeFake(t, dir+"/proj/new.usher", "good tools=x")
	hear(t, second, changed)
	c.awaitTools("a_pid", "a_sleep", "a_x", "new_x")
	if _, err := openStore(t, base).Revoke(t.Context(), proj.Code); err != nil {
		t.Fatal(err)
	}
	hear(t, second, changed)
	// From here on it hears nothing, whatever happens in the workspace.
	free, _ := openSession(t, d.URL, presentNothing)
	free.tools()
	control, _ := free.listen()
	writeFake(t, dir+"/proj/newer.usher", "good tools=x")
	writeFake(t, dir+"/other/newer.usher", "good tools=x")
	hear(t, control, changed)
	if got := listTools(c, presentNothing); got != "" {
		t.Errorf("it sees %q", got)
	}
	c.Header.Set("Last-Event-ID", "1")
	third, _ := c.listen() // a stream opened anew replays nothing
	free.call("a_x", "")
	if a := c.do(c.request(http.MethodDelete, "")); a.Status != 204 {
		t.Errorf("DELETE: %d", a.Status)
	}
	for n, messages := range []<-chan json.RawMessage{first, second, third} {
		for msg := range messages { // DELETE ends the streams
			t.Errorf("stream %d says %s", n+1, msg)
		}
	}
	if got := listTools(c, presentNothing); got != "404" {
		t.Errorf("after DELETE: %q", got)
	}
	if got := listTools(c, inHeader(newClaimFor(t, base, dir).Code.Reveal())); got != "404" {
		t.Errorf("after DELETE, with a code: %q", got)
	}
}

// TestMovingFolders moves modules, and what a claim is for.
func TestMovingFolders(t *testing.T) {
	t.Parallel()
	dir, base := twoProjects(t), t.TempDir()
	d := daemonOptions{base: base}.start(t, dir)
	free, _ := openSession(t, d.URL, presentNothing)
	free.awaitTools(allTools...)
	proj := newClaimFor(t, base, dir+"/proj")
	c, _ := openSession(t, d.URL, inHeader(proj.Code.Reveal()))
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	rename := func(from, to string) { t.Helper(); must(os.Rename(dir+from, dir+to)) }
	outside := func(when string) {
		t.Helper()
		for _, name := range []string{"b_x", "c_x", "other-a_x", "new_x"} {
			if a := c.call(name, ""); a.failure() == "" || slices.Contains(c.tools(), name) {
				t.Errorf("%s: %s is there: %s", when, name, a.Body)
			}
		}
	}
	rename("/proj/a.usher", "/other/a.usher")
	c.awaitTools()
	outside("its module was moved out")
	if a := c.call("a_x", ""); !strings.Contains(a.failure(), "unknown tool") {
		t.Errorf("the module that was moved out is called: %s", a.Body)
	}
	rename("/other/a.usher", "/proj/a.usher")
	c.awaitTools(projTools...)
	rename("/proj", "/old")
	c.awaitTools()
	outside("its folder was renamed")
	must(os.Symlink(dir+"/other", dir+"/proj"))
	writeFake(t, dir+"/other/new.usher", "good tools=x")
	free.awaitTools("a_pid", "a_sleep", "a_x", "b_x", "c_x", "new_x")
	outside("a link to another folder stands in its place")
	if got := c.tools(); len(got) != 0 {
		t.Errorf("through the link it sees %v", got)
	}
	must(os.Remove(dir + "/proj"))
	writeFake(t, dir+"/proj/next.usher", "good tools=x")
	c.awaitTools("next_x")
	outside("another folder stands in its place") // which is what the claim is for, by its name
	must(os.RemoveAll(dir + "/proj"))
	rename("/old", "/proj")
	c.awaitTools(projTools...)
	must(os.Symlink(dir+"/other/b.usher", dir+"/proj/linked.usher"))
	must(os.Rename(dir+"/proj/a.usher", dir+"/other/moved.usher"))
	must(os.Symlink(dir+"/other/moved.usher", dir+"/proj/a.usher"))
	free.awaitTools("a_pid", "a_sleep", "a_x", "b_x", "c_x", "linked_x", "moved_pid", "moved_sleep", "moved_x", "new_x")
	if got := c.tools(); len(got) != 0 {
		t.Errorf("of links to files elsewhere it sees %v", got)
	}
}

// TestRootBecomesALink puts a link in the place of the folder that the daemon
// was started on, and that a claim is for.
func TestRootBecomesALink(t *testing.T) {
	t.Parallel()
	dir, base := twoProjects(t), t.TempDir()
	d := daemonOptions{base: base}.start(t, dir+"/proj")
	free, _ := openSession(t, d.URL, presentNothing)
	free.awaitTools(projTools...)
	proj := newClaimFor(t, base, dir+"/proj")
	c, _ := openSession(t, d.URL, inHeader(proj.Code.Reveal()))
	if err := os.Rename(dir+"/proj", dir+"/old"); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(dir+"/other", dir+"/proj"); err != nil {
		t.Fatal(err)
	}
	free.awaitTools("b_x")
	if got := c.tools(); len(got) != 0 {
		t.Errorf("it sees %v, which lies elsewhere", got)
	}
	if a := c.call("b_x", ""); a.failure() == "" {
		t.Errorf("it calls what lies elsewhere: %s", a.Body)
	}
}

// TestModuleMovesUnderCalls moves a module into the scope and out of it while it
// is called: a scoped session is never answered from outside.
func TestModuleMovesUnderCalls(t *testing.T) {
	t.Parallel()
	rounds := slowTests(2, 40)
	dir, base := twoProjects(t), t.TempDir()
	here := `#!/bin/sh
# Where says which folder it was started in.
where() { echo "${PWD##*/}"; }
`
	write(t, dir+"/proj/m.usher.sh", here)
	d := daemonOptions{base: base}.start(t, dir)
	free, _ := openSession(t, d.URL, presentNothing)
	await(t, "the module", func() bool { return slices.Contains(free.tools(), "m_where") })
	proj := newClaimFor(t, base, dir+"/proj")
	c, _ := openSession(t, d.URL, inHeader(proj.Code.Reveal()))
	var wg sync.WaitGroup
	stop := make(chan struct{})
	answered := make(map[string]int)
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			a := c.call("m_where", "")
			if a.failure() == "" { // it may fail: the file goes in mid-start
				answered[strings.TrimSpace(resultText(a.result()))]++
			}
		}
	})
	at, to := "/proj", "/other"
	for range rounds {
		if err := os.Rename(dir+at+"/m.usher.sh", dir+to+"/m.usher.sh"); err != nil {
			t.Fatal(err)
		}
		at, to = to, at
		await(t, "the move to be seen", func() bool {
			a := free.call("m_where", "")
			return strings.TrimSpace(resultText(a.result())) == at[1:]
		})
	}
	close(stop)
	wg.Wait()
	if answered["proj"] == 0 || len(answered) != 1 {
		t.Errorf("the scoped session was answered from %v", answered)
	}
}

// TestStartFailuresNameNoPath makes modules fail to start under a session, whose
// answers a spy reads.
func TestStartFailuresNameNoPath(t *testing.T) {
	t.Parallel()
	dir, base := twoProjects(t), t.TempDir()
	_, noNode := exec.LookPath("node")
	want := slices.Clone(allTools)
	if noNode == nil {
		write(t, dir+"/proj/q.usher.mjs", "/** X. */\nexport function x() { return 1 }\n")
		want = append(want, "q_x")
	}
	writeFake(t, dir+"/proj/gone.usher", "good tools=x")
	writeFake(t, dir+"/proj/folder.usher", "good tools=x")
	writeFake(t, dir+"/proj/interpreter.usher", "good tools=x")
	writeFake(t, dir+"/proj/plain.usher", "good tools=x")
	writeFake(t, dir+"/proj/text.usher", "good tools=x")
	write(t, dir+"/proj/script.usher.sh", "# X is not written yet.\nx() { nowhere_to_be_found; }\n")
	write(t, dir+"/proj/.mcp.json", `{"mcpServers":{"entry":{"command":"./entry.sh"}}}`)
	writeFake(t, dir+"/proj/entry.sh", "good tools=x")
	want = append(want, "gone_x", "folder_x", "interpreter_x", "plain_x", "text_x", "entry_x", "script_x")
	slices.Sort(want)
	d := daemonOptions{base: base}.start(t, dir)
	c, _ := openSession(t, d.URL, presentNothing)
	c.awaitTools(want...)
	proj := newClaimFor(t, base, dir+"/proj")
	c, _ = openSession(t, d.URL, inHeader(proj.Code.Reveal()))
	spoil := map[string]func(){
		"gone_x":        func() { os.Remove(dir + "/proj/gone.usher") },
		"folder_x":      func() { os.Remove(dir + "/proj/folder.usher"); os.Mkdir(dir+"/proj/folder.usher", 0o755) },
		"interpreter_x": func() { os.WriteFile(dir+"/proj/interpreter.usher", []byte("#!/nowhere/sh\n"), 0o755) },
		"plain_x":       func() { os.Chmod(dir+"/proj/plain.usher", 0o644) },
		"text_x":        func() { os.WriteFile(dir+"/proj/text.usher", []byte("\x7fELF no"), 0o755) },
		"script_x":      func() {},
		"entry_x":       func() { os.Remove(dir + "/proj/entry.sh") },
	}
	if noNode == nil {
		spoil["q_x"] = func() {
			shims, _ := filepath.Glob(base + "/.data/cache/*-shim.mjs")
			for _, shim := range shims {
				os.Remove(shim)
				os.MkdirAll(shim+"/in the way", 0o700)
			}
		}
	}
	started := 0
	for _, tool := range slices.Sorted(maps.Keys(spoil)) {
		spoil[tool]()
		a := c.call(tool, "")
		if a.failure() == "" {
			t.Errorf("%s: %s", tool, a.Body)
		}
		if strings.Contains(a.failure(), "can't start") {
			started++
		}
	}
	if started == 0 {
		t.Error("no call met a module that can't start")
	}
}

// TestKilledWhileMoving kills the daemon while sessions become scoped: each
// that was answered so is scoped in the next one, the rest at least go on.
func TestKilledWhileMoving(t *testing.T) {
	t.Parallel()
	dir, base := twoProjects(t), t.TempDir()
	d := daemonOptions{base: base, ownProcess: true}.start(t, dir)
	connect(t, d.URL).awaitTools(allTools...)
	proj, other := newClaimFor(t, base, dir+"/proj"), newClaimFor(t, base, dir+"/other")
	some := strings.Join(projTools, " ")
	born, _ := openSession(t, d.URL, inHeader(proj.Code.Reveal()))
	moved, _ := openSession(t, d.URL, inHeader(other.Code.Reveal()))
	listTools(moved, inHeader(proj.Code.Reveal()))
	sessions := make([]*testClient, 40)
	for i := range sessions {
		sessions[i], _ = openSession(t, d.URL, presentNothing)
	}
	var wg sync.WaitGroup
	scoped := make([]atomic.Bool, len(sessions))
	kill := rand.IntN(len(sessions))
	for part := range 4 {
		wg.Go(func() {
			for i, c := range sessions {
				if i%4 != part {
					continue
				}
				req := c.request(http.MethodPost, c.message("ping", ""))
				inHeader(proj.Code.Reveal())(req)
				if a, err := c.try(req); err == nil && a.Status == 200 {
					scoped[i].Store(true)
				}
				if i == kill {
					d.cmd.Process.Kill()
				}
			}
		})
	}
	wg.Wait()
	d.wait(t)
	next := func() {
		t.Helper()
		d = daemonOptions{base: base, ownProcess: true}.start(t, dir)
		connect(t, d.URL).awaitTools(allTools...)
		for _, c := range append(sessions, born, moved) {
			c.URL = d.URL
		}
	}
	see := func(when string) {
		t.Helper()
		n := 0
		for i, c := range sessions {
			got := listTools(c, presentNothing)
			if scoped[i].Load() {
				n++
			}
			if scoped[i].Load() && got != some || got != some && got != strings.Join(allTools, " ") {
				t.Errorf("%s: session %d, scoped before: %v, sees %q", when, i, scoped[i].Load(), got)
			}
		}
		for name, c := range map[string]*testClient{"born scoped": born, "moved": moved} {
			for how, present := range map[string]func(*http.Request){"without the header": presentNothing, "with it": inHeader(proj.Code.Reveal())} {
				if got := listTools(c, present); got != some {
					t.Errorf("%s: the session that was %s, %s, sees %q", when, name, how, got)
				}
			}
		}
		if n == 0 {
			t.Logf("%s: none was scoped before", when)
		}
	}
	next()
	see("after kill -9")
	if err := d.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Skip(err) // no such signal on this system
	}
	if code := d.wait(t); code != 0 {
		t.Errorf("after SIGTERM it ended with status %d", code)
	}
	next()
	see("after SIGTERM")
}

// TestSessionInTheURL names a session of streamable HTTP where only HTTP+SSE names its sessions. It counts for
// nothing there, and so lets nobody in.
func TestSessionInTheURL(t *testing.T) {
	t.Parallel()
	dir, base := twoProjects(t), t.TempDir()
	d := daemonOptions{base: base}.start(t, dir)
	open := connect(t, d.URL)
	open.awaitTools(allTools...)
	proj := newClaimFor(t, base, dir+"/proj")
	scoped, _ := openSession(t, d.URL, inHeader(proj.Code.Reveal()))
	inURL := func(id string) func(*http.Request) {
		return func(r *http.Request) { r.URL.RawQuery = "sessionId=" + id }
	}
	c := newStateless(t, d.URL)
	if a := c.modern("tools/list", "", inURL(open.Session), inHeader("ZZZZZZ")); a.Status != http.StatusBadRequest {
		t.Errorf("a code that does not hold beside an open session in the URL: %d %s", a.Status, a.Body)
	}
	if a := c.modern("tools/list", "", inURL(scoped.Session)); a.Status != http.StatusOK || !strings.Contains(a.Body, "c_x") {
		t.Errorf("without a code beside a scoped session in the URL: %d %s", a.Status, a.Body)
	}
	end := c.request(http.MethodDelete, "")
	inURL(scoped.Session)(end)
	if a := c.do(end); a.Status != http.StatusBadRequest {
		t.Errorf("DELETE of a session in the URL: %d %s", a.Status, a.Body)
	}
	other := newClaimFor(t, base, dir+"/other").Code.Reveal()
	if got := connectSSE(t, d.URL, inURL(scoped.Session), inHeader(other)).sees(); got != "b_x" {
		t.Errorf("GET with a session in the URL and another code begins a session that sees %q", got)
	}
	if got := listTools(scoped, presentNothing); got != strings.Join(projTools, " ") {
		t.Errorf("the session in the URL then sees %q", got)
	}
	d.stop(t)
	d = daemonOptions{base: base}.start(t, dir, "-require-claim")
	c.URL = d.URL
	for _, id := range []string{open.Session, scoped.Session} {
		if a := c.modern("tools/list", "", inURL(id)); a.Status != http.StatusBadRequest {
			t.Errorf("with -require-claim: %d %s", a.Status, a.Body)
		}
	}
}

// TestOldSSEKeepsItsClaim gives the address of an HTTP+SSE session to the holder of another code, who must not
// move the session, whether or not its own claim has ended.
func TestOldSSEKeepsItsClaim(t *testing.T) {
	t.Parallel()
	dir, base := twoProjects(t), t.TempDir()
	d := daemonOptions{base: base}.start(t, dir)
	connect(t, d.URL).awaitTools(allTools...)
	proj, other := newClaimFor(t, base, dir+"/proj"), newClaimFor(t, base, dir+"/other")
	c := connectSSE(t, d.URL, inQuery(proj.Code.Reveal()))
	refused := func(when string) {
		t.Helper()
		for name, present := range map[string]func(*http.Request){
			"header": inHeader(other.Code.Reveal()),
			"URL":    func(r *http.Request) { r.URL.RawQuery += "&claim=" + other.Code.Reveal() },
			"bearer": inAuthorization("Bearer " + other.Code.Reveal()),
		} {
			for _, method := range []string{http.MethodPost, http.MethodDelete} {
				req := c.request(method, initializeAs(oldestProtocol))
				present(req)
				if a := c.do(req); a.Status != http.StatusBadRequest || a.failure() != errKeepsClaim.Error() {
					t.Errorf("%s: %s with a code in the %s: %d %s", when, method, name, a.Status, a.Body)
				}
			}
		}
	}
	refused("with its claim")
	if got := c.sees(); got != strings.Join(projTools, " ") {
		t.Errorf("it sees %q", got)
	}
	if _, err := openStore(t, base).Revoke(t.Context(), proj.Code); err != nil {
		t.Fatal(err)
	}
	refused("after its claim's end")
	if got := c.sees(); got != "" {
		t.Errorf("after its claim's end it sees %q", got)
	}
}

// TestBodyAfterTheEnd has a session end while the body of a request of it comes in.
func TestBodyAfterTheEnd(t *testing.T) {
	t.Parallel()
	dir := twoProjects(t)
	c := connect(t, startDaemon(t, dir).URL)
	c.awaitTools(allTools...)
	read, write := io.Pipe()
	req := c.request(http.MethodPost, "")
	req.Body, req.ContentLength = read, -1
	answered := make(chan answer, 1)
	go func() { answered <- c.do(req) }()
	message := c.message("tools/list", "")
	io.WriteString(write, message[:10])
	if a := c.do(c.request(http.MethodDelete, "")); a.Status != http.StatusNoContent {
		t.Fatalf("DELETE: %d %s", a.Status, a.Body)
	}
	io.WriteString(write, message[10:])
	write.Close()
	if a := <-answered; a.Status != http.StatusNotFound {
		t.Errorf("a request of the session that has ended: %d %s", a.Status, a.Body)
	}
}
