// A Go source file as a module: which of its functions can be methods, their
// comments, the main that is generated for them, and the build of the two.
//
// Only names and comments are read from the syntax. What a type means, the
// compiler knows: the generated main (runtimes/gomain.go.txt) makes the JSON
// Schemas by reflection when it is asked what it offers. Whether a binary is
// fresh, the go command knows: it is run at each start of a module.
//
// This file knows nothing of workers, views and the protocol: it turns a path
// into a program.

package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	_ "embed"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
	"unicode"
)

// goMainText is the main of every module, without what is read from the module's
// file. It is no .go file to the go command, which would want to build it.
//
//go:embed runtimes/gomain.go.txt
var goMainText string

// A goSource is what a module's file says by its syntax alone.
type goSource struct {
	base      string            // the file's name
	about     string            // the package comment
	functions []string          // the exported ones, in order, as the generated main has them: usher__method
	problems  []string          // "x.usher.go:12: HandleX: why it can't be hosted"
	comments  map[string]string // of types, "main.Address", and of the second field of one, "main.Address.1"

	positions *token.FileSet
}

// A goBuildError says why a file is no module that runs: the lines of the parser
// or the compiler, as "x.usher.go:12:5: message". There is at least one.
type goBuildError struct{ Lines []string }

func (e *goBuildError) Error() string { return strings.Join(e.Lines, "; ") }

// parseGoModule reads the module whose file is named base and holds src. It
// returns a *goBuildError for a file that is not Go, or no module whatever its
// functions look like. The rest is left to the compiler, which knows more and says
// it better. Positions are made of base: no absolute path gets into a message that
// a session may see.
func parseGoModule(base string, src []byte) (*goSource, error) {
	s := &goSource{base: base, comments: map[string]string{}, positions: token.NewFileSet()}
	file, err := parser.ParseFile(s.positions, base, src, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, &goBuildError{[]string{err.Error()}} // the first error, and how many there are
	}
	if file.Name.Name != "main" {
		return nil, &goBuildError{[]string{s.place(file.Name) + ": package " + file.Name.Name + ": a module is package main"}}
	}
	if !bytes.Contains(src, []byte("//go:build ")) {
		s.problems = append(s.problems, base+":1: add the line //go:build usher at the top, "+
			"followed by an empty one: without it, go build ./... takes this file for a program without main")
	}
	s.about = strings.TrimSpace(file.Doc.Text())
	for _, decl := range file.Decls {
		switch decl := decl.(type) {
		case *ast.FuncDecl:
			if decl.Recv == nil && decl.Name.IsExported() {
				s.declareFunction(decl)
			}
		case *ast.GenDecl:
			s.declareTypes(decl)
		}
	}
	return s, nil
}

// place is the line of the file where a node begins.
func (s *goSource) place(at ast.Node) string {
	return fmt.Sprintf("%s:%d", s.base, s.positions.Position(at.Pos()).Line)
}

func (s *goSource) declareTypes(decl *ast.GenDecl) {
	for _, spec := range decl.Specs {
		if spec, ok := spec.(*ast.TypeSpec); ok {
			// The comment of an ungrouped type belongs to the declaration, that
			// above a group to no type in it.
			doc := spec.Doc
			if doc == nil && !decl.Lparen.IsValid() {
				doc = decl.Doc
			}
			s.describe("main."+spec.Name.Name, spec.Type, doc, spec.Comment)
		}
	}
}

func (s *goSource) declareFunction(fn *ast.FuncDecl) {
	name := fn.Name.Name
	if fn.Type.TypeParams != nil { // its type arguments would have to come from somewhere
		s.problems = append(s.problems, s.place(fn.Name)+": "+name+": a function with type parameters can't be called from outside")
		return
	}
	// The comment stays as it is: what the tags in it mean is the same for every
	// language. Whether parameters and results are those of a method is found out
	// at run time.
	doc := strings.TrimSuffix(fn.Doc.Text(), "\n")
	s.functions = append(s.functions, fmt.Sprintf("{name: %q, function: %q, place: %q, doc: %q, f: usher__reflect.ValueOf(%s)}",
		goMethodName(name), name, s.place(fn.Name), doc, name))
	s.describe("main."+name, fn.Type.Params) // a parameter may be a struct without a name
}

// describe notes the first comment there is of what has the path, and those of the
// fields of the structs in it, which are told apart by their position: "A, B int"
// is two.
func (s *goSource) describe(path string, node ast.Node, comments ...*ast.CommentGroup) {
	for _, group := range comments {
		if text := strings.Join(strings.Fields(group.Text()), " "); text != "" && s.comments[path] == "" {
			s.comments[path] = text
		}
	}
	ast.Inspect(node, func(n ast.Node) bool {
		st, ok := n.(*ast.StructType)
		if !ok {
			return true
		}
		position := 0
		for _, field := range st.Fields.List {
			for range max(1, len(field.Names)) {
				s.describe(fmt.Sprint(path, ".", position), field.Type, field.Doc, field.Comment)
				position++
			}
		}
		return false
	})
}

// goMethodName lowers the capitals that begin a name, but the last of several
// that begins the next word: HandleContact is handleContact, URLFor is urlFor.
func goMethodName(fn string) string {
	runes := []rune(fn)
	for i := range runes {
		if !unicode.IsUpper(runes[i]) || i > 0 && i+1 < len(runes) && unicode.IsLower(runes[i+1]) {
			break
		}
		runes[i] = unicode.ToLower(runes[i])
	}
	return string(runes)
}

// generateMain is goMainText with what the file says. Functions are named, not
// called: what they take and return is found at run time, so no type of the module
// has to be written down a second time.
func (s *goSource) generateMain() string {
	name, _, _ := strings.Cut(s.base, ".usher")
	return goMainText + fmt.Sprintf(`
const usher__module, usher__about = %q, %q

var usher__problems = %#v

var usher__comments = %#v

var usher__functions = []*usher__method{%s}
`, name, s.about, s.problems, s.comments, strings.Join(s.functions, ", "))
}

// The names of the generated main and of the module as the go command sees them,
// by an overlay. They are the same for every module, because the true name could
// be one that go build ignores (_x.usher.go). The first must sort before the
// second: variables are set in that order.
const (
	goMainName   = "usher__main.go"
	goModuleName = "usher__module.go"
)

// keepBuilds is how long an unused binary is kept.
const keepBuilds = 24 * time.Hour

// buildGoModule makes the program of the module at path, an absolute path without
// links, whose file holds src, in a folder, which it makes if need be. It returns where the program is:
// under a name that stands for its content, so that it never becomes another one.
// It is quick when nothing has changed. Nothing is written beside the module.
// environ is that of the go command. The error is a *goBuildError when it is the
// module's, and the cause of ctx's end when that ended the build. Safe for
// concurrent use, in several processes too.
func buildGoModule(ctx context.Context, folder, path string, src []byte, environ []string) (string, error) {
	source, err := parseGoModule(filepath.Base(path), src)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return "", err
	}
	temp, err := os.MkdirTemp(folder, "build-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(temp)
	target := filepath.Join(temp, "module")
	if runtime.GOOS == "windows" {
		target += ".exe"
	}
	// The go command builds nothing where it finds what it would build.
	latest := filepath.Join(folder, "latest-"+hashOf(path))
	_ = os.Link(latest, target)
	if err := runGoBuild(ctx, path, src, source, target, environ); err != nil {
		return "", err
	}
	binary, err := keepBuild(folder, target)
	if err == nil {
		os.Remove(latest)
		_ = os.Link(binary, latest)
	}
	return binary, err
}

// keepBuild gives a binary its name, and removes those of all modules that nobody
// has asked for since long.
func keepBuild(folder, built string) (string, error) {
	data, err := os.ReadFile(built)
	if err != nil {
		return "", err
	}
	binary := filepath.Join(folder, fmt.Sprintf("module-%x", sha256.Sum256(data))+filepath.Ext(built))
	err = cmp.Or(os.Chmod(built, 0o700), os.Rename(built, binary))
	if _, there := os.Stat(binary); there != nil { // Windows renames to no program that runs
		return "", cmp.Or(err, there)
	}
	now := time.Now()
	_ = os.Chtimes(binary, now, now) // it is in use
	old, _ := filepath.Glob(filepath.Join(folder, "*"))
	for _, path := range old {
		if info, err := os.Stat(path); err == nil && now.Sub(info.ModTime()) > keepBuilds {
			os.RemoveAll(path)
		}
	}
	return binary, nil
}

// runGoBuild has the go command make target of a module's text and the main
// generated for it. It lays both into the folder of the module's file by an overlay.
func runGoBuild(ctx context.Context, path string, src []byte, source *goSource, target string, environ []string) error {
	dir, temp := filepath.Dir(path), filepath.Dir(target)
	main, module, overlay := filepath.Join(temp, "main.go"), filepath.Join(temp, source.base), filepath.Join(temp, "overlay.json")
	replace := map[string]string{filepath.Join(dir, goMainName): main, filepath.Join(dir, goModuleName): module}
	err := cmp.Or(
		os.WriteFile(main, []byte(source.generateMain()), 0o600),
		os.WriteFile(module, src, 0o600),
		os.WriteFile(overlay, marshal(map[string]any{"Replace": replace}), 0o600))
	if err != nil {
		return err
	}
	// No -tags: files that are named are built whatever their constraints say, and
	// the tag must not reach other packages.
	cmd := exec.CommandContext(ctx, "go", "build", "-buildvcs=false", "-overlay", overlay, "-o", target, goMainName, goModuleName)
	cmd.Dir = dir
	// The binary runs here, whatever the daemon's environment cross-compiles for.
	cmd.Env = append(slices.Clip(environ), "GOOS="+runtime.GOOS, "GOARCH="+runtime.GOARCH)
	setGroup(cmd)
	cmd.Cancel = func() error { return killGroup(cmd.Process.Pid) } // the compilers too
	cmd.WaitDelay = 2 * time.Second
	said, err := cmd.CombinedOutput()
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	// Whatever the go command has to say, it says about the module or its imports.
	lines := goErrorLines(string(said), source.base, temp)
	if len(lines) == 0 {
		lines = []string{fmt.Sprintf("%s: a Go module needs the go command (install Go from https://go.dev/dl): %v", source.base, err)}
	}
	return &goBuildError{lines}
}

// goErrorLines are the go command's messages, one a line, in terms of the module's
// own file.
func goErrorLines(text, base, temp string) []string {
	var lines []string
	for line := range strings.Lines(text) {
		message, indented := strings.CutPrefix(strings.TrimRight(line, "\r\n"), "\t")
		if message == "" || strings.HasPrefix(message, "# ") || strings.HasPrefix(message, "go: downloading ") {
			continue
		}
		// The compiler gives the names of the copies, the import reader and cgo the overlay's.
		message = strings.ReplaceAll(message, goModuleName, base)
		if _, rest, ok := strings.Cut(message, filepath.Base(temp)+string(filepath.Separator)); ok {
			message = rest
			if rest, ok = strings.CutPrefix(rest, "main.go"); ok {
				message = "the generated main" + rest
			}
		}
		message = strings.TrimPrefix(message, "."+string(filepath.Separator))
		// The types of a call that does not fit, or the command that would help,
		// stand indented below: here an error is one line.
		if indented && len(lines) > 0 {
			lines[len(lines)-1] += " " + strings.TrimSpace(message)
		} else {
			lines = append(lines, message)
		}
	}
	return lines
}
