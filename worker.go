// Workers: one process of a module, spoken to as an MCP server over its stdin
// and stdout. Here it is started, is called, asks the clients of its calls, and
// ends. A worker knows which caller a call is for, so that what
// the module says during the call reaches that caller alone; it knows no scope
// and no view.

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Caller is on whose behalf a call is made, and where what the module says
// while it runs is to go.
type Caller struct {
	// Session tells callers apart. A request without a session is one of its own,
	// and "" is usher itself. It is never shown to a module.
	Session string
	// Affinity groups the callers that one process of a hosted server serves: it
	// is a session's key; without a session, the claim and the client program.
	Affinity string
	// Principal is whom limits are counted by: a claim, or "" for all callers
	// without one.
	Principal string
	Stateless bool          // the params are of the revision without sessions
	Caps      clientCaps    // what it can be asked for
	Level     func() string // the least log messages that it wants; "" where it does not say

	// Authorized reports whether the caller still has the access that it had when
	// it called; nil is yes. Unauthorized callers get no notifications or requests
	// outside of calls, and calls of theirs that wait are not made.
	Authorized func() bool
	// Notify takes a notification's method and params. It is called from the
	// goroutine that reads the module's output and must not block; nil drops.
	Notify func(method string, params json.RawMessage)
	// Ask asks the caller and waits for the answer, until ctx ends. Its errors
	// are *rpcError, or ctx's cause. Nil where nobody can be asked.
	Ask func(ctx context.Context, method string, params json.RawMessage) (json.RawMessage, error)
}

func (c Caller) authorized() bool { return c.Authorized == nil || c.Authorized() }

// checkAskable reports why a caller can't be asked something, and which capabilities it
// lacks for that.
func (c Caller) checkAskable(method string, params json.RawMessage) (lacked clientCaps, err error) {
	needs, known := needsOf(method, params)
	lacked = needs &^ c.Caps
	switch {
	case !known:
		err = rpcErrorf(codeNoMethod, "no client answers %s", clipText(method, 100))
	case c.Ask == nil:
		err = errNoClient(needs)
	case lacked != 0:
		err = errMissingCaps(lacked)
	}
	return lacked, err
}

func (c Caller) level() string {
	if c.Level == nil {
		return ""
	}
	return c.Level()
}

const (
	startTimeout  = 30 * time.Second       // for the handshake
	probeTimeout  = 3 * time.Second        // for the answer to what an older server does not know
	stdinTimeout  = 1 * time.Second        // for the end after stdin closed; clients wait 2 s for ours
	exitTimeout   = 2 * time.Second        // for the end after TERM
	outputTimeout = 500 * time.Millisecond // for what a process has written to be read after its end
	askTimeout    = 10 * time.Minute       // for a client's answer: often a person's
	cancelledTime = time.Minute            // that a cancelled call is taken to run which its module does not answer
)

// Why a call has no answer of the module's.
var (
	errNotSent = errors.New("the module has ended") // before the call: it can be made again
	errTimeout = errors.New("no answer and no progress")
	errNotMade = rpcErrorf(codeRefused, "its claim has ended or changed, so the call was not made: call again")
)

// processError is why a process could not be started, or that it ended during a
// call.
type processError struct {
	reason string   // fit for clients
	stderr []string // what the process said last; not for clients, as it may name paths
	cause  error    // nil where there is no other
}

func (e *processError) Error() string { return e.reason }
func (e *processError) Unwrap() error { return e.cause }

// serverInfo is what a module says of itself in the handshake.
type serverInfo struct {
	Stateless    bool            // it speaks statelessProtocol
	Capabilities json.RawMessage // an object
	Instructions string
}

// call is a request to a module that has not been answered.
type call struct {
	caller   Caller
	token    json.RawMessage // the caller's own progress token; nil for none
	answer   chan *Message   // 1-buffered; nil when the process ended
	progress chan struct{}   // 1-buffered: the module, or its client, did something
	lacked   clientCaps      // what the module asked for and the caller has not; guarded by the worker's mu
}

// Worker is one process of a module. Its methods are safe for concurrent use.
type Worker struct {
	module string // for logs and errors
	log    *slog.Logger
	info   serverInfo // set by the handshake

	listChanged func(w *Worker)        // the process says that it offers something else; called by who reads its output
	onCallDone  func(principal string) // a client's call of that principal runs no more; set before there are any
	answersAll  bool                   // cancelled calls too, when they have ended: our shims do, MCP does not ask for it

	lastID          atomic.Int64
	level           atomic.Int32       // least log messages it was told to send, counted from 1; 0 for not told
	stopping        atomic.Bool        // its end is wanted, and no crash
	attributionLost atomic.Bool        // it was refused a client, as a cancelled call may be the one it is for
	ctx             context.Context    // ends when the process is to end, or has ended
	cancel          context.CancelFunc //
	queued          chan struct{}      // 1-buffered: there is input to be written
	asking          sync.WaitGroup     // goroutines that ask clients
	state           string             // in which the process ended, as in "exit status 1"
	err             error              // why calls under way failed; both are set before those are told
	done            chan struct{}      // closed when all is over

	mu           sync.Mutex
	input        []byte                    // lines that wait to be written to the process
	calls        map[string]*call          // in flight, by id; nil once the process has ended
	maybeRunning map[string]string         // principals of cancelled calls that may still run, by id
	owner        *Caller                   // the latest caller of a session's process
	asks         map[string]*clientRequest // by the module's own ids
	subs         map[*subscription]bool    // resources that it tells of
	tail         []string                  // the last lines of stderr, at most tailLines
}

// subscription is a resource that one process tells somebody of.
type subscription struct {
	worker *Worker
	uri    string
	notify func(params json.RawMessage)
	stop   func()
}

// alive reports whether the process is there that tells of it.
func (s *subscription) alive() bool { return s.worker.alive() }

// newWorker is a worker without a process yet. owner is for whose call a process
// of one affinity is started; nil for others.
func newWorker(module string, log *slog.Logger, owner *Caller, listChanged func(*Worker)) *Worker {
	w := &Worker{module: module, log: log.With("module", module), owner: owner, listChanged: listChanged, onCallDone: func(string) {},
		queued: make(chan struct{}, 1), done: make(chan struct{}),
		calls: make(map[string]*call), maybeRunning: make(map[string]string), asks: make(map[string]*clientRequest), subs: make(map[*subscription]bool)}
	w.ctx, w.cancel = context.WithCancel(context.Background())
	return w
}

// spawn starts the process, and the goroutines that serve it until its end. That
// comes, when ctx ends, in the order of the MCP specification for stdio: stdin is
// closed, then TERM, then KILL (basic/lifecycle, "Shutdown").
func (w *Worker) spawn(l launch, groups processGroups) error {
	cmd := exec.CommandContext(w.ctx, l.Path, l.Args...)
	cmd.Dir, cmd.Env = l.Dir, l.Env
	setGroup(cmd)
	var term *time.Timer
	cmd.Cancel = func() error { // the goroutine that writes stdin closes it
		term = time.AfterFunc(stdinTimeout, func() { terminateGroup(cmd.Process.Pid) })
		return nil
	}
	cmd.WaitDelay = stdinTimeout + exitTimeout
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	var outputs []*os.File // stdout and stderr, which are read for a while after the process has ended
	for _, end := range []*io.Writer{&cmd.Stdout, &cmd.Stderr} {
		read, write, err := os.Pipe()
		if err != nil {
			return err
		}
		defer write.Close()
		outputs = append(outputs, read)
		*end = write
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	pid := cmd.Process.Pid
	if err := groups.add(pid); err != nil {
		w.log.Warn("no reaper: if usher is killed, this module's processes may live on", "err", err)
	}
	var readers, writer sync.WaitGroup
	w.input = l.Input // before anyone sends
	readers.Go(func() { w.readStdout(outputs[0]) })
	readers.Go(func() { w.readStderr(outputs[1]) })
	writer.Go(func() { w.writeStdin(stdin) })
	go func() {
		_ = cmd.Wait() // its state says more
		if term != nil {
			term.Stop()
		}
		w.cancel()
		_ = killGroup(pid) // what is left of it
		groups.remove(pid)
		for _, f := range outputs { // a process that left the group may hold them open
			f.SetReadDeadline(time.Now().Add(outputTimeout))
		}
		readers.Wait()
		for _, f := range outputs {
			f.Close()
		}
		writer.Wait()
		w.finish(cmd.ProcessState.String())
	}()
	return nil
}

// finish fails the calls in flight of a process that has ended in this state.
func (w *Worker) finish(state string) {
	w.state = state
	w.err = &processError{reason: fmt.Sprintf("module %q crashed (%s); the next call starts it again", w.module, state)}
	if w.stopping.Load() {
		w.err = &processError{reason: fmt.Sprintf("module %q was stopped during the call", w.module)}
	}
	w.mu.Lock()
	calls, maybeRunning := w.calls, w.maybeRunning
	w.calls, w.maybeRunning = nil, nil
	w.mu.Unlock()
	for _, c := range calls {
		c.answer <- nil
	}
	for _, principal := range maybeRunning {
		w.onCallDone(principal)
	}
	w.asking.Wait()
	close(w.done)
}

// stop begins the end of the process and returns at once; done is closed when
// it is over.
func (w *Worker) stop() {
	if w.alive() {
		w.stopping.Store(true)
		w.cancel()
	}
}

// alive reports whether calls can still be made.
func (w *Worker) alive() bool { return w.ctx.Err() == nil }

// writeStdin writes what is queued, as much as there is in one system call, until
// the process is to end and nothing is queued, such as a cancellation.
func (w *Worker) writeStdin(stdin io.WriteCloser) {
	defer stdin.Close()
	for {
		select {
		case <-w.queued:
		case <-w.ctx.Done():
		}
		w.mu.Lock()
		text := w.input
		w.input = nil
		w.mu.Unlock()
		if len(text) == 0 && !w.alive() {
			return
		}
		if _, err := stdin.Write(text); err != nil {
			return // the process is ending, which fails the calls
		}
	}
}

// send queues a message for the process. It does not wait: a module that does
// not read may be waiting for usher to read.
func (w *Worker) send(msg []byte) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.alive() {
		return errNotSent
	}
	if n := len(w.input); n > 0 && n+len(msg) > maxInput {
		return fmt.Errorf("module %q does not read its stdin", w.module)
	}
	w.input = append(append(w.input, msg...), '\n')
	wake(w.queued)
	return nil
}

// readStdout handles what the process says until it closes its stdout.
func (w *Worker) readStdout(stdout io.Reader) {
	defer w.cancel()
	defer catch(w.log, new(error))
	lines := newLineReader(stdout, maxWorkerLine)
	for {
		line, err := lines.next()
		if err != nil && !errors.Is(err, errLineTooLong) {
			break
		}
		var msg *Message
		if err == nil {
			msg, err = parseMessage(line)
		}
		if err != nil {
			w.dropUnreadable(line, err)
			continue
		}
		w.handle(msg)
	}
	// Without its stdout a process is of no use, even if it lives on. To its callers
	// that is a crash.
	select {
	case <-w.ctx.Done():
	case <-time.After(outputTimeout):
		w.log.Warn("the module closed its stdout; ending it")
	}
}

// dropUnreadable fails the call whose id is on a line that is no message. Of a
// line that is too long nothing is known: it fails all calls in flight.
func (w *Worker) dropUnreadable(line []byte, why error) {
	w.log.Warn("a line on stdout that is no JSON-RPC message", "line", clipText(string(line), maxLoggedLine), "why", why)
	w.remember("no MCP, on stdout: " + clipText(string(line), maxLoggedLine))
	ids := []string{strings.Trim(string(field(line, "id")), `"`)}
	problem := rpcErrorf(codeInternal, "the module's answer can't be read: %v", why)
	if line == nil {
		problem = rpcErrorf(codeInternal, "the module's answer is larger than %s", formatSize(maxWorkerLine))
		w.mu.Lock()
		ids = sortedKeys(w.calls)
		w.mu.Unlock()
	} else if field(line, "method") != nil {
		return
	}
	for _, id := range ids {
		w.answer(&Message{ID: json.RawMessage(id), Err: problem})
	}
}

// readStderr logs what the process writes there, a line a record.
func (w *Worker) readStderr(stderr io.Reader) {
	lines := newLineReader(stderr, maxLoggedLine)
	for {
		line, err := lines.next()
		if errors.Is(err, errLineTooLong) {
			line = []byte("(a line too long to log)")
		} else if err != nil {
			return
		}
		w.log.Info(string(line), "stream", "stderr")
		w.remember(string(line))
	}
}

// remember keeps a line for the reason why a process did not start.
func (w *Worker) remember(line string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.tail = append(w.tail[max(0, len(w.tail)+1-tailLines):], line)
}

// handle takes one message from the process.
func (w *Worker) handle(msg *Message) {
	switch {
	case msg.Method == "":
		w.answer(msg)
	case msg.isRequest():
		w.handleRequest(msg)
	case strings.HasSuffix(msg.Method, "/list_changed"):
		w.listChanged(w)
	case msg.Method == "notifications/progress":
		w.passProgress(msg.Params)
	case msg.Method == "notifications/message", msg.Method == "notifications/elicitation/complete":
		w.passOn(msg.Method, msg.Params)
	case msg.Method == "notifications/resources/updated":
		w.updated(msg.Params)
	case msg.Method == "notifications/cancelled":
		w.cancelClientRequest(field(msg.Params, "requestId"))
	default:
		w.log.Debug("a notification was dropped", "method", msg.Method)
	}
}

// answer gives an answer to the call that waits for it, or notes that a cancelled
// one has ended.
func (w *Worker) answer(msg *Message) {
	w.mu.Lock()
	c := w.calls[string(msg.ID)]
	delete(w.calls, string(msg.ID))
	principal, cancelled := w.maybeRunning[string(msg.ID)]
	delete(w.maybeRunning, string(msg.ID))
	w.mu.Unlock()
	if cancelled {
		w.onCallDone(principal)
	}
	if c != nil {
		c.answer <- msg
	}
}

// passProgress gives progress to its call under the token that the caller
// chose. Callers' own tokens repeat, so each call had one of ours.
func (w *Worker) passProgress(params json.RawMessage) {
	w.mu.Lock()
	c := w.calls[string(field(params, "progressToken"))]
	w.mu.Unlock()
	if c == nil {
		return
	}
	wake(c.progress)
	if c.token != nil && c.caller.Notify != nil {
		c.caller.Notify("notifications/progress", withMember(params, "progressToken", c.token))
	}
}

// passOn gives a notification to the caller it can only be for; where that is not
// certain, nobody but the daemon may see it.
func (w *Worker) passOn(method string, params json.RawMessage) {
	w.mu.Lock()
	caller, c, err := w.attribute(params)
	w.mu.Unlock()
	switch {
	case err == nil && caller.Notify != nil && (c != nil || caller.authorized()):
		if method == "notifications/message" || !caller.Stateless { // who has no sessions knows no other
			caller.Notify(method, stripCallID(params))
		}
	case method == "notifications/message":
		w.log.Info("message", "level", stringField(params, "level"), "data", clipText(string(field(params, "data")), maxLoggedLine))
	}
}

// request sends a request and waits for its result. The params are put into the
// form of the module's era, and the caller's progress token in them is replaced
// by one of ours. When ctx ends, the module is told and the request's answer no
// longer matters; the error is ctx's cause. When the module makes no progress
// for timeout (0: ever) and waits for no answer of a client's, the error is
// errTimeout. Errors that the module answered with are *rpcError.
func (w *Worker) request(ctx context.Context, caller Caller, method string, params object, timeout time.Duration) (json.RawMessage, error) {
	id := string(w.nextID())
	c := &call{caller: caller, answer: make(chan *Message, 1), progress: make(chan struct{}, 1)}
	params = w.adapt(caller, params)
	if caller.Session != "" {
		// Every call has a progress token of usher's own, so that progress counts against
		// the time-out whether or not the caller wants to hear of it.
		meta, _ := members(params.get("_meta"))
		if own := meta.get("progressToken"); string(own) != "null" {
			c.token = own
		}
		meta = meta.without(metaCall).set("progressToken", json.RawMessage(id)) // no client has to name a call
		params = params.set("_meta", meta.encode())
		w.followLevel(caller)
	}
	if err := w.begin(id, c, method, params); err != nil {
		return nil, err
	}
	msg, err := w.await(ctx, c, timeout)
	w.end(id, c, err)
	if err != nil {
		return nil, err
	}
	var result json.RawMessage
	switch {
	case msg == nil:
		err = w.err
	case msg.Err != nil:
		err = msg.Err
	default:
		result = msg.Result
	}
	if w.info.Stateless && !caller.Stateless && caller.Session != "" && stringField(result, "resultType") != resultInput {
		result = statefulResult(result)
	}
	if lacked := c.lacked; caller.Stateless && lacked != 0 && (err != nil || string(field(result, "isError")) == "true") {
		return nil, missingCapability(lacked)
	}
	return result, err
}

// begin enters a call among those in flight, and sends its request. It asks last whether the caller is still
// authorized, as the call may have waited. The error is errNotMade if not.
func (w *Worker) begin(id string, c *call, method string, params object) error {
	msg := encodeRequest(json.RawMessage(id), method, params.encode())
	if !c.caller.authorized() {
		w.end(id, c, nil)
		return errNotMade
	}
	w.mu.Lock()
	if w.calls == nil {
		w.mu.Unlock()
		w.end(id, c, nil)
		return errNotSent
	}
	w.calls[id] = c
	switch {
	case c.caller.Session == "" || w.owner == nil:
	case c.caller.Stateless:
		w.owner = nil // from here on the calls themselves say who can be asked
	default:
		w.owner = &c.caller
	}
	w.mu.Unlock()
	err := w.send(msg)
	if err != nil {
		w.end(id, c, nil)
	}
	return err
}

// end takes a call out, with what was asked in it, so that its client hears of
// that before it has the answer. A call is cancelled for a reason, nil for none:
// the module is told, and one that it has not answered is remembered for as long
// as it may run, as what the module asks next may be for that.
func (w *Worker) end(id string, c *call, cancelled error) {
	w.mu.Lock()
	runs := w.calls[id] == c && cancelled != nil && c.caller.Session != ""
	if runs {
		w.maybeRunning[id] = c.caller.Principal
	}
	delete(w.calls, id)
	var asks []*clientRequest
	for _, a := range w.asks {
		if a.call == c {
			asks = append(asks, a)
		}
	}
	w.mu.Unlock()
	for _, a := range asks {
		a.cancel()
		<-a.over
	}
	if runs && !w.answersAll {
		time.AfterFunc(cancelledTime, func() { w.answer(&Message{ID: json.RawMessage(id)}) })
	} else if !runs && c.caller.Session != "" {
		w.onCallDone(c.caller.Principal)
	}
	if cancelled != nil {
		reason := object{{"requestId", json.RawMessage(id)}, {"reason", quote(cancelled.Error())}}
		w.notify(&Message{Method: "notifications/cancelled", Params: reason.encode()})
	}
}

// await waits for the answer to a call.
func (w *Worker) await(ctx context.Context, c *call, timeout time.Duration) (*Message, error) {
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	silent := timer.C
	if timeout <= 0 {
		silent = nil
	}
	for {
		select {
		case <-c.progress:
			timer.Reset(timeout)
		case msg := <-c.answer:
			return msg, nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-silent:
			if !w.waitsForClient(c) {
				return nil, fmt.Errorf("module %q: %w within %v", w.module, errTimeout, timeout)
			}
			timer.Reset(timeout)
		}
	}
}

// waitsForClient reports whether it is not the module that is slow, but a client
// that it has asked in this call, or may have asked in it.
func (w *Worker) waitsForClient(c *call) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, a := range w.asks {
		if a.call == c || a.call == nil {
			return true
		}
	}
	return len(c.progress) > 0
}

// adapt puts a request's params into the form of the module's era.
func (w *Worker) adapt(caller Caller, params object) object {
	switch {
	case w.info.Stateless && caller.Session == "":
		return statelessParams(params, allCaps, "")
	case w.info.Stateless && !caller.Stateless:
		return statelessParams(params, caller.Caps, caller.level())
	case !w.info.Stateless && caller.Stateless:
		return statefulParams(params)
	default:
		return params
	}
}

// followLevel has a module with log levels send what this caller wants to hear,
// if that is more than any before wanted. What others do not want of it is not
// passed on to them.
func (w *Worker) followLevel(caller Caller) {
	wanted := int32(slices.Index(logLevels, caller.level())) + 1
	now := w.level.Load()
	if wanted == 0 || w.info.Stateless || now != 0 && now <= wanted || field(w.info.Capabilities, "logging") == nil {
		return
	}
	w.level.Store(wanted)
	w.notify(&Message{ID: w.nextID(), Method: "logging/setLevel", Params: object{{"level", quote(caller.level())}}.encode()})
}

// notify sends a message that nobody waits for.
func (w *Worker) notify(msg *Message) {
	if err := w.send(msg.encode()); err != nil && w.alive() {
		w.log.Warn("a message to the module was dropped", "method", msg.Method, "why", err)
	}
}

// nextID is the id of a request to the module.
func (w *Worker) nextID() json.RawMessage { return strconv.AppendInt(nil, w.lastID.Add(1), 10) }

// What a module asks of its client in the middle of a call, such as a model's
// answer or the user's input, must reach the one client whose call caused it and
// never another; but on stdio a request does not say which call that is. It is
// certain where the message names its call, as those of our shims do; where the
// process is a session's own; and while exactly one call is in flight.

// clientRequest is a request of the module that waits for a client's answer.
type clientRequest struct {
	caller Caller
	call   *call // that it belongs to; nil where only the session is known
	ctx    context.Context
	cancel context.CancelFunc
	over   chan struct{} // closed when the client is not asked any more
}

// Why a request of a module has no answer of a client's.
var (
	errNoAnswer  = rpcErrorf(codeInternal, "the client did not answer within %v", askTimeout)
	errNoCaller  = rpcErrorf(codeInternal, "no client can be asked here: the module serves no call of one")
	errNotSure   = rpcErrorf(codeInternal, "usher can't tell which client this is for, as this process serves several calls: call again")
	errNoScope   = rpcErrorf(codeInternal, "the client may not reach the module any more")
	errNotInCall = rpcErrorf(codeInternal, "the call that this is for is not under way")
	errManyAsks  = rpcErrorf(codeInternal, "too many requests to clients wait for an answer (%d)", maxAsks)
)

// attribute finds whom a message of the module is for: the caller, and the call
// unless only the session is known. Called with mu held.
func (w *Worker) attribute(params json.RawMessage) (Caller, *call, error) {
	if id := field(field(params, "_meta"), metaCall); id != nil {
		if c := w.calls[string(id)]; c != nil && c.caller.Session != "" {
			return c.caller, c, nil
		}
		return Caller{}, nil, errNotInCall
	}
	calls := slices.DeleteFunc(slices.Collect(maps.Values(w.calls)), func(c *call) bool { return c.caller.Session == "" })
	switch {
	case len(calls) == 1 && len(w.maybeRunning) == 0:
		return calls[0].caller, calls[0], nil
	case w.owner != nil && (len(calls) == 0 || !w.owner.Stateless):
		return *w.owner, nil, nil
	case len(calls) == 0 && len(w.maybeRunning) == 0:
		return Caller{}, nil, errNoCaller
	default:
		w.attributionLost.Store(len(w.maybeRunning) > 0)
		return Caller{}, nil, errNotSure
	}
}

// updated tells those who want to know that a resource has changed: the one
// that they named, or one below it (MCP, server/resources, "Subscriptions").
func (w *Worker) updated(params json.RawMessage) {
	uri := stringField(params, "uri")
	w.mu.Lock()
	subs := slices.Collect(maps.Keys(w.subs))
	w.mu.Unlock()
	for _, s := range subs {
		rest, below := strings.CutPrefix(uri, s.uri)
		if below && (rest == "" || rest[0] == '/' || strings.HasSuffix(s.uri, "/")) {
			s.notify(params)
		}
	}
}

// stripCallID is params without the name of the call, which is no client's
// business.
func stripCallID(params json.RawMessage) json.RawMessage {
	meta := field(params, "_meta")
	if field(meta, metaCall) == nil {
		return params
	}
	if meta = dropMembers(meta, metaCall); string(meta) == "{}" {
		return dropMembers(params, "_meta")
	}
	return withMember(params, "_meta", meta)
}

// handleRequest answers what a module asks. Whom it is for is found before the
// next message of the module is read, which may end the call.
func (w *Worker) handleRequest(msg *Message) {
	if msg.Method == "ping" {
		w.notify(&Message{ID: msg.ID, Result: json.RawMessage(`{}`)})
		return
	}
	a, err := w.beginAsk(msg)
	if err != nil {
		w.log.Info("a request of the module to a client was refused", "method", msg.Method, "why", err)
		w.notify(&Message{ID: msg.ID, Err: asRPCError(err)})
		return
	}
	w.asking.Go(func() { w.ask(a, msg) })
}

// beginAsk finds whom to ask, and enters the request among those that wait.
func (w *Worker) beginAsk(msg *Message) (*clientRequest, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	caller, c, err := w.attribute(msg.Params)
	if err != nil {
		return nil, err
	}
	lacked, err := caller.checkAskable(msg.Method, msg.Params)
	if c != nil {
		c.lacked |= lacked
	}
	if err != nil {
		return nil, err
	}
	waiting := 0
	for _, a := range w.asks {
		if a.caller.Principal == caller.Principal {
			waiting++
		}
	}
	if waiting >= maxAsks {
		return nil, errManyAsks
	}
	a := &clientRequest{caller: caller, call: c, over: make(chan struct{})}
	a.ctx, a.cancel = context.WithTimeoutCause(w.ctx, askTimeout, errNoAnswer)
	w.asks[string(msg.ID)] = a
	return a, nil
}

// ask asks the client and answers the module, unless that has taken its request
// back: its id may be another's by now.
func (w *Worker) ask(a *clientRequest, msg *Message) {
	defer close(a.over)
	defer a.cancel()
	defer catch(w.log, new(error))
	result, err := json.RawMessage(nil), error(errNoScope)
	if a.call != nil || a.caller.authorized() {
		result, err = a.caller.Ask(a.ctx, msg.Method, stripCallID(msg.Params))
	}
	if errors.Is(err, context.Canceled) {
		err = errNotInCall
	}
	w.mu.Lock()
	wanted := w.asks[string(msg.ID)] == a
	if wanted {
		delete(w.asks, string(msg.ID))
	}
	for _, c := range w.calls {
		if a.call == c || a.call == nil {
			wake(c.progress) // from here on the module's silence counts
		}
	}
	w.mu.Unlock()
	switch {
	case !wanted:
	case err != nil:
		w.notify(&Message{ID: msg.ID, Err: asRPCError(err)})
	default:
		w.notify(&Message{ID: msg.ID, Result: result})
	}
}

// cancelClientRequest ends a request at the module's wish.
func (w *Worker) cancelClientRequest(id json.RawMessage) {
	w.mu.Lock()
	a := w.asks[string(id)]
	delete(w.asks, string(id))
	w.mu.Unlock()
	if a != nil {
		a.cancel()
	}
}

// The handshake with a module: which revisions it speaks, what it is, what it
// offers and what it tells of. Here a worker is spoken to by usher itself and for
// no client.

// shakeHands shakes hands with a module whose process has been started. stateful says
// that the module is known to have sessions. When it fails, the process has ended.
// ctx bounds the handshake, not the worker's life.
func (w *Worker) shakeHands(ctx context.Context, stateful bool) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("did not answer initialize within %v", startTimeout))
	defer cancel()
	err := w.handshake(ctx, stateful)
	if err == nil {
		return nil
	}
	w.stop()
	<-w.done
	failed := &processError{reason: fmt.Sprintf("module %q can't start: %v", w.module, err), stderr: w.tail}
	if !w.stopping.Load() {
		failed.reason = fmt.Sprintf("module %q ended at its start (%s)", w.module, w.state)
	}
	return failed
}

// handshake finds out what the module is. Which era it speaks is asked first,
// unless that is known; what is no answer of the stateless one is taken for the
// other (MCP 2026-07-28, basic/transports/stdio, "Backward Compatibility").
func (w *Worker) handshake(ctx context.Context, stateful bool) error {
	if stateful {
		return w.initialize(ctx)
	}
	probe, cancel := context.WithTimeout(ctx, probeTimeout)
	stateless, err := w.discover(probe)
	cancel()
	if stateless || ctx.Err() != nil {
		return err
	}
	err = w.initialize(ctx)
	if errors.As(err, new(*rpcError)) { // it was only slow to start, perhaps
		if stateless, again := w.discover(ctx); stateless {
			return again
		}
	}
	return err
}

// discover asks a stateless module what it is, and whether it is one: only then
// does the error count.
func (w *Worker) discover(ctx context.Context) (stateless bool, err error) {
	result, err := w.request(ctx, Caller{}, "server/discover", statelessParams(nil, allCaps, ""), 0)
	var versions []string
	if err != nil || json.Unmarshal(field(result, "supportedVersions"), &versions) != nil || !slices.Contains(versions, statelessProtocol) {
		return false, err
	}
	w.info = serverInfo{Stateless: true, Capabilities: field(result, "capabilities"), Instructions: stringField(result, "instructions")}
	all := json.RawMessage("true")
	_, err = w.listen(object{{"toolsListChanged", all}, {"promptsListChanged", all}, {"resourcesListChanged", all}})
	return true, err
}

// initialize shakes hands as an MCP client. All client capabilities are
// declared: servers hide tools from clients that lack one.
func (w *Worker) initialize(ctx context.Context) error {
	params := object{{"protocolVersion", quote(protocols[0])}, {"clientInfo", usherInfo()}, {"capabilities", clientCaps(allCaps).encode()}}
	result, err := w.request(ctx, Caller{}, "initialize", params, 0)
	if err != nil {
		return err
	}
	w.info = serverInfo{Capabilities: field(result, "capabilities"), Instructions: stringField(result, "instructions")}
	return w.send(encodeRequest(nil, "notifications/initialized", nil))
}

// listen opens a stream of a stateless module, which is one more call in flight
// until it is stopped. Its end matters to nobody.
func (w *Worker) listen(filter object) (stop func(), err error) {
	id, c := string(w.nextID()), &call{answer: make(chan *Message, 1), progress: make(chan struct{}, 1)}
	stop = func() { w.end(id, c, errors.New("nobody listens any more")) }
	params := object{{"notifications", filter.encode()}}
	return stop, w.begin(id, c, "subscriptions/listen", statelessParams(params, allCaps, ""))
}

// subscribe has the module say when a resource changes, to notify, until the
// subscription is released or the process ends.
func (w *Worker) subscribe(ctx context.Context, uri string, notify func(params json.RawMessage)) (*subscription, error) {
	if string(field(field(w.info.Capabilities, "resources"), "subscribe")) != "true" {
		return nil, rpcErrorf(codeNoMethod, "module %q does not say when its resources change", w.module)
	}
	params := object{{"uri", quote(uri)}}
	s := &subscription{worker: w, uri: uri, notify: notify, stop: func() {
		w.notify(&Message{ID: w.nextID(), Method: "resources/unsubscribe", Params: params.encode()})
	}}
	w.mu.Lock()
	w.subs[s] = true
	w.mu.Unlock()
	var err error
	if w.info.Stateless {
		s.stop, err = w.listen(object{{"resourceSubscriptions", joinItems([]json.RawMessage{quote(uri)})}})
	} else {
		_, err = w.request(ctx, Caller{}, "resources/subscribe", params, startTimeout)
	}
	if err != nil {
		s.release() // it may have come about all the same
		return nil, err
	}
	return s, nil
}

// release ends what the process tells, unless another wants to hear of it and the
// module does not tell the two apart.
func (s *subscription) release() {
	w := s.worker
	w.mu.Lock()
	delete(w.subs, s)
	wanted := false
	for other := range w.subs {
		wanted = wanted || other.uri == s.uri
	}
	w.mu.Unlock()
	if !wanted || w.info.Stateless {
		s.stop()
	}
}

// listened reports whether the process tells anybody of a resource.
func (w *Worker) listened() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.subs) > 0
}

// list asks for a whole list of the module, page by page: method "tools/list"
// and key "tools", say. A module without the capability, or the list, has an
// empty one.
func (w *Worker) list(ctx context.Context, method, key string) ([]json.RawMessage, error) {
	capability, _, _ := strings.Cut(method, "/")
	if field(w.info.Capabilities, capability) == nil {
		return nil, nil
	}
	var all []json.RawMessage
	params := object{}
	for range maxPages {
		result, err := w.request(ctx, Caller{}, method, params, 0)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", method, err)
		}
		var page []json.RawMessage
		if items := field(result, key); items != nil && json.Unmarshal(items, &page) != nil {
			return nil, fmt.Errorf("%s: the answer has no list %q", method, key)
		}
		all = append(all, page...)
		cursor := field(result, "nextCursor")
		if cursor == nil || string(cursor) == "null" {
			return all, nil
		}
		params = object{{"cursor", cursor}}
	}
	return nil, fmt.Errorf("%s: no end after %d pages", method, maxPages)
}
