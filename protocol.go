// MCP: what its revisions say, and what they say differently. Up to 2025-11-25 a
// client says once who it is, in initialize; from 2026-07-28 on each request says
// it, in _meta, and each result its type. Here are the words of both, the table of
// methods, and messages are put from one form into the other. These are functions
// of messages alone: this file knows no client and no module.

package main

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"runtime/debug"
	"slices"
	"strings"
)

// statelessProtocol is the revision without sessions: each of its requests is
// judged on its own. Those with sessions follow in protocols, newest first.
// oldestProtocol came before streamable HTTP, over which it is spoken too:
// sseProtocol stands for it in the ids of HTTP+SSE sessions, which live as long as
// their streams. batchProtocol is the one version that has batches.
const (
	statelessProtocol = "2026-07-28"
	batchProtocol     = "2025-03-26"
	oldestProtocol    = "2024-11-05"
	sseProtocol       = oldestProtocol + "+sse"
)

var protocols = []string{"2025-11-25", "2025-06-18", batchProtocol, oldestProtocol}

// spoken is all revisions, newest first.
func spoken() []string { return append([]string{statelessProtocol}, protocols...) }

// hasSessions reports whether a version is spoken here with sessions.
func hasSessions(version string) bool { return slices.Contains(protocols, version) }

// The headers of MCP over HTTP, and usher's own for a claim code.
const (
	sessionHeader  = "Mcp-Session-Id"
	protocolHeader = "Mcp-Protocol-Version"
	methodHeader   = "Mcp-Method"
	nameHeader     = "Mcp-Name"
	paramHeader    = "Mcp-Param-" // and the name that a tool's schema gives
	eventHeader    = "Last-Event-ID"
	claimHeader    = "Mcp-Claim-Code"
)

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
// of the revisions before it (2025-11-25, server/resources, "Error Handling").
const (
	codeNoResource         = -32002
	codeHeaderMismatch     = -32020
	codeMissingCapability  = -32021
	codeUnsupportedVersion = -32022
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
)

// capabilityForms is where each capability stands in what a client declares: under
// a key, and, for some, a part of what is there; and what people call it.
var capabilityForms = []struct {
	bit             clientCaps
	key, part, name string
}{
	{capRoots, "roots", "", "roots"},
	{capSampling, "sampling", "", "sampling"},
	{capElicitForm, "elicitation", "form", "elicitation"},
	{capElicitURL, "elicitation", "url", "elicitation by URL"},
	{capSamplingTools, "sampling", "tools", "sampling with tools"},
	{capSamplingContext, "sampling", "context", "sampling with context"},
}

// parseClientCaps reads a client's capabilities.
func parseClientCaps(raw json.RawMessage) clientCaps {
	var caps clientCaps
	for _, c := range capabilityForms {
		declared := field(raw, c.key)
		if declared != nil && (c.part == "" || field(declared, c.part) != nil) {
			caps |= c.bit
		}
	}
	if field(raw, "elicitation") != nil && caps&capElicitURL == 0 {
		caps |= capElicitForm // {} is form (client/elicitation, "Capabilities")
	}
	return caps
}

// encode is the capabilities in the form in which clients declare them.
func (c clientCaps) encode() json.RawMessage {
	var list object
	for _, f := range capabilityForms {
		if c&f.bit == 0 {
			continue
		}
		parts, _ := members(list.get(f.key))
		if f.part != "" && (f.bit != capElicitForm || c&capElicitURL != 0) { // form alone as revisions before 2025-11-25 know it
			parts = parts.set(f.part, json.RawMessage(`{}`))
		}
		list = list.set(f.key, parts.encode())
	}
	return list.encode()
}

func (c clientCaps) String() []string {
	var names []string
	for _, f := range capabilityForms {
		if c&f.bit != 0 {
			names = append(names, f.name)
		}
	}
	return names
}

// needsOf returns the capabilities that a client must have declared to be asked
// this, and false for a method that no client answers.
func needsOf(method string, params json.RawMessage) (clientCaps, bool) {
	needs := map[string]clientCaps{"roots/list": capRoots, "sampling/createMessage": capSampling, "elicitation/create": capElicitForm}[method]
	if needs == capSampling && field(params, "tools") != nil {
		needs |= capSamplingTools
	}
	if needs == capElicitForm && stringField(params, "mode") == "url" {
		needs = capElicitURL
	}
	return needs, needs != 0
}

// missingCapability is the error for a client's request that needs capabilities
// which the client did not declare.
func missingCapability(lacked clientCaps) *rpcError {
	e := errMissingCaps(lacked)
	e.Code = codeMissingCapability
	e.Data = object{{"requiredCapabilities", lacked.encode()}}.encode()
	return e
}

// errMissingCaps is the error for a module's request to a client that has not declared these
// capabilities: the one that the client itself would have answered with.
func errMissingCaps(lacked clientCaps) *rpcError {
	code := codeNoMethod
	if lacked&capElicitURL != 0 {
		code = codeInvalidParams // client/elicitation, "Error Handling"
	}
	return rpcErrorf(code, "this needs a client that can be asked for %s", strings.Join(lacked.String(), ", "))
}

// errNoClient is the error for a module's request in a call that no client made: that of
// a webhook, or of usher call.
func errNoClient(needs clientCaps) *rpcError {
	return rpcErrorf(codeNoMethod, "this needs a client that can be asked for %s, which a webhook and usher call are not: call it as a tool, from an MCP client", strings.Join(needs.String(), ", "))
}

// parseParams returns the params of a client's request, without members that a module
// could take for those that usher reads or sets, such as a second "arguments" or a
// "Name". With them, a client could set webhookParam, call another tool than the log
// says, or use the progress token of another call.
func parseParams(raw json.RawMessage) object {
	params, _ := members(raw)
	params = params.withoutLookalikes("name", "arguments", "uri", "ref", "_meta", "inputResponses", "requestState")
	for _, within := range []struct {
		key   string
		known []string
	}{
		{"ref", []string{"type", "name", "uri"}},
		{"_meta", []string{"progressToken", metaCall, metaProtocol, metaClientInfo, metaClientCaps, metaLogLevel}},
	} {
		value, _ := members(params.get(within.key))
		if clean := value.withoutLookalikes(within.known...); len(clean) < len(value) {
			params = params.set(within.key, clean.encode())
		}
	}
	return params
}

// isStateless reports whether a request says of itself that it is of a revision
// without sessions.
func isStateless(params json.RawMessage) bool {
	return field(field(params, "_meta"), metaProtocol) != nil
}

// withMeta returns params with a key of their _meta set.
func withMeta(params object, key string, value json.RawMessage) object {
	meta, _ := members(params.get("_meta"))
	return params.set("_meta", meta.set(key, value).encode())
}

// statefulParams converts the params of a sessionless request, whose _meta identifies
// the client, for a peer that has sessions.
func statefulParams(params object) object {
	meta, _ := members(params.get("_meta"))
	meta = meta.without(metaProtocol, metaClientInfo, metaClientCaps, metaLogLevel)
	return params.without("inputResponses", "requestState").set("_meta", meta.encode())
}

// statelessParams converts a request's params for a peer without sessions. caps are the
// capabilities that the client declared, level is the lowest severity of log messages
// that it wants, or "" for none.
func statelessParams(params object, caps clientCaps, level string) object {
	meta, _ := members(params.get("_meta"))
	meta = meta.set(metaProtocol, quote(statelessProtocol))
	meta = meta.set(metaClientInfo, usherInfo())
	meta = meta.set(metaClientCaps, caps.encode())
	if level != "" {
		meta = meta.set(metaLogLevel, quote(level))
	}
	return params.set("_meta", meta.encode())
}

// usherInfo is what usher says of itself, to its clients and to modules alike.
func usherInfo() json.RawMessage {
	return object{{"name", quote("usher")}, {"version", quote(version())}}.encode()
}

// The types of results (MCP 2026-07-28, basic/index, "ResultType").
const (
	resultComplete = "complete"
	resultInput    = "input_required"
)

// statelessResult is the result of a method for a client without sessions: with
// the members that each result has there. It may not be kept for others than who
// asked.
func statelessResult(method string, result json.RawMessage) json.RawMessage {
	list, _ := members(result)
	if list.get("resultType") == nil {
		list = list.set("resultType", quote(resultComplete))
	}
	if life := mcpMethods[method].life; life != "" && stringField(list.encode(), "resultType") == resultComplete {
		list = list.set("ttlMs", json.RawMessage(life)).set("cacheScope", quote("private"))
	}
	if meta := list.get("_meta"); field(meta, metaServerInfo) == nil {
		list = list.set("_meta", withMember(meta, metaServerInfo, usherInfo()))
	}
	return list.encode()
}

// statefulResult is a result of a stateless module for a client that has sessions.
func statefulResult(result json.RawMessage) json.RawMessage {
	return dropMembers(result, "resultType", "ttlMs", "cacheScope", "requestState", "inputRequests")
}

// statelessError is an error of a request for a client without sessions: without
// the code that its revision has taken back.
func statelessError(err error) error {
	if e, ok := errors.AsType[*rpcError](err); ok && e.Code == codeNoResource {
		return &rpcError{Code: codeInvalidParams, Message: e.Message, Data: e.Data}
	}
	return err
}

// rpcStatus is the HTTP status for an error code. From MCP 2026-07-28 on
// (basic/transports/streamable-http) every error response has it, before that only
// those to what is no message.
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

// parseInitialize reads what a client says of itself in its first request. A
// version that usher does not speak is answered with the newest that it does
// (MCP, basic/lifecycle, "Version Negotiation").
func parseInitialize(params object) (protocol string, caps clientCaps, err error) {
	protocol, ok := unquote(params.get("protocolVersion"))
	if !ok {
		return "", 0, rpcErrorf(codeInvalidParams, "initialize needs a string \"protocolVersion\"")
	}
	if !hasSessions(protocol) {
		protocol = protocols[0]
	}
	return protocol, parseClientCaps(params.get("capabilities")), nil
}

// isStatelessPOST reports whether a POST is of the revision without sessions: it
// names a version that has none, or one that is not known here, or its message
// says who asks.
func isStatelessPOST(h http.Header, msg *Message) bool {
	version := h.Get(protocolHeader)
	return version != "" && !hasSessions(version) || isStateless(msg.Params)
}

// checkMeta checks that a request says who asks.
func checkMeta(meta json.RawMessage) error {
	if _, ok := unquote(field(meta, metaProtocol)); !ok {
		return rpcErrorf(codeInvalidParams, "_meta needs a string %q", metaProtocol)
	}
	if !isObject(field(meta, metaClientCaps)) {
		return rpcErrorf(codeInvalidParams, "_meta needs an object %q", metaClientCaps)
	}
	return nil
}

func checkVersion(version string) error {
	if version == statelessProtocol {
		return nil
	}
	e := rpcErrorf(codeUnsupportedVersion, "protocol version %q is not spoken in this way: want %s, or begin with initialize", clipText(version, 50), statelessProtocol)
	e.Data = object{{"supported", marshal(spoken())}, {"requested", quote(version)}}.encode()
	return e
}

// decodeHeader is a header's value, which may be in the form for what is not
// plain ASCII.
func decodeHeader(h http.Header, name string) (string, error) {
	values := h.Values(name)
	if len(values) == 0 {
		return "", rpcErrorf(codeHeaderMismatch, "the header %s is missing", name)
	}
	bad := rpcErrorf(codeHeaderMismatch, "the header %s is malformed: want plain ASCII, or =?base64?…?= with standard padded base64 of UTF-8", name)
	value := values[0]
	if len(values) > 1 || strings.ContainsFunc(value, func(c rune) bool { return c < ' ' && c != '\t' || c > '~' }) {
		return "", bad
	}
	encoded, begins := strings.CutPrefix(value, "=?base64?")
	encoded, ends := strings.CutSuffix(encoded, "?=")
	if !begins || !ends {
		return value, nil
	}
	text, err := base64.StdEncoding.Strict().DecodeString(encoded)
	if err != nil {
		return "", bad
	}
	return string(text), nil
}

// version is this program's version, from what the go command stamped it with;
// "devel" where it did not.
func version() string {
	info, _ := debug.ReadBuildInfo() // there is one, as usher is a module
	return strings.Trim(cmp.Or(info.Main.Version, "(devel)"), "()")
}
