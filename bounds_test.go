// Bounds: a hostile or careless client must not take processes, slots or memory from other clients,
// nor see their answers.

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// limitCase exceeds a limit per principal over HTTP.
type limitCase struct {
	most    int                                          // requests within the limit
	request func(b *bubble, c *testClient) *http.Request // one of them
	refusal string                                       // of one more
	unread  bool                                         // the answers of those within the limit are not read
}

// limitCases has a case for each limit that clients can exceed by requests alone.
var limitCases = map[string]limitCase{
	"maxInFlight": {
		most:    maxInFlight,
		request: echoRequest(10_000),
		refusal: "too many requests in flight",
		unread:  true,
	},
	"maxHeldOf": {
		most:    maxHeldOf / (2 * 140_100), // body and answer
		request: echoRequest(140_000),      // net/http reads such a refused body to its end
		refusal: "unread answers",
		unread:  true,
	},
	"maxStreams": {
		most:    maxStreams,
		request: func(_ *bubble, c *testClient) *http.Request { return c.getRequest() },
		refusal: "too many streams",
	},
	"maxStreamsOf": {
		most:    maxStreamsOf,
		request: func(b *bubble, c *testClient) *http.Request { return b.sessionLike(c).getRequest() },
		refusal: "too many streams",
	},
}

// otherLimits names the test of each other limit, or says why there is none.
var otherLimits = map[string]string{
	"maxConns":            "TestConnectionsAreBounded",
	"maxHeader":           "TestBadRequests",
	"defaultMaxBody":      "TestBadRequests",
	"maxHeldUnknown":      "TestBodiesMakeRoom",
	"maxHeld":             "TestBodiesMakeRoom",
	"maxWrite":            "TestSlowReaders",
	"maxOutbox":           "TestSlowClientIsDropped",
	"guessBudget":         "TestGuessing",
	"guessRate":           "TestGuessing",
	"maxSource":           "TestOddFiles",
	"maxCheckDepth":       "TestCheckArguments",
	"maxExecutable":       "a test would read a GiB; it is the check of maxSource with another number",
	"maxShellOutput":      "TestShellModule",
	"shellTail":           "TestShellModule",
	"maxWorkerLine":       "TestPythonHosted",
	"maxInput":            "TestModuleThatDoesNotRead",
	"maxAsks":             "TestAskFlood",
	"maxSuspended":        "TestAskBounds",
	"maxLogged":           "clips what is shown, and holds up nothing",
	"maxLoggedLine":       "clips what is shown, and holds up nothing",
	"tailLines":           "clips what is shown, and holds up nothing",
	"maxList":             "TestListsThatFail",
	"maxProcs":            "TestProcessesAreBounded",
	"maxProcsOf":          "TestProcessesAreBounded",
	"maxRunning":          "TestRunningCallsAreBounded",
	"maxRunningOf":        "TestRunningCallsAreBounded",
	"maxCancelled":        "TestCrowdedProcess",
	"maxRounds":           "ends a call that its module keeps asking in, for its client alone",
	"maxIntrospections":   "TestWhoWaitsForModules",
	"maxToolName":         "is a warning",
	"maxViews":            "TestViewsAreForgotten",
	"maxURI":              "TestResourcesHaveOneOwner",
	"maxInstructions":     "clips what is shown, and holds up nothing",
	"maxSessionsOf":       "TestSessionsInMemory",
	"maxWantedOf":         "TestWantedResources",
	"maxSignatures":       "TestSignatureNearMisses",
	"maxSignatureHeaders": "TestSignatureNearMisses",
}

// echoRequest makes a ping whose id, which its answer repeats, has n bytes.
func echoRequest(n int) func(*bubble, *testClient) *http.Request {
	return func(b *bubble, c *testClient) *http.Request {
		id := quote(fmt.Sprintf("%0*s", n, c.message("", "")))
		return c.request(http.MethodPost, string(encodeRequest(id, "ping", nil)))
	}
}

// sessionLike begins a session for the principal of another session.
func (b *bubble) sessionLike(c *testClient) *testClient {
	b.t.Helper()
	session := b.open(protocols[0])
	session.Header = c.Header
	session.ask("ping", "")
	return session
}

// TestLimits exceeds the limits of limit.go: one request too many is refused, and
// another principal's is not. It checks too that no limit is without a test or a
// reason.
func TestLimits(t *testing.T) {
	long(t)
	for name, tt := range limitCases {
		runInBubble(t, name, func(t *testing.T, b *bubble) {
			client := func() *testClient {
				c := b.open(protocols[0])
				c.Header.Set(claimHeader, newClaimFor(t, b.base, "/w").Code.Reveal())
				c.ask("ping", "")
				return c
			}
			var all []*exchange
			begin := func(c *testClient, unread bool) (text string) {
				b.unread = unread
				x := b.begin(tt.request(b, c))
				all = append(all, x)
				_, text = x.got()
				return text
			}
			greedy, other := client(), client()
			for range tt.most {
				checkOmits(t, "a request within the limit", begin(greedy, tt.unread), tt.refusal)
			}
			more := begin(greedy, false)
			for try := 0; try < 3 && more == ""; try++ { // net/http gave up writing the body before it read why
				more = begin(greedy, false)
			}
			checkContains(t, "one request more", more, tt.refusal)
			checkOmits(t, "another principal's request", begin(other, false), tt.refusal)
			start := time.Now()
			check(t, "another principal's call", other.call("m_wait", "").failure(), "")
			check(t, "how long it waited", time.Since(start), 0)
			t.Logf("%d requests are served, the next is refused", tt.most)
			t.Logf("another principal's call waits %v", time.Since(start))
			for _, x := range all {
				x.hangUp()
			}
			pass(3 * time.Minute)
			checkOmits(t, "a request after all that", begin(greedy, false), tt.refusal)
			all[len(all)-1].hangUp()
		})
	}
	t.Run("complete", checkLimitsAreTested)
}

func checkLimitsAreTested(t *testing.T) {
	source := readFile(t, "limit.go")
	_, table, _ := strings.Cut(string(source), "\nconst (")
	table, _, _ = strings.Cut(table, "\n)\n")
	var names, tested []string
	for _, line := range regexp.MustCompile(`(?m)^\t(\w+) += .+? +// `).FindAllStringSubmatch(table, -1) {
		names = append(names, line[1])
	}
	tests := ""
	files, _ := filepath.Glob("*_test.go")
	for _, file := range files {
		text := readFile(t, file)
		tests += string(text)
	}
	for name, test := range otherLimits {
		tested = append(tested, name)
		if strings.HasPrefix(test, "Test") {
			checkContains(t, "the tests", tests, "\nfunc "+test+"(")
		}
	}
	tested = slices.AppendSeq(tested, maps.Keys(limitCases))
	slices.Sort(names)
	slices.Sort(tested)
	check(t, "limits that are tested", tested, names)
}

// dial opens a connection and sends a request, unless it is empty. If read is set, dial
// reads the answer.
func (b *bubble) dial(request string, read bool) net.Conn {
	conn, err := b.conns.dial(b.t.Context(), "", "")
	must(b.t, err)
	io.WriteString(conn, request)
	if read {
		_, err := http.ReadResponse(bufio.NewReader(conn), nil)
		must(b.t, err)
	}
	synctest.Wait()
	return conn
}

// checkOpen checks whether the server has closed a connection.
func checkOpen(t *testing.T, what string, conn net.Conn, want bool) {
	t.Helper()
	conn.SetReadDeadline(time.Now().Add(time.Millisecond))
	_, err := io.Copy(io.Discard, conn)
	check(t, what+" is open", errors.Is(err, os.ErrDeadlineExceeded), want)
}

const probe = "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"

// TestConnectionsAreBounded has a client that shows nothing open connections, more than it may have and more than
// there may be: idle ones make room, then the oldest. Others stay, and newcomers are served.
func TestConnectionsAreBounded(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ files, most int }{
		{3 * maxConns, maxConns},
		{500, 250},
		{1, 199}, // a stream is in the total
	} {
		t.Run(fmt.Sprint(tt.files, " files"), func(t *testing.T) {
			base := t.TempDir()
			synctest.Test(t, func(t *testing.T) {
				b := &bubble{base: base, tools: make(map[string]string), files: tt.files}
				b.start(t)
				stream := b.begin(b.open(protocols[0]).getRequest())
				older := b.dial("", false)
				pass(time.Second)
				idle := b.dial(probe, true)
				for range tt.most - 2 {
					defer b.dial("", false).Close()
				}
				checkOpen(t, "an idle connection", idle, true)
				defer b.dial("", false).Close()
				checkOpen(t, "an idle connection beside too many", idle, false)
				checkOpen(t, "an older one", older, true)
				defer b.dial("", false).Close()
				checkOpen(t, "an older one beside too many", older, false)
				start := time.Now()
				check(t, "a newcomer's call", b.open(protocols[0]).call("m_wait", "").failure(), "")
				check(t, "how long it waited", time.Since(start), 0)
				status, _ := stream.got()
				check(t, "status of the stream", status, 200)
				select {
				case <-stream.done:
					t.Error("the stream has ended")
				default:
				}
				stream.hangUp()
			})
		})
	}
}

// TestEveryAnswerHasADeadline has clients that don't read their answers: their connections end.
func TestEveryAnswerHasADeadline(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, b *bubble) {
		const notification = `{"jsonrpc":"2.0","method":"notifications/initialized"}`
		for name, request := range map[string]string{
			"a probe":                 probe,
			"a path with two slashes": "GET //mcp?claim=R3K9QZ HTTP/1.1\r\nHost: localhost\r\n\r\n",
			"a notification": fmt.Sprintf("POST / HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"+
				"%s: %s\r\nContent-Length: %d\r\n\r\n%s", sessionHeader, b.open(protocols[0]).Session,
				len(notification), notification),
			"a preflight": "OPTIONS / HTTP/1.1\r\nHost: localhost\r\nOrigin: http://localhost\r\n" +
				"Access-Control-Request-Method: POST\r\n\r\n",
		} {
			conn := b.dial(request, false)
			pass(writeTimeout + time.Second)
			checkOpen(t, name+": a connection whose answer is not read", conn, false)
			checkOpen(t, name+": a connection whose answer was read", b.dial(request, true), true)
		}
	})
}

// TestRequestAfterTheEnd has the daemon handle a request after it has ended, when the modules are gone: that aborts it.
func TestRequestAfterTheEnd(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, b *bubble) {
		b.server.modules.Roots = []string{"/w"}
		d := &daemon{
			app:      &app{lookupEnv: noEnv},
			flags:    &serveFlags{maxBody: defaultMaxBody},
			log:      b.server.log,
			out:      io.Discard,
			listener: make(pipes),
			registry: b.server.modules,
		}
		ctx, stop := context.WithCancel(t.Context())
		stop()
		must(t, d.serve(ctx, b.server.gate))
		defer func() { check(t, "the handler panics with ErrAbortHandler", recover() == http.ErrAbortHandler, true) }()
		d.handler().ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/healthz", nil))
	})
}

// TestListsAreShared has a client ask for a long list again and again, and not read the answers: they count once.
func TestListsAreShared(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, b *bubble) {
		prompt := `{"name":"p","description":"` + strings.Repeat("x", 1<<20) + `"}`
		b.m.Lists = map[string][]json.RawMessage{"prompts": {json.RawMessage(prompt)}}
		c := b.open(protocols[0])
		list := func(accept string) *http.Request {
			req := c.request(http.MethodPost, c.message("prompts/list", ""))
			req.Header.Set("Accept", accept)
			return req
		}
		for name, req := range map[string]*http.Request{
			"JSON":              list("application/json"),
			"a stream":          list("text/event-stream"),
			"without a session": b.modernPOST("1", "prompts/list", ""),
		} {
			listed := c.do(req).result()
			check(t, name+": it is long", len(field(listed, "prompts")) > len(prompt), true)
			check(t, name+": it has a type", stringField(listed, "resultType") != "", name == "without a session")
		}
		b.unread = true
		for range 100 {
			defer b.begin(list("application/json")).hangUp()
		}
		synctest.Wait()
		check(t, "requests", b.server.requests.count(everyone), 100)
		check(t, "bytes are few", heldBytes(b.server.memory) < 1<<20, true)
	})
}

// TestSessionsInMemory opens more sessions of a principal than are kept in memory. Idle
// ones are forgotten, the least recently used first; sessions of others are not.
func TestSessionsInMemory(t *testing.T) {
	t.Parallel()
	own, another := &Principal{}, principal("another")
	var end context.CancelFunc
	own.ctx, end = context.WithCancel(t.Context())
	table := newSessionTable(newSessionKey())
	open := func(p *Principal) *Session {
		s, _ := table.create(protocols[0], 0, p)
		return s
	}
	use := func(s *Session, p *Principal) {
		_, ok := table.use(s, s.claim, p)
		check(t, "the session is in use", ok, true)
	}
	used := open(own)
	conn := connection{ctx: t.Context(), write: lineWriter(io.Discard)}
	used.join(newOutbox(account{newMemory(0, strangers), own}, conn))
	touched := open(own)
	idle := open(own)
	moved := open(own)
	other := open(another)
	use(moved, another)
	for range maxSessionsOf {
		open(own)
		use(touched, own)
	}
	isKept := func(s *Session) bool { return table.byName[s.name] == s }
	for name, session := range map[string]*Session{
		"a session with a stream":               used,
		"a session in use":                      touched,
		"another principal's session":           other,
		"a session that moved to another claim": moved,
	} {
		check(t, name+" is kept", isKept(session), true)
	}
	check(t, "the session that was idle for longest is kept", isKept(idle), false)
	check(t, "its processes may continue", idle.member.Err() == nil, false)
	check(t, "sessions of the principal", table.own[own].Len(), maxSessionsOf)
	end()
	await(t, "the principal's sessions belong to strangers", func() bool {
		table.mu.Lock()
		defer table.mu.Unlock()
		return table.own[own] == nil && table.own[strangers].Len() == maxSessionsOf
	})
}

// TestEndedClaimsKeepNothing ends claims while their sessions are idle or in use. What they use later counts together.
func TestEndedClaimsKeepNothing(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, b *bubble) {
		var clients []*testClient
		for range 2 {
			claim, c := newClaimFor(t, b.base, "/w"), b.open(protocols[0])
			c.Header.Set(claimHeader, claim.Code.Reveal())
			c.ask("ping", "")
			b.sessionLike(c)
			defer b.begin(c.getRequest()).hangUp()
			synctest.Wait()
			own, err := b.server.gate.claims.Lookup(claim.Code)
			must(t, err)
			check(t, "sessions of the claim", b.sessionsOf(own), 2)
			revoke(t, b.base, claim.Code)
			pass(2 * watchInterval)
			check(t, "sessions after its end", b.sessionsOf(own), 0)
			c.Header.Del(claimHeader)
			clients = append(clients, c)
		}
		check(t, "sessions of strangers", b.sessionsOf(strangers), 4)
		b.unread = true
		for _, c := range clients {
			defer b.begin(echoRequest(10_000)(b, c)).hangUp()
		}
		synctest.Wait()
		check(t, "their requests", b.server.requests.count(strangers), 2)
	})
}

// TestWantedResources subscribes the sessions of one principal to too many resources.
func TestWantedResources(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, b *bubble) {
		b.m.Lists = map[string][]json.RawMessage{
			"resourceTemplates": {json.RawMessage(`{"uriTemplate":"m://{x}"}`)},
		}
		one, two, other := b.open(protocols[0]), b.open(protocols[0]), b.open(protocols[0])
		other.Header.Set(claimHeader, newClaimFor(t, b.base, "/w").Code.Reveal())
		ask := func(c *testClient, method string, n int) string {
			return c.ask("resources/"+method, fmt.Sprintf(`{"uri":"m://%d"}`, n)).failure()
		}
		all := ""
		for n := range maxWantedOf {
			check(t, "a subscription", ask(one, "subscribe", n), "")
			all += fmt.Sprintf(`"m://%d",`, n)
		}
		checkContains(t, "one more of another session", ask(two, "subscribe", 0), "too many subscriptions")
		params := `{"notifications":{"resourceSubscriptions":["m://1"]}}`
		checkContains(t, "one more, without one", b.modern(listenMethod, params).failure(), "too many subscriptions")
		asOther := b.modernPOST("1", listenMethod, `{"notifications":{"resourceSubscriptions":[`+all+`"m://x"]}}`)
		asOther.Header.Set(claimHeader, other.Header.Get(claimHeader))
		checkContains(t, "another principal's, all at once", b.do(asOther).failure(), "too many subscriptions")
		check(t, "another principal's", ask(other, "subscribe", 0), "")
		ask(one, "unsubscribe", 1)
		check(t, "one after an end", ask(two, "subscribe", 0), "")
		one.end()
		check(t, "one after a session's end", ask(two, "subscribe", 1), "")
		check(t, "what is counted", b.server.gate.sessions.wanted.count(everyone), 2)
		x := b.begin(b.modernPOST("1", listenMethod, params))
		x.got()
		check(t, "with a listener", b.server.gate.sessions.wanted.count(everyone), 3)
		check(t, "streams", b.server.streams.count(everyone), 1)
		x.hangUp()
		<-x.done
		synctest.Wait()
		check(t, "after the listener", b.server.gate.sessions.wanted.count(everyone), 2)
		check(t, "streams after it", b.server.streams.count(everyone), 0)
	})
}

// aMember returns a Caller.Member that never ends.
func aMember() context.Context { return context.WithValue(context.Background(), codesKey{}, nil) }

var principals sync.Map // by name

// principal returns the principal with a name, which never ends; "" is usher itself.
func principal(name string) *Principal {
	if name == "" {
		return nil
	}
	p, _ := principals.LoadOrStore(name, &Principal{ctx: context.Background()})
	return p.(*Principal)
}

// mutePool is a pool whose processes answer nothing.
func mutePool(t *testing.T, perSession bool) *pool {
	p := newPool("a", perSession, func(owner *Caller) (*Worker, error) {
		w := testWorker("a", owner)
		context.AfterFunc(w.ctx, func() { time.AfterFunc(time.Millisecond, func() { w.finish("") }) })
		return w, nil
	})
	t.Cleanup(p.close)
	return p
}

// newPool returns a pool without processes, which no registry has.
func newPool(name string, perSession bool, start func(owner *Caller) (*Worker, error)) *pool {
	return &pool{
		name:       name,
		perSession: perSession,
		running:    new(sync.WaitGroup),
		calls:      counter[*Principal]{perKey: maxRunningOf, total: maxRunning},
		started:    counter[*Principal]{perKey: maxProcsOf, total: maxProcs},
		crashed:    make(map[context.Context]time.Time),
		start:      start,
	}
}

// close ends the processes of a pool, with the calls under way, and waits for them.
func (p *pool) close() {
	p.retire()
	p.mu.Lock()
	for _, c := range p.procs {
		if c.worker != nil {
			c.worker.stop()
		}
	}
	p.mu.Unlock()
	p.running.Wait()
}

// isBusy reports whether a call was not made, as the module had too many.
func isBusy(err error) bool {
	return err != nil && strings.Contains(err.Error(), "is busy or still starting")
}

// count returns how many processes of a pool have been started, or wait for their start.
func (p *pool) count(started bool) (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.procs {
		if c.started == started && !c.ending {
			n++
		}
	}
	return n
}

// TestProcessesAreBounded starts as many processes of a module as it may have, in total and
// for a principal: one more waits until one is idle, and has ended.
func TestProcessesAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := mutePool(t, true)
		var started sync.Map // of *process, by session
		has := func(session string) bool {
			_, ok := started.Load(session)
			return ok
		}
		enter := func(session, name string) {
			go func() {
				caller := Caller{Session: session, Principal: principal(name), Member: aMember()}
				c, err := p.enter(t.Context(), caller)
				if err == nil {
					started.Store(session, c)
				}
			}()
			synctest.Wait()
		}
		leave := func(session string) {
			c, _ := started.LoadAndDelete(session)
			p.leave(c.(*process), true)
			pass(time.Second)
			synctest.Wait()
		}
		for i := range maxProcsOf + 1 {
			enter(fmt.Sprint("a", i), "a claim")
			enter(fmt.Sprint("n", i), "")
			enter(fmt.Sprint("b", i), "another")
		}
		check(t, "processes of three principals", p.count(true), 3*maxProcsOf)
		enter("b5", "another")
		leave("n0")
		check(t, "the principal's next one has started", has("n4"), true)
		leave("a0")
		check(t, "another principal's still waits", has("b4"), false)
		leave("b0")
		check(t, "the first that waited has started", has("b4") && !has("b5"), true)
		for i := range maxProcs {
			enter(fmt.Sprint("c", i), fmt.Sprint("claim ", i/maxProcsOf))
		}
		check(t, "processes", p.count(true), maxProcs)
		p.timeout = time.Second
		late := Caller{Session: "late", Member: aMember()}
		_, err := p.call(t.Context(), late, "tools/call", nil)
		check(t, "a call waits in vain", isBusy(err) && p.find(late.Member) == nil, true)
		p.retire()
		check(t, "processes that wait in a retired pool", p.count(false), 0)
		p.close()
	})
}

// TestProcessPerSession has each session call a process of its own, which ends
// with the session, and whose crash no other session notices.
func TestProcessPerSession(t *testing.T) {
	long(t)
	dir := t.TempDir()
	writeFake(t, dir+"/own.usher", "good")
	writeShared(t, dir, "all", "good")
	d := startDaemon(t, dir)
	own := func(c *testClient) string { return resultText(c.call("own_pid", "").result()) }
	a, b, c := connect(t, d.URL), connect(t, d.URL), connect(t, d.URL)
	a.awaitTools(append(namesOf("all"), namesOf("own")...)...)
	ofA, ofB, ofC := own(a), own(b), own(c)
	check(t, "sessions share a process", ofA == ofB || ofB == ofC || ofA == ofC, false)
	check(t, "the next call's process", own(a), ofA)
	shared := resultText(a.call("all_pid", "").result())
	check(t, "the process of a shared module", resultText(b.call("all_pid", "").result()), shared)
	checkContains(t, "a crash", a.call("own_crash", "").failure(), "crashed")
	check(t, "another session's process after the crash", own(b), ofB)
	b.end()
	pid, _ := strconv.Atoi(ofB)
	await(t, "the end of a session's process", func() bool { return !processAlive(pid) })
	check(t, "another session's process after that", own(c), ofC)
}

// namesOf is the names of a fake's tools.
func namesOf(module string) []string {
	var names []string
	for name := range strings.SplitSeq(usualTools, ",") {
		names = append(names, module+"_"+name)
	}
	slices.Sort(names)
	return names
}

// TestIdleProcesses has processes that are not used: a session's ends after ten
// minutes, another if -idle says so.
func TestIdleProcesses(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		perSession bool
		idle, ends time.Duration // 0: never
	}{
		{true, 0, sessionIdle},
		{true, time.Hour, sessionIdle},
		{true, time.Minute, time.Minute},
		{false, time.Hour, time.Hour},
		{false, 0, 0},
	} {
		t.Run(fmt.Sprintf("%+v", tt), func(t *testing.T) {
			p := mutePool(t, tt.perSession)
			c, err := p.enter(t.Context(), Caller{Session: "s", Member: aMember()})
			must(t, err)
			p.reap(time.Now().Add(24*time.Hour), tt.idle)
			check(t, "processes with a call", p.count(true), 1)
			p.leave(c, true)
			p.reap(time.Now().Add(tt.ends-time.Second), tt.idle)
			check(t, "processes before that time", p.count(true), 1)
			p.reap(time.Now().Add(tt.ends+time.Second), tt.idle)
			check(t, "it has ended after that time", p.count(true) == 0, tt.ends > 0)
		})
	}
}

// TestUnreadableAnswers has a module answer one of two calls with what can't be read: only that
// call fails. If its id can't be read either, the call waits, or both fail.
func TestUnreadableAnswers(t *testing.T) {
	t.Parallel()
	const part = 1 << 16
	large := strings.Repeat("x,", part/2) // the lines that are too long end with many of these
	for name, tt := range map[string]struct{ line, want string }{
		"no result":             {`{"jsonrpc":"2.0","id":2}`, "can't be read"},
		"no UTF-8":              {`{"jsonrpc":"2.0","result":{"text":"` + "\xff" + `"},"id":2}`, "can't be read"},
		"a word before it":      {`done: {"id":2,"result":{}}`, "can't be read"},
		"a text":                {`{"jsonrpc":"2.0","id":"2","result":{}}`, "<nil>"},
		"members that are null": {`{"jsonrpc":"2.0","id":2,"method":null,"error":null,"result":{}}`, "<nil>"},
		"a word with an id":     {`user: {"id":2}`, errTimeout.Error()},
		"too long":              {`{"jsonrpc":"2.0","id":2,"result":"`, "larger than 64 MiB"},
		"too long, no answer":   {`{"jsonrpc":"2.0","method":"x","params":"`, errTimeout.Error()},
		"too long, no id":       {`{"jsonrpc":"2.0","result":"`, "larger than 64 MiB"},
		"too long, half an id":  {`{"result":"` + large[:1005] + `","id":10,"x":"`, "larger than 64 MiB"},
	} {
		t.Run(name, func(t *testing.T) {
			w := testWorker("a", nil)
			defer w.cancel()
			read, write := io.Pipe()
			defer write.Close()
			go w.readStdout(read)
			other := w.newCall(Caller{Session: "other"})
			must(t, w.startCall(other, "tools/call", nil))
			<-w.queued
			go func() {
				<-w.queued
				io.WriteString(write, tt.line)
				if strings.HasPrefix(name, "too long") {
					for range maxWorkerLine / part {
						io.WriteString(write, large)
					}
				}
				io.WriteString(write, "\n")
			}()
			timeout := patience
			if tt.want == errTimeout.Error() {
				timeout = 100 * time.Millisecond
			}
			_, err := w.request(t.Context(), Caller{Session: "s"}, "tools/call", nil, timeout, nil)
			checkContains(t, "error", fmt.Sprint(err), tt.want)
			both := strings.HasSuffix(name, " id") && strings.HasPrefix(name, "too long")
			check(t, "the other call failed", len(other.answer) == 1, both)
		})
	}
}

// TestModuleSaysTooMuch has a module announce lists before its handshake, ask twice under one
// id, and report a resource that one session follows in two ways.
func TestModuleSaysTooMuch(t *testing.T) {
	t.Parallel()
	w := testWorker("a", &Caller{Session: "alice"})
	defer w.cancel()
	changes, notified := 0, make(map[string]int)
	w.listChanged = func(*Worker) { changes++ }
	for _, ready := range []bool{false, true} {
		w.update(func(s *workerState) { s.ready = ready })
		w.handle(&Message{Method: "notifications/tools/list_changed"})
	}
	check(t, "list changes", changes, 1)
	for session, uris := range map[string][]string{
		"alice": {"m://", "m://x", "m://y"}, "bob": {"m://x"}, "carol": {"m://y"},
	} {
		notify := func(string, json.RawMessage) { notified[session]++ }
		for _, uri := range uris {
			sub := &subscription{worker: w, caller: Caller{Session: session, Notify: notify}, uri: uri}
			w.update(func(s *workerState) { s.subs[sub] = true })
		}
	}
	w.handle(&Message{Method: "notifications/resources/updated", Params: json.RawMessage(`{"uri":"m://x"}`)})
	check(t, "notifications", notified, map[string]int{"alice": 1, "bob": 1})
	asked := make(chan string, 9)
	alice := Caller{Session: "alice", Caps: allCaps}
	alice.Ask = func(ctx context.Context, method string, _ json.RawMessage) (json.RawMessage, error) {
		asked <- method
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}
	must(t, w.startCall(w.newCall(alice), "tools/call", nil))
	for range 3 {
		w.handle(&Message{ID: json.RawMessage("7"), Method: "roots/list"})
	}
	check(t, "asked", <-asked, "roots/list")
	var open int
	var sent string
	w.update(func(s *workerState) { open, sent = len(s.asks), string(s.input) })
	check(t, "open requests", open, 1)
	check(t, "refused requests", strings.Count(sent, "request id 7 is already in use"), 2)
}

// TestModuleThatDoesNotRead calls a module that does not read: no more is queued
// for it than may be, and each call ends.
func TestModuleThatDoesNotRead(t *testing.T) {
	long(t)
	synctest.Test(t, func(t *testing.T) {
		w := testWorker("a", nil)
		_, err := w.request(t.Context(), Caller{}, "ping", nil, time.Minute, nil)
		check(t, "a call times out", errors.Is(err, errTimeout), true)
		w.update(func(s *workerState) { s.input = nil })
		big := objectOf(`{"x":"` + strings.Repeat("x", maxInput) + `"}`)
		errs := make(chan error, 2)
		for range cap(errs) {
			go func() {
				_, err := w.request(t.Context(), Caller{}, "ping", big, time.Minute, nil)
				errs <- err
			}()
		}
		checkContains(t, "the second large call", fmt.Sprint(<-errs), "does not read")
		check(t, "the first one times out", errors.Is(<-errs, errTimeout), true)
	})
}

// TestAttribution has a module ask a client without naming the call it asks for.
func TestAttribution(t *testing.T) {
	t.Parallel()
	alice, bob := Caller{Session: "alice"}, Caller{Session: "bob"}
	visitor := Caller{Session: "visit", Stateless: true}
	for _, tt := range []struct {
		name      string
		owner     *Caller
		calls     []Caller
		cancelled *Caller // of another call; nil for none
		want      string
	}{
		{"for all, no call", nil, nil, nil, errNotSure.Message},
		{"for all, one call", nil, []Caller{alice}, nil, errNotSure.Message},
		{"for all, two calls", nil, []Caller{alice, bob}, nil, errNotSure.Message},
		{"a session's, no call", &alice, nil, nil, "alice"},
		{"a session's, two calls", &alice, []Caller{alice, alice}, nil, "alice"},
		{"a session's, a cancelled call", &alice, nil, &alice, "alice"},
		{"a session's, one call beside a cancelled one", &alice, []Caller{alice}, &alice, "alice"},
		{"a principal's, no call", &visitor, nil, nil, errNotSure.Message},
		{"a principal's, one call", &visitor, []Caller{visitor}, nil, "visit"},
		{"a principal's, usher's own call beside", &visitor, []Caller{{}, visitor}, nil, "visit"},
		{"a principal's, two calls", &visitor, []Caller{visitor, visitor}, nil, errNotSure.Message},
		{"a principal's, a cancelled call", &visitor, nil, &visitor, errNotSure.Message},
		{"a principal's, one beside a cancelled one", &visitor, []Caller{visitor}, &visitor, errNotSure.Message},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := testWorker("a", tt.owner)
				defer w.cancel()
				start := func(caller Caller) *call {
					c := w.newCall(caller)
					must(t, w.startCall(c, "tools/call", nil))
					return c
				}
				asked := func(params string) string {
					var caller Caller
					var err error
					w.update(func(s *workerState) { caller, _, err = w.target(s, json.RawMessage(params)) })
					if err != nil {
						return err.Error()
					}
					return caller.Session
				}
				naming := func(c *call) string { return fmt.Sprintf(`{"_meta":{%q:%s}}`, metaCall, c.id) }
				if tt.cancelled != nil {
					c := start(*tt.cancelled)
					w.endCall(c, errCancelled)
					check(t, "asked for the cancelled call", asked(naming(c)), errNotInCall.Message)
				}
				for _, caller := range tt.calls {
					c := start(caller)
					if c.ofClient() {
						check(t, "asked for a call by its name", asked(naming(c)), caller.Session)
					}
				}
				check(t, "asked", asked(""), tt.want)
				pass(time.Hour)
				check(t, "asked later", asked(""), tt.want)
			})
		})
	}
}

// checkRuns checks how many calls of a process are neither answered nor cancelled.
func (w *Worker) checkRuns(t *testing.T, what string, want int) {
	t.Helper()
	synctest.Wait()
	w.update(func(s *workerState) { check(t, "running calls "+what, len(s.calls), want) })
}

// answerCalls has a process answer calls, by their ids.
func (w *Worker) answerCalls(first, n int, result json.RawMessage) {
	for id := range n {
		w.answer(&Message{ID: json.RawMessage(fmt.Sprint(first + id)), Result: result})
		synctest.Wait()
	}
}

// TestCallsWaitForTheirTurn makes more calls of a module than may run for a principal: they
// wait in order. A cancelled call of a hosted server counts until it is answered or ten
// seconds have passed, and one that waits for its client does not count.
func TestCallsWaitForTheirTurn(t *testing.T) {
	t.Parallel()
	for _, answered := range []bool{true, false} {
		t.Run(fmt.Sprint("cancelled calls are answered: ", answered), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { testTurns(t, answered) })
		})
	}
}

func testTurns(t *testing.T, answered bool) {
	var w *Worker
	p := newPool("a", false, func(owner *Caller) (*Worker, error) {
		w = testWorker("a", owner)
		context.AfterFunc(w.ctx, func() { w.finish("") })
		return w, nil
	})
	defer p.close()
	ctx, cancel := context.WithCancel(t.Context())
	replies := make(chan json.RawMessage)
	call := func(ctx context.Context, name string) error {
		ask := func(context.Context, string, json.RawMessage) (json.RawMessage, error) { return <-replies, nil }
		caller := Caller{Session: "s", Principal: principal(name), Caps: allCaps, Ask: ask}
		_, err := p.call(ctx, caller, "tools/call", nil)
		return err
	}
	for range maxRunningOf {
		go call(ctx, "a claim")
	}
	synctest.Wait()
	p.timeout = time.Second
	check(t, "a call that waits in vain", isBusy(call(t.Context(), "a claim")), true)
	p.timeout = 0
	var order []string
	for _, name := range []string{"first", "second"} {
		go func() {
			call(t.Context(), "a claim")
			w.update(func(*workerState) { order = append(order, name) })
		}()
		synctest.Wait()
	}
	go call(t.Context(), "another")
	w.checkRuns(t, "beside those that wait", maxRunningOf+1)
	params := json.RawMessage(`{"_meta":{"usher/call":1}}`)
	w.handle(&Message{ID: json.RawMessage("1"), Method: "roots/list", Params: params})
	w.checkRuns(t, "beside one that waits for its client", maxRunningOf+2)
	replies <- noResult
	synctest.Wait()
	w.update(func(s *workerState) { check(t, "its client's answer waits for a slot", len(s.asks), 1) })
	cancel()
	w.checkRuns(t, "beside those that were cancelled", 2)
	check(t, "calls that count", p.calls.all, maxRunningOf+1)
	if answered {
		w.answerCalls(1, maxRunningOf, nil)
	} else {
		pass(cancelTimeout - time.Nanosecond)
		w.checkRuns(t, "before the end of those that were cancelled", 2)
		pass(time.Nanosecond)
	}
	w.checkRuns(t, "after the end of those that were cancelled", 3)
	w.answerCalls(maxRunningOf+1, 3, noResult)
	synctest.Wait()
	w.snapshot()
	if answered { // else the others began at once
		check(t, "those that waited ended in the order", order, []string{"first", "second"})
	}
	check(t, "calls that count in the end", int(p.calls.all)+len(p.calls.used)+len(p.calls.waiting), 0)
}

// endlessModule is a pool of processes that confirm every cancellation. Their calls never end, except
// those of the method "fine".
type endlessModule struct {
	*pool
	workers []*Worker // in the order of their starts

	mu   sync.Mutex
	runs map[*Worker]map[string]int // calls that run, by their method
}

func newEndlessModule(t *testing.T, timeout time.Duration) *endlessModule {
	m := &endlessModule{runs: make(map[*Worker]map[string]int)}
	m.pool = newPool("a", false, func(*Caller) (*Worker, error) {
		w := testWorker("a", nil)
		w.confirms = true
		read, stdin := io.Pipe()
		m.mu.Lock()
		defer m.mu.Unlock()
		m.workers = append(m.workers, w)
		m.runs[w] = make(map[string]int)
		go w.writeStdin(stdin)
		go m.play(w, read)
		return w, nil
	})
	m.timeout = timeout
	t.Cleanup(m.close)
	return m
}

// play is one process: it reads messages until its stdin ends.
func (m *endlessModule) play(w *Worker, stdin io.Reader) {
	lines := newLineReader(stdin, 1<<20)
	for {
		line, err := lines.next()
		if err != nil {
			break
		}
		msg, _ := parseMessage(line)
		name := stringField(msg.Params, "name")
		switch {
		case msg.Method == "notifications/cancelled":
			w.handle(&Message{Method: cancelConfirmed, Params: msg.Params})
		case name == "fine":
			w.handle(&Message{ID: msg.ID, Result: noResult})
		default:
			m.mu.Lock()
			m.runs[w][name]++
			m.mu.Unlock()
		}
	}
	m.mu.Lock()
	delete(m.runs, w)
	m.mu.Unlock()
	w.finish("")
}

// begin calls a method for the principal of the same name.
func (m *endlessModule) begin(ctx context.Context, method string) <-chan error {
	done := make(chan error, 1)
	go func() {
		caller := Caller{Session: "s", Principal: principal(method)}
		_, err := m.call(ctx, caller, "tools/call", object{{"name", quote(method)}})
		done <- err
	}()
	synctest.Wait()
	return done
}

// cancelled calls a method n times and cancels the calls.
func (m *endlessModule) cancelled(method string, n int) {
	ctx, cancel := context.WithCancel(context.Background())
	for range n {
		m.begin(ctx, method)
	}
	cancel()
	synctest.Wait()
}

// TestRunningCallsAreBounded has four principals call endless functions for an hour, and cancel the calls: cancelled
// functions count as long as they run.
func TestRunningCallsAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newEndlessModule(t, time.Minute)
		most, mostOf := 0, 0
		for range 60 {
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			for i := range 4 * (maxRunningOf + 8) {
				m.begin(ctx, fmt.Sprint("claim ", i/(maxRunningOf+8)))
				m.mu.Lock()
				all := 0
				of := make(map[string]int)
				for _, runs := range m.runs {
					for name, n := range runs {
						all += n
						of[name] += n
					}
				}
				m.mu.Unlock()
				most = max(most, all)
				for _, n := range of {
					mostOf = max(mostOf, n)
				}
			}
			pass(time.Minute)
			cancel()
		}
		check(t, "most running functions", most, maxRunning)
		check(t, "most running functions of a principal", mostOf, maxRunningOf)
		check(t, "the next call", <-m.begin(t.Context(), "fine"), nil)
	})
}

// TestCrowdedProcess lets cancelled functions run on in a process: another takes the new calls, and the first one
// ends when its other calls are answered, or after the time-out of calls.
func TestCrowdedProcess(t *testing.T) {
	t.Parallel()
	const timeout = time.Minute
	for _, tt := range []struct {
		name      string
		cancelled int
		before    time.Duration // with this much time, the process gets new calls
		after     time.Duration // more, and it does not
	}{
		{"too many", maxCancelled, 0, 0},
		{"too long", 1, timeout - time.Nanosecond, time.Nanosecond},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newEndlessModule(t, timeout)
				m.cancelled("spin", tt.cancelled-1)
				check(t, "a call before", <-m.begin(t.Context(), "fine"), nil)
				m.cancelled("spin", 1)
				if tt.before > 0 {
					pass(tt.before)
					check(t, "a call just before", <-m.begin(t.Context(), "fine"), nil)
				}
				check(t, "processes before", len(m.workers), 1)
				pass(tt.after)
				check(t, "a call after", <-m.begin(t.Context(), "fine"), nil)
				check(t, "processes after", len(m.workers), 2)
				check(t, "the first one lives", m.workers[0].alive(), false)
			})
		})
	}
	t.Run("beside another call", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			m := newEndlessModule(t, timeout)
			other := m.begin(t.Context(), "other")
			m.cancelled("spin", maxCancelled)
			check(t, "a call", <-m.begin(t.Context(), "fine"), nil)
			m.cancelled("spin", maxCancelled)
			check(t, "a call while the first process ends", <-m.begin(t.Context(), "fine"), nil)
			check(t, "processes", len(m.workers), 2)
			token := json.RawMessage(`{"progressToken":1}`)
			for range 4 {
				m.workers[0].handle(&Message{Method: "notifications/progress", Params: token})
				check(t, "the first process lives", m.workers[0].alive(), true)
				pass(timeout / 4)
			}
			checkContains(t, "the other call", fmt.Sprint(<-other), "was stopped because a cancelled call blocked it")
			synctest.Wait()
			check(t, "a call after its end", <-m.begin(t.Context(), "fine"), nil)
			check(t, "processes then", len(m.workers), 3)
		})
	})
	t.Run("calls that wait for a slot", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			m := newEndlessModule(t, timeout)
			ctx, cancel := context.WithCancel(t.Context())
			m.begin(t.Context(), "other") // keeps the process
			m.begin(t.Context(), "")
			for range maxRunningOf - 1 {
				m.begin(ctx, "")
			}
			waiting := make(chan error, 1)
			go func() {
				_, err := m.call(t.Context(), Caller{Session: "s"}, "tools/call", object{{"name", quote("fine")}})
				waiting <- err
			}()
			synctest.Wait()
			cancel()
			synctest.Wait()
			check(t, "a new call", <-m.begin(t.Context(), "fine"), nil)
			m.workers[0].answerCalls(2, 1, noResult)
			check(t, "the call that waited", <-waiting, nil)
			check(t, "calls of the new process", m.workers[1].lastID.Load(), 2)
			check(t, "the old one lives", m.workers[0].alive(), true)
		})
	})
}

// TestBlockedProcess cancels a call of a process that confirms it, of one that does not, which usher ends, and of a
// hosted server, which is not expected to.
func TestBlockedProcess(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name        string
		shim, sends bool
		alive       bool
	}{
		{"a shim that confirms", true, true, true},
		{"a shim that does not", true, false, false},
		{"a hosted server", false, false, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := testWorker("a", nil)
				w.confirms = tt.shim
				w.update(func(s *workerState) { s.ready = true })
				context.AfterFunc(w.ctx, func() { w.finish("killed") })
				errs := make(chan error, 1)
				go func() {
					_, err := w.request(t.Context(), Caller{Session: "other"}, "tools/call", nil, 0, nil)
					errs <- err
				}()
				synctest.Wait()
				_, err := w.request(t.Context(), Caller{Session: "s"}, "tools/call", nil, time.Second, nil)
				check(t, "a call times out", errors.Is(err, errTimeout), true)
				if tt.sends {
					w.handle(&Message{Method: cancelConfirmed, Params: json.RawMessage(`{"requestId":2}`)})
				}
				pass(cancelTimeout - time.Nanosecond)
				check(t, "the process is alive before", w.alive(), true)
				pass(time.Nanosecond)
				synctest.Wait()
				check(t, "the process is alive", w.alive(), tt.alive)
				want := "was stopped because a cancelled call blocked it"
				if tt.alive {
					want = "was stopped during the call"
				}
				w.stop()
				checkContains(t, "the other call", fmt.Sprint(<-errs), want)
			})
		})
	}
}

// TestPanicInAScan has a scan of the workspace panic: the next one happens.
func TestPanicInAScan(t *testing.T) {
	long(t)
	dir, first := t.TempDir(), true
	var out output
	r := newRegistry(registryConfig{
		Roots:    []string{dir},
		CacheDir: t.TempDir(),
		Log:      slog.New(slog.NewTextHandler(&out, nil)),
		Watch:    true,
		Only: func(string) bool {
			if first {
				first = false
				panic("in a scan")
			}
			return true
		},
	})
	defer r.Close()
	writeFake(t, dir+"/a.usher", "good tools=x")
	await(t, "the module", func() bool { return len(r.View(scopeAll()).Modules) == 1 })
	checkContains(t, "the log", out.String(), "in a scan")
}

// TestPanics has answers panic: each is an error to its client, one entry in the
// log, and nothing to anyone else. A panic in reading from a module ends the
// module's process.
func TestPanics(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, b *bubble) {
		var out output
		c := b.open(protocols[0])
		log := slog.New(slog.NewTextHandler(&out, nil))
		good := b.server.modules
		b.server.log, b.server.modules = log, fixedRegistry(nil)
		hooks := &Webhooks{modules: b.server.modules, memory: b.server.memory, log: log,
			webhookConfig: webhookConfig{audience: anyone}}
		for what, ask := range map[string]func() string{
			"a list":                 func() string { return c.ask("tools/list", "").Body },
			"a call":                 func() string { return c.call("m_m", "").Body },
			"a call without session": func() string { return b.modern("tools/call", `{"name":"m_m"}`).Body },
			"a webhook": func() string {
				w := httptest.NewRecorder()
				req := httptest.NewRequest(http.MethodPost, "/webhook/m/x", nil)
				handle(log, writeWebhookError, hooks.serve)(w, req)
				return w.Body.String()
			},
		} {
			before := strings.Count(out.String(), "level=ERROR")
			checkContains(t, what, ask(), "internal error: see usher's log")
			check(t, what+": entries in the log", strings.Count(out.String(), "level=ERROR")-before, 1)
		}
		checkContains(t, "the log", out.String(), "bounds_test.go")
		b.server.modules = good
		check(t, "a call afterwards", c.call("m_wait", "").failure(), "")
		changed := func(*Worker) { panic("in reading") }
		w := newWorker(t.Context(), workerConfig{module: "a", log: log, listChanged: changed})
		w.update(func(s *workerState) { s.ready = true })
		w.readStdout(strings.NewReader(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}` + "\n"))
		check(t, "the process is alive", w.alive(), false)
		checkContains(t, "the log", out.String(), "in reading")
	})
}

// TestLogTells checks that each call, claim and invalid code is a line of the log,
// which names a claim by its label and contains no code.
func TestLogTells(t *testing.T) {
	long(t)
	p := startProjects(t)
	claim, err := openStore(t, p.Base).Create(t.Context(), p.dir+"/proj", "a phone", time.Hour)
	must(t, err)
	writeFake(t, p.dir+"/proj/rich.usher", "good tools=tell res=rich")
	c := p.session(inHeader(claim.Code.Reveal()))
	c.awaitTools("a_pid", "a_sleep", "a_x", "rich_tell")
	c.call("a_x", "")
	c.call("no_such", "")
	c.ask("prompts/get", `{"name":"no_such"}`)
	c.ask("prompts/get", `{"name":"rich_say"}`)
	c.ask("resources/read", `{"uri":"rich://one"}`)
	c.ask("resources/subscribe", `{"uri":"rich://one"}`)
	c.ask("completion/complete", `{"ref":{"type":"ref/prompt","name":"rich_say"},"argument":{"name":"x","value":""}}`)
	listTools(c, inHeader("ABCDEF"))
	p.revoke(claim.Code.Reveal())
	listTools(c, presentNothing)
	const of = `claim=[0-9a-f]{8} label="a phone"`
	const how = ` took=[0-9.]+[mµ]?s bytes=[0-9]+ session=[A-Z2-7]{8}… ` + of
	for _, want := range []string{
		`msg=session ` + of + ` session=[A-Z2-7]{8}…`,
		`msg=call request=tools/call module=a method=x outcome=done` + how,
		`msg=call request=tools/call method=no_such outcome="unknown tool \\"no_such\\""` + how,
		`msg=call request=prompts/get method=no_such outcome="unknown prompt \\"no_such\\""` + how,
		`msg=call request=prompts/get module=rich method=say outcome=done` + how,
		`msg=call request=resources/read module=rich method=rich://one outcome=done` + how,
		`msg=call request=resources/subscribe module=rich method=rich://one outcome=done` + how,
		`msg=call request=completion/complete module=rich method=say outcome=done` + how,
		`msg="an invalid claim code was presented" in_session=true scoped=true`,
		`msg="claim ended" ` + of,
	} {
		line := regexp.MustCompile(`(?m)^time=20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\S+ level=[A-Z]+ ` + want + `$`)
		log := p.Log.String()
		if n := len(line.FindAllString(log, -1)); n != 1 {
			t.Errorf("%d lines like %s in:\n%s", n, want, log)
		}
	}
	p.hidesCodes(t, claim.Code.Reveal(), "ABCDEF")
}

// TestNoLogin checks that clients that look for a login are told that there is
// none. They look each time they connect, so that is no line of the log.
func TestNoLogin(t *testing.T) {
	t.Parallel()
	d := startDaemon(t, t.TempDir(), "-require-claim")
	c := newClient(t, d.URL)
	for _, path := range []string{
		".well-known/oauth-protected-resource", ".well-known/oauth-authorization-server/mcp",
		"mcp/.well-known/openid-configuration", "register",
	} {
		for _, method := range []string{http.MethodGet, http.MethodPost} {
			req := c.request(method, "")
			req.URL.Path = "/" + path
			a := c.do(req)
			check(t, method+" "+path, a.Status, 404)
			checkContains(t, method+" "+path, a.Body, "usher has no login", claimHeader)
			check(t, method+" "+path, a.Header.Get("WWW-Authenticate"), "")
		}
	}
	checkOmits(t, "the log", d.Log.String(), "well-known", "register")
}

// TestRevokeOnAFullDisk revokes a claim on a full disk: usher names another way to
// end it.
func TestRevokeOnAFullDisk(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	mount := exec.Command("mount", "-t", "tmpfs", "-o", "size=64k,mode=700", "usher-test", base)
	if err := mount.Run(); err != nil {
		skip(t, "needs a small disk, by mount")
	}
	defer func() { must(t, exec.Command("umount", base).Run()) }()
	claim := newClaimFor(t, base, t.TempDir())
	file, err := os.Create(base + "/full")
	must(t, err)
	_, err = io.Copy(file, zeros{})
	file.Close()
	check(t, "the disk is full", errors.Is(err, syscall.ENOSPC), true)
	_, stderr, code := usher(t, "", "claim", "revoke", "-base", base, claim.Code.Reveal())
	check(t, "status", code, 1)
	checkContains(t, "stderr", stderr, "free some space, or delete", "claims.json")
}

// TestCrashesAreForgotten has processes of many clients crash: neither the crashes
// nor the names of clients are kept for long.
func TestCrashesAreForgotten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newPool("a", true, func(*Caller) (*Worker, error) {
			return nil, errors.New("no")
		})
		defer p.close()
		for range 1000 {
			p.call(t.Context(), Caller{Member: aMember()}, "tools/call", nil)
			pass(time.Second)
			p.reap(time.Now(), 0)
		}
		if n := len(p.crashed); n < 50 || n > 100 {
			t.Errorf("%d crashes are remembered", n)
		}
	})
}

// subscribable has m tell of changes of its resources, by processes that take so
// long to start.
func (b *bubble) subscribable(start time.Duration) {
	b.m.pool = newPool("m", true, func(owner *Caller) (*Worker, error) {
		pass(start)
		w := b.worker(owner)
		w.info = json.RawMessage(`{"capabilities":{"resources":{"subscribe":true}}}`)
		return w, nil
	})
}

// TestWaitingCallsAfterARevoke ends a claim while calls wait for several things:
// they are not made.
func TestWaitingCallsAfterARevoke(t *testing.T) {
	t.Parallel()
	slow := func(t *testing.T, b *bubble) { b.subscribable(subscribeTimeout / 2) }
	native := func(_ *testing.T, b *bubble) { b.native, b.m.Stateless = true, true }
	const wait, ask = `{"name":"m_wait","arguments":{"seconds":60}}`, `{"name":"m_ask"}`
	for _, tt := range []struct {
		name           string
		prepare        func(*testing.T, *bubble)
		method, params string
		made, waiting  int // calls before the claim ends
	}{
		{"for a slot", func(*testing.T, *bubble) {}, "tools/call", wait, maxRunningOf, 3},
		{"for a process", slow, "tools/call", wait, 0, 3},
		{"for a process to tell of a resource", slow, "resources/subscribe", `{"uri":"m://1"}`, 0, 1},
		{"for its client's answer", native, "tools/call", ask, 1, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, func(t *testing.T, b *bubble) {
				tt.prepare(t, b)
				b.m.Lists = map[string][]json.RawMessage{
					"resourceTemplates": {json.RawMessage(`{"uriTemplate":"m://{x}"}`)},
				}
				claim, c := newClaimFor(t, b.base, "/w"), b.open(protocols[0])
				c.Header.Set(claimHeader, claim.Code.Reveal())
				c.ask("ping", "")
				stream := b.begin(c.getRequest())
				defer stream.hangUp()
				synctest.Wait()
				var calls []*exchange
				for range tt.made + tt.waiting {
					calls = append(calls, b.begin(c.request(http.MethodPost, c.message(tt.method, tt.params))))
					synctest.Wait() // so that they wait in this order
				}
				check(t, "calls before the revoke", strings.Count(b.hears(), tt.method), tt.made)
				revoke(t, b.base, claim.Code)
				if tt.params == ask {
					_, text := calls[0].got()
					_, question, _ := strings.Cut(text, "data: {")
					id := field(json.RawMessage("{"+question), "id")
					c.post(string(encodeResult(id, askAnswer("yes")("elicitation/create", nil))))
				}
				pass(2 * time.Minute)
				checkOmits(t, "after the revoke the module hears", b.hears(), tt.method)
				for i, x := range calls {
					_, text := x.got()
					refused := strings.Contains(text, errEnded.Error()) || strings.Contains(text, errNoScope.Message)
					check(t, fmt.Sprint("call ", i, " is refused"), refused, i >= tt.made || tt.params == ask)
				}
			})
		})
	}
}
