// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"encoding/binary"
	"slices"

	"golang.org/x/sys/unix"
)

// etherType is the protocol of a frame, in network byte order.
var etherType = value{field: constant, size: 2, v4: []byte{0x08, 0x00}, v6: []byte{0x86, 0xdd}}

var metaFields = map[uint32]value{
	unix.NFT_META_PROTOCOL: etherType,
	unix.NFT_META_NFPROTO:  {field: constant, size: 1, v4: []byte{unix.NFPROTO_IPV4}, v6: []byte{unix.NFPROTO_IPV6}},
	unix.NFT_META_L4PROTO:  {field: protocol, size: 1},
	unix.NFT_META_MARK:     {field: packetMark, size: 4},
	unix.NFT_META_IIF:      {field: inIndex, size: 4}, unix.NFT_META_OIF: {field: outIndex, size: 4},
	unix.NFT_META_IIFNAME: {field: inName, size: nameSize}, unix.NFT_META_OIFNAME: {field: outName, size: nameSize},
}

// steadyMeta are the other keys of which all packets of a flow have the same: what devices, routes and sockets are.
var steadyMeta = []uint32{
	unix.NFT_META_IIFTYPE, unix.NFT_META_OIFTYPE, unix.NFT_META_IIFGROUP, unix.NFT_META_OIFGROUP, unix.NFT_META_SKUID, unix.NFT_META_SKGID,
	unix.NFT_META_RTCLASSID, unix.NFT_META_CGROUP, unix.NFT_META_PKTTYPE, nftMetaSecpath, nftMetaIifkind, nftMetaOifkind,
}

func (r *translation) meta(a attributes) {
	key := a.number(unix.NFTA_META_KEY)
	if !a.has(unix.NFTA_META_SREG) {
		v, known := metaFields[key]
		v.varies, v.route = !known && !slices.Contains(steadyMeta, key), key == unix.NFT_META_RTCLASSID
		*r.register(a.number(unix.NFTA_META_DREG)) = v
		return
	}
	switch key {
	case unix.NFT_META_NFTRACE:
	case unix.NFT_META_MARK:
		r.add(effect{what: "mark", marks: r.marks(a.number(unix.NFTA_META_SREG)), onlyMarks: true})
	case unix.NFT_META_PRIORITY:
		r.add(effect{what: "priority"})
	default:
		r.add(effect{what: "change of meta data"})
	}
}

// marks returns the mark that a register is.
func (r *translation) marks(register uint32) func(w *walk, before mark) mark {
	v := *r.register(register)
	mask, xor := word(v.mask, ^uint32(0)), word(v.xor, 0)
	return func(w *walk, before mark) mark {
		switch {
		case v.field == constant && len(v.v4) == 4:
			return mark{bits: binary.NativeEndian.Uint32(v.v4)}
		case v.field == packetMark:
			return before.with(mask, xor)
		case v.field == connectionMark && !w.connectionsMarked:
			return mark{}.with(mask, xor)
		}
		return anyMark
	}
}

// stillZero returns whether a register that is to become the mark of a connection is zero, as these are.
func (r *translation) stillZero(register uint32) func(w *walk, now mark) bool {
	marks := r.marks(register)
	return func(w *walk, now mark) bool { return marks(w, now).may() == 0 }
}

// payload knows the addresses and protocols of IP headers, and the protocol of Ethernet frames.
func (r *translation) payload(a attributes) {
	if a.has(unix.NFTA_PAYLOAD_SREG) {
		r.add(effect{what: "change of a header"})
		return
	}
	v := payloadField(a.number(unix.NFTA_PAYLOAD_BASE), a.number(unix.NFTA_PAYLOAD_OFFSET), a.number(unix.NFTA_PAYLOAD_LEN))
	*r.register(a.number(unix.NFTA_PAYLOAD_DREG)) = v
}

func payloadField(header, offset, size uint32) value {
	v := value{size: size, varies: true}
	switch {
	case header == unix.NFT_PAYLOAD_LL_HEADER && offset == 12 && size == 2:
		return etherType
	case header == unix.NFT_PAYLOAD_TRANSPORT_HEADER && size == 2 && (offset == 0 || offset == 2):
		return value{field: []field{sourcePort, destinationPort}[offset/2], size: size}
	case header == unix.NFT_PAYLOAD_TRANSPORT_HEADER && size == 4 && offset == 0: // both ports
		return value{size: size}
	case header == unix.NFT_PAYLOAD_TRANSPORT_HEADER && size == 1 && offset == 13:
		return value{field: tcpFlags, size: size}
	case header != unix.NFT_PAYLOAD_NETWORK_HEADER:
		return v
	case offset == 12 && size <= 4:
		v.field = source
	case offset == 16 && size <= 4:
		v.field = destination
	case offset == 8 && size > 1 && size <= 16:
		v.field, v.ipv6 = source, true
	case offset == 24 && size <= 16:
		v.field, v.ipv6 = destination, true
	case offset == 6 && size == 2: // fragments have no shortcut
		v.field, v.zero = zeros, []byte{0x3f, 0xff}
	case offset == 9 && size == 1:
		v.field = protocol
	case offset == 6 && size == 1:
		v.field, v.ipv6 = protocol, true
	default:
		return v
	}
	v.varies = false
	return v.placed(v.ipv6)
}

// natBits are IPS_SRC_NAT and IPS_DST_NAT (linux/netfilter/nf_conntrack_common.h).
const natBits = 1<<4 | 1<<5

// varyingConntrack are the keys whose value may change during a flow. The flow cache compares the mark.
var varyingConntrack = []uint32{unix.NFT_CT_LABELS, unix.NFT_CT_EXPIRATION, unix.NFT_CT_PKTS, unix.NFT_CT_BYTES, unix.NFT_CT_AVGPKT}

// ct: packets that the shortcut may take are of flows that the kernel does not translate.
func (r *translation) ct(a attributes) {
	key := a.number(unix.NFTA_CT_KEY)
	if a.has(unix.NFTA_CT_SREG) {
		e := effect{what: "change of conntrack", marksConnection: true}
		if key == unix.NFT_CT_MARK {
			e.what, e.unless = "connection mark", r.stillZero(a.number(unix.NFTA_CT_SREG))
		}
		if !r.register(a.number(unix.NFTA_CT_SREG)).varies { // what one packet has set, others set again
			e.concerns = ofPods
		}
		r.add(e)
		return
	}
	if key != unix.NFT_CT_STATE {
		r.add(test(hasEntry))
	}
	v := value{size: 4, varies: slices.Contains(varyingConntrack, key)}
	switch key {
	case unix.NFT_CT_STATE:
		v.field = state
	case unix.NFT_CT_MARK:
		v.field = connectionMark
	case unix.NFT_CT_STATUS:
		v.field, v.zero = untranslated, nativeBytes(natBits)
	}
	*r.register(a.number(unix.NFTA_CT_DREG)) = v
}

// fibValue: addresses are unicast once those of the node are translated.
func fibValue(a attributes) value {
	flags := a.number(unix.NFTA_FIB_FLAGS)
	switch result := a.number(unix.NFTA_FIB_RESULT); {
	case result == unix.NFT_FIB_RESULT_ADDRTYPE:
		// With a device IPv6 looks up a route by it, of which there may be none (__nft_fib6_eval_type).
		return value{field: addressType, size: 4, route: true, byDevice: flags&(unix.NFTA_FIB_F_IIF|unix.NFTA_FIB_F_OIF) != 0}
	case flags&unix.NFTA_FIB_F_SADDR != 0 && flags&unix.NFTA_FIB_F_IIF != 0: // with PRESENT, 0 or 1
		return value{field: reversePath, size: 4, route: true}
	}
	return value{route: true}
}

func (r *translation) immediate(a attributes) {
	data := a.nested(unix.NFTA_IMMEDIATE_DATA)
	if number := a.number(unix.NFTA_IMMEDIATE_DREG); number != unix.NFT_REG_VERDICT {
		*r.register(number) = constantOf(data[unix.NFTA_DATA_VALUE])
		return
	}
	r.add(verdictOf(data.nested(unix.NFTA_DATA_VERDICT)))
}

// verdictOf translates a verdict; zero value: none.
func verdictOf(a attributes) verdict {
	v := verdict{chain: a.text(unix.NFTA_VERDICT_CHAIN)}
	switch int32(a.number(unix.NFTA_VERDICT_CODE)) {
	case 0:
		v.kind, v.what = drop, "drop"
	case 1:
		v.kind = accept
	case unix.NFT_JUMP:
		v.kind = jump
	case unix.NFT_GOTO:
		v.kind = goTo
	case unix.NFT_RETURN:
		v.kind = giveBack
	}
	if isKubeProxyChain(v.chain) {
		return verdict{}
	}
	return v
}
