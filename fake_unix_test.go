//go:build unix

package main

import (
	"os/exec"
	"os/signal"
	"syscall"
)

func startInGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Start()
}

func ignoreTerm() { signal.Ignore(syscall.SIGTERM) }
