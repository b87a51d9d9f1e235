// Clients with one connection for all that goes back and forth: stdio, and
// HTTP+SSE of 2024-11-05, where a GET is the stream for all that goes to the
// client, and its first event says where to POST what comes from the client (MCP
// 2024-11-05, basic/transports, "HTTP with SSE"). Both take messages here and
// answer on one outbox.

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"
)

// sseProtocol stands for the protocol version in the ids of HTTP+SSE sessions,
// which live as long as their streams.
const sseProtocol = oldestProtocol + "+sse"

// duplexClient is such a client.
type duplexClient struct {
	client
	server   *Server
	ctx      context.Context // ends with the connection
	requests sync.WaitGroup  // being answered

	taking sync.RWMutex // held to read while a message is taken
	closed bool
}

// newDuplex is a client whose messages will be taken. endStreams has its
// subscriptions end.
func (s *Server) newDuplex(session *Session, conn *connection) (d *duplexClient, endStreams func()) {
	session.initialized.Store(false)
	session.setClient(oldestProtocol, 0)
	out := newStream(conn, nil, nil)
	out.limit, out.queue = maxDuplexOutbox, nil // what comes first is no comment
	streams, endStreams := context.WithCancel(s.stopping)
	return &duplexClient{client: client{session: session, out: out, streams: streams}, server: s, ctx: conn.ctx}, endStreams
}

// take handles a line or body: a message, or a batch of them.
func (d *duplexClient) take(raw []byte) {
	if err := checkJSON(raw); err != nil {
		d.out.send(encodeError(nil, asRPCError(err)))
		return
	}
	if protocol, _ := d.session.client(); !isBatch(raw) || protocol != batchProtocol {
		d.takeOne(raw)
		return
	}
	list, err := splitBatch(raw)
	if err != nil {
		d.out.send(encodeError(nil, asRPCError(err)))
		return
	}
	answers := d.server.beginBatch(d.ctx, d.client, list)
	d.requests.Go(func() {
		if batch := answers(); batch != nil {
			d.out.send(batch)
		}
	})
}

func (d *duplexClient) takeOne(raw []byte) {
	msg, err := parseValidMessage(raw)
	if err == nil && !msg.isRequest() {
		d.session.takeOther(msg)
		return
	}
	var r *request
	if err == nil {
		r, err = d.server.begin(d.ctx, d.client, msg)
	}
	if err != nil {
		d.out.send(encodeError(msg.ID, asRPCError(err)))
		return
	}
	d.requests.Go(func() {
		result, err := r.answer()
		if answer := encodeAnswer(msg.ID, result, err); answer != nil {
			d.out.send(answer)
		}
		if msg.Method == "initialize" && err == nil {
			d.session.initialized.Store(true)
		}
	})
}

// cancelAll ends all requests under way.
func (d *duplexClient) cancelAll(why error) {
	for _, cancel := range d.session.calls.all() {
		cancel(why)
	}
}

// serveSSE is the stream of a new HTTP+SSE session.
func (s *Server) serveSSE(w http.ResponseWriter, r *http.Request, p Principal, conn *connection, cancel func()) error {
	token, id := s.gate.Create(sseProtocol, 0, p)
	session, release := s.sessions.open(token)
	defer release()
	conn.open = func() func(frame) error {
		write := openSSE(w)
		// Relative, as behind a proxy nobody here knows what stands before it.
		_ = writeBody(w, fmt.Appendf(nil, "event: endpoint\ndata: %s?sessionId=%s\n\n", r.URL.Path, id))
		_ = http.NewResponseController(w).Flush() // a client that has gone is noticed with the next event
		return write
	}
	d, endStreams := s.newDuplex(session, conn)
	defer endStreams()
	session.duplex.Store(d)
	err := s.serveNotices(session, d.out, conn, cancel)
	session.duplex.Store(nil) // the session stays for a while, the client need not
	d.taking.Lock()           // nobody takes a message just now, and from here on nobody will
	d.closed = true
	d.taking.Unlock()
	d.cancelAll(errGone)
	session.asked.fail()
	d.requests.Wait()
	s.modules.EndAffinity(session.ID)
	return err
}

// takeSSE takes what the client of an HTTP+SSE stream sends. The answer goes out
// on the stream.
func (s *Server) takeSSE(w http.ResponseWriter, token *sessionToken, body []byte) error {
	session, release := s.sessions.open(token)
	defer release()
	d := session.duplex.Load()
	if d == nil {
		return errSessionEnded()
	}
	d.taking.RLock()
	defer d.taking.RUnlock()
	if d.closed {
		return errSessionEnded()
	}
	d.take(body)
	w.WriteHeader(http.StatusAccepted)
	return nil
}

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
	announcer.Go(func() { s.announceLists(announcing, d.session, d.out) })
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
