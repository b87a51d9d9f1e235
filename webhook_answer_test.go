// Tests of webhook.go: the answers to senders, and the log records about them.

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const (
	isJSON = "application/json"
	isText = "text/plain; charset=utf-8"
)

// A method's result becomes the answer that §9 of the design says: its object, its text, or
// its own _response.
func TestWebhookAnswers(t *testing.T) {
	t.Parallel()
	d := daemonOptions{}.startTools(t, "", "handleIt=result",
		"handleFault=fault")
	own := func(response string) string { return shownObject(`{"_response":` + response + `}`) }
	content := func(blocks string) string { return `{"content":[` + blocks + `]}` }
	const image = `{"type":"image","data":"AA==","mimeType":"image/png"}`
	for _, row := range []struct {
		result     string
		status     int
		kind, body string
	}{
		{shownObject(`{"n":9007199254740993}`), 200, isJSON, `{"n":9007199254740993}`},
		{`{"content":[` + block("for people") + `],"structuredContent":{"a":1}}`, 200, isJSON, `{"a":1}`},
		{shownText(`[1,2]`), 200, isJSON, `[1,2]`},
		{shownText("\n {\"a\": 1}\n"), 200, isJSON, "\n {\"a\": 1}\n"},
		{shownText(`{oops`), 200, isText, `{oops`},
		{content(block("a") + "," + block("b")), 200, isText, "a\nb"},
		{content(""), 204, "", ""},
		{content(image), 200, isJSON, image},
		{content(`{"type":"image","data":"R0lGODlh","mimeType":"text/html"}`), 200, "image/gif", "GIF89a"},
		{content(`{"type":"audio","data":"//uQ","mimeType":"audio/mpeg"}`), 200, "audio/mpeg",
			"\xff\xfb\x90"},
		{content(image + "," + block("a")), 200, isText, image + "\na"},
		{`{"content":[` + block("a") + `],"structuredContent":null}`, 200, isText, "a"},
		{shownFailure(`it "broke"`), 500, isJSON, `{"error":"it \"broke\""}` + "\n"},
		{shownFailure(`{"_response":{"status":200}}`), 500, isJSON,
			`{"error":"{\"_response\":{\"status\":200}}"}` + "\n"},
		{shownText(`{"_response":{"status":202}}`), 200, isJSON, `{"_response":{"status":202}}`},
		{shownObject(`{"a":{"_response":{"status":201}}}`), 200, isJSON,
			`{"a":{"_response":{"status":201}}}`},
		{own(`{"status":201}`), 201, "", ""},
		{own(`{"body":"hi"}`), 200, isText, "hi"},
		{own(`{"body":{"n":9007199254740993}}`), 200, isJSON, `{"n":9007199254740993}`},
		{own(`{"body":null}`), 200, "", ""},
		{own(`{"headers":{"content-type":"text/html"},"body":"<p>"}`), 200, "text/html", "<p>"},
		{own(`{"status":204,"body":"x"}`), 204, isText, ""},
		{own(`{"status":304}`), 304, "", ""},
		{own(`{"headers":{"content-length":"1"},"body":"xyz"}`), 200, isText, "xyz"},
		{own(`{"headers":{"Content-Type":"a/a","Content-type":"b/b","content-type":"c/c",` +
			`"CONTENT-TYPE":"d/d"},"body":"xyz"}`), 200, "c/c", "xyz"},
		{own(`{"status":302,"headers":{"Location":"https://example.com/"}}`), 302, "", ""},
	} {
		t.Run(row.result, func(t *testing.T) {
			a := d.deliver(t, "m/handleIt", `{"result":`+row.result+`}`)
			wantAnswer(t, a, row.status, row.kind, row.body)
		})
	}
	for _, response := range []string{
		`5`, `null`, `{"code":200}`,
		`{"status":"200"}`, `{"status":199}`, `{"status":600}`, `{"status":200.5}`,
		`{"headers":["a"]}`, `{"headers":{"a":1}}`, `{"headers":{"a":"x\r\nSet-Cookie: y"}}`,
		`{"headers":{"a b":"x"}}`,
	} {
		a := d.deliver(t, "m/handleIt", `{"result":`+own(response)+`}`)
		checkError(t, response, a, 502)
	}
	headers := own(`{"headers":{"x-own":"a b","Retry-After":"5","location":"/x"}}`)
	a := d.deliver(t, "m/handleIt", `{"result":`+headers+`}`)
	for name, want := range map[string]string{
		"X-Own":       "a b",
		"Retry-After": "5",
		"Location":    "/x",
	} {
		check(t, name, a.Header.Get(name), want)
	}
	checkError(t, "a protocol error",
		d.deliver(t, "m/handleFault", `{"code":-32603,"message":"inside"}`), 500)
	long := strings.Repeat("x", 2*maxError)
	a = d.deliver(t, "m/handleIt", `{"result":`+shownFailure(long)+`}`)
	wantAnswer(t, a, 500, isJSON, `{"error":"`+long[:maxError]+`…"}`+"\n")
	a = d.deliver(t, "m/handleFault", `{"code":-32602,"message":"bad name"}`)
	wantAnswer(t, a, 400, isJSON, `{"error":"bad name"}`+"\n")
}

// block returns a text of a result.
func block(text string) string { return `{"type":"text","text":` + string(quote(text)) + `}` }

func wantAnswer(t *testing.T, a answer, status int, kind, body string) {
	t.Helper()
	check(t, "status", a.Status, status)
	check(t, "Content-Type", a.Header.Get("Content-Type"), kind)
	check(t, "body", a.Body, body)
	checkHeaders(t, "answer", a)
}

// A crash fails all deliveries to the module, a silent method ends after -webhook-timeout,
// and a call that has begun goes on if its sender hangs up.
func TestWebhookFailures(t *testing.T) {
	long(t)
	dir := t.TempDir()
	writeTools(t, dir+"/m.usher", "handleIt",
		"handleCrash=crash",
		"handleNever=never",
		"handleHold=hold")
	writeTools(t, dir+"/other.usher", "handleGone=hold", "handleRelease=release")
	impatient := daemonOptions{}.startReady(t, dir, "-webhook-timeout", "4s")
	await(t, "an answer of the module, which has to start", func() bool {
		return impatient.deliver(t, "m/handleIt", `{}`).Status == 200
	})
	checkError(t, "a method that never returns", impatient.deliver(t, "m/handleNever", `{}`), 504)
	impatient.awaitLog(t, "fake: cancelled handleNever")
	d := daemonOptions{}.startReady(t, dir)
	checkError(t, "a crash", d.deliver(t, "m/handleCrash", `{}`), 502)
	wantStatus(t, "after a crash", d.deliver(t, "m/handleIt", `{}`), 200)

	// A crash fails the calls that wait.
	held := make(chan answer, 1)
	go func() { held <- d.deliver(t, "m/handleHold", `{}`) }()
	d.awaitLog(t, "fake: began handleHold")
	checkError(t, "a crash", d.deliver(t, "m/handleCrash", `{}`), 502)
	checkError(t, "a crash beside it", <-held, 502)

	// A sender that hangs up does not end its call. usher may notice only after the call that the
	// sender has gone.
	await(t, "a call that goes on without its sender", func() bool {
		const begun = "fake: began handleGone"
		before := d.logged(begun)
		ctx, hangUp := context.WithCancel(t.Context())
		req, err := d.hookRequest("POST", "other/handleGone", `{}`)
		must(t, err)
		gone := make(chan error, 1)
		go func() {
			_, err := hookClient.Do(req.WithContext(ctx))
			gone <- err
		}()
		await(t, "its start", func() bool { return d.logged(begun) > before })
		hangUp()
		check(t, "the sender has an answer", <-gone == nil, false)
		d.deliver(t, "other/handleRelease", `{}`)
		return d.logged(`method=handleGone note="the sender hung up" status=200`) > 0
	})
	checkOmits(t, "the log", d.Log.String(), "fake: cancelled handleGone")
}

// A delivery fails if its module can't start, or if its calls, which end after -call-timeout without
// answer and progress, end sooner than deliveries.
func TestWebhookNeedsItsModule(t *testing.T) {
	long(t)
	dir := t.TempDir()
	writeTools(t, dir+"/m.usher", "handleIt",
		"handleNever=never")
	d := daemonOptions{}.startReady(t, dir, "-call-timeout", "1s")
	checkError(t, "no answer within -call-timeout", d.deliver(t, "m/handleNever", `{}`), 504)
	c := connect(t, d.URL)
	c.Call("m_handleIt", "")
	silent := c.Call("m_handleNever", "")
	checkContains(t, "a silent call", silent.Failure(), "no answer and no progress within 1s")
	checkContains(t, "the next call", c.Call("m_handleIt", "").Body, `"result"`)
	d.stop(t)
	// The cache contains what the module offers; its program is gone.
	file, err := os.Stat(dir + "/m.usher")
	must(t, err)
	gone := slices.Repeat([]byte("#"), int(file.Size()))
	copy(gone, "#!/nonexistent/program\n")
	must(t, os.WriteFile(dir+"/m.usher", gone, 0o755))
	must(t, os.Chtimes(dir+"/m.usher", file.ModTime(), file.ModTime()))
	d = daemonOptions{base: d.Base}.startReady(t, dir)
	for _, what := range []string{"a module that can't start", "again"} {
		a := d.deliver(t, "m/handleIt", `{}`)
		checkError(t, what, a, 502)
		checkOmits(t, what, a.Body, dir)
	}
}

// A delivery is one line of the log, with the reason if it failed, which is the method's own, and
// otherwise without anything of what was sent.
func TestWebhookLogSaysWhy(t *testing.T) {
	t.Parallel()
	const number = `{"type":"object","properties":{"n":{"type":"integer"}}}`
	env := map[string]string{
		webhookSecretVar:           testSecret,
		"WH_KEY_SIGNING_SECRET":    "MARK-key",
		"WH_BADKEY_SIGNING_SECRET": "MARK not base64",
	}
	d := daemonOptions{env: env}.startTools(t, "-log json",
		"handleIt "+number,
		"handleResult=result",
		"handleSigned: @signature github WH_KEY_SIGNING_SECRET",
		"handleBadKey: @signature standard WH_BADKEY_SIGNING_SECRET")
	const body = `{"n":"MARK-body"}`
	failed := `{"result":{"isError":true,"content":[` + block("no such user: Ada") + `]}}`
	for _, row := range []struct {
		what, path, body, header string
		status                   int
		tool                     string // that the log names
		read                     bool   // the body
	}{
		{"good", "m/handleIt?q=MARK-query", `{"a":"MARK-body"}`, shown, 200, "handleIt", true},
		{"wrong secret", "m/handleIt", body, secretHeader + ": MARK-wrong", 401, "", false},
		{"unknown", "m/x?q=MARK-query", body, shown, 404, "", false},
		{"wrong type", "m/handleIt", body, shown, 400, "handleIt", true},
		{"failed", "m/handleResult", failed, shown, 500, "handleResult", true},
		{"bad _response", "m/handleResult", `{"result":{"structuredContent":{"_response":{"code":1}}}}`,
			shown, 502, "handleResult", true},
		{"badly signed", "m/handleSigned", body, "X-Hub-Signature-256: sha256=MARK", 401,
			"handleSigned", true},
		{"bad key", "m/handleBadKey", body, "Webhook-Id: x", 503, "handleBadKey", false},
	} {
		t.Run(row.what, func(t *testing.T) {
			headers := []string{row.header, "Cookie: MARK-cookie", "User-Agent: MARK-agent"}
			if !strings.HasPrefix(row.header, secretHeader) {
				headers = append(headers, shown)
			}
			a := d.send(t, "POST", row.path, row.body, headers...)
			wantStatus(t, "answer", a, row.status)
			id := `"id":"` + a.Header.Get(requestIDHeader) + `"`
			d.awaitLog(t, id)
			before, after, _ := strings.Cut(d.Log.String(), id)
			line := before[strings.LastIndex(before, "\n")+1:] +
				after[:strings.Index(after, "\n")]
			checkOmits(t, "other lines of the log", after, id)
			path, _, _ := strings.Cut(row.path, "?")
			path = strings.Replace(path, "m/x", "m/***", 1) // it may be a code
			checkContains(t, "the log", line, `"msg":"delivery"`, `"path":"`+path+`"`,
				`"took":`,
				`"remote":"127.0.0.1"`, fmt.Sprintf(`"status":%d`, row.status))
			check(t, "it has a reason", strings.Contains(line, `"why":`), row.status != 200)
			if row.tool != "" {
				checkContains(t, "the log", line, `"module":"m","method":"`+row.tool+`"`)
			}
			if row.read {
				checkContains(t, "the log", line, fmt.Sprintf(`"bytes":%d`, len(row.body)))
			}
		})
	}
	checkOmits(t, "the log", d.Log.String(), "MARK", testSecret)
	checkContains(t, "the log", d.Log.String(), `"why":"no such user: Ada"`,
		`_response is invalid: json: unknown field \"code\""`, "is not base64")
}

// A method's own answer is an HTTP answer, or is refused.
func FuzzWebhookOwnAnswer(f *testing.F) {
	f.Fuzz(func(t *testing.T, s string) {
		if checkJSON([]byte(s), "it") != nil {
			return
		}
		a, err := ownAnswer(bytes.TrimSpace(json.RawMessage(s)))
		if err != nil {
			if e, ok := errors.AsType[*fault](err); !ok || e.Status != 502 {
				t.Fatalf("%s: %v", s, err)
			}
			return
		}
		w := httptest.NewRecorder()
		if err := a.write(newMemory(0, strangers).serve(w, nil)); err != nil {
			t.Fatal(err)
		}
		var wire bytes.Buffer
		if err := w.Result().Write(&wire); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
		in, err := http.ReadResponse(bufio.NewReader(&wire), nil)
		if err != nil || in.StatusCode != a.Status {
			t.Fatalf("%s: %v %+v", s, err, a)
		}
		for name := range a.Headers {
			if got, want := in.Header.Values(name),
				w.Header().Get(name); len(got) != 1 || got[0] != strings.Trim(want, " \t") {
				t.Fatalf("%s: header %q came as %q", s, name, got)
			}
		}
	})
}

// Every status of an answer to a sender has a test.
func TestWebhookStatusIndex(t *testing.T) {
	var rows []string
	for _, file := range []string{"webhook.go", "http.go", "memory.go"} {
		rows = append(rows,
			regexp.MustCompile(`http\.Status[A-Z]\w+`).FindAllString(readFile(t,
				file), -1)...)
	}
	checkIndex(t, rows, map[string]string{
		"http.StatusOK":                    "TestWebhookAnswers",
		"http.StatusNoContent":             "TestWebhookAnswers",
		"http.StatusBadRequest":            "TestWebhookBodyBecomesParameters",
		"http.StatusUnauthorized":          "TestSignatureOrSecret",
		"http.StatusForbidden":             "TestWebhookRefusesSites",
		"http.StatusNotModified":           "TestWebhookAnswers",
		"http.StatusNotFound":              "TestWebhookHasOnePath",
		"http.StatusMethodNotAllowed":      "TestWebhookOrderOfChecks",
		"http.StatusRequestTimeout":        "TestWebhookBodyHasADeadline",
		"http.StatusRequestEntityTooLarge": "TestWebhookOrderOfChecks",
		"http.StatusUnsupportedMediaType":  "TestWebhookBodyBecomesParameters",
		"http.StatusConflict":              "TestWebhookPathsAreUnique",
		"http.StatusInternalServerError":   "TestWebhookAnswers",
		"http.StatusBadGateway":            "TestWebhookFailures",
		"http.StatusServiceUnavailable":    "TestDeliveriesAreBounded",
		"http.StatusTooManyRequests":       "TestRefusalHeaders", // of MCP
		"http.StatusGatewayTimeout":        "TestWebhookFailures",
	})
}
