// A daemon under mixed load for a long time. The test counts goroutines, child processes,
// open files and MiB of the heap, and prints the resident memory. go test and CI skip this
// test; to run it:
//
//	USHER_SOAK=1h go test -run TestSoak -v -timeout 2h .

package main

import (
	"fmt"
	"net/http"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// soak is a daemon in this process, with a module in each language.
type soak struct {
	*testDaemon
	labels []string // of the modules in testdata/languages
	claims *ClaimStore
}

// A daemon under load holds no more goroutines, processes, files and memory after a long
// time.
func TestSoak(t *testing.T) {
	length, err := time.ParseDuration(os.Getenv("USHER_SOAK"))
	if err != nil {
		t.Skip("takes as long as USHER_SOAK says")
	}
	mark, processes := markProcesses(t)
	t.Setenv(markVar, mark)
	dir, labels := languages(t, "testdata/languages")
	writeFake(t, dir+"/fake.usher", "good tools=x,runs")
	log, err := os.Create(t.TempDir() + "/log") // not in memory, which is measured
	must(t, err)
	s := &soak{labels: labels}
	s.edit(t, dir, 0)
	s.testDaemon = daemonOptions{env: guarded, log: log}.start(t, dir)
	s.awaitReady(t)
	s.claims = openStore(t, s.Base)
	var held [][]int // goroutines, children, descriptors and MiB of the heap after each minute
	for begin := time.Now(); time.Since(begin) < length; {
		t.Run(fmt.Sprint("minute ", len(held)+1), func(t *testing.T) { s.load(t, len(held)) })
		http.DefaultClient.CloseIdleConnections()
		<-time.After(10 * time.Second)
		debug.FreeOSMemory()
		var memory runtime.MemStats
		runtime.ReadMemStats(&memory)
		list := processes()
		children := strings.Count(list, "\n")
		descriptors := folderNames(t, "/proc/self/fd")
		heap := int(memory.HeapAlloc)
		held = append(held,
			[]int{runtime.NumGoroutine(), children, len(descriptors), heap >> 20})
		t.Logf("goroutines, children, descriptors, MiB of the heap: %v; resident: %d MiB, processes %d MiB",
			held[len(held)-1], resident("self"), resident(list))
	}
	third := len(held) / 3
	for i, what := range []string{"goroutines", "children", "descriptors", "MiB of the heap"} {
		most := func(minutes [][]int) int {
			return slices.MaxFunc(minutes, func(a, b []int) int { return a[i] - b[i] })[i]
		}
		if first, last := most(held[:third+
			1]), most(held[len(held)-third-1:]); last > first+10 {
			t.Errorf("%s: %d at most in the first third, %d in the last", what, first, last)
		}
	}
	text := readFile(t, log.Name())
	if i := strings.Index(text, "level=ERROR"); i >= 0 {
		t.Errorf("the log has an error: %s", clipText(text[i:], 1000))
	}
}

// resident returns how many MiB of memory are resident. Each line begins with a process id.
func resident(lines string) (mib int) {
	for line := range strings.Lines(lines) {
		var size, pages int
		statm, _ := os.ReadFile("/proc/" + strings.Fields(line)[0] + "/statm")
		_, _ = fmt.Sscan(string(statm), &size, &pages) // 0 if the process has ended
		mib += pages * os.Getpagesize() >> 20
	}
	return mib
}

// load lets clients make their rounds for 45 seconds, while modules are edited.
func (s *soak) load(t *testing.T, minute int) {
	over := time.Now().Add(45 * time.Second)
	var clients sync.WaitGroup
	for i := range 8 {
		clients.Go(func() {
			for n := i; time.Now().Before(over); n++ {
				s.round(t, s.labels[n%len(s.labels)])
			}
		})
	}
	s.edit(t, s.Dir, minute)
	clients.Wait()
}

const soakContact = `{"email":"a@b","message":"hi","copies":3}`

// round does what clients, senders and owners do, and ends what it began.
func (s *soak) round(t *testing.T, label string) {
	c := connect(t, s.URL)
	_, hangUp := c.Listen()
	paused := c.Message("tools/call", `{"name":"`+label+`_pause"}`)
	call := begin(t, http.DefaultClient, c.Request("POST", paused), false)
	checkContains(t, label, c.Call(label+"_handleContact", soakContact).Body, `"copies":3`)
	call.close()
	check(t, "calls of a session's own process", c.Call("fake_runs", "").Text(), `{"runs":1}`)
	c.End()
	hangUp()
	check(t, "a call without a session",
		newClient(t, s.URL).Modern("tools/call", `{"name":"fake_x"}`).Failure(), "")
	old := connectSSE(t, s.URL)
	askSSE(old, "tools/call", `{"name":"fake_x"}`)
	old.HangUp()
	for body, status := range map[string]int{soakContact: 200, `{"email":`: 400} {
		a := s.deliver(t, label+"/handleContact", body, shown)
		check(t, "status of a delivery", a.Status, status)
	}
	claim, err := s.claims.Create(t.Context(), s.Dir+"/edited", "soak", time.Hour)
	must(t, err)
	scoped, _ := openSession(t, s.URL, inHeader(claim.Code.Reveal()))
	check(t, "tools of a scoped session", scoped.Tools(), []string{"edited_version"})
	_, err = s.claims.Revoke(t.Context(), claim.Code)
	must(t, err)
	checkSees(t, "after the end of the claim", scoped, seesNone)
	scoped.End()
}

// edit changes a module, and every tenth time one in Go, which is built anew.
func (s *soak) edit(t *testing.T, dir string, n int) {
	write(t, dir+"/edited/edited.usher.py", fmt.Sprintf("def version(): return %d\n", n))
	if n%10 == 9 && slices.Contains(s.labels, "go") {
		text := readFile(t, "testdata/languages/go.usher.go")
		write(t, dir+"/go.usher.go", fmt.Sprintf("%s\n// Version %d.\n", text, n))
	}
}
