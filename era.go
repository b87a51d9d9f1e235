// Eras: what the revisions of MCP say differently. Up to 2025-11-25 a client
// says once who it is, in initialize; from 2026-07-28 on each request says it,
// in _meta, and each result its type. Here are their words, and messages are put
// from one era's form into the other's. This file knows no peer.

package main

import (
	"encoding/json"
	"errors"
	"net/http"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
)

// modernProtocol is the revision without sessions. Those that have them follow
// in protocols, newest first; a session's id holds the index from the end, so
// that a new version goes in front. oldestProtocol came before streamable HTTP.
const (
	modernProtocol = statelessProtocol
	oldestProtocol = "2024-11-05"
)

var protocols = []string{"2025-11-25", "2025-06-18", "2025-03-26"}

// spoken is all revisions, newest first.
func spoken() []string {
	return slices.Concat([]string{modernProtocol}, protocols, []string{oldestProtocol})
}

// hasSessions reports whether a version is spoken here with sessions.
func hasSessions(version string) bool {
	return version == oldestProtocol || slices.Contains(protocols, version)
}

// The keys of _meta (MCP 2026-07-28, basic/index, "_meta"), and ours: which call
// a message of one of our shims belongs to.
const (
	metaProtocol     = "io.modelcontextprotocol/protocolVersion"
	metaClientInfo   = "io.modelcontextprotocol/clientInfo"
	metaClientCaps   = "io.modelcontextprotocol/clientCapabilities"
	metaLogLevel     = "io.modelcontextprotocol/logLevel"
	metaSubscription = "io.modelcontextprotocol/subscriptionId"
	metaServerInfo   = "io.modelcontextprotocol/serverInfo"
	metaCall         = "usher/call"
)

// The error codes of MCP (2026-07-28, basic/index, "Error Codes"), codeNoResource
// of the revisions before it (2025-11-25, server/resources, "Error Handling"),
// and codeDeclined, ours, outside of the range that 2026-07-28 keeps to itself.
const (
	codeNoResource         = -32002
	codeHeaderMismatch     = -32020
	codeMissingCapability  = -32021
	codeUnsupportedVersion = -32022
	codeDeclined           = 1000
)

// logLevels are the severities of log messages, least first (MCP,
// server/utilities/logging).
var logLevels = []string{"debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"}

// clientCaps is what a client declared it can be asked for, as bits. They are
// part of session ids: a new one goes at the end.
type clientCaps uint16

const (
	capRoots clientCaps = 1 << iota
	capSampling
	capElicitForm
	capElicitURL
	capSamplingTools
	capSamplingContext
	allCaps = 1<<iota - 1

	// capOldSSE is no capability: the session is one of HTTP+SSE.
	capOldSSE clientCaps = 1 << 15
)

// parseClientCaps reads a client's capabilities.
func parseClientCaps(raw json.RawMessage) clientCaps {
	var caps clientCaps
	list, _ := members(raw)
	for _, f := range list {
		has := func(key string) bool { return field(f.value, key) != nil }
		switch f.key {
		case "roots":
			caps |= capRoots
		case "sampling":
			caps |= capSampling
			if has("tools") {
				caps |= capSamplingTools
			}
			if has("context") {
				caps |= capSamplingContext
			}
		case "elicitation":
			if has("url") {
				caps |= capElicitURL
			}
			if has("form") || !has("url") { // {} is form (client/elicitation, "Capabilities")
				caps |= capElicitForm
			}
		}
	}
	return caps
}

// json is the capabilities in the form in which clients declare them.
func (c clientCaps) json() json.RawMessage {
	var list []member
	add := func(key string, all clientCaps, parts ...member) {
		if c&all == 0 {
			return
		}
		list = append(list, member{key, joinMembers(parts)})
	}
	part := func(bit clientCaps, key string) []member {
		if c&bit == 0 {
			return nil
		}
		return []member{{key, json.RawMessage(`{}`)}}
	}
	add("roots", capRoots)
	add("sampling", capSampling|capSamplingTools|capSamplingContext, slices.Concat(part(capSamplingTools, "tools"), part(capSamplingContext, "context"))...)
	if c&(capElicitForm|capElicitURL) == capElicitForm {
		add("elicitation", capElicitForm) // as revisions before 2025-11-25 know it
	} else {
		add("elicitation", capElicitForm|capElicitURL, slices.Concat(part(capElicitForm, "form"), part(capElicitURL, "url"))...)
	}
	return joinMembers(list)
}

// needsOf is what a client must have declared to be asked this, and whether
// clients can be asked it at all.
func needsOf(method string, params json.RawMessage) (clientCaps, bool) {
	switch method {
	case "roots/list":
		return capRoots, true
	case "sampling/createMessage":
		needs := capSampling
		if field(params, "tools") != nil {
			needs |= capSamplingTools
		}
		return needs, true
	case "elicitation/create":
		if stringField(params, "mode") == "url" {
			return capElicitURL, true
		}
		return capElicitForm, true
	}
	return 0, false
}

// missingCapability is the error for a request that could not be done without
// what its client did not declare.
func missingCapability(lacked clientCaps) *rpcError {
	if lacked&capSamplingTools != 0 {
		lacked |= capSampling
	}
	e := rpcErrorf(codeMissingCapability, "this needs a client that can be asked for %s", strings.Join(lacked.names(), ", "))
	e.Data = joinMembers([]member{{"requiredCapabilities", lacked.json()}})
	return e
}

// lacks is the error for a request that the client has not declared that it
// answers: as it would have said itself.
func lacks(lacked clientCaps) *rpcError {
	if lacked&capElicitURL != 0 {
		return rpcErrorf(codeInvalidParams, "the client can't be asked to open a URL") // client/elicitation, "Error Handling"
	}
	return rpcErrorf(codeNoMethod, "the client can't be asked for %s", lacked.names()[0])
}

// noClient is the error for a request in a call that no client makes.
func noClient(needs clientCaps) *rpcError {
	return rpcErrorf(codeNoMethod, "this needs a client that can be asked for %s, which a webhook and usher call are not: call it as a tool, from an MCP client", strings.Join(needs.names(), ", "))
}

func (c clientCaps) names() []string {
	var names []string
	for i, name := range []string{"roots", "sampling", "elicitation", "elicitation by URL", "sampling with tools", "sampling with context"} {
		if c&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return names
}

// isStateless reports whether a request says of itself that it is of a revision
// without sessions.
func isStateless(params json.RawMessage) bool {
	return field(field(params, "_meta"), metaProtocol) != nil
}

// withMeta returns params with a key of their _meta set.
func withMeta(params json.RawMessage, key string, value json.RawMessage) json.RawMessage {
	return withMember(params, "_meta", withMember(field(params, "_meta"), key, value))
}

// legacyParams is a modern request's params for a peer that has sessions.
func legacyParams(params json.RawMessage) json.RawMessage {
	params = dropMembers(params, "inputResponses", "requestState")
	meta := field(params, "_meta")
	if kept := dropMembers(meta, metaProtocol, metaClientInfo, metaClientCaps, metaLogLevel); len(kept) != len(meta) {
		params = withMember(params, "_meta", kept)
	}
	return params
}

// modernParams is a request's params for a peer that has no sessions, from a
// client that has declared caps, and wants log messages from level on; "" for
// none.
func modernParams(params json.RawMessage, caps clientCaps, level string) json.RawMessage {
	meta, _ := members(field(params, "_meta"))
	meta = setMember(meta, metaProtocol, quote(modernProtocol))
	meta = setMember(meta, metaClientInfo, usherInfo())
	meta = setMember(meta, metaClientCaps, caps.json())
	if level != "" {
		meta = setMember(meta, metaLogLevel, quote(level))
	}
	return withMember(params, "_meta", joinMembers(meta))
}

// usherInfo is what usher says of itself, to its clients and to modules alike.
func usherInfo() json.RawMessage {
	return joinMembers([]member{{"name", quote("usher")}, {"version", quote(version())}})
}

// The types of results (MCP 2026-07-28, basic/index, "ResultType").
const (
	resultComplete = "complete"
	resultInput    = "input_required"
)

// listLife is for how long a client may take a list as it was, in milliseconds.
// It is short, so that the end of a claim counts.
const listLife = 2000

// modernResult is the result of a method for a modern client: with the members
// that each result has there. How long it may be kept is never more than what
// lists may, and never for others than who asked.
func modernResult(method string, result json.RawMessage) json.RawMessage {
	list, _ := members(result)
	if !slices.ContainsFunc(list, func(f member) bool { return f.key == "resultType" }) {
		list = append(list, member{"resultType", quote(resultComplete)})
	}
	switch method {
	case "server/discover", "tools/list", "prompts/list", "resources/list", "resources/templates/list":
		list = append(list, member{"ttlMs", strconv.AppendInt(nil, listLife, 10)}, member{"cacheScope", quote("private")})
	case "resources/read":
		if field(result, "inputRequests") == nil && field(result, "requestState") == nil {
			list = setMember(setMember(list, "ttlMs", shortest(field(result, "ttlMs"))), "cacheScope", quote("private"))
		}
	}
	meta := field(result, "_meta")
	if field(meta, metaServerInfo) == nil {
		list = setMember(list, "_meta", withMember(meta, metaServerInfo, usherInfo()))
	}
	return joinMembers(list)
}

// shortest is the life in milliseconds that a module gives a resource, if that
// is no longer than a list's. What has none may not be kept.
func shortest(ttl json.RawMessage) json.RawMessage {
	n, err := strconv.Atoi(string(ttl))
	if err != nil || n < 0 {
		return json.RawMessage("0")
	}
	return strconv.AppendInt(nil, int64(min(n, listLife)), 10)
}

// legacyResult is a result of a modern module for a client that has sessions.
func legacyResult(result json.RawMessage) json.RawMessage {
	return dropMembers(result, "resultType", "ttlMs", "cacheScope", "requestState", "inputRequests")
}

// modernError is an error of a request for a modern client: without the codes
// that its revision has taken back or keeps for others.
func modernError(err error, uri string) error {
	rpc, ok := errors.AsType[*rpcError](err)
	if !ok {
		return err
	}
	e := *rpc
	switch {
	case e.Code == codeNoResource:
		e.Code = codeInvalidParams
		if uri != "" && field(e.Data, "uri") == nil {
			e.Data = withMember(e.Data, "uri", quote(uri))
		}
	case e.Code <= -32000 && e.Code > codeHeaderMismatch || e.Code == -32042:
		e.Code = codeDeclined
	}
	return &e
}

// rpcStatus is the HTTP status of an error: of all answers with one in MCP
// 2026-07-28 (basic/transports/streamable-http), before it of those alone to what
// is no message.
func rpcStatus(code int) int {
	switch code {
	case codeNoMethod:
		return http.StatusNotFound
	case codeParse, codeInvalidRequest, codeInvalidParams, codeHeaderMismatch, codeMissingCapability, codeUnsupportedVersion:
		return http.StatusBadRequest
	default:
		return http.StatusOK
	}
}

// version is this program's version, from what the go command stamped it with.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" || info.Main.Version == "(devel)" {
		return "devel"
	}
	return info.Main.Version
}
