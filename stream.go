// Streamable HTTP: how MCP messages come in by POST, whose session they are of,
// what that may reach, and the notification stream of a session (MCP,
// basic/transports). It carries messages and knows no module.

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"mime"
	"net/http"
	"strings"
	"sync"
	"time"
)

const (
	eventHeader = "Last-Event-ID"
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

// servePOST takes one message: a request is answered, anything else accepted.
// Which revision it is of, it says itself.
func (s *Server) servePOST(w http.ResponseWriter, r *http.Request) error {
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		return httpErrorf(http.StatusUnsupportedMediaType, "content type %q: want application/json", clipText(r.Header.Get("Content-Type"), 100))
	}
	accept := parseAccept(r.Header.Values("Accept"))
	if !accept.json && !accept.stream && !r.URL.Query().Has("sessionId") {
		return httpErrorf(http.StatusNotAcceptable, "accept %q: want application/json, text/event-stream", clipText(r.Header.Get("Accept"), 100))
	}
	body, err := s.bodies.Read(w, r, true)
	if err != nil {
		return err
	}
	if err := checkJSON(body); err != nil {
		return refuse(nil, err)
	}
	if isBatch(body) {
		return s.serveBatch(w, r, body, accept)
	}
	msg, err := parseValidMessage(body)
	if err != nil {
		return refuse(msg.ID, err)
	}
	if isModernPOST(r.Header, msg) {
		return modernCode(s.serveModern(w, r, msg, accept))
	}
	if msg.isRequest() && msg.Method == "initialize" && !r.URL.Query().Has("sessionId") {
		return s.serveInitialize(w, r, msg, accept)
	}
	session, release, err := s.openSession(r, msg.ID)
	if err != nil {
		return err
	}
	defer release()
	if clientCaps(session.Caps)&capOldSSE != 0 {
		return s.postToPeer(w, session, body)
	}
	if msg.isRequest() {
		return s.serveRequest(w, r, session, msg, accept)
	}
	session.takeOther(msg)
	w.WriteHeader(http.StatusAccepted)
	return nil
}

// refuse is the answer to what is no message, or a request that is not begun.
func refuse(id ID, err error) error {
	rpc := asRPCError(err)
	return &httpError{Status: rpcStatus(rpc.Code), ID: id, RPC: rpc, Msg: rpc.Message}
}

// checkProtocol refuses a version header that names no version spoken here. A
// client that sends none is one of the first to speak this transport.
func checkProtocol(version string) error {
	if version == "" || hasSessions(version) {
		return nil
	}
	return httpErrorf(http.StatusBadRequest, "%s %q is not supported: want one of %s",
		protocolHeader, clipText(version, 50), strings.Join(protocols, ", "))
}

// openSession finds the session that a request names. One that is unknown,
// forged, expired or ended gets 404, at which a client begins anew (MCP,
// basic/transports, "Session Management").
func (s *Server) openSession(r *http.Request, id ID) (*Session, func(), error) {
	a, err := s.gate.Admit(r)
	if err != nil {
		return nil, nil, named(err, id)
	}
	if a.Session == nil {
		return nil, nil, errUnnamed(id)
	}
	session, release := s.sessions.Open(a.Session)
	if r.Method == http.MethodPost && r.Header.Get(sessionHeader) == "" && clientCaps(session.Caps)&capOldSSE == 0 {
		release()
		return nil, nil, errUnnamed(id)
	}
	return session, release, nil
}

// errUnnamed is the answer to a POST that names its session nowhere, or only
// where GET and HTTP+SSE do.
func errUnnamed(id ID) error {
	return &httpError{Status: http.StatusBadRequest, ID: id,
		Msg: "no " + sessionHeader + ": send initialize first, and then the session id from its answer"}
}

func noSession(id ID) error {
	return &httpError{Status: http.StatusNotFound, ID: id, Msg: "this session is unknown or has ended: send initialize again"}
}

// serveInitialize answers initialize with a new session.
func (s *Server) serveInitialize(w http.ResponseWriter, r *http.Request, msg *Message, accept accepts) error {
	a, err := s.gate.Admit(r)
	if err != nil {
		return named(err, msg.ID)
	}
	out := newReply(w, accept, s.log)
	protocol, caps, err := parseInitialize(msg.Params)
	if err != nil {
		out.answer(msg.ID, nil, err)
		return nil
	}
	token, id := s.gate.Create(protocol, uint16(caps), a.Principal)
	w.Header().Set(sessionHeader, id)
	out.answer(msg.ID, s.welcome(r.Context(), newSession(token), protocol), nil)
	return nil
}

// serveRequest answers one request of a session. A client that goes away does
// not cancel it, so say the versions that have sessions: it may come back.
func (s *Server) serveRequest(w http.ResponseWriter, r *http.Request, session *Session, msg *Message, accept accepts) error {
	ctx, end, err := s.beginRequest(r, session, msg)
	if err != nil {
		return err
	}
	defer end()
	out := s.sessionReply(w, accept, session)
	defer out.end()
	req := s.newRequest(ctx, session, msg.Params, out)
	if accept.streamFirst {
		out.begin()
	}
	out.carry(r.Context(), func() func() {
		result, err := req.answer(ctx, msg.Method)
		return func() { out.answer(msg.ID, result, err) }
	})
	return nil
}

// sessionReply is a reply that its client can resume.
func (s *Server) sessionReply(w http.ResponseWriter, accept accepts, session *Session) *reply {
	out := newReply(w, accept, s.log)
	claim := s.gate.Current(session.sessionToken) // at its begin, whenever it turns into a stream
	out.keep = func() *eventLog { return session.keepLog("p", claim, &s.sessions.replay) }
	out.primed = session.isOf(protocols[0])
	return out
}

// beginRequest enters a request among those of its session that are under way.
func (s *Server) beginRequest(r *http.Request, session *Session, msg *Message) (ctx context.Context, end func(), err error) {
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(r.Context()))
	if err := session.begin(msg.ID, cancel); err != nil {
		cancel(nil)
		if errors.Is(err, errNoSession) {
			return nil, nil, noSession(msg.ID)
		}
		return nil, nil, &httpError{Status: http.StatusBadRequest, ID: msg.ID, RPC: rpcErrorf(codeInvalidRequest, "%v", err), Msg: err.Error()}
	}
	stop := context.AfterFunc(s.stopped, func() { cancel(errStopping) })
	return ctx, func() {
		session.calls.take(string(msg.ID))
		stop()
		cancel(nil)
	}, nil
}

// newRequest is a request whose messages to the client go out with its answer,
// or, once that is written, on the session's stream, while that is of the claim
// that the request was made under. ctx ends with the request.
func (s *Server) newRequest(ctx context.Context, session *Session, params json.RawMessage, out *reply) *request {
	authorized := s.stillAuthorized(session)
	send := func(msg []byte) bool { return out.offer(msg) || authorized() && session.tell(msg) }
	there := func() bool { return ctx.Err() == nil && out.there() || session.listens() }
	return &request{server: s, session: session, params: params, caller: s.callerOf(session, send, there)}
}

// batchProtocol is the one version that has batches.
const batchProtocol = "2025-03-26"

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

// batchAnswers collects the answers to a batch. Safe for concurrent use.
type batchAnswers struct {
	mu   sync.Mutex
	list [][]byte
}

func (b *batchAnswers) add(msg []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.list = append(b.list, msg)
}

// join is the batch of answers; nil where there is nothing to answer.
func (b *batchAnswers) join() []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.list) == 0 {
		return nil
	}
	return append(append([]byte("["), bytes.Join(b.list, []byte(","))...), ']')
}

// serveBatch answers a batch: with one batch of answers, before which there may
// be notifications (MCP 2025-03-26, basic/transports).
func (s *Server) serveBatch(w http.ResponseWriter, r *http.Request, body []byte, accept accepts) error {
	session, release, err := s.openSession(r, nil)
	if err != nil {
		return err
	}
	defer release()
	if clientCaps(session.Caps)&capOldSSE != 0 {
		return s.postToPeer(w, session, body)
	}
	if !session.isOf(batchProtocol) {
		return refuse(nil, rpcErrorf(codeInvalidRequest, "protocol version %s has no batches: send one message a request", session.Protocol))
	}
	list, err := splitBatch(body)
	if err != nil {
		return refuse(nil, err)
	}
	out := s.sessionReply(w, accept, session)
	defer out.end()
	var answers batchAnswers
	var under sync.WaitGroup
	requests := false
	for _, raw := range list {
		msg, err := parseValidMessage(raw)
		switch {
		case err != nil:
			answers.add(encodeError(msg.ID, asRPCError(err)))
		case msg.isRequest():
			requests = true
			under.Go(func() {
				if answer := s.answerOfBatch(r, session, msg, out); answer != nil {
					answers.add(answer)
				}
			})
		default:
			session.takeOther(msg)
		}
	}
	if requests && accept.streamFirst {
		out.begin()
	}
	out.carry(r.Context(), func() func() {
		under.Wait()
		return func() {
			if b := answers.join(); b != nil {
				out.finish(http.StatusOK, b)
			} else if out.sse == nil {
				w.WriteHeader(http.StatusAccepted)
			}
		}
	})
	return nil
}

// answerOfBatch answers one request of a batch; nil where it was cancelled.
func (s *Server) answerOfBatch(r *http.Request, session *Session, msg *Message, out *reply) []byte {
	if msg.Method == "initialize" {
		return encodeError(msg.ID, rpcErrorf(codeInvalidRequest, "initialize can't be part of a batch"))
	}
	ctx, end, err := s.beginRequest(r, session, msg)
	if err != nil {
		return encodeError(msg.ID, rpcErrorf(codeInvalidRequest, "%v", err))
	}
	defer end()
	result, err := s.newRequest(ctx, session, msg.Params, out).answer(ctx, msg.Method)
	return encodeAnswer(msg.ID, result, err)
}

// serveGET is a session's notification stream, or the rest of one that broke
// off. Where the request names no session, it begins one of HTTP+SSE.
func (s *Server) serveGET(w http.ResponseWriter, r *http.Request) error {
	if r.Method == http.MethodHead { // ServeMux counts it as GET
		return methodNotAllowed(w, r)
	}
	if !parseAccept(r.Header.Values("Accept")).streamNamed {
		return httpErrorf(http.StatusNotAcceptable, "this is usher's MCP endpoint: a GET must accept text/event-stream; see usher help serve for how to connect a client")
	}
	version := r.Header.Get(protocolHeader)
	if version == modernProtocol {
		return methodNotAllowed(w, r) // it has no such streams
	}
	if err := checkProtocol(version); err != nil {
		return err
	}
	if r.Header.Get(sessionHeader) == "" && !r.URL.Query().Has("sessionId") {
		return s.serveOldSSE(w, r)
	}
	session, release, err := s.openSession(r, nil)
	if err != nil {
		return err
	}
	defer release()
	if clientCaps(session.Caps)&capOldSSE != 0 {
		return noSession(nil) // it ended with its stream
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(s.stopping, cancel)()
	missed, err := s.findMissed(session, r.Header.Get(eventHeader))
	if err != nil {
		return err
	}
	if missed != nil && missed.answer {
		if missed.log.crowded() {
			return &httpError{Status: http.StatusTooManyRequests, Msg: "this stream is read too often at once: close one", Header: retryAfter(15)}
		}
		defer missed.log.read()()
		missed.carry(ctx, newSSE(w))
		return nil
	}
	st := &stream{cancel: cancel, queue: make(chan []byte, maxQueued)}
	if !session.join(st) {
		return &httpError{Status: http.StatusTooManyRequests, Msg: "this session has too many streams open: close one",
			Header: retryAfter(15)}
	}
	s.carryStream(ctx, session, st, newSSE(w), missed)
	return nil
}

// missed is what a client may not have had of a stream.
type missed struct {
	log    *eventLog
	after  int
	answer bool // it is the answer to a POST, and not a notification stream
}

// findMissed finds what a client wants that resumes a stream. Where its claim
// has ended, and for a stream that is no longer kept, it has missed nothing but
// an answer, which it is told.
func (s *Server) findMissed(session *Session, lastEvent string) (*missed, error) {
	if lastEvent == "" {
		return nil, nil
	}
	id, n, ok := parseEventID(lastEvent)
	if _, err := s.scope(session); ok && err == nil {
		if l := session.eventLog(id, s.gate.Current(session.sessionToken)); l != nil {
			if _, _, _, kept := l.after(n); kept {
				return &missed{l, n, id[0] == 'p'}, nil
			}
		}
	}
	if ok && id[0] == 'p' {
		return nil, httpErrorf(http.StatusGone, "what this stream was about is not kept any more: make the request again")
	}
	return nil, nil
}

// replay writes what is there after the last event, and says whether that was
// all, or what to wait for.
func (m *missed) replay(out *sseWriter) (ended bool, grown <-chan struct{}) {
	events, ended, grown, ok := m.log.after(m.after)
	if !ok {
		return true, nil
	}
	for _, msg := range events {
		m.after++
		out.event(m.log.eventID(m.after), msg)
	}
	return ended, grown
}

// carry writes the rest of a stream until it or ctx ends, or the peer is gone.
func (m *missed) carry(ctx context.Context, out *sseWriter) {
	out.comment()
	tick := time.NewTicker(keepAlive)
	defer tick.Stop()
	for out.err == nil {
		ended, grown := m.replay(out)
		if ended {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-grown:
		case <-tick.C:
			out.comment()
		}
	}
}

// carryStream writes a notification stream until ctx ends or the peer is gone,
// after what the client has missed of the one before; then it leaves the session.
func (s *Server) carryStream(ctx context.Context, session *Session, st *stream, out *sseWriter, m *missed) {
	log := session.keepLog("g", s.gate.Current(session.sessionToken), &s.sessions.replay)
	defer log.end()
	defer func() {
		s.leave(session, st)
		for len(st.queue) > 0 { // what was not written is missed
			log.add(<-st.queue)
		}
	}()
	defer log.read()()
	if m != nil {
		m.replay(out)
	}
	if session.isOf(protocols[0]) {
		out.prime(log.eventID(0)) // the last id that the client has is now this stream's
	}
	out.comment()
	var announcer sync.WaitGroup
	defer announcer.Wait()
	defer st.cancel()
	announcer.Go(func() {
		s.announce(ctx, session, func() bool { return session.speaks(st) }, func(list string) {
			st.say(ctx, encodeNotification("notifications/"+list+"/list_changed", nil))
		})
	})
	out.carry(ctx, st.queue, func(msg []byte) string { return log.eventID(log.add(msg)) })
}

// serveDELETE ends a session at its client's wish.
func (s *Server) serveDELETE(w http.ResponseWriter, r *http.Request) error {
	session, release, err := s.openSession(r, nil)
	if err != nil {
		return err
	}
	defer release()
	err = s.gate.End(session.sessionToken)
	if err == nil {
		s.sessions.End(session)
	}
	s.views.EndAffinity(session.key)
	if err != nil && !errors.Is(err, errNoSession) {
		return &httpError{Status: http.StatusServiceUnavailable, Err: err,
			Msg: "the end of the session could not be written down, so it goes on: try again", Header: retryAfter(5)}
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}
