// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"bytes"

	"golang.org/x/sys/unix"
)

// A translation is the rule that some expressions are. Expressions read packets into registers, and compare these.
type translation struct {
	table     *nftTable
	registers [20]value // by their first 4 bytes
	rule      rule
	err       error
}

// translate returns the rule that expressions are. What is not known makes it opaque.
func (t *nftTable) translate(expressions []attribute) (rule, error) {
	r := translation{table: t}
	for _, e := range expressions {
		a := parseAttributes(e.data)
		r.expression(a.text(unix.NFTA_EXPR_NAME), a.nested(unix.NFTA_EXPR_DATA))
	}
	return r.rule, r.err
}

func (r *translation) add(s ...step) { r.rule = append(r.rule, s...) }

// register returns a register; one of nothing if there is no such number.
func (r *translation) register(number uint32) *value {
	switch {
	case number >= unix.NFT_REG_1 && number <= unix.NFT_REG_4:
		return &r.registers[4*(number-unix.NFT_REG_1)]
	case number >= unix.NFT_REG32_00 && number <= unix.NFT_REG32_15:
		return &r.registers[number-unix.NFT_REG32_00]
	}
	return &value{}
}

func (r *translation) expression(name string, a attributes) {
	switch name {
	case "meta":
		r.meta(a)
	case "payload":
		r.payload(a)
	case "ct":
		r.ct(a)
	case "fib":
		*r.register(a.number(unix.NFTA_FIB_DREG)) = fibValue(a)
	case "immediate":
		r.immediate(a)
	case "bitwise":
		r.bitwise(a)
	case "cmp", "range", "lookup":
		r.compare(name, a)
	case "match":
		r.add(xtMatch(a.text(unix.NFTA_MATCH_NAME), a.number(unix.NFTA_MATCH_REV), a[unix.NFTA_MATCH_INFO])...)
	case "target":
		r.add(xtTarget(a.text(unix.NFTA_TARGET_NAME), a.number(unix.NFTA_TARGET_REV), a[unix.NFTA_TARGET_INFO])...)
	default:
		r.other(name, a)
	}
}

// Expressions that read something unknown of packets, by the attribute with the register.
var unknownReaders = map[string]uint16{
	"byteorder": 2, "hash": 2, "numgen": 1, "osf": 1, "rt": 1, "socket": 2, "tunnel": 2, "xfrm": 1,
}

// Expressions without an effect on packets on their way: they count, speed up flows that conntrack has, or exempt
// packets from conntrack.
var harmless = []string{"counter", "last", "flow_offload", "notrack"}

// Expressions that are true for some packets, by how much came before.
var quantities = []string{"limit", "quota", "connlimit", "dynset"}

// Expressions that end the way of packets, by what they do.
var endings = map[string]string{
	"reject": "reject", "queue": "queue", "masq": "masquerade", "nat": "NAT", "redir": "redirect", "fwd": "fwd", "tproxy": "tproxy", "synproxy": "synproxy",
}

func (r *translation) other(name string, a attributes) {
	const counterObject = 1 // NFT_OBJECT_COUNTER
	ending, ends := endings[name]
	register, reads := unknownReaders[name]
	switch {
	case contains(harmless, name) || name == "objref" && a.number(unix.NFTA_OBJREF_IMM_TYPE) == counterObject:
	case contains(quantities, name):
		r.add(test(uncertain))
	case ends:
		r.add(verdict{kind: end, what: ending})
	case reads:
		*r.register(a.number(register)) = unknown()
	case name == "exthdr" && !a.has(unix.NFTA_EXTHDR_SREG):
		*r.register(a.number(unix.NFTA_EXTHDR_DREG)) = unknown()
	case name == "exthdr":
		r.add(effect{what: "change of a header option"})
	case name == "log" || name == "dup":
		r.add(effect{what: name})
	default:
		r.add(opaque(name)...)
	}
}

func contains(all []string, name string) bool {
	for _, one := range all {
		if one == name {
			return true
		}
	}
	return false
}

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

func (r *translation) meta(a attributes) {
	key := a.number(unix.NFTA_META_KEY)
	if !a.has(unix.NFTA_META_SREG) {
		*r.register(a.number(unix.NFTA_META_DREG)) = metaFields[key]
		return
	}
	switch key {
	case unix.NFT_META_NFTRACE:
	case unix.NFT_META_MARK:
		r.add(effect{what: "mark", marks: true, unless: r.stillZero(a.number(unix.NFTA_META_SREG))})
	default:
		r.add(effect{what: "change of meta data"})
	}
}

// stillZero returns whether a register that is to become a mark is zero, as marks are.
func (r *translation) stillZero(register uint32) func(*walk) bool {
	v := *r.register(register)
	zero := bytes.Count(v.apply(make([]byte, 4)), []byte{0}) == 4
	return func(w *walk) bool {
		switch v.field {
		case constant:
			return bytes.Count(v.v4, []byte{0}) == len(v.v4)
		case packetMark:
			return zero && !w.marked
		case connectionMark:
			return zero && !w.connectionsMarked
		}
		return false
	}
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
	v := value{size: size}
	switch {
	case header == unix.NFT_PAYLOAD_LL_HEADER && offset == 12 && size == 2:
		return etherType
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
	return v.placed(v.ipv6)
}

// natBits are IPS_SRC_NAT and IPS_DST_NAT (linux/netfilter/nf_conntrack_common.h).
const natBits = 1<<4 | 1<<5

// ct: packets that the shortcut may take are of flows that the kernel does not translate.
func (r *translation) ct(a attributes) {
	key := a.number(unix.NFTA_CT_KEY)
	if a.has(unix.NFTA_CT_SREG) {
		e := effect{what: "change of conntrack", marksConnection: true}
		if key == unix.NFT_CT_MARK {
			e.what, e.unless = "connection mark", r.stillZero(a.number(unix.NFTA_CT_SREG))
		}
		r.add(e)
		return
	}
	v := value{size: 4}
	switch key {
	case unix.NFT_CT_STATE:
		v.field = state
	case unix.NFT_CT_MARK:
		v.field = connectionMark
	case unix.NFT_CT_STATUS:
		v.field, v.zero = zeros, nativeBytes(natBits)
	}
	*r.register(a.number(unix.NFTA_CT_DREG)) = v
}

// fibValue: pods have unicast addresses, and so have clients outside.
func fibValue(a attributes) value {
	flags := a.number(unix.NFTA_FIB_FLAGS)
	switch result := a.number(unix.NFTA_FIB_RESULT); {
	case result == unix.NFT_FIB_RESULT_ADDRTYPE:
		return constantOf(nativeBytes(unix.RTN_UNICAST))
	case flags&unix.NFTA_FIB_F_SADDR != 0 && flags&unix.NFTA_FIB_F_IIF != 0 && flags&unix.NFTA_FIB_F_PRESENT == 0:
		return value{field: reversePath, size: 4}
	}
	return unknown()
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
		v.kind, v.what = end, "drop"
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
