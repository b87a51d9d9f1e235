// The page for browsers at the daemon's address.

package main

import (
	"bytes"
	"cmp"
	"crypto/rand"
	_ "embed"
	"html/template"
	"net/http"
	"slices"
	"strings"
	"time"
)

//go:embed help/page.html
var pageText string

// pageContent is the content of the page for people.
type pageContent struct {
	Refused    string         // why no modules are shown, or ""
	Modules    []moduleReport // in the requester's own view; webhooks outside of it are not shown
	Errors     bool           // also shows why modules are not hosted; only for the owner
	Coded      bool           // clients must present a code
	URL, Nonce string
}

// servePage shows a browser the modules in the requester's own view.
func (d *daemon) servePage(w http.ResponseWriter, r *http.Request) {
	refuse := func(w http.ResponseWriter, e *fault) {
		reason := strings.TrimSuffix(e.Msg, ": "+howToPresent) // the page has a field for a code
		d.writePage(w, r, e.Status, pageContent{Refused: reason, Coded: true})
	}
	handle(d.log, refuse, func(w http.ResponseWriter, r *http.Request) error {
		from, err := d.server.admitGET(r)
		if err != nil {
			return err
		}
		scope, err := d.server.gate.Scope(from.principal)
		if from.badCode != nil {
			err = from.badCode
		}
		if err != nil {
			return httpErrorf(http.StatusBadRequest, "%v", err)
		}
		d.registry.WaitAll(r.Context(), startupTime-time.Since(d.server.started), scope)
		p := pageContent{Coded: from.principal.exists()}
		p.Errors = !p.Coded && !d.flags.open // then the requester is on this machine
		record := d.record
		record.URL = d.pageURL(r)
		report := d.app.report(d.registry, scope, scope, record)
		p.Modules = slices.DeleteFunc(report, func(m moduleReport) bool {
			return m.Hidden != "" || len(m.Tools) == 0 && m.State != "ready" && !p.Errors
		})
		d.writePage(w, r, http.StatusOK, p)
		return nil
	})(w, r)
}

// pageURL returns the URL by which a browser has reached the daemon, or -public-url.
func (d *daemon) pageURL(r *http.Request) string {
	scheme := "http://"
	if r.TLS != nil {
		scheme = "https://"
	}
	return cmp.Or(d.flags.publicURL, scheme+r.Host+"/")
}

// writePage writes the page. The page contains no claim code and no script; its inline
// style carries a CSP nonce.
func (d *daemon) writePage(w http.ResponseWriter, r *http.Request, status int, p pageContent) {
	p.URL = d.pageURL(r)
	p.Nonce = rand.Text()
	var page bytes.Buffer
	_ = template.Must(template.New("page").Parse(pageText)).Execute(&page, p) // never fails
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", "default-src 'none'; style-src 'nonce-"+p.Nonce+"'; "+
		"img-src data:; base-uri 'none'; form-action 'self'; frame-ancestors 'none'")
	h.Set("Cache-Control", "no-store")
	h.Set("Referrer-Policy", "no-referrer")
	w.WriteHeader(status)
	_ = writeBody(w, page.Bytes()) // an error means that the browser has gone
}
