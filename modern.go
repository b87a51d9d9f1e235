// The revision without sessions, over HTTP: each request says who asks and what
// it can do, its headers repeat parts of it, and it is judged on its own (MCP
// 2026-07-28, basic/transports/streamable-http). This file checks all that, and
// hands on; it knows no module.

package main

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	methodHeader = "Mcp-Method"
	nameHeader   = "Mcp-Name"
	paramHeader  = "Mcp-Param-" // and the name that a tool's schema gives
)

// isModernPOST reports whether a POST is of the revision without sessions: it
// names a version that has none, or one that is not known here, or its message
// says who asks.
func isModernPOST(h http.Header, msg *Message) bool {
	version := h.Get(protocolHeader)
	return version != "" && !hasSessions(version) || isModern(msg.Params)
}

// serveModern answers one request of a client without a session. A client that
// goes away cancels it.
func (s *Server) serveModern(w http.ResponseWriter, r *http.Request, msg *Message, accept accepts) error {
	if msg.isNotification() {
		return s.takeModernNote(w, r)
	}
	if !msg.isRequest() {
		return httpErrorf(http.StatusBadRequest, "answers are not taken: send the request anew, with inputResponses")
	}
	if err := checkModern(r.Header, msg); err != nil {
		return refuse(msg.ID, err)
	}
	if msg.Method == listenMethod && !accept.stream {
		return &httpError{Status: http.StatusNotAcceptable, ID: msg.ID, Msg: "the answer to subscriptions/listen is a stream: accept text/event-stream"}
	}
	a, err := s.admitStateless(r)
	if err != nil {
		return named(err, msg.ID)
	}
	session, err := modernSession(msg.Params, a.Principal)
	if err != nil {
		return refuse(msg.ID, err)
	}
	out := newReply(w, accept, s.log)
	out.modern = true
	req := &request{server: s, session: session, params: msg.Params, caller: s.callerOf(session, out.offer, out.there)}
	if err := req.checkNames(r.Context(), r.Header, msg.Method); err != nil {
		return refuse(msg.ID, err)
	}
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	defer context.AfterFunc(s.stopped, func() { cancel(errStopping) })()
	out.carry(r.Context(), func() func() {
		var result json.RawMessage
		var err error
		if msg.Method == listenMethod {
			result, err = s.listen(ctx, session, msg, out.notes)
		} else {
			result, err = req.answer(ctx, msg.Method)
		}
		return func() { out.answer(msg.ID, result, err) }
	})
	return nil
}

// modernCode gives an error that has no code the one that it has in this revision.
func modernCode(err error) error {
	if e, ok := errors.AsType[*httpError](err); ok && e.RPC == nil {
		e.RPC = &rpcError{Code: codeDeclined, Message: e.Msg}
	}
	return err
}

// takeModernNote accepts a notification: there is none that means anything here.
func (s *Server) takeModernNote(w http.ResponseWriter, r *http.Request) error {
	if err := checkVersion(r.Header.Get(protocolHeader)); err != nil {
		return refuse(nil, err)
	}
	if _, err := s.admitStateless(r); err != nil {
		return err
	}
	w.WriteHeader(http.StatusAccepted)
	return nil
}

// checkModern checks what a request says of itself, in the one order that tells
// a header that is missing from a field that is, and both from a version that is
// not spoken.
func checkModern(h http.Header, msg *Message) error {
	if version := h.Get(protocolHeader); version != modernProtocol && !isModern(msg.Params) {
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
	e.Data = joinMembers([]member{{"supported", marshal(spoken())}, {"requested", quote(version)}})
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
func (r *request) checkNames(ctx context.Context, h http.Header, method string) error {
	key := map[string]string{"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}[method]
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
	if method != "tools/call" {
		return nil
	}
	r.settleTool(ctx, body) // or its headers would pass unchecked
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

// admitStateless admits a request without a session. A code that does not hold is
// refused, whatever the flags.
func (s *Server) admitStateless(r *http.Request) (admission, error) {
	a, err := s.gate.Admit(r)
	return a, cmp.Or(err, a.Unknown)
}

// named gives an error the id of its request.
func named(err error, id ID) error {
	if e, ok := errors.AsType[*httpError](err); ok {
		e.ID = id
	}
	return err
}

// modernSession stands for one request: who asks, under which claim.
func modernSession(params json.RawMessage, p Principal) (*Session, error) {
	meta := field(params, "_meta")
	if err := checkCaps(meta); err != nil {
		return nil, err
	}
	if err := checkVersion(stringField(meta, metaProtocol)); err != nil {
		return nil, err
	}
	caps := parseClientCaps(field(meta, metaClientCaps))
	session := newSession(newSessionToken(modernProtocol, uint16(caps), p, time.Now()))
	if level := field(meta, metaLogLevel); level != nil {
		name, _ := unquote(level)
		if !slices.Contains(logLevels, name) {
			return nil, rpcErrorf(codeInvalidParams, "%s: want one of %s", metaLogLevel, strings.Join(logLevels, ", "))
		}
		session.level = name
	}
	session.affinity = affinityKey(p, field(meta, metaClientInfo))
	return session, nil
}

// affinityKey is the affinity of a request without a session: the requests of one
// claim and one client program share it.
func affinityKey(p Principal, info json.RawMessage) string {
	return fmt.Sprintf("%s %q %q", p.Key(), stringField(info, "name"), stringField(info, "version"))
}
