// Claims: codes, records, and the file that holds them. This file knows nobody:
// no HTTP, no session, no scope, no module. What it takes to write a file safely
// is here too, and serves other rooms at the end.
//
// Reading is one stat a look-up. It sees every change of claims.json but an edit
// in place that keeps size, inode and time.

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
	"math/big"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
	"unicode/utf8"
)

// errNoClaim is Revoke's answer to a code that no active claim has.
var errNoClaim = errors.New("no claim with this code holds; usher claim list shows those that do")

// errClaimsUnreadable is matched by every error that says that claims.json is
// there and can't be used. Nothing was written then.
var errClaimsUnreadable = errors.New("the claims file is unreadable")

// errUnreadable is such an error. It names the file, why, and the way out.
func errUnreadable(path, why string) error {
	return fmt.Errorf("%w: %q: %s: move it away or restore it; it was left as it is", errClaimsUnreadable, path, why)
}

const (
	codeAlphabet = "23456789ABCDEFGHJKMNPQRSTUVWXYZ" // 31 symbols, none taken for another
	codeLength   = 6
	codeRedacted = "***-***"
)

// Code is a claim's six characters. It is a secret: whatever prints it, with any
// verb or logger, prints asterisks. Only Reveal, Dashed and JSON, which is how
// claims.json stores it, give it away. Two codes are equal by ==.
type Code string

// parseCode folds what a person or a client sent: ASCII letters to upper case,
// dashes and spaces dropped. Nothing else is forgiven, and no Unicode case rule is
// used, by which ſ would be an S.
func parseCode(s string) (Code, bool) {
	folded := strings.Map(func(r rune) rune {
		switch {
		case r == '-' || r == ' ':
			return -1
		case 'a' <= r && r <= 'z':
			return r - 'a' + 'A'
		}
		return r
	}, s)
	if len(folded) != codeLength || strings.Trim(folded, codeAlphabet) != "" {
		return "", false
	}
	return Code(folded), true
}

// drawCode draws a code: each symbol is as likely as any other.
func drawCode() Code {
	var code [codeLength]byte
	for i := range code {
		n, _ := rand.Int(rand.Reader, big.NewInt(int64(len(codeAlphabet)))) // never fails
		code[i] = codeAlphabet[n.Int64()]
	}
	return Code(code[:])
}

// Reveal gives the code itself, for the one who may see it.
func (c Code) Reveal() string { return string(c) }

// Dashed gives the code itself as people read it: R3K-9QZ. It must be a whole one.
func (c Code) Dashed() string { return string(c[:3]) + "-" + string(c[3:]) }

func (c Code) LogValue() slog.Value       { return slog.StringValue(codeRedacted) }
func (c Code) Format(f fmt.State, _ rune) { io.WriteString(f, codeRedacted) }

// Claim is one record of claims.json. Values are never changed after they were
// made, so copies may be shared between goroutines.
type Claim struct {
	Code      Code
	ScopeDir  string    // as stored: absolute, its symlinks resolved by who created it
	CreatedAt time.Time // UTC; zero if the record has none
	ExpiresAt time.Time // UTC; from this instant on the claim is over
	Label     string    // may be ""

	created string // CreatedAt, in RFC 3339

	// raw is the record as it stands in the file. Records are only added and
	// removed, never changed, so that fields of other versions survive.
	raw json.RawMessage
}

// Active reports whether the claim holds at now.
func (c Claim) Active(now time.Time) bool { return now.Before(c.ExpiresAt) }

// MarshalJSON gives the stored record, its code included.
func (c Claim) MarshalJSON() ([]byte, error) { return c.raw, nil }

// LogValue and Format name a claim without its code and its raw record.
func (c Claim) LogValue() slog.Value       { return slog.GroupValue(slog.String("label", c.Label)) }
func (c Claim) Format(f fmt.State, _ rune) { fmt.Fprintf(f, "claim %q", c.Label) }

// parseClaim reads one record, which is valid JSON, member by member: decoding into
// a struct would take a key "CODE" for "code". Errors quote nothing of the record:
// it holds a secret.
func parseClaim(raw json.RawMessage) (Claim, error) {
	if !isObject(raw) {
		return Claim{}, errors.New("not an object")
	}
	c := Claim{raw: raw}
	for key, value := range fields(raw) {
		ok := true
		switch isNull := string(value) == "null"; {
		case isNull: // as if it were not there
		case key == "code":
			var code string
			code, ok = unquote(value)
			c.Code = Code(code)
		case key == "scopeDir":
			c.ScopeDir, ok = unquote(value)
		case key == "label":
			c.Label, ok = unquote(value)
		case key == "createdAt":
			c.CreatedAt, ok = parseClaimTime(value)
		case key == "expiresAt":
			c.ExpiresAt, ok = parseClaimTime(value)
		}
		if !ok {
			return Claim{}, fmt.Errorf("unusable %s", key)
		}
	}
	folded, ok := parseCode(c.Code.Reveal())
	switch {
	case !ok || folded != c.Code: // folding is for input: in the file a code has one spelling
		return Claim{}, errors.New("missing or malformed code")
	case c.ExpiresAt.IsZero():
		return Claim{}, errors.New("missing expiresAt")
	case !filepath.IsAbs(c.ScopeDir):
		return Claim{}, errors.New("scopeDir is no absolute path")
	}
	c.created = c.CreatedAt.Format(time.RFC3339Nano)
	return c, nil
}

// parseClaimTime reads a time in a record: RFC 3339, or a number of Unix
// milliseconds.
func parseClaimTime(value json.RawMessage) (at time.Time, ok bool) {
	const maxMS = 8.64e15 // ±275,000 years, exact in a float64
	if value[0] == '"' {
		err := at.UnmarshalJSON(value)
		return at.UTC(), err == nil
	}
	ms, err := strconv.ParseFloat(string(value), 64)
	return time.UnixMilli(int64(ms)).UTC(), err == nil && -maxMS <= ms && ms <= maxMS
}

// claimsFile is claims.json as it was once read. The zero value is that there is
// no such file, which is to have no claims.
type claimsFile struct {
	// file is kept open so that its inode can't be given to a later claims.json of
	// the same size and time. On Windows, where an open file can't be replaced, it
	// is closed; there file ids are not used again so soon.
	file    *os.File
	info    fs.FileInfo
	claims  []Claim // in the file's order
	byCode  map[Code]Claim
	soonest time.Time // the earliest expiry of all; zero: no claims
	purged  bool      // a purge was begun; one that fails is not repeated by every request
}

// parseClaims reads the whole file. encoding/json lets invalid UTF-8 and a null for
// an array pass; both would be claims silently changed or lost.
func parseClaims(data []byte) (*claimsFile, error) {
	var records []json.RawMessage
	if !utf8.Valid(data) || json.Unmarshal(data, &records) != nil || records == nil {
		return nil, errors.New("it is no JSON array of claims")
	}
	f := &claimsFile{byCode: make(map[Code]Claim, len(records))}
	for i, raw := range records {
		c, err := parseClaim(raw)
		if err != nil {
			return nil, fmt.Errorf("record %d: %w", i+1, err)
		}
		f.claims, f.byCode[c.Code] = append(f.claims, c), c
		if len(f.byCode) != len(f.claims) {
			return nil, fmt.Errorf("record %d: another has the same code", i+1)
		}
		if f.soonest.IsZero() || c.ExpiresAt.Before(f.soonest) {
			f.soonest = c.ExpiresAt
		}
	}
	return f, nil
}

// statClaims stats the file; nil without an error when there is none. A link is no
// file: a writer would put a file in its place, and leave what it leads to alone.
func statClaims(path string) (fs.FileInfo, error) {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, errUnreadable(path, errText(err))
	case !info.Mode().IsRegular():
		return nil, errUnreadable(path, "it is not a regular file")
	}
	return info, nil
}

// readClaims reads the file. The caller closes it.
func readClaims(path string) (*claimsFile, error) {
	if info, err := statClaims(path); err != nil || info == nil {
		return &claimsFile{}, err
	}
	file, err := openRegular(path)
	if errors.Is(err, fs.ErrNotExist) {
		return &claimsFile{}, nil // deleted since the stat
	}
	if err != nil {
		return nil, errUnreadable(path, errText(err))
	}
	// The stat comes before the bytes: if the file is changed in between, the next
	// stat differs from this one, and the file is read again.
	info, statErr := file.Stat()
	data, readErr := io.ReadAll(file)
	read, parseErr := parseClaims(data)
	err = cmp.Or(statErr, readErr, parseErr)
	if err != nil || runtime.GOOS == "windows" {
		file.Close()
	}
	if err != nil {
		return nil, errUnreadable(path, errText(err))
	}
	read.file, read.info = file, info
	return read, nil
}

// matches reports whether info, of claims.json now, is that of the file that was read.
func (s *claimsFile) matches(info fs.FileInfo) bool {
	if s.info == nil || info == nil {
		return s.info == nil && info == nil
	}
	return s.info.Size() == info.Size() && s.info.ModTime().Equal(info.ModTime()) && os.SameFile(s.info, info)
}

// active gives the claims that hold at now, in the file's order; never nil.
func (s *claimsFile) active(now time.Time) []Claim {
	return slices.DeleteFunc(append([]Claim{}, s.claims...), func(c Claim) bool { return !c.Active(now) })
}

// expired reports whether any record is over at now. Every look-up asks, so it
// must not cost more where there are more claims.
func (s *claimsFile) expired(now time.Time) bool {
	return !s.soonest.IsZero() && !now.Before(s.soonest)
}

// ClaimStore is the claims of one data folder. All methods are safe for concurrent
// use, by goroutines and by other processes alike. Reading makes no file and no
// folder. Methods return an error that matches errClaimsUnreadable while
// claims.json is there and can't be used.
type ClaimStore struct {
	path   string       // of claims.json
	log    *slog.Logger // told of purges that fail
	token  *writeToken
	purges sync.WaitGroup // under way

	changed func(before, after map[Code]Claim) // called by a look-up that finds others than the last one

	mu      sync.Mutex
	current *claimsFile // as last read
	looked  time.Time   // when the latest look at the file began that could be made
}

// openClaims gives the store of dataDir, {base}/.data, which need not exist yet.
// A nil log is none. A store that looks up is to be closed.
func openClaims(dataDir string, log *slog.Logger) *ClaimStore {
	log = cmp.Or(log, slog.New(slog.DiscardHandler))
	return &ClaimStore{path: filepath.Join(dataDir, "claims.json"), log: log, token: newWriteToken(dataDir), current: &claimsFile{}, changed: func(_, _ map[Code]Claim) {}}
}

// Close waits for purges under way and lets go of the file. The store is not to be
// used afterwards.
func (s *ClaimStore) Close() {
	s.purges.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.current.file.Close()
}

// Create adds a claim on scopeDir, an absolute path without links, for ttl, which is
// more than zero. Label may be "". Create waits for its turn to write at most as
// long as ctx allows. After an error the claim may exist, and is to be shown to nobody.
func (s *ClaimStore) Create(ctx context.Context, scopeDir, label string, ttl time.Duration) (Claim, error) {
	if !utf8.ValidString(scopeDir) || !utf8.ValidString(label) { // JSON would make it other text
		return Claim{}, fmt.Errorf("scope %q, label %q: want both in UTF-8", scopeDir, label)
	}
	var made Claim
	err := s.update(ctx, func(old *claimsFile, now time.Time) (claims []Claim, err error) {
		code := drawCode()
		for _, taken := old.byCode[code]; taken; _, taken = old.byCode[code] {
			code = drawCode()
		}
		now = now.UTC().Truncate(time.Millisecond)
		record := object{{"code", quote(code.Reveal())}, {"scopeDir", quote(scopeDir)}, {"createdAt", marshal(now)}, {"expiresAt", marshal(now.Add(ttl))}}
		if label != "" {
			record = append(record, member{"label", quote(label)})
		}
		made, err = parseClaim(record.encode())
		return append(old.active(now), made), err
	})
	return made, err
}

// List gives the active claims, soonest expiry first, and removes expired ones from
// the file. When only that removal fails, the list is complete all the same, and
// comes with the error; when reading fails, the list is nil.
func (s *ClaimStore) List(ctx context.Context) ([]Claim, error) {
	read, err := readClaims(s.path)
	if err != nil {
		return nil, err
	}
	defer read.file.Close()
	now := time.Now()
	list := read.active(now)
	slices.SortStableFunc(list, func(a, b Claim) int { return a.ExpiresAt.Compare(b.ExpiresAt) })
	if read.expired(now) {
		err = s.update(ctx, purge)
	}
	return list, err
}

// Revoke removes the active claim of that code and returns it. Without one it
// returns errNoClaim, and leaves claims.json as it is.
func (s *ClaimStore) Revoke(ctx context.Context, code Code) (Claim, error) {
	var gone Claim
	err := s.update(ctx, func(old *claimsFile, now time.Time) ([]Claim, error) {
		if gone = old.byCode[code]; !gone.Active(now) {
			return nil, errNoClaim
		}
		return slices.DeleteFunc(old.active(now), func(c Claim) bool { return c.Code == code }), nil
	})
	if errors.Is(err, syscall.ENOSPC) {
		err = fmt.Errorf("%w: free some space, or delete %q, which ends all claims", err, s.path)
	}
	return gone, err
}

// Lookup gives the active claim of that code, as the file has it now.
func (s *ClaimStore) Lookup(code Code) (Claim, bool, error) { return s.LookupSince(code, time.Now()) }

// LookupSince gives the active claim of that code, as the file has it now, or had it
// at some instant after since. It costs a map look-up, and one stat unless another
// look-up has made one since, so that every request can ask. Expired records are no
// claims from their instant on. The first look-up that meets one has it removed
// beside the request. A file that can't be used is tried again at each call.
func (s *ClaimStore) LookupSince(code Code, since time.Time) (Claim, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if !s.looked.After(since) {
		if err := s.look(now); err != nil {
			return Claim{}, false, err
		}
	}
	if !s.current.purged && s.current.expired(now) {
		s.current.purged = true
		s.purges.Go(func() {
			if err := s.update(context.Background(), purge); err != nil {
				s.log.Warn("expired claims can't be removed", "err", err)
			}
		})
	}
	c := s.current.byCode[code] // the zero Claim, where there is none, is not active
	return c, c.Active(now), nil
}

// look reads the file if it has changed, now. Called with mu held, which it lets go
// of meanwhile.
func (s *ClaimStore) look(now time.Time) error {
	s.mu.Unlock()
	info, err := statClaims(s.path)
	s.mu.Lock()
	if err != nil {
		return err
	}
	if !s.current.matches(info) { // or another look-up has seen a newer file: it is read again
		read, err := readClaims(s.path)
		if err != nil {
			return err
		}
		s.current.file.Close()
		s.changed(s.current.byCode, read.byCode)
		s.current = read
	}
	if now.After(s.looked) {
		s.looked = now
	}
	return nil
}

// label is the label of the claim of that code, as the file was last read.
func (s *ClaimStore) label(code Code) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.current.byCode[code].Label
}

// update is the one door for changes: under the token it reads the file, has change
// give what the file shall hold, and replaces it. Change may be called several
// times, and is to leave out what has expired.
func (s *ClaimStore) update(ctx context.Context, change func(old *claimsFile, now time.Time) ([]Claim, error)) error {
	return s.token.do(ctx, func(held string) error { return s.rewrite(held, change) })
}

// rewrite is one try of update with the token of that name. It returns errStartOver
// when it wrote nothing, as the token or the file is no longer the one it began
// with.
func (s *ClaimStore) rewrite(held string, change func(old *claimsFile, now time.Time) ([]Claim, error)) error {
	old, err := readClaims(s.path)
	if err != nil {
		return err
	}
	defer old.file.Close() // open until the rename: its inode stands for what was read
	claims, err := change(old, time.Now())
	if err != nil {
		return err
	}
	var data bytes.Buffer
	_ = json.Indent(&data, marshal(claims), "", "  ") // of JSON: never fails
	err = writeFile(s.path, s.path+".tmp."+held, data.Bytes(), func() error {
		s.token.step("written")
		if _, err := os.Lstat(filepath.Join(s.token.dir, held)); err != nil {
			return err
		}
		s.token.step("checked")
		if info, err := statClaims(s.path); err != nil || !old.matches(info) {
			return cmp.Or(err, errStartOver)
		}
		s.token.step("renaming")
		return nil
	})
	s.token.step("ended")
	if errors.Is(err, fs.ErrNotExist) {
		return errStartOver // the token is gone, or the next holder has swept the temporary file
	}
	return err
}

// purge is the change that removes expired records.
func purge(old *claimsFile, now time.Time) ([]Claim, error) { return old.active(now), nil }
