// The two eras of MCP, and everything that differs between them. Up to 2025-11-25 a client
// has a session and identifies itself once, in initialize. From 2026-07-28 on, it has none:
// each request identifies the client in _meta, and each result states its type. Inside of
// usher there is one form: params without such an identity, which is in the Caller instead,
// and results without a type, unless they ask for input. The functions here convert to and
// from this form, for clients and for modules, and check capabilities and headers. They
// depend on nothing but the message.

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

// statelessProtocol is the revision without sessions. The revisions with sessions are in
// protocols, newest first. oldestProtocol predates streamable HTTP, but clients speak it
// there too. sseProtocol replaces oldestProtocol in the ids of HTTP+SSE sessions, which
// end with their streams.
const (
	statelessProtocol = "2026-07-28"
	oldestProtocol    = "2024-11-05"
	sseProtocol       = oldestProtocol + "+sse"
)

var protocols = []string{"2025-11-25", "2025-06-18", "2025-03-26", oldestProtocol}

// spoken lists all supported revisions, newest first.
var spoken = marshal(append([]string{statelessProtocol}, protocols...))

// hasSessions reports whether version is a supported revision with sessions.
func hasSessions(version string) bool { return slices.Contains(protocols, version) }

// eras are the eras of clients that may use a method.
type eras int

const (
	stateful eras = 1 << iota
	stateless
	bothEras = stateful | stateless
)

// The headers of MCP over HTTP, and usher's own header for a claim code.
const (
	sessionHeader  = "Mcp-Session-Id"
	protocolHeader = "Mcp-Protocol-Version"
	methodHeader   = "Mcp-Method"
	nameHeader     = "Mcp-Name"
	paramHeader    = "Mcp-Param-" // followed by the name that a tool's schema gives
	claimHeader    = "Mcp-Claim-Code"
)

// The keys of _meta (MCP 2026-07-28, basic/index, "_meta"). usher's own begin with ownPrefix.
// In a message of one of usher's shims, metaCall names the call that the message belongs to.
const (
	metaProtocol     = "io.modelcontextprotocol/protocolVersion"
	metaClientInfo   = "io.modelcontextprotocol/clientInfo"
	metaClientCaps   = "io.modelcontextprotocol/clientCapabilities"
	metaLogLevel     = "io.modelcontextprotocol/logLevel"
	metaSubscription = "io.modelcontextprotocol/subscriptionId"
	metaCall         = ownPrefix + "call"
	ownPrefix        = "usher/"
)

// The error codes of MCP (2026-07-28, basic/index, "Error Codes"). Only the earlier
// revisions have codeNoResource (2025-11-25, server/resources, "Error Handling").
const (
	codeNoResource         = -32002
	codeHeaderMismatch     = -32020
	codeMissingCapability  = -32021
	codeUnsupportedVersion = -32022
)

// logLevels are the severities of log messages, least severe first (MCP,
// server/utilities/logging).
var logLevels = []string{
	"debug", "info", "notice", "warning", "error", "critical", "alert", "emergency",
}

// checkLogLevel returns an error unless level is one of logLevels.
func checkLogLevel(level string) error {
	if slices.Contains(logLevels, level) {
		return nil
	}
	return rpcErrorf(codeInvalidParams, "unknown log level %q: use one of %s",
		level, strings.Join(logLevels, ", "))
}

// clientCaps is the set of capabilities that a client declared: what modules may ask it
// for. Session ids contain these bits, so new capabilities must be added at the end.
type clientCaps uint16

const (
	capRoots clientCaps = 1 << iota
	capSampling
	capElicitForm
	capElicitURL
	capSamplingTools
	capSamplingContext
	capApps
	allCaps = 1<<iota - 1
)

// capabilityForms lists where a client's declaration contains each capability: under key
// or, if part is not empty, under part inside the value of key.
var capabilityForms = []struct {
	bit       clientCaps
	key, part string
}{
	{capRoots, "roots", ""},
	{capSampling, "sampling", ""},
	{capElicitForm, "elicitation", "form"},
	{capElicitURL, "elicitation", "url"},
	{capSamplingTools, "sampling", "tools"},
	{capSamplingContext, "sampling", "context"},
	{capApps, "extensions", "io.modelcontextprotocol/ui"},
}

// parseClientCaps reads the capabilities that a client declares.
func parseClientCaps(declared object) clientCaps {
	var caps clientCaps
	for _, c := range capabilityForms {
		value := declared.get(c.key)
		if value != nil && (c.part == "" || members(value).get(c.part) != nil) {
			caps |= c.bit
		}
	}
	if declared.get("elicitation") != nil && caps&capElicitURL == 0 {
		caps |= capElicitForm // {} means form (client/elicitation, "Capabilities")
	}
	return caps
}

// encode returns the capabilities in the form in which clients declare them.
func (c clientCaps) encode() json.RawMessage {
	var list object
	for _, f := range capabilityForms {
		if c&f.bit == 0 {
			continue
		}
		parts := members(list.get(f.key))
		if f.part != "" {
			settings := `{}`
			if f.bit == capApps {
				settings = `{"mimeTypes":["text/html;profile=mcp-app"]}`
			}
			parts = parts.set(f.part, json.RawMessage(settings))
		}
		list = list.set(f.key, parts.encode())
	}
	return list.encode()
}

// checkAsk returns an error, and the capabilities that are missing, unless a client with
// these capabilities can answer a module's request.
func (c clientCaps) checkAsk(method string, params object) (lacked clientCaps, err error) {
	var needs clientCaps
	switch method {
	case "roots/list":
		needs = capRoots
	case "sampling/createMessage":
		needs = capSampling
		if params.get("tools") != nil {
			needs |= capSamplingTools
		}
	case "elicitation/create":
		needs = capElicitForm
		if params.text("mode") == "url" {
			needs = capElicitURL
		}
	default:
		return 0, rpcErrorf(codeNoMethod, "unknown method %s", method)
	}
	lacked = needs &^ c
	if lacked != 0 {
		err = lacked.errMissing(codeNoMethod) // as the client itself would have answered
	}
	return lacked, err
}

// checkInput returns an error unless a client with these capabilities can answer everything that
// a result asks for.
func (c clientCaps) checkInput(result object) error {
	for _, request := range result.object("inputRequests") {
		asked := members(request.value)
		lacked, err := c.checkAsk(asked.text("method"), asked.object("params"))
		if lacked != 0 {
			return lacked.errMissing(codeMissingCapability)
		}
		if err != nil {
			return errors.New(err.Error()) // the module is wrong, not the client: hide the code
		}
	}
	return nil
}

// withoutRoots returns params without a client's answers to roots/list.
func (params object) withoutRoots() object {
	const key = "inputResponses"
	if params.get(key) == nil {
		return params
	}
	kept := slices.DeleteFunc(params.object(key), func(answer member) bool {
		return slices.ContainsFunc(members(answer.value), func(f member) bool {
			return strings.EqualFold(f.key, "roots")
		})
	})
	return params.set(key, kept.encode())
}

// errMissing returns the error for a request that needs these capabilities of a client that
// has not declared them.
func (c clientCaps) errMissing(code int) *fault {
	var names []string
	for _, f := range capabilityForms {
		if c&f.bit != 0 {
			names = append(names, strings.TrimSuffix(f.key+" ("+f.part+")", " ()"))
		}
	}
	e := rpcErrorf(code, "this tool asks its client for %s: use an MCP client that supports it",
		strings.Join(names, ", "))
	e.Data = object{{"requiredCapabilities", c.encode()}}.encode()
	return e
}

// parseParams converts the params of a client's request to usher's own form. It returns the
// members of _meta that identify the client apart, and drops usher's own, as clients must not
// name a call. It also drops members that a module could take for members that usher reads or
// sets, such as a second "arguments" or a "Name". With them, a client could set webhookParam,
// call another tool than the log reports, or use the progress token of another call. It also drops
// task, because usher declares no tasks, and arguments that are none.
func parseParams(sent object) (params, identity object) {
	params = sent.withoutLookalikes().without("task")
	if isNone(params.get("arguments")) {
		params = params.without("arguments")
	}
	if ref := params.object("ref"); ref != nil {
		params = params.set("ref", ref.withoutLookalikes().encode())
	}
	identity = params.object("_meta").withoutLookalikes()
	kept := slices.DeleteFunc(slices.Clone(identity), func(f member) bool {
		return strings.HasPrefix(f.key, ownPrefix) || slices.Contains(identityKeys, f.key)
	})
	return params.setMeta(kept), identity
}

// knownParams are the members that usher reads or sets in params, their ref and _meta.
var knownParams = append([]string{
	"name", "arguments", "uri", "ref", "type", "_meta", "inputResponses", "requestState",
	"progressToken", "task", metaCall,
}, identityKeys...)

// identityKeys are the members of _meta that identify a client.
var identityKeys = []string{metaProtocol, metaClientInfo, metaClientCaps, metaLogLevel}

// withoutLookalikes returns params, their ref or their _meta without members that a decoder
// could mistake for one of knownParams: keys that differ from it only in case, which
// encoding/json accepts, and all but the last of its repeats. Unknown keys stay.
func (params object) withoutLookalikes() object {
	kept := make(object, 0, len(params))
	last := make(map[string]int)
	for i, f := range params {
		last[f.key] = i
	}
	for i, f := range params {
		like := slices.IndexFunc(knownParams, func(key string) bool { return strings.EqualFold(key, f.key) })
		if like < 0 || knownParams[like] == f.key && last[f.key] == i {
			kept = append(kept, f)
		}
	}
	return kept
}

// withMeta returns params, or a result, with a key of its _meta set.
func withMeta(params object, key string, value json.RawMessage) object {
	return params.setMeta(params.object("_meta").set(key, value))
}

// setMeta returns params with a _meta, or without one if it is empty.
func (params object) setMeta(meta object) object {
	if len(meta) == 0 {
		return params.without("_meta")
	}
	return params.set("_meta", meta.encode())
}

// stripCallID returns params without the id of the call, which is not for clients.
func stripCallID(params object) object {
	return params.setMeta(params.object("_meta").without(metaCall))
}

// clientProfile is what a client states about itself.
type clientProfile struct {
	caps  clientCaps
	level string // lowest severity of log messages that it wants; "" if not stated
	name  string // of the program, and its version, for the log
}

// clientName returns the name and the version of a program that describes itself. It is a copy,
// because a part of a string keeps the whole string in memory.
func clientName(info object) string {
	return strings.Clone(logText(strings.TrimSpace(info.text("name") + " " + info.text("version"))))
}

// identify returns the _meta of a request for a module without sessions. To modules, usher
// is the client, with the capabilities and the log level of its own client.
func identify(meta object, client clientProfile) object {
	meta = meta.set(metaProtocol, quote(statelessProtocol)).
		set(metaClientInfo, usherInfo()).
		set(metaClientCaps, client.caps.encode())
	if client.level != "" {
		meta = meta.set(metaLogLevel, quote(client.level))
	}
	return meta
}

// usherInfo returns usher's name and version, for its clients and its modules.
func usherInfo() json.RawMessage {
	return object{{"name", quote("usher")}, {"version", quote(version())}}.encode()
}

// resultInput is the type of a result that asks for input (MCP 2026-07-28, basic/index, "ResultType").
// All others are complete.
const resultInput = "input_required"

// forClient converts a result for a client of an era. life is how many milliseconds a client
// without sessions may cache a complete result, or "" if the method's results have no such
// member. A client with sessions gets no such member.
func (result object) forClient(era eras, life string) object {
	if era == stateful {
		return result.without("resultType", "ttlMs", "cacheScope", "requestState", "inputRequests")
	}
	if result.get("resultType") == nil {
		result = result.set("resultType", quote("complete"))
	}
	if life != "" && result.text("resultType") == "complete" {
		result = result.set("ttlMs", json.RawMessage(life)).set("cacheScope", quote("private"))
	}
	return withMeta(result, "io.modelcontextprotocol/serverInfo", usherInfo())
}

// status returns the HTTP status for an error: the one for its JSON-RPC code, else its Status, else
// 200. From MCP 2026-07-28 on (basic/transports/streamable-http), every error response of JSON-RPC
// has this status. In earlier revisions, only refusals of the message or of the HTTP request have it.
func (e *fault) status() int {
	switch e.Code {
	case codeNoMethod:
		return http.StatusNotFound
	case codeParse, codeInvalidRequest, codeInvalidParams,
		codeHeaderMismatch, codeMissingCapability, codeUnsupportedVersion:
		return http.StatusBadRequest
	}
	return cmp.Or(e.Status, http.StatusOK)
}

// parseInitialize reads the params of a session's first request. If the client asks for an
// unsupported version, or for none, parseInitialize returns the newest version with sessions (MCP,
// basic/lifecycle, "Version Negotiation").
func parseInitialize(params object) (protocol string, caps clientCaps) {
	protocol = params.text("protocolVersion")
	if !hasSessions(protocol) {
		protocol = protocols[0]
	}
	return protocol, parseClientCaps(params.object("capabilities"))
}

// isStateless reports whether a request is of the revision without sessions: its header
// names that version or an unknown one, or its identity names any version. h is nil if the
// transport has no headers.
func isStateless(h http.Header, identity object) bool {
	version := h.Get(protocolHeader)
	return version != "" && !hasSessions(version) || identity.get(metaProtocol) != nil
}

// parseIdentity returns what a stateless request states about its client. The error says what
// is missing in the identity, or that the headers don't repeat the method and the version. h
// is nil if the transport has no headers. The order of the checks determines the error.
func parseIdentity(h http.Header, method string, identity object) (c clientProfile, err error) {
	version := identity.get(metaProtocol)
	named := h.Get(protocolHeader)
	if version == nil && named != statelessProtocol {
		return c, checkVersion(named) // there is nothing else to check
	}
	text, isText := unquote(version)
	caps := identity.object(metaClientCaps)
	c.caps = parseClientCaps(caps)
	c.level = identity.text(metaLogLevel)
	c.name = clientName(identity.object(metaClientInfo))
	var missing, unsupported, badLevel error
	if !isText || caps == nil {
		missing = rpcErrorf(codeInvalidParams,
			"_meta needs a string %q and an object %q", metaProtocol, metaClientCaps)
	}
	if isText {
		unsupported = checkVersion(text)
	}
	if !isNull(identity.get(metaLogLevel)) {
		badLevel = checkLogLevel(c.level)
	}
	err = errors.Join(
		checkHeader(h, methodHeader, "method", quote(method)),
		missing,
		checkHeader(h, protocolHeader, metaProtocol, version),
		unsupported,
		badLevel,
	)
	if err == nil {
		return c, nil
	}
	first := *asFault(err) // its code, and the texts of all
	first.Message = clipText(strings.ReplaceAll(err.Error(), "\n", "; "), maxError)
	return c, &first
}

// checkVersion returns an error for any version but the one without sessions.
func checkVersion(version string) error {
	if version == statelessProtocol {
		return nil
	}
	version = clipText(version, 50)
	e := rpcErrorf(codeUnsupportedVersion,
		"no sessionless protocol version %q: send initialize, or use %s", version, statelessProtocol)
	e.Data = object{{"supported", spoken}, {"requested", quote(version)}}.encode()
	return e
}

// checkHeader returns an error unless a header repeats a value of the body, both are
// missing, or h is nil.
func checkHeader(h http.Header, header, key string, value json.RawMessage) error {
	sent := h.Values(header)
	text := plainText(value)
	switch {
	case h == nil || isNull(value) && len(sent) == 0:
		return nil
	case !isNull(value) && len(sent) == 1:
		got, ok := decodeHeader(sent[0])
		if ok && (got == text || idKey(json.RawMessage(got)) == idKey(value)) {
			return nil
		}
	}
	return rpcErrorf(codeHeaderMismatch, "header %s is %q, but the body's %q is %s",
		header, strings.Join(sent, ", "), key, cmp.Or(string(value), "missing"))
}

// decodeHeader returns the text in a header's value. It decodes the base64 form that
// clients use for text other than plain ASCII, and reports false if that is malformed.
func decodeHeader(value string) (string, bool) {
	encoded, begins := strings.CutPrefix(value, "=?base64?")
	encoded, ends := strings.CutSuffix(encoded, "?=")
	if !begins || !ends {
		return value, true
	}
	text, err := base64.StdEncoding.Strict().DecodeString(encoded)
	return string(text), err == nil
}

// version returns this program's version as recorded by the go command, or "devel" if
// there is none.
func version() string {
	info, _ := debug.ReadBuildInfo() // never missing, as usher is a module
	return strings.Trim(cmp.Or(info.Main.Version, "(devel)"), "()")
}
