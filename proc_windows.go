// Process groups on Windows: the functions of proc_unix.go, as far as Windows supports them.

package main

import (
	"errors"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"time"
)

// setGroup makes cmd the root of a new process group when it starts.
func setGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{CreationFlags: syscall.CREATE_NEW_PROCESS_GROUP}
}

// terminateGroup ends the group: Windows has no signal for console programs without a
// console.
func terminateGroup(pgid int) error { return killGroup(pgid) }

// killGroup ends the process and its descendants.
func killGroup(pgid int) error {
	return exec.Command("taskkill", "/T", "/F", "/PID", strconv.Itoa(pgid)).Run()
}

// groupAlive reports whether the group's first process exists: Windows can't list the others.
func groupAlive(pgid int) bool { return processAlive(pgid) }

// processAlive reports whether a process with this id exists.
func processAlive(pid int) bool { return processStartTime(pid) != "" }

// processStartTime returns when the running process pid started; see proc_unix.go.
func processStartTime(pid int) string {
	h, err := syscall.OpenProcess(syscall.PROCESS_QUERY_INFORMATION, false, uint32(pid))
	if err != nil {
		return ""
	}
	defer syscall.CloseHandle(h)
	const stillActive = 259
	var code uint32
	var made, exited, kernel, user syscall.Filetime
	if syscall.GetExitCodeProcess(h, &code) != nil || code != stillActive {
		return ""
	}
	if syscall.GetProcessTimes(h, &made, &exited, &kernel, &user) != nil {
		return ""
	}
	return strconv.FormatInt(made.Nanoseconds(), 10)
}

// renameFile calls os.Rename, and retries for a second: it fails while another process, such as a
// virus scanner, has the file open.
func renameFile(from, to string) error {
	err := os.Rename(from, to)
	for n := 0; n < 100 && isShared(err); n++ {
		time.Sleep(10 * time.Millisecond)
		err = os.Rename(from, to)
	}
	return err
}

// isShared reports whether an operation failed because another process has the file open.
func isShared(err error) bool {
	const sharingViolation = syscall.Errno(32)
	return errors.Is(err, os.ErrPermission) || errors.Is(err, sharingViolation)
}

// syncFolder does nothing: Windows can't sync folders.
func syncFolder(string) error { return nil }

// checkPrivate accepts every folder: on Windows, a folder's mode does not show who can write.
func checkPrivate(string) error { return nil }
