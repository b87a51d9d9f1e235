// Processes that usher starts, and their end. A child is one such process with its tree.
// The reaper is usher again, in a process that outlives a killed daemon just long enough
// to end the trees that the daemon left. Through a pipe, the daemon sends the reaper a
// line "+ PID START" for each tree that begins, and "- PID START" for each that has
// ended.

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

const (
	exitTimeout   = 2 * time.Second        // how long processes may take to end after TERM
	killTimeout   = 5 * time.Second        // how long processes may take to end after KILL
	outputTimeout = 500 * time.Millisecond // how long reading may take after the process has ended
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

// forgetEnded forgets the trees that have no process left.
func (r *reaper) forgetEnded() {
	r.mu.Lock()
	defer r.mu.Unlock()
	living := signalTrees(r.trees, 0)
	for t := range r.trees {
		if !living[t] {
			r.forget(t)
		}
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
