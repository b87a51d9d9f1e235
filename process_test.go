// Tests of process.go: no process outlives its daemon.

package main

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// No process of a daemon that ends stays: no module, function or build. If the daemon is killed, the
// modules end by themselves.
func TestNoProcessOutlivesTheDaemon(t *testing.T) {
	long(t)
	bin := t.TempDir()
	command, err := exec.LookPath("go")
	must(t, err)
	write(t, bin+"/go", "#!/bin/sh\ncase $* in *built*) exec sleep 1000; esac\nexec "+
		command+" \"$@\"\n")
	var all sync.WaitGroup
	for name, end := range map[string]syscall.Signal{
		"by TERM": syscall.SIGTERM,
		"by KILL": syscall.SIGKILL,
	} {
		all.Go(func() {
			t.Run(name, func(t *testing.T) { endDaemon(t, bin, end) })
		})
	}
	all.Wait()
}

// markVar is a variable of the environment that marks processes, and what they start.
const markVar = "USHER_TEST_MARK"

// markProcesses returns a value of markVar, and a function that lists the ids and command
// lines of the processes with it.
func markProcesses(t *testing.T) (mark string, list func() string) {
	t.Helper()
	if runtime.GOOS != "linux" {
		skip(t, "looks at /proc")
	}
	mark = t.TempDir()
	return mark, func() string {
		var list []string
		dirs, _ := filepath.Glob("/proc/[0-9]*")
		for _, dir := range dirs {
			cmdline, _ := os.ReadFile(dir + "/cmdline")
			if len(cmdline) == 0 {
				continue // a thread of the kernel, or a process that has ended
			}
			environ, _ := os.ReadFile(dir + "/environ")
			if bytes.Contains(environ, []byte(markVar+"="+mark)) {
				list = append(list, filepath.Base(dir)+" "+
					strings.ReplaceAll(string(cmdline), "\x00", " "))
			}
		}
		return strings.Join(list, "\n")
	}
}

// endDaemon ends a daemon with processes of each kind, and waits for their end.
func endDaemon(t *testing.T, bin string, end syscall.Signal) {
	t.Helper()
	mark, processes := markProcesses(t)
	dir, names := languages(t, "testdata/languages")
	env := map[string]string{markVar: mark, "PATH": bin + ":" + os.Getenv("PATH")}
	d := daemonOptions{ownProcess: true, env: env}.start(t, dir)
	c := connect(t, d.URL)
	for _, name := range names {
		tool := name + "_handleContact"
		await(t, tool, func() bool {
			return c.Call(tool, `{"email":"x","message":"y"}`).Failure() == ""
		})
	}
	if end == syscall.SIGTERM {
		writeFake(t, dir+"/child.usher", "child tools=x")
		await(t, "the fake", func() bool { return c.Call("child_x", "").Failure() == "" })
		write(t, dir+"/built.usher.go", goHead)
		await(t, "the build", func() bool {
			return strings.Count(processes(), "sleep 1000") == 2
		})
	}
	d.signal(t, end)
	await(t, "all processes to end", func() bool { return processes() == "" })
}

// A zombie is dead, a group is not confused with another whose leader has the same id, and
// usher gives up on a process that can't be killed.
func TestGroupIsNotConfused(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		skip(t, "looks at /proc")
	}
	cmd := exec.Command("sleep", "1000")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	must(t, cmd.Start())
	pid := cmd.Process.Pid
	exited := make(chan struct{})
	close(exited)
	ended := &child{pid: pid, exited: exited}
	check(t, "a group has another's process", ended.signal(syscall.SIGKILL), false)
	check(t, "the other process is alive", processAlive(pid), true)
	runs := &child{pid: pid, exited: make(chan struct{})}
	check(t, "it is killed", runs.signal(syscall.SIGKILL), true)
	await(t, "a zombie", func() bool { return !processAlive(pid) })
	cmd.Wait()
	synctest.Test(t, func(t *testing.T) {
		stuck := &child{pid: pid, exited: make(chan struct{})}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		check(t, "its end", stuck.wait(ctx, 0), context.Canceled)
	})
}

// usher ends a process that closes its stdin and continues.
func TestProcessWithoutStdinEnds(t *testing.T) {
	t.Parallel()
	w := testWorker(kindExecutable, false, Caller{})
	must(t, w.spawn(launch{Path: "/bin/sh", Args: []string{"-c", "exec <&-; sleep 600"}}))
	await(t, "its end", func() bool {
		w.send([]byte("{}"))
		return !w.alive()
	})
	<-w.done
}

// Close waits for the end of a function whose call has ended. After Close, no process starts.
func TestCloseEndsProcesses(t *testing.T) {
	long(t)
	need(t, "sh")
	dir := t.TempDir()
	write(t, dir+"/m.usher.sh", "trap '' TERM\n# Goes on.\nwaits() { echo $$ >>pids; sleep 600; }\n")
	r := registryOf(t, registryConfig{Roots: []string{dir}})
	r.WaitAll(t.Context(), time.Minute, scopeAll())
	tools := r.View(scopeAll(), nil).Tools
	check(t, "methods", len(tools), 1)
	call := func(ctx context.Context) error {
		_, err := tools[0].Call(ctx, Caller{Principal: everyone}, "tools/call", nil)
		return err
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- call(ctx) }()
	var pids []byte
	await(t, "the function to run", func() bool {
		pids, _ = os.ReadFile(dir + "/pids")
		return bytes.HasSuffix(pids, []byte("\n"))
	})
	pid, err := strconv.Atoi(strings.TrimSpace(string(pids)))
	must(t, err)
	cancel()
	check(t, "the call", <-ended, context.Canceled)
	r.Close()
	check(t, "the function's process is alive", processAlive(pid), false)
	check(t, "a later call", call(t.Context()), errRetired)
	check(t, "processes of both calls", readFile(t, dir+"/pids"), string(pids))
}

// A module's process has ended only when its whole group has.
func TestProcessEndsWithItsGroup(t *testing.T) {
	long(t)
	need(t, "sh")
	w := testWorker(kindExecutable, false, Caller{})
	const script = "trap '' TERM; sleep 600 & echo $! >&2; exit"
	must(t, w.spawn(launch{Path: "/bin/sh", Args: []string{"-c", script}}))
	<-w.done
	pid, err := strconv.Atoi(w.stderr.String())
	must(t, err)
	await(t, "the end of its background process", func() bool { return !processAlive(pid) }) // KILL was sent
}

// A program that can't be started leaves no pipe open. The test counts files, so it runs alone.
func TestFailedStartClosesPipes(t *testing.T) {
	alone(t)
	if runtime.GOOS != "linux" {
		t.Skip("counts the files in /proc")
	}
	before := len(folderNames(t, "/proc/self/fd"))
	for range 20 {
		_, err := startChild(exec.Command("/no/such/program"))
		check(t, "it is missing", errors.Is(err, fs.ErrNotExist), true)
	}
	files := len(folderNames(t, "/proc/self/fd")) - before
	check(t, "few more files are open", files < 10, true)
}
