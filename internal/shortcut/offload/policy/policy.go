// SPDX-License-Identifier: Apache-2.0

// Package policy decides which forwarded flows flow offload may take, by their addresses, ports and protocol. The
// decision is the same for both directions of a flow.
package policy

import (
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/node/flow"
)

// A Policy is which flows flow offload may take. Those of no networks are of all; likewise ports and protocols.
type Policy struct {
	// Networks have an address of each flow that is taken, before or after NAT. Ports have one of its ports.
	Networks []netip.Prefix
	Ports    []bpf.PortRange
	// Protocols are IPPROTO_TCP and IPPROTO_UDP.
	Protocols []uint8
	// ExcludeNetworks and ExcludePorts have no address and no port of a flow that is taken, before or after NAT.
	ExcludeNetworks []netip.Prefix
	ExcludePorts    []bpf.PortRange
}

// Refuses returns why flow offload must leave a flow to the stack; empty: it need not.
func (p *Policy) Refuses(f flow.Flow) (reason string) {
	ends := []netip.AddrPort{f.In.Source, f.In.Destination, f.Out.Source, f.Out.Destination}
	if !slices.Contains([]uint8{unix.IPPROTO_TCP, unix.IPPROTO_UDP}, f.In.Protocol) {
		return "it is neither of TCP nor of UDP"
	}
	if f.Helper != "" {
		return fmt.Sprintf("the conntrack helper %s reads its packets", f.Helper)
	}
	for _, end := range ends {
		if n, ok := networkOf(p.ExcludeNetworks, end.Addr()); ok {
			return fmt.Sprintf("%s is in %s of --offload-exclude-networks", end.Addr(), n)
		}
		if r, ok := rangeOf(p.ExcludePorts, end.Port()); ok {
			return fmt.Sprintf("port %d is in %s of --offload-exclude-ports", end.Port(), r)
		}
	}
	return p.omits(f.In.Protocol, ends)
}

// omits returns why a flow is not of the traffic that is to be taken.
func (p *Policy) omits(protocol uint8, ends []netip.AddrPort) string {
	inNetwork := func(end netip.AddrPort) bool { _, ok := networkOf(p.Networks, end.Addr()); return ok }
	hasPort := func(end netip.AddrPort) bool { _, ok := rangeOf(p.Ports, end.Port()); return ok }
	switch {
	case len(p.Protocols) > 0 && !slices.Contains(p.Protocols, protocol):
		return "its protocol is none of --offload-protocols"
	case len(p.Networks) > 0 && !slices.ContainsFunc(ends, inNetwork):
		return "neither end is in --offload-networks"
	case len(p.Ports) > 0 && !slices.ContainsFunc(ends, hasPort):
		return "neither end has a port of --offload-ports"
	}
	return ""
}

func networkOf(networks []netip.Prefix, a netip.Addr) (netip.Prefix, bool) {
	i := slices.IndexFunc(networks, func(n netip.Prefix) bool { return n.Contains(a) })
	if i < 0 {
		return netip.Prefix{}, false
	}
	return networks[i], true
}

func rangeOf(ranges []bpf.PortRange, port uint16) (bpf.PortRange, bool) {
	i := slices.IndexFunc(ranges, func(r bpf.PortRange) bool { return r.First <= port && port <= r.Last })
	if i < 0 {
		return bpf.PortRange{}, false
	}
	return ranges[i], true
}
