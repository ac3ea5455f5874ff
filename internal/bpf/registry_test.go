// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"

	"beeline.io/beeline/internal/bpf/settable"
)

// TestRegistryIsConsistent: each pinned table is in the first object of its component, which makes it, and
// has a copy rule that its type allows.
func TestRegistryIsConsistent(t *testing.T) {
	must(t, componentList(components(nil)).check())
	position := map[string]int{}
	for component, load := range map[*Component]func() (*ebpf.CollectionSpec, error){Socket(): LoadSock, edgeAt(): LoadEdgeTC} {
		spec, err := load()
		must(t, err)
		for i, table := range component.Tables {
			position[table.Name] = i
			m := spec.Maps[table.Name]
			switch {
			case !table.pinned() && table.Copy != nil:
				t.Errorf("%s is not pinned, and has a copy rule", table.Name)
			case !table.pinned():
			case m == nil:
				t.Errorf("%s: the object of component %s does not have it", table.Name, component.Name)
			case (m.Type == ebpf.SkStorage) != (table.Copy == nil):
				t.Errorf("%s: socket storage must have no copy rule, all others must have one", table.Name)
			case table.size(DefaultLimits) == 0 && m.MaxEntries == 1 && m.Type == ebpf.Hash:
				t.Errorf("%s: nothing sizes it", table.Name)
			}
		}
	}
	for entries, tags := range conntrackTags {
		if position[tags] < position[entries] {
			t.Errorf("%s must follow %s, whose copy it needs", tags, entries)
		}
	}
}

// TestComponentsThatCollide: components that would share a name or a pin are refused before anything is loaded. The
// kernel keeps 15 characters of a map's name, by which recoverTable finds the table.
func TestComponentsThatCollide(t *testing.T) {
	for want, added := range map[string]Component{
		"both have the name edge":           {Name: "edge"},
		`component "two-parts": a name has`: {Name: "two-parts"},
		"both have table frontends":         {Name: "other", Tables: []Table{{Name: SockMapFrontends}}},
		"both have table service_collect":   {Name: "other", Tables: []Table{{Name: "service_collects"}}},
		"both have hook connect4":           {Name: "other", CgroupHooks: []CgroupHook{{Name: "connect4"}}},
		`hook "in-out": a name has`:         {Name: "other", DeviceHooks: []DeviceHook{{Name: "in-out"}}},
		"other: Objects is nil":             {Name: "other"},
	} {
		if !strings.Contains(want, "Objects") {
			added.Objects = func(*Datapath) ([]*ebpf.CollectionSpec, error) { return nil, nil }
		}
		if _, err := Open(Options{BPFFS: "/nowhere", Components: append(components(nil), &added)}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// TestUndeclaredIsRefused: an object with a map or constant that is not declared is not loaded.
func TestUndeclaredIsRefused(t *testing.T) {
	d := mustOpen(t, options(t))
	spec, err := LoadSockGC()
	must(t, err)
	spec.Maps["unknown_map"] = &ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1}
	if err := d.LoadPrograms(spec); err == nil || !strings.Contains(err.Error(), "unknown_map of the BPF object is not declared") {
		t.Errorf("an undeclared map: %v", err)
	}
	if spec, err = LoadSockGC(); err != nil {
		t.Fatal(err)
	}
	spec.Variables["unknown_constant"] = &ebpf.VariableSpec{Name: "unknown_constant", SectionName: ".rodata", Value: []byte{0}}
	if err := d.LoadPrograms(spec); err == nil || !strings.Contains(err.Error(), "unknown_constant of the BPF object is not declared") {
		t.Errorf("an undeclared constant: %v", err)
	}
	if spec, err = LoadEdgeXDP(); err != nil {
		t.Fatal(err)
	}
	if err := d.LoadPrograms(spec); err == nil || !strings.Contains(err.Error(), "enable component edge") {
		t.Errorf("an object of the edge without the edge's tables: %v", err)
	}
}

// TestCopyRules: a resized pinned table that only the agent writes is copied by its rule. Ports of
// fragments and counters start empty.
func TestCopyRules(t *testing.T) {
	o := options(t)
	o.Components = components(&EdgeOptions{SNATPorts: []PortRange{{First: 2000, Last: 2999}}, LateXDP: true})
	mustOpen(t, o).Close()
	tests := map[string]bool{ // whether the entry stays
		EdgeTCMapEdgeDevices: true, EdgeTCMapServiceCollected: true, EdgeTCMapBalancers: true,
		EdgeTCMapFragments: false, EdgeTCMapServiceCounts: false, EdgeTCMapDsrChecks: false,
	}
	keys := map[string][]byte{}
	for name := range tests {
		keys[name] = pinHalf(t, TablePath(o.BPFFS, name))
	}
	d := mustOpen(t, o)
	for name, stays := range tests {
		value, err := d.maps[name].LookupBytes(keys[name]) // nil: there is none
		must(t, err)
		if (value != nil) != stays {
			t.Errorf("%s: the entry is there: %v, want %v", name, value != nil, stays)
		}
	}
	if len(d.resized) != len(tests) {
		t.Errorf("resized: %v, want %d tables", d.resized, len(tests))
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
		Name: truncated(filepath.Base(path)), Type: old.Type(), KeySize: old.KeySize(), ValueSize: old.ValueSize(), Flags: old.Flags(), MaxEntries: old.MaxEntries() / 2,
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
	o := options(t)
	o.Components = components(&EdgeOptions{SNATPorts: []PortRange{{First: 2000, Last: 2999}}, LateXDP: true})
	o.Limits.Flows = 1000
	d := mustOpen(t, o)
	table := NewConntrackSets(d.maps, EdgeTCMapConntrack)
	sets, err := table.Open()
	must(t, err)
	key := Tuple{SourcePort: 1, Protocol: 6}
	if !sets.Insert(&EdgeTCCtSlot{Key: key, Ct: ConntrackEntry{Tag: TupleHash(&key)}}, settable.Eviction{}) {
		t.Fatal("an empty table has no room")
	}
	must(t, sets.Close())
	staged := filepath.Join(o.BPFFS, newTables)
	must(t, os.Mkdir(staged, 0o700))
	must(t, pinCopy(table.Rows, filepath.Join(staged, EdgeTCMapConntrack))) // by an agent that was killed
	d.Close()
	o.Limits.Flows = 4000
	d = mustOpen(t, o)
	must(t, d.Attach())
	if got, want := d.maps[EdgeTCMapConntrack].MaxEntries(), assuredSets(4000); got != want {
		t.Errorf("%d sets, want %d", got, want)
	}
	if e, err := NewConntrackSets(d.maps, EdgeTCMapConntrack).Get(key); e == nil || err != nil {
		t.Errorf("the entry is %v, %v", e, err)
	}
}

// TestAffinityIsResized: another --max-affinity with only sockets keeps the clients that had a backend
// before, and those that have got one from the new hooks when an agent is killed in between.
func TestAffinityIsResized(t *testing.T) {
	o := options(t)
	o.Limits.Affinity = 1000
	d := mustOpen(t, o)
	must(t, d.Attach())
	add := func(client uint32) {
		t.Helper()
		sets, err := newAffinityTable(d.maps[SockMapAffinity], d.maps[SockMapTableSecret]).Open()
		must(t, err)
		tick := settable.Tick()
		if !sets.Insert(&AffinityEntry{Key: affinityKey(client), Backend: client}, settable.Eviction{Expires: tick + 1<<20, Owner: uint32(SockSetRankSET_RANK_UNASSURED)}) {
			t.Fatal("an empty table has no room")
		}
		must(t, sets.Close())
	}
	add(1)
	d.Close()
	o.Limits.Affinity = 4000
	d = mustOpen(t, o)
	must(t, d.follow(LastPass))
	must(t, d.attachHooks())
	add(2)
	d.Close()
	d = mustOpen(t, o)
	must(t, d.Attach())
	if got, want := d.maps[SockMapAffinity].MaxEntries(), affinitySets(4000); got != want {
		t.Errorf("%d sets, want %d", got, want)
	}
	for client := range uint32(3) {
		e, err := AffinityOf(d.maps).Get(affinityKey(client))
		must(t, err)
		if (e != nil) != (client != 0) {
			t.Errorf("client %d has %+v", client, e)
		}
	}
}

// TestFlagsOfASize: an error names the flags for tables whose size was being changed: with those values all tables have
// the size that they had with the original ones.
func TestFlagsOfASize(t *testing.T) {
	all := componentList{Socket(), edgeAt()}.tables()
	for _, flows := range []uint32{minFlows, 1000, 4097, 16384, 65535, 131073, 262144, 999983, 3000001} {
		for _, affinity := range []uint32{1, 1000, 65536, 70001} {
			given := Limits{Flows: flows, Affinity: affinity}
			var named Limits
			for _, table := range all {
				if table.Follow != nil && table.Limit != nil {
					limit := table.Limit.In(&named)
					*limit = max(*limit, table.limitFor(table.size(given)))
				}
			}
			for _, table := range all {
				if table.Limit != nil && table.Follow != nil && table.size(named) != table.size(given) {
					t.Errorf("%s has size %d with %+v and %d with %+v", table.Name, table.size(given), given, table.size(named), named)
				}
			}
		}
	}
}
