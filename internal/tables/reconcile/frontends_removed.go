// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"net/netip"

	"beeline.io/beeline/internal/cluster/service"
)

// TakeRemoved reports, by protocol, whether since the last call a backend was removed from a frontend that
// it served: sockets connected to it must be checked (R29). The tables of an earlier agent count as the
// state before.
func (s *Syncer) TakeRemoved() (udp, tcp bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	udp, tcp = s.removed[service.UDP], s.removed[service.TCP]
	clear(s.removed)
	return udp, tcp
}

// noteRemoved compares the backends of a frontend before and after a change; now is nil if the frontend was
// removed.
func (s *Syncer) noteRemoved(key service.FrontendKey, before, now *entry) {
	if now == nil && key.Protocol == service.UDP && len(s.removedUDP) < removedUDPLimit {
		s.removedUDP[netip.AddrPortFrom(key.Addr, key.Port)] = true
	}
	if s.removed[key.Protocol] {
		return
	}
	if before == nil || now != nil && !before.content.SameFlags(&now.content) {
		// On one loopback address it shadows the frontend of all of 127.0.0.0/8.
		s.removed[key.Protocol] = key.Addr.Is4() && key.Addr.IsLoopback()
		if before == nil {
			return
		}
	}
	serving := map[netip.AddrPort]bool{}
	if now != nil {
		if now.sets == before.sets {
			return
		}
		for b := range now.sets.members {
			serving[b.key.AddrPort()] = true
		}
	}
	for b := range before.sets.members {
		if !serving[b.key.AddrPort()] {
			s.removed[key.Protocol] = true
			return
		}
	}
}

// removedUDPLimit bounds what TakeRemovedUDP returns.
const removedUDPLimit = 65536

// TakeRemovedUDP returns the addresses and ports of UDP that have lost their frontend since the last call.
func (s *Syncer) TakeRemovedUDP() map[netip.AddrPort]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	removed := s.removedUDP
	s.removedUDP = map[netip.AddrPort]bool{}
	return removed
}

// Has reports whether the tables have a frontend for an address and port.
func (s *Syncer) Has(protocol service.Protocol, address netip.AddrPort) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.applied[service.FrontendKey{Addr: address.Addr(), Port: address.Port(), Protocol: protocol}] != nil
}

// Serves reports whether the tables have a backend for a service address, by the rules of the programs
// (bpf/lb/serving.h).
func (s *Syncer) Serves(protocol service.Protocol, address, backend netip.AddrPort) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.applied[service.FrontendKey{Addr: address.Addr(), Port: address.Port(), Protocol: protocol}]
	if e == nil && address.Addr().Is4() && address.Addr().IsLoopback() {
		loopback := netip.AddrFrom4([4]byte{127, 0, 0, 1})
		e = s.applied[service.FrontendKey{Addr: loopback, Port: address.Port(), Protocol: protocol}]
		if e != nil && e.content.OneAddress() {
			e = nil
		}
	}
	if e == nil {
		return false
	}
	return e.sets.serves(backend)
}
