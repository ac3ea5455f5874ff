// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// noFlags are the flags of TCP that packets of the offload shortcut do not have: FIN, SYN and RST.
const noFlags = 1<<0 | 1<<1 | 1<<2

// testFlags knows that some flags of TCP are not set, if packets are of the offload shortcut and of TCP.
func (v value) testFlags(r ranges) test {
	v.zero = []byte{noFlags}
	never := true
	for _, one := range r {
		never = never && len(one.first) == 1 && len(one.last) == 1 && one.first[0] == one.last[0] && one.first[0]&noFlags != 0
	}
	masked := value{field: zeros, zero: v.zero, mask: v.mask, xor: v.xor}.testZeros(r)
	return func(w *walk, c *class) (yes, no *class) {
		switch {
		case !w.offload || c.protocols != onlyTCP:
			return varying(w, c)
		case never && zero(v.xor):
			return nil, c
		case v.mask == nil || v.mask[0]&^noFlags != 0:
			return varying(w, c)
		}
		return masked(w, c)
	}
}

// testPorts: ports are in network byte order.
func (v value) testPorts(r ranges) test {
	var all []interval[port]
	for _, one := range r {
		if v.mask != nil || !zero(v.xor) || len(one.first) != 2 || len(one.last) != 2 {
			return uncertain
		}
		all = append(all, interval[port]{port(binary.BigEndian.Uint16(one.first)), port(binary.BigEndian.Uint16(one.last))})
	}
	return testPort(v.field == destinationPort, merged(all))
}

// testUntranslated: the shortcut of pods takes only flows that the kernel does not translate. For the edge, flows have
// been translated by DNAT (IPS_DST_NAT), and perhaps their sources, too.
func (v value) testUntranslated(r ranges) test {
	const dstNAT = 1 << 5
	t, translated := v.testZeros(r), test(uncertain)
	if zero(v.xor) && len(v.mask) == 4 && binary.NativeEndian.Uint32(v.mask)&^dstNAT == 0 {
		translated = certainly(r.has(v.apply(nativeBytes(dstNAT))))
	}
	return func(w *walk, c *class) (yes, no *class) {
		switch {
		case w.offload:
			return c, c
		case w.translated:
			return translated(w, c)
		}
		return t(w, c)
	}
}

// testAddressType: pods have unicast addresses, and so have clients outside. The offload flows have such where the
// node's own addresses are translated.
func (v value) testAddressType(r ranges) test {
	t := unicastTest(r.has(v.apply(nativeBytes(unix.RTN_UNICAST))))
	if v.byDevice {
		return byFamily(t, uncertain)
	}
	return t
}

// unicastTest has a result that is known for unicast addresses.
func unicastTest(result bool) test {
	return func(w *walk, c *class) (yes, no *class) {
		if w.offload && w.base.hook != forward {
			return c, c
		}
		return certainly(result)(w, c)
	}
}
