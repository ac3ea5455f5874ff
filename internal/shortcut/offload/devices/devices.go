// SPDX-License-Identifier: Apache-2.0

// Package devices chooses the devices of flow offload among those of this network namespace.
package devices

import (
	"fmt"
	"path"
	"slices"

	"beeline.io/beeline/internal/node"
	"beeline.io/beeline/internal/node/netdev"
)

// A Device is a device of this network namespace, of flow offload or not.
type Device struct {
	netdev.Device
	// Above is its bridge, bond, team or VRF; zero: none.
	Above netdev.Device
	// Pod: it leads to a pod alone.
	Pod bool
	// Unsuitable is why it cannot be a device of flow offload; empty: it can.
	Unsuitable string
}

// Read returns all devices of a network, in the order of their indexes.
func Read(network *node.Network) ([]Device, error) {
	found, err := network.DeviceRoutes(nil)
	if err != nil {
		return nil, err
	}
	return describe(found), nil
}

func describe(found []node.DeviceRoutes) []Device {
	byIndex := map[int]netdev.Device{}
	for _, d := range found {
		byIndex[d.Index] = d.Device
	}
	all := make([]Device, len(found))
	for i, d := range found {
		above := byIndex[d.Master]
		all[i] = Device{d.Device, above, leadsToPod(&d), unsuitable(&d, above)}
	}
	slices.SortFunc(all, func(a, b Device) int { return a.Index - b.Index })
	return all
}

// unsuitable returns why packets of flows do not enter and leave by a device.
func unsuitable(d *node.DeviceRoutes, above netdev.Device) string {
	switch {
	case d.Loopback:
		return "it is the loopback device"
	case d.Enslaved:
		return fmt.Sprintf("it is a port of %s, which gets its packets: give %s instead", above.Name, above.Name)
	case d.Kind == "vrf":
		return "a VRF only chooses routes: give its devices instead"
	case d.Kind == "dummy" || d.Kind == "ifb":
		return fmt.Sprintf("no hosts are behind a device of kind %s", d.Kind)
	case !d.Ethernet && !d.L3:
		return "its packets begin neither with an Ethernet header nor with an IP header (GRE, PPP)"
	case !d.Up:
		return "it is down"
	}
	return ""
}

// podKinds are the kinds of devices with two ends.
var podKinds = []string{"veth", "netkit"}

// leadsToPod reports whether a device leads to single addresses in another network namespace. A router in one is
// reached by a network, or by a default route.
func leadsToPod(d *node.DeviceRoutes) bool {
	if !slices.Contains(podKinds, d.Kind) || !d.PeerElsewhere || d.DefaultRoute {
		return false
	}
	for _, p := range d.Direct {
		if !p.IsSingleIP() {
			return false
		}
	}
	return len(d.Direct) > 0 || len(d.Addresses) == 0
}

// Choose returns the devices that match a name or shell pattern, and for each pattern without one, why. Without
// patterns it returns all that can be of flow offload and lead to no pod.
func Choose(all []Device, patterns []string) (chosen []Device, unmatched []Unmatched) {
	for _, d := range all {
		wanted := len(patterns) == 0 && !d.Pod || slices.ContainsFunc(patterns, d.matches)
		if wanted && d.Unsuitable == "" {
			chosen = append(chosen, d)
		}
	}
	for _, p := range patterns {
		if !slices.ContainsFunc(chosen, func(d Device) bool { return d.matches(p) }) {
			unmatched = append(unmatched, whyUnmatched(all, p))
		}
	}
	return chosen, unmatched
}

func (d Device) matches(pattern string) bool {
	ok, _ := path.Match(pattern, d.Name)
	return ok
}

// Unmatched is a pattern that no device of flow offload matches.
type Unmatched struct {
	Pattern string
	// Device is one that matches, and Why why it is none of flow offload; empty: no device matches.
	Device, Why string
}

func whyUnmatched(all []Device, pattern string) Unmatched {
	i := slices.IndexFunc(all, func(d Device) bool { return d.matches(pattern) })
	if i < 0 {
		return Unmatched{Pattern: pattern}
	}
	return Unmatched{pattern, all[i].Name, all[i].Unsuitable}
}
