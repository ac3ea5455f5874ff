// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/bench/harness"
	"beeline.io/beeline/bench/testrun"
)

// A template is a packet from which flows are made, with other addresses and ports.
type template struct {
	bytes    []byte
	is4      bool
	protocol uint8
	l4       int // offset of layer 4
	source   netip.AddrPort
	asked    netip.AddrPort
}

// parseTemplate finds a packet's source. All headers must fit into a frame, because only that is rewritten for
// each flow.
func parseTemplate(packet []byte) (t template, err error) {
	t.bytes = packet
	ip := packet[testrun.EthernetLength:]
	length := 40
	switch kind := binary.BigEndian.Uint16(packet[12:]); {
	case kind == unix.ETH_P_IP && len(ip) >= 20 && ip[0]>>4 == 4:
		t.is4, t.protocol, length = true, ip[9], int(ip[0]&15)*4
		if binary.BigEndian.Uint16(ip[6:])&0x3fff != 0 {
			return t, errors.New("the packet is a fragment")
		}
	case kind == unix.ETH_P_IPV6 && len(ip) >= 40 && ip[0]>>4 == 6:
		t.protocol = ip[6]
	default:
		return t, fmt.Errorf("no packet of IPv4 or IPv6 directly after the Ethernet header (type %#04x)", kind)
	}
	t.l4 = testrun.EthernetLength + length
	header := map[uint8]int{unix.IPPROTO_TCP: 20, unix.IPPROTO_UDP: 8}[t.protocol]
	if header == 0 {
		return t, fmt.Errorf("the protocol in it is %d, neither TCP nor UDP", t.protocol)
	}
	if length < 20 || t.l4+header > min(len(packet), len(testrun.Frame{})) {
		return t, fmt.Errorf("its headers do not end within %d bytes", min(len(packet), len(testrun.Frame{})))
	}
	address := func(at int) netip.Addr {
		if t.is4 {
			return netip.AddrFrom4([4]byte(ip[12+at*4:]))
		}
		return netip.AddrFrom16([16]byte(ip[8+at*16:]))
	}
	t.source = netip.AddrPortFrom(address(0), binary.BigEndian.Uint16(packet[t.l4:]))
	t.asked = netip.AddrPortFrom(address(1), binary.BigEndian.Uint16(packet[t.l4+2:]))
	return t, nil
}

// The ports of flows, from firstFlowPort on; after the last one the address changes.
const (
	firstFlowPort = 1024
	flowPorts     = 1<<16 - firstFlowPort
)

// flow is the packet of the n-th flow; the first is the packet itself. Checksums are updated by the difference:
// correct ones stay correct (RFC 1624).
func (t template) flow(n uint32) []byte {
	packet := make([]byte, max(len(t.bytes), len(testrun.Frame{})))
	copy(packet, t.bytes)
	if n == 0 {
		return packet
	}
	port := t.source.Port()
	at := n
	if port >= firstFlowPort {
		at += uint32(port - firstFlowPort)
	} else {
		at-- // the first port of all others
	}
	to := netip.AddrPortFrom(harness.Plus(t.source.Addr(), int(at/flowPorts)), uint16(firstFlowPort+at%flowPorts))

	begin, end := testrun.EthernetLength+8, testrun.EthernetLength+24
	if t.is4 {
		begin, end = testrun.EthernetLength+12, testrun.EthernetLength+16
	}
	before := testrun.Sum(packet[begin:end], 0)
	copy(packet[begin:end], to.Addr().AsSlice())
	after := testrun.Sum(packet[begin:end], 0)
	if t.is4 {
		changeChecksum(packet[testrun.EthernetLength+10:], before, after)
	}
	binary.BigEndian.PutUint16(packet[t.l4:], to.Port())
	check := packet[t.l4+16:]
	if t.protocol == unix.IPPROTO_UDP {
		check = packet[t.l4+6:]
		if binary.BigEndian.Uint16(check) == 0 { // no checksum
			return packet
		}
	}
	changeChecksum(check, before, after)
	changeChecksum(check, port, to.Port())
	return packet
}

// changeChecksum updates a checksum after a sum of words has changed.
func changeChecksum(at []byte, before, after uint16) {
	sum := uint32(^binary.BigEndian.Uint16(at)) + uint32(^before) + uint32(after)
	sum = sum&0xffff + sum>>16
	sum = sum&0xffff + sum>>16
	binary.BigEndian.PutUint16(at, ^uint16(sum))
}
