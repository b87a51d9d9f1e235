// The build of a Go module: a binary from its file and the generated main, by the
// go command, and the stamps of all that the binary depends on.
//
// This file knows nothing of workers, views and the protocol: it turns a path
// into a binary and tool definitions. Who calls it decides when, keeps what it
// returned, and starts the binary.

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

// A fileStamp tells whether a file or folder is still as it was. A folder's
// changes when an entry comes or goes.
type fileStamp struct {
	Path    string `json:"p"`
	Size    int64  `json:"s"` // bytes; -1: it is not there
	ModTime int64  `json:"m"` // UnixNano
}

// stampFile looks at path, through links. What can't be looked at is missing.
func stampFile(path string) fileStamp {
	info, err := os.Stat(path)
	if err != nil {
		return fileStamp{Path: path, Size: -1}
	}
	return fileStamp{Path: path, Size: info.Size(), ModTime: info.ModTime().UnixNano()}
}

// current tells whether the file has still this stamp. It costs one stat.
func (s fileStamp) current() bool { return stampFile(s.Path) == s }

// goEnvNames are the variables by which the go command could build another
// program from the same files.
const goEnvNames = "CC CGO_CFLAGS CGO_CPPFLAGS CGO_CXXFLAGS CGO_ENABLED CGO_LDFLAGS CXX GO111MODULE GOAMD64 GOARCH " +
	"GOARM GOARM64 GOENV GOEXPERIMENT GOFIPS140 GOFLAGS GOMODCACHE GOOS GOPATH GOROOT GOTOOLCHAIN GOWORK HOME PKG_CONFIG"

// goEnvKey condenses what a build depends on beside files: usher's part of the
// program, the environment, and which go command the PATH leads to. It starts no
// process.
func goEnvKey() string {
	tool, _ := exec.LookPath("go")
	parts := []string{goMainText, tool, runtime.GOOS, runtime.GOARCH}
	for name := range strings.FieldsSeq(goEnvNames) {
		parts = append(parts, os.Getenv(name))
	}
	return hashOf(parts...)
}

// A goBuild is a module that was built. It is good for as long as its Inputs are
// current, goEnvKey is what it was, and Binary exists; a caller that keeps it
// needs no process to know.
type goBuild struct {
	goSource
	Binary string
	Inputs []fileStamp
}

// The names of the generated main and of the module as the go command sees them,
// by an overlay. They are the same for every module, because the true name could
// be one that go build ignores (_x.usher.go). The first must sort before the
// second: variables are set in that order.
const (
	goMainName   = "usher__main.go"
	goModuleName = "usher__module.go"
)

// buildGoModule builds the module at path into a folder below cacheDir, or finds
// that a binary of the same content is there. Both paths are absolute. Nothing is
// written beside the module. The error is a *goBuildError when it is the module's,
// and wraps the cause when ctx ended the build; with an error there may still be
// a goBuild, of which only Inputs means something: what to watch before trying
// again. Builds may run side by side, in several processes too.
func buildGoModule(ctx context.Context, path, cacheDir string) (*goBuild, error) {
	// The go command reads the files later than we do. A build during which one
	// of them changed is done again, or a binary would be kept under a key that
	// is not that of its content.
	for range 3 {
		b := &goBuilder{began: time.Now(), contents: map[string]bool{}}
		build, err := b.build(ctx, path, cacheDir)
		if ctx.Err() != nil {
			return nil, fmt.Errorf("building %q: %w", filepath.Base(path), context.Cause(ctx))
		}
		if !b.isCurrent() {
			continue
		}
		// What changed since the beginning may change once more without a new
		// time stamp: such a stamp never counts as current. One that is dated far
		// ahead is no sign of that, and would have the module built for ever.
		ahead := time.Now().Add(time.Minute).UnixNano()
		for i, s := range b.stamps {
			if s.ModTime > b.began.UnixNano() && s.ModTime < ahead {
				b.stamps[i].ModTime = -1
			}
		}
		build.Inputs = b.stamps
		return build, err
	}
	return nil, fmt.Errorf("building %q: its files change all the time", filepath.Base(path))
}

// A goBuilder is one run of a build.
type goBuilder struct {
	began time.Time
	tool  string // the go command
	file  string // the module's, links resolved
	work  string // this module's folder in the cache
	main  string // the generated main
	env   struct{ GOROOT, GOENV, GOMOD, GOWORK, GOVERSION, GOFLAGS string }

	stamps   []fileStamp
	contents map[string]bool // paths of stamps: does their content decide?
	released []string        // packages whose version stands for their content
}

// watch stamps path, before anything reads it. With content, a change of its
// bytes makes another binary; else a change is only a reason to look again.
func (b *goBuilder) watch(path string, content bool) {
	if _, known := b.contents[path]; !known {
		b.stamps = append(b.stamps, stampFile(path))
	}
	b.contents[path] = b.contents[path] || content
}

func (b *goBuilder) isCurrent() bool {
	return !slices.ContainsFunc(b.stamps, func(s fileStamp) bool { return !s.current() })
}

// build always returns a goBuild, whatever the error.
func (b *goBuilder) build(ctx context.Context, path, cacheDir string) (*goBuild, error) {
	result := &goBuild{}
	// Stamped before it is read: a change in between is then noticed.
	b.watch(path, true)
	src, err := os.ReadFile(path)
	if err != nil {
		return result, fmt.Errorf("reading module: %w", err)
	}
	source, err := parseGoModule(path, src)
	if err != nil {
		return result, err
	}
	result.goSource = *source
	if b.tool, err = exec.LookPath("go"); err != nil {
		return result, &goBuildError{Lines: []string{filepath.Base(path) +
			`: a Go module needs the go command, and there is no "go" in PATH: install Go from https://go.dev/dl`}}
	}
	b.watch(b.tool, false)
	if b.file, err = filepath.EvalSymlinks(path); err != nil {
		return result, fmt.Errorf("reading module: %w", err)
	}
	// From here on links are resolved, as the folder of a linked module is that of
	// its target, and with it the Go module it belongs to.
	generated := source.generateMain()
	overlay, err := b.writeOverlay(cacheDir, generated)
	if err != nil {
		return result, fmt.Errorf("preparing to build %q: %w", path, err)
	}
	if err := b.findInputs(ctx, overlay); err != nil {
		return result, err
	}
	result.Binary = filepath.Join(b.work, "module-"+b.key(generated))
	if runtime.GOOS == "windows" {
		result.Binary += ".exe"
	}
	// The path says what is in it, and it came there whole, by a rename.
	if _, err := os.Stat(result.Binary); err == nil {
		return result, nil
	}
	return result, b.compile(ctx, overlay, result.Binary)
}

// writeOverlay writes the generated main into the cache and returns the path of
// the overlay, by which the go command sees it in the module's own folder.
func (b *goBuilder) writeOverlay(cacheDir, generated string) (string, error) {
	b.work = filepath.Join(cacheDir, "go", hashOf(b.file))
	if err := os.MkdirAll(b.work, 0o700); err != nil {
		return "", err
	}
	// Named by their content, so that two builds at a time don't disturb each
	// other, and the go command's own cache knows the file again.
	b.main = filepath.Join(b.work, "main-"+hashOf(generated)+".go")
	dir := filepath.Dir(b.file)
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{
		filepath.Join(dir, goMainName):   b.main,
		filepath.Join(dir, goModuleName): b.file,
	}})
	if err != nil {
		return "", err
	}
	path := strings.TrimSuffix(b.main, ".go") + ".json"
	if err := replaceFile(b.main, []byte(generated)); err != nil {
		return "", err
	}
	return path, replaceFile(path, overlay)
}

// run runs the go command in the module's folder and returns its output.
func (b *goBuilder) run(ctx context.Context, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, b.tool, args...)
	cmd.Dir = filepath.Dir(b.file)
	// The binary runs here, whatever the daemon's environment cross-compiles for.
	cmd.Env = append(cmd.Environ(), "GOOS="+runtime.GOOS, "GOARCH="+runtime.GOARCH)
	cmd.WaitDelay = 2 * time.Second // the compiler may outlive the go command
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	// Whatever the go command has to say, it says about the module or its imports;
	// that ctx ended it is looked at by the caller.
	if err != nil {
		lines := b.errorLines(stderr.String())
		if len(lines) == 0 {
			lines = []string{fmt.Sprintf("go %s: %v", args[0], err)}
		}
		return nil, &goBuildError{Lines: lines}
	}
	return stdout.Bytes(), nil
}

// errorLines are the go command's messages, one a line, in terms of the module's
// own file.
func (b *goBuilder) errorLines(text string) []string {
	var lines []string
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\r\n")
		if line == "" || strings.HasPrefix(line, "# ") || strings.HasPrefix(line, "go: downloading ") {
			continue
		}
		// The types of a call that does not fit, or the command that would help,
		// stand indented below: here an error is one line.
		if line[0] == '\t' && len(lines) > 0 {
			lines[len(lines)-1] += " " + strings.TrimSpace(line)
			continue
		}
		// The compiler gives the true names, the import reader and cgo the overlay's.
		line = strings.ReplaceAll(line, goModuleName, filepath.Base(b.file))
		if _, rest, ok := strings.Cut(line, filepath.Base(b.main)); ok {
			line = "the generated main" + rest
		}
		lines = append(lines, strings.TrimPrefix(line, "."+string(filepath.Separator)))
	}
	return lines
}

// A goPackage is what go list tells of a package, as far as a build depends on it.
type goPackage struct {
	Dir, ImportPath string
	Standard        bool
	Module          *goPackageModule

	GoFiles, CgoFiles, CFiles, CXXFiles, MFiles, HFiles, FFiles, SFiles, SwigFiles, SwigCXXFiles, SysoFiles []string
	IgnoredGoFiles, IgnoredOtherFiles, EmbedFiles, EmbedPatterns                                            []string
}

// A goPackageModule is the Go module a package comes from. Version is "" for one
// that is worked on: the main module, and what go.work or a replace points to.
type goPackageModule struct {
	Path, Version, Dir, GoMod string
	Replace                   *goPackageModule
}

const goListFields = "-json=Dir,ImportPath,Standard,Module,GoFiles,CgoFiles,CFiles,CXXFiles,MFiles,HFiles,FFiles," +
	"SFiles,SwigFiles,SwigCXXFiles,SysoFiles,IgnoredGoFiles,IgnoredOtherFiles,EmbedFiles,EmbedPatterns"

// findInputs asks the go command which packages the module needs, and watches
// all that could change its answer or the binary.
func (b *goBuilder) findInputs(ctx context.Context, overlay string) error {
	out, err := b.run(ctx, "env", "-json", "GOROOT", "GOENV", "GOMOD", "GOWORK", "GOVERSION", "GOFLAGS")
	if err != nil {
		return err
	}
	if err := json.Unmarshal(out, &b.env); err != nil {
		return fmt.Errorf("reading the output of go env: %w", err)
	}
	// An upgrade of Go changes VERSION, also where go in PATH is only a script, or
	// starts the toolchain that go.mod names.
	b.watch(filepath.Join(b.env.GOROOT, "VERSION"), true)
	b.watch(b.env.GOENV, true)
	b.watch(b.file, true)
	modulePath := b.watchModuleFiles()
	// With -e a package that can't be found is listed too: the build that follows
	// says so in better words, and its folder may come to be.
	out, err = b.run(ctx, "list", "-e", "-deps", "-overlay", overlay, goListFields, goMainName, goModuleName)
	if err != nil {
		return err
	}
	for list := json.NewDecoder(bytes.NewReader(out)); ; {
		var p goPackage
		err := list.Decode(&p)
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("reading the output of go list: %w", err)
		}
		// A missing package of the module's own is built anew once it is written.
		if rest, ok := strings.CutPrefix(p.ImportPath, modulePath+"/"); ok && p.Dir == "" {
			b.watch(filepath.Join(filepath.Dir(b.env.GOMOD), rest), false)
		}
		b.watchPackage(p)
	}
}

// watchModuleFiles watches the files that decide where imports are found: those
// that are there, and those that would be found first if they came to be. It
// returns the module path that go.mod gives.
func (b *goBuilder) watchModuleFiles() (modulePath string) {
	for _, name := range []string{"go.mod", "go.work"} {
		found := b.env.GOMOD
		if name == "go.work" {
			found = b.env.GOWORK
		}
		for dir := filepath.Dir(b.file); ; dir = filepath.Dir(dir) {
			b.watch(filepath.Join(dir, name), true)
			if filepath.Join(dir, name) == found || dir == filepath.Dir(dir) {
				break
			}
		}
		if !filepath.IsAbs(found) || found == os.DevNull { // none, or "off"
			continue
		}
		dir := filepath.Dir(found)
		for _, name := range []string{name, "go.sum", "go.work.sum", "vendor/modules.txt"} {
			b.watch(filepath.Join(dir, name), true)
		}
		// Folders named by use and replace have a go.mod that counts as well. What
		// only looks like a folder costs a stamp of a missing file.
		text, _ := os.ReadFile(found)
		words := strings.Fields(string(text))
		for i, word := range words {
			word = strings.Trim(word, "\"`")
			if i > 0 && words[i-1] == "module" && name == "go.mod" {
				modulePath = word
			}
			if !filepath.IsAbs(word) {
				if !strings.HasPrefix(word, ".") {
					continue
				}
				word = filepath.Join(dir, word)
			}
			b.watch(filepath.Join(word, "go.mod"), true)
			b.watch(filepath.Join(word, "go.sum"), true)
		}
	}
	return modulePath
}

// watchPackage watches a package's folder and files. Those of the standard
// library and of released modules don't change: their version is enough.
func (b *goBuilder) watchPackage(p goPackage) {
	if p.Standard || p.Dir == "" {
		return
	}
	if m := p.Module; m != nil {
		if m.Replace != nil {
			m = m.Replace
		}
		if m.Version != "" && m.Dir != "" { // vendored ones have no Dir
			b.released = append(b.released, p.ImportPath+" "+m.Path+"@"+m.Version)
			return
		}
	}
	if p.ImportPath != "command-line-arguments" { // the module itself: its files are named
		b.watch(p.Dir, false)
		for _, name := range slices.Concat(p.GoFiles, p.CgoFiles, p.CFiles, p.CXXFiles, p.MFiles, p.HFiles, p.FFiles,
			p.SFiles, p.SwigFiles, p.SwigCXXFiles, p.SysoFiles, p.IgnoredGoFiles, p.IgnoredOtherFiles) {
			b.watch(filepath.Join(p.Dir, name), true)
		}
	}
	// Embedded files, and all folders in which another one could match.
	for _, name := range p.EmbedFiles {
		b.watch(filepath.Join(p.Dir, name), true)
	}
	for _, pattern := range p.EmbedPatterns {
		b.watch(p.Dir, false)
		matches, _ := filepath.Glob(filepath.Join(p.Dir, strings.TrimPrefix(pattern, "all:")))
		for _, match := range matches {
			b.watch(filepath.Dir(match), false)
			filepath.WalkDir(match, func(path string, d fs.DirEntry, err error) error {
				if err == nil && d.IsDir() {
					b.watch(path, false)
				}
				return nil
			})
		}
	}
}

// key is a hash of all that makes the binary what it is, by content: a file that
// was only touched, or a branch that was left and taken again, builds nothing.
func (b *goBuilder) key(generated string) string {
	parts := slices.Clone(b.released)
	for _, s := range b.stamps {
		if b.contents[s.Path] && s.Size >= 0 {
			data, err := os.ReadFile(s.Path)
			parts = append(parts, fmt.Sprintf("%q %v %s", s.Path, err, data))
		}
	}
	slices.Sort(parts)
	return hashOf(append(parts, goEnvKey(), b.env.GOVERSION, generated)...)
}

// compile makes the binary.
func (b *goBuilder) compile(ctx context.Context, overlay, binary string) error {
	temp, err := os.MkdirTemp(b.work, "build-")
	if err != nil {
		return fmt.Errorf("preparing to build %q: %w", b.file, err)
	}
	defer os.RemoveAll(temp)
	// A build that is cut off leaves nothing under the binary's name, and of two
	// at a time the later replaces the same by the same.
	built := filepath.Join(temp, filepath.Base(binary))
	// No -tags: files that are named are built whatever their constraints say, and
	// the tag must not reach other packages.
	args := []string{"build", "-buildvcs=false", "-overlay", overlay, "-o", built}
	if !strings.Contains(b.env.GOFLAGS, "-ldflags") {
		args = append(args, "-ldflags=-s -w") // a third less to link; stack traces stay
	}
	if _, err := b.run(ctx, append(args, goMainName, goModuleName)...); err != nil {
		return err
	}
	err = os.Rename(built, binary)
	if _, there := os.Stat(binary); err != nil && there != nil { // Windows: the other may run already
		return fmt.Errorf("keeping the build of %q: %w", b.file, err)
	}
	b.sweep(binary)
	return nil
}

// sweep removes what earlier builds of this module left, a day after it was made:
// by then every daemon has noticed that the source has changed. It runs after a
// build, and so seldom.
func (b *goBuilder) sweep(binary string) {
	entries, _ := os.ReadDir(b.work)
	for _, entry := range entries {
		path := filepath.Join(b.work, entry.Name())
		info, err := entry.Info()
		if err == nil && path != binary && b.began.Sub(info.ModTime()) > 24*time.Hour {
			os.RemoveAll(path)
		}
	}
}
