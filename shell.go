// Shell modules. This file reads a script for functions with a comment above them, builds the
// arguments of the shell for a call, runs the shell in a process of its own for each call, and makes
// a result of the output. A call passes the parameters to the function as arguments. No value of a
// call is ever evaluated: values reach the shell only as arguments and on stdin.

package main

import (
	"bytes"
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"
)

// shellScript is the script of a shell module.
type shellScript struct {
	shell   string // the program
	options string // of the shell, from the script's first line
	about   string
	docs    object // the comments of functions, by the names of their methods

	functions map[string]string // names, by the names of their methods; "" if several share a method's name
}

var (
	shellLine = regexp.MustCompile(
		`^(?:#!\s*(?:\S*/env\s+(?:-S\s+)?)?(\S*\b(?:sh|bash|dash|ksh|zsh))(\s.*?)??(?:\s--?)?\s*$` +
			`|# shellcheck shell=(bash|dash|ksh))`)
	// shellComment matches code (group 1), a comment (2), the blank lines below it (3), the name of a
	// function (4), and the function's first lines up to a use of its arguments (5). All but the comment
	// are optional.
	shellComment = regexp.MustCompile(`(?m)((?s:.*?))^((?:#.*\n?)+)(\s*\n)?` +
		`(?:(?:function\s+)?([A-Za-z][\w:.-]*)\s*(?:\(\s*\)|\{)` +
		`((?:[^'\n]|["\w]'|\n+[ \t{]|'[^'\n]*')*?\$(?:\{?[1-9@*]|#))?)?`)
	// shellMargin matches what precedes the text in each line of a comment.
	shellMargin = regexp.MustCompile(`(?m)^#+ ?`)
)

// shellMethod returns the name of the method for a function.
var shellMethod = strings.NewReplacer("::", "_", ".", "_").Replace

// readScript finds the shell of the script at path (by default sh) and its options, the text
// about the module (the first comment), and the functions with a comment: right above them, or apart
// if it has a @param or @returns.
func readScript(path string) (*shellScript, error) {
	raw, _, err := readSource(path, kindShell)
	if err != nil {
		return nil, err
	}
	text := string(raw)
	if strings.Contains(text, "\r\n") {
		return nil, errors.New(`its lines end with \r\n: end them with \n`)
	}
	s := &shellScript{shell: "sh", functions: make(map[string]string)}
	first, rest, _ := strings.Cut(text, "\n")
	if m := shellLine.FindStringSubmatch(first); m != nil {
		s.shell = m[1] + m[3]
		text = rest
		s.options = m[2]
	} else if strings.HasPrefix(first, "#!") {
		return nil, fmt.Errorf("line 1: %q: want sh, bash, dash, ksh or zsh", first)
	}
	code := ""
	for _, m := range shellComment.FindAllStringSubmatch(text, -1) {
		code += m[1]
		doc := shellMargin.ReplaceAllString(m[2], "")
		tags := parseDoc(doc, kindShell)
		if m[5] != "" && tags.params == nil {
			doc += "\n@param $1" // no valid name, so usher modules reports it
		}
		switch {
		case m[4] != "" && (m[3] == "" || tags.params != nil || tags.returns != ""):
			name := shellMethod(m[4])
			if other, ok := s.functions[name]; ok && other != m[4] { // two functions, one name
				m[4] = ""
			}
			s.functions[name] = m[4]
			s.docs = s.docs.set(name, quote(doc))
		case s.about == "" && !strings.ContainsAny(code, "{="): // a comment below code is not the module's
			s.about = firstSentence(tags.description)
		}
	}
	return s, nil
}

// listFunctions returns a program for the shell that checks the script's syntax, runs the script,
// and prints which names are functions then. Reserved words, for example, and text in a
// here-document look like functions in the file, but are not printed.
func (s *shellScript) listFunctions() string {
	program := s.shell + s.options + ` -n "$0" || exit; ` +
		`usher_found=$(. "$usher_file" >&2 || :; usher_list usher_list`
	for _, f := range s.docs {
		program += " " + s.functions[f.key]
	}
	return program + "); usher_found"
}

// manifest returns what the module offers, if these names are functions.
func (s *shellScript) manifest(functions []string) *manifest {
	m := &manifest{
		About: s.about,
		Lists: make(map[string][]json.RawMessage),
	}
	for _, f := range s.docs {
		if !slices.Contains(functions, s.functions[f.key]) {
			m.Problems = append(m.Problems, f.key+": "+filepath.Base(s.shell)+
				" can't call a function of this name, or has two: rename it")
			continue
		}
		m.Lists["tools"] = append(m.Lists["tools"], object{
			{"name", quote(f.key)},
			{"description", f.value},
			{"inputSchema", json.RawMessage(`{"type":"object"}`)},
		}.encode())
	}
	m.setHash()
	return m
}

// shellShim defines the shell functions that usher runs beside those of a script.
//
//go:embed runtimes/shim.sh
var shellShim string

// callOf returns a program for the shell that calls the function of a method, and the program's
// arguments.
func (s *shellScript) callOf(name string, arguments json.RawMessage) (program string, values []string) {
	// $0 is the script, so that a module can find files beside it. The script sees none of the
	// values as its own arguments: many scripts end in "$@". The script may define the function
	// in some calls only.
	var stored, passed string
	for i, p := range parseDoc(s.docs.text(name), kindShell).params {
		values = append(values, plainText(members(arguments).get(p.name))) // $1, $2, … as documented
		stored += fmt.Sprintf("usher_%d=${%[1]d}; ", i+1)
		passed += fmt.Sprintf(` "$usher_%d"`, i+1)
	}
	function := quote(s.functions[name]) // "" if the script has changed
	return stored + `set --; . "$usher_file" || :; usher_call ` + string(function) + passed, values
}

// shellResult returns the result of a call of a function: its output, as an object or as content
// blocks if it is that, else as text, or as bytes if it is not UTF-8.
func shellResult(output []byte, err error) object {
	text := strings.TrimRight(string(output), "\n")
	value := json.RawMessage(replaceSurrogates([]byte(text)))
	switch {
	case err != nil:
		return failure(errText(err))
	case !utf8.Valid(output):
		return bytesResult(marshal(output))
	case text == "":
		return toolResult(nil)
	case json.Valid(value) && (members(value) != nil || fitsMCP("contents", value)):
		return toolResult(value)
	}
	return toolResult(quote(text))
}

// ---- Calls

// shellRunner runs the functions of a shell module: each call in a process of its own.
type shellRunner struct {
	poolConfig                              // of the module
	kept       context.Context              // background processes go on until it ends
	check      func(source) (source, error) // see Registry.checkApproved
}

// request calls the function that params name: see Worker.request. If the call's context ends,
// request ends the function and does not wait for its end; the call keeps its slot until then.
func (s *shellRunner) request(c *call, _ string, params object) (object, error) {
	var result object
	var err error
	done := make(chan struct{})
	s.running.Go(func() {
		defer close(done)
		defer c.slot.release()
		defer catch(s.log, &err)
		result = shellResult(s.call(c.ctx, params.text("name"), params.get("arguments")))
	})
	if ended := waitFor(c.ctx, done); ended != nil {
		return nil, ended
	}
	return result, err
}

// call runs one function until it ends, and returns its output.
func (s *shellRunner) call(ctx context.Context, name string, arguments json.RawMessage) ([]byte, error) {
	script, err := readScript(s.Source)
	if err != nil {
		return nil, err
	}
	program, values := script.callOf(name, arguments)
	return s.run(ctx, script, arguments, program, values...)
}

// introspect returns what the module offers.
func (s *shellRunner) introspect(ctx context.Context) (*manifest, error) {
	slow := fmt.Errorf("it took over %v: does it run a command that waits?", startTimeout)
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, slow)
	defer cancel()
	var functions []byte
	script, err := readScript(s.Source)
	if err == nil && script.docs != nil {
		functions, err = s.run(ctx, script, nil, script.listFunctions())
	}
	switch {
	case err == nil:
		return script.manifest(strings.Fields(string(functions))), nil
	case errors.Is(err, errUnapproved):
		return nil, err
	case script != nil && script.shell == "sh":
		err = fmt.Errorf("%w (bash syntax needs #!/usr/bin/env bash in line 1)", err)
	}
	return nil, processFault(s.Name, "can't be read", err.Error())
}

// run runs a program in the script's shell, unless the script has lost its approval, and returns its
// output. stdin is input; $1, $2, … are values. If the shell fails, the error is the last lines of
// stderr. When ctx ends, run ends the shell and everything that it started; otherwise, background
// processes go on.
func (s *shellRunner) run(ctx context.Context, script *shellScript, input []byte,
	program string, values ...string) (output []byte, err error) {
	if _, err := s.check(s.source); err != nil {
		return nil, err
	}
	args := append(strings.Fields(script.options), "-c", shellShim+program, s.Source)
	cmd := exec.Command(script.shell, append(args, values...)...)
	cmd.Dir = s.Launch.Dir
	cmd.Env = []string{insideOf(s.Source)}
	cmd.Stdin = bytes.NewReader(input)
	c, err := startChild(cmd)
	if err != nil {
		return nil, fmt.Errorf("starting %s: %s", script.shell, errText(err))
	}
	stdout := c.outputs[0]
	var lastLines tail
	var read sync.WaitGroup
	read.Go(func() {
		output, _ = io.ReadAll(io.LimitReader(stdout, maxShellOutput+1))
		if len(output) > maxShellOutput {
			stdout.Close() // this ends the function
		}
	})
	read.Go(func() {
		eachLine(c.outputs[1], func(line string) {
			s.log.Info("module output", "line", line)
			// The shell's own errors begin with the script's absolute path.
			lastLines.add(strings.ReplaceAll(line, cmd.Dir+"/", ""))
		})
	})
	err = c.wait(ctx, 0)
	read.Wait()
	s.running.Go(func() { s.keep(c) })
	switch {
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	case len(output) > maxShellOutput:
		err = fmt.Errorf("the result is larger than %s", formatSize(maxShellOutput))
	case err != nil:
		ended := fmt.Sprintf("%s ended with %v", filepath.Base(s.Source), err)
		err = errors.New(cmp.Or(lastLines.String(), ended))
	}
	return output, err
}

// keep lets the background processes of a call go on until they end or the module is removed,
// and drops what they write. It then ends what is left.
func (s *shellRunner) keep(c *child) {
	for _, f := range c.outputs {
		f.SetReadDeadline(time.Time{})
		go func() { // ends when all writers have closed the pipe
			defer f.Close()
			io.Copy(io.Discard, f)
		}()
	}
	for c.signal(0) && pauseFor(s.kept, sweepTime) {
	}
	c.end()
}
