// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"time"

	"beeline.io/beeline/bench/result"
)

// report is the text of the results.
type report struct {
	out     io.Writer
	results *result.File
}

// say prints a line.
func (r *report) say(format string, args ...any) { fmt.Fprintf(r.out, format+"\n", args...) }

// printHead prints the machine and the program.
func (r *report) printHead() {
	r.say("%s, %s", r.results.Program, r.results.Started.Format(time.DateTime))
	r.say("%s", r.results.Machine)
	r.say("Load average %s.", r.results.LoadBefore)
	if r.results.Settings.Smoke {
		r.say("A smoke test: the figures mean nothing.")
	}
}

// printTitle prints the head of a part.
func (r *report) printTitle(p part) { r.say("\n== %s: %s", p.name, p.text) }

// printFoot prints how the run went.
func (r *report) printFoot() {
	took := time.Duration(r.results.Took * float64(time.Second))
	r.say("\nDone in %s. Load average %s before, %s after.", took.Round(time.Second), r.results.LoadBefore, r.results.LoadAfter)
	n := r.results.Noise
	r.say("Meanwhile other processes used %.0f %% of the machine, and the hypervisor took %.0f %%.", 100*n.Others, 100*n.Stolen)
	if n.Noisy() {
		r.say("That is noise: look at the intervals, or measure again when nothing else runs.")
	}
}
