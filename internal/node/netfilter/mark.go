// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"encoding/binary"
	"slices"
)

// A mark is what is known of the marks of packets: their bits, but not those in unknown. The zero value is that of
// packets that no rule has marked: a packet that leaves its pod's network namespace has no mark.
type mark struct{ bits, unknown uint32 }

var anyMark = mark{unknown: ^uint32(0)}

// may are the bits that may be set.
func (m mark) may() uint32 { return m.bits | m.unknown }

// or is what is known of packets with either mark.
func (m mark) or(other mark) mark {
	unknown := m.unknown | other.unknown | m.bits ^ other.bits
	return mark{m.bits &^ unknown, unknown}
}

// with is the mark with a mask and an XOR applied.
func (m mark) with(mask, xor uint32) mark {
	unknown := m.unknown & mask
	return mark{(m.bits&mask ^ xor) &^ unknown, unknown}
}

// certainly reports whether all marks are in ranges, after a mask and an XOR, or none is.
func (m mark) certainly(r ranges, mask, xor uint32) (in, known bool) {
	m = m.with(mask, xor)
	if m.unknown == 0 {
		return r.has(nativeBytes(m.bits)), true
	}
	none := !slices.ContainsFunc(r, func(one byteRange) bool {
		single := len(one.first) == 4 && slices.Equal(one.first, one.last)
		return !single || (binary.NativeEndian.Uint32(one.first)^m.bits)&^m.unknown == 0
	})
	return false, none
}

// testMark is a test of packets' marks, after a mask and an XOR.
func testMark(r ranges, mask, xor uint32) test {
	return func(_ *walk, c *class) (yes, no *class) {
		switch in, known := c.mark.certainly(r, mask, xor); {
		case !known:
			return c, c
		case in:
			return c, nil
		}
		return nil, c
	}
}

// word is a mask or an XOR of a mark; nil is another one.
func word(b []byte, otherwise uint32) uint32 {
	if len(b) != 4 {
		return otherwise
	}
	return binary.NativeEndian.Uint32(b)
}
