// Tests of gomodule.go: golden files of what is read from a module's syntax,
// tables of shapes, and the schema's fields held against encoding/json's.

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var updateGomodule = flag.Bool("update-gomodule", false, "rewrite the golden files of testdata/gomodule")

func TestGoModuleGolden(t *testing.T) {
	files, err := filepath.Glob("testdata/gomodule/*.go.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no golden files: %v", err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".go.txt")
		t.Run(name, func(t *testing.T) {
			src, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var golden struct {
				Doc      string            `json:"doc,omitempty"`
				Tools    []json.RawMessage `json:"tools,omitempty"`
				Problems []string          `json:"problems,omitempty"`
				Error    []string          `json:"error,omitempty"`
			}
			source, err := parseGoModule("some/folder/"+name+".usher.go", src)
			var wrong *goBuildError
			switch {
			case errors.As(err, &wrong):
				golden.Error = wrong.Lines
			case err != nil:
				t.Fatal(err)
			default:
				golden.Doc, golden.Tools, golden.Problems = source.Doc, source.Tools, source.Problems
			}
			var got bytes.Buffer
			if err := json.Indent(&got, marshal(golden), "", "  "); err != nil {
				t.Fatal(err)
			}
			got.WriteByte('\n')
			path := strings.TrimSuffix(file, ".go.txt") + ".json"
			if *updateGomodule {
				if err := os.WriteFile(path, got.Bytes(), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got.Bytes(), want) {
				t.Errorf("%s differs; got:\n%s", path, got.Bytes())
			}
		})
	}
}

func TestGoMethodName(t *testing.T) {
	for fn, want := range map[string]string{
		"HandleContact": "handleContact", "URLFor": "urlFor", "URL": "url", "A": "a", "AB": "ab", "HTTP2Get": "http2Get",
		"GetURL": "getURL", "ABTest": "abTest", "X1": "x1", "Über": "über", "Do_It": "do_It",
	} {
		if got := goMethodName(fn); got != want {
			t.Errorf("%s is %s, want %s", fn, got, want)
		}
	}
}

func TestGoModuleShapes(t *testing.T) {
	for _, row := range []struct{ signature, problem string }{
		{"()", ""},
		{"() error", ""},
		{"() (out string, err error)", ""},
		{"() any", ""},
		{"() func()", "result of type func() can't be written"},
		{"() (a, b int)", "its results are (int, int)"},
		{"() (int, error, error)", "its results are (int, error, error)"},
		{"(ctx c.Context)", ""},
		{"(c.Context, P) P", ""},
		{"(ctx c.Context, p *P)", ""},
		{"(p **P)", "parameter 1 is **P"},
		{"(p Alias)", ""},
		{"(p Generic[int])", "parameter 1 is Generic[int]"},
		{"(p map[string]any)", "parameter 1 is map[string]any"},
		{"(p any)", "parameter 1 is any"},
		{"(p Missing)", "parameter 1 is Missing"},
		{"(p struct{})", ""},
		{"(report func(progress, total float64, message string))", ""},
		{"(ctx c.Context, p P, report Report) (P, error)", ""},
		{"(report Report, p P)", "parameter 2 is P"},
		{"(report func(float64, float64, string) error)", "parameter 1 is func"},
		{"(ask func(method string, params any) (j.RawMessage, error))", ""},
		{"(p P, ask func(string, interface{}) (j.RawMessage, error))", ""},
		{"(ctx c.Context, p P, report Report, ask Ask) (P, error)", ""},
		{"(report Report, ask func(string, any) ([]byte, error))", ""},
		{"(ask Ask, report Report)", "parameter 2 is Report"},
		{"(ask Ask, p P)", "parameter 2 is P"},
		{"(a, b Ask)", "parameter 2 is Ask"},
		{"(ask func(string, any) (any, error))", "parameter 1 is func"},
		{"(ask func(string, any) j.RawMessage)", "parameter 1 is func"},
		{"(ask func(string, P) (j.RawMessage, error))", "parameter 1 is func"},
		{"(ctx context.Context)", "parameter 1 is context.Context"},
		{"(p Recursive)", "parameter 1 is Recursive"},
		{"(p struct{ R Recursive })", ""},
	} {
		src := "//go:build usher\n\npackage main\n\nimport (c \"context\"; j \"encoding/json\")\n" +
			"type P struct{ A int }\ntype Alias = P\ntype Generic[T any] struct{ X T }\n" +
			"type Report func(float64, float64, string)\ntype Recursive []Recursive\n" +
			"type Ask func(method string, params any) (j.RawMessage, error)\n" +
			"func Run" + row.signature + " { panic(0) }\n"
		source, err := parseGoModule("x.usher.go", []byte(src))
		if err != nil {
			t.Errorf("%s: %v", row.signature, err)
			continue
		}
		problems := strings.Join(source.Problems, "\n")
		if row.problem == "" && (problems != "" || len(source.Tools) != 1) {
			t.Errorf("%s: %s", row.signature, problems)
		}
		if row.problem != "" && (!strings.HasPrefix(problems, "x.usher.go:12: Run: ") || !strings.Contains(problems, row.problem)) {
			t.Errorf("%s: problem is %q, want one with %q", row.signature, problems, row.problem)
		}
	}
}

func TestGoModuleConstraint(t *testing.T) {
	for head, warned := range map[string]bool{
		"//go:build usher\n\n":                   false,
		"// Copyright\n\n//go:build usher\n\n":   false,
		"//go:build usher && linux\n\n":          false,
		"//go:build ignore\n\n":                  false,
		"":                                       true,
		"//go:build linux\n\n":                   true,
		"//go:build !usher\n\n":                  true,
		"//go:build usher || linux\n\n":          true,
		"// go:build usher\n\n":                  true,
		"\uFEFF//go:build usher\n\n":             false,
		"//go:build usher\r\n\r\n":               false,
		"//go:build (\n\n//go:build usher\n\n\n": false,
	} {
		source, err := parseGoModule("x.usher.go", []byte(head+"package main\n"))
		if err != nil {
			t.Errorf("%q: %v", head, err)
		} else if got := len(source.Problems) == 1; got != warned {
			t.Errorf("%q: problems %q", head, source.Problems)
		}
	}
}

// A type as large as 2^24 structs written out must not be tried.
func TestGoModuleSchemaBound(t *testing.T) {
	src := "//go:build usher\n\npackage main\n\nfunc F(p T0) {}\ntype T24 struct{}\n"
	for i := range 24 {
		a, b := "T"+string(marshal(i)), "T"+string(marshal(i+1))
		src += "type " + a + " struct{ L, R " + b + " }\n"
	}
	source, err := parseGoModule("x.usher.go", []byte(src))
	if err != nil || len(source.Problems) != 1 || !strings.Contains(source.Problems[0], "too large") {
		t.Errorf("problems %v, error %v", source.Problems, err)
	}
}

// The structs of TestGoModuleFields: their fields to encoding/json are those
// that the zero value is written with.
type (
	goTestA struct {
		X, Y int
		Z    string `json:"zed"`
	}
	goTestB struct {
		X int `json:"x"`
		Y int
	}
	goTestC struct {
		goTestA
		goTestB
		W bool
	}
	goTestD struct {
		goTestC
		Y      string `json:"Y"`
		hidden int
		Skip   int `json:"-"`
		Dash   int `json:"-,"`
	}
	goTestE struct {
		Named goTestA
		A     goTestA `json:"a"`
		goTestT
		goTestN
		goTestU `json:"u"`
	}
	goTestT []int
	goTestN int
	goTestU struct{ Q int }
	GoTestM map[string]int
	goTestF struct {
		GoTestM
		goTestE
		Bad int `json:"a,b"`
		Not int `json:"\"x"`
	}
	goTestG struct {
		goTestA
		goTestH
	}
	goTestH struct{ goTestA }
	goTestI struct {
		goTestJ
		goTestK
		goTestL
	}
	goTestJ struct{ goTestU }
	goTestK struct{ goTestU }
	goTestL struct{ goTestU }
	goTestO struct {
		A int `json:"B"`
		B int
		C int `json:"D"`
		D int
	}
)

func TestGoModuleFields(t *testing.T) {
	_ = goTestD{}.hidden
	fset := token.NewFileSet()
	syntax, err := parser.ParseFile(fset, "gomodule_test.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	file := &goFile{fset: fset, types: map[string]*goType{}, imports: map[string]string{}}
	file.declareAll(syntax)
	for name, zero := range map[string]any{
		"goTestA": goTestA{}, "goTestC": goTestC{}, "goTestD": goTestD{}, "goTestE": goTestE{}, "goTestF": goTestF{},
		"goTestG": goTestG{}, "goTestI": goTestI{}, "goTestO": goTestO{},
	} {
		var want, got []string
		list, _ := members(marshal(zero))
		for _, m := range list {
			want = append(want, m.key)
		}
		for _, field := range file.fields(name, file.types[name].expr.(*ast.StructType)) {
			got = append(got, field.name)
		}
		if strings.Join(got, " ") != strings.Join(want, " ") {
			t.Errorf("%s: fields %q, want %q", name, got, want)
		}
	}
}

// The generated main is Go for whatever is read from a module, and answers
// nothing by itself that is not JSON.
func FuzzParseGoModule(f *testing.F) {
	files, _ := filepath.Glob("testdata/gomodule/*.go.txt")
	for _, file := range files {
		src, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(src)
	}
	f.Fuzz(func(t *testing.T, src []byte) {
		source, err := parseGoModule("x.usher.go", src)
		var wrong *goBuildError
		if err != nil {
			if !errors.As(err, &wrong) || len(wrong.Lines) == 0 {
				t.Errorf("error without lines: %v", err)
			}
			return
		}
		for _, tool := range source.Tools {
			if !json.Valid(tool) || bytes.ContainsAny(tool, "\r\n") || stringField(tool, "name") == "" {
				t.Errorf("tool %q", tool)
			}
		}
		if _, err := parser.ParseFile(token.NewFileSet(), "main.go", source.generateMain(), 0); err != nil {
			t.Error(err)
		}
	})
}
