// Tests of process.go: no process outlives its daemon.

package main

import (
	"bytes"
	"context"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
)

// No process of a daemon that ends, or is killed, stays: no module, function or build.
func TestNoProcessOutlivesTheDaemon(t *testing.T) {
	long(t)
	bin := t.TempDir()
	command, err := exec.LookPath("go")
	must(t, err)
	write(t, bin+"/go", "#!/bin/sh\ncase $* in *built*) exec sleep 1000; esac\nexec "+
		command+" \"$@\"\n")
	for name, end := range map[string]syscall.Signal{
		"by TERM": syscall.SIGTERM,
		"by KILL": syscall.SIGKILL,
	} {
		t.Run(name, func(t *testing.T) {
			mark, processes := markProcesses(t)
			dir, names := languages(t, "testdata/languages")
			writeFake(t, dir+"/child.usher", "child tools=x")
			write(t, dir+"/wait.usher.sh", "# Waits.\nwait_() { trap '' TERM; sleep 600; }\n")
			env := map[string]string{markVar: mark, "PATH": bin + ":" + os.Getenv("PATH")}
			d := daemonOptions{ownProcess: true, env: env}.start(t, dir)
			c := connect(t, d.URL)
			for _, name := range names {
				tool := name + "_handleContact"
				await(t, tool, func() bool {
					return c.call(tool, `{"email":"x","message":"y"}`).failure() == ""
				})
			}
			await(t, "the fake", func() bool { return c.call("child_x", "").failure() == "" })
			write(t, dir+"/built.usher.go", goHead)
			await(t, "the build", func() bool {
				return strings.Count(processes(), "sleep 1000") == 2
			})
			_, noShell := exec.LookPath("sh")
			if end == syscall.SIGKILL && noShell == nil { // others wait for the call
				go c.http.Do(c.asking("tools/call", `{"name":"wait_wait_"}`))
				await(t, "the function", func() bool {
					return strings.Contains(processes(), "sleep 600")
				})
			}
			d.signal(t, end)
			await(t, "all processes to end", func() bool { return processes() == "" })
		})
	}
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

// usher neither waits for a guard that does not read, nor forgets what the guard has to
// know.
func TestGuardBlocksNothing(t *testing.T) {
	t.Parallel()
	read, write, err := os.Pipe()
	must(t, err)
	defer read.Close()
	g := newGroups(quiet)
	g.pipe = write
	for len(g.unsent) == 0 { // the pipe has room
		g.unsent = bytes.Repeat([]byte("- 1\n"), 1000)
		g.tell("-", 1)
	}
	g.tell("+", 2)
	go func() {
		g.tell("+", 3)
		for len(g.unsent) > 0 { // on a slow machine
			g.tell("+", 4)
		}
		g.pipe.Close()
	}()
	text, _ := io.ReadAll(read)
	check(t, "the last lines", strings.Contains(string(text), "\n- 1\n+ 2\n+ 3\n"), true)
}

// The guard gets no secret of webhooks.
func TestGuardGetsNoSecrets(t *testing.T) {
	need(t, "sh")
	mark, processes := markProcesses(t)
	t.Setenv(markVar, mark)
	t.Setenv(webhookSecretVar, "hidden")
	g := newGroups(quiet)
	g.startGuard()
	defer g.Close()
	pid, command, _ := strings.Cut(processes(), " ")
	checkContains(t, "the guard", command, guardScript)
	checkOmits(t, "its environment", readFile(t, "/proc/"+pid+"/environ"), "hidden")
}

// A module's process has ended only when its whole group has.
func TestProcessEndsWithItsGroup(t *testing.T) {
	need(t, "sh")
	alone(t) // it sets a variable
	mark, processes := markProcesses(t)
	t.Setenv(markVar, mark)
	g := newGroups(quiet)
	defer g.Close()
	w := testWorker("m", nil)
	must(t, w.spawn(launch{Path: "/bin/sh", Args: []string{"-c", "trap '' TERM; sleep 600 & exit"}}, g))
	<-w.done
	checkOmits(t, "processes", processes(), "sleep 600")
}
