// Scope: which principal a request is from, and which part of the workspace it may
// reach. Both follow from the request's headers and URL alone, by one table (decide), and
// are fixed once the request is admitted. Nothing here depends on modules or messages.
//
// Guarantees, and the tests that check them:
//
//   - No failure widens a scope: not an ended claim, not a file that can't be read, not a
//     restart (TestDecisionsNeverWiden, TestScopeTable, TestModel).
//   - A client can neither make nor change a session id (TestForgedIDsAreRefused).

package main

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"strings"
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

// errNoSession refuses a request whose session has ended or never existed. Clients then
// begin a new one (MCP, basic/transports, "Session Management").
var errNoSession error = httpErrorf(http.StatusNotFound,
	"this session is unknown or has ended: send initialize again")

// errOtherClaim ends the streams of a session that now belongs to another principal.
var errOtherClaim = errors.New("the session has another claim")

// errKeepsClaim refuses to give an HTTP+SSE session, which a URL names, another claim.
// Otherwise somebody could hand out the session's URL and wait for another person's code.
var errKeepsClaim error = httpErrorf(http.StatusBadRequest,
	"an HTTP+SSE session can't change its claim: present the code when you open its stream")

// Gate decides which principal a request is from and what the principal may reach. Safe
// for concurrent use.
type Gate struct {
	claims   *ClaimStore // nil for stdio, which ignores claims
	sessions *sessionTable
	require  bool // no request without a claim is admitted
	log      *slog.Logger
	turns    *guessTurns // see newGuessTurns
}

// newGate returns a gate over the claims, which are nil for stdio. key seals the ids of
// sessions.
func newGate(claims *ClaimStore, key []byte, require bool, log *slog.Logger) *Gate {
	return &Gate{
		claims:   claims,
		sessions: newSessionTable(key),
		require:  require,
		log:      log,
		turns:    newGuessTurns(),
	}
}

// admission is the result of Gate.Admit for a request. It does not change.
type admission struct {
	principal *Principal
	session   *Session // nil: the request names none
	// member ends with the principal's claim, and when the session ends or gets another
	// principal. Streams end with it.
	member context.Context
	// badCode is set if the request names no session and presents an invalid code. The
	// request may begin a session without a claim; otherwise this error is its answer.
	badCode error
}

// Admit determines a request's session and principal from its headers and URL alone,
// before its body is read. It may wait some seconds for a turn (guessTurns). The error is
// the answer to a request that is not admitted.
func (g *Gate) Admit(r *http.Request) (admission, error) {
	for {
		var a admission
		var of claimID // the session's claim
		var err error
		if id, inURL := presentedSession(r); id != "" {
			a.session, of, err = g.sessions.find(id, inURL)
			if err != nil {
				return a, err
			}
		}
		if err := g.judge(r, &a, of); err != nil {
			return a, err
		}
		if a.session == nil {
			a.member = a.principal.ctx
			return a, nil
		}
		var ok bool
		if a.member, ok = g.sessions.use(a.session, of, a.principal); ok {
			if p := a.principal; p.exists() && p.claimID != of {
				g.logScoped("session scoped", a.session, p)
			}
			return a, nil
		}
		// Meanwhile, another request changed the session.
	}
}

// judge determines the principal of a request by the table, and sets badCode. of is the
// claim of the request's session.
func (g *Gate) judge(r *http.Request, a *admission, of claimID) error {
	facts, own, presented, err := g.findFacts(r, a.session != nil, of)
	if err != nil && !facts.unreadable {
		return err
	}
	switch decide(facts) {
	case denyUnreadable:
		return httpErrorf(http.StatusServiceUnavailable,
			"%v: requests with a claim code are refused", errClaimsUnreadable).because(err).retryAfter(5)
	case denyUnclaimed:
		if facts.presents {
			return errBadCode
		}
		return httpErrorf(http.StatusBadRequest, needsCode)
	case allowPresented:
		if a.session != nil && a.session.Protocol == sseProtocol && of != presented.claimID {
			return errKeepsClaim
		}
		a.principal = presented
		return nil
	case allowOwn:
		a.principal = own
	case denyEnded:
		a.principal = strangers
	case allowInitialize:
		a.principal = everyone
		a.badCode = errBadCode
	default:
		a.principal = everyone
	}
	if facts.presents {
		g.log.Warn("an invalid claim code was presented",
			"in_session", facts.session, "scoped", facts.scoped)
	}
	return nil
}

// findFacts returns the facts about a request, the principal of its session's claim (of) if
// that claim is active, and the principal whose code the request presents. If
// facts.unreadable is set, the error is the reason; any other error refuses the request.
func (g *Gate) findFacts(r *http.Request, inSession bool, of claimID) (
	facts accessFacts, own, presented *Principal, err error,
) {
	code, presents := presentedCode(r)
	facts = accessFacts{
		session:  inSession,
		scoped:   of.exists(),
		presents: presents,
		require:  g.require,
	}
	if facts.scoped {
		own, err = g.claims.Lookup(of.Code)
		if own != nil && own.claimID != of {
			own = nil
		}
	}
	if err == nil {
		presented, err = g.lookUp(r, code, own)
	}
	facts.unreadable = errors.Is(err, errClaimsUnreadable)
	facts.active = own != nil
	facts.valid = presented != nil
	return facts, own, presented, err
}

// lookUp returns the principal of the active claim with this code, or nil if there is none or
// code is "". If the daemon requires claims, it waits for a turn. A session with an active
// claim, own, never waits: its own code needs no turn, and without a free turn, another
// code counts as invalid. Nor does the only code of a connection, once it was valid.
func (g *Gate) lookUp(r *http.Request, code Code, own *Principal) (*Principal, error) {
	if code == "" {
		return nil, nil
	}
	known := recordCode(r, code, false)
	if own != nil && code == own.Code {
		return own, nil
	}
	patience := turnWait
	if own != nil {
		patience = 0
	}
	takesTurn := g.require && !known
	if takesTurn && !g.turns.await(r.Context(), code, patience) {
		if own != nil {
			return nil, nil
		}
		return nil, httpErrorf(http.StatusTooManyRequests,
			"too many unknown claim codes: try again later").retryAfter(10)
	}
	p, err := g.claims.Lookup(code)
	recordCode(r, code, p != nil)
	if takesTurn && g.turns.done(code, err == nil && p == nil) {
		g.log.Warn("someone may be guessing claim codes: lookups now take turns",
			"different", guessBudget)
	}
	return p, err
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

// Scope returns what a principal may reach now, without reading a file. Callers ask at each
// use and do not keep the scope, because a claim may end at any instant. If the error is
// not nil, the scope reaches nothing. The error is errEnded, which may be shown to clients.
func (g *Gate) Scope(p *Principal) (Scope, error) {
	switch {
	case p == everyone:
		return scopeAll(), nil
	case p.exists() && !p.Ended():
		return scopeDir(p.ScopeDir), nil
	}
	return Scope{}, errEnded
}

// Create makes a session for an admitted initialize, or for the stream of HTTP+SSE, and
// returns the admission of its principal in that session. No file is written: the session's
// id contains everything.
func (g *Gate) Create(protocol string, caps clientCaps, from admission) admission {
	from.session, from.member = g.sessions.create(protocol, caps, from.principal)
	if from.principal.exists() {
		g.logScoped("session", from.session, from.principal)
	}
	return from
}

// logScoped logs which claim a session has.
func (g *Gate) logScoped(what string, s *Session, p *Principal) {
	g.log.Info(what, p.logAttrs(), "session", clipText(s.ID, 8))
}
