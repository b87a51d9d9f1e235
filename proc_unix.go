//go:build linux || darwin

// Process groups on Linux and macOS: put a child in a group of its own, end
// the group, and tell whether a process of the past is still the same one.
// This file sets no policy: who is ended, and when, is decided in worker.go.

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

// setGroup makes cmd, when it starts, the leader of a new process group.
func setGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
}

// terminateGroup asks every process of the group to end.
func terminateGroup(pgid int) error { return signalGroup(pgid, syscall.SIGTERM) }

// killGroup ends every process of the group. A group that is already empty is
// no error.
func killGroup(pgid int) error { return signalGroup(pgid, syscall.SIGKILL) }

func signalGroup(pgid int, sig syscall.Signal) error {
	if pgid <= 1 {
		return errors.New("no process group")
	}
	if err := syscall.Kill(-pgid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
		return err
	}
	return nil
}

// groupAlive reports whether a process of the group is left.
func groupAlive(pgid int) bool {
	return pgid > 1 && !errors.Is(syscall.Kill(-pgid, 0), syscall.ESRCH)
}

// processAlive reports whether a process with this id exists, whoever owns it.
func processAlive(pid int) bool {
	if pid <= 0 {
		return false
	}
	err := syscall.Kill(pid, 0)
	return err == nil || errors.Is(err, syscall.EPERM)
}

// processStartTime names the instant at which the process pid began, so that a pid
// that was reused, or is left from before a reboot, is not taken for the
// process that once had it. It has no spaces, and is "" when the process does
// not exist, is a zombie, or the system can't tell, as macOS.
func processStartTime(pid int) string {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return ""
	}
	// The command's name, in parentheses, may hold anything; what follows it is
	// fields 3 and on of proc_pid_stat(5). Field 22 is the start time.
	text := string(stat)
	fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
	if len(fields) < 20 || fields[0] == "Z" || fields[0] == "X" {
		return ""
	}
	return strings.TrimSpace(string(boot)) + "." + fields[19]
}

// checkPrivate refuses a folder that users other than this one can write into.
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

// renameFile is os.Rename; isShared is a matter of Windows.
func renameFile(from, to string) error { return os.Rename(from, to) }
func isShared(error) bool              { return false }

// syncFolder makes a rename last. Some file systems have no such thing, which is no
// reason to call a finished write failed.
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
