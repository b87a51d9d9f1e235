// MCP: a client's request, and the table of methods with the functions that answer them.
// A request reaches modules only through the View of its caller's scope.
//
// A module may ask for something during a call, such as the user's input. The request must reach
// the client that made the call: worker.go decides which client that is. usher sends the request
// to a client with a session, and the client answers it. It can send nothing to a client without a
// session: usher suspends the call and answers the client's request with the module's question.
// The client's next request contains the answer and continues the call (MCP 2026-07-28,
// basic/patterns/mrtr).
//
// Three goroutines may meet in a request: the one that answers it, the one that reads the output
// of its module (notify), and one for each question of the module (ask). A suspended call has one
// more, which makes the call and outlives the requests of its client.

package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// serverConfig is what newServer needs.
type serverConfig struct {
	modules      *Registry
	gate         *Gate
	memory       *memory
	log          *slog.Logger
	logArguments bool            // of calls
	stopping     context.Context // ends when the daemon begins to stop: streams end
	stopped      context.Context // ends when the daemon stops waiting: calls are cancelled
}

// Server answers MCP messages. Safe for concurrent use.
type Server struct {
	serverConfig
	suspended suspendedCalls // calls that wait for their clients to return
	requests  counter        // being answered
	streams   counter        // open notification streams
}

// newServer returns a server without sessions.
func newServer(c serverConfig) *Server {
	return &Server{
		serverConfig: c,
		suspended:    suspendedCalls{asking: counter{perKey: maxSuspended}},
		requests:     counter{perKey: maxInFlight},
		streams:      counter{perKey: maxStreamsOf},
	}
}

// mcpMethod is what usher knows about a method.
type mcpMethod struct {
	run  func(*request) (object, error)
	eras eras
	// list is the list of a View that the result shows, or that contains the item that
	// the request names. named is the parameter with the item's name, or "" for none.
	list, named string
	// life is how many milliseconds a client without sessions may cache the result: not
	// long, so that the end of a claim takes effect. It is "" if results are not cached.
	life string
}

// listenMethod opens the stream of a client without sessions.
const listenMethod = "subscriptions/listen"

// mcpMethods is the table of all methods that a client can use. Its columns are the
// fields of mcpMethod.
var mcpMethods = map[string]mcpMethod{
	"initialize":       {(*request).initialize, stateful, "", "", ""},
	"ping":             {(*request).ping, stateful, "", "", ""},
	"logging/setLevel": {(*request).setLevel, stateful, "", "", ""},
	"server/discover":  {(*request).discover, stateless, "", "", "2000"},
	listenMethod:       {(*request).listen, stateless, "", "", ""},

	"tools/list":               {(*request).showList, bothEras, "tools", "", "2000"},
	"tools/call":               {(*request).callTool, bothEras, "tools", "name", ""},
	"prompts/list":             {(*request).showList, bothEras, "prompts", "", "2000"},
	"prompts/get":              {(*request).call, bothEras, "prompts", "name", ""},
	"resources/list":           {(*request).showList, bothEras, "resources", "", "2000"},
	"resources/templates/list": {(*request).showList, bothEras, "resourceTemplates", "", "2000"},
	"resources/read":           {(*request).call, bothEras, "resources", "uri", "0"},
	subscribeMethod:            {(*request).forward, stateful, "resources", "uri", ""},
	"resources/unsubscribe":    {(*request).forward, stateful, "resources", "uri", ""},
	"completion/complete":      {(*request).forward, bothEras, "", "", ""},
}

// request is a request that is being answered. Its methods, except send, notify and ask, are
// for one goroutine.
type request struct {
	admission
	server  *Server
	out     *outbox     // to the client
	header  http.Header // of a stateless POST, else nil; must agree with params
	id      json.RawMessage
	name    string    // of the method
	method  mcpMethod // zero if unknown
	params  object
	token   json.RawMessage // under which the client wants progress; nil or null for none
	caller  Caller
	ctx     context.Context         // ends with the request; set by begin
	cancel  context.CancelCauseFunc // ends ctx
	arrived time.Time
	counter *counter // counts the request
}

// newRequest returns the request that msg makes in from.session. Messages of the request and
// its answer go to out.
func (s *Server) newRequest(from admission, out *outbox, msg *Message, params object) *request {
	r := &request{
		admission: from,
		server:    s,
		out:       out,
		id:        msg.ID,
		name:      msg.Method,
		method:    mcpMethods[msg.Method],
		params:    params,
		token:     slices.Clone(params.object("_meta").get("progressToken")), // else it keeps the whole body
		arrived:   time.Now(),
		counter:   &s.requests,
	}
	client := *r.session.profile.Load() // a copy: a later initialize does not change this request
	if r.principal.exists() {           // a client's roots could lead a module out of the claim's folder
		client.caps &^= capRoots
	}
	r.caller = Caller{
		Principal: r.principal,
		Member:    r.member,
		Client:    client,
		Notify:    r.notify,
	}
	if r.session.era == stateful {
		r.caller.Ask = r.ask
		r.caller.Stream = r.session.primary
	}
	return r
}

// begin counts the request and adds it to its session, so that its client can cancel it.
// After a success, the caller must call answer, and end when the answer has been written.
func (r *request) begin(ctx context.Context) error {
	// A listen is a stream, and lasts as long as its client likes. It must not take the place of calls.
	if r.name == listenMethod {
		r.counter = &r.server.streams
	}
	if !r.counter.reserve(r.principal, 1) {
		return rpcErrorf(codeRefused,
			"too many requests in flight or streams (limit %d): wait", r.counter.perKey)
	}
	// A client cancels by id, so an id that is in use can't be used for a second request. From here
	// on, a cancellation finds the request, even before its method runs.
	r.ctx, r.cancel = context.WithCancelCause(ctx)
	if _, taken := r.session.calls.LoadOrStore(idKey(r.id), r.cancel); taken {
		r.cancel(nil)
		r.counter.release(r.principal, 1)
		return rpcErrorf(codeInvalidRequest, "request id %s is already in use", r.id)
	}
	if r.session.life.Err() != nil { // it may have ended before its calls contained this one
		r.cancel(errNoSession)
	}
	return nil
}

// end undoes begin. It also drops the message: a process keeps its first caller, whose functions
// keep the request.
func (r *request) end() {
	r.session.calls.Delete(idKey(r.id))
	r.counter.release(r.principal, 1)
	r.cancel(nil)
	r.id = nil
	r.params = nil
}

// answer runs the request's method. It returns the result or the error in the form that
// the client's revision of MCP wants. The error is context.Cause(r.ctx) if r.ctx ended.
func (r *request) answer() (result object, err error) {
	defer catch(r.server.log, &err)
	// Proxies and clients take a silent connection for a dead one. Whatever the outbox is by then, an
	// answer that is written in time stays plain JSON.
	defer time.AfterFunc(keepAlive, func() { r.out.open() }).Stop()
	if r.method.eras&r.session.era == 0 {
		return nil, rpcErrorf(codeNoMethod, "unknown method %q", r.name)
	}
	if len(r.token) > maxID { // each report repeats it
		return nil, rpcErrorf(codeInvalidParams, "progressToken is longer than %s", formatSize(maxID))
	}
	// Proxies and gateways route by the header, and the module by the parameter: they must not differ.
	if named := r.method.named; named != "" {
		err = checkHeader(r.header, nameHeader, named, r.params.get(named))
	}
	if err == nil {
		result, err = r.method.run(r)
	}
	if err != nil {
		return nil, err
	}
	return result.forClient(r.session.era, r.method.life), nil
}

// encodeAnswer returns the answer to the request. It is nil if the request was cancelled: then
// nobody waits for an answer (MCP, basic/utilities/cancellation).
func (r *request) encodeAnswer(result object, err error) []byte {
	switch {
	case err == nil:
		return encodeResult(r.id, result)
	case errors.Is(err, errCancelled) || errors.Is(err, context.Canceled):
		return nil
	default:
		return encodeError(r.id, err)
	}
}

// checkHeaders returns an error unless the headers of a stateless POST repeat the arguments
// that the tool's schema marks with x-mcp-header.
func (r *request) checkHeaders(tool *Item) error {
	if tool.Method == nil {
		return nil
	}
	arguments := r.params.object("arguments")
	schema := tool.Method.schema
	// Only what the schema marks is compared: other headers of this kind belong to proxies, or to a
	// client that knows an earlier version of the tool.
	for name := range schema.Properties {
		header := schema.property(name).Header
		if !headerToken.MatchString(header) { // clients omit tools with wrong headers
			continue
		}
		if err := checkHeader(r.header, paramHeader+header, name, arguments.get(name)); err != nil {
			return err
		}
	}
	return nil
}

// send sends a message that belongs to the request: before its answer, or, once the
// answer is written, on the session's stream if the client still has the same access. It
// reports whether the message may arrive.
func (r *request) send(msg []byte) bool {
	if r.out.send(msg) {
		return true
	}
	stream := r.session.primary()
	return stream != nil && r.caller.reachable() && stream.send(msg)
}

// notify sends a notification that belongs to the request, if the client wants it. Modules report
// progress under tokens of usher's own, because those of clients repeat.
func (r *request) notify(method string, params object) {
	if method == "notifications/progress" {
		if isNull(r.token) {
			return
		}
		params = params.set("progressToken", r.token)
	}
	if r.session.wants(method, params) {
		r.send(encodeRequest(nil, method, params))
	}
}

// view returns the modules that the request may reach now. It must be called at each
// use, as a claim may end at any time. With an error, which is for the client, the view
// is empty.
func (r *request) view() (*View, error) {
	scope, err := r.principal.scope()
	return r.server.modules.View(scope, r.member), err
}

// readyView waits as Registry.WaitStart does, and then returns the result of view.
func (r *request) readyView() (*View, error) {
	scope, _ := r.principal.scope() // reaches nothing if there is an error
	r.server.modules.WaitStart(r.ctx, scope)
	return r.view()
}

// initialize answers a session's first request.
func (r *request) initialize() (object, error) {
	protocol, caps := parseInitialize(r.params)
	client := clientProfile{caps: caps, name: clientName(r.params.object("clientInfo"))}
	r.session.profile.Store(&client)
	r.server.log.Info("session", "client", client.name, r.logAttrs())
	return r.about(object{{"protocolVersion", quote(protocol)}, {"serverInfo", usherInfo()}}), nil
}

// discover answers what initialize answers, for clients without sessions.
func (r *request) discover() (object, error) {
	return r.about(object{{"supportedVersions", spoken}}), nil
}

// about adds to result what every client learns about usher, and encodes it. It does not
// wait for modules, as some clients give up soon: the instructions only name those that are not
// ready.
func (r *request) about(result object) object {
	view, _ := r.view() // after an error, it is empty: then the instructions name no module
	capabilities := serverCapabilities
	if r.session.era == stateless { // its clients can't subscribe to resources
		capabilities = capabilities.set("resources", json.RawMessage(`{"listChanged":true}`))
	}
	return append(result,
		member{"capabilities", capabilities.encode()},
		member{"instructions", quote(instructions(view))},
	)
}

// serverCapabilities declares what usher can do for a client. It does not depend on the
// hosted modules, which come and go.
var serverCapabilities = members(json.RawMessage(`{
	"completions": {},
	"extensions": {"io.modelcontextprotocol/ui": {}},
	"logging": {},
	"prompts": {"listChanged": true},
	"resources": {"listChanged": true, "subscribe": true},
	"tools": {"listChanged": true}
}`))

// instructions describes the modules in a view for a model, one line each. All modules have
// the same room for their sentences. Modules that find no room are only counted.
func instructions(view *View) string {
	text := "Tools are named MODULE_METHOD. The modules:"
	for i, m := range view.Modules {
		line := "\n- " + m.Label + ": " + clipText(m.About, min(200, 1500/len(view.Modules)))
		if len(text+line) > maxInstructions-20 {
			return text + fmt.Sprintf("\nand %d more.", len(view.Modules)-i)
		}
		text += line
	}
	return text
}

// ping answers that usher is alive.
func (r *request) ping() (object, error) { return object{}, nil }

// setLevel sets the lowest level of log messages that the session wants.
func (r *request) setLevel() (object, error) {
	level := r.params.text("level")
	if err := checkLogLevel(level); err != nil {
		return nil, err
	}
	profile := *r.session.profile.Load() // a copy, because other requests may be reading the profile
	profile.level = level
	r.session.profile.Store(&profile)
	return object{}, nil
}

// showList answers a request for a list.
func (r *request) showList() (object, error) {
	// The list is the view's own text, shared by all callers of the scope; the answer copies it.
	view, _ := r.readyView()
	r.session.markSeen(r.method.list, view)
	return object{{r.method.list, view.Lists[r.method.list]}}, nil
}

// target returns the list that contains the item that the request names, and its name.
func (r *request) target() (list, name string) {
	if r.method.named != "" {
		return r.method.list, r.params.text(r.method.named)
	}
	ref := r.params.object("ref") // of completion/complete
	if ref.text("type") == "ref/prompt" {
		return "prompts", ref.text("name")
	}
	return "resources", ref.text("uri")
}

// find returns the item that the request names, in the view that the caller has now. An
// item that is out of scope causes the same error as one that does not exist. If there is none, find
// waits for modules that may turn out to have it. At the start, it waits for them anyway, unless the
// name begins with that of exactly one module.
func (r *request) find() (*Item, error) {
	view, err := r.view()
	list, name := r.target()
	if r.server.modules.isStarting() && len(view.candidates(name, nil)) != 1 {
		view, err = r.readyView()
	}
	if err == nil && view.Lookup(list, name) == nil && view.items[list][name] == nil {
		err = r.server.modules.AwaitName(r.ctx, r.caller, view, name, r.arrived)
		if err == nil {
			view, err = r.view()
		}
	}
	if err != nil {
		return nil, err
	}
	if item := view.Lookup(list, name); item != nil {
		return item, nil
	}
	claimants := view.items[list][name]
	if claimants == nil {
		if err := r.server.modules.Failure(r.ctx, view, name); err != nil {
			return nil, err
		}
	}
	e := rpcErrorf(codeInvalidParams, "unknown %s %q", strings.TrimSuffix(list, "s"), name)
	if list == "resources" {
		e.Data = object{{"uri", quote(name)}}.encode()
		if r.session.era == stateful {
			e.Code = codeNoResource
		}
	} else if claimants != nil {
		e.Message += ": ambiguous, use one of " + itemNames(claimants)
	}
	return nil, e
}

// forward sends the request to the module of the item that it names, and logs it. It looks
// the item up in the scope that the caller has at that moment.
func (r *request) forward() (object, error) {
	var item *Item
	// Call runs this function again if the module is replaced before its process has got the call. So
	// the look-up, and everything that depends on the item, is inside of it.
	result, err := r.server.modules.Call(r.ctx, r.principal, func() (_ object, err error) {
		item, err = r.find()
		if err == nil {
			err = r.checkHeaders(item)
		}
		if err == nil && r.params.get("requestState") != nil && !item.Module.Stateless {
			err = errStaleState
		}
		if err != nil {
			return nil, err
		}
		return item.Call(r.ctx, r.caller, r.name, r.params)
	})
	// Why the request ended says more than how the call failed because of it.
	if err != nil && r.ctx.Err() != nil {
		err = context.Cause(r.ctx)
	}
	r.log(item, result, err)
	return result, err
}

// call forwards a request during which the module may ask the client.
func (r *request) call() (object, error) {
	if r.caller.Stream == nil {
		return r.server.suspended.call(r)
	}
	return r.forward()
}

// callTool calls a tool, with arguments that contain no webhookParam. An error that is not a
// JSON-RPC error, such as an invalid argument or a crash, becomes a failed result, so that a model
// can correct itself.
func (r *request) callTool() (object, error) {
	arguments := r.params.get("arguments")
	list := members(arguments)
	if arguments != nil && list == nil {
		return nil, rpcErrorf(codeInvalidParams, "arguments must be an object")
	}
	// Only the arguments that contain the parameter are encoded again: usually, they stay the bytes
	// that the client sent.
	if kept := withoutWebhook(list); len(kept) < len(list) {
		r.params = r.params.set("arguments", kept.encode())
	}
	result, err := r.call()
	if err != nil && !isRPC(err) && r.ctx.Err() == nil {
		return failure(err.Error()), nil
	}
	return result, err
}

// log logs a request for an item of a module, which is nil if it was not found, and how it
// ended.
func (r *request) log(item *Item, result object, err error) {
	outcome := "done"
	if err != nil {
		outcome = explain(err)
	} else if isTrue(result.get("isError")) {
		outcome = "failed: " + resultText(result)
	}
	_, name := r.target()
	var module, arguments slog.Attr
	if r.server.logArguments {
		arguments = slog.String("arguments", logText(string(r.params.get("arguments"))))
	}
	if item != nil {
		module = slog.String("module", item.Label)
		name = cmp.Or(item.ownName, name)
	}
	r.server.log.Info("call",
		"request", r.name,
		module,
		"method", logText(name),
		"outcome", logText(outcome),
		"took", time.Since(r.arrived).Round(10*time.Microsecond),
		"bytes", result.size(),
		arguments,
		"client", r.session.profile.Load().name,
		r.logAttrs())
}

// listen notifies the client of changes until its streams must end or its claim has
// ended. Then it returns a result.
func (r *request) listen() (object, error) {
	filter := r.params.object("notifications")
	if filter == nil {
		return nil, rpcErrorf(codeInvalidParams, `%s needs an object "notifications"`, listenMethod)
	}
	view, _ := r.readyView()
	honoured := r.session.readFilter(view, filter)
	r.session.listenID = r.id
	// The stream is announced before the acknowledgement is sent: it is the first message on it.
	if !r.session.join(r.out) {
		return nil, rpcErrorf(codeInvalidRequest, "%s needs Accept: text/event-stream", listenMethod)
	}
	acknowledged := object{{"notifications", honoured.encode()}}
	r.session.notify("notifications/subscriptions/acknowledged", acknowledged)
	r.server.follow(r.ctx, r.admission, r.out, r.session.reachable.Done())
	return withMeta(nil, metaSubscription, r.id), context.Cause(r.ctx)
}

// errStopping is the cause of a request's end if the daemon ends.
var errStopping = rpcErrorf(codeRefused, "usher is shutting down")

// ---- Asking clients

// beginAsk returns a reservation that counts a question of a module, which may ask the client. Or it
// returns an error, and the capabilities that the client lacks.
func (r *request) beginAsk(method string, params object) (asked *reservation, lacked clientCaps, err error) {
	if r.principal.Ended() || r.principal.Unreadable() != nil {
		return nil, 0, errNoScope
	}
	lacked, err = r.caller.Client.caps.checkAsk(method, params)
	if err != nil {
		return nil, lacked, err
	}
	// The question stays in memory until a person answers it, long after the client has read it.
	asked = r.server.memory.reserve(r.principal)
	return asked, 0, asked.grow(params.size())
}

// ask sends a module's request to the session's client and waits for its answer.
func (r *request) ask(ctx context.Context, method string, params object) (object, error) {
	asked, _, err := r.beginAsk(method, params)
	if err != nil {
		return nil, err
	}
	defer context.AfterFunc(r.ctx, asked.end) // until then, the call may keep the answer
	defer asked.shrink(params.size())         // but not the question
	// The id is random, so that a late answer to an earlier daemon matches no request of
	// this one.
	id := quote("usher-" + rand.Text())
	answer := make(chan *Message, 1)
	r.session.asked.Store(string(id), answer) // before the client can answer
	defer r.session.asked.Delete(string(id))
	if !r.send(encodeRequest(id, method, params)) {
		return nil, errNoStream
	}
	select {
	case msg := <-answer:
		err = asked.grow(msg.Result.size() + len(marshal(msg.Err))) // one of the two is nil
		if err == nil && msg.Err != nil {
			err = msg.Err
		}
		return msg.Result, err
	case <-r.session.reachable.Done():
		return nil, errNoStream
	case <-r.principal.ctx.Done():
		err = errNoScope
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	// Nobody waits for the answer any longer: the client can take its dialog away.
	r.send(encodeRequest(nil, "notifications/cancelled", object{{"requestId", id}}))
	return nil, err
}

// statePrefix begins usher's own states. A module of the same era has states of its own.
const statePrefix = "usher-"

// errStaleState refuses a state that continues no call.
var errStaleState = rpcErrorf(codeInvalidParams, "requestState is no longer valid: call again without it")

// suspendedCalls are the calls of clients without sessions that may have to wait for
// their clients to return. Safe for concurrent use.
type suspendedCalls struct {
	running   sync.WaitGroup // all calls, suspended or not
	asking    counter        // questions that are not answered
	questions sync.Map       // *question, by the requestState that continues its call, once
}

// question is a question of a module that is not answered.
type question struct {
	call   *suspendedCall
	result object      // of the client's request that gets the question
	answer chan object // 1-buffered
}

// questionKey is the key of a result's one question.
const questionKey = "ask"

// suspendedCall is one call of a client without a session, over all its requests.
type suspendedCall struct {
	request request        // a copy of the client's first request; its caller asks through the call
	held    *reservation   // of the arguments
	asked   chan *question // from ask to next
	done    chan struct{}  // closed when result and err are set
	result  object
	err     error

	current atomic.Pointer[request] // in progress; nil while there is none
	lacked  atomic.Uint32           // the clientCaps that the module asked for and the client lacks
}

// call answers one request of a client. It starts a call, or continues the call whose
// requestState the params contain, and returns when the call ends or the module asks
// something.
func (k *suspendedCalls) call(r *request) (object, error) {
	if strings.HasPrefix(r.params.text("requestState"), statePrefix) {
		return k.resume(r)
	}
	c := &suspendedCall{
		request: *r,
		held:    r.server.memory.reserve(r.principal), // the call may outlive the message
		asked:   make(chan *question),
		done:    make(chan struct{}),
	}
	c.current.Store(r)
	if err := c.held.grow(r.params.size()); err != nil {
		return nil, err
	}
	c.request.caller.Notify = c.notify
	c.request.caller.Ask = c.ask
	// The params are copied, because parts of the message would keep all of it in memory.
	c.request.id = nil
	c.request.params = members(r.params.encode())
	c.request.ctx, c.request.cancel = context.WithCancelCause(r.server.stopped)
	k.running.Go(c.run)
	return c.next(r.ctx)
}

// run makes the call.
func (c *suspendedCall) run() {
	defer close(c.done)
	defer c.held.end()
	defer c.request.cancel(nil)
	defer catch(c.request.server.log, &c.err)
	// forward looks the item up and checks the claim as for any other call. It returns only once no
	// question of the module is open.
	c.result, c.err = c.request.forward()
	// The module's own failure is only a consequence of what the client lacks, which MCP wants to
	// be told by a code. If the module managed without it, its result counts.
	failed := c.err != nil || isTrue(c.result.get("isError"))
	if lacked := clientCaps(c.lacked.Load()); failed && lacked != 0 {
		c.result = nil
		c.err = lacked.errMissing(codeMissingCapability)
	}
}

// notify passes a notification to the request in progress, if there is one.
func (c *suspendedCall) notify(method string, params object) {
	if r := c.current.Load(); r != nil { // the client may continue the call, or hang up, at any time
		r.notify(method, params)
	}
}

// ask asks the client a question of the module, and waits for the answer. While the client
// has an earlier question, the question waits.
func (c *suspendedCall) ask(ctx context.Context, method string, params object) (object, error) {
	k := &c.request.server.suspended
	held, lacked, err := c.request.beginAsk(method, params)
	if err != nil {
		c.lacked.Or(uint32(lacked))
		return nil, err
	}
	defer held.end()
	if !k.asking.reserve(c.request.principal, 1) {
		return nil, rpcErrorf(codeInternal,
			"too many calls await client input (limit %d): answer some", maxSuspended)
	}
	defer k.asking.release(c.request.principal, 1)
	state := statePrefix + rand.Text()
	asked := object{{"method", quote(method)}, {"params", params.encode()}}
	q := &question{call: c, answer: make(chan object, 1)}
	q.result = object{
		{"resultType", quote(resultInput)},
		{"inputRequests", object{{questionKey, asked.encode()}}.encode()},
		{"requestState", quote(state)},
	}
	k.questions.Store(state, q)
	defer k.questions.Delete(state)
	for next := c.asked; ; next = nil {
		select {
		case next <- q: // the client gets it
		case answer := <-q.answer:
			return answer, nil
		case <-c.request.principal.ctx.Done(): // the claim has ended
			c.request.cancel(errNoScope)
			return nil, errNoScope
		case <-ctx.Done(): // the module has withdrawn the question, or nobody answered in time
			return nil, context.Cause(ctx)
		}
	}
}

// next waits until the call ends or the module asks something. If ctx ends, because the
// client has gone away, next cancels the call.
func (c *suspendedCall) next(ctx context.Context) (object, error) {
	select {
	case <-c.done:
		return c.result, c.err
	case q := <-c.asked:
		// From now on, notifications of the module reach nobody: the request in progress is about to get
		// its answer, and the client has no stream.
		c.current.Store(nil)
		return q.result, nil
	case <-ctx.Done():
		// Only while a request is in progress: a client that got a question may be away for as long
		// as the module waits for the answer.
		c.request.cancel(context.Cause(ctx))
		<-c.done
		return nil, context.Cause(ctx)
	}
}

// resume continues the suspended call of a request by the request's answer, which counts for the call,
// and returns what next returns. The state becomes invalid. If there is no answer, resume returns the
// question again instead. If the answer finds no room, it returns an error. In both cases, the call is
// still suspended.
func (k *suspendedCalls) resume(r *request) (object, error) {
	state := r.params.text("requestState")
	found, _ := k.questions.Load(state)
	q, _ := found.(*question)
	// The state alone, although random, is not enough: it may have been seen in a log.
	if q == nil || q.call.request.principal != r.principal {
		return nil, errStaleState // the call may have ended
	}
	answer := r.params.object("inputResponses").object(questionKey)
	if answer == nil {
		return q.result, nil
	}
	held := r.server.memory.reserve(r.principal)
	if err := held.grow(answer.size()); err != nil {
		return nil, err
	}
	if _, isOpen := k.questions.LoadAndDelete(state); !isOpen { // another request has continued the call
		held.end()
		return nil, errStaleState
	}
	context.AfterFunc(q.call.request.ctx, held.end)
	q.call.current.Store(r)
	q.answer <- answer
	return q.call.next(r.ctx)
}
