// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// summarize prints totals, skipped tests with reasons, the slowest tests and the failures. It reports whether
// nothing failed.
func summarize(c *console, results []*result, logPath string) (ok bool) {
	if len(results) == 1 && results[0].kind == kindQuiet && results[0].ok() {
		c.say("%s: done in %.0f s", results[0].name, results[0].seconds)
		return true
	}
	ok = true
	skips := map[string][]test{} // by reason
	var slowest []slow
	for _, r := range results {
		ok = ok && r.ok()
		for _, t := range r.with("skip") {
			skips[r.reasons[t]] = append(skips[r.reasons[t]], test{cmp.Or(t.pkg, r.name), t.name})
		}
		for t, seconds := range r.took {
			if _, part := t.parent(); !part {
				slowest = append(slowest, slow{t, seconds})
			}
		}
	}
	c.locked(func() {
		c.print("")
		printTotals(c, results)
		printSlowest(c, slowest)
		printSkips(c, skips)
		printExcused(c, results)
		printFailures(c, results)
		if logPath != "" {
			c.print("All that was printed is in " + logPath + ".")
		}
	})
	return ok
}

func printTotals(c *console, results []*result) {
	c.print(fmt.Sprintf("%-24s %8s %8s %8s %8s %8s %8s", "", "passed", "(cached)", "failed", "skipped", "seconds", "of CPU"))
	var passed, cached, failed, skipped int
	var cpu time.Duration
	for _, r := range results {
		p, f, s := r.done(), len(r.failed()), len(r.with("skip"))
		if f == 0 && !r.ok() {
			f = 1 // the command itself
		}
		passed, cached, failed, skipped, cpu = passed+p, cached+r.cached, failed+f, skipped+s, cpu+r.cpu
		c.print(fmt.Sprintf("%-24s %8d %8d %8d %8d %8.0f %8.0f", r.name, p, r.cached, f, s, r.seconds, r.cpu.Seconds()))
	}
	if len(results) > 1 {
		c.print(fmt.Sprintf("%-24s %8d %8d %8d %8d %8.0f %8.0f", "total", passed, cached, failed, skipped, time.Since(c.begun).Seconds(), cpu.Seconds()))
	}
}

// slow is a test and its duration.
type slow struct {
	test
	seconds float64
}

// printSlowest names the slowest tests; waits count.
func printSlowest(c *console, all []slow) {
	slices.SortFunc(all, func(a, b slow) int { return cmp.Or(cmp.Compare(b.seconds, a.seconds), compareTests(a.test, b.test)) })
	for i, s := range all[:min(len(all), 5)] {
		if s.seconds < 1 {
			break
		}
		if i == 0 {
			c.print("\nSlowest:")
		}
		c.print(fmt.Sprintf("  %6.1f s  %s", s.seconds, s.test))
	}
}

// printSkips names each reason once, with some of its tests.
func printSkips(c *console, skips map[string][]test) {
	for i, reason := range slices.Sorted(maps.Keys(skips)) {
		if i == 0 {
			c.print("\nSkipped:")
		}
		const most = 4
		var names []string
		for _, t := range skips[reason][:min(len(skips[reason]), most)] {
			names = append(names, t.String())
		}
		if left := len(skips[reason]) - most; left > 0 {
			names = append(names, fmt.Sprintf("and %d more", left))
		}
		c.print(fmt.Sprintf("  %s: %s", strings.Join(names, ", "), reason))
	}
}

// printExcused names what tests repeated, or did not take for a fault, because the machine was busy.
func printExcused(c *console, results []*result) {
	first := true
	for _, r := range results {
		for _, t := range slices.SortedFunc(maps.Keys(r.excused), compareTests) {
			if first {
				c.print("\nExcused:")
				first = false
			}
			c.print(fmt.Sprintf("  %s: %s", t, strings.Join(r.excused[t], "; ")))
		}
	}
}

func printFailures(c *console, results []*result) {
	first := true
	for _, r := range results {
		if r.ok() {
			continue
		}
		if first {
			c.print("\nFAILED:")
			first = false
		}
		for _, t := range r.failed() {
			c.print("  " + test{cmp.Or(t.pkg, r.name), t.name}.String())
			for _, line := range r.failure[t] {
				c.print("    " + strings.TrimPrefix(line, "    "))
			}
		}
		if len(r.failed()) == 0 {
			c.print(fmt.Sprintf("  %s: %v", r.name, r.err))
		}
	}
	if first {
		c.print("\nNothing failed.")
	}
}
