// Webhooks: HTTP callbacks, delivered to methods. Who may deliver, which method
// a path is, the signatures of providers, how a body becomes parameters, and how
// a result becomes an answer. It knows views and tools; it names no claim and no
// session.

package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"mime/multipart"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

const (
	webhookPrefix      = "/webhook/"        // where the paths of webhooks begin
	secretHeader       = "X-Webhook-Secret" // where a sender shows the secret
	signatureTolerance = 5 * time.Minute    // how far a signed time stamp may be off, either way
)

// Webhooks takes deliveries. It is not changed once it serves; safe for
// concurrent use.
type Webhooks struct {
	modules *Registry
	bodies  *bodyReader
	log     *slog.Logger
	getenv  func(string) string // for the keys of signatures

	secret           string   // "" for none
	audience         audience // whose deliveries are taken while there is no secret
	acceptSignatures bool     // a verified signature stands in for the secret
	timeout          time.Duration
	slots            chan struct{} // one for each delivery being answered
}

// delivery is one request on its way to a method.
type delivery struct {
	*http.Request
	id            string
	path          string // below webhookPrefix
	received      time.Time
	authenticated bool // the sender has shown the secret, or needs none
	body          []byte
	tool          *Item // nil while none is known
	status        int   // of the answer
}

// serve takes one request for a path below webhookPrefix, after Host and Origin
// were judged, and logs what became of it.
func (h *Webhooks) serve(w http.ResponseWriter, r *http.Request) error {
	d := &delivery{Request: r, id: w.Header().Get(requestIDHeader), path: strings.TrimPrefix(r.URL.Path, webhookPrefix), received: time.Now()}
	err := h.deliver(w, d)
	args := []any{"id", d.id, "took", time.Since(d.received).Round(10 * time.Microsecond), "bytes", len(d.body), "remote", r.RemoteAddr}
	if d.tool != nil {
		args = append(args, "module", d.tool.Label, "method", d.tool.Method.Name)
	}
	if e := (*httpError)(nil); errors.As(err, &e) {
		d.status, e.Logged = e.Status, true
		args = append(args, "why", cmp.Or(e.Err, error(e)))
	}
	h.log.Info("delivery", append(args, "status", d.status)...)
	return err
}

// deliver makes the checks in the order in which their answers count, calls the
// method, and writes its answer. An error is the answer where there is no other.
func (h *Webhooks) deliver(w http.ResponseWriter, d *delivery) error {
	// Hashes have one length, so that comparing them takes one time.
	got, want := sha256.Sum256([]byte(d.Header.Get(secretHeader))), sha256.Sum256([]byte(h.secret))
	d.authenticated = h.secret == "" || subtle.ConstantTimeCompare(got[:], want[:]) == 1
	if err := h.receive(w, d); err != nil && !d.authenticated {
		// Whatever goes wrong for a sender who has shown nothing is a 401, so that
		// the answer does not tell what is there.
		return &httpError{Status: http.StatusUnauthorized, Msg: "the webhook secret is missing or wrong: send it as " + secretHeader, Err: err}
	} else if err != nil {
		return err
	}
	select {
	case h.slots <- struct{}{}:
		defer func() { <-h.slots }()
	default:
		return &httpError{Status: http.StatusServiceUnavailable, Msg: "too many deliveries at once (-webhook-limit)", Header: retryAfter(1)}
	}
	answer, err := h.call(d)
	if err != nil {
		return err
	}
	d.status = answer.Status
	answer.write(w)
	return nil
}

// receive refuses a delivery that must not be made, or reads its body and verifies
// its signature. What can be refused without the body is refused before it is
// read. A sender who has not shown the secret has its body read whatever the path:
// otherwise the time of the answer would tell which paths exist.
func (h *Webhooks) receive(w http.ResponseWriter, d *delivery) (err error) {
	switch {
	case h.secret == "" && !h.audience.includes(d.Request):
		return httpErrorf(http.StatusUnauthorized, "webhooks are off for requests from elsewhere: start usher serve with %s in its environment, or with -open-webhooks", webhookSecretVar)
	case !d.authenticated && !(h.acceptSignatures && d.Method == http.MethodPost):
		return errors.New("neither secret nor signature")
	case d.Method != http.MethodPost:
		return &httpError{Status: http.StatusMethodNotAllowed, Msg: "a webhook takes POST", Header: http.Header{"Allow": {"POST"}}}
	case d.authenticated:
		if d.tool, err = h.find(d.Context(), d); err != nil {
			return err
		}
		if rule := d.tool.Method.Signature; rule != nil {
			if _, err := rule.key(h.getenv(rule.Var)); err != nil {
				return &httpError{Status: http.StatusServiceUnavailable, Msg: "this webhook can't check signatures: see usher modules", Err: err}
			}
		}
		if err := checkType(d.Header.Get("Content-Type")); err != nil {
			return err
		}
	}
	if d.body, err = h.bodies.Read(w, d.Request, d.authenticated && h.secret != "", "webhook"); err != nil {
		return err
	}
	return h.verify(d.Context(), d)
}

// verify finds the method to call, and verifies the signature that this method
// wants, or that stands in for the secret. Where there is no method, and so nothing
// to verify, the body of a sender who has not shown the secret is hashed all the
// same: otherwise the time of the answer would tell.
func (h *Webhooks) verify(ctx context.Context, d *delivery) error {
	tool, err := h.find(ctx, d)
	rule := &signatureRule{}
	if err == nil && tool.Method.Signature != nil {
		rule = tool.Method.Signature
	} else if d.authenticated {
		d.tool = tool
		return err
	}
	if err := rule.check(h.getenv(rule.Var), d.Header, d.body, d.received); err != nil {
		return &httpError{Status: http.StatusUnauthorized, Msg: errSignature.Error(), Err: err}
	}
	d.tool = tool
	return nil
}

// find returns the method at a delivery's path. Where there is none yet, it waits
// for modules that are being introspected; for a sender who has not shown the
// secret it waits whatever the path is.
func (h *Webhooks) find(ctx context.Context, d *delivery) (*Item, error) {
	pending := false
	tool, others := h.modules.View(scopeAll()).Hook(d.path)
	if !d.authenticated || tool == nil && others == nil {
		h.modules.WaitReady(ctx, scopeAll())
		pending = h.modules.Pending(scopeAll()) // asked before the view: what is missing there was not pending
		tool, others = h.modules.View(scopeAll()).Hook(d.path)
	}
	switch {
	case tool != nil:
		return tool, nil
	case len(others) > 0:
		return nil, httpErrorf(http.StatusConflict, "%q is not one webhook but several: %s", clipText(d.path, 200), strings.Join(others, ", "))
	case pending:
		return nil, &httpError{Status: http.StatusServiceUnavailable, Msg: "modules are still being introspected", Header: retryAfter(2)}
	default:
		return nil, httpErrorf(http.StatusNotFound, "there is no webhook at this path: usher modules lists them")
	}
}

// pathOf is the path at which a tool of any view takes webhooks; "" for a tool that
// takes none, or whose path in its view belongs to another, or to nobody.
func (h *Webhooks) pathOf(t *Item) string {
	path := t.HookPath()
	if at, _ := h.modules.View(scopeAll()).Hook(path); at == nil || !at.Same(t) || at.Method.Name != t.Method.Name {
		return ""
	}
	return path
}

// call calls the delivery's method: each attempt the one that stands at the path
// then, as the module may be reloaded in between.
func (h *Webhooks) call(d *delivery) (webhookAnswer, error) {
	ctx, cancel := context.WithTimeoutCause(d.Context(), h.timeout, errDeliveryTimeout)
	defer cancel()
	caller := Caller{Session: "delivery " + d.id, Affinity: "webhook", Principal: "webhook"}
	result, err := h.modules.Call(ctx, func() (json.RawMessage, error) {
		if err := h.verify(ctx, d); err != nil {
			return nil, err
		}
		arguments, err := d.arguments()
		if err != nil {
			return nil, err
		}
		return d.tool.Call(ctx, caller, "tools/call", object{{"arguments", arguments}})
	})
	if err != nil {
		return webhookAnswer{}, callError(ctx, err)
	}
	return answerOf(result)
}

var errDeliveryTimeout = errors.New("the method did not answer in time (-webhook-timeout, -call-timeout)")

// webhookExample is the URL of a tool's webhook and a line that delivers there, with the
// required parameters; "" where none is served. url is the daemon's.
func webhookExample(view *View, t *Item, url string, secret bool) (at, curl string) {
	if served, _ := view.Hook(t.HookPath()); served != t {
		return "", ""
	}
	at, header := strings.TrimSuffix(url, "/")+webhookPrefix+t.HookPath(), ""
	if t.Method.Signature != nil {
		return at, at + ", signed by its sender"
	}
	if secret {
		header = fmt.Sprintf(` -H "%s: $%s"`, secretHeader, webhookSecretVar)
	}
	arguments := strings.ReplaceAll(string(t.Method.exampleArguments()), "'", `\u0027`) // which would end it in a shell
	return at, fmt.Sprintf("curl %s%s -H 'Content-Type: application/json' -d '%s'", at, header, arguments)
}

// errFailed is all that the log says of a method's failure: its own words, which
// the sender gets, may repeat what was sent.
var errFailed = errors.New("the method failed")

// callError is the answer to a call that failed on its way.
func callError(ctx context.Context, err error) error {
	rpc, answered := (*rpcError)(nil), (*httpError)(nil)
	switch {
	case errors.As(err, &answered):
		return answered
	case errors.As(err, new(*argumentError)):
		return httpErrorf(http.StatusBadRequest, "%v", err)
	case errors.Is(context.Cause(ctx), errDeliveryTimeout), errors.Is(err, errTimeout):
		return httpErrorf(http.StatusGatewayTimeout, "%v", errDeliveryTimeout)
	case errors.As(err, &rpc) && rpc.Code == codeInvalidParams:
		return &httpError{Status: http.StatusBadRequest, Msg: rpc.Message, Err: errors.New("the module refused the parameters")}
	case errors.As(err, &rpc):
		return &httpError{Status: http.StatusInternalServerError, Msg: rpc.Message, Err: errFailed}
	default:
		return httpErrorf(http.StatusBadGateway, "%v", err)
	}
}

// arguments is what the method is called with: the fields of the body, and what
// is known of the request. Its errors are *httpError or *argumentError.
func (d *delivery) arguments() (json.RawMessage, error) {
	contentType := d.Header.Get("Content-Type")
	if err := checkType(contentType); err != nil {
		return nil, err
	}
	list, err := parameters(contentType, d.body, d.tool.Method)
	if err != nil {
		return nil, &httpError{Status: http.StatusBadRequest, Msg: err.Error()}
	}
	arguments := append(withoutWebhook(list), member{webhookParam, d.meta()}).encode()
	if d.tool.ChecksArguments() {
		return arguments, nil
	}
	return d.tool.Method.checkArguments(arguments)
}

// meta is what a method gets under webhookParam.
func (d *delivery) meta() json.RawMessage {
	headers, query := object{{"host", quote(d.Host)}}, object{}
	for name, values := range d.Header {
		if name != secretHeader {
			headers = append(headers, member{strings.ToLower(name), quote(strings.Join(values, ", "))})
		}
	}
	for name, values := range d.URL.Query() {
		query = append(query, member{name, quote(values[0])})
	}
	meta := object{{"method", quote(d.Method)}, {"headers", headers.encode()}, {"query", query.encode()}, {"timestamp", marshal(d.received.UnixMilli())}}
	if utf8.Valid(d.body) {
		meta = append(meta, member{"rawBody", quote(string(d.body))})
	}
	return meta.encode()
}

// errSignature is all that a sender is told: what exactly did not fit helps
// only who forges.
var errSignature = errors.New("the signature is missing, wrong or too old")

// givenSignature is what a scheme finds in the headers of a request. One of the
// signatures has to be version, followed by the encoded HMAC-SHA256 of prefix and
// body.
type givenSignature struct {
	prefix     string
	stale      error // the time stamp, if the scheme has one, is not near enough to now
	signatures []string
	version    string
	encode     func([]byte) string
}

// signatureSchemes are the schemes, as providers document them.
var signatureSchemes = map[string]func(h http.Header, now time.Time) givenSignature{
	"github": func(h http.Header, _ time.Time) givenSignature {
		return givenSignature{"", nil, h.Values("X-Hub-Signature-256"), "sha256=", hex.EncodeToString}
	},
	"slack": func(h http.Header, now time.Time) givenSignature {
		stamp := h.Get("X-Slack-Request-Timestamp")
		return givenSignature{"v0:" + stamp + ":", checkRecent(stamp, now), h.Values("X-Slack-Signature"), "v0=", hex.EncodeToString}
	},
	"stripe": func(h http.Header, now time.Time) givenSignature { // several v1 while keys are rolled
		items, _ := url.ParseQuery(strings.NewReplacer(" ", "", ",", "&").Replace(h.Get("Stripe-Signature")))
		return givenSignature{items.Get("t") + ".", checkRecent(items.Get("t"), now), items["v1"], "", hex.EncodeToString}
	},
	"standard": func(h http.Header, now time.Time) givenSignature { // several v1 while keys are rolled
		get := func(name string) string { return cmp.Or(h.Get("Webhook-"+name), h.Get("Svix-"+name)) }
		return givenSignature{get("Id") + "." + get("Timestamp") + ".", checkRecent(get("Timestamp"), now), strings.Fields(get("Signature")), "v1,", base64.StdEncoding.EncodeToString}
	},
}

// checkRecent checks that a time stamp in Unix seconds is near enough to now.
func checkRecent(stamp string, now time.Time) error {
	n, err := strconv.ParseInt(stamp, 10, 64)
	if off := now.Sub(time.Unix(n, 0)).Abs(); err != nil || off > signatureTolerance {
		return fmt.Errorf("%w: its time stamp %q is %v off", errSignature, clipText(stamp, 20), off.Round(time.Second))
	}
	return nil
}

// key is the key of the HMAC, from its text in the environment, or why nothing
// can be verified. Standard Webhooks has keys in base64 after "whsec_".
func (r *signatureRule) key(text string) ([]byte, error) {
	switch {
	case r.Err != nil:
		return nil, r.Err
	case signatureSchemes[r.Scheme] == nil:
		return nil, fmt.Errorf("@signature: no scheme %q: want one of %s", r.Scheme, strings.Join(sortedKeys(signatureSchemes), ", "))
	case text == "":
		return nil, fmt.Errorf("@signature: %s is not set", r.Var)
	case r.Scheme != "standard":
		return []byte(text), nil
	}
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(text, "whsec_"))
	if err != nil || len(key) == 0 {
		return nil, fmt.Errorf("@signature: %s is not base64, after whsec_", r.Var)
	}
	return key, nil
}

// check verifies a body, in a time that tells nothing but the body's length. The
// error wraps errSignature, and says for the log what is wrong, of one that is not
// signed as it should be; any other is key's.
func (r *signatureRule) check(text string, h http.Header, body []byte, now time.Time) error {
	key, err := r.key(text)
	given := givenSignature{encode: hex.EncodeToString}
	if scheme := signatureSchemes[r.Scheme]; scheme != nil {
		given = scheme(h, now)
	}
	mac := hmac.New(sha256.New, key)
	io.WriteString(mac, given.prefix)
	mac.Write(body)
	want := []byte(given.version + given.encode(mac.Sum(nil)))
	fits := slices.ContainsFunc(given.signatures, func(got string) bool { return hmac.Equal(want, []byte(got)) })
	switch {
	case err != nil:
	case strings.Join(given.signatures, "") == "":
		err = fmt.Errorf("%w: there is none in the headers of %s", errSignature, r.Scheme)
	case given.stale != nil:
		err = given.stale
	case !fits:
		err = fmt.Errorf("%w: it is not that of this body with the key in %s", errSignature, r.Var)
	}
	return err
}

const (
	formType      = "application/x-www-form-urlencoded"
	multipartType = "multipart/form-data"
)

// checkType refuses a content type that no parameters are read from.
func checkType(contentType string) error {
	kind, _, err := mime.ParseMediaType(contentType)
	isJSON := kind == "application/json" || kind == "text/plain" || strings.HasSuffix(kind, "+json")
	if contentType == "" || err == nil && (isJSON || kind == formType || kind == multipartType) {
		return nil
	}
	return httpErrorf(http.StatusUnsupportedMediaType, "content type %q: want application/json, %s or %s", clipText(contentType, 100), formType, multipartType)
}

// parameters is what a body of a content type that checkType takes holds: the
// fields of a JSON object or of a form.
func parameters(contentType string, body []byte, m *Method) (object, error) {
	if len(bytes.TrimSpace(body)) == 0 {
		return nil, nil
	}
	kind, params, _ := mime.ParseMediaType(contentType)
	list, err := jsonObject(body)
	form := &multipart.Form{}
	switch {
	case kind == multipartType:
		form, err = multipart.NewReader(bytes.NewReader(body), params["boundary"]).ReadForm(int64(len(body)))
	case kind == formType && err != nil: // curl -d calls JSON a form, too
		form.Value, err = url.ParseQuery(string(body))
	default:
		return list, err
	}
	if err != nil {
		return nil, fmt.Errorf("the body is not a well-formed %s", kind)
	}
	return formParams(form, m), nil
}

// jsonObject is the members of a body that is a JSON object.
func jsonObject(body []byte) (object, error) {
	if err := checkJSON(body, "the body"); err != nil {
		return nil, err
	}
	list, ok := members(oneLine(body))
	if !ok {
		return nil, errors.New("the body must be a JSON object")
	}
	return list, nil
}

// formParams turns a form into parameters. A field named payload that holds a
// JSON object, as GitHub sends it, is that object, unless the method has a
// parameter of that name.
func formParams(form *multipart.Form, m *Method) (list object) {
	values := make(map[string][]json.RawMessage)
	for name, texts := range form.Value {
		for _, text := range texts {
			values[name] = append(values[name], quote(strings.ToValidUTF8(text, "\uFFFD")))
		}
	}
	for name, files := range form.File {
		for _, file := range files {
			values[name] = append(values[name], fileValue(file))
		}
	}
	if texts := form.Value["payload"]; len(texts) > 0 && m.paramTypes("payload") == nil {
		if payload, err := jsonObject([]byte(texts[0])); err == nil {
			list = payload
			delete(values, "payload")
		}
	}
	for _, name := range sortedKeys(values) {
		types := m.paramTypes(name)
		if slices.Contains(types, "array") || len(types) == 0 && len(values[name]) > 1 {
			list = append(list, member{name, joinItems(values[name])})
		} else if value := fieldValue(values[name][0], types); value != nil {
			list = append(list, member{name, value})
		}
	}
	return list
}

// fileValue is a file in a form: as text if it is some, else in base64.
func fileValue(file *multipart.FileHeader) json.RawMessage {
	reader, _ := file.Open() // from memory: it can't fail
	content, _ := io.ReadAll(reader)
	encoding, text := "text", string(content)
	if !utf8.Valid(content) {
		encoding, text = "base64", base64.StdEncoding.EncodeToString(content)
	}
	return object{
		{"filename", quote(file.Filename)},
		{"contentType", quote(file.Header.Get("Content-Type"))},
		{"size", marshal(file.Size)},
		{encoding, quote(text)},
	}.encode()
}

// fieldValue turns a form's text into the number or boolean that the schema asks
// for; any other text stays, and the check of arguments says so. It is nil for a
// field that was left blank, as forms send those too.
func fieldValue(value json.RawMessage, types []string) json.RawMessage {
	text, ok := unquote(value)
	wants := func(kind string) bool { return slices.Contains(types, kind) }
	switch {
	case !ok || wants("string"):
		return value
	case text == "" && len(types) > 0:
		return nil
	case (wants("number") || wants("integer")) && json.Valid([]byte(text)) && strings.ContainsAny(text[:1], "-0123456789"):
		return json.RawMessage(text)
	case wants("boolean") && slices.Contains([]string{"true", "on", "1"}, text):
		return json.RawMessage("true")
	case wants("boolean") && slices.Contains([]string{"false", "off", "0"}, text):
		return json.RawMessage("false")
	}
	return value
}

// webhookAnswer is what the sender gets, in the form in which a method may make it
// itself, as "_response".
type webhookAnswer struct {
	Status  int
	Headers map[string]string
	Body    json.RawMessage // sent as it is; the text of it, where it is a JSON string
}

// answerOf turns a tool's result into the answer.
func answerOf(result json.RawMessage) (webhookAnswer, error) {
	text := resultText(result)
	body := json.RawMessage(strings.TrimSpace(text))
	switch {
	case string(field(result, "isError")) == "true":
		return webhookAnswer{}, &httpError{Status: http.StatusInternalServerError, Msg: text, Err: errFailed}
	case text == "":
		return webhookAnswer{Status: http.StatusNoContent}, nil
	case !json.Valid(body) || body[0] != '{' && body[0] != '[':
		return webhookAnswer{Status: http.StatusOK, Body: quote(text)}, nil
	}
	if own := field(body, "_response"); own != nil {
		return ownAnswer(own)
	}
	return webhookAnswer{Status: http.StatusOK, Body: json.RawMessage(text)}, nil
}

// connectionHeaders are those that no method can set.
var connectionHeaders = []string{"Connection", "Content-Length", "Transfer-Encoding", "Upgrade", "Trailer", requestIDHeader}

// ownAnswer is the answer that a method made itself.
func ownAnswer(raw json.RawMessage) (webhookAnswer, error) {
	a := webhookAnswer{Status: http.StatusOK}
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.DisallowUnknownFields()
	err := decoder.Decode(&a)
	if err == nil && (!isObject(raw) || a.Status < 200 || a.Status > 599) {
		err = errors.New("want an object with a status from 200 to 599, headers and body")
	}
	isControl := func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7F }
	for name, value := range a.Headers {
		if !headerToken.MatchString(name) || strings.ContainsFunc(value, isControl) || slices.Contains(connectionHeaders, http.CanonicalHeaderKey(name)) {
			err = fmt.Errorf("header %q: not one that a method can set", name)
		}
	}
	if err != nil {
		const what = "the method's _response is no HTTP answer"
		return a, &httpError{Status: http.StatusBadGateway, Msg: what + ": " + err.Error(), Err: errors.New(what)}
	}
	return a, nil
}

func (a webhookAnswer) write(w http.ResponseWriter) {
	body, kind := []byte(a.Body), "application/json"
	if text, ok := unquote(a.Body); ok {
		body, kind = []byte(text), "text/plain; charset=utf-8"
	} else if string(a.Body) == "null" {
		body = nil
	}
	if len(body) > 0 {
		w.Header().Set("Content-Type", kind)
	}
	for name, value := range a.Headers {
		w.Header().Set(name, value)
	}
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(a.Status)
	_ = writeBody(w, body) // a sender that is gone is no one to tell
}

// writeWebhookError writes an error in this endpoint's form.
func writeWebhookError(w http.ResponseWriter, e *httpError) {
	w.Header().Set("X-Content-Type-Options", "nosniff")
	writeJSON(w, e.Status, object{{"error", quote(e.Msg)}}.encode())
}

// signatureRule is a method's @signature tag: the scheme, and the environment
// variable that holds the key. Err says what is wrong with the tag; a method
// that has one is not served, rather than served to anyone.
type signatureRule struct {
	Scheme, Var string
	Err         error
}

// parseSignature reads what follows @signature.
func parseSignature(s string) *signatureRule {
	scheme, variable, _ := strings.Cut(strings.Join(strings.Fields(s), " "), " ")
	r := &signatureRule{Scheme: scheme, Var: variable}
	switch {
	case variable == "" || strings.Contains(variable, " "):
		r.Err = errors.New("@signature: want a scheme and a variable, such as @signature github GITHUB_WEBHOOK_SECRET")
	case !isSecretVariable(r.Var):
		r.Err = fmt.Errorf("@signature: %s: want a variable whose name ends in _WEBHOOK_SECRET or _SIGNING_SECRET", r.Var)
	}
	return r
}
