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
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Caller is on whose behalf a call is made, and where what the module says
// while it runs is to go.
type Caller struct {
	// Session tells callers apart: a log message, which on stdio does not say
	// which call it belongs to, is passed on only if all calls in flight are
	// of one session. It is never shown to a module.
	Session string
	// Notify takes a notification's method and params. It is called from the
	// goroutine that reads the module's output and must not block; nil drops.
	Notify func(method string, params json.RawMessage)
}

func (c Caller) notify(method string, params json.RawMessage) {
	if c.Notify != nil {
		c.Notify(method, params)
	}
}

// workerProtocol is the newest protocol version that is asked of a worker.
const workerProtocol = "2025-11-25"

const (
	maxWorkerLine  = 64 << 20         // bytes in one message of a worker
	maxLoggedLine  = 4 << 10          // bytes of a stray line that are logged
	startTimeout   = 30 * time.Second // for the handshake
	stdinPatience  = 1 * time.Second  // for the end after stdin closed; clients wait 2 s for ours
	exitPatience   = 2 * time.Second  // for the end after TERM
	outputPatience = 500 * time.Millisecond
	tailLines      = 8 // of stderr, to say why a module did not start
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
	Capabilities json.RawMessage // an object
	Instructions string
	Title        string // serverInfo.title, else serverInfo.name
}

// call is a request to a worker that has not been answered.
type call struct {
	caller Caller
	token  json.RawMessage // the caller's own progress token; nil for none
	answer chan *Message   // 1-buffered
	beat   chan struct{}   // 1-buffered: progress was made
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

	// onListChanged is told that a list of the module has changed: "tools",
	// "prompts" or "resources". Called from the reading goroutine.
	onListChanged func(list string)

	calls  inflight[*call]
	lastID atomic.Int64

	stopping atomic.Bool    // the end is wanted, and no crash
	stopOnce sync.Once      // whoever is first begins the end
	hastener sync.WaitGroup // the goroutine that signals a slow process
	reaping  sync.Mutex     // held to signal and to reap: a reaped id may be another's
	exited   chan struct{}  // closed when the process has ended and was reaped
	done     chan struct{}  // closed when all is over; err is set before
	err      error

	tailMu sync.Mutex
	tail   []string // the last lines of stderr, at most tailLines
}

// startWorker starts a module's process and shakes hands with it. ctx bounds
// the handshake, not the worker's life.
func startWorker(ctx context.Context, module string, l launch, g *Guard, log *slog.Logger, onListChanged func(string)) (*Worker, error) {
	w := &Worker{
		module: module, log: log.With("module", module), guard: g, onListChanged: onListChanged,
		out: make(chan []byte, 64), exited: make(chan struct{}), done: make(chan struct{}),
	}
	if err := w.spawn(l); err != nil {
		if path := (*fs.PathError)(nil); errors.As(err, &path) {
			err = path.Err // without the path: this may reach a client
		}
		return nil, &startError{reason: fmt.Sprintf("module %q can't start: %v", module, err)}
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := w.initialize(ctx); err != nil {
		w.stop()
		<-w.done
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
	crash := (*crashError)(nil)
	switch {
	case errors.As(err, &crash) && crash.state != "":
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
	var theirs []*os.File
	defer func() {
		for _, f := range theirs {
			f.Close()
		}
	}()
	var pipes [3][2]*os.File
	for i := range pipes {
		r, wr, err := os.Pipe()
		if err != nil {
			closePipes(pipes[:i])
			return err
		}
		pipes[i] = [2]*os.File{r, wr}
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = pipes[0][0], pipes[1][1], pipes[2][1]
	if err := cmd.Start(); err != nil {
		closePipes(pipes[:])
		return err
	}
	theirs = []*os.File{pipes[0][0], pipes[1][1], pipes[2][1]}
	w.cmd, w.stdin, w.stdout, w.stderr = cmd, pipes[0][1], pipes[1][0], pipes[2][0]
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

func closePipes(pipes [][2]*os.File) {
	for _, p := range pipes {
		p[0].Close()
		p[1].Close()
	}
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
	close(w.done)
}

// stop begins the end of the process and returns at once; done is closed when
// it is over. The order is that of the MCP specification for stdio: stdin is
// closed, then TERM, then KILL (basic/lifecycle, "Shutdown").
func (w *Worker) stop() {
	w.stopOnce.Do(func() {
		w.stopping.Store(true)
		w.stdin.Close()
		w.hastener.Go(w.hasten)
	})
}

// hasten ends a process that does not end by itself.
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
	var buf []byte
	for {
		select {
		case <-w.exited:
			return
		case msg := <-w.out:
			buf = append(append(buf[:0], msg...), '\n')
		}
		for more := true; more && len(buf) < 64<<10; {
			select {
			case msg := <-w.out:
				buf = append(append(buf, msg...), '\n')
			default:
				more = false
			}
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

// readStdout handles what the process says until it closes its stdout.
func (w *Worker) readStdout() {
	lines := newLineReader(w.stdout, maxWorkerLine)
	for {
		line, err := lines.next()
		if errors.Is(err, errLineTooLong) {
			w.dropLong(line)
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

// dropLong fails the call whose answer was too long to be read; where its id
// can't be told, all calls in flight, rather than have one wait for nothing.
func (w *Worker) dropLong(ends []byte) {
	w.log.Warn("a message over the limit was dropped", "limit", formatSize(maxWorkerLine))
	answer := &Message{Err: rpcErrorf(codeInternal, "the module's answer is larger than %s", formatSize(maxWorkerLine))}
	if c, ok := w.calls.take(string(idOfLong(ends))); ok {
		c.answer <- answer
		return
	}
	for _, id := range w.calls.keys() {
		if c, ok := w.calls.take(id); ok {
			c.answer <- answer
		}
	}
}

// closedStdout ends a process that lives on without its stdout. To its callers
// that is a crash, so stopping is not set.
func (w *Worker) closedStdout() {
	w.stopOnce.Do(func() {
		w.log.Warn("the module closed its stdout; ending it")
		w.stdin.Close()
		w.hastener.Go(w.hasten)
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

// handleRequest answers what a module asks of its client.
func (w *Worker) handleRequest(msg *Message) {
	answer := encodeError(msg.ID, rpcErrorf(codeNoMethod, "this client does not answer %s", msg.Method))
	if msg.Method == "ping" {
		answer = encodeResult(msg.ID, json.RawMessage(`{}`))
	}
	select {
	case w.out <- answer:
	default: // it is not reading; waiting here would be waiting for each other
		w.log.Warn("an answer was dropped: the module does not read its stdin", "method", msg.Method)
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
		w.onListChanged("tools")
	case "notifications/prompts/list_changed":
		w.onListChanged("prompts")
	case "notifications/resources/list_changed":
		w.onListChanged("resources")
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
	select {
	case c.beat <- struct{}{}:
	default:
	}
	if c.token == nil {
		return
	}
	list, _ := members(params)
	c.caller.notify("notifications/progress", joinMembers(setMember(list, "progressToken", c.token)))
}

// passLog gives a log message to the one session that has calls in flight, if
// there is just one; else nobody but the daemon may see it.
func (w *Worker) passLog(params json.RawMessage) {
	calls := slices.DeleteFunc(w.calls.all(), func(c *call) bool { return c.caller.Session == "" }) // usher's own
	for _, c := range calls {
		if c.caller.Session != calls[0].caller.Session {
			calls = nil
			break
		}
	}
	if len(calls) == 0 || calls[0].caller.Notify == nil {
		w.log.Info("message", "level", stringField(params, "level"), "data", clip(field(params, "data")))
		return
	}
	calls[0].caller.notify("notifications/message", params)
}

// request sends a request and waits for its result. The caller's progress token
// in params is replaced by one of ours. When ctx ends, the module is told and
// the request's answer no longer matters; the error is ctx's cause. When the
// module makes no progress for idle (0: never), the error is errTimeout.
// Errors that the module answered with are *rpcError.
func (w *Worker) request(ctx context.Context, caller Caller, method string, params json.RawMessage, idle time.Duration) (json.RawMessage, error) {
	id := strconv.FormatInt(w.lastID.Add(1), 10)
	c := &call{caller: caller, answer: make(chan *Message, 1), beat: make(chan struct{}, 1)}
	if caller.Session != "" { // usher's own requests need none
		params, c.token = setProgressToken(params, id)
	}
	if err := w.calls.add(id, c); err != nil {
		return nil, errNotSent
	}
	defer w.calls.take(id)
	if err := w.send(ctx, encodeRequest(ID(id), method, params)); err != nil {
		return nil, err
	}
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
			return w.result(msg)
		case <-ctx.Done():
			w.cancel(id, context.Cause(ctx))
			return nil, context.Cause(ctx)
		case <-timer.C:
			w.cancel(id, errTimeout)
			return nil, fmt.Errorf("module %q: %w within %v", w.module, errTimeout, idle)
		}
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
	select {
	case w.out <- msg:
	case <-w.done:
	default:
		w.log.Warn("a cancellation was dropped: the module does not read its stdin")
	}
}

// setProgressToken puts token in params._meta in place of the caller's own,
// which it returns. Every request gets one, so that progress counts against the
// time-out whether or not the caller wants to hear of it.
func setProgressToken(params json.RawMessage, token string) (json.RawMessage, json.RawMessage) {
	list, _ := members(params)
	var meta []member
	for _, f := range list {
		if f.key == "_meta" {
			meta, _ = members(f.value)
		}
	}
	var own json.RawMessage
	for _, f := range meta {
		if f.key == "progressToken" && string(f.value) != "null" {
			own = f.value
		}
	}
	meta = setMember(meta, "progressToken", json.RawMessage(token))
	return joinMembers(setMember(list, "_meta", joinMembers(meta))), own
}

// initialize shakes hands as an MCP client. All client capabilities are
// declared: servers hide tools from clients that lack one.
func (w *Worker) initialize(ctx context.Context) error {
	params := marshal(map[string]any{
		"protocolVersion": workerProtocol,
		"clientInfo":      map[string]string{"name": "usher", "version": version()},
		"capabilities": map[string]any{
			"roots": map[string]bool{"listChanged": true}, "sampling": struct{}{},
			"elicitation": map[string]any{"form": struct{}{}, "url": struct{}{}},
		},
	})
	result, err := w.request(ctx, Caller{}, "initialize", params, 0)
	if err != nil {
		return err
	}
	w.info.Capabilities = field(result, "capabilities")
	w.info.Instructions = stringField(result, "instructions")
	server := field(result, "serverInfo")
	if w.info.Title = stringField(server, "title"); w.info.Title == "" {
		w.info.Title = stringField(server, "name")
	}
	return w.send(ctx, encodeNotification("notifications/initialized", nil))
}

// maxPages bounds how far a list is followed in a module that never ends it.
const maxPages = 1000

// list asks for a whole list of the module, page by page: method "tools/list"
// and key "tools", say. A module without the capability has an empty one.
func (w *Worker) list(ctx context.Context, method, key string) ([]json.RawMessage, error) {
	capability, _, _ := strings.Cut(method, "/")
	if field(w.info.Capabilities, capability) == nil {
		return nil, nil
	}
	var all []json.RawMessage
	params := json.RawMessage(`{}`)
	for range maxPages {
		result, err := w.request(ctx, Caller{}, method, params, 0)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", method, err)
		}
		var page []json.RawMessage
		if err := json.Unmarshal(field(result, key), &page); err != nil {
			return nil, fmt.Errorf("%s: the answer has no list %q", method, key)
		}
		all = append(all, page...)
		cursor := field(result, "nextCursor")
		if cursor == nil || string(cursor) == "null" {
			return all, nil
		}
		params = joinMembers([]member{{"cursor", cursor}})
	}
	return nil, fmt.Errorf("%s: no end after %d pages", method, maxPages)
}

// pool is the processes of one module, of which there is at most one now: it is
// started by the first call, stopped when it was not used for long, and started
// again after a crash. It is safe for concurrent use.
type pool struct {
	name  string
	start func(ctx context.Context) (*Worker, error)
	ctx   context.Context // ends when the registry does
	wg    sync.WaitGroup  // starts under way and processes that live

	mu        sync.Mutex
	worker    *Worker   // nil for none
	starting  *starting // nil when no start is under way
	active    int       // calls under way
	living    int       // starts under way and processes not yet gone
	lastUse   time.Time
	retired   bool // no new calls; the process ends with the last one
	closed    bool // no new processes either
	outdated  bool // the process ends with its last call; the next starts another
	pinned    bool // not stopped when idle: it could not be started again
	failures  int  // crashes and failed starts since a call succeeded
	notBefore time.Time
}

// starting is a start that several calls may wait for.
type starting struct {
	done   chan struct{}
	worker *Worker
	err    error
}

// errRetired says that the module was replaced by a newer version of itself
// before the call began: look it up again.
var errRetired = errors.New("the module was reloaded")

func newPool(ctx context.Context, name string, start func(context.Context) (*Worker, error)) *pool {
	return &pool{name: name, start: start, ctx: ctx, lastUse: time.Now()}
}

// call makes one request of the module; see Worker.request. It returns
// errRetired, and has done nothing, when the pool has been retired.
func (p *pool) call(ctx context.Context, caller Caller, method string, params json.RawMessage, idle time.Duration) (json.RawMessage, error) {
	p.mu.Lock()
	if p.retired {
		p.mu.Unlock()
		return nil, errRetired
	}
	p.active++
	p.mu.Unlock()
	defer p.leave()
	for {
		w, err := p.acquire(ctx)
		if err != nil {
			return nil, err
		}
		result, err := w.request(ctx, caller, method, params, idle)
		if errors.Is(err, errNotSent) {
			continue
		}
		if crash := (*crashError)(nil); !errors.As(err, &crash) {
			p.mu.Lock()
			p.failures = 0
			p.mu.Unlock()
		}
		return result, err
	}
}

func (p *pool) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.active--
	p.lastUse = time.Now()
	if (p.retired || p.outdated) && p.active == 0 {
		p.stopLocked()
	}
}

// acquire returns the running process, or starts one and waits for it.
func (p *pool) acquire(ctx context.Context) (*Worker, error) {
	p.mu.Lock()
	if p.worker != nil && p.worker.alive() {
		defer p.mu.Unlock()
		return p.worker, nil
	}
	if p.worker != nil {
		p.worker = nil
		p.failedLocked()
	}
	if p.closed {
		p.mu.Unlock()
		return nil, errRetired
	}
	s := p.starting
	if s == nil {
		if wait := time.Until(p.notBefore); wait > 0 {
			p.mu.Unlock()
			return nil, fmt.Errorf("module %q keeps crashing; it is started again in %v at the earliest", p.name, wait.Round(100*time.Millisecond))
		}
		s = &starting{done: make(chan struct{})}
		p.starting = s
		p.living++
		p.wg.Go(func() { p.run(s) })
	}
	p.mu.Unlock()
	select {
	case <-s.done:
		return s.worker, s.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// run starts a process, and stays until it has ended.
func (p *pool) run(s *starting) {
	s.worker, s.err = p.start(p.ctx)
	p.mu.Lock()
	p.starting = nil
	if s.err != nil {
		p.failedLocked()
	} else {
		p.worker = s.worker
		if p.closed || (p.retired || p.outdated) && p.active == 0 {
			p.stopLocked()
		}
	}
	p.mu.Unlock()
	close(s.done)
	if s.worker != nil {
		<-s.worker.done
	}
	p.mu.Lock()
	p.living--
	p.mu.Unlock()
}

// failedLocked counts a crash or a failed start. The first costs nothing; from
// then on the wait doubles, up to half a minute.
func (p *pool) failedLocked() {
	if p.failures++; p.failures > 1 {
		p.notBefore = time.Now().Add(min(250*time.Millisecond<<min(p.failures, 10), 30*time.Second))
	}
}

func (p *pool) stopLocked() {
	if p.worker != nil {
		p.worker.stop()
		p.worker = nil
	}
	p.outdated = false
}

// retire refuses further calls and ends the process after those under way.
func (p *pool) retire() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.retired = true
	if p.active == 0 {
		p.stopLocked()
	}
}

// renew has the next process take the place of this one, which must not go on
// with the environment that it has.
func (p *pool) renew() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.outdated = p.worker != nil || p.starting != nil; p.active == 0 && p.starting == nil {
		p.stopLocked()
	}
}

// pin keeps the process, if it runs, from being stopped for being idle.
func (p *pool) pin(pinned bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pinned = pinned
}

// reap stops a process that was not used since before.
func (p *pool) reap(before time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.active == 0 && !p.pinned && p.lastUse.Before(before) {
		p.stopLocked()
	}
}

// close ends the process, calls under way or not, and waits until it is gone.
func (p *pool) close() {
	p.mu.Lock()
	p.retired, p.closed = true, true
	p.stopLocked()
	p.mu.Unlock()
	p.wg.Wait()
}

// over reports whether the pool is retired and has no process left.
func (p *pool) over() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.retired && p.active == 0 && p.living == 0
}
