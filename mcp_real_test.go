// Real servers, official clients: usher hosts the servers that the makers of the protocol publish,
// and their clients use usher. conformance/ pins the Node packages for these tests. The tests
// install the packages once for each version of conformance/package-lock.json.

package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// clientsPatience is how long one run of a client, or of npm, may take.
const clientsPatience = 3 * time.Minute

// runIn runs a program in a folder; out is all that it says, stdout only that.
func runIn(dir, program string, args ...string) (out, stdout string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), clientsPatience)
	defer cancel()
	var all output
	var only bytes.Buffer
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = dir
	cmd.Stdout, cmd.Stderr = io.MultiWriter(&all, &only), &all
	cmd.WaitDelay = 10 * time.Second // for a grandchild that holds its output open
	err = cmd.Run()
	return all.String(), only.String(), err
}

// npmInstall returns a folder whose node_modules is what the lock in a folder names. It
// is in the user's cache and may be deleted at any time. A new one is renamed into
// place, so it is complete if it exists.
func npmInstall(t *testing.T, from string) string {
	t.Helper()
	need(t, "node")
	need(t, "npm")
	manifest := []string{".npmrc", "package.json", "package-lock.json"}
	sum := sha256.New()
	for _, name := range manifest {
		content := readFile(t, from+"/"+name)
		fmt.Fprintf(sum, "%s %d\n%s", name, len(content), content)
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = t.TempDir() // nothing outlives the test then
	}
	dir := filepath.Join(cache, "usher-"+filepath.Base(from),
		fmt.Sprintf("%x", sum.Sum(nil)[:8]))
	if _, err := os.Stat(dir); err == nil {
		return dir
	}
	must(t, os.MkdirAll(filepath.Dir(dir), 0o755))
	fresh, err := os.MkdirTemp(filepath.Dir(dir), "installing-")
	must(t, err)
	defer os.RemoveAll(fresh)
	copyFiles(t, from, fresh, manifest...)
	if out, _, err := runIn(fresh, "npm", "ci", "--ignore-scripts", "--no-audit",
		"--no-fund"); err != nil {
		t.Logf("npm ci: %v\n%s", err, out)
		lack(t, "npm ci")
	}
	if err := os.Rename(fresh, dir); err != nil {
		_, err := os.Stat(dir) // another test may have been quicker
		must(t, err)
	}
	return dir
}

// Servers and clients of the protocol's makers work with usher, over all transports.
func TestRealServers(t *testing.T) {
	slow(t)
	r := newRealWorkspace(t, npmInstall(t, "conformance"))
	// The daemon's own secret: the clients check that no module is given it.
	t.Setenv("SERVICE_WEBHOOK_SECRET", "nobody else's")

	t.Run("http", func(t *testing.T) {
		r.reset(t)
		d := daemonOptions{base: r.base, ownProcess: true}.start(t, r.workspace)
		r.runClients(t, "--url", d.URL)
		runGoClient(t, "-url", d.URL, "-protocol", "2026-07-28")
		runGoClient(t, "-url", d.URL, "-protocol", "2025-11-25")
		runGoClient(t, "-url", d.URL, "-protocol", "2024-11-05", "-sse")
		check(t, "status of the daemon", d.stop(t), 0)
		if t.Failed() {
			t.Logf("the daemon's log:\n%s", d.Log)
		}
	})
	t.Run("sse", func(t *testing.T) {
		r.reset(t)
		d := daemonOptions{base: r.base, ownProcess: true}.start(t, r.workspace)
		r.runClients(t, "--sse", "--url", d.URL)
		check(t, "status of the daemon", d.stop(t), 0)
	})
	t.Run("stdio", func(t *testing.T) {
		r.reset(t)
		exe := testBinary(t)
		t.Setenv(runAsUsher, "1")
		r.runClients(t, "--", exe, "stdio", "-base", r.base, r.workspace)
		for _, protocol := range []string{"2026-07-28", "2025-11-25"} {
			runGoClient(t, "-protocol", protocol, "--", exe, "stdio", "-base", r.base,
				r.workspace)
		}
	})
}

// Real clients connect without a claim, with one in a header, and with one in the URL.
func TestRealClientsConnect(t *testing.T) {
	slow(t)
	t.Parallel()
	r := newRealWorkspace(t, npmInstall(t, "conformance"))
	for _, name := range []string{"near", "far"} {
		write(t, filepath.Join(r.workspace, name, name+".usher.sh"),
			"# Returns the text.\n# @param {string} text what to say\nsay() { printf %s \"$1\"; }\n")
	}
	connect := r.root + "/connect"
	if out, _, err := runIn("conformance/gosdk", "go", "build", "-o", connect,
		"./connect"); err != nil {
		t.Fatalf("building the Go clients: %v\n%s", err, out)
	}
	d := daemonOptions{base: r.base, ownProcess: true}.startReady(t, r.workspace)
	code := newClaimFor(t, r.base, r.workspace+"/near").Code.Reveal()
	out, _, err := runIn(r.scripts, "node", "connect.mjs", "--url", d.URL, "--claim",
		code, "--go", connect,
		"--scratch", r.root)
	t.Logf("connect.mjs:\n%s", out)
	if err != nil {
		t.Errorf("connect.mjs: %v; the daemon's log:\n%s", err, d.Log)
	}
}

// No definition that a server can send makes the official clients refuse a list.
func TestRealClientsListEverything(t *testing.T) {
	slow(t)
	t.Parallel()
	r := newRealWorkspace(t, npmInstall(t, "conformance"))
	write(t, r.workspace+"/.mcp.json", `{"mcpServers":{"bad":{"command":"node","args":["`+
		r.scripts+`/definitions.mjs"]}}}`)
	d := daemonOptions{base: r.base, ownProcess: true}.startReady(t, r.workspace)
	out, _, err := runIn(r.scripts, "node", "definitions.mjs", "--url", d.URL)
	t.Logf("definitions.mjs:\n%s", out)
	if err != nil {
		t.Errorf("definitions.mjs: %v; the daemon's log:\n%s", err, d.Log)
	}
}

// runGoClient runs the checks of conformance/gosdk, which is a module of its own
// so that usher's needs no more than it does.
func runGoClient(t *testing.T, args ...string) {
	t.Helper()
	out, stdout, err := runIn("conformance/gosdk", "go",
		append([]string{"run", "."}, args...)...)
	if err != nil {
		t.Fatalf("conformance/gosdk %v: %v\n%s", args, err, out)
	}
	lines := strings.Split(strings.TrimSpace(stdout), "\n")
	t.Logf("conformance/gosdk %s: %s", strings.Join(args, " "), lines[len(lines)-1])
}

// realWorkspace is what usher hosts, and what the clients are run from.
type realWorkspace struct {
	installed string // the folder that npmInstall made
	scripts   string // a copy of our own, below it: so they find its node_modules
	root      string // what follows is in it; no other test's processes name it
	base      string // usher's
	workspace string
	files     string // what the filesystem server may touch
}

func newRealWorkspace(t *testing.T, installed string) *realWorkspace {
	t.Helper()
	scripts, err := os.MkdirTemp(installed, "scripts-")
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(scripts) })
	copyFiles(t, "conformance", scripts, "clients.mjs", "calls.mjs", "connect.mjs", "definitions.mjs")
	root := tempDir(t) // as the servers name it
	return &realWorkspace{
		installed: installed, scripts: scripts, root: root, base: root + "/base",
		workspace: root + "/workspace", files: root + "/files",
	}
}

// reset makes the workspace as the clients expect it at their start, and has
// usher learn what is in it: how a client fares before that is not for here, as
// it depends on how fast Node starts. It has the test wait for the end of all processes at its end.
func (r *realWorkspace) reset(t *testing.T) {
	t.Helper()
	t.Cleanup(func() { r.awaitNoProcess(t) })
	for _, path := range []string{r.workspace, r.files, r.memory()} {
		must(t, os.RemoveAll(path))
	}
	// Each server has a path below root among its arguments, by which awaitNoProcess knows it.
	places := strings.NewReplacer("SERVERS",
		r.installed+"/node_modules/@modelcontextprotocol",
		"ROOT", r.root, "FILES", r.files, "MEMORY", r.memory())
	servers := readFile(t, "testdata/real/servers.json")
	write(t, r.workspace+"/.mcp.json", places.Replace(servers))
	copyFiles(t, "testdata/real", r.workspace, "loud.usher.go")
	copyFiles(t, "testdata/real", r.files, "pixel.png")
	write(t, r.root+"/secret.txt", "nothing for the filesystem server")
	var out output
	if status := run(t.Context(), []string{"modules", "-base", r.base, r.workspace},
		strings.NewReader(""), &out, &out,
		os.LookupEnv); status != 0 {
		t.Fatalf("usher modules: status %d\n%s", status, &out)
	}
}

func (r *realWorkspace) memory() string { return r.root + "/memory.jsonl" }

// runClients runs the checks of clients.mjs.
func (r *realWorkspace) runClients(t *testing.T, server ...string) {
	t.Helper()
	args := []string{"clients.mjs", "--workspace", r.workspace, "--files", r.files}
	out, stdout, err := runIn(r.scripts, "node", append(args, server...)...)
	if err != nil {
		t.Fatalf("clients.mjs: %v\n%s", err, out)
	}
	lines := strings.Split(strings.TrimSpace(stdout), "\n")
	t.Logf("clients.mjs: %s", lines[len(lines)-1])
}

// awaitNoProcess waits until no process names a path below root.
func (r *realWorkspace) awaitNoProcess(t *testing.T) {
	t.Helper()
	var left []string
	defer func() {
		if len(left) > 0 {
			t.Logf("still there: %s", strings.Join(left, "\n"))
		}
	}()
	await(t, "the end of all that was started", func() bool {
		out, err := exec.Command("ps", "-ww", "-A", "-o", "pid=,args=").Output()
		must(t, err)
		left = nil
		for line := range strings.Lines(string(out)) {
			if strings.Contains(line, r.root) {
				left = append(left, line)
			}
		}
		return len(left) == 0
	})
}
