// SPDX-License-Identifier: Apache-2.0

package bpf

import "encoding/binary"

// UntrackedEnds tells which packets may be for a frontend with FlagUntracked or FlagHistory, and whether
// programs' cached results of the index are valid (struct untracked_filter).
type UntrackedEnds struct{ SockUntrackedFilter }

// place returns the location of a frontend's bit, like endpoint_hash in bpf/dsr/stateless.h.
func (UntrackedEnds) place(k FrontendKey) (word, bit uint32) {
	var hash uint32
	for i := 0; i < len(k.Address.Bytes); i += 4 {
		hash ^= binary.NativeEndian.Uint32(k.Address.Bytes[i:])
	}
	hash = (hash + uint32(k.Port)) * 0x9e3779b1
	return hash >> 29, hash >> 23 & 63
}

// Add makes programs look up packets for a frontend.
func (u *UntrackedEnds) Add(k FrontendKey) {
	word, bit := u.place(k)
	u.Bits[word] |= 1 << bit
}

// Has reports whether packets for a frontend are looked up.
func (u UntrackedEnds) Has(k FrontendKey) bool {
	word, bit := u.place(k)
	return u.Bits[word]>>bit&1 != 0
}

// Any reports whether packets for any frontend are.
func (u UntrackedEnds) Any() bool { return u.Bits != UntrackedEnds{}.Bits }
