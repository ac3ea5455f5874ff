// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"maps"
	"net/netip"
	"slices"

	"beeline.io/beeline/internal/bpf/codec"
	"beeline.io/beeline/internal/cluster/service"
)

// DSRDestinations returns, by kind of DSR, the addresses that external clients' packets are sent to: of
// backends on other nodes, or of those nodes.
func (s *Syncer) DSRDestinations() map[service.DSR][]netip.Addr {
	s.mu.Lock()
	defer s.mu.Unlock()
	met := map[service.DSR]map[netip.Addr]bool{}
	for _, e := range s.applied {
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
