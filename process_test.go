// Tests of process.go: no process outlives its daemon.

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
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
	id, err := startGroup(cmd)
	must(t, err)
	exited := make(chan struct{})
	close(exited)
	ended := &child{group: id, exited: exited}
	check(t, "a group has another's process", ended.signal(syscall.SIGKILL), false)
	check(t, "the other process is alive", processAlive(int(id)), true)
	check(t, "it is killed", id.signal(syscall.SIGKILL), true)
	await(t, "a zombie", func() bool { return !processAlive(int(id)) })
	cmd.Wait()
	synctest.Test(t, func(t *testing.T) {
		g := newGroups(quiet)
		stuck := &child{group: id, groups: g, exited: make(chan struct{})}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		check(t, "its end", stuck.wait(ctx, 0), context.Canceled)
	})
}

// After Close, no process starts.
func TestNoProcessStartsAfterClose(t *testing.T) {
	t.Parallel()
	g := newGroups(quiet)
	g.Close()
	_, err := g.start(exec.Command(testBinary(t), "-test.run=^$"))
	checkContains(t, "the error", fmt.Sprint(err), "usher is stopping")
}

// usher ends a process that closes its stdin and continues.
func TestProcessWithoutStdinEnds(t *testing.T) {
	t.Parallel()
	g := newGroups(quiet)
	defer g.Close()
	w := testWorker(kindExecutable, false, Caller{})
	must(t, w.spawn(launch{Path: "/bin/sh", Args: []string{"-c", "exec <&-; sleep 600"}}, g))
	await(t, "its end", func() bool {
		w.send([]byte("{}"))
		return !w.alive()
	})
	<-w.done
}

// usher ends all groups itself, even if there is no guard.
func TestCloseEndsGroups(t *testing.T) {
	t.Parallel()
	g := newGroups(quiet)
	c, err := g.start(exec.Command("sleep", "600"))
	must(t, err)
	g.Close()
	select {
	case <-c.exited:
	default:
		t.Error("the process has not ended")
		c.end()
	}
}

// A module's process has ended only when its whole group has.
func TestProcessEndsWithItsGroup(t *testing.T) {
	long(t)
	need(t, "sh")
	g := newGroups(quiet)
	defer g.Close()
	w := testWorker(kindExecutable, false, Caller{})
	must(t, w.spawn(launch{Path: "/bin/sh", Args: []string{"-c", "trap '' TERM; sleep 600 & exit"}}, g))
	<-w.done
	g.mu.Lock()
	defer g.mu.Unlock()
	check(t, "groups that are left", len(g.left), 0)
}

// A program that can't be started leaves no pipe open. The test counts files, so it runs alone.
func TestFailedStartClosesPipes(t *testing.T) {
	alone(t)
	if runtime.GOOS != "linux" {
		t.Skip("counts the files in /proc")
	}
	g := newGroups(quiet)
	defer g.Close()
	before := len(folderNames(t, "/proc/self/fd"))
	for range 20 {
		_, err := g.startPiped(exec.Command("/no/such/program"))
		check(t, "it is missing", errors.Is(err, fs.ErrNotExist), true)
	}
	files := len(folderNames(t, "/proc/self/fd")) - before
	check(t, "few more files are open", files < 10, true)
}
