// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/test/packet/model"
)

// An ICMP error about a reply that the backend's node sent in the Service's name arrives at the balancer. It
// forwards the error like the flow's packets (RFC 792, RFC 4443): by the flow's entry, and by the slot if that
// is lost.
func TestDirectErrorsOfAnswers(t *testing.T) {
	w := newScene(t)
	w.eachDirect(t, func(t *testing.T, at hook, f family, protocol uint8, dsr model.DSR) {
		question, way := f.question(protocol, direct(toRemote, dsr)), f.way(dsr)
		w.run(t, at, question.frame(t))
		answer := reply(way.backend, question.from, protocol)
		answer.payload = []byte("some payload, so that there is something to be too large")
		back := answer.translated(question.to, question.from)
		router := f.client.Next()
		for _, recorded := range []bool{true, false} {
			if !recorded {
				w.forget(t)
			}
			for _, e := range errorsOf(f, back) {
				for _, by := range []netip.Addr{f.client, router} {
					out := probe{}.forwarded(at, netip.AddrPort{}, netip.AddrPort{}, nodeBMAC)
					want := e.frame(t, out, by, f.vip)
					if dsr == model.Opt {
						out.to = question.to
						// A router on the path may drop packets from its own address.
						want = e.frame(t, out.withOption(way.backend), f.own, f.remote)
					} else {
						want = way.around(t, want, question.hash())
					}
					before := w.counts(t)
					w.leaves(t, at, e.frame(t, probe{}, by, f.vip), model.ActionSend, want)
					w.counted(t, before, model.ICMPError)
					w.drops(t, at, e.frame(t, probe{hops: 1}, by, f.vip), model.TTLExceeded)
				}
				// To another destination, which a quote with the Service's address does not
				// concern.
				w.ignores(t, at, e.frame(t, probe{}, router, f.own))
			}
		}
		question = f.question(protocol, direct(toNoRoute, dsr))
		back = reply(on(f.noRoute, targetPort), question.from, protocol).translated(question.to, question.from)
		w.loses(t, f.noRoute, bpf.LostWithoutRoute, 1, f.noRoute, func() {
			w.drops(t, at, errorsOf(f, back)[0].frame(t, probe{}, router, f.vip), model.DropNoRoute)
		})
		w.remembersNothing(t)
	})
}

func (p probe) hash() uint32 {
	return model.Hash(model.Tuple{Source: p.from.Addr(), Destination: p.to.Addr(), SourcePort: p.from.Port(),
		DestinationPort: p.to.Port(), Protocol: uint8(p.transportType())})
}

// outerError is an ICMP error about a sent packet that quotes so many bytes of it.
func outerError(t testing.TB, by, to netip.Addr, kind, code uint8, rest uint32, sent []byte, quoted int) []byte {
	t.Helper()
	like := probe{from: on(by, 0), to: on(to, 0), protocol: model.ICMP, source: nodeBMAC, target: eth0MAC}
	quote := gopacket.Payload(sent[14:min(len(sent), 14+quoted)])
	if by.Is4() {
		header := &layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(kind, code), Id: uint16(rest >> 16), Seq: uint16(rest)}
		return serialize(t, like.ethernet(), like.network().(gopacket.SerializableLayer), header, quote)
	}
	like.protocol = model.ICMPv6
	network := like.network()
	header := &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(kind, code)}
	must(t, header.SetNetworkLayerForChecksum(network))
	return serialize(t, like.ethernet(), network.(gopacket.SerializableLayer), header, gopacket.Payload(binary.BigEndian.AppendUint32(nil, rest)), quote)
}

// An ICMP error about a packet that the node encapsulated goes to the client, about its own packet and from the
// Service's address (RFC 2003 section 4, RFC 2473 section 8); a "too big" has an MTU that leaves room for the
// encapsulation.
func TestDirectErrorsOfOuterPackets(t *testing.T) {
	w := newScene(t)
	w.eachDirect(t, func(t *testing.T, at hook, f family, protocol uint8, dsr model.DSR) {
		if dsr == model.Opt {
			return // such errors go to the client directly
		}
		question, way := f.question(protocol, direct(toRemote, dsr)), f.way(dsr)
		question.dontFragment, question.flags, question.payload = true, ack, bytes.Repeat([]byte("odd"), 401)
		sent := way.sent(t, atIngress, question, nodeBMAC)
		router, more := f.node.Next(), overhead(f, dsr)
		type message struct {
			kind, code uint8
			rest       uint32
		}
		unreachable := [2][2]uint8{{3, 1}, {1, 3}}
		tooBig := [2][2]uint8{{3, 4}, {2, 0}}
		cases := map[message][2][2]uint8{{3, 4, 1400}: tooBig, {3, 0, 0}: unreachable, {3, 2, 0}: unreachable, {3, 3, 0}: unreachable, {11, 0, 0}: unreachable, {12, 0, 0}: unreachable}
		if f.client.Is6() {
			cases = map[message][2][2]uint8{{2, 0, 1400}: tooBig, {1, 0, 0}: unreachable, {1, 4, 0}: unreachable, {3, 0, 0}: unreachable, {4, 1, 40}: unreachable}
		}
		w.run(t, at, question.frame(t)) // with an entry at first
		for m, says := range cases {
			for _, by := range []netip.Addr{router, f.remote} {
				for _, quoted := range []int{more + 28 + 20, 548, 1232} {
					if f.client.Is6() && quoted < 548 {
						quoted += 20
					}
					// The client's packet had one more hop, which nobody compares.
					inner := question.forwarded(atIngress, question.from, question.to, nodeBMAC)
					inner.source, inner.target = nodeBMAC, eth0MAC
					if at == atXDP {
						inner.source = gatewayMAC
					}
					var rest uint32
					if says == tooBig {
						rest = 1400 - uint32(more)
					}
					want := inner.icmpAnswerOf(t, f.vip, says[0], says[1], rest, quoted-more)
					before := w.counts(t)
					w.leaves(t, at, outerError(t, by, f.own, m.kind, m.code, m.rest, sent, quoted), model.ActionSend, want)
					w.counted(t, before, model.ICMPError)
				}
			}
			// Not sent by this node, or for no Service: the error passes.
			w.ignores(t, at, outerError(t, router, f.own.Next(), m.kind, m.code, m.rest, sent, 548))
			other := way
			other.own = f.own.Next()
			w.ignores(t, at, outerError(t, router, f.own, m.kind, m.code, m.rest, other.sent(t, atIngress, question, nodeBMAC), 548))
			stranger := question
			for _, to := range []netip.AddrPort{on(f.vip, toRemote), on(f.own, direct(toRemote, dsr)), on(f.client.Next(), 80)} {
				stranger.to = to
				w.ignores(t, at, outerError(t, router, f.own, m.kind, m.code, m.rest, way.sent(t, atIngress, stranger, nodeBMAC), 548))
			}
			// A health check of this node has no client.
			w.ofCheck(t, question, func() {
				before := w.counts(t)
				w.ignores(t, at, outerError(t, router, f.own, m.kind, m.code, m.rest, sent, 548))
				w.counted(t, before, model.NotService)
			})
			for cut := 0; cut < more+28; cut += 4 { // quotes that are too short
				w.ignores(t, at, outerError(t, router, f.own, m.kind, m.code, m.rest, sent, cut))
			}
			w.forget(t)
		}
	})
}

// ofCheck calls do while a packet is one of a health check of this node.
func (w *world) ofCheck(t testing.TB, packet probe, do func()) {
	t.Helper()
	replies, key := w.maps[bpf.EdgeTCMapDsrCheckReplies], kernelTuple(model.Tuple{Source: packet.to.Addr(), SourcePort: packet.to.Port(),
		Destination: packet.from.Addr(), DestinationPort: packet.from.Port(), Protocol: uint8(packet.transportType())})
	must(t, replies.Put(key, uint64(1)))
	do()
	must(t, replies.Delete(key))
}

// outerTooBig is the "too big" about a sent packet, with an MTU.
func outerTooBig(t testing.TB, f family, mtu int, sent []byte) []byte {
	t.Helper()
	if f.client.Is4() {
		return outerError(t, f.node.Next(), f.own, 3, 4, uint32(mtu), sent, 548)
	}
	return outerError(t, f.node.Next(), f.own, 2, 0, uint32(mtu), sent, 548)
}

// toldTooBig is the "too big" that the client gets for it.
func (p probe) toldTooBig(t testing.TB, at hook, f family, mtu, quoted int) []byte {
	t.Helper()
	inner := p.forwarded(atIngress, p.from, p.to, nodeBMAC)
	inner.source, inner.target = nodeBMAC, eth0MAC
	if at == atXDP {
		inner.source = gatewayMAC
	}
	return inner.icmpAnswerOf(t, f.vip, [2]uint8{3, 4}, [2]uint8{2, 0}, uint32(mtu), quoted)
}

// The client never gets an MTU below the protocol's minimum: 68 for IPv4 (RFC 791 section 3.2), 1280 for IPv6
// (RFC 8200 section 5, RFC 2473 section 7.1). If an IPv4 router names no MTU, the client has to guess (RFC 1191
// section 5).
func TestDirectLeastMTU(t *testing.T) {
	w := newScene(t)
	w.eachDirect(t, func(t *testing.T, at hook, f family, protocol uint8, dsr model.DSR) {
		if dsr == model.Opt {
			return // such errors go to the client directly
		}
		question, way, more := f.question(protocol, direct(toRemote, dsr)), f.way(dsr), overhead(f, dsr)
		question.dontFragment, question.flags, question.payload = true, ack, bytes.Repeat([]byte("odd"), 401)
		sent := way.sent(t, atIngress, question, nodeBMAC)
		least := 68
		if f.client.Is6() {
			least = 1280
		}
		told := map[int]int{1: least, more: least, more + 1: least, least: least, least + more - 1: least, least + more: least,
			least + more + 1: least + 1, 1400: 1400 - more, 0: 0}
		if f.client.Is6() {
			told[0] = least
		}
		for mtu, want := range told {
			w.leaves(t, at, outerTooBig(t, f, mtu, sent), model.ActionSend, question.toldTooBig(t, at, f, want, 548-more))
		}
	})
}

// An error reaches the client only if it quotes the encapsulation that this node uses: of that kind, and to the
// backend (or its node) of the flow's entry or, without an entry, of its slot. Anything else was made up by
// somebody who cannot see such packets.
func TestDirectSpoofedErrors(t *testing.T) {
	w := newScene(t)
	w.eachDirect(t, func(t *testing.T, at hook, f family, protocol uint8, dsr model.DSR) {
		if dsr == model.Opt {
			return // no outer header
		}
		defer w.apply(t, w.scene())
		question := f.question(protocol, direct(toRemote, dsr))
		question.dontFragment, question.flags, question.payload = true, ack, bytes.Repeat([]byte("odd"), 401)
		first := uint32(1)
		if f.client.Is6() {
			first = 11
		}
		recorded, other := f.way(dsr), f.way(dsr)
		other.backend = on(f.remote.Next(), targetPort)
		other.node = other.backend.Addr() // unknown
		tells := func(when string, tells, not way) {
			t.Helper()
			sent := tells.sent(t, atIngress, question, nodeBMAC)
			before := w.counts(t)
			w.leaves(t, at, outerTooBig(t, f, 1400, sent), model.ActionSend, question.toldTooBig(t, at, f, 1400-overhead(f, dsr), 548-overhead(f, dsr)))
			w.counted(t, before, model.ICMPError)
			spoofed := map[string][]byte{"another backend": not.sent(t, atIngress, question, nodeBMAC)}
			kind := tells
			kind.dsr = model.IPIP + model.Geneve - dsr
			spoofed["another kind"] = kind.sent(t, atIngress, question, nodeBMAC)
			if dsr == model.Geneve {
				inner, _ := split(question.frame(t))
				port := tells.around(t, append(question.frame(t)[:14:14], inner...), question.hash()^1<<31)
				spoofed["another port"] = port
			}
			for what, frame := range spoofed {
				t.Log(when, what)
				before := w.counts(t)
				w.ignores(t, at, outerTooBig(t, f, 1400, frame))
				w.counted(t, before, model.NotService)
			}
		}
		tells("without a record", recorded, other)
		w.run(t, at, question.frame(t))
		tells("with a record", recorded, other)
		tables := w.scene()
		key := model.FrontendKey{Address: f.vip, Port: question.to.Port(), Protocol: protocol}
		changed := tables.Frontends[key]
		changed.Pod, changed.Outside = model.Decision{Slots: []uint32{first + 6}}, model.Decision{Slots: []uint32{first + 6}}
		tables.Frontends[key] = changed
		w.apply(t, tables)
		tells("with an entry of a backend that is gone", recorded, other)
		w.forget(t)
		tells("without an entry, of another backend", other, recorded)
		changed.Untracked, changed.Before, changed.History = true, dsr, []model.Slot{{Contested: true, Stable: first}}
		tables.Frontends[key] = changed
		w.apply(t, tables)
		if protocol == tcp {
			tells("without an entry, in a contested slot", recorded, other)
		} else {
			tells("without an entry, in a contested slot", other, recorded)
		}
		changed = model.Frontend{Service: 1, Outside: changed.Outside, AffinitySeconds: 1000, DSR: dsr}
		tables.Frontends[key] = changed
		w.apply(t, tables)
		w.ignores(t, at, outerTooBig(t, f, 1400, other.sent(t, atIngress, question, nodeBMAC))) // the tuple alone is not enough
	})
}

// An error may quote no more of an outer packet than its IP header and 8 octets (RFC 792), which do not
// identify the client. The MTU is stored for the outer destination (RFC 2003 section 5.1), and the client gets
// a "too big" for its next packet that does not fit: for 10 minutes (RFC 1191 section 6.3), and with no less
// than a floor. Nobody can have an MTU stored for a destination that gets no packets, or by quoting a packet
// that this node did not send or that would have fitted.
func TestDirectErrorsWithLeastQuote(t *testing.T) {
	const minutes10 = 600
	w := newScene(t)
	w.eachDirect(t, func(t *testing.T, at hook, f family, protocol uint8, dsr model.DSR) {
		if dsr == model.Opt {
			return // such errors go to the client directly
		}
		question, usual, more := f.question(protocol, direct(toRemote, dsr)), f.way(dsr), overhead(f, dsr)
		question.dontFragment, question.flags = true, ack
		header, least := 20, 552
		if f.client.Is6() {
			header, least = 40, 1280
		}
		big := question.sized(t, 1450)
		told := func(along way, mtu int) []byte {
			sent := along.sent(t, atIngress, big, nodeBMAC)
			if f.client.Is4() {
				return outerError(t, f.node.Next(), f.own, 3, 4, uint32(mtu), sent, header+8)
			}
			return outerError(t, f.node.Next(), f.own, 2, 0, uint32(mtu), sent, header+8)
		}
		learns := func(what string, frame []byte, want int) {
			t.Helper()
			before := w.counts(t)
			w.ignores(t, at, frame) // the stack gets it, too
			reason := model.ICMPError
			if want == 0 {
				reason = model.NotService
			}
			w.counted(t, before, reason)
			if got := w.outerMTU(t); int(got) != want {
				t.Fatalf("%s: an MTU of %d is remembered, want %d", what, got, want)
			}
		}
		learns("nothing was sent there", told(usual, 1400), 0)
		w.soon(t, at, big.frame(t), model.ActionSend, usual.sent(t, at, big, nodeBMAC), "no MTU is known")
		if len(w.outers(t)) == 0 { // its next hop was cached before the test
			time.Sleep(100 * time.Millisecond)
			w.run(t, at, big.frame(t))
		}
		other := usual
		other.own = f.own.Next()
		learns("of another node", told(other, 1400), 0)
		other = usual
		other.backend, other.node = on(f.remote.Next(), targetPort), f.remote.Next()
		learns("to somebody else", told(other, 1400), 0)
		learns("it would have fitted", told(usual, 1450+more), 0)
		if f.client.Is4() {
			learns("no MTU", told(usual, 0), 0)
		}
		learns("less than the floor", told(usual, 68), least+more)
		learns("more than before", told(usual, 1400), least+more)
		w.ageOuterPaths(t, minutes10)
		learns("10 minutes later", told(usual, 1400), 1400)

		fits, tooBig := question.sized(t, 1400-more), question.sized(t, 1401-more)
		answer := tooBig.icmpAnswer(t, f.vip, [2]uint8{3, 4}, [2]uint8{2, 0}, uint32(1400-more))
		w.soon(t, at, tooBig.frame(t), model.ActionSend, answer, "the path MTU is known")
		w.leaves(t, at, tooBig.frame(t), model.ActionSend, answer)
		w.leaves(t, at, fits.frame(t), model.ActionSend, usual.sent(t, at, fits, nodeBMAC))
		w.leaves(t, at, tooBig.frame(t), model.ActionSend, answer) // by a cached next hop
		w.ageOuterPaths(t, minutes10)
		w.soon(t, at, tooBig.frame(t), model.ActionSend, usual.sent(t, at, tooBig, nodeBMAC), "the path MTU is forgotten")
	})
}

type outerPath struct{ MTU, Since uint32 }

// outers are the destinations of outer packets, with what is known of the path there.
func (w *world) outers(t testing.TB) map[[16]byte]outerPath {
	t.Helper()
	all := map[[16]byte]outerPath{}
	var key [16]byte
	var value outerPath
	entries := w.maps[bpf.EdgeTCMapOuterPaths].Iterate()
	for entries.Next(&key, &value) {
		all[key] = value
	}
	must(t, entries.Err())
	return all
}

// outerMTU is the stored path MTU; 0: none.
func (w *world) outerMTU(t testing.TB) (mtu uint32) {
	t.Helper()
	for _, path := range w.outers(t) {
		mtu = max(mtu, path.MTU)
	}
	return mtu
}

// ageOuterPaths makes all stored paths so many seconds older.
func (w *world) ageOuterPaths(t testing.TB, seconds uint32) {
	t.Helper()
	for key, path := range w.outers(t) {
		path.Since -= seconds
		w.put(t, bpf.EdgeTCMapOuterPaths, key, path)
	}
}
