// SPDX-License-Identifier: Apache-2.0

package model

import (
	"encoding/binary"
)

// choose returns the client's previous backend, or one by the hash.
func (v *visit) choose(f Frontend, slots []uint32, hash uint32) uint32 {
	key := AffinityKey{v.tuple.Source, f.Service}
	chosen := slots[uint64(hash)*uint64(len(slots))>>32]
	if f.AffinitySeconds == 0 {
		return chosen
	}
	entry, ok := v.Affinity[key]
	if ok && v.Now-entry.LastUsed <= f.AffinitySeconds {
		for _, id := range slots {
			if id == entry.Backend {
				chosen = id
			}
		}
	}
	v.Affinity[key] = Affinity{chosen, v.Now}
	return chosen
}

// port finds a port at which no other flow expects the backend's replies: a free one, or this flow's own, whose
// other entry still exists. The current port is tried first if it may be kept. For SCTP it is the only one.
func (v *visit) port(track *Track, hash uint32, keep bool) (other *Track, half, ok bool) {
	total := uint32(v.Ports[0][1]) + uint32(v.Ports[1][1])
	attempts := uint32(64)
	if v.tuple.Protocol == SCTP {
		attempts, keep = 1, true
	}
	nothing := v.isInvalid(track)
	if nothing {
		attempts = min(attempts, 8)
	}
	for attempt := range attempts {
		n := mix(mix(hash, attempt), 0) % total
		if keep && attempt == 0 {
			n = 0 // the client's own port
		} else if n < uint32(v.Ports[0][1]) {
			track.Becomes.SourcePort = v.Ports[0][0] + uint16(n)
		} else {
			track.Becomes.SourcePort = v.Ports[1][0] + uint16(n-uint32(v.Ports[0][1]))
		}
		taken, half := v.Edge.find(track.Becomes.Reverse())
		if taken != nil && taken.State == StateClosed && v.tuple.Protocol == SCTP && !nothing && taken.Becomes.Reverse() != v.tuple {
			v.evict(track.Becomes.Reverse(), taken)
			taken = nil
		}
		if taken == nil && !nothing || taken != nil && taken.Becomes.Reverse() == v.tuple {
			return taken, half, true
		}
	}
	return nil, false, false
}

// Hash determines a flow's choices.
func Hash(t Tuple) uint32 {
	source, destination := t.Source.As16(), t.Destination.As16()
	b := append(source[:], destination[:]...)
	b = binary.BigEndian.AppendUint16(b, t.SourcePort)
	b = binary.BigEndian.AppendUint16(b, t.DestinationPort)
	b = append(b, t.Protocol, 0, 0, 0)
	var hash uint64
	for i, by := range []uint64{0x9e3779b97f4a7c15, 0xd6e8feb86659fd93, 0xc2b2ae3d27d4eb4f, 0xff51afd7ed558ccd, 0xa0761d6478bd642f} {
		hash ^= binary.LittleEndian.Uint64(b[8*i:]) * by
	}
	hash = (hash ^ hash>>32) * 0x9e3779b97f4a7c15
	return uint32((hash ^ hash>>29) * 0xd6e8feb86659fd93 >> 32)
}

func mix(hash, word uint32) uint32 {
	hash = (hash ^ word) * 0x9e3779b1
	return hash ^ hash>>15
}
