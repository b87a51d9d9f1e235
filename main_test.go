// TestMain, and helpers of all tests that belong to no subject: waiting, files, programs,
// commands, and assertions, each of which names the expectation that failed.

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
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

	"github.com/google/go-cmp/cmp"
)

// The test binary also runs as usher, and as a fake with the traits in the variable.
const (
	runAsUsher = "USHER_TEST_RUN"
	runAsFake  = "USHER_TEST_FAKE"
)

func TestMain(m *testing.M) {
	if fake := os.Getenv(runAsFake); fake != "" {
		os.Exit(runFake(fake))
	}
	// os/signal starts a goroutine that never ends: start it before tests count them.
	_, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	stop()
	// A program with the race detector sleeps for a second at its end, if not told otherwise.
	if os.Getenv("GORACE") == "" {
		os.Setenv("GORACE", "atexit_sleep_ms=0")
	}
	// Go modules are built a quarter faster without information for debuggers.
	if os.Getenv("GOFLAGS") == "" {
		os.Setenv("GOFLAGS", "-ldflags=-w -gcflags=-dwarf=false")
	}
	if os.Getenv(runAsUsher) != "" {
		main()
	}
	// Tests mostly wait for processes and clocks, so more of them than cores can run at once.
	flag.Parse()
	if f := flag.Lookup("test.parallel"); f.Value.String() == f.DefValue && runtime.GOMAXPROCS(0) < 8 {
		f.Value.Set("8")
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
var skips struct {
	sync.Mutex
	reasons map[string]int
}

// skip skips a test for a reason, which TestMain reports.
func skip(t testing.TB, reason any) {
	t.Helper()
	skips.Lock()
	defer skips.Unlock()
	if skips.reasons == nil {
		skips.reasons = make(map[string]int)
	}
	skips.reasons[fmt.Sprint(reason)]++
	t.Skip(reason)
}

// slow marks a test that only CI runs, which sets the variable.
func slow(t *testing.T) {
	t.Helper()
	if os.Getenv("USHER_SLOW") == "" {
		skip(t, "slow (USHER_SLOW=1 runs them)")
	}
}

// long marks a test that takes over half a second. It runs beside others, and go test
// -short leaves it out.
func long(t *testing.T) {
	t.Helper()
	t.Parallel()
	alone(t)
}

// alone marks a long test that does not run beside others.
func alone(t *testing.T) {
	t.Helper()
	if testing.Short() {
		skip(t, "long (-short leaves them out)")
	}
}

// patience is how long anything in a test may take before it has failed.
const patience = time.Minute

// await polls until ok. It is for conditions that no event announces.
func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("gave up waiting: %s", what)
		}
	}
}

// write writes a file, and makes the folders above it.
func write(t *testing.T, path, text string) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	// A process that another test starts meanwhile would inherit the open file, and a file
	// that is open for writing can't be run: "text file busy".
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	must(t, os.WriteFile(path, []byte(text), 0o644))
}

func readFile(t testing.TB, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(path)
	must(t, err)
	return text
}

// tempDir returns a new folder, by its path without links.
func tempDir(t *testing.T) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	must(t, err)
	return dir
}

// testBinary returns the path of this program.
func testBinary(t *testing.T) string {
	t.Helper()
	exe, err := os.Executable()
	must(t, err)
	return exe
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
	t.Helper()
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
			t.Fatalf("gave up waiting: %s, in: %s", what, clipText(text, 2000))
		}
	}
}

// setMeta returns the params of a message with a key of their _meta set.
func setMeta(params json.RawMessage, key string, value json.RawMessage) json.RawMessage {
	list := members(params)
	return withMeta(list, key, value).encode()
}

// objectOf returns the members of a JSON object.
func objectOf(text string) object {
	list := members(json.RawMessage(text))
	return list
}

// need skips a test whose program is not installed. In CI the test fails.
func need(t *testing.T, program string) {
	t.Helper()
	if _, err := exec.LookPath(program); err != nil {
		lack(t, program)
	}
}

// lack skips a test for want of something. In CI the test fails.
func lack(t *testing.T, what string) {
	t.Helper()
	if os.Getenv("CI_REQUIRE") != "" {
		t.Fatalf("CI needs %s", what)
	}
	skip(t, "needs "+what)
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
	{regexp.MustCompile(`usher \S+ \(go\S+ \S+\)`), "usher VERSION"},
	{regexp.MustCompile(`usher \S+ serves`), "usher VERSION serves"},
}

// without is a JSON object without one of its members.
func without(raw, key string) string {
	list := members(json.RawMessage(raw))
	return string(slices.DeleteFunc(list, func(f member) bool { return f.key == key }).encode())
}

// check reports how got differs from want; what names it.
func check[T any](t testing.TB, what string, got, want T) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s: (-want +got)\n%s", what, clipText(diff, 4000))
	}
}

// checkContains reports each of wants that text lacks.
func checkContains(t testing.TB, what, text string, wants ...string) {
	t.Helper()
	for _, want := range wants {
		if !strings.Contains(text, want) {
			t.Errorf("%s: no %q in %s", what, want, clipText(text, 2000))
		}
	}
}

// checkOmits reports each of the unwanted texts that text contains.
func checkOmits(t testing.TB, what, text string, unwanted ...string) {
	t.Helper()
	for _, s := range unwanted {
		if strings.Contains(text, s) {
			t.Errorf("%s: unwanted %q in %s", what, s, clipText(text, 2000))
		}
	}
}

// must ends the test if a step of its preparation fails.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
