// Sessions: what clients are answered and told, for every transport and revision
// alike. A request reaches modules only through the View of its caller's scope,
// and whether the caller still has the access that it had is asked in one place.
// Here too is what is kept in memory of clients while they are connected: which
// lists they have seen, and which resources they want to hear of. Whether a session
// goes on, and which claim it has, is in scope.go. This file knows no HTTP, no
// registry and no process.

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Server answers MCP messages. Safe for concurrent use.
type Server struct {
	modules   ModuleSource
	gate      *Gate
	bodies    *bodyReader
	log       *slog.Logger
	started   time.Time
	suspended *suspendedCalls // calls that wait for their clients to come back
	stopping  context.Context // ends when the daemon begins to stop: streams end
	stopped   context.Context // ends when it stops waiting: calls are cancelled

	publicURL   string               // by which clients reach it; "" for the one that a request names
	webhookPath func(t *Item) string // at which a tool of a view takes webhooks; "" for nowhere

	sessions sessionTable
	replay   replayBuffer
	requests quota // being answered, by principal, in bytes
	streams  quota // notification streams that are open, by principal
}

// quota counts what principals have under way. The zero value is empty. Safe for
// concurrent use.
type quota struct{ used sync.Map } // *atomic.Int64 by principal

// take counts so much more for a principal until give is called, unless that is over
// the limit, and not all.
func (q *quota) take(principal string, more, limit int64) (give func(), ok bool) {
	used, known := q.used.Load(principal)
	if !known {
		used, _ = q.used.LoadOrStore(principal, new(atomic.Int64))
	}
	n := used.(*atomic.Int64)
	give = func() { n.Add(-more) }
	if total := n.Add(more); total > limit && total > more {
		give()
		return nil, false
	}
	return give, true
}

// client is where a request comes from, and where its answer goes.
type client struct {
	session  *Session
	out      *outbox
	admitted time.Time       // when its request was, zero where it has one connection for all
	streams  context.Context // ends when streams to the client have to
	leaves   context.Context // ends when the client has gone for good, and its requests with it; nil where it may come back
	// check judges what the transport says of a request beside its message; nil
	// where that is nothing.
	check func(r *request) error
}

// request is one request being answered: what the methods of the table get.
type request struct {
	client
	server *Server
	give   func() // ends its count among the principal's requests
	calls  *inflight[context.CancelCauseFunc]
	caller Caller // zero for a list, which asks nobody
	id     ID
	method string
	params json.RawMessage      // an object, or nil
	item   atomic.Pointer[Item] // that it was last about

	ctx    context.Context // ends with the request
	cancel context.CancelCauseFunc
}

// send sends a message that belongs to the request: before its answer, or once
// that is written, on the session's stream, while the client still has the access
// that it had.
func (r *request) send(msg []byte) bool {
	return r.out.send(msg) || r.caller.authorized() && r.session.notify(msg)
}

// scope is what a session may reach now.
func (s *Server) scope(session *Session, admitted time.Time) (Scope, error) {
	return s.gate.Scope(s.gate.Current(session.sessionToken), admitted)
}

// authorized tells whether a session still has the access of the principal that it
// was from: it is asked at every later use, for notifications, requests to the
// client, and streams that are resumed.
func (s *Server) authorized(session *Session, was Principal) func() bool {
	return func() bool {
		_, err := s.gate.Scope(was, time.Time{})
		return err == nil && was == s.gate.Current(session.sessionToken)
	}
}

// view is the modules that the request may reach, now. It is asked for each time
// something is done, and not kept: a claim may end at any instant. With an error,
// which is fit for the client, the view is empty.
func (r *request) view() (*View, error) {
	scope, err := r.server.scope(r.session, r.admitted)
	if err != nil {
		err = rpcErrorf(codeRefused, "%v", err)
	}
	return r.server.modules.View(scope), err
}

// listView is view for lists, which wait for modules that are being introspected.
// Those of a claim that has ended are empty.
func (r *request) listView(ctx context.Context) *View {
	r.waitReady(ctx)
	view, _ := r.view()
	return view
}

// waitReady waits for modules in the caller's scope that are being introspected.
func (r *request) waitReady(ctx context.Context) {
	if r.server.starting() {
		scope, _ := r.server.scope(r.session, r.admitted) // which reaches nothing with an error
		r.server.modules.WaitReady(ctx, scope)
	}
}

// starting reports whether clients wait for modules: later on no request need ask.
func (s *Server) starting() bool { return time.Since(s.started) < startupTime }

// callerOf is the caller of requests of a session that is from a principal. What is
// sent to the client goes out by send, which reports whether it may arrive.
func (s *Server) callerOf(session *Session, p Principal, send func([]byte) bool) Caller {
	c := Caller{Session: session.ID, Affinity: session.affinity, Principal: p.Key(), Stateless: session.stateless, Caps: session.profile.Load().caps}
	c.Level = func() string { return session.profile.Load().level }
	c.Authorized = s.authorized(session, p)
	c.Notify = func(method string, params json.RawMessage) {
		// A client that has not said which log messages it wants gets all; without
		// sessions, none (MCP 2026-07-28, server/utilities/logging).
		least, severity := c.Level(), slices.Index(logLevels, stringField(params, "level"))
		if method == "notifications/message" && (least == "" && session.stateless || severity >= 0 && severity < slices.Index(logLevels, least)) {
			return
		}
		send(encodeRequest(nil, method, params))
	}
	if !session.stateless {
		c.Ask = func(ctx context.Context, method string, params json.RawMessage) (json.RawMessage, error) {
			return session.asked.ask(ctx, send, method, params)
		}
	}
	return c
}

// run runs the method of a request, and gives result or error the form of the
// caller's revision.
func (r *request) run(ctx context.Context) (json.RawMessage, error) {
	if err := checkMethod(r.method, r.session.stateless); err != nil {
		return nil, err
	}
	if mcpMethods[r.method].named != "" && r.server.starting() {
		if _, err := r.find(); err != nil {
			r.waitReady(ctx) // it may be of a module that is being introspected
		}
	}
	if !r.session.stateless {
		return r.perform(ctx)
	}
	if r.check != nil {
		if err := r.check(r); err != nil {
			return nil, err
		}
	}
	r.useOwnProgress()
	result, err := r.perform(ctx)
	if err != nil {
		return nil, statelessError(err)
	}
	return statelessResult(r.method, result), nil
}

// perform does what the method is for.
func (r *request) perform(ctx context.Context) (json.RawMessage, error) {
	if list := mcpMethods[r.method].list; list != "" {
		view := r.listView(ctx)
		r.session.listed(list, view)
		return view.ListJSON(list), nil
	}
	defer time.AfterFunc(keepAlive, func() { r.out.send(nil) }).Stop() // a silent connection is taken for a dead one
	switch r.method {
	case "initialize":
		return r.initialize(ctx)
	case "ping":
		return noResult, nil
	case "logging/setLevel":
		return r.setLevel()
	case "server/discover":
		return append(object{{"supportedVersions", marshal(spoken())}}, r.about(ctx)...).json(), nil
	case "tools/call":
		return r.callTool(ctx)
	case "resources/subscribe":
		return r.subscribe(ctx)
	case "resources/unsubscribe":
		r.session.unsubscribe(stringField(r.params, "uri"))
		return noResult, nil
	case listenMethod:
		return r.listen(ctx)
	default:
		return r.call(ctx)
	}
}

// useOwnProgress has progress come under the token of this request, and only if it
// has one: the call that it goes on with may have begun under another.
func (r *request) useOwnProgress() {
	token, notify := field(field(r.params, "_meta"), "progressToken"), r.caller.Notify
	r.params = withMeta(r.params, "progressToken", json.RawMessage("0"))
	r.caller.Notify = func(method string, params json.RawMessage) {
		if method == "notifications/progress" {
			if token == nil || string(token) == "null" {
				return
			}
			params = withMember(params, "progressToken", token)
		}
		notify(method, params)
	}
}

// noResult is the result of a method that only does something.
var noResult = json.RawMessage(`{}`)

func (r *request) setLevel() (json.RawMessage, error) {
	level := stringField(r.params, "level")
	if !slices.Contains(logLevels, level) {
		return nil, rpcErrorf(codeInvalidParams, "level %q: want one of %s", clipText(level, 50), strings.Join(logLevels, ", "))
	}
	profile := *r.session.profile.Load()
	profile.level = level
	r.session.profile.Store(&profile)
	return noResult, nil
}

// initialize answers a session's first request.
func (r *request) initialize(ctx context.Context) (json.RawMessage, error) {
	protocol, caps, err := parseInitialize(r.params)
	if err != nil {
		return nil, err
	}
	r.session.profile.Store(&clientProfile{protocol: protocol, caps: caps})
	return append(object{{"protocolVersion", quote(protocol)}, {"serverInfo", usherInfo()}}, r.about(ctx)...).json(), nil
}

// about is what all clients are told of usher.
func (r *request) about(ctx context.Context) object {
	return object{{"capabilities", serverCapabilities}, {"instructions", quote(instructions(r.listView(ctx)))}}
}

// serverCapabilities is what usher can do for a client, whatever is hosted just
// now: modules come and go.
var serverCapabilities = json.RawMessage(`{"completions":{},"logging":{},"prompts":{"listChanged":true},"resources":{"listChanged":true,"subscribe":true},"tools":{"listChanged":true}}`)

// instructions tells a model what the modules in its view are, a line each.
func instructions(view *View) string {
	lines := []string{"Tools are named MODULE_METHOD. The modules:"}
	for i, m := range view.Modules {
		if i == maxInstructions {
			lines = append(lines, fmt.Sprintf("and %d more.", len(view.Modules)-i))
			break
		}
		lines = append(lines, "- "+m.Label+": "+m.About)
	}
	return strings.Join(lines, "\n")
}

// find finds what the request is about in the view that its caller has now. There
// is one error for what does not exist and for what is out of scope.
func (r *request) find() (*Item, error) {
	view, err := r.view()
	if err != nil {
		return nil, err
	}
	list, _, _ := strings.Cut(r.method, "/")
	about, key := r.params, "name"
	if list == "completion" {
		about = field(r.params, "ref")
		kind := stringField(about, "type")
		list = map[string]string{"ref/prompt": "prompts", "ref/resource": "resources"}[kind]
		if list == "" {
			return nil, rpcErrorf(codeInvalidParams, "ref.type %q: want ref/prompt or ref/resource", clipText(kind, 50))
		}
	}
	if list == "resources" {
		key = "uri"
	}
	name := stringField(about, key)
	item := view.Lookup(list, name)
	if item != nil {
		return item, nil
	}
	e := rpcErrorf(codeInvalidParams, "unknown %s %q", strings.TrimSuffix(list, "s"), clipText(name, 200))
	if names := view.Alternatives(name); list == "tools" && len(names) > 0 {
		e.Message += ": several modules have it, as " + strings.Join(names, ", ")
	}
	if list == "resources" {
		e.Code, e.Data = codeNoResource, object{{"uri", quote(name)}}.json()
	}
	return nil, e
}

// call makes the request to the module that it is for, in the scope that the
// caller has when the call begins.
func (r *request) call(ctx context.Context) (json.RawMessage, error) {
	if !r.caller.Stateless || r.method == "completion/complete" {
		return r.attempt(ctx, r.caller)
	}
	item, err := r.find()
	if err != nil {
		return nil, err
	}
	if item.Stateless() {
		return r.attempt(ctx, r.caller)
	}
	return r.server.suspended.do(ctx, r.caller, r.method, r.params, r.attempt) // such a module may ask meanwhile
}

// attempt makes the request on behalf of caller.
func (r *request) attempt(ctx context.Context, caller Caller) (result json.RawMessage, err error) {
	defer catch(r.server.log, &err) // it may be in a goroutine of its own
	result, err = r.server.modules.Call(ctx, func() (json.RawMessage, error) {
		item, err := r.find()
		if err != nil {
			return nil, err
		}
		r.item.Store(item)
		return item.Call(ctx, caller, r.method, r.params)
	})
	if err != nil && ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return result, err
}

func (r *request) callTool(ctx context.Context) (json.RawMessage, error) {
	if arguments := field(r.params, "arguments"); arguments != nil {
		list, ok := members(arguments)
		if !ok {
			return nil, rpcErrorf(codeInvalidParams, "arguments must be an object")
		}
		if kept := withoutWebhook(list); len(kept) < len(list) {
			r.params = withMember(r.params, "arguments", object(kept).json())
		}
	}
	start := time.Now()
	result, err := r.call(ctx)
	if err != nil && ctx.Err() == nil && !errors.As(err, new(*rpcError)) { // what a module itself answered stays as it is
		result, err = failure(err.Error()), nil // so that a model can correct itself
	}
	args := []any{"outcome", "done", "session", clipText(r.session.ID, 8), "took", time.Since(start).Round(10 * time.Microsecond), "bytes", len(result)}
	switch {
	case err != nil:
		args[1] = clipText(err.Error(), 300)
	case string(field(result, "isError")) == "true":
		args[1] = "failed"
	}
	if item := r.item.Load(); item != nil {
		args = append(args, "module", item.Label, "method", item.ownName)
	} else {
		args = append(args, "tool", clipText(stringField(r.params, "name"), 100))
	}
	gate := r.server.gate
	r.server.log.Info("call", append(args, gate.Name(gate.Current(r.session.sessionToken))...)...)
	return result, err
}

// subscribe has the session hear of changes of a resource. The error is the
// module's, if it has no such thing. Without a stream, the module is asked once
// there is one.
func (r *request) subscribe(ctx context.Context) (json.RawMessage, error) {
	uri, session := stringField(r.params, "uri"), r.session
	return r.server.modules.Call(ctx, func() (json.RawMessage, error) {
		session.subscribing.Lock()
		defer session.subscribing.Unlock()
		item, err := r.find()
		if err != nil {
			return nil, err
		}
		if _, known := session.subscriptions[uri]; !known && tooMany(slices.Collect(maps.Keys(session.subscriptions)), uri) {
			return nil, errManyWanted
		}
		if !session.connected() {
			session.subscriptions[uri] = interest{}
			return noResult, nil
		}
		if err = r.server.keepSubscription(ctx, session, item, uri); err != nil {
			delete(session.subscriptions, uri)
		}
		return noResult, err
	})
}

// listen tells the client what changes, before the answer, until its streams have
// to end, or its claim does.
func (r *request) listen(ctx context.Context) (json.RawMessage, error) {
	if !isObject(field(r.params, "notifications")) {
		return nil, rpcErrorf(codeInvalidParams, `subscriptions/listen needs an object "notifications"`)
	}
	view := r.listView(ctx) // a resource that is not there yet would be left out for good
	honoured, err := r.session.readFilter(view, field(r.params, "notifications"))
	if err != nil {
		return nil, err
	}
	r.session.subscription = json.RawMessage(r.id)
	r.session.join(r.out)
	defer r.session.leave(r.out)
	r.session.tell("notifications/subscriptions/acknowledged", object{{"notifications", honoured.json()}}.json())
	var subscribing sync.WaitGroup
	defer subscribing.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // a module that hangs does not hold up the end
	defer context.AfterFunc(r.streams, cancel)()
	for ctx.Err() == nil {
		changed, err := r.server.announce(ctx, r.session, r.out, &subscribing)
		if errors.Is(err, errEnded) {
			break // there is nothing more to tell, and no request that could present another claim
		}
		select {
		case <-ctx.Done():
		case <-time.After(lookInterval):
		case <-changed:
			pauseFor(ctx, coalesce) // more is likely to follow
		}
	}
	if err := context.Cause(ctx); err != nil && r.streams.Err() == nil {
		return nil, err
	}
	return object{{"_meta", object{{metaSubscription, r.session.subscription}}.json()}}.json(), nil
}

// readFilter takes in what a client wants to be told of: lists, which it is taken
// to have as they are in view, and resources. honoured is what of its filter
// counts.
func (s *Session) readFilter(view *View, filter json.RawMessage) (honoured object, err error) {
	for _, list := range announcedLists {
		key := list + "ListChanged"
		if value := field(filter, key); string(value) == "true" {
			s.listed(list, view)
			honoured = append(honoured, member{key, value})
		}
	}
	const key = "resourceSubscriptions"
	var uris []string
	if value := field(filter, key); value != nil && json.Unmarshal(value, &uris) != nil {
		return nil, rpcErrorf(codeInvalidParams, "resourceSubscriptions must be a list of strings")
	}
	uris = slices.DeleteFunc(uris, func(uri string) bool { return view.Lookup("resources", uri) == nil })
	if tooMany(uris) {
		return nil, errManyWanted
	}
	for _, uri := range uris { // nobody else knows the session yet
		s.subscriptions[uri] = interest{}
	}
	if len(uris) > 0 {
		honoured = append(honoured, member{key, marshal(uris)})
	}
	return honoured, nil
}

// takeOther acts on what a client sends that is no request.
func (s *Session) takeOther(msg *Message) {
	switch {
	case !msg.isNotification():
		s.asked.answer(msg)
	case msg.Method == "notifications/cancelled": // of the others usher needs none
		if cancel, ok := s.calls.take(string(field(msg.Params, "requestId"))); ok {
			cancel(errCancelled)
		}
	}
}

// errCancelled is why a request ended that its client cancelled. No answer is
// sent to it (MCP, basic/utilities/cancellation).
var errCancelled = errors.New("cancelled by the client")

// errStopping is why requests end when the daemon does.
var errStopping = rpcErrorf(codeRefused, "usher is shutting down")

// Session is one client's session. There is one value for a session while
// something of it is under way. A request of a client without sessions has one of
// its own, which ends with it.
type Session struct {
	*sessionToken
	lastUse      time.Time                         // of its table, which guards it, and principal
	principal    string                            // whose it counts as
	stateless    bool                              // it stands for one request of a client without sessions
	affinity     string                            // whose process of a hosted server serves it
	subscription json.RawMessage                   // id of the subscriptions/listen that it stands for
	calls        inflight[context.CancelCauseFunc] // requests being answered, by id
	asked        pendingRequests                   // requests to the client, by our id
	profile      atomic.Pointer[clientProfile]     // replaced as a whole
	take         atomic.Pointer[func([]byte) bool] // takes the messages of an HTTP+SSE session; false once its stream has ended

	mu       sync.Mutex
	streams  []*outbox         // open notification streams, oldest first
	lastSeen map[string]string // fingerprints of the lists that the client knows, of announcedLists
	ended    bool

	subscribing   sync.Mutex
	subscriptions map[string]interest // resources whose changes it wants to hear of, by URI
}

// newSession is a session with nothing under way.
func newSession(t *sessionToken) *Session {
	s := &Session{sessionToken: t, affinity: t.ID, lastSeen: make(map[string]string), subscriptions: make(map[string]interest)}
	s.profile.Store(&clientProfile{protocol: t.Protocol, caps: t.Caps})
	return s
}

// clientProfile is what the client of a session says of itself.
type clientProfile struct {
	protocol string // as negotiated
	caps     clientCaps
	level    string // least severity of log messages that it wants; "" where it has not said
}

// join adds a notification stream, unless there are too many or the session has
// ended.
func (s *Session) join(out *outbox) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.streams) >= maxStreams || s.ended {
		return false
	}
	s.streams = append(s.streams, out)
	return true
}

// leave takes a stream off. With the last one, no module is listened to any more.
func (s *Session) leave(out *outbox) {
	s.mu.Lock()
	s.streams = slices.DeleteFunc(s.streams, func(other *outbox) bool { return other == out })
	silent := len(s.streams) == 0
	s.mu.Unlock()
	if !silent {
		return
	}
	s.subscribing.Lock()
	defer s.subscribing.Unlock()
	for uri := range s.subscriptions {
		s.pauseLocked(uri)
	}
}

// primary is the stream that messages go out on; nil for none. A message goes out
// on one only (MCP, basic/transports, "Multiple Connections"), and the newest is
// the likeliest to be heard.
func (s *Session) primary() *outbox {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.streams) == 0 {
		return nil
	}
	return s.streams[len(s.streams)-1]
}

// notify sends a message on the session's stream, if there is one.
func (s *Session) notify(msg []byte) bool {
	out := s.primary()
	return out != nil && out.send(msg)
}

// tell is notify for a notification that the client listens for.
func (s *Session) tell(method string, params json.RawMessage) {
	if s.subscription != nil {
		params = withMeta(params, metaSubscription, s.subscription)
	}
	s.notify(encodeRequest(nil, method, params))
}

// connected reports whether the session has a notification stream open.
func (s *Session) connected() bool { return s.primary() != nil }

// sessionTable is the sessions that something is under way for, or was lately.
// Where a principal has too many, idle ones are forgotten: their log levels and
// subscriptions are lost, and which lists they have seen. The zero value is empty.
// Safe for concurrent use.
type sessionTable struct {
	mu   sync.Mutex
	live map[string]*Session // by the token's ID
}

// sessionGrace is how long a session is not idle after its last request began.
const sessionGrace = 10 * time.Second

// open returns the session of a token.
func (t *sessionTable) open(token *sessionToken, principal string) *Session {
	t.mu.Lock()
	defer t.mu.Unlock()
	session := t.live[token.ID]
	if session == nil {
		count := 1
		maps.DeleteFunc(t.live, func(_ string, s *Session) bool {
			if s.principal == principal {
				count++
			}
			return s.principal == principal && count > maxSessionsOf && time.Since(s.lastUse) > sessionGrace && s.calls.len() == 0 && !s.connected()
		})
		session = newSession(token)
		if t.live == nil {
			t.live = make(map[string]*Session)
		}
		t.live[token.ID] = session
	}
	session.lastUse, session.principal = time.Now(), principal
	return session
}

// end takes a session away that has ended, and cancels what is under way in it.
func (t *sessionTable) end(token *sessionToken) {
	t.mu.Lock()
	session := t.live[token.ID]
	delete(t.live, token.ID)
	t.mu.Unlock()
	if session == nil {
		return
	}
	session.mu.Lock()
	session.ended = true
	streams := slices.Clone(session.streams) // which leave as they end
	session.mu.Unlock()
	for _, out := range streams {
		out.end()
	}
	for _, cancel := range session.calls.close(errNoSession) {
		cancel(errNoSession)
	}
	session.asked.fail()
}

// announce tells a session on one of its streams which lists in its view have
// changed, and keeps its subscriptions, within ctx: subscribing has that to wait
// for. It is to be called again when changed is closed, and from time to time. The
// error is that of the session's scope.
func (s *Server) announce(ctx context.Context, session *Session, out *outbox, subscribing *sync.WaitGroup) (changed <-chan struct{}, err error) {
	changed = s.modules.Changed()
	scope, err := s.scope(session, time.Time{})
	if err != nil && !errors.Is(err, errEnded) || session.primary() != out {
		return changed, err // nothing is known to have changed, or it is told elsewhere
	}
	view := s.modules.View(scope)
	for _, list := range session.changedLists(view, s.started) {
		session.tell("notifications/"+list+"/list_changed", nil)
	}
	if session.subscribing.TryLock() { // or it is being done, maybe by a module that hangs
		subscribing.Go(func() {
			defer session.subscribing.Unlock()
			defer catch(s.log, new(error))
			for uri := range session.subscriptions {
				scope, _ := s.scope(session, time.Time{}) // now: the claim may have ended meanwhile
				if err := s.keepSubscription(ctx, session, s.modules.View(scope).Lookup("resources", uri), uri); err != nil {
					s.log.Debug("a subscription to a resource failed", "why", err) // tried again at the next change
				}
			}
		})
	}
	return changed, err
}

// listed notes which list the client was given. One with a stream open is told of
// each change there, whether or not it has asked meanwhile.
func (s *Session) listed(what string, view *View) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if slices.Contains(announcedLists, what) && (len(s.streams) == 0 || s.lastSeen[what] == "") {
		s.lastSeen[what] = view.Fingerprint(what)
	}
}

// changedLists returns the lists that have changed since the client last saw them,
// and marks them as seen. A client that has not asked for a list yet is not told of
// it; but nobody knows what one has seen that is older than the daemon: it gets
// every list once.
func (s *Session) changedLists(view *View, started time.Time) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var changed []string
	for _, list := range announcedLists {
		before, now := s.lastSeen[list], view.Fingerprint(list)
		if before != now && (before != "" || s.Issued.Before(started)) {
			changed = append(changed, list)
			s.lastSeen[list] = now
		}
	}
	return changed
}

// interest is how a session hears of the changes of a resource that it has
// subscribed to. The zero value is that it does not just now.
type interest struct {
	of *Item // as the module is listened to
	at *subscription
}

// subscribeTimeout is how long a module may take to answer that it tells of a
// resource's changes.
const subscribeTimeout = 10 * time.Second

var errManyWanted = rpcErrorf(codeInvalidParams, "too many resources are subscribed to (%d at most, with URIs of %s in all): unsubscribe from some", maxWanted, formatSize(maxWantedBytes))

// tooMany reports whether one session may not subscribe to all of these.
func tooMany(uris []string, more ...string) bool {
	uris = append(uris, more...)
	return len(uris) > maxWanted || len(strings.Join(uris, "")) > maxWantedBytes
}

// unsubscribe undoes subscribe. Unknown URIs are ignored.
func (s *Session) unsubscribe(uri string) {
	s.subscribing.Lock()
	defer s.subscribing.Unlock()
	s.pauseLocked(uri)
	delete(s.subscriptions, uri)
}

// pauseLocked has no module listened to for a resource, until that is wanted again.
func (s *Session) pauseLocked(uri string) {
	if at := s.subscriptions[uri].at; at != nil {
		at.release()
	}
	s.subscriptions[uri] = interest{}
}

// keepSubscription has the module whose resource it is in the session's view by
// now, and no other, tell of its changes; now is nil where it is nobody's. The
// session's subscribing is held.
func (s *Server) keepSubscription(ctx context.Context, session *Session, now *Item, uri string) error {
	if in := session.subscriptions[uri]; in.of.Same(now) && in.at.alive() {
		return nil
	}
	session.pauseLocked(uri)
	if now == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, subscribeTimeout)
	defer cancel()
	at, err := now.Subscribe(ctx, s.callerOf(session, s.gate.Current(session.sessionToken), session.notify), uri, func(params json.RawMessage) {
		scope, err := s.scope(session, time.Time{})
		if err == nil && s.modules.View(scope).Lookup("resources", uri).Same(now) {
			session.tell("notifications/resources/updated", stripCallID(params))
		}
	})
	if err == nil {
		session.subscriptions[uri] = interest{now, at}
	}
	return err
}
