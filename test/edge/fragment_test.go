// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"bytes"
	"math/rand/v2"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/test/lab"
	"beeline.io/beeline/test/node"
)

// mayBeFragmented has a socket's datagrams leave without "don't fragment".
func mayBeFragmented(t *testing.T, conn syscall.Conn) {
	t.Helper()
	control(t, conn, func(fd int) error {
		return unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DONT)
	})
}

// echoes has a pod send each datagram back unchanged, without "don't fragment". It returns when the socket is
// open.
func (w *world) echoes(pod string) {
	w.t.Helper()
	w.must(w.Host(pod).StopServer())
	conn, err := w.Host(pod).ListenPacket("udp4", netip.AddrPortFrom(w.Host(pod).Addr4, lab.PortUDP).String())
	w.must(err)
	mayBeFragmented(w.t, conn.(*net.UDPConn))
	done := make(chan struct{})
	go func() {
		defer close(done)
		for b := make([]byte, 1<<16); ; {
			n, from, err := conn.ReadFrom(b)
			if err == nil {
				_, err = conn.WriteTo(b[:n], from)
			}
			if err != nil {
				return // the client then gets no reply, and reports it
			}
		}
	}()
	w.t.Cleanup(func() { conn.Close(); <-done })
}

// wantEchoed sends datagrams that may be fragmented, each once, and checks that they return.
func (w *world) wantEchoed(host string, to netip.AddrPort, sizes ...int) {
	w.t.Helper()
	conn := w.openAs(host, "udp4", to).(*net.UDPConn)
	mayBeFragmented(w.t, conn)
	got := make([]byte, 1<<16)
	for _, size := range sizes {
		sent := make([]byte, size)
		random := rand.New(rand.NewPCG(2, uint64(size)))
		for i := range sent {
			sent[i] = byte(random.Uint32())
		}
		w.must(conn.SetDeadline(time.Now().Add(patience)))
		if _, err := conn.Write(sent); err != nil {
			w.t.Fatalf("sending %d bytes to %s: %v", size, to, err)
		}
		n, err := conn.Read(got)
		if err != nil {
			w.t.Fatalf("%d bytes to %s: %v; the edge counted %v", size, to, err, w.edgeCounters())
		}
		if !bytes.Equal(got[:n], sent) {
			w.t.Errorf("%d bytes to %s returned as %d others", size, to, n)
		}
	}
}

// wantOneFlow checks that there is one flow, and that it counts all that its client has sent and received.
func (w *world) wantOneFlow(bytes uint64) {
	w.t.Helper()
	flows := w.flows()
	if len(flows) != 1 {
		w.t.Fatalf("flows %+v, want one", flows)
	}
	// The count includes the headers of each fragment.
	for _, n := range []uint64{flows[0].FromClient.Bytes, flows[0].ToClient.Bytes} {
		if n < bytes || n > bytes+bytes/20 {
			w.t.Errorf("the flow counts %+v sent, %+v received, want %d bytes with their headers", flows[0].FromClient, flows[0].ToClient, bytes)
		}
	}
	w.wantNoDrops()
}

func (w *world) wantNoDrops() {
	w.t.Helper()
	for reason, n := range w.status().Edge.Counters {
		if n > 0 && (api.Dropped(reason) || reason == "malformed") {
			w.t.Errorf("%d packets were counted as %s", n, reason)
		}
	}
}

// narrow gives a node's route to some addresses an MTU, until the end of the test.
func (w *world) narrow(host string, to netip.Prefix, via netip.Addr, mtu int) {
	w.t.Helper()
	w.must(w.Host(host).Do(func() error {
		eth0, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		dst := &net.IPNet{IP: to.Addr().AsSlice(), Mask: net.CIDRMask(to.Bits(), to.Addr().BitLen())}
		// An unlocked MTU applies only to what the node itself sends.
		route := &netlink.Route{LinkIndex: eth0.Attrs().Index, Dst: dst, Gw: via.AsSlice(), MTU: mtu, MTULock: true}
		w.t.Cleanup(func() { w.must(w.Host(host).Do(func() error { return netlink.RouteDel(route) })) })
		return netlink.RouteReplace(route)
	}))
}

var fabric, fabric6 = netip.MustParseAddr("192.168.100.254"), netip.MustParseAddr("fd00:100::fe")

// Sizes to send, which return: whole datagrams of the MTU of the client's path and less, and datagrams that its
// own kernel fragments.
var fragmentable = []int{overlayMTU - 28, overlayMTU - 27, fabricMTU - 28, fabricMTU - 27, 20_000, 60_000, 100}

func total(sizes []int) (n uint64) {
	for _, size := range sizes {
		n += uint64(size)
	}
	return n
}

// R19, RFC 791: a datagram that is too long for the overlay and may be fragmented is, whether it arrives whole
// or in fragments; so are replies that are too long for the client's path.
func TestOverlayFragments(t *testing.T) {
	inModes(t, func(t *testing.T, mode string) {
		w := borrowWorldOf(t, overlay, nil, "--edge-mode="+mode)
		w.echoes("b1")
		w.apply("web", objects(w.public("b1"))...)
		client := w.Host("client").Addr4
		w.narrow("node-a", netip.PrefixFrom(client, 32), fabric, 1300)
		w.wantEchoed("client", netip.AddrPortFrom(w.Host("node-a").Addr4, nodePort), fragmentable...)
		w.wantCounted("fragmented", "established", "reply")
		w.wantOneFlow(total(fragmentable))
	})
}

// The same if the path to the backend has a small MTU without an overlay, and the path back a smaller one; a
// fragment is fragmented again.
func TestNarrowWayFragments(t *testing.T) {
	inModes(t, func(t *testing.T, mode string) {
		w := borrowWorld(t, "--edge-mode="+mode)
		w.echoes("b1")
		w.apply("web", objects(w.public("b1"))...)
		w.narrow("node-a", netip.PrefixFrom(w.Host("b1").Addr4, 32), fabric, 600)
		w.narrow("node-a", netip.PrefixFrom(w.Host("client").Addr4, 32), fabric, 576)
		w.wantEchoed("client", netip.AddrPortFrom(w.Host("node-a").Addr4, nodePort), fragmentable...)
		w.wantCounted("fragmented")
		w.wantOneFlow(total(fragmentable))
	})
}

// R16: so are a pod's that has opted out of the socket shortcut: the pod assumes an MTU of 1500. The edge translates
// whole datagrams and fragments at the pod's device, and the node's stack fragments them again.
func TestOverlayFragmentsOfOptedOutPod(t *testing.T) {
	w := borrowWorldOf(t, overlay, nil, "--edge-mode=tc")
	w.optOut("a1")
	w.setMTU("a1", "eth0", fabricMTU)
	w.setMTU("node-a", "a1", fabricMTU)
	w.echoes("b1")
	w.apply("web", objects(w.public("b1"))...)
	to := netip.AddrPortFrom(netip.MustParseAddr(node.ClusterIPs(1)[0]), 80)
	for _, size := range fragmentable {
		w.wantEchoed("a1", to, size, fabricMTU-28)
	}
	if n := w.status().Edge.Counters["fragmented"]; n > 0 {
		t.Errorf("%d packets were fragmented at the edge, not by the stack", n)
	}
	w.wantNoDrops()
}
