// Runtimes: which files are modules, of which kind, and which command runs a
// module of each kind. This file reads file names and .mcp.json files; it
// starts nothing and knows no worker.

package main

import (
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
)

// runtimeFiles are the shims and starters of the languages.
//
//go:embed runtimes
var runtimeFiles embed.FS

// version is this program's version, from what the go command stamped it with.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" || info.Main.Version == "(devel)" {
		return "devel"
	}
	return info.Main.Version
}

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

// writtenForUsher reports whether the module's author had usher in mind, and so
// meant a name that begins with "handle" for a webhook.
func (k Kind) writtenForUsher() bool { return k != kindConfig }

// docRules says how the documentation of such a module's methods is read. In
// languages without types it may name parameters that the code does not declare.
func (k Kind) docRules() docRules {
	return docRules{Hooks: k != kindConfig, Tags: k.singleFile(), Undeclared: k == kindNode || k == kindShell}
}

// moduleEndings are the kinds of single files, by what follows ".usher".
var moduleEndings = map[string]Kind{
	"": kindExecutable, ".go": kindGo, ".py": kindPython, ".sh": kindShell,
	".js": kindNode, ".mjs": kindNode, ".ts": kindNode, ".mts": kindNode,
}

// A shim is a program that runs a language's files. Its hash tells versions of it
// apart.
type shim struct{ name, text, hash string }

var shims = map[Kind]shim{kindPython: newShim("shim.py"), kindNode: newShim("shim.mjs")}

func newShim(name string) shim {
	text, err := runtimeFiles.ReadFile("runtimes/" + name)
	if err != nil {
		panic(err) // embedded
	}
	return shim{name, string(text), hashOf(string(text))}
}

// configName is the file whose mcpServers entries are modules.
const configName = ".mcp.json"

var moduleName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// checkModuleName refuses names that could not stand in a tool's name.
func checkModuleName(name string) error {
	if moduleName.MatchString(name) {
		return nil
	}
	return fmt.Errorf("module name %q: want 1 to 64 of A-Z a-z 0-9 _ -", name)
}

// moduleFile tells by its name whether a file is a module: its name and kind.
// A .mcp.json file holds any number of modules and is not among them.
func moduleFile(base string) (name string, kind Kind, ok bool) {
	name, rest, found := strings.Cut(base, ".usher")
	if !found {
		return "", "", false
	}
	if kind, ok = moduleEndings[rest]; !ok {
		return "", "", false
	}
	return name, kind, true
}

// launch says how a module's process is started.
type launch struct {
	Path string   // the program, absolute or found through PATH
	Args []string // without the program itself
	Dir  string   // working directory: the source file's folder
	Env  []string // added to the daemon's own, as KEY=value
}

// key identifies what is started, for telling whether it changed.
func (l launch) key() string {
	return hashOf(slices.Concat([]string{l.Path, l.Dir}, l.Args, []string{"\x00"}, l.Env)...)
}

// shellCommand is the first argument that makes a process the MCP server of a
// shell module. It is not among the commands of a user.
const shellCommand = "__shell"

// launchFile is how the module of a kind in a single file is started, but for a
// Go module, which is built first. A shim is put into cacheDir if need be.
func launchFile(kind Kind, source, cacheDir string) (launch, error) {
	l := launch{Dir: filepath.Dir(source)}
	shim := ""
	if s, ok := shims[kind]; ok {
		var err error
		if shim, err = s.place(cacheDir); err != nil {
			return l, fmt.Errorf("preparing %s: %w", s.name, err)
		}
	}
	switch kind {
	case kindPython:
		// -B: nothing is to be written beside the module.
		l.Path, l.Args = pythonFor(l.Dir), []string{"-B", "-u", shim, source}
	case kindNode:
		l.Path, l.Args = "node", []string{"--no-warnings", shim, source}
	case kindShell:
		exe, err := os.Executable()
		if err != nil {
			return l, err
		}
		l.Path, l.Args = exe, []string{shellCommand, source}
	default:
		l.Path = source
	}
	return l, nil
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

// place puts the shim where an interpreter can read it, under a name that tells
// its content.
func (s shim) place(cacheDir string) (string, error) {
	dir := filepath.Join(cacheDir, "runtimes")
	path := filepath.Join(dir, s.hash+"-"+s.name)
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	return path, replaceFile(path, []byte(s.text))
}

// webhookSecretVar names the variable that guards the webhooks.
const webhookSecretVar = "SERVICE_WEBHOOK_SECRET"

// nestedVar carries the source files of the modules that this process runs
// inside of, so that a module that starts usher on its own folder, which would
// start it again, without end, is refused.
const nestedVar = "USHER_INSIDE"

// workerEnv is the environment of a worker of the module at source: the
// daemon's own without its secrets.
func workerEnv(environ []string, source string, extra []string) []string {
	inside := source
	env := make([]string, 0, len(environ)+len(extra)+1)
	for _, kv := range environ {
		key, value, _ := strings.Cut(kv, "=")
		if key == nestedVar && value != "" {
			inside = value + string(os.PathListSeparator) + source
			continue
		}
		if !isSecretVariable(key) {
			env = append(env, kv)
		}
	}
	env = append(env, extra...)
	return append(env, nestedVar+"="+inside)
}

// checkNesting refuses to host roots that hold a module which this process is
// itself started by.
func checkNesting(inside string, roots []string) error {
	for _, source := range filepath.SplitList(inside) {
		for _, root := range roots {
			if scopeDir(root).Contains(source) {
				return fmt.Errorf("%q holds the module %s that started this usher: it would start itself without end; host another folder",
					root, filepath.Base(source))
			}
		}
	}
	return nil
}

// configEntry is one entry of a .mcp.json file: how to start it, or why not.
type configEntry struct {
	Name   string
	Launch launch
	Err    error
}

// parseConfig reads a .mcp.json file that lies in dir. getenv resolves the
// variables in it. The error is for a file that can't be read as one at all;
// what is wrong with a single entry stands in the entry.
func parseConfig(raw []byte, dir string, getenv func(string) (string, bool)) ([]configEntry, error) {
	if fault := jsonFault(raw); fault != "" {
		return nil, errors.New("the file " + fault)
	}
	servers, ok := members(field(raw, "mcpServers"))
	if !ok {
		return nil, errors.New(`no object "mcpServers" in it`)
	}
	list := make([]configEntry, 0, len(servers))
	seen := make(map[string]bool, len(servers))
	for _, s := range servers {
		e := configEntry{Name: s.key, Err: checkModuleName(s.key)}
		if e.Err == nil && seen[s.key] {
			e.Err = errors.New("the name stands twice in the file")
		}
		if e.Err == nil {
			e.Launch, e.Err = parseEntry(s.value, dir, getenv)
		}
		seen[s.key] = true
		list = append(list, e)
	}
	return list, nil
}

func parseEntry(raw json.RawMessage, dir string, getenv func(string) (string, bool)) (launch, error) {
	if _, ok := members(raw); !ok {
		return launch{}, errors.New("the entry is not an object")
	}
	// Exact keys, then encoding/json for the types of the values.
	var command string
	var args []string
	var env map[string]string
	for _, f := range []struct {
		key  string
		into any
		want string
	}{{"command", &command, "a string"}, {"args", &args, "a list of strings"}, {"env", &env, "an object of strings"}} {
		if v := field(raw, f.key); v != nil {
			if err := json.Unmarshal(v, f.into); err != nil {
				return launch{}, fmt.Errorf("%q must be %s", f.key, f.want)
			}
		}
	}
	if command == "" {
		return launch{}, errors.New(`no "command": only servers that usher can start are hosted`)
	}
	x := expander{getenv: getenv}
	l := launch{Path: x.expand(command), Dir: dir}
	for _, a := range args {
		l.Args = append(l.Args, x.expand(a))
	}
	for _, k := range sortedKeys(env) {
		l.Env = append(l.Env, k+"="+x.expand(env[k]))
	}
	if x.err != nil {
		return launch{}, x.err
	}
	return l, nil
}

// resolve finds the program: a name through PATH, a relative path from the
// source file's folder.
func (l launch) resolve() (launch, error) {
	if strings.ContainsAny(l.Path, `/`+string(filepath.Separator)) && !filepath.IsAbs(l.Path) {
		l.Path = filepath.Join(l.Dir, l.Path)
	}
	path, err := exec.LookPath(l.Path)
	if err != nil {
		return l, fmt.Errorf("command %q: %w", filepath.Base(l.Path), errors.Unwrap(err))
	}
	l.Path = path
	return l, nil
}

var variable = regexp.MustCompile(`\$\{([A-Za-z_][A-Za-z0-9_]*)(:-[^}]*)?\}`)

// expander replaces ${VAR} and ${VAR:-default}, and keeps the first error.
type expander struct {
	getenv func(string) (string, bool)
	err    error
}

func (x *expander) expand(s string) string {
	return variable.ReplaceAllStringFunc(s, func(ref string) string {
		m := variable.FindStringSubmatch(ref)
		if strings.EqualFold(m[1], webhookSecretVar) {
			x.fail(fmt.Errorf("${%s} is the daemon's own secret and is not handed to modules", m[1]))
			return ""
		}
		if v, ok := x.getenv(m[1]); ok && (v != "" || m[2] == "") {
			return v
		}
		if m[2] == "" {
			x.fail(fmt.Errorf("${%s} is not set: set it, or give a default as ${%s:-value}", m[1], m[1]))
			return ""
		}
		return m[2][len(":-"):]
	})
}

func (x *expander) fail(err error) {
	if x.err == nil {
		x.err = err
	}
}
