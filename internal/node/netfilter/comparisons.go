// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"bytes"
	"slices"

	"golang.org/x/sys/unix"
)

func (r *translation) bitwise(a attributes) {
	const maskAndXOR = 0 // NFT_BITWISE_MASK_XOR
	v := *r.register(a.number(unix.NFTA_BITWISE_SREG))
	mask, xor := a.nested(unix.NFTA_BITWISE_MASK)[unix.NFTA_DATA_VALUE], a.nested(unix.NFTA_BITWISE_XOR)[unix.NFTA_DATA_VALUE]
	switch {
	case a.number(nftaBitwiseOp) != maskAndXOR || v.mask != nil || v.varies:
		v = value{varies: v.varies, route: v.route}
	case v.field == constant:
		v.mask, v.xor = mask, xor
		v.v4, v.v6 = v.apply(v.v4), v.apply(v.v6)
		v.mask, v.xor = nil, nil
	default:
		v.mask, v.xor = mask, xor
	}
	*r.register(a.number(unix.NFTA_BITWISE_DREG)) = v
}

func (r *translation) compare(name string, a attributes) {
	switch name {
	case "cmp":
		data := a.nested(unix.NFTA_CMP_DATA)[unix.NFTA_DATA_VALUE]
		v, operator := *r.register(a.number(unix.NFTA_CMP_SREG)), a.number(unix.NFTA_CMP_OP)
		if operator == unix.NFT_CMP_EQ {
			r.place(v, equal(data))
		}
		r.add(comparison(v, operator, data))
	case "range":
		from, to := a.nested(unix.NFTA_RANGE_FROM_DATA)[unix.NFTA_DATA_VALUE], a.nested(unix.NFTA_RANGE_TO_DATA)[unix.NFTA_DATA_VALUE]
		const outside = 1 // NFT_RANGE_NEQ
		v, not := *r.register(a.number(unix.NFTA_RANGE_SREG)), a.number(unix.NFTA_RANGE_OP) == outside
		if !not {
			r.place(v, ranges{{from, to}})
		}
		r.add(invertIf(not, v.test(ranges{{from, to}})))
	case "lookup":
		r.lookup(a)
	}
}

// place notes that packets which fail a test of their family or address get no further. Before that there is no effect.
func (r *translation) place(v value, keys ranges) {
	if slices.ContainsFunc(r.rule.steps, func(s step) bool { _, is := s.(test); return !is }) {
		return
	}
	switch v.field {
	case constant:
		r.rule.never4, r.rule.never6 = r.rule.never4 || !keys.has(v.apply(v.v4)), r.rule.never6 || !keys.has(v.apply(v.v6))
		return
	case source, destination:
	default:
		return
	}
	if addresses, ok := v.spans(keys); ok {
		r.rule.places = append(r.rule.places, place{v.field == destination, v.ipv6, addresses})
	}
}

func comparison(v value, operator uint32, data []byte) test {
	first, last := make([]byte, len(data)), bytes.Repeat([]byte{0xff}, len(data))
	switch operator {
	case unix.NFT_CMP_EQ, unix.NFT_CMP_NEQ:
		return invertIf(operator == unix.NFT_CMP_NEQ, v.test(equal(data)))
	case unix.NFT_CMP_LTE, unix.NFT_CMP_GT:
		return invertIf(operator == unix.NFT_CMP_GT, v.test(ranges{{first, data}}))
	case unix.NFT_CMP_GTE, unix.NFT_CMP_LT:
		return invertIf(operator == unix.NFT_CMP_LT, v.test(ranges{{data, last}}))
	}
	return uncertain
}

// lookup: a key of several fields may match anything.
func (r *translation) lookup(a attributes) {
	s, err := r.table.set(a.text(unix.NFTA_LOOKUP_SET))
	if err != nil {
		r.err = err
		return
	}
	r.rule.sets = append(r.rule.sets, s)
	v := *r.register(a.number(unix.NFTA_LOOKUP_SREG))
	if !s.readable || s.keySize != v.size {
		v = r.key(a.number(unix.NFTA_LOOKUP_SREG), s.keySize)
	}
	switch {
	case !a.has(unix.NFTA_LOOKUP_DREG):
		const inverted = 1 // NFT_LOOKUP_F_INV
		not := a.number(unix.NFTA_LOOKUP_FLAGS)&inverted != 0
		if !not && !s.changes && s.rest == nil {
			r.place(v, s.keys())
		}
		r.add(s.now(invertIf(not, s.test(v))))
	case a.number(unix.NFTA_LOOKUP_DREG) == unix.NFT_REG_VERDICT && s.readable:
		r.add(s.verdicts(v))
	case a.number(unix.NFTA_LOOKUP_DREG) == unix.NFT_REG_VERDICT:
		r.add(opaque("map that packets change")...)
	default:
		*r.register(a.number(unix.NFTA_LOOKUP_DREG)) = value{varies: v.varies, route: v.route}
		r.add(s.now(value{varies: v.varies}.test(nil)))
	}
}

// key is a key that may be of several fields. size is in bytes.
func (r *translation) key(number, size uint32) (v value) {
	for at := uint32(0); at < size; at += 4 {
		part := r.registerAt(number, at)
		v.varies, v.route = v.varies || part.varies, v.route || part.route
	}
	return v
}

// now restricts a test by the elements to the moment: of flows that last, elements may come or go.
func (s *nftSet) now(t test) test {
	if !s.changes {
		return t
	}
	return func(w *walk, c *class) (yes, no *class) {
		if w.offload {
			return varying(w, c)
		}
		return t(w, c)
	}
}

func (s *nftSet) test(v value) test {
	if s.rest != nil {
		return certainly(true)
	}
	return v.test(s.keys())
}

func (s *nftSet) verdicts(v value) verdictMap {
	m := verdictMap{any: s.now(v.test(s.keys())), rest: s.rest}
	for _, e := range s.elements {
		m.elements = append(m.elements, mapped{s.now(v.test(ranges{e.keys})), e.verdict})
	}
	return m
}

func (s *nftSet) keys() (all ranges) {
	for _, e := range s.elements {
		all = append(all, e.keys)
	}
	return all
}
