// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"errors"
	"time"

	"beeline.io/beeline/internal/bpf"
)

// Audit compares the tables with what they should hold, repairs differences and returns their number. Only
// damage causes differences: another program that writes to the pinned tables, or a bug of the agent.
func (s *Syncer) Audit() (repairs int, err error) {
	s.lock()
	defer s.unlock()
	if !s.stats.Synced {
		return 0, nil
	}
	a := &auditor{}
	s.mark(s.frontends.audit(a)...)
	auditNetworks(a, &s.networks.classes)
	auditNetworks(a, &s.networks.balancerTable)
	s.stats.LastAudit = time.Now()
	s.stats.Repairs += uint64(a.repairs)
	if a.repairs > 0 {
		a.errs = append(a.errs, s.reconcile())
	} else if len(a.errs) == 0 && s.inSync() {
		s.stats.LastSuccess = s.stats.LastAudit
	}
	return a.repairs, errors.Join(a.errs...)
}

// auditor counts the repairs of an audit.
type auditor struct {
	repairs int
	errs    []error
}

func (a *auditor) repaired(err error) {
	a.repairs++
	a.errs = append(a.errs, err)
}

func auditHash[K comparable, V comparable](a *auditor, table bpf.Hash[K, V], want map[K]V) {
	have, err := table.All()
	if err != nil {
		a.errs = append(a.errs, err)
		return
	}
	for k, v := range want {
		if got, ok := have[k]; !ok || got != v {
			a.repaired(table.Put(k, v))
		}
	}
	for k := range have {
		if _, ok := want[k]; !ok {
			a.repaired(table.Delete(k))
		}
	}
}
