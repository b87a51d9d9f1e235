// Scanning: one look at the workspace, which files in it are modules. It reads
// folders and .mcp.json files, starts nothing, and remembers nothing.

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
)

// entryKey identifies a module over time.
type entryKey struct{ source, name string }

// found is a module as it stands in the file tree.
type found struct {
	Name   string
	Kind   Kind
	Path   string // as found: the link where the file is one
	Source string // symlinks resolved
	Root   string // the hosted DIR that it was found below
	Launch launch // of a .mcp.json entry
	Stamp  string // changes when the file does
	Err    error  // why it can't be hosted
}

func (f found) key() entryKey { return entryKey{f.Source, f.Name} }

// Problem is something about a file that its author should know.
type Problem struct {
	Path string
	Text string
}

// look is one look at the workspace.
type look struct {
	root     string // the hosted DIR that is looked into
	seen     map[entryKey]bool
	found    []found
	problems []Problem
	broken   map[string]bool // .mcp.json files that can't be read just now
}

func newLook() *look {
	return &look{seen: make(map[entryKey]bool), broken: make(map[string]bool)}
}

// folder looks into dir and what is below it. Folders that are hidden, linked,
// or hold other people's code are left out.
func (s *look) folder(dir string) {
	list, err := os.ReadDir(dir)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			s.problem(dir, "the folder can't be read: "+reason(err))
		}
		return
	}
	for _, e := range list {
		name, path := e.Name(), filepath.Join(dir, e.Name())
		if e.IsDir() {
			if searchedFolder(name) {
				s.folder(path)
			}
			continue
		}
		if name == configName {
			s.config(path)
		} else if module, kind, ok := moduleFile(name); ok {
			s.file(path, module, kind)
		}
	}
}

// searchedFolder reports whether modules are looked for in a folder of this
// name.
func searchedFolder(name string) bool {
	return !strings.HasPrefix(name, ".") && name != "node_modules" && name != "vendor"
}

func (s *look) problem(path, text string) {
	s.problems = append(s.problems, Problem{path, text})
}

// file takes in a file that is a module by its name.
func (s *look) file(path, name string, kind Kind) {
	source, info, err := resolve(path)
	if err != nil {
		s.problem(path, reason(err))
		return
	}
	if info.IsDir() {
		return // a folder linked under a module's name
	}
	f := found{Name: name, Kind: kind, Path: path, Source: source, Root: s.root}
	f.Stamp = fmt.Sprint(info.Size(), info.ModTime().UnixNano(), info.Mode(), shims[kind].hash)
	f.Err = checkModuleName(name)
	if f.Err == nil && kind == kindExecutable && runtime.GOOS != "windows" && info.Mode()&0o111 == 0 {
		f.Err = fmt.Errorf("the file is not executable: chmod +x %s", filepath.Base(path))
	}
	s.add(f)
}

// config takes in the entries of a .mcp.json file.
func (s *look) config(path string) {
	source, _, err := resolve(path)
	if err != nil {
		s.problem(path, reason(err))
		return
	}
	raw, err := os.ReadFile(source)
	if err != nil {
		s.broken[source] = true
		s.problem(path, reason(err))
		return
	}
	entries, err := parseConfig(raw, filepath.Dir(source), os.LookupEnv)
	if err != nil {
		s.broken[source] = true
		s.problem(path, err.Error())
		return
	}
	for _, e := range entries {
		s.add(found{Name: e.Name, Kind: kindConfig, Path: path, Source: source, Root: s.root,
			Launch: e.Launch, Stamp: e.Launch.key(), Err: e.Err})
	}
}

// add keeps a module; one that is reached by several ways is one module.
func (s *look) add(f found) {
	if !s.seen[f.key()] {
		s.seen[f.key()] = true
		s.found = append(s.found, f)
	}
}

// resolve follows links to the file that is really there.
func resolve(path string) (string, fs.FileInfo, error) {
	info, err := os.Lstat(path)
	if err != nil || info.Mode()&fs.ModeSymlink == 0 {
		return path, info, err // its folders were walked, and so are no links
	}
	source, err := filepath.EvalSymlinks(path)
	if err != nil {
		return "", nil, err
	}
	info, err = os.Stat(source)
	return source, info, err
}

// has reports whether a module is still there. The entries of a .mcp.json file
// that is broken just now are: half an edit must not end them.
func (s *look) has(key entryKey) bool { return s.seen[key] || s.broken[key.source] }
