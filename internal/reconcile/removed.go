// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"net/netip"

	"beeline.io/beeline/internal/service"
)

// TakeRemoved says whether a backend that served a frontend serves it no more, by
// protocol, since the last call: the sockets that are connected to it are to be
// looked after (R29). An earlier agent's tables count as what was there before.
func (s *Syncer) TakeRemoved() (udp, tcp bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	udp, tcp = s.removed[service.UDP], s.removed[service.TCP]
	clear(s.removed)
	return udp, tcp
}

// noteRemoved compares the backends of a frontend before and after a change; now is
// nil if it is gone.
func (s *Syncer) noteRemoved(key service.FrontendKey, before, now *entry) {
	if s.removed[key.Protocol] {
		return
	}
	if before == nil || now != nil && !before.content.SameFlags(&now.content) {
		// On one loopback address it takes that from a frontend that stands for all.
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
		for b := range now.backends {
			serving[b.key.AddrPort()] = true
		}
	}
	for b := range before.backends {
		if !serving[b.key.AddrPort()] {
			s.removed[key.Protocol] = true
			return
		}
	}
}

// backends goes through the members of the entry's sets, each as often as it is
// in slots.
func (e *entry) backends(yield func(*backend) bool) {
	for _, set := range e.sets {
		if set == nil {
			continue
		}
		for _, b := range set.members {
			if !yield(b) {
				return
			}
		}
	}
}

// Serves says whether the tables hold a backend for a service address, as the
// programs read them (bpf/lb/serving.h).
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
	for b := range e.backends {
		if b.key.AddrPort() == backend {
			return true
		}
	}
	return false
}
