// The reaper is a small process, usher again, that outlives a daemon which was
// killed just long enough to end the process groups it left behind. Between the
// two is one pipe: lines "+ PGID" and "- PGID", and at its end the reaper kills
// every group that is still on its list.

package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// reaperCommand is the first argument that makes a process the reaper. It is not
// among the commands of a user.
const reaperCommand = "__reaper"

// reaper tells the reaper process which groups to end should this process die.
// That process is started with the first group. Safe for concurrent use.
type reaper struct {
	mu   sync.Mutex
	cmd  *exec.Cmd // nil until the first add, or where it could not be started
	pipe io.WriteCloser
}

// add puts a process group on the list.
func (r *reaper) add(pgid int) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.cmd == nil {
		if err := r.start(); err != nil {
			return fmt.Errorf("starting the reaper: %w", err)
		}
	}
	_, err := fmt.Fprintf(r.pipe, "+ %d\n", pgid)
	return err
}

// remove takes a group that has ended off the list: its id may be someone else's
// from now on.
func (r *reaper) remove(pgid int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.cmd != nil {
		fmt.Fprintf(r.pipe, "- %d\n", pgid)
	}
}

// Close ends the reaper process and waits for it.
func (r *reaper) Close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.cmd != nil {
		r.pipe.Close()
		r.cmd.Wait()
		r.cmd = nil
	}
}

func (r *reaper) start() error {
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	// A file that was replaced since (an update, go run) would be another
	// program; on Linux the running one stays reachable under this name.
	if _, err := os.Stat("/proc/self/exe"); err == nil {
		exe = "/proc/self/exe"
	}
	cmd := exec.Command(exe, reaperCommand)
	cmd.Stderr = os.Stderr
	cmd.Env = slices.DeleteFunc(os.Environ(), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		return isSecretVariable(name)
	})
	setGroup(cmd) // a Ctrl-C in the terminal must not reach it
	pipe, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	r.cmd, r.pipe = cmd, pipe
	return nil
}

// runReaper is the reaper process. It returns when stdin ends.
func runReaper(stdin io.Reader) {
	groups := make(map[int]bool)
	lines := bufio.NewScanner(stdin)
	for lines.Scan() {
		sign, id, _ := strings.Cut(lines.Text(), " ")
		pgid, _ := strconv.Atoi(id) // there is no group 0
		if sign == "+" {
			groups[pgid] = true
		} else {
			delete(groups, pgid)
		}
	}
	for pgid := range groups {
		killGroup(pgid)
	}
}
