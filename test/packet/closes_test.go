// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"encoding/binary"
	"flag"
	"testing"
	"time"

	"beeline.io/beeline/internal/conntrack"
	"beeline.io/beeline/test/packet/model"
)

var closesScale = flag.Int("closes.scale", 32, "by what TestClosesRefuseNobody divides 5,000 connections a second, the tables and the SNAT ports; 1: a node's own")

// 5,000 connections to one backend end in each second for ten minutes, far more than the table and the SNAT ports hold
// for as long as closed connections are kept, by SNAT and by DSR. None is refused, status has nothing to say, and
// connections that a client has half closed, and that have been silent since, get their answers at the end. No agent
// runs.
func TestClosesRefuseNobody(t *testing.T) {
	const halfClosed, minutes = 50, 10
	w := newWorld(t, limits{tracks: uint32(1 << 19 / *closesScale), ports: [2][2]uint16{{1024, uint16(33512 / *closesScale)}}})
	w.apply(t, w.scene())
	f := families[0]
	for _, c := range []struct {
		name string
		to   uint16
	}{{"SNAT", toRemote}, {"backend on this node", toLocal}, {"DSR", direct(toRemote, model.IPIP)}} {
		t.Run(c.name, func(t *testing.T) {
			w.enter(t)
			w.forget(t)
			var silent []*flow
			for n := range uint16(halfClosed) {
				fl := w.from(t, atXDP, f, tcp, 20000+n, toRemote)
				fl.opens(t)
				fl.asks(t, psh|ack)
				fl.asks(t, fin|ack)
				silent = append(silent, fl)
			}
			before := w.counts(t)
			load := newClosingLoad(t, w, f, c.to)
			opened, most := 0, 0
			for second := range 60 * minutes {
				for range 5000 / *closesScale {
					opened++
					load.opensAndCloses(t)
				}
				w.pass(t, time.Second)
				if second%30 == 29 {
					status, err := conntrack.Count(w.flowTables())
					must(t, err)
					most = max(most, status.Entries)
					if all := status.Conditions(); len(all) > 0 {
						t.Fatalf("after %d s: %v", second+1, all)
					}
				}
			}
			for reason, n := range w.counts(t) {
				switch r := model.Reason(reason); {
				case r == model.New && n-before[r] != uint64(opened):
					t.Errorf("%d new flows, want %d", n-before[r], opened)
				case r != model.New && r != model.Established && r != model.Reply && n != before[r]:
					t.Errorf("%d packets with reason %d", n-before[r], r)
				}
			}
			for _, fl := range silent {
				if !fl.there(t) {
					t.Errorf("the half-closed connection from port %d is gone", fl.question.from.Port())
					continue
				}
				fl.says(t, psh|ack)
			}
			t.Logf("%d connections, at most %d entries in %d places", opened, most, w.flowTables().Assured.Max())
		})
	}
}

func (w *world) flowTables() *conntrack.Tables { return conntrack.TablesOf(w.maps) }

// closingLoad is clients that open connections and close them at once, from another port each. Frames are made
// once: the programs read the checksum of a SYN alone, which is left to the device.
type closingLoad struct {
	w       *world
	clients []closingClient
	opened  int
	dsr     bool
	local   bool
}

type closingClient struct {
	syn, ack, fin, synAck, finAck []byte
}

// portsOfClient is how many ports a client uses.
const portsOfClient = 50000

func newClosingLoad(t *testing.T, w *world, f family, to uint16) *closingLoad {
	load := &closingLoad{w: w, dsr: to != toRemote && to != toLocal, local: to == toLocal}
	from := f.client
	for range 64 { // clients
		from = from.Next()
		q := f.question(tcp, to)
		q.from = on(from, 1)
		asks := func(flags byte, sent uint32) []byte {
			q.flags = flags
			sequence(&q, clientISN, backendISN)
			q.seq += sent
			return q.frame(t)
		}
		says := func(flags byte) []byte {
			p := reply(on(f.remote, targetPort), on(f.own, 1), tcp)
			if load.local {
				p = reply(on(f.local, targetPort), on(from, 1), tcp)
			}
			p.flags, p.tcpOptions = flags, nil
			sequence(&p, backendISN, clientISN)
			return p.frame(t)
		}
		first := asks(syn, 0)
		leaveSum(first)
		load.clients = append(load.clients, closingClient{first, asks(ack, 0), asks(fin|ack, 0), says(syn | ack), says(fin | ack)})
	}
	return load
}

// opensAndCloses is the whole life of a connection.
func (l *closingLoad) opensAndCloses(t *testing.T) {
	const ports = 14 + 20 // of an IPv4 frame
	c := &l.clients[l.opened/portsOfClient%len(l.clients)]
	port := uint16(1024 + l.opened%portsOfClient)
	l.opened++
	send := func(frame []byte, at int, port uint16, where hook) model.Result {
		binary.BigEndian.PutUint16(frame[at:], port)
		got := l.w.run(t, where, frame)
		if want := model.ActionSend; got.Action != want && !(l.local && got.Action == model.ActionPass) {
			t.Fatalf("connection %d: action %v", l.opened, got.Action)
		}
		return got
	}
	asks := func(frame []byte) model.Result { return send(frame, ports, port, atXDP) }
	own := binary.BigEndian.Uint16(asks(c.syn).Frame[ports:])
	says := func(frame []byte) {
		switch {
		case l.local:
			send(frame, ports+2, own, atEgress)
		case !l.dsr:
			send(frame, ports+2, own, atXDP)
		}
	}
	says(c.synAck)
	asks(c.ack)
	asks(c.fin)
	says(c.finAck)
}

// When the entries of a connection expire: an hour after the FIN of one side, because the other may take long to
// answer; with DSR, where the backend's FIN is not seen, a minute; two minutes after both, for as long as the backend
// may remember the connection.
func TestExpiryOfClosing(t *testing.T) {
	w := newWorld(t, limits{})
	w.apply(t, w.scene())
	expire := func(t *testing.T, what string, want time.Duration) {
		t.Helper()
		n, at := 0, tickNow(t)
		w.eachSet(t, tracks, func(set *flowSet) {
			for place, tag := range set.Tags {
				if tag == 0 {
					continue
				}
				n++
				left := time.Duration(set.Evictions.Evictions[place].Expires-at) << 20
				if left < want || left > want+10*time.Second {
					t.Errorf("%s: the entry expires in %v, want %v", what, left, want)
				}
			}
		})
		if n == 0 {
			t.Errorf("%s: no entry", what)
		}
	}
	w.eachFamily(t, func(t *testing.T, at hook, f family) {
		for _, ofClient := range []bool{true, false} {
			w.forget(t)
			fl := w.flow(t, at, f, tcp)
			fl.opens(t)
			closes := []func(){func() { fl.asks(t, fin|ack) }, func() { fl.says(t, fin|ack) }}
			if !ofClient {
				closes[0], closes[1] = closes[1], closes[0]
			}
			closes[0]()
			expire(t, "after one FIN", time.Hour)
			closes[1]()
			expire(t, "after both", 2*time.Minute)
		}
	})
	w.eachDirectFamily(t, func(t *testing.T, at hook, f family, dsr model.DSR) {
		fl := w.directFlow(at, f, tcp, dsr)
		fl.asks(t, syn, 999, "")
		fl.asks(t, ack, 1000, "")
		fl.asks(t, fin|ack, 1000, "")
		expire(t, "after the client's FIN, by DSR", time.Minute)
	})
}

// Half-closed connections are evicted for others, before open ones of whichever Service, and after closed ones; those
// of the Service that has most first, and of these the one that expires first.
func TestHalfClosedAreEvicted(t *testing.T) {
	w := newShared(t)
	w.eachFamily(t, func(t *testing.T, at hook, f family) {
		var open, half []*flow
		for n := range uint16(3) {
			fl := w.from(t, at, f, tcp, 20000+n, toRemote)
			fl.opens(t)
			w.pass(t, time.Second)
			open = append(open, fl)
		}
		for n := range uint16(4) { // 14 entries of 15 places, most of another Service
			fl := w.from(t, at, f, tcp, 21000+n, sharing[0])
			fl.opens(t)
			fl.asks(t, fin|ack)
			w.pass(t, time.Second)
			half = append(half, fl)
		}
		gone := func(what string, n int) {
			t.Helper()
			for i, fl := range half {
				if there := fl.there(t); there != (i >= n) {
					t.Errorf("%s: half-closed connection %d is there: %v", what, i, there)
				}
			}
			for i, fl := range open {
				if !fl.there(t) {
					t.Errorf("%s: open connection %d is gone", what, i)
				}
			}
		}
		for n := range uint16(2) {
			fl := w.from(t, at, f, tcp, 22000+n, toRemote) // now of the Service of the open ones
			fl.opens(t)
			open = append(open, fl)
			gone("a new connection", int(n)+1)
		}
		fl := w.from(t, at, f, udp, 23000, sharing[1])
		fl.assures(t)
		if !fl.there(t) {
			t.Error("the UDP flow has no entries")
		}
		gone("a UDP flow", 3)
		fl = w.from(t, at, f, tcp, 24000, sharing[1])
		fl.opens(t)
		gone("a connection", 4)
		fl.asks(t, rst)
		for n := range uint16(3) {
			next := w.from(t, at, f, tcp, 25000+n, sharing[1])
			next.opens(t)
			gone("a connection after a closed one", 4)
			if fl.there(t) {
				t.Errorf("closed connection %d is there", n)
			}
			next.asks(t, rst)
			fl = next
		}
	})
}
