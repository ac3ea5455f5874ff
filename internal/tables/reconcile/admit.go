// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"

	"beeline.io/beeline/internal/cluster/service"
)

// Shares are the maximum parts of each table that one object and one namespace may take, in percent; zero
// means no limit.
type Shares struct {
	Service   uint32
	Namespace uint32
}

func percentOf(percent uint32, limit int64) int64 { return limit * int64(percent) / 100 }

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
	limits     cost // the sizes of the tables
	frontends  *frontends
	changed    func(service.FrontendKey) // is called for each frontend that is wanted otherwise than before
	shares     Shares
	accounts   map[service.Ref]*account
	wanted     map[service.FrontendKey]want // of what is admitted
	total      cost
	namespaces map[string]cost
	leftOut    map[*account]bool // not admitted completely
	roomier    bool              // something has been freed since leftOut was last tried
}

func newAdmission(limits cost, frontends *frontends, changed func(service.FrontendKey)) *admission {
	return &admission{limits: limits, frontends: frontends, changed: changed, accounts: map[service.Ref]*account{},
		wanted: map[service.FrontendKey]want{}, namespaces: map[string]cost{}, leftOut: map[*account]bool{}}
}

// admit decides about the objects of a change, and, if there is more room, about those left out before. It
// returns why objects are left out that were not before.
func (m *admission) admit(delta service.Delta) error {
	var changed []*account
	for ref, plan := range delta.Plans {
		if plan == nil {
			m.remove(ref)
			continue
		}
		a := m.account(ref)
		a.plan, a.cost = plan, costOf(plan)
		changed = append(changed, a)
	}
	refused := m.settleAll(changed)
	if m.roomier && len(m.leftOut) > 0 {
		m.settleAll(slices.Collect(maps.Keys(m.leftOut)))
	}
	m.roomier = false
	refused = slices.DeleteFunc(refused, func(a *account) bool { return a.reason == nil })
	return leftOutError(refused)
}

// countApplied counts what an earlier agent left in the tables for the objects that still exist.
func (m *admission) countApplied(delta service.Delta) {
	for ref, c := range m.frontends.cost() {
		if delta.Plans[ref] != nil && m.accounts[ref] == nil {
			m.hold(m.account(ref), c)
		}
	}
}

func (m *admission) account(ref service.Ref) *account {
	a := m.accounts[ref]
	if a == nil {
		a = &account{ref: ref}
		m.accounts[ref] = a
	}
	return a
}

// remove forgets a deleted object.
func (m *admission) remove(ref service.Ref) {
	if a := m.accounts[ref]; a != nil {
		a.plan, a.reason, a.keeps = nil, nil, nil
		m.want(a, nil)
		m.hold(a, cost{})
		delete(m.leftOut, a)
		delete(m.accounts, ref)
	}
}

// settleAll decides about objects: first those that are served, then the oldest. It returns those that are
// left out, completely or in part, and were not before.
func (m *admission) settleAll(all []*account) (refused []*account) {
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
		m.settle(a)
		if a.reason == nil {
			delete(m.leftOut, a)
			continue
		}
		m.leftOut[a] = true
		if before == nil {
			refused = append(refused, a)
		}
	}
	return refused
}

// settle decides about one object.
func (m *admission) settle(a *account) {
	a.keeps = nil
	if a.reason = m.fits(a, a.cost); a.reason == nil {
		m.hold(a, a.cost)
		m.want(a, a.plan)
		return
	}
	if !a.served() {
		a.reason = fmt.Errorf("it %w", a.reason)
		m.want(a, nil)
		return
	}
	part := m.partOf(a)
	c := costOf(part)
	if len(part.Frontends) > 0 && m.fits(a, c) == nil {
		a.reason = fmt.Errorf("its additions are left out: it %w", a.reason)
		m.hold(a, c)
		m.want(a, part)
		return
	}
	a.reason = fmt.Errorf("its changes are left out, and its previous state stays in effect: it %w", a.reason)
	m.keep(a)
}

// hold counts c for an object in place of its previous cost.
func (m *admission) hold(a *account, c cost) {
	namespace := m.namespaces[a.ref.Namespace]
	for table := range c {
		more := c[table] - a.held[table]
		m.roomier = m.roomier || more < 0
		m.total[table] += more
		namespace[table] += more
	}
	a.held = c
	if m.namespaces[a.ref.Namespace] = namespace; namespace == (cost{}) {
		delete(m.namespaces, a.ref.Namespace)
	}
}

// want sets the plan of an object's frontends; nil for none.
func (m *admission) want(a *account, plan *service.Plan) {
	if old := a.admitted; old != nil {
		for i := range old.Frontends {
			key := old.Frontends[i].Key
			m.changed(key)
			if m.wanted[key].plan == old {
				delete(m.wanted, key)
			}
		}
	}
	if plan != nil {
		for i := range plan.Frontends {
			f := &plan.Frontends[i]
			m.changed(f.Key)
			m.wanted[f.Key] = want{f, plan}
		}
	}
	a.admitted = plan
}

// partOf returns the part of a plan at addresses that the object already has in the tables.
func (m *admission) partOf(a *account) *service.Plan {
	part := &service.Plan{TableSize: a.plan.TableSize, Created: a.plan.Created, Problems: a.plan.Problems}
	used, ports := map[service.SetKey]bool{}, map[service.SetKey]bool{}
	for _, f := range a.plan.Frontends {
		if !m.has(a, f.Key) {
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
func (m *admission) has(a *account, key service.FrontendKey) bool {
	owner, ok := m.frontends.owner(key)
	return ok && owner == a.ref
}

// keep leaves frontends as they are if the object still asks for them, and removes its others.
func (m *admission) keep(a *account) {
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
		if !asked[key] && m.wanted[key].plan == a.admitted {
			delete(m.wanted, key)
			m.changed(key)
		}
	}
}

// kept reports whether a frontend that is not wanted stays because its change does not fit.
func (m *admission) kept(key service.FrontendKey) bool {
	owner, ok := m.frontends.owner(key)
	a := m.accounts[owner]
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
