// What usher serve prints on a terminal.

package main

import (
	"bufio"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"unicode/utf8"
	"unsafe"
)

// openTerminal opens a terminal, and collects what is written to it.
func openTerminal(t *testing.T) (terminal *os.File, out *output) {
	t.Helper()
	controller, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	must(t, err)
	var n, unlocked uint32
	for request, value := range map[uintptr]*uint32{
		syscall.TIOCGPTN:   &n,
		syscall.TIOCSPTLCK: &unlocked,
	} {
		_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, controller.Fd(), request,
			uintptr(unsafe.Pointer(value)))
		check(t, "errno", errno, 0)
	}
	terminal, err = os.OpenFile(fmt.Sprint("/dev/pts/", n), os.O_RDWR|syscall.O_NOCTTY, 0)
	must(t, err)
	out = &output{}
	go func() { // until the terminal is closed
		for lines := bufio.NewScanner(controller); lines.Scan(); {
			fmt.Fprintln(out, strings.TrimSuffix(lines.Text(), "\r"))
		}
	}()
	t.Cleanup(func() { terminal.Close() })
	return terminal, out
}

// unlimited matches records.
var unlimited = regexp.MustCompile(`^\d\d:`)

// The banner lists each module once, as ready or failed. Each later record is one line.
func TestBanner(t *testing.T) {
	long(t)
	const claim, mcp = "usher claim -base ", "claude mcp add --transport http usher "
	const empty = "no modules here; create one: usher new "
	for _, tt := range []struct {
		flags, secret string
		says, omits   []string
	}{
		{"", "", []string{mcp + "http", "Webhooks need no secret"},
			[]string{claim, empty, "level="}},
		{"-accept-signatures", "s",
			[]string{empty, "X-Webhook-Secret or a verified signature."}, nil},
		{"-require-claim -watch", "", []string{claim, "Webhooks are off"}, []string{mcp}},
	} {
		t.Run(tt.flags+tt.secret, func(t *testing.T) {
			t.Parallel()
			dir, base := t.TempDir(), t.TempDir()
			many := "tools=x," + strings.Repeat("y", 90)
			hosts := !slices.Contains(tt.says, empty)
			if hosts {
				writeFake(t, dir+"/a_name_of_20_letters.usher", "good tools=x")
				writeFake(t, dir+"/db.usher", "good slowstart=500 "+many)
				write(t, dir+"/f.usher.go", "package f\n")
				writeTools(t, dir+"/hooks.usher",
					"handle_x: @signature github X_SIGNING_SECRET")
				tt.says = append(tt.says,
					"  ready    a_name_of_20_letters a_name_of_20_letters_x\n",
					"  ready    db                   db_x, db_yyy",
					"! failed   f\n           module \"f\" can't be built: "+
						"f.usher.go:1: package f: want package main\n",
					"  ready    hooks                hooks_handle_x\n"+
						"           handle_x: deliveries fail: @signature: X_SIGNING_SECRET is not set\n",
					"usher modules -base \"\" \"\"\n\nWebhooks")
			}
			terminal, shown := openTerminal(t)
			o := daemonOptions{base: base, env: map[string]string{}, terminal: terminal}
			if tt.secret != "" {
				o.env[webhookSecretVar] = tt.secret
			}
			d := o.launch(t, dir, strings.Fields(tt.flags)...)
			await := func(text string, count int) {
				t.Helper()
				shown.await(t, text, d.done, func(out string) bool {
					return strings.Count(out, text) == count
				})
			}
			await("Ctrl-C stops usher.", 1)
			if hosts {
				writeFake(t, dir+"/db.usher", "good  "+many) // a new version is reported
				await("  module changed  module=db  kind=executable  file=db.usher  tools=2\n", 1)
				write(t, dir+"/f.usher.go", "package g\n")
				await(" ! module failed  module=f  kind=go  file=f.usher.go  why=\"module \\\"f\\\" can't", 1)
			}
			out := strings.NewReplacer(dir, "", base, "").Replace(shown.String())
			checkContains(t, "the banner", out, tt.says...)
			checkOmits(t, "the banner", out, tt.omits...)
			for line := range strings.Lines(out) {
				line = strings.TrimSuffix(line, "\n")
				wide := utf8.RuneCountInString(line) > 80 && !unlimited.MatchString(line)
				if strings.TrimRight(line, " ") != line || wide {
					t.Errorf("a line that ends in blanks, or of over 80 columns: %q", line)
				}
			}
			if tt.flags == "" {
				url, _, _ := strings.Cut(out[strings.Index(out, "http"):], "\n")
				connect(t, url).Call("a_name_of_20_letters_x", "")
				await("  module=a_name_of_20_letters  method=x  outcome=done  ", 1)
				checkOmits(t, "the terminal", shown.String(), "nil")
			}
		})
	}
}
