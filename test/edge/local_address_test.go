// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// R11, R18: in a file an endpoint belongs to this node without a nodeName if it has an address of the node:
// policy Local finds the program that listens there, and no other.
func TestEndpointOfTheNodeItself(t *testing.T) {
	w := borrowWorld(t, "--edge-mode=tc")
	w.serveOnNodes()
	s, slices := w.public("node-a", "b1", "b2")
	s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	for _, slice := range slices {
		for i := range slice.Endpoints {
			slice.Endpoints[i].NodeName = nil
		}
	}
	w.apply("web", objects(s, slices)...)
	for _, to := range addresses(w.Host("node-a"), nodePort) {
		for _, network := range []string{"tcp", "udp"} {
			w.wantServed(network, to, "node-a")
		}
	}
}
