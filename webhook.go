// Webhooks: HTTP callbacks, delivered to methods. Who may deliver, which method
// a path is, how a body becomes parameters, and how a result becomes an answer.
// It knows views and tools; it names no claim and no session.

package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
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

// webhookPrefix is where the paths of webhooks begin.
const webhookPrefix = "/webhook/"

// secretHeader is where a sender shows the secret.
const secretHeader = "X-Webhook-Secret"

// Webhooks takes deliveries. It is not changed once it serves; safe for
// concurrent use.
type Webhooks struct {
	views   ModuleSource
	bodies  *bodyReader
	log     *slog.Logger
	getenv  func(string) string // for the keys of signatures
	stopped context.Context     // ends when deliveries under way are to be given up

	secret           string   // "" for none
	audience         audience // whose deliveries are taken while there is none
	acceptSignatures bool     // a verified signature stands in for the secret
	timeout          time.Duration
	places           chan struct{} // one for each delivery in flight
}

// delivery is one request on its way to a method, for the log and the answer.
type delivery struct {
	id       string
	received time.Time
	tool     *Tool // nil while no method is known
	status   int
	bytes    int // of the body
}

// serve takes one request for a path below webhookPrefix. Host and Origin were
// judged before.
func (h *Webhooks) serve(w http.ResponseWriter, r *http.Request) error {
	d := &delivery{id: w.Header().Get(requestIDHeader), received: time.Now()}
	err := h.deliver(w, r, d)
	why := err
	if e := (*httpError)(nil); errors.As(err, &e) {
		if d.status, e.Logged = e.Status, true; e.Err != nil {
			why = e.Err
		}
	}
	args := []any{"id", d.id, "status", d.status, "took", time.Since(d.received).Round(10 * time.Microsecond), "bytes", d.bytes, "remote", r.RemoteAddr}
	if d.tool != nil {
		args = append(args, "module", d.tool.Label, "method", d.tool.Method.Name)
	}
	if why != nil {
		args = append(args, "why", why.Error())
	}
	h.log.Info("delivery", args...)
	return err
}

// deliver makes the checks in the order in which their answers count, calls the
// method, and writes its answer. An error is the answer where there is no other.
func (h *Webhooks) deliver(w http.ResponseWriter, r *http.Request, d *delivery) error {
	path := strings.TrimPrefix(r.URL.Path, webhookPrefix)
	var body []byte
	if h.secret == "" && !h.audience.includes(r) {
		return httpErrorf(http.StatusUnauthorized, "webhooks are off for requests from elsewhere: start usher serve with %s in its environment, or with -open-webhooks", webhookSecretVar)
	}
	proved := h.secret == "" || equalSecrets(r.Header.Get(secretHeader), h.secret)
	if !proved {
		// Whatever goes wrong for who has shown nothing is 401, so that the
		// answer does not tell what is there.
		var err error
		if body, err = h.proveBySignature(w, r, path); err != nil {
			return &httpError{Status: http.StatusUnauthorized, Msg: "the webhook secret is missing or wrong: send it as " + secretHeader, Err: err}
		}
	}
	if r.Method != http.MethodPost {
		return &httpError{Status: http.StatusMethodNotAllowed, Msg: "a webhook takes POST", Header: http.Header{"Allow": {"POST"}}}
	}
	tool, err := h.find(r.Context(), path)
	if err != nil {
		return err
	}
	d.tool = tool
	if rule := tool.Method.Signature; rule != nil {
		if err := rule.ready(h.getenv(rule.Var)); err != nil {
			return &httpError{Status: http.StatusServiceUnavailable, Msg: "this webhook can't check signatures: see usher modules", Err: err}
		}
	}
	select {
	case h.places <- struct{}{}:
		defer func() { <-h.places }()
	default:
		return &httpError{Status: http.StatusServiceUnavailable, Msg: "too many deliveries at once (-webhook-limit)", Header: retryAfter(1)}
	}
	arguments, err := h.arguments(w, r, d, body)
	if err != nil {
		return err
	}
	result, err := h.call(r.Context(), path, arguments, d.id)
	if err != nil {
		return err
	}
	answer, err := answerOf(result)
	if err != nil {
		return err
	}
	d.status = answer.status
	answer.write(w)
	return nil
}

// arguments reads the request into the method's arguments. body is nil unless
// it had to be read before.
func (h *Webhooks) arguments(w http.ResponseWriter, r *http.Request, d *delivery, body []byte) (json.RawMessage, error) {
	form, err := bodyForm(r.Header.Get("Content-Type"))
	if err != nil {
		return nil, err
	}
	if body == nil {
		if body, err = h.bodies.Read(w, r, h.secret != ""); err != nil {
			return nil, err
		}
	}
	d.bytes = len(body)
	if rule := d.tool.Method.Signature; rule != nil {
		if err := rule.check(h.getenv(rule.Var), r.Header, body, d.received); err != nil {
			return nil, &httpError{Status: http.StatusUnauthorized, Msg: errSignature.Error(), Err: err}
		}
	}
	list, err := form(body, d.tool.Method)
	if err != nil {
		return nil, &httpError{Status: http.StatusBadRequest, Msg: err.Error()}
	}
	list = append(withoutWebhook(list), member{webhookParam, webhookMeta(r, body, d.received)})
	arguments, err := d.tool.Method.checkArguments(joinMembers(list))
	if err != nil {
		return nil, &httpError{Status: http.StatusBadRequest, Msg: err.Error()}
	}
	return arguments, nil
}

// equalSecrets compares in constant time, whatever the lengths.
func equalSecrets(got, want string) bool {
	a, b := sha256.Sum256([]byte(got)), sha256.Sum256([]byte(want))
	return subtle.ConstantTimeCompare(a[:], b[:]) == 1
}

// errUnproved is why who has not shown the secret is not let in; it is not told.
var errUnproved = errors.New("neither secret nor signature")

// proveBySignature lets in a request without the secret whose signature is
// good, where that stands in for it. It returns the body that it had to read.
func (h *Webhooks) proveBySignature(w http.ResponseWriter, r *http.Request, path string) ([]byte, error) {
	if !h.acceptSignatures || r.Method != http.MethodPost {
		return nil, errUnproved
	}
	tool, err := h.find(r.Context(), path)
	if err != nil || tool.Method.Signature == nil {
		return nil, errUnproved
	}
	body, err := h.bodies.Read(w, r, false)
	if err != nil {
		return nil, err
	}
	rule := tool.Method.Signature
	return body, rule.check(h.getenv(rule.Var), r.Header, body, time.Now())
}

// find is the method at a path, waiting for modules that are being looked at.
func (h *Webhooks) find(ctx context.Context, path string) (*Tool, error) {
	tool, others := h.views.View(scopeAll()).Hook(path)
	pending := tool == nil && others == nil && h.views.Pending(scopeAll())
	if pending {
		h.views.WaitReady(ctx, scopeAll())
		pending = h.views.Pending(scopeAll()) // asked before the view: what is missing then was not pending
		tool, others = h.views.View(scopeAll()).Hook(path)
	}
	switch {
	case tool != nil:
		return tool, nil
	case len(others) > 0:
		return nil, httpErrorf(http.StatusConflict, "%q is not one webhook but several: %s", clipText(path, 200), strings.Join(others, ", "))
	case pending:
		return nil, &httpError{Status: http.StatusServiceUnavailable, Msg: "modules are still being looked at", Header: retryAfter(2)}
	default:
		return nil, httpErrorf(http.StatusNotFound, "there is no webhook at this path: usher modules lists them")
	}
}

// call calls the method at a path.
func (h *Webhooks) call(ctx context.Context, path string, arguments json.RawMessage, id string) (json.RawMessage, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, h.timeout, errDeliveryTimeout)
	defer cancel()
	defer context.AfterFunc(h.stopped, cancel)()
	caller := Caller{Session: "delivery " + id, Affinity: "webhook"}
	result, err := h.views.Call(ctx, func() (json.RawMessage, error) {
		tool, err := h.find(ctx, path)
		if err != nil {
			return nil, err
		}
		return tool.Call(ctx, caller, joinMembers([]member{{"name", json.RawMessage(`""`)}, {"arguments", arguments}}))
	})
	return result, h.callError(ctx, err)
}

var errDeliveryTimeout = errors.New("the method did not answer in time (-webhook-timeout)")

// errFailed is all that the log says of a method's failure: its own words, which
// the sender gets, may repeat what was sent.
var errFailed = errors.New("the method failed")

// callError is the answer to a call that failed on its way.
func (h *Webhooks) callError(ctx context.Context, err error) error {
	rpc, answered := (*rpcError)(nil), (*httpError)(nil)
	switch {
	case err == nil:
		return nil
	case errors.As(err, &answered):
		return answered
	case errors.Is(context.Cause(ctx), errDeliveryTimeout):
		return httpErrorf(http.StatusGatewayTimeout, "%v", errDeliveryTimeout)
	case errors.Is(err, errTimeout): // -call-timeout, if it is the shorter one
		return httpErrorf(http.StatusGatewayTimeout, "%v", err)
	case h.stopped.Err() != nil:
		return &httpError{Status: http.StatusServiceUnavailable, Msg: errStopping.Message, Header: retryAfter(5)}
	case ctx.Err() != nil:
		return httpErrorf(http.StatusBadGateway, "the sender went away")
	case errors.As(err, &rpc) && rpc.Code == codeInvalidParams:
		return &httpError{Status: http.StatusBadRequest, Msg: rpc.Message, Err: errors.New("the module refused the parameters")}
	case errors.As(err, &rpc):
		return &httpError{Status: http.StatusInternalServerError, Msg: rpc.Message, Err: errFailed}
	default:
		return httpErrorf(http.StatusBadGateway, "%v", err)
	}
}

// webhookMeta is what a method gets under webhookParam.
func webhookMeta(r *http.Request, body []byte, received time.Time) json.RawMessage {
	headers := map[string]string{"host": r.Host}
	for name, values := range r.Header {
		if name != secretHeader {
			headers[strings.ToLower(name)] = strings.Join(values, ", ")
		}
	}
	query := map[string]string{}
	for name, values := range r.URL.Query() {
		query[name] = values[0]
	}
	meta := map[string]any{"method": r.Method, "headers": headers, "query": query, "timestamp": received.UnixMilli()}
	if utf8.Valid(body) {
		meta["rawBody"] = string(body)
	}
	return marshal(meta)
}

// bodyForm finds how a body of a content type becomes parameters.
func bodyForm(contentType string) (func([]byte, *Method) ([]member, error), error) {
	if contentType == "" {
		return jsonParams, nil
	}
	kind, params, err := mime.ParseMediaType(contentType)
	switch {
	case err != nil:
	case kind == "application/json" || strings.HasSuffix(kind, "+json"):
		return jsonParams, nil
	case kind == "application/x-www-form-urlencoded":
		return formParams, nil
	case kind == "multipart/form-data" && params["boundary"] != "":
		return func(body []byte, m *Method) ([]member, error) { return multipartParams(body, params["boundary"], m) }, nil
	}
	return nil, httpErrorf(http.StatusUnsupportedMediaType,
		"content type %q: want application/json, application/x-www-form-urlencoded or multipart/form-data", clipText(contentType, 100))
}

// jsonParams is the fields of a JSON object; none for an empty body.
func jsonParams(body []byte, _ *Method) ([]member, error) {
	if len(bytes.TrimSpace(body)) == 0 {
		return nil, nil
	}
	if fault := jsonFault(body); fault != "" {
		return nil, errors.New("the body " + fault)
	}
	list, ok := members(oneLine(body))
	if !ok {
		return nil, errors.New("the body must be a JSON object")
	}
	return list, nil
}

// formParams is the fields of a form.
func formParams(body []byte, m *Method) ([]member, error) {
	fields, err := url.ParseQuery(string(body))
	if err != nil || !utf8.Valid(body) {
		return nil, errors.New("the body is not a well-formed form")
	}
	values := make(map[string][]json.RawMessage, len(fields))
	for name, texts := range fields {
		for _, text := range texts {
			values[name] = append(values[name], quote(text))
		}
	}
	return fieldParams(values, m), nil
}

// multipartParams is the fields and files of a multipart form.
func multipartParams(body []byte, boundary string, m *Method) ([]member, error) {
	values := make(map[string][]json.RawMessage)
	if len(body) == 0 {
		return nil, nil
	}
	parts := multipart.NewReader(bytes.NewReader(body), boundary)
	for {
		part, err := parts.NextPart()
		// The reader takes a body that is cut within a part's header for the end.
		if err == io.EOF && bytes.Contains(body, []byte("--"+boundary+"--")) {
			return fieldParams(values, m), nil
		}
		if err != nil {
			return nil, errors.New("the body is not a well-formed multipart form")
		}
		content, err := io.ReadAll(part)
		if err != nil {
			return nil, errors.New("the body is not a well-formed multipart form")
		}
		value := quote(strings.ToValidUTF8(string(content), "\uFFFD"))
		if part.FileName() != "" {
			value = fileValue(part, content)
		}
		values[part.FormName()] = append(values[part.FormName()], value)
	}
}

// fileValue is a file in a form: as text if it is some, else in base64.
func fileValue(part *multipart.Part, content []byte) json.RawMessage {
	list := []member{
		{"filename", quote(part.FileName())},
		{"contentType", quote(part.Header.Get("Content-Type"))},
		{"size", json.RawMessage(strconv.Itoa(len(content)))},
	}
	if utf8.Valid(content) {
		return joinMembers(append(list, member{"text", quote(string(content))}))
	}
	return joinMembers(append(list, member{"base64", quote(base64.StdEncoding.EncodeToString(content))}))
}

// fieldParams turns a form's values into parameters. A field named payload that
// holds a JSON object, as GitHub sends it, is that object, unless the method
// has a parameter of that name.
func fieldParams(values map[string][]json.RawMessage, m *Method) []member {
	var list []member
	for _, name := range sortedKeys(values) {
		types := m.paramTypes(name)
		if name == "payload" && types == nil {
			if text, _ := unquote(values[name][0]); jsonFault([]byte(text)) == "" {
				if object, ok := members(oneLine(json.RawMessage(text))); ok {
					list = append(list, object...)
					continue
				}
			}
		}
		if slices.Contains(types, "array") {
			list = append(list, member{name, joinItems(values[name])})
			continue
		}
		if value := asWanted(values[name][0], types); value != nil {
			list = append(list, member{name, value})
		}
	}
	return list
}

// asWanted turns a form's text into the number or boolean that the schema asks
// for; what is none stays text, and the check says so. It is nil for a field that
// was left blank, as forms send those too.
func asWanted(value json.RawMessage, types []string) json.RawMessage {
	text, ok := unquote(value)
	if !ok || slices.Contains(types, "string") {
		return value
	}
	if text == "" && len(types) > 0 {
		return nil
	}
	number := slices.Contains(types, "number") || slices.Contains(types, "integer")
	if number && json.Valid([]byte(text)) && strings.ContainsAny(text[:1], "-0123456789") {
		return json.RawMessage(text)
	}
	if slices.Contains(types, "boolean") {
		switch text {
		case "true", "on", "1":
			return json.RawMessage("true")
		case "false", "off", "0":
			return json.RawMessage("false")
		}
	}
	return value
}

// webhookAnswer is what the sender gets.
type webhookAnswer struct {
	status int
	header http.Header
	body   []byte
}

func (a webhookAnswer) write(w http.ResponseWriter) {
	for name, values := range a.header {
		w.Header()[name] = values
	}
	w.WriteHeader(a.status)
	if a.status != http.StatusNoContent && a.status != http.StatusNotModified {
		_ = writeBody(w, a.body) // a sender that is gone is no one to tell
	}
}

// answerOf turns a tool's result into the answer.
func answerOf(result json.RawMessage) (webhookAnswer, error) {
	if string(field(result, "isError")) == "true" {
		return webhookAnswer{}, &httpError{Status: http.StatusInternalServerError, Msg: resultText(result), Err: errFailed}
	}
	body := []byte(resultText(result))
	if len(body) == 0 {
		return webhookAnswer{status: http.StatusNoContent}, nil
	}
	a := webhookAnswer{status: http.StatusOK, header: http.Header{}, body: body}
	a.header.Set("Content-Type", "text/plain; charset=utf-8")
	if start := bytes.TrimSpace(body); len(start) > 0 && (start[0] == '{' || start[0] == '[') && json.Valid(body) {
		a.header.Set("Content-Type", "application/json")
		if own := field(body, "_response"); own != nil {
			return ownAnswer(own)
		}
	}
	return a, nil
}

// ownAnswer is the answer that a method made itself, as "_response".
func ownAnswer(raw json.RawMessage) (webhookAnswer, error) {
	bad := func(why string) (webhookAnswer, error) {
		const what = "the method's _response is no HTTP answer"
		return webhookAnswer{}, &httpError{Status: http.StatusBadGateway, Msg: what + ": " + why, Err: errors.New(what)}
	}
	list, ok := members(raw)
	if !ok {
		return bad("it is not an object")
	}
	a := webhookAnswer{status: http.StatusOK, header: http.Header{}}
	for _, f := range list {
		switch f.key {
		case "status":
			n, err := strconv.Atoi(string(f.value))
			if err != nil || n < 200 || n > 599 {
				return bad("status: want a number from 200 to 599")
			}
			a.status = n
		case "headers":
			if err := a.setHeaders(f.value); err != nil {
				return bad(err.Error())
			}
		case "body":
			a.body = f.value
		default:
			return bad(fmt.Sprintf("%q is none of status, headers and body", f.key))
		}
	}
	kind := "application/json"
	if text, ok := unquote(a.body); ok {
		a.body, kind = []byte(text), "text/plain; charset=utf-8"
	} else if string(a.body) == "null" {
		a.body = nil
	}
	if len(a.body) > 0 && a.header.Get("Content-Type") == "" {
		a.header.Set("Content-Type", kind)
	}
	return a, nil
}

// setHeaders takes in headers, but for those that are the connection's own.
func (a *webhookAnswer) setHeaders(raw json.RawMessage) error {
	list, ok := members(raw)
	if !ok {
		return errors.New("headers: want an object")
	}
	for _, f := range list {
		value, ok := unquote(f.value)
		if !ok {
			return fmt.Errorf("header %q: want a string", f.key)
		}
		name := http.CanonicalHeaderKey(f.key)
		switch {
		case !headerToken.MatchString(f.key) || strings.ContainsFunc(value, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7F }):
			return fmt.Errorf("header %q: not a header", f.key)
		case slices.Contains([]string{"Connection", "Content-Length", "Transfer-Encoding", "Upgrade", "Trailer", requestIDHeader}, name):
			return fmt.Errorf("header %q: it is usher's own", f.key)
		}
		a.header.Set(name, value)
	}
	return nil
}

// writeWebhookError writes an error in this endpoint's form.
func writeWebhookError(w http.ResponseWriter, e *httpError) {
	writeJSON(w, e.Status, joinMembers([]member{{"error", quote(e.Msg)}}))
}
