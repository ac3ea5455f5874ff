// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/test/packet/model"
)

// A flowSet is one set of a conntrack table: its tags, and its entries with their marks.
type flowSet struct {
	bpf.EdgeTCSetTags
	bpf.EdgeTCCtSet
}

// tagsOf are the tag tables, by the table of their entries.
var tagsOf = map[string]string{tracks: bpf.EdgeTCMapConntrackTags, halfOpen: bpf.EdgeTCMapUnrepliedTags}

// eachSet calls f with each set of a table that is in use, and writes back its changes.
func (w *world) eachSet(t testing.TB, table string, f func(*flowSet)) {
	t.Helper()
	tags := rows[bpf.EdgeTCSetTags](t, w.programs, tagsOf[table])
	sets := rows[bpf.EdgeTCCtSet](t, w.programs, table)
	for i := range sets {
		if tags[i].Tags == [len(tags[i].Tags)]uint32{} {
			continue
		}
		set := flowSet{tags[i], sets[i]}
		f(&set)
		tags[i], sets[i] = set.EdgeTCSetTags, set.EdgeTCCtSet
	}
}

// keysAt are the keys in the table of half-open flows, with the number of entries of each.
func (w *world) keysAt(t testing.TB) map[model.Tuple]int {
	t.Helper()
	keys := map[model.Tuple]int{}
	w.eachSet(t, halfOpen, func(set *flowSet) {
		for place, tag := range set.Tags {
			if tag&(1<<31) != 0 {
				t.Errorf("place %d is still claimed", place)
			}
			if tag != 0 {
				keys[modelTuple(set.Entries[place].Key)]++
			}
		}
	})
	return keys
}

// change changes the entry of a key.
func (w *world) change(t testing.TB, table string, key model.Tuple, f func(*bpf.ConntrackEntry)) {
	t.Helper()
	w.eachSet(t, table, func(set *flowSet) {
		for place, tag := range set.Tags {
			if tag != 0 && modelTuple(set.Entries[place].Key) == key {
				f(&set.Entries[place].Ct)
			}
		}
	})
}

// ticks converts a time to ticks of the programs' clock.
func ticks(d time.Duration) uint32 { return uint32(d.Nanoseconds() >> 20) }

// pass ages all flows by a time.
func (w *world) pass(t testing.TB, d time.Duration) {
	t.Helper()
	for _, table := range []string{halfOpen, tracks} {
		w.eachSet(t, table, func(set *flowSet) {
			for place := range set.Entries {
				track := &set.Entries[place].Ct
				track.LastSeen -= uint32(d / time.Second)
				if set.Entries[place].Key.Protocol == udp {
					track.Next -= uint32(d / time.Second)
				}
				set.Evictions.Evictions[place].Expires -= ticks(d)
			}
		})
	}
}

// A full set evicts the flow that expires first, with both of its entries. The flow that has just begun is
// stored.
func TestHalfOpenSetIsFull(t *testing.T) {
	w := newWorld(t, limits{tracks: setPlaces}) // one set
	w.apply(t, w.scene())
	w.each(t, func(t *testing.T, at hook, f family, protocol uint8) {
		asks := func(port uint16) model.Tuple {
			t.Helper()
			question := f.question(protocol, toRemote)
			question.from = on(f.client, port)
			if got := w.run(t, at, question.frame(t)); got.Action != model.ActionSend {
				t.Fatalf("the flow from port %d: action %v", port, got.Action)
			}
			return model.Tuple{Source: f.client, Destination: f.vip, SourcePort: port, DestinationPort: toRemote, Protocol: protocol}
		}
		var begun []model.Tuple
		for n := range uint16(60) {
			begun = append(begun, asks(20000+n))
			w.pass(t, 10*time.Millisecond)
			records := w.records(t, halfOpen)
			for i, tuple := range begun {
				_, there := records[tuple]
				// Seven flows have two entries each, which leaves one place free.
				if want := i > int(n)-7; there != want {
					t.Fatalf("after %d flows: flow %d is there: %v, want %v", n+1, i, there, want)
				}
			}
			if want := 2 * min(len(begun), 7); len(records) != want {
				t.Fatalf("after %d flows there are %d entries, want %d", n+1, len(records), want)
			}
		}
	})
}

// Two flows that want one port at a backend of this node begin at the same moment on two CPUs: one gets it, the
// other another one, and no key has two entries.
func TestHalfOpenTwins(t *testing.T) {
	const flows = 3000
	// So many sets that none ever overflows: entries are distributed at random, and with a quarter of the
	// sets one would overflow in one run of four.
	w := newWorld(t, limits{tracks: 1 << 17})
	tables := w.scene()
	f := families[0]
	key := model.FrontendKey{Address: f.vip, Port: 8181, Protocol: tcp}
	tables.Frontends[key] = tables.Frontends[model.FrontendKey{Address: f.vip, Port: toLocal, Protocol: tcp}]
	w.apply(t, tables)
	var frames [2][flows][]byte
	for i, port := range []uint16{toLocal, key.Port} {
		for n := range flows {
			question := f.question(tcp, toLocal)
			question.from, question.to = on(f.client, uint16(20000+n)), on(f.vip, port)
			frames[i][n] = question.frame(t)
		}
	}
	var both sync.WaitGroup
	var start [flows]sync.WaitGroup
	for n := range start {
		start[n].Add(2)
	}
	var became [2][flows]model.Tuple
	for i := range frames {
		both.Go(func() {
			for n, frame := range frames[i] {
				start[n].Done()
				start[n].Wait()
				options := ebpf.RunOptions{Data: frame, DataOut: make([]byte, 2048), Context: [6]uint32{1: uint32(len(frame)), 3: w.index["eth0"]}}
				verdict, err := w.xdp.Run(&options)
				if err != nil || actions[atXDP][verdict] != model.ActionPass {
					t.Errorf("flow %d: the program returned %#x, %v", n, verdict, err)
					continue
				}
				became[i][n], _ = model.Ends(options.DataOut)
			}
		})
	}
	both.Wait()
	for n := range flows {
		if became[0][n] == became[1][n] {
			t.Errorf("two flows were translated to %v", became[0][n])
		}
	}
	records := w.records(t, halfOpen)
	for tuple, n := range w.keysAt(t) {
		if n > 1 {
			t.Errorf("%v has %d entries", tuple, n)
		}
	}
	if len(records) != 4*flows {
		t.Errorf("%d conntrack entries of %d flows, want two for each", len(records), 2*flows)
	}
	for key, record := range records {
		if other, ok := records[record.Becomes.Reverse()]; !ok || other.Becomes.Reverse() != key {
			t.Errorf("%v is translated to %v, whose replies are translated to %v", key, record.Becomes, other.Becomes)
		}
	}
}
