// Limits of asking: suspended calls of a principal, and questions in one call.

package main

import (
	"sync"
	"testing"
)

func TestAskBounds(t *testing.T) {
	long(t)
	d := startFakes(t,
		"a: fixed names tools=ask",
		"b: fixed names tools=ask",
		"c: fixed names tools=ask",
	)
	c := askModern(t, d.URL, askAllCaps, "")
	ask := askForms("bounds")
	suspend := func(tool string, n int) (states []string) {
		var all sync.WaitGroup
		states = make([]string, n)
		for i := range states {
			all.Go(func() { states[i] = stringField(c.round(tool, ask).result(), "requestState") })
		}
		all.Wait()
		return states
	}
	states := suspend("a_ask", maxRunningOf)
	suspend("b_ask", maxSuspended-maxRunningOf)
	tooMany := c.round("c_ask", ask)
	checkContains(t, "one call too many", tooMany.failure(), "too many calls")
	other := askModern(t, d.URL, askAllCaps, newClaimFor(t, d.Base, d.Dir).Code.Reveal())
	askState(t, other.round("a_ask", ask), 1) // another principal

	resume := func(state string) {
		a := c.round("a_ask", ask, withState(state, `{"ask-1":{"action":"decline"}}`)...)
		check(t, "a suspended call: failure", a.failure(), "")
		checkContains(t, "a suspended call", resultText(a.result()), "decline")
	}
	resume(states[0])
	askState(t, c.round("c_ask", ask), 1) // which has made room
	var all sync.WaitGroup
	for _, state := range states[1:] {
		all.Go(func() { resume(state) })
	}
	all.Wait()
}

// TestAskFlood has one call ask more than it may at once: some questions are refused, and each gets an answer.
func TestAskFlood(t *testing.T) {
	long(t)
	d := startFakes(t, "a: fixed names tools=ask")
	var flood fakeAsk
	for range 5 * maxAsks {
		flood.Asks = append(flood.Asks, askFor("form", "x"))
	}
	flood.Copes = true
	c := askOverPOST(t, d.URL, "2025-11-25", askAllCaps, "")
	c.answer = askAnswer("flood")
	_, got, text := askGot(c.call("a_ask", flood))
	check(t, "answers", len(got), len(flood.Asks))
	checkContains(t, "the answers", text, "flood")
}
