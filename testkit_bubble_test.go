// A bubble: usher's HTTP side over connections in memory, with a module that is a function, for
// tests that take minutes or hours. Inside testing/synctest, time passes only when a test lets it pass.

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// bubble is a server that hosts the module m, and a client without a session. The tools of m are:
//
//	wait {seconds}  answers after so many seconds
//	ask             asks its client, and returns the answer
//	need            the same, but a refusal is its own error
//	stay            asks, and never returns
type bubble struct {
	*testClient
	server  *Server
	stop    context.CancelFunc // begins the daemon's end
	conns   pipes
	files   int // that the server may open
	m       *Module
	base    string
	native  bool     // m supports only 2026-07-28
	unread  bool     // the bodies of answers are not read
	process *Worker  // of m, the latest
	hangUps []func() // end the requests that b began

	mu    sync.Mutex
	sent  []*Message        // all that m was sent
	tools map[string]string // of its calls, by their ids
}

// inBubble runs a test in a bubble, beside other tests. At its end no goroutine may be left.
func inBubble(t *testing.T, test func(*testing.T, *bubble)) {
	t.Parallel()
	inBubbleWith(t, 1<<20, test)
}

// inBubbleWith runs a test alone in a bubble, whose server may open so many files.
func inBubbleWith(t *testing.T, files int, test func(*testing.T, *bubble)) {
	base := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		b := &bubble{base: base, tools: make(map[string]string), files: files}
		b.start(t)
		test(t, b)
	})
}

// runInBubble runs a subtest in a bubble.
func runInBubble(t *testing.T, name string, test func(*testing.T, *bubble)) {
	t.Run(name, func(t *testing.T) { inBubbleWith(t, 1<<20, test) })
}

func (b *bubble) start(t *testing.T) {
	claims := openClaims(b.base + "/.data")
	log := quiet
	b.m = module(t, "/w/m.usher:m ask need stay wait")
	b.m.pool = testPool("m", true, b.startProcess)
	stopping, stop := context.WithCancel(context.Background())
	b.stop = stop
	stopped, cancelCalls := context.WithCancel(context.Background())
	b.server = newServer(serverConfig{
		modules:  fixedRegistry(newCatalog([]*Module{b.m})),
		gate:     newGate(claims, newSessionKey(), false, log),
		memory:   newMemory(1<<20, strangers),
		log:      log,
		stopping: stopping,
		stopped:  stopped,
	})
	d := &daemon{
		flags:    &serveFlags{},
		log:      log,
		server:   b.server,
		registry: b.server.modules,
		webhooks: webhooksOf(b.server.modules).Webhooks,
	}
	b.conns = make(pipes)
	web := &http.Server{Handler: d, ReadTimeout: bodyTimeout}
	limitConnections(web, b.files)
	var serving sync.WaitGroup
	serving.Go(func() { web.Serve(b.conns) })
	serving.Go(func() { claims.Watch(stopping) })
	transport := &http.Transport{DialContext: b.conns.dial, DisableKeepAlives: true}
	b.testClient = clientOver(t, "http://localhost/", &http.Client{Transport: transport})
	t.Cleanup(func() {
		stop()
		time.AfterFunc(time.Second, cancelCalls)
		if err := web.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
		<-stopped.Done()
		b.server.suspended.running.Wait()
		b.m.pool.close()
		serving.Wait()
		claims.Close()
	})
}

// pipes is a listener for connections in memory.
type pipes chan net.Conn

func (p pipes) Accept() (net.Conn, error) {
	if c, ok := <-p; ok {
		return c, nil
	}
	return nil, net.ErrClosed
}

func (p pipes) Close() error {
	close(p)
	return nil
}

func (p pipes) Addr() net.Addr { return &net.TCPAddr{} }

func (p pipes) dial(context.Context, string, string) (net.Conn, error) {
	ours, theirs := net.Pipe()
	p <- theirs
	return ours, nil
}

// startProcess starts a process of m: a goroutine that plays it.
func (b *bubble) startProcess(w *Worker) {
	w.stateless = b.native
	b.process = w
	read, stdin := io.Pipe()
	go w.writeStdin(stdin)
	go func() {
		for lines := bufio.NewReader(read); ; {
			line, err := readLine(lines, 1<<20)
			if err != nil {
				w.finish("")
				return
			}
			b.play(w, line)
		}
	}()
	w.makeReady()
}

// play does what m does with one message.
func (b *bubble) play(w *Worker, line []byte) {
	msg, err := parseMessage(line)
	if err != nil {
		b.T.Errorf("m was sent %s: %v", line, err)
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sent = append(b.sent, msg)
	name, id := msg.Params.text("name"), msg.ID
	switch {
	case msg.Method == "tools/call" && name == "wait":
		arguments := msg.Params.object("arguments")
		n, _ := strconv.Atoi(string(arguments.get("seconds")))
		time.AfterFunc(time.Duration(n)*time.Second, func() {
			w.handle(&Message{ID: id, Result: textResult("waited" + arguments.text("echo"))})
		})
	case msg.Method == "tools/call" && b.native:
		const result = `{"resultType":"input_required","requestState":"s","inputRequests":` +
			`{"q":{"method":"elicitation/create","params":{"message":"well?"}}}}`
		w.handle(&Message{ID: id, Result: objectOf(result)})
	case msg.Method == "tools/call":
		b.tools[string(id)] = name
		const params = `{"message":"well?","requestedSchema":{"type":"object","properties":{}},` +
			`"_meta":{%q:%s}}`
		ask(w, `"of `+string(id)+`"`, fmt.Sprintf(params, metaCall, id))
	case msg.Method == "": // an answer
		call := strings.Trim(strings.TrimPrefix(string(id), `"of `), `"`)
		back := &Message{ID: json.RawMessage(call)}
		if b.tools[call] == "need" && msg.Err != nil {
			back.Err = rpcErrorf(-32050, "without it: %s", msg.Err.Message)
		} else {
			back.Result = textResult(fakeAnswer(msg))
		}
		if b.tools[call] != "stay" {
			w.handle(back)
		}
	}
}

// ask has a process ask its client; id and params are JSON.
func ask(w *Worker, id, params string) {
	w.handle(&Message{
		ID:     json.RawMessage(id),
		Method: "elicitation/create",
		Params: objectOf(params),
	})
}

func textResult(s string) object { return objectOf(`{"content":[` + block(s) + `]}`) }

// fakeAnswer returns an answer as JSON.
func fakeAnswer(msg *Message) string {
	if msg.Err != nil {
		return fmt.Sprintf(`{"code":%d,"refused":%s}`, msg.Err.Code, quote(msg.Err.Message))
	}
	return string(msg.Result.encode())
}

// hears returns what m was sent since the last time, a line for each message: its method, or what
// an answer contains.
func (b *bubble) hears() string {
	synctest.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	var lines []string
	for _, msg := range b.sent {
		if msg.Method == "" {
			lines = append(lines, fakeAnswer(msg))
		} else {
			lines = append(lines, msg.Method)
		}
	}
	b.sent = nil
	return strings.Join(lines, "\n")
}

// open begins a session of a version, whose client can be asked.
func (b *bubble) open(version string) *testClient {
	c := clientOver(b.T, b.URL, b.HTTP)
	wantStatus(b.T, "initialize", c.Begin(initializeWith(version, askAllCaps)), 200)
	return c
}

// openScoped begins a session that presents a code from then on.
func (b *bubble) openScoped(code string) *testClient {
	c := b.open(protocols[0])
	c.Header.Set(claimHeader, code)
	c.Ask("ping", "")
	return c
}

// pass lets time pass.
func pass(d time.Duration) { <-time.After(d) }
