// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/cluster/service"
)

// ask answers a question about what the tables hold.
func ask[T any](s *Syncer, about func() T) T {
	s.mu.Lock()
	defer s.mu.Unlock()
	return about()
}

// AcceptTunnels makes programs accept IPIP and Geneve even while no Service uses DSR, or stops doing so.
// Accepting takes effect immediately, stopping after a GC pass.
func (s *Syncer) AcceptTunnels(always bool) error {
	s.lock()
	defer s.unlock()
	return s.frontends.alwaysAccept(always)
}

// Accepted returns which kinds of packets of balancers are decapsulated.
func (s *Syncer) Accepted() (tunnels, option bool) {
	accepted := ask(s, s.frontends.accepted)
	return accepted&bpf.AcceptTunnels != 0, accepted&bpf.AcceptOption != 0
}

// SetOwn sets the node's addresses: no other host sends from them, and a ServiceCIDR does not apply to one
// that it contains. The next change writes them to the tables.
func (s *Syncer) SetOwn(addresses []netip.Addr) {
	s.lock()
	defer s.unlock()
	s.networks.own = addresses
}

// ServiceCIDRs returns the ServiceCIDRs in the tables.
func (s *Syncer) ServiceCIDRs() []netip.Prefix { return ask(s, s.networks.appliedServiceCIDRs) }

// DSRDestinations returns, by kind of DSR, the addresses that external clients' packets are sent to: of
// backends on other nodes, or of those nodes.
func (s *Syncer) DSRDestinations() map[service.DSR][]netip.Addr {
	return ask(s, s.frontends.dsrDestinations)
}

// RemoteBackends returns the addresses of backends on other nodes, and of those nodes where they matter,
// sorted, each once. It includes backends whose ids wait to be freed.
func (s *Syncer) RemoteBackends() []netip.Addr {
	all := ask(s, s.alloc.remoteBackends)
	slices.SortFunc(all, netip.Addr.Compare)
	return slices.Compact(all)
}

// RemotePorts returns the ports of backends on other nodes, each once, in no order.
func (s *Syncer) RemotePorts() []uint16 {
	return slices.Collect(maps.Keys(ask(s, s.alloc.remotePorts)))
}

// ServicesOf returns the objects that have a backend at an address, in order. It looks at the sets of all frontends.
func (s *Syncer) ServicesOf(address netip.Addr) []service.Ref {
	return ask(s, func() []service.Ref { return s.frontends.servicesOf(address) })
}

// Has reports whether the tables have a frontend for an address and port.
func (s *Syncer) Has(protocol service.Protocol, address netip.AddrPort) bool {
	return ask(s, func() bool { return s.frontends.has(frontendKey(protocol, address)) })
}

// Serves reports whether the tables have a backend for a service address, by the rules of the programs
// (bpf/lb/serving.h).
func (s *Syncer) Serves(protocol service.Protocol, address, backend netip.AddrPort) bool {
	return ask(s, func() bool { return s.frontends.serves(protocol, address, backend) })
}

// SlotUsage returns how many slots are contested. timeout is as in SlotGC.
func (s *Syncer) SlotUsage(timeout func(service.Protocol) time.Duration) SlotUsage {
	return ask(s, func() SlotUsage { return s.frontends.slotUsage(timeout) })
}

// TakeRemoved reports, by protocol, whether since the last call a backend was removed from a frontend that
// it served: sockets connected to it must be checked (R29). The tables of an earlier agent count as the
// state before.
func (s *Syncer) TakeRemoved() (udp, tcp bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	udp, tcp = s.removals.backends[service.UDP], s.removals.backends[service.TCP]
	clear(s.removals.backends)
	return udp, tcp
}

// TakeRemovedUDP returns the addresses and ports of UDP that have lost their frontend since the last call.
func (s *Syncer) TakeRemovedUDP() map[netip.AddrPort]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	removed := s.removals.udp
	s.removals.udp = map[netip.AddrPort]bool{}
	return removed
}
