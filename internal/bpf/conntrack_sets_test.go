// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cilium/ebpf"

	"beeline.io/beeline/internal/bpf/settable"
)

// newConntrack makes a table with a number of sets and entries, with or without spilling. It returns the
// entries that found room.
func newConntrack(t testing.TB, name string, sets, entries uint32, secret *ebpf.Map) (*ConntrackSets, map[Tuple]uint32) {
	t.Helper()
	spec, err := LoadEdgeTC()
	must(t, err)
	if secret == nil {
		secret, err = ebpf.NewMap(spec.Maps[EdgeTCMapTableSecret])
		must(t, err)
		t.Cleanup(func() { secret.Close() })
		must(t, settable.InitSecret(secret))
	}
	tables := map[string]*ebpf.Map{EdgeTCMapTableSecret: secret}
	for _, name := range []string{name, name + "_tags"} {
		table := spec.Maps[name]
		table.MaxEntries = sets
		m, err := ebpf.NewMap(table)
		must(t, err)
		t.Cleanup(func() { m.Close() })
		tables[name] = m
	}
	c, all := NewConntrackSets(tables, name), map[Tuple]uint32{}
	open, err := c.Open()
	must(t, err)
	for n := range entries {
		key := Tuple{SourcePort: uint16(n), DestinationPort: uint16(n >> 16), Protocol: 6}
		if open.Insert(&EdgeTCCtSlot{Key: key, Ct: ConntrackEntry{LastSeen: n, Tag: TupleHash(&key)}}, settable.Eviction{Expires: n}) {
			all[key] = n
		}
	}
	must(t, open.Close())
	return c, all
}

func anyEntry(*ConntrackSlot) bool { return true }

// After a change of the table's size entries are unchanged, and are found and deleted, also during a walk.
// They are so few that with only one secret in ten million a set overflows. In a table that spills half of
// the places may be used: without spilling one set in 250 would overflow.
func TestConntrackCopied(t *testing.T) {
	for _, c := range []struct {
		name          string
		sets, entries uint32
	}{{EdgeTCMapUnreplied, 512, 1000}, {EdgeTCMapConntrack, 512, 512 * 6}} {
		t.Run(c.name, func(t *testing.T) {
			from, all := newConntrack(t, c.name, c.sets, c.entries, nil)
			if len(all) != int(c.entries) {
				t.Fatalf("%d entries of %d have found room", len(all), c.entries)
			}
			to, _ := newConntrack(t, c.name, c.sets+188, 0, from.Secret)
			copies, err := to.Open()
			must(t, err)
			must(t, from.Walk(func(e *ConntrackSlot) bool { return copies.Insert(e, settable.Eviction{}) }))
			must(t, copies.Close())
			seen := map[Tuple]bool{}
			must(t, to.Walk(func(e *ConntrackSlot) bool {
				key, track := e.Key, &e.Ct
				if n, ok := all[key]; !ok || n != track.LastSeen || seen[key] {
					t.Errorf("entry %v holds %d, want %d (%v); seen before: %v", key, track.LastSeen, n, ok, seen[key])
				}
				seen[key] = true
				if track.LastSeen%2 == 0 {
					if removed, err := to.Remove(key, anyEntry); removed == nil || err != nil {
						t.Errorf("delete: %v, %v", removed, err)
					}
				}
				return true
			}))
			if len(seen) != int(c.entries) {
				t.Errorf("%d entries seen, want %d", len(seen), c.entries)
			}
			for key, n := range all {
				if found, err := to.Get(key); err != nil || (found != nil) != (n%2 == 1) {
					t.Errorf("entry %d: %+v, %v", n, found, err)
				}
				if removed, err := to.Remove(key, anyEntry); err != nil || (removed != nil) != (n%2 == 1) {
					t.Errorf("delete entry %d: %v, %v", n, removed, err)
				}
			}
			n := 0
			must(t, from.Walk(func(*ConntrackSlot) bool { n++; return n < 3 }))
			if n != 3 {
				t.Errorf("a walk that should end after 3 entries ended after %d", n)
			}
		})
	}
}

// The flows of one client, from consecutive ports, are spread over the sets by every secret as if at
// random: no set is full while a quarter of the places is used.
func TestConntrackOfOneClientIsSpread(t *testing.T) {
	const sets, flows, secrets, seed = 64, 240, 3000, 1
	random := rand.New(rand.NewPCG(seed, seed))
	for _, step := range []uint16{1, 2, 1 << 8} {
		for _, index := range []func(uint64, uint32) uint32{settable.First, settable.Second} {
			full := 0
			for range secrets {
				var secret settable.Secret
				for i := range secret.Multipliers {
					secret.Multipliers[i] = random.Uint64()
				}
				var counts [sets]int
				for n := range uint16(flows) {
					counts[index(settable.KeySum(&secret, &Tuple{SourcePort: 1024 + n*step, DestinationPort: 80, Protocol: 6}), sets)]++
				}
				if slices.Max(counts[:]) > settable.Places {
					full++
				}
			}
			// With one secret in 10,000 it happens by chance.
			if full > 5 {
				t.Errorf("steps of %d ports: by %d of %d secrets a set is full", step, full, secrets)
			}
		}
	}
}

// BenchmarkWalk is a GC pass with the default number of entries, none of them expired.
func BenchmarkWalk(b *testing.B) {
	const flows = 262144
	c, all := newConntrack(b, EdgeTCMapConntrack, conntrackSets(flows*5/4), flows, nil)
	for b.Loop() {
		n := 0
		must(b, c.Walk(func(*ConntrackSlot) bool { n++; return true }))
		if n != len(all) {
			b.Fatalf("%d entries of %d", n, len(all))
		}
	}
}
