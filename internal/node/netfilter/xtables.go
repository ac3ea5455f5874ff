// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"
)

// Extensions of iptables, which its rules have in nf_tables too. Their layouts are in linux/netfilter/xt_*.h, in host
// byte order.

// xtMatch returns the tests that a match is. Of a match that is not known here any packet may pass.
func xtMatch(name string, revision uint32, info []byte) []step {
	switch {
	case name == "comment":
		return nil
	case name == "conntrack" && revision >= 2 && len(info) >= 154:
		return []step{xtConntrack(info)}
	case name == "state" && len(info) >= 4:
		return []step{xtStateTest(binary.NativeEndian.Uint32(info))}
	case name == "addrtype" && len(info) >= 8:
		return []step{readsRoutes(xtAddressType(revision, info))}
	case name == "mark" && revision == 1 && len(info) >= 9:
		return []step{invertIf(info[8] != 0, testMark(equal(info[:4]), binary.NativeEndian.Uint32(info[4:]), 0))}
	case name == "connmark" && revision == 1 && len(info) >= 9:
		// Mark, mask, and whether it is inverted.
		return []step{test(hasEntry), unlessConnectionsMarked((binary.NativeEndian.Uint32(info) == 0) != (info[8] != 0))}
	case name == "iprange" && revision == 1 && len(info) >= 65:
		return xtRange(info)
	case name == "rpfilter" && len(info) >= 1:
		return []step{readsRoutes(xtReversePath(info[0]))}
	}
	return xtPorts(name, revision, info)
}

// Matches that count packets or bytes, or note when packets came.
var xtQuantities = []string{"connlimit", "hashlimit", "limit", "quota", "recent"}

// Matches that all packets of a flow pass, or none. (That of packets' devices in a bridge may follow a moving host.)
var xtSteady = []string{"addrtype", "cgroup", "cluster", "connmark", "conntrack", "devgroup", "helper", "iprange", "mark", "owner", "policy", "rpfilter", "socket", "state"}

// xtOther: a match that is not known here.
func xtOther(name string) []step {
	switch {
	case slices.Contains(xtQuantities, name):
		return quantity(name)
	case name == "realm":
		return []step{readsRoutes(uncertain)}
	case slices.Contains(xtSteady, name):
		return []step{test(uncertain)}
	}
	return []step{test(varying)}
}

// xtStates translates the mask of states of xt_conntrack, which differs from that of nftables in one bit.
func xtStates(mask uint32) ctStates {
	const untracked = 1 << 8 // XT_CONNTRACK_STATE_UNTRACKED
	states := ctStates(mask) & (ctInvalid | ctEstablished | ctRelated | ctNew)
	if mask&untracked != 0 {
		states |= ctUntracked
	}
	return states
}

// xtStateTest is a test of states by the mask of xt_conntrack. Whether a flow is translated is not known.
func xtStateTest(mask uint32) test {
	const dnat, translated = 1 << 7, 1<<6 | 1<<7 // XT_CONNTRACK_STATE_DNAT, XT_CONNTRACK_STATE_SNAT
	t := testStates(xtStates(mask))
	return func(w *walk, c *class) (yes, no *class) {
		if w.translated && mask&dnat != 0 {
			return c, nil
		}
		yes, no = t(w, c)
		if w.offload && mask&translated != 0 {
			yes = c
		}
		return yes, no
	}
}

// xtConntrack knows rules about states (struct xt_conntrack_mtinfo2 and 3), and about none but translated flows.
func xtConntrack(info []byte) test {
	const byState, byExpiration = 1 << 0, 1 << 7
	flags, inverted := binary.NativeEndian.Uint16(info[146:]), binary.NativeEndian.Uint16(info[148:])
	switch {
	case flags&byExpiration != 0:
		return varying
	case flags != byState:
		return uncertain
	}
	return invertIf(inverted&byState != 0, xtStateTest(uint32(binary.NativeEndian.Uint16(info[150:]))))
}

// xtAddressType: masks of the types of source and destination, of which 0 is any, and which are inverted.
func xtAddressType(revision uint32, info []byte) test {
	from, to := binary.NativeEndian.Uint16(info), binary.NativeEndian.Uint16(info[2:])
	flags := binary.NativeEndian.Uint32(info[4:])
	invertFrom, invertTo := flags&1 != 0, flags&2 != 0
	if revision == 0 && len(info) >= 12 {
		invertFrom, invertTo = flags != 0, binary.NativeEndian.Uint32(info[8:]) != 0
	}
	// Source and destination one after the other: one of them may be uncertain.
	source, destination := xtUnicastIs(from, invertFrom), xtUnicastIs(to, invertTo)
	return func(w *walk, c *class) (yes, no *class) {
		y, n := source(w, c)
		if y.empty() {
			return nil, n
		}
		yes, no = destination(w, y)
		return yes, union(no, n)
	}
}

// xtUnicastIs tests a unicast address for a mask of types. For IPv4 its type is to be one of them. For IPv6 it is to be
// all of UNSPEC, UNICAST and MULTICAST in the mask, and if there are others, one of these (match_type6).
func xtUnicastIs(mask uint16, invert bool) test {
	const (
		unspecified, unicast, local, anycast = 1 << unix.RTN_UNSPEC, 1 << unix.RTN_UNICAST, 1 << unix.RTN_LOCAL, 1 << unix.RTN_ANYCAST
		multicast, unreachable               = 1 << unix.RTN_MULTICAST, 1 << unix.RTN_UNREACHABLE
	)
	if mask == 0 {
		return certainly(true)
	}
	in4 := unicastTest(mask&unicast != 0 != invert)
	in6 := unicastTest(mask&(unspecified|multicast|local|anycast) == 0 != invert)
	if mask&unreachable != 0 && mask&(unspecified|multicast) == 0 {
		in6 = uncertain
	}
	return byFamily(in4, in6)
}

// byFamily is one test for IPv4 and another for IPv6.
func byFamily(in4, in6 test) test {
	return func(w *walk, c *class) (yes, no *class) {
		if c.v6 {
			return in6(w, c)
		}
		return in4(w, c)
	}
}

// xtRange: four addresses of 16 bytes, of which IPv4 uses the first 4, and flags.
func xtRange(info []byte) (steps []step) {
	const bySource, byDestination, notSource, notDestination = 1, 2, 16, 32
	flags := info[64]
	if flags&bySource != 0 {
		steps = append(steps, invertIf(flags&notSource != 0, xtRangeTest(testSource, info[:32])))
	}
	if flags&byDestination != 0 {
		steps = append(steps, invertIf(flags&notDestination != 0, xtRangeTest(testDestination, info[32:64])))
	}
	return steps
}

func xtRangeTest(make func(spans) test, ends []byte) test {
	ipv4 := make(spans{{netip.AddrFrom4([4]byte(ends)), netip.AddrFrom4([4]byte(ends[16:]))}})
	ipv6 := make(spans{{netip.AddrFrom16([16]byte(ends)), netip.AddrFrom16([16]byte(ends[16:]))}})
	return byFamily(ipv4, ipv6)
}

// xtReversePath passes packets whose source is behind the device, or inverted the others.
func xtReversePath(flags uint8) test {
	const inverted = 1 << 3 // XT_RPFILTER_INVERT
	return invertIf(flags&inverted == 0, value{field: reversePath}.testReversePath(equal(make([]byte, 4))))
}

// Targets that end the way of packets.
var xtEndings = []string{"DNAT", "MASQUERADE", "NETMAP", "NFQUEUE", "QUEUE", "REDIRECT", "SNAT", "SYNPROXY", "TPROXY"}

// Targets without an effect on packets after the first ones of a flow: on a new conntrack entry, on packets that open
// a connection, or on the entry, which later packets only set again.
var xtFirst = []string{"CT", "TCPMSS", "CONNSECMARK", "CONNLABEL"}

// xtTarget returns the steps that a target is. One that is not known here may change packets.
func xtTarget(name string, revision uint32, info []byte) []step {
	switch {
	case name == "TRACE":
		return nil
	case name == "NOTRACK" || name == "CT" && isNoTrack(info):
		return []step{effect{what: name, noTrack: true}}
	case name == "MARK" && revision == 2 && len(info) >= 8:
		xor, mask := binary.NativeEndian.Uint32(info), binary.NativeEndian.Uint32(info[4:])
		return []step{effect{what: name, onlyMarks: true, marks: func(_ *walk, before mark) mark { return before.with(^mask, xor) }}}
	case name == "CONNMARK" && revision >= 1 && len(info) >= 13:
		return []step{xtConnmark(revision, info)}
	case name == "REJECT":
		return []step{verdict{kind: drop, what: name}}
	case slices.Contains(xtFirst, name):
		return []step{effect{what: name, marks: marksAny, marksConnection: true, concerns: ofPods}}
	case slices.Contains(xtEndings, name):
		return []step{verdict{kind: end, what: name}}
	}
	return []step{effect{what: name, marks: marksAny, marksConnection: true}}
}

// isNoTrack: XT_CT_NOTRACK of struct xt_ct_target_info.
func isNoTrack(info []byte) bool {
	return len(info) >= 2 && binary.NativeEndian.Uint16(info)&1 != 0
}

// xtConnmark: a mark that is zero stays so when it is saved or restored. The bits that are restored are those of the
// third mask; revision 2 may shift them.
func xtConnmark(revision uint32, info []byte) effect {
	const set, save, restore = 0, 1, 2
	e := effect{what: "CONNMARK"}
	switch info[12] {
	case restore:
		mask := binary.NativeEndian.Uint32(info[8:])
		e.onlyMarks, e.marks = true, func(w *walk, before mark) mark {
			switch {
			case !w.connectionsMarked:
				return before.with(^mask, 0)
			case revision != 1:
				return anyMark
			}
			return mark{bits: before.bits &^ mask, unknown: before.unknown | mask}
		}
	case save:
		e.marksConnection, e.unless, e.concerns = true, func(_ *walk, now mark) bool { return now.may() == 0 }, ofPods
	case set:
		value := binary.NativeEndian.Uint32(info)
		e.marksConnection, e.unless, e.concerns = true, func(w *walk, _ mark) bool { return value == 0 && !w.connectionsMarked }, ofPods
	}
	return e
}
