// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"cmp"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/test/lab"
)

// A frame is one that a host sends by its eth0, or the fabric by its device to node-a, or to the second one of node-a.
type frame struct {
	name      string
	host      string
	from, to  netip.Addr
	second    bool               // by the fabric to the second device of node-a
	frameTo   string             // whose MAC address it is for; empty: the next hop's
	known     bool               // a frame of the flow for the next hop came just before, so a decision is remembered
	vlan      *uint16            // tag: priority and VID
	options   []byte             // of IPv4
	ttl       uint8              // 64 if 0
	tos       uint8              // or traffic class
	port      uint16             // source port; 9001 if 0
	extension *layers.IPProtocol // of IPv6, with padding
	past      []string           // paths of node-a's shortcut that it may take; empty: none of the shortcut
	arrives   string             // at which pod; empty: at none
}

// P1, P2: which frames take the shortcut, and that they arrive as through the stack. What the shortcut does not know it
// leaves to the stack, above all packets whose source is no pod behind the device: routing and reverse path filtering
// decide about them.
func TestFrames(t *testing.T) {
	w := startWorld(t, lab.Shape{})
	for _, device := range []string{"all", "a1", "eth0"} {
		w.run("node-a", "sysctl", "-qw", "net.ipv4.conf."+device+".rp_filter=1")
	}
	a1, a2, a3, b1, node := w.Host("a1"), w.Host("a2"), w.Host("a3"), w.Host("b1"), w.Host("node-a")
	priority, network := uint16(5<<13), uint16(5<<13|7)
	hopByHop, destination := layers.IPProtocolIPv6HopByHop, layers.IPProtocolIPv6Destination
	local, in := []string{"path_local"}, []string{"path_in"}
	received := w.listen()
	for _, f := range []frame{
		{name: "plain", host: "a1", from: a1.Addr4, to: a2.Addr4, past: local, arrives: "a2"},
		{name: "plain, IPv6", host: "a1", from: a1.Addr6, to: a2.Addr6, past: local, arrives: "a2"},
		{name: "a tag with a priority only", host: "a1", from: a1.Addr4, to: a2.Addr4, vlan: &priority, past: local, arrives: "a2"},
		{name: "a tag with a priority only, IPv6", host: "a1", from: a1.Addr6, to: b1.Addr6, vlan: &priority, past: []string{"path_out"}, arrives: "b1"},
		{name: "a tag with a priority only, from the other node", host: "fabric", from: b1.Addr4, to: a1.Addr4, vlan: &priority, past: in, arrives: "a1"},
		{name: "a tag with a priority only, from the other node, IPv6", host: "fabric", from: b1.Addr6, to: a1.Addr6, vlan: &priority, past: in, arrives: "a1"},
		{name: "a VLAN that the node has not", host: "a1", from: a1.Addr4, to: a2.Addr4, vlan: &network},
		{name: "a VLAN that the node has not, from the other node", host: "fabric", from: b1.Addr4, to: a1.Addr4, vlan: &network},
		// No-operation and router alert (RFC 2113): routers look at options.
		{name: "options", host: "a1", from: a1.Addr4, to: a2.Addr4, options: []byte{148, 4, 0, 0}, arrives: "a2"},
		{name: "options to the other node", host: "a1", from: a1.Addr4, to: b1.Addr4, options: []byte{1, 1, 1, 0}, arrives: "b1"},
		{name: "hop-by-hop options", host: "a1", from: a1.Addr6, to: a2.Addr6, extension: &hopByHop, arrives: "a2"},
		{name: "destination options", host: "a1", from: a1.Addr6, to: a2.Addr6, extension: &destination, arrives: "a2"},
		{name: "destination options, from the other node", host: "b1", from: b1.Addr6, to: a1.Addr6, extension: &destination, arrives: "a1"},
		{name: "for another host on the link", host: "a1", from: a1.Addr4, to: a2.Addr4, frameTo: "a2"},
		{name: "for another host on the link, from the other node", host: "fabric", from: b1.Addr4, to: a1.Addr4, frameTo: "a2"},
		{name: "for another host on the link, of a flow that takes the shortcut", host: "fabric", from: b1.Addr4, to: a1.Addr4, frameTo: "a2", known: true},
		{name: "the last hop", host: "a1", from: a1.Addr4, to: a2.Addr4, ttl: 1},
		{name: "multicast", host: "a1", from: a1.Addr4, to: netip.MustParseAddr("224.0.0.251")},
		{name: "broadcast", host: "a1", from: a1.Addr4, to: netip.MustParseAddr("255.255.255.255")},
		{name: "multicast, IPv6", host: "a1", from: a1.Addr6, to: netip.MustParseAddr("ff02::fb")},
		{name: "as another pod of the node", host: "a1", from: a2.Addr4, to: a3.Addr4},
		{name: "as a pod of another node", host: "a1", from: b1.Addr4, to: a3.Addr4},
		{name: "as the node", host: "a1", from: node.Addr4, to: a3.Addr4},
		// IPv6 has no reverse path filter.
		{name: "as another pod of the node, IPv6", host: "a1", from: a2.Addr6, to: a3.Addr6, arrives: "a3"},
		{name: "from a pod of another node", host: "b1", from: b1.Addr4, to: a1.Addr4, past: in, arrives: "a1"},
		{name: "from outside, as a pod of this node", host: "client", from: a2.Addr4, to: a1.Addr4},
		{name: "from outside, as a pod of this node, IPv6", host: "client", from: a2.Addr6, to: a1.Addr6, arrives: "a1"},
		{name: "from outside", host: "client", from: w.Host("client").Addr4, to: a1.Addr4, arrives: "a1"},
	} {
		t.Run(f.name, func(t *testing.T) { w.in(t).wantFrame(f, received) })
	}
}

// listen returns a socket in each pod for the payload of frames, until the end of the test. A process that another
// test starts may hold those of an earlier test for a moment.
func (w *world) listen() map[string]net.PacketConn {
	w.t.Helper()
	received := map[string]net.PacketConn{}
	for _, pod := range []string{"a1", "a2", "a3", "b1"} {
		w.eventually("a socket in "+pod, func() bool {
			conn, err := w.Host(pod).ListenPacket("udp", "[::]:9000")
			if err != nil {
				return false
			}
			w.t.Cleanup(func() { conn.Close() })
			received[pod] = conn
			return true
		})
	}
	return received
}

// wantFrame sends a frame, and another one after it that arrives for sure.
func (w *world) wantFrame(f frame, received map[string]net.PacketConn) {
	w.t.Helper()
	payload := "frame: " + f.name
	if f.known {
		first := f
		first.frameTo = ""
		w.send(first, payload+", before")
	}
	before := w.counters()["node-a"]
	w.send(f, payload)
	got := ""
	for end := time.Now().Add(patience); got == "" && time.Now().Before(end); {
		for pod, conn := range received {
			if pod == f.arrives || f.arrives == "" {
				got += heard(w, pod, conn, payload)
			}
		}
		if f.arrives == "" {
			break // each had 20 ms
		}
	}
	if got != f.arrives {
		w.t.Errorf("it arrived at %q, want %q", got, f.arrives)
	}
	now := w.counters()["node-a"]
	for path := range now {
		if n := now[path] - before[path]; strings.HasPrefix(path, "path_") && (n > 0) != (len(f.past) > 0 && f.past[0] == path) {
			w.t.Errorf("%d packets took %s, want %v", n, path, f.past)
		}
	}
}

// heard returns the pod's name if a datagram arrives within 20 ms.
func heard(w *world, pod string, conn net.PacketConn, payload string) string {
	w.t.Helper()
	w.must(conn.SetReadDeadline(time.Now().Add(20 * time.Millisecond)))
	b := make([]byte, 2048)
	n, _, err := conn.ReadFrom(b)
	if err == nil && string(b[:n]) == payload {
		return pod
	}
	return ""
}

// send sends a UDP datagram to port 9000 in a frame.
func (w *world) send(f frame, payload string) {
	w.t.Helper()
	host := w.Host(f.host)
	by, next, at := "eth0", "fabric", host.Name
	switch {
	case f.host == "fabric" && f.second:
		by, next, at = "node-a-2", "node-a", "eth1"
	case f.host == "fabric":
		by, next, at = "node-a", "node-a", "eth0"
	case host.Role == lab.RolePod:
		next = host.Node.Name
	}
	if f.frameTo != "" {
		next, at = f.frameTo, "eth0"
	}
	nl, device, err := host.OpenDevice(by)
	w.must(err)
	nl.Close()
	nl, hop, err := w.Host(next).OpenDevice(at)
	w.must(err)
	nl.Close()
	fd, err := host.Socket(unix.AF_PACKET, unix.SOCK_RAW, 0)
	w.must(err)
	defer unix.Close(fd)
	packet := w.frameOf(f, payload, device.Attrs().HardwareAddr, hop.Attrs().HardwareAddr)
	w.must(os.NewSyscallError("sendto", unix.Sendto(fd, packet, 0, &unix.SockaddrLinklayer{Ifindex: device.Attrs().Index})))
}

func (w *world) frameOf(f frame, payload string, from, to net.HardwareAddr) []byte {
	w.t.Helper()
	eth := &layers.Ethernet{SrcMAC: from, DstMAC: to}
	all := []gopacket.SerializableLayer{eth}
	kind := &eth.EthernetType
	if f.to.IsMulticast() {
		eth.DstMAC = net.HardwareAddr{0x33, 0x33, 0, 0, 0, 0xfb}
	}
	if f.vlan != nil {
		tag := &layers.Dot1Q{Priority: uint8(*f.vlan >> 13), VLANIdentifier: *f.vlan & 0xfff}
		*kind, kind = layers.EthernetTypeDot1Q, &tag.Type
		all = append(all, tag)
	}
	udp := &layers.UDP{SrcPort: layers.UDPPort(cmp.Or(f.port, 9001)), DstPort: 9000}
	ttl := f.ttl
	if ttl == 0 {
		ttl = 64
	}
	if f.to.Is4() {
		*kind = layers.EthernetTypeIPv4
		ip := &layers.IPv4{Version: 4, TOS: f.tos, TTL: ttl, Protocol: layers.IPProtocolUDP, SrcIP: f.from.AsSlice(), DstIP: f.to.AsSlice()}
		if f.options != nil {
			ip.Options = []layers.IPv4Option{{OptionType: f.options[0], OptionLength: uint8(len(f.options)), OptionData: f.options[2:]}}
		}
		w.must(udp.SetNetworkLayerForChecksum(ip))
		all = append(all, ip)
	} else {
		*kind = layers.EthernetTypeIPv6
		ip := &layers.IPv6{Version: 6, TrafficClass: f.tos, HopLimit: ttl, NextHeader: layers.IPProtocolUDP, SrcIP: f.from.AsSlice(), DstIP: f.to.AsSlice()}
		w.must(udp.SetNetworkLayerForChecksum(ip))
		all = append(all, ip)
		if f.extension != nil {
			ip.NextHeader = *f.extension
			all = append(all, gopacket.Payload{17, 0, 1, 4, 0, 0, 0, 0}) // PadN
		}
	}
	return w.serialize(append(all, udp, gopacket.Payload(payload))...)
}
