// Processes that usher starts, and their end. Each leads a group of its own. This file alone completes
// and filters the environment of a process.
//
// If usher is killed, nothing here runs any longer: the modules notice the end of their stdin, and
// systemd or a container ends what is left.

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
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
)

// child is a process that usher has started, with its group. The group has the id of the process,
// which leads it. The process may end long before its group: a server's helpers, or what a shell
// function left in the background, keep the group's id from being used again.
type child struct {
	pid     int
	outputs []*os.File    // stdout and stderr, if they are pipes
	exited  chan struct{} // closed when the process has ended
	err     error         // of cmd.Wait; constant once exited is closed
	ending  sync.Once
}

// wait waits until the process ends, and returns the error of cmd.Wait. When ctx ends, the
// process has grace to end by itself; then wait ends the group. If the process can't be
// killed, for example because it runs as another user, the error is ctx's. Readers of the
// outputs then end soon, even if processes that continue keep the pipes open.
func (c *child) wait(ctx context.Context, grace time.Duration) error {
	if waitFor(ctx, c.exited) != nil {
		select {
		case <-c.exited:
		case <-time.After(grace):
		}
		c.end()
	}
	for _, f := range c.outputs {
		f.SetReadDeadline(time.Now().Add(outputTimeout))
	}
	select {
	case <-c.exited:
		return c.err
	default:
		return ctx.Err()
	}
}

// signal sends sig to the processes of the group; 0 sends nothing. It reports whether the
// group has a process that usher may signal.
func (c *child) signal(sig syscall.Signal) bool {
	select {
	case <-c.exited:
		if processAlive(c.pid) { // no id is used again before its group is empty
			return false
		}
	default:
	}
	return syscall.Kill(-c.pid, sig) == nil
}

// end sends TERM to what is left of the group, and later KILL. It polls, because no system call waits
// for the end of a group whose processes are not all usher's children. It then waits for the end of
// the process alone: the others may remain zombies until their parent waits for them.
func (c *child) end() {
	c.ending.Do(func() {
		sig := syscall.SIGTERM
		start := time.Now()
		for c.signal(sig) && time.Since(start) < exitTimeout {
			sig = 0
			time.Sleep(5 * time.Millisecond)
		}
		c.signal(syscall.SIGKILL)
		select {
		case <-c.exited:
		case <-time.After(killTimeout): // it can't be killed
		}
	})
}

// startChild starts a process with usher's own environment and cmd.Env, except for the secrets of
// webhooks. If a name occurs twice, the last entry counts. The process leads a group and a session of
// its own, so it has no terminal. If cmd says nothing about stdout or stderr, it is a pipe, which the
// caller must read and close. The caller must call end, in a goroutine that Registry.running counts.
func startChild(cmd *exec.Cmd) (*child, error) {
	env := slices.Concat(os.Environ(), cmd.Env, []string{"PWD=" + cmd.Dir})
	cmd.Env = slices.DeleteFunc(env, func(entry string) bool {
		name, _, _ := strings.Cut(entry, "=")
		return isSecretVariable(name)
	})
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.WaitDelay = outputTimeout // if processes that continue keep stdin or an output open
	c := &child{exited: make(chan struct{})}
	for _, end := range []*io.Writer{&cmd.Stdout, &cmd.Stderr} {
		if *end != nil {
			continue
		}
		read, write, err := os.Pipe()
		if err != nil {
			return nil, err // the garbage collector closes outputs
		}
		defer write.Close()
		c.outputs = append(c.outputs, read)
		*end = write
	}
	if err := cmd.Start(); err != nil {
		for _, f := range c.outputs {
			f.Close()
		}
		return nil, err
	}
	c.pid = cmd.Process.Pid
	go func() { // ends with the process
		c.err = cmd.Wait()
		if c.err == exec.ErrWaitDelay { // it succeeded; others keep its pipes open
			c.err = nil
		}
		close(c.exited)
	}()
	return c, nil
}

// processFault returns the fault of a module's process that could not be built or started, or
// that ended during a call. reason is for clients, such as "can't be built". output is only for
// the owner, as it may contain paths: the last lines of stderr, or messages of the compiler.
func processFault(module, reason, output string) *fault {
	f := httpErrorf(http.StatusBadGateway, "module %q %s", module, reason)
	if output != "" {
		f.Err = fmt.Errorf("%s: %s", f.Message, output)
	}
	return f
}

// insideOf returns the variable that tells a process that it runs inside of the module at
// source.
func insideOf(source string) string {
	return nestedVar + "=" + os.Getenv(nestedVar) + "\n" + source
}

// eachLine passes on the lines of an output, and the beginnings of those that are too long, until
// the output ends. usher's own runtimes write a traceback as one line with vertical tabs; eachLine
// turns the tabs back into new lines.
func eachLine(output io.Reader, handle func(line string)) {
	for lines := bufio.NewReader(output); ; {
		line, err := readLine(lines, maxLoggedLine)
		if err != nil && err != errLineTooLong {
			return
		}
		text := strings.ToValidUTF8(string(line), "\uFFFD")
		handle(strings.ReplaceAll(text, "\v", "\n"))
	}
}

// tail is the last lines of an output, at most tailLines.
type tail []string

// add appends a line, and drops the oldest if there are more than tailLines.
func (t *tail) add(line string) { *t = append((*t)[max(0, len(*t)+1-tailLines):], line) }

// String returns the lines, separated by newlines.
func (t tail) String() string { return strings.Join(t, "\n") }

// ---- Errors

// Why a pool makes no call.
var (
	// errRetired reports that this version of the module takes no more calls, because a newer one
	// replaced it or it can't run any longer. The call was not made: look the module up again.
	errRetired = errors.New("the module was reloaded")
	// errUnapproved reports that the module's content needs an approval and has none.
	errUnapproved = errors.New("not approved: the owner must read it, then run usher approve")
)
