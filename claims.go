// Claims: codes, and the file that holds them. This file knows nobody: no HTTP,
// no session, no scope rule, no module. That concurrent writers lose no record,
// and that kill -9 harms nobody, is argued at the top of token.go; the reader's
// side is one stat a look-up, which sees everything but an edit in place that
// keeps size, inode and mtime.

package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
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

// LogValue and Format name a claim without its code and its raw record.
func (c Claim) LogValue() slog.Value {
	return slog.GroupValue(slog.String("label", c.Label), slog.Time("expiresAt", c.ExpiresAt))
}

func (c Claim) Format(f fmt.State, _ rune) { fmt.Fprintf(f, "claim %q", c.Label) }

// newClaim makes a claim by way of its record, so that what Create returns is
// what any reader of the file will see.
func newClaim(code Code, scopeDir, label string, now time.Time, ttl time.Duration) (Claim, error) {
	now = now.UTC().Truncate(time.Millisecond)
	return parseClaim(marshal(struct {
		Code      Code      `json:"code"`
		ScopeDir  string    `json:"scopeDir"`
		CreatedAt time.Time `json:"createdAt"`
		ExpiresAt time.Time `json:"expiresAt"`
		Label     string    `json:"label,omitempty"`
	}{code, scopeDir, now, now.Add(ttl), label}))
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
	var created, expires claimTime
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
	if year := c.CreatedAt.Year(); year < 0 || year > 9999 {
		return Claim{}, errors.New("unusable createdAt") // RFC 3339 could not write it
	}
	if c.ScopeDir == "" || c.ExpiresAt.IsZero() {
		return Claim{}, errors.New("missing scopeDir or expiresAt")
	}
	return c, nil
}

// claimTime is a time in a record: RFC 3339, or a number of Unix milliseconds.
type claimTime time.Time

// UnmarshalJSON leaves the time as it is for null, as encoding/json does.
func (t *claimTime) UnmarshalJSON(raw []byte) error {
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
	*t = claimTime(at.UTC())
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

// unreadableError is a claims.json that is there and can't be used. It names the
// file and the way out.
type unreadableError string

func (e unreadableError) Error() string { return string(e) }

func (e unreadableError) Is(target error) bool { return target == errClaimsUnreadable }

func cantRead(path string, err error) error {
	return unreadableError(fmt.Sprintf("claims file %q can't be read (%s): make it readable or move it away; it was left as it is", path, reason(err)))
}

func cantParse(path string, err error) error {
	return unreadableError(fmt.Sprintf("claims file %q is not a list of claims (%v): move it away or restore it; it was left as it is", path, err))
}

// claimsFile is claims.json as it was once read.
type claimsFile struct {
	// file is the file that was read, kept open so that its inode can't be given
	// to a later claims.json of the same size and time. It is nil when there was
	// no file, and on Windows, where it would keep writers from replacing the
	// file, and where file ids are not used again so soon.
	file    *os.File
	info    fs.FileInfo // nil: there was no file
	claims  []Claim     // in the file's order
	byCode  map[Code]Claim
	soonest time.Time // the earliest expiry of all; zero: no claims
	purge   sync.Once // a purge that fails is not repeated by every request
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

// loadClaims reads the file. The caller closes it.
func loadClaims(path string) (*claimsFile, error) {
	info, err := statClaims(path)
	if err != nil || info == nil {
		return &claimsFile{}, err
	}
	if !info.Mode().IsRegular() {
		return nil, cantRead(path, errors.New("not a regular file")) // a pipe would block
	}
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return &claimsFile{}, nil // deleted since the stat
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
	snap := &claimsFile{file: file, info: info}
	if runtime.GOOS == "windows" {
		snap.close()
	}
	if snap.claims, err = parseClaims(data); err != nil {
		snap.close()
		return nil, cantParse(path, err)
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

func (s *claimsFile) close() {
	if s.file != nil {
		s.file.Close()
		s.file = nil
	}
}

// is reports whether info, of claims.json now, is that of the file read.
func (s *claimsFile) is(info fs.FileInfo) bool {
	if s.info == nil || info == nil {
		return s.info == nil && info == nil
	}
	return s.info.Size() == info.Size() && s.info.ModTime().Equal(info.ModTime()) && os.SameFile(s.info, info)
}

// active gives the claims that hold at now, in the file's order; never nil.
func (s *claimsFile) active(now time.Time) []Claim {
	list := make([]Claim, 0, len(s.claims)+1)
	for _, c := range s.claims {
		if c.Active(now) {
			list = append(list, c)
		}
	}
	return list
}

// find gives the claim of that code, if it holds at now.
func (s *claimsFile) find(code Code, now time.Time) (Claim, bool) {
	if c, ok := s.byCode[code]; ok && c.Active(now) {
		return c, true
	}
	return Claim{}, false
}

// expired reports whether any record is over at now.
func (s *claimsFile) expired(now time.Time) bool {
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

	current atomic.Pointer[claimsFile] // nil until first read; replaced under mu

	mu      sync.Mutex // held to read the file
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
	err := s.update(ctx, func(old *claimsFile, now time.Time) ([]Claim, error) {
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
	err = s.update(ctx, func(old *claimsFile, now time.Time) ([]Claim, error) {
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
		snap.purge.Do(s.purgeBeside)
	}
	c, ok := snap.find(code, now)
	return c, ok, nil
}

// refresh gives what claims.json holds now. Errors are not kept: a file that
// can't be used is tried again at each call.
func (s *ClaimStore) refresh() (*claimsFile, error) {
	if snap, err := s.upToDate(); snap != nil || err != nil {
		return snap, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if snap, err := s.upToDate(); snap != nil || err != nil {
		return snap, err // someone else has read it meanwhile
	}
	old := s.current.Load()
	snap, err := loadClaims(s.path)
	if err != nil {
		return nil, err
	}
	if old != nil {
		old.close() // the new file is open already, so the inodes differ
	}
	s.current.Store(snap)
	return snap, nil
}

// upToDate gives what was last read if the file is still that one.
func (s *ClaimStore) upToDate() (*claimsFile, error) {
	// First the stat, then the pointer: what has that inode then is that very
	// file, or newer, since an inode is free only after its reading was replaced.
	info, err := statClaims(s.path)
	if snap := s.current.Load(); err == nil && snap != nil && snap.is(info) {
		return snap, nil
	}
	return nil, err
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
func (s *ClaimStore) update(ctx context.Context, change func(old *claimsFile, now time.Time) ([]Claim, error)) error {
	const tries = 50 // of deletions by hand during one write
	return s.token.do(ctx, func(held *heldToken) error {
		err := errMoved
		for n := 0; n < tries && errors.Is(err, errMoved); n++ {
			err = s.updateOnce(held, change)
		}
		return err
	})
}

func (s *ClaimStore) updateOnce(held *heldToken, change func(*claimsFile, time.Time) ([]Claim, error)) error {
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
	err := s.update(ctx, func(old *claimsFile, now time.Time) ([]Claim, error) {
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

// purgeBeside starts a purge that nobody waits for but Close.
func (s *ClaimStore) purgeBeside() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil {
		return
	}
	s.purging.Go(func() {
		if err := s.purge(s.ctx); err != nil && s.ctx.Err() == nil {
			s.log.Warn("claims", "err", err)
		}
	})
}
