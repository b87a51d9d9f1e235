// Assertions: each names the expectation that failed.

package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// check reports how got differs from want; what names it.
func check[T any](t testing.TB, what string, got, want T) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s: (-want +got)\n%s", what, clipText(diff, 4000))
	}
}

// checkContains reports each of wants that text lacks.
func checkContains(t testing.TB, what, text string, wants ...string) {
	t.Helper()
	for _, want := range wants {
		if !strings.Contains(text, want) {
			t.Errorf("%s: no %q in %s", what, want, clipText(text, 2000))
		}
	}
}

// checkOmits reports each of the unwanted texts that text contains.
func checkOmits(t testing.TB, what, text string, unwanted ...string) {
	t.Helper()
	for _, s := range unwanted {
		if strings.Contains(text, s) {
			t.Errorf("%s: unwanted %q in %s", what, s, clipText(text, 2000))
		}
	}
}

// must ends the test if a step of its preparation fails.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
