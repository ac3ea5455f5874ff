// SPDX-License-Identifier: Apache-2.0

package datapath

import "unsafe"

// Functions that bpf/ has, too, for comparison.
var (
	TupleHash   = tupleHash
	SetFirst    = setFirst
	SetSecond   = setSecond
	SetTag      = setTag
	MarkExpired = markExpired
)

// Rank returns the rank in the owner of an eviction mark.
func Rank(owner uint32) uint32 { return uint32(markRank(owner)) }

// KeySum returns the sum of a key by the secret of a table.
func KeySum[K any](secret SockSetSecret, key *K) uint64 { return keySum(&secret, key) }

// PrefilterSize is the size of the table of the prefilter.
const PrefilterSize = unsafe.Sizeof(EdgeTCPrefilter{})
