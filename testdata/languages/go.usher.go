//go:build usher

package main

import (
	"errors"
	"time"
)

// Contact is what the form sends.
type Contact struct {
	Email   string `json:"email"`            // where to answer
	Message string `json:"message"`          // what it is about
	Copies  int    `json:"copies,omitempty"` // how many to send
	Request *struct {
		Timestamp int64 `json:"timestamp"`
	} `json:"_webhook"`
}

// HandleContact takes a contact form.
func HandleContact(p Contact) (map[string]any, error) {
	if p.Request != nil && time.Now().UnixMilli()-p.Request.Timestamp > 60_000 {
		return nil, errors.New("the request is too old")
	}
	return map[string]any{"copies": max(p.Copies, 1), "thanks": p.Email}, nil
}

// Pause takes a second.
func Pause() string {
	time.Sleep(time.Second)
	return "done"
}
