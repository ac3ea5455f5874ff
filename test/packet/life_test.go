// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"testing"
	"time"

	"beeline.io/beeline/internal/datapath"
	"beeline.io/beeline/test/packet/model"
)

const (
	tracks   = datapath.EdgeTCMapConntrack
	halfOpen = datapath.EdgeTCMapUnreplied
)

// flow is a client's to the Service, over a backend of another node.
type flow struct {
	*world
	at       hook
	f        family
	question probe
	own      model.Tuple // the reply's
}

func (w *world) flow(t testing.TB, at hook, f family, protocol uint8) *flow {
	t.Helper()
	question := f.question(protocol, toRemote)
	own := w.snatPort(t, at, question.frame(t))
	return &flow{w, at, f, question, model.Tuple{Source: f.remote, Destination: f.own, SourcePort: targetPort,
		DestinationPort: own, Protocol: protocol}}
}

// The first sequence numbers of both sides.
var clientISN, backendISN uint32 = 1<<32 - 2, 5000

// sequence numbers are those of a SYN, or of what follows it.
func sequence(p *probe, own, other uint32) {
	p.seq, p.ack = own, 0
	if p.flags&syn == 0 {
		p.seq++
	}
	if p.flags&ack != 0 {
		p.ack = other + 1
	}
}

// asks has the client send; says has the backend.
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

// opens has a connection answered and that acknowledged.
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

// is checks in which table both records are, and their states.
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
			t.Fatalf("table %s has %d records, want 2: %v", name, len(records), records)
		}
		client, answer := records[fl.tuple()], records[fl.own]
		if client.State != state || answer.State != state {
			t.Fatalf("states %d and %d, want %d", client.State, answer.State, state)
		}
		if client.Reply || !answer.Reply || client.Local || answer.Local {
			t.Fatalf("the records are %+v and %+v", client, answer)
		}
		if client.Becomes != fl.own.Reverse() || answer.Becomes != fl.tuple().Reverse() {
			t.Fatalf("packets become %v and %v, want %v and %v", client.Becomes, answer.Becomes,
				fl.own.Reverse(), fl.tuple().Reverse())
		}
	}
}

// A connection's life: half open until the client has answered the backend; closing
// with the first FIN, closed with the second. A SYN alone displaces no connection.
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
		fl.says(t, fin|ack) // again
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

// Who does not see a connection neither closes it nor has it taken for one that is open:
// he does not know where its sides are in their streams (RFC 5961).
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
		fl.is(t, halfOpen, model.StateNew) // nobody has answered yet
		fl.says(t, syn|ack)
		for _, guess := range []uint32{backendISN + 1 - 1<<22, backendISN + 2, 1 << 31} {
			forge(fl, ack, clientISN+1, guess)
			fl.is(t, halfOpen, model.StateReplied)
		}
		fl.asks(t, ack)
		fl.is(t, tracks, model.StateEstablished)
		for _, flags := range []byte{rst, rst | ack, fin | ack} {
			for _, guess := range []uint32{clientISN, clientISN - 1<<22, clientISN + 1 + 1<<22, 1 << 31} {
				forge(fl, flags, guess, backendISN+1)
				fl.is(t, tracks, model.StateEstablished)
			}
		}
		forge(fl, syn, 1<<31, 0)
		fl.is(t, tracks, model.StateEstablished)
		forge(fl, rst, clientISN+1+1<<20, 0) // within what may be on the way
		fl.is(t, tracks, model.StateClosed)
	})
}

// A datagram's flow is assured when both sides go on with it two seconds after it has begun: one
// question and its answer are none of that, and neither is a question asked again.
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

// A client that opens a connection with the ports of one that is closing is sent to a
// backend of now, and nothing is left of the other. One whose connection is open is
// not: its SYN is the backend's to judge (RFC 9293 section 3.10.7.4).
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

// Either record of a flow makes the other one anew. The client's is made by its next
// packet, which finds its port again; the backend's by the client, within a second.
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

// age has a flow's record seen so much earlier that its next packet looks after its marks.
func (w *world) age(t testing.TB, key model.Tuple) {
	t.Helper()
	w.change(t, tracks, key, func(track *datapath.ConntrackEntry) { track.LastSeen -= 8 })
}

// The backend's entry of an assured flow was lost, and another flow has its port by now: that one
// keeps it, for the first one's packets do not make theirs anew in its place.
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
