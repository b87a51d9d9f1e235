// Signatures: whether a provider signed a webhook's body, by the schemes that
// providers document. It knows bytes, headers and keys, and no module.

package main

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// signatureTolerance is how far a signed time stamp may be off, either way: an
// old delivery can't be sent again later.
const signatureTolerance = 5 * time.Minute

// signatureSchemes are the schemes: each checks a body against its headers.
var signatureSchemes = map[string]func(key string, h http.Header, body []byte, now time.Time) bool{
	"github":   checkGitHub,
	"stripe":   checkStripe,
	"slack":    checkSlack,
	"standard": checkStandard,
}

// errSignature is all that a sender is told: what exactly did not fit helps
// only who forges.
var errSignature = errors.New("the signature is missing, wrong or too old")

// ready says why nothing can be verified with this key, if so.
func (r *signatureRule) ready(key string) error {
	if r.Err == nil && key == "" {
		return fmt.Errorf("@signature: %s is not set", r.Var)
	}
	if r.Err == nil && r.Scheme == "standard" && standardKey(key) == nil {
		return fmt.Errorf("@signature: %s is not base64, after whsec_", r.Var)
	}
	return r.Err
}

// check verifies a body. The error is errSignature for one that is not signed
// as it should be; any other is ready's.
func (r *signatureRule) check(key string, h http.Header, body []byte, now time.Time) error {
	if err := r.ready(key); err != nil {
		return err
	}
	if !signatureSchemes[r.Scheme](key, h, body, now) {
		return errSignature
	}
	return nil
}

// sum is the HMAC-SHA256 of the parts, one after the other.
func sum(key []byte, parts ...[]byte) []byte {
	mac := hmac.New(sha256.New, key)
	for _, p := range parts {
		mac.Write(p)
	}
	return mac.Sum(nil)
}

// hexEquals compares a sum to its hexadecimal form in constant time.
func hexEquals(want []byte, got string) bool {
	b, err := hex.DecodeString(got)
	return err == nil && hmac.Equal(want, b)
}

// recent reports whether a time stamp in Unix seconds is near enough to now.
func recent(stamp string, now time.Time) bool {
	n, err := strconv.ParseInt(stamp, 10, 64)
	return err == nil && now.Sub(time.Unix(n, 0)).Abs() <= signatureTolerance
}

// checkGitHub checks X-Hub-Signature-256: the body's sum, after "sha256=".
func checkGitHub(key string, h http.Header, body []byte, _ time.Time) bool {
	got, ok := strings.CutPrefix(h.Get("X-Hub-Signature-256"), "sha256=")
	return ok && hexEquals(sum([]byte(key), body), got)
}

// checkStripe checks Stripe-Signature: "t=UNIX,v1=HEX", of which v1 may stand
// several times while keys are rolled.
func checkStripe(key string, h http.Header, body []byte, now time.Time) bool {
	var stamp string
	var given []string
	for item := range strings.SplitSeq(h.Get("Stripe-Signature"), ",") {
		switch k, v, _ := strings.Cut(strings.TrimSpace(item), "="); k {
		case "t":
			stamp = v
		case "v1":
			given = append(given, v)
		}
	}
	want := sum([]byte(key), []byte(stamp), []byte("."), body)
	return recent(stamp, now) && slices.ContainsFunc(given, func(got string) bool { return hexEquals(want, got) })
}

// checkSlack checks X-Slack-Signature: the sum of version, time and body.
func checkSlack(key string, h http.Header, body []byte, now time.Time) bool {
	stamp := h.Get("X-Slack-Request-Timestamp")
	got, ok := strings.CutPrefix(h.Get("X-Slack-Signature"), "v0=")
	return ok && recent(stamp, now) && hexEquals(sum([]byte(key), []byte("v0:"+stamp+":"), body), got)
}

// standardKey is a key of Standard Webhooks, which is base64 after "whsec_"; nil
// for one that is not.
func standardKey(key string) []byte {
	secret, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(key, "whsec_"))
	if err != nil || len(secret) == 0 {
		return nil
	}
	return secret
}

// checkStandard checks the headers of Standard Webhooks: "v1,BASE64" as often as
// there are keys, over id, time and body.
func checkStandard(key string, h http.Header, body []byte, now time.Time) bool {
	secret, id, stamp := standardKey(key), h.Get("Webhook-Id"), h.Get("Webhook-Timestamp")
	if secret == nil || id == "" || !recent(stamp, now) {
		return false
	}
	want := sum(secret, []byte(id+"."+stamp+"."), body)
	for item := range strings.FieldsSeq(h.Get("Webhook-Signature")) {
		version, value, _ := strings.Cut(item, ",")
		if got, err := base64.StdEncoding.DecodeString(value); version == "v1" && err == nil && hmac.Equal(want, got) {
			return true
		}
	}
	return false
}
