// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"net"
	"net/netip"
	"testing"

	"github.com/ti-mo/conntrack"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/test/lab"
)

// A connection on the stack that is over does not keep the next one with its ports there: conntrack forgets it after
// two minutes only, and busy clients use their ports again sooner.
func TestReopenedConnections(t *testing.T) {
	w := newWorld(t, lab.Shape{}, "--pod-devices=auto")
	w.run("a1", "sysctl", "-w", "net.ipv4.tcp_tw_reuse=1")
	w.run("node-a", "sysctl", "-w", "net.netfilter.nf_conntrack_tcp_timeout_close=300")
	type connection struct {
		name     string
		from, to netip.AddrPort
		reset    bool
		state    uint8 // in conntrack, when it is over
	}
	var all []connection
	port := uint16(20000)
	for _, end := range []string{"a2", "b2"} {
		for i, to := range addresses(w.Host(end), lab.PortTCP) {
			from := addresses(w.Host("a1"), 0)[i].Addr()
			all = append(all,
				connection{"closed, to " + to.String(), netip.AddrPortFrom(from, port), to, false, 7},
				connection{"reset, to " + to.String(), netip.AddrPortFrom(from, port+1), to, true, 8})
			port += 2
		}
	}
	open := func(c connection) *net.TCPConn {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		conn, err := w.Host("a1").DialWith(ctx, lab.DialOptions{Local: c.from, Control: func(fd int) error {
			return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
		}}, "tcp", c.to.String())
		w.must(err)
		if _, err := lab.Ask(ctx, conn, "hello"); err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		return conn.(*net.TCPConn)
	}
	// state returns that of the entry in node-a's conntrack; 0: there is none.
	state := func(c connection) (state uint8) {
		t.Helper()
		w.must(w.Host("node-a").Do(func() error {
			kernel, err := conntrack.Dial(nil)
			if err != nil {
				return err
			}
			defer kernel.Close()
			e, err := kernel.Get(conntrack.Flow{TupleOrig: conntrack.Tuple{
				IP:    conntrack.IPTuple{SourceAddress: c.from.Addr(), DestinationAddress: c.to.Addr()},
				Proto: conntrack.ProtoTuple{Protocol: unix.IPPROTO_TCP, SourcePort: c.from.Port(), DestinationPort: c.to.Port()},
			}})
			if err == nil && e.ProtoInfo.TCP != nil {
				state = e.ProtoInfo.TCP.State
			}
			return nil
		}))
		return state
	}
	for _, c := range all {
		conn := open(c)
		if c.reset {
			w.must(conn.SetLinger(0))
		} else {
			w.must(conn.CloseWrite())
			_, err := conn.Read(make([]byte, 1)) // the server closes, too
			if err == nil {
				t.Fatalf("%s: the server sent more", c.name)
			}
		}
		conn.Close()
		w.eventually(c.name+": over in conntrack", func() bool { return state(c) == c.state })
	}
	for _, a := range w.agents {
		w.must(a.Start())
	}
	w.awaitAllPods()
	for _, c := range all {
		if got := state(c); got != c.state {
			t.Errorf("%s: state %d in conntrack before it is opened again, want %d", c.name, got, c.state)
		}
		conn := open(c)
		if got := state(c); got != 0 {
			t.Errorf("%s: the next connection is on the stack: state %d in conntrack", c.name, got)
		}
		conn.Close()
	}
	if n := w.invalid("node-a"); n > 0 {
		t.Errorf("%d packets were invalid", n)
	}
}
