// Tests of guessing.

package main

import (
	"errors"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// guessOutcome is how a presented code was answered: its status and the wait.
type guessOutcome struct {
	Status int
	Took   time.Duration
}

// guess presents a code to a gate, in a session if one is given.
func guess(t *testing.T, g *Gate, code string, session ...string) guessOutcome {
	t.Helper()
	start := time.Now()
	r := httptest.NewRequestWithContext(t.Context(), "POST", "/", nil)
	r.Header.Set(claimHeader, code)
	r.Header[sessionHeader] = session
	_, err := g.Admit(r)
	status := 200
	if e, ok := errors.AsType[*fault](err); ok {
		status = e.Status
	}
	return guessOutcome{status, time.Since(start)}
}

// unknownCodes returns n codes that, with overwhelming likelihood, were never
// issued.
func unknownCodes(n int) []string {
	var codes []string
	for i := range n {
		codes = append(codes,
			string([]byte{codeAlphabet[i%31], codeAlphabet[i/31], '2', '2', 'Z', 'Z'}))
	}
	return codes
}

// testGate returns a gate over the claims and the session key of a data folder.
func testGate(t testing.TB, data string, require bool) (*Gate, *ClaimStore) {
	t.Helper()
	log := quiet
	store := testStore(t, data)
	key, err := readSessionKey(data)
	must(t, err)
	return newGate(store, key, require, log), store
}

// After guessBudget invalid codes in a minute, every code waits for one of guessRate turns
// a second, except a session's own.
func TestGuessesTakeTurns(t *testing.T) {
	data := t.TempDir()
	inSync(t, func(t *testing.T) {
		g, store := testGate(t, data, true)
		good, moved, ended := mustCreate(t, store), mustCreate(t, store), mustCreate(t, store)
		session := func(c Claim) string {
			owner, err := store.Lookup(c.Code)
			must(t, err)
			return g.Create(admission{principal: owner}, protocols[0], 0).session.name
		}
		id, endedID := session(good), session(ended)
		atOnce := func(status int) guessOutcome { return guessOutcome{status, 0} }
		codes := unknownCodes(300)
		for range 3 * guessBudget { // as a client does whose claim has ended
			check(t, "the same unknown code again", guess(t, g, codes[0]), atOnce(400))
		}
		for _, code := range codes[1:guessBudget] {
			check(t, "a guess below the limit", guess(t, g, code), atOnce(400))
		}
		check(t, "the first turn", guess(t, g, codes[guessBudget]), atOnce(400))
		check(t, "a valid code, in its turn", guess(t, g, good.Code.Reveal()),
			guessOutcome{200, turnEvery})
		check(t, "a session that presents its own code",
			guess(t, g, good.Code.Reveal(), id), atOnce(200))
		check(t, "a session that presents none", guess(t, g, "", id), atOnce(200))
		check(t, "a word", guess(t, g, "hello"), atOnce(400))

		counts := make(map[int]int)
		var mu sync.Mutex
		var guesses sync.WaitGroup
		crowd := append(codes[100:250:250], good.Code.Reveal(), good.Code.Reveal(),
			moved.Code.Reveal())
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
		check(t, "another code, in a session, with no turn free",
			guess(t, g, moved.Code.Reveal(), id), atOnce(200))
		check(t, "the session has not moved", claimOf(t, g, id), good.claimID)
		_, err := store.Revoke(t.Context(), ended.Code)
		must(t, err)
		check(t, "a session whose claim has ended presents its code",
			guess(t, g, ended.Code.Reveal(), endedID), atOnce(200))
		check(t, "it presents another one, with no turn free",
			guess(t, g, moved.Code.Reveal(), endedID), atOnce(200))
		check(t, "it has not moved", claimOf(t, g, endedID), ended.claimID)
		guesses.Wait()
		turns := int(turnWait/turnEvery) + 1
		if served := counts[400] + counts[200]; served > turns {
			t.Errorf("%d of a crowd of %d were looked up, at most %d", served,
				len(crowd), turns)
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

// Requests with one code share a turn.
func TestOneCodeHasOneTurn(t *testing.T) {
	inSync(t, func(t *testing.T) {
		turns := &newGate(nil, newSessionKey(), true, quiet).turns
		check(t, "a valid code", turns.await(t.Context(), "VALIDX", 0) &&
			!turns.done("VALIDX", false), true)
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
		check(t, "three codes wait for more than three turns",
			time.Since(start) > 3*turnEvery, false)
	})
}
