// Tests of limit.go.

package main

import (
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"
)

// limitCases has a case for each limit per principal that clients can exceed by requests alone.
var limitCases = map[string]struct {
	most    int                                          // requests within the limit
	request func(b *bubble, c *testClient) *http.Request // one of them
	refusal string                                       // of one more
	unread  bool                                         // the answers of those within the limit are not read
}{
	"maxInFlight": {
		most: maxInFlight,
		request: func(_ *bubble, c *testClient) *http.Request {
			id := quote(fmt.Sprintf("%010000s", c.Message("", ""))) // which the answer repeats
			return c.Request("POST", string(encodeRequest(id, "ping", nil)))
		},
		refusal: "too many requests in flight",
		unread:  true,
	},
	"maxHeldOf": {
		most: maxHeldOf / (2 * 140_100), // body and answer
		request: func(_ *bubble, c *testClient) *http.Request {
			// net/http reads a refused body of this size to its end
			arguments := `{"echo":"` + strings.Repeat("x", 139_900) + `"}`
			params := `{"name":"m_wait","arguments":` + arguments + `}`
			return c.Request("POST", c.Message("tools/call", params))
		},
		refusal: "unread answers",
		unread:  true,
	},
	"maxStreams": {
		most:    maxStreams,
		request: func(_ *bubble, c *testClient) *http.Request { return c.GetRequest() },
		refusal: "too many streams",
	},
	"maxStreamsOf": {
		most: maxStreamsOf,
		request: func(b *bubble, c *testClient) *http.Request {
			session := b.open(protocols[0]) // for the same principal
			session.Header = c.Header
			session.Ask("ping", "")
			return session.GetRequest()
		},
		refusal: "too many streams",
	},
}

const clips = "clips what is shown, and holds up nothing"

// limitTests names the test of each limit in limit.go, or says why there is none.
var limitTests = map[string]string{
	"maxInFlight":       "TestLimitIsPerPrincipal",
	"maxHeldOf":         "TestLimitIsPerPrincipal",
	"maxStreams":        "TestLimitIsPerPrincipal",
	"maxStreamsOf":      "TestLimitIsPerPrincipal",
	"maxConns":          "TestConnectionsAreBounded",
	"maxHeader":         "TestRequestsAreChecked",
	"maxID":             "TestRequestsAreChecked",
	"defaultMaxBody":    "TestRequestsAreChecked",
	"maxHeldUnknown":    "TestBodiesMakeRoom",
	"maxHeld":           "TestBodiesMakeRoom",
	"maxError":          "TestWebhookAnswers",
	"maxWrite":          "TestSlowReadersHaveTime",
	"maxOutbox":         "TestSlowClientIsDropped",
	"guessBudget":       "TestGuessesTakeTurns",
	"guessRate":         "TestGuessesTakeTurns",
	"maxSignatures":     "TestSignaturesAreBounded",
	"maxSignatureSize":  "TestSignaturesAreBounded",
	"maxSource":         "TestOnlyRegularFilesAreRead",
	"maxCheckDepth":     "TestArgumentsAreChecked",
	"maxSchemaDepth":    "TestUnreadableDefinitions",
	"maxInput":          "TestAnswersToPingsAreBounded",
	"maxExecutable":     "a test would read a GiB; it is the check of maxSource with another number",
	"maxShellOutput":    "TestShellFunctions",
	"maxWorkerLine":     "TestPythonModuleFindsItsNeighbors",
	"maxAsks":           "TestAsksOfACallAreBounded",
	"maxSuspended":      "TestSuspendedCallsAreBounded",
	"maxLogged":         clips,
	"maxLoggedLine":     clips,
	"tailLines":         clips,
	"maxList":           "TestFailedListHidesNoTools",
	"maxProcs":          "TestProcessesAreBounded",
	"maxProcsOf":        "TestProcessesAreBounded",
	"maxProcsOpen":      "TestProcessesAreBounded",
	"maxRunning":        "TestRunningCallsAreBounded",
	"maxRunningOf":      "TestRunningCallsAreBounded",
	"maxRounds":         "ends a call that its module keeps asking in, for its client alone",
	"maxIntrospections": "TestListsWaitForTheirScope",
	"maxToolName":       "is a warning",
	"maxViews":          "TestViewsAreForgotten",
	"maxURI":            "TestResourcesHaveOneOwner",
	"maxInstructions":   "TestInstructionsAreShort",
	"maxSessionsOf":     "TestIdleSessionsAreForgotten",
}

// One request over a limit is refused, and another principal's is not.
func TestLimitIsPerPrincipal(t *testing.T) {
	long(t)
	for name, tt := range limitCases {
		runInBubble(t, name, func(t *testing.T, b *bubble) {
			client := func() *testClient { return b.openScoped(newCode(t, b.base, "/w")) }
			var all []*exchange
			begin := func(c *testClient, unread bool) (text string) {
				b.unread = unread
				x := b.begin(tt.request(b, c))
				all = append(all, x)
				_, text = x.got()
				return text
			}
			greedy, other := client(), client()
			for range tt.most {
				checkOmits(t, "a request within the limit", begin(greedy, tt.unread),
					tt.refusal)
			}
			more := begin(greedy, false)
			for try := 0; try < 3 && more == ""; try++ { // net/http gave up writing the body before it read why
				more = begin(greedy, false)
			}
			checkContains(t, "one request more", more, tt.refusal)
			checkOmits(t, "another principal's request", begin(other, false), tt.refusal)
			start := time.Now()
			check(t, "another principal's call", other.Call("m_wait", "").Failure(), "")
			check(t, "how long it waited", time.Since(start), 0)
			for _, x := range all {
				x.hangUp()
			}
			pass(3 * time.Minute)
			checkOmits(t, "a request after all that", begin(greedy, false), tt.refusal)
			all[len(all)-1].hangUp()
		})
	}
}

// limitRow matches a limit in limit.go, with its name and its value.
// A wait for a slot ends when another goroutine releases the slot.
func TestFreedSlotEndsItsWait(t *testing.T) {
	c := counter{perKey: 1}
	c.reserve(everyone, 1)
	s := &slot{counter: &c, key: everyone}
	granted := s.queue()
	s.release()
	select {
	case <-granted:
	default:
		t.Error("the slot still waits")
	}
}

var limitRow = regexp.MustCompile(`(?m)^\t(\w+) += (.+?) +// `)

// Every limit in limit.go has a test.
func TestLimitIndex(t *testing.T) {
	var rows []string
	for _, line := range limitRow.FindAllStringSubmatch(readFile(t, "limit.go"), -1) {
		rows = append(rows, line[1])
	}
	checkIndex(t, rows, limitTests)
}
