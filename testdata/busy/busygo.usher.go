//go:build usher

package main

import "os"

func Pid() int { return os.Getpid() }

func Spin() {
	println("busygo spins")
	for {
	}
}
