// A Go source file as a module: which of its functions are methods, their JSON
// Schema, and the main that is generated for it. All of it is read from the
// syntax of that one file: nothing is started, no other file is opened, and a
// type of another package is not known. The build is in gobuild.go.
//
// In reading order: parseGoModule decides about the file; goFile.tool about one
// function; goSchemaBuilder writes the schema of its parameter, for which
// goFile.fields repeats the rules by which encoding/json finds a struct's fields.
// What is said of a type is what encoding/json does with it, not what one could
// wish: a method gets its parameter from there and nowhere else.

package main

import (
	"bytes"
	"cmp"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/build/constraint"
	"go/format"
	"go/parser"
	"go/scanner"
	"go/token"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// goMainText is the main of every module, but for the module's name and table of
// methods. It is no .go file to the go command, which would want to build it.
//
//go:embed runtimes/gomain.go.txt
var goMainText string

// A goSource is what a module's file says about itself, by its syntax alone.
type goSource struct {
	Name     string            // the module's name: the file's up to .usher
	Doc      string            // the package comment
	Tools    []json.RawMessage // MCP tool definitions, one line each, in source order
	Problems []string          // "x.usher.go:12: HandleX: why it can't be hosted"

	methods []goMethod
}

// A goMethod is an exported function that can be called as a method. Its tool
// definition is in goSource.Tools too, at the same index.
type goMethod struct {
	name string // handleContact
	fn   string // HandleContact
}

// A goBuildError says why a file is no module that runs: the lines of the parser
// or the compiler, as "x.usher.go:12:5: message". There is at least one.
type goBuildError struct{ Lines []string }

// Error is the first line, and how many there are.
func (e *goBuildError) Error() string {
	if n := len(e.Lines) - 1; n > 0 {
		return fmt.Sprintf("%s (and %d more)", e.Lines[0], n)
	}
	return e.Lines[0]
}

// goShapes is what a method may look like; it ends most problems.
const goShapes = "want func([ctx context.Context], [p T], [report func(progress, total float64, message string)], " +
	"[ask func(method string, params any) (json.RawMessage, error)]) [(R, error) | error | R] with T a struct of this file"

// parseGoModule reads the module at path, whose content is src. It returns a
// *goBuildError for a file that can't be built whatever its functions look like;
// functions that can't be hosted are Problems, and the rest is hosted.
func parseGoModule(path string, src []byte) (*goSource, error) {
	base := filepath.Base(path)
	file := &goFile{fset: token.NewFileSet(), base: base, types: map[string]*goType{}, imports: map[string]string{}}
	syntax, err := parser.ParseFile(file.fset, base, src, parser.ParseComments|parser.AllErrors|parser.SkipObjectResolution)
	var list scanner.ErrorList
	if errors.As(err, &list) {
		list.RemoveMultiples() // the first on a line tells, the others follow from it
		// Positions are made of the base name: no absolute path gets into a
		// message that a session may see.
		lines := make([]string, len(list))
		for i, e := range list {
			lines[i] = e.Error()
		}
		return nil, &goBuildError{Lines: lines}
	}
	if err != nil {
		return nil, &goBuildError{Lines: []string{base + ": " + err.Error()}}
	}
	// From here on the file is Go, if not Go that compiles: that is left to the
	// compiler, which knows more and says it better.
	name, _, _ := strings.Cut(base, ".usher")
	source := &goSource{Name: name, Doc: strings.TrimSpace(syntax.Doc.Text()), Tools: []json.RawMessage{}}
	if syntax.Name.Name != "main" {
		return nil, file.fault(syntax.Name, "package %s: a module is package main", syntax.Name.Name)
	}
	if err := file.declare(syntax); err != nil {
		return nil, err
	}
	if isInGoBuild(syntax) {
		source.Problems = append(source.Problems, base+":1: add the line //go:build usher at the top, "+
			"followed by an empty one: without it, go build ./... takes this file for a program without main")
	}
	byName := map[string]string{} // method: function
	for _, decl := range syntax.Decls {
		fn, ok := decl.(*ast.FuncDecl)
		if !ok || fn.Recv != nil || !fn.Name.IsExported() {
			continue
		}
		m := goMethod{name: goMethodName(fn.Name.Name), fn: fn.Name.Name}
		tool, err := file.tool(m.name, fn)
		// Of two functions with one name the first is hosted: which of them it is
		// must not depend on the second.
		if other := byName[m.name]; err == nil && other != "" {
			err = fmt.Errorf("its name as a method, %s, is that of %s too: rename one", m.name, other)
		}
		if err != nil {
			source.Problems = append(source.Problems, file.fault(fn.Name, "%s: %v", m.fn, err).Lines[0])
			continue
		}
		byName[m.name] = m.fn
		source.methods = append(source.methods, m)
		source.Tools = append(source.Tools, tool)
	}
	return source, nil
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

// isInGoBuild tells whether go build ./... would compile the file. The tag
// ignore, which is never set either, keeps it out as well as usher does.
func isInGoBuild(syntax *ast.File) bool {
	for _, group := range syntax.Comments {
		for _, c := range group.List {
			if c.Pos() > syntax.Package || !constraint.IsGoBuild(c.Text) {
				continue
			}
			// Any other tag may be set on someone's machine.
			if expr, err := constraint.Parse(c.Text); err == nil {
				return expr.Eval(func(tag string) bool { return tag != "usher" && tag != "ignore" })
			}
		}
	}
	return true
}

// goFile is what must be known of a file to understand the types in it.
type goFile struct {
	fset    *token.FileSet
	base    string
	types   map[string]*goType
	imports map[string]string // local name: path
}

// A goType is a type declared at the top level of the file.
type goType struct {
	expr    ast.Expr
	doc     string
	alias   bool
	generic bool
	// Methods by which the type decodes itself, so that its structure says
	// nothing about its JSON.
	unmarshalJSON, unmarshalText bool
}

// fault is an error of one line, about the line of the file where at begins.
func (f *goFile) fault(at ast.Node, format string, args ...any) *goBuildError {
	line := f.fset.Position(at.Pos()).Line
	return &goBuildError{Lines: []string{fmt.Sprintf("%s:%d: ", f.base, line) + fmt.Sprintf(format, args...)}}
}

// declare enters the file's imports and types. Its error is a name that the
// generated main needs for itself.
func (f *goFile) declare(syntax *ast.File) error {
	for _, spec := range syntax.Imports {
		// The last element is a package's name for the three that matter here.
		path, _ := strconv.Unquote(spec.Path.Value)
		name := path[strings.LastIndexByte(path, '/')+1:]
		if spec.Name != nil {
			name = spec.Name.Name
		}
		f.imports[name] = path
	}
	// Imports are the file's own and can't clash with those of the generated
	// main, but what is declared at the top level is shared by both.
	reserved := goReservedNames()
	for _, name := range f.declareAll(syntax) {
		switch {
		case name.Name == "main":
			return f.fault(name, "main is declared: usher generates the main of a module, so remove it or rename it")
		case strings.HasPrefix(name.Name, "usher__"):
			return f.fault(name, "%s: names that begin with usher__ belong to the generated main", name.Name)
		case reserved[name.Name]:
			return f.fault(name, "%s: the generated main uses Go's own %[1]s, so give this another name", name.Name)
		}
	}
	return nil
}

// declareAll enters the types and returns all names at the top level.
func (f *goFile) declareAll(syntax *ast.File) []*ast.Ident {
	var names []*ast.Ident
	for _, decl := range syntax.Decls {
		switch decl := decl.(type) {
		case *ast.FuncDecl:
			if decl.Recv == nil {
				names = append(names, decl.Name)
			}
		case *ast.GenDecl:
			for _, spec := range decl.Specs {
				switch spec := spec.(type) {
				case *ast.ValueSpec:
					names = append(names, spec.Names...)
				case *ast.TypeSpec:
					names = append(names, spec.Name)
					// The comment of an ungrouped type belongs to the declaration,
					// that above a group to no type in it.
					doc := spec.Doc
					if doc == nil && !decl.Lparen.IsValid() {
						doc = decl.Doc
					}
					f.types[spec.Name.Name] = &goType{expr: spec.Type, doc: goComment(doc, spec.Comment),
						alias: spec.Assign.IsValid(), generic: spec.TypeParams != nil}
				}
			}
		}
	}
	// Methods may stand before their type, so they take a second walk.
	for _, decl := range syntax.Decls {
		if fn, ok := decl.(*ast.FuncDecl); ok && fn.Recv != nil && len(fn.Recv.List) == 1 {
			receiver, _ := ast.Unparen(goPointee(fn.Recv.List[0].Type)).(*ast.Ident)
			if receiver != nil && f.types[receiver.Name] != nil {
				t := f.types[receiver.Name]
				t.unmarshalJSON = t.unmarshalJSON || fn.Name.Name == "UnmarshalJSON"
				t.unmarshalText = t.unmarshalText || fn.Name.Name == "UnmarshalText"
			}
		}
	}
	return names
}

// goReservedNames are the predeclared names the generated main uses. A module
// that declares one of them would change what it means there.
func goReservedNames() map[string]bool {
	names := map[string]bool{}
	syntax, err := parser.ParseFile(token.NewFileSet(), "main.go", goMainText, 0)
	if err != nil {
		panic(err) // embedded, and tested
	}
	// Unresolved are the names that the file uses and does not declare: for a
	// program of one file, those that Go itself declares.
	for _, id := range syntax.Unresolved {
		names[id.Name] = true
	}
	return names
}

// tool makes the tool definition of a function, or says why it can't be hosted.
// The description is the comment as it stands, tags and all: what the tags mean
// is the same for every language, and decided elsewhere.
func (f *goFile) tool(name string, fn *ast.FuncDecl) (json.RawMessage, error) {
	// Its type arguments would have to come from somewhere.
	if fn.Type.TypeParams != nil {
		return nil, errors.New("a function with type parameters can't be called from outside; " + goShapes)
	}
	if err := f.checkResults(fn.Type.Results); err != nil {
		return nil, err
	}
	param, err := f.paramStruct(fn.Type.Params)
	if err != nil {
		return nil, err
	}
	// Some clients insist on properties, be there none.
	schema := &goSchema{Type: "object", Properties: json.RawMessage("{}")}
	if param != nil {
		b := &goSchemaBuilder{file: f, open: map[string]bool{}, recursive: map[string]bool{}, defs: map[string]*goSchema{}}
		if schema, err = b.param(param); err != nil {
			return nil, err
		}
	}
	return marshal(struct {
		Name        string    `json:"name"`
		Description string    `json:"description,omitempty"`
		InputSchema *goSchema `json:"inputSchema"`
	}{name, strings.TrimSuffix(fn.Doc.Text(), "\n"), schema}), nil
}

// paramStruct returns the type of the one parameter that is a method's own, nil
// for none. It is an error when the parameters have no shape of a method.
func (f *goFile) paramStruct(params *ast.FieldList) (ast.Expr, error) {
	// Each kind of parameter is taken if it is the next one; what is then left
	// over, if only because of the order, has no place in a method.
	types := flattenGoFields(params)
	n := 0
	if n < len(types) && f.isImported(types[n], "context", "Context") {
		n++
	}
	var param ast.Expr
	if n < len(types) {
		inner := goPointee(types[n])
		if _, ok := f.underlying(inner).(*ast.StructType); ok {
			param = inner
			n++
		}
	}
	for _, shape := range []string{"float64,float64,string:", "string,any:json.RawMessage,error"} {
		if n == len(types) {
			break
		}
		if fn, ok := f.underlying(types[n]).(*ast.FuncType); ok && f.signature(fn) == shape {
			n++
		}
	}
	if n == len(types) {
		return param, nil
	}
	return nil, fmt.Errorf("parameter %d is %s; %s", n+1, goText(types[n]), goShapes)
}

// checkResults refuses what no method returns. A result that holds something
// without a JSON form, further in, is told when a call returns it.
func (f *goFile) checkResults(results *ast.FieldList) error {
	types := flattenGoFields(results)
	// Nothing but the word error will do: a type of the module that implements it
	// is a value like any other, and a nil pointer in an error is not nil.
	isError := func(e ast.Expr) bool { return goText(e) == "error" && f.types["error"] == nil }
	if len(types) > 2 || len(types) == 2 && (isError(types[0]) || !isError(types[1])) {
		texts := make([]string, len(types))
		for i, t := range types {
			texts[i] = goText(t)
		}
		return fmt.Errorf("its results are (%s); %s", strings.Join(texts, ", "), goShapes)
	}
	for _, t := range types {
		switch t := f.underlying(goPointee(t)).(type) {
		case *ast.ChanType, *ast.FuncType:
			return fmt.Errorf("a result of type %s can't be written as JSON", goText(t))
		case *ast.Ident:
			if strings.HasPrefix(t.Name, "complex") {
				return fmt.Errorf("a result of type %s can't be written as JSON", t.Name)
			}
		}
	}
	return nil
}

// signature writes a func type as its parameters and results, without names, so
// that types can be compared as text: "string,any:json.RawMessage,error". Types
// that serve as well as one another are written as one.
func (f *goFile) signature(fn *ast.FuncType) string {
	join := func(list *ast.FieldList) string {
		var texts []string
		for _, t := range flattenGoFields(list) {
			switch text := goText(t); {
			case f.isImported(t, "encoding/json", "RawMessage"), text == "[]byte":
				texts = append(texts, "json.RawMessage")
			case text == "interface{}":
				texts = append(texts, "any")
			default:
				texts = append(texts, text)
			}
		}
		return strings.Join(texts, ",")
	}
	return join(fn.Params) + ":" + join(fn.Results)
}

// underlying follows names declared in the file. It returns e itself for what
// the file does not declare, and nil for generic types and for cycles.
func (f *goFile) underlying(e ast.Expr) ast.Expr {
	for range len(f.types) + 1 { // more steps than names is a cycle
		e = ast.Unparen(e)
		id, ok := e.(*ast.Ident)
		if !ok || f.types[id.Name] == nil {
			return e
		}
		if f.types[id.Name].generic {
			return nil
		}
		e = f.types[id.Name].expr
	}
	return nil
}

// isImported tells whether e is the name of a package's type, whatever the
// package is called in this file.
func (f *goFile) isImported(e ast.Expr, path, name string) bool {
	s, ok := ast.Unparen(e).(*ast.SelectorExpr)
	if !ok || s.Sel.Name != name {
		return false
	}
	pkg, ok := s.X.(*ast.Ident)
	return ok && f.imports[pkg.Name] == path
}

// flattenGoFields lists the types of parameters or results, one for each.
func flattenGoFields(list *ast.FieldList) []ast.Expr {
	var types []ast.Expr
	if list == nil {
		return nil
	}
	for _, field := range list.List {
		for range max(1, len(field.Names)) {
			types = append(types, field.Type)
		}
	}
	return types
}

// goPointee is T for *T, and e itself for all else.
func goPointee(e ast.Expr) ast.Expr {
	if star, ok := ast.Unparen(e).(*ast.StarExpr); ok {
		return star.X
	}
	return e
}

// goText is an expression as source text, shortened to serve in a message.
func goText(e ast.Expr) string {
	var b bytes.Buffer
	if err := format.Node(&b, token.NewFileSet(), e); err != nil {
		return "of an unknown kind"
	}
	// A struct may be a page long.
	text := strings.Join(strings.Fields(b.String()), " ")
	if len(text) > 60 {
		text = strings.ToValidUTF8(text[:60], "") + "…"
	}
	return text
}

// goComment, which may be given nil, is the text of the first comment there is, as a description.
func goComment(groups ...*ast.CommentGroup) string {
	for _, group := range groups {
		if text := strings.Join(strings.Fields(group.Text()), " "); text != "" {
			return text
		}
	}
	return ""
}

// A goSchema is a JSON Schema; its fields stand in the order they are written.
// The zero value allows everything. What is generated here must be understood by
// the schema's reader in the generated main as well.
type goSchema struct {
	Ref             string               `json:"$ref,omitempty"`
	Type            string               `json:"type,omitempty"`
	Description     string               `json:"description,omitempty"`
	Format          string               `json:"format,omitempty"`
	ContentEncoding string               `json:"contentEncoding,omitempty"`
	Minimum         *int                 `json:"minimum,omitempty"`
	Items           *goSchema            `json:"items,omitempty"`
	Properties      json.RawMessage      `json:"properties,omitempty"`
	Required        []string             `json:"required,omitempty"`
	Additional      *goSchema            `json:"additionalProperties,omitempty"`
	Defs            map[string]*goSchema `json:"$defs,omitempty"`
}

// A goSchemaBuilder makes the schema of one method. Its errors say which type
// can't come from JSON.
type goSchemaBuilder struct {
	file      *goFile
	parts     int             // how many were made, at most maxGoSchemaParts
	open      map[string]bool // named types being written out
	recursive map[string]bool // named types that contain themselves
	defs      map[string]*goSchema
}

// param is the schema of the whole input: an object, never a reference to one.
func (b *goSchemaBuilder) param(e ast.Expr) (*goSchema, error) {
	s, err := b.of(e)
	if err != nil {
		return nil, err
	}
	// MCP wants an object at the top, so a type that contains itself is written
	// out here once more beside its definition.
	if s.Ref != "" {
		whole := *b.defs[strings.TrimPrefix(s.Ref, "#/$defs/")]
		s = &whole
	}
	if s.Type != "object" { // it decodes itself, but what comes is an object
		s = &goSchema{Type: "object", Properties: json.RawMessage("{}")}
	}
	s.Description = "" // the tool has one
	if len(b.defs) > 0 {
		s.Defs = b.defs
	}
	return s, nil
}

// of is the schema of what encoding/json reads into a value of type e. Where the
// syntax does not tell, the schema allows everything: a call that should have
// been refused fails when it is decoded, one that should not is not lost.
func (b *goSchemaBuilder) of(e ast.Expr) (*goSchema, error) {
	if b.parts++; b.parts > maxGoSchemaParts {
		return nil, errors.New("its parameters are too large to describe")
	}
	switch e := e.(type) {
	case *ast.ParenExpr:
		return b.of(e.X)
	case *ast.StarExpr:
		return b.of(e.X)
	case *ast.Ident:
		if t := b.file.types[e.Name]; t != nil {
			return b.named(e.Name, t)
		}
		return goBuiltinSchema(e.Name)
	case *ast.SelectorExpr:
		return b.imported(e), nil
	case *ast.ArrayType:
		if b.isByteSlice(e) {
			return &goSchema{Type: "string", ContentEncoding: "base64"}, nil
		}
		items, err := b.of(e.Elt)
		return &goSchema{Type: "array", Items: items}, err
	case *ast.MapType:
		// To JSON a map is an object whose keys are not known beforehand.
		if err := b.checkKey(e.Key); err != nil {
			return nil, err
		}
		values, err := b.of(e.Value)
		return &goSchema{Type: "object", Additional: values}, err
	case *ast.StructType:
		return b.object("", e)
	case *ast.InterfaceType:
		// Into any, encoding/json puts what comes; into all others, nothing.
		if len(e.Methods.List) > 0 {
			return nil, errors.New("an interface with methods can't be read from JSON")
		}
	case *ast.ChanType:
		return nil, errors.New("a channel can't be read from JSON")
	case *ast.FuncType:
		return nil, errors.New("a func can't be read from JSON")
	}
	return &goSchema{}, nil // any, or a generic type: no constraint
}

// goBuiltinSchema is the schema of a type that the file does not declare: one of
// Go's own, or one from a dot import, of which nothing is known. Sizes are not
// described: a model can do nothing with the bounds of an int32, and what does
// not fit is told when it is decoded.
func goBuiltinSchema(name string) (*goSchema, error) {
	switch name {
	case "string":
		return &goSchema{Type: "string"}, nil
	case "bool":
		return &goSchema{Type: "boolean"}, nil
	case "int", "int8", "int16", "int32", "int64", "rune":
		return &goSchema{Type: "integer"}, nil
	case "uint", "uint8", "uint16", "uint32", "uint64", "uintptr", "byte":
		return &goSchema{Type: "integer", Minimum: new(int)}, nil
	case "float32", "float64":
		return &goSchema{Type: "number"}, nil
	case "complex64", "complex128":
		return nil, errors.New("a complex number can't be read from JSON")
	case "error":
		return nil, errors.New("an interface with methods can't be read from JSON")
	}
	return &goSchema{}, nil
}

// imported is the schema of another package's type: known for three packages,
// else no constraint, because its source is not read here.
func (b *goSchemaBuilder) imported(e *ast.SelectorExpr) *goSchema {
	switch is := b.file.isImported; {
	case is(e, "time", "Time"):
		return &goSchema{Type: "string", Format: "date-time"}
	case is(e, "time", "Duration"):
		return &goSchema{Type: "integer", Description: "nanoseconds"}
	case is(e, "encoding/json", "Number"):
		return &goSchema{Type: "number"}
	}
	return &goSchema{}
}

// named is the schema of a type of the file. One that contains itself is put
// into the definitions and referred to; all others are written out.
func (b *goSchemaBuilder) named(name string, t *goType) (*goSchema, error) {
	// Whether a type contains itself shows only when it has been written out: its
	// name then came up while it was open.
	ref := &goSchema{Ref: "#/$defs/" + name}
	if b.open[name] {
		b.recursive[name] = true
		return ref, nil
	}
	if b.defs[name] != nil {
		return ref, nil
	}
	// What a type's methods read, they alone know. For encoding/json too
	// UnmarshalJSON comes first.
	if t.unmarshalText && !t.unmarshalJSON {
		return &goSchema{Type: "string", Description: t.doc}, nil
	}
	if t.unmarshalJSON || t.generic {
		return &goSchema{Description: t.doc}, nil
	}
	b.open[name] = true
	s, err := b.namedBody(name, t)
	delete(b.open, name)
	if err != nil {
		return nil, err
	}
	if t.doc != "" {
		s.Description = t.doc
	}
	if b.recursive[name] && s.Ref != ref.Ref { // type T T is the compiler's to refuse
		b.defs[name] = s
		return ref, nil
	}
	return s, nil
}

// namedBody is the schema of what a type is declared as.
func (b *goSchemaBuilder) namedBody(name string, t *goType) (*goSchema, error) {
	switch e := ast.Unparen(t.expr).(type) {
	case *ast.StructType:
		return b.object(name, e)
	case *ast.SelectorExpr:
		// A type defined as another loses the methods by which that one reads
		// itself: json.Number is a string then, and time.Time nothing known.
		switch s := b.imported(e); {
		case t.alias || s.Type == "integer":
			return s, nil
		case s.Type == "number":
			return &goSchema{Type: "string"}, nil
		case b.file.isImported(e, "encoding/json", "RawMessage"):
			return &goSchema{Type: "string", ContentEncoding: "base64"}, nil
		}
		return &goSchema{}, nil
	}
	return b.of(t.expr)
}

// isByteSlice tells []byte, which JSON has as base64, from [4]byte, which it
// has as four numbers.
func (b *goSchemaBuilder) isByteSlice(e *ast.ArrayType) bool {
	id, ok := b.file.underlying(e.Elt).(*ast.Ident)
	return ok && e.Len == nil && (id.Name == "byte" || id.Name == "uint8")
}

// checkKey allows the map keys that encoding/json can read.
func (b *goSchemaBuilder) checkKey(key ast.Expr) error {
	if id, ok := ast.Unparen(key).(*ast.Ident); ok && b.file.types[id.Name] != nil && b.file.types[id.Name].unmarshalText {
		return nil
	}
	switch u := b.file.underlying(key).(type) {
	case *ast.SelectorExpr:
		return nil // not known; most that are used as keys are strings
	case *ast.Ident:
		if s, err := goBuiltinSchema(u.Name); err == nil && (s.Type == "string" || s.Type == "integer") {
			return nil
		}
	}
	return fmt.Errorf("a map with keys of type %s can't be read from JSON: want strings or integers", goText(key))
}

// object is the schema of a struct; name is that of its type, "" for none. Fields
// that nothing describes are still allowed: encoding/json ignores them.
func (b *goSchemaBuilder) object(name string, st *ast.StructType) (*goSchema, error) {
	s := &goSchema{Type: "object"}
	var properties []member
	for _, field := range b.file.fields(name, st) {
		if field.name == "_webhook" {
			continue // filled in by the daemon, and no one else's to send
		}
		part, err := b.of(field.expr)
		if err != nil {
			return nil, fmt.Errorf("field %s: %w", field.name, err)
		}
		// The string option works on plain values only, and nothing else heeds it.
		if field.quoted && slices.Contains([]string{"string", "integer", "number", "boolean"}, part.Type) {
			part = &goSchema{Type: "string", Description: part.Description}
		}
		// The field says more of its role than its type can.
		if field.doc != "" {
			part.Description = field.doc
		}
		properties = append(properties, member{field.name, marshal(part)})
		if !field.optional {
			s.Required = append(s.Required, field.name)
		}
	}
	s.Properties = joinMembers(properties) // a map would lose the order
	return s, nil
}

// A goField is a struct's field as encoding/json sees it.
type goField struct {
	name     string
	expr     ast.Expr
	doc      string
	index    []int // where it stands, through embedded structs
	tagged   bool  // its name comes from a tag
	optional bool
	quoted   bool // `json:",string"`
}

// rank orders fields of one name: the least deep counts, among equals a tagged one.
func (field goField) rank() int {
	if field.tagged {
		return 2*len(field.index) - 1
	}
	return 2 * len(field.index)
}

// A goEmbedded is a struct whose fields are to be collected.
type goEmbedded struct {
	name     string
	st       *ast.StructType
	index    []int
	optional bool
}

// fields are those of st and of the structs embedded in it, level by level, with
// Go's rule for names that meet: the least deep counts, among equals a tagged
// one, and two that are still equal are both left out.
func (f *goFile) fields(name string, st *ast.StructType) []goField {
	// A type that was seen further up brings nothing new: its fields are hidden.
	var found []goField
	done := map[string]bool{}
	for level := []goEmbedded{{name: name, st: st}}; len(level) > 0; {
		var next []goEmbedded
		count := map[string]int{}
		for _, e := range level {
			// Twice on one level is enough to make all its fields ambiguous.
			if count[e.name]++; done[e.name] || count[e.name] > 2 {
				continue
			}
			fields, inner := f.ownFields(e)
			found, next = append(found, fields...), append(next, inner...)
		}
		for name := range count {
			done[name] = true
		}
		level = next
	}
	// Fields of one name next to each other, the one that counts first.
	slices.SortStableFunc(found, func(a, b goField) int {
		return cmp.Or(cmp.Compare(a.name, b.name), cmp.Compare(a.rank(), b.rank()))
	})
	// Of each run of one name, the first is kept, unless the second is its equal.
	var kept []goField
	for i, n := 0, 0; i < len(found); i += n {
		for n = 1; i+n < len(found) && found[i+n].name == found[i].name; n++ {
		}
		if n == 1 || found[i].rank() != found[i+1].rank() {
			kept = append(kept, found[i])
		}
	}
	slices.SortFunc(kept, func(a, b goField) int { return slices.Compare(a.index, b.index) })
	return kept
}

// ownFields are the fields of one struct, and the structs embedded in it.
func (f *goFile) ownFields(e goEmbedded) (fields []goField, inner []goEmbedded) {
	position := 0 // in the struct, where "A, B int" is two fields
	for _, field := range e.st.Fields.List {
		one := goField{expr: field.Type, doc: goComment(field.Doc, field.Comment), optional: e.optional}
		skip := one.readTag(field.Tag)
		// A pointer is how a method tells absent from zero.
		if _, pointer := f.underlying(field.Type).(*ast.StarExpr); pointer {
			one.optional = true
		}
		names := field.Names
		if names == nil {
			names = []*ast.Ident{goEmbeddedName(field.Type)}
		}
		for _, id := range names {
			one.index = append(slices.Clone(e.index), position)
			position++
			u := f.underlying(goPointee(field.Type))
			st, isStruct := u.(*ast.StructType)
			switch {
			case skip:
			// Fields that are not exported are not JSON's, but an embedded struct's
			// own exported ones are, whatever it is called.
			case field.Names != nil && !id.IsExported(), !isStruct && !id.IsExported():
			case field.Names == nil && !one.tagged && isStruct:
				inner = append(inner, goEmbedded{id.Name, st, one.index, one.optional})
			case field.Names == nil && !one.tagged && !f.isKnown(u):
				// A struct of another package, perhaps: its fields can't be told.
			default:
				named := one
				named.name = cmp.Or(one.name, id.Name)
				fields = append(fields, named)
			}
		}
	}
	return fields, inner
}

// isKnown tells a type whose syntax says what it is.
func (f *goFile) isKnown(e ast.Expr) bool {
	switch e.(type) {
	case nil, *ast.SelectorExpr, *ast.IndexExpr, *ast.IndexListExpr:
		return false
	}
	return true
}

// goEmbeddedName is the name a field has by its type.
func goEmbeddedName(e ast.Expr) *ast.Ident {
	switch e := ast.Unparen(goPointee(e)).(type) {
	case *ast.Ident:
		return e
	case *ast.SelectorExpr:
		return e.Sel
	case *ast.IndexExpr:
		return goEmbeddedName(e.X)
	case *ast.IndexListExpr:
		return goEmbeddedName(e.X)
	}
	return ast.NewIdent("_") // not Go; the compiler will say so
}

// readTag takes what the json tag says, and tells whether the field is left out.
// A name that encoding/json would not take is no name; the options still count.
func (field *goField) readTag(literal *ast.BasicLit) (skip bool) {
	if literal == nil {
		return false
	}
	// Only the lone dash leaves a field out: "-," names it so.
	text, _ := strconv.Unquote(literal.Value)
	tag := reflect.StructTag(text).Get("json")
	name, options, _ := strings.Cut(tag, ",")
	// omitempty is about writing, but who leaves a field out when it is empty
	// has to expect it left out.
	for option := range strings.SplitSeq(options, ",") {
		field.quoted = field.quoted || option == "string"
		field.optional = field.optional || option == "omitempty" || option == "omitzero"
	}
	for _, r := range name {
		if !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("!#$%&()*+-./:;<=>?@[]^_{|}~ ", r) {
			return tag == "-" // encoding/json does not take such a name
		}
	}
	field.name, field.tagged = name, name != ""
	return tag == "-"
}

// generateMain fills in the module's name and methods. Functions are named, not
// called: what they take and return is found at run time, by reflection, so no
// type of the module has to be written down a second time.
func (s *goSource) generateMain() string {
	var table strings.Builder
	for i, m := range s.methods {
		fmt.Fprintf(&table, "\n\t{name: %q, f: usher__reflect.ValueOf(%s), tool: usher__json.RawMessage(%q)},", m.name, m.fn, s.Tools[i])
	}
	return strings.NewReplacer(`"" /*usher:name*/`, strconv.Quote(s.Name),
		" /*usher:methods*/ ", table.String()+"\n").Replace(goMainText)
}
