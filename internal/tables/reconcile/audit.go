// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"errors"
	"time"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/bpf/codec"
)

// Audit compares the tables with what they should hold, repairs differences and returns their number. Only
// damage causes differences: another program that writes to the pinned tables, or a bug of the agent.
func (s *Syncer) Audit() (repairs int, err error) {
	s.writer.Lock()
	defer s.writer.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.stats.Synced {
		return 0, nil
	}
	a := auditor{Syncer: s}
	s.alloc.audit(&a)
	for set := range s.liveSets() {
		s.sets.audit(&a, set)
	}
	a.frontends()
	auditNetworks(&a, &s.networks)
	auditNetworks(&a, &s.balancers)
	a.untrackedFrontends()
	a.accepted()
	s.stats.LastAudit = time.Now()
	s.stats.Repairs += uint64(a.repairs)
	if a.repairs > 0 {
		a.errs = append(a.errs, s.reconcile())
	} else if len(a.errs) == 0 && s.inSync() {
		s.stats.LastSuccess = s.stats.LastAudit
	}
	return a.repairs, errors.Join(a.errs...)
}

type auditor struct {
	*Syncer
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

// liveSets returns the sets that frontends use.
func (s *Syncer) liveSets() map[*set]bool {
	live := map[*set]bool{}
	for _, e := range s.applied {
		for set := range e.sets.each {
			live[set] = true
		}
	}
	return live
}

// frontends replaces damaged rows, and removes index entries that the agent did not make.
func (a *auditor) frontends() {
	index, err := a.tables.Frontends.All()
	if err != nil {
		a.errs = append(a.errs, err)
		return
	}
	for key, e := range a.applied {
		row, ok := index[codec.FrontendKey(key)]
		delete(index, codec.FrontendKey(key))
		if !a.tables.Prefilter.Contains(codec.FrontendKey(key)) {
			a.tables.Prefilter.Add(codec.FrontendKey(key))
			a.repaired(nil)
		}
		if ok && row == e.row {
			if content, err := codec.LoadFrontend(a.tables, row); err == nil && content == e.content {
				continue
			}
		}
		e.content.ForgetKey() // build needs another row; the rest still tells requiredSlotHistory how packets were forwarded
		a.dirty[key] = true
		a.repairs++
	}
	for key := range index {
		a.repaired(a.tables.Frontends.Delete(key))
		a.epochStale = true
	}
}
