// SPDX-License-Identifier: Apache-2.0

package service

import (
	"fmt"
	"net/netip"
	"slices"
)

// counts says how many have each address.
type counts map[netip.Addr]int

// count notes that somebody gained or lost addresses. before keeps of each whether anybody had
// it at first.
func (c counts) count(before map[netip.Addr]bool, addrs []netip.Addr, by int) {
	for _, a := range addrs {
		if _, counted := before[a]; !counted {
			before[a] = c[a] > 0
		}
		if c[a] += by; c[a] == 0 {
			delete(c, a)
		}
	}
}

// moved adds the addresses that somebody has now and nobody had before, and the other way round.
func (c counts) moved(before, moved map[netip.Addr]bool) {
	for a, had := range before {
		if had != (c[a] > 0) {
			moved[a] = true
		}
	}
}

// guarded are addresses that a Service must not take with externalIPs where the operator
// distrusts these: those of all Node objects, and those of the API server (R26).
type guarded struct{ nodes, servers counts }

// owner says in words whose an address is; empty: nobody's of these.
func (g guarded) owner(a netip.Addr) string {
	switch {
	case g.servers[a] > 0:
		return "the API server"
	case g.nodes[a] > 0:
		return "a node"
	}
	return ""
}

// apiServer is the Service whose endpoints are the API server's own addresses.
var apiServer = Ref{KindService, "default", "kubernetes"}

// countServers takes in what a slice says of the API server.
func (t *Table) countServers(b *batch, s *EndpointSlice, by int) {
	if s.serviceRef() != apiServer {
		return
	}
	for i := range s.Endpoints {
		t.guarded.servers.count(b.servers, []netip.Addr{s.Endpoints[i].Addr}, by)
	}
}

// SetServer tells by which addresses the agent itself reaches the API server. The next Apply
// takes them in.
func (t *Table) SetServer(addrs []netip.Addr) { t.server = sortedAddrs(addrs) }

func (t *Table) countServer(b *batch) {
	if slices.Equal(t.server, t.serverBefore) {
		return
	}
	t.guarded.servers.count(b.servers, t.server, 1)
	t.guarded.servers.count(b.servers, t.serverBefore, -1)
	t.serverBefore = t.server
}

// admitted leaves out external IPs that are others' for certain, where the operator
// distrusts these (R26).
func (p *servicePlan) admitted(external []netip.Addr, clusterIP netip.Addr) []netip.Addr {
	if !p.config.RefuseForeignExternalIPs {
		return external
	}
	return slices.DeleteFunc(external, func(ip netip.Addr) bool {
		whose := p.node.guarded.owner(ip)
		if whose == "" || ip == clusterIP {
			return false
		}
		p.plan.Problems = append(p.plan.Problems, fmt.Sprintf(
			"external IP %s is ignored, because it is an address of %s (--refuse-foreign-external-ips): remove it", ip, whose))
		return true
	})
}
