// Process groups on Windows: what proc_unix.go does, as far as Windows can.

package main

import (
	"errors"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"time"
)

// setGroup makes cmd, when it starts, the root of a new process group.
func setGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{CreationFlags: syscall.CREATE_NEW_PROCESS_GROUP}
}

// terminateGroup ends the group: Windows has no signal that a console program
// without a console would get.
func terminateGroup(pgid int) error { return killGroup(pgid) }

// killGroup ends the process and all that it started.
func killGroup(pgid int) error {
	return exec.Command("taskkill", "/T", "/F", "/PID", strconv.Itoa(pgid)).Run()
}

// groupAlive reports whether a process of the group is left, as far as can be told
// here: its first.
func groupAlive(pgid int) bool { return processAlive(pgid) }

// processAlive reports whether a process with this id exists.
func processAlive(pid int) bool { return processStartTime(pid) != "" }

// processStartTime names the instant at which the running process pid began; see
// proc_unix.go.
func processStartTime(pid int) string {
	h, err := syscall.OpenProcess(syscall.PROCESS_QUERY_INFORMATION, false, uint32(pid))
	if err != nil {
		return ""
	}
	defer syscall.CloseHandle(h)
	const stillActive = 259
	var code uint32
	var made, exited, kernel, user syscall.Filetime
	if syscall.GetExitCodeProcess(h, &code) != nil || code != stillActive || syscall.GetProcessTimes(h, &made, &exited, &kernel, &user) != nil {
		return ""
	}
	return strconv.FormatInt(made.Nanoseconds(), 10)
}

// renameFile is os.Rename, which fails while someone has the file open, if only to
// read it or to search it for viruses: it is tried for a while.
func renameFile(from, to string) error {
	err := os.Rename(from, to)
	for n := 0; n < 100 && isShared(err); n++ {
		time.Sleep(10 * time.Millisecond)
		err = os.Rename(from, to)
	}
	return err
}

// isShared reports whether Windows refused because another has the file open.
func isShared(err error) bool {
	const sharingViolation = syscall.Errno(32)
	return errors.Is(err, os.ErrPermission) || errors.Is(err, sharingViolation)
}

// syncFolder does nothing: folders can't be synced here.
func syncFolder(string) error { return nil }

// checkPrivate refuses nothing: a folder's mode does not say who can write.
func checkPrivate(string) error { return nil }
