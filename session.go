// Sessions: what a client was given at initialize, sealed into its session id
// so that a restart of the daemon strands nobody, and the log of what became of
// sessions since. The store knows no HTTP and no module.

package main

import (
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// sessionLife is how long a session id is good for.
const sessionLife = 30 * 24 * time.Hour

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

// sealed is what a session id holds.
type sealed struct {
	ID       [16]byte
	Issued   time.Time
	Protocol string
	Caps     clientCaps
	Claim    *claimStamp // nil for an unscoped session
}

// Session is one client's session. There is one value per session for as long
// as something of it is under way. A request of a client without sessions has
// one of its own, which ends with it.
type Session struct {
	sealed
	key          string                            // of ID, for tables and logs
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
	claim     *claimStamp          // what it is scoped to by now; nil for none
	spoken    string               // protocol version
	caps      clientCaps
	ended     bool
}

// newSession is a session with nothing under way.
func newSession(s sealed) *Session {
	return &Session{sealed: s, key: hex.EncodeToString(s.ID[:]), claim: s.Claim, spoken: s.Protocol, caps: s.Caps,
		announced: make(map[string]string), wanted: make(map[string]*interest)}
}

// scopedTo is the claim that the session is scoped to; nil for none.
func (s *Session) scopedTo() *claimStamp {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.claim
}

// sameStamp reports whether two sessions are scoped alike; nil is unscoped.
func sameStamp(a, b *claimStamp) bool { return a == b || a != nil && b != nil && *a == *b }

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
func (s *Session) keepLog(kind string, claim *claimStamp, budget *atomic.Int64) *eventLog {
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
func (s *Session) eventLog(id string) *eventLog {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.logs {
		if l.id == id && sameStamp(l.claim, s.claim) {
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

// SessionStore makes, opens and ends sessions. Its key and its log belong
// together: with the log gone, what it said of sessions is too, and so the key
// is made anew and all sessions end, rather than one come back. Safe for
// concurrent use.
type SessionStore struct {
	ids     sealer
	logPath string
	now     func() time.Time

	token *writeToken

	mu    sync.Mutex
	log   *os.File
	fates map[string]sessionRecord // what became of sessions, by key
	live  map[string]*Session      // by key
	swept time.Time                // when idle ones were last looked for

	replay atomic.Int64 // bytes kept of streams that can be resumed
}

var (
	errNoSession    = errors.New("no such session")
	errSessionStore = errors.New("what became of a session can't be written down")
)

// sessionRecord is a line of the session log: what became of a session after
// its id was sealed. The last line of a session counts. A code that scoped a
// request without a session stands in the place of a session's id. The first
// line of the log holds Key alone, the hash of the key that the log belongs to.
type sessionRecord struct {
	Key   string      `json:"key,omitempty"`
	ID    string      `json:"id,omitempty"`
	At    time.Time   `json:"at,omitzero"`
	Ended bool        `json:"ended,omitempty"` // by its client
	Claim *claimStamp `json:"claim,omitempty"` // what it is scoped to since
}

// openSessions opens the store in dataDir, compacting its log.
func openSessions(dataDir string, now func() time.Time) (*SessionStore, error) {
	s := &SessionStore{logPath: filepath.Join(dataDir, "sessions.jsonl"), now: now,
		token: newWriteToken(dataDir), fates: make(map[string]sessionRecord), live: make(map[string]*Session)}
	var key []byte
	err := s.token.do(context.Background(), func(held *heldToken) (err error) {
		key, err = s.load(held, dataDir)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("preparing sessions: %w", err)
	}
	if s.log, err = os.OpenFile(s.logPath, os.O_WRONLY|os.O_APPEND, 0); err != nil {
		return nil, fmt.Errorf("preparing sessions: %w", err)
	}
	s.ids = newSealer(key)
	return s, nil
}

// load reads key and log, and writes the log anew without what is past its
// time. Where either is missing or unreadable both are made anew: first the
// key, so that a crash between the two leaves a log that is not the new key's.
func (s *SessionStore) load(held *heldToken, dataDir string) ([]byte, error) {
	clear(s.fates)
	key, err := os.ReadFile(filepath.Join(dataDir, "session.key"))
	if err != nil || len(key) != 32 || s.readLog(key) != nil {
		clear(s.fates)
		key = make([]byte, 32)
		rand.Read(key) // never fails
		if err := held.replace("session.key", key, nil); err != nil {
			return nil, err
		}
	}
	return key, held.replace(filepath.Base(s.logPath), s.compacted(key), nil)
}

func keyHash(key []byte) string {
	sum := sha256.Sum256(key)
	return hex.EncodeToString(sum[:8])
}

// readLog reads what became of sessions. Any fault makes the log unreadable, a
// last line without its end among them: it may be an append that was cut off
// before anyone was answered, but also a log that was cut short, which has lost
// who was scoped.
func (s *SessionStore) readLog(key []byte) error {
	raw, err := os.ReadFile(s.logPath)
	if err != nil {
		return err
	}
	lines := bytes.Split(raw, []byte("\n"))
	for i, line := range lines[:len(lines)-1] {
		var rec sessionRecord
		if err := json.Unmarshal(line, &rec); err != nil {
			return fmt.Errorf("line %d: %w", i+1, err)
		}
		if i == 0 {
			if rec.Key != keyHash(key) {
				return errors.New("the log belongs to another key")
			}
			continue
		}
		if rec.ID == "" {
			return fmt.Errorf("line %d names no session", i+1)
		}
		s.fates[rec.ID] = rec
	}
	if len(lines) < 2 || len(lines[len(lines)-1]) > 0 {
		return errors.New("the log was cut short")
	}
	return nil
}

// compacted is the log's content without what is past its time.
func (s *SessionStore) compacted(key []byte) []byte {
	b := append(marshal(sessionRecord{Key: keyHash(key)}), '\n')
	for _, id := range sortedKeys(s.fates) {
		if rec := s.fates[id]; s.now().Sub(rec.At) < sessionLife {
			b = append(append(b, marshal(rec)...), '\n')
		} else {
			delete(s.fates, id)
		}
	}
	return b
}

// Close closes the log.
func (s *SessionStore) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.log.Close()
}

// Create makes a session, scoped to claim unless that is nil, and returns it
// with its id. Nothing is kept of it: all that there is to know is in the id.
func (s *SessionStore) Create(protocol string, caps clientCaps, claim *claimStamp) (*Session, string) {
	data := sealed{Issued: s.now().Round(0), Protocol: protocol, Caps: caps, Claim: claim}
	rand.Read(data.ID[:]) // never fails
	return newSession(data), s.seal(data)
}

// The layout of a sealed session id: a version, so that a later layout can be
// told from this one; the random bits; time of issue, protocol, capabilities;
// and for a scoped session the claim's code, creation and directory.
const (
	sealVersion  = 1
	sealSize     = 1 + 16 + 8 + 1 + 2 // of an unscoped session
	sealCodeSize = 6
	sealClaim    = sealSize + sealCodeSize + 8 + 4 // where the directory begins
)

func (s *SessionStore) seal(d sealed) string {
	b := make([]byte, 0, sealClaim+256)
	b = append(b, sealVersion)
	b = append(b, d.ID[:]...)
	b = binary.BigEndian.AppendUint64(b, uint64(d.Issued.UnixNano()))
	b = append(b, protocolIndex(d.Protocol))
	b = binary.BigEndian.AppendUint16(b, uint16(d.Caps))
	if c := d.Claim; c != nil {
		b = append(b, c.Code.Reveal()...)
		// Seconds and nanoseconds: a record may have no creation, and the zero time
		// is none that UnixNano can tell.
		b = binary.BigEndian.AppendUint64(b, uint64(c.CreatedAt.Unix()))
		b = binary.BigEndian.AppendUint32(b, uint32(c.CreatedAt.Nanosecond()))
		b = append(b, c.ScopeDir...)
	}
	return s.ids.seal(b)
}

// unseal reads a session id. It is false for whatever this store did not seal.
func (s *SessionStore) unseal(id string) (sealed, bool) {
	b, ok := s.ids.open(id)
	if !ok || b[0] != sealVersion || len(b) != sealSize && len(b) <= sealClaim {
		return sealed{}, false
	}
	var d sealed
	copy(d.ID[:], b[1:17])
	d.Issued = time.Unix(0, int64(binary.BigEndian.Uint64(b[17:])))
	if d.Protocol, ok = protocolAt(b[25]); !ok {
		return sealed{}, false // sealed by a newer usher
	}
	d.Caps = clientCaps(binary.BigEndian.Uint16(b[26:]))
	if len(b) > sealSize {
		claim := b[sealSize:]
		created := claim[sealCodeSize:]
		d.Claim = &claimStamp{
			Code:      Code(claim[:sealCodeSize]),
			CreatedAt: time.Unix(int64(binary.BigEndian.Uint64(created)), int64(binary.BigEndian.Uint32(created[8:]))).UTC(),
			ScopeDir:  string(b[sealClaim:]),
		}
	}
	return d, true
}

// oldestIndex stands for oldestProtocol, before the first of protocols.
const oldestIndex = 255

func protocolIndex(protocol string) byte {
	if i := slices.Index(protocols, protocol); i >= 0 {
		return byte(len(protocols) - 1 - i)
	}
	return oldestIndex
}

func protocolAt(i byte) (string, bool) {
	if i == oldestIndex {
		return oldestProtocol, true
	}
	if int(i) >= len(protocols) {
		return "", false
	}
	return protocols[len(protocols)-1-int(i)], true
}

// Open returns the session of an id, and holds it until release is called. The
// error is errNoSession for one that is unknown, forged, expired or ended.
func (s *SessionStore) Open(id string) (session *Session, release func(), err error) {
	d, ok := s.unseal(id)
	if !ok || s.now().Sub(d.Issued) >= sessionLife {
		return nil, nil, errNoSession
	}
	key := hex.EncodeToString(d.ID[:])
	s.mu.Lock()
	defer s.mu.Unlock()
	fate := s.fates[key]
	if fate.Ended {
		return nil, nil, errNoSession
	}
	session = s.live[key]
	if session == nil {
		if fate.Claim != nil {
			d.Claim = fate.Claim
		}
		session = newSession(d)
		session.users++ // before others make room: it is not idle
		s.live[key] = session
		s.evictLocked()
		return session, func() { s.release(session) }, nil
	}
	session.mu.Lock()
	session.users++
	session.mu.Unlock()
	return session, func() { s.release(session) }, nil
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

// End ends a session for good: before it returns, the log says so, and what was
// under way in it is cancelled. The error is errSessionStore when the log can't
// be written; the session then goes on.
func (s *SessionStore) End(ctx context.Context, session *Session) error {
	if err := s.record(ctx, sessionRecord{ID: session.key, At: s.recordTime(session), Ended: true}, func() {
		delete(s.live, session.key)
	}); err != nil {
		return err
	}
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
	return nil
}

// codeKey is where a code stands that scoped a request without a session.
func codeKey(code Code) string { return "code " + code.Reveal() }

// rewrite is after how long it is written down again that a code was used, so
// that it is remembered for as long after its last use as a session is.
const rewrite = 24 * time.Hour

// Remember notes that a claim's code has scoped a request without a session:
// before it returns, the log says so. The error is errSessionStore when the log
// can't be written.
func (s *SessionStore) Remember(ctx context.Context, claim claimStamp) error {
	key := codeKey(claim.Code)
	s.mu.Lock()
	rec, ok := s.fates[key]
	s.mu.Unlock()
	if ok && sameStamp(rec.Claim, &claim) && s.now().Sub(rec.At) < rewrite {
		return nil
	}
	return s.record(ctx, sessionRecord{ID: key, At: s.now().UTC(), Claim: &claim}, func() {})
}

// Remembered is the claim that a code scoped a request without a session to;
// nil for none.
func (s *SessionStore) Remembered(code Code) *claimStamp {
	s.mu.Lock()
	defer s.mu.Unlock()
	rec, ok := s.fates[codeKey(code)]
	if !ok || s.now().Sub(rec.At) >= sessionLife {
		return nil
	}
	return rec.Claim
}

// Sweep forgets what is kept of streams that nobody will resume.
func (s *SessionStore) Sweep() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, session := range s.live {
		session.dropLogs(true)
	}
}

// Stamp scopes a session to a claim from now on: before it returns, the log
// says so. The error is errSessionStore when the log can't be written; the
// session then stays as it was.
func (s *SessionStore) Stamp(ctx context.Context, session *Session, claim claimStamp) error {
	return s.record(ctx, sessionRecord{ID: session.key, At: s.recordTime(session), Claim: &claim}, func() {
		session.mu.Lock()
		session.claim = &claim
		session.mu.Unlock()
	})
}

// recordTime is now, but not before the session was issued, should the clock
// have been put back: a record must not be dropped while its session is good.
func (s *SessionStore) recordTime(session *Session) time.Time {
	if now := s.now(); now.After(session.Issued) {
		return now.UTC()
	}
	return session.Issued.UTC()
}

// record appends what became of a session to the log, sees it onto the disk,
// and then has apply take it in, with mu held: so that memory and log tell the
// same story in the same order.
func (s *SessionStore) record(ctx context.Context, rec sessionRecord, apply func()) error {
	err := s.token.do(ctx, func(held *heldToken) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.fates[rec.ID].Ended {
			return errNoSession // its end was quicker, and is not to be undone
		}
		if err := s.append(held, rec); err != nil {
			return err
		}
		s.fates[rec.ID] = rec
		apply()
		return nil
	})
	if err != nil && !errors.Is(err, errNoSession) {
		return fmt.Errorf("%w: %w", errSessionStore, err)
	}
	return err
}

// append writes one line and sees it onto the disk.
func (s *SessionStore) append(held *heldToken, rec sessionRecord) error {
	ours, err := s.log.Stat()
	if err != nil {
		return err
	}
	if there, err := os.Stat(s.logPath); err != nil || !os.SameFile(ours, there) {
		return errors.New("sessions.jsonl was taken away: restart usher, which ends all sessions")
	}
	if _, err := s.log.Write(append(marshal(rec), '\n')); err != nil {
		return errors.Join(err, s.log.Truncate(ours.Size())) // half a line would make it unreadable
	}
	if err := s.log.Sync(); err != nil {
		return err
	}
	return held.check()
}
