//go:build usher

package main

func HandleDraw() []byte { return []byte("\x89PNG\r\n\x1a\n") }
func Text() any          { return []byte("hi") }
func Blocks() any {
	return []any{map[string]any{"type": "image", "data": []byte("hi"), "mimeType": "image/png"}}
}
func One(p struct {
	A int `json:"a"`
}) int {
	return p.A
}
