// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"beeline.io/beeline/test/packet/model"
)

// icmpError is an ICMP error about a packet, with a quote of its IP header and 8 octets.
type icmpError struct {
	kind, code uint8
	rest       uint32 // the MTU, if it has one
	about      probe
	quoted     int // bytes of layer 4; 0: 8
}

// errorsOf are the errors that must reach a side of the flow.
func errorsOf(f family, about probe) []icmpError {
	if f.client.Is4() {
		return []icmpError{{3, 1, 0, about, 0}, {3, 3, 0, about, 0}, {3, 4, 1400, about, 0}, {11, 0, 0, about, 0}, {12, 0, 0, about, 0}}
	}
	return []icmpError{{1, 0, 0, about, 0}, {1, 4, 0, about, 0}, {2, 0, 1280, about, 0}, {3, 0, 0, about, 0}, {4, 0, 8, about, 0}}
}

// quotesChecksum is the smallest quote of layer 4 with the whole checksum.
func quotesChecksum(protocol uint8) int {
	if protocol == tcp {
		return 18
	}
	return 8
}

// frame is the error in a packet from `by` to `to`.
func (e icmpError) frame(t testing.TB, like probe, by, to netip.Addr) []byte {
	t.Helper()
	like.from, like.to = on(by, 0), on(to, 0)
	end := 20
	if by.Is6() {
		end = 40
	}
	quote := e.about.frame(t)[14 : 14+end+max(8, e.quoted)]
	if by.Is4() {
		like.protocol = model.ICMP
		header := &layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(e.kind, e.code), Id: uint16(e.rest >> 16), Seq: uint16(e.rest)}
		return serialize(t, like.ethernet(), like.network().(gopacket.SerializableLayer), header, gopacket.Payload(quote))
	}
	like.protocol = model.ICMPv6
	network := like.network()
	header := &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(e.kind, e.code)}
	must(t, header.SetNetworkLayerForChecksum(network))
	return serialize(t, like.ethernet(), network.(gopacket.SerializableLayer), like.chain(), header,
		gopacket.Payload(append(binary.BigEndian.AppendUint32(nil, e.rest), quote...)))
}

// backends are the addresses of a backend on another node, and of one on this node, by the Service's port.
func (f family) backends() map[uint16]netip.Addr {
	return map[uint16]netip.Addr{toRemote: f.remote, toLocal: f.local}
}

// newSceneAtBackends is newScene with toRemote and toLocal also at the address of their backend: of a packet to such a
// Service only the port is translated.
func newSceneAtBackends(t *testing.T) *world {
	t.Helper()
	w := newWorld(t, limits{})
	tables := w.scene()
	for _, f := range families {
		for port, backend := range f.backends() {
			for _, protocol := range []uint8{tcp, udp} {
				key := model.FrontendKey{Address: f.vip, Port: port, Protocol: protocol}
				frontend := tables.Frontends[key]
				key.Address = backend
				tables.Frontends[key] = frontend
			}
		}
	}
	w.apply(t, tables)
	return w
}

// eachAddress is each for questions to a port of the Service's address, and of the backend's.
func (w *world) eachAddress(t *testing.T, port uint16, test func(t *testing.T, at hook, f family, question probe)) {
	t.Helper()
	w.each(t, func(t *testing.T, at hook, f family, protocol uint8) {
		for _, address := range []netip.Addr{f.vip, f.backends()[port]} {
			t.Run(address.String(), func(t *testing.T) {
				w.enter(t)
				w.forget(t)
				question := f.question(protocol, port)
				question.to = on(address, port)
				test(t, at, f, question)
			})
		}
	})
}

// An error about a packet that the node sent for a client goes to that client, and one about a reply goes to
// the backend: with the addresses and ports that they know, and with their packets' checksum if it is quoted
// (RFC 792, RFC 4443, RFC 5508 section 4.2; path MTU: RFC 1191, RFC 8201).
func TestICMPErrorsOfRemoteBackend(t *testing.T) {
	w := newSceneAtBackends(t)
	w.eachAddress(t, toRemote, func(t *testing.T, at hook, f family, question probe) {
		protocol, address := question.protocol, question.to.Addr()
		question.flags, question.payload = ack, []byte("some payload, so that there is something to be too large")
		backend := on(f.remote, targetPort)
		own := on(f.own, w.snatPort(t, at, question.frame(t)))
		sent := question.translated(own, backend)
		answer := reply(backend, own, protocol)
		back := answer.translated(question.to, question.from)
		router := f.remote.Next()
		for i := range errorsOf(f, sent) {
			for n, by := range []netip.Addr{f.remote, router, router, router} {
				from, to := errorsOf(f, sent)[i], errorsOf(f, question)[i]
				from.quoted = []int{0, 0, quotesChecksum(protocol), 60}[n]
				to.quoted = from.quoted
				in := probe{source: nodeBMAC, target: eth0MAC}
				out := in.forwarded(at, in.from, in.to, gatewayMAC)
				before := w.counts(t)
				w.leaves(t, at, from.frame(t, in, by, f.own), model.ActionSend, to.frame(t, out, address, f.client))
				w.counted(t, before, model.ICMPError)
			}
			from, to := errorsOf(f, back)[i], errorsOf(f, answer)[i]
			from.quoted = quotesChecksum(protocol)
			to.quoted = from.quoted
			in := probe{}
			out := in.forwarded(at, in.from, in.to, nodeBMAC)
			w.leaves(t, at, from.frame(t, in, f.client, address), model.ActionSend, to.frame(t, out, f.own, f.remote))
		}
		// Of no flow: for the node itself.
		stranger := question.translated(on(f.own, 1), backend)
		for _, e := range errorsOf(f, stranger) {
			w.ignores(t, at, e.frame(t, probe{}, router, f.own))
		}
	})
}

// An ICMP redirect that quotes a packet of a flow is dropped, in both directions (RFC 1122 section 3.2.2.2: the
// gateway that it names is on another link). Others pass.
func TestRedirects(t *testing.T) {
	w := newScene(t)
	f := families[0] // ICMPv6 redirects are no errors
	redirect := func(about probe, by, to netip.Addr) []byte {
		e := icmpError{kind: 5, code: 1, rest: 0xc0a86401, about: about}
		return e.frame(t, probe{}, by, to)
	}
	for _, at := range []hook{atXDP, atIngress} {
		for _, protocol := range []uint8{tcp, udp} {
			t.Run(fmt.Sprintf("%s/%d", at, protocol), func(t *testing.T) {
				w.enter(t)
				w.forget(t)
				router := f.remote.Next()
				question := f.question(protocol, toRemote)
				own := on(f.own, w.snatPort(t, at, question.frame(t)))
				w.drops(t, at, redirect(question.translated(own, on(f.remote, targetPort)), router, f.own), model.DropRedirect)
				answer := reply(question.to, question.from, protocol)
				w.drops(t, at, redirect(answer, router, f.vip), model.DropRedirect)

				question = f.question(protocol, toLocal)
				w.run(t, at, question.frame(t))
				w.drops(t, at, redirect(reply(question.to, question.from, protocol), router, f.vip), model.DropRedirect)
				w.drops(t, atEgress, redirect(question.translated(question.from, on(f.local, targetPort)), f.local, f.client), model.DropRedirect)

				stranger := question
				stranger.to = on(f.client.Next(), 80)
				w.ignores(t, at, redirect(stranger, router, f.own))
				w.ignores(t, atEgress, redirect(stranger, router, f.client))
			})
		}
	}
	w.eachDirect(t, func(t *testing.T, at hook, f family, protocol uint8, dsr model.DSR) {
		if f.client.Is6() {
			return
		}
		question, way := f.question(protocol, direct(toRemote, dsr)), f.way(dsr)
		question.payload = make([]byte, 40)
		w.run(t, at, question.frame(t))
		for _, recorded := range []bool{true, false} {
			if !recorded {
				w.forget(t)
			}
			w.drops(t, at, redirect(reply(question.to, question.from, protocol), f.client.Next(), f.vip), model.DropRedirect)
			if dsr != model.Opt { // the client gets that one directly
				w.drops(t, at, outerError(t, f.node.Next(), f.own, 5, 1, 0, way.sent(t, atIngress, question, nodeBMAC), 548), model.DropRedirect)
			}
		}
	})
}

// With a backend of this node: its errors leave in the Service's name, and errors of the client or a router
// reach it.
func TestICMPErrorsOfLocalBackend(t *testing.T) {
	w := newSceneAtBackends(t)
	w.eachAddress(t, toLocal, func(t *testing.T, at hook, f family, question probe) {
		protocol, address := question.protocol, question.to.Addr()
		question.flags, question.payload = ack, []byte("some payload, so that there is something to be too large")
		backend := on(f.local, targetPort)
		w.run(t, at, question.frame(t))
		seen := question.translated(question.from, backend)
		answer := reply(backend, question.from, protocol)
		back := answer.translated(question.to, question.from)
		router := f.client.Next()
		for i := range errorsOf(f, seen) {
			from, to := errorsOf(f, seen)[i], errorsOf(f, question)[i]
			from.quoted = quotesChecksum(protocol) * (i % 2)
			to.quoted = from.quoted
			for _, by := range []netip.Addr{f.local, f.local.Next()} {
				want := to.frame(t, probe{}, address, f.client)
				w.leaves(t, atEgress, from.frame(t, probe{}, by, f.client), model.ActionPass, want)
			}
			from, to = errorsOf(f, back)[i], errorsOf(f, answer)[i]
			from.quoted = quotesChecksum(protocol) * (i % 2)
			to.quoted = from.quoted
			for _, by := range []netip.Addr{f.client, router} {
				w.leaves(t, at, from.frame(t, probe{}, by, address), model.ActionPass, to.frame(t, probe{}, by, f.local))
			}
		}
	})
}
