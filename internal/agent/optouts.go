// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"slices"

	"beeline.io/beeline/internal/observe"
)

// applyOptOuts brings the pods that have opted out of the socket shortcut into
// the tables: all that run are there when it returns.
func (a *Agent) applyOptOuts() {
	a.pods.Want(a.optOuts.Pods())
	problems := a.optOuts.Problems()
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, p := range problems {
		if !slices.Contains(a.optOutProblems, p) {
			a.log.Warn("the socket shortcut cannot be switched as asked", "object", p.Object.String(), "why", p.Reason)
		}
	}
	a.optOutProblems = problems
}

func (a *Agent) auditOptOuts() {
	repairs, err := a.pods.Audit()
	if repairs > 0 {
		a.log.Warn("the table of pods without the socket shortcut was not what it should be, and was mended", "differences", repairs)
	}
	if err != nil {
		a.log.Error("comparing the table of pods without the socket shortcut failed", "error", err)
	}
}

// optOutStatus adds what is known of pods without the socket shortcut.
func (a *Agent) optOutStatus(s *observe.Status) {
	s.OptedOut = a.pods.Status() // first: it may wait for a look at all pods
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, p := range a.optOutProblems {
		s.AddProblem(p.Object, p.Reason)
	}
}
