// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/test/lab"
)

const narrowMTU = 1400

// dsrOverhead is the number of bytes that a kind of DSR adds to a packet (bpf/encap/wire.h).
var dsrOverhead = map[string][2]int{"ipip": {20, 40}, "geneve": {48, 80}, "opt": {8, 24}}

// knownMTU is the path MTU to an address that a host has learned.
func (w *world) knownMTU(host string, to netip.Addr, family int) int {
	w.t.Helper()
	conn := w.openAs(host, "udp", netip.AddrPortFrom(to, 9))
	defer conn.Close()
	return pathMTU(w.t, conn.(syscall.Conn), family)
}

// X2, X4: the path to the client has an MTU of 1400. The router's errors about a server's long packets go to
// the Service's address, and so to the balancer; the balancer forwards them, and the pod learns the MTU: TCP
// transfers 5 MB each way, and after a datagram that is too long and must not be fragmented, a pod's next one
// gets through.
func TestDSRPathMTUToTheClient(t *testing.T) {
	withEachDSR(t, nil, func(t *testing.T, w *world) {
		w.narrowAll("client", narrowMTU)
		for i, kind := range dsrKinds {
			// A pod that has learned a family's path MTU learns nothing more.
			pods := []string{fmt.Sprint("b", i+1), fmt.Sprint("c", i+1)}
			for family, pod := range pods {
				w.applyKinds(pod)
				if err := transfer(w.open("tcp", w.address("ExternalIP", i+1, family)), pod, 5<<20); err != nil {
					t.Errorf("%s, to %s: %v; node-a's counters: %v", kind, pod, err, w.edgeCounters())
				}
				if mtu := w.knownMTU(pod, w.clientOf(family), family); mtu != narrowMTU {
					t.Errorf("%s: %s has a path MTU of %d to %s, want %d", kind, pod, mtu, w.clientOf(family), narrowMTU)
				}
			}
			for family, pod := range pods {
				w.must(w.Host(pod).StopServer())
				w.applyKinds(pod)
				w.wantPodToLearn(i+1, pod, 1-family)
			}
		}
		w.wantNoDropsAnywhere("drop_too_big") // the client learns the MTU, too: less what DSR adds
	})
}

// wantPodToLearn checks that the pod that serves a Service's clients learns the path MTU back, and that a
// datagram of that length arrives.
func (w *world) wantPodToLearn(n int, pod string, family int) {
	w.t.Helper()
	own := addresses(w.Host(pod), lab.PortUDP)[family]
	server, err := w.Host(pod).ListenPacket([]string{"udp4", "udp6"}[family], own.String())
	w.must(err)
	defer server.Close()
	client := w.open("udp", w.address("ExternalIP", n, family)).(*net.UDPConn)
	_, err = client.Write([]byte("hello"))
	w.must(err)
	w.must(server.SetDeadline(deadline()))
	w.must(client.SetDeadline(deadline()))
	b := make([]byte, 2048)
	_, peer, err := server.ReadFrom(b)
	w.must(err)
	udp := server.(*net.UDPConn)
	dontFragment(w.t, udp, family)
	headers := []int{28, 48}[family]
	_, err = udp.WriteTo(make([]byte, fabricMTU-headers), peer)
	w.must(err)
	w.eventually(pod+" knows the path to the client", func() bool {
		return w.knownMTU(pod, w.clientOf(family), family) == narrowMTU
	})
	if _, err := udp.WriteTo(make([]byte, narrowMTU-headers), peer); err != nil {
		w.t.Fatalf("%s sends what fits: %v", pod, err)
	}
	if n, err := client.Read(b); err != nil || n != narrowMTU-headers {
		w.t.Errorf("the client reads %d octets, %v; want %d", n, err, narrowMTU-headers)
	}
}

// X2, X4: the path between balancer and backend has an MTU of 1400. Errors about encapsulated packets there go
// to the balancer, which tells the client what fits inside: so TCP transfers 5 MB each way, and a client's
// socket learns the MTU. With an IP option there is no outer packet: the error goes to the client and is about
// an address that it does not know, so the balancer needs a route with the MTU.
func TestDSRPathMTUToTheBackend(t *testing.T) {
	withEachDSR(t, nil, func(t *testing.T, w *world) {
		w.applyKinds("c1")
		w.narrowAll("node-c", narrowMTU)
		for i, kind := range dsrKinds {
			for family, pod := range addresses(w.Host("c1"), 0) {
				if kind == "opt" {
					gateway := []netip.Addr{fabric, fabric6}[family]
					w.narrow("node-a", netip.PrefixFrom(pod.Addr(), pod.Addr().BitLen()), gateway, narrowMTU)
				}
				w.wantClientToLearn(i+1, family, narrowMTU-dsrOverhead[kind][family], "c1")
			}
		}
	})
}

// X2, X4: if all paths have an MTU of 1500, clients learn that less the overhead of DSR.
func TestDSROverheadIsTold(t *testing.T) {
	withEachDSR(t, nil, func(t *testing.T, w *world) {
		w.applyKinds("b1")
		for i, kind := range dsrKinds {
			for family := range 2 {
				w.wantClientToLearn(i+1, family, fabricMTU-dsrOverhead[kind][family], "b1")
			}
		}
	})
}

// wantClientToLearn checks that TCP transfers 5 MB each way, that a client learns the path MTU of a Service's
// address, and that a datagram of that length is answered.
func (w *world) wantClientToLearn(n, family, mtu int, pod string) {
	w.t.Helper()
	// Each address has a path MTU of its own.
	stream := w.address("LoadBalancer", n, family)
	if err := transfer(w.open("tcp", stream), pod, 5<<20); err != nil {
		w.t.Errorf("to %s by %s: %v; node-a's counters: %v", pod, stream, err, w.edgeCounters())
	}
	if known := w.knownMTU("client", stream.Addr(), family); known != mtu {
		w.t.Errorf("by TCP the client has a path MTU of %d to %s, want %d", known, stream, mtu)
	}
	to := w.address("ExternalIP", n, family)
	conn := w.open("udp", to).(*net.UDPConn)
	dontFragment(w.t, conn, family)
	headers := []int{28, 48}[family]
	known := fabricMTU
	w.eventually("the client knows the path to "+to.String(), func() bool {
		// A packet can be too long at one more hop each time.
		if now := pathMTU(w.t, conn, family); now != known {
			known = now
			w.t.Logf("the client has a path MTU of %d to %s", known, to)
		}
		if known > mtu {
			conn.Write(make([]byte, known-headers)) // fails if an error has just arrived
		}
		return known <= mtu
	})
	if known != mtu {
		w.t.Errorf("the client has a path MTU of %d to %s, want %d", known, to, mtu)
	}
	control(w.t, conn, func(fd int) error { // the socket's error
		_, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
		return err
	})
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	answer, err := lab.Ask(ctx, conn, strings.Repeat("x", known-headers))
	for errors.Is(err, unix.EMSGSIZE) && ctx.Err() == nil { // from a packet that was in flight
		answer, err = lab.Ask(ctx, conn, strings.Repeat("x", known-headers))
	}
	if err != nil {
		w.t.Errorf("a datagram that fits, to %s: %q, %v; node-a's counters: %v", to, answer.Pod, err, w.edgeCounters())
	}
}

// narrowAll is Narrow at the fabric until the end of the test.
func (w *world) narrowAll(device string, mtu int) {
	w.t.Helper()
	w.must(w.Host("fabric").Narrow(device, mtu))
	w.t.Cleanup(func() { w.must(w.Host("fabric").Narrow(device, 0)) })
}
