// Signatures: how providers sign their deliveries, and the @signature tag. Nothing here
// depends on claims, sessions or modules.

package main

import (
	"cmp"
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// signatureTolerance is how far a signed timestamp may be in the past or the future.
const signatureTolerance = 5 * time.Minute

// signatureScheme describes how a provider signs deliveries: by the HMAC-SHA256 of a prefix
// and the body, unless signatureRule.verify says otherwise.
type signatureScheme struct {
	headers []string // that may contain signatures, if the tag names no other
	times   []string // the headers of the time in Unix seconds; nil if it is beside the signatures
	time    string   // the text before the time
	prefix  string   // what is signed before the body; ID and TIME stand for the delivery's
}

// signatureSchemes are the schemes of @signature, as their providers document them.
var signatureSchemes = map[string]signatureScheme{
	"discord": {
		headers: []string{"X-Signature-Ed25519"},
		times:   []string{"X-Signature-Timestamp"},
		prefix:  "TIME",
	},
	"github": {headers: []string{"X-Hub-Signature-256", "X-Hub-Signature"}}, // the second is Bitbucket's
	"hmac":   {},
	"paddle": {headers: []string{"Paddle-Signature"}, time: "ts=", prefix: "TIME:"},
	"slack": {
		headers: []string{"X-Slack-Signature"},
		times:   []string{"X-Slack-Request-Timestamp"},
		prefix:  "v0:TIME:",
	},
	"standard": {
		headers: []string{"Webhook-Signature", "Svix-Signature"},
		times:   []string{"Webhook-Timestamp", "Svix-Timestamp"},
		prefix:  "ID.TIME.",
	},
	"stripe": {headers: []string{"Stripe-Signature"}, time: "t=", prefix: "TIME."},
	"token":  {},
	"zoom": {
		headers: []string{"X-Zm-Signature"},
		times:   []string{"X-Zm-Request-Timestamp"},
		prefix:  "v0:TIME:",
	},
}

// signatureRule describes how deliveries to a method must be signed, according to its
// @signature tag. The zero rule stands for no tag: no signature satisfies it.
type signatureRule struct {
	signatureScheme
	scheme   string // its name
	variable string // the environment variable of the key
	key      []byte
	quoted   bool // the key has quotes around it, which Docker's --env-file keeps
}

// parseSignature parses a @signature tag and reads its key from the environment. It
// returns the zero rule for no tag. A method whose tag has an error must not be served.
func parseSignature(tag string, getenv func(string) string) (r signatureRule, err error) {
	if tag == "" {
		return r, nil
	}
	words := strings.Fields(tag)
	n := len(words)
	if n < 3 || n > 4 {
		return r, errors.New("begin a line with the whole tag, " +
			"such as @signature github GITHUB_WEBHOOK_SECRET")
	}
	scheme, known := signatureSchemes[words[1]]
	if n == 4 {
		scheme.headers = []string{http.CanonicalHeaderKey(words[2])}
	}
	if scheme.times == nil {
		scheme.times = scheme.headers
	}
	key := getenv(words[n-1])
	r = signatureRule{scheme, words[1], words[n-1], []byte(key), strings.Trim(key, `"'`) != key}
	switch {
	case !known:
		err = fmt.Errorf("no scheme %q: want one of %s",
			r.scheme, strings.Join(sortedKeys(signatureSchemes), ", "))
	case r.headers == nil:
		err = fmt.Errorf("%s needs a header, such as @signature %[1]s X-Signature %s", r.scheme, r.variable)
	case !headerToken.MatchString(r.headers[0]):
		err = fmt.Errorf("%q can't be the name of a header", r.headers[0])
	case !keyVariable.MatchString(r.variable):
		err = fmt.Errorf("%s: want a name that ends in _WEBHOOK_SECRET or _SIGNING_SECRET", r.variable)
	case key == "":
		err = fmt.Errorf("%s is not set", r.variable)
	case strings.TrimSpace(key) != key:
		err = fmt.Errorf("%s has white space around it", r.variable)
	default:
		err = r.decodeKey()
	}
	if err != nil {
		err = fmt.Errorf("@signature: %w", err)
	}
	return r, err
}

// decodeKey decodes the key, if it is encoded in the rule's scheme.
func (r *signatureRule) decodeKey() (err error) {
	want := ""
	switch r.scheme {
	case "standard":
		want = "base64, after whsec_"
		text := strings.TrimPrefix(string(r.key), "v1,") // as Supabase writes it
		r.key, err = base64.StdEncoding.DecodeString(strings.TrimPrefix(text, "whsec_"))
	case "discord":
		want = "a public key of 64 hexadecimal digits"
		r.key, err = hex.DecodeString(string(r.key))
		if len(r.key) != ed25519.PublicKeySize {
			r.key = nil
		}
	}
	if err != nil || len(r.key) == 0 {
		return fmt.Errorf("%s is not %s", r.variable, want)
	}
	return nil
}

// verify verifies the signature of a body. Its errors are for the log.
func (r *signatureRule) verify(h http.Header, body []byte, now time.Time) error {
	// Versions, such as v1, and times are no signatures.
	signatures := slices.DeleteFunc(headerWords(h, r.headers), func(word string) bool {
		return len(word) < 3 || r.time != "" && strings.HasPrefix(word, r.time)
	})
	switch {
	case len(signatures) == 0:
		return fmt.Errorf("no signature in %s", strings.Join(r.headers, ", "))
	case len(signatures) > maxSignatures || len(strings.Join(signatures, "")) > maxSignatureSize:
		return errors.New("too many signatures")
	}
	stamp := ""
	if r.prefix != "" { // each prefix contains a time
		for _, word := range headerWords(h, r.times) {
			if text, ok := strings.CutPrefix(word, r.time); ok {
				stamp = cmp.Or(stamp, text)
			}
		}
		if err := checkRecent(stamp, now); err != nil {
			return err
		}
	}
	id := cmp.Or(h.Get("Webhook-Id"), h.Get("Svix-Id"))
	// Otherwise an id could contain the id, the time and the first bytes of another signed delivery.
	if r.scheme == "standard" && strings.Contains(id, ".") {
		return errors.New("the delivery's id contains a dot")
	}
	prefix := strings.NewReplacer("ID", id, "TIME", stamp).Replace(r.prefix)
	good := false
	switch r.scheme {
	case "token": // may contain any characters
		good = isSameSecret(h.Get(r.headers[0]), string(r.key))
	case "discord":
		message := slices.Concat([]byte(prefix), body)
		good = ed25519.Verify(r.key, message, decodeSignature(signatures[0]))
	default:
		sum := r.mac(prefix, body)
		for _, text := range signatures {
			// A word before a signature, such as sha256= or v1=, proves nothing.
			_, end, _ := strings.Cut(text, "=")
			good = good || hmac.Equal(decodeSignature(text), sum) || hmac.Equal(decodeSignature(end), sum)
		}
	}
	if !good {
		return fmt.Errorf("the signature does not match this body and the key in %s", r.variable)
	}
	return nil
}

// mac returns the HMAC-SHA256 of a prefix and a body.
func (r *signatureRule) mac(prefix string, body []byte) []byte {
	mac := hmac.New(sha256.New, r.key)
	mac.Write([]byte(prefix))
	mac.Write(body)
	return mac.Sum(nil)
}

// headerWords returns the words in the named headers. Spaces, commas and semicolons separate
// them.
func headerWords(h http.Header, names []string) []string {
	text := ""
	for _, name := range names {
		text += " " + strings.Join(h.Values(name), " ")
	}
	return strings.FieldsFunc(text, func(c rune) bool { return strings.ContainsRune(" \t,;", c) })
}

// decodeSignature decodes a signature in hexadecimal digits or base64.
func decodeSignature(text string) []byte {
	signature, err := hex.DecodeString(text)
	if err != nil {
		signature, _ = base64.StdEncoding.DecodeString(text)
	}
	return signature
}

// isSameSecret compares secrets. Hashes have one length, so it takes the same time for any
// secret.
func isSameSecret(got, want string) bool {
	a := sha256.Sum256([]byte(got))
	b := sha256.Sum256([]byte(want))
	return hmac.Equal(a[:], b[:])
}

// checkRecent returns an error unless a timestamp in Unix seconds is near now.
func checkRecent(stamp string, now time.Time) error {
	n, err := strconv.ParseInt(stamp, 10, 64)
	if err != nil || now.Sub(time.Unix(n, 0)).Abs() > signatureTolerance {
		return fmt.Errorf("the signature's timestamp %q is not within %v of now",
			clipText(stamp, 20), signatureTolerance)
	}
	return nil
}

// challenge returns the answer to a verified request by which the provider tests the URL, or
// nil if the request is for the method: only a request with all marks of a test is one. Discord's
// webhook events have the type of its ping, but not the token of an interaction. Zoom repeats its
// test every 72 hours.
func (r *signatureRule) challenge(body []byte) json.RawMessage {
	list := members(body)
	token := list.object("payload").text("plainToken")
	isPing := string(list.get("type")) == "1" && list.text("id") != "" && list.text("token") != ""
	switch {
	case r.scheme == "discord" && isPing:
		return json.RawMessage(`{"type":1}`)
	case r.scheme == "zoom" && list.text("event") == "endpoint.url_validation" && token != "":
		sum := hex.EncodeToString(r.mac(token, nil))
		return object{{"plainToken", quote(token)}, {"encryptedToken", quote(sum)}}.encode()
	}
	return nil
}
