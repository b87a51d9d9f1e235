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
// A request goes one way through these files: from the wire to a session and
// its scope, from there to a view of the modules, to a worker, and back as the
// answer. A file uses only files that stand before it in this list:
//
//	proc_unix.go, proc_windows.go   process groups
//	jsonrpc.go    messages, their framing, the table of requests in flight
//	http.go       who may speak to the daemon; bodies; errors with a status
//	token.go      the right to write in the data folder, without locks
//	claims.go     claim codes and the file they are kept in
//	scope.go      which part of the workspace a caller may reach
//	gomodule.go   a Go source file as a module: methods, schema, main
//	gobuild.go    its build, and what that depends on
//	runtimes.go   which files are modules, and what runs them
//	guard.go      a process that clears up after a killed daemon
//	era.go        what the revisions of MCP say differently
//	worker.go     a module's child process
//	handshake.go  what it is, and what it offers
//	asking.go     what it asks of its client, and which client that is
//	pool.go       a place for a module's process
//	fleet.go      all processes of a module, and which is whose
//	signature.go  whether a provider signed a webhook
//	schema.go     what a method says of itself; checking arguments
//	catalog.go    the modules there are, and views of them
//	scan.go       one look at the workspace
//	cache.go      what modules offer, remembered between starts
//	shell.go      a shell script as an MCP server, which usher itself is
//	modules.go    the registry: watching, introspecting, publishing modules
//	replay.go     what went out on a stream, to be had again
//	session.go    what a session id holds, and what became of sessions
//	listen.go     what a client is told without having asked
//	mcp.go        the methods of MCP
//	parked.go     calls that wait for their clients to come back
//	reply.go      an answer over HTTP: JSON, or a stream of events
//	stream.go     how messages travel over HTTP, with sessions
//	modern.go     and without
//	peer.go       clients with one connection; stdio
//	oldsse.go     and HTTP+SSE, the oldest way
//	webhook.go    callbacks, delivered to methods
//	report.go     what is printed of modules, claims and results
//	serve.go      the daemon, put together
//	cli.go        the commands
//
// The idea to look for is the View (catalog.go): it is built for a scope, and
// nothing reaches a module but through one.
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
	if len(args) == 2 && args[0] == shellCommand {
		return runShell(ctx, args[1], &reaper{}, stdin, stdout, stderr)
	}
	a := &app{ctx: ctx, stdin: stdin, stdout: stdout, stderr: stderr, getenv: getenv}
	return a.run(args)
}
