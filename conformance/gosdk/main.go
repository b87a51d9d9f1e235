// The official Go client against an usher that hosts @modelcontextprotocol's
// server-everything as the module "everything": it uses tools, prompts and resources, and
// answers what the server asks. It prints a line per check, and at the end the number of
// checks.
//
//	go run . -url URL [-protocol VERSION] [-sse]
//	go run . [-protocol VERSION] -- usher stdio DIR
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

const patience = 20 * time.Second // a check that takes longer has failed

// run is one client and the notifications that it has received.
type run struct {
	session        *mcp.ClientSession
	modern         bool // the version of the protocol has no sessions
	passed, failed int

	mu       sync.Mutex
	heard    map[string]int // notifications by kind
	resource string         // the URI of the resource updated last
}

func main() {
	endpoint := flag.String("url", "", "usher's `URL`")
	protocol := flag.String("protocol", "", "the `VERSION` of the protocol to request")
	sse := flag.Bool("sse", false, "use HTTP+SSE, the transport of 2024-11-05")
	flag.Parse()
	r := &run{heard: make(map[string]int), modern: *protocol >= "2026-07-28"}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	options := &mcp.ClientSessionOptions{ProtocolVersion: *protocol}
	session, err := r.client().Connect(ctx, transport(*endpoint, *sse), options)
	if err != nil {
		fmt.Println("FAIL connect:", err)
		os.Exit(1)
	}
	r.session = session
	r.check("the version", func(context.Context) error {
		return want(*protocol, session.InitializeResult().ProtocolVersion)
	})
	r.tools()
	r.prompts()
	r.resources()
	r.asking()
	r.check("close", func(context.Context) error { return session.Close() })
	fmt.Printf("%d passed, %d failed\n", r.passed, r.failed)
	if r.failed > 0 {
		os.Exit(1)
	}
}

// transport returns the transport to a server: over stdio if endpoint is "".
func transport(endpoint string, sse bool) mcp.Transport {
	switch {
	case endpoint == "":
		command := exec.Command(flag.Arg(0), flag.Args()[1:]...)
		command.Stderr = os.Stderr
		return &mcp.CommandTransport{Command: command}
	case sse:
		return &mcp.SSEClientTransport{Endpoint: endpoint}
	default:
		return &mcp.StreamableClientTransport{Endpoint: endpoint}
	}
}

// client returns a client that answers everything that a server may ask.
func (r *run) client() *mcp.Client {
	note := func(kind string) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.heard[kind]++
	}
	client := mcp.NewClient(&mcp.Implementation{Name: "gosdk", Version: "1.0.0"}, &mcp.ClientOptions{
		CreateMessageHandler: func(context.Context, *mcp.CreateMessageRequest) (*mcp.CreateMessageResult, error) {
			return &mcp.CreateMessageResult{
				Model:   "a model of gosdk",
				Role:    "assistant",
				Content: &mcp.TextContent{Text: "ahoy"},
			}, nil
		},
		ElicitationHandler: func(context.Context, *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			return &mcp.ElicitResult{Action: "decline"}, nil
		},
		ResourceUpdatedHandler: func(_ context.Context, req *mcp.ResourceUpdatedNotificationRequest) {
			note("updated")
			r.mu.Lock()
			defer r.mu.Unlock()
			r.resource = req.Params.URI
		},
		LoggingMessageHandler:       func(context.Context, *mcp.LoggingMessageRequest) { note("message") },
		ProgressNotificationHandler: func(context.Context, *mcp.ProgressNotificationClientRequest) { note("progress") },
	})
	client.AddRoots(&mcp.Root{Name: "a root of gosdk", URI: (&url.URL{Scheme: "file", Path: "/tmp"}).String()})
	return client
}

// check runs one check and prints its line.
func (r *run) check(name string, f func(context.Context) error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	start := time.Now()
	if err := f(ctx); err != nil {
		r.failed++
		fmt.Printf("FAIL %s (%v): %v\n", name, time.Since(start).Round(time.Millisecond), err)
		return
	}
	r.passed++
	fmt.Printf("ok   %s (%v)\n", name, time.Since(start).Round(time.Millisecond))
}

// want returns an error unless got contains want.
func want(want, got string) error {
	if want != "" && !strings.Contains(got, want) {
		return fmt.Errorf("got %q, want a text that contains %q", got, want)
	}
	return nil
}

// await waits until n notifications of a kind have arrived.
func (r *run) await(ctx context.Context, kind string, n int) error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		r.mu.Lock()
		got := r.heard[kind]
		r.mu.Unlock()
		if got >= n {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%d notifications of %s, want %d", got, kind, n)
		}
	}
}

// call calls a tool and returns the texts of its result.
func (r *run) call(ctx context.Context, params *mcp.CallToolParams) (string, error) {
	result, err := r.session.CallTool(ctx, params)
	// server-everything asks for roots at its start: a call that ends meanwhile asks for a new call.
	if err != nil && strings.Contains(err.Error(), "call again without it") {
		result, err = r.session.CallTool(ctx, params)
	}
	if err != nil {
		return "", err
	}
	var texts []string
	for _, c := range result.Content {
		if text, ok := c.(*mcp.TextContent); ok {
			texts = append(texts, text.Text)
		}
	}
	all := strings.Join(texts, "\n")
	if result.IsError {
		return "", fmt.Errorf("the tool failed: %s", all)
	}
	return all, nil
}

// calls checks that a call of a tool returns the text.
func (r *run) calls(tool string, arguments map[string]any, text string) {
	r.check(tool, func(ctx context.Context) error {
		got, err := r.call(ctx, &mcp.CallToolParams{Name: "everything_" + tool, Arguments: arguments})
		return errors.Join(err, want(text, got))
	})
}

// tools checks lists and calls of tools, progress, the log level and ping.
func (r *run) tools() {
	r.check("the list of tools", func(ctx context.Context) error {
		names := ""
		for tool, err := range r.session.Tools(ctx, nil) {
			if err != nil {
				return err
			}
			names += " " + tool.Name
		}
		return errors.Join(want("everything_echo", names), want("everything_trigger-sampling-request", names))
	})
	r.calls("echo", map[string]any{"message": "grüße"}, "Echo: grüße")
	r.calls("get-sum", map[string]any{"a": 2, "b": 40}, "42")
	r.check("progress", func(ctx context.Context) error {
		params := &mcp.CallToolParams{
			Name:      "everything_trigger-long-running-operation",
			Arguments: map[string]any{"duration": 0.3, "steps": 3},
		}
		params.SetProgressToken("mine")
		_, err := r.call(ctx, params)
		return errors.Join(err, r.await(ctx, "progress", 3))
	})
	if !r.modern {
		r.check("the log level", func(ctx context.Context) error {
			return r.session.SetLoggingLevel(ctx, &mcp.SetLoggingLevelParams{Level: "debug"})
		})
		r.check("ping", func(ctx context.Context) error { return r.session.Ping(ctx, nil) })
	}
}

// prompts checks prompts and completion.
func (r *run) prompts() {
	r.check("prompts", func(ctx context.Context) error {
		list, err := r.session.ListPrompts(ctx, nil)
		if err != nil || len(list.Prompts) == 0 {
			return fmt.Errorf("no prompts: %w", err)
		}
		prompt, err := r.session.GetPrompt(ctx, &mcp.GetPromptParams{
			Name:      "everything_args-prompt",
			Arguments: map[string]string{"city": "Bremen"},
		})
		if err != nil {
			return err
		}
		return want("Bremen", prompt.Messages[0].Content.(*mcp.TextContent).Text)
	})
	r.check("completion", func(ctx context.Context) error {
		result, err := r.session.Complete(ctx, &mcp.CompleteParams{
			Ref:      &mcp.CompleteReference{Type: "ref/prompt", Name: "everything_completable-prompt"},
			Argument: mcp.CompleteParamsArgument{Name: "department", Value: "E"},
		})
		if err != nil {
			return err
		}
		return want("Engineering", strings.Join(result.Completion.Values, " "))
	})
}

// resources checks resources, templates and subscriptions.
func (r *run) resources() {
	r.check("resources", func(ctx context.Context) error {
		list, err := r.session.ListResources(ctx, nil)
		if err != nil || len(list.Resources) == 0 {
			return fmt.Errorf("no resources: %w", err)
		}
		result, err := r.session.ReadResource(ctx, &mcp.ReadResourceParams{URI: list.Resources[0].URI})
		if err == nil && len(result.Contents) == 0 {
			err = errors.New("no contents")
		}
		return err
	})
	const uri = "demo://resource/dynamic/text/1"
	r.check("templates", func(ctx context.Context) error {
		list, err := r.session.ListResourceTemplates(ctx, nil)
		if err != nil || len(list.ResourceTemplates) == 0 {
			return fmt.Errorf("no templates: %w", err)
		}
		result, err := r.session.ReadResource(ctx, &mcp.ReadResourceParams{URI: uri})
		if err != nil {
			return err
		}
		return want("Resource 1", result.Contents[0].Text)
	})
	r.check("a subscription to a resource", func(ctx context.Context) error {
		if err := r.session.Subscribe(ctx, &mcp.SubscribeParams{URI: uri}); err != nil {
			return err
		}
		// The server updates the resources of a session only in the session's own process.
		if !r.modern {
			toggle := &mcp.CallToolParams{Name: "everything_toggle-subscriber-updates", Arguments: map[string]any{}}
			if _, err := r.call(ctx, toggle); err != nil {
				return err
			}
			if err := r.await(ctx, "updated", 1); err != nil {
				return err
			}
			if _, err := r.call(ctx, toggle); err != nil {
				return err
			}
			r.mu.Lock()
			defer r.mu.Unlock()
			if r.resource != uri {
				return fmt.Errorf("%s was updated, want %s", r.resource, uri)
			}
		}
		return r.session.Unsubscribe(ctx, &mcp.UnsubscribeParams{URI: uri})
	})
}

// asking checks the tools that ask the client during the call.
func (r *run) asking() {
	r.calls("trigger-sampling-request", map[string]any{"prompt": "sail", "maxTokens": 9}, "a model of gosdk")
	r.calls("trigger-elicitation-request", map[string]any{}, "declined")
	r.calls("get-roots-list", map[string]any{}, "a root of gosdk")
}
