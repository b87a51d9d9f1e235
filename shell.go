// Shell modules: usher itself as the MCP server of a shell script, one process
// a call. It reads the script for functions with a comment above them, offers those
// that the shell itself reports as functions after it has read the script, and runs
// one with the parameters as its arguments. Nothing of a call is ever evaluated:
// values reach the shell as arguments and on stdin, and nowhere else.

package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	shellExitTimeout   = 2 * time.Second        // for a function to end after TERM
	shellOutputTimeout = 500 * time.Millisecond // for what a function has written to be read after its end
	shellGroupInterval = time.Second            // between two looks whether what a function left running has ended
)

// processGroups is a list of process groups that end when this process does,
// however it ends, or at Close. Safe for concurrent use.
type processGroups interface {
	add(pgid int) error
	remove(pgid int)
	Close()
}

// shellMethod is a function of a script that is a method, as a tool. The daemon
// finds the parameters in the comment above the function.
type shellMethod struct {
	Name        string         `json:"name"`
	Description string         `json:"description"`
	InputSchema map[string]any `json:"inputSchema"`
}

// shellServer serves one script over stdin and stdout.
type shellServer struct {
	path     string   // of the script, absolute
	text     []byte   // of the script, which is not read again
	script   string   // where the shell finds it
	shell    string   // what runs it
	options  []string // of the shell, from the script's first line
	about    string
	methods  []shellMethod
	problems []string      // why others are not offered
	groups   processGroups // each call has one of its own
	stderr   io.Writer
	calls    sync.Map // request id: context.CancelFunc

	mu  sync.Mutex // guards out
	out io.Writer
}

// runShell serves the script at path until stdin ends, and returns the exit
// status. stdin begins with the script's text, of so many bytes. It closes groups,
// which ends what functions have left running.
func runShell(ctx context.Context, path, size string, groups processGroups, stdin io.Reader, stdout, stderr io.Writer) int {
	defer groups.Close()
	s := &shellServer{
		path:     path,
		script:   "/dev/fd/3",
		methods:  []shellMethod{},
		problems: []string{},
		groups:   groups,
		out:      stdout,
		stderr:   stderr,
	}
	if runtime.GOOS == "windows" {
		s.script = path
	}
	n, _ := strconv.ParseInt(size, 10, 64) // usher wrote it
	s.text, _ = io.ReadAll(io.LimitReader(stdin, n))
	err := s.read(ctx, string(s.text))
	if err != nil {
		fmt.Fprintf(stderr, "%s: %s\n", filepath.Base(path), strings.ReplaceAll(errText(err), s.script+": ", ""))
		return 1
	}
	s.serve(ctx, stdin)
	return 0
}

var (
	shellLine     = regexp.MustCompile(`^#!\s*(?:\S*/env\s+(?:-S\s+)?)?(\S*\b(?:sh|bash|dash|ksh|zsh))(?:\s+(.*))?$`)
	shellFunction = regexp.MustCompile(`^(?:function[ \t]+)?([A-Za-z][A-Za-z0-9_]*)[ \t]*\(\)`)
	shellProgress = regexp.MustCompile(`^::progress (-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?)(?: (-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?))?(?: (.*))?$`)
)

// notMethods are commands that run their arguments. Some shells prefer them to a
// function of the same name.
var notMethods = []string{"builtin", "command", "eval", "exec"}

// read finds what the script says of itself: its shell, sh by default, with options;
// in its first comment what it is about; and its methods, functions with a comment
// right above them. The shell first checks the script's syntax, without running it.
func (s *shellServer) read(ctx context.Context, text string) error {
	s.shell = "sh"
	if first, _, _ := strings.Cut(text, "\n"); strings.HasPrefix(first, "#!") {
		m := shellLine.FindStringSubmatch(first)
		if m == nil {
			return fmt.Errorf("line 1: %q names no shell: want sh, bash, dash, ksh or zsh", first)
		}
		s.shell, text = m[1], strings.TrimPrefix(text, first)
		s.options = slices.DeleteFunc(strings.Fields(m[2]), func(option string) bool {
			return option == "-" || option == "--" // which end the options
		})
	}
	var comment []string
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\r\n")
		if rest, ok := strings.CutPrefix(line, "#"); ok {
			comment = append(comment, strings.TrimPrefix(rest, " "))
			continue
		}
		doc := strings.Join(comment, "\n")
		if m := shellFunction.FindStringSubmatch(line); m != nil && doc != "" {
			s.methods = append(s.methods, shellMethod{m[1], doc, map[string]any{"type": "object"}})
		} else if s.about == "" && len(s.methods) == 0 {
			s.about = doc
		}
		comment = nil
	}
	cmd, done, err := s.command(ctx, "-n", s.script)
	if err != nil {
		return err
	}
	defer done()
	if said, err := cmd.CombinedOutput(); err != nil {
		return errors.New(cmp.Or(strings.TrimSpace(string(said)), err.Error()))
	}
	return s.keepFunctions(ctx)
}

// keepFunctions removes the methods that the shell does not report as functions after
// it has read the script: reserved words, for example, and text in a here-document.
func (s *shellServer) keepFunctions(ctx context.Context) error {
	if len(s.methods) == 0 {
		return nil
	}
	program := ". '" + s.script + "' >&2"
	for _, m := range s.methods {
		program += " && " + ifFunction(m.Name, echo(m.Name), ":")
	}
	cmd, done, err := s.command(ctx, "-c", program, s.path)
	if err != nil {
		return err
	}
	defer done()
	out, _, err := s.run(ctx, cmd, nil)
	if err != nil {
		return fmt.Errorf("reading the script: %s ended with %s", filepath.Base(s.shell), errText(err))
	}
	reported := strings.Fields(string(out))
	s.methods = slices.DeleteFunc(s.methods, func(m shellMethod) bool {
		if slices.Contains(reported, m.Name) && !slices.Contains(notMethods, m.Name) {
			return false
		}
		s.problems = append(s.problems, fmt.Sprintf("%s: %s can't call a function of this name: "+
			"rename it, or remove the comment above it", m.Name, filepath.Base(s.shell)))
		return true
	})
	return nil
}

// ifFunction returns a shell command that runs then if the shell reports name as a
// function, else otherwise. The name needs no quotes. The report is in English.
func ifFunction(name, then, otherwise string) string {
	return "case $(LC_ALL=C; command -V " + name + " 2>/dev/null) in " +
		`"` + name + ` is a function"* | "` + name + ` is a shell function"*) ` + then + ";; " +
		"*) " + otherwise + ";; esac"
}

// echo returns a shell command that prints words, even if the script has a function echo.
func echo(words string) string { return "(unset -f echo 2>/dev/null || :; echo " + words + ")" }

// command makes a command that runs the shell. The script's text is at s.script, an
// open file that has no name any more, because the file at the script's path may have
// changed. (Windows has no such files.) $BASH_SOURCE, where bash says which file a
// function is from, is the script's path all the same. The caller calls done.
func (s *shellServer) command(ctx context.Context, args ...string) (cmd *exec.Cmd, done func() error, err error) {
	cmd = exec.CommandContext(ctx, s.shell, slices.Concat(s.options, args)...)
	cmd.Dir = filepath.Dir(s.path)
	cmd.Env = append(os.Environ(), "USHER_SOURCE="+s.path)
	if runtime.GOOS == "windows" {
		return cmd, func() error { return nil }, nil
	}
	f, err := os.CreateTemp("", "usher-")
	if err != nil {
		return nil, nil, err
	}
	os.Remove(f.Name())
	cmd.ExtraFiles = []*os.File{f}
	_, err = f.WriteAt(bytes.ReplaceAll(s.text, []byte("BASH_SOURCE"), []byte("USHER_SOURCE")), 0)
	return cmd, f.Close, err
}

// serve answers until stdin ends, and then ends what is under way.
func (s *shellServer) serve(ctx context.Context, stdin io.Reader) {
	ctx, cancel := context.WithCancel(ctx)
	var calls sync.WaitGroup
	lines := newLineReader(stdin, maxWorkerLine)
	for {
		line, err := lines.next()
		if err != nil {
			break
		}
		msg, err := parseMessage(line)
		if err != nil {
			continue
		}
		switch msg.Method {
		case "initialize":
			s.send(encodeResult(msg.ID, s.info().encode()))
		case "tools/list":
			s.send(encodeResult(msg.ID, object{{"tools", marshal(s.methods)}}.encode()))
		case "tools/call":
			ctx, cancel := context.WithCancel(ctx)
			s.calls.Store(string(msg.ID), cancel)
			calls.Go(func() {
				defer cancel()
				result := s.call(ctx, msg.Params)
				s.calls.Delete(string(msg.ID))
				s.send(encodeResult(msg.ID, result)) // cancelled or not: usher counts what runs
			})
		case "notifications/cancelled":
			if cancel, ok := s.calls.Load(string(field(msg.Params, "requestId"))); ok {
				cancel.(context.CancelFunc)()
			}
		default:
			if msg.isRequest() {
				s.send(encodeError(msg.ID, rpcErrorf(codeNoMethod, "unknown method %q", msg.Method)))
			}
		}
	}
	cancel()
	calls.Wait()
}

// info returns the result of initialize.
func (s *shellServer) info() object {
	problems := object{{"problems", marshal(s.problems)}}
	experimental := object{{"usher/problems", problems.encode()}}
	capabilities := object{{"tools", json.RawMessage("{}")}, {"experimental", experimental.encode()}}
	return object{
		{"protocolVersion", quote(protocols[0])},
		{"serverInfo", usherInfo()},
		{"capabilities", capabilities.encode()},
		{"instructions", quote(s.about)},
	}
}

func (s *shellServer) send(msg []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.out.Write(append(msg, '\n')) // if usher is gone, stdin has ended too
}

// call runs one function in a process of its own. The result is what it printed: an
// object if it is one, else text.
func (s *shellServer) call(ctx context.Context, params json.RawMessage) json.RawMessage {
	name := stringField(params, "name")
	i := slices.IndexFunc(s.methods, func(m shellMethod) bool { return m.Name == name })
	if i < 0 {
		return failure(fmt.Sprintf("no method %q", name))
	}
	arguments := field(params, "arguments")
	// $0 is the script, so that a module can find files beside it. The quotes around
	// the name keep the shell from reading it as a reserved word or an alias. The
	// script may define the function in some calls only.
	unknown := echo("the script defines no function "+name) + " >&2; exit 127"
	program := ". '" + s.script + "' && " + ifFunction(name, `"`+name+`" "$@"`, unknown)
	args := []string{"-c", program, s.path}
	for _, p := range parseDoc(s.methods[i].Description, docRules{Hooks: true, Tags: true, Undeclared: true}).params {
		value := field(arguments, p.name)
		text, ok := unquote(value)
		if !ok { // what is no text goes as JSON, what is left out as ""
			text = strings.TrimPrefix(string(oneLine(value)), "null")
		}
		args = append(args, text) // $1, $2, … as documented
	}
	cmd, done, err := s.command(ctx, args...)
	if err != nil {
		return failure("handing the script to the shell: " + errText(err))
	}
	defer done()
	cmd.Stdin = bytes.NewReader(arguments)
	out, said, err := s.run(ctx, cmd, field(field(params, "_meta"), "progressToken"))
	text := strings.ToValidUTF8(strings.TrimRight(string(out), "\n"), "\uFFFD")
	switch value := json.RawMessage(text); {
	case len(out) > maxShellOutput:
		return failure(fmt.Sprintf("the result is larger than %s", formatSize(maxShellOutput)))
	case err != nil && len(said) > 0:
		return failure(strings.Join(said, "\n"))
	case err != nil:
		return failure(fmt.Sprintf("%s ended with %s", name, errText(err)))
	case text == "":
		return toolResult(nil)
	case json.Valid(value) && isObject(value):
		return toolResult(value)
	}
	return toolResult(quote(text))
}

// run runs a command in a process group of its own until it ends. It returns the
// output, cut one byte past the limit, and the last lines of stderr. Processes that
// the command left in the background go on, unless ctx ended.
func (s *shellServer) run(ctx context.Context, cmd *exec.Cmd, progressToken json.RawMessage) (output []byte, said []string, err error) {
	outRead, outWrite, outErr := os.Pipe()
	errRead, errWrite, errErr := os.Pipe()
	if err := errors.Join(outErr, errErr); err != nil {
		return nil, nil, err
	}
	setGroup(cmd)
	cmd.Cancel = func() error { return terminateGroup(cmd.Process.Pid) }
	cmd.WaitDelay = shellExitTimeout
	cmd.Stdout, cmd.Stderr = outWrite, errWrite
	err = cmd.Start()
	outWrite.Close()
	errWrite.Close()
	var read sync.WaitGroup
	read.Go(func() {
		output, _ = io.ReadAll(io.LimitReader(outRead, maxShellOutput+1))
		if len(output) > maxShellOutput {
			outRead.Close() // which ends the function
		}
	})
	read.Go(func() { said = s.readStderr(errRead, progressToken) })
	if err == nil {
		s.groups.add(cmd.Process.Pid)
		err = cmd.Wait()
		if ctx.Err() != nil {
			killGroup(cmd.Process.Pid) // what TERM has not ended
		}
		go func() {
			// Once nothing is left of the group, its id may become another's.
			for groupAlive(cmd.Process.Pid) {
				time.Sleep(shellGroupInterval)
			}
			s.groups.remove(cmd.Process.Pid)
		}()
	}
	// What it left running may have the pipes still, and write to them.
	for _, pipe := range []*os.File{outRead, errRead} {
		pipe.SetReadDeadline(time.Now().Add(shellOutputTimeout))
	}
	read.Wait()
	go drainPipe(outRead, io.Discard)
	go drainPipe(errRead, s.stderr)
	return output, said, err
}

// drainPipe reads a pipe until nobody has its other end any more.
func drainPipe(pipe *os.File, to io.Writer) {
	defer pipe.Close()
	pipe.SetReadDeadline(time.Time{})
	io.Copy(to, pipe)
}

// readStderr reads lines of progress for the caller and others for the log, and
// returns the last of those.
func (s *shellServer) readStderr(pipe io.Reader, progressToken json.RawMessage) (said []string) {
	lines := bufio.NewReaderSize(pipe, maxLoggedLine)
	for {
		raw, _, err := lines.ReadLine()
		if err != nil {
			return said
		}
		line := strings.ReplaceAll(strings.ToValidUTF8(string(raw), "\uFFFD"), s.script, filepath.Base(s.path))
		if m := shellProgress.FindStringSubmatch(line); m != nil {
			params := object{{"progressToken", progressToken}, {"progress", json.RawMessage(m[1])}, {"message", quote(m[3])}}
			if m[2] != "" {
				params = params.set("total", json.RawMessage(m[2]))
			}
			if progressToken != nil { // the caller wants to know
				s.send(encodeRequest(nil, "notifications/progress", params.encode()))
			}
			continue
		}
		fmt.Fprintln(s.stderr, line)
		// The shell begins its own errors with $0, which is a whole path.
		line = strings.ReplaceAll(line, filepath.Dir(s.path)+string(filepath.Separator), "")
		said = append(said[max(0, len(said)-shellTail+1):], line)
	}
}
