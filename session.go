// Sessions: what the daemon keeps in memory of clients while they are connected.
// A client is told here what it did not just ask for: that a list in its view has
// changed, and that a resource has. Which claim a session has, and whether it
// goes on, is kept in scope.go; this file knows no HTTP and no worker.

package main

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Session is one client's session. There is one value for a session while
// something of it is under way. A request of a client without sessions has one of
// its own, which ends with it.
type Session struct {
	*sessionToken
	stateless    bool                              // it stands for one request of a client without sessions
	affinity     string                            // whose process of a hosted server serves it
	subscription json.RawMessage                   // id of the subscriptions/listen that it stands for
	calls        inflight[context.CancelCauseFunc] // requests being answered, by id
	asked        pendingRequests                   // requests to the client, by our id
	duplex       atomic.Pointer[duplexClient]      // what takes the messages of an HTTP+SSE session; nil once its stream has ended
	initialized  atomic.Bool                       // the client has the answer to initialize

	mu       sync.Mutex
	users    int               // requests and streams that hold it
	lastUse  time.Time         //
	streams  []*outbox         // open notification streams, oldest first
	lastSeen map[string]string // fingerprints of the lists that the client knows, of announcedLists
	level    string            // least severity of log messages that it wants; "" where it has not said
	protocol string            // as negotiated
	caps     clientCaps
	ended    bool

	subscribing   sync.Mutex
	subscriptions map[string]*interest // resources whose changes it wants to hear of, by URI
}

// newSession is a session with nothing under way.
func newSession(t *sessionToken) *Session {
	s := &Session{sessionToken: t, affinity: t.ID, protocol: t.Protocol, caps: clientCaps(t.Caps)}
	s.initialized.Store(true)
	return s
}

// setClient takes in what the client says of itself in initialize.
func (s *Session) setClient(protocol string, caps clientCaps) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.protocol, s.caps = protocol, caps
}

// client is what the client says of itself.
func (s *Session) client() (protocol string, caps clientCaps) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.protocol, s.caps
}

// wantsLog reports whether the client wants log messages of this severity. One
// that has not said gets all; without sessions, none (MCP 2026-07-28,
// server/utilities/logging).
func (s *Session) wantsLog(severity string) bool {
	level := s.logLevel()
	if level == "" {
		return !s.stateless
	}
	i := slices.Index(logLevels, severity)
	return i < 0 || i >= slices.Index(logLevels, level)
}

// logLevel is the least severity of log messages that the client wants, "" where
// it has not said.
func (s *Session) logLevel() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.level
}

func (s *Session) setLogLevel(level string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.level = level
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
	if silent {
		s.pauseSubscriptions()
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

// notify sends a message on the session's stream, if there is one.
func (s *Session) notify(msg []byte) bool {
	out := s.primary()
	return out != nil && out.send(msg)
}

// connected reports whether the session has a notification stream open.
func (s *Session) connected() bool { return s.primary() != nil }

// sessionTable is the sessions that something is under way for, or was lately. The
// zero value is empty. Safe for concurrent use.
type sessionTable struct {
	mu    sync.Mutex
	live  map[string]*Session // by the token's ID
	swept time.Time           // when idle ones were last looked for
}

// open returns the session of a token, and holds it until release is called.
func (t *sessionTable) open(token *sessionToken) (session *Session, release func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	session = t.live[token.ID]
	if session == nil {
		session = newSession(token)
		if t.live == nil {
			t.live = make(map[string]*Session)
		}
		t.live[token.ID] = session
		t.evictLocked()
	}
	session.mu.Lock()
	session.users++
	session.mu.Unlock()
	return session, func() {
		session.mu.Lock()
		defer session.mu.Unlock()
		session.users--
		session.lastUse = time.Now()
	}
}

// evictLocked forgets the sessions that nothing was under way for in the last
// minute, when there are too many. Eviction looks to the client like a restart of
// the daemon: it gets one list_changed too many, and its log level and
// subscriptions are lost. A flood of new sessions leaves none to forget, so they
// are not looked for each time.
func (t *sessionTable) evictLocked() {
	if len(t.live) <= maxIdleSessions || time.Since(t.swept) < time.Second {
		return
	}
	t.swept = time.Now()
	for id, session := range t.live {
		session.mu.Lock()
		idle := session.users == 0 && !session.lastUse.IsZero() && time.Since(session.lastUse) > time.Minute
		session.mu.Unlock()
		if idle {
			delete(t.live, id)
		}
	}
}

// end takes a session away that has ended, and cancels what is under way in it.
func (t *sessionTable) end(session *Session) {
	t.mu.Lock()
	delete(t.live, session.ID)
	t.mu.Unlock()
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

const (
	claimsInterval = 2 * time.Second        // how often an open stream looks at its session's claim
	coalesce       = 300 * time.Millisecond // changes this close make one list_changed
)

// announce tells a session on one of its streams which lists in its view have
// changed, by tell, until ctx ends. It also keeps the session's subscriptions.
func (s *Server) announce(ctx context.Context, session *Session, out *outbox, tell func(list string)) {
	var subscribing sync.WaitGroup
	defer subscribing.Wait()
	for ctx.Err() == nil {
		changed := s.modules.Changed()
		scope, err := s.scope(session)
		known := err == nil || errors.Is(err, errEnded) // else nothing is known to have changed
		if known && session.initialized.Load() && session.primary() == out {
			view := s.modules.View(scope)
			for _, list := range session.changedLists(view, s.started) {
				tell(list)
			}
			if session.subscribing.TryLock() { // or it is being done, maybe by a module that hangs
				subscribing.Go(func() {
					defer session.subscribing.Unlock()
					s.keepSubscriptionsLocked(ctx, session, view)
				})
			}
		}
		look := time.NewTimer(s.nextLook(session))
		select {
		case <-ctx.Done():
		case <-look.C:
		case <-changed:
			look.Reset(coalesce) // more is likely to follow
			select {
			case <-ctx.Done():
			case <-look.C:
			}
		}
		look.Stop()
	}
}

// announceLists is announce for who wants to be told of all lists.
func (s *Server) announceLists(ctx context.Context, session *Session, out *outbox) {
	s.announce(ctx, session, out, func(list string) { out.send(encodeNotification("notifications/"+list+"/list_changed", nil)) })
}

// nextLook is how long a session's scope can be taken to stay as it is.
func (s *Server) nextLook(session *Session) time.Duration {
	if at, ok := s.gate.Expiry(s.gate.Current(session.sessionToken)); ok {
		return max(time.Millisecond, min(claimsInterval, time.Until(at)))
	}
	return claimsInterval
}

// listed notes which list the client was given. One with a stream open is told of
// each change there, whether or not it has asked meanwhile.
func (s *Session) listed(what string, view *View) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.streams) == 0 && slices.Contains(announcedLists, what) {
		s.sawLocked(what, view)
	}
}

func (s *Session) sawLocked(list string, view *View) {
	if s.lastSeen == nil {
		s.lastSeen = make(map[string]string)
	}
	s.lastSeen[list] = view.Fingerprint(list)
}

// changedLists returns the lists that have changed since the client last saw them,
// and marks them as seen. A session older than the daemon gets every list once; a
// client that has not asked for a list yet is not told of it.
func (s *Session) changedLists(view *View, started time.Time) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var changed []string
	for _, list := range announcedLists {
		before := s.lastSeen[list]
		if before == "" && s.Issued.Before(started) || before != "" && before != view.Fingerprint(list) {
			changed = append(changed, list)
		}
		s.sawLocked(list, view)
	}
	return changed
}

// interest is a resource whose changes a session wants to hear of.
type interest struct {
	resource *Resource // as the module is listened to; nil while it is not
	release  func()
}

// subscribeTimeout is how long a module may take to answer that it tells of a
// resource's changes.
const subscribeTimeout = 10 * time.Second

// subscribe has the session hear of changes of a resource of its view. The error
// is the module's, if it has no such thing. Without a stream, the module is asked
// once there is one.
func (s *Server) subscribe(ctx context.Context, session *Session, view *View, uri string) error {
	session.subscribing.Lock()
	defer session.subscribing.Unlock()
	if err := session.wantLocked(uri); err != nil {
		return err
	}
	if !session.connected() {
		return nil
	}
	err := s.keepSubscription(ctx, session, view, uri)
	if err != nil {
		delete(session.subscriptions, uri)
	}
	return err
}

// wantLocked notes that the session wants to hear of a resource's changes.
func (s *Session) wantLocked(uri string) error {
	if s.subscriptions[uri] != nil {
		return nil
	}
	if len(s.subscriptions) >= maxWanted {
		return rpcErrorf(codeInvalidParams, "too many resources are subscribed to (%d at most): unsubscribe from some", maxWanted)
	}
	if s.subscriptions == nil {
		s.subscriptions = make(map[string]*interest)
	}
	s.subscriptions[uri] = &interest{}
	return nil
}

// unsubscribe undoes subscribe. Unknown URIs are ignored.
func (s *Session) unsubscribe(uri string) {
	s.subscribing.Lock()
	defer s.subscribing.Unlock()
	if sub := s.subscriptions[uri]; sub != nil {
		sub.pause()
		delete(s.subscriptions, uri)
	}
}

// pauseSubscriptions has no module listened to, until a stream is there again.
func (s *Session) pauseSubscriptions() {
	s.subscribing.Lock()
	defer s.subscribing.Unlock()
	for _, sub := range s.subscriptions {
		sub.pause()
	}
}

func (sub *interest) pause() {
	if sub.release != nil {
		sub.release()
	}
	sub.resource, sub.release = nil, nil
}

// keepSubscriptionsLocked has the modules that are in the session's view by now,
// and no others, tell of the resources that it wants to hear of.
func (s *Server) keepSubscriptionsLocked(ctx context.Context, session *Session, view *View) {
	for _, uri := range sortedKeys(session.subscriptions) {
		if err := s.keepSubscription(ctx, session, view, uri); err != nil {
			s.log.Debug("a subscription to a resource failed", "why", err) // tried again at the next change
		}
	}
}

// keepSubscription does so for one resource. The session's subscribing is held.
func (s *Server) keepSubscription(ctx context.Context, session *Session, view *View, uri string) (err error) {
	sub, now := session.subscriptions[uri], view.Resource(uri)
	if sub.resource.Same(now) {
		return nil
	}
	sub.pause()
	if now == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, subscribeTimeout)
	defer cancel()
	caller := s.callerOf(session, session.notify, session.connected)
	sub.release, err = now.Subscribe(ctx, caller, uri, func(params json.RawMessage) { s.passUpdate(session, now, uri, params) })
	if err == nil {
		sub.resource = now
	}
	return err
}

// passUpdate tells a session that a resource has changed, if the session still
// sees it.
func (s *Server) passUpdate(session *Session, resource *Resource, uri string, params json.RawMessage) {
	scope, err := s.scope(session)
	if err != nil || !s.modules.View(scope).Resource(uri).Same(resource) {
		return
	}
	params = stripCallID(params)
	if session.stateless {
		params = withMeta(params, metaSubscription, session.subscription)
	}
	session.notify(encodeNotification("notifications/resources/updated", params))
}
