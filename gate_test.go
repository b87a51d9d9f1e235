// Claims over HTTP: who sees what, row by row of the table, and what happens
// to a session while its claim, the files, and the daemon come and go.

package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestJudge holds the whole table against its one sentence: nothing that fails
// gives a session more than it had.
func TestJudge(t *testing.T) {
	bools := []bool{false, true}
	for _, scoped := range bools {
		for _, holds := range bools {
			for _, presents := range bools {
				for _, valid := range bools {
					for _, unreadable := range bools {
						for _, require := range bools {
							if valid && (!presents || unreadable) || holds && (!scoped || unreadable) {
								continue // can't be
							}
							s := standing{scoped: scoped, ownHolds: holds, presents: presents, valid: valid, unreadable: unreadable, require: require}
							got := judge(s)
							want := whole
							switch {
							case unreadable && (scoped || presents):
								want = unavailable
							case valid:
								want = presented
							case scoped && holds:
								want = own
							case scoped:
								want = ended
							case require:
								want = unclaimed
							}
							if got != want {
								t.Errorf("%+v: %v, want %v", s, got, want)
							}
							if got == whole && (scoped || require || presents && unreadable) {
								t.Errorf("%+v: the whole workspace", s)
							}
						}
					}
				}
			}
		}
	}
}

// twoProjects is a workspace of two projects with a module each, and a third
// folder whose name begins as the first's.
func twoProjects(t *testing.T) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	writeFake(t, dir+"/proj/a.usher", "good tools=x,sleep,pid")
	writeFake(t, dir+"/other/b.usher", "good tools=x")
	writeFake(t, dir+"/projX/c.usher", "good tools=x")
	return dir
}

var (
	allTools  = []string{"a_pid", "a_sleep", "a_x", "b_x", "c_x"}
	projTools = []string{"a_pid", "a_sleep", "a_x"}
)

// claims is the claim store of a daemon's base folder.
func claims(t *testing.T, base string) *ClaimStore {
	t.Helper()
	store := openClaims(base+"/.data", nil)
	t.Cleanup(store.Close)
	return store
}

func newClaimFor(t *testing.T, base, dir string) Claim {
	t.Helper()
	c, err := claims(t, base).Create(t.Context(), dir, "test", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// ways are the ways to present a code.
var ways = map[string]func(*http.Request, string){
	"in the header":    func(r *http.Request, code string) { r.Header.Set(claimHeader, code) },
	"in the URL":       func(r *http.Request, code string) { r.URL.RawQuery = "claim=" + code },
	"as bearer":        func(r *http.Request, code string) { r.Header.Set("Authorization", "Bearer "+code) },
	"lower and dashed": func(r *http.Request, code string) { r.Header.Set(claimHeader, strings.ToLower(code[:3]+"-"+code[3:])) },
}

const initialize = `{"jsonrpc":"2.0","id":"init","method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{}}}`

// session begins a session by a request that present changes.
func session(t *testing.T, url string, present func(*http.Request)) (*testClient, answer) {
	t.Helper()
	c := &testClient{t: t, URL: url, Header: http.Header{}, http: &http.Client{Timeout: 2 * patience}}
	req := c.request(http.MethodPost, initialize)
	present(req)
	a := c.do(req)
	c.Session = a.Header.Get(sessionHeader)
	return c, a
}

// list is what a request of the session that present changes sees, or its status.
func list(c *testClient, present func(*http.Request)) string {
	c.t.Helper()
	req := c.request(http.MethodPost, c.message("tools/list", ""))
	present(req)
	a := c.do(req)
	if strings.Contains(a.Body, c.t.TempDir()[:12]) && a.Status == 200 {
		c.t.Errorf("an answer names a path: %s", a.Body)
	}
	if a.Status != 200 {
		return fmt.Sprint(a.Status)
	}
	var l struct{ Tools []struct{ Name string } }
	json.Unmarshal(a.result(), &l)
	names := []string{}
	for _, tool := range l.Tools {
		names = append(names, tool.Name)
	}
	return strings.Join(names, " ")
}

func nothing(*http.Request) {}

func TestScopeTable(t *testing.T) {
	t.Parallel()
	dir, base := twoProjects(t), t.TempDir()
	d := serveHereOn(t, base, dir)
	connect(t, d.URL).awaitTools(allTools...)
	proj, other := newClaimFor(t, base, dir+"/proj"), newClaimFor(t, base, dir+"/other")
	gone := newClaimFor(t, base, dir+"/proj")
	claims(t, base).Revoke(t.Context(), gone.Code)
	header := func(code string) func(*http.Request) { return func(r *http.Request) { ways["in the header"](r, code) } }
	all, some := strings.Join(allTools, " "), strings.Join(projTools, " ")

	for way, present := range ways {
		c, a := session(t, d.URL, func(r *http.Request) { present(r, proj.Code.Reveal()) })
		if got := list(c, nothing); got != some {
			t.Errorf("a new session with a valid code %s sees %q", way, got)
		}
		if text := stringField(a.result(), "instructions"); strings.Contains(text, "- b:") || !strings.Contains(text, "- a:") {
			t.Errorf("its instructions name other modules: %q", text)
		}
	}
	for name, code := range map[string]string{"none": "", "an unknown code": "ABCDEF", "an ended code": gone.Code.Reveal(), "a malformed code": "hello", "a long code": proj.Code.Reveal() + "A"} {
		c, a := session(t, d.URL, header(code))
		if got := list(c, nothing); a.Status != 200 || got != all {
			t.Errorf("a new session with %s: %d, sees %q", name, a.Status, got)
		}
	}
	c, _ := session(t, d.URL, nothing)
	if got := list(c, header(proj.Code.Reveal())); got != some {
		t.Errorf("an unscoped session that presents a code sees %q", got)
	}
	for name, present := range map[string]func(*http.Request){
		"nothing": nothing, "an unknown code": header("ABCDEF"), "an ended code": header(gone.Code.Reveal()), "a malformed one": header("*"),
	} {
		if got := list(c, present); got != some {
			t.Errorf("a scoped session that presents %s sees %q", name, got)
		}
	}
	if got := list(c, header(other.Code.Reveal())); got != "b_x" {
		t.Errorf("a scoped session that presents another valid code sees %q", got)
	}
	if got := list(c, nothing); got != "b_x" {
		t.Errorf("and from then on %q", got)
	}
	both := func(r *http.Request) { header("ABCDEF")(r); ways["in the URL"](r, proj.Code.Reveal()) }
	if got := list(c, both); got != some {
		t.Errorf("an unknown code before a valid one: %q", got)
	}
	unknown, outside := c.call("nope_x", "").Body, c.call("b_x", "").Body
	if got := strings.NewReplacer("b_x", "nope_x", `"id":`+string(field(json.RawMessage(outside), "id")), `"id":`+string(field(json.RawMessage(unknown), "id"))).Replace(outside); got != unknown {
		t.Errorf("a tool out of scope is told from an unknown one: %s and %s", outside, unknown)
	}
	claims(t, base).Revoke(t.Context(), proj.Code)
	if got := list(c, nothing); got != "" {
		t.Errorf("after the revoke it sees %q", got)
	}
	if got := list(c, header(proj.Code.Reveal())); got != "" {
		t.Errorf("with the revoked code it sees %q", got)
	}
	if a := c.call("a_x", ""); !strings.Contains(a.failure(), "has ended") || a.Status != 200 {
		t.Errorf("a call after the revoke: %d %s", a.Status, a.Body)
	}
	if got := list(c, header(other.Code.Reveal())); got != "b_x" {
		t.Errorf("with another code after the revoke it sees %q", got)
	}
	for _, c := range []Claim{proj, other, gone} {
		if code := c.Code.Reveal(); strings.Contains(d.Log.String(), code) || strings.Contains(d.Log.String(), code[:3]+"-") {
			t.Error("the log names a code")
		}
	}
}

func TestRequireClaim(t *testing.T) {
	t.Parallel()
	dir, base := twoProjects(t), t.TempDir()
	d := serveHereOn(t, base, dir)
	before := connect(t, d.URL)
	before.awaitTools(allTools...)
	d.stop(t)
	d = serveHereOn(t, base, dir, "-require-claim")
	before.URL = d.URL
	if got := list(before, nothing); got != "401" {
		t.Errorf("an unscoped session from before: %q", got)
	}
	proj := newClaimFor(t, base, dir+"/proj")
	if _, a := session(t, d.URL, nothing); a.Status != 401 || a.Header.Get(sessionHeader) != "" || a.Header.Get("WWW-Authenticate") != "" {
		t.Errorf("a new session without a code: %d %v", a.Status, a.Header)
	}
	present := func(code string) func(*http.Request) { return func(r *http.Request) { ways["in the header"](r, code) } }
	c, _ := session(t, d.URL, present(proj.Code.Reveal()))
	if got := list(c, nothing); got != strings.Join(projTools, " ") {
		t.Errorf("a session with a code sees %q", got)
	}
	late := newClaimFor(t, base, dir+"/other")
	refused := 0
	for i := range guessBudget + 20 {
		code := []byte("222222")
		for j := range 3 {
			code[j] = codeAlphabet[(i>>(2*j))%4+4]
		}
		_, a := session(t, d.URL, present(string(code)))
		switch a.Status {
		case 429:
			if refused++; a.Header.Get("Retry-After") == "" {
				t.Error("429 without Retry-After")
			}
		case 401:
			if refused > 0 {
				t.Error("guesses are looked up again")
			}
		default:
			t.Fatalf("a guess: %d", a.Status)
		}
	}
	if refused == 0 {
		t.Error("guesses have no end")
	}
	if _, a := session(t, d.URL, present(late.Code.Reveal())); a.Status != 429 {
		t.Errorf("a valid code that has not proved itself tells a guesser: %d", a.Status)
	}
	if got := list(c, present(late.Code.Reveal())); got != strings.Join(projTools, " ") {
		t.Errorf("guessing from within a session gives %q", got)
	}
	if _, a := session(t, d.URL, present(proj.Code.Reveal())); a.Status != 200 {
		t.Errorf("a code that has proved itself: %d", a.Status)
	}
	if _, a := session(t, d.URL, nothing); a.Status != 401 {
		t.Errorf("no code at all: %d", a.Status)
	}
}

func TestUnreadableClaims(t *testing.T) {
	t.Parallel()
	dir, base := twoProjects(t), t.TempDir()
	d := serveHereOn(t, base, dir)
	free := connect(t, d.URL)
	free.awaitTools(allTools...)
	proj := newClaimFor(t, base, dir+"/proj")
	present := func(r *http.Request) { ways["in the header"](r, proj.Code.Reveal()) }
	scoped, _ := session(t, d.URL, present)
	path := base + "/.data/claims.json"
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"empty": "", "another's": `{"version":9}`, "half": string(good[:20])} {
		write(t, path, text)
		if got := list(scoped, nothing); got != "503" {
			t.Errorf("%s file: a scoped session: %q", name, got)
		}
		if _, a := session(t, d.URL, present); a.Status != 503 || strings.Contains(a.Body, base) {
			t.Errorf("%s file: a new session with a code: %d %s", name, a.Status, a.Body)
		}
		if got := list(free, present); got != "503" {
			t.Errorf("%s file: an unscoped session that presents a code: %q", name, got)
		}
		if got := list(free, nothing); got != strings.Join(allTools, " ") {
			t.Errorf("%s file: an unscoped session: %q", name, got)
		}
		if now, _ := os.ReadFile(path); string(now) != text {
			t.Errorf("%s file was overwritten with %q", name, now)
		}
	}
	write(t, path, string(good))
	if got := list(scoped, nothing); got != strings.Join(projTools, " ") {
		t.Errorf("after the repair: %q", got)
	}
	os.Remove(path)
	if got := list(scoped, nothing); got != "" {
		t.Errorf("without the file: %q", got)
	}
}

// TestEndOfAClaim ends a claim in each way under a session with a stream and a
// call under way.
func TestEndOfAClaim(t *testing.T) {
	for _, how := range []string{"revoked", "expired", "deleted"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			dir, base := twoProjects(t), t.TempDir()
			d := serveHereOn(t, base, dir)
			store := claims(t, base)
			claim := newClaimFor(t, base, dir+"/proj")
			var err error
			c, _ := session(t, d.URL, func(r *http.Request) { ways["in the header"](r, claim.Code.Reveal()) })
			c.awaitTools(projTools...)
			messages, _ := c.listen()
			under := make(chan answer, 1)
			go func() {
				under <- c.post(`{"jsonrpc":"2.0","id":"slow","method":"tools/call","params":{"name":"a_sleep","arguments":{"ms":4000}}}`)
			}()
			await(t, "the call to be under way", func() bool { return strings.Contains(d.Log.String(), "fake: sleeping") })
			switch how {
			case "revoked":
				_, err = store.Revoke(t.Context(), claim.Code)
			case "expired":
				record := map[string]any{"code": claim.Code.Reveal(), "scopeDir": claim.ScopeDir, "createdAt": claim.CreatedAt, "expiresAt": time.Now().Add(time.Second).UTC()}
				write(t, base+"/.data/claims.json", string(marshal([]any{record})))
			case "deleted":
				err = os.Remove(base + "/.data/claims.json")
			}
			if err != nil {
				t.Fatal(err)
			}
			hear(t, messages, "notifications/tools/list_changed")
			if got := list(c, nothing); got != "" {
				t.Errorf("it sees %q", got)
			}
			if a := c.call("a_x", ""); !strings.Contains(a.failure(), "has ended") {
				t.Errorf("a new call: %s", a.Body)
			}
			if a := <-under; a.failure() != "" || a.result() == nil {
				t.Errorf("the call under way: %s", a.Body)
			}
		})
	}
}

func TestScopesSurviveRestarts(t *testing.T) {
	t.Parallel()
	dir, base := twoProjects(t), t.TempDir()
	d := serveHereOn(t, base, dir)
	connect(t, d.URL).awaitTools(allTools...)
	proj, other := newClaimFor(t, base, dir+"/proj"), newClaimFor(t, base, dir+"/other")
	header := func(c Claim) func(*http.Request) {
		return func(r *http.Request) { ways["in the header"](r, c.Code.Reveal()) }
	}
	born, _ := session(t, d.URL, header(proj))
	later, _ := session(t, d.URL, nothing)
	list(later, header(proj))
	moved, _ := session(t, d.URL, header(proj))
	list(moved, header(other))
	ended, _ := session(t, d.URL, header(other))
	free, _ := session(t, d.URL, nothing)
	restart := func() {
		t.Helper()
		d.stop(t)
		d = serveHereOn(t, base, dir)
		for _, c := range []*testClient{born, later, moved, ended, free} {
			c.URL = d.URL
		}
		connect(t, d.URL).awaitTools(allTools...)
	}
	see := func(when string, c *testClient, want string) {
		t.Helper()
		if got := list(c, nothing); got != want {
			t.Errorf("%s: %q, want %q", when, got, want)
		}
	}
	some := strings.Join(projTools, " ")
	restart()
	see("scoped from the start", born, some)
	see("scoped later", later, some)
	see("moved", moved, "b_x")
	see("unscoped", free, strings.Join(allTools, " "))
	d.stop(t)
	claims(t, base).Revoke(t.Context(), other.Code)
	restart()
	see("revoked while the daemon was down", ended, "")
	see("moved to what was revoked", moved, "")

	// The same six characters again, for another claim.
	raw, _ := json.Marshal([]map[string]any{{"code": proj.Code.Reveal(), "scopeDir": dir, "createdAt": time.Now().UTC(), "expiresAt": time.Now().Add(time.Hour).UTC()}})
	write(t, base+"/.data/claims.json", string(raw))
	see("its code is another claim's", born, "")
	raw, _ = json.Marshal([]map[string]any{{"code": proj.Code.Reveal(), "scopeDir": dir, "createdAt": proj.CreatedAt, "expiresAt": time.Now().Add(time.Hour).UTC()}})
	write(t, base+"/.data/claims.json", string(raw))
	see("its record was widened by hand", born, "")

	for name, spoil := range map[string]func(log string){
		"deleted":       func(log string) { os.Remove(log) },
		"emptied":       func(log string) { write(t, log, "") },
		"of another":    func(log string) { write(t, log, `{"key":"0000000000000000"}`+"\n") },
		"spoiled":       func(log string) { raw, _ := os.ReadFile(log); write(t, log, string(raw)+"x\n") },
		"without a key": func(string) { os.Remove(base + "/.data/session.key") },
	} {
		c, _ := session(t, d.URL, nothing)
		d.stop(t)
		spoil(base + "/.data/sessions.jsonl")
		restart()
		c.URL = d.URL
		see("session log "+name, c, "404")
	}
	c, _ := session(t, d.URL, nothing)
	d.stop(t)
	f, _ := os.OpenFile(base+"/.data/sessions.jsonl", os.O_APPEND|os.O_WRONLY, 0)
	f.WriteString(`{"id":"cut o`)
	f.Close()
	restart()
	c.URL = d.URL
	see("an append that was cut off", c, strings.Join(allTools, " "))
}

func TestStampThatCantBeWritten(t *testing.T) {
	t.Parallel()
	dir, base := twoProjects(t), t.TempDir()
	d := serveHereOn(t, base, dir)
	c := connect(t, d.URL)
	c.awaitTools(allTools...)
	proj := newClaimFor(t, base, dir+"/proj")
	os.Remove(base + "/.data/sessions.jsonl")
	present := func(r *http.Request) { ways["in the header"](r, proj.Code.Reveal()) }
	if got := list(c, present); got != "503" {
		t.Errorf("a stamp without a log: %q", got)
	}
	if a := c.do(c.request(http.MethodDelete, "")); a.Status != 503 {
		t.Errorf("DELETE without a log: %d", a.Status)
	}
	if got := list(c, nothing); got != strings.Join(allTools, " ") {
		t.Errorf("the session as it was: %q", got)
	}
}

// TestRevokeAgainstCalls races revokes against calls: once a call was refused,
// none is let in any more.
func TestRevokeAgainstCalls(t *testing.T) {
	t.Parallel()
	dir, base := twoProjects(t), t.TempDir()
	d := serveHereOn(t, base, dir)
	connect(t, d.URL).awaitTools(allTools...)
	store := claims(t, base)
	for range 20 {
		claim := newClaimFor(t, base, dir+"/proj")
		c, _ := session(t, d.URL, func(r *http.Request) { ways["in the header"](r, claim.Code.Reveal()) })
		var wg sync.WaitGroup
		revoked := make(chan struct{})
		wg.Go(func() {
			store.Revoke(t.Context(), claim.Code)
			close(revoked)
		})
		for range 4 {
			wg.Go(func() {
				refused := false
				for range 10 {
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
					refused = refused || !ok
					if b := c.call("b_x", ""); b.failure() == "" {
						t.Errorf("out of scope: %s", b.Body)
					}
				}
			})
		}
		wg.Wait()
	}
}

// TestAttacks tries to get a scoped session to see more.
func TestAttacks(t *testing.T) {
	t.Parallel()
	dir, base := twoProjects(t), t.TempDir()
	d := serveHereOn(t, base, dir)
	connect(t, d.URL).awaitTools(allTools...)
	proj := newClaimFor(t, base, dir+"/proj")
	foreign := serveHereOn(t, t.TempDir(), dir)
	stranger := connect(t, foreign.URL)
	some := strings.Join(projTools, " ")
	flip := func(id string, i int) string {
		b := []byte(id)
		if b[i]++; b[i] > 'y' {
			b[i] = 'A'
		}
		return string(b)
	}
	set := func(name, value string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set(name, value) }
	}
	code := proj.Code.Reveal()
	rows := []struct {
		name string
		do   func(*http.Request)
		want string
	}{
		{"dropping the header", nothing, some},
		{"an empty code", set(claimHeader, ""), some},
		{"a star", set(claimHeader, "*"), some},
		{"another scheme of authorization", set("Authorization", "Basic "+code), some},
		{"a query of two codes", func(r *http.Request) { r.URL.RawQuery = "claim=ABCDEF&claim=" + code }, some},
		{"a code in letters that only look so", set(claimHeader, "ＡＢＣＤＥＦ"), some},
		{"the long s", set(claimHeader, "ſſſſſſ"), some},
		{"a null byte in the query", func(r *http.Request) { r.URL.RawQuery = "claim=" + code + "%00" }, some},
		{"no session", func(r *http.Request) { r.Header.Del(sessionHeader) }, "400"},
		{"a session of another daemon", set(sessionHeader, stranger.Session), "404"},
		{"a session with a line break", func(r *http.Request) {
			r.Header[sessionHeader] = []string{r.Header.Get(sessionHeader)[:10] + " " + r.Header.Get(sessionHeader)[10:]}
		}, "404"},
		{"a session with more behind it", func(r *http.Request) { r.Header.Set(sessionHeader, r.Header.Get(sessionHeader)+"A") }, "404"},
		{"a session with padding", func(r *http.Request) { r.Header.Set(sessionHeader, r.Header.Get(sessionHeader)+"=") }, "404"},
		{"a session cut short", func(r *http.Request) { r.Header.Set(sessionHeader, r.Header.Get(sessionHeader)[:75]) }, "404"},
		{"a session with its first bit turned", func(r *http.Request) { r.Header.Set(sessionHeader, flip(r.Header.Get(sessionHeader), 0)) }, "404"},
		{"a session with its last letter turned", func(r *http.Request) {
			id := r.Header.Get(sessionHeader)
			r.Header.Set(sessionHeader, flip(id, len(id)-1))
		}, "404"},
		{"a session with its middle turned", func(r *http.Request) { r.Header.Set(sessionHeader, flip(r.Header.Get(sessionHeader), 40)) }, "404"},
	}
	for _, row := range rows {
		c, _ := session(t, d.URL, set(claimHeader, code))
		if got := list(c, row.do); got != row.want {
			t.Errorf("%s: %q, want %q", row.name, got, row.want)
		}
		if got := list(c, nothing); got != some {
			t.Errorf("%s, and the session after that: %q", row.name, got)
		}
	}
	c, _ := session(t, d.URL, set(claimHeader, code))
	for _, name := range []string{"b_x", "c_x", "other-b_x", "../other/b_x", "B_X", "proj-a_x", "a_x\u0000", ""} {
		if a := c.call(name, ""); a.failure() == "" || strings.Contains(a.Body, dir) {
			t.Errorf("the tool %q: %s", name, a.Body)
		}
	}
}

// TestMovingFolders moves what a claim is for.
func TestMovingFolders(t *testing.T) {
	t.Parallel()
	dir, base := twoProjects(t), t.TempDir()
	d := serveHereOn(t, base, dir)
	connect(t, d.URL).awaitTools(allTools...)
	proj := newClaimFor(t, base, dir+"/proj")
	c, _ := session(t, d.URL, func(r *http.Request) { ways["in the header"](r, proj.Code.Reveal()) })
	rename := func(from, to string) {
		t.Helper()
		if err := os.Rename(dir+"/"+from, dir+"/"+to); err != nil {
			t.Fatal(err)
		}
	}
	never := func() {
		t.Helper()
		if got := c.tools(); slices.Contains(got, "b_x") || slices.Contains(got, "c_x") {
			t.Errorf("it sees %v", got)
		}
	}
	rename("proj/a.usher", "other/a.usher") // a module is moved out
	c.awaitTools()
	never()
	rename("other/a.usher", "proj/a.usher")
	c.awaitTools(projTools...)
	rename("proj", "old") // the folder is renamed
	c.awaitTools()
	if err := os.Symlink(dir+"/other", dir+"/proj"); err != nil { // and a link to another stands in its place
		t.Fatal(err)
	}
	writeFake(t, dir+"/other/new.usher", "good tools=x")
	connect(t, d.URL).awaitTools("a_pid", "a_sleep", "a_x", "b_x", "c_x", "new_x")
	never()
	if got := c.tools(); len(got) != 0 {
		t.Errorf("through the link it sees %v", got)
	}
	os.Remove(dir + "/proj")
	writeFake(t, dir+"/proj/next.usher", "good tools=x") // a new folder of that name is what the claim is for
	c.awaitTools("next_x")
}
