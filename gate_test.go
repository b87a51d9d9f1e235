// Claims over HTTP: who sees what, row by row of the table, and what happens
// to a session while its claim, the files, and the daemon come and go.

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestUnreadableClaims(t *testing.T) {
	t.Parallel()
	dir, base := twoProjects(t), t.TempDir()
	d := daemonOptions{base: base}.start(t, dir)
	free := connect(t, d.URL)
	free.awaitTools(allTools...)
	proj := newClaimFor(t, base, dir+"/proj")
	present := func(r *http.Request) { ways["in the header"](r, proj.Code.Reveal()) }
	scoped, _ := openSession(t, d.URL, present)
	path := base + "/.data/claims.json"
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"empty": "", "another's": `{"version":9}`, "half": string(good[:20])} {
		write(t, path, text)
		if got := listTools(scoped, presentNothing); got != "503" {
			t.Errorf("%s file: a scoped session: %q", name, got)
		}
		if _, a := openSession(t, d.URL, present); a.Status != 503 || strings.Contains(a.Body, base) {
			t.Errorf("%s file: a new session with a code: %d %s", name, a.Status, a.Body)
		}
		if got := listTools(free, present); got != "503" {
			t.Errorf("%s file: an unscoped session that presents a code: %q", name, got)
		}
		if got := listTools(free, presentNothing); got != strings.Join(allTools, " ") {
			t.Errorf("%s file: an unscoped session: %q", name, got)
		}
		for presents, tt := range map[string]struct {
			present func(*http.Request)
			want    string
		}{
			"a code":                   {present, "503"},
			"a code that is not known": {inQuery("ABCDEF"), "503"},
			"a word":                   {inHeader("hello"), "400"},
			"no code":                  {presentNothing, strings.Join(allTools, " ")},
		} {
			if got := newStateless(t, d.URL).sees(tt.present); got != tt.want {
				t.Errorf("%s file: a request without a session that presents %s: %q, want %q", name, presents, got, tt.want)
			}
		}
		if now, _ := os.ReadFile(path); string(now) != text {
			t.Errorf("%s file was overwritten with %q", name, now)
		}
	}
	if log := d.Log.String(); !strings.Contains(log, "claims.json") || !strings.Contains(log, "move it away or restore it") {
		t.Errorf("the log does not say which file, and what to do: %s", log)
	}
	d.hidesCodes(t, proj.Code.Reveal())
	write(t, path, string(good))
	if got := listTools(scoped, presentNothing); got != strings.Join(projTools, " ") {
		t.Errorf("after the repair: %q", got)
	}
	os.Remove(path)
	if got := listTools(scoped, presentNothing); got != "" {
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
		d := daemonOptions{base: base}.start(t, dir)
		c, _ := openSession(t, d.URL, presentNothing)
		c.awaitTools(allTools...)
		messages, _ := c.listen()
		if got := listTools(c, inHeader(newClaimFor(t, base, dir+"/proj").Code.Reveal())); got != strings.Join(projTools, " ") {
			t.Errorf("scoped: %q", got)
		}
		hear(t, messages, "notifications/tools/list_changed")
	})
	ways.Wait()
}

func endClaim(t *testing.T, how string) {
	dir, base := twoProjects(t), t.TempDir()
	d := daemonOptions{base: base}.start(t, dir)
	store := openStore(t, base)
	claim := newClaimFor(t, base, dir+"/proj")
	c, _ := openSession(t, d.URL, inHeader(claim.Code.Reveal()))
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
	d := daemonOptions{base: base}.start(t, dir)
	connect(t, d.URL).awaitTools(allTools...)
	proj, other := newClaimFor(t, base, dir+"/proj"), newClaimFor(t, base, dir+"/other")
	header := func(c Claim) func(*http.Request) {
		return func(r *http.Request) { ways["in the header"](r, c.Code.Reveal()) }
	}
	born, _ := openSession(t, d.URL, header(proj))
	later, _ := openSession(t, d.URL, presentNothing)
	listTools(later, header(proj))
	moved, _ := openSession(t, d.URL, header(proj))
	listTools(moved, header(other))
	ended, _ := openSession(t, d.URL, header(other))
	free, _ := openSession(t, d.URL, presentNothing)
	restart := func() {
		t.Helper()
		d.stop(t)
		d = daemonOptions{base: base}.start(t, dir)
		for _, c := range []*testClient{born, later, moved, ended, free} {
			c.URL = d.URL
		}
		connect(t, d.URL).awaitTools(allTools...)
	}
	see := func(when string, c *testClient, want string) {
		t.Helper()
		if got := listTools(c, presentNothing); got != want {
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
	openStore(t, base).Revoke(t.Context(), other.Code)
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
		"deleted":    func(log string) { os.Remove(log) },
		"emptied":    func(log string) { write(t, log, "") },
		"of another": func(log string) { write(t, log, `{"key":"0000000000000000"}`+"\n") },
		"spoiled":    func(log string) { raw, _ := os.ReadFile(log); write(t, log, string(raw)+"x\n") },
		"without a key": func(log string) {
			raw, _ := os.ReadFile(log)
			write(t, log, strings.SplitAfterN(string(raw), "\n", 2)[1])
		},
		"a folder":        func(log string) { os.Remove(log); os.Symlink(base, log) },
		"as it was":       func(string) {},
		"a half line on":  func(log string) { raw, _ := os.ReadFile(log); write(t, log, string(raw)+`{"id":"cut o`) },
		"NULs at its end": func(log string) { raw, _ := os.ReadFile(log); write(t, log, string(raw)+strings.Repeat("\x00", 512)) },
	} {
		c, _ := openSession(t, d.URL, presentNothing)
		scoped, _ := openSession(t, d.URL, presentNothing)
		listTools(scoped, header(newClaimFor(t, base, dir+"/other")))
		d.stop(t)
		spoil(base + "/.data/sessions.jsonl")
		restart()
		c.URL, scoped.URL = d.URL, d.URL
		switch name {
		case "as it was", "a half line on", "NULs at its end": // whose answer was never sent
			see("session log "+name, c, strings.Join(allTools, " "))
			see("session log "+name+", a session scoped by it", scoped, "b_x")
		default:
			see("session log "+name, c, "404")
			see("session log "+name+", a session scoped by it", scoped, "404")
		}
	}
}

func TestStampThatCantBeWritten(t *testing.T) {
	t.Parallel()
	dir, base := twoProjects(t), t.TempDir()
	d := daemonOptions{base: base}.start(t, dir)
	c := connect(t, d.URL)
	c.awaitTools(allTools...)
	proj := newClaimFor(t, base, dir+"/proj")
	os.Remove(base + "/.data/sessions.jsonl")
	present := func(r *http.Request) { ways["in the header"](r, proj.Code.Reveal()) }
	if got := listTools(c, present); got != "503" {
		t.Errorf("a stamp without a log: %q", got)
	}
	if a := c.do(c.request(http.MethodDelete, "")); a.Status != 503 {
		t.Errorf("DELETE without a log: %d", a.Status)
	}
	if got := listTools(c, presentNothing); got != strings.Join(allTools, " ") {
		t.Errorf("the session as it was: %q", got)
	}
}

// TestDecide holds every combination of facts against what a decision is for,
// said without decide's own order.
func TestDecide(t *testing.T) {
	// width is how much each decision lets a caller reach.
	width := map[decision]int{allowAll: 2, allowInitialize: 2, allowOwn: 1, allowPresented: 1, denyEnded: 0, denyUnclaimed: 0, denyUnreadable: 0}
	seen := make(map[decision]bool)
	for bits := range 1 << 7 {
		bit := func(n int) bool { return bits>>n&1 == 1 }
		f := accessFacts{session: bit(0), scoped: bit(1), active: bit(2), presents: bit(3), valid: bit(4), unreadable: bit(5), require: bit(6)}
		if f.scoped && !f.session || f.active && !f.scoped || f.valid && !f.presents {
			continue // can't be
		}
		got := decide(f)
		seen[got] = true
		for what, wrong := range map[string]bool{
			"a scoped session gets the whole workspace":                      f.scoped && width[got] == 2,
			"the whole workspace without a claim, where one is asked":        f.require && width[got] == 2,
			"a code that does not hold is passed over, outside of a session": got == allowAll && f.presents && !f.session,
			"more than initialize is refused to who need present nothing":    got == allowInitialize && (!f.presents || f.session),
			"a claim that was not presented":                                 got == allowPresented && !f.valid,
			"a claim of its own that it has not, or that has ended":          got == allowOwn && !f.active,
			"a refusal for a claim that holds":                               got == denyEnded && (f.active || !f.scoped),
			"a claim asked of who has one":                                   got == denyUnclaimed && (f.scoped || f.valid || !f.require),
			"503 for who needs no claim":                                     got == denyUnreadable && !f.scoped && !f.presents,
			"an answer from claims that can't be read":                       f.unreadable && (f.scoped || f.presents) && got != denyUnreadable,
			"503 from claims that can be read":                               got == denyUnreadable && !f.unreadable,
			"a code presented that holds does not count":                     f.valid && !f.unreadable && got != allowPresented,
		} {
			if wrong {
				t.Errorf("%+v: decision %d: %s", f, got, what)
			}
		}
		for what, fail := range map[string]func(*accessFacts){
			"the claims can't be read":   func(f *accessFacts) { f.unreadable = true },
			"its own claim ends":         func(f *accessFacts) { f.active = false },
			"the daemon asks for claims": func(f *accessFacts) { f.require = true },
		} {
			failed := f
			if fail(&failed); width[decide(failed)] > width[got] {
				t.Errorf("%+v: it sees more when %s", f, what)
			}
		}
	}
	if len(seen) != len(width) {
		t.Errorf("decisions met: %v", seen)
	}
}

// TestScopeTable is the table of who sees what, black-box: what a request
// presents, for a session in each state.
func TestScopeTable(t *testing.T) {
	t.Parallel()
	dir, base := twoProjects(t), t.TempDir()
	d := daemonOptions{base: base}.start(t, dir)
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
		{"nothing", presentNothing, ""},
		{"a code in the header", inHeader(p), p},
		{"a code in the URL", inQuery(p), p},
		{"a code as bearer", inAuthorization("Bearer " + p), p},
		{"a code as bearer, the scheme in lower case", inAuthorization("bearer " + p), p},
		{"a code in lower case with a dash", inHeader(strings.ToLower(p[:3] + "-" + p[3:])), p},
		{"a code in the URL in lower case with a dash", inQuery(strings.ToLower(p[:3] + "-" + p[3:])), p},
		{"a code with spaces in it", inHeader(" " + p[:2] + " " + p[2:] + " "), p},
		{"another folder's code", inHeader(o), o},
		{"an unknown code", inHeader(unknown), ""},
		{"an unknown code in the URL", inQuery(unknown), ""},
		{"an unknown code as bearer", inAuthorization("Bearer " + unknown), ""},
		{"an ended code", inHeader(g), ""},
		{"no code but the header", inHeader(""), ""},
		{"a word", inHeader("hello"), ""},
		{"a code and one letter more", inHeader(p + "A"), ""},
		{"a code without its last letter", inHeader(p[:5]), ""},
		{"a code in quotes", inHeader(`"` + p + `"`), ""},
		{"a token as bearer that is no code", inAuthorization("Bearer eyJhbGciOiJIUzI1NiJ9.e30.x"), ""},
		{"a code as a password", inAuthorization("Basic " + p), ""},
		{"a code as authorization without a scheme", inAuthorization(p), ""},
		{"a code in the parameter code", func(r *http.Request) { r.URL.RawQuery = "code=" + p }, ""},
		{"a code in the parameter CLAIM", func(r *http.Request) { r.URL.RawQuery = "CLAIM=" + p }, ""},
		{"a code at /mcp", presentAll(inQuery(p), func(r *http.Request) { r.URL.Path = "/mcp" }), p},
		{"two codes: the header goes before the URL", presentAll(inHeader(p), inQuery(o)), p},
		{"two codes: the header goes before the bearer", presentAll(inHeader(p), inAuthorization("Bearer "+o)), p},
		{"two codes: the URL goes before the bearer", presentAll(inQuery(p), inAuthorization("Bearer "+o)), p},
		{"an unknown code in the header and a valid one in the URL", presentAll(inHeader(unknown), inQuery(p)), ""},
		{"an ended code in the header and a valid one as bearer", presentAll(inHeader(g), inAuthorization("Bearer "+p)), ""},
		{"a word in the header, a valid code as bearer", presentAll(inHeader("*"), inAuthorization("Bearer "+p)), ""},
		{"an empty header, and a valid code in the URL", presentAll(inHeader(""), inQuery(p)), p},
		{"an empty header and an empty URL, a valid code as bearer", presentAll(inHeader(""), inQuery(""), inAuthorization("Bearer "+p)), p},
		{"three codes that are not valid", presentAll(inHeader(g), inQuery(unknown), inAuthorization("Bearer GHJKMN")), ""},
	}
	lists := map[string]string{p: strings.Join(projTools, " "), o: "b_x"}
	everything := strings.Join(allTools, " ")
	states := []struct {
		name    string
		born    func(*http.Request) // what the session presented before
		without string              // what it sees when nothing valid is presented
	}{
		{"a new session", nil, everything},
		{"an unscoped session", presentNothing, everything},
		{"a scoped session", inHeader(p), lists[p]},
		{"a session of another claim", inHeader(o), lists[o]},
		{"a session whose claim has ended", inHeader(g), ""},
	}
	sessions := make(map[string]*testClient)
	for _, state := range states {
		for _, row := range rows {
			if state.born != nil {
				sessions[state.name+row.name], _ = openSession(t, d.URL, state.born)
			}
		}
	}
	openStore(t, base).Revoke(t.Context(), gone.Code)
	for _, state := range states {
		for _, row := range rows {
			want := state.without
			if row.counts != "" {
				want = lists[row.counts]
			}
			c, then := sessions[state.name+row.name], row.present
			if c == nil {
				var a answer
				c, a = openSession(t, d.URL, row.present)
				then = presentNothing
				if text := stringField(a.result(), "instructions"); a.Status != 200 || strings.Contains(text, "- c:") != (want == everything) || !strings.Contains(text, "- ") {
					t.Errorf("%s presents %s: %d, and is told %q", state.name, row.name, a.Status, text)
				}
			}
			if got := listTools(c, then); got != want {
				t.Errorf("%s presents %s: it sees %q, want %q", state.name, row.name, got, want)
			}
			if got := listTools(c, presentNothing); got != want {
				t.Errorf("%s presented %s: it then sees %q, want %q", state.name, row.name, got, want)
			}
		}
	}
	d.hidesCodes(t, p, o, g, unknown)
}

// TestOutOfScopeIsUnknown asks for what is there and out of scope, and for what
// is nowhere, in a session and without one: the answers are the same, byte by byte.
func TestOutOfScopeIsUnknown(t *testing.T) {
	t.Parallel()
	dir, base := twoProjects(t), t.TempDir()
	writeFake(t, dir+"/other/rich.usher", "good tools=tell res=rich")
	writeFake(t, dir+"/other/a.usher", "good tools=x,only") // the bare names are two modules' now
	d := daemonOptions{base: base}.start(t, dir)
	free, _ := openSession(t, d.URL, presentNothing)
	free.awaitTools("b_x", "c_x", "other-a_only", "other-a_x", "proj-a_pid", "proj-a_sleep", "proj-a_x", "rich_tell")
	proj := newClaimFor(t, base, dir+"/proj")
	c, a := openSession(t, d.URL, inHeader(proj.Code.Reveal()))
	if text := stringField(a.result(), "instructions"); text == "" || strings.Contains(text, "rich") || strings.Contains(text, "other") {
		t.Errorf("instructions: %q", text)
	}
	c.awaitTools(projTools...)
	alone := newStateless(t, d.URL)
	type asker func(method, params string) answer
	in := func(c *testClient) asker {
		return func(method, params string) answer {
			return c.post(`{"jsonrpc":"2.0","id":1,"method":"` + method + `","params":` + params + `}`)
		}
	}
	out := func(present func(*http.Request)) asker {
		return func(method, params string) answer { return alone.modern(method, params, present) }
	}
	for revision, ask := range map[string]struct{ scoped, free asker }{
		"in a session":    {in(c), in(free)},
		"without session": {out(inHeader(proj.Code.Reveal())), out(presentNothing)},
	} {
		for _, method := range []string{"tools/list", "prompts/list", "resources/list", "resources/templates/list"} {
			if got := ask.scoped(method, "{}"); got.failure() != "" || strings.Contains(got.Body, "rich") {
				t.Errorf("%s: %s: %s", revision, method, got.Body)
			}
			if got := ask.free(method, "{}"); !strings.Contains(got.Body, "rich") {
				t.Errorf("%s: %s without a claim: %s", revision, method, got.Body)
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
			{"completion/complete", `{"ref":{"type":"ref/resource","uri":"THING"},"argument":{"name":"n","value":""}}`, "rich://many/{n}"},
		} {
			of := func(thing string) string {
				a := ask.scoped(tt.method, strings.ReplaceAll(tt.params, "THING", thing))
				a.Header.Del("X-Request-Id")
				a.Header.Del("Date")
				a.Header.Del("Content-Length")
				return fmt.Sprint(a.Status, a.Header, strings.ReplaceAll(a.Body, thing, "THING"))
			}
			nowhere := "nope_" + tt.out
			if strings.Contains(tt.out, "://") {
				nowhere = "nope://" + tt.out[7:]
			}
			outside, unknown := of(tt.out), of(nowhere)
			if outside != unknown || !strings.Contains(outside, `"error"`) {
				t.Errorf("%s: %s of %s out of scope: %s\nof an unknown one: %s", revision, tt.method, tt.out, outside, unknown)
			}
			if a := ask.free(tt.method, strings.ReplaceAll(tt.params, "THING", tt.out)); tt.out != "a_only" && a.failure() != "" {
				t.Errorf("%s: %s of %s without a claim: %s", revision, tt.method, tt.out, a.Body)
			}
		}
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
	d := daemonOptions{base: base}.start(t, dir)
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
		c, a := openSession(t, d.URL, inHeader("ABCDEF"))
		if got := listTools(c, presentNothing); got != tt.want || a.Status != 200 {
			t.Errorf("a claim for %s: %d %q, want %q", tt.name, a.Status, got, tt.want)
		}
	}
	// usher claim resolves what it is given, so that a link is what it leads to.
	out, errs, code := usher(t, "", "claim", "-json", "-scope", dir+"/alias/../alias", "-base", base)
	var c Claim
	if list, err := parseClaims([]byte("[" + out + "]")); code != 0 || err != nil || list.claims[0].ScopeDir != dir+"/proj" {
		t.Fatalf("usher claim of a link: %v %s%s", err, out, errs)
	} else {
		c = list.claims[0]
	}
	s, _ := openSession(t, d.URL, inHeader(c.Code.Reveal()))
	if got := listTools(s, presentNothing); got != inside {
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
	d := daemonOptions{base: base}.start(t, dir)
	before, _ := openSession(t, d.URL, presentNothing)
	before.awaitTools(allTools...)
	proj := newClaimFor(t, base, dir+"/proj")
	scopedBefore, _ := openSession(t, d.URL, inHeader(proj.Code.Reveal()))
	d.stop(t)
	d = daemonOptions{base: base}.start(t, dir, "-require-claim")
	before.URL, scopedBefore.URL = d.URL, d.URL
	some := strings.Join(projTools, " ")
	if got := listTools(before, presentNothing); got != "400" {
		t.Errorf("an unscoped session from before: %q", got)
	}
	get := before.request(http.MethodGet, "")
	get.Header.Set("Accept", "text/event-stream")
	for _, req := range []*http.Request{get, before.request(http.MethodDelete, "")} {
		if a := before.do(req); a.Status != 400 {
			t.Errorf("its %s: %d", req.Method, a.Status)
		}
	}
	if got := listTools(before, inHeader(proj.Code.Reveal())); got != some {
		t.Errorf("an unscoped session from before that presents a code: %q", got)
	}
	if got := listTools(scopedBefore, presentNothing); got != some {
		t.Errorf("a scoped session from before: %q", got)
	}
	for _, path := range []string{"/.well-known/oauth-protected-resource", "/.well-known/oauth-authorization-server", "/.well-known/oauth-protected-resource/mcp", "/register"} {
		req := before.request(http.MethodGet, "")
		req.URL.Path = path
		if a := before.do(req); a.Status != 404 || a.Header.Get("WWW-Authenticate") != "" {
			t.Errorf("%s: %d %v", path, a.Status, a.Header)
		}
	}
	revoked := newClaimFor(t, base, dir+"/proj")
	openStore(t, base).Revoke(t.Context(), revoked.Code)
	for name, tt := range map[string]struct {
		present func(*http.Request)
		says    string
	}{
		"no code":                      {presentNothing, "a claim code is required"},
		"an empty code":                {presentAll(inHeader(""), inQuery("")), "a claim code is required"},
		"a token that is no code":      {inAuthorization("Bearer x.y.z"), "a claim code is required"},
		"a word":                       {inHeader("hello"), "unknown or has ended"},
		"a code that nobody was given": {inQuery("AAAAAA"), "unknown or has ended"},
		"a revoked code":               {inHeader(revoked.Code.Reveal()), "unknown or has ended"},
	} {
		_, a := openSession(t, d.URL, tt.present)
		modern := newStateless(t, d.URL).modern("tools/list", "", tt.present)
		for revision, a := range map[string]answer{"a new session": a, "a request without a session": modern} {
			if a.Status != 400 || a.Header.Get(sessionHeader) != "" || a.Header.Get("WWW-Authenticate") != "" ||
				!strings.Contains(a.failure(), tt.says) || !strings.Contains(a.failure(), claimHeader) {
				t.Errorf("%s that presents %s: %d %v %s", revision, name, a.Status, a.Header, a.Body)
			}
		}
	}
	if _, a := openSession(t, d.URL, inHeader(proj.Code.Reveal())); a.Status != 200 {
		t.Errorf("a code that holds: %d %s", a.Status, a.Body)
	}
	d.hidesCodes(t, proj.Code.Reveal(), revoked.Code.Reveal(), "AAAAAA")
}

// TestGuessing guesses codes against a clock of its own.
func TestGuessing(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		g, store := testGate(t, data, true)
		good, err := store.Create(t.Context(), "/w/proj", "", time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		moved, err := store.Create(t.Context(), "/w/other", "", time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		_, id := g.Create(protocols[0], 0, principalOf(good))
		// admit presents a code, and gives the status of a refusal and how long it took.
		admit := func(code string, session ...string) (int, time.Duration) {
			start := time.Now()
			r := httptest.NewRequest(http.MethodPost, "/", nil)
			r.Header.Set(claimHeader, code)
			r.Header[sessionHeader] = session
			_, err := g.Admit(r)
			status := http.StatusOK
			if e, ok := errors.AsType[*httpError](err); ok {
				status = e.Status
				if status == http.StatusTooManyRequests && e.Header.Get("Retry-After") == "" {
					t.Error("429 without Retry-After")
				}
			}
			return status, time.Since(start)
		}
		want := func(what string, status int, took time.Duration, wantStatus int, wantTook time.Duration) {
			t.Helper()
			if status != wantStatus || took != wantTook {
				t.Errorf("%s: %d after %v, want %d after %v", what, status, took, wantStatus, wantTook)
			}
		}
		codes := unknownCodes(300)
		for range 3 * guessBudget {
			status, took := admit(codes[0]) // always the same one, as a client does whose claim has ended
			want("one unknown code", status, took, 400, 0)
		}
		for _, code := range codes[1:guessBudget] {
			status, took := admit(code)
			want("a guess below the limit", status, took, 400, 0)
		}
		status, took := admit(codes[guessBudget])
		want("the first turn", status, took, 400, 0)
		status, took = admit(good.Code.Reveal())
		want("a code that holds, in its turn", status, took, 200, turnEvery)
		status, took = admit(good.Code.Reveal(), id)
		want("a session that presents its own code", status, took, 200, 0)
		status, took = admit("", id)
		want("a session that presents none", status, took, 200, 0)
		status, took = admit("hello")
		want("a word", status, took, 400, 0)

		var wg sync.WaitGroup
		results := make(chan string, 400)
		for n, code := range append(codes[100:250:250], good.Code.Reveal(), good.Code.Reveal(), moved.Code.Reveal()) {
			wg.Go(func() {
				<-time.After(time.Duration(n) * time.Microsecond) // one after the other
				status, took := admit(code)
				results <- fmt.Sprint(status, " ", took > turnWait)
			})
		}
		synctest.Wait()
		<-time.After(time.Second / 2)
		status, took = admit(moved.Code.Reveal(), id) // no turn is free
		want("a session that presents another code", status, took, 200, 0)
		if got := g.Current(mustOpen(t, g, id)); got != (principalOf(good)) {
			t.Error("a guess from within a session is free")
		}
		wg.Wait()
		close(results)
		count := make(map[string]int)
		for result := range results {
			count[result]++
		}
		if most := int(turnWait/turnEvery) + 1; count["400 false"]+count["200 false"] > most || count["429 false"] < 153-most-2 || len(count) > 3 {
			t.Errorf("153 at once were answered %v", count)
		}
		<-time.After(guessSpan)
		status, took = admit(codes[299])
		want("a minute later", status, took, 400, 0)
		status, took = admit(moved.Code.Reveal(), id)
		if got := g.Current(mustOpen(t, g, id)); status != 200 || took != 0 || got != (principalOf(moved)) {
			t.Errorf("a session that moves: %d after %v", status, took)
		}
	})
}

// Those who wait with one code share a turn.
func TestGuessersShareATurn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		turns := newGuessTurns()
		for _, code := range unknownCodes(guessBudget) {
			turns.failed(Code(code))
		}
		var wg sync.WaitGroup
		start := time.Now()
		for n := range 50 {
			for _, code := range []Code{"ABCDEF", "GHJKMN", "PQRSTU"} {
				wg.Go(func() {
					<-time.After(time.Duration(n) * time.Microsecond)
					if !turns.await(t.Context(), code, turnWait) {
						t.Error("no turn")
					}
				})
			}
		}
		wg.Wait()
		if took := time.Since(start); took > 3*turnEvery {
			t.Errorf("three codes, 50 times each: %v", took)
		}
	})
}

// testGate is a gate over the claims and sessions of a data folder.
func testGate(t testing.TB, data string, require bool) (*Gate, *ClaimStore) {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	store := openClaims(data, log)
	t.Cleanup(store.Close)
	sessions, err := openSessions(data, log, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	return newGate(store, sessions, require, log), store
}

func mustOpen(t *testing.T, g *Gate, id string) *sessionToken {
	t.Helper()
	token, ok := g.sessions.open(id)
	if !ok {
		t.Fatal("no such session")
	}
	return token
}

// TestSessionLogKeepsScopes opens the session store across restarts and clocks.
func TestSessionLogKeepsScopes(t *testing.T) {
	t.Parallel()
	at := func(created time.Time) Principal {
		return Principal{"ABCDEF", created.UTC().Format(time.RFC3339Nano), "/w/proj"}
	}
	none, ref, undated, old := Principal{}, at(time.Now()), at(time.Time{}), at(time.Date(1600, 1, 2, 3, 4, 5, 6, time.UTC))
	for _, tt := range []struct {
		name  string
		born  Principal     // what the session begins with
		later Principal     // what it moves to
		ahead time.Duration // how far the clock was ahead when it began
		after time.Duration // how much later the store is opened again
		want  Principal
		gone  bool
	}{
		{name: "an unscoped session"},
		{name: "a scoped one", born: ref, want: ref},
		{name: "one whose claim has no date", born: undated, want: undated},
		{name: "one whose claim is older than clocks", born: old, want: old},
		{name: "one that was scoped later", later: ref, want: ref},
		{name: "one that was scoped later, to a claim without a date", later: undated, want: undated},
		{name: "one that moved", born: undated, later: ref, want: ref},
		{name: "one that was scoped later, on its last day", later: ref, after: sessionLife - time.Hour, want: ref},
		{name: "one past its days", later: ref, after: sessionLife, gone: true},
		{name: "one from a clock that was ahead, scoped after it was put right", later: ref, ahead: 60 * 24 * time.Hour, after: sessionLife + time.Hour, want: ref},
	} {
		data, start := t.TempDir(), time.Now()
		now := start.Add(tt.ahead)
		open := func() *Gate {
			t.Helper()
			log := slog.New(slog.DiscardHandler)
			s, err := openSessions(data, log, func() time.Time { return now })
			if err != nil {
				t.Fatal(err)
			}
			return newGate(openClaims(data, log), s, false, log)
		}
		g := open()
		token, id := g.Create(protocols[0], 0, tt.born)
		now = start
		if tt.later != none {
			if _, err := g.present(admission{session: token, principal: g.Current(token)}, tt.later); err != nil {
				t.Fatal(err)
			}
		}
		now = start.Add(tt.after)
		for range 2 { // each start compacts
			g = open()
			token, ok := g.sessions.open(id)
			if ok == tt.gone {
				t.Errorf("%s: it is there: %v", tt.name, ok)
			} else if ok && g.Current(token) != tt.want {
				t.Errorf("%s: it is scoped to %+v", tt.name, g.Current(token).CreatedAt)
			}
		}
	}
}

// TestSessionLogIsCompacted moves a session to and fro: the log keeps its last
// claim, and does not grow with its moves.
func TestSessionLogIsCompacted(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	g, _ := testGate(t, data, false)
	_, id := g.Create(protocols[0], 0, Principal{})
	for n := range 1500 {
		token := mustOpen(t, g, id)
		p := Principal{"ABCDEF", "2026-01-01T00:00:00Z", fmt.Sprint("/w/", n)}
		if _, err := g.present(admission{session: token, principal: g.Current(token)}, p); err != nil {
			t.Fatal(err)
		}
	}
	if info, err := os.Stat(data + "/sessions.jsonl"); err != nil || info.Size() > 2*sessionLogSlack {
		t.Errorf("the log has %d bytes, %v", info.Size(), err)
	}
	ended, endedID := g.Create(protocols[0], 0, Principal{})
	p := Principal{"ABCDEF", "2026-01-01T00:00:00Z", "/w/proj"}
	if _, err := g.present(admission{session: ended}, p); err != nil {
		t.Fatal(err)
	}
	if err := g.End(ended); err != nil {
		t.Fatal(err)
	}
	if g.Current(ended) != p {
		t.Error("what is under way in a session that has ended reaches more than the session did")
	}
	if err := g.End(ended); !errors.Is(err, errNoSession) {
		t.Errorf("a second end: %v", err)
	}
	again, _ := testGate(t, data, false)
	if got := again.Current(mustOpen(t, again, id)).ScopeDir; got != "/w/1499" {
		t.Errorf("after a restart it is scoped to %q", got)
	}
	if _, ok := again.sessions.open(endedID); ok {
		t.Error("a session that has ended goes on after a restart")
	}
}

// TestRecordsAreBounded has a claim end more sessions than are remembered: it can
// end no other, and another claim can, also after a restart.
func TestRecordsAreBounded(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	g, _ := testGate(t, data, false)
	own, other := Principal{Code: "ABCDEF"}, Principal{Code: "GHJKMN"}
	end := func(g *Gate, p Principal) error {
		token, _ := g.Create(protocols[0], 0, p)
		return g.End(token)
	}
	if err := end(g, own); err != nil {
		t.Fatal(err)
	}
	token, _ := g.Create(protocols[0], 0, own)
	for i := range maxRecordsOf - 1 {
		g.sessions.records[strconv.Itoa(i)] = sessionRecord{ID: strconv.Itoa(i), Issued: time.Now(), Ended: true, Claim: own}
	}
	if err := g.sessions.compact(); err != nil {
		t.Fatal(err)
	}
	again, _ := testGate(t, data, false)
	for name, g := range map[string]*Gate{"before": g, "after": again} {
		if err := g.End(token); err != errManyRecords {
			t.Errorf("%s a restart: one too many: %v", name, err)
		}
		if err := errors.Join(end(g, other), end(g, Principal{})); err != nil {
			t.Errorf("%s a restart: others: %v", name, err)
		}
	}
}

// TestClaimsWithoutADate holds that createdAt may be missing, and what happens
// where it can't be written.
func TestClaimsWithoutADate(t *testing.T) {
	t.Parallel()
	dir, base := twoProjects(t), t.TempDir()
	d := daemonOptions{base: base}.start(t, dir)
	connect(t, d.URL).awaitTools(allTools...)
	for _, tt := range []struct{ created, born, later string }{
		{``, "a_pid a_sleep a_x", "a_pid a_sleep a_x"},
		{`"createdAt":0,`, "a_pid a_sleep a_x", "a_pid a_sleep a_x"},
		{`"createdAt":"0001-01-01T00:00:00Z",`, "a_pid a_sleep a_x", "a_pid a_sleep a_x"},
		{`"createdAt":"9999-12-31T23:59:59.999999999Z",`, "a_pid a_sleep a_x", "a_pid a_sleep a_x"},
		{`"createdAt":253402300800000,`, "a_pid a_sleep a_x", "a_pid a_sleep a_x"},
	} {
		write(t, base+"/.data/claims.json", `[{"code":"ABCDEF",`+tt.created+`"scopeDir":"`+dir+`/proj","expiresAt":"2099-01-01T00:00:00Z"}]`)
		born, _ := openSession(t, d.URL, inHeader("ABCDEF"))
		if got := listTools(born, presentNothing); got != tt.born {
			t.Errorf("%s: a session that began with it sees %q", tt.created, got)
		}
		later, _ := openSession(t, d.URL, presentNothing)
		if got := listTools(later, inHeader("ABCDEF")); got != tt.later {
			t.Errorf("%s: a session that presents it later sees %q", tt.created, got)
		}
	}
	log, _ := os.ReadFile(base + "/.data/sessions.jsonl")
	if bytes.Contains(log, []byte("null\n")) {
		t.Errorf("the session log has lines that say nothing: %s", log)
	}
}

// TestModernScopeTable is the table of who sees what for requests that stand
// alone, before and after the daemon was killed.
func TestModernScopeTable(t *testing.T) {
	t.Parallel()
	dir, base := twoProjects(t), t.TempDir()
	d := daemonOptions{base: base, ownProcess: true}.start(t, dir)
	c := newStateless(t, d.URL)
	store := openStore(t, base)
	codes := make(map[string]string)
	for name, folder := range map[string]string{"proj": "/proj", "other": "/other", "revoked": "/projX", "expired": "/projX", "revoked unused": "/projX", "expired unused": "/projX"} {
		codes[name] = newClaimFor(t, base, dir+folder).Code.Reveal()
	}
	for _, name := range []string{"revoked", "expired"} {
		if got := c.sees(inHeader(codes[name])); got != "c_x" {
			t.Fatalf("%s, before: %q", name, got)
		}
	}
	for _, name := range []string{"revoked", "revoked unused"} {
		if _, err := store.Revoke(t.Context(), Code(codes[name])); err != nil {
			t.Fatal(err)
		}
	}
	expire(t, base, Code(codes["expired"]), Code(codes["expired unused"]))
	p, o, g, x := codes["proj"], codes["other"], codes["revoked"], codes["expired"]
	everything, some := strings.Join(allTools, " "), strings.Join(projTools, " ")
	rows := []struct {
		name    string
		present func(*http.Request)
		want    string
	}{
		{"none", presentNothing, everything},
		{"a code in the header", inHeader(p), some},
		{"a code in the URL", inQuery(p), some},
		{"a code as bearer", inAuthorization("Bearer " + p), some},
		{"a code as bearer, the scheme in lower case", inAuthorization("bearer " + p), some},
		{"a code in lower case with a dash", inHeader(strings.ToLower(p[:3] + "-" + p[3:])), some},
		{"a code at /mcp", presentAll(inQuery(p), func(r *http.Request) { r.URL.Path = "/mcp" }), some},
		{"another folder's", inHeader(o), "b_x"},
		{"an unknown one", inHeader("ABCDEF"), "400"},
		{"an unknown one as bearer", inAuthorization("Bearer ABCDEF"), "400"},
		{"a malformed one", inHeader(p + "A"), "400"},
		{"a token as bearer that is no code", inAuthorization("Bearer eyJhbGciOiJIUzI1NiJ9.e30.x"), everything},
		{"a code as a password", inAuthorization("Basic " + p), everything},
		{"one revoked before it scoped anything", inHeader(codes["revoked unused"]), "400"},
		{"one expired before it scoped anything", inHeader(codes["expired unused"]), "400"},
		{"a revoked one", inHeader(g), "400"},
		{"a revoked one in the URL", inQuery(g), "400"},
		{"a revoked one as bearer", inAuthorization("Bearer " + g), "400"},
		{"an expired one", inHeader(x), "400"},
		{"a revoked one beside an unknown one", presentAll(inHeader("ABCDEF"), inQuery(g)), "400"},
		{"an unknown one beside a revoked one", presentAll(inHeader(g), inQuery("ABCDEF")), "400"},
		{"two that have ended", presentAll(inHeader(g), inQuery(x)), "400"},
		{"a revoked one before a valid one", presentAll(inHeader(g), inQuery(p)), "400"},
		{"a valid one before an expired one", presentAll(inHeader(p), inQuery(x)), some},
		{"two valid ones: the header goes before the URL", presentAll(inHeader(p), inQuery(o)), some},
		{"two valid ones: the URL goes before the bearer", presentAll(inQuery(o), inAuthorization("Bearer "+p)), "b_x"},
		{"none again", presentNothing, everything},
	}
	look := func(when string) {
		t.Helper()
		for _, row := range rows {
			if got := c.sees(row.present); got != row.want {
				t.Errorf("%s: who presents %s sees %q, want %q", when, row.name, got, row.want)
			}
			a := c.modern("tools/call", `{"name":"c_x"}`, row.present)
			switch refused := strings.Contains(a.failure(), "unknown or has ended"); {
			case refused != (row.want == "400"), refused != (a.Status == 400 && strings.Contains(a.failure(), claimHeader)), (a.failure() == "") != (row.want == everything):
				t.Errorf("%s: who presents %s and calls c_x gets %d %s", when, row.name, a.Status, a.Body)
			}
		}
	}
	look("first")
	look("again")
	d.cmd.Process.Kill()
	d.stop(t)
	d = daemonOptions{base: base, ownProcess: true}.start(t, dir)
	c.URL = d.URL
	look("after the daemon was killed")
	d.stop(t)
	d = daemonOptions{base: base, ownProcess: true}.start(t, dir, "-require-claim")
	c.URL = d.URL
	for i := range rows {
		if rows[i].want == everything {
			rows[i].want = "400"
		}
	}
	for _, row := range rows {
		if got := c.sees(row.present); got != row.want {
			t.Errorf("where claims are required, who presents %s sees %q, want %q", row.name, got, row.want)
		}
	}
	d.hidesCodes(t, p, o, g, x)
}
