// Sessions in memory: the state of connected clients, such as their streams, the lists that
// they have seen, and the resources that they subscribed to. sealed.go decides whether a
// session exists and which claim it has.

package main

import (
	"context"
	"encoding/json"
	"math"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
)

// Session is one client's session. While a session is in use, there is one Session for
// it. A request of a client without sessions has a Session of its own, which ends with
// the request. Safe for concurrent use.
type Session struct {
	token    *sessionToken
	era      eras            // of its client: stateful or stateless
	affinity string          // see Caller.Affinity
	listenID json.RawMessage // id of the subscriptions/listen that it serves; nil for none
	calls    inflight[context.CancelCauseFunc]
	asked    inflight[chan *Message]       // requests to the client
	profile  atomic.Pointer[clientProfile] // the value is never changed
	duplex   atomic.Pointer[duplex]        // of an HTTP+SSE session; nil if it has no stream

	// Guarded by sessionTable.mu, unless the session is in no table:
	principal string // whose limits the session counts toward
	wanted    int64  // resources that the client is notified of

	mu       sync.Mutex
	streams  []*outbox         // open notification streams, oldest first
	lastSeen map[string]string // by name in announcedLists: the fingerprint that the client knows
	ended    bool

	// subscribing is locked while a module is asked, which may take long.
	subscribing   sync.Mutex
	subscriptions map[string]interest // by URI
}

// clientProfile is what a session's client states about itself.
type clientProfile struct {
	caps  clientCaps
	level string // lowest severity of log messages that it wants; "" if not stated
}

// newSession returns a session that is in no table.
func newSession(t *sessionToken) *Session {
	s := &Session{
		token:         t,
		era:           stateful,
		affinity:      t.ID,
		lastSeen:      make(map[string]string),
		subscriptions: make(map[string]interest),
	}
	s.profile.Store(&clientProfile{caps: t.Caps})
	return s
}

// newStatelessSession returns the session of one request without a session, made by a
// principal. The request's _meta identifies the client. h is nil if the transport has no
// headers.
func newStatelessSession(h http.Header, method string, params object, p Principal) (*Session, error) {
	meta := params.get("_meta")
	err := checkStateless(h, method, meta)
	level := stringField(meta, metaLogLevel)
	if err == nil && field(meta, metaLogLevel) != nil {
		err = checkLogLevel(level)
	}
	if err != nil {
		return nil, err
	}
	caps := parseClientCaps(field(meta, metaClientCaps))
	s := newSession(newSessionToken(statelessProtocol, caps, p))
	s.era = stateless
	s.profile.Store(&clientProfile{caps, level})
	s.affinity = hashOf(p.Key(), string(field(meta, metaClientInfo))) // a hash, as it may be long
	return s, nil
}

// handleNotification handles a client's message that is not a request.
func (s *Session) handleNotification(msg *Message) {
	switch {
	case !msg.isNotification():
		if answer, ok := s.asked.remove(string(msg.ID)); ok {
			answer <- msg
		}
	case msg.Method == "notifications/cancelled": // usher needs no other
		if cancel, ok := s.calls.remove(string(field(msg.Params, "requestId"))); ok {
			cancel(errCancelled)
		}
	}
}

// wants reports whether the client wants a notification. A client that has not stated a
// log level gets all log messages, or none if it has no sessions (MCP 2026-07-28,
// server/utilities/logging).
func (s *Session) wants(method string, params json.RawMessage) bool {
	if method != "notifications/message" {
		return true
	}
	lowest := s.profile.Load().level
	if lowest == "" {
		return s.era == stateful
	}
	severity := slices.Index(logLevels, stringField(params, "level"))
	return severity < 0 || severity >= slices.Index(logLevels, lowest)
}

// join begins a notification stream. It returns false if the session has too many streams
// or has ended, or if the client has gone or accepts no stream.
func (s *Session) join(out *outbox) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.streams) >= maxStreams || s.ended || !out.send(frame{}) {
		return false
	}
	s.streams = append(s.streams, out)
	return true
}

// leave removes a stream. When the last stream leaves, leave also ends the session's
// subscriptions at modules.
func (s *Session) leave(out *outbox) {
	s.mu.Lock()
	s.streams = slices.DeleteFunc(s.streams, func(other *outbox) bool { return other == out })
	s.mu.Unlock()
	if s.primary() != nil {
		return
	}
	s.subscribing.Lock()
	defer s.subscribing.Unlock()
	for uri := range s.subscriptions {
		s.pauseLocked(uri)
	}
}

// primary returns the stream for messages to the client, or nil. Each message goes to one
// stream only (MCP, basic/transports, "Multiple Connections"). The newest stream is the
// most likely to have a reader.
func (s *Session) primary() *outbox {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.streams) == 0 {
		return nil
	}
	return s.streams[len(s.streams)-1]
}

// send sends a message on the session's stream. It reports whether the message may
// arrive.
func (s *Session) send(msg []byte) bool {
	out := s.primary()
	return out != nil && out.send(frame{msg: msg})
}

// notify sends a notification on the session's stream, if there is one.
func (s *Session) notify(method string, params object) {
	if s.listenID != nil {
		params = withMeta(params, metaSubscription, s.listenID)
	}
	s.send(encodeRequest(nil, method, params.encode()))
}

// busy reports whether the session can't be forgotten: it has a stream or a request.
func (s *Session) busy() bool { return s.primary() != nil || s.calls.size() > 0 }

// end ends the session's streams and cancels its requests.
func (s *Session) end() {
	s.mu.Lock()
	s.ended = true
	streams := slices.Clone(s.streams) // they leave when they end
	s.mu.Unlock()
	for _, out := range streams {
		out.end()
	}
	for _, cancel := range s.calls.close(errNoSession) {
		cancel(errNoSession)
	}
	s.failAsks()
}

// sessionTable contains the sessions that are in use or were used recently. If a
// principal has more than maxSessionsOf, the table forgets its least recently used idle
// sessions: their log levels, their subscriptions, and which lists they have seen. Safe
// for concurrent use.
type sessionTable struct {
	mu     sync.Mutex
	live   map[string]*Session   // by token ID
	own    map[string][]*Session // by principal; most recently used last
	wanted quota                 // resources that sessions are notified of, by principal
}

// open returns the session of a token, and records that principal uses it now.
func (t *sessionTable) open(token *sessionToken, principal string) *Session {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.removeLocked(token)
	if s == nil {
		s = newSession(token)
	}
	t.addLocked(s, principal)
	if own := t.own[principal]; len(own) > maxSessionsOf {
		idle := slices.IndexFunc(own[:maxSessionsOf], func(s *Session) bool { return !s.busy() })
		if idle >= 0 {
			t.removeLocked(own[idle].token)
		}
	}
	return s
}

// addLocked adds a session for a principal.
func (t *sessionTable) addLocked(s *Session, principal string) {
	s.principal = principal
	t.live[s.token.ID] = s
	t.own[principal] = append(t.own[principal], s)
	t.wanted.add(principal, s.wanted, math.MaxInt64, math.MaxInt64)
}

// removeLocked removes a token's session and returns it, or nil if there is none.
func (t *sessionTable) removeLocked(token *sessionToken) *Session {
	s := t.live[token.ID]
	if s == nil {
		return nil
	}
	delete(t.live, token.ID)
	own := slices.DeleteFunc(t.own[s.principal], func(other *Session) bool { return other == s })
	t.own[s.principal] = own
	if len(own) == 0 {
		delete(t.own, s.principal)
	}
	t.wanted.release(s.principal, s.wanted)
	return s
}

// forget removes the sessions of a principal whose claim has ended. Sessions in use
// remain, and count for endedClaims from now on.
func (t *sessionTable) forget(principal string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, s := range slices.Clone(t.own[principal]) {
		t.removeLocked(s.token)
		if s.busy() {
			t.addLocked(s, endedClaims)
		}
	}
}

// want adds n, which may be negative, to the number of resources that a session's client
// is notified of. It returns false if there are too many, or if the session was removed.
func (t *sessionTable) want(s *Session, n int64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	removed := s.era == stateful && t.live[s.token.ID] != s
	if removed || !t.wanted.add(s.principal, n, maxWantedOf, math.MaxInt64) {
		return false
	}
	s.wanted += n
	return true
}

// end removes a session that has ended, and ends what is in progress in it.
func (t *sessionTable) end(token *sessionToken) {
	t.mu.Lock()
	s := t.removeLocked(token)
	t.mu.Unlock()
	if s != nil {
		s.end()
	}
}
