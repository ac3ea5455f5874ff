// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"testing"

	"github.com/cilium/ebpf"
)

// newFlowTable is a table of records in the kernel, half of them replies.
func newFlowTable(t testing.TB, limit, records uint32) kernelFlows {
	t.Helper()
	spec, err := LoadEdgeTC()
	if err != nil {
		t.Fatal(err)
	}
	tracks := spec.Maps[EdgeTCMapTracks]
	tracks.MaxEntries = limit
	m, err := ebpf.NewMap(tracks)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	keys, values := make([]Tuple, records), make([]Track, records)
	for i := range keys {
		keys[i].SourcePort, keys[i].DestinationPort = uint16(i), uint16(i>>16)
		values[i].LastSeen = uint32(i)
	}
	if _, err := m.BatchUpdate(keys, values, nil); err != nil {
		t.Fatal(err)
	}
	return kernelFlows{kernelHash[Tuple, Track]{EdgeTCMapTracks, m}, nil}
}

// A walk comes by every record once with what it holds, also where it deletes
// those that it sees; and records are found and deleted one by one.
func TestFlowTable(t *testing.T) {
	const records = 10000
	k := newFlowTable(t, 4*records, records)
	seen := map[Tuple]bool{}
	err := k.Walk(func(key Tuple, track *Track) bool {
		if n := uint32(key.SourcePort) | uint32(key.DestinationPort)<<16; track.LastSeen != n || seen[key] {
			t.Fatalf("record %d holds %d; seen before: %v", n, track.LastSeen, seen[key])
		}
		seen[key] = true
		if track.LastSeen%2 == 0 {
			if existed, err := k.Delete(key); !existed || err != nil {
				t.Fatalf("delete: %v, %v", existed, err)
			}
		}
		return true
	})
	if err != nil || len(seen) != records {
		t.Fatalf("%d records of %d, %v", len(seen), records, err)
	}
	for key := range seen {
		found, err := k.Get(key)
		if odd := key.SourcePort%2 == 1; err != nil || (found != nil) != odd {
			t.Fatalf("record %d: %+v, %v", key.SourcePort, found, err)
		}
	}
	if existed, err := k.Delete(Tuple{}); existed || err != nil {
		t.Errorf("a record that is not there was deleted: %v, %v", existed, err)
	}
	n := 0
	if err := k.Walk(func(Tuple, *Track) bool { n++; return n < 3 }); err != nil || n != 3 {
		t.Errorf("a walk that is to end after 3 records ended after %d, %v", n, err)
	}
}

// BenchmarkWalk is a sweep of the default's number of records of which none is over.
func BenchmarkWalk(b *testing.B) {
	k := newFlowTable(b, mostFlows*5/4, mostFlows)
	for b.Loop() {
		n := 0
		if err := k.Walk(func(Tuple, *Track) bool { n++; return true }); err != nil {
			b.Fatal(err)
		}
		if n != mostFlows {
			b.Fatalf("%d records of %d", n, mostFlows)
		}
	}
}

func BenchmarkWalkOfNothing(b *testing.B) {
	k := newFlowTable(b, mostFlows, 1)
	for b.Loop() {
		if err := k.Walk(func(Tuple, *Track) bool { return true }); err != nil {
			b.Fatal(err)
		}
	}
}
