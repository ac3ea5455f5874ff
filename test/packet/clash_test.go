// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"net/netip"
	"testing"
	"time"

	"beeline.io/beeline/test/packet/model"
)

// One address and port of a client asks two frontends that share a backend of this node: to the backend both
// would be one flow. The second flow gets another port there, and each reply comes from the frontend that was
// asked.
func TestClash(t *testing.T) {
	w := newScene(t)
	tables := w.scene()
	for _, f := range families {
		for _, protocol := range []uint8{tcp, udp} {
			tables.Frontends[model.FrontendKey{Address: f.own, Port: 30081, Protocol: protocol}] =
				tables.Frontends[model.FrontendKey{Address: f.vip, Port: toLocal, Protocol: protocol}]
		}
	}
	w.apply(t, tables)
	w.each(t, func(t *testing.T, at hook, f family, protocol uint8) {
		first, second := f.question(protocol, toLocal), f.question(protocol, toLocal)
		second.to = on(f.own, 30081)
		backend := on(f.local, targetPort)
		w.passes(t, at, first.frame(t), first.translated(first.from, backend))
		other := w.seen(t, at, second, backend)
		if other == first.from.Port() {
			t.Fatalf("both flows have port %d at the backend", other)
		}
		for _, flow := range []struct {
			question probe
			as       netip.AddrPort
		}{{first, first.from}, {second, on(f.client, other)}} {
			q := flow.question
			w.passes(t, at, q.frame(t), q.translated(flow.as, backend)) // as before
			answer := reply(backend, flow.as, protocol)
			w.passes(t, atEgress, answer.frame(t), answer.translated(q.to, q.from))
			q.flags = ack // established
			w.passes(t, at, q.frame(t), q.translated(flow.as, backend))
			w.passes(t, atEgress, answer.frame(t), answer.translated(q.to, q.from))
			w.reported(t, at, f, q, flow.as, answer)
		}
		w.counted(t, [model.Reasons]uint64{model.New: 1, model.Established: 4, model.Reply: 4,
			model.ICMPError: uint64(4 * len(errorsOf(f, first)))}, model.New)
		table := map[uint8]string{tcp: tracks, udp: halfOpen}[protocol]
		if n := len(w.records(t, table)); n != 4 {
			t.Errorf("%d conntrack entries of two flows, want 4", n)
		}
	})
}

// A client comes back to a backend from one port by another Service's address, after the backend has closed their
// first connection. The backend may remember that (TIME_WAIT) for a minute, and would not accept the SYN: it sees
// another port for two minutes.
func TestPortOfClosedConnection(t *testing.T) {
	w := newScene(t)
	tables := w.scene()
	for _, f := range families {
		tables.Frontends[model.FrontendKey{Address: f.own, Port: 30081, Protocol: tcp}] =
			tables.Frontends[model.FrontendKey{Address: f.vip, Port: toLocal, Protocol: tcp}]
	}
	w.apply(t, tables)
	w.eachFamily(t, func(t *testing.T, at hook, f family) {
		for _, c := range []struct {
			after time.Duration
			own   bool
		}{{0, false}, {110 * time.Second, false}, {130 * time.Second, true}} {
			w.forget(t)
			first, second := f.question(tcp, toLocal), f.question(tcp, toLocal)
			second.to = on(f.own, 30081)
			backend := on(f.local, targetPort)
			answer := reply(backend, first.from, tcp)
			asks := func(flags byte) {
				first.flags = flags
				sequence(&first, clientISN, backendISN)
				w.passes(t, at, first.frame(t), first.translated(first.from, backend))
			}
			says := func(flags byte) {
				answer.flags, answer.tcpOptions = flags, nil
				sequence(&answer, backendISN, clientISN)
				w.passes(t, atEgress, answer.frame(t), answer.translated(first.to, first.from))
			}
			asks(syn)
			says(syn | ack)
			asks(ack)
			says(fin | ack)
			asks(fin | ack)
			w.pass(t, c.after)
			if c.own {
				w.passes(t, at, second.frame(t), second.translated(second.from, backend))
			} else if port := w.seen(t, at, second, backend); port == second.from.Port() {
				t.Errorf("after %v the backend sees the client's port again", c.after)
			}
		}
	})
}

// seen is the client's port as a backend of this node sees it.
func (w *world) seen(t testing.TB, at hook, asked probe, backend netip.AddrPort) uint16 {
	t.Helper()
	got := w.run(t, at, asked.frame(t))
	if got.Action != model.ActionPass {
		t.Fatalf("%s: action %v, want 0 (passed)", at, got.Action)
	}
	tuple, ok := model.Ends(got.Frame)
	if !ok || tuple.Source != asked.from.Addr() || tuple.Destination != backend.Addr() || tuple.DestinationPort != backend.Port() {
		t.Fatalf("%s: the packet was translated to %v, want one to %v", at, tuple, backend)
	}
	for _, r := range w.limits.ports {
		if tuple.SourcePort >= r[0] && tuple.SourcePort-r[0] < r[1] {
			return tuple.SourcePort
		}
	}
	t.Fatalf("%s: the backend sees port %d, which is outside %v", at, tuple.SourcePort, w.limits.ports)
	return 0
}

// reported has both sides of a flow send ICMP errors: each must reach the other side in its own addresses and
// ports.
func (w *world) reported(t testing.TB, at hook, f family, question probe, as netip.AddrPort, answer probe) {
	t.Helper()
	question.payload = []byte("something to be quoted")
	seen := question.translated(as, answer.from)
	back := answer.translated(question.to, question.from)
	for i := range errorsOf(f, seen) {
		from, to := errorsOf(f, seen)[i], errorsOf(f, question)[i]
		w.leaves(t, atEgress, from.frame(t, probe{}, f.local, f.client), model.ActionPass,
			to.frame(t, probe{}, question.to.Addr(), f.client))
		from, to = errorsOf(f, back)[i], errorsOf(f, answer)[i]
		w.leaves(t, at, from.frame(t, probe{}, f.client, question.to.Addr()), model.ActionPass,
			to.frame(t, probe{}, f.client, f.local))
	}
}

// The client's entry of a flow with another port is lost: its next packet finds the port that the backend
// knows, and does not take over the other flow's.
func TestClashFindsItsPortAgain(t *testing.T) {
	w := newScene(t)
	tables := w.scene()
	w.apply(t, tables)
	w.each(t, func(t *testing.T, at hook, f family, protocol uint8) {
		first := f.question(protocol, toLocal)
		second := first
		key := model.FrontendKey{Address: f.vip, Port: 8181, Protocol: protocol}
		tables.Frontends[key] = tables.Frontends[model.FrontendKey{Address: f.vip, Port: toLocal, Protocol: protocol}]
		w.apply(t, tables)
		second.to = on(f.vip, 8181)
		backend := on(f.local, targetPort)
		w.run(t, at, first.frame(t))
		other := w.seen(t, at, second, backend)
		for _, q := range []probe{first, second} {
			tuple := model.Tuple{Source: f.client, Destination: f.vip, SourcePort: clientPort, DestinationPort: q.to.Port(), Protocol: protocol}
			w.lose(t, halfOpen, tuple)
			as := q.from
			if q.to == second.to {
				as = on(f.client, other)
			}
			before := w.counts(t)
			w.passes(t, at, q.frame(t), q.translated(as, backend))
			w.counted(t, before, model.Recovered)
			if n := len(w.records(t, halfOpen)); n != 4 {
				t.Errorf("%d conntrack entries of two flows, want 4", n)
			}
		}
		// The key of another flow is never overwritten.
		answered := model.Tuple{Source: f.local, Destination: f.client, SourcePort: targetPort, DestinationPort: clientPort, Protocol: protocol}
		if record, ok := w.records(t, halfOpen)[answered]; !ok || record.Becomes.Source != f.vip || record.Becomes.SourcePort != toLocal {
			t.Errorf("the first flow's record for answers is %+v", record)
		}
	})
}

// A backend of this node does not reply to a SYN, but acknowledges an earlier connection from the client's port
// that it has not ended (RFC 9293 section 3.5.1), which the client made directly or whose entries are gone. The client
// has not asked the backend's address: it does not get the acknowledgement from there. The SYN, repeated, reaches the
// backend from another port. All else keeps its source, and so do later acknowledgements: of a direct connection of the
// client a forged SYN costs one of these.
func TestPortIsTakenAtTheBackend(t *testing.T) {
	w := newScene(t)
	w.eachFamily(t, func(t *testing.T, at hook, f family) {
		question, backend := f.question(tcp, toLocal), on(f.local, targetPort)
		w.passes(t, at, question.frame(t), question.translated(question.from, backend))
		w.passes(t, at, question.frame(t), question.translated(question.from, backend)) // repeated before a reply
		of := reply(backend, question.from, tcp)
		of.flags, of.seq, of.ack, of.tcpOptions = ack, 1<<30, 1<<31, nil
		w.drops(t, atEgress, of.frame(t), model.DropOtherConnection)
		w.ignores(t, atEgress, of.frame(t))
		other := w.seen(t, at, question, backend)
		w.ignores(t, atEgress, of.frame(t))
		if again := w.seen(t, at, question, backend); again != other {
			t.Errorf("the backend sees port %d, then %d", other, again)
		}
		answer := reply(backend, on(f.client, other), tcp)
		w.passes(t, atEgress, answer.frame(t), answer.translated(question.to, question.from))
		question.flags = ack
		w.passes(t, at, question.frame(t), question.translated(on(f.client, other), backend))
	})
}
