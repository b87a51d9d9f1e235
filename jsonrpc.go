// JSON-RPC 2.0 as MCP uses it: messages, ids, error codes, the framing of one
// message a line, and the table of requests in flight. The server and the
// workers both speak through this file; it knows neither of them.
//
// Messages are carried as raw JSON. encoding/json is asked whether a message is
// valid and is then kept out of it: its structs match keys without regard to
// case ("METHOD" would override "method"), and its numbers lose digits.

package main

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"
)

// The error codes of JSON-RPC 2.0, section 5.1.
const (
	codeParse          = -32700
	codeInvalidRequest = -32600
	codeNoMethod       = -32601
	codeInvalidParams  = -32602
	codeInternal       = -32603
	codeRefused        = 1000 // ours: a transport's or a session's refusal; MCP 2026-07-28 keeps -32000 and its like to itself
)

// rpcError is the error member of a response. As an error value it is one that
// may be shown to the peer as it stands.
type rpcError struct {
	Code    int
	Message string
	Data    json.RawMessage // absent when nil
}

func (e *rpcError) Error() string { return e.Message }

func rpcErrorf(code int, format string, args ...any) *rpcError {
	return &rpcError{Code: code, Message: fmt.Sprintf(format, args...)}
}

// Message is one JSON-RPC message. Method and ID tell a request; Method alone a
// notification; ID with Result or Err a response.
type Message struct {
	ID     json.RawMessage // as it was sent: a JSON string or integer; nil for none
	Method string
	Params json.RawMessage // an object, or nil
	Result json.RawMessage
	Err    *rpcError
}

func (m *Message) isRequest() bool      { return m.Method != "" && m.ID != nil }
func (m *Message) isNotification() bool { return m.Method != "" && m.ID == nil }

// parseMessage reads one message. Its errors are *rpcError: codeParse for what
// is no JSON, codeInvalidRequest for what is no message; with the latter the
// returned message holds the id, if there was a usable one.
func parseMessage(raw []byte) (*Message, error) {
	if err := checkJSON(raw, "the message"); err != nil {
		return nil, err
	}
	return parseValidMessage(raw)
}

// checkJSON refuses what is not one valid JSON value in valid UTF-8, which
// json.Valid alone does not see; what is the subject of the error. Nesting is
// limited by encoding/json to 10,000.
func checkJSON(raw []byte, what string) error {
	switch {
	case !utf8.Valid(raw):
		return rpcErrorf(codeParse, "%s is not valid UTF-8", what)
	case json.Valid(raw):
		return nil
	case len(bytes.TrimSpace(raw)) == 0:
		return rpcErrorf(codeParse, "%s is empty", what)
	}
	return rpcErrorf(codeParse, "%s is not valid JSON: %v", what, json.Unmarshal(raw, new(json.RawMessage))) // only now, for the reason
}

// parseValidMessage is parseMessage for JSON that was checked already.
func parseValidMessage(raw []byte) (*Message, error) {
	o, ok := members(raw)
	if !ok {
		return &Message{}, rpcErrorf(codeInvalidRequest, "a message must be a JSON object")
	}
	method := o.get("method")
	m := &Message{Params: o.get("params"), Result: o.get("result")}
	id := o.get("id")
	if _, err := strconv.ParseInt(string(id), 10, 64); err == nil || bytes.HasPrefix(id, []byte{'"'}) {
		m.ID = id
	} else if id != nil && (method != nil || m.Result != nil) {
		return m, rpcErrorf(codeInvalidRequest, "id must be a string or an integer")
	}
	if string(o.get("jsonrpc")) != `"2.0"` {
		return m, rpcErrorf(codeInvalidRequest, `jsonrpc must be "2.0"`)
	}
	if method == nil {
		if e := o.get("error"); e != nil {
			m.Err = parseRPCError(e)
		} else if m.Result == nil {
			return m, rpcErrorf(codeInvalidRequest, "a message needs a method, a result or an error")
		}
		return m, nil
	}
	if m.Method, ok = unquote(method); !ok || m.Method == "" {
		return m, rpcErrorf(codeInvalidRequest, "method must be a non-empty string")
	}
	if m.Params != nil && m.Params[0] != '{' {
		return m, rpcErrorf(codeInvalidRequest, "params must be an object")
	}
	m.Result = nil
	return m, nil
}

// parseRPCError reads an error member as well as can be: a peer that sends a
// malformed one has failed all the same.
func parseRPCError(raw json.RawMessage) *rpcError {
	e := &rpcError{Code: codeInternal, Message: cmp.Or(stringField(raw, "message"), "unspecified error"), Data: field(raw, "data")}
	if n, err := strconv.Atoi(string(field(raw, "code"))); err == nil {
		e.Code = n
	}
	return e
}

// encode writes the message on one line; raw members are copied as they are. An
// error's id is left out where there is none: MCP's schema, unlike JSON-RPC, has
// no null ids.
func (m *Message) encode() []byte {
	b := make([]byte, 0, 64+len(m.ID)+len(m.Method)+len(m.Params)+len(m.Result))
	b = append(b, `{"jsonrpc":"2.0"`...)
	add := func(key string, value json.RawMessage) {
		if value != nil {
			b = append(append(append(append(b, `,"`...), key...), `":`...), oneLine(value)...)
		}
	}
	add("id", m.ID)
	if m.Method != "" {
		b = append(append(b, `,"method":`...), quote(m.Method)...)
	}
	add("params", m.Params)
	add("result", m.Result)
	if m.Err != nil {
		b = strconv.AppendInt(append(b, `,"error":{"code":`...), int64(m.Err.Code), 10)
		b = append(append(b, `,"message":`...), quote(m.Err.Message)...)
		add("data", m.Err.Data)
		b = append(b, '}')
	}
	return append(b, '}')
}

// encodeRequest is a request, or without an id a notification.
func encodeRequest(id json.RawMessage, method string, params json.RawMessage) []byte {
	return (&Message{ID: id, Method: method, Params: params}).encode()
}

func encodeResult(id json.RawMessage, result json.RawMessage) []byte {
	return (&Message{ID: id, Result: result}).encode()
}

func encodeError(id json.RawMessage, e *rpcError) []byte { return (&Message{ID: id, Err: e}).encode() }

// asRPCError makes any error one that can be sent: an *rpcError as it is, all
// others as internal errors with their text.
func asRPCError(err error) *rpcError {
	if e := (*rpcError)(nil); errors.As(err, &e) {
		return e
	}
	return rpcErrorf(codeInternal, "%v", err)
}

// oneLine returns raw on one line: a pretty-printed body would break framing.
// Inside JSON strings line breaks are always escaped, so only white space goes.
func oneLine(raw json.RawMessage) json.RawMessage {
	if bytes.IndexByte(raw, '\n') < 0 && bytes.IndexByte(raw, '\r') < 0 { // many times as fast as ContainsAny
		return raw
	}
	var b bytes.Buffer
	_ = json.Compact(&b, raw)
	return b.Bytes()
}

// quote returns s as a JSON string, without the HTML escapes that json.Marshal
// adds.
func quote(s string) json.RawMessage { return appendQuoted(nil, s) }

func appendQuoted(b []byte, s string) []byte {
	if !strings.ContainsFunc(s, func(c rune) bool { return c < ' ' || c > '~' || c == '"' || c == '\\' }) {
		return append(append(append(b, '"'), s...), '"')
	}
	return append(b, marshal(s)...)
}

// unquote reads a JSON string.
func unquote(raw json.RawMessage) (string, bool) {
	if len(raw) < 2 || raw[0] != '"' {
		return "", false
	}
	if body := raw[1 : len(raw)-1]; bytes.IndexByte(body, '\\') < 0 {
		return string(body), true
	}
	var s string
	err := json.Unmarshal(raw, &s)
	return s, err == nil
}

// marshal is json.Marshal without HTML escapes, for values that can't fail.
func marshal(v any) json.RawMessage {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(v)
	return bytes.TrimRight(buf.Bytes(), "\n")
}

// object is a JSON object by its members, in order. Its methods return a new one.
type object []member

type member struct {
	key   string
	value json.RawMessage
}

// encode is the object's text.
func (o object) encode() json.RawMessage {
	size := 2
	for _, f := range o {
		size += len(f.key) + len(f.value) + len(`"":,`)
	}
	b := append(make([]byte, 0, size), '{')
	for _, f := range o {
		b = append(appendQuoted(b, f.key), ':')
		b = append(append(b, f.value...), ',')
	}
	return append(bytes.TrimSuffix(b, []byte{','}), '}')
}

// get returns the value under key: the last one, as JSON decoders have it, or
// nil.
func (o object) get(key string) json.RawMessage {
	for _, f := range slices.Backward(o) {
		if f.key == key {
			return f.value
		}
	}
	return nil
}

// text returns the string under key, or "" if there is no string.
func (o object) text(key string) string {
	s, _ := unquote(o.get(key))
	return s
}

// set has value under key: in its place where key stands already, else at the
// end.
func (o object) set(key string, value json.RawMessage) object {
	i := slices.IndexFunc(o, func(f member) bool { return f.key == key })
	if i < 0 {
		return append(slices.Clip(o), member{key, value})
	}
	out := append(slices.Clone(o[:i]), member{key, value})
	return append(out, o[i+1:].without(key)...)
}

// without leaves out the members of these keys.
func (o object) without(keys ...string) object {
	return slices.DeleteFunc(slices.Clone(o), func(f member) bool { return slices.Contains(keys, f.key) })
}

// isObject reports whether valid JSON is an object.
func isObject(raw json.RawMessage) bool {
	raw = bytes.TrimSpace(raw)
	return len(raw) > 0 && raw[0] == '{'
}

// fields goes through the members of a JSON object, in order. A key that repeats
// comes as often as it was written. Of what is no object it yields nothing; of what
// is no valid JSON, as much as can be read.
func fields(raw json.RawMessage) iter.Seq2[string, json.RawMessage] {
	return func(yield func(string, json.RawMessage) bool) {
		for quoted, value := range quotedFields(raw) {
			if key, ok := unquote(quoted); !ok || !yield(key, value) {
				return
			}
		}
	}
}

// quotedFields is fields with the keys as they are written.
func quotedFields(raw json.RawMessage) iter.Seq2[json.RawMessage, json.RawMessage] {
	return func(yield func(key, value json.RawMessage) bool) {
		if !isObject(raw) {
			return
		}
		rest := raw[bytes.IndexByte(raw, '{')+1:]
		for {
			end := endOfItem(rest)
			key := bytes.TrimSpace(rest[:end])
			if end == len(rest) || rest[end] != ':' {
				return // at the object's end
			}
			rest = rest[end+1:]
			end = endOfItem(rest)
			if value := bytes.TrimSpace(rest[:end]); !yield(key, slices.Clip(value)) || end == len(rest) {
				return
			}
			rest = rest[end+1:]
		}
	}
}

// members splits valid JSON that is an object, and reports false for any other.
func members(raw json.RawMessage) (object, bool) {
	if !isObject(raw) {
		return nil, false
	}
	list := make(object, 0, 8)
	for key, value := range fields(raw) {
		list = append(list, member{key, value})
	}
	return list, true
}

// field returns the member of a valid JSON object with this key: the last one,
// or nil.
func field(raw json.RawMessage, key string) json.RawMessage {
	var last json.RawMessage
	for quoted, value := range quotedFields(raw) {
		if isKey(quoted, key) {
			last = value
		}
	}
	return last
}

// isKey reports whether key is what a JSON string says. It makes no copy of what has
// no escapes: fields are looked for many times in each request.
func isKey(quoted json.RawMessage, key string) bool {
	if bytes.IndexByte(quoted, '\\') < 0 {
		return len(quoted) == len(key)+2 && quoted[0] == '"' && string(quoted[1:len(key)+1]) == key
	}
	text, ok := unquote(quoted)
	return ok && text == key
}

// withMember returns a JSON object with key set to value.
func withMember(raw json.RawMessage, key string, value json.RawMessage) json.RawMessage {
	list, _ := members(raw)
	return list.set(key, value).encode()
}

// dropMembers returns a JSON object without the members of these keys: as it was
// written, where it has none of them.
func dropMembers(raw json.RawMessage, keys ...string) json.RawMessage {
	list, _ := members(raw)
	if kept := list.without(keys...); len(kept) < len(list) {
		return kept.encode()
	}
	return raw
}

// withoutLookalikes drops the members that a decoder could take for those of the known
// keys: repeats, of which the last stays, and keys that differ in case, which
// encoding/json accepts.
func (o object) withoutLookalikes(known ...string) object {
	var kept object
	seen := make(map[string]bool)
	for _, f := range slices.Backward(o) {
		i := slices.IndexFunc(known, func(key string) bool { return strings.EqualFold(key, f.key) })
		if i >= 0 && (f.key != known[i] || seen[f.key]) {
			continue
		}
		if i >= 0 {
			seen[f.key] = true
		}
		kept = append(kept, f)
	}
	slices.Reverse(kept)
	return kept
}

// stringField is field for a string; "" for any other.
func stringField(raw json.RawMessage, key string) string {
	s, _ := unquote(field(raw, key))
	return s
}

// joinItems makes an array of its items.
func joinItems(items []json.RawMessage) json.RawMessage {
	b := []byte{'['}
	for _, item := range items {
		b = append(append(b, item...), ',')
	}
	return append(bytes.TrimSuffix(b, []byte{','}), ']')
}

// sortedKeys is the keys of a map in order.
func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// endOfItem returns the index of what ends the key or value that b begins with: a
// colon, a comma, a bracket that closes more than it opens, or the end.
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
			if depth--; depth < 0 {
				return i
			}
		case ',', ':':
			if depth == 0 {
				return i
			}
		}
	}
	return len(b)
}

// errLineTooLong is what a lineReader returns, once, for a line over its limit.
// The line is skipped; reading can go on.
var errLineTooLong error = rpcErrorf(codeInvalidRequest, "the line is too long")

// lineReader reads newline-delimited messages with a limit on their length.
// It is for one goroutine.
type lineReader struct {
	r     *bufio.Reader
	limit int
}

func newLineReader(r io.Reader, limit int) *lineReader {
	return &lineReader{bufio.NewReaderSize(r, 64<<10), limit}
}

// next returns the next line that is not blank, without its end. The bytes are
// the caller's. A last line without a newline counts.
func (l *lineReader) next() ([]byte, error) {
	var line []byte
	tooLong := false
	for {
		part, err := l.r.ReadSlice('\n')
		if line = append(line, part...); len(line) > l.limit+1 {
			line, tooLong = line[:0], true
		}
		if err == bufio.ErrBufferFull {
			continue
		}
		if tooLong {
			return nil, errLineTooLong
		}
		if line = bytes.TrimSpace(line); len(line) > 0 {
			return line, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

// wake makes a 1-buffered channel ready.
func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// inflight is the table of requests that were sent or received and not yet
// answered, by key. It is safe for concurrent use; the zero value is empty.
type inflight[T any] struct {
	mu     sync.Mutex
	m      map[string]T
	closed error
}

// add puts v in under key. It reports an error when the key is taken, or when
// the table was closed: the error that it was closed with.
func (t *inflight[T]) add(key string, v T) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed != nil {
		return t.closed
	}
	if _, taken := t.m[key]; taken {
		return rpcErrorf(codeInvalidRequest, "a request with the id %s is already being answered", key)
	}
	if t.m == nil {
		t.m = make(map[string]T)
	}
	t.m[key] = v
	return nil
}

// size is how much is in the table now.
func (t *inflight[T]) size() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.m)
}

// remove removes and returns what stands under key.
func (t *inflight[T]) remove(key string) (T, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	v, ok := t.m[key]
	delete(t.m, key)
	return v, ok
}

// close empties the table, refuses further entries with err, and returns what
// was in it.
func (t *inflight[T]) close(err error) []T {
	t.mu.Lock()
	defer t.mu.Unlock()
	list := slices.Collect(maps.Values(t.m))
	t.m, t.closed = nil, err
	return list
}
