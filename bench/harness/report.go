// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"fmt"
	"io"
	"time"

	"beeline.io/beeline/bench/result"
)

// Report is the text of the results.
type Report struct {
	Out     io.Writer
	Results *result.File
}

// Say prints a line.
func (r *Report) Say(format string, args ...any) { fmt.Fprintf(r.Out, format+"\n", args...) }

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
