// Tests of webhook.go: the parameters that a method receives from a delivery, in all languages.

package main

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html"
	"io"
	"mime/multipart"
	"net/textproto"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"usher/internal/mcptest"
)

// formSchema has a parameter of every type that a form may fill in.
const formSchema = `{"type":"object","properties":{
	"s":{"type":"string"},"i":{"type":"integer"},"f":{"type":"number"},"b":{"type":"boolean"},
	"list":{"type":"array"},"o":{"type":"object"},"any":{}}}`

// startBodies runs a daemon whose module m has methods with these parameters.
func startBodies(t *testing.T, env map[string]string) *testDaemon {
	t.Helper()
	payload := `{"type":"object","properties":{"payload":{"type":"string"}}}`
	needs := `{"type":"object","properties":{"name":{"type":"string"},"_webhook":{}},` +
		`"required":["name","_webhook"]}`
	strict := `{"type":"object","properties":{"o":{"type":"object","additionalProperties":false}},` +
		`"additionalProperties":false}`
	return daemonOptions{env: env}.startTools(t, "", "handleAny",
		"handleForm "+formSchema,
		"handlePayload "+payload,
		"handleNeeds "+needs,
		"handleStrict "+strict)
}

// wantArguments checks what reached a method without _webhook or, if status is an error,
// that the error contains want. The rawBody has to be the body.
func wantArguments(t *testing.T, a answer, status int, body, want string) {
	t.Helper()
	if status != 200 {
		checkError(t, "answer", a, status)
		checkContains(t, "error", stringField(a.Body, "error"), want)
		return
	}
	wantStatus(t, "answer", a, status)
	check(t, "arguments", without(a.Body, webhookParam), want)
	raw, isText := unquote(field(a.Body, webhookParam, "rawBody"))
	check(t, "has a rawBody", isText, utf8.ValidString(body))
	if !isText {
		decoded, _ := base64.StdEncoding.DecodeString(stringField(field(a.Body, webhookParam), "rawBase64"))
		raw = string(decoded)
	}
	check(t, "rawBody or rawBase64", raw, body)
}

// The fields of a JSON object or a form become the parameters, by the content type and the
// schema.
func TestWebhookBodyBecomesParameters(t *testing.T) {
	long(t)
	d := startBodies(t, nil)
	deliver := func(t *testing.T, method, kind, body, want string, status int) {
		t.Run(fmt.Sprintf("%s %s %q", method, kind, body), func(t *testing.T) {
			var headers []string
			if kind != "" {
				headers = []string{"Content-Type: " + kind}
			}
			wantArguments(t, d.send(t, "POST", "m/handle"+method, body, headers...), status,
				body, want)
		})
	}
	for _, kind := range []string{
		"", "application/json; charset=utf-8", "APPLICATION/JSON",
		"application/vnd.api+json; version=1",
		"text/plain; charset=UTF-8",                  // as AWS SNS sends it
		"application/json; charset", isJSON + "; =x", // what is malformed in a parameter is ignored
		formType, // as curl -d sends it
	} {
		deliver(t, "Any", kind, `{"a":"x&y=z"}`, `{"a":"x&y=z"}`, 200)
	}
	for _, kind := range []string{"", isJSON, formType, "multipart/form-data; boundary=b"} {
		deliver(t, "Any", kind, ``, `{}`, 200)
	}
	for _, kind := range []string{"text/csv", "multipart/mixed; boundary=b",
		"application/json+x", "application/json, text/plain", "json", "; charset=utf-8"} {
		deliver(t, "Any", kind, `{}`, "content type", 415)
	}
	for _, kind := range []string{"", isJSON, "text/plain"} {
		deliver(t, "Any", kind, `a=1`, "JSON", 400)
	}
	deliver(t, "Any", formType+"; charset", `a=1`, `{"a":"1"}`, 200)
	deliver(t, "Any", "multipart/form-data", `x`, "well-formed", 400)
	deliver(t, "Any", "multipart/form-data; boundary==b", "--=b--", "well-formed", 400)
	for _, body := range []string{
		`{}`, `{"n":9007199254740993,"f":1.10,"e":1e400,"z":-0}`,
		`{"n":123456789012345678901234567890}`,
		`{"a":1,"A":2,"a ":3}`, `{"a":1,"a":2}`, `{"é":"\u00e9","t":"\ud83d\ude00\u2028"}`,
		`{"a":null,"":{"__proto__":1}}`,
	} {
		deliver(t, "Any", isJSON, body, body, 200)
	}
	deliver(t, "Any", isJSON, "\ufeff{\"a\":1}", `{"a":1}`, 200)
	deliver(t, "Any", isJSON, "\ufeff[1]", `{"items":[1]}`, 200)
	deliver(t, "Any", isJSON, "\ufeff", `{}`, 200)
	for _, coding := range []string{"gzip", "br", "GZIP", "identity, gzip", "utf-8"} {
		a := d.send(t, "POST", "m/handleAny", `{}`, "Content-Encoding: "+coding)
		wantArguments(t, a, 415, `{}`, coding)
	}
	a := d.send(t, "POST", "m/handleAny", `{"a":1}`, "Content-Encoding: Identity")
	wantArguments(t, a, 200, `{"a":1}`, `{"a":1}`)
	type row struct{ method, body, want string } // the arguments, or a part of the error
	deliverAll := func(kind string, rows []row) {
		for _, row := range rows {
			status := 200
			if row.want[0] != '{' {
				status = 400
			}
			deliver(t, row.method, kind, row.body, row.want, status)
		}
	}
	deliverAll(isJSON, []row{
		{"Any", "{\r\n  \"a\" : [ 1,\n 2 ] }\n", `{"a":[1,2]}`},
		{"Any", `{"_webhook":1,"a":1,"\u005fwebhook":2}`, `{"a":1}`},
		{"Any", `{"_WEBHOOK":{"rawBody":"forged"},"_Webhook":1,"a":1}`, `{"a":1}`},
		{"Any", `{`, "JSON"},
		{"Any", "{\"a\":\"\xff\"}", "UTF-8"},
		{"Any", `null`, "must be a JSON object or array"},
		{"Any", " [ {\"a\":1.10},\n2]\n", `{"items":[{"a":1.10},2]}`},
		{"Any", `[1],"x":2`, "JSON"},
		{"Needs", `["x"]`, `"name" is required`},
		{"Strict", `{"new":1,"o":{},"O":2}`, `{"new":1,"o":{}}`}, // senders add fields
		{"Strict", `{"o":{"new":1}}`, `"o.new" is unknown`},
		{"Needs", `{"x":1}`, `"name" is required`},
		{"Needs", `{"name":5}`, `"name": want string, got integer`},
		{"Needs", `{"NAME":5,"name":"x","Name":"y"}`, `{"name":"x"}`},
		{"Form", `{"i":"5"}`, `"i": want integer, got string`}, // unlike in a form
	})
	deliverAll(formType+"; charset=UTF-8", []row{
		{"Form", `s=5&i=5&f=5.5&b=true`, `{"b":true,"f":5.5,"i":5,"s":"5"}`},
		{"Form", `s=a+b%26%C3%A9`, `{"s":"a b&é"}`},
		{"Form", `b=on`, `{"b":true}`},
		{"Form", `i=9007199254740993&f=-1e3`, `{"f":-1e3,"i":9007199254740993}`},
		{"Form", `i=5%0A`, `{"i":5}`},
		{"Form", `o=%7B%22a%22:%0A1%7D`, `{"o":{"a":1}}`},
		{"Form", `i=`, `{}`},
		{"Form", `any=5&any=6`, `{"any":["5","6"]}`},
		{"Any", `c=x&d=1&c=y`, `{"c":["x","y"],"d":"1"}`}, // a Python method may take any, as **kwargs
		{"Form", `list=a&list=b&list=`, `{"list":["a","b",""]}`},
		{"Form", `list[]=a&list%5B%5D=b`, `{"list":["a","b"]}`}, // as PHP and jQuery name lists
		{"Form", `list[]=a`, `{"list":["a"]}`},
		{"Form", `list[]=a&list=b`, `{"list":["b","a"]}`},
		{"Any", `a[]=x&b[c]=y&[]=z&d[0]=w`, `{"":"z","a":"x","b[c]":"y","d[0]":"w"}`},
		{"Form", `i=1&i=2`, `"i": want integer, got array`},
		{"Form", `s=a&s=b`, `"s": want string, got array`},
		{"Form", `b=false&b=on`, `{"b":true}`}, // a checkbox after its hidden field
		{"Form", `b=0&b=1`, `{"b":true}`},      // of Rails
		{"Form", `b=1`, `{"b":true}`},
		{"Form", `b=FALSE`, `{"b":false}`},
		{"Form", `b=yes`, `"b": want boolean, got string`},
		{"Form", `i=1&f=1&s=1&list=1`, `{"f":1,"i":1,"list":["1"],"s":"1"}`},
		{"Form", `s=1&s=true`, `"s": want string, got array`},
		{"Any", `a=x;y&b;=1;2`, `{"a":"x;y","b;":"1;2"}`},
		{"Form", `list=%5B1,2%5D`, `{"list":[1,2]}`},
		{"Form", `s=%ff`, `"s": want string, got object`},
		{"Any", `s=%ff`, `{"s":{"base64":"/w=="}}`},
		{"Any", `%ff=1`, "names in UTF-8"},
		{"Any", `s=%a4&charset=gb2312`, `{"charset":"gb2312","s":{"base64":"pA=="}}`},
		{"Any", "\ufeffa=1&b=\ufeff", "{\"a\":\"1\",\"b\":\"\ufeff\"}"},
		{"Any", `payload=%EF%BB%BF{"a":1}&b=2`, `{"a":1}`},
		{"Any", `payload={"a":1}&payload={}`, `{"payload":["{\"a\":1}","{}"]}`},
		{"Any", ` [{"a":1}]`, `{"items":[{"a":1}]}`},
		{"Any", `[a=1`, `{"[a":"1"}`},
		{"Form", `s=%zz`, "well-formed"},
		{"Any", `=x&a`, `{"":"x","a":""}`},
		{"Any", `_webhook=x&%5Fwebhook=y&a=1`, `{"a":"1"}`},
		{"Any", `_webhook[]=x&_WEBHOOK%5B%5D=y&a=1`, `{"a":"1"}`},
		{"Any", `payload=%7B%22n%22%3A9007199254740993%2C%22_webhook%22%3A1%7D`,
			`{"n":9007199254740993}`},
		{"Any", `payload=%5B1%5D`, `{"payload":"[1]"}`},
		{"Any", `payload=%7B`, `{"payload":"{"}`},
		{"Payload", `payload=%7B%22a%22%3A1%7D`, `{"payload":"{\"a\":1}"}`}, // its own parameter
		{"Needs", ` {"name":"x"`, "the body is not valid JSON"},
	})
}

// part is a part of a multipart form.
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

// The fields and files of a multipart form become parameters.
func TestWebhookFilesBecomeObjects(t *testing.T) {
	t.Parallel()
	d := startBodies(t, nil)
	field := func(name, content string) part { return part{name, "", "", content} }
	for _, row := range []struct {
		what, method string
		parts        []part
		want         string
	}{
		{"fields", "handleForm",
			[]part{field("s", "5"), field("i", "5"), field("b", "true"), field("f", "-0.5")},
			`{"b":true,"f":-0.5,"i":5,"s":"5"}`},
		{"a text file", "handleAny", []part{{"doc", "a.txt", "text/plain", "hé\r\nyou"}},
			`{"doc":{"contentType":"text/plain","filename":"a.txt","size":8,"text":"hé\r\nyou"}}`},
		{"a binary file", "handleAny", []part{{"doc", "a.png", "image/png", "\x89PNG\xff"}},
			`{"doc":{"contentType":"image/png","filename":"a.png","size":5,"base64":"iVBOR/8="}}`},
		{"files in an array", "handleForm",
			[]part{{"list", "a", "", "A"}, {"list", "b", "", ""}},
			`{"list":[{"contentType":"","filename":"a","size":1,"text":"A"},` +
				`{"contentType":"","filename":"b","size":0,"text":""}]}`},
		{"lists with brackets", "handleForm", []part{{"list[]", "a", "", "A"}, field("list[]", "b")},
			`{"list":[{"contentType":"","filename":"a","size":1,"text":"A"},"b"]}`},
		{"a folder in the file's name", "handleAny", []part{{"doc", "../../etc/x", "", ""}},
			`{"doc":{"contentType":"","filename":"x","size":0,"text":""}}`},
		{"a field in another charset", "handleAny", []part{field("t", "\x80")}, `{"t":{"base64":"gA=="}}`},
		{"a forged _webhook", "handleAny",
			[]part{field("_webhook", "x"), {"_webhook", "f", "", "x"}, field("a", "1")},
			`{"a":"1"}`},
	} {
		t.Run(row.what, func(t *testing.T) {
			kind, body := multipartBody(row.parts...)
			a := d.send(t, "POST", "m/"+row.method, body, "Content-Type: "+kind)
			wantArguments(t, a, 200, body, row.want)
		})
	}
	two := []part{{"s", "a", "", "A"}, {"s", "b", "", "B"}}
	kind, body := multipartBody(two...)
	a := d.send(t, "POST", "m/handleForm", body, "Content-Type: "+kind)
	wantArguments(t, a, 400, body, `"s": want string, got array`)
	const raw = "--b\r\nContent-Disposition: form-data; name=\"a\"; filename=\"\xc3\x28\"\r\n\r\n\r\n--b--"
	a = d.send(t, "POST", "m/handleAny", raw, "Content-Type: multipart/form-data; boundary=b")
	wantArguments(t, a, 400, raw, "names in UTF-8")
}

// A text in ISO-8859-1 or windows-1252 is decoded if the part, else the content type, else the field
// charset, else the field charsets says so. Every other text that is not UTF-8 keeps its bytes.
func TestWebhookTextIsDecodedByItsCharset(t *testing.T) {
	t.Parallel()
	d := startBodies(t, nil)
	tooLong := strings.Repeat("'a':'', ", maxError/8)
	all := ""  // all bytes that are not ASCII
	want := "" // HTML reads numbers of characters as bytes of windows-1252
	for b := 0x80; b <= 0xFF; b++ {
		all += fmt.Sprintf("%%%02x", b)
		want += html.UnescapeString(fmt.Sprintf("&#%d;", b))
	}
	everything := fmt.Sprintf(`{"t":%s}`, marshal(want))
	long := strings.Repeat("x", 100)
	for _, row := range []struct{ charset, body, want string }{
		{"; charset=windows-1252", "t=" + all, everything},
		{"; charset=ISO-8859-1", "t=" + all, everything},
		{`; charset="Iso-8859-1"`, "t=%80", `{"t":"€"}`},
		{`; charset=windows-1252`, "t=%00%26amp;%0d%0a%ff", `{"t":"\u0000&amp;\r\nÿ"}`},
		{"; charset=windows-1252", "t=%C3%A9", `{"t":"é"}`}, // UTF-8 after all
		{"; charset=utf-8", "t=%E9", `{"t":{"base64":"6Q=="}}`},
		{"; charset=utf-16", "t=%E9", `{"t":{"base64":"6Q=="}}`},
		{"; charset=iso-8859-15", "t=%A4", `{"t":{"base64":"pA=="}}`},
		{"", "t=%E9&charset=windows-1252", `{"charset":"windows-1252","t":"é"}`},
		{"", "t=%E9&_charset_=windows-1252", `{"_charset_":"windows-1252","t":"é"}`}, // as browsers fill it
		{"; charset=ISO_8859-1", "t=%E9", `{"t":"é"}`},
		{"; charset=iso8859-1", "t=%E9", `{"t":"é"}`},
		{"", "t=%E9&charset=latin1", `{"charset":"latin1","t":"é"}`},
		{"", "t=%80&charset=CP1252", `{"charset":"CP1252","t":"€"}`},
		{"; charset=latin-15", "t=%A4", `{"t":{"base64":"pA=="}}`},
		{"", "t=%E9&t=%FC&charset=ISO-8859-1", `{"charset":"ISO-8859-1","t":["é","ü"]}`},
		{"; charset=koi8-r", "t=%E9&charset=windows-1252",
			`{"charset":"windows-1252","t":{"base64":"6Q=="}}`},
		{"", "t=%E9&u=%E9&charsets={'t':'iso-8859-1','u':'koi8-r'}",
			`{"charsets":"{'t':'iso-8859-1','u':'koi8-r'}","t":"é","u":{"base64":"6Q=="}}`},
		{"", "t=%E9&charsets={", `{"charsets":"{","t":{"base64":"6Q=="}}`},
		// To search a long list for each text would take too long.
		{"", "t=%E9&charsets={" + tooLong + "'t':'iso-8859-1'}",
			`{"charsets":"{` + tooLong + `'t':'iso-8859-1'}","t":{"base64":"6Q=="}}`},
		// To look for a charset in a long text for each text would take too long, too.
		{"", "t=%E9&charset=" + long + "+latin1",
			`{"charset":"` + long + ` latin1","t":{"base64":"6Q=="}}`},
		{"", "t=%E9&charsets=%E9", `{"charsets":{"base64":"6Q=="},"t":{"base64":"6Q=="}}`},
	} {
		body := strings.ReplaceAll(row.body, "'", `"`)
		want := strings.ReplaceAll(row.want, "'", `\"`)
		t.Run(row.charset+" "+clipText(body, 50), func(t *testing.T) {
			a := d.send(t, "POST", "m/handleAny", body, "Content-Type: "+formType+row.charset)
			wantArguments(t, a, 200, body, want)
		})
	}
	latin := "text/plain; charset=iso-8859-1"
	kind, body := multipartBody(
		part{"p", "", latin, "\xe9"},
		part{"k", "", "", "\xe9"},
		part{"q", "", "", "\xe9"},
		part{"f", "a.txt", latin, "\xe9"}, // a file keeps its bytes
		part{"charsets", "", "", `{"k":"koi8-r","q":"windows-1252"}`},
	)
	a := d.send(t, "POST", "m/handleAny", body, "Content-Type: "+kind)
	wantArguments(t, a, 200, body, `{"charsets":"{\"k\":\"koi8-r\",\"q\":\"windows-1252\"}",`+
		`"f":{"contentType":"`+latin+`","filename":"a.txt","size":1,"base64":"6Q=="},`+
		`"k":{"base64":"6Q=="},"p":"é","q":"é"}`)
}

// A part of a form that can't be decoded exactly is refused.
func TestWebhookPartIsDecodedExactlyOrRefused(t *testing.T) {
	t.Parallel()
	d := startBodies(t, nil)
	for _, row := range []struct{ header, content, want string }{
		{`; name="a"` + "\r\nContent-Transfer-Encoding: quoted-printable", "=C3=A9=\r\n!", `{"a":"é!"}`},
		{`; name="a"` + "\r\nContent-Transfer-Encoding: Binary", "x=3D", `{"a":"x=3D"}`},
		{`; name="a"` + "\r\nContent-Transfer-Encoding: Base64", "aGk=", ""},
		{`; name="a"; filename="b"` + "\r\nContent-Transfer-Encoding: base64", "aGk=", ""},
		{`; name="a"` + "\r\nContent-Transfer-Encoding: x-uuencode", "x", ""},
		{`; name="a"; filename="b"` + "\r\nContent-Transfer-Encoding: quoted-printable, base64", "x", ""},
		{`; name="a"` + "\r\nContent-Transfer-Encoding: 8BIT", "é", `{"a":"é"}`},
		{`; name="a"` + "\r\nContent-Transfer-Encoding: quoted-printable", "=zz", `{"a":"=zz"}`},
		{``, "lost", ""},
		{`; name="a"; name="b"`, "lost", ""},
		{`; name="a"; filename="b"c"`, "lost", ""},
		{"; name=\"\xe9\"; filename=b", "", ""},
		{"; name=\"\xc3\"; filename=\"\xa9\"", "", ""}, // two halves of a character
		{"; name=a; filename=\"\xc3\"\r\nContent-Type: \xa9", "", ""},
		{`; name="a"; filename=b` + "\r\nContent-Type: \xe9", "", ""},
	} {
		t.Run(row.header+row.content, func(t *testing.T) {
			body := "--b\r\nContent-Disposition: form-data" + row.header +
				"\r\n\r\n" + row.content + "\r\n--b--"
			status := 200
			if row.want == "" {
				status = 400
			}
			a := d.send(t, "POST", "m/handleAny", body, "Content-Type: multipart/form-data; boundary=b")
			wantArguments(t, a, status, body, row.want)
			body = strings.TrimSuffix(body, "--b--")
			a = d.send(t, "POST", "m/handleAny", body, "Content-Type: multipart/form-data; boundary=b")
			wantArguments(t, a, 400, body, "well-formed") // an unfinished form
		})
	}
}

// _webhook contains the request's headers, without the secret, its query, its time and its
// body.
func TestWebhookMetaSaysTheRequest(t *testing.T) {
	t.Parallel()
	d := startBodies(t, guarded)
	const body = " {\"x\" : 1}\n"
	before := time.Now().UnixMilli()
	a := d.deliver(t, "m/handleAny?a=1&a=2&b=&c=%C3%A9+x&x-webhook-secret=q", body, shown,
		"X-Multi: one", "X-Multi: two", "X-GitHub-Event: push", "Mixed-CASE: Value",
		"Cookie: a=b")
	after := time.Now().UnixMilli()
	var got map[string]any
	must(t, json.Unmarshal(field(a.Body, webhookParam), &got))
	at, _ := got["timestamp"].(float64)
	if at < float64(before) || at > float64(after) {
		t.Errorf("timestamp %v is not from %d to %d", at, before, after)
	}
	delete(got, "timestamp")
	check(t, webhookParam, got, map[string]any{
		"method":  "POST",
		"query":   map[string]any{"a": "1", "b": "", "c": "é x", "x-webhook-secret": "q"},
		"rawBody": body,
		"headers": map[string]any{
			"x-multi": "one, two", "x-github-event": "push", "mixed-case": "Value",
			"cookie":       "a=b",
			"content-type": isJSON, "content-length": "11", "accept-encoding": "gzip",
			"user-agent": "Go-http-client/1.1", "host": d.address(),
		},
	})
	a = d.deliver(t, "m/handleAny?a=%E9&%E9=1", body, shown, "X-Name: \xe9") // no charset is declared
	check(t, "query", string(field(a.Body, webhookParam, "query")), `{"a":"é","é":"1"}`)
	check(t, "header", stringField(field(a.Body, webhookParam, "headers"), "x-name"), "é")
	for body, want := range map[string]string{"": `""`, "s=\x00%ff": `"s=\u0000%ff"`} {
		a := d.send(t, "POST", "m/handleAny", body, shown, "Content-Type: "+formType)
		raw := field(a.Body, webhookParam, "rawBody")
		check(t, fmt.Sprintf("rawBody of %q", body), string(raw), want)
	}
}

// Webhooks do the same in each language.
func TestWebhookInEachLanguage(t *testing.T) {
	long(t)
	for _, name := range folderNames(t, "testdata/hooks") {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			needLanguage(t, name)
			dir := t.TempDir()
			copyFiles(t, "testdata/hooks", dir, name)
			env := map[string]string{"WH_KEY_SIGNING_SECRET": "k"}
			d := daemonOptions{env: env}.startReady(t, dir, "-webhook-timeout", "60s")
			const body = `{ "name": "é", "n": 7, "_webhook": 1 }`
			a := d.deliver(t, "m/handleIt", body)
			meta := field(a.Body, webhookParam)
			check(t, "arguments", mcptest.Canonical(without(a.Body, webhookParam)), `{"n":7,"name":"é"}`)
			check(t, "rawBody", stringField(meta, "rawBody"), body)
			check(t, "method", stringField(meta, "method"), "POST")
			wantAnswer(t, d.send(t, "POST", "any/path", ""), 201, isText, "POST")
			checkError(t, "m/other", d.deliver(t, "m/other", `{}`), 404)
			checkError(t, "unsigned", d.deliver(t, "m/handleSigned", `{}`), 401)
			a = d.deliver(t, "m/handleSigned", `{}`, signed("github", "k", `{}`, time.Now())...)
			wantAnswer(t, a, 200, isText, "1")
			a = d.deliver(t, "m/handleFail", `{}`)
			checkError(t, "a failure", a, 500)
			checkContains(t, "a failure", a.Body, "no more")
			checkOmits(t, "a failure", a.Body, dir)
			c := connect(t, d.URL)
			checkOmits(t, "tools/list", c.Ask("tools/list", "").Body, webhookParam,
				"@webhook", "@signature")
			a = c.Call("m_handleIt",
				`{"name":"x","_webhook":{"method":"POST"},"_WEBHOOK":{"method":"POST"}}`)
			checkOmits(t, "the arguments of an MCP client", a.Body, "POST")
		})
	}
}

// fuzzBodies checks what is read from bodies of a content type.
func fuzzBodies(f *testing.F, kind string) {
	const definition = `{"name":"handleForm","inputSchema":` + formSchema + `}`
	m := parseMethod(json.RawMessage(definition), kindExecutable)
	f.Fuzz(func(t *testing.T, body []byte) {
		if list, err := parameters(headerOf("Content-Type: "+kind), body, m.schema); err == nil {
			checkParams(t, m, list)
		}
	})
}

// checkParams checks that parameters can be sent to a module and, if they pass the
// check of arguments, that they have the types of the schema.
func checkParams(t *testing.T, m *Method, list object) {
	t.Helper()
	arguments := list.set(webhookParam, json.RawMessage(`{"true":1}`)).encode()
	if err := checkJSON(arguments, "it"); err != nil {
		t.Fatalf("%v: %q", err, arguments)
	}
	if bytes.ContainsAny(encodeRequest(json.RawMessage("1"), "tools/call",
		object{{"arguments", arguments}}),
		"\n\r") {
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
	for name, want := range map[string]any{
		"s": "", "i": json.Number(""), "f": json.Number(""), "b": true, "list": []any{},
		"o": map[string]any{},
	} {
		if v := got[name]; v != nil && fmt.Sprintf("%T", v) != fmt.Sprintf("%T", want) {
			t.Fatalf("parameter %s is %T: %q", name, v, arguments)
		}
	}
}

// What is read from a form can be sent to a module, fits the schema's types, and forges no
// _webhook.
func FuzzWebhookForm(f *testing.F) {
	fuzzBodies(f, formType)
}

// What is read from a multipart form can be sent to a module, fits the schema's types, and
// forges no _webhook.
func FuzzWebhookMultipart(f *testing.F) {
	fuzzBodies(f, multipartType+"; boundary=b")
}
