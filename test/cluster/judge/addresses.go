// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"net/netip"

	corev1 "k8s.io/api/core/v1"

	"beeline.io/beeline/test/lab"
)

// block has addresses of one kind, one for each scenario and family.
type block struct{ v4, v6 string }

// External IPs are addresses for tests of network devices, those of load balancers are for carriers' own use:
// nothing in the lab has them, except those that the judge gives to the node.
var (
	clusterIPs      = block{"10.96.16.0", "fd00:96::1000"}
	unusedIPs       = block{"10.96.64.0", "fd00:96::4000"} // in the ServiceCIDR, of no Service
	otherClusterIPs = block{"10.96.128.0", "fd00:96::8000"}
	externalIPs     = block{"198.19.0.0", "2001:db8:e::"}
	externalOnNode  = block{"198.19.32.0", "2001:db8:e::2000"}
	moreExternalIPs = block{"198.19.64.0", "2001:db8:e::4000"}
	contestedIPs    = block{"198.19.128.0", "2001:db8:e::8000"}
	besideIPs       = block{"198.19.192.0", "2001:db8:e::c000"}
	ingressIPs      = block{"100.64.0.0", "2001:db8:b::"}
	ingressOnNode   = block{"100.64.32.0", "2001:db8:b::2000"}
	moreIngressIPs  = block{"100.64.64.0", "2001:db8:b::4000"}
	// nobodyIPs are numbered by endpoint: they are for documentation, and do not follow the numbers of the
	// nodes.
	nobodyIPs = block{"192.0.2.0", "2001:db8:dead::"}
	// nodeIPs has the address of the judged node.
	nodeIPs = block{"192.168.100.0", "fd00:100::"}
	// secondIPs has the second address of the judged node.
	secondIPs = block{"203.0.113.0", "2001:db8:a::"}
)

// servicePrefixes are the destinations of packets for Services.
var servicePrefixes = []netip.Prefix{
	lab.ServiceRange4, lab.ServiceRange6,
	netip.MustParsePrefix("198.19.0.0/16"), netip.MustParsePrefix("2001:db8:e::/112"),
	netip.MustParsePrefix("100.64.0.0/16"), netip.MustParsePrefix("2001:db8:b::/112"),
}

// nobodyPrefixes belong to nodes and pods that do not exist.
var nobodyPrefixes = []netip.Prefix{
	netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("2001:db8:dead::/112"),
}

// at is the n-th address of a block.
func (b block) at(n int, family string) netip.Addr {
	text := b.v4
	if family == "v6" {
		text = b.v6
	}
	return plus(netip.MustParseAddr(text), n+1)
}

// plus is the n-th address after another.
func plus(addr netip.Addr, n int) netip.Addr {
	bytes := addr.AsSlice()
	low := int(bytes[len(bytes)-2])<<8 + int(bytes[len(bytes)-1]) + n
	bytes[len(bytes)-2], bytes[len(bytes)-1] = byte(low>>8), byte(low)
	addr, _ = netip.AddrFromSlice(bytes)
	return addr
}

// portKnown is the port of the Service that probes use. On the node's own address each Service needs another
// one.
func (s *Scenario) portKnown() int32 {
	if s.Addresses == "node's" {
		return int32(firstOwnPort + s.Number)
	}
	return 80
}

// address is a probe's destination. To is clusterIP, externalIP, ingress (the load balancer's), externalIP2 and
// ingress2 (if there are several), contested, beside and otherClusterIP (see beside.go), unused (an unused
// address of the ServiceCIDR), nodePort, secondary (the node port at the node's second address), otherNode (at
// the other node), localhost (at the client's own loopback).
func (s *Scenario) address(p Probe, l *lab.Lab) netip.AddrPort {
	port, nodePort := int(s.portKnown()), s.nodePort()
	if p.Port == "unknown" {
		port, nodePort = portUnknown, nodePort+nodePortUnknown
	}
	var addr netip.Addr
	switch p.To {
	case "nodePort":
		addr, port = addressOf(l.Host(judged), p.Family), nodePort
	case "secondary":
		addr, port = secondOf(l.Host(judged), p.Family), nodePort
	case "otherNode":
		addr, port = addressOf(l.Host("node-b"), p.Family), nodePort
	case "localhost":
		addr, port = map[string]netip.Addr{"v4": netip.MustParseAddr("127.0.0.1"), "v6": netip.IPv6Loopback()}[p.Family], nodePort
	default:
		addr = s.block(p.To).of(s, p.Family)
	}
	return netip.AddrPortFrom(addr, uint16(port))
}

// block is the block of the Service's addresses of a kind.
func (s *Scenario) block(to string) block {
	switch to {
	case "externalIP":
		switch s.Addresses {
		case "on node":
			return externalOnNode
		case "node's":
			return nodeIPs
		}
	case "ingress":
		switch s.Addresses {
		case "on node":
			return ingressOnNode
		case "node's":
			return nodeIPs
		case "same":
			return externalIPs
		}
	}
	return map[string]block{
		"clusterIP": clusterIPs, "unused": unusedIPs, "otherClusterIP": otherClusterIPs,
		"externalIP": externalIPs, "externalIP2": moreExternalIPs, "contested": contestedIPs, "beside": besideIPs,
		"ingress": ingressIPs, "ingress2": moreIngressIPs,
	}[to]
}

// of is a Service's address.
func (b block) of(s *Scenario, family string) netip.Addr {
	if b == nodeIPs {
		return b.at(0, family)
	}
	return b.at(s.Number, family)
}

func addressOf(h *lab.Host, family string) netip.Addr {
	if family == "v6" {
		return h.Addr6
	}
	return h.Addr4
}

// secondOf is the second address of a pod, or of the judged node.
func secondOf(h *lab.Host, family string) netip.Addr {
	switch {
	case h.Name == judged:
		return secondIPs.at(0, family)
	case family == "v6":
		return plus(h.Addr6, 0x100)
	}
	return plus(h.Addr4, 100)
}

// addressFamilies are the families of external and ingress IPs, whatever the Service's.
func (s *Scenario) addressFamilies() []string {
	switch s.Addresses {
	case "v4", "v6":
		return []string{s.Addresses}
	}
	return []string{"v4", "v6"}
}

// externalIPs are spec.externalIPs.
func (s *Scenario) externalIPs() []netip.Addr {
	if !s.ExternalIPs {
		return nil
	}
	targets := []string{"externalIP"}
	switch {
	case s.Addresses == "several":
		targets = append(targets, "externalIP2")
	case s.hasRival():
		targets = append(targets, "contested")
	case s.Beside == "cluster IP":
		targets = append(targets, "otherClusterIP")
	}
	return s.listed(targets)
}

// listed are the addresses of probes' targets that the Service lists.
func (s *Scenario) listed(targets []string) []netip.Addr {
	var all []netip.Addr
	for _, to := range targets {
		for _, family := range s.addressFamilies() {
			all = append(all, s.block(to).of(s, family))
		}
	}
	return all
}

// ingress is status.loadBalancer.ingress.
func (s *Scenario) ingress() []corev1.LoadBalancerIngress {
	if s.Ingress == "" {
		return nil
	}
	if s.Ingress == "hostname" {
		return []corev1.LoadBalancerIngress{{Hostname: "lb.invalid"}}
	}
	targets := []string{"ingress"}
	if s.Addresses == "several" {
		targets = append(targets, "ingress2")
	}
	var list []corev1.LoadBalancerIngress
	for _, ip := range s.listed(targets) {
		i := corev1.LoadBalancerIngress{IP: ip.String()}
		if s.Ingress != "IP" {
			i.IPMode = new(corev1.LoadBalancerIPMode(s.Ingress))
		}
		list = append(list, i)
	}
	return list
}

// onNode are the Service's addresses on the judged node.
func (s *Scenario) onNode() []netip.Addr {
	if s.Addresses != "on node" {
		return nil
	}
	return s.listed([]string{"externalIP", "ingress"})
}
