// What of the documentation is not run: it is read, and configurations of other
// programs are checked by those.

package main

import (
	"encoding/json"
	"flag"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const maxReadme = 7 << 10 // bytes

// docLanguages are those of blocks that are not run.
var docLanguages = []string{"sh", "text", "go", "py", "js", "ts", "json", "toml", "ini", "xml", "yaml", "nginx",
	"caddy", "dockerfile", "html"}

var docLink = regexp.MustCompile(`\]\(([^)#]+)(#[^)]*)?\)`)

// TestDocsRead looks at what is not run: that nothing looks like a terminal that
// the tests pass over, that JSON is JSON, and that links lead to files.
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
				t.Errorf("%s: a block of the language %q: want console or one of %v", path, language, docLanguages)
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

// TestDocsModuleNames checks that no two modules in the pages, and in the folders
// a clone has beside them, have the same name: usher would then rename both.
func TestDocsModuleNames(t *testing.T) {
	t.Parallel()
	places := make(map[string][]string) // module name → its files
	enter := func(place, file string) {
		if name, _, isModule := strings.Cut(filepath.Base(file), ".usher"); isModule &&
			!slices.Contains(places[name], place+file) {
			places[name] = append(places[name], place+file)
		}
	}
	for _, path := range docPages() {
		raw := readFile(t, path)
		for _, block := range docBlock.FindAllStringSubmatch(string(raw), -1) {
			enter(path+": ", block[1])
		}
	}
	for _, name := range exampleFiles {
		enter("examples/", name)
	}
	for _, dir := range []string{"testdata", "conformance"} {
		filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
			if err == nil && entry.Name() == "node_modules" {
				return fs.SkipDir
			}
			if filepath.Ext(path) != ".json" { // golden files
				enter("", path)
			}
			return err
		})
	}
	for name, files := range places {
		if len(files) > 1 && strings.Contains(strings.Join(files, " "), ".md: ") {
			t.Errorf("the module name %q is used twice: %s", name, strings.Join(files, ", "))
		}
	}
}

// TestDocsFlags holds that the reference has every flag of every command.
func TestDocsFlags(t *testing.T) {
	t.Parallel()
	raw := readFile(t, "docs/reference.md")
	for name, c := range commands {
		fs := flag.NewFlagSet(name, flag.ContinueOnError)
		c.setup(&app{stderr: io.Discard}, fs)
		fs.VisitAll(func(f *flag.Flag) {
			if !regexp.MustCompile("`-" + f.Name + "[ `]").Match(raw) {
				t.Errorf("docs/reference.md has no -%s, of usher %s", f.Name, name)
			}
		})
	}
}

// docChecks are configurations in docs/operations.md, each with a command that checks
// it: FILE is the file, DIR its folder.
var docChecks = [][]string{
	{"usher.service", "systemd-analyze", "verify", "FILE"},
	{"usher.service", "systemd-analyze", "security", "--offline=true", "--threshold=20", "FILE"}, // of 100
	{"nginx.conf", "nginx", "-t", "-q", "-p", "DIR", "-c", "FILE"},
	{"Caddyfile", "caddy", "validate", "--adapter", "caddyfile", "--config", "FILE"},
	{"Caddyfile.login", "caddy", "validate", "--adapter", "caddyfile", "--config", "FILE"},
	{"usher.logrotate", "logrotate", "-d", "-s", "DIR/status", "FILE"},
	{"local.usher.plist", "python3", "-c", "import plistlib, sys; plistlib.load(open(sys.argv[1], 'rb'))", "FILE"},
}

func TestDocsConfigurations(t *testing.T) {
	slow(t)
	raw := readFile(t, "docs/operations.md")
	files := map[string]string{}
	for _, block := range docBlock.FindAllStringSubmatch(string(raw), -1) {
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
			made := exec.Command("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=x",
				"-keyout", dir+"/key", "-out", dir+"/pem")
			if out, err := made.CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			here := strings.NewReplacer("/usr/local/bin/usher", exe, "/etc/ssl/usher.example.com.", dir+"/", "/var/log",
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
				args = append(args, strings.NewReplacer("FILE", dir+"/"+file, "DIR", dir).Replace(arg))
			}
			if out, err := exec.Command(check[0], args...).CombinedOutput(); err != nil || text == "" {
				t.Errorf("%v\n%s\n%s", err, out, text)
			}
		})
	}
}
