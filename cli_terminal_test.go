// Tests of the text for terminals (cli.go).

package main

import (
	"testing"
	"testing/synctest"
	"time"
)

// A time to live is a number and a unit, or Go's compound form, and at most maxTTL.
func TestTTLIsANumberAndAUnit(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	for text, want := range map[string]time.Duration{
		"90s": 90 * time.Second, "2w": 14 * day, "36500d": maxTTL, "7D": 7 * day,
	} {
		got, err := parseTTL(text)
		must(t, err)
		check(t, text, got, want)
	}
	for _, text := range []string{
		"", "d", "7", "-1d", "+1d", "-5m", "0h0m", "1h30", "1d12h", "36501d",
		"9999999h", "106752w",
		"9223372036854775807s", "99999999999999999999d", "NaN", "1e9h",
	} {
		if got, err := parseTTL(text); err == nil {
			t.Errorf("%q is %v", text, got)
		}
	}
}

// A time is shown in seconds up to an hour, then in minutes, rounded up.
func TestTimeLeftIsRoundedUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for left, want := range map[time.Duration]string{
			-time.Hour:                         "1s",
			45 * time.Second:                   "45s",
			90*time.Second - time.Millisecond:  "1m 30s",
			time.Hour:                          "1h",
			time.Hour + time.Second:            "1h 1m",
			2*time.Hour - time.Second:          "2h",
			51*time.Hour + 59*time.Second:      "2d 3h 1m",
			7*24*time.Hour - 59*time.Second:    "7d",
			59*time.Minute + time.Nanosecond:   "59m 1s",
			time.Minute - 999*time.Millisecond: "1m",
		} {
			check(t, left.String(), formatLeft(time.Now().Add(left)), want)
		}
	})
}

// A time to live that is read is positive, and is read again from its own text.
func FuzzParseTTL(f *testing.F) {
	f.Fuzz(func(t *testing.T, s string) {
		d, err := parseTTL(s)
		if (err == nil) != (d > 0) || d > maxTTL {
			t.Errorf("%q: %v %v", s, d, err)
		}
		if again, err := parseTTL(d.String()); d > 0 && (err != nil || again != d) {
			t.Errorf("%q is %v, which is read as %v: %v", s, d, again, err)
		}
	})
}
