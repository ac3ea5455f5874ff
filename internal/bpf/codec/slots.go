// SPDX-License-Identifier: Apache-2.0

package codec

import "beeline.io/beeline/internal/bpf"

// HistoryWord encodes a frontend's memory of one slot: the backend of flows without an entry, 0 for none,
// and whether the slot is contested.
func HistoryWord(backend uint32, contested bool) uint32 {
	word := backend & uint32(bpf.HistoryBackend)
	if contested {
		word |= uint32(bpf.HistoryContested)
	}
	return word
}

// ParseHistoryWord is the inverse of HistoryWord.
func ParseHistoryWord(word uint32) (backend uint32, contested bool) {
	return word & uint32(bpf.HistoryBackend), word&uint32(bpf.HistoryContested) != 0
}

// Slots returns the content of a range of slots: IDs of backends, or history words. It omits the part that
// is beyond the table.
func Slots(t *bpf.Tables, r Range) []uint32 {
	if r.First >= t.Slots.Len() {
		return nil
	}
	words := make([]uint32, min(r.Count, t.Slots.Len()-r.First))
	for i := range words {
		words[i] = t.Slots.Load(r.First + uint32(i))
	}
	return words
}
