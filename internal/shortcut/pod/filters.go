// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"beeline.io/beeline/internal/node"
	"beeline.io/beeline/internal/node/netdev"
	"beeline.io/beeline/internal/node/netfilter"
	"beeline.io/beeline/internal/node/tcfilter"
)

// A filter is what would drop, delay or change packets that the shortcut makes bypass it.
type filter struct {
	// device is the device whose packets it concerns; 0: those of all.
	device int
	// what describes it for the operator, such as "qdisc tbf".
	what string
	// atPeer: a program at the peer hook of a netkit device.
	atPeer bool
	// invalid: a rule that drops what conntrack finds invalid, and nothing else of the device. It keeps no packet
	// on the stack.
	invalid bool
}

// surroundings are where filters are searched: the devices of pods, and those that lead to other nodes.
type surroundings struct {
	network  *network
	networks []netip.Prefix // of pods
	at       map[netip.Addr]place
	uplinks  []netdev.Device
	behind   map[int][]int // devices of pods by themselves, and by their bridge or VRF
	unknown  []int         // ports of bridges that lead to pods, behind which no pod is known
}

func newSurroundings(n *network, networks []netip.Prefix, at map[netip.Addr]place) surroundings {
	s := surroundings{network: n, networks: networks, at: at, uplinks: n.uplinks(networks), behind: map[int][]int{}}
	for _, p := range at {
		if s.behind[p.device] != nil {
			continue
		}
		s.behind[p.device] = []int{p.device}
		if master := n.device(p.device).Master; master != 0 {
			s.behind[master] = append(s.behind[master], p.device)
		}
	}
	return s
}

// A finder finds the filters of the node. It keeps what has not changed since it last searched.
type finder struct {
	network *node.Network
	rules   netfilter.Finder
	tc      *tcfilter.Finder
}

func newFinder(network *node.Network, foreign func(program uint32) (name string, foreign bool)) *finder {
	return &finder{network: network, tc: tcfilter.New(foreign)}
}

// follow has the kernel report changes of nftables to wait.
func (f *finder) follow() error { return f.rules.Follow() }

// wait waits until nftables have changed so that find may have another result, or ctx ends.
func (f *finder) wait(ctx context.Context) error { return f.rules.Wait(ctx) }

// find returns the filters.
func (f *finder) find(s surroundings) ([]filter, error) {
	if len(s.at) == 0 {
		return nil, nil
	}
	var all []filter
	for _, search := range []func(surroundings) ([]filter, error){f.netfilter, f.queues, f.hooks, f.policies, f.bridgePorts, f.peers, f.xfrm} {
		found, err := search(s)
		if err != nil {
			return nil, fmt.Errorf("search packet filters: %w", err)
		}
		all = append(all, found...)
	}
	return all, nil
}

// netfilter finds rules of nftables and iptables.
func (f *finder) netfilter(s surroundings) (all []filter, err error) {
	found, err := f.rules.Find(s.subject())
	if err != nil {
		return nil, err
	}
	if found, err = f.onlyMarked(s, found); err != nil {
		return nil, err
	}
	for _, one := range found {
		for _, device := range one.Devices {
			all = append(all, filter{device: device, what: one.What, invalid: one.Invalid})
		}
	}
	return all, nil
}

// subject describes the devices in an order that only they decide.
func (s *surroundings) subject() netfilter.Subject {
	subject := netfilter.Subject{Networks: s.networks}
	at := map[int]int{}
	for _, addr := range sortedAddresses(s.at) {
		index := s.at[addr].device
		if _, ok := at[index]; !ok {
			at[index] = len(subject.Devices)
			subject.Devices = append(subject.Devices, s.device(s.network.device(index)))
		}
		d := &subject.Devices[at[index]]
		d.Pods = append(d.Pods, addr)
	}
	for _, l := range s.uplinks {
		d := s.device(l)
		d.Uplink = true
		subject.Devices = append(subject.Devices, d)
	}
	return subject
}

func (s *surroundings) device(l netdev.Device) netfilter.Device {
	d := netfilter.Device{Index: l.Index, Name: l.Name}
	if m := s.network.device(l.Master); m.Index != 0 {
		d.Master = &netfilter.Master{Index: m.Index, Name: m.Name, Bridge: m.IsBridge()}
	}
	return d
}

// isUplink reports whether a device leads to other nodes.
func (s *surroundings) isUplink(device int) bool {
	return slices.ContainsFunc(s.uplinks, func(l netdev.Device) bool { return l.Index == device })
}

// filtersAt returns a filter at a device, for each device of pods that it concerns.
func (s *surroundings) filtersAt(device int, what string) (all []filter) {
	if s.isUplink(device) {
		return []filter{{what: fmt.Sprintf("%s of %s", what, s.network.device(device).Name)}}
	}
	for _, d := range s.behind[device] {
		one := filter{device: d, what: what}
		if d != device {
			one.what = fmt.Sprintf("%s of %s", what, s.network.device(device).Name)
		}
		all = append(all, one)
	}
	return all
}
