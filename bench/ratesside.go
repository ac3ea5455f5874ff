// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// A rateSide is one way through a balancer.
type rateSide struct {
	name    string
	line    *rateLine
	set     uint32         // of the line's frames
	service netip.AddrPort // which clients ask
	becomes becoming
	// attach puts the side's program at the balancer's end; nil where it is there.
	attach func() error
	// handled counts packets, and begun flows; nil where nobody counts them.
	handled, begun func() (uint64, error)
	// stats says that handled counts only while the kernel counts runs of programs,
	// which costs time.
	stats bool
}

// becoming is what a balancer makes of a client's packet.
type becoming int

const (
	becomesNothing becoming = iota // taken as it came
	becomesDNAT
	becomesSNAT // and DNAT, with the node's address as the source
	becomesIPIP
)

// What is asked for, and who is to get it: an address beyond the fabric, on no node that
// balances.
var (
	rateService  = netip.AddrPortFrom(addressSNAT, servicePort)
	rateDirect   = netip.AddrPortFrom(addressDSR, servicePort)
	rateEndpoint = netip.AddrPortFrom(netip.MustParseAddr("10.10.9.11"), serverPort)
)

// Flows come from one client, from ports that nobody chooses for translation.
var rateClient = netip.MustParseAddr("192.168.200.10")

const rateFirstPort = 1024

// flows are the side's packets.
func (s *rateSide) flows() []segment {
	all := make([]segment, rateFlows)
	for i := range all {
		all[i] = segment{from: netip.AddrPortFrom(rateClient, uint16(rateFirstPort+i)), to: s.service, protocol: unix.IPPROTO_UDP}
	}
	return all
}

// frames is where the side's are in the table of frames; before the first set is room for
// answers.
func (s *rateSide) frames() frameSet {
	return frameSet{first: (1 + s.set) * rateFlows, count: rateFlows}
}

// answered says whether there are flows, in which the backend answers by the balancer.
func (s *rateSide) answered() bool { return s.begun != nil }

// like is what each packet of the side has when it comes back, at its place in the frame:
// Ethernet is 14 bytes, in IPv4 the protocol is at 9, source and destination at 12 and 16.
func (s *rateSide) like() RatesLikeness {
	const ip, udp = ethernetLength, ethernetLength + 20
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

// received reads a packet that has come back, and makes sure that it is whole and what the
// side makes of one of its own.
func (s *rateSide) received(packet []byte) (out segment, err error) {
	if s.becomes == becomesIPIP {
		inside, _, j, err := parseDirect(dsrIPIP, packet)
		if err == nil && (j.from != s.line.balancer.Addr4 || j.to != rateEndpoint.Addr() || inside.to != s.service) {
			err = fmt.Errorf("%s, from %s to %s", inside, j.from, j.to)
		}
		return inside, err
	}
	if out, _, err = parseFrame(packet); err != nil {
		return out, err
	}
	from, to := rateClient, rateEndpoint
	switch s.becomes {
	case becomesNothing:
		to = s.service
	case becomesSNAT:
		from = s.line.balancer.Addr4
	}
	if out.from.Addr() != from || out.to != to || out.outer[0].IsValid() {
		return out, fmt.Errorf("%s, want %s to %s", out, from, to)
	}
	return out, nil
}
