// Package mcptest contains the other ends of usher's connections, for its tests: a fake MCP server
// (RunFake), which the test binary runs as a module; clients over HTTP (Client), and those that can be
// asked, of any revision and transport (AskClient); and a peer, which speaks to a module as the daemon
// does (Peer). It shares no code with usher and reads JSON with encoding/json, so that no parser of usher
// judges its own answers. A failure names the line of the test.
//
// The first comment of testkit_main_test.go says in which worlds usher runs for a test. In a bubble, use
// ClientOver, and no fake: a bubble has no processes.
//
// A fake is described by words, separated by spaces (WriteFake). Its traits are:
//
//	good            none
//	tools=a,b       its tools, each of which does what its name says, handle left out
//	toolsIn=FILE    its tools, as a JSON list of texts: see below
//	await=ADDRESS   answers initialize when nothing listens there any longer
//	child           starts a process that sleeps
//	dies            ends at once, with a word on stderr
//	fixed           does not declare that its tools may change
//	garbage         writes lines to stdout that are not JSON-RPC
//	grows           adds a tool as soon as it is initialized
//	modern          speaks 2026-07-28 only
//	mute            never answers
//	prompts=HOW     can't list its prompts, or has a list without end if HOW is endless
//	names           says for which call it asks, as usher's own shims do
//	res=NAME        has the resource NAME://one, the template NAME://many/{n} and the
//	                prompt say, and reports changes of subscribed resources
//	restless        adds a tool, and announces that, whenever it lists its tools
//	roots           asks for roots as soon as it is initialized
//	slowstart=MS    takes so long to initialize
//	twice           answers every call twice
//	wants           asks for a form in prompts/get, resources/read and
//	                resources/subscribe, and returns what came back
//
// A tool is written "NAME=DOES SCHEMA: DOC", of which only the name is required. It returns its arguments
// as structured content, or does one of:
//
//	ask             asks its client: see FakeAsk
//	big {bytes}     returns as many bytes
//	crash           ends the process by a signal
//	echo            returns its params as text, as does each word not listed here
//	env {name}      returns whether there is such a variable, and its value
//	error           answers with an error of its own
//	fail            returns a result that is an error
//	fault           answers with the JSON-RPC error of {code, message}
//	grow            adds a tool
//	hold, never     waits for release, or for its cancellation only
//	log             sends a log message {level, data}
//	pid             returns the id of its process
//	progress        reports progress n times, and waits for release after hold of them
//	release         lets all go on that wait for it
//	result {result} returns this result
//	roots           returns what came back to the fake of trait roots
//	runs            returns how often each tool was called
//	sleep {ms}      waits
//	touch {uri}     changes a resource
package mcptest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// latest is the revision of MCP without sessions.
const latest = "2026-07-28"

// message is a JSON-RPC message.
type message struct {
	Version string          `json:"jsonrpc"`
	ID      json.RawMessage `json:"id,omitempty"`
	Method  string          `json:"method,omitempty"`
	Params  json.RawMessage `json:"params,omitempty"`
	Result  json.RawMessage `json:"result,omitempty"`
	Error   *rpcError       `json:"error,omitempty"`
}

type rpcError struct {
	Code    int             `json:"code"`
	Message string          `json:"message"`
	Data    json.RawMessage `json:"data,omitempty"`
}

// params are the parameters that a fake reads, of any method.
type params struct {
	Meta      map[string]json.RawMessage `json:"_meta"`
	Name      string                     `json:"name"`
	URI       string                     `json:"uri"`
	Arguments json.RawMessage            `json:"arguments"`
	RequestID json.RawMessage            `json:"requestId"`
	Responses map[string]json.RawMessage `json:"inputResponses"`
	State     string                     `json:"requestState"`
}

func (m message) params() (p params) {
	json.Unmarshal(m.Params, &p)
	return p
}

// outcome returns an answer as JSON: its result, or what the error says.
func (m message) outcome() string {
	if m.Error != nil {
		return fmt.Sprintf(`{"code":%d,"refused":%s}`, m.Error.Code, encode(m.Error.Message))
	}
	return string(m.Result)
}

// result is the result of a tool.
type result struct {
	Type       string            `json:"resultType,omitempty"`
	Content    []json.RawMessage `json:"content"`
	Structured json.RawMessage   `json:"structuredContent,omitempty"`
	IsError    bool              `json:"isError,omitempty"`
}

func textResult(text string) *result {
	block := `{"type":"text","text":` + string(encode(text)) + `}`
	return &result{Content: []json.RawMessage{json.RawMessage(block)}}
}

// failure returns a result that is an error.
func failure(text string) *result {
	result := textResult(text)
	result.IsError = true
	return result
}

// structured returns a result with a value, which is JSON.
func structured(value string) *result {
	result := textResult(value)
	result.Structured = json.RawMessage(value)
	return result
}

// encode returns a value as JSON in one line, in which no character is escaped for HTML.
func encode(v any) json.RawMessage {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(v); err != nil {
		panic(err)
	}
	return bytes.TrimSpace(text.Bytes())
}

// Field returns the value under the last of keys in a JSON object, the others lead to it, or nil.
func Field[T ~[]byte | ~string](raw T, keys ...string) json.RawMessage {
	value := json.RawMessage(raw)
	for _, key := range keys {
		value = members(value)[key]
	}
	return value
}

// StringField is Field for a string, or "".
func StringField[T ~[]byte | ~string](raw T, keys ...string) (text string) {
	json.Unmarshal(Field(raw, keys...), &text)
	return text
}

// members returns the members of a JSON object, none for anything else.
func members(raw json.RawMessage) map[string]json.RawMessage {
	list := make(map[string]json.RawMessage)
	json.Unmarshal(raw, &list)
	return list
}

// with returns a JSON object with a member set. The others are as they were.
func with(raw json.RawMessage, key string, value json.RawMessage) json.RawMessage {
	list := members(raw)
	list[key] = value
	var texts []string
	for _, key := range slices.Sorted(maps.Keys(list)) {
		texts = append(texts, string(encode(key))+":"+string(list[key]))
	}
	return json.RawMessage("{" + strings.Join(texts, ",") + "}")
}

// withMeta returns params with a member of their _meta set.
func withMeta(params json.RawMessage, key string, value json.RawMessage) json.RawMessage {
	return with(params, "_meta", with(Field(params, "_meta"), key, value))
}

// Write writes a file, and makes the folders above it. A script that says what runs it can be run.
func Write(t testing.TB, path, text string) {
	Must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	mode := os.FileMode(0o644)
	if strings.HasPrefix(text, "#!") {
		mode = 0o755
	}
	// A process that another test starts meanwhile would inherit the open file, and a file
	// that is open for writing can't be run: "text file busy".
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	Must(t, os.WriteFile(path, []byte(text), mode))
}

// Patience is how long anything in a test may take before it has failed.
const Patience = time.Minute

// Await polls until ok. It is for conditions that no event announces.
func Await(t testing.TB, what string, ok func() bool) {
	deadline := time.After(Patience)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			Stop(t, "gave up waiting: %s", what)
		}
	}
}

// Binary returns the path of this program.
func Binary(t testing.TB) string {
	exe, err := os.Executable()
	Must(t, err)
	return exe
}

// Must ends the test if a step of its preparation fails.
func Must(t testing.TB, err error) {
	if err != nil {
		Stop(t, "%v", err)
	}
}

// report reports an error, with the line of the test, which may be many calls away.
func report(t testing.TB, format string, args ...any) {
	t.Helper()
	t.Errorf("%s: %s", testLine(), fmt.Sprintf(format, args...))
}

// Stop reports an error and ends the test.
func Stop(t testing.TB, format string, args ...any) {
	t.Helper()
	t.Fatalf("%s: %s", testLine(), fmt.Sprintf(format, args...))
}

// testLine returns the line of the test that calls this package, "" for a goroutine that no test runs.
func testLine() string {
	pcs := make([]uintptr, 100)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(0, pcs)])
	for frame, more := frames.Next(); more; frame, more = frames.Next() {
		name := filepath.Base(frame.File)
		if strings.HasSuffix(name, "_test.go") && !strings.HasPrefix(name, "testkit_") {
			return fmt.Sprintf("%s:%d", name, frame.Line)
		}
	}
	return ""
}
