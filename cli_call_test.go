// Tests of usher call: its words.

package main

import (
	"strings"
	"testing"
)

// wordsSchema has a parameter of each type.
const wordsSchema = `{"type":"object","properties":{"text":{"type":"string"},` +
	`"n":{"type":"integer"},"x":{"type":"number"},"on":{"type":"boolean"},` +
	`"list":{"type":"array","items":{"type":"string"}},` +
	`"ints":{"type":"array","items":{"type":"integer"}},"o":{"type":"object"},"any":{},` +
	`"maybe":{"anyOf":[{"type":"integer"},{"type":"null"}]},"kind":{"enum":["1",2]},` +
	`"ref":{"$ref":"#/$defs/R"},"lost":{"$ref":"#/$defs/none"}},"$defs":{"R":{"type":"boolean"}}}`

// The words of a call become what the tool's schema wants, whatever names it.
func TestCallReadsWords(t *testing.T) {
	long(t)
	dir := t.TempDir()
	writeTools(t, dir+"/m.usher", "take "+wordsSchema)
	for _, tt := range []struct{ words, want string }{
		{`text=Ada`, `{"text":"Ada"}`},
		{`text=5`, `{"text":"5"}`},
		{`text=`, `{"text":""}`},
		{`text=a=b`, `{"text":"a=b"}`},
		{`text={"a":1}`, `{"text":"{\"a\":1}"}`},
		{`n=5 x=2.50 on=true`, `{"n":5,"on":true,"x":2.50}`},
		{`n=five`, `{"n":"five"}`},
		{`list=a`, `{"list":["a"]}`},
		{`list=1 list=b`, `{"list":["1","b"]}`},
		{`list=["a","b"]`, `{"list":["a","b"]}`},
		{`ints=1 ints=2`, `{"ints":[1,2]}`},
		{`ints=1`, `{"ints":[1]}`},
		{`o={"a":[1]}`, `{"o":{"a":[1]}}`},
		{`any=1`, `{"any":"1"}`},
		{`any=1 any=x`, `{"any":["1","x"]}`},
		{`maybe=null`, `{"maybe":null}`},
		{`maybe=7`, `{"maybe":7}`},
		{`kind=1`, `{"kind":"1"}`},
		{`kind=2`, `{"kind":2}`},
		{`ref=false`, `{"ref":false}`},
		{`lost=1`, `{"lost":"1"}`},
		{`other=1`, `{"other":"1"}`},
		{`n=18446744073709551617`, `{"n":18446744073709551617}`},
		{`{"n":1}`, `{"n":1}`},
		{`-`, `{"text":"stdin"}`},
	} {
		t.Run(tt.words, func(t *testing.T) {
			for _, where := range []string{"m take -dir " + dir, "m_take -dir " + dir} {
				name, flags, _ := strings.Cut(where, " -")
				args := append([]string{"call"}, strings.Fields(name)...)
				args = append(append(args, strings.Fields(tt.words)...), strings.Fields("-"+flags)...)
				out, errs, status := usherIn(t, nil, `{"text":"stdin"}`, args...)
				check(t, where+": status", status, 0)
				check(t, where+errs, out, tt.want+"\n")
			}
		})
	}
	for _, words := range []string{`text`, `n=1 {"n":1}`, `{"n":1} n=1`, `{`, `[1]`, `n=1 -`} {
		args := append([]string{"call", "m", "take", "-dir", dir}, strings.Fields(words)...)
		_, errs, status := usherIn(t, nil, `{"n":1}`, args...)
		check(t, words+": status", status, 2)
		checkContains(t, words, errs, "ARGUMENTS: want name=value words")
	}
}
