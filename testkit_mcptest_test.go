// Names of package mcptest that the tests use much.

package main

import (
	"encoding/json"
	"testing"

	"usher/internal/mcptest"
)

type (
	answer     = mcptest.Answer
	askClient  = mcptest.AskClient
	event      = mcptest.Event
	fakeAsk    = mcptest.FakeAsk
	fakeWish   = mcptest.FakeWish
	modulePeer = mcptest.Peer
	presenter  = mcptest.Presenter
	testClient = mcptest.Client
)

const (
	bothKinds    = "application/json, text/event-stream"
	changedTools = "notifications/tools/list_changed"
	initialize   = mcptest.Initialize
	initialized  = mcptest.Initialized
	modernMeta   = mcptest.ModernMeta
	patience     = mcptest.Patience
	runAsFake    = mcptest.FakeVar
)

var (
	askModern       = mcptest.AskModern
	askOverPOST     = mcptest.AskOverPOST
	await           = mcptest.Await
	callParams      = mcptest.CallParams
	clientOver      = mcptest.ClientOver
	connect         = mcptest.Connect
	connectSSE      = mcptest.ConnectSSE
	goOn            = mcptest.Resume
	hear            = mcptest.Hear
	inHeader        = mcptest.InHeader
	inQuery         = mcptest.InQuery
	initializeWith  = mcptest.InitializeWith
	listTools       = mcptest.ListTools
	must            = mcptest.Must
	newClient       = mcptest.NewClient
	openSession     = mcptest.OpenSession
	presentAll      = mcptest.PresentAll
	remainingEvents = mcptest.RemainingEvents
	rpcAs           = mcptest.RPC
	setHeader       = mcptest.SetHeader
	setHeaders      = mcptest.SetHeaders
	shownFailure    = mcptest.ShownFailure
	shownObject     = mcptest.ShownObject
	shownText       = mcptest.ShownText
	stopTest        = mcptest.Stop
	testBinary      = mcptest.Binary
	wantEvent       = mcptest.WantEvent
	wantStatus      = mcptest.WantStatus
	write           = mcptest.Write
	writeFake       = mcptest.WriteFake
	writeShared     = mcptest.WriteShared
)

func rpcText(method, params string) string { return rpcAs("1", method, params) }

// field returns the value under the last of keys in a JSON object, the others lead to it, or nil.
func field[T ~[]byte | ~string](raw T, keys ...string) json.RawMessage {
	return mcptest.Field(raw, keys...)
}

// stringField is field for a string, or "".
func stringField[T ~[]byte | ~string](raw T, keys ...string) string {
	return mcptest.StringField(raw, keys...)
}

// writeTools writes a fake with these tools.
func writeTools(t *testing.T, path string, tools ...string) {
	t.Helper()
	writeFake(t, path, "fixed", tools...)
}
