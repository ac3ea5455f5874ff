// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/bench/testrun"
	"beeline.io/beeline/test/lab"
)

// A packet counts only if it is the side's translation of a client's: the sink's pattern and the parser agree.
func TestRatePackets(t *testing.T) {
	balancer := netip.MustParseAddr("192.168.100.1")
	line := &Line{balancer: &lab.Host{Addr4: balancer}}
	client, port := netip.AddrPortFrom(rateClient, 2000), netip.AddrPortFrom(balancer, 40000)
	direct := [2]netip.Addr{balancer, Endpoint.Addr()}
	packets := map[string]testrun.Segment{
		"as it came":  {From: client, To: Service},
		"DNAT":        {From: client, To: Endpoint},
		"SNAT":        {From: port, To: Endpoint},
		"wrong port":  {From: port, To: netip.AddrPortFrom(Endpoint.Addr(), 81)},
		"IPIP":        {From: client, To: rateDirect, Outer: direct},
		"IPIP, other": {From: client, To: Service, Outer: direct},
	}
	for _, c := range []struct {
		becomes becoming
		service netip.AddrPort
		want    string
	}{
		{BecomesNothing, Service, "as it came"}, {becomesDNAT, Service, "DNAT"},
		{BecomesSNAT, Service, "SNAT"}, {becomesIPIP, rateDirect, "IPIP"},
	} {
		side := &Side{Line: line, Becomes: c.becomes, Service: c.service}
		like := side.Like()
		for name, s := range packets {
			s.Protocol = unix.IPPROTO_UDP
			f := s.Frame([6]byte{2, 1}, [6]byte{2, 2})
			alike := true
			for i := range like.Mask {
				alike = alike && binary.NativeEndian.Uint64(f[8*i:])&like.Mask[i] == like.Value[i]
			}
			_, err := side.received(f[:])
			if want := name == c.want; alike != want || (err == nil) != want {
				t.Errorf("side of %q, packet %q: the sink accepts it: %v, the parser says %v", c.want, name, alike, err)
			}
		}
	}
}
