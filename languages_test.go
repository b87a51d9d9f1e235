// All languages side by side: one contact form, written in each, is one tool to
// a client and one webhook to a website.

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// languages is the modules of testdata/languages that can run here, and what
// each needs.
func languages(t *testing.T) (dir string, names []string) {
	t.Helper()
	dir = t.TempDir()
	for name, program := range map[string]string{"go.usher.go": "go", "py.usher.py": "python3", "js.usher.js": "node", "ts.usher.ts": "node", "sh.usher.sh": "sh"} {
		if _, err := exec.LookPath(program); err != nil {
			if os.Getenv("CI_REQUIRE") != "" {
				t.Fatalf("CI needs %s", program)
			}
			t.Logf("%s is left out: no %s here", name, program)
			continue
		}
		if strings.HasSuffix(name, ".ts") && exec.Command(program, "-e", "process.exit(require('node:module').stripTypeScriptTypes ? 0 : 1)").Run() != nil {
			if os.Getenv("CI_REQUIRE") != "" {
				t.Fatal("CI needs a node that strips types")
			}
			t.Logf("%s is left out: this node does not strip types", name)
			continue
		}
		text, err := os.ReadFile("testdata/languages/" + name)
		if err != nil {
			t.Fatal(err)
		}
		write(t, dir+"/"+name, string(text))
		label, _, _ := strings.Cut(name, ".")
		names = append(names, label)
	}
	slices.Sort(names)
	return dir, names
}

func TestOneFormInEachLanguage(t *testing.T) {
	t.Parallel()
	dir, names := languages(t)
	d := serveHere(t, dir)
	c := connect(t, d.URL)
	var tools []string
	for _, name := range names {
		tools = append(tools, name+"_handleContact", name+"_pause")
	}
	c.awaitTools(tools...)

	var list struct{ Tools []json.RawMessage }
	if err := json.Unmarshal(c.ask("tools/list", "").result(), &list); err != nil {
		t.Fatal(err)
	}
	const schema = `{"type":"object","properties":{"email":{"type":"string","description":"where to answer"},"message":{"type":"string","description":"what it is about"},"copies":{"type":"integer","description":"how many to send"}},"required":["email","message"]}`
	for _, tool := range list.Tools {
		if name := stringField(tool, "name"); strings.HasSuffix(name, "_handleContact") {
			if diff := cmp.Diff(schema, string(field(tool, "inputSchema"))); diff != "" {
				t.Errorf("%s: %s", name, diff)
			}
			if text := stringField(tool, "description"); !strings.HasSuffix(text, "akes a contact form.") && !strings.Contains(text, "takes a contact form.") {
				t.Errorf("%s: description %q", name, text)
			}
		}
	}
	for _, name := range names {
		post := func(kind, body string) answer {
			res, err := http.Post(d.URL+"webhook/"+name+"/handleContact", kind, strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			var text strings.Builder
			fmt.Fprint(&text, res.StatusCode, " ")
			var v any
			json.NewDecoder(res.Body).Decode(&v)
			text.Write(marshal(v))
			return answer{Body: text.String()}
		}
		for _, tt := range []struct{ kind, body, want string }{
			{"application/json", `{"email":"a@b","message":"hi","copies":3}`, `200 {"copies":3,"thanks":"a@b"}`},
			{"application/x-www-form-urlencoded", "email=a%40b&message=hi&copies=2", `200 {"copies":2,"thanks":"a@b"}`},
			{"application/x-www-form-urlencoded", "email=a%40b&message=hi&copies=", `200 {"copies":1,"thanks":"a@b"}`},
			{"application/json", `{"email":"a@b","message":"hi"}`, `200 {"copies":1,"thanks":"a@b"}`},
			{"application/json", `{"email":"a@b"}`, `400 {"error":"parameter \"message\" is required: a string"}`},
			{"application/json", `{"email":1,"message":"hi"}`, `400 {"error":"parameter \"email\": want a string, got an integer"}`},
		} {
			if got := post(tt.kind, tt.body).Body; got != tt.want {
				t.Errorf("%s: %s gave %s, want %s", name, tt.body, got, tt.want)
			}
		}
		if got := c.call(name+"_handleContact", `{"email":"a@b"}`).failure(); got != `parameter "message" is required: a string` {
			t.Errorf("%s: a call without a message: %q", name, got)
		}
		if got := string(field(c.call(name+"_handleContact", `{"email":"a@b","message":"","_webhook":{"timestamp":1}}`).result(), "isError")); got != "" {
			t.Errorf("%s: a client set _webhook", name)
		}
	}
}

// TestOldRequestsAreRefused gives the forms a request of long ago, which only
// usher itself can.
func TestOldRequestsAreRefused(t *testing.T) {
	t.Parallel()
	dir, names := languages(t)
	r, err := newRegistry(registryConfig{Roots: []string{dir}, CacheDir: t.TempDir(), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	r.Settle(t.Context(), patience)
	for _, name := range names {
		tool := r.Source().View(scopeAll()).Lookup(name + "_handleContact")
		if tool == nil {
			t.Fatalf("%s is not hosted", name)
		}
		for age, want := range map[time.Duration]string{2 * time.Second: "", 2 * time.Minute: "too old"} {
			params := fmt.Sprintf(`{"arguments":{"email":"a","message":"b","_webhook":{"method":"POST","timestamp":%d}}}`, time.Now().Add(-age).UnixMilli())
			result, err := tool.Call(context.Background(), Caller{Session: "test"}, json.RawMessage(params))
			got := (answer{Events: []json.RawMessage{joinMembers([]member{{"result", result}})}}).failure()
			if err != nil || (got == "") != (want == "") || !strings.Contains(got, want) {
				t.Errorf("%s: a request %v old: %q %v", name, age, got, err)
			}
		}
	}
}

func TestCallsRunSideBySide(t *testing.T) {
	slow(t)
	dir, names := languages(t)
	c := connect(t, serveHere(t, dir).URL)
	for _, name := range names {
		await(t, name, func() bool { return slices.Contains(c.tools(), name+"_pause") })
		c.call(name+"_pause", "")
		start := time.Now()
		var calls sync.WaitGroup
		for range 20 {
			calls.Go(func() {
				if a := c.call(name+"_pause", ""); resultText(a.result()) != "done" {
					t.Errorf("%s: %s", name, a.Body)
				}
			})
		}
		calls.Wait()
		if took := time.Since(start); took > 3*time.Second {
			t.Errorf("%s: 20 calls of a second took %v", name, took)
		}
	}
}

func TestShellExampleOverARealRepository(t *testing.T) {
	t.Parallel()
	need(t, "git")
	dir := t.TempDir()
	text, err := os.ReadFile("examples/garden/changes.usher.sh")
	if err != nil {
		t.Fatal(err)
	}
	write(t, dir+"/changes.usher.sh", string(text))
	git := func(args ...string) {
		t.Helper()
		cmd := exec.Command("git", append([]string{"-c", "user.name=Ada; touch x", "-c", "user.email=ada@example.com"}, args...)...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v %s", args, err, out)
		}
	}
	git("init", "-q")
	git("add", ".")
	git("commit", "-qm", "first $(touch y)")
	git("commit", "-qm", "second", "--allow-empty")
	c := connect(t, serveHere(t, dir).URL)
	c.awaitTools("changes_author", "changes_recent")
	if got := strings.Split(resultText(c.call("changes_recent", "").result()), "\n"); len(got) != 2 || !strings.HasSuffix(got[1], "first $(touch y)") {
		t.Errorf("recent: %q", got)
	}
	if got := c.call("changes_author", `{"name":"ada@"}`); string(field(field(got.result(), "structuredContent"), "commits")) != "2" {
		t.Errorf("author: %s", got.Body)
	}
	for _, name := range []string{"$(touch z)", "`touch z`", "'; touch z; '", "--help", "\\n"} {
		c.call("changes_author", string(joinMembers([]member{{"name", quote(name)}})))
	}
	entries, _ := os.ReadDir(dir)
	if len(entries) != 2 { // .git and the module
		t.Errorf("something was run: %v", entries)
	}
}
