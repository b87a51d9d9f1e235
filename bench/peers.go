// The peers that usher is measured against: a bare net/http server with the checks that
// every MCP server must make, the official Go SDK, mcp-go, and a gateway, which is the Go
// SDK in front of a worker process. Each peer, and the worker, is this program again, in a
// process of its own. All peers offer the same tools as usher.

package main

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"mime"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"

	mcpgo "github.com/mark3labs/mcp-go/mcp"
	mcpgoserver "github.com/mark3labs/mcp-go/server"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// tool is a tool in the result of tools/list.
type tool struct {
	Name        string          `json:"name"`
	Description string          `json:"description"`
	InputSchema json.RawMessage `json:"inputSchema"`
}

// echoArguments are the arguments of the tools.
type echoArguments struct {
	Message string `json:"message" jsonschema:"text to return"`
}

// peer runs the peer that args[0] names, with the flags in the other args.
func peer(args []string) {
	if args[0] == "worker" {
		worker()
		return
	}
	flags := flag.NewFlagSet(args[0], flag.ExitOnError)
	file := flags.String("tools", "", "the `FILE` with the tools")
	child := flags.Bool("worker", false, "send calls through a worker process")
	rawSchemas := flags.Bool("raw", false, "define the tools with JSON schemas, and do not check arguments")
	flags.Parse(args[1:])
	var raw json.RawMessage
	var tools []tool
	if text, err := os.ReadFile(*file); err == nil {
		raw = text
		if err := json.Unmarshal(text, &tools); err != nil {
			log.Fatal(err)
		}
	}
	echo := func(arguments json.RawMessage) (string, error) {
		var a echoArguments
		err := json.Unmarshal(arguments, &a)
		return a.Message, err
	}
	if *child {
		through := startWorker()
		here := echo
		echo = func(arguments json.RawMessage) (string, error) { return here(through.call(arguments)) }
	}
	mux := http.NewServeMux()
	switch args[0] {
	case "bare":
		newBare(raw, echo).handle(mux)
	case "gosdk":
		mux.Handle("/mcp", goSDK(tools, *rawSchemas, echo))
	case "mcpgo":
		mux.Handle("/mcp", mcpGo(tools, *rawSchemas))
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("ready http://%s/mcp\n", l.Addr())
	log.Fatal(http.Serve(l, mux))
}

// bare is a minimal MCP server over HTTP: it checks Host, Origin, content type, Accept, the
// size of the body and the session, decodes the request once and sends a prepared answer.
type bare struct {
	list     []byte
	echo     func(arguments json.RawMessage) (string, error)
	sessions sync.Map // of *sync.Mutex, by session id
}

func newBare(tools json.RawMessage, echo func(json.RawMessage) (string, error)) *bare {
	return &bare{list: []byte(`{"tools":` + string(tools) + `}`), echo: echo}
}

func (b *bare) handle(mux *http.ServeMux) {
	mux.HandleFunc("GET /mcp", func(w http.ResponseWriter, r *http.Request) {
		if _, ok := b.sessions.Load(r.Header.Get("Mcp-Session-Id")); !ok {
			http.Error(w, "no such session", http.StatusNotFound)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		w.WriteHeader(http.StatusOK)
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	})
	mux.HandleFunc("POST /mcp", b.post)
}

func (b *bare) post(w http.ResponseWriter, r *http.Request) {
	if status := refused(r); status != 0 {
		w.WriteHeader(status)
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 4<<20))
	var m struct {
		JSONRPC string          `json:"jsonrpc"`
		ID      json.RawMessage `json:"id"`
		Method  string          `json:"method"`
		Params  json.RawMessage `json:"params"`
	}
	if err == nil {
		err = json.Unmarshal(body, &m)
	}
	if err != nil || m.JSONRPC != "2.0" {
		http.Error(w, "not a message", http.StatusBadRequest)
		return
	}
	if m.Method != "initialize" {
		s, ok := b.sessions.Load(r.Header.Get("Mcp-Session-Id"))
		if !ok {
			http.Error(w, "no such session", http.StatusNotFound)
			return
		}
		s.(*sync.Mutex).Lock()
		defer s.(*sync.Mutex).Unlock()
	}
	if len(m.ID) == 0 {
		w.WriteHeader(http.StatusAccepted)
		return
	}
	var result []byte
	switch m.Method {
	case "initialize":
		id := rand.Text()
		b.sessions.Store(id, new(sync.Mutex))
		w.Header().Set("Mcp-Session-Id", id)
		result = []byte(`{"protocolVersion":"` + protocol + `","capabilities":{"tools":{}},` +
			`"serverInfo":{"name":"bare","version":"1"}}`)
	case "tools/list":
		result = b.list
	case "tools/call":
		if result, err = b.call(m.Params); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
	default:
		http.Error(w, "no such method", http.StatusNotFound)
		return
	}
	answer := make([]byte, 0, len(result)+len(m.ID)+48)
	answer = append(answer, `{"jsonrpc":"2.0","id":`...)
	answer = append(answer, m.ID...)
	answer = append(answer, `,"result":`...)
	answer = append(answer, result...)
	answer = append(answer, '}')
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(answer)))
	w.Write(answer)
}

// refused returns the status that refuses a request, or 0 for a valid request.
func refused(r *http.Request) int {
	host, _, err := net.SplitHostPort(r.Host)
	if err != nil {
		host = r.Host
	}
	if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return http.StatusForbidden
	}
	if origin := r.Header.Get("Origin"); origin != "" && origin != "http://"+r.Host {
		return http.StatusForbidden
	}
	kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || kind != "application/json" {
		return http.StatusUnsupportedMediaType
	}
	accept := strings.Join(r.Header.Values("Accept"), ",")
	if !strings.Contains(accept, "application/json") || !strings.Contains(accept, "text/event-stream") {
		return http.StatusNotAcceptable
	}
	return 0
}

func (b *bare) call(params json.RawMessage) ([]byte, error) {
	var p struct {
		Name      string          `json:"name"`
		Arguments json.RawMessage `json:"arguments"`
	}
	if err := json.Unmarshal(params, &p); err != nil {
		return nil, err
	}
	text, err := b.echo(p.Arguments)
	if err != nil {
		return nil, err
	}
	type content struct {
		Type string `json:"type"`
		Text string `json:"text"`
	}
	return json.Marshal(map[string][]content{"content": {{"text", text}}})
}

// goSDK returns a server of the official SDK, with JSON answers, which are faster than its
// streams. Its tools are defined as in its documentation, by a function and the type of its
// arguments, or with raw schemas, which is faster.
func goSDK(tools []tool, rawSchemas bool, echo func(json.RawMessage) (string, error)) http.Handler {
	s := mcp.NewServer(&mcp.Implementation{Name: "gosdk", Version: "1"}, nil)
	for _, t := range tools {
		if !rawSchemas {
			mcp.AddTool(s, &mcp.Tool{Name: t.Name, Description: t.Description},
				func(_ context.Context, _ *mcp.CallToolRequest, a echoArguments) (*mcp.CallToolResult, any, error) {
					return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: a.Message}}}, nil, nil
				})
			continue
		}
		s.AddTool(&mcp.Tool{Name: t.Name, Description: t.Description, InputSchema: t.InputSchema},
			func(_ context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
				text, err := echo(r.Params.Arguments)
				return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: text}}}, err
			})
	}
	options := &mcp.StreamableHTTPOptions{JSONResponse: true}
	return mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return s }, options)
}

// mcpGo returns a server of mcp-go. Its tools are defined as in its documentation, or with
// raw schemas, which is faster.
func mcpGo(tools []tool, rawSchemas bool) http.Handler {
	s := mcpgoserver.NewMCPServer("mcpgo", "1", mcpgoserver.WithToolCapabilities(true))
	for _, t := range tools {
		own := mcpgo.NewTool(t.Name, mcpgo.WithDescription(t.Description),
			mcpgo.WithString("message", mcpgo.Required(), mcpgo.Description("text to return")))
		if rawSchemas {
			own = mcpgo.NewToolWithRawSchema(t.Name, t.Description, t.InputSchema)
		}
		s.AddTool(own,
			func(_ context.Context, r mcpgo.CallToolRequest) (*mcpgo.CallToolResult, error) {
				text, err := r.RequireString("message")
				return mcpgo.NewToolResultText(text), err
			})
	}
	return mcpgoserver.NewStreamableHTTPServer(s, mcpgoserver.WithStateful(true))
}

// line is a line between a peer and its worker.
type line struct {
	ID        int64           `json:"id"`
	Arguments json.RawMessage `json:"arguments"`
}

// worker answers each line on stdin with the same id and arguments.
func worker() {
	in, out := bufio.NewReader(os.Stdin), bufio.NewWriter(os.Stdout)
	for {
		text, err := in.ReadBytes('\n')
		if err != nil {
			return
		}
		var l line
		if err := json.Unmarshal(text, &l); err != nil {
			log.Fatal(err)
		}
		json.NewEncoder(out).Encode(l)
		if in.Buffered() == 0 {
			out.Flush()
		}
	}
}

// workerPipe is a worker process and the calls in flight.
type workerPipe struct {
	mu   sync.Mutex
	in   io.Writer
	wait map[int64]chan json.RawMessage // for the answers, by id
	next int64
}

// startWorker starts a worker process.
func startWorker() *workerPipe {
	self, err := os.Executable()
	if err != nil {
		log.Fatal(err)
	}
	cmd := exec.Command(self, "peer", "worker")
	in, err := cmd.StdinPipe()
	if err != nil {
		log.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		log.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		log.Fatal(err)
	}
	p := &workerPipe{in: in, wait: make(map[int64]chan json.RawMessage)}
	go p.read(out)
	return p
}

// read passes the worker's answers to the calls that wait for them.
func (p *workerPipe) read(out io.Reader) {
	r := bufio.NewReader(out)
	for {
		text, err := r.ReadBytes('\n')
		if err != nil {
			log.Fatal("the worker ended: ", err)
		}
		var l line
		if err := json.Unmarshal(text, &l); err != nil {
			log.Fatal(err)
		}
		p.mu.Lock()
		answer := p.wait[l.ID]
		delete(p.wait, l.ID)
		p.mu.Unlock()
		answer <- l.Arguments
	}
}

// call sends arguments to the worker and returns its answer.
func (p *workerPipe) call(arguments json.RawMessage) json.RawMessage {
	answer := make(chan json.RawMessage, 1)
	p.mu.Lock()
	p.next++
	p.wait[p.next] = answer
	text := append(strconv.AppendInt([]byte(`{"id":`), p.next, 10), `,"arguments":`...)
	p.in.Write(append(append(text, arguments...), "}\n"...))
	p.mu.Unlock()
	return <-answer
}
