// SPDX-License-Identifier: Apache-2.0

package socket

import (
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/test/lab"
)

// What a connection can meet, beside the pods that answer it.
const (
	// rejected by the hook: connect(2) itself says that there is nobody.
	rejected = "ECONNREFUSED, at once"
	// dropped by the hook: connect(2) itself says that it is not allowed.
	dropped = "EPERM, at once"
	// alone: the hook has left it alone, and the address leads nowhere. The
	// lab's fabric has no route for it and says so.
	alone = "ENETUNREACH, from the fabric"
	// closed: the hook has left it alone, and the host that has the address says
	// that nobody listens.
	closed = "ECONNREFUSED, from the host"
)

// meet returns what connections to an address meet: one of the above, another
// errno, or the names of the pods that answer. The sockets are bound to an
// address if it is valid.
func meet(t *testing.T, from *lab.Host, f family, to netip.AddrPort, bound netip.Addr) string {
	t.Helper()
	s := f.socket(t, from, unix.SOCK_NONBLOCK)
	defer s.close()
	if bound.IsValid() {
		if err := s.bindReused(netip.AddrPortFrom(bound, 0)); err != nil {
			t.Fatalf("bind to %s on %s: %v", bound, from.Name, err)
		}
	}
	s.reportUnreachable()
	// Nothing but a hook can answer connect(2) itself: what a packet brings
	// waits until the call has returned.
	switch err := s.connect(to); err {
	case nil, unix.EINPROGRESS:
	case unix.ECONNREFUSED:
		return rejected
	case unix.EPERM:
		return dropped
	default:
		return errnoName(err)
	}
	switch err := s.await(); err {
	case nil:
		return reach(from, f, to, bound)
	case unix.ENETUNREACH:
		return alone
	case unix.ECONNREFUSED:
		return closed
	default:
		return errnoName(err)
	}
}

// wantMeet checks what connections of each host named meet.
func (w *world) wantMeet(t *testing.T, from string, f family, to netip.AddrPort, want string) {
	t.Helper()
	for _, host := range w.hosts(from) {
		if got := meet(t, host, f, to, netip.Addr{}); got != want {
			t.Errorf("%s connects to %s and meets %q, want %q", host.Name, to, got, want)
		}
	}
}

// wantMeetBound is wantMeet for sockets that are bound to an address.
func (w *world) wantMeetBound(t *testing.T, from string, bound netip.Addr, f family, to netip.AddrPort, want string) {
	t.Helper()
	for _, host := range w.hosts(from) {
		if got := meet(t, host, f, to, bound); got != want {
			t.Errorf("%s, bound to %s, connects to %s and meets %q, want %q", host.Name, bound, to, got, want)
		}
	}
}
