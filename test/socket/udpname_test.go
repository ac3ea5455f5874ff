// SPDX-License-Identifier: Apache-2.0

package socket

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/test/lab"
)

// K2: several requests are in flight at once; if Services share their only backend, replies are matched in the
// order of the requests.
func TestUDPAnswersInFlight(t *testing.T) {
	w := startWorld(t, "node-a")
	for n := range uint8(3) {
		w.apply("s"+string(rune('a'+n)), objects(w.udp("s"+string(rune('a'+n)), n+1, "b1"))...)
	}
	inEachFamily(t, func(t *testing.T, f family) {
		s := f.datagrams(t, w.Host("a1"))
		targets := []netip.AddrPort{f.clusterIP(1), f.clusterIP(2), f.pod(w.Host("b1")), f.clusterIP(3)}
		for range 5 {
			for _, to := range targets {
				w.must(s.sendTo(to.String(), to))
			}
			for _, to := range targets {
				s.wantAnswer(to.String(), to)
			}
			slices.Reverse(targets)
		}
	})
}

// K2: the name of a reply is checked against the tables: a reply has the name of its request's destination,
// even if its backend was removed meanwhile; later ones, and those for a removed Service, do not.
func TestUDPNamesAreChecked(t *testing.T) {
	w := startWorld(t, "node-a")
	inEachFamily(t, func(t *testing.T, f family) {
		s, slicesOf := w.udp("dns", 1, "b1")
		w.apply("dns", objects(s, slicesOf)...)
		to, backend := f.clusterIP(1), netip.AddrPortFrom(f.of(w.Host("b1")), lab.PortUDP)
		c := f.datagrams(t, w.Host("a1"))
		held := func(change func()) { // two replies wait in the socket's queue
			w.must(c.sendTo("first", to))
			w.must(c.sendTo("second", to))
			c.awaitDatagrams(2)
			change()
		}
		held(func() {
			_, none := w.udp("dns", 1, "")
			w.apply("dns", objects(s, none)...)
		})
		c.wantAnswer("first", to)
		c.wantAnswer("second", backend)
		w.apply("dns", objects(s, slicesOf)...)
		held(func() { w.remove("dns") })
		c.wantAnswer("first", backend)
		c.wantAnswer("second", backend)
	})
}

// awaitDatagrams waits until so many datagrams are in the socket's queue.
func (s *udpSocket) awaitDatagrams(n int) {
	s.t.Helper()
	// FIONREAD returns only the first one's length; peeking with an offset moves on.
	if err := unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_PEEK_OFF, 0); err != nil {
		s.t.Fatal(err)
	}
	for range n {
		// Without the source address: the hook would handle that call, and count it.
		buffer := make([]byte, 4096)
		errno := unix.EINTR
		for errno == unix.EINTR {
			_, _, errno = unix.Syscall6(unix.SYS_RECVFROM, uintptr(s.fd), uintptr(unsafe.Pointer(&buffer[0])), uintptr(len(buffer)), unix.MSG_PEEK, 0, 0)
		}
		if errno != 0 {
			s.t.Fatalf("wait for a datagram: %v", errno)
		}
	}
	if err := unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_PEEK_OFF, -1); err != nil {
		s.t.Fatal(err)
	}
}

// K3: sendmmsg and recvmmsg are as many calls of each.
func TestUDPManyMessagesInOneCall(t *testing.T) {
	w := startWorld(t, "node-a")
	w.apply("one", objects(w.udp("one", 1, "b1"))...)
	w.apply("two", objects(w.udp("two", 2, "b2"))...)
	inEachFamily(t, func(t *testing.T, f family) {
		s := f.datagrams(t, w.Host("a1"))
		targets := []netip.AddrPort{f.clusterIP(1), f.pod(w.Host("b3")), f.clusterIP(2), f.clusterIP(1)}
		if err := s.sendMany(targets); err != nil {
			t.Fatal(err)
		}
		s.awaitDatagrams(len(targets))
		answered := map[netip.AddrPort]int{}
		for _, from := range s.receiveMany(len(targets)) {
			answered[from]++
		}
		for _, to := range targets {
			if answered[to]--; answered[to] < 0 {
				t.Errorf("asked %v; an answer from %s is missing", targets, to)
			}
		}
	})
}

// K3: IP_PKTINFO sets the source of a datagram to a Service, and returns the address at which a reply arrived.
func TestUDPPacketInfo(t *testing.T) {
	w := startWorld(t, "node-a")
	w.apply("dns", objects(w.udp("dns", 1, "b1"))...)
	node := w.Host("node-a")
	w.must(node.AddAddress("eth0", netip.MustParsePrefix("10.10.1.99/32")))
	w.must(node.AddAddress("eth0", netip.MustParsePrefix("fd00:10:1::99/128")))
	inEachFamily(t, func(t *testing.T, f family) {
		to, source := f.clusterIP(1), f.choose("10.10.1.99", "fd00:10:1::99", 0).Addr()
		s := f.datagrams(t, node)
		s.wantPacketInfo()
		if err := s.sendFrom(source, "who", to); err != nil {
			t.Fatal(err)
		}
		answer, from, came := s.receivePacketInfo()
		if answer.Peer.Addr() != source {
			t.Errorf("the server saw %s, want %s", answer.Peer, source)
		}
		if from != to || came != source {
			t.Errorf("the reply came from %s to %s, want from %s to %s", from, came, to, source)
		}
	})
}

// K2: if two Services have the same only backend, replies are matched in the order of the requests, however
// many each of them got.
func TestUDPManyQuestionsInFlight(t *testing.T) {
	w := startWorld(t, "node-a")
	w.apply("a", objects(w.udp("a", 1, "b1"))...)
	w.apply("b", objects(w.udp("b", 2, "b1"))...)
	inEachFamily(t, func(t *testing.T, f family) {
		at := map[rune]netip.AddrPort{'a': f.clusterIP(1), 'b': f.clusterIP(2), 'p': f.pod(w.Host("b1"))}
		for _, order := range []string{"aabb", "abab", "ababab", "aab", "aap", "papapa", "aaaabbbb"} {
			s := f.datagrams(t, w.Host("a1"))
			s.exchange(at['a']) // the flow that makes the hook note the others
			s.exchange(at['b'])
			for i, c := range order {
				w.must(s.sendTo(fmt.Sprint(order, i), at[c]))
			}
			for i, c := range order {
				s.wantAnswer(fmt.Sprint(order, i), at[c])
			}
		}
	})
}
