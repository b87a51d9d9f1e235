//go:build linux || darwin

// Process groups on Linux and macOS: functions that put a child process into a group of its
// own, end the group, and identify a process for longer than its pid does. worker.go and
// reaper.go decide which group ends, and when.

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

// setGroup makes cmd the leader of a new process group when it starts.
func setGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
}

// terminateGroup asks every process of the group to end.
func terminateGroup(pgid int) error { return signalGroup(pgid, syscall.SIGTERM) }

// killGroup ends every process of the group. It returns no error if the group is empty.
func killGroup(pgid int) error { return signalGroup(pgid, syscall.SIGKILL) }

// signalGroup sends a signal to each process of a group.
func signalGroup(pgid int, sig syscall.Signal) error {
	if pgid <= 1 {
		return errors.New("no process group")
	}
	if err := syscall.Kill(-pgid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
		return err
	}
	return nil
}

// groupAlive reports whether a process of the group exists.
func groupAlive(pgid int) bool {
	return pgid > 1 && !errors.Is(syscall.Kill(-pgid, 0), syscall.ESRCH)
}

// processAlive reports whether a process with this id exists, of any user.
func processAlive(pid int) bool {
	if pid <= 0 {
		return false
	}
	err := syscall.Kill(pid, 0)
	return err == nil || errors.Is(err, syscall.EPERM)
}

// processStartTime returns a text without spaces for the time at which process pid started.
// It distinguishes processes with the same pid, even across reboots. It returns "" if the
// process does not exist or is a zombie, and on macOS.
func processStartTime(pid int) string {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return ""
	}
	// The command's name, in parentheses, may contain any characters. Fields 3 and up of
	// proc_pid_stat(5) follow it; field 22 is the start time.
	text := string(stat)
	fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
	if len(fields) < 20 || fields[0] == "Z" || fields[0] == "X" {
		return ""
	}
	return strings.TrimSpace(string(boot)) + "." + fields[19]
}

// checkPrivate returns an error if users other than this one own or can write to a folder.
func checkPrivate(folder string) error {
	info, err := os.Stat(folder)
	if err != nil {
		return err
	}
	if owner, ok := info.Sys().(*syscall.Stat_t); ok && int(owner.Uid) != os.Geteuid() {
		return fmt.Errorf("%s belongs to another user", folder)
	}
	if info.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("other users can write into %s: run chmod go-w on it", folder)
	}
	return nil
}

// renameFile calls os.Rename. Like isShared, it differs on Windows.
func renameFile(from, to string) error { return os.Rename(from, to) }
func isShared(error) bool              { return false }

// syncFolder makes a rename durable. It returns no error if the file system does not support
// that.
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
