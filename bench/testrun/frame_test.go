// SPDX-License-Identifier: Apache-2.0

package testrun

import (
	"net/netip"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"golang.org/x/sys/unix"
)

// The frames with which the edge is timed are what another implementation makes of the same words, and one
// damaged byte is detected.
func TestFrames(t *testing.T) {
	for _, ends := range [][2]string{{"192.0.2.1:1024", "198.51.100.7:65535"}, {"[2001:db8::1]:1", "[fd00:10:2::16f]:30080"}} {
		for _, protocol := range []uint8{unix.IPPROTO_TCP, unix.IPPROTO_UDP} {
			s := Segment{From: netip.MustParseAddrPort(ends[0]), To: netip.MustParseAddrPort(ends[1]), Protocol: protocol, Flags: FlagACK}
			if protocol == unix.IPPROTO_UDP {
				s.Flags = 0
			}
			f := s.Frame([6]byte{2, 1}, [6]byte{2, 2})
			if got, want := string(f[:]), madeByGopacket(t, s); got != want {
				t.Errorf("%s: the frame is\n%x, want\n%x", s, got, want)
			}
			if got, hops, err := ParseFrame(f[:]); err != nil || got != s || hops != hopsOfFrames {
				t.Errorf("%s is read as %s, %d hops, %v", s, got, hops, err)
			}
			for _, at := range []int{EthernetLength + 16, len(f) - 1} {
				f[at] ^= 1
				if _, _, err := ParseFrame(f[:]); err == nil {
					t.Errorf("%s: damage to byte %d is not detected", s, at)
				}
				f[at] ^= 1
			}
		}
	}
}

// An encapsulated packet is parsed correctly, and one damaged byte of its headers is detected.
func TestDirectFrames(t *testing.T) {
	inside := Segment{From: netip.MustParseAddrPort("192.0.2.1:1024"), To: netip.MustParseAddrPort("198.51.100.7:80"), Protocol: unix.IPPROTO_TCP, Flags: FlagACK, Sequence: 27}
	want := Journey{From: netip.MustParseAddr("10.0.0.1"), To: netip.MustParseAddr("10.0.0.2")}
	wrapped := inside
	wrapped.Outer = [2]netip.Addr{want.From, want.To}
	f := wrapped.Frame([6]byte{2, 1}, [6]byte{2, 2})
	if got, hops, j, err := ParseDirect(DSRIPIP, f[:]); err != nil || got != inside || hops != hopsOfFrames || j != want {
		t.Errorf("%s from %s to %s is read as %s, %d hops, %v, %v", inside, want.From, want.To, got, hops, j, err)
	}
	if got, _, err := ParseFrame(f[:]); err != nil || got != wrapped {
		t.Errorf("%s is read as %s, %v", wrapped, got, err)
	}
	for _, kind := range []string{DSRGeneve, DSROpt} {
		if _, _, _, err := ParseDirect(kind, f[:]); err == nil {
			t.Errorf("an encapsulated packet is taken for one of %s", kind)
		}
	}
	for _, at := range []int{EthernetLength + 12, EthernetLength + 20 + 12, len(f) - 1} {
		f[at] ^= 1
		if _, _, _, err := ParseDirect(DSRIPIP, f[:]); err == nil {
			t.Errorf("damage to byte %d is not detected", at)
		}
		f[at] ^= 1
	}
}

func madeByGopacket(t *testing.T, s Segment) string {
	t.Helper()
	eth := &layers.Ethernet{SrcMAC: []byte{2, 1, 0, 0, 0, 0}, DstMAC: []byte{2, 2, 0, 0, 0, 0}, EthernetType: layers.EthernetTypeIPv4}
	from, to := s.From.Addr().AsSlice(), s.To.Addr().AsSlice()
	var network gopacket.SerializableLayer
	var pseudo gopacket.NetworkLayer
	room := len(Frame{}) - EthernetLength - 20
	if s.From.Addr().Is4() {
		ip := &layers.IPv4{Version: 4, TTL: hopsOfFrames, Flags: layers.IPv4DontFragment, Protocol: layers.IPProtocol(s.Protocol), SrcIP: from, DstIP: to}
		network, pseudo = ip, ip
	} else {
		eth.EthernetType = layers.EthernetTypeIPv6
		ip := &layers.IPv6{Version: 6, HopLimit: hopsOfFrames, NextHeader: layers.IPProtocol(s.Protocol), SrcIP: from, DstIP: to}
		network, pseudo = ip, ip
		room -= 20
	}
	var transport gopacket.SerializableLayer
	if s.Protocol == unix.IPPROTO_TCP {
		tcp := &layers.TCP{SrcPort: layers.TCPPort(s.From.Port()), DstPort: layers.TCPPort(s.To.Port()), ACK: true}
		tcp.SetNetworkLayerForChecksum(pseudo)
		transport, room = tcp, room-20
	} else {
		udp := &layers.UDP{SrcPort: layers.UDPPort(s.From.Port()), DstPort: layers.UDPPort(s.To.Port())}
		udp.SetNetworkLayerForChecksum(pseudo)
		transport, room = udp, room-8
	}
	buffer := gopacket.NewSerializeBuffer()
	options := gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}
	if err := gopacket.SerializeLayers(buffer, options, eth, network, transport, gopacket.Payload(make([]byte, room))); err != nil {
		t.Fatal(err)
	}
	return string(buffer.Bytes())
}
