// SPDX-License-Identifier: Apache-2.0

package socket

import (
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/test/lab"
	"beeline.io/beeline/test/node"
)

// Both kinds of client with sockets on a node: pods, and the node itself.
const clients = "a1 node-a"

// R16: a Service without endpoints refuses at once, whatever the reason.
func TestNoEndpointsIsRefused(t *testing.T) {
	w := startWorld(t, "node-a")
	alone, _ := w.web("alone", 1, "")
	w.write("alone", alone)
	w.write("empty", objects(w.web("empty", 2, ""))...)
	// R5: endpoints belong to the port by its name; targetPort does not matter.
	other, slices := w.web("other", 3, "b1")
	for _, slice := range slices {
		*slice.Ports[0].Name = "other"
	}
	w.write("other", objects(other, slices)...)
	// R2: since 1.36 the label on the slice decides.
	headless, slices := w.web("headless", 4, "b1")
	for _, slice := range slices {
		slice.Labels[corev1.IsHeadlessService] = ""
	}
	w.apply("headless", objects(headless, slices)...)
	inEachFamily(t, func(t *testing.T, f family) {
		for n := range uint8(4) {
			w.wantMeet(t, clients, f, f.clusterIP(n+1), rejected)
		}
	})
}

// R21: a ClusterIP refuses unknown ports and protocols.
func TestUnknownPortIsRefused(t *testing.T) {
	w := startWorld(t, "node-a")
	s, slices := w.web("web", 1, "b1")
	s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: "udp", Protocol: corev1.ProtocolUDP, Port: 53})
	w.apply("web", objects(s, slices)...)
	inEachFamily(t, func(t *testing.T, f family) {
		ip := f.clusterIP(1).Addr()
		for _, port := range []uint16{81, lab.PortTCP, 53, 65535} {
			w.wantMeet(t, clients, f, netip.AddrPortFrom(ip, port), rejected)
		}
	})
}

// R21: connections to an unused address of a ServiceCIDR are dropped. This follows changes of Services and
// ServiceCIDRs.
func TestUnallocatedAddressIsDropped(t *testing.T) {
	w := startWorld(t, "node-a")
	check := func(what, want string) {
		t.Run(what, func(t *testing.T) {
			inEachFamily(t, func(t *testing.T, f family) { w.wantMeet(t, clients, f, f.clusterIP(9), want) })
		})
	}
	check("no Service", dropped)
	w.apply("web", objects(w.web("web", 9, "b1"))...)
	check("a Service", "b1")
	w.remove("web")
	check("deleted", dropped)
	w.apply("cluster", node.Cluster(w.Lab)[1:]...)
	check("no ServiceCIDR", alone)
}

// R16: with internalTrafficPolicy Local only endpoints on the client's node count; if there are only others,
// the connection is dropped.
func TestInternalTrafficPolicyLocal(t *testing.T) {
	w := startWorld(t, "node-a", "node-b")
	policy := corev1.ServiceInternalTrafficPolicyLocal
	for _, c := range []struct{ name, pods, onA, onB string }{
		{"both", "a2 b1 b2", "a2", "b1 b2"},
		{"elsewhere", "b1 b2", dropped, "b1 b2"},
		{"nowhere", "", rejected, rejected},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, slices := w.web("web", 1, c.pods)
			s.Spec.InternalTrafficPolicy = &policy
			w.apply("web", objects(s, slices)...)
			inEachFamily(t, func(t *testing.T, f family) {
				w.wantMeet(t, "a1 node-a", f, f.clusterIP(1), c.onA)
				w.wantMeet(t, "b3 node-b", f, f.clusterIP(1), c.onB)
			})
		})
	}
}

// R1: a Service that names another proxy is left to it. The label counts when it is added and when it is
// removed, and the agent can have a name of its own.
func TestServiceOfAnotherProxy(t *testing.T) {
	for name, c := range map[string]struct {
		flags []string
		label string
		want  string
	}{
		"no name":      {nil, "another", dropped},
		"another name": {[]string{"--service-proxy-name=beeline"}, "another", dropped},
		"our name":     {[]string{"--service-proxy-name=beeline"}, "beeline", "b1"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "node-a")
			w.agent().Flags = c.flags
			w.start()
			for _, step := range []struct{ label, want string }{
				{c.label, c.want}, {"", "b1"}, {c.label, c.want},
			} {
				s, slices := w.web("web", 1, "b1")
				if step.label != "" {
					s.Labels = map[string]string{service.LabelServiceProxyName: step.label}
				}
				w.apply("web", objects(s, slices)...)
				w.wantMeet(t, clients, ipv4, ipv4.clusterIP(1), step.want)
				w.wantMeet(t, clients, ipv6, ipv6.clusterIP(1), step.want)
			}
		})
	}
}

// R3: Services without a ClusterIP have no address; they do not affect others either.
func TestServicesWithoutClusterIP(t *testing.T) {
	w := startWorld(t, "node-a")
	headless, slices := w.web("headless", 1, "b2")
	headless.Spec.ClusterIP, headless.Spec.ClusterIPs = corev1.ClusterIPNone, []string{corev1.ClusterIPNone}
	w.write("headless", objects(headless, slices)...)
	name, _ := w.web("name", 2, "")
	name.Spec = corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "example.org"}
	w.write("name", name)
	w.apply("web", objects(w.web("web", 3, "b1"))...)
	inEachFamily(t, func(t *testing.T, f family) {
		w.wantMeet(t, clients, f, f.clusterIP(1), dropped)
		w.wantMeet(t, clients, f, f.clusterIP(2), dropped)
		w.wantMeet(t, clients, f, f.clusterIP(3), "b1")
		w.wantMeet(t, clients, f, f.pod(w.Host("b2")), "b2")
	})
}

// R7: families are independent.
func TestFamiliesAreIndependent(t *testing.T) {
	w := startWorld(t, "node-a")
	half, slices := w.web("half", 1, "b1")
	slices[1].Endpoints = []discoveryv1.Endpoint{}
	w.write("half", objects(half, slices)...)
	single, slices := w.web("single", 2, "b1")
	single.Spec.ClusterIPs, single.Spec.IPFamilies = single.Spec.ClusterIPs[:1], single.Spec.IPFamilies[:1]
	w.apply("single", objects(single, slices)...)
	inEachFamily(t, func(t *testing.T, f family) {
		half, single := rejected, dropped
		if f.v4 {
			half, single = "b1", "b1"
		}
		w.wantMeet(t, clients, f, f.clusterIP(1), half)
		w.wantMeet(t, clients, f, f.clusterIP(2), single)
	})
}

// R8: addresses with leading zeros, as in old objects, are decimal. R32: fields for other programs change
// nothing.
func TestObjectsOfAllAges(t *testing.T) {
	w := startWorld(t, "node-a")
	old, slices := w.web("old", 1, "b1")
	old.Spec.ClusterIP, old.Spec.ClusterIPs, old.Spec.IPFamilies = "010.096.000.001", nil, nil
	slices[0].Endpoints[0].Addresses[0] = "010.010.002.011"
	w.write("old", objects(old, slices)...)
	modern, slices := w.web("modern", 2, "a2 b1")
	distribution, protocol := corev1.ServiceTrafficDistributionPreferSameNode, "kubernetes.io/h2c"
	modern.Spec.TrafficDistribution = &distribution
	modern.Spec.Ports[0].AppProtocol = &protocol
	for _, slice := range slices {
		slice.Ports[0].AppProtocol = &protocol
	}
	w.apply("modern", objects(modern, slices)...)
	w.wantMeet(t, clients, ipv4, ipv4.clusterIP(1), "b1")
	w.wantMeet(t, clients, v4Mapped, v4Mapped.clusterIP(1), "b1")
	w.wantMeet(t, clients, ipv6, ipv6.clusterIP(1), dropped)
	inEachFamily(t, func(t *testing.T, f family) { w.wantMeet(t, clients, f, f.clusterIP(2), "a2 b1") })
}
