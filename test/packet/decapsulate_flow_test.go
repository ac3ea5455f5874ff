// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"beeline.io/beeline/test/packet/model"
)

// A flow keeps its backend of this node, whatever a balancer without its entry says; a new connection goes
// where the balancer says.
func TestRecordOrBalancer(t *testing.T) {
	w := newDSRScene(t)
	w.eachWrapping(t, func(t *testing.T, at hook, f family, how wrapping, question wrapped) {
		first, second := on(f.local, targetPort), on(f.local.Next(), targetPort)
		w.opens(t, at, how.wrap(t, f, question), question.translated(question.from, first))
		question.backend, question.flags, question.ack = second, ack, 78
		w.opens(t, at, how.wrap(t, f, question), question.translated(question.from, first))
		if question.protocol != tcp {
			return
		}
		reset := reply(first, question.from, tcp)
		reset.flags, reset.seq = rst|ack, question.ack
		w.passes(t, atEgress, reset.frame(t), reset.translated(question.to, question.from))
		question.flags = syn
		w.opens(t, at, how.wrap(t, f, question), question.translated(question.from, second))
		w.dsrRecords(t, 2)
	})
}

// A new connection goes where the balancer says if the old one's backend here is gone: no backend is left to
// judge the SYN, and the entry would last for hours.
func TestRecordOfABackendThatIsGone(t *testing.T) {
	w := newDSRScene(t)
	w.eachWrapping(t, func(t *testing.T, at hook, f family, how wrapping, question wrapped) {
		first, second := on(f.local, targetPort), on(f.local.Next(), targetPort)
		defer w.apply(t, w.dsrScene())
		w.opens(t, at, how.wrap(t, f, question), question.translated(question.from, first))
		tables := w.dsrScene()
		for key, frontend := range tables.Frontends {
			gone := func(id uint32) bool { return tables.Backends[id].Address == f.local && id > 50 }
			frontend.Pod.Slots = slices.DeleteFunc(slices.Clone(frontend.Pod.Slots), gone)
			frontend.Outside.Slots = slices.DeleteFunc(slices.Clone(frontend.Outside.Slots), gone)
			tables.Frontends[key] = frontend
		}
		w.apply(t, tables)
		question.backend, question.flags = second, ack
		w.opens(t, at, how.wrap(t, f, question), question.translated(question.from, first)) // R30
		if question.protocol != tcp {
			return
		}
		question.flags = syn
		w.opens(t, at, how.wrap(t, f, question), question.translated(question.from, second))
		w.dsrRecords(t, 2)
	})
}

// If this node is a balancer of the Service, too, its entry for a flow to a remote backend yields to another
// balancer that sends the flow here. An entry for a local backend is kept, and replies leave by the node's own
// route from then on.
func TestRecordOfABalancer(t *testing.T) {
	w := newDSRScene(t)
	w.eachWrapping(t, func(t *testing.T, at hook, f family, how wrapping, question wrapped) {
		if how.kind == model.Opt {
			return // the Services below have no such DSR
		}
		tables := w.dsrScene()
		defer w.apply(t, w.dsrScene())
		for _, backend := range []netip.Addr{f.remote, f.local} {
			w.forget(t)
			key := model.FrontendKey{Address: f.vip, Port: question.to.Port(), Protocol: question.protocol}
			frontend := tables.Frontends[key]
			for id, b := range tables.Backends {
				if b.Address == backend && id > 50 {
					frontend.Outside.Slots = []uint32{id}
				}
			}
			frontend.DSR = 0
			tables.Frontends[key] = frontend
			w.apply(t, tables)
			plain := question.probe
			plain.source, plain.target = gatewayMAC, eth0MAC
			w.run(t, at, plain.frame(t))
			if n := len(w.records(t, halfOpen)); n != 2 {
				t.Fatalf("%d conntrack entries for the client's packets, want 2", n)
			}
			w.opens(t, at, how.wrap(t, f, question), question.translated(question.from, question.backend))
			if backend == f.remote {
				w.dsrRecords(t, 2)
			}
			answer := reply(question.backend, question.from, question.protocol)
			w.passes(t, atEgress, answer.frame(t), answer.translated(question.to, question.from))
		}
	})
}

// One of a flow's two entries may be lost: it is restored from the other, or from what the balancer says.
func TestLostRecordsOfDSR(t *testing.T) {
	w := newDSRScene(t)
	w.eachWrapping(t, func(t *testing.T, at hook, f family, how wrapping, question wrapped) {
		question.flags = ack
		frame := how.wrap(t, f, question)
		want := question.translated(question.from, question.backend)
		asked := model.Tuple{Source: f.client, SourcePort: clientPort, Destination: f.vip, DestinationPort: question.to.Port(), Protocol: question.protocol}
		answered := model.Tuple{Source: f.local, SourcePort: targetPort, Destination: f.client, DestinationPort: clientPort, Protocol: question.protocol}
		w.opens(t, at, frame, want)
		for _, lost := range [][]model.Tuple{{asked}, {asked, answered}} {
			for _, key := range lost {
				w.lose(t, halfOpen, key)
			}
			w.opens(t, at, frame, want)
			w.dsrRecords(t, 2)
		}
	})
}

// One client uses one port for two Services with one backend: one of the flows gets another port there, and
// both get their replies.
func TestDSRPortsDoNotMeet(t *testing.T) {
	w := newDSRScene(t)
	w.eachWrapping(t, func(t *testing.T, at hook, f family, how wrapping, question wrapped) {
		plain := f.question(question.protocol, toLocal)
		w.passes(t, at, plain.frame(t), plain.translated(plain.from, question.backend))
		got := w.run(t, at, how.wrap(t, f, question))
		if got.Action != model.ActionPass {
			t.Fatalf("action %v, want 0 (passed)", got.Action)
		}
		ends, _ := model.Ends(got.Frame)
		if ends.SourcePort == clientPort {
			t.Fatalf("two flows have the tuples %v at the backend", ends)
		}
		snatPort := on(f.client, ends.SourcePort)
		w.opens(t, at, how.wrap(t, f, question), question.translated(snatPort, question.backend))
		answer := reply(question.backend, snatPort, question.protocol)
		w.passes(t, atEgress, answer.frame(t), answer.translated(question.to, question.from))
	})
}

// A datagram that the client has sent in fragments.
func TestEncapsulatedFragments(t *testing.T) {
	w := newDSRScene(t)
	w.eachWrapping(t, func(t *testing.T, at hook, f family, how wrapping, question wrapped) {
		question.payload = bytes.Repeat([]byte("0123456789"), 20)
		pieces := question.probe.fragments(t, 0x77, 64)
		want := question.translated(question.from, question.backend).fragments(t, 0x77, 64)
		wrap := func(piece []byte) []byte {
			if how.kind == model.Opt {
				return withOption(t, f, question, piece)
			}
			question := question
			question.inner = piece[14:]
			return how.wrap(t, f, question)
		}
		w.drops(t, at, wrap(pieces[1]), model.DropFragment)
		for i := range pieces {
			w.opensTo(t, at, wrap(pieces[i]), want[i])
		}
		w.drops(t, at, wrap(pieces[1]), model.DropFragment) // of another datagram
		// A datagram whose first fragment has not arrived.
		w.drops(t, at, wrap(question.probe.fragments(t, 0x78, 64)[1]), model.DropFragment)
	})
}

// withOption is a fragment as a balancer sends it: addressed to the backend, with the original destination in
// an option.
func withOption(t testing.TB, f family, w wrapped, piece []byte) []byte {
	t.Helper()
	empty := w
	empty.payload = nil
	like := empty.carries().frame(t) // for its option's bytes
	if f.client.Is4() {
		piece = piece[:14+int(binary.BigEndian.Uint16(piece[16:]))] // without the padding
		option := like[34:42]
		out := append(append(bytes.Clone(piece[:34]), option...), piece[34:]...)
		ip := out[14:42]
		ip[0] += 2
		length := len(out) - 14
		ip[2], ip[3] = byte(length>>8), byte(length)
		copy(ip[16:], w.backend.Addr().AsSlice())
		ip[10], ip[11] = 0, 0
		sum := checksum(0, ip)
		ip[10], ip[11] = byte(sum>>8), byte(sum)
		return withPorts(t, w, out, 42, piece[14+6]&0x1f == 0 && piece[14+7] == 0)
	}
	header := bytes.Clone(like[54:78])
	header[0] = piece[14+6]
	out := append(append(bytes.Clone(piece[:54]), header...), piece[54:]...)
	out[14+6] = byte(destinationOptions)
	length := len(out) - 54
	out[14+4], out[14+5] = byte(length>>8), byte(length)
	copy(out[14+24:], w.backend.Addr().AsSlice())
	return withPorts(t, w, out, 78+8, piece[54+2] == 0 && piece[54+3]&^7 == 0)
}

// withPorts writes the backend's port, and the checksum of the whole datagram, into its first fragment.
func withPorts(t testing.TB, w wrapped, out []byte, l4 int, first bool) []byte {
	t.Helper()
	if !first {
		return out
	}
	whole := w.translated(w.from, w.backend).fragments(t, 1, 64)[0]
	at := len(whole) - (len(out) - l4)
	copy(out[l4:], whole[at:])
	return out
}

// An ICMP error about a reply goes to the Service, whose balancer forwards it here: the backend gets it in its
// own addresses and ports.
func TestEncapsulatedICMPErrors(t *testing.T) {
	w := newDSRScene(t)
	w.eachWrapping(t, func(t *testing.T, at hook, f family, how wrapping, question wrapped) {
		question.flags, question.payload = ack, []byte("some payload, so that there is something to be too large")
		w.run(t, at, how.wrap(t, f, question))
		answer := reply(question.backend, question.from, question.protocol)
		back := answer.translated(question.to, question.from)
		in := probe{source: nodeBMAC, target: eth0MAC}
		for i := range errorsOf(f, back) {
			from, to := errorsOf(f, back)[i], errorsOf(f, answer)[i]
			for _, by := range []netip.Addr{f.client, f.client.Next(), f.balancer()} {
				before := w.counts(t)
				wrapped := question
				wrapped.inner = from.frame(t, in, by, f.vip)[14:]
				frame := how.wrap(t, f, wrapped)
				if how.kind == model.Opt {
					frame = from.frame(t, question.optionFor(in), by, f.local)
				}
				w.opensTo(t, at, frame, to.frame(t, in, by, f.local))
				w.counted(t, before, model.ICMPError)
			}
		}
		// Of no flow, and from no balancer.
		stranger := back.translated(question.to, on(f.client, 7))
		for _, e := range errorsOf(f, stranger) {
			wrapped := question
			wrapped.inner = e.frame(t, in, f.client, f.vip)[14:]
			frame := how.wrap(t, f, wrapped)
			if how.kind == model.Opt {
				frame = e.frame(t, question.optionFor(in), f.client, f.local)
			}
			w.ignores(t, at, frame)
		}
		if how.kind != model.Opt {
			wrapped := question
			wrapped.inner, wrapped.balancer = errorsOf(f, back)[0].frame(t, in, f.client, f.vip)[14:], f.client
			w.ignores(t, at, how.wrap(t, f, wrapped))
		}
	})
}

// optionFor gives another packet this one's option.
func (w wrapped) optionFor(p probe) probe {
	carries := w.carries()
	p.ipOptions, p.extension, p.extensions = carries.ipOptions, carries.extension, carries.extensions
	return p
}

// The balancer answers pings.
func TestEncapsulatedPing(t *testing.T) {
	w := newDSRScene(t)
	w.eachWrapping(t, func(t *testing.T, at hook, f family, how wrapping, question wrapped) {
		if how.kind == model.Opt {
			return // an option needs a port
		}
		question.inner = f.ping("are you there").frame(t)[14:]
		before := w.counts(t)
		w.ignores(t, at, how.wrap(t, f, question))
		w.counted(t, before, model.NotService)
	})
}

// Congestion marks that routers set are copied to the inner packet (RFC 6040 section 4.2).
func TestCongestionIsKept(t *testing.T) {
	const notCapable, capable1, capable0, experienced = 0, 1, 2, 3
	w := newDSRScene(t)
	w.eachWrapping(t, func(t *testing.T, at hook, f family, how wrapping, question wrapped) {
		if how.kind == model.Opt {
			return // there is no outer header
		}
		for inner, row := range [][4]int{
			notCapable:  {notCapable, notCapable, notCapable, -1},
			capable1:    {capable1, capable1, capable1, experienced},
			capable0:    {capable0, capable1, capable0, experienced},
			experienced: {experienced, experienced, experienced, experienced},
		} {
			for outer, want := range row {
				t.Run(fmt.Sprintf("%d in %d", inner, outer), func(t *testing.T) {
					w.enter(t)
					question := question
					question.ecn = uint8(outer)
					question.inner = withECN(f, question.probe.frame(t), inner)[14:]
					frame := how.wrap(t, f, question)
					if want < 0 { // no router may set this
						before := w.counts(t)
						w.ignores(t, at, frame)
						w.counted(t, before, model.Malformed)
						return
					}
					w.opensTo(t, at, frame, withECN(f, question.translated(question.from, question.backend).frame(t), want))
				})
			}
		}
	})
}

// withECN sets the ECN field of an IP header.
func withECN(f family, frame []byte, ecn int) []byte {
	ip := frame[14:]
	if f.client.Is6() {
		ip[1] = ip[1]&^0x30 | byte(ecn)<<4
		return frame
	}
	ip[1] = ip[1]&^3 | byte(ecn)
	ip[10], ip[11] = 0, 0
	sum := checksum(0, ip[:20])
	ip[10], ip[11] = byte(sum>>8), byte(sum)
	return frame
}
