// Claims: codes, records, the file that contains them, and the principals. Nothing here
// depends on HTTP, sessions, scopes or modules.
//
// A lookup costs one stat, and a read if claims.json has changed. It notices every change except an
// in-place edit that preserves size, inode and mtime.

package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"
)

const (
	codeAlphabet = "23456789ABCDEFGHJKMNPQRSTUVWXYZ" // 31 symbols without look-alikes
	codeLength   = 6
	codeRedacted = "***-***"
)

// Code is a claim's six characters. It is a secret: formatting or logging a Code prints
// asterisks. Only Reveal, Dashed and JSON encoding, which claims.json uses, disclose it.
// Codes may be compared with ==.
type Code string

// codeSeparators removes what people write between the characters of a code.
var codeSeparators = strings.NewReplacer("-", "", " ", "")

// parseCode normalizes input from a person or a client: it drops dashes and spaces and
// converts ASCII letters to upper case. (Unicode rules would turn ſ into S.) It reports
// false if the result is not a code.
func parseCode(s string) (Code, bool) {
	folded := codeSeparators.Replace(s)
	if len(folded) != codeLength || !consistsOf(folded, codeAlphabet+strings.ToLower(codeAlphabet)) {
		return "", false
	}
	return Code(strings.ToUpper(folded)), true
}

// drawCode returns a random code. All codes are equally likely.
func drawCode() Code {
	var code [codeLength]byte
	for i := range code {
		n, _ := rand.Int(rand.Reader, big.NewInt(int64(len(codeAlphabet)))) // never fails
		code[i] = codeAlphabet[n.Int64()]
	}
	return Code(code[:])
}

// Reveal returns the code as plain text.
func (c Code) Reveal() string { return string(c) }

// Dashed returns a complete code as plain text with a dash: R3K-9QZ.
func (c Code) Dashed() string { return string(c[:3]) + "-" + string(c[3:]) }

// LogValue returns asterisks, and Format writes them.
func (c Code) LogValue() slog.Value       { return slog.StringValue(codeRedacted) }
func (c Code) Format(f fmt.State, _ rune) { io.WriteString(f, codeRedacted) }

// claimID identifies a claim permanently. The code alone is not enough, because it may be
// drawn again after the claim has ended. The zero value stands for no claim. IDs may be
// compared with ==. An id, like its code, is formatted and logged as asterisks.
type claimID struct {
	Code      `json:"code"`
	CreatedAt time.Time `json:"createdAt"` // in UTC, so that == compares instants; zero if absent
	ScopeDir  string    `json:"claimScopeDir"`
}

// Claim is one record of claims.json. Claims are immutable, so copies may be shared
// between goroutines. ScopeDir is as stored: absolute; usher claim resolved its symlinks.
type Claim struct {
	claimID
	ExpiresAt time.Time // UTC; the claim has ended from this instant on
	Label     string    // may be ""

	// raw is the record as stored in the file. Records are only added and removed, never
	// changed, so fields of other versions survive.
	raw json.RawMessage
}

// exists reports whether the id identifies a claim, active or ended.
func (id claimID) exists() bool { return id != claimID{} }

// Active reports whether the claim has not expired at now.
func (c Claim) Active(now time.Time) bool { return now.Before(c.ExpiresAt) }

// MarshalJSON returns the stored record, including the code.
func (c Claim) MarshalJSON() ([]byte, error) { return c.raw, nil }

// Created returns the time of the claim's creation as text. Lists and the log name the claim by
// it, because no part of a code is ever logged.
func (c Claim) Created() string { return c.CreatedAt.Format(time.RFC3339Nano) }

// logAttrs returns log attributes that name the claim. For no claim it returns the zero Attr,
// which is not logged.
func (c Claim) logAttrs() slog.Attr {
	if !c.exists() {
		return slog.Attr{}
	}
	return slog.GroupAttrs("", slog.String("claim", c.Created()), slog.String("label", c.Label))
}

// parseClaim parses one record, which must be valid JSON. It does not decode into a
// struct, because encoding/json would accept a key "CODE" for "code". Errors quote nothing
// of the record, which contains a secret.
func parseClaim(raw json.RawMessage) (Claim, error) {
	record := members(raw)
	if record == nil {
		return Claim{}, errors.New("not an object")
	}
	c := Claim{Label: record.text("label"), raw: raw}
	c.Code = Code(record.text("code"))
	c.ScopeDir = record.text("scopeDir")
	var createdOK, expiresOK bool
	c.CreatedAt, createdOK = parseClaimTime(record.get("createdAt"))
	c.ExpiresAt, expiresOK = parseClaimTime(record.get("expiresAt"))
	folded, codeOK := parseCode(c.Code.Reveal())
	switch {
	case !codeOK || folded != c.Code: // only input is folded: in the file, a code has one spelling
		return Claim{}, errors.New("missing or malformed code")
	case !filepath.IsAbs(c.ScopeDir):
		return Claim{}, errors.New("scopeDir is not an absolute path")
	case !createdOK || !expiresOK || c.ExpiresAt.IsZero():
		return Claim{}, errors.New("createdAt or expiresAt is malformed")
	}
	return c, nil
}

// parseClaimTime parses a time in a record: RFC 3339, or a number of Unix milliseconds. An
// absent or null value is the zero time.
func parseClaimTime(value json.RawMessage) (at time.Time, ok bool) {
	if isNull(value) {
		return time.Time{}, true
	}
	const maxMS = 8.64e15 // ±275,000 years, exact in a float64
	if value[0] == '"' {
		err := at.UnmarshalJSON(value)
		return at.UTC(), err == nil
	}
	ms, err := strconv.ParseFloat(string(value), 64)
	return time.UnixMilli(int64(ms)).UTC(), err == nil && -maxMS <= ms && ms <= maxMS
}

// Principal is a party that counts as one: everyone who presents a claim's code, or one of
// the parties without a claim. Each claim has one Principal, from the first lookup until the
// claim ends. A claim that returns, because an older file was restored, gets a new one.
// Counters count usher's own requests under nil. Safe for concurrent use.
type Principal struct {
	Claim // zero for a principal without a claim; its label and expiry as first read

	store *ClaimStore // nil for a principal without a claim
	ctx   context.Context
	end   context.CancelFunc // ends ctx
}

// The principals without a claim, which never end. They share one context, so they are one Member
// (see Caller); but strangers reach no module, and senders have no Member.
var (
	everyone  = &Principal{ctx: context.Background()} // clients without a claim
	strangers = &Principal{ctx: context.Background()} // unproven senders, sessions of ended claims
	senders   = &Principal{ctx: context.Background()} // of accepted deliveries
)

// Ended reports whether the principal's claim has ended, as far as the store has noticed.
// It reads no file.
func (p *Principal) Ended() bool { return p.ctx.Err() != nil }

// Check looks the principal's claim up. It returns errEnded if the claim has ended, or an
// error that matches errClaimsUnreadable.
func (p *Principal) Check() error {
	if p.store == nil {
		return nil
	}
	now, err := p.store.Lookup(p.Code)
	if err == nil && now != p {
		return errEnded
	}
	return err
}

// Unreadable returns nil if the principal's claim could be read at the last attempt. Else it
// returns a channel that is closed when the claim can be read again; until then, nothing that
// depends on the claim may begin.
func (p *Principal) Unreadable() <-chan struct{} {
	if p.store == nil {
		return nil
	}
	p.store.mu.Lock()
	defer p.store.mu.Unlock()
	return p.store.unreadable
}

// waitFor waits until done is closed or yields a value. The error is ctx's cause, or errEnded
// if the principal's claim ends first.
func (p *Principal) waitFor(ctx context.Context, done <-chan struct{}) error {
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-p.ctx.Done():
		return errEnded
	}
}

// claimsFile is the parsed claims.json. The zero value represents a missing file: no
// claims. Immutable, except for purging.
type claimsFile struct {
	// file is kept open so that its inode can't be reused for a later claims.json with the
	// same size and time.
	file    *os.File
	info    fs.FileInfo
	claims  []Claim // soonest expiry first
	byCode  map[Code]Claim
	purging sync.Once // starts a purge, which is not repeated if it fails
}

// parseClaims parses the whole file. It checks for invalid UTF-8 and for null instead of
// an array, which encoding/json accepts: both would silently change or lose claims.
func parseClaims(data []byte) (*claimsFile, error) {
	var records []json.RawMessage
	if !utf8.Valid(data) || json.Unmarshal(data, &records) != nil || records == nil {
		return nil, errors.New("not a JSON array of claims")
	}
	f := &claimsFile{byCode: make(map[Code]Claim, len(records))}
	for i, raw := range records {
		c, err := parseClaim(raw)
		if err != nil {
			return nil, fmt.Errorf("record %d: %w", i+1, err)
		}
		if f.byCode[c.Code].exists() {
			return nil, fmt.Errorf("record %d: another record has the same code", i+1)
		}
		f.claims = append(f.claims, c)
		f.byCode[c.Code] = c
	}
	slices.SortStableFunc(f.claims, func(a, b Claim) int { return a.ExpiresAt.Compare(b.ExpiresAt) })
	return f, nil
}

// statClaims stats the file. It returns nil and no error if there is none. It refuses a
// symlink, because a writer would replace the link and leave its target unchanged.
func statClaims(path string) (fs.FileInfo, error) {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil && !info.Mode().IsRegular() {
		err = errors.New("not a regular file")
	}
	if err != nil {
		return nil, errUnreadable(path, err)
	}
	return info, nil
}

// readClaims reads and parses the file. The caller must close the result's file.
func readClaims(path string) (f *claimsFile, err error) {
	info, err := statClaims(path)
	if err != nil || info == nil {
		return &claimsFile{}, err
	}
	file, err := os.Open(path)
	if err == nil {
		// Before the content: if that is changed in between, the next stat differs from this one.
		info, err = file.Stat()
	}
	var data []byte
	if err == nil {
		data, err = io.ReadAll(file)
	}
	if err == nil {
		f, err = parseClaims(data)
	}
	if err != nil {
		file.Close()
		return nil, errUnreadable(path, err)
	}
	f.file = file
	f.info = info
	return f, nil
}

// matches reports whether info, from a later stat of claims.json, describes the same file.
func (f *claimsFile) matches(info fs.FileInfo) bool {
	if f.info == nil || info == nil {
		return f.info == nil && info == nil
	}
	sameTime := f.info.ModTime().Equal(info.ModTime())
	return sameTime && f.info.Size() == info.Size() && os.SameFile(f.info, info)
}

// active returns the claims that are active at now, soonest expiry first; never nil.
func (f *claimsFile) active(now time.Time) []Claim {
	all := append([]Claim{}, f.claims...)
	return slices.DeleteFunc(all, func(c Claim) bool { return !c.Active(now) })
}

// expired reports whether any record has expired at now. Its cost does not depend on the
// number of claims, because every lookup calls it.
func (f *claimsFile) expired(now time.Time) bool {
	return len(f.claims) > 0 && !f.claims[0].Active(now)
}

// errNoClaim reports that no active claim has a code.
var errNoClaim = errors.New("no active claim has this code: run usher claim list")

// errEnded reports that a claim has ended. Clients may see it.
var errEnded error = rpcErrorf(codeRefused,
	"the claim of this session has ended: connect with a new code")

// errClaimsUnreadable matches every error that means that claims.json exists and can't be
// used. In that case, nothing was written.
var errClaimsUnreadable = errors.New("the claims file is unreadable")

// errUnreadable returns an errClaimsUnreadable that names the file, the reason, and what
// to do.
func errUnreadable(path string, why error) error {
	return fmt.Errorf("%w: %q: %s: move it away or restore it",
		errClaimsUnreadable, path, errText(why))
}

// ClaimStore gives access to the claims of one data folder. All methods are safe for
// concurrent use, by goroutines and by other processes. Reading creates no files or
// folders, unless a record has expired. If claims.json exists but can't be used, methods
// return an error that matches errClaimsUnreadable.
type ClaimStore struct {
	path   string       // of claims.json
	log    *slog.Logger // receives a record of each claim that is gone from the file, and of failed purges
	token  *writeToken
	purges sync.WaitGroup // purges in progress

	// mu guards the fields below. It is held while the file is read: older content must not
	// replace newer.
	mu         sync.Mutex
	current    *claimsFile // as last read
	principals map[Code]*Principal
	unreadable chan struct{} // closed when the file can be read again; nil if it could be read
}

// watchInterval is the time between two looks of Watch at the file.
const watchInterval = 2 * time.Second

// openClaims returns the store of dataDir, {base}/.data, which need not exist yet, without a
// log. Call Close if the store is used for lookups.
func openClaims(dataDir string) *ClaimStore {
	return &ClaimStore{
		path:       filepath.Join(dataDir, "claims.json"),
		log:        slog.New(slog.DiscardHandler),
		token:      newWriteToken(dataDir),
		current:    &claimsFile{},
		principals: make(map[Code]*Principal),
	}
}

// Close waits for purges in progress and closes the file. The store must not be used
// afterwards.
func (s *ClaimStore) Close() {
	s.purges.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.current.file.Close()
}

// Create adds a claim on scopeDir, an absolute path without symlinks, for ttl, which must
// be positive. Label may be "". Create waits for the write token until ctx ends. If it
// fails, the claim may have been written anyway; its code must not be disclosed.
func (s *ClaimStore) Create(ctx context.Context, scopeDir, label string, ttl time.Duration) (Claim, error) {
	if !utf8.ValidString(scopeDir + label) { // JSON would change the text
		return Claim{}, fmt.Errorf("scope %q, label %q: want both in UTF-8", scopeDir, label)
	}
	var made Claim
	err := s.update(ctx, func(old *claimsFile, now time.Time) (claims []Claim, err error) {
		code := drawCode()
		for old.byCode[code].exists() { // taken
			code = drawCode()
		}
		now = now.UTC().Truncate(time.Millisecond)
		record := object{
			{"code", quote(code.Reveal())},
			{"scopeDir", quote(scopeDir)},
			{"createdAt", marshal(now)},
			{"expiresAt", marshal(now.Add(ttl))},
			{"label", quote(label)},
		}
		made, err = parseClaim(record.encode())
		return append(old.active(now), made), err
	})
	return made, err
}

// List returns the active claims, soonest expiry first, and removes expired ones from the
// file. If only the removal fails, List returns the complete list and the error; if
// reading fails, the list is nil.
func (s *ClaimStore) List(ctx context.Context) ([]Claim, error) {
	read, err := readClaims(s.path)
	if err != nil {
		return nil, err
	}
	defer read.file.Close()
	now := time.Now()
	list := read.active(now)
	if read.expired(now) {
		err = s.update(ctx, purge)
	}
	return list, err
}

// Revoke removes the active claim with this code and returns it. If there is none, Revoke
// returns errNoClaim and does not write claims.json.
func (s *ClaimStore) Revoke(ctx context.Context, code Code) (Claim, error) {
	var revoked Claim
	err := s.update(ctx, func(old *claimsFile, now time.Time) ([]Claim, error) {
		revoked = old.byCode[code]
		if !revoked.Active(now) {
			return nil, errNoClaim
		}
		others := old.active(now)
		return slices.DeleteFunc(others, func(c Claim) bool { return c.Code == code }), nil
	})
	return revoked, err
}

// Lookup returns the principal of the active claim with this code, or nil if there is none in
// the file now. It costs a stat and a map lookup, so every request can call it. An expired
// record is not a claim from the instant of its expiry. The first lookup that finds an
// expired record starts its removal, in another goroutine. If the file can't be used, the
// next lookup tries again.
func (s *ClaimStore) Lookup(code Code) (*Principal, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.refreshLocked(); err != nil {
		return nil, err
	}
	now := time.Now() // after the stat, which may take long
	if s.current.expired(now) {
		s.current.purging.Do(s.startPurge)
	}
	c := s.current.byCode[code]
	if !c.Active(now) {
		s.endLocked(code)
		return nil, nil
	}
	p := s.principals[code] // of this claim: refreshLocked has ended those of others
	if p == nil {
		p = &Principal{Claim: c, store: s}
		p.ctx, p.end = context.WithCancel(context.Background())
		s.principals[code] = p
	}
	return p, nil
}

// endLocked ends the principal of a code, if there is one. The caller holds s.mu.
func (s *ClaimStore) endLocked(code Code) {
	if p := s.principals[code]; p != nil {
		p.end()
		delete(s.principals, code)
	}
}

// Watch looks at the file, and at the clock whenever a claim expires, until ctx ends. So principals
// end without a request, and readers notice when the file can be read again.
func (s *ClaimStore) Watch(ctx context.Context) {
	for wait := watchInterval; pauseFor(ctx, wait); {
		s.mu.Lock()
		_ = s.refreshLocked() // while the file can't be read, claims end at their last known expiry
		now := time.Now()
		for code := range s.principals {
			if !s.current.byCode[code].Active(now) {
				s.endLocked(code)
			}
		}
		wait = watchInterval
		for _, c := range s.current.active(now) {
			wait = min(wait, c.ExpiresAt.Sub(now))
		}
		s.mu.Unlock()
	}
}

// refreshLocked reads the file if it has changed, and then ends the principals of the claims
// that are gone from it. The caller holds s.mu.
func (s *ClaimStore) refreshLocked() error {
	info, err := statClaims(s.path)
	before := s.current
	after := before
	if err == nil && !before.matches(info) {
		after, err = readClaims(s.path)
	}
	switch {
	case err != nil && s.unreadable == nil:
		s.unreadable = make(chan struct{})
	case err == nil && s.unreadable != nil:
		close(s.unreadable)
		s.unreadable = nil
	}
	if err != nil || after == before {
		return err
	}
	s.current = after
	before.file.Close()
	for code, c := range before.byCode {
		if after.byCode[code].claimID != c.claimID {
			s.log.Info("claim ended", c.logAttrs())
			s.endLocked(code)
		}
	}
	return nil
}

// purge removes expired records. It is a change for update.
func purge(old *claimsFile, now time.Time) ([]Claim, error) { return old.active(now), nil }

// startPurge purges the file, in another goroutine.
func (s *ClaimStore) startPurge() {
	s.purges.Go(func() {
		if err := s.update(context.Background(), purge); err != nil {
			s.log.Warn("expired claims can't be removed", "err", err)
		}
	})
}

// update modifies the file; nothing else does. Holding the write token, it reads the file,
// calls change, and writes the claims that change returns, which must not have expired. It
// may call change several times, if the token or the file changes meanwhile.
func (s *ClaimStore) update(
	ctx context.Context, change func(old *claimsFile, now time.Time) ([]Claim, error),
) error {
	return s.token.do(ctx, func(held string) error {
		old, err := readClaims(s.path)
		if err != nil {
			return err
		}
		defer old.file.Close() // after the rename: until then, its inode identifies the file that was read
		claims, err := change(old, time.Now())
		if err != nil {
			return err
		}
		var data bytes.Buffer
		_ = json.Indent(&data, marshal(claims), "", "  ") // never fails for valid JSON
		return s.token.replace(held, s.path, data.Bytes(), func() error {
			info, err := statClaims(s.path)
			if err == nil && !old.matches(info) {
				return errStartOver
			}
			return err
		})
	})
}
