// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/node"
	"beeline.io/beeline/internal/node/netdev"
)

// readNetwork reads the devices, routes, neighbours, bridge ports and addresses of this network namespace.
func readNetwork() (*network, error) {
	n := &network{ports: map[portKey]int{}, own: map[netip.Addr]bool{}}
	for _, read := range []func(*network) error{readDevices, readRoutes, readNeighbours, readPorts, readAddresses, readReversePaths, readRules} {
		if err := read(n); err != nil {
			return nil, err
		}
	}
	n.prepare()
	return n, nil
}

func readDevices(n *network) (err error) {
	n.devices, err = netdev.Devices()
	return err
}

func readRoutes(n *network) error {
	list, err := node.Routes()
	if err != nil {
		return err
	}
	for _, r := range list {
		for _, hop := range r.Hops {
			several := len(r.Hops) > 1
			n.routes = append(n.routes, route{to: r.To, device: hop.Device, direct: !several && !hop.Gateway.IsValid(), multipath: several})
		}
	}
	n.routeMTUs = node.NewDestinationMTUs(list)
	return nil
}

// Neighbours in these states have, or had, the MAC address that the table states.
const neighboursKnown = netlink.NUD_REACHABLE | netlink.NUD_STALE | netlink.NUD_DELAY | netlink.NUD_PROBE | netlink.NUD_PERMANENT

func readNeighbours(n *network) error {
	list, err := netdev.Dump(func() ([]netlink.Neigh, error) { return netlink.NeighList(0, netlink.FAMILY_ALL) })
	if err != nil {
		return fmt.Errorf("list neighbours: %w", err)
	}
	for _, b := range list {
		addr, ok := netip.AddrFromSlice(b.IP)
		if !ok || len(b.HardwareAddr) != 6 && b.State&neighboursKnown != 0 {
			continue
		}
		found := neighbour{device: b.LinkIndex, addr: addr.Unmap(), gone: b.State&neighboursKnown == 0}
		copy(found.mac[:], b.HardwareAddr)
		n.neighbours = append(n.neighbours, found)
	}
	return nil
}

func readPorts(n *network) error {
	list, err := netdev.Dump(func() ([]netlink.Neigh, error) { return netlink.NeighList(0, unix.AF_BRIDGE) })
	if err != nil {
		return fmt.Errorf("list the forwarding tables of bridges: %w", err)
	}
	for _, b := range list {
		if b.MasterIndex == 0 || len(b.HardwareAddr) != 6 {
			continue
		}
		n.ports[portKey{b.MasterIndex, [6]byte(b.HardwareAddr)}] = b.LinkIndex
	}
	return nil
}

func readAddresses(n *network) error {
	list, err := netdev.Addresses()
	for _, a := range list {
		n.own[a.Addr] = true
	}
	return err
}

func readReversePaths(n *network) (err error) {
	n.rpFilters, err = node.RPFilters()
	return err
}

func readRules(n *network) error {
	rules, err := node.Rules()
	for _, r := range rules {
		if !r.IPv6 && r.Input != "" && r.Input != "lo" {
			n.ruleInputs = append(n.ruleInputs, r.Input)
		}
		n.ruleMarks = n.ruleMarks || r.MarkMask != 0
	}
	return err
}
