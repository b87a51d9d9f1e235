// Streamable HTTP: POST, GET and DELETE of the revisions with sessions and of the
// one without (MCP, basic/transports). It finds out what a request is, and whose;
// mcp.go answers it, and an outbox carries the answer. It knows no module.

package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
)

const (
	eventHeader  = "Last-Event-ID"
	methodHeader = "Mcp-Method"
	nameHeader   = "Mcp-Name"
	paramHeader  = "Mcp-Param-" // and the name that a tool's schema gives

	batchProtocol = "2025-03-26" // the one version that has batches
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
	if err := checkJSON(body); err != nil {
		return refuse(nil, err)
	}
	x := inbound{w, r, accept, from}
	if isBatch(body) {
		return s.serveBatch(x, body)
	}
	msg, err := parseValidMessage(body)
	switch {
	case err != nil:
		return refuse(msg.ID, err)
	case isStatelessPOST(r.Header, msg):
		return statelessCode(s.serveStateless(x, msg))
	case msg.isRequest() && msg.Method == "initialize":
		return s.serveInitialize(x, msg)
	default:
		return s.serveStateful(x, msg)
	}
}

// serveInitialize answers initialize with a new session.
func (s *Server) serveInitialize(x inbound, msg *Message) error {
	protocol, caps, err := parseInitialize(msg.Params)
	if err != nil {
		return refuse(msg.ID, err)
	}
	token, id := s.gate.Create(protocol, uint16(caps), x.from.Principal)
	x.w.Header().Set(sessionHeader, id)
	return s.serveRequest(x, newSession(token), msg)
}

// serveStateful takes a message of a session.
func (s *Server) serveStateful(x inbound, msg *Message) error {
	session, release, err := s.openSession(x.from, msg.ID)
	if err != nil {
		return err
	}
	defer release()
	if msg.isRequest() {
		return s.serveRequest(x, session, msg)
	}
	session.takeOther(msg)
	x.w.WriteHeader(http.StatusAccepted)
	return nil
}

// serveStateless takes a message of a client without sessions.
func (s *Server) serveStateless(x inbound, msg *Message) error {
	if err := x.from.Unknown; err != nil {
		return withID(err, msg.ID)
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
	if err := checkStateless(x.Header, msg); err != nil {
		return refuse(msg.ID, err)
	}
	if msg.Method == listenMethod && !x.accept.stream {
		return &httpError{Status: http.StatusNotAcceptable, ID: msg.ID, Msg: "the answer to subscriptions/listen is a stream: accept text/event-stream"}
	}
	session, err := statelessSession(msg.Params, x.from.Principal)
	if err != nil {
		return refuse(msg.ID, err)
	}
	return s.serveRequest(x, session, msg)
}

// serveRequest answers one request. That its client goes away cancels it if there
// is no session in which the client may come back.
func (s *Server) serveRequest(x inbound, session *Session, msg *Message) error {
	c := client{session: session, streams: s.stopping}
	ctx := x.Context()
	var kept *keptStream
	if session.stateless {
		c.header = x.Header
	} else {
		ctx, kept = context.WithoutCancel(ctx), s.keptStream(answerStream, session)
	}
	c.out = newAnswer(x.w, x.Request, x.accept.stream, kept)
	defer c.out.end()
	r, err := s.begin(ctx, c, msg)
	if err != nil {
		return refuse(msg.ID, err)
	}
	if x.accept.streamFirst && !session.stateless { // else an error has a status
		c.out.start()
	}
	result, err := r.answer()
	status, answer := http.StatusOK, encodeAnswer(msg.ID, result, err)
	switch {
	case answer == nil:
		status = http.StatusAccepted
	case err != nil && session.stateless:
		status = rpcStatus(asRPCError(err).Code)
	}
	c.out.finish(x.w, status, answer, !x.accept.json || x.accept.streamFirst && status == http.StatusOK)
	return nil
}

// keptStream is how a session's client can resume a stream: while it has the
// access under which the messages were sent. An answer is for who made the request.
func (s *Server) keptStream(kind string, session *Session) *keptStream {
	protocol, _ := session.client()
	kept := &keptStream{buffer: &s.replay, kind: kind, session: session.ID, primed: protocol == protocols[0],
		owner: func() (string, bool) { return s.access(session) }}
	if was, _ := s.access(session); kind == answerStream {
		kept.owner = func() (string, bool) {
			is, ok := s.access(session)
			return is, ok && is == was
		}
	}
	return kept
}

// openSession returns the session that a request names.
func (s *Server) openSession(from admission, id ID) (*Session, func(), error) {
	if from.Session == nil {
		return nil, nil, withID(cmp.Or(from.Unknown, errNoSessionID()), id)
	}
	session, release := s.sessions.open(from.Session)
	return session, release, nil
}

// errNoSessionID answers a POST without an Mcp-Session-Id header.
func errNoSessionID() error {
	return httpErrorf(http.StatusBadRequest, "no %s: send initialize first, and then the session id from its answer", sessionHeader)
}

// errSessionEnded answers a request of a session that is no more. A client begins
// anew at that (MCP, basic/transports, "Session Management").
func errSessionEnded() error { return httpErrorf(http.StatusNotFound, noSuchID) }

// withID gives an error the id of the request that it answers.
func withID(err error, id ID) error {
	if e, ok := errors.AsType[*httpError](err); ok {
		e.ID = id
	}
	return err
}

func isBatch(body []byte) bool {
	body = bytes.TrimSpace(body)
	return len(body) > 0 && body[0] == '['
}

// splitBatch is the messages of a batch.
func splitBatch(body []byte) ([]json.RawMessage, error) {
	var list []json.RawMessage
	if err := json.Unmarshal(body, &list); err != nil || len(list) == 0 {
		return nil, rpcErrorf(codeInvalidRequest, "a batch needs at least one message")
	}
	if len(list) > maxBatch {
		return nil, rpcErrorf(codeInvalidRequest, "a batch of %d messages: send %d at most", len(list), maxBatch)
	}
	return list, nil
}

// beginBatch begins the requests of a batch, and returns what waits for the batch
// of their answers; nil where there is nothing to answer.
func (s *Server) beginBatch(ctx context.Context, c client, list []json.RawMessage) func() []byte {
	answers := make([][]byte, len(list))
	var answering sync.WaitGroup
	for i, raw := range list {
		msg, err := parseValidMessage(raw)
		if err == nil && !msg.isRequest() {
			c.session.takeOther(msg)
			continue
		}
		var r *request
		if msg.Method == "initialize" {
			err = cmp.Or(err, error(rpcErrorf(codeInvalidRequest, "initialize can't be part of a batch")))
		}
		if err == nil {
			r, err = s.begin(ctx, c, msg)
		}
		if err != nil {
			answers[i] = encodeError(msg.ID, asRPCError(err))
			continue
		}
		answering.Go(func() {
			result, err := r.answer()
			answers[i] = encodeAnswer(msg.ID, result, err)
		})
	}
	return func() []byte {
		answering.Wait()
		answers = slices.DeleteFunc(answers, func(a []byte) bool { return a == nil })
		if len(answers) == 0 {
			return nil
		}
		return append(append([]byte("["), bytes.Join(answers, []byte(","))...), ']')
	}
}

// serveBatch answers a batch: with one batch of answers, before which there may
// be notifications (MCP 2025-03-26, basic/transports).
func (s *Server) serveBatch(x inbound, body []byte) error {
	session, release, err := s.openSession(x.from, nil)
	if err != nil {
		return err
	}
	defer release()
	if protocol, _ := session.client(); protocol != batchProtocol {
		return refuse(nil, rpcErrorf(codeInvalidRequest, "protocol version %s has no batches: send one message a request", protocol))
	}
	list, err := splitBatch(body)
	if err != nil {
		return refuse(nil, err)
	}
	out := newAnswer(x.w, x.Request, x.accept.stream, s.keptStream(answerStream, session))
	defer out.end()
	answers := s.beginBatch(context.WithoutCancel(x.Context()), client{session: session, out: out, streams: s.stopping}, list)()
	status := http.StatusOK
	if answers == nil {
		status = http.StatusAccepted
	}
	out.finish(x.w, status, answers, answers != nil && (!x.accept.json || x.accept.streamFirst))
	return nil
}

// serveGET is a session's notification stream, or the rest of a stream that broke
// off. Where the request names no session, it begins one of HTTP+SSE.
func (s *Server) serveGET(w http.ResponseWriter, r *http.Request) error {
	if r.Method == http.MethodHead || r.Header.Get(protocolHeader) == modernProtocol {
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
	principal := from.Principal.Key()
	if !s.streams.take(principal, maxStreamsOf) {
		return errManyStreams()
	}
	defer s.streams.give(principal)
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(s.stopping, cancel)()
	conn := newConnection(ctx, func() func(frame) error { return openSSE(w) })
	if from.Session == nil {
		return s.serveSSE(w, r, from.Principal, conn, cancel)
	}
	session, release := s.sessions.open(from.Session)
	defer release()
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
			missed, _ = broken.missed(n)
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
	announcer.Go(func() { s.announceLists(conn.ctx, session, out) })
	out.follow(conn)
	return nil
}

// serveDELETE ends a session at its client's wish.
func (s *Server) serveDELETE(w http.ResponseWriter, r *http.Request) error {
	from, err := s.gate.Admit(r)
	if err != nil {
		return err
	}
	session, release, err := s.openSession(from, nil)
	if err != nil {
		return err
	}
	defer release()
	if err := s.gate.End(from.Session); err != nil && !errors.Is(err, errNoSession) {
		return &httpError{Status: http.StatusServiceUnavailable, Err: err,
			Msg: "the end of the session could not be written down, so it goes on: try again", Header: retryAfter(5)}
	}
	s.sessions.end(session)
	s.modules.EndAffinity(session.ID)
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// isStatelessPOST reports whether a POST is of the revision without sessions: it
// names a version that has none, or one that is not known here, or its message
// says who asks.
func isStatelessPOST(h http.Header, msg *Message) bool {
	version := h.Get(protocolHeader)
	return version != "" && !hasSessions(version) || isStateless(msg.Params)
}

// statelessCode gives an error that has no code the one that it has in this revision.
func statelessCode(err error) error {
	if e, ok := errors.AsType[*httpError](err); ok && e.RPC == nil {
		e.RPC = &rpcError{Code: codeDeclined, Message: e.Msg}
	}
	return err
}

// checkStateless checks what a request says of itself, in the one order that tells
// a header that is missing from a field that is, and both from a version that is
// not spoken.
func checkStateless(h http.Header, msg *Message) error {
	if version := h.Get(protocolHeader); version != modernProtocol && !isStateless(msg.Params) {
		return checkVersion(version) // more it does not tell
	}
	if err := matchHeader(h, methodHeader, msg.Method); err != nil {
		return err
	}
	meta := field(msg.Params, "_meta")
	version, ok := unquote(field(meta, metaProtocol))
	if !ok {
		return rpcErrorf(codeInvalidParams, "_meta needs a string %q", metaProtocol)
	}
	if err := checkCaps(meta); err != nil {
		return err
	}
	if err := matchHeader(h, protocolHeader, version); err != nil {
		return err
	}
	if err := checkVersion(version); err != nil {
		return err
	}
	if !answers(msg.Method, true) {
		return rpcErrorf(codeNoMethod, "unknown method %q", clipText(msg.Method, 100))
	}
	return nil
}

func checkCaps(meta json.RawMessage) error {
	if _, ok := members(field(meta, metaClientCaps)); !ok {
		return rpcErrorf(codeInvalidParams, "_meta needs an object %q", metaClientCaps)
	}
	return nil
}

func checkVersion(version string) error {
	if version == modernProtocol {
		return nil
	}
	e := rpcErrorf(codeUnsupportedVersion, "protocol version %q is not spoken in this way: want %s, or begin with initialize", clipText(version, 50), modernProtocol)
	e.Data = object{{"supported", marshal(spoken())}, {"requested", quote(version)}}.json()
	return e
}

// matchHeader checks that a header says what the body does.
func matchHeader(h http.Header, name, body string) error {
	values := h.Values(name)
	if len(values) == 0 {
		return rpcErrorf(codeHeaderMismatch, "the header %s is missing: want %q", name, clipText(body, 200))
	}
	if len(values) > 1 || values[0] != body {
		return rpcErrorf(codeHeaderMismatch, "the header %s says %q, and the body %q", name, clipText(strings.Join(values, ", "), 200), clipText(body, 200))
	}
	return nil
}

// checkNames checks the headers that repeat whom a request is for, and the
// arguments that a tool's schema marks so.
func (r *request) checkNames(ctx context.Context, h http.Header) error {
	key := map[string]string{"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}[r.method]
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
	if r.method != "tools/call" {
		return nil
	}
	r.waitTool(ctx, body) // or its headers would pass unchecked
	view, err := r.view()
	if err != nil {
		return nil // the call itself is refused
	}
	tool := view.Lookup(body)
	if tool == nil {
		return nil
	}
	for _, m := range tool.Method.headerParams {
		if err := m.check(h, field(r.params, "arguments")); err != nil {
			return err
		}
	}
	return nil
}

// decodeHeader is a header's value, which may be in the form for what is not
// plain ASCII.
func decodeHeader(h http.Header, name string) (string, error) {
	values := h.Values(name)
	if len(values) == 0 {
		return "", rpcErrorf(codeHeaderMismatch, "the header %s is missing", name)
	}
	bad := rpcErrorf(codeHeaderMismatch, "the header %s is malformed: want plain ASCII, or =?base64?…?= with standard padded base64 of UTF-8", name)
	value := values[0]
	if len(values) > 1 || strings.ContainsFunc(value, func(c rune) bool { return c < ' ' && c != '\t' || c > '~' }) {
		return "", bad
	}
	encoded, begins := strings.CutPrefix(value, "=?base64?")
	encoded, ends := strings.CutSuffix(encoded, "?=")
	if !begins || !ends {
		return value, nil
	}
	text, err := base64.StdEncoding.Strict().DecodeString(encoded)
	if err != nil {
		return "", bad
	}
	return string(text), nil
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
