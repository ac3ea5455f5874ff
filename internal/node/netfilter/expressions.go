// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"bytes"
	"slices"

	"golang.org/x/sys/unix"
)

// A translation is the rule that some expressions are. Expressions read packets into registers, and compare these.
type translation struct {
	table     *nftTable
	registers [20]value // by their first 4 bytes
	rule      rule
	err       error
}

// translate returns the rule that a list of expressions is. What is not known makes it opaque.
func (t *nftTable) translate(text string) (rule, error) {
	r := translation{table: t, rule: rule{text: text, steps: []step{}}}
	for _, e := range attributeList([]byte(text)) {
		a := parseAttributes(e.data)
		r.expression(a.text(unix.NFTA_EXPR_NAME), a.nested(unix.NFTA_EXPR_DATA))
	}
	return r.rule, r.err
}

func (r *translation) add(s ...step) { r.rule.add(s...) }

// register returns a register; one of nothing if there is no such number.
func (r *translation) register(number uint32) *value { return r.registerAt(number, 0) }

// registerAt returns what a register holds from an offset in bytes on.
func (r *translation) registerAt(number, offset uint32) *value {
	at := uint32(len(r.registers))
	switch {
	case number >= unix.NFT_REG_1 && number <= unix.NFT_REG_4:
		at = 4*(number-unix.NFT_REG_1) + offset/4
	case number >= unix.NFT_REG32_00 && number <= unix.NFT_REG32_15:
		at = number - unix.NFT_REG32_00 + offset/4
	}
	if at >= uint32(len(r.registers)) {
		return &value{}
	}
	return &r.registers[at]
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

// Expressions that read something unknown of packets, by the attribute with the register. What "rt" and "xfrm" read
// is the same for all packets of a flow.
var unknownReaders = map[string]uint16{
	"byteorder": 2, "hash": 2, "numgen": 1, "osf": 1, "rt": 1, "socket": 2, "tunnel": 2, "xfrm": 1,
}

var steadyReaders = []string{"rt", "xfrm"}

// Expressions without an effect on packets on their way: they count, or speed up flows that conntrack has.
var harmless = []string{"counter", "last", "flow_offload"}

// Expressions that are true for some packets, by how much came before.
var quantities = []string{"limit", "quota", "connlimit"}

// Expressions that end the way of packets, by what they do.
var endings = map[string]string{
	"queue": "queue", "masq": "masquerade", "nat": "NAT", "redir": "redirect", "fwd": "fwd", "tproxy": "tproxy", "synproxy": "synproxy",
}

func (r *translation) other(name string, a attributes) {
	ending, ends := endings[name]
	register, reads := unknownReaders[name]
	switch {
	case slices.Contains(harmless, name):
	case slices.Contains(quantities, name):
		r.add(quantity(name)...)
	case name == "notrack":
		r.add(effect{what: name, noTrack: true})
	case name == "dynset":
		r.add(quantity("update of set " + a.text(unix.NFTA_DYNSET_SET_NAME))...)
	case name == "objref":
		r.object(a)
	case name == "reject":
		r.add(verdict{kind: drop, what: name})
	case ends:
		r.add(verdict{kind: end, what: ending})
	case reads:
		*r.register(a.number(register)) = value{varies: !slices.Contains(steadyReaders, name), route: name == "rt"}
	case name == "exthdr" && a.has(unix.NFTA_EXTHDR_DREG):
		*r.register(a.number(unix.NFTA_EXTHDR_DREG)) = value{varies: true}
	case name == "exthdr":
		r.add(effect{what: "change of a header option", concerns: concernsOfOption(a)})
	case name == "log" || name == "dup":
		r.add(effect{what: name})
	default:
		r.add(opaque(name)...)
	}
}

// concernsOfOption: only packets that open a connection have a maximum segment size (RFC 9293, 3.7.1).
func concernsOfOption(a attributes) shortcuts {
	const tcpOption, maximumSegmentSize = 1, 2 // NFT_EXTHDR_OP_TCPOPT
	if kind := a[unix.NFTA_EXTHDR_TYPE]; a.number(unix.NFTA_EXTHDR_OP) == tcpOption && len(kind) == 1 && kind[0] == maximumSegmentSize {
		return ofPods
	}
	return ofBoth
}

// Kinds of objects (NFT_OBJECT_*) that only count, whose value decides, or that are attached to a new conntrack entry.
var (
	countingObjects = []uint32{1}
	quantityObjects = map[uint32]string{2: "quota", 4: "limit", 5: "connlimit"}
	firstOnlyObject = map[uint32]string{3: "ct helper", 7: "ct timeout", 9: "ct expectation"}
)

// object: a reference to an object, which a map may choose.
func (r *translation) object(a attributes) {
	kind := a.number(unix.NFTA_OBJREF_IMM_TYPE)
	switch {
	case slices.Contains(countingObjects, kind):
	case quantityObjects[kind] != "":
		r.add(quantity(quantityObjects[kind])...)
	case firstOnlyObject[kind] != "":
		r.add(effect{what: firstOnlyObject[kind], concerns: ofPods, marksConnection: true}, test(varying))
	default:
		r.add(opaque("object")...)
	}
}

func zero(b []byte) bool { return bytes.Count(b, []byte{0}) == len(b) }
