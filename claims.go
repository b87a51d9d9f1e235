// Claims: codes, the file that holds them, and the write token under which
// every file of the data folder is rewritten. This file knows nobody: no HTTP,
// no session, no scope rule, no module.
//
// # Why no two writers both win, and why no record is lost
//
// There is no flock, whose meaning differs by system and file system, and no
// lock file with a time-out, where two finders of one stale lock can both
// remove it, the second removing the first one's new lock. There is a token: a
// file in claims.lock/, named "free" or "held.UNIXMS.HOST.PID.RANDOM".
//
//  1. To take the token is to rename it to a held name of one's own. Names are
//     random and never used twice, and of several renames of one name exactly
//     one succeeds. That is so whether the old name is "free" or the held name
//     of a writer who crashed: two finders of a dead owner are two renames of
//     one name.
//  2. A token whose owner is dead, or older than 30 s, or from the future,
//     may be taken from its owner. Whether that verdict is right decides only
//     who waits: a stopped process, a clock that jumped, a pid of another
//     container may all make it wrong, and nothing below depends on it.
//  3. A holder first removes every temporary file of the folder. Those are
//     made by holders only, so they belong to someone who has lost the token.
//  4. Then it reads claims.json, writes its own temporary file, sees that its
//     token is still there under its own name, that claims.json is still the
//     file it read, and renames the temporary file over claims.json.
//
// Say A held the token and B took it away from A, however alive A was. If A's
// look at its token came after B's rename, A finds its name gone and starts
// over. If it came before, A's temporary file was there before B's rename, so
// step 3 of B, or of whoever took it from B, finds it. Now A's last rename and
// that removal are about one name, and one comes first. The rename first: B has
// not read yet, and reads what A wrote. The removal first: A's rename fails for
// want of its source, and A starts over. So a writer that was stopped between
// look and rename, for however long, undoes nobody's work when it wakes: there
// is no window. What a writer read is what it replaces, and no record is lost.
//
// The folder is prepared with its token inside and renamed into place, which
// fails where there is one, so it is made once. If someone removed the token,
// the empty folder is removed, which fails unless it is empty, and made anew.
//
// # Why kill -9 at any instant harms nobody
//
// claims.json changes by one rename of a whole, synced file: it is the old one
// or the new one. A killed holder leaves a token with a dead owner, which the
// next look takes over, and a temporary file, which step 3 removes. That holds
// after the rename too: what was renamed is written, and only the giving back is
// missing. A process killed while it prepares claims.lock/ leaves a folder
// that nobody uses under a temporary name.
//
// # What is not promised
//
//   - Who does not take the token is not serialized with those who do. A
//     claims.json that is deleted or put back by hand during a write is noticed
//     up to the last look at it; between that look and the rename lie some
//     microseconds in which it would be undone. rename can't be made to require
//     its target. `usher claim revoke` takes the token and has no such gap.
//   - Network file systems, where a rename may be done and reported as failed,
//     a listing may be old, and "one rename succeeds" is the server's word.
//   - A second token, from a copy of the folder restored over it during a write:
//     two may then hold one each until the next finds both and makes them one.
//     (The look at claims.json before the rename is in force all the same.)
//   - Order: waiters get their turn by chance.
//   - An edit in place that keeps size, inode and mtime is not seen by readers.
//   - Power loss on a disk that lies about fsync; on Windows the folder can't be
//     synced, so the last change may be missing then (old file, whole).

package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"io/fs"
	"log/slog"
	mathrand "math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unicode/utf8"
)

// errNoClaim is Revoke's answer to a code that no active claim has.
var errNoClaim = errors.New("no such claim")

// errClaimsUnreadable is matched by every error that says claims.json is there
// and can't be used. Nothing was written then.
var errClaimsUnreadable = errors.New("claims file is unreadable")

const (
	codeAlphabet = "23456789ABCDEFGHJKMNPQRSTUVWXYZ" // 31 symbols, none taken for another
	codeLength   = 6
	codeRedacted = "***-***"
)

// Code is a claim's six characters. It is a secret: whatever prints it, with
// any verb or logger, prints asterisks. Only Reveal, Dashed and JSON, which is
// how claims.json stores it, give it away. Two codes are equal by ==.
type Code string

// parseCode folds what a person or a client sent: ASCII letters to upper case,
// dashes and spaces dropped. Nothing else is forgiven, and no Unicode case rule
// is used, by which ſ would be an S.
func parseCode(s string) (Code, bool) {
	var code [codeLength]byte
	n := 0
	for i := range len(s) {
		c := s[i]
		if c == '-' || c == ' ' {
			continue
		}
		if 'a' <= c && c <= 'z' {
			c -= 'a' - 'A'
		}
		if n == codeLength || strings.IndexByte(codeAlphabet, c) < 0 {
			return "", false
		}
		code[n] = c
		n++
	}
	if n != codeLength {
		return "", false
	}
	return Code(code[:]), true
}

// drawCode draws uniformly: bytes past the last multiple of 31 are thrown away,
// since a plain remainder would favour the first symbols.
func drawCode() Code {
	const limit = 256 - 256%len(codeAlphabet)
	var code [codeLength]byte
	for n := 0; n < codeLength; {
		var b [1]byte
		rand.Read(b[:]) // never fails
		if int(b[0]) < limit {
			code[n] = codeAlphabet[int(b[0])%len(codeAlphabet)]
			n++
		}
	}
	return Code(code[:])
}

// Reveal gives the code itself, for the one who may see it.
func (c Code) Reveal() string { return string(c) }

// Dashed gives the code itself as people read it: R3K-9QZ.
func (c Code) Dashed() string {
	if len(c) != codeLength {
		return string(c)
	}
	return string(c[:3]) + "-" + string(c[3:])
}

func (c Code) String() string             { return codeRedacted }
func (c Code) LogValue() slog.Value       { return slog.StringValue(codeRedacted) }
func (c Code) Format(f fmt.State, _ rune) { io.WriteString(f, codeRedacted) }

// Claim is one record of claims.json. Values are never changed after they were
// made, so copies may be shared between goroutines.
type Claim struct {
	Code      Code
	ScopeDir  string    // as stored: absolute, symlinks resolved, by who created it
	CreatedAt time.Time // UTC; zero if the record has none
	ExpiresAt time.Time // UTC; from this instant on the claim is over
	Label     string    // may be ""

	// raw is the record as it stands in the file. Records are never changed,
	// only added and removed, so fields of other versions survive as they are.
	raw json.RawMessage
}

// Active reports whether the claim holds at now.
func (c Claim) Active(now time.Time) bool { return now.Before(c.ExpiresAt) }

// Same reports whether both are one claim: the same code, created at the same
// instant. A code alone may be drawn again.
func (c Claim) Same(other Claim) bool {
	return c.Code == other.Code && c.CreatedAt.Equal(other.CreatedAt)
}

// MarshalJSON gives the stored record, its code included.
func (c Claim) MarshalJSON() ([]byte, error) {
	if c.raw == nil {
		return nil, errors.New("claim has no record")
	}
	return c.raw, nil
}

// LogValue names a claim in logs without its code or its record.
func (c Claim) LogValue() slog.Value {
	return slog.GroupValue(slog.String("label", c.Label), slog.Time("expiresAt", c.ExpiresAt))
}

// newClaim makes a claim by way of its record, so that what Create returns is
// what any reader of the file will see.
func newClaim(code Code, scopeDir, label string, now time.Time, ttl time.Duration) (Claim, error) {
	now = now.UTC().Truncate(time.Millisecond)
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false) // people read this file
	err := enc.Encode(struct {
		Code      Code      `json:"code"`
		ScopeDir  string    `json:"scopeDir"`
		CreatedAt time.Time `json:"createdAt"`
		ExpiresAt time.Time `json:"expiresAt"`
		Label     string    `json:"label,omitempty"`
	}{code, scopeDir, now, now.Add(ttl), label})
	if err != nil {
		return Claim{}, fmt.Errorf("encoding claim: %w", err)
	}
	return parseClaim(bytes.TrimSpace(b.Bytes()))
}

// parseClaim reads one record. It goes through a map, since decoding into a
// struct would take a key "CODE" for "code". Errors quote nothing of the
// record: it holds a secret.
func parseClaim(raw json.RawMessage) (Claim, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(raw, &fields); err != nil || fields == nil {
		return Claim{}, errors.New("not an object")
	}
	var code string
	var created, expires stamp
	c := Claim{raw: raw}
	for _, f := range []struct {
		key  string
		into any
	}{
		{"code", &code}, {"scopeDir", &c.ScopeDir}, {"label", &c.Label},
		{"createdAt", &created}, {"expiresAt", &expires},
	} {
		if value, ok := fields[f.key]; ok && json.Unmarshal(value, f.into) != nil {
			return Claim{}, fmt.Errorf("unusable %s", f.key)
		}
	}
	c.Code, c.CreatedAt, c.ExpiresAt = Code(code), time.Time(created), time.Time(expires)
	// Folding is for input: in the file a code has one spelling.
	if folded, ok := parseCode(code); !ok || folded != c.Code {
		return Claim{}, errors.New("missing or malformed code")
	}
	if c.ScopeDir == "" || c.ExpiresAt.IsZero() {
		return Claim{}, errors.New("missing scopeDir or expiresAt")
	}
	return c, nil
}

// stamp is a time in a record: RFC 3339, or a number of Unix milliseconds.
type stamp time.Time

// UnmarshalJSON leaves the stamp as it is for null, as encoding/json does.
func (t *stamp) UnmarshalJSON(raw []byte) error {
	const maxMS = 8.64e15 // ±275,000 years, exact in a float64
	var at time.Time
	if raw[0] == 'n' || raw[0] == '"' {
		if err := at.UnmarshalJSON(raw); err != nil {
			return err
		}
	} else {
		ms, err := strconv.ParseFloat(string(raw), 64)
		if err != nil || ms > maxMS || ms < -maxMS {
			return errors.New("not a time")
		}
		at = time.UnixMilli(int64(ms))
	}
	*t = stamp(at.UTC())
	return nil
}

// parseClaims reads the whole file. encoding/json lets invalid UTF-8 and a null
// for an array pass; both would be claims silently changed or lost.
func parseClaims(data []byte) ([]Claim, error) {
	trimmed := bytes.TrimLeft(data, " \t\r\n")
	if len(trimmed) == 0 {
		return nil, errors.New("it is empty")
	}
	if !utf8.Valid(data) {
		return nil, errors.New("invalid UTF-8")
	}
	if trimmed[0] != '[' {
		return nil, errors.New("not a JSON array")
	}
	var records []json.RawMessage
	if err := json.Unmarshal(data, &records); err != nil {
		return nil, errors.New("incomplete or malformed JSON")
	}
	claims := make([]Claim, 0, len(records))
	seen := make(map[Code]int, len(records))
	for i, raw := range records {
		c, err := parseClaim(raw)
		if err != nil {
			return nil, fmt.Errorf("record %d: %w", i+1, err)
		}
		if first, dup := seen[c.Code]; dup {
			return nil, fmt.Errorf("records %d and %d have one code", first, i+1)
		}
		seen[c.Code] = i + 1
		claims = append(claims, c)
	}
	return claims, nil
}

// encodeClaims writes one record a line, each as it was read.
func encodeClaims(claims []Claim) ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('[')
	for i, c := range claims {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString("\n  ")
		if err := json.Compact(&b, c.raw); err != nil {
			return nil, fmt.Errorf("encoding claim: %w", err)
		}
	}
	b.WriteString("\n]\n")
	return b.Bytes(), nil
}

// unreadableError is a claims.json that is there and can't be used.
type unreadableError struct {
	path string
	what string // completes "claims file X …"
	way  string // the way out
}

func (e *unreadableError) Error() string {
	return fmt.Sprintf("claims file %q %s: %s; it was left as it is", e.path, e.what, e.way)
}

func (e *unreadableError) Is(target error) bool { return target == errClaimsUnreadable }

// cantRead says why without the path, which the message names already.
func cantRead(path string, err error) error {
	if pe := (*fs.PathError)(nil); errors.As(err, &pe) {
		err = pe.Err
	}
	return &unreadableError{path, "can't be read (" + err.Error() + ")", "make it readable or move it away"}
}

// snapshot is claims.json as it was once read.
type snapshot struct {
	// file is the file that was read, kept open so that its inode can't be given
	// to a later claims.json of the same size and time. It is nil when there was
	// no file, and on Windows, where it would keep writers from replacing the
	// file, and where file ids are not used again so soon.
	file       *os.File
	info       fs.FileInfo // nil: there was no file
	claims     []Claim     // in the file's order
	byCode     map[Code]Claim
	soonest    time.Time // the earliest expiry of all; zero: no claims
	generation uint64    // counts up with each reading of one ClaimStore
}

// statClaims stats the file; nil without an error when there is none. A link to
// nowhere is an unreadable file and not a missing one: its claims are elsewhere.
func statClaims(path string) (fs.FileInfo, error) {
	info, err := os.Stat(path)
	if err == nil {
		return info, nil
	}
	if errors.Is(err, fs.ErrNotExist) {
		if _, lerr := os.Lstat(path); errors.Is(lerr, fs.ErrNotExist) {
			return nil, nil
		}
	}
	return nil, cantRead(path, err)
}

// loadClaims reads the file. The caller closes the snapshot.
func loadClaims(path string) (*snapshot, error) {
	info, err := statClaims(path)
	if err != nil || info == nil {
		return &snapshot{}, err
	}
	if !info.Mode().IsRegular() {
		return nil, cantRead(path, errors.New("not a regular file")) // a pipe would block
	}
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return &snapshot{}, nil // deleted since the stat
	}
	if err != nil {
		return nil, cantRead(path, err)
	}
	// The stat comes before the bytes: who changes them in between makes the
	// next look differ from it, and the file is read again.
	var data []byte
	if info, err = file.Stat(); err == nil {
		data, err = io.ReadAll(file)
	}
	if err != nil {
		file.Close()
		return nil, cantRead(path, err)
	}
	snap := &snapshot{file: file, info: info}
	if runtime.GOOS == "windows" {
		snap.close()
	}
	if snap.claims, err = parseClaims(data); err != nil {
		snap.close()
		return nil, &unreadableError{path, "is not a list of claims (" + err.Error() + ")", "move it away or restore it"}
	}
	snap.byCode = make(map[Code]Claim, len(snap.claims))
	for _, c := range snap.claims {
		snap.byCode[c.Code] = c
		if snap.soonest.IsZero() || c.ExpiresAt.Before(snap.soonest) {
			snap.soonest = c.ExpiresAt
		}
	}
	return snap, nil
}

func (s *snapshot) close() {
	if s.file != nil {
		s.file.Close()
		s.file = nil
	}
}

// is reports whether info, of claims.json now, is that of the file read.
func (s *snapshot) is(info fs.FileInfo) bool {
	if s.info == nil || info == nil {
		return s.info == nil && info == nil
	}
	return s.info.Size() == info.Size() && s.info.ModTime().Equal(info.ModTime()) && os.SameFile(s.info, info)
}

// active gives the claims that hold at now, in the file's order; never nil.
func (s *snapshot) active(now time.Time) []Claim {
	list := make([]Claim, 0, len(s.claims)+1)
	for _, c := range s.claims {
		if c.Active(now) {
			list = append(list, c)
		}
	}
	return list
}

// find gives the claim of that code, if it holds at now.
func (s *snapshot) find(code Code, now time.Time) (Claim, bool) {
	if c, ok := s.byCode[code]; ok && c.Active(now) {
		return c, true
	}
	return Claim{}, false
}

// expired reports whether any record is over at now.
func (s *snapshot) expired(now time.Time) bool {
	return !s.soonest.IsZero() && !now.Before(s.soonest)
}

// ClaimStore is the claims of one data folder. All methods are safe for
// concurrent use, by goroutines and by other processes alike. Reading makes no
// file and no folder. Methods return an error that matches errClaimsUnreadable
// while claims.json is there and can't be used.
type ClaimStore struct {
	path  string       // of claims.json
	log   *slog.Logger // failed background purges
	token *writeToken  // for all rewriting in the data folder, other rooms' too

	current atomic.Pointer[snapshot] // nil until first read; replaced under mu

	mu     sync.Mutex
	purged uint64 // guarded by mu; the generation a purge was last started for

	purging sync.WaitGroup
	ctx     context.Context // of purges; ended by stop, under mu
	stop    context.CancelFunc
}

// openClaims gives the store of dataDir, {base}/.data, which need not exist
// yet. Purges that Lookup starts and that fail are told to log; nil is none.
// A store that looks up is to be closed.
func openClaims(dataDir string, log *slog.Logger) *ClaimStore {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	s := &ClaimStore{path: filepath.Join(dataDir, "claims.json"), log: log, token: newWriteToken(dataDir)}
	s.ctx, s.stop = context.WithCancel(context.Background())
	return s
}

// Close ends a purge under way, waits for it, and lets go of the file. The
// store is not to be used afterwards.
func (s *ClaimStore) Close() {
	s.mu.Lock()
	s.stop()
	s.mu.Unlock()
	s.purging.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	if snap := s.current.Swap(nil); snap != nil {
		snap.close()
	}
}

// Create adds a claim on scopeDir for ttl, and waits for its turn to write at
// most as long as ctx allows. Label may be "". The error of a bad argument
// names it. After an error the claim may exist, but nobody has its code.
func (s *ClaimStore) Create(ctx context.Context, scopeDir, label string, ttl time.Duration) (Claim, error) {
	switch {
	case scopeDir == "" || !utf8.ValidString(scopeDir):
		return Claim{}, fmt.Errorf("scope %q: want a path in UTF-8", scopeDir)
	case !utf8.ValidString(label):
		return Claim{}, fmt.Errorf("label %q: want UTF-8", label)
	case ttl <= 0:
		return Claim{}, fmt.Errorf("time to live %v: want more than zero", ttl)
	}
	var made Claim
	err := s.update(ctx, func(old *snapshot, now time.Time) ([]Claim, error) {
		code := drawCode()
		for _, taken := old.byCode[code]; taken; _, taken = old.byCode[code] {
			code = drawCode()
		}
		var err error
		made, err = newClaim(code, scopeDir, label, now, ttl)
		return append(old.active(now), made), err
	})
	if err != nil {
		return Claim{}, fmt.Errorf("creating claim: %w", err)
	}
	return made, nil
}

// List gives the active claims, soonest expiry first, and removes expired ones
// from the file. When only that removal fails, the list is complete all the
// same, and comes with the error; when reading fails, the list is nil.
func (s *ClaimStore) List(ctx context.Context) ([]Claim, error) {
	snap, err := s.refresh()
	if err != nil {
		return nil, err
	}
	now := time.Now()
	list := snap.active(now)
	slices.SortStableFunc(list, func(a, b Claim) int {
		return cmp.Or(a.ExpiresAt.Compare(b.ExpiresAt), a.CreatedAt.Compare(b.CreatedAt), cmp.Compare(a.Code, b.Code))
	})
	if snap.expired(now) {
		err = s.purge(ctx)
	}
	return list, err
}

// Revoke removes the active claim of that code and returns it. Without one it
// returns errNoClaim, and writes nothing.
func (s *ClaimStore) Revoke(ctx context.Context, code Code) (Claim, error) {
	snap, err := s.refresh()
	if err != nil {
		return Claim{}, err
	}
	gone, ok := snap.find(code, time.Now())
	if !ok {
		return Claim{}, errNoClaim
	}
	err = s.update(ctx, func(old *snapshot, now time.Time) ([]Claim, error) {
		if gone, ok = old.find(code, now); !ok {
			return nil, errNoClaim
		}
		return slices.DeleteFunc(old.active(now), gone.Same), nil
	})
	if err != nil {
		return Claim{}, fmt.Errorf("revoking claim: %w", err)
	}
	return gone, nil
}

// Lookup gives the active claim of that code. It costs one stat and a map look-up
// unless the file changed, so that every request can ask. Expired records are
// no claims from their instant on; the first look-up that meets one starts a
// purge, which the store owns, beside the request.
func (s *ClaimStore) Lookup(code Code) (Claim, bool, error) {
	snap, err := s.refresh()
	if err != nil {
		return Claim{}, false, err
	}
	now := time.Now()
	if snap.expired(now) {
		s.purgeBeside(snap.generation)
	}
	c, ok := snap.find(code, now)
	return c, ok, nil
}

// NextExpiry gives the instant at which the next active claim ends; false when
// there is no active claim.
func (s *ClaimStore) NextExpiry() (time.Time, bool, error) {
	snap, err := s.refresh()
	if err != nil {
		return time.Time{}, false, err
	}
	var next time.Time
	for _, c := range snap.active(time.Now()) {
		if next.IsZero() || c.ExpiresAt.Before(next) {
			next = c.ExpiresAt
		}
	}
	return next, !next.IsZero(), nil
}

// Generation gives a number that is another whenever the file was changed, made
// or deleted since the last call. It costs one stat when it was not.
func (s *ClaimStore) Generation() (uint64, error) {
	snap, err := s.refresh()
	if err != nil {
		return 0, err
	}
	return snap.generation, nil
}

// refresh gives what claims.json holds now. Errors are not kept: a file that
// can't be used is tried again at each call.
func (s *ClaimStore) refresh() (*snapshot, error) {
	// First the stat, then the pointer: by then a snapshot with that inode is of
	// that very file, or newer, since an inode is free only after its snapshot
	// was replaced.
	info, err := statClaims(s.path)
	if err != nil {
		return nil, err
	}
	if snap := s.current.Load(); snap != nil && snap.is(info) {
		return snap, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.current.Load()
	if old != nil && old.is(info) {
		return old, nil // someone else has read it meanwhile
	}
	snap, err := loadClaims(s.path)
	if err != nil {
		return nil, err
	}
	snap.generation = 1
	if old != nil {
		snap.generation = old.generation + 1
		old.close() // the new file is open already, so the inodes differ
	}
	s.current.Store(snap)
	return snap, nil
}

// Between update and its parts: there is nothing to write; claims.json is no
// longer the file that was read.
var (
	errUnchanged = errors.New("nothing to write")
	errMoved     = errors.New("claims file keeps being replaced by others")
)

// update is the one door for changes: under the token it reads the file, has
// change give what it shall hold, and replaces it. Change may be called several
// times, and is to leave out what has expired.
func (s *ClaimStore) update(ctx context.Context, change func(old *snapshot, now time.Time) ([]Claim, error)) error {
	const tries = 50 // of deletions by hand during one write
	return s.token.do(ctx, func(held *heldToken) error {
		err := errMoved
		for n := 0; n < tries && errors.Is(err, errMoved); n++ {
			err = s.updateOnce(held, change)
		}
		return err
	})
}

func (s *ClaimStore) updateOnce(held *heldToken, change func(*snapshot, time.Time) ([]Claim, error)) error {
	old, err := loadClaims(s.path)
	if err != nil {
		return err
	}
	defer old.close() // open until the rename: its inode stands for what was read
	claims, err := change(old, time.Now())
	if errors.Is(err, errUnchanged) {
		return nil
	}
	if err != nil {
		return err
	}
	data, err := encodeClaims(claims)
	if err != nil {
		return err
	}
	return held.replace("claims.json", data, func() error {
		info, err := statClaims(s.path)
		if err == nil && !old.is(info) {
			return errMoved
		}
		return err
	})
}

// purge removes expired records from the file.
func (s *ClaimStore) purge(ctx context.Context) error {
	err := s.update(ctx, func(old *snapshot, now time.Time) ([]Claim, error) {
		if !old.expired(now) {
			return nil, errUnchanged
		}
		return old.active(now), nil
	})
	if err != nil {
		return fmt.Errorf("removing expired claims: %w", err)
	}
	return nil
}

// purgeBeside starts a purge unless one was started for this reading of the
// file: one that fails is not repeated by every request.
func (s *ClaimStore) purgeBeside(generation uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil || s.purged >= generation {
		return
	}
	s.purged = generation
	s.purging.Go(func() {
		if err := s.purge(s.ctx); err != nil && s.ctx.Err() == nil {
			s.log.Warn("claims", "err", err)
		}
	})
}

// errTokenLost says that another has taken the write token meanwhile. Inside
// writeToken.do it means: start over.
var errTokenLost = errors.New("write token was taken over by another writer")

const (
	tokenFree = "free"
	tokenHeld = "held."
	tokenTemp = ".tmp." + tokenHeld // in the names of temporary files and folders
)

// writeToken is the right to rewrite files of one data folder, for this process
// and all others; the top of this file argues it. Safe for concurrent use:
// goroutines queue within the process, so one of them waits for others only.
type writeToken struct {
	dataDir  string
	dir      string        // claims.lock
	host     string        // as it stands in held names
	birth    func() string // of this process, as it stands in held names
	busy     chan struct{} // 1-buffered; full while a goroutine here writes
	stale    time.Duration // a token held for longer is taken over
	patience time.Duration // with one and the same holder
	step     func(string)  // called at each step of a write; tests stop there
}

func newWriteToken(dataDir string) *writeToken {
	return &writeToken{
		dataDir:  dataDir,
		dir:      filepath.Join(dataDir, "claims.lock"),
		host:     tokenHost(),
		birth:    sync.OnceValue(func() string { return tokenBirth(os.Getpid()) }),
		busy:     make(chan struct{}, 1),
		stale:    30 * time.Second,
		patience: 10 * time.Second,
		step:     func(string) {},
	}
}

// do calls write while this process holds the token. When the token is lost in
// between (this process was stopped for over 30 s), it takes it again and calls
// write again, which must therefore begin by reading anew. It returns write's
// error, or says who holds the token, or that ctx ended. The data folder is
// made if need be.
func (t *writeToken) do(ctx context.Context, write func(*heldToken) error) error {
	select {
	case t.busy <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("waiting to write in %q: %w", t.dataDir, ctx.Err())
	}
	defer func() { <-t.busy }()
	for range 5 {
		held, err := t.take(ctx)
		if err != nil {
			return err
		}
		if err := held.use(write); !errors.Is(err, errTokenLost) {
			return err
		}
	}
	return fmt.Errorf("writing in %q: %w", t.dataDir, errTokenLost)
}

// take waits for the token. Each look at the folder may miss a token in
// mid-rename, or see it twice; that costs another look.
func (t *writeToken) take(ctx context.Context) (*heldToken, error) {
	const shortest, longest = 2 * time.Millisecond, 32 * time.Millisecond
	seen, since := "", time.Now()
	for delay := shortest; ; delay = min(2*delay, longest) {
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("waiting to write in %q: %w", t.dataDir, err)
		}
		names, err := t.tokens()
		if err != nil {
			return nil, err
		}
		if now := strings.Join(names, " "); now != seen {
			seen, since = now, time.Now()
		}
		waited := time.Since(since)
		busy := slices.ContainsFunc(names, func(name string) bool { return !t.takeable(name, waited) })
		if !busy && len(names) > 0 {
			if held, err := t.rename(names); held != nil || err != nil {
				return held, err
			}
			seen = "" // someone was faster: a new holder, and patience anew
		}
		if waited > t.patience {
			return nil, t.impatient(names)
		}
		pause := time.NewTimer(delay/2 + mathrand.N(delay))
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
		}
	}
}

// tokens lists the tokens in the folder, which it makes if need be: one, unless
// it is between two names or someone put another there.
func (t *writeToken) tokens() ([]string, error) {
	names, err := readNames(t.dir)
	if errors.Is(err, fs.ErrNotExist) {
		err = t.prepare()
	}
	if err != nil {
		return nil, fmt.Errorf("reading write token: %w", err)
	}
	names = slices.DeleteFunc(names, func(name string) bool {
		return name != tokenFree && !strings.HasPrefix(name, tokenHeld)
	})
	if len(names) == 0 {
		os.Remove(t.dir) // only succeeds if it is empty; then it is made anew
	}
	slices.Sort(names)
	return names, nil
}

// prepare makes the folder with a free token inside under a name of its own
// and renames it into place. That another was faster is no error.
func (t *writeToken) prepare() error {
	if err := os.MkdirAll(t.dataDir, 0o700); err != nil {
		return err
	}
	temp := t.dir + ".tmp." + t.newName()
	defer os.RemoveAll(temp) // gone already when all went well
	err := os.Mkdir(temp, 0o700)
	if err == nil {
		err = os.WriteFile(filepath.Join(temp, tokenFree), nil, 0o600)
	}
	if err == nil {
		err = os.Rename(temp, t.dir)
	}
	if _, lerr := os.Lstat(t.dir); lerr == nil {
		return nil
	}
	return err
}

// rename takes the tokens of these names, all as one, unless someone else was
// faster: then it returns nil, nil.
func (t *writeToken) rename(names []string) (*heldToken, error) {
	held := &heldToken{token: t, name: t.newName()}
	taken := false
	for _, name := range names {
		err := rename(filepath.Join(t.dir, name), held.path())
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("taking write token: %w", err)
		}
		taken = taken || err == nil
	}
	if !taken {
		return nil, nil
	}
	t.step("taken")
	return held, nil
}

// takeable judges a token that has had this name for as long as it was watched.
// It may be wrong either way; see the top of this file.
func (t *writeToken) takeable(name string, watched time.Duration) bool {
	if name == tokenFree {
		return true
	}
	owner, ok := parseOwner(name)
	if !ok {
		return true // nobody of ours writes such a name
	}
	if age := time.Since(owner.since); age > t.stale || age < -t.stale {
		return true
	}
	if owner.host != t.host {
		return false
	}
	if !processAlive(owner.pid) {
		return true
	}
	// The pid may be another process's by now, or a zombie's. Finding out may
	// take a process (macOS), so it is done for those that don't let go.
	return owner.birth != "" && watched > 100*time.Millisecond && tokenBirth(owner.pid) != owner.birth
}

// impatient names who is in the way.
func (t *writeToken) impatient(names []string) error {
	for _, name := range names {
		if owner, ok := parseOwner(name); ok {
			return fmt.Errorf("waiting to write in %q: process %d on %q has been writing since %s: try again, or end it",
				t.dataDir, owner.pid, owner.host, owner.since.Format(time.RFC3339))
		}
	}
	return fmt.Errorf("waiting to write in %q: %q holds no token: remove it", t.dataDir, t.dir)
}

// tokenOwner is what a held name says.
type tokenOwner struct {
	since time.Time
	host  string
	pid   int
	birth string // "" where the owner's system can't tell
}

// newName makes a held name that was never used before.
func (t *writeToken) newName() string {
	var random [8]byte
	rand.Read(random[:]) // never fails
	return fmt.Sprintf("%s%d.%s.%d.%s-%s", tokenHeld, time.Now().UnixMilli(), t.host, os.Getpid(),
		t.birth(), hex.EncodeToString(random[:]))
}

func parseOwner(name string) (tokenOwner, bool) {
	parts := strings.Split(strings.TrimPrefix(name, tokenHeld), ".")
	if len(parts) != 4 {
		return tokenOwner{}, false
	}
	ms, err1 := strconv.ParseInt(parts[0], 10, 64)
	pid, err2 := strconv.Atoi(parts[2])
	birth, _, ok := strings.Cut(parts[3], "-")
	return tokenOwner{time.UnixMilli(ms), parts[1], pid, birth}, err1 == nil && err2 == nil && ok
}

// tokenHost is this host's name without what would break a held name apart.
func tokenHost() string {
	host, _ := os.Hostname()
	host = strings.Map(func(r rune) rune {
		if 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' {
			return r
		}
		return '-'
	}, host)
	return cmp.Or(host[:min(len(host), 64)], "unknown")
}

// tokenBirth is a short name for the boot and the start of a process: its pid
// means it only together with these. It is a part of RANDOM in the held name,
// hashed since it may hold dots. "" when there is no such process.
func tokenBirth(pid int) string {
	birth := processBirth(pid)
	if birth == "" {
		return ""
	}
	h := fnv.New64a()
	io.WriteString(h, birth)
	return strconv.FormatUint(h.Sum64(), 16)
}

// heldToken is the write token in the hands of one goroutine, inside do.
type heldToken struct {
	token *writeToken
	name  string // of the token's file; never used twice
}

func (h *heldToken) path() string { return filepath.Join(h.token.dir, h.name) }

// use sweeps, writes, and gives the token back, even when write panics.
func (h *heldToken) use(write func(*heldToken) error) error {
	defer h.giveBack()
	if err := h.sweep(); err != nil {
		return err
	}
	h.token.step("swept")
	return write(h)
}

// giveBack needs no error: what fails to be given back was taken over, or will
// be when it is old.
func (h *heldToken) giveBack() {
	rename(h.path(), filepath.Join(h.token.dir, tokenFree))
}

// sweep removes all temporary files. This is what stops a former holder that
// still lives, and not mere tidiness, so it must not fail. (On Windows a file
// that is still open can't be removed; but its writer has not yet closed it,
// so it has not yet looked at its token, and will find it gone.)
func (h *heldToken) sweep() error {
	names, err := readNames(h.token.dataDir)
	if err != nil {
		return fmt.Errorf("reading data folder: %w", err)
	}
	for _, name := range names {
		if !strings.Contains(name, tokenTemp) {
			continue
		}
		if err := os.RemoveAll(filepath.Join(h.token.dataDir, name)); err != nil && !isShared(err) {
			return fmt.Errorf("removing leftovers: %w", err)
		}
	}
	return nil
}

// check returns errTokenLost when another has taken the token. Who appends to a
// file instead of replacing it calls check afterwards: if the token is still
// there, whoever reads the file under the token next sees what was appended.
func (h *heldToken) check() error {
	_, err := os.Lstat(h.path())
	if errors.Is(err, fs.ErrNotExist) {
		return errTokenLost
	}
	if err != nil {
		return fmt.Errorf("checking write token: %w", err)
	}
	return nil
}

// replace puts data in place of the data folder's file of that name, which is
// made if need be, whole and synced or not at all. It calls last, if not nil,
// right before, and does nothing if that returns an error. It returns
// errTokenLost, to be passed on to do, when nothing was written for that reason.
func (h *heldToken) replace(name string, data []byte, last func() error) error {
	target := filepath.Join(h.token.dataDir, name)
	temp := target + ".tmp." + h.name
	defer os.Remove(temp) // gone already when all went well
	if err := writeSynced(temp, data); err != nil {
		return fmt.Errorf("writing %q: %w", target, err)
	}
	h.token.step("written")
	if err := h.check(); err != nil {
		return err
	}
	h.token.step("checked")
	if last != nil {
		if err := last(); err != nil {
			return err
		}
	}
	h.token.step("renaming")
	err := rename(temp, target)
	if errors.Is(err, fs.ErrNotExist) {
		return errTokenLost // the next holder has swept it
	}
	if err != nil {
		return fmt.Errorf("replacing %q: %w", target, err)
	}
	h.token.step("renamed")
	if err := syncFolder(h.token.dataDir); err != nil {
		return fmt.Errorf("syncing folder of %q: %w", target, err)
	}
	return nil
}

// writeSynced makes a new file. It is closed before anything else is done with
// it: Windows renames no open file.
func writeSynced(path string, data []byte) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Sync(), f.Close())
}

// syncFolder makes a rename last. Windows and some file systems have no such
// thing, which is no reason to call a finished write failed.
func syncFolder(dir string) error {
	if runtime.GOOS == "windows" {
		return nil
	}
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	err = f.Sync()
	if errors.Is(err, errors.ErrUnsupported) || errors.Is(err, syscall.EINVAL) {
		return nil
	}
	return err
}

// rename is os.Rename, which on Windows fails while someone has the file open,
// if only to read it or to search it for viruses: there it is tried for a while.
func rename(from, to string) error {
	err := os.Rename(from, to)
	for n := 0; n < 100 && isShared(err); n++ {
		time.Sleep(10 * time.Millisecond)
		err = os.Rename(from, to)
	}
	return err
}

// isShared reports whether Windows refused because another has the file open.
func isShared(err error) bool {
	const sharingViolation = syscall.Errno(32)
	return runtime.GOOS == "windows" && (errors.Is(err, fs.ErrPermission) || errors.Is(err, sharingViolation))
}

// readNames lists a folder, in no order.
func readNames(dir string) ([]string, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return f.Readdirnames(-1)
}
