// Command connect connects to a server with one of the Go clients. It prints the names of
// the tools, one per line, and then the answer of a tool that it calls.
//
//	connect -url URL -with gosdk|gosdk-sse|mcp-go [-header "Name: value"] TOOL
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"net/http"
	"strings"
	"time"

	mcpgo "github.com/mark3labs/mcp-go/client"
	"github.com/mark3labs/mcp-go/client/transport"
	mcpgotypes "github.com/mark3labs/mcp-go/mcp"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

func main() {
	log.SetFlags(0)
	endpoint := flag.String("url", "", "the server's `URL`")
	with := flag.String("with", "", "the `CLIENT` to use: gosdk, gosdk-sse or mcp-go")
	header := flag.String("header", "", "a `HEADER` to send with each request")
	flag.Parse()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	name, value, _ := strings.Cut(*header, ": ")
	headers := map[string]string{}
	if name != "" {
		headers[name] = value
	}
	var err error
	httpClient := &http.Client{Transport: adding(headers)}
	switch *with {
	case "gosdk":
		err = official(ctx, &mcp.StreamableClientTransport{Endpoint: *endpoint, HTTPClient: httpClient})
	case "gosdk-sse":
		err = official(ctx, &mcp.SSEClientTransport{Endpoint: *endpoint, HTTPClient: httpClient})
	case "mcp-go":
		err = withMCPGo(ctx, *endpoint, headers)
	default:
		err = fmt.Errorf("no client %q", *with)
	}
	if err != nil {
		log.Fatal(err)
	}
}

// adding is an HTTP transport that adds headers, as the official SDK recommends.
type adding map[string]string

func (a adding) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	for name, value := range a {
		r.Header.Set(name, value)
	}
	return http.DefaultTransport.RoundTrip(r)
}

// official uses the client of the official SDK.
func official(ctx context.Context, t mcp.Transport) error {
	session, err := mcp.NewClient(&mcp.Implementation{Name: "gosdk", Version: "1"}, nil).Connect(ctx, t, nil)
	if err != nil {
		return err
	}
	defer session.Close()
	for tool, err := range session.Tools(ctx, nil) {
		if err != nil {
			return err
		}
		fmt.Println(tool.Name)
	}
	result, err := session.CallTool(ctx, &mcp.CallToolParams{
		Name:      flag.Arg(0),
		Arguments: map[string]any{"text": "ahoy"},
	})
	if err != nil {
		return err
	}
	fmt.Println(result.Content[0].(*mcp.TextContent).Text)
	return nil
}

// withMCPGo uses the client of mcp-go.
func withMCPGo(ctx context.Context, endpoint string, headers map[string]string) error {
	c, err := mcpgo.NewStreamableHttpClient(endpoint, transport.WithHTTPHeaders(headers))
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.Start(ctx); err != nil {
		return err
	}
	var begin mcpgotypes.InitializeRequest
	begin.Params.ProtocolVersion = mcpgotypes.LATEST_PROTOCOL_VERSION
	begin.Params.ClientInfo = mcpgotypes.Implementation{Name: "mcp-go", Version: "1"}
	if _, err := c.Initialize(ctx, begin); err != nil {
		return err
	}
	list, err := c.ListTools(ctx, mcpgotypes.ListToolsRequest{})
	if err != nil {
		return err
	}
	for _, tool := range list.Tools {
		fmt.Println(tool.Name)
	}
	var call mcpgotypes.CallToolRequest
	call.Params.Name = flag.Arg(0)
	call.Params.Arguments = map[string]any{"text": "ahoy"}
	result, err := c.CallTool(ctx, call)
	if err != nil {
		return err
	}
	fmt.Println(result.Content[0].(mcpgotypes.TextContent).Text)
	return nil
}
