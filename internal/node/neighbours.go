// SPDX-License-Identifier: Apache-2.0

package node

import (
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/node/netdev"
)

// A Neighbour is an address behind a device. Gone: it does not answer.
type Neighbour struct {
	Device  int
	Address netip.Addr
	MAC     [6]byte
	Gone    bool
}

// Neighbours in these states have, or had, the MAC address that the table states.
const neighboursKnown = netlink.NUD_REACHABLE | netlink.NUD_STALE | netlink.NUD_DELAY | netlink.NUD_PROBE | netlink.NUD_PERMANENT

// Neighbours returns the neighbours with a MAC address, and those that are gone.
func (n *Network) Neighbours() ([]Neighbour, error) {
	return read(n, Neighbours, &n.neighbours, listNeighbours)
}

func listNeighbours() (all []Neighbour, _ error) {
	list, err := netdev.Neighbours(netlink.FAMILY_ALL)
	for _, b := range list {
		addr, ok := netip.AddrFromSlice(b.IP)
		if !ok || len(b.HardwareAddr) != 6 && b.State&neighboursKnown != 0 {
			continue
		}
		found := Neighbour{Device: b.LinkIndex, Address: addr.Unmap(), Gone: b.State&neighboursKnown == 0}
		copy(found.MAC[:], b.HardwareAddr)
		all = append(all, found)
	}
	return all, err
}

// BridgeMAC is a MAC address that a bridge may have seen.
type BridgeMAC struct {
	Bridge int // its index
	MAC    [6]byte
}

// ForwardingEntries returns the ports of bridges by the MAC addresses behind them.
func (n *Network) ForwardingEntries() (map[BridgeMAC]int, error) {
	return read(n, ForwardingEntries, &n.forwarding, listForwardingEntries)
}

func listForwardingEntries() (map[BridgeMAC]int, error) {
	list, err := netdev.Neighbours(unix.AF_BRIDGE)
	ports := map[BridgeMAC]int{}
	for _, b := range list {
		if b.MasterIndex != 0 && len(b.HardwareAddr) == 6 {
			ports[BridgeMAC{b.MasterIndex, [6]byte(b.HardwareAddr)}] = b.LinkIndex
		}
	}
	return ports, err
}
