// The rules of the code that a test can check: the layers of the files, the files that may name the
// types and functions that decide about access, and the size limits. The tables describe the
// architecture.

package main

import (
	"bytes"
	"cmp"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
)

// layers lists the files from the ground up. A file uses its own layer and earlier ones.
var layers = []struct {
	name  string
	files []string
}{
	{"ground", []string{
		"jsonrpc.go", "http.go", "limit.go", "memory.go", "outbox.go", "proc_unix.go", "files.go", "era.go",
	}},
	{"core", []string{"claims.go", "session.go", "scope.go"}},
	{"modules", []string{
		"schema.go", "runtimes.go", "gomodule.go", "shell.go", "worker.go",
		"process.go", "pool.go",
		"names.go", "view.go", "modules.go",
	}},
	{"MCP", []string{"mcp.go", "transport.go"}},
	{"webhook", []string{"signature.go", "webhook.go"}},
	{"program", []string{"serve.go", "report.go", "cli.go", "main.go"}},
}

// Limits of the code, tests excluded. Code is text without comments, blank lines and
// indentation. A tab counts 4 columns.
const (
	maxFiles          = 30
	maxGroup          = 3       // files that depend on each other
	maxProgramText    = 257_000 // characters
	maxRuntimeText    = 78_000  // characters of the shims and the generated Go main, trailing comments included
	maxScopeLines     = 1000    // lines of code in scopeFiles together
	maxFileLines      = 900     // lines of code
	maxFuncLines      = 60
	maxColumns        = 110
	maxUsualColumns   = 88 // for 95 % of the lines
	maxRuntimeColumns = 100
)

// scopeFiles decide who sees what. No other file can widen a scope.
var scopeFiles = []string{"claims.go", "scope.go", "view.go"}

// forbiddenNames lists usher's own concepts that a file must not name.
var forbiddenNames = map[string][]string{
	"jsonrpc.go":   concepts,
	"http.go":      concepts,
	"limit.go":     concepts,
	"memory.go":    concepts,
	"outbox.go":    concepts,
	"proc_unix.go": concepts,
	"files.go":     concepts,
	"era.go":       concepts,
	"claims.go":    {"Session", "Module", "View", "Scope", "httpErrorf", "fault"},
	"session.go":   {"Module", "View", "Item", "Worker", "Registry"},
	"scope.go":     {"Module", "View", "Item", "Registry"},
	"view.go":      {"Session", "Gate", "ClaimStore"},
	"worker.go":    {"Scope", "View", "Claim", "Gate"},
	"pool.go":      {"Scope", "View", "Claim", "Gate"},
	"mcp.go":       {"Worker", "Catalog", "pool"},
	"transport.go": {"Registry", "Worker", "Catalog", "pool", "Claim"},
	"signature.go": concepts,
	"webhook.go":   {"Worker", "Catalog", "pool", "Claim", "Session"},
}

// concepts are usher's own: the ground layer knows none of them.
var concepts = []string{
	"Claim", "Scope", "Principal", "Gate", "Session", "Module", "View", "Item",
	"Registry", "Worker", "pool",
}

// allowedFiles lists which files may name what decides about access: "Type.member" for
// a field or method, or the name of a function.
var allowedFiles = map[string][]string{
	// The processes behind a module: with them, a file could call past the View.
	"Module.pool": {"view.go", "modules.go"},
	// The modules of a catalog, in and out of scope.
	"Catalog.modules":  {"view.go", "report.go"},
	"Registry.modules": {"modules.go"},
	"Registry.catalog": {"modules.go", "report.go"},
	// The scope of everything.
	"scopeAll": {"scope.go", "webhook.go", "serve.go", "report.go", "cli.go"},
	"everyone": {"claims.go", "scope.go", "transport.go", "cli.go"},
	// Other ways to make a scope.
	"Scope.all": {"scope.go", "names.go", "view.go"},
	"scopeDir":  {"scope.go", "runtimes.go", "cli.go"},
	// Only scope.go judges a presented code.
	"ClaimStore.Lookup": {"claims.go", "scope.go", "cli.go"},
	"Gate.Admit":        {"scope.go", "transport.go"},
}

// house is the program, parsed and type-checked.
type house struct {
	fset  *token.FileSet
	files map[string]*ast.File
	info  *types.Info
	uses  map[string]map[string]string // file → file used → one name that it uses there
	named map[string]map[string]bool   // "Type.member" or "name" → files that name it

	structs map[types.Object]string // field → its type
}

func readHouse(t *testing.T) *house {
	t.Helper()
	h, err := checkedHouse()
	must(t, err)
	return h
}

// checkedHouse reads the program once for all tests.
var checkedHouse = sync.OnceValues(func() (*house, error) {
	h := &house{
		fset:  token.NewFileSet(),
		files: make(map[string]*ast.File),
		info: &types.Info{
			Uses:       make(map[*ast.Ident]types.Object),
			Selections: make(map[*ast.SelectorExpr]*types.Selection),
		},
		uses:  make(map[string]map[string]string),
		named: make(map[string]map[string]bool),

		structs: make(map[types.Object]string),
	}
	var checked []*ast.File
	for _, name := range programFiles() {
		f, err := parser.ParseFile(h.fset, name, nil, parser.ParseComments)
		if err != nil {
			return nil, err
		}
		h.files[name] = f
		checked = append(checked, f)
	}
	lookup, err := exportData(checked)
	if err != nil {
		return nil, err
	}
	conf := types.Config{Importer: importer.ForCompiler(h.fset, "gc", lookup)}
	pkg, err := conf.Check("usher", h.fset, checked, h.info)
	if err != nil {
		return nil, err
	}
	for _, name := range pkg.Scope().Names() {
		typ, ok := pkg.Scope().Lookup(name).(*types.TypeName)
		if !ok {
			continue
		}
		if s, ok := typ.Type().Underlying().(*types.Struct); ok {
			for field := range s.Fields() {
				h.structs[field] = cmp.Or(h.structs[field], name)
			}
		}
	}
	for id, object := range h.info.Uses {
		h.note(h.file(id.Pos()), object)
	}
	return h, nil
})

// programFiles lists the program's Go files. Modules that a reader of the
// documentation saved beside them are left out.
func programFiles() []string {
	names, _ := filepath.Glob("*.go")
	return slices.DeleteFunc(names, func(name string) bool {
		return strings.HasSuffix(name, "_test.go") || strings.HasSuffix(name, ".usher.go")
	})
}

// testFiles lists the Go files of the tests.
func testFiles() []string {
	tests, _ := filepath.Glob("*_test.go")
	kit, _ := filepath.Glob("internal/*/*.go")
	return append(tests, kit...)
}

// exportData returns a lookup of the export data of all that files import. One run of the
// go command finds it; an importer alone would start one for each package.
func exportData(files []*ast.File) (importer.Lookup, error) {
	args := []string{"list", "-gcflags=", "-deps", "-export", "-f",
		"{{.ImportPath}} {{.Export}}"}
	for _, f := range files {
		for _, imp := range f.Imports {
			args = append(args, strings.Trim(imp.Path.Value, `"`))
		}
	}
	list, err := exec.Command("go", args...).Output()
	if err != nil {
		return nil, err
	}
	exports := make(map[string]string)
	for line := range strings.Lines(string(list)) {
		path, file, _ := strings.Cut(strings.TrimSpace(line), " ")
		exports[path] = file
	}
	return func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) }, nil
}

func (h *house) file(pos token.Pos) string { return h.fset.Position(pos).Filename }

// note records that a file names an object of this package.
func (h *house) note(user string, object types.Object) {
	if object.Pkg() == nil || object.Pkg().Name() != "main" || !object.Pos().IsValid() {
		return
	}
	name := object.Name()
	if owner := h.ownerOf(object); owner != "" {
		name = owner + "." + name
	} else if object.Parent() != object.Pkg().Scope() {
		return // local to a function
	}
	if h.named[name] == nil {
		h.named[name] = make(map[string]bool)
	}
	h.named[name][user] = true
	if used := h.file(object.Pos()); used != user {
		if h.uses[user] == nil {
			h.uses[user] = make(map[string]string)
		}
		h.uses[user][used] = name
	}
}

// ownerOf returns the type that a method or field belongs to, or "".
func (h *house) ownerOf(object types.Object) string {
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
		return cmp.Or(h.structs[object], "struct")
	}
	return ""
}

// layerOf returns the index of a file's layer, or -1.
func layerOf(file string) int {
	for i, layer := range layers {
		if slices.Contains(layer.files, file) {
			return i
		}
	}
	return -1
}

// A file uses only its own layer and earlier ones.
func TestLayers(t *testing.T) {
	long(t)
	h := readHouse(t)
	for name := range h.files {
		if layerOf(name) < 0 {
			t.Errorf("%s is in no layer", name)
		}
	}
	for user, used := range h.uses {
		for other, name := range used {
			if layerOf(other) > layerOf(user) {
				t.Errorf("%s (%s) uses %s of %s (%s), a later layer",
					user, layers[layerOf(user)].name, name, other, layers[layerOf(other)].name)
			}
		}
	}
}

// No more than maxGroup files depend on each other.
func TestGroups(t *testing.T) {
	long(t)
	h := readHouse(t)
	for file := range h.files {
		var group []string
		for other := range h.reach(file) {
			if h.reach(other)[file] {
				group = append(group, other)
			}
		}
		slices.Sort(group)
		if len(group) > maxGroup && group[0] == file {
			t.Errorf(
				"%s depend on each other: want at most %d files",
				strings.Join(group, ", "),
				maxGroup,
			)
		}
	}
}

// reach returns the files that a file uses, directly or through others.
func (h *house) reach(file string) map[string]bool {
	reached := make(map[string]bool)
	for todo := []string{file}; len(todo) > 0; {
		user := todo[0]
		todo = todo[1:]
		for used := range h.uses[user] {
			if !reached[used] {
				reached[used] = true
				todo = append(todo, used)
			}
		}
	}
	return reached
}

// A file does not name what could let it widen a scope.
func TestForbiddenNames(t *testing.T) {
	long(t)
	h := readHouse(t)
	for file, words := range forbiddenNames {
		for _, word := range words {
			if h.named[word][file] {
				t.Errorf("%s names %s", file, word)
			}
		}
	}
	for what, allowed := range allowedFiles {
		if len(h.named[what]) == 0 {
			t.Errorf("nothing names %s: is the table out of date?", what)
		}
		for file := range h.named[what] {
			if !slices.Contains(allowed, file) {
				t.Errorf("%s names %s, which only %s may name", file, what,
					strings.Join(allowed, ", "))
			}
		}
	}
}

// Files, functions and lines are no larger than the limits above.
func TestSizes(t *testing.T) {
	long(t)
	files := programFiles()
	var program, tests, shims codeSize
	scopeLines := 0
	for _, name := range files {
		size := measure(t, name, maxColumns)
		program.add(size)
		if slices.Contains(scopeFiles, name) {
			scopeLines += size.lines
		}
		if size.lines > maxFileLines {
			t.Errorf("%s has %d lines of code: want at most %d", name, size.lines, maxFileLines)
		}
	}
	for _, name := range testFiles() {
		tests.add(measure(t, name, maxColumns))
	}
	for _, name := range []string{"gomain.go.txt", "shim.mjs", "shim.py", "shim.sh"} {
		columns := maxRuntimeColumns
		if strings.HasPrefix(name, "gomain") {
			columns = maxColumns
		}
		shims.add(measure(t, "runtimes/"+name, columns))
	}
	t.Logf("%d files, %d lines of code, %d characters, 95 %% of the lines within %d columns",
		len(files), program.lines, program.text, program.usual())
	for _, limit := range []struct {
		what      string
		got, most int
	}{
		{"files", len(files), maxFiles},
		{"characters of code", program.text, maxProgramText},
		{"columns for 95 % of the lines", program.usual(), maxUsualColumns},
		{"columns for 95 % of the lines of tests", tests.usual(), maxUsualColumns},
		{"lines of code in claims.go, scope.go and view.go", scopeLines, maxScopeLines},
		{"characters of code in the shims and the Go main", shims.text, maxRuntimeText},
	} {
		if limit.got > limit.most {
			t.Errorf("%d %s: want at most %d", limit.got, limit.what, limit.most)
		}
	}
}

// codeSize measures code: text without comments, blank lines and indentation.
type codeSize struct {
	lines, text int
	widths      []int
}

func (s *codeSize) add(other codeSize) {
	s.lines += other.lines
	s.text += other.text
	s.widths = append(s.widths, other.widths...)
}

// usual returns the columns that 95 % of the lines fit in.
func (s *codeSize) usual() int {
	slices.Sort(s.widths)
	return s.widths[len(s.widths)*95/100]
}

// docstring matches a docstring of Python, which is a comment.
var docstring = regexp.MustCompile(`(?ms)^[ \t]*""".*?"""[ \t]*$`)

// measure measures a file, whose lines have at most so many columns. A comment after code counts for the width of its line only
// in Go files, where the comment is cut off.
func measure(t *testing.T, name string, most int) (size codeSize) {
	t.Helper()
	text := readFile(t, name)
	if strings.HasSuffix(name, ".py") {
		text = docstring.ReplaceAllStringFunc(text, func(doc string) string {
			return strings.Repeat("\n", strings.Count(doc, "\n"))
		})
	}
	isGo := strings.Contains(name, ".go")
	lines := strings.Split(text, "\n")
	if isGo {
		lines = blankComments(t, name, text)
	}
	for i, line := range lines {
		line = strings.TrimRight(line, " \t\r")
		code := strings.TrimSpace(line)
		if code == "" || !isGo &&
			(strings.HasPrefix(code, "//") || strings.HasPrefix(code, "#")) {
			continue
		}
		width := len([]rune(strings.ReplaceAll(line, "\t", "    ")))
		size.lines++
		size.text += len([]rune(code))
		size.widths = append(size.widths, width)
		if width > most {
			t.Errorf("%s:%d has %d columns: want at most %d", name, i+1, width, most)
		}
	}
	return size
}

// blankComments returns the lines of a Go file without its comments.
func blankComments(t *testing.T, name, text string) []string {
	t.Helper()
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, name, text, parser.ParseComments)
	must(t, err)
	code := []byte(text)
	for _, group := range f.Comments {
		for _, c := range group.List {
			for i := fset.Position(c.Pos()).Offset; i < fset.Position(c.End()).Offset; i++ {
				if code[i] != '\n' {
					code[i] = ' '
				}
			}
		}
	}
	return strings.Split(string(code), "\n")
}

// main.go's tour names every file.
func TestTour(t *testing.T) {
	tour := readFile(t, "main.go")
	for _, layer := range layers {
		for _, file := range layer.files {
			if !strings.Contains(tour, strings.TrimSuffix(file, ".go")) {
				t.Errorf("main.go's tour does not name %s", file)
			}
		}
	}
}

// network matches what opens sockets.
var network = regexp.MustCompile(`^(net|tls|http)\.(Dial|Listen($|[ACPTU])|` +
	`Get|Post|Head$|Client$|Default|Transport$)`)

// sockets are the uses of network: usher serve listens at -addr, and usher call connects to -url.
var sockets = []string{"serve.go net.Listen", "cli.go http.DefaultTransport",
	"cli.go http.DefaultTransport.RoundTrip"}

// Every file says what it owns, functions are short, only main.go ends the process, and
// usher opens one socket. At most 100 fuzz inputs are committed. No test sleeps.
func TestHouseRules(t *testing.T) {
	fset := token.NewFileSet()
	for _, name := range programFiles() {
		f, err := parser.ParseFile(fset, name, nil, parser.ParseComments)
		must(t, err)
		if len(f.Comments) == 0 || f.Comments[0].Pos() > f.Name.Pos() {
			t.Errorf("%s has no comment that says what it owns", name)
		}
		for _, imp := range f.Imports {
			if first, _, _ := strings.Cut(strings.Trim(imp.Path.Value, `"`),
				"/"); strings.Contains(first, ".") {
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
			if !ok {
				return true
			}
			call := types.ExprString(sel)
			if name != "main.go" &&
				(call == "os.Exit" || strings.HasPrefix(call, "log.Fatal")) {
				t.Errorf("%s calls %s: only main.go may end the process", name, call)
			}
			if network.MatchString(call) && !slices.Contains(sockets, name+" "+call) {
				t.Errorf("%s names %s: usher listens at -addr and connects to -url", name, call)
			}
			return true
		})
	}
	if inputs, _ := filepath.Glob("testdata/fuzz/*/*"); len(inputs) > 100 {
		t.Errorf("%d fuzz inputs: keep those that once failed, and one per branch", len(inputs))
	}
	for _, name := range testFiles() {
		text, _ := os.ReadFile(name)
		if bytes.Contains(text, []byte("time."+"Sleep(")) {
			t.Errorf("%s sleeps", name)
		}
	}
}

var testName = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)

// testNames returns the names of all tests and fuzz targets.
func testNames(t *testing.T) map[string]bool {
	t.Helper()
	names := make(map[string]bool)
	files, _ := filepath.Glob("*_test.go")
	for _, file := range files {
		for _, test := range testName.FindAllStringSubmatch(readFile(t, file), -1) {
			names[test[1]] = true
		}
	}
	return names
}

// checkIndex checks that an index has each row of a table, and no other, and that the tests it
// names exist. An entry that names none says why.
func checkIndex(t *testing.T, rows []string, index map[string]string) {
	t.Helper()
	slices.Sort(rows)
	check(t, "rows", sortedKeys(index), slices.Compact(rows))
	tests := testNames(t)
	for row, test := range index {
		if strings.HasPrefix(test, "Test") {
			check(t, row+": there is "+test, tests[test], true)
		}
	}
}
