// Tests of worker.go: MCP with one process.

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A module that writes other lines, answers twice or adds tools is hosted. One that can't
// start is reported.
func TestFaultyModuleIsReported(t *testing.T) {
	long(t)
	dir := t.TempDir()
	writeFakes(t, dir, "noisy: garbage tools=x", "twice: twice tools=x", "dies: dies",
		"grows: grows tools=x")
	write(t, dir+"/plain.usher", "not executable")
	write(t, dir+"/b@d.usher.go", "package main")
	d := startDaemon(t, dir)
	c := connect(t, d.URL)
	c.AwaitTools("grows_extra1", "grows_x", "noisy_x", "twice_x")
	for _, tool := range []string{"noisy_x", "twice_x", "grows_x"} {
		for range 3 {
			a := c.Call(tool, `{"n":1}`)
			check(t, tool+": failure", a.Failure(), "")
			check(t, tool+": messages", len(a.Events), 1)
			checkOmits(t, tool, a.Body, "second")
		}
	}
	out := modulesOf(t, dir)
	checkContains(t, "usher modules", out,
		"exited at startup (exit status 3): fake: no module named turbo",
		"not executable: chmod +x plain.usher", `module name "b@d"`)
}

// If a server can't start, the last lines of its stderr are shown, or the reason why it was not run.
func TestStartErrorIsNamed(t *testing.T) {
	t.Parallel()
	need(t, "sh")
	dir := t.TempDir()
	write(t, dir+"/.mcp.json", `{"mcpServers":{`+
		`"m":{"command":"sh","args":["-c","printf 'a: b\\nError: no key\\n' >&2; exit 1"]}}}`)
	checkContains(t, "usher modules", modulesOf(t, dir),
		"exited at startup (exit status 1): a: b\n", "Error: no key\n")
}

// A process that sends requests of its own and reads no answers can't fill the memory with them.
func TestAnswersToPingsAreBounded(t *testing.T) {
	w := testWorker(kindExecutable, true, Caller{})
	defer w.stop(nil)
	for range maxInput + 10 {
		w.handle(&Message{ID: json.RawMessage("1"), Method: "ping"})
	}
	check(t, "answers that wait", len(w.input), maxInput)
}

// Only usher's own shims report the files that they have loaded.
func TestServersReportNoParts(t *testing.T) {
	for kind, want := range map[Kind]int{kindPython: 1, kindExecutable: 0} {
		w := testWorker(kind, false, Caller{})
		defer w.stop(nil)
		reports := 0
		w.pool.onParts = func(*Worker, []string) { reports++ }
		w.handle(&Message{Method: partsLoaded, Params: objectOf(`{"paths":["/x"]}`)})
		check(t, "reports of "+string(kind), reports, want)
	}
}

// testWorker returns a worker without a process, in a pool without a registry, which is swept until the
// worker stops. Its log is discarded.
func testWorker(kind Kind, perSession bool, owner Caller) *Worker {
	p := newPool(context.Background(), testConfig("a", perSession))
	p.Kind = kind
	w := newWorker(p, owner)
	p.procs = []*Worker{w}
	w.state = workerStarting
	go func() {
		for pauseFor(w.ctx, sweepTime) {
			p.sweep(time.Now())
		}
	}()
	return w
}

// makeReady has a process be ready for calls.
func (w *Worker) makeReady() { w.update(func() { w.advance(workerReady) }) }

// takeAll removes all messages from the queue, and returns them.
func (w *Worker) takeAll() (lines string) {
	for line := w.takeInput(); line != nil; line = w.takeInput() {
		lines += string(line)
	}
	return lines
}

// open returns how many requests a process has to answer that are not cancelled.
func (w *Worker) open() (n int) {
	w.update(func() {
		for _, c := range w.calls {
			if c.cancelled.IsZero() {
				n++
			}
		}
	})
	return n
}

// alive reports whether the process neither ends nor has ended.
func (w *Worker) alive() (alive bool) {
	w.update(func() { alive = w.state < workerStopping })
	return alive
}

// call makes a call in a process that is no pool's. It may be silent for so long; 0 is unlimited.
func (w *Worker) call(t *testing.T, caller Caller, params object, timeout time.Duration) error {
	w.pool.timeout = timeout
	c := newCall(t.Context(), caller)
	w.update(func() {
		c.worker = w
		w.pool.calls[c] = true
	})
	defer w.pool.leave(c)
	w.pool.setHeard(c)
	_, err := w.request(c, "tools/call", params)
	return err
}

// A module that does not answer initialize is given up.
func TestSilentModuleIsGivenUp(t *testing.T) {
	inSync(t, func(t *testing.T) {
		w := testWorker(kindExecutable, false, Caller{})
		context.AfterFunc(w.ctx, func() { w.finish("killed") })
		start := time.Now()
		w.remember("Log in first.")
		w.shakeHands(false)
		const want = `module "a" can't start: did not answer initialize within 30s`
		check(t, "error", fmt.Sprint(w.failure), want)
		check(t, "error for the owner", explain(w.failure), want+": Log in first.")
		check(t, "time until it is given up", time.Since(start), startTimeout)
	})
}

// The error of a module that can't start names no path to a session.
func TestStartFailuresNameNoPath(t *testing.T) {
	needLanguage(t, ".sh")
	long(t)
	dir := twoProjects(t)
	proj := dir + "/proj/"
	replace := func(path, text string) { must(t, os.WriteFile(path, []byte(text), 0o755)) }
	spoil := map[string]func(){
		"gone": func() { os.Remove(proj + "gone.usher") },
		"folder": func() {
			os.Remove(proj + "folder.usher")
			os.Mkdir(proj+"folder.usher", 0o755)
		},
		"interpreter": func() { replace(proj+"interpreter.usher", "#!/nowhere/sh\n") },
		"plain":       func() { os.Chmod(proj+"plain.usher", 0o644) },
		"text":        func() { replace(proj+"text.usher", "\x7fELF no") },
	}
	for name := range spoil {
		writeFake(t, proj+name+".usher", "good tools=x")
	}
	write(t, proj+"script.usher.sh", "# X is not written yet.\nx() { nowhere_to_be_found; }\n")
	spoil["script"] = func() {}
	write(t, proj+".mcp.json", `{"mcpServers":{"entry":{"command":"./entry.sh"}}}`)
	writeFake(t, proj+"entry.sh", "good tools=x")
	spoil["entry"] = func() { os.Remove(proj + "entry.sh") }
	want := slices.Clone(allTools)
	for name := range spoil {
		want = append(want, name+"_x")
	}
	slices.Sort(want)
	d := startDaemon(t, dir)
	free, _ := openSession(t, d.URL)
	free.AwaitTools(want...)
	c, _ := openSession(t, d.URL, inHeader(newCode(t, d.Base, dir+"/proj")))
	started := 0
	for _, name := range slices.Sorted(maps.Keys(spoil)) {
		spoil[name]()
		failure := c.Call(name+"_x", "").Failure()
		check(t, "a call of "+name+" works", failure == "", false)
		if strings.Contains(failure, "can't start") {
			started++
		}
	}
	check(t, "a call met a module that can't start", started > 0, true)
}

// An answer that can't be read fails its own call only. If its id can't be read either, the
// call waits, or both fail.
func TestUnreadableAnswerFailsItsCall(t *testing.T) {
	t.Parallel()
	const part = 1 << 16
	large := strings.Repeat("x,", part/2) // the lines that are too long end with many of these
	for name, tt := range map[string]struct{ line, want string }{
		"no result":             {`{"jsonrpc":"2.0","id":2}`, "can't be read"},
		"members that are null": {`{"jsonrpc":"2.0","id":2,"method":null,"error":null,"result":{}}`, "<nil>"},
		"a word with an id":     {`user: {"id":2}`, errTimeout.Error()},
		"a log line with an id": {`{"id":2,"level":"info"}`, errTimeout.Error()},
		"too long":              {`{"jsonrpc":"2.0","id":2,"result":"`, "larger than 64 MiB"},
		"too long, no answer": {`{"jsonrpc":"2.0","method":"x","params":"`,
			errTimeout.Error()},
		"too long, no id": {`{"jsonrpc":"2.0","result":"`, "larger than 64 MiB"},
	} {
		t.Run(name, func(t *testing.T) {
			w := testWorker(kindExecutable, false, Caller{})
			defer w.cancel()
			read, write := io.Pipe()
			defer write.Close()
			go w.readStdout(read)
			w.makeReady()
			other := newCall(t.Context(), Caller{Principal: everyone})
			must(t, w.startCall(other, "tools/call", nil))
			<-w.queued
			go func() {
				<-w.queued
				io.WriteString(write, tt.line)
				if strings.HasPrefix(name, "too long") {
					for range maxWorkerLine / part {
						io.WriteString(write, large)
					}
				}
				io.WriteString(write, "\n")
			}()
			timeout := patience
			if tt.want == errTimeout.Error() {
				timeout = 100 * time.Millisecond
			}
			err := w.call(t, Caller{Principal: everyone}, nil, timeout)
			checkContains(t, "error", fmt.Sprint(err), tt.want)
			both := strings.HasSuffix(name, " id") && strings.HasPrefix(name, "too long")
			check(t, "the other call failed", other.ctx.Err() != nil, both)
		})
	}
}

// A call gets a progress token even if its caller wants no reports, because progress restarts its
// time-out.
func TestEachCallHasAProgressToken(t *testing.T) {
	t.Parallel()
	w := testWorker(kindExecutable, false, Caller{})
	defer w.cancel()
	must(t, w.startCall(newCall(t.Context(), Caller{Principal: everyone}), "tools/call", nil))
	checkContains(t, "the request", w.takeInput(), `"_meta":{"progressToken":1}`)
}

// What ends a process first is what its calls fail with.
func TestFirstEndCounts(t *testing.T) {
	t.Parallel()
	stopped := processFault("a", "was stopped", "")
	for name, tt := range map[string]struct {
		end  func(w *Worker)
		want string
	}{
		"a stop before the drain": {
			func(w *Worker) {
				w.stop(stopped)
				w.update(func() { w.advance(workerDraining) })
			},
			"was stopped",
		},
		"a crash before the stop": {
			func(w *Worker) {
				w.stop(nil)
				w.stop(stopped)
			},
			"crashed (exit status 7)",
		},
	} {
		w := testWorker(kindExecutable, false, Caller{})
		w.makeReady()
		tt.end(w)
		w.finish("exit status 7")
		checkContains(t, name, w.failure.Error(), tt.want)
	}
}

// The error of a process says what it printed during the handshake. Later output is in the log.
func TestErrorsRepeatNoLog(t *testing.T) {
	t.Parallel()
	for state, want := range map[workerState]string{
		workerStarting: `module "a" exited at startup (exit status 7): why`,
		workerReady:    `module "a" crashed (exit status 7); the next call starts it again`,
	} {
		w := testWorker(kindExecutable, false, Caller{})
		w.update(func() { w.advance(state) })
		w.remember("why")
		w.finish("exit status 7")
		check(t, fmt.Sprint("the error in state ", state), explain(w.failure), want)
	}
}

// A draining process takes no call, and ends with its last one.
func TestDrainingProcessTakesNoCall(t *testing.T) {
	t.Parallel()
	w := testWorker(kindExecutable, false, Caller{})
	w.makeReady()
	call := func() *call { return newCall(t.Context(), Caller{Principal: everyone}) }
	last := call()
	must(t, w.startCall(last, "tools/call", nil))
	w.update(func() { w.advance(workerDraining) })
	check(t, "a new call", w.startCall(call(), "tools/call", nil), errNotSent)
	check(t, "it lives", w.alive(), true)
	w.answer(&Message{ID: json.RawMessage(last.id), Result: object{}})
	check(t, "it lives after its last call", w.alive(), false)
	w = testWorker(kindExecutable, false, Caller{})
	w.makeReady()
	last = call()
	must(t, w.startCall(last, "tools/call", nil))
	w.takeAll()
	w.endCall(last, errCancelled)
	w.update(func() { w.advance(workerDraining) })
	check(t, "it lives for a cancelled call", w.alive(), false)
}

// A module that asks without a state gets none, least of all an earlier one.
func TestStateIsNotRepeated(t *testing.T) {
	asks := objectOf(`{"resultType":"input_required","inputRequests":{}}`)
	params, err := answerInput(t.Context(), Caller{}, objectOf(`{"requestState":"old"}`), asks)
	must(t, err)
	check(t, "the next request", string(params.encode()), `{"inputResponses":{}}`)
}

// A hosted server can't make a cancelled call count for longer.
func TestServersConfirmNothing(t *testing.T) {
	inSync(t, func(t *testing.T) {
		w := testWorker(kindExecutable, false, Caller{})
		defer w.cancel()
		running := counter{perKey: 1}
		caller := Caller{Principal: everyone, Notify: func(string, object) {}}
		c := newCall(t.Context(), caller)
		c.slot = &slot{counter: &running, key: everyone}
		<-c.slot.queue()
		must(t, w.startCall(c, "tools/call", nil))
		w.takeAll()
		w.endCall(c, errCancelled)
		w.handle(
			&Message{Method: cancelConfirmed, Params: object{{"requestId", json.RawMessage(c.id)}}},
		)
		check(t, "running calls at first", running.count(everyone), 1)
		check(t, "the caller is kept", c.caller.Notify != nil, false)
		pass(cancelTimeout + 2*sweepTime)
		check(t, "running calls after cancelTimeout", running.count(everyone), 0)
	})
}

// A message that the process has not got when its call ends is dropped: the request, and what clients
// have answered to the module. Then no cancellation follows.
func TestQueuedMessagesEndWithTheirCall(t *testing.T) {
	t.Parallel()
	for _, read := range []bool{false, true} {
		t.Run(fmt.Sprint("the request is read: ", read), func(t *testing.T) {
			w := testWorker(kindPython, false, Caller{})
			defer w.cancel()
			w.makeReady()
			c := newCall(t.Context(), Caller{Principal: everyone})
			other := newCall(t.Context(), Caller{Principal: everyone})
			must(t, w.startCall(c, "tools/call", object{{"name", quote("big")}}))
			if read {
				checkContains(t, "the request", w.takeInput(), "big")
			}
			must(t, w.startCall(other, "tools/call", nil))
			secret := encodeResult(json.RawMessage("7"), object{{"text", quote("secret")}})
			w.update(func() { w.enqueue(c, secret) })
			w.endCall(c, errCancelled)
			input := w.takeAll()
			checkOmits(t, "what is queued", input, "big", "secret")
			check(
				t,
				"a cancellation follows",
				strings.Contains(input, "notifications/cancelled"),
				read,
			)
			checkContains(t, "what is queued", input, "tools/call")
		})
	}
}

// One write takes long messages one by one, however long: those that wait can still be dropped.
func TestLongMessagesAreWrittenAlone(t *testing.T) {
	t.Parallel()
	w := testWorker(kindPython, false, Caller{})
	defer w.cancel()
	w.makeReady()
	long := quote(strings.Repeat("x", maxWrite))
	for _, line := range [][]byte{long, []byte("1"), []byte("2"), long} {
		w.send(slices.Clone(line))
	}
	for _, want := range []int{len(long) + 1, len("1\n2\n"), len(long) + 1, 0} {
		check(t, "bytes of a write", len(w.takeInput()), want)
	}
}

// Ids that a module changed into text, or into a number with a fraction, are those of its calls.
func TestIDsAreTolerated(t *testing.T) {
	t.Parallel()
	for _, id := range []string{`1`, `"1"`, `1.0`, `1e0`} {
		w := testWorker(kindPython, false, Caller{})
		w.makeReady()
		var reports int
		caller := Caller{Principal: everyone, Notify: func(string, object) { reports++ }}
		c := newCall(t.Context(), caller)
		must(t, w.startCall(c, "tools/call", objectOf(`{"_meta":{"progressToken":"x"}}`)))
		w.takeAll()
		w.handle(&Message{
			Method: "notifications/progress",
			Params: object{{"progressToken", json.RawMessage(id)}},
		})
		check(t, id+": reports", reports, 1)
		w.endCall(c, errCancelled)
		w.handle(
			&Message{Method: cancelConfirmed, Params: object{{"requestId", json.RawMessage(id)}}},
		)
		check(t, id+": the cancellation is confirmed", c.confirmed, true)
		w.handle(&Message{ID: json.RawMessage(id), Result: object{}})
		check(t, id+": calls after the answer", len(w.calls), 0)
		w.cancel()
	}
}

// A list change before the handshake and a second request under one id do not count.
func TestModuleSaysTooMuch(t *testing.T) {
	t.Parallel()
	w := testWorker(kindExecutable, true, Caller{Principal: everyone})
	defer w.cancel()
	for _, state := range []workerState{workerStarting, workerReady} {
		w.update(func() { w.advance(state) })
		w.handle(&Message{Method: "notifications/tools/list_changed"})
		w.update(func() { check(t, "a list change counts", w.due != nil, state == workerReady) })
	}
	asked := make(chan string, 9)
	alice := Caller{Principal: principal("alice"), Client: clientProfile{caps: allCaps}}
	alice.Ask = func(ctx context.Context, method string, _ object) (object, error) {
		asked <- method
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}
	must(t, w.startCall(newCall(t.Context(), alice), "tools/call", nil))
	for range 3 {
		w.handle(&Message{ID: json.RawMessage("7"), Method: "roots/list"})
	}
	check(t, "asked", <-asked, "roots/list")
	w.update(func() { check(t, "open requests", len(w.asks), 1) })
	sent := w.takeAll()
	check(t, "refused requests", strings.Count(sent, "request id 7 is already in use"), 2)
}

// An ask that names no call reaches the only client it can be for, or is refused.
func TestAskHasOneCaller(t *testing.T) {
	t.Parallel()
	alice, bob := Caller{Principal: principal("alice")}, Caller{Principal: principal("bob")}
	visitor := Caller{Principal: principal("visitor")}
	alice.Stream = func() *outbox { return nil }
	for _, tt := range []struct {
		name      string
		owner     *Caller
		calls     []Caller
		cancelled *Caller // of another call; nil for none
		want      string
		later     string // once the cancelled call no longer counts as running; "" for the same
	}{
		{"for all, no call", nil, nil, nil, errNotSure.Error(), ""},
		{"for all, one call", nil, []Caller{alice}, nil, errNotSure.Error(), ""},
		{"for all, two calls", nil, []Caller{alice, bob}, nil, errNotSure.Error(), ""},
		{"a session's, no call", &alice, nil, nil, "alice", ""},
		{"a session's, two calls", &alice, []Caller{alice, alice}, nil, "alice", ""},
		{"a session's, a cancelled call", &alice, nil, &alice, "alice", ""},
		{"a session's, one call beside a cancelled one", &alice, []Caller{alice}, &alice, "alice", ""},
		{"a principal's, no call", &visitor, nil, nil, errNotSure.Error(), ""},
		{"a principal's, one call", &visitor, []Caller{visitor}, nil, "visitor", ""},
		{"a principal's, usher's own call beside", &visitor, []Caller{{}, visitor}, nil, "visitor", ""},
		{"a principal's, two calls", &visitor, []Caller{visitor, visitor}, nil, errNotSure.Error(), ""},
		{"a principal's, a cancelled call", &visitor, nil, &visitor, errNotSure.Error(), ""},
		{"a principal's, one beside a cancelled one", &visitor, []Caller{visitor}, &visitor,
			errNotSure.Error(), "visitor"},
	} {
		runSynced(t, tt.name, func(t *testing.T) {
			var owner Caller
			if tt.owner != nil {
				owner = *tt.owner
			}
			w := testWorker(kindExecutable, tt.owner != nil, owner)
			defer w.cancel()
			start := func(caller Caller) *call {
				c := newCall(t.Context(), caller)
				must(t, w.startCall(c, "tools/call", nil))
				w.takeAll()
				return c
			}
			asked := func(params string) string {
				var caller Caller
				var err error
				w.update(func() { caller, _, err = w.recipient(objectOf(params)) })
				if err != nil {
					return err.Error()
				}
				return caller.Principal.Label
			}
			naming := func(c *call) string {
				return fmt.Sprintf(`{"_meta":{%q:%s}}`, metaCall, c.id)
			}
			if tt.cancelled != nil {
				c := start(*tt.cancelled)
				w.endCall(c, errCancelled)
				check(t, "asked for the cancelled call", asked(naming(c)),
					errNotInCall.Error())
			}
			for _, caller := range tt.calls {
				c := start(caller)
				if c.ofClient() {
					check(t, "asked for a call by its name", asked(naming(c)),
						caller.Principal.Label)
				}
			}
			check(t, "asked", asked(""), tt.want)
			pass(cancelTimeout + 2*sweepTime) // a cancelled call no longer counts
			check(t, "asked later", asked(""), cmp.Or(tt.later, tt.want))
		})
	}
}

// A call is not silent while the module waits for a client's answer, whichever call of the session
// the module asks in.
func TestAskIsNoSilence(t *testing.T) {
	inSync(t, func(t *testing.T) {
		alice := Caller{Principal: principal("alice"), Stream: func() *outbox { return nil }}
		w := testWorker(kindExecutable, true, alice)
		defer w.cancel()
		w.pool.timeout = time.Minute
		w.makeReady()
		var calls []*call
		for range 2 {
			c := newCall(t.Context(), alice)
			c.worker = w
			must(t, w.startCall(c, "tools/call", nil))
			w.update(func() {
				c.heard = time.Now()
				w.pool.calls[c] = true
			})
			calls = append(calls, c)
		}
		var err error
		w.update(func() {
			_, err = w.newAsk(&Message{ID: quote("x"), Method: "roots/list"})
		})
		must(t, err)
		pass(2 * time.Minute)
		for _, c := range calls {
			check(t, "while a client is asked", context.Cause(c.ctx), nil)
		}
		w.handle(&Message{
			Method: "notifications/cancelled",
			Params: objectOf(`{"requestId":"x"}`),
		})
		pass(2 * time.Minute)
		for _, c := range calls {
			checkContains(t, "later", fmt.Sprint(context.Cause(c.ctx)), errTimeout.Error())
		}
	})
}

// A client's answer that arrives as the call ends does not reach the module any longer.
func TestLateAnswerToAnAskIsDropped(t *testing.T) {
	inSync(t, func(t *testing.T) {
		w := testWorker(kindPython, false, Caller{})
		defer w.cancel()
		w.makeReady()
		running := counter{perKey: 1}
		caller := Caller{Principal: principal("alice")}
		caller.Ask = func(context.Context, string, object) (object, error) {
			return objectOf(`{"word":"secret"}`), nil
		}
		c := newCall(t.Context(), caller)
		c.slot = &slot{counter: &running, key: caller.Principal}
		<-c.slot.queue()
		must(t, w.startCall(c, "tools/call", nil))
		w.takeAll()
		running.perKey = 0 // from now on, there is no room for the call to go on
		params := objectOf(fmt.Sprintf(`{"_meta":{%q:%s}}`, metaCall, c.id))
		w.handleRequest(&Message{ID: quote("x"), Method: "roots/list", Params: params})
		synctest.Wait()
		w.endCall(c, errCancelled)
		input := w.takeAll()
		checkOmits(t, "the answer", input, "secret")
		checkContains(t, "the answer", input, errNotInCall.Error())
	})
}

// If a call ends while a question to its client is open, the call's slot is released and not taken again.
func TestCallThatEndsInAnAskReleasesItsSlot(t *testing.T) {
	inSync(t, func(t *testing.T) {
		w := testWorker(kindPython, false, Caller{})
		defer w.cancel()
		w.makeReady()
		running := counter{perKey: 1}
		caller := Caller{Principal: principal("alice")}
		caller.Ask = func(ctx context.Context, _ string, _ object) (object, error) {
			<-ctx.Done()
			return nil, context.Cause(ctx)
		}
		c := newCall(t.Context(), caller)
		c.slot = &slot{counter: &running, key: caller.Principal}
		<-c.slot.queue()
		must(t, w.startCall(c, "tools/call", nil))
		params := objectOf(fmt.Sprintf(`{"_meta":{%q:%s}}`, metaCall, c.id))
		w.handleRequest(&Message{ID: quote("x"), Method: "roots/list", Params: params})
		synctest.Wait()
		check(t, "slots in use while the client is asked", running.count(caller.Principal), 0)
		w.update(func() { w.finishCall(c) }) // as for an answer of the module
		w.endCall(c, nil)
		check(t, "slots in use after the call", running.count(caller.Principal), 0)
		check(t, "open requests", len(w.asks), 0)
	})
}

// A process has at most maxAsks open requests to clients of one principal. No two have the same id.
func TestOpenAsksAreBounded(t *testing.T) {
	t.Parallel()
	w := testWorker(kindPython, false, Caller{})
	defer w.cancel()
	w.makeReady()
	ask := func(c *call, id int) error {
		msg := &Message{
			ID:     json.RawMessage(fmt.Sprint(id)),
			Method: "roots/list",
			Params: objectOf(fmt.Sprintf(`{"_meta":{%q:%s}}`, metaCall, c.id)),
		}
		var err error
		w.update(func() { _, err = w.newAsk(msg) })
		return err
	}
	start := func(name string) *call {
		c := newCall(t.Context(), Caller{Principal: principal(name)})
		must(t, w.startCall(c, "tools/call", nil))
		return c
	}
	alice := start("alice")
	for id := range maxAsks {
		must(t, ask(alice, id))
	}
	checkContains(t, "one more", fmt.Sprint(ask(alice, maxAsks)), "too many open requests")
	bob := start("bob")
	must(t, ask(bob, maxAsks))
	checkContains(t, "an open id", fmt.Sprint(ask(bob, 0)), "already in use")
}

// usher ends a process that does not confirm a cancellation in time, unless it is a hosted
// server's.
func TestBlockedProcessIsEnded(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name        string
		shim, sends bool
		alive       bool
	}{
		{"a shim that confirms", true, true, true},
		{"a shim that does not", true, false, false},
		{"a hosted server", false, false, true},
	} {
		runSynced(t, tt.name, func(t *testing.T) {
			kind := kindExecutable
			if tt.shim {
				kind = kindPython
			}
			w := testWorker(kind, false, Caller{})
			w.makeReady()
			context.AfterFunc(w.ctx, func() { w.finish("killed") })
			errs := make(chan error, 1)
			other := newCall(t.Context(), Caller{Principal: everyone})
			go func() {
				_, err := w.request(other, "tools/call", nil)
				errs <- err
			}()
			synctest.Wait()
			ctx, cancel := context.WithCancel(t.Context())
			blocked := newCall(ctx, Caller{Principal: everyone})
			must(t, w.startCall(blocked, "tools/call", nil))
			w.takeAll()
			cancel()
			w.endCall(blocked, errCancelled)
			if tt.sends {
				w.handle(&Message{
					Method: cancelConfirmed,
					Params: object{{"requestId", json.RawMessage("2")}},
				})
			}
			pass(cancelTimeout - sweepTime)
			check(t, "the process is alive before", w.alive(), true)
			pass(2 * sweepTime)
			synctest.Wait()
			check(t, "the process is alive", w.alive(), tt.alive)
			want := "was stopped because a cancelled call blocked it"
			if tt.alive {
				want = "was stopped during the call"
			}
			w.stop(w.fault("was stopped during the call"))
			checkContains(t, "the other call", fmt.Sprint(<-errs), want)
		})
	}
}

// eraServer is a server in sh whose tool "began" returns the first request that the process got. It
// ends when it is asked server/discover, unless that names the versions it speaks.
const eraServer = `#!/bin/sh
versions='%s'
while read -r line; do
	id=${line#*\"id\":}
	id=${id%%%%,*}
	about='"capabilities":{"tools":{}}'
	case $line in
	*'"server/discover"'*)
		[ "$versions" ] || exit 1
		first=${first:-discover}
		result="{\"supportedVersions\":$versions,$about}";;
	*'"initialize"'*)
		first=${first:-initialize}
		server='"serverInfo":{"name":"x","version":"1"}'
		result="{\"protocolVersion\":\"2025-11-25\",$server,$about}";;
	*'"tools/list"'*) result='{"tools":[{"name":"began","inputSchema":{"type":"object"}}]}';;
	*'"tools/call"'*) result="{\"content\":[{\"type\":\"text\",\"text\":\"$first\"}]}";;
	*) continue;;
	esac
	echo "{\"jsonrpc\":\"2.0\",\"id\":$id,\"result\":$result}"
done
`

// A process for one session begins with initialize if the server has said that it knows it, any other
// with server/discover. A server that ends at that is started again.
func TestProcessBeginsInAnEra(t *testing.T) {
	long(t)
	need(t, "sh")
	dir := t.TempDir()
	for name, versions := range map[string]string{
		"both": `["2026-07-28","2025-11-25"]`, "modern": `["2026-07-28"]`, "old": "",
	} {
		must(t, os.WriteFile(dir+"/"+name+".usher", fmt.Appendf(nil, eraServer, versions), 0o755))
	}
	c := connect(t, startDaemon(t, dir).URL)
	c.AwaitTools("both_began", "modern_began", "old_began")
	for name, want := range map[string][2]string{
		"both":   {"initialize", "discover"},
		"modern": {"discover", "discover"},
		"old":    {"initialize", "initialize"},
	} {
		check(t, name+": a session's", c.Call(name+"_began", "").Text(), want[0])
		a := c.Modern("tools/call", `{"name":"`+name+`_began"}`)
		check(t, name+": without a session", a.Text(), want[1])
	}
}
