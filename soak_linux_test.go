// A daemon under mixed load for a long time. What it holds is read from /proc. It
// is no part of go test or CI:
//
//	USHER_SOAK=1h go test -run TestSoak -v -timeout 2h .

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// soak is a daemon in this process, with a module in each language.
type soak struct {
	*testDaemon
	dir    string   // of the modules
	labels []string // of those in testdata/languages
	claims *ClaimStore
	client *testClient    // in a session that loads share
	count  map[string]int // what was done, by load
	mu     sync.Mutex     // guards count
}

// soakLoads is what is done side by side, and how often each. n counts the times.
var soakLoads = []struct {
	name  string
	every time.Duration
	do    func(s *soak, t *testing.T, n int)
}{
	{"lists in a session", time.Second, (*soak).lists},
	{"calls in all languages", 100 * time.Millisecond, (*soak).calls},
	{"calls of a hosted server", time.Second, (*soak).hosted},
	{"requests without sessions", 100 * time.Millisecond, (*soak).modern},
	{"streams", 300 * time.Millisecond, (*soak).streams},
	{"subscriptions", 300 * time.Millisecond, (*soak).subscriptions},
	{"HTTP+SSE", 500 * time.Millisecond, (*soak).old},
	{"webhooks", 150 * time.Millisecond, (*soak).webhooks},
	{"claims made and revoked", time.Second, (*soak).claim},
	{"refusals", 100 * time.Millisecond, (*soak).refusals},
	{"edits", 5 * time.Second, (*soak).edits},
}

func TestSoak(t *testing.T) {
	length, err := time.ParseDuration(os.Getenv("USHER_SOAK"))
	if err != nil {
		skip(t, "takes as long as USHER_SOAK says")
	}
	processes := markProcesses(t)
	s := startSoak(t)
	fmt.Printf("%8s %8s %8s %10s %9s %11s %8s %8s %9s\n", "minute", "RSS MiB", "heap MiB", "goroutines", "children",
		"descriptors", "data KiB", "CPU s", "done")
	var held [][]int // goroutines, children and descriptors of each minute
	for begin, minute := time.Now(), 1; time.Since(begin) < length; minute++ {
		t.Run(fmt.Sprint("minute ", minute), func(t *testing.T) { s.load(t, 45*time.Second) })
		http.DefaultClient.CloseIdleConnections()
		<-time.After(10 * time.Second)
		runtime.GC()
		held = append(held, s.report(minute, processes()))
	}
	third := len(held) / 3
	for i, what := range []string{"goroutines", "children", "descriptors"} {
		most := func(minutes [][]int) int {
			return slices.MaxFunc(minutes, func(a, b []int) int { return a[i] - b[i] })[i]
		}
		if first, last := most(held[:third+1]), most(held[len(held)-third-1:]); last > first+10 {
			t.Errorf("%s: %d at most in the first third, %d in the last", what, first, last)
		}
	}
	if log, _ := os.ReadFile(s.Base + "/log"); bytes.Contains(log, []byte("level=ERROR")) {
		t.Errorf("the log, %d bytes long, has an error: %s", len(log),
			clipText(string(log[bytes.Index(log, []byte("level=ERROR")):]), 1000))
	}
}

func startSoak(t *testing.T) *soak {
	s := &soak{count: make(map[string]int)}
	s.dir, s.labels = languages(t)
	writeFake(t, s.dir+"/fake.usher", "good shared tools=x,touch,progress res=r")
	writeFake(t, s.dir+"/own.usher", "good tools=count")
	s.edits(t, 0)
	base := t.TempDir()
	log, err := os.Create(base + "/log") // not in memory, which is measured
	must(t, err)
	s.testDaemon = daemonOptions{base: base, env: guarded, log: log}.start(t, s.dir)
	s.awaitReady(t)
	s.claims = openStore(t, s.Base)
	return s
}

// load does all loads for a while, and waits for their ends.
func (s *soak) load(t *testing.T, length time.Duration) {
	s.client = connect(t, s.URL)
	defer s.client.end()
	over := time.After(length)
	stop := make(chan struct{})
	var loads sync.WaitGroup
	for _, l := range soakLoads {
		loads.Go(func() {
			tick := time.NewTicker(l.every)
			defer tick.Stop()
			for {
				select {
				case <-stop:
					return
				case <-tick.C:
				}
				s.mu.Lock()
				s.count[l.name]++
				n := s.count[l.name]
				s.mu.Unlock()
				l.do(s, t, n)
			}
		})
	}
	<-over
	close(stop)
	loads.Wait()
}

// report prints what the daemon and its clients, which are one process, hold.
func (s *soak) report(minute int, processes string) []int {
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	var rss int
	status, _ := os.ReadFile("/proc/self/status")
	_, rest, _ := strings.Cut(string(status), "VmRSS:")
	fmt.Sscan(rest, &rss)
	descriptors, _ := os.ReadDir("/proc/self/fd")
	var usage syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &usage)
	size, done := int64(0), 0
	files, _ := filepath.Glob(s.Base + "/.data/*")
	for _, file := range files {
		if info, err := os.Stat(file); err == nil && info.Mode().IsRegular() {
			size += info.Size()
		}
	}
	for _, n := range s.count {
		done += n
	}
	held := []int{runtime.NumGoroutine(), strings.Count(processes, "\n"), len(descriptors)}
	fmt.Printf("%8d %8.1f %8.1f %10d %9d %11d %8d %8d %9d\n", minute, float64(rss)/1024,
		float64(memory.HeapAlloc)/(1<<20), held[0], held[1], held[2], size>>10, usage.Utime.Sec+usage.Stime.Sec, done)
	return held
}

// The loads. Each ends what it began.

const soakContact = `{"email":"a@b","message":"hi","copies":3}`

func (s *soak) lists(t *testing.T, n int) {
	c := connect(t, s.URL)
	for _, method := range []string{"tools/list", "prompts/list", "resources/list", "resources/templates/list",
		"nope"} {
		c.ask(method, "")
	}
	c.end()
}

func (s *soak) calls(t *testing.T, n int) {
	c, label := s.client, s.labels[n%len(s.labels)]
	if a := c.call(label+"_handleContact", soakContact); !strings.Contains(a.Body, `"copies":3`) {
		t.Errorf("%s: %d %s", label, a.Status, a.Body)
	}
	if a := c.call(label+"_handleContact", `{"email":1}`); a.failure() == "" {
		t.Errorf("%s: %d %s", label, a.Status, a.Body)
	}
	if n%10 == 0 {
		text := c.message("tools/call", `{"name":"`+label+`_pause"}`)
		answered := make(chan answer, 1)
		go func() { a, _ := c.try(c.request(http.MethodPost, text)); answered <- a }()
		c.post(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":` +
			string(field(json.RawMessage(text), "id")) + `}}`)
		<-answered
	}
}

func (s *soak) hosted(t *testing.T, n int) {
	c := connect(t, s.URL)
	defer c.end()
	for i := range 3 {
		if a := c.call("own_count", ""); resultText(a.result()) != fmt.Sprint(i+1) {
			t.Errorf("call %d of a session's own process: %d %s", i+1, a.Status, a.Body)
		}
	}
}

func (s *soak) modern(t *testing.T, n int) {
	c := newStateless(t, s.URL)
	if a := c.modern("tools/call", `{"name":"fake_x","arguments":{"n":1}}`); a.Status != http.StatusOK {
		t.Errorf("%d %s", a.Status, a.Body)
	}
	c.modern("server/discover", "{}")
	c.modern("tools/list", "{}")
}

func (s *soak) streams(t *testing.T, n int) {
	c := s.client
	_, events, hangUpCall := openStream(t, c.request(http.MethodPost,
		c.message("tools/call", `{"name":"fake_progress","arguments":{"n":4},"_meta":{"progressToken":"p"}}`)))
	first := <-events
	hangUpCall()
	if first.id != "" { // what came after the connection broke
		_, again, hangUpAgain := c.resume(first.id)
		wantEvent(t, again, `"progress":1`)
		hangUpAgain()
	}
}

func (s *soak) subscriptions(t *testing.T, n int) {
	c := s.client
	messages, hangUp := c.listen()
	defer hangUp()
	uri := fmt.Sprintf("r://many/%d", n)
	c.ask("resources/subscribe", `{"uri":"`+uri+`"}`)
	listener := newStateless(t, s.URL)
	events, hangUpListener := listener.modernListen("1", `{"resourceSubscriptions":["`+uri+`"]}`,
		`{"resourceSubscriptions":["`+uri+`"]}`)
	defer hangUpListener()
	told := 0 // the answer to listen comes before the module is listened to
	await(t, "news of a resource", func() bool {
		c.call("fake_touch", `{"uri":"`+uri+`"}`)
		select {
		case e := <-events:
			told += strings.Count(e.data, "resources/updated")
		case msg := <-messages:
			told += strings.Count(string(msg), "resources/updated") << 8
		default:
		}
		return told&0xff > 0 && told>>8 > 0
	})
	c.ask("resources/unsubscribe", `{"uri":"`+uri+`"}`)
}

func (s *soak) old(t *testing.T, n int) {
	c := connectSSE(t, s.URL)
	c.ask("initialize", `{"protocolVersion":"2024-11-05","capabilities":{}}`)
	c.ask("tools/call", `{"name":"fake_x"}`)
	c.hangUp()
}

func (s *soak) webhooks(t *testing.T, n int) {
	path := s.labels[n%len(s.labels)] + "/handleContact"
	for _, d := range []struct {
		path, body, kind string
		status           int
	}{
		{path, soakContact, "application/json", 200},
		{path, "email=a&message=b&copies=2", formType, 200},
		{path, `{"email":`, "application/json", 400},
		{"no/such", soakContact, "application/json", 404},
	} {
		if a := s.send(t, http.MethodPost, d.path, d.body, "Content-Type: "+d.kind, shown); a.Status != d.status &&
			a.Status != http.StatusServiceUnavailable { // while an edit is looked at
			t.Errorf("%s %s: %d %s", d.path, d.body, a.Status, a.Body)
		}
	}
	if a := s.deliver(t, path, soakContact); a.Status != http.StatusUnauthorized {
		t.Errorf("without the secret: %d %s", a.Status, a.Body)
	}
}

func (s *soak) claim(t *testing.T, n int) {
	claim, err := s.claims.Create(t.Context(), s.dir+"/edited", "soak", time.Hour)
	if err != nil {
		t.Error(err)
		return
	}
	present := inHeader(claim.Code.Reveal())
	c, a := openSession(t, s.URL, present)
	defer c.end()
	_, hangUp := c.listen()
	defer hangUp()
	if names := c.tools(); a.Status != http.StatusOK || !slices.Equal(names, []string{"edited_version"}) {
		t.Errorf("a scoped session sees %v", names)
	}
	if a := c.call("fake_x", ""); a.failure() == "" {
		t.Errorf("out of scope: %s", a.Body)
	}
	if n%2 == 0 {
		moved, _ := openSession(t, s.URL, presentNothing) // its move is written to the log of sessions
		moved.do(moved.request(http.MethodPost, moved.message("tools/list", "")))
		listTools(moved, present)
		defer moved.end()
	}
	if _, err := s.claims.Revoke(t.Context(), claim.Code); err != nil {
		t.Error(err)
	}
	if got := listTools(c, present); got != "" {
		t.Errorf("after the revoke: %q", got)
	}
	if got := newStateless(t, s.URL).sees(present); got != "400" {
		t.Errorf("without a session after the revoke: %q", got)
	}
}

func (s *soak) refusals(t *testing.T, n int) {
	c := newStateless(t, s.URL)
	for want, change := range map[int]func(*http.Request){
		400: inHeader(fmt.Sprintf("R3K9%02d", n%100)[:6]),
		403: func(r *http.Request) { r.Host = "example.com" },
		404: func(r *http.Request) { r.Header.Del(protocolHeader); r.Header.Set(sessionHeader, fmt.Sprint(n)) },
		413: func(r *http.Request) { r.ContentLength = 1 << 40 },
		415: func(r *http.Request) { r.Header.Set("Content-Type", "text/plain") },
	} {
		req := c.modernPOST("1", "tools/list", "{}")
		change(req)
		if a, err := c.try(req); err == nil && a.Status != want {
			t.Errorf("%d %s, want %d", a.Status, a.Body, want)
		}
	}
}

// edits changes modules, the one in Go, which is built anew, more seldom.
func (s *soak) edits(t *testing.T, n int) {
	write(t, s.dir+"/edited/edited.usher.py", fmt.Sprintf("def version(): return %d\n", n))
	writeFake(t, s.dir+"/grows.usher", fmt.Sprintf("good tools=x,y%d", n%3))
	if goModule := s.dir + "/go.usher.go"; n%12 == 11 && slices.Contains(s.labels, "go") {
		text, err := os.ReadFile("testdata/languages/go.usher.go")
		if err != nil {
			t.Error(err)
		}
		write(t, goModule, fmt.Sprintf("%s\n// Version %d.\n", text, n))
	}
}
