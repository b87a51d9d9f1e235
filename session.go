// Sessions in memory: the state of connected clients, such as their streams, the lists that
// they have seen, and the resources that they subscribed to. sealed.go decides whether a
// session exists and which claim it has.

package main

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"
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

const (
	streamInterval = 2 * time.Second        // between checks of the claim behind a stream or suspended call
	coalesce       = 300 * time.Millisecond // changes within this time make one list_changed
)

// follow notifies a session of changes on out, one of its streams, and removes the stream
// at the end. It returns when end is closed, or when the claim of a client without
// sessions has ended. If ctx ends earlier, follow returns the cause.
func (s *Server) follow(
	ctx context.Context, session *Session, out *outbox, end <-chan struct{},
) error {
	defer session.leave(out)
	var subscribing sync.WaitGroup
	defer subscribing.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // else a module that hangs delays the end
	for {
		changed := s.modules.Changed()
		err := s.announce(ctx, session, out, &subscribing)
		if errors.Is(err, errEnded) && session.era == stateless {
			return nil // no request can present another claim for this stream
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-end:
			return nil
		case <-time.After(streamInterval):
		case <-changed:
			pauseFor(ctx, coalesce) // more changes are likely to follow
		}
	}
}

// announce notifies a session, if out is its primary stream, of the lists in its view
// that have changed, and renews its subscriptions. It asks modules in a goroutine, which
// ends with ctx; the caller must wait for it with subscribing. The error says why the
// session has no scope.
func (s *Server) announce(
	ctx context.Context, session *Session, out *outbox, subscribing *sync.WaitGroup,
) error {
	scope, err := s.scope(session)
	if err != nil && !errors.Is(err, errEnded) {
		return err // the claims can't be read
	}
	if session.primary() != out {
		return err // another stream announces changes
	}
	view := s.modules.View(scope)
	for _, list := range session.unseenChanges(view, s.started) {
		session.notify("notifications/"+list+"/list_changed", nil)
	}
	if session.subscribing.TryLock() { // else a module is still being asked
		subscribing.Go(func() {
			defer session.subscribing.Unlock()
			defer catch(s.log, nil)
			for uri := range session.subscriptions {
				if err := s.keepSubscription(ctx, session, uri); err != nil {
					s.log.Debug("subscribing to a resource failed", "why", err) // retried at the next change
				}
			}
		})
	}
	return err
}

// markSeen records that the client was given a list. While the session has a stream, only
// the first list counts: unseenChanges records what the client is notified of.
func (s *Session) markSeen(what string, view *View) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.streams) == 0 || s.lastSeen[what] == "" {
		s.lastSeen[what] = view.Fingerprints[what]
	}
}

// unseenChanges returns the lists that have changed since the client last saw them, and
// marks them as seen. Lists that the client never asked for are left out. But a session
// older than the daemon may have seen anything, so it is notified of every list once.
func (s *Session) unseenChanges(view *View, started time.Time) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var changed []string
	for _, list := range announcedLists {
		before := s.lastSeen[list]
		now := view.Fingerprints[list]
		if before != now && (before != "" || s.token.Issued.Before(started)) {
			changed = append(changed, list)
			s.lastSeen[list] = now
		}
	}
	return changed
}

// readFilter reads which lists and resources the client of a subscriptions/listen wants
// to be notified of. It marks these lists as seen in view. It returns the part of the
// filter that usher honours.
func (s *Session) readFilter(view *View, filter json.RawMessage) (honoured object) {
	for _, list := range announcedLists {
		key := list + "ListChanged"
		if value := field(filter, key); isTrue(value) {
			s.markSeen(list, view)
			honoured = append(honoured, member{key, value})
		}
	}
	const key = "resourceSubscriptions"
	var uris []string
	_ = json.Unmarshal(field(filter, key), &uris) // items that are not strings are ignored
	uris = slices.DeleteFunc(uris, func(uri string) bool { return view.Lookup("resources", uri) == nil })
	for _, uri := range uris { // needs no lock: no other goroutine has the session yet
		s.subscriptions[uri] = interest{}
	}
	if len(uris) > 0 {
		honoured = append(honoured, member{key, marshal(uris)})
	}
	return honoured
}

// interest is a session's subscription to a resource. The zero value is a
// subscription that no module knows of at the moment.
type interest struct {
	of *Item         // the resource, of the module that was asked
	at *subscription // in that module's process
}

// subscribeTimeout is how long a module may take to answer a subscription.
const subscribeTimeout = 10 * time.Second

var errManyWanted = rpcErrorf(codeInvalidParams,
	"too many subscriptions (limit %d): unsubscribe from some", maxWantedOf)

// unsubscribeLocked ends a subscription. The caller holds session.subscribing.
func (s *Server) unsubscribeLocked(session *Session, uri string) {
	if _, subscribed := session.subscriptions[uri]; subscribed {
		session.pauseLocked(uri)
		delete(session.subscriptions, uri)
		s.sessions.want(session, -1)
	}
}

// pauseLocked ends a subscription at its module, until keepSubscription renews it. The
// caller holds s.subscribing.
func (s *Session) pauseLocked(uri string) {
	if at := s.subscriptions[uri].at; at != nil {
		at.release()
	}
	s.subscriptions[uri] = interest{}
}

// keepSubscription subscribes to the module that owns uri in the session's view now, and
// ends a subscription at any other module. The caller holds session.subscribing.
func (s *Server) keepSubscription(ctx context.Context, session *Session, uri string) error {
	owner := func() *Item { // changes when the claim ends
		scope, _ := s.scope(session) // reaches nothing if there is an error
		return s.modules.View(scope).Lookup("resources", uri)
	}
	now := owner()
	if in := session.subscriptions[uri]; in.of.Same(now) && in.at.alive() {
		return nil
	}
	session.pauseLocked(uri)
	if now == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, subscribeTimeout)
	defer cancel()
	caller := s.callerOf(session, s.gate.Current(session.token), session.send)
	caller.Notify = func(method string, params json.RawMessage) {
		if owner().Same(now) {
			update := members(stripCallID(params))
			session.notify(method, update)
		}
	}
	at, err := now.Subscribe(ctx, caller, uri)
	if err == nil {
		session.subscriptions[uri] = interest{of: now, at: at}
	}
	return err
}
