// The load generator. It writes HTTP/1.1 to TCP connections itself, so that the server is
// the bottleneck and not the generator. It verifies the status, the length and the JSON-RPC
// result of every answer. It decodes the first answer of a connection; a later answer is
// decoded only if it differs from the first in more than the id.

package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// job describes the requests of one cell of a table.
type job struct {
	server  *server
	headers []string // "Name: value"
	path    string   // the path of a webhook; "" for MCP
	tool    string   // the tool to call; "" lists the tools
	tools   int      // the expected number of tools in a list; 0 for any
}

// result contains the figures of one cell in one round.
type result struct {
	Rate, P50, P99 float64 // requests per second; microseconds
	CPU            float64 // microseconds per request, of the server and its children
	RSS            float64 // MiB at the end, of the server and its children
}

const (
	message   = "hello, this is a short echo"
	event     = `{"id":"evt_1","type":"payment","amount":1250,"note":"` + message + `"}`
	protocol  = "2025-11-25"
	firstID   = 100_000_000 // ids have nine digits, so that a request's length never changes
	warmUp    = 20          // requests of each connection before the measurement
	ioTimeout = 30 * time.Second
)

// run sends requests over a number of connections at once, for the duration d.
func (j job) run(connections int, d time.Duration) (result, error) {
	conns := make([]*conn, connections)
	for i := range conns {
		c, err := j.connect()
		if err != nil {
			return result{}, err
		}
		defer c.tcp.Close()
		for range warmUp {
			if err := c.ask(); err != nil {
				return result{}, err
			}
		}
		conns[i] = c
	}
	before, _ := j.server.usage()
	begin := time.Now()
	var wg sync.WaitGroup
	errs := make([]error, connections)
	times := make([][]float64, connections)
	for i, c := range conns {
		wg.Go(func() {
			c.tcp.SetDeadline(begin.Add(d + ioTimeout))
			for last := begin; last.Sub(begin) < d; {
				if errs[i] = c.ask(); errs[i] != nil {
					return
				}
				now := time.Now()
				times[i] = append(times[i], float64(now.Sub(last).Nanoseconds())/1e3)
				last = now
			}
		})
	}
	wg.Wait()
	took := time.Since(begin)
	after, rss := j.server.usage()
	if err := errors.Join(errs...); err != nil {
		return result{}, err
	}
	all := slices.Concat(times...)
	n := float64(len(all))
	return result{
		Rate: n / took.Seconds(),
		P50:  quantile(all, 0.5),
		P99:  quantile(all, 0.99),
		CPU:  float64((after - before).Microseconds()) / n,
		RSS:  rss,
	}, nil
}

// connect opens a connection and, for MCP, a session.
func (j job) connect() (*conn, error) {
	u, err := url.Parse(j.server.url)
	if err != nil {
		return nil, err
	}
	tcp, err := net.DialTimeout("tcp", u.Host, ioTimeout)
	if err != nil {
		return nil, err
	}
	c := &conn{job: j, tcp: tcp, in: bufio.NewReader(tcp), host: u.Host, path: u.RequestURI()}
	tcp.SetDeadline(time.Now().Add(ioTimeout))
	if j.path != "" {
		c.path = j.path
		c.request = append(c.head("POST", len(event)), event...)
		return c, nil
	}
	if err := c.open(); err != nil {
		tcp.Close()
		return nil, fmt.Errorf("%s: beginning a session: %w", j.server.name, err)
	}
	if j.tool == "" {
		c.prepare("tools/list", `{}`)
	} else {
		c.prepare("tools/call", `{"name":"`+j.tool+`","arguments":{"message":"`+message+`"}}`)
	}
	return c, nil
}

// conn is one connection. It sends the same request again and again.
type conn struct {
	job     job
	tcp     net.Conn
	in      *bufio.Reader
	host    string
	path    string
	session string

	request []byte // head and body
	id      []byte // the digits of the id inside request; nil for a webhook
	method  string
	asked   int64

	status        int
	stream        bool // the answer is an event stream
	body          []byte
	before, after []byte // the first answer's bytes before and after its id
}

// head returns the request line and the headers.
func (c *conn) head(method string, length int) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s %s HTTP/1.1\r\nHost: %s\r\n", method, c.path, c.host)
	if method == "POST" {
		fmt.Fprintf(&b, "Content-Type: application/json\r\nContent-Length: %d\r\n", length)
		b.WriteString("Accept: application/json, text/event-stream\r\n")
	} else {
		b.WriteString("Accept: text/event-stream\r\n")
	}
	if c.session != "" {
		fmt.Fprintf(&b, "Mcp-Session-Id: %s\r\nMCP-Protocol-Version: %s\r\n", c.session, protocol)
	}
	for _, h := range c.job.headers {
		b.WriteString(h + "\r\n")
	}
	b.WriteString("\r\n")
	return b.Bytes()
}

// prepare builds the request that ask sends.
func (c *conn) prepare(method, params string) {
	start := `{"jsonrpc":"2.0","id":`
	body := start + strconv.Itoa(firstID) + `,"method":"` + method + `","params":` + params + `}`
	head := c.head("POST", len(body))
	c.request = append(head, body...)
	c.id = c.request[len(head)+len(start):][:9]
	c.method = method
	c.before = nil
	c.after = nil
}

// open begins a session.
func (c *conn) open() error {
	c.prepare("initialize", `{"protocolVersion":"`+protocol+`","capabilities":{},`+
		`"clientInfo":{"name":"bench","version":"1"}}`)
	if err := c.ask(); err != nil {
		return err
	}
	note := `{"jsonrpc":"2.0","method":"notifications/initialized"}`
	if _, err := c.tcp.Write(append(c.head("POST", len(note)), note...)); err != nil {
		return err
	}
	if err := c.read(); err != nil {
		return err
	}
	if c.status != 202 && c.status != 200 {
		return fmt.Errorf("initialized: status %d: %.200s", c.status, c.body)
	}
	return nil
}

// listen turns the connection into the event stream of its session.
func (c *conn) listen() error {
	if _, err := c.tcp.Write(c.head("GET", 0)); err != nil {
		return err
	}
	if _, _, err := c.readHead(); err != nil {
		return err
	}
	if c.status != 200 || !c.stream {
		return fmt.Errorf("%s: opening a stream: status %d", c.job.server.name, c.status)
	}
	c.tcp.SetDeadline(time.Time{})
	return nil
}

// ask sends the prepared request with the next id, and verifies the answer.
func (c *conn) ask() error {
	if c.id != nil {
		c.asked++
		strconv.AppendInt(c.id[:0], firstID+c.asked, 10)
	}
	if _, err := c.tcp.Write(c.request); err != nil {
		return err
	}
	if err := c.read(); err != nil {
		return err
	}
	err := c.verify()
	if err != nil {
		err = fmt.Errorf("%s: %s%s: %w", c.job.server.name, c.method, c.job.path, err)
	}
	return err
}

// verify checks the answer that read has read.
func (c *conn) verify() error {
	if c.status/100 != 2 {
		return fmt.Errorf("status %d: %.200s", c.status, c.body)
	}
	if c.id == nil {
		return nil
	}
	answer := c.body
	if c.stream {
		answer = lastData(answer)
	}
	answer = bytes.TrimSpace(answer)
	if c.before != nil && c.repeats(answer) {
		return nil
	}
	var m struct {
		ID     json.RawMessage
		Error  json.RawMessage
		Result struct {
			Tools   []json.RawMessage
			IsError bool
			Content []struct{ Text string }
		}
	}
	if err := json.Unmarshal(answer, &m); err != nil {
		return err
	}
	if m.Error != nil || !bytes.Equal(m.ID, c.id) {
		return fmt.Errorf("want the result of %s, got %.200s", c.id, answer)
	}
	switch r := m.Result; {
	case c.method == "tools/list" && c.job.tools > 0 && len(r.Tools) != c.job.tools:
		return fmt.Errorf("%d tools, want %d", len(r.Tools), c.job.tools)
	case c.method == "tools/call" && (r.IsError || len(r.Content) == 0 || r.Content[0].Text != message):
		return fmt.Errorf("not an echo: %.200s", answer)
	}
	if i := bytes.Index(answer, append([]byte(`"id":`), c.id...)); i >= 0 {
		i += len(`"id":`)
		c.before = bytes.Clone(answer[:i])
		c.after = bytes.Clone(answer[i+len(c.id):])
	}
	return nil
}

// repeats reports whether an answer differs from the first one only in its id, which is
// that of the request.
func (c *conn) repeats(answer []byte) bool {
	rest, ok := bytes.CutPrefix(answer, c.before)
	if !ok {
		return false
	}
	rest, ok = bytes.CutPrefix(rest, c.id)
	return ok && bytes.Equal(rest, c.after)
}

// lastData returns the data of the last event of a complete stream.
func lastData(stream []byte) []byte {
	var data []byte
	for line := range bytes.Lines(stream) {
		if d, ok := bytes.CutPrefix(line, []byte("data:")); ok && len(bytes.TrimSpace(d)) > 0 {
			data = d
		}
	}
	return data
}

// readHead reads a status line and headers. The length is -1 if the headers state none.
func (c *conn) readHead() (length int, chunked bool, err error) {
	length = -1
	line, err := c.in.ReadSlice('\n')
	if err != nil {
		return
	}
	if len(line) < 12 {
		return 0, false, fmt.Errorf("no status line: %q", line)
	}
	c.status, _ = strconv.Atoi(string(line[9:12]))
	c.stream = false
	for {
		line, err = c.in.ReadSlice('\n')
		if err != nil {
			return
		}
		line = bytes.TrimRight(line, "\r\n")
		if len(line) == 0 {
			return
		}
		name, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimSpace(value)
		switch is := func(s string) bool { return len(name) == len(s) && strings.EqualFold(string(name), s) }; {
		case is("Content-Length"):
			length, _ = strconv.Atoi(string(value))
		case is("Transfer-Encoding"):
			chunked = true
		case is("Content-Type"):
			c.stream = bytes.HasPrefix(value, []byte("text/event-stream"))
		case is("Mcp-Session-Id") && c.session != string(value):
			c.session = string(value)
		}
	}
}

// read reads one answer, and its body into c.body.
func (c *conn) read() error {
	length, chunked, err := c.readHead()
	if err != nil {
		return err
	}
	c.body = c.body[:0]
	switch {
	case chunked:
		for n := int64(-1); n != 0; {
			line, err := c.in.ReadSlice('\n')
			if err != nil {
				return err
			}
			if n, err = strconv.ParseInt(string(bytes.TrimSpace(line)), 16, 32); err != nil {
				return err
			}
			if err := c.take(int(n)); err != nil {
				return err
			}
			if _, err := c.in.Discard(len("\r\n")); err != nil {
				return err
			}
		}
	case length > 0:
		return c.take(length)
	case length < 0 && c.status == 200:
		return errors.New("an answer without a length")
	}
	return nil
}

// take reads n more bytes of a body.
func (c *conn) take(n int) error {
	at := len(c.body)
	c.body = slices.Grow(c.body, n)[:at+n]
	_, err := io.ReadFull(c.in, c.body[at:])
	return err
}
