// The wire: messages and their members, and lines.

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"testing"
)

func FuzzMembers(f *testing.F) {
	f.Add([]byte(`{"a":1,"b":{"c":[1,"}",{}]},"\u00e9\"":"\\","d":-1.5e+3 , "e":null}`))
	f.Add([]byte("{\n\t\"a\" : [ ] , \"a\" : true\r}"))
	f.Add([]byte(`[]`))
	f.Add([]byte(`{"abcde\`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		if checkJSON(raw, "it") != nil {
			members(slices.Clip(raw)) // of text that is none it need only return
			field(raw, "a")
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
		got := map[string]json.RawMessage{}
		for _, m := range list {
			got[m.key] = m.value
		}
		for key, value := range want {
			if !bytes.Equal(got[key], value) || !bytes.Equal(field(raw, key), value) {
				t.Errorf("%q: %q is %q, its field %q, want %q", raw, key, got[key], field(raw, key), value)
			}
		}
		if len(got) != len(want) || !json.Valid(list.encode()) {
			t.Errorf("%q: %d members, want %d; joined %s", raw, len(got), len(want), list.encode())
		}
		if line := oneLine(raw); bytes.ContainsAny(line, "\r\n") || !json.Valid(line) {
			t.Errorf("%q on one line: %q", raw, line)
		}
	})
}

func FuzzParseMessage(f *testing.F) {
	f.Add([]byte(`{"jsonrpc":"2.0","id":1,"method":"ping","params":{}}`))
	f.Add([]byte(`{"jsonrpc":"2.0","id":"x","error":{"code":-1,"message":"m","data":[]}}`))
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
