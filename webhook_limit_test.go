// Tests of webhook.go: how many deliveries may be in flight, and how long a body may take.

package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// At most maxInFlight deliveries are in flight, whatever their modules. Those whose bodies
// have not arrived don't count.
func TestDeliveriesAreBounded(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		for _, method := range b.m.Methods {
			method.IsHook = true
		}
		h := webhooksOf(b.server.modules)
		wait := func() int {
			return h.answer("POST", "m/wait", shown, strings.NewReader(`{"seconds":1}`)).Code
		}
		arriving, rest := io.Pipe()
		statuses := make(chan int, 2*maxInFlight)
		for range maxInFlight {
			go func() { statuses <- h.answer("POST", "m/wait", shown, arriving).Code }()
		}
		synctest.Wait()
		check(t, "status beside bodies that have not arrived", wait(), 200)
		for range maxInFlight {
			go func() { statuses <- wait() }()
		}
		synctest.Wait()
		for _, row := range []struct {
			what, method, path string
			status             int
		}{
			{"one more", "POST", "m/wait", 503},
			{"one more of another method", "POST", "m/ask", 503},
			{"an unknown path", "POST", "m/nothing", 404},
			{"another method", "GET", "m/wait", 405},
		} {
			w := h.answer(row.method, row.path, shown, strings.NewReader(`{}`))
			check(t, row.what+": status", w.Code, row.status)
			check(t, row.what+": Retry-After", w.Header().Get("Retry-After") != "",
				row.status == 503)
			w = h.answer(row.method, row.path, "", strings.NewReader(`{}`))
			check(t, row.what+": status without the secret", w.Code, 401)
		}
		check(t, "a call over MCP", b.open(protocols[0]).Call("m_wait", "").Failure(), "")
		for range maxInFlight {
			check(t, "status of a delivery within the limit", <-statuses, 200)
		}
		check(t, "status after them", wait(), 200)
		rest.Close()
		for range maxInFlight {
			check(t, "status of a delivery without a body", <-statuses, 200)
		}
	})
}

// A call that waits for its module is not made if its sender hangs up. One that the module has
// received goes on, and its delivery counts, until the call ends or -webhook-timeout.
func TestSenderHangsUp(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		b.m.Methods[len(b.m.Methods)-1].IsHook = true
		var log output
		h := webhooksOf(b.server.modules)
		h.log = slog.New(slog.NewTextHandler(&log, nil))
		ctx, hangUp := context.WithCancel(t.Context())
		var all sync.WaitGroup
		deliver := func(seconds int) {
			all.Go(func() {
				body := strings.NewReader(fmt.Sprintf(`{"seconds":%d}`, seconds))
				r := httptest.NewRequestWithContext(ctx, "POST", "/webhook/m/wait", body)
				r.Header.Set(secretHeader, testSecret)
				h.ServeHTTP(httptest.NewRecorder(), r)
			})
			synctest.Wait()
		}
		deliver(500) // longer than -webhook-timeout
		for range maxRunningOf {
			deliver(10)
		}
		hangUp()
		synctest.Wait()
		logged := func(what string) int { return strings.Count(log.String(), what) }
		check(
			t,
			"calls that were not made",
			logged(`why="context canceled" note="the sender hung up"`),
			1,
		)
		check(t, "records before the calls end", logged("msg=delivery"), 1)
		check(t, "deliveries in flight", h.inFlight.count(senders), maxRunningOf)
		<-time.After(11 * time.Second)
		check(
			t,
			"calls that have ended",
			logged(`wait note="the sender hung up" status=200`),
			maxRunningOf-1,
		)
		all.Wait()
		check(
			t,
			"calls that took too long",
			logged(`(-webhook-timeout, -call-timeout)" note="the sender hung up"`),
			1,
		)
	})
}

// A delivery waits for a module that is introspected, or gets 503.
func TestWebhookWaitsForItsModule(t *testing.T) {
	long(t)
	dir, base := t.TempDir(), t.TempDir()
	writeTools(t, dir+"/known.usher", "handleIt")
	wantUsher(t, 0, "", "modules", "-base", base, dir)
	gates := map[string]net.Listener{} // closed when the module of this name may start
	for _, name := range []string{"late", "later"} {
		gate, err := net.Listen("tcp", "127.0.0.1:0")
		must(t, err)
		defer gate.Close()
		gates[name] = gate
		writeFake(t, dir+"/"+name+".usher", "fixed shared await="+gate.Addr().String(),
			"handleIt",
			"handleSigned: @signature github WH_KEY_SIGNING_SECRET")
	}
	env := map[string]string{webhookSecretVar: testSecret, "WH_KEY_SIGNING_SECRET": "k"}
	d := daemonOptions{base: base, env: env}.start(t, dir, "-accept-signatures")
	wantStatus(t, "a known module beside it", d.deliver(t, "known/handleIt", `{}`, shown), 200)
	late := make(chan answer, 1) // arrives while its module is introspected
	go func() { late <- d.deliver(t, "late/handleIt", `{}`, shown) }()
	gates["late"].Close()
	var wg sync.WaitGroup
	for _, path := range []string{"later/handleIt", "later/handleSigned", "no/thing"} {
		wg.Go(func() {
			a := d.deliver(t, path, `{}`, shown)
			checkError(t, path, a, 503)
			check(t, path+": it has Retry-After", a.Header.Get("Retry-After") != "", true)
		})
		wg.Go(func() {
			a := d.deliver(t, path, `{}`, signed("github", "other", "{}", time.Now())...)
			checkError(t, path+" without the secret", a, 401)
		})
	}
	wg.Wait()
	wantStatus(t, "a module that became ready", <-late, 200)
	gates["later"].Close()
	d.awaitReady(t)
	checkError(t, "an unknown path, all modules known",
		d.deliver(t, "no/thing", `{}`, shown), 404)
}

// At the start, a call or delivery waits for the module that may have its name, and does not go to
// another one.
func TestNamesWaitForTheStart(t *testing.T) {
	long(t)
	dir, base := t.TempDir(), t.TempDir()
	writeTools(t, dir+"/deploy_a.usher", "run",
		"other: @webhook deploy/handleIt")
	wantUsher(t, 0, "", "modules", "-base", base, dir) // its lists are known from now on
	writeFake(t, dir+"/deploy.usher", "fixed slowstart=1000 tools=a_run,handleIt")
	d := daemonOptions{base: base}.start(t, dir)
	c := connect(t, d.URL)
	called := make(chan answer, 1)
	go func() { called <- c.Call("deploy_a_run", "") }()
	checkError(t, "a delivery", d.deliver(t, "deploy/handleIt", `{}`), 409)
	checkContains(t, "a call", (<-called).Failure(), "ambiguous")
}

// A delivery that is refused whatever its body is refused before its body has arrived.
func TestWebhookRefusedBeforeItsBody(t *testing.T) {
	long(t)
	d := daemonOptions{env: guarded}.startTools(t, "-accept-signatures",
		"handleIt",
		"handleSigned: @signature github WH_UNSET_SIGNING_SECRET",
		"handleKeyed: @signature github "+webhookSecretVar)
	for _, row := range []struct {
		what, first, headers string
		status               int
	}{
		{"no @signature", "POST /webhook/m/handleIt", "X-Hub-Signature: 0\r\n", 401},
		{"no signature", "POST /webhook/m/handleKeyed", "", 401},
		{"another method", "PUT /webhook/m/handleIt", shown + "\r\n", 405},
		{"nothing there", "POST /webhook/x", shown + "\r\n", 404},
		{"no key", "POST /webhook/m/handleSigned", shown + "\r\n", 503},
		{"another content type", "POST /webhook/m/handleIt", shown +
			"\r\nContent-Type: text/csv\r\n", 415},
		{"a foreign origin", "POST /webhook/m/handleIt",
			"Origin: https://evil.example\r\n", 403},
	} {
		t.Run(row.what, func(t *testing.T) {
			t.Parallel()
			start := time.Now()
			a := d.raw(t, row.first+" HTTP/1.1\r\nHost: localhost\r\n"+row.headers+
				"Content-Length: 1000\r\n\r\n{")
			wantStatus(t, "answer", a, row.status)
			check(t, "it waited for the body", time.Since(start) >= unknownBodyTimeout, false)
		})
	}
}

// A body has to arrive within a fixed time, however fast it is.
func TestWebhookBodyHasADeadline(t *testing.T) {
	const half, chunked = "Content-Length: 1000\r\n", "Transfer-Encoding: chunked\r\n"
	const signature = "X-Hub-Signature-256: sha256=00\r\n"
	for _, row := range []struct {
		what, secret, method, headers, piece string
		status                               int
		after                                time.Duration
	}{
		{"half a body", testSecret, "handleIt", shown + "\r\n" + half, "", 408, bodyTimeout},
		{"a slow body", testSecret, "handleIt", shown + "\r\n" + half, " ", 408, bodyTimeout},
		{"a body without end", testSecret, "handleIt", shown + "\r\n" + chunked,
			"5000\r\n" + strings.Repeat(" ", 0x5000) + "\r\n", 408, bodyTimeout},
		{"a body to be verified", testSecret, "handleSigned", shown + "\r\n" + half,
			" ", 408, bodyTimeout},
		{"a body that should replace the secret", testSecret, "handleSigned",
			signature + half, " ",
			401, unknownBodyTimeout},
		{"a body that needs no secret", "", "handleIt", half, " ", 408, bodyTimeout},
		{"a body that only a signature proves", "", "handleSigned", signature + half, " ",
			408, unknownBodyTimeout},
	} {
		runSynced(t, row.what, func(t *testing.T) {
			m := module(t, "/w/m.usher:m handleIt handleSigned")
			m.Methods[1].Signature = "@signature github K_SIGNING_SECRET"
			h := webhooksOf(fixedRegistry(newCatalog([]*Module{m})))
			h.Secret = row.secret
			conns := make(pipes)
			web := &http.Server{Handler: h, ReadTimeout: bodyTimeout}
			go web.Serve(conns)
			defer web.Close()
			conn, err := conns.dial(t.Context(), "", "")
			must(t, err)
			var sending sync.WaitGroup
			sending.Go(func() {
				_, err := fmt.Fprintf(conn,
					"POST /webhook/m/%s HTTP/1.1\r\nHost: localhost\r\n%s\r\n",
					row.method, row.headers)
				for err == nil {
					pass(time.Second)
					_, err = io.WriteString(conn, row.piece)
				}
			})
			start := time.Now()
			res, err := http.ReadResponse(bufio.NewReader(conn), nil)
			must(t, err)
			check(t, "status", res.StatusCode, row.status)
			check(t, "time until the answer", time.Since(start), row.after)
			conn.Close()
			sending.Wait()
		})
	}
}

// webhooksOf returns the webhooks of modules, which take the secret or, with the key "k", a signature.
func webhooksOf(modules *Registry) *testWebhooks {
	config := webhookConfig{
		Secret:           testSecret,
		Open:             true,
		AcceptSignatures: true,
		timeout:          time.Minute,
	}
	return &testWebhooks{newMemory(1<<20, strangers), &Webhooks{
		webhookConfig: config,
		modules:       modules,
		log:           quiet,
		stopped:       context.Background(),
		getenv:        func(string) string { return "k" },
		inFlight:      counter{perKey: maxInFlight},
	}}
}

// testWebhooks are Webhooks that answer requests as the daemon does.
type testWebhooks struct {
	memory *memory
	*Webhooks
}

// ServeHTTP answers a request as the daemon does.
func (h *testWebhooks) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	x := h.memory.serve(w, r)
	defer x.end()
	x.refuse = writeWebhookError
	x.handle(h.log, func() error { return h.serve(x) })
}

// answer answers a request with headers, as for setHeaders, to a path below /webhook/.
func (h *testWebhooks) answer(
	method, path, headers string,
	body io.Reader,
) *httptest.ResponseRecorder {
	w, r := httptest.NewRecorder(), httptest.NewRequest(method, "/webhook/"+path, body)
	setHeaders(r, headers)
	h.ServeHTTP(w, r)
	return w
}

// A delivery that finds no room, for its body or for what that becomes, gets 503: senders
// repeat it.
func TestWebhookWithoutRoomIsRefused(t *testing.T) {
	t.Parallel()
	m := module(t, "/w/m.usher:m handleIt")
	m.Methods[0].Signature = "@signature github K_SIGNING_SECRET"
	body := `{"x":"` + strings.Repeat("x", 5000) + `"}`
	for _, row := range []struct {
		name      string
		principal *Principal
		left      int
		header    string
	}{
		{"a body to be verified", strangers, 0, ""},
		{"a body", senders, 0, shown},
		{"a body that was verified", senders, 0, ""},
		{"arguments", senders, 6000, shown},
	} {
		h := webhooksOf(fixedRegistry(newCatalog([]*Module{m})))
		used := h.memory.reserve(row.principal).counter
		full := used.perKey - row.left
		used.reserve(row.principal, full)
		headers := row.header + "\n" + signed("github", "k", body, time.Now())[0]
		w := h.answer("POST", "m/handleIt", headers, strings.NewReader(body))
		check(t, row.name+": status", w.Code, 503)
		check(t, row.name+": Retry-After", w.Header().Get("Retry-After"), "5")
		check(t, row.name+": bytes in the end", used.count(row.principal), full)
	}
}

// An answer that finds no room becomes its status, because its method has run. Headers of a
// _response need room like its body.
func TestWebhookAnswerNeedsRoom(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		for _, method := range b.m.Methods {
			method.IsHook = true
		}
		h := webhooksOf(b.server.modules)
		used := h.memory.reserve(senders).counter
		const size = 5000
		for room, fits := range map[int]bool{
			2*size + 1000: false, // for the body, which counts twice
			4 * size:      true,
		} {
			full := used.perKey - room
			used.reserve(senders, full)
			body := `{"seconds":1,"echo":"` + strings.Repeat("x", size) + `"}`
			w := h.answer("POST", "m/wait", shown, strings.NewReader(body))
			what := fmt.Sprint("room for ", room, " bytes: ")
			check(t, what+"status", w.Code, 200)
			check(t, what+"it has a body", w.Body.Len() > 0, fits)
			used.release(senders, full)
		}
		for _, part := range []string{"headers", "body"} {
			a := &webhookAnswer{
				Status:  201,
				Headers: map[string]string{"X-Own": "x"},
				Body:    []byte(`"x"`),
			}
			if part == "headers" {
				a.Headers["X-Own"] = strings.Repeat("x", size)
			} else {
				a.Body = quote(strings.Repeat("x", size))
			}
			used.reserve(senders, used.perKey-size)
			w := httptest.NewRecorder()
			x := h.memory.serve(w, nil)
			must(t, x.countFor(senders))
			check(t, part+" without room: error", a.write(x), errNoRoom)
			check(t, part+" without room: status", w.Code, 201)
			check(t, part+" without room: header", w.Header().Get("X-Own"), "")
			check(t, part+" without room: body", w.Body.Len(), 0)
			used.release(senders, used.perKey-size)
		}
	})
}

// A delivery without the secret causes no scan, and learns nothing while webhooks are off.
func TestStrangersCauseNothing(t *testing.T) {
	t.Parallel()
	r := fixedRegistry(newCatalog(nil))
	r.registryConfig = registryConfig{Log: quiet, Watch: true}
	r.ctx = t.Context()
	h := webhooksOf(r)
	deliver := func(method, header string) int { return h.answer(method, "m/x", header, nil).Code }
	check(t, "status without the secret", deliver("POST", "X-Hub-Signature-256: 00"), 401)
	check(t, "it causes no scan", r.scanned.IsZero(), true)
	check(t, "status with the secret", deliver("POST", shown), 404)
	check(t, "it causes a scan", !r.scanned.IsZero(), true)
	h.Secret = ""
	h.Open = false
	check(t, "status of a GET while webhooks are off", deliver("GET", ""), 401)
}
