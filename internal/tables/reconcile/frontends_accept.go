// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"net/netip"

	"beeline.io/beeline/internal/bpf"
)

// Programs decapsulate packets of balancers for this node's backends only while something uses DSR (enum
// dsr_accepted in bpf/lb/types.h). A kind is accepted before the first frontend that uses it is published.
// It is no longer accepted after a GC pass that finds no conntrack entry of a flow that a balancer sends
// here: flows keep their encapsulation when their Service stops using DSR.

// AcceptTunnels makes programs accept IPIP and Geneve even while no Service uses DSR, or stops doing so.
// Accepting takes effect immediately, stopping after a GC pass.
func (s *Syncer) AcceptTunnels(always bool) error {
	s.writer.Lock()
	defer s.writer.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.acceptTunnels = always
	return s.startAccepting(s.wantedAccepted())
}

// Accepted returns which kinds of packets of balancers are decapsulated.
func (s *Syncer) Accepted() (tunnels, option bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	accepted := s.tables.UntrackedFrontends.Load(0).Accepted
	return accepted&bpf.AcceptTunnels != 0, accepted&bpf.AcceptOption != 0
}

// accepts returns the kinds that a frontend needs, including those of flows from before its last change.
func (e *entry) accepts() (kinds bpf.Accepted) {
	p := e.sets.history()
	if e.content.DSR() != bpf.DSRNone || p != nil && p.dsr != bpf.DSRNone {
		kinds = bpf.AcceptTunnels
	}
	if e.content.DSR() == bpf.DSROpt {
		kinds |= bpf.AcceptOption
	}
	return kinds
}

// wantedAccepted returns the kinds that are in use.
func (s *Syncer) wantedAccepted() (kinds bpf.Accepted) {
	if s.acceptTunnels {
		kinds = bpf.AcceptTunnels
	}
	for _, e := range s.applied {
		kinds |= e.accepts()
	}
	return kinds
}

// startAccepting makes programs accept more kinds.
func (s *Syncer) startAccepting(kinds bpf.Accepted) error {
	ends := s.tables.UntrackedFrontends.Load(0)
	if ends.Accepted|kinds == ends.Accepted {
		return nil
	}
	ends.Accepted |= kinds
	return s.tables.UntrackedFrontends.Store(0, ends)
}

// unusedAccepted returns the kinds that are accepted and not in use.
func (s *Syncer) unusedAccepted() bpf.Accepted {
	accepted := s.tables.UntrackedFrontends.Load(0).Accepted
	if accepted == 0 {
		return 0
	}
	return accepted &^ s.wantedAccepted()
}

// stopAccepting makes programs reject those of the kinds that are not in use.
func (s *Syncer) stopAccepting(kinds bpf.Accepted) error {
	if kinds &= s.unusedAccepted(); kinds == 0 {
		return nil
	}
	ends := s.tables.UntrackedFrontends.Load(0)
	ends.Accepted &^= kinds
	return s.tables.UntrackedFrontends.Store(0, ends)
}

// accepted repairs the kinds if another program has changed them.
func (a *auditor) accepted() {
	want := a.wantedAccepted()
	if a.tables.UntrackedFrontends.Load(0).Accepted&want != want {
		a.repaired(a.startAccepting(want))
	}
}

// SetOwn sets the node's addresses: no other host sends from them, and a ServiceCIDR does not apply to one
// that it contains. The next change writes them to the tables.
func (s *Syncer) SetOwn(addresses []netip.Addr) {
	s.writer.Lock()
	defer s.writer.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.own = addresses
}

// wantedBalancerTable returns what the table of balancers should hold: their networks, and the node's own
// addresses within these.
func (s *Syncer) wantedBalancerTable() map[netip.Prefix]bpf.Balancer {
	want := map[netip.Prefix]bpf.Balancer{}
	var networks []netip.Prefix
	for _, p := range s.wantedBalancers {
		want[p] = bpf.IsBalancer
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
			want[one] = bpf.IsOwn
		}
	}
	return want
}
