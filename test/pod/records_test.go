// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/conntrack/kernelct"
	shortcut "beeline.io/beeline/internal/shortcut/pod"
	"beeline.io/beeline/test/lab"
)

// Records of flows end with their connections; those of connections that nobody answers, and of single datagrams, do
// not evict established ones.
func TestRecordsOfFlows(t *testing.T) {
	w := startWorld(t, lab.Shape{})
	bpffs := w.agents["node-a"].BPFFS()
	count := func(name string, protocol uint8) (n int) {
		for key := range table[bpf.PodTuple, shortcut.FlowRecord](w, bpffs, name) {
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
		return count(bpf.PodMapPodEstablished, unix.IPPROTO_TCP)+count(bpf.PodMapPodOpening, unix.IPPROTO_TCP) == 0
	})
	if n := count(bpf.PodMapPodEstablished, unix.IPPROTO_UDP); n > 0 {
		t.Errorf("%d single datagrams with a reply count as established flows", n)
	}
	flow := w.openFlow("a1", "a2", "tcp", 0, false, idle)
	w.eventually("the connection is established", func() bool { return count(bpf.PodMapPodEstablished, unix.IPPROTO_TCP) == 1 })
	// An address of the other node that no pod has.
	for range 200 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		if conn, err := w.Host("a1").Dial(ctx, "tcp", netip.AddrPortFrom(netip.MustParseAddr("10.10.2.99"), 9).String()); err == nil {
			conn.Close()
		}
		cancel()
	}
	if n := count(bpf.PodMapPodOpening, unix.IPPROTO_TCP); n < 100 {
		t.Errorf("%d of 200 connections that nobody answers have a record: the test proves nothing", n)
	}
	if n := count(bpf.PodMapPodEstablished, unix.IPPROTO_TCP); n != 1 {
		t.Errorf("%d connections count as established, want 1", n)
	}
	flow.near.Close()
	flow.far.Close()
	w.eventually("its record ends", func() bool { return count(bpf.PodMapPodEstablished, unix.IPPROTO_TCP) == 0 })
	flow = w.openFlow("a1", "a2", "tcp", 0, false, idle)
	w.eventually("another connection is established", func() bool { return count(bpf.PodMapPodEstablished, unix.IPPROTO_TCP) == 1 })
	w.must(flow.near.(*net.TCPConn).SetLinger(0)) // Close resets it
	flow.near.Close()
	w.eventually("its record ends", func() bool { return count(bpf.PodMapPodEstablished, unix.IPPROTO_TCP) == 0 })
}

// The next flow between the ports of one that is over has its own record: after 120 seconds without a datagram, as in
// conntrack, or a SYN, if it is opened in the other direction.
func TestRecordsOfReusedPorts(t *testing.T) {
	w := startWorld(t, lab.Shape{})
	bpffs := w.agents["node-a"].BPFFS()
	records := func(name string) map[bpf.PodTuple]shortcut.FlowRecord {
		return table[bpf.PodTuple, shortcut.FlowRecord](w, bpffs, name)
	}
	put := func(name string, key bpf.PodTuple, record shortcut.FlowRecord) {
		m, err := ebpf.LoadPinnedMap(bpf.TablePath(bpffs, name), nil)
		w.must(err)
		defer m.Close()
		w.must(m.Put(key, record))
	}
	var record shortcut.FlowRecord
	for _, name := range []string{bpf.PodMapPodOpening, bpf.PodMapPodEstablished} {
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
			_, ok := records(bpf.PodMapPodOpening)[reply]
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
	put(bpf.PodMapPodEstablished, old, record)
	conn, err := w.Host("a2").DialWith(t.Context(), lab.DialOptions{Local: from}, "tcp", listener.Addr().String())
	w.must(err)
	defer conn.Close()
	w.eventually("a SYN replaces the record of an older connection", func() bool {
		_, err := conn.Write([]byte("hello"))
		w.must(err)
		all := records(bpf.PodMapPodEstablished)
		_, is := all[opened]
		_, was := all[old]
		return is && !was
	})
}

// recordKeys returns the keys of the records of a flow from one end, and from the other.
func recordKeys(protocol uint8, from, to net.Addr) (flow, reply bpf.PodTuple) {
	a, b := addrPortOf(from), addrPortOf(to)
	return shortcut.TupleOf(kernelct.Flow{Source: a, Destination: b, Protocol: protocol}), shortcut.TupleOf(kernelct.Flow{Source: b, Destination: a, Protocol: protocol})
}
