// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/bpf"
	shortcut "beeline.io/beeline/internal/shortcut/pod"
	"beeline.io/beeline/test/lab"
)

// P1: bulk data, long datagrams and small MTUs on the shortcut. The cases share a world, and are in an order in which
// what one changes does not disturb the next.
func TestTransfers(t *testing.T) {
	w := startWorld(t, lab.Shape{})
	for _, test := range []struct {
		name string
		run  func(*world)
	}{
		{"50 MB each way, or 16", func(w *world) {
			w.transfers(lengthOf(1600, 500), w.stream("a1", "a2", 0, 0), w.stream("a1", "b1", 1, 0))
		}},
		{"without checksum offload", (*world).withoutOffload},
		{"fragments", (*world).fragments},
		{"slow uplink", (*world).slowUplink},
		{"small MTU of a route", (*world).smallRoute},
		{"small MTU of a pod's device", (*world).smallDevice},
		{"BIG TCP", (*world).bigTCP},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(w.in(t)) })
	}
	if n := w.invalid("node-a") + w.invalid("node-b"); n > 0 {
		t.Errorf("%d packets were dropped as invalid", n)
	}
}

// lengthOf is the length of a transfer, and that with -short.
func lengthOf(full, short int64) int64 {
	if testing.Short() {
		return short
	}
	return full
}

// toBoth are streams between pods of one node and of two, in both families.
func (w *world) toBoth() []*stream {
	w.t.Helper()
	return []*stream{w.stream("a1", "a2", 0, 0), w.stream("a1", "a2", 1, 0), w.stream("a1", "b1", 0, 0), w.stream("a1", "b1", 1, 0)}
}

// transfers waits until streams have carried so many blocks both ways, and checks that the stack saw none of them.
func (w *world) transfers(blocks int64, streams ...*stream) {
	w.t.Helper()
	before, begin := w.counters(), time.Now()
	w.advance(streams, blocks)
	seconds := time.Since(begin).Seconds()
	for _, s := range streams {
		if err := s.finish(); err != nil {
			w.t.Error(err)
		}
	}
	w.t.Logf("%.0f MB/s in all", float64(blocks*2*blockSize*int64(len(streams)))/1e6/seconds)
	for host, now := range w.counters() {
		for _, path := range []string{"stack_route", "stack_kernel_flow", "stack_source", "stack_destination"} {
			// What exceeds the MTU of a pod's device is left to the stack.
			if n := now[path] - before[host][path]; n > 0 && (path != "stack_route" || w.device("node-a", "a2").MTU == 1500) {
				w.t.Errorf("%s: %d packets took %s", host, n, path)
			}
		}
	}
}

// bigTCP has the kernel merge up to 256 KB into a packet, on pods' devices and the uplink.
func (w *world) bigTCP() {
	w.t.Helper()
	const size = 256 << 10
	for host, devices := range map[string][]string{"a1": {"eth0"}, "a2": {"eth0"}, "b1": {"eth0"}, "node-a": {"a1", "a2", "eth0"}, "node-b": {"b1", "eth0"}} {
		for _, name := range devices {
			nl, link, err := w.Host(host).OpenDevice(name)
			w.must(err)
			w.must(errors.Join(nl.LinkSetGSOMaxSize(link, size), nl.LinkSetGROMaxSize(link, size),
				nl.LinkSetGSOIPv4MaxSize(link, size), nl.LinkSetGROIPv4MaxSize(link, size)))
			nl.Close()
		}
	}
	capture, err := w.Host("a1").Capture(lab.CaptureOptions{Devices: []string{"eth0"}, Keep: func(p *lab.CapturedPacket) bool { return p.Length > 1<<16+100 }})
	w.must(err)
	before := w.counters()
	// Routers that forward by the stack, as the fabric, drop those of IPv6: they count the hop-by-hop option.
	w.transfers(300, w.stream("a1", "a2", 0, 0), w.stream("a1", "a2", 1, 0), w.stream("a1", "b1", 0, 0))
	long, _ := capture.Stop() // it misses some
	seen := map[byte]bool{}
	for _, p := range long {
		seen[p.Data[0]>>4] = true
	}
	if !seen[4] || !seen[6] {
		w.t.Errorf("no packet of more than 64 KB of each family among %d", len(long))
	}
	for host, now := range w.counters() {
		if n := now["path_too_big"] - before[host]["path_too_big"]; n > 0 {
			w.t.Errorf("%s: %d packets counted as too big", host, n)
		}
	}
}

// withoutOffload has the pods compute all checksums, and send packets that fit the MTU.
func (w *world) withoutOffload() {
	w.t.Helper()
	for _, pod := range []string{"a1", "a2", "b1"} {
		w.must(w.Host(pod).ChecksumOffload("eth0", false))
	}
	w.transfers(100, w.toBoth()...)
	for _, pod := range []string{"a1", "a2", "b1"} {
		w.must(w.Host(pod).ChecksumOffload("eth0", true))
	}
}

// fragments has long datagrams arrive, by the stack, and short ones of the same flow.
func (w *world) fragments() {
	w.t.Helper()
	before := w.counters()
	for _, to := range []string{"a2", "b1"} {
		for _, addr := range addresses(w.Host(to), lab.PortUDP) {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			conn, err := w.Host("a1").Dial(ctx, "udp", addr.String())
			w.must(err)
			for _, length := range []int{10, 8000, 20, 30} {
				if answer, err := lab.Ask(ctx, conn, strings.Repeat("x", length)); err != nil || len(answer.Payload) != length {
					w.t.Errorf("a datagram of %d octets to %s: %v", length, addr, err)
				}
			}
			conn.Close()
			cancel()
		}
	}
	for host, now := range w.counters() {
		if now["stack_other"]-before[host]["stack_other"] < 10 {
			w.t.Errorf("%s: the fragments did not take the stack: %v", host, now)
		}
	}
}

// smallRoute has the node send to others with a smaller MTU: senders learn it by ICMP, also without the stack.
func (w *world) smallRoute() {
	w.t.Helper()
	w.must(w.Host("node-a").Narrow("eth0", 1400))
	time.Sleep(100 * time.Millisecond) // of the cached next hops
	before := w.counters()["node-a"]
	w.transfers(100, w.toBoth()...)
	w.learnsMTU("b1", 1400, 64)
	// The stack applies an MTU that is not locked after it has decremented the hop limit.
	w.run("node-a", "ip", "route", "replace", "10.10.2.0/24", "via", "192.168.100.254", "dev", "eth0", "mtu", "1350")
	w.run("node-a", "ip", "-6", "route", "replace", "fd00:10:2::/64", "via", "fd00:100::fe", "dev", "eth0", "mtu", "1350")
	w.learnsMTU("b1", 1350, 63)
	w.tooBigWithoutRouteBack()
	now := w.counters()["node-a"]
	if now["path_too_big"] == before["path_too_big"] || now["path_out"] == before["path_out"] {
		w.t.Errorf("the shortcut reported no MTU: %v", now)
	}
}

// tooBigWithoutRouteBack has a3 send datagrams that are too big. While the node has no route to a3 the stack decides
// about them: it sends no error.
func (w *world) tooBigWithoutRouteBack() {
	w.t.Helper()
	for i, addr := range addresses(w.Host("b1"), lab.PortUDP) {
		// takes sends a datagram of a flow of its own: the shortcut leaves flows to the stack that it has seen.
		takes := func(path string) bool {
			conn, err := w.Host("a3").DialWith(context.Background(), lab.DialOptions{Control: func(fd int) error {
				if i == 0 { // the MTU that a3 knows does not count
					return unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_PROBE)
				}
				return unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_PROBE)
			}}, "udp", addr.String())
			w.must(err)
			defer conn.Close()
			before := w.counters()["node-a"][path]
			_, err = conn.Write([]byte(strings.Repeat("x", 1450)))
			w.must(err)
			return w.counters()["node-a"][path] > before
		}
		undo := w.rule([]string{"-4", "-6"}[i], "to "+addresses(w.Host("a3"), 0)[i].Addr().String()+" blackhole")
		if !takes("stack_route") {
			w.t.Errorf("a datagram to %s that is too big, without a route back, does not take the stack", addr)
		}
		undo()
		if !takes("path_too_big") {
			w.t.Errorf("a datagram to %s that is too big does not take the shortcut", addr)
		}
	}
}

// smallDevice has a pod's device with a smaller MTU at the node.
func (w *world) smallDevice() {
	w.t.Helper()
	w.run("node-a", "ip", "link", "set", "a2", "mtu", "1300")
	w.awaitMTU("a2", 1300)
	before := w.counters()["node-a"]
	w.transfers(100, w.toBoth()...)
	w.learnsMTU("a2", 1300, 64)
	w.run("node-a", "ip", "link", "set", "a2", "mtu", "1500")
	w.awaitMTU("a2", 1500)
	now := w.counters()["node-a"]
	if now["path_local"] == before["path_local"] || now["stack_kernel_flow"] != before["stack_kernel_flow"] {
		w.t.Errorf("the flows left the shortcut: %v, before %v", now, before)
	}
}

// awaitMTU waits until the table has the MTU of a pod's device.
func (w *world) awaitMTU(pod string, mtu uint16) {
	w.t.Helper()
	bpffs, addr := w.agents["node-a"].BPFFS(), bpf.AddressFrom(w.Host(pod).Addr4)
	w.eventually("the table has the MTU", func() bool {
		return table[bpf.Address, shortcut.Row](w, bpffs, bpf.PodMapPods)[addr].Mtu == mtu
	})
}

// learnsMTU sends long datagrams that may not be fragmented until the socket knows the MTU. The errors about those of
// IPv6 quote a hop limit.
func (w *world) learnsMTU(to string, mtu int, hops uint8) {
	w.t.Helper()
	ofMTU := func(p *lab.CapturedPacket) bool {
		b := p.Data
		return b[0]>>4 == 6 && b[6] == unix.IPPROTO_ICMPV6 && b[40] == icmpv6TooBig &&
			int(binary.BigEndian.Uint32(b[44:])) == mtu
	}
	capture, err := w.Host("a3").Capture(lab.CaptureOptions{Devices: []string{"eth0"}, Keep: ofMTU})
	w.must(err)
	for family, addr := range addresses(w.Host(to), lab.PortUDP) {
		level, discover, known := unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_MTU
		if family == 1 {
			level, discover, known = unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_MTU
		}
		// Another source than the streams', whose MTU is known.
		dialed, err := w.Host("a3").DialWith(context.Background(), lab.DialOptions{Control: func(fd int) error {
			return unix.SetsockoptInt(fd, level, discover, unix.IP_PMTUDISC_DO)
		}}, "udp", addr.String())
		w.must(err)
		conn := dialed.(*net.UDPConn)
		raw, err := conn.SyscallConn()
		w.must(err)
		long := []byte(strings.Repeat("x", 1450))
		w.eventually(fmt.Sprintf("a3 learns that the MTU to %s is %d", addr, mtu), func() bool {
			if _, err := conn.Write(long); !errors.Is(err, unix.EMSGSIZE) {
				return false
			}
			got := 0
			w.must(raw.Control(func(fd uintptr) { got, err = unix.GetsockoptInt(int(fd), level, known) }))
			w.must(err)
			if got != mtu { // of an earlier route
				w.run("a3", "sh", "-c", "ip route flush cache; ip -6 route flush cache")
			}
			return got == mtu
		})
		conn.Close()
	}
	tooBig, err := capture.Stop()
	w.must(err)
	if len(tooBig) == 0 {
		w.t.Errorf("no error about a packet to %s quotes an MTU of %d", to, mtu)
	}
	for _, p := range tooBig {
		if got := p.Data[48+7]; got != hops {
			w.t.Errorf("an error with an MTU of %d quotes a packet to %s with hop limit %d, want %d", mtu, to, got, hops)
		}
	}
}

// slowUplink sends through a slow queue. On the shortcut packets keep their socket until they are sent, so the sender's
// TCP knows how much is in the queue, and does not fill it; on the stack, to the client, they do not.
func (w *world) slowUplink() {
	w.t.Helper()
	w.run("node-a", "tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", "100mbit", "burst", "128k", "limit", "30m")
	known, queued := w.sendSlowly("b1")
	knownOnStack, queuedOnStack := w.sendSlowly("client")
	w.run("node-a", "tc", "qdisc", "del", "dev", "eth0", "root")
	w.t.Logf("queued %d KB, %d KB of them known to the socket; on the stack %d KB, %d KB", queued>>10, known>>10, queuedOnStack>>10, knownOnStack>>10)
	if known < queued/2 || queued > 1<<20 {
		w.t.Errorf("of %d octets in the uplink's queue the socket on the shortcut knows %d", queued, known)
	}
	if knownOnStack > queuedOnStack/2 {
		w.t.Errorf("of %d octets in the uplink's queue the socket on the stack knows %d: the test proves nothing", queuedOnStack, knownOnStack)
	}
}

// sendSlowly sends from a1 for some time. It returns the octets in the uplink's queue, and how many octets that the
// socket has sent it knows to be in a queue; both summed over some samples and divided by their number.
func (w *world) sendSlowly(to string) (known, queued int) {
	w.t.Helper()
	const samples = 8
	s := w.stream("a1", to, 0, 0)
	for range samples {
		time.Sleep(100 * time.Millisecond)
		var queues []struct {
			Kind    string
			Backlog int
		}
		w.must(json.Unmarshal([]byte(w.run("node-a", "tc", "-s", "-j", "qdisc", "show", "dev", "eth0", "root")), &queues))
		if len(queues) == 0 || queues[0].Kind != "tbf" {
			w.t.Fatalf("queues: %+v", queues)
		}
		queued += queues[0].Backlog / samples
		known += w.unsent(s.near) / samples
	}
	if err := s.finish(); err != nil {
		w.t.Error(err)
	}
	return known, queued
}

// unsent is the memory of packets that a socket has handed down and that are not freed: SK_MEMINFO_WMEM_ALLOC of
// linux/sock_diag.h.
func (w *world) unsent(conn *net.TCPConn) int {
	w.t.Helper()
	var info [9]uint32
	size := uint32(unsafe.Sizeof(info))
	raw, err := conn.SyscallConn()
	w.must(err)
	w.must(raw.Control(func(fd uintptr) {
		_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, fd, unix.SOL_SOCKET, unix.SO_MEMINFO,
			uintptr(unsafe.Pointer(&info)), uintptr(unsafe.Pointer(&size)), 0)
		if errno != 0 {
			w.t.Errorf("SO_MEMINFO: %v", errno)
		}
	}))
	return int(info[unix.SK_MEMINFO_WMEM_ALLOC])
}
