// The page for people: what each visitor sees on it, over HTTP, and how it looks in a browser.

package main

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// pageAccept is what browsers send.
const pageAccept = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8"

// pageModules writes a workspace with HTML in its documentation, and two modules of one
// name.
func pageModules(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	script := "</dl><script>document.title='taken'</script><img src=x onerror=alert(1)>{{.Nonce}}."
	writeTools(t, dir+"/proj/a.usher", fakeTool{Name: "handleIt", Doc: `Takes <b>it</b> & "more".`},
		fakeTool{Name: "plain", Doc: script, Schema: json.RawMessage(mirrorSchema)})
	writeTools(t, dir+"/proj/t.usher", fakeTool{Name: "handleTwin"})
	writeTools(t, dir+"/other/b.usher", fakeTool{Name: "secret", Doc: "Keeps it."})
	writeTools(t, dir+"/other/t.usher", fakeTool{Name: "handleTwin"})
	write(t, dir+"/other/broken.usher", "not an executable")
	return dir
}

// getPage requests the page as a browser does.
func getPage(t *testing.T, url, path string, present func(*http.Request)) answer {
	t.Helper()
	c := newClient(t, url)
	req := c.request(http.MethodGet, "")
	req.URL.Path = path
	req.Header = http.Header{"Accept": {pageAccept}, "Sec-Fetch-Mode": {"navigate"}, "Sec-Fetch-Dest": {"document"},
		"Sec-Fetch-Site": {"cross-site"}}
	present(req)
	return c.do(req)
}

// What a page shows: everything, the project, or none of the modules.
type pageView struct{ shows, omits []string }

var (
	pageOfAll = pageView{[]string{"b_secret", "webhook/other-t/handleTwin", "a_plain", "other/broken.usher"},
		[]string{"YOUR-CODE", "<form"}}
	pageOfGuest = pageView{pageOfAll.shows[:3], []string{"broken", "<form"}}
	pageOfProj  = pageView{[]string{"a_plain", "Parameters: region, n, on", "webhook/a/handleIt<",
		"webhook/t/handleTwin<", "YOUR-CODE"}, []string{"secret", "other", "broken"}}
)

func pageRefusal(says string) pageView {
	says = strings.TrimSuffix(says, ": "+howToPresent)
	return pageView{[]string{says, "YOUR-CODE", `name="claim"`}, []string{"handle", "secret", "other", "broken"}}
}

func TestPage(t *testing.T) {
	t.Parallel()
	dir, base := pageModules(t), t.TempDir()
	d := daemonOptions{base: base}.startReady(t, dir)
	proj, ended := newClaimFor(t, base, dir+"/proj"), newClaimFor(t, base, dir+"/proj")
	openStore(t, base).Revoke(t.Context(), ended.Code)
	code, endedCode := proj.Code.Reveal(), ended.Code.Reveal()
	scoped, _ := openSession(t, d.URL, inHeader(code))
	inSession := func(r *http.Request) { r.Header.Set(sessionHeader, scoped.Session) }
	noSession := func(r *http.Request) { r.Header.Set(sessionHeader, "x") }
	type row struct {
		what    string
		present func(*http.Request)
		status  int
		view    pageView
	}
	look := func(rows []row) {
		for _, row := range rows {
			for _, path := range []string{"/", "/mcp"} {
				t.Run(row.what+" at "+path, func(t *testing.T) {
					a := getPage(t, d.URL, path, row.present)
					wantStatus(t, "page", a, row.status)
					checkContains(t, "page", a.Body, row.view.shows...)
					checkOmits(t, "page", a.Body, row.view.omits...)
					checkOmits(t, "page", a.Body, "<script", "<b>", "<img", dir, code, endedCode)
					checkPageHeaders(t, a)
				})
			}
		}
	}
	look([]row{
		{"nothing", presentNothing, 200, pageOfAll},
		{"a valid code", inQuery(code), 200, pageOfProj},
		{"a valid code, dashed", inQuery(strings.ToLower(proj.Code.Dashed())), 200, pageOfProj},
		{"a session with a claim", inSession, 200, pageOfProj},
		{"a revoked code", inQuery(endedCode), 400, pageRefusal(codeIsNone)},
		{"no code", inQuery("%3Cb%3E"), 400, pageRefusal(codeIsNone)},
		{"an unknown session", noSession, 404, pageRefusal("this session is unknown")},
		{"a code as bearer", inAuthorization("Bearer " + code), 200, pageOfProj},
	})
	for name, value := range map[string]string{
		"X-Forwarded-For": "192.0.2.1", "Host": "evil.example", "Origin": "null", "Sec-Fetch-Dest": "iframe",
	} {
		t.Run(name, func(t *testing.T) {
			a := getPage(t, d.URL, "/", func(r *http.Request) {
				r.Header.Set(name, value)
				if name == "Host" {
					r.Host = value
				}
			})
			check(t, "is refused", a.Status >= 400, true)
			checkOmits(t, "a refusal, which is no page", a.Body, "<")
		})
	}
	d.stop(t)
	d = daemonOptions{base: base}.startReady(t, dir, "-open")
	look([]row{{"nothing, with -open", presentNothing, 200, pageOfGuest}})
	d.stop(t)
	d = daemonOptions{base: base}.startReady(t, dir, "-require-claim")
	look([]row{
		{"nothing, with -require-claim", presentNothing, 400, pageRefusal(needsCode)},
		{"a valid code, with -require-claim", inQuery(code), 200, pageOfProj},
		{"an unknown code, with -require-claim", inQuery("AAAAAA"), 400, pageRefusal(codeIsNone)},
		{"an earlier session with a claim", inSession, 200, pageOfProj},
		{"a valid code in the header", inHeader(code), 200, pageOfProj},
		{"a revoked code, with -require-claim", inQuery(endedCode), 400, pageRefusal(codeIsNone)},
		{"an empty code", inQuery(""), 400, pageRefusal(needsCode)},
	})
	d.hidesCodes(t, code, endedCode)
}

func checkPageHeaders(t *testing.T, a answer) {
	t.Helper()
	_, nonce, _ := strings.Cut(a.Body, `nonce="`)
	nonce, _, _ = strings.Cut(nonce, `"`)
	check(t, "has a nonce", nonce != "", true)
	for name, want := range map[string]string{
		"Content-Type":           "text/html; charset=utf-8",
		"Cache-Control":          "no-store",
		"Referrer-Policy":        "no-referrer",
		"X-Content-Type-Options": "nosniff",
		"Content-Security-Policy": "default-src 'none'; style-src 'nonce-" + nonce +
			"'; img-src data:; base-uri 'none'; " +
			"form-action 'self'; frame-ancestors 'none'",
	} {
		check(t, name, a.Header.Get(name), want)
	}
}

// Codes on the page are looked up in turns, like all others.
func TestGuessingOnThePage(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		g, _ := testGate(t, data, true)
		log := slog.New(slog.DiscardHandler)
		server := newServer(serverConfig{gate: g, log: log, stopped: t.Context()})
		d := &daemon{flags: &serveFlags{}, log: log, server: server}
		start := time.Now()
		for _, code := range unknownCodes(guessBudget + 2) {
			w := httptest.NewRecorder()
			r := httptest.NewRequest(http.MethodGet, "/?claim="+code, nil)
			r.Header.Set("Accept", pageAccept)
			d.servePage(w, r)
			check(t, "status", w.Code, 400)
			checkContains(t, "the page", w.Body.String(), "the presented claim code is unknown or has ended.")
		}
		check(t, "the time that two guesses past the limit take", time.Since(start), turnEvery)
	})
}

// browser is a headless Chromium, spoken to over its debugging pipe.
type browser struct {
	t       *testing.T
	in      io.Writer
	out     *bufio.Reader
	session string
	id      int
	log     []string // what the browser complained of
}

func startBrowser(t *testing.T) *browser {
	t.Helper()
	need(t, "chromium")
	cmd := exec.Command("chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
		"--no-first-run", "--user-data-dir="+t.TempDir(), "--remote-debugging-pipe", "about:blank")
	theirIn, in, _ := os.Pipe()
	out, theirOut, err := os.Pipe()
	must(t, err)
	cmd.ExtraFiles = []*os.File{theirIn, theirOut}
	must(t, cmd.Start())
	theirIn.Close()
	theirOut.Close()
	b := &browser{t: t, in: in, out: bufio.NewReader(out)}
	t.Cleanup(func() {
		b.do("Browser.close", `{}`)
		cmd.Wait()
	})
	out.SetReadDeadline(time.Now().Add(2 * patience))
	target := b.do("Target.createTarget", `{"url":"about:blank"}`)
	attach := object{{"targetId", field(target, "targetId")}, {"flatten", json.RawMessage("true")}}
	b.session = stringField(b.do("Target.attachToTarget", string(attach.encode())), "sessionId")
	b.do("Page.enable", `{}`)
	b.do("Log.enable", `{}`)
	return b
}

// next is the next message of the browser.
func (b *browser) next() json.RawMessage {
	b.t.Helper()
	text, err := b.out.ReadBytes(0)
	if err != nil {
		b.t.Fatal(err)
	}
	msg := json.RawMessage(text[:len(text)-1])
	if stringField(msg, "method") == "Log.entryAdded" {
		b.log = append(b.log, string(msg))
	}
	return msg
}

// do gives a command, and returns its result.
func (b *browser) do(method, params string) json.RawMessage {
	b.t.Helper()
	b.id++
	msg := object{{"id", marshal(b.id)}, {"method", quote(method)}, {"params", json.RawMessage(params)}}
	if b.session != "" && !strings.HasPrefix(method, "Browser.") {
		msg = append(msg, member{"sessionId", quote(b.session)})
	}
	b.in.Write(append(msg.encode(), 0))
	for {
		if msg := b.next(); string(field(msg, "id")) == fmt.Sprint(b.id) {
			return field(msg, "result")
		}
	}
}

// open goes to a page, and waits until it is there.
func (b *browser) open(url string) {
	b.t.Helper()
	b.do("Page.navigate", string(object{{"url", quote(url)}}.encode()))
	for stringField(b.next(), "method") != "Page.loadEventFired" {
	}
}

// TestPageInABrowser looks at the page in Chromium. With USHER_SHOTS, a folder, it
// keeps what it saw.
func TestPageInABrowser(t *testing.T) {
	slow(t)
	b := startBrowser(t)
	dir, base := pageModules(t), t.TempDir()
	d := daemonOptions{base: base}.start(t, dir, "-require-claim")
	code := newClaimFor(t, base, dir+"/proj").Code.Reveal()
	measure := readFile(t, "testdata/page/measure.js")
	look := func(t *testing.T, what, path string, width int, scheme string) {
		b.do("Emulation.setDeviceMetricsOverride",
			fmt.Sprintf(`{"width":%d,"height":900,"deviceScaleFactor":1,"mobile":%v}`, width, width < 500))
		b.do("Emulation.setEmulatedMedia",
			fmt.Sprintf(`{"features":[{"name":"prefers-color-scheme","value":%q}]}`, scheme))
		b.open(d.URL + path)
		result := b.do("Runtime.evaluate", string(object{{"expression", quote(string(measure))}}.encode()))
		const form = `{"over":false,"dark":%v,"faint":[],"title":"usher","made":0,"broken":0,"text":%v,"size":"16px"}`
		want := fmt.Sprintf(form, scheme == "dark", path != "")
		check(t, "the page", stringField(field(result, "result"), "value"), want)
		if shots := os.Getenv("USHER_SHOTS"); shots != "" {
			data := stringField(b.do("Page.captureScreenshot", `{"captureBeyondViewport":true}`), "data")
			png, _ := base64.StdEncoding.DecodeString(data)
			os.WriteFile(fmt.Sprintf("%s/%s-%d-%s.png", shots, what, width, scheme), png, 0o644)
		}
	}
	for what, path := range map[string]string{"refused": "", "tools": "?claim=" + code} {
		for _, width := range []int{320, 1280} {
			for _, scheme := range []string{"light", "dark"} {
				t.Run(fmt.Sprint(what, width, scheme), func(t *testing.T) { look(t, what, path, width, scheme) })
			}
		}
	}
	for _, entry := range b.log {
		if !strings.Contains(entry, "status of 400") { // of the page itself
			t.Errorf("the browser complained: %s", entry)
		}
	}
}
