// Scope: which part of the workspace a caller may reach, and how a session and
// what it presents decide that. This file asks the claim store; it knows no
// module, nor how a request looks.

package main

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
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

// scopeAll is the whole workspace: what a caller without a claim sees.
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
	if s.dir == "" || source == "" {
		return false
	}
	rest, ok := strings.CutPrefix(source, s.dir)
	if !ok {
		return false
	}
	return rest == "" || os.IsPathSeparator(rest[0]) || os.IsPathSeparator(s.dir[len(s.dir)-1])
}

// claimStamp is the claim that a session is scoped to: enough to know it again,
// and to tell it from another claim under the same code.
type claimStamp struct {
	Code      Code      `json:"code"`
	CreatedAt time.Time `json:"createdAt"`
	ScopeDir  string    `json:"claimScopeDir"`
}

func stampOf(c Claim) claimStamp { return claimStamp{c.Code, c.CreatedAt, c.ScopeDir} }

// is reports whether c is the stamped claim, and its record is unaltered in
// what the session was given.
func (s claimStamp) is(c Claim) bool {
	return s.Code == c.Code && s.CreatedAt.Equal(c.CreatedAt) && s.ScopeDir == c.ScopeDir
}

// standing is all that the scope of a request depends on.
type standing struct {
	scoped     bool // the session has a claim of its own
	ownHolds   bool // and that claim has not ended
	presents   bool // a code, of whatever worth
	valid      bool // one of the codes presented is a claim's
	unreadable bool // the claims can't be read: ownHolds and valid are unknown
	require    bool // the daemon serves nobody without a claim
}

// verdict is what becomes of a request.
type verdict int

const (
	whole       verdict = iota // the whole workspace
	own                        // the session's own claim
	presented                  // the claim presented, from now on the session's own
	ended                      // a claim that has ended: nothing is seen, every call refused
	unclaimed                  // HTTP 401: it presents nothing valid, and must
	unavailable                // HTTP 503: who may see what can't be told just now
)

// judge is the table of who sees what. No row of it widens what a session had
// because something failed.
func judge(s standing) verdict {
	switch {
	case s.unreadable && (s.scoped || s.presents):
		return unavailable
	case s.valid:
		return presented
	case s.scoped && s.ownHolds:
		return own
	case s.scoped:
		return ended
	case s.require:
		return unclaimed
	default:
		return whole
	}
}

// The gate's errors, beside errClaimsUnreadable.
var (
	errUnclaimed = errors.New("usher serves nobody without a claim here: present a code, made by usher claim, in the header Mcp-Claim-Code or as ?claim=")
	errGuessing  = errors.New("too many codes that nobody was ever given: wait before the next try")
	errEnded     = errors.New("the claim of this session has ended: ask for a new code and connect with it")
)

// Gate decides what a request may reach. Safe for concurrent use.
type Gate struct {
	claims  *ClaimStore
	require bool
	now     func() time.Time
	logKey  [16]byte // of the names that claims have in the log, this time

	mu      sync.Mutex
	proved  map[Code]bool // codes that were valid once; they cost no guess
	guesses float64       // left
	refill  time.Time     // when guesses was last brought up to date
}

func newGate(claims *ClaimStore, require bool, now func() time.Time) *Gate {
	g := &Gate{claims: claims, require: require, now: now, proved: make(map[Code]bool), guesses: guessBudget, refill: now()}
	rand.Read(g.logKey[:]) // never fails
	return g
}

// admit judges a request that presents codes, of a session with the claim own,
// nil for an unscoped or a new one. It returns the verdict, and for presented the
// claim. The error is errGuessing for a newcomer over the budget, and for
// unavailable says why the claims can't be read, which is for the log only.
func (g *Gate) admit(codes []Code, own *claimStamp) (verdict, claimStamp, error) {
	s := standing{scoped: own != nil, presents: len(codes) > 0, require: g.require}
	var found claimStamp
	var why error
	if own != nil {
		g.prove(own.Code)
		_, err := g.holds(*own)
		if s.ownHolds = err == nil; errors.Is(err, errClaimsUnreadable) {
			s.unreadable, why = true, err
		}
	}
	guessing := false
	for _, code := range codes {
		if !g.mayLookUp(code) {
			guessing = true
			continue // a session goes on as if it had presented nothing
		}
		c, ok, err := g.claims.Lookup(code)
		if err != nil {
			g.refund(code)
			s.unreadable, why = true, err
			break
		}
		if ok {
			g.refund(code)
			g.prove(code)
			s.valid, found = true, stampOf(c)
			break
		}
	}
	if guessing && own == nil && !s.valid && !s.unreadable {
		return unclaimed, found, errGuessing
	}
	return judge(s), found, why
}

// claim is the stamped claim as it stands now. The error is errEnded for one that
// is over, or matches errClaimsUnreadable.
func (g *Gate) claim(s claimStamp) (Claim, error) {
	c, ok, err := g.claims.Lookup(s.Code)
	if err != nil {
		return Claim{}, err
	}
	if !ok || !s.is(c) {
		return Claim{}, errEnded
	}
	return c, nil
}

// holds is the scope of a session's claim, now, which reaches nothing if there
// is an error: claim's.
func (g *Gate) holds(s claimStamp) (Scope, error) {
	c, err := g.claim(s)
	return scopeDir(c.ScopeDir), err
}

// expiry is when a claim that holds will end.
func (g *Gate) expiry(s claimStamp) (time.Time, bool) {
	c, err := g.claim(s)
	return c.ExpiresAt, err == nil
}

// name is what a claim is called in the log: a short keyed hash, since codes are
// never logged, not even in part.
func (g *Gate) name(s claimStamp) string {
	mac := hmac.New(sha256.New, g.logKey[:])
	fmt.Fprint(mac, s.Code.Reveal(), s.CreatedAt.UnixNano())
	return hex.EncodeToString(mac.Sum(nil)[:4])
}

// label is the label of a claim that holds; "" for any other.
func (g *Gate) label(s claimStamp) string {
	c, _ := g.claim(s)
	return c.Label
}

func (g *Gate) prove(code Code) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.proved[code] = true
}

// mayLookUp reports whether a code is looked up at all, and charges one that has
// not proved itself. Past the budget such a one is not looked up, so that the
// answer tells a guesser nothing. Where no claim is required there is nothing to
// guess for.
func (g *Gate) mayLookUp(code Code) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.require || g.proved[code] {
		return true
	}
	now := g.now()
	g.guesses = min(guessBudget, g.guesses+now.Sub(g.refill).Minutes()*guessBudget)
	g.refill = now
	if g.guesses < 1 {
		return false
	}
	g.guesses--
	return true
}

// refund takes back what mayLookUp charged for a code that was no guess.
func (g *Gate) refund(code Code) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.require && !g.proved[code] {
		g.guesses++
	}
}
