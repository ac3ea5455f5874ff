// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"sigs.k8s.io/yaml"

	"beeline.io/beeline/test/lab"
	"beeline.io/beeline/test/seed"
)

// The number of scenarios by default, and with -short: with firstSeed enough for nearly all pairs of facts, and for
// each row of differences.md. scenariosOfCommit are drawn in addition, others at each commit.
const (
	scenariosByDefault, scenariosShort = 260, 150
	firstSeed                          = 1
	scenariosOfCommit                  = 30
)

var (
	seedFlag  = seed.New("seed", "seed of the cases; without it some of seed 1 and some of the commit are judged")
	scenarios = flag.Int("scenarios", scenariosByDefault, "how many Services to judge, with ten probes each; with -short no more than 150 unless -case names one")
	only      = flag.String("case", "", "judge only this case, by its ID; a scenario's number stands for all of its cases")
	file      = flag.String("file", "", "judge only the case in this file, as a failure prints it, and no generated ones")
)

// R1 to R31: a client's result at a Service is the same with Beeline as with kube-proxy, except for the rows of
// docs/operate/differences.md.
func TestKubeProxyAndBeelineDoTheSame(t *testing.T) {
	t.Parallel()
	differences, err := ReadDifferences()
	if err != nil {
		t.Fatal(err)
	}
	if testing.Short() {
		*scenarios = min(*scenarios, scenariosShort)
	}
	judge := &Judge{Pair: New(t, beeline, Options{}), Differences: differences}
	switch {
	case *file != "":
		cases := readCases(t, *file)
		prepare(t, judge, cases)
		judgeCases(t, judge, 0, cases).showAll(t)
		return
	case *only != "":
		from := seedFlag.Of(t)
		cases := onlyCases(t, from)
		prepare(t, judge, cases)
		judgeCases(t, judge, from, cases).showAll(t)
		return
	}
	from := uint64(firstSeed)
	if seedFlag.IsSet() {
		from = seedFlag.Of(t)
	}
	n, err := scenariosFor("", *scenarios)
	if err != nil {
		t.Fatal(err)
	}
	r := judgeCases(t, judge, from, loneCases())
	prepare(t, judge, nil)
	cases := Generate(from, n)
	r.add(judgeCases(t, judge, from, cases))
	r.wantWhole(t, differences)
	wantPairs(t, from, cases)
	if seedFlag.IsSet() {
		return
	}
	from = seed.Default(t)
	judgeCases(t, judge, from, slices.DeleteFunc(Generate(from, min(n+scenariosOfCommit, maxScenarios)), func(c *Case) bool {
		return c.Scenario.Number < n // the Services of seed 1 have these numbers, and stay
	}))
}

// prepare creates the Service of hairpin.go, unless the cases are those that are judged without it.
func prepare(t *testing.T, j *Judge, cases []*Case) {
	t.Helper()
	if len(cases) > 0 && cases[0].Scenario.Number == loneNumber {
		return
	}
	if err := j.createHairpins(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// judgeCases judges the cases of a seed, and reports the failed ones.
func judgeCases(t *testing.T, j *Judge, from uint64, cases []*Case) *report {
	t.Helper()
	begin := time.Now()
	verdicts, err := j.Run(t.Context(), cases)
	r := newReport(from, verdicts)
	r.show(t, j.Pair.Sides[0].Lab, time.Since(begin))
	if err != nil {
		t.Fatalf("%d of %d cases have a verdict, then an error: %v", len(verdicts), len(cases), err)
	}
	return r
}

// onlyCases are the cases of a seed that -case names.
func onlyCases(t *testing.T, from uint64) []*Case {
	t.Helper()
	others := func(c *Case) bool { return !isNamed(c.ID, *only) }
	if cases := slices.DeleteFunc(loneCases(), others); len(cases) > 0 {
		return cases
	}
	n, err := scenariosFor(*only, *scenarios)
	if err != nil {
		t.Fatal(err)
	}
	cases := slices.DeleteFunc(Generate(from, n), others)
	if len(cases) == 0 {
		t.Fatalf("seed %d has no case %s", from, *only)
	}
	return cases
}

// scenariosFor is how many scenarios to draw: the number given, or up to that of the one case.
func scenariosFor(id string, n int) (int, error) {
	if id != "" {
		text, _, _ := strings.Cut(id, ".")
		number, err := strconv.Atoi(text)
		if err != nil || number < 0 {
			return 0, fmt.Errorf("-case=%s: begin with a scenario's number, as in 17.4, 17.4s or 17", id)
		}
		n = number + 1
	}
	if n > maxScenarios {
		return 0, fmt.Errorf("%d scenarios: there are node ports for %d", n, maxScenarios)
	}
	return n, nil
}

// isNamed reports whether a case has a name, or must run before the one that has.
func isNamed(id, name string) bool {
	number, _, _ := strings.Cut(id, ".")
	return id == name || id+"s" == name || number == name
}

// readCases reads the case in a file, and puts before one with session affinity the same without, whose verdict
// it needs.
func readCases(t *testing.T, path string) []*Case {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var c Case
	if err := yaml.UnmarshalStrict(text, &c); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	c.ID = strings.TrimSuffix(c.ID, "s")
	if !c.Sticky {
		return []*Case{&c}
	}
	plain := c
	plain.Sticky = false
	c.ID += "s"
	return []*Case{&plain, &c}
}

// wantPairs checks that the cases have nearly all possible pairs of facts: those in a much larger sample.
func wantPairs(t *testing.T, from uint64, cases []*Case) {
	t.Helper()
	possible, met := new(pairs), new(pairs)
	for _, c := range Generate(from+1, 3*(*scenarios)) {
		possible.add(c.factNumbers())
	}
	for _, c := range cases {
		met.add(c.factNumbers())
	}
	all, missing := possible.without(new(pairs)), possible.without(met)
	t.Logf("%d of %d possible pairs of facts have a case", all-missing, all)
	if missing*10 > all {
		t.Errorf("%d of %d pairs of facts have no case: more than one in ten", missing, all)
	}
}

// The same seed makes the same cases, however many follow, so that a case can be judged again by itself.
func TestCasesAreTheSeeds(t *testing.T) {
	t.Parallel()
	text := func(cases []*Case) string {
		out, err := yaml.Marshal(cases)
		if err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
	few, many, others := text(Generate(7, 5)), text(Generate(7, 9)), text(Generate(8, 5))
	if !strings.HasPrefix(many, few) {
		t.Error("the first cases of a seed depend on how many there are")
	}
	if few == others {
		t.Error("two seeds make the same cases")
	}
}

// A printed case can be read again, one with session affinity together with the one whose verdict it needs.
func TestCaseIsItsFile(t *testing.T) {
	t.Parallel()
	text := func(c *Case) string {
		out, err := yaml.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
	cases := Generate(3, 20)
	for i, c := range cases {
		want := []*Case{c}
		if c.Sticky {
			want = []*Case{cases[i-1], c}
		}
		path := saveCase(t, t.TempDir(), c)
		got := readCases(t, path)
		if !slices.EqualFunc(got, want, func(a, b *Case) bool { return text(a) == text(b) }) {
			t.Errorf("case %s is read as %d cases, the last\n%s, want\n%s", c.ID, len(got), text(got[len(got)-1]), text(c))
		}
		whole := commands(&Verdict{Case: c}, 7, path)
		if !strings.HasSuffix(whole[len(whole)-1], " -file="+path) {
			t.Errorf("case %s is judged again by %q: no -file=%s", c.ID, whole, path)
		}
	}
	if !slices.ContainsFunc(cases, func(c *Case) bool { return c.Sticky }) {
		t.Error("no case has session affinity")
	}
}

// To judge one case, only as many scenarios are drawn as needed.
func TestScenariosForCase(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		id      string
		n, want int // 0: an error
	}{
		{"", 260, 260}, {"17", 260, 18}, {"17.4", 5, 18}, {"400.3s", 260, 401}, {"0.0", 260, 1},
		{"", maxScenarios + 1, 0}, {fmt.Sprint(maxScenarios), 1, 0}, {"s17", 260, 0}, {"-1.2", 260, 0},
	} {
		n, err := scenariosFor(c.id, c.n)
		if n != c.want || (err != nil) != (c.want == 0) {
			t.Errorf("-case=%s -scenarios=%d: %d, %v, want %d", c.id, c.n, n, err, c.want)
		}
	}
}

// A result that no server produced is an observation, a mistake of the test itself is an error.
func TestResultOf(t *testing.T) {
	t.Parallel()
	var answer lab.Answer
	foreign := json.Unmarshal([]byte("SSH-2.0"), &answer)
	other := json.Unmarshal([]byte(`{"pod":7}`), &answer)
	for _, c := range []struct {
		err  error
		want string // empty: an error
	}{
		{io.EOF, nonsense}, {fmt.Errorf("answer: %w", io.ErrUnexpectedEOF), nonsense}, {fmt.Errorf("answer: %w", foreign), nonsense},
		{other, nonsense}, {errNonsense, nonsense}, {errMisnamed, misnamed}, {os.ErrDeadlineExceeded, silence},
		{os.NewSyscallError("connect", unix.ECONNREFUSED), refused}, {os.NewSyscallError("connect", unix.EPERM), denied},
		{errors.New("no such namespace"), ""}, {context.Canceled, ""},
	} {
		got, err := resultOf(c.err)
		if got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%v: %q, %v, want %q", c.err, got, err, c.want)
		}
	}
}

// Silence that is not there when a case runs again is counted, by sides, and too much on Beeline's is a failure.
func TestExcusedSilence(t *testing.T) {
	heard, nothing := Outcome{{Result: answered, Backend: "a1"}}, Outcome{{Result: silence}, {Result: answered, Backend: "a1"}}
	of := func(kubeProxy, beeline Outcome, first *Verdict) *Verdict {
		return &Verdict{Case: &Case{}, KubeProxy: kubeProxy, Beeline: beeline, First: first}
	}
	again := of(heard, heard, of(heard, heard, of(heard, nothing, nil)))
	for _, c := range []struct {
		what   string
		all    []*Verdict
		failed bool
	}{
		{"a few", slices.Repeat([]*Verdict{again}, few), false},
		{"more than a few", slices.Repeat([]*Verdict{again}, few+1), true},
		{"as much on the other side", append(slices.Repeat([]*Verdict{again}, few+1), of(heard, heard, of(nothing, heard, nil))), false},
		{"still silent: it is judged as such", slices.Repeat([]*Verdict{of(nothing, nothing, of(heard, nothing, nil))}, few+1), false},
	} {
		l := &listener{TB: t}
		newReport(0, c.all).wantFewExcused(l)
		if l.failed != c.failed {
			t.Errorf("%s: failed: %v, want %v", c.what, l.failed, c.failed)
		}
	}
}

// A listener notes whether a test would have failed.
type listener struct {
	testing.TB
	failed bool
}

func (l *listener) Errorf(string, ...any) { l.failed = true }
func (l *listener) Logf(string, ...any)   {}
