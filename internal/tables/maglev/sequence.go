// SPDX-License-Identifier: Apache-2.0

package maglev

import (
	"encoding/binary"
	"net/netip"
)

// sequence is a backend's order of preference: slots at, at + skip, at + 2 skip and so on, modulo the size.
// Because the size is a prime number, it visits each slot once.
type sequence struct{ at, skip uint32 }

// newSequence computes the sequence from the address and port only.
func newSequence(addr netip.AddrPort, size uint32) sequence {
	h := hash(addr)
	return sequence{
		at:   uint32(mix(h) % uint64(size)),
		skip: uint32(mix(h+0x9e3779b97f4a7c15)%uint64(size-1)) + 1,
	}
}

func (s sequence) after(at, size uint32) uint32 {
	if at += s.skip; at >= size {
		at -= size
	}
	return at
}

// hash is 64-bit FNV-1a over the 16 bytes of the address (IPv4 as IPv4-mapped) and the port in
// network byte order.
func hash(addr netip.AddrPort) uint64 {
	address := addr.Addr().As16()
	h := uint64(0xcbf29ce484222325)
	for _, b := range binary.BigEndian.AppendUint16(address[:], addr.Port()) {
		h = (h ^ uint64(b)) * 0x100000001b3
	}
	return h
}

// mix makes each bit depend on all others, because addresses differ in few bits. It is the last step of
// SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
func mix(h uint64) uint64 {
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>27) * 0x94d049bb133111eb
	return h ^ h>>31
}
