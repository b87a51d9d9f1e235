// Claims: codes, records, and the file that holds them. This file knows nobody:
// no HTTP, no session, no scope, no module. What it takes to write a file safely
// is here too, and serves other rooms at the end.
//
// Reading is one stat a look-up. It sees every change of claims.json but an edit
// in place that keeps size, inode and time.
//
// # Why no two writers both win, and why no record is lost
//
// There is no flock, whose meaning differs by system and file system, and no lock
// file with a time-out: two who find the same stale lock can both remove it, and
// the second removes the first one's new lock. There is a token, which is a file
// in the folder claims.lock. Its name is "free", or while someone writes
// "held.UNIXMS.HOST.PID.RANDOM".
//
//  1. A writer takes the token by renaming it to a held name of its own. Held
//     names are random and never used twice, and of several renames of one name
//     exactly one succeeds. That is so whether the old name is "free" or the held
//     name of a writer that crashed: two who find a dead owner rename one name.
//  2. A token may be taken from its owner if the owner's process is gone, or if
//     the token is older than 30 s or from the future. That verdict may be wrong:
//     the owner may be stopped, a clock may have jumped, a pid may be another
//     container's. It decides only who waits. Nothing below depends on it.
//  3. A holder first removes every temporary file of the data folder that bears a
//     held name. Only holders make those, so they belong to writers that have lost
//     the token. (Folders that are being prepared, see below, may go too. Whoever
//     prepares one looks again.)
//  4. Then the holder reads claims.json, writes its temporary file, checks that
//     the token still has the holder's name and that claims.json is still the file
//     that was read, and renames the temporary file over claims.json.
//
// Say that writer A held the token, and writer B took it from A, however alive A
// was. If A's check comes after B's rename of the token, A finds its name gone and
// starts over. If A's check comes before, then A's temporary file was there before
// B took the token, so step 3 of B, or of whoever took the token from B, finds it.
// A's rename and that removal are about one name, so one of them comes first. If
// the rename is first, B has not read claims.json yet, and reads what A wrote. If
// the removal is first, A's rename fails as its source is gone, and A starts over.
// So a writer that is stopped between its check and its rename, for however long,
// undoes nobody's work when it goes on: there is no window. What a writer replaces
// is what it read, and no record is lost.
//
// The folder claims.lock is prepared under another name with its token inside and
// then renamed into place. That fails where there is one, so the folder is made
// once. If someone removed the token, the empty folder is removed, which fails
// unless it is empty, and is made anew.
//
// # Why kill -9 at any instant harms nobody
//
// claims.json changes by one rename of a whole file that has been synced: it is
// the old one or the new one. A killed holder leaves a token with a dead owner,
// which the next writer takes over, and a temporary file, which step 3 removes.
// That holds after the rename too: the new file is in place, and only the token
// has not been given back. A process that is killed while it prepares claims.lock
// leaves a folder under a temporary name, which nobody uses and step 3 removes.
//
// # What is not promised
//
//   - Who does not take the token is not serialized with those who do. If
//     claims.json is deleted or replaced by hand during a write, the writer notices
//     up to its last check. Between that check and the rename lie microseconds in
//     which the deletion would be undone: a rename can't be made to require its
//     target. "usher claim revoke" takes the token and has no such gap.
//   - Network file systems: a rename may be done and reported as failed, a listing
//     may be old, and "one rename succeeds" is the server's word.
//   - A second token, from a copy of the folder that was put over it during a
//     write: two writers may then hold one each. (The check of claims.json before
//     the rename still counts.) After them writers fail, naming both tokens, until
//     the folder claims.lock is removed.
//   - A pid that is used again within 30 s of a crash: its token is taken over only
//     when it is 30 s old, and writers fail until then.
//   - Order: waiting writers get their turn by chance.
//   - Power loss on a disk that lies about fsync. On Windows folders can't be
//     synced, so the last change may be missing after a power loss (the old file,
//     whole).

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
	mathrand "math/rand/v2"
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
		return nil, errUnreadable(path, reason(err))
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
		return nil, errUnreadable(path, reason(err))
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
		return nil, errUnreadable(path, reason(err))
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
		made, err = parseClaim(record.json())
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

// errStartOver says that the token was taken over by another writer, or that
// claims.json is no longer the file that was read. writeToken.do then starts over.
var errStartOver = errors.New("other writers were faster each time")

const (
	tokenFree  = "free"
	tokenHeld  = "held."
	tokenTemp  = ".tmp." + tokenHeld // in the names of temporary files and folders
	tokenTries = 50                  // that one write starts over before it fails
)

// writeToken is the right to rewrite files of one data folder, for this process and
// all others; the top of this file argues it. Safe for concurrent use.
type writeToken struct {
	dataDir string
	dir     string        // claims.lock
	host    string        // as it stands in held names
	stale   time.Duration // a token held for longer is taken over
	timeout time.Duration // for waiting for one and the same holder
	step    func(string)  // called at each step of a write; tests stop there
}

func newWriteToken(dataDir string) *writeToken {
	host, _ := os.Hostname()
	host = cmp.Or(strings.NewReplacer(".", "-", "/", "-", `\`, "-").Replace(host), "unknown")
	return &writeToken{dataDir: dataDir, dir: filepath.Join(dataDir, "claims.lock"), host: host[:min(len(host), 64)],
		stale: 30 * time.Second, timeout: 10 * time.Second, step: func(string) {}}
}

// do calls write while this process holds the token, whose name write is given.
// When write returns errStartOver, do takes the token again and calls write again,
// which must therefore begin by reading anew. Write must not call do. The error is
// write's, or says who holds the token, or that ctx ended. The data folder is made
// if need be.
func (t *writeToken) do(ctx context.Context, write func(held string) error) error {
	for range tokenTries {
		held, err := t.take(ctx)
		if err != nil {
			return fmt.Errorf("waiting to write in %q: %w", t.dataDir, err)
		}
		if err := t.use(held, write); !errors.Is(err, errStartOver) {
			return err
		}
	}
	return fmt.Errorf("writing in %q: %w", t.dataDir, errStartOver)
}

// use sweeps, writes, and gives the token back, even when write panics.
func (t *writeToken) use(held string, write func(held string) error) error {
	defer func() {
		// No error counts: a token that was not given back was taken over, or will be
		// when it is old. The pause leaves others the time to see the token free, or a
		// process that writes on and on would leave them none.
		renameFile(filepath.Join(t.dir, held), filepath.Join(t.dir, tokenFree))
		time.Sleep(mathrand.N(8 * time.Millisecond))
	}()
	if err := t.sweep(); err != nil {
		return fmt.Errorf("removing leftovers in %q: %w", t.dataDir, err)
	}
	t.step("swept")
	return write(held)
}

// take waits for the token, and gives its held name. A look at the folder may miss
// a token in mid-rename, or see it twice; that costs another look, as it does when
// another was faster. The wait times out when one and the same writer has held the
// token for too long, or when there are two.
func (t *writeToken) take(ctx context.Context) (held string, err error) {
	seen, since := "", time.Now()
	for delay := time.Millisecond; ; delay = min(2*delay, 16*time.Millisecond) {
		names, err := t.tokens()
		if err != nil {
			return "", err
		}
		if now := strings.Join(names, " "); now != seen {
			seen, since = now, time.Now()
		}
		if len(names) == 1 && !t.inUse(names[0]) {
			held := t.newName()
			err := renameFile(filepath.Join(t.dir, names[0]), filepath.Join(t.dir, held))
			if err == nil {
				t.step("taken")
				return held, nil
			}
			if !errors.Is(err, fs.ErrNotExist) {
				return "", err
			}
		}
		if time.Since(since) > t.timeout {
			return "", fmt.Errorf("the token in %q has been %q (held.TIME.HOST.PROCESS) for %v: try again, or end that process",
				t.dir, seen, t.timeout)
		}
		// Each time for another while, so that waiting writers don't march in step.
		if !pauseFor(ctx, delay/2+mathrand.N(delay)) {
			return "", ctx.Err()
		}
	}
}

// pauseFor waits, and reports whether ctx goes on.
func pauseFor(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// tokens lists the tokens in the folder, which it makes if need be: one, unless the
// token is between two names or someone put another there.
func (t *writeToken) tokens() ([]string, error) {
	entries, err := os.ReadDir(t.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, t.prepare()
	}
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if name := e.Name(); name == tokenFree || strings.HasPrefix(name, tokenHeld) {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		os.Remove(t.dir) // only succeeds if it is empty; then it is made anew
	}
	return names, nil
}

// prepare makes the folder with a free token inside under a name of its own and
// renames it into place. That another was faster is no error.
func (t *writeToken) prepare() error {
	temp := t.dir + ".tmp." + t.newName()
	defer os.RemoveAll(temp) // gone already when all went well
	err := cmp.Or(os.MkdirAll(temp, 0o700), os.WriteFile(filepath.Join(temp, tokenFree), nil, 0o600))
	if err == nil {
		err = os.Rename(temp, t.dir)
	}
	if _, lerr := os.Lstat(t.dir); lerr == nil {
		return nil
	}
	return err
}

// inUse judges whether a token's owner is at work. The verdict may be wrong either
// way; see the top of this file.
func (t *writeToken) inUse(name string) bool {
	parts := strings.Split(name, ".")
	if len(parts) != 5 {
		return false // free, or of a form that no usher writes
	}
	ms, _ := strconv.ParseInt(parts[1], 10, 64)
	pid, _ := strconv.Atoi(parts[3])
	if time.Since(time.UnixMilli(ms)).Abs() > t.stale {
		return false // old, or from the future
	}
	return parts[2] != t.host || processAlive(pid)
}

// newName makes a held name that was never used before.
func (t *writeToken) newName() string {
	return fmt.Sprintf("%s%d.%s.%d.%s", tokenHeld, time.Now().UnixMilli(), t.host, os.Getpid(), rand.Text())
}

// sweep removes the temporary files of all holders before. This is what stops a
// former holder that still lives, and no mere tidiness, so it must not fail. (On
// Windows a file that is still open can't be removed. But its writer has not
// closed it yet, so it has not checked its token yet, and will find it gone.)
func (t *writeToken) sweep() error {
	entries, err := os.ReadDir(t.dataDir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !strings.Contains(e.Name(), tokenTemp) {
			continue
		}
		if err := os.RemoveAll(filepath.Join(t.dataDir, e.Name())); err != nil && !isShared(err) {
			return err
		}
	}
	return nil
}

// writeFile writes a temporary file, syncs it, calls ready, renames it to target
// and syncs the folder. So others see the old file or the whole new one, and a
// power loss leaves one of them. The file is readable to its owner alone.
func writeFile(target, temp string, data []byte, ready func() error) error {
	defer os.Remove(temp) // gone already when all went well
	f, err := os.OpenFile(temp, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil { // closed first: Windows renames no open file
		return err
	}
	if err := ready(); err != nil {
		return err
	}
	if err := renameFile(temp, target); err != nil {
		return err
	}
	return syncFolder(filepath.Dir(target))
}

// replaceFile is writeFile for files that need no token.
func replaceFile(path string, data []byte) error {
	return writeFile(path, path+".new."+rand.Text(), data, func() error { return nil })
}

// openRegular opens a file to read. It neither waits for nor reads what is no
// regular file, such as a pipe.
func openRegular(path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() {
		file.Close()
		return nil, cmp.Or(err, errors.New("not a regular file"))
	}
	return file, nil
}
