// Sessions: their ids, which are sealed (those of HTTP+SSE are random), and the table of the
// sessions in memory. An id says what initialize made the session, so a restart of the daemon ends
// no session but those of HTTP+SSE, and a forgotten session costs nothing. What happened to the
// session since is only in memory: a restored session is what it began as.

package main

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// sessionLife is how long a session id is valid.
const sessionLife = 30 * 24 * time.Hour

// sessionOrigin is what initialize made a session. It is the content of the session's id,
// which is sealed so that the client can neither read nor change it. Immutable.
type sessionOrigin struct {
	ID       string     `json:"id"` // 128 random bits; identifies the session in logs
	Issued   time.Time  `json:"issued"`
	Protocol string     `json:"protocol"`
	Caps     clientCaps `json:"caps,omitempty"` // what the client can be asked for
	Claim    claimID    `json:"claim,omitzero"` // the claim that the session began with; zero for none
}

// sessionKeySize is the size of the key that seals session ids, in bytes.
const sessionKeySize = 32

// readSessionKey reads the key that seals session ids. If there is none, or it can't be read,
// it makes a new one, which ends all sessions.
func readSessionKey(dataDir string) ([]byte, error) {
	path := filepath.Join(dataDir, "session.key")
	key, err := os.ReadFile(path)
	if err == nil && len(key) == sessionKeySize {
		return key, nil
	}
	key = newSessionKey()
	return key, replaceFile(path, key)
}

// newSessionKey returns a random key.
func newSessionKey() []byte {
	key := make([]byte, sessionKeySize)
	rand.Read(key) // never fails
	return key
}

// idEncoding encodes session ids as text.
var idEncoding = base64.RawURLEncoding.Strict()

// seal returns the id of a session.
func (t *sessionTable) seal(o sessionOrigin) string {
	return idEncoding.EncodeToString(t.cipher.Seal(nil, nil, marshal(o), nil))
}

// unseal returns the origin of the session with an id. It reports false for everything that
// was not sealed with this key.
func (t *sessionTable) unseal(id string) (o sessionOrigin, ok bool) {
	sealed, err := idEncoding.DecodeString(id)
	if err != nil || strings.ContainsAny(id, "\r\n") { // base64 ignores these: an id has one spelling
		return o, false
	}
	text, err := t.cipher.Open(nil, nil, sealed, nil)
	if err != nil {
		return o, false
	}
	return o, json.Unmarshal(text, &o) == nil
}

// Session is one client's session in memory. A request of a client without sessions has a
// Session of its own, which ends with the request. Safe for concurrent use.
type Session struct {
	sessionOrigin
	name       string                        // by which the client names the session: the sealed id
	era        eras                          // of its client: stateful or stateless
	listenID   json.RawMessage               // id of the subscriptions/listen that it serves; nil for none
	restored   bool                          // made from its id: the client may have seen any lists
	calls      *sync.Map                     // requests in flight, by idKey: their context.CancelCauseFunc
	asked      sync.Map                      // requests to the client, by idKey: chan *Message
	life       context.Context               // ends when the client ends the session
	reachable  context.Context               // ends when the client can no longer answer, and its streams end
	close      context.CancelFunc            // ends life
	endStreams context.CancelFunc            // ends reachable
	receive    func(admission, []byte) error // for HTTP+SSE: handles a message of the client
	profile    atomic.Pointer[clientProfile] // the value is never changed

	// Guarded by sessionTable.mu, unless the session is in no table:
	claim         Claim              // now; zero for none
	principal     *Principal         // of its latest request; nil unless the session is in the table
	member        context.Context    // see admission
	endMembership context.CancelFunc // ends member

	mu       sync.Mutex        // guards the fields below
	streams  []*outbox         // open notification streams, oldest first
	lastSeen map[string]string // by announced list: its fingerprint
}

// newSession returns a session that is in no table. Without an ID, it is a new one.
func newSession(o sessionOrigin) *Session {
	if o.ID == "" {
		o.ID = rand.Text()
		o.Issued = time.Now().UTC().Round(0)
	}
	s := &Session{
		sessionOrigin: o,
		era:           stateful,
		calls:         new(sync.Map),
		claim:         Claim{claimID: o.Claim},
		lastSeen:      make(map[string]string),
	}
	s.life, s.close = context.WithCancel(context.Background())
	s.reachable, s.endStreams = context.WithCancel(context.Background())
	s.profile.Store(&clientProfile{caps: o.Caps})
	return s
}

// isSSE reports whether the session is of HTTP+SSE. s may be nil.
func (s *Session) isSSE() bool { return s != nil && s.Protocol == sseProtocol }

// errCancelled is the cause of a request's end if its client cancelled it.
var errCancelled = errors.New("cancelled by the client")

// handleNotification handles a client's message that is not a request.
func (s *Session) handleNotification(msg *Message) {
	switch msg.Method {
	case "":
		if answer, ok := s.asked.LoadAndDelete(idKey(msg.ID)); ok {
			answer.(chan *Message) <- msg
		}
	case "notifications/cancelled": // usher needs no other
		if cancel, ok := s.calls.Load(idKey(msg.Params.get("requestId"))); ok {
			cancel.(context.CancelCauseFunc)(errCancelled)
		}
	}
}

// wants reports whether the client wants a notification about one of its requests. A client
// without sessions supports only progress and log messages. A client that has not stated a
// log level gets all log messages, or none if it has no sessions (MCP 2026-07-28,
// server/utilities/logging).
func (s *Session) wants(method string, params object) bool {
	if method != "notifications/message" {
		return s.era == stateful || method == "notifications/progress"
	}
	lowest := s.profile.Load().level
	if lowest == "" {
		return s.era == stateful
	}
	severity := slices.Index(logLevels, params.text("level"))
	return severity < 0 || severity >= slices.Index(logLevels, lowest)
}

// join begins a notification stream. It returns false if the session has too many, or the client has
// gone or accepts no stream.
func (s *Session) join(out *outbox) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	joined := len(s.streams) < maxStreams && out.open()
	if joined {
		s.streams = append(s.streams, out)
	}
	return joined
}

// leave removes a stream.
func (s *Session) leave(out *outbox) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.streams = remove(s.streams, out)
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

// notify sends one of usher's own notifications on the session's stream, if there is one.
func (s *Session) notify(method string, params object) {
	if s.listenID != nil {
		params = withMeta(params, metaSubscription, s.listenID)
	}
	if out := s.primary(); out != nil {
		out.sendOwn("message", encodeRequest(nil, method, params))
	}
}

// errNoStream reports that a client with a session has no stream on which usher could ask
// it.
var errNoStream = errors.New("the client can't be asked: it has no stream open")

// sessionTable contains the sessions that are in use or were used recently, also those that
// have ended. If a principal has more than maxSessionsOf, the table forgets its least
// recently used idle session. What happened to it since its initialize is lost. Safe for
// concurrent use.
type sessionTable struct {
	cipher cipher.AEAD

	mu     sync.Mutex
	byName map[string]*Session
	own    map[*Principal][]*Session // least recently used first
}

// newSessionTable returns an empty table. key seals the ids of sessions.
func newSessionTable(key []byte) *sessionTable {
	block, _ := aes.NewCipher(key) // fails only for keys of other lengths
	t := &sessionTable{
		byName: make(map[string]*Session),
		own:    make(map[*Principal][]*Session),
	}
	t.cipher, _ = cipher.NewGCMWithRandomNonce(block)
	return t
}

// find returns the session that a client names, and its claim. A name in a URL is that of an
// HTTP+SSE session, which lasts as long as its stream. Any other session that is not in
// memory is made again, as its id says. find returns nil for a session that is unknown, has
// expired or has ended.
func (t *sessionTable) find(name string, inURL bool) (s *Session, claim Claim) {
	t.mu.Lock()
	if s = t.byName[name]; s != nil {
		claim = s.claim
	}
	t.mu.Unlock()
	if s == nil && !inURL { // without the lock, because anybody can make this take long
		if o, ok := t.unseal(name); ok {
			s = newSession(o)
			s.name = name
			s.restored = true
			claim = s.claim
		}
	}
	if s == nil || s.life.Err() != nil || time.Since(s.Issued) >= sessionLife ||
		inURL != s.isSSE() {
		return nil, Claim{}
	}
	return s, claim
}

// touch makes p the principal of a session, and returns the context that ends when the session
// no longer belongs to p. If p has a claim, it is the session's from now on. touch returns nil
// if the session has ended, its claim is no longer of, or another request has restored it.
func (t *sessionTable) touch(s *Session, of claimID, p *Principal) (member context.Context) {
	t.mu.Lock()
	defer t.mu.Unlock()
	current := t.byName[s.name]
	if s.life.Err() != nil || s.claim.claimID != of || current != nil && current != s {
		return nil
	}
	if p.exists() {
		s.claim = p.Claim
	}
	t.byName[s.name] = s
	t.assignLocked(s, p)
	return s.member
}

// assignLocked makes p the principal of a session, which is used now. If the session had another
// one, its streams and processes end. If p has too many sessions, assignLocked forgets the one
// that was used least recently and is not busy. The caller holds t.mu.
func (t *sessionTable) assignLocked(s *Session, p *Principal) {
	if s.principal != p {
		t.detachLocked(s)
		s.principal = p
		s.member, s.endMembership = context.WithCancel(p.ctx)
	}
	own, known := t.own[p]
	if !known {
		context.AfterFunc(p.ctx, func() { t.onClaimEnd(p) })
	}
	own = append(remove(own, s), s)
	t.own[p] = own
	if len(own) <= maxSessionsOf {
		return
	}
	idle := slices.IndexFunc(own[:maxSessionsOf], func(other *Session) bool { return !other.busy() })
	if idle >= 0 {
		t.forgetLocked(own[idle])
	}
}

// onClaimEnd gives the sessions of a principal whose claim has ended to strangers.
func (t *sessionTable) onClaimEnd(p *Principal) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, s := range slices.Clone(t.own[p]) {
		t.assignLocked(s, strangers)
	}
	delete(t.own, p)
}

// detachLocked takes a session from its principal, if it has one. The caller holds t.mu.
func (t *sessionTable) detachLocked(s *Session) {
	if s.principal != nil {
		t.own[s.principal] = remove(t.own[s.principal], s)
		s.principal = nil
		s.endMembership()
	}
}

// forgetLocked removes a session from memory. The caller holds t.mu.
func (t *sessionTable) forgetLocked(s *Session) {
	delete(t.byName, s.name)
	t.detachLocked(s)
}

// busy reports whether the session can't be forgotten: it has a stream or a request.
func (s *Session) busy() bool {
	busy := s.primary() != nil
	s.calls.Range(func(any, any) bool {
		busy = true
		return false
	})
	return busy
}

// end ends a session at its client's request, or because the stream of HTTP+SSE has ended.
// An ended session stays in the table until it is forgotten, so that its id is refused.
func (t *sessionTable) end(s *Session) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s.close()
	s.calls.Range(func(_, cancel any) bool {
		cancel.(context.CancelCauseFunc)(errNoSession)
		return true
	})
	s.endStreams() // after the calls: a module whose question fails can no longer answer its call
	if s.principal != nil {
		s.endMembership()
	}
	if s.isSSE() { // its name is random, so it is unknown from now on
		t.forgetLocked(s)
	}
}

// errNoSession refuses a request whose session has ended or never existed. Clients then
// begin a new one (MCP, basic/transports, "Session Management").
var errNoSession error = httpErrorf(http.StatusNotFound,
	"this session is unknown or ended: send initialize again")
