// SPDX-License-Identifier: Apache-2.0

package socket

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"beeline.io/beeline/test/lab"
)

// The addresses of a load balancer, to which the lab has no route, and another such pair.
func (f family) vip() netip.AddrPort      { return f.choose("203.0.113.10", "2001:db8:10::10", 80) }
func (f family) otherVIP() netip.AddrPort { return f.choose("203.0.113.20", "2001:db8:10::20", 80) }

// balanced is a Service of type LoadBalancer with ingress addresses of both
// families.
func (w *world) balanced(name string, n uint8, pods string) (*corev1.Service, []*discoveryv1.EndpointSlice) {
	w.t.Helper()
	s, slices := w.public(name, n, pods)
	s.Spec.Type = corev1.ServiceTypeLoadBalancer
	s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{
		{IP: ipv4.vip().Addr().String()}, {IP: ipv6.vip().Addr().String()},
	}
	return s, slices
}

// R24: a load balancer's addresses lead pods and nodes directly to the endpoints, by policy (R17, R18).
func TestLoadBalancerVIP(t *testing.T) {
	w := startWorld(t, "node-a")
	for _, policy := range []corev1.ServiceExternalTrafficPolicy{
		corev1.ServiceExternalTrafficPolicyCluster, corev1.ServiceExternalTrafficPolicyLocal,
	} {
		t.Run(string(policy), func(t *testing.T) {
			s, slices := w.balanced("web", 1, "b1 b2")
			s.Spec.ExternalTrafficPolicy = policy
			w.apply("web", objects(s, slices)...)
			inEachFamily(t, func(t *testing.T, f family) {
				w.wantMeet(t, clients, f, f.vip(), "b1 b2")
				w.wantMeet(t, clients, f, netip.AddrPortFrom(f.of(w.Host("node-a")), nodePort), "b1 b2")
				w.wantMeet(t, clients, f, f.clusterIP(1), "b1 b2")
				w.wantMeet(t, clients, f, netip.AddrPortFrom(f.vip().Addr(), 81), alone)
				peer := f.socket(t, w.Host("a1"), 0)
				peer.reach(f.vip())
				peer.wantPeer(f.vip())
			})
		})
	}
}

// R24: an ingress with mode Proxy, or with a hostname, is not served. R23: without
// allocateLoadBalancerNodePorts there is no node port either.
func TestLoadBalancerThatIsNotOurs(t *testing.T) {
	w := startWorld(t, "node-a")
	proxy, vip := corev1.LoadBalancerIPModeProxy, corev1.LoadBalancerIPModeVIP
	s, slices := w.balanced("web", 1, "b1")
	s.Spec.Ports[0].NodePort = 0
	s.Spec.AllocateLoadBalancerNodePorts = new(bool)
	s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{Hostname: "lb.example.org"}}
	for _, f := range []family{ipv4, ipv6} {
		s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress,
			corev1.LoadBalancerIngress{IP: f.vip().Addr().String(), IPMode: &proxy},
			corev1.LoadBalancerIngress{IP: f.otherVIP().Addr().String(), IPMode: &vip})
	}
	w.apply("web", objects(s, slices)...)
	inEachFamily(t, func(t *testing.T, f family) {
		w.wantMeet(t, clients, f, f.vip(), alone)
		w.wantMeet(t, clients, f, f.otherVIP(), "b1")
		w.wantMeet(t, clients, f, netip.AddrPortFrom(f.of(w.Host("node-a")), nodePort), closed)
	})
}

// sameExternalIP makes two Services of one age with the same external IP.
func (w *world) sameExternalIP() {
	w.t.Helper()
	for n, name := range []string{"first", "second"} {
		s, slices := w.web(name, uint8(n+1), fmt.Sprintf("b%d", n+1))
		s.Spec.ExternalIPs = []string{ipv4.vip().Addr().String(), ipv6.vip().Addr().String()}
		w.apply(name, objects(s, slices)...)
	}
}

// Of two Services with one external IP the older one gets it, or at the same age the first by name; the other
// gets it when that one is deleted.
func TestExternalIPOfTwoServices(t *testing.T) {
	w := startWorld(t, "node-a")
	w.sameExternalIP()
	inEachFamily(t, func(t *testing.T, f family) {
		w.wantMeet(t, clients, f, f.vip(), "b1")
		w.wantMeet(t, clients, f, f.clusterIP(2), "b2")
	})
	w.remove("first")
	inEachFamily(t, func(t *testing.T, f family) { w.wantMeet(t, clients, f, f.vip(), "b2") })
}

// R26: a flag keeps pods and the node from external IPs: their connections go where they would without the
// Service. Addresses of nodes are never external IPs.
func TestForeignExternalIPIsIgnored(t *testing.T) {
	w := newWorld(t, "node-a")
	w.agent().Flags = []string{"--refuse-foreign-external-ips"}
	w.start()
	s, slices := w.web("web", 1, "a2 b1")
	ips := []string{ipv4.vip().Addr().String(), ipv6.vip().Addr().String()}
	for _, h := range w.hosts("node-a node-b b2") {
		ips = append(ips, h.Addr4.String(), h.Addr6.String())
	}
	s.Spec.ExternalIPs, s.Spec.Ports[0].Port = ips, 81
	w.apply("web", objects(s, slices)...)
	inEachFamily(t, func(t *testing.T, f family) {
		at := func(a netip.Addr) netip.AddrPort { return netip.AddrPortFrom(a, 81) }
		w.wantMeet(t, clients, f, at(f.vip().Addr()), alone)
		for _, h := range w.hosts("node-a node-b b2") {
			w.wantMeet(t, clients, f, at(f.of(h)), closed)
		}
		w.wantMeet(t, clients, f, at(f.clusterIP(1).Addr()), "a2 b1")
	})
	status, err := w.agent().Status()
	w.must(err)
	if len(status.ObjectsWithProblems) != 1 || len(status.ObjectsWithProblems[0].Problems) != 4 {
		t.Errorf("the Service's problems are %+v, want one for each address of a node", status.ObjectsWithProblems)
	}
}

// R26: an external IP, from inside the cluster.
func TestExternalIP(t *testing.T) {
	w := startWorld(t, "node-a")
	s, slices := w.web("web", 1, "a2 b1")
	s.Spec.ExternalIPs = []string{ipv4.vip().Addr().String(), ipv6.vip().Addr().String()}
	w.apply("web", objects(s, slices)...)
	inEachFamily(t, func(t *testing.T, f family) {
		w.wantMeet(t, clients, f, f.vip(), "a2 b1")
		w.wantMeet(t, clients, f, netip.AddrPortFrom(f.vip().Addr(), 81), alone)
	})
	s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal // R18
	_, slices = w.web("web", 1, "b1")
	w.apply("web", objects(s, slices)...)
	inEachFamily(t, func(t *testing.T, f family) { w.wantMeet(t, clients, f, f.vip(), "b1") })
}

// R25: loadBalancerSourceRanges apply to pods and nodes, too. The hook decides if the program has bound its
// socket; if not, the source is known only after routing, and the packet path must decide: without one, the
// packet follows the routes. R23: NodePorts have no ranges, nor has the ClusterIP.
func TestSourceRanges(t *testing.T) {
	w := startWorld(t, "node-a")
	a1, a2 := w.Host("a1"), w.Host("a2")
	s, slices := w.balanced("web", 1, "b1 b2")
	s.Spec.LoadBalancerSourceRanges = []string{single(a1.Addr4), single(a1.Addr6), "192.0.2.0/24"}
	w.apply("web", objects(s, slices)...)
	inEachFamily(t, func(t *testing.T, f family) {
		unspecified := f.choose("0.0.0.0", "::", 0).Addr()
		w.wantMeetBound(t, "a1", f.of(a1), f, f.vip(), "b1 b2")
		w.wantMeetBound(t, "a2", f.of(a2), f, f.vip(), dropped)
		w.wantMeetBound(t, "node-a", f.of(w.Host("node-a")), f, f.vip(), dropped)
		w.wantMeet(t, "a1 a2 node-a", f, f.vip(), alone)
		w.wantMeetBound(t, "a1", unspecified, f, f.vip(), alone) // bound to a port, but to no address
		w.wantMeet(t, "a2 node-a", f, f.clusterIP(1), "b1 b2")
		w.wantMeetBound(t, "a2", f.of(a2), f, netip.AddrPortFrom(f.of(w.Host("node-a")), nodePort), "b1 b2")
	})
}

func single(a netip.Addr) string { return netip.PrefixFrom(a, a.BitLen()).String() }

// R25: ranges apply to their own family, all addresses means no restriction, and changes are followed.
func TestSourceRangesOfOneFamily(t *testing.T) {
	w := startWorld(t, "node-a")
	s, slices := w.balanced("web", 1, "b1")
	for _, c := range []struct {
		name    string
		ranges  []string
		v4      string
		v6      string
		v4Bound string
	}{
		{"IPv4 only", []string{"192.0.2.0/24"}, alone, "b1", dropped},
		{"IPv6 only", []string{"2001:db8::/32"}, "b1", alone, "b1"},
		{"all of IPv4", []string{"192.0.2.0/24", "0.0.0.0/0", "2001:db8::/32"}, "b1", alone, "b1"},
		{"the pods", []string{"10.10.0.0/16"}, alone, "b1", "b1"},
		{"none", nil, "b1", "b1", "b1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s.Spec.LoadBalancerSourceRanges = c.ranges
			w.apply("web", objects(s, slices)...)
			w.wantMeet(t, "a1", ipv4, ipv4.vip(), c.v4)
			w.wantMeet(t, "a1", v4Mapped, v4Mapped.vip(), c.v4)
			w.wantMeet(t, "a1", ipv6, ipv6.vip(), c.v6)
			for _, f := range []family{ipv4, v4Mapped} {
				w.wantMeetBound(t, "a1", w.Host("a1").Addr4, f, f.vip(), c.v4Bound)
			}
		})
	}
}

// R25: if the node is admitted, so is the VIP itself, which the node's kernel uses as the source if the VIP is
// on one of its interfaces.
func TestSourceRangesAdmitTheVIPOfAnAdmittedNode(t *testing.T) {
	w := startWorld(t, "node-a")
	own := w.Host("node-a")
	w.addAddress(own, ipv4.vip().Addr(), ipv6.vip().Addr())
	s, slices := w.balanced("web", 1, "b1")
	for _, c := range []struct {
		name   string
		ranges []string
		want   string
	}{
		{"node inside", []string{single(own.Addr4), single(own.Addr6)}, "b1"},
		{"node outside", []string{"192.0.2.0/24", "2001:db8::/64"}, dropped},
	} {
		t.Run(c.name, func(t *testing.T) {
			s.Spec.LoadBalancerSourceRanges = c.ranges
			w.apply("web", objects(s, slices)...)
			inEachFamily(t, func(t *testing.T, f family) {
				// Replies to the VIP as source do not return in this lab: only the hook's
				// decision can be seen.
				sock := f.socket(t, own, unix.SOCK_NONBLOCK)
				if err := sock.bindReused(netip.AddrPortFrom(f.vip().Addr(), 0)); err != nil {
					t.Fatal(err)
				}
				before := w.counters(w.agent())
				err := sock.connect(f.vip())
				if c.want == dropped {
					if errnoName(err) != "EPERM" {
						t.Errorf("connect: %v, want EPERM", err)
					}
					return
				}
				w.wantBalanced(t, before, 1)
			})
			// The same for a socket that is not bound: its source is known nevertheless.
			inEachFamily(t, func(t *testing.T, f family) { w.awaitMeet(t, own, f, f.vip(), c.want) })
		})
	}
	w.removeAddress(own, ipv4.vip().Addr(), ipv6.vip().Addr())
	inEachFamily(t, func(t *testing.T, f family) { w.awaitMeet(t, own, f, f.vip(), alone) })
}

// awaitMeet waits until the agent has followed a change of the node's addresses.
func (w *world) awaitMeet(t *testing.T, from *lab.Host, f family, to netip.AddrPort, want string) {
	t.Helper()
	w.eventually(fmt.Sprintf("%s gets %s at %s", from.Name, want, to), func() bool {
		return meet(t, from, f, to, netip.Addr{}) == want
	})
}

// addAddress adds addresses to a host's loopback device.
func (w *world) addAddress(h *lab.Host, addrs ...netip.Addr) {
	w.t.Helper()
	w.changeAddresses(h, (*netlink.Handle).AddrAdd, addrs)
}

// removeAddress removes them again.
func (w *world) removeAddress(h *lab.Host, addrs ...netip.Addr) {
	w.t.Helper()
	w.changeAddresses(h, (*netlink.Handle).AddrDel, addrs)
}

func (w *world) changeAddresses(h *lab.Host, change func(*netlink.Handle, netlink.Link, *netlink.Addr) error, addrs []netip.Addr) {
	w.t.Helper()
	nl, lo, err := h.OpenDevice("lo")
	w.must(err)
	defer nl.Close()
	for _, a := range addrs {
		address, err := netlink.ParseAddr(single(a))
		w.must(err)
		w.must(change(nl, lo, address))
	}
}
