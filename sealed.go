// Sealed session ids, and the log of what became of sessions: which claim a session
// moved to, and whether it ended. A sealed id contains everything else, so a restart
// of the daemon strands no client.

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
	"hash/maphash"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"
)

// sessionLife is how long a session id is good for.
const sessionLife = 30 * 24 * time.Hour

// errManyRecords refuses to end a session or move it to another claim.
var errManyRecords error = httpErrorf(http.StatusTooManyRequests, "the session goes on as it is: too many others have ended or moved within %v: ask for a new code", sessionLife)

// sessionToken is what a session's id holds, sealed so that its client can neither
// read nor change it. It is never changed after it was made.
type sessionToken struct {
	ID       string     `json:"id"` // at least 128 random bits; names the session in tables and logs
	Issued   time.Time  `json:"issued"`
	Protocol string     `json:"protocol"`
	Caps     clientCaps `json:"caps,omitempty"` // what the client can be asked for
	Claim    claimRef   `json:"claim,omitzero"` // what the session began with; zero: no claim
}

// newSessionToken makes a token of its own, which also serves to stand for a
// request without a session.
func newSessionToken(protocol string, caps clientCaps, p Principal, now time.Time) *sessionToken {
	return &sessionToken{ID: rand.Text(), Issued: now.UTC().Round(0), Protocol: protocol, Caps: caps, Claim: p.claim}
}

// sessionStore seals session ids, and keeps what became of sessions after their
// ids were sealed: which claim a session moved to, and that it has ended. It is
// one file, sessions.jsonl, to which lines are appended. The file's first line
// holds the key that ids are sealed with, so that key and log can't be parted:
// with the log, the key is gone, and all sessions end rather than one widen. The
// daemon alone writes the file. Safe for concurrent use.
type sessionStore struct {
	path   string
	now    func() time.Time
	key    []byte
	cipher cipher.AEAD
	seed   maphash.Seed
	opened [maxOpened]atomic.Pointer[openedID] // lately, each in the place of its hash

	mu      sync.RWMutex
	records map[string]sessionRecord // by session

	writing   sync.Mutex       // held to write the file, so that memory and file tell the same story in the same order
	size      int64            // of the file
	compacted int64            // its size when it was last written anew
	count     map[claimRef]int // of records, by their claim then, or since by that of the session before
}

// read reads the key and what became of sessions. A last line without its end is
// passed over: it was being written when the daemon was killed, before anyone was
// answered. Any other fault makes the whole log unusable.
func (s *sessionStore) read() error {
	text, err := os.ReadFile(s.path)
	if err != nil {
		return err
	}
	s.records = make(map[string]sessionRecord)
	for line := range bytes.Lines(text[:bytes.LastIndexByte(text, '\n')+1]) {
		var rec sessionRecord
		err := json.Unmarshal(line, &rec)
		switch {
		case err == nil && s.key == nil && len(rec.Key) == 32:
			s.key = rec.Key
		case err == nil && s.key != nil && rec.ID != "" && (rec.Ended || rec.Claim != claimRef{}):
			s.records[rec.ID] = rec
		default:
			return errors.New("it has a line that is none of a session log")
		}
	}
	if s.key == nil {
		return errors.New("it has no key")
	}
	return nil
}

// compact writes the log anew, without the lines that later ones of the same
// session have replaced, and those of sessions that are past their time.
func (s *sessionStore) compact() error {
	text := sessionRecord{Key: s.key}.line()
	s.mu.Lock()
	maps.DeleteFunc(s.records, func(_ string, rec sessionRecord) bool { return s.now().Sub(rec.Issued) >= sessionLife })
	s.count = make(map[claimRef]int)
	for _, rec := range s.records {
		text = append(text, rec.line()...)
		s.count[rec.Claim]++
	}
	s.mu.Unlock()
	if err := replaceFile(s.path, text); err != nil {
		return err
	}
	s.size, s.compacted = int64(len(text)), int64(len(text))
	return nil
}

// seal makes a session's id.
func (s *sessionStore) seal(t *sessionToken) string {
	return base64.RawURLEncoding.EncodeToString(s.cipher.Seal(nil, nil, marshal(t), nil))
}

// open gives the session of an id. It is false for whatever this store did not
// seal, for an id past its time, and for a session that has ended.
func (s *sessionStore) open(id string) (*sessionToken, bool) {
	place := &s.opened[maphash.String(s.seed, id)%maxOpened]
	last := place.Load()
	if last == nil || last.id != id {
		sealed, decodeErr := base64.RawURLEncoding.Strict().DecodeString(id)
		text, openErr := s.cipher.Open(nil, nil, sealed, nil)
		last = &openedID{id, new(sessionToken)}
		if cmp.Or(decodeErr, openErr, json.Unmarshal(text, last.token)) != nil {
			return nil, false
		}
		place.Store(last)
	}
	if s.now().Sub(last.token.Issued) >= sessionLife {
		return nil, false
	}
	return last.token, !s.recordOf(last.token.ID).Ended
}

// recordOf is what became of a session; the zero value is nothing.
func (s *sessionStore) recordOf(id string) sessionRecord {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.records[id]
}

// appendRecord writes down what becomes of a session, sees it onto the disk, and only
// then has it count. Requests that write nothing do not wait for the disk. The
// error is errNoSession where the session has ended meanwhile; with any other
// *httpError the session stays as it was.
func (s *sessionStore) appendRecord(t *sessionToken, rec sessionRecord) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	before, first := s.recordOf(t.ID), t.Claim
	switch {
	case before.Ended:
		return errNoSession
	case before.ID == "" && s.count[first] >= maxRecordsOf:
		return errManyRecords
	}
	rec.ID, rec.Issued = t.ID, t.Issued
	rec.Claim = cmp.Or(rec.Claim, before.Claim, first) // an end does not take a claim away from what is under way
	if err := s.write(rec.line()); err != nil {
		return &httpError{Status: http.StatusServiceUnavailable, Err: fmt.Errorf("writing %q: %w", s.path, err), Header: retryAfter(5),
			Msg: "what becomes of the session could not be written down, so it stays as it is: try again"}
	}
	s.mu.Lock()
	s.records[t.ID] = rec
	s.mu.Unlock()
	if before.ID == "" {
		s.count[first]++
	}
	if s.size > 2*s.compacted+sessionLogSlack {
		_ = s.compact() // what was written stands; a log that can't be written fails the next append
	}
	return nil
}

// write appends a line, and sees it onto the disk. It makes no file: where someone
// took the log away, nothing can be written down until usher is restarted, which
// ends all sessions.
func (s *sessionStore) write(line []byte) error {
	file, err := os.OpenFile(s.path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	defer file.Close()
	if _, err = file.Write(line); err == nil {
		err = file.Sync()
	}
	if err != nil { // half a line, with others after it, would make the log unusable
		return errors.Join(err, file.Truncate(s.size))
	}
	s.size += int64(len(line))
	return nil
}

// openSessions opens the store in dataDir. Where the log can't be used, it begins
// a new one with a new key, which ends all sessions.
func openSessions(dataDir string, log *slog.Logger, now func() time.Time) (*sessionStore, error) {
	s := &sessionStore{path: filepath.Join(dataDir, "sessions.jsonl"), now: now, seed: maphash.MakeSeed()}
	if err := s.read(); err != nil {
		if !errors.Is(err, os.ErrNotExist) {
			log.Warn("all sessions end, as their log can't be used", "path", s.path, "err", err)
		}
		s.key, s.records = make([]byte, 32), make(map[string]sessionRecord)
		rand.Read(s.key) // never fails
	}
	block, _ := aes.NewCipher(s.key) // fails for keys of other lengths alone
	s.cipher, _ = cipher.NewGCMWithRandomNonce(block)
	if err := errors.Join(os.MkdirAll(dataDir, 0o700), s.compact()); err != nil {
		return nil, fmt.Errorf("preparing sessions: %w", err)
	}
	return s, nil
}

// sessionRecord is a line of the log. The last line of a session counts.
type sessionRecord struct {
	Key    []byte    `json:"key,omitempty"` // of the first line, which has nothing else
	ID     string    `json:"id,omitempty"`
	Issued time.Time `json:"issued,omitzero"` // as in the session's id: the line counts for as long
	Claim  claimRef  `json:"claim,omitzero"`  // what the session is scoped to since
	Ended  bool      `json:"ended,omitempty"`
}

// line is the record as it stands in the file.
func (r sessionRecord) line() []byte { return append(marshal(r), '\n') }

// openedID is a session id of this store, and what it holds.
type openedID struct {
	id    string
	token *sessionToken
}
