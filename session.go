// Sessions: what clients are answered and told, for every transport and revision
// alike. A request reaches modules only through the View of its caller's scope,
// and whether the caller still has the access that it had is asked in one place.
// Here too is what is kept in memory of clients while they are connected: which
// lists they have seen, and which resources they want to hear of. Whether a session
// goes on, and which claim it has, is in scope.go. This file knows no HTTP, no
// registry and no process.

package main

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// handleNotification acts on what a client sends that is no request.
func (s *Session) handleNotification(msg *Message) {
	switch {
	case !msg.isNotification():
		s.asked.answer(msg)
	case msg.Method == "notifications/cancelled": // of the others usher needs none
		if cancel, ok := s.calls.remove(string(field(msg.Params, "requestId"))); ok {
			cancel(errCancelled)
		}
	}
}

// Session is one client's session. There is one value for a session while
// something of it is under way. A request of a client without sessions has one of
// its own, which ends with it.
type Session struct {
	*sessionToken
	lastUse      time.Time                         // of its table, which guards it, and principal
	principal    string                            // whose it counts as
	stateless    bool                              // it stands for one request of a client without sessions
	affinity     string                            // whose process of a hosted server serves it
	subscription json.RawMessage                   // id of the subscriptions/listen that it stands for
	calls        inflight[context.CancelCauseFunc] // requests being answered, by id
	asked        pendingRequests                   // requests to the client, by our id
	profile      atomic.Pointer[clientProfile]     // replaced as a whole
	take         atomic.Pointer[func([]byte) bool] // takes the messages of an HTTP+SSE session; false once its stream has ended

	mu       sync.Mutex
	streams  []*outbox         // open notification streams, oldest first
	lastSeen map[string]string // fingerprints of the lists that the client knows, of announcedLists
	ended    bool

	subscribing   sync.Mutex
	subscriptions map[string]interest // resources whose changes it wants to hear of, by URI
}

// newSession is a session with nothing under way.
func newSession(t *sessionToken) *Session {
	s := &Session{sessionToken: t, affinity: t.ID, lastSeen: make(map[string]string), subscriptions: make(map[string]interest)}
	s.profile.Store(&clientProfile{protocol: t.Protocol, caps: t.Caps})
	return s
}

// clientProfile is what the client of a session says of itself.
type clientProfile struct {
	protocol string // as negotiated
	caps     clientCaps
	level    string // least severity of log messages that it wants; "" where it has not said
}

// join adds a notification stream, unless there are too many or the session has
// ended.
func (s *Session) join(out *outbox) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.streams) >= maxStreams || s.ended {
		return false
	}
	s.streams = append(s.streams, out)
	return true
}

// leave takes a stream off. With the last one, no module is listened to any more.
func (s *Session) leave(out *outbox) {
	s.mu.Lock()
	s.streams = slices.DeleteFunc(s.streams, func(other *outbox) bool { return other == out })
	silent := len(s.streams) == 0
	s.mu.Unlock()
	if !silent {
		return
	}
	s.subscribing.Lock()
	defer s.subscribing.Unlock()
	for uri := range s.subscriptions {
		s.pauseLocked(uri)
	}
}

// primary is the stream that messages go out on; nil for none. A message goes out
// on one only (MCP, basic/transports, "Multiple Connections"), and the newest is
// the likeliest to be heard.
func (s *Session) primary() *outbox {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.streams) == 0 {
		return nil
	}
	return s.streams[len(s.streams)-1]
}

// send sends a message on the session's stream, if there is one.
func (s *Session) send(msg []byte) bool {
	out := s.primary()
	return out != nil && out.send(msg)
}

// notify is send for a notification that the client listens for.
func (s *Session) notify(method string, params object) {
	if s.subscription != nil {
		params = withMeta(params, metaSubscription, s.subscription)
	}
	if params == nil {
		s.send(encodeRequest(nil, method, nil))
		return
	}
	s.send(encodeRequest(nil, method, params.encode()))
}

// connected reports whether the session has a notification stream open.
func (s *Session) connected() bool { return s.primary() != nil }

// sessionTable is the sessions that something is under way for, or was lately.
// Where a principal has too many, idle ones are forgotten: their log levels and
// subscriptions are lost, and which lists they have seen. The zero value is empty.
// Safe for concurrent use.
type sessionTable struct {
	mu   sync.Mutex
	live map[string]*Session // by the token's ID
}

// sessionGrace is how long a session is not idle after its last request began.
const sessionGrace = 10 * time.Second

// open returns the session of a token.
func (t *sessionTable) open(token *sessionToken, principal string) *Session {
	t.mu.Lock()
	defer t.mu.Unlock()
	session := t.live[token.ID]
	if session == nil {
		count := 1
		maps.DeleteFunc(t.live, func(_ string, s *Session) bool {
			if s.principal == principal {
				count++
			}
			return s.principal == principal && count > maxSessionsOf && time.Since(s.lastUse) > sessionGrace && s.calls.size() == 0 && !s.connected()
		})
		session = newSession(token)
		if t.live == nil {
			t.live = make(map[string]*Session)
		}
		t.live[token.ID] = session
	}
	session.lastUse, session.principal = time.Now(), principal
	return session
}

// end takes a session away that has ended, and cancels what is under way in it.
func (t *sessionTable) end(token *sessionToken) {
	t.mu.Lock()
	session := t.live[token.ID]
	delete(t.live, token.ID)
	t.mu.Unlock()
	if session == nil {
		return
	}
	session.mu.Lock()
	session.ended = true
	streams := slices.Clone(session.streams) // which leave as they end
	session.mu.Unlock()
	for _, out := range streams {
		out.end()
	}
	for _, cancel := range session.calls.close(errNoSession) {
		cancel(errNoSession)
	}
	session.asked.fail()
}

// announce tells a session on one of its streams which lists in its view have
// changed, and keeps its subscriptions, within ctx: subscribing has that to wait
// for. It is to be called again when changed is closed, and from time to time. The
// error is that of the session's scope.
func (s *Server) announce(ctx context.Context, session *Session, out *outbox, subscribing *sync.WaitGroup) (changed <-chan struct{}, err error) {
	changed = s.modules.Changed()
	scope, err := s.scope(session)
	if err != nil && !errors.Is(err, errEnded) || session.primary() != out {
		return changed, err // nothing is known to have changed, or it is told elsewhere
	}
	view := s.modules.View(scope)
	for _, list := range session.unseenChanges(view, s.started) {
		session.notify("notifications/"+list+"/list_changed", nil)
	}
	if session.subscribing.TryLock() { // or it is being done, maybe by a module that hangs
		subscribing.Go(func() {
			defer session.subscribing.Unlock()
			defer catch(s.log, new(error))
			for uri := range session.subscriptions {
				scope, _ := s.scope(session) // now: the claim may have ended meanwhile
				if err := s.keepSubscription(ctx, session, s.modules.View(scope).Lookup("resources", uri), uri); err != nil {
					s.log.Debug("a subscription to a resource failed", "why", err) // tried again at the next change
				}
			}
		})
	}
	return changed, err
}

// markSeen notes which list the client was given. One with a stream open is told of
// each change there, whether or not it has asked meanwhile.
func (s *Session) markSeen(what string, view *View) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if slices.Contains(announcedLists, what) && (len(s.streams) == 0 || s.lastSeen[what] == "") {
		s.lastSeen[what] = view.Fingerprint(what)
	}
}

// unseenChanges returns the lists that have changed since the client last saw them,
// and marks them as seen. A client that has not asked for a list yet is not told of
// it; but nobody knows what one has seen that is older than the daemon: it gets
// every list once.
func (s *Session) unseenChanges(view *View, started time.Time) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var changed []string
	for _, list := range announcedLists {
		before, now := s.lastSeen[list], view.Fingerprint(list)
		if before != now && (before != "" || s.Issued.Before(started)) {
			changed = append(changed, list)
			s.lastSeen[list] = now
		}
	}
	return changed
}

// interest is how a session hears of the changes of a resource that it has
// subscribed to. The zero value is that it does not just now.
type interest struct {
	of *Item // as the module is listened to
	at *subscription
}

// subscribeTimeout is how long a module may take to answer that it tells of a
// resource's changes.
const subscribeTimeout = 10 * time.Second

var errManyWanted = rpcErrorf(codeInvalidParams, "too many resources are subscribed to (%d at most, with URIs of %s in all): unsubscribe from some", maxWanted, formatSize(maxWantedBytes))

// tooMany reports whether one session may not subscribe to all of these.
func tooMany(uris []string, more ...string) bool {
	uris = append(uris, more...)
	return len(uris) > maxWanted || len(strings.Join(uris, "")) > maxWantedBytes
}

// unsubscribe undoes subscribe. Unknown URIs are ignored.
func (s *Session) unsubscribe(uri string) {
	s.subscribing.Lock()
	defer s.subscribing.Unlock()
	s.pauseLocked(uri)
	delete(s.subscriptions, uri)
}

// pauseLocked has no module listened to for a resource, until that is wanted again.
func (s *Session) pauseLocked(uri string) {
	if at := s.subscriptions[uri].at; at != nil {
		at.release()
	}
	s.subscriptions[uri] = interest{}
}

// keepSubscription has the module whose resource it is in the session's view by
// now, and no other, tell of its changes; now is nil where it is nobody's. The
// session's subscribing is held.
func (s *Server) keepSubscription(ctx context.Context, session *Session, now *Item, uri string) error {
	if in := session.subscriptions[uri]; in.of.Same(now) && in.at.alive() {
		return nil
	}
	session.pauseLocked(uri)
	if now == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, subscribeTimeout)
	defer cancel()
	at, err := now.Subscribe(ctx, s.callerOf(session, s.gate.Current(session.sessionToken), session.send), uri, func(params json.RawMessage) {
		scope, err := s.scope(session)
		if err == nil && s.modules.View(scope).Lookup("resources", uri).Same(now) {
			update, _ := members(stripCallID(params))
			session.notify("notifications/resources/updated", update)
		}
	})
	if err == nil {
		session.subscriptions[uri] = interest{now, at}
	}
	return err
}
