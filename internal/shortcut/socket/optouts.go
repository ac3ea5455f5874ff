// SPDX-License-Identifier: Apache-2.0

package socket

import (
	"fmt"
	"log/slog"
	"slices"
	"sync"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/component"
	"beeline.io/beeline/internal/part/optout"
	"beeline.io/beeline/internal/util/plural"
)

// optOuts are the pods that opted out of the socket shortcut.
type optOuts struct {
	tracker *optout.Tracker
	log     *slog.Logger

	mu sync.Mutex
	// problems are those of objects that opt pods out.
	problems []service.ObjectProblem
}

// prepare writes the pods that opted out to the tables. When it returns, all running ones are there.
func (o *optOuts) prepare(change component.Change) {
	if !change.OptOutsChanged {
		return
	}
	o.tracker.SetPods(change.OptOuts.Pods())
	problems := change.OptOuts.Problems()
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
