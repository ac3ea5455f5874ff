// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
)

// newHalfOpen is a table of so many sets with so many records.
func newHalfOpen(t *testing.T, sets, records uint32) (halfOpenFlows, map[Tuple]uint32) {
	t.Helper()
	spec, err := LoadEdgeTC()
	must(t, err)
	table := spec.Maps[EdgeTCMapHalfOpen]
	table.MaxEntries = sets + 1
	m, err := ebpf.NewMap(table)
	must(t, err)
	t.Cleanup(func() { m.Close() })
	h, all := halfOpenFlows{m: m}, map[Tuple]uint32{}
	must(t, HideHalfOpenSets(m))
	secret, unmap, err := h.secret()
	must(t, err)
	defer unmap()
	for n := range records {
		key := Tuple{SourcePort: uint16(n), Protocol: 6}
		var set halfOpenSet
		must(t, m.Lookup(h.index(secret, &key), &set))
		for place := range set.Tags {
			if set.Tags[place] == 0 {
				set.Tags[place] = halfOpenTag(tupleHash(&key))
				set.Records[place].Key, set.Records[place].Track = key, Track{LastSeen: n, Tag: tupleHash(&key)}
				all[key] = n
				break
			}
		}
		must(t, m.Put(h.index(secret, &key), &set))
	}
	return h, all
}

// Records keep what they hold when the table gets another size, and are found and deleted
// there, also by who walks through them.
func TestHalfOpenFlowsCopied(t *testing.T) {
	const records = 2000
	from, all := newHalfOpen(t, 1024, records) // of which no set is ever full
	if len(all) != records {
		t.Fatalf("%d records of %d have found room", len(all), records)
	}
	to, _ := newHalfOpen(t, 700, 0)
	must(t, copyTable(to.m, from.m))
	seen := 0
	must(t, to.Walk(func(key Tuple, track *Track) bool {
		seen++
		if n, ok := all[key]; !ok || n != track.LastSeen {
			t.Errorf("record %v holds %d, want %d (%v)", key, track.LastSeen, n, ok)
		}
		if track.LastSeen%2 == 0 {
			if existed, err := to.Delete(key); !existed || err != nil {
				t.Errorf("delete: %v, %v", existed, err)
			}
		}
		return true
	}))
	if seen != records {
		t.Errorf("%d records seen, want %d", seen, records)
	}
	for key, n := range all {
		if found, err := to.Get(key); err != nil || (found != nil) != (n%2 == 1) {
			t.Errorf("record %d: %+v, %v", n, found, err)
		}
		if existed, err := to.Delete(key); err != nil || existed != (n%2 == 1) {
			t.Errorf("delete record %d: %v, %v", n, existed, err)
		}
	}
}

// What one client opens, port by port, is spread over the sets by every secret, as if thrown at
// random: no set is full while a quarter of the places is taken.
func TestHalfOpenFlowsOfOneClientAreSpread(t *testing.T) {
	const sets, flows, secrets, seed = 64, 256, 3000, 1
	table, _ := newHalfOpen(t, sets, 0)
	random := rand.New(rand.NewPCG(seed, seed))
	for _, step := range []uint16{1, 2, 1 << 8} {
		full := 0
		for range secrets {
			var secret halfOpenSecret
			for i := range secret.Multipliers {
				secret.Multipliers[i] = random.Uint64()
			}
			var counts [sets]int
			for n := range uint16(flows) {
				counts[table.index(&secret, &Tuple{SourcePort: 1024 + n*step, DestinationPort: 80, Protocol: 6})]++
			}
			if slices.Max(counts[:]) > halfOpenPlaces {
				full++
			}
		}
		// One secret in 10,000 does it by chance.
		if full > 5 {
			t.Errorf("steps of %d ports: by %d of %d secrets a set is full", step, full, secrets)
		}
	}
}
