// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"fmt"
	"slices"

	"beeline.io/beeline/internal/pods"
	"beeline.io/beeline/internal/service"
	"beeline.io/beeline/internal/sync"
)

// optOutComplaints are about pods that keep the socket shortcut though they have
// opted out. That a pod has opted out is no reason to complain.
func (s *Status) optOutComplaints() (all []string) {
	late := 0
	for _, p := range s.OptedOut.Pods {
		if p.Late {
			late++
		}
	}
	if late > 0 {
		all = append(all, fmt.Sprintf("pods that have opted out of the socket shortcut and keep it, because they are not found: %d", late))
	}
	if slices.ContainsFunc(s.OptedOut.Pods, func(p pods.Pod) bool { return !p.Found }) {
		all = append(all, s.OptedOut.Problems...)
	}
	return all
}

// AddProblem adds what an object asks for and does not get.
func (s *Status) AddProblem(object service.Ref, reason string) {
	i := slices.IndexFunc(s.Objects, func(o sync.Status) bool { return o.Owner == object })
	if i < 0 {
		i = len(s.Objects)
		s.Objects = append(s.Objects, sync.Status{Owner: object, State: sync.Applied})
	}
	s.Objects[i].Problems = append(slices.Clone(s.Objects[i].Problems), reason)
}
