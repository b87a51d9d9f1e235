// Workers. A Worker is one process of a module. usher speaks MCP with it over the process's
// stdin and stdout. This file starts the process, shakes hands with it, reads its lists, sends it
// calls, handles its messages, and ends the process. It depends on callers, but not on sessions,
// transports, scopes or views: a Caller contains functions that reach the client.
//
// A module may ask its client in the middle of a call, for example for the user's input.
// The request must reach the client whose call caused it and no other, but on stdio a
// request need not say which call it belongs to. A request that names its call, as those of
// usher's shims do, is for that call's client. In a process of one session, all requests are
// for the session. In a process for the callers of one principal without sessions, a
// request is for the only call in flight, while no cancelled one counts as running. Other requests
// are refused.

package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	startTimeout  = 30 * time.Second // for the handshake
	probeTimeout  = 10 * time.Second // for the answer to server/discover
	stdinTimeout  = 1 * time.Second  // for the process to end after usher closed its stdin
	askTimeout    = 10 * time.Minute // for a client's answer, often a person's
	cancelTimeout = 10 * time.Second // for a shim to confirm a cancellation; see sweepCalls
)

// cancelConfirmed is the notification by which usher's own shims confirm a cancellation. They
// send it from the thread that would begin the next call, so a blocked module can't.
const cancelConfirmed = "usher/cancelled"

// partsLoaded is the notification by which usher's own shims report files that the module has
// loaded, before an answer.
const partsLoaded = "usher/parts"

// Why a call was not made, or has no answer.
var (
	errNotSent = errors.New("the process takes no more calls") // make the call again
	errTimeout = errors.New("no answer and no progress")
)

// call is one request to a module.
type call struct {
	caller  Caller
	arrived time.Time
	method  string                  // for the log, as name is
	name    string                  // of the tool, prompt or resource
	ctx     context.Context         // ends if the caller cancels the call, or it takes too long
	cancel  context.CancelCauseFunc // ends ctx
	slot    *slot                   // released once the call no longer runs; nil for usher's own calls
	worker  *Worker                 // nil for a shell function
	id      string                  // in messages of the process
	answer  chan *Message           // 1-buffered

	// Guarded by pool.mu:
	heard     time.Time // when it last began to wait, or its module showed a sign of life
	isSlow    bool      // the log says that it is still running
	isSent    bool      // the process has got its request, or is getting it
	cancelled time.Time // zero unless the process must still confirm, or end, its cancellation
	confirmed bool      // the process has confirmed the cancellation
}

// newCall returns a call, which ends with ctx. The caller must call cancel.
func newCall(ctx context.Context, caller Caller) *call {
	c := &call{caller: caller, arrived: time.Now(), answer: make(chan *Message, 1)}
	c.ctx, c.cancel = context.WithCancelCause(ctx)
	return c
}

// ofClient reports whether the call is not usher's own.
func (c *call) ofClient() bool {
	return c.caller.Principal != nil
}

// workerState is the state of a process, from before its start to its end. It only advances, by
// Worker.advance, and may skip states.
//
//	state     what happens                 a call                        what ends the state
//	waiting   no process runs: there are   waits for ready               room; drain
//	          as many as there may be
//	starting  usher builds and starts it,  waits for ready; usher's own  the handshake; a failure; drain
//	          and shakes hands with it     are made
//	ready     it serves                    is made                       drain; stop; a crash
//	draining  it answers what it has got   errNotSent: the pool makes    the end of its last call
//	                                       it again, in another process
//	stopping  its ctx has ended: usher     errNotSent; one that was      the end of the process
//	          ends it, or it has crashed   made waits for the end
//	ended     nothing of it is left        fails with failure
//
// The pool begins to drain a process that is idle, whose session or version has ended, or that
// makes room. Cancelled calls and usher's own do not keep a draining process alive. stop is for
// a failed start, a blocked process, and a crash: the end of the process, or of its stdin or
// stdout, that usher did not cause. When usher ends, ctx ends at once.
type workerState int

const (
	workerWaiting workerState = iota
	workerStarting
	workerReady
	workerDraining
	workerStopping
	workerEnded
)

// Worker is one process of a module. Its methods are safe for concurrent use, except those whose
// comments say that the caller holds the lock: that of the pool.
type Worker struct {
	pool      *pool
	log       *slog.Logger
	owner     Caller             // the first caller of a process for one Member; zero for a shared process
	caps      clientCaps         // what usher declares that the process can ask its clients for
	room      *slot              // its place among the processes of the module; nil if it needs none
	stateless bool               // it speaks statelessProtocol; constant once ready is closed
	sessions  bool               // it has said that it also speaks a revision with sessions; constant as well
	info      object             // the module's description of itself in the handshake; constant as well
	ctx       context.Context    // ends when workerStopping begins, or usher ends
	cancel    context.CancelFunc // ends ctx; for advance only
	ready     chan struct{}      // closed when the process is ready; by run, if its start has failed
	done      chan struct{}      // closed when the process has ended and nothing is running
	queued    chan struct{}      // 1-buffered: input is not empty
	running   sync.WaitGroup     // the process group, requests to clients, and readings of lists
	ending    sync.Once          // finish does something
	lastID    atomic.Int64       // of a request to the process

	// Guarded by pool.mu:
	state      workerState
	failure    error                     // of its calls or start; set in workerStopping, or after a crash
	started    bool                      // the handshake has succeeded; constant once ready is closed
	crashed    bool                      // by itself, or its start has failed: this may repeat itself
	lastUse    time.Time                 // the last sweep that found a call of it, or its beginning
	subscribed bool                      // its session waits for changes of resources, so it is not idle
	calls      map[string]*call          // to be answered by the process, by id; also cancelled ones
	asks       map[string]*clientRequest // open requests to clients, by id
	input      []input                   // messages that usher has not begun to write
	stderr     tail                      // and lines of stdout that are not JSON-RPC, before it was ready

	lists   *manifest     // as last read after an announcement; nil if there was none
	due     chan struct{} // closed when lists have been read that have changed; nil if none has
	reading chan struct{} // the same, while they are being read
}

// input is a message for a process, one line. If its call ends first, it is dropped.
type input struct {
	call *call // nil for a message of usher itself
	line []byte
}

// newWorker returns a worker without a process. owner is the first caller of a process for one Member;
// zero for a process of all callers. The caller holds p.mu.
func newWorker(p *pool, owner Caller) *Worker {
	w := &Worker{
		pool:    p,
		log:     p.log,
		owner:   owner,
		caps:    allCaps,
		ready:   make(chan struct{}),
		done:    make(chan struct{}),
		queued:  make(chan struct{}, 1),
		lastUse: time.Now(),
		calls:   make(map[string]*call),
		asks:    make(map[string]*clientRequest),
	}
	w.ctx, w.cancel = context.WithCancel(p.ends)
	if owner.Stream == nil { // Notify and Ask are for one call, and would keep it in memory
		w.owner.Notify = nil
		w.owner.Ask = nil
	}
	if owner.Principal != nil { // else it is usher's own or shared: hardly ever more than one
		w.room = &slot{counter: p.rooms}
		if owner.Principal.exists() { // else all principals without a claim count together, under nil
			w.room.key = owner.Principal
			w.caps &^= capRoots
		}
		w.room.queue() // in the order of the first calls
	}
	if p.Launch.Shared {
		w.caps &^= capRoots
	}
	return w
}

// update makes a change to the process with the lock held. change must not block.
func (w *Worker) update(change func()) {
	w.pool.mu.Lock()
	defer w.pool.mu.Unlock()
	change()
}

// advance begins a state, unless the process is in a later one, and then does what the state asks
// for: a draining process without calls of clients stops, and one that has ended fails its calls.
// The caller holds the lock.
func (w *Worker) advance(state workerState) {
	before := w.state
	w.state = max(w.state, state)
	// finishCall calls advance for each call, so the end of the last one stops a draining process.
	if w.state == workerDraining && !w.answersClients() {
		w.state = workerStopping
		w.failure = errNotSent
	}
	if w.state == before {
		return
	}
	switch w.state {
	case workerReady:
		w.started = true
		close(w.ready)
	case workerStopping:
		w.cancel()
	case workerEnded:
		w.cancel()
		for _, c := range w.calls {
			c.cancel(w.failure)
			w.finishCall(c)
		}
		if w.due != nil {
			close(w.due)
		}
	}
}

// answersClients reports whether the process has calls of clients that are not cancelled.
func (w *Worker) answersClients() bool {
	for _, c := range w.calls {
		if c.ofClient() && c.cancelled.IsZero() {
			return true
		}
	}
	return false
}

// stop begins to end the process, unless it is ending anyway, and returns at once; done is closed
// when it has ended. Its calls, or its start, fail with failure; nil is for a crash.
func (w *Worker) stop(failure error) {
	w.update(func() {
		if w.state < workerStopping {
			w.failure = failure
			w.advance(workerStopping)
		}
	})
}

// fault returns the error of calls whose process usher ends.
func (w *Worker) fault(reason string) *fault { return processFault(w.pool.Name, reason, "") }

// ---- The process

// spawn starts the process, and the goroutines that serve it until it ends: one that writes to stdin,
// and one each that reads stdout and stderr. A fourth, which Registry.running counts, waits for the
// process, then for the readers, so that a last answer counts, and finishes the worker. When w.ctx
// ends, the process is ended in the order of the MCP specification for stdio: stdin is
// closed, then TERM, then KILL (basic/lifecycle, "Shutdown").
func (w *Worker) spawn(l launch) error {
	cmd := exec.Command(l.Path, l.Args...)
	cmd.Dir = l.Dir
	cmd.Env = l.Env
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	c, err := startChild(cmd)
	if err != nil {
		return err
	}
	var readers sync.WaitGroup
	readers.Go(func() { w.readStdout(c.outputs[0]) })
	readers.Go(func() { eachLine(c.outputs[1], w.remember) })
	w.running.Go(func() { w.writeStdin(stdin) })
	w.pool.running.Go(func() {
		err := c.wait(w.ctx, stdinTimeout) // writeStdin closes stdin
		w.stop(nil)
		w.running.Go(c.end)
		readers.Wait()
		for _, f := range c.outputs {
			f.Close()
		}
		stdin.Close() // else writeStdin may wait forever for a process that can't be killed
		w.finish(cmp.Or(err, errors.New("exit status 0")).Error())
	})
	return nil
}

// finish records that the process has ended, for example with "exit status 1". It waits for the
// rest of the process group, and closes done.
func (w *Worker) finish(exit string) {
	w.update(func() {
		// A process that usher has drained, or may not start, says nothing about the next one.
		isWanted := w.failure == errNotSent || errors.Is(w.failure, errUnapproved)
		w.crashed = w.failure == nil || !w.started && !isWanted
		switch {
		case w.failure != nil:
		case w.started:
			w.failure = w.fault(fmt.Sprintf("crashed (%s); the next call starts it again", exit))
		default:
			reason := fmt.Sprintf("exited at startup (%s)", exit)
			w.failure = processFault(w.pool.Name, reason, w.stderr.String())
		}
		w.advance(workerEnded)
	})
	w.running.Wait()
	w.ending.Do(func() { close(w.done) }) // its start may have failed twice
}

// writeStdin writes the queued messages until the process must end and none is left. (There may
// still be a cancellation.) If a write fails, the process ends, and its callers see a crash.
func (w *Worker) writeStdin(stdin io.WriteCloser) {
	defer w.stop(nil)
	defer catch(w.log, nil)
	defer stdin.Close()
	for {
		runtime.Gosched() // so that other calls that are ready share the write
		lines := w.takeInput()
		switch {
		case lines != nil:
			if _, err := stdin.Write(lines); err != nil {
				return
			}
		case waitFor(w.ctx, w.queued) != nil:
			return
		}
	}
}

// takeInput removes messages from the front of the queue and returns them, or nil. One write for
// several short messages takes less time, here and in the process. Nothing else stays in memory for
// a call that ends while the process does not read.
func (w *Worker) takeInput() (lines []byte) {
	w.update(func() {
		taken := 0
		for _, in := range w.input {
			if taken > 0 && len(lines)+len(in.line) > maxWrite {
				break
			}
			lines = append(lines, in.line...)
			if in.call != nil {
				in.call.isSent = true // its request is its first message
			}
			taken++
		}
		w.input = slices.Delete(w.input, 0, taken)
	})
	return lines
}

// remember logs a line of stderr. During the start, it also keeps the line, because the line may explain
// why the process does not start: then the error contains it.
func (w *Worker) remember(line string) {
	w.log.Info("module output", "line", line)
	w.update(func() {
		if !w.started {
			w.stderr.add(line)
		}
	})
}

// readStdout handles the messages of the process until it closes its stdout. A process
// without a stdout is of no use, even if it continues. Its callers see a crash.
func (w *Worker) readStdout(stdout io.Reader) {
	defer w.stop(nil)
	defer catch(w.log, nil)
	for lines := bufio.NewReaderSize(stdout, 64<<10); ; {
		line, err := readLine(lines, maxWorkerLine)
		if err != nil && !errors.Is(err, errLineTooLong) {
			return
		}
		var msg *Message
		if err == nil {
			msg, err = parseMessage(replaceSurrogates(line))
		}
		if err != nil {
			w.dropUnreadable(line, err)
			continue
		}
		w.handle(msg)
	}
}

// dropUnreadable logs a line that is not a message, and fails the call that the line
// answers. It gets only the beginning of a line over the limit; if the beginning shows no
// id, all calls in flight fail.
func (w *Worker) dropUnreadable(line []byte, why error) {
	w.remember(fmt.Sprintf("not MCP, on stdout: %s (%v)", clipText(string(line), maxLoggedLine), why))
	tooLong := why == errLineTooLong
	if tooLong {
		why = fmt.Errorf("it is larger than %s", formatSize(maxWorkerLine))
	}
	problem := rpcErrorf(codeInternal, "the module's answer can't be read: %v", why)
	answer := members(line)
	id := answer.get("id")
	switch {
	case !isNull(answer.get("method")): // a request or notification
	case id != nil && answer.get("jsonrpc") != nil:
		w.answer(&Message{ID: id, Err: problem})
	case tooLong:
		w.update(func() {
			for _, c := range w.calls {
				c.cancel(problem)
				w.finishCall(c)
			}
		})
	}
}

// handle handles one message of the process, on the goroutine that reads stdout. So it must not wait:
// until it returns, usher reads nothing else from the process.
func (w *Worker) handle(msg *Message) {
	if msg.isRequest() {
		w.handleRequest(msg)
		return
	}
	switch msg.Method {
	case "":
		w.answer(msg)
	case "notifications/progress":
		w.passProgress(msg.Params)
	case "notifications/message", "notifications/elicitation/complete":
		w.passOn(msg.Method, msg.Params)
	case "notifications/resources/updated": // the session has subscribed
		if o := w.owner; o.Notify != nil && o.reachable() {
			o.Notify(msg.Method, msg.Params)
		}
	case "notifications/cancelled":
		w.update(func() {
			id := idKey(msg.Params.get("requestId"))
			if a := w.asks[id]; a != nil { // then ask sends no answer
				delete(w.asks, id)
				a.cancel()
			}
		})
	case cancelConfirmed:
		w.update(func() {
			if c := w.callOf(msg.Params.get("requestId")); c != nil {
				c.confirmed = true
			}
		})
	case partsLoaded:
		var paths []string
		if w.pool.Kind.singleFile() && json.Unmarshal(msg.Params.get("paths"), &paths) == nil {
			w.pool.onParts(w, paths)
		}
	default:
		if strings.HasSuffix(msg.Method, "/list_changed") {
			w.listsChanged()
		}
	}
}

// ---- Messages to the process

// enqueue queues a message for the process, unless that is ending. It does not wait: a module that
// does not read may be waiting for usher to read. If maxInput messages are queued, enqueue drops those
// without a call, such as answers to pings. The caller holds the lock.
func (w *Worker) enqueue(c *call, line []byte) {
	if w.state < workerStopping && (c != nil || len(w.input) < maxInput) {
		w.input = append(w.input, input{c, append(line, '\n')})
		wake(w.queued)
	}
}

// send queues a message of usher itself that is not a request: see enqueue.
func (w *Worker) send(line []byte) { w.update(func() { w.enqueue(nil, line) }) }

// startCall queues the request of a call. No other function writes a request to the process. It
// returns errNotSent if the process takes no more calls.
func (w *Worker) startCall(c *call, method string, params object) (err error) {
	c.id = strconv.FormatInt(w.lastID.Add(1), 10)
	line := encodeRequest(json.RawMessage(c.id), method, w.adapt(c, params))
	w.update(func() {
		if w.state >= workerDraining {
			err = errNotSent
			return
		}
		w.enqueue(c, line)
		w.calls[c.id] = c
	})
	return err
}

// ---- Calls

// request sends the request of a call and waits for its result. It converts the params to the
// protocol era of the module, and replaces the caller's progress token. It releases the slot once
// the call no longer runs in the module. If the call's context ends, usher cancels the call, and the
// error is the context's cause. Errors that the module answered with are *fault without a Status.
func (w *Worker) request(c *call, method string, params object) (object, error) {
	if err := w.startCall(c, method, params); err != nil {
		c.slot.release()
		return nil, err
	}
	// If both have happened, either may win: an answer that came just before the end is no worse than
	// the reason for the end.
	select {
	case msg := <-c.answer:
		w.endCall(c, nil)
		if msg.Err != nil {
			return nil, msg.Err
		}
		return msg.Result, nil
	case <-c.ctx.Done(): // cancelled by its caller, too long, or its process has ended
		err := context.Cause(c.ctx)
		w.endCall(c, err)
		return nil, err
	}
}

// query makes a request of usher's own.
func (w *Worker) query(ctx context.Context, method string, params object) (object, error) {
	c := newCall(ctx, Caller{})
	defer c.cancel(nil)
	return w.request(c, method, params)
}

// adapt returns the params of a call as the module gets them: with a progress token of
// usher's own and, in the era without sessions, with the client's identity. Two callers may
// choose the same token, and progress restarts the time-out even if the caller wants no
// reports of it.
func (w *Worker) adapt(c *call, params object) object {
	meta := params.object("_meta")
	client := clientProfile{caps: w.caps}
	if c.ofClient() {
		client = c.caller.Client
		meta = meta.set("progressToken", json.RawMessage(c.id))
	}
	if w.stateless {
		meta = identify(meta, client)
	}
	return params.setMeta(meta)
}

// endCall ends a call. It first cancels the requests to clients that the module made in the call, so
// that a client sees their end before the call's answer. If cancelled is not nil, endCall notifies
// the module, unless the module has not got the request. A client's call then counts as running
// until the module has answered it; see sweepCalls.
func (w *Worker) endCall(c *call, cancelled error) {
	notify := false
	var asks []*clientRequest
	w.update(func() {
		// Otherwise, a process that does not read would keep the messages in memory.
		w.input = slices.DeleteFunc(w.input, func(in input) bool { return in.call == c })
		switch {
		case w.calls[c.id] != c: // it was answered
		case c.isSent && c.ofClient():
			notify = true
			c.cancelled = time.Now()
			c.caller.Notify = nil // they keep the caller's request in memory
			c.caller.Ask = nil
			w.advance(w.state)
		default:
			notify = c.isSent
			w.finishCall(c)
		}
		for _, a := range w.asks {
			if a.call == c {
				asks = append(asks, a)
			}
		}
	})
	// Without the lock, which ask takes before it closes done.
	for _, a := range asks {
		a.cancel()
		<-a.done
	}
	if notify {
		params := object{{"requestId", json.RawMessage(c.id)}, {"reason", quote(cancelled.Error())}}
		w.send(encodeRequest(nil, "notifications/cancelled", params))
	}
}

// finishCall removes a call that the process need not answer any longer. The caller holds the lock.
func (w *Worker) finishCall(c *call) {
	delete(w.calls, c.id)
	c.slot.release()
	w.advance(w.state)
}

// sweepCalls looks at the calls of the process. The time for which the module waits for a client's
// answer does not count as its silence. A process of a shim ends if a cancelled call blocks it: if it has
// not confirmed the cancellation in time, because it can't begin another call, or if the function still
// runs after the time-out of calls. Hosted servers confirm nothing: their cancelled calls just don't
// count any longer. The caller holds the lock.
func (w *Worker) sweepCalls(now time.Time) {
	for _, c := range w.calls {
		for _, a := range w.asks {
			if a.call == c || a.call == nil {
				c.heard = now
			}
		}
		age := now.Sub(c.cancelled)
		isLate := age >= cancelTimeout && !c.confirmed
		isEndless := w.pool.timeout > 0 && age >= w.pool.timeout
		switch {
		case c.cancelled.IsZero():
		case !w.pool.Kind.singleFile():
			if age >= cancelTimeout {
				w.finishCall(c)
			}
		case w.state < workerStopping && (isLate || isEndless):
			w.log.Error("a cancelled call blocks the module: ending its process")
			w.failure = w.fault("was stopped because a cancelled call blocked it: call again")
			w.advance(workerStopping)
		}
	}
}

// callOf returns the call that a message of the process names, if the process has to answer it. Some
// modules turn its number into text. The caller holds the lock.
func (w *Worker) callOf(id json.RawMessage) *call { return w.calls[idKey(bytes.Trim(id, `"`))] }

// answer passes an answer on to its call, or records that a cancelled call has ended.
func (w *Worker) answer(msg *Message) {
	w.update(func() {
		if c := w.callOf(msg.ID); c != nil {
			c.answer <- msg
			w.finishCall(c)
		}
	})
}

// passProgress passes progress on to the caller of the call that its token names.
func (w *Worker) passProgress(params object) {
	var caller Caller
	w.update(func() {
		if c := w.callOf(params.get("progressToken")); c != nil {
			c.heard = time.Now()
			caller = c.caller
		}
	})
	if caller.Notify != nil {
		caller.Notify("notifications/progress", params)
	}
}

// passOn passes a notification on to the client it is for. If that is uncertain, only
// usher's log gets it.
func (w *Worker) passOn(method string, params object) {
	var caller Caller
	var c *call
	var err error
	w.update(func() { caller, c, err = w.recipient(params) })
	switch {
	case err == nil && caller.Notify != nil && (c != nil || caller.reachable()):
		caller.Notify(method, stripCallID(params))
	case method == "notifications/message":
		data := clipText(string(params.get("data")), maxLoggedLine)
		w.log.Info("module message", "level", params.text("level"), "data", data)
	}
}

// ---- Its lists

// listsChanged records that the lists of the process may have changed. The next sweep begins to read
// them. Before the process is ready, nothing is announced.
func (w *Worker) listsChanged() {
	w.update(func() {
		if w.started && w.state < workerStopping && w.due == nil {
			w.due = make(chan struct{})
		}
	})
}

// readLists begins to read the lists of the process if they may have changed, unless they are being
// read. The caller holds the lock.
func (w *Worker) readLists() {
	if w.due == nil || w.reading != nil || w.state >= workerStopping {
		return
	}
	w.reading = w.due
	w.due = nil
	w.running.Go(func() {
		defer w.update(func() {
			close(w.reading)
			w.reading = nil
		})
		defer catch(w.log, nil)
		if m, err := w.readManifest(); err == nil {
			w.pool.onLists(w, m)
		}
	})
}

// ---- The handshake, in which usher finds out what the module is

// shakeHands finds out what the process is, and makes it ready. stateful says that it is known to
// have sessions. If that fails, shakeHands ends the process.
func (w *Worker) shakeHands(stateful bool) {
	silent := fmt.Errorf("did not answer initialize within %v", startTimeout)
	ctx, cancel := context.WithTimeoutCause(w.ctx, startTimeout, silent)
	defer cancel()
	if err := w.handshake(ctx, stateful); err != nil {
		var output string
		w.update(func() { output = w.stderr.String() })
		w.stop(processFault(w.pool.Name, "can't start: "+err.Error(), output))
		<-w.done
	} else {
		w.update(func() { w.advance(workerReady) })
	}
}

// handshake tries server/discover, unless stateful is set, and then initialize (MCP 2026-07-28,
// basic/transports/stdio, "Backward Compatibility"). An error, the end of the process or silence is
// a refusal.
func (w *Worker) handshake(ctx context.Context, stateful bool) error {
	if !stateful {
		probe, cancel := context.WithTimeout(ctx, probeTimeout)
		defer cancel()
		if w.discover(probe) {
			return nil
		}
		if w.ctx.Err() != nil {
			w.pool.refusesDiscover.Store(true)
		}
	}
	return w.initialize(ctx)
}

// discover sends server/discover, and reports whether the module is stateless. If so, it asks for
// notifications of changed lists.
func (w *Worker) discover(ctx context.Context) bool {
	w.stateless = true
	result, _ := w.query(ctx, "server/discover", nil) // after an error, result is empty
	var versions []string
	_ = json.Unmarshal(result.get("supportedVersions"), &versions)
	w.stateless = slices.Contains(versions, statelessProtocol)
	w.sessions = slices.ContainsFunc(versions, hasSessions)
	if w.stateless {
		w.info = result
		c := newCall(ctx, Caller{})
		defer c.cancel(nil)
		_ = w.startCall(c, "subscriptions/listen", object{{"notifications", json.RawMessage(
			`{"toolsListChanged":true,"promptsListChanged":true,"resourcesListChanged":true}`)}})
	}
	return w.stateless
}

// initialize shakes hands as a client with sessions. It declares as many client capabilities as
// it may, because servers hide tools from clients that lack one. A server that refuses this may know
// only an earlier revision, or none of the newer capabilities.
func (w *Worker) initialize(ctx context.Context) (err error) {
	for _, version := range protocols {
		w.info, err = w.query(ctx, "initialize", object{
			{"protocolVersion", quote(version)},
			{"clientInfo", usherInfo()},
			{"capabilities", w.caps.encode()},
		})
		if err == nil {
			w.send(encodeRequest(nil, "notifications/initialized", nil))
			return nil
		}
		if !isRPC(err) {
			return err
		}
		if version == protocols[0] && w.discover(ctx) { // it was only slow to start, or has changed
			return nil
		}
		w.update(func() { w.caps &= capRoots | capSampling })
	}
	return err
}

// ---- What the process offers

// listTable contains, for each list of what a module offers, the method that reads the list and
// the member that distinguishes its items.
var listTable = map[string]struct{ method, id string }{
	"tools":             {"tools/list", "name"},
	"prompts":           {"prompts/list", "name"},
	"resources":         {"resources/list", "uri"},
	"resourceTemplates": {"resources/templates/list", "uriTemplate"},
}

// readManifest asks the process for everything that it offers. If the process answers the request for
// its prompts or resources with an error, readManifest adds a problem, and the module is hosted
// with its tools.
func (w *Worker) readManifest() (*manifest, error) {
	m := &manifest{
		Lists:     make(map[string][]json.RawMessage),
		About:     w.info.text("instructions"),
		Stateless: w.stateless,
		Sessions:  w.sessions,
	}
	// usher's own runtimes list here the functions that they can't offer.
	extras := w.info.object("capabilities").object("experimental")
	_ = json.Unmarshal(extras.object("usher/problems").get("problems"), &m.Problems)
	for _, key := range sortedKeys(listTable) {
		list, err := w.list(key)
		switch {
		case err == nil:
		case asFault(err).Code == codeNoMethod: // a server may have resources and no templates
		case w.ctx.Err() != nil || key == "tools" && list == nil: // a process that ended has no lists
			return nil, err
		default:
			m.Problems = append(m.Problems, err.Error())
		}
		seen := map[string]bool{"": true}
		for _, item := range list {
			id := members(item).text(listTable[key].id)
			cleaned, problem := cleanDefinition(key, item)
			switch {
			case cleaned == nil:
			case seen[id]:
				problem = " has no own name"
			default:
				seen[id] = true
				m.Lists[key] = append(m.Lists[key], cleaned)
			}
			if problem != "" {
				problem = fmt.Sprint(listTable[key].method, ": ", id, problem)
				m.Problems = append(m.Problems, clipText(problem, maxLoggedLine))
			}
		}
	}
	m.setHash()
	return m, nil
}

// list returns the whole list under a key of listTable, read page by page. The list of a module
// without the capability is empty. The error of a later page, or of pages that repeat, comes with the
// earlier pages.
func (w *Worker) list(key string) (all []json.RawMessage, _ error) {
	ctx, cancel := context.WithTimeoutCause(w.ctx, startTimeout, errTimeout)
	defer cancel()
	method := listTable[key].method
	capability, _, _ := strings.Cut(method, "/")
	if w.info.object("capabilities").get(capability) == nil {
		return nil, nil
	}
	params := object{}
	seen := make(map[string]bool) // cursors, and ids of items
	stale := 0                    // pages in a row that brought nothing new
	for size := 0; size < maxList; {
		result, err := w.query(ctx, method, params)
		if err != nil {
			return all, fmt.Errorf("%s: %w", method, err)
		}
		size += result.size()
		list := result.get(key)
		page := items(list)
		if page == nil && !isNull(list) {
			return all, fmt.Errorf("%s: the answer has no list %q", method, key)
		}
		known := len(seen)
		for _, item := range page {
			seen["="+members(item).text(listTable[key].id)] = true
		}
		stale++
		if len(seen) > known || all == nil {
			stale = 0
			all = append(slices.Grow(all, 1), page...) // Grow: all is not nil then, even without items
		}
		cursor := result.get("nextCursor")
		if isNull(cursor) {
			return all, nil
		}
		if stale == 3 || seen[string(cursor)] {
			return all, fmt.Errorf("%s: pages repeat", method)
		}
		seen[string(cursor)] = true
		params = object{{"cursor", cursor}}
	}
	return all, fmt.Errorf("%s: the list is larger than %s", method, formatSize(maxList))
}

// ---- Callers, and how a module asks them

// Caller is the client, or part of usher, that a call is made for.
type Caller struct {
	Principal *Principal // by which limits are counted; nil for usher itself
	// Member ends when the caller no longer belongs to the principal: the claim has ended, or the
	// session has ended, got another principal or was forgotten. Member is nil for callers that
	// are not clients. All requests of a session have the same Member, and so have all callers of
	// a principal without a session. Callers with the same Member share one process of a hosted
	// server. When Member ends, the process answers its calls and ends.
	Member context.Context
	// Begun is called when a call is about to be handed to a runner. Its error refuses the call. It may be
	// nil.
	Begun func() error
	// Stream returns the notification stream of the caller's session, nil if none is open. The field
	// itself is nil for callers without a session.
	Stream func() *outbox
	Client clientProfile

	// Notify passes a notification on to the caller, which replaces the token of progress by its own.
	// The goroutine that reads the module's output calls it, so it must not wait for a client or a
	// module. nil drops notifications.
	Notify func(method string, params object)
	// Ask asks the caller, if it has the capabilities, and waits for the answer until ctx
	// ends. Its errors are *fault or ctx's cause. Ask is nil for callers that have
	// no client.
	Ask func(ctx context.Context, method string, params object) (object, error)
}

// reachable reports whether the caller may get a message outside of its calls: it still belongs
// to its principal, whose claim can be read.
func (c Caller) reachable() bool {
	return (c.Member == nil || c.Member.Err() == nil) && c.Principal.Unreadable() == nil
}

// ask asks the caller, if it is a client that can be asked.
func (c Caller) ask(ctx context.Context, method string, params object) (object, error) {
	if c.Ask == nil {
		_, err := clientCaps(0).checkAsk(method, params)
		return nil, err
	}
	return c.Ask(ctx, method, params)
}

// clientRequest is a request of the module that waits for a client's answer.
type clientRequest struct {
	*Message
	caller Caller // to ask
	call   *call  // in which the module asks, without its slot meanwhile; nil if only the session is known
	ctx    context.Context
	cancel context.CancelFunc
	done   chan struct{} // closed when the client is no longer asked
}

// Why a request of a module has no answer.
var (
	errNoAnswer  = fmt.Errorf("the client did not answer within %v", askTimeout)
	errNotSure   = errors.New("can't tell which of several calls this is for: call again")
	errNotInCall = errors.New("the call this belongs to has ended")
	errNoScope   = rpcErrorf(codeInternal, "the client has lost its access") // also for the caller
)

// recipient returns the caller that a message of the module is for, and the call that it
// belongs to, or a nil call if only the session is known. The caller holds the lock.
func (w *Worker) recipient(params object) (Caller, *call, error) {
	if id := params.object("_meta").get(metaCall); id != nil {
		c := w.callOf(id)
		if c == nil || !c.ofClient() || !c.cancelled.IsZero() {
			return Caller{}, nil, errNotInCall
		}
		return c.caller, c, nil
	}
	running := 0
	var calls []*call
	for _, c := range w.calls {
		if c.ofClient() {
			running++
			if c.cancelled.IsZero() {
				calls = append(calls, c)
			}
		}
	}
	switch {
	case !w.pool.perSession || w.owner.Stream == nil && (len(calls) != 1 || running != 1):
		return Caller{}, nil, errNotSure
	case len(calls) == 0:
		return w.owner, nil, nil
	case len(calls) == 1:
		return calls[0].caller, calls[0], nil
	}
	return calls[0].caller, nil, nil // of the same session as the others
}

// handleRequest answers a request of the module, or starts to ask a client for the
// answer. It finds the client before usher reads the module's next message, which may end
// the call.
func (w *Worker) handleRequest(msg *Message) {
	if msg.Method == "ping" {
		w.send(encodeResult(msg.ID, object{}))
		return
	}
	var a *clientRequest
	var err error
	w.update(func() { a, err = w.newAsk(msg) })
	if err != nil {
		w.log.Info("a request of the module to a client was refused", "method", msg.Method, "err", err)
		w.send(encodeError(msg.ID, err))
		return
	}
	w.running.Go(func() { w.ask(a) })
}

// newAsk finds the client that a request is for, and adds the request to the open ones. The caller
// holds the lock.
func (w *Worker) newAsk(msg *Message) (*clientRequest, error) {
	caller, c, err := w.recipient(msg.Params)
	if err == nil {
		_, err = w.caps.checkAsk(msg.Method, msg.Params)
	}
	if err != nil {
		return nil, err
	}
	if w.asks[idKey(msg.ID)] != nil {
		return nil, rpcErrorf(codeInvalidRequest, "request id %s is already in use", msg.ID)
	}
	open := 0
	for _, a := range w.asks {
		if a.caller.Principal == caller.Principal {
			open++
		}
	}
	if open >= maxAsks {
		return nil, fmt.Errorf("too many open requests to clients (limit %d)", maxAsks)
	}
	a := &clientRequest{
		Message: &Message{ // a copy: parts of the line would keep all of it in memory until the answer
			ID:     slices.Clone(msg.ID),
			Method: msg.Method,
			Params: members(msg.Params.encode()),
		},
		caller: caller,
		call:   c,
		done:   make(chan struct{}),
	}
	if c != nil {
		c.slot.release()
	}
	a.ctx, a.cancel = context.WithTimeoutCause(w.ctx, askTimeout, errNoAnswer)
	w.asks[idKey(a.ID)] = a
	return a, nil
}

// ask asks the client and answers the module, unless the module has withdrawn its request.
func (w *Worker) ask(a *clientRequest) {
	defer catch(w.log, nil)
	defer close(a.done)
	defer a.cancel()
	result, err := w.askClient(a)
	c := a.call
	// While the client was asked, other calls could use the slot: a person may take minutes.
	if c != nil { // the module runs again, so the call needs its slot again
		_ = waitFor(a.ctx, c.slot.queue())
	}
	line := encodeResult(a.ID, result)
	w.update(func() {
		withdrawn := w.asks[idKey(a.ID)] != a
		if c != nil && (w.calls[c.id] != c || !c.cancelled.IsZero()) {
			err = errNotInCall
		}
		if c != nil && w.calls[c.id] != c { // it no longer runs, and had released its slot already
			c.slot.release()
		}
		if err != nil { // it is short, and the module may wait for it although the call has ended
			c = nil
			line = encodeError(a.ID, err)
		}
		if !withdrawn {
			delete(w.asks, idKey(a.ID))
			w.enqueue(c, line)
		}
	})
}

// askClient asks the client and returns its answer.
func (w *Worker) askClient(a *clientRequest) (result object, err error) {
	defer catch(w.log, &err)
	return a.caller.ask(a.ctx, a.Method, stripCallID(a.Params))
}

// answerInput asks the caller for the input that a result asks for, and returns params
// with the answers (MCP 2026-07-28, basic/patterns/mrtr). The error, which may be shown
// to the caller, says that the caller can't be asked or did not answer.
func answerInput(ctx context.Context, caller Caller, params, result object) (object, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, askTimeout, errNoAnswer)
	defer cancel()
	var answers object
	for _, request := range result.object("inputRequests") {
		asked := members(request.value)
		method := asked.text("method")
		wanted := asked.object("params")
		answer, err := caller.ask(ctx, method, wanted)
		if err != nil {
			return nil, rpcErrorf(codeInternal, "%v", err)
		}
		answers = append(answers, member{request.key, answer.encode()})
	}
	params = params.without("requestState").set("inputResponses", answers.encode())
	if state := result.get("requestState"); state != nil {
		params = params.set("requestState", state)
	}
	return params, nil
}
