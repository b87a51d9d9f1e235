// Attacks: every way that we could think of to make a scoped session see more than its claim
// grants, or continue after its claim has ended.

package main

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

const base64Letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"

// turned returns a session id with a letter changed by some bits.
func turned(id string, at, bits int) string {
	b := []byte(id)
	b[at] = base64Letters[strings.IndexByte(base64Letters, b[at])^bits]
	return string(b)
}

func setHeader(name string, values ...string) func(*http.Request) {
	return func(r *http.Request) { r.Header[http.CanonicalHeaderKey(name)] = values }
}

// TestAttacks presents what was never issued, in a scoped session, which is
// unchanged after each attempt.
func TestAttacks(t *testing.T) {
	long(t)
	p := startProjects(t)
	code := p.code("/proj")
	c := p.session(inHeader(code))
	attack := func(name string, present func(*http.Request), want string) {
		t.Run(name, func(t *testing.T) {
			checkSees(t, "it sees", c, present, want)
			checkSees(t, "it then sees", c, presentNothing, seesProj)
		})
	}
	fullwidth := strings.Map(func(r rune) rune { return r - 'A' + 'Ａ' }, "ABCDEF")
	for name, present := range map[string]func(*http.Request){
		"a star":                          setHeader(claimHeader, "*"),
		"the folder for a code":           setHeader(claimHeader, "/"),
		"two headers with unknown codes":  setHeader(claimHeader, "ABCDEF", "GHJKMN"),
		"two codes in one header":         setHeader(claimHeader, "ABCDEF, "+code),
		"a code in fullwidth letters":     setHeader(claimHeader, fullwidth),
		"a code with a soft hyphen":       setHeader(claimHeader, code[:3]+"\u00ad"+code[3:]),
		"a scope in a header of its own":  setHeader("Mcp-Claim-Scope-Dir", p.dir),
		"another version of the protocol": setHeader(protocolHeader, "2025-03-26"),
	} {
		attack(name, present, seesProj)
	}
	for name, present := range map[string]func(*http.Request){
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

// TestForgedSessions presents session ids that this daemon has not issued, or
// that have ended.
func TestForgedSessions(t *testing.T) {
	long(t)
	p := startProjects(t)
	c := p.session(inHeader(p.code("/proj")))
	id := c.Session
	foreign, _ := openSession(t, startDaemon(t, p.dir).URL, presentNothing)
	stranger := foreign.Session
	deleted := p.session(presentNothing)
	p.stop(t)
	gate, _ := testGate(t, p.Base+"/.data", false)
	old := newOrigin(protocols[0], 0, claimID{})
	old.Issued = old.Issued.Add(-sessionLife)
	expired := gate.sessions.seal(old)
	p.restart([]*testClient{c})
	deleted.URL = p.URL
	deleted.end()
	spare := id + "A"
	if len(id)%4 != 0 {
		spare = turned(id, len(id)-1, 1)
	}
	for name, forged := range map[string][]string{
		"made up":                         {strings.Repeat("A", 100)},
		"another daemon's":                {stranger},
		"one past its days":               {expired},
		"one that was ended":              {deleted.Session},
		"another daemon's before its own": {stranger, id},
		"twice in one header":             {id + ", " + id},
		"with a space in it":              {id[:10] + " " + id[10:]},
		"cut to an unscoped one's length": {id[:len(stranger)]},
		"with another spare bit":          {spare},
	} {
		t.Run(name, func(t *testing.T) {
			checkSees(t, "it sees", c, setHeader(sessionHeader, forged...), "404")
		})
	}
	for i := range id {
		checkSees(t, fmt.Sprint("with letter ", i, " changed"), c, setHeader(sessionHeader, turned(id, i, 4)), "404")
	}
	checkSees(t, "the first of two counts", c, setHeader(sessionHeader, id, stranger), seesProj)
}

// TestEndedSessionStaysEnded tries to bring a session back whose claim has ended.
// Each row changes the claims after the row before.
func TestEndedSessionStaysEnded(t *testing.T) {
	long(t)
	p := startProjects(t)
	created := time.Now().Add(-time.Minute).UTC().Round(time.Millisecond)
	claim := func(code, folder string, created time.Time, life time.Duration) string {
		return "[" + p.claimRecord(code, folder, created, life) + "]"
	}
	const life = time.Hour
	good := claim("ABCDEF", "/proj", created, life)
	undated := `[{"code":"ABCDEF","scopeDir":"` + p.dir + `/proj","expiresAt":"2099-01-01T00:00:00Z"}]`
	p.putClaims(good)
	c := p.session(inHeader("ABCDEF"))
	for _, tt := range []struct{ name, text, want string }{
		{"its claim", good, seesProj},
		{"no claims", "[]", seesNone},
		{"its claim again, as a backup puts it back", good, seesProj},
		{"its code for another folder", claim("ABCDEF", "", created, life), seesNone},
		{"its code for another, later folder", claim("ABCDEF", "/other", created.Add(time.Second), life), seesNone},
		{"its code, made a millisecond later", claim("ABCDEF", "/proj", created.Add(time.Millisecond), life), seesNone},
		{"its code, the folder with a slash behind it", claim("ABCDEF", "/proj/", created, life), seesNone},
		{"its code, made at no time", undated, seesNone},
		{"its code in lower case", claim("abcdef", "/proj", created, life), "503"},
		{"another code", claim("GHJKMN", "/proj", created, life), seesNone},
		{"its claim, with a longer life", claim("ABCDEF", "/proj", created, 2*life), seesProj},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p.putClaims(tt.text)
			checkSees(t, "it sees", c, presentNothing, tt.want)
			a := c.call("a_x", "")
			check(t, "it calls a_x", a.failure() == "", tt.want == seesProj)
			check(t, "Retry-After of 503", a.Header.Get("Retry-After") != "", tt.want == "503")
		})
	}
}

// TestStreamsAtTheEnd follows the streams of a session from its first claim to the claim's expiry and beyond.
func TestStreamsAtTheEnd(t *testing.T) {
	long(t)
	p := startProjects(t)
	claim := newClaimFor(t, p.Base, p.dir+"/proj")
	code := claim.Code.Reveal()
	c := p.session(presentNothing)
	c.awaitTools(allTools...)
	first, _ := c.listen()
	second, _ := c.listen()
	checkSees(t, "with a claim", c, inHeader(code), seesProj)
	hear(t, second, changedTools)
	for n, events := range []<-chan event{first, second} { // they end, as the session has a claim now
		check(t, fmt.Sprint("messages on stream ", n+1), len(remainingEvents(t, events)), 0)
	}
	c.awaitTools("a_pid", "a_sleep", "a_x")
	third, _ := c.listen()
	writeFake(t, p.dir+"/proj/new.usher", "good tools=x")
	hear(t, third, changedTools)
	c.awaitTools("a_pid", "a_sleep", "a_x", "new_x")
	p.putClaims("[" + p.claimRecord(code, "/proj", claim.CreatedAt, time.Second) + "]")
	hear(t, third, changedTools)
	check(t, "messages on the stream of the ended claim", len(remainingEvents(t, third)), 0)
	// From here on it hears nothing, whatever happens in the workspace.
	free := p.session(presentNothing)
	free.tools()
	control, _ := free.listen()
	writeFake(t, p.dir+"/proj/newer.usher", "good tools=x")
	writeFake(t, p.dir+"/other/newer.usher", "good tools=x")
	hear(t, control, changedTools)
	checkEnded(t, c)
	last, _ := c.listen()
	free.call("a_x", "")
	c.end() // which ends the stream
	check(t, "messages on the last stream", len(remainingEvents(t, last)), 0)
	checkSees(t, "after DELETE", c, presentNothing, "404")
	checkSees(t, "after DELETE, with a code", c, inHeader(p.code("")), "404")
}

// checkEnded checks what a session whose claim has ended gets.
func checkEnded(t *testing.T, c *testClient) {
	t.Helper()
	again := c.post(initialize)
	check(t, "the id of a session that it begins", again.Header.Get(sessionHeader), "")
	checkContains(t, "a session that it begins", again.failure(), "claim of this session has ended")
	for _, method := range []string{"tools/list", "prompts/list", "resources/list", "resources/templates/list"} {
		checkContains(t, method, c.ask(method, "").Body, ":[]}")
	}
	for method, params := range map[string]string{
		"tools/call":          `{"name":"a_x"}`,
		"prompts/get":         `{"name":"a_x"}`,
		"resources/read":      `{"uri":"a://x"}`,
		"completion/complete": `{"ref":{"type":"ref/prompt","name":"a_x"},"argument":{"name":"n","value":""}}`,
	} {
		a := c.ask(method, params)
		check(t, "status of "+method, a.Status, 200)
		checkContains(t, method, a.failure(), "claim of this session has ended")
	}
	check(t, "ping", c.ask("ping", "").failure(), "")
}

// TestMovingFolders moves modules, and the folder of a claim.
func TestMovingFolders(t *testing.T) {
	long(t)
	p := startProjects(t)
	free, c := p.session(presentNothing), p.session(inHeader(p.code("/proj")))
	rename := func(from, to string) { must(t, os.Rename(p.dir+from, p.dir+to)) }
	link := func(to, from string) { must(t, os.Symlink(p.dir+to, p.dir+from)) }
	outside := func(when string) {
		t.Helper()
		for _, name := range []string{"b_x", "c_x", "other-a_x", "new_x"} {
			check(t, when+": "+name+" is listed", slices.Contains(c.tools(), name), false)
			check(t, when+": "+name+" is called", c.call(name, "").failure() == "", false)
		}
	}
	rename("/proj/a.usher", "/other/a.usher")
	c.awaitTools()
	outside("its module was moved out")
	checkContains(t, "a call of the module that was moved out", c.call("a_x", "").failure(), "unknown tool")
	rename("/other/a.usher", "/proj/a.usher")
	c.awaitTools(projTools...)
	rename("/proj", "/old")
	c.awaitTools()
	outside("its folder was renamed")
	link("/other", "/proj")
	writeFake(t, p.dir+"/other/new.usher", "good tools=x")
	free.awaitTools("a_pid", "a_sleep", "a_x", "b_x", "c_x", "new_x")
	outside("a link replaces its folder")
	check(t, "tools through the link", c.tools(), []string{})
	must(t, os.Remove(p.dir+"/proj"))
	writeFake(t, p.dir+"/proj/next.usher", "good tools=x")
	c.awaitTools("next_x") // the claim is for the folder of this name
	outside("another folder replaces its folder")
	must(t, os.RemoveAll(p.dir+"/proj"))
	rename("/old", "/proj")
	c.awaitTools(projTools...)
	link("/other/b.usher", "/proj/linked.usher")
	rename("/proj/a.usher", "/other/moved.usher")
	link("/other/moved.usher", "/proj/a.usher")
	free.awaitTools("a_pid", "a_sleep", "a_x", "b_x", "c_x", "linked_x", "moved_pid", "moved_sleep", "moved_x", "new_x")
	c.awaitTools() // links to files elsewhere are outside
}

// TestStartFailuresNameNoPath makes modules fail to start under a session, whose
// answers a spy reads.
func TestStartFailuresNameNoPath(t *testing.T) {
	needLanguage(t, ".sh")
	long(t)
	dir, base := twoProjects(t), t.TempDir()
	proj := dir + "/proj/"
	replace := func(path, text string) { must(t, os.WriteFile(path, []byte(text), 0o755)) }
	spoil := map[string]func(){
		"gone":        func() { os.Remove(proj + "gone.usher") },
		"folder":      func() { os.Remove(proj + "folder.usher"); os.Mkdir(proj+"folder.usher", 0o755) },
		"interpreter": func() { replace(proj+"interpreter.usher", "#!/nowhere/sh\n") },
		"plain":       func() { os.Chmod(proj+"plain.usher", 0o644) },
		"text":        func() { replace(proj+"text.usher", "\x7fELF no") },
	}
	for name := range spoil {
		writeFake(t, proj+name+".usher", "good tools=x")
	}
	write(t, proj+"script.usher.sh", "# X is not written yet.\nx() { nowhere_to_be_found; }\n")
	spoil["script"] = func() {}
	write(t, proj+".mcp.json", `{"mcpServers":{"entry":{"command":"./entry.sh"}}}`)
	writeFake(t, proj+"entry.sh", "good tools=x")
	spoil["entry"] = func() { os.Remove(proj + "entry.sh") }
	want := slices.Clone(allTools)
	for name := range spoil {
		want = append(want, name+"_x")
	}
	slices.Sort(want)
	d := daemonOptions{base: base}.start(t, dir)
	free, _ := openSession(t, d.URL, presentNothing)
	free.awaitTools(want...)
	c, _ := openSession(t, d.URL, inHeader(newClaimFor(t, base, dir+"/proj").Code.Reveal()))
	started := 0
	for _, name := range slices.Sorted(maps.Keys(spoil)) {
		spoil[name]()
		failure := c.call(name+"_x", "").failure()
		check(t, "a call of "+name+" works", failure == "", false)
		if strings.Contains(failure, "can't start") {
			started++
		}
	}
	check(t, "a call met a module that can't start", started > 0, true)
}

// TestBodyAfterTheEnd ends a session while the body of one of its requests comes in.
func TestBodyAfterTheEnd(t *testing.T) {
	long(t)
	c := startProjects(t).session(presentNothing)
	read, write := io.Pipe()
	req := c.request(http.MethodPost, "")
	req.Body, req.ContentLength = read, -1
	answered := make(chan answer, 1)
	go func() { answered <- c.do(req) }()
	message := c.message("tools/list", "")
	io.WriteString(write, message[:10])
	c.end()
	io.WriteString(write, message[10:])
	write.Close()
	check(t, "status", (<-answered).Status, 404)
}
