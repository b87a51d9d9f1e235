// MCP over HTTP: POST, GET and DELETE of the revisions with sessions and of the one
// without (MCP, basic/transports), and HTTP+SSE of 2024-11-05. It finds out what a
// message is and whose, begins and ends requests, and has an outbox carry the
// answer, which session.go finds. It knows no module.

package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// The kinds of streams that can be resumed: the first letter of their ids.
const (
	answerStream = "p" // of the answer to a POST
	noticeStream = "g" // of a GET
)

// routes is the endpoint's routing table: at "/" and, as clients expect, at
// "/mcp".
func (s *Server) routes(mux *http.ServeMux) {
	for _, path := range []string{"/{$}", "/mcp"} {
		mux.HandleFunc("POST "+path, handle(s.log, writeMCPError, s.servePOST))
		mux.HandleFunc("GET "+path, handle(s.log, writeMCPError, s.serveGET))
		mux.HandleFunc("DELETE "+path, handle(s.log, writeMCPError, s.serveDELETE))
		mux.HandleFunc(path, handle(s.log, writeMCPError, methodNotAllowed))
	}
}

// methodNotAllowed is ServeMux's own answer, in this endpoint's form.
func methodNotAllowed(_ http.ResponseWriter, r *http.Request) error {
	e := httpErrorf(http.StatusMethodNotAllowed, "%s is not answered here: POST, GET or DELETE", r.Method)
	e.Header = http.Header{"Allow": {"POST, GET, DELETE"}}
	return e
}

// writeMCPError writes an error as a JSON-RPC error.
func writeMCPError(w http.ResponseWriter, e *httpError) {
	rpc := e.RPC
	if rpc == nil {
		rpc = &rpcError{Code: codeRefused, Message: e.Msg}
	}
	writeJSON(w, e.Status, encodeError(e.ID, rpc))
}

// refuse is the answer to what is no message, or a request that is not begun.
func refuse(id ID, err error) error {
	rpc := asRPCError(err)
	return &httpError{Status: rpcStatus(rpc.Code), ID: id, RPC: rpc, Msg: rpc.Message}
}

// accepts is what a client's Accept header allows.
type accepts struct {
	json, stream bool
	streamFirst  bool // the stream is preferred: it comes first
	html         bool // a browser asks
}

// parseAccept reads an Accept header. None at all allows anything.
func parseAccept(values []string) accepts {
	var a accepts
	if len(values) == 0 {
		return accepts{json: true, stream: true}
	}
	for part := range strings.SplitSeq(strings.Join(values, ","), ",") {
		kind, params, err := mime.ParseMediaType(strings.TrimSpace(part))
		if err != nil || params["q"] == "0" {
			continue
		}
		all := kind == "*/*"
		if all || kind == "text/event-stream" || kind == "text/*" {
			a.streamFirst = a.streamFirst || !a.json && !all
			a.stream = true
		}
		a.html = a.html || kind == "text/html"
		a.json = a.json || all || kind == "application/json" || kind == "application/*"
	}
	return a
}

// inbound is one POST.
type inbound struct {
	w http.ResponseWriter
	*http.Request
	accept accepts
	from   admission
}

// servePOST takes one message or batch: requests are answered, anything else is
// accepted. Which revision a message is of, it says itself.
func (s *Server) servePOST(w http.ResponseWriter, r *http.Request) error {
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		return httpErrorf(http.StatusUnsupportedMediaType, "content type %q: want application/json", clipText(r.Header.Get("Content-Type"), 100))
	}
	accept := parseAccept(r.Header.Values("Accept"))
	if !accept.json && !accept.stream && !r.URL.Query().Has("sessionId") {
		return httpErrorf(http.StatusNotAcceptable, "accept %q: want application/json, text/event-stream", clipText(r.Header.Get("Accept"), 100))
	}
	from, err := s.gate.Admit(r)
	if err != nil {
		return err
	}
	body, err := s.bodies.Read(w, r, from.Session != nil || from.Principal != Principal{})
	if err != nil {
		return err
	}
	if from.Session != nil && from.Session.Protocol == sseProtocol {
		return s.takeSSE(w, from.Session, body)
	}
	if from.Session != nil && r.Header.Get(sessionHeader) == "" { // it stands in the URL, where only HTTP+SSE has it
		from.Session = nil
	}
	list, batch, err := splitBody(body)
	if err != nil {
		return refuse(nil, err)
	}
	x := inbound{w, r, accept, from}
	switch msg := list[0]; {
	case batch:
		return s.serveStateful(x, list, batch)
	case msg.fault != nil:
		return refuse(msg.ID, msg.fault)
	case isStatelessPOST(r.Header, msg.Message):
		return s.serveStateless(x, msg)
	case msg.isRequest() && msg.Method == "initialize":
		return s.serveInitialize(x, msg)
	default:
		return s.serveStateful(x, list, batch)
	}
}

// serveInitialize answers initialize with a new session.
func (s *Server) serveInitialize(x inbound, msg inMessage) error {
	protocol, caps, err := parseInitialize(msg.Params)
	if err != nil {
		return refuse(msg.ID, err)
	}
	token, id := s.gate.Create(protocol, caps, x.from.Principal)
	x.w.Header().Set(sessionHeader, id)
	return s.serve(x, newSession(token), []inMessage{msg}, false)
}

// serveStateful takes a message or batch of a session.
func (s *Server) serveStateful(x inbound, list []inMessage, batch bool) error {
	if x.from.Session == nil {
		return cmp.Or(x.from.Unknown, errNoSessionID())
	}
	session := s.sessions.open(x.from.Session)
	if err := session.takes(batch); err != nil {
		return refuse(nil, err)
	}
	return s.serve(x, session, list, batch)
}

// serveStateless takes a message of a client without sessions.
func (s *Server) serveStateless(x inbound, msg inMessage) error {
	if err := x.from.Unknown; err != nil {
		return err
	}
	if msg.isNotification() { // there is none that means anything here
		if err := checkVersion(x.Header.Get(protocolHeader)); err != nil {
			return refuse(nil, err)
		}
		x.w.WriteHeader(http.StatusAccepted)
		return nil
	}
	if !msg.isRequest() {
		return httpErrorf(http.StatusBadRequest, "answers are not taken: send the request anew, with inputResponses")
	}
	if err := checkStateless(x.Header, msg.Message); err != nil {
		return refuse(msg.ID, err)
	}
	if msg.Method == listenMethod && !x.accept.stream {
		return &httpError{Status: http.StatusNotAcceptable, ID: msg.ID, Msg: "the answer to subscriptions/listen is a stream: accept text/event-stream"}
	}
	session, err := statelessSession(msg.Params, x.from.Principal)
	if err != nil {
		return refuse(msg.ID, err)
	}
	return s.serve(x, session, []inMessage{msg}, false)
}

// serve answers the requests among messages. That its client goes away cancels a
// request if there is no session in which the client may come back.
func (s *Server) serve(x inbound, session *Session, list []inMessage, batch bool) error {
	c := client{session: session, streams: s.stopping}
	ctx := x.Context()
	var kept *keptStream
	if session.stateless {
		c.check = func(r *request) error { return checkNames(x.Header, r) }
	} else {
		ctx, kept = context.WithoutCancel(ctx), s.keptStream(answerStream, session)
	}
	c.out = newAnswer(x.w, x.Request, x.accept.stream, kept)
	defer c.out.end()
	asks := slices.ContainsFunc(list, inMessage.isRequest)
	answers := s.dispatch(ctx, c, list, batch)
	if x.accept.streamFirst && !session.stateless && asks { // else an error has a status
		c.out.start()
	}
	answer, err := answers()
	status := http.StatusOK
	switch {
	case answer == nil:
		status = http.StatusAccepted
	case err != nil && session.stateless:
		status = rpcStatus(asRPCError(err).Code)
	}
	stream := status == http.StatusOK && x.accept.streamFirst || answer != nil && !x.accept.json
	c.out.finish(x.w, status, answer, stream || answer == nil && asks) // a cancelled request is answered by the end of its stream
	return nil
}

// inMessage is a message that came in, or why it is none.
type inMessage struct {
	*Message
	fault error
}

func (m inMessage) isRequest() bool { return m.fault == nil && m.Message.isRequest() }

// splitBody is the messages of a body or line: one, or those of a batch.
func splitBody(body []byte) (list []inMessage, batch bool, err error) {
	if err := checkJSON(body); err != nil {
		return nil, false, err
	}
	raws := []json.RawMessage{body}
	if batch = bytes.TrimSpace(body)[0] == '['; batch {
		_ = json.Unmarshal(body, &raws) // it is a valid array
	}
	if len(raws) == 0 || len(raws) > maxBatch {
		return nil, batch, rpcErrorf(codeInvalidRequest, "a batch of %d messages: a batch needs at least one message, and has %d at most", len(raws), maxBatch)
	}
	for _, raw := range raws {
		msg, err := parseValidMessage(raw)
		list = append(list, inMessage{msg, err})
	}
	return list, batch, nil
}

// takes refuses a batch in a session of a version that has none.
func (s *Session) takes(batch bool) error {
	if protocol := s.client().protocol; batch && protocol != batchProtocol {
		return rpcErrorf(codeInvalidRequest, "protocol version %s has no batches: send one message a request", protocol)
	}
	return nil
}

// dispatch takes messages in, whatever the transport: requests begin, in the order
// in which they came, so that what cancels one finds it. It returns what answers
// them, the requests of a batch side by side, and a single one without a goroutine
// more. Where there is nothing to answer, the answer is nil; the error is that of a
// single request.
func (s *Server) dispatch(ctx context.Context, c client, list []inMessage, batch bool) func() (answer []byte, err error) {
	requests := make([]*request, len(list))
	answers, errs := make([][]byte, len(list)), make([]error, len(list))
	for i, m := range list {
		switch {
		case m.fault != nil:
			errs[i] = m.fault
		case !m.isRequest():
			c.session.takeOther(m.Message)
			continue
		case batch && m.Method == "initialize":
			errs[i] = rpcErrorf(codeInvalidRequest, "initialize can't be part of a batch")
		default:
			requests[i], errs[i] = s.begin(ctx, c, m.Message)
		}
		if errs[i] != nil {
			answers[i] = encodeAnswer(m.ID, nil, errs[i])
		}
	}
	answer := func(i int, r *request) {
		var result json.RawMessage
		result, errs[i] = r.answer()
		answers[i] = encodeAnswer(r.id, result, errs[i])
	}
	return func() ([]byte, error) {
		if !batch {
			if requests[0] != nil {
				answer(0, requests[0])
			}
			return answers[0], errs[0]
		}
		var answering sync.WaitGroup
		for i, r := range requests {
			if r != nil {
				answering.Go(func() { answer(i, r) })
			}
		}
		answering.Wait()
		answers = slices.DeleteFunc(answers, func(a []byte) bool { return a == nil })
		if len(answers) == 0 {
			return nil, nil
		}
		return append(append([]byte("["), bytes.Join(answers, []byte(","))...), ']'), nil
	}
}

// begin enters a request among those being answered, whatever the transport; its
// answer must be called. Requests begin in the order in which they come, so that
// what cancels one finds it.
func (s *Server) begin(ctx context.Context, c client, msg *Message) (*request, error) {
	principal := s.gate.Current(c.session.sessionToken)
	r := &request{client: c, server: s, calls: &c.session.calls, id: msg.ID, method: msg.Method, params: msg.Params}
	if isStateless(msg.Params) && !c.session.stateless { // on a connection that may have a session too
		var err error
		if r.session, err = statelessSession(msg.Params, principal); err != nil {
			return nil, err
		}
	}
	var ok bool
	if r.give, ok = s.requests.take(principal.Key(), maxInFlight); !ok {
		return nil, rpcErrorf(codeRefused, "%d requests are being answered for you: wait for some of them", maxInFlight)
	}
	r.ctx, r.cancel = context.WithCancelCause(ctx)
	if err := r.calls.add(string(r.id), r.cancel); err != nil {
		r.cancel(nil)
		r.give()
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
		r.give()
		r.cancel(nil)
	}()
	return r.run(r.ctx)
}

// statelessSession stands for one request of a principal without a session.
func statelessSession(params json.RawMessage, p Principal) (*Session, error) {
	meta := field(params, "_meta")
	if err := checkMeta(meta); err != nil {
		return nil, err
	}
	if err := checkVersion(stringField(meta, metaProtocol)); err != nil {
		return nil, err
	}
	session := newSession(newSessionToken(statelessProtocol, parseClientCaps(field(meta, metaClientCaps)), p, time.Now()))
	session.stateless = true
	if level := field(meta, metaLogLevel); level != nil {
		session.profile.level, _ = unquote(level)
		if !slices.Contains(logLevels, session.profile.level) {
			return nil, rpcErrorf(codeInvalidParams, "%s: want one of %s", metaLogLevel, strings.Join(logLevels, ", "))
		}
	}
	info := field(meta, metaClientInfo)
	session.affinity = fmt.Sprintf("%s %q %q", p.Key(), stringField(info, "name"), stringField(info, "version"))
	return session, nil
}

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

// keptStream is how a session's client can resume a stream: while it has the
// access under which the stream began.
func (s *Server) keptStream(kind string, session *Session) *keptStream {
	kept := &keptStream{buffer: &s.replay, kind: kind, session: session.ID, primed: session.client().protocol == protocols[0]}
	kept.owner, kept.authorized = s.authorized(session)
	return kept
}

// errNoSessionID answers a POST without an Mcp-Session-Id header.
func errNoSessionID() error {
	return httpErrorf(http.StatusBadRequest, "no %s: send initialize first, and then the session id from its answer", sessionHeader)
}

// errSessionEnded answers a request of a session that is no more. A client begins
// anew at that (MCP, basic/transports, "Session Management").
func errSessionEnded() error { return httpErrorf(http.StatusNotFound, noSuchID) }

// serveGET is a session's notification stream, or the rest of a stream that broke
// off. Where the request names no session, it begins one of HTTP+SSE.
func (s *Server) serveGET(w http.ResponseWriter, r *http.Request) error {
	if r.Method == http.MethodHead || r.Header.Get(protocolHeader) == statelessProtocol {
		return methodNotAllowed(w, r) // ServeMux counts HEAD as GET; that revision has no such streams
	}
	if accept := parseAccept(r.Header.Values("Accept")); !accept.stream || accept.html || r.Header.Get("Accept") == "" {
		return httpErrorf(http.StatusNotAcceptable, "this is usher's MCP endpoint: a GET must accept text/event-stream; see usher help serve for how to connect a client")
	}
	if version := r.Header.Get(protocolHeader); version != "" && !hasSessions(version) {
		return httpErrorf(http.StatusBadRequest, "%s %q is not supported: want one of %s", protocolHeader, clipText(version, 50), strings.Join(protocols, ", "))
	}
	from, err := s.gate.Admit(r)
	if err != nil {
		return err
	}
	if from.Session != nil && from.Session.Protocol == sseProtocol {
		return errSessionEnded() // with its stream
	}
	give, ok := s.streams.take(from.Principal.Key(), maxStreamsOf)
	if !ok {
		return errManyStreams()
	}
	defer give()
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(s.stopping, cancel)()
	conn := newConnection(ctx, func() func(frame) error { return openSSE(w) })
	if from.Session == nil {
		return s.serveSSE(w, r, from.Principal, conn, cancel)
	}
	session := s.sessions.open(from.Session)
	var missed []frame
	if stream, n, ok := parseEventID(r.Header.Get(eventHeader)); ok {
		broken := s.replay.find(stream, session.ID)
		if strings.HasPrefix(stream, answerStream) {
			if broken == nil || !broken.resume(conn, n) {
				return httpErrorf(http.StatusGone, "what this stream was about is not kept any more: make the request again")
			}
			broken.follow(conn)
			return nil
		}
		if broken != nil {
			missed, _ = s.replay.after(broken, n)
		}
	}
	return s.serveNotices(session, newStream(conn, s.keptStream(noticeStream, session), missed), conn, cancel)
}

func errManyStreams() error {
	return &httpError{Status: http.StatusTooManyRequests, Msg: "too many streams are open: close one", Header: retryAfter(15)}
}

// serveNotices writes a notification stream of a session until the connection
// ends, which cancel does.
func (s *Server) serveNotices(session *Session, out *outbox, conn *connection, cancel func()) error {
	if !session.join(out) {
		return errManyStreams()
	}
	defer session.leave(out)
	var announcer sync.WaitGroup
	defer announcer.Wait()
	defer cancel()
	defer out.end()
	announcer.Go(func() { s.announce(conn.ctx, session, out) })
	out.follow(conn)
	return nil
}

// duplexClient is a client with one connection for all that goes back and forth:
// HTTP+SSE and stdio.
type duplexClient struct {
	client
	server   *Server
	ctx      context.Context // ends with the connection
	requests sync.WaitGroup  // being answered
}

// newDuplex is a client whose messages will be taken. endStreams has its
// subscriptions end.
func (s *Server) newDuplex(session *Session, conn *connection) (d *duplexClient, endStreams func()) {
	session.setClient(func(p *clientProfile) { *p = clientProfile{protocol: oldestProtocol} })
	out := newStream(conn, nil, nil)
	out.limit, out.queue = maxDuplexOutbox, nil // what comes first is no comment
	streams, endStreams := context.WithCancel(s.stopping)
	return &duplexClient{client: client{session: session, out: out, streams: streams}, server: s, ctx: conn.ctx}, endStreams
}

// take handles a line or body: a message, or a batch of them.
func (d *duplexClient) take(raw []byte) {
	list, batch, err := splitBody(raw)
	if err == nil {
		err = d.session.takes(batch)
	}
	if err != nil {
		d.out.send(encodeError(nil, asRPCError(err)))
		return
	}
	answers := d.server.dispatch(d.ctx, d.client, list, batch)
	d.requests.Go(func() {
		if answer, _ := answers(); answer != nil {
			d.out.send(answer)
		}
	})
}

// cancelAll ends all requests under way.
func (d *duplexClient) cancelAll(why error) {
	for _, cancel := range d.session.calls.all() {
		cancel(why)
	}
}

// serveSSE is the stream of a new HTTP+SSE session.
func (s *Server) serveSSE(w http.ResponseWriter, r *http.Request, p Principal, conn *connection, cancel func()) error {
	token, id := s.gate.Create(sseProtocol, 0, p)
	session := s.sessions.open(token)
	conn.open = func() func(frame) error {
		write := openSSE(w)
		// Relative, as behind a proxy nobody here knows what stands before it.
		_ = writeBody(w, fmt.Appendf(nil, "event: endpoint\ndata: %s?sessionId=%s\n\n", r.URL.Path, id))
		_ = http.NewResponseController(w).Flush() // a client that has gone is noticed with the next event
		return write
	}
	d, endStreams := s.newDuplex(session, conn)
	defer endStreams()
	var taking sync.RWMutex // held to read while a message is taken
	take := func(body []byte) bool {
		taking.RLock()
		defer taking.RUnlock()
		if conn.ctx.Err() != nil {
			return false
		}
		d.take(body)
		return true
	}
	session.take.Store(&take)
	err := s.serveNotices(session, d.out, conn, cancel)
	taking.Lock() // nobody takes a message just now, and from here on nobody will
	session.take.Store(nil)
	taking.Unlock()
	d.cancelAll(errGone)
	session.asked.fail()
	d.requests.Wait()
	s.modules.EndAffinity(session.ID)
	return err
}

// takeSSE takes what the client of an HTTP+SSE stream sends. The answer goes out
// on the stream.
func (s *Server) takeSSE(w http.ResponseWriter, token *sessionToken, body []byte) error {
	if take := s.sessions.open(token).take.Load(); take == nil || !(*take)(body) {
		return errSessionEnded()
	}
	w.WriteHeader(http.StatusAccepted)
	return nil
}

// serveDELETE ends a session at its client's wish.
func (s *Server) serveDELETE(w http.ResponseWriter, r *http.Request) error {
	from, err := s.gate.Admit(r)
	if err != nil {
		return err
	}
	if from.Session == nil {
		return cmp.Or(from.Unknown, errNoSessionID())
	}
	session := s.sessions.open(from.Session)
	if err := s.gate.End(from.Session); err != nil && !errors.Is(err, errNoSession) {
		return &httpError{Status: http.StatusServiceUnavailable, Err: err,
			Msg: "the end of the session could not be written down, so it goes on: try again", Header: retryAfter(5)}
	}
	s.sessions.end(session)
	s.modules.EndAffinity(session.ID)
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// checkNames checks the headers that repeat whom a request is for, and the
// arguments that a tool's schema marks so.
func checkNames(h http.Header, r *request) error {
	key := mcpMethods[r.method].named
	if key == "" {
		return nil
	}
	name, err := decodeHeader(h, nameHeader)
	if err != nil {
		return err
	}
	body := stringField(r.params, key)
	if name != body {
		return rpcErrorf(codeHeaderMismatch, "the header %s says %q, and the body's %s %q", nameHeader, clipText(name, 200), key, clipText(body, 200))
	}
	view, err := r.view()
	if err != nil || r.method != "tools/call" || view.Lookup(body) == nil {
		return nil // else the call itself is refused
	}
	for _, m := range view.Lookup(body).Method.headerParams {
		if err := m.check(h, field(r.params, "arguments")); err != nil {
			return err
		}
	}
	return nil
}

// check checks that a header repeats an argument.
func (m headerParam) check(h http.Header, arguments json.RawMessage) error {
	value := field(arguments, m.name)
	name := paramHeader + m.header
	if value == nil || string(value) == "null" {
		if len(h.Values(name)) > 0 {
			return rpcErrorf(codeHeaderMismatch, "the header %s repeats an argument %q that is not there", name, m.name)
		}
		return nil
	}
	said, err := decodeHeader(h, name)
	if err != nil {
		return err
	}
	text, isText := unquote(value)
	if isText && said == text || !isText && (said == string(value) || sameNumber(said, string(value))) {
		return nil
	}
	return rpcErrorf(codeHeaderMismatch, "the header %s says %q, and the argument %q another value", name, clipText(said, 200), m.name)
}

// sameNumber reports whether a header says a number that floats hold exactly. It
// is written as in JSON: ParseFloat knows other ways, which nobody else does.
func sameNumber(said, number string) bool {
	x, errX := strconv.ParseFloat(said, 64)
	y, errY := strconv.ParseFloat(number, 64)
	return json.Valid([]byte(said)) && errX == nil && errY == nil && x == y && x > -1<<53 && x < 1<<53
}
