// SPDX-License-Identifier: Apache-2.0

package socket

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/report/condition"
	"beeline.io/beeline/test/lab"
)

// R29: a socket that is no longer connected, because it disconnected or was aborted, is left alone.
func TestUDPSocketThatHasDisconnectedIsLeftAlone(t *testing.T) {
	withEachMethod(t, func(t *testing.T, w *world) {
		w.start()
		w.apply("dns", objects(w.udp("dns", 1, "b1"))...)
		var free, gone []*connectedSocket
		for i, f := range families {
			for j, all := range []*[]*connectedSocket{&free, &gone} {
				s := &connectedSocket{udpSocket: f.datagrams(t, w.Host("a1")), to: f.clusterIP(1), what: "a bound socket"}
				// A bound socket stays in the kernel's table without a peer.
				w.must(unix.Bind(s.fd, f.sockaddr(f.choose("0.0.0.0", "::", uint16(20000+2*i+j)))))
				s.mustConnect(s.to)
				s.exchangeConnected(s.to)
				*all = append(*all, s)
			}
			free[i].disconnect()
		}
		w.sweepsAfter(func() { w.remove("dns") })
		wantAllEnded(gone)
		for _, s := range free {
			if errno, err := unix.GetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_ERROR); err != nil || errno != 0 {
				t.Errorf("a socket without a peer has the error %v (%v)", unix.Errno(errno), err)
			}
		}
		if st := w.sockets(); st.LastError != "" || st.EndedUDP != uint64(len(gone)) {
			t.Errorf("the status is %+v", st)
		}
	})
}

// --terminate-sockets=off leaves all sockets alone, and status says so.
func TestUDPSocketsStayIfTurnedOff(t *testing.T) {
	w := newWorld(t, "node-a")
	w.agent().Flags = []string{"--terminate-sockets", "off"}
	w.start()
	w.apply("dns", objects(w.udp("dns", 1, "b1"))...)
	s := w.connectUDP(t, ipv4, w.Host("a1"), ipv4.clusterIP(1))
	w.apply("dns", objects(w.udp("dns", 1, "b2"))...)
	if got := s.exchangeConnected(s.to).Pod; got != "b1" {
		t.Errorf("%s has %s, want b1", s.what, got)
	}
	if st := w.sockets(); st.Method != api.SocketTerminationOff || st.Passes != 0 || st.Why == "" {
		t.Errorf("the status is %+v", st)
	}
}

// R29: a socket bound to a device ends, too: netlink finds it only there.
func TestUDPSocketOfADeviceEnds(t *testing.T) {
	withEachMethod(t, func(t *testing.T, w *world) {
		w.start()
		w.apply("dns", objects(w.udp("dns", 1, "b1"))...)
		for _, f := range families {
			s := &connectedSocket{udpSocket: f.datagrams(t, w.Host("a1")), to: f.clusterIP(1), what: "the socket of a device"}
			w.must(unix.BindToDevice(s.fd, "eth0"))
			s.mustConnect(s.to)
			s.exchangeConnected(s.to)
			w.sweepsAfter(func() { w.remove("dns") })
			s.wantEnded()
			w.apply("dns", objects(w.udp("dns", 1, "b1"))...)
		}
	})
}

// The GC program cannot be loaded if the kernel has no BTF. The agent serves anyway, and status says what is
// missing.
func TestAgentServesWithoutSocketGC(t *testing.T) {
	needsPrivateMounts(t)
	w := newWorld(t, "node-a")
	script := filepath.Join(t.TempDir(), "beeline")
	w.must(os.WriteFile(script, []byte("#!/bin/sh\nexec unshare --mount sh -c 'mount -t tmpfs none /sys/kernel/btf && exec \"$0\" \"$@\"' "+
		program+" \"$@\"\n"), 0o755))
	w.agent().Program = script
	w.start()
	w.apply("dns", objects(w.udp("dns", 1, "b1"))...)
	s := w.connectUDP(t, ipv4, w.Host("a1"), ipv4.clusterIP(1))
	w.apply("dns", objects(w.udp("dns", 1, "b2"))...)
	if got := w.connectUDP(t, ipv4, w.Host("a1"), ipv4.clusterIP(1)).pod; got != "b2" {
		t.Errorf("a new socket has %s, want b2", got)
	}
	wantUntouched([]*connectedSocket{s})
	status, err := w.agent().Status()
	w.must(err)
	if st := status.SocketTermination; st.Method != api.SocketTerminationOff || st.LastError == "" {
		t.Errorf("the status is %+v", st)
	}
	if !status.Conditions.Has(condition.BindNotProtected) {
		t.Errorf("the status does not say that ports are not protected:\n%s", status.Conditions)
	}
	missing := map[string]bool{}
	for _, f := range status.Features {
		missing[f.Name] = !f.Present
	}
	if !missing["socket iterators"] || !missing["bpf_sock_destroy"] {
		t.Errorf("the status does not say that the kernel lacks socket iterators: %+v", status.Features)
	}
}

// R29: a socket that calls getpeername just when its Service is removed is found, too.
func TestUDPSocketEndsThoughItAsksForNames(t *testing.T) {
	withEachMethod(t, func(t *testing.T, w *world) {
		method := w.agent().Flags
		w.agent().Flags = []string{"--terminate-sockets", "off"}
		w.start()
		for _, f := range families {
			w.apply("dns", objects(w.udp("dns", 1, "b1"))...)
			s := w.connectUDP(t, f, w.Host("a1"), f.clusterIP(1))
			w.remove("dns")
			w.must(s.send("who"))
			if _, from, err := s.receive(); err != nil || from != f.pod(w.Host("b1")) {
				t.Errorf("a reply arrived from %s (%v), but its Service is gone", from, err)
			}
			s.wantPeer(f.pod(w.Host("b1")))
			w.must(w.agent().Kill())
			w.agent().Flags = method
			w.start()
			s.wantEnded()
			w.must(w.agent().Kill())
			w.agent().Flags = []string{"--terminate-sockets", "off"}
			w.start()
		}
		w.must(w.agent().Kill())
		w.agent().Flags = method
		w.start()
	})
}

// R29, R33: a hostPort at one loopback address takes it from a NodePort at all of them, and the sockets end.
func TestUDPSocketEndsWhenItsAddressIsTaken(t *testing.T) {
	w := startWorld(t, "node-a")
	w.apply("dns", objects(w.publicUDP("dns", 1, "b1"))...)
	taken, other := ipv4.loopbacks()[1], ipv4.loopbacks()[0]
	gone, stays := w.connectUDP(t, ipv4, w.Host("node-a"), taken), w.connectUDP(t, ipv4, w.Host("node-a"), other)
	pod := podObject(w.Host("a2"), taken.Addr().String())
	port := &pod.Spec.Containers[0].Ports[0]
	port.HostPort, port.ContainerPort, port.Protocol = nodePort, int32(lab.PortUDP), corev1.ProtocolUDP
	w.apply("pod", pod)
	gone.wantEnded()
	w.quiet()
	wantUntouched([]*connectedSocket{stays})
}

// R22, R29: sockets connected to a NodePort end when the node loses their address, and only these: the backend
// still serves elsewhere.
func TestUDPSocketEndsWithItsNodePortAddress(t *testing.T) {
	withEachMethod(t, func(t *testing.T, w *world) {
		w.agent().Flags = append(w.agent().Flags, "--nodeport-addresses=203.0.113.0/24,2001:db8:7::/64")
		node := w.Host("node-a")
		lost := func(f family) netip.AddrPort { return f.choose("203.0.113.7", "2001:db8:7::7", nodePort) }
		kept := func(f family) netip.AddrPort { return f.choose("203.0.113.8", "2001:db8:7::8", nodePort) }
		for _, f := range []family{ipv4, ipv6} {
			w.addAddress(node, lost(f).Addr(), kept(f).Addr())
		}
		w.start()
		w.apply("dns", objects(w.publicUDP("dns", 1, "b1"))...)
		var gone, stay []*connectedSocket
		for _, f := range families {
			for _, host := range w.hosts(askers) {
				gone = append(gone, w.connectUDP(t, f, host, lost(f)))
				stay = append(stay, w.connectUDP(t, f, host, kept(f)), w.connectUDP(t, f, host, f.clusterIP(1)))
			}
		}
		w.sweepsAfter(func() { w.removeAddress(node, lost(ipv4).Addr(), lost(ipv6).Addr()) })
		wantAllEnded(gone)
		w.quiet()
		wantUntouched(stay)
	})
}
