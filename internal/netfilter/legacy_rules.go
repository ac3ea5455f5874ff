// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/bits"
)

// parse splits the entries into chains. A chain of a user begins with an entry whose target, ERROR, has its name; the
// table ends with one, too.
func (t *legacyTable) parse() error {
	names, policies := t.chainNames(), t.policies()
	t.chains, t.drops = map[string][]rule{}, map[string]bool{}
	chain := ""
	return t.each(func(e legacyEntry) error {
		if name, ok := names[e.offset]; ok {
			chain = name
		}
		switch {
		case e.target.name == errorTarget:
		case policies[e.offset]:
			t.drops[chain] = standardVerdict(e.target.info, false, names).kind == drop
		default:
			r := rule{t.rule(e, names), fmt.Sprintf("number %d", len(t.chains[chain])+1)}
			t.chains[chain] = append(t.chains[chain], r)
		}
		return nil
	})
}

// policies are the offsets of the entries that are the policies of base chains (ipt_getinfo.underflow).
func (t *legacyTable) policies() map[int]bool {
	all := map[int]bool{}
	for i := range legacyHooks {
		if t.hasHook(i) {
			all[int(binary.NativeEndian.Uint32(t.info[tableNameSize+4+4*(legacyHookCount+i):]))] = true
		}
	}
	return all
}

// hasHook reports whether the table has a base chain at a hook (ipt_getinfo.valid_hooks).
func (t *legacyTable) hasHook(i int) bool {
	return binary.NativeEndian.Uint32(t.info[tableNameSize:])&(1<<i) != 0
}

const errorTarget = "ERROR"

// chainNames are the names of chains by the offset of their first rule.
func (t *legacyTable) chainNames() map[int]string {
	names := map[int]string{}
	for i, name := range legacyHooks {
		if t.hasHook(i) {
			names[int(binary.NativeEndian.Uint32(t.info[tableNameSize+4+4*i:]))] = name
		}
	}
	head := ""
	_ = t.each(func(e legacyEntry) error {
		if head != "" {
			names[e.offset] = head
		}
		head = ""
		if e.target.name == errorTarget {
			name, _, _ := bytes.Cut(e.target.info, []byte{0})
			head = string(name)
		}
		return nil
	})
	return names
}

// rule translates an entry.
func (t *legacyTable) rule(e legacyEntry, chains map[int]string) []step {
	r := t.header4or6(e.header)
	for _, m := range e.matches {
		r = append(r, xtMatch(m.name, m.revision, m.info)...)
	}
	if e.target.name != "" {
		return append(r, xtTarget(e.target.name, e.target.revision, e.target.info)...)
	}
	flags := e.header[t.flags()]
	return append(r, standardVerdict(e.target.info, flags&t.gotoFlag != 0, chains))
}

// standardVerdict: a negative number is a verdict of the kernel, -1 less; another the offset of a chain.
func standardVerdict(info []byte, isGoto bool, chains map[int]string) verdict {
	if len(info) < 4 {
		return verdict{kind: end, what: "target, which cannot be understood"}
	}
	switch n := int32(binary.NativeEndian.Uint32(info)); {
	case n >= 0 && isKubeProxyChain(chains[int(n)]):
		return verdict{kind: proceed}
	case n >= 0 && isGoto:
		return verdict{kind: goTo, chain: chains[int(n)]}
	case n >= 0:
		return verdict{kind: jump, chain: chains[int(n)]}
	case n == -1-1: // NF_ACCEPT
		return verdict{kind: accept}
	case n == -1-4: // XT_RETURN
		return verdict{kind: giveBack}
	case n == -1: // NF_DROP
		return verdict{kind: drop, what: "DROP"}
	}
	return verdict{kind: end, what: "QUEUE"}
}

// Offsets in struct ipt_ip and ip6t_ip6: two addresses, two masks, two names of devices with their masks, and the
// protocol; then flags, in IPv6 after the traffic class.
func (f *legacyFamily) devices() int  { return 4 * f.address }
func (f *legacyFamily) protocol() int { return 4*f.address + 4*nameSize }
func (f *legacyFamily) flags() int {
	if f.family == familyIPv6 {
		return f.protocol() + 3
	}
	return f.protocol() + 2
}

// Inversions and flags (IPT_INV_*, IPT_F_FRAG; the same in IPv6, where there is no FRAG).
const (
	notIn          = 0x01
	notOut         = 0x02
	notSource      = 0x08
	notDestination = 0x10
	notFragment    = 0x20
	notProtocol    = 0x40
	onlyFragments  = 0x01
)

// header4or6 returns the tests of an entry's header.
func (t *legacyTable) header4or6(h []byte) (r []step) {
	size, inverted := t.address, h[t.flags()+1]
	add := func(inversion uint8, v value, wanted ranges) {
		r = append(r, invertIf(inverted&inversion != 0, v.test(wanted)))
	}
	if mask := h[2*size : 3*size]; !zero(mask) {
		add(notSource, value{field: source, mask: mask}.placed(size == 16), equal(h[:size]))
	}
	if mask := h[3*size : 4*size]; !zero(mask) {
		add(notDestination, value{field: destination, mask: mask}.placed(size == 16), equal(h[size:2*size]))
	}
	names := h[t.devices():]
	for i, f := range []field{inName, outName} {
		if name := masked(names[i*nameSize:], names[(2+i)*nameSize:]); len(name) > 0 {
			add([]uint8{notIn, notOut}[i], value{field: f}, equal(name))
		}
	}
	number := binary.NativeEndian.Uint16(h[t.protocol():])
	if t.family == familyIPv4 && h[t.flags()]&onlyFragments != 0 { // fragments have no shortcut
		r = append(r, certainly(inverted&notFragment != 0))
	}
	if number != 0 {
		add(notProtocol, value{field: protocol}, equal([]byte{byte(number)}))
	}
	return r
}

// masked returns the first bytes of a device's name, as many as the mask has.
func masked(name, mask []byte) []byte {
	n := 0
	for n < nameSize && bits.OnesCount8(mask[n]) == 8 {
		n++
	}
	return name[:n]
}

func zero(b []byte) bool { return bytes.Count(b, []byte{0}) == len(b) }
