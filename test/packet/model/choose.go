// SPDX-License-Identifier: Apache-2.0

package model

import (
	"encoding/binary"
	"math/bits"
)

// choose is the client's backend of before, or one by the hash.
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

// port finds a port of which no other flow has the backend's answers: free, or this
// flow's already, of which there is the other record then. The one that is there comes
// first if it may be kept. For SCTP it is the only one.
func (v *visit) port(track *Track, hash uint32, keep bool) (other *Track, half, ok bool) {
	total := uint32(v.Ports[0][1]) + uint32(v.Ports[1][1])
	attempts := uint32(64)
	if v.tuple.Protocol == SCTP {
		attempts, keep = 1, true
	}
	for attempt := range attempts {
		n := mix(mix(hash, attempt), 0) % total
		if keep && attempt == 0 {
			n = 0 // as the client has it
		} else if n < uint32(v.Ports[0][1]) {
			track.Becomes.SourcePort = v.Ports[0][0] + uint16(n)
		} else {
			track.Becomes.SourcePort = v.Ports[1][0] + uint16(n-uint32(v.Ports[0][1]))
		}
		taken, half := v.Edge.find(track.Becomes.Reverse())
		if taken == nil || taken.Becomes.Reverse() == v.tuple {
			return taken, half, true
		}
	}
	return nil, false, false
}

// Hash is what a flow's choices follow from.
func Hash(t Tuple) uint32 {
	source, destination := t.Source.As16(), t.Destination.As16()
	b := append(source[:], destination[:]...)
	b = binary.BigEndian.AppendUint16(b, t.SourcePort)
	b = binary.BigEndian.AppendUint16(b, t.DestinationPort)
	b = append(b, t.Protocol, 0, 0, 0)
	hash := uint32(0x811c9dc5)
	for i := 0; i < len(b); i += 4 {
		hash = mix(hash, bits.ReverseBytes32(binary.BigEndian.Uint32(b[i:])))
	}
	return mix(hash, hash>>16)
}

func mix(hash, word uint32) uint32 {
	hash = (hash ^ word) * 0x9e3779b1
	return hash ^ hash>>15
}
