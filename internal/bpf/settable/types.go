// SPDX-License-Identifier: Apache-2.0

// Package settable reads and writes the set-associative tables that programs maintain (bpf/set_table/set_table.h),
// in the memory of their maps. It knows neither their keys nor their entries.
package settable

import "structs"

// The layout of bpf/set_table/types.h. Package datapath compares it with the generated types.

const (
	// Places is how many entries a set has.
	Places = 15
	// Claimed is the bit SET_CLAIMED of a tag: the entry of the place is being written.
	Claimed = uint32(1) << 31
	// Mix is the multiplier of the sum of a key.
	Mix = uint64(0x9e3779b97f4a7c15)
)

// SetTags are the tags of a set.
type SetTags struct {
	_       structs.HostLayout
	Tags    [Places]uint32
	Spilled uint32 // not 0: entries that belong here may be in their other set
}

// Eviction is the eviction mark of an entry.
type Eviction struct {
	_       structs.HostLayout
	Expires uint32 // tick at which the entry expires
	Owner   uint32
}

// Evictions are the marks of a set.
type Evictions struct {
	_         structs.HostLayout
	Evictions [Places]Eviction
	Reserved  uint64
}

// Secret has the secret multipliers of the words of a key.
type Secret struct {
	_           structs.HostLayout
	Multipliers [10]uint64
}

// The rank of an entry is in the low bits of the owner in its mark, the Service's ID in the others. Entries of a
// high rank are evicted first.
const (
	RankBits    = 3
	RankClosing = 2
	RankClosed  = 4
)
