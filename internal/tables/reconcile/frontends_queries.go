// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"maps"
	"net/netip"
	"slices"

	"beeline.io/beeline/internal/bpf/codec"
	"beeline.io/beeline/internal/cluster/service"
)

// owner returns the object that a frontend in the tables belongs to; false if they do not have it, or it is damaged.
func (f *frontends) owner(key service.FrontendKey) (service.Ref, bool) {
	if e := f.applied[key]; e != nil && e.port != nil {
		return e.port.key.Owner, true
	}
	return service.Ref{}, false
}

// keys returns the frontends in the tables.
func (f *frontends) keys() []service.FrontendKey { return slices.Collect(maps.Keys(f.applied)) }

// count returns the number of frontends in the tables.
func (f *frontends) count() uint32 { return uint32(len(f.applied)) }

// countUntracked returns how many frontends are untracked, and how many have a history.
func (f *frontends) countUntracked() (untracked, remembering int) {
	for _, e := range f.applied {
		if e.untracked() {
			untracked++
		}
		if e.sets.history() != nil {
			remembering++
		}
	}
	return untracked, remembering
}

// has reports whether the tables have a frontend.
func (f *frontends) has(key service.FrontendKey) bool { return f.applied[key] != nil }

func (f *frontends) serves(protocol service.Protocol, address, backend netip.AddrPort) bool {
	e := f.applied[frontendKey(protocol, address)]
	if e == nil && address.Addr().Is4() && address.Addr().IsLoopback() {
		loopback := netip.AddrFrom4([4]byte{127, 0, 0, 1})
		e = f.applied[frontendKey(protocol, netip.AddrPortFrom(loopback, address.Port()))]
		if e != nil && e.content.LoopbackExact() {
			e = nil
		}
	}
	return e != nil && e.sets.contain(func(b codec.Backend) bool { return b.AddrPort() == backend })
}

func frontendKey(protocol service.Protocol, address netip.AddrPort) service.FrontendKey {
	return service.FrontendKey{Addr: address.Addr(), Port: address.Port(), Protocol: protocol}
}

func (f *frontends) servicesOf(address netip.Addr) []service.Ref {
	all := map[service.Ref]struct{}{}
	for _, e := range f.applied {
		if e.sets.contain(func(b codec.Backend) bool { return b.Addr() == address }) {
			all[e.port.key.Owner] = struct{}{}
		}
	}
	return slices.SortedFunc(maps.Keys(all), service.Ref.Compare)
}

func (f *frontends) dsrDestinations() map[service.DSR][]netip.Addr {
	met := map[service.DSR]map[netip.Addr]bool{}
	for _, e := range f.applied {
		kind, set := codec.DSROf(e.content.DSR()), e.sets.outside()
		if kind == "" || set == nil {
			continue
		}
		if met[kind] == nil {
			met[kind] = map[netip.Addr]bool{}
		}
		for _, b := range set.members {
			switch {
			case b.key.Local():
			case kind == service.DSRGeneve:
				met[kind][b.key.Node()] = true
			default:
				met[kind][b.key.Addr()] = true
			}
		}
	}
	all := map[service.DSR][]netip.Addr{}
	for kind, addresses := range met {
		all[kind] = slices.SortedFunc(maps.Keys(addresses), netip.Addr.Compare)
	}
	return all
}

// cost returns the cost of each object in the tables.
func (f *frontends) cost() map[service.Ref]cost {
	all := map[service.Ref]cost{}
	ports, sets, lists := map[*port]bool{}, map[*set]bool{}, map[*sourceList]bool{}
	for _, e := range f.applied {
		if e.port == nil {
			continue
		}
		c := all[e.port.key.Owner]
		c[costFrontends]++
		if !ports[e.port] {
			ports[e.port] = true
			c[costServices]++
		}
		for x := range e.sets.each {
			if !sets[x] {
				sets[x] = true
				c[costSlots] += int64(x.slotCount())
				c[costBackends] += int64(len(x.backends()))
			}
		}
		if e.source != nil && !lists[e.source] {
			lists[e.source] = true
			c[costRanges] += int64(len(e.source.prefixes))
		}
		all[e.port.key.Owner] = c
	}
	return all
}

// removals are what changes have removed since it was last asked for.
type removals struct {
	backends map[service.Protocol]bool // protocols with frontends that have lost a backend
	udp      map[netip.AddrPort]bool   // UDP frontends
}

// note compares the backends of a frontend before and after a change.
func (r *removals) note(key service.FrontendKey, c change) {
	before, now := c.before, c.now
	if now == nil && key.Protocol == service.UDP && len(r.udp) < removedUDPLimit {
		r.udp[netip.AddrPortFrom(key.Addr, key.Port)] = true
	}
	if r.backends[key.Protocol] {
		return
	}
	if before == nil || now != nil && !before.content.SameFlags(&now.content) {
		// On one loopback address it shadows the frontend of all of 127.0.0.0/8.
		r.backends[key.Protocol] = key.Addr.Is4() && key.Addr.IsLoopback()
		if before == nil {
			return
		}
	}
	serving := map[netip.AddrPort]bool{}
	if now != nil {
		if now.sets == before.sets {
			return
		}
		for b := range now.sets.members {
			serving[b.key.AddrPort()] = true
		}
	}
	for b := range before.sets.members {
		if !serving[b.key.AddrPort()] {
			r.backends[key.Protocol] = true
			return
		}
	}
}

// removedUDPLimit bounds removals.udp.
const removedUDPLimit = 65536
