// These tests run the commands in the documentation as its readers would. In README.md, docs/ and
// examples/README.md:
//
//   - A block of the language console is a terminal. Lines that begin with "$ " are commands. The
//     lines after a command are everything that it prints, on both streams. "…" in a line matches
//     any text, and a line "…" matches any number of lines. The commands of a page run in turn, in
//     a copy of the clone's examples/. "usher serve" runs until the next "usher serve" or the end
//     of the page. "go run ." runs the usher of the tests.
//   - "File: `NAME`" above a block: the test saves the block's text in this file.
//   - The tests only read all other blocks. They do not run blocks of the language sh.
//
// The pages contain fixed ports, times and folders, and the code R3K-9QZ. The tests replace them by
// those of the run and by the latest code. If a program is not installed, the tests skip the
// sections that need it, except in CI. "go test -run TestDocs -update-docs ." writes the actual
// output into the pages; restore each "…" afterwards.

package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
)

var updateDocs = flag.Bool("update-docs", false,
	"write what was printed into the documentation")

// docsHome is the home folder in the pages; the commands are run in usher below it.
const docsHome = "/home/ada"

var docBlock = regexp.MustCompile("(?m)(?:^File: `([^`\n]+)`\n\n)?^```([^\n]*)\n((?s:.*?))^```$")

// exampleFiles lists the files of examples/. Readers save modules there, and
// modules write files: the tests copy neither.
var exampleFiles = []string{
	"README.md", "dates/.mcp.json", "dates/dates.py", "shop/notes.usher.go", "shop/orders.csv",
	"shop/tables.usher.py", "site/changes.usher.sh", "site/contact.usher.js",
}

func docPages() []string {
	pages, _ := filepath.Glob("docs/*.md")
	return append(pages, "README.md", "examples/README.md")
}

// page is a page while its commands are run.
type page struct {
	home, dir string    // the home folder; where the commands are run
	env       []string  // of the commands
	stands    []string  // what stands in the page, followed by what it is in this run, and so on
	daemon    *exec.Cmd // nil while there is none
}

// The commands in the documentation print what the pages say.
func TestDocs(t *testing.T) {
	long(t)
	var pages sync.WaitGroup
	for _, path := range docPages() {
		pages.Go(func() { t.Run(path, func(t *testing.T) { runPage(t, path) }) })
	}
	pages.Wait() // not t.Parallel, which would let all other tests begin before the pages
}

// runPage runs the commands of a page.
func runPage(t *testing.T, path string) {
	t.Helper()
	raw := readFile(t, path)
	p := newPage(t)
	text := ""
	for i, section := range strings.Split(raw, "\n## ") {
		title, _, _ := strings.Cut(section, "\n")
		t.Run(title, func(t *testing.T) {
			for text, needed := range docPrograms {
				if strings.Contains(section, text) {
					needed(t)
				}
			}
			section = p.runSection(t, section)
		})
		text += strings.Repeat("\n## ", min(i, 1)) + section
	}
	p.stopDaemon(t)
	if *updateDocs && text != raw {
		write(t, path, text)
	}
}

// docPrograms contains what a section needs if it has such a text in it. The
// examples, which most commands use, need Python and Node.
var docPrograms = map[string]func(*testing.T){
	"```console": func(t *testing.T) {
		need(t, "curl")
		need(t, "openssl")
		pythonTestVersion(t)
		nodeTestVersion(t)
	},
	".usher.ts`": nodeTestTyped,
}

// goCaches returns GOCACHE, GOPATH and GOMODCACHE.
var goCaches = sync.OnceValue(func() []string {
	out, _ := exec.Command("go", "env", "GOCACHE", "GOPATH", "GOMODCACHE").Output()
	return strings.Fields(string(out))
})

func newPage(t *testing.T) *page {
	t.Helper()
	home := tempDir(t)
	p := &page{home: home, dir: home + "/usher", stands: []string{docsHome, home}}
	must(t, os.Mkdir(home+"/bin", 0o755))
	must(t, os.Symlink(testBinary(t), home+"/bin/usher"))
	copyFiles(t, "examples", p.dir+"/examples", exampleFiles...)
	write(t, home+"/.curlrc", "silent\nshow-error\n") // as on a terminal, without its meter
	caches := goCaches()                              // which would else be below the home folder
	p.env = append(os.Environ(), "HOME="+home, "USHER_BASE=", runAsUsher+"=1", "PATH="+
		home+"/bin:"+os.Getenv("PATH"),
		"NO_COLOR=1",
		"GOCACHE="+caches[0], "GOPATH="+caches[1], "GOMODCACHE="+caches[2])
	t.Cleanup(func() { p.stopDaemon(t) })
	return p
}

// runSection runs a section, and returns it with what was really printed where
// that is not what the page says.
func (p *page) runSection(t *testing.T, section string) string {
	t.Helper()
	return docBlock.ReplaceAllStringFunc(section, func(block string) string {
		parts := docBlock.FindStringSubmatch(block)
		file, language, text := parts[1], parts[2], parts[3]
		if file != "" {
			path := filepath.Join(p.dir, file)
			if below, ok := strings.CutPrefix(file, "~/"); ok {
				path = filepath.Join(p.home, below)
			}
			write(t, path, p.inRun(text))
		}
		if language != "console" {
			return block
		}
		said := ""
		for _, step := range strings.Split("\n"+
			strings.ReplaceAll(text, "\\\n", "\\\r"), "\n$ ")[1:] {
			command, want, _ := strings.Cut(strings.TrimSuffix(step, "\n"), "\n")
			command = strings.ReplaceAll(command, "\\\r", "\\\n") // a command of several lines
			said += strings.TrimRight("$ "+command+"\n"+p.run(t, command, want), "\n") + "\n"
		}
		return strings.Replace(block, text, said, 1)
	})
}

// run runs a command and returns what it printed, as the page would have it:
// want, if that is it.
func (p *page) run(t *testing.T, command, want string) string {
	t.Helper()
	command = strings.Replace(command, "go run . ", "usher ", 1)
	if strings.Contains(command, "usher serve") {
		command = strings.Replace(command, "usher serve", "exec usher serve", 1)
		return p.serve(t, command, want)
	}
	var got string
	var err error
	await(t, "$ "+command, func() bool {
		var out []byte
		out, err = p.command(command).CombinedOutput()
		got = strings.TrimSuffix(string(out), "\n")
		followed := strings.HasPrefix(command, "usher modules") // changes, within a second
		return !followed || *updateDocs || docMatches(want, p.inPage(got))
	})
	if code := docCode.FindStringSubmatch(got); code != nil {
		dashed := code[1] + "-" + code[2]
		p.stands = append([]string{"R3K-9QZ", dashed, "R3K9QZ", code[1] + code[2],
			"r3k-9qz", strings.ToLower(dashed)},
			p.stands...)
	}
	if got = p.inPage(got); !docMatches(want, got) {
		t.Errorf("$ %s\n%s\n(%v) The page has:\n%s", command, got, err, want)
		return got
	}
	return want
}

func (p *page) command(line string) *exec.Cmd {
	cmd := exec.Command("sh", "-c", p.inRun(line))
	cmd.Dir, cmd.Env = p.dir, append(p.env, "PWD="+p.dir)
	return cmd
}

// serve starts a daemon on a free port. What the page has is what it prints to
// stdout until all modules are ready.
func (p *page) serve(t *testing.T, command, want string) string {
	t.Helper()
	p.stopDaemon(t)
	if !docAddr.MatchString(command) {
		command += " -addr 127.0.0.1:3000"
	}
	address := "127.0.0.1:" + docAddr.FindStringSubmatch(command)[2]
	port := fmt.Sprint(20_000 + rand.IntN(10_000)) // the system gives none of these to other tests
	here := "127.0.0.1:" + port
	cmd := p.command(docAddr.ReplaceAllString(command, "-addr $1:"+port))
	terminal, out := openTerminal(t)
	cmd.Stdout, cmd.Stderr = terminal, terminal
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	must(t, cmd.Start())
	p.daemon = cmd
	p.stands = append([]string{address, here}, p.stands...)
	said := func() string { return p.inPage(strings.TrimRight(out.String(), "\n")) }
	out.await(t, "all that serve prints", nil, func(out string) bool {
		return strings.Contains(out, "Ctrl-C stops usher")
	})
	if strings.Contains(out.String(), "\n  building ") { // the next start is faster
		out.await(t, "the modules", nil, func(out string) bool {
			return strings.Count(out, "  module added ") >= strings.Count(out, "\n  building ")
		})
		return p.serve(t, command, want)
	}
	if got := said(); !docMatches(want, got) {
		t.Errorf("$ %s\n%s\nThe page has:\n%s", command, got, want)
		return got
	}
	return want
}

func (p *page) stopDaemon(t *testing.T) {
	if p.daemon != nil {
		group := -p.daemon.Process.Pid
		syscall.Kill(group, syscall.SIGTERM)
		p.daemon.Wait() // the daemon is no child of a shell, which could end before it
		await(t, "the daemon's end", func() bool { return syscall.Kill(group, 0) != nil })
		p.daemon = nil
	}
}

var (
	docAddr = regexp.MustCompile(`-addr (\S*):(\d+)`)
	docCode = regexp.MustCompile(`(?:Claim code: |"code": ")([2-9A-HJKMNP-Z]{3})-?([2-9A-HJKMNP-Z]{3})`)
)

// inRun is a text of the page as it is in this run.
func (p *page) inRun(text string) string {
	return strings.NewReplacer(p.stands...).Replace(text)
}

// inPage is what was printed in this run as the page would have it.
func (p *page) inPage(text string) string {
	back := slices.Clone(p.stands)
	for pair := range slices.Chunk(back, 2) {
		slices.Reverse(pair)
	}
	return building.ReplaceAllString(strings.NewReplacer(back...).Replace(text), "")
}

// docMatches reports whether a text is what the page has, apart from times and the widths of
// columns.
func docMatches(want, got string) bool {
	comparable := func(text string) string {
		return gaps.ReplaceAllString(masked(text), "  ") + "\n"
	}
	form := regexp.QuoteMeta(comparable(want))
	form = regexp.MustCompile(`(?m)^…\n`).ReplaceAllString(form, `(?:.*\n)*?`)
	return regexp.MustCompile("^" + strings.ReplaceAll(form, "…", ".*") +
		"$").MatchString(comparable(got))
}

const maxReadme = 7 << 10 // bytes

// docLanguages are those of blocks that are not run.
var docLanguages = []string{"sh", "text", "go", "py", "js", "ts", "json", "toml", "ini",
	"xml", "yaml", "nginx",
	"caddy", "dockerfile", "html"}

var docLink = regexp.MustCompile(`\]\(([^)#]+)(#[^)]*)?\)`)

// What is not run is at least well-formed: no terminal is passed over, JSON is JSON, and
// links lead to files.
func TestDocsRead(t *testing.T) {
	t.Parallel()
	others, _ := filepath.Glob("[A-QS-Z]*.md")
	for _, path := range append(docPages(), others...) {
		raw, err := os.ReadFile(path)
		if err != nil {
			t.Errorf("%v", err)
		}
		if path == "README.md" && len(raw) > maxReadme {
			t.Errorf("%s has %d bytes, and may have %d", path, len(raw), maxReadme)
		}
		for _, block := range docBlock.FindAllStringSubmatch(string(raw), -1) {
			language, text := block[2], block[3]
			switch {
			case language == "console":
			case !slices.Contains(docLanguages, language):
				t.Errorf("%s: a block of the language %q: want console or one of %v",
					path, language, docLanguages)
			case strings.HasPrefix(text, "$ "):
				t.Errorf("%s: a terminal in a block that is not run:\n%s", path, text)
			case language == "json" && !json.Valid([]byte(text)):
				t.Errorf("%s: no JSON:\n%s", path, text)
			}
		}
		for _, link := range docLink.FindAllStringSubmatch(string(raw), -1) {
			if strings.Contains(link[1], "://") {
				continue
			}
			if _, err := os.Stat(filepath.Join(filepath.Dir(path), link[1])); err != nil {
				t.Errorf("%s: a link that leads nowhere: %s", path, link[1])
			}
		}
	}
}

// The reference and the help of a command have every flag of it. Help fits 80 columns.
func TestDocsFlags(t *testing.T) {
	t.Parallel()
	raw := readFile(t, "docs/reference.md")
	for name, c := range commands {
		fs := flag.NewFlagSet(name, flag.ContinueOnError)
		c.setup(&app{stderr: io.Discard}, fs)
		help := wantUsher(t, 0, "", name, "-h")
		check(t, "usher help "+name, help, helpText(name+".txt"))
		for line := range strings.SplitSeq(help, "\n") {
			check(t, "80 columns for "+line, len([]rune(line)) <= 80, true)
		}
		fs.VisitAll(func(f *flag.Flag) {
			if !regexp.MustCompile("`-" + f.Name + "[ `]").MatchString(raw) {
				t.Errorf("docs/reference.md has no -%s, of usher %s", f.Name, name)
			}
			checkContains(t, "usher help "+name, help, "\n  -"+f.Name)
		})
	}
}

// docChecks are configurations in docs/operations.md, each with a command that checks
// it: FILE is the file, DIR its folder.
var docChecks = [][]string{
	{"usher.service", "systemd-analyze", "verify", "FILE"},
	{"usher.service", "systemd-analyze", "security", "--offline=true", "--threshold=20",
		"FILE"}, // of 100
	{"nginx.conf", "nginx", "-t", "-q", "-p", "DIR", "-c", "FILE"},
	{"Caddyfile", "caddy", "validate", "--adapter", "caddyfile", "--config", "FILE"},
	{"Caddyfile.login", "caddy", "validate", "--adapter", "caddyfile", "--config", "FILE"},
	{"usher.logrotate", "logrotate", "-d", "-s", "DIR/status", "FILE"},
	{"local.usher.plist", "python3", "-c",
		"import plistlib, sys; plistlib.load(open(sys.argv[1], 'rb'))", "FILE"},
}

// The configurations in docs/operations.md pass the checks of their programs.
func TestDocsConfigurations(t *testing.T) {
	slow(t)
	raw := readFile(t, "docs/operations.md")
	files := map[string]string{}
	for _, block := range docBlock.FindAllStringSubmatch(raw, -1) {
		files[block[1]] = block[3]
	}
	for _, check := range docChecks {
		file := check[0]
		check := check[1:]
		t.Run(file, func(t *testing.T) {
			need(t, check[0])
			need(t, "openssl")
			exe := testBinary(t)
			dir := t.TempDir()
			made := exec.Command("openssl", "req", "-x509", "-newkey", "rsa:2048",
				"-nodes", "-subj", "/CN=x",
				"-keyout", dir+"/key", "-out", dir+"/pem")
			if out, err := made.CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			here := strings.NewReplacer("/usr/local/bin/usher", exe,
				"/etc/ssl/usher.example.com.", dir+"/", "/var/log",
				dir)
			text := here.Replace(files[file])
			if file == "nginx.conf" { // what stands around a server
				text = "pid DIR/pid; events {} http { access_log off; client_body_temp_path DIR/b; " +
					"proxy_temp_path DIR/p; fastcgi_temp_path DIR/f; " +
					"uwsgi_temp_path DIR/u; scgi_temp_path DIR/s;\n" + text + "}"
			}
			text = strings.ReplaceAll(text, "DIR", dir)
			write(t, dir+"/"+file, text)
			var args []string
			for _, arg := range check[1:] {
				args = append(args,
					strings.NewReplacer("FILE", dir+"/"+file, "DIR", dir).Replace(arg))
			}
			if out, err := exec.Command(check[0],
				args...).CombinedOutput(); err != nil || text == "" {
				t.Errorf("%v\n%s\n%s", err, out, text)
			}
		})
	}
}
