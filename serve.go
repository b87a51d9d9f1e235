// The daemon: usher serve put together out of its parts, from the flags to the
// last process ended.

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
	"strings"
	"sync"
	"time"
)

const (
	headerPatience = 10 * time.Second // for a request's headers
	restPatience   = time.Second      // for the rest of a body that was not wanted
	idleConn       = 2 * time.Minute  // a connection without a request
	drainPatience  = 5 * time.Second  // for calls under way when the daemon ends
)

// servingFlags is what serve and stdio have in common.
type servingFlags struct {
	callTimeout, idle time.Duration
	log               string
}

func declareServing(fs *flag.FlagSet) *servingFlags {
	f := &servingFlags{}
	fs.DurationVar(&f.callTimeout, "call-timeout", 5*time.Minute, "end a call after `DURATION` without an answer or progress")
	fs.DurationVar(&f.idle, "idle", time.Hour, "stop a module's process unused for `DURATION`; 0 never")
	fs.StringVar(&f.log, "log", "text", "the log's `FORM`, text or json")
	return f
}

// newLog is the daemon's log, on w.
func newLog(w io.Writer, form string) (*slog.Logger, error) {
	switch form {
	case "text":
		short := func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.String(a.Key, a.Value.Time().Format("15:04:05.000"))
			}
			return a
		}
		return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{ReplaceAttr: short})), nil
	case "json":
		return slog.New(slog.NewJSONHandler(w, nil)), nil
	}
	return nil, usageErrorf("-log %q: want text or json", form)
}

// serveFlags is the flags of serve alone.
type serveFlags struct {
	*servingFlags
	maxBody         sizeFlag
	addr            string
	hosts, origins  listFlag
	requireClaim    bool
	open            bool
	openWebhooks    bool
	webhookTimeout  time.Duration
	webhookLimit    int
	signatures      bool
	tlsCert, tlsKey string
}

func setupServe(a *app, fs *flag.FlagSet) func([]string) error {
	a.declareBase(fs)
	f := &serveFlags{servingFlags: declareServing(fs), maxBody: defaultMaxBody}
	fs.Var(&f.maxBody, "max-body", "the largest request, as `SIZE` in bytes or with KiB, MiB, GiB")
	fs.StringVar(&f.addr, "addr", "127.0.0.1:3000", "listen on `HOST:PORT`; port 0 takes a free one")
	fs.Var(&f.hosts, "allow-host", "answer requests for this host `NAME` too (repeatable)")
	fs.Var(&f.origins, "allow-origin", "answer scripts of this website too, given as its `URL` without a path (repeatable)")
	fs.BoolVar(&f.requireClaim, "require-claim", false, "serve MCP clients only with a valid claim code")
	fs.BoolVar(&f.open, "open", false, "serve anyone who can reach the address, all modules, without a claim")
	fs.BoolVar(&f.openWebhooks, "open-webhooks", false, "deliver webhooks of anyone who can reach the address")
	fs.BoolVar(&f.signatures, "accept-signatures", false, "let a webhook's verified @signature stand in for the secret")
	fs.DurationVar(&f.webhookTimeout, "webhook-timeout", 30*time.Second, "give a webhook's method up after `DURATION`")
	fs.IntVar(&f.webhookLimit, "webhook-limit", defaultWebhookLimit, "take at most `N` deliveries at once")
	fs.StringVar(&f.tlsCert, "tls-cert", "", "serve HTTPS with the certificate in `FILE`")
	fs.StringVar(&f.tlsKey, "tls-key", "", "and its key in `FILE`")
	return func(dirs []string) error {
		d := &daemon{app: a, flags: f}
		return d.run(dirs)
	}
}

// check refuses flags that make no sense, or that would let anyone in.
func (f *serveFlags) check(secret string, secretSet bool) error {
	if _, _, err := net.SplitHostPort(f.addr); err != nil {
		return usageErrorf("-addr %q: want HOST:PORT, such as 127.0.0.1:3000", f.addr)
	}
	if (f.tlsCert == "") != (f.tlsKey == "") {
		return usageErrorf("-tls-cert and -tls-key go together")
	}
	for _, origin := range f.origins {
		u, err := url.Parse(origin)
		if err != nil || u.Scheme == "" || u.Host == "" || u.Path != "" {
			return usageErrorf("-allow-origin %q: want a URL without a path, such as https://example.com", origin)
		}
	}
	for _, name := range f.hosts {
		if name == "" || strings.ContainsAny(name, "/: ") {
			return usageErrorf("-allow-host %q: want a host name without scheme and port, such as usher.example.com", name)
		}
	}
	if f.webhookTimeout <= 0 || f.webhookLimit <= 0 {
		return usageErrorf("-webhook-timeout and -webhook-limit: want more than zero")
	}
	if secretSet && secret == "" {
		return usageErrorf("%s is set but empty, which would leave the webhooks unguarded: give it a value or unset it", webhookSecretVar)
	}
	if strings.TrimSpace(secret) != secret {
		return usageErrorf("%s begins or ends with white space, which no header can: take it away", webhookSecretVar)
	}
	if reachable := f.exposure(); reachable != "" && !f.open && !f.requireClaim {
		return usageErrorf("%s makes usher reachable from elsewhere, which needs %s", reachable, mcpFlags)
	}
	return nil
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

// exposure is the flag by which others than this machine can reach the daemon,
// "" for none.
func (f *serveFlags) exposure() (reachable string) {
	host, _, _ := net.SplitHostPort(f.addr)
	if !isLoopback(host) {
		reachable = "-addr " + f.addr
	}
	for _, name := range f.hosts {
		if !isLoopback(name) {
			reachable = "-allow-host " + name
		}
	}
	return reachable
}

// daemon is one run of usher serve.
type daemon struct {
	app      *app
	flags    *serveFlags
	log      *slog.Logger
	secret   string // of webhooks; "" for none
	registry *Registry
	server   *Server
	webhooks *Webhooks
	gate     *Gate
	tls      *tls.Config // nil for plain HTTP
	url      string
}

func (d *daemon) run(dirs []string) error {
	d.secret = d.app.getenv(webhookSecretVar)
	_, set := os.LookupEnv(webhookSecretVar)
	if err := d.flags.check(d.secret, set || d.secret != ""); err != nil {
		return err
	}
	var err error
	if d.log, err = newLog(d.app.stderr, d.flags.log); err != nil {
		return err
	}
	data, err := d.app.dataDir()
	if err != nil {
		return err
	}
	record, err := claimBase(d.app.ctx, data)
	if err != nil {
		return err
	}
	defer record.release()
	listener, err := d.listen()
	if err != nil {
		return err
	}
	defer listener.Close()
	if err := record.publish(d.url); err != nil {
		return err
	}
	claims := openClaims(data, d.log)
	defer claims.Close()
	sessions, err := openSessions(data, d.log, time.Now)
	if err != nil {
		return err
	}
	defer sessions.Close()
	d.gate = newGate(claims, sessions, d.flags.requireClaim, d.log)
	d.registry, err = d.app.registry(dirs, registryConfig{Log: d.log, Patience: d.flags.callTimeout, Idle: d.flags.idle})
	if err != nil {
		return err
	}
	defer d.registry.Close()
	return d.serve(listener, newSessionStore(time.Now))
}

// listen opens the address, and finds the URL that it has.
func (d *daemon) listen() (net.Listener, error) {
	listener, err := net.Listen("tcp", d.flags.addr)
	if err != nil {
		op := (*net.OpError)(nil)
		if errors.As(err, &op) {
			err = op.Err
		}
		return nil, fmt.Errorf("listening on %s: %w; choose another address with -addr", d.flags.addr, err)
	}
	scheme := "http"
	if d.flags.tlsCert != "" {
		cert, err := tls.LoadX509KeyPair(d.flags.tlsCert, d.flags.tlsKey)
		if err != nil {
			listener.Close()
			return nil, fmt.Errorf("loading the certificate: %w", err)
		}
		scheme = "https"
		d.tls = &tls.Config{Certificates: []tls.Certificate{cert}}
	}
	d.url = scheme + "://" + shownAddr(listener.Addr().String()) + "/"
	return listener, nil
}

// shownAddr is an address that a client on this machine can use.
func shownAddr(addr string) string {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return addr
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	return net.JoinHostPort(host, port)
}

// serve answers until the context of the app ends, and then brings all to an
// end: first the streams, then, after a while, the calls.
func (d *daemon) serve(listener net.Listener, sessions *SessionStore) error {
	ctx, cancel := context.WithCancel(d.app.ctx)
	defer cancel()
	stopped, stop := context.WithCancel(context.Background())
	defer stop()
	origins, bodies := &originPolicy{mcp: d.flags.mcpAudience()}, newBodyReader(int64(d.flags.maxBody))
	for _, name := range d.flags.hosts {
		origins.hosts = append(origins.hosts, strings.ToLower(name))
	}
	for _, origin := range d.flags.origins {
		origins.origins = append(origins.origins, strings.ToLower(origin))
	}
	d.server = &Server{views: d.registry.Source(), sessions: sessions, gate: d.gate, bodies: bodies, log: d.log,
		started: time.Now(), parking: newParking(stopped, parkLife), stopping: ctx, stopped: stopped}
	d.webhooks = &Webhooks{views: d.registry.Source(), bodies: bodies, log: d.log, getenv: d.app.getenv, stopped: stopped,
		secret: d.secret, audience: d.flags.webhookAudience(), acceptSignatures: d.flags.signatures, timeout: d.flags.webhookTimeout,
		places: make(chan struct{}, d.flags.webhookLimit)}
	web := &http.Server{Handler: d.handler(origins), ReadHeaderTimeout: headerPatience, IdleTimeout: idleConn,
		MaxHeaderBytes: maxHeader, TLSConfig: d.tls, ErrorLog: slog.NewLogLogger(d.log.Handler(), slog.LevelDebug)}
	var parts sync.WaitGroup
	parts.Go(func() { d.registry.Watch(ctx) })
	parts.Go(func() { d.show(ctx) })
	parts.Go(func() { sweep(ctx, sessions) })
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
	drained := func() bool {
		patience, done := context.WithTimeout(context.Background(), drainPatience)
		defer done()
		return web.Shutdown(patience) == nil
	}
	if !drained() {
		stop() // calls under way are told
		if !drained() {
			web.Close()
		}
	}
	stop() // also calls that wait for their clients to come back
	d.server.parking.close()
	parts.Wait()
	return err
}

// sweep forgets from time to time what is kept for clients that will not come.
func sweep(ctx context.Context, sessions *SessionStore) {
	tick := time.NewTicker(replayLife / 2)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			sessions.Sweep()
		}
	}
}

// handler is the way of every request: an id, the guard, the routes.
func (d *daemon) handler(origins *originPolicy) http.Handler {
	mux := http.NewServeMux()
	d.server.routes(mux)
	mux.HandleFunc("/", handle(d.log, writeMCPError, func(_ http.ResponseWriter, r *http.Request) error {
		return httpErrorf(http.StatusNotFound, "nothing is here: the MCP endpoint is at / and /mcp")
	}))
	guarded := func(next func(http.ResponseWriter, *http.Request) error) func(http.ResponseWriter, *http.Request) error {
		return func(w http.ResponseWriter, r *http.Request) error {
			if err := origins.admit(r); err != nil {
				return err
			}
			if origins.cors(w, r) {
				return nil
			}
			return next(w, r)
		}
	}
	routed := handle(d.log, writeMCPError, guarded(func(w http.ResponseWriter, r *http.Request) error {
		if err := origins.admitMCP(r); err != nil {
			return err
		}
		mux.ServeHTTP(w, r)
		return nil
	}))
	webhooks := handle(d.log, writeWebhookError, guarded(d.webhooks.serve))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// net/http reads what is left of a body before it answers: of one that
		// does not come, for ever.
		defer func() { _ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(restPatience)) }()
		w.Header().Set(requestIDHeader, newRequestID())
		if r.URL.Path == "/healthz" { // whatever the Host: probes have their own
			io.WriteString(w, "ok\n")
			return
		}
		// Before the mux, which would redirect a path with // in it before the
		// secret was shown.
		if isWebhook(r.URL.Path) || isWebhook(path.Clean("/"+r.URL.Path)) {
			webhooks(w, r)
			return
		}
		routed(w, r)
	})
}

// isWebhook reports whether a path is one of webhooks'.
func isWebhook(path string) bool {
	return strings.HasPrefix(path, webhookPrefix) || path+"/" == webhookPrefix
}

// show prints, for people, where the daemon is and its modules as they become
// ready, and once all were looked at, what to try.
func (d *daemon) show(ctx context.Context) {
	out := d.app.stdout
	fmt.Fprintf(out, "usher %s serves MCP at %s\n\n", version(), d.url)
	shown := make(map[string]string)
	tried := false
	for {
		changed := d.registry.Changed()
		pending := d.showModules(shown)
		if !pending && !tried {
			tried = true
			d.showTry()
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
	}
}

// showModules prints the modules whose state is not what was shown last. It
// reports whether some are still being looked at.
func (d *daemon) showModules(shown map[string]string) (pending bool) {
	seen := make(map[string]bool)
	for _, m := range moduleReport(d.registry, scopeAll(), d.url, d.app.getenv) {
		key := m.Path + "\x00" + m.Name
		seen[key] = true
		state := string(marshal(m))
		pending = pending || m.pending
		if m.pending || shown[key] == state {
			continue
		}
		shown[key] = state
		fmt.Fprintln(d.app.stdout, moduleState(m))
	}
	for key := range shown {
		if !seen[key] {
			delete(shown, key)
			path, name, _ := strings.Cut(key, "\x00")
			fmt.Fprintf(d.app.stdout, "  gone    %-12s %s\n", name, path)
		}
	}
	return pending
}

// moduleState is a module on one line.
func moduleState(m moduleLine) string {
	if m.Error != "" {
		first, _, _ := strings.Cut(m.Error, "\n")
		return fmt.Sprintf("  failed  %-12s %s", cmp.Or(m.Name, filepath.Base(m.Path)), first)
	}
	var names []string
	for _, t := range m.Tools {
		names = append(names, t.Name)
	}
	if len(names) > 6 {
		names = append(names[:5], fmt.Sprintf("and %d more", len(names)-5))
	}
	return fmt.Sprintf("  ready   %-12s %s", m.Label, strings.Join(names, ", "))
}

// showTry says what to do next.
func (d *daemon) showTry() {
	out := d.app.stdout
	fmt.Fprintf(out, "\nConnect a client:\n  claude mcp add --transport http usher %s\n", d.url)
	fmt.Fprintf(out, "\nOr see what a client gets:\n  curl -s %s -H 'Content-Type: application/json' -d '%s'\n", d.url,
		`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"curl","version":"1"}}}`)
	if hook := d.firstWebhook(); hook != "" {
		fmt.Fprintf(out, "\nSend a webhook, which needs %s:\n  curl %s -H 'Content-Type: application/json' -d '{}'\n", d.guards(), hook)
	} else {
		fmt.Fprintf(out, "\nNo webhooks yet; they need %s.\n", d.guards())
	}
	fmt.Fprint(out, "\nCtrl-C ends it. Calls and logs follow.\n\n")
}

// firstWebhook is the URL of a webhook, "" where there is none.
func (d *daemon) firstWebhook() string {
	for _, m := range moduleReport(d.registry, scopeAll(), d.url, d.app.getenv) {
		for _, t := range m.Tools {
			if t.Webhook != "" {
				return t.Webhook
			}
		}
	}
	return ""
}

// guards says what a webhook needs.
func (d *daemon) guards() string {
	switch {
	case d.secret == "" && d.flags.webhookAudience() == nobody:
		return webhookSecretVar + " in the environment of usher serve, or its flag -open-webhooks: they are off, as others than this machine may reach it"
	case d.secret == "":
		return "no secret, as " + webhookSecretVar + " is not set"
	case d.flags.signatures:
		return "the header " + secretHeader + " or a verified signature"
	default:
		return "the header " + secretHeader
	}
}

// daemonRecord is {base}/.data/daemon.json: which daemon has this base folder.
type daemonRecord struct {
	PID   int    `json:"pid"`
	Birth string `json:"birth"` // see processBirth
	URL   string `json:"url"`   // "" while it starts

	path string
}

// alive reports whether the daemon of the record still runs.
func (d *daemonRecord) alive() bool {
	return processAlive(d.PID) && (d.Birth == "" || d.Birth == processBirth(d.PID))
}

// readDaemon reads the record of dataDir's daemon; nil when none runs.
func readDaemon(dataDir string) *daemonRecord {
	d := &daemonRecord{path: filepath.Join(dataDir, "daemon.json")}
	raw, err := os.ReadFile(d.path)
	if err != nil || json.Unmarshal(raw, d) != nil || !d.alive() {
		return nil
	}
	return d
}

// claimBase makes this process the daemon of dataDir, unless one runs.
func claimBase(ctx context.Context, dataDir string) (*daemonRecord, error) {
	own := &daemonRecord{PID: os.Getpid(), Birth: processBirth(os.Getpid()), path: filepath.Join(dataDir, "daemon.json")}
	err := newWriteToken(dataDir).do(ctx, func(held *heldToken) error {
		if other := readDaemon(dataDir); other != nil {
			return fmt.Errorf("another usher serves this base folder already (process %d, %s): use that one, or give this one its own with -base",
				other.PID, cmp.Or(other.URL, "starting"))
		}
		return held.replace("daemon.json", marshal(own), nil)
	})
	if err != nil {
		return nil, err
	}
	return own, nil
}

// publish writes down where the daemon can be reached.
func (d *daemonRecord) publish(url string) error {
	d.URL = url
	if err := replaceFile(d.path, marshal(d)); err != nil {
		return fmt.Errorf("writing daemon.json: %w", err)
	}
	return nil
}

// release takes the record away.
func (d *daemonRecord) release() {
	os.Remove(d.path) // a record of a dead process is as good as none
}
