// Scope: which principal a request is from, and which part of the workspace it may
// reach. The principal follows from the request's headers and URL and from the session that they
// name, by one table (decide), and is fixed once the request is admitted. With -require-claim,
// clients that try one code after another are slowed down. Nothing here depends on modules.
//
// Guarantees, and the tests that check them:
//
//   - No failure widens a scope beyond what the session began with: not an ended claim, not a
//     file that can't be read, not a restart (TestDecisionsNeverWiden, TestScopeTable, TestModel).
//   - A client can neither make nor change a session id (TestForgedIDsAreRefused).
//
// # What ends with a claim
//
// Two contexts carry the end of a claim: that of the Principal, and the Member of a session, which
// ends with it and also when the session ends or moves to another claim.
//
//	what                          ends, or is refused              by
//	a request, a list, a look-up  with the claim's record          Gate.Admit, Principal.scope
//	a wait of a call              with the Principal's context     Principal.waitFor
//	a call about to be made       with the claim's record          lastCheck
//	a call that a module has      when it is done                  (over HTTP+SSE with its stream)
//	a module's question           with the Principal's context     request.beginAsk, request.ask
//	a suspended call              so does its question             suspendedCall.ask
//	messages outside of a call    with the Member                  Caller.reachable
//	a stream                      with the Member                  Server.follow
//	a process of a session        with the Member, once unused     pool.sweep

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
	"regexp"
	"strings"
	"sync"
	"time"
	"unicode/utf8"
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
// "/w/proj/a" but not "/w/projX".
func (s Scope) Contains(source string) bool {
	if s.all || s.dir == "" {
		return s.all
	}
	separator := string(os.PathSeparator)
	below := strings.TrimSuffix(s.dir, separator) + separator
	return source == s.dir || strings.HasPrefix(source, below)
}

// accessFacts are all the facts that decide the access of a request.
type accessFacts struct {
	session    bool       // the request names a session that has not ended
	fixed      bool       // the session is of HTTP+SSE, so it can't change its claim
	scoped     bool       // the session has a claim
	own        *Principal // of that claim; nil if it is not active
	presents   bool       // the request presents a code, valid or not
	presented  *Principal // of the claim with that code; nil if the code is not valid or got no turn
	unreadable error      // why own or presented is unknown: the claims can't be read; else nil
	require    bool       // the daemon requires a claim
}

// decide returns the principal of a request, by the table in SECURITY.md ("Who sees what"). No
// row widens a session's access because something failed. err refuses the request. badCode is the
// answer to every request except one that begins a session; that session then belongs to p.
func decide(f accessFacts) (p *Principal, badCode, err error) {
	switch {
	case f.unreadable != nil:
		return nil, nil, httpErrorf(http.StatusServiceUnavailable,
			"%v: requests with a claim code are refused", errClaimsUnreadable).because(f.unreadable)
	case f.presented != nil && f.fixed && f.presented != f.own:
		return nil, nil, errKeepsClaim
	case f.presented != nil:
		return f.presented, nil, nil
	case f.own != nil:
		return f.own, nil, nil
	case f.scoped: // its claim has ended
		return strangers, nil, nil
	case f.require && f.presents:
		return nil, nil, errBadCode
	case f.require:
		return nil, nil, errNoCode
	case f.presents && !f.session:
		return everyone, errBadCode, nil
	default:
		return everyone, nil, nil
	}
}

// Texts of refusals. None of them discloses whether a code was ever in use.
const howToPresent = "present a code (ask the owner of this server) in the header " + claimHeader +
	", or in the URL as ?claim=..."

var (
	errNoCode error = httpErrorf(http.StatusBadRequest,
		"a claim code is required: %s", howToPresent)
	errBadCode error = httpErrorf(http.StatusBadRequest,
		"the presented claim code is unknown or has ended: %s", howToPresent)
)

// errKeepsClaim refuses to give an HTTP+SSE session, which a URL names, another claim.
// Otherwise somebody could hand out the session's URL and wait for another person's code.
var errKeepsClaim error = httpErrorf(http.StatusBadRequest,
	"an HTTP+SSE session keeps its claim: present the code when you open it")

// Gate decides which principal a request is from and what the principal may reach. Safe
// for concurrent use.
type Gate struct {
	claims   *ClaimStore // nil for stdio, which ignores claims
	sessions *sessionTable
	require  bool // requests without a claim are refused
	log      *slog.Logger
	turns    guessTurns
}

// newGate returns a gate over the claims, which are nil for stdio. key seals the ids of
// sessions.
func newGate(claims *ClaimStore, key []byte, require bool, log *slog.Logger) *Gate {
	return &Gate{
		claims:   claims,
		sessions: newSessionTable(key),
		require:  require,
		log:      log,
		turns:    guessTurns{tried: make(map[Code]time.Time), turns: make(map[Code]time.Time)},
	}
}

// admission is the result of Gate.Admit for a request. It does not change.
type admission struct {
	principal *Principal
	session   *Session // nil: the request names none
	// member ends with the principal's claim, and when the session ends or gets another
	// principal. Streams end with it.
	member context.Context
	// badCode is set if the request names no living session, or none and presents an invalid code. The
	// request may begin a session without a claim, by initialize or the GET of HTTP+SSE; otherwise
	// this error is its answer.
	badCode error

	claim  Claim     // the principal's, else the session's, which has ended; after Admit, for the log only
	sender slog.Attr // for the log: where the request came from
}

// logAttrs returns log attributes that say who has sent a request.
func (a admission) logAttrs() slog.Attr {
	session := slog.Attr{}
	if a.session != nil {
		session = slog.String("session", clipText(a.session.ID, 8))
	}
	return slog.GroupAttrs("", session, a.claim.logAttrs(), a.sender)
}

// Admit determines a request's session and principal from its headers and URL alone,
// before its body is read. It may wait some seconds for a turn (guessTurns). The error is
// the answer to a request that is not admitted.
func (g *Gate) Admit(r *http.Request) (a admission, _ error) {
	a.sender = senderAttrs(r)
	var stale error // a POST that names no living session may still be initialize
	for {
		if id, inURL := presentedSession(r); id != "" {
			a.session, a.claim = g.sessions.find(id, inURL)
			if a.session == nil {
				stale = errNoSession
			}
			if stale != nil && r.Method != "POST" {
				return a, stale
			}
		}
		of := a.claim.claimID // the session's
		facts, err := g.findFacts(r, a.session, of)
		if err != nil {
			return a, err
		}
		a.principal, a.badCode, err = decide(facts)
		a.badCode = cmp.Or(stale, a.badCode)
		if a.principal != nil && a.principal.exists() {
			a.claim = a.principal.Claim
		}
		if facts.presents && facts.presented == nil && facts.unreadable == nil {
			g.log.Warn("an invalid claim code was presented", a.logAttrs())
		}
		if err != nil {
			return a, cmp.Or(stale, err)
		}
		if a.session == nil {
			a.member = a.principal.ctx
		} else if a.member = g.sessions.touch(a.session, of, a.principal); a.member == nil {
			continue // meanwhile, another request changed the session
		}
		return a, nil
	}
}

// findFacts returns the facts about a request in a session, which is nil for none, with a
// claim. The error refuses the request.
func (g *Gate) findFacts(r *http.Request, s *Session, of claimID) (f accessFacts, err error) {
	code, presents := presentedCode(r)
	f = accessFacts{
		session:  s != nil,
		fixed:    s.isSSE(),
		scoped:   of.exists(),
		presents: presents,
		require:  g.require,
	}
	var holder *Principal // of the code of the session's claim, perhaps by another claim
	if f.scoped {
		holder, err = g.claims.Lookup(of.Code)
		if holder != nil && holder.claimID == of {
			f.own = holder
		}
	}
	switch {
	case err != nil || code == "":
	case code == of.Code: // needs no turn
		f.presented = holder
	default:
		f.presented, err = g.lookUp(r.Context(), code, f.scoped)
	}
	if errors.Is(err, errClaimsUnreadable) {
		f.unreadable = err
		err = nil
	}
	return f, err
}

// lookUp returns the principal of the active claim with this code, or nil if there is none. If
// the daemon requires claims, it waits for a turn. A session whose claim is or was active (scoped)
// never waits: without a free turn, the code counts as invalid.
func (g *Gate) lookUp(ctx context.Context, code Code, scoped bool) (*Principal, error) {
	patience := turnWait
	if scoped {
		patience = 0
	}
	if g.require && !g.turns.await(ctx, code, patience) {
		if scoped {
			return nil, nil
		}
		return nil, httpErrorf(http.StatusTooManyRequests,
			"too many unknown claim codes: try again later")
	}
	p, err := g.claims.Lookup(code)
	if g.require && g.turns.done(code, err == nil && p == nil) {
		g.log.Warn("someone may be guessing claim codes: lookups now take turns",
			"different", guessBudget)
	}
	return p, err
}

// maxBearerCode is the number of characters up to which a bearer token counts as a code.
const maxBearerCode = 12

// notACode stands for a slip in presenting a code. It counts as an invalid code.
const notACode = "?"

// presentedCode returns a request's claim code, or "" for a malformed one, and reports
// whether the request presents any. The first place that is not empty counts, valid or not:
// the header, the URL, and a bearer token. A slip in one of these places counts there as an
// invalid code, and not as no code, which may show everything.
func presentedCode(r *http.Request) (code Code, presents bool) {
	text := cmp.Or(
		strings.Join(r.Header.Values(claimHeader), ","), // two headers are no code
		codeInQuery(r.URL.RawQuery),
		codeInBearer(r.Header.Values("Authorization")))
	code, _ = parseCode(text)
	return code, text != ""
}

// codeInQuery returns the value of the one parameter "claim" of a query, or "" for none. If
// the query can't be parsed, repeats the parameter, or contains its name in any other way,
// codeInQuery returns notACode.
func codeInQuery(query string) string {
	const name = "claim"
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
	case err != nil || strings.Contains(strings.ToLower(values.Encode()), name):
		return notACode
	}
	return ""
}

// bearerToken matches the beginning of a bearer token (RFC 9110, section 11.1), also if another
// character follows than a space.
var bearerToken = regexp.MustCompile(`(?i)(^|,)[\s\pZ]*bearer`)

// codeInBearer returns the bearer token of the Authorization headers, or "" for none. Some
// clients can set no other header. Others send an unrelated token, so a token of more than
// maxBearerCode characters counts as none. If there is another header beside the token, perhaps
// joined to it by a comma, codeInBearer returns notACode.
func codeInBearer(headers []string) string {
	all := strings.TrimSpace(strings.Join(headers, ","))
	if !bearerToken.MatchString(all) {
		return ""
	}
	token := strings.TrimSpace(all[len("bearer"):])
	switch {
	case strings.Contains(all, ","):
		return notACode
	case utf8.RuneCountInString(token) > maxBearerCode:
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

// scope returns what the principal may reach now, without reading a file. Callers ask at each
// use and do not keep the scope, because a claim may end at any instant. If the error is
// not nil, the scope reaches nothing. The error is errEnded, which may be shown to clients.
func (p *Principal) scope() (Scope, error) {
	switch {
	case p == everyone:
		return scopeAll(), nil
	case p.exists() && !p.Ended():
		return scopeDir(p.ScopeDir), nil
	}
	return Scope{}, errEnded
}

// Create makes a session for the principal in from, for an initialize or for the stream of HTTP+SSE. It
// returns from with the new session. It writes no file: the session's id contains everything. The
// principal must not be strangers: their session would have no claim, and so would see everything.
func (g *Gate) Create(from admission, protocol string, caps clientCaps) admission {
	s := newSession(sessionOrigin{Protocol: protocol, Caps: caps, Claim: from.principal.claimID})
	s.name = g.sessions.seal(s.sessionOrigin)
	if protocol == sseProtocol {
		s.name = s.ID
	}
	from.session = s
	from.member = g.sessions.touch(s, from.principal.claimID, from.principal)
	return from
}

// ---- Guessing

// With -require-claim, lookups of codes take turns once many codes were invalid, so that a day of
// guessing finds one given valid code with a chance of one in a thousand (TestGuessesTakeTurns).

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

// sessionless returns the admission of a request without a session, which gets a Session of its own.
// reachable ends the request's streams. h is nil if the transport has no headers.
func (from admission) sessionless(
	reachable context.Context, h http.Header, method string, identity object,
) (admission, error) {
	client, err := parseIdentity(h, method, identity)
	if err != nil {
		return from, err
	}
	from.member = from.principal.ctx
	from.session = newSession(sessionOrigin{Protocol: statelessProtocol, Caps: client.caps})
	from.session.era = stateless
	from.session.reachable = reachable
	from.session.profile.Store(&client)
	return from, nil
}
