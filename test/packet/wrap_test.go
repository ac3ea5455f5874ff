// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"beeline.io/beeline/test/packet/model"
)

// wrapping is one of the ways in which a balancer sends a client's packet to a backend's node
// (bpf/encap/wire.h): gopacket makes the bytes.
type wrapping struct {
	name string
	kind model.DSR
	wrap func(t testing.TB, f family, w wrapped) []byte
}

// wrapped is a client's packet that a balancer sends to a backend.
type wrapped struct {
	probe    // as the client sent it
	balancer netip.Addr
	backend  netip.AddrPort
	ecn      uint8  // of the outer header
	inner    []byte // replaces the probe's bytes from the IP header on
}

var wrappings = []wrapping{
	{"IPIP", model.IPIP, wrapIPIP}, {"Geneve", model.Geneve, wrapGeneve}, {"option", model.Opt, wrapOption},
}

// fromBalancer is a client's packet on its way from node-b to a backend.
func (f family) fromBalancer(p probe, backend netip.AddrPort) wrapped {
	p.source, p.target = nodeBMAC, eth0MAC
	return wrapped{probe: p, balancer: f.balancer(), backend: backend}
}

// balancer is node-b.
func (f family) balancer() netip.Addr { return f.own.Next() }

func (w wrapped) bytes(t testing.TB) []byte {
	t.Helper()
	if w.inner != nil {
		return w.inner
	}
	return w.frame(t)[14:]
}

// outer is the header before the client's packet.
func (w wrapped) outer(to netip.Addr, protocol layers.IPProtocol) gopacket.NetworkLayer {
	if to.Is4() {
		if protocol == layers.IPProtocolIPv6 {
			protocol = layers.IPProtocolIPv4
		}
		return &layers.IPv4{Version: 4, TTL: 64, Flags: layers.IPv4DontFragment, TOS: w.ecn, Protocol: protocol,
			SrcIP: w.balancer.AsSlice(), DstIP: to.AsSlice()}
	}
	return &layers.IPv6{Version: 6, HopLimit: 64, TrafficClass: w.ecn, NextHeader: protocol,
		SrcIP: w.balancer.AsSlice(), DstIP: to.AsSlice()}
}

func wrapIPIP(t testing.TB, f family, w wrapped) []byte {
	outer := w.outer(w.backend.Addr(), layers.IPProtocolIPv6)
	return serialize(t, w.ethernet(), outer.(gopacket.SerializableLayer), gopacket.Payload(w.bytes(t)))
}

// geneveOption names the backend.
func (w wrapped) geneveOption() *layers.GeneveOption {
	return &layers.GeneveOption{Class: 0xffbe, Type: 0x81,
		Data: append(binary.BigEndian.AppendUint16(nil, w.backend.Port()), append([]byte{0, 0}, w.backend.Addr().AsSlice()...)...)}
}

func wrapGeneve(t testing.TB, f family, w wrapped) []byte {
	return wrapGeneveLike(t, f, w, func(*layers.Geneve) {})
}

func wrapGeneveLike(t testing.TB, f family, w wrapped, change func(*layers.Geneve)) []byte {
	outer := w.outer(f.own, layers.IPProtocolUDP)
	udp := &layers.UDP{SrcPort: 50000, DstPort: 6081}
	must(t, udp.SetNetworkLayerForChecksum(outer))
	geneve := &layers.Geneve{CriticalOption: true, Protocol: w.ethernet().EthernetType, Options: []*layers.GeneveOption{w.geneveOption()}}
	change(geneve)
	frame := serialize(t, w.ethernet(), outer.(gopacket.SerializableLayer), udp, geneve, gopacket.Payload(w.bytes(t)))
	at := 14 + 20 + 6
	if f.own.Is6() {
		at += 20
	}
	frame[at], frame[at+1] = 0, 0
	return frame
}

// carries gives a packet the option with its original destination, and sends it to the backend.
func (w wrapped) carries() probe {
	p := w.probe
	port, vip := binary.BigEndian.AppendUint16(nil, p.to.Port()), p.to.Addr().AsSlice()
	if p.to.Addr().Is4() {
		option := layers.IPv4Option{OptionType: 158, OptionLength: 8, OptionData: slices.Concat(port, vip)}
		p.ipOptions = append([]layers.IPv4Option{option}, p.ipOptions...)
	} else {
		header := slices.Concat([]byte{byte(p.extension), 2, 0x5e, 18}, port, vip, []byte{1, 0})
		p.extensions = append([][]byte{header}, p.extensions...)
		p.extension = destinationOptions
	}
	p.to = w.backend
	return p
}

func wrapOption(t testing.TB, f family, w wrapped) []byte { return w.carries().frame(t) }

// Ports of the Service's address for packets from balancers, one for each wrapping: a backend of node-b, and
// two of this node.
const toMany = 70

// dsrScene is the scene with balancers: node-b and one that is no node.
func (w *world) dsrScene() *model.Tables {
	tables := w.scene()
	for i, f := range families {
		first := 51 + uint32(4*i)
		for n, a := range []netip.Addr{f.remote, f.local, f.local.Next()} {
			tables.Backends[first+uint32(n)] = model.Backend{Address: a, Port: targetPort, Local: n > 0}
		}
		d := model.Decision{Slots: []uint32{first, first + 1, first + 2}}
		for _, how := range wrappings {
			for _, protocol := range []uint8{tcp, udp} {
				port := toMany + uint16(how.kind)
				tables.Frontends[model.FrontendKey{Address: f.vip, Port: port, Protocol: protocol}] =
					model.Frontend{Service: uint32(port), Pod: d, Outside: d, DSR: model.DSR(how.kind)}
			}
		}
		tables.Balancers = append(tables.Balancers, netip.PrefixFrom(f.balancer(), f.balancer().BitLen()))
	}
	return tables
}

func newDSRScene(t testing.TB) *world {
	t.Helper()
	w := newWorld(t, limits{})
	w.apply(t, w.dsrScene())
	return w
}

// eachWrapping runs a test for each wrapping, at XDP and at tc, for both IP versions and protocols. The probe
// is a client's packet to the Service, for which node-b has chosen a local backend.
func (w *world) eachWrapping(t *testing.T, test func(t *testing.T, at hook, f family, how wrapping, question wrapped)) {
	t.Helper()
	w.each(t, func(t *testing.T, at hook, f family, protocol uint8) {
		for _, how := range wrappings {
			t.Run(how.name, func(t *testing.T) {
				w.enter(t)
				w.forget(t)
				question := f.question(protocol, toMany+uint16(how.kind))
				test(t, at, f, how, f.fromBalancer(question, on(f.local, targetPort)))
			})
		}
	})
}
