// Stdio: one client, one message a line, nothing else on stdout. It is the same
// dispatch as over HTTP, with one session and one outbox.

package main

import (
	"context"
	"io"
)

// ServeStdio answers the one client at the other end of in and out, until in ends
// or ctx does. When it returns, nothing is under way but a read of in that can't
// be interrupted.
func (s *Server) ServeStdio(ctx context.Context, in io.Reader, out io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	s.suspended = newSuspendedCalls(ctx)
	lines := make(chan inLine)
	go func() {
		for reader := newLineReader(in, maxWorkerLine); ctx.Err() == nil; {
			text, err := reader.next()
			select {
			case lines <- inLine{text, err}:
			case <-ctx.Done():
			}
		}
	}()
	session := newSession(&sessionToken{ID: "stdio", Issued: s.started})
	err := s.serveDuplex(session, &connection{ctx: ctx, write: lineWriter(out), end: cancel}, lines)
	cancel()
	s.suspended.wg.Wait()
	return err
}
