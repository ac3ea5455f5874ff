// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"encoding/hex"
	"math/rand/v2"
	"reflect"
	"testing"

	"github.com/cilium/ebpf"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/test/packet/model"
)

// Dry runs (`beeline explain`) change nothing that a later packet finds, whatever the packet is.
func TestDryRunsChangeNothing(t *testing.T) {
	const packets, ofTables = 2000, 100
	seed := seedFlag.Of(t)
	w := newWorld(t, limits{})
	dry := w.dryRun(t)
	g := &generator{Rand: rand.New(rand.NewPCG(seed, 3)), w: w}
	changes, now := 0, w.memory(t)
	for n := range packets {
		if n%ofTables == 0 {
			g.fill()
			w.apply(t, g.tables)
			now = w.memory(t)
		}
		frame, at := g.frame(), pick(g, atXDP, atIngress, atIngress, atEgress)
		before := now
		dry.run(t, at, frame)
		if now = w.memory(t); !reflect.DeepEqual(now, before) {
			t.Fatalf("-seed=%d, packet %d: a dry run at %s has changed the tables from\n%+v\nto\n%+v\n%s", seed, n, at, before, now, hex.Dump(frame))
		}
		w.run(t, at, frame)
		if now = w.memory(t); !reflect.DeepEqual(now, before) {
			changes++
		}
		if ends, ok := model.Ends(frame); ok {
			if becomes, found := w.becomes(ends); found {
				g.clients, g.replies = append(g.clients, ends), append(g.replies, becomes.Reverse())
			}
		}
	}
	if changes < packets/10 {
		t.Errorf("%d of %d packets have changed the tables: the test proves nothing", changes, packets)
	}
}

// dryRun is the world with the programs of dry runs.
func (w *world) dryRun(t testing.TB) *world {
	t.Helper()
	dry := *w
	only := func(spec *ebpf.CollectionSpec) { must(t, spec.Variables[bpf.EdgeTCVarDryRun].Set(uint8(1))) }
	tc, xdp := w.reload(t, bpf.LoadEdgeTC, w.programs.tc.Maps, only), w.reload(t, bpf.LoadEdgeXDP, w.programs.xdp.Maps, only)
	dry.ingress, dry.egress = tc[bpf.EdgeTCProgBeelineEdgeIngress], tc[bpf.EdgeTCProgBeelineEdgeEgress]
	dry.xdp = xdp[bpf.EdgeXDPProgBeelineEdgeXdp]
	return &dry
}

// memory is what the programs remember of packets.
func (w *world) memory(t testing.TB) map[string]any {
	t.Helper()
	return map[string]any{
		tracks: w.records(t, tracks), halfOpen: w.records(t, halfOpen), "affinity": w.affinity(t), "fragments": w.fragments(t), "counts": w.counts(t),
	}
}
