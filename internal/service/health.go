// SPDX-License-Identifier: Apache-2.0

package service

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"slices"
)

// Target is one address and how it is asked. Services that ask the same of it
// share it.
type Target struct {
	Addr  netip.AddrPort
	Probe Probe
}

// Checked is an endpoint of a Service of whose health a target tells.
type Checked struct {
	Endpoint netip.AddrPort
	Protocol Protocol
	Target   Target
}

func (c Checked) compare(o Checked) int {
	return cmp.Or(c.Endpoint.Compare(o.Endpoint), cmp.Compare(c.Protocol, o.Protocol), c.Target.Addr.Compare(o.Target.Addr))
}

// health is what a Table knows of its endpoints' health.
type health struct {
	// checks are those in force, by Service: where annotations are wrong, the last
	// ones that were right (H5).
	checks map[Ref]HealthCheck
	// checked are the endpoints of each Service that has some, sorted; users the
	// Services by target.
	checked map[Ref][]Checked
	users   map[Target]map[Ref]struct{}
	// down are the targets that fail, each of them one of users.
	down map[Target]struct{}
	// changed: other targets are wanted since the last commit.
	changed bool
}

func newHealth() health {
	return health{map[Ref]HealthCheck{}, map[Ref][]Checked{}, map[Target]map[Ref]struct{}{}, map[Target]struct{}{}, false}
}

// setCheck takes over what a Service says, nil for one that is gone.
func (h *health) setCheck(ref Ref, s *Service) {
	switch {
	case s == nil, len(s.CheckErrors) == 0 && s.Check == HealthCheck{}:
		delete(h.checks, ref)
	case len(s.CheckErrors) == 0:
		h.checks[ref] = s.Check
	}
}

// replace takes over which endpoints a Service has checked.
func (h *health) replace(ref Ref, checked []Checked) {
	slices.SortFunc(checked, Checked.compare)
	checked = slices.Compact(checked)
	old := h.checked[ref]
	if slices.Equal(old, checked) {
		return
	}
	h.changed = true
	if h.checked[ref] = checked; len(checked) == 0 {
		delete(h.checked, ref)
	}
	asked := make(map[Target]bool, len(checked))
	for _, c := range checked {
		asked[c.Target] = true
		if h.users[c.Target] == nil {
			h.users[c.Target] = map[Ref]struct{}{}
		}
		h.users[c.Target][ref] = struct{}{}
	}
	for _, c := range old {
		users := h.users[c.Target]
		if asked[c.Target] || users == nil {
			continue
		}
		if delete(users, ref); len(users) == 0 {
			delete(h.users, c.Target)
			delete(h.down, c.Target)
		}
	}
}

// SetHealth takes over which targets fail, by what was asked of them. Those that
// nobody wants any more are passed over.
func (t *Table) SetHealth(fails map[Target]bool) Delta {
	b := newBatch()
	for target, fails := range fails {
		users, wanted := t.health.users[target]
		if _, did := t.health.down[target]; !wanted || did == fails {
			continue
		}
		if fails {
			t.health.down[target] = struct{}{}
		} else {
			delete(t.health.down, target)
		}
		for ref := range users {
			b.dirty[ref] = struct{}{}
		}
	}
	return t.commit(b)
}

// Targets yields what is to be asked, in no order.
func (t *Table) Targets() iter.Seq[Target] { return maps.Keys(t.health.users) }

// TargetUsers are the Services that a target tells of, sorted.
func (t *Table) TargetUsers(target Target) []Ref {
	return slices.SortedFunc(maps.Keys(t.health.users[target]), Ref.Compare)
}

// Checked yields the Services with checks and their endpoints, sorted; the lists
// must not be altered.
func (t *Table) Checked() iter.Seq2[Ref, []Checked] { return maps.All(t.health.checked) }

// serviceHealth is the part of resolving a Service that knows of its check; nil
// for one without.
type serviceHealth struct {
	check   HealthCheck
	down    map[Target]struct{}
	checked []Checked
}

func (h *health) of(ref Ref) *serviceHealth {
	if check, ok := h.checks[ref]; ok {
		return &serviceHealth{check: check, down: h.down}
	}
	return nil
}

// mark says of each candidate of a port whether it is down (H1), and notes what
// has to be asked. A problem is for the Service's status.
func (h *serviceHealth) mark(all []candidate, port ServicePort) (problem string) {
	if h == nil || len(all) == 0 {
		return ""
	}
	if port.Protocol != TCP && h.check.Port == 0 {
		return fmt.Sprintf("port %d/%s: its endpoints are not checked, for a check uses TCP: name a TCP port of theirs in the annotation %s",
			port.Port, port.Protocol, AnnotationHealthCheckPort)
	}
	up := false
	for i := range all {
		c := &all[i]
		if !c.endpoint.Ready && !c.endpoint.Serving {
			continue // nobody is sent there
		}
		target := Target{netip.AddrPortFrom(c.addr.Addr(), cmp.Or(h.check.Port, c.addr.Port())), h.check.Probe}
		h.checked = append(h.checked, Checked{c.addr, port.Protocol, target})
		_, c.down = h.down[target]
		up = up || c.ready() || c.fallback()
	}
	if !up && h.check.ServeAllDown {
		for i := range all {
			all[i].down = false
		}
	}
	return ""
}

// asked are the endpoints that mark has seen.
func (h *serviceHealth) asked() []Checked {
	if h == nil {
		return nil
	}
	return h.checked
}

// checkProblems say in the words of a Service's status what is wrong with its
// annotations (H5).
func checkProblems(s *Service, inForce bool) (all []string) {
	meanwhile := "its endpoints are not checked until then"
	if inForce {
		meanwhile = "the check that was right before goes on"
	}
	for _, e := range s.CheckErrors {
		all = append(all, e.Error()+"; "+meanwhile)
	}
	return all
}
