// MCP: a request of a client, the table of methods, and their answers. A request
// reaches modules only through the View of its caller's scope.

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
	modules   *Registry
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

// mcpMethod is how the revisions know a method: with sessions, without, or both. A
// request for something names it in a parameter, which one over HTTP without
// sessions repeats in a header. A result may be kept for life milliseconds there:
// not for long, so that the end of a claim counts. A list is one of a View.
type mcpMethod struct {
	stateful, stateless bool
	named, life, list   string
}

// mcpMethods is all that a client can ask.
var mcpMethods = map[string]mcpMethod{
	"initialize":               {stateful: true},
	"ping":                     {stateful: true},
	"logging/setLevel":         {stateful: true},
	"server/discover":          {stateless: true, life: "2000"},
	listenMethod:               {stateless: true},
	"tools/list":               {stateful: true, stateless: true, life: "2000", list: "tools"},
	"tools/call":               {stateful: true, stateless: true, named: "name"},
	"prompts/list":             {stateful: true, stateless: true, life: "2000", list: "prompts"},
	"prompts/get":              {stateful: true, stateless: true, named: "name"},
	"resources/list":           {stateful: true, stateless: true, life: "2000", list: "resources"},
	"resources/templates/list": {stateful: true, stateless: true, life: "2000", list: "resourceTemplates"},
	"resources/read":           {stateful: true, stateless: true, named: "uri", life: "0"},
	"resources/subscribe":      {stateful: true, named: "uri"},
	"resources/unsubscribe":    {stateful: true},
	"completion/complete":      {stateful: true, stateless: true},
}

// listenMethod opens the stream of a client without sessions.
const listenMethod = "subscriptions/listen"

// checkMethod refuses a method that such a client can't ask.
func checkMethod(method string, stateless bool) error {
	if m := mcpMethods[method]; stateless && m.stateless || !stateless && m.stateful {
		return nil
	}
	return rpcErrorf(codeNoMethod, "unknown method %q", clipText(method, 100))
}

// client is where a request comes from, and where its answer goes.
type client struct {
	session *Session
	out     *outbox
	streams context.Context // ends when streams to the client have to
	leaves  context.Context // ends when the client has gone for good, and its requests with it; nil where it may come back
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
	id     json.RawMessage
	method string
	params object
	item   atomic.Pointer[Item] // that it was last about

	ctx    context.Context // ends with the request
	cancel context.CancelCauseFunc
}

// send sends a message that belongs to the request: before its answer, or once
// that is written, on the session's stream, while the client still has the access
// that it had.
func (r *request) send(msg []byte) bool {
	return r.out.send(msg) || r.caller.authorized() && r.session.send(msg)
}

// view is the modules that the request may reach, now. It is asked for each time
// something is done, and not kept: a claim may end at any instant. With an error,
// which is fit for the client, the view is empty.
func (r *request) view() (*View, error) {
	scope, err := r.server.scope(r.session)
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
		scope, _ := r.server.scope(r.session) // which reaches nothing with an error
		r.server.modules.WaitReady(ctx, scope)
	}
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
		r.session.markSeen(list, view)
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
		return append(object{{"supportedVersions", marshal(spoken())}}, r.about(ctx)...).encode(), nil
	case "tools/call":
		return r.callTool(ctx)
	case "resources/subscribe":
		return r.subscribe(ctx)
	case "resources/unsubscribe":
		r.session.unsubscribe(r.params.text("uri"))
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
	token, notify := field(r.params.get("_meta"), "progressToken"), r.caller.Notify
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

func (r *request) setLevel() (json.RawMessage, error) {
	level := r.params.text("level")
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
	return append(object{{"protocolVersion", quote(protocol)}, {"serverInfo", usherInfo()}}, r.about(ctx)...).encode(), nil
}

// about is what all clients are told of usher.
func (r *request) about(ctx context.Context) object {
	return object{{"capabilities", serverCapabilities}, {"instructions", quote(instructions(r.listView(ctx)))}}
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
		about, _ = members(r.params.get("ref"))
		kind := about.text("type")
		list = map[string]string{"ref/prompt": "prompts", "ref/resource": "resources"}[kind]
		if list == "" {
			return nil, rpcErrorf(codeInvalidParams, "ref.type %q: want ref/prompt or ref/resource", clipText(kind, 50))
		}
	}
	if list == "resources" {
		key = "uri"
	}
	name := about.text(key)
	item := view.Lookup(list, name)
	if item != nil {
		return item, nil
	}
	e := rpcErrorf(codeInvalidParams, "unknown %s %q", strings.TrimSuffix(list, "s"), clipText(name, 200))
	if names := view.Alternatives(name); list == "tools" && len(names) > 0 {
		e.Message += ": several modules have it, as " + strings.Join(names, ", ")
	}
	if list == "resources" {
		e.Code, e.Data = codeNoResource, object{{"uri", quote(name)}}.encode()
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
	if arguments := r.params.get("arguments"); arguments != nil {
		list, ok := members(arguments)
		if !ok {
			return nil, rpcErrorf(codeInvalidParams, "arguments must be an object")
		}
		if kept := withoutWebhook(list); len(kept) < len(list) {
			r.params = r.params.set("arguments", kept.encode())
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
		args = append(args, "tool", clipText(r.params.text("name"), 100))
	}
	gate := r.server.gate
	r.server.log.Info("call", append(args, gate.Name(gate.Current(r.session.sessionToken))...)...)
	return result, err
}

// subscribe has the session hear of changes of a resource. The error is the
// module's, if it has no such thing. Without a stream, the module is asked once
// there is one.
func (r *request) subscribe(ctx context.Context) (json.RawMessage, error) {
	uri, session := r.params.text("uri"), r.session
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
	if !isObject(r.params.get("notifications")) {
		return nil, rpcErrorf(codeInvalidParams, `subscriptions/listen needs an object "notifications"`)
	}
	view := r.listView(ctx) // a resource that is not there yet would be left out for good
	honoured, err := r.session.readFilter(view, r.params.get("notifications"))
	if err != nil {
		return nil, err
	}
	r.session.subscription = r.id
	r.session.join(r.out)
	defer r.session.leave(r.out)
	r.session.notify("notifications/subscriptions/acknowledged", object{{"notifications", honoured.encode()}})
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
		case <-time.After(streamInterval):
		case <-changed:
			pauseFor(ctx, coalesce) // more is likely to follow
		}
	}
	if err := context.Cause(ctx); err != nil && r.streams.Err() == nil {
		return nil, err
	}
	return object{{"_meta", object{{metaSubscription, r.session.subscription}}.encode()}}.encode(), nil
}

// answer answers the request, and ends it. The error is an *rpcError, or says that
// nobody wants the answer any more.
func (r *request) answer() (result json.RawMessage, err error) {
	if r.leaves != nil {
		defer context.AfterFunc(r.leaves, func() { r.cancel(nil) })()
	}
	defer func() {
		r.calls.remove(string(r.id))
		r.give()
		r.cancel(nil)
	}()
	defer catch(r.server.log, &err)
	return r.run(r.ctx)
}

// scope is what a session may reach now.
func (s *Server) scope(session *Session) (Scope, error) {
	return s.gate.Scope(s.gate.Current(session.sessionToken))
}

// authorized tells whether a session still has the access of the principal that it
// was from: it is asked at every later use, for notifications, requests to the
// client, and streams that are resumed.
func (s *Server) authorized(session *Session, was Principal) func() bool {
	return func() bool {
		_, err := s.gate.Scope(was)
		return err == nil && was == s.gate.Current(session.sessionToken)
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

// noResult is the result of a method that only does something.
var noResult = json.RawMessage(`{}`)

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

// readFilter takes in what a client wants to be told of: lists, which it is taken
// to have as they are in view, and resources. honoured is what of its filter
// counts.
func (s *Session) readFilter(view *View, filter json.RawMessage) (honoured object, err error) {
	for _, list := range announcedLists {
		key := list + "ListChanged"
		if value := field(filter, key); string(value) == "true" {
			s.markSeen(list, view)
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

// errCancelled is why a request ended that its client cancelled. No answer is
// sent to it (MCP, basic/utilities/cancellation).
var errCancelled = errors.New("cancelled by the client")

// errStopping is why requests end when the daemon does.
var errStopping = rpcErrorf(codeRefused, "usher is shutting down")
