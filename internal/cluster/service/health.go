// SPDX-License-Identifier: Apache-2.0

package service

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"slices"

	"beeline.io/beeline/internal/report/condition"
)

// Target is an address and how it is probed. Services with equal checks share a target.
type Target struct {
	Addr  netip.AddrPort
	Probe Probe
	Via   Via
}

// CheckedEndpoint is an endpoint of a Service with the target that checks it.
type CheckedEndpoint struct {
	Endpoint netip.AddrPort
	Protocol Protocol
	Target   Target
}

func (c CheckedEndpoint) compare(o CheckedEndpoint) int {
	return cmp.Or(c.Endpoint.Compare(o.Endpoint), cmp.Compare(c.Protocol, o.Protocol), c.Target.Addr.Compare(o.Target.Addr))
}

// health is the health check state of a Cluster.
type health struct {
	// checks holds the active check of each Service. If annotations become invalid, the last valid check
	// stays active (H5).
	checks map[Ref]HealthCheck
	// checked holds the checked endpoints of each Service, sorted; services holds the Services of each
	// target.
	checked  map[Ref][]CheckedEndpoint
	services map[Target]map[Ref]struct{}
	// down holds the failing targets, a subset of services.
	down map[Target]struct{}
	// changed means that the targets changed since the last commit.
	changed bool
}

func newHealth() health {
	return health{map[Ref]HealthCheck{}, map[Ref][]CheckedEndpoint{}, map[Target]map[Ref]struct{}{}, map[Target]struct{}{}, false}
}

// setCheck sets the check of a Service; nil means that the Service was deleted.
func (h *health) setCheck(ref Ref, s *Service) {
	switch {
	case s == nil, len(s.CheckErrors) == 0 && s.Check == HealthCheck{}:
		delete(h.checks, ref)
	case len(s.CheckErrors) == 0:
		h.checks[ref] = s.Check
	}
}

// replace sets the checked endpoints of a Service.
func (h *health) replace(ref Ref, checked []CheckedEndpoint) {
	slices.SortFunc(checked, CheckedEndpoint.compare)
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
		if h.services[c.Target] == nil {
			h.services[c.Target] = map[Ref]struct{}{}
		}
		h.services[c.Target][ref] = struct{}{}
	}
	for _, c := range old {
		users := h.services[c.Target]
		if asked[c.Target] || users == nil {
			continue
		}
		if delete(users, ref); len(users) == 0 {
			delete(h.services, c.Target)
			delete(h.down, c.Target)
		}
	}
}

// SetHealth records which targets fail. It ignores targets that are no longer used.
func (t *Cluster) SetHealth(fails map[Target]bool) Delta {
	b := newBatch()
	for target, fails := range fails {
		users, wanted := t.health.services[target]
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

// Targets iterates over the targets to probe, in no particular order.
func (t *Cluster) Targets() iter.Seq[Target] { return maps.Keys(t.health.services) }

// TargetServices returns the Services that use a target, sorted.
func (t *Cluster) TargetServices(target Target) []Ref {
	return slices.SortedFunc(maps.Keys(t.health.services[target]), Ref.Compare)
}

// Checked iterates over the Services with checks and their endpoints, sorted; callers must not modify the
// lists.
func (t *Cluster) Checked() iter.Seq2[Ref, []CheckedEndpoint] { return maps.All(t.health.checked) }

// serviceHealth applies a Service's check while the Service is resolved; nil without a check.
type serviceHealth struct {
	check   HealthCheck
	down    map[Target]struct{}
	checked []CheckedEndpoint
}

func (h *health) of(ref Ref) *serviceHealth {
	if check, ok := h.checks[ref]; ok {
		return &serviceHealth{check: check, down: h.down}
	}
	return nil
}

// again returns a copy that has recorded nothing.
func (h *serviceHealth) again() *serviceHealth {
	if h == nil {
		return nil
	}
	return &serviceHealth{check: h.check, down: h.down}
}

// mark sets whether each candidate of a port is down (H1), and records what to probe through which frontend.
// The returned problem is for the Service's status.
func (h *serviceHealth) mark(all []candidate, port ServicePort, at checkedAt) (problem string) {
	if h == nil || len(all) == 0 {
		return ""
	}
	if port.Protocol != TCP && h.check.Port == 0 {
		return fmt.Sprintf("port %d/%s: its endpoints are not checked, because checks use TCP", port.Port, port.Protocol)
	}
	up := false
	for i := range all {
		c := &all[i]
		if !c.endpoint.Ready && !c.endpoint.Serving {
			continue // it gets no traffic
		}
		target := Target{netip.AddrPortFrom(c.addr.Addr(), cmp.Or(h.check.Port, c.addr.Port())), h.check.Probe, at.via(c)}
		h.checked = append(h.checked, CheckedEndpoint{c.addr, port.Protocol, target})
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

// asked returns the endpoints that mark recorded.
func (h *serviceHealth) asked() []CheckedEndpoint {
	if h == nil {
		return nil
	}
	return h.checked
}

// checkProblems returns the problems of a Service's health check annotations (H5).
func checkProblems(s *Service, inForce bool) (all condition.List) {
	meanwhile := "until then its endpoints are not checked"
	if inForce {
		meanwhile = "until then the previous valid check stays in use"
	}
	for _, e := range s.CheckErrors {
		all = append(all, condition.AnnotationInvalid.New("%s", e.Error()).Do("correct it; %s", meanwhile))
	}
	return all
}
