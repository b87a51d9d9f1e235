// The command line: one table of commands, which dispatch and help both read, a
// function for each command, and what they print. Output for people goes to
// stdout. Logs and errors go to stderr, an error on one line that begins
// "usher:". With -json nothing but JSON goes to stdout. Text that others wrote
// (file names, descriptions, errors of modules) is printed through plain. It may
// use every room but main.go, the only one that knows it.

package main

import (
	"cmp"
	"embed"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"
)

// command is an entry of the table. setup declares the flags of the command and
// returns the function that runs it once they are parsed. Its help text is
// help/NAME.txt, where there is one.
type command struct {
	name        string
	args        string // as the usage line shows them
	least, most int    // how many arguments there may be, flags not counted
	summary     string
	setup       func(a *app, fs *flag.FlagSet) func(args []string) error
}

const anyNumber = math.MaxInt

var commands = []command{
	{"serve", "[flags] [DIR…]", 0, anyNumber, "host the modules under each DIR for MCP clients, over HTTP", setupServe},
	{"stdio", "[flags] [DIR…]", 0, anyNumber, "host modules for the client that starts it, on stdin and stdout", setupStdio},
	{"claim", "[flags] | list [-json] | revoke CODE…", 0, anyNumber, "make, list and revoke codes that let a client see one folder", setupClaim},
	{"modules", "[-json] [-scope DIR | -claim CODE] [DIR…]", 0, anyNumber, "show the modules, their tools, and what is wrong with the rest", setupModules},
	{"call", "[flags] MODULE METHOD [JSON]", 2, 3, "call one method from the shell", setupCall},
	{"new", "FILE", 1, 1, "write a module to begin with", setupNew},
	{"completion", "SHELL", 1, 1, "print what has bash, zsh or fish complete usher's command lines", setupCompletion},
	{"version", "", 0, 0, "print the version, the commit and that of Go", setupVersion},
}

//go:embed help
var helpTexts embed.FS

// run dispatches to a command and turns its error into an exit status.
func (a *app) run(args []string) int {
	words := slices.Clone(claimWords)
	for _, c := range commands {
		words = append(words, c.name)
	}
	// Flags may stand before the command, too.
	if i := slices.IndexFunc(args, func(arg string) bool { return slices.Contains(words, arg) }); i > 0 && args[0][0] == '-' {
		args = slices.Concat(args[i:i+1], args[:i], args[i+1:])
	}
	switch {
	case len(args) == 0:
		printOverview(a.stderr)
		return 2
	case slices.Contains([]string{"help", "-h", "-help", "--help"}, args[0]):
		if len(args) == 1 {
			printOverview(a.stdout)
			return 0
		}
		args = []string{args[1], "-h"}
	case slices.Contains([]string{"-v", "-version", "--version"}, args[0]):
		args = []string{"version"}
	}
	for _, c := range commands {
		if c.name == args[0] {
			return a.runCommand(c, args[1:])
		}
	}
	a.warnf("unknown command %q%s (usher help lists them)", args[0], didYouMean(args[0], words))
	return 2
}

// claimWords is what may be typed for parts of usher claim, as didYouMean takes it.
var claimWords = []string{"list=claim list", "ls=claim list", "revoke=claim revoke", "rm=claim revoke", "delete=claim revoke"}

// didYouMean is the end of an error about a mistyped word: what was meant, if one of
// words is near. A word may be followed by = and what to say in its place.
func didYouMean(typed string, words []string) (meant string) {
	fewest := len(typed)/3 + 2
	for _, word := range words {
		word, say, _ := strings.Cut(word, "=")
		if n := distance(typed, word); n < fewest {
			fewest, meant = n, ": did you mean "+sanitize(cmp.Or(say, word))+"?"
		}
	}
	return meant
}

// distance is how many letters have to be typed anew to make one word of another:
// those between the beginning and the end that they share.
func distance(a, b string) int {
	for a != "" && b != "" && a[0] == b[0] {
		a, b = a[1:], b[1:]
	}
	for a != "" && b != "" && a[len(a)-1] == b[len(b)-1] {
		a, b = a[:len(a)-1], b[:len(b)-1]
	}
	return max(len(a), len(b))
}

func (a *app) runCommand(c command, args []string) int {
	fs := flag.NewFlagSet(c.name, flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	do := c.setup(a, fs)
	args, err := parseFlags(fs, args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		a.printHelp(c, fs)
		return 0
	case err != nil:
		err = usageError{err}
	case len(args) < c.least:
		err = usageErrorf("want %s", c.args)
	case len(args) > c.most:
		err = usageErrorf("unexpected argument %q", args[c.most])
	default:
		err = do(args)
	}
	if err == nil {
		return 0
	}
	if a.ctx.Err() != nil {
		err = errors.New("interrupted")
	}
	a.warnf("%s: %s", c.name, sanitize(strings.ReplaceAll(err.Error(), "\n", "; ")))
	if !errors.As(err, new(usageError)) {
		return 1
	}
	fmt.Fprintf(a.stderr, "usage: usher %s\nSee usher help %s.\n", strings.TrimSpace(c.name+" "+c.args), c.name)
	return 2
}

// parseFlags parses flags wherever they stand among the arguments, and returns
// the arguments. After "--" there are no flags.
func parseFlags(fs *flag.FlagSet, args []string) (rest []string, err error) {
	var last []string
	if i := slices.Index(args, "--"); i >= 0 {
		args, last = args[:i], args[i+1:]
	}
	for {
		err := fs.Parse(args)
		if what, ok := strings.CutSuffix(fmt.Sprint(err), ": parse error"); ok {
			err = fmt.Errorf("%s: want a number, for a duration with its unit, such as 5m", what)
		} else if name, ok := strings.CutPrefix(what, "flag provided but not defined: -"); ok {
			words := []string{"port=-addr 127.0.0.1:3001"}
			fs.VisitAll(func(f *flag.Flag) { words = append(words, f.Name+"=-"+f.Name) })
			err = fmt.Errorf("unknown flag -%s%s", name, didYouMean(name, words))
		}
		if err != nil {
			return nil, err
		}
		if fs.NArg() == 0 {
			return append(rest, last...), nil
		}
		rest = append(rest, fs.Arg(0))
		args = fs.Args()[1:]
	}
}

// printOverview lists the commands.
func printOverview(w io.Writer) {
	fmt.Fprint(w, "Usher hosts the modules of a workspace as MCP tools.\n\nusage: usher COMMAND [flags] [arguments]\n\n")
	t := newTable(w)
	for _, c := range commands {
		fmt.Fprintf(t, "  %s\t%s\n", c.name, c.summary)
	}
	t.Flush()
	text, _ := helpTexts.ReadFile("help/overview.txt")
	fmt.Fprintf(w, "\n%s", text)
}

// printHelp prints the manual of one command, from its help text. The flags, which
// describe themselves, stand before the examples.
func (a *app) printHelp(c command, fs *flag.FlagSet) {
	text, _ := helpTexts.ReadFile("help/" + c.name + ".txt")
	about, examples, _ := strings.Cut(string(text), "For example:\n")
	a.printf("usage: usher %s\n\n%s.\n\n%s", strings.TrimSpace(c.name+" "+c.args), strings.ToUpper(c.summary[:1])+c.summary[1:], about)
	fs.SetOutput(a.stdout)
	fs.PrintDefaults()
	a.printf("\nFor example:\n%s", examples)
}

func setupVersion(a *app, _ *flag.FlagSet) func([]string) error {
	return func([]string) error {
		commit := ""
		info, _ := debug.ReadBuildInfo() // there is one, as usher is a module
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				commit = "commit " + s.Value + ", "
			}
		}
		a.printf("usher %s (%s%s %s/%s)\n", version(), commit, runtime.Version(), runtime.GOOS, runtime.GOARCH)
		return nil
	}
}

// withModules opens the modules under dirs for a look at them, or a call: all that
// are as the running daemon has taken them up, once they are introspected. Those
// that take a while are named on stderr.
func (a *app) withModules(dirs []string, c registryConfig, do func(*Registry, daemonRecord) error) error {
	data, _ := a.dataDir() // withRegistry says what is wrong with it
	daemon := readDaemon(data)
	c.Log = slog.New(slog.DiscardHandler)
	c.Taken = daemon.Taken
	c.TakenRoots = daemon.Roots
	return a.withRegistry(dirs, c, func(r *Registry) error {
		told := make(map[string]bool)
		for !r.WaitAll(a.ctx, time.Second, scopeAll()) {
			if a.ctx.Err() != nil {
				return a.ctx.Err()
			}
			if names := pendingModules(r, told); names != "" {
				a.warnf("building %s…", names)
			}
		}
		return do(r, daemon)
	})
}

func setupModules(a *app, fs *flag.FlagSet) func([]string) error {
	a.declareBase(fs)
	asJSON := fs.Bool("json", false, "print a JSON array")
	scope := declareScope(fs, "show what a session sees whose claim is for `DIR`, and what it does not")
	var code Code
	fs.Func("claim", "show what a session sees that presents `CODE`, and what it does not", func(text string) (err error) {
		code, err = parseCodeArgument(text)
		return err
	})
	return func(dirs []string) error {
		switch {
		case code == "":
		case *scope != scopeAll():
			return usageErrorf("-scope and -claim exclude each other")
		default:
			err := a.withClaims(func(claims *ClaimStore) error {
				c, ok, err := claims.Lookup(code)
				if err == nil && !ok {
					err = errNoClaim
				}
				*scope = scopeDir(c.ScopeDir)
				return err
			})
			if err != nil {
				return err
			}
		}
		return a.withModules(dirs, registryConfig{}, func(r *Registry, daemon daemonRecord) error {
			report := moduleReport(r, *scope, daemon, a.getenv)
			a.print(report, *asJSON, func() { a.printModules(report) })
			return nil
		})
	}
}

// declareScope declares the flag -scope; without it the scope is everything.
func declareScope(fs *flag.FlagSet, usage string) *Scope {
	scope := scopeAll()
	fs.Func("scope", usage, func(text string) error {
		dir, err := resolveDir(text)
		scope = scopeDir(dir)
		return err
	})
	return &scope
}

// parseCodeArgument reads a code that was typed.
func parseCodeArgument(text string) (Code, error) {
	code, ok := parseCode(text)
	if !ok {
		return "", usageErrorf("CODE: want a claim code: 6 of 23456789ABCDEFGHJKMNPQRSTUVWXYZ, with or without a dash")
	}
	return code, nil
}

// moduleLine is a module, or a file that is none, as usher modules shows it.
type moduleLine struct {
	Name     string     `json:"name,omitempty"`
	Label    string     `json:"label,omitempty"` // in tool names
	Kind     Kind       `json:"kind,omitempty"`
	Path     string     `json:"path"`
	About    string     `json:"about,omitempty"`
	Hosted   bool       `json:"hosted"`
	Hidden   string     `json:"hidden,omitempty"` // why a session of the scope does not see it
	Tools    []toolLine `json:"tools"`
	Error    string     `json:"error,omitempty"` // why it, or its newest version, is not hosted
	Problems []string   `json:"problems,omitempty"`
}

type toolLine struct {
	Name    string `json:"name"`
	Method  string `json:"method"`
	About   string `json:"about,omitempty"`
	Webhook string `json:"webhook,omitempty"` // its URL
	curl    string // how to deliver there
}

// moduleReport is all modules as they look in a view through scope. The daemon is
// for webhooks, whose paths are those of the unscoped view in any scope.
func moduleReport(r *Registry, scope Scope, daemon daemonRecord, getenv func(string) string) []moduleLine {
	url, secret := cmp.Or(daemon.URL, defaultURL), daemon.Secret || getenv(webhookSecretVar) != ""
	view, whole := r.View(scope), r.View(scopeAll())
	list := []moduleLine{}
	for _, s := range r.Report() {
		line := moduleLine{Name: s.Name, Kind: s.Kind, Path: s.Path, Tools: []toolLine{}}
		if !scope.Contains(s.Source) {
			line.Hidden = fmt.Sprintf("%s is not in %s", s.Source, scope.dir)
			s.Module, s.Err, s.Problems = nil, nil, nil
		}
		line.Problems = s.Problems
		if s.Err != nil {
			line.Error = explain(s.Err)
		}
		if s.Module != nil {
			line.Hosted, line.About = true, s.Module.About
			line.Problems = slices.Clone(s.Module.Problems)
			hooks := whole.ToolsOf(s.Module)
			for i, t := range view.ToolsOf(s.Module) {
				line.Label = t.Label
				tool := toolLine{Name: t.Name, Method: t.Method.Name, About: firstSentence(t.Method.description)}
				tool.Webhook, tool.curl = webhookExample(whole, hooks[i], url, secret)
				if daemon.WebhooksOff {
					tool.curl = tool.Webhook + ", off: usher serve needs " + webhookSecretVar + " or -open-webhooks"
				}
				line.Tools = append(line.Tools, tool)
				line.Problems = append(line.Problems, toolProblems(whole, hooks[i], t.Name, getenv)...)
			}
		}
		list = append(list, line)
	}
	return list
}

// toolProblems is what the author of a tool should know. name is what the tool
// is called in the view shown.
func toolProblems(whole *View, t *Item, name string, getenv func(string) string) []string {
	var list []string
	if len(name) > maxToolName {
		list = append(list, name+": with the prefix mcp__usher__ the name is over 64 characters, which some clients refuse")
	}
	if _, others := whole.Hook(t.HookPath()); len(others) > 0 {
		list = append(list, fmt.Sprintf("%s: its webhook is not served, as several have the path %s: %s", t.Method.Name, t.HookPath(), strings.Join(others, ", ")))
	}
	if tag := t.Method.Signature; tag != "" {
		if _, err := parseSignature(tag, getenv); err != nil {
			list = append(list, fmt.Sprintf("%s: %v, so its webhook answers 503", t.Method.Name, err))
		}
	}
	return list
}

func (a *app) printModules(list []moduleLine) {
	if len(list) == 0 {
		a.printf("No modules here. Make one: usher new hello.usher.go\n")
	}
	slices.SortStableFunc(list, func(x, y moduleLine) int { return cmp.Compare(min(len(x.Hidden), 1), min(len(y.Hidden), 1)) })
	for i, m := range list {
		if i > 0 {
			a.printf("\n")
		}
		a.printModule(m)
	}
}

func (a *app) printModule(m moduleLine) {
	title := sanitize(m.Path)
	if name := cmp.Or(m.Label, m.Name); name != "" {
		title = fmt.Sprintf("%s (%s)  %s", a.paint(bold, sanitize(name)), m.Kind, title)
	}
	a.printf("%s\n", title)
	a.printNote("", m.About)
	t := newTable(a.stdout)
	for _, tool := range m.Tools {
		fmt.Fprintln(t, strings.TrimSuffix("    "+tool.Name+"\t"+sanitize(tool.About), "\t"))
	}
	t.Flush()
	for _, tool := range m.Tools {
		if tool.Webhook != "" {
			a.printf("    webhook: %s\n", tool.curl)
		}
	}
	for _, p := range m.Problems {
		a.printNote("note: ", p)
	}
	a.printNote("hidden: ", m.Hidden)
	what := "not hosted"
	if m.Hosted {
		what = "its newest version is not hosted"
	}
	a.printNote(a.paint(red, what)+": ", m.Error)
}

// printNote prints a text below a module, if there is one.
func (a *app) printNote(what, text string) {
	before := "  " + what
	for line := range strings.Lines(text) {
		a.printf("%s%s\n", before, sanitize(strings.TrimSuffix(line, "\n")))
		before = "      "
	}
}

func setupServe(a *app, fs *flag.FlagSet) func([]string) error {
	a.declareBase(fs)
	flags := &serveFlags{}
	flags.declare(fs, a.stderr)
	return func(dirs []string) error {
		d := &daemon{app: a, flags: flags, dirs: dirs, secret: a.getenv(webhookSecretVar), log: flags.Log}
		return d.run()
	}
}

func setupStdio(a *app, fs *flag.FlagSet) func([]string) error {
	a.declareBase(fs)
	var config registryConfig
	config.declare(fs, a.stderr)
	return func(dirs []string) error {
		return a.withRegistry(dirs, config, func(r *Registry) error {
			s := &Server{modules: r, gate: fixedGate(scopeAll()), log: config.Log, started: time.Now(), stopping: a.ctx, stopped: a.ctx}
			return s.ServeStdio(a.ctx, a.stdin, a.stdout)
		})
	}
}

func setupCall(a *app, fs *flag.FlagSet) func([]string) error {
	a.declareBase(fs)
	dir := fs.String("dir", ".", "look for the module under `DIR`")
	scope := declareScope(fs, "call as a session would whose claim is for `DIR`")
	timeout := fs.Duration("call-timeout", 5*time.Minute, "give up after `DURATION` without an answer or progress")
	return func(args []string) error {
		raw := []byte(append(args, "{}")[2])
		if string(raw) == "-" {
			var err error
			if raw, err = io.ReadAll(a.stdin); err != nil {
				return fmt.Errorf("reading stdin: %w", err)
			}
		}
		list, err := jsonObject(raw)
		if err != nil {
			return usageErrorf("JSON: want an object of parameters, such as '{\"name\":\"Ada\"}'")
		}
		named := func(name string) bool { return strings.Contains(args[0], name) } // a label holds folders or a hash too
		return a.withModules([]string{*dir}, registryConfig{CallTimeout: *timeout, Only: named}, func(r *Registry, _ daemonRecord) error {
			meant, view := ": usher modules shows which are, and why others are not", r.View(*scope)
			for _, m := range view.Modules {
				if m.Label != args[0] {
					continue
				}
				var methods []string
				for _, tool := range view.ToolsOf(m.Module) {
					if tool.Method.Name == args[1] {
						return a.callTool(tool, withoutWebhook(list))
					}
					methods = append(methods, tool.Method.Name)
				}
				meant = cmp.Or(didYouMean(args[1], methods), ": it has "+strings.Join(methods, ", "))
				if len(methods) == 0 {
					meant = ": " + strings.Join(m.Problems, "; ")
				}
			}
			if tool := view.Lookup("tools", args[0]); tool != nil {
				meant = fmt.Sprintf(": MODULE METHOD would be %s %s", tool.Label, tool.Method.Name)
			}
			return fmt.Errorf("no module %q with a method %q is hosted here%s", args[0], args[1], meant)
		})
	}
}

// callTool makes a call and prints its result. Parameters that the method takes no
// notice of are told.
func (a *app) callTool(tool *Item, arguments object) error {
	schema, _ := tool.Method.schema().(map[string]any)
	known := sortedKeys(objectIn(schema, "properties"))
	for _, f := range arguments {
		if len(known) > 0 && schema["additionalProperties"] == nil && !slices.Contains(known, f.key) {
			a.warnf("call: the method has no parameter %q%s", f.key, didYouMean(f.key, known))
		}
	}
	caller := Caller{Session: "call", Affinity: "call", Notify: func(_ string, params json.RawMessage) {
		a.warnf("%s", sanitize(cmp.Or(stringField(params, "message"), string(field(params, "data")), string(field(params, "progress")))))
	}}
	result, err := tool.Call(a.ctx, caller, "tools/call", object{{"name", quote(tool.Name)}, {"arguments", arguments.encode()}, {"_meta", json.RawMessage(`{"progressToken":0}`)}})
	if err != nil {
		return err
	}
	if string(field(result, "isError")) == "true" {
		return errors.New(resultText(result))
	}
	a.printf("%s\n", resultText(result))
	return nil
}

// withClaims opens the claim store of the base folder for do.
func (a *app) withClaims(do func(*ClaimStore) error) error {
	data, err := a.dataDir()
	if err != nil {
		return err
	}
	claims := openClaims(data, nil)
	defer claims.Close()
	return do(claims)
}

// setupClaim is three commands: which one, the first argument says.
func setupClaim(a *app, fs *flag.FlagSet) func([]string) error {
	a.declareBase(fs)
	dir, ttl := fs.String("scope", ".", "the claim is for `DIR` and what is below it"), 24*time.Hour
	fs.Func("ttl", "how long it holds, `D` being such as 30m, 1h30m, 7d (default 24h)", func(text string) (err error) {
		ttl, err = parseTTL(text)
		return err
	})
	label := fs.String("label", "", "a `TEXT` to know it by")
	asJSON := fs.Bool("json", false, "print the stored record as JSON; list prints an array of them")
	return func(args []string) error {
		switch {
		case len(args) == 0:
			return a.createClaim(*dir, *label, ttl, *asJSON)
		case args[0] == "list" && len(args) == 1:
			return a.listClaims(*asJSON)
		case args[0] == "revoke" && len(args) > 1:
			return a.revokeClaims(args[1:])
		}
		return usageErrorf("want no argument, list, or revoke CODE…, not %q%s", args[0], cmp.Or(didYouMean(args[0], claimWords), ": did you mean -scope "+args[0]+"?"))
	}
}

func (a *app) createClaim(scope, label string, ttl time.Duration, asJSON bool) error {
	dir, err := resolveDir(scope)
	if err != nil {
		return usageErrorf("-scope %q: %v", scope, err)
	}
	return a.withClaims(func(claims *ClaimStore) error {
		c, err := claims.Create(a.ctx, dir, label, ttl)
		if err != nil {
			return err
		}
		data, _ := a.dataDir() // it was used before
		daemon := readDaemon(data)
		a.print(c, asJSON, func() { a.printClaim(c, daemon.URL) })
		if daemon.URL != "" && !daemon.RequireClaim {
			a.warnf("claim: the usher that runs has no -require-claim: a client with a mistyped code, or none, gets everything")
		}
		if daemon.Roots != nil && !slices.ContainsFunc(daemon.Roots, func(root string) bool { return scopeDir(root).Contains(dir) || scopeDir(dir).Contains(root) }) {
			a.warnf("claim: the usher that runs serves %s: the code shows nothing there", sanitize(strings.Join(daemon.Roots, ", ")))
		}
		found := make(chan bool, 1)
		go func() { found <- len(scanFolders([]string{dir}, nil).modules) > 0 }()
		select {
		case some := <-found:
			if !some {
				a.warnf("claim: no module lies under %s yet: until one does, the code shows nothing", sanitize(dir))
			}
		case <-time.After(2 * time.Second): // it may be a whole disk
		}
		return nil
	})
}

// printClaim prints a new claim and how to use it. daemon is the URL of the one that
// runs; "" for none.
func (a *app) printClaim(c Claim, daemon string) {
	a.printf("Claim code: %s\nScope:      %s\nExpires in: %s\n", a.paint(bold, c.Code.Dashed()), sanitize(c.ScopeDir), formatLeft(time.Until(c.ExpiresAt)))
	if c.Label != "" {
		a.printf("Label:      %s\n", sanitize(c.Label))
	}
	url := cmp.Or(daemon, defaultURL)
	a.printf("\nSet this header on the MCP client's connection:\n  %s: %s\n", claimHeader, c.Code.Reveal())
	a.printf("\nFor example:\n  claude mcp add --transport http usher %s --header \"%s: %s\"\n", url, claimHeader, c.Code.Reveal())
	a.printf("A client that can't set headers: %s?claim=%s\n", url, c.Code.Reveal())
	if daemon == "" {
		a.printf("\nNo usher serves this base folder at the moment: start one with usher serve.\n")
	}
}

func (a *app) listClaims(asJSON bool) error {
	a.readOnly = true
	return a.withClaims(func(claims *ClaimStore) error {
		list, err := claims.List(a.ctx)
		if list != nil || err == nil {
			a.print(append([]Claim{}, list...), asJSON, func() { a.printClaims(list) })
		}
		return err // also of expired claims that stay in the file
	})
}

func (a *app) printClaims(list []Claim) {
	if len(list) == 0 {
		a.printf("No claims hold. Make one: usher claim -scope DIR\n")
		return
	}
	t := newTable(a.stdout)
	fmt.Fprintln(t, "CODE\tSCOPE\tEXPIRES IN\tCREATED\tLABEL")
	for _, c := range list {
		created := c.CreatedAt.Local().Format("2006-01-02 15:04")
		cells := []string{c.Code.Dashed(), sanitize(c.ScopeDir), formatLeft(time.Until(c.ExpiresAt)), created, sanitize(c.Label)}
		fmt.Fprintln(t, strings.TrimSuffix(strings.Join(cells, "\t"), "\t"))
	}
	t.Flush()
}

// revokeClaims removes the claims with these codes. All that hold are removed,
// also when another does not.
func (a *app) revokeClaims(args []string) error {
	return a.withClaims(func(claims *ClaimStore) (failed error) {
		for i, arg := range args {
			var c Claim
			code, err := parseCodeArgument(arg)
			if err == nil {
				c, err = claims.Revoke(a.ctx, code)
			}
			if err != nil {
				failed = fmt.Errorf("code %d of %d: %w", i+1, len(args), err)
				continue
			}
			a.printf("Revoked %s, for %s. Sessions that use it see nothing from now on.\n", c.Code.Dashed(), sanitize(c.ScopeDir))
		}
		return failed
	})
}

func setupCompletion(a *app, _ *flag.FlagSet) func([]string) error {
	return func(args []string) error {
		script, err := helpTexts.ReadFile("help/completion." + strings.Replace(args[0], "zsh", "bash", 1)) // which serves both
		if err != nil {
			return usageErrorf("SHELL %q: want bash, zsh or fish", args[0])
		}
		a.printf("%s", script)
		return nil
	}
}

func setupNew(a *app, _ *flag.FlagSet) func([]string) error {
	return func(args []string) error {
		path := args[0]
		name, _, ok := moduleFile(filepath.Base(path))
		ending := strings.Replace(filepath.Ext(path), ".m", ".", 1) // .mjs as .js
		starter, err := runtimeFiles.ReadFile("runtimes/new.usher" + ending + ".txt")
		if !ok || err != nil || checkModuleName(name) != nil {
			return usageErrorf("FILE %q: want a module name of A-Z a-z 0-9 _ -, and .usher.go, .py, .js, .mjs, .ts, .mts or .sh", path)
		}
		f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
		if err == nil {
			_, err = f.Write(starter)
			err = cmp.Or(err, f.Close())
		}
		if err != nil {
			return fmt.Errorf("writing a new file: %w", err)
		}
		a.printf("Wrote %s. Try it in its folder:\n  usher call %s greet '{\"name\":\"Ada\"}'\n", path, name)
		return nil
	}
}
