// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/bench/harness"
	"beeline.io/beeline/bench/testrun"
)

// A rateSide is one path through a balancer.
type rateSide struct {
	name    string
	line    *rateLine
	set     uint32         // of the line's frames
	service netip.AddrPort // destination of clients
	becomes becoming
	// attach attaches the side's program at the balancer's end; nil if it is attached already.
	attach func() error
	// handled counts packets, and begun flows; nil without a counter.
	handled, begun func() (uint64, error)
	// stats means that handled counts only while the kernel counts runs of programs, which costs time.
	stats bool
}

// becoming is a balancer's translation of a client's packet.
type becoming int

const (
	becomesNothing becoming = iota // unchanged
	becomesDNAT
	becomesSNAT // and DNAT, with the node's address as the source
	becomesIPIP
)

// The clients' destination, and the backend: an address beyond the fabric, on no balancing node.
var (
	rateService  = netip.AddrPortFrom(harness.AddressSNAT, harness.ServicePort)
	rateDirect   = netip.AddrPortFrom(harness.AddressDSR, harness.ServicePort)
	rateEndpoint = netip.AddrPortFrom(netip.MustParseAddr("10.10.9.11"), harness.ServerPort)
)

// Flows are from one client, with ports that no translation uses.
var rateClient = netip.MustParseAddr("192.168.200.10")

const rateFirstPort = 1024

// flows are the side's packets.
func (s *rateSide) flows() []testrun.Segment {
	all := make([]testrun.Segment, s.line.flows)
	for i := range all {
		all[i] = testrun.Segment{From: netip.AddrPortFrom(rateClient, uint16(rateFirstPort+i)), To: s.service, Protocol: unix.IPPROTO_UDP}
	}
	return all
}

// frames is the side's part of the table of frames; there is room for replies before the first set.
func (s *rateSide) frames() testrun.FrameSet {
	return testrun.FrameSet{First: (1 + s.set) * s.line.flows, Count: s.line.flows}
}

// answered reports whether the backend replies through the balancer, so that there are flows.
func (s *rateSide) answered() bool { return s.begun != nil }

// like is the pattern of each packet of the side when it returns, by offset in the frame: Ethernet is 14 bytes,
// in IPv4 the protocol is at 9, source and destination at 12 and 16.
func (s *rateSide) like() RatesLikeness {
	const ip, udp = testrun.EthernetLength, testrun.EthernetLength + 20
	var mask, value [len(RatesLikeness{}.Mask) * 8]byte
	want := func(at int, b ...byte) {
		for i := range b {
			mask[at+i], value[at+i] = 0xff, b[i]
		}
	}
	port := func(at int, p uint16) { want(at, byte(p>>8), byte(p)) }
	protocol, node := byte(unix.IPPROTO_UDP), s.line.balancer.Addr4.AsSlice()
	switch s.becomes {
	case becomesNothing:
		want(ip+12, rateClient.AsSlice()...)
		want(ip+16, s.service.Addr().AsSlice()...)
		port(udp+2, s.service.Port())
	case becomesDNAT, becomesSNAT:
		source := node
		if s.becomes == becomesDNAT {
			source = rateClient.AsSlice()
		}
		want(ip+12, source...)
		want(ip+16, rateEndpoint.Addr().AsSlice()...)
		port(udp+2, rateEndpoint.Port())
	case becomesIPIP:
		protocol = unix.IPPROTO_IPIP
		want(ip+12, node...)
		want(ip+16, rateEndpoint.Addr().AsSlice()...)
		want(ip+20+16, s.service.Addr().AsSlice()...)
	}
	want(ip+9, protocol)
	var l RatesLikeness
	for i := range l.Mask {
		l.Mask[i], l.Value[i] = binary.NativeEndian.Uint64(mask[8*i:]), binary.NativeEndian.Uint64(value[8*i:])
	}
	return l
}

// received parses a returned packet, and checks that it is complete and the translation of one of the side's
// own.
func (s *rateSide) received(packet []byte) (out testrun.Segment, err error) {
	if s.becomes == becomesIPIP {
		inside, _, j, err := testrun.ParseDirect(testrun.DSRIPIP, packet)
		if err == nil && (j.From != s.line.balancer.Addr4 || j.To != rateEndpoint.Addr() || inside.To != s.service) {
			err = fmt.Errorf("%s, from %s to %s", inside, j.From, j.To)
		}
		return inside, err
	}
	if out, _, err = testrun.ParseFrame(packet); err != nil {
		return out, err
	}
	from, to := rateClient, rateEndpoint
	switch s.becomes {
	case becomesNothing:
		to = s.service
	case becomesSNAT:
		from = s.line.balancer.Addr4
	}
	if out.From.Addr() != from || out.To != to || out.Outer[0].IsValid() {
		return out, fmt.Errorf("%s, want %s to %s", out, from, to)
	}
	return out, nil
}

// against is the side that one is compared with: the minimum at the same hook, and Beeline for netfilter.
func (s *rateSide) against() string {
	switch s.name {
	case sideMinimalXDP:
		return ""
	case sideTCSNAT, sideTCDSR, sideTCChecksum, sideTCTunnel:
		return sideMinimalTC
	case sideSink, sideMinimalRecords, sideMinimalTunnel, sideMinimalRedirect, sideMinimalTC, sideXDPSNAT, sideXDPDSR:
		return sideMinimalXDP
	}
	return sideXDPSNAT
}

// slice sends for a time. On a busy machine the generator may get too little CPU: such a slice is repeated.
func (s *rateSide) slice(ctx context.Context, b burst) (o outcome, err error) {
	const tries, fewest = 10, 200
	for range tries {
		if o, err = s.run(ctx, b, 0, false); err != nil || o.sent >= fewest {
			return o, err
		}
	}
	return o, fmt.Errorf("%d packets were sent in %s, %d times in a row: other processes leave too little of CPU %d", o.sent, b.limit, tries, s.line.cpu)
}
