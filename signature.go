// Signatures: how providers sign their deliveries, and the @signature tag. Nothing here
// depends on claims, sessions or modules.

package main

import (
	"cmp"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// signatureTolerance is how far a signed timestamp may be in the past or the future.
const signatureTolerance = 5 * time.Minute

// signatureScheme describes how a provider signs deliveries. A signature is a version
// followed by the HMAC-SHA256 of a prefix and the body.
type signatureScheme struct {
	headers []string // the headers that may contain signatures
	version string   // the text before a signature
	base64  bool     // keys and signatures are base64; otherwise signatures are hexadecimal
	times   []string // the headers that may contain the time in Unix seconds; none if no time is signed
	time    string   // the text before the time in these headers
	prefix  string   // what is signed before the body; ID and TIME stand for the delivery's
}

// signatureSchemes are the schemes of @signature, as their providers document them.
var signatureSchemes = map[string]signatureScheme{
	"github": {
		headers: []string{"X-Hub-Signature-256", "X-Hub-Signature"}, // the second is Bitbucket's
		version: "sha256=",
	},
	"slack": {
		headers: []string{"X-Slack-Signature"},
		version: "v0=",
		times:   []string{"X-Slack-Request-Timestamp"},
		prefix:  "v0:TIME:",
	},
	"standard": {
		headers: []string{"Webhook-Signature", "Svix-Signature"},
		version: "v1,",
		base64:  true,
		times:   []string{"Webhook-Timestamp", "Svix-Timestamp"},
		prefix:  "ID.TIME.",
	},
	"stripe": {
		headers: []string{"Stripe-Signature"},
		version: "v1=",
		times:   []string{"Stripe-Signature"},
		time:    "t=",
		prefix:  "TIME.",
	},
}

// signatureRule describes how deliveries to a method must be signed, according to its
// @signature tag.
type signatureRule struct {
	signatureScheme
	variable string // the environment variable of the key
	key      []byte // the key of the HMAC
}

// parseSignature parses a @signature tag and reads its key from the environment. It
// returns nil for no tag. A method whose tag has an error must not be served.
func parseSignature(tag string, getenv func(string) string) (*signatureRule, error) {
	if tag == "" {
		return nil, nil
	}
	words := strings.Fields(tag)
	if len(words) != 3 || words[0] != "@signature" {
		return nil, errors.New("begin a line with the whole tag, " +
			"such as @signature github GITHUB_WEBHOOK_SECRET")
	}
	r := &signatureRule{signatureSchemes[words[1]], words[2], []byte(getenv(words[2]))}
	switch {
	case r.headers == nil:
		return nil, fmt.Errorf("@signature: no scheme %q: want one of %s",
			words[1], strings.Join(sortedKeys(signatureSchemes), ", "))
	case !isSecretVariable(r.variable):
		return nil, fmt.Errorf("@signature: %s: want a name that ends in "+
			"_WEBHOOK_SECRET or _SIGNING_SECRET", r.variable)
	case len(r.key) == 0:
		return nil, fmt.Errorf("@signature: %s is not set", r.variable)
	case r.base64:
		var err error
		r.key, err = base64.StdEncoding.DecodeString(strings.TrimPrefix(string(r.key), "whsec_"))
		if err != nil || len(r.key) == 0 {
			return nil, fmt.Errorf("@signature: %s is not base64, after whsec_", r.variable)
		}
	}
	return r, nil
}

// verify verifies the signature of a body. Its errors are for the log.
func (r *signatureRule) verify(h http.Header, body []byte, now time.Time) error {
	signatures := r.values(h, r.headers, r.version)
	if len(signatures) == 0 {
		return fmt.Errorf("no signature in %s", strings.Join(r.headers, ", "))
	}
	stamp := ""
	if r.times != nil {
		stamp, _, _ = strings.Cut(strings.Join(r.values(h, r.times, r.time), " "), " ")
		if err := checkRecent(stamp, now); err != nil {
			return err
		}
	}
	mac := hmac.New(sha256.New, r.key)
	id := cmp.Or(h.Get("Webhook-Id"), h.Get("Svix-Id"))
	strings.NewReplacer("ID", id, "TIME", stamp).WriteString(mac, r.prefix)
	mac.Write(body)
	want := hex.EncodeToString(mac.Sum(nil))
	if r.base64 {
		want = base64.StdEncoding.EncodeToString(mac.Sum(nil))
	}
	for _, got := range signatures {
		if hmac.Equal([]byte(want), []byte(got)) {
			return nil
		}
	}
	return fmt.Errorf("the signature does not match this body and the key in %s", r.variable)
}

// values returns the texts that follow start in the named headers. Spaces separate
// values, and so do commas, except in schemes with base64, whose version ends with a
// comma.
func (s signatureScheme) values(h http.Header, names []string, start string) (list []string) {
	for _, name := range names {
		text := strings.Join(h.Values(name), " ")
		if !s.base64 {
			text = strings.ReplaceAll(text, ",", " ")
		}
		for _, word := range strings.Fields(text) {
			if value, ok := strings.CutPrefix(word, start); ok {
				list = append(list, value)
			}
		}
	}
	return list
}

// showsSignature reports whether a request has a header for the signatures of any scheme.
func showsSignature(h http.Header) bool {
	for _, scheme := range signatureSchemes {
		for _, name := range scheme.headers {
			if h.Get(name) != "" {
				return true
			}
		}
	}
	return false
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
