// MCP: the methods that usher answers, for every transport and revision alike. A
// method reaches modules only through the View of its caller's scope; it knows
// neither the registry nor a worker.

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"
)

// Server answers MCP messages. Safe for concurrent use.
type Server struct {
	views    ModuleSource
	sessions *SessionStore // nil on stdio, where there is one session
	gate     *Gate
	bodies   *bodyReader
	log      *slog.Logger
	started  time.Time
	parking  *parking        // calls that wait for their clients to come back
	stopping context.Context // ends when the daemon begins to stop: streams end
	stopped  context.Context // ends when its patience does: calls are cancelled
}

// request is one request being answered: what the methods of the table get.
type request struct {
	server  *Server
	session *Session
	caller  Caller
	params  json.RawMessage // an object, or nil
	settled bool            // it has waited for modules being looked at, for a tool
}

// view is the modules that the request may reach, now. It is asked for each
// time something is done, and not kept: a claim may end at any instant. With an
// error, which is fit for the client, the view is empty.
func (r *request) view() (*View, error) {
	scope, err := r.server.scope(r.session)
	return r.server.views.View(scope), err
}

// scope is what a session may reach now.
func (s *Server) scope(session *Session) (Scope, error) {
	return s.gate.Scope(s.gate.Current(session.sessionToken))
}

// callerOf is the caller of a session's requests. What is sent to the client
// goes out by send, which reports whether it may arrive; there reports whether
// the client may still answer.
func (s *Server) callerOf(session *Session, send func([]byte) bool, there func() bool) Caller {
	c := Caller{Session: session.key, Affinity: session.key, Principal: s.gate.Current(session.sessionToken).Key(),
		Caps: session.capabilities(), Level: session.logLevel, Authorized: s.stillAuthorized(session)}
	c.Notify = func(method string, params json.RawMessage) {
		if method != "notifications/message" || session.wantsLog(stringField(params, "level")) {
			send(encodeNotification(method, params))
		}
	}
	if session.modern() {
		c.Affinity, c.Stateless = session.affinity, true
		return c
	}
	c.Ask = func(ctx context.Context, method string, params json.RawMessage) (json.RawMessage, error) {
		return session.ask(ctx, send, there, method, params)
	}
	return c
}

// stillAuthorized returns a function that reports whether a session can still reach what
// it can now.
func (s *Server) stillAuthorized(session *Session) func() bool {
	was := s.gate.Current(session.sessionToken)
	return func() bool {
		_, err := s.scope(session)
		return err == nil && was == s.gate.Current(session.sessionToken)
	}
}

// mcpMethod is how a method is answered. A lasting one is for those who have
// sessions, a single one for those who have none; others are for both.
type mcpMethod struct {
	lasting, single bool
	run             func(ctx context.Context, r *request) (json.RawMessage, error)
}

// mcpMethods is all that a client can ask. Two are not among them: initialize,
// which makes the session that these need, and subscriptions/listen, whose
// answer is a stream.
var mcpMethods = map[string]mcpMethod{
	"ping":             {lasting: true, run: answerPing},
	"logging/setLevel": {lasting: true, run: answerSetLevel},
	"server/discover":  {single: true, run: answerDiscover},

	"tools/list": {run: answerList("tools")},
	"tools/call": {run: answerToolsCall},

	"prompts/list":             {run: answerList("prompts")},
	"prompts/get":              {run: answerPromptsGet},
	"resources/list":           {run: answerList("resources")},
	"resources/templates/list": {run: answerList("resourceTemplates")},
	"resources/read":           {run: answerResourcesRead},
	"resources/subscribe":      {lasting: true, run: answerSubscribe},
	"resources/unsubscribe":    {lasting: true, run: answerUnsubscribe},
	"completion/complete":      {run: answerComplete},
}

// answers reports whether a method is one that this caller can ask.
func answers(method string, modern bool) bool {
	m, ok := mcpMethods[method]
	return ok && !(modern && m.lasting) && !(!modern && m.single) || modern && method == listenMethod
}

// answer runs the method of a request. Its errors are *rpcError, or the cause
// for which ctx ended.
func (r *request) answer(ctx context.Context, method string) (json.RawMessage, error) {
	if !answers(method, r.caller.Stateless) {
		return nil, rpcErrorf(codeNoMethod, "unknown method %q", clipText(method, 100))
	}
	if r.caller.Stateless {
		r.ownProgress()
	}
	result, err := mcpMethods[method].run(ctx, r)
	switch {
	case !r.caller.Stateless:
		return result, err
	case err != nil:
		return nil, modernError(err, stringField(r.params, "uri"))
	default:
		return modernResult(method, result), nil
	}
}

// ownProgress has progress come under the token of this request, and only if it
// has one: the call that it goes on with may have begun under another.
func (r *request) ownProgress() {
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

func answerPing(context.Context, *request) (json.RawMessage, error) {
	return json.RawMessage(`{}`), nil
}

func answerSetLevel(_ context.Context, r *request) (json.RawMessage, error) {
	level := stringField(r.params, "level")
	if !slices.Contains(logLevels, level) {
		return nil, rpcErrorf(codeInvalidParams, "level %q: want one of %s", clipText(level, 50), strings.Join(logLevels, ", "))
	}
	r.session.setLogLevel(level)
	return json.RawMessage(`{}`), nil
}

// answerDiscover says what there is, to a client without a session.
func answerDiscover(ctx context.Context, r *request) (json.RawMessage, error) {
	r.waitReady(ctx)
	view, err := r.view()
	if err != nil && !errors.Is(err, errEnded) {
		return nil, err
	}
	return joinMembers([]member{{"supportedVersions", marshal(spoken())}, {"capabilities", serverCapabilities},
		{"instructions", quote(instructions(view))}}), nil
}

// answerList answers a request for a list of what, all on one page.
func answerList(what string) func(context.Context, *request) (json.RawMessage, error) {
	return func(ctx context.Context, r *request) (json.RawMessage, error) {
		r.waitReady(ctx)
		view, err := r.view()
		if err != nil && !errors.Is(err, errEnded) {
			return nil, err
		}
		r.session.listed(what, view)
		return view.ListJSON(what), nil
	}
}

func answerToolsCall(ctx context.Context, r *request) (json.RawMessage, error) {
	name, ok := unquote(field(r.params, "name"))
	if !ok {
		return nil, rpcErrorf(codeInvalidParams, "tools/call needs a string \"name\"")
	}
	arguments := field(r.params, "arguments")
	if arguments != nil && arguments[0] != '{' {
		return nil, rpcErrorf(codeInvalidParams, "arguments must be an object")
	}
	r.settleTool(ctx, name)
	start := time.Now()
	result, err := r.callTool(ctx, name, arguments)
	r.server.logCall(r, name, result, err, time.Since(start))
	return result, err
}

// callTool calls a tool by its name, in the scope that the caller has when the
// call begins.
func (r *request) callTool(ctx context.Context, name string, arguments json.RawMessage) (json.RawMessage, error) {
	if arguments != nil {
		list, _ := members(arguments)
		arguments = joinMembers(withoutWebhook(list))
	}
	result, err := r.inRounds(ctx, "tools/call", func(view *View) asked {
		tool := view.Lookup(name)
		if tool == nil {
			return asked{err: unknownTool(view, name)}
		}
		return asked{native: tool.Stateless(), ask: func(ctx context.Context, caller Caller) (json.RawMessage, error) {
			params := r.params
			if tool.Checked() {
				var err error
				if arguments, err = tool.Method.checkArguments(arguments); err != nil {
					return failure(err.Error()), nil
				}
			}
			if arguments != nil {
				params = withMember(params, "arguments", arguments)
			}
			return tool.Call(ctx, caller, params)
		}}
	})
	switch {
	case err == nil:
		return result, nil
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case errors.As(err, new(*rpcError)):
		return nil, err // what a module itself answered stays as it is
	default:
		return failure(err.Error()), nil // so that a model can correct itself
	}
}

// openView is view for those that call something: a claim that has ended
// refuses them.
func (r *request) openView() (*View, error) {
	view, err := r.view()
	if err != nil {
		return nil, rpcErrorf(codeRefused, "%v", err)
	}
	return view, nil
}

// asked is a request to a module of a view: how to make it, or why it can't be.
type asked struct {
	native bool // the module speaks a revision without sessions
	ask    func(context.Context, Caller) (json.RawMessage, error)
	err    error
}

// askModule makes a request that find directs to a module of the caller's view.
func (r *request) askModule(ctx context.Context, caller Caller, find func(*View) asked) (json.RawMessage, error) {
	result, err := r.server.views.Call(ctx, func() (json.RawMessage, error) {
		view, err := r.openView()
		if err != nil {
			return nil, err
		}
		to := find(view)
		if to.err != nil {
			return nil, to.err
		}
		return to.ask(ctx, caller)
	})
	if err != nil && ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return result, err
}

// waitReady waits for modules in the caller's scope that are being looked at.
func (r *request) waitReady(ctx context.Context) {
	scope, _ := r.server.scope(r.session) // scopeNone with an error
	r.server.views.WaitReady(ctx, scope)
}

// settleTool waits, once, for modules being looked at where there is no such tool
// yet: it may be of one of them.
func (r *request) settleTool(ctx context.Context, name string) {
	if view, err := r.view(); err == nil && view.Lookup(name) == nil && !r.settled {
		r.settled = true
		r.waitReady(ctx)
	}
}

// settleEmpty waits for modules being looked at where there are none yet.
func (r *request) settleEmpty(ctx context.Context) {
	if view, err := r.view(); err == nil && len(view.Modules) == 0 {
		r.waitReady(ctx)
	}
}

func answerPromptsGet(ctx context.Context, r *request) (json.RawMessage, error) {
	r.settleEmpty(ctx)
	return r.inRounds(ctx, "prompts/get", r.prompt(stringField(r.params, "name"), (*Prompt).Get))
}

// prompt directs a request to the module whose prompt it is about.
func (r *request) prompt(name string, ask func(*Prompt, context.Context, Caller, json.RawMessage) (json.RawMessage, error)) func(*View) asked {
	return func(view *View) asked {
		prompt := view.Prompt(name)
		if prompt == nil {
			return asked{err: rpcErrorf(codeInvalidParams, "unknown prompt %q", clipText(name, 200))}
		}
		return asked{native: prompt.Stateless(), ask: func(ctx context.Context, caller Caller) (json.RawMessage, error) {
			return ask(prompt, ctx, caller, r.params)
		}}
	}
}

func answerResourcesRead(ctx context.Context, r *request) (json.RawMessage, error) {
	r.settleEmpty(ctx)
	return r.inRounds(ctx, "resources/read", r.resource("resources/read", stringField(r.params, "uri")))
}

// resource directs a method to the module whose resource the request is about,
// which each method names in a place of its own.
func (r *request) resource(method, uri string) func(*View) asked {
	return func(view *View) asked {
		resource := view.Resource(uri)
		if resource == nil {
			return asked{err: unknownResource(uri)}
		}
		return asked{native: resource.Stateless(), ask: func(ctx context.Context, caller Caller) (json.RawMessage, error) {
			return resource.Ask(ctx, caller, method, r.params)
		}}
	}
}

func unknownResource(uri string) error {
	e := rpcErrorf(codeNoResource, "unknown resource %q", clipText(uri, 200))
	e.Data = joinMembers([]member{{"uri", quote(uri)}})
	return e
}

func answerComplete(ctx context.Context, r *request) (json.RawMessage, error) {
	r.settleEmpty(ctx)
	ref := field(r.params, "ref")
	switch kind := stringField(ref, "type"); kind {
	case "ref/prompt":
		return r.askModule(ctx, r.caller, r.prompt(stringField(ref, "name"), (*Prompt).Complete))
	case "ref/resource":
		return r.askModule(ctx, r.caller, r.resource("completion/complete", stringField(ref, "uri")))
	default:
		return nil, rpcErrorf(codeInvalidParams, "ref.type %q: want ref/prompt or ref/resource", clipText(kind, 50))
	}
}

func answerSubscribe(ctx context.Context, r *request) (json.RawMessage, error) {
	r.settleEmpty(ctx)
	uri := stringField(r.params, "uri")
	return r.server.views.Call(ctx, func() (json.RawMessage, error) {
		view, err := r.openView()
		if err != nil {
			return nil, err
		}
		if view.Resource(uri) == nil {
			return nil, unknownResource(uri)
		}
		return json.RawMessage(`{}`), r.server.subscribe(ctx, r.session, view, uri)
	})
}

func answerUnsubscribe(_ context.Context, r *request) (json.RawMessage, error) {
	r.session.unsubscribe(stringField(r.params, "uri"))
	return json.RawMessage(`{}`), nil
}

// unknownTool is the one error for a tool that does not exist and for one that
// is out of scope.
func unknownTool(view *View, name string) error {
	text := fmt.Sprintf("unknown tool %q", clipText(name, 200))
	if names := view.Alternatives(name); len(names) > 0 {
		text += ": several modules have it, as " + strings.Join(names, ", ")
	}
	return rpcErrorf(codeInvalidParams, "%s", text)
}

// logCall writes the one line that a call has in the log.
func (s *Server) logCall(r *request, tool string, result json.RawMessage, err error, took time.Duration) {
	args := []any{"tool", clipText(tool, 100), "session", clipText(r.session.key, 8)}
	if name := s.gate.Name(s.gate.Current(r.session.sessionToken)); name != "" {
		args = append(args, "claim", name)
	}
	args = append(args, "took", took.Round(10*time.Microsecond), "bytes", len(result))
	switch {
	case err != nil:
		s.log.Info("call", append(args, "error", clipText(err.Error(), 300))...)
	case string(field(result, "isError")) == "true":
		s.log.Info("call", append(args, "failed", true)...)
	default:
		s.log.Info("call", args...)
	}
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

// welcome is the answer to a session's first request.
func (s *Server) welcome(ctx context.Context, session *Session, protocol string) json.RawMessage {
	scope, _ := s.scope(session) // scopeNone with an error
	s.views.WaitReady(ctx, scope)
	return marshal(map[string]any{
		"protocolVersion": protocol,
		"capabilities":    serverCapabilities,
		"serverInfo":      usherInfo(),
		"instructions":    instructions(s.views.View(scope)),
	})
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

// takeOther acts on what the client sends that is no request.
func (s *Session) takeOther(msg *Message) {
	switch {
	case !msg.isNotification():
		s.takeAnswer(msg)
	case msg.Method == "notifications/cancelled": // initialized needs nothing; others are none of ours
		if cancel, ok := s.calls.get(string(field(msg.Params, "requestId"))); ok {
			cancel(errCancelled)
		}
	}
}

// errCancelled is why a request ended that its client cancelled. No answer is
// sent to it (MCP, basic/utilities/cancellation).
var errCancelled = errors.New("cancelled by the client")

// isCancel reports whether an error is that nobody wants the answer any more.
func isCancel(err error) bool {
	return errors.Is(err, errCancelled) || errors.Is(err, context.Canceled)
}

// encodeAnswer is what answers a request; nil where nobody wants it any more.
func encodeAnswer(id ID, result json.RawMessage, err error) []byte {
	switch {
	case err == nil:
		return encodeResult(id, result)
	case isCancel(err):
		return nil
	default:
		return encodeError(id, asRPCError(err))
	}
}

// errStopping is why requests end when the daemon does.
var errStopping = rpcErrorf(codeRefused, "usher is shutting down")
