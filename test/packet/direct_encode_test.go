// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"beeline.io/beeline/test/packet/model"
)

var (
	encapsulations     = []model.DSR{model.IPIP, model.Geneve, model.Opt}
	encapsulationNames = map[model.DSR]string{model.IPIP: "IPIP", model.Geneve: "Geneve", model.Opt: "option"}
)

// direct is the port with DSR that serves what another port serves without.
func direct(port uint16, dsr model.DSR) uint16 { return port + 100*uint16(dsr) }

// overhead is the number of bytes that an encapsulation adds.
func overhead(f family, dsr model.DSR) int {
	if f.client.Is4() {
		return map[model.DSR]int{model.IPIP: 20, model.Geneve: 48, model.Opt: 8}[dsr]
	}
	return map[model.DSR]int{model.IPIP: 40, model.Geneve: 80, model.Opt: 24}[dsr]
}

// way is the path of a client's packets to a backend with DSR.
type way struct {
	dsr       model.DSR
	own, node netip.Addr // of the outer header; node is the backend's
	backend   netip.AddrPort
}

// around encapsulates a frame with another encoder.
func (y way) around(t testing.TB, frame []byte, hash uint32) []byte {
	t.Helper()
	inner, padding := split(frame)
	v4 := y.own.Is4()
	eth := &layers.Ethernet{DstMAC: frame[:6], SrcMAC: frame[6:12], EthernetType: layers.EthernetType(binary.BigEndian.Uint16(frame[12:]))}
	to, protocol := y.backend.Addr(), layers.IPProtocolIPv4
	if !v4 {
		protocol = layers.IPProtocolIPv6
	}
	if y.dsr == model.Geneve {
		to, protocol = y.node, layers.IPProtocolUDP
	}
	var outer gopacket.SerializableLayer = &layers.IPv4{Version: 4, TTL: 64, TOS: inner[1], Flags: layers.IPv4DontFragment, Protocol: protocol,
		SrcIP: y.own.AsSlice(), DstIP: to.AsSlice()}
	if !v4 {
		word := binary.BigEndian.Uint32(inner)
		outer = &layers.IPv6{Version: 6, TrafficClass: uint8(word >> 20), FlowLabel: word & 0xfffff, NextHeader: protocol, HopLimit: 64,
			SrcIP: y.own.AsSlice(), DstIP: to.AsSlice()}
	}
	if y.dsr == model.IPIP {
		return append(serialize(t, eth, outer, gopacket.Payload(inner)), padding...)
	}
	data := binary.BigEndian.AppendUint16(nil, y.backend.Port())
	data = append(append(data, 0, 0), y.backend.Addr().AsSlice()...)
	payload := serializeWith(t, gopacket.SerializeOptions{FixLengths: true},
		&layers.UDP{SrcPort: layers.UDPPort(49152 + hash>>18), DstPort: 6081},
		&layers.Geneve{CriticalOption: true, Protocol: eth.EthernetType, Options: []*layers.GeneveOption{{Class: 0xffbe, Type: 0x81, Data: data}}},
		gopacket.Payload(inner))
	return append(serialize(t, eth, outer, gopacket.Payload(payload)), padding...)
}

// split separates a frame's packet from its padding.
func split(frame []byte) (packet, padding []byte) {
	length := int(binary.BigEndian.Uint16(frame[16:]))
	if frame[12] == 0x86 {
		length = 40 + int(binary.BigEndian.Uint16(frame[18:]))
	}
	return frame[14 : 14+length], frame[14+length:]
}

func serializeWith(t testing.TB, options gopacket.SerializeOptions, all ...gopacket.SerializableLayer) []byte {
	t.Helper()
	buffer := gopacket.NewSerializeBuffer()
	must(t, gopacket.SerializeLayers(buffer, options, all...))
	return slices.Clone(buffer.Bytes())
}

// withOption is the packet to a backend, with its original destination in its first option.
func (p probe) withOption(backend netip.AddrPort) probe {
	asked := binary.BigEndian.AppendUint16(nil, p.to.Port())
	asked = append(asked, p.to.Addr().AsSlice()...)
	if p.to.Addr().Is4() {
		option := layers.IPv4Option{OptionType: 158, OptionLength: 8, OptionData: asked}
		p.ipOptions = append([]layers.IPv4Option{option}, p.ipOptions...)
	} else {
		header := slices.Concat([]byte{byte(p.extension), 2, 0x5e, 18}, asked, []byte{1, 0})
		p.extension, p.extensions = layers.IPProtocolIPv6Destination, append([][]byte{header}, p.extensions...)
	}
	p.to = backend
	return p
}

// sent is a client's packet as it leaves for the backend.
func (y way) sent(t testing.TB, at hook, p probe, next [6]byte) []byte {
	t.Helper()
	hash := p.hash()
	p = p.forwarded(at, p.from, p.to, next)
	if y.dsr == model.Opt {
		_, padding := split(p.frame(t))
		packet, _ := split(p.withOption(y.backend).frame(t))
		return slices.Concat(p.frame(t)[:14], packet, padding)
	}
	return y.around(t, p.frame(t), hash)
}

// way is the path to the backend of node-b.
func (f family) way(dsr model.DSR) way {
	return way{dsr, f.own, f.node, on(f.remote, targetPort)}
}

// eachDirectFamily is eachFamily for each encapsulation.
func (w *world) eachDirectFamily(t *testing.T, test func(t *testing.T, at hook, f family, dsr model.DSR)) {
	t.Helper()
	for _, dsr := range encapsulations {
		t.Run(fmt.Sprint(encapsulationNames[dsr]), func(t *testing.T) {
			w.eachFamily(t, func(t *testing.T, at hook, f family) { test(t, at, f, dsr) })
		})
	}
}

// eachDirect is each for all encapsulations.
func (w *world) eachDirect(t *testing.T, test func(t *testing.T, at hook, f family, protocol uint8, dsr model.DSR)) {
	t.Helper()
	for _, dsr := range encapsulations {
		t.Run(fmt.Sprint(encapsulationNames[dsr]), func(t *testing.T) {
			w.each(t, func(t *testing.T, at hook, f family, protocol uint8) { test(t, at, f, protocol, dsr) })
		})
	}
}
