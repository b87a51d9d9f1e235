// The command line: the table of commands, a function for each command, what it prints, and what
// the commands share: streams and environment, the data folder, text for terminals.
//
// Output for people, and JSON with -json, goes to stdout. Logs, warnings and errors go
// to stderr; an error is one line that begins "usher:". Text that others wrote (file
// names, descriptions, errors of modules) passes through sanitize. A command prints into
// app.output, which status writes to stdout at the end. So a full disk or a closed pipe is an error
// of the command, like any other.
//
// The exit status is 0 for success, 1 for a failure, 2 for a mistake on the command line.
//
// Commands use the rights of the person who runs them: the daemon does not trust what a command has
// checked. Promises of SECURITY.md rest only on prepareData, which finds a private data folder, on
// withModules, which follows the approvals of a daemon, and on setupApprove, which chooses what is
// approved.

package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"embed"
	"encoding/base64"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"text/tabwriter"
	"text/template"
	"time"
	"unicode"
)

// command is an entry of the table of commands. The command's manual is help/NAME.txt,
// which begins with the usage line and ends with the flags (TestDocsFlags).
type command struct {
	data  bool // the command uses the data folder
	setup func(a *app, fs *flag.FlagSet) runFunc
}

// runFunc runs a command once its flags are parsed. Setup declares the flags and returns the
// function.
type runFunc func(ctx context.Context, args []string) error

var commands = map[string]command{
	"serve":   {true, setupServe},
	"stdio":   {true, setupStdio},
	"claim":   {true, setupClaim},
	"modules": {true, setupModules},
	"call":    {true, setupCall},
	"approve": {true, setupApprove},
	"new":     {false, setupNew},
	"version": {false, setupVersion},
}

//go:embed help
var helpTexts embed.FS

// helpText returns the text of a file in the folder help, "" if there is none. The texts and
// templates are files, so that they can be read and changed as people will see them.
func helpText(name string) string {
	text, _ := helpTexts.ReadFile("help/" + name)
	return string(text)
}

// status prints the output of a command and its error, if there is one, and returns the exit
// status. It prints the output even after an error: the list of claims is complete even if the
// expired ones could not be removed.
func (a *app) status(ctx context.Context, name string, err error) int {
	_, failed := a.output.WriteTo(a.stdout)
	err = cmp.Or(err, failed)
	if err == nil {
		return 0
	}
	if ctx.Err() != nil {
		err = errors.New("interrupted")
	}
	a.warnf("%s: %v", name, err)
	if _, ok := errors.AsType[usageError](err); !ok {
		return 1
	}
	// The usage line is enough beside an error; the whole manual would push the error away.
	usage, _, _ := strings.Cut(helpText(name+".txt"), "\n")
	fmt.Fprintf(a.stderr, "%s\nSee usher help %s.\n", usage, name)
	return 2
}

// runCommand parses the flags of a command and runs it, or prints its manual. The data folder
// comes after the flags, one of which names it, and is not touched if they are wrong.
func (a *app) runCommand(ctx context.Context, name string, c command, args []string) error {
	fs := flag.NewFlagSet(name, flag.ContinueOnError)
	// Every command that uses the data folder has the flag -base, so setup declares it for none.
	if c.data {
		fs.StringVar(&a.base, "base", "", "")
	}
	do := c.setup(a, fs)
	args, err := parseFlags(fs, args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		a.output.WriteString(helpText(name + ".txt"))
		return nil
	case err != nil:
		return explainFlag(fs, err)
	}
	if c.data && a.url == "" {
		if err := a.prepareData(); err != nil {
			return err
		}
		defer a.claims.Close()
	}
	return do(ctx, args)
}

// parseFlags parses flags before, between and after the arguments, and returns the
// arguments. After "--" there are no flags.
func parseFlags(fs *flag.FlagSet, args []string) (rest []string, err error) {
	fs.SetOutput(io.Discard)
	for {
		if err := fs.Parse(args); err != nil {
			return nil, err
		}
		left := fs.Args()
		parsed := len(args) - len(left)
		if len(left) == 0 || parsed > 0 && args[parsed-1] == "--" {
			return append(rest, left...), nil
		}
		rest = append(rest, left[0]) // Parse stops at an argument
		args = left[1:]
	}
}

// explainFlag explains an error of package flag, which does not say what it wants.
func explainFlag(fs *flag.FlagSet, err error) error {
	unknown, ok := strings.CutPrefix(err.Error(), "flag provided but not defined: -")
	if !ok {
		want := "want a duration, such as 5m"
		if strings.HasPrefix(err.Error(), "invalid boolean") {
			want = "want true or false"
		}
		return usageErrorf("%s", strings.Replace(err.Error(), "parse error", want, 1))
	}
	var known []string
	fs.VisitAll(func(f *flag.Flag) { known = append(known, f.Name) })
	return usageErrorf(
		"unknown flag -%s: %s",
		unknown,
		cmp.Or(didYouMean("-", unknown, known), "see usher help"),
	)
}

// synonyms maps commands and flags of other programs to those of usher.
var synonyms = map[string]string{
	"revoke": "claim revoke",
	"port":   "addr",
}

// didYouMean returns a question that names, after prefix, the known name that a mistyped word
// probably means, or "" if none is similar.
func didYouMean(prefix, word string, known []string) string {
	for n := range 3 {
		for _, name := range known {
			if name == synonyms[word] || isSimilar(word, name, min(n, len(word)/2)) {
				return "did you mean " + prefix + name + "?"
			}
		}
	}
	return ""
}

// setupVersion returns the command that prints the version, with all that a report of a bug
// should contain.
func setupVersion(a *app, _ *flag.FlagSet) runFunc {
	return func(context.Context, []string) error {
		fmt.Fprintf(&a.output, "usher %s (%s)\n", version(), runtime.Version())
		return nil
	}
}

// setupServe returns the command that runs a daemon.
func setupServe(a *app, fs *flag.FlagSet) runFunc {
	flags := declareServeFlags(fs, a.stderr)
	return func(ctx context.Context, dirs []string) error {
		return serve(ctx, a, flags, dirs)
	}
}

// setupStdio returns the command that serves the client on stdin and stdout. The gate has no
// claims: the client started usher, so it has the rights of its user anyway.
func setupStdio(a *app, fs *flag.FlagSet) runFunc {
	config := declareRegistryFlags(fs, a.stderr)
	return func(ctx context.Context, dirs []string) error {
		// Stdout belongs to JSON-RPC, so the log goes to stderr, which clients show or keep.
		config.Log = cmp.Or(config.Log, slog.New(slog.NewTextHandler(a.stderr, nil)))
		return a.withRegistry(dirs, *config, func(r *Registry) error {
			gate := newGate(nil, newSessionKey(), false, config.Log)
			c := serverConfig{modules: r, gate: gate, log: config.Log}
			return serveStdio(ctx, c, a.stdin, a.stdout)
		})
	}
}

// withModules calls do with a registry of the modules under dirs, once all are
// introspected. It starts no module that a running daemon would not start: to look at the
// modules must not run a file that waits for its approval. If the introspection takes a
// while, as builds do, stderr says so.
func (a *app) withModules(
	ctx context.Context, dirs []string, c registryConfig, do func(*Registry) error,
) error {
	// The daemon's rules count only while it runs: otherwise, the person who runs the command decides.
	daemon := a.readDaemon()
	c.Log = cmp.Or(c.Log, slog.New(slog.DiscardHandler))
	if daemon.RequireApproval {
		c.Approved = a.dataFile(approvedName)
	}
	c.Served = daemon.Roots
	return a.withRegistry(dirs, c, func(r *Registry) error {
		if !r.WaitAll(ctx, time.Second, scopeAll()) && ctx.Err() == nil {
			a.warnf("waiting for modules…")
			r.WaitAll(ctx, math.MaxInt64, scopeAll())
		}
		if ctx.Err() != nil { // interrupted: the list would look complete
			return ctx.Err()
		}
		return do(r)
	})
}

// setupModules returns the command that prints the modules. It prefers the report of a running
// daemon, because that shows what clients get, and starts nothing. The report is about the
// view of everything, so with a scope or a code, the command builds that view itself, with the
// code that serves clients.
func setupModules(a *app, fs *flag.FlagSet) runFunc {
	fs.BoolVar(&a.asJSON, "json", false, "")
	scope := declareScope(fs)
	return func(ctx context.Context, dirs []string) error {
		roots, err := absoluteDirs(dirs)
		if err != nil {
			return err
		}
		if list := a.readReport(roots); list != nil && *scope == scopeAll() {
			a.print("modules", list)
			return nil
		}
		return a.withModules(ctx, dirs, registryConfig{}, func(r *Registry) error {
			a.print("modules", a.report(r, *scope))
			return nil
		})
	}
}

// declareScope declares the flag -scope. Without it the scope is everything. The folder is
// resolved as usher claim resolves it, so that the flag shows what such a claim would grant.
func declareScope(fs *flag.FlagSet) *Scope {
	scope := scopeAll()
	fs.Func("scope", "", func(text string) error {
		dir, err := resolveDir(text)
		scope = scopeDir(dir)
		return err
	})
	return &scope
}

// setupCall returns the command that calls one method. It prints what the module prints to
// stderr, because people use it to find out why a module fails. It needs no running
// daemon, because it calls the file as it is now.
//
// Two words are a module and a method, or a tool and its JSON. JSON begins with a brace or is
// -, and no method has such a name.
func setupCall(a *app, fs *flag.FlagSet) runFunc {
	dir := fs.String("dir", ".", "")
	scope := declareScope(fs)
	fs.Func("url", "", func(text string) (err error) { // an unset variable must not mean a local call
		a.url = text
		_, err = parseURL(text)
		return err
	})
	return func(ctx context.Context, words []string) error {
		n := min(len(words), 2) // words that name the tool
		if n == 2 && (words[1] == "-" || strings.ContainsAny(words[1], "={")) {
			n = 1
		}
		arguments, err := a.parseArguments(words[n:])
		switch {
		case err != nil:
			return err
		case a.url != "":
			return a.callRemote(ctx, strings.Join(words[:n], "_"), arguments)
		case n == 0:
			return usageErrorf("wrong number of arguments")
		}
		return a.callHere(ctx, *dir, *scope, words[:n], arguments)
	}
}

// parseArguments parses the arguments of a call: name=value words, one JSON object, or "-" for
// one on stdin. The returned function makes the arguments that a schema wants.
func (a *app) parseArguments(words []string) (func(*schema) object, error) {
	raw := []byte("{}")
	texts := make(map[string][]string)
	for _, word := range words {
		name, text, isText := strings.Cut(word, "=")
		if isText && word[0] != '{' {
			texts[name] = append(texts[name], text)
		} else {
			raw = []byte(word)
		}
	}
	// A shell's command line has a limit, and other users can read it.
	if string(raw) == "-" {
		raw, _ = io.ReadAll(a.stdin) // after an error, raw is not a complete object
	}
	given, err := jsonObject(raw)
	if err != nil || len(words) > 1 && len(given) > 0 {
		return nil, usageErrorf("ARGUMENTS: want name=value words, a JSON object, or -")
	}
	return func(s *schema) object {
		return withoutWebhook(append(given, formParams(texts, jsonLists{}, "", s)...))
	}, nil
}

// callHere calls a tool of a module below dir.
func (a *app) callHere(
	ctx context.Context, dir string, scope Scope, words []string, arguments func(*schema) object,
) error {
	config := registryConfig{
		// Other modules are not started, because a build may take minutes. The label of a
		// module, and the name of a tool, contain the module's name, which is "" for a
		// .mcp.json that can't be read.
		Only: func(name string) bool { return strings.Contains(words[0], name) },
		Log: newRecordLog(func(record object) {
			if line := record.text("line"); line != "" {
				fmt.Fprintln(a.stderr, sanitizeLines(line, "\n"))
			}
		}),
	}
	return a.withModules(ctx, []string{dir}, config, func(r *Registry) error {
		tool, err := a.findTool(r, scope, words)
		if err != nil {
			return err
		}
		caller := Caller{Principal: everyone, Notify: a.notify}
		params := progressCall(tool.Name, arguments(tool.Method.schema))
		return a.printResult(tool.Call(ctx, caller, "tools/call", params))
	})
}

// progressCall returns the params of a call that asks for reports of progress.
func progressCall(name string, arguments object) object {
	return object{
		{"name", quote(name)},
		{"arguments", arguments.encode()},
		{"_meta", json.RawMessage(`{"progressToken":0}`)},
	}
}

// findTool returns the tool that words name: by its name, or by a module's label and a
// method. The error names a tool with a similar name. Without one, it lists the tools of the modules
// that the words may mean, and the reasons why these modules are not hosted: the usual reason for a
// missing tool is a module that can't be built.
func (a *app) findTool(r *Registry, scope Scope, words []string) (*Item, error) {
	name := strings.Join(words, " ")
	var tools []string
	for _, t := range r.View(scope, nil).Tools {
		tools = append(tools, t.Name)
		if name == t.Name || name == t.Label+" "+t.Method.Name {
			return t, nil
		}
	}
	var hints []string
	// The owner runs this command, so a module outside the scope is named too.
	for _, m := range a.report(r, scope) {
		hint := "has " + cmp.Or(m.Names, strings.Join(m.Problems, "; "))
		switch {
		case m.Hidden != "":
			hint = "is outside the scope"
		case m.Error != "":
			hint = "is not hosted: " + m.Error
		}
		hints = append(hints, m.File+" "+hint)
	}
	return nil, fmt.Errorf("no tool %s here: %s", name, cmp.Or(
		didYouMean("", strings.Join(words, "_"), tools),
		strings.Join(hints, "; "),
		"set -dir, or see usher modules"))
}

// notify prints a report of progress or a log message of a call.
func (a *app) notify(_ string, params object) {
	text := cmp.Or(
		params.text("message"), plainText(params.get("data")), plainText(params.get("progress")))
	a.warnf("%s", text)
}

// printResult prints the result of a call, and returns its error. The text is sanitized for a
// terminal only: a program that reads it gets what the module returned.
func (a *app) printResult(result object, err error) error {
	switch {
	case err != nil:
		return errors.New(explain(err))
	case result == nil || result.text("resultType") == resultInput:
		return errors.New("the tool asks its client for input")
	}
	// A failure of the method is a failure of the command, so that scripts can stop.
	text := resultText(result)
	if isTrue(result.get("isError")) {
		return errors.New(text)
	}
	if isTerminal(a.stdout) {
		text = sanitizeLines(text, "\n")
	}
	a.output.WriteString(text + "\n")
	return nil
}

// callRemote calls a tool of the daemon at a.url or, if name is "", lists the tools there.
func (a *app) callRemote(ctx context.Context, name string, arguments func(*schema) object) error {
	var list []toolReport
	s := &schema{} // of a tool that is not listed yet, the daemon knows more
	for page := (object{}); page != nil; {
		result, err := a.ask(ctx, "tools/list", page, nil)
		if err != nil {
			return err
		}
		for _, raw := range items(result.get("tools")) {
			tool := parseMethod(raw, kindConfig)
			list = append(list, newToolReport(tool.Name, tool))
			if tool.Name == name {
				s = tool.schema
			}
		}
		page = nil
		if next := result.get("nextCursor"); !isNull(next) {
			page = object{{"cursor", next}}
		}
	}
	if name == "" {
		a.print("tools", list)
		return nil
	}
	return a.printResult(a.ask(ctx, "tools/call", progressCall(name, arguments(s)), s.Properties))
}

// ask sends a request of MCP without sessions to the daemon at a.url, with the code in
// USHER_CLAIM, and returns the result, or nil if the daemon asks for something instead. It prints
// notifications. It follows no redirect, which could lead the code to somebody else. Headers repeat
// the parameters whose schemas say so: see request.checkHeaders.
func (a *app) ask(
	ctx context.Context, method string, params object, repeated map[string]*schema,
) (object, error) {
	params = params.setMeta(identify(params.object("_meta"), clientProfile{level: logLevels[0]}))
	body := bytes.NewReader(encodeRequest(json.RawMessage("1"), method, params))
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, a.url, body)
	if err != nil {
		return nil, err
	}
	h := request.Header
	h.Set("Content-Type", "application/json")
	h.Set("Accept", "application/json, text/event-stream")
	h.Set(protocolHeader, statelessProtocol)
	h.Set(methodHeader, method)
	h.Set(nameHeader, params.text("name"))
	h.Set(claimHeader, strings.TrimSpace(a.getenv(claimVar))) // an empty header is none
	for name, s := range repeated {
		value := params.object("arguments").get(name)
		if s.Header != "" && !isNull(value) {
			text := plainText(value)
			if !headerToken.MatchString(text) { // see decodeHeader
				text = "=?base64?" + base64.StdEncoding.EncodeToString([]byte(text)) + "?="
			}
			h.Set(paramHeader+s.Header, text)
		}
	}
	answer, err := http.DefaultTransport.RoundTrip(request)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	// The answer is JSON on one line, or a stream of events, each with one line of data.
	// Everything before the answer is a notification or a question.
	for body := bufio.NewReader(answer.Body); ; {
		line, err := readLine(body, maxWorkerLine)
		data, isData := bytes.CutPrefix(line, []byte("data:"))
		if err == nil && !isData && line[0] != '{' {
			continue
		}
		message, invalid := parseMessage(data)
		switch {
		case err != nil || invalid != nil:
			return nil, fmt.Errorf("%s: no answer of MCP %s", answer.Status, statelessProtocol)
		case message.Err != nil:
			return nil, message.Err
		case message.Method == "" || message.ID != nil:
			return message.Result, nil
		}
		a.notify(message.Method, message.Params)
	}
}

// setupClaim returns the command that creates, lists or revokes claims, by its first
// argument. These are one command for the parser, so that their flags may come anywhere.
func setupClaim(a *app, fs *flag.FlagSet) runFunc {
	scope := fs.String("scope", ".", "")
	label := fs.String("label", "", "")
	fs.BoolVar(&a.asJSON, "json", false, "")
	ttl := 24 * time.Hour
	fs.Func("ttl", "", func(text string) (err error) {
		ttl, err = parseTTL(text)
		return err
	})
	return func(ctx context.Context, args []string) error {
		switch {
		case len(args) == 0:
			dir, err := resolveDir(*scope)
			if err != nil {
				return usageErrorf("-scope %q: %v", *scope, err)
			}
			c, err := a.claims.Create(ctx, dir, *label, ttl)
			if err != nil {
				return err
			}
			a.printClaim(c)
			if _, err = a.output.WriteTo(a.stdout); err != nil { // the code was never shown
				_, _ = a.claims.Revoke(ctx, c.Code)
			}
			return err
		case args[0] == "list" && len(args) == 1:
			// The list may be complete even after an error: see ClaimStore.List.
			list, err := a.claims.List(ctx)
			if list != nil {
				a.print("claims", list)
			}
			return err
		case args[0] == "revoke" && len(args) > 1:
			return a.revokeClaims(ctx, args[1:])
		}
		return usageErrorf("want list, revoke CODE… or nothing; -scope takes a folder")
	}
}

// printClaim prints a new claim. It warns if the code gives access to more, or to less, than the
// user probably expects: without -require-claim, a client that drops the code sees more than one
// that presents it.
func (a *app) printClaim(c Claim) {
	// With the URL of a running daemon, the printed commands work as they are.
	daemon := a.readDaemon()
	a.print("claim", struct {
		Claim
		URL string // "" if no daemon is running
	}{c, daemon.URL})
	// Only warnings: the claim is valid, and the daemon or the module may come later.
	if daemon.URL != "" && !daemon.RequireClaim {
		a.warnf("claim: clients without a valid code see everything: restart serve with -require-claim")
	}
	if len(scanFolders([]string{c.ScopeDir}, nil).sources) == 0 {
		a.warnf("claim: no modules below %s yet", c.ScopeDir)
	}
}

// revokeClaims removes the claims with these codes. After an error for one code, it
// continues with the others: whoever revokes several wants all of them gone. The error counts
// the codes and does not repeat them, because a mistyped code is nearly a valid one.
func (a *app) revokeClaims(ctx context.Context, args []string) (failed error) {
	// Each code is revoked by a write of its own, so that an error undoes nothing.
	for i, arg := range args {
		var c Claim
		err := usageErrorf("want %d characters of %s", codeLength, codeAlphabet)
		if code, ok := parseCode(arg); ok {
			c, err = a.claims.Revoke(ctx, code)
		}
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("code %d of %d: %w", i+1, len(args), err))
			continue
		}
		a.print("revoked", c)
	}
	return failed
}

// setupApprove returns the command that approves new and changed modules. It needs a running
// daemon, whose record says which folders are served: an approval belongs to such a folder. It
// prints each module that it approves.
func setupApprove(a *app, fs *flag.FlagSet) runFunc {
	return func(ctx context.Context, paths []string) error {
		for i, path := range paths {
			if _, err := resolvePath(path); err != nil {
				return usageErrorf("PATH %q: %s", path, errText(err))
			}
			paths[i], _ = filepath.Abs(path) // no error: resolvePath had none
		}
		daemon := a.readDaemon()
		if !daemon.RequireApproval {
			return errors.New("no daemon with this base folder (-base) needs approvals")
		}
		if len(paths) == 0 {
			paths = daemon.Roots
		}
		// A module below several served folders needs the record of each, so approve examines them
		// all, and not only the paths. It returns only new and changed modules.
		changed, err := approve(ctx, a.data, daemon.Roots, daemon.Roots, paths)
		if err != nil {
			return err
		}
		a.print("approved", changed)
		return nil
	}
}

// setupNew returns the command that writes a starter module. It opens the file with O_EXCL: a
// check beforehand could overwrite a file that appears after it.
func setupNew(a *app, _ *flag.FlagSet) runFunc {
	return func(_ context.Context, args []string) error {
		if len(args) != 1 {
			return usageErrorf("want one FILE, such as notes.usher.py")
		}
		path := args[0]
		name, _, ok := moduleFile(filepath.Base(path))
		// The starters are embedded, one for each language; .mjs and .mts have that of .js and .ts.
		ext := filepath.Ext(path)
		language := strings.Replace(ext, ".m", ".", 1)
		starter, err := runtimeFiles.ReadFile("runtimes/new.usher" + language + ".txt")
		if !ok || err != nil || checkModuleName(name) != nil {
			return usageErrorf("FILE %q: want a module name such as notes.usher.py "+
				"(or go, js, mjs, ts, sh)", path)
		}
		if err := writeFile(path, starter, os.O_EXCL, 0o644); err != nil {
			return err
		}
		a.print("new", []string{path, name})
		return nil
	}
}

// ---- What the commands share

// app is one run of the program.
type app struct {
	stdin     io.Reader
	stdout    io.Writer
	stderr    io.Writer
	output    bytes.Buffer // of the command, written to stdout at its end
	lookupEnv func(string) (string, bool)
	base      string // the base folder; "" if commands find it without -base
	asJSON    bool   // the output is JSON
	url       string // of the daemon that usher call connects to; "" for none
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
// replace, because that user could create claims. It checks before it creates anything, so that a
// refused command changes nothing, and again afterwards, because somebody else may have been faster.
func (a *app) prepareData() error {
	a.base = cmp.Or(a.base, a.getenv("USHER_BASE"))
	base := a.base
	var err error
	if base == "" {
		base, err = os.UserHomeDir()
		base = filepath.Join(base, ".usher")
	}
	dir, absErr := filepath.Abs(filepath.Join(base, ".data"))
	if err = cmp.Or(err, absErr); err == nil {
		err = checkFolders(dir, 0)
	}
	if err == nil {
		err = os.MkdirAll(dir, 0o700)
	}
	if err == nil {
		err = checkFolders(dir, 0)
	}
	if err == nil {
		a.data, err = resolvePath(dir)
	}
	if err != nil {
		return fmt.Errorf("data folder: %w; name another with -base or $USHER_BASE", err)
	}
	if a.base != "" {
		a.base = filepath.Dir(a.data)
	}
	a.claims = openClaims(a.data)
	return nil
}

// dataFile returns the path of a file in the data folder.
func (a *app) dataFile(name string) string { return filepath.Join(a.data, name) }

// checkFolders checks dir, which is depth folders above the data folder, and all folders above it that
// exist, by the rule of sshd: others may write to a folder only if it is above the base folder and has
// the sticky bit. Behind a link, it checks the folders above the link and those that the link leads to:
// whoever can write to one of them could exchange the data folder.
func checkFolders(dir string, depth int) error {
	_, err := filepath.EvalSymlinks(dir)
	target, notLink := os.Readlink(dir)
	switch {
	case err != nil: // as for a circle of links
	case notLink != nil:
		err = checkPrivate(dir, depth > 1)
	case filepath.IsAbs(target):
		err = checkFolders(target, depth)
	default:
		err = checkFolders(filepath.Join(realPaths(filepath.Dir(dir))[0], target), depth)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) || dir == filepath.Dir(dir) {
		return err
	}
	return checkFolders(filepath.Dir(dir), depth+1)
}

// resolveDir makes a folder's path absolute, with symlinks resolved.
func resolveDir(dir string) (string, error) {
	info, err := os.Stat(dir) // refuses "", which Abs would treat as the current folder
	if err != nil || !info.IsDir() {
		return "", errors.New("no such folder")
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

// absoluteDirs returns the DIR arguments of a command as absolute paths, links not resolved; without
// any, the current folder.
func absoluteDirs(dirs []string) (roots []string, err error) {
	if len(dirs) == 0 {
		dirs = []string{"."}
	}
	for _, dir := range dirs {
		if _, err := resolveDir(dir); err != nil {
			return nil, usageErrorf("DIR %q: %v", dir, err)
		}
		root, _ := filepath.Abs(dir) // as in resolveDir
		roots = append(roots, root)
	}
	return roots, nil
}

// withRegistry calls do with a registry of the modules under dirs; see absoluteDirs. The
// registry is closed when do returns. c has the rest of its configuration. If a module under dirs
// has started this process, withRegistry returns an error: see nestedVar.
func (a *app) withRegistry(dirs []string, c registryConfig, do func(*Registry) error) error {
	roots, err := absoluteDirs(dirs)
	if err != nil {
		return err
	}
	for source := range strings.SplitSeq(a.getenv(nestedVar), "\n") {
		if isBelow(source, realPaths(roots...)) {
			return fmt.Errorf("module %s started this usher: host another folder", filepath.Base(source))
		}
	}
	c.Roots = roots
	// A running daemon decides which folders are served. Without one, they are those of the command.
	if c.Served == nil {
		c.Served = roots
	}
	c.CacheDir = a.dataFile("cache")
	r := newRegistry(c)
	defer r.Close()
	return do(r)
}

// warnf prints a line to stderr, which may contain foreign text.
func (a *app) warnf(format string, args ...any) {
	fmt.Fprintf(a.stderr, "usher: %s\n", sanitize(fmt.Sprintf(format, args...)))
}

// print prints v as JSON if the command has the flag -json, else with a template of help/output.tmpl.
func (a *app) print(name string, v any) {
	if !a.asJSON {
		a.output.WriteString(formatText(name, v))
		return
	}
	_ = json.Indent(&a.output, marshal(v), "", "  ") // never fails for valid JSON
	a.output.WriteString("\n")
}

// formatText formats v with a template of help/output.tmpl.
func formatText(name string, v any) string {
	output := template.New(name).Funcs(template.FuncMap{
		"clean": sanitize,
		"left":  formatLeft,
		"note":  func(text string) string { return sanitizeLines(text, "\n      ") },
	})
	var text strings.Builder
	table := tabwriter.NewWriter(&text, 0, 0, 3, ' ', 0)
	_ = template.Must(output.Parse(helpText("output.tmpl"))).ExecuteTemplate(table, name, v)
	table.Flush()
	return text.String()
}

// isTerminal reports whether a writer is a terminal.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	null, _ := os.Stat(os.DevNull) // also a character device, but no terminal
	return err == nil && info.Mode()&os.ModeCharDevice != 0 && !os.SameFile(info, null)
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

// formatLeft formats the time until an instant, rounded up to minutes, or to seconds if it is at
// most an hour.
func formatLeft(at time.Time) string {
	seconds := (max(time.Until(at), 1) + time.Second - 1) / time.Second
	if seconds > 3600 {
		seconds = (seconds + 59) / 60 * 60
	}
	text := ""
	for i, n := range []time.Duration{seconds / 86400, seconds / 3600 % 24, seconds / 60 % 60, seconds % 60} {
		if n > 0 {
			text += fmt.Sprintf(" %d%c", n, "dhms"[i])
		}
	}
	return text[1:]
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
		return 0, errors.New("want a duration such as 30m, 7d or 2w, up to 100 years")
	}
	return d * factor, nil
}
