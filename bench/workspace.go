// The modules that usher hosts while it is measured.

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// writeSmall writes modules with 20 methods in all: 18 of a Go module, of which
// two matter, and one each of a Node and a Python module.
func (b *bench) writeSmall(dir string) {
	var source strings.Builder
	source.WriteString(goSource)
	for i := 3; i <= 18; i++ {
		fmt.Fprintf(&source, "\n// Tool%d returns the message it was given, unchanged.\nfunc Tool%d(p Text) string { return p.Message }\n", i, i)
	}
	b.write(filepath.Join(dir, "go.usher.go"), source.String())
	b.write(filepath.Join(dir, "node.usher.mjs"), nodeSource)
	b.write(filepath.Join(dir, "python.usher.py"), pythonSource)
}

// writeMany writes n modules with a method each. They are shell scripts, as
// starting those costs the least beside what usher itself does.
func (b *bench) writeMany(dir string, n int) {
	for i := range n {
		b.write(filepath.Join(dir, fmt.Sprintf("m%04d.usher.sh", i)), shellSource)
	}
}

func (b *bench) write(path, text string) {
	err := os.MkdirAll(filepath.Dir(path), 0o755)
	if err == nil {
		err = os.WriteFile(path, []byte(text), 0o644)
	}
	if err != nil {
		b.fail(err)
	}
}

// folder is a new folder below the bench's own.
func (b *bench) folder(name string) string {
	dir := filepath.Join(b.dir, unique(name))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		b.fail(err)
	}
	return dir
}

const goSource = `//go:build usher

// What is called while usher is measured.
package main

type Text struct {
	Message string ` + "`json:\"message\"`" + ` // text to return
}

// Echo returns the message it was given, unchanged.
func Echo(p Text) string { return p.Message }

// HandleEvent takes a payment.
func HandleEvent(p struct {
	ID     string ` + "`json:\"id\"`" + `
	Amount int    ` + "`json:\"amount\"`" + `
}) map[string]any {
	return map[string]any{"received": p.ID, "amount": p.Amount}
}
`

const nodeSource = `/**
 * Takes a payment.
 * @param {string} id which one
 * @param {integer} amount how much
 */
export function handleEvent({ id, amount }) {
  return { received: id, amount }
}
`

const pythonSource = `def handleEvent(id: str, amount: int):
    """Takes a payment."""
    return {"received": id, "amount": amount}
`

const shellSource = `#!/bin/sh
# Returns what it is given.

# Returns the message it was given, unchanged.
#
# @param {string} message text to return
echo() {
	printf %s "$1"
}
`
