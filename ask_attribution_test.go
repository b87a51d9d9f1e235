// Attribution: a client is asked and notified only about its own calls.

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// stormClient is one of many clients that call at once. It makes one call at a time.
type stormClient struct {
	*askClient
	name, code string
	word       atomic.Pointer[string] // of the call under way
}

func newStormClient(t *testing.T, c *askClient, name, code string) *stormClient {
	s := &stormClient{askClient: c, name: name, code: code}
	s.setWord("")
	c.answer = func(method string, params json.RawMessage) json.RawMessage {
		word := *s.word.Load()
		if word == "" || !strings.Contains(string(params), word) {
			t.Errorf("%s, in the call %q, was asked with %s", name, word, params)
		}
		return askAnswer(word)(method, params)
	}
	return s
}

func (s *stormClient) setWord(word string) { s.word.Store(&word) }

// callOnce makes one call, which must get this client's answer to this call's question. owners is the code whose calls
// each process of the module "silent" has served.
func (s *stormClient) callOnce(t *testing.T, module, kind, word string, owners *sync.Map) {
	s.setWord(word)
	defer s.setWord("")
	ask := fakeAsk{Mark: word, Asks: []fakeWish{askFor(kind, word)}}
	for {
		pid, got, text := askGot(s.call(module+"_ask", ask))
		notSure := module == "silent" && strings.Contains(text, "can't tell which client")
		if notSure || strings.Contains(text, "is busy") {
			continue
		}
		if len(got) != 1 || strings.Count(text, "<") != 1 || !strings.Contains(text, word) {
			t.Errorf("%s of %s got %s", word, module, text)
		}
		if module != "silent" {
			break
		}
		if owner, loaded := owners.LoadOrStore(pid, s.code); loaded && owner != s.code {
			t.Error("a process served callers of two scopes")
		}
		break
	}
	s.forgetAsked()
}

// askStorm has many clients of all scopes ask at once.
func askStorm(t *testing.T, sessions, rounds int) {
	dir, base := t.TempDir(), t.TempDir()
	writeFake(t, dir+"/proj/silent.usher", "fixed tools=ask")
	writeFake(t, dir+"/proj/named.usher", "fixed names tools=ask")
	writeFake(t, dir+"/proj/new.usher", "modern tools=ask")
	d := daemonOptions{base: base}.startReady(t, dir)
	proj, whole := newClaimFor(t, base, dir+"/proj").Code.Reveal(), newClaimFor(t, base, dir).Code.Reveal()
	var clients []*stormClient
	add := func(c *askClient, code string) {
		clients = append(clients, newStormClient(t, c, fmt.Sprint("client ", len(clients)), code))
	}
	for i := range sessions {
		own := newClaimFor(t, base, dir+"/proj").Code.Reveal()
		add(askOverPOST(t, d.URL, protocols[i%len(protocols)], askAllCaps, own), own)
	}
	for _, code := range []string{whole, ""} {
		add(askOverPOST(t, d.URL, "2025-11-25", askAllCaps, code), code)
	}
	for _, code := range []string{proj, whole, "", "", ""} {
		add(askModern(t, d.URL, askAllCaps, code), code)
	}
	clients[len(clients)-1].askClient.name = "another"
	var owners sync.Map
	var all sync.WaitGroup
	for nth, c := range clients {
		all.Go(func() {
			for i := range rounds {
				module := []string{"silent", "silent", "named", "new"}[(i+nth)%4]
				kind := askKinds[i%2].name // these contain a word
				c.callOnce(t, module, kind, fmt.Sprintf("<%s, round %d>", c.name, i), &owners)
			}
		})
	}
	all.Wait()
}

func TestAskManyAtOnce(t *testing.T) {
	long(t)
	askStorm(t, 6, 5)
}

// TestAskStorm has a hundred rounds, or USHER_STORM of them.
func TestAskStorm(t *testing.T) {
	slow(t)
	rounds := 100
	if text := os.Getenv("USHER_STORM"); text != "" {
		var err error
		rounds, err = strconv.Atoi(text)
		must(t, err)
	}
	askStorm(t, 20, rounds)
}

// TestAskOfASubscription has a module ask when a session subscribes: another session, whose call it has served, must
// not be asked.
func TestAskOfASubscription(t *testing.T) {
	long(t)
	d := startFakes(t, "a: good tools=pid res=a wants")
	caller := askOverPOST(t, d.URL, "2025-11-25", askAllCaps, "")
	subscriber := askOverPOST(t, d.URL, "2025-11-25", askAllCaps, "")
	caller.listen()
	subscriber.listen()
	caller.call("a_pid", struct{}{})
	msg := subscriber.get(subscriber.send(t.Context(), subscriber.nextID(), "resources/subscribe", `{"uri":"a://one"}`))
	checkContains(t, "the answer to the subscriber", string(msg), `"result":`)
	check(t, "requests to the caller", len(caller.asked), 0)
	check(t, "requests to the subscriber", len(subscriber.asked), 1)
}

// TestAskProgressOfARound has a client ask for progress in one round of a call and not in another, or under another
// token.
func TestAskProgressOfARound(t *testing.T) {
	long(t)
	d := startFakes(t, "a: fixed tools=ask")
	c := askModern(t, d.URL, askAllCaps, "")
	ask := askForms("progress")
	ask.Tells = true
	for _, tokens := range [][2]string{{``, `"b"`}, {`"a"`, ``}, {`7`, `"7"`}, {``, ``}} {
		t.Run(tokens[0]+" then "+tokens[1], func(t *testing.T) {
			params := callParams("a_ask", ask)
			for i, token := range tokens {
				own := params
				if token != "" {
					own = setMeta(params, "progressToken", json.RawMessage(token))
				}
				a, err := c.http.try(c.modernRequest(own))
				must(t, err)
				var got, want []string
				for _, msg := range a.Events {
					if stringField(msg, "method") == "notifications/progress" {
						got = append(got, string(field(field(msg, "params"), "progressToken")))
					}
				}
				if token != "" {
					want = []string{token}
				}
				check(t, fmt.Sprintf("tokens of progress in round %d", i+1), got, want)
				if i == 0 {
					params = c.answered(params, a.result())
				}
			}
		})
	}
}
