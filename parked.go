// Parked calls: how a module that asks its client in the middle of a call serves
// clients without sessions, whom nobody can ask anything. The call is parked,
// the client's request is answered with what is asked for, and its next one
// brings the answers and goes on with the call (MCP 2026-07-28,
// basic/patterns/mrtr). It knows no module and no transport.

package main

import (
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	parkLife = 5 * time.Minute // for a client to come back
)

// parking is the calls that wait for their clients to come back. Safe for
// concurrent use.
type parking struct {
	states sealer          // whose key is forgotten at the end, and with it all states
	ctx    context.Context // ends when calls are to
	life   time.Duration
	wg     sync.WaitGroup // calls under way, parked or not

	mu    sync.Mutex
	calls map[[16]byte]*parkedCall
}

func newParking(ctx context.Context, life time.Duration) *parking {
	key := make([]byte, 32)
	rand.Read(key) // never fails
	return &parking{states: newSealer(key), ctx: ctx, life: life, calls: make(map[[16]byte]*parkedCall)}
}

// close waits for the calls, whose context must have ended.
func (k *parking) close() { k.wg.Wait() }

// parkedCall is one call of a client without a session, for as long as it takes,
// over as many requests as it takes.
type parkedCall struct {
	parking *parking
	id      [16]byte
	kin     string
	binding [32]byte // what all its requests must have in common
	cancel  context.CancelCauseFunc
	news    chan struct{} // 1-buffered: something is asked
	done    chan struct{} // closed when result and err are set
	result  json.RawMessage
	err     error

	mu      sync.Mutex
	notify  func(method string, params json.RawMessage) // of the request under way
	round   uint32                                      // counts states given out
	parked  bool                                        // a client has a state that is good
	asks    int                                         // made so far
	pending []*question
	expiry  *time.Timer
}

// question is what a module asked and has no answer to.
type question struct {
	key, method string
	params      json.RawMessage
	answer      chan json.RawMessage // 1-buffered
}

// Why a call that was parked does not go on.
var (
	errNotResumed = rpcErrorf(codeInternal, "the client did not come back with the answer")
	errManyParked = rpcErrorf(codeInternal, "too many calls wait for their clients to come back")
)

// stateError is why a requestState is refused.
func stateError(format string, args ...any) error {
	return rpcErrorf(codeInvalidParams, "requestState: "+format+": make the call anew, without it", args...)
}

// inRounds makes the request, which may need input of the client's meanwhile.
func (r *request) inRounds(ctx context.Context) (json.RawMessage, error) {
	k := r.server.parking
	var p *parkedCall
	if state := field(r.params, "requestState"); state != nil {
		var err error
		p, err = k.resume(state, r.binding(), field(r.params, "inputResponses"), r.caller.Notify)
		if err != nil {
			return nil, err
		}
	} else {
		p = k.begin(r.caller, r.binding(), r.attempt)
	}
	return p.wait(ctx)
}

// binding is what the requests of one call have in common: whose they are, what
// is asked, and what the client can be asked for.
func (r *request) binding() [32]byte {
	params := dropMembers(r.params, "_meta", "inputResponses", "requestState")
	return sha256.Sum256(fmt.Appendf(nil, "%q %q %d %s", r.caller.Principal, r.method, r.caller.Caps, canonical(params)))
}

// canonical is JSON with its keys in order and no white space, so that a client
// may write the same thing twice in two ways.
func canonical(raw json.RawMessage) []byte {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	var v any
	if d.Decode(&v) != nil {
		return raw
	}
	return marshal(v)
}

// begin starts a call.
func (k *parking) begin(caller Caller, binding [32]byte, call func(context.Context, Caller) (json.RawMessage, error)) *parkedCall {
	ctx, cancel := context.WithCancelCause(k.ctx)
	p := &parkedCall{parking: k, kin: caller.Affinity, binding: binding, cancel: cancel,
		news: make(chan struct{}, 1), done: make(chan struct{}), notify: caller.Notify}
	rand.Read(p.id[:]) // never fails
	caller.Notify = p.pass
	caller.Ask = p.ask
	k.wg.Go(func() {
		p.result, p.err = call(ctx, caller)
		close(p.done)
		p.forget()
		cancel(nil)
	})
	return p
}

// pass gives a notification to the request that waits, if one does.
func (p *parkedCall) pass(method string, params json.RawMessage) {
	p.mu.Lock()
	notify := p.notify
	p.mu.Unlock()
	if notify != nil {
		notify(method, params)
	}
}

// ask is what the module asks of the client.
func (p *parkedCall) ask(ctx context.Context, method string, params json.RawMessage) (json.RawMessage, error) {
	if err := p.parking.keep(p); err != nil {
		return nil, err
	}
	if params == nil {
		params = json.RawMessage(`{}`)
	}
	q := &question{method: method, params: params, answer: make(chan json.RawMessage, 1)}
	p.mu.Lock()
	p.asks++
	q.key = "ask-" + strconv.Itoa(p.asks)
	p.pending = append(p.pending, q)
	p.mu.Unlock()
	poke(p.news)
	select {
	case answer := <-q.answer:
		return answer, nil
	case <-ctx.Done():
		p.mu.Lock()
		defer p.mu.Unlock()
		p.dropLocked(q)
		return nil, context.Cause(ctx)
	}
}

func (p *parkedCall) dropLocked(q *question) {
	p.pending = slices.DeleteFunc(p.pending, func(other *question) bool { return other == q })
}

// keep makes the call one that can be come back to, unless there are too many.
func (k *parking) keep(p *parkedCall) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	select {
	case <-p.done: // it was forgotten, or will be next
		return errNotInCall
	default:
	}
	if k.calls[p.id] == p {
		return nil
	}
	kin := 0
	for _, other := range k.calls {
		if other.kin == p.kin {
			kin++
		}
	}
	if len(k.calls) >= maxParked || kin >= maxParkedKin {
		return errManyParked
	}
	k.calls[p.id] = p
	return nil
}

func (p *parkedCall) forget() {
	p.parking.mu.Lock()
	delete(p.parking.calls, p.id)
	p.parking.mu.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.expiry != nil {
		p.expiry.Stop()
	}
}

// wait waits for the call's end, or for something that it asks. A client that
// goes away meanwhile cancels the call.
func (p *parkedCall) wait(ctx context.Context) (json.RawMessage, error) {
	for {
		select {
		case <-p.done:
			return p.result, p.err
		case <-p.news:
			if result := p.park(); result != nil {
				return result, nil
			}
		case <-ctx.Done():
			p.cancel(context.Cause(ctx))
			<-p.done
			return nil, context.Cause(ctx)
		}
	}
}

// park is the answer that says what is asked for, with a state under which the
// call goes on; nil when nothing is asked any more.
func (p *parkedCall) park() json.RawMessage {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.pending) == 0 {
		return nil
	}
	var requests []member
	for _, q := range p.pending {
		requests = append(requests, member{q.key, joinMembers([]member{{"method", quote(q.method)}, {"params", q.params}})})
	}
	p.round++
	p.parked, p.notify = true, nil
	round := p.round
	p.expiry = time.AfterFunc(p.parking.life, func() { p.expire(round) })
	return joinMembers([]member{{"resultType", quote(resultInput)}, {"inputRequests", joinMembers(requests)},
		{"requestState", quote(p.parking.seal(p))}})
}

// expire ends a call that was not come back to in a round.
func (p *parkedCall) expire(round uint32) {
	p.mu.Lock()
	if !p.parked || p.round != round { // the timer came late
		p.mu.Unlock()
		return
	}
	p.parked = false // the state is worth nothing from here on
	p.mu.Unlock()
	p.forget()
	p.cancel(errNotResumed)
}

// seal is the state that a client gets: which call, which round of it, and what
// the call is bound to.
func (k *parking) seal(p *parkedCall) string {
	b := binary.BigEndian.AppendUint32(p.id[:], p.round) // a copy: the array is full
	b = append(b, p.binding[:]...)
	return k.states.seal(b)
}

// resume finds the call of a state, gives it the answers, and makes the state
// worthless. Nothing is done unless all of that can be.
func (k *parking) resume(state json.RawMessage, binding [32]byte, responses json.RawMessage, notify func(string, json.RawMessage)) (*parkedCall, error) {
	text, _ := unquote(state)
	b, ok := k.states.open(text)
	if !ok || len(b) != 16+4+32 {
		return nil, stateError("it is none of usher's, or of one that has ended")
	}
	if !bytes.Equal(b[20:], binding[:]) {
		return nil, stateError("it belongs to another call, another claim or other capabilities")
	}
	k.mu.Lock()
	p := k.calls[[16]byte(b[:16])]
	k.mu.Unlock()
	if p == nil {
		return nil, stateError("its call has ended")
	}
	answers, err := p.checkAnswers(responses)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.parked || p.round != binary.BigEndian.Uint32(b[16:]) {
		return nil, stateError("it was used already")
	}
	if p.round >= maxRounds*2 {
		return nil, stateError("too many rounds without an end")
	}
	p.parked, p.notify = false, notify
	p.expiry.Stop()
	for q, answer := range answers {
		p.dropLocked(q)
		q.answer <- answer
	}
	if len(p.pending) > 0 {
		poke(p.news) // what is missing is asked for again
	}
	return p, nil
}

// checkAnswers matches answers with what is asked. Those to nothing are ignored.
func (p *parkedCall) checkAnswers(responses json.RawMessage) (map[*question]json.RawMessage, error) {
	if responses == nil {
		return nil, nil
	}
	list, ok := members(responses)
	if !ok {
		return nil, rpcErrorf(codeInvalidParams, "inputResponses must be an object")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	answers := make(map[*question]json.RawMessage)
	for _, f := range list {
		for _, q := range p.pending {
			if q.key != f.key {
				continue
			}
			if err := checkAnswer(q.method, f.value); err != nil {
				return nil, rpcErrorf(codeInvalidParams, "inputResponses.%s: %v", q.key, err)
			}
			answers[q] = f.value
		}
	}
	return answers, nil
}

// checkAnswer reports what an answer to a method lacks to be one.
func checkAnswer(method string, answer json.RawMessage) error {
	if _, ok := members(answer); !ok {
		return errors.New("want an object")
	}
	switch method {
	case "elicitation/create":
		if stringField(answer, "action") == "" {
			return errors.New(`want an "action"`)
		}
	case "sampling/createMessage":
		if field(answer, "content") == nil {
			return errors.New(`want a "content"`)
		}
	case "roots/list":
		var roots []json.RawMessage
		if json.Unmarshal(field(answer, "roots"), &roots) != nil {
			return errors.New(`want a list "roots"`)
		}
	}
	return nil
}

// sealer seals what a client keeps for usher, and can neither read nor make.
type sealer struct{ cipher.AEAD }

// newSealer takes a key of 32 bytes.
func newSealer(key []byte) sealer {
	block, err := aes.NewCipher(key)
	if err != nil {
		panic(err)
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		panic(err)
	}
	return sealer{aead}
}

func (s sealer) seal(b []byte) string {
	return base64.RawURLEncoding.EncodeToString(s.Seal(nil, nil, b, nil))
}

// open is false for whatever was not sealed with this key.
func (s sealer) open(text string) ([]byte, bool) {
	raw, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if err != nil || strings.ContainsAny(text, "\r\n") { // which the decoder skips
		return nil, false
	}
	b, err := s.Open(nil, nil, raw, nil)
	return b, err == nil
}
