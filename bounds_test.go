// What a hostile or careless client must not take from others: processes, places,
// memory, and whom a module asks.

package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// oddMeta is the _meta of a client without sessions that can be asked for the
// user's input.
var oddMeta = fmt.Sprintf(`"_meta":{%q:%q,%q:{"elicitation":{}}}`, metaProtocol, modernProtocol, metaClientCaps)

// A session has one value for as long as something of it is under way, however
// many others there are.
func TestSessionJustOpenedIsNotEvicted(t *testing.T) {
	t.Parallel()
	var s sessionTable
	open := func(token *sessionToken) *Session {
		session, release := s.open(token)
		t.Cleanup(release)
		return session
	}
	for range maxIdleSessions {
		_, release := s.open(newSessionToken(protocols[0], 0, Principal{}, time.Now()))
		release()
	}
	token := newSessionToken(protocols[0], 0, Principal{}, time.Now())
	if open(token) != open(token) {
		t.Error("two values for one session that is in use")
	}
}

// Of too many sessions those are kept that were used lately.
func TestIdleSessionsAreForgotten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var s sessionTable
		open := func() {
			_, release := s.open(newSessionToken(protocols[0], 0, Principal{}, time.Now()))
			release()
		}
		for range maxIdleSessions + 5 {
			open()
		}
		if n := len(s.live); n != maxIdleSessions+5 {
			t.Errorf("%d sessions are kept of %d of the last minute", n, maxIdleSessions+5)
		}
		pass(2 * time.Minute)
		open()
		if n := len(s.live); n != 1 {
			t.Errorf("%d sessions are kept, and one was used lately", n)
		}
	})
}

// What a module asks after its call's end takes no place that calls could have.
func TestLateAskTakesNoPlace(t *testing.T) {
	t.Parallel()
	k := newParking(t.Context(), time.Minute)
	for range maxParked + 1 {
		var late func(ctx context.Context, method string, params json.RawMessage) (json.RawMessage, error)
		p := k.begin(Caller{Session: "x", Affinity: "x"}, [32]byte{}, func(_ context.Context, c Caller) (json.RawMessage, error) {
			late = c.Ask
			return json.RawMessage(`{}`), nil
		})
		if _, err := p.wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		k.wg.Wait()
		ended, cancel := context.WithCancel(t.Context())
		cancel() // as it has when the call ended
		if _, err := late(ended, "roots/list", nil); err == nil {
			t.Fatal("an ask after the call's end was answered")
		}
	}
	if n := len(k.calls); n != 0 {
		t.Errorf("%d calls are parked, none is under way", n)
	}
}

// A module that takes back what it asks may ask again under the same id: that ends
// with its call like any other.
func TestAskUnderAnIDOnceMore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := &Worker{module: "a", log: slog.New(slog.DiscardHandler), out: make(chan []byte, 64), done: make(chan struct{})}
		w.asks.begin()
		defer w.asks.finish()
		asked := 0
		caller := Caller{Session: "s", Affinity: "s", Caps: allCaps}
		caller.Ask = func(ctx context.Context, _ string, _ json.RawMessage) (json.RawMessage, error) {
			asked++
			<-ctx.Done()
			return nil, context.Cause(ctx)
		}
		over := make(chan error, 1)
		go func() {
			_, err := w.request(t.Context(), caller, "tools/call", nil, 0)
			over <- err
		}()
		synctest.Wait()
		ask := &Message{ID: ID(`"q"`), Method: "roots/list", Params: json.RawMessage(`{"_meta":{"usher/call":1}}`)}
		w.handle(ask)
		synctest.Wait()
		w.handle(&Message{Method: "notifications/cancelled", Params: json.RawMessage(`{"requestId":"q"}`)})
		w.handle(ask)
		synctest.Wait()
		start := time.Now()
		w.handle(&Message{ID: ID("1"), Result: json.RawMessage(`{}`)})
		if err := <-over; err != nil || asked != 2 || time.Since(start) > 0 {
			t.Errorf("%v, asked %d times, it took %v to end", err, asked, time.Since(start))
		}
		if n := w.asks.open.len(); n != 0 {
			t.Errorf("%d requests of the module are open", n)
		}
	})
}

// The places among parked calls are bounded for one client and for all.
func TestParkedCallsAreBounded(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(context.Background())
	k := newParking(ctx, time.Minute)
	refused := make(map[string]int)
	for _, kin := range []string{"a", "b", "c", "d", "e"} {
		for range maxParkedKin + 1 {
			p := k.begin(Caller{Session: "x", Affinity: kin}, [32]byte{}, func(ctx context.Context, c Caller) (json.RawMessage, error) {
				return c.Ask(ctx, "roots/list", nil)
			})
			if _, err := p.wait(t.Context()); errors.Is(err, errManyParked) {
				refused[kin]++
			} else if err != nil {
				t.Fatal(err)
			}
		}
	}
	if got := fmt.Sprint(refused); got != "map[a:1 b:1 c:1 d:1 e:65]" {
		t.Errorf("refused: %s", got)
	}
	cancel()
	k.close()
}

// Clients that call and go away start no more processes than there may be.
func TestProcessesOfOneModuleAreBounded(t *testing.T) {
	t.Parallel()
	var live, most atomic.Int64
	end := make(chan struct{})
	f := newFleet(t.Context(), "a", true, func(context.Context, watcher) (*Worker, error) {
		n := live.Add(1)
		defer live.Add(-1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		<-end // a start that takes its time
		return nil, errors.New("it does not start")
	}, func() {})
	gone, cancel := context.WithCancel(t.Context())
	var callers sync.WaitGroup
	for i := range 20 * maxLanes {
		callers.Go(func() {
			ctx, hangUp := context.WithCancel(gone)
			context.AfterFunc(ctx, hangUp)
			if i%2 == 0 {
				time.AfterFunc(time.Duration(i)*time.Microsecond, hangUp)
			}
			f.call(ctx, Caller{Session: fmt.Sprint(i), Affinity: fmt.Sprint(i % 3), Stateless: true}, "tools/call", nil, 0)
			hangUp()
		})
	}
	await(t, "as many processes as there may be", func() bool { return live.Load() >= maxLanes })
	cancel()
	callers.Wait()
	close(end)
	f.close()
	if n := most.Load(); n > 2*maxLanes {
		t.Errorf("%d processes at once", n)
	}
}

// A client without sessions whose calls last leaves processes to others.
func TestOneClientTakesNotAllProcesses(t *testing.T) {
	t.Parallel()
	started := make(chan struct{}, maxLanes)
	ctx, cancel := context.WithCancel(t.Context())
	f := newFleet(ctx, "a", true, func(ctx context.Context, _ watcher) (*Worker, error) {
		select {
		case started <- struct{}{}:
		case <-ctx.Done():
		}
		<-ctx.Done()
		return nil, ctx.Err()
	}, func() {})
	var callers sync.WaitGroup
	call := func(kin string) {
		callers.Go(func() {
			f.call(ctx, Caller{Session: rand.Text(), Affinity: kin, Stateless: true}, "tools/call", nil, 0)
		})
	}
	for range 2 * maxLanes {
		call("one")
	}
	for range maxKinLanes {
		<-started
	}
	call("another")
	<-started
	f.mu.Lock()
	if n := len(f.lanes); n != maxKinLanes+1 {
		t.Errorf("%d processes: want %d of one client, and one of another", n, maxKinLanes)
	}
	f.mu.Unlock()
	cancel()
	callers.Wait()
	f.close()
}

// A process that asks becomes its caller's own only while nobody else is about to
// call it.
func TestAskerIsNoOnesWithAGuest(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	writeFake(t, dir+"/a.usher", "good")
	f := newFleet(t.Context(), "a", false, func(ctx context.Context, w watcher) (*Worker, error) {
		w.serves, w.listChanged = true, func(string) {}
		return startWorker(ctx, "a", launch{Path: dir + "/a.usher", Dir: dir}, eraSession, &Guard{}, slog.New(slog.DiscardHandler), w)
	}, func() {})
	defer f.close()
	alice, bob := Caller{Session: "alice", Affinity: "alice", Caps: allCaps}, Caller{Session: "bob", Affinity: "bob", Caps: allCaps}
	if _, err := f.call(t.Context(), alice, "tools/call", json.RawMessage(`{"name":"echo"}`), 0); err != nil {
		t.Fatal(err)
	}
	p, err := f.enter(t.Context(), bob) // as a call begins
	if err != nil {
		t.Fatal(err)
	}
	defer p.leave()
	f.seenAsking(p) // alice's process asks
	w := p.worker
	w.asks.own(bob) // and bob's call goes on
	w.calls.add("77", &call{caller: bob, answer: make(chan *Message, 1), beat: make(chan struct{}, 1), ctx: t.Context()})
	defer w.calls.take("77")
	if calls, err := w.whose(nil); err == nil && len(calls) > 0 {
		t.Errorf("what alice's process asks goes to %s", calls[0].caller.Session)
	}
}

// A module that asks for the first time in the last call of a retired fleet
// leaves nothing behind.
func TestRetiredFleetThatAsksIsOver(t *testing.T) {
	t.Parallel()
	f := newFleet(t.Context(), "a", false, nil, func() {})
	caller := Caller{Session: "alice", Affinity: "alice"}
	p, err := f.enter(t.Context(), caller)
	if err != nil {
		t.Fatal(err)
	}
	w := &Worker{done: make(chan struct{}), exited: make(chan struct{})}
	w.calls.add("1", &call{caller: caller})
	w.stopping.Store(true)
	w.stopOnce.Do(func() {}) // there is no process to end
	p.worker = w
	w.asks.own(caller)
	f.retire()
	f.seenAsking(p)
	p.leave()
	f.reap(time.Time{})
	if !f.over() {
		t.Error("the fleet goes on without a process and without a call")
	}
}

// A module that asks and does not start is not started for each call, though its
// processes are forgotten when they have ended.
func TestCrashesOfAnAskingModuleAreRemembered(t *testing.T) {
	t.Parallel()
	starts := 0
	f := newFleet(t.Context(), "a", true, func(context.Context, watcher) (*Worker, error) {
		starts++
		return nil, errors.New("it does not start")
	}, func() {})
	defer f.close()
	lives := func(p *pool) bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.living > 0
	}
	for range 20 {
		f.call(t.Context(), Caller{Session: "s", Affinity: "k"}, "tools/call", nil, 0)
		await(t, "the end of the start", func() bool { return !slices.ContainsFunc(f.all(), lives) })
		f.reap(time.Time{})
	}
	if starts > 3 {
		t.Errorf("20 calls made %d starts", starts)
	}
}

// A module is told what it lacks, not what is there.
func TestInputThatAClientCanNotGive(t *testing.T) {
	t.Parallel()
	wish := json.RawMessage(`{"inputRequests":{"a":{"method":"sampling/createMessage","params":{"tools":[]}}}}`)
	_, err := answerInput(t.Context(), Caller{Caps: capSampling}, nil, wish)
	if err == nil || !strings.Contains(err.Error(), "sampling with tools") {
		t.Errorf("got %v, want what is lacking", err)
	}
}

// A timer that comes late ends no round but its own.
func TestParkedCallOutlivesTheTimerOfARoundBefore(t *testing.T) {
	t.Parallel()
	k := newParking(t.Context(), time.Hour)
	p := k.begin(Caller{Affinity: "k"}, [32]byte{}, func(ctx context.Context, c Caller) (json.RawMessage, error) {
		for range 2 {
			if _, err := c.Ask(ctx, "roots/list", nil); err != nil {
				return nil, err
			}
		}
		return json.RawMessage(`{"done":true}`), nil
	})
	for round, key := range []string{"ask-1", "ask-2"} {
		result, err := p.wait(t.Context())
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		p.expire(uint32(round)) // of the one before
		answers := joinMembers([]member{{key, json.RawMessage(`{"roots":[]}`)}})
		if p, err = k.resume(field(result, "requestState"), [32]byte{}, answers, nil); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
	}
	if result, err := p.wait(t.Context()); err != nil || field(result, "done") == nil {
		t.Errorf("got %s, %v", result, err)
	}
}

// JSON that is valid and makes no sense is refused, in whatever revision.
func TestOddRequests(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	writeFake(t, dir+"/a.usher", "tools=x")
	d := serveHere(t, dir)
	c := connect(t, d.URL)
	c.awaitTools("a_x")
	meta := oddMeta
	for _, body := range []string{
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a_x","requestState":5,` + meta + `}}`,
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a_x","requestState":null,` + meta + `}}`,
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a_x","arguments":null,` + meta + `}}`,
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"_meta":5,"name":"a_x"}}`,
		`{"jsonrpc":"2.0","id":1,"method":"tools/call"}`,
		`{"jsonrpc":"2.0","id":` + strings.Repeat("9", 400) + `,"method":"tools/call"}`,
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a_x",` + meta + `,"_meta":{}}}`,
		`{"jsonrpc":"2.0","id":1,"method":"subscriptions/listen","params":{"notifications":{"resourceSubscriptions":5},` + meta + `}}`,
		`{"jsonrpc":"2.0","id":1,"method":"subscriptions/listen","params":{"notifications":[],` + meta + `}}`,
		`{"jsonrpc":"2.0","id":1,"result":{}}`,
		`{"jsonrpc":"2.0","id":1,"method":"completion/complete","params":{"ref":5,` + meta + `}}`,
		`{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":5,` + meta + `}}`,
		`{"jsonrpc":"2.0","id":1,"method":"ping","params":{` + meta + `}}`,
		`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{` + meta + `}}`,
		`[]`, `[1]`, `5`, `null`, `""`,
	} {
		var m struct{ Method string }
		_ = json.Unmarshal([]byte(body), &m) // some are no objects
		req := c.request(http.MethodPost, body)
		req.Header.Set(protocolHeader, modernProtocol)
		req.Header.Set(methodHeader, m.Method)
		req.Header.Set(nameHeader, "a_x")
		if a := c.do(req); a.Status != http.StatusBadRequest && a.Status != http.StatusNotFound {
			t.Errorf("%.150s: %d %s", body, a.Status, a.Body)
		}
	}
}
