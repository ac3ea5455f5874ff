// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"testing"
	"time"

	"beeline.io/beeline/test/packet/model"
)

// directFlow is a flow whose client side is all that the balancer sees.
type directFlow struct {
	*world
	at       hook
	question probe
	way      way
}

func (w *world) directFlow(at hook, f family, protocol uint8, dsr model.DSR) *directFlow {
	return &directFlow{w, at, f.question(protocol, direct(toRemote, dsr)), f.way(dsr)}
}

// asks has the client send a segment with flags and a sequence number.
func (fl *directFlow) asks(t testing.TB, flags byte, seq uint32, payload string) {
	t.Helper()
	p := fl.question
	if p.protocol == tcp {
		p.flags, p.seq, p.ack = flags, seq, 7000
	}
	p.payload = []byte(payload)
	fl.leaves(t, fl.at, p.frame(t), model.ActionSend, fl.way.sent(t, fl.at, p, nodeBMAC))
}

// is checks which table has the one entry, and its state.
func (fl *directFlow) is(t testing.TB, table string, state model.State) {
	t.Helper()
	for _, name := range []string{tracks, halfOpen} {
		records := fl.records(t, name)
		if name != table {
			if len(records) > 0 {
				t.Fatalf("table %s has %v", name, records)
			}
			continue
		}
		q := fl.question
		want := model.Tuple{Source: q.from.Addr(), Destination: fl.way.backend.Addr(), SourcePort: q.from.Port(),
			DestinationPort: fl.way.backend.Port(), Protocol: uint8(q.transportType())}
		key := want
		key.Destination, key.DestinationPort = q.to.Addr(), q.to.Port()
		got, ok := records[key]
		if !ok || len(records) != 1 || got.Becomes != want || got.State != state || got.DSR != fl.way.dsr || got.Reply || got.Local {
			t.Fatalf("table %s has %+v, want one entry in state %d: %v becomes %v", name, records, state, key, want)
		}
	}
}

// A connection counts as established when the client continues with the very next sequence number, as after a
// reply; only the client's FIN or RST ends it.
func TestDirectConnectionLife(t *testing.T) {
	w := newScene(t)
	w.eachDirectFamily(t, func(t *testing.T, at hook, f family, dsr model.DSR) {
		fl := w.directFlow(at, f, tcp, dsr)
		fl.asks(t, syn, 999, "")
		fl.is(t, halfOpen, model.StateNew)
		fl.asks(t, syn, 999, "") // retransmitted
		fl.is(t, halfOpen, model.StateNew)
		fl.asks(t, ack, 1000, "")
		fl.is(t, tracks, model.StateEstablished)
		fl.asks(t, psh|ack, 1000, "hello")
		fl.asks(t, syn, 1<<31, "") // for its backend to judge (RFC 9293 section 3.10.7.4)
		fl.asks(t, ack, 1005, "")
		for _, guess := range []uint32{1005 + 1<<22, 1<<32 - 1<<22 + 1004, 1 << 31} { // (RFC 5961 section 3.2)
			p := fl.question
			p.flags, p.seq = rst, guess
			w.run(t, at, p.frame(t))
			fl.is(t, tracks, model.StateEstablished)
			fl.asks(t, ack, 1005, "")
		}
		fl.asks(t, fin|ack, 1005, "")
		fl.is(t, tracks, model.StateClosing)
		fl.asks(t, ack, 1006, "")
		fl.is(t, tracks, model.StateClosing)
		fl.asks(t, rst, 1006, "")
		fl.is(t, tracks, model.StateClosed)
		fl.asks(t, syn, 50000, "") // the next connection with this tuple
		fl.is(t, halfOpen, model.StateNew)
		for key, record := range w.records(t, halfOpen) {
			if record.Packets != 1 {
				t.Errorf("%v counts %d packets, want only the new connection's", key, record.Packets)
			}
		}
	})
}

// Segments that do not follow a seen one do not establish a connection.
func TestDirectForgedSegments(t *testing.T) {
	w := newScene(t)
	w.eachDirectFamily(t, func(t *testing.T, at hook, f family, dsr model.DSR) {
		fl := w.directFlow(at, f, tcp, dsr)
		fl.asks(t, syn, 999, "")
		for _, guess := range []uint32{998, 999, 1001, 1 << 31, 0} {
			fl.asks(t, ack, guess, "")
			fl.is(t, halfOpen, model.StateNew)
			fl.asks(t, syn, 999, "")
		}
		fl.asks(t, rst, 1000, "")
		fl.is(t, halfOpen, model.StateClosed)
	})
}

// A UDP flow is assured by a packet two seconds after the first: the balancer sees no reply.
func TestDirectDatagramLife(t *testing.T) {
	w := newScene(t)
	w.eachDirectFamily(t, func(t *testing.T, at hook, f family, dsr model.DSR) {
		fl := w.directFlow(at, f, udp, dsr)
		fl.asks(t, 0, 0, "one")
		fl.is(t, halfOpen, model.StateNew)
		fl.asks(t, 0, 0, "at once")
		fl.is(t, halfOpen, model.StateNew)
		w.pass(t, 2*time.Second)
		fl.asks(t, 0, 0, "two")
		fl.is(t, tracks, model.StateEstablished)
	})
}

// A flow keeps its backend and its encapsulation while the tables change. But a SYN with its tuple whose
// backend no longer serves begins a new flow, for no reply tells the balancer that the first has ended (R30).
func TestDirectFlowKeepsItsWay(t *testing.T) {
	w := newScene(t)
	w.eachDirect(t, func(t *testing.T, at hook, f family, protocol uint8, dsr model.DSR) {
		defer w.apply(t, w.scene())
		fl := w.directFlow(at, f, protocol, dsr)
		fl.asks(t, syn, 999, "")
		w.pass(t, 2*time.Second)
		fl.asks(t, ack, 1000, "")
		fl.is(t, tracks, model.StateEstablished)
		tables := w.scene()
		key := model.FrontendKey{Address: f.vip, Port: fl.question.to.Port(), Protocol: protocol}
		first := tables.Frontends[key].Outside.Slots[0]
		other := model.Decision{Slots: []uint32{first + 6}}
		tables.Frontends[key] = model.Frontend{Service: 1, Outside: other}
		w.apply(t, tables)
		fl.asks(t, ack, 1000, "")
		fl.is(t, tracks, model.StateEstablished)
		if protocol == udp {
			return
		}
		tables.Frontends[key] = model.Frontend{Service: 1, Pod: model.Decision{Slots: []uint32{first}}, Outside: other}
		w.apply(t, tables)
		fl.asks(t, syn, 5000, "") // the backend still serves, if with others
		fl.is(t, tracks, model.StateEstablished)
		tables.Frontends[key] = model.Frontend{Service: 1, Outside: other, DSR: dsr}
		w.apply(t, tables)
		fl.way.backend = on(f.remote.Next(), targetPort)
		fl.way.node = fl.way.backend.Addr() // unknown
		fl.asks(t, syn, 9000, "")
		fl.is(t, halfOpen, model.StateNew)
	})
}
