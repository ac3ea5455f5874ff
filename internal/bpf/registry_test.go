// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"strings"
	"testing"

	"github.com/cilium/ebpf"

	"beeline.io/beeline/internal/bpf/settable"
)

// TestComponentsThatCollide: components that would share a name or a pin are refused before anything is loaded. The
// kernel keeps 15 characters of a map's name, by which recoverTable finds the table.
func TestComponentsThatCollide(t *testing.T) {
	for want, added := range map[string]Component{
		"both have the name socket":         {Name: "socket"},
		`component "two-parts": a name has`: {Name: "two-parts"},
		"both have table frontends":         {Name: "other", Tables: []Table{{Name: SockMapFrontends}}},
		"both have table untracked_front":   {Name: "other", Tables: []Table{{Name: "untracked_fronts"}}},
		"both have hook connect4":           {Name: "other", CgroupHooks: []CgroupHook{{Name: "connect4"}}},
		`hook "in-out": a name has`:         {Name: "other", DeviceHooks: []DeviceHook{{Name: "in-out"}}},
		"other: Objects is nil":             {Name: "other"},
	} {
		if !strings.Contains(want, "Objects") {
			added.Objects = func(*Datapath) ([]*ebpf.CollectionSpec, error) { return nil, nil }
		}
		if _, err := Open(Options{BPFFS: "/nowhere", Components: []*Component{Socket(), &added}}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// TestUndeclaredIsRefused: an object with a map or constant that is not declared is not loaded.
func TestUndeclaredIsRefused(t *testing.T) {
	o := options(t)
	other := Component{Name: "other", Objects: func(*Datapath) ([]*ebpf.CollectionSpec, error) { return nil, nil }}
	tables, err := LoadSockStats()
	must(t, err)
	for name := range tables.Maps {
		if (componentList{Socket()}).table(name) == nil {
			other.Tables = append(other.Tables, Table{Name: name})
		}
	}
	o.Components = append(o.Components, &other)
	d := mustOpen(t, o)
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
	if err := d.LoadPrograms(tables); err == nil || !strings.Contains(err.Error(), "enable component other") {
		t.Errorf("an object without the tables of its component: %v", err)
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
