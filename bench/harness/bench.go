// SPDX-License-Identifier: Apache-2.0

// Package harness has what all parts of the benchmark measure with: a run and its settings, labs with agents and
// servers, Services, loads, the machine, common metrics, and the text of the results.
package harness

import (
	"context"
	"fmt"
	"io"
	"regexp"
	"time"

	"beeline.io/beeline/bench/result"
	"beeline.io/beeline/bench/stat"
)

// Settings are those of a run that parts read.
type Settings struct {
	Program string
	// ControlPlane is Kubernetes, for the sides with kube-proxy; optional.
	ControlPlane string
	// Envoy is a proxy of the part mesh; optional.
	Envoy string
	Runs  int
	Slice time.Duration
	CPUs  string
	Smoke bool
	Only  *regexp.Regexp // nil: all cases
}

// Bench is one run.
type Bench struct {
	Settings
	Report
	One, Two result.CPUPair // the CPUs of the endpoints
}

// New starts a run without results, which is printed to out.
func New(s Settings, out io.Writer) (*Bench, error) {
	b := &Bench{Settings: s, Report: Report{Out: out}}
	var err error
	if b.One, b.Two, err = ChooseCPUs(); err != nil {
		return nil, err
	}
	b.Results = &result.File{
		Schema: result.Schema, Started: time.Now().UTC().Truncate(time.Second), Machine: thisMachine(), LoadBefore: LoadAverage(),
		Settings: result.Settings{Runs: s.Runs, Slice: s.Slice.Seconds(), CPUs: s.CPUs, One: b.One, Two: b.Two, Smoke: s.Smoke},
	}
	return b, nil
}

// A Part measures one thing, in labs of its own.
type Part struct {
	Name string // as in its rows
	Text string
	// Named means that it is measured only if selected by name.
	Named bool
	Run   func(context.Context, *Bench) error
	Print func(*Report)
}

// Report is the text of the results.
type Report struct {
	Out     io.Writer
	Results *result.File
}

// Say prints a line.
func (r *Report) Say(format string, args ...any) { fmt.Fprintf(r.Out, format+"\n", args...) }

// Ratios are those of a side to another one, in some metrics.
func (r *Report) Ratios(side, by result.Series, metrics ...result.Metric) (text string) {
	for _, m := range metrics {
		text += fmt.Sprintf("  %s %s", m.Name, stat.MedianInterval(stat.Ratios(r.Results.Samples(side, m), r.Results.Samples(by, m))))
	}
	return text
}

// PrintHead prints the machine and the program.
func (r *Report) PrintHead() {
	r.Say("%s, %s", r.Results.Program, r.Results.Started.Format(time.DateTime))
	r.Say("%s", r.Results.Machine)
	r.Say("Load average %s.", r.Results.LoadBefore)
	if r.Results.Settings.Smoke {
		r.Say("A smoke test: the figures mean nothing.")
	}
}

// PrintTitle prints the head of a part.
func (r *Report) PrintTitle(p Part) { r.Say("\n== %s: %s", p.Name, p.Text) }

// PrintFoot prints how the run went.
func (r *Report) PrintFoot() {
	took := time.Duration(r.Results.Took * float64(time.Second))
	r.Say("\nDone in %s. Load average %s before, %s after.", took.Round(time.Second), r.Results.LoadBefore, r.Results.LoadAfter)
	n := r.Results.Noise
	r.Say("Meanwhile other processes used %.0f %% of the machine, and the hypervisor took %.0f %%.", 100*n.Others, 100*n.Stolen)
	if n.Noisy() {
		r.Say("That is noise: look at the intervals, or measure again when nothing else runs.")
	}
}
