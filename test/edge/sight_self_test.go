// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"beeline.io/beeline/test/lab"
)

// sight reads what is in a packet, for each kind of DSR and family.
func TestSight(t *testing.T) {
	w := &world{t: t}
	pair := func(four, six string) [2]netip.AddrPort {
		return [2]netip.AddrPort{netip.MustParseAddrPort(four), netip.MustParseAddrPort(six)}
	}
	client, vip := pair("192.0.2.1:1000", "[2001:db8::1]:1000"), pair("198.51.100.1:80", "[2001:db8::80]:80")
	backend, balancer := pair("10.0.0.1:8080", "[fd00::1]:8080"), pair("10.1.0.1:0", "[fd00:1::1]:0")
	for family := range 2 {
		inner := w.datagramTo(client[family], vip[family])
		around := func(protocol layers.IPProtocol, payload []byte) []byte {
			from, to := balancer[family].Addr().AsSlice(), backend[family].Addr().AsSlice()
			var ip gopacket.SerializableLayer = &layers.IPv4{Version: 4, TTL: 64, Protocol: protocol, SrcIP: from, DstIP: to}
			if family == 1 {
				ip = &layers.IPv6{Version: 6, HopLimit: 64, NextHeader: protocol, SrcIP: from, DstIP: to}
			}
			b := gopacket.NewSerializeBuffer()
			w.must(gopacket.SerializeLayers(b, gopacket.SerializeOptions{FixLengths: true}, ip, gopacket.Payload(payload)))
			return b.Bytes()
		}
		geneve := geneveWith(backend[family], inner)
		udp := binary.BigEndian.AppendUint16([]byte{0xc3, 0x50, genevePort >> 8, genevePort & 0xff}, uint16(8+len(geneve)))
		udp = append(append(udp, 0, 0), geneve...)
		tunnel := []layers.IPProtocol{layers.IPProtocolIPv4, layers.IPProtocolIPv6}[family]
		plain := sighting{protocol: "udp", from: client[family], to: vip[family], hops: 60}
		nested := plain
		nested.outer.from, nested.outer.to, nested.outerHops = balancer[family].Addr(), backend[family].Addr(), 64
		for kind, test := range map[string]struct {
			packet   []byte
			want     sighting
			told, to netip.AddrPort
		}{
			"":       {inner, plain, netip.AddrPort{}, vip[family]},
			"ipip":   {around(tunnel, inner), nested, netip.AddrPort{}, vip[family]},
			"geneve": {around(layers.IPProtocolUDP, udp), nested, backend[family], vip[family]},
			"opt":    {withOption(w.datagramTo(client[family], backend[family]), vip[family]), plain, vip[family], backend[family]},
		} {
			got, want := sight(&lab.CapturedPacket{Data: test.packet}), test.want
			want.kind, want.told, want.to, want.text = kind, test.told, test.to, got.text
			if got != want {
				t.Errorf("%q:\n%+v\nwant\n%+v", kind, got, want)
			}
		}
	}
}

// withOption inserts an option that names a frontend into a UDP packet.
func withOption(packet []byte, frontend netip.AddrPort) []byte {
	told := append(binary.BigEndian.AppendUint16(nil, frontend.Port()), frontend.Addr().AsSlice()...)
	if packet[0]>>4 == 4 {
		b := append(append([]byte(nil), packet[:20]...), optionFrontend4, dsrOptionLength4)
		b[0], b[3] = 0x47, byte(len(packet)+8)
		return append(append(b, told...), packet[20:]...)
	}
	b := append(append([]byte(nil), packet[:40]...), packet[6], 2, optionFrontend6, dsrOptionLength6)
	b[5], b[6] = byte(len(packet)-40+24), 60
	return append(append(append(b, told...), 1, 0), packet[40:]...)
}
