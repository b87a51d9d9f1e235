// Benchmarks of the parts of a request, with their allocations. Where a part must
// not cost more as something else grows, it is measured beside little and beside
// a hundred times as much. What the whole costs is measured in bench/.
//
//	go test -run '^$' -bench . .

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"
)

// benchClaims makes a data folder with n claims of /w, all of which hold, and
// returns the code of one and the file.
func benchClaims(b *testing.B, n int) (dataDir, file, code string) {
	b.Helper()
	var records []map[string]any
	for i := range n {
		code = "CCCCCC"[:6-len(fmt.Sprint(i))] + strings.NewReplacer("0", "Z", "1", "Y").Replace(fmt.Sprint(i))
		records = append(records, map[string]any{"code": code, "scopeDir": "/w", "label": "one of many",
			"createdAt": "2026-11-21T10:00:00Z", "expiresAt": "2999-01-01T00:00:00Z"})
	}
	text, err := json.Marshal(records)
	if err != nil {
		b.Fatal(err)
	}
	dataDir = newDataDir(b)
	return dataDir, writeClaimsFile(b, dataDir, string(text)), code
}

// benchModules makes n modules below /w with a method each.
func benchModules(b *testing.B, n int) []*Module {
	b.Helper()
	var list []*Module
	for i := range n {
		list = append(list, module(b, fmt.Sprintf("/w/m%04d.usher:m%04d handleIt", i, i)))
	}
	return list
}

// benchServer is the HTTP side of a daemon that hosts modules, a gate beside it,
// and the headers of a session that has a claim of them.
func benchServer(b *testing.B, modules []*Module) (http.Handler, http.Header) {
	b.Helper()
	data, _, code := benchClaims(b, 1)
	gate, _ := testGate(b, data, false)
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	s := newServer(serverConfig{
		modules:  fixedRegistry(newCatalog(modules)),
		gate:     gate,
		memory:   newMemory(1 << 20),
		log:      log,
		stopping: b.Context(),
		stopped:  b.Context(),
	})
	mux := http.NewServeMux()
	s.routes(mux)
	return mux, benchSession(b, gate, code)
}

// benchSession is the headers of a request in a session with a claim.
func benchSession(b *testing.B, gate *Gate, code string) http.Header {
	b.Helper()
	header := http.Header{claimHeader: {code}, protocolHeader: {"2025-11-25"}, "Content-Type": {"application/json"},
		"Accept": {"application/json, text/event-stream"}}
	r := httptest.NewRequest("POST", "/", nil)
	r.Header = header
	from, err := gate.Admit(r)
	if err != nil || !from.claim.exists() {
		b.Fatalf("admitted with no claim: %v", err)
	}
	_, id := gate.Create("2025-11-25", 0, from)
	header.Set(sessionHeader, id)
	return header
}

func BenchmarkAdmit(b *testing.B) {
	for _, n := range []int{100, 10_000} {
		b.Run(fmt.Sprintf("claims=%d", n), func(b *testing.B) {
			data, _, code := benchClaims(b, n)
			gate, _ := testGate(b, data, true)
			r := httptest.NewRequest("POST", "/", nil)
			r.Header = benchSession(b, gate, code)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := gate.Admit(r); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkClaimsReread looks a code up after the file has changed.
func BenchmarkClaimsReread(b *testing.B) {
	for _, n := range []int{100, 10_000} {
		b.Run(fmt.Sprintf("claims=%d", n), func(b *testing.B) {
			data, file, code := benchClaims(b, n)
			store := testStore(b, data)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				b.StopTimer()
				at := time.Unix(int64(i), 0)
				if err := os.Chtimes(file, at, at); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
				known, _ := parseCode(code)
				if c, err := store.Lookup(known); !c.exists() || err != nil {
					b.Fatal(c.exists(), err)
				}
			}
		})
	}
}

func BenchmarkView(b *testing.B) {
	for _, n := range []int{10, 1000} {
		b.Run(fmt.Sprintf("modules=%d", n), func(b *testing.B) {
			catalog := newCatalog(benchModules(b, n))
			catalog.View(scopeDir("/w")) // made once for each scope
			b.ReportAllocs()
			for b.Loop() {
				if catalog.View(scopeDir("/w")).Lookup("tools", "m0003_handleIt") == nil {
					b.Fatal("not there")
				}
			}
		})
	}
}

// BenchmarkList is tools/list of a scoped session, from the request to its answer.
func BenchmarkList(b *testing.B) {
	for _, n := range []int{20, 1000} {
		b.Run(fmt.Sprintf("tools=%d", n), func(b *testing.B) {
			handler, header := benchServer(b, benchModules(b, n))
			benchRequests(b, handler, header, `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{}}`)
		})
	}
}

// BenchmarkCall is tools/call of a scoped session, from the request to its answer,
// with a process that is none.
func BenchmarkCall(b *testing.B) {
	m := benchEcho(b)
	handler, header := benchServer(b, []*Module{m})
	const params = `{"name":"m_echo","arguments":{"message":"hello"}}`
	benchRequests(b, handler, header, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":`+params+`}`)
}

func benchRequests(b *testing.B, handler http.Handler, header http.Header, body string) {
	b.Helper()
	b.ReportAllocs()
	for b.Loop() {
		r := httptest.NewRequest("POST", "/", strings.NewReader(body))
		r.Header = header
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		if w.Code != http.StatusOK || !strings.Contains(w.Body.String(), `"result":{`) {
			b.Fatalf("%d %s", w.Code, w.Body)
		}
	}
}

// benchEcho is a module whose process, a goroutine, answers each call at once.
func benchEcho(b *testing.B) *Module {
	b.Helper()
	m := module(b, "/w/m.usher:m echo")
	m.pool = newPool("m", false, 0, func(*Caller) (*Worker, error) {
		w := testWorker("m", nil)
		out, stdin := io.Pipe()
		stdout, in := io.Pipe()
		go w.writeStdin(stdin)
		go w.readStdout(stdout)
		go func() {
			for lines := newLineReader(out, 1<<20); ; {
				line, err := lines.next()
				if err != nil {
					in.Close()
					w.finish("")
					return
				}
				msg, err := parseMessage(line)
				if err != nil {
					panic(err)
				}
				fmt.Fprintf(in, `{"jsonrpc":"2.0","id":%s,"result":{"content":[{"type":"text","text":"hello"}]}}`+"\n",
					msg.ID)
			}
		}()
		return w, nil
	})
	b.Cleanup(m.pool.close)
	return m
}

func BenchmarkWebhookArguments(b *testing.B) {
	tool := newCatalog([]*Module{module(b, "/w/m.usher:m handleIt")}).View(scopeAll()).Lookup("tools", "m_handleIt")
	for _, row := range []struct{ name, contentType, body string }{
		{"JSON", "application/json", `{"id":"evt_1","type":"payment","data":{"object":{"id":"in_1","paid":true}}}`},
		{"form", formType, "id=evt_1&type=payment&amount=1250"},
	} {
		b.Run(row.name, func(b *testing.B) {
			r := httptest.NewRequest("POST", "/webhook/m/handleIt?from=here", strings.NewReader(row.body))
			r.Header.Set("Content-Type", row.contentType)
			r.Header.Set("User-Agent", "sender/1.0")
			d := &delivery{request: r, received: time.Now(), kind: row.contentType, body: []byte(row.body), tool: tool}
			b.ReportAllocs()
			for b.Loop() {
				if _, err := d.parseArguments(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
