// SPDX-License-Identifier: Apache-2.0

package offload

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/api"
)

// transfers is about flows whose way does not change: they arrive complete, with each kind of NAT.
func transfers(w *world) {
	for _, f := range families {
		for _, k := range kinds {
			w.t.Run(fmt.Sprintf("%s, %s", k.name, f), func(t *testing.T) {
				t.Parallel()
				w := w.in(t)
				w.connections(networkClient, k, f)
				w.datagrams(networkClient, k, f)
			})
		}
	}
}

// connections sends 50 MiB each way where both ends are translated, less otherwise, and ends connections by FIN
// and by RST.
func (w *world) connections(from int, k kind, of family) {
	w.t.Helper()
	f := w.openFrom(from, "tcp", k, of)
	f.settle()
	blocks := 80
	if k == both {
		blocks = 800
	}
	before := w.onStack(f.port)
	w.must(f.transfer(blocks))
	// A packet of the stack has at most 64 KiB, so there would be twice as many without acknowledgements.
	seen := w.onStack(f.port) - before
	if !*stack && seen > uint64(blocks)/4 {
		w.t.Errorf("%s: the stack has forwarded %d packets of 2 * %d blocks", f, seen, blocks)
	}
	f.wantBytes(uint64(blocks)<<16, seen)
	if got := f.near.RemoteAddr().(*net.TCPAddr).AddrPort(); got != f.target() {
		w.t.Errorf("%s: the client's peer is %s, want %s", f, got, f.target())
	}
	f.finish()
	f = w.openFrom(from, "tcp", k, of)
	f.settle()
	f.reset()
	w.wantNoneInvalid()
}

// wantBytes checks the counters of a flow that has sent so many bytes, and has got them back: they are more by the
// headers, and less by the packets that the stack has forwarded, of 64 KiB at most.
func (f *flow) wantBytes(payload, onStack uint64) {
	f.w.t.Helper()
	if *stack {
		return
	}
	least := payload - min(payload, onStack<<16)
	shown := f.shown()
	if s := shown; s.Client.Addr() != f.family.address(f.from, 2) || s.Address != f.target() || s.SeenAs != f.peer() {
		f.w.t.Errorf("%s: flow offload says %+v", f, s)
	}
	if state := shown.State; f.network == "tcp" && state != "ESTABLISHED" || f.network == "udp" && state != "ASSURED" && state != "REPLIED" {
		f.w.t.Errorf("%s: its state is %q", f, state)
	}
	for name, d := range map[string]api.FlowDirection{"sent": shown.FromClient, "received": shown.ToClient} {
		if d.Path != f.w.path || d.Bytes < least || d.Bytes > payload+payload/10 || d.Packets == 0 {
			f.w.t.Errorf("%s: %s %+v of %d bytes and headers, with %d packets on the stack", f, name, d, payload, onStack)
		}
	}
}

// shown is the flow as flow offload lists it.
func (f *flow) shown() api.OffloadFlow {
	f.w.t.Helper()
	var all []api.OffloadFlow
	f.w.must(api.NewClient(f.w.agent.Socket()).Get(context.Background(), api.OffloadFlowsPath, &all))
	i := slices.IndexFunc(all, func(s api.OffloadFlow) bool { return s.Backend == f.server() && s.Protocol == f.network })
	if i < 0 {
		f.w.t.Fatalf("%s: not among %d flows of flow offload", f, len(all))
	}
	return all[i]
}

// finish closes one direction, sends in the other, and closes that. Conntrack follows.
func (f *flow) finish() {
	f.w.t.Helper()
	f.w.must(f.near.(*net.TCPConn).CloseWrite())
	f.w.must(f.near.SetReadDeadline(time.Now().Add(patience / 6)))
	if n, err := f.near.Read(make([]byte, 1)); n > 0 || !errors.Is(err, io.EOF) {
		f.w.t.Errorf("%s: after both FINs: %d bytes, %v", f, n, err)
	}
	if err := <-f.tcp.ended; err != nil {
		f.w.t.Errorf("%s: the server ended with %v", f, err)
	}
	f.wantClosed()
}

// reset aborts the connection.
func (f *flow) reset() {
	f.w.t.Helper()
	f.w.must(f.near.(*net.TCPConn).SetLinger(0))
	f.w.must(f.near.Close())
	select {
	case err := <-f.tcp.ended:
		if !errors.Is(err, unix.ECONNRESET) {
			f.w.t.Errorf("%s: the server ended with %v, want a reset", f, err)
		}
	case <-time.After(soon * load):
		f.w.t.Errorf("%s: the server has not got the reset", f)
	}
	if f.w.path == api.PathCache { // for the kernel's own flowtable the number of the RST is too far ahead
		f.wantClosed()
	}
}

// abort ends both sockets of a connection at once, so that neither sends again. One may have ended by
// the other's reset.
func (f *flow) abort() {
	f.w.t.Helper()
	for _, c := range []*net.TCPConn{f.near.(*net.TCPConn), f.tcp.conn()} {
		if err := errors.Join(c.SetLinger(0), c.Close()); err != nil && !errors.Is(err, net.ErrClosed) {
			f.w.t.Fatal(err)
		}
	}
}

// wantClosed checks that conntrack knows the end of the connection.
func (f *flow) wantClosed() {
	f.w.t.Helper()
	f.w.within(soon*load, fmt.Sprintf("%s: conntrack knows that it has ended", f), func() bool {
		s := f.state()
		return s == 0 || s > stateEstablished
	})
}

// datagrams checks sizes, fragments, the TTL and the answer of a host whose port is closed.
func (w *world) datagrams(from int, k kind, of family) {
	w.t.Helper()
	f := w.openFrom(from, "udp", k, of)
	f.settle()
	peer := f.peer()
	// The last two are fragmented by the sender.
	for _, size := range []int{8, 9, 511, 1400, 4000, 64, 20001, 64} {
		w.within(2*soon*load, fmt.Sprintf("%s: %d bytes come back", f, size), func() bool {
			return f.request(size, soon/2) == nil // the server may have to learn the MTU of a path
		})
	}
	f.settle()
	if ttl := f.udp.ttl.Load(); ttl != 63 {
		w.t.Errorf("%s: the TTL of datagrams is %d at the server, want 63", f, ttl)
	}
	if f.peer() != peer {
		w.t.Errorf("%s: the client is %s to the server, and was %s", f, f.peer(), peer)
	}
	w.must(f.udp.conn.Close())
	w.within(soon*load, fmt.Sprintf("%s: a request to a closed port gives %v", f, unix.ECONNREFUSED), func() bool {
		return errors.Is(f.request(64, soon/4), unix.ECONNREFUSED)
	})
}
