// The reaper. It is a small process, usher again, that outlives a killed daemon just long
// enough to end the process groups that the daemon left. The two are connected by a pipe
// with lines "+ PGID" and "- PGID". When the pipe ends, the reaper kills every group that
// is still on its list.

package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
)

// reaperCommand is the first argument of the reaper process. Users don't give it.
const reaperCommand = "__reaper"

// reaper tells the reaper process which groups to end if this process is killed. The first
// add starts the reaper process. Safe for concurrent use.
type reaper struct {
	environ []string // of this process

	mu   sync.Mutex     // guards the fields below
	cmd  *exec.Cmd      // nil if it is not running
	pipe io.WriteCloser // to its stdin
}

// add adds a process group to the list.
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

// remove removes a group that has ended from the list: its id may be used again.
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

// start starts the reaper process. The caller holds r.mu.
func (r *reaper) start() error {
	// The file may have been replaced or removed since (by an update, by go run); on
	// Linux the running program has this name, too.
	exe := "/proc/self/exe"
	if _, err := os.Stat(exe); err != nil {
		if exe, err = os.Executable(); err != nil {
			return err
		}
	}
	cmd := exec.Command(exe, reaperCommand)
	cmd.Stderr = os.Stderr
	cmd.Env = withoutSecrets(r.environ)
	setGroup(cmd) // a Ctrl-C in the terminal must not reach it
	pipe, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	r.cmd = cmd
	r.pipe = pipe
	return nil
}

// runReaper runs the reaper process until stdin ends.
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
