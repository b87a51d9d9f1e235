package greet

import (
	"fmt"
	"log"
	"os"
)

var logger = log.New(os.Stdout, "kept ", 0)

func init() { fmt.Println("greet init") }

func Hello(s string) string {
	logger.Print("hello")
	return "hello " + s
}
