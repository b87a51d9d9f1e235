// The guard: a small process, usher again, that outlives a daemon which was
// killed just long enough to end the process groups it left behind. Between
// the two is one pipe: lines "+ PGID" and "- PGID", and at its end the guard
// kills every group that is still on its list.

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

// guardCommand is the first argument that makes a process the guard. It is not
// among the commands of a user.
const guardCommand = "__guard"

// Guard tells the guard process which groups to end should this process die.
// The process is started with the first group. It is safe for concurrent use.
type Guard struct {
	mu   sync.Mutex
	cmd  *exec.Cmd // nil until the first add, or where it could not be started
	pipe *os.File
	err  error // why there is none
}

// add puts a process group on the guard's list.
func (g *Guard) add(pgid int) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.cmd == nil && g.err == nil {
		g.err = g.start()
	}
	if g.err != nil {
		return g.err
	}
	_, err := fmt.Fprintf(g.pipe, "+ %d\n", pgid)
	return err
}

// remove takes a group off the list. It must be called before the group's
// leader is waited for: from then on its id may be someone else's.
func (g *Guard) remove(pgid int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.pipe != nil {
		fmt.Fprintf(g.pipe, "- %d\n", pgid)
	}
}

// Close ends the guard process and waits for it.
func (g *Guard) Close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.cmd == nil {
		return
	}
	g.pipe.Close()
	g.cmd.Wait()
	g.cmd, g.pipe, g.err = nil, nil, os.ErrClosed
}

func (g *Guard) start() error {
	exe, err := os.Executable()
	if err != nil {
		return fmt.Errorf("starting the guard: %w", err)
	}
	// A file that was replaced since (an update, go run) would be another
	// program; on Linux the running one stays reachable under this name.
	if _, err := os.Stat("/proc/self/exe"); err == nil {
		exe = "/proc/self/exe"
	}
	r, w, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("starting the guard: %w", err)
	}
	defer r.Close()
	cmd := exec.Command(exe, guardCommand)
	cmd.Stdin, cmd.Stderr = r, os.Stderr
	setGroup(cmd) // a Ctrl-C in the terminal must not reach it
	if err := cmd.Start(); err != nil {
		w.Close()
		return fmt.Errorf("starting the guard: %w", err)
	}
	g.cmd, g.pipe = cmd, w
	return nil
}

// runGuard is the guard process. It returns when stdin ends.
func runGuard(stdin io.Reader) {
	groups := make(map[int]bool)
	lines := bufio.NewScanner(stdin)
	for lines.Scan() {
		sign, id, _ := strings.Cut(lines.Text(), " ")
		pgid, err := strconv.Atoi(id)
		if err != nil {
			continue
		}
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
