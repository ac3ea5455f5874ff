// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"net/netip"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"golang.org/x/sys/unix"
)

// sendForged sends an encapsulated packet from a host, with any source in the outer header.
func (w *world) sendForged(host string, source, to netip.Addr, packet []byte) {
	w.t.Helper()
	family := 0
	var outer gopacket.SerializableLayer = &layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolIPv4, SrcIP: source.AsSlice(), DstIP: to.AsSlice()}
	if to.Is6() {
		family = 1
		outer = &layers.IPv6{Version: 6, HopLimit: 64, NextHeader: layers.IPProtocolIPv6, SrcIP: source.AsSlice(), DstIP: to.AsSlice()}
	}
	b := gopacket.NewSerializeBuffer()
	w.must(gopacket.SerializeLayers(b, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, outer, gopacket.Payload(packet)))
	w.raw(w.Host(host), family, unix.IPPROTO_RAW).send(to, b.Bytes())
}

// X2: a node accepts balancers' packets while a Service has DSR or a flow uses it, without a restart. It never
// accepts packets from its own address, whoever sends them.
func TestDecapsulatorFollowsServices(t *testing.T) {
	withEachDSR(t, nil, func(t *testing.T, w *world) {
		opens := func() bool {
			s, err := w.statusOf(w.agents["node-b"])
			w.must(err)
			return s.DSRAccepted.Tunnels
		}
		w.eventually("node-b accepts no packets of balancers, since no Service has DSR", func() bool { return !opens() })
		w.applyKinds("b1")
		w.eventually("node-b accepts packets of balancers", opens)
		for family := range 2 {
			at := func(host string) netip.AddrPort { return addresses(w.Host(host), 40000)[family] }
			asks := w.datagramTo(at("client"), w.address("ExternalIP", 1, family))
			w.wantCountedAt("node-b", "drop_spoofed", "IPIP with node-b's own address", func() {
				w.sendForged("node-a", at("node-b").Addr(), at("b1").Addr(), asks)
			})
			w.wantCountedAt("node-b", "new", "IPIP with node-a's address", func() {
				w.sendForged("node-c", at("node-a").Addr(), at("b1").Addr(), asks)
			})
		}
		for _, kind := range dsrKinds {
			w.must(w.folder.Remove(kind))
		}
		w.await()
		w.forgetFlows()
		w.eventually("node-b accepts none any more, since no flow is left", func() bool { return !opens() })
	})
}
