// SPDX-License-Identifier: Apache-2.0

package socket

import (
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"beeline.io/beeline/test/lab"
	"beeline.io/beeline/test/node"
)

const nodePort = 30080

// public is a Service of type NodePort.
func (w *world) public(name string, n uint8, pods string) (*corev1.Service, []*discoveryv1.EndpointSlice) {
	w.t.Helper()
	s, slices := w.web(name, n, pods)
	s.Spec.Type = corev1.ServiceTypeNodePort
	s.Spec.Ports[0].NodePort = nodePort
	return s, slices
}

// publicUDP is public with the UDP port 80 instead of TCP.
func (w *world) publicUDP(name string, n uint8, pods string) (*corev1.Service, []*discoveryv1.EndpointSlice) {
	w.t.Helper()
	s, slices := w.udp(name, n, pods)
	s.Spec.Type, s.Spec.Ports[0].NodePort = corev1.ServiceTypeNodePort, nodePort
	return s, slices
}

// ownServer runs a server on the node port of a host: it answers connections that Beeline passes.
func (w *world) ownServer(names string) {
	w.t.Helper()
	for _, h := range w.hosts(names) {
		w.must(h.StopServer())
		w.must(h.StartServer(lab.ServerOptions{TCP: nodePort, HTTP: nodePort + 1, UDP: nodePort}))
	}
}

func (f family) loopbacks() []netip.AddrPort {
	if f.v4 {
		return []netip.AddrPort{
			f.choose("127.0.0.1", "", nodePort), f.choose("127.0.0.2", "", nodePort), f.choose("127.255.255.254", "", nodePort),
		}
	}
	return []netip.AddrPort{f.choose("", "::1", nodePort)}
}

// R17, R22: pods and the node reach the NodePort at the node's own address, and no other ports or addresses.
func TestNodePortOnOwnAddress(t *testing.T) {
	w := startWorld(t, "node-a")
	w.apply("web", objects(w.public("web", 1, "a2 b1"))...)
	inEachFamily(t, func(t *testing.T, f family) {
		own := f.of(w.Host("node-a"))
		w.wantMeet(t, clients, f, netip.AddrPortFrom(own, nodePort), "a2 b1")
		w.wantMeet(t, clients, f, netip.AddrPortFrom(own, 80), closed)
		w.wantMeet(t, clients, f, netip.AddrPortFrom(f.of(w.Host("a2")), nodePort), closed)
		w.wantMeet(t, clients, f, f.clusterIP(1), "a2 b1")
	})
}

// R22: loopback has NodePorts only in the host's network namespace, on all of 127.0.0.0/8. A pod's loopback is
// its own.
func TestNodePortOnLoopback(t *testing.T) {
	w := startWorld(t, "node-a")
	w.ownServer("a1")
	w.apply("web", objects(w.public("web", 1, "a2 b1"))...)
	inEachFamily(t, func(t *testing.T, f family) {
		for _, to := range f.loopbacks() {
			w.wantMeet(t, "node-a", f, to, "a2 b1")
			w.wantMeet(t, "a1", f, to, "a1")
			w.wantMeet(t, "a3", f, to, closed)
			s := f.socket(t, w.Host("node-a"), 0)
			s.reach(to)
			s.wantPeer(to)
		}
	})
}

// R22: the flag for it.
func TestNodePortOnLoopbackSwitchedOff(t *testing.T) {
	w := newWorld(t, "node-a")
	w.agent().Flags = []string{"--localhost-nodeports=false"}
	w.start()
	w.apply("web", objects(w.public("web", 1, "a2 b1"))...)
	inEachFamily(t, func(t *testing.T, f family) {
		for _, to := range f.loopbacks() {
			w.wantMeet(t, clients, f, to, closed)
		}
		w.wantMeet(t, clients, f, netip.AddrPortFrom(f.of(w.Host("node-a")), nodePort), "a2 b1")
	})
}

// R22: another node decides itself which NodePorts it has. The connection reaches that node, whatever answers
// there.
func TestNodePortOfAnotherNodeIsLeftAlone(t *testing.T) {
	w := startWorld(t, "node-a")
	w.apply("web", objects(w.public("web", 1, "a2 b1"))...)
	inEachFamily(t, func(t *testing.T, f family) {
		w.wantMeet(t, clients, f, netip.AddrPortFrom(f.of(w.Host("node-b")), nodePort), closed)
	})
	w.ownServer("node-b")
	inEachFamily(t, func(t *testing.T, f family) {
		w.wantMeet(t, clients, f, netip.AddrPortFrom(f.of(w.Host("node-b")), nodePort), "node-b")
	})
}

// R18: externalTrafficPolicy Local applies to external traffic; pods and nodes use all endpoints of the
// cluster.
func TestNodePortWithExternalTrafficPolicyLocal(t *testing.T) {
	w := startWorld(t, "node-a")
	for _, c := range []struct{ name, pods, want string }{
		{"some here", "a2 b1", "a2 b1"},
		{"elsewhere", "b1 b2", "b1 b2"},
		{"nowhere", "", rejected},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, slices := w.public("web", 1, c.pods)
			s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
			w.apply("web", objects(s, slices)...)
			inEachFamily(t, func(t *testing.T, f family) {
				w.wantMeet(t, clients, f, netip.AddrPortFrom(f.of(w.Host("node-a")), nodePort), c.want)
				w.wantMeet(t, "node-a", f, f.loopbacks()[0], c.want)
				w.wantMeet(t, clients, f, f.clusterIP(1), c.want)
			})
		})
	}
}

// R17: a NodePort follows only externalTrafficPolicy, even if the ClusterIP has internalTrafficPolicy Local.
func TestNodePortWithInternalTrafficPolicyLocal(t *testing.T) {
	w := startWorld(t, "node-a")
	s, slices := w.public("web", 1, "b1 b2")
	policy := corev1.ServiceInternalTrafficPolicyLocal
	s.Spec.InternalTrafficPolicy = &policy
	w.apply("web", objects(s, slices)...)
	inEachFamily(t, func(t *testing.T, f family) {
		w.wantMeet(t, clients, f, f.clusterIP(1), dropped)
		w.wantMeet(t, clients, f, netip.AddrPortFrom(f.of(w.Host("node-a")), nodePort), "b1 b2")
	})
}

// R22: nodePortAddresses selects the addresses; a list for one family leaves the other at its default. Changes
// of addresses are followed.
func TestNodePortAddresses(t *testing.T) {
	w := newWorld(t, "node-a")
	w.agent().Flags = []string{"--nodeport-addresses=203.0.113.0/24"}
	w.start()
	w.apply("web", objects(w.public("web", 1, "b1"))...)
	own, extra := w.Host("node-a"), netip.MustParseAddr("203.0.113.7")
	w.wantMeet(t, clients, ipv4, netip.AddrPortFrom(own.Addr4, nodePort), closed)
	w.wantMeet(t, clients, ipv6, netip.AddrPortFrom(own.Addr6, nodePort), "b1")
	w.wantMeet(t, clients, ipv4, netip.AddrPortFrom(extra, nodePort), alone)

	w.addAddress(own, extra)
	w.eventually("the NodePort is on the new address", func() bool {
		answer, err := ask(own, ipv4, netip.AddrPortFrom(extra, nodePort))
		return err == nil && answer.Pod == "b1"
	})
	w.wantMeet(t, clients, ipv4, netip.AddrPortFrom(extra, nodePort), "b1")
	w.removeAddress(own, extra)
	w.eventually("the NodePort is removed with the address", func() bool {
		return meet(t, own, ipv4, netip.AddrPortFrom(extra, nodePort), netip.Addr{}) == alone
	})
}

// R39: NodePorts stay when this node's Node object is deleted.
func TestNodePortOfADeletedNode(t *testing.T) {
	w := startWorld(t, "node-a")
	w.apply("web", objects(w.public("web", 1, "a2 b1"))...)
	w.apply("cluster", slices.DeleteFunc(node.Cluster(w.Lab), func(o runtime.Object) bool {
		n, ok := o.(*corev1.Node)
		return ok && n.Name == "node-a"
	})...)
	status, err := w.agent().Status()
	w.must(err)
	if !status.NodeDeleted || status.NodeUnknown {
		t.Errorf("status: deleted %t, unknown %t", status.NodeDeleted, status.NodeUnknown)
	}
	inEachFamily(t, func(t *testing.T, f family) {
		w.wantMeet(t, clients, f, netip.AddrPortFrom(f.of(w.Host("node-a")), nodePort), "a2 b1")
	})
}
