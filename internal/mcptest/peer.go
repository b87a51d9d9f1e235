package mcptest

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"os/exec"
	"strings"
	"testing"
)

// Peer speaks to a running module over its stdin and stdout, as the daemon does.
type Peer struct {
	T         *testing.T
	Stderr    bytes.Buffer
	Cancelled map[string]bool // ids of cancelled calls: whether they have been answered
	Confirmed map[string]bool // ids of calls whose cancellation the module has confirmed

	// Check returns the arguments that the daemon would send, or how it would refuse them. Show returns
	// what the daemon makes of a result. Without them, both are as they are.
	Check func(tool string, arguments json.RawMessage) (json.RawMessage, error)
	Show  func(result json.RawMessage) json.RawMessage

	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
}

// StartPeer starts a module.
func StartPeer(t *testing.T, cmd *exec.Cmd) *Peer {
	p := &Peer{
		T:         t,
		Cancelled: make(map[string]bool),
		Check:     func(_ string, sent json.RawMessage) (json.RawMessage, error) { return sent, nil },
		Show:      func(result json.RawMessage) json.RawMessage { return result },
		cmd:       cmd,
		Confirmed: make(map[string]bool),
	}
	p.cmd.Stderr = &p.Stderr
	var err error
	p.in, err = p.cmd.StdinPipe()
	Must(t, err)
	out, err := p.cmd.StdoutPipe()
	Must(t, err)
	Must(t, p.cmd.Start())
	p.out = bufio.NewScanner(out)
	p.out.Buffer(nil, 128<<20)
	return p
}

// Send sends a line.
func (p *Peer) Send(line string) {
	_, err := io.WriteString(p.in, line+"\n")
	Must(p.T, err)
}

// SendCall calls a tool, and waits for nothing.
func (p *Peer) SendCall(id, tool, arguments string) {
	p.Send(RPC(id, "tools/call", string(CallParams(tool, json.RawMessage(arguments)))))
}

// CancelCall cancels a call; answers to it are passed over from then on.
func (p *Peer) CancelCall(id string) {
	p.Cancelled[id] = false
	p.Send(cancellation(id))
}

// Next returns the next line that the module writes, except confirmations of cancelled calls and reports
// of parts.
func (p *Peer) Next() string {
	for {
		if !p.out.Scan() {
			Stop(p.T, "the module ended: %v\n%s", p.out.Err(), p.Stderr.String())
		}
		line := p.out.Text()
		switch StringField(line, "method") {
		case "usher/cancelled":
			p.Confirmed[string(Field(line, "params", "requestId"))] = true
		case "usher/parts":
		default:
			return line
		}
	}
}

// Answer reads the answer to a call that was not cancelled, and returns the call's id and its result or
// error.
func (p *Peer) Answer() (id, result string) {
	for {
		line := p.Next()
		id = string(Field(line, "id"))
		if _, ok := p.Cancelled[id]; ok {
			p.Cancelled[id] = true
			continue
		}
		if e := Field(line, "error"); e != nil {
			return id, string(e)
		}
		return id, string(p.Show(Field(line, "result")))
	}
}

// WantAnswer reads an answer, which must be that of a call, and contain a text.
func (p *Peer) WantAnswer(id, want string) {
	got, result := p.Answer()
	if got != id || !strings.Contains(result, want) {
		report(p.T, "the answer to %s is %.2000s, want that to %s, with %s", got, result, id, want)
	}
}

// Call calls a tool as the daemon does, and returns its result or error.
func (p *Peer) Call(tool, arguments string) string {
	checked, err := p.Check(tool, json.RawMessage(arguments))
	if err != nil {
		return ShownFailure(err.Error())
	}
	p.SendCall("7", tool, string(checked))
	id, result := p.Answer()
	if id != "7" {
		Stop(p.T, "%s: answer is for %s: %s", tool, id, result)
	}
	return result
}

// CallText returns the text of a call's result.
func (p *Peer) CallText(tool, arguments string) string {
	return resultText(json.RawMessage(p.Call(tool, arguments)))
}

// Request makes a request and returns its result.
func (p *Peer) Request(method, params string) json.RawMessage {
	p.Send(RPC("0", method, params))
	line := p.Next()
	if Field(line, "result") == nil {
		Stop(p.T, "%s: %s", method, line)
	}
	return Field(line, "result")
}

// Tools returns the definitions of the module's tools.
func (p *Peer) Tools() (tools []json.RawMessage) {
	Must(p.T, json.Unmarshal(Field(p.Request("tools/list", "{}"), "tools"), &tools))
	return tools
}

// End closes stdin and returns what was written since the last line read.
func (p *Peer) End() string {
	p.in.Close()
	var rest []string
	for p.out.Scan() {
		rest = append(rest, p.out.Text())
	}
	if err := p.cmd.Wait(); err != nil {
		report(p.T, "exit: %v\n%s", err, p.Stderr.String())
	}
	return strings.Join(rest, "\n")
}

// NextAsk reads the next line, which must be a request to the client for a call, with these params unless
// they are "". It returns the request's id, as JSON.
func (p *Peer) NextAsk(call, method, params string) string {
	line := p.Next()
	got := Field(line, "params")
	if StringField(line, "method") != method || string(Field(got, "_meta", "usher/call")) != call ||
		params != "" && Canonical(got) != Canonical(params) {
		Stop(p.T, "got %s, want call %s to ask for %s: %s", line, call, method, params)
	}
	return string(Field(line, "id"))
}

// Reply answers a request of the module; result is JSON.
func (p *Peer) Reply(ask, result string) {
	p.Send(`{"jsonrpc":"2.0","id":` + ask + `,"result":` + result + `}`)
}

// Canonical returns JSON with its keys sorted, its numbers unchanged and no white space. It returns
// invalid JSON unchanged.
func Canonical[T ~[]byte | ~string](raw T) string {
	decoder := json.NewDecoder(strings.NewReader(string(raw)))
	decoder.UseNumber()
	var v any
	if !json.Valid([]byte(raw)) || decoder.Decode(&v) != nil {
		return string(raw)
	}
	return string(encode(v))
}

// ShownText, ShownObject and ShownFailure return the results that show a text, a JSON object and the text
// of an error.
func ShownText(text string) string { return string(encode(textResult(text))) }

func ShownObject(object string) string { return string(encode(structured(object))) }

func ShownFailure(text string) string { return string(encode(failure(text))) }
