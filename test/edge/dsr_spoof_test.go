// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"encoding/binary"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/test/lab"
	"beeline.io/beeline/test/node"
)

// datagramTo is a UDP packet with its IP header, to be encapsulated.
func (w *world) datagramTo(from, to netip.AddrPort) []byte {
	w.t.Helper()
	udp := &layers.UDP{SrcPort: layers.UDPPort(from.Port()), DstPort: layers.UDPPort(to.Port())}
	var ip gopacket.NetworkLayer
	if from.Addr().Is4() {
		ip = &layers.IPv4{Version: 4, TTL: 60, Protocol: layers.IPProtocolUDP, SrcIP: from.Addr().AsSlice(), DstIP: to.Addr().AsSlice()}
	} else {
		ip = &layers.IPv6{Version: 6, HopLimit: 60, NextHeader: layers.IPProtocolUDP, SrcIP: from.Addr().AsSlice(), DstIP: to.Addr().AsSlice()}
	}
	w.must(udp.SetNetworkLayerForChecksum(ip))
	b := gopacket.NewSerializeBuffer()
	w.must(gopacket.SerializeLayers(b, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true},
		ip.(gopacket.SerializableLayer), udp, gopacket.Payload("spoofed")))
	return b.Bytes()
}

// geneveWith puts Geneve's header before an IP packet, with an option that names a backend, or without one.
func geneveWith(backend netip.AddrPort, packet []byte) []byte {
	b := make([]byte, 8)
	binary.BigEndian.PutUint16(b[2:], uint16(layers.EthernetTypeIPv4))
	if packet[0]>>4 == 6 {
		binary.BigEndian.PutUint16(b[2:], uint16(layers.EthernetTypeIPv6))
	}
	if backend.IsValid() {
		data := append(binary.BigEndian.AppendUint16(nil, backend.Port()), 0, 0)
		data = append(data, backend.Addr().AsSlice()...)
		b = append(b, geneveClass>>8, geneveClass&0xff, geneveType, byte(len(data)/4))
		b = append(b, data...)
		b[0], b[1] = byte(4+len(data))/4, 0x40 // critical
	}
	return append(b, packet...)
}

// sendIPIP sends a packet as IPIP from a host.
func (w *world) sendIPIP(host string, to netip.Addr, packet []byte) {
	w.t.Helper()
	family, protocol := 0, unix.IPPROTO_IPIP
	if to.Is6() {
		family, protocol = 1, unix.IPPROTO_IPV6
	}
	w.raw(w.Host(host), family, protocol).send(to, packet)
}

// sendUDP sends a datagram from a host, with an IP option if a frontend is given.
func (w *world) sendUDP(host string, frontend, to netip.AddrPort, payload []byte) (from netip.AddrPort) {
	w.t.Helper()
	conn := w.openAs(host, "udp", to)
	if frontend.IsValid() {
		told := append(binary.BigEndian.AppendUint16(nil, frontend.Port()), frontend.Addr().AsSlice()...)
		control(w.t, conn.(syscall.Conn), func(fd int) error {
			if frontend.Addr().Is4() {
				return os.NewSyscallError("setsockopt IP_OPTIONS", unix.SetsockoptString(fd, unix.IPPROTO_IP, unix.IP_OPTIONS,
					string(append([]byte{optionFrontend4, dsrOptionLength4}, told...))))
			}
			header := append([]byte{0, 2, optionFrontend6, dsrOptionLength6}, told...)
			header = append(header, 1, 0) // PadN of two octets
			return os.NewSyscallError("setsockopt IPV6_DSTOPTS", unix.SetsockoptString(fd, unix.IPPROTO_IPV6, unix.IPV6_DSTOPTS, string(header)))
		})
	}
	if _, err := conn.Write(payload); err != nil {
		w.t.Fatalf("%s sends to %s: %v", host, to, err)
	}
	return netip.MustParseAddrPort(conn.LocalAddr().String())
}

// countAt is a counter of a node's edge, by reason.
func (w *world) countAt(a *node.Agent, reason string) uint64 {
	w.t.Helper()
	s, err := w.statusOf(a)
	w.must(err)
	return s.Edge.Counters[reason]
}

// wantCountedAt checks that an action has a node count one packet, for a reason.
func (w *world) wantCountedAt(host, reason, what string, do func()) {
	w.t.Helper()
	a := w.agents[host]
	before := w.countAt(a, reason)
	do()
	w.eventually(what+" is counted by "+host+" as "+reason, func() bool { return w.countAt(a, reason) > before })
	if after := w.countAt(a, reason); after != before+1 {
		w.t.Errorf("%s: %s counted %d packets as %s, want one", what, host, after-before, reason)
	}
}

// X2: the backend's node drops and counts packets that pretend to come from a balancer, without a reply; and so
// it does with a balancer's packets for a backend that the node does not have.
func TestSpoofedEncapsulation(t *testing.T) {
	withEachDSR(t, nil, func(t *testing.T, w *world) {
		w.applyKinds("b1", "c1")
		seen := w.sightings("node-b")
		for family := range 2 {
			at := func(host string, port uint16) netip.AddrPort { return addresses(w.Host(host), port)[family] }
			vip := func(n int) netip.AddrPort { return w.address("ExternalIP", n, family) }
			asks := func(n int) []byte { return w.datagramTo(at("client", 40000), vip(n)) }
			none := netip.AddrPort{}
			for _, test := range []struct {
				what, reason string
				send         func()
			}{
				{"IPIP of a client", "drop_spoofed", func() { w.sendIPIP("client", at("b1", 0).Addr(), asks(1)) }},
				{"IPIP of a client for a node that has no such pod", "drop_spoofed", func() { w.sendIPIP("client", at("b3", 0).Addr(), asks(1)) }},
				{"Geneve of a client", "drop_spoofed", func() {
					w.sendUDP("client", none, at("node-b", genevePort), geneveWith(at("b1", lab.PortUDP), asks(2)))
				}},
				{"an option at a Service with another kind", "drop_spoofed", func() { w.sendUDP("client", vip(1), at("b1", lab.PortUDP), []byte("x")) }},
				{"an option from a node", "drop_spoofed", func() { w.sendUDP("node-c", vip(3), at("b1", lab.PortUDP), []byte("x")) }},
				{"an option from a pod", "drop_spoofed", func() { w.sendUDP("c1", vip(3), at("b1", lab.PortUDP), []byte("x")) }},
				{"an option for a pod that is no backend", "drop_spoofed", func() { w.sendUDP("client", vip(3), at("b3", lab.PortUDP), []byte("x")) }},
				{"IPIP for a pod that is no backend", "drop_backend_not_local", func() { w.sendIPIP("node-a", at("b3", 0).Addr(), asks(1)) }},
				{"Geneve for a pod that is no backend", "drop_backend_not_local", func() {
					w.sendUDP("node-a", none, at("node-b", genevePort), geneveWith(at("b3", lab.PortUDP), asks(2)))
				}},
				{"Geneve for a backend of another node", "drop_backend_not_local", func() {
					w.sendUDP("node-a", none, at("node-b", genevePort), geneveWith(at("c1", lab.PortUDP), asks(2)))
				}},
				{"Geneve for a port that no backend has", "drop_backend_not_local", func() {
					w.sendUDP("node-a", none, at("node-b", genevePort), geneveWith(at("b1", 9), asks(2)))
				}},
			} {
				w.wantCountedAt("node-b", test.reason, test.what, test.send)
			}
			// A balancer's proper packets arrive, and get replies.
			w.sendIPIP("node-a", at("b1", 0).Addr(), asks(1))
			w.sendUDP("node-a", none, at("node-b", genevePort), geneveWith(at("b1", lab.PortUDP), asks(2)))
			answers := map[netip.AddrPort]int{}
			w.eventually("both are answered", func() bool {
				for _, s := range seen() {
					if s.protocol == "udp" && s.kind == "" && s.to == at("client", 40000) {
						answers[s.from]++
					} else if s.protocol != "icmp" { // the client has no socket for it
						t.Errorf("node-b sent:\n%s", s)
					}
				}
				return answers[vip(1)] > 0 && answers[vip(2)] > 0
			})
			if len(answers) != 2 || answers[vip(1)] != 1 || answers[vip(2)] != 1 {
				t.Errorf("answers: %v, want one of each address", answers)
			}
		}
	})
}

// X2: other people's tunnels pass: the packet inside is for no Service, or it is Geneve without Beeline's
// option, even from a balancer.
func TestTunnelsOfOthers(t *testing.T) {
	withEachDSR(t, nil, func(t *testing.T, w *world) {
		w.applyKinds("b1", "c1")
		for family := range 2 {
			protocol := []int{unix.IPPROTO_IPIP, unix.IPPROTO_IPV6}[family]
			nodeB, none := addresses(w.Host("node-b"), genevePort)[family], netip.AddrPort{}
			vip, stranger := w.address("ExternalIP", 2, family), netip.AddrPortFrom(nth(externalRanges[family], 200), 80)
			geneve, err := w.Host("node-b").ListenPacket("udp", nodeB.String())
			w.must(err)
			t.Cleanup(func() { geneve.Close() })
			ipip := w.raw(w.Host("node-b"), family, protocol)
			for _, host := range []string{"client", "node-a"} {
				from := addresses(w.Host(host), 40000)[family]
				packet := w.datagramTo(from, stranger)
				w.sendIPIP(host, nodeB.Addr(), packet)
				_, got, outer := first(t, func([]byte) bool { return true }, ipip)
				if string(got) != string(packet) || outer != from.Addr() {
					t.Errorf("IPIP of %s arrives from %s as\n%x, want\n%x", host, outer, got, packet)
				}
				for what, payload := range map[string][]byte{
					"without an option, for a Service":  geneveWith(none, w.datagramTo(from, vip)),
					"with the option, for no Service":   geneveWith(addresses(w.Host("b1"), lab.PortUDP)[family], packet),
					"that is truncated":                 {0x3f, 0, 8, 0},
					"with a packet that is not IP":      geneveWith(none, []byte{0x45, 0}),
					"without an option, for no Service": geneveWith(none, packet),
				} {
					w.sendUDP(host, none, nodeB, payload)
					w.must(geneve.SetReadDeadline(deadline()))
					b := make([]byte, 2048)
					if n, _, err := geneve.ReadFrom(b); err != nil || string(b[:n]) != string(payload) {
						t.Errorf("Geneve %s of %s arrives as %x (%v), want %x", what, host, b[:n], err, payload)
					}
				}
			}
		}
		w.wantNoDropsAnywhere()
	})
}

func deadline() time.Time { return time.Now().Add(patience) }

// X2: on a node that masquerades its pods' packets to others, no pod can pass for that node as a balancer:
// forwarded packets that look encapsulated do not leave in its name. Other people's tunnels do.
func TestPodPassesForNoBalancer(t *testing.T) {
	withEachDSR(t, nil, func(t *testing.T, w *world) {
		w.applyKinds("b1")
		w.firewall(`table inet test {
	chain postrouting {
		type nat hook postrouting priority srcnat;
		oifname "eth0" ip saddr 10.10.1.0/24 masquerade
		oifname "eth0" ip6 saddr fd00:10:1::/64 masquerade
	}
}`)
		seen := w.sightings("node-a")
		for family := range 2 {
			at := func(host string, port uint16) netip.AddrPort { return addresses(w.Host(host), port)[family] }
			asks := func(n int) []byte {
				return w.datagramTo(at("client", 40000), w.address("ExternalIP", n, family))
			}
			w.wantCountedAt("node-a", "drop_spoofed", "Geneve of a pod", func() {
				w.sendUDP("a1", netip.AddrPort{}, at("node-b", genevePort), geneveWith(at("b1", lab.PortUDP), asks(2)))
			})
			w.wantCountedAt("node-a", "drop_spoofed", "IPIP of a pod", func() { w.sendIPIP("a1", at("b1", 0).Addr(), asks(1)) })
			others := w.datagramTo(at("a1", 40000), netip.AddrPortFrom(at("b2", 0).Addr(), 1))
			w.sendUDP("a1", netip.AddrPort{}, at("node-b", genevePort), geneveWith(netip.AddrPort{}, others))
			w.sendIPIP("a1", at("node-b", 0).Addr(), others)
			var tunnels int
			w.eventually("other tunnels have left node-a", func() bool {
				for _, s := range seen() {
					if s.to.Addr() == at("b2", 0).Addr() && s.outer.from == at("node-a", 0).Addr() {
						tunnels++
					}
				}
				return tunnels == 2
			})
		}
	})
}
