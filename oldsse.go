// HTTP+SSE, the transport of 2024-11-05, for clients that can do no more: a GET
// is the stream for all that goes to the client, and the first event on it says
// where to POST what comes from it (MCP 2024-11-05, basic/transports, "HTTP with
// SSE"). Its session lives as long as its stream.

package main

import (
	"context"
	"fmt"
	"net/http"
	"sync"
)

// serveOldSSE is the stream of a new session.
func (s *Server) serveOldSSE(w http.ResponseWriter, r *http.Request) error {
	a, err := s.gate.Admit(r)
	if err != nil {
		return err
	}
	token, id := s.gate.Create(oldestProtocol, uint16(capOldSSE), a.Principal)
	session, release := s.sessions.Open(token)
	defer release()
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(s.stopping, cancel)()
	p := s.newPeer(ctx, cancel, session)
	var posting sync.RWMutex // held to read while a message is taken
	post := func(body []byte) bool {
		posting.RLock()
		defer posting.RUnlock()
		if ctx.Err() != nil {
			return false
		}
		p.take(body)
		return true
	}
	session.post.Store(&post)
	var announcer sync.WaitGroup
	announcer.Go(func() { p.announce(ctx) })
	out := newSSE(w)
	// Relative, as behind a proxy nobody here knows what stands before it.
	out.write(fmt.Appendf(nil, "event: endpoint\ndata: %s?sessionId=%s\n\n", r.URL.Path, id))
	out.carry(ctx, p.queue, func([]byte) string { return "" })
	cancel()
	posting.Lock()          // nobody takes a message just now, and from here on nobody will
	session.post.Store(nil) // the session stays for a while, the peer need not
	posting.Unlock()
	p.cancelAll(errGone)
	session.hangUp()
	p.requests.Wait()
	announcer.Wait()
	s.views.EndAffinity(session.key)
	return nil
}

// postToPeer takes what the client of a stream sends. The answer goes out there.
func (s *Server) postToPeer(w http.ResponseWriter, session *Session, body []byte) error {
	post := session.post.Load()
	if post == nil || !(*post)(body) {
		return noSession(nil)
	}
	w.WriteHeader(http.StatusAccepted)
	return nil
}
