// Usher hosts the modules of a workspace as MCP tools.
//
// A module is a source file with callable methods, or any program that speaks
// MCP on its stdin and stdout. One daemon finds all of them below a folder and
// offers their methods to MCP clients, over streamable HTTP or over stdio:
//
//	usher serve [DIR…]      the daemon
//	usher stdio [DIR…]      the same for the client that started it
//	usher modules [DIR…]    what there is, and what is wrong with the rest
//	usher call MODULE METHOD [JSON]
//	usher new FILE          a module to begin with
//
// # A tour for readers
//
// A request goes one way through these files: its headers say who it is from
// and so what its scope is, the scope gives a view of the modules, the view
// leads to a worker, and the answer goes back through an outbox. A file uses
// only files that stand before it in this list:
//
//	proc_unix.go, proc_windows.go   process groups
//	jsonrpc.go    messages, raw JSON by member, line framing, requests in flight
//	http.go       Host and Origin, bodies, errors with a status; the table of limits
//	outbox.go     everything that goes to a client: plain JSON or an event stream
//	mcp.go        the revisions of MCP, what they say differently, the method table
//	claims.go     claim codes and the file that holds them
//	scope.go      who a request is from, and which files that one may reach
//	schema.go     methods: doc tags, JSON Schema, the check of arguments, results
//	gomodule.go   a Go source file as a module
//	runtimes.go   which files are modules, and what runs them
//	shell.go      a shell script as a module
//	worker.go     one process of a module
//	pool.go       the processes of a module
//	ask.go        what modules ask of clients
//	view.go       the modules inside one scope, and their names there
//	modules.go    the registry: watching, introspecting, remembering modules
//	session.go    sessions, and the answers to their requests
//	transport.go  streamable HTTP: POST, GET and DELETE
//	stdio.go      clients with one connection: stdio and HTTP+SSE
//	webhook.go    callbacks, delivered to methods
//	serve.go      the daemon, put together
//	cli.go        the commands, and what they print
//
// Three of them decide who reaches what: claims.go, scope.go and view.go. The
// idea to look for is the View: it is built for a scope, and nothing reaches a
// module but through one. Whoever has read these three knows that no other file
// can widen a scope; house_test.go holds that.
package main

import (
	"context"
	"io"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr, os.Getenv))
}

// run is the whole program: it runs the command that args name and returns the
// exit status. Tests call it in-process.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer, getenv func(string) string) int {
	if len(args) > 0 && args[0] == reaperCommand {
		runReaper(stdin)
		return 0
	}
	if len(args) == 3 && args[0] == shellCommand {
		return runShell(ctx, args[1], args[2], &reaper{}, stdin, stdout, stderr)
	}
	a := &app{ctx: ctx, stdin: stdin, stdout: stdout, stderr: stderr, painter: newPainter(stdout, getenv), getenv: getenv}
	return a.run(args)
}
