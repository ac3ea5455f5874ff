// SPDX-License-Identifier: Apache-2.0

package offload

import (
	"net"
	"testing"
	"time"
)

// agentEnds is about flows without their agent. It comes last: cleanup removes flow offload.
func agentEnds(w *world) {
	w.sysctl("router", "netfilter/nf_conntrack_udp_timeout=120", "netfilter/nf_conntrack_udp_timeout_stream=120", "netfilter/nf_conntrack_tcp_timeout_established=1000")
	if *stack {
		w.t.Skip("about agents")
	}
	w.t.Run("killed and started again", func(t *testing.T) { w.in(t).killed() })
	w.wantNoneInvalid()
	w.t.Run("stopped", func(t *testing.T) { w.in(t).stopped() })
	w.wantNoneInvalid()
	w.t.Run("cleanup", func(t *testing.T) { w.in(t).cleanup() })
	w.wantNoneInvalid()
}

// killed kills the agent under flows that transfer data, and starts it again.
func (w *world) killed() {
	w.t.Helper()
	all := w.everyFlow()
	ended := make(chan error, len(all))
	stop := make(chan struct{})
	for _, f := range all {
		go func() { ended <- f.until(stop) }()
	}
	w.must(w.agent.Kill())
	time.Sleep(soon / 4)
	w.must(w.agent.Start())
	time.Sleep(soon / 4)
	close(stop)
	for range all {
		if err := <-ended; err != nil {
			w.t.Error(err)
		}
	}
	for _, f := range all {
		f.settle()
	}
}

// until exchanges requests until it is stopped. None of them gets lost.
func (f *flow) until(stop chan struct{}) error {
	for {
		select {
		case <-stop:
			return nil
		default:
			if err := f.exchange(10); err != nil {
				return err
			}
		}
	}
}

// stopped has the agent end. The programs stay, and flows still notice changes.
func (w *world) stopped() {
	w.t.Helper()
	all := w.everyFlow()
	w.must(w.agent.Stop())
	for _, f := range all {
		f.settle()
	}
	w.setMAC("server", "eth0", net.HardwareAddr{2, 0, 0, 0, 9, 4})
	for _, f := range all {
		f.continues(soon * load)
	}
	w.routeTargets(networkServer1)
	for _, f := range all {
		switch {
		case f.kind.host == 2:
			f.continues(soon * load)
			w.wantDevice(f, "eth1")
		case f.network == "udp":
			// The kernel ends masqueraded flows that leave by another device.
			f.continues(soon * load)
			if want := f.family.address(networkServer1, 1); f.peer().Addr() != want {
				w.t.Errorf("%s: the server sees %s, want %s", f, f.peer(), want)
			}
		}
	}
	w.routeTargets(networkServer)
	f := w.open("tcp", both, 0)
	w.must(f.exchange(100))
	f.forget()
	f.stops()
	f.abort()
	w.nft("reset counter inet kube invalid") // these were
}

// cleanup removes flow offload under flows.
func (w *world) cleanup() {
	w.t.Helper()
	w.must(w.agent.Start())
	all := w.everyFlow()
	w.must(w.agent.Stop())
	_, err := w.agent.CLI("cleanup")
	w.must(err)
	for _, f := range all {
		w.must(f.exchange(20))
		f.wantStack()
	}
	if left := w.run("router", "tc", "filter", "show", "dev", "c0", "ingress") + w.run("router", "tc", "filter", "show", "dev", "c0", "egress"); left != "" {
		w.t.Errorf("programs are left at c0: %s", left)
	}
}
