// Usher hosts the modules of a workspace as MCP tools.
//
// A module is a source file with callable methods, or any program that speaks
// MCP on its stdin and stdout. One daemon finds all of them below a folder and
// offers their methods to MCP clients, over streamable HTTP or over stdio:
//
//	usher serve [DIR…]      the daemon
//	usher stdio [DIR…]      the same for the client that started it
//	usher claim -scope DIR  a code that lets a client see one folder
//	usher approve [PATH…]   approves new and changed modules
//	usher modules [DIR…]    the modules, and why files are not hosted
//	usher call MODULE METHOD [JSON]   one call, without a daemon
//	usher new FILE          a starter module
//
// # A tour for readers
//
// A request takes one path through these files: its headers determine the principal and
// the scope, the scope selects a view of the modules, the view leads to a process, and
// the answer returns through an outbox. The files form six layers. A file uses only its
// own layer and earlier ones:
//
//	ground    jsonrpc.go      messages and errors, raw JSON by member, line framing
//	          http.go         Host and Origin, connections, refusals with a status
//	          limit.go        the table of limits, the counter
//	          memory.go       the bytes of a request: its body, its answer, what it leads to
//	          outbox.go       everything sent to a client: plain JSON or an event stream
//	          proc_unix.go    processes that are alive, owners of folders, locks of files
//	          files.go        atomic writes and the write token
//	          era.go          the two eras of MCP and the conversions between them
//	core      claims.go       claim codes, the file that stores them, principals
//	          session.go      sealed session ids, the table of sessions
//	          scope.go        the table of scopes, the gate, guessing
//	modules   schema.go       methods: doc tags, JSON Schema, argument checks, results
//	          runtimes.go     which files are modules, and how to run them
//	          gomodule.go     Go source files as modules
//	          shell.go        shell scripts as modules
//	          process.go      processes with groups of their own, and their end
//	          worker.go       one process of a module, its callers, and how it asks them
//	          pool.go         the processes of a module
//	          names.go        the names of modules and tools in a view
//	          view.go         the modules inside one scope
//	          modules.go      the registry: what is hosted, what may run, what modules offer
//	MCP       mcp.go          requests, the table of methods, asking clients, suspended calls
//	          transport.go    streamable HTTP, HTTP+SSE, stdio, notifications
//	webhook   signature.go    how providers sign HTTP callbacks
//	          webhook.go      HTTP callbacks
//	program   serve.go        the daemon
//	          report.go       the state of the modules, for people; the page for browsers
//	          cli.go          the commands, their streams, folders and output
//
// claims.go, session.go, scope.go and view.go decide who sees what. The central idea is the
// View: it is built for a scope, and it is the only way to a module, so no other file can
// widen a scope. house_test.go checks this.
//
// # The order of locks
//
// A goroutine that holds one of these locks takes only locks that come later. All other locks
// are held without taking a further one.
//
//	daemon.handlers, duplex.mu
//	Registry.scanning, moduleOwner.mu, Registry.mu, pool.mu
//	the sync.Once of a view in Catalog.views, pool.mu
//	sessionTable.mu, Session.mu, outbox.mu
//	memory.mu, counter.mu
//
// # One call
//
// To follow one call, read Server.servePOST, Gate.Admit, request.answer, View.Lookup,
// Item.Call, pool.callOnce, Worker.startCall and outbox.answer.
package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	signals := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) { // as under nohup
		signals = append(signals, syscall.SIGHUP) // the terminal was closed
	}
	ctx, stop := signal.NotifyContext(context.Background(), signals...)
	context.AfterFunc(ctx, stop) // a second signal ends usher at once
	// A write to a closed stdout or stderr fails. Otherwise the end of a program that reads them,
	// such as tee, would end usher. (Unlike signal.Ignore, this does not change the signal for
	// modules.)
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	os.Exit(run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr, os.LookupEnv))
}

// run runs the command that args name and returns the exit status. Help that was asked for is output;
// help instead of a command is an error, so that a script notices an empty variable. Tests call run
// in-process. lookupEnv looks up an environment variable.
func run(
	ctx context.Context,
	args []string,
	stdin io.Reader,
	stdout, stderr io.Writer,
	lookupEnv func(string) (string, bool),
) int {
	a := &app{
		stdin:     stdin,
		stdout:    stdout,
		stderr:    stderr,
		lookupEnv: lookupEnv,
	}
	if len(args) == 0 {
		fmt.Fprint(a.stderr, helpText("overview.txt"))
		return 2
	}
	name := args[0]
	args = args[1:]
	// Help is no entry of the table: the help of a command is the command with the flag -h.
	switch name {
	case "help", "-h", "-help", "--help":
		if len(args) == 0 || args[0] == "help" {
			a.output.WriteString(helpText("overview.txt"))
			return a.status(ctx, name, nil)
		}
		name = args[0]
		args = []string{"-h"}
	}
	c, ok := commands[name]
	if !ok {
		known := append(sortedKeys(commands), "claim revoke")
		a.warnf("unknown command %q: %s", name, cmp.Or(didYouMean("usher ", name, known), "see usher help"))
		return 2
	}
	return a.status(ctx, name, a.runCommand(ctx, name, c, args))
}
