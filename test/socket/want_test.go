// SPDX-License-Identifier: Apache-2.0

package socket

import (
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/test/lab"
)

// The results of a connection, besides the pods that answer it.
const (
	// rejected by the hook: connect(2) itself returns the error.
	rejected = "ECONNREFUSED, at once"
	// dropped by the hook: connect(2) itself returns the error.
	dropped = "EPERM, at once"
	// alone: the hook has passed it, and there is no such address. The lab's fabric has no route and
	// reports that.
	alone = "ENETUNREACH, from the fabric"
	// closed: the hook has passed it, and the host with the address reports that nobody listens.
	closed = "ECONNREFUSED, from the host"
)

// meet returns the result of connections to an address: one of the above, another errno, or the names of the
// pods that answer. The sockets are bound to `bound` if that is valid.
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
	// Only a hook can fail connect(2) itself: an error that a packet brings is read after the call has
	// returned.
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

// wantMeet checks the result of connections of each named host.
func (w *world) wantMeet(t *testing.T, from string, f family, to netip.AddrPort, want string) {
	t.Helper()
	for _, host := range w.hosts(from) {
		if got := meet(t, host, f, to, netip.Addr{}); got != want {
			t.Errorf("%s connects to %s and gets %q, want %q", host.Name, to, got, want)
		}
	}
}

// wantMeetBound is wantMeet for sockets bound to an address.
func (w *world) wantMeetBound(t *testing.T, from string, bound netip.Addr, f family, to netip.AddrPort, want string) {
	t.Helper()
	for _, host := range w.hosts(from) {
		if got := meet(t, host, f, to, bound); got != want {
			t.Errorf("%s, bound to %s, connects to %s and gets %q, want %q", host.Name, bound, to, got, want)
		}
	}
}
