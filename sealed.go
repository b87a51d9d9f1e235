// Sealed session ids, and the log of what happened to sessions after their ids were sealed:
// which claim a session moved to, and whether it ended. The sealed id contains everything
// else, so a restart of the daemon ends no session.

package main

import (
	"bytes"
	"cmp"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// sessionLife is how long a session id is valid.
const sessionLife = 30 * 24 * time.Hour

// sessionToken is the content of a session's id, which is sealed so that the client can
// neither read nor change it. Tokens are immutable.
type sessionToken struct {
	ID       string     `json:"id"` // at least 128 random bits; identifies the session in tables and logs
	Issued   time.Time  `json:"issued"`
	Protocol string     `json:"protocol"`
	Caps     clientCaps `json:"caps,omitempty"` // what the client can be asked for
	Claim    Principal  `json:"claim,omitzero"` // the claim that the session began with; zero for none
}

// newSessionToken returns a token with a new ID. It may also serve as the placeholder for
// a request without a session.
func newSessionToken(protocol string, caps clientCaps, p Principal) *sessionToken {
	return &sessionToken{
		ID:       rand.Text(),
		Issued:   time.Now().UTC().Round(0),
		Protocol: protocol,
		Caps:     caps,
		Claim:    p,
	}
}

// parseToken parses a token that usher has sealed. It runs for each request, so it does
// without reflection.
func parseToken(text json.RawMessage) *sessionToken {
	token := members(text)
	claim := members(token.get("claim"))
	issued, _ := time.Parse(time.RFC3339, token.text("issued"))
	caps, _ := strconv.Atoi(string(token.get("caps")))
	return &sessionToken{
		ID:       token.text("id"),
		Issued:   issued,
		Protocol: token.text("protocol"),
		Caps:     clientCaps(caps),
		Claim:    Principal{Code(claim.text("code")), claim.text("createdAt"), claim.text("claimScopeDir")},
	}
}

// sessionRecord is a line of the session log. A session's last line counts.
type sessionRecord struct {
	Key    []byte    `json:"key,omitempty"` // the key that seals ids; only in the first line
	ID     string    `json:"id,omitempty"`
	Issued time.Time `json:"issued,omitzero"` // as in the id; in the first line: sessionStore.oldest
	Claim  Principal `json:"claim,omitzero"`  // the session's claim from then on
	Ended  bool      `json:"ended,omitempty"`
}

// line returns the record as stored in the file.
func (r sessionRecord) line() []byte { return append(marshal(r), '\n') }

// errManyRecords refuses to end or move another session of a claim that has maxRecordsOf
// records.
var errManyRecords error = httpErrorf(http.StatusTooManyRequests,
	"too many sessions of this claim ended or moved within %d days: get a new code",
	sessionLife/(24*time.Hour))

// sessionStore seals session ids, and keeps what happened to sessions afterwards: which
// claim a session moved to, and whether it has ended. It has one file, sessions.jsonl, to
// which lines are appended. The first line contains the key that seals the ids, so key
// and log can't be separated: without the log there is no key, so all sessions end and
// none can widen. Only the daemon writes the file. Safe for concurrent use.
type sessionStore struct {
	path   string
	key    []byte
	cipher cipher.AEAD

	mu      sync.RWMutex
	records map[string]sessionRecord // by session
	// oldest is later than the issue time of each expired session whose record was dropped.
	// usher refuses ids issued before oldest, even if the clock was wrong when they
	// expired.
	oldest time.Time

	writing   sync.Mutex // held to change the file and records in one order; locked before mu
	size      int64      // of the file
	compactAt int64      // size beyond which the file is compacted
	counts    quota      // records, by the session's claim at its first record or at the last compaction
}

// openSessions opens the store in dataDir. If the log can't be used, it begins a new log
// with a new key, which ends all sessions.
func openSessions(dataDir string, log *slog.Logger) (*sessionStore, error) {
	s := &sessionStore{path: filepath.Join(dataDir, "sessions.jsonl")}
	if err := s.read(); err != nil {
		if !errors.Is(err, os.ErrNotExist) {
			log.Warn("all sessions end, because their log can't be used", "path", s.path, "err", err)
		}
		s.key = make([]byte, 32)
		rand.Read(s.key) // never fails
		clear(s.records)
	}
	block, _ := aes.NewCipher(s.key) // fails only for keys of other lengths
	s.cipher, _ = cipher.NewGCMWithRandomNonce(block)
	if err := s.compact(); err != nil {
		return nil, fmt.Errorf("preparing sessions: %w", err)
	}
	return s, nil
}

// read reads the key and the records. It ignores an incomplete last line, which was being
// written when the daemon was killed, before the request was answered. Any other fault
// makes the whole log unusable.
func (s *sessionStore) read() error {
	s.records = make(map[string]sessionRecord)
	text, err := os.ReadFile(s.path)
	if err != nil {
		return err
	}
	for line := range bytes.Lines(text[:bytes.LastIndexByte(text, '\n')+1]) {
		var rec sessionRecord
		err := json.Unmarshal(line, &rec)
		switch {
		case err == nil && s.key == nil && len(rec.Key) == 32:
			s.key = rec.Key
			s.oldest = rec.Issued
		case err == nil && s.key != nil && rec.ID != "" && (rec.Ended || rec.Claim.exists()):
			s.records[rec.ID] = rec
		default:
			return errors.New("it has a line that is not a session record")
		}
	}
	if s.key == nil {
		return errors.New("it has no key")
	}
	return nil
}

// compact rewrites the log without lines that a later line of the same session replaces,
// and without lines of expired sessions. If very many sessions without a claim have ended,
// it also forgets the oldest ends. Such a session may then continue, which is harmless: any
// client that is admitted without a claim may begin a session.
func (s *sessionStore) compact() error {
	s.mu.Lock()
	records := slices.SortedFunc(maps.Values(s.records), func(a, b sessionRecord) int {
		return b.Issued.Compare(a.Issued) // newest first
	})
	s.counts = quota{}
	var lines []byte
	for _, rec := range records {
		key := rec.Claim.Key()
		expired := time.Since(rec.Issued) >= sessionLife
		if expired && !rec.Issued.Before(s.oldest) {
			s.oldest = rec.Issued.Add(1)
		}
		if expired || key == "" && s.counts.count(key) >= maxRecordsOf/2 {
			delete(s.records, rec.ID)
			continue
		}
		s.counts.reserve(key, maxRecordsOf)
		lines = append(lines, rec.line()...)
	}
	text := append(sessionRecord{Key: s.key, Issued: s.oldest}.line(), lines...)
	s.mu.Unlock()
	// A random name would leave copies of the key and of codes behind after kill -9.
	if err := replaceBy(s.path+".new", s.path, text); err != nil {
		return err
	}
	s.size = int64(len(text))
	s.compactAt = 2*s.size + sessionLogSlack
	return nil
}

// idEncoding encodes session ids as text.
var idEncoding = base64.RawURLEncoding.Strict()

// seal returns a session's id.
func (s *sessionStore) seal(t *sessionToken) string {
	return idEncoding.EncodeToString(s.cipher.Seal(nil, nil, marshal(t), nil))
}

// open returns the token of a session id. It reports false for everything that this store
// did not seal, for an expired id, and for a session that has ended.
func (s *sessionStore) open(id string) (*sessionToken, bool) {
	sealed, err := idEncoding.DecodeString(id)
	if err != nil || strings.ContainsAny(id, "\r\n") { // base64 ignores these: an id has one spelling
		return nil, false
	}
	text, err := s.cipher.Open(nil, nil, sealed, nil)
	if err != nil {
		return nil, false
	}
	token := parseToken(text)
	return token, time.Since(token.Issued) < sessionLife && !s.recordOf(token).Ended
}

// recordOf returns a session's record, or the zero value if there is none. If the record
// may have been dropped, the result is an ended session with a claim that does not exist.
func (s *sessionStore) recordOf(t *sessionToken) sessionRecord {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if t.Issued.Before(s.oldest) {
		return sessionRecord{Claim: Principal{Code: codeRedacted}, Ended: true}
	}
	return s.records[t.ID]
}

// appendRecord appends a session's record to the log and syncs it. Only then does the
// record count. Requests that write no record do not wait for the disk. The error is
// errNoSession if the session has ended meanwhile, or another *httpError; then the session
// is unchanged.
func (s *sessionStore) appendRecord(t *sessionToken, rec sessionRecord) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	before := s.recordOf(t)
	if before.Ended {
		return errNoSession
	}
	rec.ID = t.ID
	rec.Issued = t.Issued
	rec.Claim = cmp.Or(rec.Claim, before.Claim, t.Claim) // after the end, requests in flight keep the claim
	key := rec.Claim.Key()
	if before.ID == "" && s.counts.count(key) >= maxRecordsOf {
		if key != "" {
			return errManyRecords
		}
		_ = s.compact() // makes room, even if the log can't be written
	}
	if err := s.write(rec.line()); err != nil {
		return httpErrorf(http.StatusServiceUnavailable,
			"can't write the session log: try again").
			because(err).retryAfter(5)
	}
	if before.ID == "" {
		s.counts.reserve(key, maxRecordsOf)
	}
	s.mu.Lock()
	s.records[t.ID] = rec
	s.mu.Unlock()
	if s.size > s.compactAt {
		_ = s.compact() // the record is saved anyway; if the log can't be written, the next append fails
	}
	return nil
}

// write appends a line and syncs the file. It does not create the file: if someone removed
// the log, nothing can be saved until usher is restarted, which ends all sessions.
func (s *sessionStore) write(line []byte) error {
	file, err := os.OpenFile(s.path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	defer file.Close()
	_, err = file.Write(line)
	if err == nil {
		err = file.Sync()
	}
	if err != nil { // half a line followed by others would make the log unusable
		_ = os.Truncate(s.path, s.size) // by path: on Windows, file can only append
		return err
	}
	s.size += int64(len(line))
	return nil
}
