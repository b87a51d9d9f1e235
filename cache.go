// The cache: what modules were found to offer, remembered between starts, so
// that a start with a thousand known modules starts no process. All of it may
// be deleted at any time.

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
)

// cached is a module's entry in the cache.
type cached struct {
	Usher  string `json:"usher"` // the version that wrote it
	Source string `json:"source"`
	Name   string `json:"name"`
	Stamp  string `json:"stamp"`
	Offer  offer  `json:"offer"`
}

// cacheFormat is to be raised when what is cached changes its meaning.
const cacheFormat = 4

func cacheVersion() string { return fmt.Sprintf("%s/%d", version(), cacheFormat) }

func (r *Registry) cachePath(f found) string {
	return filepath.Join(r.CacheDir, "modules", hashOf(f.Source, f.Name)+".json")
}

// loadCache returns what is remembered of a module, of whatever version.
func (r *Registry) loadCache(f found) *cached {
	raw, err := os.ReadFile(r.cachePath(f))
	if err != nil {
		return nil
	}
	c := &cached{}
	if json.Unmarshal(raw, c) != nil || c.Usher != cacheVersion() || c.Source != f.Source || c.Name != f.Name {
		return nil
	}
	return c
}

// readCache returns what is remembered of a module, if that still holds. It
// starts no process.
func (r *Registry) readCache(f found) *cached {
	c := r.loadCache(f)
	if c == nil || c.Stamp != f.Stamp {
		return nil
	}
	return c
}

// writeCache remembers an entry. A cache that can't be written costs time at
// the next start and nothing else.
func (r *Registry) writeCache(e *entry) {
	c := cached{Usher: cacheVersion(), Source: e.found.Source, Name: e.found.Name, Stamp: e.found.Stamp,
		Offer: *e.offer}
	if err := replaceFile(r.cachePath(e.found), marshal(c)); err != nil {
		r.Log.Warn("writing the cache", "err", err)
	}
}
