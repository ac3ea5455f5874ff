// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"beeline.io/beeline/test/lab"
)

var overlay = lab.Shape{Network: lab.NetworkVXLAN}

// overlayAddresses are node-a's on the overlay's device, the first of the node's pod range.
var overlayAddresses = []netip.Addr{netip.MustParseAddr("10.10.1.0"), netip.MustParseAddr("fd00:10:1::")}

// The path MTU of a client to a pod of another node, and the fabric's MTU.
const overlayMTU, fabricMTU = 1450, 1500

// R17, R19: if pods are behind an overlay, a client outside the cluster reaches those of this node, which see
// its address, and those of others, which see this node's address on the overlay. The fabric sees the latter
// only encapsulated.
func TestOverlayFromOutside(t *testing.T) {
	inModes(t, func(t *testing.T, mode string) {
		w := borrowWorldOf(t, overlay, nil, "--edge-mode="+mode)
		ear, err := w.Host("fabric").Hear("node-a", "node-b")
		w.must(err)
		defer ear.Close()
		w.apply("web", objects(w.public("a1", "b1"))...)
		client := addresses(w.Host("client"), 0)
		for i, to := range addresses(w.Host("node-a"), nodePort) {
			for _, network := range []string{"tcp", "udp"} {
				for _, answer := range w.wantServed(network, to, "a1", "b1") {
					want := client[i].Addr()
					if answer.Pod == "b1" {
						want = overlayAddresses[i]
					}
					if answer.Peer.Addr() != want {
						t.Errorf("%s to %s: %s sees %s, want %s", network, to, answer.Pod, answer.Peer.Addr(), want)
					}
				}
			}
		}
		w.wantDevices("eth0 " + mode + " clients, vxlan0 tc backends")
		why := map[string]string{"tc": "--edge-mode=tc", "xdp": "a vxlan device gets its packets from other devices"}[mode]
		w.wantExit(0, "vxlan0  tc", "backends  "+why)
		heard, err := ear.Packets()
		w.must(err)
		for _, p := range heard {
			if pods := netip.MustParsePrefix("10.10.0.0/16"); pods.Contains(p.From.Addr()) || pods.Contains(p.To.Addr()) {
				t.Errorf("the fabric saw a packet of a pod: %+v", p)
			}
		}
	})
}

// wantDevices waits until status lists these devices: "eth0 xdp clients".
func (w *world) wantDevices(want string) {
	w.t.Helper()
	got := ""
	w.eventually("the edge is at "+want, func() bool {
		var all []string
		for _, d := range w.status().Edge.Devices {
			all = append(all, d.Name+" "+d.Mode+" "+d.Role)
		}
		got = strings.Join(all, ", ")
		return got == want
	})
}

// R18: with externalTrafficPolicy Local the overlay is not used; without an endpoint here there is no reply.
func TestOverlayTrafficPolicyLocal(t *testing.T) {
	inModes(t, func(t *testing.T, mode string) {
		w := borrowWorldOf(t, overlay, nil, "--edge-mode="+mode)
		local := func(pods ...string) {
			s, slices := w.public(pods...)
			s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
			w.apply("web", objects(s, slices)...)
		}
		local("a1", "b1")
		for i, to := range addresses(w.Host("node-a"), nodePort) {
			for _, answer := range w.wantServed("tcp", to, "a1") {
				if want := addresses(w.Host("client"), 0)[i].Addr(); answer.Peer.Addr() != want {
					t.Errorf("%s: a1 sees %s, want %s", to, answer.Peer.Addr(), want)
				}
			}
		}
		local("b1")
		for _, to := range addresses(w.Host("node-a"), nodePort) {
			w.wantSilence("tcp", to, "drop_policy")
			w.wantSilence("udp", to, "drop_policy")
		}
	})
}

// R30, R37: 20 MB arrive intact each way, with a backend behind the overlay and with one of this node, while
// the agent is killed and replaced.
func TestOverlayTransferWhileTheAgentIsKilled(t *testing.T) {
	inModes(t, func(t *testing.T, mode string) {
		w := borrowWorldOf(t, overlay, nil, "--edge-mode="+mode)
		done := make(chan error)
		transfers := 0
		for i, to := range addresses(w.Host("node-a"), nodePort) {
			for _, pod := range [][]string{{"b1", "a1"}, {"b2", "a2"}}[i] {
				w.apply("web", objects(w.public(pod))...)
				conn := w.open("tcp", to)
				transfers++
				go func() { done <- transfer(conn, pod, 20<<20) }()
			}
		}
		w.must(w.agent.Kill())
		w.must(w.agent.Start())
		// The transfers outlast their backends' part in the Service, too.
		for range transfers {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		w.wantDevices("eth0 " + mode + " clients, vxlan0 tc backends")
	})
}

// The overlay's MTU is less than the fabric's. A datagram that is too long for it and must not be fragmented
// gets a reply from the edge, from the Service's address, with the path MTU (RFC 1191, RFC 8201); one of that
// length arrives.
func TestOverlayPathMTU(t *testing.T) {
	inModes(t, func(t *testing.T, mode string) {
		w := borrowWorldOf(t, overlay, nil, "--edge-mode="+mode)
		w.apply("web", objects(w.public("b1"))...)
		for i, to := range addresses(w.Host("node-a"), nodePort) {
			w.wantPathMTU("client", to, i, overlayMTU, "b1")
		}
		w.wantCounted("drop_too_big")
	})
}

// wantPathMTU sends a host's datagrams to an address: by one as long as its device allows its socket learns the path
// MTU, and one of that length arrives.
func (w *world) wantPathMTU(host string, to netip.AddrPort, family, mtu int, pod string) {
	w.t.Helper()
	conn := w.openAs(host, "udp", to).(*net.UDPConn)
	headers := []int{28, 48}[family]
	dontFragment(w.t, conn, family)
	if _, err := conn.Write([]byte(strings.Repeat("x", pathMTU(w.t, conn, family)-headers))); err != nil {
		w.t.Fatalf("sending to %s: %v", to, err)
	}
	w.eventually(host+" has learned the path MTU to "+to.String(), func() bool { return pathMTU(w.t, conn, family) == mtu })
	told := syscall.Errno(0)
	w.eventually("the socket to "+to.String()+" gets an error, once", func() bool {
		control(w.t, conn, func(fd int) error {
			errno, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
			told = syscall.Errno(errno)
			return err
		})
		return told != 0
	})
	if told != syscall.EMSGSIZE {
		w.t.Errorf("the socket to %s has the error %v, want EMSGSIZE", to, told)
	}
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	answer, err := lab.Ask(ctx, conn, strings.Repeat("x", mtu-headers))
	if err != nil || answer.Pod != pod {
		w.t.Errorf("a datagram that fits, to %s: %+v, %v; the edge counted %v", to, answer.Pod, err, w.edgeCounters())
	}
}

// dontFragment sets "don't fragment" on a socket's datagrams.
func dontFragment(t *testing.T, conn *net.UDPConn, family int) {
	t.Helper()
	control(t, conn, func(fd int) error {
		if family == 0 {
			return unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO)
		}
		return unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_DO)
	})
}

// pathMTU is the path MTU that a socket has learned.
func pathMTU(t *testing.T, conn syscall.Conn, family int) (mtu int) {
	t.Helper()
	control(t, conn, func(fd int) (err error) {
		if family == 0 {
			mtu, err = unix.GetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MTU)
		} else {
			mtu, err = unix.GetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MTU)
		}
		return err
	})
	return mtu
}

func control(t *testing.T, conn syscall.Conn, f func(fd int) error) {
	t.Helper()
	raw, err := conn.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var failed error
	if err := errors.Join(raw.Control(func(fd uintptr) { failed = f(int(fd)) }), failed); err != nil {
		t.Fatal(err)
	}
}

// TCP learns the path MTU: 20 MB arrive each way at a pod that assumes an MTU of 1500, so that the client's
// first segments are too long for the overlay.
func TestOverlayTransferFindsThePathMTU(t *testing.T) {
	inModes(t, func(t *testing.T, mode string) {
		w := borrowWorldOf(t, overlay, nil, "--edge-mode="+mode)
		w.setMTU("b1", "eth0", fabricMTU)
		w.setMTU("node-b", "b1", fabricMTU)
		w.apply("web", objects(w.public("b1"))...)
		for _, to := range addresses(w.Host("node-a"), nodePort) {
			conn := w.open("tcp", to)
			if err := transfer(conn, "b1", 20<<20); err != nil {
				t.Errorf("to %s: %v", to, err)
			}
		}
		w.wantCounted("drop_too_big")
	})
}

// setMTU sets the MTU of a host's device until the end of the test.
func (w *world) setMTU(host, device string, mtu int) {
	w.t.Helper()
	set := func(mtu int) (before int) {
		w.must(w.Host(host).Do(func() error {
			link, err := netlink.LinkByName(device)
			if err != nil {
				return err
			}
			before = link.Attrs().MTU
			return netlink.LinkSetMTU(link, mtu)
		}))
		return before
	}
	before := set(mtu)
	w.t.Cleanup(func() { set(before) })
}

// An ICMP error of a pod behind the overlay about a client's packet reaches the client: nobody listens at the
// port.
func TestOverlayICMPError(t *testing.T) {
	inModes(t, func(t *testing.T, mode string) {
		w := borrowWorldOf(t, overlay, nil, "--edge-mode="+mode)
		w.apply("web", objects(w.public("b1"))...)
		w.must(w.Host("b1").StopServer())
		for _, to := range addresses(w.Host("node-a"), nodePort) {
			w.wantRefused("udp", to)
			w.wantRefused("tcp", to)
		}
		w.wantCounted("icmp")
	})
}
