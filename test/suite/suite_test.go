// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// sources are packages whose tests end in every possible way.
var sources = map[string]string{
	"go.mod": "module example.com/m\n\ngo 1.21\n",
	"good/good_test.go": `package good
import "testing"
func TestQuiet(t *testing.T) { t.Log("a passing test has spoken") }
func TestParts(t *testing.T) {
	t.Run("one", func(t *testing.T) {})
	t.Run("two", func(t *testing.T) { t.Skip("no second thing here") })
}
func TestExcuses(t *testing.T) { t.Log("excused: 3 of 400 datagrams were sent again") }`,
	"bad/bad_test.go": `package bad
import "testing"
func TestWell(t *testing.T) { t.Log("a passing test has spoken") }
func TestParts(t *testing.T) {
	t.Run("one", func(t *testing.T) {})
	t.Run("two", func(t *testing.T) { t.Fatal("two is wrong") })
}`,
	"panics/panics_test.go": `package panics
import "testing"
func TestPanics(t *testing.T) { t.Parallel(); panic("out of hand") }
func TestWaits(t *testing.T) { t.Parallel(); select {} }`,
	"hangs/hangs_test.go": `package hangs
import "testing"
import "time"
func TestHangs(t *testing.T) { time.Sleep(time.Hour) }`,
	"broken/broken_test.go": `package broken
func nonsense() int { return "text" }`,
	"leaves/leaves_test.go": `package leaves
import ("os"; "testing")
func TestMain(m *testing.M) { m.Run(); os.Exit(3) }
func TestWell(t *testing.T) {}`,
	"empty/empty.go": "package empty\n",
}

// runSteps runs steps in the folder of the sources, one after the other.
func runSteps(t *testing.T, beat time.Duration, steps ...step) (ok bool, said string) {
	t.Helper()
	p := &plan{}
	for _, s := range steps {
		p.add(s)
	}
	return runGroups(t, beat, p.groups)
}

// runGroups runs groups of steps in the folder of the sources.
func runGroups(t *testing.T, beat time.Duration, groups []group) (ok bool, said string) {
	t.Helper()
	dir := t.TempDir()
	for name, text := range sources {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, g := range groups {
		for _, steps := range g {
			for i := range steps {
				steps[i].command = "cd " + dir + " && " + steps[i].command
			}
		}
	}
	var out, log bytes.Buffer
	ok = run(groups, newConsole(&out, beat), &log, "")
	if len(groups) > 0 && log.Len() == 0 {
		t.Error("the log is empty")
	}
	return ok, out.String()
}

// However a step's command ends, the suite counts it, names it and fails unless it succeeded.
func TestOutcomes(t *testing.T) {
	for _, c := range []struct {
		what     string
		step     step
		ok       bool
		want     []string // regular expressions
		wantNone []string
	}{
		{"passing tests are quiet, and skipped ones are named", step{kindGo, "s", "go test -json -count=1 ./good ./empty"}, true,
			[]string{`\ns +3 +0 +0 +1 `, `good TestParts/two: no second thing here`, `Excused:\n.*good TestExcuses: 3 of 400 datagrams`, `Nothing failed`}, []string{"has spoken"}},
		{"a failing test says why", step{kindGo, "s", "go test -json -count=1 ./bad ./good"}, false,
			[]string{`\ns +5 +0 +1 +1 `, `two is wrong`, `FAILED:\n  example.com/m/bad TestParts/two\n    bad_test.go:\d+: two is wrong\n`}, []string{"has spoken", "TestParts\n"}},
		{"a panic fails what ran", step{kindGo, "s", "go test -json ./panics"}, false,
			[]string{`panic: out of hand`, `FAILED:\n.*panics TestPanics\n(    .*\n)*.*panics TestWaits\n`}, nil},
		{"so does a timeout", step{kindGo, "s", "go test -json -timeout 1s ./hangs"}, false,
			[]string{`test timed out after 1s`, `FAILED:\n.*hangs TestHangs\n`}, nil},
		{"a package that does not build fails", step{kindGo, "s", "go test -json -count=1 ./broken ./good"}, false,
			[]string{`broken_test.go:2`, `FAILED:\n  example.com/m/broken\n`, `\ns +3 +0 +1 +1 `}, nil},
		{"so does one whose tests pass and that ends badly", step{kindGo, "s", "go test -json ./leaves"}, false,
			[]string{`FAILED:\n  example.com/m/leaves\n(    .*\n)*`, `\ns +1 +0 +1 +0 `}, nil},
		{"a step that runs no test fails", step{kindGo, "s", "go test -json ./empty"}, false,
			[]string{`FAILED:\n  s: no test ran\n`}, nil},
		{"results that go test has found before are counted", step{kindGo, "s", "go test -json ./good >/dev/null && go test -json ./good"}, true,
			[]string{`\ns +3 +3 +0 +1 `, `good: 3 tests, as found before`}, nil},
		{"a command that does not start fails", step{kindGo, "s", "go test -json ./nowhere"}, false,
			[]string{`FAILED:\n`, `\ns +0 +0 +1 +0 `}, nil},
		{"what the kernels' part says is counted", step{kindRun, "s", "echo 'SKIP TestA/b: no such kernel'; echo 'Linux 6.1: 5 passed, 1 skipped, 0 failed, 0 not run, in 9 s'"}, true,
			[]string{`\ns +5 +0 +0 +1 `, `s TestA/b: no such kernel`}, nil},
		{"and kernels that were not run", step{kindRun, "s", "echo 'SKIP Linux 6.1: not run (TestA): no emulator'; echo 'SKIP Linux 6.12: not run (TestA): no emulator'"}, true,
			[]string{`\ns +0 +0 +0 +2 `, `s Linux 6.1, s Linux 6.12: not run \(TestA\): no emulator`}, nil},
		{"and failures", step{kindRun, "s", "echo 'NOT RUN TestB'; echo 'FAIL TestC'; exit 1"}, false,
			[]string{`\ns +0 +0 +2 +0 `, `FAILED:\n  s TestB\n  s TestC\n`}, nil},
		{"a quiet command that fails shows all", step{kindQuiet, "s", "echo first; echo second >&2; exit 4"}, false,
			[]string{"first\nsecond\n", `FAILED:\n  s: exit status 4`}, nil},
		{"one that does not is quiet", step{kindQuiet, "s", "echo first"}, true, []string{`^s: done in 0 s\n$`}, nil},
	} {
		t.Run(c.what, func(t *testing.T) {
			t.Parallel()
			ok, said := runSteps(t, time.Hour, c.step)
			if ok != c.ok {
				t.Errorf("ok is %v, want %v", ok, c.ok)
			}
			for _, want := range c.want {
				if !regexp.MustCompile(want).MatchString(said) {
					t.Errorf("the output does not contain %q", want)
				}
			}
			for _, none := range c.wantNone {
				if strings.Contains(said, none) {
					t.Errorf("the output contains %q", none)
				}
			}
			if t.Failed() {
				t.Log(said)
			}
		})
	}
}

// The steps after a failed one run, and the suite fails.
func TestAllStepsRun(t *testing.T) {
	ok, said := runSteps(t, time.Hour, step{kindRun, "first", "false"}, step{kindRun, "second", "echo here"})
	if ok || !strings.Contains(said, "here\n") || !strings.Contains(said, "FAILED:\n  first: exit status 1") {
		t.Errorf("ok is %v; output:\n%s", ok, said)
	}
}

// Steps of one group run side by side: here each waits for the other. One after --then waits for the one before it
// alone. The next group waits for all of them.
func TestStepsBesideOneAnother(t *testing.T) {
	meet := func(own, other string) string {
		return fmt.Sprintf("(echo is there >%s; for n in $(seq 100); do if grep -s there %s; then exit 0; fi; sleep 0.1; done; echo %s is alone; exit 1)", own, other, own)
	}
	p := &plan{}
	steps := stepFlag{kindRun, p}
	err := errors.Join(steps.Set("one="+meet("a", "b")), joinFlag{"then", p}.Set("true"), steps.Set("after one="+meet("c", "d")),
		joinFlag{"beside", p}.Set("true"), steps.Set("two="+meet("b", "a")+" && test -e a && "+meet("d", "c")), steps.Set("three=cat a b c d"))
	if err != nil {
		t.Fatal(err)
	}
	if ok, said := runGroups(t, time.Hour, p.groups); !ok || strings.Count(said, "is there") != 8 {
		t.Errorf("ok is %v; output:\n%s", ok, said)
	}
	for _, wrong := range []*plan{{}, {groups: p.groups, join: "then"}} {
		if err := (joinFlag{"beside", wrong}).Set("true"); err == nil {
			t.Errorf("--beside is accepted after %+v", wrong)
		}
	}
}

// While nothing is printed, the suite reports progress.
func TestProgress(t *testing.T) {
	wait := func(what string) string {
		return fmt.Sprintf("echo %s; sleep 1; true", what)
	}
	for _, c := range []struct {
		step step
		want string
	}{
		{step{kindQuiet, "build", wait("k8s.io/api/core/v1")}, `\[[0-9.]*m?s\] build: 1 lines so far, the last: k8s.io/api/core/v1\n`},
		{step{kindRun, "kernels", wait("booting")}, `\] kernels: 1 lines so far, the last: booting\n`},
		{step{kindGo, "tests", "go test -json -timeout 5s ./hangs"}, `\] tests: 0 passed, 0 failed; 1 run, for the longest time example.com/m/hangs TestHangs \([0-9]+s\)\n`},
	} {
		t.Run(c.step.name, func(t *testing.T) {
			t.Parallel()
			if _, said := runSteps(t, 100*time.Millisecond, c.step); !regexp.MustCompile(c.want).MatchString(said) {
				t.Errorf("the output does not contain %q:\n%s", c.want, said)
			}
		})
	}
}
