// Runtimes: which files of the workspace are modules and of which kind, what a
// .mcp.json file says, and which command runs a module of each kind. This file
// reads folders and .mcp.json files. It starts nothing, remembers nothing from
// one scan to the next, and knows no worker.

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
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
)

// runtimeFiles are the shims and starters of the languages.
//
//go:embed runtimes
var runtimeFiles embed.FS

// Kind is what a module is made of.
type Kind string

const (
	kindGo         Kind = "go"         // NAME.usher.go, built by the go command
	kindPython     Kind = "python"     // NAME.usher.py, run by our shim
	kindNode       Kind = "node"       // NAME.usher.js .mjs .ts .mts, run by our shim
	kindShell      Kind = "shell"      // NAME.usher.sh, a process a call
	kindExecutable Kind = "executable" // NAME.usher, any program that speaks MCP
	kindConfig     Kind = ".mcp.json"  // an entry of a .mcp.json file
)

// singleFile reports whether usher itself made the program that runs the
// module's one source file. What its methods take is then known well enough to
// check calls against it.
func (k Kind) singleFile() bool { return k != kindExecutable && k != kindConfig }

// docRules says how the documentation of such a module's methods is read. Only
// who writes for usher means a webhook by a name that begins with "handle". In
// languages without types the documentation may name parameters that the code
// does not declare.
func (k Kind) docRules() docRules {
	return docRules{Hooks: k != kindConfig, Tags: k.singleFile(), Undeclared: k == kindNode || k == kindShell}
}

// moduleEndings are the kinds of single files, by what follows ".usher".
var moduleEndings = map[string]Kind{
	"": kindExecutable, ".go": kindGo, ".py": kindPython, ".sh": kindShell,
	".js": kindNode, ".mjs": kindNode, ".ts": kindNode, ".mts": kindNode,
}

// configName is the file whose mcpServers entries are modules.
const configName = ".mcp.json"

var moduleName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// checkModuleName refuses names that could not stand in a tool's name.
func checkModuleName(name string) error {
	if moduleName.MatchString(name) {
		return nil
	}
	return fmt.Errorf("module name %q: want 1 to 64 of A-Z a-z 0-9 _ -, so rename it", name)
}

// methodRules say what a method is, by the kind of the module's file.
var methodRules = map[Kind]string{
	kindGo:     "a method is an exported function, such as func Greet(p struct{ Name string }) string",
	kindPython: "a method is a public function, whose name does not begin with _, at the top level of the file",
	kindNode:   "a method is an exported function, or one of a class that is the default export",
	kindShell:  "a method is a function with a comment on the lines right above it",
}

// moduleFile tells by its name whether a file is a module, or a .mcp.json file,
// which is any number of modules and has no name as one.
func moduleFile(base string) (name string, kind Kind, ok bool) {
	if base == configName {
		return "", kindConfig, true
	}
	name, ending, found := strings.Cut(base, ".usher")
	kind, known := moduleEndings[ending]
	return name, kind, found && known
}

// launch says how a module's process is started.
type launch struct {
	Path string   // the program, absolute or found through PATH
	Args []string // without the program itself
	Dir  string   // working directory
	Env  []string // added to the daemon's own, as KEY=value

	Shared bool   // all callers are served by one process
	Input  []byte // that its stdin begins with
}

// shellCommand is the first argument that makes a process the MCP server of a
// shell module. It is not among the commands of a user.
const shellCommand = "__shell"

// launchFile is how the module of a kind in a single file is started, but for a
// Go module, which is built first. A shim is put into cacheDir if need be.
func launchFile(kind Kind, source, cacheDir string) (launch, error) {
	l := launch{Path: source, Dir: filepath.Dir(source)}
	var shim string
	var err error
	switch kind {
	case kindPython:
		shim, err = placeShim("shim.py", cacheDir)
		l.Path, l.Args = pythonFor(l.Dir), []string{"-B", "-u", shim, source} // -B: it writes nothing beside the module
	case kindNode:
		shim, err = placeShim("shim.mjs", cacheDir)
		l.Path, l.Args = "node", []string{"--no-warnings", shim, source}
	case kindShell:
		l.Path, err = os.Executable()
		l.Args = []string{shellCommand, source}
	}
	return l, err
}

// pythonFor is the Python that runs a module in dir: that of its own virtual
// environment, if there is one.
func pythonFor(dir string) string {
	own, plain := filepath.Join(dir, ".venv", "bin", "python"), "python3"
	if runtime.GOOS == "windows" {
		own, plain = filepath.Join(dir, ".venv", "Scripts", "python.exe"), "python"
	}
	if _, err := os.Stat(own); err == nil {
		return own
	}
	return plain
}

// placeShim puts the program that runs a language's files where an interpreter
// can read it, under a name that tells its content.
func placeShim(name, cacheDir string) (string, error) {
	text, _ := runtimeFiles.ReadFile("runtimes/" + name) // it is there
	path := filepath.Join(cacheDir, hashOf(string(text))+"-"+name)
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	return path, replaceFile(path, text)
}

// webhookSecretVar names the variable that guards the webhooks.
const webhookSecretVar = "SERVICE_WEBHOOK_SECRET"

// nestedVar carries the source files of the modules that this process runs
// inside of, so that a module that starts usher on its own folder, which would
// start it again, without end, is refused.
const nestedVar = "USHER_INSIDE"

// workerEnv is the environment of a process of the module at source: the
// daemon's own without its secrets, and extra.
func workerEnv(environ []string, source string, extra []string) []string {
	env := slices.DeleteFunc(slices.Clone(environ), func(entry string) bool {
		name, value, _ := strings.Cut(entry, "=")
		if name == nestedVar {
			source = value + string(os.PathListSeparator) + source
		}
		return name == nestedVar || isSecretVariable(name)
	})
	return append(append(env, extra...), nestedVar+"="+source)
}

// checkNesting refuses to host roots that hold a module which started this process.
func checkNesting(inside string, roots []string) error {
	for _, source := range filepath.SplitList(inside) {
		at := slices.IndexFunc(roots, func(root string) bool { return scopeDir(root).Contains(source) })
		if at >= 0 {
			return fmt.Errorf("%q holds the module %s that started this usher: it would start itself without end; host another folder",
				roots[at], filepath.Base(source))
		}
	}
	return nil
}

// configModules reads a .mcp.json file: its entries, with how to start each or why
// not. dir is the file's folder; getenv resolves the variables in it. The error is
// for a file that can't be read as one at all.
func configModules(raw []byte, dir string, getenv func(string) (string, bool)) ([]discovered, error) {
	raw = bytes.TrimPrefix(raw, []byte("\ufeff"))
	if bad, ok := errors.AsType[*json.SyntaxError](json.Unmarshal(raw, new(json.RawMessage))); ok && bad.Offset > 0 {
		before := raw[:bad.Offset-1]
		return nil, fmt.Errorf("no valid JSON at line %d, column %d: %w; JSON has no comments, and no comma behind the last of several",
			bytes.Count(before, []byte("\n"))+1, len(before)-bytes.LastIndexByte(before, '\n'), bad)
	}
	if err := checkJSON(raw, "the file"); err != nil {
		return nil, err
	}
	servers, ok := members(field(raw, "mcpServers"))
	if !ok {
		return nil, errors.New(`no object "mcpServers" in it, as "servers" is to be called here`)
	}
	list := make([]discovered, 0, len(servers))
	for _, server := range servers {
		if string(field(server.value, "disabled")) == "true" || string(field(server.value, "enabled")) == "false" {
			continue
		}
		d := discovered{Name: server.key, Kind: kindConfig, Content: hashOf(string(oneLine(server.value))), Err: checkModuleName(server.key)}
		if d.Err == nil {
			d.Err = d.readEntry(server.value, dir, getenv)
		}
		d.Version = hashOf(string(marshal(d.Launch)))
		list = append(list, d)
	}
	return list, nil
}

// readEntry reads the fields of a .mcp.json entry. Of several mistakes the first is
// told.
func (d *discovered) readEntry(raw json.RawMessage, dir string, getenv func(string) (string, bool)) (failed error) {
	list, ok := members(raw)
	if !ok {
		return errors.New("the entry is not an object")
	}
	l := &d.Launch
	var env map[string]string
	known := map[string]any{
		"command": &l.Path, "args": &l.Args, "env": &env, "cwd": &l.Dir, "shared": &l.Shared,
		"disabled": new(bool), "enabled": new(bool), // it is
		"type": new(any), // "stdio", where there is a command
	}
	for _, f := range list {
		into, ok := known[f.key]
		if !ok {
			d.Problems = append(d.Problems, fmt.Sprintf("the field %q says nothing to usher", f.key))
			continue
		}
		text, err := expandVariables(string(f.value), getenv)
		if bad, ok := errors.AsType[*json.UnmarshalTypeError](json.Unmarshal([]byte(text), into)); ok {
			err = fmt.Errorf("%q: want %v, got %s", f.key, bad.Type, bad.Value)
		}
		failed = cmp.Or(failed, err)
	}
	for _, name := range sortedKeys(env) {
		l.Env = append(l.Env, name+"="+env[name])
	}
	if !filepath.IsAbs(l.Dir) {
		l.Dir = filepath.Join(dir, l.Dir)
	}
	if bareVariable.Match(raw) { // in what, is not told: it may be a secret
		d.Problems = append(d.Problems, "~/ and $NAME are passed on as they stand, as no shell reads them: write ${HOME}/ and ${NAME}")
	}
	if l.Path == "" && failed == nil {
		return errors.New(`no "command": usher hosts only servers that it starts itself; for one at a "url": "command": "npx", "args": ["-y", "mcp-remote", URL]`)
	}
	return failed
}

// resolve finds the program: a name through PATH, a relative path from the
// working directory.
func (l launch) resolve() (launch, error) {
	program, rest, _ := strings.Cut(l.Path, " ")
	if strings.ContainsAny(l.Path, `/`+string(filepath.Separator)) && !filepath.IsAbs(l.Path) {
		l.Path = filepath.Join(l.Dir, l.Path)
	}
	path, err := exec.LookPath(l.Path)
	if err != nil {
		name := filepath.Base(program) // and no path, which clients may see
		hint := installHints[name]
		if rest != "" {
			hint = fmt.Sprintf(`: "command" is a program alone: put %s into "args"`, rest)
		}
		return l, fmt.Errorf("command %q: %s%s", name, errText(errors.Unwrap(err)), hint)
	}
	l.Path = path
	return l, nil
}

// installHints say where programs come from that modules commonly need.
var installHints = map[string]string{
	"python3": ": install Python 3, or make a .venv beside the module",
	"node":    ": install Node.js, 22.13 or newer",
	"npx":     ": install Node.js, 22.13 or newer",
}

// bareVariable is what a shell would replace, in JSON.
var bareVariable = regexp.MustCompile(`"~/|\$[A-Za-z_]`)

// foreignVariable is a variable as other programs have it in such a file, in JSON.
var foreignVariable = regexp.MustCompile(`\$\{(env|input):[^}"]*\}`)

// variable is ${VAR} or ${VAR:-default}, in JSON.
var variable = regexp.MustCompile(`\$\{([A-Za-z_][A-Za-z0-9_]*)(:-(?:[^}"\\]|\\.)*)?\}`)

// expandVariables replaces ${VAR} and ${VAR:-default} in the strings of valid JSON.
func expandVariables(raw string, getenv func(string) (string, bool)) (out string, err error) {
	if foreign := foreignVariable.FindString(raw); foreign != "" {
		return "", fmt.Errorf("%s is not known to usher: write ${NAME} or ${NAME:-default}, and set NAME in usher's environment", foreign)
	}
	out = variable.ReplaceAllStringFunc(raw, func(reference string) string {
		match := variable.FindStringSubmatch(reference)
		name, fallback := match[1], match[2]
		value, set := getenv(name)
		switch {
		case isSecretVariable(name):
			err = fmt.Errorf("${%s} is a secret of the daemon, by its name, and is handed to no module", name)
		case value == "" && fallback != "":
			return fallback[len(":-"):]
		case !set:
			err = fmt.Errorf("${%s} is not set: set it, or give a default as ${%s:-value}", name, name)
		}
		inString := quote(value)
		return string(inString[1 : len(inString)-1])
	})
	return out, err
}

// entryKey identifies a module over time.
type entryKey struct{ source, name string }

func (k entryKey) String() string { return k.source + "#" + k.name }

// discovered is a module as it stands in the file tree.
type discovered struct {
	Name     string // "" for a file or folder that can't be read
	Kind     Kind
	Path     string // as found: the link where the file is one
	Source   string // symlinks resolved
	Root     string // the hosted DIR that it was found below
	Launch   launch // of a .mcp.json entry
	Version  string // changes when the file, or the entry, does
	Content  string // a hash of what it holds: of an entry always, of a file where changes are not followed
	Problems []string
	Err      error // why it can't be hosted
}

func (d discovered) key() entryKey { return entryKey{d.Source, d.Name} }

// file is where it is, for the log.
func (d discovered) file() string {
	path, _ := filepath.Rel(d.Root, d.Path) // it is below
	return path
}

// readContent notes what a module's file holds now. An entry was read with its file.
func (d *discovered) readContent() (err error) {
	if d.Kind != kindConfig {
		_, d.Content, err = readSource(d.Source, d.Kind)
	}
	return err
}

// scan is one look at the workspace.
//
// Where it finds a file need not be where that is: a folder may be exchanged for a
// link to another meanwhile. readSource, through which all are read, makes sure.
type scan struct {
	modules    []discovered
	seen       map[entryKey]bool
	unreadable []string // paths of files and folders
	root       string   // the hosted DIR that is being searched
}

// scanFolders looks for modules in folders and below them. Where as many are found
// as are known, there is little garbage in each of all the scans of a day.
func scanFolders(roots []string, known int) *scan {
	s := &scan{modules: make([]discovered, 0, known), seen: make(map[entryKey]bool, known)}
	for _, root := range roots {
		// A folder above it may have become a link since the start. What a scope
		// is compared with is where the files really are.
		if path, err := filepath.EvalSymlinks(root); err == nil {
			root = path
		}
		s.root = root
		s.folder(root)
	}
	return s
}

// folder looks into a folder, and what is below it.
func (s *scan) folder(path string) {
	list, err := os.ReadDir(path)
	if err != nil {
		s.fail(path, err)
		return
	}
	for _, entry := range list {
		name, at := entry.Name(), filepath.Join(path, entry.Name())
		module, kind, isModule := moduleFile(name)
		switch {
		case entry.IsDir() && !unsearched.MatchString(name):
			s.folder(at)
		case isModule && !entry.IsDir():
			s.file(at, module, kind)
		}
	}
}

// unsearched are the names of folders in which no modules are looked for.
var unsearched = regexp.MustCompile(`^(\..*|node_modules|vendor)$`)

var errMoved = errors.New("its file is no longer where it was")

// fail notes a file or folder that can't be read, as a module without a name. Unless
// it does not exist, that is taken to be temporary; see has.
func (s *scan) fail(path string, err error) {
	s.add(discovered{Path: path, Source: path, Root: s.root, Version: errText(err), Err: errors.New(errText(err))})
	if !errors.Is(err, fs.ErrNotExist) {
		s.unreadable = append(s.unreadable, path)
	}
}

// file takes in a file that is a module by its name, or several.
func (s *scan) file(path, name string, kind Kind) {
	source, info, err := locate(path)
	switch {
	case err != nil:
		s.fail(path, err)
	case info.IsDir(): // a folder linked under a module's name
	case kind == kindConfig:
		s.config(path, source, info)
	default:
		version := fmt.Sprint(info.Size(), info.ModTime().UnixNano(), info.Mode())
		fault := cmp.Or(checkModuleName(name), checkFile(info, kind))
		s.add(discovered{Name: name, Kind: kind, Path: path, Source: source, Root: s.root, Version: version, Err: fault})
	}
}

// locate finds where a file really is, and what it is there.
func locate(path string) (source string, info fs.FileInfo, err error) {
	info, err = os.Lstat(path)
	if err != nil || info.Mode()&fs.ModeSymlink == 0 {
		return path, info, err
	}
	if source, err = filepath.EvalSymlinks(path); err == nil {
		info, err = os.Lstat(source)
	}
	return source, info, err
}

// checkFile refuses files that can't be modules of a kind.
func checkFile(info fs.FileInfo, kind Kind) error {
	switch {
	case !info.Mode().IsRegular():
		return errors.New("it is no regular file")
	case kind != kindExecutable && info.Size() > maxSource:
		return fmt.Errorf("it is larger than %s", formatSize(maxSource))
	case info.Size() > maxExecutable:
		return fmt.Errorf("it is larger than %s", formatSize(maxExecutable))
	case kind == kindExecutable && runtime.GOOS != "windows" && info.Mode()&0o111 == 0:
		return fmt.Errorf("the file is not executable: chmod +x %s", info.Name())
	}
	return nil
}

// config takes in the entries of a .mcp.json file. Half an edit of it ends no
// module.
func (s *scan) config(path, source string, there fs.FileInfo) {
	var raw []byte
	err := checkFile(there, kindConfig)
	if err == nil {
		raw, _, err = readSource(source, kindConfig)
	}
	list, fault := configModules(raw, filepath.Dir(source), os.LookupEnv)
	if err = cmp.Or(err, fault); err != nil {
		s.fail(path, err)
	}
	for _, d := range list {
		d.Path, d.Source, d.Root = path, source, s.root
		s.add(d)
	}
}

// readSource reads a module's file, if it is where it was found, and returns a hash
// of its content with it. What an executable holds is hashed alone. The path of the
// opened file itself is looked at, so that nothing is gained by exchanging a folder
// for a link meanwhile; on systems that can't tell it, what the path leads to just
// afterwards.
func readSource(source string, kind Kind) (text []byte, hash string, err error) {
	f, err := openRegular(source)
	if err != nil {
		return nil, "", err
	}
	defer f.Close()
	path, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
	if err != nil {
		path, err = filepath.EvalSymlinks(source)
	}
	if err != nil || path != source {
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

// add keeps a module; one that is reached by several ways is one module.
func (s *scan) add(d discovered) {
	if !s.seen[d.key()] {
		s.seen[d.key()] = true
		s.modules = append(s.modules, d)
	}
}

// has reports whether a module is still there, or may be: in a file or folder
// that can't be read just now.
func (s *scan) has(d discovered) bool {
	return s.seen[d.key()] || slices.ContainsFunc(s.unreadable, func(path string) bool {
		return scopeDir(path).Contains(d.Path)
	})
}
