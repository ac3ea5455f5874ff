// SPDX-License-Identifier: Apache-2.0

package datapath

import "unsafe"

// TupleHash is what bpf/ computes alike, for the comparison with it.
var TupleHash = tupleHash

// Rank is the rank in the owner of an eviction mark.
func Rank(owner uint32) uint32 { return uint32(markRank(owner)) }

// PrefilterSize is the size of the table of the prefilter.
const PrefilterSize = unsafe.Sizeof(EdgeTCPrefilter{})
