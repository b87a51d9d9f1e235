// What a hostile or careless client must not take from others: processes, places,
// memory, and whom a module asks.

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// oddMeta is the _meta of a client without sessions that can be asked for the
// user's input.
var oddMeta = fmt.Sprintf(`"_meta":{%q:%q,%q:{"elicitation":{}}}`, metaProtocol, statelessProtocol, metaClientCaps)

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
		if s.live[session.token.ID] != session {
			t.Errorf("%s was forgotten", name)
		}
	}
	if s.live[idle.token.ID] != nil {
		t.Error("the session that was idle for longest is kept")
	}
	if n := s.own["a claim"].Len(); n != maxSessionsOf {
		t.Errorf("%d sessions are kept, want %d", n, maxSessionsOf)
	}
	for _, session := range s.live {
		s.end(session.token)
	}
	if len(s.live) > 0 || len(s.own) > 0 {
		t.Errorf("after all have ended, %d sessions of %d principals are kept", len(s.live), len(s.own))
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

// JSON that is valid and makes no sense is refused, in whatever revision.
func TestOddRequests(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	writeFake(t, dir+"/a.usher", "tools=x")
	d := startDaemon(t, dir)
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
		req.Header.Set(protocolHeader, statelessProtocol)
		req.Header.Set(methodHeader, m.Method)
		req.Header.Set(nameHeader, "a_x")
		if a := c.do(req); a.Status != http.StatusBadRequest && a.Status != http.StatusNotFound {
			t.Errorf("%.150s: %d %s", body, a.Status, a.Body)
		}
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

// Processes of sessions come and go with them, and do not crash one another.
func TestProcessPerSession(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	writeFake(t, dir+"/own.usher", "good")
	writeFake(t, dir+"/all.usher", "good shared")
	d := startDaemon(t, dir)
	var own, all []string
	var clients []*testClient
	for range 3 {
		c := connect(t, d.URL)
		c.awaitTools(append(namesOf("all"), namesOf("own")...)...)
		own = append(own, resultText(c.call("own_pid", "").result()), resultText(c.call("own_pid", "").result()))
		all = append(all, resultText(c.call("all_pid", "").result()))
		clients = append(clients, c)
	}
	if own[0] != own[1] || own[2] != own[3] || own[0] == own[2] || own[2] == own[4] {
		t.Errorf("three sessions had the processes %v", own)
	}
	if all[0] != all[1] || all[1] != all[2] {
		t.Errorf("a shared module had the processes %v", all)
	}
	if a := clients[0].call("own_crash", ""); !strings.Contains(a.failure(), "crashed") {
		t.Errorf("crash: %s", a.Body)
	}
	if pid := resultText(clients[1].call("own_pid", "").result()); pid != own[2] {
		t.Errorf("another session's crash made the process %s of %s", pid, own[2])
	}
	clients[1].do(clients[1].request(http.MethodDelete, ""))
	await(t, "the end of a session's process", func() bool {
		pid, _ := strconv.Atoi(own[2])
		return !processAlive(pid)
	})
	if pid := resultText(clients[2].call("own_pid", "").result()); pid != own[4] {
		t.Errorf("another session's end made the process %s of %s", pid, own[4])
	}
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

// A process that is not used ends: a session's after ten minutes, another when the
// user says so.
func TestIdleProcesses(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		perSession bool
		idle, ends time.Duration // 0: never
	}{{true, 0, sessionIdle}, {true, time.Hour, sessionIdle}, {true, time.Minute, time.Minute}, {false, time.Hour, time.Hour}, {false, 0, 0}} {
		p := mutePool(t, tt.perSession)
		c, err := p.enter(t.Context(), Caller{Session: "s", Affinity: "k"})
		if err != nil {
			t.Fatal(err)
		}
		p.reap(time.Now().Add(24*time.Hour), tt.idle)
		called := len(p.procs)
		p.leave(c, true)
		p.reap(time.Now().Add(tt.ends-time.Second), tt.idle)
		before := len(p.procs)
		p.reap(time.Now().Add(tt.ends+time.Second), tt.idle)
		if after := len(p.procs); called != 1 || before != 1 || after == 0 != (tt.ends > 0) {
			t.Errorf("%+v: %d processes with a call, %d before that time, %d after", tt, called, before, after)
		}
		p.close()
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

// However many call a shell method at once, so many processes there are.
func TestShellCallsAreBounded(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("needs a shell")
	}
	dir := t.TempDir()
	write(t, dir+"/a.usher.sh", "#!/bin/sh\n\n# Counts those that run beside it.\nmany() { mkdir run.$$; ls -d run.* | wc -l; sleep 0.1; rmdir run.$$; }\n")
	d := startDaemon(t, dir)
	clients := []*testClient{connect(t, d.URL), connect(t, d.URL)}
	clients[0].awaitTools("a_many")
	var most atomic.Int64
	var calls sync.WaitGroup
	for i := range 3 * maxRunningOf {
		calls.Go(func() {
			a := clients[i%2].call("a_many", "")
			n, err := strconv.ParseInt(strings.TrimSpace(resultText(a.result())), 10, 64)
			if err != nil {
				t.Errorf("a call: %s", a.Body)
			}
			for before := most.Load(); n > before && !most.CompareAndSwap(before, n); before = most.Load() {
			}
		})
	}
	calls.Wait()
	if n := most.Load(); n > maxRunningOf {
		t.Errorf("%d processes at once", n)
	}
}

// Calls of a method that goes on for ever have no more threads than calls may run,
// cancelled or not, and another claim's calls go on beside them.
func TestCancelledPythonCallsAreBounded(t *testing.T) {
	t.Parallel()
	pythonTestVersion(t)
	dir := t.TempDir()
	write(t, dir+"/a.usher.py", "import threading, time\n\ndef stay():\n    time.sleep(600)\n\ndef threads() -> int:\n    return threading.active_count()\n")
	d := startDaemon(t, dir)
	c, other := connect(t, d.URL), connect(t, d.URL)
	c.awaitTools("a_stay", "a_threads")
	other.Header.Set(claimHeader, newClaimFor(t, d.Base, dir).Code.Reveal())
	threads := func() int {
		n, _ := strconv.Atoi(resultText(other.call("a_threads", "").result()))
		return n
	}
	var calls sync.WaitGroup
	defer calls.Wait()
	for round := range 3 {
		for id := range maxRunningOf {
			calls.Go(func() {
				c.post(fmt.Sprintf(`{"jsonrpc":"2.0","id":"%d of %d","method":"tools/call","params":{"name":"a_stay"}}`, id, round))
			})
		}
		await(t, "as many to run as may", func() bool { return threads() > maxRunningOf })
		for id := range maxRunningOf {
			awaitUnderWay(t, c, fmt.Sprintf("%d of %d", id, round))
			c.post(fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"%d of %d"}}`, id, round))
		}
	}
	if n := threads(); n < maxRunningOf || n > maxRunningOf+4 {
		t.Errorf("%d threads", n)
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
		w := newWorker(workerConfig{module: "a", log: log, listChanged: func(*Worker) { panic("in reading") }})
		w.readStdout(strings.NewReader(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}` + "\n"))
		if w.alive() || !strings.Contains(out.String(), "in reading") {
			t.Errorf("after a panic in reading, the process is alive: %v", w.alive())
		}
	})
}

// Each call, claim and code that does not hold is a line of the log, which names a
// claim by its label and tells no code.
func TestLogTells(t *testing.T) {
	t.Parallel()
	dir, base := twoProjects(t), t.TempDir()
	d := daemonOptions{base: base}.start(t, dir)
	connect(t, d.URL).awaitTools(allTools...)
	claim, err := openStore(t, base).Create(t.Context(), dir+"/proj", "a phone", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	c, _ := openSession(t, d.URL, inHeader(claim.Code.Reveal()))
	c.call("a_x", "")
	c.call("no_such", "")
	listTools(c, inHeader("ABCDEF"))
	if _, err := openStore(t, base).Revoke(t.Context(), claim.Code); err != nil {
		t.Fatal(err)
	}
	listTools(c, presentNothing)
	const of = `claim=[0-9a-f]{8} label="a phone"`
	for _, want := range []string{
		`msg="claim made" ` + of,
		`msg=session ` + of + ` session=[A-Z2-7]{8}…`,
		`msg=call outcome=done session=[A-Z2-7]{8}… took=[0-9.]+[mµ]?s bytes=[0-9]+ module=a method=x ` + of,
		`msg=call outcome="unknown tool \\"no_such\\"" .* tool=no_such ` + of,
		`msg="an invalid claim code was presented" in_session=true scoped=true`,
		`msg="claim ended" ` + of,
	} {
		line := regexp.MustCompile(`(?m)^time=20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\S+ level=[A-Z]+ ` + want + `$`)
		if n := len(line.FindAllString(d.Log.String(), -1)); n != 1 {
			t.Errorf("%d lines like %s in:\n%s", n, want, d.Log.String())
		}
	}
	d.hidesCodes(t, claim.Code.Reveal(), "ABCDEF")
}

// Clients that look for a login are told that there is none, each time they connect,
// which is no line of the log.
func TestNoLogin(t *testing.T) {
	t.Parallel()
	d := startDaemon(t, t.TempDir(), "-require-claim")
	for _, path := range []string{".well-known/oauth-protected-resource", ".well-known/oauth-authorization-server/mcp", "mcp/.well-known/openid-configuration", "register"} {
		for _, method := range []string{http.MethodGet, http.MethodPost} {
			req, _ := http.NewRequest(method, d.URL+path, nil)
			res, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			body, _ := io.ReadAll(res.Body)
			res.Body.Close()
			if res.StatusCode != http.StatusNotFound || !strings.Contains(string(body), "usher has no login") || !strings.Contains(string(body), claimHeader) {
				t.Errorf("%s %s: %d %s", method, path, res.StatusCode, body)
			}
		}
	}
	if strings.Contains(d.Log.String(), "well-known") || strings.Contains(d.Log.String(), "register") {
		t.Errorf("the log: %s", d.Log.String())
	}
}

// On a disk that is full, who would revoke a claim is told another way to end it.
func TestRevokeOnAFullDisk(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", "size=64k,mode=700", "usher-test", base).CombinedOutput(); err != nil {
		t.Skipf("needs a small disk: %s", out)
	}
	defer func() {
		if out, err := exec.Command("umount", base).CombinedOutput(); err != nil {
			t.Errorf("%s", out)
		}
	}()
	claim := newClaimFor(t, base, t.TempDir())
	file, err := os.Create(base + "/full")
	if err != nil {
		t.Fatal(err)
	}
	_, err = io.Copy(file, zeros{})
	file.Close()
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	_, stderr, code := usher(t, "", "claim", "revoke", "-base", base, claim.Code.Reveal())
	if code != 1 || !strings.Contains(stderr, "free some space, or delete") || !strings.Contains(stderr, "claims.json") {
		t.Errorf("status %d: %s", code, stderr)
	}
}

// Requests being answered are bounded in bytes too; one always may be.
func TestRequestsInBytes(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		c := b.open(protocols[0])
		large := fmt.Sprintf(`{"name":"m_wait","arguments":{"seconds":60,"pad":%q}}`, strings.Repeat("x", 1_000_000))
		fit := maxInFlightBytes / len(c.message("tools/call", large))
		var under []*exchange
		for range fit + 3 {
			under = append(under, b.begin(c.request(http.MethodPost, c.message("tools/call", large))))
			synctest.Wait() // in order
		}
		for i, x := range under {
			if _, text := x.got(); strings.Contains(text, "too many requests in flight") != (i >= fit) {
				t.Errorf("request %d of %d that fit: %s", i+1, fit, text)
			}
		}
		pass(3 * time.Minute)
		if _, text := under[0].got(); !strings.Contains(text, "waited") {
			t.Errorf("it became %s", text)
		}
		if _, text := b.begin(c.request(http.MethodPost, c.message("ping", "{}"))).got(); !strings.Contains(text, `"result"`) {
			t.Errorf("after that: %s", text)
		}
		var q quota
		if _, ok := q.reserve("a", 100, 10); !ok {
			t.Error("one alone, however large, may not be")
		}
	})
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

// TestFairness has one claim use up all that it can, while another claim's calls of
// other modules and webhooks go on; afterwards all is as it was.
func TestFairness(t *testing.T) {
	slow(t) // and not beside others: it counts goroutines
	dir, base := t.TempDir(), t.TempDir()
	writeFake(t, dir+"/proj/all.usher", "shared good")
	writeFake(t, dir+"/proj/own.usher", "good")
	writeFake(t, dir+"/proj/asks.usher", "fixed names shared tools=ask")
	write(t, dir+"/proj/noisy.usher.sh", "#!/bin/sh\n\n# Says much.\nsay() { i=0; while [ $i -lt 2000 ]; do echo 'a line that nobody wants to read' >&2; i=$((i+1)); done; }\n")
	writeFake(t, dir+"/other/b.usher", "good tools=x")
	writeFake(t, dir+"/other/w.usher", "good tools=handleIt")
	d := daemonOptions{base: base}.start(t, dir)
	connect(t, d.URL).awaitTools(slices.Concat(namesOf("all"), []string{"asks_ask", "b_x", "noisy_say"}, namesOf("own"), []string{"w_handleIt"})...)
	greedy, other := newClaimFor(t, base, dir+"/proj"), newClaimFor(t, base, dir+"/other")
	victim, _ := openSession(t, d.URL, inHeader(other.Code.Reveal()))
	// others makes calls and deliveries, all of which are to succeed, and tells how
	// long they took.
	others := func(when string) {
		var took []time.Duration
		for range 40 {
			start := time.Now()
			if a := victim.call("b_x", `{"n":1}`); a.failure() != "" || a.result() == nil {
				t.Errorf("%s: a call: %d %s", when, a.Status, a.Body)
			}
			if a := d.deliver(t, "w/handleIt", `{"n":1}`); a.Status != http.StatusOK {
				t.Errorf("%s: a delivery: %d %s", when, a.Status, a.Body)
			}
			took = append(took, time.Since(start)/2)
		}
		slices.Sort(took)
		t.Logf("%s: a call or delivery of others takes %v, at worst %v", when, took[len(took)/2], took[len(took)-1])
	}
	others("first")
	others("with nobody else")
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	goroutines, live := runtime.NumGoroutine(), heap()
	fillBodies, stop := useUpAll(t, d, greedy.Code.Reveal())
	others("while one claim uses up all it can")
	fillBodies()
	others("and its bodies do not end")
	t.Logf("meanwhile %d goroutines of %d, %d MiB of heap of %d, %d MiB of log", runtime.NumGoroutine(), goroutines, heap()>>20, live>>20, len(d.Log.String())>>20)
	stop()
	if _, err := openStore(t, base).Revoke(t.Context(), greedy.Code); err != nil { // which ends what waits for input
		t.Fatal(err)
	}
	logged := uint64(len(d.Log.String())) * 3 // which is the test's
	for deadline := time.Now().Add(time.Minute); runtime.NumGoroutine() > goroutines+50 || heap() > live+logged+16<<20; {
		if time.Now().After(deadline) {
			t.Fatalf("a minute later: %d goroutines of %d, %d MiB of heap of %d", runtime.NumGoroutine(), goroutines, heap()>>20, live>>20)
		}
		await(t, "a moment", func() bool { return true })
	}
	others("afterwards")
}

// useUpAll has a claim fill what it may have of suspended calls, calls, streams,
// sessions, processes and lines of the log, until stop. fillBodies has it fill its
// share of bodies too, which has most of its other requests refused.
func useUpAll(t *testing.T, d *testDaemon, code string) (fillBodies, stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 500}}
	again := func(n int, f func(c *testClient)) {
		for range n {
			c, _ := openSession(t, d.URL, inHeader(code))
			c.http = client
			all.Go(func() {
				for ctx.Err() == nil {
					f(c)
				}
			})
		}
	}
	try := func(c *testClient, req *http.Request) {
		hangsUp, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		c.try(req.WithContext(hangsUp)) // whatever comes of it
	}
	call := func(tool, arguments string) func(*testClient) {
		return func(c *testClient) {
			try(c, c.request(http.MethodPost, c.message("tools/call", `{"name":"`+tool+`","arguments":`+arguments+`}`)))
		}
	}
	for range maxRunningOf {
		asker := askModern(t, d.URL, askAllCaps, code)
		asker.http.http = client
		asked := asker.http.do(asker.modernRequest(object{{"name", quote("asks_ask")}, {"arguments", marshal(fakeAsk{Asks: []fakeWish{askFor("form", "x")}})}}.encode()))
		if got := stringField(asked.result(), "resultType"); got != resultInput {
			t.Fatalf("a call that asks was answered with %d %s", asked.Status, asked.Body)
		}
	}
	again(2*maxRunningOf, call("all_sleep", `{"ms":200}`))
	again(20, call("own_sleep", `{"ms":200}`))
	again(5, call("noisy_say", `{}`))
	again(20, call("all_big", `{"bytes":1000000}`))
	again(5, func(c *testClient) { // cancelled at once
		id := c.message("x", "")
		call("all_sleep", `{"ms":60000}`)(c)
		try(c, c.request(http.MethodPost, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":`+id+`}}`))
	})
	again(20, func(c *testClient) { // streams
		get := c.request(http.MethodGet, "")
		get.Header.Set("Accept", "text/event-stream")
		try(c, get)
	})
	again(2, func(c *testClient) { // sessions
		made := *c.request(http.MethodPost, initializeAs(protocols[0]))
		made.Header.Set(claimHeader, code)
		made.Header.Del(sessionHeader)
		if res, err := client.Do(made.WithContext(ctx)); err == nil {
			res.Body.Close()
			req := c.request(http.MethodDelete, "")
			req.Header.Set(sessionHeader, res.Header.Get(sessionHeader))
			try(c, req)
		}
	})
	fillBodies = func() {
		again(20, func(c *testClient) { // bodies that do not end
			body := io.MultiReader(io.LimitReader(zeros{}, defaultMaxBody-1), waits{ctx})
			req := c.request(http.MethodPost, "")
			req.Body, req.ContentLength = io.NopCloser(body), defaultMaxBody
			try(c, req)
		})
	}
	return fillBodies, func() {
		cancel()
		all.Wait()
		client.CloseIdleConnections()
	}
}

// waits reads nothing until it has ended.
type waits struct{ context.Context }

func (w waits) Read([]byte) (int, error) {
	<-w.Done()
	return 0, io.EOF
}
