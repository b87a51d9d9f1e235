// The command line: one table of commands, which both dispatch and help read,
// and a function a command. What people read goes to stdout; logs and errors go
// to stderr, an error on one line that begins "usher:"; with -json there is
// nothing on stdout but JSON.

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"text/tabwriter"
	"time"
	"unicode"
)

// app is one run of the program.
type app struct {
	ctx            context.Context
	stdin          io.Reader
	stdout, stderr io.Writer
	getenv         func(string) string
	base           string // the flag of the commands that have it; see dataDir
}

// command is an entry of the table. setup declares its flags and returns what
// runs once they are parsed.
type command struct {
	name    string
	args    string // as the usage line shows them
	summary string
	help    string
	setup   func(a *app, fs *flag.FlagSet) func(args []string) error
}

func commands() []command {
	return []command{
		{"serve", "[flags] [DIR…]", "host the modules under each DIR for MCP clients, over HTTP", helpServe, setupServe},
		{"stdio", "[flags] [DIR…]", "host them for the one client that started this, over stdin and stdout", helpStdio, setupStdio},
		{"claim", "[-scope DIR] [-ttl D] [-label TEXT] [-json]", "make a code that lets an MCP client see one folder", helpClaim, setupClaim},
		{"claim list", "[-json]", "show the claims that hold", "", setupClaimList},
		{"claim revoke", "CODE", "end a claim, with immediate effect", "", setupClaimRevoke},
		{"modules", "[-json] [-scope DIR | -claim CODE] [DIR…]", "show the modules, their tools, and what is wrong with the rest", helpModules, setupModules},
		{"call", "[flags] MODULE METHOD [JSON]", "call one method from the shell", helpCall, setupCall},
		{"new", "FILE", "write a module to begin with", helpNew, setupNew},
		{"version", "", "print the version", "", setupVersion},
		{"help", "[COMMAND]", "explain a command", "", setupHelp},
	}
}

// usageError is a mistake in how a command was called: exit status 2, and the
// usage on stderr.
type usageError struct{ msg string }

func (e *usageError) Error() string { return e.msg }

func usageErrorf(format string, args ...any) error {
	return &usageError{fmt.Sprintf(format, args...)}
}

func findCommand(name string) (command, bool) {
	list := commands()
	i := slices.IndexFunc(list, func(c command) bool { return c.name == name })
	if i < 0 {
		return command{}, false
	}
	return list[i], true
}

// run dispatches to a command and turns its error into an exit status.
func (a *app) run(args []string) int {
	if len(args) == 0 {
		fmt.Fprint(a.stderr, overview())
		return 2
	}
	name := args[0]
	switch name {
	case "-h", "-help", "--help":
		name = "help"
	case "-version", "--version":
		name = "version"
	}
	c, ok := findCommand(name)
	if !ok {
		fmt.Fprintf(a.stderr, "usher: unknown command %q: usher help lists them\n", args[0])
		return 2
	}
	c, args = subcommand(a, c, args[1:])
	fs := flag.NewFlagSet(c.name, flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	do := c.setup(a, fs)
	err := fs.Parse(flagsFirst(fs, args))
	if errors.Is(err, flag.ErrHelp) {
		fmt.Fprint(a.stdout, commandHelp(a, c))
		return 0
	}
	if err != nil {
		err = &usageError{err.Error()}
	} else {
		err = do(fs.Args())
	}
	return a.exit(c, err)
}

// subcommand finds the command that the first argument of c names, as "list"
// does in usher claim list, wherever the flags stand.
func subcommand(a *app, c command, args []string) (command, []string) {
	fs := flag.NewFlagSet(c.name, flag.ContinueOnError)
	c.setup(a, fs)
	ordered := flagsFirst(fs, args)
	at := slices.Index(ordered, "--") + 1
	if at == len(ordered) {
		return c, args
	}
	sub, ok := findCommand(c.name + " " + ordered[at])
	if !ok {
		return c, args
	}
	i := slices.Index(args, ordered[at])
	return sub, slices.Concat(args[:i], args[i+1:])
}

// exit prints an error, if there is one, and returns the exit status.
func (a *app) exit(c command, err error) int {
	usage := (*usageError)(nil)
	switch {
	case err == nil:
		return 0
	case errors.As(err, &usage):
		fmt.Fprintf(a.stderr, "usher: %s: %v\nusage: usher %s %s\nSee usher help %s.\n", c.name, err, c.name, c.args, c.name)
		return 2
	default:
		fmt.Fprintf(a.stderr, "usher: %s: %s\n", c.name, strings.ReplaceAll(err.Error(), "\n", "; "))
		return 1
	}
}

// flagsFirst puts flags that stand after arguments before them, as package flag
// wants it. What follows "--" is no flag.
func flagsFirst(fs *flag.FlagSet, args []string) []string {
	var flags, rest []string
	for i := 0; i < len(args); i++ {
		arg := args[i]
		if arg == "--" {
			rest = append(rest, args[i+1:]...)
			break
		}
		if len(arg) < 2 || arg[0] != '-' {
			rest = append(rest, arg)
			continue
		}
		flags = append(flags, arg)
		name := strings.TrimLeft(arg, "-")
		f := fs.Lookup(name)
		if f == nil {
			continue // it has its value with "=", or is not known
		}
		b, ok := f.Value.(interface{ IsBoolFlag() bool })
		if !ok || !b.IsBoolFlag() {
			if i++; i == len(args) {
				return flags // so that package flag misses the value, and takes no "--" for it
			}
			flags = append(flags, args[i])
		}
	}
	return append(append(flags, "--"), rest...)
}

// overview is what usher says without a command, and usher help.
func overview() string {
	var b strings.Builder
	b.WriteString("Usher hosts the modules of a workspace as MCP tools.\n\nusage: usher COMMAND [flags] [arguments]\n\n")
	t := tabwriter.NewWriter(&b, 0, 0, 3, ' ', 0)
	for _, c := range commands() {
		fmt.Fprintf(t, "  %s\t%s\n", c.name, c.summary)
	}
	t.Flush()
	b.WriteString(helpOverview)
	return b.String()
}

// commandHelp is the manual of one command; the flags speak for themselves.
func commandHelp(a *app, c command) string {
	var b strings.Builder
	fmt.Fprintf(&b, "usage: usher %s\n\n%s.\n", strings.TrimSpace(c.name+" "+c.args), strings.ToUpper(c.summary[:1])+c.summary[1:])
	if c.help != "" {
		b.WriteString("\n" + c.help)
	}
	fs := flag.NewFlagSet(c.name, flag.ContinueOnError)
	c.setup(a, fs)
	header := "\nFlags:\n"
	fs.VisitAll(func(f *flag.Flag) {
		value, text := flag.UnquoteUsage(f)
		fmt.Fprintf(&b, "%s  %s\n      %s", header, strings.TrimSpace("-"+f.Name+" "+value), strings.ReplaceAll(text, "\n", "\n      "))
		if f.DefValue != "" && f.DefValue != "false" {
			fmt.Fprintf(&b, " (default %s)", f.DefValue)
		}
		b.WriteString("\n")
		header = ""
	})
	return b.String()
}

func setupHelp(a *app, _ *flag.FlagSet) func([]string) error {
	return func(args []string) error {
		if len(args) == 0 {
			fmt.Fprint(a.stdout, overview())
			return nil
		}
		c, ok := findCommand(strings.Join(args, " "))
		if !ok {
			return usageErrorf("%q: no such command", strings.Join(args, " "))
		}
		fmt.Fprint(a.stdout, commandHelp(a, c))
		return nil
	}
}

func setupVersion(a *app, _ *flag.FlagSet) func([]string) error {
	return func(args []string) error {
		if len(args) > 0 {
			return usageErrorf("unexpected argument %q", args[0])
		}
		fmt.Fprintf(a.stdout, "usher %s (%s %s/%s)\n", version(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
		return nil
	}
}

// sizeFlag is a number of bytes, also written with KiB, MiB or GiB.
type sizeFlag int64

func (f *sizeFlag) String() string {
	if f == nil {
		return ""
	}
	return strings.ReplaceAll(formatSize(int64(*f)), " ", "")
}

func (f *sizeFlag) Set(s string) error {
	digits, shift := s, 0
	for suffix, n := range map[string]int{"KiB": 10, "MiB": 20, "GiB": 30} {
		if rest, ok := strings.CutSuffix(s, suffix); ok {
			digits, shift = strings.TrimSpace(rest), n
		}
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || n <= 0 || n > 1<<40>>shift {
		return errors.New("want a number of bytes, or one with KiB, MiB or GiB, such as 4MiB")
	}
	*f = sizeFlag(n << shift)
	return nil
}

// listFlag is a flag that may be given several times.
type listFlag []string

func (f *listFlag) String() string     { return strings.Join(*f, ",") }
func (f *listFlag) Set(s string) error { *f = append(*f, s); return nil }

// declareBase is for the commands that keep data, as all do that host modules.
func (a *app) declareBase(fs *flag.FlagSet) {
	fs.StringVar(&a.base, "base", "", "the `DIR` usher keeps its data in; default $USHER_BASE, else ~/.usher")
}

// dataDir is {base}/.data, made if need be.
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
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("preparing the data folder: %w; name another with -base or $USHER_BASE", err)
	}
	return dir, nil
}

// resolveDirs makes the folders given, or else the current one, absolute with
// symlinks resolved.
func resolveDirs(dirs []string) ([]string, error) {
	if len(dirs) == 0 {
		dirs = []string{"."}
	}
	var out []string
	for _, dir := range dirs {
		path, err := resolveDir(dir)
		if err != nil {
			return nil, usageErrorf("DIR %q: %v", dir, err)
		}
		out = append(out, path)
	}
	return out, nil
}

func resolveDir(dir string) (string, error) {
	if dir == "" {
		return "", errors.New("no such folder") // not the current one, as Abs has it
	}
	path, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	if path, err = filepath.EvalSymlinks(path); err != nil {
		return "", errors.New("no such folder")
	}
	info, err := os.Stat(path)
	if err != nil {
		return "", errors.New(reason(err))
	}
	if !info.IsDir() {
		return "", errors.New("not a folder")
	}
	return path, nil
}

// registry opens the modules under dirs, with what c says of the rest.
func (a *app) registry(dirs []string, c registryConfig) (*Registry, error) {
	roots, err := resolveDirs(dirs)
	if err != nil {
		return nil, err
	}
	if err := checkNesting(a.getenv(nestedVar), roots); err != nil {
		return nil, err
	}
	data, err := a.dataDir()
	if err != nil {
		return nil, err
	}
	c.Roots, c.CacheDir = roots, filepath.Join(data, "cache")
	return newRegistry(c)
}

// settleAll waits for all modules to be looked at, and says so on stderr when
// that takes a while.
func (a *app) settleAll(r *Registry) {
	r.Settle(a.ctx, time.Second)
	for told := ""; a.ctx.Err() == nil; {
		status, _ := r.Report()
		pending := slices.DeleteFunc(status, func(s Status) bool { return !s.Pending })
		if len(pending) == 0 {
			return
		}
		if line := fmt.Sprintf("usher: looking at %d modules, such as %s (each is built or started once)", len(pending), pending[0].Name); line != told {
			fmt.Fprintln(a.stderr, line)
			told = line
		}
		r.Settle(a.ctx, 5*time.Second)
	}
}

func setupModules(a *app, fs *flag.FlagSet) func([]string) error {
	a.declareBase(fs)
	asJSON := fs.Bool("json", false, "print a JSON array")
	dir := fs.String("scope", "", "show what a session sees whose claim is for `DIR`, and what it does not")
	code := fs.String("claim", "", "show what a session sees that presents `CODE`, and what it does not")
	return func(dirs []string) error {
		scope, err := a.seenScope(fs, *dir, *code)
		if err != nil {
			return err
		}
		r, err := a.registry(dirs, registryConfig{Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			return err
		}
		defer r.Close()
		a.settleAll(r)
		report := moduleReport(r, scope, cmp.Or(a.daemonURL(), defaultURL), a.getenv)
		if *asJSON {
			return printJSON(a.stdout, report)
		}
		printModules(a.stdout, report)
		return nil
	}
}

// seenScope is the scope that -scope or -claim names; without either, all.
func (a *app) seenScope(fs *flag.FlagSet, dir, code string) (Scope, error) {
	switch {
	case given(fs, "scope") && given(fs, "claim"):
		return scopeNone(), usageErrorf("-scope and -claim exclude each other")
	case given(fs, "scope"):
		path, err := resolveDir(dir)
		if err != nil {
			return scopeNone(), usageErrorf("-scope %q: %v", dir, err)
		}
		return scopeDir(path), nil
	case given(fs, "claim"):
		parsed, ok := parseCode(code)
		if !ok {
			return scopeNone(), usageErrorf("-claim: %s", notACode)
		}
		claims, err := a.claims()
		if err != nil {
			return scopeNone(), err
		}
		defer claims.Close()
		c, ok, err := claims.Lookup(parsed)
		if err == nil && !ok {
			err = errors.New("no claim with this code holds: a session that presents it sees what one without a code does")
		}
		return scopeDir(c.ScopeDir), err
	}
	return scopeAll(), nil
}

// given reports whether a flag was set: an empty -scope "$DIR" must not pass for
// none.
func given(fs *flag.FlagSet, name string) (yes bool) {
	fs.Visit(func(f *flag.Flag) { yes = yes || f.Name == name })
	return yes
}

func printJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

func setupStdio(a *app, fs *flag.FlagSet) func([]string) error {
	a.declareBase(fs)
	opts := declareServing(fs)
	return func(dirs []string) error {
		log, err := newLog(a.stderr, opts.log)
		if err != nil {
			return err
		}
		r, err := a.registry(dirs, registryConfig{Log: log, Patience: opts.callTimeout, Idle: opts.idle})
		if err != nil {
			return err
		}
		defer r.Close()
		ctx, cancel := context.WithCancel(a.ctx)
		defer cancel()
		var watch sync.WaitGroup
		watch.Go(func() { r.Watch(ctx) })
		s := &Server{views: r.Source(), gate: fixedGate(scopeAll()), log: log, started: time.Now(), stopping: ctx, stopped: ctx}
		err = s.ServeStdio(ctx, a.stdin, a.stdout)
		cancel()
		watch.Wait()
		return err
	}
}

func setupCall(a *app, fs *flag.FlagSet) func([]string) error {
	a.declareBase(fs)
	var dirs listFlag
	fs.Var(&dirs, "dir", "look for the module under `DIR`, instead of the current folder (repeatable)")
	scope := fs.String("scope", "", "call as a session would whose claim is for `DIR`")
	timeout := fs.Duration("call-timeout", 5*time.Minute, "give up after this long without an answer or progress")
	return func(args []string) error {
		if len(args) < 2 || len(args) > 3 {
			return usageErrorf("want MODULE METHOD [JSON]")
		}
		arguments, err := a.callArguments(args[2:])
		if err != nil {
			return err
		}
		seen, err := a.seenScope(fs, *scope, "")
		if err != nil {
			return err
		}
		r, err := a.registry(dirs, registryConfig{Log: slog.New(slog.DiscardHandler), Patience: *timeout})
		if err != nil {
			return err
		}
		defer r.Close()
		tool, err := a.findTool(r, seen, args[0], args[1])
		if err != nil {
			return err
		}
		return a.callTool(r, seen, tool.Name, arguments)
	}
}

// callArguments reads the JSON argument: none, the text itself, or - for stdin.
func (a *app) callArguments(args []string) (json.RawMessage, error) {
	if len(args) == 0 {
		return json.RawMessage(`{}`), nil
	}
	raw := []byte(args[0])
	if args[0] == "-" {
		var err error
		if raw, err = io.ReadAll(a.stdin); err != nil {
			return nil, fmt.Errorf("reading stdin: %w", err)
		}
	}
	if fault := jsonFault(raw); fault != "" {
		return nil, usageErrorf("JSON: it %s", fault)
	}
	if _, ok := members(raw); !ok {
		return nil, usageErrorf("JSON: want an object of parameters, such as '{\"name\":\"value\"}'")
	}
	return raw, nil
}

// findTool finds a method, waiting for modules that are being looked at.
func (a *app) findTool(r *Registry, scope Scope, module, method string) (*Tool, error) {
	find := func() (*Tool, []string) {
		view := r.Source().View(scope)
		var names []string
		for _, t := range view.Tools() {
			if t.Label == module && t.Method.Name == method {
				return t, nil
			}
			if t.Label == module {
				names = append(names, t.Method.Name)
			}
		}
		return nil, names
	}
	tool, _ := find()
	if tool != nil {
		return tool, nil
	}
	a.settleAll(r)
	tool, names := find()
	if tool != nil {
		return tool, nil
	}
	if len(names) > 0 {
		return nil, fmt.Errorf("module %q has no method %q; it has %s", module, method, strings.Join(names, ", "))
	}
	for _, m := range moduleReport(r, scope, "", a.getenv) {
		if m.Name == module && m.Error != "" {
			return nil, fmt.Errorf("module %q is not hosted: %s", module, m.Error)
		}
	}
	return nil, fmt.Errorf("no module %q here: usher modules lists them", module)
}

// callTool makes a call and prints what it gave.
func (a *app) callTool(r *Registry, scope Scope, name string, arguments json.RawMessage) error {
	params := joinMembers([]member{{"name", quote(name)}, {"arguments", arguments}, {"_meta", json.RawMessage(`{"progressToken":0}`)}})
	s := &Server{views: r.Source(), gate: fixedGate(scope), log: slog.New(slog.DiscardHandler), stopping: a.ctx, stopped: a.ctx}
	req := &request{server: s, session: newSession(&sessionToken{}), params: params}
	req.caller = Caller{Session: "call", Affinity: "call", Notify: func(method string, params json.RawMessage) {
		fmt.Fprintln(a.stderr, "usher:", noteText(method, params))
	}}
	result, err := req.answer(a.ctx, "tools/call")
	if err != nil {
		return err
	}
	text := resultText(result)
	if string(field(result, "isError")) == "true" {
		return errors.New(text)
	}
	if text != "" {
		fmt.Fprintln(a.stdout, text)
	}
	return nil
}

// daemonURL is where the daemon of the base folder is; "" when none runs.
func (a *app) daemonURL() string {
	if data, err := a.dataDir(); err == nil {
		if d := readDaemon(data); d != nil {
			return d.URL
		}
	}
	return ""
}

// claims opens the claim store of the base folder.
func (a *app) claims() (*ClaimStore, error) {
	data, err := a.dataDir()
	if err != nil {
		return nil, err
	}
	return openClaims(data, nil), nil
}

func setupClaim(a *app, fs *flag.FlagSet) func([]string) error {
	a.declareBase(fs)
	scope := fs.String("scope", ".", "the claim is for `DIR` and what is below it")
	ttl := fs.String("ttl", "24h", "how long it holds: `D` is a number and one of s m h d w, or such as 1h30m")
	label := fs.String("label", "", "a `TEXT` to know it by")
	asJSON := fs.Bool("json", false, "print the stored record as JSON")
	return func(args []string) error {
		if len(args) > 0 {
			return usageErrorf("unexpected argument %q", args[0])
		}
		life, err := parseTTL(*ttl)
		if err != nil {
			return usageErrorf("-ttl %q: %v", *ttl, err)
		}
		dir, err := resolveDir(*scope)
		if err != nil {
			return usageErrorf("-scope %q: %v", *scope, err)
		}
		if strings.ContainsFunc(*label, unicode.IsControl) {
			return usageErrorf("-label %q: want plain text on one line", *label)
		}
		claims, err := a.claims()
		if err != nil {
			return err
		}
		defer claims.Close()
		c, err := claims.Create(a.ctx, dir, *label, life)
		if err != nil {
			return err
		}
		if !holdsModules(dir) {
			fmt.Fprintf(a.stderr, "usher: claim: no module lies under %s yet: until one does, the code shows nothing\n", dir)
		}
		if *asJSON {
			return printJSON(a.stdout, c)
		}
		printClaim(a.stdout, c, a.daemonURL())
		return nil
	}
}

// holdsModules reports whether a module file lies under dir.
func holdsModules(dir string) bool {
	s := newLook()
	s.folder(dir)
	return slices.ContainsFunc(s.found, func(f found) bool { return scopeDir(dir).Contains(f.Source) })
}

var ttlForm = regexp.MustCompile(`^([0-9]+)([smhdw])$`)

// parseTTL reads how long a claim is to hold. All its errors name the forms.
func parseTTL(s string) (time.Duration, error) {
	errForm := errors.New("want more than zero, as a number and a unit such as 30m, 1h, 7d (also s, w), or as 1h30m")
	units := map[string]time.Duration{"s": time.Second, "m": time.Minute, "h": time.Hour, "d": 24 * time.Hour, "w": 7 * 24 * time.Hour}
	var d time.Duration
	if m := ttlForm.FindStringSubmatch(s); m != nil {
		n, err := strconv.ParseInt(m[1], 10, 64)
		if err != nil || n > int64(maxTTL/units[m[2]]) {
			return 0, fmt.Errorf("it is over %d years; %w", maxTTL/(365*24*time.Hour), errForm)
		}
		d = time.Duration(n) * units[m[2]]
	} else {
		var err error
		if d, err = time.ParseDuration(s); err != nil {
			return 0, errForm
		}
	}
	if d <= 0 || d > maxTTL {
		return 0, errForm
	}
	return d, nil
}

// maxTTL keeps times within what RFC 3339 can write.
const maxTTL = 100 * 365 * 24 * time.Hour

func setupClaimList(a *app, fs *flag.FlagSet) func([]string) error {
	a.declareBase(fs)
	asJSON := fs.Bool("json", false, "print the stored records as a JSON array")
	return func(args []string) error {
		if len(args) > 0 {
			return usageErrorf("unexpected argument %q", args[0])
		}
		claims, err := a.claims()
		if err != nil {
			return err
		}
		defer claims.Close()
		list, err := claims.List(a.ctx)
		if list == nil && err != nil {
			return err
		}
		if err != nil {
			fmt.Fprintf(a.stderr, "usher: claim list: expired claims stay in the file: %v\n", err)
		}
		if *asJSON {
			return printJSON(a.stdout, append([]Claim{}, list...))
		}
		printClaims(a.stdout, list)
		return nil
	}
}

// notACode says what a code looks like. It repeats nothing of what was given,
// which may be a code with a slip in it.
const notACode = "want a claim code: 6 of 23456789ABCDEFGHJKMNPQRSTUVWXYZ, with or without a dash"

func setupClaimRevoke(a *app, fs *flag.FlagSet) func([]string) error {
	a.declareBase(fs)
	return func(args []string) error {
		if len(args) != 1 {
			return usageErrorf("want one CODE; usher claim list shows them")
		}
		code, ok := parseCode(args[0])
		if !ok {
			return usageErrorf("CODE: %s", notACode)
		}
		claims, err := a.claims()
		if err != nil {
			return err
		}
		defer claims.Close()
		c, err := claims.Revoke(a.ctx, code)
		if errors.Is(err, errNoClaim) {
			return errors.New("no claim with this code holds; usher claim list shows those that do")
		}
		if err != nil {
			return err
		}
		fmt.Fprintf(a.stdout, "Revoked %s, for %s. Sessions that use it see nothing from now on.\n", c.Code.Dashed(), c.ScopeDir)
		return nil
	}
}

func setupNew(a *app, fs *flag.FlagSet) func([]string) error {
	return func(args []string) error {
		if len(args) != 1 {
			return usageErrorf("want one FILE, such as hello.usher.go")
		}
		path := args[0]
		name, _, ok := moduleFile(filepath.Base(path))
		starter, err := runtimeFiles.ReadFile(starterFile(path))
		if !ok || err != nil {
			return usageErrorf("FILE %q: want a name that ends in .usher.go, .py, .js, .mjs, .ts, .mts or .sh", path)
		}
		if err := checkModuleName(name); err != nil {
			return usageErrorf("FILE %q: %v", path, err)
		}
		f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
		if errors.Is(err, os.ErrExist) {
			return fmt.Errorf("%s exists already; it was left as it is", path)
		}
		if err != nil {
			return fmt.Errorf("writing %s: %s", path, reason(err))
		}
		_, err = f.Write(starter)
		if err = cmp.Or(err, f.Close()); err != nil {
			return fmt.Errorf("writing %s: %w", path, err)
		}
		dir := ""
		if d := filepath.Dir(path); d != "." {
			dir = " -dir " + d
		}
		fmt.Fprintf(a.stdout, "Wrote %s. Try it:\n  usher call%s %s greet '{\"name\":\"Ada\"}'\n", path, dir, name)
		return nil
	}
}

// starterFile is what usher new writes into a file of this name.
func starterFile(path string) string {
	ending := strings.Replace(filepath.Ext(path), ".m", ".", 1) // .mjs as .js
	return "runtimes/new.usher" + ending + ".txt"
}

const helpOverview = `
Begin with:
  usher new hello.usher.go        a module, one exported function a method
  usher serve                     host it, and every other module below this folder
  usher call hello greet '{"name":"Ada"}'

usher help COMMAND explains each. Data is kept in ~/.usher, or where -base or
$USHER_BASE say.
`

const helpServe = `Modules are found below each DIR (default: the current folder) and watched: an
edit counts from the next call on. They are
  NAME.usher.go   a Go file, first line //go:build usher, whose exported functions are methods
  NAME.usher.py   a Python file; its public functions are
  NAME.usher.js   a JavaScript file (.js, .mjs) or TypeScript (.ts, .mts); its exported functions are
  NAME.usher.sh   a shell script; its functions with a comment above them are
  NAME.usher      any executable that speaks MCP on its stdin and stdout
  .mcp.json       each entry of its "mcpServers" that has a "command"
Hidden folders, node_modules, vendor and linked folders are not searched.

The MCP endpoint is at / and at /mcp, for streamable HTTP:
  claude mcp add --transport http usher http://127.0.0.1:3000/

Whoever reaches the address can call every module, so usher listens on this
machine only. With an -addr or -allow-host that is reachable from elsewhere it
does not start unless told that this is meant: -open for MCP clients, and for
webhooks SERVICE_WEBHOOK_SECRET in the environment, or -open-webhooks.
`

const helpClaim = `A client that presents the code sees and can call only the modules whose file
lies in DIR (default: the current folder) or below it. Whoever has the code has
that access, until it expires (-ttl) or is revoked.

Without usher serve -require-claim, a client without a code sees everything.
A claim limits which modules can be reached, not what those modules can do.

  usher claim -scope proj -ttl 2h -label phone
  usher claim list
  usher claim revoke R3K-9QZ
`

const helpStdio = `For clients that start their servers themselves, such as
  claude mcp add usher -- usher stdio ~/work
Nothing but MCP goes to stdout; the log is on stderr.
`

const helpModules = `For each module: its name, kind and file, what it offers and under which tool
names, and what its author should know. Go modules are built, others started
once, to find out; what was found is remembered.
`

const helpCall = `JSON is an object of parameters; - reads it from stdin. The result is printed
to stdout: an object as JSON, a text as it is. Progress and log messages go to
stderr. A method that fails gives exit status 1.

  usher call hello greet '{"name":"Ada"}'
  echo '{"name":"Ada"}' | usher call hello greet -
`

const helpNew = `FILE ends in .usher.go, .usher.py, .usher.js, .usher.ts or .usher.sh, and its
name up to there is the module's. An existing file is left as it is.

  usher new hello.usher.py
`
