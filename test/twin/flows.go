// SPDX-License-Identifier: Apache-2.0

package twin

import (
	"net/netip"

	"github.com/gopacket/gopacket/layers"
)

// A flow is two hosts in one family. Its frames are sent at the first one, or at the uplink.
type flow struct {
	at       string
	from, to netip.Addr
}

// pairs are who sends to whom: pods of one node and of two, and a client.
var pairs = [][3]string{{"a1", "a1", "a2"}, {"a2", "a2", "a1"}, {"a1", "a1", "b1"}, {uplink, "b1", "a1"}, {"b1", "b1", "a2"}, {"client", "client", "a1"}, {"a1", "a1", "client"}}

// flows are all pairs in both families.
func (w *world) flows() (all []flow) {
	l := w.sides[0]
	for _, p := range pairs {
		from, to := l.Host(p[1]), l.Host(p[2])
		all = append(all, flow{p[0], from.Addr4, to.Addr4}, flow{p[0], from.Addr6, to.Addr6})
	}
	return all
}

const (
	tcp  = layers.IPProtocolTCP
	udp  = layers.IPProtocolUDP
	icmp = layers.IPProtocolICMPv4
)

// plainFrames are some of each flow: the begin, data and reset of a TCP connection, a datagram, an echo request.
func (w *world) plainFrames() (all []Frame) {
	port := w.nextPort()
	for _, f := range w.flows() {
		base := Frame{At: f.at, From: f.from, To: f.to, Ports: [2]uint16{port, 80}, ID: 7, DF: true}
		for _, change := range []func(*Frame){
			func(f *Frame) { f.Protocol, f.Flags, f.Seq = tcp, "S", 1000 },
			func(f *Frame) { f.Protocol, f.Flags, f.Seq, f.Ack, f.Length = tcp, "PA", 1001, 5001, 500 },
			func(f *Frame) { f.Protocol, f.Flags, f.Seq, f.Ack = tcp, "RA", 1501, 5001 },
			func(f *Frame) { f.Protocol, f.Length = udp, 100 },
			func(f *Frame) { f.Protocol, f.Length = icmp, 56 },
		} {
			frame := base
			change(&frame)
			all = append(all, frame)
		}
	}
	return all
}

// nextPort is a port that no flow has had.
func (w *world) nextPort() uint16 {
	w.lastPort++
	return 20000 + w.lastPort%20000
}
