// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"beeline.io/beeline/test/packet/model"
)

// icmpError is one about a packet, of which it quotes the IP header and 8 octets.
type icmpError struct {
	kind, code uint8
	rest       uint32 // the MTU, for one
	about      probe
	quoted     int // bytes of layer 4; 0: 8
}

// errorsOf are those that somebody has to hear of.
func errorsOf(f family, about probe) []icmpError {
	if f.client.Is4() {
		return []icmpError{{3, 1, 0, about, 0}, {3, 3, 0, about, 0}, {3, 4, 1400, about, 0}, {11, 0, 0, about, 0}, {12, 0, 0, about, 0}}
	}
	return []icmpError{{1, 0, 0, about, 0}, {1, 4, 0, about, 0}, {2, 0, 1280, about, 0}, {3, 0, 0, about, 0}, {4, 0, 8, about, 0}}
}

// frame is the error as `by` sends it in a packet to `to`.
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

// An error about a packet that the node has sent for a client goes to that client, and
// one about an answer to the backend: with the ends that they know (RFC 792, RFC 4443;
// path MTU: RFC 1191, RFC 8201).
func TestICMPErrorsOfRemoteBackend(t *testing.T) {
	w := newScene(t)
	w.each(t, func(t *testing.T, at hook, f family, protocol uint8) {
		question := f.question(protocol, toRemote)
		question.flags, question.payload = ack, []byte("some payload, so that there is something to be too large")
		backend := on(f.remote, targetPort)
		own := on(f.own, w.lent(t, at, question.frame(t)))
		sent := question.translated(own, backend)
		answer := reply(backend, own, protocol)
		back := answer.translated(question.to, question.from)
		router := f.remote.Next()
		for i := range errorsOf(f, sent) {
			for _, by := range []netip.Addr{f.remote, router} {
				from, to := errorsOf(f, sent)[i], errorsOf(f, question)[i]
				in := probe{source: nodeBMAC, target: eth0MAC}
				out := in.forwarded(at, in.from, in.to, gatewayMAC)
				before := w.counts(t)
				w.leaves(t, at, from.frame(t, in, by, f.own), model.ActionSend, to.frame(t, out, f.vip, f.client))
				w.counted(t, before, model.ICMPError)
			}
			from, to := errorsOf(f, back)[i], errorsOf(f, answer)[i]
			in := probe{}
			out := in.forwarded(at, in.from, in.to, nodeBMAC)
			w.leaves(t, at, from.frame(t, in, f.client, f.vip), model.ActionSend, to.frame(t, out, f.own, f.remote))
		}
		// Of no flow: the node's own.
		stranger := question.translated(on(f.own, 1), backend)
		for _, e := range errorsOf(f, stranger) {
			w.ignores(t, at, e.frame(t, probe{}, router, f.own))
		}
	})
}

// With a backend of this node: what it reports leaves in the Service's name, what the
// client or a router reports comes to it.
func TestICMPErrorsOfLocalBackend(t *testing.T) {
	w := newScene(t)
	w.each(t, func(t *testing.T, at hook, f family, protocol uint8) {
		question := f.question(protocol, toLocal)
		question.flags, question.payload = ack, []byte("some payload, so that there is something to be too large")
		backend := on(f.local, targetPort)
		w.run(t, at, question.frame(t))
		seen := question.translated(question.from, backend)
		answer := reply(backend, question.from, protocol)
		back := answer.translated(question.to, question.from)
		router := f.client.Next()
		for i := range errorsOf(f, seen) {
			from, to := errorsOf(f, seen)[i], errorsOf(f, question)[i]
			w.leaves(t, atEgress, from.frame(t, probe{}, f.local, f.client), model.ActionPass, to.frame(t, probe{}, f.vip, f.client))
			from, to = errorsOf(f, back)[i], errorsOf(f, answer)[i]
			for _, by := range []netip.Addr{f.client, router} {
				w.leaves(t, at, from.frame(t, probe{}, by, f.vip), model.ActionPass, to.frame(t, probe{}, by, f.local))
			}
		}
	})
}
