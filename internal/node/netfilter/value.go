// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"bytes"
	"encoding/binary"
	"net"
	"net/netip"
	"slices"
)

// A field is what a rule reads of a packet.
type field uint8

const (
	unknownField field = iota
	constant           // value.v4 or value.v6, by the family of the packet
	packetMark
	connectionMark
	state
	zeros        // value.zero has the bits that are known to be 0
	untranslated // the same of the status of conntrack, for flows without NAT
	tcpFlags
	sourcePort
	destinationPort
	addressType
	protocol
	source
	destination
	inName
	outName
	inIndex
	outIndex
	reversePath // index or name of the device to the source; zero: not the one of arrival
)

// A value is what a register of nftables holds: a field, or its first bytes, with a mask and an XOR applied.
type value struct {
	field     field
	size      uint32 // in bytes
	ipv6      bool   // the address, which is at another place in IPv4
	v4, v6    []byte
	zero      []byte
	mask, xor []byte // nil: none
	// varies: of a field that is not known, packets of a flow may have different values.
	varies bool
	// route: it depends on routes.
	route bool
	// byDevice: the type of an address as seen from a device.
	byDevice bool
}

func constantOf(data []byte) value {
	return value{field: constant, size: uint32(len(data)), v4: data, v6: data}
}

// A byteRange is the values from the first to the last, in the order of bytes.Compare.
type byteRange struct{ first, last []byte }

// ranges are the values that a rule compares with.
type ranges []byteRange

func equal(data []byte) ranges { return ranges{{data, data}} }

// has compares as many bytes as the ranges have.
func (r ranges) has(v []byte) bool {
	return slices.ContainsFunc(r, func(one byteRange) bool {
		return len(v) >= len(one.first) && len(one.first) == len(one.last) &&
			bytes.Compare(one.first, v[:len(one.first)]) <= 0 && bytes.Compare(v[:len(one.first)], one.last) <= 0
	})
}

// apply returns data with mask and XOR.
func (v *value) apply(data []byte) []byte {
	out := slices.Clone(data)
	for i := range out {
		if i < len(v.mask) {
			out[i] &= v.mask[i]
		}
		if i < len(v.xor) {
			out[i] ^= v.xor[i]
		}
	}
	return out
}

// test returns the test whether a value is in ranges.
func (v value) test(r ranges) test {
	if v.route {
		return readsRoutes(v.testField(r))
	}
	return v.testField(r)
}

func (v value) testField(r ranges) test {
	switch v.field {
	case constant:
		return byFamily(certainly(r.has(v.apply(v.v4))), certainly(r.has(v.apply(v.v6))))
	case packetMark:
		return testMark(r, word(v.mask, ^uint32(0)), word(v.xor, 0))
	case connectionMark:
		return unlessConnectionsMarked(r.has(v.apply(make([]byte, 4))))
	case state:
		return testStates(v.states(r))
	case zeros:
		return v.inFamily(v.testZeros(r))
	case protocol:
		return v.inFamily(testProtocol(func(number uint8) bool { return r.has(v.apply([]byte{number})) }))
	case source, destination:
		return v.testAddress(r)
	case inName, outName, inIndex, outIndex:
		return v.testDevice(r)
	case reversePath:
		return v.testReversePath(r)
	case sourcePort, destinationPort:
		return v.testPorts(r)
	case tcpFlags:
		return v.testFlags(r)
	case untranslated:
		return v.testUntranslated(r)
	case addressType:
		return v.testAddressType(r)
	}
	if v.varies {
		return varying
	}
	return uncertain
}

// testZeros knows the result if the mask has only bits that are known.
func (v value) testZeros(r ranges) test {
	if len(v.mask) != len(v.zero) {
		return uncertain
	}
	for i, m := range v.mask {
		if m&^v.zero[i] != 0 {
			return uncertain
		}
	}
	return certainly(r.has(v.apply(make([]byte, len(v.zero)))))
}

func (v *value) states(r ranges) (states ctStates) {
	for s := ctInvalid; s <= ctUntracked; s <<= 1 {
		if r.has(v.apply(nativeBytes(uint32(s)))) {
			states |= s
		}
	}
	return states
}

// inFamily limits a test to packets of the family whose field it reads. Without a place in the packet it reads that of
// either.
func (v value) inFamily(t test) test {
	if v.v4 == nil {
		return t
	}
	return func(w *walk, c *class) (yes, no *class) {
		if c.v6 != v.ipv6 {
			return c, c
		}
		return t(w, c)
	}
}

// placed marks a value as read at a place that only one family has.
func (v value) placed(ipv6 bool) value {
	v.v4, v.ipv6 = []byte{}, ipv6
	return v
}

func (v value) testAddress(r ranges) test {
	addresses, ok := v.spans(r)
	switch {
	case !ok:
		return uncertain
	case v.field == source:
		return v.inFamily(testSource(addresses))
	}
	return v.inFamily(testDestination(addresses))
}

// spans returns the addresses in ranges.
func (v *value) spans(r ranges) (addresses spans, ok bool) {
	var all []span
	for _, one := range r {
		s, ok := v.span(one)
		if !ok {
			return nil, false
		}
		all = append(all, s)
	}
	return merged(all), true
}

// span returns the addresses in a range, of which there may be only the first bytes.
func (v *value) span(r byteRange) (span, bool) {
	size := 4
	if v.ipv6 {
		size = 16
	}
	if len(r.first) > size || len(r.first) != len(r.last) || !zero(v.xor) {
		return span{}, false
	}
	first := append(slices.Clone(r.first), make([]byte, size-len(r.first))...)
	last := append(slices.Clone(r.last), bytes.Repeat([]byte{0xff}, size-len(r.last))...)
	if v.mask != nil {
		if _, size := net.IPMask(v.mask).Size(); size == 0 || !bytes.Equal(r.first, r.last) { // not the mask of a prefix
			return span{}, false
		}
		for i, m := range v.mask[:min(len(v.mask), size)] {
			last[i] |= ^m
		}
	}
	a, _ := netip.AddrFromSlice(first)
	b, _ := netip.AddrFromSlice(last)
	return span{a, b}, true
}

// nameSize is the size of a device's name (IFNAMSIZ).
const nameSize = 16

func nameBytes(name string) []byte {
	return append([]byte(name), make([]byte, max(nameSize-len(name), 0))...)
}

func (v value) testDevice(r ranges) test {
	if v.mask != nil || v.xor != nil {
		return uncertain
	}
	return testDevice(v.field == outName || v.field == outIndex, func(name string, index int) bool {
		if v.field == inName || v.field == outName {
			return r.has(nameBytes(name))
		}
		return r.has(nativeBytes(uint32(index)))
	})
}

// testReversePath: packets of pods on the shortcut arrive by the device that leads to their source, and so do those of
// clients of the edge. Of flow offload that is not known.
func (v value) testReversePath(r ranges) test {
	if missing := r.has(make([]byte, nameSize)); !missing || v.mask != nil || v.xor != nil || len(r) != 1 {
		return uncertain
	}
	return func(w *walk, c *class) (yes, no *class) {
		if w.offload {
			return c, c
		}
		y := *c
		y.in = c.in.and(func(i int) bool { return w.subject.Devices[i].Uplink })
		return &y, c
	}
}

func nativeBytes(n uint32) []byte { return binary.NativeEndian.AppendUint32(nil, n) }
