// Tests of gomodule.go and of the generated main: the tests build modules, talk to them over their
// pipes, and build them again after a change.

package main

import (
	"context"
	"encoding/json"
	"errors"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const (
	goHead = "//go:build usher\n\npackage main\n\n"
	goMod  = "module example.com/tree\n\ngo 1.22\n"
)

// details returns what a fault says only to the owner.
func details(f *fault) string { return strings.TrimPrefix(explain(f), f.Message+": ") }

// goTestOffer builds a module, and returns what it says of itself or why it can't be built.
func goTestOffer(t *testing.T, name, text string) json.RawMessage {
	t.Helper()
	dir := goTestTree(t, map[string]string{name: text})
	binary, err := buildGoFile(t.Context(), dir+"/cache", dir+"/"+name)
	if wrong, ok := errors.AsType[*fault](err); ok {
		return marshal(map[string]any{"error": strings.Split(details(wrong), "\n")})
	}
	must(t, err)
	p := startBinary(t, binary)
	defer p.End()
	info := p.Request("initialize", "{}")
	return object{
		{"doc", field(info, "instructions")},
		{"tools", marshal(p.Tools())},
		{"problems", field(info, "capabilities", "experimental", "usher/problems", "problems")},
	}.encode()
}

// goTestCallsModule builds a module that is in the way of the main generated for
// it by all it can: its names, imports and prints, a name that go build would
// ignore twice over, a go.mod of an old language, a folder with a space, a file
// to embed, and an internal package that prints and keeps os.Stdout before the
// module's first line runs.
func goTestCallsModule(t *testing.T) (binary string) {
	t.Helper()
	source := readFile(t, "testdata/gomodule/run/calls.usher.go")
	dir := goTestTree(t, map[string]string{
		"go.mod":                      "module example.com/tree\n\ngo 1.16\n",
		"sub/static/a.txt":            "embedded",
		"sub/other.usher.go":          goHead + "func Greet() {}\n",
		"internal/greet/greet.go":     readFile(t, "testdata/gomodule/run/greet.go"),
		"sub/_calls_windows.usher.go": source,
	})
	return goTestBuild(t, dir+"/sub/_calls_windows.usher.go", dir+"/cache")
}

// The generated main speaks MCP, whatever names, imports and prints its module has.
func TestGoModuleSpeaksMCP(t *testing.T) {
	long(t)
	p := startBinary(t, goTestCallsModule(t))
	check(t, "the first line, which an imported package prints", p.Next(), "greet init")
	exchangeLines(p, []lineExchange{
		{rpcAs("0", "initialize", `{"protocolVersion":"2025-06-18","capabilities":{}}`),
			`{"jsonrpc":"2.0","id":0,"result":{"capabilities":{"experimental":{"usher/problems":{` +
				`"problems":null}},` +
				`"tools":{}},"instructions":"","protocolVersion":"2025-11-25",` +
				`"serverInfo":{"name":"_calls_windows","version":"1"}}}`},
		{initialized + "\n" + rpcAs(`"p"`, "tools/list", "{}"),
			`{"jsonrpc":"2.0","id":"p","result":{"tools":[`},
		{rpcAs("5", "server/discover", "{}"),
			`"error":{"code":-32601,"message":"unknown method \"server/discover\""}`},
		// Params that usher would refuse.
		{rpcAs("5", "tools/call",
			`{"name":"length","arguments":{"name":"\"}"},"ARGUMENTS":{"name":"x"},"NAME":"none"}`),
			`{"jsonrpc":"2.0","id":5,"result":{"_meta":{"usher/value":2}}}`},
		{rpcAs("5", "tools/call", `{"name":"none"}`),
			`"error":{"code":-32602,"message":"unknown tool \"none\""}`},
		{`{"jsonrpc":` + "\n" + rpcAs("5", "tools/call", `{"name":"fine"}`),
			`{"jsonrpc":"2.0","id":5,"result":{"_meta":{"usher/value":null}}}`},
	})
	goTestParameters(t, p)
	goTestResults(t, p)
	goTestProgress(t, p)
	goTestConcurrency(t, p)

	// The end of stdin cancels what runs, and the process goes.
	p.SendCall(`"last"`, "wait", "{}")
	p.Call("started", "{}")
	if rest := p.End(); rest != "" {
		checkContains(t, "after the end", rest, `"context canceled"`)
	}
	checkContains(t, "the log", p.Stderr.String(), "set at init", "init without",
		"kept hello", "to stdout", "again",
		"panic in panic: at the disco\v    at main.Panic (")
}

func goTestParameters(t *testing.T, p *modulePeer) {
	for _, row := range []struct{ arguments, want string }{
		{`{"name":"a"}`,
			`"structuredContent":{"name":"a","when":null,"address":null,"_webhook":null}`},
		{`{"name":"a","big":12345678901234567890.10}`,
			`"structuredContent":{"name":"a","big":12345678901234567890.10,`},
		{`{"name":"a","long":9007199254740993}`, `"long":9007199254740993`},
		{`{"name":"a","when":"2026-01-02T03:04:05Z","data":"aGk="}`,
			`"when":"2026-01-02T03:04:05Z"`},
		{`{"name":"a","address":{"city":"b","next":[{"city":"c"}]}}`,
			`"address":{"city":"b","next":[{"city":"c"}]}`},
		{`{"name":"a","count":300}`,
			`{"code":-32602,"message":"json: cannot unmarshal number 300 into Go struct field Params.count ` +
				`of type int8"}`},
	} {
		for _, tool := range []string{"echo", "echoValue"} {
			checkContains(t, tool+row.arguments, p.Call(tool, row.arguments), row.want)
		}
	}
}

func goTestResults(t *testing.T, p *modulePeer) {
	// failed returns how a module itself says that a call failed.
	failed := func(s string) string {
		return `{"content":[{"text":` + string(quote(s)) + `,"type":"text"}],"isError":true}`
	}
	const unwritable = "the result can't be written as JSON: json: unsupported "
	for tool, want := range map[string]string{
		"greet":      shownText("hello embedded"),
		"nothing":    `{"content":[]}`,
		"fine":       `{"content":[]}`,
		"bytes":      shownText("hi"),
		"fail":       failed("no <way>"),
		"errorValue": shownObject("{}"),
		"panic":      failed("panic: at the disco"),
		"goexit":     failed("the method ended its goroutine without returning"),
		"naN":        failed(unwritable + "value: NaN"),
		"print":      shownText("printed"),
		"large":      shownText(strings.Repeat("x", 1<<20)),
	} {
		check(t, tool, p.Call(tool, "{}"), want)
	}
	checkContains(t, "cycle", p.Call("cycle", "{}"), unwritable+"value: encountered a cycle")
	check(t, "a long argument",
		p.CallText("length", `{"name":"`+strings.Repeat("y", 5<<20)+`"}`), "5242880")
}

func goTestProgress(t *testing.T, p *modulePeer) {
	const progress = `"notifications/progress","params":{"progressToken":12345678901234567890,`
	exchangeLines(p, []lineExchange{
		{rpcAs(`"x"`, "tools/call",
			`{"name":"progress","_meta":{"progressToken":12345678901234567890}}`),
			progress + `"progress":1,"total":2,"message":"half <way>"}}`},
		{"", progress + `"progress":2}}`},
		{"", `{"jsonrpc":"2.0","id":"x","result":{"_meta":{"usher/value":3}}}`},
	})
	check(t, "a report after the answer", p.Call("late", "{}"), `{"content":[]}`)
	check(t, "reports without a token", p.Call("progress", "{}"), shownText("3"))
}

func goTestConcurrency(t *testing.T, p *modulePeer) {
	p.SendCall("1", "meet", "{}")
	p.SendCall("2", "meet", "{}")
	a, _ := p.Answer()
	b, _ := p.Answer()
	check(t, "the calls that met", max(a, b)+min(a, b), "21")
	p.SendCall(`"w"`, "wait", "{}")
	p.Call("started", "{}")
	p.CancelCall(`"other"`)
	p.CancelCall(`"w"`)
	checkContains(t, "what was cancelled", p.Call("cancelled", "{}"), "context canceled")
	p.Call("fine", "{}")
}

// Numbers in asks of Go modules keep their digits. An ask after its call has ended is
// refused.
func TestGoModuleAsks(t *testing.T) {
	long(t)
	p := startFile(t, "testdata/gomodule/run/asks.usher.go")
	// Numbers keep their digits, there and back.
	const digits, id = "12345678901234567890.50", "18446744073709551616"
	p.SendCall(id, "ask", `{"item":{"ask":"m","params":{"n":`+digits+`}}}`)
	p.Reply(p.NextAsk(id, "m", `{"n":`+digits+`,"_meta":{"usher/call":`+id+`}}`),
		`{"n":`+digits+`}`)
	p.WantAnswer(id, `{"n":`+digits+`}`)
	checkContains(t, "unwritable params", p.Call("unwritable", "{}"),
		"ask: params can't be written as JSON: json: unsupported type: chan int")
	p.Call("keep", "{}")
	checkContains(t, "an ask after the answer", p.Call("late", "{}"), "context canceled")
	p.End()
}

// A scan and a new start notice an edit of a package that a module imports indirectly.
func TestGoModuleFollowsItsImports(t *testing.T) {
	long(t)
	dir := goTestTree(t, map[string]string{
		"go.mod":     goMod,
		"mid/mid.go": "package mid\n\nimport \"example.com/tree/pkg\"\n\ntype Params = pkg.Params\n",
		"a.usher.go": goHead +
			"import \"example.com/tree/mid\"\n\nfunc A(p mid.Params) any { return p }\n",
	})
	edit := func(fields string) {
		write(t, dir+"/pkg/pkg.go", "package pkg\n\ntype Params struct {"+fields+"}\n")
	}
	edit("X int")
	base := t.TempDir()
	d := daemonOptions{base: base}.start(t, dir)
	c := connect(t, d.URL)
	c.AwaitTools("a_a")
	c.AwaitText("a_a", `{"X":1}`, `{"X":1}`)
	edit("Y int")
	c.AwaitText("a_a", `{"Y":1}`, `{"Y":1}`)
	edit("Y in")
	d.awaitLog(t, "can't be built: pkg/pkg.go:3:")
	edit("Y int")
	source := readFile(t, dir+"/a.usher.go")
	write(t, dir+"/a.usher.go", source+"func B( {")
	checkContains(t, "the reason", c.Call("a_a", `{"Y":1}`).Failure(), ": a.usher.go:",
		"expected")
	write(t, dir+"/a.usher.go", source)
	edit("Z int")
	c.AwaitText("a_a", `{"Z":1}`, `{"Z":1}`)
	d.stop(t)
	edit("X, Y int")
	said := callSays(t, base, dir, "a", "a", `{"Y":1}`)
	checkContains(t, "a call after the end", said, `parameter "X" is required`)
}

// The error of a build is the compiler's, by the file's own lines.
func TestGoModuleBuildErrors(t *testing.T) {
	long(t)
	for name, row := range map[string]struct{ mod, src, want string }{
		"types": {goMod,
			"import \"os\"\n\nfunc A() int { return \"x\" }\n\nfunc B() { f(1, 2) }\nfunc f() {}\n",
			"a.usher.go:5:8: \"os\" imported and not used\n" +
				"a.usher.go:7:23: cannot use \"x\" (untyped string constant) as int value in " +
				"return statement\n" +
				"a.usher.go:9:14: too many arguments in call to f have (number, number) want ()"},
		"import": {goMod, "import \"example.com/tree/none\"\n",
			"a.usher.go:5:8: no required module provides package example.com/tree/none; " +
				"to add it: go get example.com/tree/none"},
		"no module": {"", "import \"example.com/none\"\n",
			"a.usher.go:5:8: no required module provides package example.com/none: go.mod file not " +
				"found in current directory or any parent directory; run go mod init NAME and go get " +
				"PACKAGE"},
		"imported": {goMod, "import _ \"example.com/tree/bad\"\n", "bad/bad.go:3:9: undefined: x\n"},
		"toolchain": {"module example.com/tree\n\ngo 1.999\n", "",
			"go: go.mod requires go >= 1.999 (running "},
		"main": {goMod, "func main() {}\n",
			": remove func main\n"},
		"sibling": {goMod, "var _ = other()\n",
			"a.usher.go:5:9: undefined: other\n(a module is one file)\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			files := map[string]string{
				"a.usher.go": goHead + row.src,
				"bad/bad.go": "package bad\n\nvar _ = x\n",
			}
			if row.mod != "" {
				files["go.mod"] = row.mod
			}
			dir := goTestTree(t, files)
			cache := dir + "/cache"
			_, err := buildGoFile(context.Background(), cache, dir+"/a.usher.go")
			wrong, ok := errors.AsType[*fault](err)
			if !ok {
				t.Fatalf("error is %v", err)
			}
			lines := details(wrong) + "\n"
			checkContains(t, "lines", lines, row.want)
			checkOmits(t, "lines", lines, "usher__")
			first, _, more := strings.Cut(err.Error(), "\n")
			checkContains(t, "error", first, "can't be built")
			check(t, "the error has more lines", more, false)
		})
	}
}

// A build ends with its context, even if a file that it reads never ends.
func TestGoModuleBuildEndsWithItsContext(t *testing.T) {
	t.Parallel()
	dir := goTestTree(t, map[string]string{"x.usher.go": goHead})
	if err := exec.Command("mkfifo", dir+"/go.mod").Run(); err != nil {
		skip(t, err)
	}
	ctx, cancel := context.WithTimeoutCause(t.Context(), 100*time.Millisecond, errRetired)
	defer cancel()
	_, err := buildGoFile(ctx, t.TempDir(), dir+"/x.usher.go")
	check(t, "the build", err, errRetired)
}

// Without the go command, the error says where to get it.
func TestGoModuleWithoutGo(t *testing.T) {
	dir := goTestTree(t, map[string]string{"a.usher.go": goHead})
	t.Setenv("PATH", t.TempDir())
	_, err := buildGoFile(t.Context(), dir+"/cache", dir+"/a.usher.go")
	checkContains(t, "no Go", explain(err), "install Go from")
}

// Without a home, the error says what to set.
func TestGoModuleWithoutHome(t *testing.T) {
	dir := goTestTree(t, map[string]string{"a.usher.go": goHead})
	for _, name := range []string{"HOME", "GOPATH", "GOMODCACHE"} {
		t.Setenv(name, "")
	}
	t.Setenv("GOENV", "off")
	_, err := buildGoFile(t.Context(), dir+"/cache", dir+"/a.usher.go")
	checkContains(t, "the error", explain(err), "set HOME, or GOPATH and GOCACHE")
}

// The go command, which runs what a workspace says (cgo, a toolchain of its own), gets no
// secret of webhooks.
func TestGoCommandGetsNoSecrets(t *testing.T) {
	dir := goTestTree(t, map[string]string{"a.usher.go": goHead})
	seen, program := t.TempDir()+"/seen", dir+"/bin/go"
	write(t, program, "#!/bin/sh\nenv >'"+seen+"'\nexit 1\n")
	t.Setenv("PATH", filepath.Dir(program)+":"+os.Getenv("PATH"))
	t.Setenv("GITHUB_WEBHOOK_SECRET", "hidden")
	t.Setenv("stripe_Signing_secret", "hidden")
	t.Setenv("OTHER_SECRET", "shown")
	usher(t, "modules", dir)
	env := readFile(t, seen)
	checkContains(t, "environment", env, "OTHER_SECRET=shown")
	checkOmits(t, "environment", env, "hidden")
}

// A module imports what its Go module and workspace have. It is built for this machine,
// whatever the environment says.
func TestGoModuleUsesItsWorkspace(t *testing.T) {
	long(t)
	dir := goTestTree(t, map[string]string{
		"go.work":    "go 1.22\n\nuse (\n\t./app\n\t./lib\n)\n",
		"app/go.mod": "module example.com/app\n\ngo 1.22\n",
		"lib/go.mod": "module example.com/lib\n\ngo 1.22\n",
		"lib/lib.go": "package lib\n\nimport _ \"embed\"\n\n//go:embed data\nvar Data string\n",
		"lib/data":   "x y",
		"app/a.usher.go": goHead +
			"import \"example.com/lib\"\n\nfunc A() string { return lib.Data }\n",
	})
	cmd := exec.Command(testBinary(t), "call", "-base", t.TempDir(), "-dir", dir, "a",
		"a", "{}")
	cmd.Env = append(os.Environ(), runAsUsher+"=1", "GOOS=plan9", "GOARCH=arm")
	out, err := cmd.Output()
	must(t, err)
	check(t, "the output", string(out), "x y\n")
}

// Methods, schemas and problems of Go modules are those in testdata/gomodule.
func TestGoModuleGolden(t *testing.T) {
	long(t)
	files, _ := filepath.Glob("testdata/gomodule/*.go.txt")
	if len(files) == 0 {
		t.Fatal("no golden files")
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".go.txt")
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			src := readFile(t, file)
			offer := goTestOffer(t, name+".usher.go", src)
			checkGolden(t, strings.TrimSuffix(file, ".go.txt")+".json", offer)
		})
	}
}

// A method's name is the function's, with its first word in lower case.
func TestGoModuleMethodNames(t *testing.T) {
	for fn, want := range map[string]string{
		"HandleContact": "handleContact", "URLFor": "urlFor", "URL": "url", "A": "a",
		"AB":       "ab",
		"HTTP2Get": "http2Get", "GetURL": "getURL", "ABTest": "abTest", "X1": "x1",
		"Über": "über", "Do_It": "do_It",
	} {
		check(t, fn, goMethodName(fn), want)
	}
}

// The parameters of a struct are the fields that encoding/json finds in it.
func TestGoModuleFields(t *testing.T) {
	long(t)
	p := startFile(t, "testdata/gomodule/run/fields.usher.go")
	defer p.End()
	tools := p.Tools()
	check(t, "tools", len(tools), 9)
	keys := func(raw json.RawMessage) (list []string) {
		for _, m := range members(raw) {
			list = append(list, m.key)
		}
		return list
	}
	for _, tool := range tools {
		name := stringField(tool, "name")
		value := field(p.Call(name, "{}"), "structuredContent")
		check(t, name, keys(field(tool, "inputSchema", "properties")), keys(value))
	}
}

// The generated main is Go, whatever is read from a module.
func FuzzParseGoModule(f *testing.F) {
	files, _ := filepath.Glob("testdata/gomodule/*.go.txt")
	for _, file := range files {
		src, err := os.ReadFile(file)
		must(f, err)
		f.Add(src)
	}
	f.Fuzz(func(t *testing.T, src []byte) {
		source, err := parseGoModule("x.usher.go", src)
		if err != nil {
			if wrong, ok := errors.AsType[*fault](err); !ok || wrong.Err == nil {
				t.Errorf("error without lines: %v", err)
			}
			return
		}
		_, err = parser.ParseFile(token.NewFileSet(), "main.go", source.generateMain(), 0)
		must(t, err)
	})
}

// What is built is what was approved, even if the file was another one in between.
func TestBuildReadsWhatIsApproved(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/m.usher.go", "//go:build usher\n\npackage main\n\nfunc F() {}\n")
	path, err := filepath.EvalSymlinks(dir + "/m.usher.go")
	must(t, err)
	_, err = buildGoModule(t.Context(), t.TempDir(), path, "other", &parts{})
	check(t, "the build", err, errUnapproved)
}

// An edit of the file during its build, even before the go command has listed the parts, is a change.
func TestEditDuringBuildIsAChange(t *testing.T) {
	for _, step := range []string{"list", "build", "none"} {
		dir := t.TempDir()
		path := dir + "/m.usher.go"
		write(t, path, goHead)
		write(t, dir+"/bin/go", "#!/bin/sh\n[ $1 = build ] && : > \"$4\"\n"+
			"[ $1 != "+step+" ] || echo // >>'"+path+"'\n")
		t.Setenv("PATH", dir+"/bin:"+os.Getenv("PATH"))
		loaded, err := buildGoModule(t.Context(), t.TempDir(), path, "", &parts{})
		must(t, err)
		check(t, "edited at "+step+": it has changed", loaded.changed(), step != "none")
	}
}

// goTestTree writes files into a new folder whose path has a space in it.
func goTestTree(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := tempDir(t) + "/work space"
	for name, text := range files {
		write(t, dir+"/"+name, text)
	}
	return dir
}

// buildGoFile builds the module in a file.
func buildGoFile(ctx context.Context, folder, path string) (string, error) {
	loaded, err := buildGoModule(ctx, folder, path, "", &parts{})
	if err != nil {
		return "", err
	}
	return loaded.Binary, nil
}

// goTestBuild builds a module with the environment of this process.
func goTestBuild(t *testing.T, path, cache string) (binary string) {
	t.Helper()
	binary, err := buildGoFile(context.Background(), cache, path)
	if wrong, ok := errors.AsType[*fault](err); ok {
		t.Fatal(explain(wrong))
	}
	must(t, err)
	return binary
}

func startBinary(t *testing.T, binary string) *modulePeer {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return startPeer(t, exec.CommandContext(ctx, binary))
}

// lineExchange is a line sent to a module ("" for none) and a part of its next line.
type lineExchange struct{ send, want string }

func exchangeLines(p *modulePeer, lines []lineExchange) {
	p.T.Helper()
	for _, line := range lines {
		if line.send != "" {
			p.Send(line.send)
		}
		checkContains(p.T, "after "+line.send, p.Next(), line.want)
	}
}

// A build that fails before the go command runs, as on a full disk, leaves parts with which later scans
// can go on.
func TestFailedBuildHasParts(t *testing.T) {
	source, err := parseGoModule("m.usher.go", []byte(goHead))
	must(t, err)
	noFolder := t.TempDir() + "/file"
	write(t, noFolder, "")
	loaded, err := source.build(t.Context(), t.TempDir(), noFolder+"/binary")
	check(t, "it failed", err != nil, true)
	check(t, "it has parts", loaded != nil && !loaded.changed(), true)
}
