// Tests of webhook.go: which method a path names, and who may deliver.

package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"usher/internal/mcptest"
)

var guarded = map[string]string{webhookSecretVar: testSecret}

// shown is the header with the secret.
const shown = secretHeader + ": " + testSecret

// deliver posts a JSON body.
func (d *testDaemon) deliver(t *testing.T, path, body string, headers ...string) answer {
	t.Helper()
	return d.send(t, "POST", path, body,
		append([]string{"Content-Type: application/json"}, headers...)...)
}

// checkHeaders checks the headers that every answer to a delivery has.
func checkHeaders(t *testing.T, what string, a answer) {
	t.Helper()
	check(t, what+": X-Content-Type-Options", a.Header.Get("X-Content-Type-Options"), "nosniff")
	check(t, what+": it has a request id", a.Header.Get(requestIDHeader) != "", true)
}

// checkError checks an answer that is an error: its status, its form, its headers.
func checkError(t *testing.T, what string, a answer, status int) {
	t.Helper()
	wantStatus(t, what, a, status)
	if a.Status != status {
		return
	}
	check(t, what+": the body has an error",
		stringField(a.Body, "error") != "", true)
	checkContains(t, what+": Content-Type", a.Header.Get("Content-Type"), "application/json")
	checkHeaders(t, what, a)
}

// A method has the path of its tag, else of its name if that begins with handle. No other
// path is served.
func TestWebhookHasOnePath(t *testing.T) {
	needLanguage(t, ".sh")
	long(t)
	dir := t.TempDir()
	quiet := `{"type":"object","properties":{"_webhook":{"type":"object"},"x":{}},"required":["_webhook"]}`
	writeTools(t, dir+"/host.usher",
		"handlePush",
		"Handle",
		"tagged: First line.\n@webhook\nLast line.",
		"short: @webhook inbox",
		"long: Text.\n\n  @webhook /a/b/c/d.e~f_g-h/1  \n",
		"handleElsewhere: @webhook elsewhere/else",
		"spoken: Write (@webhook) to make it one.",
		"twice: @webhook first\n@webhook second",
		"handleBad: @webhook with space",
		"handleDots: @webhook a/../b",
		"handleQuery: @webhook a?b",
		"handleCode: @webhook caf\u00e9",
		"handle$(X)",
		"quiet "+quiet+": Is none.",
	)
	writeShared(t, dir+"/deep", "conf",
		mcptest.FakeTools(t, "handleX",
			"other: @webhook from/config"))
	write(t, dir+"/sh.usher.sh", "# Takes it.\nhandleShell() { echo; }\n\n"+
		"# Takes it too.\n#\n# @webhook shell/path\nother() { cat; }\n")
	d := daemonOptions{env: guarded}.startReady(t, dir)
	for status, paths := range map[int][]string{
		200: {
			"host/handlePush", "host/tagged", "inbox", "a/b/c/d.e~f_g-h/1", "elsewhere/else",
			"first", "shell/path", "host/handlePush?x=1", "host%2FhandlePush",
			"host/handle%50ush",
		},
		204: {"sh/handleShell"},
		404: {
			"host/Handle", "host/quiet", "host/spoken",
			"host/short",           // it has another path
			"host/handleElsewhere", // the tag wins over the prefix
			"second", "host/handleBad", "host/handleDots", "b", "a/b", "a/../b",
			"host/handleQuery",
			"a/b/", "host/handleCode", "host/handle$(X)",
			"conf/handleX", "from/config", // not written for usher
			"sh/other", "host", "host/", "", "host/handlePush/", "host/handlepush",
			"HOST/handlePush",
			"nobody/handlePush", "host_handlePush",
		},
	} {
		for _, path := range paths {
			t.Run(path, func(t *testing.T) {
				a := d.deliver(t, path, `{}`, shown)
				if status == 404 {
					checkError(t, "with the secret", a, status)
				}
				wantStatus(t, "with the secret", a, status)
				checkError(t, "without the secret", d.deliver(t, path, `{}`), 401)
			})
		}
	}

	c := connect(t, d.URL)
	list := c.Ask("tools/list", "").Body
	check(t, "descriptions that begin with a tag, which only conf may have",
		strings.Count(list, `"@webhook`), 1)
	checkOmits(t, "tools/list", list, `\n@webhook`, webhookParam)
	checkContains(t, "tools/list", list, `"First line.\nLast line."`,
		`"Write (@webhook) to make it one."`,
		`"Takes it too."`)
	a := c.Call("host_quiet", `{"_webhook":{},"_Webhook":1,"x":[9007199254740993]}`)
	check(t, "the arguments of an MCP client", string(field(a.Result(), "structuredContent")),
		`{"x":[9007199254740993]}`)
	checkContains(t, "usher modules", modulesOf(t, dir),
		"/webhook/host/handlePush -H ", "/webhook/inbox ",
		"/webhook/a/b/c/d.e~f_g-h/1 ",
		"/webhook/shell/path ", `handleBad: @webhook "with space"`,
		`handleDots: @webhook "a/../b"`,
		`handleQuery: @webhook "a?b"`,
		`handleCode: @webhook`)
}

// A path that two methods have belongs to neither, and both are reported.
func TestWebhookPathsAreUnique(t *testing.T) {
	long(t)
	dir := t.TempDir()
	writeTools(t, dir+"/p/deploy.usher", "handleX",
		"handleOnly",
		"plain")
	writeTools(t, dir+"/q/deploy.usher", "handleX", "plain")
	writeTools(t, dir+"/one.usher", "a: @webhook same/path")
	writeTools(t, dir+"/two.usher", "b: @webhook same/path",
		"c: @webhook one/handleZ",
		"e: @webhook deploy/handleOnly")
	writeTools(t, dir+"/three.usher",
		"d: @webhook three/handleE", "handleE")
	d := daemonOptions{env: guarded}.startReady(t, dir)
	for _, row := range []struct {
		path   string
		status int
		names  []string
	}{
		{"p-deploy/handleX", 200, nil},
		{"deploy/handleX", 409, []string{"p-deploy_handleX", "q-deploy_handleX"}},
		{"deploy/handleOnly", 409, []string{"p-deploy_handleOnly", "two_e"}},
		{"deploy/plain", 404, nil},
		{"same/path", 409, []string{"one_a", "two_b"}},
		{"three/handleE", 409, []string{"three_d", "three_handleE"}},
		{"one/handleZ", 200, nil},
	} {
		t.Run(row.path, func(t *testing.T) {
			a := d.deliver(t, row.path, `{}`, shown)
			wantStatus(t, "with the secret", a, row.status)
			checkContains(t, "the answer", a.Body, row.names...)
			checkError(t, "without the secret", d.deliver(t, row.path, `{}`), 401)
		})
	}
	const note = ": not served, as several webhooks have the path "
	checkContains(t, "usher modules", modulesOf(t, dir), "note: a"+note+
		"same/path: one_a, two_b",
		"note: b"+note, "note: d"+note, "note: handleE"+note, "/webhook/p-deploy/handleX ",
		"/webhook/q-deploy/handleX ")

	writeTools(t, dir+"/two.usher", "b: @webhook other/path")
	await(t, "both to be served again", func() bool {
		return d.deliver(t, "same/path", `{}`, shown).Status == 200 &&
			d.deliver(t, "other/path", `{}`, shown).Status == 200
	})
}

func readAnswer(t *testing.T, res *http.Response) answer {
	t.Helper()
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	must(t, err)
	return answer{Status: res.StatusCode, Header: res.Header, Body: string(text)}
}

// address returns the host and port at which the daemon listens.
func (d *testDaemon) address() string {
	return strings.Trim(strings.TrimPrefix(d.URL, "http:"), "/")
}

// raw sends bytes unchanged and reads the answer.
func (d *testDaemon) raw(t *testing.T, request string) answer {
	t.Helper()
	conn, err := net.Dial("tcp", d.address())
	must(t, err)
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(bodyTimeout + patience))
	io.WriteString(conn, request)
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Errorf("%.120q: %v", request, err)
		return answer{}
	}
	return readAnswer(t, res)
}

// A sender without the secret learns nothing from a path, however it is written: neither
// whether it exists nor its clean form.
func TestWebhookPathTellsNothing(t *testing.T) {
	long(t)
	d := daemonOptions{env: guarded}.startTools(t, "-accept-signatures", "handleX")
	for _, path := range []string{
		"/webhook/", "/webhook//m/handleX", "/webhook/m//handleX", "/webhook/m/handleX/",
		"/webhook/./m/handleX", "/webhook/m/../m/handleX", "/webhook/%2e%2e/m/handleX",
		"/%77ebhook/m/handleX", "/webhook/x/../../healthz", "/webhook/..", "/webhook/nothing",
		"/webhook%2Fm%2FhandleX", "/webhook/m/handleX;a=b", "/webhook/%ff%fe",
		"/webhook/" + strings.Repeat("a/", 4000),
		"/webhook", "//webhook/m/handleX",
		"/./webhook/m/handleX", "/x/../webhook/m/handleX", // another first segment
	} {
		t.Run(clipText(path, 40), func(t *testing.T) {
			want := 401
			decoded, _ := url.PathUnescape(path)
			if !strings.HasPrefix(strings.TrimLeft(decoded, "/")+"/", "webhook/") {
				want = 404
			}
			head := " " + path +
				" HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nConnection: close\r\n"
			for _, method := range []string{"POST", "GET", "OPTIONS", "DELETE", "PUT",
				"TRACE", "FOO"} {
				a := d.raw(t, method+head+"\r\n")
				wantStatus(t, method+" without the secret", a, want)
				check(t, "Location", a.Header.Get("Location"), "")
			}
			a := d.raw(t, "POST"+head+shown+"\r\n\r\n")
			check(t, "with the secret it is answered", a.Status == 200 || a.Status == 404, true)
		})
	}
}

const testSecret = "s3cret-7c1f"

// send sends a delivery.
func (d *testDaemon) send(t *testing.T, method, path, body string, headers ...string) answer {
	t.Helper()
	req, err := d.hookRequest(method, path, body, headers...)
	must(t, err)
	res, err := hookClient.Do(req)
	must(t, err)
	return readAnswer(t, res)
}

// runs returns how often a module's tool was called.
func (d *testDaemon) runs(t *testing.T, module, tool string) int {
	t.Helper()
	a := d.deliver(t, module+"/handleRuns", `{}`, shown)
	n, _ := strconv.Atoi(string(field(a.Body, tool)))
	return n
}

// A path that is nearly one of webhooks gets 404, and the owner's log says which, without what may be a
// code, and which paths are the nearest.
func TestNearlyWebhookPathIsLogged(t *testing.T) {
	t.Parallel()
	d := daemonOptions{}.startTools(t, "", "handlePush: @webhook github/push", "a: @webhook a/first",
		"handleBatch", "z: @webhook z/"+strings.Repeat("last", 50))
	for path, logged := range map[string]string{
		"webhooks/github/push": "/webhooks/github/push", "hook/github/push": "/hook/github/push",
		"Webhook/github/push": "/***/github/push", "web-hook/R3K9QZ": "/web-hook/***",
		"webhook/R3K-9QZ/push": "***-***/push", "webhook/github/a_very_long_name": "github/a_very_long_name",
		"/webhook/github/push": "//webhook/github/push", "webhook": "/webhook", "hooks": "/hooks",
	} {
		a := d.raw(
			t,
			"POST /"+path+" HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
		)
		checkError(t, path, a, 404)
		d.awaitLog(t, "path="+logged+" why=")
	}
	for path, nearest := range map[string]string{
		"webhooks/github/push": `["a/first" "github/push" "m/handleBatch" `,
		"webhook/github/psuh":  `["a/first" "github/push" `,
		"webhook/github/pusk":  `["github/push" "m/handleBatch" `,
		"webhook/m/batch":      `["github/push" "m/handleBatch" `,
		"webhook/0":            `["a/first" "github/push" `,
		"webhook/zzz":          `["z/lastlast`,
		"/webhook/github/push": `["a/first" "github/push" "m/handleBatch" `, // behind a URL with a slash
	} {
		before := len(d.Log.String())
		a := d.raw(
			t,
			"POST /"+path+" HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
		)
		checkError(t, path, a, 404)
		checkOmits(t, "the answer", a.Body, "github/push")
		d.awaitLog(t, a.Header.Get(requestIDHeader))
		want := strings.ReplaceAll(nearest, `"`, `\"`)
		checkContains(t, "the log of "+path, d.Log.String()[before:], "the nearest are "+want)
	}
	a := d.raw(
		t,
		"POST /hookah/x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
	)
	checkContains(t, "another path", a.Body, "jsonrpc")
}

// Checks come in one order, with and without the secret: each row fails all checks that the
// rows below it fail.
func TestWebhookOrderOfChecks(t *testing.T) {
	t.Parallel()
	dir, base := t.TempDir(), t.TempDir()
	const named = `{"type":"object","properties":{"name":{"type":"string"}},"required":["name"]}`
	writeTools(t, dir+"/m.usher", "handleIt "+named,
		"handleSigned: @signature github WH_NOT_SET_SIGNING_SECRET",
		"a: @webhook twice", "b: @webhook twice",
		"handleRuns=runs")
	fits := strings.Repeat(" ", 1012) + `{"name":"x"}`
	large := strings.Repeat(" ", 1025)
	const csv = "Content-Type: text/csv"
	for _, env := range []map[string]string{nil, guarded} {
		d := daemonOptions{base: base, env: env}.startReady(t, dir, "-max-body", "1KiB")
		for _, row := range []struct {
			what, method, path, body, header string
			status                           int
		}{
			{"foreign host", "PUT", "m/nothing", large, "Host: evil.example", 403},
			{"foreign origin", "PUT", "m/nothing", large, "Origin: https://evil.example", 403},
			{"opaque origin", "POST", "m/handleIt", `{"name":"x"}`, "Origin: null", 403},
			{"cross-site request", "POST", "m/handleIt", `{"name":"x"}`,
				"Sec-Fetch-Site: cross-site", 403},
			{"PUT", "PUT", "m/nothing", large, csv, 405},
			{"GET", "GET", "m/handleIt", "", "", 405},
			{"HEAD", "HEAD", "m/handleIt", "", "", 405},
			{"OPTIONS", "OPTIONS", "m/handleIt", "", "", 405},
			{"unknown method", "POST", "m/nothing", large, csv, 404},
			{"conflict", "POST", "twice", large, csv, 409},
			{"signature without a key", "POST", "m/handleSigned", large, csv, 503},
			{"other content type", "POST", "m/handleIt", large, csv, 415},
			{"large body", "POST", "m/handleIt", large, "", 413},
			{"body that just fits", "POST", "m/handleIt", fits, "", 200},
			{"malformed JSON", "POST", "m/handleIt", `{`, "", 400},
			{"no object", "POST", "m/handleIt", `[]`, "", 400},
			{"missing parameter", "POST", "m/handleIt", `{}`, "", 400},
			{"all well", "POST", "m/handleIt", `{"name":"x"}`, "", 200},
		} {
			for _, proof := range []struct{ what, header string }{
				{"secret", shown},
				{"no secret", ""},
				{"wrong secret", shown + "x"},
				{"empty secret", secretHeader + ": "},
				{"secret elsewhere", "Authorization: Bearer " + testSecret},
			} {
				t.Run(fmt.Sprintf("%s, %s, needed %v", row.what, proof.what,
					env != nil), func(t *testing.T) {
					var headers []string
					for _, h := range []string{row.header, proof.header} {
						if h != "" {
							headers = append(headers, h)
						}
					}
					want := row.status
					if env != nil && proof.what != "secret" && want != 403 {
						want = 401
					}
					a := d.send(t, row.method, row.path, row.body, headers...)
					wantStatus(t, "", a, want)
					if want != 200 && row.method != "HEAD" {
						checkError(t, "", a, want)
					}
					check(t, "has Allow: POST", a.Header.Get("Allow") == "POST", want == 405)
				})
			}
		}
		want := 2
		if env == nil {
			want = 10
		}
		check(t, "times the method ran", d.runs(t, "m", "handleIt"), want)
		d.stop(t)
	}
}

// A browser's delivery is refused, unless its origin is allowed.
func TestWebhookRefusesSites(t *testing.T) {
	long(t)
	const shop = "https://shop.example"
	d := daemonOptions{env: guarded}.startTools(t,
		"-allow-host usher.example -open -allow-origin "+shop, "handleIt")
	for _, row := range []struct {
		what    string
		headers []string
		origin  string // that is allowed
		status  int
	}{
		{"no browser", nil, "", 200},
		{"an allowed website",
			[]string{"Origin: " + shop, "Sec-Fetch-Site: cross-site"}, shop, 200},
		{"two origins", []string{"Origin: " + shop, "Origin: https://evil.example"}, "", 403},
		{"a form without origin", []string{"Sec-Fetch-Site: cross-site"}, "", 403},
		{"an allowed host", []string{"Host: usher.example"}, "", 200},
	} {
		t.Run(row.what, func(t *testing.T) {
			a := d.deliver(t, "m/handleIt", `{}`, append(row.headers, shown)...)
			wantStatus(t, "with the secret", a, row.status)
			check(t, "Access-Control-Allow-Origin",
				a.Header.Get("Access-Control-Allow-Origin"), row.origin)
			if row.status == 403 {
				checkError(t, "without the secret",
					d.deliver(t, "m/handleIt", `{}`, row.headers...), 403)
			}
		})
	}
	for origin, status := range map[string]int{shop: 204, "https://evil.example": 403} {
		a := d.send(t, "OPTIONS", "m/nothing", "", "Origin: "+origin,
			"Access-Control-Request-Method: POST",
			"Access-Control-Request-Headers: content-type,x-webhook-secret")
		wantStatus(t, "the preflight of "+origin, a, status)
		allowed := strings.Contains(a.Header.Get("Access-Control-Allow-Headers"),
			"x-webhook-secret")
		check(t, "the preflight allows the secret's header to "+origin, allowed, status == 204)
	}
	a := d.deliver(t, "m/handleIt", `{}`, "Origin: "+shop)
	checkError(t, "no secret", a, 401)
	d.awaitLog(t, "no valid "+secretHeader) // whether or not usher has a secret
	check(t, "the origin that may read the 401",
		a.Header.Get("Access-Control-Allow-Origin"), shop)
	checkContains(t, "the headers that it may read",
		a.Header.Get("Access-Control-Expose-Headers"), sessionHeader)
}

// Without a secret, a signed webhook takes what is signed, with all flags and from everywhere. The
// others are off where usher needs a claim or can be reached, and for requests through a proxy.
// Every refusal of usher asks for credentials, and none says which paths exist.
func TestSignedNeedsNoSecret(t *testing.T) {
	long(t)
	const flags = "-addr 127.0.0.1:0 "
	forwarded := "X-Forwarded-For: 203.0.113.9"
	good := signed("github", "k", `{}`, time.Now())
	bad := signed("github", "x", `{}`, time.Now())
	for _, row := range []struct {
		flags   string
		headers []string
		off     bool // unsigned webhooks are off
	}{
		{"-require-claim", nil, true},
		{"-require-claim -accept-signatures", nil, true},
		{"-allow-host usher.example -open", nil, true},
		{"", nil, false},
		{"", []string{forwarded}, true},
		{"-accept-signatures", []string{forwarded}, true},
		{"-open-webhooks", []string{forwarded}, false},
		{"-require-claim -open-webhooks", nil, false},
	} {
		t.Run(fmt.Sprint(row.flags, row.headers), func(t *testing.T) {
			t.Parallel()
			env := map[string]string{"WH_SIGNING_SECRET": "k"}
			d := daemonOptions{env: env}.startTools(t, flags+row.flags, "handlePlain",
				"handleSigned: @signature github WH_SIGNING_SECRET",
				"handleUnset: @signature github WH_NOT_SET_SIGNING_SECRET")
			unless := func(status int) int {
				if row.off {
					return 401
				}
				return status
			}
			for _, try := range []struct {
				path   string
				signs  []string
				status int
			}{
				{"m/handleSigned", good, 200},
				{"m/handleSigned", bad, 401},
				{"m/handleSigned", nil, 401},
				{"m/handlePlain", nil, unless(200)},
				{"m/handlePlain", good, unless(200)},
				{"m/handleUnset", good, unless(503)},
				{"m/nothing", good, unless(404)},
			} {
				what := fmt.Sprint(try.path, ", signed: ", try.signs)
				a := d.deliver(t, try.path, `{}`, slices.Concat(row.headers, try.signs)...)
				wantStatus(t, what, a, try.status)
				want := ""
				if try.status == 401 {
					want = `Basic realm="usher"`
				}
				check(t, what+": WWW-Authenticate", a.Header.Get("WWW-Authenticate"), want)
			}
			said := d.Out.String() + d.Log.String()
			check(
				t,
				"the banner says that unsigned webhooks are off",
				strings.Contains(
					said,
					"Webhooks are off unless signed",
				),
				row.off && row.headers == nil,
			)
			check(
				t,
				"the log says so of a delivery",
				strings.Contains(said, "see -open-webhooks"),
				row.off,
			)
		})
	}
}

// Without a secret, webhooks work only from this machine, unless a flag says so.
func TestWebhookExposure(t *testing.T) {
	long(t)
	for _, row := range []struct {
		flags  string
		secret string
		code   int
		said   string
	}{
		{"", "", 0, webhookSecretVar + " is not set"},
		{"-require-claim", "", 0, "Webhooks are off"},
		{"", testSecret, 0, secretHeader},
		{"", `"` + testSecret + `"`, 0, webhookSecretVar + " includes its quotes: remove them"},
		{"-accept-signatures", "'" + testSecret, 0, "verified signature; " + webhookSecretVar + " includes"},
		{"-accept-signatures", testSecret, 0, "verified signature"},
		{"-addr localhost:0", "", 0, ""},
		{"-allow-host x.localhost", "", 0, ""},
		{"-addr 0.0.0.0:0", "", 2, "-require-claim"},
		{"-addr :0", "", 2, "-open"},
		{"-addr 0.0.0.0:0 -require-claim", "", 0, "Webhooks are off"},
		{"-addr 0.0.0.0:0 -open", "", 0, "Webhooks are off"},
		{"-addr 0.0.0.0:0 -open-webhooks", "", 2, "-require-claim"},
		{"-addr 0.0.0.0:0 -require-claim", testSecret, 0, ""},
		{"-addr 0.0.0.0:0 -open -open-webhooks", "", 0, "need no secret from anybody"},
		{"-allow-host usher.example -open", "", 0, webhookSecretVar},
		{"-webhook-timeout 0", "", 2, "-webhook-timeout"},
	} {
		t.Run(fmt.Sprintf("%s, secret %q", row.flags, row.secret), func(t *testing.T) {
			t.Parallel()
			env := map[string]string{}
			if row.secret != "" {
				env[webhookSecretVar] = row.secret
			}
			d := daemonOptions{env: env}.launch(t, t.TempDir(), strings.Fields(row.flags)...)
			d.awaitReady(t)
			check(t, "status", d.stop(t), row.code)
			said := d.Out.String() + d.Log.String()
			checkContains(t, "usher serve", said, row.said)
			checkOmits(t, "usher serve", said, testSecret)
		})
	}
}

// hookClient follows no redirect: there must be none.
var hookClient = &http.Client{
	Timeout: 2 * patience,
	CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse
	},
}

// hookRequest returns a request to a path below /webhook/. Headers are "Name: value".
// There is no content type unless one is given.
func (d *testDaemon) hookRequest(
	method, path, body string,
	headers ...string,
) (*http.Request, error) {
	req, err := http.NewRequest(method, d.URL+"webhook/"+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header = headerOf(headers...)
	req.Host = req.Header.Get("Host") // if it is empty, net/http takes the URL's
	return req, nil
}
