// Claims over HTTP: who sees what, row by row of the table, and what happens
// to a session while its claim, the files, and the daemon come and go.

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
)

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

// spy passes requests on, and holds that no answer names a path of this machine.
type spy struct{ t *testing.T }

func (s spy) RoundTrip(req *http.Request) (*http.Response, error) {
	res, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	res.Body = io.NopCloser(bytes.NewReader(body))
	s.look(fmt.Sprint(res.Header, string(body)))
	return res, err
}

// look fails the test for a text that names a folder of this run.
func (s spy) look(text string) {
	here, _ := os.Getwd()
	home, _ := os.UserHomeDir()
	for _, dir := range []string{os.TempDir(), here, home} {
		if len(dir) > 1 && strings.Contains(text, dir+string(filepath.Separator)) {
			s.t.Errorf("an answer names %s: %s", dir, clipText(text, 500))
		}
	}
}

// session begins a session by a request that present changes.
func session(t *testing.T, url string, present func(*http.Request)) (*testClient, answer) {
	t.Helper()
	c := &testClient{t: t, URL: url, Header: http.Header{}, http: &http.Client{Transport: spy{t}, Timeout: 2 * patience}}
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
// It spends its time waiting, so it does the ways side by side.
func TestEndOfAClaim(t *testing.T) {
	t.Parallel()
	var ways sync.WaitGroup
	for _, how := range []string{"revoked", "expired", "deleted"} {
		ways.Go(func() { endClaim(t, how) })
	}
	ways.Go(func() { // and what an unscoped session's stream says when it becomes scoped
		dir, base := twoProjects(t), t.TempDir()
		d := serveHereOn(t, base, dir)
		c, _ := session(t, d.URL, nothing)
		c.awaitTools(allTools...)
		messages, _ := c.listen()
		if got := list(c, header(newClaimFor(t, base, dir+"/proj").Code.Reveal())); got != strings.Join(projTools, " ") {
			t.Errorf("scoped: %q", got)
		}
		hear(t, messages, "notifications/tools/list_changed")
	})
	ways.Wait()
}

func endClaim(t *testing.T, how string) {
	dir, base := twoProjects(t), t.TempDir()
	d := serveHereOn(t, base, dir)
	store := claims(t, base)
	claim := newClaimFor(t, base, dir+"/proj")
	c, _ := session(t, d.URL, header(claim.Code.Reveal()))
	c.awaitTools(projTools...)
	messages, _ := c.listen()
	under := make(chan answer, 1)
	go func() {
		under <- c.post(`{"jsonrpc":"2.0","id":"slow","method":"tools/call","params":{"name":"a_sleep","arguments":{"ms":4000}}}`)
	}()
	await(t, "the call to be under way", func() bool { return strings.Contains(d.Log.String(), "fake: sleeping") })
	start := time.Now()
	var err error
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
		t.Error(err)
		return
	}
	spy{t}.look(string(hear(t, messages, "notifications/tools/list_changed")))
	if took := time.Since(start); took > 10*time.Second {
		t.Errorf("%s: its stream said so after %v", how, took)
	}
	for _, method := range []string{"tools/list", "prompts/list", "resources/list", "resources/templates/list"} {
		if a := c.ask(method, ""); a.failure() != "" || !strings.Contains(a.Body, ":[]}") {
			t.Errorf("%s: %s: %s", how, method, a.Body)
		}
	}
	for method, params := range map[string]string{"tools/call": `{"name":"a_x"}`, "prompts/get": `{"name":"a_x"}`, "resources/read": `{"uri":"a://x"}`,
		"completion/complete": `{"ref":{"type":"ref/prompt","name":"a_x"},"argument":{"name":"n","value":""}}`} {
		if a := c.ask(method, params); !strings.Contains(a.failure(), "claim of this session has ended") || a.Status != 200 || a.result() != nil {
			t.Errorf("%s: a new %s: %d %s", how, method, a.Status, a.Body)
		}
	}
	if a := c.ask("ping", ""); a.failure() != "" {
		t.Errorf("%s: ping: %s", how, a.Body)
	}
	if a := <-under; a.failure() != "" || a.result() == nil {
		t.Errorf("%s: the call under way: %s", how, a.Body)
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
		"deleted":        func(log string) { os.Remove(log) },
		"emptied":        func(log string) { write(t, log, "") },
		"of another":     func(log string) { write(t, log, `{"key":"0000000000000000"}`+"\n") },
		"cut short":      func(log string) { raw, _ := os.ReadFile(log); write(t, log, string(raw[:len(raw)-9])) },
		"a half line on": func(log string) { raw, _ := os.ReadFile(log); write(t, log, string(raw)+`{"id":"cut o`) },
		"spoiled":        func(log string) { raw, _ := os.ReadFile(log); write(t, log, string(raw)+"x\n") },
		"without a key":  func(string) { os.Remove(base + "/.data/session.key") },
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
	restart()
	c.URL = d.URL
	see("nothing was done to the log", c, strings.Join(allTools, " "))
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

// TestJudge holds every standing there can be against what a verdict is for,
// said without judge's own order.
func TestJudge(t *testing.T) {
	// width is how much each verdict lets a caller reach.
	width := map[verdict]int{whole: 2, own: 1, presented: 1, ended: 0, unclaimed: 0, unavailable: 0}
	seen := make(map[verdict]bool)
	for bits := range 1 << 6 {
		bit := func(n int) bool { return bits>>n&1 == 1 }
		s := standing{scoped: bit(0), ownHolds: bit(1), presents: bit(2), valid: bit(3), unreadable: bit(4), require: bit(5)}
		if s.valid && !s.presents || s.ownHolds && !s.scoped {
			continue // can't be
		}
		got := judge(s)
		seen[got] = true
		for what, wrong := range map[string]bool{
			"a scoped session gets the whole workspace":               s.scoped && got == whole,
			"the whole workspace without a claim, where one is asked": s.require && got == whole,
			"a claim that was not presented":                          got == presented && !s.valid,
			"a claim of its own that it has not, or that has ended":   got == own && !s.ownHolds,
			"a refusal for a claim that holds":                        got == ended && (s.ownHolds || !s.scoped),
			"401 for who has a claim":                                 got == unclaimed && (s.scoped || s.valid || !s.require),
			"503 for who needs no claim":                              got == unavailable && !s.scoped && !s.presents,
			"an answer from claims that can't be read":                s.unreadable && (s.scoped || s.presents) && got != unavailable,
			"503 from claims that can be read":                        got == unavailable && !s.unreadable,
			"a code presented that is valid does not count":           s.valid && !s.unreadable && got != presented,
		} {
			if wrong {
				t.Errorf("%+v: verdict %d: %s", s, got, what)
			}
		}
		failed := s
		for what, fail := range map[string]func(){
			"the claims can't be read":   func() { failed.unreadable = true },
			"its own claim ends":         func() { failed.ownHolds = false },
			"the daemon asks for claims": func() { failed.require = true },
		} {
			failed = s
			if fail(); width[judge(failed)] > width[got] {
				t.Errorf("%+v: it sees more when %s", s, what)
			}
		}
	}
	if len(seen) != len(width) {
		t.Errorf("verdicts met: %v", seen)
	}
}

// header is a request's way to present a code that most tests take.
func header(code string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Set(claimHeader, code) }
}

func query(code string) func(*http.Request) {
	return func(r *http.Request) { r.URL.RawQuery = "claim=" + code }
}

func authorization(value string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Set("Authorization", value) }
}

func all(present ...func(*http.Request)) func(*http.Request) {
	return func(r *http.Request) {
		for _, p := range present {
			p(r)
		}
	}
}

// TestScopeTable is the table of who sees what, black-box: what a request
// presents, for a session in each state.
func TestScopeTable(t *testing.T) {
	t.Parallel()
	dir, base := twoProjects(t), t.TempDir()
	d := serveHereOn(t, base, dir)
	connect(t, d.URL).awaitTools(allTools...)
	proj, other := newClaimFor(t, base, dir+"/proj"), newClaimFor(t, base, dir+"/other")
	gone := newClaimFor(t, base, dir+"/projX")
	p, o, g := proj.Code.Reveal(), other.Code.Reveal(), gone.Code.Reveal()
	const unknown = "ABCDEF"
	rows := []struct {
		name    string
		present func(*http.Request)
		counts  string // the code that counts, "" for none
	}{
		{"nothing", nothing, ""},
		{"a code in the header", header(p), p},
		{"a code in the URL", query(p), p},
		{"a code as bearer", authorization("Bearer " + p), p},
		{"a code as bearer, the scheme in lower case", authorization("bearer " + p), p},
		{"a code in lower case with a dash", header(strings.ToLower(p[:3] + "-" + p[3:])), p},
		{"a code in the URL in lower case with a dash", query(strings.ToLower(p[:3] + "-" + p[3:])), p},
		{"a code with spaces in it", header(" " + p[:2] + " " + p[2:] + " "), p},
		{"another folder's code", header(o), o},
		{"an unknown code", header(unknown), ""},
		{"an unknown code in the URL", query(unknown), ""},
		{"an unknown code as bearer", authorization("Bearer " + unknown), ""},
		{"an ended code", header(g), ""},
		{"no code but the header", header(""), ""},
		{"a word", header("hello"), ""},
		{"a code and one letter more", header(p + "A"), ""},
		{"a code without its last letter", header(p[:5]), ""},
		{"a code in quotes", header(`"` + p + `"`), ""},
		{"a token as bearer that is no code", authorization("Bearer eyJhbGciOiJIUzI1NiJ9.e30.x"), ""},
		{"a code as a password", authorization("Basic " + p), ""},
		{"a code as authorization without a scheme", authorization(p), ""},
		{"a code in the parameter code", func(r *http.Request) { r.URL.RawQuery = "code=" + p }, ""},
		{"a code in the parameter CLAIM", func(r *http.Request) { r.URL.RawQuery = "CLAIM=" + p }, ""},
		{"a code at /mcp", all(query(p), func(r *http.Request) { r.URL.Path = "/mcp" }), p},
		{"two codes: the header goes before the URL", all(header(p), query(o)), p},
		{"two codes: the header goes before the bearer", all(header(p), authorization("Bearer "+o)), p},
		{"two codes: the URL goes before the bearer", all(query(p), authorization("Bearer "+o)), p},
		{"an unknown code in the header and a valid one in the URL", all(header(unknown), query(p)), p},
		{"an ended code in the header and a valid one as bearer", all(header(g), authorization("Bearer "+p)), p},
		{"a word in the header, an unknown code in the URL, a valid one as bearer", all(header("*"), query(unknown), authorization("Bearer "+p)), p},
		{"three codes that are not valid", all(header(g), query(unknown), authorization("Bearer GHJKMN")), ""},
	}
	lists := map[string]string{p: strings.Join(projTools, " "), o: "b_x"}
	everything := strings.Join(allTools, " ")
	states := []struct {
		name    string
		born    func(*http.Request) // what the session presented before
		without string              // what it sees when nothing valid is presented
	}{
		{"a new session", nil, everything},
		{"an unscoped session", nothing, everything},
		{"a scoped session", header(p), lists[p]},
		{"a session of another claim", header(o), lists[o]},
		{"a session whose claim has ended", header(g), ""},
	}
	sessions := make(map[string]*testClient)
	for _, state := range states {
		for _, row := range rows {
			if state.born != nil {
				sessions[state.name+row.name], _ = session(t, d.URL, state.born)
			}
		}
	}
	claims(t, base).Revoke(t.Context(), gone.Code)
	for _, state := range states {
		for _, row := range rows {
			want := state.without
			if row.counts != "" {
				want = lists[row.counts]
			}
			c, then := sessions[state.name+row.name], row.present
			if c == nil {
				var a answer
				c, a = session(t, d.URL, row.present)
				then = nothing
				if text := stringField(a.result(), "instructions"); a.Status != 200 || strings.Contains(text, "- c:") != (want == everything) || !strings.Contains(text, "- ") {
					t.Errorf("%s presents %s: %d, and is told %q", state.name, row.name, a.Status, text)
				}
			}
			if got := list(c, then); got != want {
				t.Errorf("%s presents %s: it sees %q, want %q", state.name, row.name, got, want)
			}
			if got := list(c, nothing); got != want {
				t.Errorf("%s presented %s: it then sees %q, want %q", state.name, row.name, got, want)
			}
		}
	}
	d.hidesCodes(t, p, o, g, unknown)
}

// hidesCodes holds that nothing the daemon wrote names a code, in whole or in
// part.
func (d *testDaemon) hidesCodes(t *testing.T, codes ...string) {
	t.Helper()
	text := d.Log.String() + d.Out.String()
	for _, code := range codes {
		for _, spelled := range []string{code[:3] + "-" + code[3:], code, code[:4], code[2:], code[1:5], strings.ToLower(code)} {
			if strings.ContainsAny(spelled, "ABCDEFGHJKMNPQRSTUVWXYZabcdefghjkmnpqrstuvwxyz") && strings.Contains(text, spelled) {
				t.Errorf("the log names a code, or a part of it: %s", spelled)
			}
		}
	}
	if found := queryWithCode.FindString(text); found != "" {
		t.Errorf("the log has a URL with its query: %s", found)
	}
}

var queryWithCode = regexp.MustCompile(`[?&]claim=[A-Za-z0-9%-].*`)

// TestOutOfScopeIsUnknown asks for what is there and out of scope, and for what
// is nowhere: the answers are the same, byte by byte.
func TestOutOfScopeIsUnknown(t *testing.T) {
	t.Parallel()
	dir, base := twoProjects(t), t.TempDir()
	writeRich(t, dir+"/other/rich.usher")
	writeFake(t, dir+"/other/a.usher", "good tools=x,only") // the bare names are two modules' now
	d := serveHereOn(t, base, dir)
	free, _ := session(t, d.URL, nothing)
	free.awaitTools("b_x", "c_x", "other-a_only", "other-a_x", "proj-a_pid", "proj-a_sleep", "proj-a_x", "rich_tell")
	proj := newClaimFor(t, base, dir+"/proj")
	c, a := session(t, d.URL, header(proj.Code.Reveal()))
	if text := stringField(a.result(), "instructions"); text == "" || strings.Contains(text, "rich") || strings.Contains(text, "other") {
		t.Errorf("instructions: %q", text)
	}
	c.awaitTools(projTools...)
	for _, method := range []string{"prompts/list", "resources/list", "resources/templates/list"} {
		if got := c.ask(method, ""); !strings.Contains(got.Body, "[]") || strings.Contains(got.Body, "rich") {
			t.Errorf("%s: %s", method, got.Body)
		}
		if got := free.ask(method, ""); !strings.Contains(got.Body, "rich") {
			t.Errorf("%s without a claim: %s", method, got.Body)
		}
	}
	for _, tt := range []struct{ method, params, out string }{
		{"tools/call", `{"name":"THING"}`, "b_x"},
		{"tools/call", `{"name":"THING"}`, "rich_tell"},
		{"tools/call", `{"name":"THING"}`, "other-a_x"},
		{"tools/call", `{"name":"THING"}`, "proj-a_x"}, // its name in another view
		{"tools/call", `{"name":"THING"}`, "a_only"},
		{"tools/call", `{"name":"THING","arguments":{"n":1},"_meta":{"progressToken":7}}`, "b_x"},
		{"tools/call", `{"name":"THING","_meta":{"scope":"/","claim":"ABCDEF"}}`, "b_x"},
		{"prompts/get", `{"name":"THING"}`, "rich_say"},
		{"resources/read", `{"uri":"THING"}`, "rich://one"},
		{"resources/read", `{"uri":"THING"}`, "rich://many/3"},
		{"completion/complete", `{"ref":{"type":"ref/prompt","name":"THING"},"argument":{"name":"x","value":""}}`, "rich_say"},
		{"completion/complete", `{"ref":{"type":"ref/resource","uri":"THING"},"argument":{"name":"x","value":""}}`, "rich://many/{n}"},
	} {
		ask := func(thing string) string {
			params := strings.ReplaceAll(tt.params, "THING", thing)
			a := c.post(`{"jsonrpc":"2.0","id":1,"method":"` + tt.method + `","params":` + params + `}`)
			a.Header.Del("X-Request-Id")
			a.Header.Del("Date")
			a.Header.Del("Content-Length")
			return fmt.Sprint(a.Status, a.Header, strings.ReplaceAll(a.Body, thing, "THING"))
		}
		nowhere := "nope_" + tt.out
		if strings.Contains(tt.out, "://") {
			nowhere = "nope://" + tt.out[7:]
		}
		outside, unknown := ask(tt.out), ask(nowhere)
		if outside != unknown || !strings.Contains(outside, `"error"`) {
			t.Errorf("%s of %s out of scope: %s\nof an unknown one: %s", tt.method, tt.out, outside, unknown)
		}
		if a := free.ask(tt.method, strings.ReplaceAll(tt.params, "THING", tt.out)); tt.out != "a_only" && a.failure() != "" {
			t.Errorf("%s of %s without a claim: %s", tt.method, tt.out, a.Body)
		}
	}
}

// writeRich makes a module that offers one of everything: a shell that answers
// each request with what its id is put into.
func writeRich(t *testing.T, path string) {
	t.Helper()
	write(t, path, `#!/bin/sh
while read -r line; do
  id=${line#*'"id":'}; id=${id%%[,\}]*}
  case $line in
  *'"initialize"'*) r='{"protocolVersion":"2025-11-25","capabilities":{"tools":{},"prompts":{},"resources":{},"completions":{}},"serverInfo":{"name":"rich","version":"1"}}' ;;
  *'"tools/list"'*) r='{"tools":[{"name":"tell","inputSchema":{"type":"object"}}]}' ;;
  *'"prompts/list"'*) r='{"prompts":[{"name":"say","arguments":[{"name":"x"}]}]}' ;;
  *'"resources/list"'*) r='{"resources":[{"uri":"rich://one","name":"one"}]}' ;;
  *'"resources/templates/list"'*) r='{"resourceTemplates":[{"uriTemplate":"rich://many/{n}","name":"many"}]}' ;;
  *'"tools/call"'*) r='{"content":[]}' ;;
  *'"prompts/get"'*) r='{"messages":[]}' ;;
  *'"resources/read"'*) r='{"contents":[]}' ;;
  *'"completion/complete"'*) r='{"completion":{"values":[]}}' ;;
  *) continue ;;
  esac
  printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$id" "$r"
done
`)
	if err := os.Chmod(path, 0o755); err != nil {
		t.Fatal(err)
	}
}

// TestWhatIsInAScope asks for modules near the edge of a scope.
func TestWhatIsInAScope(t *testing.T) {
	t.Parallel()
	dir, base := twoProjects(t), t.TempDir()
	link := func(to, from string) {
		t.Helper()
		if err := os.Symlink(dir+to, dir+from); err != nil {
			t.Fatal(err)
		}
	}
	link("/other/b.usher", "/proj/stolen.usher")       // from outside into the scope
	link("/proj/deep/er/d.usher", "/other/lent.usher") // out of the scope
	link("/proj", "/alias")                            // the scope by another name
	link("/other", "/proj/more")                       // a folder, which is not searched
	writeFake(t, dir+"/proj/deep/er/d.usher", "good tools=x")
	writeFake(t, dir+"/Proj/e.usher", "good tools=x")
	d := serveHereOn(t, base, dir)
	connect(t, d.URL).awaitTools("a_pid", "a_sleep", "a_x", "b_x", "c_x", "d_x", "e_x", "lent_x", "stolen_x")
	inside := "a_pid a_sleep a_x d_x lent_x"
	for _, tt := range []struct{ name, scope, want string }{
		{"a folder", "/proj", inside},
		{"a folder with a slash behind it", "/proj/", inside},
		{"a folder whose name begins as another's", "/projX", "c_x"},
		{"the beginning of two names", "/pro", ""},
		{"a folder in another case", "/PROJ", ""},
		{"a folder below", "/proj/deep", "d_x lent_x"},
		{"a folder two below", "/proj/deep/er", "d_x lent_x"},
		{"a module's file itself", "/other/b.usher", "b_x stolen_x"},
		{"a module's link into another folder", "/proj/stolen.usher", ""},
		{"a folder by way of another", "/proj/../other", ""},
		{"a folder by way of itself", "/./other", ""},
		{"a folder with a slash twice", "//other", ""},
		{"a folder by the name of its link", "/alias", ""},
		{"a linked folder in a folder", "/proj/more", ""},
		{"a folder that is not there", "/nope", ""},
		{"a pattern", "/*", ""},
		{"all", "", "a_pid a_sleep a_x b_x c_x d_x e_x lent_x stolen_x"},
	} {
		record := []map[string]any{{"code": "ABCDEF", "scopeDir": dir + tt.scope, "createdAt": time.Now().UTC(), "expiresAt": time.Now().Add(time.Hour).UTC()}}
		write(t, base+"/.data/claims.json.new", string(marshal(record)))
		if err := os.Rename(base+"/.data/claims.json.new", base+"/.data/claims.json"); err != nil {
			t.Fatal(err)
		}
		c, a := session(t, d.URL, header("ABCDEF"))
		if got := list(c, nothing); got != tt.want || a.Status != 200 {
			t.Errorf("a claim for %s: %d %q, want %q", tt.name, a.Status, got, tt.want)
		}
	}
	// usher claim resolves what it is given, so that a link is what it leads to.
	out, errs, code := usher(t, "", "claim", "-json", "-scope", dir+"/alias/../alias", "-base", base)
	var c Claim
	if list, err := parseClaims([]byte("[" + out + "]")); code != 0 || err != nil || list[0].ScopeDir != dir+"/proj" {
		t.Fatalf("usher claim of a link: %v %s%s", err, out, errs)
	} else {
		c = list[0]
	}
	s, _ := session(t, d.URL, header(c.Code.Reveal()))
	if got := list(s, nothing); got != inside {
		t.Errorf("a claim for a linked folder, made by usher claim: %q", got)
	}
}

// unknownCodes are n codes that nobody was given, with overwhelming likelihood.
func unknownCodes(n int) []string {
	var codes []string
	for i := range n {
		codes = append(codes, string([]byte{codeAlphabet[i%31], codeAlphabet[i/31], '2', '2', 'Z', 'Z'}))
	}
	return codes
}

func TestRequireClaim(t *testing.T) {
	t.Parallel()
	dir, base := twoProjects(t), t.TempDir()
	d := serveHereOn(t, base, dir)
	before, _ := session(t, d.URL, nothing)
	before.awaitTools(allTools...)
	proj := newClaimFor(t, base, dir+"/proj")
	scopedBefore, _ := session(t, d.URL, header(proj.Code.Reveal()))
	d.stop(t)
	d = serveHereOn(t, base, dir, "-require-claim")
	before.URL, scopedBefore.URL = d.URL, d.URL
	some := strings.Join(projTools, " ")
	if got := list(before, nothing); got != "401" {
		t.Errorf("an unscoped session from before: %q", got)
	}
	get := before.request(http.MethodGet, "")
	get.Header.Set("Accept", "text/event-stream")
	for _, req := range []*http.Request{get, before.request(http.MethodDelete, "")} {
		if a := before.do(req); a.Status != 401 {
			t.Errorf("its %s: %d", req.Method, a.Status)
		}
	}
	if got := list(before, header(proj.Code.Reveal())); got != some {
		t.Errorf("an unscoped session from before that presents a code: %q", got)
	}
	if got := list(scopedBefore, nothing); got != some {
		t.Errorf("a scoped session from before: %q", got)
	}
	for _, path := range []string{"/.well-known/oauth-protected-resource", "/.well-known/oauth-authorization-server", "/.well-known/oauth-protected-resource/mcp", "/register"} {
		req := before.request(http.MethodGet, "")
		req.URL.Path = path
		if a := before.do(req); a.Status != 404 || a.Header.Get("WWW-Authenticate") != "" {
			t.Errorf("%s: %d %v", path, a.Status, a.Header)
		}
	}
	malformed := []func(*http.Request){nothing, header(""), header("hello"), header("*"), authorization("Bearer x.y.z"), query("")}
	for i := range 2 * guessBudget { // these cost nothing
		if _, a := session(t, d.URL, malformed[i%len(malformed)]); a.Status != 401 || a.Header.Get(sessionHeader) != "" || a.Header.Get("WWW-Authenticate") != "" {
			t.Fatalf("a new session without a code: %d %v", a.Status, a.Header)
		}
	}
	revoked := newClaimFor(t, base, dir+"/proj")
	session(t, d.URL, header(revoked.Code.Reveal()))
	claims(t, base).Revoke(t.Context(), revoked.Code)
	for range 2 * guessBudget { // and so do codes that were good once
		if _, a := session(t, d.URL, header(revoked.Code.Reveal())); a.Status != 401 {
			t.Fatalf("a new session with an ended code: %d", a.Status)
		}
	}
	late := newClaimFor(t, base, dir+"/other")
	var mu sync.Mutex
	statuses := make(map[int]int)
	var wg sync.WaitGroup
	for part := range 4 { // side by side, so that none slips through between look and charge
		wg.Go(func() {
			for i, code := range unknownCodes(4 * guessBudget) {
				if i%4 != part {
					continue
				}
				present := []func(*http.Request){header(code), query(code), authorization("Bearer " + code)}[i%3]
				var a answer
				if i%5 == 0 { // also from within a session, where guesses are no cheaper
					req := scopedBefore.request(http.MethodPost, scopedBefore.message("ping", ""))
					present(req)
					if a = scopedBefore.do(req); a.Status != 200 {
						t.Errorf("a session is slowed: %d", a.Status)
					}
				} else if _, a = session(t, d.URL, present); a.Status == 429 && a.Header.Get("Retry-After") == "" {
					t.Error("429 without Retry-After")
				}
				mu.Lock()
				statuses[a.Status]++
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if statuses[429] == 0 || statuses[401] > guessBudget+20 || statuses[401]+statuses[429]+statuses[200] != 4*guessBudget {
		t.Errorf("guesses were answered %v", statuses)
	}
	for range 3 {
		session(t, d.URL, header("AAAAAA")) // what was refilled meanwhile
	}
	if _, a := session(t, d.URL, header(late.Code.Reveal())); a.Status != 429 {
		t.Errorf("a valid code that has not proved itself tells a guesser: %d", a.Status)
	}
	if got := list(scopedBefore, header(late.Code.Reveal())); got != some {
		t.Errorf("guessing from within a session gives %q", got)
	}
	for name, present := range map[string]func(*http.Request){
		"alone":                        header(proj.Code.Reveal()),
		"beside one that no one knows": all(header("AAAAAA"), query(proj.Code.Reveal())),
	} {
		if _, a := session(t, d.URL, present); a.Status != 200 {
			t.Errorf("a code that has proved itself, %s: %d", name, a.Status)
		}
	}
	if got := list(scopedBefore, nothing); got != some {
		t.Errorf("a session over the budget: %q", got)
	}
	if _, a := session(t, d.URL, nothing); a.Status != 401 {
		t.Errorf("no code at all: %d", a.Status)
	}
	d.hidesCodes(t, proj.Code.Reveal(), late.Code.Reveal(), "AAAAAA")
}

// TestBudgetRefills holds the budget against a clock of its own.
func TestBudgetRefills(t *testing.T) {
	t.Parallel()
	now := time.Now()
	store := openClaims(t.TempDir(), nil)
	t.Cleanup(store.Close)
	g := newGate(store, true, func() time.Time { return now })
	guess := func(n int) (let int) {
		for _, code := range unknownCodes(n) {
			if _, _, err := g.admit([]Code{Code(code)}, nil); err == nil {
				let++
			}
		}
		return let
	}
	for _, tt := range []struct {
		after time.Duration
		want  int
	}{{0, guessBudget}, {0, 0}, {time.Second, 1}, {30 * time.Second, 30}, {time.Hour, guessBudget}, {-time.Hour, 0}, {time.Hour + time.Minute, guessBudget}} {
		now = now.Add(tt.after)
		if got := guess(3 * guessBudget); got != tt.want {
			t.Errorf("%v later: %d guesses are looked up, want %d", tt.after, got, tt.want)
		}
	}
}

// TestSessionLogKeepsScopes opens the session store across restarts and clocks.
func TestSessionLogKeepsScopes(t *testing.T) {
	t.Parallel()
	stamp := claimStamp{"ABCDEF", time.Now().UTC().Round(0), "/w/proj"}
	undated := claimStamp{"ABCDEF", time.Time{}, "/w/proj"}
	old := claimStamp{"ABCDEF", time.Date(1600, 1, 2, 3, 4, 5, 6, time.UTC), "/w/proj"}
	for _, tt := range []struct {
		name  string
		born  *claimStamp   // what the session begins with
		later *claimStamp   // what it is stamped with
		ahead time.Duration // how far the clock was ahead when it began
		after time.Duration // how much later the store is opened again
		want  *claimStamp
		gone  bool
	}{
		{name: "an unscoped session"},
		{name: "a scoped one", born: &stamp, want: &stamp},
		{name: "one whose claim has no date", born: &undated, want: &undated},
		{name: "one whose claim is older than clocks", born: &old, want: &old},
		{name: "one that was scoped later", later: &stamp, want: &stamp},
		{name: "one that was scoped later, to a claim without a date", later: &undated, want: &undated},
		{name: "one that moved", born: &undated, later: &stamp, want: &stamp},
		{name: "one that was scoped later, on its last day", later: &stamp, after: sessionLife - time.Hour, want: &stamp},
		{name: "one past its days", later: &stamp, after: sessionLife, gone: true},
		{name: "one from a clock that was ahead, scoped after it was put right", later: &stamp, ahead: 60 * 24 * time.Hour, after: sessionLife + time.Hour, want: &stamp},
	} {
		data, start := t.TempDir(), time.Now()
		now := start.Add(tt.ahead)
		clock := func() time.Time { return now }
		open := func() *SessionStore {
			t.Helper()
			s, err := openSessions(data, clock)
			if err != nil {
				t.Fatal(err)
			}
			return s
		}
		s := open()
		_, id := s.Create(protocols[0], 0, tt.born)
		now = start
		if tt.later != nil {
			session, release, err := s.Open(id)
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Stamp(t.Context(), session, *tt.later); err != nil {
				t.Fatal(err)
			}
			release()
		}
		s.Close()
		now = start.Add(tt.after)
		for range 2 { // each start compacts
			s = open()
			session, _, err := s.Open(id)
			if (err != nil) != tt.gone {
				t.Errorf("%s: %v", tt.name, err)
			} else if err == nil && (session.scopedTo() == nil) != (tt.want == nil) || err == nil && tt.want != nil && *session.scopedTo() != *tt.want {
				t.Errorf("%s: it is scoped to %+v", tt.name, session.scopedTo())
			}
			s.Close()
		}
	}
}

// TestWhyClaimsCantBeRead looks for the reason where the operator does.
func TestWhyClaimsCantBeRead(t *testing.T) {
	t.Parallel()
	d := serveHere(t, t.TempDir())
	write(t, d.Base+"/.data/claims.json", `[{"code":"GHJKMN"`)
	if _, a := session(t, d.URL, header("GHJKMN")); a.Status != 503 || strings.Contains(a.Body, "claims.json") {
		t.Errorf("%d %s", a.Status, a.Body)
	}
	if log := d.Log.String(); !strings.Contains(log, "claims.json") || !strings.Contains(log, "move it away or restore it") {
		t.Errorf("the log does not say which file, and what to do: %s", log)
	}
	d.hidesCodes(t, "GHJKMN")
}

// TestClaimsWithoutADate holds that createdAt may be missing, and what happens
// where it can't be written.
func TestClaimsWithoutADate(t *testing.T) {
	t.Parallel()
	dir, base := twoProjects(t), t.TempDir()
	d := serveHereOn(t, base, dir)
	connect(t, d.URL).awaitTools(allTools...)
	for _, tt := range []struct{ created, born, later string }{
		{``, "a_pid a_sleep a_x", "a_pid a_sleep a_x"},
		{`"createdAt":0,`, "a_pid a_sleep a_x", "a_pid a_sleep a_x"},
		{`"createdAt":"0001-01-01T00:00:00Z",`, "a_pid a_sleep a_x", "a_pid a_sleep a_x"},
		{`"createdAt":"9999-12-31T23:59:59.999999999Z",`, "a_pid a_sleep a_x", "a_pid a_sleep a_x"},
		{`"createdAt":253402300800000,`, "400", "503"},
	} {
		write(t, base+"/.data/claims.json", `[{"code":"ABCDEF",`+tt.created+`"scopeDir":"`+dir+`/proj","expiresAt":"2099-01-01T00:00:00Z"}]`)
		born, _ := session(t, d.URL, header("ABCDEF"))
		if got := list(born, nothing); got != tt.born {
			t.Errorf("%s: a session that began with it sees %q", tt.created, got)
		}
		later, _ := session(t, d.URL, nothing)
		if got := list(later, header("ABCDEF")); got != tt.later {
			t.Errorf("%s: a session that presents it later sees %q", tt.created, got)
		}
	}
	log, _ := os.ReadFile(base + "/.data/sessions.jsonl")
	if bytes.Contains(log, []byte("null\n")) {
		t.Errorf("the session log has lines that say nothing: %s", log)
	}
}
