// MCP: the methods that usher answers, for every transport and revision alike. A
// method reaches modules only through the View of its caller's scope; this file
// knows neither the registry nor a worker.

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
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
type quota struct {
	mu   sync.Mutex
	used map[string]int
}

// take counts one more for a principal, if that is not over the limit.
func (q *quota) take(principal string, limit int) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.used[principal] >= limit {
		return false
	}
	if q.used == nil {
		q.used = make(map[string]int)
	}
	q.used[principal]++
	return true
}

func (q *quota) give(principal string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.used[principal]--; q.used[principal] == 0 {
		delete(q.used, principal)
	}
}

// client is where a request comes from, and where its answer goes.
type client struct {
	session *Session
	out     *outbox
	streams context.Context // ends when streams to the client have to
	header  http.Header     // of a request without a session over HTTP; nil for any other
}

// request is one request being answered: what the methods of the table get.
type request struct {
	client
	server    *Server
	principal string // whom limits are counted by
	calls     *inflight[context.CancelCauseFunc]
	caller    Caller
	id        ID
	method    string
	params    json.RawMessage // an object, or nil
	waited    bool            // it has waited for modules being introspected, for a tool

	ctx    context.Context // ends with the request
	cancel context.CancelCauseFunc
}

// begin enters a request among those being answered, whatever the transport; its
// answer must be called. Requests begin in the order in which they come, so that
// what cancels one finds it.
func (s *Server) begin(ctx context.Context, c client, msg *Message) (*request, error) {
	principal := s.gate.Current(c.session.sessionToken)
	r := &request{client: c, server: s, principal: principal.Key(), calls: &c.session.calls, id: msg.ID, method: msg.Method, params: msg.Params}
	if isStateless(msg.Params) && !c.session.stateless { // on a connection that may have a session too
		var err error
		if r.session, err = statelessSession(msg.Params, principal); err != nil {
			return nil, err
		}
	}
	if !s.requests.take(r.principal, maxInFlight) {
		return nil, rpcErrorf(codeDeclined, "%d requests are being answered for you: wait for some of them", maxInFlight)
	}
	r.ctx, r.cancel = context.WithCancelCause(ctx)
	if err := r.calls.add(string(r.id), r.cancel); err != nil {
		r.cancel(nil)
		s.requests.give(r.principal)
		return nil, err
	}
	r.caller = s.callerOf(r.session, r.send, func() bool { return r.ctx.Err() == nil && r.out.reachable() || r.session.connected() })
	return r, nil
}

// answer answers the request, and ends it. The error is an *rpcError, or says that
// nobody wants the answer any more.
func (r *request) answer() (result json.RawMessage, err error) {
	defer context.AfterFunc(r.server.stopped, func() { r.cancel(errStopping) })()
	defer func() {
		if p := recover(); p != nil {
			r.server.log.Error("a panic in answering", "method", clipText(r.method, 100), "panic", p, "stack", string(debug.Stack()))
			result, err = nil, rpcErrorf(codeInternal, "internal error: see usher's log")
		}
		r.calls.take(string(r.id))
		r.server.requests.give(r.principal)
		r.cancel(nil)
	}()
	return r.run(r.ctx)
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

// access is whom a session is from, and whether that principal reaches anything
// just now.
func (s *Server) access(session *Session) (string, bool) {
	p := s.gate.Current(session.sessionToken)
	_, err := s.gate.Scope(p)
	return p.Key(), err == nil
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
// out by send, which reports whether it may arrive; reachable reports whether the
// client may still answer.
func (s *Server) callerOf(session *Session, send func([]byte) bool, reachable func() bool) Caller {
	was, _ := s.access(session)
	_, caps := session.client()
	c := Caller{Session: session.ID, Affinity: session.affinity, Principal: was, Stateless: session.stateless, Caps: caps, Level: session.logLevel}
	c.Authorized = func() bool {
		is, ok := s.access(session)
		return ok && is == was
	}
	c.Notify = func(method string, params json.RawMessage) {
		if method != "notifications/message" || session.wantsLog(stringField(params, "level")) {
			send(encodeNotification(method, params))
		}
	}
	if !session.stateless {
		c.Ask = func(ctx context.Context, method string, params json.RawMessage) (json.RawMessage, error) {
			return session.asked.ask(ctx, send, reachable, method, params)
		}
	}
	return c
}

// mcpMethod is how a method is answered. It is for clients with sessions, for
// those without, or for both.
type mcpMethod struct {
	statefulOnly, statelessOnly bool
	run                         func(ctx context.Context, r *request) (json.RawMessage, error)
}

// mcpMethods is all that a client can ask.
var mcpMethods = map[string]mcpMethod{
	"initialize":            {statefulOnly: true, run: answerInitialize},
	"ping":                  {statefulOnly: true, run: answerPing},
	"logging/setLevel":      {statefulOnly: true, run: answerSetLevel},
	"server/discover":       {statelessOnly: true, run: answerDiscover},
	listenMethod:            {statelessOnly: true, run: answerListen},
	"resources/subscribe":   {statefulOnly: true, run: answerSubscribe},
	"resources/unsubscribe": {statefulOnly: true, run: answerUnsubscribe},

	"tools/list":               {run: answerList("tools")},
	"prompts/list":             {run: answerList("prompts")},
	"resources/list":           {run: answerList("resources")},
	"resources/templates/list": {run: answerList("resourceTemplates")},

	"tools/call":          {run: answerToolsCall},
	"prompts/get":         {run: answerRouted},
	"resources/read":      {run: answerRouted},
	"completion/complete": {run: answerRouted},
}

// answers reports whether a method is one that this caller can ask.
func answers(method string, stateless bool) bool {
	m, ok := mcpMethods[method]
	return ok && !(stateless && m.statefulOnly) && !(!stateless && m.statelessOnly)
}

// run runs the method of a request, and gives result or error the form of the
// caller's revision.
func (r *request) run(ctx context.Context) (json.RawMessage, error) {
	if !answers(r.method, r.session.stateless) {
		return nil, rpcErrorf(codeNoMethod, "unknown method %q", clipText(r.method, 100))
	}
	if !r.session.stateless {
		return mcpMethods[r.method].run(ctx, r)
	}
	if r.header != nil {
		if err := r.checkNames(ctx, r.header); err != nil {
			return nil, err
		}
	}
	r.useOwnProgress()
	result, err := mcpMethods[r.method].run(ctx, r)
	if err != nil {
		return nil, modernError(err, stringField(r.params, "uri"))
	}
	return modernResult(r.method, result), nil
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

func answerPing(context.Context, *request) (json.RawMessage, error) { return noResult, nil }

func answerSetLevel(_ context.Context, r *request) (json.RawMessage, error) {
	level := stringField(r.params, "level")
	if !slices.Contains(logLevels, level) {
		return nil, rpcErrorf(codeInvalidParams, "level %q: want one of %s", clipText(level, 50), strings.Join(logLevels, ", "))
	}
	r.session.setLogLevel(level)
	return noResult, nil
}

// answerInitialize answers a session's first request.
func answerInitialize(ctx context.Context, r *request) (json.RawMessage, error) {
	protocol, caps, err := parseInitialize(r.params)
	if err != nil {
		return nil, err
	}
	r.session.setClient(protocol, caps)
	view, _ := r.listView(ctx) // empty with an error
	return object{{"protocolVersion", quote(protocol)}, {"capabilities", serverCapabilities}, {"serverInfo", usherInfo()},
		{"instructions", quote(instructions(view))}}.json(), nil
}

// answerDiscover says what there is, to a client without a session.
func answerDiscover(ctx context.Context, r *request) (json.RawMessage, error) {
	view, err := r.listView(ctx)
	if err != nil {
		return nil, err
	}
	return object{{"supportedVersions", marshal(spoken())}, {"capabilities", serverCapabilities}, {"instructions", quote(instructions(view))}}.json(), nil
}

// serverCapabilities is what usher can do for a client, whatever is hosted just
// now: modules come and go.
var serverCapabilities = json.RawMessage(`{"completions":{},"logging":{},"prompts":{"listChanged":true},"resources":{"listChanged":true,"subscribe":true},"tools":{"listChanged":true}}`)

// instructions tells a model what the modules in its view are, a line each.
func instructions(view *View) string {
	if len(view.Modules) == 0 {
		return "usher hosts no modules here at the moment."
	}
	var b strings.Builder
	b.WriteString("Tools are named MODULE_METHOD. The modules:\n")
	for i, m := range view.Modules {
		if i == maxInstructions {
			fmt.Fprintf(&b, "and %d more.\n", len(view.Modules)-i)
			break
		}
		about := m.About
		if about == "" {
			about = fmt.Sprintf("%d tools", len(m.Methods))
		}
		fmt.Fprintf(&b, "- %s: %s\n", m.Label, about)
	}
	return strings.TrimSpace(b.String())
}

// answerList answers a request for a list of what, all on one page.
func answerList(what string) func(context.Context, *request) (json.RawMessage, error) {
	return func(ctx context.Context, r *request) (json.RawMessage, error) {
		view, err := r.listView(ctx)
		if err != nil {
			return nil, err
		}
		r.session.listed(what, view)
		return view.ListJSON(what), nil
	}
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
		return route{}, unknownResource(uri)
	}
	return route{resource.Stateless(), func(ctx context.Context, caller Caller) (json.RawMessage, error) {
		return resource.Ask(ctx, caller, r.method, r.params)
	}}, nil
}

func unknownResource(uri string) error {
	e := rpcErrorf(codeNoResource, "unknown resource %q", clipText(uri, 200))
	e.Data = object{{"uri", quote(uri)}}.json()
	return e
}

// answerRouted answers a request that goes to a module, which may ask the client
// for something meanwhile.
func answerRouted(ctx context.Context, r *request) (json.RawMessage, error) {
	if view, err := r.view(); err == nil && len(view.Modules) == 0 {
		r.waitReady(ctx)
	}
	return r.call(ctx)
}

// call makes the request to the module that it is for, in the scope that the
// caller has when the call begins.
func (r *request) call(ctx context.Context) (json.RawMessage, error) {
	if !r.caller.Stateless || r.method == "completion/complete" {
		return r.attempt(ctx, r.caller)
	}
	view, err := r.openView()
	if err != nil {
		return nil, err
	}
	if to, err := r.route(view); err != nil || to.stateless { // such a module asks in its answers itself
		return r.attempt(ctx, r.caller)
	}
	return r.server.suspended.do(ctx, r.caller, r.method, r.params, r.attempt)
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

// waitTool waits, once, for modules being introspected where there is no such tool
// yet: it may be of one of them.
func (r *request) waitTool(ctx context.Context, name string) {
	if view, err := r.view(); err == nil && view.Lookup(name) == nil && !r.waited {
		r.waited = true
		r.waitReady(ctx)
	}
}

func answerToolsCall(ctx context.Context, r *request) (json.RawMessage, error) {
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
	r.waitTool(ctx, name)
	start := time.Now()
	result, err := r.call(ctx)
	if err != nil && ctx.Err() == nil && !errors.As(err, new(*rpcError)) { // what a module itself answered stays as it is
		result, err = failure(err.Error()), nil // so that a model can correct itself
	}
	r.logCall(name, result, err, time.Since(start))
	return result, err
}

// logCall writes the one line that a call has in the log.
func (r *request) logCall(tool string, result json.RawMessage, err error, took time.Duration) {
	args := []any{"tool", clipText(tool, 100), "session", clipText(r.session.ID, 8)}
	if name := r.server.gate.Name(r.server.gate.Current(r.session.sessionToken)); name != "" {
		args = append(args, "claim", name)
	}
	args = append(args, "took", took.Round(10*time.Microsecond), "bytes", len(result))
	switch {
	case err != nil:
		args = append(args, "error", clipText(err.Error(), 300))
	case string(field(result, "isError")) == "true":
		args = append(args, "failed", true)
	}
	r.server.log.Info("call", args...)
}

func answerSubscribe(ctx context.Context, r *request) (json.RawMessage, error) {
	uri := stringField(r.params, "uri")
	r.waitReady(ctx)
	return r.server.modules.Call(ctx, func() (json.RawMessage, error) {
		view, err := r.openView()
		if err != nil {
			return nil, err
		}
		if view.Resource(uri) == nil {
			return nil, unknownResource(uri)
		}
		return noResult, r.server.subscribe(ctx, r.session, view, uri)
	})
}

func answerUnsubscribe(_ context.Context, r *request) (json.RawMessage, error) {
	r.session.unsubscribe(stringField(r.params, "uri"))
	return noResult, nil
}

// listenMethod opens the stream of a client without sessions.
const listenMethod = "subscriptions/listen"

// answerListen tells the client what changes, before the answer, until its
// streams have to end.
func answerListen(ctx context.Context, r *request) (json.RawMessage, error) {
	filter, ok := members(field(r.params, "notifications"))
	if !ok {
		return nil, rpcErrorf(codeInvalidParams, `subscriptions/listen needs an object "notifications"`)
	}
	view, err := r.listView(ctx) // a resource that is not there yet would be left out for good
	if err != nil {
		return nil, rpcErrorf(codeDeclined, "%v", err)
	}
	lists, honoured, err := r.session.readFilter(view, filter)
	if err != nil {
		return nil, err
	}
	r.session.subscription = json.RawMessage(r.id)
	tell := func(method string, params json.RawMessage) {
		r.out.send(encodeNotification(method, withMeta(params, metaSubscription, r.session.subscription)))
	}
	tell("notifications/subscriptions/acknowledged", object{{"notifications", honoured}}.json())
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(r.streams, cancel)()
	r.session.join(r.out)
	defer r.session.leave(r.out)
	r.server.announce(ctx, r.session, r.out, func(list string) {
		if slices.Contains(lists, list) {
			tell("notifications/"+list+"/list_changed", nil)
		}
	})
	if r.streams.Err() == nil {
		return nil, context.Cause(ctx)
	}
	return object{{"_meta", object{{metaSubscription, r.session.subscription}}.json()}}.json(), nil
}

// readFilter takes in what a client wants to be told of: lists, which it is taken
// to have as they are in view, and resources. honoured is what of its filter
// counts.
func (s *Session) readFilter(view *View, filter object) (lists []string, honoured json.RawMessage, err error) {
	var kept object
	for _, f := range filter {
		list, isList := strings.CutSuffix(f.key, "ListChanged")
		switch {
		case f.key == "resourceSubscriptions":
			var uris []string
			if json.Unmarshal(f.value, &uris) != nil {
				return nil, nil, rpcErrorf(codeInvalidParams, "resourceSubscriptions must be a list of strings")
			}
			uris = slices.DeleteFunc(uris, func(uri string) bool { return view.Resource(uri) == nil })
			for _, uri := range uris {
				if err := s.wantLocked(uri); err != nil { // nobody else knows the session yet
					return nil, nil, err
				}
			}
			if len(uris) > 0 {
				kept = append(kept, member{f.key, marshal(uris)})
			}
		case isList && slices.Contains(announcedLists, list) && string(f.value) == "true":
			lists = append(lists, list)
			s.listed(list, view)
			kept = append(kept, f)
		}
	}
	return lists, kept.json(), nil
}

// parseInitialize reads what a client says of itself in its first request. A
// version that usher does not speak is answered with the newest that it does
// (MCP, basic/lifecycle, "Version Negotiation").
func parseInitialize(params json.RawMessage) (protocol string, caps clientCaps, err error) {
	protocol, ok := unquote(field(params, "protocolVersion"))
	if !ok {
		return "", 0, rpcErrorf(codeInvalidParams, "initialize needs a string \"protocolVersion\"")
	}
	if !hasSessions(protocol) {
		protocol = protocols[0]
	}
	return protocol, parseClientCaps(field(params, "capabilities")), nil
}

// statelessSession stands for one request of a principal without a session.
func statelessSession(params json.RawMessage, p Principal) (*Session, error) {
	meta := field(params, "_meta")
	if err := checkCaps(meta); err != nil {
		return nil, err
	}
	if err := checkVersion(stringField(meta, metaProtocol)); err != nil {
		return nil, err
	}
	session := newSession(newSessionToken(modernProtocol, uint16(parseClientCaps(field(meta, metaClientCaps))), p, time.Now()))
	session.stateless = true
	if level := field(meta, metaLogLevel); level != nil {
		session.level, _ = unquote(level)
		if !slices.Contains(logLevels, session.level) {
			return nil, rpcErrorf(codeInvalidParams, "%s: want one of %s", metaLogLevel, strings.Join(logLevels, ", "))
		}
	}
	info := field(meta, metaClientInfo)
	session.affinity = fmt.Sprintf("%s %q %q", p.Key(), stringField(info, "name"), stringField(info, "version"))
	return session, nil
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

// encodeAnswer is what answers a request; nil where nobody wants it any more.
func encodeAnswer(id ID, result json.RawMessage, err error) []byte {
	switch {
	case err == nil:
		return encodeResult(id, result)
	case errors.Is(err, errCancelled) || errors.Is(err, context.Canceled):
		return nil
	default:
		return encodeError(id, asRPCError(err))
	}
}
