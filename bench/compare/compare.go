// SPDX-License-Identifier: Apache-2.0

// Package compare compares two runs of the benchmark.
//
// The rounds of two runs are independent of each other, so a row's samples are compared as two samples
// (stat.RatioShift). Sides that took turns in one run are paired, round by round: if a row names another side,
// both runs also have the ratios to that side, and these are compared as two samples. A machine that was slower
// during a whole run slows both sides, and cancels out. So these ratios decide, if there are any.
package compare

import (
	"errors"
	"math"

	"beeline.io/beeline/bench/result"
	"beeline.io/beeline/bench/stat"
)

// A Comparison is of all common rows of two runs, in the new one's order.
type Comparison struct {
	Old      Run      `json:"old"`
	New      Run      `json:"new"`
	Warnings []string `json:"warnings"`
	Noisy    bool     `json:"noisy"` // one of the runs was: verdicts may be due to other programs
	Rows     []Row    `json:"rows"`
	Better   int      `json:"better"` // rows
	Worse    int      `json:"worse"`
}

// Run identifies a run.
type Run struct {
	Program string `json:"program"`
	Started string `json:"started"`
	Machine string `json:"machine"`
}

// A Row is the change of one figure.
type Row struct {
	result.Series
	result.Metric
	Old float64 `json:"old"` // medians
	New float64 `json:"new"`
	// Ratio is new by old; nil if a sample is not positive.
	Ratio *stat.Shift `json:"ratio"`
	// Relative is the same relative to another side of each run.
	Relative *Relative `json:"relative,omitempty"`
	Verdict  Verdict   `json:"verdict"`
}

// Relative is a row divided by its counterpart of the same run, and the change of that.
type Relative struct {
	Against string        `json:"against"`
	Old     stat.Interval `json:"old"` // of the ratios within the rounds
	New     stat.Interval `json:"new"`
	Ratio   stat.Shift    `json:"ratio"` // new by old
}

// Verdict says whether a change is more than chance.
type Verdict string

// A verdict other than Unclear needs a 95 % interval that excludes 1, and at most one in twenty of all such
// verdicts is by chance (stat.Discoveries). Unclear does not mean unchanged.
const (
	Better  Verdict = "better"
	Worse   Verdict = "worse"
	Unclear Verdict = "unclear"
)

// Of compares two runs.
func Of(old, now *result.File) (*Comparison, error) {
	c := &Comparison{Old: runOf(old), New: runOf(now), Warnings: warnings(old, now), Noisy: old.Noise.Noisy() || now.Noise.Noisy()}
	known := map[string]result.Row{}
	for _, r := range old.Rows {
		known[r.Identity()] = r
	}
	for _, after := range now.Rows {
		before, common := known[after.Identity()]
		if common && after.Better == before.Better && after.Better != result.None {
			c.Rows = append(c.Rows, rowOf(old, now, before, after))
		}
	}
	if len(c.Rows) == 0 {
		return nil, errors.New("the two runs have no row in common: no part, scenario, side, parameters and metric are the same")
	}
	c.judge()
	return c, nil
}

func runOf(f *result.File) Run {
	return Run{f.Program, f.Started.UTC().Format("2006-01-02 15:04:05"), f.Machine.String()}
}

func rowOf(old, now *result.File, before, after result.Row) Row {
	r := Row{Series: after.Series, Metric: after.Metric, Old: stat.Median(before.Samples), New: stat.Median(after.Samples), Verdict: Unclear}
	if ratio := stat.RatioShift(after.Samples, before.Samples); !math.IsNaN(ratio.Median) {
		r.Ratio = &ratio
	}
	if before.Against != after.Against {
		return r
	}
	was := stat.Ratios(before.Samples, old.Counterpart(before))
	is := stat.Ratios(after.Samples, now.Counterpart(after))
	if ratio := stat.RatioShift(is, was); !math.IsNaN(ratio.Median) {
		r.Relative = &Relative{after.Against, stat.MedianInterval(was), stat.MedianInterval(is), ratio}
	}
	return r
}

// Decisive is the ratio that decides: the one relative to another side if there is one, or the plain one; nil
// if there is neither.
func (r Row) Decisive() *stat.Shift {
	if r.Relative != nil {
		return &r.Relative.Ratio
	}
	return r.Ratio
}

// judge gives rows their verdicts, separately for those with a counterpart and those without: a slower machine
// makes discoveries of all of the latter, and one in twenty would be many.
func (c *Comparison) judge() {
	for _, relative := range []bool{true, false} {
		var tested []*Row
		var p []float64
		for i := range c.Rows {
			if shift := c.Rows[i].Decisive(); shift != nil && relative == (c.Rows[i].Relative != nil) {
				tested, p = append(tested, &c.Rows[i]), append(p, shift.P)
			}
		}
		for i, believed := range stat.Discoveries(p) {
			if believed {
				c.count(tested[i])
			}
		}
	}
}

func (c *Comparison) count(row *Row) {
	shift := row.Decisive()
	switch {
	case !shift.Clear():
	case (shift.Low > 1) == (row.Metric.Better == result.Higher):
		row.Verdict = Better
		c.Better++
	default:
		row.Verdict = Worse
		c.Worse++
	}
}
