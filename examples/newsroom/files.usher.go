//go:build usher

// Looks at the files below this folder: how many, how big, of which kind.
package main

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// SurveyParams says which folder to look at.
type SurveyParams struct {
	Folder  string `json:"folder,omitempty"`  // below this module's folder; all of it if left out
	Largest int    `json:"largest,omitempty"` // how many of the largest files to name; 5 if left out
}

// File is a file and its size.
type File struct {
	Path  string `json:"path"`
	Bytes int64  `json:"bytes"`
}

// Survey counts files and bytes by file name extension, and names the largest.
// It reports progress as it goes.
//
// @readonly
func Survey(ctx context.Context, p SurveyParams, report func(progress, total float64, message string)) (map[string]any, error) {
	if p.Folder == "" {
		p.Folder = "."
	}
	if !filepath.IsLocal(p.Folder) {
		return nil, fmt.Errorf("folder %q: want one below this module's", p.Folder)
	}
	var files []File
	bytes := map[string]int64{}
	counts := map[string]int{}
	err := fs.WalkDir(os.DirFS(p.Folder), ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		kind := strings.ToLower(filepath.Ext(path))
		files = append(files, File{path, info.Size()})
		bytes[kind] += info.Size()
		if counts[kind]++; len(files)%1000 == 0 {
			report(float64(len(files)), 0, path)
		}
		return ctx.Err()
	})
	if err != nil {
		return nil, fmt.Errorf("looking at %s: %w", p.Folder, err)
	}
	report(float64(len(files)), float64(len(files)), "done")
	slices.SortFunc(files, func(a, b File) int { return int(b.Bytes - a.Bytes) })
	if p.Largest <= 0 {
		p.Largest = 5
	}
	return map[string]any{
		"files":   len(files),
		"byKind":  counts,
		"bytes":   bytes,
		"largest": files[:min(p.Largest, len(files))],
	}, nil
}
