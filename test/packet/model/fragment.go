// SPDX-License-Identifier: Apache-2.0

package model

import (
	"encoding/binary"
	"slices"
)

// The most bytes of layer 4 in a fragment, whatever the MTU.
const pieceMax = 4088

// cut fragments an IPv4 packet that is too big for its next hop and may be fragmented (RFC 791 section 3.2):
// all fragments but the last have as much as fits, in units of 8 octets.
func (v *visit) cut(mtu int) Result {
	if v.xdp {
		return v.pass(ToTC)
	}
	header := v.frame[l3 : l3+20]
	where := binary.BigEndian.Uint16(header[6:])
	offset, more := int(where&0x1fff)*8, where&0x2000
	if v.l4 != l3+20 || offset+v.length-20 > 0xffff || !v.settle() {
		return v.drop(DropTooBig)
	}
	v.Counts[Fragmented]++
	result := Result{Action: ActionSend}
	rest, length := slices.Clone(v.frame[v.l4:]), v.length-20
	size := min((mtu-20)&^7, pieceMax)
	for ; length > size; length -= size {
		result.Pieces = append(result.Pieces, v.piece(rest, size, uint16(offset/8)|0x2000))
		rest, offset = rest[size:], offset+size
	}
	result.Frame = v.piece(rest, length, uint16(offset/8)|more)
	return result
}

// piece is a fragment followed by the rest of its frame.
func (v *visit) piece(rest []byte, length int, where uint16) []byte {
	out := append(slices.Clone(v.frame[:l3+20]), rest...)
	ip := out[l3 : l3+20]
	binary.BigEndian.PutUint16(ip[2:], uint16(20+length))
	binary.BigEndian.PutUint16(ip[6:], where)
	ip[10], ip[11] = 0, 0
	binary.BigEndian.PutUint16(ip[10:], ^fold(sum(0, ip)))
	return out
}

// settle computes a checksum that seems to be left to a device, because it is the pseudo header's sum. It does
// not do so for a CRC.
func (v *visit) settle() bool {
	if v.fragment != whole {
		return true
	}
	segment := v.frame[v.l4 : l3+v.length]
	at := map[uint8]int{TCP: 16, UDP: 6}[v.tuple.Protocol]
	if v.tuple.Protocol == SCTP {
		return binary.BigEndian.Uint32(segment[8:]) != 0
	}
	pseudo := fold(sum(uint64(v.tuple.Protocol)+uint64(len(segment)), v.frame[l3+12:l3+20]))
	if binary.BigEndian.Uint16(segment[at:]) != pseudo {
		return true
	}
	check := ^fold(sum(0, segment))
	if check == 0 && v.tuple.Protocol == UDP {
		check = 0xffff
	}
	v.frame = slices.Clone(v.frame)
	binary.BigEndian.PutUint16(v.frame[v.l4+at:], check)
	return true
}
