// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"beeline.io/beeline/test/packet/model"
)

// BenchmarkMembers times packets that need a membership check: with default flags these are a packet whose
// option names a VIP, a SYN repeated in a flow with DSR, and the first packet of a flow at a DSR backend's
// node. The cost must be nearly the same for one backend and for 400. IPv4, TCP, XDP; each is a test run of its
// own (see BenchmarkDirectFlows).
func BenchmarkMembers(b *testing.B) {
	f := families[0]
	for _, test := range []struct {
		name    string
		kind    model.DSR
		accepts bool // this node accepts packets of balancers
		local   bool // the backends are on this node
		port    uint16
		frames  func(b *testing.B, w *world, members []netip.AddrPort) [][]byte
		actions []model.Action
	}{
		{"option of anybody", model.SNAT, false, false, toRemote, func(b *testing.B, w *world, members []netip.AddrPort) [][]byte {
			p := f.question(tcp, toRemote)
			p.flags = ack
			return [][]byte{wrapOption(b, f, f.fromBalancer(p, on(f.local, targetPort)))}
		}, []model.Action{model.ActionDrop, model.ActionPass}},
		{"SYN again", model.IPIP, true, false, direct(toRemote, model.IPIP), func(b *testing.B, w *world, members []netip.AddrPort) (frames [][]byte) {
			for n := range uint16(64) {
				p := f.question(tcp, direct(toRemote, model.IPIP))
				p.from = on(f.client, 2000+n)
				frames = append(frames, p.frame(b))
				w.run(b, atXDP, frames[n])
			}
			return frames
		}, []model.Action{model.ActionSend}},
		{"first at the backend", model.Geneve, true, true, toMany + uint16(model.Geneve), func(b *testing.B, w *world, members []netip.AddrPort) (frames [][]byte) {
			for n := range 60000 {
				p := f.question(tcp, toMany+uint16(model.Geneve))
				p.from = on(netip.AddrFrom4([4]byte{192, 168, 200, byte(1 + n/30000)}), uint16(2000+n%30000))
				frames = append(frames, wrapGeneve(b, f, f.fromBalancer(p, members[n%len(members)])))
			}
			return frames
		}, []model.Action{model.ActionPass}},
	} {
		for _, count := range []int{1, 400} {
			b.Run(fmt.Sprintf("%s/%d", test.name, count), func(b *testing.B) {
				w := newWorld(b, limits{tracks: 1 << 19})
				w.apply(b, w.dsrScene())
				if !test.accepts {
					w.accept(b, 0)
				}
				members := w.manyMembers(b, model.FrontendKey{Address: f.vip, Port: test.port, Protocol: tcp}, test.kind, count, test.local)
				frames := test.frames(b, w, members)
				var sum time.Duration
				n := 0
				for b.Loop() {
					took, action := w.timed(b, frames[n%len(frames)])
					if !slices.Contains(test.actions, action) {
						b.Fatalf("action %v, want one of %v", action, test.actions)
					}
					sum += took
					n++
				}
				b.ReportMetric(float64(sum.Nanoseconds())/float64(n), "ns/packet")
			})
		}
	}
}

// manyMembers gives a frontend so many backends, in one set for all source classes.
func (w *world) manyMembers(t testing.TB, key model.FrontendKey, kind model.DSR, count int, local bool) (members []netip.AddrPort) {
	t.Helper()
	network := byte(2)
	if local {
		network = 1
	}
	for n := range count {
		members = append(members, on(netip.AddrFrom4([4]byte{10, 10, network, byte(11 + n/2)}), uint16(8080+n%2)))
	}
	w.putSet(t, key, kind, members, nil, local, forPods, forNodes, forOutside)
	return members
}
