// Streams of notifications: the changes of a session's lists.

package main

import (
	"context"
	"time"
)

const coalesce = 300 * time.Millisecond // changes within this time make one list_changed

// follow notifies from's session of changes on out, one of its streams, and removes the stream
// at the end. It returns when ctx ends or end is closed, or when the session no longer belongs
// to the principal of from.
func (s *Server) follow(ctx context.Context, from admission, out *outbox, end <-chan struct{}) {
	session := from.session
	defer session.leave(out)
	for {
		modules := s.modules.Changed()
		unreadable := from.principal.Unreadable()
		if unreadable == nil && session.primary() == out {
			if scope, err := from.principal.scope(); err == nil { // else it is told nothing
				session.notifyChanges(s.modules.ViewOf(scope, from.member))
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-end:
			return
		case <-from.member.Done():
			if session.life.Err() == nil && session.listenID == nil {
				session.notifyChanges(s.modules.View(Scope{}))
			}
			return
		case <-unreadable:
		case <-modules:
			pauseFor(ctx, coalesce) // more changes are likely to follow
		}
	}
}

// markSeen records that the client was given a list. While the session has a stream, only
// the first list counts: notifyChanges records what the client is notified of.
func (s *Session) markSeen(what string, view *View) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.streams) == 0 || s.lastSeen[what] == "" {
		s.lastSeen[what] = view.Fingerprints[what]
	}
}

// notifyChanges notifies the client of the lists that have changed since it last saw them.
// Lists that it never asked for are left out. But the client of a restored session may have
// seen anything, so it is notified of every list once.
func (s *Session) notifyChanges(view *View) {
	for _, list := range announcedLists {
		now := view.Fingerprints[list]
		s.mu.Lock()
		before := s.lastSeen[list]
		changed := before != now && (before != "" || s.restored)
		if changed {
			s.lastSeen[list] = now
		}
		s.mu.Unlock()
		if changed {
			s.notify("notifications/"+list+"/list_changed", nil)
		}
	}
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
	return honoured
}
