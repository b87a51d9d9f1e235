// Streams of notifications: the changes of a session's lists, and its subscriptions to
// resources.

package main

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"time"
)

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
