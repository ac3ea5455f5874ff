// SPDX-License-Identifier: Apache-2.0

package node

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/node/netdev"
)

// Values of rp_filter (Documentation/networking/ip-sysctl.rst): strict is RFC 3704's for networks with one uplink.
const (
	RPFilterStrict = 1
	RPFilterLoose  = 2
)

// RPFilters returns the effective rp_filter of each device, by index: the larger of net.ipv4.conf.all.rp_filter and the
// device's own.
func (n *Network) RPFilters() (map[int]uint8, error) {
	return read(n, RPFilters, &n.rpFilters, listRPFilters)
}

func listRPFilters() (map[int]uint8, error) {
	objects, err := netdev.Objects(unix.NETLINK_ROUTE, unix.RTM_GETNETCONF, unix.RTM_NEWNETCONF, []byte{unix.AF_INET, 0, 0, 0}, netconfSize)
	if err != nil {
		return nil, fmt.Errorf("read rp_filter: %w", err)
	}
	filters, everywhere := map[int]uint8{}, uint8(0)
	for _, o := range objects {
		device, value, ok := parseRPFilter(o)
		switch {
		case !ok:
		case device == netconfAll:
			everywhere = value
		case device > 0:
			filters[device] = value
		}
	}
	for device, value := range filters {
		filters[device] = max(value, everywhere)
	}
	return filters, nil
}

// Of linux/netconf.h.
const (
	netconfSize     = 4 // of struct netconfmsg, aligned
	netconfDevice   = 1 // NETCONFA_IFINDEX
	netconfRPFilter = 3 // NETCONFA_RP_FILTER
	netconfAll      = -1
)

func parseRPFilter(o netdev.Object) (device int, value uint8, ok bool) {
	for _, a := range o.Attributes {
		if len(a.Value) < 4 {
			continue
		}
		switch n := int32(binary.NativeEndian.Uint32(a.Value)); a.Attr.Type {
		case netconfDevice:
			device = int(n)
		case netconfRPFilter:
			value, ok = uint8(max(0, min(n, 255))), true
		}
	}
	return device, value, ok && device != 0
}
