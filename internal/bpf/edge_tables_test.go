// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/cilium/ebpf"

	"beeline.io/beeline/internal/bpf/settable"
)

// TestCopyRules: a resized pinned table that only the agent writes is copied by its rule. Ports of
// fragments and counters start empty.
func TestCopyRules(t *testing.T) {
	w := newEdgeWorld(t)
	w.edge.LateXDP = true
	w.open().Close()
	tests := map[string]bool{ // whether the entry stays
		EdgeTCMapEdgeDevices: true, EdgeTCMapServiceCollected: true, EdgeTCMapBalancers: true,
		EdgeTCMapFragments: false, EdgeTCMapServiceCounts: false, EdgeTCMapDsrChecks: false,
	}
	keys := map[string][]byte{}
	for name := range tests {
		keys[name] = pinHalf(t, TablePath(w.options.BPFFS, name))
	}
	d := w.open()
	for name, stays := range tests {
		value, err := d.Map(name).LookupBytes(keys[name]) // nil: there is none
		must(t, err)
		if (value != nil) != stays {
			t.Errorf("%s: the entry is there: %v, want %v", name, value != nil, stays)
		}
	}
	resized, err := filepath.Glob(TablePath(w.options.BPFFS, "*_new"))
	if len(resized) != len(tests) || err != nil {
		t.Errorf("resized: %v, want %d tables; %v", resized, len(tests), err)
	}
}

// pinHalf replaces a pinned table by one of half its size with one entry, and returns the key of the entry.
func pinHalf(t *testing.T, path string) (key []byte) {
	t.Helper()
	old, err := ebpf.LoadPinnedMap(path, nil)
	must(t, err)
	defer old.Close()
	must(t, os.Remove(path))
	m, err := ebpf.NewMap(&ebpf.MapSpec{
		Name: filepath.Base(path)[:min(15, len(filepath.Base(path)))], Type: old.Type(), KeySize: old.KeySize(), ValueSize: old.ValueSize(), Flags: old.Flags(), MaxEntries: old.MaxEntries() / 2,
	})
	must(t, err)
	defer m.Close()
	key = make([]byte, m.KeySize())
	key[0] = 32 // of a longest-prefix table: the prefix's length
	value := make([]byte, m.ValueSize())
	if m.Type() == ebpf.PerCPUHash {
		must(t, m.Put(key, slices.Repeat([][]byte{value}, ebpf.MustPossibleCPU())))
	} else {
		must(t, m.Put(key, value))
	}
	must(t, m.Pin(path))
	return key
}

// TestConntrackIsResized: another --max-flows copies the entries of assured flows together with their tags.
func TestConntrackIsResized(t *testing.T) {
	w := newEdgeWorld(t)
	w.edge.LateXDP = true
	w.options.Limits.Flows = 1000
	d := w.open()
	table := NewConntrackSets(d.ConntrackMaps(), EdgeTCMapConntrack)
	sets, err := table.Open()
	must(t, err)
	key := Tuple{SourcePort: 1, Protocol: 6}
	if !sets.Insert(&EdgeTCCtSlot{Key: key, Ct: ConntrackEntry{Tag: TupleHash(&key)}}, settable.Eviction{}) {
		t.Fatal("an empty table has no room")
	}
	must(t, sets.Close())
	staged := filepath.Join(w.options.BPFFS, "tables_new")
	must(t, os.Mkdir(staged, 0o700))
	rows, err := table.Rows.Clone() // of an agent that was killed
	must(t, err)
	must(t, errors.Join(rows.Pin(filepath.Join(staged, EdgeTCMapConntrack)), rows.Close()))
	d.Close()
	w.options.Limits.Flows = 4000
	d = w.open()
	w.do(d.Attach)
	if got, want := d.Map(EdgeTCMapConntrack).MaxEntries(), assuredSets(4000); got != want {
		t.Errorf("%d sets, want %d", got, want)
	}
	if e, err := NewConntrackSets(d.ConntrackMaps(), EdgeTCMapConntrack).Get(key); e == nil || err != nil {
		t.Errorf("the entry is %v, %v", e, err)
	}
}
