// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"maps"
	"net/netip"
	"slices"

	"beeline.io/beeline/internal/cluster/service"
)

// RemoteBackends returns the addresses of backends on other nodes, and of those nodes where they matter,
// sorted, each once. It includes backends whose ids wait to be freed.
func (s *Syncer) RemoteBackends() []netip.Addr {
	all := s.remoteBackends()
	slices.SortFunc(all, netip.Addr.Compare)
	return slices.Compact(all)
}

// RemotePorts returns the ports of backends on other nodes, each once, in no order.
func (s *Syncer) RemotePorts() []uint16 {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := map[uint16]struct{}{}
	for key := range s.backends {
		if !key.Local() {
			all[key.AddrPort().Port()] = struct{}{}
		}
	}
	return slices.Collect(maps.Keys(all))
}

// ServicesOf returns the objects that have a backend at an address, in order. It looks at the sets of all frontends.
func (s *Syncer) ServicesOf(address netip.Addr) []service.Ref {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := map[service.Ref]struct{}{}
	for _, e := range s.applied {
		if slices.ContainsFunc(e.sets[:], func(set *set) bool {
			return set != nil && slices.ContainsFunc(set.members, func(b *backend) bool { return b.key.Addr() == address })
		}) {
			all[e.port.key.Owner] = struct{}{}
		}
	}
	return slices.SortedFunc(maps.Keys(all), service.Ref.Compare)
}

// remoteBackends is RemoteBackends, unsorted and with duplicates. It keeps mu only for as long as it takes
// to collect them.
func (s *Syncer) remoteBackends() (all []netip.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all = make([]netip.Addr, 0, len(s.backends))
	nodes := map[netip.Addr]struct{}{}
	for key := range s.backends {
		if key.Local() {
			continue
		}
		all = append(all, key.Addr())
		if key.KnowsNode() {
			nodes[key.Node()] = struct{}{}
		}
	}
	return slices.AppendSeq(all, maps.Keys(nodes))
}
