// Shell modules. usher itself is the MCP server of a shell script, and runs each call in a
// new process. It reads the script for functions with a comment above them, and offers only
// functions that the shell also reports after reading the script. A call passes the
// parameters to the function as arguments. No value of a call is ever evaluated: values
// reach the shell only as arguments and on stdin.

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
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
)

// shellTreeInterval is the time between checks whether functions' background processes have
// ended.
const shellTreeInterval = time.Second

// shellMethod is the tool for a function of a script. The daemon finds the parameters in the
// description, which is the comment above the function.
type shellMethod struct {
	Name        string            `json:"name"`
	Description string            `json:"description"`
	InputSchema map[string]string `json:"inputSchema"`
}

// shellServer serves one script over stdin and stdout.
type shellServer struct {
	path     string   // of the script, absolute
	approved string   // the hash of its approved content; "" if any content may run
	shell    string   // the program
	options  []string // of the shell, from the script's first line
	about    string
	methods  []shellMethod
	problems []string // why other functions are not offered
	reaper   *reaper  // starts a process for each call
	stderr   io.Writer
	calls    inflight[context.CancelFunc] // by request id

	mu  sync.Mutex // guards out
	out io.Writer
}

// runShell serves the script at path until stdin ends, and returns the exit status. approved
// is the hash of the script's approved content, or "" if any content may run. At the end, the
// background processes of functions are ended.
func runShell(ctx context.Context, path, approved string, stdin io.Reader, stdout, stderr io.Writer) int {
	s := &shellServer{
		path:     path,
		approved: approved,
		methods:  []shellMethod{},
		reaper:   newReaper(slog.New(slog.NewTextHandler(stderr, nil))),
		out:      stdout,
		stderr:   stderr,
	}
	defer s.reaper.Close()
	if err := s.read(ctx); err != nil {
		fmt.Fprintf(stderr, "%s: %s\n", filepath.Base(path), errText(err))
		return 1
	}
	s.serve(ctx, stdin)
	return 0
}

var (
	shellLine = regexp.MustCompile(
		`^#!\s*(?:\S*/env\s+(?:-S\s+)?)?(\S*\b(?:sh|bash|dash|ksh|zsh))(\s.*?)??(?:\s--?)?\s*$`)
	shellFunction = regexp.MustCompile(`^(?:function\s+)?([A-Za-z][\w-]*)\s*(?:\(\)|\{)`)
	shellNumber   = `(-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?)`
	shellProgress = regexp.MustCompile(`^::progress ` + shellNumber + `(?: ` + shellNumber + `)?(?: (.*))?$`)
)

// notMethods are commands that run their arguments. Some shells prefer them to a
// function of the same name.
var notMethods = []string{"builtin", "command", "eval", "exec"}

// read finds the script's shell (by default sh) and its options, the text about the
// module (the first comment) and the methods (functions with a comment right above them).
// The shell first checks the script's syntax, without running it.
func (s *shellServer) read(ctx context.Context) error {
	text, err := s.readScript()
	if err != nil {
		return err
	}
	if strings.Contains(text, "\r\n") {
		return errors.New(`its lines end with \r\n: end them with \n`)
	}
	s.shell = "sh"
	if first, _, _ := strings.Cut(text, "\n"); strings.HasPrefix(first, "#!") {
		m := shellLine.FindStringSubmatch(first)
		if m == nil {
			return fmt.Errorf("line 1: %q: want sh, bash, dash, ksh or zsh", first)
		}
		s.shell = m[1]
		text = strings.TrimPrefix(text, first)
		s.options = strings.Fields(m[2])
	}
	var comment []string
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if rest, ok := strings.CutPrefix(line, "#"); ok {
			comment = append(comment, strings.TrimPrefix(rest, " "))
			continue
		}
		doc := strings.Join(comment, "\n")
		if m := shellFunction.FindStringSubmatch(line); m != nil && doc != "" {
			schema := map[string]string{"type": "object"}
			s.methods = append(s.methods, shellMethod{m[1], doc, schema})
		} else if s.about == "" && len(s.methods) == 0 {
			s.about = doc
		}
		comment = nil
	}
	_, _, err = s.run(ctx, nil, nil, "-n", s.path)
	if err == nil && len(s.methods) > 0 {
		err = s.keepFunctions(ctx)
	}
	if err != nil {
		return fmt.Errorf("reading the script: %w", err)
	}
	return nil
}

// readScript returns the script's text, unless it needs an approval and has none.
func (s *shellServer) readScript() (string, error) {
	text, hash, err := readSource(s.path, kindShell)
	if err == nil && s.approved != "" && hash != s.approved {
		err = errUnapproved
	}
	return string(text), err
}

// keepFunctions removes the methods that the shell does not report as functions after
// it has read the script: reserved words, for example, and text in a here-document.
func (s *shellServer) keepFunctions(ctx context.Context) error {
	program := isFunction + `. "$0" >&2 && for usher_name in`
	for _, m := range s.methods {
		program += " " + m.Name
	}
	program += "; do if usher_is $usher_name; then command echo $usher_name; fi; done"
	out, _, err := s.run(ctx, nil, nil, "-c", program, s.path)
	reported := strings.Fields(string(out))
	s.methods = slices.DeleteFunc(s.methods, func(m shellMethod) bool {
		if slices.Contains(reported, m.Name) && !slices.Contains(notMethods, m.Name) {
			return false
		}
		s.problems = append(s.problems, fmt.Sprintf("%s: %s can't call a function of this name: rename it",
			m.Name, filepath.Base(s.shell)))
		return true
	})
	return err
}

// isFunction defines a shell function that succeeds if the shell reports a name as a
// function. With LC_ALL=C, the report is in English.
const isFunction = `usher_is() {
	case $(LC_ALL=C; command -V "$1" 2>/dev/null) in
	"$1 is a function"* | "$1 is a shell function"*) return 0;;
	esac
	return 1
}
`

// serve answers requests until stdin ends, and then ends the calls under way.
func (s *shellServer) serve(ctx context.Context, stdin io.Reader) {
	ctx, cancel := context.WithCancel(ctx)
	var calls sync.WaitGroup
	calls.Go(func() {
		for pauseFor(ctx, shellTreeInterval) {
			s.reaper.forgetEnded()
		}
	})
	lines := newLineReader(stdin, maxWorkerLine)
	for {
		line, err := lines.next()
		if err != nil {
			break
		}
		// usher wrote the line. Its arguments may be nested too deeply for parseMessage.
		o := members(line)
		msg := &Message{ID: o.get("id"), Method: o.text("method"), Params: o.get("params")}
		switch msg.Method {
		case "initialize":
			s.send(encodeResult(msg.ID, s.info()))
		case "tools/list":
			s.send(encodeResult(msg.ID, object{{"tools", marshal(s.methods)}}.encode()))
		case "tools/call":
			ctx, cancel := context.WithCancel(ctx)
			s.calls.add(string(msg.ID), cancel)
			calls.Go(func() {
				defer cancel()
				s.call(ctx, msg)
			})
		case "notifications/cancelled":
			id := field(msg.Params, "requestId")
			if cancel, ok := s.calls.remove(string(id)); ok {
				cancel()
				s.send(encodeRequest(nil, cancelConfirmed, object{{"requestId", id}}.encode()))
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
func (s *shellServer) info() json.RawMessage {
	problems := map[string][]string{"problems": s.problems}
	return marshal(map[string]any{
		"protocolVersion": protocols[0],
		"serverInfo":      usherInfo(),
		"instructions":    s.about,
		"capabilities": map[string]any{
			"tools":        struct{}{},
			"experimental": map[string]any{"usher/problems": problems},
		},
	})
}

// send writes a message to usher.
func (s *shellServer) send(msg []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.out.Write(append(msg, '\n')) // if usher is gone, stdin has ended too
}

// call runs one function in a process of its own, and answers the request. It answers
// even a cancelled request, because the daemon counts a call as running until its answer.
func (s *shellServer) call(ctx context.Context, msg *Message) {
	var output []byte
	var lastLines []string
	name := stringField(msg.Params, "name")
	arguments := field(msg.Params, "arguments")
	token := field(field(msg.Params, "_meta"), "progressToken")
	args, err := s.commandLine(name, arguments)
	if err == nil {
		output, lastLines, err = s.run(ctx, arguments, token, args...)
	}
	s.calls.remove(string(msg.ID))
	s.mu.Lock() // one result at a time, as it takes several times the memory of the output
	defer s.mu.Unlock()
	s.out.Write(append(encodeResult(msg.ID, shellResult(name, output, lastLines, err)), '\n'))
}

// commandLine returns the arguments of the shell for a call of a function.
func (s *shellServer) commandLine(name string, arguments json.RawMessage) ([]string, error) {
	i := slices.IndexFunc(s.methods, func(m shellMethod) bool { return m.Name == name })
	if i < 0 {
		return nil, fmt.Errorf("no method %q", name)
	}
	// $0 is the script, so that a module can find files beside it. The quotes around
	// the name keep the shell from reading it as a reserved word or an alias. The
	// script may define the function in some calls only.
	program := fmt.Sprintf(isFunction+`. "$0" && if usher_is %[1]s; then "%[1]s" "$@"
		else command echo the script defines no function %[1]s >&2; exit 127; fi`, name)
	args := []string{"-c", program, s.path}
	for _, p := range parseDoc(s.methods[i].Description, kindShell).params {
		value := field(arguments, p.name)
		text, ok := unquote(value)
		if !ok { // other values are JSON, and omitted ones ""
			text = strings.TrimPrefix(string(oneLine(value)), "null")
		}
		if strings.Contains(text, "\x00") {
			return nil, fmt.Errorf("parameter %q contains U+0000: remove it", p.name)
		}
		args = append(args, text) // $1, $2, … as documented
	}
	return args, nil
}

// shellResult returns the result of a call of a function: its output, as an object if it is
// one, else as text.
func shellResult(name string, output []byte, lastLines []string, err error) json.RawMessage {
	_, ended := errors.AsType[*exec.ExitError](err)
	text := strings.ToValidUTF8(strings.TrimRight(string(output), "\n"), "\uFFFD")
	value := json.RawMessage(text)
	switch {
	case len(output) > maxShellOutput:
		return failure(fmt.Sprintf("the result is larger than %s", formatSize(maxShellOutput)))
	case ended:
		return failure(cmp.Or(strings.Join(lastLines, "\n"), fmt.Sprintf("%s ended with %s", name, err)))
	case err != nil:
		return failure(errText(err))
	case text == "":
		return toolResult(nil)
	case json.Valid(value) && isObject(value):
		return toolResult(value)
	}
	return toolResult(quote(text))
}

// run runs the shell in a process tree of its own until it ends, unless the script has lost
// its approval. It returns at most one byte of output more than the limit, and the last lines
// of stderr. When ctx ends, run ends the tree and waits for its end; otherwise, background
// processes of the shell continue.
func (s *shellServer) run(ctx context.Context, input, progressToken json.RawMessage,
	args ...string) (output []byte, lastLines []string, err error) {
	if s.approved != "" {
		if _, err := s.readScript(); err != nil {
			return nil, nil, err
		}
	}
	cmd := exec.Command(s.shell, slices.Concat(s.options, args)...)
	cmd.Dir = filepath.Dir(s.path)
	cmd.WaitDelay = outputTimeout // if a background process keeps stdin open
	cmd.Stdin = bytes.NewReader(input)
	c, err := s.reaper.startPiped(cmd)
	if err != nil {
		return nil, nil, fmt.Errorf("starting %s: %s", s.shell, errText(err))
	}
	var read sync.WaitGroup
	read.Go(func() {
		output, _ = io.ReadAll(io.LimitReader(c.outputs[0], maxShellOutput+1))
		if len(output) > maxShellOutput {
			c.outputs[0].Close() // this ends the function
		}
	})
	read.Go(func() { lastLines = s.readStderr(c.outputs[1], progressToken) })
	err = c.wait(ctx, 0)
	c.stopReading()
	read.Wait()
	// Background processes may keep the pipes open, and write to them.
	go drainPipe(c.outputs[0], io.Discard)
	go drainPipe(c.outputs[1], s.stderr)
	return output, lastLines, err
}

// drainPipe reads a pipe until all writers have closed it.
func drainPipe(pipe *os.File, to io.Writer) {
	defer pipe.Close()
	pipe.SetReadDeadline(time.Time{})
	io.Copy(to, pipe)
}

// readStderr passes lines of progress on to the caller and other lines to the log, and
// returns the last of the other lines.
func (s *shellServer) readStderr(pipe io.Reader, progressToken json.RawMessage) (lastLines []string) {
	lines := bufio.NewReaderSize(pipe, maxLoggedLine)
	for {
		raw, _, err := lines.ReadLine()
		if err != nil {
			return lastLines
		}
		if m := shellProgress.FindSubmatch(raw); m != nil {
			if progressToken != nil { // the caller wants progress
				s.send(encodeRequest(nil, "notifications/progress", object{
					{"progressToken", progressToken},
					{"progress", m[1]},
					{"message", quote(string(m[3]))},
					{"total", m[2]},
				}.encode()))
			}
			continue
		}
		line := strings.ToValidUTF8(string(raw), "\uFFFD")
		fmt.Fprintln(s.stderr, line)
		// The shell's own errors begin with the script's absolute path.
		line = strings.ReplaceAll(line, filepath.Dir(s.path)+string(filepath.Separator), "")
		lastLines = append(lastLines[max(0, len(lastLines)-shellTail+1):], line)
	}
}
