// Files: atomic writes, and the token that lets one process at a time rewrite the files of a
// data folder. Nothing here depends on what the files contain; claims.json is the example below.
//
// # Why no two writers both succeed, and why no record is lost
//
// The right to write is a token: a file in the folder claims.lock. Its name is "free" or,
// while a writer has the token, "held.UNIXMS.HOST.PID.RANDOM". usher uses no flock, whose
// meaning differs between systems and file systems, and no lock file with a time limit:
// two writers that find the same stale lock can both remove it, the second one after the
// first has made its new lock.
//
//  1. A writer takes the token by renaming it to a held name of its own. Held names are
//     random and never used twice. If several writers rename the same name, exactly one
//     succeeds, whether that name is "free" or the held name of a writer that crashed.
//  2. A writer may take the token from its owner if the owner's process is gone, or if the
//     token's time is more than 30 s away from now. This judgement may be wrong: the owner
//     may be stopped, a clock may have jumped, two hosts may have one name. It only
//     decides which writer waits. The rest of the proof does not depend on it.
//  3. The new holder first removes all temporary files in the data folder whose names
//     contain a held name. Only holders create such files, so these belong to writers that
//     have lost the token. (It may also remove a folder that another process is preparing,
//     see below. That process then tries again.)
//  4. The holder reads claims.json and writes its own temporary file. It checks that the
//     token still has the holder's name and that claims.json is still the file that it
//     read. Then it renames the temporary file to claims.json.
//
// Suppose that writer A had the token and that writer B took it from A while A was alive.
// If A's check comes after B's rename of the token, A finds its name gone and starts over.
// If A's check comes before B's rename, A's temporary file existed before B took the token.
// So step 3 of B, or of a later holder, finds that file. A's rename and this removal have
// the same source name, so one of them comes first. If the rename comes first, B has not
// read claims.json yet and will read what A wrote. If the removal comes first, A's rename
// fails because its source is gone, and A starts over. So a writer that is stopped between
// its check and its rename, for any length of time, can't undo another writer's work. Each
// writer replaces exactly the content that it read, so no record is lost.
//
// The folder claims.lock is prepared under another name, with the token inside, and then
// renamed into place. The rename fails if the folder exists, so there is only one. If
// someone removed the token, usher removes the empty folder (which fails if it is not
// empty) and makes it anew.
//
// # Why kill -9 does no harm at any instant
//
// claims.json changes by one rename of a complete, synced file: it is the old file or the
// new one. A killed holder leaves a token whose owner is dead, which the next writer takes,
// and maybe a temporary file, which step 3 removes. If the holder is killed after the
// rename, the new file is in place and only the token was not released. A process that is
// killed while it prepares claims.lock leaves a folder with a temporary name, which is not
// used and which step 3 removes.
//
// # Known gaps
//
//   - Writers that bypass the token are not serialized with those that take it. If someone
//     deletes or replaces claims.json by hand during a write, the writer notices if that
//     happens before its last check. Between that check and the rename, the deletion would
//     be undone, because a rename can't require that its target exists. "usher claim
//     revoke" takes the token and has no such gap.
//   - Network file systems: a rename may succeed and be reported as failed, a listing may
//     be old, and only the server can ensure that one of several renames succeeds.
//   - A second token, from a copy of the folder that was restored during a write. Two
//     writers may then have a token each, although the check of claims.json before the
//     rename still counts. Later writers fail, naming both tokens, until someone removes
//     the folder claims.lock.
//   - A folder that can't be synced after the rename. The write then fails, although the new
//     file is in place.
//   - A pid that is reused within 30 s of a crash. Writers then fail until the token is
//     30 s old.
//   - Order: waiting writers get the token in random order.
//   - Power failure with a disk that does not obey fsync.

package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	mathrand "math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

const (
	tokenFree  = "free"
	tokenHeld  = "held."
	tokenTemp  = ".tmp." + tokenHeld // part of the names of temporary files and folders
	tokenTries = 50                  // attempts of one write before it fails
)

// errStartOver means that another writer has taken the token, or that the file to replace
// is no longer the file that was read. writeToken.do then starts over.
var errStartOver = errors.New("too many other writers: try again")

// writeToken is the right to rewrite files of one data folder, for this process and all
// others; see the proof above. Safe for concurrent use.
type writeToken struct {
	dataDir string
	dir     string        // claims.lock
	host    string        // as in held names
	stale   time.Duration // a token held for longer is taken over
	timeout time.Duration // how long to wait for one and the same holder
	step    func(string)  // called at each step of a write; tests stop there
}

// newWriteToken returns the token of a data folder, which need not exist yet. If another container has
// the same host name, a holder there may count as dead here, and lose the token before its write: see
// the comment above.
func newWriteToken(dataDir string) *writeToken {
	host, _ := os.Hostname()
	return &writeToken{
		dataDir: dataDir,
		dir:     filepath.Join(dataDir, "claims.lock"),
		host:    strings.ReplaceAll(host, ".", "-"),
		stale:   30 * time.Second,
		timeout: 10 * time.Second,
		step:    func(string) {},
	}
}

// do takes the token, calls write with the token's held name, and releases the token. If
// write returns errStartOver, do starts over, so write must begin by reading the files. It
// must not call do. The error is write's, or names the token's holder, or is ctx's.
// The data folder is created if necessary.
func (t *writeToken) do(ctx context.Context, write func(held string) error) error {
	for range tokenTries {
		held, err := t.acquire(ctx)
		if err != nil {
			return err
		}
		t.step("taken")
		if err := t.use(held, write); !errors.Is(err, errStartOver) {
			return err
		}
	}
	return fmt.Errorf("writing to %q: %w", t.dataDir, errStartOver)
}

// acquire waits for the token and returns its held name. A listing of the folder may miss a
// token that is being renamed, or show it twice; acquire then lists again, as it does if
// another writer was faster. The wait times out if the same writer has held the token for
// too long, or if there are two tokens.
func (t *writeToken) acquire(ctx context.Context) (held string, err error) {
	last := ""
	since := time.Now()
	for delay := time.Millisecond; ; delay = min(2*delay, 16*time.Millisecond) {
		names, err := t.tokens()
		if err != nil {
			return "", err
		}
		if all := strings.Join(names, " "); all != last {
			last = all
			since = time.Now()
		}
		if len(names) == 1 && !t.inUse(names[0]) {
			held := t.newName()
			err := os.Rename(filepath.Join(t.dir, names[0]), filepath.Join(t.dir, held))
			if !errors.Is(err, fs.ErrNotExist) { // else another writer was faster
				return held, err
			}
		}
		if time.Since(since) > t.timeout {
			return "", fmt.Errorf("lock %q has contained %q (held.UNIXMS.HOST.PID) for %v: "+
				"end that process, or remove the folder if it is empty", t.dir, last, t.timeout)
		}
		// The delay is random, so that waiting writers don't all try at the same moments.
		if !pauseFor(ctx, delay/2+mathrand.N(delay)) {
			return "", ctx.Err()
		}
	}
}

// use removes leftovers, calls write, and releases the token even if write panics.
func (t *writeToken) use(held string, write func(held string) error) error {
	defer func() {
		// The error does not matter: a token that was not released has been taken over,
		// or will be when it is old. The pause gives other processes time to see the free
		// token, even if this process writes continually.
		os.Rename(filepath.Join(t.dir, held), filepath.Join(t.dir, tokenFree))
		time.Sleep(mathrand.N(8 * time.Millisecond))
	}()
	if err := t.sweep(); err != nil {
		return err
	}
	t.step("swept")
	return write(held)
}

// replace atomically writes data to path, provided that the token still has its held name
// and that unchanged returns nil. If another writer has taken the token, replace returns
// errStartOver and leaves path unchanged.
func (t *writeToken) replace(held, path string, data []byte, unchanged func() error) error {
	temp := path + ".tmp." + held
	defer os.Remove(temp) // fails after the rename
	err := writeFile(temp, data, os.O_TRUNC, 0o600)
	if err == nil {
		t.step("written")
		_, err = os.Lstat(filepath.Join(t.dir, held))
	}
	if err == nil {
		t.step("checked")
		err = unchanged()
	}
	if err == nil {
		t.step("renaming")
		err = os.Rename(temp, path)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return errStartOver // the token is gone, or the next holder has swept the temporary file
	}
	if err != nil {
		return err
	}
	t.step("ended")
	return syncFolder(filepath.Dir(path))
}

// tokens lists the tokens in the folder, which it creates if necessary. There is one,
// unless the token is being renamed or someone added another.
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
		os.Remove(t.dir) // succeeds only if it is empty; the next call makes it anew
	}
	return names, nil
}

// prepare makes the folder with a free token inside, under a name of its own, and renames
// it into place. It returns no error if another process was faster.
func (t *writeToken) prepare() error {
	temp := t.dir + ".tmp." + t.newName()
	defer os.RemoveAll(temp) // does nothing after the rename
	err := writeFile(filepath.Join(temp, tokenFree), nil, 0, 0o600)
	if err == nil {
		err = os.Rename(temp, t.dir)
	}
	if _, statErr := os.Lstat(t.dir); statErr == nil {
		return nil
	}
	return err
}

// inUse judges whether a token's owner is still writing. The judgement may be wrong either
// way; see step 2 of the proof.
func (t *writeToken) inUse(name string) bool {
	parts := strings.Split(name, ".")
	if len(parts) != 5 {
		return false // free, or not a name that usher gives
	}
	ms, _ := strconv.ParseInt(parts[1], 10, 64)
	pid, _ := strconv.Atoi(parts[3])
	if time.Since(time.UnixMilli(ms)).Abs() > t.stale {
		return false // old, or far in the future
	}
	return parts[2] != t.host || processAlive(pid)
}

// newName returns a held name that was never used before.
func (t *writeToken) newName() string {
	now := time.Now().UnixMilli()
	return fmt.Sprintf("%s%d.%s.%d.%s", tokenHeld, now, t.host, os.Getpid(), rand.Text())
}

// sweep removes the temporary files of all earlier holders. The proof needs this to stop an
// earlier holder that is still alive, so sweep must not fail.
func (t *writeToken) sweep() error {
	entries, err := os.ReadDir(t.dataDir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !strings.Contains(e.Name(), tokenTemp) {
			continue
		}
		if err := os.RemoveAll(filepath.Join(t.dataDir, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

// replaceFile atomically replaces a file that only one process writes. Other processes see
// the old file or the complete new one, also after a power failure. The temporary file that
// a killed process leaves has the same name each time, so the next call overwrites it.
func replaceFile(path string, data []byte) error {
	temp := path + ".new"
	defer os.Remove(temp) // fails after the rename
	err := writeFile(temp, data, os.O_TRUNC, 0o600)
	if err == nil {
		err = os.Rename(temp, path)
	}
	if err == nil {
		err = syncFolder(filepath.Dir(path))
	}
	return err
}

// writeFile writes and syncs a file, and creates its folder if necessary. Until it returns,
// readers may find an incomplete file. Several processes may write the file at the same time. flag
// is os.O_TRUNC, os.O_EXCL if the file must not exist, or 0 if all writers write the same data:
// then each of them finds all of it once it has written it.
func writeFile(path string, data []byte, flag int, mode fs.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|flag, mode)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	closeErr := f.Close()
	return cmp.Or(err, closeErr)
}

// pauseFor waits for d and returns true, or returns false as soon as ctx ends.
func pauseFor(ctx context.Context, d time.Duration) bool { return waitFor(ctx, time.After(d)) == nil }

// waitFor waits until done is closed or yields a value, or until ctx ends; then it returns
// ctx's cause.
func waitFor[T any](ctx context.Context, done <-chan T) error {
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
