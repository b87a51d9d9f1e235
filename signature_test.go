// Tests of signature.go: the providers' published samples, deliveries signed as their documents say,
// near-valid signatures, and which senders usher admits by secret, by signature or by both.

package main

import (
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// providers returns how the providers of docs/webhooks.md sign, by their own documents. A form is the
// headers of a delivery, in which HEX(…) and BASE64(…) are HMACs with the key. ID and TIME are the delivery's.
var providers = sync.OnceValue(func() (forms map[string]string) {
	text, err := os.ReadFile("testdata/signatures/providers.json")
	if err == nil {
		err = json.Unmarshal(text, &forms)
	}
	if err != nil {
		panic(err)
	}
	return forms
})

const standardSigned = "webhook-id: ID\nwebhook-timestamp: TIME\n" +
	"webhook-signature: v1,AAAA v1,BASE64(ID.TIME.BODY)"

// signedText matches a signature in a form.
var signedText = regexp.MustCompile(`(HEX|BASE64|ED25519)\(.*?\)`)

// hmacOf signs from the providers' documents, not with the code under test.
func hmacOf(key, text string) []byte {
	mac := hmac.New(sha256.New, []byte(key))
	mac.Write([]byte(text))
	return mac.Sum(nil)
}

// sign returns the headers of a form, as "Name: value", for a body. The raw key signs; the variable
// contains what shownKey makes of it.
func sign(form, key, body string, at time.Time) []string {
	text := strings.NewReplacer("KEY", key, "ID", "msg_1", "TIME", strconv.FormatInt(at.Unix(), 10))
	form = signedText.ReplaceAllStringFunc(text.Replace(form), func(call string) string {
		kind, message, _ := strings.Cut(strings.TrimSuffix(call, ")"), "(")
		message = strings.ReplaceAll(message, "BODY", body)
		switch kind {
		case "HEX":
			return hex.EncodeToString(hmacOf(key, message))
		case "BASE64":
			return base64.StdEncoding.EncodeToString(hmacOf(key, message))
		}
		return hex.EncodeToString(ed25519.Sign(privateKey(key), []byte(message)))
	})
	return strings.Split(form, "\n")
}

func privateKey(key string) ed25519.PrivateKey {
	seed := sha256.Sum256([]byte(key))
	return ed25519.NewKeyFromSeed(seed[:])
}

// shownKey returns a raw key as a provider shows it.
func shownKey(scheme, key string) string {
	switch scheme {
	case "standard":
		return "whsec_" + base64.StdEncoding.EncodeToString([]byte(key))
	case "discord":
		return hex.EncodeToString(privateKey(key).Public().(ed25519.PublicKey))
	}
	return key
}

// schemes contains a provider for each of the older schemes.
var schemes = map[string]string{
	"github":   "GitHub",
	"slack":    "Slack",
	"standard": "Supabase Auth",
	"stripe":   "Stripe",
}

// signed returns the headers that sign a body by a scheme.
func signed(scheme, key, body string, at time.Time) []string {
	return sign(providers()[schemes[scheme]], key, body, at)
}

// verifySigned verifies the signature of a body by a scheme and a key.
func verifySigned(scheme, key string, h http.Header, body []byte, now time.Time) error {
	rule, err := parseSignature("@signature "+scheme+" KEY_SIGNING_SECRET",
		func(string) string { return key })
	if err != nil {
		return err
	}
	return rule.verify(h, body, now)
}

func headerOf(lines ...string) http.Header {
	h := http.Header{}
	for _, l := range lines {
		name, value, _ := strings.Cut(l, ": ")
		h.Add(name, value)
	}
	return h
}

// The samples that the providers publish are good, and no other body is.
func TestSignaturePublishedVectors(t *testing.T) {
	for _, row := range []struct {
		scheme, key, body string
		at                int64
		headers           []string
	}{
		// GitHub, "Validating webhook deliveries".
		{"github", "It's a Secret to Everybody", "Hello, World!", 0, []string{
			"X-Hub-Signature-256: sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"}},
		// Bitbucket, "Manage webhooks".
		{"github", "It's a Secret to Everybody", "Hello World!", 0, []string{
			"X-Hub-Signature: sha256=a4771c39fbe90f317c7824e83ddef3caae9cb3d976c214ace1f2937e133263c9"}},
		// Stripe's own library for Node.js, stripe 23.1.0: generateTestHeaderString.
		{"stripe", "whsec_test_secret", "{\"text\":\"é ☃\",\n \"a\" : 1}\n", 1700000000, []string{
			"Stripe-Signature: t=1700000000," +
				"v1=b89916e4d9501dd75bf1ed032f65c6726aad6455694324984f36ec604846d6bb"}},
		// Slack, "Verifying requests from Slack".
		{"slack", "8f742231b10e8888abcd99yyyzzz85a5", readFile(t, "testdata/signatures/slack.txt"),
			1531420618, []string{
				"X-Slack-Request-Timestamp: 1531420618",
				"X-Slack-Signature: v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503"}},
		// Standard Webhooks, the specification's reference libraries.
		{"standard", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", `{"test": 2432232314}`, 1614265330,
			[]string{"webhook-id: msg_p5jXN8AQM9LWM0D4loKWxJek",
				"webhook-timestamp: 1614265330",
				"webhook-signature: v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="}},
	} {
		now := time.Unix(row.at, 0)
		must(t, verifySigned(row.scheme, row.key, headerOf(row.headers...), []byte(row.body), now))
		for i := range row.body {
			body := []byte(row.body)
			body[i] ^= 1
			if verifySigned(row.scheme, row.key, headerOf(row.headers...), body, now) == nil {
				t.Fatalf("%s: good with byte %d changed", row.scheme, i)
			}
		}
	}
}

// A signature is good by the scheme's headers, time and text alone; what is almost signed is not.
func TestNearlySignedIsUnsigned(t *testing.T) {
	now := time.Unix(1_700_000_000, 500_000_000)
	const atSlack, sig = "X-Slack-Request-Timestamp: ", "\nX-Slack-Signature: v0="
	for _, row := range []struct {
		scheme, form string
		good         bool
	}{
		{"github", "X-Hub-Signature-256: HEX(BODY)", true},
		{"github", "X-Hub-Signature-256: sha256=00\nX-Hub-Signature-256: 0=HEX(BODY) ;, x", true},
		{"github", "X-Hub-Signature-256: sha256=HEX(BODY)00", false},
		{"github", "Stripe-Signature: t=TIME,v1=HEX(TIME.BODY)", false},
		{"stripe", "Stripe-Signature: v1=HEX(TIME.BODY)", false},
		{"stripe", "Stripe-Signature: t=1700000001,v1=HEX(TIME.BODY)", false},
		{"stripe", "Stripe-Signature: t=1700000001,t=TIME,v1=HEX(TIME.BODY)", false},
		{"stripe", "Stripe-Signature: t=now,v1=HEX(now.BODY)", false},
		{"stripe", "Stripe-Signature: t=TIME,v1=HEX(BODY)", false},
		{"stripe X-Own", "Stripe-Signature: t=TIME,v1=HEX(TIME.BODY)", false},
		{"slack", atSlack + "TIME" + sig + "HEX(v1:TIME:BODY)", false},
		{"slack", atSlack + "1700000001" + sig + "HEX(v0:TIME:BODY)", false},
		{"zoom", providers()["Slack"], false},
		{"standard", "webhook-timestamp: TIME\nwebhook-signature: v1,BASE64(ID.TIME.BODY)", false},
		{"standard", strings.Replace(standardSigned, "ID", "msg_2", 1), false},
		{"standard", "webhook-id: ID.TIME\nwebhook-timestamp: \n" +
			"webhook-signature: v1,BASE64(ID.TIME.BODY)", false}, // an id that contains the time
		{"standard", "webhook-id: ID.1\nwebhook-timestamp: TIME\n" +
			"webhook-signature: v1,BASE64(ID.1.TIME.BODY)", false}, // cut out of another body
		{"standard", "svix-id: ID\nsvix-signature: v1,BASE64(ID.TIME.BODY)", false},
		{"hmac x-own", "X-Own: w=BASE64(BODY),00", true},
		{"hmac x-own", "X-Other: HEX(BODY)", false},
		{"token x-own", "X-Own: KEY", true},
		{"token x-own", "X-Own: KEYx", false},
		{"token x-own", "X-Own: w=KEY", false},
		{"token x-own", "X-Own: x\nX-Own: KEY", false},
		{"discord", "X-Signature-Timestamp: TIME\nX-Signature-Ed25519: HEX(TIMEBODY)", false},
		{"discord", "X-Signature-Timestamp: 1700000001\nX-Signature-Ed25519: ED25519(TIMEBODY)", false},
	} {
		t.Run(row.scheme+", "+row.form, func(t *testing.T) {
			h := headerOf(sign(row.form, "a key", "{}", now)...)
			key := shownKey(strings.Fields(row.scheme)[0], "a key")
			err := verifySigned(row.scheme, key, h, []byte("{}"), now)
			check(t, fmt.Sprintf("good (%v)", err), err == nil, row.good)
		})
	}
}

// A delivery with more than maxSignatures signatures, or more than maxSignatureSize bytes of them, is
// refused. Times and versions are no signatures.
func TestSignaturesAreBounded(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	many := func(word string, n int) string { return strings.Repeat(word, n) }
	for _, row := range []struct {
		scheme, form string
		good         bool
	}{
		{"github", "X-Hub-Signature-256: " + many("sha256=00,", 15) + "HEX(BODY)", true},
		{"github", "X-Hub-Signature-256: " + many("sha256=00,", 16) + "HEX(BODY)", false},
		{"github", many("X-Hub-Signature: sha1=00\n", 16) + "X-Hub-Signature-256: HEX(BODY)", false},
		{"stripe", "Stripe-Signature: t=TIME," + many("v1=00,", 15) + "v1=HEX(TIME.BODY)", true},
		{"stripe", "Stripe-Signature: t=TIME," + many("v1=00,", 16) + "v1=HEX(TIME.BODY)", false},
		{"standard", strings.Replace(standardSigned, "v1,AAAA", many("v1,AAAA ", 15), 1), true},
		{"standard", strings.Replace(standardSigned, "v1,AAAA", many("v1,AAAA ", 16), 1), false},
		{"hmac x-own", "X-Own: " + many("0", maxSignatureSize-64) + ",HEX(BODY)", true},
		{"hmac x-own", "X-Own: " + many("0", maxSignatureSize-63) + ",HEX(BODY)", false},
	} {
		t.Run(row.scheme+", "+clipText(row.form, 60), func(t *testing.T) {
			h := headerOf(sign(row.form, "a key", "{}", now)...)
			key := shownKey(strings.Fields(row.scheme)[0], "a key")
			err := verifySigned(row.scheme, key, h, []byte("{}"), now)
			check(t, fmt.Sprintf("good (%v)", err), err == nil, row.good)
		})
	}
}

// A key with white space around it serves nobody.
func TestKeysHaveNoSpaceAround(t *testing.T) {
	for _, key := range []string{"battery\n", "battery\r", "\tbattery", " battery", "battery\u00a0"} {
		t.Run(fmt.Sprintf("%q", key), func(t *testing.T) {
			err := verifySigned("github", key, nil, nil, time.Now())
			checkContains(t, "the error of the rule", fmt.Sprint(err), "white space")
			flags := &serveFlags{addr: "localhost:1", registry: &registryConfig{}}
			err = flags.check(func(string) (string, bool) { return key, true })
			checkContains(t, "the error of the service secret", fmt.Sprint(err), "white space")
		})
	}
	err := verifySigned("token X-Key", "Basic a b", headerOf("X-Key: Basic a b"), nil, time.Now())
	check(t, "the error for a key with white space inside", err, nil)
}

// A signed time may be five minutes off.
func TestSignatureIsRecent(t *testing.T) {
	now := time.Unix(1_700_000_000, 500_000_000)
	for stamp, good := range map[string]bool{
		"1700000000": true, "1699999701": true, "1700000300": true,
		"1699999699": false, "1700000301": false, "0": false, "-5": false,
		"9223372036854775807": false, "-9223372036854775808": false, "1700000000 ": false,
		"0x6553f100": false, "1_700_000_000": false, "": false,
	} {
		check(t, stamp+" is recent", checkRecent(stamp, now) == nil, good)
	}
}

// signedModule has a method for each scheme.
func signedModule(t *testing.T) (dir string, env map[string]string) {
	dir, env = t.TempDir(), map[string]string{}
	tools := []string{"handlePlain", "handleRuns=runs"}
	for _, scheme := range sortedKeys(schemes) {
		name := "WH_" + strings.ToUpper(scheme) + "_SIGNING_SECRET"
		env[name] = shownKey(scheme, "k")
		tools = append(tools,
			"handle_"+scheme+": Takes it.\n@signature "+scheme+" "+name+"\nAnd more.")
	}
	writeTools(t, dir+"/m.usher", tools...)
	return dir, env
}

// With -accept-signatures, a signature replaces the secret. The secret never replaces a
// signature.
func TestSignatureOrSecret(t *testing.T) {
	long(t)
	dir, keys := signedModule(t)
	base := t.TempDir()
	const body = `{"a":1}`
	sign := func(scheme, body string, at time.Time) []string {
		return signed(scheme, "k", body, at)
	}
	reasons := map[string]string{
		"badly":    "does not match",
		"long ago": "timestamp",
		"not":      "no signature",
	}
	for _, row := range []struct{ secret, accept bool }{{false, false}, {false, true},
		{true, false}, {true, true}} {
		t.Run(fmt.Sprintf("secret %v, -accept-signatures %v", row.secret, row.accept),
			func(t *testing.T) {
				env := maps.Clone(keys)
				if row.secret {
					env[webhookSecretVar] = testSecret
				}
				d := daemonOptions{base: base, env: env}.start(t, dir,
					fmt.Sprint("-accept-signatures=", row.accept))
				defer d.stop(t)
				d.awaitReady(t)
				ran := 0
				for _, scheme := range sortedKeys(schemes) {
					for how, headers := range map[string][]string{
						"well":     sign(scheme, body, time.Now()),
						"badly":    sign(scheme, body+" ", time.Now()),
						"long ago": sign(scheme, body, time.Now().Add(-time.Hour)),
						"not":      nil,
					} {
						if scheme == "github" && how == "long ago" {
							continue // its signatures have no time
						}
						for _, shows := range []string{"X-Nothing: x", shown, shown + "x"} {
							what := fmt.Sprintf("%s, signed %s, showing %q", scheme, how, shows)
							a := d.deliver(t, "m/handle_"+scheme, body,
								append(slices.Clone(headers), shows)...)
							// The secret never replaces a signature.
							unknown := row.secret && shows != shown &&
								(how == "not" || !row.accept)
							if how != "well" || unknown {
								checkError(t, what, a, 401)
								_, line, _ := strings.Cut(d.Log.String(), "id="+
									a.Header.Get(requestIDHeader))
								line, _, _ = strings.Cut(line, "\n")
								why := reasons[how]
								if unknown && !row.accept {
									why = "-accept-signatures"
								}
								to := "path=m/handle_" + scheme
								checkContains(t, what+": the log", line, to, why, "status=401")
								continue
							}
							ran++
							wantStatus(t, what, a, 200)
							check(t, what, without(a.Body, webhookParam), body)
						}
					}
				}
				got := 0
				for scheme := range schemes {
					got += d.runs(t, "m", "handle_"+scheme)
				}
				check(t, "times the methods ran", got, ran)

				// A signature admits to its own method only, and only by POST.
				unless := func(status int) int {
					if row.secret {
						return 401
					}
					return status
				}
				signs := sign("github", `{}`, time.Now())
				for path, status := range map[string]int{
					"m/handlePlain":   200,
					"m/nothing":       404,
					"m/handle_stripe": 401,
				} {
					wantStatus(t, "GitHub's signature at "+path,
						d.deliver(t, path, `{}`, signs...), unless(status))
				}
				a := d.send(t, "GET", "m/handle_github", "", sign("github", "", time.Now())...)
				wantStatus(t, "GitHub's signature of a GET", a, unless(405))
				if row.secret && row.accept { // a signed delivery is told what else is wrong
					for kind, status := range map[string]int{"text/csv": 415, isJSON: 400} {
						headers := append(sign("github", "[", time.Now()),
							"Content-Type: "+kind)
						wantStatus(t, kind+", signed",
							d.send(t, "POST", "m/handle_github", "[", headers...), status)
					}
				}
			})
	}
}

// providerRow matches a row of the table of providers that usher can verify.
var providerRow = regexp.MustCompile("(?m)^\\| ([^|`]*) \\| `(@signature [^`]* (\\w+))` \\|")

// The line of each provider in docs/webhooks.md accepts what the provider signs, also instead of
// the secret, and nothing else. No refusal says whether the path exists, or which key is right.
func TestSignatureOfEachProvider(t *testing.T) {
	long(t)
	rows := providerRow.FindAllStringSubmatch(readFile(t, "docs/webhooks.md"), -1)
	check(t, "rows of the table", len(rows), len(providers()))
	env := map[string]string{webhookSecretVar: testSecret}
	var tools []string
	for i, row := range rows {
		env[row[3]] = shownKey(strings.Fields(row[2])[1], "key-of-"+row[3])
		if row[1] == "Supabase Auth" {
			env[row[3]] = "v1," + env[row[3]]
		}
		tools = append(tools, fmt.Sprint("handle", i, ": ", row[2]))
	}
	d := daemonOptions{env: env}.startTools(t, "-accept-signatures", tools...)
	refusal := d.deliver(t, "no/such/path", `{}`).Body
	for i, row := range rows {
		t.Run(row[1], func(t *testing.T) {
			form, key, path := providers()[row[1]], "key-of-"+row[3], fmt.Sprint("m/handle", i)
			const body = `{"a":"é"}`
			now := time.Now()
			a := d.deliver(t, path, body, sign(form, key, body, now)...)
			wantStatus(t, "well signed", a, 200)
			check(t, "arguments", without(a.Body, webhookParam), body)
			checkOmits(t, "what the method gets", a.Body, key)
			refused := map[string][]string{
				"by another key": sign(form, "x"+key, body, now),
				"not at all":     {"X-Nothing: x"},
			}
			if !strings.Contains(form, "KEY") {
				refused["another body"] = sign(form, key, body+" ", now)
			}
			if strings.Contains(form, "TIME") {
				refused["long ago"] = sign(form, key, body, now.Add(-6*time.Minute))
				refused["later"] = sign(form, key, body, now.Add(6*time.Minute))
			}
			for how, headers := range refused {
				a := d.deliver(t, path, body, headers...)
				wantStatus(t, "signed "+how, a, 401)
				check(t, "refusal of a delivery signed "+how, a.Body, refusal)
			}
		})
	}
}

// usher itself answers the requests by which Zoom and Discord test the URL, if they are signed.
func TestSignatureChallenges(t *testing.T) {
	t.Parallel()
	env := map[string]string{
		"ZOOM_WEBHOOK_SECRET":    "k",
		"DISCORD_SIGNING_SECRET": shownKey("discord", "k"),
	}
	d := daemonOptions{env: env}.startTools(t, "",
		"handleZoom: @signature zoom ZOOM_WEBHOOK_SECRET",
		"handleDiscord: @signature discord DISCORD_SIGNING_SECRET")
	const challenge = `{"event":"endpoint.url_validation","payload":{"plainToken":"qgg8vlvZRS6UYooatFL8Aw"}}`
	answer := `{"plainToken":"qgg8vlvZRS6UYooatFL8Aw","encryptedToken":"` +
		hex.EncodeToString(hmacOf("k", "qgg8vlvZRS6UYooatFL8Aw")) + `"}`
	for _, row := range []struct{ name, body, answer string }{
		{"Zoom", challenge, answer},
		{"Zoom", `{"event":"meeting.started"}`, ""},
		{"Zoom", `{"type":1}`, ""},
		{"Zoom", `{"event":"endpoint.url_validation","payload":{}}`, ""},
		{"Discord", `{"application_id":"1","id":"2","token":"x","type":1,"user":{},` +
			`"version":1}`, `{"type":1}`},
		{"Discord", `{"version":1,"application_id":"1","type":1,"event":{"type":"ENTITLEMENT_CREATE"}}`, ""},
		{"Discord", `{"version":1,"application_id":"1","type":0}`, ""},
		{"Discord", `{"type":1,"id":"2"}`, ""},
		{"Discord", `{"type":2}`, ""},
		{"Discord", challenge, ""},
	} {
		headers := sign(providers()[row.name], "k", row.body, time.Now())
		a := d.deliver(t, "m/handle"+row.name, row.body, headers...)
		if row.answer != "" {
			wantAnswer(t, a, 200, isJSON, row.answer)
		} else {
			check(t, "what the method gets", without(a.Body, webhookParam), row.body)
		}
		checkError(t, "unsigned", d.deliver(t, "m/handle"+row.name, row.body), 401)
	}
}

// A delivery right after an edit must satisfy the edited rule, and not the one found first.
func TestEditedRuleVerifies(t *testing.T) {
	long(t)
	dir := t.TempDir()
	sign := func(key string) {
		writeTools(t, dir+"/m.usher", "handleIt: @signature github "+key+"_SIGNING_SECRET")
	}
	sign("A")
	env := map[string]string{"A_SIGNING_SECRET": "a", "B_SIGNING_SECRET": "b"}
	d := daemonOptions{env: env}.startReady(t, dir)
	deliver := func(key string) answer {
		return d.deliver(t, "m/handleIt", `{}`, signed("github", key, `{}`, time.Now())...)
	}
	wantStatus(t, "the key, before the edit", deliver("a"), 200)
	sign("B")
	checkError(t, "the old key", deliver("a"), 401)
	wantStatus(t, "the new key", deliver("b"), 200)
}

// A webhook that can't check what it was told to check is served to no one.
func TestUnusableSignatureServesNobody(t *testing.T) {
	long(t)
	dir, base := t.TempDir(), t.TempDir()
	problems := []struct{ doc, said string }{
		{"@signature github", "such as @signature github"},
		{"@signature md5 WH_KEY_SIGNING_SECRET", `no scheme "md5"`},
		{"Text.\n\t@signature  github  WH_KEY\t\n@webhook", "WH_KEY: want a name"},
		{"@signature github WH_UNSET_SIGNING_SECRET", "WH_UNSET_SIGNING_SECRET is not set"},
		{"@signature\tgithub\tWH_EMPTY_SIGNING_SECRET", "WH_EMPTY_SIGNING_SECRET is not set"},
		{"@signature standard WH_KEY_SIGNING_SECRET", "base64"},
		{"@signature standard WH_BLANK_SIGNING_SECRET", "base64"},
		{"@signature discord WH_KEY_SIGNING_SECRET", "64 hexadecimal digits"},
		{"@signature discord WH_SHORT_SIGNING_SECRET", "64 hexadecimal digits"},
		{"@signature token WH_KEY_SIGNING_SECRET", "such as @signature token X-Signature WH_KEY"},
		{"@signature hmac X-Signature: WH_KEY_SIGNING_SECRET", "the name of a header"},
	}
	tools := []string{"handleRuns=runs", "handleQuoted: @signature slack WH_QUOTED_SIGNING_SECRET"}
	for i, p := range problems {
		tools = append(tools, fmt.Sprint("handle", i, ": ", p.doc))
	}
	writeTools(t, dir+"/m.usher", tools...)
	env := map[string]string{
		"WH_KEY_SIGNING_SECRET":   "not base64!",
		"WH_EMPTY_SIGNING_SECRET": "",
		"WH_SHORT_SIGNING_SECRET": "abcd",
		"WH_BLANK_SIGNING_SECRET": "whsec_",

		"WH_QUOTED_SIGNING_SECRET": `"battery"`,
	}
	for unshown, secret := range map[int]string{503: "", 401: testSecret} {
		if secret != "" {
			env[webhookSecretVar] = secret
		} else {
			delete(env, webhookSecretVar)
		}
		d := daemonOptions{base: base, env: env}.startReady(t, dir, "-accept-signatures")
		for i, p := range problems {
			for _, key := range []string{"", "not base64!"} {
				path, headers := fmt.Sprint("m/handle", i), signed("github", key, `{}`,
					time.Now())
				checkError(t, p.doc+", secret shown",
					d.deliver(t, path, `{}`, append(headers, shown)...), 503)
				checkError(t, p.doc+", secret not shown",
					d.deliver(t, path, `{}`, headers...), unshown)
			}
			check(t, p.doc+": times the method ran", d.runs(t, "m", fmt.Sprint("handle", i)), 0)
		}
		d.stop(t)
	}
	report, _, _ := usherIn(t, env, "", "modules", dir)
	for i, p := range problems {
		_, note, _ := strings.Cut(report, fmt.Sprintf("note: handle%d: ", i))
		note, _, _ = strings.Cut(note, "\n")
		checkContains(t, "the note in usher modules", note, "deliveries fail: ", p.said)
	}
	checkContains(
		t,
		"usher modules",
		report,
		"note: handleQuoted: the key in WH_QUOTED_SIGNING_SECRET has quotes",
	)
}

// No header, whatever is in it, is taken for a signature that was not made with the key.
func FuzzSignatureHeaders(f *testing.F) {
	now := time.Unix(1_700_000_000, 0)
	f.Fuzz(func(t *testing.T, scheme, id, stamp, signature string, body []byte) {
		if schemes[scheme] == "" {
			return
		}
		key := shownKey(scheme, "k")
		h := http.Header{"Webhook-Id": {id}, "Webhook-Timestamp": {stamp},
			"X-Slack-Request-Timestamp": {stamp},
			"Webhook-Signature":         {signature}, "X-Hub-Signature-256": {signature},
			"Stripe-Signature":  {signature},
			"X-Slack-Signature": {signature}}
		if verifySigned(scheme, key, h, body, now) == nil {
			t.Errorf("%s: %q is good for %q", scheme, h, body)
		}
		// With the true signature somewhere in it, it is good or refused, by the
		// time and the form alone, and never for another body.
		for _, line := range signed(scheme, "k", string(body), now) {
			name, value, _ := strings.Cut(line, ": ")
			name = http.CanonicalHeaderKey(name)
			if strings.Contains(name, "Signature") {
				value += " " + signature
			}
			h.Set(name, value)
		}
		if strings.Contains(signature, "t=") { // another time
			return
		}
		if len(signature) > maxSignatureSize/2 ||
			len(headerWords(http.Header{"A": {signature}}, []string{"A"})) > 8 {
			return
		}
		if verifySigned(scheme, key, h, body, now) != nil {
			t.Errorf("%s: %q: want it good for %q", scheme, h, body)
		}
		if verifySigned(scheme, key, h, append(slices.Clone(body), 'x'), now) == nil {
			t.Errorf("%s: %q is good for a longer body", scheme, h)
		}
	})
}

// A tag is a rule that names a scheme and a variable, or one that says what is wrong; there
// is no third.
func FuzzParseSignature(f *testing.F) {
	f.Fuzz(func(t *testing.T, s string) {
		line := "@signature " + strings.NewReplacer("\n", " ", "\r", " ").Replace(s)
		r, err := parseSignature(line, func(string) string { return "a2V5" })
		if err == nil && (r.headers == nil || !keyVariable.MatchString(r.variable)) {
			t.Errorf("%q: %+v", s, r)
		}
		if err != nil && strings.ContainsAny(err.Error(), "\n\r") {
			t.Errorf("%q: an error of several lines: %v", s, err)
		}
		tags := parseDoc("Text.\n"+line+"\nMore.", kindExecutable)
		if tags.Signature == "" || strings.Contains(tags.description, "@signature") {
			t.Errorf("%q: no tag in %+v", s, tags)
		}
	})
}
