// Guessing: how usher slows down clients that try one claim code after another. With
// -require-claim, a day of guessing finds one given valid code with a chance of one in a
// thousand (TestGuessesTakeTurns). Nothing here decides what a code grants.

package main

import (
	"context"
	"maps"
	"net/http"
	"sync"
	"time"
)

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

// connectionCodes remembers the first codes that the requests of a connection present, at most
// two, and whether a lookup found them valid. Safe for concurrent use.
type connectionCodes struct {
	mu    sync.Mutex
	valid map[Code]bool
}

type codesKey struct{}

// rememberCodes returns the context of a new connection.
func rememberCodes(ctx context.Context) context.Context {
	return context.WithValue(ctx, codesKey{}, &connectionCodes{valid: make(map[Code]bool)})
}

// recordCode records that a request presents a code, and perhaps that the code was found valid.
// It reports whether the code is the only one of the request's connection so far, and was found
// valid.
func recordCode(r *http.Request, code Code, valid bool) bool {
	c, ok := r.Context().Value(codesKey{}).(*connectionCodes)
	if !ok {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.valid) < 2 {
		c.valid[code] = c.valid[code] || valid
	}
	return len(c.valid) == 1 && c.valid[code]
}
