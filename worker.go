// Workers: a module's child process, spoken to as an MCP server over its stdin
// and stdout. Here it is started, called, supervised and stopped. A worker
// knows which caller a call is for, so that what the module says during the
// call goes to that caller alone; it names no scope and no view.

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// Caller is on whose behalf a call is made, and where what the module says
// while it runs is to go.
type Caller struct {
	// Session tells callers apart: what on stdio does not say which call it
	// belongs to is passed on only if all calls in flight are of one session. A
	// request without a session is one of its own, and "" is usher itself. It is
	// never shown to a module.
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
	// outside of calls.
	Authorized func() bool
	// Notify takes a notification's method and params. It is called from the
	// goroutine that reads the module's output and must not block; nil drops.
	Notify func(method string, params json.RawMessage)
	// Ask asks the caller and waits for the answer, until ctx ends. Its errors
	// are *rpcError, or ctx's cause. Nil where nobody can be asked.
	Ask func(ctx context.Context, method string, params json.RawMessage) (json.RawMessage, error)
}

func (c Caller) notify(method string, params json.RawMessage) {
	if c.Notify != nil {
		c.Notify(method, params)
	}
}

func (c Caller) authorized() bool { return c.Authorized == nil || c.Authorized() }

func (c Caller) level() string {
	if c.Level == nil {
		return ""
	}
	return c.Level()
}

const (
	startTimeout   = 30 * time.Second       // for the handshake
	probePatience  = 3 * time.Second        // for the answer to what an older server does not know
	ownerPatience  = 5 * time.Second        // for the first call of a process that asks before
	inputPatience  = 200 * time.Millisecond // for what is queued to be written at the end
	stdinPatience  = 1 * time.Second        // for the end after stdin closed; clients wait 2 s for ours
	exitPatience   = 2 * time.Second        // for the end after TERM
	outputPatience = 500 * time.Millisecond
)

// crashError is a call's failure because the process ended.
type crashError struct {
	module string
	state  string // "exit status 1"; "" when it was stopped on purpose
}

func (e *crashError) Error() string {
	if e.state == "" {
		return fmt.Sprintf("module %q was stopped during the call", e.module)
	}
	return fmt.Sprintf("module %q crashed (%s); the next call starts it again", e.module, e.state)
}

// serverInfo is what a module says of itself in the handshake.
type serverInfo struct {
	Stateless    bool            // it speaks modernProtocol
	Capabilities json.RawMessage // an object
	Instructions string
	Title        string // serverInfo.title, else serverInfo.name
}

// call is a request to a worker that has not been answered.
type call struct {
	number int64 // the later, the higher
	caller Caller
	token  json.RawMessage // the caller's own progress token; nil for none
	answer chan *Message   // 1-buffered
	beat   chan struct{}   // 1-buffered: progress was made

	ctx    context.Context // ends with the call
	asking atomic.Int32    // requests of the module to the caller under way
	lacked atomic.Uint32   // clientCaps that it asked for and the caller has not
}

// watcher is what a process is for, and who is told what it says outside of
// calls. Its functions are called from the reading goroutine.
type watcher struct {
	serves      bool         // calls will come
	second      bool         // the module has another process: see startServing
	private     *atomic.Bool // they are of one session, or come one at a time
	listChanged func(list string)
	updated     func(params json.RawMessage) // of a resource
	asks        func()                       // it asked a client, and did not say in which call
}

// Worker is one process of a module. Its methods are safe for concurrent use.
type Worker struct {
	module string // for logs and errors
	log    *slog.Logger
	guard  *Guard
	cmd    *exec.Cmd
	stdin  *os.File
	stdout *os.File
	stderr *os.File
	out    chan []byte // to the goroutine that writes stdin
	info   serverInfo  // set by the handshake

	watch  watcher
	calls  inflight[*call]
	lastID atomic.Int64
	level  atomic.Int32 // least log messages it was told to send, counted from 1; 0 for not told
	asks   asking

	stopping atomic.Bool    // the end is wanted, and no crash
	stopOnce sync.Once      // whoever is first begins the end
	hastener sync.WaitGroup // the goroutine that signals a slow process
	reaping  sync.Mutex     // held to signal and to reap: a reaped id may be another's
	ending   chan struct{}  // closed when stdin is to be, after what is queued
	exited   chan struct{}  // closed when the process has ended and was reaped
	done     chan struct{}  // closed when all is over; err is set before
	err      error

	tailMu sync.Mutex
	tail   []string // the last lines of stderr, at most tailLines
}

// startWorker starts a module's process and shakes hands with it, first in the
// way of era. ctx bounds the handshake, not the worker's life.
func startWorker(ctx context.Context, module string, l launch, era era, g *Guard, log *slog.Logger, watch watcher) (*Worker, error) {
	w, err := startWorkerOnce(ctx, module, l, era, g, log, watch)
	if errors.Is(err, errProbed) { // it took offence at the probe
		return startWorkerOnce(ctx, module, l, eraSession, g, log, watch)
	}
	return w, err
}

func startWorkerOnce(ctx context.Context, module string, l launch, era era, g *Guard, log *slog.Logger, watch watcher) (*Worker, error) {
	w := &Worker{
		module: module, log: log.With("module", module), guard: g, watch: watch,
		out: make(chan []byte, 64), ending: make(chan struct{}), exited: make(chan struct{}), done: make(chan struct{}),
	}
	w.asks.begin()
	if err := w.spawn(l); err != nil {
		if path, ok := errors.AsType[*fs.PathError](err); ok {
			err = path.Err // without the path: this may reach a client
		}
		return nil, &startError{reason: fmt.Sprintf("module %q can't start: %v", module, err)}
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := w.shakeHands(ctx, era); err != nil {
		w.stop()
		<-w.done
		if errors.Is(err, errProbed) {
			return nil, err
		}
		return nil, w.startError(ctx, err)
	}
	return w, nil
}

// startError is why a module's process could not be started.
type startError struct {
	reason string   // fit for clients
	stderr []string // what the process said last; not for clients, as it may name paths
}

func (e *startError) Error() string { return e.reason }

// startError says why there was no handshake, which is often that the process
// had ended.
func (w *Worker) startError(ctx context.Context, err error) error {
	e := &startError{stderr: w.tail}
	crash, crashed := errors.AsType[*crashError](err)
	switch {
	case crashed && crash.state != "":
		e.reason = fmt.Sprintf("module %q ended at its start (%s)", w.module, crash.state)
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		e.reason = fmt.Sprintf("module %q did not answer initialize within %v", w.module, startTimeout)
	default:
		e.reason = fmt.Sprintf("module %q: initialize: %v", w.module, err)
	}
	return e
}

// spawn starts the process and the goroutines that serve it; supervise ends
// after all others.
func (w *Worker) spawn(l launch) error {
	cmd := exec.Command(l.Path, l.Args...)
	cmd.Dir, cmd.Env = l.Dir, l.Env
	setGroup(cmd)
	var ends []*os.File // where stdin is read and written, stdout, and stderr
	defer func() {
		for _, f := range ends {
			f.Close()
		}
	}()
	for range 3 {
		r, wr, err := os.Pipe()
		if err != nil {
			return err
		}
		ends = append(ends, r, wr)
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = ends[0], ends[3], ends[5]
	if err := cmd.Start(); err != nil {
		return err
	}
	w.cmd, w.stdin, w.stdout, w.stderr = cmd, ends[1], ends[2], ends[4]
	ends = []*os.File{ends[0], ends[3], ends[5]} // which the process has now
	if err := w.guard.add(cmd.Process.Pid); err != nil {
		w.log.Warn("no guard: if usher is killed, this module's processes may live on", "err", err)
	}
	var readers sync.WaitGroup
	readers.Go(w.readStdout)
	readers.Go(w.readStderr)
	var writer sync.WaitGroup
	writer.Go(w.writeStdin)
	go w.supervise(&readers, &writer)
	return nil
}

// supervise waits for the process to end and then clears up: what is left of
// its group, the guard's list, the calls in flight.
func (w *Worker) supervise(readers, writer *sync.WaitGroup) {
	pid := w.cmd.Process.Pid
	if err := awaitExit(pid); err != nil {
		w.log.Warn("awaiting the end of the process", "err", err)
	}
	// The leader is not reaped yet, so the group's id is still its own.
	if err := killGroup(pid); err != nil {
		w.log.Debug("ending what is left of the process group", "err", err)
	}
	w.guard.remove(pid)
	w.reaping.Lock()
	w.cmd.Wait()
	close(w.exited)
	w.reaping.Unlock()
	// What it wrote before its end still counts. A process that left the group
	// may hold the pipes open, so the wait is bounded.
	w.stdout.SetReadDeadline(time.Now().Add(outputPatience))
	w.stderr.SetReadDeadline(time.Now().Add(outputPatience))
	readers.Wait()
	w.stdin.Close()
	w.stdout.Close()
	w.stderr.Close()
	writer.Wait()
	w.stopOnce.Do(func() {}) // from here on there is nothing to stop
	w.hastener.Wait()
	crash := &crashError{module: w.module}
	if !w.stopping.Load() {
		crash.state = w.cmd.ProcessState.String()
	}
	w.err = crash
	for _, c := range w.calls.close(crash) {
		c.answer <- nil
	}
	w.asks.finish()
	close(w.done)
}

// stop begins the end of the process and returns at once; done is closed when
// it is over. The order is that of the MCP specification for stdio: stdin is
// closed, then TERM, then KILL (basic/lifecycle, "Shutdown").
func (w *Worker) stop() {
	w.stopOnce.Do(func() {
		w.stopping.Store(true)
		w.end()
	})
}

// end has stdin closed once what is queued is written, within bounds, and ends a
// process that does not end by itself at that.
func (w *Worker) end() {
	_ = w.stdin.SetWriteDeadline(time.Now().Add(inputPatience)) // a pipe has one
	close(w.ending)
	w.hastener.Go(w.hasten)
}

func (w *Worker) hasten() {
	pid := w.cmd.Process.Pid
	for _, next := range []struct {
		patience time.Duration
		signal   func(int) error
	}{{stdinPatience, terminateGroup}, {exitPatience, killGroup}} {
		select {
		case <-w.exited:
			return
		case <-time.After(next.patience):
		}
		w.reaping.Lock()
		select {
		case <-w.exited:
		default:
			next.signal(pid)
		}
		w.reaping.Unlock()
	}
}

// alive reports whether calls can still be made.
func (w *Worker) alive() bool {
	select {
	case <-w.done:
		return false
	case <-w.exited:
		return false
	default:
		return !w.stopping.Load()
	}
}

// writeStdin writes queued messages, as many as there are in one system call.
func (w *Worker) writeStdin() {
	defer w.stdin.Close()
	var msg, buf []byte
	for {
		select {
		case <-w.exited:
			return
		case msg = <-w.out:
		case <-w.ending: // what was queued before, such as a cancellation, still goes out
			if len(w.out) == 0 {
				return
			}
			msg = <-w.out
		}
		buf = append(append(buf[:0], msg...), '\n')
		for len(w.out) > 0 && len(buf) < 64<<10 { // nobody else receives
			buf = append(append(buf, <-w.out...), '\n')
		}
		if _, err := w.stdin.Write(buf); err != nil {
			return // the process is ending; supervise fails the calls
		}
		if cap(buf) > 1<<20 {
			buf = nil
		}
	}
}

// send queues a message for the process.
func (w *Worker) send(ctx context.Context, msg []byte) error {
	select {
	case w.out <- msg:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-w.done:
		return w.err
	}
}

// sendWithin is send for a message that is to be queued within idle (0: ever): the
// module may have stopped reading.
func (w *Worker) sendWithin(ctx context.Context, idle time.Duration, msg []byte) error {
	if idle > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, idle, w.silent(idle))
		defer cancel()
	}
	return w.send(ctx, msg)
}

// offer queues a message for the process if there is room.
func (w *Worker) offer(msg []byte) bool {
	select {
	case w.out <- msg:
		return true
	default:
		return false
	}
}

// nextID is the id of a request to come.
func (w *Worker) nextID() string { return strconv.FormatInt(w.lastID.Add(1), 10) }

// readStdout handles what the process says until it closes its stdout.
func (w *Worker) readStdout() {
	lines := newLineReader(w.stdout, maxWorkerLine)
	for {
		line, err := lines.next()
		if errors.Is(err, errLineTooLong) {
			w.dropLong()
			continue
		}
		if err != nil {
			break
		}
		msg, err := parseMessage(line)
		if err != nil {
			w.log.Warn("a line on stdout that is no JSON-RPC message", "line", clip(line), "why", err)
			continue
		}
		w.handle(msg)
	}
	// Without its stdout a process is of no use, even if it lives on.
	select {
	case <-w.exited:
	case <-time.After(outputPatience):
		w.closedStdout()
	}
}

// dropLong fails the calls in flight: one of them waits for the answer that was
// too long to be read.
func (w *Worker) dropLong() {
	w.log.Warn("a message over the limit was dropped", "limit", formatSize(maxWorkerLine))
	for _, c := range w.calls.all() {
		c.fail(rpcErrorf(codeInternal, "the module's answer is larger than %s", formatSize(maxWorkerLine)))
	}
}

// fail answers a call with an error, unless it is answered already.
func (c *call) fail(e *rpcError) {
	select {
	case c.answer <- &Message{Err: e}:
	default:
	}
}

// closedStdout ends a process that lives on without its stdout. To its callers
// that is a crash, so stopping is not set.
func (w *Worker) closedStdout() {
	w.stopOnce.Do(func() {
		w.log.Warn("the module closed its stdout; ending it")
		w.end()
	})
}

// readStderr logs what the process writes there, a line a record.
func (w *Worker) readStderr() {
	lines := newLineReader(w.stderr, maxLoggedLine)
	for {
		line, err := lines.next()
		switch {
		case errors.Is(err, errLineTooLong):
			w.log.Info("(a line too long to log)", "stream", "stderr")
		case err != nil:
			if !errors.Is(err, io.EOF) {
				io.Copy(io.Discard, w.stderr) // at its deadline: over
			}
			return
		default:
			w.log.Info(string(line), "stream", "stderr")
			w.keepTail(string(line))
		}
	}
}

func (w *Worker) keepTail(line string) {
	w.tailMu.Lock()
	defer w.tailMu.Unlock()
	if w.tail = append(w.tail, line); len(w.tail) > tailLines {
		w.tail = w.tail[1:]
	}
}

// clip bounds what of a stray line is logged.
func clip(line []byte) string {
	if len(line) > maxLoggedLine {
		return string(line[:maxLoggedLine]) + "…"
	}
	return string(line)
}

// handle takes one message from the process.
func (w *Worker) handle(msg *Message) {
	switch {
	case msg.isRequest():
		w.handleRequest(msg)
	case msg.isNotification():
		w.handleNotification(msg)
	default:
		c, ok := w.calls.take(string(msg.ID))
		if !ok {
			w.log.Debug("an answer to no request in flight was dropped", "id", string(msg.ID))
			return
		}
		c.answer <- msg
	}
}

// handleNotification passes a notification to the caller it is for.
func (w *Worker) handleNotification(msg *Message) {
	switch msg.Method {
	case "notifications/progress":
		w.passProgress(msg.Params)
	case "notifications/message":
		w.passLog(msg.Params)
	case "notifications/tools/list_changed":
		w.watch.listChanged("tools")
	case "notifications/prompts/list_changed":
		w.watch.listChanged("prompts")
	case "notifications/resources/list_changed":
		w.watch.listChanged("resources")
	case "notifications/resources/updated":
		w.watch.updated(msg.Params)
	case "notifications/elicitation/complete":
		w.asks.passElicited(msg.Params)
	case "notifications/cancelled":
		w.asks.cancel(field(msg.Params, "requestId"))
	default:
		w.log.Debug("a notification was dropped", "method", msg.Method)
	}
}

// passProgress gives progress to its call under the token that the caller
// chose. Callers' own tokens repeat, so each call had one of ours.
func (w *Worker) passProgress(params json.RawMessage) {
	c, ok := w.calls.get(string(field(params, "progressToken")))
	if !ok {
		return
	}
	poke(c.beat)
	if c.token != nil {
		c.caller.notify("notifications/progress", withMember(params, "progressToken", c.token))
	}
}

// passLog gives a log message to the call that it says it is of, else to the one
// session that has calls in flight, if there is just one; else nobody but the
// daemon may see it.
func (w *Worker) passLog(params json.RawMessage) {
	if c, said := w.saysCall(params); said {
		if c != nil {
			c.caller.notify("notifications/message", unsaid(params))
		}
		return
	}
	calls := w.callersInFlight()
	several := slices.ContainsFunc(calls, func(c *call) bool { return c.caller.Session != calls[0].caller.Session })
	if len(calls) == 0 || several || calls[0].caller.Notify == nil {
		w.log.Info("message", "level", stringField(params, "level"), "data", clip(field(params, "data")))
		return
	}
	calls[0].caller.notify("notifications/message", params)
}

// callersInFlight is the calls in flight but for usher's own.
func (w *Worker) callersInFlight() []*call {
	return slices.DeleteFunc(w.calls.all(), func(c *call) bool { return c.caller.Session == "" })
}

// request sends a request and waits for its result. The params are put into the
// form of the module's era, and the caller's progress token in them is replaced
// by one of ours. When ctx ends, the module is told and the request's answer no
// longer matters; the error is ctx's cause. When the module makes no progress
// for idle (0: never) and waits for no answer of the caller's, the error is
// errTimeout. Errors that the module answered with are *rpcError.
func (w *Worker) request(ctx context.Context, caller Caller, method string, params json.RawMessage, idle time.Duration) (json.RawMessage, error) {
	number := w.lastID.Add(1)
	id := strconv.FormatInt(number, 10)
	callCtx, end := context.WithCancel(ctx)
	defer end()
	c := &call{number: number, caller: caller, answer: make(chan *Message, 1), beat: make(chan struct{}, 1), ctx: callCtx}
	params = w.adapt(caller, params)
	if caller.Session != "" { // usher's own requests need none
		params, c.token = setProgressToken(params, id)
		w.asks.own(caller)
		w.followLevel(caller)
	}
	if err := w.calls.add(id, c); err != nil {
		return nil, errNotSent
	}
	defer w.calls.take(id)
	if caller.Session != "" {
		w.asks.began()
	}
	if err := w.sendWithin(ctx, idle, encodeRequest(ID(id), method, params)); err != nil {
		return nil, err
	}
	msg, err := w.await(ctx, id, c, idle)
	end()
	c.settle()
	if err != nil {
		return nil, err
	}
	result, err := w.result(msg)
	lacked := clientCaps(c.lacked.Load())
	if caller.Stateless && lacked != 0 && (err != nil || string(field(result, "isError")) == "true") {
		return nil, missingCapability(lacked)
	}
	return result, err
}

// settle waits until what was asked in a call that has ended is over, so that
// its client hears of that before it has the answer.
func (c *call) settle() {
	for c.asking.Load() > 0 {
		<-c.beat
	}
}

// await waits for the answer to a call.
func (w *Worker) await(ctx context.Context, id string, c *call, idle time.Duration) (*Message, error) {
	timer := time.NewTimer(idle)
	defer timer.Stop()
	if idle <= 0 {
		timer.Stop()
	}
	for {
		select {
		case <-c.beat:
			if idle > 0 {
				timer.Reset(idle)
			}
		case msg := <-c.answer:
			return msg, nil
		case <-ctx.Done():
			w.asks.abandon(c.caller)
			w.cancel(id, context.Cause(ctx))
			return nil, context.Cause(ctx)
		case <-timer.C:
			if c.asking.Load() > 0 || len(c.beat) > 0 {
				timer.Reset(idle) // it is not the module that is slow
				continue
			}
			w.asks.abandon(c.caller)
			w.cancel(id, errTimeout)
			return nil, w.silent(idle)
		}
	}
}

// silent is a call's failure because the module was silent for idle.
func (w *Worker) silent(idle time.Duration) error {
	return fmt.Errorf("module %q: %w within %v", w.module, errTimeout, idle)
}

// adapt puts a request's params into the form of the module's era.
func (w *Worker) adapt(caller Caller, params json.RawMessage) json.RawMessage {
	switch {
	case w.info.Stateless && caller.Session == "":
		return modernParams(params, allCaps, "")
	case w.info.Stateless && !caller.Stateless:
		return modernParams(params, caller.Caps, caller.level())
	case !w.info.Stateless && caller.Stateless:
		return legacyParams(params)
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
	id := w.nextID() // whose answer nobody waits for
	if !w.offer(encodeRequest(ID(id), "logging/setLevel", joinMembers([]member{{"level", quote(caller.level())}}))) {
		w.level.Store(now) // it is not reading
	}
}

// errNotSent is a call's failure because the process had ended before; nothing
// has happened, so it can be made again.
var errNotSent = errors.New("the module has ended")

// errTimeout is a call's failure because the module was silent too long.
var errTimeout = errors.New("no answer and no progress")

func (w *Worker) result(msg *Message) (json.RawMessage, error) {
	switch {
	case msg == nil:
		return nil, w.err
	case msg.Err != nil:
		return nil, msg.Err
	default:
		return msg.Result, nil
	}
}

// cancel tells the module that the answer to a request is not wanted any more.
func (w *Worker) cancel(id string, why error) {
	params := append(append([]byte(`{"requestId":`), id...), `,"reason":`...)
	msg := encodeNotification("notifications/cancelled", append(appendString(params, why.Error()), '}'))
	if !w.offer(msg) && w.alive() {
		w.log.Warn("a cancellation was dropped: the module does not read its stdin")
	}
}

// setProgressToken puts token in params._meta in place of the caller's own,
// which it returns. Every request gets one, so that progress counts against the
// time-out whether or not the caller wants to hear of it.
func setProgressToken(params json.RawMessage, token string) (json.RawMessage, json.RawMessage) {
	own := field(field(params, "_meta"), "progressToken")
	if string(own) == "null" {
		own = nil
	}
	return withMeta(params, "progressToken", json.RawMessage(token)), own
}

// poke makes a 1-buffered channel ready.
func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
