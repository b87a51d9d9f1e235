// What a hostile or careless client must not take from others: processes, slots,
// memory, and the answers of other clients.

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// oddMeta is the _meta of a client without sessions that can be asked for the
// user's input.
var oddMeta = fmt.Sprintf(`"_meta":{%q:%q,%q:{"elicitation":{}}}`, metaProtocol, statelessProtocol, metaClientCaps)

// limitCase exceeds a limit per principal over HTTP.
type limitCase struct {
	most    int                                          // requests within the limit
	request func(b *bubble, c *testClient) *http.Request // one of them
	refusal string                                       // of one more
	long    bool
}

// limitCases has a case for each limit that clients can exceed by requests alone.
var limitCases = map[string]limitCase{
	"maxInFlight": {most: maxInFlight, request: waitRequest, refusal: "too many requests in flight"},
	"maxInFlightBytes": {
		most: maxInFlightBytes / (1_000_000 + 200),
		request: func(b *bubble, c *testClient) *http.Request {
			const params = `{"name":"m_wait","arguments":{"seconds":60,"pad":%q}}`
			return c.request(http.MethodPost, c.message("tools/call", fmt.Sprintf(params, strings.Repeat("x", 1_000_000))))
		},
		refusal: "too many requests in flight",
		long:    true,
	},
	"maxStreams": {
		most:    maxStreams,
		request: func(_ *bubble, c *testClient) *http.Request { return c.getRequest() },
		refusal: "too many streams",
	},
	"maxStreamsOf": {
		most:    maxStreamsOf,
		request: func(b *bubble, c *testClient) *http.Request { return b.sessionLike(c).getRequest() },
		refusal: "too many streams",
	},
	"maxProcsOf": {
		most:    maxProcsOf,
		request: func(b *bubble, c *testClient) *http.Request { return waitRequest(b, b.sessionLike(c)) },
		refusal: "is busy",
	},
}

// otherLimits names the test of each other limit, or says why there is none.
var otherLimits = map[string]string{
	"maxHeader":           "TestBadRequests",
	"defaultMaxBody":      "TestBadRequests",
	"maxBodies":           "TestBodiesHaveOneBudget",
	"maxBodiesOf":         "TestBodiesHaveOneBudget",
	"bodyChunk":           "TestWebhookEndlessBody",
	"maxWrite":            "TestSlowReaders",
	"maxOutbox":           "TestSlowClientIsDropped",
	"maxDuplexOutbox":     "TestSlowClientIsDropped",
	"maxReplayBytes":      "TestReplayBounds",
	"maxReplayBytesOf":    "TestReplayBounds",
	"maxReplayMessage":    "TestReplayBounds",
	"minKept":             "TestReplayBounds",
	"maxRecordsOf":        "TestRecordsAreBounded",
	"sessionLogSlack":     "TestSessionLogIsCompacted",
	"guessBudget":         "TestGuessing",
	"guessRate":           "TestGuessing",
	"maxSource":           "TestOddFiles",
	"maxExecutable":       "a test would read a GiB; it is the check of maxSource with another number",
	"maxShellOutput":      "TestShellModule",
	"shellTail":           "TestShellModule",
	"maxWorkerLine":       "TestPythonHosted",
	"maxInput":            "TestModuleThatDoesNotRead",
	"maxAsks":             "TestAskFlood",
	"maxSuspended":        "TestAskBounds",
	"maxLoggedLine":       "clips what is shown, and holds up nothing",
	"tailLines":           "clips what is shown, and holds up nothing",
	"maxPages":            "fails the list of a module that has no end, for this module alone",
	"maxProcs":            "TestProcessesAreBounded",
	"maxRunning":          "TestCallsWaitForTheirTurn",
	"maxRunningOf":        "TestCallsWaitForTheirTurn",
	"maxRounds":           "ends a call that its module keeps asking in, for its client alone",
	"maxIntrospections":   "TestWhoWaitsForModules",
	"maxToolName":         "is a warning",
	"maxURI":              "TestResourcesHaveOneOwner",
	"maxInstructions":     "clips what is shown, and holds up nothing",
	"maxSessionsOf":       "TestSessionsInMemory",
	"maxWanted":           "TestListenerWantsTooMuch",
	"maxWantedBytes":      "TestListenerWantsTooMuch",
	"defaultWebhookLimit": "TestWebhookLimit",
	"maxSignatures":       "TestSignatureNearMisses",
	"maxSignatureHeaders": "TestSignatureNearMisses",
}

func waitRequest(_ *bubble, c *testClient) *http.Request {
	return c.request(http.MethodPost, c.message("tools/call", `{"name":"m_wait","arguments":{"seconds":60}}`))
}

// sessionLike begins a session for the principal of another session.
func (b *bubble) sessionLike(c *testClient) *testClient {
	b.t.Helper()
	session := b.open(protocols[0])
	session.Header = c.Header
	session.ask("ping", "")
	return session
}

// TestLimits exceeds the limits of http.go: one request too many is refused, and
// another principal's is not. It checks too that no limit is without a test or a
// reason.
func TestLimits(t *testing.T) {
	t.Parallel()
	for name, tt := range limitCases {
		t.Run(name, func(t *testing.T) {
			if tt.long && testing.Short() {
				t.Skip("long")
			}
			inBubble(t, func(t *testing.T, b *bubble) {
				client := func() *testClient {
					c := b.open(protocols[0])
					c.Header.Set(claimHeader, newClaimFor(t, b.base, "/w").Code.Reveal())
					c.ask("ping", "")
					return c
				}
				var all []*exchange
				begin := func(c *testClient) (text string) {
					x := b.begin(tt.request(b, c))
					all = append(all, x)
					pass(100 * time.Millisecond)
					_, text = x.got()
					return text
				}
				greedy, other := client(), client()
				for range tt.most {
					checkOmits(t, "a request within the limit", begin(greedy), tt.refusal)
				}
				checkContains(t, "one request more", begin(greedy), tt.refusal)
				checkOmits(t, "another principal's request", begin(other), tt.refusal)
				for _, x := range all {
					x.hangUp()
				}
				pass(3 * time.Minute)
				checkOmits(t, "a request after all that", begin(greedy), tt.refusal)
				all[len(all)-1].hangUp()
			})
		})
	}
	t.Run("complete", checkLimitsAreTested)
}

func checkLimitsAreTested(t *testing.T) {
	source, err := os.ReadFile("http.go")
	must(t, err)
	_, table, _ := strings.Cut(string(source), "\nconst (")
	table, _, _ = strings.Cut(table, "\n)\n")
	var names, tested []string
	for _, line := range regexp.MustCompile(`(?m)^\t(\w+) += .+? +// `).FindAllStringSubmatch(table, -1) {
		names = append(names, line[1])
	}
	tests := ""
	files, _ := filepath.Glob("*_test.go")
	for _, file := range files {
		text, err := os.ReadFile(file)
		must(t, err)
		tests += string(text)
	}
	for name, test := range otherLimits {
		tested = append(tested, name)
		if strings.HasPrefix(test, "Test") {
			checkContains(t, "the tests", tests, "\nfunc "+test+"(")
		}
	}
	tested = slices.AppendSeq(tested, maps.Keys(limitCases))
	slices.Sort(names)
	slices.Sort(tested)
	check(t, "limits that are tested", tested, names)
}

// TestSessionsInMemory opens more sessions of a principal than are kept in memory. Idle
// ones are forgotten, the least recently used first; sessions of others are not.
func TestSessionsInMemory(t *testing.T) {
	t.Parallel()
	s := newSessionTable()
	open := func(principal string) *Session {
		return s.open(newSessionToken(protocols[0], 0, Principal{}, time.Now()), principal)
	}
	used := open("a claim")
	used.join(&outbox{})
	touched := open("a claim")
	idle := open("a claim")
	moved := open("a claim")
	other := open("another")
	s.open(moved.token, "another")
	for range maxSessionsOf {
		open("a claim")
		if s.open(touched.token, "a claim") != touched {
			t.Fatal("two values for one session")
		}
	}
	for name, session := range map[string]*Session{
		"a session with a stream":               used,
		"a session in use":                      touched,
		"another principal's session":           other,
		"a session that moved to another claim": moved,
	} {
		check(t, name+" is kept", s.live[session.token.ID] == session, true)
	}
	check(t, "the session that was idle for longest is kept", s.live[idle.token.ID] != nil, false)
	check(t, "sessions of the principal", s.own["a claim"].Len(), maxSessionsOf)
	for _, session := range s.live {
		s.end(session.token)
	}
	check(t, "sessions after all have ended", len(s.live)+len(s.own), 0)
}

// TestOddRequests sends valid JSON that makes no sense, which is refused.
func TestOddRequests(t *testing.T) {
	t.Parallel()
	c := oneFake(t)
	for _, body := range []string{
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a_x","requestState":5,META}}`,
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a_x","requestState":null,META}}`,
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a_x","arguments":null,META}}`,
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"_meta":5,"name":"a_x"}}`,
		`{"jsonrpc":"2.0","id":1,"method":"tools/call"}`,
		`{"jsonrpc":"2.0","id":` + strings.Repeat("9", 400) + `,"method":"tools/call"}`,
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a_x",META,"_meta":{}}}`,
		`{"jsonrpc":"2.0","id":1,"method":"subscriptions/listen","params":{"notifications":{"resourceSubscriptions":5},META}}`,
		`{"jsonrpc":"2.0","id":1,"method":"subscriptions/listen","params":{"notifications":[],META}}`,
		`{"jsonrpc":"2.0","id":1,"result":{}}`,
		`{"jsonrpc":"2.0","id":1,"method":"completion/complete","params":{"ref":5,META}}`,
		`{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":5,META}}`,
		`{"jsonrpc":"2.0","id":1,"method":"ping","params":{META}}`,
		`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{META}}`,
		`[]`, `[1]`, `5`, `null`, `""`,
	} {
		t.Run(clipText(body, 100), func(t *testing.T) {
			body := strings.ReplaceAll(body, "META", oddMeta)
			req := c.request(http.MethodPost, body)
			req.Header.Set(protocolHeader, statelessProtocol)
			req.Header.Set(methodHeader, stringField(json.RawMessage(body), "method"))
			req.Header.Set(nameHeader, "a_x")
			if a := c.do(req); a.Status != http.StatusBadRequest && a.Status != http.StatusNotFound {
				t.Errorf("%d %s", a.Status, a.Body)
			}
		})
	}
}

// mutePool is a pool whose processes answer nothing.
func mutePool(t *testing.T, perSession bool) *pool {
	p := newPool(t.Context(), "a", perSession, func(_ context.Context, owner *Caller) (*Worker, error) {
		w := testWorker("a", owner)
		go func() {
			<-w.ctx.Done()
			w.finish("")
		}()
		return w, nil
	})
	t.Cleanup(p.close)
	return p
}

// A module has so many processes, a claim so many of them, and who would have one
// more is refused at once.
func TestProcessesAreBounded(t *testing.T) {
	t.Parallel()
	p := mutePool(t, true)
	var held []*process
	call := func(affinity, principal string) {
		t.Helper()
		c, err := p.enter(t.Context(), Caller{Session: affinity, Affinity: affinity, Principal: principal})
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, c)
	}
	refused := func(principal string) bool {
		_, err := p.call(t.Context(), Caller{Session: "x", Affinity: "x", Principal: principal}, "tools/call", nil, 0)
		return errors.Is(err, errBusy)
	}
	for i := range maxProcsOf {
		call(fmt.Sprint("a", i), "a claim")
	}
	if !refused("a claim") {
		t.Error("a claim has one process too many")
	}
	for i := range maxProcs - maxProcsOf {
		call(fmt.Sprint("n", i), "") // as many as there is room for
	}
	if !refused("another") || !refused("") {
		t.Error("the module has one process too many")
	}
	for _, c := range held {
		p.leave(c, true)
	}
	call("b", "another") // idle ones make room
	call("c", "a claim")
	if n := len(p.procs); n != maxProcs {
		t.Errorf("%d processes", n)
	}
}

// TestProcessPerSession has each session call a process of its own, which ends
// with the session, and whose crash no other session notices.
func TestProcessPerSession(t *testing.T) {
	long(t)
	t.Parallel()
	dir := t.TempDir()
	writeFake(t, dir+"/own.usher", "good")
	writeFake(t, dir+"/all.usher", "good shared")
	d := startDaemon(t, dir)
	own := func(c *testClient) string { return resultText(c.call("own_pid", "").result()) }
	a, b, c := connect(t, d.URL), connect(t, d.URL), connect(t, d.URL)
	a.awaitTools(append(namesOf("all"), namesOf("own")...)...)
	ofA, ofB, ofC := own(a), own(b), own(c)
	check(t, "sessions share a process", ofA == ofB || ofB == ofC || ofA == ofC, false)
	check(t, "the next call's process", own(a), ofA)
	shared := resultText(a.call("all_pid", "").result())
	check(t, "the process of a shared module", resultText(b.call("all_pid", "").result()), shared)
	checkContains(t, "a crash", a.call("own_crash", "").failure(), "crashed")
	check(t, "another session's process after the crash", own(b), ofB)
	b.end()
	pid, _ := strconv.Atoi(ofB)
	await(t, "the end of a session's process", func() bool { return !processAlive(pid) })
	check(t, "another session's process after that", own(c), ofC)
}

// namesOf is the names of a fake's tools.
func namesOf(module string) []string {
	var names []string
	for name := range strings.SplitSeq(usualTools, ",") {
		names = append(names, module+"_"+name)
	}
	slices.Sort(names)
	return names
}

// One that does not start is not started for each call.
func TestProcessThatDoesNotStart(t *testing.T) {
	t.Parallel()
	var starts atomic.Int32
	p := newPool(t.Context(), "a", true, func(context.Context, *Caller) (*Worker, error) {
		starts.Add(1)
		return nil, errors.New("it does not start")
	})
	for range 20 {
		p.call(t.Context(), Caller{Session: "s", Affinity: "k"}, "tools/call", nil, 0)
		await(t, "the end of the start", func() bool {
			p.mu.Lock()
			defer p.mu.Unlock()
			return len(p.procs) == 0
		})
		p.reap(time.Now(), 0)
	}
	if n := starts.Load(); n > 3 {
		t.Errorf("20 calls made %d starts", n)
	}
	p.close()
	if !p.finished() {
		t.Error("something is left of it")
	}
}

// TestIdleProcesses has processes that are not used: a session's ends after ten
// minutes, another if -idle says so.
func TestIdleProcesses(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		perSession bool
		idle, ends time.Duration // 0: never
	}{
		{true, 0, sessionIdle},
		{true, time.Hour, sessionIdle},
		{true, time.Minute, time.Minute},
		{false, time.Hour, time.Hour},
		{false, 0, 0},
	} {
		t.Run(fmt.Sprintf("%+v", tt), func(t *testing.T) {
			p := mutePool(t, tt.perSession)
			c, err := p.enter(t.Context(), Caller{Session: "s", Affinity: "k"})
			must(t, err)
			p.reap(time.Now().Add(24*time.Hour), tt.idle)
			check(t, "processes with a call", len(p.procs), 1)
			p.leave(c, true)
			p.reap(time.Now().Add(tt.ends-time.Second), tt.idle)
			check(t, "processes before that time", len(p.procs), 1)
			p.reap(time.Now().Add(tt.ends+time.Second), tt.idle)
			check(t, "it has ended after that time", len(p.procs) == 0, tt.ends > 0)
		})
	}
}

// What a module sends that can't be read fails the call that it answers.
func TestUnreadableAnswers(t *testing.T) {
	t.Parallel()
	deep := strings.Repeat("[", 10_001) + strings.Repeat("]", 10_001)
	for _, line := range []string{
		`{"jsonrpc":"2.0","id":1}`,
		`{"jsonrpc":"2.0","id":"1","result":{}`,
		`{"jsonrpc":"2.0","result":{"text":"` + "\xff" + `"},"id":1}`,
		`{"jsonrpc":"2.0","id":1,"result":` + deep + `}`,
		`{"jsonrpc":"1.0","id":1,"result":{}}`,
	} {
		w := testWorker("a", nil)
		read, write := io.Pipe()
		go w.readStdout(read)
		go func() {
			<-w.queued
			fmt.Fprintln(write, line)
		}()
		_, err := w.request(t.Context(), Caller{Session: "s"}, "tools/call", nil, patience, nil)
		if err == nil || !strings.Contains(err.Error(), "can't be read") {
			t.Errorf("%.60q: %v", line, err)
		}
		w.cancel()
		write.Close()
	}
}

// A module that does not read holds no more than it may, and a call to it ends.
func TestModuleThatDoesNotRead(t *testing.T) {
	long(t)
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := testWorker("a", nil)
		if _, err := w.request(t.Context(), Caller{}, "ping", nil, time.Minute, nil); !errors.Is(err, errTimeout) {
			t.Errorf("got %v, want that it is silent", err)
		}
		big := append(append([]byte(`{"x":"`), bytes.Repeat([]byte("x"), maxInput)...), `"}`...)
		w.update(func(s *workerState) { s.input = nil })
		over := make(chan error, 2)
		for range cap(over) {
			go func() {
				_, err := w.request(t.Context(), Caller{}, "ping", objectOf(string(big)), time.Minute, nil)
				over <- err
			}()
		}
		if err := <-over; err == nil || !strings.Contains(err.Error(), "does not read") {
			t.Errorf("the second: %v", err)
		}
		if err := <-over; !errors.Is(err, errTimeout) {
			t.Errorf("the first: %v", err)
		}
	})
}

// Whom a message of a module is for that does not name its call.
func TestAttribution(t *testing.T) {
	t.Parallel()
	alice, bob := Caller{Session: "alice"}, Caller{Session: "bob"}
	visitor := Caller{Session: "visit", Stateless: true}
	for _, tt := range []struct {
		name      string
		owner     *Caller
		calls     []Caller
		cancelled bool // another call was, and is not answered
		want      string
	}{
		{"shared, no call", nil, nil, false, errNoCaller.Message},
		{"shared, one call", nil, []Caller{alice}, false, "alice"},
		{"shared, usher's own call beside", nil, []Caller{{}, alice}, false, "alice"},
		{"shared, two calls", nil, []Caller{alice, bob}, false, errNotSure.Message},
		{"shared, two calls of one session", nil, []Caller{alice, alice}, false, errNotSure.Message},
		{"shared, one call beside a cancelled one", nil, []Caller{alice}, true, errNotSure.Message},
		{"shared, a cancelled call", nil, nil, true, errNotSure.Message},
		{"a session's, no call", &alice, nil, false, "alice"},
		{"a session's, two calls", &alice, []Caller{alice, alice}, false, "alice"},
		{"a session's, a cancelled call", &alice, []Caller{alice}, true, "alice"},
		{"without a session, before the first call", &visitor, nil, false, "visit"},
		{"without a session, one call", &visitor, []Caller{visitor}, false, "visit"},
		{"without a session, after the first call", &visitor, []Caller{visitor, visitor}, false, errNotSure.Message},
	} {
		w := testWorker("a", tt.owner)
		for i, caller := range tt.calls {
			c := w.newCall(caller)
			c.id = fmt.Sprint(i)
			w.startCall(c, "ping", nil)
		}
		w.update(func(s *workerState) { s.maybeRunning["9"] = func() {} })
		if !tt.cancelled {
			w.answer(&Message{ID: json.RawMessage("9")})
		}
		var caller Caller
		var err error
		w.update(func(s *workerState) { caller, _, err = s.target(nil) })
		got := caller.Session
		if err != nil {
			got = err.Error()
		}
		if got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
		w.cancel()
	}
}

// runs is how many calls a process has that it has not been told to cancel.
func (w *Worker) runs() (n int) {
	w.update(func(s *workerState) { n = len(s.calls) })
	return n
}

// Calls of a module have so many places, a principal so many of them, and who finds
// none waits for its turn. What was cancelled has its place until it has ended: one
// of our own shims' says so, another's is given a minute.
func TestCallsWaitForTheirTurn(t *testing.T) {
	t.Parallel()
	for _, own := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			var w *Worker
			p := newPool(t.Context(), "a", false, func(_ context.Context, owner *Caller) (*Worker, error) {
				w = testWorker("a", owner)
				w.answersAll = own
				context.AfterFunc(w.ctx, func() { w.finish("") })
				return w, nil
			})
			defer p.close()
			ctx, cancel := context.WithCancel(t.Context())
			call := func(ctx context.Context, principal string, timeout time.Duration) error {
				_, err := p.call(ctx, Caller{Session: "s", Principal: principal}, "tools/call", nil, timeout)
				return err
			}
			for range maxRunningOf {
				go call(ctx, "a claim", 0)
			}
			synctest.Wait()
			late := make(chan error)
			go func() { late <- call(t.Context(), "a claim", time.Second) }()
			if err := <-late; !errors.Is(err, errBusy) {
				t.Errorf("one that waits in vain: %v", err)
			}
			var order []string
			for _, name := range []string{"first", "second"} {
				go func() {
					defer func() { order = append(order, name) }()
					call(t.Context(), "a claim", 0)
				}()
				synctest.Wait()
			}
			go call(t.Context(), "another", 0)
			synctest.Wait()
			if n := w.runs(); n != maxRunningOf+1 {
				t.Errorf("%d calls run, of which %d may be of one claim", n, maxRunningOf)
			}
			cancel()
			synctest.Wait()
			if n := w.runs(); n != 1 {
				t.Errorf("%d calls run besides those that were cancelled and have not ended", n)
			}
			if own {
				pass(time.Hour)
				for id := range maxRunningOf {
					w.answer(&Message{ID: json.RawMessage(fmt.Sprint(id + 1))})
					synctest.Wait()
				}
			} else {
				pass(cancelledTime)
			}
			synctest.Wait()
			if n := w.runs(); n != 3 {
				t.Errorf("%d calls run, and three should", n)
			}
			for id := range 3 {
				w.answer(&Message{ID: json.RawMessage(fmt.Sprint(maxRunningOf + 1 + id)), Result: noResult})
				synctest.Wait()
			}
			if own && fmt.Sprint(order) != "[first second]" { // the others began at once
				t.Errorf("those that waited ended as %v", order)
			}
			if n := len(p.running.used); n != 0 || p.allRunning != 0 {
				t.Errorf("%d slots of %d principals are not free", p.allRunning, n)
			}
		})
	}
}

// An HTTP+SSE session is over with its stream, and nothing of it stays.
func TestOldSessionsEndWithTheirStreams(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		for range 3 {
			ctx, hangUp := context.WithCancel(t.Context())
			get := b.request(http.MethodGet, "").WithContext(ctx)
			get.Header.Set("Accept", "text/event-stream")
			res, err := b.http.Do(get)
			if err != nil || res.StatusCode != http.StatusOK {
				t.Fatal(res, err)
			}
			hangUp()
			res.Body.Close()
			synctest.Wait()
		}
		if n := len(b.server.sessions.live); n != 0 {
			t.Errorf("%d sessions are kept", n)
		}
	})
}

// TestPanicInAScan holds that the workspace is watched on after a panic in that.
func TestPanicInAScan(t *testing.T) {
	long(t)
	t.Parallel()
	dir, first := t.TempDir(), true
	var out output
	r, err := newRegistry(registryConfig{Roots: []string{dir}, CacheDir: t.TempDir(), Environ: os.Environ(), Log: slog.New(slog.NewTextHandler(&out, nil)), Watch: true, Only: func(string) bool {
		if first {
			first = false
			panic("in a scan")
		}
		return true
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	writeFake(t, dir+"/a.usher", "good tools=x")
	await(t, "the module", func() bool { return len(r.View(scopeAll()).Modules) == 1 })
	if !strings.Contains(out.String(), "in a scan") {
		t.Errorf("the log: %s", out.String())
	}
}

// A panic in answering is an error to who asked, one entry in the log, and nothing
// to anyone else; one in reading what a module says ends that module's process.
func TestPanics(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, b *bubble) {
		var out output
		c := b.open(protocols[0])
		log := slog.New(slog.NewTextHandler(&out, nil))
		good := b.server.modules
		b.server.log, b.server.modules = log, fixedRegistry(nil)
		hooks := &Webhooks{modules: b.server.modules, bodies: b.server.bodies, log: log, audience: anyone, slots: make(chan struct{}, 1)}
		for what, ask := range map[string]func() string{
			"a list":                 func() string { return c.ask("tools/list", "").Body },
			"a call":                 func() string { return c.call("m_m", "").Body },
			"a call without session": func() string { return b.modern("tools/call", `{"name":"m_m"}`).Body },
			"a webhook": func() string {
				w := httptest.NewRecorder()
				handle(log, writeWebhookError, hooks.serve)(w, httptest.NewRequest(http.MethodPost, "/webhook/m/x", nil))
				return w.Body.String()
			},
		} {
			before := strings.Count(out.String(), "level=ERROR")
			if got := ask(); !strings.Contains(got, "internal error: see usher's log") {
				t.Errorf("%s: %s", what, got)
			}
			if n := strings.Count(out.String(), "level=ERROR") - before; n != 1 {
				t.Errorf("%s: %d entries in the log", what, n)
			}
		}
		if !strings.Contains(out.String(), "bounds_test.go") {
			t.Errorf("the log does not say where it was: %s", out.String())
		}
		b.server.modules = good
		if a := c.call("m_wait", ""); a.failure() != "" {
			t.Errorf("afterwards: %s", a.Body)
		}
		w := newWorker(workerConfig{
			module:      "a",
			log:         log,
			listChanged: func(*Worker) { panic("in reading") },
		})
		w.readStdout(strings.NewReader(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}` + "\n"))
		if w.alive() || !strings.Contains(out.String(), "in reading") {
			t.Errorf("after a panic in reading, the process is alive: %v", w.alive())
		}
	})
}

// TestLogTells checks that each call, claim and invalid code is a line of the log,
// which names a claim by its label and contains no code.
func TestLogTells(t *testing.T) {
	long(t)
	t.Parallel()
	p := startProjects(t)
	claim, err := openStore(t, p.Base).Create(t.Context(), p.dir+"/proj", "a phone", time.Hour)
	must(t, err)
	c := p.session(inHeader(claim.Code.Reveal()))
	c.call("a_x", "")
	c.call("no_such", "")
	listTools(c, inHeader("ABCDEF"))
	p.revoke(claim.Code.Reveal())
	listTools(c, presentNothing)
	const of = `claim=[0-9a-f]{8} label="a phone"`
	const call = `msg=call outcome=done session=[A-Z2-7]{8}… took=[0-9.]+[mµ]?s bytes=[0-9]+ module=a method=x ` + of
	for _, want := range []string{
		`msg="claim made" ` + of,
		`msg=session ` + of + ` session=[A-Z2-7]{8}…`,
		call,
		`msg=call outcome="unknown tool \\"no_such\\"" .* tool=no_such ` + of,
		`msg="an invalid claim code was presented" in_session=true scoped=true`,
		`msg="claim ended" ` + of,
	} {
		line := regexp.MustCompile(`(?m)^time=20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\S+ level=[A-Z]+ ` + want + `$`)
		log := p.Log.String()
		if n := len(line.FindAllString(log, -1)); n != 1 {
			t.Errorf("%d lines like %s in:\n%s", n, want, log)
		}
	}
	p.hidesCodes(t, claim.Code.Reveal(), "ABCDEF")
}

// TestNoLogin checks that clients that look for a login are told that there is
// none. They look each time they connect, so that is no line of the log.
func TestNoLogin(t *testing.T) {
	t.Parallel()
	d := startDaemon(t, t.TempDir(), "-require-claim")
	c := newClient(t, d.URL)
	for _, path := range []string{
		".well-known/oauth-protected-resource", ".well-known/oauth-authorization-server/mcp",
		"mcp/.well-known/openid-configuration", "register",
	} {
		for _, method := range []string{http.MethodGet, http.MethodPost} {
			req := c.request(method, "")
			req.URL.Path = "/" + path
			a := c.do(req)
			check(t, method+" "+path, a.Status, 404)
			checkContains(t, method+" "+path, a.Body, "usher has no login", claimHeader)
			check(t, method+" "+path, a.Header.Get("WWW-Authenticate"), "")
		}
	}
	checkOmits(t, "the log", d.Log.String(), "well-known", "register")
}

// TestRevokeOnAFullDisk revokes a claim on a full disk: usher names another way to
// end it.
func TestRevokeOnAFullDisk(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	mount := exec.Command("mount", "-t", "tmpfs", "-o", "size=64k,mode=700", "usher-test", base)
	if out, err := mount.CombinedOutput(); err != nil {
		t.Skipf("needs a small disk: %s", out)
	}
	defer func() { must(t, exec.Command("umount", base).Run()) }()
	claim := newClaimFor(t, base, t.TempDir())
	file, err := os.Create(base + "/full")
	must(t, err)
	_, err = io.Copy(file, zeros{})
	file.Close()
	check(t, "the disk is full", errors.Is(err, syscall.ENOSPC), true)
	_, stderr, code := usher(t, "", "claim", "revoke", "-base", base, claim.Code.Reveal())
	check(t, "status", code, 1)
	checkContains(t, "stderr", stderr, "free some space, or delete", "claims.json")
}

// What clients call themselves is not kept: neither their names nor, for long, that
// a process of theirs crashed.
func TestCrashesAreForgotten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newPool(t.Context(), "a", true, func(context.Context, *Caller) (*Worker, error) { return nil, errors.New("no") })
		defer p.close()
		for i := range 1000 {
			p.call(t.Context(), Caller{Affinity: fmt.Sprint(i)}, "tools/call", nil, 0)
			pass(time.Second)
		}
		if n := len(p.crashed); n < 50 || n > 100 {
			t.Errorf("%d crashes are remembered", n)
		}
	})
	for _, name := range []string{"a", strings.Repeat("a", 10_000)} {
		s, err := newStatelessSession(objectOf(fmt.Sprintf(`{"_meta":{%s,%s,%q:{"name":%q}}}`, metaCaps, metaNow, metaClientInfo, name)), Principal{})
		if err != nil || len(s.affinity) > 100 {
			t.Errorf("%d bytes: %v", len(s.affinity), err)
		}
	}
}

// A client can't name the call that a module's requests are for.
func TestClientsNameNoCalls(t *testing.T) {
	t.Parallel()
	for _, era := range []serverInfo{{}, {Stateless: true}} {
		w := testWorker("a", nil)
		w.info = era
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() {
			_, err := w.request(ctx, Caller{Session: "s"}, "tools/call", objectOf(`{"name":"x","_meta":{"usher/call":1,"theirs":2,"usher/call":3}}`), 0, nil)
			ended <- err
		}()
		<-w.queued
		var sent string
		w.update(func(s *workerState) { sent = string(s.input) })
		if strings.Contains(sent, metaCall) || !strings.Contains(sent, `"theirs":2`) {
			t.Errorf("the module gets %s", sent)
		}
		cancel()
		<-ended
		w.cancel()
	}
}

// A call that waits when its claim ends is not made, whatever it waits for.
func TestWaitingCallsAfterARevoke(t *testing.T) {
	t.Parallel()
	slow := func(t *testing.T, b *bubble) {
		b.m.pool = newPool(t.Context(), "m", true, func(_ context.Context, owner *Caller) (*Worker, error) {
			pass(subscribeTimeout / 2)
			w := b.worker(owner)
			w.info.Capabilities = json.RawMessage(`{"resources":{"subscribe":true}}`)
			return w, nil
		})
	}
	native := func(_ *testing.T, b *bubble) { b.native, b.m.Stateless = true, true }
	const wait, ask = `{"name":"m_wait","arguments":{"seconds":60}}`, `{"name":"m_ask"}`
	for _, tt := range []struct {
		name           string
		prepare        func(*testing.T, *bubble)
		method, params string
		made, waiting  int // calls before the claim ends
	}{
		{"for a slot", func(*testing.T, *bubble) {}, "tools/call", wait, maxRunningOf, 3},
		{"for a process", slow, "tools/call", wait, 0, 3},
		{"for a process to tell of a resource", slow, "resources/subscribe", `{"uri":"m://1"}`, 0, 1},
		{"for its client's answer", native, "tools/call", ask, 1, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, func(t *testing.T, b *bubble) {
				tt.prepare(t, b)
				b.m.Templates = []json.RawMessage{json.RawMessage(`{"uriTemplate":"m://{x}"}`)}
				claim, c := newClaimFor(t, b.base, "/w"), b.open(protocols[0])
				c.Header.Set(claimHeader, claim.Code.Reveal())
				c.ask("ping", "")
				get := c.request(http.MethodGet, "")
				get.Header.Set("Accept", "text/event-stream")
				stream := b.begin(get)
				defer stream.hangUp()
				synctest.Wait()
				var calls []*exchange
				for range tt.made + tt.waiting {
					calls = append(calls, b.begin(c.request(http.MethodPost, c.message(tt.method, tt.params))))
					synctest.Wait() // so that they wait in this order
				}
				if heard := b.hears(); strings.Count(heard, tt.method) != tt.made {
					t.Errorf("before the revoke the module hears %q", heard)
				}
				if _, err := openStore(t, b.base).Revoke(t.Context(), claim.Code); err != nil {
					t.Fatal(err)
				}
				if tt.params == ask {
					_, text := calls[0].got()
					_, question, _ := strings.Cut(text, "data: {")
					c.post(string(encodeResult(field(json.RawMessage("{"+question), "id"), askAnswer("yes")("elicitation/create", nil))))
				}
				pass(2 * time.Minute)
				if heard := b.hears(); strings.Contains(heard, tt.method) {
					t.Errorf("after the revoke the module hears %q", heard)
				}
				for i, x := range calls {
					_, text := x.got()
					if refused := strings.Contains(text, errNotMade.Message); refused != (i >= tt.made || tt.params == ask) {
						t.Errorf("call %d: %s", i, text)
					}
				}
			})
		})
	}
}

// A module that takes long to subscribe to one resource is not asked for the next
// once the claim has ended, and does not hold up the end of the stream.
func TestNoSubscribingAfterARevoke(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, b *bubble) {
		b.m.Templates = []json.RawMessage{json.RawMessage(`{"uriTemplate":"m://{x}"}`)}
		b.m.pool = newPool(t.Context(), "m", true, func(_ context.Context, owner *Caller) (*Worker, error) {
			w := b.worker(owner)
			w.info.Capabilities = json.RawMessage(`{"resources":{"subscribe":true}}`)
			return w, nil
		})
		claim := newClaimFor(t, b.base, "/w")
		req := b.modernPOST("1", listenMethod, `{"notifications":{"resourceSubscriptions":["m://1","m://2","m://3"]}}`)
		req.Header.Set(claimHeader, claim.Code.Reveal())
		x := b.begin(req)
		pass(time.Second)
		if heard := b.hears(); heard != "resources/subscribe" {
			t.Errorf("before the revoke the module hears %q", heard)
		}
		if _, err := openStore(t, b.base).Revoke(t.Context(), claim.Code); err != nil {
			t.Fatal(err)
		}
		pass(streamInterval + time.Second)
		if heard := b.hears(); strings.Contains(heard, "resources/subscribe") {
			t.Errorf("after the revoke the module hears %q", heard)
		}
		select {
		case <-x.done:
		default:
			t.Error("the stream goes on")
			x.hangUp()
		}
	})
}
