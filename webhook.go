// Webhooks: HTTP callbacks, delivered to methods. This file authenticates senders, finds
// the method at a path, and converts bodies to parameters and results to answers. Nothing
// here depends on claims or sessions.

package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
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
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

const (
	webhookPrefix = "/webhook/"        // begins the paths of webhooks
	secretHeader  = "X-Webhook-Secret" // contains the secret of a sender
)

// webhookConfig says which senders may deliver, and how long a delivery may take.
type webhookConfig struct {
	secret           string   // "" if no secret is set
	audience         audience // the senders that need no secret, if none is set
	acceptSignatures bool     // a verified signature replaces the secret
	timeout          time.Duration
}

// Webhooks answers deliveries. Its fields do not change while it serves. Safe for
// concurrent use.
type Webhooks struct {
	webhookConfig
	modules  *Registry
	memory   *memory
	log      *slog.Logger
	getenv   func(string) string // for the keys of signatures
	inFlight counter[*Principal] // deliveries whose bodies have arrived; all are of senders
}

// delivery is one request on its way to a method.
type delivery struct {
	request       *http.Request
	id            string
	path          string // below webhookPrefix
	received      time.Time
	hasSecret     bool   // the secret is right, or none is needed
	authenticated bool   // by the secret or a signature, or because neither is needed
	kind          string // of the body: see parseType
	boundary      string
	body          []byte
	held          *reservation   // of body and arguments; nil until body is set
	tool          *Item          // whose method is called; nil until it is found
	rule          *signatureRule // of the method; nil for none
	status        int            // of the answer
}

// serve answers a request for a path below webhookPrefix, and logs it. The caller has
// checked Host and Origin.
func (h *Webhooks) serve(w http.ResponseWriter, r *http.Request) error {
	d := &delivery{
		request:  r,
		id:       w.Header().Get(requestIDHeader),
		path:     strings.TrimPrefix(r.URL.Path, webhookPrefix),
		received: time.Now(),
	}
	err := h.deliver(w, d)
	took := time.Since(d.received).Round(10 * time.Microsecond)
	if d.tool == nil { // refused before usher looked for the tool
		d.tool, _ = h.modules.View(scopeAll()).Hook(d.path)
	}
	args := []any{"id", d.id, "path", clipText(d.path, maxLogged)}
	if d.tool != nil {
		args = append(args, "module", d.tool.Label, "method", d.tool.Method.Name)
	}
	if e, ok := errors.AsType[*fault](err); ok {
		d.status = e.Status
		args = append(args, "why", clipText(explain(e), maxLogged))
		logged := *e
		logged.logged = true
		err = &logged
	}
	args = append(args, "status", d.status, "took", took, "bytes", len(d.body), "remote", r.RemoteAddr)
	h.log.Info("delivery", args...)
	return err
}

// deliver receives a delivery, calls its method and writes the answer. If it returns an
// error, it has written nothing.
func (h *Webhooks) deliver(w http.ResponseWriter, d *delivery) error {
	err := h.receive(w, d)
	if d.held != nil {
		defer d.held.end()
	}
	if err != nil && err != errNoRoom && !d.authenticated { // any other status would show what exists
		return httpErrorf(http.StatusUnauthorized,
			"the webhook secret is missing or wrong: send it as %s", secretHeader).because(err)
	}
	if err != nil {
		return err
	}
	if !h.inFlight.reserve(senders, 1) {
		return httpErrorf(http.StatusServiceUnavailable,
			"too many deliveries in flight (limit %d): try again", maxInFlight).retryAfter(1)
	}
	defer h.inFlight.release(senders, 1)
	answer, err := h.call(d)
	if err != nil {
		return err
	}
	if d.held.grow(int64(len(answer.Body))) != nil {
		return errNoRoomToAnswer
	}
	d.status = answer.Status
	answer.write(w)
	return nil
}

// receive authenticates the sender of a delivery, finds its method and reads its body.
// It refuses whatever it can before it reads the body.
func (h *Webhooks) receive(w http.ResponseWriter, d *delivery) error {
	r := d.request
	// Hashes have one length, so comparing them takes the same time for any secret.
	got := sha256.Sum256([]byte(r.Header.Get(secretHeader)))
	want := sha256.Sum256([]byte(h.secret))
	d.hasSecret = h.secret == "" || hmac.Equal(got[:], want[:])
	d.authenticated = d.hasSecret
	switch {
	case h.secret == "" && !h.audience.includes(r):
		return httpErrorf(http.StatusUnauthorized,
			"webhooks are off: set %s or -open-webhooks", webhookSecretVar)
	case !d.authenticated && !(h.acceptSignatures && signatureSize(r.Header) > 0):
		return errors.New("no valid secret or accepted signature")
	case r.Method != http.MethodPost:
		return errMethod("POST")
	}
	if err := h.find(r.Context(), d); err != nil {
		return err
	}
	typeErr := d.parseType()
	if typeErr != nil && d.authenticated {
		return typeErr
	}
	sender := strangers
	if d.authenticated && h.secret != "" {
		sender = senders
		markKnown(r)
	}
	var err error
	d.body, d.held, err = account{h.memory, sender}.receive(w, r)
	if err != nil {
		return err
	}
	if err := d.verify(); err != nil {
		return err
	}
	return typeErr
}

// find finds the method of a delivery, and how the delivery must be signed. If there is
// no method at the path yet, find waits for modules that are being introspected.
func (h *Webhooks) find(ctx context.Context, d *delivery) (err error) {
	ready := true // the view contains all modules
	view := h.modules.View(scopeAll())
	tool, others := view.Hook(d.path)
	if tool == nil && others == nil {
		_ = view.CheckUnknown(d.path) // starts the newer version, which may have the path
		ready = h.modules.WaitAll(ctx, startupTime, scopeAll())
		tool, others = h.modules.View(scopeAll()).Hook(d.path)
	}
	switch {
	case len(others) > 0:
		return httpErrorf(http.StatusConflict, "the path %q is ambiguous: use one of %s",
			clipText(d.path, 200), strings.Join(others, ", "))
	case tool == nil && !ready:
		return httpErrorf(http.StatusServiceUnavailable,
			"modules are still starting: try again").retryAfter(2)
	case tool == nil:
		return httpErrorf(http.StatusNotFound, "no webhook has this path: see usher modules")
	}
	d.tool = tool
	d.rule, err = parseSignature(tool.Method.Signature, h.getenv)
	if err != nil {
		return httpErrorf(http.StatusServiceUnavailable,
			"this webhook can't check signatures: see usher modules").because(err)
	}
	return nil
}

// WebhookPath returns the path below webhookPrefix at which a tool receives webhooks, or
// "" if the view has no tool or another tool there.
func (v *View) WebhookPath(t *Item) string {
	if tool, _ := v.Hook(t.HookPath); tool != t {
		return ""
	}
	return t.HookPath
}

// call calls the method of a delivery, which receive has found and whose signature it has
// verified. If the module has changed since, call does both again.
func (h *Webhooks) call(d *delivery) (*webhookAnswer, error) {
	ctx, cancel := context.WithTimeout(d.request.Context(), h.timeout)
	defer cancel()
	caller := Caller{Session: "delivery " + d.id, Principal: senders}
	changed := false
	result, err := h.modules.Call(ctx, senders, func() (json.RawMessage, error) {
		if changed {
			err := h.find(ctx, d)
			if err == nil {
				err = d.verify()
			}
			if err != nil {
				return nil, err
			}
		}
		changed = true // if there is another attempt
		arguments, err := d.arguments()
		if err != nil {
			return nil, err
		}
		return d.tool.Call(ctx, caller, "tools/call", object{{"arguments", arguments}})
	})
	if err != nil {
		return nil, callError(ctx, err)
	}
	return answerOf(result)
}

// errFailed replaces a method's own message in the log, because the message may repeat
// the sender's data.
var errFailed = errors.New("the method failed")

// callError returns the answer to a failed call, as an *fault.
func callError(ctx context.Context, err error) error {
	if answer, ok := errors.AsType[*fault](err); ok {
		return answer
	}
	if argument, ok := errors.AsType[*argumentError](err); ok {
		return httpErrorf(http.StatusBadRequest, "%v", argument)
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) || errors.Is(err, errTimeout) {
		return httpErrorf(http.StatusGatewayTimeout,
			"the method did not answer in time (-webhook-timeout, -call-timeout)")
	}
	rpc, ok := errors.AsType[*rpcError](err)
	if !ok {
		return httpErrorf(http.StatusBadGateway, "%v", err)
	}
	status := http.StatusInternalServerError
	if rpc.Code == codeInvalidParams {
		status = http.StatusBadRequest
	}
	return httpErrorf(status, "%s", rpc.Message).because(errFailed)
}

// arguments returns the arguments for the delivery's method: the fields of the body, and the
// request under webhookParam. Its errors are *fault or *argumentError.
func (d *delivery) arguments() (json.RawMessage, error) {
	list, err := parameters(d.kind, d.boundary, d.body, d.tool.Method)
	if err != nil {
		return nil, httpErrorf(http.StatusBadRequest, "%v", err)
	}
	declared := objectIn(d.tool.Method.schema(), "properties")
	list = slices.DeleteFunc(withoutWebhook(list), func(f member) bool { return isMisspelt(declared, f.key) })
	arguments := append(list, member{webhookParam, d.meta()}).encode()
	if !d.tool.ChecksArguments() {
		arguments, err = d.tool.Method.checkArguments(arguments)
		if err != nil {
			return nil, err
		}
	}
	return arguments, d.held.grow(int64(len(arguments)))
}

// meta returns what a method receives under webhookParam.
func (d *delivery) meta() json.RawMessage {
	headers := map[string]string{"host": d.request.Host}
	for name, values := range d.request.Header {
		if name != secretHeader {
			headers[strings.ToLower(name)] = strings.Join(values, ", ")
		}
	}
	query := make(map[string]string)
	for name, values := range d.request.URL.Query() {
		query[name] = values[0]
	}
	meta := map[string]any{
		"method":    d.request.Method,
		"headers":   headers,
		"query":     query,
		"timestamp": d.received.UnixMilli(),
	}
	if utf8.Valid(d.body) {
		meta["rawBody"] = string(d.body)
	}
	return marshal(meta)
}

// verify verifies the signature of a delivery, if its method has a rule for it. A verified
// signature authenticates the sender.
func (d *delivery) verify() error {
	if d.rule == nil {
		if !d.hasSecret {
			return httpErrorf(http.StatusUnauthorized, "no secret, and no @signature to verify")
		}
		return nil
	}
	if err := d.rule.verify(d.request.Header, d.body, d.received); err != nil {
		// A more detailed answer would help only a forger.
		return httpErrorf(http.StatusUnauthorized, "the signature is missing, wrong or too old").because(err)
	}
	d.authenticated = true
	return nil
}

const (
	formType      = "application/x-www-form-urlencoded"
	multipartType = "multipart/form-data"
)

// parseType parses the content type of the body. It refuses types that can't contain
// parameters.
func (d *delivery) parseType() error {
	text := cmp.Or(d.request.Header.Get("Content-Type"), "application/json")
	kind, params, err := mime.ParseMediaType(text)
	isJSON := kind == "application/json" || kind == "text/plain" || strings.HasSuffix(kind, "+json")
	if err != nil || !isJSON && kind != formType && kind != multipartType {
		return httpErrorf(http.StatusUnsupportedMediaType,
			"content type %q: want application/json, %s or %s", clipText(text, 100), formType, multipartType)
	}
	d.kind = kind
	d.boundary = params["boundary"]
	return nil
}

// parameters returns the fields of a JSON object or of a form, by the kind and boundary
// that parseType returned.
func parameters(kind, boundary string, body []byte, m *Method) (object, error) {
	if len(bytes.TrimSpace(body)) == 0 {
		return nil, nil
	}
	form := &multipart.Form{}
	var err error
	switch {
	case kind == multipartType:
		form, err = multipart.NewReader(bytes.NewReader(body), boundary).ReadForm(int64(len(body)))
	case kind == formType && bytes.TrimSpace(body)[0] != '{': // curl -d sends JSON as a form, too
		form.Value, err = url.ParseQuery(string(body))
	default:
		return jsonObject(body)
	}
	if err != nil {
		return nil, fmt.Errorf("the body is not a well-formed %s", kind)
	}
	return formParams(form, m), nil
}

// jsonObject returns the members of a JSON object.
func jsonObject(body []byte) (object, error) {
	if err := checkJSON(body, "the body"); err != nil {
		return nil, err
	}
	list := members(oneLine(body))
	if list == nil {
		return nil, errors.New("the body must be a JSON object")
	}
	return list, nil
}

// formParams converts a form to parameters. If a field named payload contains a JSON
// object, as GitHub sends it, the object's members replace that field, unless the method
// has a parameter named payload.
func formParams(form *multipart.Form, m *Method) (list object) {
	values := make(map[string][]json.RawMessage)
	for name, texts := range form.Value {
		for _, text := range texts {
			values[name] = append(values[name], quote(text))
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
			list = append(list, member{name, marshal(values[name])})
		} else if value := fieldValue(values[name][0], types); value != nil {
			list = append(list, member{name, value})
		}
	}
	return list
}

// fileValue converts a file in a form: to text if it is valid UTF-8, else to base64.
func fileValue(file *multipart.FileHeader) json.RawMessage {
	reader, _ := file.Open() // can't fail, because the file is in memory
	content, _ := io.ReadAll(reader)
	value := map[string]any{
		"filename":    file.Filename,
		"contentType": file.Header.Get("Content-Type"),
		"size":        file.Size,
	}
	if utf8.Valid(content) {
		value["text"] = string(content)
	} else {
		value["base64"] = content
	}
	return marshal(value)
}

// fieldValue converts a form's text to the number or boolean that the schema requires.
// Other text is unchanged, so the check of arguments refuses it. fieldValue returns nil
// for a field left blank, because forms send blank fields too.
func fieldValue(value json.RawMessage, types []string) json.RawMessage {
	text, ok := unquote(value)
	wants := func(kind string) bool { return slices.Contains(types, kind) }
	switch {
	case !ok || wants("string"):
		return value
	case text == "" && len(types) > 0:
		return nil
	case (wants("number") || wants("integer")) && json.Valid([]byte(text)) &&
		strings.ContainsAny(text[:1], "-0123456789"):
		return json.RawMessage(text)
	case wants("boolean") && slices.Contains([]string{"true", "on", "1"}, text):
		return json.RawMessage("true")
	case wants("boolean") && slices.Contains([]string{"false", "off", "0"}, text):
		return json.RawMessage("false")
	}
	return value
}

// webhookAnswer is the answer to a delivery. A method that returns an object
// can set one as its "_response".
type webhookAnswer struct {
	Status  int
	Headers map[string]string
	Body    json.RawMessage // sent unchanged, except that a JSON string is sent as its text
}

// answerOf converts a tool's result to the answer.
func answerOf(result json.RawMessage) (*webhookAnswer, error) {
	text := resultText(result)
	body := json.RawMessage(strings.TrimSpace(text))
	switch {
	case isTrue(field(result, "isError")):
		return nil, httpErrorf(http.StatusInternalServerError, "%s", text).because(errFailed)
	case text == "":
		return &webhookAnswer{Status: http.StatusNoContent}, nil
	case !json.Valid(body) || body[0] != '{' && body[0] != '[':
		return &webhookAnswer{Status: http.StatusOK, Body: quote(text)}, nil
	}
	// Text is never an answer: a method may return what a sender wrote.
	if own := field(field(result, "structuredContent"), "_response"); own != nil {
		return ownAnswer(own)
	}
	return &webhookAnswer{Status: http.StatusOK, Body: json.RawMessage(text)}, nil
}

// connectionHeaders are headers that a method can't set.
var connectionHeaders = []string{
	"Connection", "Content-Length", "Transfer-Encoding", "Upgrade", "Trailer", requestIDHeader,
}

// ownAnswer parses the answer that a method returned as "_response".
func ownAnswer(raw json.RawMessage) (*webhookAnswer, error) {
	a := &webhookAnswer{Status: http.StatusOK}
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.DisallowUnknownFields()
	err := decoder.Decode(a)
	if err == nil && (!isObject(raw) || a.Status < 200 || a.Status > 599) {
		err = errors.New("want an object with status (200 to 599), headers and body")
	}
	for name, value := range a.Headers {
		if !headerToken.MatchString(name) || strings.ContainsFunc(value, unicode.IsControl) ||
			slices.Contains(connectionHeaders, http.CanonicalHeaderKey(name)) {
			err = fmt.Errorf("header %q: invalid value or reserved header", name)
		}
	}
	if err != nil {
		return nil, httpErrorf(http.StatusBadGateway,
			"the method's _response is invalid: %v", err).because(errFailed)
	}
	return a, nil
}

// write writes the answer.
func (a *webhookAnswer) write(w http.ResponseWriter) {
	body := []byte(a.Body)
	kind := "application/json"
	if text, ok := unquote(a.Body); ok {
		body = []byte(text)
		kind = "text/plain; charset=utf-8"
	} else if string(a.Body) == "null" {
		body = nil
	}
	if len(body) > 0 {
		w.Header().Set("Content-Type", kind)
	}
	for name, value := range a.Headers {
		w.Header().Set(name, value)
	}
	w.WriteHeader(a.Status)
	_ = writeBody(w, body) // an error means that the sender has gone
}

// writeWebhookError writes an error as {"error": …}.
func writeWebhookError(w http.ResponseWriter, e *fault) {
	writeJSON(w, e.Status, frame{msg: object{{"error", quote(e.Msg)}}.encode()})
}
