// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"bytes"
	"testing"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/test/packet/model"
)

// sized is the packet with a payload that makes it n bytes long, from the IP header on.
func (p probe) sized(t testing.TB, n int) probe {
	t.Helper()
	p.payload = make([]byte, 100) // no padding
	p.payload = bytes.Repeat([]byte{7}, n-(len(p.frame(t))-14-100))
	return p
}

// A packet that does not fit the next hop gets a "too big" with the MTU (RFC 1191, RFC 8201) from the address
// that it was sent to: a client from the Service, a backend from the node. IPv4 without "don't fragment" is
// fragmented instead (fragment_test.go).
func TestTooBig(t *testing.T) {
	w := newScene(t)
	w.each(t, func(t *testing.T, at hook, f family, protocol uint8) {
		tooBig := func(p probe) {
			t.Helper()
			before := w.counts(t)
			w.leaves(t, at, p.frame(t), model.ActionSend, p.icmpAnswer(t, p.to.Addr(), [2]uint8{3, 4}, [2]uint8{2, 0}, narrowMTU))
			w.counted(t, before, model.DropTooBig)
		}
		question := f.question(protocol, toNarrow)
		question.from, question.dontFragment, question.flags = on(f.narrowClient, clientPort), true, ack
		tooBig(question.sized(t, narrowMTU+1))
		tooBig(question.sized(t, 2000))
		w.remembersNothing(t)

		fits := question.sized(t, narrowMTU)
		backend := on(f.narrow, targetPort)
		own := on(f.own, w.snatPort(t, at, fits.frame(t)))
		w.sends(t, at, fits.frame(t), fits.forwarded(at, own, backend, nodeBMAC))
		records := w.records(t, halfOpen)
		tooBig(question.sized(t, narrowMTU+1))
		answer := reply(backend, own, protocol)
		answer.dontFragment = true
		tooBig(answer.sized(t, narrowMTU+1))
		if protocol == tcp && len(w.records(t, halfOpen)) != len(records) {
			t.Errorf("the conntrack entries %v became %v", records, w.records(t, halfOpen))
		}
		fits = answer.sized(t, narrowMTU)
		w.sends(t, at, fits.frame(t), fits.forwarded(at, question.to, question.from, gatewayMAC))
	})
}

// A route's MTU below its device's is the limit, too. The error quotes an IPv4 packet as it arrived. The stack applies
// such an MTU to IPv6 in its output: the error then quotes the decremented hop limit.
func TestTooBigForRoute(t *testing.T) {
	w := newScene(t)
	const routeMTU = 1400
	w.put(t, bpf.EdgeTCMapRoutings, uint32(0), bpf.Routing{
		LeastMtu4: routeMTU, LeastMtu6: routeMTU, Flags: bpf.RouteMTUsMissing | bpf.RouteIgnoresPMTU,
	})
	w.each(t, func(t *testing.T, at hook, f family, protocol uint8) {
		question := f.question(protocol, toRemote)
		question.dontFragment, question.flags, question.hops = true, ack, 64
		for _, size := range []int{routeMTU + 1, 2000} {
			p := question.sized(t, size)
			quoted := p
			if f.client.Is6() {
				quoted.hops--
			}
			w.leaves(t, at, p.frame(t), model.ActionSend, quoted.icmpAnswer(t, f.vip, [2]uint8{3, 4}, [2]uint8{2, 0}, routeMTU))
		}
		w.remembersNothing(t)
		fits := question.sized(t, routeMTU)
		w.snatPort(t, at, fits.frame(t))
	})
}

// The same of packets of the node itself, which are served at egress if no socket hook has seen them. Their hop limit
// is not decremented there.
func TestTooBigAtEgress(t *testing.T) {
	w := newScene(t)
	const routeMTU = 1400
	ofRoute := bpf.Routing{LeastMtu4: routeMTU, LeastMtu6: routeMTU, Flags: bpf.RouteMTUsMissing}
	for _, c := range []struct {
		name    string
		routing bpf.Routing
		port    uint16
		mtu     int
	}{
		{"of the device", bpf.Routing{}, toNarrow, narrowMTU},
		{"of a route", ofRoute, toRemote, routeMTU},
	} {
		t.Run(c.name, func(t *testing.T) {
			w.enter(t)
			w.put(t, bpf.EdgeTCMapRoutings, uint32(0), c.routing)
			for _, f := range families {
				for _, protocol := range []uint8{tcp, udp} {
					w.forget(t)
					w.servesNode(t, model.FrontendKey{Address: f.vip, Port: c.port, Protocol: protocol})
					question := f.question(protocol, c.port)
					question.from, question.dontFragment, question.flags = on(f.own, clientPort), true, ack
					tooBig, fits := question.sized(t, c.mtu+1), question.sized(t, c.mtu)
					want := tooBig.icmpAnswer(t, f.vip, [2]uint8{3, 4}, [2]uint8{2, 0}, uint32(c.mtu))
					answered := func() {
						t.Helper()
						before := w.counts(t)
						w.leaves(t, atEgress, tooBig.frame(t), model.ActionSend, want)
						w.counted(t, before, model.DropTooBig)
					}
					answered()
					w.remembersNothing(t)
					if got := w.run(t, atEgress, fits.frame(t)); got.Action != model.ActionSend {
						t.Errorf("a packet that fits: action %v, want 2 (sent)", got.Action)
					}
					answered()
				}
			}
		})
	}
}

// servesNode has packets of the node itself served like those of pods.
func (w *world) servesNode(t testing.TB, key model.FrontendKey) {
	t.Helper()
	var number uint32
	var row bpf.Frontend
	must(t, w.maps[bpf.EdgeTCMapFrontends].Lookup(frontendKey(key), &number))
	must(t, w.maps[bpf.EdgeTCMapFrontendRows].Lookup(number, &row))
	row.Decisions[1] = row.Decisions[0]
	w.put(t, bpf.EdgeTCMapFrontendRows, number, row)
}

// No reply to later fragments, nor to an error (RFC 1122 section 3.2.2).
func TestTooBigUnanswered(t *testing.T) {
	w := newScene(t)
	w.each(t, func(t *testing.T, at hook, f family, protocol uint8) {
		question := f.question(protocol, toNarrow)
		question.payload = make([]byte, 3000)
		small := question.fragments(t, 0x91, 800)
		w.snatPort(t, at, small[0])
		large := question.fragments(t, 0x91, 1440)[1]
		if f.client.Is4() {
			large = withFlags(large, 0x60) // don't fragment, more fragments
		}
		w.drops(t, at, large, model.DropTooBig)

		question.flags = ack
		question.from = on(f.narrowClient, clientPort)
		own := on(f.own, w.snatPort(t, at, question.sized(t, narrowMTU).frame(t)))
		sent := question.translated(own, on(f.narrow, targetPort))
		e := errorsOf(f, sent)[0]
		e.quoted = 1300
		w.drops(t, at, e.frame(t, probe{source: nodeBMAC, target: eth0MAC}, f.narrow, f.own), model.DropTooBig)
	})
}

// For a packet that GRO merged, the segments have to fit: they are what leaves.
func TestTooBigSegments(t *testing.T) {
	w := newScene(t)
	w.each(t, func(t *testing.T, at hook, f family, protocol uint8) {
		if at != atIngress || protocol != tcp {
			return // XDP runs before GRO
		}
		question := f.question(protocol, toNarrow)
		question.flags, question.dontFragment = ack, true
		headers := len(question.frame(t)) - 14
		if f.client.Is4() {
			headers = 40
		}
		question = question.sized(t, 3000)
		fits := uint32(narrowMTU - headers)
		before := w.counts(t)
		got := w.runWith(t, at, question.frame(t), 0, fits)
		if got.Action != model.ActionSend || len(got.Frame) != 14+3000 {
			t.Errorf("segments that fit: action %v, %d bytes; want 2 (sent)", got.Action, len(got.Frame)-14)
		}
		w.counted(t, before, model.New)
		before = w.counts(t)
		got = w.runWith(t, at, question.frame(t), 0, fits+1)
		want := question.icmpAnswer(t, f.vip, [2]uint8{3, 4}, [2]uint8{2, 0}, narrowMTU)
		if got.Action != model.ActionSend || !bytes.Equal(withoutID(got.Frame), want) {
			t.Errorf("segments that do not fit: action %v, %d bytes; want an answer", got.Action, len(got.Frame)-14)
		}
		w.counted(t, before, model.DropTooBig)
	})
}
