// Streams of notifications: the changes of a session's lists, and its subscriptions to
// resources.

package main

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"sync"
	"time"
)

const (
	coalesce      = 300 * time.Millisecond // changes within this time make one list_changed
	renewInterval = 2 * time.Second        // between two attempts to renew subscriptions
)

// follow notifies from's session of changes on out, one of its streams, and removes the stream
// at the end. It returns when end is closed, or when the session no longer belongs to the
// principal of from. If ctx ends earlier, follow returns the cause.
func (s *Server) follow(
	ctx context.Context, from admission, out *outbox, end <-chan struct{},
) error {
	session := from.session
	defer session.leave(out)
	var watches sync.WaitGroup
	defer watches.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // else a module that hangs delays the end
	watching := make(map[*interest]context.CancelFunc)
	for {
		modules := s.modules.Changed()
		own := session.Changed()
		unreadable := from.principal.Unreadable()
		if unreadable == nil && session.primary() == out {
			s.announce(from)
		}
		wanted := session.interests(out)
		for in, stop := range watching {
			if !slices.Contains(wanted, in) {
				stop()
				delete(watching, in)
			}
		}
		for _, in := range wanted {
			if watching[in] == nil {
				watch, stop := context.WithCancel(ctx)
				watching[in] = stop
				watches.Go(func() { s.watch(watch, from, in) })
			}
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-end:
			return nil
		case <-from.member.Done():
			if context.Cause(from.member) != errNoSession && session.listenID == nil {
				session.notifyChanges(s.modules.View(Scope{}))
			}
			return nil
		case <-unreadable:
		case <-own:
		case <-modules:
			pauseFor(ctx, coalesce) // more changes are likely to follow
		}
	}
}

// announce notifies from's session of the lists in its view that have changed. A session
// whose claim has ended is notified of nothing.
func (s *Server) announce(from admission) {
	if scope, err := s.gate.Scope(from.principal); err == nil {
		from.session.notifyChanges(s.modules.View(scope))
	}
}

// subscribe adds a subscription, unless there is one for the URI, and returns it.
func (s *Session) subscribe(uri string) (in *interest, isNew bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if in = s.subscriptions[uri]; in != nil {
		return in, false
	}
	in = &interest{uri: uri, tried: make(chan struct{})}
	s.subscriptions[uri] = in
	s.changeLocked()
	return in, true
}

// unsubscribe removes a subscription, and reports whether there was one.
func (s *Session) unsubscribe(uri string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := len(s.subscriptions)
	delete(s.subscriptions, uri)
	s.changeLocked()
	return len(s.subscriptions) < before
}

// interests returns the session's subscriptions if out is its primary stream.
func (s *Session) interests(out *outbox) []*interest {
	if s.primary() != out {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.subscriptions))
}

// watch notifies from's session of the changes of a resource until ctx ends. It asks the
// module that owns the resource in the view of from's principal, and asks again when that
// module's process has ended or another module owns the resource.
func (s *Server) watch(ctx context.Context, from admission, in *interest) {
	defer catch(s.log, nil)
	owner := func() *Item { // changes when the claim ends
		scope, _ := s.gate.Scope(from.principal) // reaches nothing if there is an error
		return s.modules.View(scope).Lookup("resources", in.uri)
	}
	for ctx.Err() == nil {
		changed := s.modules.Changed()
		now := owner()
		caller := s.callerOf(from, from.session.send)
		caller.Notify = func(method string, params object) {
			if caller.reachable() && owner().Module() == now.Module() {
				from.session.notify(method, stripCallID(params))
			}
		}
		process, release, err := now.Subscribe(ctx, caller, in.uri)
		in.once.Do(func() {
			in.err = err
			close(in.tried)
		})
		var again <-chan time.Time
		if err != nil {
			s.log.Debug("subscribing to a resource failed", "why", err)
			again = time.After(renewInterval)
		}
		for ended := false; !ended; {
			select {
			case <-ctx.Done():
				ended = true
			case <-process:
				ended = true
			case <-again:
				ended = true
			case <-changed:
				changed = s.modules.Changed()
				ended = owner().Module() != now.Module()
			}
		}
		release()
	}
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
func (s *Session) readFilter(view *View, filter object) (honoured object) {
	for _, list := range announcedLists {
		key := list + "ListChanged"
		if value := filter.get(key); isTrue(value) {
			s.markSeen(list, view)
			honoured = append(honoured, member{key, value})
		}
	}
	const key = "resourceSubscriptions"
	var uris []string
	_ = json.Unmarshal(filter.get(key), &uris) // items that are not strings are ignored
	uris = slices.DeleteFunc(uris, func(uri string) bool { return view.Lookup("resources", uri) == nil })
	for _, uri := range uris {
		s.subscribe(uri)
	}
	if len(uris) > 0 {
		honoured = append(honoured, member{key, marshal(uris)})
	}
	return honoured
}

// subscribeTimeout is how long a client waits for a module's answer to a subscription.
const subscribeTimeout = 10 * time.Second

var errManyWanted = rpcErrorf(codeInvalidParams,
	"too many subscriptions (limit %d): unsubscribe from some", maxWantedOf)

// subscribe adds a subscription to a session, unless it has the subscription.
func (s *Server) subscribe(session *Session, uri string) (*interest, error) {
	if !s.gate.sessions.want(session, 1) {
		return nil, errManyWanted
	}
	in, isNew := session.subscribe(uri)
	if !isNew {
		s.gate.sessions.want(session, -1)
	}
	return in, nil
}

// unsubscribe ends a subscription of a session, if it has the subscription.
func (s *Server) unsubscribe(session *Session, uri string) {
	if session.unsubscribe(uri) {
		s.gate.sessions.want(session, -1)
	}
}
