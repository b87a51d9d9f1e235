// Schemas. This file reads the definition of a method, and the tags in its documentation;
// checks the arguments of a call against the method's JSON Schema, the same way for every
// language; and turns the value that a method returned into a tool result.

package main

import (
	"bytes"
	"cmp"
	_ "embed"
	"encoding/json"
	"fmt"
	"net/http"
	"path"
	"reflect"
	"regexp"
	"regexp/syntax"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// webhookParam is the parameter with the metadata of a webhook. It is in no schema, and no
// MCP client can set it.
const webhookParam = "_webhook"

// Method is one callable of a module. It never changes.
type Method struct {
	Name string // in the module

	docTags

	definition object  // of the MCP tool, without its name
	schema     *schema // of the arguments; not nil
	rounds     bool    // its language is JavaScript, which rounds long integers
}

// parseMethod parses an MCP tool definition of a module of the given kind. It removes the
// tags from the description and applies them. A problem may keep the method from receiving
// webhooks, not from being called.
func parseMethod(definition json.RawMessage, kind Kind) *Method {
	list := members(definition)
	m := &Method{
		Name:    list.text("name"),
		docTags: parseDoc(list.text("description"), kind),
		rounds:  kind == kindNode,
	}
	m.IsHook = m.IsHook || kind != kindConfig && !m.Internal && strings.HasPrefix(m.Name, "handle")
	if m.Internal && !m.IsHook {
		m.refused = cmp.Or(m.refused, "it has the tag @internal")
	}
	if err := checkHookPath(cmp.Or(m.Hook, m.Name)); err != nil && m.IsHook {
		m.problems = append(m.problems, err.Error())
		m.IsHook = false
	}
	input := m.cleanSchema(list.get("inputSchema"), kind)
	m.definition = list.without("name", "description")
	if m.description != "" {
		m.definition = m.definition.set("description", quote(m.description))
	}
	m.definition = m.definition.set("inputSchema", input)
	if len(m.annotations) > 0 {
		m.definition = m.definition.set("annotations", m.annotations.encode())
	}
	m.schema = decodeSchema(input)
	return m
}

var headerToken = regexp.MustCompile("^[!#$%&'*+.^_`|~0-9A-Za-z-]+$")

var hookPath = regexp.MustCompile(`^[A-Za-z0-9._~/-]+$`)

// checkHookPath returns an error unless requests can have this path exactly as written.
func checkHookPath(hook string) error {
	if !hookPath.MatchString(hook) || path.Clean("/"+hook) != "/"+hook {
		return fmt.Errorf("@webhook %q is not served: "+
			"want a path of A-Z a-z 0-9 . _ ~ / - with no empty, . or .. parts", hook)
	}
	return nil
}

// cleanSchema returns the method's schema without webhookParam, and with the documentation of
// its parameters. The parameters of a shell function are those that its documentation names.
// The result always has properties, as some clients require them. It allows no others, unless the
// shim has added additionalProperties.
func (m *Method) cleanSchema(schema json.RawMessage, kind Kind) json.RawMessage {
	list := members(schema)
	props := list.object("properties")
	var required []string
	_ = json.Unmarshal(list.get("required"), &required) // if invalid, none
	// A shim may have taken a line with a slip for the text of a parameter.
	for _, property := range props {
		if kind.singleFile() {
			m.readTag("- "+members(property.value).text("description"), kind)
		}
	}
	for _, d := range m.params {
		own := props.get(d.name)
		if own == nil && kind != kindShell {
			m.problems = append(m.problems, "@param "+d.name+": the method has no such parameter")
			continue
		}
		if own == nil && !d.optional {
			required = append(required, d.name)
		}
		props = props.set(d.name, m.documented(own, d))
	}
	props = props.without(webhookParam)
	required = slices.DeleteFunc(required, func(s string) bool { return s == webhookParam })
	if kind.singleFile() && len(props) > 0 && list.get("additionalProperties") == nil {
		list = list.set("additionalProperties", json.RawMessage("false"))
	}
	list = list.without("required").set("properties", props.encode())
	if len(required) > 0 {
		list = list.set("required", marshal(required))
	}
	return list.encode()
}

// documented adds a parameter's documentation to its schema, which may be nil: the text,
// the default, and the type unless the schema has one.
func (m *Method) documented(schema json.RawMessage, d paramDoc) json.RawMessage {
	own := members(schema)
	if len(own.without("description", "default")) == 0 {
		typed := docType(d.kind)
		if d.kind != "" && typed == nil {
			m.problems = append(m.problems, fmt.Sprintf("@param {%s} %s: want %s",
				d.kind, d.name, strings.Join(docTypes, ", ")))
		}
		own = append(typed, own...)
	}
	if d.defaultValue != nil && own.get("default") == nil {
		own = own.set("default", d.defaultValue)
	}
	if d.text != "" {
		own = own.set("description", quote(d.text))
	}
	return own.encode()
}

// docTypes are the JSON Schema types that @param can name.
var docTypes = []string{"integer", "number", "string", "boolean", "object", "array"}

// docType returns the schema of a type in @param, or nil if the type is unknown. A union of
// literals, such as ('x'|'y'), is an enum. Lists are nested in at most eight lists, because clients
// refuse deep schemas.
func docType(s string) object {
	s = strings.TrimSpace(s)
	list := strings.NewReplacer("'", `"`, "|", ",").Replace(strings.Trim(s, "()"))
	literals := items([]byte("[" + list + "]"))
	if len(literals) == strings.Count(s, "|")+1 {
		return object{{"enum", marshal(literals)}}
	}
	if inner, ok := strings.CutSuffix(s, "[]"); ok && strings.Count(inner, "[]") <= 8 {
		if items := docType(inner); items != nil {
			return object{{"type", quote("array")}, {"items", items.encode()}}
		}
	}
	if name := strings.ToLower(s); slices.Contains(docTypes, name) {
		return object{{"type", quote(name)}}
	}
	return nil
}

// ---- Documentation

// docTags is the content of a method's documentation.
type docTags struct {
	IsHook   bool // the method can receive webhooks
	Internal bool // it is not a tool
	Unshared bool // it is in no scoped view
	// Hook is the path of its webhook below /webhook/; "" means MODULE/METHOD.
	Hook        string
	Signature   string // the line with the tag @signature; "" for none
	refused     string // why the method is not offered; "" if it is
	description string // without the lines of the tags
	returns     string // the text after @returns
	params      []paramDoc
	annotations object   // of MCP
	problems    []string // for the module's author
	unknown     []string // tags that are neither usher's nor JSDoc's
}

// paramDoc is the documentation of a parameter.
type paramDoc struct {
	name         string
	kind         string // its type, as written; "" for none
	text         string
	optional     bool
	defaultValue json.RawMessage // nil for none
}

// tagTable lists the tags. Each line begins with an effect; the names of the tags that have it
// follow, in lower case and without -. The tags without an effect are JSDoc's.
//
//go:embed runtimes/tags.txt
var tagTable string

// protectingTags decide who may call a method. A slip in one of them must not leave the method
// unprotected, so a method with such a slip is not offered.
var protectingTags = []string{"signature", "webhook", "internal", "unshared"}

var (
	// tagLine matches a line that begins with a tag, and innerTag a tag inside a line.
	tagLine  = regexp.MustCompile(`^[\s\pZ]*@([^\s\pZ:{]+):?[\s\pZ]*(?:- )?(.*?)[\s\pZ]*$`)
	innerTag = regexp.MustCompile(`[\s\pZ\p{Cf}:]@([A-Za-z-]+)(/?)`)

	// noText matches a line that is a rule, with a title (group 1 or 2) or without, or addresses a tool.
	noText = regexp.MustCompile(`(?mi)^[ \t]*(?:shellcheck [\w-]+=.*|SPDX-.*|-\*-.*|\.\. \S+::.*|` +
		`(?:[-#=/─━═]{2,}\s([\w\pL][^|\n]*?)\s)?[-#=/─━═]{3,}|` +
		`([\w\pL][^|\n]*?)\s[-#=/─━═]{4,})[ \t]*$`)
	returnType = regexp.MustCompile(`^(\{.*\}\s*)?(- )?`)
)

// lookupTag returns the name of a tag as in tagTable, and its effect; "" if it is unknown. Executables
// know only protectingTags. (Entries of a .mcp.json know none: see parseDoc.)
func lookupTag(word string, kind Kind) (name, effect string) {
	name = strings.ToLower(strings.ReplaceAll(word, "-", ""))
	if !kind.singleFile() && !slices.Contains(protectingTags, name) {
		return name, ""
	}
	for line := range strings.Lines(tagTable) {
		if words := strings.Fields(line); slices.Contains(words[1:], name) {
			return name, words[0]
		}
	}
	return name, ""
}

// isSimilar reports whether at most n bytes must be inserted, deleted, replaced or swapped with
// their neighbour to change a into b. The time grows exponentially with n.
func isSimilar(a, b string, n int) bool {
	switch {
	case n < 0 || a == "" || b == "":
		return len(a)+len(b) <= n
	case a[0] == b[0]:
		return isSimilar(a[1:], b[1:], n)
	case len(a) > 1 && len(b) > 1 && a[0] == b[1] && a[1] == b[0] && isSimilar(a[2:], b[2:], n-1):
		return true
	}
	return isSimilar(a[1:], b, n-1) || isSimilar(a, b[1:], n-1) || isSimilar(a[1:], b[1:], n-1)
}

// parseDoc parses the documentation of a method of a module of a kind.
func parseDoc(doc string, kind Kind) docTags {
	if kind == kindConfig { // it is not written for usher
		return docTags{description: strings.TrimSpace(doc)}
	}
	var t docTags
	var text []string
	var open *string // what a line without a tag continues; nil for the description
	for line := range strings.Lines(doc) {
		line = strings.TrimRight(line, "\r\n")
		effect, rest := t.readTag(line, kind)
		if effect == "" && kind.singleFile() {
			rest = noText.ReplaceAllString(rest, "$1$2")
			if rest == "" && line != "" {
				continue
			}
		}
		switch {
		case effect != "" && effect != "text":
			open = t.apply(effect, rest)
		case effect == "" && open != nil && (kind == kindNode || strings.TrimSpace(rest) != ""):
			*open = strings.TrimSpace(*open + " " + strings.TrimSpace(rest))
		default:
			text = append(text, rest)
			open = nil
		}
	}
	if t.returns != "" {
		text = append(text, "Returns: "+t.returns)
	}
	t.description = strings.Trim(strings.Join(text, "\n"), " \t\n")
	return t
}

// readTag returns the effect of the tag that begins a line, and what follows the tag; for text, ""
// and the line. It notes slips in protectingTags of the line, and marks inside it.
func (t *docTags) readTag(line string, kind Kind) (effect, rest string) {
	refuse := func(advice, name string) {
		t.refused = fmt.Sprintf("%q: %s @%s", logText(strings.TrimSpace(line)), advice, name)
	}
	for _, parts := range innerTag.FindAllStringSubmatch(strings.TrimSpace(line), -1) {
		name, effect := lookupTag(parts[1], kind)
		switch {
		case parts[2] != "": // a package, such as @internal/tools
		case slices.Contains(protectingTags, name):
			refuse("begin a line with", name)
		case strings.Contains(effect, ":"):
			t.problems = append(t.problems, "begin a line with @"+name)
		}
	}
	parts := tagLine.FindStringSubmatch(line)
	if parts == nil {
		return "", line
	}
	name, effect := lookupTag(parts[1], kind)
	if effect != "" {
		return effect, parts[2]
	}
	for _, tag := range protectingTags {
		if strings.HasPrefix(name, tag) || isSimilar(name, tag, 1) {
			refuse("did you mean", tag)
			return "", line
		}
	}
	if kind.singleFile() && consistsOf(name, "abcdefghijklmnopqrstuvwxyz") {
		t.unknown = append(t.unknown, name)
		return "none", ""
	}
	return "", line
}

// apply applies a tag, and returns what the next lines continue; nil if they do not.
func (t *docTags) apply(effect, text string) *string {
	switch effect {
	case "webhook":
		t.IsHook = true
		t.Hook = cmp.Or(t.Hook, strings.TrimPrefix(text, "/"))
	case "signature":
		t.Signature = cmp.Or(t.Signature, "@signature "+text) // the first counts
	case "internal":
		t.Internal = true
	case "unshared":
		t.Unshared = true
	case "title":
		t.annotations = t.annotations.set(effect, quote(text))
	case "returns":
		t.returns = returnType.ReplaceAllString(text, "")
		return &t.returns
	case "param":
		p, ok := parseParam(text)
		if ok && !strings.Contains(p.name, ".") { // a.b is a field of the parameter a
			t.params = append(t.params, p)
			return &t.params[len(t.params)-1].text
		}
		if !ok {
			t.problems = append(t.problems, "@param "+text+": want {type} name text")
		}
		return new(string)
	case "none":
		return new(string)
	default:
		hint, value, _ := strings.Cut(effect, ":")
		t.annotations = t.annotations.set(hint, json.RawMessage(value))
	}
	return nil
}

// paramTag matches the text after @param: an optional {type}, which may contain braces; the
// name, in brackets and with its default if the parameter is optional; an optional dash;
// the text. It does not match a name such as $1 or a*, because clients may refuse it.
var paramTag = regexp.MustCompile(`^(?:\{((?:[^{}]|\{[^{}]*\})*)\}\s*)?` +
	`(?:\[\s*([^\s=\]]+)\s*(?:=((?:[^\[\]]|\[[^\]]*\])*))?\]|(\$?[_\pL][$.\w\pL[\]-]*):?)` +
	`\s*(?:- *)?(.*)$`)

// shdocParam matches a parameter as shdoc writes it: $1 string text. The type may be missing.
var shdocParam = regexp.MustCompile(`^\$(\d+)\s+((?:str|int|num|bool|obj|arr)[a-z]*\b)?`)

// parseParam parses the text after @param.
func parseParam(tag string) (paramDoc, bool) {
	parts := paramTag.FindStringSubmatch(shdocParam.ReplaceAllString(tag, "{$2} arg$1 "))
	if parts == nil {
		return paramDoc{}, false
	}
	d := paramDoc{
		kind:     parts[1],
		name:     parts[2] + parts[4],
		text:     parts[5],
		optional: parts[2] != "" || strings.Contains(parts[5], "(optional)"),
	}
	fallback := strings.TrimSpace(parts[3])
	if json.Valid([]byte(fallback)) {
		d.defaultValue = json.RawMessage(fallback)
	} else if fallback != "" {
		d.defaultValue = quote(strings.Trim(fallback, "'"))
	}
	return d, true
}

// sentence matches the first sentence of a text (group 1), and how it ends (3): with a mark, or with the
// paragraph, unless there is a colon. It also ends before a line with a copyright. Lines above it that
// name a file, an author or the day it was made, or address an editor, are no part of it.
var sentence = regexp.MustCompile(`^(?:(?i:(?:authors?:|created on .*\d{4}|vim:).*\n|` +
	`(?:\w+:\s*)?[\w./-]+\.(?:py|[cm]?[jt]s|sh|bash|go)(?:\n|$))\s*)*` +
	`(?s)(.*?)(([.!?](\s|$)|[^:\s]\s*\n\s*\n)|\s*(?m:^)Copyright|$)`)

// firstSentence returns the first sentence of a text, on one line.
func firstSentence(text string) string {
	parts := sentence.FindStringSubmatch(strings.TrimSpace(text))
	return clipText(strings.Join(strings.Fields(parts[1]+parts[3]), " "), 200)
}

// ---- The check of arguments

// argumentError reports an argument that its schema does not accept. Its text is made only
// when it is read, because most errors only say that an alternative of a union does not fit.
type argumentError struct {
	keys []string      // that lead to the argument, the innermost first
	text func() string // what is wrong, after the parameter's name

	isConstant bool // the schema accepts one value only, and this is another
}

func (e *argumentError) Error() string {
	keys := slices.Clone(e.keys)
	slices.Reverse(keys)
	return fmt.Sprintf("parameter %q%s", strings.Join(keys, "."), e.text())
}

// at adds a key to the path of a new error, and returns the error.
func (e *argumentError) at(key string) *argumentError {
	e.keys = append(e.keys, key)
	return e
}

// checkArguments checks the arguments of a call, an object or nil, against the method's
// schema. It returns the arguments without optional parameters that are null although the
// schema does not accept null: they count as omitted. The error names the first parameter
// that does not fit.
func (m *Method) checkArguments(arguments json.RawMessage) (json.RawMessage, error) {
	if len(arguments) == 0 {
		arguments = json.RawMessage("{}")
	}
	c := argumentCheck{root: m.schema, left: 16*len(arguments) + 1<<16}
	c.rounds = m.rounds && members(arguments).get(webhookParam) == nil // senders can't change them
	if wrong := c.value(c.root, &arguments); wrong != nil {
		return nil, wrong
	}
	return arguments, nil
}

// schema contains the keywords of a JSON Schema that usher reads. It accepts any value if it
// is nil, or was not an object. A keyword with a malformed value counts as absent.
type schema struct {
	Ref    string             `json:"$ref"` // only to Defs of the root
	Defs   map[string]*schema `json:"$defs"`
	Type   typeNames
	Const  *any // nil for none, or null
	Enum   []any
	Format string // date-time; in mcpSchema also usher/schema and usher/ref, in a definition
	// Instead is only used in mcpSchema. It maps values, as JSON, to others with the same meaning,
	// because some clients refuse the first ones.
	Instead    map[string]json.RawMessage `json:"usher/instead"`
	Properties map[string]*schema
	Required   []string
	Additional additionalSchema `json:"additionalProperties"`
	Items      *schema
	AnyOf      []*schema
	OneOf      []*schema // as AnyOf
	// Pattern is only used in mcpSchema. It must match the JSON of a value. If the value is a string,
	// its text must also be the syntax of a regular expression, for the sake of the keyword pattern.
	Pattern *regexp.Regexp `json:"usher/pattern"`

	// Header is the rest of the name of a header Mcp-Param-HEADER, in which requests repeat
	// this parameter (MCP 2026-07-28, basic/transports/streamable-http, "Custom Headers").
	Header string `json:"x-mcp-header"`
}

// decodeSchema decodes a schema. If it is nested too deeply, it accepts any value.
func decodeSchema(raw json.RawMessage) *schema {
	s := &schema{}
	_ = json.Unmarshal(raw, s) // omits what is malformed
	return s
}

// typeNames are the names of types; in JSON, one name is a string.
type typeNames []string

// UnmarshalJSON never returns an error, which would end the decoding of the whole schema.
func (t *typeNames) UnmarshalJSON(raw []byte) error {
	if name, ok := unquote(raw); ok {
		*t = typeNames{name}
		return nil
	}
	_ = json.Unmarshal(raw, (*[]string)(t))
	return nil
}

// additionalSchema is the schema of undeclared properties.
type additionalSchema struct {
	*schema
	forbidden bool // there must be none
}

// UnmarshalJSON never returns an error: see typeNames.
func (a *additionalSchema) UnmarshalJSON(raw []byte) error {
	a.forbidden = string(raw) == "false"
	_ = json.Unmarshal(raw, &a.schema)
	return nil
}

// property returns the schema of a property. It is empty, not nil, if there is none.
func (s *schema) property(name string) *schema { return cmp.Or(s.Properties[name], &schema{}) }

// values returns the values that a schema lists, or nil if it lists none.
func (s *schema) values() []any {
	if s.Const != nil {
		return []any{*s.Const}
	}
	return s.Enum
}

// argumentCheck checks the arguments of one call. Because of left and depth, a check always
// terminates, even if a $ref leads to itself.
type argumentCheck struct {
	root    *schema
	left    int            // bytes to be read, and names and values to be compared, before giving up
	depth   int            // of nested calls of value
	changed bool           // some value was replaced or dropped
	repairs bool           // optional members that do not fit are dropped
	path    []string       // of the object that is checked, without the indexes of items
	whole   map[string]any // the definition that is checked, decoded
	lost    string         // what was dropped, and why, clipped
	rounds  bool           // integers that JavaScript would round are refused
}

// resolve returns a schema, or the one that its $ref leads to, which may be nil.
func (c *argumentCheck) resolve(s *schema) *schema {
	for s != nil && s.Ref != "" && c.left >= 0 {
		c.left--
		s = c.root.Defs[strings.TrimPrefix(s.Ref, "#/$defs/")]
	}
	return s
}

// value checks a value against a schema. It writes an integer such as 3.0 as 3 where the schema wants
// an integer.
func (c *argumentCheck) value(s *schema, value *json.RawMessage) *argumentError {
	c.left -= len(*value) + 1
	if c.depth == maxCheckDepth {
		c.left = -1
	}
	s = c.resolve(s)
	if s != nil {
		c.left -= len(s.Enum)
	}
	switch {
	case c.left < 0:
		return &argumentError{text: func() string { return " is too complex to check" }}
	case s == nil:
		return nil
	case !matches(s, *value), s.Format == "usher/ref" && !c.leads(plainText(*value), 9):
		return c.misfit(s, *value)
	}
	if other := s.Instead[string(*value)]; other != nil {
		*value = other
		c.changed = true
	}
	if digits, ok := integerOf(*value); ok && s.Type != nil {
		f, _ := strconv.ParseFloat(digits, 64)
		if c.rounds && strconv.FormatFloat(f, 'f', -1, 64) != digits {
			return &argumentError{text: func() string {
				return " is rounded by JavaScript: declare a string"
			}}
		}
		if slices.Contains(s.Type, "integer") {
			c.changed = c.changed || digits != string(*value)
			*value = json.RawMessage(digits)
		}
	}
	c.depth++
	defer func() { c.depth-- }()
	if wrong := c.alternatives(s, value); wrong != nil {
		return wrong
	}
	switch (*value)[0] {
	case '{':
		return c.object(s, value)
	case '[':
		return c.list(s, value)
	}
	return nil
}

// list checks the items of a list.
func (c *argumentCheck) list(s *schema, value *json.RawMessage) *argumentError {
	list := items(*value)
	for i := range list {
		if wrong := c.value(s.Items, &list[i]); wrong != nil {
			return wrong.at(strconv.Itoa(i))
		}
	}
	if c.changed {
		*value = marshal(list)
	}
	return nil
}

// drop notes that a member is dropped.
func (c *argumentCheck) drop(wrong *argumentError) {
	for _, key := range slices.Backward(c.path) {
		wrong.at(key)
	}
	c.lost = clipText(c.lost+"; without "+wrong.Error(), maxLoggedLine)
	c.changed = true
}

// misfit returns the error for a value that a schema does not accept. It does not repeat the
// value, which may be secret.
func (c *argumentCheck) misfit(s *schema, value json.RawMessage) *argumentError {
	text := func() string {
		want := ": want " + c.wanted(s)
		if s.values() != nil || s.Format != "" {
			return want
		}
		return want + ", got " + jsonType(value)
	}
	return &argumentError{text: text, isConstant: len(s.values()) == 1}
}

// wanted describes the values that a schema accepts. Call it only if the check of a value
// against the schema ended: else it may not end.
func (c *argumentCheck) wanted(s *schema) string {
	s = cmp.Or(c.resolve(s), &schema{})
	if enum := s.values(); enum != nil {
		return "one of " + strings.Trim(string(marshal(enum)), "[]")
	}
	if s.Format == "date-time" {
		return "a time such as 2006-01-02T15:04:05Z"
	}
	if s.Type != nil {
		text := strings.Join(s.Type, " or ")
		if s.Required != nil {
			text += " with " + strings.Join(s.Required, ", ")
		}
		return text
	}
	var list []string
	for _, one := range slices.Concat(s.AnyOf, s.OneOf) {
		if want := c.wanted(one); !slices.Contains(list, want) {
			list = append(list, want)
		}
	}
	return strings.Join(list, " or ")
}

// alternatives checks a value against anyOf or oneOf: one of them must fit. If none fits, but
// only one accepts a value of this type, or of this type with these constants, the error is about
// the member that it refuses.
func (c *argumentCheck) alternatives(s *schema, value *json.RawMessage) *argumentError {
	list := slices.Concat(s.AnyOf, s.OneOf)
	var inside, selected []*argumentError
	for _, one := range list {
		wrong := c.value(one, value)
		if wrong == nil || c.left < 0 { // if too complex, the others can't be checked either
			return wrong
		}
		if len(wrong.keys) > 0 {
			inside = append(inside, wrong)
			if !wrong.isConstant {
				selected = append(selected, wrong)
			}
		}
	}
	switch {
	case len(selected) == 1:
		return selected[0]
	case len(inside) == 1:
		return inside[0]
	case len(list) > 0:
		return c.misfit(s, *value)
	}
	return nil
}

// object checks the members of an object, missing ones last.
func (c *argumentCheck) object(s *schema, value *json.RawMessage) *argumentError {
	list := members(*value)
	additional := s.Additional
	if c.depth == 1 && list.get(webhookParam) != nil {
		additional = additionalSchema{} // senders of webhooks add fields to their deliveries at any time
	}
	for i, f := range list {
		property, declared := s.Properties[f.key]
		if !declared {
			c.left -= len(s.Properties)
			property = additional.schema
		}
		if !declared && additional.forbidden || s.isMisspelt(f.key) {
			return &argumentError{keys: []string{f.key}, text: func() string {
				return " is unknown: want " + strings.Join(sortedKeys(s.Properties), ", ")
			}}
		}
		c.path = append(c.path, f.key)
		wrong := c.value(property, &list[i].value)
		c.path = c.path[:len(c.path)-1]
		// An outputSchema is repaired by dropping it as a whole: what is left of it would mean something
		// else, so clients would refuse results.
		isWhole := c.repairs && slices.Index(c.path, "outputSchema") == 0
		isOptional := !isWhole && !slices.Contains(s.Required, f.key)
		switch {
		case wrong == nil:
		case c.repairs && isOptional:
			c.drop(wrong.at(f.key))
			list[i].value = nil
		case c.repairs || !declared || !isOptional || !isNull(f.value):
			return wrong.at(f.key)
		case c.depth == 1:
			c.changed = true
			list[i].value = nil
		}
	}
	// Some clients refuse the schema of an array without items.
	isArray := s.Format == "usher/schema" && bytes.Contains(list.get("type"), []byte(`"array"`))
	if isArray && list.get("items") == nil {
		list = list.set("items", json.RawMessage("{}"))
		c.changed = true
	}
	if c.changed {
		*value = list.encode()
	}
	for _, name := range s.Required {
		if list.get(name) == nil {
			return &argumentError{keys: []string{name}, text: func() string {
				types := strings.Join(s.property(name).Type, " or ")
				return strings.TrimSuffix(" is required: "+types, ": ")
			}}
		}
	}
	return nil
}

// isMisspelt reports whether a key differs from a declared property only in case. Go would
// decode the one as the other, although only the other was checked.
func (s *schema) isMisspelt(key string) bool {
	if _, declared := s.Properties[key]; declared {
		return false
	}
	for name := range s.Properties {
		if strings.EqualFold(name, key) {
			return true
		}
	}
	return false
}

// matches reports whether a value has the type, the format and, if a schema lists values,
// one of the values of the schema. It does not look at alternatives, members and items.
func matches(s *schema, value json.RawMessage) bool {
	kind := jsonType(value)
	isNumber := kind == "integer" && slices.Contains(s.Type, "number")
	if s.Type != nil && !isNumber && !slices.Contains(s.Type, kind) {
		return false
	}
	if enum := s.values(); enum != nil {
		var decoded any
		err := json.Unmarshal(value, &decoded) // fails if a number is too large
		isDecoded := func(one any) bool { return reflect.DeepEqual(one, decoded) }
		if err != nil || !slices.ContainsFunc(enum, isDecoded) {
			return false
		}
	}
	if s.Pattern != nil {
		_, err := syntax.Parse(strings.ReplaceAll(plainText(value), "(?!", "(?:"), syntax.Perl)
		return err == nil && s.Pattern.Match(value)
	}
	if s.Format == "date-time" {
		_, err := time.Parse(time.RFC3339, plainText(value))
		return err == nil
	}
	return true
}

// jsonTypes maps the first byte of a JSON value to its JSON Schema type, except for
// numbers.
var jsonTypes = map[byte]string{
	'"': "string",
	'{': "object",
	'[': "array",
	't': "boolean",
	'f': "boolean",
	'n': "null",
}

// jsonType returns the narrowest JSON Schema type of a valid value.
func jsonType(value json.RawMessage) string {
	if name, ok := jsonTypes[value[0]]; ok {
		return name
	}
	if _, ok := integerOf(value); ok {
		return "integer"
	}
	return "number"
}

// withoutWebhook removes webhookParam, in upper or lower case, from the arguments of a
// client: a decoder that ignores case would mistake it for usher's own parameter. It also removes
// __proto__, because a copy made in JavaScript would inherit from it. It reuses the memory of list.
func withoutWebhook(list object) object {
	return slices.DeleteFunc(list, func(f member) bool {
		return strings.EqualFold(f.key, webhookParam) || f.key == "__proto__"
	})
}

// ---- Results

// failure returns the result of a tool call that failed.
func failure(text string) object {
	return append(textOnly(quote(text)), member{"isError", json.RawMessage("true")})
}

// textOnly returns the tool result with one text, a JSON string.
func textOnly(text json.RawMessage) object {
	return contentOf(object{{"type", quote("text")}, {"text", text}})
}

// methodResult returns the tool result for an answer of usher's own runtimes (the shims
// and the generated main of a Go module). If the answer contains the value or the bytes that
// the method returned, methodResult makes the result from these. Otherwise, for example
// after a failure, the answer is the result.
func methodResult(answer object) object {
	meta := answer.object("_meta")
	if encoded := meta.get("usher/bytes"); encoded != nil {
		return bytesResult(encoded)
	}
	if value := meta.get("usher/value"); value != nil {
		return toolResult(value)
	}
	return answer
}

// mediaTypes are the types of files that become an image or audio.
var mediaTypes = []string{"image/png", "image/jpeg", "image/gif", "image/webp", "audio/wave", "audio/mpeg"}

// decodeMedia decodes base64 in a JSON string; data is nil if it is invalid. mime is the type of an
// image or audio, recognized by its first bytes; "" for other data.
func decodeMedia(encoded json.RawMessage) (data []byte, mime string) {
	_ = json.Unmarshal(encoded, &data) // no data if it is invalid
	mime = http.DetectContentType(data)
	switch {
	// An MP3 file without a tag begins with a frame.
	case len(data) > 1 && data[0] == 0xff && strings.IndexByte("\xfb\xf3\xf2", data[1]) >= 0:
		return data, "audio/mpeg"
	case slices.Contains(mediaTypes, mime):
		return data, strings.Replace(mime, "wave", "wav", 1) // as in MCP's examples
	}
	return data, ""
}

// bytesResult returns the tool result for bytes, given as base64 in a JSON string: an image or
// audio, else their text, or the base64 if they are not UTF-8.
func bytesResult(encoded json.RawMessage) object {
	data, mime := decodeMedia(encoded)
	switch {
	case mime != "":
		kind, _, _ := strings.Cut(mime, "/")
		return contentOf(object{{"type", quote(kind)}, {"data", encoded}, {"mimeType", quote(mime)}})
	case utf8.Valid(data):
		encoded = quote(string(data))
	}
	return textOnly(encoded)
}

// contentOf returns the tool result with one content block.
func contentOf(block object) object {
	return object{{"content", slices.Concat([]byte{'['}, block.encode(), []byte{']'})}}
}

// toolResult returns the tool result for a value that a method returned. An object that is a
// tool result already, because it has content blocks and no foreign members, is passed on, and so
// are content blocks themselves, one or several. Any other object becomes structured content and
// text. The result for nil or null has no content.
func toolResult(value json.RawMessage) object {
	value = oneLine(bytes.TrimSpace(value))
	fields := members(value)
	switch {
	case isNull(value):
		return object{{"content", json.RawMessage("[]")}}
	case value[0] == '"':
		return textOnly(value)
	case fitsMCP("result", value):
		return fields
	case fitsMCP("content", value):
		return contentOf(fields)
	case fields != nil:
		return append(textOnly(quote(string(value))), member{"structuredContent", value})
	case bytes.HasPrefix(value, []byte("[{")) && fitsMCP("contents", value): // a list of numbers may be long
		return object{{"content", value}}
	}
	return textOnly(quote(string(value)))
}

// resultText returns a tool's result for people: its structured content or, if it has none,
// its texts, and the other content as JSON.
func resultText(result object) string {
	if structured := result.get("structuredContent"); !isNull(structured) {
		return string(structured)
	}
	var texts []string
	for _, block := range items(result.get("content")) {
		text, ok := unquote(members(block).get("text"))
		if !ok {
			text = string(block)
		}
		texts = append(texts, text)
	}
	return strings.Join(texts, "\n")
}

// manifest is everything that a module offers. It is cached.
type manifest struct {
	Key       string                       // see cacheKey
	Lists     map[string][]json.RawMessage // its MCP definitions, by the keys of listTable
	About     string                       // of which the first sentence counts; "" for none
	Problems  []string                     // for the module's author
	Stateless bool                         // it speaks a revision without sessions
	Sessions  bool                         // it is stateless, and also speaks a revision with sessions
	Hash      string                       // of the fields above, except Key
	Parts     parts                        // of the module, when the manifest was cached
}

// setHash sets Hash. Call it before Key and Parts are set.
func (m *manifest) setHash() { m.Hash = hashOf(string(marshal(m))) }

// ---- Definitions

// mcpText is the part of MCP's schema that clients insist on.
//
//go:embed runtimes/mcp.json
var mcpText []byte

var mcpSchema = decodeSchema(mcpText)

// fitsMCP reports whether MCP allows a value under a key of $defs in mcpSchema.
func fitsMCP(key string, value json.RawMessage) bool {
	return fits(mcpSchema, mcpSchema.Defs[key], value)
}

// fits reports whether a schema accepts a value. root contains the schemas that it refers to.
func fits(root, s *schema, value json.RawMessage) bool {
	c := argumentCheck{root: root, left: 16*len(value) + 1<<16}
	return c.value(s, &value) == nil
}

// cleanDefinition returns a definition in the list under key without the values that MCP forbids, for
// which clients would refuse the whole list, and says what it has lost. It returns nil if the
// definition is of no use then, or has a number or a depth that no client can read.
func cleanDefinition(key string, item json.RawMessage) (_ json.RawMessage, problem string) {
	c := argumentCheck{root: mcpSchema, left: 299*len(item) + 1<<16, repairs: true}
	switch err := json.Unmarshal(item, &c.whole); {
	case err != nil:
		return nil, fmt.Sprintf(" is left out: %v", err)
	case isDeeper(item, maxSchemaDepth):
		return nil, " is nested too deeply: left out"
	case members(item).object("execution").text("taskSupport") == "required":
		return nil, " needs tasks: left out"
	}
	if wrong := c.value(c.root.Defs[key], &item); wrong != nil {
		c.drop(wrong)
		return nil, " is left out" + c.lost
	}
	return members(item).without("execution").encode(), c.lost
}

// leads reports whether a $ref leads to something in the schema that is checked, after at most
// steps further ones: some clients follow a circle without an end.
func (c *argumentCheck) leads(ref string, steps int) bool {
	c.left -= len(ref)
	keys := strings.Split(ref, "/")
	target := c.whole[c.path[0]]
	for _, key := range keys[1:] {
		list, _ := target.([]any)
		fields, _ := target.(map[string]any)
		target = fields[key]
		if i, err := strconv.Atoi(key); err == nil && i >= 0 && i < len(list) {
			target = list[i]
		}
	}
	fields, _ := target.(map[string]any)
	next, isRef := fields["$ref"].(string)
	return keys[0] == "#" && (target != nil && !isRef || steps > 0 && c.leads(next, steps-1))
}
