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

// dsrOverhead is what a kind of DSR adds to a packet, of bpf/encap/wire.h.
var dsrOverhead = map[string][2]int{"ipip": {20, 40}, "geneve": {48, 80}, "opt": {8, 24}}

// knownMTU is what a host knows of its path to an address.
func (w *world) knownMTU(host string, to netip.Addr, family int) int {
	w.t.Helper()
	conn := w.openAs(host, "udp", netip.AddrPortFrom(to, 9))
	defer conn.Close()
	return pathMTU(w.t, conn.(syscall.Conn), family)
}

// X2, X4: before a client is a way that takes 1400 octets. What the router there says of
// a server's long packets goes to the Service's address, and so to the balancer; the
// balancer sends it on, and the pod learns: TCP gets 5 MB through each way, and a pod's
// datagram that may not be fragmented gets through after one that is too long.
func TestDSRPathMTUToTheClient(t *testing.T) {
	withEachDSR(t, nil, func(t *testing.T, w *world) {
		w.must(w.Host("fabric").Narrow("client", narrowMTU))
		for i, kind := range dsrKinds {
			// A pod that knows a family's path learns nothing more of it.
			pods := []string{fmt.Sprint("b", i+1), fmt.Sprint("c", i+1)}
			for family, pod := range pods {
				w.applyKinds(pod)
				if err := transfer(w.open("tcp", w.address("ExternalIP", i+1, family)), pod, 5<<20); err != nil {
					t.Errorf("%s, to %s: %v; node-a counted %v", kind, pod, err, w.status().Edge.Counters)
				}
				if mtu := w.knownMTU(pod, w.clientOf(family), family); mtu != narrowMTU {
					t.Errorf("%s: %s knows %d octets to %s, want %d", kind, pod, mtu, w.clientOf(family), narrowMTU)
				}
			}
			for family, pod := range pods {
				w.must(w.Host(pod).StopServer())
				w.applyKinds(pod)
				w.wantPodToLearn(i+1, pod, 1-family)
			}
		}
		w.wantNoDropsAnywhere("drop_too_big") // the client learns, too: of what DSR adds
	})
}

// wantPodToLearn wants the pod that serves a Service's clients to be told what the way
// back takes, and a datagram that is as long as that to arrive.
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

// X2, X4: between balancer and backend is a way that takes 1400 octets. What is said of
// an encapsulated packet there goes to the balancer, which tells the client what fits
// into it: so TCP gets 5 MB through each way, and a client's socket knows the MTU. An IP
// option has no outer packet: what is said goes to the client and is about an address
// that it does not know, so the balancer has to know by its route.
func TestDSRPathMTUToTheBackend(t *testing.T) {
	withEachDSR(t, nil, func(t *testing.T, w *world) {
		w.applyKinds("c1")
		w.must(w.Host("fabric").Narrow("node-c", narrowMTU))
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

// X2, X4: where all ways take 1500 octets, what DSR adds is taken off the MTU that
// clients are told.
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

// wantClientToLearn wants TCP to get 5 MB through each way, a client to be told the path
// MTU of a Service's address, and a datagram of that length to be answered.
func (w *world) wantClientToLearn(n, family, mtu int, pod string) {
	w.t.Helper()
	// Each address is a path of its own.
	stream := w.address("LoadBalancer", n, family)
	if err := transfer(w.open("tcp", stream), pod, 5<<20); err != nil {
		w.t.Errorf("to %s by %s: %v; node-a counted %v", pod, stream, err, w.status().Edge.Counters)
	}
	if known := w.knownMTU("client", stream.Addr(), family); known != mtu {
		w.t.Errorf("by TCP the client knows %d octets to %s, want %d", known, stream, mtu)
	}
	to := w.address("ExternalIP", n, family)
	conn := w.open("udp", to).(*net.UDPConn)
	dontFragment(w.t, conn, family)
	headers := []int{28, 48}[family]
	known := fabricMTU
	w.eventually("the client knows the path to "+to.String(), func() bool {
		// Each packet can be too long for one more place of the way.
		if now := pathMTU(w.t, conn, family); now != known {
			known = now
			w.t.Logf("the client knows %d octets to %s", known, to)
		}
		if known > mtu {
			conn.Write(make([]byte, known-headers)) // fails where it has just been told
		}
		return known <= mtu
	})
	if known != mtu {
		w.t.Errorf("the client knows %d octets to %s, want %d", known, to, mtu)
	}
	control(w.t, conn, func(fd int) error { // what the socket was told
		_, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
		return err
	})
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	answer, err := lab.Ask(ctx, conn, strings.Repeat("x", known-headers))
	for errors.Is(err, unix.EMSGSIZE) && ctx.Err() == nil { // of one that was on its way
		answer, err = lab.Ask(ctx, conn, strings.Repeat("x", known-headers))
	}
	if err != nil {
		w.t.Errorf("a datagram that fits, to %s: %q, %v; node-a counted %v", to, answer.Pod, err, w.status().Edge.Counters)
	}
}
