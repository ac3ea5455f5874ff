// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"fmt"
	"testing"
	"time"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/test/packet/model"
)

// from is a flow from another port of the client, after its first packet.
func (w *world) from(t testing.TB, at hook, f family, protocol uint8, port, to uint16) *flow {
	t.Helper()
	question := f.question(protocol, to)
	question.from = on(f.client, port)
	got := w.run(t, at, question.frame(t))
	if got.Action != model.ActionSend {
		return nil
	}
	ends, _ := model.Ends(got.Frame)
	return &flow{w, at, f, question, model.Tuple{Source: f.remote, Destination: f.own, SourcePort: targetPort,
		DestinationPort: ends.SourcePort, Protocol: protocol}}
}

// assures continues a flow until it is assured.
func (fl *flow) assures(t testing.TB) {
	t.Helper()
	if fl.own.Protocol == tcp {
		fl.opens(t)
		return
	}
	fl.says(t, 0)
	fl.pass(t, 2*time.Second)
	fl.asks(t, 0)
	fl.says(t, 0)
}

// carried is what the entries of a flow have counted, and its Service.
func (fl *flow) carried(t testing.TB) (service uint32, sum bpf.EdgeTCServiceCounters) {
	t.Helper()
	for _, table := range []string{halfOpen, tracks} {
		records := fl.records(t, table)
		if record, ok := records[fl.tuple()]; ok {
			service, sum.SentPackets, sum.SentBytes = record.Service, record.Packets, record.Bytes
		}
		if record, ok := records[fl.own]; ok {
			sum.ReceivedPackets, sum.ReceivedBytes = record.Packets, record.Bytes
		}
	}
	return service, sum
}

// there reports whether a flow has both entries, or none.
func (fl *flow) there(t testing.TB) bool {
	t.Helper()
	all := fl.records(t, halfOpen)
	for tuple, record := range fl.records(t, tracks) {
		all[tuple] = record
	}
	client, ok := all[fl.tuple()]
	answer, answered := all[fl.own]
	ok = ok && client.Becomes == fl.own.Reverse()
	answered = answered && answer.Becomes == fl.tuple().Reverse()
	if ok != answered {
		t.Errorf("the flow from port %d has one entry: the client's %v, the backend's %v", fl.question.from.Port(), ok, answered)
	}
	return ok && answered
}

// The only port is in use. Its flow is evicted if it has expired, is closed, or is not assured; an assured one
// of UDP if it is idle. An established TCP connection keeps it: then the new flow is refused. What an evicted flow has
// sent and received stays counted for its Service. No agent runs.
func TestPortIsTaken(t *testing.T) {
	w := newWorld(t, limits{ports: [2][2]uint16{{2000, 1}, {3000, 0}}})
	w.apply(t, w.scene())
	for _, c := range []struct {
		name     string
		protocol uint8
		holds    func(*testing.T, *flow)
		idle     time.Duration
		taken    bool
	}{
		{"SYN without an answer", tcp, func(t *testing.T, fl *flow) {}, 0, true},
		{"handshake", tcp, func(t *testing.T, fl *flow) { fl.says(t, syn|ack) }, 0, true},
		{"established", tcp, func(t *testing.T, fl *flow) { fl.opens(t) }, 7 * time.Hour, false},
		{"established and expired", tcp, func(t *testing.T, fl *flow) { fl.opens(t) }, 8*time.Hour + 9*time.Second, true},
		{"half closed", tcp, func(t *testing.T, fl *flow) { fl.opens(t); fl.asks(t, fin|ack) }, 0, false},
		{"half closed and idle", tcp, func(t *testing.T, fl *flow) { fl.opens(t); fl.asks(t, fin|ack) }, 20 * time.Second, true},
		{"closed", tcp, func(t *testing.T, fl *flow) { fl.opens(t); fl.asks(t, fin|ack); fl.says(t, fin|ack) }, 0, true},
		{"question", udp, func(t *testing.T, fl *flow) {}, 0, true},
		{"question and answer", udp, func(t *testing.T, fl *flow) { fl.says(t, 0) }, 0, true},
		{"assured", udp, func(t *testing.T, fl *flow) { fl.assures(t) }, 0, false},
		{"assured and idle for less than ten seconds after its last mark", udp, func(t *testing.T, fl *flow) { fl.assures(t) }, 12 * time.Second, false},
		{"assured and idle", udp, func(t *testing.T, fl *flow) { fl.assures(t) }, 20 * time.Second, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			w.eachFamily(t, func(t *testing.T, at hook, f family) {
				held := w.from(t, at, f, c.protocol, 20000, toRemote)
				c.holds(t, held)
				w.pass(t, c.idle)
				before := w.counts(t)
				service, want := held.carried(t)
				counted := w.traffic(t, service)
				next := w.from(t, at, f, c.protocol, 20001, toRemote)
				if !c.taken {
					w.counted(t, before, model.DropNoPort)
					if !held.there(t) {
						t.Error("the flow has lost its entries")
					}
					held.says(t, psh|ack)
					held.asks(t, psh|ack)
					return
				}
				if next == nil || held.there(t) || !next.there(t) {
					t.Fatalf("the new flow is %+v; the old one has entries: %v", next, held.there(t))
				}
				w.counted(t, before, model.New)
				want.Flows = 1
				want.Add(counted)
				if got := w.traffic(t, service); got != want {
					t.Errorf("with the evicted flow the Service has counted %+v, want %+v", got, want)
				}
				next.assures(t)
			})
		})
	}
}

// Two ports, each used by a flow: which flow is evicted first.
func TestWhichPortIsTaken(t *testing.T) {
	w := newWorld(t, limits{ports: [2][2]uint16{{2000, 2}, {3000, 0}}})
	w.apply(t, w.scene())
	begun := func(t *testing.T, fl *flow) {}
	opened := func(t *testing.T, fl *flow) { fl.opens(t) }
	closed := func(t *testing.T, fl *flow) { fl.opens(t); fl.asks(t, rst) }
	halfClosed := func(t *testing.T, fl *flow) { fl.opens(t); fl.asks(t, fin|ack) }
	type holder struct {
		holds func(*testing.T, *flow)
		idle  time.Duration
	}
	for _, c := range []struct {
		name          string
		gives, stands holder
	}{
		{"expired before stale", holder{begun, 61 * time.Second}, holder{begun, 50 * time.Second}},
		{"the older of two handshakes", holder{begun, 200 * time.Millisecond}, holder{begun, 100 * time.Millisecond}},
		{"a stale handshake before a closed flow", holder{begun, 4 * time.Second}, holder{closed, 8 * time.Second}},
		{"a closed flow before a handshake that goes on", holder{closed, 0}, holder{begun, time.Second}},
		{"the older of two closed flows", holder{closed, 5 * time.Second}, holder{closed, time.Second}},
		{"a handshake before a half-closed connection", holder{begun, 0}, holder{halfClosed, 40 * time.Second}},
		{"a half-closed connection before an open one", holder{halfClosed, 40 * time.Second}, holder{opened, 7 * time.Hour}},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, order := range [][2]holder{{c.gives, c.stands}, {c.stands, c.gives}} {
				w.eachFamily(t, func(t *testing.T, at hook, f family) {
					var flows [2]*flow
					port := uint16(20000)
					for i := range order { // in order, because time passes for all
						for flows[i] == nil || i == 1 && flows[1].own.DestinationPort == flows[0].own.DestinationPort {
							if i == 1 { // protects the first one's port
								w.pin(t, flows[0])
							}
							flows[i] = w.from(t, at, f, tcp, port, toRemote)
							port++
						}
						order[i].holds(t, flows[i])
					}
					now := tickNow(t)
					w.idleAt(t, now, flows[0], order[0].idle)
					w.idleAt(t, now, flows[1], order[1].idle)
					next := w.from(t, at, f, tcp, 30000, toRemote)
					gives, stands := flows[0], flows[1]
					if order[0].idle != c.gives.idle || fmt.Sprintf("%p", order[0].holds) != fmt.Sprintf("%p", c.gives.holds) {
						gives, stands = stands, gives
					}
					if next == nil || gives.there(t) || !stands.there(t) {
						t.Errorf("the new flow is %+v; of the others, the one to be evicted has entries: %v, the one to stay: %v", next, gives.there(t), stands.there(t))
					}
				})
			}
		})
	}
}

// While one port in five is free, no flow is evicted, however old.
func TestFreePortsComeFirst(t *testing.T) {
	w := newWorld(t, limits{ports: [2][2]uint16{{2000, 100}, {3000, 0}}})
	w.apply(t, w.scene())
	w.each(t, func(t *testing.T, at hook, f family, protocol uint8) {
		var flows []*flow
		for n := range uint16(80) {
			flows = append(flows, w.from(t, at, f, protocol, 20000+n, toRemote))
			if n == 60 {
				w.pass(t, 20*time.Second)
			}
		}
		for n, fl := range flows {
			if !fl.there(t) {
				t.Errorf("flow %d has lost its port", n)
			}
		}
	})
}

// tickNow is the current tick of the marks' clock.
func tickNow(t testing.TB) uint32 {
	t.Helper()
	second, ns := now(t)
	return uint32((int64(second)*1e9 + ns) >> 20)
}

// idleAt makes a flow idle for a time as of a tick, and no other flow.
func (w *world) idleAt(t testing.TB, tick uint32, fl *flow, d time.Duration) {
	t.Helper()
	for _, table := range []string{halfOpen, tracks} {
		w.eachSet(t, table, func(set *flowSet) {
			for place, tag := range set.Tags {
				key := modelTuple(set.Entries[place].Key)
				if tag == 0 || key != fl.tuple() && key != fl.own {
					continue
				}
				timeout := map[model.State]time.Duration{model.StateNew: time.Minute, model.StateReplied: time.Minute,
					model.StateEstablished: 8 * time.Hour, model.StateClosing: time.Hour, model.StateClosed: 2 * time.Minute}
				set.Evictions.Evictions[place].Expires = tick + ticks(timeout[model.State(set.Entries[place].Ct.State)]-d)
			}
		})
	}
}

// pin makes a flow the last to be evicted.
func (w *world) pin(t testing.TB, fl *flow) {
	t.Helper()
	w.idleAt(t, tickNow(t), fl, -10*time.Second)
}

// A flow expires without an agent: what its client sends later begins a new one. A segment of an open
// connection belongs to that, however old it is.
func TestExpired(t *testing.T) {
	w := newScene(t)
	w.eachFamily(t, func(t *testing.T, at hook, f family) {
		for _, c := range []struct {
			name     string
			protocol uint8
			assured  bool
			idle     time.Duration
			flags    byte
			reason   model.Reason
		}{
			{"a question again", udp, false, 20 * time.Second, 0, model.Established},
			{"a datagram after 30 seconds", udp, false, 31 * time.Second, 0, model.New},
			{"UDP that continued", udp, true, 100 * time.Second, 0, model.Established},
			{"UDP that continued, after two minutes", udp, true, 130 * time.Second, 0, model.New},
			{"a SYN again", tcp, false, 50 * time.Second, syn, model.Established},
			{"a SYN after a minute", tcp, false, 61 * time.Second, syn, model.New},
			{"a segment after a night", tcp, true, 9 * time.Hour, ack, model.Established},
			{"a SYN after a night", tcp, true, 9 * time.Hour, syn, model.New},
		} {
			w.forget(t)
			fl := w.from(t, at, f, c.protocol, 20000, toRemote)
			if c.assured {
				fl.assures(t)
			}
			w.pass(t, c.idle)
			before := w.counts(t)
			p := fl.question
			if p.flags = c.flags; c.protocol == tcp {
				sequence(&p, clientISN, backendISN)
			}
			w.run(t, at, p.frame(t))
			before[c.reason]++
			if after := w.counts(t); after != before {
				t.Errorf("%s: counted %v, want %v", c.name, after, before)
			}
		}
	})
}
