// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// event is one line of go test -json (go doc test2json).
type event struct {
	Action     string
	Package    string
	ImportPath string // of build-output
	Test       string
	Elapsed    float64
	Output     string
}

func parseEvent(line string) (e event, ok bool) {
	if !strings.HasPrefix(line, "{") {
		return e, false
	}
	err := json.Unmarshal([]byte(line), &e)
	return e, err == nil && e.Action != ""
}

// test is one test of a package, or a package: then without a name.
type test struct{ pkg, name string }

func (t test) String() string {
	return strings.TrimSuffix(strings.TrimPrefix(t.pkg, "beeline.io/beeline/")+" "+t.name, " ")
}

// parent is the test that t is a part of.
func (t test) parent() (test, bool) {
	dir := path.Dir(t.name)
	return test{t.pkg, dir}, strings.Contains(t.name, "/")
}

// tally has the results of a step's tests.
type tally struct {
	outcome map[test]string // pass, fail, skip
	took    map[test]float64
	reasons map[test]string   // why skipped
	excused map[test][]string // what a test that passed has excused or repeated
	failure map[test][]string // the first lines of a failed test's output
	begun   map[test]time.Time
	output  map[test][]string // of running tests and packages
	more    int               // passed tests of which only the number is known
	cached  int               // passed tests of packages whose result go test has found before
}

func newTally() tally {
	return tally{outcome: map[test]string{}, took: map[test]float64{}, reasons: map[test]string{}, excused: map[test][]string{}, failure: map[test][]string{},
		begun: map[test]time.Time{}, output: map[test][]string{}}
}

// event counts one event and prints a failure's output.
func (y *tally) event(e event, c *console) {
	t := test{e.Package, e.Test}
	switch e.Action {
	case "start", "run":
		y.begun[t] = time.Now()
	case "build-output":
		c.print(strings.TrimSuffix(e.Output, "\n"))
	case "output":
		if !isFrame(e.Output) {
			y.output[t] = append(y.output[t], strings.TrimSuffix(e.Output, "\n"))
		}
	case "pass", "fail", "skip":
		y.end(t, e, c)
	}
}

// isFrame reports whether go test prints a line for every test, whatever its result.
func isFrame(line string) bool { return strings.HasPrefix(line, "=== ") }

func (y *tally) end(t test, e event, c *console) {
	if t.name == "" {
		y.endPackage(t, e, c)
		return
	}
	y.outcome[t], y.took[t] = e.Action, e.Elapsed
	y.excuse(t)
	if e.Action == "fail" {
		y.show(t, c)
	}
	if e.Action == "skip" {
		y.reasons[t] = reasonOf(y.output[t])
	}
	y.forget(t)
}

// endPackage counts a package that fails although none of its tests does, for example because it does not
// build.
func (y *tally) endPackage(t test, e event, c *console) {
	if e.Action == "fail" {
		y.endTests(t.pkg, c)
		y.show(t, c)
	}
	own := y.ofPackage(t.pkg)
	if e.Action == "fail" {
		if !slices.ContainsFunc(own, func(o test) bool { return y.outcome[o] == "fail" }) {
			y.outcome[t] = "fail"
		}
	} else if len(own) > 0 {
		cached := ""
		if slices.ContainsFunc(y.output[t], func(line string) bool { return strings.Contains(line, "(cached)") }) {
			cached = ", as found before"
			y.cached += y.passedOf(t.pkg)
		}
		c.print(fmt.Sprintf("ok %8.1f s  %s: %d tests%s", e.Elapsed, t, len(own), cached))
	}
	y.forget(t)
}

// endTests counts tests as failed that the end of the package cut off: by a panic or a timeout.
func (y *tally) endTests(pkg string, c *console) {
	for _, t := range slices.SortedFunc(maps.Keys(y.begun), compareTests) {
		if t.pkg != pkg || t.name == "" {
			continue
		}
		y.outcome[t] = "fail"
		c.print(fmt.Sprintf("--- FAIL: %s did not end", t))
		y.show(t, c)
		y.forget(t)
	}
}

// unfinished counts tests without an end when the step has ended.
func (y *tally) unfinished(c *console) {
	for _, t := range slices.SortedFunc(maps.Keys(y.begun), compareTests) {
		if t.name == "" {
			y.endPackage(t, event{Action: "fail"}, c)
		}
	}
}

// show prints the output of a failed test, and keeps its first lines for the summary.
func (y *tally) show(t test, c *console) {
	const most = 20
	y.failure[t] = y.output[t][:min(len(y.output[t]), most)]
	for _, line := range y.output[t] {
		c.print(line)
	}
}

func (y *tally) forget(t test) {
	delete(y.output, t)
	delete(y.begun, t)
}

// ofPackage are the tests of a package, without parts, that have ended or are running.
func (y *tally) ofPackage(pkg string) (all []test) {
	for t := range y.outcome {
		if t.pkg == pkg && !strings.Contains(t.name, "/") && t.name != "" {
			all = append(all, t)
		}
	}
	return all
}

// passedOf counts the passed tests of a package as passed does.
func (y *tally) passedOf(pkg string) (n int) {
	for _, t := range y.with("pass") {
		if t.pkg == pkg {
			n++
		}
	}
	return n
}

// excuse keeps what a test logs as excused.
func (y *tally) excuse(t test) {
	for _, line := range y.output[t] {
		if m := whereLine.FindStringSubmatch(line); m != nil && strings.HasPrefix(m[1], "excused: ") {
			y.excused[t] = append(y.excused[t], strings.TrimPrefix(m[1], "excused: "))
		}
	}
}

var whereLine = regexp.MustCompile(`^\s*[A-Za-z0-9_]+\.go:[0-9]+: (.*)$`)

// reasonOf is the argument of t.Skip, the last that a test logs.
func reasonOf(output []string) string {
	for _, line := range slices.Backward(output) {
		if m := whereLine.FindStringSubmatch(line); m != nil {
			return m[1]
		}
	}
	return "(no reason given)"
}

var (
	skippedLine = regexp.MustCompile(`^SKIP (Linux \S+|\S+): (.*)$`) // a kernel, or a test
	failedLine  = regexp.MustCompile(`^(?:FAIL|NOT RUN) (\S+)$`)
	countLine   = regexp.MustCompile(`: ([0-9]+) passed, [0-9]+ skipped, [0-9]+ failed`)
)

// text counts the tests that scripts/kernels reports.
func (y *tally) text(line string) {
	if m := skippedLine.FindStringSubmatch(line); m != nil {
		y.skip(test{name: m[1]}, m[2])
	} else if m := failedLine.FindStringSubmatch(line); m != nil {
		y.outcome[test{name: m[1]}] = "fail"
	} else if m := countLine.FindStringSubmatch(line); m != nil {
		passed, _ := strconv.Atoi(m[1]) // digits
		y.more += passed
	}
}

func (y *tally) skip(t test, why string) { y.outcome[t], y.reasons[t] = "skip", why }

// with returns the tests with an outcome. A test with parts counts only if none of its parts has that outcome
// and it did not just pass.
func (y *tally) with(outcome string) (all []test) {
	parents, same := map[test]bool{}, map[test]bool{}
	for t, o := range y.outcome {
		for p, ok := t.parent(); ok; p, ok = p.parent() {
			parents[p] = true
			same[p] = same[p] || o == outcome
		}
	}
	for t, o := range y.outcome {
		if o == outcome && (!parents[t] || outcome != "pass" && !same[t]) {
			all = append(all, t)
		}
	}
	slices.SortFunc(all, compareTests)
	return all
}

func (y *tally) failed() []test { return y.with("fail") }

func (y *tally) passed() int { return len(y.with("pass")) + y.more }

// progress reports how many tests have passed and which has run longest.
func (y *tally) progress(now time.Time) string {
	running := slices.DeleteFunc(slices.Collect(maps.Keys(y.begun)), func(t test) bool {
		return t.name == "" && slices.ContainsFunc(slices.Collect(maps.Keys(y.begun)), func(o test) bool { return o.pkg == t.pkg && o.name != "" })
	})
	slices.SortFunc(running, func(a, b test) int { return y.begun[a].Compare(y.begun[b]) })
	text := fmt.Sprintf("%d passed, %d failed", y.passed(), len(y.failed()))
	if len(running) == 0 {
		return text + "; building"
	}
	oldest := running[0]
	return fmt.Sprintf("%s; %d run, for the longest time %s (%s)", text, len(running), oldest, now.Sub(y.begun[oldest]).Round(time.Second))
}

func compareTests(a, b test) int {
	return cmp.Or(cmp.Compare(a.pkg, b.pkg), cmp.Compare(a.name, b.name))
}
