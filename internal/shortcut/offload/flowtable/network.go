// SPDX-License-Identifier: Apache-2.0

package flowtable

import (
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/node/netdev"
)

// nudValid are the states of neighbours whose MAC address the kernel uses (NUD_VALID of net/neighbour.h).
const nudValid = netlink.NUD_PERMANENT | netlink.NUD_NOARP | netlink.NUD_REACHABLE | netlink.NUD_PROBE | netlink.NUD_STALE | netlink.NUD_DELAY

// A hop is a next hop by a device.
type hop struct {
	device  int // index
	address netip.Addr
}

func (h hop) String() string { return fmt.Sprintf("%s by device %d", h.address, h.device) }

// key is the element of a set: index in host byte order, address.
func (h hop) key() []byte {
	return append(binary.NativeEndian.AppendUint32(nil, uint32(h.device)), h.address.AsSlice()...)
}

// hopOf reverses key.
func hopOf(key []byte) (h hop, ok bool) {
	if len(key) < 4 {
		return hop{}, false
	}
	h.device = int(binary.NativeEndian.Uint32(key))
	h.address, ok = netip.AddrFromSlice(key[4:])
	return h, ok
}

// hops are the valid next hops.
type hops struct {
	direct []int // indexes of devices that need no neighbour
	valid  map[hop]neighbour
}

type neighbour struct {
	mac   string
	stale bool // the kernel would ask for it again if the stack used it
}

func (h hops) elements(ipv6 bool) (all []nftables.SetElement) {
	for hop := range h.valid {
		if hop.address.Is6() == ipv6 {
			all = append(all, nftables.SetElement{Key: hop.key()})
		}
	}
	return all
}

// A port is where a bridge has learned a MAC address.
type fdbKey struct {
	bridge, vlan int
	mac          string
}

// network is what the kernel knows of devices and neighbours.
type network struct {
	links map[int]netdev.Device
	valid map[hop]neighbour
	fdb   map[fdbKey]int // index of the port; entries that expired are kept
}

// readNetwork reads it from the calling thread's namespace.
func readNetwork() (*network, error) {
	n := &network{links: map[int]netdev.Device{}, valid: map[hop]neighbour{}, fdb: map[fdbKey]int{}}
	devices, err := netdev.Devices()
	if err != nil {
		return nil, err
	}
	for _, d := range devices {
		n.links[d.Index] = ofFlows(d)
	}
	for _, family := range []int{unix.AF_INET, unix.AF_INET6, unix.AF_BRIDGE} {
		all, err := netdev.Neighbours(family)
		if err != nil {
			return nil, err
		}
		for _, neigh := range all {
			n.neighbour(unix.RTM_NEWNEIGH, &neigh)
		}
	}
	return n, nil
}

// ofFlows returns what of a device matters to flows that leave by it.
func ofFlows(d netdev.Device) netdev.Device {
	return netdev.Device{
		Index: d.Index, Name: d.Name, Kind: d.Kind, Address: d.Address, Master: d.Master, Parent: d.Parent, MTU: d.MTU,
		Up: d.Up, NoARP: d.NoARP, External: d.External,
	}
}

// A change is what a message has changed.
type change struct {
	added, removed []hop
	// moved are next hops whose flows have to return to the stack.
	moved []hop
	// all: all flows have to; the reason.
	all string
}

// neighbour follows a message about a neighbour, or about an entry of a bridge's table.
func (n *network) neighbour(message uint16, neigh *netlink.Neigh) (c change) {
	if neigh.Family == unix.AF_BRIDGE {
		return n.fdbEntry(message, neigh)
	}
	address, ok := netip.AddrFromSlice(neigh.IP)
	if !ok || neigh.Flags&netlink.NTF_PROXY != 0 {
		return c
	}
	h := hop{neigh.LinkIndex, address.Unmap()}
	before, was := n.valid[h]
	now := neighbour{mac: string(neigh.HardwareAddr), stale: neigh.State == netlink.NUD_STALE}
	if message == unix.RTM_DELNEIGH || neigh.State&nudValid == 0 {
		if was {
			delete(n.valid, h)
			c.removed, c.moved = []hop{h}, []hop{h}
		}
		return c
	}
	n.valid[h] = now
	switch {
	case !was:
		c.added = []hop{h}
	case before.mac != now.mac:
		c.moved = []hop{h}
	}
	return c
}

// fdbEntry follows a bridge's entry to another port. When an entry expires its port is still the last one: a flow in
// the flowtable does not refresh it.
func (n *network) fdbEntry(message uint16, neigh *netlink.Neigh) (c change) {
	if message != unix.RTM_NEWNEIGH || neigh.MasterIndex == 0 {
		return c
	}
	k := fdbKey{neigh.MasterIndex, neigh.Vlan, string(neigh.HardwareAddr)}
	before, known := n.fdb[k]
	n.fdb[k] = neigh.LinkIndex
	if !known || before == neigh.LinkIndex {
		return c
	}
	for h, v := range n.valid {
		if v.mac == k.mac {
			c.moved = append(c.moved, h)
		}
	}
	return c
}

// link follows a message about a device. Only devices that matter change flows.
func (n *network) link(message uint16, l netlink.Link, matters func(netdev.Device) bool) (c change) {
	index := l.Attrs().Index
	before, was := n.links[index]
	now := ofFlows(netdev.DeviceOf(l))
	if message == unix.RTM_DELLINK {
		delete(n.links, index)
		n.forget(index)
	} else {
		n.links[index] = now
	}
	changed := !was || message == unix.RTM_DELLINK || before != now
	if changed && (matters(now) || was && matters(before)) {
		c.all = "device " + now.Name
	}
	return c
}

// forget drops the neighbours of a device that is gone: the kernel need not name them.
func (n *network) forget(index int) {
	maps.DeleteFunc(n.valid, func(h hop, _ neighbour) bool { return h.device == index })
	maps.DeleteFunc(n.fdb, func(k fdbKey, port int) bool { return k.bridge == index || port == index })
}

// hops are the valid next hops by some devices.
func (n *network) hops(devices map[int]bool) hops {
	h := hops{valid: map[hop]neighbour{}}
	for index := range devices {
		if n.links[index].NoARP {
			h.direct = append(h.direct, index)
		}
	}
	for hop, v := range n.valid {
		if devices[hop.device] {
			h.valid[hop] = v
		}
	}
	return h
}

// above returns the indexes of devices and of those above them, by which packets enter and leave the stack: bridge,
// bond, VRF, VLAN.
func (n *network) above(names []string) map[int]bool {
	all := map[int]bool{}
	for index, l := range n.links {
		if slices.Contains(names, l.Name) {
			all[index] = true
		}
	}
	for grown := true; grown; {
		grown = false
		for index, l := range n.links {
			if all[index] && l.Master != 0 && !all[l.Master] {
				all[l.Master], grown = true, true
			}
			if l.Kind == "vlan" && all[l.Parent] && !all[index] {
				all[index], grown = true, true
			}
		}
	}
	return all
}

// named returns a device by its name.
func (n *network) named(name string) (l netdev.Device, ok bool) {
	for _, l = range n.links {
		if l.Name == name {
			return l, true
		}
	}
	return netdev.Device{}, false
}
