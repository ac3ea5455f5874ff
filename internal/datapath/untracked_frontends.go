// SPDX-License-Identifier: Apache-2.0

package datapath

import "encoding/binary"

// UntrackedEnds says which packets may be for a frontend with FlagUntracked or FlagHistory, and
// whether what programs remember of the index holds (struct untracked_filter).
type UntrackedEnds struct{ SockUntrackedFilter }

// place is where a frontend's bit stands, as endpoint_hash in bpf/dsr/stateless.h has it.
func (UntrackedEnds) place(k FrontendKey) (word, bit uint32) {
	var hash uint32
	for i := 0; i < len(k.Address.Bytes); i += 4 {
		hash ^= binary.NativeEndian.Uint32(k.Address.Bytes[i:])
	}
	hash = (hash + uint32(k.Port)) * 0x9e3779b1
	return hash >> 29, hash >> 23 & 63
}

// Add has packets for a frontend looked at.
func (u *UntrackedEnds) Add(k FrontendKey) {
	word, bit := u.place(k)
	u.Bits[word] |= 1 << bit
}

// Has reports whether packets for a frontend are looked at.
func (u UntrackedEnds) Has(k FrontendKey) bool {
	word, bit := u.place(k)
	return u.Bits[word]>>bit&1 != 0
}

// Any reports whether packets for any frontend are.
func (u UntrackedEnds) Any() bool { return u.Bits != UntrackedEnds{}.Bits }
