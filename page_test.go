// The page for people: who sees what on it, by HTTP, and how it looks, in a browser.

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

// pageModules is a workspace that plays with HTML, and two modules of one name.
func pageModules(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	writeTools(t, dir+"/proj/a.usher", fakeTool{Name: "handleIt", Doc: `Takes <b>it</b> & "more".`}, fakeTool{Name: "plain", Doc: "</dl><script>document.title='taken'</script><img src=x onerror=alert(1)>{{.Nonce}}."})
	writeTools(t, dir+"/proj/t.usher", fakeTool{Name: "handleTwin"})
	writeTools(t, dir+"/other/b.usher", fakeTool{Name: "secret", Doc: "Keeps it."})
	writeTools(t, dir+"/other/t.usher", fakeTool{Name: "handleTwin"})
	return dir
}

// getPage asks for the page as a browser does.
func getPage(t *testing.T, url, path string, present func(*http.Request)) answer {
	t.Helper()
	c := &testClient{t: t, URL: url, http: &http.Client{Timeout: 2 * patience}}
	req := c.request(http.MethodGet, "")
	req.URL.Path = path
	req.Header = http.Header{"Accept": {pageAccept}, "Sec-Fetch-Mode": {"navigate"}, "Sec-Fetch-Dest": {"document"}, "Sec-Fetch-Site": {"cross-site"}}
	present(req)
	return c.do(req)
}

func TestPage(t *testing.T) {
	t.Parallel()
	dir, base := pageModules(t), t.TempDir()
	d := daemonOptions{base: base}.start(t, dir)
	proj, ended := newClaimFor(t, base, dir+"/proj"), newClaimFor(t, base, dir+"/proj")
	openStore(t, base).Revoke(t.Context(), ended.Code)
	scoped, _ := openSession(t, d.URL, inHeader(proj.Code.Reveal()))
	inSession := func(r *http.Request) { r.Header.Set(sessionHeader, scoped.Session) }
	look := func(d *testDaemon, rows map[string]struct {
		present func(*http.Request)
		status  int
		says    string
	}) {
		for what, tt := range rows {
			for _, path := range []string{"/", "/mcp"} {
				a := getPage(t, d.URL, path, tt.present)
				all := strings.Contains(a.Body, "b_secret") && strings.Contains(a.Body, "webhook/other-t/handleTwin")
				some := strings.Contains(a.Body, "a_plain") && strings.Contains(a.Body, "t_handleTwin") && strings.Contains(a.Body, d.URL+"webhook/a/handleIt<")
				some = some && !strings.Contains(a.Body, "t/handleTwin") && !strings.Contains(a.Body, "secret") && !strings.Contains(a.Body, "other")
				none := !strings.Contains(a.Body, "handle") && !strings.Contains(a.Body, "secret")
				if a.Status != tt.status || !strings.Contains(a.Body, tt.says) || !map[string]bool{"b_secret": all, "a_plain": some}[tt.says] && !none {
					t.Errorf("%s at %s: %d\n%s", what, path, a.Status, a.Body)
				}
				nonce, _, _ := strings.Cut(strings.TrimPrefix(a.Body[strings.Index(a.Body, "nonce="):], `nonce="`), `"`)
				for name, want := range map[string]string{
					"Content-Type": "text/html; charset=utf-8", "Cache-Control": "no-store", "Referrer-Policy": "no-referrer", "X-Content-Type-Options": "nosniff",
					"Content-Security-Policy": "default-src 'none'; style-src 'nonce-" + nonce + "'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
				} {
					if got := a.Header.Get(name); got != want || nonce == "" {
						t.Errorf("%s at %s: %s: %q", what, path, name, got)
					}
				}
				for _, hidden := range []string{"<script", "<b>", "<img", dir, proj.Code.Reveal(), ended.Code.Reveal()} {
					if strings.Contains(a.Body, hidden) {
						t.Errorf("%s at %s: %s is on the page", what, path, hidden)
					}
				}
				if coded := strings.Contains(a.Body, "YOUR-CODE"); coded != (tt.says != "b_secret") {
					t.Errorf("%s at %s: says how to present a code: %v", what, path, coded)
				}
			}
		}
	}
	type row = struct {
		present func(*http.Request)
		status  int
		says    string
	}
	code := proj.Code.Reveal()
	look(d, map[string]row{
		"nobody in particular":       {presentNothing, 200, "b_secret"},
		"a code that holds":          {inQuery(code), 200, "a_plain"},
		"a code that holds, dashed":  {inQuery(strings.ToLower(proj.Code.Dashed())), 200, "a_plain"},
		"a session with a claim":     {inSession, 200, "a_plain"},
		"a code that has ended":      {inQuery(ended.Code.Reveal()), 400, codeIsNone},
		"what is no code":            {inQuery("%3Cb%3E"), 400, codeIsNone},
		"a session that is none":     {func(r *http.Request) { r.Header.Set(sessionHeader, "x") }, 404, "this session is unknown"},
		"a code in the bearer token": {inAuthorization("Bearer " + code), 200, "a_plain"},
	})
	for name, value := range map[string]string{"X-Forwarded-For": "192.0.2.1", "Host": "evil.example", "Origin": "null", "Sec-Fetch-Dest": "iframe"} {
		a := getPage(t, d.URL, "/", func(r *http.Request) {
			if r.Header.Set(name, value); name == "Host" {
				r.Host = value
			}
		})
		if a.Status < 400 || strings.Contains(a.Body, "<") {
			t.Errorf("%s: %d %s", name, a.Status, a.Body)
		}
	}
	d.stop(t)
	d = daemonOptions{base: base}.start(t, dir, "-require-claim")
	look(d, map[string]row{
		"nobody, with -require-claim":              {presentNothing, 400, needsCode},
		"a code that holds, with -require-claim":   {inQuery(code), 200, "a_plain"},
		"a code that is none":                      {inQuery("AAAAAA"), 400, codeIsNone},
		"a session with a claim, of before":        {inSession, 200, "a_plain"},
		"a code in the header, which holds":        {inHeader(code), 200, "a_plain"},
		"a code that has ended, in a new daemon":   {inQuery(ended.Code.Reveal()), 400, codeIsNone},
		"an empty code, which is none, and no row": {inQuery(""), 400, needsCode},
	})
	d.hidesCodes(t, code, ended.Code.Reveal())
}

// Codes on the page are looked up in turns, as any others.
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
			if d.servePage(w, r); w.Code != 400 || !strings.Contains(w.Body.String(), codeIsNone) {
				t.Fatalf("%d %s", w.Code, w.Body)
			}
		}
		if took := time.Since(start); took != turnEvery {
			t.Errorf("two guesses past the limit took %v, want %v", took, turnEvery)
		}
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
	path, err := exec.LookPath("chromium")
	if err != nil && os.Getenv("CI_REQUIRE") != "" {
		t.Fatal("CI requires chromium")
	} else if err != nil {
		t.Skip("needs chromium")
	}
	cmd := exec.Command(path, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--user-data-dir="+t.TempDir(), "--remote-debugging-pipe", "about:blank")
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
	b.session = stringField(b.do("Target.attachToTarget", string(object{{"targetId", field(target, "targetId")}, {"flatten", json.RawMessage("true")}}.encode())), "sessionId")
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

// measurePage measures the page: whether it is wider than the window, what is black on
// black, what it is made of.
const measurePage = `(() => {
	const light = color => {
		const [r, g, b] = color.match(/[\d.]+/g).map(n => (n /= 255) <= 0.04045 ? n / 12.92 : ((n + 0.055) / 1.055) ** 2.4)
		return 0.2126 * r + 0.7152 * g + 0.0722 * b
	}
	const page = getComputedStyle(document.body).backgroundColor
	const faint = [...document.body.querySelectorAll('*')].filter(e => {
		if (![...e.childNodes].some(n => n.nodeType === 3 && n.data.trim())) return false
		const own = getComputedStyle(e), back = own.backgroundColor === 'rgba(0, 0, 0, 0)' ? page : own.backgroundColor
		const [x, y] = [light(own.color), light(back)].sort((x, y) => y - x)
		return (x + 0.05) / (y + 0.05) < 4.5
	}).map(e => e.outerHTML)
	return JSON.stringify({ over: document.documentElement.scrollWidth > innerWidth, dark: light(page) < 0.2, faint, title: document.title,
		made: document.querySelectorAll('script, img, b, form, iframe').length, text: document.body.innerText.includes('onerror=alert(1)'), size: getComputedStyle(document.body).fontSize })
})()`

// TestPageInABrowser looks at the page in Chromium. With USHER_SHOTS, a folder, it
// keeps what it saw.
func TestPageInABrowser(t *testing.T) {
	slow(t)
	b := startBrowser(t)
	dir, base := pageModules(t), t.TempDir()
	d := daemonOptions{base: base}.start(t, dir, "-require-claim")
	code := newClaimFor(t, base, dir+"/proj").Code.Reveal()
	for what, tt := range map[string]struct{ path, text string }{"refused": {"", "false"}, "tools": {"?claim=" + code, "true"}} {
		for _, width := range []int{320, 1280} {
			for _, scheme := range []string{"light", "dark"} {
				b.do("Emulation.setDeviceMetricsOverride", fmt.Sprintf(`{"width":%d,"height":900,"deviceScaleFactor":1,"mobile":%v}`, width, width < 500))
				b.do("Emulation.setEmulatedMedia", fmt.Sprintf(`{"features":[{"name":"prefers-color-scheme","value":%q}]}`, scheme))
				b.open(d.URL + tt.path)
				got := stringField(field(b.do("Runtime.evaluate", string(object{{"expression", quote(measurePage)}}.encode())), "result"), "value")
				want := fmt.Sprintf(`{"over":false,"dark":%v,"faint":[],"title":"usher","made":0,"text":%s,"size":"16px"}`, scheme == "dark", tt.text)
				if got != want {
					t.Errorf("%s, %d wide, %s:\n got %s\nwant %s", what, width, scheme, got, want)
				}
				if shots := os.Getenv("USHER_SHOTS"); shots != "" {
					png, _ := base64.StdEncoding.DecodeString(stringField(b.do("Page.captureScreenshot", `{"captureBeyondViewport":true}`), "data"))
					os.WriteFile(fmt.Sprintf("%s/%s-%d-%s.png", shots, what, width, scheme), png, 0o644)
				}
			}
		}
	}
	for _, entry := range b.log {
		if !strings.Contains(entry, "status of 400") { // of the page itself
			t.Errorf("the browser complained: %s", entry)
		}
	}
}
