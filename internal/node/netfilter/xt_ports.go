// SPDX-License-Identifier: Apache-2.0

package netfilter

import "encoding/binary"

// xtPorts returns the tests that a match of ports is. The layouts are struct xt_tcp, xt_udp and xt_multiport_v1.
func xtPorts(name string, revision uint32, info []byte) []step {
	switch {
	case name == "tcp" && len(info) >= 12:
		return append(xtRanges(info, info[11]), xtTCPOptions(info)...)
	case name == "udp" && len(info) >= 9:
		return xtRanges(info, info[8])
	case name == "multiport" && revision == 1 && len(info) >= 48:
		return []step{xtMultiport(info)}
	}
	return xtOther(name)
}

// xtRanges: the first and last port of the source and of the destination, and which of the two are inverted.
func xtRanges(info []byte, inverted uint8) (steps []step) {
	for i := range 2 {
		first, last := portAt(info, 2*i), portAt(info, 2*i+1)
		if first != 0 || last != lastPort {
			steps = append(steps, invertIf(inverted&(1<<i) != 0, testPort(i == 1, ports{{first, last}})))
		}
	}
	return steps
}

// portAt returns a port of a list, in host byte order.
func portAt(list []byte, i int) port { return port(binary.NativeEndian.Uint16(list[2*i:])) }

// xtTCPOptions: an option, a mask of flags, and what they are compared with.
func xtTCPOptions(info []byte) (steps []step) {
	const notFlags = 1 << 2 // XT_TCP_INV_FLAGS
	if info[8] != 0 {
		steps = append(steps, test(varying))
	}
	if info[9] != 0 {
		flags := value{field: tcpFlags, mask: info[9:10]}
		steps = append(steps, invertIf(info[11]&notFlags != 0, flags.test(equal(info[10:11]))))
	}
	return steps
}

// xtMultiport: of what the ports are, how many, the ports, which of them begin a range, and whether all is inverted.
func xtMultiport(info []byte) test {
	const source, destination, most = 0, 1, 15
	var all []interval[port]
	for i := 0; i < min(int(info[1]), most); i++ {
		first := portAt(info[2:], i)
		if info[2+2*most+i] != 0 && i+1 < most {
			i++
		}
		all = append(all, interval[port]{first, portAt(info[2:], i)})
	}
	if info[0] != source && info[0] != destination { // of either
		return uncertain
	}
	return invertIf(info[47] != 0, testPort(info[0] == destination, merged(all)))
}
