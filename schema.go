// Schemas and documentation: what a module says of one of its methods, read
// into a Method; the tags in a method's documentation; the check of a call's
// arguments against the method's schema; and the tool result that the value of
// a method becomes. It knows no module and no call.

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode"
)

// webhookParam is the parameter under which a webhook's metadata arrives. It is
// in no schema, and no MCP client can set it.
const webhookParam = "_webhook"

// Method is one callable of a module. It is not changed once made.
type Method struct {
	Name string // the module's own name for it

	// Hook is where the method takes webhooks, below /webhook/: a path of its
	// own, or "" for the module's and method's names. IsHook says whether it does.
	Hook      string
	IsHook    bool
	Signature *signatureRule // its @signature tag; nil for none

	definition  []member // of the MCP tool, without its name
	description string
	params      []param // the schema's top level, in its order

	mirrored []mirrored // parameters that MCP requests repeat in headers
}

// mirrored is a parameter that a request repeats in a header, Mcp-Param-HEADER
// (MCP 2026-07-28, basic/transports/streamable-http, "Custom Headers").
type mirrored struct {
	header string
	path   []string // of property names, from the arguments down
}

// param is what the check of arguments needs of one parameter.
type param struct {
	name     string
	types    []string // JSON Schema type names; empty for any
	required bool
}

// parseMethod reads an MCP tool definition as a module gave it. For a module of
// a single-file kind the description is the method's comment as it stands in
// the file, all of whose tags are taken out and applied; for others only the
// webhook tags are. The strings are problems worth telling, of a method that is
// hosted all the same.
func parseMethod(definition json.RawMessage, kind Kind) (*Method, []string, error) {
	list, ok := members(definition)
	if !ok {
		return nil, nil, fmt.Errorf("a tool that is not an object")
	}
	m := &Method{Name: stringField(definition, "name")}
	if m.Name == "" {
		return nil, nil, fmt.Errorf("a tool without a name")
	}
	tags := parseDoc(stringField(definition, "description"), kind.singleFile())
	m.description, m.Signature = tags.text, tags.signature
	problems := append(tags.problems, m.setHook(tags.webhook)...)
	schema, unknown := cleanSchema(field(definition, "inputSchema"), tags.params, kind.undeclared())
	for _, name := range unknown {
		problems = append(problems, fmt.Sprintf("@param %s: there is no such parameter", name))
	}
	for _, f := range list {
		if f.key != "name" && f.key != "description" && f.key != "inputSchema" {
			m.definition = append(m.definition, f)
		}
	}
	if m.description != "" {
		m.definition = append(m.definition, member{"description", quote(m.description)})
	}
	m.definition = append(m.definition, member{"inputSchema", schema})
	if len(tags.hints) > 0 {
		annotations, _ := members(field(definition, "annotations"))
		for _, hint := range tags.hints {
			annotations = setMember(annotations, hint, json.RawMessage("true"))
		}
		m.definition = setMember(m.definition, "annotations", joinMembers(annotations))
	}
	m.params = schemaParams(schema)
	var bad []string
	m.mirrored, bad = findMirrored(schema, nil, make(map[string]bool))
	problems = append(problems, bad...)
	for i := range problems {
		problems[i] = m.Name + ": " + problems[i]
	}
	return m, problems, nil
}

var headerToken = regexp.MustCompile("^[!#$%&'*+.^_`|~0-9A-Za-z-]+$")

// findMirrored finds the parameters of a schema, and of the objects in it, that
// are marked x-mcp-header. Those marked wrongly are problems: clients leave such
// a tool out.
func findMirrored(schema json.RawMessage, path []string, taken map[string]bool) (list []mirrored, problems []string) {
	properties, _ := members(field(schema, "properties"))
	for _, p := range properties {
		at := append(slices.Clone(path), p.key)
		inner, bad := findMirrored(p.value, at, taken)
		list, problems = append(list, inner...), append(problems, bad...)
		mark := field(p.value, "x-mcp-header")
		if mark == nil {
			continue
		}
		header, _ := unquote(mark)
		kind := stringField(p.value, "type")
		if !headerToken.MatchString(header) || taken[strings.ToLower(header)] || !slices.Contains([]string{"string", "integer", "boolean"}, kind) {
			problems = append(problems, fmt.Sprintf("parameter %s: x-mcp-header %s: want a header name that no other has, on a string, integer or boolean; clients leave the tool out",
				strings.Join(at, "."), mark))
			continue
		}
		taken[strings.ToLower(header)] = true
		list = append(list, mirrored{header, at})
	}
	return list, problems
}

// setHook finds whether the method takes webhooks, and where: by its tag, else
// by its name. A path that can't be served is a problem, and the method then
// takes none.
func (m *Method) setHook(tag *string) (problems []string) {
	m.IsHook = tag != nil || strings.HasPrefix(m.Name, "handle")
	if tag != nil && *tag != "" {
		m.Hook = *tag
		if err := checkHookPath(m.Hook); err != nil {
			m.IsHook = false
			problems = append(problems, err.Error())
		}
	}
	if m.Signature != nil && m.Signature.Err != nil {
		problems = append(problems, m.Signature.Err.Error()+"; its webhook answers 503 until that is mended")
	}
	if m.Signature != nil && !m.IsHook {
		problems = append(problems, "@signature without a webhook")
	}
	return problems
}

var hookPath = regexp.MustCompile(`^[A-Za-z0-9._~/-]+$`)

// checkHookPath refuses paths that could not be asked for as they are written.
func checkHookPath(path string) error {
	if !hookPath.MatchString(path) {
		return fmt.Errorf("@webhook %q: want a path of A-Z a-z 0-9 . _ ~ / -; it is not served", path)
	}
	for segment := range strings.SplitSeq(path, "/") {
		if segment == "" || segment == "." || segment == ".." {
			return fmt.Errorf("@webhook %q: a part of the path is empty or made of dots; it is not served", path)
		}
	}
	return nil
}

// paramTypes is the schema's types of a top-level parameter: nil for none such,
// empty for one of any type.
func (m *Method) paramTypes(name string) []string {
	for _, p := range m.params {
		if p.name == name {
			return append([]string{}, p.types...)
		}
	}
	return nil
}

// toolJSON is the definition of the MCP tool under the name it has in a view.
func (m *Method) toolJSON(name string) json.RawMessage {
	return joinMembers(append([]member{{"name", quote(name)}}, m.definition...))
}

// cleanSchema returns the schema without webhookParam and with what the
// documentation says of parameters, and the names of documented ones that it
// lacks; with add, it gets those instead.
func cleanSchema(schema json.RawMessage, docs []paramDoc, add bool) (json.RawMessage, []string) {
	list, ok := members(schema)
	if !ok {
		list = []member{{"type", json.RawMessage(`"object"`)}}
	}
	props, _ := members(field(schema, "properties"))
	props = slices.DeleteFunc(slices.Clone(props), func(f member) bool { return f.key == webhookParam })
	var required, unknown []string
	_ = json.Unmarshal(field(schema, "required"), &required) // else: none
	required = slices.DeleteFunc(required, func(s string) bool { return s == webhookParam })
	for _, d := range docs {
		i := slices.IndexFunc(props, func(f member) bool { return f.key == d.name })
		switch {
		case d.name == webhookParam:
		case i >= 0:
			props[i].value = documented(props[i].value, d)
		case add:
			props = append(props, member{d.name, documented(json.RawMessage(`{}`), d)})
			if !d.optional {
				required = append(required, d.name)
			}
		default:
			unknown = append(unknown, d.name)
		}
	}
	if len(props) > 0 || field(schema, "properties") != nil {
		list = setMember(list, "properties", joinMembers(props))
	}
	if len(required) > 0 || field(schema, "required") != nil {
		list = setMember(list, "required", marshal(append([]string{}, required...)))
	}
	return joinMembers(list), unknown
}

// documented is a parameter's schema with what its documentation adds: the text,
// and the type where the language has given none.
func documented(schema json.RawMessage, d paramDoc) json.RawMessage {
	own, ok := members(schema)
	if !ok {
		return schema // true or false: nothing to add to
	}
	if field(schema, "type") == nil && field(schema, "$ref") == nil && field(schema, "anyOf") == nil {
		kind, _ := members(docType(d.kind))
		own = append(kind, own...)
		if len(d.fields) > 0 {
			own = setMember(own, "type", json.RawMessage(`"object"`))
			inner, _ := cleanSchema(joinMembers(own), d.fields, true)
			own, _ = members(inner)
		}
	}
	if stringField(schema, "type") == "number" && stringField(docType(d.kind), "type") == "integer" {
		own = setMember(own, "type", json.RawMessage(`"integer"`)) // which TypeScript has no word for
	}
	if d.fallback != nil && field(schema, "default") == nil {
		own = setMember(own, "default", d.fallback)
	}
	if d.text != "" {
		own = setMember(own, "description", quote(d.text))
	}
	return joinMembers(own)
}

// docType is the schema of a type as @param names it; {} for one that says
// nothing.
func docType(s string) json.RawMessage {
	s = strings.TrimSpace(s)
	if inner, ok := strings.CutSuffix(s, "[]"); ok {
		return joinMembers([]member{{"type", json.RawMessage(`"array"`)}, {"items", docType(inner)}})
	}
	if inner, ok := strings.CutPrefix(s, "Array<"); ok {
		return docType(strings.TrimSuffix(inner, ">") + "[]")
	}
	switch strings.ToLower(s) {
	case "string", "number", "integer", "boolean", "object", "array":
		return joinMembers([]member{{"type", quote(strings.ToLower(s))}})
	case "int":
		return json.RawMessage(`{"type":"integer"}`)
	case "float":
		return json.RawMessage(`{"type":"number"}`)
	case "bool":
		return json.RawMessage(`{"type":"boolean"}`)
	}
	return json.RawMessage(`{}`)
}

// schemaParams reads the top level of a schema. What it can't read does not
// restrict.
func schemaParams(schema json.RawMessage) []param {
	var required []string
	_ = json.Unmarshal(field(schema, "required"), &required) // else: none
	props, _ := members(field(schema, "properties"))
	var list []param
	for _, f := range props {
		p := param{name: f.key, required: slices.Contains(required, f.key)}
		raw := field(f.value, "type")
		if one, ok := unquote(raw); ok {
			p.types = []string{one}
		} else {
			_ = json.Unmarshal(raw, &p.types) // else: any
		}
		list = append(list, p)
	}
	for _, name := range required {
		if !slices.ContainsFunc(list, func(p param) bool { return p.name == name }) {
			list = append(list, param{name: name, required: true})
		}
	}
	return list
}

// checkArguments tells what is wrong with a call's arguments at the top level:
// a required parameter that is missing, or one of the wrong type. An optional
// parameter that is null counts as left out.
func (m *Method) checkArguments(arguments json.RawMessage) error {
	list, _ := members(arguments)
	given := make(map[string]json.RawMessage, len(list))
	for _, f := range list {
		given[f.key] = f.value
	}
	for _, p := range m.params {
		value, ok := given[p.name]
		if !ok && p.required {
			return fmt.Errorf("parameter %q is required%s", p.name, wanted(p.types))
		}
		if !ok || len(p.types) == 0 || !p.required && string(value) == "null" {
			continue
		}
		got := jsonType(value)
		if !slices.Contains(p.types, got) && !(got == "integer" && slices.Contains(p.types, "number")) {
			return fmt.Errorf("parameter %q: want %s, got %s", p.name, withArticles(p.types), withArticles([]string{got}))
		}
	}
	return nil
}

func wanted(types []string) string {
	if len(types) == 0 {
		return ""
	}
	return ": " + withArticles(types)
}

func withArticles(types []string) string {
	words := make([]string, len(types))
	for i, t := range types {
		switch t {
		case "integer", "object", "array":
			words[i] = "an " + t
		case "null":
			words[i] = t
		default:
			words[i] = "a " + t
		}
	}
	return strings.Join(words, " or ")
}

// jsonType is the JSON Schema type of a valid value: the narrowest.
func jsonType(value json.RawMessage) string {
	switch value[0] {
	case '"':
		return "string"
	case '{':
		return "object"
	case '[':
		return "array"
	case 't', 'f':
		return "boolean"
	case 'n':
		return "null"
	}
	whole, fraction, _ := strings.Cut(string(value), ".")
	if strings.ContainsAny(whole, "eE") || strings.Trim(fraction, "0") != "" {
		return "number"
	}
	return "integer"
}

// withoutWebhook takes webhookParam out of the arguments of a call.
func withoutWebhook(arguments json.RawMessage) json.RawMessage {
	list, ok := members(arguments)
	if !ok || !slices.ContainsFunc(list, func(f member) bool { return f.key == webhookParam }) {
		return arguments
	}
	return joinMembers(slices.DeleteFunc(list, func(f member) bool { return f.key == webhookParam }))
}

// docTags is a method's documentation, taken apart.
type docTags struct {
	text      string // without the tags' lines
	webhook   *string
	signature *signatureRule
	params    []paramDoc
	hints     []string // MCP annotations that are true
	problems  []string
}

// paramDoc is what the documentation says of a parameter.
type paramDoc struct {
	name     string
	kind     string // its type, as written; "" for none
	text     string
	optional bool
	fallback json.RawMessage // its default; nil for none
	fields   []paramDoc      // of an object: documented as name.field
}

// hintTags are the tags that become MCP tool annotations.
var hintTags = map[string]string{
	"@readonly":    "readOnlyHint",
	"@destructive": "destructiveHint",
	"@idempotent":  "idempotentHint",
}

// parseDoc takes the tags out of a method's documentation. With own it is that
// of a file which usher runs, else only the webhook tags are tags. Each stands
// on a line of its own; other lines that begin with @ are text.
func parseDoc(doc string, own bool) docTags {
	var t docTags
	var text []string
	wraps := false // the line before was @param's, which an indented line goes on with
	for line := range strings.Lines(doc) {
		line = strings.TrimRight(line, "\r\n")
		if more := strings.TrimSpace(line); wraps && more != "" && line[0] <= ' ' && more[0] != '@' {
			last := &t.params[len(t.params)-1]
			last.text = strings.TrimSpace(last.text + " " + more)
			continue
		}
		wraps = false
		tag, rest := cutWord(strings.TrimSpace(line))
		hint, isHint := hintTags[tag]
		switch {
		case tag == "@webhook":
			if t.webhook != nil {
				t.problems = append(t.problems, "@webhook stands twice; the first counts")
				break
			}
			path := strings.TrimPrefix(rest, "/")
			t.webhook = &path
		case tag == "@signature":
			if t.signature != nil {
				t.signature.Err = errors.New("@signature stands twice")
				break
			}
			t.signature = parseSignature(rest)
		case own && isHint:
			t.hints = append(t.hints, hint)
		case own && tag == "@param":
			if p, ok := parseParam(rest); ok {
				t.params, wraps = append(t.params, p), true
			} else {
				t.problems = append(t.problems, "@param without a name")
			}
		default:
			text = append(text, line)
		}
	}
	t.text = strings.TrimSpace(strings.Join(text, "\n"))
	t.params = nestParams(t.params)
	if len(t.params) == 1 && len(t.params[0].fields) > 0 {
		t.params = t.params[0].fields // the one object that a JavaScript method takes
	}
	return t
}

// nestParams puts parameters documented as name.field into that of the name.
func nestParams(flat []paramDoc) []paramDoc {
	var list []paramDoc
	for _, d := range flat {
		root, rest, dotted := strings.Cut(d.name, ".")
		i := slices.IndexFunc(list, func(p paramDoc) bool { return p.name == root })
		if !dotted || i < 0 {
			list = append(list, d)
			continue
		}
		d.name = rest
		list[i].fields = nestParams(append(list[i].fields, d))
	}
	return list
}

// parseParam reads what follows @param: an optional {type}, the name, in
// brackets and with its default if it may be left out, an optional dash, the
// text.
func parseParam(s string) (paramDoc, bool) {
	var d paramDoc
	if strings.HasPrefix(s, "{") {
		kind, after, ok := cutBrackets(s)
		if !ok {
			return d, false
		}
		d.kind, d.optional = strings.CutSuffix(strings.TrimSpace(kind), "=")
		s = strings.TrimSpace(after)
	}
	if strings.HasPrefix(s, "[") {
		inside, after, ok := cutBrackets(s)
		if !ok {
			return d, false
		}
		name, fallback, has := strings.Cut(inside, "=")
		d.name, d.optional = strings.TrimSpace(name), true
		if has {
			d.fallback = docDefault(strings.TrimSpace(fallback))
		}
		s = after
	} else {
		d.name, s = cutWord(s)
	}
	s = strings.TrimSpace(s)
	d.text = strings.TrimSpace(strings.TrimPrefix(s, "- "))
	return d, d.name != "" && d.name != "-"
}

// cutWord returns the word that s begins with, which any space ends, a tab too (a
// tag that is not seen protects nothing), and what follows it.
func cutWord(s string) (word, rest string) {
	i := strings.IndexFunc(s, unicode.IsSpace)
	if i < 0 {
		return s, ""
	}
	return s[:i], strings.TrimSpace(s[i:])
}

// cutBrackets returns what stands in the brackets that s begins with, which may
// hold others of their kind, as {{a: string}} and [tags=[]] do, and what follows.
func cutBrackets(s string) (inside, after string, ok bool) {
	depth := 0
	for i := range len(s) {
		switch s[i] {
		case s[0]:
			depth++
		case s[0] + 2: // in ASCII, ] and } come two after [ and {
			if depth--; depth == 0 {
				return s[1:i], s[i+1:], true
			}
		}
	}
	return "", "", false
}

// docDefault is a default as the documentation has it: JSON, or else a text.
func docDefault(s string) json.RawMessage {
	if json.Valid([]byte(s)) {
		return json.RawMessage(s)
	}
	return quote(strings.Trim(s, "'"))
}

// firstSentence is the first sentence of a text, on one line, without the
// headings of Markdown before it.
func firstSentence(text string) string {
	text = strings.TrimSpace(text)
	for strings.HasPrefix(text, "#") {
		_, text, _ = strings.Cut(text, "\n")
		text = strings.TrimSpace(text)
	}
	text = strings.Join(strings.Fields(text), " ")
	for i := 0; i < len(text); i++ {
		if strings.IndexByte(".!?", text[i]) >= 0 && (i+1 == len(text) || text[i+1] == ' ') {
			text = text[:i+1]
		}
	}
	if runes := []rune(text); len(runes) > 200 {
		text = string(runes[:199]) + "…"
	}
	return text
}

// failure is the result of a tool call that failed.
func failure(text string) json.RawMessage {
	b := appendString([]byte(`{"content":[{"type":"text","text":`), text)
	return append(b, `}],"isError":true}`...)
}

// valueKey is the member of _meta under which usher's own runtimes (the shims and
// the generated main of a Go module) hand over what a method returned.
const valueKey = "usher/value"

// methodResult returns the tool result of a call that a runtime of usher's own
// has answered: made of the value it handed over, else, a failure for example,
// the answer as it is.
func methodResult(answer json.RawMessage) json.RawMessage {
	if value := field(field(answer, "_meta"), valueKey); value != nil {
		return toolResult(value)
	}
	return answer
}

// toolResult returns the tool result that a method's value becomes. An object
// that is a tool result already is passed on; any other becomes structured
// content beside its text. Of nothing, nil or null, there is no content.
func toolResult(value json.RawMessage) json.RawMessage {
	value = oneLine(bytes.TrimSpace(value))
	text := value
	switch {
	case len(value) == 0 || string(value) == "null":
		return json.RawMessage(`{"content":[]}`)
	case value[0] == '{' && isToolResult(value):
		return value
	case value[0] != '"':
		text = quote(string(value))
	}
	content := joinItems([]json.RawMessage{joinMembers([]member{{"type", json.RawMessage(`"text"`)}, {"text", text}})})
	if value[0] != '{' {
		return joinMembers([]member{{"content", content}})
	}
	return joinMembers([]member{{"content", content}, {"structuredContent", value}})
}

// isToolResult reports whether an object already is the result of an MCP tool:
// a content list of known types, and nothing that is foreign to a result.
func isToolResult(object json.RawMessage) bool {
	var content []json.RawMessage
	if json.Unmarshal(field(object, "content"), &content) != nil || content == nil {
		return false
	}
	for _, c := range content {
		if !slices.Contains([]string{"text", "image", "audio", "resource", "resource_link"}, stringField(c, "type")) {
			return false
		}
	}
	list, _ := members(object)
	return !slices.ContainsFunc(list, func(f member) bool {
		return !slices.Contains([]string{"content", "structuredContent", "isError", "_meta"}, f.key)
	})
}

// resultText is a tool's result for people: its structured content if it has
// some, else its texts, else the whole as JSON.
func resultText(result json.RawMessage) string {
	if structured := field(result, "structuredContent"); structured != nil && string(structured) != "null" {
		return string(structured)
	}
	var parts []json.RawMessage
	if json.Unmarshal(field(result, "content"), &parts) != nil {
		return string(result)
	}
	var texts []string
	for _, part := range parts {
		if stringField(part, "type") == "text" {
			texts = append(texts, stringField(part, "text"))
		} else {
			texts = append(texts, string(part))
		}
	}
	return strings.Join(texts, "\n")
}
