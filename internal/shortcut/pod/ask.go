// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/util/wakeup"
)

// Behind a bridge the node knows only those pods that it has talked to: packets from pod to pod do not pass its stack.
// So the program notes the addresses that send from there, and the agent has the kernel ask who has them. What answers
// is found like any other neighbour.

// askInterval is how often the noted addresses are read, and mostAsked how many of them are asked for at a device: a
// pod may send from any address.
const (
	askInterval = time.Second
	mostAsked   = 16
)

// followUnknown asks for addresses that were noted, until ctx ends.
func (s *Shortcut) followUnknown(ctx context.Context) {
	for wakeup.Sleep(ctx, askInterval) {
		table := s.datapath.Unknown()
		noted, err := table.All()
		for addr := range noted {
			err = errors.Join(err, table.Delete(addr))
		}
		s.mu.Lock()
		if err != nil {
			s.record(err)
		}
		asked := s.around.bridgesOf(noted)
		s.mu.Unlock()
		ask(asked)
	}
}

// A bridgedAddress is an address of a pod, and the bridge that leads to it.
type bridgedAddress struct {
	addr   netip.Addr
	bridge int
}

// bridgesOf returns the addresses that may be of pods behind a bridge and are not known, and their bridges. The values
// are devices of pods.
func (s *surroundings) bridgesOf(noted map[bpf.Address]uint32) (all []bridgedAddress) {
	if s == nil {
		return nil
	}
	asked := map[uint32]int{}
	for address, device := range noted {
		addr := address.Addr()
		_, known := s.at[addr]
		bridge := s.network.device(int(device)).Master
		if !known && s.isOfPods(addr) && !s.network.own[addr] && bridge != 0 && s.network.deviceTo(addr) == bridge && asked[device] < mostAsked {
			asked[device]++
			all = append(all, bridgedAddress{addr, bridge})
		}
	}
	return all
}

// isOfPods reports whether an address is in the pod networks.
func (s *surroundings) isOfPods(addr netip.Addr) bool {
	return slices.ContainsFunc(s.networks, func(p netip.Prefix) bool { return p.Contains(addr) })
}

// ask has the kernel resolve addresses. Those that nobody has fail, as they do for any other sender.
func ask(addresses []bridgedAddress) {
	for _, a := range addresses {
		r := nl.NewNetlinkRequest(unix.RTM_NEWNEIGH, unix.NLM_F_CREATE|unix.NLM_F_REPLACE|unix.NLM_F_ACK)
		about := netlink.Ndmsg{Family: unix.AF_INET, Index: uint32(a.bridge), Flags: unix.NTF_USE}
		if a.addr.Is6() {
			about.Family = unix.AF_INET6
		}
		r.AddData(&about)
		r.AddData(nl.NewRtAttr(netlink.NDA_DST, a.addr.AsSlice()))
		_, _ = r.Execute(unix.NETLINK_ROUTE, 0) // the bridge may have gone
	}
}

// recall asks for the pods that the tables have of an earlier agent and that are not known any more, and reports
// whether there are any.
func (s *Shortcut) recall() bool {
	rows, err := s.datapath.Pods().All()
	if err != nil {
		return false // a later reading reports it
	}
	before := map[bpf.Address]uint32{}
	for addr, row := range rows {
		before[addr] = row.Device
	}
	n, err := s.read()
	if err != nil {
		return false
	}
	s.mu.Lock()
	networks := slices.Clone(s.networks)
	s.mu.Unlock()
	around := newSurroundings(n, networks, n.find(networks, s.config.Devices))
	asked := around.bridgesOf(before)
	ask(asked)
	return len(asked) > 0
}
