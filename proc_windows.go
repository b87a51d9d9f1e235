// Processes on Windows: the functions of proc_unix.go. A group is a job object. Windows ends
// the job object when usher ends, even if usher is killed.

package main

import (
	"errors"
	"os"
	"os/exec"
	"syscall"
	"unsafe"
)

var kernel32 = syscall.NewLazyDLL("kernel32.dll")

// group is a job, with a process that usher has started and the processes that it started in
// turn. Processes that it starts in the microseconds before it is assigned to the job are not
// in the group.
type group uintptr

// startGroup starts cmd in a new group.
func startGroup(cmd *exec.Cmd) (group, error) {
	cmd.SysProcAttr = &syscall.SysProcAttr{CreationFlags: syscall.CREATE_NEW_PROCESS_GROUP}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	job, _, _ := kernel32.NewProc("CreateJobObjectW").Call(0, 0)
	// JOBOBJECT_EXTENDED_LIMIT_INFORMATION on 64 bits, with KILL_ON_JOB_CLOSE
	limits := [18]uint64{2: 0x2000}
	kernel32.NewProc("SetInformationJobObject").Call(job, 9, uintptr(unsafe.Pointer(&limits)),
		unsafe.Sizeof(limits))
	// WithHandle can't fail before Wait. If the assignment fails, usher can't end the process.
	_ = cmd.Process.WithHandle(func(process uintptr) {
		kernel32.NewProc("AssignProcessToJobObject").Call(job, process)
	})
	return group(job), nil
}

// signal ends every process of the group: Windows has no signal for console programs without
// a console. It does so even if the signal is 0; only shell modules, which don't run on
// Windows, send that. It reports false, because no process can survive this.
func (g group) signal(syscall.Signal) bool {
	kernel32.NewProc("TerminateJobObject").Call(uintptr(g), 1)
	return false
}

// close forgets the group, and ends it.
func (g group) close() { _ = syscall.CloseHandle(syscall.Handle(g)) }

// processAlive reports whether a process with this id exists.
func processAlive(pid int) bool {
	const queryLimitedInformation = 0x1000 // services, too, grant this right
	h, err := syscall.OpenProcess(queryLimitedInformation, false, uint32(pid))
	if err != nil {
		return false
	}
	defer syscall.CloseHandle(h)
	const stillActive = 259
	var code uint32
	return syscall.GetExitCodeProcess(h, &code) == nil && code == stillActive
}

// lockFile creates a file if necessary, and opens it for this process alone. It does not
// wait: see isShared.
func lockFile(path string) (*os.File, error) {
	name, err := syscall.UTF16PtrFromString(path)
	if err != nil {
		return nil, err
	}
	h, err := syscall.CreateFile(name, syscall.GENERIC_WRITE, 0, nil, syscall.OPEN_ALWAYS,
		syscall.FILE_ATTRIBUTE_NORMAL, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(h), path), nil
}

// isLocked reports whether another process has locked a file.
func isLocked(path string) bool {
	f, err := lockFile(path)
	if err == nil {
		f.Close()
	}
	return err != nil
}

// isShared reports whether an operation may have failed because another process, such as a
// virus scanner, has the file open. A lack of permission looks the same.
func isShared(err error) bool {
	const sharingViolation = syscall.Errno(32)
	return errors.Is(err, os.ErrPermission) || errors.Is(err, sharingViolation)
}

// syncFolder does nothing: Windows can't sync folders.
func syncFolder(string) error { return nil }

// checkPrivate accepts every folder: on Windows, a folder's mode does not show who can write.
func checkPrivate(string, bool) error { return nil }

// openFilesLimit returns how many files this process may have open: Windows has no limit.
func openFilesLimit() int { return 1 << 20 }

// isConsole reports whether a file is a terminal. (For os.SameFile, a console is the file NUL.)
func isConsole(f *os.File) bool {
	var mode uint32
	return syscall.GetConsoleMode(syscall.Handle(f.Fd()), &mode) == nil
}
