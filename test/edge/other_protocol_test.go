// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"
)

// unreachable reports whether a message is ICMP port unreachable.
func (p *pinger) unreachable(b []byte) bool {
	if p.request == 8 {
		return len(b) > 1 && b[0] == 3 && b[1] == 3
	}
	return len(b) > 1 && b[0] == 1 && b[1] == 4
}

// wantUnreachable checks that what is sent is refused, from an address.
func (p *pinger) wantUnreachable(what string, from netip.Addr, send func()) {
	p.t.Helper()
	before := p.status().Edge.Counters["rejected"]
	send()
	if _, _, by := first(p.t, p.unreachable, p.rawSocket); by != from {
		p.t.Errorf("%s of %s from %s: %s refuses it", what, p.host, from, by)
	}
	if after := p.status().Edge.Counters["rejected"]; after == before {
		p.t.Errorf("%s of %s to %s: the edge has refused nothing", what, p.host, from)
	}
}

// wantUnused checks that what is sent is dropped as for an unused address.
func (p *pinger) wantUnused(what string, send func()) {
	p.t.Helper()
	before := p.status().Edge.Counters["drop_no_service"]
	send()
	p.eventually(what+" of "+p.host+" is dropped", func() bool { return p.status().Edge.Counters["drop_no_service"] > before })
}

// R21: pings and other protocols to a ClusterIP are refused, and to an unused address of a ServiceCIDR dropped,
// for external clients, pods, masqueraded pods and the node itself. Pods get replies to pings from addresses of
// load balancers, as service list says.
func TestOtherProtocols(t *testing.T) {
	inModes(t, func(t *testing.T, mode string) {
		w := borrowWorld(t, "--edge-mode="+mode)
		w.services()
		hosts := []string{"client", "a1", "node-a"}
		for _, masqueraded := range []bool{false, true} {
			if masqueraded {
				w.firewall(`table inet nat {
	chain out {
		type nat hook postrouting priority srcnat
		oifname "eth0" ip saddr 10.10.1.0/24 masquerade
		oifname "eth0" ip6 saddr fd00:10:1::/64 masquerade
	}
}
`)
				hosts = []string{"a1"}
			}
			for family := range 2 {
				ip := func(kind string, n int) netip.Addr { return w.address(kind, n, family).Addr() }
				for _, host := range hosts {
					p, gre := w.pinger(host, family), w.raw(w.Host(host), family, unix.IPPROTO_GRE)
					p.wantUnreachable("a ping", ip("ClusterIP", 1), func() { p.ping(ip("ClusterIP", 1)) })
					p.wantUnreachable("GRE", ip("ClusterIP", 1), func() { gre.send(ip("ClusterIP", 1), make([]byte, 8)) })
					p.wantUnused("a ping", func() { p.ping(ip("ClusterIP", 200)) })
					p.wantUnused("GRE", func() { gre.send(ip("ClusterIP", 200), make([]byte, 8)) })
					if host != "node-a" {
						p.wantEcho(ip("LoadBalancer", 1), true)
						p.wantEcho(ip("ExternalIP", 1), true)
					}
				}
				if a := w.explain(addresses(w.Host("client"), 0)[family].Addr().String(), ip("ClusterIP", 1).String()+"/icmp"); a.Reason != "rejected" || a.Verdict != "reject" || len(a.Rules) != 1 || a.Rules[0] != "R21" {
					t.Errorf("explain says %+v", a)
				}
			}
		}
	})
}
