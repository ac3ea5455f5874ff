// SPDX-License-Identifier: Apache-2.0

package socket

import (
	"fmt"
	"log/slog"
	"slices"
	"sync"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/part/optout"
	"beeline.io/beeline/internal/util/plural"
)

// optOuts are the pods that opted out of the socket shortcut.
type optOuts struct {
	tracker  *optout.Tracker
	log      *slog.Logger
	selected *service.OptOuts
	changed  bool // selected, since it was last written to the tables

	mu sync.Mutex
	// problems are those of objects that opt pods out.
	problems []service.ObjectProblem
}

// checkOptOuts returns the problems of objects that opt pods out.
func checkOptOuts(node string, objects []service.Change) []service.ObjectProblem {
	all := service.NewOptOuts(node)
	all.Apply(objects)
	return all.Problems()
}

func (o *optOuts) objects(changes []service.Change) {
	o.changed = o.selected.Apply(changes) || o.changed
}

// prepare writes the pods that opted out to the tables. When it returns, all running ones are there.
func (o *optOuts) prepare(service.Delta) {
	if !o.changed {
		return
	}
	o.changed = false
	o.tracker.SetPods(o.selected.Pods())
	problems := o.selected.Problems()
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, p := range problems {
		if !slices.Contains(o.problems, p) {
			p.Problem.At(p.Object.String()).Log(o.log, "cannot apply an opt-out of the socket shortcut")
		}
	}
	o.problems = problems
}

// audit repairs the table of pods that opted out.
func (o *optOuts) audit() (repaired []string, err error) {
	n, err := o.tracker.Audit()
	if n > 0 {
		repaired = append(repaired, fmt.Sprintf("%s of the table of opted-out pods", plural.Of(n, "entry")))
	}
	if err != nil {
		err = fmt.Errorf("the table of opted-out pods: %w", err)
	}
	return repaired, err
}

// status adds the opted-out pods, and problems with opting out.
func (o *optOuts) status(s *api.Status) {
	s.OptedOut = o.tracker.Status() // first, because it may wait for a scan of all pods
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, p := range o.problems {
		s.AddProblem(p.Object, p.Problem)
	}
}
