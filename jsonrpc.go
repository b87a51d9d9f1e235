// JSON-RPC 2.0 as MCP uses it: messages, ids, error codes, framing with one message per
// line. usher talks to clients and to module processes with it. Nothing here depends on either.
//
// Messages are carried as raw JSON. encoding/json checks that they are valid, but decodes
// only strings and errors: its structs match keys without regard to case ("METHOD" would
// override "method"), and its numbers lose digits.

package main

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// The error codes of JSON-RPC 2.0, section 5.1, and one of usher's own.
const (
	codeParse          = -32700
	codeInvalidRequest = -32600
	codeNoMethod       = -32601
	codeInvalidParams  = -32602
	codeInternal       = -32603
	codeRefused        = 1000 // refused by a transport or session; MCP reserves -32000 and its neighbours
)

// fault is an error with a text for clients and, if that does not say everything, a detail for the
// owner. Its JSON is the error member of a response.
type fault struct {
	Code    int             `json:"code"`
	Message string          `json:"message"` // for clients
	Data    json.RawMessage `json:"data,omitempty"`
	Status  int             `json:"-"` // of HTTP; 0 for an error of JSON-RPC: see the method status
	Err     error           `json:"-"` // for the owner, instead of Message; nil if Message says everything
}

func (e *fault) Error() string { return e.Message }
func (e *fault) Unwrap() error { return e.Err }

// rpcErrorf returns an error of JSON-RPC with a formatted message, cut to maxError bytes: it may repeat
// what a peer sent.
func rpcErrorf(code int, format string, args ...any) *fault {
	return &fault{Code: code, Message: clipText(fmt.Sprintf(format, args...), maxError)}
}

// asFault returns the outermost fault in err, or an internal error with err's text and HTTP status
// 500. err must not be nil.
func asFault(err error) *fault {
	if e, ok := errors.AsType[*fault](err); ok {
		return e
	}
	return &fault{Code: codeInternal, Status: http.StatusInternalServerError, Message: err.Error()}
}

// isRPC reports whether err, which must not be nil, is an error of JSON-RPC, which has a code and no
// HTTP status. All other errors have an HTTP status: see asFault.
func isRPC(err error) bool { return asFault(err).Status == 0 }

// Message is a JSON-RPC message. A request has a Method and an ID, a notification only a
// Method, and a response an ID and a Result or Err.
type Message struct {
	ID     json.RawMessage // a JSON string or integer, as sent (see idKey); nil for none
	Method string
	Params object // nil for none
	Result object // nil for none
	Err    *fault
}

func (m *Message) isRequest() bool { return m.Method != "" && m.ID != nil }

// parseMessage parses one message, whose values are then on one line, and splits its params
// or result. A null result counts as an empty one. Errors are *fault: codeParse for invalid
// JSON, codeInvalidRequest for an invalid message. Even then the returned message is not nil,
// and contains the id, if it is usable.
func parseMessage(raw []byte) (*Message, error) {
	raw = bytes.TrimPrefix(raw, []byte("\ufeff")) // a byte order mark, above all from .NET
	if err := checkJSON(raw, "the message"); err != nil {
		return &Message{}, err
	}
	o := members(oneLine(raw))
	params := o.get("params")
	m := &Message{Method: o.text("method"), Params: members(params), Result: o.object("result")}
	if string(o.get("result")) == "null" {
		m.Result = object{}
	}
	if e := o.get("error"); !isNull(e) {
		// A peer that sends a malformed error has failed anyway, so it is parsed as far as possible.
		m.Err = &fault{Code: codeInternal, Message: "unspecified error"}
		_ = json.Unmarshal(e, m.Err)
		digits, _ := integerOf(members(e).get("code")) // Unmarshal refuses -32000.0
		if code, err := strconv.Atoi(digits); err == nil {
			m.Err.Code = code
		}
	}
	id := o.get("id")
	_, isInteger := integerOf(id)
	if len(id) <= maxID && (isInteger || bytes.HasPrefix(id, []byte{'"'})) {
		m.ID = id
	}
	var problem string
	switch {
	case o == nil:
		problem = "want a JSON object: batches are not supported"
	case id != nil && m.ID == nil && m.Err == nil:
		problem = "id must be a string or an integer of at most " + formatSize(maxID)
	case o.text("jsonrpc") != "2.0":
		problem = `jsonrpc must be "2.0"`
	case m.Params == nil && !isNone(params):
		problem = "params must be an object"
	case m.Method == "" && m.Result == nil && m.Err == nil:
		problem = "a message needs a method, an object as its result, or an error"
	default:
		return m, nil
	}
	return m, rpcErrorf(codeInvalidRequest, "%s", problem)
}

// isNull reports whether a member is absent or null.
func isNull(raw json.RawMessage) bool { return raw == nil || string(raw) == "null" }

// isNone reports whether a member is absent, null or an empty list, as which some languages write
// an empty object.
func isNone(raw json.RawMessage) bool {
	return isNull(raw) || raw[0] == '[' && len(items(raw)) == 0
}

// isTrue reports whether a member is true.
func isTrue(raw json.RawMessage) bool { return string(raw) == "true" }

// idKey returns the same text for ids that are the same integer, however they are written.
func idKey(id json.RawMessage) string {
	if digits, ok := integerOf(id); ok {
		return digits
	}
	return string(id)
}

// integerOf returns the digits of a JSON number that is an integer, however it is written: 3 for
// 3.0 and 30e-1. It returns false for other values, and for more than 400 digits.
func integerOf(value json.RawMessage) (digits string, ok bool) {
	if len(value) == 0 || value[0] == '"' || value[0] > '9' {
		return "", false
	}
	if n, err := strconv.Atoi(string(value)); err == nil { // it is usually one
		return strconv.Itoa(n), true
	}
	mantissa, exponent, _ := strings.Cut(strings.ToLower(string(value)), "e")
	whole, fraction, _ := strings.Cut(mantissa, ".")
	whole, isNegative := strings.CutPrefix(whole, "-")
	shift, err := strconv.Atoi(cmp.Or(exponent, "0"))
	if err != nil || !consistsOf(whole+fraction, "0123456789") {
		return "", false
	}
	// digits begins with the first digit that is not 0; point is the position of the decimal point in it.
	digits = strings.TrimLeft(whole+fraction, "0")
	point := len(digits) - len(fraction) + shift
	digits = strings.TrimRight(digits, "0")
	switch {
	case digits == "":
		return "0", true
	case len(digits) > point || point > 400:
		return "", false
	case isNegative:
		digits = "-" + digits
		point++
	}
	return digits + strings.Repeat("0", point-len(digits)), true
}

// escapes matches the escapes in a JSON text: pairs of surrogates, half pairs, and others.
var escapes = regexp.MustCompile(`\\u[dD][89abAB]..\\u[dD][c-fC-F]..|\\u[dD][89a-fA-F]..|\\.`)

// replaceSurrogates returns a JSON text with U+FFFD in place of each half of a surrogate pair: no
// UTF-8 can contain it, and some decoders refuse the whole text because of it.
func replaceSurrogates(raw []byte) []byte {
	if !bytes.Contains(raw, []byte(`\u`)) {
		return raw
	}
	return escapes.ReplaceAllFunc(raw, func(escape []byte) []byte {
		if len(escape) == 6 {
			return []byte(`\ufffd`)
		}
		return escape
	})
}

// checkJSON returns an error unless raw is one valid JSON value in valid UTF-8, which
// json.Valid does not check. The error's text begins with what. encoding/json limits
// nesting to 10,000.
func checkJSON(raw []byte, what string) error {
	if !utf8.Valid(raw) {
		return rpcErrorf(codeParse, "%s is not valid UTF-8", what)
	}
	if json.Valid(raw) {
		return nil
	}
	reason, _ := errors.AsType[*json.SyntaxError](json.Unmarshal(raw, new(json.RawMessage)))
	line := 1 + bytes.Count(raw[:max(reason.Offset, 1)-1], []byte{'\n'})
	return rpcErrorf(codeParse, "%s is not valid JSON at line %d: %v", what, line, reason)
}

// versionMember is in every message.
var versionMember = member{"jsonrpc", json.RawMessage(`"2.0"`)}

// encodeRequest encodes a request, or a notification if id is nil, on one line, if its params
// are. Nil params are omitted.
func encodeRequest(id json.RawMessage, method string, params object) []byte {
	return object{versionMember, {"id", id}, {"method", quote(method)}}.encodeWith("params", params)
}

// encodeResult encodes a successful response.
func encodeResult(id json.RawMessage, result object) []byte {
	return object{versionMember, {"id", id}}.encodeWith("result", result)
}

// encodeError encodes an error response. It omits an absent id: unlike JSON-RPC, MCP's schema
// has no null ids.
func encodeError(id json.RawMessage, err error) []byte {
	return object{versionMember, {"id", id}, {"error", marshal(asFault(err))}}.encode()
}

// oneLine returns raw on one line, because a pretty-printed body would break framing. JSON
// strings contain no line breaks, so only white space is removed.
func oneLine(raw json.RawMessage) json.RawMessage {
	if !bytes.ContainsAny(raw, "\r\n") {
		return raw
	}
	var b bytes.Buffer
	_ = json.Compact(&b, raw)
	return b.Bytes()
}

// marshal encodes a value that is known to be encodable, without the HTML escapes of
// json.Marshal.
func marshal(v any) json.RawMessage {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(v)
	return bytes.TrimRight(buf.Bytes(), "\n")
}

// quote returns s as a JSON string.
func quote(s string) json.RawMessage { return appendQuoted(nil, s) }

// appendQuoted appends s to b as a JSON string.
func appendQuoted(b []byte, s string) []byte {
	isSpecial := func(c rune) bool { return c < ' ' || c > '~' || c == '"' || c == '\\' }
	if strings.ContainsFunc(s, isSpecial) {
		return append(b, marshal(s)...)
	}
	// Most strings need no escapes, and encoding/json is slow: it would take a tenth of a call's time.
	b = append(b, '"')
	b = append(b, s...)
	return append(b, '"')
}

// unquote decodes a JSON string, and reports whether raw is one.
func unquote(raw json.RawMessage) (s string, ok bool) {
	if len(raw) < 2 || raw[0] != '"' {
		return "", false
	}
	if !bytes.Contains(raw, []byte{'\\'}) { // it has no escapes: see appendQuoted
		return string(raw[1 : len(raw)-1]), true
	}
	err := json.Unmarshal(raw, &s)
	return s, err == nil
}

// plainText returns the text of a JSON string, "" for null or nil, and any other JSON unchanged.
func plainText(raw json.RawMessage) string {
	if text, ok := unquote(raw); ok {
		return text
	}
	return strings.TrimPrefix(string(raw), "null")
}

// object is a JSON object: its members, in order. Its methods do not modify it.
type object []member

type member struct {
	key   string
	value json.RawMessage
}

// members splits valid JSON that is an object, repeated keys included. It returns nil for
// any other value. From invalid JSON, it returns the members that it can read.
func members(raw json.RawMessage) object {
	text, ok := bytes.CutPrefix(bytes.TrimSpace(raw), []byte{'{'})
	if !ok {
		return nil
	}
	list := make(object, 0, 8)
	for {
		end := endOfItem(text)
		if end == len(text) || text[end] != ':' {
			return list
		}
		key, _ := unquote(bytes.TrimSpace(text[:end]))
		text = text[end+1:]
		end = endOfItem(text)
		list = append(list, member{key, slices.Clip(bytes.TrimSpace(text[:end]))})
		text = text[min(end+1, len(text)):]
	}
}

// encode returns the object's text, without members whose value is nil.
func (o object) encode() json.RawMessage { return o.appendTo(make([]byte, 0, o.size())) }

// encodeWith returns the text of the object with one more member, an object, unless that is nil. It
// copies the member, which may be large, only once. There is room for a newline.
func (o object) encodeWith(key string, last object) []byte {
	b := o.appendTo(make([]byte, 0, o.size()+len(key)+last.size()+len(`,"":`)))
	if last == nil {
		return b
	}
	b = append(appendQuoted(append(b[:len(b)-1], ','), key), ':')
	return append(last.appendTo(b), '}')
}

// appendTo appends the object's text to b.
func (o object) appendTo(b []byte) []byte {
	b = append(b, '{')
	for _, f := range o {
		if f.value == nil {
			continue
		}
		b = append(appendQuoted(b, f.key), ':')
		b = append(b, f.value...)
		b = append(b, ',')
	}
	return append(bytes.TrimSuffix(b, []byte{','}), '}')
}

// size returns about how many bytes the object's text has.
func (o object) size() int {
	size := 2
	for _, f := range o {
		size += len(f.key) + len(f.value) + len(`"":,`)
	}
	return size
}

// get returns the value of key, or nil. If the key repeats, the last value counts, as in
// JSON decoders.
func (o object) get(key string) json.RawMessage {
	for _, f := range slices.Backward(o) {
		if f.key == key {
			return f.value
		}
	}
	return nil
}

// text returns the string under key, or "" if there is none.
func (o object) text(key string) string {
	s, _ := unquote(o.get(key))
	return s
}

// object returns the members of the object under key, or nil if there is none.
func (o object) object(key string) object { return members(o.get(key)) }

// set returns the object with key set to value, at the end.
func (o object) set(key string, value json.RawMessage) object {
	return append(o.without(key), member{key, value})
}

// without returns the object without these keys.
func (o object) without(keys ...string) object {
	return slices.DeleteFunc(slices.Clone(o), func(f member) bool { return slices.Contains(keys, f.key) })
}

// items returns the items of a JSON array, or nil for any other value.
func items(raw json.RawMessage) (list []json.RawMessage) {
	_ = json.Unmarshal(raw, &list)
	return list
}

// endOfItem returns the index of the end of the key or value that b begins with: a colon,
// a comma, a closing bracket without its opening one, or the end of b.
func endOfItem(b []byte) int {
	depth := 0
	for i := 0; i < len(b); i++ {
		switch b[i] {
		case '"':
			for i++; i < len(b) && b[i] != '"'; i++ {
				if b[i] == '\\' {
					i++
				}
			}
		case '{', '[':
			depth++
		case '}', ']':
			if depth == 0 {
				return i
			}
			depth--
		case ',', ':':
			if depth == 0 {
				return i
			}
		}
	}
	return len(b)
}

// isDeeper reports whether JSON nests more than most objects and arrays.
func isDeeper(raw []byte, most int) bool {
	depth := 0
	inString := false
	for i := 0; i < len(raw); i++ {
		switch b := raw[i]; {
		case b == '"':
			inString = !inString
		case inString && b == '\\':
			i++
		case inString:
		case b == '{' || b == '[':
			depth++
			if depth > most {
				return true
			}
		case b == '}' || b == ']':
			depth--
		}
	}
	return false
}

// remove returns the list without an item. It changes the list.
func remove[T comparable](list []T, item T) []T {
	return slices.DeleteFunc(list, func(other T) bool { return other == item })
}

// sortedKeys returns the keys of a map in order.
func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// errLineTooLong reports a line over the limit of readLine, which returns it together with the first
// KiB of the line and skips the rest. Reading can continue.
var errLineTooLong error = rpcErrorf(codeInvalidRequest, "the line is too long")

// readLine returns the next line that is not blank, without white space at its end. A last line
// without a newline counts. The caller owns the bytes. The error is errLineTooLong, for a line of more
// than limit bytes, or r's.
func readLine(r *bufio.Reader, limit int) ([]byte, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		if len(line) <= limit+1 {
			line = append(line, part...)
		}
		if err == bufio.ErrBufferFull {
			continue
		}
		if len(line) > limit+1 {
			return bytes.Clone(line[:min(len(line), 1<<10)]), errLineTooLong
		}
		line = bytes.TrimRight(line, " \t\r\n")
		if len(line) > 0 {
			return line, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

// wake sends to a 1-buffered channel, unless it is full.
func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// formatSize formats a number of bytes for people, in the units that flags accept.
func formatSize(n int64) string {
	for _, unit := range []string{"bytes", "KiB", "MiB"} {
		if n%1024 != 0 || n == 0 {
			return fmt.Sprint(n, " ", unit)
		}
		n /= 1024
	}
	return fmt.Sprint(n, " GiB")
}
