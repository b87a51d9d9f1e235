//go:build usher

package main

import "fmt"

func F() {
	fmt.Println("printed")
	g()
}

func g() { panic("no") }
