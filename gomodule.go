// Go modules. This file finds the functions of a Go source file that can be methods, with
// their comments, generates a main for them, and builds the program.
//
// Only names and comments come from the syntax. The compiler knows the types: the generated
// main (runtimes/gomain.go.txt) makes the JSON Schemas by reflection when it is asked for
// its tools. The go command knows which files a build depends on; while these are the same,
// usher starts the program without it.

package main

import (
	"bytes"
	"context"
	"crypto/rand"
	_ "embed"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"time"
	"unicode"
)

// goMainText is the part of the generated main that is the same for every module. Its
// file is not named .go, because the go command would build it.
//
//go:embed runtimes/gomain.go.txt
var goMainText string

// goSource is the content of a module's file that its syntax alone reveals.
type goSource struct {
	base      string            // the file's name
	text      []byte            // the file's content
	about     string            // the package comment
	functions []string          // exported and not generic, in order, as literals of usher_method
	constants []string          // the names of those that have a type
	comments  map[string]string // of a type, by "main.Address", and of its second field, "main.Address.1"

	positions *token.FileSet
}

// cantBuildf returns the error of a module that can't be built. The formatted text is that of
// the parser or compiler, such as "x.usher.go:12:5: message".
func cantBuildf(base, format string, args ...any) error {
	name, _, _ := strings.Cut(base, ".usher")
	return processFault(name, "can't be built", fmt.Sprintf(format, args...))
}

// parseGoModule parses the text of the module file named base. The error is a
// *fault, for a file that is not Go or not a module. All other errors are left to
// the compiler. Positions contain base instead of an absolute path, because sessions may
// see error messages.
func parseGoModule(base string, src []byte) (*goSource, error) {
	s := &goSource{
		base:      base,
		text:      src,
		comments:  map[string]string{},
		positions: token.NewFileSet(),
	}
	file, err := parser.ParseFile(s.positions, base, src, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, cantBuildf(base, "%v", err) // the first error, and how many there are
	}
	if file.Name.Name != "main" {
		return nil, cantBuildf(base, "%s: package %s: want package main",
			s.place(file.Name), file.Name.Name)
	}
	s.about = strings.TrimSpace(file.Doc.Text())
	for _, decl := range file.Decls {
		switch decl := decl.(type) {
		case *ast.FuncDecl:
			if decl.Recv == nil && decl.Type.TypeParams == nil && decl.Name.IsExported() {
				s.declareFunction(decl)
			}
		case *ast.GenDecl:
			s.declareSpecs(decl)
		}
	}
	return s, nil
}

// place returns the file and line where a node begins.
func (s *goSource) place(at ast.Node) string {
	return fmt.Sprintf("%s:%d", s.base, s.positions.Position(at.Pos()).Line)
}

// declareSpecs collects the comments of a declaration's types, and its constants that have a type.
func (s *goSource) declareSpecs(decl *ast.GenDecl) {
	for _, spec := range decl.Specs {
		switch spec := spec.(type) {
		case *ast.TypeSpec:
			// The comment of an ungrouped type belongs to the declaration; a comment
			// above a group belongs to no type.
			doc := spec.Doc
			if doc == nil && !decl.Lparen.IsValid() {
				doc = decl.Doc
			}
			s.describe("main."+spec.Name.Name, spec.Type, doc, spec.Comment)
		case *ast.ValueSpec:
			for _, name := range spec.Names {
				if decl.Tok == token.CONST && spec.Type != nil && name.Name != "_" {
					s.constants = append(s.constants, name.Name)
				}
			}
		}
	}
}

// declareFunction adds a function that may be a method.
func (s *goSource) declareFunction(fn *ast.FuncDecl) {
	name := fn.Name.Name
	// The comment stays unmodified: its tags mean the same in every language. At run
	// time the main checks that the parameters and results are those of a method.
	doc := strings.TrimSuffix(fn.Doc.Text(), "\n")
	s.functions = append(s.functions, fmt.Sprintf(
		"{name: %q, function: %q, place: %q, doc: %q, f: usher_reflect.ValueOf(%s)}",
		goMethodName(name), name, s.place(fn.Name), doc, name))
	s.describe("main."+name, fn.Type.Params) // a parameter may be a struct without a name
}

// describe stores, under path, the first comment that is not empty and, under path and their
// position, the comments of the struct fields in node: "A, B int" is two fields.
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

// goMethodName lowers the capitals at the beginning of a name, except one that begins the
// next word: HandleContact becomes handleContact, URLFor becomes urlFor.
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

// generateMain returns the main of a module: goMainText, and what it needs to know of the module's
// file. It names the functions and does not call them: at run time the main finds their parameters
// and results by reflection.
func (s *goSource) generateMain() string {
	name, _, _ := strings.Cut(s.base, ".usher")
	return goMainText + fmt.Sprintf(`
const usher_module, usher_about = %q, %q

var usher_comments = %#v

var usher_constants = []interface{}{%s}

var usher_functions = []*usher_method{%s}
`,
		name, s.about, s.comments, strings.Join(s.constants, ", "), strings.Join(s.functions, ", "))
}

// goMainName is the name of the generated main in the overlay for the go command.
const goMainName = "usher__main.go"

const (
	buildTimeout = 2 * time.Minute // for one go build
	keepBuilds   = 24 * time.Hour  // how long an unused binary is kept
)

// buildGoModule builds the module at path, an absolute path without links, unless last is the
// outcome of an earlier build and its parts have not changed. The binary is in folder; its name is
// new, so that no binary ever changes. Nothing is written beside the module. The error is a *fault
// if the module is at fault or the build takes too long, ctx's cause if ctx ended the build, or
// errUnapproved if the file has another SHA-256 than content ("": any). The build uses the bytes
// that were hashed. loaded is last only if the error came before the go command. Safe for
// concurrent use, also by several processes.
func buildGoModule(
	ctx context.Context, folder, path, content string, last *parts,
) (loaded *parts, err error) {
	now := time.Now() // so that the binary counts as used
	if !last.changed() && os.Chtimes(last.Binary, now, now) == nil {
		return last, nil
	}
	base := filepath.Base(path)
	slow := cantBuildf(base, "go build took over %v", buildTimeout)
	ctx, cancel := context.WithTimeoutCause(ctx, buildTimeout, slow)
	defer cancel()
	file := newParts([]string{path})
	src, hash, err := readSource(path, kindGo)
	if err == nil && content != "" && hash != content {
		err = errUnapproved
	}
	if err != nil {
		return last, err
	}
	source, err := parseGoModule(base, src)
	if err != nil {
		return last, err
	}
	binary := filepath.Join(folder, "module-"+rand.Text())
	loaded, err = source.build(ctx, filepath.Dir(path), binary)
	if err == nil {
		loaded.Binary = binary
		if file.changed() { // perhaps before the parts were listed: build again at the next start
			loaded.Version = ""
		}
		err = os.Chmod(binary, 0o700)
		removeUnused(folder)
	}
	return loaded, err
}

// removeUnused removes everything in folder that is older than keepBuilds.
func removeUnused(folder string) {
	old, _ := os.ReadDir(folder)
	for _, entry := range old {
		if info, err := entry.Info(); err == nil && time.Since(info.ModTime()) > keepBuilds {
			os.RemoveAll(filepath.Join(folder, entry.Name()))
		}
	}
}

// build runs the go command in dir, the folder of the module's file, to build a binary from
// that file and its generated main. An overlay, in a temporary folder beside the binary, puts the
// main into dir. build lists the parts first, so that an edit during the build counts as a change.
func (s *goSource) build(ctx context.Context, dir, binary string) (*parts, error) {
	temp := binary + ".build"
	defer os.RemoveAll(temp)
	mainFile := filepath.Join(temp, "the generated main") // as in messages
	overlayFile := filepath.Join(temp, "overlay.json")
	module := s.base
	if module[0] == '_' { // go build ignores such a file, even if it is named
		module = "usher" + module
	}
	// The copy is what was read: the file may change at any time.
	copied := filepath.Join(temp, s.base)
	replace := map[string]string{
		filepath.Join(dir, goMainName): mainFile,
		filepath.Join(dir, module):     copied,
	}
	for path, text := range map[string][]byte{
		mainFile:    []byte(s.generateMain()),
		copied:      s.text,
		overlayFile: marshal(map[string]any{"Replace": replace}),
	} {
		if err := writeFile(path, text, os.O_EXCL, 0o600); err != nil {
			return newParts(nil), err
		}
	}
	// The main comes first, because variables are initialized in the order of the files. No
	// -tags: named files are built whatever their constraints are, and the tag must not reach
	// other packages.
	files := []string{"-overlay", overlayFile, goMainName, module}
	// Errors of go list are ignored here, because go build reports them again.
	list, _ := runGo(ctx, dir, append([]string{"list", "-e", "-deps", "-f", goParts}, files...))
	paths := append(goConfigs(dir), filepath.Join(dir, s.base))
	loaded := newParts(append(paths, strings.Split(list, "\n")...))
	output, err := runGo(ctx, dir, append([]string{"build", "-buildvcs=false", "-o", binary}, files...))
	switch {
	case err == nil:
		return loaded, nil
	case ctx.Err() != nil:
		return loaded, context.Cause(ctx)
	}
	inCopy := regexp.MustCompile(`[^\s:]*` + regexp.QuoteMeta(filepath.Join(filepath.Base(temp), s.base)))
	output = inCopy.ReplaceAllLiteralString(output, s.base)
	// All messages of the go command are about the module or its imports.
	output = strings.TrimSpace(goNoise.ReplaceAllString(goMessages.Replace(output), ""))
	switch {
	case output == "":
		output = fmt.Sprintf("%s: a Go module needs the go command (install Go from https://go.dev/dl): %v",
			s.base, err)
	case strings.Contains(output, "undefined: "):
		output += "\n(a module is one file)"
	}
	return loaded, cantBuildf(s.base, "%s", output)
}

// goParts is a template for go list. For each package of the main Go module, it prints the folder,
// if the package can be imported, and the embedded files, one path per line. The package of the
// usher module itself belongs to no Go module, because go list gets its files.
//
//go:embed runtimes/parts.tmpl
var goParts string

// goConfigs returns the paths of all files that may configure the Go module of a folder.
func goConfigs(dir string) (paths []string) {
	for last := ""; dir != last; last, dir = dir, filepath.Dir(dir) {
		for _, name := range []string{"go.mod", "go.sum", "go.work"} {
			paths = append(paths, filepath.Join(dir, name))
		}
	}
	return paths
}

// runGo runs the go command in dir until the command or ctx ends. It returns everything that the
// command prints, or nothing if ctx has ended.
func runGo(ctx context.Context, dir string, args []string) (string, error) {
	var output bytes.Buffer
	cmd := exec.Command("go", args...)
	cmd.Dir = dir
	// The binary runs on this machine, even if the environment cross-compiles.
	cmd.Env = []string{"GOOS=" + runtime.GOOS, "GOARCH=" + runtime.GOARCH}
	cmd.Stdout = &output
	cmd.Stderr = &output
	c, err := startChild(cmd)
	if err == nil {
		err = c.wait(ctx, 0)
		c.end()
	}
	if ctx.Err() != nil {
		return "", err
	}
	return output.String(), err
}

// goMessages makes messages of the go command readable. An indented line contains the types of a
// call that does not fit, or the command that would help.
var goMessages = strings.NewReplacer(
	"\n\t", " ",
	"() must not be replaced.", "() must not be replaced: set HOME, or GOPATH and GOCACHE",
	"see 'go help modules'", "run go mod init NAME and go get PACKAGE",
	"other declaration of main", "remove func main",
)

// goNoise matches reports of progress, empty lines, and ./ before a file.
var goNoise = regexp.MustCompile(`(?m)^((# |go: downloading ).*)?\n|^\./`)
