// Tests of serve.go: how a daemon starts and ends.

package main

import (
	"flag"
	"io"
	"math/big"
	"net/http"
	"os"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// A size is a number and a unit, and nothing else.
func FuzzParseSize(f *testing.F) {
	check(f, "no bytes", formatSize(0), "0 bytes")
	form := regexp.MustCompile(`^([0-9]+)(KiB|MiB|GiB)?$`)
	f.Fuzz(func(t *testing.T, s string) {
		var flags serveFlags
		err := flags.setMaxBody(s)
		want := new(big.Int)
		if match := form.FindStringSubmatch(s); match != nil {
			want.SetString(match[1], 10)
			want.Lsh(want, map[string]uint{"": 0, "KiB": 10, "MiB": 20, "GiB": 30}[match[2]])
		}
		fits := want.Sign() > 0 && want.Cmp(big.NewInt(1<<40)) <= 0
		if (err == nil) != fits || fits && int64(flags.maxBody) != want.Int64() {
			t.Fatalf("%q is %d, %v; want %d", s, flags.maxBody, err, want)
		}
		shown := strings.TrimSuffix(strings.ReplaceAll(formatSize(int64(flags.maxBody)), " ",
			""), "bytes")
		if again := (serveFlags{}); fits &&
			(again.setMaxBody(shown) != nil || again.maxBody != flags.maxBody) {
			t.Fatalf("%d is shown as %q, which is another size", flags.maxBody, shown)
		}
	})
}

// A base folder has one daemon at a time. A killed one does not count.
func TestOneDaemonPerBase(t *testing.T) {
	t.Parallel()
	dir, base := t.TempDir(), t.TempDir()
	d := daemonOptions{base: base, ownProcess: true}.start(t, dir)
	second := daemonOptions{base: base}.launch(t, dir)
	check(t, "status of a second daemon", second.wait(t), 1)
	checkContains(t, "its log", second.Log.String(), d.URL, "-base")
	wantStatus(t, "the first one after that", connect(t, d.URL).Ask("ping", ""), 200)
	data := base + "/.data"
	check(t, "the folders in its record", len((&app{data: data}).readDaemon().Roots), 1)
	d.signal(t, os.Kill)
	raw := readFile(t, data+"/"+recordName)
	checkContains(t, "the record that it left", raw, d.URL)
	check(t, "the daemon that runs then", (&app{data: data}).readDaemon().URL, "")
	daemonOptions{base: base}.start(t, dir).stop(t)
	check(t, "the daemon that runs after another one has stopped", (&app{data: data}).readDaemon().URL, "")
}

// usher serve refuses what would be unsafe or can't work, and says what to do.
func TestServeRefuses(t *testing.T) {
	flags := flag.NewFlagSet("serve", flag.ContinueOnError)
	declareServeFlags(flags, io.Discard)
	check(t, "the address without a flag", flags.Lookup("addr").DefValue, "127.0.0.1:3000")
	dir := t.TempDir()
	file := dir + "/file"
	write(t, file, "")
	busy := startDaemon(t, t.TempDir())
	secret := func(v string) map[string]string { return map[string]string{webhookSecretVar: v} }
	for _, tt := range []struct {
		name, args string
		env        map[string]string
		code       int
		says       string
	}{
		{"another address, without MCP guarded", "-addr 192.0.2.1:0", secret("x"), 2, "-open"},
		{"another host", "-allow-host usher.example", secret("x"), 2, "-open"},
		{"another public URL", "-public-url https://usher.example", secret("x"), 2, "-open"},
		{"a secret with white space", "", secret("x\n"), 2, "white space"},
		{"no port", "-addr localhost", nil, 2, "HOST:PORT"},
		{"a port that is taken", "-addr " + busy.address(), nil, 1, "choose another -addr"},
		{"a size that is none", "-max-body lots", nil, 2, "KiB"},
		{"a host with a scheme", "-allow-host https://x.example", nil, 2, "host name"},
		{"a host with a *", "-allow-host *.example.com", nil, 2, "host name"},
		{"hosts in a list", "-allow-host a.example,b.example", nil, 2, "host name"},
		{"a host in Unicode", "-public-url https://bücher.example", nil, 2, "host name"},
		{"a * in an origin", "-addr 192.0.2.1:0 -allow-origin https://*.x.example", nil, 2, "scheme and"},
		{"an unknown log form", "-log xml", nil, 2, "text or json"},
		{"a secret that is empty", "", map[string]string{webhookSecretVar: ""}, 2, " is empty"},
		{"its own folder from within", dir,
			map[string]string{nestedVar: "\n/m\n" + dir + "/me.usher"}, 1, "started this usher"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			args := append([]string{"serve", "-addr", "127.0.0.1:0"}, strings.Fields(tt.args)...)
			_, errs, code := usherIn(t, tt.env, "", args...)
			check(t, "status", code, tt.code)
			checkContains(t, "stderr", errs, "usher: serve: ", tt.says)
		})
	}
}

// A daemon that has ended leaves no goroutine.
func TestNoGoroutineIsLeft(t *testing.T) {
	before := runtime.NumGoroutine()
	d := startFakes(t, "a: good")
	c := connect(t, d.URL)
	_, hangUp := c.Listen()
	c.Call("a_crash", "")
	c.Call("a_echo", "")
	hangUp()
	d.stop(t)
	c.HTTP.CloseIdleConnections()
	http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	await(t, "all goroutines to end", func() bool {
		return runtime.NumGoroutine() <= before
	})
}

// The first record of the log has the version and the address, the last one says why the
// daemon ended.
func TestLogBeginsAndEnds(t *testing.T) {
	d := startDaemon(t, t.TempDir())
	check(t, "status", d.stop(t), 0)
	lines := strings.Split(strings.TrimSpace(d.Log.String()), "\n")
	checkContains(t, "the first record", lines[0], "msg=listening version=", " address=127.0.0.1:")
	checkContains(t, "the last record", lines[len(lines)-1], "msg=stopped why=")
}

// SIGHUP, which a closed terminal sends, ends a daemon in order, unless it is ignored.
func TestHangUpEndsInOrder(t *testing.T) {
	need(t, "sh")
	t.Parallel()
	dir := t.TempDir()
	d := daemonOptions{ownProcess: true}.start(t, dir)
	check(t, "status", d.signal(t, syscall.SIGHUP), 0)
	checkContains(t, "the log", d.Log.String(), "msg=stopped why=")
	d = daemonOptions{ownProcess: true, shell: "trap '' HUP"}.start(t, dir)
	must(t, d.cmd.Process.Signal(syscall.SIGHUP))
	wantStatus(t, "a daemon under nohup", connect(t, d.URL).Ask("ping", ""), 200)
}

// The log says where calls and deliveries come from and, with -log-arguments, what they contain:
// not the client's _webhook, and not more than maxLogged bytes.
func TestLogSaysWhatWasSent(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("z", 2*maxLogged)
	clipped := `{"n":"` + long[:maxLogged-len(`{"n":"`)] + "…"
	for _, tt := range []struct {
		flags          string
		shows, omitted []string
	}{
		{"-open -open-webhooks", nil, []string{"arguments=", "zzz"}},
		{"-open -open-webhooks -log-arguments", []string{
			`method=x .* arguments="{\\"n\\":1}" client="test 1" .*` + sentBy,
			`msg=delivery .*` + sentBy + ` arguments="{\\"n\\":2,\\"_x\\":3}"`,
			`method=x .* arguments=` + regexp.QuoteMeta(strconv.Quote(clipped)) + ` client=`,
		}, nil},
	} {
		t.Run(tt.flags, func(t *testing.T) {
			d := daemonOptions{}.startTools(t, tt.flags, "x", "handleIt")
			c := newClient(t, d.URL)
			proxied := setHeader("X-Forwarded-For", "203.0.113.9, 10.0.0.1")
			c.Modern("tools/call", `{"name":"m_x","arguments":{"n":1,"_webhook":{}}}`, proxied)
			c.Modern("tools/call", `{"name":"m_x","arguments":{"n":"`+long+`"}}`, proxied)
			d.deliver(t, "m/handleIt", `{"n":2,"_x":3}`, "X-Forwarded-For: 203.0.113.9, 10.0.0.1")
			await(t, "three records", func() bool { // each is written after its answer
				return len(regexp.MustCompile(sentBy).FindAllString(d.Log.String(), -1)) >= 3
			})
			log := d.Log.String()
			checkOmits(t, "the log", log, append(tt.omitted, "_webhook")...)
			check(t, "records with addresses", len(regexp.MustCompile(sentBy).FindAllString(log, -1)), 3)
			for _, line := range tt.shows {
				if !regexp.MustCompile(line).MatchString(log) {
					t.Errorf("no line like %s in:\n%s", line, log)
				}
			}
		})
	}
}

// sentBy matches the address of a connection and what a proxy says.
const sentBy = `remote=127.0.0.1 forwarded_for="203.0.113.9, 10.0.0.1"`

// What the report notes of a module is a warning in the log, once, when it first appears.
func TestLogHasTheNotes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	hook := "handleIt: @signature github X_SIGNING_SECRET"
	writeTools(t, dir+"/m.usher", hook)
	d := daemonOptions{env: map[string]string{}}.startReady(t, dir)
	const fails = `level=WARN msg="module note" module=m file=.*/m.usher ` +
		`note="handleIt: deliveries fail: @signature: X_SIGNING_SECRET is not set"`
	const name = `level=WARN msg="module note" module=m .* note="m_y+: some clients refuse it`
	count := func(line string) int {
		return len(regexp.MustCompile("(?m)"+line).FindAllString(d.Log.String(), -1))
	}
	check(t, "warnings at the start", count(fails), 1)
	writeTools(t, dir+"/m.usher", hook, strings.Repeat("y", 60))
	await(t, "the new note", func() bool { return count(name) == 1 })
	check(t, "warnings of the earlier note", count(fails), 1)
}
