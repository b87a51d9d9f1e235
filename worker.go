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
// request is for the only call in flight, unless a call was ever cancelled. Other requests
// are refused.

package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os/exec"
	"regexp"
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
	probeTimeout  = 3 * time.Second  // for the answer to server/discover
	stdinTimeout  = 1 * time.Second  // for the process to end after usher closed its stdin
	askTimeout    = 10 * time.Minute // for a client's answer, often a person's
	cancelTimeout = 10 * time.Second // for a shim to confirm a cancellation; see onSilence
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
	id       string
	caller   Caller
	slot     *slot[*Principal] // released once the call no longer runs; nil for usher's own calls
	token    json.RawMessage   // the caller's own progress token; nil for none
	answer   chan *Message     // 1-buffered, nil if nobody waits; receives nil if the process ends
	progress chan struct{}     // 1-buffered: the module, or the client it asked, did something

	// Part of workerState:
	cancelled time.Time
	timer     *time.Timer // of a cancelled call, until the module confirms or answers it
}

// ofClient reports whether the call is not usher's own.
func (c *call) ofClient() bool { return c.caller.Principal != nil }

// workerConfig is the part of a Worker that does not change.
type workerConfig struct {
	module   string
	log      *slog.Logger
	owner    *Caller    // the first caller of a process for one Member; nil for a shared process
	confirms bool       // the process confirms cancellations, as usher's own shims do
	caps     clientCaps // what usher declares that the process can ask its clients for
	// listChanged is called when the module announces that a list has changed. It runs on
	// the goroutine that reads the module's output.
	listChanged func(w *Worker)
	// partsLoaded is called when a shim reports files that the module has loaded. It runs on
	// the same goroutine.
	partsLoaded func(w *Worker, paths []string)
}

// Worker is one process of a module. Its methods are safe for concurrent use.
type Worker struct {
	workerConfig
	stateless bool                // it speaks statelessProtocol; constant after the handshake
	info      object              // the module's description of itself in the handshake; constant after it
	ctx       context.Context     // ends when the process must end, or has ended
	cancel    context.CancelFunc  // ends ctx
	queued    chan struct{}       // 1-buffered: state.input is not empty
	running   sync.WaitGroup      // the process group, and requests to clients
	done      chan struct{}       // closed when the process has ended and nothing is running
	lastID    atomic.Int64        // of a request to the process
	asking    counter[*Principal] // open requests to clients

	mu    sync.Mutex
	state workerState // only update may use it
}

// workerState is everything about a Worker that changes.
type workerState struct {
	input  []byte             // lines to be written to the process
	unsent map[*Principal]int // bytes of input by the principal they are from; nil is usher
	stderr tail               // and lines of stdout that are not JSON-RPC; during the handshake only
	named  string             // the last line of stderr that names an error; "" for a shim

	calls     map[string]*call          // whose callers wait for the answers, by id
	cancelled map[string]*call          // that still count as running, by id
	unsure    bool                      // a call was cancelled: an ask that names no call may belong to it
	asks      map[string]*clientRequest // open requests to clients, by id

	phase   workerPhase
	reason  string // why usher ends the process, so its end is not a crash; "" if usher doesn't
	failure error  // of the calls, once phase is workerEnded
}

// workerPhase is the phase that a process is in. A process may skip phases, but never returns to
// an earlier one. Worker.ctx ends when workerStopping begins. If the process crashes, closes its
// stdin or stdout, or the registry closes, ctx ends without that phase, before workerEnded.
type workerPhase int

const (
	workerStarting workerPhase = iota // usher shakes hands with it
	workerReady                       // the handshake has succeeded
	workerDraining                    // it takes no more calls, and stops when calls is empty
	workerStopping                    // usher ends it
	workerEnded                       // it has ended
)

// advance begins a phase, unless the process is in a later one.
func (s *workerState) advance(phase workerPhase) { s.phase = max(s.phase, phase) }

// update locks the worker's state, calls change with it, and then restores two
// invariants: a draining process without calls ends, and a process that has ended has no
// calls. Only functions passed to update use the state. They must not block. The caller may
// hold the pool's lock.
func (w *Worker) update(change func(s *workerState)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := &w.state
	change(s)
	if s.phase == workerDraining && len(s.calls) == 0 {
		w.stopLocked(s, "was stopped")
	}
	if s.phase == workerEnded {
		s.answerAll(nil)
		for id := range s.cancelled {
			s.forgetCancelled(id)
		}
	}
}

// answerAll answers all calls in flight; nil says that the process has ended.
func (s *workerState) answerAll(msg *Message) {
	for _, c := range s.calls {
		c.answer <- msg
	}
	clear(s.calls)
}

// forgetCancelled records that the cancelled call with this id, if there is one, no longer
// counts as running.
func (s *workerState) forgetCancelled(id string) {
	if c := s.cancelled[id]; c != nil {
		c.timer.Stop()
		c.slot.release()
		delete(s.cancelled, id)
	}
}

// newWorker returns a worker that has no process yet. When ctx ends, its process is ended.
func newWorker(ctx context.Context, config workerConfig) *Worker {
	w := &Worker{
		workerConfig: config,
		queued:       make(chan struct{}, 1),
		done:         make(chan struct{}),
		asking:       counter[*Principal]{perKey: maxAsks},
		state: workerState{
			unsent:    make(map[*Principal]int),
			calls:     make(map[string]*call),
			cancelled: make(map[string]*call),
			asks:      make(map[string]*clientRequest),
		},
	}
	w.log = w.log.With("module", w.module)
	w.ctx, w.cancel = context.WithCancel(ctx)
	return w
}

// ---- The process

// spawn starts the process, and the goroutines that serve it until it ends. When w.ctx
// ends, the process is ended in the order of the MCP specification for stdio: stdin is
// closed, then TERM, then KILL (basic/lifecycle, "Shutdown").
func (w *Worker) spawn(l launch, g *groups) error {
	cmd := exec.Command(l.Path, l.Args...)
	cmd.Dir = l.Dir
	cmd.Env = l.Env
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	c, err := g.startPiped(cmd)
	if err != nil {
		return err
	}
	var readers sync.WaitGroup
	readers.Go(func() { w.readStdout(c.outputs[0]) })
	readers.Go(func() { eachLine(c.outputs[1], w.remember) })
	w.running.Go(func() { w.writeStdin(stdin) })
	go func() {
		err := c.wait(w.ctx, stdinTimeout) // writeStdin closes stdin
		w.cancel()
		w.running.Go(c.end)
		readers.Wait()
		for _, f := range c.outputs {
			f.Close()
		}
		stdin.Close() // else writeStdin may wait forever for a process that can't be killed
		w.finish(cmp.Or(err, errors.New("exit status 0")).Error())
	}()
	return nil
}

// finish records that the process has ended, for example with "exit status 1". It waits for the
// rest of the process group, and closes done.
func (w *Worker) finish(exit string) {
	w.update(func(s *workerState) {
		reason := fmt.Sprintf("crashed (%s); the next call starts it again", exit)
		output := s.stderr.String()
		switch s.phase {
		case workerStopping:
			reason = s.reason
		case workerStarting:
			reason = fmt.Sprintf("exited at startup (%s)", exit)
			output = cmp.Or(s.named, output)
		}
		s.failure = processFault(w.module, reason, output)
		s.advance(workerEnded)
	})
	w.running.Wait()
	close(w.done)
}

// stop begins to end the process, unless it is ending anyway, and returns at once; done is closed
// when it has ended. The calls in flight fail with the reason.
func (w *Worker) stop(reason string) {
	w.update(func(s *workerState) { w.stopLocked(s, reason) })
}

// stopLocked does the work of stop. The caller holds w.mu.
func (w *Worker) stopLocked(s *workerState, reason string) {
	if w.alive() {
		s.advance(workerStopping)
		s.reason = reason
		w.cancel()
	}
}

// drain refuses new calls, and ends the process once all calls in it are answered or cancelled.
func (w *Worker) drain() { w.update(func(s *workerState) { s.advance(workerDraining) }) }

// stopBlocked ends the process because a cancelled call blocks it.
func (w *Worker) stopBlocked() {
	if w.alive() {
		w.log.Error("a cancelled call blocks the module: ending its process")
		w.stop("was stopped because a cancelled call blocked it: call again")
	}
}

// snapshot returns a copy of the state. The caller must not use the copy's maps.
func (w *Worker) snapshot() (copied workerState) {
	w.update(func(s *workerState) { copied = *s })
	return copied
}

// capability returns the module's declaration of a capability, or nil.
func (w *Worker) capability(name string) json.RawMessage {
	return w.info.object("capabilities").get(name)
}

// alive reports whether the process has not been ended, and has not ended. A draining process is alive.
func (w *Worker) alive() bool { return w.ctx.Err() == nil }

// writeStdin writes the queued input, as much as possible in one system call, until the
// process must end and the queue is empty. (The queue may still contain a cancellation.) If a write
// fails, writeStdin ends the process, and its callers see a crash.
func (w *Worker) writeStdin(stdin io.WriteCloser) {
	defer w.cancel()
	defer catch(w.log, nil)
	defer stdin.Close()
	for {
		select {
		case <-w.queued:
		case <-w.ctx.Done():
		}
		runtime.Gosched() // other calls that are ready now share the system call
		var input []byte
		w.update(func(s *workerState) {
			input = s.input
			s.input = nil
			clear(s.unsent)
		})
		if len(input) == 0 && !w.alive() {
			return
		}
		if _, err := stdin.Write(input); err != nil {
			return // the process ends, which fails the calls
		}
	}
}

// namedError matches a line that names an error, after which some languages print a long stack.
var namedError = regexp.MustCompile(`^([\w.]*(Error|Exception)\b.*|panic): .*[^[{]$`)

// remember logs a line of stderr. During the handshake, it keeps the line instead, because the line
// may explain why the process does not start: then the error contains it; else shakeHands logs it.
func (w *Worker) remember(line string) {
	started := false
	w.update(func(s *workerState) {
		started = s.phase > workerStarting
		if started {
			return
		}
		if !w.confirms && namedError.MatchString(line) {
			s.named = line
		}
		s.stderr.add(line)
	})
	if started {
		w.log.Info("module output", "line", line)
	}
}

// readStdout handles the messages of the process until it closes its stdout. A process
// without a stdout is of no use, even if it continues. Its callers see a crash.
func (w *Worker) readStdout(stdout io.Reader) {
	defer w.cancel()
	defer catch(w.log, nil)
	lines := newLineReader(stdout, maxWorkerLine)
	for {
		line, err := lines.next()
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
		line = line[:bytes.LastIndexByte(line, ',')+1] // an id after the last comma may be cut off
	}
	problem := rpcErrorf(codeInternal, "the module's answer can't be read: %v", why)
	answer := members(line[max(0, bytes.IndexByte(line, '{')):]) // a bracket or word may precede it
	id := answer.get("id")
	switch {
	case !isNull(answer.get("method")): // a request or notification
	case id != nil && len(answer.without("jsonrpc", "result", "error")) < len(answer):
		w.answer(&Message{ID: id, Err: problem})
	case tooLong:
		w.update(func(s *workerState) { s.answerAll(&Message{Err: problem}) })
	}
}

// handle handles one message of the process.
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
		if o := w.owner; o != nil && o.Notify != nil && o.reachable() {
			o.Notify(msg.Method, msg.Params)
		}
	case "notifications/cancelled":
		w.withdrawAsk(msg.Params.get("requestId"))
	case cancelConfirmed:
		w.confirmCancelled(msg.Params.get("requestId"))
	case partsLoaded:
		var paths []string
		if json.Unmarshal(msg.Params.get("paths"), &paths) == nil {
			w.partsLoaded(w, paths)
		}
	default:
		if strings.HasSuffix(msg.Method, "/list_changed") && w.snapshot().phase > workerStarting {
			w.listChanged(w)
		}
	}
}

// ---- Messages to the process

// enqueue queues a message from a principal for the process. It does not wait: a module that does
// not read may be waiting for usher to read. It returns errNotSent if the process is ending, and
// another error if too much of the principal is queued.
func (w *Worker) enqueue(s *workerState, from *Principal, msg []byte) error {
	if !w.alive() {
		return errNotSent
	}
	if n := s.unsent[from]; n > 0 && n+len(msg) > maxInput {
		return fmt.Errorf("module %q does not read its stdin, or reads slowly: try again", w.module)
	}
	s.unsent[from] += len(msg)
	s.input = append(append(s.input, msg...), '\n')
	wake(w.queued)
	return nil
}

// send sends a message from a principal that is not a request. Only notify and reply call it.
func (w *Worker) send(from *Principal, msg []byte) {
	var err error
	w.update(func(s *workerState) { err = w.enqueue(s, from, msg) })
	if err != nil && w.alive() {
		w.log.Warn("a message was dropped", "err", err)
	}
}

// notify sends a notification.
func (w *Worker) notify(method string, params object) {
	w.send(nil, encodeRequest(nil, method, params))
}

// reply answers a request of the module, for the principal that it has asked, with err unless that
// is nil.
func (w *Worker) reply(from *Principal, id json.RawMessage, result object, err error) {
	if err != nil {
		w.send(from, encodeError(id, err))
		return
	}
	w.send(from, encodeResult(id, result))
}

// startCall queues the request of a call. No other function writes a request to the process.
// It returns errNotSent if the process is draining, else the error of enqueue.
func (w *Worker) startCall(c *call, method string, params object) (err error) {
	msg := encodeRequest(json.RawMessage(c.id), method, w.adapt(c, params))
	w.update(func(s *workerState) {
		err = errNotSent
		if s.phase < workerDraining {
			err = w.enqueue(s, c.caller.Principal, msg)
		}
		if err == nil && c.answer != nil {
			s.calls[c.id] = c
		}
	})
	return err
}

// ---- Calls

// newCall returns a call whose caller waits for the answer.
func (w *Worker) newCall(caller Caller) *call {
	return &call{
		id:       strconv.FormatInt(w.lastID.Add(1), 10),
		caller:   caller,
		answer:   make(chan *Message, 1),
		progress: make(chan struct{}, 1),
	}
}

// request sends a request and waits for its result. It converts the params to the
// protocol era of the module, and replaces the caller's progress token. It releases the slot
// once the call no longer runs in the module. If ctx ends, usher cancels the call, and the
// error is ctx's cause. If the module makes no progress for timeout (0:
// unlimited) while it waits for no client's answer, the error is errTimeout. Errors that the
// module answered with are *rpcError.
func (w *Worker) request(ctx context.Context, caller Caller, method string, params object,
	timeout time.Duration, slot *slot[*Principal]) (object, error) {
	c := w.newCall(caller)
	c.slot = slot
	if err := w.startCall(c, method, params); err != nil {
		slot.release()
		return nil, err
	}
	msg, err := w.await(ctx, c, timeout)
	w.endCall(c, err)
	switch {
	case err != nil:
		return nil, err
	case msg == nil:
		return nil, w.snapshot().failure
	case msg.Err != nil:
		return nil, msg.Err
	}
	return msg.Result, nil
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
		client.caps &= w.caps
		if token := meta.get("progressToken"); !isNull(token) {
			c.token = token
		}
		meta = meta.set("progressToken", json.RawMessage(c.id))
	}
	if w.stateless {
		meta = identify(meta, client)
	}
	return params.setMeta(meta)
}

// await waits for the answer to a call.
func (w *Worker) await(ctx context.Context, c *call, timeout time.Duration) (*Message, error) {
	timeout = cmp.Or(timeout, math.MaxInt64)
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	for {
		select {
		case <-c.progress:
			timer.Reset(timeout)
		case msg := <-c.answer:
			return msg, nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-timer.C:
			if !w.waitsForClient(c) {
				return nil, fmt.Errorf("module %q: %w within %v", w.module, errTimeout, timeout)
			}
			timer.Reset(timeout)
		}
	}
}

// waitsForClient reports whether the module may be waiting for a client that it has asked
// in this call.
func (w *Worker) waitsForClient(c *call) (waits bool) {
	w.update(func(s *workerState) {
		waits = len(c.progress) > 0
		for _, a := range s.asks {
			if !a.withdrawn.Load() && (a.call == c || a.call == nil) {
				waits = true
			}
		}
	})
	return waits
}

// endCall ends a call. It first cancels the requests to clients that the module made in
// the call, so that a client sees their end before the call's answer. If cancelled is not
// nil, endCall notifies the module. A client's call then counts as running until the module
// has answered it; see onSilence.
func (w *Worker) endCall(c *call, cancelled error) {
	var asks []*clientRequest
	w.update(func(s *workerState) {
		if s.calls[c.id] == c && cancelled != nil && c.ofClient() {
			// Without its caller: c would keep the caller's request in memory.
			running := &call{id: c.id, slot: c.slot, cancelled: time.Now()}
			running.timer = time.AfterFunc(cancelTimeout, func() { w.onSilence(running) })
			s.cancelled[c.id] = running
			s.unsure = true
		} else {
			c.slot.release()
		}
		delete(s.calls, c.id)
		for _, a := range s.asks {
			if a.call == c {
				asks = append(asks, a)
			}
		}
	})
	for _, a := range asks {
		a.cancel()
		<-a.done
	}
	if cancelled != nil {
		params := object{{"requestId", json.RawMessage(c.id)}, {"reason", quote(cancelled.Error())}}
		w.notify("notifications/cancelled", params)
	}
}

// onSilence handles a cancellation that the module has not confirmed in time. A process of a
// shim is ended, because it would confirm if it could begin another call. Hosted servers
// confirm nothing: their call just doesn't count any longer.
func (w *Worker) onSilence(c *call) {
	if w.confirms {
		w.stopBlocked()
	} else {
		w.update(func(s *workerState) { s.forgetCancelled(c.id) })
	}
}

// confirmCancelled records that a shim has confirmed the cancellation of a call.
func (w *Worker) confirmCancelled(id json.RawMessage) {
	w.update(func(s *workerState) {
		if c := s.cancelled[string(id)]; c != nil && w.confirms {
			c.timer.Stop()
		}
	})
}

// crowded reports whether too many cancelled functions run in a process of a shim, or one of
// them has run for longer than timeout (0: unlimited) since its cancellation. w may be nil: then
// the process has not started.
func (w *Worker) crowded(timeout time.Duration) (crowded bool) {
	if w == nil || !w.confirms {
		return false
	}
	w.update(func(s *workerState) {
		crowded = len(s.cancelled) >= maxCancelled
		for _, c := range s.cancelled {
			crowded = crowded || timeout > 0 && time.Since(c.cancelled) >= timeout
		}
	})
	return crowded
}

// answer passes an answer on to its call, or records that a cancelled call has ended.
func (w *Worker) answer(msg *Message) {
	id := idKey(bytes.Trim(msg.ID, `"`)) // some modules turn the number into text
	w.update(func(s *workerState) {
		if c := s.calls[id]; c != nil {
			delete(s.calls, id)
			c.answer <- msg
		}
		s.forgetCancelled(id)
	})
}

// passProgress passes progress on to its call, with the token that the caller chose.
func (w *Worker) passProgress(params object) {
	var c *call
	w.update(func(s *workerState) { c = s.calls[idKey(bytes.Trim(params.get("progressToken"), `"`))] })
	if c == nil {
		return
	}
	wake(c.progress)
	if c.token != nil && c.caller.Notify != nil {
		c.caller.Notify("notifications/progress", params.set("progressToken", c.token))
	}
}

// passOn passes a notification on to the client it is for. If that is uncertain, only
// usher's log gets it.
func (w *Worker) passOn(method string, params object) {
	var caller Caller
	var c *call
	var err error
	w.update(func(s *workerState) { caller, c, err = w.recipient(s, params) })
	switch {
	case err == nil && caller.Notify != nil && (c != nil || caller.reachable()):
		caller.Notify(method, stripCallID(params))
	case method == "notifications/message":
		data := clipText(string(params.get("data")), maxLoggedLine)
		w.log.Info("module message", "level", params.text("level"), "data", data)
	}
}

// ---- The handshake, in which usher finds out what the module is

// shakeHands shakes hands with a module whose process has been started. stateful says that
// the module is known to have sessions. If the handshake fails, shakeHands ends the
// process. ctx bounds the handshake only.
func (w *Worker) shakeHands(ctx context.Context, stateful bool) error {
	silent := fmt.Errorf("did not answer initialize within %v", startTimeout)
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, silent)
	defer cancel()
	if err := w.handshake(ctx, stateful); err != nil {
		w.stop("can't start: " + err.Error())
		<-w.done
		return w.snapshot().failure
	}
	var lines tail
	w.update(func(s *workerState) {
		s.advance(workerReady)
		lines = s.stderr
		s.stderr = nil
	})
	for _, line := range lines {
		w.log.Info("module output", "line", line)
	}
	return nil
}

// handshake detects the protocol era of the module, unless it is known. If the module
// does not answer server/discover as a stateless module does, usher sends initialize (MCP
// 2026-07-28, basic/transports/stdio, "Backward Compatibility").
func (w *Worker) handshake(ctx context.Context, stateful bool) error {
	if stateful {
		return w.initialize(ctx)
	}
	probe, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	if w.discover(probe) {
		return nil
	}
	err := w.initialize(ctx)
	_, answered := errors.AsType[*rpcError](err)
	if answered && w.discover(ctx) { // it was only slow to start
		return nil
	}
	return err
}

// discover sends server/discover, and reports whether the module is stateless. If so, it asks for
// notifications of changed lists.
func (w *Worker) discover(ctx context.Context) bool {
	w.stateless = true
	result, _ := w.request(ctx, Caller{}, "server/discover", nil, 0, nil) // after an error, result is empty
	var versions []string
	_ = json.Unmarshal(result.get("supportedVersions"), &versions)
	w.stateless = slices.Contains(versions, statelessProtocol)
	if w.stateless {
		w.info = result
		c := w.newCall(Caller{})
		c.answer = nil // usher ignores it if the module ends this stream
		_ = w.startCall(c, "subscriptions/listen", object{{"notifications", json.RawMessage(
			`{"toolsListChanged":true,"promptsListChanged":true,"resourcesListChanged":true}`)}})
	}
	return w.stateless
}

// initialize shakes hands as a client with sessions. It declares as many client capabilities as
// it may, because servers hide tools from clients that lack one.
func (w *Worker) initialize(ctx context.Context) error {
	params := object{
		{"protocolVersion", quote(protocols[0])},
		{"clientInfo", usherInfo()},
		{"capabilities", w.caps.encode()},
	}
	result, err := w.request(ctx, Caller{}, "initialize", params, 0, nil)
	if err != nil {
		return err
	}
	w.info = result
	w.notify("notifications/initialized", nil)
	return nil
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

// readManifest asks a process for everything that it offers. If the process answers the request for
// its prompts or resources with an error, readManifest adds a problem, and the module is hosted
// with its tools.
func readManifest(ctx context.Context, w *Worker) (*manifest, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	m := &manifest{
		Lists:     make(map[string][]json.RawMessage),
		About:     firstSentence(w.info.text("instructions")),
		Stateless: w.stateless,
	}
	// usher's own runtimes list here the functions that they can't offer.
	problems := members(w.capability("experimental")).object("usher/problems").get("problems")
	_ = json.Unmarshal(problems, &m.Problems)
	for _, key := range sortedKeys(listTable) {
		list, err := w.list(ctx, key)
		answered, ok := errors.AsType[*rpcError](err)
		switch {
		case ok && answered.Code == codeNoMethod: // a server may have resources and no templates
		case err != nil && (!ok || key == "tools" && list == nil): // a process that ended has no lists
			return nil, err
		case err != nil:
			m.Problems = append(m.Problems, err.Error())
		}
		seen := make(map[string]bool)
		for _, item := range list {
			id := members(item).text(listTable[key].id)
			cleaned, problem := cleanDefinition(key, item)
			if seen[id] && cleaned != nil {
				problem = "is a duplicate"
			} else if cleaned != nil {
				seen[id] = true
				m.Lists[key] = append(m.Lists[key], cleaned)
			}
			if problem != "" {
				problem = fmt.Sprint(listTable[key].method, ": ", cmp.Or(id, "an item"), " ", problem)
				m.Problems = append(m.Problems, clipText(problem, maxLoggedLine))
			}
		}
	}
	return m, nil
}

// list returns the whole list under a key of listTable, read page by page. The list of a module
// without the capability is empty. The error of a later page, or of pages that repeat, comes with the
// earlier pages.
func (w *Worker) list(ctx context.Context, key string) (all []json.RawMessage, _ error) {
	method := listTable[key].method
	capability, _, _ := strings.Cut(method, "/")
	if w.capability(capability) == nil {
		return nil, nil
	}
	params := object{}
	seen := make(map[string]bool) // cursors, and ids of items
	stale := 0                    // pages in a row that brought nothing new
	for size := 0; size < maxList; {
		result, err := w.request(ctx, Caller{}, method, params, 0, nil)
		if err != nil {
			return all, fmt.Errorf("%s: %w", method, err)
		}
		size += result.size()
		list := result.get(key)
		page := items(list)
		if page == nil && !isNull(list) {
			return all, rpcErrorf(codeInternal, "%s: the answer has no list %q", method, key)
		}
		known := len(seen)
		for _, item := range page {
			seen["item "+members(item).text(listTable[key].id)] = true
		}
		stale++
		if len(seen) > known || all == nil {
			stale = 0
			all = append(append([]json.RawMessage{}, all...), page...)
		}
		cursor := result.get("nextCursor")
		if isNull(cursor) {
			return all, nil
		}
		if stale == 3 || seen[string(cursor)] {
			return all, rpcErrorf(codeInternal, "%s: the pages repeat", method)
		}
		seen[string(cursor)] = true
		params = object{{"cursor", cursor}}
	}
	return all, rpcErrorf(codeInternal, "%s: the list is larger than %s", method, formatSize(maxList))
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
	// Running bounds a call in place of its context, once a runner has received it; nil for callers
	// whose calls end with their context.
	Running context.Context
	// Sessionless says that the caller is an MCP client without a session.
	Sessionless bool
	Client      clientProfile

	// Notify passes a notification on to the caller. The goroutine that reads the
	// module's output calls it, so it must not wait for a client or a module. nil drops
	// notifications.
	Notify func(method string, params object)
	// Ask asks the caller, if it has the capabilities, and waits for the answer until ctx
	// ends. Its errors are *rpcError, errNoRoom, or ctx's cause. Ask is nil for callers that have
	// no client.
	Ask func(ctx context.Context, method string, params object) (object, error)
}

// reachable reports whether the caller may get a message outside of its calls: it still belongs
// to its principal, whose claim can be read.
func (c Caller) reachable() bool {
	return (c.Member == nil || c.Member.Err() == nil) && c.Principal.Unreadable() == nil
}

// hasClaim reports whether the caller has a claim. c may be nil.
func (c *Caller) hasClaim() bool { return c != nil && c.Principal != nil && c.Principal.exists() }

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

	withdrawn atomic.Bool // the module does not want the answer
}

// Why a request of a module has no answer.
var (
	errNoAnswer = rpcErrorf(codeInternal, "the client did not answer within %v", askTimeout)
	errNotSure  = rpcErrorf(codeInternal,
		"can't tell which call this is for, as the process may run several: call again")
	errNoScope   = rpcErrorf(codeInternal, "the client has lost its access")
	errNotInCall = rpcErrorf(codeInternal, "the call this belongs to has ended")
)

// recipient returns the caller that a message of the module is for, and the call that it
// belongs to, or a nil call if only the session is known.
func (w *Worker) recipient(s *workerState, params object) (Caller, *call, error) {
	if id := params.object("_meta").get(metaCall); id != nil {
		c := s.calls[string(id)]
		if c == nil || !c.ofClient() {
			return Caller{}, nil, errNotInCall
		}
		return c.caller, c, nil
	}
	var calls []*call
	for _, c := range s.calls {
		if c.ofClient() {
			calls = append(calls, c)
		}
	}
	switch {
	case w.owner == nil || w.owner.Sessionless && (s.unsure || len(calls) != 1):
		return Caller{}, nil, errNotSure
	case len(calls) == 0:
		return *w.owner, nil, nil
	case len(calls) == 1:
		return calls[0].caller, calls[0], nil
	}
	return calls[0].caller, nil, nil // of the same session as the others, or a delivery, which can't be asked
}

// handleRequest answers a request of the module, or starts to ask a client for the
// answer. It finds the client before usher reads the module's next message, which may end
// the call.
func (w *Worker) handleRequest(msg *Message) {
	if msg.Method == "ping" {
		w.reply(nil, msg.ID, object{}, nil)
		return
	}
	var a *clientRequest
	var err error
	w.update(func(s *workerState) { a, err = w.newAsk(s, msg) })
	if err != nil {
		w.log.Info("a request of the module to a client was refused", "method", msg.Method, "err", err)
		w.reply(nil, msg.ID, nil, err)
		return
	}
	w.running.Go(func() { w.ask(a) })
}

// newAsk finds the client that a request is for, and adds the request to the open ones.
func (w *Worker) newAsk(s *workerState, msg *Message) (*clientRequest, error) {
	caller, c, err := w.recipient(s, msg.Params)
	if err == nil {
		_, err = w.caps.checkAsk(msg.Method, msg.Params)
	}
	if err != nil {
		return nil, err
	}
	if s.asks[idKey(msg.ID)] != nil {
		return nil, rpcErrorf(codeInvalidRequest, "request id %s is already in use", msg.ID)
	}
	if !w.asking.reserve(caller.Principal, 1) {
		return nil, rpcErrorf(codeInternal, "too many open requests to clients (limit %d)", maxAsks)
	}
	a := &clientRequest{Message: msg, caller: caller, call: c, done: make(chan struct{})}
	if c != nil {
		c.slot.free(slotPaused)
	}
	a.ctx, a.cancel = context.WithTimeoutCause(w.ctx, askTimeout, errNoAnswer)
	s.asks[idKey(a.ID)] = a
	return a, nil
}

// ask asks the client and answers the module, unless the module has withdrawn its request.
func (w *Worker) ask(a *clientRequest) {
	defer catch(w.log, nil)
	defer close(a.done)
	defer a.cancel()
	result, err := w.askClient(a)
	if a.call != nil && waitFor(a.ctx, a.call.slot.grant()) != nil {
		err = cmp.Or[error](err, errNotInCall)
	}
	w.asking.release(a.caller.Principal, 1)
	if !a.withdrawn.Load() {
		w.reply(a.caller.Principal, a.ID, result, err) // first: without open requests, the process may end
	}
	w.update(func(s *workerState) {
		delete(s.asks, idKey(a.ID))
		for _, c := range s.calls {
			if a.call == c || a.call == nil {
				wake(c.progress) // the time-out begins again, for the module's own silence
			}
		}
	})
}

// askClient asks the client and returns its answer.
func (w *Worker) askClient(a *clientRequest) (result object, err error) {
	defer catch(w.log, &err)
	result, err = a.caller.ask(a.ctx, a.Method, stripCallID(a.Params))
	if errors.Is(err, context.Canceled) {
		err = errNotInCall
	}
	return result, err
}

// withdrawAsk cancels a request to a client that the module has cancelled.
func (w *Worker) withdrawAsk(id json.RawMessage) {
	w.update(func(s *workerState) {
		if a := s.asks[idKey(id)]; a != nil {
			a.withdrawn.Store(true)
			a.cancel()
		}
	})
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
