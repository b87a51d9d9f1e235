// MCP: the methods that usher answers, for every transport alike. A method
// reaches modules only through the View of its caller's scope; it knows neither
// the registry nor a worker.

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Server answers MCP messages. Safe for concurrent use.
type Server struct {
	views    Views
	sessions *SessionStore // nil on stdio, where there is one session
	gate     *Gate         // nil where nothing is looked at as a claim: on stdio, in a shell
	fixed    Scope         // then, what there is to see
	guardian *Guardian
	log      *slog.Logger
	started  time.Time
	stopping context.Context // ends when the daemon begins to stop: streams end
	stopped  context.Context // ends when its patience does: calls are cancelled
}

// request is one request being answered: what the methods of the table get.
type request struct {
	server  *Server
	session *Session
	caller  Caller
	params  json.RawMessage // an object, or nil
}

// view is the modules that the request may reach, now. It is asked for each
// time something is done, and not kept: a claim may end at any instant. With an
// error, which is fit for the client, the view is empty.
func (r *request) view() (*View, error) {
	scope, err := r.server.scope(r.session)
	if err != nil && !errors.Is(err, errEnded) {
		r.server.log.Error("a session's claim can't be looked up", "err", err) // it names a path
		err = errUnreadable
	}
	return r.server.views.View(scope), err
}

// errUnreadable is what a client is told while the claims can't be read.
var errUnreadable = errors.New("the claims can't be read just now, so nobody with a code is let in")

// scope is what a session may reach now.
func (s *Server) scope(session *Session) (Scope, error) {
	if s.gate == nil {
		return s.fixed, nil
	}
	claim := session.scopedTo()
	if claim == nil {
		return scopeAll(), nil
	}
	return s.gate.holds(*claim)
}

// mcpMethod is how a method is answered. A quick one waits for no module, so
// nothing can come before its answer.
type mcpMethod struct {
	quick bool
	run   func(ctx context.Context, r *request) (json.RawMessage, error)
}

// mcpMethods is all that a client can ask. initialize is not among them: it
// makes the session that these need.
var mcpMethods = map[string]mcpMethod{
	"ping":             {true, answerPing},
	"logging/setLevel": {true, answerSetLevel},
	"tools/list":       {false, answerList("tools")},
	"tools/call":       {false, answerToolsCall},

	"prompts/list":             {false, answerList("prompts")},
	"prompts/get":              {false, answerPromptsGet},
	"resources/list":           {false, answerList("resources")},
	"resources/templates/list": {false, answerList("resourceTemplates")},
	"resources/read":           {false, answerResourcesRead},
	"completion/complete":      {false, answerComplete},
}

// answer runs the method of a request. Its errors are *rpcError, or the cause
// for which ctx ended.
func (r *request) answer(ctx context.Context, method string) (json.RawMessage, error) {
	m, ok := mcpMethods[method]
	if !ok {
		return nil, rpcErrorf(codeNoMethod, "unknown method %q", clipText(method, 100))
	}
	return m.run(ctx, r)
}

func answerPing(context.Context, *request) (json.RawMessage, error) {
	return json.RawMessage(`{}`), nil
}

func answerSetLevel(_ context.Context, r *request) (json.RawMessage, error) {
	level := stringField(r.params, "level")
	i := slices.Index(logLevels, level)
	if i < 0 {
		return nil, rpcErrorf(codeInvalidParams, "level %q: want one of %s", clipText(level, 50), strings.Join(logLevels, ", "))
	}
	r.session.mu.Lock()
	r.session.logLevel = i
	r.session.mu.Unlock()
	return json.RawMessage(`{}`), nil
}

// answerList answers a request for a list of what, all on one page.
func answerList(what string) func(context.Context, *request) (json.RawMessage, error) {
	return func(ctx context.Context, r *request) (json.RawMessage, error) {
		r.server.views.Settle(ctx)
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
	if view, err := r.view(); err == nil && view.Lookup(name) == nil {
		r.server.views.Settle(ctx) // it may be a module that is being looked at
	}
	start := time.Now()
	result, err := r.callTool(ctx, name, arguments)
	r.server.logCall(r, name, result, err, time.Since(start))
	return result, err
}

// callTool calls a tool by its name, in the scope that the caller has when the
// call begins.
func (r *request) callTool(ctx context.Context, name string, arguments json.RawMessage) (json.RawMessage, error) {
	params := r.params
	if arguments != nil {
		arguments = withoutWebhook(arguments)
		list, _ := members(params)
		params = joinMembers(setMember(list, "arguments", arguments))
	}
	checked := false
	result, err := r.server.views.Call(ctx, func() (json.RawMessage, error) {
		view, err := r.openView()
		if err != nil {
			return nil, err
		}
		tool := view.Lookup(name)
		if tool == nil {
			return nil, unknownTool(view, name)
		}
		if checked = tool.Checked(); checked {
			if err := tool.Method.checkArguments(arguments); err != nil {
				return failure(err.Error()), nil
			}
		}
		return tool.Call(ctx, r.caller, params)
	})
	rpc := (*rpcError)(nil)
	switch {
	case err == nil:
		return result, nil
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case errors.As(err, &rpc) && !(checked && rpc.Code == codeInvalidParams):
		return nil, rpc // what a module itself answered stays as it is
	default:
		// So does what a model can correct if it is told so in a result: among
		// it a parameter of the wrong type deep down.
		return failure(err.Error()), nil
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

// askModule makes a request that find directs to a module of the caller's view.
func (r *request) askModule(ctx context.Context, find func(*View) (json.RawMessage, error)) (json.RawMessage, error) {
	if view, err := r.view(); err == nil && len(view.Modules) == 0 {
		r.server.views.Settle(ctx)
	}
	result, err := r.server.views.Call(ctx, func() (json.RawMessage, error) {
		view, err := r.openView()
		if err != nil {
			return nil, err
		}
		return find(view)
	})
	if err != nil && ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return result, err
}

func answerPromptsGet(ctx context.Context, r *request) (json.RawMessage, error) {
	name := stringField(r.params, "name")
	return r.askModule(ctx, func(view *View) (json.RawMessage, error) {
		prompt := view.Prompt(name)
		if prompt == nil {
			return nil, rpcErrorf(codeInvalidParams, "unknown prompt %q", clipText(name, 200))
		}
		return prompt.Get(ctx, r.caller, r.params)
	})
}

func answerResourcesRead(ctx context.Context, r *request) (json.RawMessage, error) {
	uri := stringField(r.params, "uri")
	return r.askModule(ctx, func(view *View) (json.RawMessage, error) {
		resource := view.Resource(uri)
		if resource == nil {
			return nil, unknownResource(uri)
		}
		return resource.Ask(ctx, r.caller, "resources/read", r.params)
	})
}

func unknownResource(uri string) error {
	e := rpcErrorf(codeNoResource, "unknown resource %q", clipText(uri, 200))
	e.Data = joinMembers([]member{{"uri", quote(uri)}})
	return e
}

func answerComplete(ctx context.Context, r *request) (json.RawMessage, error) {
	ref := field(r.params, "ref")
	name, uri := stringField(ref, "name"), stringField(ref, "uri")
	return r.askModule(ctx, func(view *View) (json.RawMessage, error) {
		switch kind := stringField(ref, "type"); kind {
		case "ref/prompt":
			if prompt := view.Prompt(name); prompt != nil {
				return prompt.Complete(ctx, r.caller, r.params)
			}
			return nil, rpcErrorf(codeInvalidParams, "unknown prompt %q", clipText(name, 200))
		case "ref/resource":
			if resource := view.Resource(uri); resource != nil {
				return resource.Ask(ctx, r.caller, "completion/complete", r.params)
			}
			return nil, unknownResource(uri)
		default:
			return nil, rpcErrorf(codeInvalidParams, "ref.type %q: want ref/prompt or ref/resource", clipText(kind, 50))
		}
	})
}

// unknownTool is the one error for a tool that does not exist and for one that
// is out of scope.
func unknownTool(view *View, name string) error {
	text := fmt.Sprintf("unknown tool %q", clipText(name, 200))
	if names := view.Others(name); len(names) > 0 {
		text += ": several modules have it, as " + strings.Join(names, ", ")
	}
	return rpcErrorf(codeInvalidParams, "%s", text)
}

// logCall writes the one line that a call has in the log.
func (s *Server) logCall(r *request, tool string, result json.RawMessage, err error, took time.Duration) {
	args := []any{"tool", clipText(tool, 100), "session", clipText(r.session.key, 8)}
	if claim := r.session.scopedTo(); claim != nil && s.gate != nil {
		args = append(args, "claim", s.gate.name(*claim))
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

// initialize answers a client's first request, and returns what there is to
// know of the client. A version that usher does not speak is answered with the
// newest that it does (MCP, basic/lifecycle, "Version Negotiation").
func (s *Server) initialize(ctx context.Context, params json.RawMessage, scope func() Scope) (protocol string, caps clientCaps, result func() json.RawMessage, err error) {
	protocol, ok := unquote(field(params, "protocolVersion"))
	if !ok {
		return "", 0, nil, rpcErrorf(codeInvalidParams, "initialize needs a string \"protocolVersion\"")
	}
	if !slices.Contains(protocols, protocol) {
		protocol = protocols[0]
	}
	return protocol, parseClientCaps(field(params, "capabilities")), func() json.RawMessage {
		s.views.Settle(ctx)
		return marshal(map[string]any{
			"protocolVersion": protocol,
			"capabilities":    serverCapabilities,
			"serverInfo":      map[string]string{"name": "usher", "version": version()},
			"instructions":    instructions(s.views.View(scope())),
		})
	}, nil
}

// serverCapabilities is what usher can do for a client, whatever is hosted just
// now: modules come and go.
var serverCapabilities = json.RawMessage(`{"completions":{},"logging":{},"prompts":{"listChanged":true},"resources":{"listChanged":true},"tools":{"listChanged":true}}`)

// maxInstructions bounds how many modules the instructions name.
const maxInstructions = 50

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

// takeNotification acts on a notification of a client.
func (s *Server) takeNotification(session *Session, msg *Message) {
	if msg.Method != "notifications/cancelled" {
		return // initialized needs nothing; others are none of ours
	}
	cancel, ok := session.calls.get(string(field(msg.Params, "requestId")))
	if ok {
		cancel(errCancelled)
	}
}

// errCancelled is why a request ended that its client cancelled. No answer is
// sent to it (MCP, basic/utilities/cancellation).
var errCancelled = errors.New("cancelled by the client")

// errStopping is why requests end when the daemon does.
var errStopping = rpcErrorf(codeRefused, "usher is shutting down")

// stdioPatience is how long requests under way may take after stdin ended.
const stdioPatience = 30 * time.Second

// stdioPeer is the one client of a stdio server.
type stdioPeer struct {
	server   *Server
	session  *Session
	out      chan []byte     // to the goroutine that writes
	ctx      context.Context // ends when nothing can be written any more
	greeted  atomic.Bool     // initialize was answered
	requests sync.WaitGroup  // being answered
}

// ServeStdio answers the one client at the other end of in and out, until in ends or ctx does. When it returns, nothing is under way but a read of in that can't be interrupted.
func (s *Server) ServeStdio(ctx context.Context, in io.Reader, out io.Writer) error {
	ctx, cancel := context.WithCancelCause(ctx)
	p := &stdioPeer{server: s, session: newSession(sealed{Issued: s.started}), out: make(chan []byte, maxQueued), ctx: ctx}
	p.session.key = "stdio"
	p.session.join(&stream{cancel: func() {}}) // where it is told of changes
	var announcer, writer sync.WaitGroup
	announcer.Go(func() { s.announce(ctx, p.session, p.greeted.Load, p.send) })
	flush := make(chan struct{})
	writer.Go(func() {
		if err := p.write(out, flush); err != nil {
			cancel(fmt.Errorf("writing to the client: %w", err))
		}
	})
	lines := make(chan stdioLine)
	go readStdio(ctx, newLineReader(in, maxWorkerLine), lines)
	err := p.serve(lines)
	p.finish()
	close(flush)
	writer.Wait()
	cancel(nil)
	announcer.Wait()
	return err
}

// stdioLine is a line of input, or why there is none.
type stdioLine struct {
	text []byte
	err  error
}

func readStdio(ctx context.Context, r *lineReader, lines chan<- stdioLine) {
	for {
		text, err := r.next()
		select {
		case lines <- stdioLine{text, err}:
		case <-ctx.Done():
			return
		}
		if err != nil && err != errLineTooLong {
			return
		}
	}
}

// serve takes messages until there are no more.
func (p *stdioPeer) serve(lines <-chan stdioLine) error {
	for {
		select {
		case <-p.ctx.Done():
			return nil
		case line := <-lines:
			switch {
			case line.err == errLineTooLong:
				p.send(encodeError(idOfLong(line.text), rpcErrorf(codeInvalidRequest, "the message is larger than %s", formatSize(maxWorkerLine))))
			case errors.Is(line.err, io.EOF):
				return nil
			case line.err != nil:
				return fmt.Errorf("reading from the client: %w", line.err)
			default:
				p.take(line.text)
			}
		}
	}
}

// take handles one message.
func (p *stdioPeer) take(line []byte) {
	msg, err := parseMessage(line)
	if err != nil {
		var id ID
		if msg != nil {
			id = msg.ID
		}
		p.send(encodeError(id, asRPCError(err)))
		return
	}
	if msg.isNotification() {
		p.server.takeNotification(p.session, msg)
	}
	if !msg.isRequest() {
		return
	}
	ctx, cancel := context.WithCancelCause(p.ctx)
	if err := p.session.calls.add(string(msg.ID), cancel); err != nil {
		cancel(nil)
		p.send(encodeError(msg.ID, asRPCError(err)))
		return
	}
	p.requests.Go(func() {
		defer cancel(nil)
		result, err := p.answer(ctx, msg)
		p.session.calls.take(string(msg.ID))
		switch {
		case err == nil:
			p.send(encodeResult(msg.ID, result))
		case !errors.Is(err, errCancelled):
			p.send(encodeError(msg.ID, asRPCError(err)))
		}
		if msg.Method == "initialize" && err == nil {
			p.greeted.Store(true)
		}
	})
}

func (p *stdioPeer) answer(ctx context.Context, msg *Message) (json.RawMessage, error) {
	if msg.Method == "initialize" {
		_, _, result, err := p.server.initialize(ctx, msg.Params, func() Scope { return p.server.fixed })
		if err != nil {
			return nil, err
		}
		return result(), nil
	}
	req := &request{server: p.server, session: p.session, params: msg.Params}
	req.caller = Caller{Session: p.session.key, Notify: req.queue(p.out)}
	return req.answer(ctx, msg.Method)
}

// finish lets what is under way end, within bounds.
func (p *stdioPeer) finish() {
	timer := time.AfterFunc(stdioPatience, func() { p.cancelAll(errStopping) })
	defer timer.Stop()
	if p.ctx.Err() != nil {
		p.cancelAll(errStopping)
	}
	p.requests.Wait()
}

func (p *stdioPeer) cancelAll(why error) {
	for _, cancel := range p.session.calls.all() {
		cancel(why)
	}
}

// send queues a message for the client.
func (p *stdioPeer) send(msg []byte) {
	select {
	case p.out <- msg:
	case <-p.ctx.Done():
	}
}

// write writes what is queued, until flush is closed and the queue is empty.
func (p *stdioPeer) write(out io.Writer, flush <-chan struct{}) error {
	for {
		select {
		case msg := <-p.out:
			if _, err := out.Write(append(msg, '\n')); err != nil {
				return err
			}
		case <-flush:
			for len(p.out) > 0 {
				if _, err := out.Write(append(<-p.out, '\n')); err != nil {
					return err
				}
			}
			return nil
		}
	}
}
