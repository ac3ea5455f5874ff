// SPDX-License-Identifier: Apache-2.0

package kubeevent

import (
	"crypto/sha256"
	"encoding/binary"
	"iter"
	"slices"
)

// reporters is the number of nodes that report what all nodes find. One of them may be down.
const reporters = 2

// share is the part of all objects that one node reports, on a ring of hashes: those after the node's
// predecessors up to the node itself. The zero share is everything.
type share struct{ after, upTo uint64 }

// shareOf returns the share of a node among all. A node that is not among them, or with few others, reports
// everything.
func shareOf(node string, all iter.Seq[string]) share {
	var ring []uint64
	for name := range all {
		ring = append(ring, hash(name))
	}
	slices.Sort(ring)
	at, found := slices.BinarySearch(ring, hash(node))
	if !found || len(ring) <= reporters {
		return share{}
	}
	return share{ring[(at+len(ring)-reporters)%len(ring)], ring[at]}
}

// has reports whether the node reports an object.
func (s share) has(object string) bool {
	h := hash(object)
	if s.after < s.upTo {
		return h > s.after && h <= s.upTo
	}
	return s == share{} || h > s.after || h <= s.upTo
}

func hash(text string) uint64 {
	sum := sha256.Sum256([]byte(text))
	return binary.BigEndian.Uint64(sum[:])
}
