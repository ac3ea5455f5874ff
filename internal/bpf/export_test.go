// SPDX-License-Identifier: Apache-2.0

package bpf

import "unsafe"

// Rank returns the rank in the owner of an eviction mark.
func Rank(owner uint32) uint32 { return uint32(MarkRank(owner)) }

// PrefilterSize is the size of the table of the prefilter.
const PrefilterSize = unsafe.Sizeof(EdgeTCPrefilter{})

// What tests of all components ask of tables and limits.
var (
	ConntrackTags = conntrackTags
	FlowsFor      = flowsFor
	NewOptions    = options
)

// MinFlows is the least of Limits.Flows.
const MinFlows = minFlows

func (t *Table) Pinned() bool { return t.pinned() }

func (t *Table) Size(l Limits) uint32 { return t.size(l) }

func (t *Table) LimitFor(size uint32) uint32 { return t.limitFor(size) }
