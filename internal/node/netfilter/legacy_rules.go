// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
)

// A legacyTable is the rules of a table of iptables-legacy, by chain.
type legacyTable struct {
	*legacyFamily
	table  string
	names  map[int]string // of chains of users, by the offset of their first entry
	chains map[string][]rule
}

// rules implements table.
func (t *legacyTable) rules(chain string) ([]rule, error) { return t.chains[chain], nil }

// title implements table.
func (t *legacyTable) title(part, chain string) string {
	return fmt.Sprintf("%s %s in chain %s of table %s", t.program, part, chain, t.table)
}

// readable gives chains of iptables-legacy the rules that they were read with.
func readable(bases []base) ([]base, error) {
	tables := map[string]*legacyTable{}
	for i := range bases {
		c, ok := bases[i].table.(*legacyChain)
		if !ok || c.entries == nil {
			continue
		}
		key := c.program + " " + c.table
		if tables[key] == nil {
			t, err := c.parse(c.table, c.entries)
			if err != nil {
				return nil, fmt.Errorf("read table %s of %s: %w", c.table, c.program, err)
			}
			tables[key] = t
		}
		rules, err := c.parseChain(c.entries, tables[key].names, c.first, c.last)
		if err != nil {
			return nil, fmt.Errorf("read table %s of %s: %w", c.table, c.program, err)
		}
		tables[key].chains[bases[i].chain] = rules
		bases[i].table = tables[key]
	}
	return bases, nil
}

// A legacyEntry is a rule, a policy, or what is before a chain of users. It begins with what it matches (struct ipt_ip,
// ip6t_ip6); the offsets of its target and of the next entry are 8 and 6 bytes before the end of its header, without
// its counters. Matches follow it, and its target: each has its size, name and revision.
type legacyEntry struct {
	match    []byte
	matches  []byte
	name     string // of the target; empty: a verdict
	revision uint8
	data     []byte // of the target: a verdict is an offset, or a negative number
	next     int    // offset
}

const (
	extensionHeader, extensionNameAt, extensionNameSize = 32, 2, 29
	countersSize                                        = 16
	legacyAccept, legacyDrop, legacyQueue, legacyReturn = -2, -1, -4, -5 // -NF_ACCEPT-1 and so on
)

var errLegacyLayout = errors.New("unexpected layout")

func (f *legacyFamily) entry(entries []byte, at int) (e legacyEntry, err error) {
	if at < 0 || at+f.header > len(entries) {
		return e, errLegacyLayout
	}
	target := at + int(binary.NativeEndian.Uint16(entries[at+f.offsets:]))
	e.next = at + int(binary.NativeEndian.Uint16(entries[at+f.offsets+2:]))
	if e.next > len(entries) || target < at+f.header || target+extensionHeader > e.next {
		return e, errLegacyLayout
	}
	e.match, e.matches = entries[at:at+f.header], entries[at+f.header:target]
	e.name, e.revision = extensionName(entries[target:])
	e.data = entries[target+extensionHeader : e.next]
	return e, nil
}

func extensionName(e []byte) (name string, revision uint8) {
	name, _, _ = strings.Cut(string(e[extensionNameAt:][:extensionNameSize]), "\x00")
	return name, e[extensionHeader-1]
}

// clearCounters sets counters to 0, so that entries differ only if rules do.
func (f *legacyFamily) clearCounters(entries []byte) {
	for at := 0; at < len(entries); {
		e, err := f.entry(entries, at)
		if err != nil {
			return
		}
		clear(entries[at+f.header-countersSize : at+f.header])
		at = e.next
	}
}

// chainNames returns the names of chains of users, by the offset of their first entry: after a target ERROR.
func (f *legacyFamily) chainNames(entries []byte) (map[int]string, error) {
	names := map[int]string{}
	for at := 0; at < len(entries); {
		e, err := f.entry(entries, at)
		if err != nil {
			return nil, err
		}
		if e.name == "ERROR" && e.next < len(entries) {
			name, _, _ := strings.Cut(string(e.data), "\x00")
			names[e.next] = name
		}
		at = e.next
	}
	return names, nil
}

// hasProxy reports whether the table has chains that kube-proxy alone makes. What cannot be read has none.
func (c *legacyChain) hasProxy() bool {
	names, err := c.chainNames(c.entries)
	if err != nil {
		return false
	}
	for _, name := range names {
		if slices.Contains(kubeProxyOnly, name) {
			return true
		}
	}
	return false
}

// parse returns the chains of users, without those of kube-proxy.
func (f *legacyFamily) parse(table string, entries []byte) (*legacyTable, error) {
	names, err := f.chainNames(entries)
	if err != nil {
		return nil, err
	}
	t := &legacyTable{legacyFamily: f, table: table, names: names, chains: map[string][]rule{}}
	for first, name := range names {
		if isKubeProxyChain(name) {
			continue
		}
		if t.chains[name], err = f.parseChain(entries, names, first, len(entries)); err != nil {
			return nil, err
		}
	}
	return t, nil
}

// parseChain returns the rules from an offset to another, or to the end of the chain.
func (f *legacyFamily) parseChain(entries []byte, names map[int]string, from, to int) (all []rule, _ error) {
	for at := from; at < to; {
		e, err := f.entry(entries, at)
		if err != nil {
			return nil, err
		}
		if e.name == "ERROR" {
			break
		}
		r := rule{name: fmt.Sprintf("rule %d", len(all)+1)}
		r.add(f.ownTests(e.match)...)
		if err := e.addMatches(&r); err != nil {
			return nil, err
		}
		if err := f.addTarget(&r, &e, names); err != nil {
			return nil, err
		}
		all = append(all, r)
		at = e.next
	}
	return all, nil
}

func (e *legacyEntry) addMatches(r *rule) error {
	for left := e.matches; len(left) > 0; {
		size := 0
		if len(left) >= extensionHeader {
			size = int(binary.NativeEndian.Uint16(left))
		}
		if size < extensionHeader || size > len(left) {
			return errLegacyLayout
		}
		name, revision := extensionName(left)
		r.add(xtMatch(name, uint32(revision), left[extensionHeader:size])...)
		left = left[size:]
	}
	return nil
}

func (f *legacyFamily) addTarget(r *rule, e *legacyEntry, names map[int]string) error {
	if e.name != "" {
		r.add(xtTarget(e.name, uint32(e.revision), e.data)...)
		return nil
	}
	if len(e.data) < 4 {
		return errLegacyLayout
	}
	switch v := int(int32(binary.NativeEndian.Uint32(e.data))); {
	case v == legacyAccept:
		r.add(verdict{kind: accept})
	case v == legacyDrop:
		r.add(verdict{kind: drop, what: "DROP"})
	case v == legacyQueue:
		r.add(verdict{kind: end, what: "QUEUE"})
	case v == legacyReturn:
		r.add(verdict{kind: giveBack})
	case v < 0:
		return errLegacyLayout
	case names[v] == "": // the next rule
	case isKubeProxyChain(names[v]):
	case f.goes(e.match):
		r.add(verdict{kind: goTo, chain: names[v]})
	default:
		r.add(verdict{kind: jump, chain: names[v]})
	}
	return nil
}

// Flags of struct ipt_ip and ip6t_ip6. Those that invert matches are the same in both.
const (
	legacyFragment, legacyGoto4 = 1 << 0, 1 << 1 // IPT_F_*
	legacyGoto6                 = 1 << 2         // IP6T_F_GOTO
	invertedIn, invertedOut     = 1 << 0, 1 << 1 // IPT_INV_VIA_IN, IPT_INV_VIA_OUT
	invertedSource              = 1 << 3         // IPT_INV_SRCIP
	invertedDestination         = 1 << 4         // IPT_INV_DSTIP
	invertedFragment            = 1 << 5         // IPT_INV_FRAG
	invertedProtocol            = 1 << 6         // XT_INV_PROTO
)

func (f *legacyFamily) goes(match []byte) bool {
	if f.family == familyIPv6 {
		return match[f.inversions-1]&legacyGoto6 != 0
	}
	return match[f.inversions-1]&legacyGoto4 != 0
}

// ownTests are those of an entry without matches: addresses of source and destination with their masks, names of
// devices with theirs, and the protocol.
func (f *legacyFamily) ownTests(match []byte) (steps []step) {
	size, inverted := 4, match[f.inversions]
	if f.family == familyIPv6 {
		size = 16
	}
	source, sourceMask := match[:size], match[2*size:3*size]
	destination, destinationMask := match[size:2*size], match[3*size:4*size]
	steps = append(steps, f.addressTest(testSource, source, sourceMask, inverted&invertedSource != 0)...)
	steps = append(steps, f.addressTest(testDestination, destination, destinationMask, inverted&invertedDestination != 0)...)
	devices := match[4*size:]
	steps = append(steps, deviceTest(false, devices[:nameSize], devices[2*nameSize:3*nameSize], inverted&invertedIn != 0)...)
	steps = append(steps, deviceTest(true, devices[nameSize:2*nameSize], devices[3*nameSize:4*nameSize], inverted&invertedOut != 0)...)
	if number := binary.NativeEndian.Uint16(devices[4*nameSize:]); number != 0 {
		steps = append(steps, invertIf(inverted&invertedProtocol != 0, testProtocol(func(n uint8) bool { return uint16(n) == number })))
	}
	if f.family == familyIPv4 && (match[f.inversions-1]&legacyFragment != 0 || inverted&invertedFragment != 0) {
		steps = append(steps, test(varying))
	}
	return steps
}

func (f *legacyFamily) addressTest(make func(spans) test, address, mask []byte, inverted bool) []step {
	bits, size := net.IPMask(mask).Size()
	switch {
	case size == 0: // not that of a prefix
		return []step{test(uncertain)}
	case bits == 0:
		return nil
	}
	a, _ := netip.AddrFromSlice(address)
	return []step{invertIf(inverted, make(spans{spanOf(netip.PrefixFrom(a, bits))}))}
}

// deviceTest compares the bytes of a name that the mask has.
func deviceTest(out bool, name, mask []byte, inverted bool) []step {
	if zero(mask) {
		return nil
	}
	return []step{invertIf(inverted, testDevice(out, func(device string, _ int) bool {
		for i, b := range nameBytes(device)[:nameSize] {
			if (b^name[i])&mask[i] != 0 {
				return false
			}
		}
		return true
	}))}
}
