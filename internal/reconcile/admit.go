// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"beeline.io/beeline/internal/service"
)

// Shares are how much of each table one object and one namespace may take, in percent; zero: as much as
// there is.
type Shares struct {
	Service   uint32
	Namespace uint32
}

// share is a part of a table.
func share(percent uint32, limit int64) int64 { return limit * int64(percent) / 100 }

// updateReserve is the part of each table that objects which are new leave free, for changes of those that
// are served.
const updateReserve = 32

// An account is an object that has a plan, and what of it is let into the tables: all of it, or
// nothing, or, where it is served already and asks for more than fits, what it has.
type account struct {
	ref  service.Ref
	plan *service.Plan // that it asks for
	cost cost          // of plan
	// admitted is what is brought into the tables: plan, a part of it, or an earlier one; nil: nothing.
	admitted *service.Plan
	held     cost // what is counted for it
	// keeps are frontends that stay as an earlier agent left them, because their change does not fit.
	keeps  map[service.FrontendKey]bool
	reason error // why not all of plan is admitted
}

// served says whether the tables hold anything for the object.
func (a *account) served() bool { return a.held != cost{} }

// admission decides which objects are let into the tables.
type admission struct {
	shares     Shares
	accounts   map[service.Ref]*account
	total      cost
	namespaces map[string]cost
	leftOut    map[*account]bool // those of which not all is admitted
	roomier    bool              // something has been given up since these were looked at
}

func newAdmission() admission {
	return admission{accounts: map[service.Ref]*account{}, namespaces: map[string]cost{}, leftOut: map[*account]bool{}}
}

// SetShares is called before the first Apply.
func (s *Syncer) SetShares(shares Shares) { s.admission.shares = shares }

// admit decides anew for the objects of a change, and then for those that have been left out, if there is
// more room. It returns why objects are left out that were not before.
func (s *Syncer) admit(delta service.Delta) error {
	if !s.stats.Synced {
		s.countApplied(delta)
	}
	var changed []*account
	for ref, plan := range delta.Plans {
		if plan == nil {
			s.remove(ref)
			continue
		}
		a := s.account(ref)
		a.plan, a.cost = plan, costOf(plan)
		changed = append(changed, a)
	}
	refused := s.settleAll(changed)
	if s.admission.roomier && len(s.admission.leftOut) > 0 {
		waiting := make([]*account, 0, len(s.admission.leftOut))
		for a := range s.admission.leftOut {
			waiting = append(waiting, a)
		}
		s.settleAll(waiting)
	}
	s.admission.roomier = false
	refused = slices.DeleteFunc(refused, func(a *account) bool { return a.reason == nil })
	return leftOutError(refused)
}

// countApplied counts what an earlier agent has left of the objects that there still are.
func (s *Syncer) countApplied(delta service.Delta) {
	for ref, c := range s.appliedCost() {
		if delta.Plans[ref] != nil && s.admission.accounts[ref] == nil {
			s.hold(s.account(ref), c)
		}
	}
}

func (s *Syncer) account(ref service.Ref) *account {
	a := s.admission.accounts[ref]
	if a == nil {
		a = &account{ref: ref}
		s.admission.accounts[ref] = a
	}
	return a
}

// remove forgets an object that has gone.
func (s *Syncer) remove(ref service.Ref) {
	if a := s.admission.accounts[ref]; a != nil {
		a.plan, a.reason, a.keeps = nil, nil, nil
		s.want(a, nil)
		s.hold(a, cost{})
		delete(s.admission.leftOut, a)
		delete(s.admission.accounts, ref)
	}
}

// settleAll decides for some objects: those that are served first, then the oldest. It returns those that
// are left out, wholly or in part, and were not before.
func (s *Syncer) settleAll(all []*account) (refused []*account) {
	first := func(a *account) int {
		if a.served() {
			return 0
		}
		return 1
	}
	slices.SortFunc(all, func(a, b *account) int {
		return cmp.Or(cmp.Compare(first(a), first(b)), a.plan.Created.Compare(b.plan.Created), a.ref.Compare(b.ref))
	})
	for _, a := range all {
		before := a.reason
		s.settle(a)
		if a.reason == nil {
			delete(s.admission.leftOut, a)
			continue
		}
		s.admission.leftOut[a] = true
		if before == nil {
			refused = append(refused, a)
		}
	}
	return refused
}

// settle decides for one object.
func (s *Syncer) settle(a *account) {
	a.keeps = nil
	if a.reason = s.fits(a, a.cost); a.reason == nil {
		s.hold(a, a.cost)
		s.want(a, a.plan)
		return
	}
	if !a.served() {
		a.reason = fmt.Errorf("it %w", a.reason)
		s.want(a, nil)
		return
	}
	part := s.partOf(a)
	c := costOf(part)
	if len(part.Frontends) > 0 && s.fits(a, c) == nil {
		a.reason = fmt.Errorf("what is new in it is left out: it %w", a.reason)
		s.hold(a, c)
		s.want(a, part)
		return
	}
	a.reason = fmt.Errorf("its changes are left out, and what was there serves on: it %w", a.reason)
	s.keep(a)
}

// hold counts c for an object, in place of what was counted before.
func (s *Syncer) hold(a *account, c cost) {
	for table := range c {
		s.admission.roomier = s.admission.roomier || c[table] < a.held[table]
	}
	namespace := s.admission.namespaces[a.ref.Namespace]
	for _, sum := range []*cost{&s.admission.total, &namespace} {
		sum.subtract(a.held)
		sum.add(c)
	}
	a.held = c
	if s.admission.namespaces[a.ref.Namespace] = namespace; namespace == (cost{}) {
		delete(s.admission.namespaces, a.ref.Namespace)
	}
}

// want makes a plan, nil for none, the one that an object's frontends are to have.
func (s *Syncer) want(a *account, plan *service.Plan) {
	if old := a.admitted; old != nil {
		for i := range old.Frontends {
			key := old.Frontends[i].Key
			s.dirty[key] = true
			if s.wanted[key].plan == old {
				delete(s.wanted, key)
			}
		}
	}
	if plan != nil {
		for i := range plan.Frontends {
			f := &plan.Frontends[i]
			s.dirty[f.Key] = true
			s.wanted[f.Key] = want{f, plan}
		}
	}
	a.admitted = plan
}

// partOf is the part of a plan at addresses that the object has in the tables.
func (s *Syncer) partOf(a *account) *service.Plan {
	part := &service.Plan{TableSize: a.plan.TableSize, Created: a.plan.Created, Problems: a.plan.Problems}
	used, ports := map[service.SetKey]bool{}, map[service.SetKey]bool{}
	for _, f := range a.plan.Frontends {
		if !s.has(a, f.Key) {
			continue
		}
		part.Frontends = append(part.Frontends, f)
		for _, d := range f.Decisions {
			used[f.Set(d)] = used[f.Set(d)] || d.Verdict == service.Balance
		}
		ports[service.SetKey{Port: f.Port, Family: service.FamilyOf(f.Key.Addr), Scope: service.ScopeRetained}] = true
	}
	for _, set := range a.plan.Sets {
		if used[set.Key] {
			part.Sets = append(part.Sets, set)
		}
	}
	for _, set := range a.plan.Retained {
		if ports[set.Key] {
			part.Retained = append(part.Retained, set)
		}
	}
	return part
}

// has says whether the tables have a frontend for the object.
func (s *Syncer) has(a *account, key service.FrontendKey) bool {
	e := s.applied[key]
	return e != nil && e.port != nil && e.port.key.Owner == a.ref
}

// keep leaves the object's frontends that it still asks for as they are; the others go.
func (s *Syncer) keep(a *account) {
	asked := map[service.FrontendKey]bool{}
	for i := range a.plan.Frontends {
		asked[a.plan.Frontends[i].Key] = true
	}
	if a.admitted == nil {
		a.keeps = asked
		return
	}
	for i := range a.admitted.Frontends {
		key := a.admitted.Frontends[i].Key
		if !asked[key] && s.wanted[key].plan == a.admitted {
			delete(s.wanted, key)
			s.dirty[key] = true
		}
	}
}

// kept says whether a frontend that nobody wants stays: it waits for a change that does not fit.
func (s *Syncer) kept(key service.FrontendKey, e *entry) bool {
	if e.port == nil {
		return false
	}
	a := s.admission.accounts[e.port.key.Owner]
	return a != nil && a.keeps[key]
}

// maxNamed is how many objects the error of a change names.
const maxNamed = 10

func leftOutError(accounts []*account) error {
	var errs []error
	for i, a := range accounts {
		if i == maxNamed {
			errs = append(errs, fmt.Errorf("and %d more objects", len(accounts)-i))
			break
		}
		what := ""
		if !a.served() {
			what = "left out: "
		}
		errs = append(errs, fmt.Errorf("%s: %s%w", a.ref, what, a.reason))
	}
	return errors.Join(errs...)
}
