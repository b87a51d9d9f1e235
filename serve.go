// The daemon: usher serve put together out of its parts, from the flags to the
// last process ended. Also what it prints while it runs, and the record that
// says which daemon has a base folder. It knows every room but cli.go.

package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"
)

const (
	headerTimeout = 10 * time.Second // for a request's headers
	restTimeout   = time.Second      // for the rest of a body that was not wanted
	idleTimeout   = 2 * time.Minute  // of a connection without a request
	drainTimeout  = 5 * time.Second  // for calls under way when the daemon ends
	recordCheck   = 2 * time.Second  // between two looks at daemon.json
	showInterval  = 50 * time.Millisecond
)

// usageError is a mistake in how a command was called: exit status 2, and the
// usage on stderr.
type usageError struct{ msg string }

func (e *usageError) Error() string { return e.msg }

func usageErrorf(format string, args ...any) error {
	return &usageError{fmt.Sprintf(format, args...)}
}

// parsed declares a flag whose text parse turns into its value. Where parse
// fails, the flag is refused with its error.
func parsed[T any](fs *flag.FlagSet, name, initial, usage string, parse func(string) (T, error)) *T {
	value := new(T)
	if initial != "" {
		*value, _ = parse(initial)
		usage += " (default " + initial + ")"
	}
	fs.Func(name, usage, func(text string) (err error) {
		*value, err = parse(text)
		return err
	})
	return value
}

// repeated declares a flag that may be given several times.
func repeated(fs *flag.FlagSet, name, usage string, parse func(string) (string, error)) *[]string {
	var list []string
	return parsed(fs, name, "", usage, func(text string) ([]string, error) {
		item, err := parse(text)
		list = append(list, item)
		return list, err
	})
}

// plain is a text that others wrote, in which nothing can play with the terminal
// or break a table.
func plain(s string) string {
	var b strings.Builder
	for _, r := range s {
		if unicode.IsPrint(r) {
			b.WriteRune(r)
		} else {
			b.WriteString(strings.Trim(strconv.QuoteRune(r), "'"))
		}
	}
	return b.String()
}

// servingFlags is what serve and stdio have in common.
type servingFlags struct {
	callTimeout, idle time.Duration
	log               *string
}

func declareServing(fs *flag.FlagSet) *servingFlags {
	f := &servingFlags{}
	fs.DurationVar(&f.callTimeout, "call-timeout", 5*time.Minute, "end a call after `DURATION` without an answer or progress")
	fs.DurationVar(&f.idle, "idle", time.Hour, "stop a module's process unused for `DURATION`; 0 never")
	f.log = parsed(fs, "log", "text", "the log's `FORM`, text or json", func(form string) (string, error) {
		if form != "text" && form != "json" {
			return "", errors.New("want text or json")
		}
		return form, nil
	})
	return f
}

// newLog is the daemon's log, on w.
func newLog(w io.Writer, form *string) *slog.Logger {
	if *form == "json" {
		return slog.New(slog.NewJSONHandler(w, nil))
	}
	short := func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.String(a.Key, a.Value.Time().Format("15:04:05.000"))
		}
		return a
	}
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{ReplaceAttr: short}))
}

// serveFlags is the flags of usher serve.
type serveFlags struct {
	*servingFlags
	addr            string
	hosts, origins  *[]string // lower case
	publicURL       *url.URL  // its path ends with a slash; zero for none
	requireClaim    bool
	open            bool
	openWebhooks    bool
	signatures      bool
	maxBody         *int64 // bytes
	webhookTimeout  time.Duration
	webhookLimit    int
	tlsCert, tlsKey string
}

func declareServe(fs *flag.FlagSet) *serveFlags {
	f := &serveFlags{servingFlags: declareServing(fs)}
	fs.StringVar(&f.addr, "addr", "127.0.0.1:3000", "listen on `HOST:PORT`; port 0 takes a free one")
	f.hosts = repeated(fs, "allow-host", "answer requests for this host `NAME` too (repeatable)", parseHost)
	f.origins = repeated(fs, "allow-origin", "answer scripts of this website too, given as its `URL` without a path (repeatable)", parseOrigin)
	f.publicURL = parsed(fs, "public-url", "", "the `URL` at which clients reach usher, as claim, modules and serve print it; its host is allowed", parsePublicURL)
	f.maxBody = parsed(fs, "max-body", strings.ReplaceAll(formatSize(defaultMaxBody), " ", ""), "the largest request, as `SIZE` in bytes or with KiB, MiB, GiB", parseSize)
	fs.BoolVar(&f.requireClaim, "require-claim", false, "serve MCP clients only with a valid claim code")
	fs.BoolVar(&f.open, "open", false, "serve anyone who can reach the address, all modules, without a claim")
	fs.BoolVar(&f.openWebhooks, "open-webhooks", false, "deliver webhooks of anyone who can reach the address")
	fs.BoolVar(&f.signatures, "accept-signatures", false, "let a webhook's verified @signature stand in for the secret")
	fs.DurationVar(&f.webhookTimeout, "webhook-timeout", 30*time.Second, "give a webhook's method up after `DURATION`")
	fs.IntVar(&f.webhookLimit, "webhook-limit", defaultWebhookLimit, "take at most `N` deliveries at once")
	fs.StringVar(&f.tlsCert, "tls-cert", "", "serve HTTPS with the certificate in `FILE`")
	fs.StringVar(&f.tlsKey, "tls-key", "", "and its key in `FILE`")
	return f
}

func parseHost(name string) (string, error) {
	if name == "" || strings.ContainsAny(name, "/: ") {
		return "", errors.New("want a host name without scheme and port, such as usher.example.com")
	}
	return strings.ToLower(name), nil
}

func parseOrigin(text string) (string, error) {
	u, err := url.Parse(text)
	if err != nil || u.Scheme == "" || u.Host == "" || u.Path != "" {
		return "", errors.New("want a URL without a path, such as https://example.com")
	}
	return strings.ToLower(text), nil
}

func parsePublicURL(text string) (url.URL, error) {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.User != nil || strings.ContainsAny(text, "?#'\" ") {
		return url.URL{}, errors.New("want a URL such as https://usher.example.com/")
	}
	u.Path = strings.TrimSuffix(u.Path, "/") + "/"
	return *u, nil
}

// parseSize reads a number of bytes, also written with KiB, MiB or GiB.
func parseSize(s string) (n int64, err error) {
	unit := ""
	_, _ = fmt.Sscanf(s, "%d%s", &n, &unit) // what is missing is ""
	shift, ok := map[string]int{"": 0, "KiB": 10, "MiB": 20, "GiB": 30}[unit]
	if !ok || n <= 0 || n > 1<<40>>shift {
		return 0, errors.New("want a number of bytes, or one with KiB, MiB or GiB, such as 4MiB")
	}
	return n << shift, nil
}

// check refuses flags that make no sense, or that would let anyone in.
func (f *serveFlags) check(secret string) error {
	if _, _, err := net.SplitHostPort(f.addr); err != nil {
		return usageErrorf("-addr %q: want HOST:PORT, such as 127.0.0.1:3000", f.addr)
	}
	if name := f.publicURL.Hostname(); name != "" {
		*f.hosts = append(*f.hosts, strings.ToLower(name))
	}
	reachable := f.exposure()
	_, secretSet := os.LookupEnv(webhookSecretVar)
	switch {
	case (f.tlsCert == "") != (f.tlsKey == ""):
		return usageErrorf("-tls-cert and -tls-key go together")
	case f.webhookTimeout <= 0 || f.webhookLimit <= 0:
		return usageErrorf("-webhook-timeout and -webhook-limit: want more than zero")
	case secretSet && secret == "":
		return usageErrorf("%s is set but empty, which would leave the webhooks unguarded: give it a value or unset it", webhookSecretVar)
	case strings.TrimSpace(secret) != secret:
		return usageErrorf("%s begins or ends with white space, which no header can: take it away", webhookSecretVar)
	case reachable != "" && !f.open && !f.requireClaim:
		return usageErrorf("under %s others than this machine can reach usher, which needs %s", reachable, mcpFlags)
	}
	return nil
}

// exposure is a name or address by which others than this machine can reach the
// daemon; "" where there is none.
func (f *serveFlags) exposure() string {
	host, _, _ := net.SplitHostPort(f.addr)
	names := append([]string{cmp.Or(host, "0.0.0.0")}, *f.hosts...)
	i := slices.IndexFunc(names, func(name string) bool { return !isLoopback(name) })
	if i < 0 {
		return ""
	}
	return names[i]
}

// mcpAudience is who may use the MCP endpoint, as far as claims let them.
func (f *serveFlags) mcpAudience() audience {
	if f.open || f.requireClaim {
		return anyone
	}
	return thisMachine
}

// webhookAudience is whose deliveries are taken while no secret is set.
func (f *serveFlags) webhookAudience() audience {
	switch {
	case f.openWebhooks:
		return anyone
	case f.requireClaim || f.exposure() != "":
		return nobody
	default:
		return thisMachine
	}
}

// daemon is one run of usher serve.
type daemon struct {
	flags        *serveFlags
	secret       string // of webhooks; "" for none
	data         string // the data folder
	openRegistry func(registryConfig) (*Registry, error)
	out          io.Writer // for people
	log          *slog.Logger
	getenv       func(string) string

	registry *Registry
	server   *Server
	webhooks *Webhooks
	record   *daemonRecord
	tls      *tls.Config // nil for plain HTTP
	url      string      // of the MCP endpoint, as clients reach it
}

func (d *daemon) run(ctx context.Context) (err error) {
	if d.record, err = claimBase(ctx, d.data); err != nil {
		return err
	}
	defer d.record.release()
	listener, err := d.listen()
	if err != nil {
		return err
	}
	defer listener.Close()
	if err := d.record.publish(d.url); err != nil {
		return err
	}
	claims := openClaims(d.data, d.log)
	defer claims.Close()
	sessions, err := openSessions(d.data, d.log, time.Now)
	if err != nil {
		return err
	}
	defer sessions.Close()
	d.registry, err = d.openRegistry(registryConfig{Log: d.log, Patience: d.flags.callTimeout, Idle: d.flags.idle})
	if err != nil {
		return err
	}
	defer d.registry.Close()
	return d.serve(ctx, listener, newGate(claims, sessions, d.flags.requireClaim, d.log))
}

// listen opens the address, and finds the URL that it has.
func (d *daemon) listen() (net.Listener, error) {
	scheme := "http"
	if d.flags.tlsCert != "" {
		cert, err := tls.LoadX509KeyPair(d.flags.tlsCert, d.flags.tlsKey)
		if err != nil {
			return nil, fmt.Errorf("loading the certificate: %w", err)
		}
		scheme = "https"
		d.tls = &tls.Config{Certificates: []tls.Certificate{cert}}
	}
	listener, err := net.Listen("tcp", d.flags.addr)
	if err != nil {
		if op := (*net.OpError)(nil); errors.As(err, &op) {
			err = op.Err
		}
		return nil, fmt.Errorf("listening on %s: %w; choose another address with -addr", d.flags.addr, err)
	}
	d.url = cmp.Or(d.flags.publicURL.String(), scheme+"://"+shownAddr(listener.Addr())+"/")
	return listener, nil
}

// shownAddr is an address that a client on this machine can use.
func shownAddr(addr net.Addr) string {
	host, port, _ := net.SplitHostPort(addr.String())
	if net.ParseIP(host).IsUnspecified() {
		host = "127.0.0.1"
	}
	return net.JoinHostPort(host, port)
}

// serve answers until ctx ends, and then brings everything to an end: first the
// streams, then, after a while, the calls.
func (d *daemon) serve(ctx context.Context, listener net.Listener, gate *Gate) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stopped, stop := context.WithCancel(context.Background())
	defer stop()
	origins := &originPolicy{hosts: *d.flags.hosts, origins: *d.flags.origins, mcp: d.flags.mcpAudience()}
	bodies := newBodyReader(*d.flags.maxBody)
	d.server = &Server{modules: d.registry.Source(), gate: gate, bodies: bodies, log: d.log,
		started: time.Now(), suspended: newSuspendedCalls(stopped, suspendTimeout), stopping: ctx, stopped: stopped}
	d.webhooks = &Webhooks{views: d.registry.Source(), bodies: bodies, log: d.log, getenv: d.getenv, stopped: stopped,
		secret: d.secret, audience: d.flags.webhookAudience(), acceptSignatures: d.flags.signatures, timeout: d.flags.webhookTimeout,
		places: make(chan struct{}, d.flags.webhookLimit)}
	var handlers sync.WaitGroup
	web := &http.Server{Handler: d.handler(origins, &handlers), ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout,
		MaxHeaderBytes: maxHeader, TLSConfig: d.tls, ErrorLog: slog.NewLogLogger(d.log.Handler(), slog.LevelWarn)}
	var parts sync.WaitGroup
	parts.Go(func() { d.registry.Watch(ctx) })
	parts.Go(func() { d.show(ctx) })
	parts.Go(func() { d.record.keep(ctx) })
	d.log.Info("listening", "address", listener.Addr().String())
	failed := make(chan error, 1)
	parts.Go(func() {
		if d.tls != nil {
			failed <- web.ServeTLS(listener, "", "")
		} else {
			failed <- web.Serve(listener)
		}
	})
	var err error
	select {
	case err = <-failed:
	case <-ctx.Done():
	}
	cancel()
	if !drain(web) {
		stop() // calls under way are told
		if !drain(web) {
			web.Close()
		}
	}
	stop() // also calls that wait for their clients to come back
	handlers.Wait()
	d.server.suspended.wait()
	parts.Wait()
	return err
}

// drain waits for requests being answered, within drainTimeout.
func drain(web *http.Server) bool {
	ctx, cancel := context.WithTimeout(context.Background(), drainTimeout)
	defer cancel()
	return web.Shutdown(ctx) == nil
}

// handler is the way of every request: an id, who may speak to the daemon at
// all, the routes.
func (d *daemon) handler(origins *originPolicy, handlers *sync.WaitGroup) http.Handler {
	mux := http.NewServeMux()
	d.server.routes(mux)
	mux.HandleFunc("/", handle(d.log, writeMCPError, func(_ http.ResponseWriter, r *http.Request) error {
		return httpErrorf(http.StatusNotFound, "nothing is here: the MCP endpoint is at / and /mcp")
	}))
	guarded := func(write func(http.ResponseWriter, *httpError), next func(http.ResponseWriter, *http.Request) error) http.HandlerFunc {
		return handle(d.log, write, func(w http.ResponseWriter, r *http.Request) error {
			if err := origins.admit(r); err != nil {
				return err
			}
			if origins.cors(w, r) {
				return nil
			}
			return next(w, r)
		})
	}
	routed := guarded(writeMCPError, func(w http.ResponseWriter, r *http.Request) error {
		if err := origins.admitMCP(r); err != nil {
			return err
		}
		mux.ServeHTTP(w, r)
		return nil
	})
	webhooks := guarded(writeWebhookError, d.webhooks.serve)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		handlers.Add(1)
		defer handlers.Done()
		// net/http reads what is left of a body before it answers: of one that
		// does not come, for ever.
		defer func() { _ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(restTimeout)) }()
		w.Header().Set(requestIDHeader, newRequestID())
		switch {
		case r.URL.Path == "/healthz": // whatever the Host: probes have their own
			io.WriteString(w, "ok\n")
		// Before the mux, which would redirect a path with // in it before the
		// secret was shown.
		case isWebhook(r.URL.Path) || isWebhook(path.Clean("/"+r.URL.Path)):
			webhooks(w, r)
		default:
			routed(w, r)
		}
	})
}

// isWebhook reports whether a path is one of webhooks'.
func isWebhook(path string) bool {
	return strings.HasPrefix(path, webhookPrefix) || path+"/" == webhookPrefix
}

// show prints, for people, where the daemon is and its modules as they become
// ready, and once all were introspected, what to try.
func (d *daemon) show(ctx context.Context) {
	fmt.Fprintf(d.out, "usher %s serves MCP at %s\n\n", version(), d.url)
	shown, tried := make(map[entryKey]string), false
	for {
		changed := d.registry.Changed()
		pending := d.registry.Pending(scopeAll()) // asked before the modules: those may be ready by then
		shown = d.showModules(shown)
		if !pending && !tried {
			tried = true
			d.showTry()
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(showInterval): // many modules become ready together
		}
	}
}

// showModules prints a line for each module whose line is not in shown, and for
// those that are gone. It returns the lines that are shown now.
func (d *daemon) showModules(shown map[entryKey]string) map[entryKey]string {
	now := make(map[entryKey]string)
	note := func(path, name, line string) {
		key := entryKey{path, name}
		now[key] = cmp.Or(line, shown[key])
		if now[key] != shown[key] {
			fmt.Fprintln(d.out, line)
		}
	}
	view := d.registry.Source().View(scopeAll())
	status, problems := d.registry.Report()
	for _, s := range status {
		switch {
		case s.Pending:
			note(s.Path, s.Name, "")
		case s.Err != nil:
			note(s.Path, s.Name, failedLine(s.Name, explain(s.Err)))
		default:
			note(s.Path, s.Name, readyLine(s.Name, view.ToolsOf(s.Module)))
		}
	}
	for _, p := range problems {
		note(p.Path, "", failedLine(filepath.Base(p.Path), p.Text))
	}
	for key, line := range shown {
		if _, ok := now[key]; !ok && line != "" {
			fmt.Fprintf(d.out, "  gone    %-12s %s\n", plain(key.name), plain(key.source))
		}
	}
	return now
}

func failedLine(name, why string) string {
	first, _, _ := strings.Cut(why, "\n")
	return fmt.Sprintf("  failed  %-12s %s", plain(name), plain(first))
}

// readyLine is a module under the name that it has in tool names, if it has any.
func readyLine(label string, tools []*Tool) string {
	var names []string
	for _, t := range tools {
		names, label = append(names, t.Name), t.Label
	}
	if len(names) > 6 {
		names = append(names[:5], fmt.Sprintf("and %d more", len(names)-5))
	}
	return fmt.Sprintf("  ready   %-12s %s", label, strings.Join(names, ", "))
}

// showTry says what to do next.
func (d *daemon) showTry() {
	fmt.Fprintf(d.out, "\nConnect a client:\n  claude mcp add --transport http usher %s\n", d.url)
	fmt.Fprintf(d.out, "\nOr see what a client gets:\n  curl -s %s -H 'Content-Type: application/json' -d '%s'\n", d.url,
		`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"curl","version":"1"}}}`)
	webhooks := fmt.Sprintf("No webhooks yet; they need %s.\n", d.webhooksNeed())
	for _, t := range d.registry.Source().View(scopeAll()).Tools() {
		if url := hookURL(t, d.url); url != "" {
			webhooks = fmt.Sprintf("Send a webhook, which needs %s:\n  %s\n", d.webhooksNeed(), curlHook(url))
			break
		}
	}
	fmt.Fprintf(d.out, "\n%s\nCtrl-C ends it. Calls and logs follow.\n\n", webhooks)
}

// webhooksNeed says what a webhook needs to be delivered.
func (d *daemon) webhooksNeed() string {
	switch {
	case d.secret == "" && d.flags.webhookAudience() == nobody:
		return fmt.Sprintf("%s in the environment of usher serve, or its flag -open-webhooks: they are off, because of %s",
			webhookSecretVar, cmp.Or(d.flags.exposure(), "-require-claim"))
	case d.secret == "":
		return "no secret, as " + webhookSecretVar + " is not set"
	case d.flags.signatures:
		return "the header " + secretHeader + " or a verified signature"
	}
	return "the header " + secretHeader
}

// hookURL is where a tool of the unscoped view receives webhooks, "" where it
// receives none. url is the daemon's.
func hookURL(t *Tool, url string) string {
	if t.HookPath() == "" {
		return ""
	}
	return strings.TrimSuffix(url, "/") + webhookPrefix + t.HookPath()
}

// curlHook is a command that sends a webhook.
func curlHook(url string) string {
	return "curl " + url + " -H 'Content-Type: application/json' -d '{}'"
}

// dataDir is {base}/.data, made if need be; "" is ~/.usher. A folder that another
// user could write into is refused: whoever can write there can make claims.
func dataDir(base string) (string, error) {
	if base == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return "", usageErrorf("there is no home folder to keep data in: name one with -base or $USHER_BASE")
		}
		base = filepath.Join(home, ".usher")
	}
	dir, err := filepath.Abs(filepath.Join(base, ".data"))
	err = cmp.Or(err, os.MkdirAll(dir, 0o700))
	for _, folder := range []string{filepath.Dir(dir), dir} {
		if err == nil {
			err = checkPrivate(folder)
		}
	}
	if err != nil {
		return "", fmt.Errorf("preparing the data folder: %w; name another with -base or $USHER_BASE", err)
	}
	return dir, nil
}

// defaultURL is where a daemon is that was not told otherwise.
const defaultURL = "http://127.0.0.1:3000/"

// daemonRecord is {base}/.data/daemon.json: which daemon has this base folder.
type daemonRecord struct {
	PID   int    `json:"pid"`
	Birth string `json:"birth"` // see processBirth
	URL   string `json:"url"`   // "" while it starts

	path string
}

// readDaemon reads the record of dataDir's daemon. It is zero when none runs.
func readDaemon(dataDir string) daemonRecord {
	d := daemonRecord{path: filepath.Join(dataDir, "daemon.json")}
	raw, err := os.ReadFile(d.path)
	if err != nil || json.Unmarshal(raw, &d) != nil || !processAlive(d.PID) || d.Birth != "" && d.Birth != processBirth(d.PID) {
		return daemonRecord{}
	}
	return d
}

// claimBase makes this process the daemon of dataDir, unless one runs.
func claimBase(ctx context.Context, dataDir string) (*daemonRecord, error) {
	own := &daemonRecord{PID: os.Getpid(), Birth: processBirth(os.Getpid()), path: filepath.Join(dataDir, "daemon.json")}
	err := newWriteToken(dataDir).do(ctx, func(held *heldToken) error {
		if other := readDaemon(dataDir); other.PID != 0 {
			return fmt.Errorf("another usher serves this base folder already (process %d, %s): use that one, or give this one its own with -base",
				other.PID, cmp.Or(other.URL, "starting"))
		}
		return held.replace("daemon.json", marshal(own), nil)
	})
	return own, err
}

// publish writes down where the daemon can be reached.
func (d *daemonRecord) publish(url string) error {
	d.URL = url
	if err := replaceFile(d.path, marshal(d)); err != nil {
		return fmt.Errorf("writing daemon.json: %w", err)
	}
	return nil
}

// keep writes the record again where it was deleted, so that no second daemon
// starts beside this one.
func (d *daemonRecord) keep(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(recordCheck):
		}
		if _, err := os.Lstat(d.path); errors.Is(err, os.ErrNotExist) {
			_ = d.publish(d.URL) // tried again soon
		}
	}
}

// release takes the record away, unless it is another daemon's.
func (d *daemonRecord) release() {
	if now := readDaemon(filepath.Dir(d.path)); now == *d {
		os.Remove(d.path)
	}
}
