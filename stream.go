// Streamable HTTP: how MCP messages come in by POST and go out as JSON or as
// server-sent events, and the notification stream of a session (MCP,
// basic/transports). It carries messages and knows no module.

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"mime"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	sessionHeader  = "Mcp-Session-Id"
	protocolHeader = "Mcp-Protocol-Version"
	claimHeader    = "Mcp-Claim-Code"

	keepAlive  = 15 * time.Second       // between comments on a silent stream
	coalesce   = 300 * time.Millisecond // changes that close up make one list_changed
	maxQueued  = 1024                   // notifications of one call that wait to be written
	maxStreams = 16                     // notification streams that one session may hold
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
	code := e.Code
	if code == 0 {
		code = codeRefused
	}
	writeJSON(w, e.Status, encodeError(e.ID, &rpcError{Code: code, Message: e.Msg}))
}

func writeJSON(w http.ResponseWriter, status int, body []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	w.Write(append(body, '\n')) // a peer that is gone is no one to tell
}

// accepts is what a client's Accept header allows.
type accepts struct {
	json, stream bool
	streamFirst  bool // the stream is preferred: it comes first
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
		a.json = a.json || all || kind == "application/json" || kind == "application/*"
	}
	return a
}

// servePOST takes one message: a request is answered, anything else accepted.
func (s *Server) servePOST(w http.ResponseWriter, r *http.Request) error {
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		return httpErrorf(http.StatusUnsupportedMediaType, "content type %q: want application/json", clipText(r.Header.Get("Content-Type"), 100))
	}
	accept := parseAccept(r.Header.Values("Accept"))
	if !accept.json && !accept.stream {
		return httpErrorf(http.StatusNotAcceptable, "accept %q: want application/json, text/event-stream", clipText(r.Header.Get("Accept"), 100))
	}
	if err := checkProtocol(r.Header.Get(protocolHeader)); err != nil {
		return err
	}
	body, err := s.guardian.readBody(w, r)
	if err != nil {
		return err
	}
	msg, err := parseMessage(body)
	if err != nil {
		return badMessage(body, msg, err)
	}
	if msg.isRequest() && msg.Method == "initialize" {
		return s.serveInitialize(w, r, msg, accept)
	}
	session, release, err := s.openSession(r, msg.ID)
	if err != nil {
		return err
	}
	defer release()
	if msg.isRequest() {
		return s.serveRequest(w, r, session, msg, accept)
	}
	if msg.isNotification() {
		s.takeNotification(session, msg)
	}
	w.WriteHeader(http.StatusAccepted)
	return nil
}

// badMessage is the answer to what is no message.
func badMessage(body []byte, msg *Message, err error) error {
	rpc := asRPCError(err)
	e := &httpError{Status: http.StatusBadRequest, Msg: rpc.Message, Code: rpc.Code}
	if msg != nil {
		e.ID = msg.ID
	}
	if trimmed := bytes.TrimSpace(body); len(trimmed) > 0 && trimmed[0] == '[' && rpc.Code == codeInvalidRequest {
		e.Msg = "batches are not answered: send one message a request"
	}
	return e
}

// checkProtocol refuses a version header that names no version spoken here. A
// client that sends none is one of the first to speak this transport.
func checkProtocol(version string) error {
	if version == "" || slices.Contains(protocols, version) {
		return nil
	}
	return httpErrorf(http.StatusBadRequest, "%s %q is not supported: want one of %s",
		protocolHeader, clipText(version, 50), strings.Join(protocols, ", "))
}

// openSession finds the session that a request names. One that is unknown,
// forged, expired or ended gets 404, at which a client begins anew (MCP,
// basic/transports, "Session Management").
func (s *Server) openSession(r *http.Request, id ID) (*Session, func(), error) {
	name := r.Header.Get(sessionHeader)
	if name == "" {
		return nil, nil, &httpError{Status: http.StatusBadRequest, ID: id,
			Msg: "no " + sessionHeader + ": send initialize first, and then the session id from its answer"}
	}
	session, release, err := s.sessions.Open(name)
	if err != nil {
		return nil, nil, noSession(id)
	}
	if err := s.admitSession(r, session, id); err != nil {
		release()
		return nil, nil, err
	}
	return session, release, nil
}

func noSession(id ID) error {
	return &httpError{Status: http.StatusNotFound, ID: id, Msg: "this session is unknown or has ended: send initialize again"}
}

// presentedCodes is the claim codes in a request, in the order in which they
// count. What stands in Authorization counts only if it has the form of a code:
// some clients can set no other header.
func presentedCodes(r *http.Request) []Code {
	scheme, bearer, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") { // in any case: RFC 9110, section 11.1
		bearer = ""
	}
	var codes []Code
	for _, s := range []string{r.Header.Get(claimHeader), r.URL.Query().Get("claim"), bearer} {
		if code, ok := parseCode(s); ok && !slices.Contains(codes, code) {
			codes = append(codes, code)
		}
	}
	return codes
}

// admitSession judges a request of a session by the codes that it presents. A
// claim that it is scoped to by that is written down before anything is done.
func (s *Server) admitSession(r *http.Request, session *Session, id ID) error {
	was := session.scopedTo()
	v, claim, err := s.gate.admit(presentedCodes(r), was)
	if err != nil || v == unclaimed || v == unavailable {
		return refusal(v, err, id)
	}
	if v != presented || was != nil && *was == claim {
		return nil
	}
	if err := s.sessions.Stamp(r.Context(), session, claim); errors.Is(err, errNoSession) {
		return noSession(id)
	} else if err != nil {
		return &httpError{Status: http.StatusServiceUnavailable, ID: id, Err: err, Header: retryAfter(5),
			Msg: "the session's claim could not be written down: try again"}
	}
	s.log.Info("session scoped", "session", session.key[:8], "claim", s.gate.name(claim), "label", s.gate.label(claim))
	return nil
}

// refusal is the answer to a request that is let nowhere.
func refusal(v verdict, err error, id ID) error {
	switch {
	case errors.Is(err, errGuessing):
		return &httpError{Status: http.StatusTooManyRequests, ID: id, Msg: err.Error(), Header: retryAfter(30)}
	case v == unclaimed:
		return &httpError{Status: http.StatusUnauthorized, ID: id, Msg: errUnclaimed.Error()}
	default:
		return &httpError{Status: http.StatusServiceUnavailable, ID: id, Msg: errUnreadable.Error(), Err: err, Header: retryAfter(5)}
	}
}

// serveInitialize answers initialize with a new session.
func (s *Server) serveInitialize(w http.ResponseWriter, r *http.Request, msg *Message, accept accepts) error {
	v, claim, err := s.gate.admit(presentedCodes(r), nil)
	if err != nil || v == unclaimed || v == unavailable {
		return refusal(v, err, msg.ID)
	}
	var scopedTo *claimStamp
	if v == presented {
		scopedTo = &claim
	}
	scope := func() Scope {
		if scopedTo == nil {
			return scopeAll()
		}
		scope, _ := s.gate.holds(*scopedTo) // scopeNone with an error
		return scope
	}
	protocol, caps, result, err := s.initialize(r.Context(), msg.Params, scope)
	out := &reply{w: w, accept: accept}
	if err != nil {
		out.finish(encodeError(msg.ID, asRPCError(err)))
		return nil
	}
	session, id := s.sessions.Create(protocol, caps, scopedTo)
	if scopedTo != nil {
		s.log.Info("session", "session", session.key[:8], "claim", s.gate.name(claim), "label", s.gate.label(claim))
	}
	w.Header().Set(sessionHeader, id)
	out.finish(encodeResult(msg.ID, result()))
	return nil
}

// serveRequest answers one request of a session. A client that goes away does
// not cancel it: so say the versions that have sessions.
func (s *Server) serveRequest(w http.ResponseWriter, r *http.Request, session *Session, msg *Message, accept accepts) error {
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(r.Context()))
	defer cancel(nil)
	defer context.AfterFunc(s.stopped, func() { cancel(errStopping) })()
	if err := session.calls.add(string(msg.ID), cancel); err != nil {
		if errors.Is(err, errNoSession) {
			return &httpError{Status: http.StatusNotFound, ID: msg.ID, Msg: "this session has ended: send initialize again"}
		}
		return &httpError{Status: http.StatusBadRequest, ID: msg.ID, Code: codeInvalidRequest, Msg: err.Error()}
	}
	defer session.calls.take(string(msg.ID))
	notes := make(chan []byte, maxQueued)
	req := &request{server: s, session: session, params: msg.Params}
	req.caller = Caller{Session: session.key, Notify: req.queue(notes)}
	out := &reply{w: w, accept: accept}
	if accept.streamFirst {
		out.begin()
	}
	if mcpMethods[msg.Method].quick {
		result, err := req.answer(ctx, msg.Method)
		out.answer(msg.ID, result, err)
		return nil
	}
	done := make(chan func(), 1)
	go func() {
		result, err := req.answer(ctx, msg.Method)
		done <- func() { out.answer(msg.ID, result, err) }
	}()
	out.carry(notes, done)
	return nil
}

// queue is what a module's notifications during the request are given to. It
// never blocks: a client that does not keep up loses some.
func (r *request) queue(notes chan<- []byte) func(string, json.RawMessage) {
	return func(method string, params json.RawMessage) {
		if method == "notifications/message" && !r.session.wantsLog(stringField(params, "level")) {
			return
		}
		select {
		case notes <- encodeNotification(method, params):
		default:
			r.server.log.Warn("a notification was dropped: the client does not keep up", "method", method)
		}
	}
}

// reply is the answer to one POST. It is plain JSON until there is something to
// say before the answer; then it turns into a stream. Nothing is on the wire
// before the first output. It is for one goroutine.
type reply struct {
	w      http.ResponseWriter
	accept accepts
	sse    *sseWriter // nil before the reply is a stream
}

// begin turns the reply into a stream, if the client takes one.
func (o *reply) begin() bool {
	if o.sse == nil && o.accept.stream {
		o.sse = newSSE(o.w)
	}
	return o.sse != nil
}

// carry writes what comes before the answer, and then the answer.
func (o *reply) carry(notes <-chan []byte, done <-chan func()) {
	tick := time.NewTicker(keepAlive)
	defer tick.Stop()
	for {
		select {
		case note := <-notes:
			if o.begin() {
				o.sse.message(note)
			}
		case <-tick.C:
			if o.begin() {
				o.sse.comment()
			}
		case answer := <-done:
			for len(notes) > 0 { // what was said before the answer comes before it
				if note := <-notes; o.begin() {
					o.sse.message(note)
				}
			}
			answer()
			return
		}
	}
}

// answer writes the answer, or none where the request was cancelled.
func (o *reply) answer(id ID, result json.RawMessage, err error) {
	switch {
	case err == nil:
		o.finish(encodeResult(id, result))
	case errors.Is(err, errCancelled) && o.begin():
		o.sse.comment()
	default:
		o.finish(encodeError(id, asRPCError(err)))
	}
}

// finish writes the last message.
func (o *reply) finish(msg []byte) {
	if !o.accept.json {
		o.begin()
	}
	if o.sse != nil {
		o.sse.message(msg)
		return
	}
	writeJSON(o.w, http.StatusOK, msg)
}

// sseWriter writes server-sent events. Once a write has failed, the peer is
// gone and nothing more is written. It is for one goroutine.
type sseWriter struct {
	w       http.ResponseWriter
	control *http.ResponseController
	err     error
}

// newSSE commits the answer to being a stream, and says so at once: a proxy may
// wait for the first byte.
func newSSE(w http.ResponseWriter) *sseWriter {
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no")
	w.WriteHeader(http.StatusOK)
	s := &sseWriter{w: w, control: http.NewResponseController(w)}
	s.comment()
	return s
}

// message writes one message, which must be one line, as one event.
func (s *sseWriter) message(msg []byte) {
	b := make([]byte, 0, len(msg)+32)
	b = append(append(b, "event: message\ndata: "...), msg...)
	s.write(append(b, "\n\n"...))
}

// comment writes what readers skip: it keeps a silent stream open through
// proxies, and finds out whether the peer still lives.
func (s *sseWriter) comment() { s.write([]byte(":\n\n")) }

func (s *sseWriter) write(b []byte) {
	if s.err != nil {
		return
	}
	// Without a deadline a vanished peer takes what fits into the buffers.
	_ = s.control.SetWriteDeadline(time.Now().Add(writePatience)) // not there in some tests
	if _, s.err = s.w.Write(b); s.err == nil {
		s.err = s.control.Flush()
	}
}

// stream is an open notification stream.
type stream struct{ cancel context.CancelFunc }

// serveGET is a session's notification stream.
func (s *Server) serveGET(w http.ResponseWriter, r *http.Request) error {
	if r.Method == http.MethodHead { // ServeMux counts it as GET
		return methodNotAllowed(w, r)
	}
	if accept := r.Header.Values("Accept"); len(accept) == 0 || !parseAccept(accept).stream {
		return httpErrorf(http.StatusNotAcceptable, "this is usher's MCP endpoint: a GET must accept text/event-stream; see usher help serve for how to connect a client")
	}
	if err := checkProtocol(r.Header.Get(protocolHeader)); err != nil {
		return err
	}
	session, release, err := s.openSession(r, nil)
	if err != nil {
		return err
	}
	defer release()
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(s.stopping, cancel)()
	st := &stream{cancel}
	if !session.join(st) {
		return &httpError{Status: http.StatusTooManyRequests, Msg: "this session has too many streams open: close one",
			Header: retryAfter(15)}
	}
	defer session.leave(st)
	s.carryStream(ctx, session, st, newSSE(w))
	return nil
}

// carryStream writes a notification stream until ctx ends or the peer is gone.
func (s *Server) carryStream(ctx context.Context, session *Session, st *stream, out *sseWriter) {
	news := make(chan []byte)
	var announcer sync.WaitGroup
	defer announcer.Wait()
	defer st.cancel()
	announcer.Go(func() {
		s.announce(ctx, session, func() bool { return session.speaks(st) }, func(msg []byte) {
			select {
			case news <- msg:
			case <-ctx.Done():
			}
		})
	})
	tick := time.NewTicker(keepAlive)
	defer tick.Stop()
	for out.err == nil {
		select {
		case <-ctx.Done():
			return
		case msg := <-news:
			out.message(msg)
		case <-tick.C:
			out.comment()
		}
	}
}

// join adds a stream to the session, unless it has too many or has ended.
func (s *Session) join(st *stream) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.streams) >= maxStreams || s.ended {
		return false
	}
	s.streams = append(s.streams, st)
	return true
}

func (s *Session) leave(st *stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.streams = slices.DeleteFunc(s.streams, func(other *stream) bool { return other == st })
}

// speaks reports whether the stream is the one that messages go out on: a
// message goes out on one only (MCP, basic/transports, "Multiple Connections"),
// and the newest is the likeliest to be heard.
func (s *Session) speaks(st *stream) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.streams) > 0 && s.streams[len(s.streams)-1] == st
}

// claimsLook is how often an open stream looks at its session's claim.
const claimsLook = 2 * time.Second

// announce tells a session that what it sees has changed, until ctx ends or the
// peer is gone. mayTell is asked before each time.
func (s *Server) announce(ctx context.Context, session *Session, mayTell func() bool, send func([]byte)) {
	for ctx.Err() == nil {
		changed := s.views.Changed()
		scope, err := s.scope(session)
		readable := err == nil || errors.Is(err, errEnded) // else nothing is known to have changed
		if readable && mayTell() {
			for _, list := range session.mustHear(s.views.View(scope), s.started) {
				send(encodeNotification("notifications/"+list+"/list_changed", nil))
			}
		}
		look := time.NewTimer(s.nextLook(session))
		select {
		case <-ctx.Done():
			look.Stop()
			return
		case <-look.C:
			continue
		case <-changed:
			look.Stop()
		}
		select { // more is likely to follow
		case <-ctx.Done():
			return
		case <-time.After(coalesce):
		}
	}
}

// nextLook is how long a session's scope can be taken to stay as it is.
func (s *Server) nextLook(session *Session) time.Duration {
	if claim := session.scopedTo(); s.gate != nil && claim != nil {
		if at, ok := s.gate.expiry(*claim); ok {
			return max(time.Millisecond, min(claimsLook, time.Until(at)))
		}
	}
	return claimsLook
}

// mustHear is the lists that the session has to be told have changed; they are
// taken as told. Nothing is known of what a session has from before the daemon's
// start, so that is told; one that has not asked for a list yet has nothing to
// be told of.
func (s *Session) mustHear(view *View, started time.Time) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var changed []string
	for _, list := range announcedLists {
		before, now := s.announced[list], view.Fingerprint(list)
		if before == "" && s.Issued.Before(started) || before != "" && before != now {
			changed = append(changed, list)
		}
		s.announced[list] = now
	}
	return changed
}

// serveDELETE ends a session at its client's wish.
func (s *Server) serveDELETE(w http.ResponseWriter, r *http.Request) error {
	session, release, err := s.openSession(r, nil)
	if err != nil {
		return err
	}
	defer release()
	if err := s.sessions.End(r.Context(), session); err != nil && !errors.Is(err, errNoSession) {
		return &httpError{Status: http.StatusServiceUnavailable, Err: err,
			Msg: "the end of the session could not be written down, so it goes on: try again", Header: retryAfter(5)}
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}
