// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/binary"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/bench/stat"
	"beeline.io/beeline/bench/testrun"
	"beeline.io/beeline/test/lab"
)

// A packet counts only if it is the side's translation of a client's: the sink's pattern and the parser agree.
func TestRatePackets(t *testing.T) {
	balancer := netip.MustParseAddr("192.168.100.1")
	line := &rateLine{balancer: &lab.Host{Addr4: balancer}}
	client, port := netip.AddrPortFrom(rateClient, 2000), netip.AddrPortFrom(balancer, 40000)
	direct := [2]netip.Addr{balancer, rateEndpoint.Addr()}
	packets := map[string]testrun.Segment{
		"as it came":  {From: client, To: rateService},
		"DNAT":        {From: client, To: rateEndpoint},
		"SNAT":        {From: port, To: rateEndpoint},
		"wrong port":  {From: port, To: netip.AddrPortFrom(rateEndpoint.Addr(), 81)},
		"IPIP":        {From: client, To: rateDirect, Outer: direct},
		"IPIP, other": {From: client, To: rateService, Outer: direct},
	}
	for _, c := range []struct {
		becomes becoming
		service netip.AddrPort
		want    string
	}{
		{becomesNothing, rateService, "as it came"}, {becomesDNAT, rateService, "DNAT"},
		{becomesSNAT, rateService, "SNAT"}, {becomesIPIP, rateDirect, "IPIP"},
	} {
		side := &rateSide{line: line, becomes: c.becomes, service: c.service}
		like := side.like()
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

// A goal is kept or missed only by the whole interval.
func TestRateGoal(t *testing.T) {
	most, least := rateGoal{most: 1.25}, rateGoal{least: 4.2}
	for _, c := range []struct {
		goal rateGoal
		low  float64
		high float64
		sure float64
		want string
	}{
		{most, 1.1, 1.2, 0.98, "kept"}, {most, 1.3, 1.4, 0.98, "missed"}, {most, 1.2, 1.3, 0.98, "not decided"}, {most, 1.1, 1.2, 0.5, "not decided"},
		{least, 4.3, 5, 0.98, "kept"}, {least, 3, 4, 0.98, "missed"}, {least, 4, 5, 0.98, "not decided"}, {rateGoal{}, 1, 1, 0.98, ""},
	} {
		got := c.goal.verdict(stat.Interval{Median: (c.low + c.high) / 2, Low: c.low, High: c.high, Confidence: c.sure})
		if !strings.HasSuffix(got, c.want) || c.want == "" && got != "" {
			t.Errorf("%+v, %g to %g: %q, want %q", c.goal, c.low, c.high, got, c.want)
		}
	}
}
