// Tests of jsonrpc.go: parsers of lines, members and messages.

package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
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
		for r := bufio.NewReaderSize(bytes.NewReader(text), 16); ; {
			line, err := readLine(r, int(limit))
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
			if rpc := (*fault)(nil); !errors.As(err, &rpc) {
				t.Errorf("%q: an error of another kind: %v", raw, err)
			}
			return
		}
		if m.Method == "" && m.Result == nil && m.Err == nil {
			t.Errorf("%q: a message of no kind: %+v", raw, m)
		}
		if m.Method != "" && !json.Valid(encodeRequest(m.ID, m.Method, m.Params)) {
			t.Errorf("%q: can't be sent on", raw)
		}
	})
}

// An integer is the same number however it is written, and its digits are those of math/big.
func FuzzIntegerOf(f *testing.F) {
	for _, seed := range []string{
		"0", "-0", "0.0", "3.0", "3e0", "30e-1", "1E2", "-1.50e1", "1.5", "0e999999999999999999999",
		"1e400", "1e399", "1e-1", "1e99999999999999999999", "9223372036854775808", `"3"`, "null", "",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		raw = bytes.TrimSpace(raw)
		got, ok := integerOf(raw)
		if !json.Valid(raw) {
			return
		}
		_, power, _ := bytes.Cut(bytes.ToLower(raw), []byte("e"))
		var want string
		var isInteger bool
		if r, isNumber := new(big.Rat).SetString(string(raw)); isNumber && len(power) < 5 {
			isInteger = raw[0] != '"' && r.IsInt() && len(r.Num().Text(10)) <= 400
			want = r.Num().Text(10)
		} else if len(power) >= 5 {
			return // math/big would need too much memory
		}
		if ok != isInteger || ok && got != want {
			t.Errorf("%s: %q, %v, want %q, %v", raw, got, ok, want, isInteger)
		}
	})
}

// A quoted text is read back as the same, whichever character is special in it.
func TestQuote(t *testing.T) {
	for c := range rune(0x100) {
		var back string
		must(t, json.Unmarshal(quote("a"+string(c)+"z"), &back))
		check(t, fmt.Sprintf("U+%04X", c), back, "a"+string(c)+"z")
	}
	check(t, "a byte that is not UTF-8", string(quote("a\xffz")), `"a\ufffdz"`)
}

// Ids have the same key if they are the same number or the same text.
func TestIDKey(t *testing.T) {
	for _, tt := range []struct {
		a, b  string
		equal bool
	}{
		{"2", "2.0", true},
		{"2", "20e-1", true},
		{"-0", "0", true},
		{"18446744073709551617", "18446744073709551617.0", true},
		{"18446744073709551617", "18446744073709551616", false},
		{"2", `"2"`, false},
		{`"2.0"`, `"2"`, false},
	} {
		equal := idKey(json.RawMessage(tt.a)) == idKey(json.RawMessage(tt.b))
		check(t, tt.a+" is "+tt.b, equal, tt.equal)
	}
}

// Half a surrogate pair becomes U+FFFD, and nothing else changes.
func TestReplaceSurrogates(t *testing.T) {
	for _, tt := range [][2]string{
		{`"a"`, `"a"`},
		{`"\ud83d"`, `"\ufffd"`},
		{`"\uD83D\uDE00"`, `"\uD83D\uDE00"`},
		{`"\uDE00\uD83D"`, `"\ufffd\ufffd"`},
		{`"\ud83d\ud83d\ude00"`, `"\ufffd\ud83d\ude00"`},
		{`"\\ud83d"`, `"\\ud83d"`},
		{`"\\\ud83d\\"`, `"\\\ufffd\\"`},
		{`"\ud83d\n\ude00"`, `"\ufffd\n\ufffd"`},
		{`{"\udfff":["\ud800x"]}`, `{"\ufffd":["\ufffdx"]}`},
		{`"\u00e4\ud7ff\ue000"`, `"\u00e4\ud7ff\ue000"`},
		{`"\ud83`, `"\ud83`},
		{`\`, `\`},
		{`\udxyz`, `\udxyz`},
	} {
		got := replaceSurrogates([]byte(tt[0]))
		check(t, tt[0], string(got), tt[1])
	}
}

// An error is read as far as possible. Its code is a number, however it is written.
func TestErrorsOfPeersAreRead(t *testing.T) {
	for sent, want := range map[string]string{
		`{"code":-32601,"message":"m","data":[1]}`:   `{"code":-32601,"message":"m","data":[1]}`,
		`{"code":-32601.0,"message":"m","data":[1]}`: `{"code":-32601,"message":"m","data":[1]}`,
		`{"message":"m","code":-3.2e4}`:              `{"code":-32000,"message":"m"}`,
		`{"code":1.5,"message":"m"}`:                 `{"code":-32603,"message":"m"}`,
		`{"code":1e30,"message":"m"}`:                `{"code":-32603,"message":"m"}`,
		`{"code":"1","message":"m"}`:                 `{"code":-32603,"message":"m"}`,
		`{"message":["m"]}`:                          `{"code":-32603,"message":"unspecified error"}`,
		`"boom"`:                                     `{"code":-32603,"message":"unspecified error"}`,
	} {
		msg, err := parseMessage([]byte(`{"jsonrpc":"2.0","id":1,"error":` + sent + `}`))
		must(t, err)
		check(t, "the error "+sent, string(marshal(msg.Err)), want)
	}
}
