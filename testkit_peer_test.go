// Modules spoken to over their pipes, without usher.

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

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
	g := newGroups(slog.New(slog.DiscardHandler))
	defer g.Close()
	loaded, err := buildGoModule(ctx, g, folder, path, "", &parts{})
	if len(g.left) > 0 {
		return "", fmt.Errorf("groups are left: %v", g.left)
	}
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

// modulePeer is a running module, spoken to over its stdin and stdout as the
// daemon speaks to it.
type modulePeer struct {
	T         *testing.T
	cmd       *exec.Cmd
	in        io.WriteCloser
	out       *bufio.Scanner
	Stderr    bytes.Buffer
	methods   map[string]*Method // check the arguments of calls
	Cancelled map[string]bool    // ids of cancelled calls: whether they have been answered
	confirmed map[string]bool    // ids of calls whose cancellation the module has confirmed
}

func startPeer(t *testing.T, cmd *exec.Cmd) *modulePeer {
	t.Helper()
	p := &modulePeer{
		T:         t,
		cmd:       cmd,
		methods:   make(map[string]*Method),
		Cancelled: make(map[string]bool),
		confirmed: make(map[string]bool),
	}
	p.cmd.Stderr = &p.Stderr
	var err error
	p.in, err = p.cmd.StdinPipe()
	must(t, err)
	out, err := p.cmd.StdoutPipe()
	must(t, err)
	must(t, p.cmd.Start())
	p.out = bufio.NewScanner(out)
	p.out.Buffer(nil, 128<<20)
	return p
}

// shimCommand returns the command that runs a file by its language's shim.
func shimCommand(t *testing.T, kind Kind, file string) *exec.Cmd {
	t.Helper()
	file, err := filepath.Abs(file)
	must(t, err)
	python, _ := pythonFor(filepath.Dir(file), nil)
	l, err := launchFile(source{Kind: kind, Source: file, Interpreter: python}, t.TempDir())
	must(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, l.Path, l.Args...)
	cmd.Dir = l.Dir
	return cmd
}

// startFile starts a module of any language.
func startFile(t *testing.T, file string) *modulePeer {
	t.Helper()
	kind := needLanguage(t, file)
	if kind == kindGo {
		name := filepath.Base(file)
		dir := goTestTree(t, map[string]string{name: readFile(t, file)})
		return startBinary(t, goTestBuild(t, dir+"/"+name, dir+"/cache"))
	}
	p := startPeer(t, shimCommand(t, kind, file))
	for _, tool := range p.Tools() {
		m := parseMethod(tool, kind)
		p.methods[m.Name] = m
	}
	return p
}

func (p *modulePeer) Send(line string) {
	p.T.Helper()
	_, err := io.WriteString(p.in, line+"\n")
	must(p.T, err)
}

func (p *modulePeer) SendCall(id, tool, arguments string) {
	p.T.Helper()
	p.Send(rpcAs(id, "tools/call", fmt.Sprintf(`{"name":%q,"arguments":%s}`, tool, arguments)))
}

// cancelCall cancels a call; answers to it are passed over from then on.
func (p *modulePeer) CancelCall(id string) {
	p.T.Helper()
	p.Cancelled[id] = false
	p.Send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":` + id + `}}`)
}

// checkCancelled checks which cancelled calls have been answered. Their cancellation must have
// been confirmed.
func (p *modulePeer) CheckCancelled(want ...string) {
	p.T.Helper()
	answered := []string{}
	for id, ok := range p.Cancelled {
		if ok {
			answered = append(answered, id)
			check(p.T, "the cancellation of "+id+" is confirmed", p.confirmed[id], true)
		}
	}
	slices.Sort(answered)
	check(p.T, "answers to cancelled calls", answered, want)
}

// next returns the next line that the module writes, except confirmations of cancelled calls and
// reports of parts.
func (p *modulePeer) Next() string {
	p.T.Helper()
	for {
		if !p.out.Scan() {
			p.T.Fatalf("the module ended: %v\n%s", p.out.Err(), p.Stderr.String())
		}
		line := json.RawMessage(p.out.Text())
		switch stringField(line, "method") {
		case cancelConfirmed:
			p.confirmed[string(field(field(line, "params"), "requestId"))] = true
		case partsLoaded:
		default:
			return string(line)
		}
	}
}

// answer reads the answer to a call that was not cancelled, and returns the
// call's id and its result or error.
func (p *modulePeer) Answer() (id, result string) {
	p.T.Helper()
	for {
		line := json.RawMessage(p.Next())
		id = string(field(line, "id"))
		if _, ok := p.Cancelled[id]; ok {
			p.Cancelled[id] = true
			continue
		}
		if e := field(line, "error"); e != nil {
			return id, string(e)
		}
		return id, string(methodResult(members(field(line, "result"))).encode())
	}
}

func (p *modulePeer) WantAnswer(id, want string) {
	p.T.Helper()
	got, result := p.Answer()
	check(p.T, "the call that is answered", got, id)
	checkContains(p.T, "the answer to "+id, result, want)
}

// call calls a tool as the daemon does, and returns its result or error.
func (p *modulePeer) Call(tool, arguments string) string {
	p.T.Helper()
	checked := json.RawMessage(arguments)
	if m := p.methods[tool]; m != nil {
		var err error
		if checked, err = m.checkArguments(checked); err != nil {
			return shownFailure(err.Error())
		}
	}
	p.SendCall("7", tool, string(checked))
	id, result := p.Answer()
	if id != "7" {
		p.T.Fatalf("%s: answer is for %s: %s", tool, id, result)
	}
	return result
}

// callText returns the text of a call's result.
func (p *modulePeer) CallText(tool, arguments string) string {
	p.T.Helper()
	return resultText(objectOf(p.Call(tool, arguments)))
}

// request makes a request and returns its result.
func (p *modulePeer) Request(method, params string) json.RawMessage {
	p.T.Helper()
	p.Send(rpcAs("0", method, params))
	line := json.RawMessage(p.Next())
	if field(line, "result") == nil {
		p.T.Fatalf("%s: %s", method, line)
	}
	return field(line, "result")
}

func (p *modulePeer) Tools() (tools []json.RawMessage) {
	p.T.Helper()
	must(p.T, json.Unmarshal(field(p.Request("tools/list", "{}"), "tools"), &tools))
	return tools
}

// lineExchange is a line sent to a module ("" for none) and a part of its next line.
type lineExchange struct{ send, want string }

func (p *modulePeer) exchange(lines []lineExchange) {
	p.T.Helper()
	for _, line := range lines {
		if line.send != "" {
			p.Send(line.send)
		}
		checkContains(p.T, "after "+line.send, p.Next(), line.want)
	}
}

// end closes stdin and returns what was written since the last line read.
func (p *modulePeer) End() string {
	p.T.Helper()
	p.in.Close()
	var rest []string
	for p.out.Scan() {
		rest = append(rest, p.out.Text())
	}
	if err := p.cmd.Wait(); err != nil {
		p.T.Errorf("exit: %v\n%s", err, p.Stderr.String())
	}
	return strings.Join(rest, "\n")
}

// nextAsk reads the next line, which must be a request to the client for a call.
// It returns the request's id, as JSON.
func (p *modulePeer) NextAsk(call, method, params string) string {
	p.T.Helper()
	line := json.RawMessage(p.Next())
	got := field(line, "params")
	if stringField(line, "method") != method ||
		string(field(field(got, "_meta"), "usher/call")) != call {
		p.T.Fatalf("got %s, want call %s to ask for %s", line, call, method)
	}
	if params != "" {
		check(p.T, "params", canonical(got), canonical(params))
	}
	return string(field(line, "id"))
}

func (p *modulePeer) Reply(ask, result string) {
	p.T.Helper()
	p.Send(`{"jsonrpc":"2.0","id":` + ask + `,"result":` + result + `}`)
}

func (p *modulePeer) ReplyError(ask, err string) {
	p.T.Helper()
	p.Send(`{"jsonrpc":"2.0","id":` + ask + `,"error":` + err + `}`)
}

// canonical returns JSON with its keys sorted, its numbers unchanged and no white space. It returns
// invalid JSON unchanged.
func canonical[T ~[]byte | ~string](raw T) string {
	decoder := json.NewDecoder(strings.NewReader(string(raw)))
	decoder.UseNumber()
	var v any
	if !json.Valid([]byte(raw)) || decoder.Decode(&v) != nil {
		return string(raw)
	}
	return string(marshal(v))
}

func shownText(text string) string { return string(toolResult(quote(text)).encode()) }

func shownObject(object string) string {
	return string(toolResult(json.RawMessage(object)).encode())
}

func shownFailure(text string) string { return string(failure(text).encode()) }

// needLanguage returns the kind of a file, and skips the test if its language is
// not installed.
func needLanguage(t *testing.T, file string) Kind {
	t.Helper()
	switch filepath.Ext(file) {
	case ".go":
		return kindGo
	case ".sh":
		need(t, "sh")
		return kindShell
	case ".py":
		pythonTestVersion(t)
		return kindPython
	case ".ts", ".mts":
		nodeTestTyped(t)
	default:
		nodeTestVersion(t)
	}
	return kindNode
}

var updateGolden = flag.Bool("update-golden", false,
	"rewrite the golden files of modules in testdata")

// checkGolden compares JSON with a file.
func checkGolden(t *testing.T, path string, got json.RawMessage) {
	t.Helper()
	var text bytes.Buffer
	must(t, json.Indent(&text, got, "", "  "))
	text.WriteByte('\n')
	if *updateGolden {
		write(t, path, text.String())
	}
	want := readFile(t, path)
	check(t, path, text.String(), want)
}

// languages copies the modules of a folder that can run here into a new one, and returns their names.
func languages(t *testing.T, from string) (dir string, names []string) {
	t.Helper()
	dir = t.TempDir()
	for _, file := range folderNames(t, from) {
		t.Run(file+" is copied", func(t *testing.T) {
			needLanguage(t, file)
			copyFiles(t, from, dir, file)
			name, _, _ := strings.Cut(file, ".")
			names = append(names, name)
		})
	}
	return dir, names
}

// nodeVersion returns what node --version prints.
var nodeVersion = sync.OnceValues(func() ([]byte, error) {
	return exec.Command("node", "--version").Output()
})

func nodeTestVersion(t *testing.T) (major, minor int) {
	t.Helper()
	out, err := nodeVersion()
	if err != nil {
		lack(t, "Node.js")
	}
	if _, err := fmt.Sscanf(string(out), "v%d.%d", &major, &minor); err != nil || major < 20 {
		lack(t, "Node.js 20 or newer, not "+strings.TrimSpace(string(out)))
	}
	return major, minor
}

// nodeTestTyped skips a test whose Node can't strip types.
func nodeTestTyped(t *testing.T) {
	t.Helper()
	if major, minor := nodeTestVersion(t); major < 22 || major == 22 && minor < 18 {
		lack(t, "Node.js 22.18 or newer")
	}
}

// testPython is the Python outside of virtual environments.
var testPython, _ = pythonFor(os.DevNull, nil)

// pythonMinor returns the minor version of Python 3, 0 without Python. It puts the program first
// in PATH: what pyenv has there takes longer to find Python than Python takes to start.
var pythonMinor = sync.OnceValue(func() (minor int) {
	const print = "import sys; print(sys.version_info[1], sys.executable)"
	out, err := exec.Command(testPython, "-c", print).Output()
	version, program, _ := strings.Cut(strings.TrimSpace(string(out)), " ")
	minor, _ = strconv.Atoi(version)
	if err == nil {
		os.Setenv("PATH", filepath.Dir(program)+string(os.PathListSeparator)+os.Getenv("PATH"))
	}
	return minor
})

// pythonTestVersion returns the minor version of Python 3. Without one that is
// new enough the test is skipped, unless CI requires it.
func pythonTestVersion(t *testing.T) int {
	t.Helper()
	if pythonMinor() < 9 {
		lack(t, "Python 3.9 or newer")
	}
	return pythonMinor()
}
