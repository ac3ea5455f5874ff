// SPDX-License-Identifier: Apache-2.0

package twin

import (
	"cmp"
	"net/netip"
	"time"

	"github.com/gopacket/gopacket/layers"
)

// A flow is one direction of packets between two hosts in one family.
type flow struct {
	at       string // the layout's point
	from, to netip.Addr
	// service is the port of the server; reply: what is sent comes from there.
	service uint16
	reply   bool
	fixed   uint16
	shift   uint16
}

// A pair is who sends to whom, by host names or addresses of Services.
type pair struct {
	at, from, to string
	service      uint16 // 80 if 0
	reply        bool
	fixed        uint16 // the client's port, if it is always the same: then the server's tells flows apart
	shift        uint16 // added to the port that tells flows apart, where two flows of a client would have the same
}

// between are pods of one node and of two, and a client.
var between = []pair{
	{at: "a1", from: "a1", to: "a2"}, {at: "a2", from: "a2", to: "a1"}, {at: "a1", from: "a1", to: "b1"}, {at: uplink, from: "b1", to: "a1"},
	{at: "b1", from: "b1", to: "a2"}, {at: "client", from: "client", to: "a1"}, {at: "a1", from: "a1", to: "client"},
}

// flows are all pairs in both families.
func (w *world) flows() (all []flow) {
	l := w.sides[0]
	for _, p := range w.layout.pairs {
		from, to := addressesOf(l, p.from), addressesOf(l, p.to)
		for family := range from {
			all = append(all, flow{p.at, from[family], to[family], cmp.Or(p.service, 80), p.reply, p.fixed, p.shift})
		}
	}
	return all
}

// addressesOf are a host's or a Service's.
func addressesOf(l *side, name string) [2]netip.Addr {
	if both, ok := virtual[name]; ok {
		return both
	}
	h := l.Host(name)
	return [2]netip.Addr{h.Addr4, h.Addr6}
}

const (
	tcp  = layers.IPProtocolTCP
	udp  = layers.IPProtocolUDP
	icmp = layers.IPProtocolICMPv4
)

// datagram is a plain frame of a flow. The client's port tells flows apart. Its sequence numbers are those of the first
// data of the direction, for kinds that make it a segment.
func (f flow) datagram(client uint16) Frame {
	client += f.shift
	ports := [2]uint16{client, f.service}
	if f.fixed != 0 {
		ports = [2]uint16{f.fixed, client}
	}
	if f.reply {
		ports = [2]uint16{ports[1], ports[0]}
	}
	own, other := f.sequences()
	return Frame{At: f.at, From: f.from, To: f.to, Protocol: udp, Ports: ports, Seq: own + 1, Ack: other + 1, ID: 7, DF: true, Length: 100}
}

// Sequence numbers of each connection: those of the client's SYN, and of the server's.
const (
	clientSequence = 1000
	serverSequence = 5000
)

// sequences are those of the SYNs of the direction and of the other.
func (f flow) sequences() (own, other uint32) {
	if f.reply {
		return serverSequence, clientSequence
	}
	return clientSequence, serverSequence
}

// segment is a plain segment of a flow's connection.
func (f flow) segment(client uint16, flags string, length int) Frame {
	frame := f.datagram(client)
	frame.Protocol, frame.Flags, frame.Length = tcp, flags, length
	own, other := f.sequences()
	switch flags {
	case "S":
		frame.Seq, frame.Ack = own, 0
	case "SA":
		frame.Seq, frame.Ack = own, other+1
	}
	return frame
}

// open is the first segment of a direction.
func (f flow) open(client uint16) Frame {
	if f.reply {
		return f.segment(client, "SA", 0)
	}
	return f.segment(client, "S", 0)
}

// echo is a message of an ICMP echo of a flow's hosts.
func (f flow) echo(client uint16) Frame {
	frame := f.datagram(client)
	frame.Protocol, frame.Ports, frame.Reply, frame.Length = icmp, [2]uint16{client, 1}, f.reply, 56
	return frame
}

// plainFrames are some of each flow: the begin, data and reset of a TCP connection, a datagram, an echo request.
func (w *world) plainFrames() (all []Frame) {
	w.t.Helper()
	port := w.nextPort()
	w.warm(port, true)
	if w.layout.learns == 0 {
		for _, f := range w.flows() {
			all = append(all, f.open(port))
		}
	}
	for range 3 {
		for _, f := range w.flows() {
			all = append(all, f.segment(port, "PA", 500), f.datagram(port), f.echo(port))
		}
	}
	for _, f := range w.flows() {
		all = append(all, f.segment(port, "RA", 0))
	}
	return all
}

// warm sends packets of all flows in turn, so that a shortcut which learns established flows has learned those of a
// client's port. Without UDP it takes a moment; the kernel takes a UDP flow for established after two seconds. While
// no change is in force the shortcut learns all of them.
func (w *world) warm(port uint16, withUDP bool) {
	w.t.Helper()
	if w.layout.learns == 0 {
		return
	}
	flows := w.flows()
	for _, f := range flows {
		w.toBoth(f.open(port))
	}
	learned := w.awaitLearned(len(flows), withUDP)
	for begun := time.Now(); ; {
		for range w.layout.learns {
			for _, f := range flows {
				w.toBoth(f.segment(port, "PA", 100))
				if withUDP {
					w.toBoth(f.datagram(port))
				}
			}
		}
		w.pause()
		if learned(time.Since(begun)) {
			break
		}
	}
	w.settle()
}

// awaitLearned returns whether the shortcut has learned so many flows of TCP, and as many of UDP, since it was called,
// some time ago. With a change in force, such as that no agent runs, it may learn fewer: then only the time counts.
func (w *world) awaitLearned(flows int, withUDP bool) func(time.Duration) bool {
	w.t.Helper()
	if withUDP {
		flows *= 2
	}
	if len(w.changes) > 0 {
		return func(passed time.Duration) bool { return !withUDP || passed > 2500*time.Millisecond }
	}
	before := w.learned()
	return func(passed time.Duration) bool {
		w.t.Helper()
		got := w.learned() - before
		if got < flows && passed > 10*time.Second {
			w.t.Fatalf("the shortcut has learned %d of %d flows: the test proves nothing", got, flows)
		}
		return got >= flows
	}
}

// learned is how many flows the shortcut has learned since it began.
func (w *world) learned() int {
	w.t.Helper()
	s, err := w.sides[0].agent.Status()
	w.must(err)
	return int(s.Offload.LearnedEntries)
}

// toBoth sends a frame into both labs.
func (w *world) toBoth(f Frame) {
	w.t.Helper()
	w.number++
	for _, s := range w.sides {
		w.must(s.send(f, w.number))
	}
}

// nextPort is a client's port that no flow has had.
func (w *world) nextPort() uint16 {
	w.lastPort++
	return 10000 + w.lastPort%15000
}
