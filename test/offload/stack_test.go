// SPDX-License-Identifier: Apache-2.0

package offload

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/test/lab"
)

// staysOnStack is about packets that only the stack may forward.
func staysOnStack(w *world) {
	for name, port := range map[string]uint16{"excluded port": portExcluded, "conntrack helper": portHelper, "rule with a limit": portLimited} {
		w.t.Run(name, func(t *testing.T) {
			w.in(t).openPort("tcp", dnat, 0, port).wantStack()
		})
	}
	w.t.Run("rule at egress of a device", func(t *testing.T) { w.in(t).egressRule() })
	w.t.Run("TTL of 1", func(t *testing.T) { w.in(t).lastHop() })
	w.t.Run("IP options", func(t *testing.T) { w.in(t).options() })
	w.t.Run("XFRM policies", func(t *testing.T) { w.in(t).xfrmPolicies() })
	for _, f := range families {
		w.t.Run(fmt.Sprintf("short flows, %s", f), func(t *testing.T) { w.in(t).shortFlows(f) })
		w.t.Run(fmt.Sprintf("the same addresses and ports at another device, %s", f), func(t *testing.T) { w.in(t).spoofed(f) })
	}
}

// egressRule has packets of a flow counted where they leave by a device: each has to get there.
func (w *world) egressRule() {
	w.t.Helper()
	f := w.open("udp", dnat, 0)
	w.nft(fmt.Sprintf("table netdev egress { chain s0 { type filter hook egress device s0 priority 0; udp dport %d limit rate 100000/second accept; }; }", f.port))
	defer w.nft("delete table netdev egress")
	time.Sleep(soon)
	f.wantStack()
}

// lastHop sends a datagram that may not go on: its sender hears of it, and the server does not.
func (w *world) lastHop() {
	w.t.Helper()
	f := w.open("udp", dnat, 0)
	f.settle()
	received := f.udp.received.Load()
	w.setOption(f, unix.IP_RECVERR, 1)
	w.setOption(f, unix.IP_TTL, 1)
	if err := f.request(64, patience/6); !errors.Is(err, unix.EHOSTUNREACH) {
		w.t.Errorf("%s: a TTL of 1 gives %v, want %v", f, err, unix.EHOSTUNREACH)
	}
	if n := f.udp.received.Load() - received; n > 0 {
		w.t.Errorf("%s: the server has received it", f)
	}
}

// options sends datagrams with IP options, which the stack forwards, and it forwards no reply. A change of rules by an
// earlier test, which the agent notices late on a busy machine, returns all flows to the stack: hence several tries.
func (w *world) options() {
	w.t.Helper()
	var seen uint64
	for n := range 5 {
		if seen = w.onStackWithOptions(); *stack || seen == threshold {
			if n > 0 {
				w.t.Logf("excused: the flow with IP options was %d times on the stack as a whole", n)
			}
			return
		}
	}
	w.t.Errorf("the stack has forwarded %d packets, want the %d with options", seen, threshold)
}

// onStackWithOptions opens a flow, and returns how many packets the stack forwards of an exchange in which the client's
// have IP options.
func (w *world) onStackWithOptions() uint64 {
	w.t.Helper()
	f := w.open("udp", dnat, 0)
	f.settle()
	raw, err := f.near.(syscall.Conn).SyscallConn()
	w.must(err)
	noOperation := string([]byte{1, 1, 1, 1})
	w.must(raw.Control(func(fd uintptr) { err = unix.SetsockoptString(int(fd), unix.IPPROTO_IP, unix.IP_OPTIONS, noOperation) }))
	w.must(err)
	before := w.onStack(f.port)
	w.must(f.exchange(threshold))
	return w.onStack(f.port) - before
}

// setOption sets an option of IPv4 of the client's socket.
func (w *world) setOption(f *flow, option, value int) {
	w.t.Helper()
	raw, err := f.near.(syscall.Conn).SyscallConn()
	w.must(err)
	w.must(raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, option, value) }))
	w.must(err)
}

// shortFlows have fewer packets in each direction than the threshold.
func (w *world) shortFlows(of family) {
	w.t.Helper()
	const requests = 18 // and the one of open
	for _, network := range []string{"udp", "tcp"} {
		f := w.open(network, both, of)
		w.must(f.exchange(requests - 1))
		if network == "tcp" {
			f.finish()
		}
		if seen := w.onStack(f.port); seen < 2*requests {
			w.t.Errorf("%s: the stack has forwarded %d of at least %d packets", f, seen, 2*requests)
		}
	}
}

// spoofed sends datagrams with the client's address and port into another device, whose packets a rule drops.
func (w *world) spoofed(of family) {
	w.t.Helper()
	f := w.open("udp", plain, of)
	f.settle()
	received := f.udp.received.Load()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	own := netip.MustParseAddrPort(f.near.LocalAddr().String())
	conn, err := w.host("other").DialWith(ctx, lab.DialOptions{Local: own, Control: of.transparent}, "udp", f.target().String())
	w.must(err)
	defer conn.Close()
	before := w.onStack(f.port)
	for range 50 {
		_, err := conn.Write([]byte("spoofed!"))
		w.must(err)
	}
	w.within(soon*load, "the router has received the spoofed datagrams", func() bool { return w.onStack(f.port) >= before+50 })
	time.Sleep(50 * time.Millisecond)
	if n := f.udp.received.Load() - received; n > 0 {
		w.t.Errorf("%s: the server has received %d datagrams from another device", f, n)
	}
	f.settle()
}

// transparent lets a socket have an address of another host.
func (f family) transparent(fd int) error {
	if f == 0 {
		return unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_TRANSPARENT, 1)
	}
	return unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_TRANSPARENT, 1)
}
