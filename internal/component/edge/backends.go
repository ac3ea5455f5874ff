// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"net/netip"
	"slices"

	"beeline.io/beeline/internal/service"
)

// forwarded holds, by address family, the objects with backends other than this node itself.
type forwarded map[service.Family]map[service.Ref]struct{}

// note adds the backends of a change.
func (f forwarded) note(d service.Delta, own []netip.Addr) {
	for ref, plan := range d.Plans {
		for _, family := range service.Families {
			delete(f[family], ref)
		}
		if plan == nil {
			continue
		}
		for _, set := range plan.Sets {
			if !slices.ContainsFunc(set.Backends, func(b service.Backend) bool { return !slices.Contains(own, b.Addr.Addr()) }) {
				continue
			}
			if f[set.Key.Family] == nil {
				f[set.Key.Family] = map[service.Ref]struct{}{}
			}
			f[set.Key.Family][ref] = struct{}{}
		}
	}
}

// families returns the families that have such backends, sorted.
func (f forwarded) families() (all []service.Family) {
	for _, family := range service.Families {
		if len(f[family]) > 0 {
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
