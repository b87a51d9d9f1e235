// The daemon: usher serve, from its flags to the end of the last process, and its output.
//
// It starts in an order in which each step may fail without harm. The flags are checked
// first. The lock of the base folder comes before the address, the record and the approvals,
// so that a second daemon changes nothing. The record is written once the address is open, so
// that other commands print no URL that does not work. The first request is answered after the
// approvals, so that no module runs without a record of them. The claims and the modules come
// last, because their errors go to the log.
//
// It ends in the opposite order. Streams end at once, calls get some time, and the processes
// of the modules end when no handler can call them any more.

package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	restTimeout  = time.Second     // for net/http to skip the rest of an unread body
	idleTimeout  = 2 * time.Minute // for a connection without a request
	drainTimeout = 5 * time.Second // for calls in flight when the daemon stops

	// With Go's default of 100, collecting garbage takes a quarter of the CPU time.
	gcPercent = 400
	gcLimit   = 1 << 30 // bytes of memory, near which Go collects garbage more often
)

// declareRegistryFlags declares the flags that serve and stdio share. Without -log, the
// configuration has no log: each command has a default of its own, because stdio has no
// terminal.
func declareRegistryFlags(fs *flag.FlagSet, stderr io.Writer) *registryConfig {
	c := &registryConfig{Watch: true}
	fs.DurationVar(&c.CallTimeout, "call-timeout", 5*time.Minute, "")
	fs.DurationVar(&c.Idle, "idle", time.Hour, "")
	fs.Func("log", "", func(form string) error {
		switch form {
		case "text":
			c.Log = slog.New(slog.NewTextHandler(stderr, nil))
		case "json":
			c.Log = slog.New(slog.NewJSONHandler(stderr, nil))
		default:
			return errors.New("want text or json")
		}
		return nil
	})
	return c
}

// serveFlags are the flags of usher serve. They don't change once check has accepted them, so
// handlers read them without a lock.
type serveFlags struct {
	set          *flag.FlagSet // says which flags were given
	registry     *registryConfig
	addr         string
	origins      originPolicy
	publicURL    string        // ends with a slash; "" for none
	requireClaim bool          // MCP clients need a claim
	open         bool          // MCP clients on other machines need no claim
	watch        bool          // see needsApproval
	webhooks     webhookConfig // complete after check
	maxBody      int           // bytes
}

// declareServeFlags declares the flags of usher serve, except -base. Flags that are parsed by a
// function are refused at once, with the form that is wanted; check refuses what is wrong only
// in combination.
func declareServeFlags(fs *flag.FlagSet, stderr io.Writer) *serveFlags {
	f := &serveFlags{set: fs, registry: declareRegistryFlags(fs, stderr), maxBody: defaultMaxBody}
	fs.StringVar(&f.addr, "addr", "127.0.0.1:3000", "")
	fs.Func("allow-host", "", f.addHost)
	fs.Func("allow-origin", "", f.addOrigin)
	fs.Func("public-url", "", f.setPublicURL)
	fs.Func("max-body", "", f.setMaxBody)
	fs.BoolVar(&f.requireClaim, "require-claim", false, "")
	fs.BoolVar(&f.watch, "watch", true, "")
	fs.BoolVar(&f.open, "open", false, "")
	fs.BoolVar(&f.webhooks.Open, "open-webhooks", false, "")
	fs.BoolVar(&f.webhooks.AcceptSignatures, "accept-signatures", false, "")
	fs.DurationVar(&f.webhooks.timeout, "webhook-timeout", 30*time.Second, "")
	fs.BoolVar(&f.webhooks.logArguments, "log-arguments", false, "")
	return f
}

// addHost sets -allow-host. It refuses what can't be the name of a host, such as one with a port, a
// path or a *: no Host would match it, and the flag would silently allow nothing.
func (f *serveFlags) addHost(name string) error {
	name = strings.ToLower(strings.TrimSuffix(name, "."))
	if name == "" || !consistsOf(name, plainHost) && net.ParseIP(name) == nil {
		return errors.New("want only a host name, such as usher.example.com")
	}
	f.origins.hosts = append(f.origins.hosts, name)
	return nil
}

// addOrigin sets -allow-origin. Browsers send an origin without a path, so a URL with one, or with a *,
// would never match.
func (f *serveFlags) addOrigin(text string) error {
	text = strings.ToLower(text)
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.Host[0] == '*' || text != u.Scheme+"://"+u.Host {
		return errors.New("want scheme and host, such as https://example.com")
	}
	f.origins.origins = append(f.origins.origins, text)
	return nil
}

// setPublicURL sets -public-url. usher prints the URL in commands and appends paths and
// ?claim= to it, so it must contain no quotes, no query and no password.
func (f *serveFlags) setPublicURL(text string) error {
	u, err := parseURL(text)
	if err != nil || strings.ContainsAny(text, "?#@'\" ") {
		return errWantURL
	}
	f.publicURL = strings.TrimSuffix(text, "/") + "/"
	return f.addHost(u.Hostname())
}

// errWantURL refuses a flag that is no URL of HTTP.
var errWantURL = errors.New("want a URL such as https://usher.example.com/")

// parseURL parses a URL of HTTP. Its error is errWantURL.
func parseURL(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, errWantURL
	}
	return u, nil
}

// setMaxBody sets -max-body: a number of bytes, or of KiB, MiB or GiB. It accepts at most
// 1 TiB, so that sums of such sizes can't overflow: an int has 64 bits on all systems that usher is
// built for.
func (f *serveFlags) setMaxBody(text string) error {
	digits := strings.TrimRight(text, "KMGiB")
	shift, ok := map[string]int{"": 0, "KiB": 10, "MiB": 20, "GiB": 30}[text[len(digits):]]
	n, err := strconv.ParseUint(digits, 10, 64)
	if !ok || err != nil || n == 0 || n > 1<<40>>shift {
		return errors.New("want bytes, KiB, MiB or GiB, such as 4MiB")
	}
	f.maxBody = int(n) << shift
	return nil
}

// check refuses flags that make no sense together, and flags that would open the daemon
// to other machines by accident. lookupEnv looks up the secret of webhooks.
func (f *serveFlags) check(lookupEnv func(string) (string, bool)) error {
	_, port, err := net.SplitHostPort(f.addr)
	if err != nil {
		return usageErrorf("-addr %q: want HOST:PORT, such as 127.0.0.1:3000", f.addr)
	}
	// If the variable is set but empty, whoever deployed usher probably meant to set a secret;
	// without one, usher would accept deliveries from anybody on this machine. A secret with
	// white space around it would never match, because HTTP trims the values of headers.
	secret, set := lookupEnv(webhookSecretVar)
	f.webhooks.Secret = secret
	// Without a secret, only programs of this machine may deliver, and not even they if clients
	// need a claim: one without a claim could call methods by way of the webhooks.
	reachable := f.exposure()
	f.webhooks.Local = reachable == "" && !f.requireClaim
	switch {
	case set && secret == "" || strings.TrimSpace(secret) != secret:
		return usageErrorf("%s is empty or has white space around it: change or unset it",
			webhookSecretVar)
	case reachable != "" && !f.open && !f.requireClaim:
		return usageErrorf("%s makes usher reachable from other machines: add %s; "+
			"or use -addr 127.0.0.1:%s without -allow-host and -public-url",
			reachable, mcpFlags, port)
	case f.webhooks.timeout <= 0:
		return usageErrorf("-webhook-timeout: want more than 0")
	}
	return nil
}

// exposure returns a name or address by which other machines can reach the daemon, or
// "" if none can. A name of -allow-host counts: whoever allows it expects requests from
// elsewhere, through a proxy or a tunnel.
func (f *serveFlags) exposure() string {
	host, _, _ := net.SplitHostPort(f.addr)
	for _, name := range append([]string{cmp.Or(host, "0.0.0.0")}, f.origins.hosts...) {
		if !isLoopback(name) {
			return name
		}
	}
	return ""
}

// webhookPolicy returns a sentence on what senders of webhooks need. If unsigned webhooks are
// off, it names the flag or the address that is the reason: the owner may have added it for MCP only.
func (f *serveFlags) webhookPolicy() string {
	return formatText("webhooks", struct {
		webhookConfig
		Why string
	}{f.webhooks, cmp.Or(f.exposure(), "-require-claim")})
}

// needsApproval reports whether only approved modules run. By default, -require-claim decides:
// it is for daemons whose clients are not trusted with everything, and such a client could
// have a tool write a module.
func (f *serveFlags) needsApproval() bool {
	needs := f.requireClaim
	f.set.Visit(func(given *flag.Flag) {
		if given.Name == "watch" {
			needs = !f.watch
		}
	})
	return needs
}

// daemon is one run of usher serve.
type daemon struct {
	app   *app
	flags *serveFlags
	log   *slog.Logger
	out   io.Writer // for text that people read while the daemon runs; discards it without a terminal

	bannerShown atomic.Bool // the banner shows the modules

	record   daemonRecord
	listener net.Listener
	registry *Registry
	server   *Server
	webhooks *Webhooks
	handlers sync.RWMutex // read-locked by each request; locked for good when the daemon ends
}

// serve runs a daemon for the modules under dirs until ctx ends.
func serve(ctx context.Context, a *app, flags *serveFlags, dirs []string) error {
	if err := flags.check(a.lookupEnv); err != nil {
		return err
	}
	roots, err := absoluteDirs(dirs)
	if err != nil {
		return err
	}
	d := &daemon{app: a, flags: flags, out: io.Discard}
	config := flags.registry
	if config.Log == nil {
		config.Log = d.openLog()
	}
	d.log = config.Log
	lock, err := d.lockBase()
	if err != nil {
		return err
	}
	defer lock.Close() // last: the lock says that a daemon runs
	if err := d.announce(roots); err != nil {
		return err
	}
	defer d.listener.Close()
	defer os.Remove(a.dataFile(recordName))
	if flags.needsApproval() {
		config.Approved = a.dataFile(approvedName)
		if err := d.approveFirst(ctx, roots); err != nil {
			return err
		}
	}
	a.claims.log = d.log
	key, err := readSessionKey(a.data)
	if err != nil {
		return err
	}
	err = a.withRegistry(roots, *config, func(r *Registry) error {
		d.registry = r
		return d.serve(ctx, newGate(a.claims, key, flags.requireClaim, d.log))
	})
	d.log.Info("stopped", "why", cmp.Or(err, context.Cause(ctx)))
	return err
}

// lockBase makes this process the daemon of its base folder, until the lock is closed. The
// system releases the lock however the process ends, so a crash leaves nothing to clean up.
// lockBase waits a little, as readDaemon takes the lock for an instant.
func (d *daemon) lockBase() (lock *os.File, err error) {
	for range 100 {
		lock, err = lockFile(d.app.dataFile(lockName))
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return lock, err
		}
		time.Sleep(10 * time.Millisecond)
	}
	return nil, fmt.Errorf("another usher uses this folder (%s): stop it or set -base",
		d.app.readDaemon().URL)
}

// approveFirst approves the modules below the dirs that have no record of approved modules:
// whoever starts usher there for the first time wants the modules to run. A folder with a
// record gets no new approvals, so neither a crash nor a reboot lets a planted file run.
func (d *daemon) approveFirst(ctx context.Context, roots []string) error {
	list, err := readApprovals(d.flags.registry.Approved)
	if err != nil {
		return err
	}
	var fresh, adopting []string
	for _, root := range roots {
		_, known := list.adopt(root)
		switch {
		case list[root] != nil:
		case known: // by another path; from now on, the record is also under this one
			adopting = append(adopting, root)
		default:
			fresh = append(fresh, root)
		}
	}
	if adopting != nil {
		_, err = approve(ctx, d.app.data, roots, adopting, nil)
	}
	if err != nil || fresh == nil {
		return err
	}
	changed, err := approve(ctx, d.app.data, roots, fresh, roots)
	if err == nil {
		d.log.Warn("approved all modules; later changes need usher approve",
			"below", strings.Join(fresh, ", "), "modules", len(changed))
	}
	return err
}

// announce opens the address, and writes the daemon's record for the other commands. The
// record contains what they need to print commands that work, and to decide as the daemon
// does. It contains no secret.
func (d *daemon) announce(roots []string) error {
	var err error
	d.listener, err = net.Listen("tcp", d.flags.addr)
	if err != nil {
		return fmt.Errorf("%w; choose another -addr", err)
	}
	addr := *d.listener.Addr().(*net.TCPAddr)
	if addr.IP.IsUnspecified() {
		// The URL is for commands on this machine. Which address others can use, only the owner
		// knows, and can say with -public-url.
		addr.IP = net.IPv4(127, 0, 0, 1)
	}
	d.record = daemonRecord{
		URL:             cmp.Or(d.flags.publicURL, "http://"+addr.String()+"/"),
		Roots:           roots,
		RequireClaim:    d.flags.requireClaim,
		RequireApproval: d.flags.needsApproval(),
	}
	os.Remove(d.app.dataFile(reportName)) // of an earlier daemon
	if err := replaceFile(d.app.dataFile(recordName), marshal(d.record)); err != nil {
		return err
	}
	d.log.Info("listening", "version", version(), "address", d.listener.Addr().String(), "url", d.record.URL,
		"webhooks", d.flags.webhookPolicy())
	return nil
}

// serve answers requests until ctx ends. Then it ends the streams at once, waits for
// calls in flight, and cancels them after drainTimeout. Two contexts separate the two: ctx
// ends what could go on forever, and stopped ends the calls.
func (d *daemon) serve(ctx context.Context, gate *Gate) error {
	debug.SetGCPercent(gcPercent)
	debug.SetMemoryLimit(gcLimit)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stopped, cancelCalls := context.WithCancelCause(context.Background())
	d.webhooks = &Webhooks{
		webhookConfig: d.flags.webhooks,
		modules:       d.registry,
		log:           d.log,
		stopped:       stopped,
		getenv:        d.app.getenv,
		inFlight:      counter{perKey: maxInFlight},
	}
	d.server = newServer(serverConfig{
		modules:      d.registry,
		gate:         gate,
		memory:       newMemory(d.flags.maxBody, strangers),
		log:          d.log,
		logArguments: d.flags.webhooks.logArguments,
		stopping:     ctx,
		stopped:      stopped,
	})
	// net/http's own limits end what usher can't see: slow headers and idle connections. The
	// time for a body or an answer depends on the request, so usher sets those deadlines.
	web := &http.Server{
		Handler:        d,
		ReadTimeout:    bodyTimeout, // for headers and body
		IdleTimeout:    idleTimeout,
		MaxHeaderBytes: maxHeader,
		ErrorLog:       slog.NewLogLogger(d.log.With("from", "net/http").Handler(), slog.LevelWarn),
	}
	limitConnections(web, openFilesLimit())
	// Everything that runs beside the requests ends with ctx and is waited for below, so that
	// nothing uses the registry or the claims after serve has returned.
	var parts sync.WaitGroup
	parts.Go(func() { gate.claims.Watch(ctx) })
	parts.Go(func() { d.followModules(ctx) })
	parts.Go(func() {
		<-ctx.Done()
		shutDown(web, func() { cancelCalls(errStopping) })
	})
	// Serve also returns if the listener fails; the other parts must then end, too.
	err := web.Serve(d.listener)
	cancel()
	parts.Wait()
	d.handlers.Lock() // waits for handlers of requests that Close has cut off; later requests fail
	d.server.suspended.running.Wait()
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// shutDown stops a server without losing the answers of calls that end soon. It closes the
// connections when they become idle, and the others after twice drainTimeout. stop cancels the
// calls in flight, after drainTimeout at the latest, also those without a connection, which wait
// for their clients to return.
func shutDown(web *http.Server, stop func()) {
	// Shutdown alone would wait for the slowest call, and stop alone would fail them all.
	for range 2 {
		ctx, cancel := context.WithTimeout(context.Background(), drainTimeout)
		_ = web.Shutdown(ctx) // after a timeout, Close ends the rest
		cancel()
		stop()
	}
	web.Close()
}

// ServeHTTP gives a request an id and answers it. The id is in the log and in the answer, so
// that a client can tell the owner which request failed. Each endpoint has its own format for
// errors, and refusals before the routing have it too.
func (d *daemon) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	// net/http may begin a last request after the server was closed. Its modules are gone.
	if !d.handlers.TryRLock() {
		panic(http.ErrAbortHandler)
	}
	defer d.handlers.RUnlock()
	w.Header().Set(requestIDHeader, rand.Text())
	w.Header().Set("X-Content-Type-Options", "nosniff") // texts of modules and senders are not HTML
	x := d.server.memory.serve(w, r)
	defer func() { // net/http skips the rest of the body, and writes the rest of the answer
		if r.Body != http.NoBody {
			_ = x.control.SetReadDeadline(time.Now().Add(restTimeout))
		}
		_ = x.control.SetWriteDeadline(time.Now().Add(writeTimeout))
		x.end()
	}()
	x.refuse = writeMCPError
	if likeHookPath.MatchString(r.URL.Path) {
		x.refuse = writeWebhookError
	}
	x.handle(d.log, func() error { return d.route(x) })
}

// route applies the origin policy and routes a request.
//
// The policy comes before everything that reads files or finds modules, because a website can
// make a browser send requests. Webhooks come before the check for proxies, because they have
// one of their own: a sender with the secret may come through a proxy.
func (d *daemon) route(x *reservation) error {
	r := x.req
	if r.URL.Path == "/healthz" { // for any Host: probes send names of their own
		x.write(http.StatusOK, "text/plain", []byte("ok\n"))
		return nil
	}
	if err := d.flags.origins.admit(r); err != nil || d.flags.origins.cors(x.w, r) {
		return err
	}
	path := strings.TrimSuffix(r.URL.Path, "/") // -public-url ends with a slash
	switch {
	case likeHookPath.MatchString(r.URL.Path):
		return d.webhooks.serve(x)
	case !d.flags.open && !d.flags.requireClaim && isProxied(r):
		return httpErrorf(http.StatusBadRequest,
			"this request came through a proxy: start usher serve with %s", mcpFlags)
	case r.Method == http.MethodGet && accepts(r.Header, "text/html"):
		return d.servePage(x) // at any path, as people mistype addresses
	case path != "" && path != "/mcp":
		// This is not logged: clients that look for a login send several requests.
		writeMCPError(x, httpErrorf(http.StatusNotFound,
			"not found: the MCP endpoint is at / and /mcp; usher has no login: %s", howToPresent))
		return nil
	}
	return d.server.serve(x)
}

// openLog opens the log of a daemon without -log. On a terminal it consists of lines for
// people, elsewhere of records, which systemd and containers collect from stderr.
func (d *daemon) openLog() *slog.Logger {
	// Stdout decides, because the banner goes there: a service has no banner and no lines.
	if !isTerminal(d.app.stdout) {
		return slog.New(slog.NewTextHandler(d.app.stderr, nil))
	}
	d.out = d.app.stdout
	return newRecordLog(d.showRecord)
}

// showRecord prints a record of the log as a line, with a mark if it is a warning or an error. It
// leaves out what the banner will show: before the banner, showRecord prints only warnings and
// errors, except those about modules. The line is sanitized, because any value may be a client's or
// a module's, and quoted as slog does it.
func (d *daemon) showRecord(record object) {
	early := record.text("level") == "INFO" || record.get("file") != nil
	if early && !d.bannerShown.Load() {
		return
	}
	mark := "   "
	if record.text("level") != "INFO" {
		mark = " ! "
	}
	line := time.Now().Format(time.TimeOnly) + mark + sanitize(record.text("msg"))
	for _, m := range record.without("time", "level", "msg") {
		value := sanitize(record.text(m.key))
		if value == "" || strings.ContainsAny(value, ` "=`) {
			value = strconv.Quote(value)
		}
		line += "  " + m.key + "=" + value
	}
	fmt.Fprintln(d.out, line)
}

// warnOfNotes logs what a report notes of modules as warnings, unless noted contains it, and adds it
// to noted.
func (d *daemon) warnOfNotes(modules []moduleReport, noted map[string]bool) {
	for _, m := range modules {
		for _, note := range m.Problems {
			key := m.Path + note
			if !noted[key] {
				noted[key] = true
				d.log.Warn("module note", "module", cmp.Or(m.Label, m.Name), "file", m.Path, "note", note)
			}
		}
	}
}

// followModules writes report.json and prints the banner, both delayed while modules are not
// ready, as long as clients wait for them. Then it writes each new report until ctx ends.
// Later banners would be noise: the log says what changes. A report that can't be written is
// no reason to stop, because only usher modules reads it.
func (d *daemon) followModules(ctx context.Context) {
	fmt.Fprintf(d.out, "usher %s serves MCP at %s\n\n", version(), d.record.URL)
	logReady := sync.OnceFunc(func() { d.log.Info("modules are ready", "url", d.record.URL) })
	noted := make(map[string]bool)
	for timeout := startupTime; ; timeout = time.Second {
		settled := d.registry.WaitAll(ctx, timeout, scopeAll())
		if ctx.Err() != nil {
			return
		}
		// Before the report: a change during the report then leads to another one.
		changed := d.registry.Changed()
		isFirst := !d.bannerShown.Load()
		if !settled { // from now on, records show what the banner may miss
			d.bannerShown.Store(true)
		}
		modules := d.app.report(d.registry, scopeAll())
		d.warnOfNotes(modules, noted)
		if err := replaceFile(d.app.dataFile(reportName), marshal(modules)); err != nil {
			d.log.Warn("the report was not written", "err", err)
		}
		if settled {
			logReady() // not shown before the banner
		}
		d.bannerShown.Store(true)
		if isFirst {
			fmt.Fprint(d.out, formatText("banner", map[string]any{
				"Modules":  modules,
				"Base":     d.app.base,
				"Record":   d.record,
				"Webhooks": d.flags.webhookPolicy(),
			}))
		}
		if settled { // else modules may have become ready since WaitAll has returned
			_ = waitFor(ctx, changed)
		}
	}
}
