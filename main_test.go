// What all tests share: the test binary that is usher and its modules too, a
// daemon to talk to, and a client that talks.

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
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
	must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	// A process that another test starts meanwhile would hold the file open for
	// writing, and such a file can't be run: "text file busy".
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	must(t, os.WriteFile(path, []byte(text), 0o644))
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

// need finds a program that a test can't do without: the test is skipped where
// there is none, but not in CI.
func need(t *testing.T, program string) {
	t.Helper()
	if _, err := exec.LookPath(program); err == nil {
		return
	}
	if os.Getenv("CI_REQUIRE") != "" {
		t.Fatalf("CI needs %s", program)
	}
	t.Skipf("%s is not installed", program)
}

func folderNames(t testing.TB, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	must(t, err)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// usher runs a command in this process.
func usher(t *testing.T, stdin string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	var out, errs bytes.Buffer
	code = run(t.Context(), args, strings.NewReader(stdin), &out, &errs, noEnv)
	return out.String(), errs.String(), code
}

// masks hide what differs from run to run.
var masks = []struct {
	form *regexp.Regexp
	with string
}{
	{regexp.MustCompile(`\b[2-9A-HJKMNP-Z]{3}-[2-9A-HJKMNP-Z]{3}\b`), "CODE-D"},
	{regexp.MustCompile(`(claim=|Code: |"code": ")[2-9A-HJKMNP-Z]{6}\b`), "${1}CODE--"},
	{regexp.MustCompile(`\d{4}-\d\d-\d\d \d\d:\d\d`), "YYYY-MM-DD HH:MM"},
	{regexp.MustCompile(`\d{4}-\d\d-\d\dT[0-9:.]+Z`), "TIME"},
	{regexp.MustCompile(`"progressToken":\d+`), `"progressToken":N`},
	{regexp.MustCompile(`usher \S+ \((commit [0-9a-f]{40}, )?go\S+ \S+\)`), "usher VERSION"},
	{regexp.MustCompile(`usher \S+ serves`), "usher VERSION serves"},
}

// without is a JSON object without one of its members.
func without(raw, key string) string {
	list, _ := members(json.RawMessage(raw))
	return string(slices.DeleteFunc(list, func(f member) bool { return f.key == key }).encode())
}
