// Tests of memory.go: what each carrier of bytes counts, and bodies.

package main

import (
	"bufio"
	"cmp"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// carriers are all that carries bytes of clients, senders and modules. Each begins to carry about
// as many times carriedSize as counts says, to a reader that does not read.
var carriers = map[string]struct {
	counts int
	of     *Principal
	begin  func(t *testing.T, b *bubble)
}{
	"a body that arrives": {1, everyone, func(_ *testing.T, b *bubble) {
		b.arrive("POST / HTTP/1.1\r\nContent-Type: application/json\r\n")
	}},
	"a body with an invalid code": {1, strangers, func(_ *testing.T, b *bubble) {
		b.arrive("POST / HTTP/1.1\r\nContent-Type: application/json\r\nMcp-Claim-Code: ABCDEF\r\n")
	}},
	"the body of a GET that arrives": {1, everyone, func(_ *testing.T, b *bubble) {
		b.arrive("GET / HTTP/1.1\r\nAccept: text/event-stream\r\n")
	}},
	"the body of a delivery that arrives": {1, senders, func(_ *testing.T, b *bubble) {
		b.arrive("POST /webhook/m/wait HTTP/1.1\r\n" + shown + "\r\n")
	}},
	"a call in progress": {1, everyone, func(_ *testing.T, b *bubble) {
		b.begin(b.open(protocols[0]).Asking("tools/call", waitFor600))
	}},
	"an answer": {2, everyone, func(_ *testing.T, b *bubble) { // and the body
		b.unread = true
		b.begin(
			b.open(protocols[0]).Asking("tools/call", strings.Replace(waitFor600, "600", "0", 1)),
		)
	}},
	"an answer as a stream": {2, everyone, func(_ *testing.T, b *bubble) {
		req := b.open(protocols[0]).
			Asking("tools/call", strings.Replace(waitFor600, "600", "20", 1))
		b.unread = true
		b.begin(req)
		pass(20 * time.Second)
	}},
	"a message on a stream": {1, everyone, func(_ *testing.T, b *bubble) {
		c := b.open(protocols[0])
		c.Call("m_wait", "")
		b.unread = true
		b.begin(c.GetRequest())
		b.says(object{{"level", quote("error")}, {"data", quote(carried)}})
	}},
	"the arguments of a suspended call": {1, everyone, func(t *testing.T, b *bubble) {
		askState(
			t,
			b.Modern(
				"tools/call",
				`{"name":"m_ask","arguments":{"x":"`+carried+`"},`+withForms+`}`,
			),
			1,
		)
	}},
	"a delivery": {2, senders, func(_ *testing.T, b *bubble) { b.deliver(600) }},
	"a delivery that only its signature proves": {2, senders, func(_ *testing.T, b *bubble) {
		b.m.Methods[3].Signature = "@signature github K_SIGNING_SECRET"
		body := fmt.Sprintf(`{"seconds":600,"echo":%q}`, carried)
		headers := strings.Join(signed("github", "k", body, time.Now()), "\r\n")
		b.sendRaw("POST /webhook/m/wait HTTP/1.1\r\n"+headers+"\r\n", len(body), body)
	}},
	"the answer to a delivery": {3, senders, func(_ *testing.T, b *bubble) { b.deliver(0) }},
	"an error of a method": {
		2,
		senders,
		func(_ *testing.T, b *bubble) { // without the text, which is clipped
			b.deliver(600)
			b.answers(&Message{Err: rpcErrorf(codeInternal, "%s", carried)})
		},
	},
	"the headers of a _response": {3, senders, func(_ *testing.T, b *bubble) {
		b.deliver(600)
		response := `{"_response":{"headers":{"X-Own":"` + carried + `"}}}`
		b.answers(&Message{Result: object{{"structuredContent", json.RawMessage(response)}}})
	}},
	"a page": {1, everyone, func(t *testing.T, b *bubble) {
		method := b.m.Methods[0]
		schema := json.RawMessage(`{"properties":{"` + carried + `":{}}}`)
		method.definition = method.definition.set("inputSchema", schema)
		req, err := http.NewRequest("GET", b.URL, nil)
		must(t, err)
		req.Header.Set("Accept", "text/html")
		b.unread = true
		b.begin(req)
	}},
}

const carriedSize = 300_000 // bytes

var (
	carried    = strings.Repeat("x", carriedSize)
	waitFor600 = `{"name":"m_wait","arguments":{"seconds":600,"echo":"` + carried + `"}}`
)

// If an answer of MCP finds no room, the client gets a short error with the id of its request: as the
// answer to its POST, and as an event if that has become a stream.
func TestAnswerNeedsRoom(t *testing.T) {
	t.Parallel()
	for how, accept := range map[string]string{
		"plain":  "application/json, text/event-stream",
		"stream": "text/event-stream, application/json",
	} {
		runInBubble(t, how, func(t *testing.T, b *bubble) {
			c := b.open(protocols[0])
			c.Header.Set("Accept", accept)
			used := b.server.memory.reserve(everyone).counter
			const size = 5000
			call := `{"jsonrpc":"2.0","id":"my-id","method":"tools/call","params":{"name":"m_wait",` +
				`"arguments":{"seconds":0,"echo":"` + strings.Repeat("x", size) + `"}}}`
			for room, fits := range map[int]bool{size + 1000: false, 4 * size: true} {
				used.reserve(everyone, used.perKey-room)
				a := c.Post(call)
				used.release(everyone, used.perKey-room)
				what := fmt.Sprint("room for ", room, " bytes: ")
				checkContains(t, what+"the id", a.Body, "my-id")
				check(t, what+"the result is complete", len(a.Body) > size, fits)
				if !fits {
					checkContains(t, what+"the error", a.Body, errNoRoom.Error())
				}
			}
		})
	}
}

// Every byte counts for its principal until usher has written or dropped it, whatever carries it.
func TestBytesAreCounted(t *testing.T) {
	t.Parallel()
	for name, carrier := range carriers {
		runInBubble(t, name, func(t *testing.T, b *bubble) {
			for _, method := range b.m.Methods {
				method.IsHook = true
			}
			carrier.begin(t, b)
			synctest.Wait()
			m := b.server.memory
			got := float64(m.reserve(carrier.of).counter.count(carrier.of)) / carriedSize
			if want := float64(carrier.counts); got < want-0.1 || got > want+0.1 {
				t.Errorf("it counts %.2f times its size, want %v times", got, want)
			}
			check(
				t,
				"bytes of others",
				heldBytes(m),
				m.reserve(carrier.of).counter.count(carrier.of),
			)
			b.hangUp()
			pass(11 * time.Minute)
			check(t, "bytes in the end", heldBytes(m), 0)
		})
	}
}

// A session or a suspended call that keeps a part of a message does not keep the rest in memory, which
// no longer counts.
func TestNothingKeepsAMessage(t *testing.T) {
	const messages, size = 20, 512 << 10
	spaces := strings.Repeat(" ", size)
	for name, send := range map[string]func(b *bubble){
		"a session": func(b *bubble) {
			info := `{"name":"` + spaces + `x","version":"1"}`
			params := fmt.Sprintf(`{"protocolVersion":%q,"capabilities":{},"clientInfo":%s}`,
				protocols[0], info)
			c := clientOver(b.T, b.URL, b.HTTP)
			check(b.T, "status", c.Begin(c.Message("initialize", params)).Status, 200)
		},
		"a suspended call": func(b *bubble) {
			req := b.ModernPOST("1", "tools/call", `{"name":"m_ask",`+withForms+`}`)
			body, err := io.ReadAll(req.Body)
			must(b.T, err)
			junk := strings.Replace(string(body), "{", `{"junk":"`+spaces+`",`, 1)
			req.Body = io.NopCloser(strings.NewReader(junk))
			req.ContentLength = int64(len(junk))
			askState(b.T, b.Do(req), 1)
		},
		"an ask": func(b *bubble) {
			if b.process == nil {
				c := b.open(protocols[0])
				b.begin(c.GetRequest())
				c.Call("m_wait", "")
			}
			msg, err := parseMessage([]byte(`{"jsonrpc":"2.0","id":"` + rand.Text() + `",` +
				`"method":"elicitation/create","junk":"` + spaces + `",` +
				`"params":{"message":"x","requestedSchema":{"type":"object","properties":{}}}}`))
			must(b.T, err)
			b.process.handle(msg)
			b.hears()
		},
	} {
		runInBubble(t, name, func(t *testing.T, b *bubble) {
			before := liveBytes()
			for range messages {
				send(b)
			}
			if kept := liveBytes() - before; kept > messages*size/2 {
				t.Errorf("%d messages of %d bytes keep %d bytes in memory", messages, size, kept)
			}
		})
	}
}

// liveBytes returns how many bytes are in use after a collection.
func liveBytes() int {
	runtime.GC()
	runtime.GC() // the first one only begins to free what pools keep
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int(stats.HeapAlloc)
}

// arrive begins a request whose body does not arrive as a whole.
func (b *bubble) arrive(head string) { b.sendRaw(head, carriedSize+1, carried) }

// sendRaw sends a request, and reads nothing of the answer.
func (b *bubble) sendRaw(head string, length int, body string) {
	conn := b.dial(
		fmt.Sprintf("%sHost: localhost\r\nContent-Length: %d\r\n\r\n%s", head, length, body),
		false,
	)
	b.hangUps = append(b.hangUps, func() { conn.Close() })
}

// deliver begins a delivery that is answered after so many seconds, and does not read the answer.
func (b *bubble) deliver(seconds int) {
	body := fmt.Sprintf(`{"seconds":%d,"echo":%q}`, seconds, carried)
	b.sendRaw("POST /webhook/m/wait HTTP/1.1\r\n"+shown+"\r\n", len(body), body)
}

// says has m send a log message outside of calls.
func (b *bubble) says(params object) {
	synctest.Wait()
	b.process.handle(&Message{Method: "notifications/message", Params: params})
}

// answers has m answer its first call.
func (b *bubble) answers(msg *Message) {
	b.process.update(func() { msg.ID = json.RawMessage(sortedKeys(b.process.calls)[0]) })
	b.process.handle(msg)
}

// A refusal that will pass says when to try again, and one for a missing proof asks for it.
func TestRefusalHeaders(t *testing.T) {
	for _, tt := range []struct {
		err        error
		status     int
		retry, ask string
	}{
		{errNoRoom, 503, "5", ""},
		{httpErrorf(http.StatusTooManyRequests, "too many"), 429, "5", ""},
		{errUnauthorized(nil), 401, "", `Basic realm="usher"`},
		{httpErrorf(http.StatusNotFound, "nothing"), 404, "", ""},
		{rpcErrorf(codeNoMethod, "unknown"), 404, "", ""},
		{errEnded, 200, "", ""},
		{errors.New("a detail"), 500, "", ""},
	} {
		w := httptest.NewRecorder()
		x := newMemory(0, strangers).serve(w, nil)
		x.refuse = writeMCPError
		check(t, tt.err.Error()+": status", x.fail(tt.err), tt.status)
		check(t, tt.err.Error()+": status of the answer", w.Code, tt.status)
		check(t, tt.err.Error()+": Retry-After", w.Header().Get("Retry-After"), tt.retry)
		check(t, tt.err.Error()+": WWW-Authenticate", w.Header().Get("WWW-Authenticate"), tt.ask)
		check(t, tt.err.Error()+": shows a detail", strings.Contains(w.Body.String(), "detail"), false)
	}
}

// A text of any length makes a refusal of at most maxError bytes.
func TestRefusalsAreShort(t *testing.T) {
	e := httpErrorf(http.StatusBadRequest, "%s", strings.Repeat("x", 3*maxError))
	check(t, "it is short", len(e.Message) <= maxError+len("…"), true)
}

// bodyServer answers with how much it read, for the principal in a header.
func bodyServer(t *testing.T, limit int) (*httptest.Server, *memory) {
	m := newMemory(limit, "unknown")
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		x := m.serve(w, r)
		defer x.end()
		x.refuse = func(_ *reservation, e *fault) { http.Error(w, e.Message, e.Status) }
		x.handle(quiet, func() error {
			body, err := x.receive(cmp.Or(r.Header.Get("Known"), "unknown"))
			if err == nil {
				fmt.Fprint(w, len(body))
			}
			return err
		})
	}))
	t.Cleanup(s.Close)
	return s, m
}

// slowBody announces a body, sends a part of it, and waits for the server to
// have read that.
type slowBody struct {
	net.Conn
	answer *bufio.Reader
}

type zeros struct{}

func sendBody(t *testing.T, s *httptest.Server, header string, announced, sent int) *slowBody {
	t.Helper()
	conn, err := net.Dial("tcp", s.Listener.Addr().String())
	must(t, err)
	t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(patience))
	fmt.Fprintf(conn,
		"POST / HTTP/1.1\r\nHost: localhost\r\n%sContent-Length: %d\r\n\r\n", header, announced)
	io.CopyN(conn, zeros{}, int64(sent))
	return &slowBody{conn, bufio.NewReader(conn)}
}

func (b *slowBody) status(t *testing.T) int {
	t.Helper()
	res, err := http.ReadResponse(b.answer, nil)
	if err != nil {
		t.Error(err)
		return 0
	}
	res.Body.Close()
	return res.StatusCode
}

// Unauthenticated senders share a budget: the oldest body makes room for another one, but
// none for a principal that has used its share.
func TestBodiesMakeRoom(t *testing.T) {
	large := newMemory(maxHeldOf, "unknown")
	check(t, "a principal's share, with large bodies", large.known.perKey, 2*maxHeldOf)
	check(t, "the strangers' share, with large bodies", large.unknown.perKey, maxHeldOf)
	long(t)
	const size = 4 << 20
	s, m := bodyServer(t, size)
	var bodies []*slowBody // the oldest first
	for n := range maxHeldUnknown/size - 1 {
		bodies = append(bodies, sendBody(t, s, "", size, size-1))
		await(t, "a body to arrive", func() bool {
			return m.unknown.count("unknown") >= (n+1)*(size-1)
		})
	}
	rest := maxHeldUnknown - m.unknown.count("unknown")
	check(t, "no room is left", m.reserve("unknown").grow(rest), nil)
	check(t, "a new body", sendBody(t, s, "", size-1, size-1).status(t), 200)
	check(t, "the oldest", bodies[0].status(t), 503)
	m.unknown.release("unknown", rest)
	for n := range maxHeld/maxHeldOf - 1 {
		check(t, "a principal has its share", m.reserve(fmt.Sprint(n)).grow(maxHeldOf), nil)
		check(t, "a principal has more", m.reserve(fmt.Sprint(n)).grow(1), errNoRoom)
	}
	last := m.reserve("last")
	check(t, "the last principal takes the part of unauthenticated senders",
		last.grow(maxHeldOf), errNoRoom)
	check(t, "it has the rest", last.grow(maxHeldOf-maxHeldUnknown), nil)
	check(t, "a small body of another",
		sendBody(t, s, "Known: another\r\n", 1, 1).status(t), 503)
	last.end()
	for _, b := range bodies[1:] {
		io.CopyN(b, zeros{}, 1)
		check(t, "a body that arrives in the end", b.status(t), 200)
	}
	check(t, "bytes of unauthenticated senders in the end", m.unknown.count("unknown"), 0)
}

// A length over the limit is refused before anything is read, and nobody is told to go on
// with it. A larger body that announces no length is refused, too.
func TestAnnouncedLengthIsChecked(t *testing.T) {
	t.Parallel()
	s, _ := bodyServer(t, 1000)
	for _, header := range []string{"Expect: 100-continue\r\n", ""} {
		check(t, "status with "+header, sendBody(t, s, header, 1001, 0).status(t), 413)
	}
	chunked := io.MultiReader(strings.NewReader(strings.Repeat("x", 1001)))
	answer, err := http.Post(s.URL, "text/plain", chunked)
	must(t, err)
	answer.Body.Close()
	check(t, "status without a length", answer.StatusCode, 413)
}

// checkOpen checks whether the server has closed a connection.
func checkOpen(t *testing.T, what string, conn net.Conn, want bool) {
	t.Helper()
	conn.SetReadDeadline(time.Now().Add(time.Millisecond))
	_, err := io.Copy(io.Discard, conn)
	check(t, what+" is open", errors.Is(err, os.ErrDeadlineExceeded), want)
}

// dial opens a connection and sends a request, unless it is empty. If read is set, dial
// reads the answer.
func (b *bubble) dial(request string, read bool) net.Conn {
	conn, err := b.conns.dial(b.T.Context(), "", "")
	must(b.T, err)
	io.WriteString(conn, request)
	if read {
		_, err := http.ReadResponse(bufio.NewReader(conn), nil)
		must(b.T, err)
	}
	synctest.Wait()
	return conn
}

const probe = "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
