// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"unsafe"

	"github.com/cilium/ebpf"

	"beeline.io/beeline/internal/bpf/settable"
)

// ConntrackSlot is a conntrack entry with its key, as a set holds it.
type ConntrackSlot = EdgeTCCtSlot

// ConntrackSets is a table of conntrack entries in memory (bpf/conntrack/table.h).
type ConntrackSets = settable.Table[Tuple, ConntrackSlot]

// The compiler compares the layout with that of the programs.
var (
	_ [unsafe.Sizeof(EdgeTCCtSet{})]byte           = [unsafe.Sizeof(settable.Row[ConntrackSlot]{})]byte{}
	_ [unsafe.Offsetof(EdgeTCCtSet{}.Entries)]byte = [unsafe.Offsetof(settable.Row[ConntrackSlot]{}.Entries)]byte{}
)

// conntrackTags are the maps of tags, by the maps of entries that they belong to.
var conntrackTags = map[string]string{
	EdgeTCMapConntrack: EdgeTCMapConntrackTags,
	EdgeTCMapUnreplied: EdgeTCMapUnrepliedTags,
}

// ConntrackTableNames returns the names of the maps of conntrack entries, and of those needed to look one
// up.
func ConntrackTableNames() []string {
	return []string{EdgeTCMapConntrack, EdgeTCMapConntrackTags, EdgeTCMapUnreplied, EdgeTCMapUnrepliedTags, EdgeTCMapTableSecret}
}

// NewConntrackSets returns a table by the name of its entries' map: EdgeTCMapConntrack or
// EdgeTCMapUnreplied.
func NewConntrackSets(maps map[string]*ebpf.Map, name string) *ConntrackSets {
	return newConntrackSets(name, settable.Maps{Rows: maps[name], Tags: maps[conntrackTags[name]]}, maps[EdgeTCMapTableSecret])
}

func newConntrackSets(name string, m settable.Maps, secret *ebpf.Map) *ConntrackSets {
	return &ConntrackSets{
		Maps: m, Secret: secret, Spills: name == EdgeTCMapConntrack,
		Key:   func(e *ConntrackSlot) *Tuple { return &e.Key },
		Tag:   func(key *Tuple, _ uint64) uint32 { return settable.Tag(TupleHash(key)) },
		Whole: func(e *ConntrackSlot) bool { return e.Ct.Tag == TupleHash(&e.Key) },
		TagOf: func(e *ConntrackSlot) *uint32 { return &e.Ct.Tag },
	}
}

// TupleHash returns the hash of bpf/packet/tuple.h. The tag of an entry is the hash of its key.
func TupleHash(t *Tuple) uint32 {
	words := (*[unsafe.Sizeof(Tuple{}) / 8]uint64)(unsafe.Pointer(t))
	hash := words[0]*0x9e3779b97f4a7c15 ^ words[1]*0xd6e8feb86659fd93 ^ words[2]*0xc2b2ae3d27d4eb4f ^
		words[3]*0xff51afd7ed558ccd ^ words[4]*0xa0761d6478bd642f
	hash = (hash ^ hash>>32) * 0x9e3779b97f4a7c15
	return uint32((hash ^ hash>>29) * 0xd6e8feb86659fd93 >> 32)
}

// ConntrackMaps returns the maps of the conntrack tables by their names; empty if there is no edge.
func (d *Datapath) ConntrackMaps() map[string]*ebpf.Map {
	maps := map[string]*ebpf.Map{}
	for _, name := range append(ConntrackTableNames(), EdgeTCMapServiceCollected) {
		if m := d.maps[name]; m != nil {
			maps[name] = m
		}
	}
	return maps
}
