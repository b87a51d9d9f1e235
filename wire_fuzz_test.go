// Fuzz tests of what clients write by hand: event ids, headers, states
// of parked calls, and what a request says of itself.

package main

import (
	"encoding/base64"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"unicode/utf8"
)

func FuzzParseEventID(f *testing.F) {
	kept := &keptStream{id: "p1"}
	o := newOutbox(account{memory: newMemory(0)}, &connection{}, kept)
	o.keepLocked(frame{msg: []byte("1")})
	o.keepLocked(frame{msg: []byte("2")})
	f.Add(kept.eventID(0))
	f.Add(kept.eventID(2))
	f.Fuzz(func(t *testing.T, s string) {
		id, n := parseEventID(s)
		if id == "" {
			return
		}
		if n < 0 || !strings.HasPrefix(s, id+"-") {
			t.Fatalf("%q is message %d of %q", s, n, id)
		}
		missed, ok := o.after(n)
		if ok != (n <= 2) || ok && len(missed) != 2-n {
			t.Fatalf("after %d there are %d", n, len(missed))
		}
		if again, m := parseEventID((&keptStream{id: id}).eventID(n)); again != id || m != n {
			t.Fatalf("%q came back as %q, %d", s, again, m)
		}
	})
}

func FuzzDecodeHeader(f *testing.F) {
	f.Fuzz(func(t *testing.T, value string) {
		got, ok := decodeHeader(value)
		coded := strings.HasPrefix(value, "=?base64?") && strings.HasSuffix(value[9:], "?=")
		switch {
		case ok && !coded && got != value:
			t.Fatalf("%q was read as %q", value, got)
		case ok && coded && "=?base64?"+base64.StdEncoding.EncodeToString([]byte(got))+"?=" != value:
			t.Fatalf("%q was read as %q, which is written otherwise", value, got)
		}
		encoded := "=?base64?" + base64.StdEncoding.EncodeToString([]byte(value)) + "?="
		if back, ok := decodeHeader(encoded); !ok || back != value {
			t.Fatalf("%q came back as %q", value, back)
		}
		twice := http.Header{nameHeader: {value, value}}
		if checkHeader(twice, nameHeader, "name", quote(value)) == nil {
			t.Fatal("a header twice is taken")
		}
	})
}

func FuzzCheckStateless(f *testing.F) {
	f.Fuzz(func(t *testing.T, meta, version, method string) {
		params := json.RawMessage(`{"_meta":` + meta + `}`)
		if checkJSON(params, "it") != nil || !utf8.ValidString(method) || method == "" {
			return
		}
		msg, err := parseMessage(encodeRequest(json.RawMessage("1"), method, params))
		if err != nil {
			t.Fatalf("%q: %v", params, err)
		}
		list := parseParams(msg.Params)
		h := http.Header{protocolHeader: {version}, methodHeader: {method}}
		if version == "" {
			h.Del(protocolHeader)
		}
		if !isStateless(h, list) {
			return
		}
		session, err := newStatelessSession(h, msg.Method, list, Principal{})
		if err == nil {
			said := field(msg.Params, "_meta")
			object := isObject(field(said, metaClientCaps))
			versions := version == statelessProtocol && stringField(said, metaProtocol) == version
			if !versions || !object {
				t.Fatalf("%s %s %q was let in", meta, version, method)
			}
			if session.era != stateless || session.token.Claim != (Principal{}) {
				t.Fatalf("%s: it has the session %+v", meta, session)
			}
			return
		}
		switch rpc := asRPCError(err); rpc.Code {
		case codeHeaderMismatch, codeInvalidParams:
		case codeUnsupportedVersion:
			if !json.Valid(rpc.Data) || field(rpc.Data, "supported") == nil || field(rpc.Data, "requested") == nil {
				t.Fatalf("%s", rpc.Data)
			}
		default:
			t.Fatalf("%d %v", rpc.Code, err)
		}
		if rpcStatus(asRPCError(err).Code) < 400 {
			t.Fatalf("%v has a status of success", err)
		}
	})
}
