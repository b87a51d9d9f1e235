// How tests start usher: the daemon with its options, its claims and its webhooks.

package main

import (
	"context"
	"io"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// testDaemon is a usher serve that a test talks to.
type testDaemon struct {
	URL    string
	Base   string
	Dir    string  // of its modules
	Out    *output // stdout
	Log    *output // stderr
	cmd    *exec.Cmd
	cancel context.CancelFunc
	done   chan struct{} // closed when it has ended
	status int           // how it ended
}

// daemonOptions say how a daemon runs. The zero value is a daemon in this process,
// where the race detector sees it, with a base folder of its own and no environment.
type daemonOptions struct {
	base       string
	env        map[string]string // of the daemon; in this process, modules have the test's instead
	ownProcess bool              // for tests that kill it, or look at processes; env adds to the test's
	shell      string            // a command of sh that runs before it, in its own process
	log        io.Writer         // gets its log, except the beginning, which is in Log
	terminal   *os.File          // its stdout and stderr, instead of Out and Log
}

// startDaemon runs usher serve in this process, and waits until it listens. It ends
// with the test.
func startDaemon(t *testing.T, dir string, flags ...string) *testDaemon {
	return daemonOptions{}.start(t, dir, flags...)
}

func (o daemonOptions) start(t *testing.T, dir string, flags ...string) *testDaemon {
	d := o.launch(t, dir, flags...)
	d.Log.await(t, "the daemon's address", d.done, func(text string) bool {
		if url := listening.FindStringSubmatch(text); url != nil {
			d.URL = url[1]
		}
		return d.URL != ""
	})
	if d.URL == "" {
		stopTest(t, "the daemon ended with status %d: %s", d.wait(t), d.Log)
	}
	return d
}

// startReady is start, and waits until the daemon has looked at its modules.
func (o daemonOptions) startReady(t *testing.T, dir string, flags ...string) *testDaemon {
	d := o.start(t, dir, flags...)
	d.awaitReady(t)
	return d
}

// startTools is startReady for a workspace with a module, m, that has these tools.
func (o daemonOptions) startTools(t *testing.T, flags string, tools ...string) *testDaemon {
	dir := t.TempDir()
	writeTools(t, dir+"/m.usher", tools...)
	return o.startReady(t, dir, strings.Fields(flags)...)
}

// listening matches the record with a daemon's address.
var listening = regexp.MustCompile(`listening.*url[=":]+([^"\s]+)`)

// startFakes runs a daemon with fakes, each written "NAME: TRAITS", and waits until it has
// looked at them. One may have the trait shared, written first: see writeShared.
func startFakes(t *testing.T, fakes ...string) *testDaemon {
	dir := tempDir(t)
	writeFakes(t, dir, fakes...)
	return daemonOptions{}.startReady(t, dir)
}

// writeFakes writes fakes into a folder, each written "NAME: TRAITS".
func writeFakes(t *testing.T, dir string, fakes ...string) {
	for _, fake := range fakes {
		name, traits, _ := strings.Cut(fake, ": ")
		if rest, shared := strings.CutPrefix(traits, "shared "); shared {
			writeShared(t, dir, name, rest)
		} else {
			writeFake(t, dir+"/"+name+".usher", traits)
		}
	}
}

// launch is start without waiting.
func (o daemonOptions) launch(t *testing.T, dir string, flags ...string) *testDaemon {
	d := &testDaemon{
		Base: o.base,
		Dir:  dir,
		Out:  &output{},
		Log:  &output{},
		done: make(chan struct{}),
	}
	if d.Base == "" {
		d.Base = t.TempDir()
	}
	d.Log.rest = o.log
	args := slices.Concat([]string{"serve", "-addr", "127.0.0.1:0", "-base", d.Base},
		flags, []string{dir})
	if o.ownProcess {
		o.startProcess(t, d, args)
	} else {
		ctx, cancel := context.WithCancel(context.Background())
		d.cancel = cancel
		var out, log io.Writer = d.Out, d.Log
		if o.terminal != nil {
			out = o.terminal
			log = o.terminal
		}
		go func() {
			d.status = run(ctx, args, strings.NewReader(""), out, log, lookupIn(o.env))
			close(d.done)
		}()
	}
	t.Cleanup(func() { d.stop(t) })
	return d
}

func (o daemonOptions) startProcess(t *testing.T, d *testDaemon, args []string) {
	exe := testBinary(t)
	d.cmd = exec.Command(exe, args...)
	if o.shell != "" {
		d.cmd = exec.Command("sh",
			append([]string{"-c", o.shell + `; exec "$0" "$@"`, exe}, args...)...)
	}
	d.cmd.Env = append(os.Environ(), runAsUsher+"=1")
	for name, value := range o.env {
		d.cmd.Env = append(d.cmd.Env, name+"="+value)
	}
	d.cmd.Stdout, d.cmd.Stderr = d.Out, d.Log
	must(t, d.cmd.Start())
	d.cancel = func() { d.cmd.Process.Signal(os.Interrupt) }
	go func() {
		d.cmd.Wait()
		d.status = d.cmd.ProcessState.ExitCode()
		close(d.done)
	}()
}

// awaitReady waits until the daemon has looked at all modules, or has ended.
func (d *testDaemon) awaitReady(t *testing.T) {
	d.Log.await(t, "the daemon to have looked at its modules", d.done, func(text string) bool {
		return strings.Contains(text, "modules are ready")
	})
}

// awaitLog waits until the log has a text.
func (d *testDaemon) awaitLog(t *testing.T, text string) {
	d.Log.await(t, text+" in the log", nil, func(log string) bool {
		return strings.Contains(log, text)
	})
}

// logged returns how often the log has a text.
func (d *testDaemon) logged(text string) int { return strings.Count(d.Log.String(), text) }

// stop ends the daemon, which may have ended before, and returns its status.
func (d *testDaemon) stop(t *testing.T) int {
	d.cancel()
	return d.wait(t)
}

// signal sends a signal to the daemon's own process, and returns its status.
func (d *testDaemon) signal(t *testing.T, s os.Signal) int {
	must(t, d.cmd.Process.Signal(s))
	return d.wait(t)
}

// wait returns the status with which the daemon ends.
func (d *testDaemon) wait(t *testing.T) int {
	select {
	case <-d.done:
		return d.status
	case <-time.After(patience):
		t.Errorf("the daemon did not end; its log:\n%s", d.Log)
		return -1
	}
}
