// Processes that usher starts, and their end. A child is one such process with its tree.
// The reaper is usher again, in a process that outlives a killed daemon just long enough
// to end the trees that the daemon left. Through a pipe, the daemon sends the reaper a
// line "+ PID START" for each tree that begins, and "- PID START" for each that has
// ended.

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
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	exitTimeout   = 2 * time.Second        // how long processes may take to end after TERM
	killTimeout   = 5 * time.Second        // how long processes may take to end after KILL
	outputTimeout = 500 * time.Millisecond // how long reading may take after the process has ended
	sweepInterval = time.Second            // between checks whether background processes have ended
)

// child is a process that usher has started, with its tree.
type child struct {
	tree
	reaper  *reaper
	outputs []*os.File    // stdout and stderr of startPiped, which the reader must close
	exited  chan struct{} // closed when the process has ended
	err     error         // of cmd.Wait; constant once exited is closed
	ending  sync.Once
}

// wait waits until the process ends, and returns the error of cmd.Wait. When ctx ends, the
// process has grace to end by itself; then wait ends the tree. If the process can't be
// killed, for example because it runs as another user, the error is ctx's.
func (c *child) wait(ctx context.Context, grace time.Duration) error {
	select {
	case <-c.exited:
	case <-ctx.Done():
		select {
		case <-c.exited:
		case <-time.After(grace):
		}
	}
	if ctx.Err() != nil {
		c.end()
	}
	select {
	case <-c.exited:
		return c.err
	case <-time.After(outputTimeout): // cmd.Wait may need a moment to read the output
		return ctx.Err()
	}
}

// end ends what is left of the tree, and waits for its end: see endTrees.
func (c *child) end() {
	c.ending.Do(func() {
		if left := endTrees(map[tree]bool{c.tree: true}); len(left) > 0 {
			c.reaper.log.Error("a process can't be killed", "session", c.pid)
		}
		c.reaper.mu.Lock()
		defer c.reaper.mu.Unlock()
		c.reaper.forget(c.tree)
	})
}

// lives reports whether the tree has a process.
func (c *child) lives() bool { return len(signalTrees(map[tree]bool{c.tree: true}, 0)) > 0 }

// endTrees sends TERM to all processes of the trees, and later KILL. It returns the trees
// that still have a process then.
func endTrees(trees map[tree]bool) (left map[tree]bool) {
	left = signalTrees(trees, syscall.SIGTERM)
	var sig syscall.Signal // 0 sends nothing; KILL is sent several times, as processes may start others
	start := time.Now()
	pause := time.Millisecond
	for len(left) > 0 && time.Since(start) < exitTimeout+killTimeout {
		time.Sleep(pause)
		pause = min(2*pause, 100*time.Millisecond)
		if time.Since(start) > exitTimeout {
			sig = syscall.SIGKILL
		}
		left = signalTrees(left, sig)
	}
	return left
}

// reaperCommand is the first argument of the reaper process. Users don't give it.
const reaperCommand = "__reaper"

// reaper starts processes, and tells the reaper process which trees it must end if this
// process is killed. Safe for concurrent use.
type reaper struct {
	log     *slog.Logger
	running sync.WaitGroup // goroutines that wait for the reaper process

	mu     sync.Mutex     // guards the fields below
	trees  map[tree]bool  // trees that may have a process
	pipe   io.WriteCloser // to the reaper process; nil if there is none
	closed bool
}

// newReaper returns a reaper. Its first child starts the reaper process.
func newReaper(log *slog.Logger) *reaper {
	return &reaper{log: log, trees: make(map[tree]bool)}
}

// start starts a process, and the reaper process before it. After Close it starts none.
func (r *reaper) start(cmd *exec.Cmd) (*child, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, errors.New("usher is stopping")
	}
	if r.pipe == nil && reapTrees {
		r.launch()
	}
	t, err := startTree(cmd)
	if err != nil {
		return nil, err
	}
	c := &child{tree: t, reaper: r, exited: make(chan struct{})}
	r.trees[t] = true
	r.tell("+", t)
	go func() { // ends with the process
		c.err = cmd.Wait()
		if c.err == exec.ErrWaitDelay { // it succeeded; others keep its pipes open
			c.err = nil
		}
		close(c.exited)
	}()
	return c, nil
}

// startPiped starts a process with pipes for its stdout and stderr.
func (r *reaper) startPiped(cmd *exec.Cmd) (*child, error) {
	var outputs []*os.File
	for _, end := range []*io.Writer{&cmd.Stdout, &cmd.Stderr} {
		read, write, err := os.Pipe()
		if err != nil {
			return nil, err // the garbage collector closes outputs
		}
		defer write.Close()
		outputs = append(outputs, read)
		*end = write
	}
	c, err := r.start(cmd)
	if err == nil {
		c.outputs = outputs
	}
	return c, err
}

// stopReading lets the readers of the outputs end soon, even if processes that continue
// keep the pipes open.
func (c *child) stopReading() {
	for _, f := range c.outputs {
		f.SetReadDeadline(time.Now().Add(outputTimeout))
	}
}

// tell sends the reaper process a line about a tree. The caller holds r.mu.
func (r *reaper) tell(sign string, t tree) {
	if r.pipe != nil {
		// An error means that the reaper process has ended: launch starts another, and sends
		// it all trees.
		fmt.Fprintln(r.pipe, sign, t.pid, t.start)
	}
}

// forget removes a tree from r.trees, because its id may be used again. The caller holds
// r.mu.
func (r *reaper) forget(t tree) {
	if r.trees[t] {
		delete(r.trees, t)
		r.tell("-", t)
		closeTree(t)
	}
}

// Close ends the reaper process, which ends all trees that are left, and waits for it.
func (r *reaper) Close() {
	r.mu.Lock()
	r.closed = true
	if r.pipe != nil {
		r.pipe.Close()
	}
	r.mu.Unlock()
	r.running.Wait()
}

// launch starts the reaper process and sends it all trees. The caller holds r.mu.
func (r *reaper) launch() {
	// usher's file may have been replaced or removed since usher started (by an update, by
	// go run). On Linux, this name always leads to the running program.
	exe := "/proc/self/exe"
	var err error
	if _, missing := os.Stat(exe); missing != nil {
		exe, err = os.Executable()
	}
	cmd := exec.Command(exe, reaperCommand)
	cmd.Stderr = os.Stderr
	cmd.Env = environWithoutSecrets()
	pipe, _ := cmd.StdinPipe()
	if err == nil {
		_, err = startTree(cmd) // in its own session, which a Ctrl-C in the terminal does not reach
	}
	if err != nil {
		r.log.Warn("no reaper: if usher is killed, modules' processes may continue", "err", err)
		return
	}
	r.pipe = pipe
	for t := range r.trees {
		r.tell("+", t)
	}
	started := time.Now()
	r.running.Go(func() {
		_ = cmd.Wait()
		r.mu.Lock()
		defer r.mu.Unlock()
		r.pipe = nil
		if r.closed {
			return
		}
		r.log.Warn("the reaper was killed")
		if time.Since(started) > time.Second { // otherwise the next child starts the reaper process again
			r.launch()
		}
	})
}

// runReaper runs the reaper process until stdin ends.
func runReaper(stdin io.Reader) {
	trees := make(map[tree]bool)
	lines := bufio.NewScanner(stdin)
	for lines.Scan() {
		var sign string
		var t tree
		fmt.Sscan(lines.Text(), &sign, &t.pid, &t.start)
		if sign == "+" {
			trees[t] = true
		} else {
			delete(trees, t)
		}
	}
	endTrees(trees)
}

// ---- The shell

// shellRunner runs the functions of a shell module: each call in a process of its own.
type shellRunner struct {
	discovered
	log    *slog.Logger
	reaper *reaper
	kept   context.Context                      // background processes go on until it ends
	check  func(discovered) (discovered, error) // see Registry.checkApproved
}

// request calls the function that params name: see Worker.request. If ctx ends, request ends
// the function and does not wait for its end; the call keeps its slot until then.
func (s *shellRunner) request(ctx context.Context, caller Caller, _ string, params object,
	timeout time.Duration, slot *slot[*Principal]) (json.RawMessage, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silent := fmt.Errorf("module %q: %w within %v", s.Name, errTimeout, timeout)
	timeout = cmp.Or(timeout, math.MaxInt64)
	timer := time.AfterFunc(timeout, func() { cancel(silent) })
	defer timer.Stop()
	token := field(params.get("_meta"), "progressToken")
	progress := func(m [][]byte) {
		timer.Reset(timeout)
		if !isNull(token) && caller.Notify != nil && ctx.Err() == nil {
			caller.Notify("notifications/progress", object{
				{"progressToken", token},
				{"progress", m[1]},
				{"message", quote(string(m[3]))},
				{"total", m[2]},
			}.encode())
		}
	}
	var result json.RawMessage
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer slot.release()
		defer catch(s.log, &err)
		result = s.call(ctx, params.text("name"), params.get("arguments"), progress)
	}()
	if ended := waitFor(ctx, done); ended != nil {
		return nil, ended
	}
	return result, err
}

// call runs one function until it ends, and returns the result of the call.
func (s *shellRunner) call(ctx context.Context, name string, arguments json.RawMessage,
	progress func(match [][]byte)) json.RawMessage {
	var args []string
	var output []byte
	var lastLines string
	script, err := readScript(s.Source)
	if err == nil {
		args, err = script.commandLine(name, arguments)
	}
	if err == nil {
		output, lastLines, err = s.run(ctx, script, arguments, progress, args)
	}
	return shellResult(name, output, lastLines, err)
}

// introspect returns what the module offers. The shell checks the script's syntax before it
// runs the script.
func (s *shellRunner) introspect(ctx context.Context) (*manifest, error) {
	slow := fmt.Errorf("it took over %v", startTimeout)
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, slow)
	defer cancel()
	var functions []byte
	var lastLines string
	script, err := readScript(s.Source)
	if err == nil {
		_, lastLines, err = s.run(ctx, script, nil, nil, []string{"-n", s.Source})
	}
	if err == nil && len(script.names) > 0 {
		functions, lastLines, err = s.run(ctx, script, nil, nil, script.listFunctions())
	}
	if err == nil {
		return script.manifest(strings.Fields(string(functions))), nil
	}
	cause := fmt.Errorf("%s: %w", filepath.Base(s.Source), err)
	if lastLines != "" {
		cause = errors.New(lastLines)
	}
	return nil, &processError{s.Name, "can't be read", cause}
}

// run runs the shell until it ends, unless the script has lost its approval. It returns at
// most one byte of output more than the limit, and the last lines of stderr. When ctx ends,
// run ends the shell and everything that it started; otherwise, background processes go on.
func (s *shellRunner) run(ctx context.Context, script *shellScript, input []byte,
	progress func(match [][]byte), args []string) (output []byte, lastLines string, err error) {
	if _, err := s.check(s.discovered); err != nil {
		return nil, "", err
	}
	cmd := exec.Command(script.shell, slices.Concat(script.options, args)...)
	cmd.Dir = filepath.Dir(s.Source)
	cmd.Env = append(workerEnv(s.Source, nil), "PWD="+cmd.Dir)
	cmd.WaitDelay = outputTimeout // if a background process keeps stdin open
	cmd.Stdin = bytes.NewReader(input)
	c, err := s.reaper.startPiped(cmd)
	if err != nil {
		return nil, "", fmt.Errorf("starting %s: %s", script.shell, errText(err))
	}
	stdout := c.outputs[0]
	stderr := c.outputs[1]
	var read sync.WaitGroup
	read.Go(func() {
		output, _ = io.ReadAll(io.LimitReader(stdout, maxShellOutput+1))
		if len(output) > maxShellOutput {
			stdout.Close() // this ends the function
		}
	})
	read.Go(func() { lastLines = s.readStderr(stderr, progress) })
	err = c.wait(ctx, 0)
	c.stopReading()
	read.Wait()
	go s.keep(c)
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return output, lastLines, err
}

// keep lets the background processes of a call go on until they end or the module is removed,
// and reads what they write. It then ends what is left.
func (s *shellRunner) keep(c *child) {
	for _, f := range c.outputs {
		f.SetReadDeadline(time.Time{})
		defer f.Close()
	}
	go io.Copy(io.Discard, c.outputs[0])
	go s.readStderr(c.outputs[1], func([][]byte) {})
	for c.lives() && pauseFor(s.kept, sweepInterval) {
	}
	c.end()
}

// readStderr passes the parts of lines of progress on, and other lines to the log. It returns
// the last of the other lines.
func (s *shellRunner) readStderr(pipe io.Reader, progress func(match [][]byte)) string {
	var lastLines []string
	lines := bufio.NewReaderSize(pipe, maxLoggedLine)
	for {
		raw, _, err := lines.ReadLine()
		if err != nil {
			return strings.Join(lastLines, "\n")
		}
		if m := shellProgress.FindSubmatch(raw); m != nil {
			progress(m)
			continue
		}
		line := strings.ToValidUTF8(string(raw), "\uFFFD")
		s.log.Info("module output", "line", line)
		// The shell's own errors begin with the script's absolute path.
		line = strings.ReplaceAll(line, filepath.Dir(s.Source)+string(filepath.Separator), "")
		lastLines = append(lastLines[max(0, len(lastLines)-shellTail+1):], line)
	}
}
