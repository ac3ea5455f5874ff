// SPDX-License-Identifier: Apache-2.0

package offload

import (
	"errors"
	"maps"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/bpf/settable"
)

// smallCache returns a cache with one set in tables without programs.
func smallCache(t *testing.T) *cacheTable {
	t.Helper()
	if err := rlimit.RemoveMemlock(); err != nil {
		t.Fatal(err)
	}
	spec, err := bpf.LoadOffload()
	if err != nil {
		t.Fatal(err)
	}
	table := func(name string) *ebpf.Map {
		m, err := ebpf.NewMap(spec.Maps[name])
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { m.Close() })
		return m
	}
	tables := &Tables{
		Flows: table(bpf.OffloadMapOffloadFlows), Tags: table(bpf.OffloadMapOffloadTags), Controls: table(bpf.OffloadMapOffloadControls),
	}
	for i := range tables.Secret.Multipliers { // with 0 all entries have one tag
		tables.Secret.Multipliers[i] = 0x9e3779b97f4a7c15 * uint64(i+1)
	}
	return newCacheTable(tables, func() error { return nil })
}

// entry is one of an active flow that was seen some ticks ago.
func entry(port uint16, ago uint32) *Entry {
	e := &Entry{State: stateActive, LastSeen: settable.Tick() - ago}
	e.Key.Tuple.SourcePort = port
	return e
}

// TestFullCache: a flow whose set is full takes the place of one without packets, the quietest, and not before all
// programs have ended that may use its entry. Flows with packets keep their places, also with a new agent.
func TestFullCache(t *testing.T) {
	c := smallCache(t)
	for i := range uint16(settable.Places) {
		ago := uint32(0)
		if i == 3 || i == 7 {
			ago = 10*quietTime + uint32(i)
		}
		if err := c.add(entry(i, ago)); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 { // the second finds that there will be a place
		if err := c.add(entry(100, 0)); !errors.Is(err, errFull) {
			t.Fatalf("added to a full set: %v", err)
		}
	}
	if c.get(entry(7, 0).Key) != nil || c.get(entry(3, 0).Key) == nil || len(c.places) != settable.Places-1 {
		t.Fatalf("of the quiet flows 3 and 7, of which 7 is the quieter one, %d of %d are left", len(c.places), settable.Places)
	}
	ended := 0
	if err := c.remove(nil, func(e *Entry) { ended++ }); err != nil || ended != 1 {
		t.Fatalf("%d flows have ended (%v); want 1", ended, err)
	}
	if err := c.add(entry(100, 0)); err != nil {
		t.Fatal(err)
	}
	restored := &cacheTable{flows: c.flows, tags: c.tags, places: map[Key]place{}}
	restored.restore()
	if !maps.Equal(restored.places, c.places) {
		t.Fatalf("a new agent finds %d flows; want %d", len(restored.places), len(c.places))
	}
}

// TestFullCacheOfFlowsWithPackets: no flow that has packets gives up its place.
func TestFullCacheOfFlowsWithPackets(t *testing.T) {
	c := smallCache(t)
	for i := range uint16(settable.Places) {
		if err := c.add(entry(i, quietTime/4)); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.add(entry(100, 0)); !errors.Is(err, errFull) || len(c.places) != settable.Places {
		t.Errorf("%v, %d of %d flows are left", err, len(c.places), settable.Places)
	}
}
