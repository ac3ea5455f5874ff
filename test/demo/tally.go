// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"maps"
	"slices"
)

// A tally counts connections by the pod that answered.
type tally struct {
	title    string
	attempts int
	failures int
	first    error // the first failure
	byPod    map[string]int
}

func (t *tally) add(pod string, err error) {
	t.attempts++
	if err != nil {
		t.failures++
		if t.first == nil {
			t.first = err
		}
		return
	}
	if t.byPod == nil {
		t.byPod = map[string]int{}
	}
	t.byPod[pod]++
}

// pods are the pods that have answered.
func (t *tally) pods() []string { return slices.Sorted(maps.Keys(t.byPod)) }

// count adds tallies to the run's totals, prints them and fails if a connection failed. Columns are the named
// pods, and others that answered.
func (d *demo) count(columns []string, tallies ...*tally) error {
	var first error
	for _, t := range tallies {
		d.attempts += t.attempts
		if t.first != nil && first == nil {
			first = fmt.Errorf("%d of %d connections failed, the first with: %w", t.failures, t.attempts, t.first)
		}
		for _, pod := range t.pods() {
			if !slices.Contains(columns, pod) {
				columns = append(columns, pod)
			}
		}
	}
	d.table(columns, tallies)
	return first
}

func (d *demo) table(columns []string, tallies []*tally) {
	width := 0
	for _, t := range tallies {
		width = max(width, len(t.title))
	}
	line := fmt.Sprintf("  %-*s  attempts  failures ", width, "")
	for _, pod := range columns {
		line += fmt.Sprintf("  %5s", pod)
	}
	d.say("%s", line)
	for _, t := range tallies {
		line = fmt.Sprintf("  %-*s  %8d  %8d ", width, t.title, t.attempts, t.failures)
		for _, pod := range columns {
			line += fmt.Sprintf("  %5d", t.byPod[pod])
		}
		d.say("%s", line)
	}
}
