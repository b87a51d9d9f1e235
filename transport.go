// MCP over HTTP: POST, GET and DELETE of the revisions with sessions and of the one
// without (MCP, basic/transports), and HTTP+SSE of 2024-11-05. It finds out what a
// message is and whose, begins and ends requests, and has an outbox carry the
// answer, which session.go finds. A browser gets a page instead. It knows no module.

package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"math"
	"mime"
	"net/http"
	"slices"
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
		get := handle(s.log, writeMCPError, s.serveGET)
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) {
			if parseAccept(r.Header.Values("Accept")).html {
				s.servePage(w, r)
			} else {
				get(w, r)
			}
		})
		mux.HandleFunc("DELETE "+path, handle(s.log, writeMCPError, s.serveDELETE))
		mux.HandleFunc(path, handle(s.log, writeMCPError, methodNotAllowed))
	}
}

// methodNotAllowed is ServeMux's own answer, in this endpoint's form.
func methodNotAllowed(_ http.ResponseWriter, r *http.Request) error {
	return &httpError{Status: http.StatusMethodNotAllowed, Msg: r.Method + " is not answered here: POST, GET or DELETE", Header: http.Header{"Allow": {"POST, GET, DELETE"}}}
}

// writeMCPError writes an error as a JSON-RPC error.
func writeMCPError(w http.ResponseWriter, e *httpError) {
	rpc := e.RPC
	if rpc == nil {
		rpc = &rpcError{Code: codeRefused, Message: e.Msg}
	}
	writeJSON(w, e.Status, encodeError(e.ID, rpc))
}

// accepts is what a client's Accept header allows.
type accepts struct {
	json, stream bool
	streamFirst  bool // the stream is preferred: it comes first
	html         bool // a browser asks
}

// parseAccept reads an Accept header. None at all allows anything.
func parseAccept(values []string) (a accepts) {
	for part := range strings.SplitSeq(cmp.Or(strings.Join(values, ","), "*/*"), ",") {
		kind, _, _ := strings.Cut(part, ";")
		switch strings.ToLower(strings.TrimSpace(kind)) {
		case "*/*":
			a.json, a.stream = true, true
		case "application/json", "application/*":
			a.json = true
		case "text/event-stream", "text/*":
			a.stream = true
			a.streamFirst = a.streamFirst || !a.json
		case "text/html":
			a.html = true
		}
	}
	return a
}

// servePOST takes one message or batch: requests are answered, anything else is
// accepted.
func (s *Server) servePOST(w http.ResponseWriter, r *http.Request) error {
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		return httpErrorf(http.StatusUnsupportedMediaType, "content type %q: want application/json", clipText(r.Header.Get("Content-Type"), 100))
	}
	accept := parseAccept(r.Header.Values("Accept"))
	plain := accept.json && r.Header.Get(methodHeader) != listenMethod || r.URL.Query().Has("sessionId") // HTTP+SSE answers elsewhere
	if !plain && !accept.stream {
		return httpErrorf(http.StatusNotAcceptable, "accept %q: want application/json, text/event-stream", clipText(r.Header.Get("Accept"), 100))
	}
	from, err := s.gate.Admit(r)
	if err != nil {
		return err
	}
	body, err := s.bodies.Read(w, r, from.session != nil || from.principal.hasClaim(), from.principal.Key())
	if err != nil {
		return err
	}
	if from.session != nil && from.session.Protocol == sseProtocol {
		session, err := s.openSession(from)
		if err != nil {
			return err
		}
		if take := session.take.Load(); take == nil || !(*take)(body) {
			return errNoSession
		}
		w.WriteHeader(http.StatusAccepted)
		return nil
	}
	var session *Session
	list, batch, err := splitBody(body)
	if err == nil {
		session, err = s.sessionOf(w, r, from, list[0], batch)
	}
	if rpc, ok := errors.AsType[*rpcError](err); ok {
		refusal := &httpError{Status: rpcStatus(rpc.Code), RPC: rpc, Msg: rpc.Message}
		if !batch && list != nil {
			refusal.ID = list[0].ID
		}
		return refusal
	}
	if err == nil {
		s.answerPOST(w, r, accept, client{session: session, streams: s.stopping}, list, batch)
	}
	return err
}

// sessionOf is the session of a POST, by its first message: for initialize a new
// one, and without sessions one of its own.
func (s *Server) sessionOf(w http.ResponseWriter, r *http.Request, from admission, msg inMessage, batch bool) (*Session, error) {
	switch {
	case !batch && msg.fault != nil:
		return nil, msg.fault
	case !batch && isStatelessPOST(r.Header, msg.Message):
		if msg.isNotification() { // there is none that means anything here
			return newSession(&sessionToken{}), cmp.Or(from.badCode, checkVersion(r.Header.Get(protocolHeader)))
		}
		if err := cmp.Or(from.badCode, checkStateless(r.Header, msg.Message)); err != nil {
			return nil, err
		}
		return statelessSession(msg.Params, from.principal)
	case !batch && msg.Method == "initialize" && msg.isRequest():
		protocol, caps, err := parseInitialize(parseParams(msg.Params))
		if err != nil {
			return nil, err
		}
		token, id := s.gate.Create(protocol, caps, from.principal)
		w.Header().Set(sessionHeader, id)
		return newSession(token), nil
	case from.session == nil:
		return nil, cmp.Or(from.badCode, errNoSessionID)
	default:
		return s.openSession(from)
	}
}

// openSession is the live session of who was admitted with one, which may have
// ended while the body of the request came in.
func (s *Server) openSession(from admission) (*Session, error) {
	session := s.sessions.open(from.session, from.principal.Key())
	if s.gate.Ended(from.session) {
		s.sessions.end(from.session)
		return nil, errNoSession
	}
	return session, nil
}

// answerPOST takes messages in and answers the requests among them. That its
// client goes away cancels a request if there is no session in which the client
// may come back.
func (s *Server) answerPOST(w http.ResponseWriter, r *http.Request, accept accepts, c client, list []inMessage, batch bool) {
	conn := &connection{ctx: r.Context()}
	if accept.stream {
		conn.write = sseWriter(w)
	}
	stateless := c.session.stateless
	if stateless {
		c.leaves = r.Context()
		c.out = newOutbox(conn, nil)
		c.check = func(asked *request) error { return checkNames(r.Header, asked) }
	} else {
		c.out = newOutbox(conn, s.keptStream(answerStream, c.session))
	}
	answers := s.dispatch(c, list, batch)
	if answers == nil {
		w.WriteHeader(http.StatusAccepted)
		return
	}
	if accept.streamFirst && !stateless { // else an error has a status
		c.out.send(nil)
	}
	answer, err := answers()
	status := http.StatusOK
	if err != nil && (stateless || batch) {
		status = rpcStatus(asRPCError(err).Code)
	}
	stream := accept.streamFirst && status == http.StatusOK || answer == nil // a cancelled request is answered by the end of its stream
	switch {
	case c.out.finish(answer, stream):
		<-conn.done.Done()
	case answer == nil:
		w.WriteHeader(http.StatusAccepted)
	default:
		writeJSON(w, status, answer)
	}
}

// inMessage is a message that came in, or why it is none.
type inMessage struct {
	*Message
	fault error
	size  int64 // bytes, which it keeps in memory
}

// splitBody is the messages of a body or line: one, or those of a batch.
func splitBody(body []byte) (list []inMessage, batch bool, err error) {
	if err := checkJSON(body, "the message"); err != nil {
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
		list = append(list, inMessage{msg, err, int64(len(raw))})
	}
	return list, batch, nil
}

// dispatch takes messages in, whatever the transport: requests begin, in the order
// in which they came, so that what cancels one finds it. It returns what answers
// them, the requests of a batch side by side, and a single one without a goroutine
// more; nil where there is nothing to answer. An answer is nil that nobody wants
// any more; the error is that of a single request, or of the batch as a whole.
func (s *Server) dispatch(c client, list []inMessage, batch bool) func() (answer []byte, err error) {
	if protocol := c.session.profile.Load().protocol; batch && protocol != batchProtocol {
		err := rpcErrorf(codeInvalidRequest, "protocol version %s has no batches: send one message a request", protocol)
		return func() ([]byte, error) { return encodeError(nil, err), err }
	}
	var taken []func() ([]byte, error)
	for _, msg := range list {
		if msg.fault == nil && !msg.isRequest() {
			c.session.handleNotification(msg.Message)
			continue
		}
		if batch && msg.fault == nil && isStateless(msg.Params) { // nothing would end it with its client
			msg.fault = rpcErrorf(codeInvalidRequest, "a request of %s can't be part of a batch: send it alone", statelessProtocol)
		}
		r, err := s.begin(c, msg)
		taken = append(taken, func() (answer []byte, _ error) {
			var result json.RawMessage
			if err == nil {
				result, err = r.answer()
			}
			switch {
			case err == nil:
				answer = encodeResult(msg.ID, result)
			case !errors.Is(err, errCancelled) && !errors.Is(err, context.Canceled):
				answer = encodeError(msg.ID, asRPCError(err))
			}
			return answer, err
		})
	}
	if len(taken) == 0 {
		return nil
	}
	if !batch {
		return taken[0]
	}
	return func() ([]byte, error) {
		answers := make([]json.RawMessage, len(taken))
		var answering sync.WaitGroup
		for i, answer := range taken {
			answering.Go(func() { answers[i], _ = answer() })
		}
		answering.Wait()
		answers = slices.DeleteFunc(answers, func(answer json.RawMessage) bool { return answer == nil })
		if len(answers) == 0 {
			return nil, nil
		}
		return joinItems(answers), nil
	}
}

// begin enters a request among those being answered; its answer must be called.
func (s *Server) begin(c client, msg inMessage) (r *request, err error) {
	if msg.fault != nil {
		return nil, msg.fault
	}
	r = &request{client: c, server: s, calls: &c.session.calls, id: msg.ID, method: msg.Method}
	r.params = parseParams(msg.Params)
	if !c.session.stateless && isStateless(msg.Params) { // on a connection that may have a session too
		if r.session, err = statelessSession(msg.Params, s.gate.Current(c.session.sessionToken)); err != nil {
			return nil, err
		}
	}
	principal := s.gate.Current(r.session.sessionToken)
	if mcpMethods[r.method].list == "" {
		r.caller = s.callerOf(r.session, principal, r.send)
	}
	var ok bool
	weight := max(msg.size, maxInFlightBytes/maxInFlight)
	if r.give, ok = s.requests.reserve(principal.Key(), weight, maxInFlightBytes); !ok {
		return nil, rpcErrorf(codeRefused, "%d requests, or some as large, are being answered for you: wait for some of them", maxInFlight)
	}
	r.ctx, r.cancel = context.WithCancelCause(s.stopped)
	if err = r.calls.add(string(r.id), r.cancel); err != nil {
		r.cancel(nil)
		r.give()
		return nil, err
	}
	return r, nil
}

// statelessSession stands for one request of a principal without a session.
func statelessSession(params json.RawMessage, p Principal) (*Session, error) {
	meta := field(params, "_meta")
	if err := cmp.Or(checkMeta(meta), checkVersion(stringField(meta, metaProtocol))); err != nil {
		return nil, err
	}
	session := newSession(newSessionToken(statelessProtocol, parseClientCaps(field(meta, metaClientCaps)), p, time.Now()))
	session.stateless = true
	if field(meta, metaLogLevel) != nil {
		level := stringField(meta, metaLogLevel)
		session.profile.Load().level = level // nobody else knows it yet
		if !slices.Contains(logLevels, level) {
			return nil, rpcErrorf(codeInvalidParams, "%s: want one of %s", metaLogLevel, strings.Join(logLevels, ", "))
		}
	}
	info := field(meta, metaClientInfo)
	session.affinity = hashOf(p.Key(), stringField(info, "name"), stringField(info, "version")) // which may be long
	return session, nil
}

// keptStream begins what a session's client can resume a stream by: while it has
// the access that it has now.
func (s *Server) keptStream(kind string, session *Session) func() *keptStream {
	principal := s.gate.Current(session.sessionToken)
	return func() *keptStream {
		return &keptStream{buffer: &s.replay, id: kind + newRequestID(), session: session.ID, resumableFromStart: session.profile.Load().protocol == protocols[0],
			owner: principal.Key(), authorized: s.authorized(session, principal)}
	}
}

// What a request is refused with that names no session, or whose principal has too
// many streams.
var (
	errNoSessionID error = httpErrorf(http.StatusBadRequest, "no %s: send initialize first, and then the session id from its answer", sessionHeader)
	errManyStreams error = httpErrorf(http.StatusTooManyRequests, "too many streams are open: close one").retryAfter(15)
)

// admitGET finds out who a GET is from. The function is to be called at its end.
func (s *Server) admitGET(w http.ResponseWriter, r *http.Request) (*admission, func(), error) {
	version := r.Header.Get(protocolHeader)
	if r.Method == http.MethodHead || version != "" && !hasSessions(version) {
		return nil, nil, methodNotAllowed(w, r) // ServeMux counts HEAD as GET; without sessions there are no such streams
	}
	accept := parseAccept(r.Header.Values("Accept"))
	if !accept.stream && !accept.html || r.Header.Get("Accept") == "" {
		return nil, nil, httpErrorf(http.StatusNotAcceptable, "this is usher's MCP endpoint: a GET must accept text/event-stream; see usher help serve for how to connect a client")
	}
	from, err := s.gate.Admit(r)
	if err != nil {
		return nil, nil, err
	}
	if from.session != nil && from.session.Protocol == sseProtocol {
		return nil, nil, errNoSession // with its stream
	}
	give, ok := s.streams.reserve(from.principal.Key(), 1, maxStreamsOf)
	if !ok {
		err = errManyStreams
	}
	return &from, give, err
}

// serveGET is a session's notification stream, or the rest of a stream that broke
// off. Where the request names no session, it begins one of HTTP+SSE.
func (s *Server) serveGET(w http.ResponseWriter, r *http.Request) error {
	from, give, err := s.admitGET(w, r)
	if err != nil {
		return err
	}
	defer give()
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(s.stopping, cancel)()
	conn := &connection{ctx: ctx, write: sseWriter(w), end: cancel}
	if from.session == nil {
		return s.serveSSE(r.URL.Path, from.principal, conn)
	}
	session, out, err := s.openStream(r, from, conn)
	if err != nil {
		return err
	}
	if out.begun { // with the answer to a request
		out.writeLoop(conn, nil)
		return nil
	}
	return s.serveNotices(session, out, conn)
}

// openStream is what a GET asks for: the rest of the answer to a request, or the
// notifications of the session.
func (s *Server) openStream(r *http.Request, from *admission, conn *connection) (*Session, *outbox, error) {
	session, err := s.openSession(*from)
	if err != nil {
		return nil, nil, err
	}
	stream, n := parseEventID(r.Header.Get(eventHeader))
	broken := s.replay.find(session.ID, stream)
	if strings.HasPrefix(stream, answerStream) {
		if broken == nil || !broken.resume(conn, n) {
			return nil, nil, httpErrorf(http.StatusGone, "what this stream was about is not kept any more: make the request again")
		}
		return session, broken, nil
	}
	missed, _ := s.replay.after(broken, n)
	return session, newOutbox(conn, s.keptStream(noticeStream, session), missed...), nil
}

// serveNotices has an outbox be a notification stream of a session, until the
// connection or the outbox ends.
func (s *Server) serveNotices(session *Session, out *outbox, conn *connection) error {
	if !session.join(out) {
		return errManyStreams
	}
	defer session.leave(out)
	if out.send(nil) {
		var subscribing sync.WaitGroup
		out.writeLoop(conn, func() <-chan struct{} {
			changed, _ := s.announce(conn.ctx, session, out, &subscribing)
			return changed
		})
		subscribing.Wait()
	}
	return nil
}

// inLine is what came in on a connection: a message or batch, or why there is
// none. An *rpcError is answered; with any other, the connection has ended.
type inLine struct {
	text []byte
	err  error
}

// duplexTimeout is how long requests under way may take after the last line.
const duplexTimeout = 30 * time.Second

// serveDuplex answers a client with one connection for all that goes back and
// forth, HTTP+SSE or stdio, until its lines end, or the connection does.
func (s *Server) serveDuplex(session *Session, conn *connection, lines <-chan inLine) (err error) {
	session.profile.Store(&clientProfile{protocol: oldestProtocol})
	streams, endStreams := context.WithCancel(s.stopping)
	defer endStreams()
	c := client{session: session, out: newOutbox(conn, nil), streams: streams, leaves: conn.ctx}
	c.out.limit = maxDuplexOutbox
	var notices, requests sync.WaitGroup
	notices.Go(func() {
		defer conn.end()
		defer catch(s.log, new(error))
		s.serveNotices(session, c.out, conn)
	})
	for err == nil {
		var line inLine
		select {
		case <-conn.ctx.Done():
			line.err = io.EOF
		case line = <-lines:
		}
		list, batch, fault := splitBody(line.text)
		err = cmp.Or(line.err, fault)
		if rpc, ok := errors.AsType[*rpcError](err); ok {
			c.out.send(encodeError(nil, rpc))
			err = nil
		} else if answers := s.dispatch(c, list, batch); answers != nil { // nil for no line
			requests.Go(func() {
				answer, _ := answers()
				c.out.send(answer)
			})
		}
	}
	session.asked.fail() // nobody can answer any more
	endStreams()
	defer time.AfterFunc(duplexTimeout, conn.end).Stop()
	requests.Wait()
	c.out.end()
	notices.Wait()
	if err == io.EOF {
		return nil
	}
	return err
}

// serveSSE is the stream of a new HTTP+SSE session, whose client sends what it has
// to say by POST.
func (s *Server) serveSSE(path string, p Principal, conn *connection) error {
	token, id := s.gate.Create(sseProtocol, 0, p)
	session, lines := s.sessions.open(token, p.Key()), make(chan inLine)
	defer s.modules.EndAffinity(session.ID)
	defer s.sessions.end(token) // with its stream, which it would keep in memory
	take := func(body []byte) bool {
		select {
		case lines <- inLine{text: body}:
			return true
		case <-conn.ctx.Done():
			return false
		}
	}
	session.take.Store(&take)
	// The address is relative, as nobody here knows what stands before it behind a
	// proxy.
	conn.write(frame{event: "endpoint", msg: []byte(path + "?sessionId=" + id)})
	return s.serveDuplex(session, conn, lines)
}

// serveDELETE ends a session at its client's wish.
func (s *Server) serveDELETE(w http.ResponseWriter, r *http.Request) error {
	from, err := s.gate.Admit(r)
	if err != nil {
		return err
	}
	if from.session == nil {
		return cmp.Or(from.badCode, errNoSessionID)
	}
	if err := s.gate.End(from.session); err != nil && !errors.Is(err, errNoSession) {
		return err
	}
	s.sessions.end(from.session)
	s.modules.EndAffinity(from.session.ID)
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// checkStateless checks what a request says of itself, in the one order that tells
// a header that is missing from a field that is, and both from a version that is
// not spoken.
func checkStateless(h http.Header, msg *Message) error {
	if version := h.Get(protocolHeader); version != statelessProtocol && !isStateless(msg.Params) {
		return checkVersion(version) // more it does not tell
	}
	meta := field(msg.Params, "_meta")
	version := field(meta, metaProtocol)
	return cmp.Or(checkHeader(h, methodHeader, "method", quote(msg.Method)), checkMeta(meta), checkHeader(h, protocolHeader, metaProtocol, version),
		checkVersion(stringField(meta, metaProtocol)), checkMethod(msg.Method, true))
}

// checkNames checks the headers that repeat whom a request is for, and the
// arguments that a tool's schema marks so.
func checkNames(h http.Header, r *request) error {
	key := mcpMethods[r.method].named
	if key == "" {
		return nil
	}
	if err := checkHeader(h, nameHeader, key, r.params.get(key)); err != nil {
		return err
	}
	tool, err := r.find()
	if r.method != "tools/call" || err != nil {
		return nil // the call is refused
	}
	for name, header := range tool.Method.headerParams {
		if err := checkHeader(h, paramHeader+header, name, field(r.params.get("arguments"), name)); err != nil {
			return err
		}
	}
	return nil
}

// checkHeader checks that a header repeats a value of the body.
func checkHeader(h http.Header, header, key string, value json.RawMessage) error {
	absent := value == nil || string(value) == "null"
	if absent && len(h.Values(header)) == 0 {
		return nil
	}
	said, err := decodeHeader(h, header)
	if err != nil {
		return err
	}
	text, isText := unquote(value)
	if !absent && (isText && said == text || !isText && (said == string(value) || sameNumber(said, value))) {
		return nil
	}
	return rpcErrorf(codeHeaderMismatch, "the header %s says %q, and the body's %q is %s", header, clipText(said, 200), key, cmp.Or(clipText(string(value), 200), "not there"))
}

// sameNumber reports whether a header says a number that floats hold exactly.
func sameNumber(said string, value json.RawMessage) bool {
	var x, y float64
	err := errors.Join(json.Unmarshal([]byte(said), &x), json.Unmarshal(value, &y))
	return err == nil && x == y && math.Abs(x) < 1<<53
}

// ServeStdio answers the one client at the other end of in and out, until in ends
// or ctx does. When it returns, nothing is under way but a read of in that can't
// be interrupted.
func (s *Server) ServeStdio(ctx context.Context, in io.Reader, out io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	s.suspended = newSuspendedCalls(ctx)
	lines := make(chan inLine)
	go func() {
		for reader := newLineReader(in, maxWorkerLine); ctx.Err() == nil; {
			text, err := reader.next()
			select {
			case lines <- inLine{text, err}:
			case <-ctx.Done():
			}
		}
	}()
	session := newSession(&sessionToken{ID: "stdio", Issued: s.started})
	err := s.serveDuplex(session, &connection{ctx: ctx, write: lineWriter(out), end: cancel}, lines)
	cancel()
	s.suspended.wg.Wait()
	return err
}
