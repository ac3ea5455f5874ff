// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"errors"
	"fmt"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/bpf/codec"
	"beeline.io/beeline/internal/cluster/service"
)

// An entry is a frontend in the tables, with references to all that its row names. row is 0 until the entry
// has one.
type entry struct {
	row      uint32
	content  codec.Frontend
	port     *port
	source   *sourceList
	reserved *reservation // NodePort and HostPort
	sets     setsOf
	// tracked is the reason why an untracked frontend tracks all of its flows anyway.
	tracked error
}

func (e *entry) untracked() bool { return e.content.Untracked() }

// build allocates what a frontend's row will name and fills in the row's content. old is the frontend's entry in the
// tables, nil for none. On error the new entry holds what was allocated before: the caller must release it.
func (f *frontends) build(w want, old *entry) (*entry, error) {
	want, e := w.frontend, &entry{}
	var err error
	if e.port, err = f.alloc.ensurePort(want.Port); err != nil {
		return e, err
	}
	f.alloc.refer(e.port)
	e.content = codec.NewFrontend(want, e.port.id)
	if f.reserve(e); e.reserved != nil {
		if err := f.alloc.storeReservation(e.reserved); err != nil {
			return e, err
		}
	}
	if want.SourceRanges != nil {
		if e.source, err = f.alloc.ensureSource(want.SourceRanges, old == nil); err != nil {
			return e, err
		}
		f.alloc.refer(e.source)
		e.content.SetSourceSet(e.source.id)
	}
	err = f.buildSets(e, w, old)
	f.sets.refer(&e.sets)
	if lists, needed := e.sets.lists(); needed {
		e.content.SetLists(lists)
	}
	return e, err
}

// reserve gives an entry its reservation, which may not be in the table yet.
func (f *frontends) reserve(e *entry) {
	if key, ok := e.content.ReservedPort(); ok {
		e.reserved = f.alloc.ensureReservation(key)
		f.alloc.refer(e.reserved)
	}
}

// buildSets finds or makes the sets of an entry: those of its decisions, and that of retained backends
// (service.Plan.Retained), with the history of earlier tables.
func (f *frontends) buildSets(e *entry, w want, old *entry) (err error) {
	want, p := w.frontend, setRequest{plan: w.plan.Sets, tableSize: w.plan.TableSize, isNew: old == nil}
	var before setsOf
	if old != nil {
		before = old.sets
	}
	for class, d := range want.Decisions {
		if d.Verdict != service.Balance {
			e.content.SetVerdict(service.SourceClass(class), d.Verdict)
			continue
		}
		p.key, p.inUse = want.Set(d), before[class]
		if e.sets[class], err = f.sets.ensure(p); err != nil {
			return err
		}
		slots, maglev := e.sets[class].chosenFrom()
		e.content.SetSlots(service.SourceClass(class), slots, maglev)
	}
	p = setRequest{key: service.SetKey{Port: want.Port, Family: service.FamilyOf(want.Key.Addr), Scope: service.ScopeRetained},
		plan: w.plan.Retained, inUse: before[retainedSet], isNew: old == nil}
	if history := f.requiredHistory(e, old); history != nil {
		e.sets[retainedSet], err = f.sets.ensureHistory(p, history, &e.sets, &before)
		if !e.mayBeTracked(history, err) {
			return err
		}
	}
	if _, ok := findSet(p.plan, p.key); !ok {
		return nil
	}
	e.sets[retainedSet], err = f.sets.ensure(p)
	return err
}

// requiredHistory returns the history that a changed frontend needs, nil for none.
func (f *frontends) requiredHistory(e, old *entry) *slotHistory {
	n, kind := step{next: e.sets.outside(), then: e.untracked()}, e.content.DSR()
	if old != nil {
		if p := old.sets.history(); p != nil {
			n.was, kind = p.history, p.dsr
		}
		if old.port != nil {
			n.table, n.before = old.sets.outside(), old.untracked()
		}
	}
	if n.before {
		kind = old.content.DSR()
	}
	if n.then {
		kind = e.content.DSR()
	}
	h := f.sets.nextHistory(n)
	if h == nil {
		return nil
	}
	return &slotHistory{history: h, dsr: kind}
}

// mayBeTracked makes a frontend track all of its flows if there is no room for its history. That loses
// nothing unless flows without conntrack entries exist already.
func (e *entry) mayBeTracked(p *slotHistory, err error) bool {
	var full *bpf.FullError
	if !errors.As(err, &full) || !e.untracked() || p.history.Known() {
		return false
	}
	e.tracked = fmt.Errorf("every flow is tracked, though not all need to be: %w", err)
	e.content.SetTracked()
	return true
}
