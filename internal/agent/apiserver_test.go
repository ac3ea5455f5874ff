// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"
)

// R26: the API server's addresses are those of the last connections, each once.
func TestAddressesOfTheAPIServer(t *testing.T) {
	at := func(n int) netip.Addr { return netip.MustParseAddr(fmt.Sprintf("192.0.2.%d", n)) }
	var s apiServer
	for _, n := range []int{1, 2, 1, 3, 4, 5, 6, 7, 8, 9} {
		s.note(net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.AddrFrom16(at(n).As16()), 6443)))
	}
	s.note(&net.UnixAddr{Name: "@server"})
	want := []netip.Addr{at(1), at(3), at(4), at(5), at(6), at(7), at(8), at(9)}
	if got := s.addresses(); !slices.Equal(got, want) {
		t.Errorf("after connections to the API servers 192.0.2.1, .2, .1, .3 and so on to .9 the agent knows %v, want the %d that it used last: %v", got, knownServers, want)
	}
}
