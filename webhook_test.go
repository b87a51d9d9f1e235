// Tests of webhook.go over HTTP: which method a path is, what of a request
// reaches it, who is let in, and every row of the table of answers. The modules
// are the test binary again, with tools that a test describes.

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand"
	"mime/multipart"
	"net"
	"net/http"
	"net/textproto"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"
)

// formSchema asks for every type that a form may fill in.
var formSchema = json.RawMessage(`{"type":"object","properties":{
	"s":{"type":"string"},"i":{"type":"integer"},"f":{"type":"number"},"b":{"type":"boolean"},
	"list":{"type":"array"},"o":{"type":"object"},"any":{},"sn":{"type":["number","string"]},"ni":{"type":["integer","null"]}}}`)

func bodyModule(t *testing.T) string {
	dir := t.TempDir()
	writeTools(t, dir+"/m.usher",
		fakeTool{Name: "handleAny"},
		fakeTool{Name: "handleForm", Schema: formSchema},
		fakeTool{Name: "handlePayload", Schema: json.RawMessage(`{"type":"object","properties":{"payload":{"type":"string"}}}`)},
		fakeTool{Name: "handleNeeds", Schema: json.RawMessage(`{"type":"object","properties":{"name":{"type":"string"},"_webhook":{}},"required":["name","_webhook"]}`)})
	return dir
}

func TestWebhookBodies(t *testing.T) {
	t.Parallel()
	d := startDaemon(t, bodyModule(t))
	const form, none = "application/x-www-form-urlencoded", ""
	for _, row := range []struct {
		method, kind, body string
		want               string // the arguments but for _webhook, or a part of the error
		status             int
	}{
		{"handleAny", "application/json", `{"a":1}`, `{"a":1}`, 200},
		{"handleAny", none, `{"a":1}`, `{"a":1}`, 200},
		{"handleAny", "application/json; charset=utf-8", `{"a":1}`, `{"a":1}`, 200},
		{"handleAny", "APPLICATION/JSON", `{"a":1}`, `{"a":1}`, 200},
		{"handleAny", "application/cloudevents+json", `{"a":1}`, `{"a":1}`, 200},
		{"handleAny", "application/vnd.api+json; version=1", `{"a":1}`, `{"a":1}`, 200},
		{"handleAny", none, ``, `{}`, 200},
		{"handleAny", "application/json", ``, `{}`, 200},
		{"handleAny", form, ``, `{}`, 200},
		{"handleAny", "multipart/form-data; boundary=b", ``, `{}`, 200},
		{"handleAny", "application/json", `{}`, `{}`, 200},
		{"handleAny", "application/json", "{\r\n  \"a\" : [ 1,\n 2 ] }\n", `{"a":[1,2]}`, 200},
		{"handleAny", "application/json", `{"n":9007199254740993,"f":1.10,"e":1e400,"z":-0}`, `{"n":9007199254740993,"f":1.10,"e":1e400,"z":-0}`, 200},
		{"handleAny", "application/json", `{"n":123456789012345678901234567890}`, `{"n":123456789012345678901234567890}`, 200},
		{"handleAny", "application/json", `{"a":1,"A":2,"a ":3}`, `{"a":1,"A":2,"a ":3}`, 200},
		{"handleAny", "application/json", `{"a":1,"a":2}`, `{"a":1,"a":2}`, 200},
		{"handleAny", "application/json", `{"é":"\u00e9","t":"\ud83d\ude00\u2028"}`, `{"é":"\u00e9","t":"\ud83d\ude00\u2028"}`, 200},
		{"handleAny", "application/json", `{"a":null,"":{"__proto__":1}}`, `{"a":null,"":{"__proto__":1}}`, 200},
		{"handleAny", "application/json", `{"_webhook":{"headers":{}},"a":1}`, `{"a":1}`, 200},
		{"handleAny", "application/json", `{"_webhook":1,"a":1,"\u005fwebhook":2}`, `{"a":1}`, 200},
		{"handleAny", "application/json", `{`, "JSON", 400},
		{"handleAny", "application/json", `{"a":1}{"b":2}`, "JSON", 400},
		{"handleAny", "application/json", `{"a":01}`, "JSON", 400},
		{"handleAny", "application/json", "{\"a\":\"\xff\"}", "UTF-8", 400},
		{"handleAny", "application/json", `[1]`, "must be a JSON object", 400},
		{"handleAny", "application/json", `"text"`, "must be a JSON object", 400},
		{"handleAny", "application/json", `null`, "must be a JSON object", 400},
		{"handleAny", "application/json", `a=1`, "JSON", 400},
		{"handleAny", none, `a=1`, "JSON", 400},
		{"handleNeeds", "application/json", `{"x":1}`, `"name" is required`, 400},
		{"handleNeeds", none, ``, `"name" is required`, 400},
		{"handleNeeds", form, `other=1`, `"name" is required`, 400},
		{"handleNeeds", "application/json", `{"name":5}`, `"name": want a string, got an integer`, 400},
		{"handleNeeds", "application/json", `{"name":null}`, `"name": want a string, got null`, 400},
		{"handleNeeds", "application/json", `{"Name":"x"}`, `"name" is required`, 400},
		{"handleNeeds", "application/json", `{"name":"x","name":5}`, `"name": want a string`, 400},
		{"handleNeeds", "application/json", `{"name":"x"}`, `{"name":"x"}`, 200},
		{"handleForm", "application/json", `{"i":"5"}`, `"i": want an integer, got a string`, 400}, // a text is none, in JSON
		{"handleForm", "application/json", `{"i":null}`, `{}`, 200},

		{"handleForm", form, `s=5&i=5&f=5.5&b=true`, `{"b":true,"f":5.5,"i":5,"s":"5"}`, 200},
		{"handleForm", form + "; charset=UTF-8", `s=a+b%26%C3%A9`, `{"s":"a b&é"}`, 200},
		{"handleForm", form, `b=on`, `{"b":true}`, 200},
		{"handleForm", form, `b=false`, `{"b":false}`, 200},
		{"handleForm", form, `b=maybe`, `"b": want a boolean, got a string`, 400},
		{"handleForm", form, `i=9007199254740993&f=-1e3`, `{"f":-1e3,"i":9007199254740993}`, 200},
		{"handleForm", form, `i=five`, `"i": want an integer, got a string`, 400},
		{"handleForm", form, `i=1.5`, `"i": want an integer, got a number`, 400},
		{"handleForm", form, `i=0x10`, `"i": want an integer`, 400},
		{"handleForm", form, `i=true`, `"i": want an integer, got a string`, 400},
		{"handleForm", form, `i=5%0A`, `{"i":5}`, 200},
		{"handleForm", form, `sn=5`, `{"sn":"5"}`, 200}, // a text is what it may be
		{"handleForm", form, `any=5`, `{"any":"5"}`, 200},
		{"handleForm", form, `any=5&any=6`, `{"any":["5","6"]}`, 200},
		{"handleAny", form, `c=x&d=1&c=y`, `{"c":["x","y"],"d":"1"}`, 200}, // a Python method may take any, as **kwargs
		{"handleForm", form, `ni=5`, `{"ni":5}`, 200},
		{"handleForm", form, `list=a&list=b&list=`, `{"list":["a","b",""]}`, 200},
		{"handleForm", form, `list=a`, `{"list":["a"]}`, 200},
		{"handleForm", form, `s=first&s=second`, `{"s":"first"}`, 200},
		{"handleForm", form, `i=1&i=2`, `{"i":1}`, 200},
		{"handleForm", form, `o=%7B%7D`, `"o": want an object, got a string`, 400},
		{"handleForm", form, `S=x&I=5`, `{"I":"5","S":"x"}`, 200},
		{"handleForm", form, `s=%ff`, "{\"s\":\"\uFFFD\"}", 200},
		{"handleForm", form, `s=%zz`, "well-formed", 400},
		{"handleAny", form, `=x&a`, `{"":"x","a":""}`, 200},
		{"handleAny", form, `_webhook=x&%5Fwebhook=y&a=1`, `{"a":"1"}`, 200},
		{"handleAny", form, `payload=%7B%22n%22%3A9007199254740993%2C%22_webhook%22%3A1%7D`, `{"n":9007199254740993}`, 200},
		{"handleAny", form, `payload=%7B%0A%22a%22%3A+%5B1%5D%0A%7D`, `{"a":[1]}`, 200},
		{"handleAny", form, `payload=%7B%22a%22%3A1%7D&z=2`, `{"a":1,"z":"2"}`, 200},
		{"handleAny", form, `payload=text`, `{"payload":"text"}`, 200},
		{"handleAny", form, `payload=%5B1%5D`, `{"payload":"[1]"}`, 200},
		{"handleAny", form, `payload=%7B`, `{"payload":"{"}`, 200},
		{"handleAny", form, `payload=`, `{"payload":""}`, 200},
		{"handlePayload", form, `payload=%7B%22a%22%3A1%7D`, `{"payload":"{\"a\":1}"}`, 200}, // its own parameter
		{"handleNeeds", form, `payload=%7B%22name%22%3A%22x%22%7D`, `{"name":"x"}`, 200},
		{"handleNeeds", form, `payload=%7B%22name%22%3A5%7D`, `"name": want a string`, 400},

		{"handleAny", "text/plain; charset=UTF-8", `{"a":1}`, `{"a":1}`, 200}, // as AWS SNS sends it
		{"handleAny", "text/plain", `a=1`, "JSON", 400},
		{"handleAny", form, `{"a":1,"b":"x&y=z"}`, `{"a":1,"b":"x&y=z"}`, 200}, // as curl -d sends it
		{"handleNeeds", form, `{"name":5}`, `"name": want a string`, 400},
		{"handleNeeds", form, `{"name":"x"`, `"name" is required`, 400},
		{"handleAny", "application/json", `{"_WEBHOOK":{"rawBody":"forged"},"_Webhook":1,"a":1}`, `{"a":1}`, 200},
		{"handleAny", "text/csv", ``, "content type", 415},
		{"handleAny", "application/xml", `<a/>`, "content type", 415},
		{"handleAny", "multipart/form-data", `x`, "well-formed", 400},
		{"handleAny", "multipart/mixed; boundary=b", `x`, "content type", 415},
		{"handleAny", "json", `{}`, "content type", 415},
		{"handleAny", "application/json+x", `{}`, "content type", 415},
		{"handleAny", ";", `{}`, "content type", 415},
	} {
		headers := []string{}
		if row.kind != "" {
			headers = append(headers, "Content-Type: "+row.kind)
		}
		a := d.send(t, "POST", "m/"+row.method, row.body, headers...)
		what := fmt.Sprintf("%s %s %q", row.method, row.kind, row.body)
		if row.status != 200 {
			checkError(t, what, a, row.status)
			if !strings.Contains(stringField(json.RawMessage(a.Body), "error"), row.want) {
				t.Errorf("%s: %s, want %q in it", what, a.Body, row.want)
			}
			continue
		}
		if got := without(a.Body, webhookParam); a.Status != 200 || got != row.want {
			t.Errorf("%s: %d %s\nwant %s", what, a.Status, a.Body, row.want)
		}
		if raw := field(field(json.RawMessage(a.Body), webhookParam), "rawBody"); utf8.ValidString(row.body) && string(raw) != string(quote(row.body)) {
			t.Errorf("%s: rawBody %s", what, raw)
		}
	}
}

// part is one of a multipart form's.
type part struct{ name, file, kind, content string }

func multipartBody(parts ...part) (contentType, body string) {
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	for _, p := range parts {
		h := textproto.MIMEHeader{}
		disposition := fmt.Sprintf(`form-data; name=%q`, p.name)
		if p.file != "" {
			disposition += fmt.Sprintf(`; filename=%q`, p.file)
		}
		h.Set("Content-Disposition", disposition)
		if p.kind != "" {
			h.Set("Content-Type", p.kind)
		}
		to, _ := w.CreatePart(h)
		io.WriteString(to, p.content)
	}
	w.Close()
	return w.FormDataContentType(), b.String()
}

func TestWebhookMultipart(t *testing.T) {
	t.Parallel()
	d := startDaemon(t, bodyModule(t))
	for _, row := range []struct {
		what   string
		method string
		parts  []part
		want   string
		status int
	}{
		{"fields", "handleForm", []part{{"s", "", "", "5"}, {"i", "", "", "5"}, {"b", "", "", "true"}, {"f", "", "", "-0.5"}}, `{"b":true,"f":-0.5,"i":5,"s":"5"}`, 200},
		{"a repeated field", "handleForm", []part{{"s", "", "", "one"}, {"s", "", "", "two"}}, `{"s":"one"}`, 200},
		{"an array", "handleForm", []part{{"list", "", "", "one"}, {"list", "", "", "two"}}, `{"list":["one","two"]}`, 200},
		{"a text file", "handleAny", []part{{"doc", "a.txt", "text/plain", "hé\r\nyou"}}, `{"doc":{"filename":"a.txt","contentType":"text/plain","size":8,"text":"hé\r\nyou"}}`, 200},
		{"a binary file", "handleAny", []part{{"doc", "a.png", "image/png", "\x89PNG\xff"}}, `{"doc":{"filename":"a.png","contentType":"image/png","size":5,"base64":"iVBOR/8="}}`, 200},
		{"an empty file", "handleAny", []part{{"doc", "a", "", ""}}, `{"doc":{"filename":"a","contentType":"","size":0,"text":""}}`, 200},
		{"files in an array", "handleForm", []part{{"list", "a", "", "A"}, {"list", "b", "", "B"}}, `{"list":[{"filename":"a","contentType":"","size":1,"text":"A"},{"filename":"b","contentType":"","size":1,"text":"B"}]}`, 200},
		{"a file for an object", "handleForm", []part{{"o", "a", "x/y", "A"}}, `{"o":{"filename":"a","contentType":"x/y","size":1,"text":"A"}}`, 200},
		{"a file for a text", "handleForm", []part{{"s", "a", "", "A"}}, `"s": want a string, got an object`, 400},
		{"a folder in the file's name", "handleAny", []part{{"doc", "../../etc/x", "", ""}}, `{"doc":{"filename":"x","contentType":"","size":0,"text":""}}`, 200},
		{"a field of a type", "handleAny", []part{{"x", "", "application/json", `{"a":1}`}}, `{"x":"{\"a\":1}"}`, 200},
		{"GitHub's payload", "handleAny", []part{{"payload", "", "", `{"a":1}`}}, `{"a":1}`, 200},
		{"a file named payload", "handleAny", []part{{"payload", "p.json", "", `{}`}}, `{"payload":{"filename":"p.json","contentType":"","size":2,"text":"{}"}}`, 200},
		{"a forged _webhook", "handleAny", []part{{"_webhook", "", "", "x"}, {"_webhook", "f", "", "x"}, {"a", "", "", "1"}}, `{"a":"1"}`, 200},
		{"a field that is no text", "handleAny", []part{{"x", "", "", "a\xff"}}, "{\"x\":\"a\uFFFD\"}", 200},
		{"a missing field", "handleNeeds", []part{{"x", "", "", "a"}}, `"name" is required`, 400},
		{"no part", "handleAny", nil, `{}`, 200},
	} {
		kind, body := multipartBody(row.parts...)
		a := d.send(t, "POST", "m/"+row.method, body, "Content-Type: "+kind)
		if row.status != 200 {
			checkError(t, row.what, a, row.status)
			if !strings.Contains(stringField(json.RawMessage(a.Body), "error"), row.want) {
				t.Errorf("%s: %s, want %q in it", row.what, a.Body, row.want)
			}
			continue
		}
		if got := without(a.Body, webhookParam); a.Status != 200 || got != row.want {
			t.Errorf("%s: %d %s\nwant %s", row.what, a.Status, got, row.want)
		}
		raw := field(field(json.RawMessage(a.Body), webhookParam), "rawBody")
		if text, ok := unquote(raw); utf8.ValidString(body) != ok || ok && text != body {
			t.Errorf("%s: rawBody %s", row.what, raw)
		}
	}
}

func TestWebhookMeta(t *testing.T) {
	t.Parallel()
	d := daemonOptions{env: guarded}.start(t, bodyModule(t))
	before := time.Now().UnixMilli()
	a := d.deliver(t, "m/handleAny?a=1&a=2&b=&c=%C3%A9+x&x-webhook-secret=q", " {\"x\" : 1}\n", shown,
		"X-Multi: one", "X-Multi: two", "X-GitHub-Event: push", "Mixed-CASE: Value", "Cookie: a=b")
	after := time.Now().UnixMilli()
	meta := field(json.RawMessage(a.Body), webhookParam)
	var got struct {
		Method    string
		Headers   map[string]string
		Query     map[string]string
		Timestamp int64
		RawBody   *string
	}
	if err := json.Unmarshal(meta, &got); err != nil {
		t.Fatalf("%v: %s", err, a.Body)
	}
	keys := []string{}
	list, _ := members(meta)
	for _, f := range list {
		keys = append(keys, f.key)
	}
	slices.Sort(keys)
	if want := []string{"headers", "method", "query", "rawBody", "timestamp"}; !slices.Equal(keys, want) {
		t.Errorf("it has %q, want %q", keys, want)
	}
	if got.Method != "POST" || got.RawBody == nil || *got.RawBody != " {\"x\" : 1}\n" {
		t.Errorf("%s", meta)
	}
	if got.Timestamp < before || got.Timestamp > after {
		t.Errorf("timestamp %d is not from %d to %d", got.Timestamp, before, after)
	}
	if want := map[string]string{"a": "1", "b": "", "c": "é x", "x-webhook-secret": "q"}; !maps.Equal(got.Query, want) {
		t.Errorf("query %q, want %q", got.Query, want)
	}
	for name, want := range map[string]string{"x-multi": "one, two", "x-github-event": "push", "mixed-case": "Value", "cookie": "a=b",
		"content-type": "application/json", "content-length": "11"} {
		if got.Headers[name] != want {
			t.Errorf("header %s is %q, want %q", name, got.Headers[name], want)
		}
	}
	for name := range got.Headers {
		if name != strings.ToLower(name) || name == strings.ToLower(secretHeader) {
			t.Errorf("header %q is there", name)
		}
	}
	if strings.Contains(a.Body, testSecret) {
		t.Errorf("the secret reached the method: %s", a.Body)
	}
	for body, want := range map[string]string{"": `""`, "s=\x00%ff": `"s=\u0000%ff"`} {
		a := d.send(t, "POST", "m/handleAny", body, shown, "Content-Type: application/x-www-form-urlencoded")
		if raw := field(field(json.RawMessage(a.Body), webhookParam), "rawBody"); string(raw) != want {
			t.Errorf("rawBody of %q is %s: %s", body, raw, a.Body)
		}
	}
}

// hookLanguages is the same webhooks in all languages: one that returns what it
// gets, one with a path and an answer of its own, one that is signed, one that fails.
var hookLanguages = []struct{ command, file, text string }{
	{"go", "m.usher.go", `//go:build usher

package main

import (
	"encoding/json"
	"errors"
)

type params struct {
	Name string          ` + "`json:\"name\"`" + `
	N    int             ` + "`json:\"n,omitempty\"`" + `
	Hook json.RawMessage ` + "`json:\"_webhook,omitempty\"`" + `
}

// HandleIt takes it.
func HandleIt(p params) params { return p }

type hook struct {
	Hook struct {
		Method string ` + "`json:\"method\"`" + `
	} ` + "`json:\"_webhook\"`" + `
}

// Other takes it too.
//
// @webhook any/path
func Other(p hook) any {
	return map[string]any{"_response": map[string]any{"status": 201, "body": p.Hook.Method}}
}

// @signature github WH_KEY_SIGNING_SECRET
func HandleSigned() int { return 1 }

// HandleFail fails.
func HandleFail() error { return errors.New("no more") }
`},
	{"sh", "m.usher.sh", `# Takes it.
handleIt() { cat; }

# Takes it too.
#
# @webhook any/path
other() { printf '{"_response":{"status":201,"body":"POST"}}'; }

# @signature github WH_KEY_SIGNING_SECRET
handleSigned() { printf 1; }

# Fails.
handleFail() { echo 'no more' >&2; return 3; }
`},
	{"node", "m.usher.mjs", `/** Takes it. */
export function handleIt(params) { return params; }

/**
 * Takes it too.
 * @webhook any/path
 */
export function other({ _webhook }) { return { _response: { status: 201, body: _webhook.method } }; }

/** @signature github WH_KEY_SIGNING_SECRET */
export function handleSigned() { return 1; }

/** Fails. */
export function handleFail() { throw new Error("no more"); }
`},
	{"python3", "m.usher.py", `def handleIt(name: str, n: int = 0, _webhook=None):
    """Takes it."""
    return {"name": name, "n": n, "_webhook": _webhook}


def other(_webhook=None):
    """Takes it too.

    @webhook any/path
    """
    return {"_response": {"status": 201, "body": _webhook["method"]}}


def handleSigned():
    """@signature github WH_KEY_SIGNING_SECRET"""
    return 1


def handleFail():
    """Fails."""
    raise ValueError("no more")
`},
}

func TestWebhookOfLanguages(t *testing.T) {
	t.Parallel()
	for _, row := range hookLanguages {
		t.Run(row.command, func(t *testing.T) {
			t.Parallel()
			if _, err := exec.LookPath(row.command); err != nil {
				if os.Getenv("CI_REQUIRE") != "" {
					t.Fatal(err)
				}
				t.Skip(err)
			}
			dir := t.TempDir()
			write(t, dir+"/"+row.file, row.text)
			d := daemonOptions{env: map[string]string{"WH_KEY_SIGNING_SECRET": "k"}}.start(t, dir, "-webhook-timeout", "60s")
			d.awaitReady(t)
			const body = `{ "name": "é", "n": 7, "_webhook": 1 }`
			a := d.deliver(t, "m/handleIt", body)
			meta := field(json.RawMessage(a.Body), webhookParam)
			if digest([]byte(without(a.Body, webhookParam))) != digest([]byte(`{"name":"é","n":7}`)) || stringField(meta, "rawBody") != body || stringField(meta, "method") != "POST" {
				t.Errorf("%d %s", a.Status, a.Body)
			}
			if a := d.send(t, "POST", "any/path", ""); a.Status != 201 || a.Body != "POST" {
				t.Errorf("any/path: %d %s", a.Status, a.Body)
			}
			checkError(t, "m/other", d.deliver(t, "m/other", `{}`), 404)
			checkError(t, "unsigned", d.deliver(t, "m/handleSigned", `{}`), 401)
			if a := d.deliver(t, "m/handleSigned", `{}`, signed("github", "k", `{}`, time.Now())...); a.Status != 200 || a.Body != "1" {
				t.Errorf("signed: %d %s", a.Status, a.Body)
			}
			a = d.deliver(t, "m/handleFail", `{}`)
			if checkError(t, "a failure", a, 500); !strings.Contains(a.Body, "no more") || strings.Contains(a.Body, dir) {
				t.Errorf("a failure: %s", a.Body)
			}
			c := connect(t, d.URL)
			if list := c.ask("tools/list", ""); strings.Contains(list.Body, webhookParam) || strings.Contains(list.Body, "@webhook") || strings.Contains(list.Body, "@signature") {
				t.Errorf("tools/list: %s", list.Body)
			}
			if a := c.call("m_handleIt", `{"name":"x","_webhook":{"method":"POST"},"_WEBHOOK":{"method":"POST"}}`); strings.Contains(a.Body, "POST") {
				t.Errorf("an MCP client's _webhook: %s", a.Body)
			}
		})
	}
}

func TestWebhookLimit(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	writeTools(t, dir+"/slow.usher", fakeTool{Name: "handleHold", Does: "hold"}, fakeTool{Name: "release", Does: "release"})
	writeTools(t, dir+"/fast.usher", fakeTool{Name: "handleIt"})
	d := daemonOptions{env: guarded}.start(t, dir, "-webhook-limit", "3")
	d.awaitReady(t)
	answers := make(chan answer, 10)
	hold := func(n int) {
		began := strings.Count(d.Log.String(), "fake: began handleHold")
		for range n {
			go func() { answers <- d.deliver(t, "slow/handleHold", `{}`, shown) }()
		}
		await(t, "deliveries in flight", func() bool { return strings.Count(d.Log.String(), "fake: began handleHold") == began+n })
	}
	hold(2)
	for range 20 { // one slow module does not hold up another's deliveries
		if a := d.deliver(t, "fast/handleIt", `{}`, shown); a.Status != 200 {
			t.Errorf("beside a slow module: %d %s", a.Status, a.Body)
		}
	}
	hold(1)
	for _, row := range []struct {
		what, method, path, kind string
		status                   int
	}{
		{"one more", "POST", "slow/handleHold", "application/json", 503},
		{"one more of another module", "POST", "fast/handleIt", "application/json", 503},
		{"an unknown path", "POST", "fast/nothing", "application/json", 404},
		{"another method", "GET", "fast/handleIt", "", 405},
		{"another content type", "POST", "fast/handleIt", "text/plain", 503},
	} {
		a := d.send(t, row.method, row.path, `{}`, "Content-Type: "+row.kind, shown)
		checkError(t, row.what, a, row.status)
		if n, err := strconv.Atoi(a.Header.Get("Retry-After")); (a.Status == 503) != (err == nil && n > 0) {
			t.Errorf("%s: Retry-After %q", row.what, a.Header.Get("Retry-After"))
		}
		checkError(t, row.what+" without the secret", d.send(t, row.method, row.path, `{}`, "Content-Type: "+row.kind), 401)
	}
	// MCP has no such limit, and is how they are let go on.
	if a := connect(t, d.URL).call("slow_release", ""); a.failure() != "" {
		t.Fatalf("release: %s", a.Body)
	}
	for range 3 {
		if a := <-answers; a.Status != 200 {
			t.Errorf("let go on: %d %s", a.Status, a.Body)
		}
	}
	if a := d.deliver(t, "fast/handleIt", `{}`, shown); a.Status != 200 {
		t.Errorf("with places free again: %d %s", a.Status, a.Body)
	}
}

// Deliveries whose bodies do not come hold no places, and whoever has not shown
// the secret is answered after the body, whatever is at the path.
func TestWebhookPlacesAreTakenByWholeDeliveries(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	writeTools(t, dir+"/m.usher", fakeTool{Name: "handleIt"}, fakeTool{Name: "handleSigned", Doc: "@signature github WH_SIGNING_SECRET"})
	d := daemonOptions{env: map[string]string{webhookSecretVar: testSecret, "WH_SIGNING_SECRET": "k"}}.start(t, dir, "-webhook-limit", "1", "-accept-signatures")
	d.awaitReady(t)
	var idle []net.Conn
	for _, path := range []string{"m/handleSigned", "m/handleIt", "no/thing"} {
		conn, err := net.Dial("tcp", strings.TrimSuffix(strings.TrimPrefix(d.URL, "http://"), "/"))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		fmt.Fprintf(conn, "POST /webhook/%s HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{", path)
		idle = append(idle, conn)
	}
	for range 10 {
		if a := d.deliver(t, "m/handleSigned", `{}`, signed("github", "k", `{}`, time.Now())...); a.Status != 200 {
			t.Errorf("beside idle deliveries: %d %s", a.Status, a.Body)
		}
	}
	for _, conn := range idle {
		conn.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
		if n, err := conn.Read(make([]byte, 1)); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("answered before the body was there: %v", err)
		}
		conn.SetReadDeadline(time.Now().Add(patience))
		io.WriteString(conn, "}")
		res, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil || res.StatusCode != 401 {
			t.Errorf("unsigned: %v %v", res, err)
		}
	}
}

func TestWebhookWhileIntrospected(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	writeTools(t, dir+"/known.usher", fakeTool{Name: "handleIt"})
	gates := map[string]net.Listener{} // closed when the module of this name may start
	for _, name := range []string{"late", "later"} {
		gate, err := net.Listen("tcp", "127.0.0.1:0")
		must(t, err)
		defer gate.Close()
		gates[name] = gate
		writeFake(t, dir+"/"+name+".usher", "fixed shared await="+gate.Addr().String(), fakeTool{Name: "handleIt"},
			fakeTool{Name: "handleSigned", Doc: "@signature github WH_KEY_SIGNING_SECRET"})
	}
	d := daemonOptions{env: map[string]string{webhookSecretVar: testSecret, "WH_KEY_SIGNING_SECRET": "k"}}.start(t, dir, "-accept-signatures")
	await(t, "the known module", func() bool { return strings.Contains(d.Out.String(), "ready   known") })
	if a := d.deliver(t, "known/handleIt", `{}`, shown); a.Status != 200 {
		t.Errorf("a known module beside it: %d %s", a.Status, a.Body)
	}
	// One that arrives while it is looked at is answered once it is known.
	late := make(chan answer, 1)
	go func() { late <- d.deliver(t, "late/handleIt", `{}`, shown) }()
	gates["late"].Close()
	answers := make(map[string]chan answer)
	for _, path := range []string{"later/handleIt", "later/handleSigned", "no/thing"} {
		for _, secret := range []bool{true, false} {
			key := fmt.Sprint(path, secret)
			c := make(chan answer, 1)
			answers[key] = c
			go func() {
				headers := []string{"X-Hub-Signature-256: " + gitHubSignature("other", "{}")}
				if secret {
					headers = append(headers, shown)
				}
				c <- d.deliver(t, path, `{}`, headers...)
			}()
		}
	}
	for key, c := range answers {
		if a := <-c; strings.HasSuffix(key, "true") {
			checkError(t, key, a, 503)
			if a.Header.Get("Retry-After") == "" {
				t.Errorf("%s: no Retry-After", key)
			}
		} else {
			checkError(t, key, a, 401)
		}
	}
	if a := <-late; a.Status != 200 {
		t.Errorf("a module that became ready: %d %s", a.Status, a.Body)
	}
	gates["later"].Close()
	d.awaitReady(t)
	checkError(t, "an unknown path, all modules known", d.deliver(t, "no/thing", `{}`, shown), 404)
}

// Many that crash and many that never return leave nothing behind, and do not
// touch those beside them.
func TestWebhookStorm(t *testing.T) {
	dir := t.TempDir()
	writeTools(t, dir+"/bad.usher", fakeTool{Name: "handleCrash", Does: "crash"}, fakeTool{Name: "handleNever", Does: "never"})
	writeTools(t, dir+"/good.usher", fakeTool{Name: "handleIt"})
	before := runtime.NumGoroutine()
	d := daemonOptions{env: guarded}.start(t, dir, "-webhook-timeout", "20s")
	d.awaitReady(t)
	large := strings.Repeat("x", 4<<20-8)
	if a := d.deliver(t, "good/handleIt", `{"a":"`+large+`"}`, shown); a.Status != 200 || len(a.Body) < 4<<20 {
		t.Errorf("4 MiB: %d, %d bytes", a.Status, len(a.Body))
	}
	var wg sync.WaitGroup
	for i := range 60 {
		wg.Go(func() {
			switch i % 3 {
			case 0:
				if a, err := d.try("POST", "bad/handleCrash", `{}`, shown); err != nil || a.Status != 502 {
					t.Errorf("a crash: %d %v", a.Status, err)
				}
			case 1: // ends by the crash of another, or because the sender hangs up
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rand.Intn(200))*time.Millisecond)
				defer cancel()
				req, _ := d.hookRequest("POST", "bad/handleNever", `{}`, shown)
				if res, err := hookClient.Do(req.WithContext(ctx)); err == nil {
					res.Body.Close()
				}
			default:
				if a, err := d.try("POST", "good/handleIt", `{}`, shown); err != nil || a.Status != 200 {
					t.Errorf("beside crashes: %d %v", a.Status, err)
				}
			}
		})
	}
	wg.Wait()
	if a := d.deliver(t, "good/handleIt", `{}`, shown); a.Status != 200 {
		t.Errorf("after all: %d %s", a.Status, a.Body)
	}
	hookClient.CloseIdleConnections()
	http.DefaultClient.CloseIdleConnections()
	d.stop(t)
	await(t, "the goroutines to end", func() bool { return runtime.NumGoroutine() <= before+2 })
}

// drip is a body that comes a little every second, and has no end.
type drip string

func (d drip) Read(p []byte) (int, error) {
	<-time.After(time.Second)
	return copy(p, d), nil
}

// Who is refused is told so at once, and not when a body has come that is not
// wanted: it may never come.
func TestWebhookRefusedBeforeItsBody(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	writeTools(t, dir+"/m.usher", fakeTool{Name: "handleIt"}, fakeTool{Name: "handleSigned", Doc: "@signature github WH_UNSET_SIGNING_SECRET"})
	d := daemonOptions{env: guarded}.start(t, dir)
	d.awaitReady(t)
	var wg sync.WaitGroup
	for _, row := range []struct {
		what, first, headers string
		status               int
	}{
		{"no secret", "POST /webhook/m/handleIt", "", 401},
		{"no secret, and nothing there", "PUT /webhook/x", "", 401},
		{"another method", "PUT /webhook/m/handleIt", shown + "\r\n", 405},
		{"nothing there", "POST /webhook/x", shown + "\r\n", 404},
		{"no key", "POST /webhook/m/handleSigned", shown + "\r\n", 503},
		{"another content type", "POST /webhook/m/handleIt", shown + "\r\nContent-Type: text/csv\r\n", 415},
		{"a foreign origin", "POST /webhook/m/handleIt", "Origin: https://evil.example\r\n", 403},
	} {
		wg.Go(func() {
			begin := time.Now()
			a := d.raw(t, row.first+" HTTP/1.1\r\nHost: localhost\r\n"+row.headers+"Content-Length: 1000\r\n\r\n{", drip(" "))
			checkError(t, row.what, a, row.status)
			if took := time.Since(begin); took > bodyTimeout/2 {
				t.Errorf("%s: told after %v", row.what, took)
			}
		})
	}
	wg.Wait()
}

// A body that does not arrive, slowly or not at all.
func TestWebhookEndlessBody(t *testing.T) {
	slow(t)
	t.Parallel()
	dir := t.TempDir()
	writeTools(t, dir+"/m.usher", fakeTool{Name: "handleIt"}, fakeTool{Name: "handleSigned", Doc: "@signature github WH_KEY_SIGNING_SECRET"}, fakeTool{Name: "runs", Does: "runs"})
	d := daemonOptions{env: map[string]string{webhookSecretVar: testSecret, "WH_KEY_SIGNING_SECRET": "k"}}.start(t, dir, "-accept-signatures")
	d.awaitReady(t)
	var wg sync.WaitGroup
	for _, row := range []struct {
		what, head string
		status     int
	}{
		{"half a body", "POST /webhook/m/handleIt HTTP/1.1\r\nHost: localhost\r\n" + shown + "\r\nContent-Length: 1000\r\n\r\n{", 408},
		{"a body without end", "POST /webhook/m/handleIt HTTP/1.1\r\nHost: localhost\r\n" + shown + "\r\nTransfer-Encoding: chunked\r\n\r\n", 408},
		{"half a body to be verified", "POST /webhook/m/handleSigned HTTP/1.1\r\nHost: localhost\r\n" + shown + "\r\nContent-Length: 1000\r\n\r\n{", 408},
		{"half a body without the secret", "POST /webhook/m/handleIt HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{", 401},
		{"half a body that should stand in for the secret", "POST /webhook/m/handleSigned HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{", 401},
	} {
		wg.Go(func() {
			rest := drip(" ")
			if strings.Contains(row.head, "chunked") {
				rest = "1\r\n \r\n"
			}
			checkError(t, row.what, d.raw(t, row.head, rest), row.status)
		})
	}
	wg.Wait()
	if n := d.runs(t, "m", "handleIt") + d.runs(t, "m", "handleSigned"); n != 0 {
		t.Errorf("a method ran %d times", n)
	}
	if a := d.deliver(t, "m/handleIt", `{}`, shown); a.Status != 200 {
		t.Errorf("after all: %d %s", a.Status, a.Body)
	}
}

// fuzzMethod asks for every type that a form may fill in.
func fuzzMethod(f *testing.F) *Method {
	m, _, err := parseMethod(object{{"name", quote("handleForm")}, {"inputSchema", formSchema}}.encode(), docRules{Hooks: true})
	if err != nil {
		f.Fatal(err)
	}
	return m
}

// checkParams checks that parameters are such as can be sent to a module, and
// that those which pass the check are of the types that the schema has.
func checkParams(t *testing.T, m *Method, list object) {
	t.Helper()
	arguments := list.set(webhookParam, json.RawMessage(`{"true":1}`)).encode()
	if err := checkJSON(arguments, "it"); err != nil {
		t.Fatalf("%v: %q", err, arguments)
	}
	if bytes.ContainsAny(encodeRequest(json.RawMessage("1"), "tools/call", object{{"arguments", arguments}}.encode()), "\n\r") {
		t.Fatalf("not one line: %q", arguments)
	}
	var got map[string]any
	numbers := json.NewDecoder(bytes.NewReader(arguments))
	numbers.UseNumber() // they may be larger than a float64
	if err := numbers.Decode(&got); err != nil {
		t.Fatalf("%v: %q", err, arguments)
	}
	if hook, ok := got[webhookParam].(map[string]any); !ok || hook["true"] != json.Number("1") {
		t.Fatalf("%s was forged: %q", webhookParam, arguments)
	}
	if _, err := m.checkArguments(arguments); err != nil {
		return
	}
	for name, types := range map[string]string{"s": "string", "i": "json.Number", "f": "json.Number", "b": "bool", "list": "[]interface {}", "o": "map[string]interface {}"} {
		if v := got[name]; v != nil && fmt.Sprintf("%T", v) != types {
			t.Fatalf("parameter %s is %T: %q", name, v, arguments)
		}
	}
}

func FuzzWebhookForm(f *testing.F) {
	for _, s := range []string{"", "s=5&i=5&f=5.5&b=true", "i=5%0A&list=a&list=b", "payload=%7B%22a%22%3A1%7D&_webhook=1", "payload=%7B%22_webhook%22%3A1%7D",
		"s=%zz", "a;b", "i=1e999&b=on", "=&=", "s=%ff", "o=%7B%7D", "i=-", "i=%20"} {
		f.Add([]byte(s))
	}
	m := fuzzMethod(f)
	f.Fuzz(func(t *testing.T, body []byte) {
		if list, err := parameters(formType, "", body, m); err == nil {
			checkParams(t, m, list)
		}
	})
}

func FuzzWebhookMultipart(f *testing.F) {
	const boundary = "b"
	for _, s := range []string{"", "--b--", "--b--\r\n", "--b\r\n\r\nx\r\n--b--", "--b\nContent-Disposition: form-data; name=i\n\n5\n--b--\n",
		"--b\r\nContent-Disposition: form-data; name=\"o\"; filename=\"a\"\r\nContent-Type: x/y\r\n\r\n\xff\r\n--b--\r\n",
		"--b\r\nContent-Disposition: form-data; name=payload\r\nContent-Transfer-Encoding: quoted-printable\r\n\r\n=7B=7D\r\n--b--\r\n",
		"--b\r\nContent-Disposition: form-data; name*=utf-8''%ff\r\n\r\n\r\n--b--\r\n"} {
		f.Add([]byte(s))
	}
	m := fuzzMethod(f)
	f.Fuzz(func(t *testing.T, body []byte) {
		if list, err := parameters(multipartType, boundary, body, m); err == nil {
			checkParams(t, m, list)
		}
	})
}
