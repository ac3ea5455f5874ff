// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"cmp"
	"maps"
	"net/netip"
	"path"
	"slices"

	"beeline.io/beeline/internal/node"
	"beeline.io/beeline/internal/node/netdev"
)

// A route is a unicast route. It is direct if it has no gateway.
type route struct {
	to        netip.Prefix
	device    int
	direct    bool
	multipath bool // it is one of several next hops
}

// network is what the kernel tells about this network namespace.
type network struct {
	devices    []netdev.Device
	routes     []route
	neighbours []node.Neighbour
	// ports are the ports of bridges by the bridge and the MAC addresses behind them.
	ports map[node.BridgeMAC]int
	// routeMTUs are the MTUs that routes have.
	routeMTUs node.DestinationMTUs
	// own are the node's addresses.
	own map[netip.Addr]bool
	// rpFilters are the effective values of rp_filter by device.
	rpFilters map[int]uint8
	// ruleInputs are the input devices that routing rules of IPv4 name, but lo.
	ruleInputs []string
	// ruleMarks: routing rules match marks of packets.
	ruleMarks bool

	// Made by prepare: where in links a device is, the first route to each single address, and the other routes.
	index  map[int]int
	single map[netip.Addr]route
	wide   []route
}

// prepare makes look-ups fast. The network does not change afterwards.
func (n *network) prepare() {
	n.index, n.single, n.wide = map[int]int{}, map[netip.Addr]route{}, nil
	for i, l := range n.devices {
		n.index[l.Index] = i
	}
	for _, r := range n.routes {
		if !r.to.IsSingleIP() {
			n.wide = append(n.wide, r)
		} else if _, ok := n.single[r.to.Addr()]; !ok {
			n.single[r.to.Addr()] = r
		}
	}
}

// A place is where a pod is.
type place struct {
	device int     // index of the node's end of the pod's device
	mac    [6]byte // of the pod; zeros: not known
	// learned: its bridge has seen it there. No route says so.
	learned bool
}

// A wish is which devices of pods to serve: all, or those that match a name or shell pattern.
type wish []string

func (w wish) has(name string) bool {
	return len(w) == 0 || slices.ContainsFunc(w, func(pattern string) bool {
		ok, _ := path.Match(pattern, name)
		return ok
	})
}

// hasTwoEnds reports whether a device is the node's end of a pair.
func hasTwoEnds(d *netdev.Device) bool {
	return d.Kind == "veth" || d.Kind == "netkit" && d.Netkit.Primary
}

// podLinks returns the devices that may lead to a pod: those whose other end is in another network namespace, and by
// which the node does not reach everything else. A virtual machine's uplink may be such a device.
func (n *network) podLinks(wanted wish) map[int]*netdev.Device {
	found := map[int]*netdev.Device{}
	for i := range n.devices {
		if l := &n.devices[i]; l.Up && l.PeerElsewhere && hasTwoEnds(l) && wanted.has(l.Name) {
			found[l.Index] = l
		}
	}
	for _, r := range n.routes {
		if !r.direct {
			delete(found, r.device)
		}
	}
	return found
}

// find returns the pods of this node with an address in the pod networks. An address is behind the device that a
// route to it alone leads to; or behind the port of a bridge at which its MAC address was seen, if the route to it
// leads to the bridge.
func (n *network) find(networks []netip.Prefix, wanted wish) map[netip.Addr]place {
	at := map[netip.Addr]place{}
	links := n.podLinks(wanted)
	inNetworks := func(a netip.Addr) bool {
		return !n.own[a] && slices.ContainsFunc(networks, func(p netip.Prefix) bool { return p.Contains(a) })
	}
	for _, r := range n.routes {
		if links[r.device] != nil && r.direct && r.to.IsSingleIP() && inNetworks(r.to.Addr()) {
			at[r.to.Addr()] = place{device: r.device}
		}
	}
	for _, b := range n.neighbours {
		p, known := at[b.Address]
		switch {
		case b.Gone || b.MAC == [6]byte{}:
		case known && p.device == b.Device:
			at[b.Address] = place{device: b.Device, mac: b.MAC}
		case !known && inNetworks(b.Address) && n.deviceTo(b.Address) == b.Device:
			if port := n.ports[node.BridgeMAC{Bridge: b.Device, MAC: b.MAC}]; links[port] != nil && links[port].Master == b.Device {
				at[b.Address] = place{port, b.MAC, true}
			}
		}
	}
	return at
}

// ports returns the ports of bridges that lead to pods, behind which no pod is known.
func (s *surroundings) ports(wanted wish) (all []int) {
	bridges := map[int]bool{}
	for _, r := range s.network.routes {
		if r.direct && slices.ContainsFunc(s.networks, r.to.Overlaps) && s.network.device(r.device).IsBridge() {
			bridges[r.device] = true
		}
	}
	for index, l := range s.network.podLinks(wanted) {
		if bridges[l.Master] && s.behind[index] == nil {
			all = append(all, index)
		}
	}
	slices.Sort(all)
	return all
}

// mtuTo returns the length up to which packets to a pod need no answer of the stack: that of the pod's device, or of a
// route to the pod.
func (n *network) mtuTo(a netip.Addr, device netdev.Device) uint16 {
	mtu := min(device.MTU, 0xffff)
	if of := int(n.routeMTUs.To(a)); of != 0 && of < mtu {
		mtu = of
	}
	return uint16(mtu)
}

// deviceTo returns the device of the longest direct route to an address; 0 if there is none.
func (n *network) deviceTo(a netip.Addr) int {
	best, ok := n.single[a]
	if !ok {
		longest := -1
		for _, r := range n.wide {
			if r.to.Bits() > longest && r.to.Contains(a) {
				longest, best = r.to.Bits(), r
			}
		}
	}
	if !best.direct {
		return 0
	}
	return best.device
}

// uplinks returns the devices by which packets leave for pods of other nodes, or arrive from there: those with a
// route to a part of the pod networks, or with a default route. Devices of pods, served or not, and bridges of such
// are none.
func (n *network) uplinks(networks []netip.Prefix) []netdev.Device {
	pods, podSide := n.podLinks(nil), map[int]bool{}
	for _, l := range pods {
		if l.Master != 0 {
			podSide[l.Index], podSide[l.Master] = true, true
		}
	}
	routed := map[int]bool{}
	for _, r := range n.routes {
		if pods[r.device] != nil && r.to.IsSingleIP() {
			podSide[r.device] = true
		}
		if r.to.Bits() == 0 || slices.ContainsFunc(networks, r.to.Overlaps) {
			routed[r.device] = true
		}
	}
	var found []netdev.Device
	for _, l := range n.devices {
		if routed[l.Index] && !podSide[l.Index] && l.Up && (l.Ethernet || l.L3) && !l.Loopback && (l.Master == 0 || n.device(l.Master).Kind == "vrf") {
			found = append(found, l)
		}
	}
	return found
}

// device returns a device; the zero one if there is none.
func (n *network) device(index int) netdev.Device {
	if i, ok := n.index[index]; ok {
		return n.devices[i]
	}
	return netdev.Device{}
}

// gateway is the MAC address to which the pods behind a device send what is routed: the device's, or that of the bridge
// above.
func (n *network) gateway(l netdev.Device) [6]byte {
	if n.device(l.Master).IsBridge() {
		return n.device(l.Master).MAC()
	}
	return l.MAC()
}

// sortedAddresses returns the addresses in order.
func sortedAddresses(at map[netip.Addr]place) []netip.Addr {
	return slices.SortedFunc(maps.Keys(at), netip.Addr.Compare)
}

// mostLearned is how many addresses that a bridge has learned a device may have. A pod may have its node learn any.
const mostLearned = 64

// limit removes the addresses of devices with more than mostLearned, and returns how many by device. Those that were
// there before stay.
func limit(at, before map[netip.Addr]place) (excess map[int]int) {
	learned := map[int][]netip.Addr{}
	for addr, p := range at {
		if p.learned {
			learned[p.device] = append(learned[p.device], addr)
		}
	}
	excess = map[int]int{}
	for device, all := range learned {
		if len(all) <= mostLearned {
			continue
		}
		isNew := func(a netip.Addr) int {
			if p, ok := before[a]; ok && p.device == device {
				return 0
			}
			return 1
		}
		slices.SortFunc(all, func(a, b netip.Addr) int { return cmp.Or(cmp.Compare(isNew(a), isNew(b)), a.Compare(b)) })
		for _, addr := range all[mostLearned:] {
			delete(at, addr)
		}
		excess[device] = len(all) - mostLearned
	}
	return excess
}
