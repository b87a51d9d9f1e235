// Stdio: one client, one message a line, nothing else on stdout. It is the same
// dispatch as over HTTP, with one session and one outbox.

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"
)

// stdioTimeout is how long requests under way may take after stdin ended.
const stdioTimeout = 30 * time.Second

// ServeStdio answers the one client at the other end of in and out, until in ends
// or ctx does. When it returns, nothing is under way but a read of in that can't
// be interrupted.
func (s *Server) ServeStdio(ctx context.Context, in io.Reader, out io.Writer) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	conn := newConnection(ctx, func() func(frame) error { return openLines(out) })
	d, endStreams := s.newDuplex(newSession(&sessionToken{ID: "stdio", Issued: s.started}), conn)
	defer endStreams()
	s.suspended = newSuspendedCalls(ctx, suspendTimeout)
	d.session.join(d.out)
	var announcer, writer sync.WaitGroup
	announcing, stopAnnouncing := context.WithCancel(ctx)
	announcer.Go(func() { s.announce(announcing, d.session, d.out) })
	writer.Go(func() {
		if err := d.out.follow(conn); err != nil {
			cancel(fmt.Errorf("writing to the client: %w", err))
		}
	})
	lines := make(chan stdioLine)
	go readStdio(ctx, newLineReader(in, maxWorkerLine), lines)
	err := d.serve(lines)
	d.session.asked.fail() // nobody can answer any more
	endStreams()
	timer := time.AfterFunc(stdioTimeout, func() { d.cancelAll(errStopping) })
	defer timer.Stop()
	if ctx.Err() != nil {
		d.cancelAll(errStopping)
	}
	d.requests.Wait()
	stopAnnouncing()
	announcer.Wait()
	d.session.leave(d.out)
	d.out.end()
	writer.Wait()
	cancel(nil)
	s.suspended.wait()
	return err
}

// stdioLine is a line of input, or why there is none.
type stdioLine struct {
	text []byte
	err  error
}

func readStdio(ctx context.Context, r *lineReader, lines chan<- stdioLine) {
	for {
		text, err := r.next()
		select {
		case lines <- stdioLine{text, err}:
		case <-ctx.Done():
			return
		}
		if err != nil && err != errLineTooLong {
			return
		}
	}
}

// serve takes messages until there are no more.
func (d *duplexClient) serve(lines <-chan stdioLine) error {
	for {
		select {
		case <-d.ctx.Done():
			return nil
		case line := <-lines:
			switch {
			case line.err == errLineTooLong:
				d.out.send(encodeError(nil, rpcErrorf(codeInvalidRequest, "the message is larger than %s", formatSize(maxWorkerLine))))
			case errors.Is(line.err, io.EOF):
				return nil
			case line.err != nil:
				return fmt.Errorf("reading from the client: %w", line.err)
			default:
				d.take(line.text)
			}
		}
	}
}
