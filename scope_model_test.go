// The model test: a random walk of clients, claims and daemons. The test compares what each request
// reaches with a model of the table "Who sees what" in SECURITY.md.

package main

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"usher/internal/mcptest"
)

// model is the table of who sees what.
type model struct {
	require    bool                   // -require-claim
	unreadable bool                   // the claims can't be read
	active     map[string]*modelClaim // by code
}

// modelClaim is a claim, active or ended.
type modelClaim struct{ code, folder, created string }

// modelSession is a session, before its first request too, or a request without a session.
type modelSession struct {
	claim     *modelClaim // nil for none
	origin    *modelClaim // its claim after its first request
	began     bool        // it has had its first request
	sse       bool
	stateless bool
	deleted   bool
}

// judge returns the folder that a request reaches, or unscoped, or why it reaches none: a
// status, or claimEnded. It presents a code, "" for none.
func (m *model) judge(s *modelSession, presents string) (folder, refusal string) {
	presented := m.active[presents]
	switch {
	case s.deleted:
		return "", "404"
	case m.unreadable && (s.claim != nil || presents != "" && presents != malformed):
		return "", "503"
	case presented != nil && s.sse && s.began && s.claim != presented:
		return "", "400"
	case presented != nil:
		s.claim = presented
		return presented.folder, ""
	case s.claim != nil && m.active[s.claim.code] != s.claim:
		return "", claimEnded
	case s.claim != nil:
		return s.claim.folder, ""
	case m.require || s.stateless && presents != "":
		return "", "400"
	}
	return unscoped, ""
}

const (
	malformed  = "hello"
	claimEnded = "the claim of this session has ended"
	notThere   = "unknown tool"
	unscoped   = "everything" // what a request without a claim reaches
)

// modelCodes are the codes of claims, which are drawn again and again, and one that is not.
// Each has an 8, which the random ids in the log (rand.Text) never contain.
var modelCodes = []string{"AAAAA8", "BBBBB8", "CCCCC8", "DDDDD8", "ZZZZZ8"}

// modelTools are the tools of the workspace, and their folders.
var modelTools = map[string]string{
	"a_x": "/proj/",
	"b_x": "/other/",
	"c_x": "/projX/",
	"d_x": "/proj/sub/",
	"e_x": "/proj/sub/",
	"e_y": "/proj/sub/", // @unshared
}

// modelFolders are the folders of claims.
var modelFolders = []string{"/", "/proj", "/proj/sub", "/other", "/pro"}

// toolsIn returns the tools in a folder, separated by blanks.
func toolsIn(folder string) string {
	inside := slices.DeleteFunc(sortedKeys(modelTools), func(tool string) bool {
		isBelow := strings.HasPrefix(modelTools[tool], strings.TrimSuffix(folder, "/")+"/")
		return folder != unscoped && (!isBelow || tool == "e_y")
	})
	return strings.Join(inside, " ")
}

// walk is a random walk, whose steps are methods.
type walk struct {
	*projects
	model
	random   *rand.Rand
	http     *http.Client
	store    *ClaimStore
	sessions []*walkSession
	ended    []*modelClaim
	recent   []string // what the last requests got
}

// walkSession is a session, or a client without one.
type walkSession struct {
	*testClient
	modelSession
	events <-chan event // of HTTP+SSE; nil if its stream has ended
	hangUp func()
}

// What each request of a random walk reaches is what the table "Who sees what" says.
// USHER_MODEL_STEPS and USHER_MODEL_SEED determine the walk.
func TestModel(t *testing.T) {
	need(t, "sh")
	long(t)
	steps, err := strconv.Atoi(os.Getenv("USHER_MODEL_STEPS"))
	if err != nil {
		steps = slowTests(300, 10_000)
	}
	seed, err := strconv.ParseUint(os.Getenv("USHER_MODEL_SEED"), 10, 64)
	if err != nil {
		seed = rand.Uint64()
	}
	dir := tempDir(t)
	for tool, folder := range modelTools {
		if tool[0] != 'e' {
			writeShared(t, dir+folder, tool[:1], "good tools=x")
		}
	}
	write(t, dir+"/proj/sub/e.usher.sh", "# Shared.\nx() { :; }\n# @unshared\ny() { :; }\n")
	options := daemonOptions{base: t.TempDir(), ownProcess: true}
	w := &walk{
		projects: &projects{t: t, options: options, dir: dir},
		model:    model{active: make(map[string]*modelClaim)},
		random:   rand.New(rand.NewPCG(seed, 0)),
		http:     &http.Client{Transport: &http.Transport{}, Timeout: 2 * patience},
		store:    openStore(t, options.base),
	}
	defer func() {
		if t.Failed() {
			t.Logf("USHER_MODEL_SEED=%d, after:\n%s", seed, strings.Join(w.recent, "\n"))
		}
	}()
	w.testDaemon = w.options.startReady(t, dir)
	for range steps {
		w.step()
		if t.Failed() {
			return
		}
	}
}

// step makes a request, or changes something and makes one.
func (w *walk) step() {
	if len(w.sessions) == 0 {
		w.begin()
	}
	s := pickOne(w, w.sessions)
	switch n := w.random.IntN(1000); {
	case n < 70:
		w.begin()
	case n < 460:
		w.list(s, w.presentation())
	case n < 630:
		w.call(s, w.presentation())
	case n < 780:
		alone := w.alone()
		alone.Session = s.Session // which counts for nothing
		if n%2 == 0 {
			w.list(alone, w.presentation())
		} else {
			w.call(alone, w.presentation())
		}
	case n < 850:
		w.foreign(s, w.presentation())
	case n < 900:
		w.end(s, w.presentation())
	case n < 920:
		w.openSSE(w.presentation())
	case n < 996:
		w.changeClaims()
		w.list(s, showing{})
	default:
		w.killDaemon()
		w.list(s, showing{})
	}
}

// pickOne chooses an element.
func pickOne[T any](w *walk, list []T) T { return list[w.random.IntN(len(list))] }

// showing is a code, "" for none, and how requests present it.
type showing struct {
	code string
	way  int
}

// presentation chooses a code and a way.
func (w *walk) presentation() showing {
	return showing{pickOne(w, append(modelCodes, "", "", "", "", malformed)), w.random.IntN(3)}
}

// in adds the code to a request.
func (p showing) in(req *http.Request) *http.Request {
	switch {
	case p.code == "":
	case p.way == 0:
		req.Header.Set(claimHeader, p.code)
	case p.way == 1:
		req.Header.Set("Authorization", "Bearer "+p.code)
	default:
		query := req.URL.Query()
		query.Set("claim", strings.ToLower(p.code))
		req.URL.RawQuery = query.Encode()
	}
	return req
}

// client returns a client without a session.
func (w *walk) client() *testClient { return clientOver(w.t, w.URL, w.http) }

// alone returns a client that never has a session.
func (w *walk) alone() *walkSession {
	return &walkSession{testClient: w.client(), modelSession: modelSession{stateless: true}}
}

// judge is the model's, for the sessions that the daemon has.
func (w *walk) judge(s *walkSession, p showing) (folder, refusal string) {
	if s.sse && s.began && s.events == nil {
		return "", "404"
	}
	return w.model.judge(&s.modelSession, p.code)
}

// ask makes a request, and waits for its answer.
func (w *walk) ask(s *walkSession, p showing, method, params string) answer {
	if s.stateless {
		return s.Do(p.in(s.ModernPOST("1", method, params)))
	}
	a := s.Do(p.in(s.Asking(method, params)))
	for a.Status == 202 {
		if msg := wantEvent(w.t, s.events).Msg(); field(msg, "id") != nil {
			a = answer{Status: 200, Events: []json.RawMessage{msg}}
		}
	}
	return a
}

// check compares what a request got with what it should.
func (w *walk) check(what string, s *walkSession, p showing, got, want string) {
	what = fmt.Sprintf("%s of session %d, presenting %q: %s", what,
		slices.Index(w.sessions, s), p.code, got)
	w.recent = append(w.recent[max(0, len(w.recent)-30):], what)
	if got != want {
		w.t.Errorf("%s; want %s", what, want)
	}
}

// list lists the tools.
func (w *walk) list(s *walkSession, p showing) {
	want := w.wantList(w.judge(s, p))
	w.check("a list", s, p, w.ask(s, p, "tools/list", "").ToolNames(), want)
}

// wantList returns what a list should contain, or the status of its refusal.
func (w *walk) wantList(folder, refusal string) string {
	switch refusal {
	case "":
		return toolsIn(folder)
	case claimEnded:
		return ""
	}
	return refusal
}

// call calls a tool.
func (w *walk) call(s *walkSession, p showing) {
	tool := pickOne(w, sortedKeys(modelTools))
	folder, want := w.judge(s, p)
	if want == "" && !strings.Contains(toolsIn(folder), tool) {
		want = notThere
	}
	a := w.ask(s, p, "tools/call", `{"name":"`+tool+`"}`)
	got, _, _ := strings.Cut(a.Failure(), ":")
	if strings.HasPrefix(got, notThere) {
		got = notThere
	} else if a.Status != 200 {
		got = fmt.Sprint(a.Status)
	}
	w.check("a call of "+tool, s, p, got, want)
}

// status returns the status of an answer, or "" for success.
func status(a answer) string {
	if a.Status < 300 {
		return ""
	}
	return fmt.Sprint(a.Status)
}

// begin begins a session.
func (w *walk) begin() {
	s, p := &walkSession{testClient: w.client()}, w.presentation()
	_, refusal := w.judge(s, p)
	a := s.Begin(initialize, func(r *http.Request) { p.in(r) })
	w.add("initialize", s, p, status(a), refusal)
}

// add adds a session, unless it was refused, and forgets another if there are many.
func (w *walk) add(what string, s *walkSession, p showing, got, want string) {
	w.check(what, s, p, got, want)
	if want != "" {
		return
	}
	if len(w.sessions) == 12 {
		i := w.random.IntN(12)
		w.sessions[i].close()
		w.sessions = slices.Delete(w.sessions, i, i+1)
	}
	s.began = true
	s.origin = s.claim
	w.sessions = append(w.sessions, s)
}

// close ends the stream of an HTTP+SSE session.
func (s *walkSession) close() {
	if s.events != nil {
		s.hangUp()
		s.events = nil
	}
}

// openSSE begins a session of HTTP+SSE.
func (w *walk) openSSE(p showing) {
	s := &walkSession{testClient: w.client(), modelSession: modelSession{sse: true}}
	_, refusal := w.model.judge(&s.modelSession, p.code)
	res, events, hangUp := mcptest.OpenStream(w.t, p.in(s.GetRequest()))
	s.events, s.hangUp = events, hangUp
	got := status(answer{Status: res.StatusCode})
	if got == "" {
		at, err := res.Request.URL.Parse(wantEvent(w.t, events).Data)
		must(w.t, err)
		s.URL = at.String()
	}
	w.add("a GET", s, p, got, refusal)
}

// foreign names a session of streamable HTTP in the URL, where it does not count.
func (w *walk) foreign(s *walkSession, p showing) {
	if s.sse {
		return
	}
	c := &walkSession{testClient: w.client()}
	c.URL += "?sessionId=" + s.Session
	req := c.Request(pickOne(w, []string{"POST", "DELETE"}),
		c.Message("tools/list", ""))
	w.check("a foreign address", s, p, status(c.Do(p.in(req))), "404")
	w.list(s, showing{})
}

// end ends a session.
func (w *walk) end(s *walkSession, p showing) {
	_, refusal := w.judge(s, p)
	if refusal == "" || refusal == claimEnded {
		s.deleted = true
		refusal = ""
	}
	w.check("DELETE", s, p, status(s.Do(p.in(s.Request("DELETE", "")))), refusal)
}

// changeClaims makes, ends or restores a claim, or makes the claims unreadable.
func (w *walk) changeClaims() {
	now := time.Now().UTC().Format(time.RFC3339Nano)
	claim := &modelClaim{pickOne(w, modelCodes[:4]), pickOne(w, modelFolders), now}
	expired := ""
	w.unreadable = false
	n := w.random.IntN(10)
	before := w.active[claim.code]
	if before != nil {
		w.ended = append(w.ended[max(0, len(w.ended)-5):], before)
		delete(w.active, claim.code)
	}
	switch {
	case n < 4 && before != nil:
		expired = w.claimRecord(before.code, before.folder, before.created, -time.Second)
	case n < 6 && len(w.ended) > 0:
		claim = pickOne(w, w.ended)
		w.active[claim.code] = claim
	case n < 9:
		w.active[claim.code] = claim
	default:
		w.unreadable = true
	}
	var records []string
	for _, c := range w.active {
		records = append(records,
			w.claimRecord(c.code, strings.TrimSuffix(c.folder, "/"), c.created, time.Hour))
	}
	if expired != "" {
		records = append(records, expired)
	}
	text := "[" + strings.Join(records, ",") + "]"
	if w.unreadable {
		text = text[1:]
	}
	must(w.t, w.store.token.do(w.t.Context(), func(string) error {
		w.putClaims(text)
		return nil
	}))
	w.recent = append(w.recent, "claims: "+text)
	if !w.unreadable {
		w.endStreams()
	}
}

// endStreams has the daemon notice which claims have ended, and waits for the end of the
// HTTP+SSE sessions that had them.
func (w *walk) endStreams() {
	for _, code := range modelCodes[:4] {
		w.list(w.alone(), showing{code: code})
	}
	for _, s := range w.sessions {
		if s.events != nil && s.claim != nil && w.active[s.claim.code] != s.claim {
			remainingEvents(w.t, s.events)
			s.events = nil
		}
	}
}

// killDaemon kills the daemon and starts it again, maybe with other flags.
func (w *walk) killDaemon() {
	killed := w.testDaemon
	killed.cmd.Process.Kill()
	w.require = !w.require
	w.restart(fmt.Sprint("-require-claim=", w.require))
	checkOmits(w.t, "the log", killed.Log.String(), modelCodes...)
	killed.Log = &output{} // the test keeps all daemons to its end
	for _, s := range w.sessions {
		s.close()
		s.claim = s.origin // what happened later was only in memory
		s.deleted = false
		s.URL = strings.Replace(s.URL, killed.URL, w.URL, 1)
	}
	w.recent = append(w.recent, fmt.Sprint("kill -9; claims are required: ", w.require))
}
