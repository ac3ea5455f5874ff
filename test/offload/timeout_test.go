// SPDX-License-Identifier: Apache-2.0

package offload

import (
	"fmt"
	"os"
	"testing"
	"time"
)

// timeout is that of conntrack entries in these cases, in seconds. The kernel's defaults are longer by far. In an
// emulated machine a busy flow may pause for three seconds.
func timeout() int {
	if os.Getenv("BEELINE_OWN_MACHINE") != "" {
		return 10
	}
	return 3
}

// timeouts is about conntrack entries of flows that are short-cut: they live as long as the flow.
func timeouts(w *world) {
	for _, name := range []string{"udp_timeout", "udp_timeout_stream", "tcp_timeout_established"} {
		w.sysctl("router", fmt.Sprintf("netfilter/nf_conntrack_%s=%d", name, timeout()))
	}
	for _, f := range families {
		w.t.Run(fmt.Sprintf("busy, %s", f), func(t *testing.T) {
			t.Parallel()
			w.in(t).busy(f)
		})
		w.t.Run(fmt.Sprintf("idle, %s", f), func(t *testing.T) {
			t.Parallel()
			w.in(t).idle(f)
		})
	}
}

// busy flows keep their entries.
func (w *world) busy(of family) {
	w.t.Helper()
	udp := w.open("udp", both, of)
	udp.settle()
	tcp := w.open("tcp", both, of)
	tcp.settle()
	was, before := udp.peer(), w.onStack(udp.port)+w.onStack(tcp.port)
	for end := time.Now().Add(2*time.Duration(timeout())*time.Second + soon); time.Now().Before(end); time.Sleep(soon / 5) {
		w.must(tcp.exchange(1))
		w.must(udp.exchange(1))
	}
	if udp.peer() != was {
		w.t.Errorf("%s: the conntrack entry expired while the flow was busy", udp)
	}
	if seen := w.onStack(udp.port) + w.onStack(tcp.port) - before; !*stack && seen > 20 {
		w.t.Errorf("the stack has forwarded %d packets of the busy flows", seen)
	}
	tcp.finish()
}

// idle flows end: the router's port is free then, and datagrams to it reach nobody.
func (w *world) idle(of family) {
	w.t.Helper()
	f := w.open("udp", both, of)
	f.settle()
	was := f.peer()
	w.eventually("the conntrack entry expires", func() bool { return len(f.entries()) == 0 })
	_, err := f.udp.conn.WriteToUDPAddrPort([]byte("too late"), was)
	w.must(err)
	w.must(f.near.SetReadDeadline(time.Now().Add(soon / 4)))
	if n, err := f.near.Read(make([]byte, 64)); err == nil {
		w.t.Errorf("%s: the client has received %d bytes by an expired flow", f, n)
	}
	w.must(f.exchange(1))
	if f.peer() == was {
		w.t.Errorf("%s: the router's port is still %s", f, was)
	}
}
