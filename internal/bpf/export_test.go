// SPDX-License-Identifier: Apache-2.0

package bpf

import "unsafe"

// Rank returns the rank in the owner of an eviction mark.
func Rank(owner uint32) uint32 { return uint32(MarkRank(owner)) }

// PrefilterSize is the size of the table of the prefilter.
const PrefilterSize = unsafe.Sizeof(EdgeTCPrefilter{})
