//go:build usher

// Keeps the shop's notes, one a line, in notes.jsonl beside this file.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

const notesFile = "notes.jsonl" // a module runs in its own folder

var mu sync.Mutex // calls run side by side; the file is one

// Note is a note as it is kept.
type Note struct {
	At   time.Time `json:"at"`
	Text string    `json:"text"`
	Tags []string  `json:"tags,omitempty"`
}

// AddParams is what a new note is made of.
type AddParams struct {
	Text string   `json:"text"`           // what to remember
	Tags []string `json:"tags,omitempty"` // words to find it by
}

// Add writes a note down.
func Add(p AddParams) (Note, error) {
	if strings.TrimSpace(p.Text) == "" {
		return Note{}, errors.New("the note is empty")
	}
	mu.Lock()
	defer mu.Unlock()
	f, err := os.OpenFile(notesFile, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return Note{}, fmt.Errorf("opening the notes: %w", err)
	}
	defer f.Close()
	note := Note{At: time.Now().UTC().Truncate(time.Second), Text: p.Text, Tags: p.Tags}
	return note, json.NewEncoder(f).Encode(note)
}

// FindParams says which notes are looked for.
type FindParams struct {
	Words string `json:"words,omitempty"` // only notes that have this text in them
	Tag   string `json:"tag,omitempty"`   // only notes with this tag
	Limit int    `json:"limit,omitempty"` // at most so many; 20 if left out
}

// Find returns notes, newest first.
//
// @readonly
func Find(p FindParams) ([]Note, error) {
	notes, err := load()
	if err != nil {
		return nil, err
	}
	slices.Reverse(notes)
	words := strings.ToLower(p.Words)
	found := slices.DeleteFunc(notes, func(n Note) bool {
		return !strings.Contains(strings.ToLower(n.Text), words) || p.Tag != "" && !slices.Contains(n.Tags, p.Tag)
	})
	if p.Limit <= 0 {
		p.Limit = 20
	}
	return found[:min(p.Limit, len(found))], nil
}

func load() ([]Note, error) {
	mu.Lock()
	defer mu.Unlock()
	f, err := os.Open(notesFile)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("opening the notes: %w", err)
	}
	defer f.Close()
	notes := []Note{}
	lines := bufio.NewScanner(f)
	for n := 1; lines.Scan(); n++ {
		var note Note
		if err := json.Unmarshal(lines.Bytes(), &note); err != nil {
			return nil, fmt.Errorf("%s, line %d: %w", notesFile, n, err)
		}
		notes = append(notes, note)
	}
	return notes, lines.Err()
}
