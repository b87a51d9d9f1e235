//go:build usher

package main

import (
	"encoding/json"
	"errors"
)

type params struct {
	Name string          `json:"name"`
	N    int             `json:"n,omitempty"`
	Hook json.RawMessage `json:"_webhook,omitempty"`
}

// HandleIt takes it.
func HandleIt(p params) params { return p }

type hook struct {
	Hook struct {
		Method string `json:"method"`
	} `json:"_webhook"`
}

// Other takes it too.
//
// @webhook any/path
func Other(p hook) any {
	return map[string]any{"_response": map[string]any{"status": 201, "body": p.Hook.Method}}
}

// @signature github WH_KEY_SIGNING_SECRET
func HandleSigned() int { return 1 }

// HandleFail fails.
func HandleFail() error { return errors.New("no more") }
