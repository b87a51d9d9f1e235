// The transports of MCP: POST, GET and DELETE of streamable HTTP, with and without sessions,
// HTTP+SSE of 2024-11-05, and stdio (MCP, basic/transports). They find the session of a message,
// begin and end requests, and send answers and notifications of changed lists through an outbox.
// This file reaches no module.
//
// A POST or GET runs on the goroutine of its connection until it is answered; only the outbox of a
// stream has a goroutine of its own. A duplex connection (HTTP+SSE and stdio) starts one for each
// request, because its client may send the next message before the answer to the last one.

package main

import (
	"bufio"
	"context"
	"io"
	"mime"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// serve answers a request to the MCP endpoint, or returns an error.
func (s *Server) serve(x *reservation) error {
	method := x.req.Method
	switch {
	case method == http.MethodPost:
		return s.servePOST(x)
	case isStateless(x.req.Header, nil): // the revision without sessions has only POST
	case method == http.MethodGet:
		return s.serveGET(x)
	case method == http.MethodDelete:
		return s.serveDELETE(x)
	}
	return x.errMethod("POST, GET, DELETE")
}

// writeMCPError writes an error as a JSON-RPC error about the message in the body.
func writeMCPError(x *reservation, e *fault) {
	x.writeJSON(e.status(), encodeError(x.id, e))
}

// streamTypes are the types in an Accept header that allow a stream.
var streamTypes = []string{"*/*", "text/*", "text/event-stream"}

// accepts reports whether the Accept header contains one of types. It ignores quality values (q=).
func accepts(h http.Header, types ...string) bool {
	accept := strings.ToLower(strings.Join(h.Values("Accept"), ","))
	return slices.ContainsFunc(types, func(kind string) bool { return strings.Contains(accept, kind) })
}

// prefersStream reports whether the Accept header lists streams before JSON.
func prefersStream(h http.Header) bool {
	before, _, lists := strings.Cut(h.Get("Accept"), "text/event-stream")
	return lists && !strings.Contains(before, "application/json")
}

// servePOST receives one message. It answers a request, and accepts any other message.
func (s *Server) servePOST(x *reservation) error {
	contentType := x.req.Header.Get("Content-Type")
	if kind, _, err := mime.ParseMediaType(contentType); err != nil || kind != "application/json" {
		return httpErrorf(http.StatusUnsupportedMediaType,
			"content type %q: want application/json", contentType)
	}
	// Principal and session are fixed before the body is read, so that the body counts for
	// the right principal, and nobody changes the access of a request under way.
	from, err := s.gate.Admit(x.req)
	if err != nil {
		return err
	}
	sender := from.principal
	if from.badCode != nil { // until the body shows whether it begins a session
		sender = strangers
	}
	body, err := x.receive(sender)
	if err != nil {
		return err
	}
	// A client of HTTP+SSE gets its answers on its stream, whatever it posts.
	if from.session.isSSE() {
		err := from.session.receive(from, body)
		if err == nil {
			x.w.WriteHeader(http.StatusAccepted)
		}
		return err
	}
	// From here on, a refusal repeats the id of the message, so that its sender can tell which of its
	// requests has failed.
	msg, err := parseMessage(body)
	x.id = slices.Clone(msg.ID) // a process may keep x, and must not keep the body
	if err != nil {
		return err
	}
	params, identity := parseParams(msg.Params)
	from, err = s.inSession(x, from, msg, params, identity)
	if err == nil {
		err = x.countFor(from.principal)
	}
	if err != nil {
		return err
	}
	if !msg.isRequest() {
		from.session.handleNotification(msg)
		x.w.WriteHeader(http.StatusAccepted)
		return nil
	}
	return s.answerPOST(x, from, msg, params)
}

// inSession returns the admission of a message in its session. For initialize, that is a new
// session, whose id becomes the header of the answer. A stateless message has a session of
// its own.
func (s *Server) inSession(
	x *reservation, from admission, msg *Message, params, identity object,
) (admission, error) {
	stateless := isStateless(x.req.Header, identity)
	begins := !stateless && msg.isRequest() && msg.Method == "initialize"
	// Only here is it known whether the request begins a session: an invalid code does not keep
	// a client of an earlier era from that, but refuses everything else.
	switch {
	case from.badCode != nil && !begins:
		return from, from.badCode
	case stateless && msg.Method != "" && msg.ID == nil: // usher needs no notification of this revision
		from.session = newSession(sessionOrigin{})
		return from, nil
	case stateless:
		return from.sessionless(s.stopping, x.req.Header, msg.Method, identity)
	case !begins && from.session == nil:
		return from, errNoID
	case !begins:
		return from, nil
	}
	if _, err := from.principal.scope(); err != nil { // an ended claim begins no session: see Create
		return from, err
	}
	protocol, caps := parseInitialize(params)
	from = s.gate.Create(from, protocol, caps)
	x.w.Header().Set(sessionHeader, from.session.name)
	return from, nil
}

// errNoID refuses a request that needs a session and names none.
var errNoID error = httpErrorf(http.StatusBadRequest,
	"no %s: send initialize first, then the id from its answer", sessionHeader)

// answerPOST runs the request of a POST, and writes the answer to x or, if that is a stream, to its
// outbox. It returns errNoRoom if the answer finds no room.
func (s *Server) answerPOST(x *reservation, from admission, msg *Message, params object) error {
	header := x.req.Header
	// Without a way to write a stream, the answer stays plain JSON, and the client can't be
	// asked or notified.
	out := &outbox{ctx: x.req.Context(), held: x}
	if accepts(header, streamTypes...) {
		out.write = sseWriter(x)
	}
	r := s.newRequest(from, out, msg, params)
	if from.session.era == stateless {
		r.header = header
	}
	var result object
	err := r.begin(s.stopped)
	if err == nil {
		// The request counts, and can be cancelled, until its answer is written: a client that does not
		// read fills its own share.
		defer r.end()
		if r.session.era == stateless { // the end of its connection cancels a request of this era
			defer context.AfterFunc(out.ctx, func() { r.cancel(context.Canceled) })()
		}
		result, err = r.answer()
	}
	// Only stateless revisions have an HTTP status for an error of JSON-RPC. In earlier ones, an HTTP
	// error means that the transport or the session has failed.
	status := http.StatusOK
	if err != nil && r.session.era == stateless && isRPC(err) {
		status = asFault(err).status()
	}
	if prefersStream(header) && status == http.StatusOK {
		out.open()
	}
	// Whether the outbox is a stream is decided only here, together with its last message: until now,
	// a notification or the timer of answer may have made it one.
	answer := r.encodeAnswer(result, err)
	switch {
	case out.answer(r.id, answer, true):
		<-out.done
	case answer == nil: // of a cancelled request
		x.w.WriteHeader(http.StatusAccepted)
	case x.grow(len(answer)) != nil:
		return errNoRoom
	default:
		x.writeJSON(status, answer)
	}
	return nil
}

// admitGET decides whether a GET is served, and for which principal.
func (s *Server) admitGET(x *reservation) (from admission, err error) {
	from, err = s.gate.Admit(x.req)
	if err == nil && from.session.isSSE() {
		err = errNoSession // an HTTP+SSE session has one stream
	}
	return from, err
}

// serveGET serves a session's notification stream. Without a session, it begins an HTTP+SSE
// session.
func (s *Server) serveGET(x *reservation) error {
	from, err := s.admitGET(x)
	if err != nil {
		return err
	}
	if !accepts(x.req.Header, streamTypes...) {
		return httpErrorf(http.StatusNotAcceptable, "a GET of the MCP endpoint must accept text/event-stream")
	}
	// GET has no body, but a client may send one. Unread, it could delay other requests of the
	// connection.
	if _, err = x.receive(from.principal); err != nil {
		return err
	}
	x.end() // the body is dropped
	// Each stream costs a connection and a goroutine for as long as the client likes.
	if !s.streams.reserve(from.principal, 1) {
		return errManyStreams
	}
	defer s.streams.release(from.principal, 1)
	// The stream ends with its connection, at the daemon's end, or by hangUp of an HTTP+SSE session.
	ctx, cancel := context.WithCancel(x.req.Context())
	defer cancel()
	defer context.AfterFunc(s.stopping, cancel)()
	out := &outbox{ctx: ctx, held: x, write: sseWriter(x)}
	if from.session == nil {
		s.serveSSE(x.req.URL.Path, from, out, cancel)
		return nil
	}
	return s.serveNotices(from, out)
}

// errManyStreams refuses a stream over the limits of its session and its principal.
var errManyStreams error = httpErrorf(http.StatusTooManyRequests, "too many streams: close one")

// serveNotices serves a session's notification stream until the connection or the outbox
// ends. The error is errManyStreams if the session has too many.
func (s *Server) serveNotices(from admission, out *outbox) error {
	if !from.session.join(out) {
		if out.ctx.Err() == nil {
			return errManyStreams
		}
		return nil // the client has gone
	}
	// The connection is the handler's only until it returns, so the writer must have ended by then.
	defer func() {
		out.end()
		<-out.done
	}()
	s.follow(out.ctx, from, out, out.done)
	return nil
}

// serveDELETE ends a session at its client's request.
func (s *Server) serveDELETE(x *reservation) error {
	from, err := s.gate.Admit(x.req)
	if err != nil {
		return err
	}
	if from.session == nil {
		return errNoID
	}
	s.gate.sessions.end(from.session)
	x.w.WriteHeader(http.StatusNoContent)
	return nil
}

// duplex is a connection that carries all messages to one client and, for stdio, all
// messages from it. The client of an HTTP+SSE session sends its messages by POST. Safe
// for concurrent use.
type duplex struct {
	server *Server
	from   admission // of the connection; a message has one of its own
	out    *outbox

	mu       sync.Mutex     // locked to begin a request, or to begin no more
	requests sync.WaitGroup // the requests that are being answered
}

// duplexTimeout is how long requests in progress may take once the input has ended.
const duplexTimeout = 30 * time.Second

// serve writes to the client until its connection ends, or until input yields the error with
// which the client's input ended. serve waits for requests in progress, and returns that
// error. hangUp ends the connection.
func (d *duplex) serve(input <-chan error, hangUp func()) (err error) {
	written := make(chan struct{})
	go func() {
		defer close(written)
		defer hangUp() // also after a panic or a failed write: nobody would read the answers
		defer catch(d.server.log, nil)
		d.server.serveNotices(d.from, d.out)
	}()
	select {
	case err = <-input:
	case <-d.out.ctx.Done():
	}
	// From now on, no request begins. Those in progress may end, but the client can no longer
	// answer what modules ask in them.
	d.mu.Lock()
	d.from.session.endStreams()
	d.mu.Unlock()
	// A call that does not end must not keep the connection for ever.
	defer time.AfterFunc(duplexTimeout, hangUp).Stop()
	d.requests.Wait()
	d.out.end()
	if waitFor(d.out.ctx, written) != nil {
		var late <-chan time.Time // nil for HTTP+SSE: its writes have deadlines, and end before its handler
		if input != nil {         // a client that does not read holds up a write to stdout
			late = time.After(exitTimeout)
		}
		select {
		case <-written:
		case <-late:
		}
	}
	return err
}

// receive handles an admitted message of the client. It answers a request in a new
// goroutine. The error is errNoSession if the message came too late.
func (d *duplex) receive(from admission, body []byte) error {
	// The lock keeps serve from waiting for d.requests while a request is added to them.
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.from.session.reachable.Err() != nil {
		return errNoSession
	}
	msg, err := parseMessage(body)
	if err == nil && msg.isRequest() {
		err = d.begin(from, msg, len(body))
	} else if err == nil {
		d.from.session.handleNotification(msg)
	}
	if err != nil {
		d.out.send(encodeError(msg.ID, err))
	}
	return nil
}

// begin begins a request of a size in bytes, and answers it in a new goroutine.
func (d *duplex) begin(from admission, msg *Message, size int) (err error) {
	params, identity := parseParams(msg.Params)
	// A client may mix both eras on one connection: stdio has no headers, so each message decides.
	from.session = d.from.session
	if isStateless(nil, identity) {
		from, err = from.sessionless(from.session.reachable, nil, msg.Method, identity)
		if err != nil {
			return err
		}
		from.session.calls = d.from.session.calls // the client cancels all its requests there
	}
	// The bytes of a POST stop counting when it is answered with 202, which is before its request is
	// answered. So the request counts them itself. A message that finds no room is answered with the
	// error.
	held := d.server.memory.reserve(from.principal)
	err = held.grow(size)
	r := d.server.newRequest(from, d.out, msg, params)
	if err == nil {
		err = r.begin(d.out.ctx) // without the connection, nobody could get the answer
	}
	if err != nil {
		held.end()
		return err
	}
	d.requests.Go(func() {
		defer held.end()
		defer r.end()
		d.out.answer(r.id, r.encodeAnswer(r.answer()), false)
	})
	return nil
}

// serveSSE serves the stream of a new HTTP+SSE session. hangUp ends its connection.
func (s *Server) serveSSE(path string, from admission, out *outbox, hangUp func()) {
	from = s.gate.Create(from, sseProtocol, 0)
	defer s.gate.sessions.end(from.session)
	d := &duplex{server: s, from: from, out: out}
	from.session.receive = d.receive // before anybody knows the session's name
	// The address is relative, as usher does not know the path that a proxy adds.
	out.sendOwn("endpoint", []byte(path+"?sessionId="+from.session.name))
	_ = d.serve(nil, hangUp) // its input arrives by POST
}

// serveStdio answers one client, which writes lines to in and reads lines from out,
// until in or ctx ends. It sets memory, stopping and stopped of the config itself. When
// serveStdio returns, it may still be blocked in a Read of in, which can't be interrupted.
func serveStdio(ctx context.Context, c serverConfig, in io.Reader, out io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c.stopping = ctx
	c.stopped = ctx
	c.memory = newMemory(defaultMaxBody, strangers)
	s := newServer(c)
	d := &duplex{
		server: s,
		from:   s.gate.Create(admission{principal: everyone}, protocols[0], 0),
		out:    &outbox{ctx: ctx, held: s.memory.reserve(everyone), write: lineWriter(out)},
	}
	input := make(chan error, 1) // buffered: the reader may come back long after serve has returned
	go func() { input <- d.receiveLines(bufio.NewReaderSize(in, 64<<10)) }()
	err := d.serve(input, cancel) // ends ctx
	s.suspended.running.Wait()
	return err
}

// receiveLines receives messages, one per line, until the lines end or come too late.
func (d *duplex) receiveLines(lines *bufio.Reader) error {
	for {
		line, err := readLine(lines, maxWorkerLine)
		switch {
		case err == errLineTooLong:
			d.out.send(encodeError(nil, err))
		case err == io.EOF:
			return nil
		case err != nil:
			return err
		case d.receive(d.from, line) != nil:
			return nil
		}
	}
}

// ---- Changes of lists

const coalesce = 300 * time.Millisecond // changes within this time make one list_changed

// follow notifies from's session of changes on out, one of its streams, and removes the stream
// at the end. It returns when ctx ends or end is closed, or when the session no longer belongs
// to the principal of from.
func (s *Server) follow(ctx context.Context, from admission, out *outbox, end <-chan struct{}) {
	session := from.session
	defer session.leave(out)
	for {
		// Before the view: a change that happens while the client is notified then leads to another look.
		modules := s.modules.Changed()
		unreadable := from.principal.Unreadable()
		if unreadable == nil {
			if scope, err := from.principal.scope(); err == nil { // else it is told nothing
				session.notifyChanges(out, s.modules.View(scope, from.member))
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-end:
			return
		case <-from.member.Done(): // the claim has ended, or the session has another principal
			// The client is told that its lists are empty now. A client of subscriptions/listen gets the end
			// of its request instead.
			if session.life.Err() == nil && session.listenID == nil {
				session.notifyChanges(out, s.modules.View(Scope{}, nil))
			}
			return
		case <-unreadable:
		case <-modules:
			pauseFor(ctx, coalesce) // more changes are likely to follow
		}
	}
}

// markSeen records that the client was given a list. While the session has a stream, only
// the first list counts: notifyChanges records what the client is notified of.
func (s *Session) markSeen(what string, view *View) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.streams) == 0 || s.lastSeen[what] == "" {
		s.lastSeen[what] = view.Fingerprints[what]
	}
}

// announcedLists are the lists whose changes clients are notified of.
var announcedLists = []string{"tools", "prompts", "resources"}

// notifyChanges notifies the client of the lists that have changed since it last saw them, if out is
// the session's newest stream: the client may have opened that with another code. Lists that the
// client never asked for are left out. But the client of a restored session may have seen anything,
// so it is notified of every list once.
func (s *Session) notifyChanges(out *outbox, view *View) {
	for _, list := range announcedLists {
		// The lock is not held while the client is notified, because notify takes it to find the stream.
		now := view.Fingerprints[list]
		s.mu.Lock()
		before := s.lastSeen[list]
		isNewest := slices.Index(s.streams, out) == len(s.streams)-1
		changed := isNewest && before != now && (before != "" || s.restored)
		if changed {
			s.lastSeen[list] = now
		}
		s.mu.Unlock()
		if changed {
			s.notify("notifications/"+list+"/list_changed", nil)
		}
	}
}

// readFilter reads which lists and resources the client of a subscriptions/listen wants
// to be notified of. It marks these lists as seen in view. It returns the part of the
// filter that usher honours.
func (s *Session) readFilter(view *View, filter object) (honoured object) {
	for _, list := range announcedLists {
		key := list + "ListChanged"
		if value := filter.get(key); isTrue(value) {
			s.markSeen(list, view)
			honoured = append(honoured, member{key, value})
		}
	}
	return honoured
}
