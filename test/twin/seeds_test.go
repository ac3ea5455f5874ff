// SPDX-License-Identifier: Apache-2.0

package twin

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// A find is a row of the table in README.md: a walk that has found a fault.
type find struct {
	layout, scenario string
	seed, step       uint64
}

// enough are the seeds and steps that are tried for another find.
const enough = 400

// Each seed in README.md still draws, up to its step, the scenario by which it has found a fault.
func TestSeeds(t *testing.T) {
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, ok := strings.Cut(string(text), "| fault | layout | scenario | seed | step |\n")
	if !ok {
		t.Fatal("README.md has no table of seeds")
	}
	rows := 0
	for line := range strings.Lines(table) {
		cells := strings.Split(strings.Trim(line, "| \n"), " | ")
		if strings.HasPrefix(line, "|---") {
			continue
		}
		if len(cells) != 5 {
			break
		}
		f := find{layout: cells[1], scenario: cells[2]}
		var errs [2]error
		f.seed, errs[0] = strconv.ParseUint(cells[3], 10, 64)
		f.step, errs[1] = strconv.ParseUint(cells[4], 10, 64)
		if errs != [2]error{} {
			t.Errorf("%s: %v", line, errs)
		} else if !f.draws() {
			t.Errorf("%s: this seed does not draw this; %s", strings.TrimSpace(line), f.other())
		}
		rows++
	}
	if rows == 0 {
		t.Error("the table of seeds has no rows")
	}
}

// draws reports whether the walk has the scenario in its step.
func (f *find) draws() bool {
	i := slices.IndexFunc(layouts, func(l *layout) bool { return l.name == f.layout })
	if i < 0 {
		return false
	}
	p := newPlan(layouts[i], f.seed, 0)
	for range f.step - 1 {
		p.next()
	}
	s := p.next()
	return f.scenario == plain && len(p.active) == 0 || s.has(p.active, f.scenario)
}

// other names the first step in which another seed draws the scenario.
func (f *find) other() string {
	for step := range uint64(12) {
		for seed := range uint64(enough) {
			if g := (find{f.layout, f.scenario, seed + 1, step + 1}); g.draws() {
				return "seed " + strconv.FormatUint(seed+1, 10) + " does in step " + strconv.FormatUint(step+1, 10)
			}
		}
	}
	return "no other one does"
}

// has reports whether a scenario is in force after a step, or its frames are of that kind.
func (s *step) has(active []change, scenario string) bool {
	if slices.ContainsFunc(active, func(c change) bool { return c.name == scenario }) {
		return true
	}
	return slices.ContainsFunc(s.frames, func(d draft) bool {
		return slices.ContainsFunc(d.kinds, func(k kind) bool { return k.name == scenario })
	})
}
