//go:build usher

package main

import (
	"context"
	"embed"
	stdjson "encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"runtime"
	"strings"
	"time"

	"example.com/tree/internal/greet"
)

//go:embed static
var static embed.FS

var printed = func() bool { fmt.Println("set at init"); return true }()

type Server struct{}
type json struct{}

var reflect, os_, context_ = 1, 2, 3

func main_()              {}
func min(a, b int) int    { return a }
func max(a, b int) int    { return b }
func new() json           { return json{} }
func close()              {}
func delete()             {}
func clear()              {}
func copy()               {}
func print()              {}
func any(xs ...bool) bool { return false }
func init()               { fmt.Print("init without end of line") }

var waiting, met = make(chan bool), make(chan bool)
var cancelled = make(chan error, 9)

type Params struct {
	Name    string                 `json:"name"`
	Count   int8                   `json:"count,omitempty"`
	Big     stdjson.RawMessage     `json:"big,omitempty"`
	Loose   interface{}            `json:"loose,omitempty"`
	Long    int64                  `json:"long,omitempty"`
	Size    uint                   `json:"size,omitempty"`
	Tags    []string               `json:"tags,omitempty"`
	When    *time.Time             `json:"when"`
	Data    []byte                 `json:"data,omitempty"`
	Address *Address               `json:"address"`
	ByName  map[string]Address     `json:"byName,omitempty"`
	Webhook map[string]interface{} `json:"_webhook"`
}
type Address struct {
	City string    `json:"city"`
	Next []Address `json:"next,omitempty"`
}

func Echo(p *Params) (*Params, error) { return p, nil }
func EchoValue(p Params) Params       { return p }
func Greet() string                   { b, _ := static.ReadFile("static/a.txt"); return greet.Hello(string(b)) }
func Nothing()                        {}
func Nil() ([]string, error)          { return nil, nil }
func Null() *Params                   { return nil }
func Bytes() []byte                   { return []byte("hi") }
func Fail() (int, error)              { return 1, errors.New("no <way>") }
func Fine() error                     { return nil }
func ErrorValue() interface{}         { return fmt.Errorf("a value") }
func Panic()                          { panic("at the disco") }
func Goexit()                         { runtime.Goexit() }
func NaN() float64                    { return math.NaN() }
func Chan() interface{}               { return struct{ C chan int }{} }
func Print() string                   { fmt.Println("to stdout"); fmt.Fprintln(os.Stdout, "again"); return "printed" }
func Read() (string, error)           { b, err := io.ReadAll(os.Stdin); return "read " + string(b), err }
func Cycle() interface{} {
	m := map[string]interface{}{}
	m["m"] = m
	return m
}
func Large() string       { return strings.Repeat("x", 1<<20) }
func Length(p Params) int { return len(p.Name) }
func Meet() {
	select {
	case waiting <- true:
	case <-waiting:
	}
}
func Wait(ctx context.Context) error {
	met <- true
	<-ctx.Done()
	cancelled <- ctx.Err()
	return ctx.Err()
}
func Started()          { <-met }
func Cancelled() string { return (<-cancelled).Error() }

var late func(float64, float64, string)

func Progress(report func(progress, total float64, message string)) int {
	report(1, 2, "half <way>")
	report(2, 0, "")
	report(math.NaN(), 0, "")
	late = report
	return 3
}
func Late() { late(9, 9, "too late") }
