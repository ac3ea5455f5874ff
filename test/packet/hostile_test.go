// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"net/netip"
	"testing"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/test/packet/model"
)

// TCP that does not begin a connection creates no entry and takes no port: it is dropped. A segment in the
// middle of one may belong to a connection whose entries were lost.
func TestInvalidTCP(t *testing.T) {
	w := newScene(t)
	w.eachFamily(t, func(t *testing.T, at hook, f family) {
		for _, port := range []uint16{toRemote, toLocal, direct(toRemote, model.IPIP), direct(toLocal, model.IPIP)} {
			for _, flags := range []byte{rst, rst | ack, fin | ack, syn | ack} {
				question := f.question(tcp, port)
				question.flags = flags
				w.drops(t, at, question.frame(t), model.DropInvalid)
			}
			for _, flags := range []byte{0, psh, fin, syn | fin, syn | rst, rst | fin | ack, syn | fin | rst | ack} {
				question := f.question(tcp, port)
				question.flags = flags
				w.stack(t, at, question, model.Malformed)
			}
			if n := len(w.records(t, halfOpen)) + len(w.records(t, tracks)); n > 0 {
				t.Fatalf("port %d: %d entries", port, n)
			}
			question := f.question(tcp, port)
			question.flags = ack
			if got := w.run(t, at, question.frame(t)); got.Action == model.ActionDrop {
				t.Errorf("port %d: an ACK was dropped", port)
			}
			w.forget(t)
		}
	})
}

// A client and a pod of this node exchange packets directly. Somebody forges a SYN with the client's address
// and port to a Service with this pod as backend: what the pod sends on the connection keeps its source, but for
// one ACK without data, which TCP can lose. What answers the SYN gets the Service's.
func TestForgedSYNRenamesNothing(t *testing.T) {
	w := newScene(t)
	w.eachFamily(t, func(t *testing.T, at hook, f family) {
		forged := f.question(tcp, toLocal)
		w.passes(t, at, forged.frame(t), forged.translated(forged.from, on(f.local, targetPort)))
		for _, flags := range []byte{ack, psh | ack, fin | ack, rst, rst | ack, syn | ack} {
			answer := reply(on(f.local, targetPort), forged.from, tcp)
			answer.flags, answer.seq, answer.ack, answer.tcpOptions = flags, 1<<30, 1<<31, nil
			if flags == ack {
				w.drops(t, atEgress, answer.frame(t), model.DropOtherConnection)
			}
			w.ignores(t, atEgress, answer.frame(t))
		}
		answer := reply(on(f.local, targetPort), forged.from, tcp) // to this very SYN
		w.passes(t, atEgress, answer.frame(t), answer.translated(forged.to, forged.from))
		answer.flags, answer.tcpOptions = psh|ack, nil
		w.passes(t, atEgress, answer.frame(t), answer.translated(forged.to, forged.from))

		// A connection whose entries were lost continues.
		w.forget(t)
		segment := forged
		segment.flags, segment.seq, segment.ack = psh|ack, 7000, 9000
		w.passes(t, at, segment.frame(t), segment.translated(segment.from, on(f.local, targetPort)))
		answer.seq, answer.ack = 9000+1<<20, 7000
		w.passes(t, atEgress, answer.frame(t), answer.translated(forged.to, forged.from))
	})
}

// Pods and nodes reach a UDP Service with a backend here from a SNAT port that is in use: they may talk to the
// backend directly from their own port, and nothing would tell whose reply it is.
func TestDatagramsOfPodsHaveAPortOfTheirOwn(t *testing.T) {
	w := newScene(t)
	tables := w.scene()
	tables.Balancers = prefixes("192.168.200.7/32", "fd00:200::7/128")
	w.apply(t, tables)
	w.eachFamily(t, func(t *testing.T, at hook, f family) {
		node := f.client.AsSlice()
		node[len(node)-1] = 7
		backend := on(f.local, targetPort)
		for _, client := range [][]byte{f.pod.AsSlice(), node} {
			question := f.question(udp, toLocal)
			a := f.client
			if a.Is4() {
				a = netip.AddrFrom4([4]byte(client))
			} else {
				a = netip.AddrFrom16([16]byte(client))
			}
			question.from = on(a, clientPort)
			snatPort := w.seen(t, at, question, backend)
			if snatPort == clientPort {
				t.Errorf("the source port of %v was not changed", a)
			}
			direct := reply(backend, question.from, udp)
			w.ignores(t, atEgress, direct.frame(t))
			answer := reply(backend, on(a, snatPort), udp)
			w.passes(t, atEgress, answer.frame(t), answer.translated(question.to, question.from))
		}
		question := f.question(udp, toLocal)
		w.passes(t, at, question.frame(t), question.translated(question.from, backend))
	})
}

// A client's packets may move to another device. A segment that its peer would not accept does not move them.
func TestForgedSegmentMovesNothing(t *testing.T) {
	w := newScene(t)
	w.eachFamily(t, func(t *testing.T, at hook, f family) {
		fl := w.flow(t, at, f, tcp)
		fl.opens(t)
		fl.asks(t, psh|ack)
		fl.says(t, ack)
		device := func() (index uint32) {
			w.change(t, tracks, fl.tuple(), func(track *bpf.ConntrackEntry) { index = track.Device })
			return index
		}
		w.change(t, tracks, fl.tuple(), func(track *bpf.ConntrackEntry) { track.Device = w.index["eth1"] })
		for _, seq := range []uint32{clientISN - 1<<23, clientISN + 1<<23, 1 << 31} {
			forged := fl.question
			forged.flags, forged.seq, forged.ack = psh|ack, seq, backendISN+1
			w.run(t, at, forged.frame(t))
			if got := device(); got != w.index["eth1"] {
				t.Errorf("a segment at %d has moved the connection to device %d", seq, got)
			}
		}
		fl.asks(t, psh|ack)
		if got := device(); got != w.index["eth0"] {
			t.Errorf("the connection is at device %d, want %d", got, w.index["eth0"])
		}
	})
}

// After a SYN alone only that SYN again, and what follows it, moves its flow to another device: neither a segment with
// numbers that its sender guesses, nor a second one beside it.
func TestForgedSegmentMovesNoHalfOpenFlow(t *testing.T) {
	w := newScene(t)
	w.eachFamily(t, func(t *testing.T, at hook, f family) {
		for _, port := range []uint16{toLocal, toRemote, direct(toRemote, model.IPIP)} {
			for _, c := range []struct {
				what  string
				sent  []probe
				moves bool
			}{
				{"an ACK", []probe{{flags: ack, seq: 1 << 31, ack: 1 << 30}}, false},
				{"two ACKs", []probe{{flags: ack, seq: 1 << 31, ack: 1 << 30}, {flags: ack, seq: 1 << 31, ack: 1 << 30}}, false},
				{"a SYN and an ACK", []probe{{flags: syn, seq: 1 << 31}, {flags: ack, seq: 1<<31 + 1, ack: 1 << 30}}, false},
				{"the SYN again", []probe{{flags: syn, seq: clientISN}}, true},
				{"the next segment", []probe{{flags: ack, seq: clientISN + 1, ack: 1 << 30}}, true},
			} {
				w.forget(t)
				question := f.question(tcp, port)
				question.seq = clientISN
				w.run(t, at, question.frame(t))
				key := model.Tuple{Source: question.from.Addr(), Destination: question.to.Addr(), SourcePort: question.from.Port(), DestinationPort: question.to.Port(), Protocol: tcp}
				w.change(t, halfOpen, key, func(track *bpf.ConntrackEntry) { track.Device = w.index["eth1"] })
				for _, p := range c.sent {
					segment := question
					segment.flags, segment.seq, segment.ack = p.flags, p.seq, p.ack
					w.run(t, at, segment.frame(t))
				}
				device, want := uint32(0), w.index["eth1"]
				if c.moves {
					want = w.index["eth0"]
				}
				for _, table := range []string{halfOpen, tracks} {
					w.change(t, table, key, func(track *bpf.ConntrackEntry) { device = track.Device })
				}
				if device != want {
					t.Errorf("port %d: after %s the flow is at device %d, want %d", port, c.what, device, want)
				}
			}
		}
	})
}

// A SYN with other flags opens no connection and so ends none: a flow whose backend no longer serves, or that a
// forged RST has closed, keeps its entries.
func TestSYNWithOtherFlagsEndsNothing(t *testing.T) {
	w := newScene(t)
	w.eachFamily(t, func(t *testing.T, at hook, f family) {
		defer w.apply(t, w.scene())
		for _, closed := range []bool{false, true} {
			for _, port := range []uint16{toRemote, toLocal} {
				w.forget(t)
				w.apply(t, w.scene())
				question := f.question(tcp, port)
				w.run(t, at, question.frame(t))
				if closed {
					question.flags = rst | ack
					w.run(t, at, question.frame(t))
				} else {
					tables := w.scene()
					key := model.FrontendKey{Address: f.vip, Port: port, Protocol: tcp}
					frontend := tables.Frontends[key]
					other := tables.Frontends[model.FrontendKey{Address: f.vip, Port: sticky, Protocol: tcp}].Outside.Slots[2]
					frontend.Pod, frontend.Outside = model.Decision{Slots: []uint32{other}}, model.Decision{Slots: []uint32{other}}
					tables.Frontends[key] = frontend
					w.apply(t, tables)
				}
				had := len(w.records(t, halfOpen))
				if had == 0 {
					t.Fatal("the SYN has left no entry")
				}
				for _, flags := range []byte{syn | fin, syn | rst, syn | ack, 0xff} {
					question.flags = flags
					w.run(t, at, question.frame(t))
					if n := len(w.records(t, halfOpen)); n != had {
						t.Errorf("port %d, closed %v, flags %#x: %d entries, want %d as before", port, closed, flags, n, had)
					}
				}
			}
		}
	})
}

// R12: a SYN with the tuple of a flow whose backend no longer serves goes to one that does, be that flow half
// open or not, with SNAT, locally, or with DSR. While the backend serves, the SYN is for it to judge.
func TestSYNOfABackendThatHasLeft(t *testing.T) {
	w := newScene(t)
	w.eachFamily(t, func(t *testing.T, at hook, f family) {
		defer w.apply(t, w.scene())
		for _, port := range []uint16{toRemote, toLocal, direct(toRemote, model.IPIP)} {
			w.forget(t)
			w.apply(t, w.scene())
			question := f.question(tcp, port)
			w.run(t, at, question.frame(t))
			before := w.counts(t)
			w.run(t, at, question.frame(t))
			w.counted(t, before, model.Established)
			tables := w.scene()
			key := model.FrontendKey{Address: f.vip, Port: port, Protocol: tcp}
			frontend := tables.Frontends[key]
			other := tables.Frontends[model.FrontendKey{Address: f.vip, Port: sticky, Protocol: tcp}].Outside.Slots[2]
			frontend.Pod, frontend.Outside = model.Decision{Slots: []uint32{other}}, model.Decision{Slots: []uint32{other}}
			tables.Frontends[key] = frontend
			w.apply(t, tables)
			before = w.counts(t)
			w.run(t, at, question.frame(t))
			w.counted(t, before, model.New)
			record := w.records(t, halfOpen)[model.Tuple{Source: f.client, Destination: f.vip, SourcePort: clientPort, DestinationPort: port, Protocol: tcp}]
			if record.Becomes.Destination != tables.Backends[other].Address {
				t.Errorf("port %d: the SYN went to %v, want %v", port, record.Becomes.Destination, tables.Backends[other].Address)
			}
		}
	})
}
