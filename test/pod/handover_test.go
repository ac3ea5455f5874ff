// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/datapath"
	"beeline.io/beeline/internal/kernelct"
	"beeline.io/beeline/test/lab"
)

// longestStall is how long an open connection may stand still on a busy machine when its path changes. What is not
// handed over stands still for good.
const longestStall = 2 * time.Second

// denyIngress is what a NetworkPolicy without rules does to a1: connections that are open go on, others to it are
// denied.
const denyIngress = `table inet np {
	chain forward {
		type filter hook forward priority 1; policy accept;
		ct state established,related accept
		ct state invalid drop
		ip daddr 10.10.1.11 drop
		ip6 daddr fd00:10:1::11 drop
	}
}`

// A policy that allows open connections does not end or stall them, when its pod leaves the shortcut and when it
// returns: whoever opened them and whoever sends, also if conntrack picks up no connections and drops what is invalid.
// New connections are denied.
func TestPolicyKeepsConnections(t *testing.T) {
	for _, layout := range []lab.PodLayout{lab.PodsRouted, lab.PodsBridge} {
		t.Run(string(layout), func(t *testing.T) {
			w := startWorld(t, lab.Shape{Pods: layout})
			w.noPickup()
			flows := w.openFlows()
			w.wantOnShortcut(flows)

			w.rules("node-a", denyIngress)
			w.awaitWithheld("a1")
			w.wantAlive(flows, "withheld")
			w.wantDenied("b1", "a1")
			w.wantOnStack(flows)

			w.run("node-a", "nft", "delete", "table", "inet", "np")
			w.awaitFilters(nil)
			w.wantAlive(flows, "returned")
			w.wantOnShortcut(flows)
			w.finishFlows(flows)
			if n := w.invalid("node-a") + w.invalid("node-b"); n > 0 {
				t.Errorf("%d packets were dropped as invalid", n)
			}
		})
	}
}

// Flows that were handed over return although the agent has restarted meanwhile.
func TestFlowsReturnAfterRestart(t *testing.T) {
	w := startWorld(t, lab.Shape{})
	w.noPickup()
	flows := w.openFlows()
	w.wantOnShortcut(flows)
	w.rules("node-a", denyIngress)
	w.awaitWithheld("a1")
	w.wantOnStack(flows)
	w.must(w.agents["node-a"].Stop())
	w.must(w.agents["node-a"].Start())
	w.awaitWithheld("a1")
	w.wantAlive(flows, "after the restart")
	w.wantOnStack(flows)
	w.run("node-a", "nft", "delete", "table", "inet", "np")
	w.awaitFilters(nil)
	w.wantAlive(flows, "returned")
	w.wantOnShortcut(flows)
	w.finishFlows(flows)
	if n := w.invalid("node-a") + w.invalid("node-b"); n > 0 {
		t.Errorf("%d packets were dropped as invalid", n)
	}
}

// The same for connections of clients outside through a Service, and of a pod without socket hooks: with an agent,
// without one, and when the shortcut is switched off.
func TestPolicyKeepsServiceFlows(t *testing.T) {
	for _, test := range []struct {
		name string
		path func(w *world)
	}{
		{"withheld", func(w *world) {
			w.rules("node-a", denyIngress)
			w.awaitWithheld("a1")
		}},
		{"agent killed", func(w *world) {
			w.must(w.agents["node-a"].Kill())
			w.rules("node-a", denyIngress)
			time.Sleep(filterAge + soon)
		}},
		{"cleanup", func(w *world) {
			w.must(w.agents["node-a"].Stop())
			w.rules("node-a", denyIngress)
			w.must(w.endLease())
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := startWorld(t, lab.Shape{}, "--pod-filter-age="+filterAge.String())
			w.optOut("a3")
			w.apply("web", w.web("a1")...)
			w.noPickup()
			asks := w.openToService("client", "a3")
			w.wantAnswers(asks, "on the shortcut")
			test.path(w)
			w.wantAnswers(asks, "afterwards")
			for _, to := range addresses(w.Host("node-a"), nodePort) {
				for _, network := range []string{"tcp", "udp"} {
					ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
					if answer, err := w.Host("client").Request(ctx, network, to.String(), "hello"); err == nil {
						t.Errorf("a new %s connection to %s is answered by %s", network, to, answer.Pod)
					}
					cancel()
				}
			}
		})
	}
}

// endLease does what cleanup does before it detaches the programs: afterwards the edge would serve nobody.
func (w *world) endLease() error {
	return w.Host("node-a").Do(func() error { return datapath.EndPodShortcut(w.agents["node-a"].BPFFS()) })
}

// openToService opens connections to a Service at node-a.
func (w *world) openToService(from ...string) map[string]net.Conn {
	w.t.Helper()
	all := map[string]net.Conn{}
	for _, host := range from {
		for _, to := range addresses(w.Host("node-a"), nodePort) {
			for _, network := range []string{"tcp", "udp"} {
				conn, err := w.Host(host).Dial(w.t.Context(), network, to.String())
				w.must(err)
				w.t.Cleanup(func() { conn.Close() })
				all[fmt.Sprintf("%s of %s to %s", network, host, to)] = conn
			}
		}
	}
	return all
}

func (w *world) wantAnswers(all map[string]net.Conn, when string) {
	w.t.Helper()
	for name, conn := range all {
		ctx, cancel := context.WithTimeout(w.t.Context(), longestStall)
		if _, err := lab.Ask(ctx, conn, "hello"); err != nil {
			w.t.Errorf("%s: %s: %v", when, name, err)
		}
		cancel()
	}
}

// The same without an agent: a policy has its effect on new connections when the lease has ended, and open ones go on,
// with ICMP errors about them.
func TestPolicyKeepsConnectionsWithoutAgent(t *testing.T) {
	for _, test := range []struct {
		name        string
		end, resume func(w *world)
	}{
		{"agent killed", func(w *world) { w.must(w.agents["node-a"].Kill()) }, func(w *world) { w.must(w.agents["node-a"].Start()) }},
		{"agent stopped", func(w *world) { w.signal("node-a", syscall.SIGSTOP) }, func(w *world) { w.signal("node-a", syscall.SIGCONT) }},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := startWorld(t, lab.Shape{}, "--pod-filter-age="+filterAge.String())
			w.noPickup()
			single := w.openFlow("a1", "a2", "udp", 0, true, idle)
			flows := w.openFlows()
			test.end(w)
			w.rules("node-a", denyIngress)
			time.Sleep(filterAge + soon)
			w.wantDenied("b1", "a1")
			w.wantAlive(flows, "without an agent")
			single.far.Close()
			w.eventually("an ICMP error about an open flow arrives", func() bool {
				_, err := single.near.Write([]byte("hello"))
				return errors.Is(err, unix.ECONNREFUSED)
			})

			test.resume(w)
			w.awaitWithheld("a1")
			w.wantAlive(flows, "withheld")
			w.wantDenied("b1", "a1")
			w.wantOnStack(flows)
			w.run("node-a", "nft", "delete", "table", "inet", "np")
			w.awaitFilters(nil)
			w.wantAlive(flows, "returned")
			w.wantOnShortcut(flows)
			w.finishFlows(flows)
		})
	}
}

// The same when the shortcut is switched off: by cleanup, by other patterns of devices, and by --pod-devices=off.
func TestSwitchingOffKeepsConnections(t *testing.T) {
	for _, test := range []struct {
		name string
		off  func(w *world)
	}{
		{"cleanup", func(w *world) {
			_, err := w.agents["node-a"].CLI("cleanup")
			w.must(err)
		}},
		{"other devices", func(w *world) { w.startWith("--pod-devices=none*") }},
		{"off", func(w *world) { w.startWith("--pod-devices=off") }},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := startWorld(t, lab.Shape{})
			w.noPickup()
			flows := w.openFlows()
			w.wantOnShortcut(flows)
			w.must(w.agents["node-a"].Stop())
			w.rules("node-a", denyIngress)
			test.off(w)
			w.wantAlive(flows, "switched off")
			w.wantDenied("b1", "a1")
			w.finishFlows(flows)
		})
	}
}

// startWith starts node-a's agent with another --pod-devices.
func (w *world) startWith(devices string) {
	w.t.Helper()
	a := w.agents["node-a"]
	a.Flags = []string{devices}
	w.must(a.Start())
}

// noPickup has conntrack of both nodes find connections invalid whose beginning it has not seen.
func (w *world) noPickup() {
	w.t.Helper()
	for host := range w.agents {
		w.run(host, "sysctl", "-q", "-w", "net.netfilter.nf_conntrack_tcp_loose=0")
	}
}

// awaitWithheld waits until a pod takes the stack because of a filter.
func (w *world) awaitWithheld(pod string) {
	w.t.Helper()
	w.eventually(pod+" is withheld", func() bool {
		for _, d := range w.pods("node-a").Devices {
			if d.Name == pod && !d.Shortcut {
				return true
			}
		}
		return false
	})
}

// wantDenied checks that a new connection is denied.
func (w *world) wantDenied(from, to string) {
	w.t.Helper()
	for network, port := range map[string]uint16{"tcp": lab.PortTCP, "udp": lab.PortUDP} {
		for _, addr := range addresses(w.Host(to), port) {
			ctx, cancel := context.WithTimeout(w.t.Context(), 300*time.Millisecond)
			if answer, err := w.Host(from).Request(ctx, network, addr.String(), "hello"); err == nil {
				w.t.Errorf("a new %s connection of %s to %s is answered by %s", network, from, addr, answer.Pod)
			}
			cancel()
		}
	}
}

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

// Records of flows end with their connections; those of connections that nobody answers, and of single datagrams, do
// not evict established ones.
func TestRecordsOfFlows(t *testing.T) {
	w := startWorld(t, lab.Shape{})
	bpffs := w.agents["node-a"].BPFFS()
	count := func(name string, protocol uint8) (n int) {
		for key := range table[datapath.PodTuple, datapath.PodRecord](w, bpffs, name) {
			if key.Protocol == protocol {
				n++
			}
		}
		return n
	}
	for range 20 {
		for _, to := range []string{"a2", "b1"} {
			w.reach("a1", to)
			w.reach(to, "a1")
		}
	}
	w.eventually("no record is left of closed connections", func() bool {
		return count(datapath.PodMapPodEstablished, unix.IPPROTO_TCP)+count(datapath.PodMapPodOpening, unix.IPPROTO_TCP) == 0
	})
	if n := count(datapath.PodMapPodEstablished, unix.IPPROTO_UDP); n > 0 {
		t.Errorf("%d single datagrams with a reply count as established flows", n)
	}
	flow := w.openFlow("a1", "a2", "tcp", 0, false, idle)
	w.eventually("the connection is established", func() bool { return count(datapath.PodMapPodEstablished, unix.IPPROTO_TCP) == 1 })
	// An address of the other node that no pod has.
	for range 200 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		if conn, err := w.Host("a1").Dial(ctx, "tcp", netip.AddrPortFrom(netip.MustParseAddr("10.10.2.99"), 9).String()); err == nil {
			conn.Close()
		}
		cancel()
	}
	if n := count(datapath.PodMapPodOpening, unix.IPPROTO_TCP); n < 100 {
		t.Errorf("%d of 200 connections that nobody answers have a record: the test proves nothing", n)
	}
	if n := count(datapath.PodMapPodEstablished, unix.IPPROTO_TCP); n != 1 {
		t.Errorf("%d connections count as established, want 1", n)
	}
	flow.near.Close()
	flow.far.Close()
	w.eventually("its record ends", func() bool { return count(datapath.PodMapPodEstablished, unix.IPPROTO_TCP) == 0 })
	flow = w.openFlow("a1", "a2", "tcp", 0, false, idle)
	w.eventually("another connection is established", func() bool { return count(datapath.PodMapPodEstablished, unix.IPPROTO_TCP) == 1 })
	w.must(flow.near.(*net.TCPConn).SetLinger(0)) // Close resets it
	flow.near.Close()
	w.eventually("its record ends", func() bool { return count(datapath.PodMapPodEstablished, unix.IPPROTO_TCP) == 0 })
}

// The next flow between the ports of one that is over has its own record: after 120 seconds without a datagram, as in
// conntrack, or a SYN, if it is opened in the other direction.
func TestRecordsOfReusedPorts(t *testing.T) {
	w := startWorld(t, lab.Shape{})
	bpffs := w.agents["node-a"].BPFFS()
	records := func(name string) map[datapath.PodTuple]datapath.PodRecord {
		return table[datapath.PodTuple, datapath.PodRecord](w, bpffs, name)
	}
	put := func(name string, key datapath.PodTuple, record datapath.PodRecord) {
		m, err := ebpf.LoadPinnedMap(datapath.TablePath(bpffs, name), nil)
		w.must(err)
		defer m.Close()
		w.must(m.Put(key, record))
	}
	var record datapath.PodRecord
	for _, name := range []string{datapath.PodMapPodOpening, datapath.PodMapPodEstablished} {
		far, err := w.Host("a2").ListenPacket("udp", netip.AddrPortFrom(w.Host("a2").Addr4, 0).String())
		w.must(err)
		defer far.Close()
		near, err := w.Host("a1").Dial(t.Context(), "udp", far.LocalAddr().String())
		w.must(err)
		defer near.Close()
		back := w.introduce(near, far)
		flow, reply := recordKeys(unix.IPPROTO_UDP, near.LocalAddr(), near.RemoteAddr())
		w.eventually("the flow is in "+name, func() (ok bool) {
			if record, ok = records(name)[flow]; !ok {
				near.Write([]byte("again"))
			}
			return ok
		})
		record.Seen -= 121
		put(name, flow, record)
		w.eventually("a datagram opens another flow than the one that has expired in "+name, func() bool {
			_, err := back.Write([]byte("much later"))
			w.must(err)
			_, ok := records(datapath.PodMapPodOpening)[reply]
			return ok
		})
		if _, ok := records(name)[flow]; ok {
			t.Errorf("the flow that has expired is still in %s", name)
		}
	}

	listener, err := w.Host("a1").Listen("tcp", netip.AddrPortFrom(w.Host("a1").Addr4, 0).String())
	w.must(err)
	defer listener.Close()
	from := netip.AddrPortFrom(w.Host("a2").Addr4, 20000)
	opened, old := recordKeys(unix.IPPROTO_TCP, net.TCPAddrFromAddrPort(from), listener.Addr())
	put(datapath.PodMapPodEstablished, old, record)
	conn, err := w.Host("a2").DialWith(t.Context(), lab.DialOptions{Local: from}, "tcp", listener.Addr().String())
	w.must(err)
	defer conn.Close()
	w.eventually("a SYN replaces the record of an older connection", func() bool {
		_, err := conn.Write([]byte("hello"))
		w.must(err)
		all := records(datapath.PodMapPodEstablished)
		_, is := all[opened]
		_, was := all[old]
		return is && !was
	})
}

// recordKeys returns the keys of the records of a flow from one end, and from the other.
func recordKeys(protocol uint8, from, to net.Addr) (flow, reply datapath.PodTuple) {
	a, b := addrPortOf(from), addrPortOf(to)
	return datapath.PodTupleOf(kernelct.Flow{Source: a, Destination: b, Protocol: protocol}), datapath.PodTupleOf(kernelct.Flow{Source: b, Destination: a, Protocol: protocol})
}
