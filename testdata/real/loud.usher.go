//go:build usher

// Loud says things loudly.
package main

import (
	"context"
	"strings"
)

// Shout returns the text in capitals.
func Shout(p struct{ Text string }) string { return strings.ToUpper(p.Text) }

var ended = make(chan error, 9)

// Wait reports that it has begun, and ends when its call is cancelled.
func Wait(ctx context.Context, report func(progress, total float64, message string)) error {
	report(1, 2, "waiting")
	<-ctx.Done()
	ended <- ctx.Err()
	return ctx.Err()
}

// Waited says why a Wait ended, once one has.
func Waited() string { return (<-ended).Error() }
