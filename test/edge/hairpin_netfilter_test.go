// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"fmt"
	"net"
	"net/netip"
	"testing"

	"beeline.io/beeline/test/node"
)

// A flow of a pod to itself that netfilter has translated before the Service was Beeline's goes on, from whichever port
// netfilter masquerades it: also from the number of an encapsulation, and over TCP
// from that of the Service's NodePort. (An answer of UDP to that number is taken for a datagram to the Service:
// docs/operate/differences.md.)
func TestNetfiltersHairpinFlows(t *testing.T) {
	w := newWorldOf(t, threeNodes, "--edge-mode=tc")
	pod := w.Host("a1")
	ports := []uint16{nodePort, 6081, 8472, 4789, 50000}
	ips := node.ClusterIPs(1)
	rules := "table inet proxy { chain pre { type nat hook prerouting priority -100; "
	for _, network := range []string{"tcp", "udp"} {
		rules += fmt.Sprintf("ip daddr %s %s dport 80 dnat ip to %s:%d; ip6 daddr %s %s dport 80 dnat ip6 to [%s]:%d; ", ips[0], network, pod.Addr4, serverPorts[network], ips[1], network, pod.Addr6, serverPorts[network])
	}
	rules += "}; chain post { type nat hook postrouting priority 100; "
	for _, p := range ports {
		for _, network := range []string{"tcp", "udp"} {
			for _, own := range addresses(pod, 20000+p%10000) {
				family := map[bool]string{true: "ip", false: "ip6"}[own.Addr().Is4()]
				rules += fmt.Sprintf("%s saddr %s %s sport %d masquerade to :%d; ", family, own.Addr(), network, own.Port(), p)
			}
		}
	}
	w.firewall(rules + "}; }")
	type flow struct {
		network string
		port    uint16
		net.Conn
	}
	var flows []flow
	for _, p := range ports {
		for family, ip := range ips {
			for _, network := range []string{"tcp", "udp"} {
				conn := w.connectFrom("a1", network, addresses(pod, 20000+p%10000)[family], netip.AddrPortFrom(netip.MustParseAddr(ip), 80))
				w.wantPeer(conn, "a1", netip.AddrPort{})
				flows = append(flows, flow{network, p, conn})
			}
		}
	}
	w.must(w.agent.Start())
	w.apply("web", objects(w.public("a1"))...)
	for _, f := range flows {
		if f.network == "udp" && f.port == nodePort {
			continue
		}
		w.wantPeer(f.Conn, "a1", netip.AddrPort{})
	}
}
