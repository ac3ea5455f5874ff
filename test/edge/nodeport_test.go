// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"testing"

	nlconst "github.com/vishvananda/netlink/nl"
)

// R17, R19: a client outside the cluster reaches the NodePort's backends on this node, which see its address,
// and those on another node, which see this node's.
func TestNodePortFromOutside(t *testing.T) {
	for _, mode := range []string{"tc", "xdp"} {
		t.Run(mode, func(t *testing.T) {
			w := borrowWorld(t, "--edge-mode="+mode)
			w.wantMode(mode)
			w.apply("web", objects(w.public("a1", "b1"))...)
			own, client := addresses(w.Host("node-a"), nodePort), addresses(w.Host("client"), 0)
			for i, to := range own {
				for _, network := range []string{"tcp", "udp"} {
					for _, answer := range w.wantServed(network, to, "a1", "b1") {
						want := client[i].Addr()
						if answer.Pod == "b1" {
							want = to.Addr()
						}
						if answer.Peer.Addr() != want {
							t.Errorf("%s to %s: %s sees %s, want %s", network, to, answer.Pod, answer.Peer.Addr(), want)
						}
					}
				}
			}
			w.wantCounted("established", "reply", "new")
			if mode == "xdp" {
				w.wantServedByXDP()
			}
		})
	}
}

// wantMode checks that the edge is attached in this mode at eth0, and nowhere else.
func (w *world) wantMode(mode string) {
	w.t.Helper()
	w.wantDevices("eth0 " + mode + " clients")
}

// wantCounted checks that packets were counted for each of these reasons.
func (w *world) wantCounted(reasons ...string) {
	w.t.Helper()
	counters := w.status().Edge.Counters
	for _, reason := range reasons {
		if counters[reason] == 0 {
			w.t.Errorf("no packet was counted as %s: %v", reason, counters)
		}
	}
}

// wantServedByXDP checks that a driver runs the program, which left next to nothing to tc: only packets before
// the next hop's MAC address was known.
func (w *world) wantServedByXDP() {
	w.t.Helper()
	nl, device, err := w.agent.Host.OpenDevice("eth0")
	w.must(err)
	defer nl.Close()
	if xdp := device.Attrs().Xdp; xdp == nil || xdp.AttachMode != nlconst.XDP_ATTACHED_DRV {
		w.t.Errorf("XDP at eth0: %+v", xdp)
	}
	if c := w.status().Edge.Counters; c["to_tc"]*10 > c["established"] {
		w.t.Errorf("XDP left to tc what it could have sent: %v", c)
	}
}
