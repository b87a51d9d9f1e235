// Tests of signature.go: the providers' published vectors, what their own
// libraries sign, everything that is almost a signature, and who is let in by
// secret, by signature, by both.

package main

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// The signers here are written from the providers' documents, not with the code
// that they test.

func hmacOf(key, text string) []byte {
	mac := hmac.New(sha256.New, []byte(key))
	mac.Write([]byte(text))
	return mac.Sum(nil)
}

func gitHubSignature(key, body string) string {
	return "sha256=" + hex.EncodeToString(hmacOf(key, body))
}

// signed is the headers, as "Name: value", that sign a body by a scheme.
func signed(scheme, key, body string, at time.Time) []string {
	unix := strconv.FormatInt(at.Unix(), 10)
	switch scheme {
	case "github":
		return []string{"X-Hub-Signature-256: " + gitHubSignature(key, body)}
	case "stripe":
		return []string{"Stripe-Signature: t=" + unix + ",v1=" + hex.EncodeToString(hmacOf(key, unix+"."+body))}
	case "slack":
		return []string{"X-Slack-Request-Timestamp: " + unix, "X-Slack-Signature: v0=" + hex.EncodeToString(hmacOf(key, "v0:"+unix+":"+body))}
	case "standard":
		raw, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(key, "whsec_"))
		if err != nil {
			panic(err)
		}
		return []string{"webhook-id: msg_1", "webhook-timestamp: " + unix,
			"webhook-signature: v1," + base64.StdEncoding.EncodeToString(hmacOf(string(raw), "msg_1."+unix+"."+body))}
	}
	panic(scheme)
}

// verifySigned verifies the signature of a body by a scheme and a key.
func verifySigned(scheme, key string, h http.Header, body []byte, now time.Time) error {
	rule, err := parseSignature("@signature "+scheme+" KEY_SIGNING_SECRET", func(string) string { return key })
	if err != nil {
		return err
	}
	return rule.verify(h, body, now)
}

func isSigned(scheme, key string, h http.Header, body []byte, now time.Time) bool {
	return verifySigned(scheme, key, h, body, now) == nil
}

func headerOf(lines ...string) http.Header {
	h := http.Header{}
	for _, l := range lines {
		name, value, _ := strings.Cut(l, ": ")
		h.Add(name, value)
	}
	return h
}

// The keys of the tests, in the form each scheme has them.
var signatureKeys = map[string]string{
	"github": "It's a Secret to Everybody", "stripe": "whsec_test_secret", "slack": "8f742231b10e8888abcd99yyyzzz85a5",
	"standard": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
}

// slackBody is the request of Slack's "Verifying requests from Slack".
const slackBody = "token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V&channel_name=foobar" +
	"&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text=&response_url=https%3A%2F%2Fhooks.slack.com%2Fcommands" +
	"%2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN&trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c"

func TestSignaturePublishedVectors(t *testing.T) {
	for _, row := range []struct {
		scheme, body string
		at           int64
		headers      []string
	}{
		// GitHub, "Validating webhook deliveries".
		{"github", "Hello, World!", 0, []string{"X-Hub-Signature-256: sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"}},
		// Slack, "Verifying requests from Slack".
		{"slack", slackBody, 1531420618, []string{"X-Slack-Request-Timestamp: 1531420618",
			"X-Slack-Signature: v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503"}},
		// Standard Webhooks, the specification's reference libraries.
		{"standard", `{"test": 2432232314}`, 1614265330, []string{"webhook-id: msg_p5jXN8AQM9LWM0D4loKWxJek", "webhook-timestamp: 1614265330",
			"webhook-signature: v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="}},
	} {
		key := signatureKeys[row.scheme]
		now := time.Unix(row.at, 0)
		if err := verifySigned(row.scheme, key, headerOf(row.headers...), []byte(row.body), now); err != nil {
			t.Errorf("%s: %v", row.scheme, err)
		}
		for i := range row.body {
			body := []byte(row.body)
			body[i] ^= 1
			if verifySigned(row.scheme, key, headerOf(row.headers...), body, now) == nil {
				t.Fatalf("%s: good with byte %d changed", row.scheme, i)
			}
		}
		for _, key := range []string{"", "x", signatureKeys[row.scheme] + "x", strings.ToUpper(signatureKeys[row.scheme])} {
			if verifySigned(row.scheme, key, headerOf(row.headers...), []byte(row.body), now) == nil {
				t.Errorf("%s: good with the key %q", row.scheme, key)
			}
		}
	}
}

// Every way to be almost signed.
func TestSignatureNearMisses(t *testing.T) {
	now := time.Unix(1_700_000_000, 500_000_000)
	unix := "1700000000"
	const body = `{"a":1}`
	good := map[string][]string{}
	for scheme, key := range signatureKeys {
		good[scheme] = signed(scheme, key, body, now)
	}
	sumHex := strings.TrimPrefix(good["github"][0], "X-Hub-Signature-256: sha256=")
	v1 := func(key string) string { return hex.EncodeToString(hmacOf(key, unix+"."+body)) }
	stripe := v1(signatureKeys["stripe"])
	slack := strings.TrimPrefix(good["slack"][1], "X-Slack-Signature: v0=")
	standard := strings.TrimPrefix(good["standard"][2], "webhook-signature: v1,")
	other := signed("standard", "whsec_b3RoZXI=", body, now)[2][len("webhook-signature: "):]
	var svix []string
	for _, line := range good["standard"] {
		svix = append(svix, "svix"+strings.TrimPrefix(line, "webhook"))
	}
	for _, row := range []struct {
		what, scheme string
		headers      []string
		good         bool
	}{
		{"as it should be", "github", good["github"], true},
		{"no header", "github", nil, false},
		{"no prefix", "github", []string{"X-Hub-Signature-256: " + sumHex}, false},
		{"the prefix in capitals", "github", []string{"X-Hub-Signature-256: SHA256=" + sumHex}, false},
		{"the older header", "github", []string{"X-Hub-Signature: sha256=" + sumHex}, false},
		{"cut by one", "github", []string{"X-Hub-Signature-256: sha256=" + sumHex[:63]}, false},
		{"not hexadecimal", "github", []string{"X-Hub-Signature-256: sha256=" + sumHex[:63] + "g"}, false},
		{"in capitals", "github", []string{"X-Hub-Signature-256: sha256=" + strings.ToUpper(sumHex)}, false},
		{"a wrong one, twice", "github", []string{"X-Hub-Signature-256: sha256=" + strings.Repeat("0", 64), "X-Hub-Signature-256: sha256=" + strings.Repeat("1", 64)}, false},
		{"another key's", "github", signed("github", "other", body, now), false},
		{"the sixteenth", "github", append(slices.Repeat([]string{"X-Hub-Signature-256: sha256=0"}, 15), good["github"]...), true},
		{"the seventeenth", "github", append(slices.Repeat([]string{"X-Hub-Signature-256: sha256=0"}, 16), good["github"]...), false},
		{"in 4 KiB of headers", "github", append(slices.Clone(good["github"]), "X-Slack-Signature: "+strings.Repeat("0", 4<<10-71)), true},
		{"in more", "github", append(slices.Clone(good["github"]), "X-Slack-Signature: "+strings.Repeat("0", 4<<10-70)), false},
		{"another scheme's", "github", good["stripe"], false},

		{"as it should be", "stripe", good["stripe"], true},
		{"no header", "stripe", nil, false},
		{"no time", "stripe", []string{"Stripe-Signature: v1=" + stripe}, false},
		{"no signature", "stripe", []string{"Stripe-Signature: t=" + unix}, false},
		{"the second of two", "stripe", []string{"Stripe-Signature: t=" + unix + ",v1=" + v1("other") + ",v1=" + stripe}, true},
		{"the test scheme alone", "stripe", []string{"Stripe-Signature: t=" + unix + ",v0=" + stripe}, false},
		{"the signature before the time", "stripe", []string{"Stripe-Signature: v1=" + stripe + ",t=" + unix}, true},
		{"spaces between", "stripe", []string{"Stripe-Signature: t=" + unix + ", v1=" + stripe}, true},
		{"another time than was signed", "stripe", []string{"Stripe-Signature: t=1700000001,v1=" + stripe}, false},
		{"two times, the signed one last", "stripe", []string{"Stripe-Signature: t=1700000001,t=" + unix + ",v1=" + stripe}, false},
		{"cut", "stripe", []string{"Stripe-Signature: t=" + unix + ",v1=" + stripe[:62]}, false},
		{"in capitals", "stripe", []string{"Stripe-Signature: t=" + unix + ",v1=" + strings.ToUpper(stripe)}, false},
		{"a name in capitals", "stripe", []string{"Stripe-Signature: t=" + unix + ",V1=" + stripe}, false},
		{"a time that is none", "stripe", []string{"Stripe-Signature: t=now,v1=" + hex.EncodeToString(hmacOf(signatureKeys["stripe"], "now."+body))}, false},
		{"another key's", "stripe", signed("stripe", "other", body, now), false},

		{"as it should be", "slack", good["slack"], true},
		{"no header", "slack", nil, false},
		{"no time", "slack", good["slack"][1:], false},
		{"no signature", "slack", good["slack"][:1], false},
		{"another version", "slack", []string{good["slack"][0], "X-Slack-Signature: v1=" + slack}, false},
		{"cut", "slack", []string{good["slack"][0], "X-Slack-Signature: v0=" + slack[:60]}, false},
		{"in capitals", "slack", []string{good["slack"][0], "X-Slack-Signature: v0=" + strings.ToUpper(slack)}, false},
		{"another time than was signed", "slack", []string{"X-Slack-Request-Timestamp: 1700000001", good["slack"][1]}, false},
		{"another key's", "slack", signed("slack", "other", body, now), false},

		{"as it should be", "standard", good["standard"], true},
		{"no header", "standard", nil, false},
		{"no id", "standard", good["standard"][1:], false},
		{"no time", "standard", []string{good["standard"][0], good["standard"][2]}, false},
		{"no signature", "standard", good["standard"][:2], false},
		{"the second of two", "standard", append(good["standard"][:2:2], "webhook-signature: "+other+" v1,"+standard), true},
		{"beside another version", "standard", append(good["standard"][:2:2], "webhook-signature: v1a,xyz v1,"+standard), true},
		{"another version alone", "standard", append(good["standard"][:2:2], "webhook-signature: v2,"+standard), false},
		{"two with a comma between", "standard", append(good["standard"][:2:2], "webhook-signature: "+other+",v1,"+standard), false},
		{"cut", "standard", append(good["standard"][:2:2], "webhook-signature: v1,"+standard[:40]), false},
		{"another id than was signed", "standard", append([]string{"webhook-id: msg_2"}, good["standard"][1:]...), false},
		{"an id that takes in the time", "standard", []string{"webhook-id: msg_1." + unix, "webhook-timestamp: ", good["standard"][2]}, false},
		{"another key's", "standard", signed("standard", "whsec_b3RoZXI=", body, now), false},
		{"the headers of Svix", "standard", svix, true},
		{"the headers of Svix without a time", "standard", []string{svix[0], svix[2]}, false},
	} {
		err := verifySigned(row.scheme, signatureKeys[row.scheme], headerOf(row.headers...), []byte(body), now)
		if (err == nil) != row.good || err != nil && !errors.Is(err, errSignature) {
			t.Errorf("%s: %s: %v", row.scheme, row.what, err)
		}
	}
	for _, scheme := range []string{"stripe", "slack", "standard"} {
		for offset, good := range map[time.Duration]bool{
			0: true, -4 * time.Minute: true, 4 * time.Minute: true, -299 * time.Second: true, 300 * time.Second: true,
			-301 * time.Second: false, 301 * time.Second: false, -24 * time.Hour: false, 24 * time.Hour: false, -now.Sub(time.Unix(0, 0)): false,
			-now.Sub(time.Unix(-5, 0)): false, 290 * 365 * 24 * time.Hour: false,
		} {
			h := headerOf(signed(scheme, signatureKeys[scheme], body, now.Add(offset).Truncate(time.Second))...)
			if err := verifySigned(scheme, signatureKeys[scheme], h, []byte(body), now); (err == nil) != good {
				t.Errorf("%s: signed %v off: %v", scheme, offset, err)
			}
		}
		for _, seconds := range []string{"9223372036854775807", "-9223372036854775808", "1700000000 ", "0x6553f100", "1_700_000_000", ""} {
			if checkRecent(seconds, now) == nil {
				t.Errorf("%q is recent", seconds)
			}
		}
	}
	for why, headers := range map[string][]string{ // for the log
		"no signature in the headers of stripe": {"Stripe-Signature: t=" + unix},
		`its timestamp "" is`:                   {"Stripe-Signature: v1=" + stripe},
		`"1699999640" is 6m1s off`:              signed("stripe", signatureKeys["stripe"], body, now.Add(-6*time.Minute).Truncate(time.Second)),
		"the key in KEY_SIGNING_SECRET":         signed("stripe", "other", body, now),
	} {
		err := verifySigned("stripe", signatureKeys["stripe"], headerOf(headers...), []byte(body), now)
		if err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%v, want %q", err, why)
		}
	}
	// Keys as Standard Webhooks has them, with the prefix or without.
	raw := strings.TrimPrefix(signatureKeys["standard"], "whsec_")
	if !isSigned("standard", raw, headerOf(good["standard"]...), []byte(body), now) {
		t.Error("a key without its prefix lets no one in")
	}
	for _, key := range []string{"whsec_", "whsec_not base64!", "not base64!", "whpk_abc"} {
		for _, headers := range [][]string{good["standard"], signed("standard", "", body, now)} { // with no key at all, too
			if err := verifySigned("standard", key, headerOf(headers...), []byte(body), now); err == nil || !strings.Contains(err.Error(), "base64") {
				t.Errorf("the key %q: %v", key, err)
			}
			if isSigned("standard", key, headerOf(headers...), []byte(body), now) {
				t.Errorf("the key %q lets someone in", key)
			}
		}
	}
}

func TestParseSignature(t *testing.T) {
	for text, want := range map[string]string{ // a part of the error, "" for none
		"github GITHUB_WEBHOOK_SECRET": "", "stripe _signing_secret": "", "slack a_Signing_Secret": "", "standard K_SIGNING_SECRET": "", "  github \t K_WEBHOOK_SECRET ": "",
		"": "want a scheme and a variable", "github": "want a scheme and a variable", "github A B": "want a scheme and a variable",
		"md5 K_WEBHOOK_SECRET": `no scheme "md5": want one of github, slack, standard, stripe`, "GitHub K_WEBHOOK_SECRET": `no scheme "GitHub"`,
		"github K": "want a variable whose name ends in", "github PATH": "want a variable whose name ends in", "github K_SECRET": "want a variable whose name ends in",
	} {
		_, err := parseSignature("@signature "+text, func(string) string { return "a2V5" })
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("@signature %s: %v", text, err)
		}
	}
}

// signedModule has a method for each scheme, which is also its variable's name.
func signedModule(t *testing.T) (dir string, env map[string]string) {
	dir, env = t.TempDir(), map[string]string{}
	tools := []fakeTool{{Name: "handlePlain"}, {Name: "runs", Does: "runs"}}
	for _, scheme := range sortedKeys(signatureKeys) {
		name := "WH_" + strings.ToUpper(scheme) + "_SIGNING_SECRET"
		env[name] = signatureKeys[scheme]
		tools = append(tools, fakeTool{Name: "handle_" + scheme, Doc: "Takes it.\n@signature " + scheme + " " + name + "\nAnd more."})
	}
	writeTools(t, dir+"/m.usher", tools...)
	return dir, env
}

func TestSignatureOrSecret(t *testing.T) {
	t.Parallel()
	dir, keys := signedModule(t)
	base := t.TempDir()
	for _, accept := range []bool{false, true} {
		for _, secret := range []bool{false, true} {
			env := map[string]string{}
			for name, key := range keys {
				env[name] = key
			}
			var flags []string
			if accept {
				flags = append(flags, "-accept-signatures")
			}
			if secret {
				env[webhookSecretVar] = testSecret
			}
			d := daemonOptions{base: base, env: env}.start(t, dir, flags...)
			d.awaitReady(t)
			ran := 0
			const body = `{"a":1}`
			for _, scheme := range sortedKeys(signatureKeys) {
				for what, headers := range map[string][]string{
					"well":     signed(scheme, signatureKeys[scheme], body, time.Now()),
					"badly":    signed(scheme, signatureKeys[scheme], body+" ", time.Now()),
					"long ago": signed(scheme, signatureKeys[scheme], body, time.Now().Add(-time.Hour)),
					"not":      nil,
				} {
					if scheme == "github" && what == "long ago" {
						continue // GitHub's has no time
					}
					for _, shows := range []string{"X-Nothing: x", shown, shown + "x"} {
						what := fmt.Sprintf("%s, secret set %v, accepted %v: shows %q, signs %s", scheme, secret, accept, shows, what)
						a := d.deliver(t, "m/handle_"+scheme, body, append(slices.Clone(headers), shows)...)
						// The secret never stands in for a signature.
						if !strings.HasSuffix(what, "well") || secret && !accept && shows != shown {
							checkError(t, what, a, 401)
						} else if ran++; a.Status != 200 || without(a.Body, webhookParam) != body {
							t.Errorf("%s: %d %s", what, a.Status, a.Body)
						}
					}
				}
			}
			got := 0
			for scheme := range signatureKeys {
				got += d.runs(t, "m", "handle_"+scheme)
			}
			if got != ran {
				t.Errorf("secret set %v, accepted %v: methods ran %d times, want %d", secret, accept, got, ran)
			}
			// A signature opens the door of its own method only, and only as POST.
			signs := signed("github", signatureKeys["github"], `{}`, time.Now())
			for path, want := range map[string]int{"m/handlePlain": 200, "m/nothing": 404, "m/handle_stripe": 401} {
				if secret {
					want = 401
				}
				if a := d.deliver(t, path, `{}`, signs...); a.Status != want {
					t.Errorf("GitHub's signature at %s: %d, want %d: %s", path, a.Status, want, a.Body)
				}
			}
			signs = signed("github", signatureKeys["github"], "", time.Now())
			want := 405
			if secret {
				want = 401
			}
			if a := d.send(t, "GET", "m/handle_github", "", signs...); a.Status != want {
				t.Errorf("GET with a signature: %d, want %d", a.Status, want)
			}
			if secret && accept { // let in by a signature, what else is wrong is told
				for kind, want := range map[string]int{"text/csv": 415, "application/json": 400} {
					body := "["
					headers := append(signed("github", signatureKeys["github"], body, time.Now()), "Content-Type: "+kind)
					if a := d.send(t, "POST", "m/handle_github", body, headers...); a.Status != want {
						t.Errorf("%s, signed: %d, want %d: %s", kind, a.Status, want, a.Body)
					}
				}
			}
			d.stop(t)
		}
	}
}

// A webhook that can't check what it was told to check is served to no one.
func TestSignatureUnusable(t *testing.T) {
	t.Parallel()
	dir, base := t.TempDir(), t.TempDir()
	problems := []struct{ doc, said string }{
		{"@signature github", "@signature: want a scheme"},
		{"@signature md5 WH_KEY_SIGNING_SECRET", `no scheme "md5"`},
		{"Text.\n\t@signature  github  WH_KEY\t\n@webhook", "WH_KEY: want a variable"},
		{"@signature github WH_UNSET_SIGNING_SECRET", "WH_UNSET_SIGNING_SECRET is not set"},
		{"@signature\tgithub\tWH_EMPTY_SIGNING_SECRET", "WH_EMPTY_SIGNING_SECRET is not set"},
		{"@signature standard WH_KEY_SIGNING_SECRET", "base64"},
	}
	tools := []fakeTool{{Name: "runs", Does: "runs"}}
	for i, p := range problems {
		tools = append(tools, fakeTool{Name: fmt.Sprint("handle", i), Doc: p.doc})
	}
	writeTools(t, dir+"/m.usher", tools...)
	env := map[string]string{"WH_KEY_SIGNING_SECRET": "not base64!", "WH_EMPTY_SIGNING_SECRET": ""}
	for unshown, secret := range map[int]string{503: "", 401: testSecret} {
		env[webhookSecretVar] = secret
		d := daemonOptions{base: base, env: env}.start(t, dir, "-accept-signatures")
		d.awaitReady(t)
		for i, p := range problems {
			for _, key := range []string{"", "not base64!"} {
				path, headers := fmt.Sprint("m/handle", i), signed("github", key, `{}`, time.Now())
				checkError(t, p.doc+", secret shown", d.deliver(t, path, `{}`, append(headers, shown)...), 503)
				checkError(t, p.doc+", secret not shown", d.deliver(t, path, `{}`, headers...), unshown)
			}
			if n := d.runs(t, "m", fmt.Sprint("handle", i)); n != 0 {
				t.Errorf("%q: the method ran %d times", p.doc, n)
			}
		}
		d.stop(t)
	}
	report := modulesOf(t, dir, func(name string) string { return env[name] })
	for i, p := range problems {
		found := false
		for line := range strings.Lines(report) {
			found = found || strings.Contains(line, fmt.Sprintf("note: handle%d: ", i)) && strings.Contains(line, p.said) && strings.Contains(line, "503")
		}
		if !found {
			t.Errorf("usher modules does not say %q of %q:\n%s", p.said, p.doc, report)
		}
	}
}

// Keys are the daemon's: no module has one, whatever kind it is of.
func TestSignatureKeysAreNotHandedOn(t *testing.T) {
	names := []string{"WH_ONE_SIGNING_SECRET", "wh_two_webhook_secret", webhookSecretVar, "WH_ORDINARY"}
	env := map[string]string{}
	for _, name := range names {
		t.Setenv(name, testSecret)
		env[name] = testSecret
	}
	dir := t.TempDir()
	writeConfig(t, dir+"/.mcp.json", "c", "fixed tools=env")
	write(t, dir+"/s.usher.sh", "# Tells.\n# @param {string} name of the variable\nenv() { [ -n \"$(printenv \"$1\")\" ] && echo true || echo false; }\n")
	writeTools(t, dir+"/x.usher", fakeTool{Name: "handleIt", Doc: "@signature github WH_ONE_SIGNING_SECRET"},
		fakeTool{Name: "env", Does: "env"})
	d := daemonOptions{env: env}.start(t, dir)
	c := connect(t, d.URL)
	c.awaitTools("c_env", "s_env", "x_env", "x_handleIt")
	for _, tool := range []string{"c_env", "s_env", "x_env"} {
		for _, name := range names {
			a := c.call(tool, `{"name":"`+name+`"}`)
			if got, want := strings.HasPrefix(resultText(a.result()), "true"), name == "WH_ORDINARY"; got != want {
				t.Errorf("%s has %s: %v, want %v: %s", tool, name, got, want, a.Body)
			}
		}
	}
	checkError(t, "unsigned", d.deliver(t, "x/handleIt", `{}`, shown), 401) // checked, though no module has the key
	if a := d.deliver(t, "x/handleIt", `{}`, append(signed("github", testSecret, `{}`, time.Now()), shown)...); a.Status != 200 {
		t.Errorf("signed: %d %s", a.Status, a.Body)
	}
}

// npmFolder is a folder with the packages of testdata/webhook, installed once.
func npmFolder(t *testing.T) string {
	t.Helper()
	if _, err := exec.LookPath("npm"); err != nil {
		if os.Getenv("CI_REQUIRE") != "" {
			t.Fatal("npm is needed: ", err)
		}
		t.Skip("npm is needed: ", err)
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	hash := sha256.New()
	files := []string{"package.json", "package-lock.json", ".npmrc"}
	for _, name := range files {
		text, err := os.ReadFile("testdata/webhook/" + name)
		if err != nil {
			t.Fatal(err)
		}
		hash.Write(text)
	}
	folder := filepath.Join(cache, "usher-tests", "webhook-"+hex.EncodeToString(hash.Sum(nil)[:8]))
	if _, err := os.Stat(folder); err == nil {
		return folder
	}
	if err := os.MkdirAll(filepath.Dir(folder), 0o755); err != nil {
		t.Fatal(err)
	}
	half, err := os.MkdirTemp(filepath.Dir(folder), "half-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(half)
	for _, name := range files {
		text, err := os.ReadFile("testdata/webhook/" + name)
		if err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(half, name), string(text))
	}
	cmd := exec.Command("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund")
	cmd.Dir = half
	if out, err := cmd.CombinedOutput(); err != nil {
		if os.Getenv("CI_REQUIRE") == "" {
			t.Skipf("npm ci: %v\n%s", err, out)
		}
		t.Fatalf("npm ci: %v\n%s", err, out)
	}
	if err := os.Rename(half, folder); err != nil {
		if _, gone := os.Stat(folder); gone != nil { // else another test was faster
			t.Fatal(err)
		}
	}
	return folder
}

// What the providers' own libraries sign is let in.
func TestSignatureOfLibraries(t *testing.T) {
	slow(t)
	folder := npmFolder(t)
	t.Parallel()
	dir, env := signedModule(t)
	d := daemonOptions{env: env}.start(t, dir)
	d.awaitReady(t)
	script, err := filepath.Abs("testdata/webhook/sign.mjs")
	if err != nil {
		t.Fatal(err)
	}
	for _, scheme := range []string{"stripe", "standard"} {
		for offset, want := range map[time.Duration]int{0: 200, -4 * time.Minute: 200, 4 * time.Minute: 200, -6 * time.Minute: 401, 6 * time.Minute: 401} {
			for _, body := range []string{`{}`, `{"id":"evt_1","text":"é ☃ \ud83d\ude00"}`, " {\"a\" :\n1}\n"} {
				ask := marshal(map[string]any{"scheme": scheme, "key": signatureKeys[scheme], "body": body, "unix": time.Now().Add(offset).Unix()})
				cmd := exec.Command("node", script)
				cmd.Dir, cmd.Stdin = folder, bytes.NewReader(ask)
				out, err := cmd.Output()
				var headers []string
				if err == nil {
					err = json.Unmarshal(out, &headers)
				}
				if err != nil {
					t.Fatalf("%s: %v %s", scheme, err, out)
				}
				if a := d.deliver(t, "m/handle_"+scheme, body, headers...); a.Status != want {
					t.Errorf("%s %q signed %v off: %d, want %d: %s %q", scheme, body, offset, a.Status, want, a.Body, headers)
				}
				if a := d.deliver(t, "m/handle_"+scheme, body+" ", headers...); a.Status != 401 {
					t.Errorf("%s with a space more: %d", scheme, a.Status)
				}
			}
		}
	}
}

// No header, whatever is in it, is taken for a signature that was not made with
// the key.
func FuzzSignatureHeaders(f *testing.F) {
	now := time.Unix(1_700_000_000, 0)
	for scheme := range signatureKeys {
		f.Add(scheme, "msg_1", "1700000000", "v1,AAAA v0=00 t=1700000000,v1=00", []byte(`{}`))
	}
	f.Add("stripe", "", "", "t=1700000000,v1=", []byte{})
	f.Add("standard", "", "1700000000", "v1,", []byte{})
	f.Add("github", "", "", "sha256=", []byte{})
	f.Add("slack", "", "1700000000", "v0=", []byte{})
	f.Fuzz(func(t *testing.T, scheme, id, stamp, signature string, body []byte) {
		if _, ok := signatureSchemes[scheme]; !ok {
			return
		}
		h := http.Header{"Webhook-Id": {id}, "Webhook-Timestamp": {stamp}, "X-Slack-Request-Timestamp": {stamp},
			"Webhook-Signature": {signature}, "X-Hub-Signature-256": {signature}, "Stripe-Signature": {signature}, "X-Slack-Signature": {signature}}
		if isSigned(scheme, signatureKeys[scheme], h, body, now) {
			t.Errorf("%s: %q is good for %q", scheme, h, body)
		}
		// With the true signature somewhere in it, it is good or refused, by the
		// time and the form alone, and never for another body.
		for _, line := range signed(scheme, signatureKeys[scheme], string(body), now) {
			name, value, _ := strings.Cut(line, ": ")
			name = http.CanonicalHeaderKey(name)
			if name == "Webhook-Signature" || name == "Stripe-Signature" {
				separator := map[string]string{"Webhook-Signature": " ", "Stripe-Signature": ","}[name]
				if strings.Contains(signature, "t=") || strings.Contains(signature, separator+"v1,") {
					return
				}
				value += separator + signature
			}
			h.Set(name, value)
		}
		if !isSigned(scheme, signatureKeys[scheme], h, body, now) {
			t.Errorf("%s: %q is not good for %q", scheme, h, body)
		}
		if isSigned(scheme, signatureKeys[scheme], h, append(slices.Clone(body), 'x'), now) {
			t.Errorf("%s: %q is good for a longer body", scheme, h)
		}
	})
}

// A tag is a rule that names a scheme and a variable, or one that says what is
// wrong; there is no third.
func FuzzParseSignature(f *testing.F) {
	for _, s := range []string{"", "github K", "github  K\t", "md5 K", "github K K", "github \u00a0K", "stripe 1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		line := "@signature " + strings.NewReplacer("\n", " ", "\r", " ").Replace(s)
		r, err := parseSignature(line, func(string) string { return "a2V5" })
		if err == nil && (signatureSchemes[r.scheme] == nil || !isSecretVariable(r.variable)) {
			t.Errorf("%q: %+v", s, r)
		}
		if err != nil && strings.ContainsAny(err.Error(), "\n\r") {
			t.Errorf("%q: an error of several lines: %v", s, err)
		}
		tags := parseDoc("Text.\n"+line+"\nMore.", docRules{Hooks: true})
		if tags.Signature == "" || strings.Contains(tags.description, "@signature") {
			t.Errorf("%q: no tag in %+v", s, tags)
		}
	})
}
