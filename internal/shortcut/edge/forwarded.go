// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"net/netip"
	"slices"

	"beeline.io/beeline/internal/cluster/service"
)

// forwarded holds, by address family, the objects with backends other than this node itself. Of those in decapsulated
// this node is a DSR backend's machine, and needs to forward only if it is a balancer as well.
type forwarded struct{ all, decapsulated objectsByFamily }

type objectsByFamily map[service.Family]map[service.Ref]struct{}

func newForwarded() forwarded { return forwarded{objectsByFamily{}, objectsByFamily{}} }

// note adds the backends of a change.
func (f forwarded) note(d service.Delta, own []netip.Addr) {
	for ref, plan := range d.Plans {
		for _, family := range service.Families {
			delete(f.all[family], ref)
			delete(f.decapsulated[family], ref)
		}
		if plan == nil {
			continue
		}
		for _, set := range plan.Sets {
			family := set.Key.Family
			if !slices.ContainsFunc(set.Backends, func(b service.Backend) bool { return !slices.Contains(own, b.Addr.Addr()) }) {
				continue
			}
			if onlyDecapsulates(plan, &set, own) {
				f.decapsulated.add(family, ref)
			} else {
				f.all.add(family, ref)
			}
		}
	}
}

// onlyDecapsulates reports whether this node may be no more to a set's clients than the machine of one of its backends:
// the node itself is a backend, the others are other machines', and all clients outside come by DSR.
func onlyDecapsulates(plan *service.Plan, set *service.BackendSet, own []netip.Addr) bool {
	itself := false
	for _, b := range set.Backends {
		here := slices.Contains(own, b.Addr.Addr())
		if b.Local && !here {
			return false // a pod, to which the node forwards what it has decapsulated
		}
		itself = itself || here
	}
	return itself && !slices.ContainsFunc(plan.Frontends, func(f service.Frontend) bool {
		return f.Port == set.Key.Port && service.FamilyOf(f.Key.Addr) == set.Key.Family && f.DSR == "" && !f.Key.Addr.IsLoopback() &&
			f.Decisions[service.FromOutside].Verdict == service.Balance
	})
}

func (o objectsByFamily) add(family service.Family, ref service.Ref) {
	if o[family] == nil {
		o[family] = map[service.Ref]struct{}{}
	}
	o[family][ref] = struct{}{}
}

// families returns the families that have such backends, sorted.
func (o objectsByFamily) families() (all []service.Family) {
	for _, family := range service.Families {
		if len(o[family]) > 0 {
			all = append(all, family)
		}
	}
	return all
}

// served holds the addresses and ports of each object's frontends at which packets arrive, sorted.
type served map[service.Ref][]netip.AddrPort

// note adds the frontends of a change, and reports whether addresses have changed.
func (s served) note(d service.Delta) (changed bool) {
	for ref, plan := range d.Plans {
		var now []netip.AddrPort
		if plan != nil {
			for _, f := range plan.Frontends {
				if a := f.Key.Addr; !a.IsLoopback() {
					now = append(now, netip.AddrPortFrom(a, f.Key.Port))
				}
			}
		}
		slices.SortFunc(now, netip.AddrPort.Compare)
		now = slices.Compact(now)
		if slices.Equal(now, s[ref]) {
			continue
		}
		changed = true
		if s[ref] = now; len(now) == 0 {
			delete(s, ref)
		}
	}
	return changed
}

// addresses returns all addresses and ports, sorted.
func (s served) addresses() (all []netip.AddrPort) {
	for _, some := range s {
		all = append(all, some...)
	}
	slices.SortFunc(all, netip.AddrPort.Compare)
	return slices.Compact(all)
}

// remoteBackends returns the addresses of a change's backends on other nodes, and of those nodes.
func remoteBackends(d service.Delta) (all []netip.Addr) {
	for _, plan := range d.Plans {
		if plan == nil {
			continue
		}
		for _, set := range plan.Sets {
			for _, b := range set.Backends {
				if !b.Local {
					all = append(all, b.Addr.Addr())
					if b.Node.IsValid() {
						all = append(all, b.Node)
					}
				}
			}
		}
	}
	return all
}
