// SPDX-License-Identifier: Apache-2.0

package api

import (
	"slices"

	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/report/condition"
	"beeline.io/beeline/internal/tables/reconcile"
)

// AddProblem adds a problem of an object.
func (s *Status) AddProblem(object service.Ref, problem condition.Condition) {
	i := slices.IndexFunc(s.ObjectsWithProblems, func(o reconcile.Status) bool { return o.Owner == object })
	if i < 0 {
		i = len(s.ObjectsWithProblems)
		s.ObjectsWithProblems = append(s.ObjectsWithProblems, reconcile.Status{Owner: object, State: reconcile.Applied})
	}
	s.ObjectsWithProblems[i].Problems = append(slices.Clone(s.ObjectsWithProblems[i].Problems), problem)
}
