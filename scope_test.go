// Tests of scope.go: what each way to present a code shows, and attempts to see more.

package main

import (
	"cmp"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"
)

// twoProjects writes a workspace of two projects with a module each, and a third folder
// whose name begins with the first's.
func twoProjects(t *testing.T) string {
	t.Helper()
	dir := tempDir(t)
	writeFakes(
		t,
		dir,
		"proj/a: good tools=x,sleep,pid",
		"other/b: good tools=x",
		"projX/c: good tools=x",
	)
	return dir
}

func (o daemonOptions) startProjects(t *testing.T, flags ...string) *projects {
	t.Helper()
	o.base = t.TempDir()
	p := &projects{t: t, options: o, dir: twoProjects(t)}
	p.testDaemon = o.startReady(t, p.dir, flags...)
	return p
}

func startProjects(t *testing.T, flags ...string) *projects {
	t.Helper()
	return daemonOptions{}.startProjects(t, flags...)
}

// code makes a claim for a folder, and returns its code.
func (p *projects) code(folder string) string {
	p.t.Helper()
	return newCode(p.t, p.Base, p.dir+folder)
}

// session begins a session by a request that present changes.
func (p *projects) session(present ...presenter) *testClient {
	p.t.Helper()
	c, _ := openSession(p.t, p.URL, present...)
	return c
}

// modernTools returns the tools that a client without a session sees by a request that present changes.
func modernTools(c *testClient, present ...presenter) string {
	return c.Modern("tools/list", "", present...).ToolNames()
}

// checkSees checks what a request of a session that present changes lists.
func checkSees(t *testing.T, what string, c *testClient, want string, present ...presenter) {
	t.Helper()
	check(t, what, listTools(c, present...), want)
}

// While the claims can't be read, nothing that depends on one is begun, and the file stays
// as it is.
func TestUnreadableClaims(t *testing.T) {
	long(t)
	p := startProjects(t)
	code := p.code("/proj")
	scoped := p.session(inHeader(code))
	write(t, p.claimsFile(), "")
	checkSees(t, "a scoped session", scoped, "503")
	_, a := openSession(t, p.URL, inHeader(code))
	check(t, "status of a new session with a code", a.Status, 503)
	checkOmits(t, "its refusal", a.Body, p.Base)
	text, _ := os.ReadFile(p.claimsFile())
	check(t, "the file", string(text), "")
	checkContains(t, "the log", p.Log.String(), "claims.json", "move it away or restore it")
	p.hidesCodes(t, code)
	os.Remove(p.claimsFile())
	checkSees(t, "without the file", scoped, seesNone)
}

// A request that was admitted before its claim ended reaches nothing afterwards.
func TestScopeEndsWithClaim(t *testing.T) {
	dir, store := newStore(t)
	p, err := store.Lookup(mustCreate(t, store).Code)
	must(t, err)
	before := readFile(t, dir+"/claims.json")
	scope, err := p.scope()
	check(t, "an active claim has its scope", scope == scopeDir("/w/p"), true)
	check(t, "its error", err, nil)
	_, err = store.Revoke(t.Context(), p.Code)
	must(t, err)
	wantActive(t, store, p.Code, false)
	scope, err = p.scope()
	check(t, "an ended claim has no scope", scope == Scope{}, true)
	check(t, "its error", err, errEnded)
	writeClaimsFile(t, dir, before)
	wantActive(t, store, p.Code, true)
	check(t, "the request, once the claim has returned", p.Check(), errEnded)
}

// Every combination of facts has the decision that its purpose asks for, and no failure
// lets a caller see more.
func TestDecisionsNeverWiden(t *testing.T) {
	own, other := principal("own"), principal("other")
	// width is how much each principal lets a caller reach.
	width := map[*Principal]int{everyone: 2, own: 1, other: 1, strangers: 0, nil: 0}
	seen := make(map[string]bool)
	for bits := range 1 << 9 {
		bit := func(n int) bool { return bits>>n&1 == 1 }
		f := accessFacts{
			session:   bit(0),
			fixed:     bit(1),
			scoped:    bit(2),
			presents:  bit(3),
			require:   bit(4),
			own:       []*Principal{nil, own}[bits>>5&1],
			presented: []*Principal{nil, own, other, other}[bits>>6&3],
		}
		if bit(8) {
			f.unreadable = errClaimsUnreadable
		}
		if (f.scoped || f.fixed) && !f.session || f.own != nil && !f.scoped ||
			f.presented != nil && !f.presents || f.presented == own && f.own == nil ||
			bit(8) && !f.scoped && !f.presents {
			continue // can't be
		}
		got, badCode, err := decide(f)
		seen[fmt.Sprint(width[got], badCode, err != nil)] = true
		for what, wrong := range map[string]bool{
			"there is not exactly one decision": (got == nil) == (err == nil),
			"everything, in spite of a claim or the need of one": got == everyone &&
				(f.scoped || f.require),
			"outside of a session, a bad code is ignored": got == everyone &&
				f.presents && !f.session && badCode != errBadCode,
			"an ended claim counts for somebody": got != nil && width[got] == 0 && got != strangers,
			"a claim of somebody else":           width[got] == 1 && got != f.own && got != f.presented,
			"an active claim counts as ended": got == strangers &&
				(f.own != nil || !f.scoped),
			"unreadable claims are used": bit(8) && got != nil,
			"a valid code does not count": f.presented != nil && !bit(8) &&
				got != f.presented && err != errKeepsClaim,
			"an HTTP+SSE session changes its claim": f.fixed && f.presented != nil &&
				got != nil && got != f.own,
			"a session can't change its claim": err == errKeepsClaim && !f.fixed,
		} {
			if wrong {
				t.Errorf("%+v: %p, %v: %s", f, got, err, what)
			}
		}
		for what, fail := range map[string]func(*accessFacts){
			"the claims can't be read":    func(f *accessFacts) { f.unreadable = errClaimsUnreadable },
			"its own claim ends":          func(f *accessFacts) { f.own = nil },
			"the daemon requires a claim": func(f *accessFacts) { f.require = true },
		} {
			failed := f
			fail(&failed)
			if now, _, _ := decide(failed); width[now] > width[got] {
				t.Errorf("%+v: it sees more if %s", f, what)
			}
		}
	}
	check(t, "the number of decisions met", len(seen), 5)
}

// presentation is a way to present codes.
type presentation struct {
	name    string
	present presenter
	counts  string // the code that counts; "" for none
	refused bool   // without a session: it presents what is no valid code
}

// presentations returns the ways to present the valid codes p and o, the ended
// codes g and x, and unknown ones.
func presentations(p, o, g, x string) []presentation {
	const unknown = "ABCDEF"
	dashed := strings.ToLower(p[:3] + "-" + p[3:])
	url := func(raw string) presenter {
		return func(r *http.Request) { r.URL.RawQuery = raw }
	}
	at := func(path string) presenter {
		return func(r *http.Request) { r.URL.Path = path }
	}
	bearer := func(code string) presenter { return setHeader("Authorization", "Bearer "+code) }
	return []presentation{
		{"nothing", presentAll(), "", false},
		{"a code in the header", inHeader(p), p, false},
		{"a code in the URL", inQuery(p), p, false},
		{"a code as bearer", bearer(p), p, false},
		{"a code in lower case with a dash", inHeader(dashed), p, false},
		{"another folder's code", inHeader(o), o, false},
		{"an unknown code", inHeader(unknown), "", true},
		{"a revoked code", inHeader(g), "", true},
		{"an expired code", inHeader(x), "", true},
		{"a word", inHeader("hello"), "", true},
		{"12 characters as bearer", bearer(strings.Repeat("P", 12)), "", true},
		{"13 characters as bearer", bearer(strings.Repeat("P", 13)), "", false},
		{"a token as bearer that is no code", bearer("eyJhbGciOiJIUzI1NiJ9.e30.x"), "", false},
		{"a code at /mcp", presentAll(inQuery(p), at("/mcp")), p, false},
		{"two codes: the header goes before the URL",
			presentAll(inHeader(p), inQuery(o)), p, false},
		{"two codes: the URL goes before the bearer", presentAll(inQuery(p), bearer(o)),
			p, false},
		{"an unknown code in the header, a valid one in the URL",
			presentAll(inHeader(unknown), inQuery(p)), "", true},
		{"an empty header and URL, a valid code as bearer",
			presentAll(inHeader(""), inQuery(""), bearer(p)), p, false},
		{"three codes that are not valid",
			presentAll(inHeader(g), inQuery(unknown), bearer("GHJKMN")), "", true},
		{"two headers", setHeader(claimHeader, p, p), "", true},
		{"two parameters", url("claim=" + p + "&claim=" + p), "", true},
		{"a bearer token with a typing error", bearer(p[:5] + "0"), "", true},
		{"a query that can't be parsed", url("claim=" + p + ";x=1"), "", true},
		{"a query with a bad escape", url("claim=" + p + "%zz"), "", true},
		{"another parameter with a bad escape", url("x=%zz"), "", true},
		{"a semicolon", url("a=1;b=2"), "", true},
		{"an escaped name and a bad escape", url("%63laim=" + p + "%zz"), "", true},
		{"an escaped name and a semicolon", url("?%63laim=" + p + ";x=1"), "", true},
		{"the name as a value", url("x=%43laim"), "", true},
		{
			"a slip in the URL, a valid code as bearer",
			presentAll(url("x=%zz"), bearer(p)),
			"",
			true,
		},
		{
			"a slip in the URL, a valid code in the header",
			presentAll(url("x=%zz"), inHeader(p)),
			p,
			false,
		},
		{"a tab after Bearer", setHeader("Authorization", "Bearer\t"+p), p, false},
		{"spaces after Bearer", setHeader("Authorization", "bearer  \t "+p), p, false},
		{"a colon after Bearer", setHeader("Authorization", "Bearer: "+p), "", true},
		{"no space after Bearer", setHeader("Authorization", "bearer"+p), p, false},
		{"a bearer token beside another header",
			setHeader("Authorization", "Basic eDp5", "Bearer "+p), "", true},
		{"two bearer tokens", setHeader("Authorization", "Bearer "+p, "Bearer "+p), "", true},
		{"an empty header beside a bearer token",
			setHeader("Authorization", "", "Bearer eyJhbGciOiJIUzI1NiJ9.e30.x"), "", true},
		{"headers joined to one", setHeader("Authorization", "Bearer "+p+", Basic eDp5"), "", true},
		{
			"two headers without a bearer token",
			setHeader("Authorization", "Basic eDp5", "Basic eDp6"),
			"",
			false,
		},
		{"a bearer token in wide letters", bearer("ＰＰＰＰＰＰ"), "", true},
		{"an empty bearer token", setHeader("Authorization", "Bearer"), "", false},
		{"an empty header beside a code", setHeader(claimHeader, "", p), "", true},
		{"a parameter in another case", url("Claim=" + p), "", true},
		{"a parameter in brackets", url("claim[]=" + p), "", true},
		{"an escaped parameter", url("cl%61im=" + p), p, false},
	}
}

// checkRefused checks the refusal of a code, which must not make clients look for a login.
func checkRefused(t *testing.T, a answer, says string) {
	t.Helper()
	check(t, "status of a refusal", a.Status, 400)
	checkContains(t, "a refusal", a.Failure(), says, claimHeader)
	check(t, "its session", a.Header.Get(sessionHeader), "")
	check(t, "its challenge", a.Header.Get("WWW-Authenticate"), "")
}

// restart stops the daemon and starts it again; clients of it go on.
func (p *projects) restart(flags string, clients ...*testClient) {
	p.t.Helper()
	p.stop(p.t)
	p.testDaemon = p.options.startReady(p.t, p.dir, strings.Fields(flags)...)
	for _, c := range clients {
		c.URL = p.URL
	}
}

// Each way to present a code counts as the table says: for a new session, in one of another
// claim and, also if claims are required, without sessions. TestModel checks sessions
// in each state.
func TestScopeTable(t *testing.T) {
	long(t)
	d := startProjects(t)
	alone := newClient(t, d.URL)
	const p, o, g, x = "PPPPPP", "QQQQQQ", "GGGGGG", "XXXXXX"
	made := time.Now().UTC()
	record := func(code, folder string, life time.Duration) string {
		return d.claimRecord(code, folder, made, life)
	}
	good := "[" + record(p, "/proj", time.Hour) + "," + record(o, "/other", time.Hour) + ","
	d.putClaims(good + record(g, "/projX", time.Hour) + "]")
	check(
		t,
		"the claim to be revoked",
		modernTools(alone, inHeader(g)),
		"c_x",
	) // and the other was never used
	check(t, "another claim by HTTP+SSE",
		listTools(connectSSE(t, d.URL, inHeader(p)).Client, inHeader(o)), "400")
	d.putClaims(good + record(x, "/projX", -time.Second) + "]")
	seen := map[string]string{p: seesProj, o: seesOther}
	for _, row := range presentations(p, o, g, x) {
		t.Run(row.name, func(t *testing.T) {
			c, a := openSession(t, d.URL, row.present)
			want := cmp.Or(seen[row.counts], seesAll)
			about := stringField(a.Result(), "instructions")
			check(t, "the instructions name c", strings.Contains(about, "- c:"),
				want == seesAll)
			checkContains(t, "instructions", about, "- ")
			checkSees(t, "it sees", c, want)
			modern := alone.Modern("tools/call", `{"name":"c_x"}`, row.present)
			if row.refused {
				checkRefused(t, modern, "unknown or has ended")
			} else {
				check(t, "without a session it sees", modernTools(alone, row.present), want)
				check(t, "it calls c_x", modern.Failure() == "", want == seesAll)
			}
			scoped := d.session(inHeader(o))
			want = cmp.Or(seen[row.counts], seesOther)
			checkSees(t, "a scoped session sees", scoped, want, row.present)
			checkSees(t, "it then sees", scoped, want)
		})
	}
	d.restart("-require-claim", alone)
	for _, row := range presentations(p, o, g, x) {
		t.Run("with claims required/"+row.name, func(t *testing.T) {
			if row.counts != "" {
				check(t, "it sees", modernTools(alone, row.present), seen[row.counts])
				return
			}
			says := "a claim code is required"
			if row.refused {
				says = "unknown or has ended"
			}
			_, a := openSession(t, d.URL, row.present)
			checkRefused(t, a, says)
			checkRefused(t, alone.Modern("tools/list", "", row.present), says)
		})
	}
	d.hidesCodes(t, p, o, g, x, "ABCDEF")
}

// lists are the methods that list what a scope has.
var lists = []string{"tools/list", "prompts/list", "resources/list", "resources/templates/list"}

// What is out of scope gets the same answer, byte by byte, as what does not exist, in a
// session and without one.
func TestOutOfScopeIsUnknown(t *testing.T) {
	long(t)
	p := startProjects(t)
	writeFakes(t, p.dir, "other/rich: good tools=tell res=rich",
		"other/a: good tools=x") // so that the bare name is ambiguous
	free := p.session()
	free.AwaitTools("b_x", "c_x", "other-a_x", "proj-a_pid", "proj-a_sleep", "proj-a_x",
		"rich_tell")
	present := inHeader(p.code("/proj"))
	c, a := openSession(t, p.URL, present)
	checkContains(t, "instructions", stringField(a.Result(), "instructions"), "- a:")
	checkOmits(t, "instructions", stringField(a.Result(), "instructions"), "rich", "other")
	c.AwaitTools(projTools...)
	alone := newClient(t, p.URL)
	type asker func(method, params string) answer
	in := func(c *testClient) asker {
		return func(method, params string) answer { return c.Post(rpcText(method, params)) }
	}
	out := func(present ...presenter) asker {
		return func(method, params string) answer { return alone.Modern(method, params, present...) }
	}
	for revision, ask := range map[string]struct{ scoped, free asker }{
		"in a session":      {in(c), in(free)},
		"without a session": {out(present), out()},
	} {
		for _, method := range lists {
			t.Run(revision+"/"+method, func(t *testing.T) {
				scoped := ask.scoped(method, "{}")
				check(t, "failure", scoped.Failure(), "")
				checkOmits(t, "with a claim", scoped.Body, "rich")
				checkContains(t, "without a claim", ask.free(method, "{}").Body, "rich")
			})
		}
		for _, tt := range []struct{ method, params, out string }{
			{"tools/call", `{"name":"THING"}`, "b_x"},
			{"tools/call", `{"name":"THING"}`, "rich_tell"},
			{"tools/call", `{"name":"THING"}`, "other-a_x"},
			{"tools/call", `{"name":"THING"}`, "proj-a_x"}, // its name in another view
			{"tools/call", `{"name":"THING","_meta":{"scope":"/","claim":"ABCDEF"}}`, "b_x"},
			{"prompts/get", `{"name":"THING"}`, "rich_say"},
			{"resources/read", `{"uri":"THING"}`, "rich://one"},
			{"resources/read", `{"uri":"THING"}`, "rich://many/3"},
			{"completion/complete",
				`{"ref":{"type":"ref/prompt","name":"THING"},"argument":{"name":"x","value":""}}`,
				"rich_say"},
			{"completion/complete",
				`{"ref":{"type":"ref/resource","uri":"THING"},"argument":{"name":"n","value":""}}`,
				"rich://many/{n}"},
		} {
			t.Run(revision+"/"+tt.method+" "+tt.out, func(t *testing.T) {
				answerFor := func(thing string) string {
					a := ask.scoped(tt.method, strings.ReplaceAll(tt.params, "THING", thing))
					a.Header.Del("X-Request-Id")
					a.Header.Del("Date")
					a.Header.Del("Content-Length")
					return fmt.Sprint(a.Status, a.Header,
						strings.ReplaceAll(a.Body, thing, "THING"))
				}
				nowhere := "nope_" + tt.out
				if strings.Contains(tt.out, "://") {
					nowhere = "nope://" + tt.out[7:]
				}
				outside := answerFor(tt.out)
				check(t, "the answer for what does not exist", answerFor(nowhere), outside)
				checkContains(t, "the answer", outside, `"error"`)
				a := ask.free(tt.method, strings.ReplaceAll(tt.params, "THING", tt.out))
				check(t, "failure without a claim", a.Failure(), "")
			})
		}
	}
}

// A module is in scope if the real path of its file is the scope's folder or below it.
func TestScopeIsByRealPath(t *testing.T) {
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
	writeFakes(t, p.dir, "proj/deep/er/d: good tools=x", "Proj/e: good tools=x")
	const all = "a_pid a_sleep a_x b_x c_x d_x e_x lent_x stolen_x"
	const inside = "a_pid a_sleep a_x d_x lent_x"
	p.session().AwaitTools(strings.Fields(all)...)
	for _, tt := range []struct{ name, scope, want string }{
		{"a folder", "/proj", inside},
		{"a folder whose name begins as another's", "/projX", "c_x"},
		{"the beginning of two names", "/pro", ""},
		{"a folder in another case", "/PROJ", ""},
		{"a folder below", "/proj/deep", "d_x lent_x"},
		{"a module's file itself", "/other/b.usher", "b_x stolen_x"},
		{"a module's link into another folder", "/proj/stolen.usher", ""},
		{"a folder by the name of its link", "/alias", ""},
		{"a linked folder in a folder", "/proj/more", ""},
		{"all", "", all},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p.putClaims("[" +
				p.claimRecord("ABCDEF", tt.scope, time.Now().UTC(), time.Hour) + "]")
			checkSees(t, "it sees", p.session(inHeader("ABCDEF")), tt.want)
		})
	}
	// usher claim resolves its folder, so that a link counts as its target.
	out, errs, _ := usher(t, "claim", "-json", "-scope", p.dir+"/alias/../alias",
		"-base", p.Base)
	list, err := parseClaims([]byte("[" + out + "]"))
	if err != nil {
		t.Fatal(err, errs)
	}
	check(t, "the folder of a claim", list.claims[0].ScopeDir, p.dir+"/proj")
	linked := p.session(inHeader(list.claims[0].Code.Reveal()))
	checkSees(t, "a claim for a linked folder", linked, inside)
}

// A scoped session shows no more, whatever else its requests present.
func TestScopeNeverWidens(t *testing.T) {
	long(t)
	p := startProjects(t)
	code := p.code("/proj")
	c := p.session(inHeader(code))
	attack := func(name string, present presenter, want string) {
		t.Run(name, func(t *testing.T) {
			checkSees(t, "it sees", c, want, present)
			checkSees(t, "it then sees", c, seesProj)
		})
	}
	fullwidth := strings.Map(func(r rune) rune { return r - 'A' + 'Ａ' }, "ABCDEF")
	for name, present := range map[string]presenter{
		"two headers with unknown codes":  setHeader(claimHeader, "ABCDEF", "GHJKMN"),
		"a code in fullwidth letters":     setHeader(claimHeader, fullwidth),
		"a code with a soft hyphen":       setHeader(claimHeader, code[:3]+"\u00ad"+code[3:]),
		"a scope in a header of its own":  setHeader("Mcp-Claim-Scope-Dir", p.dir),
		"another version of the protocol": setHeader(protocolHeader, "2025-03-26"),
	} {
		attack(name, present, seesProj)
	}
	for name, present := range map[string]presenter{
		"a proxy's word": setHeader("X-Forwarded-For", "127.0.0.1"),
		"no session":     func(r *http.Request) { r.Header.Del(sessionHeader) },
		"an empty one":   setHeader(sessionHeader, ""),
	} {
		attack(name, present, "400")
	}
	attack("a session in the query alone", func(r *http.Request) {
		r.URL.RawQuery = "sessionId=" + r.Header.Get(sessionHeader)
		r.Header.Del(sessionHeader)
	}, "404")
	p.hidesCodes(t, code, "ABCDEF", "GHJKMN")
}

// The code comes from the first of three places that is not empty, and no slip counts as no code.
func FuzzPresentedCode(f *testing.F) {
	f.Fuzz(func(t *testing.T, header, query, authorization string) {
		r := &http.Request{URL: &url.URL{RawQuery: query}}
		r.Header = http.Header{claimHeader: {header}, "Authorization": {authorization}}
		code, presents := presentedCode(r)
		inURL, slip := claimInQuery(query)
		lower := strings.TrimSpace(strings.ToLower(authorization))
		token, isBearer := strings.CutPrefix(lower, "bearer")
		token = strings.TrimSpace(token)
		several := strings.Contains(authorization, ",") &&
			regexp.MustCompile(`(?i)(^|,)[\pZ\s\v\x{85}]*bearer`).MatchString(authorization)
		text := ""
		switch {
		case header != "":
			text = header
		case slip:
			text = "a slip"
		case inURL != "":
			text = inURL
		case several:
			text = "a slip"
		case isBearer && len([]rune(token)) <= maxBearerCode:
			text = token
		}
		want, _ := parseCode(text)
		if code != want || presents != (text != "") {
			t.Fatalf("%q %q %q: %q, %v; want %q", header, query, authorization,
				code.Reveal(), presents, want.Reveal())
		}
	})
}

// claimInQuery returns the parameter "claim" of a query, or says that the query is a slip: it can't
// be parsed, or contains the name in another way.
func claimInQuery(query string) (value string, slip bool) {
	own, similar, mentions := 0, 0, false
	for part := range strings.SplitSeq(query, "&") {
		name, text, _ := strings.Cut(part, "=")
		name, errName := url.QueryUnescape(name)
		text, errText := url.QueryUnescape(text)
		if errName != nil || errText != nil || strings.Contains(part, ";") {
			return "", true
		}
		lower := strings.ToLower(name)
		mentions = mentions || strings.Contains(lower+"="+strings.ToLower(text), "claim")
		if strings.Contains(lower, "claim") {
			similar++
		}
		if name == "claim" {
			own++
			value = text
		}
	}
	isGood := own == 1 && similar == 1
	return value, mentions && !isGood
}

// Every row of the table "Who sees what" in SECURITY.md has a test. Each row is a session, and what
// its request presents.
func TestScopeIndex(t *testing.T) {
	_, table, _ := strings.Cut(readFile(t, "SECURITY.md"), "| session | presents |")
	table, _, _ = strings.Cut(table, "\n\n")
	var rows []string
	for _, line := range strings.Split(table, "\n")[2:] {
		cells := strings.Split(line, " | ")
		rows = append(rows, strings.TrimPrefix(cells[0], "| ")+": "+cells[1])
	}
	rows = append(rows, "HTTP+SSE: another valid code", "claims.json can't be read")
	checkIndex(t, rows, map[string]string{
		"new, or none (MCP 2026-07-28): a valid code":                 "TestScopeTable",
		"new (`initialize`, or HTTP+SSE): no code, or an invalid one": "TestScopeTable",
		"unscoped: a valid code":                                      "TestStreamsEndWithClaim",
		"unscoped: no valid code":                                     "TestRestartKeepsSessions",
		"scoped: no valid code":                                       "TestScopeNeverWidens",
		"scoped, its claim active or ended: another valid code":       "TestScopeTable",
		"scoped, its claim ended: no valid code":                      "TestEndedSessionStaysEnded",
		"none (MCP 2026-07-28, or the page): no code":                 "TestScopeTable",
		"none: an invalid code":                                       "TestScopeTable",
		"HTTP+SSE: another valid code":                                "TestScopeTable",
		"claims.json can't be read":                                   "TestUnreadableClaims",
	})
}

// What lists of tools contain: in all of twoProjects, in its folders, or what a
// request gets that is refused.
const (
	seesAll   = "a_pid a_sleep a_x b_x c_x"
	seesProj  = "a_pid a_sleep a_x"
	seesOther = "b_x"
	seesNone  = ""
)

var (
	allTools  = strings.Fields(seesAll)
	projTools = strings.Fields(seesProj)
)

// projects is a daemon over twoProjects, which has looked at its modules.
type projects struct {
	*testDaemon
	t       *testing.T
	options daemonOptions
	dir     string
}

func (p *projects) revoke(code string) {
	p.t.Helper()
	revoke(p.t, p.Base, Code(code))
}
