// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"net/netip"
	"testing"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/test/packet/model"
)

// R16, R18, R21, R25: what a client gets depends on its address and on whether it is a pod.
func TestPolicies(t *testing.T) {
	w := newScene(t)
	w.each(t, func(t *testing.T, at hook, f family, protocol uint8) {
		to := func(port uint16, from netip.Addr) probe {
			p := f.question(protocol, port)
			p.from = on(from, clientPort)
			return p
		}
		served := func(p probe) {
			t.Helper()
			own := on(f.own, w.snatPort(t, at, p.frame(t)))
			w.sends(t, at, p.frame(t), p.forwarded(at, own, on(f.remote, targetPort), nodeBMAC))
		}
		w.drops(t, at, to(dropped, f.client).frame(t), model.DropPolicy)
		w.drops(t, at, to(dropped, f.pod).frame(t), model.DropPolicy)
		before := w.counts(t)
		w.ignores(t, at, to(passed, f.client).frame(t))
		w.counted(t, before, model.NotService)

		served(to(onlyPods, f.pod))
		w.drops(t, at, to(onlyPods, f.client).frame(t), model.DropPolicy)
		w.drops(t, at, to(onlyPods, f.unused).frame(t), model.DropPolicy) // a known client, but no pod
		served(to(onlyOutside, f.client))
		w.answers(t, at, to(onlyOutside, f.pod))
		w.answers(t, at, to(rejected, f.pod))

		served(to(ranged, f.client))
		w.drops(t, at, to(ranged, f.client.Next()).frame(t), model.DropSource)
		w.drops(t, at, to(ranged, f.pod).frame(t), model.DropSource)

		unused := to(80, f.client)
		unused.to = on(f.unused, 80)
		w.drops(t, at, unused.frame(t), model.DropNoService)
		unused.to = on(f.remote, 80) // an address of a pod
		w.ignores(t, at, unused.frame(t))
		unused.to = on(f.own, 22)
		w.ignores(t, at, unused.frame(t))
		unused.to = on(f.loopback(), toRemote) // left to the socket hooks (R22)
		w.ignores(t, at, unused.frame(t))
	})
}

// R27: a client stays with its backend, from whatever port it asks; others have others.
func TestAffinity(t *testing.T) {
	w := newScene(t)
	w.each(t, func(t *testing.T, at hook, f family, protocol uint8) {
		backends := map[netip.Addr]bool{}
		from := f.client
		for range 12 {
			first := netip.Addr{}
			for port := range uint16(8) {
				question := f.question(protocol, sticky)
				question.from = on(from, clientPort+port)
				w.run(t, at, question.frame(t))
				key := model.Tuple{Source: from, Destination: f.vip, SourcePort: clientPort + port, DestinationPort: sticky, Protocol: protocol}
				if key.Protocol == 0 {
					key.Protocol = tcp
				}
				backend := w.records(t, halfOpen)[key].Becomes.Destination
				if !first.IsValid() {
					first = backend
				}
				if !backend.IsValid() || backend != first {
					t.Fatalf("%v was sent to %v, then from port %d to %v", from, first, clientPort+port, backend)
				}
			}
			backends[first] = true
			from = from.Next()
		}
		if len(backends) < 2 {
			t.Errorf("all clients were sent to %v", backends)
		}
	})
}

// A flow that cannot be stored does not begin: nobody could say whose the reply is. That happens while other
// CPUs write to all places that its entry could have.
func TestNoRoomForRecords(t *testing.T) {
	w := newWorld(t, limits{tracks: setPlaces}) // one set
	w.apply(t, w.scene())
	w.each(t, func(t *testing.T, at hook, f family, protocol uint8) {
		for _, port := range []uint16{toRemote, toLocal} {
			var set bpf.EdgeTCSetTags
			for i := range set.Tags {
				set.Tags[i] = 1<<31 | 5
			}
			w.put(t, tagsOf[halfOpen], uint32(0), set)
			frame := f.question(protocol, port).frame(t)
			w.drops(t, at, frame, model.DropInsertFailed)
			w.put(t, tagsOf[halfOpen], uint32(0), bpf.EdgeTCSetTags{})
			if got := w.run(t, at, frame); got.Action == model.ActionDrop {
				t.Fatal("the flow was dropped though there was room")
			}
			if n := len(w.records(t, halfOpen)); n != 2 {
				t.Errorf("%d conntrack entries, want 2", n)
			}
		}
	})
}

// A full conntrack table stores new flows in place of the longest idle ones.
func TestTablesFull(t *testing.T) {
	w := newWorld(t, limits{tracks: 64})
	w.apply(t, w.scene())
	w.each(t, func(t *testing.T, at hook, f family, protocol uint8) {
		for n := range uint16(500) {
			question := f.question(protocol, toRemote)
			question.from = on(f.client, clientPort)
			question.to = on(f.vip, toRemote)
			question.from = on(f.client, 20000+n)
			if got := w.run(t, at, question.frame(t)); got.Action != model.ActionSend {
				t.Fatalf("flow %d: action %v", n, got.Action)
			}
		}
		if n := len(w.records(t, halfOpen)); n > 64 {
			t.Errorf("%d conntrack entries, want at most 64", n)
		}
		if got := w.counts(t)[model.New]; got != 500 {
			t.Errorf("%d flows began, want 500", got)
		}
	})
}
