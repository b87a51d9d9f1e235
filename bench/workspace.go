// The modules that usher hosts while it is measured.

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// writeSmall writes modules with 20 methods in all: 18 in a Go module, two of which are
// called, and one each in a Node and a Python module.
func (b *bench) writeSmall(dir string) {
	var source strings.Builder
	source.WriteString(goSource)
	for i := 3; i <= 18; i++ {
		fmt.Fprintf(&source, "\n// Tool%d returns its message.\n", i)
		fmt.Fprintf(&source, "func Tool%d(p Text) string { return p.Message }\n", i)
	}
	b.write(filepath.Join(dir, "go.usher.go"), source.String())
	b.write(filepath.Join(dir, "node.usher.mjs"), nodeSource)
	b.write(filepath.Join(dir, "python.usher.py"), pythonSource)
}

// writeMany writes n modules with one method each. They are shell scripts, which start
// fastest, so that most of the time is usher's own.
func (b *bench) writeMany(dir string, n int) {
	for i := range n {
		b.write(filepath.Join(dir, fmt.Sprintf("m%04d.usher.sh", i)), shellSource)
	}
}

// write writes a file, and creates its folder.
func (b *bench) write(path, text string) {
	err := os.MkdirAll(filepath.Dir(path), 0o755)
	if err == nil {
		err = os.WriteFile(path, []byte(text), 0o644)
	}
	if err != nil {
		b.fail(err)
	}
}

// folder creates a new folder below the benchmark's own.
func (b *bench) folder(name string) string {
	dir := filepath.Join(b.dir, unique(name))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		b.fail(err)
	}
	return dir
}

const goSource = `//go:build usher

// The tools that the benchmark calls.
package main

type Text struct {
	Message string ` + "`json:\"message\"`" + ` // text to return
}

// Echo returns its message.
func Echo(p Text) string { return p.Message }

// HandleEvent receives a payment.
func HandleEvent(p struct {
	ID     string ` + "`json:\"id\"`" + `
	Amount int    ` + "`json:\"amount\"`" + `
}) map[string]any {
	return map[string]any{"received": p.ID, "amount": p.Amount}
}
`

const nodeSource = `/**
 * Receives a payment.
 * @param {string} id which one
 * @param {integer} amount how much
 */
export function handleEvent({ id, amount }) {
  return { received: id, amount }
}
`

const pythonSource = `def handleEvent(id: str, amount: int):
    """Receives a payment."""
    return {"received": id, "amount": amount}
`

const shellSource = `#!/bin/sh
# Returns its message.

# Returns its message.
#
# @param {string} message text to return
echo() {
	printf %s "$1"
}
`
