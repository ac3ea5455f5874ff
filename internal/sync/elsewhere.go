// SPDX-License-Identifier: Apache-2.0

package sync

import (
	"net/netip"
	"slices"
)

// Elsewhere returns the addresses of backends on other nodes and of these nodes, where they
// matter, sorted, each once. Those whose ids wait to be free are among them.
func (s *Syncer) Elsewhere() (all []netip.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key := range s.backends {
		if !key.local {
			all = append(all, key.addr.Addr(), key.node)
		}
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return slices.Compact(all)
}
