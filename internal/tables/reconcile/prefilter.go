// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"beeline.io/beeline/internal/bpf"
)

// PrefilterRebuild rebuilds the prefilter in a walk of all conntrack entries (conntrack.Subscriber).
type PrefilterRebuild struct {
	syncer  *Syncer
	rebuild *bpf.PrefilterRebuild // nil: the prefilter stays as it is
}

// PrefilterRebuild returns a subscriber that rebuilds the prefilter.
func (s *Syncer) PrefilterRebuild() *PrefilterRebuild { return &PrefilterRebuild{syncer: s} }

// Begin clears the unused set of the prefilter.
func (p *PrefilterRebuild) Begin() { p.rebuild = p.syncer.tables.Prefilter.BeginRebuild() }

// Entry adds the flow of an entry.
func (p *PrefilterRebuild) Entry(key bpf.Tuple, e *bpf.ConntrackEntry) {
	if p.rebuild != nil {
		p.rebuild.AddFlow(key, e)
	}
}

// End adds the frontends, and enables the prefilter.
func (p *PrefilterRebuild) End() error {
	if p.rebuild != nil {
		p.syncer.fillPrefilter()
		p.rebuild.End()
	}
	return nil
}

// RebuildPrefilter rebuilds the prefilter of a node without edge, which has no conntrack entries.
func (s *Syncer) RebuildPrefilter() error {
	return s.tables.Prefilter.Rebuild(func() error {
		s.fillPrefilter()
		return nil
	})
}

// fillPrefilter adds all frontends in the tables to the prefilter. A frontend that is published meanwhile
// is added by its writer.
func (s *Syncer) fillPrefilter() {
	s.lock()
	defer s.unlock()
	s.frontends.fillPrefilter()
}
