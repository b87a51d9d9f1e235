//go:build usher

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sync"
)

type Item struct {
	Item struct {
		Ask    string          `json:"ask"`
		Params json.RawMessage `json:"params,omitempty"`
	} `json:"item"`
}
type asker func(method string, params any) (json.RawMessage, error)

func Ask(p Item, ask asker) (json.RawMessage, error) { return ask(p.Item.Ask, p.Item.Params) }
func Ask_async(ctx context.Context, p *Item, report func(progress, total float64, message string),
	ask func(string, interface{}) (json.RawMessage, error)) (map[string]any, error) {
	answer, err := ask(p.Item.Ask, p.Item.Params)
	return map[string]any{"answer": answer}, err
}
func Careful(p Item, ask asker) (string, error) {
	if _, err := ask(p.Item.Ask, p.Item.Params); err != nil {
		var again struct{ Text string }
		answer, _ := ask("again", nil)
		json.Unmarshal(answer, &again)
		return fmt.Sprintf("%v, then %s", err, again.Text), nil
	}
	return "", nil
}
func Careful_async(p Item, ask asker) (string, error)  { return Careful(p, ask) }
func Twice_async(ask asker) ([]json.RawMessage, error) { return Twice(ask) }
func Twice(ask asker) ([]json.RawMessage, error) {
	first, _ := ask("first", struct{}{})
	second, err := ask("second", map[string]any(nil))
	return []json.RawMessage{first, nil, second}, err
}

var mu sync.Mutex
var events = []string{}

func Wait(ask asker) error       { return wait("", ask) }
func Wait_async(ask asker) error { return wait("async ", ask) }
func wait(kind string, ask asker) error {
	_, err := ask("roots/list", nil)
	mu.Lock()
	events = append(events, kind+err.Error())
	mu.Unlock()
	fmt.Fprintln(os.Stderr, "cleaned up")
	return err
}
func Seen() []string {
	mu.Lock()
	defer mu.Unlock()
	return events
}
func Unwritable(ask asker) error { _, err := ask("x", make(chan int)); return err }

var late asker

func Keep(ask asker) { late = ask }
func Late() error    { _, err := late("late", nil); return err }
