// Stores of claims and their files.

package main

import (
	"os"
	"testing"
	"time"
)

func testStore(t testing.TB, dataDir string) *ClaimStore {
	s := openClaims(dataDir)
	t.Cleanup(s.Close)
	return s
}

// newStore returns a store in a data folder that does not exist yet.
func newStore(t *testing.T) (dir string, s *ClaimStore) {
	dir = newDataDir(t)
	return dir, testStore(t, dir)
}

// newDataDir returns a data folder that does not exist yet.
func newDataDir(t testing.TB) string { return t.TempDir() + "/base/.data" }

func writeClaimsFile(t testing.TB, dataDir, content string) string {
	t.Helper()
	path := dataDir + "/claims.json"
	must(t, os.MkdirAll(dataDir, 0o700))
	must(t, os.WriteFile(path, []byte(content), 0o600))
	return path
}

func mustCreate(t testing.TB, s *ClaimStore) Claim {
	t.Helper()
	c, err := s.Create(t.Context(), "/w/p", "", time.Hour)
	must(t, err)
	return c
}

// wantActive checks whether a code is that of an active claim.
func wantActive(t testing.TB, s *ClaimStore, code Code, want bool) {
	t.Helper()
	p, err := s.Lookup(code)
	must(t, err)
	check(t, code.Reveal()+" is valid", p != nil && p.Code == code, want)
}

// fileCodes returns the codes in the file, which must be readable.
func fileCodes(t testing.TB, dataDir string) map[Code]bool {
	t.Helper()
	snap, err := readClaims(dataDir + "/claims.json")
	must(t, err)
	snap.file.Close()
	codes := map[Code]bool{}
	for _, c := range snap.claims {
		codes[c.Code] = true
	}
	return codes
}

// wantTidy checks that the data folder contains the file and a free token only.
func wantTidy(t testing.TB, dataDir string) {
	t.Helper()
	check(t, "data folder", folderNames(t, dataDir), []string{"claims.json", "claims.lock"})
	check(t, "token folder", folderNames(t, dataDir+"/claims.lock"),
		[]string{"free"})
}

// unknownCodes returns n codes that, with overwhelming likelihood, were never
// issued.
func unknownCodes(n int) []string {
	var codes []string
	for i := range n {
		codes = append(codes,
			string([]byte{codeAlphabet[i%31], codeAlphabet[i/31], '2', '2', 'Z', 'Z'}))
	}
	return codes
}
