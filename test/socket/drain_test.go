// SPDX-License-Identifier: Apache-2.0

package socket

import (
	"errors"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// tcpDrain is long enough to see that nothing happens before it expires.
const tcpDrain = 6 * time.Second

// withDrain is withEachMethod with a drain time for TCP.
func withDrain(t *testing.T, test func(t *testing.T, w *world)) {
	withEachMethod(t, func(t *testing.T, w *world) {
		w.agent().Flags = append(w.agent().Flags, "--tcp-drain-timeout", tcpDrain.String())
		w.start()
		test(t, w)
	})
}

// wantReset waits until a connection was aborted, and checks the program's error.
func wantReset(t *testing.T, h held) {
	t.Helper()
	h.SetReadDeadline(time.Now().Add(patience))
	if _, err := h.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNABORTED) {
		t.Errorf("%s: read says %v, want ECONNABORTED", h.what, err)
	}
}

// R30: with --tcp-drain-timeout a connection is reset when its backend has not served for that long, and not
// before. Other connections continue.
func TestTCPConnectionIsResetAfterItsDrainTime(t *testing.T) {
	withDrain(t, func(t *testing.T, w *world) {
		w.apply("web", objects(w.web("web", 1, "b1"))...)
		w.apply("other", objects(w.web("other", 2, "b1"))...)
		gone, stay := w.hold(askers, 1), w.hold(askers, 2)
		plain := w.open(w.Host("a1"), ipv4, ipv4.pod(w.Host("b1")))
		w.quiet()
		before := time.Now()
		w.apply("web", objects(w.web("web", 1, "b2"))...)
		w.eventually("the backend is draining", func() bool { return w.sockets().DrainingBackends > 0 })
		if got := w.sockets().DrainingBackends; got != 2 { // one address of each family
			t.Errorf("%d backends are draining, want 2", got)
		}
		w.wantAlive(t, "while its backend drains", gone)
		for _, h := range gone {
			wantReset(t, h)
			if since := time.Since(before); since < tcpDrain {
				t.Errorf("%s was reset %v after its backend went", h.what, since)
			}
		}
		w.quiet()
		w.wantAlive(t, "though the backend of others was removed", stay)
		if w.served(plain) != "b1" {
			t.Error("a connection to the pod's own address has another server")
		}
		if st := w.sockets(); st.EndedTCP != uint64(len(gone)) || st.DrainingBackends != 0 {
			t.Errorf("the status is %+v, want %d ended", st, len(gone))
		}
	})
}

// R30: the server's end of the connection is reset, too.
func TestTCPServerLearnsOfTheReset(t *testing.T) {
	withDrain(t, func(t *testing.T, w *world) {
		listener, err := w.Host("b2").Listen("tcp", "10.10.2.12:9000")
		w.must(err)
		defer listener.Close()
		s, slices := w.web("web", 1, "b2")
		for _, slice := range slices {
			slice.Ports[0].Port = new(int32(9000))
		}
		w.apply("web", objects(s, slices)...)
		client := w.open(w.Host("a1"), ipv4, ipv4.clusterIP(1))
		server, err := listener.Accept()
		w.must(err)
		defer server.Close()
		w.remove("web")
		wantReset(t, held{Conn: client, what: "the connection"})
		server.SetReadDeadline(time.Now().Add(patience))
		if _, err := server.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("the server reads %v, want ECONNRESET", err)
		}
	})
}

// R12: a terminating backend that serves keeps its connections, and so does one that serves again in time.
func TestTCPConnectionStaysWithABackendThatServes(t *testing.T) {
	withDrain(t, func(t *testing.T, w *world) {
		s, slices := w.web("web", 1, "b1 b2")
		endpoints(slices, w.Host("b2"), draining)
		w.apply("web", objects(s, slices)...)
		terminating := w.hold(askers, 1) // to b1
		endpoints(slices, w.Host("b1"), draining)
		endpoints(slices, w.Host("b2"), unknown)
		w.apply("web", objects(s, slices)...)

		w.apply("back", objects(w.web("back", 2, "b3"))...)
		back := w.hold(askers, 2)
		w.apply("back", objects(w.web("back", 2, "a2"))...)
		w.eventually("the backend is draining", func() bool { return w.sockets().DrainingBackends == 2 })
		w.apply("back", objects(w.web("back", 2, "a2 b3"))...)
		w.eventually("nothing is draining", func() bool { return w.sockets().DrainingBackends == 0 })

		// Connections of a backend removed now are reset later than these would have been.
		w.apply("last", objects(w.web("last", 3, "b3"))...)
		last := w.hold("a1", 3)
		w.remove("last")
		for _, h := range last {
			wantReset(t, h)
		}
		w.wantAlive(t, "with a terminating backend", terminating)
		w.wantAlive(t, "with a backend that serves again", back)
	})
}

// R30: without the flag no connection is reset, not even one whose backend has been gone for long: the GC pass
// for UDP leaves it alone.
func TestTCPConnectionStaysWithoutADrainTime(t *testing.T) {
	withEachMethod(t, func(t *testing.T, w *world) {
		w.start()
		s, slices := w.web("web", 1, "b1")
		w.apply("web", objects(s, slices)...)
		w.apply("dns", objects(w.udp("dns", 2, "b1"))...)
		connections := w.hold(askers, 1)
		datagrams := w.connectUDP(t, ipv4, w.Host("a1"), ipv4.clusterIP(2))
		w.sweepsAfter(func() {
			w.must(w.folder.Remove("web"))
			w.remove("dns")
		})
		datagrams.wantEnded()
		w.wantAlive(t, "without its Service", connections)
	})
}
