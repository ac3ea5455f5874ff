// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// R17, R19, R20, R24, R26, R31: each address of a Service leads a client outside the cluster to an endpoint on
// this node, in a pod or not, which sees the client's address, and to one on another node, which sees this
// node's.
func TestEachAddressFromOutside(t *testing.T) {
	inModes(t, func(t *testing.T, mode string) {
		w := borrowWorld(t, "--edge-mode="+mode)
		w.wantMode(mode)
		w.lead()
		own, client := addresses(w.Host("node-a"), 0), addresses(w.Host("client"), 0)
		for n, backend := range []struct {
			name string
			sees []netip.AddrPort
		}{{"a1", client}, {"b1", own}, {"node-a", client}, {"node-b", own}} {
			w.apply(backend.name, objects(w.everywhere(backend.name, n+1, backend.name))...)
			w.each(n+1, func(kind, network string, family int, to netip.AddrPort) {
				answer, err := w.ask(network, to)
				if err != nil || answer.Pod != backend.name || answer.Peer.Addr() != backend.sees[family].Addr() {
					t.Errorf("%s %s for %s: %+v, %v; want it seen from %s", kind, to, network, answer, err, backend.sees[family].Addr())
				}
			})
		}
	})
}

// R18: with externalTrafficPolicy Local a client outside the cluster gets only endpoints on this node, except
// at the ClusterIP, which follows internalTrafficPolicy (R16).
func TestTrafficPolicyLocalFromOutside(t *testing.T) {
	inModes(t, func(t *testing.T, mode string) {
		w := borrowWorld(t, "--edge-mode="+mode)
		w.lead()
		s, all := w.everywhere("web", 1, "a1", "b1")
		s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
		w.apply("web", objects(s, all)...)
		w.each(1, func(kind, network string, family int, to netip.AddrPort) {
			if kind == "ClusterIP" {
				w.wantServed(network, to, "a1", "b1")
				return
			}
			w.wantServed(network, to, "a1")
		})
		s.Spec.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicyLocal)
		w.apply("web", objects(s, all)...)
		for family := range 2 {
			w.wantServed("tcp", w.address("ClusterIP", 1, family), "a1")
		}
	})
}

// R33: a client outside the cluster reaches a pod's hostPort, and the pod sees its address.
func TestHostPortFromOutside(t *testing.T) {
	inModes(t, func(t *testing.T, mode string) {
		w := borrowWorld(t, "--edge-mode="+mode)
		w.apply("a2", hostPortPod(w.Host("a2")))
		for family, to := range addresses(w.Host("node-a"), hostPort) {
			for _, network := range []string{"tcp", "udp"} {
				answer, err := w.ask(network, to)
				if want := addresses(w.Host("client"), 0)[family].Addr(); err != nil || answer.Pod != "a2" || answer.Peer.Addr() != want {
					t.Errorf("%s to %s: %+v, %v; want a2, seen from %s", network, to, answer, err, want)
				}
			}
		}
		w.must(w.folder.Remove("a2"))
		w.must(w.folder.Await(w.agent))
		for _, to := range addresses(w.Host("node-a"), hostPort) {
			w.wantRefused("tcp", to)
			w.wantRefused("udp", to)
		}
	})
}
