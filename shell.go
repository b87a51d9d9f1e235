// Shell modules. Nothing here starts a process: this file reads a script for functions with
// a comment above them, builds the arguments of the shell for a call, and makes a result
// of the output. A call passes the parameters to the function as arguments. No value of a
// call is ever evaluated: values reach the shell only as arguments and on stdin.

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// shellScript is the script of a shell module.
type shellScript struct {
	path    string   // absolute
	shell   string   // the program
	options []string // of the shell, from the script's first line
	about   string
	docs    object // the comments of functions, by name

	problems []string // for the script's author
}

var (
	shellLine = regexp.MustCompile(
		`^#!\s*(?:\S*/env\s+(?:-S\s+)?)?(\S*\b(?:sh|bash|dash|ksh|zsh))(\s.*?)??(?:\s--?)?\s*$`)
	shellFunction = regexp.MustCompile(`^(?:function\s+)?([A-Za-z][\w-]*)\s*(?:\(\)|\{)`)

	// unexpanded matches most of what the shell does not expand: escaped characters, text in
	// single quotes, and comments.
	unexpanded    = regexp.MustCompile(`\\.|'[^']*'|(?m:\s#.*$)`)
	shellArgument = regexp.MustCompile(`\$\{?[1-9@*]`)
)

// notMethods are commands that run their arguments. Some shells prefer them to a
// function of the same name.
var notMethods = []string{"builtin", "command", "eval", "exec"}

// readScript finds the shell of the script at path (by default sh) and its options, the text
// about the module (the first comment) and the functions with a comment right above them.
func readScript(path string) (*shellScript, error) {
	raw, _, err := readSource(path, kindShell)
	if err != nil {
		return nil, err
	}
	text := string(raw)
	if strings.Contains(text, "\r\n") {
		return nil, errors.New(`its lines end with \r\n: end them with \n`)
	}
	s := &shellScript{path: path, shell: "sh"}
	if first, _, _ := strings.Cut(text, "\n"); strings.HasPrefix(first, "#!") {
		m := shellLine.FindStringSubmatch(first)
		if m == nil {
			return nil, fmt.Errorf("line 1: %q: want sh, bash, dash, ksh or zsh", first)
		}
		s.shell = m[1]
		text = strings.TrimPrefix(text, first)
		s.options = strings.Fields(m[2])
	}
	var comment []string
	for text != "" {
		start := text
		line, rest, _ := strings.Cut(text, "\n")
		text = rest
		if rest, ok := strings.CutPrefix(line, "#"); ok {
			comment = append(comment, strings.TrimPrefix(rest, " "))
			continue
		}
		doc := strings.Join(comment, "\n")
		if m := shellFunction.FindStringSubmatch(line); m != nil && doc != "" {
			s.docs = s.docs.set(m[1], quote(doc))
			body := line
			if !strings.HasSuffix(line, "}") {
				body, _, _ = strings.Cut(start, "\n}")
			}
			body = unexpanded.ReplaceAllString(body, "")
			if shellArgument.MatchString(body) && parseDoc(doc, kindShell).params == nil {
				s.problems = append(s.problems, m[1]+": it uses $1, but has no @param")
			}
		} else if s.about == "" && s.docs == nil {
			s.about = doc
		}
		comment = nil
	}
	return s, nil
}

// listFunctions returns the arguments of the shell to print which names are functions after
// the shell has read the script. Reserved words, for example, and text in a here-document
// are none.
func (s *shellScript) listFunctions() []string {
	program := isFunction + `. "$0" >&2 && for usher_name in`
	for _, f := range s.docs {
		program += " " + f.key
	}
	program += "; do if usher_is $usher_name; then command echo $usher_name; fi; done"
	return []string{"-c", program, s.path}
}

// manifest returns what the module offers, if these names are functions.
func (s *shellScript) manifest(functions []string) *manifest {
	m := &manifest{
		About:    firstSentence(s.about),
		Problems: s.problems,
		Lists:    make(map[string][]json.RawMessage),
	}
	for _, f := range s.docs {
		name := f.key
		if !slices.Contains(functions, name) || slices.Contains(notMethods, name) {
			problem := "%s: %s can't call a function of this name: rename it"
			m.Problems = append(m.Problems, fmt.Sprintf(problem, name, filepath.Base(s.shell)))
			continue
		}
		m.Lists["tools"] = append(m.Lists["tools"], object{
			{"name", quote(name)},
			{"description", f.value},
			{"inputSchema", json.RawMessage(`{"type":"object"}`)},
		}.encode())
	}
	return m
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

// commandLine returns the arguments of the shell for a call of a function.
func (s *shellScript) commandLine(name string, arguments json.RawMessage) ([]string, error) {
	doc, ok := unquote(s.docs.get(name))
	if !ok {
		return nil, fmt.Errorf("no method %q", name)
	}
	// $0 is the script, so that a module can find files beside it. The script sees none of the
	// values as its own arguments: many scripts end in "$@". The quotes around the name keep
	// the shell from reading it as a reserved word or an alias. The script may define the
	// function in some calls only.
	var stored, passed string
	args := []string{"-c", "", s.path}
	for i, p := range parseDoc(doc, kindShell).params {
		value := members(arguments).get(p.name)
		text, ok := unquote(value)
		if !ok { // other values are JSON, and omitted ones ""
			text = strings.TrimPrefix(string(value), "null")
		}
		args = append(args, text) // $1, $2, … as documented
		stored += fmt.Sprintf("usher_%d=${%[1]d}; ", i+1)
		passed += fmt.Sprintf(` "$usher_%d"`, i+1)
	}
	args[1] = fmt.Sprintf(isFunction+`%[2]sset --; . "$0" && if usher_is %[1]s; then "%[1]s"%[3]s
		else command echo the script defines no function %[1]s >&2; exit 127; fi`, name, stored, passed)
	return args, nil
}

// shellResult returns the result of a call of a function: its output, as an object or as content
// blocks if it is that, else as text.
func shellResult(output []byte, err error) object {
	text := strings.ToValidUTF8(strings.TrimRight(string(output), "\n"), "\uFFFD")
	value := json.RawMessage(text)
	switch {
	case err != nil:
		return failure(errText(err))
	case text == "":
		return toolResult(nil)
	case json.Valid(value) && (members(value) != nil || areContent(items(value))):
		return toolResult(value)
	}
	return toolResult(quote(text))
}
