// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"beeline.io/beeline/test/lab"
)

// report counts verdicts.
type report struct {
	seed                    uint64 // of the cases; 0: they are from a file
	all                     []*Verdict
	same, explained, failed []*Verdict
	byRow                   map[*Difference]int
}

func newReport(from uint64, verdicts []*Verdict) *report {
	r := &report{seed: from, all: verdicts, byRow: map[*Difference]int{}}
	for _, v := range verdicts {
		switch {
		case v.Same() && len(v.Rows) == 0:
			r.same = append(r.same, v)
		case v.Same():
			r.explained = append(r.explained, v)
			for _, row := range v.Rows {
				r.byRow[row]++
			}
		default:
			r.failed = append(r.failed, v)
		}
	}
	return r
}

// add adds the verdicts of another report.
func (r *report) add(other *report) {
	both := newReport(other.seed, append(r.all, other.all...))
	*r = *both
}

// shown is how many failures are printed in full, of different scenarios.
const shown = 3

func (r *report) show(t *testing.T, l *lab.Lab, took time.Duration) {
	t.Helper()
	whole := map[int]bool{} // by scenario
	for _, v := range r.failed {
		if len(whole) < shown && !whole[v.Scenario.Number] {
			whole[v.Scenario.Number] = true
			t.Errorf("%s", r.describe(t, l, v))
		} else {
			t.Errorf("case %s, %+v: kube-proxy: %v; Beeline: %v; want: %v", v.ID, v.Probe, v.KubeProxy, v.Beeline, v.Expected)
		}
	}
	r.showTwice(t)
	t.Logf("-seed=%d: %d cases judged in %v: %d the same, %d different as documented, %d unexplained",
		r.seed, len(r.all), took.Round(time.Second), len(r.same), len(r.explained), len(r.failed))
}

// showTwice prints the cases that ran more than once, with their first results.
func (r *report) showTwice(t *testing.T) {
	t.Helper()
	var twice []string
	for _, v := range r.all {
		if v.First != nil {
			twice = append(twice, fmt.Sprintf("\n%s %+v: before, kube-proxy: %v; Beeline: %v; want: %v",
				v.ID, v.Probe, v.First.KubeProxy, v.First.Beeline, v.First.Expected))
		}
	}
	t.Logf("%d cases ran again%s", len(twice), strings.Join(twice, ""))
	r.wantFewExcused(t)
}

// wantFewExcused: silence that was not there when a case ran again can be due to a busy machine, or to Beeline. The
// machine delays both sides alike, and a few cases more on one of them are chance.
func (r *report) wantFewExcused(t testing.TB) {
	t.Helper()
	var kubeProxy, beeline int
	for _, v := range r.all {
		if v.excused(func(v *Verdict) Outcome { return v.KubeProxy }) {
			kubeProxy++
		}
		if v.excused(func(v *Verdict) Outcome { return v.Beeline }) {
			beeline++
		}
	}
	if beeline > 0 {
		t.Logf("excused: silence of Beeline in %d of %d cases that was none when they ran again, and of kube-proxy in %d", beeline, len(r.all), kubeProxy)
	}
	if beeline > kubeProxy+few {
		t.Errorf("Beeline was silent in %d cases, and kube-proxy in %d, that were not when they ran again: at most %d more are chance", beeline, kubeProxy, few)
	}
}

// excused reports whether a side was silent in an earlier run of the case and not in the last.
func (v *Verdict) excused(side func(*Verdict) Outcome) bool {
	silent := func(v *Verdict) bool { return slices.Contains(side(v), Observation{Result: silence}) }
	if silent(v) {
		return false
	}
	for before := v.First; before != nil; before = before.First {
		if silent(before) {
			return true
		}
	}
	return false
}

// showAll prints the result of each case, and why it is right.
func (r *report) showAll(t *testing.T) {
	t.Helper()
	for _, v := range r.all {
		text := fmt.Sprintf("case %s, %+v: kube-proxy: %v; Beeline: %v; want: %v", v.ID, v.Probe, v.KubeProxy, v.Beeline, v.Expected)
		for _, row := range v.Rows {
			text += fmt.Sprintf("; docs/operate/differences.md:%d", row.Line)
		}
		t.Log(text)
	}
}

// wantWhole checks that there are enough cases, unless fewer were asked for, and that each row of the document
// applies to some.
func (r *report) wantWhole(t *testing.T, differences []*Difference) {
	t.Helper()
	if n, want := len(r.all), 8*(*scenarios); n < want && *scenarios >= scenariosShort {
		t.Errorf("%d cases were judged, want at least %d", n, want)
	}
	for _, row := range differences {
		t.Logf("docs/operate/differences.md:%d explains %d cases", row.Line, r.byRow[row])
		if r.byRow[row] == 0 {
			t.Errorf("docs/operate/differences.md:%d has a difference that no case shows: the row is wrong, or cases are missing", row.Line)
		}
	}
}

// describe prints a failed case for analysis: both results, commands to judge it again, the case, and its
// objects.
func (r *report) describe(t *testing.T, l *lab.Lab, v *Verdict) string {
	t.Helper()
	var b strings.Builder
	fmt.Fprintf(&b, "case %s: Beeline does not do what kube-proxy does, and docs/operate/differences.md does not document it.\n", v.ID)
	fmt.Fprintf(&b, "kube-proxy: %v\nBeeline:    %v\nwanted:     %v\n", v.KubeProxy, v.Beeline, v.Expected)
	path := *file
	if path == "" {
		path = saveCase(t, os.TempDir(), v.Case) // it must outlive the test
	}
	for _, command := range commands(v, r.seed, path) {
		fmt.Fprintf(&b, "again: %s\n", command)
	}
	objects := []any{v.Case, v.Scenario.Service()}
	for _, slice := range v.Scenario.EndpointSlices(l) {
		objects = append(objects, slice)
	}
	if other, slices := v.Scenario.Companion(l); other != nil {
		objects = append(objects, other)
		for _, slice := range slices {
			objects = append(objects, slice)
		}
	}
	for i, object := range objects {
		text, err := yaml.Marshal(object)
		if err != nil {
			t.Fatal(err)
		}
		if i == 1 {
			b.WriteString("its objects:\n")
		}
		fmt.Fprintf(&b, "---\n%s", text)
	}
	return b.String()
}

// saveCase writes a case to a file of its own.
func saveCase(t *testing.T, dir string, c *Case) (path string) {
	t.Helper()
	text, err := yaml.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.CreateTemp(dir, "case-"+c.ID+"-*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Write(text); err != nil {
		t.Fatal(err)
	}
	return f.Name()
}

// commands judge a case again: as it was drawn, and from its file. A wandering client shows only together with
// the other cases of its scenario.
func commands(v *Verdict, from uint64, path string) []string {
	const begin = "make build controlplane && cd test/cluster && go test ./judge -v -run TestKubeProxyAndBeelineDoTheSame"
	drawn := fmt.Sprintf("%s -seed=%d -case=%s", begin, from, v.ID)
	written := fmt.Sprintf("%s -file=%s", begin, path)
	switch {
	case *file != "":
		return []string{written}
	case v.KubeProxy.wanders() || v.Beeline.wanders():
		return []string{fmt.Sprintf("%s -seed=%d -case=%d", begin, from, v.Scenario.Number)}
	}
	return []string{drawn, written}
}

// The judge can read the document's table, and refuses one with an unknown word, with its line.
func TestDifferencesAreRead(t *testing.T) {
	t.Parallel()
	if _, err := ReadDifferences(); err != nil {
		t.Error(err)
	}
	head := "# title\n\n| case | kube-proxy | Beeline | why | switch |\n|---|---|---|---|---|\n"
	good := "| `from=pod,node` words | `result=silence`: words | `result=denied` | why | - |\n"
	for row, want := range map[string]string{
		good: "",
		"| `from=node to=localhost` | `any` | `as to=nodePort`: words | why | `--flag` |\n": "",
		"| from=pod | `any` | `source=own` | why | - |\n":                                   "cell 1 does not begin with a pattern",
		"| `form=pod` | `any` | `source=own` | why | - |\n":                                 `there is no fact "form"`,
		"| `from=pod` | `answer=no` | `source=own` | why | - |\n":                           `there is no fact "answer"`,
		"| `from=pod` | `any` | `source=own,node` | why | - |\n":                            "becomes one of",
		"| `from=pod` | `any` | `as source=own` | why | - |\n":                              `there is no fact "source"`,
		"| `from=pod from=node` | `any` | `source=own` | why | - |\n":                       "occurs twice",
		"| `from` | `any` | `source=own` | why | - |\n":                                     "write name=value",
		"| `from=pod` | `any` | `source=own` | why |\n":                                     "4 cells",
	} {
		rows, err := parseDifferences(head + row + "\n| `not` | of the first table |\n")
		if want == "" {
			if err != nil || len(rows) != 1 || rows[0].Line != 5 {
				t.Errorf("%s: %d rows, %v", row, len(rows), err)
			}
		} else if err == nil || !strings.Contains(err.Error(), "line 5: ") || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q and the line", row, err, want)
		}
	}
	if _, err := parseDifferences(head); err == nil {
		t.Error("a table without rows is accepted")
	}
}

// A row applies only to its own cases.
func TestDifferenceIsApplied(t *testing.T) {
	t.Parallel()
	rows, err := parseDifferences("|a|\n|-|\n" +
		"| `from=pod to=ingress` | `result=silence` | `result=answer backend=self source=own` | why | - |\n" +
		"| `from=pod` | `result=silence` | `result=denied` | why | - |\n" +
		"| `from=pod to=clusterIP` | `backend=self source=node` | `source=own` | why | - |\n")
	if err != nil {
		t.Fatal(err)
	}
	c := &Case{Probe: Probe{From: "a1", To: "clusterIP"}}
	for before, after := range map[Observation]Observation{
		{Result: silence}:                   {Result: denied},
		{Result: refused}:                   {Result: refused},
		{answered, "a1", "node"}:            {answered, "a1", "own"},
		{answered, "a2", "node"}:            {answered, "a2", "node"},
		{answered, "a1", "192.168.200.254"}: {answered, "a1", "192.168.200.254"},
	} {
		got := before
		if row := differs(rows, c, before); row != nil {
			got = row.become(c, before)
		}
		if got != after {
			t.Errorf("%v becomes %v, want %v", before, got, after)
		}
	}
	itself := &Case{Probe: Probe{From: "a1", To: "ingress"}}
	if got, want := rows[0].become(itself, Observation{Result: silence}), (Observation{answered, "a1", "own"}); got != want {
		t.Errorf("silence becomes %v, want %v", got, want)
	}
	elsewhere := &Case{Probe: Probe{From: "node-a", To: "clusterIP"}}
	if row := differs(rows, elsewhere, Observation{Result: silence}); row != nil {
		t.Errorf("a row for pods applies to a node: line %d", row.Line)
	}
}
