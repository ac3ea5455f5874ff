// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"net/netip"

	"beeline.io/beeline/internal/datapath"
)

// Programs open what balancers have encapsulated for this node's backends only while somebody
// uses DSR (enum dsr_accepted in bpf/lb/types.h). A kind is accepted before the first frontend
// is there that uses it. It is given up by a GC pass over flows that meets no entry of a flow which
// a balancer sends here: flows keep their encapsulation when a Service gives DSR up.

// AcceptTunnels has IPIP and Geneve accepted also while no Service has DSR, or no more so. It
// takes effect at once; what is given up waits for a GC pass.
func (s *Syncer) AcceptTunnels(always bool) error {
	s.writer.Lock()
	defer s.writer.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.acceptTunnels = always
	return s.startAccepting(s.wantedAccepted())
}

// Accepted says which kinds of packets of balancers are opened.
func (s *Syncer) Accepted() (tunnels, option bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	accepted := s.tables.UntrackedFrontends.Load(0).Accepted
	return accepted&datapath.AcceptTunnels != 0, accepted&datapath.AcceptOption != 0
}

// accepts are the kinds that a frontend needs: what flows need that began when it was another one,
// too.
func (e *entry) accepts() (kinds datapath.Accepted) {
	p := e.slotHistory()
	if e.content.DSR() != datapath.DSRNone || p != nil && p.dsr != datapath.DSRNone {
		kinds = datapath.AcceptTunnels
	}
	if e.content.DSR() == datapath.DSROpt {
		kinds |= datapath.AcceptOption
	}
	return kinds
}

// wantedAccepted are the kinds that somebody uses.
func (s *Syncer) wantedAccepted() (kinds datapath.Accepted) {
	if s.acceptTunnels {
		kinds = datapath.AcceptTunnels
	}
	for _, e := range s.applied {
		kinds |= e.accepts()
	}
	return kinds
}

// startAccepting has kinds accepted beside those that are.
func (s *Syncer) startAccepting(kinds datapath.Accepted) error {
	ends := s.tables.UntrackedFrontends.Load(0)
	if ends.Accepted|kinds == ends.Accepted {
		return nil
	}
	ends.Accepted |= kinds
	return s.tables.UntrackedFrontends.Store(0, ends)
}

// unusedAccepted are the kinds that are accepted and that nobody uses.
func (s *Syncer) unusedAccepted() datapath.Accepted {
	accepted := s.tables.UntrackedFrontends.Load(0).Accepted
	if accepted == 0 {
		return 0
	}
	return accepted &^ s.wantedAccepted()
}

// stopAccepting accepts kinds no more that nobody uses.
func (s *Syncer) stopAccepting(kinds datapath.Accepted) error {
	if kinds &= s.unusedAccepted(); kinds == 0 {
		return nil
	}
	ends := s.tables.UntrackedFrontends.Load(0)
	ends.Accepted &^= kinds
	return s.tables.UntrackedFrontends.Store(0, ends)
}

// accepted repairs what somebody else has written.
func (a *auditor) accepted() {
	want := a.wantedAccepted()
	if a.tables.UntrackedFrontends.Load(0).Accepted&want != want {
		a.repaired(a.startAccepting(want))
	}
}

// SetOwn says which addresses the node has: nobody else sends with them, and a ServiceCIDR around
// one does not hold for it. They are in the tables after the next change.
func (s *Syncer) SetOwn(addresses []netip.Addr) {
	s.writer.Lock()
	defer s.writer.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.own = addresses
}

// wantedBalancerTable is what the table of balancers holds: their networks, and the node's own
// addresses that lie in them.
func (s *Syncer) wantedBalancerTable() map[netip.Prefix]datapath.Balancer {
	want := map[netip.Prefix]datapath.Balancer{}
	var networks []netip.Prefix
	for _, p := range s.wantedBalancers {
		want[p] = datapath.IsBalancer
		if !p.IsSingleIP() {
			networks = append(networks, p)
		}
	}
	for _, a := range s.own {
		one := netip.PrefixFrom(a, a.BitLen())
		_, named := want[one]
		for _, p := range networks {
			named = named || p.Contains(a)
		}
		if named {
			want[one] = datapath.IsOwn
		}
	}
	return want
}
