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
	"net/http/httptest"
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

func TestWebhookAnswers(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	writeTools(t, dir+"/m.usher", fakeTool{Name: "handleIt", Does: "result"}, fakeTool{Name: "handleFault", Does: "fault"})
	d := startDaemon(t, dir)
	const isJSON, isText = "application/json", "text/plain; charset=utf-8"
	text := func(s string) string { return string(toolResult(quote(s))) }
	object := func(s string) string { return string(toolResult(json.RawMessage(s))) }
	for _, row := range []struct {
		what, result string
		status       int
		kind, body   string
	}{
		{"an object", object(`{"challenge":"x","n":9007199254740993}`), 200, isJSON, `{"challenge":"x","n":9007199254740993}`},
		{"an object without its text", `{"content":[],"structuredContent":{"a":1}}`, 200, isJSON, `{"a":1}`},
		{"an object that is not its text", `{"content":[{"type":"text","text":"for people"}],"structuredContent":{"a":1}}`, 200, isJSON, `{"a":1}`},
		{"an empty object", object(`{}`), 200, isJSON, `{}`},
		{"an array", text(`[1,2]`), 200, isJSON, `[1,2]`},
		{"an object as text", text(`{"a":1}`), 200, isJSON, `{"a":1}`},
		{"an object as text, spaced", text("\n {\"a\": 1}\n"), 200, isJSON, "\n {\"a\": 1}\n"},
		{"a text", text(`hello`), 200, isText, `hello`},
		{"a text that begins as an object", text(`{oops`), 200, isText, `{oops`},
		{"markup", text(`<script>1</script>`), 200, isText, `<script>1</script>`},
		{"a number", text(`42`), 200, isText, `42`},
		{"a quoted text", text(`"x"`), 200, isText, `"x"`},
		{"two texts", `{"content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}`, 200, isText, "a\nb"},
		{"nothing", `{"content":[]}`, 204, "", ""},
		{"an empty text", text(""), 204, "", ""},
		{"no content at all", `{}`, 204, "", ""},
		{"an image", `{"content":[{"type":"image","data":"AA==","mimeType":"image/png"}]}`, 200, isJSON, `{"type":"image","data":"AA==","mimeType":"image/png"}`},
		{"no structured content", `{"content":[{"type":"text","text":"a"}],"structuredContent":null}`, 200, isText, "a"},
		{"a failure", `{"content":[{"type":"text","text":"it \"broke\""}],"isError":true}`, 500, isJSON, `{"error":"it \"broke\""}` + "\n"},
		{"a failure with a _response", `{"content":[{"type":"text","text":"{\"_response\":{\"status\":200}}"}],"isError":true}`, 500, isJSON, `{"error":"{\"_response\":{\"status\":200}}"}` + "\n"},

		{"_response: a status", object(`{"_response":{"status":201}}`), 201, "", ""},
		{"_response: nothing", object(`{"_response":{}}`), 200, "", ""},
		{"_response: a text", object(`{"_response":{"body":"hi"}}`), 200, isText, "hi"},
		{"_response: an empty text", object(`{"_response":{"body":""}}`), 200, "", ""},
		{"_response: an object", object(`{"_response":{"body":{"n":9007199254740993}}}`), 200, isJSON, `{"n":9007199254740993}`},
		{"_response: an array", object(`{"_response":{"body":[1]}}`), 200, isJSON, `[1]`},
		{"_response: a number", object(`{"_response":{"body":5}}`), 200, isJSON, `5`},
		{"_response: false", object(`{"_response":{"body":false}}`), 200, isJSON, `false`},
		{"_response: null", object(`{"_response":{"body":null}}`), 200, "", ""},
		{"_response: a type", object(`{"_response":{"headers":{"content-type":"text/html"},"body":"<p>"}}`), 200, "text/html", "<p>"},
		{"_response: as text", text(`{"_response":{"status":202,"body":"x"}}`), 202, isText, "x"},
		{"_response: 204 with a body", object(`{"_response":{"status":204,"body":"x"}}`), 204, isText, ""},
		{"_response: 304", object(`{"_response":{"status":304}}`), 304, "", ""},
		{"_response: 404", object(`{"_response":{"status":404,"body":{"a":1}}}`), 404, isJSON, `{"a":1}`},
		{"_response: 503", object(`{"_response":{"status":503}}`), 503, "", ""},
		{"_response: 599", object(`{"_response":{"status":599}}`), 599, "", ""},
		{"_response: a redirect", object(`{"_response":{"status":302,"headers":{"Location":"https://example.com/"}}}`), 302, "", ""},
		{"_response in an array", text(`[{"_response":{"status":201}}]`), 200, isJSON, `[{"_response":{"status":201}}]`},
		{"_response below", object(`{"a":{"_response":{"status":201}}}`), 200, isJSON, `{"a":{"_response":{"status":201}}}`},

		{"a _response that is no object", object(`{"_response":5}`), 502, isJSON, ``},
		{"a _response that is null", object(`{"_response":null}`), 502, isJSON, ``},
		{"a status of text", object(`{"_response":{"status":"200"}}`), 502, isJSON, ``},
		{"a status too low", object(`{"_response":{"status":199}}`), 502, isJSON, ``},
		{"a status that is informational", object(`{"_response":{"status":101}}`), 502, isJSON, ``},
		{"a status too high", object(`{"_response":{"status":600}}`), 502, isJSON, ``},
		{"a status with a fraction", object(`{"_response":{"status":200.5}}`), 502, isJSON, ``},
		{"a huge status", object(`{"_response":{"status":99999999999999999999}}`), 502, isJSON, ``},
		{"headers that are a list", object(`{"_response":{"headers":["a"]}}`), 502, isJSON, ``},
		{"a header that is a number", object(`{"_response":{"headers":{"a":1}}}`), 502, isJSON, ``},
		{"a header with a line break", object(`{"_response":{"headers":{"a":"x\r\nSet-Cookie: y"}}}`), 502, isJSON, ``},
		{"a header with a control character", object(`{"_response":{"headers":{"a":"x\u0001y"}}}`), 502, isJSON, ``},
		{"a header with a DEL", object(`{"_response":{"headers":{"a":"x\u007f"}}}`), 502, isJSON, ``},
		{"a header's name with a space", object(`{"_response":{"headers":{"a b":"x"}}}`), 502, isJSON, ``},
		{"a header's name with a colon", object(`{"_response":{"headers":{"a:":"x"}}}`), 502, isJSON, ``},
		{"a header's name with a line break", object(`{"_response":{"headers":{"a\nb":"x"}}}`), 502, isJSON, ``},
		{"a header without a name", object(`{"_response":{"headers":{"":"x"}}}`), 502, isJSON, ``},
		{"the connection's header", object(`{"_response":{"headers":{"transfer-encoding":"chunked"}}}`), 502, isJSON, ``},
		{"the body's length", object(`{"_response":{"headers":{"content-length":"1"},"body":"xyz"}}`), 502, isJSON, ``},
		{"a member of another name", object(`{"_response":{"code":200}}`), 502, isJSON, ``},
	} {
		a := d.deliver(t, "m/handleIt", `{"result":`+row.result+`}`)
		if row.status == 502 {
			checkError(t, row.what, a, 502)
			continue
		}
		if a.Status != row.status || a.Header.Get("Content-Type") != row.kind || a.Body != row.body {
			t.Errorf("%s: %d %q %q\nwant %d %q %q", row.what, a.Status, a.Header.Get("Content-Type"), a.Body, row.status, row.kind, row.body)
		}
		if a.Header.Get(requestIDHeader) == "" || a.Header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s: headers %v", row.what, a.Header)
		}
	}
	a := d.deliver(t, "m/handleIt", `{"result":`+object(`{"_response":{"headers":{"x-own":"a\tb","Retry-After":"5","location":"/x"}}}`)+`}`)
	for name, want := range map[string]string{"X-Own": "a\tb", "Retry-After": "5", "Location": "/x"} {
		if a.Header.Get(name) != want {
			t.Errorf("header %s is %q", name, a.Header.Get(name))
		}
	}
	checkError(t, "a protocol error", d.deliver(t, "m/handleFault", `{"code":-32603,"message":"inside"}`), 500)
	a = d.deliver(t, "m/handleFault", `{"code":-32602,"message":"bad name"}`)
	if checkError(t, "a refused parameter", a, 400); a.Body != `{"error":"bad name"}`+"\n" {
		t.Errorf("a refused parameter: %s", a.Body)
	}
}

func TestWebhookFailures(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	writeTools(t, dir+"/m.usher", fakeTool{Name: "handleIt"}, fakeTool{Name: "handleCrash", Does: "crash"},
		fakeTool{Name: "handleNever", Does: "never"}, fakeTool{Name: "handleHold", Does: "hold"})
	writeTools(t, dir+"/other.usher", fakeTool{Name: "handleHold", Does: "hold"})
	d := startDaemon(t, dir, "-webhook-timeout", "1s")
	d.awaitReady(t)
	checkError(t, "a crash", d.deliver(t, "m/handleCrash", `{}`), 502)
	if a := d.deliver(t, "m/handleIt", `{}`); a.Status != 200 {
		t.Errorf("after a crash: %d %s", a.Status, a.Body)
	}
	checkError(t, "a method that never returns", d.deliver(t, "m/handleNever", `{}`), 504)
	await(t, "the module to be told", func() bool { return strings.Contains(d.Log.String(), "fake: cancelled handleNever") })

	// A crash fails those that wait at once.
	held := make(chan answer, 1)
	go func() { held <- d.deliver(t, "m/handleHold", `{}`) }()
	await(t, "the delivery", func() bool { return strings.Contains(d.Log.String(), "fake: began handleHold") })
	checkError(t, "a crash", d.deliver(t, "m/handleCrash", `{}`), 502)
	checkError(t, "a crash beside it", <-held, 502)

	// A client that hangs up ends the call.
	ctx, hangUp := context.WithCancel(t.Context())
	req, err := d.hookRequest("POST", "other/handleHold", `{}`)
	if err != nil {
		t.Fatal(err)
	}
	gone := make(chan error, 1)
	began := strings.Count(d.Log.String(), "fake: began handleHold")
	go func() {
		_, err := hookClient.Do(req.WithContext(ctx))
		gone <- err
	}()
	await(t, "the delivery", func() bool { return strings.Count(d.Log.String(), "fake: began handleHold") > began })
	hangUp()
	<-gone
	await(t, "the module to be told", func() bool { return strings.Contains(d.Log.String(), "fake: cancelled handleHold") })
}

// A module that can't start, and one whose calls are bounded more tightly than
// deliveries are.
func TestWebhookCantStart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	writeTools(t, dir+"/m.usher", fakeTool{Name: "handleIt"}, fakeTool{Name: "handleNever", Does: "never"})
	d := startDaemon(t, dir, "-call-timeout", "300ms")
	d.awaitReady(t)
	checkError(t, "no answer within -call-timeout", d.deliver(t, "m/handleNever", `{}`), 504)
	base := d.Base
	d.stop(t)
	// The cache has what it offers; its program is gone.
	file, err := os.Stat(dir + "/m.usher")
	if err != nil {
		t.Fatal(err)
	}
	gone := slices.Repeat([]byte("#"), int(file.Size()))
	copy(gone, "#!/nonexistent/program\n")
	if err := os.WriteFile(dir+"/m.usher", gone, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(dir+"/m.usher", file.ModTime(), file.ModTime()); err != nil {
		t.Fatal(err)
	}
	d = daemonOptions{base: base}.start(t, dir)
	d.awaitReady(t)
	checkError(t, "a module that can't start", d.deliver(t, "m/handleIt", `{}`), 502)
	if a := d.deliver(t, "m/handleIt", `{}`); a.Status != 502 || strings.Contains(a.Body, dir) {
		t.Errorf("again: %d %s", a.Status, a.Body)
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

// A delivery is one line, which says who, what and how it ended, and nothing
// of what was sent.
func TestWebhookLog(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	writeTools(t, dir+"/m.usher", fakeTool{Name: "handleIt", Schema: json.RawMessage(`{"type":"object","properties":{"n":{"type":"integer"}}}`)},
		fakeTool{Name: "handleResult", Does: "result"}, fakeTool{Name: "handleFault", Does: "fault"}, fakeTool{Name: "handleCrash", Does: "crash"},
		fakeTool{Name: "handleSigned", Doc: "@signature github WH_KEY_SIGNING_SECRET"}, fakeTool{Name: "handleBadKey", Doc: "@signature standard WH_BADKEY_SIGNING_SECRET"})
	d := daemonOptions{env: map[string]string{webhookSecretVar: testSecret, "WH_KEY_SIGNING_SECRET": "MARK-key", "WH_BADKEY_SIGNING_SECRET": "MARK not base64"}}.start(t, dir, "-log", "json")
	d.awaitReady(t)
	for _, row := range []struct {
		what, method, path, body string
		headers                  []string
		status                   int
		module, tool             string
		bytes                    int
	}{
		{"done", "POST", "m/handleIt?q=MARK-query", `{"a":"MARK-body"}`, nil, 200, "m", "handleIt", 17},
		{"no secret", "POST", "m/handleIt?q=MARK-query", `{"a":"MARK-body"}`, []string{secretHeader + ": MARK-wrong"}, 401, "", "", 0},
		{"another method", "GET", "m/handleIt?q=MARK-query", ``, nil, 405, "", "", 0},
		{"unknown", "POST", "m/x?q=MARK-query", `{"a":"MARK-body"}`, nil, 404, "", "", 0},
		{"malformed", "POST", "m/handleIt", `{"a":"MARK-body"`, nil, 400, "m", "handleIt", 16},
		{"wrong type", "POST", "m/handleIt", `{"n":"MARK-body"}`, nil, 400, "m", "handleIt", 17},
		{"failed", "POST", "m/handleResult", `{"result":{"isError":true,"content":[{"type":"text","text":"no such user: MARK-body"}]}}`, nil, 500, "m", "handleResult", 88},
		{"refused by the module", "POST", "m/handleFault", `{"code":-32602,"message":"parameter \"x\": MARK-body"}`, nil, 400, "m", "handleFault", 54},
		{"an error of the module", "POST", "m/handleFault", `{"code":-32000,"message":"MARK-body"}`, nil, 500, "m", "handleFault", 37},
		{"bad _response", "POST", "m/handleResult", `{"result":{"structuredContent":{"_response":{"MARK-body":1}}}}`, nil, 502, "m", "handleResult", 62},
		{"crashed", "POST", "m/handleCrash", `{}`, nil, 502, "m", "handleCrash", 2},
		{"badly signed", "POST", "m/handleSigned", `{"a":"MARK-body"}`, []string{"X-Hub-Signature-256: sha256=MARK"}, 401, "m", "handleSigned", 17},
		{"a bad key", "POST", "m/handleBadKey", `{"a":"MARK-body"}`, []string{"Webhook-Id: x"}, 503, "m", "handleBadKey", 0},
	} {
		before := d.Log.String()
		headers := append([]string{"Cookie: MARK-cookie", "User-Agent: MARK-agent"}, row.headers...)
		if !strings.Contains(strings.Join(headers, "\n"), secretHeader) {
			headers = append(headers, shown)
		}
		a := d.send(t, row.method, row.path, row.body, headers...)
		if a.Status != row.status {
			t.Errorf("%s: status %d: %s", row.what, a.Status, a.Body)
		}
		var lines []map[string]any
		await(t, row.what+" in the log", func() bool {
			lines = nil
			for line := range strings.Lines(strings.TrimPrefix(d.Log.String(), before)) {
				var l map[string]any
				if json.Unmarshal([]byte(line), &l) == nil && l["id"] == a.Header.Get(requestIDHeader) {
					lines = append(lines, l)
				}
			}
			return len(lines) > 0
		})
		if len(lines) != 1 {
			t.Errorf("%s: %d lines", row.what, len(lines))
		}
		l := lines[0]
		module, _ := l["module"].(string)
		tool, _ := l["method"].(string)
		remote, _ := l["remote"].(string)
		took, timed := l["took"].(float64)
		if l["msg"] != "delivery" || l["status"] != float64(row.status) || module != row.module || tool != row.tool || !timed || took < 0 || !strings.HasPrefix(remote, "127.0.0.1:") {
			t.Errorf("%s: %v", row.what, l)
		}
		if l["bytes"] != float64(row.bytes) {
			t.Errorf("%s: bytes %v, want %d", row.what, l["bytes"], row.bytes)
		}
	}
	for line := range strings.Lines(d.Log.String()) {
		if strings.Contains(line, "MARK") || strings.Contains(line, testSecret) {
			t.Errorf("the log has what was sent: %s", line)
		}
	}
	if !strings.Contains(d.Log.String(), "base64") {
		t.Error("the log does not say that a key is not one")
	}
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

// What a method says to answer is an HTTP answer, or is refused as none.
func FuzzWebhookOwnAnswer(f *testing.F) {
	for _, s := range []string{`{}`, `{"status":204,"body":"x"}`, `{"headers":{"a":"b","A":"c\t"},"body":[1]}`, `{"headers":{"a":"x\r\ny"}}`, `{"headers":{"content-length":"1"}}`,
		`{"status":1e2}`, `{"status":-0}`, `{"status":"200"}`, `{"headers":{"\u00e9":"x"}}`, `{"headers":{"a":"\u0001"}}`, `{"body":null}`, `5`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if checkJSON([]byte(s), "it") != nil {
			return
		}
		a, err := ownAnswer(bytes.TrimSpace(json.RawMessage(s)))
		if e := (*httpError)(nil); err != nil {
			if !errors.As(err, &e) || e.Status != http.StatusBadGateway {
				t.Fatalf("%s: %v", s, err)
			}
			return
		}
		w := httptest.NewRecorder()
		a.write(w)
		var wire bytes.Buffer
		if err := w.Result().Write(&wire); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
		in, err := http.ReadResponse(bufio.NewReader(&wire), nil)
		if err != nil || in.StatusCode != a.Status {
			t.Fatalf("%s: %v %+v", s, err, a)
		}
		for name := range a.Headers {
			if got, want := in.Header.Values(name), w.Header().Get(name); len(got) != 1 || got[0] != strings.Trim(want, " \t") {
				t.Fatalf("%s: header %q came as %q", s, name, got)
			}
		}
	})
}
