// The processes under test: starting, measuring and stopping them.

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const startPatience = 5 * time.Minute // for a first start with many modules, on a busy machine

// server is one process under test.
type server struct {
	name string
	url  string        // of its MCP endpoint
	base string        // the base folder of an usher
	took time.Duration // from its start until it was ready
	cmd  *exec.Cmd
}

// start starts a program, which runs until the benchmark ends, and waits until ready
// returns its URL. ready gets the program's output so far, stdout followed by stderr. The
// output goes to files.
func (b *bench) start(name string, ready func(said string) string, argv ...string) (*server, error) {
	s := &server{name: name, cmd: exec.Command(argv[0], argv[1:]...)}
	out, err := os.Create(filepath.Join(b.dir, name+".out"))
	if err != nil {
		return nil, err
	}
	defer out.Close()
	logs, err := os.Create(filepath.Join(b.dir, name+".log"))
	if err != nil {
		return nil, err
	}
	defer logs.Close()
	s.cmd.Stdout = out
	s.cmd.Stderr = logs
	s.cmd.Env = append(os.Environ(), b.env...)
	// The program ends with the thread that starts it. main has locked that thread.
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	begin := time.Now()
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	ended := make(chan struct{})
	go func() {
		s.cmd.Wait()
		close(ended)
	}()
	for s.url == "" {
		select {
		case <-ended:
			said, _ := os.ReadFile(logs.Name())
			return nil, fmt.Errorf("%s ended: %s", name, said)
		case <-time.After(2 * time.Millisecond):
		}
		said, err := os.ReadFile(out.Name())
		if err != nil {
			return nil, err
		}
		log, err := os.ReadFile(logs.Name())
		if err != nil {
			return nil, err
		}
		s.url = ready(string(said) + string(log))
		s.took = time.Since(begin)
		if s.took > startPatience {
			s.stop()
			return nil, fmt.Errorf("%s was not ready after %v", name, startPatience)
		}
	}
	return s, nil
}

// stop ends the process, by KILL if it is still running after ten seconds.
func (s *server) stop() {
	s.cmd.Process.Signal(syscall.SIGTERM)
	for range 1000 {
		if s.cmd.Process.Signal(syscall.Signal(0)) != nil {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	s.cmd.Process.Kill()
}

// usage returns the processor time and the resident memory, in MiB, of the process and
// its descendants. The processor time includes descendants that have ended.
func (s *server) usage() (cpu time.Duration, rss float64) {
	type process struct{ ticks, pages int }
	processes := make(map[int]process)
	children := make(map[int][]int)
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		stat, err := os.ReadFile(path)
		if err != nil {
			continue // the process has just ended
		}
		number := func(text string) int {
			n, _ := strconv.Atoi(text)
			return n
		}
		// The fields of proc_pid_stat(5), from the third on.
		f := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		pid := number(filepath.Base(filepath.Dir(path)))
		parent := number(f[1])
		children[parent] = append(children[parent], pid)
		p := process{pages: number(f[21])}
		for _, time := range f[11:15] { // utime, stime, and both of children that were waited for
			p.ticks += number(time)
		}
		processes[pid] = p
	}
	var sum process
	for pids := []int{s.cmd.Process.Pid}; len(pids) > 0; pids = pids[1:] {
		sum.ticks += processes[pids[0]].ticks
		sum.pages += processes[pids[0]].pages
		pids = append(pids, children[pids[0]]...)
	}
	const tick = 10 * time.Millisecond // USER_HZ is 100
	return time.Duration(sum.ticks) * tick, float64(sum.pages*os.Getpagesize()) / (1 << 20)
}

// rss returns the resident memory of the process alone, in KiB.
func (s *server) rss() float64 {
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.cmd.Process.Pid))
	_, value, _ := strings.Cut(string(status), "VmRSS:")
	value, _, _ = strings.Cut(value, "kB")
	n, _ := strconv.ParseFloat(strings.TrimSpace(value), 64)
	return n
}

// startPeer starts one of the peers, which is this program again.
func (b *bench) startPeer(name string, args ...string) *server {
	return b.started(b.start(unique(name), func(said string) string {
		url, ok := strings.CutPrefix(said, "ready ")
		if !ok {
			return ""
		}
		url, _, _ = strings.Cut(url, "\n")
		return url
	}, append([]string{b.self, "peer", name}, args...)...))
}

// startUsher starts usher serve on a workspace and waits until all modules are ready. If
// base is "", usher gets a new base folder.
func (b *bench) startUsher(name, workspace, base string) *server {
	if base == "" {
		base = filepath.Join(b.dir, unique("base"))
	}
	s := b.started(b.start(unique(name), func(said string) string {
		_, url, _ := strings.Cut(said, " url=")
		if !strings.Contains(said, "modules are ready") { // versions before 0.1.0 print a banner
			if !strings.Contains(said, "\nConnect a client") {
				return ""
			}
			_, url, _ = strings.Cut(said, " serves MCP at ")
		}
		return strings.Fields(url)[0]
	}, b.usher, "serve", "-addr", "127.0.0.1:0", "-base", base, workspace))
	s.base = base
	return s
}

// started adds a server to those that stopAll stops.
func (b *bench) started(s *server, err error) *server {
	if err != nil {
		b.fail(err)
	}
	b.running = append(b.running, s)
	return s
}

// claim creates a claim on a folder and returns the header that presents its code.
func (b *bench) claim(s *server, scope string) string {
	out, err := exec.Command(b.usher, "claim", "-base", s.base, "-scope", scope, "-json").Output()
	var record struct{ Code string }
	if err == nil {
		err = json.Unmarshal(out, &record)
	}
	if err != nil {
		b.fail(fmt.Errorf("usher claim: %w", err))
	}
	return "Mcp-Claim-Code: " + record.Code
}

// tools writes a server's list of tools to a file, so that peers can serve the same tools.
// It returns the file and the number of tools.
func (b *bench) tools(s *server) (file string, n int) {
	var answer struct {
		Result struct{ Tools []json.RawMessage }
	}
	c, err := job{server: s}.connect()
	if err == nil {
		defer c.tcp.Close()
		err = c.ask()
	}
	if err == nil {
		err = json.Unmarshal(c.body, &answer)
	}
	if err != nil {
		b.fail(fmt.Errorf("asking for the tools: %w", err))
	}
	list, err := json.Marshal(answer.Result.Tools)
	file = filepath.Join(b.dir, unique("tools"))
	if err == nil {
		err = os.WriteFile(file, list, 0o600)
	}
	if err != nil {
		b.fail(err)
	}
	return file, len(answer.Result.Tools)
}
