// Schemas: what a module says of one of its methods, read into a Method; the tags
// in a method's documentation; the one check of a call's arguments against the
// method's JSON Schema, for every language; and the one place where what a method
// returned becomes a tool result. It knows no module, no kind of module, and no call.

package main

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// webhookParam is the parameter under which a webhook's metadata arrives. It is
// in no schema, and no MCP client can set it.
const webhookParam = "_webhook"

// Method is one callable of a module. It is not changed once made.
type Method struct {
	Name string // the module's own name for it

	docTags

	definition object     // of the MCP tool, without its name
	schema     func() any // of its arguments, decoded at the first call

	// headerParams are the parameters that a request repeats in a header
	// Mcp-Param-HEADER, by their names (MCP 2026-07-28,
	// basic/transports/streamable-http, "Custom Headers").
	headerParams map[string]string
}

// docRules says how the documentation of a module's methods is read.
type docRules struct {
	Hooks      bool // webhooks are possible: the module was written for usher
	Tags       bool // all other tags count too: usher itself runs the file
	Undeclared bool // @param adds a parameter that the schema lacks
}

// parseMethod reads an MCP tool definition as a module gave it. The tags that
// count are taken out of its description and applied. The strings are problems
// worth telling, of a method that is hosted all the same.
func parseMethod(definition json.RawMessage, rules docRules) (*Method, []string, error) {
	list, ok := members(definition)
	m := &Method{
		Name:         stringField(definition, "name"),
		docTags:      parseDoc(stringField(definition, "description"), rules),
		headerParams: make(map[string]string),
	}
	if !ok || m.Name == "" {
		return nil, nil, fmt.Errorf("a tool without a name")
	}
	m.IsHook = m.IsHook || rules.Hooks && strings.HasPrefix(m.Name, "handle")
	var problems []string
	if err := checkHookPath(m.Hook); err != nil && m.Hook != "" {
		m.IsHook = false // rather than somewhere else
		problems = append(problems, fmt.Sprintf("%s: %v", m.Name, err))
	}
	schema := cleanSchema(field(definition, "inputSchema"), m.params, rules.Undeclared)
	m.definition = list.without("name", "description", "inputSchema")
	if m.description != "" {
		m.definition = append(m.definition, member{"description", quote(m.description)})
	}
	m.definition = append(m.definition, member{"inputSchema", schema})
	if len(m.annotations) > 0 {
		m.definition = m.definition.set("annotations", m.annotations.encode())
	}
	m.schema = sync.OnceValue(func() (decoded any) {
		_ = json.Unmarshal(schema, &decoded) // one nested without end takes any arguments
		return decoded
	})
	for name, property := range fields(field(schema, "properties")) {
		header := stringField(property, "x-mcp-header")
		fits := slices.Contains([]string{"string", "integer", "boolean"}, stringField(property, "type"))
		if fits && headerToken.MatchString(header) { // clients leave out a tool that marks one wrongly
			m.headerParams[name] = header
		}
	}
	return m, problems, nil
}

var headerToken = regexp.MustCompile("^[!#$%&'*+.^_`|~0-9A-Za-z-]+$")

var hookPath = regexp.MustCompile(`^[A-Za-z0-9._~/-]+$`)

// checkHookPath refuses paths that could not be asked for as they are written.
func checkHookPath(hook string) error {
	if !hookPath.MatchString(hook) || path.Clean("/"+hook) != "/"+hook {
		return fmt.Errorf("@webhook %q: want a path of A-Z a-z 0-9 . _ ~ / - without empty parts and dots alone; it is not served", hook)
	}
	return nil
}

// paramTypes is the schema's types of a top-level parameter: nil for none such,
// empty for one of any type.
func (m *Method) paramTypes(name string) []string {
	property, ok := objectIn(m.schema(), "properties")[name].(map[string]any)
	if !ok {
		return nil
	}
	return append([]string{}, textList(property["type"])...)
}

// toolJSON is the definition of the MCP tool under the name it has in a view.
func (m *Method) toolJSON(name string) json.RawMessage {
	return append(object{{"name", quote(name)}}, m.definition...).encode()
}

// cleanSchema returns the schema without webhookParam and with what the
// documentation says of parameters; with add, it gets those that it lacks.
func cleanSchema(schema json.RawMessage, docs []paramDoc, add bool) json.RawMessage {
	list, ok := members(schema)
	if !ok {
		list = object{{"type", json.RawMessage(`"object"`)}}
	}
	props, _ := members(field(schema, "properties"))
	props = props.without(webhookParam)
	var required []string
	_ = json.Unmarshal(field(schema, "required"), &required) // else: none
	required = slices.DeleteFunc(required, func(s string) bool { return s == webhookParam })
	for _, d := range docs {
		own := props.get(d.name)
		if d.name == webhookParam || own == nil && !add {
			continue
		}
		props = props.set(d.name, documented(own, d))
		if own == nil && !d.optional {
			required = append(required, d.name)
		}
	}
	if len(props) > 0 || field(schema, "properties") != nil {
		list = list.set("properties", props.encode())
	}
	if len(required) > 0 || field(schema, "required") != nil {
		list = list.set("required", marshal(append([]string{}, required...)))
	}
	return list.encode()
}

// documented is a parameter's schema, nil for none, with what its documentation adds:
// the text, and the type where the language has given none.
func documented(schema json.RawMessage, d paramDoc) json.RawMessage {
	own, ok := members(schema)
	if !ok && schema != nil {
		return schema // true or false: nothing to add to
	}
	if !slices.ContainsFunc([]string{"type", "$ref", "anyOf", "enum"}, func(key string) bool { return field(schema, key) != nil }) {
		kind, _ := members(docType(d.kind))
		own = append(kind, own...)
	}
	if stringField(schema, "type") == "number" && stringField(docType(d.kind), "type") == "integer" {
		own = own.set("type", json.RawMessage(`"integer"`)) // which TypeScript has no word for
	}
	if d.defaultValue != nil && field(schema, "default") == nil {
		own = own.set("default", d.defaultValue)
	}
	if d.text != "" {
		own = own.set("description", quote(d.text))
	}
	return own.encode()
}

// docTypes are the JSON Schema types by the names that @param gives them.
var docTypes = map[string]string{"string": "string", "object": "object", "array": "array", "integer": "integer", "int": "integer",
	"number": "number", "float": "number", "boolean": "boolean", "bool": "boolean"}

// docType is the schema of a type as @param names it; {} for one that says
// nothing.
func docType(s string) json.RawMessage {
	s = strings.TrimSpace(s)
	literals := strings.NewReplacer("|", ",", "'", `"`).Replace("[" + strings.Trim(s, "()") + "]") // as in ('x'|'y')
	if s != "" && json.Valid([]byte(literals)) {
		return object{{"enum", marshal(json.RawMessage(literals))}}.encode()
	}
	if inner, ok := strings.CutPrefix(s, "Array<"); ok {
		s = strings.TrimSuffix(inner, ">") + "[]"
	}
	if inner, ok := strings.CutSuffix(s, "[]"); ok {
		return object{{"type", json.RawMessage(`"array"`)}, {"items", docType(inner)}}.encode()
	}
	if name := docTypes[strings.ToLower(s)]; name != "" {
		return object{{"type", quote(name)}}.encode()
	}
	return json.RawMessage(`{}`)
}

// ---- Documentation

// docTags is a method's documentation, taken apart.
type docTags struct {
	// Hook is where the method takes webhooks, below /webhook/: a path of its
	// own, or "" for the module's and method's names. IsHook says whether it does.
	Hook        string
	IsHook      bool
	Signature   string // its @signature tag, or a line with a misplaced tag: see parseSignature
	description string // without the tags' lines
	params      []paramDoc
	annotations object // of MCP
}

// paramDoc is what the documentation says of a parameter.
type paramDoc struct {
	name         string
	kind         string // its type, as written; "" for none
	text         string
	optional     bool
	defaultValue json.RawMessage // nil for none
}

// annotationTags are the tags that become MCP tool annotations.
var annotationTags = map[string]string{"@readonly": "readOnlyHint", "@destructive": "destructiveHint", "@idempotent": "idempotentHint"}

var misplacedTag = regexp.MustCompile(`\S\s+@(webhook|signature)(\s|$)`)

// parseDoc takes the tags that count out of a method's documentation. Each stands
// on a line of its own; other lines that begin with @ are text.
func parseDoc(doc string, rules docRules) docTags {
	var t docTags
	var text []string
	wraps := false // the line before was @param's, which an indented line goes on with
	for line := range strings.Lines(doc) {
		line = strings.TrimRight(line, "\r\n")
		trimmed := strings.TrimSpace(line)
		if wraps && trimmed != "" && line[0] <= ' ' && trimmed[0] != '@' {
			last := &t.params[len(t.params)-1]
			last.text = strings.TrimSpace(last.text + " " + trimmed)
			continue
		}
		wraps = false
		// Any space ends a tag, a tab too: a @signature that is not seen protects nothing.
		tag, _, _ := strings.Cut(strings.Join(strings.Fields(trimmed), " "), " ")
		rest := strings.TrimSpace(trimmed[len(tag):])
		switch {
		case rules.Hooks && tag == "@webhook":
			t.IsHook, t.Hook = true, cmp.Or(t.Hook, strings.TrimPrefix(rest, "/"))
		case rules.Hooks && tag == "@signature":
			t.Signature = cmp.Or(t.Signature, trimmed) // the first counts
		case rules.Tags && annotationTags[tag] != "":
			t.annotations = t.annotations.set(annotationTags[tag], json.RawMessage("true"))
		case rules.Tags && tag == "@param":
			if p, ok := parseParam(rest); ok && !strings.Contains(p.name, ".") { // which a field of another has
				t.params, wraps = append(t.params, p), true
			}
		default:
			text = append(text, line)
			if rules.Hooks && misplacedTag.MatchString(line) { // which may be meant to protect something
				t.Signature = cmp.Or(t.Signature, trimmed)
			}
		}
	}
	t.description = strings.TrimSpace(strings.Join(text, "\n"))
	return t
}

// paramTag is what follows @param: an optional {type}, which may hold braces, the
// name, in brackets and with its default if it may be left out, an optional
// dash, the text.
var paramTag = regexp.MustCompile(`^(?:\{((?:[^{}]|\{[^{}]*\})*)\}\s*)?(?:\[\s*([^\s=\]]+)\s*(?:=((?:[^\[\]]|\[[^\]]*\])*))?\]|([^\s{\[-]\S*))\s*(?:- )?(.*)$`)

// parseParam reads what follows @param.
func parseParam(tag string) (paramDoc, bool) {
	parts := paramTag.FindStringSubmatch(tag)
	if parts == nil {
		return paramDoc{}, false
	}
	kind, mayBeLeftOut := strings.CutSuffix(strings.TrimSpace(parts[1]), "=")
	d := paramDoc{kind: kind, name: parts[2] + parts[4], text: strings.TrimSpace(parts[5]), optional: mayBeLeftOut || parts[2] != ""}
	if fallback := strings.TrimSpace(parts[3]); json.Valid([]byte(fallback)) {
		d.defaultValue = json.RawMessage(fallback)
	} else if fallback != "" {
		d.defaultValue = quote(strings.Trim(fallback, "'"))
	}
	return d, true
}

// isSecretVariable reports whether an environment variable holds a secret of
// webhooks, by its name: such a variable is handed to no module, and no other can
// be the key of a @signature.
func isSecretVariable(name string) bool {
	name = strings.ToUpper(name)
	return strings.HasSuffix(name, "_WEBHOOK_SECRET") || strings.HasSuffix(name, "_SIGNING_SECRET")
}

var headings = regexp.MustCompile(`^(\s*#.*(\n|$))*`)

var sentenceEnd = regexp.MustCompile(`[.!?]( |$)`)

// firstSentence is the first sentence of a text, on one line, without the
// headings of Markdown before it.
func firstSentence(text string) string {
	text = strings.Join(strings.Fields(headings.ReplaceAllString(text, "")), " ")
	if end := sentenceEnd.FindStringIndex(text); end != nil {
		text = text[:end[0]+1]
	}
	return strings.ToValidUTF8(clipText(text, 200), "")
}

// ---- The check of arguments

// argumentError is why arguments do not fit their schema: what is wanted of the
// value at a path, and, unless that says it all, what is got.
type argumentError struct{ path, want, got string }

func (e *argumentError) Error() string {
	if e.got == "" {
		return fmt.Sprintf("parameter %q %s", e.path, e.want)
	}
	return fmt.Sprintf("parameter %q: want %s, got %s", e.path, e.want, e.got)
}

// checkArguments checks the arguments of a call, an object or nil, against the
// method's schema. It returns them without optional parameters that are null and
// can't be, which count as left out. The error names the first parameter that does
// not fit.
func (m *Method) checkArguments(arguments json.RawMessage) (json.RawMessage, error) {
	c := argumentCheck{
		root:      m.schema(),
		left:      32*len(arguments) + 1<<16,
		following: make(map[followedRef]bool),
	}
	list, _ := members(arguments)
	kept := slices.DeleteFunc(list, func(f member) bool {
		return isOptionalNull(c.root, f) && c.value(f.key, objectIn(c.root, "properties")[f.key], f.value) != nil
	})
	if len(arguments) == 0 || len(kept) < len(list) {
		arguments = kept.encode()
	}
	if wrong := c.value("", c.root, arguments); wrong != nil {
		return nil, wrong
	}
	return arguments, nil
}

// isOptionalNull reports whether a member of an object is null, and a property that
// is not required.
func isOptionalNull(schema any, f member) bool {
	object, _ := schema.(map[string]any)
	_, declared := objectIn(schema, "properties")[f.key]
	return declared && string(f.value) == "null" && !slices.Contains(textList(object["required"]), f.key)
}

// exampleArguments is arguments to begin with: a value for each required parameter.
func (m *Method) exampleArguments() json.RawMessage {
	schema, _ := m.schema().(map[string]any)
	values := map[string]any{"string": "text", "array": []any{}, "boolean": true, "integer": 1, "number": 1}
	arguments := make(map[string]any)
	for _, name := range textList(schema["required"]) {
		property := objectIn(objectIn(schema, "properties"), name)
		enum, _ := property["enum"].([]any)
		kind := append(textList(property["type"]), "object")[0]
		arguments[name] = slices.Concat(enum, []any{cmp.Or(values[kind], any(struct{}{}))})[0]
	}
	return marshal(arguments)
}

// objectIn is the member of a decoded schema under key, if it is an object.
func objectIn(schema any, key string) map[string]any {
	object, _ := schema.(map[string]any)
	inner, _ := object[key].(map[string]any)
	return inner
}

const (
	maxCheckDepth = 10_000 // schemas within schemas: more could overflow the stack, which ends the daemon
	maxWantedText = 1_000  // bytes of an error's list of alternatives
	refersToSelf  = "has a schema that only refers to itself"
)

// argumentCheck is the check of one call's arguments. Schemas are as
// encoding/json decodes them; what is no object takes any value. Paths are the
// keys that lead to a value, joined by dots. A check always ends: left, following
// and depth see to it.
type argumentCheck struct {
	root      any
	left      int // bytes that may still be read, alternatives could take for ever; negative: given up
	depth     int // of calls of value, one within the other
	following map[followedRef]bool
}

// followedRef is a $ref that is being followed for one value. The value's length
// identifies the value, because a value is longer than any value inside it.
type followedRef struct {
	ref    string
	length int
}

// value checks the value at path.
func (c *argumentCheck) value(path string, schema any, value json.RawMessage) *argumentError {
	c.left -= len(value) + 1
	if c.depth == maxCheckDepth {
		c.left = -1
	}
	if c.left < 0 {
		return &argumentError{path, "is too complex to be checked", ""}
	}
	c.depth++
	defer func() { c.depth-- }()
	s, ok := schema.(map[string]any)
	if !ok {
		return nil
	}
	if ref, ok := s["$ref"].(string); ok {
		return c.reference(path, ref, value)
	}
	types, got := textList(s["type"]), jsonType(value)
	if len(types) > 0 && !slices.Contains(types, got) && !(got == "integer" && slices.Contains(types, "number")) {
		return &argumentError{path, withArticles(types), withArticles([]string{got})}
	}
	if wrong := c.alternatives(path, s, value); wrong != nil {
		return wrong
	}
	switch got {
	case "object":
		return c.object(path, s, value)
	case "array":
		var items []json.RawMessage
		_ = json.Unmarshal(value, &items)
		for i, item := range items {
			if wrong := c.value(below(path, strconv.Itoa(i)), s["items"], item); wrong != nil {
				return wrong
			}
		}
		return nil
	}
	if want := scalarWanted(s, value); want != "" {
		return &argumentError{path, want, clipText(string(value), 100)}
	}
	return nil
}

// reference checks the value at path against the schema that a $ref names. A $ref
// that leads to itself fits no value.
func (c *argumentCheck) reference(path, ref string, value json.RawMessage) *argumentError {
	followed := followedRef{ref, len(value)}
	if c.following[followed] {
		return &argumentError{path, refersToSelf, ""}
	}
	c.following[followed] = true
	defer delete(c.following, followed)
	return c.value(path, objectIn(c.root, "$defs")[strings.TrimPrefix(ref, "#/$defs/")], value)
}

// below is the path of what the value at path holds under key.
func below(path, key string) string { return strings.TrimPrefix(path+"."+key, ".") }

// alternatives checks a value against anyOf or oneOf: one of them must fit. Of
// those that don't, the one that was read furthest is the one that was meant. Its
// error names each alternative once.
func (c *argumentCheck) alternatives(path string, s map[string]any, value json.RawMessage) *argumentError {
	anyOf, _ := s["anyOf"].([]any)
	oneOf, _ := s["oneOf"].([]any)
	var furthest *argumentError
	for _, one := range slices.Concat(anyOf, oneOf) {
		wrong := c.value(path, one, value)
		switch {
		case wrong == nil:
			return nil
		case c.left < 0:
			return wrong // too complex: the other alternatives can't be checked either
		case furthest == nil || furthest.want == refersToSelf || len(wrong.path) > len(furthest.path):
			furthest = wrong
		case furthest.path != path || wrong.path != path || wrong.want == refersToSelf:
			// One error is enough.
		case !strings.Contains(furthest.want, wrong.want):
			furthest.want = clipText(furthest.want+" or "+wrong.want, maxWantedText)
		}
	}
	return furthest
}

// object checks the members of an object; what is missing is told first.
func (c *argumentCheck) object(path string, s map[string]any, value json.RawMessage) *argumentError {
	list, _ := members(value)
	properties := objectIn(s, "properties")
	for _, name := range textList(s["required"]) {
		if list.get(name) != nil {
			continue
		}
		wrong := &argumentError{below(path, name), "is required", ""}
		if types := textList(objectIn(properties, name)["type"]); types != nil {
			wrong.want += ": " + withArticles(types)
		}
		return wrong
	}
	for _, f := range list {
		property, declared := properties[f.key]
		if !declared && f.key != webhookParam {
			property = s["additionalProperties"]
		}
		if property == false {
			return &argumentError{below(path, f.key), "is not known", ""}
		}
		if wrong := c.value(below(path, f.key), property, f.value); wrong != nil && !isOptionalNull(s, f) {
			return wrong
		}
	}
	return nil
}

// scalarWanted says what a schema wants instead of a value that is neither an
// object nor an array, and has the right type; "" if it takes the value.
func scalarWanted(s map[string]any, value json.RawMessage) string {
	if s["enum"] == nil && s["minimum"] == nil && s["format"] == nil && s["contentEncoding"] == nil {
		return ""
	}
	var decoded any
	_ = json.Unmarshal(value, &decoded) // nil for a number that is too large
	text, _ := decoded.(string)
	number, isNumber := decoded.(float64)
	if enum, ok := s["enum"].([]any); ok && !slices.Contains(enum, decoded) {
		return "one of " + strings.Trim(string(marshal(enum)), "[]")
	}
	if minimum, ok := s["minimum"].(float64); ok && isNumber && number < minimum {
		return fmt.Sprintf("at least %v", minimum)
	}
	if _, err := time.Parse(time.RFC3339, text); err != nil && s["format"] == "date-time" {
		return "a time such as 2006-01-02T15:04:05Z"
	}
	if _, err := base64.StdEncoding.DecodeString(text); err != nil && s["contentEncoding"] == "base64" {
		return "base64"
	}
	return ""
}

// textList reads a text or a list of texts out of a decoded schema.
func textList(value any) []string {
	if text, ok := value.(string); ok {
		return []string{text}
	}
	list, _ := value.([]any)
	var texts []string
	for _, item := range list {
		if text, ok := item.(string); ok {
			texts = append(texts, text)
		}
	}
	return texts
}

var articles = strings.NewReplacer("a integer", "an integer", "a object", "an object", "a array", "an array", "a null", "null")

// withArticles names types for people.
func withArticles(types []string) string {
	return articles.Replace("a " + strings.Join(types, " or a "))
}

// jsonTypes are the JSON Schema types of values by the byte that they begin with,
// but for numbers.
var jsonTypes = map[byte]string{'"': "string", '{': "object", '[': "array", 't': "boolean", 'f': "boolean", 'n': "null"}

// jsonType is the JSON Schema type of a valid value: the narrowest.
func jsonType(value json.RawMessage) string {
	if name, ok := jsonTypes[value[0]]; ok {
		return name
	}
	whole, fraction, _ := strings.Cut(string(value), ".")
	if strings.ContainsAny(whole, "eE") || strings.Trim(fraction, "0") != "" {
		return "number"
	}
	return "integer"
}

// withoutWebhook takes webhookParam, in any case of letters, out of what a client
// sent: decoders that don't distinguish cases would take it for usher's own.
func withoutWebhook(list object) object {
	return slices.DeleteFunc(list, func(f member) bool { return strings.EqualFold(f.key, webhookParam) })
}

// ---- Results

// failure is the result of a tool call that failed.
func failure(text string) json.RawMessage {
	b := append([]byte(`{"content":[{"type":"text","text":`), quote(text)...)
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
	if len(value) == 0 || string(value) == "null" {
		return json.RawMessage(`{"content":[]}`)
	}
	if value[0] == '{' && isToolResult(value) {
		return value
	}
	text := value
	if value[0] != '"' {
		text = quote(string(value))
	}
	result := slices.Concat([]byte(`{"content":[{"type":"text","text":`), text, []byte(`}]`))
	if value[0] == '{' {
		result = slices.Concat(result, []byte(`,"structuredContent":`), value)
	}
	return append(result, '}')
}

// isToolResult reports whether an object already is the result of an MCP tool:
// a content list of known types, and nothing that is foreign to a result.
func isToolResult(object json.RawMessage) bool {
	var content []json.RawMessage
	isResult := json.Unmarshal(field(object, "content"), &content) == nil && content != nil
	for _, block := range content {
		isResult = isResult && slices.Contains([]string{"text", "image", "audio", "resource", "resource_link"}, stringField(block, "type"))
	}
	for key := range fields(object) {
		isResult = isResult && slices.Contains([]string{"content", "structuredContent", "isError", "_meta"}, key)
	}
	return isResult
}

// resultText is a tool's result for people: its structured content if it has
// some, else its texts, and as JSON what else it holds.
func resultText(result json.RawMessage) string {
	if structured := field(result, "structuredContent"); structured != nil && string(structured) != "null" {
		return string(structured)
	}
	var parts []json.RawMessage
	_ = json.Unmarshal(field(result, "content"), &parts) // else: none
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
