//go:build usher

// Keeps the shop's notes in notes.jsonl beside this file, one note per line.
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

var mu sync.Mutex // guards notesFile, as calls run concurrently

// Note is a stored note.
type Note struct {
	At   time.Time `json:"at"`
	Text string    `json:"text"`
	Tags []string  `json:"tags,omitempty"`
}

// AddParams contains the parameters of Add.
type AddParams struct {
	Text string   `json:"text"`           // what to remember
	Tags []string `json:"tags,omitempty"` // words to find it by
}

// Add stores a note.
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

// FindParams contains the parameters of Find. A note has to match all of them.
type FindParams struct {
	Words string `json:"words,omitempty"` // only notes that contain this text
	Tag   string `json:"tag,omitempty"`   // only notes with this tag
	Limit int    `json:"limit,omitempty"` // maximum number of notes; 20 if omitted
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
