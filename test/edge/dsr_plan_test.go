// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/offline"
	"beeline.io/beeline/test/node"
)

// wantDSR checks the row of each address of Service web for external clients, as "TCP kind, UDP kind", and the
// nodes of its remote backends.
func (w *world) wantDSR(kinds string, nodes ...string) {
	w.t.Helper()
	tables, err := w.agent.Tables()
	w.must(err)
	s, err := tables.Find("web")
	w.must(err)
	at := map[string]bool{}
	for _, f := range s.Frontends {
		if f.Kind == service.ClusterIPOtherPorts || strings.HasPrefix(f.Address, "127.") || strings.HasPrefix(f.Address, "[::1]") {
			if f.DSR != "" {
				w.t.Errorf("%s %s has DSR %s", f.Kind, f.Address, f.DSR)
			}
			continue
		}
		if want := "TCP " + string(f.DSR) + ","; f.Protocol == service.TCP && !strings.HasPrefix(kinds, want) {
			w.t.Errorf("%s/TCP: %q, want %s", f.Address, f.DSR, kinds)
		}
		if want := ", UDP " + string(f.DSR); f.Protocol == service.UDP && !strings.HasSuffix(kinds, want) {
			w.t.Errorf("%s/UDP: %q, want %s", f.Address, f.DSR, kinds)
		}
		for _, b := range f.FromOutside.Backends {
			if b.Local && b.NodeAddress != "" {
				w.t.Errorf("%s is on this node, and has the node %s", b.Address, b.NodeAddress)
			}
			if !b.Local {
				at[f.Protocol.String()+" "+b.NodeAddress] = true
			}
		}
	}
	var got []string
	for n := range at {
		got = append(got, strings.TrimSpace(n))
	}
	slices.Sort(got)
	slices.Sort(nodes)
	if !slices.Equal(got, nodes) {
		w.t.Errorf("backends elsewhere are on %q, want %q", got, nodes)
	}
}

// wantBalancers checks that these networks, and no others, are in the pinned table.
func (w *world) wantBalancers(networks ...string) {
	w.t.Helper()
	pinned, err := bpf.OpenTables(w.agent.BPFFS())
	w.must(err)
	tables, err := offline.ReadTables(pinned)
	w.must(err)
	networks = slices.Sorted(slices.Values(networks))
	if !slices.Equal(tables.BalancerNetworks, networks) {
		w.t.Errorf("balancers %v, want %v", tables.BalancerNetworks, networks)
	}
}

// The flags, a Service's annotations and the Nodes reach the programs' tables, and so do changes; a new agent
// recovers them, and keeps them until its source is complete.
func TestDSRReachesTheTables(t *testing.T) {
	w := startWorld(t, "--edge-mode=tc", "--dsr=ipip", "--dsr-hybrid", "--dsr-balancers=198.51.100.0/24,2001:db8:77::/64")
	b := w.Host("node-b")
	single := func(n *node4and6) []string { return []string{n.v4 + "/32", n.v6 + "/128"} }
	nodeB := &node4and6{b.Addr4.String(), b.Addr6.String()} // node-a, with the agent, does not accept its own packets
	configured := []string{"198.51.100.0/24", "2001:db8:77::/64"}
	balancers := func(nodes ...*node4and6) []string {
		all := slices.Clone(configured)
		for _, n := range nodes {
			all = append(all, single(n)...)
		}
		return all
	}
	web := func(annotations map[string]string) {
		t.Helper()
		s, slices := w.public("a1", "b1")
		s.Annotations = annotations
		w.apply("web", objects(s, slices)...)
	}
	nowhere := []string{"TCP", "UDP"}

	web(nil)
	w.wantDSR("TCP ipip, UDP ", nowhere...)
	w.wantBalancers(balancers(nodeB)...)
	web(map[string]string{service.AnnotationDSR: "opt", service.AnnotationDSRHybrid: "false"})
	w.wantDSR("TCP opt, UDP opt", nowhere...)
	web(map[string]string{service.AnnotationDSR: "geneve"})
	w.wantDSR("TCP geneve, UDP ", "TCP "+nodeB.v4, "TCP "+nodeB.v6, "UDP")

	for command, want := range map[string][]string{
		"service show web": {"DSR (geneve): backends on other nodes answer clients outside the cluster directly", "on the node " + nodeB.v4, "on the node " + nodeB.v6},
		"status -v":        {"ipip (TCP only) unless a Service says otherwise; Services with DSR: 1"},
	} {
		text, err := w.agent.CLI(strings.Fields(command)...)
		w.must(err)
		for _, words := range want {
			if !strings.Contains(text, words) {
				t.Errorf("%s does not say %q:\n%s", command, words, text)
			}
		}
	}

	// A mistake is reported, and the previous value stays in effect.
	s, all := w.public("a1", "b1")
	s.Annotations = map[string]string{service.AnnotationDSR: "vxlan"}
	w.must(w.folder.Put("web", objects(s, all)...))
	w.must(w.agent.WaitFor("with the mistake reported", func(s *api.Status) bool {
		return strings.Contains(s.Conditions.String(), `metadata.annotations[beeline.io/dsr]: "vxlan": expected off or ipip or geneve or opt`)
	}))
	w.wantDSR("TCP geneve, UDP ", "TCP "+nodeB.v4, "TCP "+nodeB.v6, "UDP")
	web(map[string]string{service.AnnotationDSR: "geneve"})

	// The Node of b1 gets other addresses, and loses one family.
	cluster := node.Cluster(w.Lab)
	for _, o := range cluster {
		if n, ok := o.(*corev1.Node); ok && n.Name == "node-b" {
			n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.168.100.77"}, {Type: corev1.NodeExternalIP, Address: "203.0.113.77"}}
		}
	}
	w.apply("cluster", cluster...)
	w.wantDSR("TCP geneve, UDP ", "TCP 192.168.100.77", "TCP", "UDP")
	changed := append(balancers(), "192.168.100.77/32", "203.0.113.77/32")
	w.wantBalancers(changed...)

	// Only the agent knows the configuration, so the tables have to keep it.
	w.must(w.agent.Kill())
	w.wantBalancers(changed...)
	w.must(w.agent.Start())
	w.wantDSR("TCP geneve, UDP ", "TCP 192.168.100.77", "TCP", "UDP")
	w.wantBalancers(changed...)
	if repairs := w.status().Sync.Repairs; repairs > 0 {
		t.Errorf("%d repairs", repairs)
	}

	// A new agent with other flags.
	w.must(w.agent.Stop())
	w.agent.Flags = []string{"--edge-mode=tc"}
	w.must(w.agent.Start())
	web(nil)
	w.must(w.folder.Put("cluster", node.Cluster(w.Lab)...))
	w.must(w.folder.Await(w.agent))
	configured = nil
	w.wantBalancers(balancers(nodeB)...)
	w.wantDSR("TCP , UDP ", nowhere...)
	if c := w.status().Conditions.Wrong(); len(c) > 0 {
		t.Errorf("conditions:\n%s", c)
	}
}

// A starting agent whose source is not complete keeps the balancers of the agent before.
func TestBalancersOutliveAnAgentThatKnowsNothing(t *testing.T) {
	w := startWorld(t, "--edge-mode=tc", "--dsr=opt", "--dsr-balancers=198.51.100.0/24")
	w.apply("web", objects(w.public("b1"))...)
	networks := []string{"198.51.100.0/24", w.Host("node-b").Addr4.String() + "/32", w.Host("node-b").Addr6.String() + "/128"}
	w.wantBalancers(networks...)
	w.must(w.agent.Kill())
	w.must(w.folder.Write("web", []byte("kind: Nonsense\n")))
	w.agent.Flags = []string{"--edge-mode=tc", "--audit-interval=50ms"}
	w.must(w.agent.StartOnly())
	w.must(w.agent.WaitFor("with the mistake reported", func(s *api.Status) bool { return s.Source.Errors > 0 }))
	w.wantBalancers(networks...)
	w.must(w.folder.Remove("web"))
	w.must(w.agent.WaitForTables("with the balancers kept", func(tables *api.Tables) bool {
		return fmt.Sprint(tables.BalancerNetworks) == fmt.Sprint(slices.Sorted(slices.Values(networks[1:])))
	}))
}

// status says which packets fit, and follows devices.
func TestDSRSaysWhatFits(t *testing.T) {
	w := startWorld(t, "--edge-mode=tc", "--dsr=ipip")
	w.apply("web", objects(w.public("a1", "b1"))...)
	fits := func(v4, v6 int) {
		t.Helper()
		w.must(w.agent.WaitFor(fmt.Sprintf("packets up to %d and %d bytes", v4, v6), func(s *api.Status) bool {
			return len(s.Edge.DSR) == 2 && s.Edge.DSR[0].MaxPacketBytes == v4 && s.Edge.DSR[1].MaxPacketBytes == v6
		}))
	}
	fits(1480, 1460)
	text, err := w.agent.CLI("status", "-v")
	w.must(err) // it is no condition
	if want := "DSR (ipip), IPv4: clients' packets up to 1480 bytes; larger ones are answered with ICMP: raise the MTU of eth0 from 1500 to 1520"; !strings.Contains(text, want) {
		t.Errorf("status says\n%s", text)
	}
	nl, link, err := w.Host("node-a").OpenDevice("eth0")
	w.must(err)
	defer nl.Close()
	w.must(nl.LinkSetMTU(link, 1540))
	fits(1520, 1500)
	w.apply("web", objects(w.public("a1"))...)
	w.must(w.agent.WaitFor("without DSR after the backends are gone", func(s *api.Status) bool { return len(s.Edge.DSR) == 0 }))
}

// node4and6 are the addresses of a node.
type node4and6 struct{ v4, v6 string }
