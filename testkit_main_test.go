// The tests' kit: helpers that all tests use, in the files testkit_*_test.go and in package mcptest,
// which has the other ends of usher's connections: the fake server, the clients, the peer of modules.
// A test that needs usher chooses one of three worlds:
//
//   - A daemon in the test's process: startDaemon, startFakes and startProjects run "usher serve" on
//     a free port, with real files, processes and sockets. The race detector sees the daemon, and
//     its log is at hand. It is the usual choice: the test enters by the front door, as clients,
//     senders and owners do (connect, askOverPOST, deliver, usher).
//   - A built daemon: daemonOptions{ownProcess: true} runs the test binary as usher. Choose it if the
//     test kills the daemon, counts its processes, or sets its environment or umask.
//   - A bubble: inBubble runs usher's HTTP side over connections in memory, with a module that is a
//     function. Inside testing/synctest, time passes only when the test lets it pass. Choose it for
//     what takes minutes, or must happen at an instant. Nothing in a bubble may wait for a process
//     or a socket.
//
// A unit that needs none of this (a parser, a table, a counter) is tested alone, with rows and, if
// it reads what others write, with a fuzz target. Languages have a world of their own: a modulePeer
// speaks to a module over its pipes, without usher.
//
// Nothing sleeps. Wait for an event (hear, awaitLog, AwaitTools) or, if nothing announces it, poll
// with await. long marks a test that takes over half a second and runs beside others, alone one
// that does not, slow one that only CI runs. check, checkContains and checkOmits name the
// expectation that failed; must ends a test whose preparation failed.
//
// Modules of the first two worlds are mostly fakes, described by words: the first comment of mcptest
// lists them. What serves one subject is in its test file: projects and their claims in scope_test,
// deliveries in webhook_routing_test, commands in cli_test, requests of a bubble in transport_test,
// languages in runtimes_languages_test.

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"usher/internal/mcptest"
)

// runAsUsher is the variable with which the test binary runs as usher.
const runAsUsher = "USHER_TEST_RUN"

func TestMain(m *testing.M) {
	if fake := os.Getenv(runAsFake); fake != "" {
		os.Exit(mcptest.RunFake(fake))
	}
	// os/signal starts a goroutine that never ends: start it before tests count them.
	_, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	stop()
	// A program with the race detector sleeps for a second at its end, if not told otherwise.
	if os.Getenv("GORACE") == "" {
		os.Setenv("GORACE", "atexit_sleep_ms=0")
	}
	// With this variable, Python would write no bytecode next to modules even if usher let it.
	os.Unsetenv("PYTHONDONTWRITEBYTECODE")
	// Go modules are built a quarter faster without information for debuggers.
	if os.Getenv("GOFLAGS") == "" {
		os.Setenv("GOFLAGS", "-ldflags=-w -gcflags=-dwarf=false")
	}
	if os.Getenv(runAsUsher) != "" {
		main()
	}
	// Tests mostly wait for processes and clocks, so more of them than cores can run at once.
	flag.Parse()
	if f := flag.Lookup("test.parallel"); f.Value.String() == f.DefValue &&
		runtime.GOMAXPROCS(0) < 16 {
		f.Value.Set(fmt.Sprint(min(16, 8*runtime.GOMAXPROCS(0))))
	}
	code := m.Run()
	var counts []string
	for _, reason := range sortedKeys(skips.reasons) {
		counts = append(counts, fmt.Sprint(skips.reasons[reason], " ", reason))
	}
	if counts != nil {
		fmt.Println("skipped tests:", strings.Join(counts, "; "))
	}
	os.Exit(code)
}

// skips counts the skipped tests by their reasons.
var skips = struct {
	sync.Mutex
	reasons map[string]int
}{reasons: make(map[string]int)}

// skip skips a test for a reason, which TestMain reports.
func skip(t testing.TB, reason any) {
	t.Helper()
	skips.Lock()
	defer skips.Unlock()
	skips.reasons[fmt.Sprint(reason)]++
	t.Skip(reason)
}

// slow marks a test that only CI runs, which sets the variable.
func slow(t *testing.T) {
	if os.Getenv("USHER_SLOW") == "" {
		skip(t, "slow (USHER_SLOW=1 runs them)")
	}
}

// long marks a test that takes over half a second. It runs beside others, and go test
// -short leaves it out.
func long(t *testing.T) {
	t.Parallel()
	alone(t)
}

// alone marks a long test that does not run beside others.
func alone(t *testing.T) {
	if testing.Short() {
		skip(t, "long (-short leaves them out)")
	}
}

func readFile(t testing.TB, path string) string {
	text, err := os.ReadFile(path)
	must(t, err)
	return string(text)
}

// tempDir returns a new folder, by its path without links.
func tempDir(t *testing.T) string {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	must(t, err)
	return dir
}

// output collects what is written to it. It may be read meanwhile.
type output struct {
	mu      sync.Mutex
	b       bytes.Buffer
	changed chan struct{} // closed by the next write; nil if nobody waits
	rest    io.Writer     // gets what comes after the first 64 KiB; nil for b
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.changed != nil {
		close(o.changed)
		o.changed = nil
	}
	if o.rest != nil && o.b.Len() > 1<<16 {
		return o.rest.Write(p)
	}
	return o.b.Write(p)
}

func (o *output) String() string {
	text, _ := o.read()
	return text
}

// read returns the text, and a channel that is closed when there is more.
func (o *output) read() (text string, more <-chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.changed == nil {
		o.changed = make(chan struct{})
	}
	return o.b.String(), o.changed
}

// await waits until the text is ok, or until over is closed.
func (o *output) await(t *testing.T, what string, over <-chan struct{}, ok func(text string) bool) {
	deadline := time.After(patience)
	for {
		text, more := o.read()
		if ok(text) {
			return
		}
		select {
		case <-more:
		case <-over:
			return
		case <-deadline:
			stopTest(t, "gave up waiting: %s, in: %s", what, clipText(text, 2000))
		}
	}
}

// objectOf returns the members of a JSON object.
func objectOf(text string) object { return members(json.RawMessage(text)) }

// need skips a test whose program is not installed. In CI the test fails.
func need(t *testing.T, program string) {
	if _, err := exec.LookPath(program); err != nil {
		lack(t, program)
	}
}

// lack skips a test for want of something. In CI the test fails.
func lack(t *testing.T, what string) {
	if os.Getenv("CI_REQUIRE") != "" {
		stopTest(t, "CI needs %s", what)
	}
	skip(t, "needs "+what)
}

func folderNames(t testing.TB, dir string) []string {
	entries, err := os.ReadDir(dir)
	must(t, err)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// check reports how got differs from want; what names it. An error may wrap the wanted one.
func check[T any](t testing.TB, what string, got, want T) {
	t.Helper()
	if diff := cmp.Diff(want, got, cmpopts.EquateErrors()); diff != "" {
		t.Errorf("%s: (-want +got)\n%s", what, clipText(diff, 4000))
	}
}

// checkContains reports each of wants that text lacks.
func checkContains[T ~[]byte | ~string](t testing.TB, what string, text T, wants ...string) {
	t.Helper()
	for _, want := range wants {
		if !strings.Contains(string(text), want) {
			t.Errorf("%s: no %q in %s", what, want, clipText(string(text), 2000))
		}
	}
}

// checkOmits reports each of the unwanted texts that text contains.
func checkOmits[T ~[]byte | ~string](t testing.TB, what string, text T, unwanted ...string) {
	t.Helper()
	for _, s := range unwanted {
		if strings.Contains(string(text), s) {
			t.Errorf("%s: unwanted %q in %s", what, s, clipText(string(text), 2000))
		}
	}
}

// inSync runs a test beside others. In it, time passes only when all wait.
func inSync(t *testing.T, test func(t *testing.T)) {
	t.Parallel()
	synctest.Test(t, test)
}

// runSynced runs a subtest in which time passes only when all wait.
func runSynced(t *testing.T, name string, test func(t *testing.T)) {
	t.Run(name, func(t *testing.T) { synctest.Test(t, test) })
}

// quiet discards what is logged.
var quiet = slog.New(slog.DiscardHandler)

func logTo(w io.Writer) *slog.Logger { return slog.New(slog.NewTextHandler(w, nil)) }
