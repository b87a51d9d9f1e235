// Webhooks: HTTP callbacks, delivered to methods. This file authenticates senders, finds
// the method at a path, and converts bodies to parameters and results to answers. Nothing
// here depends on claims or sessions.
//
// A delivery passes through these steps, and each one refuses what it can, so that a sender
// without proof costs little: the secret and the method of HTTP; the path; the content
// type; the body, within limits; the signature; the parameters; the call. A sender that has
// shown neither a secret nor a signature gets 401 whatever the step, because another status would
// tell it which webhooks exist; 503 if there is no room for its body.

package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"io"
	"log/slog"
	"mime"
	"mime/multipart"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

const (
	webhookPrefix = "/webhook/"        // begins the paths of webhooks
	secretHeader  = "X-Webhook-Secret" // contains the secret of a sender
)

// webhookConfig says which senders may deliver, and how long a delivery may take. Most providers
// give up after some seconds and deliver again, so the timeout is shorter than that of calls. A
// template shows the exported fields: see serveFlags.webhookPolicy.
type webhookConfig struct {
	Secret           string // "" if no secret is set
	Open             bool   // if no secret is set, senders need none
	Local            bool   // the same for senders on this machine
	AcceptSignatures bool   // a verified signature replaces the secret, if one is set
	logArguments     bool   // of deliveries
	timeout          time.Duration
}

// Webhooks answers deliveries. Its fields do not change while it serves. Safe for
// concurrent use.
type Webhooks struct {
	webhookConfig
	modules  *Registry
	log      *slog.Logger
	stopped  context.Context     // ends when the daemon stops waiting: calls are cancelled
	getenv   func(string) string // for the keys of signatures
	inFlight counter             // deliveries whose bodies have arrived; all are of senders
}

// delivery is one request on its way to a method. receive fills it in, step by step.
type delivery struct {
	*reservation
	path     string // below webhookPrefix
	received time.Time
	unproven bool // the sender has not shown the secret, and needs it or a signature
	body     []byte
	inFlight bool          // inFlight counts the delivery
	tool     *Item         // whose method is called; nil until it is found
	rule     signatureRule // of the method; zero for none
}

// serve answers a request for a path below webhookPrefix, and logs it. The caller has
// checked Host and Origin. There is one line for each delivery, also for a refused one:
// senders retry silently, so the log is where an owner finds out why nothing arrives.
func (h *Webhooks) serve(x *reservation) error {
	d := &delivery{
		reservation: x,
		path:        strings.TrimPrefix(x.req.URL.Path, webhookPrefix),
		received:    time.Now(),
	}
	// The fields of d say how far the delivery came, so the log needs no step of its own.
	defer func() {
		if d.inFlight {
			h.inFlight.release(senders, 1)
		}
	}()
	answer, err := h.deliver(d)
	hungUp := x.req.Context().Err() != nil
	var status int
	if err == nil {
		status = answer.Status
		err = answer.write(x)
	} else {
		status = x.fail(err)
	}
	log := h.log.With("id", x.w.Header().Get(requestIDHeader), "path", h.loggedPath(d.path))
	if d.tool != nil {
		log = log.With("module", d.tool.Label, "method", d.tool.Method.Name)
	}
	if err != nil {
		log = log.With("why", logText(explain(err)))
	}
	if hungUp {
		log = log.With("note", "the sender hung up")
	}
	took := time.Since(d.received).Round(10 * time.Microsecond)
	log = log.With("status", status, "took", took, "bytes", len(d.body), senderAttrs(x.req))
	if h.logArguments {
		log = log.With("arguments", logText(string(d.body)))
	}
	log.Info("delivery")
	return nil
}

// likeHookPath matches the paths of webhooks, and paths that may be mistyped ones: their senders get
// 404, and the log shows the owner where the deliveries went.
var likeHookPath = regexp.MustCompile(`(?i)^/+(web-?)?hooks?(/|$)`)

// pathWord matches a word in a path.
var pathWord = regexp.MustCompile(`[\pL\pN_]+`)

// loggedPath returns the path of a delivery for the log. People type codes as paths, so a word of up
// to 8 characters becomes ***, unless it is in the path of a webhook.
func (h *Webhooks) loggedPath(path string) string {
	known := "webhooks " + strings.Join(sortedKeys(h.view().items["webhooks"]), " ")
	path = pathWord.ReplaceAllStringFunc(path, func(word string) string {
		if utf8.RuneCountInString(word) > 8 || strings.Contains(known, word) {
			return word
		}
		return "***"
	})
	return logText(path)
}

// deliver receives a delivery and calls its method. The body counts for its sender until the
// answer or error has been written, because the method's arguments and its result live that long.
func (h *Webhooks) deliver(d *delivery) (*webhookAnswer, error) {
	err := h.receive(d)
	// A lack of room says nothing about what exists, and passes, so the sender should try again.
	if err != nil {
		if err != errNoRoom && d.unproven {
			err = errUnauthorized(err)
		}
		return nil, err
	}
	// Only deliveries that have arrived count: slow senders must not take the places of others.
	d.inFlight = h.inFlight.reserve(senders, 1)
	if !d.inFlight {
		return nil, httpErrorf(http.StatusServiceUnavailable,
			"too many deliveries in flight (limit %d): try again", maxInFlight)
	}
	return h.call(d)
}

// receive authenticates the sender of a delivery, finds its method and reads its body.
// It refuses whatever it can before it reads the body. Without the secret, it reads the body
// only if the method verifies signatures and there is one. The body counts as a stranger's until
// the secret or the signature is verified.
func (h *Webhooks) receive(d *delivery) (err error) {
	d.unproven = !isSameSecret(d.req.Header.Get(secretHeader), h.Secret)
	if h.Secret == "" {
		d.unproven = !h.Open && (!h.Local || isProxied(d.req))
	}
	switch {
	case d.unproven && h.Secret != "" && !h.AcceptSignatures:
		return errNoSecret
	case d.req.Method != http.MethodPost:
		return d.errMethod(http.MethodPost)
	}
	if err := h.find(d.req.Context(), d); err != nil {
		return err
	}
	if d.unproven && len(headerWords(d.req.Header, d.rule.headers)) == 0 {
		return d.verify() // fails
	}
	// A sender that still has to prove itself by a signature learns of a wrong type only then.
	if _, _, err := parseType(d.req.Header); err != nil && !d.unproven {
		return err
	}
	sender := strangers
	if !d.unproven && (h.Secret != "" || d.rule.scheme == "") {
		sender = senders
	}
	d.body, err = d.receive(sender)
	if err == nil {
		err = d.verify()
	}
	if err == nil {
		err = d.countFor(senders)
	}
	if err == nil {
		err = d.grow(len(d.body)) // it will be in the arguments too, as rawBody
	}
	return err
}

// view returns all modules. Webhooks are not scoped: whoever has the secret may deliver to all.
func (h *Webhooks) view() *View { return h.modules.View(scopeAll(), nil) }

// find finds the method of a delivery, and how the delivery must be signed. If there is
// no method at the path yet, find waits for modules that are being introspected: a sender may
// take a 404 for the end of the webhook, and not try again. At the start, find always waits for
// them, because the path may turn out to be theirs.
func (h *Webhooks) find(ctx context.Context, d *delivery) (err error) {
	h.modules.WaitStart(ctx, scopeAll())
	ready := true // the view contains all modules
	tool, claimants := h.view().Hook(d.path)
	if tool == nil && claimants == nil {
		if !d.unproven {
			h.modules.Refresh(ctx, d.received)
		}
		ready = h.modules.WaitAll(ctx, startupTime, scopeAll())
		tool, claimants = h.view().Hook(d.path)
	}
	switch {
	case claimants != nil:
		return httpErrorf(http.StatusConflict, "several webhooks have this path: see usher modules for %s",
			itemNames(claimants))
	case tool == nil && !ready:
		return httpErrorf(http.StatusServiceUnavailable, "modules are still starting: try again")
	case tool == nil:
		known := sortedKeys(h.view().items["webhooks"])
		i, _ := slices.BinarySearch(known, likeHookPath.ReplaceAllString(d.path, ""))
		// The list begins with the path before d.path in alphabetical order. The log cuts it.
		return httpErrorf(http.StatusNotFound, "no webhook has this path: see usher modules").
			because(fmt.Errorf("unknown path, the nearest are %q", known[max(0, i-1):]))
	}
	d.tool = tool
	// A tag that can't be obeyed refuses every delivery. To ignore it would open the webhook.
	d.rule, err = parseSignature(tool.Method.Signature, h.getenv)
	if err != nil {
		return httpErrorf(http.StatusServiceUnavailable,
			"this webhook can't check signatures: see usher modules").because(err)
	}
	return nil
}

// call calls the method of a delivery, which receive has found and whose signature it has
// verified. If the module has changed since, call does both again: the new version may have
// another path or another rule for signatures, and what was verified by the old rule proves
// nothing under the new one.
func (h *Webhooks) call(d *delivery) (*webhookAnswer, error) {
	if answer := d.rule.challenge(d.body); answer != nil {
		return &webhookAnswer{Status: http.StatusOK, Body: answer}, nil
	}
	// A sender that hangs up will try again, so its call is not made. But a call that a runner has
	// received goes on: half of a deployment would be worse than one whose answer nobody reads.
	ctx, cancel := context.WithTimeout(h.stopped, h.timeout)
	defer cancel()
	keep := context.AfterFunc(d.req.Context(), cancel)
	defer keep()
	begun := func() error {
		keep()
		return d.req.Context().Err()
	}
	// An edit between the look-up and the call must not fail the delivery.
	changed := false
	result, err := h.modules.Call(ctx, senders, func() (object, error) {
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
		return d.tool.Call(
			ctx,
			Caller{Principal: senders, Begun: begun},
			"tools/call",
			object{{"arguments", arguments}},
		)
	})
	if err != nil {
		return nil, callError(ctx, err)
	}
	return answerOf(result)
}

// callError returns the answer to a failed call, as a *fault. Senders retry by the status:
// 4xx says that the same delivery will fail again, 5xx that it may succeed later.
func callError(ctx context.Context, err error) error {
	e, isFault := errors.AsType[*fault](err)
	_, isArgument := errors.AsType[*argumentError](err)
	status := http.StatusInternalServerError
	switch {
	case isFault && e.Status != 0:
		return e
	case isArgument || isFault && e.Code == codeInvalidParams: // the sender's mistake
		status = http.StatusBadRequest
	case errors.Is(ctx.Err(), context.DeadlineExceeded) || errors.Is(err, errTimeout):
		return httpErrorf(http.StatusGatewayTimeout,
			"the method did not answer in time (-webhook-timeout, -call-timeout)")
	case !isFault: // the module can't start, or has crashed
		status = http.StatusBadGateway
	}
	return httpErrorf(status, "%v", err)
}

// arguments returns the arguments for the delivery's method: the fields of the body, and the
// request under webhookParam. It drops fields that differ from a declared parameter only in case,
// because providers add fields to their deliveries at any time, and a decoder that ignores case would
// take them for the parameter. Its errors are *fault.
func (d *delivery) arguments() (json.RawMessage, error) {
	schema := d.tool.Method.schema
	list, err := parameters(d.req.Header, d.body, schema)
	if err != nil {
		return nil, err
	}
	list = slices.DeleteFunc(withoutWebhook(list), func(f member) bool { return schema.isMisspelt(f.key) })
	return append(list, member{webhookParam, d.meta()}).encode(), nil
}

// meta returns what a method receives under webhookParam. The headers contain signatures and
// ids, which some methods need, but neither usher's secret, which would let a module deliver to
// other modules, nor a key of @signature token.
func (d *delivery) meta() json.RawMessage {
	// net/http keeps the Host apart from the other headers.
	headers := map[string]string{"host": d.req.Host}
	for name, values := range d.req.Header {
		if name != secretHeader && (d.rule.scheme != "token" || name != d.rule.headers[0]) {
			headers[strings.ToLower(name)] = decodeText(strings.Join(values, ", "), "iso-8859-1")
		}
	}
	// The first value of each name: most methods want a text, not a list.
	query := make(map[string]string)
	for name, values := range d.req.URL.Query() {
		query[decodeText(name, "iso-8859-1")] = decodeText(values[0], "iso-8859-1")
	}
	meta := map[string]any{
		"method":    http.MethodPost,
		"headers":   headers,
		"query":     query,
		"timestamp": d.received.UnixMilli(),
	}
	// JSON can't carry other bytes, and a changed body would match no signature.
	if utf8.Valid(d.body) {
		meta["rawBody"] = string(d.body)
	} else {
		meta["rawBase64"] = d.body
	}
	return marshal(meta)
}

// verify verifies the signature of a delivery, if its method has a rule for it. The secret
// does not replace a signature: it shows only that the sender may use usher, and not that the
// provider has sent this body.
func (d *delivery) verify() (err error) {
	if d.rule.scheme != "" {
		err = d.rule.verify(d.req.Header, d.body, d.received)
	} else if d.unproven {
		err = errNoSecret
	}
	if err != nil {
		return errUnauthorized(err)
	}
	return nil
}

// errNoSecret says, in the log, why a delivery without a signature is refused.
var errNoSecret = errors.New("no valid " + secretHeader + ": see -open-webhooks, -accept-signatures")

// errUnauthorized returns the refusal of a delivery that lacks a proof of its sender. The reason
// is only for the log: a more detailed answer would help only a forger.
func errUnauthorized(reason error) error {
	return httpErrorf(http.StatusUnauthorized,
		"the signature, or the secret in %s, is missing or wrong: see usher's log",
		secretHeader).because(reason)
}

const (
	formType      = "application/x-www-form-urlencoded"
	multipartType = "multipart/form-data"
)

// parseType returns the content type of a body, and its parameters. It refuses types that can't
// contain fields, and compressed bodies. Some services, such as AWS SNS, send JSON as text/plain or
// without a type.
func parseType(h http.Header) (kind string, params map[string]string, err error) {
	text := cmp.Or(h.Get("Content-Type"), "application/json")
	kind, params, _ = mime.ParseMediaType(text) // a parameter may be malformed, as in "; charset"
	isJSON := kind == "application/json" || kind == "text/plain" || strings.HasSuffix(kind, "+json")
	coding := strings.Join(h.Values("Content-Encoding"), ",")
	isCoded := coding != "" && !strings.EqualFold(coding, "identity")
	if isCoded || !isJSON && kind != formType && kind != multipartType {
		return "", nil, httpErrorf(http.StatusUnsupportedMediaType,
			"content type %q: want application/json or a form, not encoded", text+" "+coding)
	}
	return kind, params, nil
}

// parameters returns the fields of a JSON object or of a form, or a JSON array as the field
// items, for SendGrid and HubSpot. A delivery without a body has no parameters: some services
// send such deliveries to test the URL. Errors are *fault.
func parameters(h http.Header, body []byte, s *schema) (object, error) {
	kind, params, err := parseType(h)
	body = bytes.TrimPrefix(body, []byte(byteOrderMark))
	text := bytes.TrimSpace(body)
	if err != nil || len(text) == 0 {
		return nil, err
	}
	texts := make(url.Values)
	values := make(jsonLists)
	ok := true
	switch {
	case kind == multipartType:
		ok = readParts(multipart.NewReader(bytes.NewReader(body), params["boundary"]), texts, values)
	case text[0] == '[' && checkJSON(text, "") == nil:
		return object{{"items", oneLine(text)}}, nil
	case kind == formType && text[0] != '{': // curl -d sends JSON as a form, too
		// By the URL standard of browsers, only & separates fields, but package url refuses a semicolon.
		texts, err = url.ParseQuery(strings.ReplaceAll(string(body), ";", "%3B"))
	default:
		return jsonObject(body)
	}
	if err != nil || !ok || !utf8.ValidString(strings.Join(sortedKeys(texts), "/")) {
		return nil, httpErrorf(
			http.StatusBadRequest,
			"the body is not a well-formed %s with names in UTF-8",
			kind,
		)
	}
	return formParams(texts, values, params["charset"], s), nil
}

// jsonLists are lists of values, by the name of a parameter.
type jsonLists map[string][]json.RawMessage

// readParts adds the texts and files of a multipart form to texts and files, and reports whether it
// could read all. reader decodes quoted-printable, and removes folders from the name of a file.
// readParts can't read parts in another encoding, such as base64, which hardly anybody sends.
func readParts(reader *multipart.Reader, texts url.Values, files jsonLists) bool {
	for {
		part, err := reader.NextPart()
		if err != nil {
			return err == io.EOF // an unfinished form has another error
		}
		content, err := io.ReadAll(part)
		name := strings.TrimSuffix(part.FormName(), "[]")
		file := part.FileName()
		get := part.Header.Get
		kind := get("Content-Type")
		coding := get("Content-Transfer-Encoding")
		switch {
		case err != nil, name == "", !utf8.ValidString(name + "/" + file + "/" + kind),
			!strings.Contains("7bit 8bit binary", strings.ToLower(coding)):
			return false
		case file == "":
			texts.Add(name, decodeText(string(content), kind))
		default:
			files[name] = append(files[name], object{
				{"contentType", quote(kind)},
				{"filename", quote(file)},
				{"size", marshal(len(content))},
				textOrBase64(content),
			}.encode())
		}
	}
}

// likeLatin1 matches names of ISO-8859-1 and windows-1252, which senders confuse, also in a content
// type.
var likeLatin1 = regexp.MustCompile(`(?i)\b(iso[-_]?8859-1|latin-?1|(windows-|cp)1252)\b`)

// decodeText decodes text if charset, which may be a content type, is ISO-8859-1 or windows-1252. It
// returns a text that is UTF-8 or has another charset unchanged. It uses package html as its table: in
// HTML, &#N; with N below 256 means byte N of windows-1252 or, if that is undefined, of ISO-8859-1. Only
// &#0; is invalid.
func decodeText(text, charset string) string {
	if utf8.ValidString(text) || !likeLatin1.MatchString(charset) {
		return text
	}
	var escaped strings.Builder
	for _, b := range []byte(text) {
		fmt.Fprintf(&escaped, "&#%d;", b)
	}
	return strings.ReplaceAll(html.UnescapeString(escaped.String()), "\ufffd", "\x00")
}

// byteOrderMark begins the JSON and the forms of some senders, above all those of .NET.
const byteOrderMark = "\ufeff"

// jsonObject returns the members of a JSON object. They are not decoded, so that numbers reach
// the method with all their digits. The object is put on one line, because modules read one
// message per line. Errors are *fault.
func jsonObject(body []byte) (object, error) {
	body = bytes.TrimPrefix(body, []byte(byteOrderMark))
	if err := checkJSON(body, "the body"); err != nil {
		return nil, httpErrorf(http.StatusBadRequest, "%v", err)
	}
	list := members(oneLine(body))
	if list == nil {
		return nil, httpErrorf(http.StatusBadRequest, "the body must be a JSON object or array")
	}
	return list, nil
}

// formParams converts a form to parameters. values contains its files; formParams adds its texts. If
// a field named payload contains a JSON object, as GitHub sends it, the object replaces the form, unless
// the method has a parameter named payload. PHP and jQuery write [] behind the name of a list, which
// formParams leaves out, as readParts does. charset is the charset of the content type. If it is "",
// the field charset (PayPal) or _charset_ (HTML) gives the charset of all texts, or the field charsets
// (SendGrid) the charset of each. The parameters are sorted: errors and tests are then the same each time.
func formParams(texts url.Values, values jsonLists, charset string, s *schema) (list object) {
	charsets := members([]byte(clipText(texts.Get("charsets"), maxError)))
	for _, name := range sortedKeys(texts) {
		key := strings.TrimSuffix(name, "[]")
		named := cmp.Or(charset, texts.Get("charset"), texts.Get("_charset_"), charsets.text(name))
		for _, text := range texts[name] {
			text = decodeText(text, clipText(named, 100)) // else long names take long
			value := quote(text)
			if !utf8.ValidString(text) {
				value = object{textOrBase64([]byte(text))}.encode()
			}
			values[key] = append(values[key], value)
		}
	}
	// GitHub sends a field. A file of this name is not JSON to take apart.
	if sent := texts["payload"]; len(sent) == 1 && s.Properties["payload"] == nil {
		if payload, err := jsonObject([]byte(sent[0])); err == nil {
			return payload
		}
	}
	for _, name := range sortedKeys(values) {
		if value := fieldValue(s, s.property(name), values[name]); value != nil {
			list = append(list, member{name, value})
		}
	}
	return list
}

// textOrBase64 returns a member text with the bytes of a sender or, if they are not UTF-8, base64.
func textOrBase64(content []byte) member {
	if utf8.Valid(content) {
		return member{"text", quote(string(content))}
	}
	return member{"base64", marshal(content)}
}

// fieldValue returns the value of a parameter for the texts and files that a form or a command line
// gives it: a single text itself, the JSON in it, or a list, whichever the parameter's schema accepts
// first. Of several booleans the last counts, as a checkbox may have a hidden field before it. For
// a blank that is no value, fieldValue returns nil, because forms send blank fields too. Other
// values are refused by the check of arguments. root contains the schemas that s refers to.
func fieldValue(root, s *schema, values []json.RawMessage) json.RawMessage {
	parsed := slices.Clone(values)
	var text string // the last
	for i, value := range values {
		text, _ = unquote(value)
		if text == "on" { // from a checkbox without a value; those of Rails send 0 and 1
			text = "true"
		}
		if json.Valid([]byte(text)) {
			parsed[i] = oneLine([]byte(strings.TrimSpace(text)))
		}
	}
	tries := []json.RawMessage{marshal(values), marshal(parsed)}
	if len(values) == 1 {
		tries = append([]json.RawMessage{values[0], parsed[0]}, tries...)
	}
	if flag, err := strconv.ParseBool(text); err == nil {
		tries = append(tries, marshal(flag))
	}
	for _, try := range tries {
		if fits(root, s, try) {
			return try
		}
	}
	if string(tries[0]) == `""` {
		return nil
	}
	return tries[1] // parsed
}

// webhookAnswer is the answer to a delivery. A method that returns an object
// can set one as its "_response".
type webhookAnswer struct {
	Status  int
	Headers map[string]string
	Body    json.RawMessage // sent unchanged, except that a JSON string is sent as its text
}

// answerOf converts a tool's result to the answer. A method that returns an object answers
// with that object, and not with the text that MCP clients get beside it. An image or audio alone
// becomes its bytes.
func answerOf(result object) (*webhookAnswer, error) {
	text := resultText(result)
	if isTrue(result.get("isError")) {
		return nil, httpErrorf(http.StatusInternalServerError, "%s", text)
	}
	// Text is never an answer: a method may return what a sender wrote.
	if own := result.object("structuredContent").get("_response"); own != nil {
		return ownAnswer(own)
	}
	a := &webhookAnswer{Status: http.StatusOK, Body: json.RawMessage(text)}
	if blocks := items(result.get("content")); len(blocks) == 1 {
		data, mime := decodeMedia(members(blocks[0]).get("data"))
		if mime != "" {
			a.Body = data
			a.Headers = map[string]string{"Content-Type": mime}
			return a, nil
		}
	}
	// Numbers and words are valid JSON too, but whoever returns a text means a text.
	body := bytes.TrimSpace(a.Body)
	switch {
	case text == "":
		a.Status = http.StatusNoContent
	case !json.Valid(body) || body[0] != '{' && body[0] != '[':
		a.Body = quote(text)
	}
	return a, nil
}

// ownAnswer parses the answer that a method returned as "_response". It is strict, because a
// misspelt member would otherwise be an answer that nobody meant. The sender is not to blame,
// so the status is 502.
func ownAnswer(raw json.RawMessage) (*webhookAnswer, error) {
	a := &webhookAnswer{Status: http.StatusOK}
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.DisallowUnknownFields()
	err := decoder.Decode(a)
	if err == nil && (members(raw) == nil || a.Status < 200 || a.Status > 599) {
		err = errors.New("want an object with status (200 to 599), headers and body")
	}
	// net/http would drop or change such a header without a word.
	for name, value := range a.Headers {
		if !headerToken.MatchString(name) || strings.ContainsFunc(value, unicode.IsControl) {
			err = fmt.Errorf("header %q is invalid", name)
		}
	}
	if err != nil {
		return nil, httpErrorf(http.StatusBadGateway,
			"the method's _response is invalid: %v", err)
	}
	return a, nil
}

// write writes the answer. The method's own Content-Type takes precedence. If the answer finds no
// room, write sends only its status, because the method has run, and returns errNoRoom.
func (a *webhookAnswer) write(x *reservation) error {
	body := []byte(plainText(a.Body))
	kind := "application/json"
	if bytes.HasPrefix(a.Body, []byte{'"'}) {
		kind = "text/plain; charset=utf-8"
	}
	if x.grow(len(body)+len(marshal(a.Headers))) != nil {
		x.write(a.Status, "", nil)
		return errNoRoom
	}
	if len(body) > 0 {
		x.w.Header().Set("Content-Type", kind)
	}
	for _, name := range sortedKeys(a.Headers) { // the same of two spellings each time
		x.w.Header().Set(name, a.Headers[name])
	}
	x.write(a.Status, "", body)
	_ = x.flush() // while the headers count
	return nil
}

// writeWebhookError writes an error as {"error": …}. Many providers show the body to the
// person who set up the webhook.
func writeWebhookError(x *reservation, e *fault) {
	x.writeJSON(e.status(), object{{"error", quote(e.Message)}}.encode())
}
