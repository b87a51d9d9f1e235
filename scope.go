// Scope: which principal a request is from, and which part of the workspace it may
// reach. Both follow from the request's headers and URL alone, by one table (decide).
// Nothing here depends on modules or messages. Sessions of HTTP+SSE, which a URL names, have
// rules of their own.
//
// Guarantees, and the tests that check them:
//
//   - No failure widens a scope: not an ended claim, not a file that can't be read, not a
//     log that can't be written (TestDecide, TestScopeTable).
//   - An answered change survives kill -9: if usher has told a client that its session
//     moved to another claim, or has ended, the session is in that state after a restart
//     (TestKilledWhileMoving).
//   - A client can neither make nor change a session id (TestAttacks).
//   - With -require-claim, a day of guessing finds one given valid code with a chance of
//     one in a thousand (TestGuessing).

package main

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"
)

// Scope says which source files a caller may reach. The zero value reaches nothing, so a
// scope that was never decided grants no access.
type Scope struct {
	all bool
	dir string // absolute, symlinks resolved; "" for none
}

// scopeAll returns the scope of the whole workspace, for callers without a claim.
func scopeAll() Scope { return Scope{all: true} }

// scopeDir returns the scope of dir and everything below it. Dir must be absolute, with
// its symlinks resolved.
func scopeDir(dir string) Scope { return Scope{dir: dir} }

// Contains reports whether source, an absolute path with its symlinks resolved, is the
// scope's directory or below it. It compares path components: "/w/proj" contains
// "/w/proj/a" but not "/w/projX". A module without a resolvable source ("") is in no
// directory.
func (s Scope) Contains(source string) bool {
	if s.all || s.dir == "" {
		return s.all
	}
	separator := string(os.PathSeparator)
	below := strings.TrimSuffix(s.dir, separator) + separator
	return source == s.dir || strings.HasPrefix(source, below)
}

// Principal identifies the claim that a request belongs to. The zero value stands for
// everyone without a claim. If a record in claims.json differs in any of the three fields,
// the principal's claim has ended. Gate.Scope reports whether the claim is active.
type Principal = claimID

// accessFacts are all the facts that decide the access of a request.
type accessFacts struct {
	session    bool // the request names a session that has not ended
	scoped     bool // the session has a claim
	active     bool // the session's claim is active
	presents   bool // the request presents a code, valid or not
	valid      bool // the presented code is valid
	unreadable bool // the claims can't be read, so active or valid is unknown
	require    bool // the daemon requires a claim
}

// decision is the access that a request gets.
type decision int

const (
	allowAll        decision = iota // the whole workspace
	allowOwn                        // the scope of the session's claim
	allowPresented                  // the scope of the presented claim, which becomes the session's claim
	allowInitialize                 // the whole workspace, but only to begin a session
	denyEnded                       // the session's claim has ended: empty lists, calls are refused
	denyUnclaimed                   // HTTP 400: a claim is required
	denyUnreadable                  // HTTP 503: the claims can't be read at the moment
)

// decide returns the access of a request, by the table in SECURITY.md ("Who sees what").
// No row widens a session's access because something failed.
func decide(f accessFacts) decision {
	switch {
	case f.unreadable && (f.scoped || f.presents):
		return denyUnreadable
	case f.valid:
		return allowPresented
	case f.scoped && f.active:
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

// Texts of refusals. None of them discloses whether a code was ever in use.
const (
	howToPresent = "present a code (from usher claim) in the header " + claimHeader +
		", or in the URL as ?claim=..."
	needsCode = "a claim code is required: " + howToPresent
)

var errBadCode error = httpErrorf(http.StatusBadRequest,
	"the presented claim code is unknown or has ended: %s", howToPresent)

var errEnded = errors.New("the claim of this session has ended: connect with a new code")

// errNoSession refuses a request whose session has ended or never existed. Clients then
// begin a new one (MCP, basic/transports, "Session Management").
var errNoSession error = httpErrorf(http.StatusNotFound,
	"this session is unknown or has ended: send initialize again")

// errKeepsClaim refuses to move an HTTP+SSE session, which a URL names, to another claim.
// Otherwise the owner of one code could hand out the session's URL and wait for another
// person's code to move the session.
var errKeepsClaim error = httpErrorf(http.StatusBadRequest,
	"an HTTP+SSE session keeps its claim: reconnect to use another code")

// Gate decides which principal a request is from and what the principal may reach. Safe
// for concurrent use.
type Gate struct {
	claims   *ClaimStore // nil: claims are not checked, and every request gets the fixed scope
	fixed    Scope
	sessions *sessionStore
	require  bool // no request without a claim is admitted
	log      *slog.Logger
	turns    *guessTurns // see newGuessTurns
}

// openGate returns the gate for stdio, which ignores claims: every request may reach the
// whole workspace.
func openGate() *Gate { return &Gate{fixed: scopeAll(), sessions: &sessionStore{}} }

// admission is the result of Gate.Admit for a request.
type admission struct {
	session *sessionToken // nil: the request names none
	claim   Claim         // the principal's, after any move, which is saved; if ended, only the id
	// badCode is set if the request names no session and presents an invalid code. The
	// request may begin a session without a claim; otherwise this error is its answer.
	badCode error

	ended error // errEnded if the claim had ended
}

// Admit determines a request's session and principal from its headers and URL alone,
// before its body is read. It may wait some seconds for a turn (guessTurns). The error is
// the answer to a request that is not admitted.
func (g *Gate) Admit(r *http.Request) (admission, error) {
	var a admission
	if id, inURL := presentedSession(r); id != "" {
		token, ok := g.sessions.open(id)
		if !ok {
			return a, errNoSession
		}
		// A URL names only sessions of HTTP+SSE. Any other id in a URL is ignored.
		if !inURL || token.Protocol == sseProtocol {
			a.session = token
			a.claim.claimID = g.Current(token)
		}
	}
	facts, own, presented, err := g.findFacts(r, a)
	if facts.active {
		a.claim = own
	}
	if err != nil && !facts.unreadable {
		return a, err
	}
	switch decide(facts) {
	case denyUnreadable:
		return a, httpErrorf(http.StatusServiceUnavailable,
			"%v: requests with a claim code are refused", errClaimsUnreadable).because(err).retryAfter(5)
	case denyUnclaimed:
		if facts.presents {
			return a, errBadCode
		}
		return a, httpErrorf(http.StatusBadRequest, needsCode)
	case allowPresented:
		return g.present(a, presented)
	case denyEnded:
		a.ended = errEnded
	case allowInitialize:
		a.badCode = errBadCode
	}
	if facts.presents {
		g.log.Warn("an invalid claim code was presented",
			"in_session", facts.session, "scoped", facts.scoped)
	}
	return a, nil
}

// findFacts returns the facts about a request, the claim of its session if that claim is
// active, and the claim whose code the request presents. If facts.unreadable is set, the
// error is the reason; any other error refuses the request.
func (g *Gate) findFacts(r *http.Request, a admission) (facts accessFacts, own, presented Claim, err error) {
	code, presents := presentedCode(r)
	facts = accessFacts{
		session:  a.session != nil,
		scoped:   a.claim.exists(),
		presents: presents,
		require:  g.require,
	}
	if facts.scoped {
		own, err = g.claim(a.claim.claimID)
		facts.unreadable = errors.Is(err, errClaimsUnreadable)
		facts.active = err == nil
		if facts.unreadable {
			return facts, own, presented, err
		}
	}
	presented, err = g.lookUp(r.Context(), code, own)
	facts.unreadable = errors.Is(err, errClaimsUnreadable)
	facts.valid = presented.exists()
	return facts, own, presented, err
}

// lookUp returns the active claim with this code, or the zero Claim if there is none or
// code is "". If the daemon requires claims, it waits for a turn. A session with an active
// claim, own, never waits: its own code needs no turn, and without a free turn, another
// code counts as invalid.
func (g *Gate) lookUp(ctx context.Context, code Code, own Claim) (Claim, error) {
	if code == "" {
		return Claim{}, nil
	}
	if code == own.Code {
		return own, nil
	}
	patience := turnWait
	if own.exists() {
		patience = 0
	}
	if g.require && !g.turns.await(ctx, code, patience) {
		if own.exists() {
			return Claim{}, nil
		}
		return Claim{}, httpErrorf(http.StatusTooManyRequests,
			"too many unknown claim codes: try again later").retryAfter(10)
	}
	c, err := g.claims.Lookup(code)
	if g.require && g.turns.done(code, err == nil && !c.exists()) {
		g.log.Warn("someone may be guessing claim codes: lookups now take turns",
			"different", guessBudget)
	}
	return c, err
}

// present admits a request that presents the code of a claim. If the request's session
// moves to this claim, present saves the move before the request is handled.
func (g *Gate) present(a admission, c Claim) (admission, error) {
	if a.session != nil && a.claim.claimID != c.claimID {
		if a.claim.exists() && a.session.Protocol == sseProtocol {
			return a, errKeepsClaim
		}
		if err := g.sessions.appendRecord(a.session, sessionRecord{Claim: c.claimID}); err != nil {
			return a, err
		}
		g.logScoped("session scoped", a.session, c)
	}
	a.claim = c
	return a, nil
}

// maxBearerCode is the number of characters up to which a bearer token counts as a code.
const maxBearerCode = 12

// presentedCode returns a request's claim code, or "" for a malformed one, and reports
// whether the request presents any. The first place that is not empty counts, valid or not:
// the header, the URL, and a short bearer token. (Some clients can set no other header, and
// others send a longer, unrelated token.) A slip never counts as "no code".
func presentedCode(r *http.Request) (code Code, presents bool) {
	text := cmp.Or(
		strings.Join(r.Header.Values(claimHeader), ","), // two headers are no code
		codeInQuery(r.URL.RawQuery),
		codeInBearer(r.Header.Get("Authorization")))
	code, _ = parseCode(text)
	return code, text != ""
}

// codeInQuery returns the value of the one parameter "claim" of a query, or "" for none. If
// the query can't be parsed, repeats the parameter or spells it in another way,
// codeInQuery returns the query itself, which is not a code.
func codeInQuery(query string) string {
	const name = "claim"
	if query == "" {
		return ""
	}
	values, err := url.ParseQuery(query)
	similar := 0
	for key, list := range values {
		if strings.Contains(strings.ToLower(key), name) {
			similar += len(list)
		}
	}
	switch {
	case err == nil && similar == 1 && values.Has(name):
		return values.Get(name)
	case similar > 0 || strings.Contains(strings.ToLower(query), name):
		return query
	}
	return ""
}

// codeInBearer returns the token of an Authorization header, or "" if it is too long for a
// code or has another scheme.
func codeInBearer(authorization string) string {
	scheme, token, _ := strings.Cut(authorization, " ")
	token = strings.TrimSpace(token)
	if !strings.EqualFold(scheme, "Bearer") || len(token) > maxBearerCode { // RFC 9110, section 11.1
		return ""
	}
	return token
}

// presentedSession returns a request's session id, "" for none, and reports whether it is
// in the URL. A session id in a header is ignored in requests of the version without
// sessions. An id in the URL belongs to HTTP+SSE, whatever messages the client sends there.
func presentedSession(r *http.Request) (id string, inURL bool) {
	id = r.Header.Get(sessionHeader)
	if id != "" && r.Header.Get(protocolHeader) != statelessProtocol {
		return id, false
	}
	return r.URL.Query().Get("sessionId"), true
}

// claim returns the active claim of a principal. The error is errEnded, including for
// principals without a claim, or matches errClaimsUnreadable.
func (g *Gate) claim(p Principal) (Claim, error) {
	c, err := g.claims.Lookup(p.Code)
	if err == nil && (!p.exists() || c.claimID != p) {
		return Claim{}, errEnded
	}
	return c, err
}

// Scope returns what a principal may reach now. Callers ask at each use and do not keep
// the scope, because a claim may end at any instant. If the error is not nil, the scope
// reaches nothing. The error is errEnded or errClaimsUnreadable; both may be shown to
// clients.
func (g *Gate) Scope(p Principal) (Scope, error) {
	if g.claims == nil {
		return g.fixed, nil
	}
	if !p.exists() && !g.require {
		return scopeAll(), nil
	}
	c, err := g.claim(p)
	if errors.Is(err, errClaimsUnreadable) {
		return Scope{}, errClaimsUnreadable // without the file's path
	}
	if err != nil {
		return Scope{}, err
	}
	return scopeDir(c.ScopeDir), nil
}

// Current returns the principal that a session belongs to now. For the placeholder token
// of a request without a session, it returns the principal the token was created with.
func (g *Gate) Current(t *sessionToken) Principal {
	return cmp.Or(g.sessions.recordOf(t).Claim, t.Claim)
}

// logScoped logs which claim a session has.
func (g *Gate) logScoped(what string, t *sessionToken, c Claim) {
	if c.exists() {
		g.log.Info(what, c.logAttrs(), "session", clipText(t.ID, 8))
	}
}

// Create makes a session for an admitted initialize, and returns its token and id. No state
// is stored: the id contains everything.
func (g *Gate) Create(protocol string, caps clientCaps, from admission) (*sessionToken, string) {
	t := newSessionToken(protocol, caps, from.claim.claimID)
	g.logScoped("session", t, from.claim)
	return t, g.sessions.seal(t)
}

// Ended reports whether a session has ended, perhaps since its request was admitted.
func (g *Gate) Ended(t *sessionToken) bool { return g.sessions.recordOf(t).Ended }

// End ends a session permanently and saves the end before it returns. The error is
// errNoSession if the session has ended already, or an *httpError; then the session
// continues.
func (g *Gate) End(t *sessionToken) error {
	return g.sessions.appendRecord(t, sessionRecord{Ended: true})
}

const (
	guessSpan = time.Minute             // the period in which guessBudget codes are looked up at once
	turnEvery = time.Second / guessRate // between two lookups in turns
	turnWait  = 10 * time.Second        // the longest wait for a turn
)

// guessTurns slows down guessing. Once guessBudget different codes were invalid within
// guessSpan, codes are looked up in turns, one per turnEvery, for all callers together.
// (Behind a tunnel, all requests come from one address, so a limit per address would not
// help.) Waiting requests with the same code share a turn. Valid, unused, ended and never
// issued codes wait alike, so the wait discloses nothing. Safe for concurrent use.
type guessTurns struct {
	mu     sync.Mutex
	tried  map[Code]time.Time // codes looked up within guessSpan, and when; without codes found valid
	warned bool               // done has reported true since len(tried) was last below guessBudget
	turns  map[Code]time.Time // the next turn of each code that waits
	next   time.Time          // the next free turn
}

// newGuessTurns returns a guessTurns that has seen no invalid code yet.
func newGuessTurns() *guessTurns {
	return &guessTurns{tried: make(map[Code]time.Time), turns: make(map[Code]time.Time)}
}

// done records the outcome of a lookup: whether the code is invalid. It reports true if
// this code makes the turns begin.
func (t *guessTurns) done(code Code, invalid bool) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !invalid {
		delete(t.tried, code)
		return false
	}
	t.tried[code] = time.Now()
	begin := !t.warned && len(t.tried) >= guessBudget
	t.warned = t.warned || begin
	return begin
}

// await waits for the turn in which code may be looked up. It reports false if the turn is
// further away than patience, in which case none is taken, or if ctx ends.
func (t *guessTurns) await(ctx context.Context, code Code, patience time.Duration) bool {
	wait := t.nextTurn(code, patience)
	return wait <= patience && pauseFor(ctx, wait)
}

// nextTurn returns the time until code may be looked up. It takes that turn unless it is
// further away than patience.
func (t *guessTurns) nextTurn(code Code, patience time.Duration) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	maps.DeleteFunc(t.tried, func(_ Code, at time.Time) bool { return now.Sub(at) >= guessSpan })
	maps.DeleteFunc(t.turns, func(_ Code, at time.Time) bool { return !at.After(now) })
	if len(t.tried) < guessBudget {
		t.tried[code] = now // until done: a burst must not exceed the budget
		t.warned = false
		return 0
	}
	if at, shared := t.turns[code]; shared {
		return at.Sub(now)
	}
	wait := max(0, t.next.Sub(now))
	if wait <= patience {
		t.turns[code] = now.Add(wait)
		t.next = now.Add(wait + turnEvery)
	}
	return wait
}
