// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cilium/ebpf"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/test/lab"
)

// R16: the edge serves new flows only from sources that the stack would accept at the device, for each value of
// rp_filter: the node's own addresses never, and with rp_filter=1 only those that it reaches by the device, by any of
// several next hops. For each packet to the NodePort the same one goes to a socket of the node, which shows what the
// stack does.
func TestSourceValidation(t *testing.T) {
	inModes(t, func(t *testing.T, mode string) {
		w := startWorldOf(t, lab.Shape{TwoNICs: true}, "--edge-mode="+mode, allAddresses)
		w.apply("web", objects(w.public("b1"))...)
		conn, err := w.Host("node-a").ListenPacket("udp", "[::]:9")
		w.must(err)
		defer conn.Close()
		w.runOn("node-a", "ip", "route", "add", "unreachable", "198.51.100.0/24")
		verdicts := map[bool]int{}
		w.wantValidated(conn, verdicts, w.Host("client").Addr4, w.Host("client2").Addr4, w.Host("node-a").Addr4, lab.SecondAddresses()[0], w.Host("b1").Addr4,
			netip.MustParseAddr("198.51.100.1"), w.Host("client2").Addr6, w.Host("node-a").Addr6)
		w.runOn("node-a", "ip", "route", "add", "203.0.113.0/24", "nexthop", "via", "192.168.100.254", "dev", "eth0", "nexthop", "via", "192.168.101.254", "dev", "eth1")
		several := []netip.Addr{w.Host("node-a").Addr4, lab.SecondAddresses()[0]}
		for i := range 4 {
			several = append(several, netip.AddrFrom4([4]byte{203, 0, 113, byte(i + 1)}))
		}
		w.wantValidated(conn, verdicts, several...)
		// A more specific route decides alone, not a less specific one with the device among its next hops.
		w.runOn("node-a", "ip", "route", "add", "203.0.113.64/26", "via", "192.168.101.254", "dev", "eth1")
		w.runOn("node-a", "ip", "route", "add", "203.0.113.80/28", "nexthop", "via", "192.168.100.254", "dev", "eth0", "nexthop", "via", "192.168.101.254", "dev", "eth1")
		w.runOn("node-a", "ip", "route", "add", "unreachable", "203.0.113.96/28")
		w.awaitNextHops(5)
		w.wantValidated(conn, verdicts, netip.MustParseAddr("203.0.113.1"), netip.MustParseAddr("203.0.113.65"), netip.MustParseAddr("203.0.113.81"), netip.MustParseAddr("203.0.113.97"))
		// The route of another table that a rule selects decides alone, not one with the device as a next hop.
		w.runOn("node-a", "ip", "route", "add", "203.0.115.0/24", "via", "192.168.101.254", "dev", "eth1",
			"metric", "10", "table", "100")
		w.runOn("node-a", "ip", "route", "add", "203.0.115.0/24", "metric", "20",
			"nexthop", "via", "192.168.100.254", "dev", "eth0", "nexthop", "via", "192.168.101.254", "dev", "eth1")
		w.runOn("node-a", "ip", "rule", "add", "to", "203.0.115.0/24", "lookup", "100")
		w.awaitNextHops(7)
		w.wantValidated(conn, verdicts, netip.MustParseAddr("203.0.115.1"))
		if verdicts[true] < 20 || verdicts[false] < 10 {
			t.Errorf("the stack has accepted and dropped %v", verdicts)
		}
	})
}

// wantValidated compares what the stack does with packets from sources with what the edge does, for each value of
// rp_filter and at each device. It counts what the stack accepts.
func (w *world) wantValidated(conn net.PacketConn, verdicts map[bool]int, sources ...netip.Addr) {
	w.t.Helper()
	for filter := range 3 {
		w.setRPFilter(filter)
		for _, own := range w.nics() {
			for _, from := range sources {
				to := own[0]
				if from.Is6() {
					to = own[1]
				}
				stack, edge := w.arrives(conn, from, to.Addr()), w.serves(from, to)
				if stack != edge {
					w.t.Errorf("rp_filter=%d: from %s to %s: the stack accepts it: %t, the edge serves it: %t", filter, from, to.Addr(), stack, edge)
				}
				verdicts[stack]++
			}
		}
	}
}

// runOn runs a command on a host.
func (w *world) runOn(host string, argv ...string) {
	w.t.Helper()
	w.output(host, argv...)
}

// output runs a command on a host, and returns what it prints.
func (w *world) output(host string, argv ...string) string {
	w.t.Helper()
	out, err := w.Host(host).Command(w.t.Context(), argv...).CombinedOutput()
	if err != nil {
		w.t.Fatalf("%s: %v: %v: %s", host, argv, err, out)
	}
	return string(out)
}

// setRPFilter sets rp_filter of all devices of node-a and waits until the edge has it.
func (w *world) setRPFilter(value int) {
	w.t.Helper()
	w.runOn("node-a", "sh", "-c", fmt.Sprintf("for f in /proc/sys/net/ipv4/conf/*/rp_filter; do echo %d > $f; done", value))
	m, err := ebpf.LoadPinnedMap(bpf.TablePath(w.agent.BPFFS(), bpf.EdgeTCMapEdgeDevices), nil)
	w.must(err)
	defer m.Close()
	want := []uint8{0, bpf.SourcesStrict, bpf.SourcesLoose}[value]
	w.eventually(fmt.Sprintf("the edge has rp_filter=%d", value), func() bool {
		var index uint32
		var device bpf.EdgeDevice
		ok := false
		for all := m.Iterate(); all.Next(&index, &device); {
			if device.Sources&(bpf.SourcesStrict|bpf.SourcesLoose) != want {
				return false
			}
			ok = true
		}
		return ok
	})
}

// awaitNextHops waits until the edge has networks with several next hops, and those inside.
func (w *world) awaitNextHops(want int) {
	w.t.Helper()
	m, err := ebpf.LoadPinnedMap(bpf.TablePath(w.agent.BPFFS(), bpf.EdgeTCMapNextHops), nil)
	w.must(err)
	defer m.Close()
	w.eventually(fmt.Sprintf("the edge has %d networks with next hops", want), func() bool {
		var key bpf.NextHopKey
		var is uint32
		n := 0
		for all := m.Iterate(); all.Next(&key, &is); {
			n++
		}
		return n == want
	})
}

// forge sends a datagram from any address by the client. Each is of a flow of its own.
func (w *world) forge(from netip.Addr, to netip.AddrPort) (source netip.AddrPort) {
	w.t.Helper()
	w.forged++
	source = netip.AddrPortFrom(from, uint16(20000+w.forged))
	family := 0
	if to.Addr().Is6() {
		family = 1
	}
	w.raw(w.Host("client"), family, unix.IPPROTO_RAW).send(to.Addr(), w.datagramTo(source, to))
	return source
}

// arrives reports whether the stack delivers a forged datagram to a socket of the node.
func (w *world) arrives(conn net.PacketConn, from, to netip.Addr) bool {
	w.t.Helper()
	source := w.forge(from, netip.AddrPortFrom(to, 9))
	b := make([]byte, 64)
	for end := time.Now().Add(100 * time.Millisecond); time.Now().Before(end); {
		w.must(conn.SetReadDeadline(end))
		_, at, err := conn.ReadFrom(b)
		if err == nil && netip.MustParseAddrPort(at.String()).Port() == source.Port() {
			return true
		}
	}
	return false
}

// serves reports whether the edge opens a flow for a forged datagram, and does not drop it for its source.
func (w *world) serves(from netip.Addr, to netip.AddrPort) (served bool) {
	w.t.Helper()
	count := func() [2]uint64 {
		c := w.status().Edge.Counters
		return [2]uint64{c["new"], c["drop_reverse_path"]}
	}
	before := count()
	w.forge(from, to)
	w.eventually("the edge counts a forged datagram", func() bool {
		now := count()
		served = now[0] > before[0]
		return now != before
	})
	return served
}
