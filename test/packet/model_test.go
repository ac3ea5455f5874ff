// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"encoding/hex"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"
	"time"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/test/packet/model"
	"beeline.io/beeline/test/seed"
)

var (
	seedFlag    = seed.New("seed", "seed of random tables and packets")
	packetsFlag = flag.Int("packets", 200_000, "how many packets TestModel generates; with -short no more than 100,000")
	roundFlag   = flag.Uint64("round", 0, "TestModel's first round of 500 packets at each hook: each starts without state, so a failed one can be repeated")
	lastingFlag = flag.Duration("lasting", 0, "how long TestModel generates packets instead, half of it at each hook")
)

const (
	packetsOfRound  = 500
	packetsOfTables = 100     // between updates
	enoughPackets   = 100_000 // for each reason to occur
)

// Programs and model agree on every packet: its fate, byte for byte, the conntrack entries afterwards, and the
// counters. Packets of clients and of backends, correct and damaged ones, while the tables change and entries
// get lost.
func TestModel(t *testing.T) {
	seed := seedFlag.Of(t)
	if testing.Short() {
		*packetsFlag = min(*packetsFlag, enoughPackets)
	}
	for n, at := range []hook{atIngress, atXDP} {
		t.Run(string(at), func(t *testing.T) {
			w := newWorld(t, limits{})
			var total [model.Reasons]uint64
			rounds := 0
			begin, last := time.Now(), *roundFlag+uint64(max(1, *packetsFlag/packetsOfRound/2))
			for round := *roundFlag; *lastingFlag == 0 && round < last || time.Since(begin) < *lastingFlag/2; round++ {
				counts, err := (&duel{t: t, w: w, at: at}).attempt(seed, 2*round+uint64(n))
				if err != nil {
					t.Fatalf("%s, -seed=%d -round=%d -packets=1: %v", at, seed, round, err)
				}
				for i, n := range counts {
					total[i] += n
				}
				rounds++
			}
			t.Logf("packets by reason: %v", total)
			if *lastingFlag > 0 || *packetsFlag < enoughPackets {
				t.Logf("%d packets generated, %.0f per second, and no difference", rounds*packetsOfRound, float64(rounds*packetsOfRound)/time.Since(begin).Seconds())
				return
			}
			for reason, n := range total {
				// Tested elsewhere: forwarding disabled in the kernel, plain tables, few ports,
				// ICMP errors and their rate, flows of the kernel, source validation,
				// XFRM policies. Rare here: other connections of a backend.
				none := map[model.Reason]bool{model.DropForwarding: true, model.DropInsertFailed: true, model.DropNoPort: true, model.ICMPError: true, model.ICMPRateLimited: true, model.DropRedirect: true, model.KernelFlow: true, model.KernelSocket: true, model.DropReversePath: true, model.DropXFRM: true, model.DropScope: true, model.DropOtherConnection: true}
				if r := model.Reason(reason); n == 0 && !none[r] && (r != model.ToTC || at == atXDP) {
					t.Errorf("none of %d packets had reason %d: the generator is too narrow", *packetsFlag/2, reason)
				}
			}
		})
	}
}

// duel compares the programs with the model.
type duel struct {
	t    *testing.T
	w    *world
	at   hook
	edge *model.Edge
	g    *generator
}

// attempt is a round, again if the second has changed meanwhile.
func (d *duel) attempt(seed, number uint64) (counts [model.Reasons]uint64, err error) {
	for try := range 100 {
		if try > 0 {
			awaitSecond(d.t)
		}
		var again bool
		if again, err = d.round(seed, number); !again {
			return d.edge.Counts, err
		}
	}
	return counts, err
}

// round starts both without state. again is set if the second has changed meanwhile, for the model's clock is
// fixed.
func (d *duel) round(seed, number uint64) (again bool, err error) {
	second, ns := now(d.t)
	if ns > 800e6 {
		awaitSecond(d.t)
		second, _ = now(d.t)
	}
	d.g = &generator{Rand: rand.New(rand.NewPCG(seed, number)), w: d.w}
	d.edge = &model.Edge{Now: second}
	d.edge.Forget()
	d.w.forget(d.t)
	for n := range packetsOfRound {
		if n%packetsOfTables == 0 {
			if err = d.records(); err != nil {
				break
			}
			d.g.fill()
			d.edge.Tables = *d.g.tables
			d.w.apply(d.t, d.g.tables)
		}
		if err = d.step(); err != nil {
			err = fmt.Errorf("packet %d: %w", n, err)
			break
		}
	}
	if err == nil {
		err = d.records()
	}
	if after, _ := now(d.t); after != second && err != nil {
		return true, err
	}
	return false, err
}

// awaitSecond waits for the next second to begin.
func awaitSecond(t testing.TB) {
	t.Helper()
	_, ns := now(t)
	time.Sleep(time.Duration(1e9 - ns + 10e6))
}

// step runs a packet, or has an entry lost or aged.
func (d *duel) step() error {
	if len(d.g.clients) > 0 {
		keys := pick(d.g, d.g.clients, d.g.replies)
		switch {
		case d.g.chance(4):
			d.lose(pick(d.g, keys...))
		case d.g.chance(4):
			d.age(pick(d.g, keys...))
		}
	}
	frame := d.g.frame()
	if d.w.l3 && !isL3Packet(frame) {
		return nil
	}
	if d.g.chance(15) {
		return d.compare(atEgress, frame, d.edge.Egress(d.w.index["eth0"], frame))
	}
	began := d.edge.Counts[model.New]
	want := d.edge.Ingress(d.at == atXDP, d.w.index["eth0"], frame)
	if err := d.compare(d.at, frame, want); err != nil {
		return err
	}
	if d.at == atXDP && want.Action == model.ActionPass {
		next := want.Frame
		want = d.edge.Ingress(false, d.w.index["eth0"], next)
		if err := d.compare(atIngress, next, want); err != nil {
			return fmt.Errorf("after XDP: %w", err)
		}
	}
	if want.Pieces != nil {
		for i, piece := range append(want.Pieces, want.Frame) {
			if err := d.compare(atIngress, piece, d.edge.Ingress(false, d.w.index["eth0"], piece)); err != nil {
				return fmt.Errorf("fragment %d: %w", i, err)
			}
		}
	}
	if d.edge.Counts[model.New] != began {
		d.began(frame)
	}
	return nil
}

func (d *duel) compare(at hook, frame []byte, want model.Result) error {
	got := d.w.run(d.t, at, frame)
	counts := d.w.counts(d.t)
	if d.w.met(at, got, want) && counts == d.edge.Counts {
		return nil
	}
	return fmt.Errorf("at %s, for\n%sthe program returned %v\n%sthe model %v\n%scounts: program %v\n         model %v", at,
		hex.Dump(frame), got.Action, hex.Dump(got.Frame), want.Action, hex.Dump(want.Frame), counts, d.edge.Counts)
}

// began notes what the backend of a new flow may send.
func (d *duel) began(frame []byte) {
	tuple, ok := model.Ends(frame)
	if !ok {
		return
	}
	if track := d.edge.HalfOpen[tuple]; track != nil {
		d.g.clients = append(d.g.clients, tuple)
		d.g.replies = append(d.g.replies, track.Becomes.Reverse())
	}
}

// lose removes an entry.
func (d *duel) lose(key model.Tuple) {
	for name, table := range map[string]map[model.Tuple]*model.Track{tracks: d.edge.Tracks, halfOpen: d.edge.HalfOpen} {
		if table[key] != nil {
			delete(table, key)
			d.w.lose(d.t, name, key)
		}
	}
}

// age ages one entry: the marks of an assured flow are due, and what UDP does from now on shows that it is no
// one-shot.
func (d *duel) age(key model.Tuple) {
	if track := d.edge.Tracks[key]; track != nil {
		track.LastSeen -= 8
		d.w.age(d.t, key)
	} else if track := d.edge.HalfOpen[key]; track != nil && key.Protocol == udp {
		track.Next -= 2
		d.w.change(d.t, halfOpen, key, func(t *bpf.ConntrackEntry) { t.Next -= 2 })
	}
}

// records compares the state of both.
func (d *duel) records() error {
	for name, table := range map[string]map[model.Tuple]*model.Track{tracks: d.edge.Tracks, halfOpen: d.edge.HalfOpen} {
		want := map[model.Tuple]model.Track{}
		for tuple, track := range table {
			want[tuple] = *track
		}
		if err := difference(name, d.w.records(d.t, name), want); err != nil {
			return err
		}
	}
	if err := difference(bpf.EdgeTCMapAffinity, d.w.affinity(d.t), d.edge.Affinity); err != nil {
		return err
	}
	return difference(bpf.EdgeTCMapFragments, d.w.fragments(d.t), d.edge.Fragments)
}

func difference[K, V comparable](table string, got, want map[K]V) error {
	if maps.Equal(got, want) {
		return nil
	}
	for key, value := range want {
		if other, ok := got[key]; !ok {
			return fmt.Errorf("table %s has no %v; the model %+v", table, key, value)
		} else if other != value {
			return fmt.Errorf("table %s, %v: %+v; the model %+v", table, key, other, value)
		}
	}
	for key, value := range got {
		if _, ok := want[key]; !ok {
			return fmt.Errorf("table %s, %v: %+v; the model has none", table, key, value)
		}
	}
	return nil
}
