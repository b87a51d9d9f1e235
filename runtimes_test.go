// Which files are modules, and how they are started.

package main

import (
	"slices"
	"strings"
	"testing"
)

func TestModuleFiles(t *testing.T) {
	for file, want := range map[string]string{
		"a.usher.go": "a go", "a.usher.py": "a python", "a.usher.ts": "a node", "a.usher.mjs": "a node",
		"a.usher.sh": "a shell", "a.usher": "a executable", "a-b_1.usher.go": "a-b_1 go",
		"a.usher.rb": "", "a.go": "", "usher.go": "", "a.usher.go.bak": "", "a.usher~": "", "a.b.usher": "a.b executable",
	} {
		name, kind, ok := moduleFile(file)
		if got := strings.TrimSpace(name + " " + string(kind)); got != want || ok != (want != "") {
			t.Errorf("%s: %q", file, got)
		}
	}
}

func TestParseConfig(t *testing.T) {
	env := map[string]string{"HOME": "/h", "EMPTY": "", webhookSecretVar: "s3cret"}
	getenv := func(k string) (string, bool) { v, ok := env[k]; return v, ok }
	for _, tt := range []struct{ name, entry, want string }{
		{"a command and its arguments", `{"command":"node","args":["x","y z"]}`, "node x|y z"},
		{"variables", `{"command":"${HOME}/bin/${NAME:-srv}","args":["${EMPTY:-d}","$HOME","${EMPTY}"]}`, "/h/bin/srv d|$HOME|"},
		{"environment", `{"command":"x","env":{"B":"${HOME}","A":"1"}}`, "x  A=1|B=/h"},
		{"a variable that is not set", `{"command":"x","args":["${NOPE}"]}`, "${NOPE} is not set"},
		{"the daemon's secret", `{"command":"x","env":{"K":"${SERVICE_WEBHOOK_SECRET}"}}`, "the daemon's own secret"},
		{"the daemon's secret with a default", `{"command":"x","env":{"K":"${SERVICE_WEBHOOK_SECRET:-x}"}}`, "the daemon's own secret"},
		{"no command", `{"url":"http://x"}`, `no "command"`},
		{"a command in another case", `{"Command":"x"}`, `no "command"`},
		{"a command that is a list", `{"command":["x"]}`, `"command" must be a string`},
		{"arguments that are text", `{"command":"x","args":"y"}`, `"args" must be a list of strings`},
		{"an entry that is text", `"x"`, "not an object"},
	} {
		list, err := parseConfig([]byte(`{"mcpServers":{"m":`+tt.entry+`}}`), "/w", getenv)
		if err != nil || len(list) != 1 {
			t.Fatalf("%s: %v %v", tt.name, list, err)
		}
		l := list[0].Launch
		got := strings.TrimRight(l.Path+" "+strings.Join(l.Args, "|")+" "+strings.Join(l.Env, "|"), " ")
		if list[0].Err != nil {
			got = list[0].Err.Error()
		}
		if got != tt.want && !strings.Contains(got, tt.want) {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
	for _, raw := range []string{``, `[]`, `{"mcpServers":[]}`, `{"mcpservers":{}}`, `{"mcpServers":{}`} {
		if _, err := parseConfig([]byte(raw), "/w", getenv); err == nil {
			t.Errorf("%q was taken", raw)
		}
	}
	list, _ := parseConfig([]byte(`{"mcpServers":{"a b":{"command":"x"},"c":{"command":"x"},"c":{"command":"y"}}}`), "/w", getenv)
	if len(list) != 3 || list[0].Err == nil || list[1].Err != nil || list[2].Err == nil {
		t.Errorf("bad and repeated names: %+v", list)
	}
}

func FuzzParseConfig(f *testing.F) {
	f.Add([]byte(`{"mcpServers":{"m":{"command":"${A:-b}","args":["${C}"],"env":{"D":"e"}}}}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		parseConfig(raw, "/w", func(string) (string, bool) { return "", false })
	})
}

func TestWorkerEnv(t *testing.T) {
	got := workerEnv([]string{"A=1", webhookSecretVar + "=x", "KEY_SIGNING_SECRET=y", nestedVar + "=/m"}, "/s", []string{"B=2"})
	if want := []string{"A=1", "B=2", nestedVar + "=/m:/s"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
