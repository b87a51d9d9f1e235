// Tests of session.go: ids, and the table of sessions.

package main

import (
	"context"
	"io"
	"os"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"
)

const base64Letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"

// turned returns a session id with a letter changed by some bits.
func turned(id string, at, bits int) string {
	b := []byte(id)
	b[at] = base64Letters[strings.IndexByte(base64Letters, b[at])^bits]
	return string(b)
}

// A session id that this daemon has not issued, or that has ended, is refused.
func TestForgedIDsAreRefused(t *testing.T) {
	long(t)
	p := startProjects(t)
	c := p.session(inHeader(p.code("/proj")))
	id := c.Session
	foreign, _ := openSession(t, startDaemon(t, p.dir).URL)
	stranger := foreign.Session
	deleted := p.session()
	p.stop(t)
	gate, _ := testGate(t, p.Base+"/.data", false)
	old := newSession(sessionOrigin{Protocol: protocols[0]}).sessionOrigin
	old.Issued = old.Issued.Add(-sessionLife)
	expired := gate.sessions.seal(old)
	p.restart("", c)
	deleted.URL = p.URL
	deleted.End()
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
		"cut to an unscoped one's length": {id[:len(stranger)]},
		"with another spare bit":          {spare},
	} {
		t.Run(name, func(t *testing.T) {
			present := setHeader(sessionHeader, forged...)
			checkSees(t, "it sees", c, "404", present)
			req := c.Request("POST", initializeWith("2025-11-25", "{}"))
			present(req)
			a := c.Do(req)
			wantStatus(t, "initialize", a, 200)
			check(t, "it begins a session", a.Header.Get(sessionHeader) != "", true)
			req = c.Request("GET", "")
			present(req)
			wantStatus(t, "GET", c.Do(req), 404)
		})
	}
	checkSees(t, "with a letter changed", c, "404", setHeader(sessionHeader, turned(id, 9, 4)))
	checkSees(t, "the first of two counts", c, seesProj, setHeader(sessionHeader, id, stranger))
}

// A session whose claim has ended works again only if the same claim returns. Each row
// changes the claims after the row before.
func TestEndedSessionStaysEnded(t *testing.T) {
	long(t)
	p := startProjects(t)
	created := time.Now().Add(-time.Minute).UTC().Round(time.Millisecond)
	claim := func(code, folder string, created time.Time, life time.Duration) string {
		return "[" + p.claimRecord(code, folder, created, life) + "]"
	}
	const life = time.Hour
	good := claim("ABCDEF", "/proj", created, life)
	p.putClaims(good)
	c := p.session(inHeader("ABCDEF"))
	for _, tt := range []struct{ name, text, want string }{
		{"its claim", good, seesProj},
		{"no claims", "[]", seesNone},
		{"its claim again, as a backup puts it back", good, seesProj},
		{"its code for another folder", claim("ABCDEF", "", created, life), seesNone},
		{"its code for another, later folder",
			claim("ABCDEF", "/other", created.Add(time.Second), life), seesNone},
		{"its code, made a millisecond later",
			claim("ABCDEF", "/proj", created.Add(time.Millisecond), life), seesNone},
		{"its code in lower case", claim("abcdef", "/proj", created, life), "503"},
		{"another code", claim("GHJKMN", "/proj", created, life), seesNone},
		{"its claim, with a longer life", claim("ABCDEF", "/proj", created, 2*life), seesProj},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p.putClaims(tt.text)
			checkSees(t, "it sees", c, tt.want)
			a := c.Call("a_x", "")
			check(t, "it calls a_x", a.Failure() == "", tt.want == seesProj)
			check(t, "Retry-After of 503", a.Header.Get("Retry-After") != "", tt.want == "503")
		})
	}
}

// A principal's sessions in memory are bounded: the least recently used is forgotten first,
// and no other principal's.
func TestIdleSessionsAreForgotten(t *testing.T) {
	t.Parallel()
	own, another := &Principal{}, principal("another")
	var end context.CancelFunc
	own.ctx, end = context.WithCancel(t.Context())
	table := newSessionTable(newSessionKey())
	use := func(s *Session, p *Principal) {
		check(t, "the session is in use", table.touch(s, s.claim.claimID, p) != nil, true)
	}
	open := func(p *Principal) *Session {
		s := newSession(sessionOrigin{Protocol: protocols[0]})
		s.name = s.ID
		use(s, p)
		return s
	}
	used := open(own)
	held := newMemory(0, strangers).reserve(own)
	used.join(&outbox{ctx: t.Context(), held: held, write: lineWriter(io.Discard)})
	touched := open(own)
	idle := open(own)
	moved := open(own)
	other := open(another)
	use(moved, another)
	for range maxSessionsOf {
		open(own)
		use(touched, own)
	}
	isKept := func(s *Session) bool { return table.byName[s.name] == s }
	for name, session := range map[string]*Session{
		"a session with a stream":               used,
		"a session in use":                      touched,
		"another principal's session":           other,
		"a session that moved to another claim": moved,
	} {
		check(t, name+" is kept", isKept(session), true)
	}
	check(t, "the session that was idle for longest is kept", isKept(idle), false)
	check(t, "its processes may continue", idle.member.Err() == nil, false)
	check(t, "sessions of the principal", len(table.own[own]), maxSessionsOf)
	end()
	await(t, "the principal's sessions belong to strangers", func() bool {
		table.mu.Lock()
		defer table.mu.Unlock()
		return table.own[own] == nil && len(table.own[strangers]) == maxSessionsOf
	})
}

// claimOf returns the claim of the session with an id.
func claimOf(t *testing.T, g *Gate, id string) claimID {
	t.Helper()
	_, claim := g.sessions.find(id, false)
	return claim.claimID
}

// A request uses the session that it found only if nothing has happened to the session since.
func TestSessionIsCheckedAtUse(t *testing.T) {
	g, _ := testGate(t, t.TempDir(), false)
	own := &Principal{Claim: Claim{claimID: claimID{Code: "ABCDEF"}}, ctx: t.Context()}
	for _, tt := range []struct {
		name   string
		happen func(s *Session)
		want   bool
	}{
		{"nothing", func(*Session) {}, true},
		{"another request gave it a claim", func(s *Session) { g.sessions.touch(s, claimID{}, own) }, false},
		{"its client ended it", g.sessions.end, false},
		{"another request restored it", func(s *Session) {
			again := newSession(s.sessionOrigin)
			again.name = s.name
			g.sessions.byName[s.name] = again
		}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			id := g.Create(admission{principal: everyone}, protocols[0], 0).session.name
			s, claim := g.sessions.find(id, false)
			tt.happen(s)
			check(t, "it may be used", g.sessions.touch(s, claim.claimID, everyone) != nil, tt.want)
		})
	}
	sse := g.Create(admission{principal: everyone}, sseProtocol, 0).session.name
	s, _ := g.sessions.find(sse, false)
	check(t, "an HTTP+SSE session's id in a header is unknown", s == nil, true)
	s, _ = g.sessions.find(sse, true)
	check(t, "in a URL it is known", s != nil, true)
}

// A session id is enough to recreate its session in a later daemon, for 30 days, with the
// same key.
func TestSessionIDSaysWhatItIs(t *testing.T) {
	t.Parallel()
	at := func(created time.Time) claimID {
		return claimID{"ABCDEF", created.UTC().Round(0), "/w/proj"}
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
		{"one whose claim is older than clocks",
			at(time.Date(1600, 1, 2, 3, 4, 5, 6, time.UTC)), 0, keep, false},
		{"one on its last day", at(time.Now()), sessionLife - hour, keep, false},
		{"one past its days", at(time.Now()), sessionLife, keep, true},
		{"one whose key is missing", claimID{}, 0, func(path string) { os.Remove(path) }, true},
		{"one whose key is cut off", claimID{}, 0, func(path string) {
			os.Truncate(path, 20)
		}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			data := t.TempDir()
			id := ""
			synctest.Test(t, func(t *testing.T) {
				g, _ := testGate(t, data, false)
				p := &Principal{Claim: Claim{claimID: tt.claim}, ctx: t.Context()}
				id = g.Create(admission{principal: p}, protocols[0], capRoots).session.name
			})
			tt.spoil(data + "/session.key")
			synctest.Test(t, func(t *testing.T) { // whose clock begins at the same time
				<-time.After(tt.after)
				g, _ := testGate(t, data, false)
				s, claim := g.sessions.find(id, false)
				check(t, "it is gone", s == nil, tt.gone)
				if !tt.gone {
					check(t, "its claim", claim.claimID, tt.claim)
					check(t, "its capabilities", s.Caps, capRoots)
				}
				s, _ = g.sessions.find(id, true)
				check(t, "in a URL it is unknown", s == nil, true)
			})
		})
	}
}

// After a restart, each session is again what its initialize made it. A code that was
// presented later counts once it is presented again.
func TestRestartKeepsSessions(t *testing.T) {
	long(t)
	p := daemonOptions{ownProcess: true}.startProjects(t)
	code, other := p.code("/proj"), p.code("/other")
	born, moved, free := p.session(inHeader(code)), p.session(inHeader(other)), p.session()
	ended := p.session(inHeader(other))
	ended.End()
	checkSees(t, "the ended session", ended, "404")
	checkSees(t, "the session that moves", moved, seesProj, inHeader(code))
	checkSees(t, "the session that becomes scoped", free, seesProj, inHeader(code))
	checkSees(t, "afterwards", free, seesProj)
	p.cmd.Process.Kill()
	p.restart("", born, moved, free, ended)
	messages, _ := born.Listen()
	hear(t, messages, changedTools) // the client may have seen other lists before
	checkSees(t, "the session that was born scoped", born, seesProj)
	checkSees(t, "the session that moved", moved, seesOther)
	checkSees(t, "the session that became scoped", free, seesAll)
	checkSees(t, "with its code again", free, seesProj, inHeader(code))
	checkSees(t, "the ended session, within its claim", ended, seesOther)
	p.restart("-require-claim", born, free)
	checkSees(t, "with claims required, the scoped session", born, seesProj)
	checkSees(t, "with claims required, the unscoped session", free, "400")
	checkSees(t, "with its code", free, seesProj, inHeader(code))
}

// Only the text that a table sealed opens.
func FuzzSessionID(f *testing.F) {
	table, other := newSessionTable(newSessionKey()), newSessionTable(newSessionKey())
	f.Fuzz(
		func(t *testing.T, stranger, protocol string, caps uint16, code, dir string, at int, char byte) {
			if !utf8.ValidString(protocol) || !utf8.ValidString(code) || !utf8.ValidString(dir) {
				return
			}
			claim := claimID{Code(code), time.Time{}, dir}
			origin := newSession(
				sessionOrigin{Protocol: protocol, Caps: clientCaps(caps), Claim: claim},
			).sessionOrigin
			id := table.seal(origin)
			if got, ok := table.unseal(id); !ok || !reflect.DeepEqual(got, origin) {
				t.Fatalf("%+v came back as %+v, %v", origin, got, ok)
			}
			if _, ok := other.unseal(id); ok {
				t.Fatal("another daemon's id is taken")
			}
			at = max(at, -at, 0) % len(id)
			oneCharacter := id[:at] + string(char) + id[at+1:]
			cases := []string{stranger, stranger + id, id + stranger, id[:at], oneCharacter,
				id[at:] + id[:at]}
			for _, forged := range cases {
				if _, ok := table.unseal(forged); ok && forged != id {
					t.Fatalf("%q opens, %q was sealed", forged, id)
				}
			}
		},
	)
}

// The stream of a session whose claim has ended stays open.
func TestEndedSessionKeepsItsStream(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		claim := newClaimFor(t, b.base, "/w")
		c := b.openScoped(claim.Code.Reveal())
		revoke(t, b.base, claim.Code)
		pass(2 * watchInterval)
		x := b.begin(c.GetRequest())
		pass(2 * unknownBodyTimeout)
		check(t, "the stream has ended", x.ended(), false)
		x.close()
	})
}
