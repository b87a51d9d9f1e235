// Listening: what a client is told without having asked just then: that a list
// in its view has changed, and that a resource has. A session with a stream open
// hears it there; a client without sessions, on the stream of its
// subscriptions/listen.

package main

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"
)

// stream is an open notification stream.
type stream struct {
	cancel context.CancelFunc
	queue  chan []byte // messages to be written
}

// say has a message written, and waits for room until ctx ends.
func (st *stream) say(ctx context.Context, msg []byte) {
	select {
	case st.queue <- msg:
	case <-ctx.Done():
	}
}

// join adds a stream to the session, unless it has too many or has ended.
func (s *Session) join(st *stream) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.streams) >= maxStreams || s.ended {
		return false
	}
	s.streams = append(s.streams, st)
	return true
}

// leave takes a stream off the session. With the last one, nothing is listened
// for any more.
func (s *Server) leave(session *Session, st *stream) {
	session.mu.Lock()
	session.streams = slices.DeleteFunc(session.streams, func(other *stream) bool { return other == st })
	silent := len(session.streams) == 0
	session.mu.Unlock()
	if silent {
		session.quiet()
	}
}

// speaks reports whether the stream is the one that messages go out on: a
// message goes out on one only (MCP, basic/transports, "Multiple Connections"),
// and the newest is the likeliest to be heard.
func (s *Session) speaks(st *stream) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.streams) > 0 && s.streams[len(s.streams)-1] == st
}

const (
	claimsLook = 2 * time.Second        // how often an open stream looks at its session's claim
	coalesce   = 300 * time.Millisecond // changes that close up make one list_changed
)

// announce tells a session that what it sees has changed, until ctx ends or the
// peer is gone. mayTell is asked before each time. It also keeps the session's
// subscriptions to resources.
func (s *Server) announce(ctx context.Context, session *Session, mayTell func() bool, tell func(list string)) {
	for ctx.Err() == nil {
		changed := s.views.Changed()
		scope, err := s.scope(session)
		readable := err == nil || errors.Is(err, errEnded) // else nothing is known to have changed
		if readable && mayTell() {
			view := s.views.View(scope)
			for _, list := range session.mustHear(view, s.started) {
				tell(list)
			}
			s.keepSubscriptions(ctx, session, view)
		}
		look := time.NewTimer(s.nextLook(session))
		select {
		case <-ctx.Done():
			look.Stop()
			return
		case <-look.C:
			continue
		case <-changed:
			look.Stop()
		}
		select { // more is likely to follow
		case <-ctx.Done():
			return
		case <-time.After(coalesce):
		}
	}
}

// nextLook is how long a session's scope can be taken to stay as it is.
func (s *Server) nextLook(session *Session) time.Duration {
	if at, ok := s.gate.Expiry(s.gate.Current(session.sessionToken)); ok {
		return max(time.Millisecond, min(claimsLook, time.Until(at)))
	}
	return claimsLook
}

// mustHear is the lists that the session has to be told have changed; they are
// taken as told. Nothing is known of what a session has from before the daemon's
// start, so that is told; one that has not asked for a list yet has nothing to
// be told of.
func (s *Session) mustHear(view *View, started time.Time) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var changed []string
	for _, list := range announcedLists {
		before, now := s.announced[list], view.Fingerprint(list)
		if before == "" && s.Issued.Before(started) || before != "" && before != now {
			changed = append(changed, list)
		}
		s.announced[list] = now
	}
	return changed
}

// interest is a resource whose changes a session wants to hear of.
type interest struct {
	resource *Resource // whose it is by now; nil while nothing is listened for
	release  func()
}

// subscribe has the session hear of changes of a resource of its view. The error
// is the module's, if it has no such thing; then the session does not.
func (s *Server) subscribe(ctx context.Context, session *Session, view *View, uri string) error {
	session.mu.Lock()
	if session.wanted[uri] == nil && len(session.wanted) >= maxWanted {
		session.mu.Unlock()
		return rpcErrorf(codeInvalidParams, "too many resources are subscribed to (%d): unsubscribe from some", maxWanted)
	}
	if session.wanted[uri] == nil {
		session.wanted[uri] = &interest{}
	}
	session.mu.Unlock()
	if err := s.keepSubscription(ctx, session, view, uri); err != nil {
		session.unsubscribe(uri)
		return err
	}
	if !session.listens() {
		session.quiet() // its next stream listens again
	}
	return nil
}

// unsubscribe is the end of subscribe. A resource that it has not is none the less.
func (s *Session) unsubscribe(uri string) {
	s.mu.Lock()
	in := s.wanted[uri]
	delete(s.wanted, uri)
	s.mu.Unlock()
	if in != nil && in.release != nil {
		in.release()
	}
}

// quiet has the session listen for nothing, though it knows what for.
func (s *Session) quiet() {
	s.mu.Lock()
	var release []func()
	for _, in := range s.wanted {
		if in.release != nil {
			release = append(release, in.release)
		}
		in.resource, in.release = nil, nil
	}
	s.mu.Unlock()
	for _, f := range release {
		f()
	}
}

// keepSubscriptions has the modules that are in the session's view by now, and
// no others, say when what it wants to hear of changes.
func (s *Server) keepSubscriptions(ctx context.Context, session *Session, view *View) {
	session.mu.Lock()
	uris := sortedKeys(session.wanted)
	session.mu.Unlock()
	for _, uri := range uris {
		if err := s.keepSubscription(ctx, session, view, uri); err != nil {
			s.log.Debug("a subscription to a resource failed", "why", err) // tried again at the next change
		}
	}
}

func (s *Server) keepSubscription(ctx context.Context, session *Session, view *View, uri string) error {
	now := view.Resource(uri)
	session.mu.Lock()
	in := session.wanted[uri]
	if in == nil || in.resource.Same(now) || in.resource == nil && now == nil {
		session.mu.Unlock()
		return nil
	}
	release := in.release
	in.resource, in.release = nil, nil
	session.mu.Unlock()
	if release != nil {
		release()
	}
	if now == nil {
		return nil
	}
	caller := s.callerOf(session, session.tell, session.listens)
	release, err := now.Subscribe(ctx, caller, uri, func(params json.RawMessage) { s.passUpdate(session, now, uri, params) })
	if err != nil {
		return err
	}
	session.mu.Lock()
	if session.wanted[uri] == in && in.resource == nil {
		in.resource, in.release = now, release
		release = nil
	}
	session.mu.Unlock()
	if release != nil {
		release() // somebody else was quicker, or it is not wanted any more
	}
	return nil
}

// passUpdate tells a session that a resource has changed, if the session still
// sees it.
func (s *Server) passUpdate(session *Session, resource *Resource, uri string, params json.RawMessage) {
	scope, err := s.scope(session)
	if err != nil || !s.views.View(scope).Resource(uri).Same(resource) {
		return
	}
	params = unsaid(params)
	if session.modern() {
		params = withMeta(params, metaSubscription, session.subscription)
	}
	session.tell(encodeNotification("notifications/resources/updated", params))
}

// listenMethod opens the stream of a client without a session.
const listenMethod = "subscriptions/listen"

// listen answers subscriptions/listen: it says on queue what changes, until ctx
// ends. The result is that of an end which is usher's own.
func (s *Server) listen(ctx context.Context, session *Session, msg *Message, queue chan []byte) (json.RawMessage, error) {
	filter, ok := members(field(msg.Params, "notifications"))
	if !ok {
		return nil, rpcErrorf(codeInvalidParams, `subscriptions/listen needs an object "notifications"`)
	}
	scope, err := s.scope(session)
	if err != nil && !errors.Is(err, errEnded) {
		return nil, rpcErrorf(codeDeclined, "%v", err)
	}
	s.views.WaitReady(ctx, scope) // a resource that is not there yet would be left out for good
	view := s.views.View(scope)
	session.subscription = json.RawMessage(msg.ID)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(s.stopping, func() { cancel(errStopping) })()
	st := &stream{cancel: func() { cancel(nil) }, queue: queue}
	tagged := func(method string, params json.RawMessage) []byte {
		return encodeNotification(method, withMeta(params, metaSubscription, session.subscription))
	}
	lists, honoured, err := s.readFilter(session, view, filter)
	if err != nil {
		return nil, err
	}
	st.say(ctx, tagged("notifications/subscriptions/acknowledged", joinMembers([]member{{"notifications", honoured}})))
	session.join(st)
	defer s.leave(session, st)
	var teller sync.WaitGroup
	teller.Go(func() {
		s.announce(ctx, session, func() bool { return true }, func(list string) {
			if slices.Contains(lists, list) {
				st.say(ctx, tagged("notifications/"+list+"/list_changed", nil))
			}
		})
	})
	<-ctx.Done()
	teller.Wait()
	if s.stopping.Err() == nil {
		return nil, context.Cause(ctx)
	}
	return modernResult(listenMethod, joinMembers([]member{{"_meta", joinMembers([]member{{metaSubscription, session.subscription}})}})), nil
}

// readFilter is what a client wants to be told of: lists that it takes to be as
// they are in view, and resources. honoured is what of its filter counts.
func (s *Server) readFilter(session *Session, view *View, filter []member) (lists []string, honoured json.RawMessage, err error) {
	var kept []member
	for _, f := range filter {
		list, isList := strings.CutSuffix(f.key, "ListChanged")
		switch {
		case f.key == "resourceSubscriptions":
			var uris []string
			if json.Unmarshal(f.value, &uris) != nil {
				return nil, nil, rpcErrorf(codeInvalidParams, "resourceSubscriptions must be a list of strings")
			}
			uris = slices.DeleteFunc(uris, func(uri string) bool { return view.Resource(uri) == nil })
			for _, uri := range uris {
				session.wanted[uri] = &interest{}
			}
			if len(session.wanted) > maxWanted { // of all lists, should there be several
				return nil, nil, rpcErrorf(codeInvalidParams, "too many resourceSubscriptions: %d at most", maxWanted)
			}
			if len(uris) > 0 {
				kept = append(kept, member{f.key, marshal(uris)})
			}
		case isList && slices.Contains(announcedLists, list) && string(f.value) == "true":
			lists = append(lists, list)
			session.listed(list, view)
			kept = append(kept, f)
		}
	}
	return lists, joinMembers(kept), nil
}
