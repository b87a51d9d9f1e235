//go:build usher

// Reads news feeds, RSS or Atom, from files in this folder.
package main

import (
	"encoding/xml"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// feed is what RSS and Atom have in common.
type feed struct {
	Title   string `xml:"title"`
	Entries []item `xml:"entry"` // Atom
	Channel struct {
		Title string `xml:"title"`
		Items []item `xml:"item"`
	} `xml:"channel"` // RSS
}

type item struct {
	Title   string `xml:"title"`
	Summary string `xml:"summary"`
	About   string `xml:"description"`
	Updated string `xml:"updated"`
	PubDate string `xml:"pubDate"`
}

// HeadlinesParams says which feed to read, and how much of it.
type HeadlinesParams struct {
	File  string `json:"file,omitempty"`  // a file of this folder; feed.xml if left out
	Limit int    `json:"limit,omitempty"` // at most so many headlines; all if left out
}

// Headline is one piece of news.
type Headline struct {
	Title string `json:"title"`
	When  string `json:"when"`
	Text  string `json:"text,omitempty"`
}

// Headlines lists what is in a feed, in the feed's own order.
//
// @readonly
func Headlines(p HeadlinesParams) (map[string]any, error) {
	f, err := read(p.File)
	if err != nil {
		return nil, err
	}
	title, items := f.Title, f.Entries
	if len(f.Channel.Items) > 0 {
		title, items = f.Channel.Title, f.Channel.Items
	}
	if p.Limit > 0 && p.Limit < len(items) {
		items = items[:p.Limit]
	}
	list := []Headline{}
	for _, i := range items {
		list = append(list, Headline{plain(i.Title), i.Updated + i.PubDate, plain(i.Summary + i.About)})
	}
	return map[string]any{"feed": plain(title), "headlines": list}, nil
}

func read(name string) (*feed, error) {
	if name == "" {
		name = "feed.xml"
	}
	if !filepath.IsLocal(name) {
		return nil, errors.New("file: want one of this folder")
	}
	raw, err := os.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("reading the feed: %w", err)
	}
	f := &feed{}
	if err := xml.Unmarshal(raw, f); err != nil {
		return nil, fmt.Errorf("%s is no feed: %w", name, err)
	}
	return f, nil
}

// plain is a text on one line, cut after about 30 words.
func plain(s string) string {
	words := strings.Fields(s)
	if len(words) > 30 {
		words = append(words[:30], "…")
	}
	return strings.Join(words, " ")
}
