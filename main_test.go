// What all tests share: the test binary that is usher and its modules too, a
// daemon to talk to, and a client that talks.

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// The test binary is run again as usher, and as the module that a fake's name
// says, so that tests need no other program.
const (
	runAsUsher = "USHER_TEST_RUN"
	runAsFake  = "USHER_TEST_FAKE"
)

func TestMain(m *testing.M) {
	if fake := os.Getenv(runAsFake); fake != "" {
		os.Exit(runFake(fake))
	}
	// What os/signal starts once, and never ends, is there before goroutines are
	// counted.
	_, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	stop()
	// A program with the race detector sleeps a second at its end; those that
	// the tests start need not.
	if os.Getenv("GORACE") == "" {
		os.Setenv("GORACE", "atexit_sleep_ms=0")
	}
	if os.Getenv(runAsUsher) != "" || len(os.Args) > 1 && (os.Args[1] == reaperCommand || os.Args[1] == shellCommand) {
		main()
	}
	// Tests wait for processes and clocks more than they compute: on few cores
	// more of them than cores can run at once.
	flag.Parse()
	if f := flag.Lookup("test.parallel"); f.Value.String() == f.DefValue && runtime.GOMAXPROCS(0) < 8 {
		f.Value.Set("8")
	}
	os.Exit(m.Run())
}

// slow marks a test that takes long; CI sets the variable.
func slow(t *testing.T) {
	t.Helper()
	if os.Getenv("USHER_SLOW") == "" {
		t.Skip("slow: set USHER_SLOW=1 to run it")
	}
}

// patience is how long anything in a test may take before it has failed.
const patience = 30 * time.Second

// await waits for what can only be looked at, not waited for.
func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("gave up waiting: %s", what)
		}
	}
}

// write makes a file, and the folders above it.
func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	// A process that another test starts meanwhile would hold the file open for
	// writing, and such a file can't be run: "text file busy".
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// writeFake makes the module file of a fake: a script that runs this binary.
// The file is replaced at once, as editors do.
func writeFake(t *testing.T, path, fake string) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	write(t, path+".new", fmt.Sprintf("#!/bin/sh\n%s='%s' exec '%s'\n", runAsFake, fake, exe))
	if err := os.Chmod(path+".new", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

// output is a writer that can be read while it is written to.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// testDaemon is a usher serve that a test talks to.
type testDaemon struct {
	URL    string
	Base   string
	Out    *output // stdout
	Log    *output // stderr
	cmd    *exec.Cmd
	cancel context.CancelFunc
	exit   chan int // 1-buffered
}

// serveArgs is the command line of a daemon on a free port.
func serveArgs(base, dir string, flags []string) []string {
	return append(append([]string{"serve", "-addr", "127.0.0.1:0", "-base", base}, flags...), dir)
}

// serveHere runs usher serve in this process, so that the race detector sees
// it. It ends with the test.
func serveHere(t *testing.T, dir string, flags ...string) *testDaemon {
	t.Helper()
	return serveHereOn(t, t.TempDir(), dir, flags...)
}

func serveHereOn(t *testing.T, base, dir string, flags ...string) *testDaemon {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	d := &testDaemon{Base: base, Out: &output{}, Log: &output{}, cancel: cancel, exit: make(chan int, 1)}
	go func() {
		d.exit <- run(ctx, serveArgs(base, dir, flags), strings.NewReader(""), d.Out, d.Log, noEnv)
	}()
	t.Cleanup(func() { d.stop(t) })
	d.awaitURL(t)
	return d
}

func noEnv(string) string { return "" }

// serveApart runs usher serve as a process of its own, for tests that kill it.
func serveApart(t *testing.T, base, dir string, flags ...string) *testDaemon {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	d := &testDaemon{Base: base, Out: &output{}, Log: &output{}, exit: make(chan int, 1)}
	d.cmd = exec.Command(exe, serveArgs(base, dir, flags)...)
	d.cmd.Env = append(os.Environ(), runAsUsher+"=1")
	d.cmd.Stdout, d.cmd.Stderr = d.Out, d.Log
	if err := d.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		d.cmd.Wait()
		d.exit <- d.cmd.ProcessState.ExitCode()
	}()
	d.cancel = func() { d.cmd.Process.Signal(os.Interrupt) }
	t.Cleanup(func() { d.stop(t) })
	d.awaitURL(t)
	return d
}

// awaitURL waits until the daemon says where it is.
func (d *testDaemon) awaitURL(t *testing.T) {
	t.Helper()
	await(t, "the daemon's address; it said: "+d.Log.String(), func() bool {
		select {
		case code := <-d.exit:
			d.exit <- code
			t.Fatalf("the daemon ended with status %d: %s", code, d.Log.String())
		default:
		}
		_, rest, ok := strings.Cut(d.Out.String(), " serves MCP at ")
		d.URL, _, _ = strings.Cut(rest, "\n")
		return ok && strings.Contains(rest, "\n")
	})
}

// stop ends the daemon, which may have ended before, and returns its status.
func (d *testDaemon) stop(t *testing.T) int {
	t.Helper()
	d.cancel()
	select {
	case code := <-d.exit:
		d.exit <- code
		return code
	case <-time.After(patience):
		t.Errorf("the daemon did not end; its log:\n%s", d.Log.String())
		return -1
	}
}

// testClient is an MCP client in one session.
type testClient struct {
	t       *testing.T
	URL     string
	Session string
	Header  http.Header // sent with each request
	http    *http.Client
	daemon  *testDaemon // where a test needs it
	mu      sync.Mutex
	id      int
}

// connect begins a session.
func connect(t *testing.T, url string) *testClient {
	t.Helper()
	c := &testClient{t: t, URL: url, Header: http.Header{}, http: &http.Client{Timeout: 2 * patience}}
	res := c.post(fmt.Sprintf(`{"jsonrpc":"2.0","id":"init","method":"initialize","params":{"protocolVersion":%q,"capabilities":{},"clientInfo":{"name":"test","version":"1"}}}`, protocols[0]))
	if res.Status != http.StatusOK {
		t.Fatalf("initialize: %d %s", res.Status, res.Body)
	}
	c.Session = res.Header.Get(sessionHeader)
	if res := c.post(`{"jsonrpc":"2.0","method":"notifications/initialized"}`); res.Status != http.StatusAccepted {
		t.Fatalf("initialized: %d %s", res.Status, res.Body)
	}
	return c
}

// answer is what came back for a POST.
type answer struct {
	Status int
	Header http.Header
	Body   string
	Events []json.RawMessage // the messages, for a stream; the one, for JSON
}

// last is the message that answers: the last one.
func (a answer) last() json.RawMessage {
	if len(a.Events) == 0 {
		return nil
	}
	return a.Events[len(a.Events)-1]
}

// result is the result of the answer, nil for none.
func (a answer) result() json.RawMessage { return field(a.last(), "result") }

// failure is the message of a JSON-RPC error, or of a result that is one.
func (a answer) failure() string {
	if e := field(a.last(), "error"); e != nil {
		return stringField(e, "message")
	}
	if string(field(a.result(), "isError")) == "true" {
		return resultText(a.result())
	}
	return ""
}

// request makes a POST with the client's session.
func (c *testClient) request(method, body string) *http.Request {
	req, err := http.NewRequest(method, c.URL, strings.NewReader(body))
	if err != nil {
		c.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	if c.Session != "" {
		req.Header.Set(sessionHeader, c.Session)
	}
	for k, v := range c.Header {
		req.Header[k] = v
	}
	return req
}

func (c *testClient) post(body string) answer {
	c.t.Helper()
	return c.do(c.request(http.MethodPost, body))
}

func (c *testClient) do(req *http.Request) answer {
	c.t.Helper()
	a, err := c.try(req)
	if err != nil {
		c.t.Fatalf("%s: %v", req.Method, err)
	}
	return a
}

// try is do for what may fail on the way.
func (c *testClient) try(req *http.Request) (answer, error) {
	res, err := c.http.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	a := answer{Status: res.StatusCode, Header: res.Header, Body: string(body)}
	if strings.HasPrefix(res.Header.Get("Content-Type"), "text/event-stream") {
		for line := range strings.Lines(a.Body) {
			if data, ok := strings.CutPrefix(line, "data: "); ok && strings.TrimSpace(data) != "" {
				a.Events = append(a.Events, json.RawMessage(strings.TrimSpace(data)))
			}
		}
	} else if len(body) > 0 {
		a.Events = []json.RawMessage{bytes.TrimSpace(body)}
	}
	return a, err
}

// ask makes a request; params are JSON, "" for none.
func (c *testClient) ask(method, params string) answer {
	c.t.Helper()
	return c.post(c.message(method, params))
}

func (c *testClient) message(method, params string) string {
	c.mu.Lock()
	c.id++
	id := c.id
	c.mu.Unlock()
	return string(encodeRequest(json.RawMessage(fmt.Sprint(id)), method, rawOrNil(params)))
}

func rawOrNil(s string) json.RawMessage {
	if s == "" {
		return nil
	}
	return json.RawMessage(s)
}

// call calls a tool; arguments are JSON, "" for none.
func (c *testClient) call(tool, arguments string) answer {
	c.t.Helper()
	params := object{{"name", quote(tool)}}
	if arguments != "" {
		params = append(params, member{"arguments", json.RawMessage(arguments)})
	}
	return c.ask("tools/call", string(params.encode()))
}

// tools is the names that tools/list has, in its order.
func (c *testClient) tools() []string {
	c.t.Helper()
	var list struct{ Tools []struct{ Name string } }
	a := c.ask("tools/list", "")
	if err := json.Unmarshal(a.result(), &list); err != nil {
		c.t.Fatalf("tools/list: %d %s", a.Status, a.Body)
	}
	names := []string{}
	for _, tool := range list.Tools {
		names = append(names, tool.Name)
	}
	return names
}

// awaitTools waits until the client sees these tools.
func (c *testClient) awaitTools(want ...string) {
	c.t.Helper()
	await(c.t, fmt.Sprintf("the tools %v", want), func() bool {
		return strings.Join(c.tools(), " ") == strings.Join(want, " ")
	})
}

// listen opens the session's notification stream. Messages arrive on the
// channel, which is closed at the stream's end.
func (c *testClient) listen() (messages <-chan json.RawMessage, hangUp func()) {
	c.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	req := c.request(http.MethodGet, "").WithContext(ctx)
	req.Header.Set("Accept", "text/event-stream")
	res, err := (&http.Client{}).Do(req)
	if err != nil {
		c.t.Fatal(err)
	}
	if res.StatusCode != http.StatusOK {
		c.t.Fatalf("GET: %s", res.Status)
	}
	c.t.Cleanup(cancel)
	out := make(chan json.RawMessage, 100)
	go func() {
		defer close(out)
		defer res.Body.Close()
		lines := bufio.NewScanner(res.Body)
		for lines.Scan() {
			if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok && data != "" {
				out <- json.RawMessage(data)
			}
		}
	}()
	return out, cancel
}

// hear waits for a notification on a stream.
func hear(t *testing.T, messages <-chan json.RawMessage, method string) json.RawMessage {
	t.Helper()
	deadline := time.After(patience)
	for {
		select {
		case msg, ok := <-messages:
			if !ok {
				t.Fatalf("the stream ended before %s", method)
			}
			if stringField(msg, "method") == method {
				return msg
			}
		case <-deadline:
			t.Fatalf("gave up waiting for %s", method)
		}
	}
}

// setMeta returns the params of a message with a key of their _meta set.
func setMeta(params json.RawMessage, key string, value json.RawMessage) json.RawMessage {
	list, _ := members(params)
	return withMeta(list, key, value).encode()
}

// objectOf returns the members of a JSON object.
func objectOf(text string) object {
	list, _ := members(json.RawMessage(text))
	return list
}
