// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"context"
	"errors"
	"net/netip"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// wantRefused checks that the client sees a RST, or ICMP port unreachable.
func (w *world) wantRefused(network string, to netip.AddrPort) {
	w.t.Helper()
	w.wantRefusedAs("client", network, to)
}

// wantRefusedAs is wantRefused for another host.
func (w *world) wantRefusedAs(host, network string, to netip.AddrPort) {
	w.t.Helper()
	if answer, err := w.askAs(host, network, to); !errors.Is(err, syscall.ECONNREFUSED) {
		w.t.Errorf("%s to %s: %+v, %v; want it refused; the edge counted %v", network, to, answer, err, w.edgeCounters())
	}
}

// wantSilence checks that packets are dropped for a reason that the edge counts, and that the client has no
// error until then.
func (w *world) wantSilence(network string, to netip.AddrPort, reason string) {
	w.t.Helper()
	w.wantSilenceAs("client", network, to, reason)
}

// wantSilenceAs is wantSilence for another host.
func (w *world) wantSilenceAs(host, network string, to netip.AddrPort, reason string) {
	w.t.Helper()
	count := func() uint64 { return w.status().Edge.Counters[reason] }
	before := count()
	ctx, cancel := context.WithCancel(context.Background())
	result := make(chan error, 1)
	go func() {
		_, err := w.Host(host).Request(ctx, network, to.String(), "hello")
		result <- err
	}()
	w.eventually(network+" to "+to.String()+" is counted as "+reason, func() bool { return count() > before })
	cancel()
	if err := <-result; err == nil || errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.EHOSTUNREACH) {
		w.t.Errorf("%s to %s: %v, want silence", network, to, err)
	}
}

// R16 to R18: without any endpoint each address of a Service refuses.
func TestNoEndpointsFromOutside(t *testing.T) {
	inModes(t, func(t *testing.T, mode string) {
		w := borrowWorld(t, "--edge-mode="+mode)
		w.lead()
		w.apply("web", objects(w.everywhere("web", 1))...)
		w.each(1, func(_, network string, _ int, to netip.AddrPort) { w.wantRefused(network, to) })
	})
}

// R16, R18: with a traffic policy Local, no endpoint here and some elsewhere, there is no reply.
func TestNoLocalEndpointsFromOutside(t *testing.T) {
	inModes(t, func(t *testing.T, mode string) {
		w := borrowWorld(t, "--edge-mode="+mode)
		w.lead()
		s, all := w.everywhere("web", 1, "b1")
		s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
		s.Spec.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicyLocal)
		w.apply("web", objects(s, all)...)
		w.each(1, func(_, network string, _ int, to netip.AddrPort) { w.wantSilence(network, to, "drop_policy") })
	})
}

// R20: a ClusterIP refuses if a flag says so. R21: an unknown port of a ClusterIP is refused; an unused address
// does not reply. R22: a NodePort of no Service is a port of the node.
func TestUnknownAddressesFromOutside(t *testing.T) {
	inModes(t, func(t *testing.T, mode string) {
		w := startWorld(t, "--edge-mode="+mode, "--refuse-outside-cluster-ips")
		w.lead()
		s, all := w.everywhere("web", 1, "a1", "b1")
		w.apply("web", objects(s, all)...)
		for family := range 2 {
			for _, network := range []string{"tcp", "udp"} {
				clusterIP := w.address("ClusterIP", 1, family)
				w.wantRefused(network, clusterIP)
				w.wantRefused(network, netip.AddrPortFrom(clusterIP.Addr(), 81))
				w.wantSilence(network, w.address("ClusterIP", 200, family), "drop_no_service")
				w.wantRefused(network, w.address("NodePort", 200, family))
				w.wantServed(network, w.address("ExternalIP", 1, family), "a1", "b1")
			}
		}
	})
}

// R23, R25: loadBalancerSourceRanges apply at the load balancer's address and nowhere else; clients outside
// them get no reply.
func TestSourceRangesFromOutside(t *testing.T) {
	inModes(t, func(t *testing.T, mode string) {
		w := borrowWorld(t, "--edge-mode="+mode)
		w.lead()
		w.manyClients()
		s, all := w.everywhere("web", 1, "a1", "b1")
		s.Spec.LoadBalancerSourceRanges = clientRanges[:]
		w.apply("web", objects(s, all)...)
		w.each(1, func(kind, network string, family int, to netip.AddrPort) {
			if kind != "LoadBalancer" {
				w.wantServed(network, to, "a1", "b1")
				return
			}
			w.wantSilence(network, to, "drop_source")
			for n := range 4 {
				if answer, err := w.askFrom(nth(clientRanges[family], 16+n), network, to); err != nil {
					t.Errorf("%s to %s from an address that is admitted: %+v, %v; the edge counted %v", network, to, answer, err, w.edgeCounters())
				}
			}
		})
		s.Spec.LoadBalancerSourceRanges = []string{"0.0.0.0/0", "2001:db8:ffff::/64"}
		w.apply("web", objects(s, all)...)
		w.wantServed("tcp", w.address("LoadBalancer", 1, 0), "a1", "b1")
		w.wantSilence("tcp", w.address("LoadBalancer", 1, 1), "drop_source")
	})
}

// R9, R10, R12: endpoints that are not ready are not used, terminating ones that serve are used if there are no
// others, and those that do not serve never.
func TestEndpointStatesFromOutside(t *testing.T) {
	w := borrowWorld(t, "--edge-mode=tc")
	set := func(slices []*discoveryv1.EndpointSlice, pod int, ready, serving, terminating bool) {
		for _, slice := range slices {
			slice.Endpoints[pod].Conditions = discoveryv1.EndpointConditions{Ready: &ready, Serving: &serving, Terminating: &terminating}
		}
	}
	to := addresses(w.Host("node-a"), nodePort)[0]
	s, all := w.public("a1", "b1", "b2")
	set(all, 2, false, false, true)
	set(all, 1, false, true, true)
	w.apply("web", objects(s, all)...)
	w.wantServed("tcp", to, "a1")
	set(all, 0, false, false, false)
	w.apply("web", objects(s, all)...)
	w.wantServed("tcp", to, "b1")
	set(all, 1, false, false, true)
	w.apply("web", objects(s, all)...)
	w.wantRefused("tcp", to)
}
