// SPDX-License-Identifier: Apache-2.0

package node

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/node/netdev"
)

// Of linux/nexthop.h.
const (
	nextHopHeader    = 8 // sizeof(struct nhmsg)
	nhaID            = 1
	nhaGroup         = 2 // of struct nexthop_grp
	nhaDevice        = 5
	nhaGateway       = 6
	nhaEncapType     = 7
	nextHopGroupSize = 8
)

// nextHopObjects returns the next hops of nexthop objects by their ID. Routes have them as well, unless
// net.ipv4.nexthop_compat_mode is 0.
func nextHopObjects() (map[uint32][]NextHop, error) {
	objects, err := netdev.Objects(unix.NETLINK_ROUTE, unix.RTM_GETNEXTHOP, unix.RTM_NEWNEXTHOP, make([]byte, nextHopHeader), nextHopHeader)
	if err != nil {
		return nil, fmt.Errorf("list next hops: %w", err)
	}
	all, groups := map[uint32][]NextHop{}, map[uint32][]uint32{}
	for _, o := range objects {
		var id uint32
		var hop NextHop
		var members []uint32
		for _, a := range o.Attributes {
			switch a.Attr.Type {
			case nhaID:
				id = attributeUint32(a.Value)
			case nhaDevice:
				hop.Device = int(attributeUint32(a.Value))
			case nhaGateway:
				hop.Gateway, _ = netip.AddrFromSlice(a.Value)
			case nhaEncapType:
				hop.parse(unix.RTA_ENCAP_TYPE, a.Value)
			case nhaGroup:
				for b := a.Value; len(b) >= nextHopGroupSize; b = b[nextHopGroupSize:] {
					members = append(members, binary.NativeEndian.Uint32(b))
				}
			}
		}
		if groups[id] = members; members == nil {
			all[id] = []NextHop{hop}
		}
	}
	for id, members := range groups {
		for _, member := range members {
			all[id] = append(all[id], all[member]...)
		}
	}
	return all, nil
}
