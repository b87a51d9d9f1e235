// The handshake with a module: which revisions it speaks, what it is, what it
// offers and what it tells of. Here a worker is spoken to as to a server, by
// usher itself and for no client.

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// era is which revisions a module speaks, as far as that is known.
type era string

const (
	eraUnknown   era = ""
	eraSession   era = "session" // those that begin with initialize
	eraStateless era = "modern"
)

// errProbed is why there is no handshake with a process that ended when it was
// asked which revisions it speaks.
var errProbed = errors.New("it ended at server/discover")

// shakeHands finds out what the module is. Which era it speaks is asked first,
// unless that is known; what is no answer of the modern one is taken for the
// other (MCP 2026-07-28, basic/transports/stdio, "Backward Compatibility").
func (w *Worker) shakeHands(ctx context.Context, known era) error {
	if known == eraSession {
		return w.initialize(ctx)
	}
	w.lastID.Store(-1) // so that the ids of the others are what they are without
	probe, cancel := context.WithTimeout(ctx, probePatience)
	modern, err := w.discover(probe)
	cancel()
	if modern || ctx.Err() != nil {
		return err
	}
	if err = w.initialize(ctx); err == nil {
		return nil
	}
	if errors.As(err, new(*rpcError)) { // it was only slow to start, perhaps
		if modern, again := w.discover(ctx); modern {
			return again
		}
	}
	if errors.Is(err, errNotSent) || errors.As(err, new(*crashError)) {
		return errProbed
	}
	return err
}

// discover asks a module of the modern era what it is, and whether it is one:
// only then does the error count.
func (w *Worker) discover(ctx context.Context) (modern bool, err error) {
	result, err := w.request(ctx, Caller{}, "server/discover", modernParams(nil, allCaps, ""), 0)
	if rpc, ok := errors.AsType[*rpcError](err); ok && rpc.Code == codeUnsupportedVersion {
		var versions []string
		_ = json.Unmarshal(field(rpc.Data, "supported"), &versions) // none then
		if slices.ContainsFunc(versions, hasSessions) {
			return false, nil
		}
		return true, fmt.Errorf("it speaks %s, and usher %s", strings.Join(versions, ", "), strings.Join(spoken(), ", "))
	}
	var versions []string
	if err != nil || json.Unmarshal(field(result, "supportedVersions"), &versions) != nil || !slices.Contains(versions, modernProtocol) {
		return false, err
	}
	w.takeInfo(result, field(field(result, "_meta"), metaServerInfo))
	w.info.Stateless = true
	return true, w.listenToLists(ctx)
}

func (w *Worker) takeInfo(result, server json.RawMessage) {
	w.info.Capabilities = field(result, "capabilities")
	w.info.Instructions = stringField(result, "instructions")
	if w.info.Title = stringField(server, "title"); w.info.Title == "" {
		w.info.Title = stringField(server, "name")
	}
}

// initialize shakes hands as an MCP client. All client capabilities are
// declared: servers hide tools from clients that lack one.
func (w *Worker) initialize(ctx context.Context) error {
	params := joinMembers([]member{{"protocolVersion", quote(protocols[0])}, {"clientInfo", usherInfo()}, {"capabilities", clientCaps(allCaps).json()}})
	result, err := w.request(ctx, Caller{}, "initialize", params, 0)
	if err != nil {
		return err
	}
	w.takeInfo(result, field(result, "serverInfo"))
	return w.send(ctx, encodeNotification("notifications/initialized", nil))
}

// listenToLists has a modern module say when its lists change, those of them
// that do.
func (w *Worker) listenToLists(ctx context.Context) error {
	var lists []member
	for _, list := range []string{"tools", "prompts", "resources"} {
		if string(field(field(w.info.Capabilities, list), "listChanged")) == "true" {
			lists = append(lists, member{list + "ListChanged", json.RawMessage("true")})
		}
	}
	if lists == nil {
		return nil
	}
	return w.listen(ctx, w.nextID(), joinMembers(lists))
}

// listen opens a subscription of a modern module. Its end matters to nobody;
// until then it is one more call in flight.
func (w *Worker) listen(ctx context.Context, id string, filter json.RawMessage) error {
	if err := w.calls.add(id, &call{answer: make(chan *Message, 1), ctx: ctx}); err != nil {
		return errNotSent
	}
	return w.send(ctx, encodeRequest(ID(id), "subscriptions/listen", modernParams(joinMembers([]member{{"notifications", filter}}), allCaps, "")))
}

// subscribe has the module say when a resource changes, until the function that
// it returns is called.
func (w *Worker) subscribe(ctx context.Context, uri string) (stop func(), err error) {
	if string(field(field(w.info.Capabilities, "resources"), "subscribe")) != "true" {
		return nil, rpcErrorf(codeNoMethod, "module %q does not say when its resources change", w.module)
	}
	if w.info.Stateless {
		id := w.nextID()
		err := w.listen(ctx, id, joinMembers([]member{{"resourceSubscriptions", append(append([]byte("["), quote(uri)...), ']')}}))
		return func() {
			if _, open := w.calls.take(id); open {
				w.cancel(id, errUnsubscribed)
			}
		}, err
	}
	params := joinMembers([]member{{"uri", quote(uri)}})
	stop = func() {
		w.offer(encodeRequest(ID(w.nextID()), "resources/unsubscribe", params)) // whose answer nobody waits for
	}
	_, err = w.request(ctx, Caller{}, "resources/subscribe", params, startTimeout)
	if err != nil && ctx.Err() != nil {
		stop() // it may have come about all the same
	}
	return stop, err
}

var errUnsubscribed = errors.New("nobody listens any more")

// list asks for a whole list of the module, page by page: method "tools/list"
// and key "tools", say. A module without the capability has an empty one.
func (w *Worker) list(ctx context.Context, method, key string) ([]json.RawMessage, error) {
	capability, _, _ := strings.Cut(method, "/")
	if field(w.info.Capabilities, capability) == nil {
		return nil, nil
	}
	var all []json.RawMessage
	params := json.RawMessage(`{}`)
	for range maxPages {
		result, err := w.request(ctx, Caller{}, method, params, 0)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", method, err)
		}
		var page []json.RawMessage
		if err := json.Unmarshal(field(result, key), &page); err != nil {
			return nil, fmt.Errorf("%s: the answer has no list %q", method, key)
		}
		all = append(all, page...)
		cursor := field(result, "nextCursor")
		if cursor == nil || string(cursor) == "null" {
			return all, nil
		}
		params = joinMembers([]member{{"cursor", cursor}})
	}
	return nil, fmt.Errorf("%s: no end after %d pages", method, maxPages)
}
