// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"math/rand/v2"
	"net/netip"
	"testing"

	"beeline.io/beeline/test/packet/model"
)

// Two ranges of ports, with a sum that is easy to calculate with, and how many ports are tried for a flow
// (SNAT_ATTEMPTS in bpf/conntrack/snat_alloc.h).
var fewPorts = [2][2]uint16{{2000, 600}, {61000, 400}}

const (
	allPorts = 1000
	attempts = 64
)

// lender has random clients begin flows to one backend, and keeps the owner of each port of the node.
type lender struct {
	*world
	at       hook
	f        family
	protocol uint8
	random   *rand.Rand
	snatPort map[uint16]probe // the client's first packet, by port
	order    []uint16         // the keys of snatPort
	clients  map[netip.AddrPort]bool
	counted  [model.Reasons]uint64
}

// asks has a new client begin a flow. Its port must be in the ranges, and not in use.
func (l *lender) asks(t *testing.T) (port uint16, served bool) {
	t.Helper()
	question := l.f.question(l.protocol, toRemote)
	for question.from = l.client(); l.clients[question.from]; {
		question.from = l.client()
	}
	got := l.run(t, l.at, question.frame(t))
	if got.Action == model.ActionDrop {
		l.counted[model.DropNoPort]++
		return 0, false
	}
	l.counted[model.New]++
	ends, ok := model.Ends(got.Frame)
	if !ok || got.Action != model.ActionSend || ends.Source != l.f.own || ends.Destination != l.f.remote || ends.DestinationPort != targetPort {
		t.Fatalf("%v: action %v, tuple %v", question.from, got.Action, ends)
	}
	port = ends.SourcePort
	if port-fewPorts[0][0] >= fewPorts[0][1] && port-fewPorts[1][0] >= fewPorts[1][1] {
		t.Fatalf("port %d was allocated, which is in neither of %v", port, fewPorts)
	}
	if other, taken := l.snatPort[port]; taken {
		t.Fatalf("port %d was allocated to %v, but is %v's", port, question.from, other.from)
	}
	l.snatPort[port], l.clients[question.from] = question, true
	l.order = append(l.order, port)
	l.opens(t, question, port)
	return port, true
}

// opens completes a connection's handshake: from then on it keeps its port.
func (l *lender) opens(t *testing.T, question probe, port uint16) {
	t.Helper()
	answer := reply(on(l.f.remote, targetPort), on(l.f.own, port), tcp)
	answer.flags = syn | ack
	sequence(&answer, backendISN, question.seq)
	question.flags = ack
	sequence(&question, question.seq, backendISN)
	l.run(t, l.at, answer.frame(t))
	l.run(t, l.at, question.frame(t))
	l.counted[model.Reply]++
	l.counted[model.Established]++
}

func (l *lender) client() netip.AddrPort {
	b := l.f.client.AsSlice()
	b[len(b)-1] = byte(1 + l.random.IntN(250))
	a, _ := netip.AddrFromSlice(b)
	return on(a, uint16(1024+l.random.IntN(64000)))
}

// ends ends a random flow as the agent does.
func (l *lender) ends(t *testing.T) (port uint16) {
	t.Helper()
	n := l.random.IntN(len(l.order))
	port = l.order[n]
	l.order[n] = l.order[len(l.order)-1]
	l.order = l.order[:len(l.order)-1]
	question := l.snatPort[port]
	delete(l.snatPort, port)
	delete(l.clients, question.from)
	client := model.Tuple{Source: question.from.Addr(), SourcePort: question.from.Port(), Destination: question.to.Addr(),
		DestinationPort: question.to.Port(), Protocol: l.protocol}
	for _, key := range []model.Tuple{client, l.answers(port)} {
		l.lose(t, tracks, key)
	}
	return port
}

// answers is the tuple of the backend's packets to a port of the node.
func (l *lender) answers(port uint16) model.Tuple {
	return model.Tuple{Source: l.f.remote, SourcePort: targetPort, Destination: l.f.own, DestinationPort: port, Protocol: l.protocol}
}

// fill begins flows until so many ports are in use; a flow may fail to find one.
func (l *lender) fill(t *testing.T, ports int) {
	t.Helper()
	for range 100 * allPorts {
		if len(l.snatPort) == ports {
			return
		}
		l.asks(t)
	}
	t.Fatalf("%d of %d ports are in use, want %d", len(l.snatPort), allPorts, ports)
}

// misses is how many of so many flows find no port, each while the same number of ports is in use.
func (l *lender) misses(t *testing.T, flows int) (misses int) {
	t.Helper()
	for range flows {
		if _, served := l.asks(t); served {
			l.ends(t)
		} else {
			misses++
		}
	}
	return misses
}

// wantCounted compares all counters so far.
func (l *lender) wantCounted(t *testing.T) {
	t.Helper()
	if got := l.counts(t); got != l.counted {
		t.Errorf("counted %v, want %v", got, l.counted)
	}
}

// X3: SNAT ports get scarce, because they belong to open connections. A flow finds a free port in 64 attempts:
// always while half are in use, nearly always at nine tenths, and about as often as probability says when they
// are almost used up. A flow without a port is dropped and counted so; no two flows ever have the same port;
// and the ports of ended flows are reused.
func TestPortsGetScarce(t *testing.T) {
	w := newWorld(t, limits{ports: fewPorts})
	w.apply(t, w.scene())
	w.eachFamily(t, func(t *testing.T, at hook, f family) {
		protocol := uint8(tcp)
		l := &lender{world: w, at: at, f: f, protocol: protocol, random: rand.New(rand.NewPCG(seedFlag.Of(t), uint64(protocol))),
			snatPort: map[uint16]probe{}, clients: map[netip.AddrPort]bool{}}
		const flows = 2000
		for _, stage := range []struct{ ports, least, most int }{
			{allPorts / 2, 0, 0},    // one flow in 2^64 misses
			{allPorts - 100, 0, 20}, // one in 850: 2.4 of these
			// 0.98^64: 549 of these, with a standard deviation of 20.
			{allPorts - 20, 400, 680},
		} {
			l.fill(t, stage.ports)
			if n := l.misses(t, flows); n < stage.least || n > stage.most {
				t.Errorf("with %d of %d ports in use %d of %d flows find none, want %d to %d", stage.ports, allPorts, n, flows, stage.least, stage.most)
			}
			l.wantCounted(t)
		}
		l.fill(t, allPorts)
		if n := l.misses(t, attempts); n != attempts {
			t.Errorf("all ports are in use, but %d of %d flows find one", attempts-n, attempts)
		}
		l.wantCounted(t)
		for port, question := range l.snatPort { // all owners are the same
			answer := reply(on(f.remote, targetPort), on(f.own, port), protocol)
			w.sends(t, at, answer.frame(t), answer.forwarded(at, question.to, question.from, gatewayMAC))
		}
	})
}

// A SNAT port is reused when its connection has ended: by the same client's next connection, and by others.
func TestSNATPortIsReused(t *testing.T) {
	w := newWorld(t, limits{ports: fewPorts})
	w.apply(t, w.scene())
	w.eachFamily(t, func(t *testing.T, at hook, f family) {
		l := &lender{world: w, at: at, f: f, protocol: tcp, random: rand.New(rand.NewPCG(seedFlag.Of(t), tcp)),
			snatPort: map[uint16]probe{}, clients: map[netip.AddrPort]bool{}}
		l.fill(t, allPorts)
		for range 5 {
			free := l.ends(t)
			l.fill(t, allPorts)
			if port := l.order[len(l.order)-1]; port != free {
				t.Errorf("port %d is free, but %d was allocated", free, port)
			}
		}
		l.wantCounted(t)
		for _, port := range l.order[:5] {
			again := l.snatPort[port]
			as := again.forwarded(at, on(f.own, port), on(f.remote, targetPort), nodeBMAC)
			for _, flags := range []byte{rst, syn} {
				again.flags, as.flags = flags, flags
				if flags == rst {
					sequence(&again, again.seq, 0)
					as.seq, as.ack = again.seq, again.ack
				}
				w.sends(t, at, again.frame(t), as)
			}
		}
		l.counted[model.New] += 5
		l.counted[model.Established] += 5
		l.wantCounted(t)
	})
}
