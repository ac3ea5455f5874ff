// SPDX-License-Identifier: Apache-2.0

package socket

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// The conditions of an endpoint.
func ready(e *discoveryv1.Endpoint) {
	e.Conditions = discoveryv1.EndpointConditions{Ready: new(true), Serving: new(true), Terminating: new(false)}
}
func unready(e *discoveryv1.Endpoint) {
	e.Conditions = discoveryv1.EndpointConditions{Ready: new(false), Serving: new(false), Terminating: new(false)}
}
func draining(e *discoveryv1.Endpoint) { // terminating, and still serving
	e.Conditions = discoveryv1.EndpointConditions{Ready: new(false), Serving: new(true), Terminating: new(true)}
}
func dying(e *discoveryv1.Endpoint) { // terminating, and no longer serving
	e.Conditions = discoveryv1.EndpointConditions{Ready: new(false), Serving: new(false), Terminating: new(true)}
}
func unknown(e *discoveryv1.Endpoint) { // R9: unset means ready
	e.Conditions = discoveryv1.EndpointConditions{}
}

// R9, R10, R11, R12: under which conditions an endpoint takes new connections, in the cluster and, with
// internalTrafficPolicy Local, on this node.
func TestEndpointConditions(t *testing.T) {
	type conditions map[string]func(*discoveryv1.Endpoint)
	w := startWorld(t, "node-a")
	local := corev1.ServiceInternalTrafficPolicyLocal
	for _, c := range []struct {
		name           string
		pods           string
		are            conditions
		cluster, local string
	}{
		{"all ready", "a2 b1", conditions{"a2": ready, "b1": ready}, "a2 b1", "a2"},
		{"conditions unknown", "a2 b1", conditions{"a2": unknown, "b1": unknown}, "a2 b1", "a2"},
		{"one not ready", "a2 b1", conditions{"a2": unready}, "b1", dropped},
		{"none ready", "a2 b1", conditions{"a2": unready, "b1": unready}, rejected, rejected},
		{"one terminating", "a2 b1", conditions{"a2": draining}, "b1", "a2"},
		{"all terminating", "a2 b1", conditions{"a2": draining, "b1": draining}, "a2 b1", "a2"},
		{"one terminating, one dead", "a2 b1", conditions{"a2": dying, "b1": draining}, "b1", dropped},
		{"all terminating and dead", "a2 b1", conditions{"a2": dying, "b1": dying}, rejected, rejected},
		{"terminating beside not ready", "a2 a3 b1", conditions{"a2": draining, "a3": unready, "b1": unready}, "a2", "a2"},
		{"terminating beside ready", "a2 a3 b1", conditions{"a2": draining, "b1": draining}, "a3", "a3"},
	} {
		t.Run(c.name, func(t *testing.T) {
			for n, scope := range []string{c.cluster, c.local} {
				s, slices := w.web([]string{"cluster", "local"}[n], uint8(n+1), c.pods)
				if n == 1 {
					s.Spec.InternalTrafficPolicy = &local
				}
				for pod, change := range c.are {
					endpoints(slices, w.Host(pod), change)
				}
				w.apply(s.Name, objects(s, slices)...)
				for _, f := range []family{ipv4, ipv6} {
					w.wantMeet(t, "a1", f, f.clusterIP(uint8(n+1)), scope)
				}
			}
		})
	}
}

// R9: the endpoints of a Service with publishNotReadyAddresses appear as ready.
func TestPublishNotReadyAddresses(t *testing.T) {
	w := startWorld(t, "node-a")
	s, slices := w.web("web", 1, "b1")
	s.Spec.PublishNotReadyAddresses = true
	endpoints(slices, w.Host("b1"), func(e *discoveryv1.Endpoint) {
		e.Conditions = discoveryv1.EndpointConditions{Ready: new(true), Serving: new(false)}
	})
	w.apply("web", objects(s, slices)...)
	inEachFamily(t, func(t *testing.T, f family) { w.wantMeet(t, clients, f, f.clusterIP(1), "b1") })
}

// R13: hints count if every ready endpoint has them and one names this node or its zone; a hint for the node
// takes precedence.
func TestTopologyHints(t *testing.T) {
	type hints map[string]discoveryv1.EndpointHints
	zone := func(z string) discoveryv1.EndpointHints {
		return discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: z}}}
	}
	node := func(n string) discoveryv1.EndpointHints {
		return discoveryv1.EndpointHints{ForNodes: []discoveryv1.ForNode{{Name: n}}}
	}
	both := discoveryv1.EndpointHints{ForZones: zone("zone-node-a").ForZones, ForNodes: node("node-b").ForNodes}
	w := startWorld(t, "node-a", "node-b")
	for _, c := range []struct {
		name     string
		are      hints
		onA, onB string
	}{
		{"zones", hints{"a2": zone("zone-node-a"), "b1": zone("zone-node-b"), "b2": zone("zone-node-b")}, "a2", "b1 b2"},
		{"across zones", hints{"a2": zone("zone-node-b"), "b1": zone("zone-node-a"), "b2": zone("zone-node-a")}, "b1 b2", "a2"},
		{"one without", hints{"a2": zone("zone-node-a"), "b1": zone("zone-node-b")}, "a2 b1 b2", "a2 b1 b2"},
		{"not this zone", hints{"a2": zone("zone-node-a"), "b1": zone("zone-node-a"), "b2": zone("zone-node-a")}, "a2 b1 b2", "a2 b1 b2"},
		{"nodes", hints{"a2": node("node-a"), "b1": node("node-b"), "b2": node("node-a")}, "a2 b2", "b1"},
		{"nodes before zones", hints{"a2": both, "b1": both, "b2": node("node-a")}, "b2", "a2 b1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, slices := w.web("web", 1, "a2 b1 b2")
			for pod, h := range c.are {
				endpoints(slices, w.Host(pod), func(e *discoveryv1.Endpoint) { e.Hints = &h })
			}
			w.apply("web", objects(s, slices)...)
			for _, f := range []family{ipv4, ipv6} {
				w.wantMeet(t, "a1 node-a", f, f.clusterIP(1), c.onA)
				w.wantMeet(t, "b3 node-b", f, f.clusterIP(1), c.onB)
			}
		})
	}
}

// R13: an endpoint that is not ready needs no hint, and topology does not hide terminating endpoints if there
// are no others.
func TestTopologyHintsOfReadyEndpointsOnly(t *testing.T) {
	w := startWorld(t, "node-a")
	s, slices := w.web("web", 1, "a2 b1")
	endpoints(slices, w.Host("a2"), func(e *discoveryv1.Endpoint) {
		e.Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: "zone-node-a"}}}
	})
	endpoints(slices, w.Host("b1"), unready)
	w.apply("web", objects(s, slices)...)
	w.wantMeet(t, "a1", ipv4, ipv4.clusterIP(1), "a2")
	endpoints(slices, w.Host("a2"), draining)
	endpoints(slices, w.Host("b1"), draining)
	w.apply("web", objects(s, slices)...)
	w.wantMeet(t, "a1", ipv4, ipv4.clusterIP(1), "a2 b1")
}

// R6: the same endpoint in several slices counts once, and of two entries the one that does not terminate
// counts.
func TestDuplicateEndpoints(t *testing.T) {
	w := startWorld(t, "node-a")
	s, slices := w.web("web", 1, "b1 b2")
	_, again := w.web("web", 1, "b1")
	for _, slice := range again {
		slice.Name += "-again"
	}
	w.apply("web", objects(s, append(slices, again...))...)
	for _, f := range []family{ipv4, ipv6} {
		made := count(choices(t, 1000, w.Host("a1"), f, 1, w.hosts("b1 b2")), 2)
		if err := checkShares(made, even(2)); err != nil {
			t.Errorf("%s: b1 is named twice and counts once: %v", f.name, err)
		}
	}
	for _, conditions := range []func(*discoveryv1.Endpoint){draining, dying} {
		endpoints(again, w.Host("b1"), conditions)
		w.apply("web", objects(s, append(slices, again...))...)
		inEachFamily(t, func(t *testing.T, f family) { w.wantMeet(t, "a1", f, f.clusterIP(1), "b1 b2") })
	}
}
