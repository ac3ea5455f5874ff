// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// A base is a chain that the kernel calls.
type base struct {
	table  table
	family uint8  // NFPROTO_*
	chain  string // of its table
	hook   hook
	// priority orders the bases of a hook.
	priority int32
	drop     bool // the policy
	nat      bool // sees only the first packet of a flow
	legacy   bool // of iptables-legacy
	// devices are those of a netdev chain.
	devices []string
}

// A table is where the chains are.
type table interface {
	// rules returns the rules of a chain.
	rules(chain string) ([]rule, error)
	// title describes a rule or policy of a chain, such as "nftables rule in chain a of table ip b".
	title(part, chain string) string
}

type hook uint8

// In the order in which packets meet them.
const (
	ingress hook = iota
	bridgeInput
	prerouting
	forward
	bridgeOutput
	postrouting
	egress
)

// portsSeen reports whether the rules see the ports of bridges, and not the bridge.
func (b *base) portsSeen() bool { return b.family == familyBridge || b.family == familyNetdev }

// A Finding is a filter.
type Finding struct {
	// Devices are the indexes of the devices whose packets it concerns: those of pods, or those of flow offload.
	Devices []int
	// What describes it for the operator.
	What string
	// Hardware: packets pass it unless the hardware forwards them.
	Hardware bool
	// Legacy: it is a chain of iptables-legacy, whose rules are not read.
	Legacy bool
	// Marks: all that it does is to mark packets, which may set these bits, and no rule after it reads them. It is
	// no filter unless somebody else reads marks. 0: it is one.
	Marks uint32
	// Invalid: it drops packets that conntrack finds invalid, and is no filter of others.
	Invalid bool
	// Kind is where the edge bypasses it, such as "forward"; only for the edge.
	Kind string
	// areas are which flows of flow offload it concerns.
	areas []area
}

// A findingKey is what findings of the same filter share.
type findingKey struct {
	what, kind string
	filters    bool // not only marks
}

// A walk follows the packets of classes through rules.
type walk struct {
	subject *Subject
	offload bool // the rules are searched for flow offload
	edge    bool // the rules are searched for the edge
	// translated: conntrack has the flow of the packets as translated by DNAT; only for the edge.
	translated bool
	// onlyLosses: only rules that drop packets are reported.
	onlyLosses bool
	// invalid: the walk follows packets that conntrack finds invalid.
	invalid bool
	// statesRead: a rule has read the state of conntrack, or anything of its entry.
	statesRead bool
	local      map[bool]local // by whether they are IPv6
	base       *base
	at         string // the name of the rule
	found      []Finding
	places     map[findingKey]int // in found
	// marked are the bits of marks that rules may have set. connectionsMarked: rules may have marked connections.
	marked            uint32
	markedBefore      uint32 // the same before the base chain
	connectionsMarked bool
	routes            bool // a rule has read routes
	left              int  // rules until the walk is given up
	skipped           int  // rules that were skipped and are not in left
	err               error
	// noTrack is called with packets that a rule exempts from conntrack; nil: nobody asks.
	noTrack func(*class)
}

// mostRules bounds the work; every evaluation of a rule counts. Of rules whose addresses a class has not, skipped count
// as one.
const (
	mostRules = 1 << 18
	skipped   = 16
)

// mostDepth is how deep chains call each other. The kernel refuses more than 16 levels (NFT_JUMP_STACK_SIZE).
const mostDepth = 32

// find returns the filters among base chains.
func find(s *Subject, bases []base) ([]Finding, error) {
	slices.SortStableFunc(bases, func(a, b base) int { return cmp.Or(cmp.Compare(a.hook, b.hook), cmp.Compare(a.priority, b.priority)) })
	w := &walk{subject: s}
	w.all(bases)
	if w.connectionsMarked { // which restores marks in chains before the one that sets them
		*w = walk{subject: s, connectionsMarked: true}
		w.all(bases)
	}
	if !w.statesRead || w.err != nil { // rules do not distinguish invalid packets
		return w.found, w.err
	}
	invalid := &walk{subject: s, connectionsMarked: w.connectionsMarked, onlyLosses: true, invalid: true}
	invalid.all(slices.DeleteFunc(slices.Clone(bases), func(b base) bool { return b.legacy || b.nat || b.mayPrecedeConntrack() }))
	return append(w.found, invalid.found...), invalid.err
}

func (w *walk) all(bases []base) {
	w.left, w.local = mostRules, map[bool]local{}
	for _, v6 := range []bool{false, true} {
		w.local[v6] = w.subject.local(v6)
	}
	classes := append(w.subject.classes(false), w.subject.classes(true)...)
	if w.invalid {
		for _, c := range classes {
			c.states = ctInvalid
		}
	}
	for len(bases) > 0 { // by hook and priority: which of these comes first is not known
		n := 1
		for n < len(bases) && bases[n].hook == bases[0].hook && bases[n].priority == bases[0].priority {
			n++
		}
		for marked := ^w.marked; marked != w.marked; {
			marked = w.marked
			for i := range n {
				w.base, w.markedBefore = &bases[i], marked
				for _, c := range classes {
					if w.base.sees(c.v6) {
						w.start(c)
					}
				}
			}
			if n == 1 {
				break
			}
		}
		bases = bases[n:]
	}
}

// sees reports whether packets of a family of IP pass the chain.
func (b *base) sees(v6 bool) bool {
	return b.family != familyIPv4 && v6 || b.family != familyIPv6 && !v6
}

// start follows a class into the base chain.
func (w *walk) start(c *class) {
	b := w.base
	if c = w.seen(c); c.empty() || w.err != nil {
		return
	}
	if b.nat {
		c.states &= ctNew
	}
	if !w.offload && b.mayPrecedeConntrack() {
		if b.priority == priorityConntrack {
			c.states |= withoutEntry
		} else {
			c.states = withoutEntry
		}
	}
	w.at, c.mark.unknown = "", c.mark.unknown|w.markedBefore
	rest := w.chain(b.chain, c, 0)
	switch {
	case w.left <= 0:
		w.report(c, fmt.Sprintf("%s: more than %d rules to search", b.table.title("rules", b.chain), mostRules))
	case b.drop && !rest.empty():
		w.report(w.lost(rest), b.table.title("policy", b.chain)+": drop")
	}
}

// mayPrecedeConntrack reports whether packets may not have met conntrack yet. At its own priority they may have.
func (b *base) mayPrecedeConntrack() bool {
	return b.hook == ingress || b.hook <= prerouting && b.priority <= priorityConntrack
}

// seen returns the packets of a class that pass the hook.
func (w *walk) seen(c *class) *class {
	b, all := w.base, *c
	devices := func(i int) bool {
		d := &w.subject.Devices[i]
		switch b.family {
		case familyBridge:
			if w.offload { // before that, packets have not reached the bridge itself
				return d.Bridge && b.hook > forward
			}
			return d.Master != nil && d.Master.Bridge
		case familyNetdev:
			// At egress, too, also of uplinks: what a program at tc ingress redirects skips it
			// (nf_skip_egress, since Linux 5.16).
			return matchesAny(b.devices, d)
		}
		return true
	}
	switch {
	case b.family == familyBridge && b.hook == forward:
		all.in, all.out = all.in.and(devices), all.out.and(devices)
	case b.hook <= prerouting:
		all.in = all.in.and(devices)
	default:
		all.out = all.out.and(devices)
	}
	return &all
}

// matchesAny reports whether a device, or its bridge, has one of the names; a star at the end of a name matches all.
func matchesAny(names []string, d *Device) bool {
	return slices.ContainsFunc(names, func(name string) bool {
		start, wild := strings.CutSuffix(name, "*")
		is := func(have string) bool { return have == name || wild && strings.HasPrefix(have, start) }
		return is(d.Name) || d.Master != nil && is(d.Master.Name)
	})
}

// chain follows a class through a chain. It returns the packets that come out at its end, or return early.
func (w *walk) chain(name string, c *class, depth int) *class {
	rules, err := w.base.table.rules(name)
	if err != nil {
		w.err = err
		return nil
	}
	if depth > mostDepth {
		return c
	}
	var back *class
	caller := w.at
	for i := range rules {
		r := &rules[i]
		if c != nil && !r.mayMatch(c) {
			if w.skipped++; w.skipped < skipped {
				continue
			}
			w.skipped = 0
			if w.left--; w.left > 0 {
				continue
			}
		}
		if w.left--; w.left <= 0 || c.empty() {
			break
		}
		w.at = r.name
		next, returned := w.rule(name, r, c, depth)
		if r.changes() { // otherwise all packets go on
			c = next
		}
		back = union(back, returned)
	}
	w.at = caller
	return union(back, c)
}

// rule follows a class through a rule. It returns the packets that go on to the next rule, and those that return.
func (w *walk) rule(chain string, r *rule, c *class, depth int) (next, back *class) {
	rest := rest{}
	for _, s := range r.steps {
		var no *class
		switch s := s.(type) {
		case test:
			before := c
			c, no = s(w, c)
			rest.fail(before, c, no)
		case effect:
			c = w.effect(chain, s, c)
		case verdictMap:
			var went *class
			went, no, back = w.verdictMap(chain, s, c, depth)
			rest.add(went)
			rest.add(no)
			c = nil
		case verdict:
			var went *class
			went, back = w.verdict(chain, s, c, depth)
			rest.add(went)
			c = nil
		}
		if c.empty() {
			return rest.class, back
		}
	}
	rest.add(c)
	return rest.class, back
}

// A rest is the packets of a class that go on to the next rule.
type rest struct {
	class *class
	// whole: all packets that are still to come are in class.
	whole bool
	// If one test failed so far: the class that it divided, and the fields by which it did.
	divided *class
	by      dimensions
}

// fail adds the packets that fail a test. Two tests that divide a class by different fields leave, as a product, the
// whole class.
func (r *rest) fail(all, yes, no *class) {
	if no == nil || r.whole {
		r.add(no)
		return
	}
	by := all.differs(yes) | all.differs(no)
	switch {
	case r.class == nil && !no.empty():
		r.class, r.divided, r.by = no, all, by
	case r.class != nil && r.by != allDimensions && r.by&by == 0 && r.divided.mark == all.mark:
		r.class, r.whole = r.divided, true
	default:
		r.add(no)
		r.by = allDimensions
	}
}

func (r *rest) add(c *class) {
	if r.whole && (c.empty() || c.varying == r.class.varying && c.mark == r.class.mark) {
		return
	}
	r.class = union(r.class, c)
}

// verdictMap also returns the packets without a verdict. Each element counts as a rule.
func (w *walk) verdictMap(chain string, m verdictMap, c *class, depth int) (next, no, back *class) {
	var nexts, backs []*class
	follow := func(v verdict, c *class) {
		went, returned := w.verdict(chain, v, c, depth)
		nexts, backs = append(nexts, went), append(backs, returned)
	}
	for _, e := range m.elements {
		if w.left--; w.left <= 0 {
			break
		}
		if yes, _ := e.test(w, c); !yes.empty() {
			follow(e.verdict, yes)
		}
	}
	if _, no = m.any(w, c); m.rest != nil && !no.empty() {
		follow(*m.rest, no)
		no = nil
	}
	return unionOf(nexts), no, unionOf(backs)
}

// verdict follows a class to where a verdict sends it. It returns the packets that go on to the next rule, and those
// that return from the chain.
func (w *walk) verdict(chain string, v verdict, c *class, depth int) (next, back *class) {
	switch v.kind {
	case proceed:
		return c, nil
	case giveBack:
		return nil, c
	case end:
		if !w.onlyLosses || w.edge {
			w.report(c, w.title(chain)+": "+v.what)
		}
	case drop:
		w.report(w.lost(c), w.title(chain)+": "+v.what)
	case jump, goTo:
		if w.edge && w.base.nat && publishesHostPorts(v.chain) {
			return c, nil
		}
		rest := w.chain(v.chain, c, depth+1)
		if v.kind == goTo {
			return nil, rest
		}
		return rest, nil
	}
	return nil, nil
}

// effect follows a class through an effect. It returns its packets, which may have another mark.
func (w *walk) effect(chain string, e effect, c *class) *class {
	if e.noTrack {
		if w.noTrack != nil {
			w.noTrack(c)
		}
		return c
	}
	if e.unless != nil && e.unless(w, c.mark) || e.concerns == ofPods && w.offload || e.concerns == ofOffload && !w.offload {
		return c
	}
	w.connectionsMarked = w.connectionsMarked || e.marksConnection
	what, before := w.title(chain)+": "+e.what, c.mark
	if e.marks != nil {
		if now := e.marks(w, before); now != before {
			all := *c
			all.mark = now
			c = &all
		}
		w.marked |= c.mark.may()
	}
	switch {
	case w.onlyLosses && !(w.edge && e.unknown) || e.onlyMarks && c.mark == before:
	case e.onlyMarks && !w.offload:
		w.reportMarks(c, what)
	default:
		w.report(c, what)
	}
	return c
}

// title describes the rule that the walk is at.
func (w *walk) title(chain string) string {
	title := w.base.table.title("rule", chain)
	if (w.offload || w.edge) && w.at != "" {
		title += " (" + w.at + ")"
	}
	return title
}

// report adds a filter of the packets of a class.
func (w *walk) report(c *class, what string) {
	if c == nil {
		return
	}
	var devices []int
	switch {
	case w.offload:
		w.reportFlows(c, what)
		return
	case w.edge:
		if devices = w.indexes(c.out); len(devices) > 0 {
			w.add(Finding{Devices: devices, What: what, Kind: w.base.kind()})
		}
		return
	default:
		l := w.local[c.v6]
		devices = w.subject.concerned(c, &l)
	}
	if len(devices) == 0 {
		return
	}
	w.add(Finding{Devices: devices, What: what, Invalid: w.invalid})
}

// add adds a finding. One that only marks packets is another one than a filter.
func (w *walk) add(found Finding) {
	key := findingKey{found.What, found.Kind, found.Marks == 0}
	if i, known := w.places[key]; known {
		f := &w.found[i]
		f.Devices, f.Marks = joined(f.Devices, found.Devices), f.Marks|found.Marks
		return
	}
	if w.places == nil {
		w.places = map[findingKey]int{}
	}
	w.places[key] = len(w.found)
	w.found = append(w.found, found)
}

// reportMarks adds that the packets of a class were marked.
func (w *walk) reportMarks(c *class, what string) {
	l := w.local[c.v6]
	if devices := w.subject.concerned(c, &l); len(devices) > 0 && c.mark.may() != 0 {
		w.add(Finding{Devices: devices, What: what, Marks: c.mark.may()})
	}
}
