// The house rules that a machine can hold. The table of rooms is the drawing
// of the architecture: a file uses only files that stand above it.

package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// rooms is the files from the ground up, in the order of main.go's tour.
var rooms = []string{
	"proc_unix.go", "proc_windows.go",
	"jsonrpc.go", "http.go", "outbox.go", "protocol.go",
	"claims.go", "scope.go",
	"schema.go", "gomodule.go", "runtimes.go", "shell.go",
	"worker.go", "pool.go", "ask.go", "view.go", "modules.go",
	"session.go", "transport.go", "stdio.go", "webhook.go",
	"serve.go", "cli.go", "main.go",
}

// What the house may hold. Lines of code are those with neither a comment nor
// nothing on them.
const (
	maxRooms        = 24
	maxHouseLines   = 9050 // 8,500 of the house, and at most 250 of each of three issues after it
	maxCoreLines    = 1500
	maxRuntimeLines = 2000 // the shims and the generated Go main
	maxRoomLines    = 700
	maxFuncLines    = 60
	maxFloors       = 14
)

// core is the rooms that decide who reaches what.
var core = []string{"claims.go", "scope.go", "view.go"}

// generic rooms know messages, bytes and processes, and no word of usher's own.
var generic = []string{"proc_unix.go", "proc_windows.go", "jsonrpc.go", "http.go", "outbox.go"}

// strangers are words of usher's own that a room must not name.
var strangers = map[string][]string{
	"claims.go":    {"Session", "Module", "View", "Scope", "Principal"},
	"scope.go":     {"Session", "Module", "View", "Item", "Registry"},
	"worker.go":    {"Scope", "View", "Claim", "Principal", "Gate"},
	"pool.go":      {"Scope", "View", "Claim", "Principal", "Gate"},
	"protocol.go":  {"Registry", "Worker", "Catalog", "pool"},
	"ask.go":       {"Registry", "Catalog", "pool"},
	"session.go":   {"Registry", "Worker", "Catalog", "pool"},
	"transport.go": {"Registry", "Worker", "Catalog", "pool", "Claim"},
	"stdio.go":     {"Registry", "Worker", "Catalog", "pool", "Claim"},
	"webhook.go":   {"Registry", "Worker", "Catalog", "pool", "Claim", "Session", "Principal"},
}

// domain is the words that no generic room may name.
var domain = []string{"Claim", "Scope", "Principal", "Gate", "Session", "Module", "View", "Item", "Registry", "Worker", "pool"}

// callers is who may name what decides about access: "Type.member" for a field
// or method, or the name of a function.
var callers = map[string][]string{
	// The process behind a module. Who names it could call past the View.
	"Module.pool": {"view.go", "modules.go"},
	// The modules of a catalog, in and out of scope alike.
	"Catalog.modules": {"view.go"},
	"Registry.Report": {"modules.go", "serve.go", "cli.go"},
	// The scope of everything.
	"scopeAll": {"scope.go", "webhook.go", "serve.go", "cli.go"},
	// A presented code is judged in one place.
	"ClaimStore.Lookup": {"claims.go", "scope.go", "cli.go"},
	"Gate.Admit":        {"scope.go", "transport.go", "stdio.go"},
}

// house is the program, parsed and type-checked.
type house struct {
	fset  *token.FileSet
	files map[string]*ast.File
	info  *types.Info
	uses  map[string]map[string]string // room → room used → one name that it uses there
	named map[string]map[string]bool   // "Type.member" or "name" → rooms that name it
}

func readHouse(t *testing.T) *house {
	t.Helper()
	h := &house{fset: token.NewFileSet(), files: make(map[string]*ast.File),
		info: &types.Info{Uses: make(map[*ast.Ident]types.Object), Selections: make(map[*ast.SelectorExpr]*types.Selection)},
		uses: make(map[string]map[string]string), named: make(map[string]map[string]bool)}
	var checked []*ast.File
	for _, name := range programFiles() {
		f, err := parser.ParseFile(h.fset, name, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		h.files[name] = f
		if name != "proc_windows.go" || runtime.GOOS == "windows" {
			checked = append(checked, f)
		}
	}
	conf := types.Config{Importer: importer.ForCompiler(h.fset, "gc", exported(t))}
	if _, err := conf.Check("usher", h.fset, checked, h.info); err != nil {
		t.Fatal(err)
	}
	for id, object := range h.info.Uses {
		h.note(h.room(id.Pos()), object)
	}
	return h
}

// programFiles lists the program's Go files. Modules that a reader of the
// documentation saved beside them are left out.
func programFiles() []string {
	names, _ := filepath.Glob("*.go")
	return slices.DeleteFunc(names, func(name string) bool {
		return strings.HasSuffix(name, "_test.go") || strings.HasSuffix(name, ".usher.go")
	})
}

// exported opens the export data of what the program imports. One run of the go
// command finds all of it; an importer by itself makes one for each package.
func exported(t *testing.T) importer.Lookup {
	t.Helper()
	list, err := exec.Command("go", "list", "-deps", "-export", "-f", "{{.ImportPath}} {{.Export}}", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	files := make(map[string]string)
	for line := range strings.Lines(string(list)) {
		path, file, _ := strings.Cut(strings.TrimSpace(line), " ")
		files[path] = file
	}
	return func(path string) (io.ReadCloser, error) { return os.Open(files[path]) }
}

func (h *house) room(pos token.Pos) string { return h.fset.Position(pos).Filename }

// note enters that a room names an object of this package.
func (h *house) note(user string, object types.Object) {
	if object.Pkg() == nil || object.Pkg().Name() != "main" || !object.Pos().IsValid() {
		return
	}
	name := object.Name()
	if owner := ownerOf(object); owner != "" {
		name = owner + "." + name
	} else if object.Parent() != object.Pkg().Scope() {
		return // local to a function
	}
	if h.named[name] == nil {
		h.named[name] = make(map[string]bool)
	}
	h.named[name][user] = true
	if used := h.room(object.Pos()); used != user {
		if h.uses[user] == nil {
			h.uses[user] = make(map[string]string)
		}
		h.uses[user][used] = name
	}
}

// ownerOf is the type that a method or field belongs to; "" for all else.
func ownerOf(object types.Object) string {
	switch object := object.(type) {
	case *types.Func:
		recv := object.Signature().Recv()
		if recv == nil {
			return ""
		}
		of := recv.Type()
		if p, ok := of.(*types.Pointer); ok {
			of = p.Elem()
		}
		if n, ok := of.(*types.Named); ok {
			return n.Obj().Name()
		}
		return "interface"
	case *types.Var:
		if !object.IsField() {
			return ""
		}
		for _, name := range object.Pkg().Scope().Names() {
			typ, ok := object.Pkg().Scope().Lookup(name).(*types.TypeName)
			if !ok {
				continue
			}
			if s, ok := typ.Type().Underlying().(*types.Struct); ok {
				for i := range s.NumFields() {
					if s.Field(i) == object {
						return name
					}
				}
			}
		}
		return "struct"
	}
	return ""
}

func TestRooms(t *testing.T) {
	h := readHouse(t)
	for name := range h.files {
		if !slices.Contains(rooms, name) {
			t.Errorf("%s is in no place of the table", name)
		}
	}
	for user, used := range h.uses {
		for other, name := range used {
			if slices.Index(rooms, other) > slices.Index(rooms, user) {
				t.Errorf("%s uses %s of %s, which stands below it", user, name, other)
			}
		}
	}
	for room, words := range strangers {
		for _, word := range words {
			if h.named[word][room] {
				t.Errorf("%s names %s", room, word)
			}
		}
	}
	for _, room := range generic {
		for _, word := range domain {
			if h.named[word][room] {
				t.Errorf("%s is generic and names %s", room, word)
			}
		}
	}
	for what, allowed := range callers {
		if len(h.named[what]) == 0 {
			t.Errorf("%s is named nowhere: is the table out of date?", what)
		}
		for room := range h.named[what] {
			if !slices.Contains(allowed, room) {
				t.Errorf("%s names %s, which is for %s", room, what, strings.Join(allowed, ", "))
			}
		}
	}
}

// floors is on how many levels the rooms stand: a room is one above the highest
// that it uses.
func (h *house) floors() map[string]int {
	level := make(map[string]int)
	for _, room := range rooms {
		level[room] = 1
		for used := range h.uses[room] {
			level[room] = max(level[room], level[used]+1)
		}
	}
	return level
}

func TestCounts(t *testing.T) {
	h := readHouse(t)
	sum, inCore, runtimes := 0, 0, 0
	var table strings.Builder
	level := h.floors()
	for _, room := range rooms {
		n := codeLines(t, room)
		fmt.Fprintf(&table, "  floor %2d  %4d  %s\n", level[room], n, room)
		sum += n
		if slices.Contains(core, room) {
			inCore += n
		}
		if n > maxRoomLines {
			t.Errorf("%s has %d lines of code, of %d: does one room do two things?", room, n, maxRoomLines)
		}
	}
	for _, name := range []string{"gomain.go.txt", "shim.mjs", "shim.py"} {
		runtimes += codeLines(t, filepath.Join("runtimes", name))
	}
	highest := 0
	for _, floor := range level {
		highest = max(highest, floor)
	}
	t.Logf("%d files, %d lines of code, %d of them in the core, %d floors, %d lines of code in runtimes/\n%s",
		len(h.files), sum, inCore, highest, runtimes, table.String())
	for _, bound := range []struct {
		what      string
		got, most int
	}{
		{"files", len(h.files), maxRooms},
		{"lines of code", sum, maxHouseLines},
		{"lines of code in the core", inCore, maxCoreLines},
		{"lines of code in the shims and the Go main", runtimes, maxRuntimeLines},
		{"floors", highest, maxFloors},
	} {
		if bound.got > bound.most {
			t.Errorf("%d %s: want %d at most", bound.got, bound.what, bound.most)
		}
	}
}

// codeLines counts the lines of a file that are neither blank nor a comment.
func codeLines(t *testing.T, name string) int {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	comment := "//"
	if strings.HasSuffix(name, ".py") {
		comment = "#"
	}
	n := 0
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, comment) {
			n++
		}
	}
	return n
}

func TestTourNamesEveryRoom(t *testing.T) {
	tour, err := os.ReadFile("main.go")
	if err != nil {
		t.Fatal(err)
	}
	at := 0
	for _, room := range rooms[:len(rooms)-1] {
		i := bytes.Index(tour, []byte(room))
		if i < at {
			t.Errorf("main.go's tour does not name %s, or out of order", room)
		}
		at = max(at, i)
	}
}

func TestHouseRules(t *testing.T) {
	fset := token.NewFileSet()
	for _, name := range programFiles() {
		f, err := parser.ParseFile(fset, name, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		if len(f.Comments) == 0 || f.Comments[0].Pos() > f.Name.Pos() {
			t.Errorf("%s has no comment that says what it owns", name)
		}
		for _, imp := range f.Imports {
			if first, _, _ := strings.Cut(strings.Trim(imp.Path.Value, `"`), "/"); strings.Contains(first, ".") {
				t.Errorf("%s imports %s", name, imp.Path.Value)
			}
		}
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok {
				if n := fset.Position(fn.End()).Line - fset.Position(fn.Pos()).Line; n > maxFuncLines {
					t.Errorf("%s: %s has %d lines", name, fn.Name.Name, n)
				}
			}
		}
		ast.Inspect(f, func(n ast.Node) bool {
			sel, ok := n.(*ast.SelectorExpr)
			if !ok || name == "main.go" {
				return true
			}
			if x, ok := sel.X.(*ast.Ident); ok && (x.Name == "os" && sel.Sel.Name == "Exit" || x.Name == "log" && strings.HasPrefix(sel.Sel.Name, "Fatal")) {
				t.Errorf("%s leaves from the middle: %s.%s", name, x.Name, sel.Sel.Name)
			}
			return true
		})
	}
	tests, _ := filepath.Glob("*_test.go")
	for _, name := range tests {
		text, _ := os.ReadFile(name)
		if bytes.Contains(text, []byte("time."+"Sleep(")) {
			t.Errorf("%s sleeps", name)
		}
	}
}
