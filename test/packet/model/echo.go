// SPDX-License-Identifier: Apache-2.0

package model

import "encoding/binary"

// echo handles an ICMP message, to an address that may answer pings.
func (v *visit) echo() (Result, bool) {
	protocol, request, reply, header := uint8(ICMP), byte(8), byte(0), 20
	if v.is6() {
		protocol, request, reply, header = ICMPv6, 128, 129, 40
	}
	f, ok := v.Frontends[FrontendKey{Address: v.tuple.Destination, Protocol: protocol}]
	if !ok || v.tuple.Protocol != protocol {
		return Result{}, false
	}
	if v.fragment == laterFragment {
		return v.drop(DropFragment), true
	}
	if end := l3 + v.length; end > len(v.frame) || v.l4+8 > end {
		return v.pass(Malformed), true
	}
	if message := v.frame[v.l4:]; message[0] != request || message[1] != 0 {
		return Result{}, false
	}
	if v.fragment == firstFragment {
		return v.drop(DropFragment), true
	}
	if !v.messageIsRight() {
		return v.pass(Malformed), true
	}
	if f.SourceSet != 0 && covers(v.Ranges[f.SourceSet], v.tuple.Source) < 0 {
		return v.drop(DropSource), true
	}
	decision := f.Outside
	if v.isPod(v.tuple.Source) {
		decision = f.Pod
	}
	if len(decision.Slots) > 0 || decision.Verdict != Answer || v.l4-l3 != header {
		return Result{}, false
	}
	v.Counts[Echoed]++
	return Result{Action: ActionSend, Frame: v.reply(reply)}, true
}

// messageIsRight reports whether the checksum of an ICMP message is right.
func (v *visit) messageIsRight() bool {
	message, pseudo := v.frame[v.l4:l3+v.length], uint64(0)
	if v.is6() {
		pseudo = sum(uint64(ICMPv6)+uint64(len(message)), append(v.tuple.Source.AsSlice(), v.tuple.Destination.AsSlice()...))
	}
	return fold(sum(pseudo, message)) == 0xffff
}

// segmentIsRight reports whether the checksum of a TCP segment or a UDP datagram is right, or left to the device, or
// not there.
func (v *visit) segmentIsRight() bool {
	at := map[uint8]int{TCP: 16, UDP: 6}[v.tuple.Protocol]
	if v.fragment != whole || at == 0 {
		return true
	}
	segment := v.frame[v.l4 : l3+v.length]
	check := binary.BigEndian.Uint16(segment[at:])
	pseudo := sum(uint64(v.tuple.Protocol)+uint64(len(segment)), append(v.tuple.Source.AsSlice(), v.tuple.Destination.AsSlice()...))
	return check == 0 && v.tuple.Protocol == UDP || fold(sum(pseudo, segment)) == 0xffff || check == fold(pseudo)
}

// reply has the same bytes except for addresses, hops and type.
func (v *visit) reply(kind byte) []byte {
	v.fragment = laterFragment // no ports
	out := v.translate(v.tuple.Reverse(), v.hops-64)
	copy(out, v.frame[6:12])
	copy(out[6:], v.frame[:6])
	before := binary.BigEndian.AppendUint16(nil, uint16(out[v.l4])<<8)
	out[v.l4] = kind
	check := out[v.l4+2 : v.l4+4]
	amend(check, before, out[v.l4:v.l4+2])
	if message := out[v.l4 : l3+v.length]; check[0]|check[1] == 0 && sum(0, message) == 0 {
		check[0], check[1] = 0xff, 0xff // ones' complement of the sum of zeros
	}
	return out
}
