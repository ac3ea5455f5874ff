// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"context"
	"net/netip"
	"regexp"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"beeline.io/beeline/internal/api"
)

// The pod networks are those of all Nodes, or of the flag, and follow changes; a ServiceCIDR among them stays
// one, and raises a condition.
func TestPodNetworks(t *testing.T) {
	w := startWorld(t)
	w.wantPodNetworks("10.10.1.0/24", "10.10.2.0/24", "fd00:10:1::/64", "fd00:10:2::/64")
	w.must(w.agent.Stop())
	w.agent.Flags = []string{"--pod-networks=10.10.0.0/16,10.96.0.0/16"}
	w.must(w.agent.Start())
	w.wantPodNetworks("10.10.0.0/16")
	w.wantExit(4, "10.96.0.0/16 is both a ServiceCIDR and a pod network")
}

func (w *world) wantPodNetworks(want ...string) {
	w.t.Helper()
	w.must(w.agent.WaitForTables("at the networks of pods", func(t *api.Tables) bool {
		return slices.Equal(t.PodNetworks, want) && slices.Contains(t.ServiceCIDRs, "10.96.0.0/16")
	}))
}

// R18: with externalTrafficPolicy Local, and no endpoint here, a pod of another node uses the endpoints of the
// cluster, and an external client is dropped.
func TestPodIsNoClientFromOutside(t *testing.T) {
	w := borrowWorld(t, "--edge-mode=tc")
	s, all := w.public("b1")
	s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	w.apply("web", objects(s, all)...)
	for _, to := range addresses(w.Host("node-a"), nodePort) {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		answer, err := w.Host("b2").Request(ctx, "tcp", to.String(), "hello")
		cancel()
		if err != nil || answer.Pod != "b1" {
			t.Errorf("a pod of node-b at %s: %+v, %v; want b1", to, answer, err)
		}
		w.wantDropped(to)
	}
	// The ports serve pods, and drop what clients outside send all the same.
	to := addresses(w.Host("node-a"), nodePort)[0]
	named := regexp.MustCompile(`ServiceRefuses: Service default/web: what clients outside sent in the last minute was dropped, because the traffic policy there is Local and this node has no endpoint: .*[1-9][0-9]* packets to ` + regexp.QuoteMeta(to.String()) + `/UDP`)
	w.eventually("status names the address", func() bool {
		w.wantDropped(to)
		text, err := w.agent.CLI("status")
		return err != nil && named.MatchString(text)
	})
}

// wantDropped sends one datagram and waits until the edge has counted it.
func (w *world) wantDropped(to netip.AddrPort) {
	w.t.Helper()
	before := w.status().Edge.Counters["drop_policy"]
	conn := w.open("udp", to)
	if _, err := conn.Write([]byte("hello")); err != nil {
		w.t.Fatal(err)
	}
	w.eventually("the datagram is dropped", func() bool { return w.status().Edge.Counters["drop_policy"] > before })
}
