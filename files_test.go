// Tests of files.go: writers of claims.json take turns with the write token while the tests race,
// stop and kill them. Each writer is another process of this test binary, which runs
// TestClaimsChild. With USHER_SLOW=1 the tests run at full size.

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// setTokens makes these the files of the token's folder.
func setTokens(t *testing.T, token *writeToken, names ...string) {
	t.Helper()
	must(t, errors.Join(os.RemoveAll(token.dir), os.MkdirAll(token.dir, 0o700)))
	for _, name := range names {
		must(t, os.WriteFile(token.dir+"/"+name, nil, 0o600))
	}
}

// The token is taken if it is free, or its holder is dead, or held it for too long.
func TestTokenIsTakenFromTheDead(t *testing.T) {
	alone(t) // as the ages of tokens count
	token := newWriteToken("")
	held := func(age time.Duration, host string, pid int) string {
		return fmt.Sprintf("held.%d.%s.%d.1", time.Now().Add(-age).UnixMilli(), host, pid)
	}
	dead := deadPID(t)
	here, me := token.host, os.Getpid()
	for _, tt := range []struct {
		name   string
		tokens []string
		want   string // in the error; "" where it can be had
	}{
		{"free", []string{"free"}, ""},
		{"none", nil, ""},
		{"none, and what is no token", []string{".DS_Store"},
			"remove the folder if it is empty"},
		{"alive here", []string{held(0, here, me)}, fmt.Sprintf("%s.%d", here, me)},
		{"dead here", []string{held(0, here, dead)}, ""},
		{"a zombie here", []string{held(0, here, zombiePID(t))}, ""},
		{"elsewhere", []string{held(0, "elsewhere", dead)}, "elsewhere." + strconv.Itoa(dead)},
		{"elsewhere, old", []string{held(31*time.Second, "elsewhere", 7)}, ""},
		{"alive here, old", []string{held(31*time.Second, here, me)}, ""},
		{"elsewhere, from the future", []string{held(-40*time.Second, "elsewhere", 7)}, ""},
		{"of no known form", []string{"held.by.me"}, ""},
		{"two, both to be had", []string{"free", held(0, here, dead)}, "free held"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := testStore(t, newDataDir(t))
			s.token.timeout = 300 * time.Millisecond
			setTokens(t, s.token, tt.tokens...)
			_, err := s.Create(t.Context(), "/w", "", time.Hour)
			if tt.want == "" {
				must(t, err)
				got := slices.DeleteFunc(folderNames(t, s.token.dir),
					func(n string) bool { return n == ".DS_Store" })
				check(t, "token folder", got, []string{"free"})
				return
			}
			checkContains(t, "error", fmt.Sprint(err), tt.want)
			check(t, "files in the token folder", len(folderNames(t, s.token.dir)),
				len(tt.tokens))
		})
	}
}

// deadPID returns the id of a process that has ended.
func deadPID(t *testing.T) int {
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	must(t, cmd.Run())
	return cmd.Process.Pid
}

// zombiePID returns the id of an ended process whose parent has not called wait.
func zombiePID(t *testing.T) int {
	if runtime.GOOS != "linux" {
		return deadPID(t)
	}
	cmd := exec.Command("true")
	out, err := cmd.StdoutPipe()
	must(t, errors.Join(err, cmd.Start()))
	t.Cleanup(func() { cmd.Wait() })
	io.Copy(io.Discard, out)
	await(t, "the end of a process", func() bool { return !processAlive(cmd.Process.Pid) })
	return cmd.Process.Pid
}

// A writer stops waiting for the token when its context ends.
func TestWriterWaitsNoLongerThanItsContext(t *testing.T) {
	s := testStore(t, newDataDir(t))
	setTokens(t, s.token, fmt.Sprintf("held.%d.elsewhere.7.1", time.Now().UnixMilli()))
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err := s.Create(ctx, "/w", "", time.Hour)
	check(t, "its end", err, context.DeadlineExceeded)
}

// A folder that can't be synced after the rename fails the write, which is not repeated.
func TestFailedSyncFailsTheWrite(t *testing.T) {
	dir, s := newStore(t)
	writes := 0
	s.token.step = func(step string) {
		if step == "ended" {
			writes++
			must(t, os.Rename(dir, dir+".moved"))
		}
	}
	_, err := s.Create(t.Context(), "/w", "", time.Hour)
	check(t, "the write", err, fs.ErrNotExist)
	check(t, "writes", writes, 1)
}

// fileCodes returns the codes in the file, which must be readable.
func fileCodes(t testing.TB, dataDir string) map[Code]bool {
	t.Helper()
	snap, err := readClaims(dataDir + "/claims.json")
	must(t, err)
	snap.file.Close()
	codes := map[Code]bool{}
	for _, c := range snap.claims {
		codes[c.Code] = true
	}
	return codes
}

// A deletion of the file at any step up to the last look, and one after the rename, stands.
func TestDeletionIsNotUndone(t *testing.T) {
	for _, step := range []string{"taken", "swept", "written", "checked", "ended"} {
		t.Run(step, func(t *testing.T) {
			dir := newDataDir(t)
			path := writeClaimsFile(t, dir, "["+claimA+"]")
			s := testStore(t, dir)
			var once sync.Once
			s.token.step = func(at string) {
				if at == step {
					once.Do(func() { os.Remove(path) })
				}
			}
			made := mustCreate(t, s)
			wantActive(t, s, "AAAAAA", false)
			wantActive(t, s, made.Code, step != "ended")
		})
	}
	t.Run("another put in its place", func(t *testing.T) {
		dir, s := newStore(t)
		var once sync.Once
		s.token.step = func(at string) {
			if at == "written" {
				once.Do(func() { writeClaimsFile(t, dir, "["+claimA+"]") })
			}
		}
		made := mustCreate(t, s)
		check(t, "codes in the file", fileCodes(t, dir),
			map[Code]bool{made.Code: true, "AAAAAA": true})
	})
}

// childEnv tells TestClaimsChild what to do: data folder, how many claims to
// create, the age at which a token is old, and the step at which to stop once.
const childEnv = "USHER_TEST_CLAIMS_CHILD"

// TestClaimsChild is a process of the tests below. It prints every code that it
// created, and at the step named says so and waits for a line on stdin.
func TestClaimsChild(t *testing.T) {
	job := strings.Split(os.Getenv(childEnv), "\n")
	if len(job) != 4 {
		return // it is no child
	}
	s := openClaims(job[0])
	defer s.Close()
	count, err1 := strconv.Atoi(job[1])
	stale, err2 := time.ParseDuration(job[2])
	must(t, errors.Join(err1, err2))
	s.token.stale = stale
	var once sync.Once
	s.token.step = func(at string) {
		if at == job[3] {
			once.Do(func() {
				fmt.Println("at", at)
				bufio.NewReader(os.Stdin).ReadString('\n')
			})
		}
	}
	for range count {
		c, err := s.Create(t.Context(), "/w/child", "child", time.Hour)
		if err != nil {
			fmt.Println("failed", err)
			os.Exit(1)
		}
		fmt.Println("code", c.Code.Reveal())
	}
}

// claimsChild is a running TestClaimsChild.
type claimsChild struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
	lines *bufio.Scanner
}

// startClaimsChild starts a child and, unless step is empty, waits until it stops there.
func startClaimsChild(t *testing.T, dir string, count int, stale time.Duration, step string) *claimsChild {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestClaimsChild$")
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s\n%d\n%s\n%s", childEnv, dir, count, stale, step))
	cmd.Stderr = os.Stderr
	stdin, err1 := cmd.StdinPipe()
	stdout, err2 := cmd.StdoutPipe()
	must(t, errors.Join(err1, err2, cmd.Start()))
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	c := &claimsChild{cmd, stdin, bufio.NewScanner(stdout)}
	if step != "" {
		if _, ok := c.next("at"); !ok {
			t.Fatal("the writer did not come to that step")
		}
	}
	return c
}

// next returns the child's next line that begins with word, without it; false at
// its end.
func (c *claimsChild) next(word string) (string, bool) {
	for c.lines.Scan() {
		if rest, ok := strings.CutPrefix(c.lines.Text(), word+" "); ok {
			return rest, true
		}
		if strings.HasPrefix(c.lines.Text(), "failed") {
			fmt.Fprintln(os.Stderr, "child:", c.lines.Text())
		}
	}
	return "", false
}

func (c *claimsChild) codes() []Code {
	var codes []Code
	for code, ok := c.next("code"); ok; code, ok = c.next("code") {
		codes = append(codes, Code(code))
	}
	return codes
}

// slowTests returns full if USHER_SLOW is set, else quick.
func slowTests(quick, full int) int {
	if os.Getenv("USHER_SLOW") != "" {
		return full
	}
	return quick
}

// Writers at once lose no record, even if one is killed at any instant.
func TestKillsLoseNoRecord(t *testing.T) {
	long(t)
	const crowd = 3 // writers at a time, one of whom is killed
	dir, s := newStore(t)
	var printed []Code
	for range slowTests(10, 60) {
		// Two writers go on and end by themselves; the third is killed.
		var others sync.WaitGroup
		var codes [crowd][]Code
		for n := range crowd - 1 {
			child := startClaimsChild(t, dir, 2, 30*time.Second, "")
			others.Go(func() { codes[n] = child.codes() })
		}
		victim := startClaimsChild(t, dir, 1000, 30*time.Second, "")
		first, ok := victim.next("code")
		if !ok {
			t.Fatal("the writer created nothing")
		}
		kill := time.AfterFunc(rand.N(8*time.Millisecond), func() { victim.cmd.Process.Kill() })
		codes[crowd-1] = append(victim.codes(), Code(first))
		kill.Stop()
		victim.cmd.Wait()
		others.Wait()
		mustCreate(t, s)
		printed = append(printed, slices.Concat(codes[:]...)...)
		got := fileCodes(t, dir)
		for _, code := range printed {
			if !got[code] {
				t.Fatal("a printed code is missing")
			}
		}
		if len(printed) > 200 { // begin a new file: a long one is slow to write
			os.Remove(dir + "/claims.json")
			printed = nil
		}
	}
}

// tokenSteps are the steps of a writer.
var tokenSteps = []string{"taken", "swept", "written", "checked", "renaming", "ended"}

// wantTidy checks that the data folder contains the file and a free token only.
func wantTidy(t testing.TB, dataDir string) {
	t.Helper()
	check(t, "data folder", folderNames(t, dataDir), []string{"claims.json", "claims.lock"})
	check(t, "token folder", folderNames(t, dataDir+"/claims.lock"),
		[]string{"free"})
}

// A writer that is killed at any step leaves the old file or the new one, and blocks no
// other writer.
func TestKilledWriterBlocksNobody(t *testing.T) {
	long(t)
	for _, step := range tokenSteps {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			dir, s := newStore(t)
			mustCreate(t, s)
			victim := startClaimsChild(t, dir, 1, 30*time.Second, step)
			victim.cmd.Process.Kill()
			victim.cmd.Wait()
			want := 1
			if step == "ended" {
				want = 2
			}
			check(t, "claims in the file", len(fileCodes(t, dir)), want)
			mustCreate(t, s)
			check(t, "claims in the file then", len(fileCodes(t, dir)), want+1)
			wantTidy(t, dir)
		})
	}
}

// The half-made token folder of a killed writer is removed.
func TestHalfAFolderIsRemoved(t *testing.T) {
	dir, s := newStore(t)
	must(t, os.MkdirAll(s.token.dir+".tmp."+s.token.newName(), 0o700))
	mustCreate(t, s)
	wantTidy(t, dir)
}

// A writer may be stopped between any two steps, for longer than a token lasts. When it
// continues, no record is lost.
func TestStoppedWriterLosesNothing(t *testing.T) {
	long(t)
	stop, cont := syscall.Signal(19), syscall.Signal(18) // SIGSTOP, SIGCONT
	if runtime.GOOS == "darwin" {
		stop, cont = 17, 19
	}
	stale := time.Duration(slowTests(300, 30_500)) * time.Millisecond
	for _, step := range tokenSteps {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			dir, s := newStore(t)
			s.token.stale, s.token.timeout = min(stale, 30*time.Second), 2*stale
			before := mustCreate(t, s)
			child := startClaimsChild(t, dir, 1, s.token.stale, step)
			must(t, child.cmd.Process.Signal(stop))
			want := map[Code]bool{before.Code: true}
			for range 3 {
				want[mustCreate(t, s).Code] = true
			}
			_, err := s.Revoke(t.Context(), before.Code)
			must(t, err)
			delete(want, before.Code)
			io.WriteString(child.stdin, "\n")
			must(t, child.cmd.Process.Signal(cont))
			codes := child.codes()
			if len(codes) != 1 {
				t.Fatalf("the stopped writer created %d claims", len(codes))
			}
			want[codes[0]] = true
			check(t, "codes in the file", fileCodes(t, dir), want)
			child.cmd.Wait()
			wantTidy(t, dir)
		})
	}
}

// A writer that has lost its token writes nothing and tries again, a limited number of times.
func TestLostTokenStartsOver(t *testing.T) {
	long(t)
	dir := newDataDir(t)
	s, thief := testStore(t, dir), testStore(t, dir)
	thief.token.stale = -time.Second // every token is old
	written, thefts := 0, 1
	s.token.step = func(step string) {
		if step != "written" {
			return
		}
		if written++; written <= thefts {
			mustCreate(t, thief)
		}
	}
	mustCreate(t, s)
	check(t, "tries", written, 2)
	check(t, "claims", len(fileCodes(t, dir)), 2)
	written, thefts = 0, tokenTries
	_, err := s.Create(t.Context(), "/w", "", time.Hour)
	check(t, "its end", err, errStartOver)
	check(t, "tries in vain", written, tokenTries)
	check(t, "claims of others", len(fileCodes(t, dir)), 2+tokenTries)
}

// A killed process leaves no file that stays: a file with one writer has one temporary
// file, which the next writer replaces; files of the cache have none.
func TestNoTemporaryFilesAreLeft(t *testing.T) {
	dir := t.TempDir()
	path := dir + "/folder/daemon.json"
	write(t, path+".new", "what a killed process left")
	must(t, replaceFile(path, []byte("1")))
	check(t, "files", folderNames(t, dir+"/folder"), []string{"daemon.json"})

	shim, err := placeShim("shim.py", dir+"/cache")
	must(t, err)
	whole := readFile(t, shim)
	for what, text := range map[string]string{"part": whole[:100], "whole": whole} {
		write(t, shim, text)
		_, err := placeShim("shim.py", dir+"/cache")
		must(t, err)
		check(t, "the shim after a "+what+" is complete",
			readFile(t, shim) == whole, true)
	}
	check(t, "files of the cache", len(folderNames(t, dir+"/cache")), 1)
}

// claimsFile returns the path of the claims.
func (p *projects) claimsFile() string { return p.Base + "/.data/claims.json" }

// putClaims replaces the claims at once, as usher does.
func (p *projects) putClaims(text string) {
	p.t.Helper()
	write(p.t, p.claimsFile()+".new", text)
	must(p.t, os.Rename(p.claimsFile()+".new", p.claimsFile()))
}

// claimRecord returns the text of a claim for a folder.
func (p *projects) claimRecord(code, folder string, created any, life time.Duration) string {
	return string(marshal(map[string]any{
		"code":      code,
		"scopeDir":  p.dir + folder,
		"createdAt": created,
		"expiresAt": time.Now().Add(life).UTC(),
	}))
}
