// Tests of worker.go: MCP with one process.

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
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

// If a server can't start, the line that names the error is shown, whatever stack follows.
func TestStartErrorIsNamed(t *testing.T) {
	t.Parallel()
	need(t, "sh")
	dir := t.TempDir()
	const stack = "    at one\\\\n    at two\\\\n    at three\\\\n    at four\\\\n    at five {\\\\n" +
		"  code: 1,\\\\n  list: []\\\\n}\\\\n\\\\nNode.js v22\\\\n"
	var entries []string
	for _, line := range []string{
		"Error: Cannot find module", "pkg.OddError [X]: oh no", "panic: no key", "ZodError: [",
	} {
		entries = append(entries, fmt.Sprintf(
			`"m%d":{"command":"sh","args":["-c","printf 'a: b\\n%s\\n%s' >&2; exit 1"]}`,
			len(entries), line, stack))
	}
	entries = append(entries, `"home":{"command":"~/bin/foo"}`)
	write(t, dir+"/.mcp.json", `{"mcpServers":{`+strings.Join(entries, ",")+`}}`)
	out := modulesOf(t, dir)
	const exited = "exited at startup (exit status 1): "
	checkContains(t, "usher modules", out, exited+"Error: Cannot find module\n",
		exited+"pkg.OddError [X]: oh no\n", exited+"panic: no key\n",
		"Node.js v22", `"command": ~ is not expanded: write ${HOME}`)
	check(t, "stacks", strings.Count(out, "at five"), 1) // nothing names the error
}

// testWorker returns a worker without a process, whose log is discarded.
func testWorker(module string, owner *Caller) *Worker {
	return newWorker(context.Background(), workerConfig{
		module:      module,
		log:         quiet,
		owner:       owner,
		caps:        allCaps,
		listChanged: func(*Worker) {},
	})
}

// A module that does not answer initialize is given up.
func TestSilentModuleIsGivenUp(t *testing.T) {
	inSync(t, func(t *testing.T) {
		w := testWorker("a", nil)
		context.AfterFunc(w.ctx, func() { w.finish("killed") })
		start := time.Now()
		err := w.shakeHands(t.Context(), false)
		checkContains(t, "error", fmt.Sprint(err),
			`module "a" can't start: did not answer initialize within`)
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
		"too long":              {`{"jsonrpc":"2.0","id":2,"result":"`, "larger than 64 MiB"},
		"too long, no answer": {`{"jsonrpc":"2.0","method":"x","params":"`,
			errTimeout.Error()},
		"too long, no id": {`{"jsonrpc":"2.0","result":"`, "larger than 64 MiB"},
	} {
		t.Run(name, func(t *testing.T) {
			w := testWorker("a", nil)
			defer w.cancel()
			read, write := io.Pipe()
			defer write.Close()
			go w.readStdout(read)
			other := w.newCall(Caller{Principal: everyone})
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
			_, err := w.request(t.Context(), Caller{Principal: everyone}, "tools/call", nil,
				timeout, nil)
			checkContains(t, "error", fmt.Sprint(err), tt.want)
			both := strings.HasSuffix(name, " id") && strings.HasPrefix(name, "too long")
			check(t, "the other call failed", len(other.answer) == 1, both)
		})
	}
}

// A call gets a progress token even if its caller wants no reports, because progress restarts its
// time-out.
func TestEachCallHasAProgressToken(t *testing.T) {
	t.Parallel()
	w := testWorker("a", nil)
	defer w.cancel()
	must(t, w.startCall(w.newCall(Caller{Principal: everyone}), "tools/call", nil))
	checkContains(t, "the request", w.snapshot().input, `"_meta":{"progressToken":1}`)
}

// What ends a process first is what its calls fail with.
func TestFirstEndCounts(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		end  func(w *Worker)
		want string
	}{
		"a stop before the drain": {
			func(w *Worker) {
				w.stop("was stopped")
				w.drain()
			},
			"was stopped",
		},
		"a crash before the stop": {
			func(w *Worker) {
				w.cancel()
				w.stop("was stopped")
			},
			"crashed (exit status 7)",
		},
	} {
		w := testWorker("a", nil)
		w.update(func(s *workerState) { s.advance(workerReady) })
		tt.end(w)
		w.finish("exit status 7")
		checkContains(t, name, w.snapshot().failure.Error(), tt.want)
	}
}

// The error of a process says what it printed during the handshake. Later output is in the log.
func TestErrorsRepeatNoLog(t *testing.T) {
	t.Parallel()
	for phase, want := range map[workerPhase]string{
		workerStarting: `module "a" exited at startup (exit status 7): why`,
		workerReady:    `module "a" crashed (exit status 7); the next call starts it again`,
	} {
		w := testWorker("a", nil)
		w.update(func(s *workerState) { s.advance(phase) })
		w.remember("why")
		w.finish("exit status 7")
		check(t, fmt.Sprint("the error in phase ", phase), explain(w.snapshot().failure), want)
	}
}

// A draining process takes no call, and ends with its last one.
func TestDrainingProcessTakesNoCall(t *testing.T) {
	t.Parallel()
	w := testWorker("a", nil)
	last := w.newCall(Caller{Principal: everyone})
	must(t, w.startCall(last, "tools/call", nil))
	w.drain()
	check(t, "a new call", w.startCall(w.newCall(Caller{Principal: everyone}), "tools/call", nil), errNotSent)
	check(t, "it lives", w.alive(), true)
	w.answer(&Message{ID: json.RawMessage(last.id), Result: noResult})
	check(t, "it lives after its last call", w.alive(), false)
}

// A hosted server can't make a cancelled call count for longer.
func TestServersConfirmNothing(t *testing.T) {
	inSync(t, func(t *testing.T) {
		w := testWorker("a", nil)
		defer w.cancel()
		running := counter[*Principal]{perKey: 1}
		c := w.newCall(Caller{Principal: everyone})
		c.slot = &slot[*Principal]{counter: &running, key: everyone}
		<-c.slot.grant()
		must(t, w.startCall(c, "tools/call", nil))
		w.endCall(c, errCancelled)
		w.handle(&Message{Method: cancelConfirmed, Params: object{{"requestId", json.RawMessage(c.id)}}})
		check(t, "running calls at first", running.count(everyone), 1)
		w.update(func(s *workerState) {
			check(t, "the caller is kept", s.cancelled[c.id].ofClient(), false)
		})
		pass(cancelTimeout + time.Second)
		check(t, "running calls after cancelTimeout", running.count(everyone), 0)
	})
}

// A list change before the handshake and a second request under one id do not count.
func TestModuleSaysTooMuch(t *testing.T) {
	t.Parallel()
	w := testWorker("a", &Caller{Principal: everyone})
	defer w.cancel()
	changes := 0
	w.listChanged = func(*Worker) { changes++ }
	for _, phase := range []workerPhase{workerStarting, workerReady} {
		w.update(func(s *workerState) { s.advance(phase) })
		w.handle(&Message{Method: "notifications/tools/list_changed"})
	}
	check(t, "list changes", changes, 1)
	asked := make(chan string, 9)
	alice := Caller{Principal: principal("alice"), Client: clientProfile{caps: allCaps}}
	alice.Ask = func(ctx context.Context, method string, _ object) (object, error) {
		asked <- method
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}
	must(t, w.startCall(w.newCall(alice), "tools/call", nil))
	for range 3 {
		w.handle(&Message{ID: json.RawMessage("7"), Method: "roots/list"})
	}
	check(t, "asked", <-asked, "roots/list")
	var open int
	var sent string
	w.update(func(s *workerState) { open, sent = len(s.asks), string(s.input) })
	check(t, "open requests", open, 1)
	check(t, "refused requests", strings.Count(sent, "request id 7 is already in use"), 2)
}

// For a module that does not read, no more of a principal is queued than maxInput, and each call
// ends.
func TestModuleThatDoesNotRead(t *testing.T) {
	long(t)
	synctest.Test(t, func(t *testing.T) {
		w := testWorker("a", nil)
		_, err := w.request(t.Context(), Caller{}, "ping", nil, time.Minute, nil)
		check(t, "a call", err, errTimeout)
		big := objectOf(`{"x":"` + strings.Repeat("x", maxInput) + `"}`)
		var calls sync.WaitGroup
		for _, row := range []struct{ principal, want string }{
			{"alice", errTimeout.Error()},
			{"alice", "does not read"},
			{"bob", errTimeout.Error()},
		} {
			calls.Go(func() {
				caller := Caller{Principal: principal(row.principal)}
				_, err := w.request(t.Context(), caller, "ping", big, time.Minute, nil)
				checkContains(t, "a large call of "+row.principal, fmt.Sprint(err), row.want)
			})
			synctest.Wait()
		}
		calls.Wait()
		carol := principal("carol")
		w.reply(carol, json.RawMessage(`"1"`), noResult, nil)
		check(t, "an answer counts for the principal that was asked", w.snapshot().unsent[carol] > 0, true)
		read, stdin := io.Pipe()
		go w.writeStdin(stdin)
		go io.Copy(io.Discard, read)
		synctest.Wait()
		alice := Caller{Principal: principal("alice")}
		_, err = w.request(t.Context(), alice, "ping", big, time.Minute, nil)
		check(t, "a large call once the module has read", err, errTimeout)
		w.cancel()
	})
}

// An ask that names no call reaches the only client it can be for, or is refused.
func TestAskHasOneCaller(t *testing.T) {
	t.Parallel()
	alice, bob := Caller{Principal: principal("alice")}, Caller{Principal: principal("bob")}
	visitor := Caller{Principal: principal("visitor"), Sessionless: true}
	for _, tt := range []struct {
		name      string
		owner     *Caller
		calls     []Caller
		cancelled *Caller // of another call; nil for none
		want      string
	}{
		{"for all, no call", nil, nil, nil, errNotSure.Message},
		{"for all, one call", nil, []Caller{alice}, nil, errNotSure.Message},
		{"for all, two calls", nil, []Caller{alice, bob}, nil, errNotSure.Message},
		{"a session's, no call", &alice, nil, nil, "alice"},
		{"a session's, two calls", &alice, []Caller{alice, alice}, nil, "alice"},
		{"a session's, a cancelled call", &alice, nil, &alice, "alice"},
		{"a session's, one call beside a cancelled one", &alice, []Caller{alice},
			&alice, "alice"},
		{"a principal's, no call", &visitor, nil, nil, errNotSure.Message},
		{"a principal's, one call", &visitor, []Caller{visitor}, nil, "visitor"},
		{"a principal's, usher's own call beside", &visitor, []Caller{{}, visitor}, nil,
			"visitor"},
		{"a principal's, two calls", &visitor, []Caller{visitor, visitor}, nil,
			errNotSure.Message},
		{"a principal's, a cancelled call", &visitor, nil, &visitor, errNotSure.Message},
		{"a principal's, one beside a cancelled one", &visitor, []Caller{visitor},
			&visitor, errNotSure.Message},
	} {
		runSynced(t, tt.name, func(t *testing.T) {
			w := testWorker("a", tt.owner)
			defer w.cancel()
			start := func(caller Caller) *call {
				c := w.newCall(caller)
				must(t, w.startCall(c, "tools/call", nil))
				return c
			}
			asked := func(params string) string {
				var caller Caller
				var err error
				w.update(func(s *workerState) {
					caller, _, err = w.recipient(s, objectOf(params))
				})
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
					errNotInCall.Message)
			}
			for _, caller := range tt.calls {
				c := start(caller)
				if c.ofClient() {
					check(t, "asked for a call by its name", asked(naming(c)),
						caller.Principal.Label)
				}
			}
			check(t, "asked", asked(""), tt.want)
			pass(time.Hour)
			check(t, "asked later", asked(""), tt.want)
		})
	}
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
			w := testWorker("a", nil)
			w.confirms = tt.shim
			w.update(func(s *workerState) { s.advance(workerReady) })
			context.AfterFunc(w.ctx, func() { w.finish("killed") })
			errs := make(chan error, 1)
			go func() {
				_, err := w.request(t.Context(), Caller{Principal: everyone},
					"tools/call", nil, 0, nil)
				errs <- err
			}()
			synctest.Wait()
			_, err := w.request(t.Context(), Caller{Principal: everyone}, "tools/call",
				nil, time.Second, nil)
			check(t, "a call", err, errTimeout)
			if tt.sends {
				w.handle(&Message{
					Method: cancelConfirmed,
					Params: object{{"requestId", json.RawMessage("2")}},
				})
			}
			pass(cancelTimeout - time.Nanosecond)
			check(t, "the process is alive before", w.alive(), true)
			pass(time.Nanosecond)
			synctest.Wait()
			check(t, "the process is alive", w.alive(), tt.alive)
			want := "was stopped because a cancelled call blocked it"
			if tt.alive {
				want = "was stopped during the call"
			}
			w.stop("was stopped during the call")
			checkContains(t, "the other call", fmt.Sprint(<-errs), want)
		})
	}
}
