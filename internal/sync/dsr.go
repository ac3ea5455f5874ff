// SPDX-License-Identifier: Apache-2.0

package sync

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"beeline.io/beeline/internal/datapath"
	"beeline.io/beeline/internal/service"
)

var dsrs = map[service.DSR]datapath.DSR{
	service.DSRIPIP:   datapath.DSRIPIP,
	service.DSRGeneve: datapath.DSRGeneve,
	service.DSROpt:    datapath.DSROpt,
}

// DSROf is the name of a kind of DSR as rows and flows have it; empty: none.
func DSROf(kind datapath.DSR) service.DSR {
	for name, known := range dsrs {
		if known == kind {
			return name
		}
	}
	if kind == datapath.DSRNone {
		return ""
	}
	return service.DSR(fmt.Sprintf("dsr(%d)", kind))
}

// DSRDestinations are the addresses that packets of clients outside are sent to by DSR, by
// kind: of backends on other nodes, or of these nodes.
func (s *Syncer) DSRDestinations() map[service.DSR][]netip.Addr {
	s.mu.Lock()
	defer s.mu.Unlock()
	met := map[service.DSR]map[netip.Addr]bool{}
	for _, e := range s.applied {
		kind, set := DSROf(datapath.DSR(e.content.Dsr)), e.sets[service.FromOutside]
		if kind == "" || set == nil {
			continue
		}
		if met[kind] == nil {
			met[kind] = map[netip.Addr]bool{}
		}
		for _, b := range set.members {
			switch {
			case b.key.local != 0:
			case kind == service.DSRGeneve:
				met[kind][b.key.node.Addr()] = true
			default:
				met[kind][b.key.address.Addr()] = true
			}
		}
	}
	all := map[service.DSR][]netip.Addr{}
	for kind, addresses := range met {
		all[kind] = slices.SortedFunc(maps.Keys(addresses), netip.Addr.Compare)
	}
	return all
}
