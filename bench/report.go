// Medians, tables and verdicts.

package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

// quantile returns the value below which a share q of the values falls, or 0 for no values.
func quantile(values []float64, q float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	return sorted[int(q*float64(len(sorted)-1)+0.5)]
}

func median(values []float64) float64 { return quantile(values, 0.5) }

// ratios returns a/b of each round.
func ratios(a, b []float64) []float64 {
	r := make([]float64, min(len(a), len(b)))
	for i := range r {
		r[i] = a[i] / b[i]
	}
	return r
}

// table is one table of the report.
type table struct {
	title string
	note  string
	head  []string
	rows  [][]string
}

func (t *table) add(cells ...string) { t.rows = append(t.rows, cells) }

// report contains the tables that the benchmark prints.
type report struct {
	verdicts table
	tables   []*table
}

// table adds a table and returns it.
func (r *report) table(title, note string, head ...string) *table {
	t := &table{title: title, note: note, head: head}
	r.tables = append(r.tables, t)
	return t
}

// atMost adds a target that is met by values up to target.
func (r *report) atMost(what string, measured, target float64, unit string) {
	limit := fmt.Sprintf("at most %g%s", target, unit)
	r.verdict(what, fmt.Sprintf("%.2f%s", measured, unit), limit, measured <= target)
}

// atLeast adds a target that is met by values from target on.
func (r *report) atLeast(what string, measured, target float64, unit string) {
	limit := fmt.Sprintf("at least %g%s", target, unit)
	r.verdict(what, fmt.Sprintf("%.2f%s", measured, unit), limit, measured >= target)
}

// verdict adds a row to the table of targets.
func (r *report) verdict(what, measured, target string, met bool) {
	verdict := "**missed**"
	if met {
		verdict = "met"
	}
	r.verdicts.add(what, measured, target, verdict)
}

// print prints the targets, then the tables, as Markdown.
func (r *report) print(w io.Writer) {
	r.verdicts.title = "Targets"
	r.verdicts.head = []string{"what", "measured", "target", ""}
	for _, t := range append([]*table{&r.verdicts}, r.tables...) {
		fmt.Fprintf(w, "### %s\n\n", t.title)
		if t.note != "" {
			fmt.Fprintf(w, "%s\n\n", t.note)
		}
		fmt.Fprintf(w, "| %s |\n|---|%s\n", strings.Join(t.head, " | "), strings.Repeat("---:|", len(t.head)-1))
		for _, row := range t.rows {
			fmt.Fprintf(w, "| %s |\n", strings.Join(row, " | "))
		}
		fmt.Fprintln(w)
	}
}
