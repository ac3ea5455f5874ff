// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/bench/harness"
	"beeline.io/beeline/bench/testrun"
)

// A Side is one path through a balancer.
type Side struct {
	Name    string
	Line    *Line
	Set     uint32         // of the line's frames
	Service netip.AddrPort // destination of clients
	Becomes becoming
	// attach attaches the side's program at the balancer's end; nil if it is attached already.
	attach func() error
	// handled counts packets, and begun flows; nil without a counter.
	handled, Begun func() (uint64, error)
	// stats means that handled counts only while the kernel counts runs of programs, which costs time.
	stats bool
}

// becoming is a balancer's translation of a client's packet.
type becoming int

const (
	BecomesNothing becoming = iota // unchanged
	becomesDNAT
	BecomesSNAT // and DNAT, with the node's address as the source
	becomesIPIP
)

// The clients' destination, and the backend: an address beyond the fabric, on no balancing node.
var (
	Service    = netip.AddrPortFrom(harness.AddressSNAT, harness.ServicePort)
	rateDirect = netip.AddrPortFrom(harness.AddressDSR, harness.ServicePort)
	Endpoint   = netip.AddrPortFrom(netip.MustParseAddr("10.10.9.11"), harness.ServerPort)
)

// Flows are from one client, with ports that no translation uses.
var rateClient = netip.MustParseAddr("192.168.200.10")

const firstPort = 1024

// flows are the side's packets.
func (s *Side) flows() []testrun.Segment {
	all := make([]testrun.Segment, s.Line.Flows)
	for i := range all {
		all[i] = testrun.Segment{From: netip.AddrPortFrom(rateClient, uint16(firstPort+i)), To: s.Service, Protocol: unix.IPPROTO_UDP}
	}
	return all
}

// Frames is the side's part of the table of frames; there is room for replies before the first set.
func (s *Side) Frames() testrun.FrameSet {
	return testrun.FrameSet{First: (1 + s.Set) * s.Line.Flows, Count: s.Line.Flows}
}

// answered reports whether the backend replies through the balancer, so that there are flows.
func (s *Side) answered() bool { return s.Begun != nil }

// Like is the pattern of each packet of the side when it returns, by offset in the frame: Ethernet is 14 bytes,
// in IPv4 the protocol is at 9, source and destination at 12 and 16.
func (s *Side) Like() RatesLikeness {
	const ip, udp = testrun.EthernetLength, testrun.EthernetLength + 20
	var mask, value [len(RatesLikeness{}.Mask) * 8]byte
	want := func(at int, b ...byte) {
		for i := range b {
			mask[at+i], value[at+i] = 0xff, b[i]
		}
	}
	port := func(at int, p uint16) { want(at, byte(p>>8), byte(p)) }
	protocol, node := byte(unix.IPPROTO_UDP), s.Line.balancer.Addr4.AsSlice()
	switch s.Becomes {
	case BecomesNothing:
		want(ip+12, rateClient.AsSlice()...)
		want(ip+16, s.Service.Addr().AsSlice()...)
		port(udp+2, s.Service.Port())
	case becomesDNAT, BecomesSNAT:
		source := node
		if s.Becomes == becomesDNAT {
			source = rateClient.AsSlice()
		}
		want(ip+12, source...)
		want(ip+16, Endpoint.Addr().AsSlice()...)
		port(udp+2, Endpoint.Port())
	case becomesIPIP:
		protocol = unix.IPPROTO_IPIP
		want(ip+12, node...)
		want(ip+16, Endpoint.Addr().AsSlice()...)
		want(ip+20+16, s.Service.Addr().AsSlice()...)
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
func (s *Side) received(packet []byte) (out testrun.Segment, err error) {
	if s.Becomes == becomesIPIP {
		inside, _, j, err := testrun.ParseDirect(testrun.DSRIPIP, packet)
		if err == nil && (j.From != s.Line.balancer.Addr4 || j.To != Endpoint.Addr() || inside.To != s.Service) {
			err = fmt.Errorf("%s, from %s to %s", inside, j.From, j.To)
		}
		return inside, err
	}
	if out, _, err = testrun.ParseFrame(packet); err != nil {
		return out, err
	}
	from, to := rateClient, Endpoint
	switch s.Becomes {
	case BecomesNothing:
		to = s.Service
	case BecomesSNAT:
		from = s.Line.balancer.Addr4
	}
	if out.From.Addr() != from || out.To != to || out.Outer[0].IsValid() {
		return out, fmt.Errorf("%s, want %s to %s", out, from, to)
	}
	return out, nil
}

// Against is the side that one is compared with: the minimum at the same hook, and Beeline for netfilter.
func (s *Side) Against() string {
	switch s.Name {
	case SideMinimalXDP:
		return ""
	case SideTCSNAT, SideTCDSR, SideTCChecksum, SideTCTunnel:
		return SideMinimalTC
	case sideSink, SideMinimalRecords, SideMinimalTunnel, sideMinimalRedirect, SideMinimalTC, SideXDPSNAT, SideXDPDSR:
		return SideMinimalXDP
	}
	return SideXDPSNAT
}

// Slice sends for a time. On a busy machine the generator may get too little CPU: such a slice is repeated.
func (s *Side) Slice(ctx context.Context, b Burst) (o Outcome, err error) {
	const tries, fewest = 10, 200
	for range tries {
		if o, err = s.Run(ctx, b, 0, false); err != nil || o.Sent >= fewest {
			return o, err
		}
	}
	return o, fmt.Errorf("%d packets were sent in %s, %d times in a row: other processes leave too little of CPU %d", o.Sent, b.Limit, tries, s.Line.cpu)
}
