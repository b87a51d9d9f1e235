// Tests of pool.go: which process a call goes to, and when.

package main

import (
	"context"
	"encoding/json"
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

// newPool returns a pool without processes, which no registry has.
func newPool(name string, perSession bool, start func(owner *Caller) (*Worker, error)) *pool {
	ctx, cancel := context.WithCancel(context.Background())
	return &pool{
		ctx:        ctx,
		cancel:     cancel,
		source:     source{Name: name},
		log:        quiet,
		perSession: perSession,
		running:    new(sync.WaitGroup),
		calls:      counter[*Principal]{perKey: maxRunningOf, total: maxRunning},
		started:    counter[*Principal]{perKey: maxProcsOf, total: maxProcs},
		crashed:    make(map[context.Context]time.Time),
		start:      start,
	}
}

// close ends the processes of a pool, with the calls under way, and waits for them.
func (p *pool) close() {
	p.retire()
	p.mu.Lock()
	for _, c := range p.procs {
		if c.worker != nil {
			c.worker.stop("was stopped during the call")
		}
	}
	p.mu.Unlock()
	p.running.Wait()
}

// mutePool is a pool whose processes answer nothing.
func mutePool(t *testing.T, perSession bool) *pool {
	p := newPool("a", perSession, func(owner *Caller) (*Worker, error) {
		w := testWorker("a", owner)
		context.AfterFunc(w.ctx, func() {
			time.AfterFunc(time.Millisecond, func() { w.finish("") })
		})
		return w, nil
	})
	t.Cleanup(p.close)
	return p
}

// isBusy reports whether a call was not made, as the module had too many.
func isBusy(err error) bool {
	return err != nil && strings.Contains(err.Error(), "is busy or still starting")
}

// count returns how many processes of a pool are in a state.
func (p *pool) count(state processState) (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.procs {
		if c.state == state {
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

// A module has at most maxProcs processes, and maxProcsOf for a principal. A call waits
// until an idle one has ended.
func TestProcessesAreBounded(t *testing.T) {
	inSync(t, func(t *testing.T) {
		p := mutePool(t, true)
		var started sync.Map // of *process, by session
		has := func(session string) bool {
			_, ok := started.Load(session)
			return ok
		}
		enter := func(session, name string) {
			go func() {
				caller := Caller{
					Principal: principal(name),
					Member:    aMember(),
				}
				c, err := p.enter(t.Context(), caller)
				if err == nil {
					started.Store(session, c)
				}
			}()
			synctest.Wait()
		}
		leave := func(session string) {
			c, _ := started.LoadAndDelete(session)
			p.leave(c.(*process))
			pass(time.Second)
			synctest.Wait()
		}
		for i := range maxProcsOf + 1 {
			enter(fmt.Sprint("a", i), "a claim")
			enter(fmt.Sprint("n", i), "a third")
			enter(fmt.Sprint("b", i), "another")
		}
		check(t, "processes of three principals", p.count(processRunning), 3*maxProcsOf)
		enter("b5", "another")
		leave("n0")
		check(t, "the principal's next one has started", has("n4"), true)
		leave("a0")
		check(t, "another principal's still waits", has("b4"), false)
		leave("b0")
		check(t, "the first that waited has started", has("b4") && !has("b5"), true)
		for i := range maxProcs {
			enter(fmt.Sprint("c", i), fmt.Sprint("claim ", i/maxProcsOf))
		}
		check(t, "processes", p.count(processRunning), maxProcs)
		p.timeout = time.Second
		own, err := p.pick(Caller{Member: aMember()})
		must(t, err)
		check(t, "usher's own process finds room", own.state, processRunning)
		late := Caller{Principal: everyone, Member: aMember()}
		_, err = p.call(t.Context(), late, "tools/call", nil)
		check(t, "a call waits in vain", isBusy(err) && p.find(late.Member) == nil, true)
		p.retire()
		check(t, "processes that wait in a retired pool", p.count(processWaiting), 0)
		p.close()
	})
}

// An idle process of the same principal makes room, even if another's has been idle for longer.
func TestOwnProcessMakesRoom(t *testing.T) {
	inSync(t, func(t *testing.T) {
		p := mutePool(t, true)
		var procs []*process
		enter := func(name string) {
			caller := Caller{Principal: principal(name), Member: aMember()}
			c, err := p.enter(t.Context(), caller)
			must(t, err)
			procs = append(procs, c)
		}
		for i := range maxProcs {
			enter(fmt.Sprint(i % 5))
		}
		p.leave(procs[0])
		pass(time.Second)
		p.leave(procs[1])
		enter("1")
		check(t, "the oldest idle process", procs[0].state, processRunning)
		check(t, "the principal's own", procs[1].state, processEnding)
		p.close()
	})
}

// A process whose session ends while it starts ends, too.
func TestUnwantedStartEnds(t *testing.T) {
	inSync(t, func(t *testing.T) {
		p := mutePool(t, true)
		member, end := context.WithCancel(t.Context())
		start := p.start
		p.start = func(owner *Caller) (*Worker, error) {
			<-member.Done()
			synctest.Wait() // the pool has noticed
			return start(owner)
		}
		c, err := p.pick(Caller{Principal: principal("a claim"), Member: member})
		must(t, err)
		p.leave(c)
		end()
		<-c.ready
		synctest.Wait()
		check(t, "it lives", c.worker.alive(), false)
	})
}

// A call that comes between the crash of a process and its end goes to another process.
func TestCrashedProcessGetsNoCall(t *testing.T) {
	inSync(t, func(t *testing.T) {
		p := mutePool(t, false)
		first, err := p.enter(t.Context(), Caller{Principal: everyone})
		must(t, err)
		first.worker.cancel()
		second, err := p.enter(t.Context(), Caller{Principal: everyone})
		must(t, err)
		check(t, "it is the same process", first == second, false)
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
		r.introspecting.reserve(kindExecutable, maxIntrospections)
		p := mutePool(t, false)
		done := make(chan struct{})
		go func() {
			defer close(done)
			(&moduleOwner{registry: r, log: r.Log}).introspect(p)
		}()
		await(t, "a module that waits", r.introspecting.busy)
		for range others {
			(&slot[Kind]{counter: &r.introspecting}).grant()
		}
		r.introspecting.release(kindExecutable, 1)
		<-done
		check(t, fmt.Sprint("processes, if other modules wait: ", others), p.count(processRunning), want)
	}
}

// A session's process ends after ten idle minutes, unless the session has subscribed to
// a resource; another one after -idle.
func TestIdleProcessesEnd(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		perSession bool
		subscribed bool
		idle, ends time.Duration // 0: never
	}{
		{true, false, 0, sessionIdle},
		{true, false, time.Hour, sessionIdle},
		{true, false, time.Minute, time.Minute},
		{true, true, time.Minute, 0},
		{false, false, time.Hour, time.Hour},
		{false, false, 0, 0},
	} {
		t.Run(fmt.Sprintf("%+v", tt), func(t *testing.T) {
			p := mutePool(t, tt.perSession)
			c, err := p.enter(t.Context(), Caller{Principal: everyone, Member: aMember()})
			must(t, err)
			p.reap(time.Now().Add(24*time.Hour), tt.idle)
			check(t, "processes with a call", p.count(processRunning), 1)
			if tt.subscribed {
				check(t, "it can be kept", p.keep(c), true)
			}
			p.leave(c)
			p.reap(time.Now().Add(tt.ends-time.Second), tt.idle)
			check(t, "processes before that time", p.count(processRunning), 1)
			p.reap(time.Now().Add(tt.ends+time.Second), tt.idle)
			check(t, "it has ended after that time", p.count(processRunning) == 0, tt.ends > 0)
		})
	}
}

// checkRuns checks how many calls of a process are neither answered nor cancelled.
func (w *Worker) checkRuns(t *testing.T, what string, want int) {
	t.Helper()
	synctest.Wait()
	w.update(func(s *workerState) { check(t, "running calls "+what, len(s.calls), want) })
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
			p := newPool("a", false, func(owner *Caller) (*Worker, error) {
				w = testWorker("a", owner)
				context.AfterFunc(w.ctx, func() { w.finish("") })
				return w, nil
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
			p.timeout = time.Second
			check(t, "a call that waits in vain", isBusy(call(t.Context(), "a claim")), true)
			p.timeout = 0
			var order []string
			for _, name := range []string{"first", "second"} {
				go func() {
					call(t.Context(), "a claim")
					w.update(func(*workerState) { order = append(order, name) })
				}()
				synctest.Wait()
			}
			go call(t.Context(), "another")
			w.checkRuns(t, "beside those that wait", maxRunningOf+1)
			params := objectOf(`{"_meta":{"usher/call":1}}`)
			w.handle(&Message{ID: json.RawMessage("1"), Method: "roots/list", Params: params})
			w.checkRuns(t, "beside one that waits for its client", maxRunningOf+2)
			replies <- noResult
			synctest.Wait()
			w.update(func(s *workerState) {
				check(t, "its client's answer waits for a slot", len(s.asks), 1)
			})
			cancel()
			w.checkRuns(t, "beside those that were cancelled", 2)
			check(t, "calls that count", p.calls.all, maxRunningOf+1)
			if answered {
				w.answerCalls(1, maxRunningOf, nil)
			} else {
				pass(cancelTimeout - time.Nanosecond)
				w.checkRuns(t, "before the end of those that were cancelled", 2)
				pass(time.Nanosecond)
			}
			w.checkRuns(t, "after the end of those that were cancelled", 3)
			w.answerCalls(maxRunningOf+1, 3, noResult)
			synctest.Wait()
			w.snapshot()
			if answered { // else the others began at once
				check(t, "those that waited ended in the order", order, []string{"first", "second"})
			}
			check(t, "calls that count in the end", int(p.calls.all)+len(p.calls.used)+
				len(p.calls.waiting), 0)
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
	m.pool = newPool("a", false, func(*Caller) (*Worker, error) {
		w := testWorker("a", nil)
		w.confirms = true
		read, stdin := io.Pipe()
		m.mu.Lock()
		defer m.mu.Unlock()
		m.workers = append(m.workers, w)
		m.runs[w] = make(map[string]int)
		go w.writeStdin(stdin)
		go m.play(w, read)
		return w, nil
	})
	m.timeout = timeout
	t.Cleanup(m.close)
	return m
}

// play is one process: it reads messages until its stdin ends.
func (m *endlessModule) play(w *Worker, stdin io.Reader) {
	lines := newLineReader(stdin, 1<<20)
	for {
		line, err := lines.next()
		if err != nil {
			break
		}
		msg, _ := parseMessage(line)
		name := msg.Params.text("name")
		switch {
		case msg.Method == "notifications/cancelled":
			w.handle(&Message{Method: cancelConfirmed, Params: msg.Params})
		case name == "fine":
			w.handle(&Message{ID: msg.ID, Result: noResult})
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

// A process whose cancelled functions run on gets no new calls. It ends when its other
// calls are answered, or after the time-out of calls.
func TestCrowdedProcessIsReplaced(t *testing.T) {
	t.Parallel()
	const timeout = time.Minute
	for _, tt := range []struct {
		name      string
		cancelled int
		before    time.Duration // with this much time, the process gets new calls
		after     time.Duration // more, and it does not
	}{
		{"too many", maxCancelled, 0, 0},
		{"too long", 1, timeout - time.Nanosecond, time.Nanosecond},
	} {
		runSynced(t, tt.name, func(t *testing.T) {
			m := newEndlessModule(t, timeout)
			m.cancelled("spin", tt.cancelled-1)
			check(t, "a call before", <-m.begin(t.Context(), "fine"), nil)
			m.cancelled("spin", 1)
			if tt.before > 0 {
				pass(tt.before)
				check(t, "a call just before", <-m.begin(t.Context(), "fine"), nil)
			}
			check(t, "processes before", len(m.workers), 1)
			pass(tt.after)
			check(t, "a call after", <-m.begin(t.Context(), "fine"), nil)
			check(t, "processes after", len(m.workers), 2)
			check(t, "the first one lives", m.workers[0].alive(), false)
		})
	}
	runSynced(t, "without another call", func(t *testing.T) {
		m := newEndlessModule(t, timeout)
		m.cancelled("spin", maxCancelled)
		m.pool.reap(time.Now(), 0)
		check(t, "the process lives", m.workers[0].alive(), false)
	})
	runSynced(t, "beside another call", func(t *testing.T) {
		m := newEndlessModule(t, timeout)
		other := m.begin(t.Context(), "other")
		m.cancelled("spin", maxCancelled)
		check(t, "a call", <-m.begin(t.Context(), "fine"), nil)
		m.cancelled("spin", maxCancelled)
		check(t, "a call while the first process ends", <-m.begin(t.Context(), "fine"), nil)
		check(t, "processes", len(m.workers), 2)
		token := json.RawMessage(`{"progressToken":1}`)
		for range 4 {
			m.workers[0].handle(&Message{
				Method: "notifications/progress",
				Params: members(token),
			})
			check(t, "the first process lives", m.workers[0].alive(), true)
			pass(timeout / 4)
		}
		checkContains(t, "the other call", fmt.Sprint(<-other),
			"was stopped because a cancelled call blocked it")
		synctest.Wait()
		check(t, "a call after its end", <-m.begin(t.Context(), "fine"), nil)
		check(t, "processes then", len(m.workers), 3)
	})
}

// A call that waits when its claim ends is not made, whatever it waits for.
func TestWaitingCallsEnd(t *testing.T) {
	t.Parallel()
	slow := func(_ *testing.T, b *bubble) {
		b.m.pool = newPool("m", true, func(owner *Caller) (*Worker, error) {
			pass(5 * time.Second)
			return b.worker(owner), nil
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

// Only startCall writes requests to a process, and the pool checks the claim immediately
// before each request that it makes.
func TestOneWayToAProcess(t *testing.T) {
	long(t)
	h := readHouse(t)
	allowed := map[string][]string{ // the functions that may name each
		"workerState.input": {"spawn", "writeStdin", "enqueue"},
		"Worker.enqueue":    {"startCall", "send"},
		"Worker.send":       {"notify", "reply"},
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
