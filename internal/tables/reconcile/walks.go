// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/cluster/service"
)

// SlotGC makes contested slots stable again in walks of all conntrack entries (conntrack.Subscriber).
type SlotGC struct {
	syncer  *Syncer
	timeout func(service.Protocol) time.Duration
	pass    *slotPass
}

// SlotGC returns a subscriber that ends the contest of slots. timeout returns the conntrack timeout of
// established flows of a protocol.
func (s *Syncer) SlotGC(timeout func(service.Protocol) time.Duration) *SlotGC {
	return &SlotGC{syncer: s, timeout: timeout}
}

// Begin collects the contested slots.
func (g *SlotGC) Begin() { g.pass = g.syncer.beginSlotPass() }

// Entry notes an entry that keeps its slot contested.
func (g *SlotGC) Entry(key bpf.Tuple, e *bpf.ConntrackEntry) { g.pass.note(key, e) }

// End ends the contest of the slots whose flows all lead to the slot's backend.
func (g *SlotGC) End() error { return g.syncer.endSlotPass(g.pass, g.timeout) }

func (s *Syncer) beginSlotPass() *slotPass {
	s.lock()
	defer s.unlock()
	return s.frontends.slotPass(s.networks.pods)
}

// endSlotPass ends the contest of slots without flows that have another backend.
func (s *Syncer) endSlotPass(w *slotPass, timeout func(service.Protocol) time.Duration) error {
	if w == nil {
		return nil
	}
	s.lock()
	defer s.unlock()
	changed, err := s.frontends.settle(w, timeout)
	if err != nil {
		return err
	}
	defer s.sets.settle(nil)
	s.mark(changed...)
	if len(s.dirty) == 0 {
		return nil
	}
	settling := slices.Collect(maps.Keys(s.dirty))
	s.retryAfter(s.reconcile())
	for _, key := range settling {
		if err := s.failures[key]; err != nil {
			return fmt.Errorf("some slots of %s stay contested, though their flows no longer need conntrack entries: %w", key, err)
		}
	}
	return nil
}

// PrefilterWalk rebuilds the prefilter in a walk of all conntrack entries (conntrack.Subscriber).
type PrefilterWalk struct {
	syncer  *Syncer
	rebuild *bpf.PrefilterRebuild // nil: the prefilter stays as it is
}

// PrefilterWalk returns a subscriber that rebuilds the prefilter.
func (s *Syncer) PrefilterWalk() *PrefilterWalk { return &PrefilterWalk{syncer: s} }

// Begin clears the unused set of the prefilter.
func (p *PrefilterWalk) Begin() { p.rebuild = p.syncer.tables.Prefilter.BeginRebuild() }

// Entry adds the flow of an entry.
func (p *PrefilterWalk) Entry(key bpf.Tuple, e *bpf.ConntrackEntry) {
	if p.rebuild != nil {
		p.rebuild.AddFlow(key, e)
	}
}

// End adds the frontends, and enables the prefilter.
func (p *PrefilterWalk) End() error {
	if p.rebuild != nil {
		p.syncer.fillPrefilter()
		p.rebuild.End()
	}
	return nil
}

// RebuildPrefilterWithoutEdge rebuilds the prefilter of a node without edge, which has no conntrack entries.
func (s *Syncer) RebuildPrefilterWithoutEdge() error {
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
