// The wire of clients with sessions: HTTP+SSE, streams that can be resumed, and batches,
// which are refused.

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"runtime"
	"strings"
	"testing"
)

// TestBatchesAreRefused sends a batch in each version, over each transport. The next
// message is answered.
func TestBatchesAreRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	writeFake(t, dir+"/a.usher", "good")
	url := startDaemon(t, dir).URL
	const ping = `{"jsonrpc":"2.0","id":7,"method":"ping"}`
	const batch = "[" + ping + `,{"jsonrpc":"2.0","method":"notifications/initialized"}]`
	for _, version := range protocols {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			c := connectAs(t, url, version)
			for _, body := range []string{batch, " \n[]"} {
				a := c.post(body)
				if a.Status != 400 {
					t.Errorf("%q: status %d, want 400", body, a.Status)
				}
				wantRefusedBatch(t, body, a.Body)
			}
			check := func(name string, send func(string), next func() string) {
				send(initializeAs(version))
				next()
				send(batch)
				wantRefusedBatch(t, name, next())
				send(ping)
				if got := next(); !strings.Contains(got, `"id":7,"result"`) {
					t.Errorf("%s: after the batch: %s, want the answer to a ping", name, got)
				}
			}
			in, out, _ := startStdio(t, dir)
			check("stdio", func(s string) { io.WriteString(in, s+"\n") }, func() string {
				line, err := out.next()
				if err != nil {
					t.Error(err)
				}
				return string(line)
			})
			old := connectSSE(t, url)
			check("HTTP+SSE", func(s string) { old.post(s) }, func() string {
				e, _ := nextEvent(t, old.events)
				return e.data
			})
		})
	}
}

func wantRefusedBatch(t *testing.T, name, got string) {
	t.Helper()
	if !strings.Contains(got, `"code":-32600`) || !strings.Contains(got, "batches are not supported") {
		t.Errorf("%s: %s, want a refusal of batches", name, got)
	}
	if strings.Contains(got, `"id"`) {
		t.Errorf("%s: %s, want no id", name, got)
	}
}

// TestCancelledPOST cancels a call whose client accepts JSON, a stream, or both.
func TestCancelledPOST(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	writeFake(t, dir+"/a.usher", "good")
	d := startDaemon(t, dir)
	c := connectAs(t, d.URL, protocols[0])
	call := c.message("tools/call", `{"name":"a_sleep","arguments":{"ms":60000}}`)
	id := string(field(json.RawMessage(call), "id"))
	for _, accept := range []string{bothKinds, "application/json", "text/event-stream"} {
		done := make(chan answer, 1)
		before := strings.Count(d.Log.String(), "fake: sleeping")
		req := c.request(http.MethodPost, call)
		req.Header.Set("Accept", accept)
		go func() { done <- c.do(req) }()
		await(t, "the call to begin", func() bool { return strings.Count(d.Log.String(), "fake: sleeping") > before })
		c.post(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":` + id + `}}`)
		a := <-done
		if a.Status/100 != 2 {
			t.Errorf("with %s: status %d, want a success", accept, a.Status)
		}
		if len(a.last()) > 0 {
			t.Errorf("with %s: %s, want no answer", accept, a.Body)
		}
	}
	if strings.Contains(d.Log.String(), "superfluous") {
		t.Errorf("a status was written twice: %s", d.Log.String())
	}
}

func TestOldSSE(t *testing.T) {
	t.Parallel()
	dir, base := twoProjects(t), t.TempDir()
	d := daemonOptions{base: base}.start(t, dir)
	proj, gone := newClaimFor(t, base, dir+"/proj"), newClaimFor(t, base, dir+"/proj")
	p := proj.Code.Reveal()
	openStore(t, base).Revoke(t.Context(), gone.Code)
	everything, some := strings.Join(allTools, " "), strings.Join(projTools, " ")
	mcp := func(r *http.Request) { r.URL.Path = "/mcp" }
	for _, tt := range []struct {
		name    string
		present func(*http.Request)
		want    string
	}{
		{"none", presentNothing, everything},
		{"none at /mcp", mcp, everything},
		{"a code in the URL", inQuery(p), some},
		{"a code in the URL at /mcp", presentAll(inQuery(p), mcp), some},
		{"a code in the header", inHeader(p), some},
		{"a code as bearer", inAuthorization("Bearer " + p), some},
		{"an unknown code", inQuery("ABCDEF"), everything},
		{"a malformed code", inQuery("hello"), everything},
		{"a revoked code", inQuery(gone.Code.Reveal()), everything},
	} {
		c := connectSSE(t, d.URL, tt.present)
		if a := c.post(initializeAs(oldestProtocol)); a.Status != 202 {
			t.Errorf("initialize: %d %s", a.Status, a.Body)
		}
		wantEvent(t, c.events, `"id":"init"`, `"protocolVersion":"2024-11-05"`)
		if got := c.sees(); got != tt.want {
			t.Errorf("who presents %s sees %q, want %q", tt.name, got, tt.want)
		}
		if got := c.ask("tools/call", `{"name":"b_x"}`); (field(got, "error") == nil) != (tt.want == everything) {
			t.Errorf("who presents %s calls b_x: %s", tt.name, got)
		}
		if tt.name == "none" { // and becomes scoped
			req := c.request(http.MethodPost, c.message("ping", ""))
			inHeader(p)(req)
			c.do(req)
			wantEvent(t, c.events, "result")
			if got := c.sees(); got != some {
				t.Errorf("scoped later: %q", got)
			}
		}
	}
}

// TestOldSSEToTheEnd follows two sessions side by side: one whose claim ends,
// and one that goes.
func TestOldSSEToTheEnd(t *testing.T) {
	t.Parallel()
	dir, base := twoProjects(t), t.TempDir()
	d := daemonOptions{base: base}.start(t, dir)
	proj := newClaimFor(t, base, dir+"/proj")
	scoped, free := connectSSE(t, d.URL, inQuery(proj.Code.Reveal())), connectSSE(t, d.URL)
	for _, c := range []*sseClient{scoped, free} {
		c.post(initializeAs(oldestProtocol))
		wantEvent(t, c.events, `"id":"init"`)
		c.sees()
	}
	writeFake(t, dir+"/other/new.usher", "good tools=x")
	wantEvent(t, free.events, changedTools)
	if got := scoped.sees(); got != strings.Join(projTools, " ") {
		t.Errorf("scoped: %q", got)
	}
	openStore(t, base).Revoke(t.Context(), proj.Code)
	wantEvent(t, scoped.events, changedTools)
	if got := scoped.sees(); got != "" {
		t.Errorf("after the end: %q", got)
	}
	for method, params := range map[string]string{"tools/call": `{"name":"a_x"}`, "prompts/get": `{"name":"a_x"}`, "resources/read": `{"uri":"a://x"}`,
		"completion/complete": `{"ref":{"type":"ref/prompt","name":"a_x"},"argument":{"name":"n","value":""}}`} {
		if got := scoped.ask(method, params); !strings.Contains(string(got), "has ended") || field(got, "result") != nil {
			t.Errorf("%s after the end: %s", method, got)
		}
	}

	slow := func(c *sseClient, id string) {
		t.Helper()
		before := strings.Count(d.Log.String(), "fake: sleeping")
		c.post(`{"jsonrpc":"2.0","id":` + id + `,"method":"tools/call","params":{"name":"a_sleep","arguments":{"ms":60000}}}`)
		await(t, "the call to be under way", func() bool { return strings.Count(d.Log.String(), "fake: sleeping") > before })
	}
	slow(free, `"s"`)
	free.post(`{"jsonrpc":"2.0","id":"s","method":"ping"}`)
	wantEvent(t, free.events, `"id":"s"`, "already being answered")
	scoped.post(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"s"}}`) // not its own
	free.ask("ping", "")
	if n := strings.Count(d.Log.String(), "fake: cancelled"); n != 0 {
		t.Error("another session cancelled the call")
	}
	free.post(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"s"}}`)
	await(t, "the module to hear of it", func() bool { return strings.Contains(d.Log.String(), "fake: cancelled") })
	slow(free, `"t"`)
	free.hangUp()
	await(t, "the module to hear that the client is gone", func() bool { return strings.Count(d.Log.String(), "fake: cancelled") == 2 })
	await(t, "404", func() bool { return free.post(`{"jsonrpc":"2.0","id":1,"method":"ping"}`).Status == 404 })
	for range 2 {
		get := free.request(http.MethodGet, "")
		get.Header.Set("Accept", "text/event-stream")
		if res, _, _ := openStream(t, get); res.StatusCode != 404 {
			t.Errorf("GET of a session that has ended: %s", res.Status)
		}
	}
	if got := scoped.ask("ping", ""); field(got, "result") == nil {
		t.Errorf("the other session: %s", got)
	}
	d.cancel()
	if list := remainingEvents(t, scoped.events); len(list) != 0 {
		t.Errorf("at the daemon's stop: %+v", list)
	}
}

func TestOldSSENeedsAClaim(t *testing.T) {
	t.Parallel()
	dir, base := twoProjects(t), t.TempDir()
	d := daemonOptions{base: base}.start(t, dir, "-require-claim")
	proj := newClaimFor(t, base, dir+"/proj")
	c := newStateless(t, d.URL)
	for name, present := range map[string]func(*http.Request){"none": presentNothing, "unknown": inQuery("ABCDEF"), "malformed": inQuery("hello")} {
		get := c.request(http.MethodGet, "")
		get.Header.Set("Accept", "text/event-stream")
		present(get)
		if res, events, _ := openStream(t, get); res.StatusCode != 400 || len(remainingEvents(t, events)) != 0 {
			t.Errorf("%s: %s", name, res.Status)
		}
	}
	old := connectSSE(t, d.URL, inQuery(proj.Code.Reveal()))
	if got := old.sees(); got != strings.Join(projTools, " ") {
		t.Errorf("it sees %q", got)
	}
	good, _ := os.ReadFile(base + "/.data/claims.json")
	write(t, base+"/.data/claims.json", "x")
	get := c.request(http.MethodGet, "")
	get.Header.Set("Accept", "text/event-stream")
	inQuery(proj.Code.Reveal())(get)
	if res, _, _ := openStream(t, get); res.StatusCode != 503 {
		t.Errorf("claims that can't be read: %s", res.Status)
	}
	if a := old.post(`{"jsonrpc":"2.0","id":1,"method":"ping"}`); a.Status != 503 {
		t.Errorf("claims that can't be read, under way: %d", a.Status)
	}
	write(t, base+"/.data/claims.json", string(good))
	if got := old.sees(); got != strings.Join(projTools, " ") {
		t.Errorf("after the repair it sees %q", got)
	}
}

// TestOldSSELeavesNothing counts goroutines, so it runs alone.
func TestOldSSELeavesNothing(t *testing.T) {
	dir := t.TempDir()
	writeFake(t, dir+"/a.usher", "good shared")
	d := startDaemon(t, dir)
	visit := func(times int) {
		var all []*sseClient
		for range 10 {
			c := connectSSE(t, d.URL)
			c.http.Transport = &http.Transport{DisableKeepAlives: true}
			c.ask("tools/call", `{"name":"a_echo"}`)
			c.post(`{"jsonrpc":"2.0","id":"s","method":"tools/call","params":{"name":"a_sleep","arguments":{"ms":60000}}}`)
			all = append(all, c)
		}
		await(t, "the calls to be under way", func() bool { return strings.Count(d.Log.String(), "fake: sleeping") == 10*times })
		for _, c := range all {
			c.hangUp()
			remainingEvents(t, c.events)
		}
		await(t, "the calls to end", func() bool { return strings.Count(d.Log.String(), "fake: cancelled") == 10*times })
	}
	visit(1)
	before := runtime.NumGoroutine()
	visit(2)
	await(t, "the goroutines to end", func() bool { return runtime.NumGoroutine() <= before+2 })
}

// heldProgress begins a call that says how far it is, and holds after the second
// of four times until release is called. It returns what came until then.
func (c *testClient) heldProgress(t *testing.T) (first event, got []event, hangUp func()) {
	t.Helper()
	req := c.request(http.MethodPost, c.message("tools/call", `{"name":"a_progress","arguments":{"n":4,"hold":2},"_meta":{"progressToken":"p"}}`))
	_, events, hangUp := openStream(t, req)
	first = <-events
	got = append(got, wantEvent(t, events, `"progress":1`), wantEvent(t, events, `"progress":2`))
	return first, got, hangUp
}

func TestResume(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	writeFake(t, dir+"/a.usher", "good tools=progress,release,big")
	d := startDaemon(t, dir)
	c := connect(t, d.URL)
	prime, got, hangUp := c.heldProgress(t)
	if prime.id == "" || prime.retry == "" || !prime.hasData || prime.data != "" || prime.name != "" {
		t.Errorf("the first event: %+v", prime)
	}
	hangUp()
	_, under, _ := c.resume(got[0].id) // in the middle of the call
	wantEvent(t, under, `"progress":2`)
	c.call("a_release", "")
	live, liveIDs := eventTexts(remainingEvents(t, under))
	if len(live) != 3 || !strings.Contains(live[0], `"progress":3`) || !strings.Contains(live[1], `"progress":4`) || !strings.Contains(live[2], `"result"`) {
		t.Errorf("resumed while it was under way: %q", live)
	}
	ids := append([]string{prime.id, got[0].id, got[1].id}, liveIDs...)
	texts := append([]string{"", got[0].data, got[1].data}, live...)
	for range 2 { // as often as one likes
		for i, id := range ids {
			_, events, _ := c.resume(id)
			if more, moreIDs := eventTexts(remainingEvents(t, events)); strings.Join(more, "\n") != strings.Join(texts[i+1:], "\n") || strings.Join(moreIDs, " ") != strings.Join(ids[i+1:], " ") {
				t.Errorf("after event %d there is %q %v", i, more, moreIDs)
			}
		}
	}
	other := connect(t, d.URL)
	stream, _, _ := strings.Cut(ids[0], "-")
	for name, tt := range map[string]struct {
		c  *testClient
		id string
	}{
		"another session's":     {other, ids[0]},
		"one that never was":    {c, "p0123456789abcdef-0"},
		"one beyond the end":    {c, stream + "-6"},
		"one far beyond it":     {c, stream + "-9223372036854775807"},
		"another's, beyond all": {other, stream + "-6"},
	} {
		if res, events, _ := tt.c.resume(tt.id); res.StatusCode != http.StatusGone || len(remainingEvents(t, events)) != 0 {
			t.Errorf("%s: %s", name, res.Status)
		}
	}
	// What is no id of an answer begins a notification stream like any other.
	for _, id := range []string{"x", "1", stream, stream + "-", stream + "--1", "g0123456789abcdef-3"} {
		res, events, hangUp := c.resume(id)
		if first := <-events; res.StatusCode != 200 || !strings.HasPrefix(first.id, "g") || first.data != "" {
			t.Errorf("%q: %s %+v", id, res.Status, first)
		}
		hangUp()
		if list := remainingEvents(t, events); len(list) != 0 {
			t.Errorf("%q: %+v", id, list)
		}
	}
	if a := c.do(c.request(http.MethodDelete, "")); a.Status != 204 {
		t.Errorf("DELETE: %d", a.Status)
	}
	if res, _, _ := c.resume(ids[0]); res.StatusCode != 404 {
		t.Errorf("after DELETE: %s", res.Status)
	}
}

// TestResumeWhatIsTooMuch has an answer that is larger than what is kept.
func TestResumeWhatIsTooMuch(t *testing.T) {
	t.Parallel()
	c := oneFake(t)
	req := c.request(http.MethodPost, c.message("tools/call", fmt.Sprintf(`{"name":"a_big","arguments":{"bytes":%d}}`, maxReplayMessage)))
	req.Header.Set("Accept", "text/event-stream, application/json")
	_, events, _ := openStream(t, req)
	prime := <-events
	if last := remainingEvents(t, events); len(last) != 1 || len(last[0].data) <= maxReplayMessage {
		t.Fatalf("%d messages", len(last))
	}
	if res, _, _ := c.resume(prime.id); res.StatusCode != http.StatusGone {
		t.Errorf("%s", res.Status)
	}
}

// TestResumeByVersion looks at streams of the versions before.
func TestResumeByVersion(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	writeFake(t, dir+"/a.usher", "good tools=progress,release")
	d := startDaemon(t, dir)
	for _, version := range []string{"2025-06-18", "2025-03-26"} {
		c := connectAs(t, d.URL, version)
		first, got, hangUp := c.heldProgress(t)
		if first.id != "" || first.retry != "" || got[0].id == "" {
			t.Errorf("%s: begins %+v %+v", version, first, got[0])
		}
		hangUp()
		_, events, _ := c.resume(got[1].id)
		c.call("a_release", "")
		if list, _ := eventTexts(remainingEvents(t, events)); len(list) != 3 {
			t.Errorf("%s: resumed: %q", version, list)
		}
		_, events, hangUp = c.resume("")
		if first := <-events; first.id != "" || !first.comment {
			t.Errorf("%s: its notification stream begins %+v", version, first)
		}
		hangUp()
	}
}

// TestResumeInAScope resumes streams after the claim has changed.
func TestResumeInAScope(t *testing.T) {
	t.Parallel()
	dir, base := twoProjects(t), t.TempDir()
	writeFake(t, dir+"/proj/a.usher", "good tools=progress,release")
	d := daemonOptions{base: base}.start(t, dir)
	proj, other := newClaimFor(t, base, dir+"/proj"), newClaimFor(t, base, dir+"/other")
	begin := func() (c *testClient, id string) {
		c = connectAs(t, d.URL, protocols[0], inHeader(proj.Code.Reveal()))
		prime, _, hangUp := c.heldProgress(t)
		hangUp()
		c.call("a_release", "")
		_, events, _ := c.resume(prime.id)
		if list := remainingEvents(t, events); len(list) != 5 {
			t.Fatalf("while the claim holds: %+v", list)
		}
		return c, prime.id
	}
	moves, moved := begin()
	ends, ended := begin()
	ends.tools()
	_, events, hangUp := ends.resume("")
	if prime := <-events; !strings.HasPrefix(prime.id, "g") || prime.retry == "" {
		t.Errorf("its notification stream begins %+v", prime)
	}
	writeFake(t, dir+"/proj/new.usher", "good tools=x")
	first := wantEvent(t, events, changedTools)
	writeFake(t, dir+"/proj/newer.usher", "good tools=x")
	second := wantEvent(t, events, changedTools)
	hangUp()
	_, events, hangUp = ends.resume(first.id)
	if e := wantEvent(t, events, changedTools); e.id != second.id {
		t.Errorf("what it missed came as %+v, want %+v", e, second)
	}
	hangUp()
	if got := listTools(moves, inHeader(other.Code.Reveal())); got != "b_x" {
		t.Errorf("moved: %q", got)
	}
	if res, _, _ := moves.resume(moved); res.StatusCode != http.StatusGone {
		t.Errorf("after the session moved: %s", res.Status)
	}
	if _, err := openStore(t, base).Revoke(t.Context(), proj.Code); err != nil {
		t.Fatal(err)
	}
	if res, _, _ := ends.resume(ended); res.StatusCode != http.StatusGone {
		t.Errorf("after the claim's end: %s", res.Status)
	}
	_, events, _ = ends.resume(first.id)
	stream, _ := parseEventID(first.id)
	if prime := <-events; prime.data != "" || strings.HasPrefix(prime.id, stream) {
		t.Errorf("after the claim's end its stream begins %+v", prime)
	}
	ends.tools()
	ends.do(ends.request(http.MethodDelete, ""))
	for _, e := range remainingEvents(t, events) {
		if strings.HasPrefix(e.id, stream) {
			t.Errorf("after the claim's end %+v is replayed", e)
		}
	}
}

// TestReplayBounds keeps as much as there may be, of one principal and of all.
func TestReplayBounds(t *testing.T) {
	t.Parallel()
	var buffer replayBuffer
	stream := func(owner string) *keptStream {
		return &keptStream{buffer: &buffer, id: owner, owner: owner, authorized: func() bool { return true }}
	}
	check := func(k *keptStream, n, want int) { // -1: not all of it is kept
		t.Helper()
		if missed, ok := buffer.after(&outbox{kept: k}, n); ok != (want >= 0) || ok && len(missed) != want {
			t.Errorf("after %d of %s: %d messages, %v; want %d", n, k.id, len(missed), ok, want)
		}
	}
	msg := make([]byte, maxReplayMessage)
	const own, all = maxReplayBytesOf / maxReplayMessage, maxReplayBytes / maxReplayMessage
	one := stream("one")
	for range own + 2 {
		buffer.keep(one, msg)
	}
	for n, kept := range map[int]int{own + 2: 0, own + 1: 1, 2: own, 1: -1, 0: -1, own + 3: -1} {
		check(one, n, kept)
	}
	var others []*keptStream
	for i := range all {
		others = append(others, stream(fmt.Sprint("other ", i)))
		buffer.keep(others[i], msg)
	}
	check(one, own+1, -1) // the oldest, over the bound of all
	check(others[0], 0, 1)
	others[1].authorized = func() bool { return false }
	check(others[1], 0, -1)
	buffer.keep(one, append(msg, 'x'))
	check(one, own+2, -1) // too long
	few := stream("few")
	for range maxReplayBytesOf/minKept + 1 {
		buffer.keep(few, []byte("x"))
	}
	check(few, 0, -1) // many short ones
	check(few, 1, maxReplayBytesOf/minKept)
	gone := stream("gone")
	buffer.streams.Store(gone.id, &outbox{kept: gone})
	buffer.keep(gone, msg)
	for i := range 5 * all { // from five principals
		buffer.keep(others[i%5], msg)
	}
	if buffer.find("", gone.id) != nil {
		t.Error("a stream outlives its last message")
	}
	for _, k := range append(others, one, few) {
		buffer.forget(k)
	}
	if len(buffer.kept) != 0 {
		t.Errorf("after all was forgotten there are %d messages", len(buffer.kept))
	}
}

// TestSlowClientIsDropped has a client that reads nothing.
func TestSlowClientIsDropped(t *testing.T) {
	t.Parallel()
	writing, unblock := make(chan bool), make(chan bool)
	conn := &connection{ctx: t.Context(), write: func(f frame) error {
		if f.msg != nil {
			writing <- true
			<-unblock
		}
		return nil
	}}
	out := newOutbox(conn, nil)
	msg := make([]byte, maxOutbox+1)
	for i, want := range []bool{true, true, false, false} { // one is written, one waits
		if got := out.send(msg); got != want {
			t.Errorf("message %d: %v", i, got)
		}
		if i == 0 {
			<-writing
		}
	}
	if out.bytes != 0 {
		t.Errorf("%d bytes wait for who was dropped", out.bytes)
	}
	close(unblock)
	<-conn.done.Done()
}

// TestOldSSETakesStatelessMessages has a client of HTTP+SSE begin with what the
// revision without sessions asks: its session is in the URL, and that counts.
func TestOldSSETakesStatelessMessages(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	writeFake(t, dir+"/a.usher", "good")
	url := startDaemon(t, dir).URL
	for _, version := range []string{"", statelessProtocol} {
		c := connectSSE(t, url, func(r *http.Request) { r.Header.Set("Accept", "*/*") })
		req := c.request(http.MethodPost, `{"jsonrpc":"2.0","id":"d","method":"server/discover","params":{"_meta":{`+modernMeta+`}}}`)
		if version != "" {
			req.Header.Set(protocolHeader, version)
		}
		if a := c.do(req); a.Status != http.StatusAccepted {
			t.Errorf("with the version %q: %d %s", version, a.Status, a.Body)
		}
		wantEvent(t, c.events, `"id":"d"`, `"supportedVersions"`)
		c.post(initializeAs(oldestProtocol))
		wantEvent(t, c.events, `"id":"init"`, `"protocolVersion":"2024-11-05"`)
	}
}
