// GitHub's own payloads, all of those that are recorded, delivered as GitHub
// delivers them.

package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"testing"
)

// digest returns a hash of a JSON value that does not depend on how it is written: not on
// white space, escapes or the order of keys. Numbers keep their digits.
func digest(raw []byte) string {
	var v any
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		return err.Error()
	}
	sum := sha256.Sum256(marshal(v)) // sorts keys
	return hex.EncodeToString(sum[:])
}

// payload is a recorded one.
type payload struct {
	name, event string // name is for people: folder, event and number
	text        []byte
}

// octokitPayloads is the payloads of all folders: those of github.com and those
// of each version of GitHub Enterprise Server.
func octokitPayloads(t *testing.T) []payload {
	t.Helper()
	indexes, err := filepath.Glob(filepath.Join(npmInstall(t, "testdata/webhook"), "node_modules", "@octokit",
		"webhooks-examples", "*", "index.json"))
	must(t, err)
	var list []payload
	for _, index := range indexes {
		text, err := os.ReadFile(index)
		must(t, err)
		var events []struct {
			Name     string
			Examples []json.RawMessage
		}
		must(t, json.Unmarshal(text, &events))
		for _, e := range events {
			for i, example := range e.Examples {
				list = append(list, payload{fmt.Sprintf("%s %s %d", filepath.Base(filepath.Dir(index)), e.Name, i),
					e.Name, example})
			}
		}
	}
	if len(indexes) != 6 || len(list) != 726 {
		t.Fatalf("%d payloads in %d folders, want 726 in 6", len(list), len(indexes))
	}
	return list
}

func TestWebhookOctokitPayloads(t *testing.T) {
	slow(t)
	list := octokitPayloads(t)
	t.Parallel()
	dir := t.TempDir()
	writeTools(t, dir+"/hub.usher", fakeTool{Name: "handleEvent", Does: "digest",
		Doc: "@signature github WH_GITHUB_SIGNING_SECRET"}, fakeTool{Name: "runs", Does: "runs"})
	env := map[string]string{webhookSecretVar: testSecret, "WH_GITHUB_SIGNING_SECRET": "It's a Secret to Everybody"}
	d := daemonOptions{env: env}.start(t, dir, "-accept-signatures")
	d.awaitReady(t)
	headers := func(p payload, kind, body string) []string {
		return []string{"Content-Type: " + kind, "User-Agent: GitHub-Hookshot/044aadd", "Accept: */*",
			"X-GitHub-Event: " + p.event,
			"X-GitHub-Delivery: 72d3162e-cc78-11e3-81ab-4c9367dc0958", "X-GitHub-Hook-ID: 292430182",
			"X-GitHub-Hook-Installation-Target-ID: 79929171",
			"X-GitHub-Hook-Installation-Target-Type: repository",
			"X-Hub-Signature-256: " + gitHubSignature(env["WH_GITHUB_SIGNING_SECRET"], body)}
	}
	jobs, good := make(chan payload), make(chan bool, 2*len(list))
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for p := range jobs {
				want := digest(p.text)
				for kind, body := range map[string]string{
					"application/json":                  string(p.text),
					"application/x-www-form-urlencoded": url.Values{"payload": {string(p.text)}}.Encode(),
				} {
					what := fmt.Sprintf("%s as %s", p.name, kind)
					a, err := d.try("POST", "hub/handleEvent", body, headers(p, kind, body)...)
					if err != nil || a.Status != 200 || stringField(json.RawMessage(a.Body), "digest") != want ||
						stringField(json.RawMessage(a.Body), "raw") != body {
						t.Errorf("%s: %v %d %.300s", what, err, a.Status, a.Body)
						continue
					}
					good <- true
					// The same headers, one byte of the body changed.
					at := int(sha256.Sum256([]byte(body))[0]) % len(body)
					changed := body[:at] + string(body[at]^1) + body[at+1:]
					a, err = d.try("POST", "hub/handleEvent", changed, headers(p, kind, body)...)
					if err != nil || a.Status != 401 {
						t.Errorf("%s with byte %d changed: %v %d %.300s", what, at, err, a.Status, a.Body)
					}
				}
			}
		})
	}
	for _, p := range list {
		jobs <- p
	}
	close(jobs)
	wg.Wait()
	if n := d.runs(t, "hub", "handleEvent"); n != 2*len(list) || len(good) != n {
		t.Errorf("of %d payloads the method got %d deliveries, %d whole, want %d", len(list), n, len(good), 2*len(list))
	}
	t.Logf("%d payloads, each delivered twice and refused twice", len(list))
}
