// SPDX-License-Identifier: Apache-2.0

package netfilter

import "slices"

// A rule is a list of steps. A packet takes one after the other, until a test of one fails or a verdict ends the rule.
type rule struct {
	steps []step
	// name is how the operator finds it in its chain, such as "handle 7".
	name   string
	handle uint64 // of nftables
	// Of packets that get to the first effect or verdict: their addresses, and whether none is of IPv4, or of IPv6.
	places         []place
	never4, never6 bool
	// text is the expressions of nftables that it was translated from, and sets are those that they read.
	text string
	sets []*nftSet
}

func (r *rule) add(s ...step) { r.steps = append(r.steps, s...) }

// A place is addresses of one family.
type place struct {
	destination, ipv6 bool
	addresses         spans
}

// mayMatch reports whether packets of a class get to the first effect or verdict, as far as their family and
// addresses tell. With thousands of rules about pods of other nodes, walks are short by this.
func (r *rule) mayMatch(c *class) bool {
	if c.v6 && r.never6 || !c.v6 && r.never4 {
		return false
	}
	for i := range r.places {
		p := &r.places[i]
		have := c.src
		if p.destination {
			have = c.dst
		}
		if p.ipv6 == c.v6 && !have.meets(p.addresses) {
			return false
		}
	}
	return true
}

// changes reports whether some packets do not go on to the next rule, or have another mark then.
func (r *rule) changes() bool {
	return slices.ContainsFunc(r.steps, func(s step) bool {
		switch s := s.(type) {
		case verdict, verdictMap:
			return true
		case effect:
			return s.marks != nil
		}
		return false
	})
}

// A step is a test, an effect, a verdict or a verdictMap.
type step interface{}

// A test returns the packets of a class that pass, and those that do not. What cannot be told is in both.
type test func(w *walk, c *class) (yes, no *class)

// An effect is what else than ending its way a rule does to a packet. The packets go on to the next step.
type effect struct {
	// what names it, such as "log".
	what string
	// concerns are the shortcuts that it matters to.
	concerns shortcuts
	// marks returns the mark that packets have from now on; nil: as before. onlyMarks: nothing else happens to
	// them.
	marks     func(w *walk, before mark) mark
	onlyMarks bool
	// marksConnection: connections may have a mark from now on.
	marksConnection bool
	// unknown: it may have any effect, and drop packets.
	unknown bool
	// noTrack: packets are exempt from conntrack, which concerns no shortcut.
	noTrack bool
	// unless is a condition under which there is no effect on packets with a mark; nil: never.
	unless func(w *walk, now mark) bool
}

// marksAny is an effect after which packets may have any mark.
func marksAny(*walk, mark) mark { return anyMark }

// shortcuts are those for which rules are searched: that of pods takes also the first packets of flows; that of the
// offload only flows that the stack has accepted and forwarded.
type shortcuts uint8

const (
	ofBoth shortcuts = iota
	// ofPods: an effect on the first packets of a flow only, or one that is the same if later packets repeat it.
	ofPods
	// ofOffload: an effect that counts packets or what they carry, and changes none.
	ofOffload
)

// verdictKind is how a rule ends.
type verdictKind uint8

const (
	// proceed: with the next rule.
	proceed verdictKind = iota
	// accept: the packet leaves the base chain, and goes on to the next.
	accept
	// end: the packet is queued, translated or diverted. verdict.what names it.
	end
	// drop: the packet is dropped or rejected. verdict.what names it.
	drop
	// jump: to verdict.chain, and then to the next rule.
	jump
	// goTo: to verdict.chain, and then to where this chain was called.
	goTo
	// giveBack: to where this chain was called.
	giveBack
)

type verdict struct {
	kind  verdictKind
	chain string
	what  string
}

// A verdictMap has a verdict for packets that pass a test. The tests exclude each other.
type verdictMap struct {
	elements []mapped
	any      test     // passes what passes one of them
	rest     *verdict // for others; nil: there is none
}

type mapped struct {
	test    test
	verdict verdict
}

// opaque is a part of a rule that is not understood: it may be a test or have any effect.
func opaque(name string) []step {
	return []step{effect{what: name + ", which cannot be understood", marks: marksAny, marksConnection: true, unknown: true}, test(varying)}
}

// quantity is a test for which the kernel counts packets, bytes or connections.
func quantity(name string) []step {
	return []step{effect{what: name, concerns: ofOffload}, test(varying)}
}

// uncertain is a test of something that is not known, but the same for all packets of a direction of a flow.
func uncertain(_ *walk, c *class) (yes, no *class) { return c, c }

// varying is a test of something that may differ between the packets of a flow, or change with time.
func varying(w *walk, c *class) (yes, no *class) {
	if !w.offload {
		return c, c
	}
	all, v := *c, *c
	all.varying = nil
	v.varying = &all
	return &v, &v
}

// readsRoutes is a test by routes.
func readsRoutes(t test) test {
	return func(w *walk, c *class) (yes, no *class) {
		w.routes = true
		return t(w, c)
	}
}

// certainly is a test with the same result for all packets.
func certainly(result bool) test {
	return func(_ *walk, c *class) (yes, no *class) {
		if result {
			return c, nil
		}
		return nil, c
	}
}

func invertIf(invert bool, t test) test {
	if !invert {
		return t
	}
	return func(w *walk, c *class) (yes, no *class) {
		no, yes = t(w, c)
		return yes, no
	}
}

// unlessConnectionsMarked is a test whose result is known while no rule has marked connections.
func unlessConnectionsMarked(result bool) test {
	return func(w *walk, c *class) (yes, no *class) {
		if w.connectionsMarked {
			return c, c
		}
		return certainly(result)(w, c)
	}
}

// testField is a test whether what a field has is in s.
func testField[T ordered[T]](field func(*class) *intervals[T], s intervals[T]) test {
	return func(_ *walk, c *class) (yes, no *class) {
		in, out := field(c).split(s)
		return with(c, field, in), with(c, field, out)
	}
}

// testSource and testDestination are tests of addresses. Those of the other family fail.
func testSource(s spans) test      { return testField(sources, s) }
func testDestination(s spans) test { return testField(destinations, s) }

// testPort is a test of a port. Without one, as in ICMP, a rule reads something else there.
func testPort(destination bool, p ports) test {
	t := testField(sourcePorts, p)
	if destination {
		t = testField(destinationPorts, p)
	}
	return func(w *walk, c *class) (yes, no *class) {
		if c.protocols&^withPorts != 0 {
			return varying(w, c)
		}
		return t(w, c)
	}
}

// testStates is a test of conntrack's state.
func testStates(states ctStates) test {
	return func(w *walk, c *class) (yes, no *class) {
		w.statesRead = true
		return divide(c, func(c *class) *ctStates { return &c.states }, states)
	}
}

// hasEntry is the test that a rule makes which reads anything but the state of a packet's conntrack entry. Without an
// entry the rule does not match, whatever it compares with (NFT_BREAK).
func hasEntry(w *walk, c *class) (yes, no *class) { return testStates(^withoutEntry)(w, c) }

// testProtocol is a test of the protocol's number.
func testProtocol(ok func(number uint8) bool) test {
	return func(_ *walk, c *class) (yes, no *class) {
		var in protocols
		for i, number := range protocolNumbers(c.v6) {
			if ok(number) {
				in |= 1 << i
			}
		}
		return divide(c, func(c *class) *protocols { return &c.protocols }, in)
	}
}

// divide returns the packets that have one of some bits in a field, and the others; nil for none.
func divide[T ctStates | protocols](c *class, field func(*class) *T, bits T) (yes, no *class) {
	switch in, out := *field(c)&bits, *field(c)&^bits; {
	case out == 0:
		return c, nil
	case in == 0:
		return nil, c
	default:
		y, n := *c, *c
		*field(&y), *field(&n) = in, out
		return &y, &n
	}
}

// testDevice is a test of the device that a packet arrives by, or leaves by, as the rules see it: the stack routes
// packets of a bridge's ports by the bridge. With a VRF they see either.
func testDevice(out bool, ok func(name string, index int) bool) test {
	return func(w *walk, c *class) (yes, no *class) {
		if out && w.base.hook <= prerouting { // before routing
			return c, c
		}
		y, n := *c, *c
		all := c.in
		if out {
			all = c.out
		}
		may := func(result bool) deviceSet {
			return all.and(func(i int) bool {
				d := &w.subject.Devices[i]
				own, master := ok(d.Name, d.Index) == result, d.Master != nil && ok(d.Master.Name, d.Master.Index) == result
				switch {
				case d.Master == nil || d.Master.Bridge && w.base.portsSeen():
					return own
				case d.Master.Bridge:
					return master
				}
				return own || master
			})
		}
		if out {
			y.out, n.out = may(true), may(false)
		} else {
			y.in, n.in = may(true), may(false)
		}
		return &y, &n
	}
}
