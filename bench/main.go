// Command usherbench measures usher against its peers, and against its targets.
//
//	go -C bench run .            all measurements, in about 20 minutes
//	go -C bench run . -quick     each measurement once, to see that they work
//
// It builds usher, starts it and its peers, sends requests to them in turn, and prints
// tables as Markdown. README.md says how to read them. The files:
//
//	main.go      flags, the order of the parts, the report's last lines
//	parts.go     the measurements of a server under load
//	maker.go     the measurements of a person who writes modules
//	report.go    medians, tables, verdicts
//	load.go      the load generator
//	server.go    the processes under test
//	peers.go     the peers
//	workspace.go the modules that usher hosts
package main

import (
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// bench is one run.
type bench struct {
	dir    string // contains all files that the benchmark writes; removed at the end
	self   string // the path of this program
	usher  string // the path of the usher under test
	quick  bool
	rounds int
	time   time.Duration // how long a cell is measured in a round
	report report

	running []*server
	env     []string // additional environment of the servers that are started
}

func main() {
	if len(os.Args) > 2 && os.Args[1] == "peer" {
		peer(os.Args[2:])
		return
	}
	// The kernel ends the processes under test when the thread that started them ends.
	runtime.LockOSThread()
	b := &bench{}
	flag.BoolVar(&b.quick, "quick", false, "measure everything once, for 100 ms: only to see that it works")
	flag.IntVar(&b.rounds, "rounds", 5, "the `NUMBER` of rounds")
	flag.DurationVar(&b.time, "time", time.Second, "how long each cell is measured in a round")
	flag.StringVar(&b.usher, "usher", "", "the usher `FILE` to measure (default: built from the folder above)")
	all := strings.Join(partNames(), ", ")
	only := flag.String("parts", "", "measure only these `PARTS`, separated by commas: "+all)
	flag.Parse()
	wanted := strings.FieldsFunc(*only, func(r rune) bool { return r == ',' })
	for _, name := range wanted {
		if !slices.Contains(partNames(), name) {
			fmt.Fprintf(os.Stderr, "usherbench: no part %q: the parts are %s\n", name, all)
			os.Exit(2)
		}
	}
	if b.quick {
		b.rounds = 1
		b.time = 100 * time.Millisecond
	}
	b.prepare()
	defer b.end()
	begin := time.Now()
	for _, p := range parts {
		if len(wanted) > 0 && !slices.Contains(wanted, p.name) {
			continue
		}
		b.say("%s", p.name)
		p.measure(b)
		b.stopAll()
	}
	b.report.print(os.Stdout)
	b.printFoot(time.Since(begin))
}

// prepare creates the folder for all files and builds usher.
func (b *bench) prepare() {
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, os.Interrupt, syscall.SIGTERM)
	var err error
	if b.dir, err = os.MkdirTemp("", "usherbench-"); err != nil {
		b.fail(err)
	}
	go func() {
		<-interrupted
		os.RemoveAll(b.dir) // the servers end with this process
		os.Exit(130)
	}()
	if b.dir, err = filepath.EvalSymlinks(b.dir); err != nil {
		b.fail(err)
	}
	if b.self, err = os.Executable(); err != nil {
		b.fail(err)
	}
	if b.usher == "" {
		b.usher = filepath.Join(b.dir, "usher")
		build := exec.Command("go", "build", "-C", "..", "-o", b.usher, ".")
		build.Env = append(os.Environ(), "CGO_ENABLED=0") // as ./release builds it
		if out, err := build.CombinedOutput(); err != nil {
			b.fail(fmt.Errorf("building usher: %w: %s", err, out))
		}
	}
}

// say prints the progress to stderr.
func (b *bench) say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "%s "+format+"\n", append([]any{time.Now().Format(time.TimeOnly)}, args...)...)
}

// fail ends the benchmark. A report with a missing figure would mislead its readers.
func (b *bench) fail(err error) {
	fmt.Fprintln(os.Stderr, "usherbench:", err)
	b.end()
	os.Exit(1)
}

func (b *bench) stopAll() {
	for _, s := range b.running {
		s.stop()
	}
	b.running = nil
}

func (b *bench) end() {
	b.stopAll()
	os.RemoveAll(b.dir)
}

var names atomic.Int64

// unique returns the name with a number, so that no other call returns the same.
func unique(name string) string { return fmt.Sprintf("%s-%d", name, names.Add(1)) }

// printFoot prints the versions of the programs measured, and the machine.
func (b *bench) printFoot(took time.Duration) {
	version := func(argv ...string) string {
		out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput()
		if err != nil {
			return argv[0] + ": none"
		}
		return strings.TrimSpace(string(out))
	}
	var libraries []string
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, d := range info.Deps {
			if strings.HasSuffix(d.Path, "/go-sdk") || strings.HasSuffix(d.Path, "/mcp-go") {
				libraries = append(libraries, d.Path+" "+d.Version)
			}
		}
	}
	model := "unknown processor"
	if text, err := fs.ReadFile(os.DirFS("/proc"), "cpuinfo"); err == nil {
		if _, after, ok := strings.Cut(string(text), "model name\t: "); ok {
			model, _, _ = strings.Cut(after, "\n")
		}
	}
	averages, _ := os.ReadFile("/proc/loadavg")
	load, _, _ := strings.Cut(string(averages), " ")
	fmt.Printf("%s, commit %s; %s; %s; node %s, %s, %s.\n",
		version(b.usher, "version"),
		version("git", "rev-parse", "--short", "HEAD"),
		runtime.Version(),
		strings.Join(libraries, ", "),
		version("node", "--version"),
		version("python3", "--version"),
		version("webhook", "-version"))
	fmt.Printf("%s, %d cores shared with the load generator; Linux %s; "+
		"%d rounds of %v for each cell, %v in all; load average at the end %s.\n",
		model, runtime.NumCPU(), version("uname", "-r"),
		b.rounds, b.time, took.Round(time.Second), load)
}
