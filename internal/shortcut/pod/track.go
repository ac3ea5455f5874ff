// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"net/netip"
	"slices"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/conntrack/kernelct"
)

// withhold ends the shortcut for pods that will not be in the table any more: new flows take the stack, and the
// kernel's conntrack gets entries of the others. It returns the addresses of these pods, nil if there are none, and
// whether they still exist.
func (s *Shortcut) withhold(wanted *rows) (leaving map[netip.Addr]bool, err error) {
	table := s.datapath.Pods()
	have, err := table.All()
	if err != nil {
		return nil, err
	}
	for address, row := range have {
		if _, stays := wanted.pods[address]; stays {
			continue
		}
		if leaving == nil {
			leaving = map[netip.Addr]bool{}
		}
		// The flows of a pod that has ended have ended, too.
		leaving[address.Addr()] = wanted.network.device(int(row.Device)).Index != 0
		row.Withheld = 1
		if err := table.Put(address, row); err != nil {
			return nil, err
		}
	}
	if leaving == nil {
		return nil, nil
	}
	return leaving, s.track(leaving)
}

// mostTracked is how many flows are remembered that may return to the shortcut: twice as many as it has.
const mostTracked = 2 * flowLimit

// A trackedFlow is a flow that the kernel's conntrack has because of its source, its destination or both.
type trackedFlow struct {
	kernelct.Flow
	source, destination bool
}

func (s *Shortcut) track(ends map[netip.Addr]bool) error {
	flows, err := s.datapath.TrackFlows(ends)
	for _, f := range flows {
		s.tracked = append(s.tracked, trackedFlow{f, ends[f.Source.Addr()], ends[f.Destination.Addr()]})
	}
	s.tracked = s.tracked[max(0, len(s.tracked)-mostTracked):]
	return err
}

// adopt has flows return that an earlier agent has handed over, when their pods may.
func (s *Shortcut) adopt() error {
	flows, err := s.datapath.HandedFlows()
	if err != nil {
		return err
	}
	s.writing.Lock()
	defer s.writing.Unlock()
	s.mu.Lock()
	around := s.around
	s.mu.Unlock()
	if around == nil {
		return nil
	}
	for _, f := range flows {
		_, source := around.at[f.Source.Addr()]
		_, destination := around.at[f.Destination.Addr()]
		if (source || destination) && around.isOfPods(f.Source.Addr()) && around.isOfPods(f.Destination.Addr()) && len(s.tracked) < mostTracked {
			s.tracked = append(s.tracked, trackedFlow{f, source, destination})
		}
	}
	return nil
}

// untrack has the flows that were handed over take the shortcut again whose pods may.
func (s *Shortcut) untrack(pods map[bpf.Address]Row) error {
	has := func(end netip.AddrPort) bool {
		_, ok := pods[bpf.AddressFrom(end.Addr())]
		return ok
	}
	var back []kernelct.Flow
	s.tracked = slices.DeleteFunc(s.tracked, func(f trackedFlow) bool {
		if f.source && !has(f.Source) || f.destination && !has(f.Destination) {
			return false
		}
		back = append(back, f.Flow)
		return true
	})
	if len(back) == 0 {
		return nil
	}
	return s.datapath.UntrackFlows(back)
}
