// SPDX-License-Identifier: Apache-2.0

package twin

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/test/lab"
)

// What arrives in both labs agrees if all of it is the same. The receiver may have to verify a checksum itself, and
// fragments may be overtaken.
func TestAgree(t *testing.T) {
	packet := seen{end: "a2/eth0", kind: unix.PACKET_HOST, from: "node-a/a2", to: "a2/eth0", frame: "packet"}
	for name, change := range map[string]func(*seen){
		"end":              func(p *seen) { p.end = "a3/eth0" },
		"packet type":      func(p *seen) { p.kind = unix.PACKET_OTHERHOST },
		"sender's MAC":     func(p *seen) { p.from = "node-a/a1" },
		"receiver's MAC":   func(p *seen) { p.to = "a3/eth0" },
		"tag":              func(p *seen) { p.tag = 7 },
		"segment size":     func(p *seen) { p.vnet.GSOSize = 1400 },
		"partial checksum": func(p *seen) { p.status |= unix.TP_STATUS_CSUMNOTREADY },
		"octet":            func(p *seen) { p.frame = "Packet" },
		"length":           func(p *seen) { p.frame += "\x00" },
	} {
		other := packet
		change(&other)
		for _, got := range [][2][]seen{{{packet}, {other}}, {{other}, {packet}}} {
			if agree(&layout{}, got) {
				t.Errorf("packets agree that differ in their %s", name)
			}
		}
	}
	second, verified := packet, packet
	second.frame, verified.status = "second", unix.TP_STATUS_CSUM_VALID
	fragment := func(offset byte) seen {
		p := packet
		p.l3, p.frame = true, string([]byte{0x45, 0, 0, 20, 0, 7, 0x20, offset, 64, 17, 0, 0, 10, 10, 1, 11, 10, 10, 1, 12})
		return p
	}
	for _, c := range []struct {
		what string
		got  [2][]seen
		want bool
	}{
		{"nothing and nothing", [2][]seen{}, true},
		{"a packet and nothing", [2][]seen{{packet}, nil}, false},
		{"nothing and a packet", [2][]seen{nil, {packet}}, false},
		{"a packet twice", [2][]seen{{packet, packet}, {packet}}, false},
		{"the same order", [2][]seen{{packet, second}, {packet, second}}, true},
		{"another order", [2][]seen{{packet, second}, {second, packet}}, false},
		{"another order of fragments", [2][]seen{{fragment(0), fragment(1)}, {fragment(1), fragment(0)}}, true},
		{"a checksum that only the stack has verified", [2][]seen{{packet}, {verified}}, true},
		{"a checksum that only the shortcut has verified", [2][]seen{{verified}, {packet}}, false},
	} {
		if agree(&layout{}, c.got) != c.want {
			t.Errorf("%s: agree is %t", c.what, !c.want)
		}
	}
	right := packet
	right.frame = string(ethernet(1, 2, ipv4(7, 64, "10.10.1.11", "10.10.2.11", udpOf(10001, 8080))))
	damaged, partial := right, right
	damaged.frame = string(spoiled([]byte(right.frame), 50))
	partial.frame, partial.status = damaged.frame, unix.TP_STATUS_CSUMNOTREADY
	for _, c := range []struct {
		what   string
		layout *layout
		got    [2][]seen
		want   bool
	}{
		{"a damaged datagram that the edge forwards", &balancer, [2][]seen{{damaged}, nil}, true},
		{"a damaged datagram that the edge drops", &balancer, [2][]seen{nil, {damaged}}, false},
		{"a damaged datagram and another one", &balancer, [2][]seen{{damaged}, {right}}, false},
		{"a damaged datagram that flow offload forwards", &offload, [2][]seen{{damaged}, nil}, true},
		{"a damaged datagram beside another shortcut", &layout{}, [2][]seen{{damaged}, nil}, false},
		{"a datagram that the edge has repaired", &balancer, [2][]seen{{right}, nil}, false},
		{"a datagram whose checksum the device computes", &balancer, [2][]seen{{partial}, nil}, false},
	} {
		if agree(c.layout, c.got) != c.want {
			t.Errorf("%s: agree is %t", c.what, !c.want)
		}
	}
}

// What is normalised is not compared; what is beside it is.
func TestNormalise(t *testing.T) {
	node, client, b1 := "192.168.100.1", "192.168.200.1", "10.10.2.11"
	for _, c := range []struct {
		what      string
		layout    *layout
		a, b      []byte
		different bool
	}{
		{"the MAC address of the same device", &layout{}, ethernet(1, 2, ipv4(7, 64, client, b1, udpOf(10001, 8080))), ethernet(1, 2, ipv4(7, 64, client, b1, udpOf(10001, 8080))), false},
		{"the MAC address of another device", &layout{}, ethernet(1, 2, ipv4(7, 64, client, b1, udpOf(10001, 8080))), ethernet(1, 3, ipv4(7, 64, client, b1, udpOf(10001, 8080))), true},
		{"the identification of a forwarded packet", &layout{}, ethernet(1, 2, ipv4(7, 64, client, b1, udpOf(10001, 8080))), ethernet(1, 2, ipv4(8, 64, client, b1, udpOf(10001, 8080))), true},
		{"the identification of an ICMP error", &layout{}, ethernet(1, 2, ipv4(7, 64, node, client, unreachable())), ethernet(1, 2, ipv4(8, 64, node, client, unreachable())), false},
		{"the TTL of an ICMP error", &layout{}, ethernet(1, 2, ipv4(7, 64, node, client, unreachable())), ethernet(1, 2, ipv4(7, 63, node, client, unreachable())), true},
		{"the header's checksum of an ICMP error", &layout{}, ethernet(1, 2, ipv4(7, 64, node, client, unreachable())), spoiled(ethernet(1, 2, ipv4(8, 64, node, client, unreachable())), 24), true},
		{"the port of masquerade", &balancer, ethernet(1, 2, ipv4(7, 64, node, b1, udpOf(3001, 8080))), ethernet(1, 2, ipv4(7, 64, node, b1, udpOf(3002, 8080))), false},
		{"a port without masquerade", &balancer, ethernet(1, 2, ipv4(7, 64, client, b1, udpOf(3001, 8080))), ethernet(1, 2, ipv4(7, 64, client, b1, udpOf(3002, 8080))), true},
		{"the checksum beside a port of masquerade", &balancer, ethernet(1, 2, ipv4(7, 64, node, b1, udpOf(3001, 8080))), spoiled(ethernet(1, 2, ipv4(7, 64, node, b1, udpOf(3002, 8080))), 41), true},
		{"the server's port", &balancer, ethernet(1, 2, ipv4(7, 64, node, b1, udpOf(3001, 8080))), ethernet(1, 2, ipv4(7, 64, node, b1, udpOf(3002, 8081))), true},
		{"an MPLS label", &layout{}, mpls(100), mpls(101), true},
	} {
		var got [2]seen
		for i, frame := range [][]byte{c.a, c.b} {
			s := &side{Lab: &lab.Lab{}, layout: c.layout, addresses: pairOf(node, "fd00:100::1"), names: map[string]string{}, snat: newSNAT()}
			for n := range byte(4) {
				s.names[string(mac(n))] = fmt.Sprint("device ", n)
			}
			for port := range uint16(2) { // each lab has another one for the same client
				s.snat.clients[snatPort{netip.MustParseAddr(node), udp, 3001 + port}] = 10001
			}
			p, ok := s.normalise(arrival{end: end{"b1", "eth0"}, frame: slices.Clone(frame)})
			if !ok {
				t.Errorf("%s: not compared", c.what)
			}
			got[i] = p
		}
		if (got[0] != got[1]) != c.different {
			t.Errorf("%s: different is %t:\n%s\n%s", c.what, !c.different, got[0], got[1])
		}
	}
	for _, status := range []uint32{unix.TP_STATUS_CSUMNOTREADY, unix.TP_STATUS_CSUM_VALID, unix.TP_STATUS_GSO_TCP, unix.TP_STATUS_VLAN_VALID} {
		p, _ := (&side{Lab: &lab.Lab{}, layout: &layout{}}).normalise(arrival{status: status, vlan: 7, frame: mpls(1)})
		if p.status != status || status == unix.TP_STATUS_VLAN_VALID && p.tag != 7 {
			t.Errorf("status %#x of an arrival is compared as %#x with tag %d", status, p.status, p.tag)
		}
	}
	arp := append(ethernetHead(1, 2, 0x0806), make([]byte, 28)...)
	if _, ok := (&side{Lab: &lab.Lab{}, layout: &layout{}}).normalise(arrival{frame: arp}); ok {
		t.Error("ARP is compared")
	}
}

func mac(n byte) net.HardwareAddr { return net.HardwareAddr{2, 0, 0, 0, 0, n} }

func ethernetHead(from, to byte, kind uint16) []byte {
	return binary.BigEndian.AppendUint16(append(slices.Clone(mac(to)), mac(from)...), kind)
}

func ethernet(from, to byte, packet []byte) []byte {
	return append(ethernetHead(from, to, 0x0800), packet...)
}

func mpls(label uint32) []byte {
	return append(binary.BigEndian.AppendUint32(ethernetHead(1, 2, 0x8847), label<<12|0x140), make([]byte, 40)...)
}

func ipv4(id uint16, ttl uint8, from, to string, transport func(*layers.IPv4) []gopacket.SerializableLayer) []byte {
	ip := &layers.IPv4{Version: 4, TTL: ttl, Id: id, SrcIP: net.ParseIP(from), DstIP: net.ParseIP(to)}
	packet, err := serialize(true, append([]gopacket.SerializableLayer{ip}, transport(ip)...)...)
	if err != nil {
		panic(err)
	}
	return packet
}

func udpOf(from, to uint16) func(*layers.IPv4) []gopacket.SerializableLayer {
	return func(ip *layers.IPv4) []gopacket.SerializableLayer {
		ip.Protocol = layers.IPProtocolUDP
		header := &layers.UDP{SrcPort: layers.UDPPort(from), DstPort: layers.UDPPort(to)}
		_ = header.SetNetworkLayerForChecksum(ip)
		return []gopacket.SerializableLayer{header, gopacket.Payload("payload of some octets")}
	}
}

func unreachable() func(*layers.IPv4) []gopacket.SerializableLayer {
	return func(ip *layers.IPv4) []gopacket.SerializableLayer {
		ip.Protocol = layers.IPProtocolICMPv4
		code := layers.CreateICMPv4TypeCode(layers.ICMPv4TypeDestinationUnreachable, layers.ICMPv4CodePort)
		return []gopacket.SerializableLayer{&layers.ICMPv4{TypeCode: code}, gopacket.Payload(make([]byte, 28))}
	}
}

func spoiled(frame []byte, at int) []byte {
	frame[at] ^= 0x11
	return frame
}

// record is a test that notes its errors.
type record struct {
	testing.TB
	errors int
}

func (r *record) Helper()               {}
func (r *record) Error(...any)          { r.errors++ }
func (r *record) Errorf(string, ...any) { r.errors++ }

// A difference that is no known fault fails, and so does a known fault that is not found.
func TestJudge(t *testing.T) {
	f := fault{line: "a fault", layouts: []string{layouts[0].name}, scenarios: []string{kinds[0].name}, kinds: []string{Passes}}
	defer func(before faults) { known = before }(known)
	known = faults{f}
	packet := []seen{{end: "b1/eth0"}}
	passes := Difference{Layout: f.layouts[0], Got: [2][]seen{packet, nil}}
	drops := Difference{Layout: f.layouts[0], Got: [2][]seen{nil, packet}}
	for _, c := range []struct {
		scenario string
		found    []Difference
		errors   int
	}{
		{f.scenarios[0], []Difference{passes}, 0},
		{f.scenarios[0], nil, 1},
		{f.scenarios[0], []Difference{passes, drops}, 1},
		{plain, nil, 0},
		{plain, []Difference{passes}, 1},
	} {
		r := &record{TB: t}
		(&world{t: r, layout: &layout{name: f.layouts[0]}}).judge(c.scenario, c.found)
		if r.errors != c.errors {
			t.Errorf("%s with %d differences: %d errors, not %d", c.scenario, len(c.found), r.errors, c.errors)
		}
	}
}

// A change in one of the two labs alone is found.
func TestOneLabAlone(t *testing.T) {
	t.Parallel()
	inTime(t, ofRest)
	w := newWorld(t, layouts[0])
	for _, c := range []struct {
		side     int
		do, undo string
		kind     string
	}{
		{1, "nft 'table inet alone { chain c { type filter hook forward priority 0; udp dport 80 drop; }; }'", "nft delete table inet alone", Passes},
		{0, "nft 'table inet alone { chain c { type filter hook forward priority 0; udp dport 80 drop; }; }'", "nft delete table inet alone", Drops},
		{1, "nft 'table inet alone { chain c { type filter hook forward priority 0; ip dscp set cs1; }; }'", "nft delete table inet alone", Other},
		{1, "nft 'table inet alone { chain c { type filter hook forward priority 0; ip ttl set 9; }; }'", "nft delete table inet alone", Other},
		{1, "ip route add {b1} dev a2", "ip route del {b1} dev a2", Elsewhere},
	} {
		w.must(w.sides[c.side].shell(nodeA, []string{c.do}))
		found := w.differences(w.changeFrames(true), filters)
		if !slices.ContainsFunc(found, func(d Difference) bool { return d.Kind() == c.kind }) {
			t.Errorf("%s in lab %q alone: none of %d differences is that %s", c.do, sides[c.side], len(found), c.kind)
		}
		w.must(w.sides[c.side].shell(nodeA, []string{c.undo}))
		w.renew()
		if left := w.differences(w.changeFrames(true), 2*filters); len(left) > 0 {
			t.Errorf("after the end of %s: %s", c.do, left[0])
		}
	}
	w.report()
}
