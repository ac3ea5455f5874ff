// SPDX-License-Identifier: Apache-2.0

package datapath

import "unsafe"

// What bpf/ computes alike, for the comparison with it.
var (
	TupleHash   = tupleHash
	SetFirst    = setFirst
	SetSecond   = setSecond
	SetTag      = setTag
	MarkExpired = markExpired
)

// Rank is the rank in the owner of an eviction mark.
func Rank(owner uint32) uint32 { return uint32(markRank(owner)) }

// KeySum is the sum of a key by the secret of a table.
func KeySum[K any](secret SockSetSecret, key *K) uint64 { return keySum(&secret, key) }

// PrefilterSize is the size of the table of the prefilter.
const PrefilterSize = unsafe.Sizeof(EdgeTCPrefilter{})
