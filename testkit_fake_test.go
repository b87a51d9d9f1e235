// Names of mcptest, which has the fake server, that the tests use much.

package main

import (
	"fmt"
	"testing"

	"usher/internal/mcptest"
)

type (
	fakeAsk  = mcptest.FakeAsk
	fakeWish = mcptest.FakeWish
)

var (
	askFor      = mcptest.AskFor
	askForms    = mcptest.AskForms
	askKinds    = mcptest.AskKinds
	fakeTools   = mcptest.FakeTools
	must        = mcptest.Must
	write       = mcptest.Write
	writeFake   = mcptest.WriteFake
	writeShared = mcptest.WriteShared
)

const mirrorSchema = mcptest.MirrorSchema

// writeTools writes a fake with these tools.
func writeTools(t *testing.T, path string, tools ...string) {
	t.Helper()
	writeFake(t, path, "fixed", tools...)
}

func textResult(s string) object { return objectOf(`{"content":[` + block(s) + `]}`) }

// fakeAnswer returns an answer as JSON.
func fakeAnswer(msg *Message) string {
	if msg.Err != nil {
		return fmt.Sprintf(`{"code":%d,"refused":%s}`, msg.Err.Code, quote(msg.Err.Message))
	}
	return string(msg.Result.encode())
}
