// SPDX-License-Identifier: Apache-2.0

package sync

import (
	"net/netip"
	"slices"

	"beeline.io/beeline/internal/datapath"
)

// Elsewhere returns the addresses of backends on other nodes and of these nodes, where they
// matter, sorted, each once. Those whose ids wait to be free are among them.
func (s *Syncer) Elsewhere() []netip.Addr {
	all := s.elsewhere()
	slices.SortFunc(all, netip.Addr.Compare)
	return slices.Compact(all)
}

// elsewhere is Elsewhere as it comes; who changes the tables waits meanwhile.
func (s *Syncer) elsewhere() (all []netip.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all = make([]netip.Addr, 0, len(s.backends))
	nodes := map[datapath.Address]struct{}{}
	for key := range s.backends {
		if key.local != 0 {
			continue
		}
		all = append(all, key.address.Addr())
		if key.node != key.address {
			nodes[key.node] = struct{}{}
		}
	}
	for node := range nodes {
		all = append(all, node.Addr())
	}
	return all
}
