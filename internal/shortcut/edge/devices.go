// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"cmp"
	"net/netip"
	"path"
	"slices"
	"strings"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/node"
	"beeline.io/beeline/internal/report/condition"
)

// A Device is a network device of the node, and what is behind it.
type Device struct {
	node.DeviceRoutes
	// Backends: the route to backends on other nodes leads here.
	Backends bool
	// Pods behind the device need the edge there (Edge.SetPods).
	Pods bool
	// RPFilter is the effective rp_filter of IPv4.
	RPFilter uint8
	// Clients may be behind it: decided, not read.
	Clients bool
	// Draining: nothing requires the device any more, but flows of clients or pods behind it may
	// continue. Decided, not read.
	Draining bool
}

// readDevices reads the devices of a network. backends are those on other nodes, sorted.
func readDevices(network *node.Network, backends []netip.Addr) (all []Device, err error) {
	found, err := network.DeviceRoutes(backends)
	if err != nil {
		return nil, err
	}
	rpFilters, err := network.RPFilters()
	for _, d := range found {
		all = append(all, Device{DeviceRoutes: d, Backends: len(d.Leads) > 0, RPFilter: rpFilters[d.Index]})
	}
	return all, err
}

// choose returns the devices that are served: first those that only lead to backends, by which replies
// return, those of pods, and those of which flows may continue; then those that clients may be behind.
func choose(devices []Device, patterns []string, node []netip.Addr, flows map[int]bool) []Device {
	var chosen []Device
	for _, d := range devices {
		d.Clients = mayHaveClients(d, patterns, node)
		_, entered := flows[d.Index]
		d.Draining = entered && !d.Clients && !d.Backends && !d.Pods
		if d.Clients || d.inUse() && !d.Loopback && (d.Backends || d.hasKnownHeader() && (d.Pods || d.Draining)) {
			chosen = append(chosen, d)
		}
	}
	slices.SortFunc(chosen, func(a, b Device) int {
		return cmp.Or(compareBool(a.Clients, b.Clients), cmp.Compare(a.Index, b.Index))
	})
	return chosen
}

// choosePods marks the devices of pods with an address in one of the networks; for a single address that is
// the device with the longest matching route.
func choosePods(devices []Device, networks []netip.Prefix) {
	for _, n := range networks {
		longest, behind := -1, -1
		for i, d := range devices {
			for _, p := range d.Direct {
				if !n.IsSingleIP() && p.Overlaps(n) {
					devices[i].Pods = true
				}
				if n.IsSingleIP() && p.Contains(n.Addr()) && p.Bits() > longest {
					longest, behind = p.Bits(), i
				}
			}
		}
		if behind >= 0 {
			devices[behind].Pods = true
		}
	}
}

// onlyPods reports that only pods are behind a device; a draining device counts as one.
func (d *Device) onlyPods() bool { return (d.Pods || d.Draining) && !d.Clients && !d.Backends }

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

// mayHaveClients reports whether clients may be behind a device: if there are patterns, a device that
// matches, else a device with a default route or one of the Node's addresses.
func mayHaveClients(d Device, patterns []string, node []netip.Addr) bool {
	if d.Loopback || !d.hasKnownHeader() {
		return false
	}
	if len(patterns) > 0 {
		return matches(d.Name, patterns)
	}
	return d.inUse() && (d.DefaultRoute ||
		slices.ContainsFunc(d.Addresses, func(a netip.Addr) bool { return slices.Contains(node, a) }))
}

// hasKnownHeader reports whether the programs can find the IP header: at the start, or after an Ethernet header.
func (d *Device) hasKnownHeader() bool { return d.Ethernet || d.L3 }

// inUse reports whether packets pass through the device itself. A dummy has addresses, but nothing behind
// it.
func (d *Device) inUse() bool { return d.Up && !d.Enslaved && d.Kind != "dummy" }

// softwareKinds are kinds whose packets have arrived at another device, where XDP is more useful.
var softwareKinds = []string{"vxlan", "geneve", "gretap", "ip6gretap", "vlan", "bridge", "macvlan"}

func matches(name string, patterns []string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool {
		ok, _ := path.Match(p, name)
		return ok
	})
}

// unmatched returns the patterns that match no device.
func unmatched(devices []Device, patterns []string) []string {
	return slices.DeleteFunc(slices.Clone(patterns), func(p string) bool {
		return slices.ContainsFunc(devices, func(d Device) bool { return !d.Loopback && d.hasKnownHeader() && matches(d.Name, []string{p}) })
	})
}

// whyUnmatched returns why a pattern of --devices matches no device that can be served.
func whyUnmatched(devices []Device, pattern string) condition.Condition {
	for _, d := range devices {
		switch {
		case !matches(d.Name, []string{pattern}):
		case d.Loopback:
			return condition.DeviceUnsuitable.New("--devices %s: %s is the loopback device, which has no clients", pattern, d.Name).At(pattern)
		default:
			return condition.DeviceUnsuitable.New("--devices %s: packets of %s begin neither with an Ethernet header nor with an IP header (GRE, PPP), and cannot be served", pattern, d.Name).At(pattern)
		}
	}
	return condition.DeviceNotFound.New("--devices %s: no such device", pattern).At(pattern).
		Do("correct --devices, or create the device (%s)", present(devices))
}

// CheckPatterns returns conditions for the patterns of --devices that match no device that can be served.
func CheckPatterns(patterns []string) (all condition.List) {
	if len(patterns) == 0 {
		return nil
	}
	devices, err := readDevices(new(node.Network), nil)
	if err != nil {
		return condition.List{condition.DevicesUnreadable.New("the devices of this node cannot be read: %v", err)}
	}
	for _, pattern := range unmatched(devices, patterns) {
		all = append(all, whyUnmatched(devices, pattern))
	}
	return all
}

// present lists the devices that can be served.
func present(devices []Device) string {
	var names []string
	for _, d := range devices {
		if d.hasKnownHeader() && !d.Loopback {
			names = append(names, d.Name)
		}
	}
	slices.Sort(names)
	if len(names) == 0 {
		return "no device here can be served"
	}
	return "present: " + strings.Join(names, ", ")
}

// ownAddresses returns, for the devices that packets may arrive or leave by, the MAC address and the source
// addresses of packets that the edge sends in the node's name: the Node's own on the device, else the
// device's first, else the source address of its routes, else the Node's. Outer headers (DSR) have the
// Node's address if there is one, because other nodes know no other.
func ownAddresses(devices []Device, chosen []Device, node []netip.Addr) map[uint32]bpf.EdgeDevice {
	all := map[uint32]bpf.EdgeDevice{}
	for _, d := range devices {
		at := slices.IndexFunc(chosen, func(c Device) bool { return c.Index == d.Index })
		if d.Loopback || !d.Routed && at < 0 {
			continue
		}
		e := bpf.EdgeDevice{Mac: d.MAC()}
		if at >= 0 && chosen[at].onlyPods() {
			e.Pods = 1
		}
		if a := ownAddress(d, node, netip.Addr.Is4); a.IsValid() {
			e.Source4 = bpf.AddressFrom(a)
			e.Outer4 = bpf.AddressFrom(outerAddress(a, node))
		}
		if a := ownAddress(d, node, netip.Addr.Is6); a.IsValid() {
			e.Source6 = bpf.AddressFrom(a)
			e.Outer6 = bpf.AddressFrom(outerAddress(a, node))
		}
		e.Sources = d.sourceValidation(devices)
		if e != (bpf.EdgeDevice{}) {
			all[uint32(d.Index)] = e
		}
	}
	return all
}

// sourceValidation is how the kernel validates the source of packets that arrive by the device (enum
// source_validation). That every source has a route is known only of the main table.
func (d *Device) sourceValidation(devices []Device) (flags uint8) {
	switch d.RPFilter {
	case node.RPFilterStrict:
		flags = bpf.SourcesStrict
	case node.RPFilterLoose:
		flags = bpf.SourcesLoose
	}
	if len(d.NextHops) > 0 {
		flags |= bpf.SourcesMultipath
	}
	if d.Master == 0 && slices.ContainsFunc(devices, func(o Device) bool { return o.DefaultRoute4 }) {
		flags |= bpf.SourcesAllRouted
	}
	return flags
}

// nextHopsOf returns, for the table that programs look up, to which networks a device is one of several next hops.
func nextHopsOf(devices []Device) map[bpf.NextHopKey]uint32 {
	all := map[bpf.NextHopKey]uint32{}
	for _, d := range devices {
		for _, hop := range d.NextHops {
			is := uint32(0)
			if hop.Is {
				is = 1
			}
			all[bpf.NextHopKeyOf(d.Index, hop.To)] = is
		}
	}
	return all
}

// outerAddress returns the Node's first address of a family, or own if it has none.
func outerAddress(own netip.Addr, node []netip.Addr) netip.Addr {
	if i := slices.IndexFunc(node, func(a netip.Addr) bool { return a.Is4() == own.Is4() }); i >= 0 {
		return node[i]
	}
	return own
}

func ownAddress(d Device, node []netip.Addr, family func(netip.Addr) bool) netip.Addr {
	shared := slices.DeleteFunc(slices.Clone(d.Addresses), func(a netip.Addr) bool { return !slices.Contains(node, a) })
	for _, from := range [][]netip.Addr{shared, d.Addresses, d.Sources, node} {
		if i := slices.IndexFunc(from, family); i >= 0 {
			return from[i]
		}
	}
	return netip.Addr{}
}
