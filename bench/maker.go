// The measurements of a person who writes modules: how soon a start offers tools,
// and how soon an edit reaches the next call, the list, and the clients.

package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"time"
)

// language describes the modules of one language in the maker's workspace.
type language struct {
	name   string
	ending string
	count  int
	source string // contains NAME for the method's name and WORD for its answer
}

var languages = []language{
	{
		name: "Python", ending: ".py", count: 40,
		source: "def NAME():\n    \"\"\"Answers with a word.\"\"\"\n    return 'WORD'\n",
	},
	{
		name: "JavaScript", ending: ".mjs", count: 40,
		source: "/** Answers with a word. */\nexport function NAME() {\n  return 'WORD'\n}\n",
	},
	{
		name: "Go", ending: ".go", count: 20,
		source: "//go:build usher\n\npackage main\n\n" +
			"// NAME answers with a word.\nfunc NAME() string { return \"WORD\" }\n",
	},
	{
		name: "shell", ending: ".sh", count: 20,
		source: "# Answers with a word.\nNAME() {\n\tprintf WORD\n}\n",
	},
}

// path returns the path of the module with a number.
func (l language) path(workspace string, i int) string {
	return filepath.Join(workspace, l.module(i)+".usher"+l.ending)
}

// module returns the name of the module with a number.
func (l language) module(i int) string {
	return fmt.Sprintf("%s%d", strings.ToLower(l.name), i)
}

// tool returns the name of a module's tool for a method.
func (l language) tool(i int, method string) string {
	return l.module(i) + "_" + method
}

// text returns a module's source text.
func (l language) text(method, word string) string {
	if l.name == "Go" {
		method = strings.ToUpper(method[:1]) + method[1:]
	}
	return strings.NewReplacer("NAME", method, "WORD", word).Replace(l.source)
}

// maker measures starts of 120 modules in four languages, edits, and memory.
func maker(b *bench) {
	workspace := b.folder("maker")
	total, files := 0, 0
	for _, l := range languages {
		for i := range l.count {
			b.write(l.path(workspace, i), l.text("say", "first"))
		}
		total += l.count
		if l.name != "Go" {
			files += l.count
		}
	}
	base := b.folder("base")
	b.env = []string{"GOCACHE=" + b.folder("gocache")}
	defer func() { b.env = nil }()

	starts := b.report.table(fmt.Sprintf("A start with %d modules", total),
		"40 Python, 40 JavaScript, 20 Go and 20 shell modules. Seconds from the start of the process. "+
			"The first start has an empty base folder and an empty build cache.",
		"start", "first list with a tool", "all but Go", "all")
	var s *server
	for _, start := range []string{"first", "second"} {
		if s != nil {
			s.stop()
		}
		begin := time.Now()
		s = b.startMaker(workspace, base)
		some, most, all := b.watchStart(s, begin, files, total)
		b.say("  %s start: %v", start, all.Round(time.Millisecond))
		starts.add(start, seconds(some), seconds(most), seconds(all))
		if start == "first" {
			b.report.atMost("first start of 120 modules: all but Go", most.Seconds(), 10, " s")
		}
	}

	memory := b.report.table(fmt.Sprintf("Memory with %d modules", total),
		"Resident memory of the daemon and all its processes.", "when", "MiB")
	weigh := func(when string) {
		_, rss := s.usage()
		memory.add(when, fmt.Sprintf("%.0f", rss))
	}
	weigh("after the second start")
	c := b.dial(s)
	for _, l := range languages {
		for i := range l.count {
			c.call(l.tool(i, "say"))
		}
	}
	weigh("after a call to each module")

	b.edits(c, workspace)
	b.checkout(c, workspace, total)
	time.Sleep(makerIdle + 15*time.Second)
	weigh("idle, after -idle has stopped the processes")
}

const makerIdle = 30 * time.Second

// startMaker starts usher on a workspace. It returns when the address is known.
func (b *bench) startMaker(workspace, base string) *server {
	argv := []string{b.usher, "serve", "-addr", "127.0.0.1:0", "-idle", makerIdle.String(), "-base", base, workspace}
	return b.started(b.start(unique("usher"), func(said string) string {
		_, url, found := strings.Cut(said, " url=")
		fields := strings.Fields(url)
		if !found || len(fields) == 0 {
			return ""
		}
		return fields[0]
	}, argv...))
}

// watchStart lists the tools until all are there. It returns the times since begin
// of the first list with a tool, with at least most tools, and with all.
func (b *bench) watchStart(s *server, begin time.Time, most, all int) (first, mostAt, allAt time.Duration) {
	c := b.dial(s)
	for allAt == 0 {
		n := len(c.tools())
		now := time.Since(begin)
		if n > 0 && first == 0 {
			first = now
		}
		if n >= most && mostAt == 0 {
			mostAt = now
		}
		if n >= all {
			allAt = now
		}
		if now > startPatience {
			b.fail(fmt.Errorf("%d of %d tools after %v", n, all, startPatience))
		}
		time.Sleep(20 * time.Millisecond)
	}
	return first, mostAt, allAt
}

// edits measures, for each language, the first call after a save, and the time
// until an open stream carries list_changed after a method was added.
func (b *bench) edits(c *client, workspace string) {
	note := fmt.Sprintf("Medians of %d edits of one module. Each call met the edit.", b.rounds)
	t := b.report.table("An edit", note,
		"module", "save and call ms", "a call without an edit ms", "save to list_changed ms")
	changed := c.listen()
	for _, l := range languages {
		path, tool := l.path(workspace, 0), l.tool(0, "say")
		var edited, plain, noticed []float64
		for i := range b.rounds {
			word := fmt.Sprint("edit", i)
			b.write(path, l.text("say", word))
			begin := time.Now()
			if got := c.call(tool); got != word {
				b.fail(fmt.Errorf("%s answered %q after an edit, want %q", tool, got, word))
			}
			edited = append(edited, milliseconds(begin))
			begin = time.Now()
			c.call(tool)
			plain = append(plain, milliseconds(begin))
		}
		for i := range b.rounds {
			c.tools() // usher notifies a client only of lists that it has requested
			drain(changed)
			b.write(path, l.text("say", "first")+"\n"+l.extra(fmt.Sprint("more", i)))
			begin := time.Now()
			select {
			case <-changed:
				noticed = append(noticed, milliseconds(begin))
			case <-time.After(startPatience):
				b.fail(fmt.Errorf("no list_changed after an edit of %s", path))
			}
		}
		t.add(l.name,
			fmt.Sprintf("%.0f", median(edited)),
			fmt.Sprintf("%.1f", median(plain)),
			fmt.Sprintf("%.0f", median(noticed)))
	}
}

// extra returns the source of another method for a module.
func (l language) extra(method string) string {
	text := l.text(method, "more")
	if _, declaration, ok := strings.Cut(text, "package main\n"); ok {
		return declaration
	}
	return text
}

// drain waits until no list_changed has arrived for a second.
func drain(changed <-chan struct{}) {
	for {
		select {
		case <-changed:
		case <-time.After(time.Second):
			return
		}
	}
}

// checkout renames the methods of 100 modules at once, as a git checkout may do, and
// measures the time until the list contains all new names.
func (b *bench) checkout(c *client, workspace string, total int) {
	b.idle(c)
	n := 0
	begin := time.Now()
	for _, l := range languages {
		if l.name == "Go" {
			continue
		}
		for i := range l.count {
			b.write(l.path(workspace, i), l.text("tell", "checked out"))
			n++
		}
	}
	for {
		renamed := 0
		for _, name := range c.tools() {
			if strings.HasSuffix(name, "_tell") {
				renamed++
			}
		}
		if renamed == n {
			break
		}
		if time.Since(begin) > startPatience {
			b.fail(fmt.Errorf("%d of %d edits are listed after %v", renamed, n, startPatience))
		}
		time.Sleep(20 * time.Millisecond)
	}
	took := time.Since(begin)
	t := b.report.table("A checkout", "", "edit", "s")
	t.add(fmt.Sprintf("%d files at once, until all are listed", n), seconds(took))
}

// idle waits until the list of tools has not changed for two seconds.
func (b *bench) idle(c *client) {
	last, since := 0, time.Now()
	for time.Since(since) < 2*time.Second {
		if n := len(c.tools()); n != last {
			last, since = n, time.Now()
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// client is an MCP session over net/http. It is precise enough to measure milliseconds.
type client struct {
	b       *bench
	url     string
	session string
}

// dial opens a session.
func (b *bench) dial(s *server) *client {
	c := &client{b: b, url: s.url}
	c.request("initialize", map[string]any{
		"protocolVersion": protocol,
		"capabilities":    map[string]any{},
		"clientInfo":      map[string]any{"name": "bench", "version": "1"},
	}, nil)
	return c
}

// call calls a tool without arguments and returns its text.
func (c *client) call(tool string) string {
	var result struct {
		Content []struct{ Text string }
		IsError bool
	}
	c.request("tools/call", map[string]any{"name": tool, "arguments": map[string]any{}}, &result)
	if result.IsError || len(result.Content) == 0 {
		c.b.fail(fmt.Errorf("%s: %v", tool, result.Content))
	}
	return result.Content[0].Text
}

// tools returns the names of the listed tools.
func (c *client) tools() []string {
	var result struct {
		Tools []struct{ Name string }
	}
	c.request("tools/list", map[string]any{}, &result)
	var names []string
	for _, t := range result.Tools {
		names = append(names, t.Name)
	}
	return names
}

// request sends a request and decodes its result.
func (c *client) request(method string, params, result any) {
	body, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
	if err != nil {
		c.b.fail(err)
	}
	resp := c.do("POST", bytes.NewReader(body))
	defer resp.Body.Close()
	if id := resp.Header.Get("Mcp-Session-Id"); id != "" {
		c.session = id
	}
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		c.b.fail(err)
	}
	if strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		text = lastData(text)
	}
	var answer struct {
		Result json.RawMessage
		Error  json.RawMessage
	}
	if err := json.Unmarshal(text, &answer); err != nil || answer.Error != nil {
		c.b.fail(fmt.Errorf("%s: %s %.300s", method, resp.Status, text))
	}
	if result != nil {
		if err := json.Unmarshal(answer.Result, result); err != nil {
			c.b.fail(err)
		}
	}
}

// listen opens the session's stream. The channel gets a value for each list_changed.
func (c *client) listen() <-chan struct{} {
	resp := c.do("GET", nil)
	changed := make(chan struct{}, 1000)
	go func() { // ends with the server
		defer resp.Body.Close()
		lines := bufio.NewScanner(resp.Body)
		for lines.Scan() {
			if strings.Contains(lines.Text(), "tools/list_changed") {
				changed <- struct{}{}
			}
		}
	}()
	return changed
}

// do sends an HTTP request.
func (c *client) do(method string, body io.Reader) *http.Response {
	req, err := http.NewRequest(method, c.url, body)
	if err != nil {
		c.b.fail(err)
	}
	req.Header.Set("Accept", "text/event-stream")
	if method == "POST" {
		req.Header.Set("Accept", "application/json, text/event-stream")
		req.Header.Set("Content-Type", "application/json")
	}
	if c.session != "" {
		req.Header.Set("Mcp-Session-Id", c.session)
		req.Header.Set("MCP-Protocol-Version", protocol)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		c.b.fail(err)
	}
	return resp
}

// seconds formats a duration for a table.
func seconds(d time.Duration) string { return fmt.Sprintf("%.2f", d.Seconds()) }

// milliseconds returns the time since an instant, in ms.
func milliseconds(since time.Time) float64 {
	return float64(time.Since(since).Microseconds()) / 1e3
}
