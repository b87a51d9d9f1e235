// Claims over HTTP: what each session sees, row by row of the table in SECURITY.md, and what
// happens to a session while its claim, the files and the daemon come and go.

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// What lists of tools contain: in all of twoProjects, in its folders, or what a
// request gets that is refused.
const (
	seesAll   = "a_pid a_sleep a_x b_x c_x"
	seesProj  = "a_pid a_sleep a_x"
	seesOther = "b_x"
	seesNone  = ""
)

// projects is a daemon over twoProjects, which has looked at its modules.
type projects struct {
	*testDaemon
	t       *testing.T
	options daemonOptions
	dir     string
}

func startProjects(t *testing.T, flags ...string) *projects {
	t.Helper()
	return daemonOptions{}.startProjects(t, flags...)
}

func (o daemonOptions) startProjects(t *testing.T, flags ...string) *projects {
	t.Helper()
	o.base = t.TempDir()
	p := &projects{t: t, options: o, dir: twoProjects(t)}
	p.testDaemon = o.start(t, p.dir, flags...)
	p.awaitReady(t)
	return p
}

// restart stops the daemon and starts it again; clients of it go on.
func (p *projects) restart(clients []*testClient, flags ...string) {
	p.t.Helper()
	p.stop(p.t)
	p.testDaemon = p.options.start(p.t, p.dir, flags...)
	p.awaitReady(p.t)
	for _, c := range clients {
		c.URL = p.URL
	}
}

// code makes a claim for a folder, and returns its code.
func (p *projects) code(folder string) string {
	p.t.Helper()
	return newClaimFor(p.t, p.Base, p.dir+folder).Code.Reveal()
}

func (p *projects) revoke(code string) {
	p.t.Helper()
	revoke(p.t, p.Base, Code(code))
}

// session begins a session by a request that present changes.
func (p *projects) session(present func(*http.Request)) *testClient {
	p.t.Helper()
	c, _ := openSession(p.t, p.URL, present)
	return c
}

// claimsFile returns the path of the claims.
func (p *projects) claimsFile() string { return p.Base + "/.data/claims.json" }

// putClaims replaces the claims at once, as usher does.
func (p *projects) putClaims(text string) {
	p.t.Helper()
	write(p.t, p.claimsFile()+".new", text)
	must(p.t, os.Rename(p.claimsFile()+".new", p.claimsFile()))
}

// claimRecord returns the text of a claim for a folder.
func (p *projects) claimRecord(code, folder string, created any, life time.Duration) string {
	return string(marshal(map[string]any{
		"code":      code,
		"scopeDir":  p.dir + folder,
		"createdAt": created,
		"expiresAt": time.Now().Add(life).UTC(),
	}))
}

// checkSees checks what a request of a session that present changes lists.
func checkSees(t *testing.T, what string, c *testClient, present func(*http.Request), want string) {
	t.Helper()
	check(t, what, listTools(c, present), want)
}

func TestUnreadableClaims(t *testing.T) {
	long(t)
	p := startProjects(t)
	code := p.code("/proj")
	scoped := p.session(inHeader(code))
	write(t, p.claimsFile(), "")
	checkSees(t, "a scoped session", scoped, presentNothing, "503")
	_, a := openSession(t, p.URL, inHeader(code))
	check(t, "status of a new session with a code", a.Status, 503)
	checkOmits(t, "its refusal", a.Body, p.Base)
	text, _ := os.ReadFile(p.claimsFile())
	check(t, "the file", string(text), "")
	checkContains(t, "the log", p.Log.String(), "claims.json", "move it away or restore it")
	p.hidesCodes(t, code)
	os.Remove(p.claimsFile())
	checkSees(t, "without the file", scoped, presentNothing, seesNone)
}

// TestDecide checks every combination of facts against the purpose of a decision,
// stated without decide's own order.
func TestDecide(t *testing.T) {
	// width is how much each decision lets a caller reach.
	width := map[decision]int{
		allowAll: 2, allowInitialize: 2, allowOwn: 1, allowPresented: 1,
		denyEnded: 0, denyUnclaimed: 0, denyUnreadable: 0,
	}
	seen := make(map[decision]bool)
	for bits := range 1 << 7 {
		bit := func(n int) bool { return bits>>n&1 == 1 }
		f := accessFacts{
			session:    bit(0),
			scoped:     bit(1),
			active:     bit(2),
			presents:   bit(3),
			valid:      bit(4),
			unreadable: bit(5),
			require:    bit(6),
		}
		if f.scoped && !f.session || f.active && !f.scoped || f.valid && !f.presents {
			continue // can't be
		}
		got := decide(f)
		seen[got] = true
		needsClaims := f.scoped || f.presents
		for what, wrong := range map[string]bool{
			"a scoped session gets everything":            f.scoped && width[got] == 2,
			"a required claim is missing":                 f.require && width[got] == 2,
			"outside of a session, a bad code is ignored": got == allowAll && f.presents && !f.session,
			"only initialize, without a bad code":         got == allowInitialize && (!f.presents || f.session),
			"a claim that was not presented":              got == allowPresented && !f.valid,
			"a claim of its own that is not active":       got == allowOwn && !f.active,
			"an active claim counts as ended":             got == denyEnded && (f.active || !f.scoped),
			"a second claim is required":                  got == denyUnclaimed && (f.scoped || f.valid || !f.require),
			"503 without need of a claim":                 got == denyUnreadable && !needsClaims,
			"unreadable claims are used":                  f.unreadable && needsClaims && got != denyUnreadable,
			"503 though the claims can be read":           got == denyUnreadable && !f.unreadable,
			"a valid code does not count":                 f.valid && !f.unreadable && got != allowPresented,
		} {
			if wrong {
				t.Errorf("%+v: decision %d: %s", f, got, what)
			}
		}
		for what, fail := range map[string]func(*accessFacts){
			"the claims can't be read":    func(f *accessFacts) { f.unreadable = true },
			"its own claim ends":          func(f *accessFacts) { f.active = false },
			"the daemon requires a claim": func(f *accessFacts) { f.require = true },
		} {
			failed := f
			fail(&failed)
			if width[decide(failed)] > width[got] {
				t.Errorf("%+v: it sees more if %s", f, what)
			}
		}
	}
	check(t, "the number of decisions met", len(seen), len(width))
}

// presentation is a way to present codes.
type presentation struct {
	name    string
	present func(*http.Request)
	counts  string // the code that counts; "" for none
	refused bool   // without a session: it presents what is no valid code
}

// presentations returns the ways to present the valid codes p and o, the ended
// codes g and x, and unknown ones.
func presentations(p, o, g, x string) []presentation {
	const unknown = "ABCDEF"
	dashed := strings.ToLower(p[:3] + "-" + p[3:])
	url := func(raw string) func(*http.Request) { return func(r *http.Request) { r.URL.RawQuery = raw } }
	at := func(path string) func(*http.Request) { return func(r *http.Request) { r.URL.Path = path } }
	bearer := func(code string) func(*http.Request) { return inAuthorization("Bearer " + code) }
	return []presentation{
		{"nothing", presentNothing, "", false},
		{"a code in the header", inHeader(p), p, false},
		{"a code in the URL", inQuery(p), p, false},
		{"a code as bearer", bearer(p), p, false},
		{"a code in lower case with a dash", inHeader(dashed), p, false},
		{"another folder's code", inHeader(o), o, false},
		{"an unknown code", inHeader(unknown), "", true},
		{"a revoked code", inHeader(g), "", true},
		{"an expired code", inHeader(x), "", true},
		{"a word", inHeader("hello"), "", true},
		{"a token as bearer that is no code", bearer("eyJhbGciOiJIUzI1NiJ9.e30.x"), "", false},
		{"a code in the parameter code", url("code=" + p), "", false},
		{"a code at /mcp", presentAll(inQuery(p), at("/mcp")), p, false},
		{"two codes: the header goes before the URL", presentAll(inHeader(p), inQuery(o)), p, false},
		{"two codes: the URL goes before the bearer", presentAll(inQuery(p), bearer(o)), p, false},
		{"an unknown code in the header, a valid one in the URL", presentAll(inHeader(unknown), inQuery(p)), "", true},
		{"an ended code in the header, a valid one as bearer", presentAll(inHeader(g), bearer(p)), "", true},
		{"an empty header and URL, a valid code as bearer", presentAll(inHeader(""), inQuery(""), bearer(p)), p, false},
		{"three codes that are not valid", presentAll(inHeader(g), inQuery(unknown), bearer("GHJKMN")), "", true},
		{"two headers, the first one empty", addHeader(claimHeader, "", p), "", true},
		{"two headers", addHeader(claimHeader, p, p), "", true},
		{"a bearer token with a typing error", bearer(p[:5] + "0"), "", true},
		{"a bearer token of seven characters", bearer(p + "2"), "", true},
		{"an empty bearer token", bearer(""), "", false},
		{"a query that can't be parsed", url("claim=" + p + ";x=1"), "", true},
		{"a query with a bad escape", url("claim=" + p + "%zz"), "", true},
		{"a parameter in another case", url("Claim=" + p), "", true},
		{"a parameter in brackets", url("claim[]=" + p), "", true},
		{"a repeated parameter", url("claim=&claim=" + p), "", true},
		{"two spellings", url("claim=" + p + "&CLAIM=" + p), "", true},
		{"an escaped parameter", url("cl%61im=" + p), p, false},
	}
}

// addHeader adds several headers of one name.
func addHeader(name string, values ...string) func(*http.Request) {
	return func(r *http.Request) {
		for _, value := range values {
			r.Header.Add(name, value)
		}
	}
}

// TestScopeTable presents codes in each way: for a new session, in one of another claim and, also if claims are
// required, without sessions. TestModel checks sessions in each state.
func TestScopeTable(t *testing.T) {
	long(t)
	d := startProjects(t)
	alone := newStateless(t, d.URL)
	p, o, g, x := d.code("/proj"), d.code("/other"), d.code("/projX"), d.code("/projX")
	check(t, "the claim to be revoked", alone.sees(inHeader(g)), "c_x") // and the other was never used
	check(t, "another claim by HTTP+SSE", listTools(connectSSE(t, d.URL, inHeader(p)).testClient, inHeader(o)), "400")
	d.revoke(g)
	expire(t, d.Base, Code(x))
	lists := map[string]string{p: seesProj, o: seesOther}
	for _, row := range presentations(p, o, g, x) {
		t.Run(row.name, func(t *testing.T) {
			c, a := openSession(t, d.URL, row.present)
			want := cmp.Or(lists[row.counts], seesAll)
			about := stringField(a.result(), "instructions")
			check(t, "the instructions name c", strings.Contains(about, "- c:"), want == seesAll)
			checkContains(t, "instructions", about, "- ")
			checkSees(t, "it sees", c, presentNothing, want)
			modern := alone.modern("tools/call", `{"name":"c_x"}`, row.present)
			if row.refused {
				checkRefused(t, modern, "unknown or has ended")
			} else {
				check(t, "without a session it sees", alone.sees(row.present), want)
				check(t, "it calls c_x", modern.failure() == "", want == seesAll)
			}
			scoped := d.session(inHeader(o))
			want = cmp.Or(lists[row.counts], seesOther)
			checkSees(t, "a scoped session sees", scoped, row.present, want)
			checkSees(t, "it then sees", scoped, presentNothing, want)
		})
	}
	d.restart([]*testClient{alone}, "-require-claim")
	for _, row := range presentations(p, o, g, x) {
		t.Run("with claims required/"+row.name, func(t *testing.T) {
			if row.counts != "" {
				check(t, "it sees", alone.sees(row.present), lists[row.counts])
				return
			}
			says := "a claim code is required"
			if row.refused {
				says = "unknown or has ended"
			}
			_, a := openSession(t, d.URL, row.present)
			checkRefused(t, a, says)
			checkRefused(t, alone.modern("tools/list", "", row.present), says)
		})
	}
	d.hidesCodes(t, p, o, g, x, "ABCDEF")
}

// checkRefused checks the refusal of a code, which must not make clients look for a login.
func checkRefused(t *testing.T, a answer, says string) {
	t.Helper()
	check(t, "status of a refusal", a.Status, 400)
	checkContains(t, "a refusal", a.failure(), says, claimHeader)
	check(t, "its session", a.Header.Get(sessionHeader), "")
	check(t, "its challenge", a.Header.Get("WWW-Authenticate"), "")
}

// TestOutOfScopeIsUnknown asks for what is out of scope, and for what does not
// exist, in a session and without one: the answers are equal, byte by byte.
func TestOutOfScopeIsUnknown(t *testing.T) {
	long(t)
	dir, base := twoProjects(t), t.TempDir()
	writeFake(t, dir+"/other/rich.usher", "good tools=tell res=rich")
	writeFake(t, dir+"/other/a.usher", "good tools=x,only") // so that the bare names are ambiguous
	d := daemonOptions{base: base}.start(t, dir)
	free, _ := openSession(t, d.URL, presentNothing)
	free.awaitTools("b_x", "c_x", "other-a_only", "other-a_x", "proj-a_pid", "proj-a_sleep", "proj-a_x", "rich_tell")
	present := inHeader(newClaimFor(t, base, dir+"/proj").Code.Reveal())
	c, a := openSession(t, d.URL, present)
	checkContains(t, "instructions", stringField(a.result(), "instructions"), "- a:")
	checkOmits(t, "instructions", stringField(a.result(), "instructions"), "rich", "other")
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
		"in a session":      {in(c), in(free)},
		"without a session": {out(present), out(presentNothing)},
	} {
		for _, method := range []string{"tools/list", "prompts/list", "resources/list", "resources/templates/list"} {
			t.Run(revision+"/"+method, func(t *testing.T) {
				scoped := ask.scoped(method, "{}")
				check(t, "failure", scoped.failure(), "")
				checkOmits(t, "with a claim", scoped.Body, "rich")
				checkContains(t, "without a claim", ask.free(method, "{}").Body, "rich")
			})
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
			{"completion/complete", `{"ref":{"type":"ref/prompt","name":"THING"},"argument":{"name":"x","value":""}}`,
				"rich_say"},
			{"completion/complete", `{"ref":{"type":"ref/resource","uri":"THING"},"argument":{"name":"n","value":""}}`,
				"rich://many/{n}"},
		} {
			t.Run(revision+"/"+tt.method+" "+tt.out, func(t *testing.T) {
				answerFor := func(thing string) string {
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
				outside := answerFor(tt.out)
				check(t, "the answer for what does not exist", answerFor(nowhere), outside)
				checkContains(t, "the answer", outside, `"error"`)
				if tt.out != "a_only" { // which is no name without a claim either
					a := ask.free(tt.method, strings.ReplaceAll(tt.params, "THING", tt.out))
					check(t, "failure without a claim", a.failure(), "")
				}
			})
		}
	}
}

// TestWhatIsInAScope asks for modules near the edge of a scope.
func TestWhatIsInAScope(t *testing.T) {
	long(t)
	p := startProjects(t)
	for _, link := range [][2]string{
		{"/other/b.usher", "/proj/stolen.usher"},       // from outside into the scope
		{"/proj/deep/er/d.usher", "/other/lent.usher"}, // out of the scope
		{"/proj", "/alias"},                            // the scope by another name
		{"/other", "/proj/more"},                       // a folder, which is not searched
	} {
		must(t, os.Symlink(p.dir+link[0], p.dir+link[1]))
	}
	writeFake(t, p.dir+"/proj/deep/er/d.usher", "good tools=x")
	writeFake(t, p.dir+"/Proj/e.usher", "good tools=x")
	const all = "a_pid a_sleep a_x b_x c_x d_x e_x lent_x stolen_x"
	const inside = "a_pid a_sleep a_x d_x lent_x"
	p.session(presentNothing).awaitTools(strings.Fields(all)...)
	for _, tt := range []struct{ name, scope, want string }{
		{"a folder", "/proj", inside},
		{"a folder with a slash behind it", "/proj/", inside},
		{"a folder whose name begins as another's", "/projX", "c_x"},
		{"the beginning of two names", "/pro", ""},
		{"a folder in another case", "/PROJ", ""},
		{"a folder below", "/proj/deep", "d_x lent_x"},
		{"a module's file itself", "/other/b.usher", "b_x stolen_x"},
		{"a module's link into another folder", "/proj/stolen.usher", ""},
		{"a folder by way of another", "/proj/../other", ""},
		{"a folder by the name of its link", "/alias", ""},
		{"a linked folder in a folder", "/proj/more", ""},
		{"a folder that is not there", "/nope", ""},
		{"all", "", all},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p.putClaims("[" + p.claimRecord("ABCDEF", tt.scope, time.Now().UTC(), time.Hour) + "]")
			checkSees(t, "it sees", p.session(inHeader("ABCDEF")), presentNothing, tt.want)
		})
	}
	// usher claim resolves its folder, so that a link counts as its target.
	out, errs, _ := usher(t, "", "claim", "-json", "-scope", p.dir+"/alias/../alias", "-base", p.Base)
	list, err := parseClaims([]byte("[" + out + "]"))
	if err != nil {
		t.Fatal(err, errs)
	}
	check(t, "the folder of a claim", list.claims[0].ScopeDir, p.dir+"/proj")
	linked := p.session(inHeader(list.claims[0].Code.Reveal()))
	checkSees(t, "a claim for a linked folder", linked, presentNothing, inside)
}

// unknownCodes returns n codes that, with overwhelming likelihood, were never
// issued.
func unknownCodes(n int) []string {
	var codes []string
	for i := range n {
		codes = append(codes, string([]byte{codeAlphabet[i%31], codeAlphabet[i/31], '2', '2', 'Z', 'Z'}))
	}
	return codes
}

// guessOutcome is how a presented code was answered: its status and the wait.
type guessOutcome struct {
	Status int
	Took   time.Duration
}

// guess presents a code to a gate, in a session if one is given.
func guess(t *testing.T, g *Gate, code string, session ...string) guessOutcome {
	t.Helper()
	return guessOn(t, t.Context(), g, code, session...)
}

// guessOn presents a code in a request with a context, which may be a connection's.
func guessOn(t *testing.T, ctx context.Context, g *Gate, code string, session ...string) guessOutcome {
	t.Helper()
	start := time.Now()
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/", nil)
	r.Header.Set(claimHeader, code)
	r.Header[sessionHeader] = session
	_, err := g.Admit(r)
	status := http.StatusOK
	if e, ok := errors.AsType[*fault](err); ok {
		status = e.Status
		if status == http.StatusTooManyRequests && e.Header.Get("Retry-After") == "" {
			t.Error("429 without Retry-After")
		}
	}
	return guessOutcome{status, time.Since(start)}
}

// TestGuessing guesses codes against a clock of its own.
func TestGuessing(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		g, store := testGate(t, data, true)
		good, err := store.Create(t.Context(), "/w/proj", "", time.Hour)
		must(t, err)
		moved, err := store.Create(t.Context(), "/w/other", "", time.Hour)
		must(t, err)
		owner, err := store.Lookup(good.Code)
		must(t, err)
		id := g.Create(protocols[0], 0, admission{principal: owner}).session.name
		atOnce := func(status int) guessOutcome { return guessOutcome{status, 0} }
		codes := unknownCodes(300)
		for range 3 * guessBudget { // as a client does whose claim has ended
			check(t, "the same unknown code again", guess(t, g, codes[0]), atOnce(400))
		}
		for _, code := range codes[1:guessBudget] {
			check(t, "a guess below the limit", guess(t, g, code), atOnce(400))
		}
		check(t, "the first turn", guess(t, g, codes[guessBudget]), atOnce(400))
		check(t, "a valid code, in its turn", guess(t, g, good.Code.Reveal()), guessOutcome{200, turnEvery})
		check(t, "a session that presents its own code", guess(t, g, good.Code.Reveal(), id), atOnce(200))
		check(t, "a session that presents none", guess(t, g, "", id), atOnce(200))
		check(t, "a word", guess(t, g, "hello"), atOnce(400))

		counts := make(map[int]int)
		var mu sync.Mutex
		var guesses sync.WaitGroup
		crowd := append(codes[100:250:250], good.Code.Reveal(), good.Code.Reveal(), moved.Code.Reveal())
		for n, code := range crowd {
			guesses.Go(func() {
				<-time.After(time.Duration(n) * time.Microsecond) // one after the other
				got := guess(t, g, code)
				check(t, "a guess waits too long", got.Took > turnWait, false)
				mu.Lock()
				defer mu.Unlock()
				counts[got.Status]++
			})
		}
		synctest.Wait()
		<-time.After(time.Second / 2)
		check(t, "another code, in a session, with no turn free", guess(t, g, moved.Code.Reveal(), id), atOnce(200))
		check(t, "the session has not moved", claimOf(t, g, id), good.claimID)
		guesses.Wait()
		turns := int(turnWait/turnEvery) + 1
		if served := counts[400] + counts[200]; served > turns {
			t.Errorf("%d of a crowd of %d were looked up, at most %d", served, len(crowd), turns)
		}
		if refused := counts[429]; refused < len(crowd)-turns-2 {
			t.Errorf("%d of a crowd of %d were refused, %d turns", refused, len(crowd), turns)
		}
		<-time.After(guessSpan)
		check(t, "a guess a minute later", guess(t, g, codes[299]), atOnce(400))
		check(t, "a session that moves", guess(t, g, moved.Code.Reveal(), id), atOnce(200))
		check(t, "where it moved", claimOf(t, g, id), moved.claimID)
	})
}

// TestGuessersShareATurn has requests with one code wait together: they share a
// turn.
func TestGuessersShareATurn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		turns := newGuessTurns()
		check(t, "a valid code", turns.await(t.Context(), "VALIDX", 0) && !turns.done("VALIDX", false), true)
		var waiting sync.WaitGroup
		start := time.Now()
		var atOnce atomic.Int64
		for _, code := range unknownCodes(2 * guessBudget) { // all at once: none has been looked up
			waiting.Go(func() {
				if turns.await(t.Context(), Code(code), 0) {
					atOnce.Add(1)
				}
			})
		}
		waiting.Wait()
		check(t, "codes of a burst that are looked up at once", atOnce.Load(), guessBudget+1)
		for n := range 50 {
			for _, code := range []Code{"ABCDEF", "GHJKMN", "PQRSTU"} {
				waiting.Go(func() {
					<-time.After(time.Duration(n) * time.Microsecond)
					check(t, "a turn", turns.await(t.Context(), code, turnWait), true)
				})
			}
		}
		waiting.Wait()
		check(t, "three codes wait for more than three turns", time.Since(start) > 3*turnEvery, false)
	})
}

// testGate returns a gate over the claims and the session key of a data folder.
func testGate(t testing.TB, data string, require bool) (*Gate, *ClaimStore) {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	store := openClaims(data, log)
	t.Cleanup(store.Close)
	key, err := readSessionKey(data, log)
	must(t, err)
	return newGate(store, key, require, log), store
}

// claimOf returns the claim of the session with an id.
func claimOf(t *testing.T, g *Gate, id string) claimID {
	t.Helper()
	_, claim, err := g.sessions.find(id, false)
	must(t, err)
	return claim
}

// TestSessionIDSaysWhatItIs opens session ids in later daemons, whose key and clock differ.
func TestSessionIDSaysWhatItIs(t *testing.T) {
	t.Parallel()
	at := func(created time.Time) claimID {
		return claimID{"ABCDEF", created.UTC().Format(time.RFC3339Nano), "/w/proj"}
	}
	const hour = time.Hour
	keep := func(string) {}
	for _, tt := range []struct {
		name  string
		claim claimID           // what the session begins with
		after time.Duration     // how much later the next daemon starts
		spoil func(path string) // changes the key's file
		gone  bool
	}{
		{"an unscoped session", claimID{}, 0, keep, false},
		{"a scoped one", at(time.Now()), 0, keep, false},
		{"one whose claim has no date", at(time.Time{}), 0, keep, false},
		{"one whose claim is older than clocks", at(time.Date(1600, 1, 2, 3, 4, 5, 6, time.UTC)), 0, keep, false},
		{"one on its last day", at(time.Now()), sessionLife - hour, keep, false},
		{"one past its days", at(time.Now()), sessionLife, keep, true},
		{"one whose key is missing", claimID{}, 0, func(path string) { os.Remove(path) }, true},
		{"one whose key is cut off", claimID{}, 0, func(path string) { os.Truncate(path, 20) }, true},
		{"one whose key is empty", claimID{}, 0, func(path string) { os.Truncate(path, 0) }, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			data := t.TempDir()
			id := ""
			synctest.Test(t, func(t *testing.T) {
				g, _ := testGate(t, data, false)
				p := &Principal{Claim: Claim{claimID: tt.claim}, ctx: t.Context()}
				id = g.Create(protocols[0], capRoots, admission{principal: p}).session.name
			})
			tt.spoil(data + "/session.key")
			synctest.Test(t, func(t *testing.T) { // whose clock begins at the same time
				<-time.After(tt.after)
				g, _ := testGate(t, data, false)
				s, claim, err := g.sessions.find(id, false)
				check(t, "it is gone", errors.Is(err, errNoSession), tt.gone)
				if !tt.gone {
					check(t, "its claim", claim, tt.claim)
					check(t, "its capabilities", s.Caps, capRoots)
				}
				_, _, err = g.sessions.find(id, true)
				check(t, "in a URL it is unknown", errors.Is(err, errNoSession), true)
			})
		})
	}
}

// TestSessionAfterARestart restarts the daemon: each session is again what its initialize made
// it, so a code that was presented later counts once it is presented again.
func TestSessionAfterARestart(t *testing.T) {
	long(t)
	p := daemonOptions{ownProcess: true}.startProjects(t)
	code, other := p.code("/proj"), p.code("/other")
	born, moved, free := p.session(inHeader(code)), p.session(inHeader(other)), p.session(presentNothing)
	ended := p.session(inHeader(other))
	ended.end()
	checkSees(t, "the ended session", ended, presentNothing, "404")
	checkSees(t, "the session that moves", moved, inHeader(code), seesProj)
	checkSees(t, "the session that becomes scoped", free, inHeader(code), seesProj)
	checkSees(t, "afterwards", free, presentNothing, seesProj)
	p.cmd.Process.Kill()
	p.restart([]*testClient{born, moved, free, ended})
	messages, _ := born.listen()
	hear(t, messages, changedTools) // the client may have seen other lists before
	checkSees(t, "the session that was born scoped", born, presentNothing, seesProj)
	checkSees(t, "the session that moved", moved, presentNothing, seesOther)
	checkSees(t, "the session that became scoped", free, presentNothing, seesAll)
	checkSees(t, "with its code again", free, inHeader(code), seesProj)
	checkSees(t, "the ended session, within its claim", ended, presentNothing, seesOther)
	p.restart([]*testClient{born, free}, "-require-claim")
	checkSees(t, "with claims required, the scoped session", born, presentNothing, seesProj)
	checkSees(t, "with claims required, the unscoped session", free, presentNothing, "400")
	checkSees(t, "with its code", free, inHeader(code), seesProj)
}

// TestConnectionWithOneCode has a guesser at work: a connection that has presented nothing
// but one valid code needs no turn for it, until it presents another one.
func TestConnectionWithOneCode(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		g, store := testGate(t, data, true)
		good, err := store.Create(t.Context(), "/w/proj", "", time.Hour)
		must(t, err)
		code := good.Code.Reveal()
		ctx := rememberCodes(t.Context())
		present := func(code string) guessOutcome { return guessOn(t, ctx, g, code) }
		check(t, "a valid code", present(code), guessOutcome{200, 0})
		codes := unknownCodes(3 * guessBudget)
		for _, unknown := range codes[:2*guessBudget] {
			go guess(t, g, unknown)
		}
		synctest.Wait()
		check(t, "the same code on the same connection", present(code), guessOutcome{200, 0})
		check(t, "on another connection", guess(t, g, code).Took > 0, true)
		check(t, "an unknown code there", present(codes[2*guessBudget]).Took > 0, true)
		for _, unknown := range codes[2*guessBudget+1:] {
			go guess(t, g, unknown)
		}
		synctest.Wait()
		check(t, "the valid code again waits", present(code).Took > 0, true)
		pass(time.Minute)
	})
}
