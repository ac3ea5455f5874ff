// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/conntrack/kernelct"
)

// An openFlow is an open flow between two pods. One end sends.
type openFlow struct {
	name      string
	near, far net.Conn // near has opened it
	upload    bool     // near sends
	idle      bool     // it sends only when poked
	poke      chan struct{}
	stop      chan struct{}
	sent      sync.WaitGroup
	ended     chan error   // of the receiver
	received  atomic.Int64 // how often data was received
	stall     atomic.Int64 // the longest time between two, in nanoseconds
}

// openFlows opens flows of a1 to pods of both nodes, and of these to a1: in both families, by TCP and UDP, with data
// in either direction.
func (w *world) openFlows() (all []*openFlow) {
	w.t.Helper()
	for _, pair := range [][2]string{{"a1", "a2"}, {"a2", "a1"}, {"a1", "b1"}, {"b1", "a1"}} {
		for family := range 2 {
			for _, network := range []string{"tcp", "udp"} {
				for _, upload := range []bool{true, false} {
					for _, pause := range []time.Duration{2 * time.Millisecond, 50 * time.Millisecond, idle} {
						all = append(all, w.openFlow(pair[0], pair[1], network, family, upload, pause))
					}
				}
			}
		}
	}
	time.Sleep(3 * time.Second) // UDP flows last then
	return all
}

// idle is the pause of a flow that sends only when poked.
const idle = time.Hour

func (w *world) openFlow(from, to, network string, family int, upload bool, pause time.Duration) *openFlow {
	w.t.Helper()
	f := &openFlow{
		name:   fmt.Sprintf("%s of %s to %s, IPv%d, upload %t, every %v", network, from, to, 4+2*family, upload, pause),
		upload: upload, idle: pause == idle, poke: make(chan struct{}, 1), stop: make(chan struct{}), ended: make(chan error, 1),
	}
	address := netip.AddrPortFrom(addresses(w.Host(to), 0)[family].Addr(), 0).String()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if network == "tcp" {
		listener, err := w.Host(to).Listen("tcp", address)
		w.must(err)
		defer listener.Close()
		f.near, err = w.Host(from).Dial(ctx, "tcp", listener.Addr().String())
		w.must(err)
		f.far, err = listener.Accept()
		w.must(err)
	} else {
		far, err := w.Host(to).ListenPacket("udp", address)
		w.must(err)
		f.near, err = w.Host(from).Dial(ctx, "udp", far.LocalAddr().String())
		w.must(err)
		f.far = w.introduce(f.near, far)
	}
	w.t.Cleanup(func() { f.near.Close(); f.far.Close() })
	sender, receiver := f.far, f.near
	if upload {
		sender, receiver = f.near, f.far
	}
	size := 200
	if network == "tcp" && pause < 10*time.Millisecond {
		size = 100 << 10 // more than a window that is not scaled
	}
	f.sent.Go(func() { f.send(sender, size, pause) })
	go f.receive(receiver)
	return f
}

// introduce exchanges a datagram, so that the far end knows its peer.
func (w *world) introduce(near net.Conn, far net.PacketConn) net.Conn {
	w.t.Helper()
	b := make([]byte, 100)
	_, err := near.Write([]byte("first"))
	w.must(err)
	_, peer, err := far.ReadFrom(b)
	w.must(err)
	_, err = far.WriteTo([]byte("second"), peer)
	w.must(err)
	_, err = near.Read(b)
	w.must(err)
	return &connected{far, peer}
}

// connected is an unconnected UDP socket with one peer.
type connected struct {
	net.PacketConn
	peer net.Addr
}

func (c *connected) Read(b []byte) (int, error)  { n, _, err := c.ReadFrom(b); return n, err }
func (c *connected) Write(b []byte) (int, error) { return c.WriteTo(b, c.peer) }
func (c *connected) RemoteAddr() net.Addr        { return c.peer }

// send sends until the flow is stopped, and closes its direction.
func (f *openFlow) send(c net.Conn, size int, pause time.Duration) {
	b := make([]byte, size)
	for {
		select {
		case <-f.stop:
			if tcp, ok := c.(*net.TCPConn); ok {
				tcp.CloseWrite()
			}
			return
		case <-f.poke:
		case <-time.After(pause):
		}
		if _, err := c.Write(b); err != nil {
			return // the receiver misses it
		}
	}
}

func (f *openFlow) receive(c net.Conn) {
	b, last := make([]byte, 64<<10), time.Now()
	for {
		_, err := c.Read(b)
		if err != nil {
			f.ended <- err
			return
		}
		if !f.idle {
			f.stall.Store(max(f.stall.Load(), int64(time.Since(last))))
		}
		last = time.Now()
		f.received.Add(1)
	}
}

// wantAlive checks that all flows carry data, and have not stood still since the last call.
func (w *world) wantAlive(flows []*openFlow, when string) {
	w.t.Helper()
	time.Sleep(soon)
	begin, before := time.Now(), map[*openFlow]int64{}
	for _, f := range flows {
		before[f] = f.received.Load()
		if f.idle {
			f.poke <- struct{}{}
		}
	}
	longest := time.Duration(0)
	for _, f := range flows {
		for f.received.Load() == before[f] && time.Since(begin) < longestStall {
			time.Sleep(time.Millisecond)
		}
		stall := time.Duration(f.stall.Swap(0))
		longest = max(longest, stall)
		switch {
		case f.received.Load() == before[f]:
			w.t.Errorf("%s: %s carries no data", when, f.name)
		case stall > longestStall:
			w.t.Errorf("%s: %s stood still for %v", when, f.name, stall)
		}
	}
	w.t.Logf("%s: the longest stall was %v", when, longest)
}

// finishFlows closes all flows, and checks that the end of each stream arrives.
func (w *world) finishFlows(flows []*openFlow) {
	w.t.Helper()
	for _, f := range flows {
		close(f.stop)
	}
	late := time.After(longestStall)
	for _, f := range flows {
		f.sent.Wait()
		if _, ok := f.near.(*net.TCPConn); !ok {
			continue
		}
		select {
		case err := <-f.ended:
			if err != io.EOF {
				w.t.Errorf("%s ended by %v", f.name, err)
			}
		case <-late:
			w.t.Fatalf("%s does not end", f.name)
		}
	}
}

// wantOnShortcut and wantOnStack check which flows node-a's conntrack has.
func (w *world) wantOnShortcut(flows []*openFlow) { w.t.Helper(); w.wantTracked(flows, false) }
func (w *world) wantOnStack(flows []*openFlow)    { w.t.Helper(); w.wantTracked(flows, true) }

func (w *world) wantTracked(flows []*openFlow, want bool) {
	w.t.Helper()
	w.must(w.Host("node-a").Do(func() error {
		kernel, err := kernelct.Open()
		if err != nil {
			return err
		}
		defer kernel.Close()
		for _, f := range flows {
			one := kernelct.Flow{Source: addrPortOf(f.near.LocalAddr()), Destination: addrPortOf(f.near.RemoteAddr()), Protocol: unix.IPPROTO_TCP}
			if _, ok := f.near.(*net.TCPConn); !ok {
				one.Protocol = unix.IPPROTO_UDP
			}
			tracked, err := kernel.AreOpen([]kernelct.Flow{one})
			if err != nil {
				return err
			}
			if tracked[0] != want {
				w.t.Errorf("conntrack has %s: %t; want %t", f.name, tracked[0], want)
			}
		}
		return nil
	}))
}

func addrPortOf(a net.Addr) netip.AddrPort {
	at := netip.MustParseAddrPort(a.String())
	return netip.AddrPortFrom(at.Addr().Unmap(), at.Port())
}
