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

	sessions sessionTable
	replay   replayBuffer
	requests quota // being answered, by principal
	streams  quota // notification streams that are open, by principal
}

// quota counts what principals have under way. The zero value is empty. Safe for
// concurrent use.
type quota struct{ used sync.Map } // *atomic.Int64 by principal

// take counts one more for a principal until give is called, if that is not over
// the limit.
func (q *quota) take(principal string, limit int64) (give func(), ok bool) {
	used, _ := q.used.LoadOrStore(principal, new(atomic.Int64))
	n := used.(*atomic.Int64)
	give = func() { n.Add(-1) }
	if n.Add(1) > limit {
		give()
		return nil, false
	}
	return give, true
}

// client is where a request comes from, and where its answer goes.
type client struct {
	session *Session
	out     *outbox
	streams context.Context // ends when streams to the client have to
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
	caller Caller
	id     ID
	method string
	params json.RawMessage // an object, or nil

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
func (s *Server) scope(session *Session) (Scope, error) {
	return s.gate.Scope(s.gate.Current(session.sessionToken))
}

// authorized is the principal that a session is from now, and what tells whether
// the session still has the access of that principal: it is asked at every later
// use, for notifications, requests to the client, and streams that are resumed.
func (s *Server) authorized(session *Session) (principal string, still func() bool) {
	was := s.gate.Current(session.sessionToken)
	return was.Key(), func() bool {
		_, err := s.gate.Scope(was)
		return err == nil && was == s.gate.Current(session.sessionToken)
	}
}

// view is the modules that the request may reach, now. It is asked for each time
// something is done, and not kept: a claim may end at any instant. With an error,
// which is fit for the client, the view is empty.
func (r *request) view() (*View, error) {
	scope, err := r.server.scope(r.session)
	return r.server.modules.View(scope), err
}

// openView is view for requests that call something: a claim that has ended
// refuses them.
func (r *request) openView() (*View, error) {
	view, err := r.view()
	if err != nil {
		return nil, rpcErrorf(codeRefused, "%v", err)
	}
	return view, nil
}

// listView is view for lists: those of a claim that has ended are empty.
func (r *request) listView(ctx context.Context) (*View, error) {
	r.waitReady(ctx)
	view, err := r.view()
	if errors.Is(err, errEnded) {
		err = nil
	}
	return view, err
}

// callerOf is the caller of a session's requests. What is sent to the client goes
// out by send, which reports whether it may arrive.
func (s *Server) callerOf(session *Session, send func([]byte) bool) Caller {
	c := Caller{Session: session.ID, Affinity: session.affinity, Stateless: session.stateless, Caps: session.client().caps}
	c.Level = func() string { return session.client().level }
	c.Principal, c.Authorized = s.authorized(session)
	c.Notify = func(method string, params json.RawMessage) {
		// A client that has not said which log messages it wants gets all; without
		// sessions, none (MCP 2026-07-28, server/utilities/logging).
		least, severity := c.Level(), slices.Index(logLevels, stringField(params, "level"))
		if method == "notifications/message" && (least == "" && session.stateless || severity >= 0 && severity < slices.Index(logLevels, least)) {
			return
		}
		send(encodeNotification(method, params))
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
	if mcpMethods[r.method].named != "" { // what is not there may be of a module that is being introspected
		if view, err := r.view(); err == nil {
			if _, err := r.route(view); err != nil {
				r.waitReady(ctx)
			}
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
		return r.list(ctx, list)
	}
	switch r.method {
	case "initialize":
		return r.initialize(ctx)
	case "ping":
		return noResult, nil
	case "logging/setLevel":
		return r.setLevel()
	case "server/discover":
		return r.discover(ctx)
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
	r.session.setClient(func(p *clientProfile) { p.level = level })
	return noResult, nil
}

// initialize answers a session's first request.
func (r *request) initialize(ctx context.Context) (json.RawMessage, error) {
	protocol, caps, err := parseInitialize(r.params)
	if err != nil {
		return nil, err
	}
	r.session.setClient(func(p *clientProfile) { p.protocol, p.caps = protocol, caps })
	about, _ := r.about(ctx)
	return append(object{{"protocolVersion", quote(protocol)}, {"serverInfo", usherInfo()}}, about...).json(), nil
}

// discover says what there is, to a client without a session.
func (r *request) discover(ctx context.Context) (json.RawMessage, error) {
	about, err := r.about(ctx)
	return append(object{{"supportedVersions", marshal(spoken())}}, about...).json(), err
}

// about is what all clients are told of usher; of no modules, with an error.
func (r *request) about(ctx context.Context) (object, error) {
	view, err := r.listView(ctx)
	return object{{"capabilities", serverCapabilities}, {"instructions", quote(instructions(view))}}, err
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

// list answers a request for a list of what, all on one page.
func (r *request) list(ctx context.Context, what string) (json.RawMessage, error) {
	view, err := r.listView(ctx)
	if err != nil {
		return nil, err
	}
	r.session.listed(what, view)
	return view.ListJSON(what), nil
}

// route is where a request goes: to something of a module of the caller's view.
type route struct {
	stateless bool // the module speaks the revision without sessions
	ask       func(ctx context.Context, caller Caller) (json.RawMessage, error)
}

// route finds what the request is about in a view.
func (r *request) route(view *View) (route, error) {
	switch r.method {
	case "tools/call":
		return r.routeTool(view, stringField(r.params, "name"))
	case "prompts/get":
		return r.routePrompt(view, stringField(r.params, "name"), (*Prompt).Get)
	case "resources/read":
		return r.routeResource(view, stringField(r.params, "uri"))
	}
	ref := field(r.params, "ref") // of completion/complete
	switch kind := stringField(ref, "type"); kind {
	case "ref/prompt":
		return r.routePrompt(view, stringField(ref, "name"), (*Prompt).Complete)
	case "ref/resource":
		return r.routeResource(view, stringField(ref, "uri"))
	default:
		return route{}, rpcErrorf(codeInvalidParams, "ref.type %q: want ref/prompt or ref/resource", clipText(kind, 50))
	}
}

// routeTool gives the one error for a tool that does not exist and for one that
// is out of scope.
func (r *request) routeTool(view *View, name string) (route, error) {
	tool := view.Lookup(name)
	if tool == nil {
		text := fmt.Sprintf("unknown tool %q", clipText(name, 200))
		if names := view.Alternatives(name); len(names) > 0 {
			text += ": several modules have it, as " + strings.Join(names, ", ")
		}
		return route{}, rpcErrorf(codeInvalidParams, "%s", text)
	}
	return route{tool.Stateless(), func(ctx context.Context, caller Caller) (json.RawMessage, error) {
		params := r.params
		if tool.Checked() {
			arguments, err := tool.Method.checkArguments(field(params, "arguments"))
			if err != nil {
				return failure(err.Error()), nil // so that a model can correct itself
			}
			params = withMember(params, "arguments", arguments)
		}
		return tool.Call(ctx, caller, params)
	}}, nil
}

func (r *request) routePrompt(view *View, name string, ask func(*Prompt, context.Context, Caller, json.RawMessage) (json.RawMessage, error)) (route, error) {
	prompt := view.Prompt(name)
	if prompt == nil {
		return route{}, rpcErrorf(codeInvalidParams, "unknown prompt %q", clipText(name, 200))
	}
	return route{prompt.Stateless(), func(ctx context.Context, caller Caller) (json.RawMessage, error) {
		return ask(prompt, ctx, caller, r.params)
	}}, nil
}

func (r *request) routeResource(view *View, uri string) (route, error) {
	resource := view.Resource(uri)
	if resource == nil {
		e := rpcErrorf(codeNoResource, "unknown resource %q", clipText(uri, 200))
		e.Data = object{{"uri", quote(uri)}}.json()
		return route{}, e
	}
	return route{resource.Stateless(), func(ctx context.Context, caller Caller) (json.RawMessage, error) {
		return resource.Ask(ctx, caller, r.method, r.params)
	}}, nil
}

// call makes the request to the module that it is for, in the scope that the
// caller has when the call begins.
func (r *request) call(ctx context.Context) (json.RawMessage, error) {
	view, err := r.openView()
	if err != nil {
		return nil, err
	}
	to, err := r.route(view)
	if err != nil || to.stateless || !r.caller.Stateless || r.method == "completion/complete" {
		return r.attempt(ctx, r.caller)
	}
	return r.server.suspended.do(ctx, r.caller, r.method, r.params, r.attempt) // such a module may ask meanwhile
}

// attempt makes the request on behalf of caller.
func (r *request) attempt(ctx context.Context, caller Caller) (json.RawMessage, error) {
	result, err := r.server.modules.Call(ctx, func() (json.RawMessage, error) {
		view, err := r.openView()
		if err != nil {
			return nil, err
		}
		to, err := r.route(view)
		if err != nil {
			return nil, err
		}
		return to.ask(ctx, caller)
	})
	if err != nil && ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return result, err
}

// waitReady waits for modules in the caller's scope that are being introspected.
func (r *request) waitReady(ctx context.Context) {
	scope, _ := r.server.scope(r.session) // which reaches nothing with an error
	r.server.modules.WaitReady(ctx, scope)
}

func (r *request) callTool(ctx context.Context) (json.RawMessage, error) {
	name, ok := unquote(field(r.params, "name"))
	if !ok {
		return nil, rpcErrorf(codeInvalidParams, "tools/call needs a string \"name\"")
	}
	if arguments := field(r.params, "arguments"); arguments != nil {
		list, ok := members(arguments)
		if !ok {
			return nil, rpcErrorf(codeInvalidParams, "arguments must be an object")
		}
		r.params = withMember(r.params, "arguments", object(withoutWebhook(list)).json())
	}
	start := time.Now()
	result, err := r.call(ctx)
	if err != nil && ctx.Err() == nil && !errors.As(err, new(*rpcError)) { // what a module itself answered stays as it is
		result, err = failure(err.Error()), nil // so that a model can correct itself
	}
	args := []any{"tool", clipText(name, 100), "session", clipText(r.session.ID, 8), "claim", r.server.gate.Name(r.server.gate.Current(r.session.sessionToken)),
		"took", time.Since(start).Round(10 * time.Microsecond), "bytes", len(result)}
	switch {
	case err != nil:
		args = append(args, "error", clipText(err.Error(), 300))
	case string(field(result, "isError")) == "true":
		args = append(args, "failed", true)
	}
	r.server.log.Info("call", args...)
	return result, err
}

// subscribe has the session hear of changes of a resource. The error is the
// module's, if it has no such thing. Without a stream, the module is asked once
// there is one.
func (r *request) subscribe(ctx context.Context) (json.RawMessage, error) {
	r.waitReady(ctx)
	uri, session := stringField(r.params, "uri"), r.session
	return r.server.modules.Call(ctx, func() (json.RawMessage, error) {
		session.subscribing.Lock()
		defer session.subscribing.Unlock()
		view, err := r.openView()
		if err != nil {
			return nil, err
		}
		if _, err := r.routeResource(view, uri); err != nil {
			return nil, err
		}
		if err := session.wantLocked(uri); err != nil || !session.connected() {
			return noResult, err
		}
		if err = r.server.keepSubscription(ctx, session, view, uri); err != nil {
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
	view, err := r.listView(ctx) // a resource that is not there yet would be left out for good
	if err != nil {
		return nil, rpcErrorf(codeRefused, "%v", err)
	}
	honoured, err := r.session.readFilter(view, field(r.params, "notifications"))
	if err != nil {
		return nil, err
	}
	r.session.subscription = json.RawMessage(r.id)
	r.session.join(r.out)
	defer r.session.leave(r.out)
	r.session.tell("notifications/subscriptions/acknowledged", object{{"notifications", honoured.json()}}.json())
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(r.streams, cancel)()
	r.server.announce(ctx, r.session, r.out)
	if err := context.Cause(ctx); err != nil && r.streams.Err() == nil {
		return nil, err
	}
	return object{{"_meta", object{{metaSubscription, r.session.subscription}}.json()}}.json(), nil
}

// readFilter takes in what a client wants to be told of: lists, which it is taken
// to have as they are in view, and resources. honoured is what of its filter
// counts.
func (s *Session) readFilter(view *View, filter json.RawMessage) (honoured object, err error) {
	for key, value := range fields(filter) {
		list, isList := strings.CutSuffix(key, "ListChanged")
		switch {
		case isList && slices.Contains(announcedLists, list) && string(value) == "true":
			s.listed(list, view)
		case key == "resourceSubscriptions":
			var uris []string
			if json.Unmarshal(value, &uris) != nil {
				return nil, rpcErrorf(codeInvalidParams, "resourceSubscriptions must be a list of strings")
			}
			uris = slices.DeleteFunc(uris, func(uri string) bool { return view.Resource(uri) == nil })
			for _, uri := range uris {
				if err := s.wantLocked(uri); err != nil { // nobody else knows the session yet
					return nil, err
				}
			}
			if value = marshal(uris); len(uris) == 0 {
				continue
			}
		default:
			continue
		}
		honoured = append(honoured, member{key, value})
	}
	return honoured, nil
}

// takeOther acts on what a client sends that is no request.
func (s *Session) takeOther(msg *Message) {
	switch {
	case !msg.isNotification():
		s.asked.answer(msg)
	case msg.Method == "notifications/cancelled": // of the others usher needs none
		if cancel, ok := s.calls.get(string(field(msg.Params, "requestId"))); ok {
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
	lastUse      time.Time                         // of its table, which guards it
	stateless    bool                              // it stands for one request of a client without sessions
	affinity     string                            // whose process of a hosted server serves it
	subscription json.RawMessage                   // id of the subscriptions/listen that it stands for
	calls        inflight[context.CancelCauseFunc] // requests being answered, by id
	asked        pendingRequests                   // requests to the client, by our id
	older        bool                              // than what is known of it: it may have been idle, and forgotten
	take         atomic.Pointer[func([]byte) bool] // takes the messages of an HTTP+SSE session; false once its stream has ended

	mu       sync.Mutex
	streams  []*outbox         // open notification streams, oldest first
	lastSeen map[string]string // fingerprints of the lists that the client knows, of announcedLists
	profile  clientProfile
	ended    bool

	subscribing   sync.Mutex
	subscriptions map[string]*interest // resources whose changes it wants to hear of, by URI
}

// newSession is a session with nothing under way.
func newSession(t *sessionToken) *Session {
	return &Session{sessionToken: t, affinity: t.ID, lastSeen: make(map[string]string), subscriptions: make(map[string]*interest), profile: clientProfile{protocol: t.Protocol, caps: t.Caps}}
}

// clientProfile is what the client of a session says of itself.
type clientProfile struct {
	protocol string // as negotiated
	caps     clientCaps
	level    string // least severity of log messages that it wants; "" where it has not said
}

func (s *Session) client() clientProfile {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.profile
}

// setClient changes what is known of the client.
func (s *Session) setClient(change func(*clientProfile)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.profile)
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
	for _, in := range s.subscriptions {
		in.pause()
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
	s.notify(encodeNotification(method, params))
}

// connected reports whether the session has a notification stream open.
func (s *Session) connected() bool { return s.primary() != nil }

// sessionTable is the sessions that something is under way for, or was lately.
// Where there are too many, idle ones are forgotten: that looks to the client like
// a restart of the daemon. It gets one list_changed too many, and its log level and
// subscriptions are lost. The zero value is empty. Safe for concurrent use.
type sessionTable struct {
	mu    sync.Mutex
	live  map[string]*Session // by the token's ID
	swept time.Time           // when idle ones were last looked for
}

// open returns the session of a token.
func (t *sessionTable) open(token *sessionToken) *Session {
	t.mu.Lock()
	defer t.mu.Unlock()
	session := t.live[token.ID]
	if session == nil {
		session = newSession(token)
		session.older = time.Since(token.Issued) > time.Minute
		if t.live == nil {
			t.live = make(map[string]*Session)
		}
		t.live[token.ID] = session
	}
	session.lastUse = time.Now()
	if len(t.live) > maxIdleSessions && time.Since(t.swept) > time.Second { // a flood of new sessions leaves none to forget
		t.swept = time.Now()
		maps.DeleteFunc(t.live, func(_ string, s *Session) bool {
			return time.Since(s.lastUse) > time.Minute && s.calls.len() == 0 && !s.connected()
		})
	}
	return session
}

// end takes a session away that has ended, and cancels what is under way in it.
func (t *sessionTable) end(session *Session) {
	t.mu.Lock()
	delete(t.live, session.ID)
	t.mu.Unlock()
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

const (
	claimsInterval = 2 * time.Second        // how often an open stream looks at its session's claim
	coalesce       = 300 * time.Millisecond // changes this close make one list_changed
)

// announce tells a session on one of its streams which lists in its view have
// changed, until ctx ends, or without a session the claim does. It also keeps the
// session's subscriptions.
func (s *Server) announce(ctx context.Context, session *Session, out *outbox) {
	var subscribing sync.WaitGroup
	defer subscribing.Wait()
	for ctx.Err() == nil {
		changed := s.modules.Changed()
		scope, err := s.scope(session)
		known := err == nil || errors.Is(err, errEnded) // else nothing is known to have changed
		if known && session.primary() == out {
			view := s.modules.View(scope)
			for _, list := range session.changedLists(view, s.started) {
				session.tell("notifications/"+list+"/list_changed", nil)
			}
			if session.subscribing.TryLock() { // or it is being done, maybe by a module that hangs
				subscribing.Go(func() {
					defer session.subscribing.Unlock()
					for uri := range session.subscriptions {
						if err := s.keepSubscription(ctx, session, view, uri); err != nil {
							s.log.Debug("a subscription to a resource failed", "why", err) // tried again at the next change
						}
					}
				})
			}
		}
		if session.stateless && errors.Is(err, errEnded) {
			return // there is nothing more to tell, and no request that could present another claim
		}
		look := time.NewTimer(claimsInterval)
		select {
		case <-ctx.Done():
		case <-look.C:
		case <-changed:
			look.Reset(coalesce) // more is likely to follow
			select {
			case <-ctx.Done():
			case <-look.C:
			}
		}
		look.Stop()
	}
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
// it; but nobody knows what one has seen that is older than what is known of it: it
// gets every list once.
func (s *Session) changedLists(view *View, started time.Time) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var changed []string
	for _, list := range announcedLists {
		before, now := s.lastSeen[list], view.Fingerprint(list)
		if before != now && (before != "" || s.older || s.Issued.Before(started)) {
			changed = append(changed, list)
			s.lastSeen[list] = now
		}
	}
	return changed
}

// interest is a resource whose changes a session wants to hear of.
type interest struct {
	resource *Resource // as the module is listened to; nil while it is not
	at       *subscription
}

// subscribeTimeout is how long a module may take to answer that it tells of a
// resource's changes.
const subscribeTimeout = 10 * time.Second

// wantLocked notes that the session wants to hear of a resource's changes.
func (s *Session) wantLocked(uri string) error {
	if s.subscriptions[uri] != nil {
		return nil
	}
	if len(s.subscriptions) >= maxWanted {
		return rpcErrorf(codeInvalidParams, "too many resources are subscribed to (%d at most): unsubscribe from some", maxWanted)
	}
	s.subscriptions[uri] = &interest{}
	return nil
}

// unsubscribe undoes subscribe. Unknown URIs are ignored.
func (s *Session) unsubscribe(uri string) {
	s.subscribing.Lock()
	defer s.subscribing.Unlock()
	if in := s.subscriptions[uri]; in != nil {
		in.pause()
		delete(s.subscriptions, uri)
	}
}

// pause has the module not listened to, until that is wanted again.
func (in *interest) pause() {
	if in.at != nil {
		in.at.release()
	}
	in.resource, in.at = nil, nil
}

// keepSubscription has the module whose resource it is in the session's view by
// now, and no other, tell of its changes. The session's subscribing is held.
func (s *Server) keepSubscription(ctx context.Context, session *Session, view *View, uri string) (err error) {
	in, now := session.subscriptions[uri], view.Resource(uri)
	if in.resource.Same(now) && in.at.alive() {
		return nil
	}
	in.pause()
	if now == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, subscribeTimeout)
	defer cancel()
	caller := s.callerOf(session, session.notify)
	in.at, err = now.Subscribe(ctx, caller, uri, func(params json.RawMessage) { s.passUpdate(session, now, uri, params) })
	if err == nil {
		in.resource = now
	}
	return err
}

// passUpdate tells a session that a resource has changed, if the session still
// sees it.
func (s *Server) passUpdate(session *Session, resource *Resource, uri string, params json.RawMessage) {
	scope, err := s.scope(session)
	if err != nil || !s.modules.View(scope).Resource(uri).Same(resource) {
		return
	}
	session.tell("notifications/resources/updated", stripCallID(params))
}
