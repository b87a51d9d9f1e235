// Tests of pool.go: which process a call goes to, and when.

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/types"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// testConfig returns the configuration of a pool that no registry has.
func testConfig(name string, perSession bool) poolConfig {
	return poolConfig{
		source:     source{Name: name, Kind: kindExecutable},
		log:        quiet,
		perSession: perSession,
		ends:       context.Background(),
		running:    new(sync.WaitGroup),
		slots:      &counter{perKey: maxRunningOf, total: maxRunning},
		rooms:      &counter{limitOf: roomsOf, total: maxProcs},
		onLists:    func(*Worker, *manifest) {},
	}
}

// testPool returns a pool without processes, which no registry has. start must make a process ready.
// The test must call close.
func testPool(name string, perSession bool, start func(w *Worker)) *pool {
	config := testConfig(name, perSession)
	config.start = func(w *Worker) error {
		start(w)
		return nil
	}
	p := newPool(context.Background(), config)
	p.running.Go(func() {
		for p.ctx.Err() == nil || p.left() > 0 {
			pass(sweepTime)
			p.sweep(time.Now())
		}
	})
	return p
}

// left returns how many processes of a pool have not ended.
func (p *pool) left() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.procs)
}

// close ends the processes of a pool, with the calls under way, and waits for them.
func (p *pool) close() {
	p.retire()
	p.mu.Lock()
	for _, w := range p.procs {
		w.failure = w.fault("was stopped during the call")
		w.advance(workerStopping)
	}
	p.mu.Unlock()
	p.running.Wait()
}

// mute plays a process that reads, answers nothing, and ends soon when it must.
func mute(w *Worker) {
	read, stdin := io.Pipe()
	go w.writeStdin(stdin)
	go io.Copy(io.Discard, read)
	context.AfterFunc(w.ctx, func() {
		time.AfterFunc(time.Millisecond, func() { w.finish("") })
	})
	w.makeReady()
}

// mutePool is a pool whose processes answer nothing.
func mutePool(t *testing.T, perSession bool) *pool {
	p := testPool("a", perSession, mute)
	t.Cleanup(p.close)
	return p
}

// started enters a call of a caller in a pool, and returns its process once that has started.
func (p *pool) started(ctx context.Context, caller Caller) (*call, error) {
	c := newCall(ctx, caller)
	if err := p.enter(c); err != nil {
		return nil, err
	}
	if err := caller.Principal.waitFor(c.ctx, c.worker.ready); err != nil {
		p.leave(c)
		return nil, err
	}
	return c, nil
}

// count returns how many processes of a pool are in a state.
func (p *pool) count(state workerState) (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, w := range p.procs {
		if w.state == state {
			n++
		}
	}
	return n
}

// aMember returns a Caller.Member that never ends.
func aMember() context.Context {
	return context.WithValue(context.Background(), connsKey{}, nil)
}

var principals sync.Map // by name

// principal returns the principal with a name as its label. It never ends.
func principal(name string) *Principal {
	p := &Principal{Claim: Claim{Label: name}, ctx: context.Background()}
	stored, _ := principals.LoadOrStore(name, p)
	return stored.(*Principal)
}

// aClaim returns the principal of a claim that never ends.
func aClaim(name string) *Principal {
	p := &Principal{Claim: Claim{claimID: claimID{ScopeDir: "/" + name}}, ctx: context.Background()}
	stored, _ := principals.LoadOrStore("claim "+name, p)
	return stored.(*Principal)
}

// A module has at most maxProcs processes, maxProcsOf for a claim and maxProcsOpen for callers without
// one, also over its versions. A call waits until another process has ended.
func TestProcessesAreBounded(t *testing.T) {
	inSync(t, func(t *testing.T) {
		p := mutePool(t, true)
		var started sync.Map // of *call, by session
		has := func(session string) bool {
			_, ok := started.Load(session)
			return ok
		}
		enterIn := func(p *pool, session string, principal *Principal) {
			go func() {
				c, err := p.started(t.Context(), Caller{Principal: principal, Member: aMember()})
				if err == nil {
					started.Store(session, c)
				}
			}()
			synctest.Wait()
		}
		enter := func(session string, principal *Principal) { enterIn(p, session, principal) }
		end := func(session string) {
			c, _ := started.LoadAndDelete(session)
			p.leave(c.(*call))
			c.(*call).worker.stop(errRetired)
			pass(time.Second)
			synctest.Wait()
		}
		alice, bob := aClaim("alice"), aClaim("bob")
		for i := range maxProcsOf + 1 {
			enter(fmt.Sprint("a", i), alice)
			enter(fmt.Sprint("b", i), bob)
			enter(fmt.Sprint("e", i), everyone)
		}
		check(t, "processes of two claims and those without one", p.count(workerReady), 3*maxProcsOf+1)
		enter("a5", alice)
		end("e0")
		check(t, "the principal's own limit", has("a4"), false)
		end("a0")
		check(t, "the first that waited has started", has("a4") && !has("a5"), true)
		for i := range maxProcs {
			enter(fmt.Sprint("c", i), aClaim(fmt.Sprint("claim ", i/maxProcsOf)))
		}
		check(t, "processes", p.count(workerReady), maxProcs)
		own := newCall(t.Context(), Caller{Member: aMember()})
		must(t, p.enter(own))
		synctest.Wait()
		check(t, "usher's own process finds room", own.worker.state, workerReady)
		p.timeout = time.Second
		late := Caller{Principal: everyone, Member: aMember()}
		_, err := p.call(t.Context(), late, "tools/call", nil)
		check(t, "a call waits in vain", errors.Is(err, errTimeout), true)
		pass(2 * sweepTime)
		p.ofMember(late.Member, func(*Worker) { t.Error("its process waits") })

		config := testConfig("a", true)
		config.rooms = p.rooms
		config.start = p.start
		next := newPool(t.Context(), config)
		enterIn(next, "next", alice)
		check(t, "another version has room", has("next"), false)
		next.close()
		p.retire()
		check(t, "processes that wait in a retired pool", p.count(workerWaiting), 0)
		p.close()
	})
}

// A process that has had no call for a minute makes room: first one of the same principal, then one
// whose session has no stream, then the one that has been idle longest.
func TestIdleProcessMakesRoom(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name     string
		own      string // the principals of the processes that are idle, the longest first
		streams  string // "y" for each whose session has a stream
		idle     time.Duration
		makeRoom int // the one that makes room; -1 for none
	}{
		{"the longest idle", "bbbb", "nnnn", roomIdle, 0},
		{"before a minute", "bbbb", "nnnn", roomIdle - 4*time.Second, -1},
		{"the principal's own", "bbab", "nnnn", roomIdle, 2},
		{"one without a stream", "bbbb", "yyny", roomIdle, 2},
		{"its own with a stream", "bbab", "nnyn", roomIdle, 2},
	} {
		runSynced(t, tt.name, func(t *testing.T) {
			p := mutePool(t, true)
			var idle []*call
			for i := range maxProcs {
				caller := Caller{Principal: aClaim(fmt.Sprint("busy ", i/maxProcsOf)), Member: aMember()}
				if i < len(tt.own) {
					caller.Principal = aClaim(tt.own[i : i+1])
					stream := map[byte]*outbox{'y': {}}[tt.streams[i]]
					caller.Stream = func() *outbox { return stream }
				}
				c, err := p.started(t.Context(), caller)
				must(t, err)
				if i < len(tt.own) {
					idle = append(idle, c)
				}
			}
			for _, c := range idle {
				p.leave(c)
				pass(time.Millisecond)
			}
			pass(tt.idle)
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			_, err := p.started(ctx, Caller{Principal: aClaim("a"), Member: aMember()})
			check(t, "it finds room", err == nil, tt.makeRoom >= 0)
			for i, c := range idle {
				check(t, fmt.Sprint("process ", i, " lives"), c.worker.alive(), i != tt.makeRoom)
			}
			if tt.makeRoom >= 0 {
				pass(2 * crashMemory)
				lost := idle[tt.makeRoom].caller
				_, err := p.call(t.Context(), lost, "tools/call", nil)
				checkContains(t, "its session's next call", fmt.Sprint(err), "its state is lost")
				must(t, p.enter(newCall(t.Context(), lost)))
			}
			p.close()
		})
	}
}

// A session whose client listens keeps its process. Another session loses its process, and then one
// call of it fails. At the session's end, that is forgotten.
func TestLostStateIsToldOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		var sessions []*testClient
		for i := range maxProcsOpen + 1 {
			c := b.open(protocols[0])
			sessions = append(sessions, c)
			if i == 0 {
				stream, err := b.HTTP.Do(c.GetRequest())
				must(t, err)
				defer stream.Body.Close()
				go io.Copy(io.Discard, stream.Body)
			}
			if i == maxProcsOpen {
				pass(roomIdle)
			}
			check(t, fmt.Sprint("session ", i), c.Call("m_wait", `{"seconds":0}`).Text(), "waited")
			pass(sweepTime)
		}
		const lost = `module "m" ended to make room, so its state is lost: call again`
		for i, want := range []string{"waited", lost, "waited"} {
			check(t, fmt.Sprint("session ", i), sessions[i].Call("m_wait", `{}`).Text(), want)
		}
		pass(roomIdle)
		check(t, "its call after that", sessions[1].Call("m_wait", `{}`).Text(), "waited")
		for _, c := range sessions {
			c.End()
		}
		pass(2 * sweepTime)
		b.m.pool.mu.Lock()
		defer b.m.pool.mu.Unlock()
		check(t, "what is remembered of ended sessions", len(b.m.pool.lost), 0)
	})
}

// A client without a session has no state that it could lose.
func TestOnlySessionsLoseState(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		call := func() string {
			return b.Modern("tools/call", `{"name":"m_wait","arguments":{"seconds":0}}`).Text()
		}
		check(t, "a call without a session", call(), "waited")
		pass(sweepTime)
		for i := range maxProcsOpen {
			if i == maxProcsOpen-1 {
				pass(roomIdle)
			}
			a := b.open(protocols[0]).Call("m_wait", `{"seconds":0}`)
			check(t, fmt.Sprint("session ", i), a.Text(), "waited")
			pass(sweepTime)
		}
		check(t, "the next call without a session", call(), "waited")
	})
}

// A process whose session ends while it starts ends, too.
func TestUnwantedStartEnds(t *testing.T) {
	inSync(t, func(t *testing.T) {
		member, end := context.WithCancel(t.Context())
		p := testPool("a", true, func(w *Worker) {
			<-member.Done()
			pass(2 * sweepTime) // the pool has noticed
			mute(w)
		})
		defer p.close()
		c := newCall(t.Context(), Caller{Principal: principal("a claim"), Member: member})
		must(t, p.enter(c))
		p.leave(c)
		end()
		<-c.worker.ready
		synctest.Wait()
		check(t, "it lives", c.worker.alive(), false)
	})
}

// A call that comes between the crash of a process and its end goes to another process.
func TestCrashedProcessGetsNoCall(t *testing.T) {
	inSync(t, func(t *testing.T) {
		p := mutePool(t, false)
		first, err := p.started(t.Context(), Caller{Principal: everyone})
		must(t, err)
		first.worker.stop(nil)
		second, err := p.started(t.Context(), Caller{Principal: everyone})
		must(t, err)
		check(t, "it is the same process", first.worker == second.worker, false)
		p.close()
	})
}

// Each session has a process of its own, which ends with it, and whose crash no other
// session notices.
func TestProcessPerSession(t *testing.T) {
	long(t)
	d := startFakes(t, "own: good", "all: shared good")
	own := func(c *testClient) string { return c.Call("own_pid", "").Text() }
	a, b, c := connect(t, d.URL), connect(t, d.URL), connect(t, d.URL)
	ofA, ofB, ofC := own(a), own(b), own(c)
	check(t, "sessions share a process", ofA == ofB || ofB == ofC || ofA == ofC, false)
	check(t, "the next call's process", own(a), ofA)
	shared := a.Call("all_pid", "").Text()
	check(t, "the process of a shared module", b.Call("all_pid", "").Text(), shared)
	checkContains(t, "a crash", a.Call("own_crash", "").Failure(), "crashed")
	check(t, "another session's process after the crash", own(b), ofB)
	b.End()
	pid, _ := strconv.Atoi(ofB)
	await(t, "the end of a session's process", func() bool { return !processAlive(pid) })
	check(t, "another session's process after that", own(c), ofC)
}

// The process that has answered an introspection waits for a first call, unless other modules wait
// for their introspection.
func TestFewProcessesWaitForAFirstCall(t *testing.T) {
	t.Parallel()
	for others, want := range []int{1, 0} {
		r := registryOf(t, registryConfig{Roots: []string{t.TempDir()}})
		r.introspecting.reserve(nil, maxIntrospections)
		p := mutePool(t, false)
		done := make(chan struct{})
		go func() {
			defer close(done)
			(&moduleOwner{registry: r, log: r.Log}).introspect(p)
		}()
		await(t, "a module that waits", r.introspecting.busy)
		for range others {
			(&slot{counter: &r.introspecting}).queue()
		}
		r.introspecting.release(nil, 1)
		<-done
		check(t, fmt.Sprint("processes, if other modules wait: ", others), p.count(workerReady), want)
	}
}

// A session's process ends after ten idle minutes, unless the session has subscribed to
// a resource; another one after -idle.
func TestIdleProcessesEnd(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		shared     bool
		subscribed bool
		idle, ends time.Duration // 0: never
	}{
		{false, false, 0, sessionIdle},
		{false, false, time.Hour, sessionIdle},
		{false, false, time.Minute, time.Minute},
		{false, true, time.Minute, 0},
		{true, false, time.Hour, time.Hour},
		{true, false, 0, 0},
	} {
		runSynced(t, fmt.Sprintf("%+v", tt), func(t *testing.T) {
			r := registryOf(t, registryConfig{Roots: []string{t.TempDir()}, Idle: tt.idle})
			s := source{Name: "a", Kind: kindExecutable}
			s.Launch.Shared = tt.shared
			p := r.addOwner(s).newPool(s)
			p.start = func(w *Worker) error {
				mute(w)
				return nil
			}
			c, err := p.started(t.Context(), Caller{Principal: everyone, Member: aMember()})
			must(t, err)
			pass(24 * time.Hour)
			check(t, "processes with a call", p.count(workerReady), 1)
			if tt.subscribed {
				c.worker.update(func() { c.worker.subscribed = true })
			}
			p.leave(c)
			pass(tt.ends - time.Second)
			check(t, "processes before that time", p.count(workerReady), 1)
			pass(3 * time.Second)
			check(t, "it has ended after that time", p.count(workerReady) == 0, tt.ends > 0)
		})
	}
}

// checkRuns checks how many calls of a process are neither answered nor cancelled.
func (w *Worker) checkRuns(t *testing.T, what string, want int) {
	t.Helper()
	synctest.Wait()
	check(t, "running calls "+what, w.open(), want)
}

// answerCalls has a process answer calls, by their ids.
func (w *Worker) answerCalls(first, n int, result object) {
	for id := range n {
		w.answer(&Message{ID: json.RawMessage(fmt.Sprint(first + id)), Result: result})
		synctest.Wait()
	}
}

// Calls beyond a principal's share wait in order. A cancelled call of a hosted server
// counts until it is answered or ten seconds have passed; one that waits for its client
// does not count.
func TestCallsWaitForTheirTurn(t *testing.T) {
	t.Parallel()
	for _, answered := range []bool{true, false} {
		runSynced(t, fmt.Sprint("cancelled calls are answered: ", answered), func(t *testing.T) {
			var w *Worker
			p := testPool("a", false, func(started *Worker) {
				w = started
				mute(w)
			})
			defer p.close()
			ctx, cancel := context.WithCancel(t.Context())
			replies := make(chan object)
			call := func(ctx context.Context, name string) error {
				ask := func(context.Context, string, object) (object, error) { return <-replies, nil }
				caller := Caller{
					Principal: principal(name),
					Client:    clientProfile{caps: allCaps},
					Ask:       ask,
				}
				_, err := p.call(ctx, caller, "tools/call", nil)
				return err
			}
			for range maxRunningOf {
				go call(ctx, "a claim")
			}
			synctest.Wait()
			p.timeout = time.Minute
			vain := make(chan error, 1)
			go func() { vain <- call(t.Context(), "a claim") }()
			pass(p.timeout - time.Second)
			for id := range maxRunningOf { // progress restarts the time-out of the others
				w.passProgress(object{{"progressToken", json.RawMessage(fmt.Sprint(id + 1))}})
			}
			check(t, "a call that waits in vain", errors.Is(<-vain, errTimeout), true)
			p.timeout = 0
			var order []string
			for _, name := range []string{"first", "second"} {
				go func() {
					call(t.Context(), "a claim")
					w.update(func() { order = append(order, name) })
				}()
				synctest.Wait()
			}
			go call(t.Context(), "another")
			w.checkRuns(t, "beside those that wait", maxRunningOf+1)
			params := objectOf(`{"_meta":{"usher/call":1}}`)
			w.handle(&Message{ID: json.RawMessage("1"), Method: "roots/list", Params: params})
			w.checkRuns(t, "beside one that waits for its client", maxRunningOf+2)
			replies <- object{}
			synctest.Wait()
			w.update(func() {
				check(t, "its client's answer waits for a slot", len(w.asks), 1)
			})
			cancel()
			w.checkRuns(t, "beside those that were cancelled", 2)
			check(t, "calls that count", p.slots.all, maxRunningOf+1)
			if answered {
				w.answerCalls(1, maxRunningOf, nil)
			} else {
				pass(cancelTimeout - sweepTime)
				w.checkRuns(t, "before the end of those that were cancelled", 2)
				pass(2 * sweepTime)
			}
			w.checkRuns(t, "after the end of those that were cancelled", 3)
			w.answerCalls(maxRunningOf+1, 3, object{})
			synctest.Wait()
			w.update(func() {})
			if answered { // else the others began at once
				check(t, "those that waited ended in the order", order, []string{"first", "second"})
			}
			check(t, "calls that count in the end", int(p.slots.all)+len(p.slots.used)+
				len(p.slots.waiting), 0)
		})
	}
}

// endlessModule is a pool of processes that confirm every cancellation. Their calls never end, except
// those of the method "fine".
type endlessModule struct {
	*pool
	workers []*Worker // in the order of their starts

	mu   sync.Mutex
	runs map[*Worker]map[string]int // calls that run, by their method
}

func newEndlessModule(t *testing.T, timeout time.Duration) *endlessModule {
	m := &endlessModule{runs: make(map[*Worker]map[string]int)}
	m.pool = testPool("a", false, func(w *Worker) {
		read, stdin := io.Pipe()
		m.mu.Lock()
		defer m.mu.Unlock()
		m.workers = append(m.workers, w)
		m.runs[w] = make(map[string]int)
		go w.writeStdin(stdin)
		go m.play(w, read)
		w.makeReady()
	})
	m.Kind = kindPython
	m.timeout = timeout
	t.Cleanup(m.close)
	return m
}

// play is one process: it reads messages until its stdin ends.
func (m *endlessModule) play(w *Worker, stdin io.Reader) {
	lines := bufio.NewReader(stdin)
	for {
		line, err := readLine(lines, 1<<20)
		if err != nil {
			break
		}
		msg, _ := parseMessage(line)
		name := msg.Params.text("name")
		switch {
		case msg.Method == "notifications/cancelled":
			w.handle(&Message{Method: cancelConfirmed, Params: msg.Params})
		case name == "fine":
			w.handle(&Message{ID: msg.ID, Result: object{}})
		default:
			m.mu.Lock()
			m.runs[w][name]++
			m.mu.Unlock()
		}
	}
	m.mu.Lock()
	delete(m.runs, w)
	m.mu.Unlock()
	w.finish("")
}

// begin calls a method for the principal of the same name.
func (m *endlessModule) begin(ctx context.Context, method string) <-chan error {
	done := make(chan error, 1)
	go func() {
		caller := Caller{Principal: principal(method)}
		_, err := m.call(ctx, caller, "tools/call", object{{"name", quote(method)}})
		done <- err
	}()
	synctest.Wait()
	return done
}

// cancelled calls a method n times and cancels the calls.
func (m *endlessModule) cancelled(method string, n int) {
	ctx, cancel := context.WithCancel(context.Background())
	for range n {
		m.begin(ctx, method)
	}
	cancel()
	synctest.Wait()
}

// A module runs at most maxRunning calls, and maxRunningOf of a principal. Cancelled
// functions count as long as they run.
func TestRunningCallsAreBounded(t *testing.T) {
	inSync(t, func(t *testing.T) {
		m := newEndlessModule(t, time.Minute)
		most, mostOf := 0, 0
		for range 60 {
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			for i := range 4 * (maxRunningOf + 8) {
				m.begin(ctx, fmt.Sprint("claim ", i/(maxRunningOf+8)))
				m.mu.Lock()
				all := 0
				of := make(map[string]int)
				for _, runs := range m.runs {
					for name, n := range runs {
						all += n
						of[name] += n
					}
				}
				m.mu.Unlock()
				most = max(most, all)
				for _, n := range of {
					mostOf = max(mostOf, n)
				}
			}
			pass(time.Minute)
			cancel()
		}
		check(t, "most running functions", most, maxRunning)
		check(t, "most running functions of a principal", mostOf, maxRunningOf)
		check(t, "the next call", <-m.begin(t.Context(), "fine"), nil)
	})
}

// A process whose function runs on after its cancellation, for as long as a call may take, ends with
// its other calls. Until then, it gets new calls.
func TestEndlessFunctionEndsItsProcess(t *testing.T) {
	inSync(t, func(t *testing.T) {
		const timeout = time.Minute
		m := newEndlessModule(t, timeout)
		other := m.begin(t.Context(), "other")
		m.cancelled("spin", 20)
		token := members(json.RawMessage(`{"progressToken":1}`))
		for range 4 {
			m.workers[0].handle(&Message{Method: "notifications/progress", Params: token})
			check(t, "a call before", <-m.begin(t.Context(), "fine"), nil)
			check(t, "processes before", len(m.workers), 1)
			check(t, "the process lives", m.workers[0].alive(), true)
			pass(timeout / 4)
		}
		pass(2 * sweepTime)
		checkContains(t, "the other call", fmt.Sprint(<-other),
			"was stopped because a cancelled call blocked it")
		check(t, "a call after its end", <-m.begin(t.Context(), "fine"), nil)
		check(t, "processes then", len(m.workers), 2)
	})
}

// A call that waits when its claim ends is not made, whatever it waits for.
func TestWaitingCallsEnd(t *testing.T) {
	t.Parallel()
	slow := func(_ *testing.T, b *bubble) {
		b.m.pool.close()
		b.m.pool = testPool("m", true, func(w *Worker) {
			pass(5 * time.Second)
			b.startProcess(w)
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
		{"for its client's answer", native, "tools/call", ask, 1, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *bubble) {
				tt.prepare(t, b)
				b.m.Lists = map[string][]json.RawMessage{
					"resourceTemplates": {json.RawMessage(`{"uriTemplate":"m://{x}"}`)},
				}
				claim := newClaimFor(t, b.base, "/w")
				c := b.openScoped(claim.Code.Reveal())
				stream := b.begin(c.GetRequest())
				defer stream.hangUp()
				synctest.Wait()
				var calls []*exchange
				for range tt.made + tt.waiting {
					calls = append(calls,
						b.begin(c.Asking(tt.method, tt.params)))
					synctest.Wait() // so that they wait in this order
				}
				check(t, "calls before the revoke", strings.Count(b.hears(), tt.method),
					tt.made)
				revoke(t, b.base, claim.Code)
				if tt.params == ask {
					_, text := calls[0].got()
					_, question, _ := strings.Cut(text, "data: {")
					id := field("{"+question, "id")
					c.Post(string(encodeResult(id,
						members(askAnswer("yes")("elicitation/create", nil)))))
				}
				isRefused := func(x *exchange) bool {
					_, text := x.got()
					return strings.Contains(text, errEnded.Error()) ||
						strings.Contains(text, errNoScope.Message)
				}
				pass(3 * time.Second)
				for i, x := range calls[tt.made:] {
					check(t, fmt.Sprint("soon, waiting call ", i, " is refused"), isRefused(x), true)
				}
				pass(2 * time.Minute)
				checkOmits(t, "after the revoke the module hears", b.hears(), tt.method)
				for i, x := range calls {
					want := i >= tt.made || tt.params == ask
					check(t, fmt.Sprint("call ", i, " is refused"), isRefused(x), want)
				}
			})
		})
	}
}

// A module that crashes at each call is started less and less often.
func TestCrashingModuleIsHeldBack(t *testing.T) {
	long(t)
	c := connect(t, startFakes(t, "a: good").URL)
	for range 20 {
		if a := c.Call("a_crash", ""); strings.Contains(a.Failure(), "keeps crashing") {
			await(t, "the module to be started again", func() bool {
				return c.Call("a_echo", "").Failure() == ""
			})
			return
		}
	}
	t.Error("a module that crashes at each call was started each time")
}

// A call is not made if its claim has ended since the admission, even if usher has not noticed that yet.
func TestClaimIsCheckedLast(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		claim := newClaimFor(t, b.base, "/w")
		p, err := b.server.gate.claims.Lookup(claim.Code)
		must(t, err)
		revoke(t, b.base, claim.Code)
		_, err = b.m.pool.call(t.Context(), Caller{Principal: p}, "tools/call", nil)
		check(t, "a call", err, errEnded)
		checkOmits(t, "the process", b.hears(), "tools/call")
	})
}

// A call that its caller no longer wants is not made, such as a delivery whose sender has hung up, even
// if nothing that it waited for has told it so.
func TestUnwantedCallIsNotMade(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		unwanted := func() error { return errCancelled }
		_, err := b.m.pool.call(
			t.Context(),
			Caller{Principal: senders, Begun: unwanted},
			"tools/call",
			nil,
		)
		check(t, "a call", err, errCancelled)
		checkOmits(t, "the process", b.hears(), "tools/call")
		check(t, "running calls", b.m.pool.slots.count(senders), 0)
	})
}

// Only startCall writes requests to a process, and the pool checks the claim immediately
// before each request that it makes.
func TestOneWayToAProcess(t *testing.T) {
	long(t)
	h := readHouse(t)
	allowed := map[string][]string{ // the functions that may name each
		"Worker.input":   {"enqueue", "takeInput", "endCall"},
		"Worker.enqueue": {"startCall", "send", "ask"},
	}
	named := make(map[string]bool)
	inspect := func(fn *ast.FuncDecl, n ast.Node) {
		if id, ok := n.(*ast.Ident); ok && h.info.Uses[id] != nil {
			object := h.info.Uses[id]
			name := h.ownerOf(object) + "." + object.Name()
			named[name] = true
			if functions := allowed[name]; functions != nil &&
				!slices.Contains(functions, fn.Name.Name) {
				t.Errorf("%s names %s: only %v may", fn.Name.Name, name, functions)
			}
		}
		call, ok := n.(*ast.CallExpr)
		if !ok || fn.Name.Name == "startCall" {
			return
		}
		encoder, _ := call.Fun.(*ast.Ident)
		if encoder == nil || encoder.Name != "encodeRequest" {
			return
		}
		if id, ok := call.Args[0].(*ast.Ident); !ok || id.Name != "nil" {
			t.Errorf("%s makes a request to a module", fn.Name.Name)
		}
	}
	for name, file := range h.files {
		for _, decl := range file.Decls {
			fn, ok := decl.(*ast.FuncDecl)
			if !ok || layerOf(name) != layerOf("worker.go") {
				continue
			}
			if name == "pool.go" {
				checkLastCheck(t, fn)
			}
			ast.Inspect(fn, func(n ast.Node) bool {
				inspect(fn, n)
				return true
			})
		}
	}
	for name := range allowed {
		check(t, name+" is used", named[name], true)
	}
}

// checkLastCheck checks that each statement of the pool that makes a request follows the last
// check of the claim.
func checkLastCheck(t *testing.T, fn *ast.FuncDecl) {
	t.Helper()
	calls := func(n ast.Node, name string) (found bool) {
		ast.Inspect(n, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok {
				called := "." + types.ExprString(call.Fun)
				found = found || strings.HasSuffix(called, "."+name)
			}
			return true
		})
		return found
	}
	for i, statement := range fn.Body.List {
		if !calls(statement, "request") && !calls(statement, "listen") {
			continue
		}
		if i == 0 || !calls(fn.Body.List[i-1], "lastCheck") {
			t.Errorf("%s makes a request without a check of the claim right before",
				fn.Name.Name)
		}
	}
}

// A call that runs for ten seconds is logged once, while it runs.
func TestSlowCallsAreLogged(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		var log output
		b.m.pool.log = logTo(&log)
		c := b.open(protocols[0])
		call := c.Message("tools/call", `{"name":"m_wait","arguments":{"seconds":60}}`)
		x := b.begin(c.Request("POST", call))
		pass(slowCall - time.Second)
		check(t, "before that time", log.String(), "")
		pass(2 * time.Minute)
		x.got()
		const record = `msg="a call is still running" request=tools/call method=wait`
		check(t, "records", strings.Count(log.String(), record), 1)
	})
}
