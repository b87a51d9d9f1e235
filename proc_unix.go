//go:build linux || darwin

// Processes on Linux and macOS: functions that start a process with a tree of its own, send
// signals to the tree, and notice that a pid now belongs to another process. reaper.go
// decides when to use them.

package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
)

// tree is a process that usher has started as the leader of a session, and the processes
// that it started in turn. A process that calls setsid leaves the tree.
type tree struct {
	pid   int    // of the leader, and the id of the session
	start string // start time of the leader; "" on macOS
}

// reapTrees is true, as trees outlive usher unless the reaper ends them.
const reapTrees = true

// startTree starts cmd as the leader of a new tree, without a terminal.
func startTree(cmd *exec.Cmd) (tree, error) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return tree{}, err
	}
	return tree{cmd.Process.Pid, processStat(cmd.Process.Pid).start}, nil
}

// lowerPriority lets other processes go first, if they need the processors.
func (t tree) lowerPriority() { _ = syscall.Setpriority(syscall.PRIO_PGRP, t.pid, 10) }

// signalTrees sends sig to every process of the trees; 0 sends nothing. It returns the trees
// that still have a process. On Linux, /proc also shows processes that have left the
// leader's group, such as those of timeout(1); on macOS, these are not found.
func signalTrees(trees map[tree]bool, sig syscall.Signal) (living map[tree]bool) {
	living = make(map[tree]bool)
	sessions := make(map[int]tree)
	for t := range trees {
		leader := processStat(t.pid)
		if leader.start != "" && leader.start != t.start {
			continue // the tree has ended: another process has the leader's id
		}
		sessions[t.pid] = t
		if err := syscall.Kill(-t.pid, sig); err == nil && t.start == "" {
			living[t] = true
		}
	}
	if len(sessions) == 0 {
		return living
	}
	list, _ := os.ReadDir("/proc")
	for _, entry := range list {
		pid, _ := strconv.Atoi(entry.Name())
		stat := processStat(pid)
		t, ok := sessions[stat.session]
		if !ok || stat.dead {
			continue
		}
		living[t] = true
		if stat.group != t.pid {
			_ = syscall.Kill(pid, sig)
		}
	}
	return living
}

// closeTree does nothing: see proc_windows.go.
func closeTree(tree) {}

// stat contains what usher needs of /proc/PID/stat. It is zero if there is no such process.
type stat struct {
	dead           bool // a zombie
	group, session int
	start          string // in clock ticks since the boot
}

// processStat returns the stat of a process. It is zero on macOS.
func processStat(pid int) (s stat) {
	raw, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return s
	}
	// The command's name, in parentheses, may contain any characters. Fields 3 and up of
	// proc_pid_stat(5) follow it.
	text := string(raw)
	fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
	if len(fields) < 20 {
		return s
	}
	s.dead = fields[0] == "Z" || fields[0] == "X"
	s.group, _ = strconv.Atoi(fields[2])
	s.session, _ = strconv.Atoi(fields[3])
	s.start = fields[19]
	return s
}

// processAlive reports whether a process with this id exists, of any user. A zombie does not
// count.
func processAlive(pid int) bool {
	if pid <= 0 || processStat(pid).dead {
		return false
	}
	err := syscall.Kill(pid, 0)
	return err == nil || errors.Is(err, syscall.EPERM)
}

// checkPrivate returns an error if users other than this one and root own a folder or can
// write to it. They may write to a folder with the sticky bit if sticky is true.
func checkPrivate(folder string, sticky bool) error {
	info, err := os.Stat(folder)
	if err != nil {
		return err
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if ok && owner.Uid != 0 && int(owner.Uid) != os.Geteuid() {
		return fmt.Errorf("%s belongs to another user", folder)
	}
	sticky = sticky && info.Mode()&os.ModeSticky != 0
	if info.Mode()&0o022 != 0 && !sticky {
		return fmt.Errorf("other users can write into %s: run chmod go-w on it", folder)
	}
	return nil
}

// lockFile creates a file if necessary and locks it, until it is closed or the process ends.
// It does not wait: see isShared.
func lockFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err == nil {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// isShared reports whether an operation failed because another process has locked the file.
func isShared(err error) bool { return errors.Is(err, syscall.EWOULDBLOCK) }

// syncFolder makes a rename durable. It returns no error if the file system can't sync
// folders.
func syncFolder(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	err = f.Sync()
	if errors.Is(err, errors.ErrUnsupported) || errors.Is(err, syscall.EINVAL) {
		return nil
	}
	return err
}

// openFilesLimit returns how many files this process may have open.
func openFilesLimit() int {
	var limit syscall.Rlimit
	_ = syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit) // can't fail
	return int(min(limit.Cur, 1<<20))
}
