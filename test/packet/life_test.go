// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"testing"
	"time"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/test/packet/model"
)

const (
	tracks   = bpf.EdgeTCMapConntrack
	halfOpen = bpf.EdgeTCMapUnreplied
)

// flow is a client's flow to the Service, with a remote backend.
type flow struct {
	*world
	at       hook
	f        family
	question probe
	own      model.Tuple // of the reply
}

func (w *world) flow(t testing.TB, at hook, f family, protocol uint8) *flow {
	t.Helper()
	question := f.question(protocol, toRemote)
	own := w.snatPort(t, at, question.frame(t))
	return &flow{w, at, f, question, model.Tuple{Source: f.remote, Destination: f.own, SourcePort: targetPort,
		DestinationPort: own, Protocol: protocol}}
}

// The initial sequence numbers of both sides.
var clientISN, backendISN uint32 = 1<<32 - 2, 5000

// sequence sets the sequence numbers of a SYN, or of what follows it.
func sequence(p *probe, own, other uint32) {
	p.seq, p.ack = own, 0
	if p.flags&syn == 0 {
		p.seq++
	}
	if p.flags&ack != 0 {
		p.ack = other + 1
	}
}

// asks sends a packet of the client; says sends one of the backend.
func (fl *flow) asks(t testing.TB, flags byte) {
	t.Helper()
	p := fl.question
	if p.protocol == tcp {
		p.flags = flags
		sequence(&p, clientISN, backendISN)
	}
	fl.sends(t, fl.at, p.frame(t), p.forwarded(fl.at, on(fl.f.own, fl.own.DestinationPort), on(fl.f.remote, targetPort), nodeBMAC))
}

func (fl *flow) says(t testing.TB, flags byte) {
	t.Helper()
	p := reply(on(fl.f.remote, targetPort), on(fl.f.own, fl.own.DestinationPort), fl.own.Protocol)
	p.flags, p.tcpOptions = flags, nil
	sequence(&p, backendISN, clientISN)
	fl.sends(t, fl.at, p.frame(t), p.forwarded(fl.at, fl.question.to, fl.question.from, gatewayMAC))
}

// opens completes a connection's handshake.
func (fl *flow) opens(t testing.TB) {
	t.Helper()
	fl.says(t, syn|ack)
	fl.asks(t, ack)
}

func (fl *flow) tuple() model.Tuple {
	q := fl.question
	return model.Tuple{Source: q.from.Addr(), Destination: q.to.Addr(), SourcePort: q.from.Port(),
		DestinationPort: q.to.Port(), Protocol: fl.own.Protocol}
}

// is checks which table has both entries, and their states.
func (fl *flow) is(t testing.TB, table string, state model.State) {
	t.Helper()
	for _, name := range []string{tracks, halfOpen} {
		records := fl.records(t, name)
		if name != table {
			if len(records) > 0 {
				t.Fatalf("table %s has %v", name, records)
			}
			continue
		}
		if len(records) != 2 {
			t.Fatalf("table %s has %d entries, want 2: %v", name, len(records), records)
		}
		client, answer := records[fl.tuple()], records[fl.own]
		if client.State != state || answer.State != state {
			t.Fatalf("states %d and %d, want %d", client.State, answer.State, state)
		}
		if client.Reply || !answer.Reply || client.Local || answer.Local {
			t.Fatalf("the conntrack entries are %+v and %+v", client, answer)
		}
		if client.Becomes != fl.own.Reverse() || answer.Becomes != fl.tuple().Reverse() {
			t.Fatalf("packets are translated to %v and %v, want %v and %v", client.Becomes, answer.Becomes,
				fl.own.Reverse(), fl.tuple().Reverse())
		}
	}
}

// A connection's life: half open until the client has acknowledged the backend's reply; closing with the first
// FIN, closed with the second. A SYN alone evicts no connection.
func TestConnectionLife(t *testing.T) {
	w := newScene(t)
	w.eachFamily(t, func(t *testing.T, at hook, f family) {
		fl := w.flow(t, at, f, tcp)
		fl.is(t, halfOpen, model.StateNew)
		fl.asks(t, syn)
		fl.says(t, syn|ack)
		fl.says(t, syn|ack)
		fl.is(t, halfOpen, model.StateReplied)
		fl.asks(t, ack)
		fl.is(t, tracks, model.StateEstablished)
		fl.asks(t, psh|ack)
		fl.says(t, ack)
		fl.is(t, tracks, model.StateEstablished)
		fl.says(t, fin|ack)
		fl.is(t, tracks, model.StateClosing)
		fl.says(t, fin|ack) // retransmitted
		fl.asks(t, ack)
		fl.is(t, tracks, model.StateClosing)
		fl.asks(t, fin|ack)
		fl.is(t, tracks, model.StateClosed)
		fl.says(t, ack)
		fl.is(t, tracks, model.StateClosed)
		records := w.records(t, tracks)
		if got := records[fl.tuple()].Packets; got != 6 {
			t.Errorf("%d packets of the client, want 6", got)
		}
		if got := records[fl.own].Packets; got != 6 {
			t.Errorf("%d packets of the backend, want 6", got)
		}
	})
}

// A RST of either side closes the connection, half open or not.
func TestReset(t *testing.T) {
	w := newScene(t)
	w.eachFamily(t, func(t *testing.T, at hook, f family) {
		for _, ofClient := range []bool{true, false} {
			for _, table := range []string{halfOpen, tracks} {
				w.forget(t)
				fl := w.flow(t, at, f, tcp)
				if table == tracks {
					fl.opens(t)
				}
				if ofClient {
					fl.asks(t, rst)
				} else {
					fl.says(t, rst|ack)
				}
				fl.is(t, table, model.StateClosed)
			}
		}
	})
}

// An attacker who cannot see a connection can neither close it, nor prepare that with other segments, nor make it count
// as established: that takes its sequence numbers (RFC 5961).
func TestForgedSegments(t *testing.T) {
	w := newScene(t)
	w.eachFamily(t, func(t *testing.T, at hook, f family) {
		forge := func(fl *flow, flags byte, seq, acknowledged uint32) {
			t.Helper()
			p := fl.question
			p.flags, p.seq, p.ack = flags, seq, acknowledged
			w.run(t, at, p.frame(t))
		}
		fl := w.flow(t, at, f, tcp)
		forge(fl, ack, clientISN+1, 77)
		fl.is(t, halfOpen, model.StateNew) // no reply yet
		fl.says(t, syn|ack)
		for _, guess := range []uint32{backendISN + 1 - 1<<22, backendISN + 2, 1 << 31} {
			forge(fl, ack, clientISN+1, guess)
			fl.is(t, halfOpen, model.StateReplied)
		}
		fl.asks(t, ack)
		fl.is(t, tracks, model.StateEstablished)
		for _, guess := range []uint32{clientISN, clientISN + 2, clientISN + 1 + 1<<20, clientISN - 1<<22, clientISN + 1 + 1<<22, 1 << 31} {
			for _, flags := range []byte{rst, rst | ack} {
				forge(fl, flags, guess, backendISN+1)
				fl.is(t, tracks, model.StateEstablished)
			}
			for _, acknowledged := range []uint32{backendISN - 1<<22, 1 << 31, backendISN + 2 + 1<<22} {
				forge(fl, fin|ack, guess, acknowledged)
				forge(fl, ack, guess, acknowledged) // as if the connection were there
				forge(fl, rst, guess, 0)
				fl.is(t, tracks, model.StateEstablished)
			}
		}
		forge(fl, syn, 1<<31, 0)
		fl.is(t, tracks, model.StateEstablished)
		fl.asks(t, psh|ack)
		fl.says(t, fin|ack)
		fl.is(t, tracks, model.StateClosing)
		fl.asks(t, rst)
		fl.is(t, tracks, model.StateClosed)
	})
}

// A UDP flow is assured when both sides continue two seconds after it began: one request and its reply do not
// make it so, and neither does a repeated request.
func TestDatagramLife(t *testing.T) {
	w := newScene(t)
	w.eachFamily(t, func(t *testing.T, at hook, f family) {
		fl := w.flow(t, at, f, udp)
		fl.asks(t, 0)
		fl.is(t, halfOpen, model.StateNew)
		fl.says(t, 0)
		fl.asks(t, 0)
		fl.says(t, 0)
		fl.is(t, halfOpen, model.StateReplied)
		w.pass(t, 2*time.Second)
		fl.asks(t, 0)
		fl.asks(t, 0)
		fl.is(t, halfOpen, model.StateReplied)
		fl.says(t, 0)
		fl.is(t, tracks, model.StateEstablished)
		fl.asks(t, 0)
		fl.is(t, tracks, model.StateEstablished)
	})
}

// A client that opens a connection with the ports of a closing one gets a current backend, and nothing remains
// of the old one. If the old one is open it does not: the SYN is for its backend to judge (RFC 9293 section
// 3.10.7.4).
func TestPortReuse(t *testing.T) {
	w := newScene(t)
	w.eachFamily(t, func(t *testing.T, at hook, f family) {
		defer w.apply(t, w.scene())
		for _, end := range []func(*flow){
			func(fl *flow) { fl.asks(t, fin|ack) },
			func(fl *flow) { fl.says(t, fin|ack); fl.asks(t, fin|ack) },
			func(fl *flow) { fl.asks(t, rst) },
			func(fl *flow) { fl.says(t, rst) },
		} {
			w.forget(t)
			w.apply(t, w.scene())
			fl := w.flow(t, at, f, tcp)
			fl.opens(t)
			fl.asks(t, syn)
			fl.is(t, tracks, model.StateEstablished)
			end(fl)
			other := w.scene()
			key := model.FrontendKey{Address: f.vip, Port: toRemote, Protocol: tcp}
			id := other.Frontends[key].Outside.Slots[0] + 6
			other.Frontends[key] = model.Frontend{Service: 80, Outside: model.Decision{Slots: []uint32{id}}}
			w.apply(t, other)
			again := fl.question
			own := w.snatPort(t, at, again.frame(t))
			next := &flow{w, at, f, again, model.Tuple{Source: f.remote.Next(), Destination: f.own, SourcePort: targetPort,
				DestinationPort: own, Protocol: tcp}}
			next.is(t, halfOpen, model.StateNew)
			answer := reply(on(f.remote.Next(), targetPort), on(f.own, own), tcp)
			answer.flags = syn | ack
			sequence(&answer, backendISN, clientISN)
			w.run(t, at, answer.frame(t))
			again.flags = ack
			sequence(&again, clientISN, backendISN)
			w.run(t, at, again.frame(t))
			next.is(t, tracks, model.StateEstablished)
		}
	})
}

// Either entry of a flow restores the other one. The client's is restored by its next packet, which finds its
// SNAT port again; the backend's by the client, within a second.
func TestLostRecords(t *testing.T) {
	w := newScene(t)
	w.each(t, func(t *testing.T, at hook, f family, protocol uint8) {
		fl := w.flow(t, at, f, protocol)
		if protocol == tcp {
			fl.says(t, syn|ack)
		}
		w.pass(t, 2*time.Second)
		fl.asks(t, ack)
		fl.says(t, ack)
		fl.is(t, tracks, model.StateEstablished)
		w.lose(t, tracks, fl.tuple())
		before := w.counts(t)
		fl.asks(t, ack)
		w.counted(t, before, model.Recovered)
		fl.says(t, ack)
		fl.asks(t, ack)
		fl.is(t, tracks, model.StateEstablished)

		for _, lost := range []model.Tuple{fl.own, fl.tuple()} {
			w.lose(t, tracks, lost)
			if lost == fl.own {
				w.age(t, fl.tuple())
				fl.asks(t, ack)
			} else {
				w.age(t, fl.own)
				fl.says(t, ack)
			}
			fl.is(t, tracks, model.StateEstablished)
		}
		fl.says(t, ack)
		fl.asks(t, ack)
	})
}

// age makes an entry so old that the flow's next packet updates its marks.
func (w *world) age(t testing.TB, key model.Tuple) {
	t.Helper()
	w.change(t, tracks, key, func(track *bpf.ConntrackEntry) { track.LastSeen -= 8 })
}

// The backend's entry of an assured flow was lost, and another flow has taken the port: it keeps it, since the
// first flow's packets do not restore their entry in its place.
func TestPortOfALostEntry(t *testing.T) {
	w := newWorld(t, limits{ports: [2][2]uint16{{2000, 1}, {3000, 0}}})
	w.apply(t, w.scene())
	w.eachFamily(t, func(t *testing.T, at hook, f family) {
		for _, protocol := range []uint8{tcp, udp} {
			w.forget(t)
			first := w.from(t, at, f, protocol, 20000, toRemote)
			first.assures(t)
			w.lose(t, tracks, first.own)
			second := w.from(t, at, f, protocol, 20001, toRemote)
			second.says(t, syn|ack)
			w.age(t, first.tuple())
			first.asks(t, ack)
			if !second.there(t) {
				t.Errorf("protocol %d: the second flow has lost an entry", protocol)
			}
			second.says(t, syn|ack)
		}
	})
}
