// The page for people: what each visitor sees on it, over HTTP, and how it looks in a browser.

package main

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
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
	writeTools(t, dir+"/proj/a.usher",
		`handleIt: Takes <b>it</b> & "more".`,
		"plain "+mirrorSchema+": "+script)
	writeTools(t, dir+"/proj/t.usher", "handleTwin")
	writeTools(t, dir+"/other/b.usher", "secret: Keeps it.")
	writeTools(t, dir+"/other/t.usher", "handleTwin")
	write(t, dir+"/other/broken.usher", "not an executable")
	return dir
}

// getPage requests the page as a browser does.
func getPage(t *testing.T, url, path string, present presenter) answer {
	t.Helper()
	c := newClient(t, url)
	req := c.Request("GET", "")
	req.URL.Path = path
	req.Header = http.Header{"Accept": {pageAccept}, "Sec-Fetch-Mode": {"navigate"},
		"Sec-Fetch-Dest": {"document"},
		"Sec-Fetch-Site": {"cross-site"}}
	present(req)
	return c.Do(req)
}

// What a page shows: everything, the project, or none of the modules.
type pageView struct{ shows, omits []string }

var (
	pageOfAll = pageView{[]string{"b_secret", "other-t_handleTwin", "a_plain", "<h3>broken</h3>",
		"the file is not executable"},
		[]string{"YOUR-CODE", "<form", "<nav", "valid for"}}
	pageOfProj = pageView{[]string{"a_plain", "region?: string, n?: integer, on?: boolean, deep?: object",
		">t_handleTwin<", "The claim code is valid for 1d 1h."},
		[]string{"secret", "other", "broken", "<nav"}}
)

func pageRefusal(says string) pageView {
	says = strings.TrimSuffix(says, ": "+howToPresent)
	return pageView{[]string{says, "YOUR-CODE", `name="claim"`},
		[]string{"handle", "secret", "other", "broken"}}
}

// The page shows a visitor what the presented code or session shows, and is never kept or
// framed. It contains no code, except in its texts to copy for a visitor who has presented it.
func TestPageShowsTheScope(t *testing.T) {
	t.Parallel()
	dir, base := pageModules(t), t.TempDir()
	d := daemonOptions{base: base}.startReady(t, dir)
	proj, err := openStore(t, base).Create(t.Context(), dir+"/proj", "", 25*time.Hour)
	must(t, err)
	ended := newClaimFor(t, base, dir+"/proj")
	openStore(t, base).Revoke(t.Context(), ended.Code)
	code, endedCode := proj.Code.Reveal(), ended.Code.Reveal()
	scoped, _ := openSession(t, d.URL, inHeader(code))
	inSession := func(r *http.Request) { r.Header.Set(sessionHeader, scoped.Session) }
	noSession := func(r *http.Request) { r.Header.Set(sessionHeader, "x") }
	type row struct {
		what    string
		present presenter
		status  int
		view    pageView
		code    string // in the texts to copy; "" if the page has no code
	}
	look := func(rows []row) {
		for _, row := range rows {
			for _, path := range []string{"/", "/mcp", "/mistyped"} {
				t.Run(row.what+" at "+path, func(t *testing.T) {
					a := getPage(t, d.URL, path, row.present)
					wantStatus(t, "page", a, row.status)
					checkContains(t, "page", a.Body, row.view.shows...)
					checkOmits(t, "page", a.Body, row.view.omits...)
					checkOmits(t, "page", a.Body, "<script", "<b>", "<img", dir, endedCode,
						"ZgotmplZ")
					if row.code == "" {
						checkOmits(t, "page", a.Body, code)
					} else {
						check(t, "texts with the code", strings.Count(a.Body, code), 3)
					}
					checkPageHeaders(t, a)
				})
			}
		}
	}
	look([]row{
		{"nothing", presentAll(), 200, pageOfAll, ""},
		{"a valid code", inQuery(code), 200, pageOfProj, code},
		{"a session with a claim", inSession, 200, pageOfProj, ""},
		{"a revoked code", inQuery(endedCode), 400, pageRefusal(errBadCode.Error()), ""},
		{"no code", inQuery("%3Cb%3E"), 400, pageRefusal(errBadCode.Error()), ""},
		{"an unknown session", noSession, 404, pageRefusal("this session is unknown"), ""},
	})
	for name, value := range map[string]string{
		"X-Forwarded-For": "192.0.2.1", "Host": "evil.example", "Origin": "null",
		"Sec-Fetch-Dest": "iframe",
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
	d = daemonOptions{base: base}.startReady(t, dir, "-require-claim")
	look([]row{
		{"nothing, with -require-claim", presentAll(), 400, pageRefusal(errNoCode.Error()), ""},
		{"a valid code, with -require-claim", inQuery(code), 200, pageOfProj, code},
		{"an earlier session with a claim", inSession, 200, pageOfProj, ""},
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

// A page of many tools begins with an index.
func TestPageHasAnIndex(t *testing.T) {
	t.Parallel()
	var tools []string
	for i := range 30 {
		tools = append(tools, fmt.Sprint("tool", i))
	}
	d := daemonOptions{}.startTools(t, "", tools...)
	page := getPage(t, d.URL, "/", func(*http.Request) {}).Body
	checkContains(t, "page", page, `<nav>`, `<a href="#m_tool29">tool29</a>`, `<dt id="m_tool29">`)
}

// The page fits narrow and wide windows, light and dark, and runs nothing that a module
// says.
func TestPageInABrowser(t *testing.T) {
	slow(t)
	need(t, "chromium")
	need(t, "node")
	dir := pageModules(t)
	d := startDaemon(t, dir, "-require-claim")
	code := newCode(t, d.Base, dir+"/proj")
	for what, query := range map[string]string{"refused": "", "tools": "?claim=" + code} {
		t.Run(what, func(t *testing.T) {
			out, _, err := runIn(".", "node", "testdata/page/look.mjs", d.URL+query,
				t.TempDir())
			must(t, err)
			const form = `{"over":false,"dark":%v,"faint":[],"title":"usher","made":0,"broken":0,` +
				`"text":%v,"size":"16px"}` + "\n"
			light, dark := fmt.Sprintf(form, false, query != ""), fmt.Sprintf(form,
				true, query != "")
			check(t, "the page", out, light+dark+light+dark)
		})
	}
}
