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
	s.mu.Lock()
	all := s.alloc.remoteBackends()
	s.mu.Unlock()
	slices.SortFunc(all, netip.Addr.Compare)
	return slices.Compact(all)
}

// RemotePorts returns the ports of backends on other nodes, each once, in no order.
func (s *Syncer) RemotePorts() []uint16 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.alloc.remotePorts()))
}

// ServicesOf returns the objects that have a backend at an address, in order. It looks at the sets of all frontends.
func (s *Syncer) ServicesOf(address netip.Addr) []service.Ref {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := map[service.Ref]struct{}{}
	for _, e := range s.applied {
		if e.sets.has(address) {
			all[e.port.key.Owner] = struct{}{}
		}
	}
	return slices.SortedFunc(maps.Keys(all), service.Ref.Compare)
}
