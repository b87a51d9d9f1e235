// What the commands share: one run of the program with its streams and base folder,
// usage errors, durations, and text for terminals.

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
)

// app is one run of the program.
type app struct {
	ctx            context.Context
	stdin          io.Reader
	stdout, stderr io.Writer
	painter        // of stdout
	getenv         func(string) string
	base           string // the -base flag; see dataDir
	readOnly       bool   // nothing is made in the data folder
}

// declareBase is for the commands that keep data, as all do that host modules.
func (a *app) declareBase(fs *flag.FlagSet) {
	fs.StringVar(&a.base, "base", "", "the `DIR` usher keeps its data in; default $USHER_BASE, else ~/.usher")
}

// resolveDir makes a folder absolute with symlinks resolved.
func resolveDir(dir string) (string, error) {
	info, err := os.Stat(dir) // refuses "", which Abs takes for the current folder
	switch {
	case err != nil:
		return "", errors.New("no such folder")
	case !info.IsDir():
		return "", errors.New("not a folder")
	}
	path, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	return filepath.EvalSymlinks(path)
}

// withRegistry opens the modules under dirs, or else the current folder, for do;
// c holds what else the registry needs to know.
func (a *app) withRegistry(dirs []string, c registryConfig, do func(*Registry) error) error {
	if len(dirs) == 0 {
		dirs = []string{"."}
	}
	for _, dir := range dirs {
		root, err := resolveDir(dir)
		if err != nil {
			return usageErrorf("DIR %q: %v", dir, err)
		}
		c.Roots = append(c.Roots, root)
	}
	data, err := a.dataDir()
	if err = cmp.Or(err, checkNesting(a.getenv(nestedVar), c.Roots)); err != nil {
		return err
	}
	c.CacheDir = filepath.Join(data, "cache")
	c.Environ = os.Environ()
	r, err := newRegistry(c)
	if err != nil {
		return err
	}
	defer r.Close()
	return do(r)
}

// usageError is a mistake in how a command was called: exit status 2, and the
// usage on stderr.
type usageError struct{ error }

func usageErrorf(format string, args ...any) error {
	return usageError{fmt.Errorf(format, args...)}
}

// sanitize is a text that others wrote, without what could play with the terminal
// or break a table.
func sanitize(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return unicode.ReplacementChar
	}, s)
}

// painter puts styles into what is printed for people, or leaves it plain.
type painter bool

func (on painter) paint(style, text string) string {
	if !on {
		return text
	}
	return "\x1b[" + style + "m" + text + "\x1b[0m"
}

// newPainter paints on a terminal, unless its user has set NO_COLOR.
func newPainter(out io.Writer, getenv func(string) string) painter {
	f, ok := out.(*os.File)
	if !ok || getenv("NO_COLOR") != "" || getenv("TERM") == "dumb" || runtime.GOOS == "windows" {
		return false
	}
	info, err := f.Stat()
	return painter(err == nil && info.Mode()&os.ModeCharDevice != 0)
}

// formatLeft is a duration for people, in its two largest units, rounded up.
func formatLeft(d time.Duration) string {
	large, small, form := time.Minute, time.Second, "%dm %ds"
	if d > 24*time.Hour {
		large, small, form = 24*time.Hour, time.Hour, "%dd %dh"
	} else if d > time.Hour-time.Second {
		large, small, form = time.Hour, time.Minute, "%dh %dm"
	}
	n, per := (max(d, 0)+small-1)/small, large/small
	text, _, _ := strings.Cut(fmt.Sprintf(form, n/per, n%per), " 0")
	return strings.TrimPrefix(text, "0m ")
}

// parseTTL reads how long something is to last.
func parseTTL(s string) (time.Duration, error) {
	s = strings.ToLower(s)
	d, err := time.ParseDuration(s)
	for suffix, unit := range map[string]time.Duration{"d": 24 * time.Hour, "w": 7 * 24 * time.Hour} {
		if digits, ok := strings.CutSuffix(s, suffix); ok {
			var n uint64
			n, err = strconv.ParseUint(digits, 10, 64)
			d = unit * time.Duration(min(n, uint64(maxTTL/unit)+1))
		}
	}
	if err != nil || d <= 0 || d > maxTTL {
		return 0, errors.New("want more than zero and at most 100 years, as a number and a unit such as 30m, 1h, 7d (also s, w), or as 1h30m")
	}
	return d, nil
}

// maxTTL keeps times within what RFC 3339 can write.
const maxTTL = 100 * 365 * 24 * time.Hour

// dataDir is {base}/.data, made if need be, unless it is only to be read. A folder
// that another user could write into is refused: whoever can write there can make
// claims.
func (a *app) dataDir() (string, error) {
	base := cmp.Or(a.base, a.getenv("USHER_BASE"))
	if base == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return "", usageErrorf("there is no home folder to keep data in: name one with -base or $USHER_BASE")
		}
		base = filepath.Join(home, ".usher")
	}
	dir, err := filepath.Abs(filepath.Join(base, ".data"))
	if _, absent := os.Stat(dir); a.readOnly && errors.Is(absent, fs.ErrNotExist) {
		return dir, nil
	}
	if err = cmp.Or(err, os.MkdirAll(dir, 0o700), checkPrivate(filepath.Dir(dir)), checkPrivate(dir)); err != nil {
		return "", fmt.Errorf("preparing the data folder: %w; name another with -base or $USHER_BASE", err)
	}
	return dir, nil
}

// printf prints what is for people.
func (a *app) printf(format string, args ...any) { fmt.Fprintf(a.stdout, format, args...) }

// warnf prints one line beside what a command does.
func (a *app) warnf(format string, args ...any) {
	fmt.Fprintf(a.stderr, "usher: "+format+"\n", args...)
}

// print prints a value as JSON, or else calls asText.
func (a *app) print(v any, asJSON bool, asText func()) {
	if !asJSON {
		asText()
		return
	}
	enc := json.NewEncoder(a.stdout)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	_ = enc.Encode(v) // to a stdout that is gone, as printf
}

// newTable aligns columns that are separated by tabs.
func newTable(w io.Writer) *tabwriter.Writer { return tabwriter.NewWriter(w, 0, 0, 3, ' ', 0) }

// The styles of what is printed on a terminal.
const bold, red, green = "1", "31", "32"
