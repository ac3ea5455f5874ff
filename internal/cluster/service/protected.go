// SPDX-License-Identifier: Apache-2.0

package service

import (
	"net/netip"
	"slices"

	"beeline.io/beeline/internal/report/condition"
)

// counts counts the owners of each address.
type counts map[netip.Addr]int

// count records that an owner gained or lost addresses. before keeps, for each address, whether it had an owner
// at first.
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

// moved adds the addresses that gained their first owner or lost their last one.
func (c counts) moved(before, moved map[netip.Addr]bool) {
	for a, had := range before {
		if had != (c[a] > 0) {
			moved[a] = true
		}
	}
}

// protectedAddrs are the addresses that RefuseForeignExternalIPs ignores as externalIPs: those of all Node
// objects and of the API server (R26).
type protectedAddrs struct{ nodes, servers counts }

// owner returns the owner of an address as text; "" if it is not protected.
func (g protectedAddrs) owner(a netip.Addr) string {
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

// countServers records the API server's addresses in a slice.
func (t *Cluster) countServers(b *batch, s *EndpointSlice, by int) {
	if s.serviceRef() != apiServer {
		return
	}
	for i := range s.Endpoints {
		t.protected.servers.count(b.servers, []netip.Addr{s.Endpoints[i].Addr}, by)
	}
}

// SetServer sets the addresses at which the agent itself reaches the API server, from the next Apply on.
func (t *Cluster) SetServer(addrs []netip.Addr) { t.server = sortedAddrs(addrs) }

func (t *Cluster) countServer(b *batch) {
	if slices.Equal(t.server, t.serverBefore) {
		return
	}
	t.protected.servers.count(b.servers, t.server, 1)
	t.protected.servers.count(b.servers, t.serverBefore, -1)
	t.serverBefore = t.server
}

// admitted removes external IPs that are protected (R26).
func (p *servicePlan) admitted(external []netip.Addr, clusterIP netip.Addr) []netip.Addr {
	if !p.config.RefuseForeignExternalIPs {
		return external
	}
	return slices.DeleteFunc(external, func(ip netip.Addr) bool {
		whose := p.node.protected.owner(ip)
		if whose == "" || ip == clusterIP {
			return false
		}
		p.plan.problem(condition.ExternalIPRefused.New(
			"external IP %s is ignored, because it is an address of %s (--refuse-foreign-external-ips)", ip, whose).Do("remove it"))
		return true
	})
}
