// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"sync"
	"testing"

	"github.com/cilium/ebpf"

	"beeline.io/beeline/internal/datapath"
	"beeline.io/beeline/test/packet/model"
)

// keysAt are the keys in the table of half-open flows, each as often as it is there.
func (w *world) keysAt(t testing.TB) map[model.Tuple]int {
	t.Helper()
	keys := map[model.Tuple]int{}
	var index uint32
	var set datapath.EdgeTCHalfOpenSet
	sets := w.maps[halfOpen].Iterate()
	for sets.Next(&index, &set) {
		if index == w.limits.halfOpenSets() { // the secret
			continue
		}
		for place, tag := range set.Tags {
			if tag&(1<<31) != 0 {
				t.Errorf("set %d: place %d is still claimed", index, place)
			}
			if tag != 0 {
				keys[modelTuple(set.Records[place].Key)]++
			}
		}
	}
	must(t, sets.Err())
	return keys
}

// Where a set is full the record goes that was seen longest ago: one that is seen again and
// again stays, and the flow that has just begun is there.
func TestHalfOpenSetIsFull(t *testing.T) {
	w := newWorld(t, limits{tracks: 16}) // one set
	w.apply(t, w.scene())
	w.each(t, func(t *testing.T, at hook, f family, protocol uint8) {
		fl := w.flow(t, at, f, protocol)
		asks := func(port uint16) model.Tuple {
			t.Helper()
			question := f.question(protocol, toRemote)
			question.from = on(f.client, port)
			if got := w.run(t, at, question.frame(t)); got.Action != model.ActionSend {
				t.Fatalf("the flow from port %d met %v", port, got.Action)
			}
			return model.Tuple{Source: f.client, Destination: f.vip, SourcePort: port, DestinationPort: toRemote, Protocol: protocol}
		}
		for n := range uint16(7) { // which have the other 14 places
			asks(20000 + n)
		}
		w.passHalfOpen(t, 1)
		fl.asks(t, syn)
		client := fl.tuple()
		for n := range uint16(100) {
			tuple := asks(21000 + n)
			records := w.records(t, halfOpen)
			if len(records) != 16 {
				t.Fatalf("%d records, want 16", len(records))
			}
			if _, ok := records[tuple]; !ok {
				t.Fatalf("flow %d has no record", n)
			}
			if _, ok := records[client]; n < 7 && !ok {
				t.Fatalf("after %d flows a record is gone that was seen later than others", n)
			}
		}
		for key, n := range w.keysAt(t) {
			if n > 1 {
				t.Errorf("%v is there %d times", key, n)
			}
		}
	})
}

// passHalfOpen has all half-open flows seen so many seconds earlier than they were.
func (w *world) passHalfOpen(t testing.TB, seconds uint32) {
	t.Helper()
	var index uint32
	var set datapath.EdgeTCHalfOpenSet
	sets := w.maps[halfOpen].Iterate()
	for sets.Next(&index, &set) {
		if index == w.limits.halfOpenSets() || set.Tags == [len(set.Tags)]uint32{} {
			continue
		}
		for i := range set.Records {
			set.Records[i].Track.LastSeen -= seconds
		}
		must(t, w.maps[halfOpen].Update(index, set, ebpf.UpdateExist))
	}
	must(t, sets.Err())
}

// Two flows that want one port at a backend of this node begin at the same moment on two
// CPUs: one has it, the other one another, and no key has two records.
func TestHalfOpenTwins(t *testing.T) {
	const flows = 3000
	// So many sets that none is ever full: the records are thrown at random, and a quarter of
	// the places would have one overflow in one run of four.
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
			t.Errorf("two flows became %v", became[0][n])
		}
	}
	records := w.records(t, halfOpen)
	for tuple, n := range w.keysAt(t) {
		if n > 1 {
			t.Errorf("%v is there %d times", tuple, n)
		}
	}
	if len(records) != 4*flows {
		t.Errorf("%d records of %d flows, want two for each", len(records), 2*flows)
	}
	for key, record := range records {
		if other, ok := records[record.Becomes.Reverse()]; !ok || other.Becomes.Reverse() != key {
			t.Errorf("%v becomes %v, whose answers become %v", key, record.Becomes, other.Becomes)
		}
	}
}
