// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"context"
	"net/netip"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/test/lab"
	"beeline.io/beeline/test/node"
)

// leadTo has the fabric route the external address of Service n to a node.
func (w *world) leadTo(name string, n int) {
	w.t.Helper()
	nl, link, err := w.Host("fabric").OpenDevice(name)
	w.must(err)
	defer nl.Close()
	to := w.Host(name)
	for family, gateway := range []netip.Addr{to.Addr4, to.Addr6} {
		addr := nth(externalRanges[family], n)
		w.must(nl.RouteReplace(&netlink.Route{LinkIndex: link.Attrs().Index, Gw: gateway.AsSlice(),
			Dst: network(netip.PrefixFrom(addr, addr.BitLen()).String())}))
	}
}

// askAll sends Service n requests by UDP from so many addresses and ports, always the same ones, and returns
// who answers each.
func (w *world) askAll(flows, n int) []string {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var pods []string
	for i := range flows {
		family := i % 2
		from := netip.AddrPortFrom(nth(clientRanges[family], 256+i), uint16(20000+i))
		conn, err := w.Host("client").DialWith(ctx, lab.DialOptions{Local: from, Control: anyAddress},
			"udp", w.address("ExternalIP", n, family).String())
		w.must(err)
		answer, err := lab.Ask(ctx, conn, "hello")
		conn.Close()
		w.must(err)
		pods = append(pods, answer.Pod)
	}
	return pods
}

// X3, L3: two nodes send one client's flows to the same backends, though they learned of the backends in
// different orders and neither knows of the other's flows; and when one of six backends is removed, few flows
// of the others move, on either node.
func TestMaglevOnTwoNodes(t *testing.T) {
	inModes(t, func(t *testing.T, mode string) {
		const flows = 120
		all := []string{"a1", "a2", "a3", "b1", "b2", "b3"}
		w := startWorld(t, "--edge-mode="+mode, "--algorithm=maglev", "--maglev-table-size=1021")
		w.lead()
		w.manyClients()
		w.apply("web", objects(w.everywhere("web", 1, "b2", "a3"))...)
		second := w.agentOn("node-b", w.agent.Flags...)
		w.must(second.Start())
		put := func(pods ...string) {
			t.Helper()
			w.apply("web", objects(w.everywhere("web", 1, pods...))...)
		}
		ask := func(name string) []string {
			t.Helper()
			w.leadTo(name, 1)
			return w.askAll(flows, 1)
		}
		put(all...)
		first := ask("node-a")
		met := map[string]int{}
		for _, pod := range first {
			met[pod]++
		}
		if len(met) != len(all) {
			t.Errorf("%d flows are served by %v, want all of %v", flows, met, all)
		}
		for i, pod := range ask("node-b") {
			if pod != first[i] {
				t.Errorf("flow %d is served by %s through node-a and by %s through node-b", i, first[i], pod)
			}
		}

		// Without conntrack entries both choose again.
		put(all[1:]...)
		for _, agent := range []*node.Agent{w.agent, second} {
			_, err := agent.CLI("flow", "flush", "--all")
			w.must(err)
		}
		after := ask("node-b")
		moved := 0
		for i, pod := range after {
			if pod == all[0] || pod != first[i] && first[i] != all[0] {
				moved++
			}
		}
		t.Logf("%d of %d flows had the removed backend; of the others %d have moved", met[all[0]], flows, moved)
		if moved > flows/10 { // without Maglev most would move
			t.Errorf("%d of %d flows moved needlessly", moved, flows-met[all[0]])
		}
		for i, pod := range ask("node-a") {
			if pod != after[i] {
				t.Errorf("with one backend less, flow %d is served by %s through node-a and by %s through node-b", i, pod, after[i])
			}
		}
	})
}

// The command line shows the algorithm and the table's size; the annotation overrides the node's flag, and
// clients are served after a change.
func TestMaglevIsTold(t *testing.T) {
	w := startWorld(t, "--edge-mode=tc", "--maglev-table-size=251")
	w.lead()
	s, all := w.everywhere("web", 1, "a1", "b1")
	for _, test := range []struct{ annotation, show, status string }{
		{"", "algorithm: random", "Services with Maglev tables of 251 slots: 0"},
		{"maglev", "algorithm: maglev, tables of 251 slots", "Services with Maglev tables of 251 slots: 1"},
		{"random", "algorithm: random", "Services with Maglev tables of 251 slots: 0"},
	} {
		if test.annotation != "" {
			s.Annotations = map[string]string{service.AnnotationAlgorithm: test.annotation}
		}
		w.apply("web", objects(s, all)...)
		for args, want := range map[string]string{"service show web": test.show, "status -v": test.status} {
			out, err := w.agent.CLI(strings.Fields(args)...)
			if err != nil || !strings.Contains(out, want) {
				t.Errorf("annotation %q: %s does not say %q (%v):\n%s", test.annotation, args, want, err, out)
			}
		}
		for family := range 2 {
			w.wantServed("tcp", w.address("ExternalIP", 1, family), "a1", "b1")
			w.wantServed("udp", w.address("ExternalIP", 1, family), "a1", "b1")
			w.wantServedAs("b2", "tcp", w.address("ExternalIP", 1, family), "a1", "b1")
		}
	}
}
