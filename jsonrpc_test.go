// Tests of jsonrpc.go: parsers of lines, members and messages.

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"testing"
)

// Lines are read in order, without those that are blank or too long.
func FuzzLineReader(f *testing.F) {
	f.Add(append(bytes.Repeat([]byte("x"), 70_000), "\nok"...), uint8(200))
	f.Fuzz(func(t *testing.T, text []byte, limit uint8) {
		var want []string
		for line := range bytes.Lines(text) {
			if len(line) > int(limit)+1 { // with its end
				want = append(want, "(too long)")
			} else if line = bytes.TrimRight(line, " \t\r\n"); len(line) > 0 {
				want = append(want, string(line))
			}
		}
		var got []string
		for r := newLineReader(bytes.NewReader(text), int(limit)); ; {
			line, err := r.next()
			if err == io.EOF {
				break
			}
			if errors.Is(err, errLineTooLong) {
				line = []byte("(too long)")
			} else if err != nil {
				t.Fatal(err)
			}
			got = append(got, string(line))
		}
		if !slices.Equal(got, want) {
			t.Fatalf("%q within %d: %q, want %q", text, limit, got, want)
		}
	})
}

// The members of an object are those that encoding/json finds, and the last of repeated
// ones counts.
func FuzzMembers(f *testing.F) {
	f.Fuzz(func(t *testing.T, raw []byte) {
		if checkJSON(raw, "it") != nil {
			members(slices.Clip(raw)) // of text that is none it need only return
			return
		}
		var want map[string]json.RawMessage
		isObject := json.Unmarshal(raw, &want) == nil && want != nil
		list := members(raw)
		if ok := list != nil; ok != isObject {
			t.Fatalf("%q: an object: %v, want %v", raw, ok, isObject)
		}
		if !isObject {
			return
		}
		keys := make(map[string]bool)
		for _, m := range list {
			keys[m.key] = true
		}
		for key, value := range want {
			if !bytes.Equal(list.get(key), value) {
				t.Errorf("%q: %q is %q, want %q", raw, key, list.get(key), value)
			}
		}
		if len(keys) != len(want) || !json.Valid(list.encode()) {
			t.Errorf("%q: %d members, want %d; joined %s", raw, len(keys), len(want),
				list.encode())
		}
		if line := oneLine(raw); bytes.ContainsAny(line, "\r\n") || !json.Valid(line) {
			t.Errorf("%q on one line: %q", raw, line)
		}
	})
}

// A message that is accepted is a request, a notification or an answer, and can be sent on.
func FuzzParseMessage(f *testing.F) {
	f.Fuzz(func(t *testing.T, raw []byte) {
		m, err := parseMessage(raw)
		if err != nil {
			if rpc := (*rpcError)(nil); !errors.As(err, &rpc) {
				t.Errorf("%q: an error of another kind: %v", raw, err)
			}
			return
		}
		if !m.isRequest() && !m.isNotification() && m.Result == nil && m.Err == nil {
			t.Errorf("%q: a message of no kind: %+v", raw, m)
		}
		if m.Method != "" && !json.Valid(encodeRequest(m.ID, m.Method, m.Params)) {
			t.Errorf("%q: can't be sent on", raw)
		}
	})
}
