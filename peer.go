// Peers: a client with one connection for all that goes back and forth, which is
// stdio, and HTTP+SSE of 2024-11-05. It sends lines or bodies, one message or
// batch each; what goes to it goes through one queue. Here is stdio too.

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"
)

// peer is one such client. Safe for concurrent use.
type peer struct {
	server   *Server
	session  *Session
	queue    chan []byte                       // to whoever writes
	ctx      context.Context                   // ends when nothing can be written any more
	hangUp   func()                            // ends the connection, as the session's end must
	greeted  atomic.Bool                       // initialize was answered
	requests sync.WaitGroup                    // being answered
	listens  inflight[context.CancelCauseFunc] // those that end only when told to, by id
}

func (s *Server) newPeer(ctx context.Context, hangUp func(), session *Session) *peer {
	return &peer{server: s, session: session, hangUp: hangUp, queue: make(chan []byte, maxQueued), ctx: ctx}
}

// send queues a message for the client, and waits for room.
func (p *peer) send(msg []byte) {
	select {
	case p.queue <- msg:
	case <-p.ctx.Done():
	}
}

// offer queues a message for the client if there is room.
func (p *peer) offer(msg []byte) bool {
	if p.ctx.Err() != nil {
		return false
	}
	select {
	case p.queue <- msg:
		return true
	default:
		p.server.log.Warn("a message was dropped: the client does not keep up", "session", clipText(p.session.key, 8))
		return false
	}
}

func (p *peer) there() bool { return p.ctx.Err() == nil }

// announce tells the client what changes, until ctx ends.
func (p *peer) announce(ctx context.Context) {
	st := &stream{cancel: p.hangUp, queue: p.queue}
	if !p.session.join(st) { // it ended meanwhile
		p.hangUp()
		return
	}
	defer p.server.leave(p.session, st)
	p.server.announce(ctx, p.session, p.greeted.Load, func(list string) { p.send(encodeNotification("notifications/"+list+"/list_changed", nil)) })
}

// take handles a line or body: a message, or a batch of them.
func (p *peer) take(raw []byte) {
	if err := checkJSON(raw); err != nil {
		p.send(encodeError(nil, asRPCError(err)))
		return
	}
	if !isBatch(raw) || !p.session.isOf(batchProtocol) {
		p.takeOne(raw, p.send, &p.requests)
		return
	}
	list, err := splitBatch(raw)
	if err != nil {
		p.send(encodeError(nil, asRPCError(err)))
		return
	}
	p.requests.Go(func() {
		var answers batchAnswers
		var under sync.WaitGroup
		for _, one := range list {
			p.takeOne(one, answers.add, &under)
		}
		under.Wait()
		if b := answers.join(); b != nil {
			p.send(b)
		}
	})
}

// takeOne handles one message. What answers it is given to answer; requests
// counts those under way.
func (p *peer) takeOne(raw []byte, answer func([]byte), requests *sync.WaitGroup) {
	msg, err := parseValidMessage(raw)
	switch {
	case err != nil:
		answer(encodeError(msg.ID, asRPCError(err)))
		return
	case !msg.isRequest():
		p.session.takeOther(msg)
		return
	}
	ctx, cancel := context.WithCancelCause(p.ctx)
	if err := p.session.begin(msg.ID, cancel); err != nil {
		cancel(nil)
		answer(encodeError(msg.ID, asRPCError(err)))
		return
	}
	requests.Go(func() {
		defer cancel(nil)
		result, err := p.answer(ctx, msg)
		p.session.calls.take(string(msg.ID))
		if a := encodeAnswer(msg.ID, result, err); a != nil {
			answer(a)
		}
		if msg.Method == "initialize" && err == nil {
			p.greeted.Store(true)
		}
	})
}

func (p *peer) answer(ctx context.Context, msg *Message) (json.RawMessage, error) {
	if isModern(msg.Params) {
		return p.answerModern(ctx, msg)
	}
	if msg.Method == "initialize" {
		protocol, caps, err := parseInitialize(msg.Params)
		if err != nil {
			return nil, err
		}
		p.session.introduce(protocol, caps)
		return p.server.welcome(ctx, p.session, protocol), nil
	}
	req := &request{server: p.server, session: p.session, params: msg.Params, caller: p.server.callerOf(p.session, p.offer, p.there)}
	return req.answer(ctx, msg.Method)
}

// answerModern answers a request that says of itself who asks.
func (p *peer) answerModern(ctx context.Context, msg *Message) (json.RawMessage, error) {
	session, err := modernSession(msg.Params, p.server.gate.Current(p.session.sessionToken))
	if err != nil {
		return nil, err
	}
	req := &request{server: p.server, session: session, params: msg.Params, caller: p.server.callerOf(session, p.offer, p.there)}
	if msg.Method != listenMethod {
		return req.answer(ctx, msg.Method)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if err := p.listens.add(string(msg.ID), cancel); err != nil {
		return nil, err
	}
	defer p.listens.take(string(msg.ID))
	return p.server.listen(ctx, session, msg, p.queue)
}

// cancelAll ends all requests under way.
func (p *peer) cancelAll(why error) {
	for _, cancel := range p.session.calls.all() {
		cancel(why)
	}
}

// stdioPatience is how long requests under way may take after stdin ended.
const stdioPatience = 30 * time.Second

// ServeStdio answers the one client at the other end of in and out, until in ends
// or ctx does. When it returns, nothing is under way but a read of in that can't
// be interrupted.
func (s *Server) ServeStdio(ctx context.Context, in io.Reader, out io.Writer) error {
	ctx, cancel := context.WithCancelCause(ctx)
	session := newSession(&sessionToken{ID: "stdio", Issued: s.started})
	p := s.newPeer(ctx, func() {}, session)
	s.parking = newParking(ctx, parkLife)
	var announcer, writer sync.WaitGroup
	announcer.Go(func() { p.announce(ctx) })
	flush := make(chan struct{})
	writer.Go(func() {
		if err := p.write(out, flush); err != nil {
			cancel(fmt.Errorf("writing to the client: %w", err))
		}
	})
	lines := make(chan stdioLine)
	go readStdio(ctx, newLineReader(in, maxWorkerLine), lines)
	err := p.serve(lines)
	p.finish()
	close(flush)
	writer.Wait()
	cancel(nil)
	announcer.Wait()
	s.parking.close()
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
func (p *peer) serve(lines <-chan stdioLine) error {
	for {
		select {
		case <-p.ctx.Done():
			return nil
		case line := <-lines:
			switch {
			case line.err == errLineTooLong:
				p.send(encodeError(nil, rpcErrorf(codeInvalidRequest, "the message is larger than %s", formatSize(maxWorkerLine))))
			case errors.Is(line.err, io.EOF):
				return nil
			case line.err != nil:
				return fmt.Errorf("reading from the client: %w", line.err)
			default:
				p.take(line.text)
			}
		}
	}
}

// finish lets what is under way end, within bounds.
func (p *peer) finish() {
	p.session.hangUp() // nobody can answer any more
	for _, cancel := range p.listens.close(errCancelled) {
		cancel(errCancelled)
	}
	timer := time.AfterFunc(stdioPatience, func() { p.cancelAll(errStopping) })
	defer timer.Stop()
	if p.ctx.Err() != nil {
		p.cancelAll(errStopping)
	}
	p.requests.Wait()
}

// write writes what is queued, until flush is closed and the queue is empty.
func (p *peer) write(out io.Writer, flush <-chan struct{}) error {
	for flush != nil || len(p.queue) > 0 {
		select {
		case msg := <-p.queue:
			if _, err := out.Write(append(msg, '\n')); err != nil {
				return err
			}
		case <-flush:
			flush = nil
		}
	}
	return nil
}
