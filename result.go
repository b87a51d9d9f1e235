// Results: what a tool call gave, made and read. It knows no tool and no call.

package main

import (
	"encoding/json"
	"slices"
	"strings"
)

// failure is the result of a tool call that failed.
func failure(text string) json.RawMessage {
	b := appendString([]byte(`{"content":[{"type":"text","text":`), text)
	return append(b, `}],"isError":true}`...)
}

// textContent is the content of a result that is one text.
func textContent(text string) json.RawMessage {
	return append(appendString([]byte(`[{"type":"text","text":`), text), "}]"...)
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
