// Sessions: what a client was given at initialize, sealed into its session id
// so that a restart of the daemon strands nobody, and the log of what became of
// sessions since. The store knows no HTTP and no module.

package main

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// sealer seals what a client keeps for usher, and can neither read nor make.
type sealer struct{ cipher.AEAD }

// newSealer takes a key of 32 bytes.
func newSealer(key []byte) sealer {
	block, err := aes.NewCipher(key)
	if err != nil {
		panic(err)
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		panic(err)
	}
	return sealer{aead}
}

func (s sealer) seal(b []byte) string {
	return base64.RawURLEncoding.EncodeToString(s.Seal(nil, nil, b, nil))
}

// open is false for whatever was not sealed with this key.
func (s sealer) open(text string) ([]byte, bool) {
	raw, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if err != nil || strings.ContainsAny(text, "\r\n") { // which the decoder skips
		return nil, false
	}
	b, err := s.Open(nil, nil, raw, nil)
	return b, err == nil
}

// Session is one client's session. There is one value per session for as long
// as something of it is under way. A request of a client without sessions has
// one of its own, which ends with it.
type Session struct {
	*sessionToken
	key          string                            // its ID, or "stdio"; for tables and logs
	affinity     string                            // of a stateless request: see Caller
	subscription json.RawMessage                   // id of a subscriptions/listen that this stands for
	calls        inflight[context.CancelCauseFunc] // requests being answered, by id
	asked        inflight[chan *Message]           // requests to the client, by our id
	post         atomic.Pointer[func([]byte) bool] // takes what a client of HTTP+SSE sends; false once its stream has ended

	mu        sync.Mutex
	users     int                  // requests and streams that hold it
	lastUse   time.Time            //
	streams   []*stream            // open notification streams, oldest first
	logs      []*eventLog          // of streams that can be resumed, oldest first
	announced map[string]string    // fingerprints of the lists that the client knows, of announcedLists
	wanted    map[string]*interest // resources whose changes it wants to hear of, by URI
	level     string               // least severity of log messages it wants; "" where it has not said
	spoken    string               // protocol version
	caps      clientCaps
	ended     bool
}

// newSession is a session with nothing under way.
func newSession(t *sessionToken) *Session {
	return &Session{sessionToken: t, key: t.ID, spoken: t.Protocol, caps: clientCaps(t.Caps),
		announced: make(map[string]string), wanted: make(map[string]*interest)}
}

// listed notes which list the client was given. One with a stream open is told
// of each change there, whether or not it has asked meanwhile.
func (s *Session) listed(what string, view *View) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.streams) == 0 && slices.Contains(announcedLists, what) {
		s.announced[what] = view.Fingerprint(what)
	}
}

// begin enters a request among those being answered, with what cancels it.
func (s *Session) begin(id ID, cancel context.CancelCauseFunc) error {
	if s.calls.len() >= maxInFlight {
		return rpcErrorf(codeRefused, "%d requests of this session are being answered: wait for some of them", maxInFlight)
	}
	return s.calls.add(string(id), cancel)
}

// introduce takes in what a client that has one connection says at initialize.
func (s *Session) introduce(protocol string, caps clientCaps) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.spoken, s.caps = protocol, caps
}

// capabilities is what its client can be asked for.
func (s *Session) capabilities() clientCaps {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.caps
}

// isOf reports whether its client speaks this version.
func (s *Session) isOf(protocol string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.spoken == protocol
}

// modern reports whether it stands for one request of a client without sessions.
func (s *Session) modern() bool { return s.Protocol == modernProtocol }

// wantsLog reports whether the session wants log messages of this severity.
// Where it has not said, all; a modern request, none (MCP 2026-07-28,
// server/utilities/logging).
func (s *Session) wantsLog(severity string) bool {
	level := s.logLevel()
	if level == "" {
		return !s.modern()
	}
	i := slices.Index(logLevels, severity)
	return i < 0 || i >= slices.Index(logLevels, level)
}

// logLevel is the least severity of log messages that it wants, "" where it has
// not said.
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

// errUnheard is why a client that listens nowhere can't be asked; errGone, why
// one is not waited for any longer.
var (
	errUnheard = rpcErrorf(codeInternal, "the client has no stream open on which it could be asked")
	errGone    = rpcErrorf(codeInternal, "the client has gone away")
)

// goneLook is how often it is looked whether a client is still there.
const goneLook = 5 * time.Second

// ask sends a request to the client and waits for its answer. send reports
// whether a message has gone out to where it will be read; there, whether the
// client may still answer.
func (s *Session) ask(ctx context.Context, send func([]byte) bool, there func() bool, method string, params json.RawMessage) (json.RawMessage, error) {
	id := quote("usher-" + rand.Text()) // no count: an answer may come after a restart, to what was asked before
	answer := make(chan *Message, 1)
	if err := s.asked.add(string(id), answer); err != nil {
		return nil, errGone
	}
	defer s.asked.take(string(id))
	if !there() || !send(encodeRequest(ID(id), method, params)) {
		return nil, errUnheard
	}
	look := time.NewTicker(goneLook)
	defer look.Stop()
	for {
		select {
		case msg := <-answer:
			switch {
			case msg == nil:
				return nil, errGone
			case msg.Err != nil:
				return nil, msg.Err
			default:
				return msg.Result, nil
			}
		case <-look.C:
			if !there() {
				return nil, errGone
			}
		case <-ctx.Done():
			send(encodeNotification("notifications/cancelled", joinMembers([]member{{"requestId", id}})))
			return nil, context.Cause(ctx)
		}
	}
}

// takeAnswer gives the client's answer to whoever asked.
func (s *Session) takeAnswer(msg *Message) {
	if answer, ok := s.asked.take(string(msg.ID)); ok {
		answer <- msg
	}
}

// hangUp fails all requests to the client: no answer can come any more.
func (s *Session) hangUp() {
	for _, answer := range s.asked.close(errGone) {
		answer <- nil
	}
}

// tell sends a message on the stream that messages go out on, if there is one
// and it keeps up.
func (s *Session) tell(msg []byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.streams) == 0 {
		return false
	}
	select {
	case s.streams[len(s.streams)-1].queue <- msg:
		return true
	default:
		return false
	}
}

// listens reports whether it has a notification stream open.
func (s *Session) listens() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.streams) > 0
}

// keepLog begins a log of a stream that is of a claim, for as long as the session
// lives and there is room. Of one that has ended nothing is kept.
func (s *Session) keepLog(kind string, claim Principal, budget *atomic.Int64) *eventLog {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := newEventLog(kind, claim, budget)
	if s.ended {
		l.drop()
		return l
	}
	s.dropLogsLocked((*eventLog).lost)
	if len(s.logs) >= maxEventLogs {
		s.logs[0].drop()
		s.logs = s.logs[1:]
	}
	s.logs = append(s.logs, l)
	return l
}

// eventLog finds the log of a stream of the session that can be resumed: not
// one from before its scope changed.
func (s *Session) eventLog(id string, now Principal) *eventLog {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.logs {
		if l.id == id && l.claim == now {
			return l
		}
	}
	return nil
}

// dropLogs forgets what was kept of its streams: of all, or of those that are
// lost.
func (s *Session) dropLogs(lostOnly bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dropLogsLocked(func(l *eventLog) bool { return !lostOnly || l.lost() })
}

func (s *Session) dropLogsLocked(which func(*eventLog) bool) {
	s.logs = slices.DeleteFunc(s.logs, func(l *eventLog) bool {
		drop := which(l)
		if drop {
			l.drop()
		}
		return drop
	})
}

// SessionStore is the sessions that something is under way for, or was lately.
// Safe for concurrent use.
type SessionStore struct {
	now func() time.Time

	mu    sync.Mutex
	live  map[string]*Session // by key
	swept time.Time           // when idle ones were last looked for

	replay atomic.Int64 // bytes kept of streams that can be resumed
}

func newSessionStore(now func() time.Time) *SessionStore {
	return &SessionStore{now: now, live: make(map[string]*Session)}
}

// Open returns the session of a token, and holds it until release is called.
func (s *SessionStore) Open(t *sessionToken) (session *Session, release func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	session = s.live[t.ID]
	if session == nil {
		session = newSession(t)
		session.users++ // before others make room: it is not idle
		s.live[t.ID] = session
		s.evictLocked()
		return session, func() { s.release(session) }
	}
	session.mu.Lock()
	session.users++
	session.mu.Unlock()
	return session, func() { s.release(session) }
}

func (s *SessionStore) release(session *Session) {
	session.mu.Lock()
	defer session.mu.Unlock()
	session.users--
	session.lastUse = s.now()
}

// evictLocked forgets the sessions that nothing was under way for in the last
// minute, when there are too many. A flood of new ones leaves none to forget, so
// they are not looked for each time.
func (s *SessionStore) evictLocked() {
	if len(s.live) <= maxIdleSessions || s.now().Sub(s.swept) < time.Second {
		return
	}
	s.swept = s.now()
	for key, session := range s.live {
		session.mu.Lock()
		idle := session.users == 0 && s.now().Sub(session.lastUse) > time.Minute
		session.mu.Unlock()
		if idle {
			session.dropLogs(false)
			delete(s.live, key)
		}
	}
}

// End takes a session away that has ended, and cancels what was under way in it.
func (s *SessionStore) End(session *Session) {
	s.mu.Lock()
	delete(s.live, session.key)
	s.mu.Unlock()
	session.mu.Lock()
	session.ended = true
	streams := slices.Clone(session.streams) // which shrink as they end
	session.mu.Unlock()
	for _, st := range streams {
		st.cancel()
	}
	for _, cancel := range session.calls.close(errNoSession) {
		cancel(errNoSession)
	}
	session.hangUp()
	session.dropLogs(false)
}

// Sweep forgets what is kept of streams that nobody will resume.
func (s *SessionStore) Sweep() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, session := range s.live {
		session.dropLogs(true)
	}
}
