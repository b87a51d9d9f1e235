// The write token: the right to rewrite files of the data folder, for this
// process and all others, and the rewriting. This file knows nobody; of
// claims.json, the example below, it knows the name of the token's folder only.
// At its end stand a few things about files that other rooms need too.
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
//  3. A holder first removes every temporary file of the data folder. Those
//     are made by holders only, so they belong to someone who has lost the
//     token. (Folders that others prepare, see below, may go too: they look
//     again.)
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
//   - Order: waiters get their turn by chance. Who has just written lets the
//     others have a look first.
//   - Power loss on a disk that lies about fsync; on Windows the folder can't be
//     synced, so the last change may be missing then (old file, whole).

package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"io/fs"
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
)

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
	gaveBack time.Time     // when this process last did; guarded by busy
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
// between (this process was stopped for over 30 s), do takes it again and calls
// write again, which must therefore begin by reading anew. Write must not call
// do, nor a ClaimStore's methods that write. It returns write's
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
	const shortest, longest = time.Millisecond, 16 * time.Millisecond
	seen, since := "", time.Now()
	if since.Sub(t.gaveBack) < longest {
		pauseAbout(ctx, longest/4) // else one that writes on and on leaves none a gap
	}
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
			if held, err := t.takeNamed(names); held != nil || err != nil {
				return held, err
			}
			seen = "" // someone was faster: a new holder, and patience anew
		}
		if waited > t.patience {
			return nil, t.impatient(names)
		}
		pauseAbout(ctx, delay)
	}
}

// pauseAbout waits for about d, each time another, so that waiters don't march in
// step, or until ctx ends.
func pauseAbout(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d/2 + mathrand.N(d))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// tokens lists the tokens in the folder, which it makes if need be: one, unless
// it is between two names or someone put another there.
func (t *writeToken) tokens() ([]string, error) {
	entries, err := os.ReadDir(t.dir)
	if errors.Is(err, fs.ErrNotExist) {
		err = t.prepare()
	}
	if err != nil {
		return nil, fmt.Errorf("reading write token: %w", err)
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

// takeNamed takes the tokens of these names, all as one, unless someone else was
// faster: then it returns nil, nil.
func (t *writeToken) takeNamed(names []string) (*heldToken, error) {
	held := &heldToken{token: t, name: t.newName()}
	taken := false
	for _, name := range names {
		err := renameFile(filepath.Join(t.dir, name), held.path())
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
	return fmt.Sprintf("%s%d.%s.%d.%s-%s", tokenHeld, time.Now().UnixMilli(), t.host, os.Getpid(), t.birth(), rand.Text())
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
	renameFile(h.path(), filepath.Join(h.token.dir, tokenFree))
	h.token.gaveBack = time.Now()
}

// sweep removes all temporary files. This is what stops a former holder that
// still lives, and not mere tidiness, so it must not fail. (On Windows a file
// that is still open can't be removed; but its writer has not yet closed it,
// so it has not yet looked at its token, and will find it gone.)
func (h *heldToken) sweep() error {
	entries, err := os.ReadDir(h.token.dataDir)
	if err != nil {
		return fmt.Errorf("reading data folder: %w", err)
	}
	for _, e := range entries {
		if !strings.Contains(e.Name(), tokenTemp) {
			continue
		}
		if err := os.RemoveAll(filepath.Join(h.token.dataDir, e.Name())); err != nil && !isShared(err) {
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
	err := renameFile(temp, target)
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

// renameFile is os.Rename, which on Windows fails while someone has the file open,
// if only to read it or to search it for viruses: there it is tried for a while.
func renameFile(from, to string) error {
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

// replaceFile puts data in place of a file, made if need be and readable to its
// owner alone, so that others see the old one or all of the new, also after the
// power was cut. Unlike heldToken.replace it needs no token.
func replaceFile(path string, data []byte) error {
	temp := path + ".new." + rand.Text()
	defer os.Remove(temp) // gone already when all went well
	if err := writeSynced(temp, data); err != nil {
		return err
	}
	if err := renameFile(temp, path); err != nil {
		return err
	}
	return syncFolder(filepath.Dir(path))
}

// openRegular opens a file to read. It neither waits for nor reads what is no
// regular file, such as a pipe.
func openRegular(path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = &fs.PathError{Op: "open", Path: path, Err: errors.New("not a regular file")}
	}
	if err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}

// hashOf names what is made of the parts, in hexadecimal digits. Each part is
// preceded by its length, so that no two lists of parts make one text.
func hashOf(parts ...string) string {
	h := sha256.New()
	for _, part := range parts {
		fmt.Fprintf(h, "%d %s", len(part), part)
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// reason is an error without the path that the caller names anyway.
func reason(err error) string {
	if p := (*fs.PathError)(nil); errors.As(err, &p) {
		return p.Err.Error()
	}
	return err.Error()
}
