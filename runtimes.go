// Runtimes. This file decides which files of the workspace are modules and of which kind,
// reads .mcp.json files, and returns the command that runs a module of each kind. It
// starts nothing, and keeps nothing from one scan to the next.

package main

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
)

// runtimeFiles are the shims and starters of the languages.
//
//go:embed runtimes
var runtimeFiles embed.FS

// Kind is the kind of a module.
type Kind string

const (
	kindGo         Kind = "go"         // NAME.usher.go, built by the go command
	kindPython     Kind = "python"     // NAME.usher.py, run by our shim
	kindNode       Kind = "node"       // NAME.usher.js .mjs .ts .mts, run by our shim
	kindShell      Kind = "shell"      // NAME.usher.sh, run by the shell, one process per call
	kindExecutable Kind = "executable" // NAME.usher, any program that speaks MCP
	kindConfig     Kind = ".mcp.json"  // an entry of mcpServers in a file of this name
)

// singleFile reports whether usher's own program runs the module's one source file. Then the
// schemas of its methods are known well enough to check calls.
func (k Kind) singleFile() bool { return k != kindExecutable && k != kindConfig }

// moduleEndings maps the end of a file's name after ".usher" to the module's kind.
var moduleEndings = map[string]Kind{
	"":     kindExecutable,
	".go":  kindGo,
	".py":  kindPython,
	".sh":  kindShell,
	".js":  kindNode,
	".mjs": kindNode,
	".ts":  kindNode,
	".mts": kindNode,
}

var moduleName = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_-]{0,63}$`)

// checkModuleName returns an error if a name can't be part of a tool's name.
func checkModuleName(name string) error {
	if moduleName.MatchString(name) {
		return nil
	}
	return fmt.Errorf("module name %q: want 1 to 64 of A-Z a-z 0-9 _ -, the first not -", name)
}

// moduleFile reports whether a file with this name is a module, and the module's name and
// kind. A .mcp.json file can be several modules, and has no name of its own.
func moduleFile(base string) (name string, kind Kind, ok bool) {
	if base == string(kindConfig) {
		return "", kindConfig, true
	}
	name, ending, found := strings.Cut(base, ".usher")
	kind, known := moduleEndings[ending]
	return name, kind, name != "" && found && known
}

// launch describes how to start a module's process.
type launch struct {
	Path string   // the program: a path, or a name to look up in PATH (see resolve)
	Args []string // without the program itself
	Dir  string   // working directory
	Env  []string // NAME=value, added to the daemon's

	Shared bool // one process serves all callers
}

// command returns how to start the module in a file of any kind but shell: see resolve. It writes the
// shim of the language to cacheDir, unless it is there.
func (s source) command(cacheDir string) (l launch, err error) {
	l = s.Launch
	var shim string
	switch s.Kind {
	case kindPython:
		shim, err = placeShim("shim.py", cacheDir)
		l.Args = []string{"-B", "-u", shim, s.Source} // -B: it writes nothing beside the module
	case kindNode:
		shim, err = placeShim("shim.mjs", cacheDir)
		l.Path = "node"
		l.Args = []string{"--no-warnings", shim, s.Source}
	}
	if err != nil {
		return l, err
	}
	return l.resolve()
}

// parts are the files that a module has loaded.
type parts struct {
	Paths   []string // a folder stands for the source files of a Go package
	Version string   // of the files, from before they were loaded
	Binary  string   // the program that was built from them; "" for none
}

// newParts returns parts with the version that they have now.
func newParts(paths []string) *parts {
	return &parts{Paths: paths, Version: partsVersion(paths)}
}

// changed reports whether one of the files has changed since it was loaded.
func (p parts) changed() bool { return len(p.Paths) > 0 && p.Version != partsVersion(p.Paths) }

// goPackageFile matches the names of the files that make up a Go package.
var goPackageFile = regexp.MustCompile(`\.(go|c|cc|cpp|h|s|S)$`)

// partsVersion returns a text that changes when one of the files does.
func partsVersion(paths []string) string {
	var version strings.Builder
	for _, path := range paths {
		info, err := os.Stat(path)
		if err == nil && !info.IsDir() {
			fmt.Fprintln(&version, path, fileVersion(info))
			continue
		}
		files, _ := os.ReadDir(path)
		for _, file := range files {
			if info, err := file.Info(); err == nil && goPackageFile.MatchString(file.Name()) {
				fmt.Fprintln(&version, file.Name(), fileVersion(info))
			}
		}
	}
	return hashOf(version.String())
}

// pythonFor returns the Python that runs a module in dir: that of the nearest virtual environment,
// from dir up to the outermost of served, or else a name to look up in PATH. Of an environment,
// pythonFor also returns the real paths of this Python and of pyvenv.cfg.
func pythonFor(dir string, served []string) (python string, files []string) {
	venv := filepath.Join(dir, ".venv")
	python = filepath.Join(venv, "bin", "python")
	if _, err := os.Stat(python); err == nil {
		for _, path := range []string{python, filepath.Join(venv, "pyvenv.cfg")} {
			if file, err := filepath.EvalSymlinks(path); err == nil {
				files = append(files, file)
			}
		}
		return python, files
	}
	above := filepath.Dir(dir)
	if above != dir && isBelow(above, served) {
		return pythonFor(above, served)
	}
	return "python3", nil
}

// placeShim writes the program that runs a language's files to a file that an interpreter
// can read, unless the file contains it. The file's name contains a hash of the program.
func placeShim(name, cacheDir string) (string, error) {
	text, _ := runtimeFiles.ReadFile("runtimes/" + name) // it is embedded
	path := filepath.Join(cacheDir, hashOf(string(text))+"-"+name)
	if placed, err := os.ReadFile(path); err == nil && bytes.Equal(placed, text) {
		return path, nil
	}
	return path, writeFile(path, text, 0, 0o600)
}

// webhookSecretVar names the variable with the secret of all webhooks.
const webhookSecretVar = "SERVICE_WEBHOOK_SECRET"

// nestedVar names the variable with the source files of the modules that this process
// runs inside of, one per line. Without it, a module that starts usher on its own folder
// would start itself again and again.
const nestedVar = "USHER_INSIDE"

// claimVar is the environment variable with the code of usher call -url.
const claimVar = "USHER_CLAIM"

// isSecretVariable reports whether an environment variable is a secret of usher, by its name. No
// module gets such a variable.
func isSecretVariable(name string) bool {
	return strings.EqualFold(name, claimVar) || keyVariable.MatchString(name)
}

// keyVariable matches the names of environment variables that are secrets of webhooks. Only such a
// variable can be the key of a @signature.
var keyVariable = regexp.MustCompile("(?i)_(WEBHOOK|SIGNING)_SECRET$")

// realPaths returns paths with symlinks resolved. One that can't be resolved at the moment stays.
func realPaths(paths ...string) (list []string) {
	for _, path := range paths {
		if target, err := filepath.EvalSymlinks(path); err == nil {
			path = target
		}
		list = append(list, path)
	}
	return list
}

// isBelow reports whether a path is one of folders or below one.
func isBelow(path string, folders []string) bool {
	return slices.ContainsFunc(folders, func(folder string) bool { return scopeDir(folder).Contains(path) })
}

// configModules reads the text of a .mcp.json file. It returns the entries, each with how to start
// it or why it can't be started, and otherwise like file. The error means that the whole file is
// invalid.
func configModules(raw []byte, file source) ([]source, error) {
	raw = bytes.TrimPrefix(raw, []byte("\ufeff"))
	if err := checkJSON(raw, "the file"); err != nil {
		return nil, fmt.Errorf("%w (want UTF-8, no comments, no comma at the end)", err)
	}
	servers := members(raw).object("mcpServers")
	if servers == nil {
		return nil, errors.New(
			`no "mcpServers" (not "servers"): want {"mcpServers": {"NAME": {"command": "…"}}}`,
		)
	}
	var list []source
	for _, server := range servers {
		entry := members(server.value)
		if isTrue(entry.get("disabled")) || string(entry.get("enabled")) == "false" {
			continue
		}
		s := file
		s.Name = server.key
		s.Content = fmt.Sprintf("%x", sha256.Sum256(oneLine(server.value)))
		s.Invalid = checkModuleName(server.key)
		if s.Invalid == nil {
			s.Invalid = s.readEntry(entry)
		}
		s.Version = hashOf(string(marshal(s.Launch)), s.Content, s.Source)
		list = append(list, s)
	}
	return list, nil
}

// readEntry reads the fields of a .mcp.json entry. It returns the first error.
func (s *source) readEntry(entry object) error {
	l := &s.Launch
	var env map[string]string
	known := map[string]any{
		"command":  &l.Path,
		"args":     &l.Args,
		"env":      &env,
		"cwd":      &l.Dir,
		"shared":   &l.Shared,
		"disabled": new(bool),
		"enabled":  new(bool),
		"type":     nil, // "stdio", if there is a command
		"url":      nil, // of a remote server, which usher does not host
	}
	for _, f := range entry {
		into, ok := known[f.key]
		if !ok {
			s.Notes = append(s.Notes, fmt.Sprintf("unknown field %q is ignored", f.key))
			continue
		}
		if m := unexpanded.FindStringSubmatch(string(f.value)); m != nil {
			const advice = "%q: write ${%s}: usher expands neither ~ nor $%[2]s"
			problem := fmt.Sprintf(advice, f.key, cmp.Or(m[1], "HOME"))
			if f.key == "command" || f.key == "cwd" {
				return errors.New(problem)
			}
			s.Notes = append(s.Notes, problem)
		}
		text, err := expandVariables(string(f.value))
		if err != nil {
			return err
		}
		bad, wrongType := errors.AsType[*json.UnmarshalTypeError](json.Unmarshal([]byte(text), into))
		if wrongType {
			return fmt.Errorf("%q: want %v, got %s", f.key, bad.Type, bad.Value)
		}
	}
	for _, name := range sortedKeys(env) {
		l.Env = append(l.Env, name+"="+env[name])
	}
	if !filepath.IsAbs(l.Dir) {
		l.Dir = filepath.Join(filepath.Dir(s.Source), l.Dir)
	}
	if l.Path == "" {
		return errors.New(`no "command": for a server at a "url", ` +
			`use "command": "npx", "args": ["-y", "mcp-remote", URL]`)
	}
	return nil
}

// resolve returns l with the path of its program. A relative path starts at the working directory,
// and a name is looked up in PATH: that of the entry's own environment, if it sets one. errText leaves
// the path out of the error.
func (l launch) resolve() (launch, error) {
	if _, err := os.Stat(l.Dir); err != nil {
		return l, &fs.PathError{Op: "running in", Path: l.Dir, Err: errors.Unwrap(err)}
	}
	folders := filepath.SplitList(os.Getenv("PATH"))
	for _, variable := range l.Env {
		if own, ok := strings.CutPrefix(variable, "PATH="); ok {
			folders = filepath.SplitList(own)
		}
	}
	if filepath.Base(l.Path) != l.Path {
		folders = []string{"/"}
		if !filepath.IsAbs(l.Path) {
			l.Path = filepath.Join(l.Dir, l.Path)
		}
	}
	for _, folder := range folders {
		if path, err := exec.LookPath(filepath.Join(folder, l.Path)); err == nil {
			l.Path = path
			return l, nil
		}
	}
	missing := errors.New("the program is missing, or not executable")
	return l, &fs.PathError{Op: "running", Path: l.Path, Err: missing}
}

// unexpanded matches ~ or $NAME at the beginning of a JSON string, and $NAME inside it, if / or the end
// of the string follows: a shell would expand these. It ignores $NAME behind a space, as in a script.
var unexpanded = regexp.MustCompile(`"(?:~|[^"\s]*\$([A-Z][A-Z0-9_]*))[/"]`)

// variable matches ${VAR}, ${env:VAR} and ${VAR:-default} in JSON, and ${input:x}, which a
// client would ask its user for.
var variable = regexp.MustCompile(
	`\$\{(?:env:)?(input:[^}"]*|[A-Za-z_][A-Za-z0-9_]*)(:-(?:[^}"\\]|\\.)*)?\}`)

// expandVariables replaces ${VAR}, ${env:VAR} and ${VAR:-default} in the strings of valid
// JSON.
func expandVariables(raw string) (out string, err error) {
	out = variable.ReplaceAllStringFunc(raw, func(reference string) string {
		match := variable.FindStringSubmatch(reference)
		name := match[1]
		fallback := match[2]
		value, set := os.LookupEnv(name)
		switch {
		case isSecretVariable(name):
			err = fmt.Errorf("${%s}: secrets of usher never reach modules", name)
		case value == "" && fallback != "":
			return fallback[len(":-"):]
		case !set:
			err = fmt.Errorf("${%s} is not set: set it, or write ${NAME:-value}", name)
		}
		inString := quote(value)
		return string(inString[1 : len(inString)-1])
	})
	return out, err
}

// source is a file, or an entry of a .mcp.json file, that may be a module, as a scan finds it.
type source struct {
	Name    string // "" for a file or folder that can't be read
	Kind    Kind
	Path    string // below Root; it may be a link
	Source  string // symlinks resolved
	Root    string // the hosted DIR that it was found below, as its owner gave it
	Launch  launch // how to start it, but see command and moduleOwner.launch
	Notes   []string
	Invalid error // why it can't be hosted, or is not approved

	Python  []string // files of the environment of a Python module: see pythonFor
	Version string   // changes with the file or entry, with Launch and with Python
	Content string   // what an approval covers (see readContent); "" if it is not known
}

// key identifies a module over time, also if its path is a link that is turned.
func (s source) key() string { return s.Path + "#" + s.Name }

// file returns the path below the hosted DIR, for the log.
func (s source) file() string {
	path, _ := filepath.Rel(s.Root, s.Path) // it is below
	return path
}

// isBelow reports whether the module's path or its file is in a folder, which may be a link, or below
// it.
func (s source) isBelow(folder string) bool {
	return isBelow(s.Path, []string{folder}) || isBelow(s.Source, realPaths(folder))
}

// readContent sets Content, unless it is set, to the SHA-256 of the file. For a module that
// runs in a virtual environment, it adds the paths and the SHA-256 of the environment's Python
// and of pyvenv.cfg. It leaves out the SHA-256 of a Python that is not below served, the hosted DIRs,
// because updates of the system change it.
func (s *source) readContent(served []string) error {
	if s.Content != "" {
		return nil
	}
	_, content, err := readSource(s.Source, s.Kind)
	for i, file := range s.Python {
		hash := ""
		if err == nil && (i > 0 || isBelow(file, served)) {
			_, hash, err = readSource(file, kindExecutable)
		}
		content += fmt.Sprintf(" %q %s", file, hash)
	}
	if err == nil {
		s.Content = content
	}
	return err
}

// scan is one scan of the workspace. If somebody replaces a folder by a link during the
// scan, a path may lead to another file than the one found. readSource, which reads all
// files, refuses such a path.
type scan struct {
	sources    map[string]source // by source.key
	targets    map[string]bool   // of sources: their files, symlinks resolved, with their names
	files      map[string]string // the versions of the files, by source.Path
	unreadable []string          // paths of files and folders
	links      []source          // with the name of a module
	served     []string          // the real hosted DIRs, up to which folders can have a virtual environment
}

// newScan returns a scan that has found nothing. served contains hosted DIRs that may be above roots.
func newScan(roots, served []string) *scan {
	return &scan{
		served:  realPaths(slices.Concat(roots, served)...),
		sources: make(map[string]source),
		targets: make(map[string]bool),
		files:   make(map[string]string),
	}
}

// scanFolders searches folders, and the folders below them, for modules: see newScan.
func scanFolders(roots, served []string) *scan {
	s := newScan(roots, served)
	for _, root := range roots {
		s.folder(source{Root: root, Path: root})
	}
	// Links come last: a file is one module, under its own path if that was found, and a link to it must
	// not take its place.
	for _, link := range s.links {
		s.file(link)
	}
	return s
}

// folder searches a folder, and the folders below it. folder has a Path and a Root.
func (s *scan) folder(folder source) {
	list, err := os.ReadDir(folder.Path)
	if err != nil {
		s.fail(folder, err)
		return
	}
	for _, entry := range list {
		name, kind, isModule := moduleFile(entry.Name())
		found := source{
			Name: name,
			Kind: kind,
			Path: filepath.Join(folder.Path, entry.Name()),
			Root: folder.Root,
		}
		switch {
		case entry.IsDir():
			if !unsearched.MatchString(entry.Name() + "/") {
				s.folder(found)
			}
		case isModule && entry.Type() == fs.ModeSymlink:
			s.links = append(s.links, found)
		case isModule:
			s.file(found)
		}
	}
}

// unsearched matches a path through a folder that is not searched.
var unsearched = regexp.MustCompile(`(^|/)(\.[^/]*|node_modules|vendor)/`)

// isSearched reports whether scans of roots search the folder of a file.
func isSearched(path string, roots []string) bool {
	return slices.ContainsFunc(roots, func(root string) bool {
		below, err := filepath.Rel(root, path) // begins with ../ if it is not below
		return err == nil && !unsearched.MatchString(below)
	})
}

// errMoved reports that a file is not where it was found. Often, it is just being replaced.
var errMoved error = httpErrorf(http.StatusServiceUnavailable,
	"its file is being moved or replaced: try again")

// fail adds a file or folder that can't be read, as a module without a name. scan.has
// treats the failure as temporary, unless the path does not exist.
func (s *scan) fail(found source, err error) {
	s.add(source{
		Path:    found.Path,
		Source:  found.Path,
		Root:    found.Root,
		Invalid: errors.New(errText(err)),
	})
	if !errors.Is(err, fs.ErrNotExist) && err != errMoved {
		s.unreadable = append(s.unreadable, found.Path)
	}
}

// file adds a file with the name of a module, or the entries of a .mcp.json file. found has a Name,
// Kind, Path and Root.
func (s *scan) file(found source) {
	target, err := filepath.EvalSymlinks(found.Path)
	var info fs.FileInfo
	if err == nil {
		info, err = os.Lstat(target)
	}
	if err != nil {
		s.fail(found, err)
		return
	}
	found.Source = target
	found.Version = fileVersion(info)
	s.files[found.Path] = found.Version
	found.Invalid = checkFile(info, found.Kind)
	switch {
	case found.Kind != kindConfig:
		found.Invalid = cmp.Or(checkModuleName(found.Name), found.Invalid)
		found.Launch = launch{Path: target, Dir: filepath.Dir(target)}
		if found.Kind == kindPython {
			found.Launch.Path, found.Python = pythonFor(found.Launch.Dir, s.served)
		}
		found.Version += target + found.Launch.Path + partsVersion(found.Python)
		s.add(found)
	case found.Invalid != nil:
		s.fail(found, found.Invalid)
	default:
		raw, _, err := readSource(target, kindConfig)
		list, wrong := configModules(raw, found)
		if err := cmp.Or(err, wrong); err != nil { // perhaps it is half written: its entries stay
			s.fail(found, err)
		}
		for _, entry := range list {
			s.add(entry)
		}
	}
}

// fileVersion returns a text that changes when a file does.
func fileVersion(info fs.FileInfo) string {
	return fmt.Sprint(info.Size(), info.ModTime().UnixNano(), uint32(info.Mode()))
}

// checkFile returns an error if a file can't be a module of a kind.
func checkFile(info fs.FileInfo, kind Kind) error {
	limit := int64(maxSource)
	if kind == kindExecutable {
		limit = maxExecutable
	}
	switch {
	case !info.Mode().IsRegular():
		return errors.New("it is not a regular file")
	case info.Size() > limit:
		return fmt.Errorf("it is larger than %s", formatSize(limit))
	case kind == kindExecutable && info.Mode()&0o111 == 0:
		return fmt.Errorf("the file is not executable: chmod +x %s", info.Name())
	}
	return nil
}

// readSource reads a module's file, unless it is no longer where it was found, and returns
// its text with a hash. The text of an executable is nil. readSource checks the path of the
// opened file itself, so that replacing a folder by a link gains nothing; on systems that
// can't report it, it resolves the path again after opening. To open a pipe does not block.
func readSource(source string, kind Kind) (text []byte, hash string, err error) {
	f, err := os.OpenFile(source, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, "", err
	}
	defer f.Close()
	path, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
	if err != nil {
		path, _ = filepath.EvalSymlinks(source) // "" after an error
	}
	info, err := f.Stat()
	if err != nil || path != source || !info.Mode().IsRegular() {
		return nil, "", errMoved
	}
	sum := sha256.New()
	if kind == kindExecutable {
		_, err = io.Copy(sum, io.LimitReader(f, maxExecutable))
	} else {
		text, err = io.ReadAll(io.TeeReader(io.LimitReader(f, maxSource), sum))
	}
	return text, fmt.Sprintf("%x", sum.Sum(nil)), err
}

// add adds a source. A source that is found in several ways is added once.
func (s *scan) add(found source) {
	file := found.Source + "#" + found.Name
	if _, known := s.sources[found.key()]; !known && !s.targets[file] {
		s.sources[found.key()] = found
		s.targets[file] = true
	}
}

// has reports whether the scan found a source, or could not tell because its file or
// folder can't be read at the moment.
func (s *scan) has(found source) bool {
	_, known := s.sources[found.key()]
	return known || isBelow(found.Path, s.unreadable)
}
