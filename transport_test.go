// Tests of transport.go: HTTP, HTTP+SSE and stdio.

package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"usher/internal/mcptest"
)

// A panic is an error to its client, one entry in the log, and nothing to anyone else. A
// panic in reading from a module ends the module's process.
func TestPanicEndsRequest(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		var out output
		c := b.open(protocols[0])
		log := logTo(&out)
		good := b.server.modules
		b.server.log, b.server.modules = log, fixedRegistry(nil)
		hooks := webhooksOf(b.server.modules)
		hooks.log = log
		for what, ask := range map[string]func() string{
			"a list": func() string { return c.Ask("tools/list", "").Body },
			"a call": func() string { return c.Call("m_m", "").Body },
			"a call without session": func() string {
				return b.Modern("tools/call", `{"name":"m_m"}`).Body
			},
			"a webhook": func() string { return hooks.answer("POST", "m/x", shown, nil).Body.String() },
		} {
			before := strings.Count(out.String(), "level=ERROR")
			checkContains(t, what, ask(), "internal error: see usher's log")
			check(t, what+": entries in the log",
				strings.Count(out.String(), "level=ERROR")-before, 1)
		}
		checkContains(t, "the log", out.String(), "transport_test.go")
		b.server.modules = good
		check(t, "a call afterwards", c.Call("m_wait", "").Failure(), "")
		w := testWorker(kindPython, false, Caller{})
		w.log = log
		w.pool.onParts = func(*Worker, []string) { panic("in reading") }
		w.makeReady()
		w.readStdout(strings.NewReader(`{"jsonrpc":"2.0","method":"usher/parts",` +
			`"params":{"paths":[]}}` + "\n"))
		check(t, "the process is alive", w.alive(), false)
		checkContains(t, "the log", out.String(), "in reading")
	})
}

// Clients that look for a login are told that there is none. They look each time they
// connect, so that is no line of the log.
func TestThereIsNoLogin(t *testing.T) {
	t.Parallel()
	d := startDaemon(t, t.TempDir(), "-require-claim")
	c := newClient(t, d.URL)
	for _, path := range []string{
		".well-known/oauth-protected-resource", ".well-known/oauth-authorization-server/mcp",
		"mcp/.well-known/openid-configuration", "register",
	} {
		for _, method := range []string{"GET", "POST"} {
			req := c.Request(method, "")
			req.URL.Path = "/" + path
			a := c.Do(req)
			check(t, method+" "+path, a.Status, 404)
			checkContains(t, method+" "+path, a.Body, "usher has no login", claimHeader)
			check(t, method+" "+path, a.Header.Get("WWW-Authenticate"), "")
		}
	}
	checkOmits(t, "the log", d.Log.String(), "well-known", "register")
}

// A request gets the status and the reason that its first fault asks for.
func TestRequestsAreChecked(t *testing.T) {
	long(t)
	dir := t.TempDir()
	writeFake(t, dir+"/a.usher", "good")
	d := startDaemon(t, dir, "-max-body", "1MiB", "-allow-host", "Usher.Example.",
		"-allow-origin", "https://app.example", "-open", "-open-webhooks")
	c := connect(t, d.URL)
	call := func(arguments string) string {
		return rpcText("tools/call", `{"name":"a_echo","arguments":`+arguments+`}`)
	}
	ping := func(x string) string { return rpcText("ping", `{"x":`+x+`}`) }
	deep := strings.Repeat("[", 10_001) + strings.Repeat("]", 10_001)
	lines := strings.ReplaceAll(call(`{"x":1}`), ",", ",\n")
	const modern = "MCP-Protocol-Version: 2026-07-28"
	for _, tt := range []struct {
		name    string
		request string // "METHOD path", "Name: value", or "Name:" to leave a header out; else a POST
		body    string // a ping if empty
		status  int
		says    string
	}{
		{"a ping", "", "", 200, `{"jsonrpc":"2.0","id":1,"result":{}}`},
		{"malformed JSON", "", `{"jsonrpc":"2.0",`, 400, `"code":-32700`},
		{"invalid UTF-8", "", rpcText("pi\xffng", "{}"), 400, "not valid UTF-8"},
		{"10,000 levels", "", ping(deep), 400, `"code":-32700`},
		{"a body over the limit", "", ping(`"` + strings.Repeat("x", 1<<20) + `"`), 413, "1 MiB (-max-body)"},
		{"no JSON-RPC version", "", `{"id":1,"method":"ping"}`, 400, `"id":1,"error":{"code":-32600`},
		{"params that are a list", "", rpcText("ping", "[1]"), 400, "params must be an object"},
		{"params that are text", "", rpcText("ping", `""`), 400, "params must be an object"},
		{"params that are null", "", rpcText("tools/list", "null"), 200, `"a_echo"`},
		{"params that are an empty list", "", rpcText("tools/list", "[ ]"), 200, `"a_echo"`},
		{"params of a notification that are null", "",
			`{"jsonrpc":"2.0","method":"notifications/initialized","params":null}`, 202, ""},
		{"an id that is null", "", rpcAs("null", "ping", "{}"), 400, "id must be"},
		{"an id with a fraction", "", rpcAs("1.5", "ping", "{}"), 400, "id must be"},
		{"an id that is written as a fraction", "", rpcAs("1.0", "ping", "{}"), 200, `"id":1.0,`},
		{"an id with an exponent", "", rpcAs("1e2", "ping", "{}"), 200, `"id":1e2,`},
		{"an id over 2^63", "", rpcAs("18446744073709551617", "ping", "{}"), 200,
			`"id":18446744073709551617,`},
		{"an id of 400 digits", "", rpcAs(strings.Repeat("7", 400), "ping", "{}"), 200,
			`"id":` + strings.Repeat("7", 400)},
		{"a long id", "", rpcAs(`"`+strings.Repeat("x", maxID)+`"`, "ping", "{}"), 400,
			"of at most 16 KiB"},
		{"an Accept with streams first", "Accept: text/event-stream, application/json", "", 200,
			"event: message\ndata: {"},
		{"a long progress token", "", rpcText("ping", `{"_meta":{"progressToken":"`+
			strings.Repeat("x", maxID)+`"}}`), 200, "progressToken is longer than 16 KiB"},
		{"an unknown method", "", rpcText("nope", "{}"), 200, `"code":-32601`},
		{"a byte order mark", "", "\ufeff" + rpcText("ping", "{}"), 200, `"result":{}`},
		{"a message in several lines", "", lines, 200, `{\"x\":1}`},
		{"an unknown notification", "", `{"jsonrpc":"2.0","method":"notifications/nope"}`, 202, ""},
		{"an unknown tool", "", rpcText("tools/call", `{"name":"nope"}`), 200,
			`"code":-32602,"message":"unknown tool \"nope\""`},
		{"a list as arguments", "", call("[1]"), 200, "arguments must be an object"},
		{"text as arguments", "", call(`"{}"`), 200, "arguments must be an object"},
		{"an empty list as arguments", "", call("[]"), 200, `"{\"name\":\"echo\",\"_meta\"`},
		{"null as arguments", "", call("null"), 200, `"{\"name\":\"echo\",\"_meta\"`},
		{"a task", "", rpcText("tools/call", `{"name":"a_echo","task":{"ttl":1},"Task":1}`), 200,
			`"{\"name\":\"echo\",\"_meta\"`},
		{"an unknown resource", "", rpcText("resources/read", `{"uri":"x://y"}`), 200, `"code":-32002`},
		{"another content type", "Content-Type: text/plain", "", 415, ""},
		{"an Accept of neither", "Accept: text/html", "", 200, `"result":{}`},
		{"no Accept", "Accept:", "", 200, `"result":{}`},
		{"an unknown version", "MCP-Protocol-Version: 1999-01-01", "", 400, "1999-01-01"},
		{"no session", "Mcp-Session-Id:", "", 400, "send initialize first"},
		{"a forged session", "Mcp-Session-Id: " + strings.Repeat("A", 75), "", 404, "send initialize again"},
		{"a foreign Host", "Host: evil.example", "", 403, "-allow-host evil.example"},
		{"a Host that was allowed", "Host: usher.example:8443", "", 200, ""},
		{"a foreign Origin", "Origin: https://evil.example", "", 403, "-allow-origin https://evil.example"},
		{"an Origin of null", "Origin: null", "", 403, ""},
		{"an Origin that was allowed", "Origin: https://app.example", "", 200, ""},
		{"an Origin on this machine", "Origin: http://localhost:5173", "", 200, ""},
		{"another site's form", "Sec-Fetch-Site: cross-site", "", 403, ""},
		{"another site's picture", "GET \nSec-Fetch-Site: cross-site", "", 403, ""},
		{"a GET of 2026-07-28", "GET \n" + modern, "", 405, ""},
		{"a DELETE of 2026-07-28", "DELETE \n" + modern, "", 405, ""},
		{"a notification of that revision", modern, `{"jsonrpc":"2.0","method":"notifications/x"}`, 202, ""},
		{"a response of that revision", modern, `{"jsonrpc":"2.0","id":1,"result":{}}`, 400, ""},
		{"HEAD", "HEAD ", "", 405, ""},
		{"PUT", "PUT ", "", 405, "POST, GET, DELETE"},
		{"an unknown path", "POST nope", "", 404, `"error"`},
		{"a path with two slashes", "POST /mcp?claim=R3K9QZ", "", 404, `"error"`},
		{"a GET without Accept", "GET \nAccept:", "", 406, ""},
		{"a browser's GET", "GET \nAccept: text/html,*/*;q=0.8", "", 200, ""},
		{"a huge header", "X-Big: " + strings.Repeat("x", 24<<10), "", 431, ""},
		{"health, with any Host", "GET healthz\nHost: probe.example", "", 200, "ok"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			method, path, header := "POST", "", tt.request
			if line, rest, _ := strings.Cut(tt.request, "\n"); !strings.Contains(line, ":") &&
				line != "" {
				method, path, _ = strings.Cut(line, " ")
				header = rest
			}
			req := c.Request(method, cmp.Or(tt.body, rpcText("ping", "{}")))
			req.URL.Path += path
			if host, ok := strings.CutPrefix(header, "Host: "); ok {
				req.Host = host
			} else {
				setHeaders(req, header)
			}
			a := c.Do(req)
			check(t, "status", a.Status, tt.status)
			checkContains(t, "the answer", a.Body, tt.says)
			check(t, "it has a request id", a.Header.Get(requestIDHeader) != "",
				tt.status != 431)
		})
	}
}

// brokenWriter is the stdout of a client that has gone.
type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

// usher stdio ends when it can no longer write, even if its input does not end.
func TestStdioEndsWithItsOutput(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		in, input := io.Pipe()
		defer input.Close()
		go io.WriteString(input, rpcText("ping", "{}")+"\n")
		start := time.Now()
		serveStdio(ctx, b.server.serverConfig, in, brokenWriter{})
		check(t, "how long it took", time.Since(start), 0)
	})
}

// Once usher stdio has ended, no message begins a request.
func TestNoRequestBeginsAfterTheEnd(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		in, input := io.Pipe()
		serveStdio(ctx, b.server.serverConfig, in, io.Discard)
		read := 0
		go func() {
			for range 3 {
				if _, err := io.WriteString(input, rpcText("ping", "{}")+"\n"); err == nil {
					read++
				}
			}
		}()
		synctest.Wait()
		in.Close()
		synctest.Wait()
		check(t, "messages that were read", read, 1)
	})
}

// got returns what has been read so far.
func (x *exchange) got() (status int, text string) {
	synctest.Wait()
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.status, x.text
}

// close hangs up, and waits for the end.
func (x *exchange) close() {
	x.hangUp()
	<-x.done
}

// openSSE begins an HTTP+SSE session with a code, whose client can be asked.
func (b *bubble) openSSE(code string) (*testClient, *exchange) {
	c := clientOver(b.T, b.URL, b.HTTP)
	c.Header.Set(claimHeader, code)
	x := b.begin(c.GetRequest())
	_, text := x.got()
	_, address, _ := strings.Cut(text, "data: /")
	c.URL += strings.TrimSpace(address)
	c.Post(initializeWith(sseProtocol, askAllCaps))
	return c, x
}

// An error on a stream counts until it is written: a client that does not read can't collect them.
func TestErrorsOnAStreamCount(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		read := make(chan struct{})
		out := &outbox{
			ctx:  t.Context(),
			held: b.server.memory.reserve(everyone),
			write: func(outEvent) error {
				<-read
				return nil
			},
		}
		from := admission{session: newSession(sessionOrigin{}), principal: everyone}
		d := &duplex{server: b.server, from: from, out: out}
		id := strings.Repeat("1", 1000)
		must(t, d.receive(from, []byte(`{"jsonrpc":"2.0","id":"`+id+`","method":"ping","params":1}`)))
		check(t, "an error counts", heldBytes(b.server.memory) > len(id), true)
		close(read)
		out.end()
		<-out.done
		check(t, "bytes in the end", heldBytes(b.server.memory), 0)
	})
}

// The messages of an HTTP+SSE session count for its principal until they are answered.
func TestSSEMessagesCount(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		c, x := b.openSSE("")
		const size = 10_000
		echo := strings.Repeat("x", size)
		c.Post(
			c.Message(
				"tools/call",
				`{"name":"m_wait","arguments":{"seconds":1,"echo":"`+echo+`"}}`,
			),
		)
		synctest.Wait()
		held := heldBytes(b.server.memory)
		check(t, "a call counts", held > size, true)
		pass(2 * time.Second)
		_, text := x.got()
		checkContains(t, "the answer", text, "waited"+echo)
		check(t, "bytes after the answer", heldBytes(b.server.memory), 0)
		x.close()
	})
}

// hangUp ends the requests that b began.
func (b *bubble) hangUp() {
	for _, hangUp := range b.hangUps {
		hangUp()
	}
}

// exchange is a request that was made, and what has been read of its answer.
type exchange struct {
	hangUp context.CancelFunc
	done   chan struct{} // closed at its end
	mu     sync.Mutex
	status int // 0 until there is one
	header http.Header
	text   string
}

// begin makes a request, and reads its answer in the background.
func begin(t *testing.T, client *http.Client, req *http.Request, unread bool) *exchange {
	ctx, cancel := context.WithCancel(t.Context())
	x := &exchange{hangUp: cancel, done: make(chan struct{})}
	go func() {
		defer close(x.done)
		res, err := client.Do(req.WithContext(ctx))
		if err != nil {
			return // it was hung up
		}
		defer res.Body.Close()
		x.mu.Lock()
		x.status, x.header = res.StatusCode, res.Header
		x.mu.Unlock()
		if unread {
			<-ctx.Done()
			return
		}
		for part := make([]byte, 4096); err == nil; {
			var n int
			n, err = res.Body.Read(part)
			x.mu.Lock()
			x.text += string(part[:n])
			x.mu.Unlock()
		}
	}()
	return x
}

func (b *bubble) begin(req *http.Request) *exchange {
	x := begin(b.T, b.HTTP, req, b.unread)
	b.hangUps = append(b.hangUps, x.hangUp)
	return x
}

// ended reports whether the answer has ended.
func (x *exchange) ended() bool {
	select {
	case <-x.done:
		return true
	default:
		return false
	}
}

// Streams end at once when the daemon begins to stop.
func TestStreamsEndWithTheDaemon(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		_, old := b.openSSE("")
		streams := map[string]*exchange{
			"HTTP+SSE":   old,
			"2025-11-25": b.begin(b.open("2025-11-25").GetRequest()),
			"2026-07-28": b.begin(b.ModernPOST("1", listenMethod, `{"notifications":{}}`)),
		}
		synctest.Wait()
		b.stop()
		synctest.Wait()
		for name, stream := range streams {
			check(t, name+": the stream has ended", stream.ended(), true)
			stream.hangUp()
		}
	})
}

// startStdio runs usher stdio over a workspace; messages go in and out by the pipes.
func startStdio(t *testing.T, dir string) (in io.WriteCloser, out *bufio.Reader, exit chan int) {
	t.Helper()
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	exit = make(chan int, 1)
	ctx, cancel := context.WithCancel(context.Background())
	base := t.TempDir()
	go func() {
		exit <- run(ctx, []string{"stdio", "-base", base, dir}, inR, outW, io.Discard, noEnv)
		outW.Close()
	}()
	t.Cleanup(func() {
		cancel()
		inW.Close()
		go io.Copy(io.Discard, outR)
		<-exit
	})
	return inW, bufio.NewReader(outR), exit
}

// usher stdio writes only JSON-RPC to stdout, and answers calls that are under way when its
// input ends.
func TestStdioAnswersInOrder(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	writeFake(t, dir+"/a.usher", "good")
	in, out, exit := startStdio(t, dir)
	send := func(id, method, params string) {
		raw := append(json.RawMessage(nil), id...) // nil for a notification
		io.WriteString(in, string(encodeRequest(raw, method, objectOf(params)))+"\n")
	}
	want := func(what string, texts ...string) {
		t.Helper()
		line, err := out.ReadBytes('\n')
		must(t, err)
		must(t, checkJSON(line, "it"))
		check(t, what+": jsonrpc", stringField(line, "jsonrpc"), "2.0")
		checkContains(t, what, line, texts...)
	}
	send("1", "initialize", `{"protocolVersion":"2025-06-18"}`)
	want("initialize", `"protocolVersion":"2025-06-18"`)
	send("", "notifications/initialized", "")
	io.WriteString(in, `{"half`+"\n")
	want("half a line", `{"jsonrpc":"2.0","error":{"code":-32700`)
	send("2", "tools/list", "")
	want("tools/list", `"a_echo"`)
	send("3", "tools/call",
		`{"name":"a_progress","arguments":{"n":2},"_meta":{"progressToken":"p"}}`)
	want("progress", `"progress":1`)
	want("progress", `"progress":2`)
	want("the call", `"id":3,"result"`)
	send("4", "tools/call", `{"name":"a_sleep","arguments":{"ms":60000}}`)
	send("", "notifications/cancelled", `{"requestId":4}`)
	send("5", "tools/call", `{"name":"a_sleep","arguments":{"ms":100}}`)
	in.Close()
	want("a call under way at the end of input", `"id":5,"result"`)
	for err := error(nil); err == nil; { // the rest of the output, such as changes of lists
		_, err = out.ReadBytes('\n')
	}
	code := <-exit
	check(t, "exit status", code, 0)
	exit <- code
}

// Several lines of Accept count as one, and a longer list never allows less.
func FuzzAccepts(f *testing.F) {
	f.Fuzz(func(t *testing.T, a, b string) {
		allows := func(values ...string) bool {
			return accepts(http.Header{"Accept": values}, streamTypes...)
		}
		check(t, "both lines", allows(a, b), allows(a) || allows(b))
		check(t, "one line", allows(a+","+b), allows(a, b))
	})
}

// Batches are refused in each version, over each transport. The next message is answered.
func TestBatchesAreRefused(t *testing.T) {
	long(t)
	d := startFakes(t, "a: good")
	ping := rpcAs("7", "ping", "{}")
	for _, version := range protocols {
		for _, body := range []string{"[" + ping + "," + ping + "]", " \n[]"} {
			c := newClient(t, d.URL)
			c.Begin(initializeWith(version, `{}`))
			a := c.Post(body)
			check(t, version+": status", a.Status, 400)
			checkContains(t, version, a.Body, `"code":-32600`, "batches")
			checkOmits(t, version, a.Body, `"id"`)
		}
	}
	checkNext := func(t *testing.T, send func(string), next func() string) {
		send(initializeWith("2025-03-26", `{}`))
		next()
		send("[" + ping + "]")
		checkContains(t, "the answer to a batch", next(), `"code":-32600`, "batches")
		send(ping)
		checkContains(t, "the answer to a ping", next(), `"id":7,"result"`)
	}
	t.Run("stdio", func(t *testing.T) {
		in, out, _ := startStdio(t, d.Dir)
		checkNext(t, func(s string) { io.WriteString(in, s+"\n") }, func() string {
			line, err := out.ReadBytes('\n')
			must(t, err)
			return string(line)
		})
	})
	t.Run("HTTP+SSE", func(t *testing.T) {
		c := connectSSE(t, d.URL, func(r *http.Request) { r.URL.Path = "/mcp/" })
		checkNext(t, func(s string) { c.Post(s) }, func() string {
			return wantEvent(t, c.Events).Data
		})
	})
}

// askSSE makes a request whose answer comes on the stream, maybe after others.
func askSSE(c *mcptest.SSEClient, method, params string) json.RawMessage {
	c.T.Helper()
	text := c.Message(method, params)
	if a := c.Post(text); a.Status != 202 || a.Body != "" {
		c.T.Fatalf("%s: %d %s", method, a.Status, a.Body)
	}
	for {
		msg := wantEvent(c.T, c.Events).Msg()
		if string(field(msg, "id")) == string(field(text, "id")) {
			return msg
		}
	}
}

// An HTTP+SSE call is cancelled by its own session's message, and by hanging up, which ends
// the session.
func TestSSESessionEndsWithItsStream(t *testing.T) {
	long(t)
	d := startFakes(t, "a: shared good")
	c, other := connectSSE(t, d.URL), connectSSE(t, d.URL)
	cancelled := func() int { return d.logged("fake: cancelled") }
	call := func() {
		t.Helper()
		before := d.logged("fake: sleeping")
		c.Post(rpcAs(`"s"`, "tools/call", `{"name":"a_sleep","arguments":{"ms":60000}}`))
		await(t, "the call to begin", func() bool {
			return d.logged("fake: sleeping") > before
		})
	}
	call()
	c.Post(rpcAs(`"s"`, "ping", "{}"))
	wantEvent(t, c.Events, `"id":"s"`, "is already in use")
	other.Cancel(`"s"`)
	askSSE(other, "ping", "")
	check(t, "calls that another session cancelled", cancelled(), 0)
	c.Cancel(`"s"`)
	await(t, "the module to hear of it", func() bool { return cancelled() == 1 })
	call()
	c.HangUp()
	await(t, "the module to hear that the client is gone", func() bool {
		return cancelled() == 2
	})
	await(t, "404", func() bool {
		return c.Post(rpcText("ping", "{}")).Status == 404
	})
	wantStatus(t, "a GET of an ended session", c.Do(c.GetRequest()), 404)
	checkContains(t, "the other session", askSSE(other, "ping", ""), `"result"`)
}

// A call of a session continues when its stream breaks, and its answer is lost.
// Last-Event-ID opens an ordinary stream.
func TestCallSurvivesItsStream(t *testing.T) {
	long(t)
	d := startFakes(t, "a: good tools=progress,release")
	c := connect(t, d.URL)
	const params = `{"name":"a_progress","arguments":{"n":4,"hold":2},"_meta":{"progressToken":"p"}}`
	_, events, hangUp := mcptest.OpenStream(t, c.Asking("tools/call", params))
	check(t, "the id of an event", wantEvent(t, events, `"progress":1`).ID, "")
	hangUp()
	c.Call("a_release", "")
	d.awaitLog(t, "method=progress outcome=done")
	c.Header.Set("Last-Event-ID", "1")
	events, hangUp = c.Listen()
	hangUp()
	check(t, "messages of a later stream", len(remainingEvents(t, events)), 0)
}

// usher stdio ends soon after TERM although its client does not read.
func TestStdioEndsAlthoughNobodyReads(t *testing.T) {
	long(t)
	dir := t.TempDir()
	writeFake(t, dir+"/a.usher", "good tools=big")
	cmd := exec.Command(testBinary(t), "stdio", "-base", t.TempDir(), dir)
	cmd.Env = append(os.Environ(), runAsUsher+"=1")
	in, err := cmd.StdinPipe()
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	for _, line := range []string{
		initializeWith(protocols[0], `{}`), initialized,
		`{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"a_big",` +
			`"arguments":{"bytes":1000000}}}`,
	} {
		io.WriteString(in, line+"\n")
	}
	answers := bufio.NewReader(out)
	_, err = answers.ReadString('\n') // to initialize
	must(t, err)
	_, err = answers.ReadByte() // of the large answer
	must(t, err)
	must(t, cmd.Process.Signal(syscall.SIGTERM))
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case <-ended:
	case <-time.After(patience):
		cmd.Process.Kill()
		t.Error("it has not ended")
	}
}
