// What the commands share: a run of the program with its streams and environment, the
// data folder, the opening of modules and claims, and text for terminals.
//
// Output for people, and JSON with -json, goes to stdout. Logs, warnings and errors go
// to stderr; an error is one line that begins "usher:". Text that others wrote (file
// names, descriptions, errors of modules) passes through sanitize.

package main

import (
	"bytes"
	"cmp"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"text/template"
	"time"
	"unicode"
)

// app is one run of the program.
type app struct {
	stdin     io.Reader
	stdout    io.Writer
	stderr    io.Writer
	output    bytes.Buffer // of the command, written to stdout at its end
	lookupEnv func(string) (string, bool)
	base      string // the base folder; "" if commands find it without -base
	data      string // the data folder; see prepareData
	claims    *ClaimStore
}

// getenv returns an environment variable, or "".
func (a *app) getenv(name string) string {
	value, _ := a.lookupEnv(name)
	return value
}

// usageError is a mistake on the command line: the exit status is 2, and the usage is
// printed.
type usageError struct{ error }

// usageErrorf returns a formatted usageError.
func usageErrorf(format string, args ...any) error {
	return usageError{fmt.Errorf(format, args...)}
}

// prepareData creates and resolves the data folder, {base}/.data, and opens its claims,
// which the caller must close. It refuses a folder that another user could change or
// replace, because that user could create claims. It checks the folder and all folders
// above it by the rule of sshd: others may write to a folder only if it is above the base
// folder and has the sticky bit.
func (a *app) prepareData() error {
	a.base = cmp.Or(a.base, a.getenv("USHER_BASE"))
	base := a.base
	var err error
	if base == "" {
		base, err = os.UserHomeDir()
		base = filepath.Join(base, ".usher")
	}
	dir := filepath.Join(base, ".data")
	if err == nil {
		err = os.MkdirAll(dir, 0o700)
	}
	if err == nil {
		a.data, err = resolvePath(dir)
	}
	for at := a.data; err == nil; at = filepath.Dir(at) {
		err = checkPrivate(at, len(at) < len(filepath.Dir(a.data)))
		if at == filepath.Dir(at) {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("preparing the data folder: %w; name another with -base or $USHER_BASE", err)
	}
	if a.base != "" {
		a.base = filepath.Dir(a.data)
	}
	a.claims = openClaims(a.data)
	return nil
}

// resolveDir makes a folder's path absolute, with symlinks resolved.
func resolveDir(dir string) (string, error) {
	info, err := os.Stat(dir) // refuses "", which Abs would treat as the current folder
	switch {
	case err != nil:
		return "", errors.New("no such folder")
	case !info.IsDir():
		return "", errors.New("want a folder, not a file")
	}
	return resolvePath(dir)
}

// resolvePath makes a path absolute, with symlinks resolved.
func resolvePath(path string) (string, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	return filepath.EvalSymlinks(path)
}

// resolveRoots resolves the DIR arguments of a command; without any, the current folder.
func resolveRoots(dirs []string) (roots []string, err error) {
	if len(dirs) == 0 {
		dirs = []string{"."}
	}
	for _, dir := range dirs {
		root, err := resolveDir(dir)
		if err != nil {
			return nil, usageErrorf("DIR %q: %v", dir, err)
		}
		roots = append(roots, root)
	}
	return roots, nil
}

// withRegistry calls do with a registry of the modules under dirs; see resolveRoots. The
// registry is closed when do returns. c has the rest of its configuration.
func (a *app) withRegistry(dirs []string, c registryConfig, do func(*Registry) error) error {
	roots, err := resolveRoots(dirs)
	if err == nil {
		err = checkNesting(a.getenv(nestedVar), roots)
	}
	if err != nil {
		return err
	}
	c.Roots = roots
	if c.Served == nil {
		c.Served = roots
	}
	c.CacheDir = filepath.Join(a.data, "cache")
	r := newRegistry(c)
	defer r.Close()
	return do(r)
}

// printf prints to the output.
func (a *app) printf(format string, args ...any) { fmt.Fprintf(&a.output, format, args...) }

// warnf prints a line to stderr.
func (a *app) warnf(format string, args ...any) {
	fmt.Fprintf(a.stderr, "usher: "+format+"\n", args...)
}

//go:embed help/output.tmpl
var outputText string

// print prints v as JSON if asJSON is set, else with a template of help/output.tmpl.
func (a *app) print(name string, v any, asJSON bool) {
	if !asJSON {
		writeText(&a.output, name, v)
		return
	}
	_ = json.Indent(&a.output, marshal(v), "", "  ") // never fails for valid JSON
	a.printf("\n")
}

// writeText writes v with a template of help/output.tmpl.
func writeText(w io.Writer, name string, v any) {
	output := template.New(name).Funcs(template.FuncMap{
		"clean": sanitize,
		"left":  formatLeft,
		"note":  func(text string) string { return sanitizeLines(text, "\n      ") },
	})
	var text bytes.Buffer // so that records of the log don't come in between
	table := tabwriter.NewWriter(&text, 0, 0, 3, ' ', 0)
	_ = template.Must(output.Parse(outputText)).ExecuteTemplate(table, name, v)
	table.Flush()
	_, _ = text.WriteTo(w)
}

// isTerminal reports whether a writer is a terminal.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && isConsole(f)
}

// newRecordLog returns a log that calls handle with each record, as strings by key.
func newRecordLog(handle func(record object)) *slog.Logger {
	asText := func(_ []string, a slog.Attr) slog.Attr {
		if !a.Equal(slog.Attr{}) { // slog leaves out the zero value
			a.Value = slog.StringValue(a.Value.String())
		}
		return a
	}
	return slog.New(slog.NewJSONHandler(recordWriter(handle), &slog.HandlerOptions{ReplaceAttr: asText}))
}

// recordWriter calls a function with each JSON object that is written to it.
type recordWriter func(record object)

func (w recordWriter) Write(record []byte) (int, error) {
	w(members(record))
	return len(record), nil
}

// sanitize returns foreign text for one line of a terminal or a table.
func sanitize(text string) string { return sanitizeLines(text, "; ") }

// sanitizeLines replaces characters of foreign text that could control the terminal or break
// a table, and joins the lines by separator.
func sanitizeLines(text, separator string) string {
	printable := strings.Map(func(r rune) rune {
		switch {
		case unicode.IsPrint(r) || r == '\n':
			return r
		case r == '\t':
			return ' '
		}
		return unicode.ReplacementChar
	}, text)
	return strings.ReplaceAll(printable, "\n", separator)
}

// formatLeft formats the time until an instant in days, hours and minutes, rounded up.
func formatLeft(at time.Time) string {
	minutes := (max(time.Until(at), 1) + time.Minute - 1) / time.Minute
	var parts []string
	for i, n := range []time.Duration{minutes / (24 * 60), minutes / 60 % 24, minutes % 60} {
		if n > 0 {
			parts = append(parts, fmt.Sprintf("%d%c", n, "dhm"[i]))
		}
	}
	return strings.Join(parts, " ")
}

// maxTTL is the longest life of a claim. It keeps the year of expiry within the four digits
// of RFC 3339.
const maxTTL = 100 * 365 * 24 * time.Hour

// parseTTL parses the life of a claim: any form that time.ParseDuration accepts, or a
// number of days or weeks.
func parseTTL(s string) (time.Duration, error) {
	s = strings.ToLower(s)
	factor := time.Duration(1)
	for unit, hours := range map[string]time.Duration{"d": 24, "w": 7 * 24} {
		number, ok := strings.CutSuffix(s, unit)
		if ok && consistsOf(number, "0123456789") {
			s, factor = number+"h", hours
		}
	}
	d, err := time.ParseDuration(s)
	if err != nil || d <= 0 || d > maxTTL/factor {
		return 0, errors.New("want a duration such as 30m, 1h30m, 7d or 2w, up to 100 years")
	}
	return d * factor, nil
}
