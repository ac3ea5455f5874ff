// SPDX-License-Identifier: Apache-2.0

package service

import (
	"fmt"
	"math/rand/v2"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// random creates objects of a small world, so that they interact: few names, few addresses, few ports.
type random struct{ *rand.Rand }

func (r random) oneOf(words ...string) string { return words[r.IntN(len(words))] }

func (r random) maybe(percent int) bool { return r.IntN(100) < percent }

func (r random) some(n int, make func() string) []string {
	var out []string
	for range r.IntN(n + 1) {
		out = append(out, make())
	}
	return out
}

func (r random) service() Object {
	i := r.IntN(5)
	options := []serviceOption{created(int64(r.IntN(3)))}
	ip4, ip6 := fmt.Sprintf("10.0.0.%d", i+1), fmt.Sprintf("fd00::%d", i+1)
	switch r.IntN(8) {
	case 0:
		options = append(options, clusterIP("None"))
	case 1:
		options = append(options, clusterIP("10.0.0.1")) // possibly another Service's
	case 2, 3:
		options = append(options, clusterIP(ip4))
	default:
		options = append(options, clusterIP(ip4, ip6))
	}
	port := func(name string) corev1.ServicePort {
		p := corev1.ServicePort{Name: name, Port: int32(80 + r.IntN(2) + 30000*r.IntN(2)), Protocol: corev1.Protocol(r.oneOf("TCP", "UDP"))}
		if r.maybe(50) {
			p.NodePort = int32(30080 + r.IntN(3))
		}
		return p
	}
	options = append(options, ports(port("http"), port(r.oneOf("http", "dns"))))
	external := func() string { return r.oneOf(vip, "203.0.113.2", vip6, hereIP, thereIP, ip4, ip6) }
	for _, o := range []serviceOption{
		eTPLocal, iTPLocal, clientIP, proxyName(r.oneOf("other", "beeline")),
		loadBalancer(r.some(2, external)...), externalIPs(r.some(2, external)...),
		sources(r.some(2, func() string { return r.oneOf("192.0.2.0/24", "10.0.0.0/8", "0.0.0.0/0", "2001:db8::/32") })...),
	} {
		if r.maybe(30) {
			options = append(options, o)
		}
	}
	for annotation, values := range map[string][]string{
		AnnotationDSR: DSRs, AnnotationDSRHybrid: {"true", "false"}, AnnotationStateless: {"true", "false"}, AnnotationAlgorithm: Algorithms,
	} {
		if r.maybe(40) {
			options = append(options, note(annotation, r.oneOf(values...)))
		}
	}
	return service(fmt.Sprintf("s%d", i), options...)
}

func (r random) slice() Object {
	zones, nodes := r.maybe(40), r.maybe(20)
	lines := r.some(4, func() string {
		line := r.oneOf("a", "b", "c", "d", "e") + r.oneOf("", " here", " there") + r.oneOf("", "", "", " notready", " notserving", " terminating", " terminating notserving")
		if zones {
			line += r.oneOf("", " zone=east", " zone=west", " zone=east zone=west", " zone=east")
		}
		if nodes {
			line += r.oneOf(" node=here", " node=there")
		}
		return line
	})
	options := []sliceOption{of(fmt.Sprintf("s%d", r.IntN(5)))}
	if r.maybe(30) {
		options = append(options, ipv6)
	}
	if r.maybe(30) {
		options = append(options, udp)
	}
	if r.maybe(20) {
		options = append(options, func(s *discoveryv1.EndpointSlice) { s.Ports[0].Name = new("dns") })
	}
	if r.maybe(30) {
		options = append(options, weight(r.oneOf("0", "1", "7")))
	}
	return slice(fmt.Sprintf("slice%d", r.IntN(10)), lines, options...)
}

func (r random) pod() Object {
	p := pod(fmt.Sprintf("p%d", r.IntN(3)), int64(r.IntN(3)))
	for range r.IntN(3) {
		p.Spec.Containers[0].Ports = append(p.Spec.Containers[0].Ports, hostPort(
			r.oneOf("", "", hereIP, "127.0.0.1", "198.51.100.1"), int32(30080+r.IntN(2)), 8080, corev1.Protocol(r.oneOf("TCP", "UDP"))))
	}
	p.Spec.NodeName = r.oneOf("here", "here", "there")
	p.Status.Phase = corev1.PodPhase(r.oneOf("Running", "Running", "Failed"))
	podIPs(r.some(2, func() string { return r.oneOf("10.1.0.1", "10.1.0.2", "fd01::1") })...)(p)
	return convertPod(p)
}

func (r random) node() Object {
	return &Node{
		Name:      r.oneOf("here", "there"),
		Zone:      r.oneOf("", "east", "west"),
		Addresses: addrs(r.some(3, func() string { return r.oneOf(hereIP, hereIP6, thereIP, vip) })...),
		PodCIDRs:  prefixes(r.some(2, func() string { return r.oneOf("10.1.0.0/24", "10.1.1.0/24", "fd01::/64") })...),
	}
}

func (r random) object() Object {
	switch n := r.IntN(20); {
	case n < 7:
		return r.service()
	case n < 14:
		return r.slice()
	case n < 17:
		return r.pod()
	case n < 19:
		return r.node()
	}
	return serviceCIDR(r.oneOf("kubernetes", "more"), r.some(2, func() string { return r.oneOf("10.0.0.0/16", "fd00::/108") })...)
}

func (r random) localAddresses() []netip.Addr {
	return addrs(r.some(3, func() string { return r.oneOf(hereIP, "198.51.100.1", hereIP6, vip, "127.0.0.1") })...)
}

func (r random) config() Config {
	c := testConfig()
	c.RefuseForeignExternalIPs, c.RefuseOutsideClusterIP = r.maybe(50), r.maybe(30)
	c.LocalhostNodePorts, c.MasqueradeAll = r.maybe(50), r.maybe(30)
	c.DSR, c.DSRHybrid = DSR(r.oneOf(DSRs...)), r.maybe(30)
	c.Balancers = prefixes(r.some(2, func() string { return r.oneOf("192.0.2.0/24", "203.0.113.7/32", "2001:db8::/64") })...)
	c.TableSize = 251
	c.ServiceProxyName = r.oneOf("", "beeline")
	c.NodePortAddresses = prefixes(r.some(2, func() string { return r.oneOf("192.0.2.0/24", "198.51.100.0/24", "::/0") })...)
	return c
}
