// The measurements of a server under load. Each part starts the servers it needs, sends
// requests to them in turn, and adds tables and targets to the report.

package main

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"
)

var parts = []struct {
	name    string
	measure func(b *bench)
}{
	{"requests", requests},
	{"webhooks", webhooks},
	{"growth", growth},
	{"claims", rereadClaims},
	{"start", firstStart},
	{"streams", streamWeight},
	{"maker", maker},
}

// partNames returns the names of all parts.
func partNames() []string {
	var names []string
	for _, p := range parts {
		names = append(names, p.name)
	}
	return names
}

// cell is one server with one number of connections, and its figures.
type cell struct {
	work        string
	server      string // its name in the table
	connections int
	job         job

	rate, p50, p99, cpu, rss []float64 // one value for each round; the units are those of result
}

// measure runs all cells once in each round, so that other load on the machine affects all
// of them alike. Every second round runs in reverse order.
func (b *bench) measure(cells []*cell, rounds int, d time.Duration) {
	for round := range rounds {
		b.say("  round %d of %d", round+1, rounds)
		for _, c := range cells {
			r, err := c.job.run(c.connections, d)
			if err != nil {
				b.fail(fmt.Errorf("%s, %s, %d connections: %w", c.work, c.server, c.connections, err))
			}
			c.rate = append(c.rate, r.Rate)
			c.p50 = append(c.p50, r.P50)
			c.p99 = append(c.p99, r.P99)
			c.cpu = append(c.cpu, r.CPU)
			c.rss = append(c.rss, r.RSS)
		}
		slices.Reverse(cells)
	}
	if rounds%2 == 1 {
		slices.Reverse(cells)
	}
}

const (
	list20   = "tools/list, 20 tools"
	list1000 = "tools/list, 1,000 tools"
	goCall   = "tools/call through a Go worker"
)

// requests measures lists and calls: usher, with and without a claim, against its peers.
func requests(b *bench) {
	small := b.folder("small")
	b.writeSmall(small)
	usher20 := b.startUsher("usher", small, "")
	claim20 := b.claim(usher20, small)
	tools20, n20 := b.tools(usher20)

	large := b.folder("large")
	b.writeMany(large, 1000)
	usher1000 := b.startUsher("usher", large, "")
	claim1000 := b.claim(usher1000, large)
	tools1000, n1000 := b.tools(usher1000)

	type contender struct {
		name string
		job  job
	}
	lists := func(usher *server, claim, file string, n int) []contender {
		return []contender{
			{"bare", job{server: b.startPeer("bare", "-tools", file), tools: n}},
			{"usher", job{server: usher, tools: n}},
			{"usher, scoped", job{server: usher, tools: n, headers: []string{claim}}},
			{"Go SDK, raw schemas", job{server: b.startPeer("gosdk", "-raw", "-tools", file), tools: n}},
			{"mcp-go, raw schemas", job{server: b.startPeer("mcpgo", "-raw", "-tools", file), tools: n}},
		}
	}
	typed := []contender{
		{"Go SDK", job{server: b.startPeer("gosdk", "-tools", tools20), tools: n20}},
		{"mcp-go", job{server: b.startPeer("mcpgo", "-tools", tools20), tools: n20}},
	}
	works := []struct {
		name       string
		contenders []contender
	}{
		{list20, slices.Concat(lists(usher20, claim20, tools20, n20), typed)},
		{list1000, lists(usher1000, claim1000, tools1000, n1000)},
		{goCall, []contender{
			{"bare", job{server: b.startPeer("bare", "-worker"), tool: "go_echo"}},
			{"usher", job{server: usher20, tool: "go_echo"}},
			{"usher, scoped", job{server: usher20, tool: "go_echo", headers: []string{claim20}}},
			{"gateway", job{server: b.startPeer("gosdk", "-raw", "-worker", "-tools", tools20), tool: "go_echo"}},
		}},
	}
	var cells []*cell
	for _, w := range works {
		for _, connections := range []int{1, 16, 64} {
			for _, c := range w.contenders {
				cells = append(cells, &cell{work: w.name, server: c.name, connections: connections, job: c.job})
			}
		}
	}
	b.measure(cells, b.rounds, b.time)

	find := func(work, server string, connections int) *cell {
		i := slices.IndexFunc(cells, func(c *cell) bool {
			return c.work == work && c.server == server && c.connections == connections
		})
		return cells[i]
	}
	for _, w := range works {
		t := b.report.table(w.name, "",
			"server", "connections", "requests/s", "p50 µs", "p99 µs", "CPU µs/request", "RSS MiB",
			"CPU x bare", "p99 x bare", "usher's rate x its own")
		for _, c := range cells {
			if c.work != w.name {
				continue
			}
			bare := find(w.name, "bare", c.connections)
			usher := find(w.name, "usher", c.connections)
			t.add(c.server,
				fmt.Sprint(c.connections),
				fmt.Sprintf("%.0f", median(c.rate)),
				fmt.Sprintf("%.0f", median(c.p50)),
				fmt.Sprintf("%.0f", median(c.p99)),
				fmt.Sprintf("%.1f", median(c.cpu)),
				fmt.Sprintf("%.0f", median(c.rss)),
				fmt.Sprintf("%.2f", median(ratios(c.cpu, bare.cpu))),
				fmt.Sprintf("%.2f", median(ratios(c.p99, bare.p99))),
				fmt.Sprintf("%.2f", median(ratios(usher.rate, c.rate))))
		}
	}
	for _, target := range []struct {
		work string
		most float64
	}{{list20, 1.3}, {list1000, 1.15}, {goCall, 2}} {
		for _, server := range []string{"usher", "usher, scoped"} {
			ratio := median(ratios(find(target.work, server, 16).cpu, find(target.work, "bare", 16).cpu))
			b.report.atMost(target.work+": "+server+", CPU against bare", ratio, target.most, " x")
		}
	}
	for _, server := range []string{"usher", "usher, scoped"} {
		ratio := median(ratios(find(goCall, server, 64).p99, find(goCall, "bare", 64).p99))
		b.report.atMost(goCall+": "+server+", p99 at 64 connections against bare", ratio, 2, " x")
	}
	for _, target := range []struct {
		work, peer string
		least      float64
	}{{list20, "Go SDK", 10}, {list20, "mcp-go", 5}, {goCall, "gateway", 2.5}} {
		ratio := median(ratios(find(target.work, "usher", 16).rate, find(target.work, target.peer, 16).rate))
		b.report.atLeast(target.work+": rate against "+target.peer, ratio, target.least, " x")
	}
}

// webhooks measures deliveries to a method, against Debian's webhook, which starts a
// process for each delivery: /bin/true, the cheapest one.
func webhooks(b *bench) {
	const title = "Webhook deliveries"
	program, err := exec.LookPath("webhook")
	if err != nil {
		b.report.table(title, "Skipped: `webhook` is not installed (apt-get install webhook).", "")
		return
	}
	small := b.folder("small")
	b.writeSmall(small)
	usher := b.startUsher("usher", small, "")
	cells := []*cell{{
		server: "webhook, one process per delivery",
		job:    job{server: b.startWebhook(program), path: "/hooks/event"},
	}}
	for _, module := range []string{"go", "node", "python"} {
		cells = append(cells, &cell{
			server: "usher, " + module,
			job:    job{server: usher, path: "/webhook/" + module + "/handleEvent"},
		})
	}
	for _, c := range cells {
		c.work = title
		c.connections = 16
	}
	b.measure(cells, b.rounds, b.time)
	t := b.report.table(title, "16 connections; the process is `/bin/true`.",
		"server", "deliveries/s", "p50 µs", "p99 µs", "CPU µs/delivery", "RSS MiB",
		"rate x one process per delivery")
	targets := []float64{0, 8, 8, 4} // of the cells
	for i, c := range cells {
		ratio := median(ratios(c.rate, cells[0].rate))
		t.add(c.server,
			fmt.Sprintf("%.0f", median(c.rate)),
			fmt.Sprintf("%.0f", median(c.p50)),
			fmt.Sprintf("%.0f", median(c.p99)),
			fmt.Sprintf("%.1f", median(c.cpu)),
			fmt.Sprintf("%.0f", median(c.rss)),
			fmt.Sprintf("%.2f", ratio))
		if i > 0 {
			b.report.atLeast("webhook: "+c.server+", rate against one process per delivery", ratio, targets[i], " x")
		}
	}
}

// startWebhook starts Debian's webhook with one hook. It answers when the hook's process
// has ended, as usher answers when the method has returned.
func (b *bench) startWebhook(program string) *server {
	hooks := filepath.Join(b.dir, "hooks.json")
	b.write(hooks, `[{"id":"event","execute-command":"/bin/true","include-command-output-in-response":true,
		"pass-arguments-to-command":[{"source":"entire-payload"}]}]`)
	l, err := net.Listen("tcp", "127.0.0.1:0") // finds a free port: webhook does not print its own
	if err != nil {
		b.fail(err)
	}
	_, port, _ := net.SplitHostPort(l.Addr().String())
	l.Close()
	return b.started(b.start(unique("webhook"), func(string) string {
		c, err := net.Dial("tcp", "127.0.0.1:"+port)
		if err != nil {
			return ""
		}
		c.Close()
		return "http://127.0.0.1:" + port
	}, program, "-hooks", hooks, "-ip", "127.0.0.1", "-port", port))
}

// growth measures a scoped call to daemons that have many other claims, modules, sessions
// or streams, and to one that has none. It calls the daemons in turn.
func growth(b *bench) {
	const title = "A scoped call while the daemon has much else"
	rounds, factor := 9, 1
	if b.quick {
		rounds, factor = 3, 10
	}
	claims := 10_000 / factor
	modules := 1000 / factor
	sessions := 10_000 / factor
	streams := 1000 / factor
	var cells []*cell
	daemon := func(name string, others int) (*server, string) {
		workspace := b.folder("growth")
		scope := filepath.Join(workspace, "in")
		b.writeSmall(scope)
		b.writeMany(filepath.Join(workspace, "out"), others)
		s := b.startUsher("usher", workspace, "")
		j := job{server: s, tool: "go_echo", headers: []string{b.claim(s, scope)}}
		cells = append(cells, &cell{work: title, server: name, connections: 16, job: j})
		return s, scope
	}
	daemon("nothing else", 0)
	s, scope := daemon(fmt.Sprintf("%d claims", claims), 0)
	b.addClaims(s, scope, claims)
	daemon(fmt.Sprintf("%d modules outside the scope", modules), modules)
	s, _ = daemon(fmt.Sprintf("%d idle sessions", sessions), 0)
	b.openSessions(s, sessions)
	s, scope = daemon(fmt.Sprintf("%d open streams", streams), 0)
	open := b.openStreams(s, scope, streams)
	defer closeAll(open)

	b.measure(cells, rounds, b.time)
	t := b.report.table(title, fmt.Sprintf("Medians and quartiles of %d rounds.", rounds),
		"beside", "CPU µs/call", "quartiles", "p50 µs", "quartiles", "calls/s")
	judge := func(what string, alone, beside []float64) {
		most := quantile(alone, 0.75)
		b.report.verdict("a scoped call beside "+what, fmt.Sprintf("%.1f µs", median(beside)),
			fmt.Sprintf("at most the upper quartile with nothing else, %.1f µs", most), median(beside) <= most)
	}
	quartiles := func(v []float64) string {
		return fmt.Sprintf("%.1f–%.1f", quantile(v, 0.25), quantile(v, 0.75))
	}
	for i, c := range cells {
		t.add(c.server,
			fmt.Sprintf("%.1f", median(c.cpu)),
			quartiles(c.cpu),
			fmt.Sprintf("%.0f", median(c.p50)),
			quartiles(c.p50),
			fmt.Sprintf("%.0f", median(c.rate)))
		if i > 0 {
			judge(c.server+": CPU", cells[0].cpu, c.cpu)
			judge(c.server+": p50", cells[0].p50, c.p50)
		}
	}
}

// addClaims adds n records to a daemon's claims file.
func (b *bench) addClaims(s *server, scope string, n int) {
	path := filepath.Join(s.base, ".data", "claims.json")
	text, err := os.ReadFile(path)
	var records []map[string]any
	if err == nil {
		err = json.Unmarshal(text, &records)
	}
	if err != nil {
		b.fail(err)
	}
	now := time.Now().UTC()
	for i := range n {
		records = append(records, map[string]any{
			"code":      codeOf(i),
			"scopeDir":  scope,
			"label":     "one of many",
			"createdAt": now.Format(time.RFC3339),
			"expiresAt": now.Add(24 * time.Hour).Format(time.RFC3339),
		})
	}
	b.replace(path, records)
}

// codeOf returns a claim code that differs for each number.
func codeOf(i int) string {
	const symbols = "23456789ABCDEFGHJKMNPQRSTUVWXYZ"
	code := []byte("222222")
	for at := len(code) - 1; at > 0; at-- {
		code[at] = symbols[i%len(symbols)]
		i /= len(symbols)
	}
	return string(code)
}

// replace replaces a file atomically.
func (b *bench) replace(path string, content any) {
	text, err := json.Marshal(content)
	if err == nil {
		err = os.WriteFile(path+".new", text, 0o600)
	}
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		b.fail(err)
	}
}

// openSessions begins n sessions and leaves them idle.
func (b *bench) openSessions(s *server, n int) {
	c, err := job{server: s}.connect()
	for i := 0; err == nil && i < n-1; i++ {
		c.session = ""
		err = c.open()
	}
	if err != nil {
		b.fail(err)
	}
	c.tcp.Close()
}

// openStreams opens n sessions with a notification stream each. They belong to several
// claims, because the streams of one principal are limited.
func (b *bench) openStreams(s *server, scope string, n int) []*conn {
	var open []*conn
	var claim []string
	for i := range n {
		if i%125 == 0 && scope != "" {
			claim = []string{b.claim(s, scope)}
		}
		c, err := job{server: s, headers: claim}.connect()
		if err == nil {
			err = c.listen()
		}
		if err != nil {
			b.fail(err)
		}
		open = append(open, c)
	}
	return open
}

func closeAll(conns []*conn) {
	for _, c := range conns {
		c.tcp.Close()
	}
}

// rereadClaims measures the first request after a large claims.json has changed.
func rereadClaims(b *bench) {
	const records = 10_000
	small := b.folder("small")
	b.writeMany(small, 1)
	s := b.startUsher("usher", small, "")
	headers := []string{b.claim(s, small)}
	b.addClaims(s, small, records)
	c, err := job{server: s, headers: headers}.connect()
	if err != nil {
		b.fail(err)
	}
	defer c.tcp.Close()
	path := filepath.Join(s.base, ".data", "claims.json")
	var first, next []float64
	timed := func() float64 {
		begin := time.Now()
		if err := c.ask(); err != nil {
			b.fail(err)
		}
		return float64(time.Since(begin).Microseconds()) / 1e3
	}
	for i := range 4*b.rounds + 1 {
		var list []map[string]any
		text, err := os.ReadFile(path)
		if err == nil {
			err = json.Unmarshal(text, &list)
		}
		if err != nil {
			b.fail(err)
		}
		list[records]["label"] = fmt.Sprint("changed ", i)
		b.replace(path, list)
		first = append(first, timed())
		next = append(next, timed())
	}
	t := b.report.table("The first lookup after claims.json changed", "A scoped tools/list; 10,000 records.",
		"request", "median ms", "slowest ms")
	t.add("first after the change", fmt.Sprintf("%.2f", median(first)), fmt.Sprintf("%.2f", slices.Max(first)))
	t.add("second", fmt.Sprintf("%.2f", median(next)), fmt.Sprintf("%.2f", slices.Max(next)))
	b.report.atMost("first lookup after a claims.json of 10,000 records changed", median(first), 60, " ms")
}

// firstStart measures how long a daemon needs to introspect modules that it does not know,
// how long it needs when it knows them, and its memory when idle.
func firstStart(b *bench) {
	rounds, idle, many := min(b.rounds, 3), 5*time.Second, 1000
	if b.quick {
		idle, many = 500*time.Millisecond, 200
	}
	sizes := []int{20, 100, many}
	// By the number of modules, with one value for each round.
	took := make(map[int][]float64)  // ms until the first start is ready
	again := make(map[int][]float64) // ms until the second start is ready
	fresh := make(map[int][]float64) // MiB after the first start
	known := make(map[int][]float64) // MiB after the second start
	for range rounds {
		for _, n := range sizes {
			workspace := b.folder("start")
			b.writeMany(workspace, n)
			s := b.startUsher("usher", workspace, "")
			took[n] = append(took[n], float64(s.took.Microseconds())/1e3)
			time.Sleep(idle)
			fresh[n] = append(fresh[n], s.rss()/1024)
			s.stop()
			s = b.startUsher("usher", workspace, s.base)
			again[n] = append(again[n], float64(s.took.Microseconds())/1e3)
			time.Sleep(idle)
			known[n] = append(known[n], s.rss()/1024)
			s.stop()
		}
	}
	each := func(n int) float64 { return median(took[n]) / float64(n) }
	note := fmt.Sprintf("Shell modules with one method each. "+
		"The memory is the daemon's own, %v after its start.", idle)
	t := b.report.table("Start, and idle memory", note,
		"modules", "first start ms", "ms per new module", "second start ms",
		"idle MiB after the first start", "idle MiB after the second")
	for _, n := range sizes {
		t.add(fmt.Sprint(n),
			fmt.Sprintf("%.0f", median(took[n])),
			fmt.Sprintf("%.2f", each(n)),
			fmt.Sprintf("%.0f", median(again[n])),
			fmt.Sprintf("%.1f", median(fresh[n])),
			fmt.Sprintf("%.1f", median(known[n])))
	}
	b.report.atMost("idle with 20 modules", median(known[20]), 12, " MiB")
	b.report.atMost(fmt.Sprintf("idle with %d modules", many), median(known[many]), 20, " MiB")
	b.report.atMost(fmt.Sprintf("first start: a module of %d against a module of 100", many),
		each(many)/each(100), 1.25, " x")
}

// streamWeight measures the resident memory of an open notification stream, against a
// net/http handler that only waits. It includes garbage, which usher collects less often
// than Go's default.
func streamWeight(b *bench) {
	n := 1000
	if b.quick {
		n = 200
	}
	small := b.folder("small")
	b.writeMany(small, 1)
	weigh := func(s *server, scope string) float64 {
		closeAll(b.openStreams(s, scope, 1))
		before := s.rss()
		open := b.openStreams(s, scope, n)
		defer closeAll(open)
		time.Sleep(3 * time.Second)
		return (s.rss() - before) / float64(n)
	}
	t := b.report.table("An open stream", fmt.Sprintf("%d of them; resident memory.", n), "server", "KiB a stream")
	var bare, usher []float64
	for range min(b.rounds, 3) {
		bare = append(bare, weigh(b.startPeer("bare"), ""))
		usher = append(usher, weigh(b.startUsher("usher", small, ""), small))
	}
	t.add("net/http", fmt.Sprintf("%.1f", median(bare)))
	t.add("usher", fmt.Sprintf("%.1f", median(usher)))
}
