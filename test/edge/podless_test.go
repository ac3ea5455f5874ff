// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/test/node"
)

// TestNodesWithoutPodCIDRs: if Nodes have no podCIDRs, a Pod's addresses identify it. One that has opted out of
// the socket shortcut reaches a ClusterIP, and one that source ranges admit reaches a load balancer's address
// (R16, R25). Status says that pods of other nodes cannot be recognised, until --pod-networks names them.
func TestNodesWithoutPodCIDRs(t *testing.T) {
	w := newWorld(t)
	cluster := node.Cluster(w.Lab)
	for _, o := range cluster {
		if n, ok := o.(*corev1.Node); ok {
			n.Spec = corev1.NodeSpec{}
		}
	}
	w.must(w.folder.Put("cluster", cluster...))
	w.must(w.agent.Start())
	w.optOut("a1")
	a1 := w.Host("a1")
	w.must(w.agent.WaitForTables("with the addresses of a1", func(t *api.Tables) bool {
		return len(t.PodNetworks) == 2
	}))
	s, all := w.public("b1")
	s.Spec.Type = corev1.ServiceTypeLoadBalancer
	const vip = "203.0.113.77"
	s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: vip}}
	s.Spec.LoadBalancerSourceRanges = []string{netip.PrefixFrom(a1.Addr4, 32).String()}
	w.apply("web", objects(s, all)...)
	w.must(w.agent.WaitFor("at the pod's device", func(s *api.Status) bool { return len(s.Edge.Devices) >= 1 }))
	for _, network := range []string{"tcp", "udp"} {
		for _, ip := range []string{node.ClusterIPs(1)[0], vip} {
			to := netip.AddrPortFrom(netip.MustParseAddr(ip), 80)
			if answer, err := w.askAs("a1", network, to); err != nil || answer.Pod != "b1" {
				t.Errorf("%s to %s: %+v, %v; the edge counted %v", network, to, answer, err, w.edgeCounters())
			}
		}
	}
	w.wantExit(4, "set --pod-networks to the pod networks")
	w.must(w.agent.Stop())
	w.agent.Flags = append(w.agent.Flags, "--pod-networks=10.10.0.0/16,fd00:10::/32")
	w.must(w.agent.Start())
	w.await()
	if c := w.status().Conditions.Wrong(); len(c) > 0 {
		t.Errorf("conditions:\n%s", c)
	}
}
