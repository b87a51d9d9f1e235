// Files: atomic writes, and the token that lets one process at a time rewrite the
// files of a data folder. Nothing here depends on what the files contain.
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
	"syscall"
	"time"
)

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

// do calls write while this process holds the token, whose name write is given.
// When write returns errStartOver, do takes the token again and calls write again,
// which must therefore begin by reading anew. Write must not call do. The error is
// write's, or says who holds the token, or that ctx ended. The data folder is made
// if need be.
func (t *writeToken) do(ctx context.Context, write func(held string) error) error {
	for range tokenTries {
		held, err := t.acquire(ctx)
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

// acquire waits for the token, and gives its held name. A look at the folder may miss
// a token in mid-rename, or see it twice; that costs another look, as it does when
// another was faster. The wait times out when one and the same writer has held the
// token for too long, or when there are two.
func (t *writeToken) acquire(ctx context.Context) (held string, err error) {
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

func newWriteToken(dataDir string) *writeToken {
	host, _ := os.Hostname()
	host = cmp.Or(strings.NewReplacer(".", "-", "/", "-", `\`, "-").Replace(host), "unknown")
	return &writeToken{dataDir: dataDir, dir: filepath.Join(dataDir, "claims.lock"), host: host[:min(len(host), 64)],
		stale: 30 * time.Second, timeout: 10 * time.Second, step: func(string) {}}
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
