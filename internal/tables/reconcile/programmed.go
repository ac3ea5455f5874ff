// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"errors"
	"slices"

	"beeline.io/beeline/internal/cluster/service"
)

// SetProgrammed sets the function that is told when the tables hold what the change of an EndpointSlice led to. It must
// be called before the first Apply. The function must not call the Syncer.
func (s *Syncer) SetProgrammed(programmed func(service.Trigger)) { s.programmed = programmed }

// noteProgrammed reports the triggers of Services without failures. Triggers of Services without a plan lead to
// nothing, and are forgotten; those of Services that are left out wait.
func (s *Syncer) noteProgrammed() {
	for ref, triggers := range s.triggers {
		a := s.admission.accounts[ref]
		if a != nil && (a.reason != nil || s.fails(a)) {
			s.triggers[ref] = triggers[max(0, len(triggers)-maxTriggers):]
			continue
		}
		delete(s.triggers, ref)
		if a == nil || s.programmed == nil {
			continue
		}
		for _, t := range triggers {
			s.programmed(t)
		}
	}
}

// maxTriggers bounds the triggers of a Service that wait.
const maxTriggers = 64

// fails reports whether a frontend of an object could not be written.
func (s *Syncer) fails(a *account) bool {
	return a.admitted != nil && len(s.failures) > 0 && slices.ContainsFunc(a.admitted.Frontends, func(f service.Frontend) bool {
		return s.failures[f.Key] != nil
	})
}

// inSync reports whether the tables hold all that is admitted.
func (s *Syncer) inSync() bool {
	return len(s.failures) == 0 && errors.Join(s.networks.errors()...) == nil
}
