// SPDX-License-Identifier: Apache-2.0

package main

import (
	"regexp"
	"strings"
)

var (
	goFailed  = regexp.MustCompile(`(?m)^(\s*)--- FAIL: (\S+)`)
	goPassed  = regexp.MustCompile(`(?m)^\s*--- PASS: (\S+)`)
	goRunning = regexp.MustCompile(`(?m)^\s+(Test\S+) \(\d+`)
)

// goOutcome reads the output of `go test -v`. The innermost of the first failed tests is the one that noticed.
func goOutcome(output string, err error) outcome {
	o := outcome{ran: goPassed.MatchString(output), output: output}
	if err == nil {
		return o
	}
	for _, f := range goFailed.FindAllStringSubmatch(output, -1) {
		if o.failed == "" || strings.HasPrefix(f[2], o.failed+"/") {
			o.failed = f[2]
		}
	}
	if _, after, timeout := strings.Cut(output, "panic: test timed out"); timeout {
		o.failed = "a test that timed out"
		if r := goRunning.FindStringSubmatch(after); r != nil {
			o.failed = r[1] + ", which timed out"
		}
	}
	if o.failed == "" {
		o.failed = "the test program: " + err.Error()
	}
	return o
}

var (
	rustFailed = regexp.MustCompile(`(?m)^test (\S+) \.\.\. FAILED$`)
	rustPassed = regexp.MustCompile(`(?m)^test (\S+) \.\.\. ok$`)
)

// cargoOutcome reads the output of `cargo test`.
func cargoOutcome(output string, err error) outcome {
	o := outcome{ran: rustPassed.MatchString(output), output: output}
	if err == nil {
		return o
	}
	if f := rustFailed.FindStringSubmatch(output); f != nil {
		o.failed = f[1]
	} else {
		o.failed = "the test program: " + err.Error()
	}
	return o
}
