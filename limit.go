// Limits: the table of all limits, and the counter that enforces those on what principals
// use at once. Only the table names concepts of usher.

package main

import (
	"cmp"
	"math"
	"slices"
	"sync"
)

// The limits that clients, senders and modules can reach, by the file that enforces them. Each
// line says the unit and what the limit applies to. A principal is one claim, everyone without a
// claim, the senders of accepted deliveries, or strangers. A request beyond a limit waits, is
// refused, or evicts the oldest entry of its principal. Other principals are affected only by
// guessing, or if several together spend what they share: connections, maxHeld, and the calls and
// processes of a module. Time limits are declared where they are used.
const (
	// http.go, serve.go: connections, headers of requests, texts.
	maxConns  = 1000     // connections without an admitted request; fewer if descriptors are few
	maxHeader = 16 << 10 // bytes of one request's headers; net/http adds 4 KiB
	maxLogged = 200      // bytes of one value in the log that a client chose
	maxError  = 4 << 10  // bytes of one error's text, which usher does not count

	// memory.go: what usher holds in memory for requests.
	defaultMaxBody = 4 << 20   // bytes of one request's body (-max-body)
	maxHeldOf      = 64 << 20  // bytes held per principal (all senders are one); at least two bodies
	maxHeldUnknown = 32 << 20  // bytes held for all unauthenticated senders; at least -max-body
	maxHeld        = 512 << 20 // bytes held for all principals; at least what one may hold
	maxWrite       = 64 << 10  // bytes of an answer that the client must accept within writeTimeout

	// jsonrpc.go: messages.
	maxID = 16 << 10 // bytes of one id or progress token, which messages to the client repeat

	// outbox.go: messages to clients.
	maxOutbox = 4 << 20 // bytes queued in one outbox behind the message being written, or one larger message

	// scope.go: invalid codes, with -require-claim.
	guessBudget = 60 // different invalid codes per minute looked up at once, for the whole daemon
	guessRate   = 10 // lookups per second after that, for the whole daemon

	// gomodule.go, runtimes.go: files of the workspace.
	maxSource     = 1 << 20 // bytes of one source file or .mcp.json
	maxExecutable = 1 << 30 // bytes of one executable module

	// schema.go: the check of one call's arguments.
	maxCheckDepth = 10_000 // nested schemas: more could overflow the stack, which ends the daemon

	// schema.go: one definition of a server.
	maxSchemaDepth = 150 // nested objects and arrays; a deeper definition is left out

	// shell.go: calls of shell modules.
	maxShellOutput = 4 << 20 // bytes of one call's result

	// worker.go, process.go: one process of a module.
	maxInput      = 1000     // messages queued for one process, beyond which those without a call are dropped
	maxWorkerLine = 64 << 20 // bytes of one line of a process, of a client of stdio, or of the daemon at -url
	maxAsks       = 64       // unanswered asks of one process to clients of one principal
	maxLoggedLine = 16 << 10 // bytes logged of one stray line, or of a traceback
	tailLines     = 8        // lines of stderr in the error of one failed start, or call of a shell function
	maxList       = 16 << 20 // bytes of one list of a module, after which no further page is read

	// pool.go, modules.go: the processes of one module.
	maxProcs     = 16 // processes of one hosted server, besides those that usher starts for itself
	maxProcsOf   = 4  // processes of one module per claim
	maxProcsOpen = 12 // processes of one module for all callers without a claim
	maxRunning   = 64 // running calls of one module, cancelled ones included; more calls wait
	maxRunningOf = 32 // running calls of one module per principal, and for all webhooks
	maxRounds    = 32 // times that one call may ask for input

	// modules.go, view.go, report.go: the registry and its views.
	maxIntrospections = 8                        // modules being introspected at once, builds excluded
	maxToolName       = 64 - len("mcp__usher__") // characters of one tool name without a warning
	maxViews          = 1000                     // views in memory, each for one scope or Member
	maxURI            = 8 << 10                  // bytes of one resource URI from a client

	// mcp.go, webhook.go: requests.
	maxInFlight     = 256  // in flight per principal, until their answers are written; and deliveries
	maxStreams      = 16   // notification streams of a session
	maxStreamsOf    = 256  // notification streams per principal, listens included
	maxInstructions = 2000 // bytes of the instructions: some clients cut them at 2,048
	maxSuspended    = 64   // questions of suspended calls per principal

	// signature.go: one delivery.
	maxSignatures    = 16      // signatures
	maxSignatureSize = 4 << 10 // bytes of the headers with signatures

	// session.go: sessions.
	maxSessionsOf = 1000 // in memory per principal; the oldest idle ones are forgotten
)

// counter counts what its keys use, in items or bytes. Most keys are principals. A counter compares
// keys with ==, and forgets a key that uses nothing. Safe for concurrent use.
type counter struct {
	perKey int // the most that one key may use
	// limitOf returns the most that a key may use; nil: perKey.
	limitOf func(any) int
	total   int // the most that all keys together may use; 0: unlimited

	mu      sync.Mutex // guards the fields below
	used    map[any]int
	all     int     // the sum of used
	waiting []*slot // in order
}

// reserve counts n more for a key, unless that would exceed a limit. If it returns true, the caller
// must release n.
func (c *counter) reserve(key any, n int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.reserveLocked(key, n)
}

// reserveLocked does the work of reserve. The caller holds c.mu.
func (c *counter) reserveLocked(key any, n int) bool {
	total := cmp.Or(c.total, math.MaxInt)
	most := c.perKey
	if c.limitOf != nil {
		most = c.limitOf(key)
	}
	if c.used[key]+n > most || c.all+n > total {
		return false
	}
	c.addLocked(key, n)
	return true
}

// release counts n fewer for a key, and gives the room to slots that wait.
func (c *counter) release(key any, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.addLocked(key, -n)
	c.grantWaiting()
}

// addLocked counts n more for a key, even beyond the limits. The caller holds c.mu.
func (c *counter) addLocked(key any, n int) {
	if c.used == nil {
		c.used = make(map[any]int)
	}
	c.all += n
	c.used[key] += n
	if c.used[key] == 0 {
		delete(c.used, key)
	}
}

// count returns what a key uses.
func (c *counter) count(key any) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.used[key]
}

// busy reports whether slots wait for room.
func (c *counter) busy() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.waiting) > 0
}

// grantWaiting gives the room that is left to the slots that have waited longest. A key that has
// used up its own share does not hold up others. The caller holds c.mu.
func (c *counter) grantWaiting() {
	c.waiting = slices.DeleteFunc(c.waiting, func(s *slot) bool {
		s.counts = c.reserveLocked(s.key, 1)
		if s.counts {
			close(s.granted)
		}
		return s.counts
	})
}

// slot counts one item of a key, which may have to wait for room.
type slot struct {
	counter *counter
	key     any

	// Guarded by counter.mu:
	granted chan struct{} // closed unless the slot waits; nil if it does not count either
	counts  bool
}

// queue queues the slot, first come, first served, unless it waits or counts. It returns a channel that
// is closed when the slot counts or is released. The caller must call release.
func (s *slot) queue() (granted <-chan struct{}) {
	c := s.counter
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.granted == nil {
		s.granted = make(chan struct{})
		c.waiting = append(c.waiting, s)
		c.grantWaiting()
	}
	return s.granted
}

// release makes room, or gives up waiting for it. It does not block, and does nothing for a nil slot or
// one that neither waits nor counts.
func (s *slot) release() {
	if s == nil {
		return
	}
	c := s.counter
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case s.counts:
		c.addLocked(s.key, -1)
	case s.granted != nil:
		close(s.granted)
	}
	c.waiting = remove(c.waiting, s)
	s.granted = nil
	s.counts = false
	c.grantWaiting()
}
