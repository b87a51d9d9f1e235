// Streams of notifications: the changes of a session's lists, and its subscriptions to
// resources.

package main

import (
	"context"
	"encoding/json"
	"slices"
	"sync"
	"time"
)

const (
	coalesce      = 300 * time.Millisecond // changes within this time make one list_changed
	renewInterval = 2 * time.Second        // between attempts to announce or to renew subscriptions
)

// follow notifies from's session of changes on out, one of its streams, and removes the stream
// at the end. It returns when end is closed, or when the session no longer belongs to the
// principal of from. If ctx ends earlier, follow returns the cause.
func (s *Server) follow(
	ctx context.Context, from admission, out *outbox, end <-chan struct{},
) error {
	session := from.session
	defer session.leave(out)
	var subscribing sync.WaitGroup
	defer subscribing.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // else a module that hangs delays the end
	for {
		changed := s.modules.Changed()
		readable := from.principal.Readable()
		if readable {
			s.announce(ctx, from, out, &subscribing)
		}
		var again <-chan time.Time
		if !readable || session.subscribes() {
			again = time.After(renewInterval)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-end:
			return nil
		case <-from.member.Done():
			if context.Cause(from.member) != errNoSession && session.era == stateful {
				session.notifyChanges(s.modules.View(Scope{}))
			}
			return nil
		case <-again:
		case <-changed:
			pauseFor(ctx, coalesce) // more changes are likely to follow
		}
	}
}

// announce notifies from's session, if out is its primary stream, of the lists in its view
// that have changed, and renews its subscriptions. It asks modules in a goroutine, which
// ends with ctx; the caller must wait for it with subscribing. A session whose claim has
// ended is notified of nothing.
func (s *Server) announce(
	ctx context.Context, from admission, out *outbox, subscribing *sync.WaitGroup,
) {
	session := from.session
	scope, err := s.gate.Scope(from.principal)
	if err != nil || session.primary() != out {
		return
	}
	session.notifyChanges(s.modules.View(scope))
	if session.subscribing.TryLock() { // else a module is still being asked
		subscribing.Go(func() {
			defer session.subscribing.Unlock()
			defer catch(s.log, nil)
			for uri := range session.subscriptions {
				if err := s.keepSubscription(ctx, from, uri); err != nil {
					s.log.Debug("subscribing to a resource failed", "why", err) // retried at the next change
				}
			}
		})
	}
}

// subscribes reports whether the session subscribes to a resource.
func (s *Session) subscribes() bool {
	if !s.subscribing.TryLock() {
		return true
	}
	defer s.subscribing.Unlock()
	return len(s.subscriptions) > 0
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

// notifyChanges notifies the client of the lists that have changed since it last saw them.
func (s *Session) notifyChanges(view *View) {
	for _, list := range s.unseenChanges(view) {
		s.notify("notifications/"+list+"/list_changed", nil)
	}
}

// unseenChanges returns the lists that have changed since the client last saw them, and
// marks them as seen. Lists that the client never asked for are left out. But the client of a
// restored session may have seen anything, so it is notified of every list once.
func (s *Session) unseenChanges(view *View) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var changed []string
	for _, list := range announcedLists {
		before := s.lastSeen[list]
		now := view.Fingerprints[list]
		if before != now && (before != "" || s.restored) {
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

// subscribeTimeout is how long a module may take to answer a subscription.
const subscribeTimeout = 10 * time.Second

var errManyWanted = rpcErrorf(codeInvalidParams,
	"too many subscriptions (limit %d): unsubscribe from some", maxWantedOf)

// unsubscribeLocked ends a subscription. The caller holds session.subscribing.
func (s *Server) unsubscribeLocked(session *Session, uri string) {
	if _, subscribed := session.subscriptions[uri]; subscribed {
		session.pauseLocked(uri)
		delete(session.subscriptions, uri)
		s.gate.sessions.want(session, -1)
	}
}

// keepSubscription subscribes to the module that owns uri in the view of from's principal now,
// and ends a subscription at any other module. The caller holds session.subscribing.
func (s *Server) keepSubscription(ctx context.Context, from admission, uri string) error {
	session := from.session
	owner := func() *Item { // changes when the claim ends
		scope, _ := s.gate.Scope(from.principal) // reaches nothing if there is an error
		return s.modules.View(scope).Lookup("resources", uri)
	}
	now := owner()
	if in := session.subscriptions[uri]; in.release != nil && now.Module() == in.of && in.alive() {
		return nil
	}
	session.pauseLocked(uri)
	if now == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, subscribeTimeout)
	defer cancel()
	caller := s.callerOf(from, session.send)
	caller.Notify = func(method string, params json.RawMessage) {
		if caller.reachable() && owner().Module() == now.Module() {
			update := members(stripCallID(params))
			session.notify(method, update)
		}
	}
	at, err := now.Subscribe(ctx, caller, uri)
	if err == nil {
		session.subscriptions[uri] = interest{
			of:      now.Module(),
			alive:   func() bool { return from.member.Err() == nil && at.alive() },
			release: at.release,
		}
	}
	return err
}
