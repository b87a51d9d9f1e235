// Shell modules: usher itself as the MCP server of a shell script, one process
// a call. It reads the script for functions with a comment above them, and runs
// one with the parameters as its arguments. Nothing of a call is ever evaluated:
// values reach the shell as arguments and on stdin, and nowhere else.

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
)

// shellMethod is a function of a script that is a method.
type shellMethod struct {
	name   string
	doc    string   // the comment above it
	params []string // as documented, in order: $1, $2, …
}

// shellServer serves one script over stdin and stdout.
type shellServer struct {
	path    string // of the script, absolute
	shell   string // what runs it
	about   string
	methods []shellMethod
	guard   Guard // each call has a group of its own, which must end with us
	stderr  io.Writer
	calls   inflight[context.CancelCauseFunc]

	mu  sync.Mutex // guards out
	out io.Writer
}

// runShell serves the script at path until stdin ends, and returns the exit
// status.
func runShell(ctx context.Context, path string, stdin io.Reader, stdout, stderr io.Writer) int {
	text, err := os.ReadFile(path)
	if err != nil {
		fmt.Fprintln(stderr, reason(err))
		return 1
	}
	s := &shellServer{path: path, out: stdout, stderr: stderr}
	if s.shell, err = shellOf(string(text)); err == nil {
		err = checkShellSyntax(s.shell, path)
	}
	if err != nil {
		fmt.Fprintf(stderr, "%s: %v\n", filepath.Base(path), err)
		return 1
	}
	s.about, s.methods = parseShell(string(text))
	defer s.guard.Close()
	s.serve(ctx, stdin)
	return 0
}

// shellOf is the shell that a script's first line names; sh without one.
func shellOf(text string) (string, error) {
	first, _, _ := strings.Cut(text, "\n")
	if !strings.HasPrefix(first, "#!") {
		return "sh", nil
	}
	fields := strings.Fields(first[2:])
	if len(fields) > 1 && filepath.Base(fields[0]) == "env" {
		fields = fields[1:]
	}
	if len(fields) > 0 && slices.Contains([]string{"sh", "bash", "dash", "ksh", "zsh"}, filepath.Base(fields[0])) {
		return fields[0], nil
	}
	return "", fmt.Errorf("line 1: %q names no shell: want sh, bash, dash, ksh or zsh", first)
}

// checkShellSyntax has the shell read the script without running it.
func checkShellSyntax(shell, path string) error {
	cmd := exec.Command(shell, "-n", "./"+filepath.Base(path))
	cmd.Dir = filepath.Dir(path)
	said, err := cmd.CombinedOutput()
	if err == nil {
		return nil
	}
	if text := strings.TrimSpace(string(said)); text != "" {
		return errors.New(strings.ReplaceAll(text, "./"+filepath.Base(path)+": ", ""))
	}
	return err
}

var shellFunction = regexp.MustCompile(`^(?:function[ \t]+)?([A-Za-z][A-Za-z0-9_]*)[ \t]*\(\)`)

// parseShell finds what the script says of itself and its methods: functions
// with a comment right above them.
func parseShell(text string) (about string, methods []shellMethod) {
	var comment []string
	first := true
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\r\n")
		if strings.HasPrefix(line, "#!") {
			continue
		}
		if rest, ok := strings.CutPrefix(line, "#"); ok {
			comment = append(comment, strings.TrimPrefix(rest, " "))
			continue
		}
		m := shellFunction.FindStringSubmatch(line)
		if m != nil && len(comment) > 0 {
			doc := strings.Join(comment, "\n")
			method := shellMethod{name: m[1], doc: doc}
			for _, p := range parseDoc(doc, docRules{Hooks: true, Tags: true, Undeclared: true}).params {
				method.params = append(method.params, p.name)
			}
			methods = append(methods, method)
		} else if first && len(comment) > 0 {
			about = strings.Join(comment, "\n")
		}
		first = first && len(comment) == 0
		comment = nil
	}
	return about, methods
}

// serve answers until stdin ends, and then ends what is under way.
func (s *shellServer) serve(ctx context.Context, stdin io.Reader) {
	ctx, cancel := context.WithCancel(ctx)
	var calls sync.WaitGroup
	lines := newLineReader(stdin, maxWorkerLine)
	for {
		line, err := lines.next()
		if err != nil && !errors.Is(err, errLineTooLong) {
			break
		}
		if msg, err := parseMessage(line); err == nil {
			s.take(ctx, msg, &calls)
		}
	}
	cancel()
	calls.Wait()
}

func (s *shellServer) send(msg []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.out.Write(append(msg, '\n')) // if usher is gone, stdin has ended too
}

// take handles one message.
func (s *shellServer) take(ctx context.Context, msg *Message, calls *sync.WaitGroup) {
	switch msg.Method {
	case "initialize":
		s.send(encodeResult(msg.ID, marshal(map[string]any{
			"protocolVersion": protocols[0],
			"capabilities":    map[string]any{"tools": struct{}{}},
			"serverInfo":      map[string]string{"name": filepath.Base(s.path), "version": version()},
			"instructions":    s.about,
		})))
	case "ping":
		s.send(encodeResult(msg.ID, json.RawMessage(`{}`)))
	case "tools/list":
		s.send(encodeResult(msg.ID, s.list()))
	case "notifications/cancelled":
		if cancel, ok := s.calls.get(string(field(msg.Params, "requestId"))); ok {
			cancel(nil)
		}
	case "tools/call":
		ctx, cancel := context.WithCancelCause(ctx)
		if s.calls.add(string(msg.ID), cancel) != nil {
			cancel(nil)
			return
		}
		calls.Go(func() {
			defer cancel(nil)
			result := s.call(ctx, msg.Params)
			s.calls.take(string(msg.ID))
			if ctx.Err() == nil {
				s.send(encodeResult(msg.ID, result))
			}
		})
	default:
		if msg.isRequest() {
			s.send(encodeError(msg.ID, rpcErrorf(codeNoMethod, "unknown method %q", msg.Method)))
		}
	}
}

// list is the methods as tools: usher finds the parameters in the text.
func (s *shellServer) list() json.RawMessage {
	tools := []json.RawMessage{}
	for _, m := range s.methods {
		tools = append(tools, joinMembers([]member{
			{"name", quote(m.name)}, {"description", quote(m.doc)}, {"inputSchema", json.RawMessage(`{"type":"object"}`)}}))
	}
	return marshal(map[string]any{"tools": tools})
}

// call runs one function in a process of its own.
func (s *shellServer) call(ctx context.Context, params json.RawMessage) json.RawMessage {
	name := stringField(params, "name")
	i := slices.IndexFunc(s.methods, func(m shellMethod) bool { return m.name == name })
	if i < 0 {
		return failure(fmt.Sprintf("no method %q", name))
	}
	arguments := field(params, "arguments")
	if arguments == nil {
		arguments = json.RawMessage(`{}`)
	}
	args, err := s.methods[i].args(arguments)
	if err != nil {
		return failure(err.Error())
	}
	// $0 is the script, so that a module can find what lies beside it. The
	// name is one that parseShell found.
	cmd := exec.Command(s.shell, append([]string{"-c", `. "$0" && ` + name + ` "$@"`, s.path}, args...)...)
	cmd.Dir = filepath.Dir(s.path)
	cmd.Stdin = bytes.NewReader(arguments)
	out := &bounded{limit: maxShellOutput}
	said := &shellStderr{server: s, token: field(field(params, "_meta"), "progressToken")}
	cmd.Stdout, cmd.Stderr = out, said
	cmd.WaitDelay = outputPatience // of what it leaves behind with its pipes
	err = s.run(ctx, cmd)
	said.flush()
	switch {
	case out.over:
		return failure(fmt.Sprintf("the result is larger than %s", formatSize(maxShellOutput)))
	case errors.Is(err, exec.ErrWaitDelay):
		return shellResult(out.b.Bytes())
	case err != nil && len(said.tail) > 0:
		return failure(strings.Join(said.tail, "\n"))
	case err != nil:
		return failure(fmt.Sprintf("%s ended with %v", name, err))
	}
	return shellResult(out.b.Bytes())
}

// run runs a command in a process group of its own, which ends with it and with
// ctx.
func (s *shellServer) run(ctx context.Context, cmd *exec.Cmd) error {
	setGroup(cmd)
	if err := cmd.Start(); err != nil {
		return err
	}
	pid := cmd.Process.Pid
	if err := s.guard.add(pid); err != nil {
		fmt.Fprintln(s.stderr, "no guard:", err)
	}
	exited := make(chan struct{})
	var watcher sync.WaitGroup
	watcher.Go(func() {
		select {
		case <-exited:
			return
		case <-ctx.Done():
			terminateGroup(pid)
		}
		select {
		case <-exited:
		case <-time.After(exitPatience):
			killGroup(pid)
		}
	})
	awaitExit(pid) // the group's id stays its own until Wait
	close(exited)
	watcher.Wait()
	killGroup(pid)
	s.guard.remove(pid)
	return cmd.Wait()
}

// args are a call's parameters as the function gets them: texts as they are,
// all else as JSON, and "" for one that is left out.
func (m shellMethod) args(arguments json.RawMessage) ([]string, error) {
	list := make([]string, 0, len(m.params))
	for _, name := range m.params {
		raw := field(arguments, name)
		value := string(oneLine(raw))
		if text, ok := unquote(raw); ok {
			value = text
		} else if value == "null" {
			value = ""
		}
		switch {
		case len(value) >= maxShellArg:
			return nil, fmt.Errorf("parameter %q is larger than %s, which is all that an argument of a shell function can hold", name, formatSize(maxShellArg))
		case strings.ContainsRune(value, 0):
			return nil, fmt.Errorf("parameter %q has a NUL in it, which no argument of a shell function can hold", name)
		}
		list = append(list, value)
	}
	return list, nil
}

// shellResult is what a function printed, as a tool's result: an object if it
// is one, else text.
func shellResult(out []byte) json.RawMessage {
	text := strings.ToValidUTF8(strings.TrimRight(string(out), "\n"), "\uFFFD")
	object := json.RawMessage(strings.TrimSpace(text))
	switch {
	case text == "":
		return toolResult(nil)
	case json.Valid(object) && object[0] == '{':
		return toolResult(object)
	default:
		return toolResult(quote(text))
	}
}

// bounded keeps what is written, up to a limit.
type bounded struct {
	b     bytes.Buffer
	limit int
	over  bool
}

func (w *bounded) Write(p []byte) (int, error) {
	if w.b.Len()+len(p) > w.limit {
		w.over = true
		return 0, errors.New("too much output")
	}
	return w.b.Write(p)
}

// shellStderr takes what a function writes to stderr: lines of progress for the
// caller, all else for the log, and the last of it for a failure.
type shellStderr struct {
	server *shellServer
	token  json.RawMessage // nil when the caller wants no progress
	part   []byte          // of a line that is not whole yet
	tail   []string
}

func (w *shellStderr) Write(p []byte) (int, error) {
	w.part = append(w.part, p...)
	for {
		line, rest, ok := bytes.Cut(w.part, []byte("\n"))
		if !ok {
			if len(w.part) > maxLoggedLine {
				w.flush()
			}
			return len(p), nil
		}
		w.part = rest
		w.line(line)
	}
}

// flush takes what is left as a line.
func (w *shellStderr) flush() {
	if len(w.part) > 0 {
		w.line(w.part)
		w.part = nil
	}
}

func (w *shellStderr) line(raw []byte) {
	line := strings.ToValidUTF8(string(raw), "\uFFFD")
	if rest, ok := strings.CutPrefix(line, "::progress "); ok {
		w.progress(rest)
		return
	}
	fmt.Fprintln(w.server.stderr, line)
	if strings.TrimSpace(line) != "" {
		// The shell begins its own errors with $0, which is a whole path.
		line = strings.ReplaceAll(line, filepath.Dir(w.server.path)+string(filepath.Separator), "")
		if w.tail = append(w.tail, line); len(w.tail) > shellTail {
			w.tail = w.tail[1:]
		}
	}
}

// progress passes on "N M text", of which M and text may be left out.
func (w *shellStderr) progress(s string) {
	if w.token == nil {
		return
	}
	params := []member{{"progressToken", w.token}}
	for _, key := range []string{"progress", "total"} {
		word, rest, _ := strings.Cut(s, " ")
		if jsonNumber.MatchString(word) {
			params, s = append(params, member{key, json.RawMessage(word)}), rest
		}
	}
	if s != "" {
		params = append(params, member{"message", quote(s)})
	}
	w.server.send(encodeNotification("notifications/progress", joinMembers(params)))
}

var jsonNumber = regexp.MustCompile(`^-?(0|[1-9][0-9]*)(\.[0-9]+)?$`)
