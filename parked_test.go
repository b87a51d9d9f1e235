// Calls that wait for their clients to come back: of each method that can, past
// the end of a connection and of a claim, and for no longer than they may.

package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

// withForms is the _meta of a client without a session that can be asked for
// forms.
const withForms = `"_meta":{"io.modelcontextprotocol/clientCapabilities":{"elicitation":{}}}`

// goOn is params of a request that comes back with a state and its answers.
func goOn(params, state, responses string) string {
	list, _ := members(json.RawMessage(params))
	return string(append(list, withState(state, responses)...).encode())
}

// TestParkedInEachMethod is of modules that ask in the middle of whatever they
// can be asked.
func TestParkedInEachMethod(t *testing.T) {
	t.Parallel()
	dir := askDir(t, map[string]string{"named": "good names tools=ask res=named wants", "silent": "good tools=ask res=silent wants"})
	d := startDaemon(t, dir)
	connect(t, d.URL).awaitTools("named_ask", "silent_ask")
	c := newStateless(t, d.URL)
	for _, module := range []string{"named", "silent"} {
		ask := marshal(fakeAsk{Mark: "x", Asks: []fakeWish{askFor("form", "tools/call")}})
		for _, method := range []struct{ name, of, other, want string }{
			{"tools/call", "ask", "resources/read", `"content":[{"type":"text","text":"[`},
			{"prompts/get", "say", "resources/read", `"messages":[{"content":{"text":"{`},
			{"resources/read", "say", "prompts/get", `"contents":[{"text":"{`},
		} {
			what := method.name + " of " + module
			params := fmt.Sprintf(`{"name":"%s_%s","uri":"%s://one","arguments":%s,%s}`, module, method.of, module, ask, withForms) // what any of them takes
			named := func(method string) func(*http.Request) {
				return func(r *http.Request) {
					r.Header.Set(nameHeader, stringField(json.RawMessage(params), map[bool]string{true: "uri", false: "name"}[method == "resources/read"]))
				}
			}
			a := c.modern(method.name, params, named(method.name))
			state := askState(t, a, 1)
			want := fmt.Sprintf(`{"method":"elicitation/create","params":{"message":%q,`, method.name)
			if asked := string(field(field(a.result(), "inputRequests"), "ask-1")); !strings.HasPrefix(asked, want) || field(a.result(), "ttlMs") != nil {
				t.Errorf("%s: %s", what, a.Body)
			}
			answers := `{"ask-1":{"action":"accept","content":{"word":"` + what + `"}}}`
			wantStale(t, what+" in "+method.other, c.modern(method.other, goOn(params, state, answers), named(method.other)))
			a = c.modern(method.name, goOn(params, state, answers), named(method.name))
			if a.Status != http.StatusOK || a.failure() != "" || stringField(a.result(), "resultType") != resultComplete ||
				!strings.Contains(a.Body, method.want) || !strings.Contains(a.Body, what) {
				t.Errorf("%s, resumed: %d %s", what, a.Status, a.Body)
			}
			wantStale(t, what+" once more", c.modern(method.name, goOn(params, state, answers), named(method.name)))
		}
	}
}

// TestParkedCallsEnd is of calls whose clients go away, at whatever time: their
// modules are told, and nothing is kept of them.
func TestParkedCallsEnd(t *testing.T) {
	t.Parallel()
	const yes = `{"ask-1":{"action":"accept"}}`
	call := func(tool string) string {
		return `{"name":"m_` + tool + `","arguments":{"seconds":1000},` + withForms + `}`
	}
	for _, tt := range []struct {
		name  string
		leave func(t *testing.T, b *bubble) (params, state string) // until all is over
		hears string                                               // what the module does, sorted
	}{
		{"it was not asked anything", func(t *testing.T, b *bubble) (string, string) {
			x := b.begin(b.modernPOST("1", "tools/call", call("wait")))
			x.got()
			x.hangUp()
			return "", ""
		}, "notifications/cancelled\ntools/call"},
		{"it comes back never", func(t *testing.T, b *bubble) (string, string) {
			state := askState(t, b.modern("tools/call", call("ask")), 1)
			pass(suspendTimeout - time.Nanosecond)
			if n := b.suspended(); n != 1 {
				t.Errorf("before its time: %d calls are parked", n)
			}
			pass(time.Nanosecond)
			return call("ask"), state
		}, "notifications/cancelled\ntools/call\n" + `{"code":-32603,"refused":"the call that this is for is not under way"}`},
		{"it comes back, and goes away before the answer", func(t *testing.T, b *bubble) (string, string) {
			state := askState(t, b.modern("tools/call", call("stay")), 1)
			x := b.begin(b.modernPOST("2", "tools/call", goOn(call("stay"), state, yes)))
			x.got()
			x.hangUp()
			return call("stay"), state
		}, "notifications/cancelled\ntools/call\n" + `{"action":"accept"}`},
		{"it comes back, and goes away after a while", func(t *testing.T, b *bubble) (string, string) {
			state := askState(t, b.modern("tools/call", call("stay")), 1)
			x := b.begin(b.modernPOST("2", "tools/call", goOn(call("stay"), state, yes)))
			pass(2 * suspendTimeout) // it is not parked any more
			if status, _ := x.got(); status != 200 || b.suspended() != 0 {
				t.Errorf("before it goes away: %d, %d calls wait", status, b.suspended())
			}
			x.hangUp()
			return call("stay"), state
		}, "notifications/cancelled\ntools/call\n" + `{"action":"accept"}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *bubble) {
				params, state := tt.leave(t, b)
				heard := strings.Split(b.hears(), "\n")
				if slices.Sort(heard); strings.Join(heard, "\n") != tt.hears {
					t.Errorf("the module hears %q, want %q", heard, tt.hears)
				}
				if n := b.suspended(); n != 0 {
					t.Errorf("%d calls are parked", n)
				}
				if state != "" {
					wantStale(t, "afterwards", b.modern("tools/call", goOn(params, state, yes)))
				}
			})
		})
	}
}

// TestParkedLeavesNothing counts goroutines, so it runs alone.
func TestParkedLeavesNothing(t *testing.T) {
	dir := askDir(t, map[string]string{"a": "fixed names tools=ask"})
	d := startDaemon(t, dir)
	connect(t, d.URL).awaitTools("a_ask")
	var marks []string
	visit := func() {
		for range 5 {
			mark := fmt.Sprint("call-", len(marks))
			marks = append(marks, mark)
			c := askModern(t, d.URL, askAllCaps, "")
			ask := fakeAsk{Mark: mark, Asks: []fakeWish{askFor("form", "x")}, Stays: true}
			state := askState(t, c.round("a_ask", ask), 1)
			c.http.http.CloseIdleConnections() // a parked call is none of a connection's
			back := withState(state, `{"ask-1":{"action":"accept"}}`)
			params := append(object{{"name", quote("a_ask")}, {"arguments", marshal(ask)}}, back...).encode()
			x := begin(t, c.http.http, c.modernRequest(params))
			askStep(t, d, "answered", mark)
			x.hangUp()
			<-x.done
			askStep(t, d, "cancelled", mark)
			a := c.round("a_ask", ask, back...)
			if wantStale(t, "afterwards", a); !strings.Contains(a.failure(), "its call has ended") {
				t.Errorf("afterwards: %s", a.Body)
			}
			c.http.http.CloseIdleConnections()
		}
	}
	visit()
	before := runtime.NumGoroutine()
	visit()
	await(t, "the goroutines to end", func() bool { return runtime.NumGoroutine() <= before })
}

// TestParkedUnderAClaim ends the claim of a call that is parked, and has others
// of the same folder try to go on with it.
func TestParkedUnderAClaim(t *testing.T) {
	t.Parallel()
	const yes = `{"ask-1":{"action":"accept"}}`
	const params = `{"name":"m_ask",` + withForms + `}`
	for _, tt := range []struct {
		name string
		end  func(t *testing.T, claims *ClaimStore, c Claim)
	}{
		{"it holds", nil},
		{"it is revoked", func(t *testing.T, claims *ClaimStore, c Claim) {
			if _, err := claims.Revoke(t.Context(), c.Code); err != nil {
				t.Error(err)
			}
		}},
		{"it expires", func(_ *testing.T, _ *ClaimStore, c Claim) { pass(time.Until(c.ExpiresAt)) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *bubble) {
				claims := openStore(t, b.base)
				create := func(dir string, life time.Duration) Claim {
					c, err := claims.Create(t.Context(), dir, "", life)
					if err != nil {
						t.Fatal(err)
					}
					return c
				}
				own, other, wider := create("/w", suspendTimeout/2), create("/w", time.Hour), create("/", time.Hour)
				state := askState(t, b.modern("tools/call", params, inHeader(own.Code.Reveal())), 1)
				back := func(present func(*http.Request)) answer {
					return b.modern("tools/call", goOn(params, state, yes), present)
				}
				strangers := func() {
					t.Helper()
					for what, present := range map[string]func(*http.Request){"another claim of the folder": inHeader(other.Code.Reveal()),
						"a claim of a folder above": inHeader(wider.Code.Reveal()), "no claim": presentNothing} {
						wantStale(t, what, back(present))
					}
				}
				strangers()
				if tt.end == nil {
					if a := back(inHeader(own.Code.Reveal())); a.failure() != "" || !strings.Contains(resultText(a.result()), "accept") {
						t.Errorf("its owner: %d %s", a.Status, a.Body)
					}
					return
				}
				tt.end(t, claims, own)
				if a := back(inHeader(own.Code.Reveal())); !strings.Contains(a.failure(), "has ended") || a.result() != nil {
					t.Errorf("its owner: %d %s", a.Status, a.Body)
				}
				strangers()
				if heard := b.hears(); heard != "tools/call" {
					t.Errorf("the module hears %q", heard)
				}
				pass(suspendTimeout)
				heard := strings.Split(b.hears(), "\n")
				if slices.Sort(heard); len(heard) != 2 || heard[0] != "notifications/cancelled" || !strings.Contains(heard[1], `"refused"`) {
					t.Errorf("at its end the module hears %q", heard)
				}
				if n := b.suspended(); n != 0 {
					t.Errorf("%d calls are parked", n)
				}
			})
		})
	}
}
