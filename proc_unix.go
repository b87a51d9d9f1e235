//go:build linux || darwin

// Calls of Linux and macOS: whether a process is alive, who owns a folder, file locks, and the limit of
// open files.

package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"syscall"
)

// processAlive reports whether a process with this id exists, of any user. A zombie does not
// count.
func processAlive(pid int) bool {
	if pid <= 0 {
		return false
	}
	// The state follows the command's name, which may contain any characters.
	stat, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if bytes.HasPrefix(stat[bytes.LastIndexByte(stat, ')')+1:], []byte(" Z")) {
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
	owner := info.Sys().(*syscall.Stat_t)
	if owner.Uid != 0 && int(owner.Uid) != os.Geteuid() {
		return fmt.Errorf("%s belongs to another user", folder)
	}
	sticky = sticky && info.Mode()&os.ModeSticky != 0
	if info.Mode()&0o022 != 0 && !sticky {
		return fmt.Errorf("other users can write into %s: run chmod go-w on it", folder)
	}
	return nil
}

// lockFile creates a file if necessary and locks it, until it is closed or the process ends.
// It does not wait: while another process has the lock, the error is EWOULDBLOCK.
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

// isLocked reports whether another process has locked a file. Processes that ask at the same time
// don't disturb each other.
func isLocked(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return !errors.Is(err, fs.ErrNotExist)
	}
	defer f.Close()
	return syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB) != nil
}

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
