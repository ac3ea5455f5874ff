// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"beeline.io/beeline/internal/cluster/service"
)

// Shares are the maximum parts of each table that one object and one namespace may take, in percent; zero
// means no limit.
type Shares struct {
	Service   uint32
	Namespace uint32
}

func share(percent uint32, limit int64) int64 { return limit * int64(percent) / 100 }

// updateReserve: new objects leave 1/updateReserve of each table free, for changes of objects that are
// already served.
const updateReserve = 32

// An account is an object with a plan, and the admitted part of the plan: all of it, or nothing, or, if the
// object is already served and the plan does not fit, what it has.
type account struct {
	ref  service.Ref
	plan *service.Plan // that the object asks for
	cost cost          // of plan
	// admitted is the plan that goes into the tables: plan, a part of it, or an earlier one; nil if
	// none.
	admitted *service.Plan
	held     cost // counted for the object
	// keeps are frontends of an earlier agent that stay unchanged because their change does not fit.
	keeps  map[service.FrontendKey]bool
	reason error // why not all of plan is admitted
}

// served reports whether the tables hold anything for the object.
func (a *account) served() bool { return a.held != cost{} }

// admission decides which objects go into the tables.
type admission struct {
	shares     Shares
	accounts   map[service.Ref]*account
	total      cost
	namespaces map[string]cost
	leftOut    map[*account]bool // not admitted completely
	roomier    bool              // something has been freed since leftOut was last tried
}

func newAdmission() admission {
	return admission{accounts: map[service.Ref]*account{}, namespaces: map[string]cost{}, leftOut: map[*account]bool{}}
}

// SetShares sets the shares. It must be called before the first Apply.
func (s *Syncer) SetShares(shares Shares) { s.admission.shares = shares }

// admit decides about the objects of a change, and, if there is more room, about those left out before. It
// returns why objects are left out that were not before.
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

// countApplied counts what an earlier agent left in the tables for the objects that still exist.
func (s *Syncer) countApplied(delta service.Delta) {
	for ref, c := range s.frontends.cost() {
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

// remove forgets a deleted object.
func (s *Syncer) remove(ref service.Ref) {
	if a := s.admission.accounts[ref]; a != nil {
		a.plan, a.reason, a.keeps = nil, nil, nil
		s.want(a, nil)
		s.hold(a, cost{})
		delete(s.admission.leftOut, a)
		delete(s.admission.accounts, ref)
	}
}

// settleAll decides about objects: first those that are served, then the oldest. It returns those that are
// left out, completely or in part, and were not before.
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

// settle decides about one object.
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
		a.reason = fmt.Errorf("its additions are left out: it %w", a.reason)
		s.hold(a, c)
		s.want(a, part)
		return
	}
	a.reason = fmt.Errorf("its changes are left out, and its previous state stays in effect: it %w", a.reason)
	s.keep(a)
}

// hold counts c for an object in place of its previous cost.
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

// want sets the plan of an object's frontends; nil for none.
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

// partOf returns the part of a plan at addresses that the object already has in the tables.
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

// has reports whether the tables have a frontend for the object.
func (s *Syncer) has(a *account, key service.FrontendKey) bool {
	owner, ok := s.frontends.owner(key)
	return ok && owner == a.ref
}

// keep leaves frontends as they are if the object still asks for them, and removes its others.
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

// kept reports whether a frontend that is not wanted stays because its change does not fit.
func (s *Syncer) kept(key service.FrontendKey) bool {
	owner, ok := s.frontends.owner(key)
	a := s.admission.accounts[owner]
	return ok && a != nil && a.keeps[key]
}

// maxNamed is the maximum number of objects that the error of a change names.
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
