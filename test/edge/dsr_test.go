// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"net/netip"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/test/lab"
	"beeline.io/beeline/test/node"
)

// dsrKinds are the values of --dsr except off.
var dsrKinds = []string{"ipip", "geneve", "opt"}

// threeNodes has a balancer, node-a, and two nodes with nothing but backends.
var threeNodes = lab.Shape{ThreeNodes: true}

// firstEphemeral and lastEphemeral bound the ports that the kernel gives a client. A backend sees another port,
// of --snat-ports outside these, if the client has just used the port for the same backend at another of the
// Service's addresses, and that flow is still in the table.
const firstEphemeral, lastEphemeral = 32768, 60999

// startDSR is a borrowed world with agents on three nodes, in which the fabric routes Services to node-a.
func startDSR(t *testing.T, kind, mode string, flags ...string) *world {
	t.Helper()
	flags = append([]string{"--edge-mode=" + mode, "--dsr=" + kind}, flags...)
	w := borrowWorldOf(t, threeNodes, []string{"node-b", "node-c"}, flags...)
	w.lead()
	return w
}

// dsrVariants are the kinds of DSR with the hook of the balancer.
var dsrVariants = []string{"ipip tc", "ipip xdp", "geneve tc", "opt tc"}

// withEachDSR runs a test for tc and for XDP in a world in which annotations give Services their kind of DSR:
// applyKinds.
func withEachDSR(t *testing.T, flags []string, f func(t *testing.T, w *world)) {
	inModes(t, func(t *testing.T, mode string) { f(t, startDSR(t, "off", mode, flags...)) })
}

// applyKinds applies Services 1, 2 and 3 with one kind of DSR each, in order, all with these pods.
func (w *world) applyKinds(pods ...string) {
	w.t.Helper()
	for i, kind := range dsrKinds {
		w.must(w.folder.Put(kind, w.ofKind(kind, kind, i+1, pods...)...))
	}
	w.await()
}

// ofKind is everywhere for a Service with a kind of DSR.
func (w *world) ofKind(kind, name string, n int, pods ...string) []runtime.Object {
	w.t.Helper()
	s, all := w.everywhere(name, n, pods...)
	s.Annotations = map[string]string{service.AnnotationDSR: kind}
	return objects(s, all)
}

// startAgents starts all agents that are not running, at once, and waits until they are ready.
func (w *world) startAgents() {
	w.t.Helper()
	var started []*node.Agent
	for _, a := range w.agents {
		if !a.Running() {
			w.must(a.StartOnly())
			started = append(started, a)
		}
	}
	for _, a := range started {
		w.must(a.WaitReady())
	}
}

// clientOf is the client's address of a family.
func (w *world) clientOf(family int) netip.Addr { return addresses(w.Host("client"), 0)[family].Addr() }

// external are the kinds of address that are routed to node-a from outside. All but the NodePort, which is
// node-a's, are the same on each node.
var external = []string{"ExternalIP", "LoadBalancer", "ClusterIP", "NodePort"}

// X2, R19: with DSR a backend sees the client's own address, on whichever node it is. Packets to remote
// backends have the chosen encapsulation, and replies go to the client without passing the balancer. A backend
// on the balancer gets packets by DNAT, as without DSR. The backends' port differs from the Service's.
func TestDSRFromOutside(t *testing.T) {
	withEachDSR(t, nil, func(t *testing.T, w *world) {
		pods := []string{"a1", "b1", "c1"}
		w.applyKinds(pods...)
		for i, kind := range dsrKinds {
			t.Run(kind, func(t *testing.T) { w.in(t).wantDSRAt(kind, i+1, pods...) })
		}
		w.wantNoDropsAnywhere()
	})
}

// wantDSRAt checks how pods serve Service n.
func (w *world) wantDSRAt(kind string, n int, pods ...string) {
	w.t.Helper()
	w.eventually("explain shows a packet by DSR, which is not masqueraded", func() bool {
		answer := w.explain(w.clientOf(0).String(), w.address(external[0], n, 0).String()+"/tcp")
		if answer.Encapsulated != nil && slices.Contains(answer.Rules, "R19") {
			w.t.Errorf("%s: %+v", kind, answer)
		}
		return answer.Encapsulated != nil
	})
	seen := w.sightings("client", "node-a", "node-b", "node-c")
	for _, address := range external {
		for family := range 2 {
			for _, network := range []string{"tcp", "udp"} {
				to := w.address(address, n, family)
				served := map[netip.AddrPort]string{} // pods by client
				for _, answer := range w.wantServed(network, to, pods...) {
					if answer.Peer.Addr() != w.clientOf(family) {
						w.t.Errorf("%s to %s: %s sees %s, want the client's %s", network, to, answer.Pod, answer.Peer, w.clientOf(family))
					}
					if port := answer.Peer.Port(); port >= firstEphemeral && port <= lastEphemeral {
						served[answer.Peer] = answer.Pod
					}
				}
				w.wantWay(kind, network, to, served, seen)
			}
		}
	}
}

// wantWay checks that packets of clients that were served by pods had a kind of DSR, and that replies were
// direct.
func (w *world) wantWay(kind, network string, to netip.AddrPort, served map[netip.AddrPort]string, seen func() []sighting) {
	w.t.Helper()
	type count struct{ asked, forwarded, answered int }
	counts := map[netip.AddrPort]*count{}
	for client := range served {
		counts[client] = &count{}
	}
	look := func(s sighting) {
		pod := w.Host(served[s.from])
		switch {
		case s.protocol != network:
		case s.device == "client" && s.to == to && pod != nil:
			counts[s.from].asked++
		case s.from == to && counts[s.to] != nil:
			if host := w.Host(served[s.to]).Node.Name; s.device != host {
				w.t.Errorf("a reply of %s to %s came from %s, want it directly from %s:\n%s", served[s.to], s.to, s.device, host, s)
			}
			counts[s.to].answered++
		// The client may have just used the port at another address.
		case s.device == "node-a" && pod != nil && (s.to == to || s.told == to):
			w.wantEncapsulated(kind, s, to, pod)
			counts[s.from].forwarded++
		case counts[s.to] != nil:
			w.t.Errorf("the client %s got a packet that is no reply from %s:\n%s", s.to, to, s)
		}
	}
	defer func() {
		for client, c := range counts {
			if w.t.Failed() {
				w.t.Logf("%s, served by %s: %+v", client, served[client], *c)
			}
		}
	}()
	// The last packets of a connection may still be in flight.
	w.eventually("all packets to "+to.String()+" have taken their path", func() bool {
		for _, s := range seen() {
			look(s)
		}
		for client, c := range counts {
			here := w.Host(served[client]).Node.Name == "node-a"
			if c.asked == 0 || c.answered == 0 || here != (c.forwarded == 0) {
				return w.t.Failed()
			}
		}
		return true
	})
}

// wantEncapsulated checks that a client's packet to an address left the balancer for a remote pod with a kind
// of DSR.
func (w *world) wantEncapsulated(kind string, s sighting, to netip.AddrPort, pod *lab.Host) {
	w.t.Helper()
	family := 0
	if to.Addr().Is6() {
		family = 1
	}
	balancer, backend := addresses(w.Host("node-a"), 0)[family].Addr(), addresses(pod, lab.PortTCP)[family]
	want := s
	want.kind, want.to = kind, to
	want.outer.from, want.outer.to, want.told = balancer, backend.Addr(), netip.AddrPort{}
	want.hops, want.outerHops = 64-2, 64 // the fabric and the balancer have forwarded it
	switch kind {
	case "geneve":
		want.outer.to, want.told = addresses(pod.Node, 0)[family].Addr(), backend
	case "opt":
		want.outer.from, want.outer.to, want.outerHops = netip.Addr{}, netip.Addr{}, 0
		want.to, want.told = backend, to
	}
	if s != want {
		w.t.Errorf("a packet for %s left the balancer as\n%s\nwant %s", pod.Name, s, want)
	}
}

// forgetFlows flushes all flows on all nodes.
func (w *world) forgetFlows() {
	w.t.Helper()
	for _, a := range w.agents {
		_, err := a.CLI("flow", "flush", "--all")
		w.must(err)
	}
}

// wantNoDropsAnywhere checks that no agent's edge has dropped anything, except for these reasons.
func (w *world) wantNoDropsAnywhere(but ...string) {
	w.t.Helper()
	for _, a := range w.agents {
		s, err := w.statusOf(a)
		w.must(err)
		for reason, n := range s.Edge.Counters {
			if n > 0 && (api.Dropped(reason) || reason == "malformed") && !slices.Contains(but, reason) {
				w.t.Errorf("%s counted %d packets as %s", a.Host.Name, n, reason)
			}
		}
	}
}

// X2, X4: datagrams that DSR makes too long for the path arrive if they may be fragmented, and so do those that
// the client has fragmented itself.
func TestDSRFragments(t *testing.T) {
	withEachDSR(t, nil, func(t *testing.T, w *world) {
		w.echoes("c1")
		w.applyKinds("c1")
		for i := range dsrKinds {
			w.wantEchoed("client", w.address("ExternalIP", i+1, 0), fabricMTU-28, fabricMTU-28-7, fabricMTU-28-19, fabricMTU-28-47, fabricMTU-27, 20_000, 60_000, 100)
		}
		w.wantNoDropsAnywhere()
	})
}
