// Scope: who a request is from, and which part of the workspace that one may
// reach. Both follow from the request's headers and URL alone, by one table
// (decide). Here is also what a session's id holds, and the log of what became
// of sessions since. This file asks the claim store; it knows no module, no
// message and no transport.
//
// What a reader can rely on, and which test holds it:
//
//   - No failure widens a scope: not an ended claim, not a file that can't be
//     read, not a log that can't be written (TestDecide, TestScopeTable).
//   - What was answered outlives kill -9: a session that was told that it has
//     another claim, or has ended, is so after a restart (TestKilledWhileMoving).
//   - A session id can neither be made nor changed by its client (TestAttacks).
//   - With -require-claim a day of guessing finds one given live code with a
//     chance of one in a thousand (TestGuessing).

package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"
)

// Scope says which source files a caller may reach. Its zero value reaches
// nothing, so that a scope that was never decided on can't open anything.
type Scope struct {
	all bool
	dir string // absolute, symlinks resolved; "" for none
}

// scopeAll is the whole workspace: what a caller without a claim reaches.
func scopeAll() Scope { return Scope{all: true} }

// scopeDir is dir and what lies below it. dir must be absolute and have its
// symlinks resolved.
func scopeDir(dir string) Scope { return Scope{dir: dir} }

// scopeNone reaches nothing: what is left to a session whose claim has ended.
func scopeNone() Scope { return Scope{} }

// Contains reports whether source, an absolute path with its symlinks resolved,
// is the scope's directory or below it, compared by path component: "/w/proj"
// contains "/w/proj/a" and not "/w/projX". A module without a resolvable source
// ("") is in no directory.
func (s Scope) Contains(source string) bool {
	if s.all {
		return true
	}
	rest, ok := strings.CutPrefix(source, s.dir)
	return ok && s.dir != "" && (rest == "" || os.IsPathSeparator(rest[0]) || os.IsPathSeparator(s.dir[len(s.dir)-1]))
}

// claimRef names one claim for good. The code alone would not do: it can be drawn
// again after the claim's end, and a record can be changed by hand. A reference
// to a record that differs in any of the three is a reference to an ended claim.
type claimRef struct {
	Code      Code   `json:"code"`
	CreatedAt string `json:"createdAt"` // RFC 3339 in UTC, so that == compares instants
	ScopeDir  string `json:"claimScopeDir"`
}

func refTo(c Claim) claimRef { return claimRef{c.Code, c.created, c.ScopeDir} }

// Principal is who a request is from: the holder of a claim, or anyone without
// one, which is the zero value. Two principals are equal by ==. A principal says
// nothing about whether its claim still holds; Gate.Scope does.
type Principal struct{ claim claimRef }

// hasClaim reports whether the principal is the holder of a claim, ended or not.
func (p Principal) hasClaim() bool { return p != Principal{} }

// Key is a text to count and group callers by: one for each claim, and "" for all
// callers without one. The code is in it, so it is kept in memory, and neither
// logged nor stored.
func (p Principal) Key() string {
	if !p.hasClaim() {
		return ""
	}
	return p.claim.Code.Reveal() + " " + p.claim.CreatedAt + " " + p.claim.ScopeDir
}

// Format keeps the code out of whatever a principal is printed into.
func (p Principal) Format(f fmt.State, _ rune) { io.WriteString(f, "principal") }

// accessFacts is all that decides who a request is from.
type accessFacts struct {
	session    bool // the request names a session that goes on
	scoped     bool // the session has a claim of its own
	ownHolds   bool // and that claim has not ended
	presents   bool // the request presents a code, of whatever worth
	holds      bool // and the code is that of a claim that holds
	unreadable bool // the claims can't be read, so ownHolds or holds is not known
	require    bool // the daemon serves nobody without a claim
}

// decision is what becomes of a request.
type decision int

const (
	allowAll        decision = iota // the whole workspace
	allowOwn                        // what the session's own claim is for
	allowPresented                  // what the presented claim is for, which becomes the session's own
	allowInitialize                 // the whole workspace, but only to begin a session
	denyEnded                       // the session's claim has ended: nothing is seen, calls are refused
	denyUnclaimed                   // HTTP 400: a claim is required
	denyUnreadable                  // HTTP 503: nobody can tell what the claim is for just now
)

// decide is the table of who reaches what (SECURITY.md, "Who sees what"). No row of it widens
// what a session had because something failed.
func decide(f accessFacts) decision {
	switch {
	case f.unreadable && (f.scoped || f.presents):
		return denyUnreadable
	case f.holds:
		return allowPresented
	case f.scoped && f.ownHolds:
		return allowOwn
	case f.scoped:
		return denyEnded
	case f.require:
		return denyUnclaimed
	case f.presents && !f.session:
		return allowInitialize
	default:
		return allowAll
	}
}

// What refusals tell, beside errClaimsUnreadable. None of them says whether a code
// was ever in use.
const (
	howToPresent = "ask for a code (usher claim makes them) and present it in the header " + claimHeader + ", or in the URL as ?claim=..."
	needsCode    = "a claim code is required here: " + howToPresent
	codeIsNone   = "the claim code presented is unknown or has ended: " + howToPresent
	tooManyCodes = "too many unknown claim codes were presented lately: try again later"
)

var errEnded = errors.New("the claim of this session has ended: ask for a new code and connect with it")

// errNoSession refuses a request whose session is no more. A client begins anew at
// that (MCP, basic/transports, "Session Management").
var errNoSession error = httpErrorf(http.StatusNotFound, "this session is unknown or has ended: send initialize again")

// errKeepsClaim refuses to move an HTTP+SSE session, which a URL names, to another claim. Otherwise the
// holder of one code could hand out the session's URL and wait for somebody else's code to move the session.
var errKeepsClaim error = httpErrorf(http.StatusBadRequest,
	"an HTTP+SSE session keeps its claim: to use another code, connect anew, without ?sessionId=")

// Gate decides who a request is from and what they may reach. Safe for
// concurrent use.
type Gate struct {
	claims   *ClaimStore // nil: no claims are looked at, and everyone has the scope fixed
	fixed    Scope
	sessions *sessionStore
	require  bool
	log      *slog.Logger
	turns    guessTurns
	started  time.Time
	logKey   string   // of the names that claims have in the log, this time
	names    sync.Map // []any by Principal: what Name has given
}

// newGate is the gate of a daemon. With require it lets nobody in without a claim.
func newGate(claims *ClaimStore, sessions *sessionStore, require bool, log *slog.Logger) *Gate {
	g := &Gate{claims: claims, sessions: sessions, require: require, log: log, started: time.Now(), logKey: rand.Text(),
		turns: guessTurns{tried: make(map[Code]time.Time), turns: make(map[Code]time.Time)}}
	claims.changed = g.logClaims
	return g
}

// fixedGate is the gate of a transport that never looks at claims: stdio, and
// calls from the shell. Everyone there reaches scope.
func fixedGate(scope Scope) *Gate { return &Gate{fixed: scope, sessions: &sessionStore{}} }

// admission is who a request is from.
type admission struct {
	at        time.Time     // before anything was looked at
	session   *sessionToken // nil: the request names none
	principal Principal     // by now: a session that moves to another claim has been written down
	// badCode is set where the request names no session, and a code that does not
	// hold: it begins a session without a claim, or is answered with this error.
	badCode error
}

// Admit finds who a request is from, by its headers and URL alone, before its body
// is read. It may wait its turn for some seconds (guessTurns). The error is the
// answer to a request that is not let in.
func (g *Gate) Admit(r *http.Request) (admission, error) {
	a := admission{at: time.Now()}
	if id, inURL := presentedSession(r); id != "" {
		token, ok := g.sessions.open(id)
		if !ok {
			return a, errNoSession
		}
		// A URL names only sessions of HTTP+SSE. Any other id there counts for nothing.
		if !inURL || token.Protocol == sseProtocol {
			a.session, a.principal = token, g.Current(token)
		}
	}
	facts := accessFacts{session: a.session != nil, scoped: a.principal.hasClaim(), require: g.require}
	var why error // of what can't be read; it names a path, so it is for the log only
	if facts.scoped {
		_, err := g.claim(a.principal, a.at)
		facts.ownHolds = err == nil
		if errors.Is(err, errClaimsUnreadable) {
			facts.unreadable, why = true, err
		}
	}
	var presented Principal
	code, presents := presentedCode(r)
	facts.presents = presents
	if facts.ownHolds && code == a.principal.claim.Code {
		facts.holds, presented = true, a.principal // which needs no turn
	} else if code != "" {
		c, ok, err := g.lookUp(r.Context(), code, facts.ownHolds)
		switch {
		case err == errNoTurn && facts.ownHolds: // it counts as one that does not hold
		case err == errNoTurn:
			return a, &httpError{Status: http.StatusTooManyRequests, Msg: tooManyCodes, Header: retryAfter(10)}
		case err != nil:
			facts.unreadable, why = true, err
		case ok:
			facts.holds, presented = true, Principal{refTo(c)}
		}
	}
	switch decide(facts) {
	case denyUnreadable:
		return a, &httpError{Status: http.StatusServiceUnavailable, Msg: errClaimsUnreadable.Error() + ": requests with a claim code are refused", Err: why, Header: retryAfter(5)}
	case denyUnclaimed:
		if facts.presents {
			return a, httpErrorf(http.StatusBadRequest, codeIsNone)
		}
		return a, httpErrorf(http.StatusBadRequest, needsCode)
	case allowPresented:
		return g.present(a, presented)
	case allowInitialize:
		a.badCode = httpErrorf(http.StatusBadRequest, codeIsNone)
	}
	if facts.presents {
		g.log.Warn("a claim code that does not hold was presented", "in a session", facts.session, "which has a claim", facts.scoped)
	}
	return a, nil
}

// present admits a request that presents the code of a claim that holds. A session
// has that claim from now on, and that is written down before anything is done.
func (g *Gate) present(a admission, p Principal) (admission, error) {
	if a.session == nil || a.principal == p {
		a.principal = p
		return a, nil
	}
	if a.principal.hasClaim() && a.session.Protocol == sseProtocol {
		return a, errKeepsClaim
	}
	if err := g.sessions.appendRecord(a.session, sessionRecord{Claim: p.claim}); err != nil {
		return a, err
	}
	a.principal = p
	g.logScoped("session scoped", a.session, p)
	return a, nil
}

// logScoped tells the log which claim a session has.
func (g *Gate) logScoped(what string, t *sessionToken, p Principal) {
	if p.hasClaim() {
		g.log.Info(what, append(g.Name(p), "session", clipText(t.ID, 8))...)
	}
}

// logClaims tells the log of claims that were made, and that have ended.
func (g *Gate) logClaims(before, after map[Code]Claim) {
	for code, c := range before {
		if refTo(after[code]) != refTo(c) {
			g.log.Info("claim ended", g.name(Principal{refTo(c)}, c.Label)...)
			g.names.Delete(Principal{refTo(c)})
		}
	}
	for code, c := range after {
		if refTo(before[code]) != refTo(c) && c.CreatedAt.After(g.started) {
			g.log.Info("claim made", g.name(Principal{refTo(c)}, c.Label)...)
		}
	}
}

// lookUp gives the claim that has a code, where one is required in the caller's
// turn; errNoTurn says that there was none. A session whose own claim holds never
// waits: another code has its turn at once or not at all.
func (g *Gate) lookUp(ctx context.Context, code Code, ownHolds bool) (Claim, bool, error) {
	patience := turnWait
	if ownHolds {
		patience = 0
	}
	if g.require && !g.turns.await(ctx, code, patience) {
		return Claim{}, false, errNoTurn
	}
	c, ok, err := g.claims.Lookup(code)
	if g.require && err == nil && !ok && g.turns.failed(code) {
		g.log.Warn("someone may be guessing claim codes: codes are looked up in turns from now on", "different", guessBudget)
	}
	return c, ok, err
}

// presentedCode is the claim code of a request: the first that is there counts,
// whatever it is worth. The code is "" for one that is malformed. What stands in
// Authorization counts only if it has the form of a code: some clients can set no
// other header, and others send a token there that is none of ours.
func presentedCode(r *http.Request) (code Code, presents bool) {
	if text := cmp.Or(r.Header.Get(claimHeader), r.URL.Query().Get("claim")); text != "" {
		code, _ = parseCode(text)
		return code, true
	}
	scheme, bearer, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") { // in any case: RFC 9110, section 11.1
		return "", false
	}
	return parseCode(bearer)
}

// presentedSession is the session id of a request, "" for none, and whether it
// stands in the URL. Beside the version that has no sessions an id in a header
// counts for nothing; one in the URL is that of HTTP+SSE, whatever the messages
// that go there.
func presentedSession(r *http.Request) (id string, inURL bool) {
	if id := r.Header.Get(sessionHeader); id != "" && r.Header.Get(protocolHeader) != statelessProtocol {
		return id, false
	}
	return r.URL.Query().Get("sessionId"), true
}

// claim is the claim of a principal, as it stood at some instant after since. The
// error is errEnded, also for who has no claim, or matches errClaimsUnreadable.
func (g *Gate) claim(p Principal, since time.Time) (Claim, error) {
	c, ok, err := g.claims.LookupSince(p.claim.Code, since)
	if err == nil && (!ok || refTo(c) != p.claim) {
		err = errEnded
	}
	return c, err
}

// admissionLife is for how long what was seen when a request was admitted holds for
// what the request does. Few take longer, and so most look at the claims once.
const admissionLife = 10 * time.Millisecond

// Scope is what a principal may reach now. It is asked for each time that
// something is done, and not kept: a claim may end at any instant. admitted is when
// the request was let in for which it is done; zero for what no request waits for.
// With an error, errEnded or errClaimsUnreadable, the scope reaches nothing; both
// are fit for clients.
func (g *Gate) Scope(p Principal, admitted time.Time) (Scope, error) {
	if g.claims == nil {
		return g.fixed, nil
	}
	if !p.hasClaim() && !g.require {
		return scopeAll(), nil
	}
	now := time.Now()
	if now.Sub(admitted) > admissionLife {
		admitted = now
	}
	switch c, err := g.claim(p, admitted); {
	case err == nil:
		return scopeDir(c.ScopeDir), nil
	case errors.Is(err, errClaimsUnreadable):
		return scopeNone(), errClaimsUnreadable // without the path of the file
	default:
		return scopeNone(), err
	}
}

// Current is who a session is of, now. Of a token that was never issued, which
// stands for a request without a session, that is the principal that it was made
// for.
func (g *Gate) Current(t *sessionToken) Principal {
	return Principal{cmp.Or(g.sessions.recordOf(t.ID).Claim, t.Claim)}
}

// Name is what a principal's claim is called in a line of the log: its label, and a
// short keyed hash, since codes are never logged, not even in part. It is nothing for
// who has none.
func (g *Gate) Name(p Principal) []any {
	if !p.hasClaim() {
		return nil
	}
	if known, ok := g.names.Load(p); ok {
		return known.([]any)
	}
	name := g.name(p, g.claims.label(p.claim.Code))
	g.names.Store(p, name)
	return name
}

func (g *Gate) name(p Principal, label string) []any {
	return []any{"claim", hashOf(g.logKey, p.Key())[:8], "label", label}
}

// Create makes a session of a principal, and returns it with its id. Nothing is
// kept of it: all that there is to know is in the id.
func (g *Gate) Create(protocol string, caps clientCaps, p Principal) (*sessionToken, string) {
	t := newSessionToken(protocol, caps, p, g.sessions.now())
	g.logScoped("session", t, p)
	return t, g.sessions.seal(t)
}

// Ended reports whether a session has ended since its request was admitted.
func (g *Gate) Ended(t *sessionToken) bool { return g.sessions.recordOf(t.ID).Ended }

// End ends a session for good: before it returns, the log says so. The error is
// errNoSession where the session has ended already; with any other, an *httpError
// too, the session goes on.
func (g *Gate) End(t *sessionToken) error {
	return g.sessions.appendRecord(t, sessionRecord{Ended: true})
}

const (
	guessSpan = time.Minute             // in which guessBudget codes are looked up at once
	turnEvery = time.Second / guessRate // between two look-ups in turns
	turnWait  = 10 * time.Second        // the longest that anybody waits for a turn
)

// errNoTurn says that a caller's turn would come too late, or that the caller left.
var errNoTurn = errors.New("no turn to look up a claim code")

// guessTurns slows whoever guesses claim codes. Once guessBudget different codes
// did not hold within guessSpan, codes are looked up in turns, one each turnEvery,
// whoever presents them: addresses tell nothing, as behind a tunnel all requests
// come from one. Waiting requests with the same code share a turn. Codes in use,
// unused, ended and never issued wait alike, so the wait tells nothing. Safe for
// concurrent use.
type guessTurns struct {
	mu    sync.Mutex
	tried map[Code]time.Time // when a code that does not hold was last looked up, within guessSpan
	turns map[Code]time.Time // when the code's next turn is, for those that wait
	next  time.Time          // when the next turn is free
}

// failed notes that a code does not hold. It reports whether that begins the turns.
func (t *guessTurns) failed(code Code) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	before := len(t.tried)
	t.tried[code] = time.Now()
	return before < guessBudget && len(t.tried) == guessBudget
}

// await waits for the turn in which code may be looked up. It is false where that
// is further away than patience, when no turn is taken, and where the caller left.
func (t *guessTurns) await(ctx context.Context, code Code, patience time.Duration) bool {
	wait := t.nextTurn(code, patience)
	return wait <= patience && pauseFor(ctx, wait)
}

// nextTurn says how long it is until code may be looked up. That turn is taken unless it
// is further away than patience.
func (t *guessTurns) nextTurn(code Code, patience time.Duration) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	maps.DeleteFunc(t.tried, func(_ Code, at time.Time) bool { return now.Sub(at) >= guessSpan })
	maps.DeleteFunc(t.turns, func(_ Code, at time.Time) bool { return !at.After(now) })
	if len(t.tried) < guessBudget {
		return 0
	}
	if at, shared := t.turns[code]; shared {
		return at.Sub(now)
	}
	wait := max(0, t.next.Sub(now))
	if wait <= patience {
		t.turns[code], t.next = now.Add(wait), now.Add(wait+turnEvery)
	}
	return wait
}
