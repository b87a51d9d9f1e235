// Workers and the daemon around them: crashes, restarts, kills, and that no
// process outlives its daemon.

package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"go/ast"
	"io"
	"log/slog"
	"math/big"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

func TestBackOff(t *testing.T) {
	long(t)
	c := oneFake(t)
	for range 20 {
		if a := c.call("a_crash", ""); strings.Contains(a.failure(), "keeps crashing") {
			await(t, "the module to be started again", func() bool { return c.call("a_echo", "").failure() == "" })
			return
		}
	}
	t.Error("a module that crashes at each call was started each time")
}

func TestFaultyModules(t *testing.T) {
	long(t)
	dir := t.TempDir()
	writeFake(t, dir+"/noisy.usher", "garbage tools=x")
	writeFake(t, dir+"/twice.usher", "twice tools=x")
	writeFake(t, dir+"/dies.usher", "dies")
	writeFake(t, dir+"/grows.usher", "grows tools=x")
	write(t, dir+"/plain.usher", "not executable")
	write(t, dir+"/b@d.usher.go", "package main")
	d := startDaemon(t, dir)
	c := connect(t, d.URL)
	c.awaitTools("grows_extra1", "grows_x", "noisy_x", "twice_x")
	for _, tool := range []string{"noisy_x", "twice_x", "grows_x"} {
		for range 3 {
			a := c.call(tool, `{"n":1}`)
			check(t, tool+": failure", a.failure(), "")
			check(t, tool+": messages", len(a.Events), 1)
			checkOmits(t, tool, a.Body, "second")
		}
	}
	out, _, _ := usher(t, "", "modules", "-base", t.TempDir(), dir)
	checkContains(t, "usher modules", out, "exited at startup (exit status 3): fake: no module named turbo",
		"not executable: chmod +x plain.usher", `module name "b@d"`)
}

func TestSilentModuleIsGivenUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := testWorker("a", nil)
		context.AfterFunc(w.ctx, func() { w.finish("killed") })
		start := time.Now()
		err := w.shakeHands(t.Context(), false)
		checkContains(t, "error", fmt.Sprint(err), `module "a" can't start: did not answer initialize within`)
		check(t, "time until it is given up", time.Since(start), startTimeout)
	})
}

func TestIdleStop(t *testing.T) {
	long(t)
	c := oneFake(t, "-idle", "1ms")
	first := resultText(c.call("a_pid", "").result())
	await(t, "the idle process to be stopped", func() bool {
		pid, _ := strconv.Atoi(first)
		return !processAlive(pid)
	})
	second := resultText(c.call("a_pid", "").result())
	check(t, "another process answers", second != first && second != "", true)
}

// TestNoProcessOutlivesTheDaemon ends a daemon while modules in all languages, a shell function
// and a build run.
func TestNoProcessOutlivesTheDaemon(t *testing.T) {
	long(t)
	bin := t.TempDir()
	command, err := exec.LookPath("go")
	must(t, err)
	write(t, bin+"/go", "#!/bin/sh\ncase $* in *built*) exec sleep 1000; esac\nexec "+command+" \"$@\"\n")
	must(t, os.Chmod(bin+"/go", 0o755))
	for name, end := range map[string]syscall.Signal{"by TERM": syscall.SIGTERM, "by KILL": syscall.SIGKILL} {
		t.Run(name, func(t *testing.T) {
			mark, processes := markProcesses(t)
			dir, names := languages(t)
			writeFake(t, dir+"/child.usher", "child tools=x")
			write(t, dir+"/wait.usher.sh", "# Waits.\nwait_() { trap '' TERM; sleep 600; }\n")
			env := map[string]string{markVar: mark, "PATH": bin + ":" + os.Getenv("PATH")}
			d := daemonOptions{ownProcess: true, env: env}.start(t, dir)
			c := connect(t, d.URL)
			for _, name := range names {
				tool := name + "_handleContact"
				await(t, tool, func() bool { return c.call(tool, `{"email":"x","message":"y"}`).failure() == "" })
			}
			await(t, "the fake", func() bool { return c.call("child_x", "").failure() == "" })
			write(t, dir+"/built.usher.go", goHead)
			await(t, "the build", func() bool { return strings.Count(processes(), "sleep 1000") == 2 })
			_, noShell := exec.LookPath("sh")
			if end == syscall.SIGKILL && noShell == nil { // others wait for the call
				req := c.request(http.MethodPost,
					`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"wait_wait_"}}`)
				go c.http.Do(req)
				await(t, "the function", func() bool { return strings.Contains(processes(), "sleep 600") })
			}
			d.signal(t, end)
			await(t, "all processes to end", func() bool { return processes() == "" })
		})
	}
}

// TestGroups checks that a zombie is dead, that a group is not confused with another whose
// leader has the same id, and that usher gives up on a process that can't be killed.
func TestGroups(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		skip(t, "looks at /proc")
	}
	cmd := exec.Command("sleep", "1000")
	id, err := startGroup(cmd)
	must(t, err)
	exited := make(chan struct{})
	close(exited)
	ended := &child{group: id, exited: exited}
	check(t, "a group has another's process", ended.signal(syscall.SIGKILL), false)
	check(t, "the other process is alive", processAlive(int(id)), true)
	check(t, "it is killed", id.signal(syscall.SIGKILL), true)
	await(t, "a zombie", func() bool { return !processAlive(int(id)) })
	cmd.Wait()
	synctest.Test(t, func(t *testing.T) {
		g := newGroups(slog.New(slog.DiscardHandler))
		stuck := &child{group: id, groups: g, exited: make(chan struct{})}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		check(t, "usher gives up", errors.Is(stuck.wait(ctx, 0), context.Canceled), true)
	})
}

// TestGuardDoesNotRead checks that usher neither waits for a guard that does not read, nor
// forgets what the guard has to know.
func TestGuardDoesNotRead(t *testing.T) {
	t.Parallel()
	read, write, err := os.Pipe()
	must(t, err)
	defer read.Close()
	g := newGroups(slog.New(slog.DiscardHandler))
	g.pipe = write
	for len(g.unsent) == 0 { // the pipe has room
		g.unsent = bytes.Repeat([]byte("- 1\n"), 1000)
		g.tell("-", 1)
	}
	g.tell("+", 2)
	go func() {
		g.tell("+", 3)
		g.pipe.Close()
	}()
	text, _ := io.ReadAll(read)
	check(t, "the last lines", strings.HasSuffix(string(text), "\n- 1\n+ 2\n+ 3\n"), true)
}

func TestOneDaemonPerBase(t *testing.T) {
	t.Parallel()
	dir, base := t.TempDir(), t.TempDir()
	d := daemonOptions{base: base, ownProcess: true}.start(t, dir)
	second := daemonOptions{base: base}.launch(t, dir)
	check(t, "status of a second daemon", second.wait(t), 1)
	checkContains(t, "its log", second.Log.String(), d.URL, "-base")
	wantStatus(t, "the first one after that", connect(t, d.URL).ask("ping", ""), http.StatusOK)
	data := base + "/.data"
	check(t, "the folders in its record", len(readDaemon(data).Roots), 1)
	d.signal(t, os.Kill)
	raw := readFile(t, data+"/"+recordName)
	checkContains(t, "the record that it left", string(raw), d.URL)
	check(t, "the daemon that runs then", readDaemon(data).URL, "")
	daemonOptions{base: base}.start(t, dir).stop(t)
	if _, err := os.Stat(data + "/" + recordName); err == nil {
		t.Error("a daemon that has ended left its record")
	}
}

func TestServeRefuses(t *testing.T) {
	dir := t.TempDir()
	file := dir + "/file"
	write(t, file, "")
	busy := startDaemon(t, t.TempDir())
	addr := strings.Trim(strings.TrimPrefix(busy.URL, "http://"), "/")
	secret := func(v string) map[string]string { return map[string]string{webhookSecretVar: v} }
	for _, tt := range []struct {
		name, args string
		env        map[string]string
		code       int
		says       string
	}{
		{"another address, without MCP guarded", "-addr 192.0.2.1:0", secret("x"), 2, "-open"},
		{"a secret with white space", "", secret("x\n"), 2, "white space"},
		{"no port", "-addr localhost", nil, 2, "HOST:PORT"},
		{"a port that is taken", "-addr " + addr, nil, 1, "choose another address with -addr"},
		{"a size that is none", "-max-body lots", nil, 2, "KiB"},
		{"an origin with a path", "-allow-origin https://x.example/y", nil, 2, "without a path"},
		{"a host with a scheme", "-allow-host https://x.example", nil, 2, "host name"},
		{"half a certificate", "-tls-cert x", nil, 1, "-tls-cert and -tls-key: "},
		{"an unknown log form", "-log xml", nil, 2, "text or json"},
		{"a secret that is empty", "", map[string]string{webhookSecretVar: ""}, 2, " is empty"},
		{"its own folder from within", dir, map[string]string{nestedVar: dir + "/me.usher"}, 1, "started this usher"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var out, errs bytes.Buffer
			args := []string{"serve", "-addr", "127.0.0.1:0", "-base", t.TempDir()}
			code := run(t.Context(), append(args, strings.Fields(tt.args)...), nil, &out, &errs, lookupIn(tt.env))
			check(t, "status", code, tt.code)
			checkContains(t, "stderr", errs.String(), "usher: serve: ", tt.says)
		})
	}
}

func TestNoGoroutineIsLeft(t *testing.T) {
	before := runtime.NumGoroutine()
	dir := t.TempDir()
	writeFake(t, dir+"/a.usher", "good")
	d := startDaemon(t, dir)
	c := connect(t, d.URL)
	_, hangUp := c.listen()
	c.call("a_crash", "")
	c.call("a_echo", "")
	hangUp()
	d.stop(t)
	c.http.CloseIdleConnections()
	http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	await(t, "all goroutines to end", func() bool {
		return runtime.NumGoroutine() <= before
	})
}

// TestOneWayToAProcess checks that only startCall writes requests to a process, and that the pool checks
// the claim immediately before each request that it makes.
func TestOneWayToAProcess(t *testing.T) {
	long(t)
	h := readHouse(t)
	allowed := map[string][]string{ // the functions that may name each
		"workerState.input": {"spawn", "writeStdin", "enqueue"},
		"Worker.enqueue":    {"startCall", "send"},
		"Worker.send":       {"notify", "reply"},
	}
	named := make(map[string]bool)
	inspect := func(fn *ast.FuncDecl, n ast.Node) {
		if id, ok := n.(*ast.Ident); ok && h.info.Uses[id] != nil {
			object := h.info.Uses[id]
			name := h.ownerOf(object) + "." + object.Name()
			named[name] = true
			if functions := allowed[name]; functions != nil && !slices.Contains(functions, fn.Name.Name) {
				t.Errorf("%s names %s: only %v may", fn.Name.Name, name, functions)
			}
		}
		call, ok := n.(*ast.CallExpr)
		if !ok || fn.Name.Name == "startCall" {
			return
		}
		encoder, _ := call.Fun.(*ast.Ident)
		if encoder == nil || encoder.Name != "encodeRequest" {
			return
		}
		if id, ok := call.Args[0].(*ast.Ident); !ok || id.Name != "nil" {
			t.Errorf("%s makes a request to a module", fn.Name.Name)
		}
	}
	for name, file := range h.files {
		for _, decl := range file.Decls {
			fn, ok := decl.(*ast.FuncDecl)
			if !ok || layerOf(name) != layerOf("worker.go") {
				continue
			}
			if name == "pool.go" {
				checkLastCheck(t, fn)
			}
			ast.Inspect(fn, func(n ast.Node) bool {
				inspect(fn, n)
				return true
			})
		}
	}
	for name := range allowed {
		check(t, name+" is used", named[name], true)
	}
}

// checkLastCheck checks that each statement of the pool that makes a request follows the last
// check of the claim.
func checkLastCheck(t *testing.T, fn *ast.FuncDecl) {
	t.Helper()
	calls := func(n ast.Node, name string) (found bool) {
		ast.Inspect(n, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok {
				method, _ := call.Fun.(*ast.SelectorExpr)
				function, _ := call.Fun.(*ast.Ident)
				found = found || method != nil && method.Sel.Name == name || function != nil && function.Name == name
			}
			return true
		})
		return found
	}
	for i, statement := range fn.Body.List {
		if !calls(statement, "request") && !calls(statement, "listen") {
			continue
		}
		if i == 0 || !calls(fn.Body.List[i-1], "lastCheck") {
			t.Errorf("%s makes a request without a check of the claim right before", fn.Name.Name)
		}
	}
}

// writeCertificate writes the files cert and key into dir.
func writeCertificate(t *testing.T, dir string, serial int64) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	is := &x509.Certificate{SerialNumber: big.NewInt(serial)}
	cert, _ := x509.CreateCertificate(rand.Reader, is, is, key.Public(), key)
	raw, _ := x509.MarshalPKCS8PrivateKey(key)
	write(t, dir+"/cert", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert})))
	write(t, dir+"/key", string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw})))
}

// A renewed certificate is used without a restart. While its files do not match, the
// previous one is.
func TestCertificateIsReadAgain(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	flags := &serveFlags{addr: "127.0.0.1:0", tlsCert: dir + "/cert", tlsKey: dir + "/key"}
	d := &daemon{flags: flags, log: slog.New(slog.DiscardHandler)}
	writeCertificate(t, dir, 1)
	_, err := d.listen()
	must(t, err)
	defer d.listener.Close()
	wantSerial := func(want int64) {
		t.Helper()
		var accepting sync.WaitGroup
		accepting.Go(func() {
			conn, _ := d.listener.Accept()
			conn.(*tls.Conn).Handshake()
			conn.Close()
		})
		config := &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2", "http/1.1"}}
		conn, err := tls.Dial("tcp", d.listener.Addr().String(), config)
		must(t, err)
		state := conn.ConnectionState()
		check(t, "serial number", state.PeerCertificates[0].SerialNumber.Int64(), want)
		check(t, "the protocol, of h2 and http/1.1", state.NegotiatedProtocol, "http/1.1")
		conn.Close()
		accepting.Wait()
	}
	wantSerial(1)
	writeCertificate(t, dir, 2)
	wantSerial(2)
	write(t, dir+"/key", "half a key")
	wantSerial(2)
	writeCertificate(t, dir, 3)
	wantSerial(3)
}

// The reason that clients see is about the module's file, and contains no absolute path.
func TestFaultLine(t *testing.T) {
	for details, want := range map[string]string{
		"m.usher.py:3: SyntaxError":                 ": m.usher.py:3: SyntaxError",
		"warning\nm.usher.py:3: a/b is no module":   ": m.usher.py:3: a/b is no module",
		"m.usher.py:3: can't read /home/ada/x":      ": see usher modules",
		`m.usher.py:3: can't read "C:\Users\ada\x"`: ": see usher modules",
		"/home/ada/m.usher.py:3: SyntaxError":       ": see usher modules",
		"other.py:3: SyntaxError":                   ": see usher modules",
	} {
		check(t, details, faultLine(processFault("m", "crashed", details), "m.usher.py"), want)
	}
	check(t, "another error", faultLine(errTimeout, "m.usher.py"), "")
}
