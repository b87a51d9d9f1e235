// How tests start usher: the daemon with its options, its claims and its webhooks.

package main

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// testDaemon is a usher serve that a test talks to.
type testDaemon struct {
	URL    string
	Base   string
	Dir    string  // of its modules
	Out    *output // stdout
	Log    *output // stderr
	cmd    *exec.Cmd
	cancel context.CancelFunc
	done   chan struct{} // closed when it has ended
	status int           // how it ended
}

// daemonOptions say how a daemon runs. The zero value is a daemon in this process,
// where the race detector sees it, with a base folder of its own and no environment.
type daemonOptions struct {
	base       string
	env        map[string]string // of the daemon; in this process, modules have the test's instead
	ownProcess bool              // for tests that kill it, or look at processes; env adds to the test's
	shell      string            // a command of sh that runs before it, in its own process
	log        io.Writer         // gets its log, except the beginning, which is in Log
	terminal   *os.File          // its stdout and stderr, instead of Out and Log
}

// startDaemon runs usher serve in this process, and waits until it listens. It ends
// with the test.
func startDaemon(t *testing.T, dir string, flags ...string) *testDaemon {
	t.Helper()
	return daemonOptions{}.start(t, dir, flags...)
}

func (o daemonOptions) start(t *testing.T, dir string, flags ...string) *testDaemon {
	t.Helper()
	d := o.launch(t, dir, flags...)
	d.Log.await(t, "the daemon's address", d.done, func(text string) bool {
		if url := listening.FindStringSubmatch(text); url != nil {
			d.URL = url[1]
		}
		return d.URL != ""
	})
	if d.URL == "" {
		t.Fatalf("the daemon ended with status %d: %s", d.wait(t), d.Log)
	}
	return d
}

// startReady is start, and waits until the daemon has looked at its modules.
func (o daemonOptions) startReady(t *testing.T, dir string, flags ...string) *testDaemon {
	t.Helper()
	d := o.start(t, dir, flags...)
	d.awaitReady(t)
	return d
}

// startTools is startReady for a workspace with a module, m, that has these tools.
func (o daemonOptions) startTools(t *testing.T, flags string, tools ...string) *testDaemon {
	t.Helper()
	dir := t.TempDir()
	writeTools(t, dir+"/m.usher", tools...)
	return o.startReady(t, dir, strings.Fields(flags)...)
}

// listening matches the record with a daemon's address.
var listening = regexp.MustCompile(`listening.*url[=":]+([^"\s]+)`)

// startFakes runs a daemon with fakes, each written "NAME: TRAITS", and waits until it has
// looked at them. One may have the trait shared, written first: see writeShared.
func startFakes(t *testing.T, fakes ...string) *testDaemon {
	t.Helper()
	dir := tempDir(t)
	writeFakes(t, dir, fakes...)
	return daemonOptions{}.startReady(t, dir)
}

// writeFakes writes fakes into a folder, each written "NAME: TRAITS".
func writeFakes(t *testing.T, dir string, fakes ...string) {
	t.Helper()
	for _, fake := range fakes {
		name, traits, _ := strings.Cut(fake, ": ")
		if rest, shared := strings.CutPrefix(traits, "shared "); shared {
			writeShared(t, dir, name, rest)
		} else {
			writeFake(t, dir+"/"+name+".usher", traits)
		}
	}
}

// launch is start without waiting.
func (o daemonOptions) launch(t *testing.T, dir string, flags ...string) *testDaemon {
	t.Helper()
	d := &testDaemon{
		Base: o.base,
		Dir:  dir,
		Out:  &output{},
		Log:  &output{},
		done: make(chan struct{}),
	}
	if d.Base == "" {
		d.Base = t.TempDir()
	}
	d.Log.rest = o.log
	args := slices.Concat([]string{"serve", "-addr", "127.0.0.1:0", "-base", d.Base},
		flags, []string{dir})
	if o.ownProcess {
		o.startProcess(t, d, args)
	} else {
		ctx, cancel := context.WithCancel(context.Background())
		d.cancel = cancel
		var out, log io.Writer = d.Out, d.Log
		if o.terminal != nil {
			out = o.terminal
			log = o.terminal
		}
		go func() {
			d.status = run(ctx, args, strings.NewReader(""), out, log, lookupIn(o.env))
			close(d.done)
		}()
	}
	t.Cleanup(func() { d.stop(t) })
	return d
}

func (o daemonOptions) startProcess(t *testing.T, d *testDaemon, args []string) {
	t.Helper()
	exe := testBinary(t)
	d.cmd = exec.Command(exe, args...)
	if o.shell != "" {
		d.cmd = exec.Command("sh",
			append([]string{"-c", o.shell + `; exec "$0" "$@"`, exe}, args...)...)
	}
	d.cmd.Env = append(os.Environ(), runAsUsher+"=1")
	for name, value := range o.env {
		d.cmd.Env = append(d.cmd.Env, name+"="+value)
	}
	d.cmd.Stdout, d.cmd.Stderr = d.Out, d.Log
	must(t, d.cmd.Start())
	d.cancel = func() { d.cmd.Process.Signal(os.Interrupt) }
	go func() {
		d.cmd.Wait()
		d.status = d.cmd.ProcessState.ExitCode()
		close(d.done)
	}()
}

// lookupIn returns a lookup in an environment.
func lookupIn(env map[string]string) func(name string) (string, bool) {
	return func(name string) (string, bool) {
		value, set := env[name]
		return value, set
	}
}

// awaitReady waits until the daemon has looked at all modules, or has ended.
func (d *testDaemon) awaitReady(t *testing.T) {
	t.Helper()
	d.Log.await(t, "the daemon to have looked at its modules", d.done, func(text string) bool {
		return strings.Contains(text, "modules are ready")
	})
}

// awaitLog waits until the log has a text.
func (d *testDaemon) awaitLog(t *testing.T, text string) {
	t.Helper()
	d.Log.await(t, text+" in the log", nil, func(log string) bool {
		return strings.Contains(log, text)
	})
}

// logged returns how often the log has a text.
func (d *testDaemon) logged(text string) int { return strings.Count(d.Log.String(), text) }

// stop ends the daemon, which may have ended before, and returns its status.
func (d *testDaemon) stop(t *testing.T) int {
	t.Helper()
	d.cancel()
	return d.wait(t)
}

// signal sends a signal to the daemon's own process, and returns its status.
func (d *testDaemon) signal(t *testing.T, s os.Signal) int {
	t.Helper()
	must(t, d.cmd.Process.Signal(s))
	return d.wait(t)
}

// wait returns the status with which the daemon ends.
func (d *testDaemon) wait(t *testing.T) int {
	t.Helper()
	select {
	case <-d.done:
		return d.status
	case <-time.After(patience):
		t.Errorf("the daemon did not end; its log:\n%s", d.Log)
		return -1
	}
}

// modulesOf returns what usher modules prints.
func modulesOf(t *testing.T, dir string) string {
	t.Helper()
	out, errs, code := usher(t, "modules", dir)
	check(t, "status of usher modules: "+errs, code, 0)
	return out
}

// openStore opens the claim store of a daemon's base folder.
func openStore(t *testing.T, base string) *ClaimStore {
	t.Helper()
	return testStore(t, base+"/.data")
}

func newClaimFor(t *testing.T, base, dir string) Claim {
	t.Helper()
	c, err := openStore(t, base).Create(t.Context(), dir, "test", time.Hour)
	must(t, err)
	return c
}

// newCode creates a claim for a folder and returns its code.
func newCode(t *testing.T, base, dir string) string {
	t.Helper()
	return newClaimFor(t, base, dir).Code.Reveal()
}

// revoke revokes a claim of a base folder.
func revoke(t *testing.T, base string, code Code) {
	t.Helper()
	_, err := openStore(t, base).Revoke(t.Context(), code)
	must(t, err)
}

// twoProjects writes a workspace of two projects with a module each, and a third folder
// whose name begins with the first's.
func twoProjects(t *testing.T) string {
	t.Helper()
	dir := tempDir(t)
	writeFakes(t, dir, "proj/a: good tools=x,sleep,pid", "other/b: good tools=x", "projX/c: good tools=x")
	return dir
}

var (
	allTools  = strings.Fields(seesAll)
	projTools = strings.Fields(seesProj)
)

const testSecret = "s3cret-7c1f"

var guarded = map[string]string{webhookSecretVar: testSecret}

// shown is the header with the secret.
const shown = secretHeader + ": " + testSecret

// hookClient follows no redirect: there must be none.
var hookClient = &http.Client{
	Timeout: 2 * patience,
	CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse
	},
}

// hookRequest returns a request to a path below /webhook/. Headers are "Name: value".
// There is no content type unless one is given.
func (d *testDaemon) hookRequest(method, path, body string, headers ...string) (*http.Request, error) {
	req, err := http.NewRequest(method, d.URL+"webhook/"+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header = headerOf(headers...)
	req.Host = req.Header.Get("Host") // if it is empty, net/http takes the URL's
	return req, nil
}

// send sends a delivery.
func (d *testDaemon) send(t *testing.T, method, path, body string, headers ...string) answer {
	t.Helper()
	req, err := d.hookRequest(method, path, body, headers...)
	must(t, err)
	res, err := hookClient.Do(req)
	must(t, err)
	return readAnswer(t, res)
}

func readAnswer(t *testing.T, res *http.Response) answer {
	t.Helper()
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	must(t, err)
	return answer{Status: res.StatusCode, Header: res.Header, Body: string(text)}
}

// deliver posts a JSON body.
func (d *testDaemon) deliver(t *testing.T, path, body string, headers ...string) answer {
	t.Helper()
	return d.send(t, "POST", path, body,
		append([]string{"Content-Type: application/json"}, headers...)...)
}

// address returns the host and port at which the daemon listens.
func (d *testDaemon) address() string {
	return strings.Trim(strings.TrimPrefix(d.URL, "http:"), "/")
}

// raw sends bytes unchanged and reads the answer.
func (d *testDaemon) raw(t *testing.T, request string) answer {
	t.Helper()
	conn, err := net.Dial("tcp", d.address())
	must(t, err)
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(bodyTimeout + patience))
	io.WriteString(conn, request)
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Errorf("%.120q: %v", request, err)
		return answer{}
	}
	return readAnswer(t, res)
}

// checkError checks an answer that is an error: its status, its form, its headers.
func checkError(t *testing.T, what string, a answer, status int) {
	t.Helper()
	wantStatus(t, what, a, status)
	if a.Status != status {
		return
	}
	check(t, what+": the body has an error",
		stringField(a.Body, "error") != "", true)
	checkContains(t, what+": Content-Type", a.Header.Get("Content-Type"), "application/json")
	checkHeaders(t, what, a)
}

// checkHeaders checks the headers that every answer to a delivery has.
func checkHeaders(t *testing.T, what string, a answer) {
	t.Helper()
	check(t, what+": X-Content-Type-Options", a.Header.Get("X-Content-Type-Options"), "nosniff")
	check(t, what+": it has a request id", a.Header.Get(requestIDHeader) != "", true)
}

// runs returns how often a module's tool was called.
func (d *testDaemon) runs(t *testing.T, module, tool string) int {
	t.Helper()
	a := d.deliver(t, module+"/handleRuns", `{}`, shown)
	n, _ := strconv.Atoi(string(field(a.Body, tool)))
	return n
}

// What lists of tools contain: in all of twoProjects, in its folders, or what a
// request gets that is refused.
const (
	seesAll   = "a_pid a_sleep a_x b_x c_x"
	seesProj  = "a_pid a_sleep a_x"
	seesOther = "b_x"
	seesNone  = ""
)

// projects is a daemon over twoProjects, which has looked at its modules.
type projects struct {
	*testDaemon
	t       *testing.T
	options daemonOptions
	dir     string
}

func startProjects(t *testing.T, flags ...string) *projects {
	t.Helper()
	return daemonOptions{}.startProjects(t, flags...)
}

func (o daemonOptions) startProjects(t *testing.T, flags ...string) *projects {
	t.Helper()
	o.base = t.TempDir()
	p := &projects{t: t, options: o, dir: twoProjects(t)}
	p.testDaemon = o.startReady(t, p.dir, flags...)
	return p
}

// restart stops the daemon and starts it again; clients of it go on.
func (p *projects) restart(flags string, clients ...*testClient) {
	p.t.Helper()
	p.stop(p.t)
	p.testDaemon = p.options.startReady(p.t, p.dir, strings.Fields(flags)...)
	for _, c := range clients {
		c.URL = p.URL
	}
}

// code makes a claim for a folder, and returns its code.
func (p *projects) code(folder string) string {
	p.t.Helper()
	return newCode(p.t, p.Base, p.dir+folder)
}

func (p *projects) revoke(code string) {
	p.t.Helper()
	revoke(p.t, p.Base, Code(code))
}

// session begins a session by a request that present changes.
func (p *projects) session(present ...presenter) *testClient {
	p.t.Helper()
	c, _ := openSession(p.t, p.URL, present...)
	return c
}

// checkSees checks what a request of a session that present changes lists.
func checkSees(t *testing.T, what string, c *testClient, want string, present ...presenter) {
	t.Helper()
	check(t, what, listTools(c, present...), want)
}

// fakeClient is a client of a daemon.
type fakeClient struct {
	*testClient
	daemon *testDaemon
}

// oneFake serves a workspace with one module, "a", that is a good fake.
func oneFake(t *testing.T, flags ...string) fakeClient {
	t.Helper()
	dir := t.TempDir()
	writeFake(t, dir+"/a.usher", "good")
	d := startDaemon(t, dir, flags...)
	return fakeClient{connect(t, d.URL), d}
}
