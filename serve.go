// The daemon: usher serve put together out of its parts, from the flags to the
// last process ended. Also what it prints while it runs, the record that says which
// daemon has a base folder, and what it shares with the other commands: app, with
// the data folder and the opening of modules. It knows every room but cli.go.

package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/tls"
	_ "embed"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"html/template"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	headerTimeout = 10 * time.Second // for a request's headers
	restTimeout   = time.Second      // for the rest of a body that was not wanted
	idleTimeout   = 2 * time.Minute  // of a connection without a request
	drainTimeout  = 5 * time.Second  // for calls under way when the daemon ends
)

// declare declares the flags that serve and stdio have in common; the log goes to
// stderr.
func (c *registryConfig) declare(fs *flag.FlagSet, stderr io.Writer) {
	c.Watch, c.Log = true, slog.New(slog.NewTextHandler(stderr, nil))
	fs.DurationVar(&c.CallTimeout, "call-timeout", 5*time.Minute, "end a call after `DURATION` without an answer or progress")
	fs.DurationVar(&c.Idle, "idle", time.Hour, "stop a module's process unused for `DURATION`; 0 never")
	fs.Func("log", "the log's `FORM`, text or json (default text)", func(form string) error {
		switch form {
		case "text":
		case "json":
			c.Log = slog.New(slog.NewJSONHandler(stderr, nil))
		default:
			return errors.New("want text or json")
		}
		return nil
	})
}

// serveFlags is the flags of usher serve.
type serveFlags struct {
	registryConfig
	addr                     string
	hosts, origins           []string // lower case
	publicURL                string   // with a slash at its end; "" for none
	requireClaim, open       bool     // of MCP clients
	watch                    *bool    // nil where it is not given
	openWebhooks, signatures bool     // of webhooks
	maxBody                  int64    // bytes
	webhookTimeout           time.Duration
	webhookLimit             int
	tlsCert, tlsKey          string
}

func (f *serveFlags) declare(fs *flag.FlagSet, stderr io.Writer) {
	f.registryConfig.declare(fs, stderr)
	f.maxBody = defaultMaxBody
	fs.StringVar(&f.addr, "addr", "127.0.0.1:3000", "listen on `HOST:PORT`; port 0 takes a free one")
	fs.Func("allow-host", "answer requests for this host `NAME` too (repeatable)", f.addHost)
	fs.Func("allow-origin", "answer scripts of the website at this `URL` too (repeatable)", f.addOrigin)
	fs.Func("public-url", "the `URL` to print for clients, whose host is allowed", f.setPublicURL)
	fs.Func("max-body", "the largest request, as `SIZE` in bytes, KiB, MiB, GiB (default 4MiB)", f.setMaxBody)
	fs.BoolVar(&f.requireClaim, "require-claim", false, "serve MCP clients only with a valid claim code")
	fs.BoolFunc("watch", "follow changes; the default, but not with -require-claim", func(text string) error {
		watch, err := strconv.ParseBool(text)
		f.watch = &watch
		return err
	})
	fs.BoolVar(&f.open, "open", false, "serve anyone who can reach the address, all modules, without a claim")
	fs.BoolVar(&f.openWebhooks, "open-webhooks", false, "deliver webhooks of anyone who can reach the address")
	fs.BoolVar(&f.signatures, "accept-signatures", false, "let a webhook's verified @signature stand in for the secret")
	fs.DurationVar(&f.webhookTimeout, "webhook-timeout", 30*time.Second, "give a webhook's method up after `DURATION`")
	fs.IntVar(&f.webhookLimit, "webhook-limit", defaultWebhookLimit, "take at most `N` deliveries at once")
	fs.StringVar(&f.tlsCert, "tls-cert", "", "serve HTTPS with the certificate in `FILE`")
	fs.StringVar(&f.tlsKey, "tls-key", "", "and its key in `FILE`")
}

func (f *serveFlags) addHost(name string) error {
	if name == "" || strings.ContainsAny(name, "/: ") {
		return errors.New("want a host name without scheme and port, such as usher.example.com")
	}
	f.hosts = append(f.hosts, strings.ToLower(name))
	return nil
}

func (f *serveFlags) addOrigin(text string) error {
	u, err := url.Parse(text)
	if err != nil || u.Scheme == "" || u.Host == "" || u.Path != "" {
		return errors.New("want a URL without a path, such as https://example.com")
	}
	f.origins = append(f.origins, strings.ToLower(text))
	return nil
}

func (f *serveFlags) setPublicURL(text string) error {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.User != nil || strings.ContainsAny(text, "?#'\" ") {
		return errors.New("want a URL such as https://usher.example.com/")
	}
	f.publicURL = strings.TrimSuffix(text, "/") + "/"
	return f.addHost(u.Hostname())
}

func (f *serveFlags) setMaxBody(text string) error {
	number, shift := text, 0
	for unit, bits := range map[string]int{"KiB": 10, "MiB": 20, "GiB": 30} {
		if digits, ok := strings.CutSuffix(text, unit); ok {
			number, shift = digits, bits
		}
	}
	n, err := strconv.ParseUint(number, 10, 64)
	if err != nil || n == 0 || n > 1<<40>>shift {
		return errors.New("want a number of bytes, or one with KiB, MiB or GiB, such as 4MiB")
	}
	f.maxBody = int64(n) << shift
	return nil
}

// check refuses flags that make no sense, or that would let anyone in.
func (f *serveFlags) check(secret string) error {
	_, port, err := net.SplitHostPort(f.addr)
	if err != nil {
		return usageErrorf("-addr %q: want HOST:PORT, such as 127.0.0.1:3000", f.addr)
	}
	reachable := f.exposure()
	_, secretSet := os.LookupEnv(webhookSecretVar)
	switch {
	case f.webhookTimeout <= 0 || f.webhookLimit <= 0:
		return usageErrorf("-webhook-timeout and -webhook-limit: want more than zero")
	case secretSet && secret == "":
		return usageErrorf("%s is set but empty, which would leave the webhooks unguarded: give it a value or unset it", webhookSecretVar)
	case strings.TrimSpace(secret) != secret:
		return usageErrorf("%s begins or ends with white space, which no header can: take it away", webhookSecretVar)
	case reachable != "" && !f.open && !f.requireClaim:
		return usageErrorf("under %s others than this machine can reach usher, which needs %s; for this machine only: -addr 127.0.0.1:%s, without -allow-host and -public-url", reachable, mcpFlags, port)
	}
	return nil
}

// exposure is a name or address by which others than this machine can reach the
// daemon; "" where there is none.
func (f *serveFlags) exposure() string {
	host, _, _ := net.SplitHostPort(f.addr)
	for _, name := range append([]string{cmp.Or(host, "0.0.0.0")}, f.hosts...) {
		if !isLoopback(name) {
			return name
		}
	}
	return ""
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
	*app
	flags  *serveFlags
	dirs   []string // to serve, as given
	secret string   // of webhooks; "" for none

	data     string // the data folder
	log      *slog.Logger
	registry *Registry
	server   *Server
	webhooks *Webhooks
	listener net.Listener
	url      string // of the MCP endpoint, as clients reach it
}

func (d *daemon) run() (err error) {
	if err := d.flags.check(d.secret); err != nil {
		return err
	}
	if d.data, err = d.dataDir(); err != nil {
		return err
	}
	if err := claimBase(d.ctx, d.data, d.listen); err != nil {
		return err
	}
	defer func() {
		if readDaemon(d.data).PID == os.Getpid() { // and not another's, whose start a deleted record did not stop
			os.Remove(filepath.Join(d.data, recordName))
		}
	}()
	defer d.listener.Close()
	claims := openClaims(d.data, d.log)
	defer claims.Close()
	sessions, err := openSessions(d.data, d.log, time.Now)
	if err != nil {
		return err
	}
	d.flags.Frozen = d.flags.requireClaim
	if d.flags.watch != nil {
		d.flags.Frozen = !*d.flags.watch
	}
	return d.withRegistry(d.dirs, d.flags.registryConfig, func(r *Registry) error {
		d.registry = r
		if err := d.completeRecord(); err != nil {
			return err
		}
		return d.serve(d.ctx, newGate(claims, sessions, d.flags.requireClaim, d.log))
	})
}

// completeRecord adds to the daemon's record what it serves: the folders and, if it
// does not follow changes, what the modules' files contain.
func (d *daemon) completeRecord() error {
	record := readDaemon(d.data)
	record.Roots = d.registry.Roots
	record.Taken = d.registry.Taken
	return replaceFile(filepath.Join(d.data, recordName), marshal(record))
}

// listen opens the address, and returns what the record says of the daemon.
func (d *daemon) listen() (record daemonRecord, err error) {
	if d.listener, err = net.Listen("tcp", d.flags.addr); err != nil {
		return record, fmt.Errorf("listening on %s: %w; choose another address with -addr", d.flags.addr, err)
	}
	scheme := "http"
	if d.flags.tlsCert+d.flags.tlsKey != "" {
		cert, err := tls.LoadX509KeyPair(d.flags.tlsCert, d.flags.tlsKey)
		if err != nil {
			return record, fmt.Errorf("loading the certificate: %w", err)
		}
		scheme = "https"
		d.listener = tls.NewListener(d.listener, &tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: []string{"h2", "http/1.1"}})
	}
	addr := *d.listener.Addr().(*net.TCPAddr)
	if addr.IP.IsUnspecified() {
		addr.IP = net.IPv4(127, 0, 0, 1) // which clients on this machine can reach
	}
	d.url = cmp.Or(d.flags.publicURL, scheme+"://"+addr.String()+"/")
	return daemonRecord{URL: d.url, RequireClaim: d.flags.requireClaim, Secret: d.secret != "",
		WebhooksOff: d.secret == "" && d.flags.webhookAudience() == nobody}, nil
}

// serve answers until ctx ends, and then brings everything to an end: first the
// streams, then, after a while, the calls.
func (d *daemon) serve(ctx context.Context, gate *Gate) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stopped, cancelCalls := context.WithCancelCause(context.Background())
	stop := func() { cancelCalls(errStopping) }
	defer stop()
	origins := &originPolicy{hosts: d.flags.hosts, origins: d.flags.origins, mcp: thisMachine}
	if d.flags.open || d.flags.requireClaim {
		origins.mcp = anyone
	}
	bodies := newBodyReader(d.flags.maxBody)
	d.server = &Server{modules: d.registry, gate: gate, bodies: bodies, log: d.log,
		started: time.Now(), suspended: newSuspendedCalls(stopped), stopping: ctx, stopped: stopped, publicURL: d.flags.publicURL}
	d.webhooks = &Webhooks{modules: d.registry, bodies: bodies, log: d.log, getenv: d.getenv,
		secret: d.secret, audience: d.flags.webhookAudience(), acceptSignatures: d.flags.signatures, timeout: d.flags.webhookTimeout,
		slots: make(chan struct{}, d.flags.webhookLimit)}
	d.server.webhookPath = d.webhooks.pathOf
	var handlers sync.WaitGroup
	web := &http.Server{Handler: d.handler(origins, &handlers), ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout,
		MaxHeaderBytes: maxHeader, ErrorLog: slog.NewLogLogger(d.log.With("from", "net/http").Handler(), slog.LevelWarn)}
	var parts sync.WaitGroup
	parts.Go(func() { d.show(ctx) })
	d.log.Info("listening", "address", d.listener.Addr().String())
	parts.Go(func() {
		<-ctx.Done()
		late := time.AfterFunc(drainTimeout, stop) // calls under way are told
		defer late.Stop()
		last, done := context.WithTimeout(context.Background(), 2*drainTimeout)
		defer done()
		_ = web.Shutdown(last)
		web.Close()
		stop() // also calls that wait for their clients to come back
	})
	err := web.Serve(d.listener)
	cancel()
	parts.Wait()
	handlers.Wait()
	d.server.suspended.wg.Wait()
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// handler is the way of every request: an id, who may speak to the daemon at
// all, the routes.
func (d *daemon) handler(origins *originPolicy, handlers *sync.WaitGroup) http.Handler {
	mux := http.NewServeMux()
	d.server.routes(mux)
	mux.HandleFunc("/", handle(d.log, writeMCPError, func(_ http.ResponseWriter, r *http.Request) error {
		if strings.Contains(r.URL.Path, "/.well-known/o") || r.URL.Path == "/register" {
			d.log.Debug("a client looks for a login", "path", r.URL.Path)
			return loggedError{httpErrorf(http.StatusNotFound, "usher has no login: %s", howToPresent)}
		}
		return httpErrorf(http.StatusNotFound, "nothing is here: the MCP endpoint is at / and /mcp")
	}))
	hooks := handle(d.log, writeWebhookError, d.webhooks.serve)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		handlers.Add(1)
		defer handlers.Done()
		defer dropBody(w)
		w.Header().Set(requestIDHeader, newRequestID())
		isHook := isWebhook(r.URL.Path)
		switch {
		case r.URL.Path == "/healthz": // whatever the Host: probes have their own
			io.WriteString(w, "ok\n")
		case !d.admits(origins, w, r, isHook):
		case isHook:
			hooks(w, r)
		default:
			mux.ServeHTTP(w, r)
		}
	})
}

// dropBody limits the time for the rest of a body that the handler did not read: net/http
// drains the body before it replies, and would wait forever for one that never arrives.
func dropBody(w http.ResponseWriter) {
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(restTimeout))
}

// isWebhook reports whether a path is one of webhooks, or leads to one: the mux would
// redirect one with // in it before the secret was shown.
func isWebhook(at string) bool {
	return strings.HasPrefix(at, webhookPrefix) || strings.HasPrefix(path.Clean("/"+at)+"/", webhookPrefix)
}

// admits reports whether a request is let through, and answers it if not.
func (d *daemon) admits(origins *originPolicy, w http.ResponseWriter, r *http.Request, isHook bool) bool {
	err, write := origins.admit(r), writeMCPError
	switch {
	case err == nil && origins.cors(w, r):
		return false
	case isHook:
		write = writeWebhookError
	case err == nil:
		err = origins.admitMCP(r)
	}
	if err != nil {
		refuse(d.log, write, w, r, err)
	}
	return err == nil
}

// show prints, for people, where the daemon is and its modules as they become
// ready, and once all were introspected, what to try. What can't be hosted
// stands in the log.
func (d *daemon) show(ctx context.Context) {
	fmt.Fprintf(d.stdout, "usher %s serves MCP at %s\n\n", version(), d.paint(bold, d.url))
	shown, told, tryOnce := make(map[string]*Module), make(map[string]bool), sync.OnceFunc(d.printNextSteps)
	for ctx.Err() == nil {
		changed := d.registry.Changed()
		ready := d.registry.WaitAll(ctx, time.Second, scopeAll()) // asked before the modules: those may be ready by then
		if building := pendingModules(d.registry, told); building != "" && !ready {
			fmt.Fprintf(d.stdout, "  building %s…\n", building)
		}
		view := d.registry.View(scopeAll())
		for _, m := range view.Modules {
			if shown[m.Label] == m.Module {
				continue
			}
			shown[m.Label] = m.Module
			var names []string
			for _, t := range view.ToolsOf(m.Module) {
				names = append(names, t.Name)
				if _, others := view.Hook(t.HookPath()); len(others) > 0 {
					d.log.Warn("a webhook is not served, as several have its path", "tool", t.Name, "path", t.HookPath(), "several", others)
				}
			}
			tools := cmp.Or(strings.Join(names, ", "), "no tools: usher modules says more")
			fmt.Fprintf(d.stdout, "  %s   %-20s %s\n", d.paint(green, "ready"), m.Label, clipText(tools, 48))
		}
		if !ready {
			continue
		}
		tryOnce()
		select {
		case <-ctx.Done():
		case <-changed:
		}
	}
}

// pendingModules names the modules that are being introspected, but for those that
// were told before.
func pendingModules(r *Registry, told map[string]bool) string {
	var list []string
	for _, s := range r.Report() {
		if s.Pending && !told[s.Name] {
			list = append(list, sanitize(s.Name))
		}
		told[s.Name] = s.Pending
	}
	return clipText(strings.Join(list, ", "), 60)
}

// printNextSteps says what to do next.
func (d *daemon) printNextSteps() {
	root := d.registry.Roots[0]
	if len(d.registry.View(scopeAll()).Modules) == 0 {
		fmt.Fprintf(d.stdout, "  no module is ready yet; make one: usher new %q\n", filepath.Join(root, "hello.usher.go"))
	}
	connect := "Connect a client:\n  claude mcp add --transport http usher " + d.url
	if d.flags.requireClaim {
		connect = "Make a code for a client, which it has to present:\n  usher claim -scope " + strconv.Quote(root)
	}
	hooks := "Webhooks need the header " + secretHeader
	switch {
	case d.secret == "" && d.flags.webhookAudience() == nobody:
		hooks = fmt.Sprintf("Webhooks are off, because of %s: set %s\nin the environment of usher serve, or give -open-webhooks", cmp.Or(d.flags.exposure(), "-require-claim"), webhookSecretVar)
	case d.secret == "":
		hooks = "Webhooks need no secret, as " + webhookSecretVar + " is not set"
	case d.flags.signatures:
		hooks += " or a verified signature"
	}
	if d.secret == "" && d.flags.signatures {
		hooks += ".\nWithout a secret -accept-signatures has no effect"
	}
	fmt.Fprintf(d.stdout, "\n%s\n\nSee what there is, with a line to try each webhook:\n  usher modules %q\n\n%s.\n\nCtrl-C ends it. Calls and logs follow.\n\n",
		connect, root, hooks)
}

// defaultURL is where a daemon is that was not told otherwise.
const defaultURL = "http://127.0.0.1:3000/"

// recordName is the file in the data folder that says which daemon has it.
const recordName = "daemon.json"

// daemonRecord is what the file holds.
type daemonRecord struct {
	PID   int    `json:"pid"`
	Start string `json:"start"` // see processStartTime
	URL   string `json:"url"`   // where clients reach it

	Roots        []string          `json:"roots"` // the folders that it serves; nil while it starts
	RequireClaim bool              `json:"requireClaim"`
	Secret       bool              `json:"secret"`      // webhooks need one
	WebhooksOff  bool              `json:"webhooksOff"` // none is taken: see showTry
	Taken        map[string]string `json:"taken"`       // see registryConfig
}

// readDaemon reads the record of dataDir's daemon. It is zero when none runs.
func readDaemon(dataDir string) (d daemonRecord) {
	raw, err := os.ReadFile(filepath.Join(dataDir, recordName))
	if err != nil || json.Unmarshal(raw, &d) != nil || !processAlive(d.PID) || d.Start != "" && d.Start != processStartTime(d.PID) {
		return daemonRecord{}
	}
	return d
}

// claimBase makes this process the daemon of dataDir, unless one runs. listen
// opens the address, and returns what the record holds beside the process.
func claimBase(ctx context.Context, dataDir string, listen func() (daemonRecord, error)) error {
	return newWriteToken(dataDir).do(ctx, func(string) error {
		if other := readDaemon(dataDir); other.PID != 0 {
			return fmt.Errorf("another usher serves this base folder already (process %d, %s): use that one, or give this one its own with -base", other.PID, other.URL)
		}
		record, err := listen()
		if err != nil {
			return err
		}
		record.PID, record.Start = os.Getpid(), processStartTime(os.Getpid())
		return replaceFile(filepath.Join(dataDir, recordName), marshal(record))
	})
}

//go:embed help/page.html
var pageText string

// pageTemplate is read at the first request for the page: few processes ever see one.
var pageTemplate = sync.OnceValue(func() *template.Template {
	about := func(t *Item) string { return firstSentence(t.Method.description) }
	return template.Must(template.New("page").Funcs(template.FuncMap{"about": about}).Parse(pageText))
})

// pageContent is what the page for people says.
type pageContent struct {
	Refused    string // why no modules are shown; "" where they are
	View       *View  // of who asks; nil where that was refused
	Webhook    func(*Item) string
	Coded      bool // clients have to present a code
	URL, Nonce string
}

// servePage answers a browser with the modules of who asks, as any client is: by
// the same view.
func (s *Server) servePage(w http.ResponseWriter, r *http.Request) {
	refuse := func(w http.ResponseWriter, e *httpError) {
		s.writePage(w, r, e.Status, pageContent{Refused: e.Msg, Coded: true})
	}
	handle(s.log, refuse, func(w http.ResponseWriter, r *http.Request) error {
		from, give, err := s.admitGET(w, r)
		if err != nil {
			return err
		}
		defer give()
		scope, err := s.gate.Scope(from.principal)
		if err = cmp.Or(from.badCode, err); err != nil {
			return httpErrorf(http.StatusBadRequest, "%v", err)
		}
		s.modules.WaitReady(r.Context(), scope)
		s.writePage(w, r, http.StatusOK, pageContent{View: s.modules.View(scope), Webhook: s.webhookPath, Coded: from.principal != Principal{}})
		return nil
	})(w, r)
}

// writePage writes the page. It names no code, and has no script; its style is
// known by a word that nobody can guess.
func (s *Server) writePage(w http.ResponseWriter, r *http.Request, status int, p pageContent) {
	scheme := map[bool]string{true: "https://", false: "http://"}[r.TLS != nil]
	p.URL, p.Nonce = cmp.Or(s.publicURL, scheme+r.Host+"/"), rand.Text()
	var page bytes.Buffer
	_ = pageTemplate().Execute(&page, p) // into memory it can't fail
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", "default-src 'none'; style-src 'nonce-"+p.Nonce+"'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
	h.Set("Cache-Control", "no-store")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_ = writeBody(w, page.Bytes()) // a reader who is gone is no one to tell
}
