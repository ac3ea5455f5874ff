// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"net/netip"
	"slices"
	"sort"
)

// Subject is whose packets the rules are searched for.
type Subject struct {
	// Networks are the pod networks.
	Networks []netip.Prefix
	Devices  []Device
}

// A Device is one of pods of this node, one that leads to other nodes, or one of flow offload.
type Device struct {
	Index int
	Name  string
	// Master is its bridge or VRF; nil: none.
	Master *Master
	// Bridge: it is a bridge.
	Bridge bool
	// Uplink: it leads to other nodes.
	Uplink bool
	// Pods are the addresses behind a device of pods.
	Pods []netip.Addr
}

// Master is the bridge or VRF of a device.
type Master struct {
	Index  int
	Name   string
	Bridge bool
}

// A deviceSet has an element for each device of the subject.
type deviceSet []bool

func (s deviceSet) empty() bool { return !slices.Contains(s, true) }

func (s deviceSet) and(f func(i int) bool) deviceSet {
	out := slices.Clone(s)
	for i := range out {
		out[i] = out[i] && f(i)
	}
	return out
}

func (s deviceSet) or(other deviceSet) deviceSet {
	if len(s) == 0 || &s[0] == &other[0] {
		return s
	}
	out := slices.Clone(s)
	for i := range out {
		out[i] = out[i] || other[i]
	}
	return out
}

// ctStates are states of conntrack by their bits in nftables (linux/netfilter/nf_conntrack_common.h).
type ctStates uint32

const (
	ctInvalid     ctStates = 1 << 0
	ctEstablished ctStates = 1 << 1
	ctRelated     ctStates = 1 << 2
	ctNew         ctStates = 1 << 3
	ctUntracked   ctStates = 1 << 6

	// ctAll are the states that packets of the shortcut may have on the stack. None is invalid, unless its sender
	// has made it so: both directions take the same path.
	ctAll = ctEstablished | ctRelated | ctNew | ctUntracked

	// withoutEntry are the states of packets that have no conntrack entry. Those that conntrack has not met yet are
	// invalid to rules (nft_ct_get_eval, conntrack_mt), unless a rule has exempted them from it.
	withoutEntry = ctInvalid | ctUntracked
)

// protocols are bits for the protocols with a shortcut: TCP, UDP and the family's ICMP.
type protocols uint8

const (
	onlyTCP      protocols = 1 << 0
	withPorts    protocols = 1<<2 - 1
	allProtocols protocols = 1<<3 - 1
)

// protocolNumbers are the numbers of the bits of protocols.
func protocolNumbers(v6 bool) [3]uint8 {
	if v6 {
		return [3]uint8{6, 17, 58}
	}
	return [3]uint8{6, 17, 1}
}

// A class is a set of packets that the shortcut may take: all combinations of what its fields have. Where a set of
// packets is no such product, the class has more.
type class struct {
	v6           bool
	in, out      deviceSet
	src, dst     spans
	sport, dport ports // of TCP and UDP; ICMP has none
	states       ctStates
	protocols    protocols
	mark         mark
	// varying are those of its flows of which some packets may have gone elsewhere; nil: none. Only for
	// flow offload.
	varying *class
}

func (c *class) empty() bool {
	return c == nil || len(c.src) == 0 || len(c.dst) == 0 || len(c.sport) == 0 || len(c.dport) == 0 ||
		c.states == 0 || c.protocols == 0 || c.in.empty() || c.out.empty()
}

// Fields of a class, for what treats them alike.
func sources(c *class) *spans          { return &c.src }
func destinations(c *class) *spans     { return &c.dst }
func sourcePorts(c *class) *ports      { return &c.sport }
func destinationPorts(c *class) *ports { return &c.dport }

// with returns a class with something else in a field; nil if that is nothing.
func with[T ordered[T]](c *class, field func(*class) *intervals[T], s intervals[T]) *class {
	switch {
	case len(s) == 0:
		return nil
	case sameSlice(s, *field(c)):
		return c
	}
	new := *c
	*field(&new) = s
	return &new
}

// packets are those of a family with ports that arrive and leave by some devices.
func packets(v6 bool, devices deviceSet, states ctStates) class {
	return class{
		v6: v6, in: devices, out: devices, src: everything(v6), dst: everything(v6), sport: allPorts, dport: allPorts,
		states: states, protocols: withPorts,
	}
}

func sameSlice[T any](a, b []T) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

// dimensions are fields of a class.
type dimensions uint16

const allDimensions dimensions = 1<<16 - 1

// differs returns the fields in which classes differ, or may do so. Either may be nil.
func (c *class) differs(other *class) (d dimensions) {
	if c == other || c == nil || other == nil {
		return 0
	}
	for i, same := range []bool{
		sameSlice(c.in, other.in), sameSlice(c.out, other.out), sameSlice(c.src, other.src), sameSlice(c.dst, other.dst),
		sameSlice(c.sport, other.sport), sameSlice(c.dport, other.dport), c.states == other.states, c.protocols == other.protocols,
	} {
		if !same {
			d |= 1 << i
		}
	}
	if c.varying != other.varying || c.mark != other.mark {
		d = allDimensions
	}
	return d
}

// union returns a class with the packets of both. Either may be nil.
func union(a, b *class) *class {
	switch {
	case a.empty():
		return b
	case b.empty():
		return a
	}
	return &class{
		v6: a.v6, in: a.in.or(b.in), out: a.out.or(b.out), src: a.src.or(b.src), dst: a.dst.or(b.dst),
		sport: a.sport.or(b.sport), dport: a.dport.or(b.dport),
		states: a.states | b.states, protocols: a.protocols | b.protocols, mark: a.mark.or(b.mark), varying: union(a.varying, b.varying),
	}
}

// unionOf is union of many classes, each of which may be nil.
func unionOf(all []*class) *class {
	all = slices.DeleteFunc(all, (*class).empty)
	if len(all) <= 2 {
		var u *class
		for _, c := range all {
			u = union(u, c)
		}
		return u
	}
	u := *all[0]
	u.src, u.dst = orOf(all, sources), orOf(all, destinations)
	u.sport, u.dport = orOf(all, sourcePorts), orOf(all, destinationPorts)
	for _, c := range all[1:] {
		u.in, u.out = u.in.or(c.in), u.out.or(c.out)
		u.states, u.protocols, u.mark = u.states|c.states, u.protocols|c.protocols, u.mark.or(c.mark)
		u.varying = union(u.varying, c.varying)
	}
	return &u
}

// orOf returns what is in a field of one of some classes.
func orOf[T ordered[T]](all []*class, field func(*class) *intervals[T]) intervals[T] {
	var distinct []interval[T]
	for i, c := range all {
		if s := *field(c); i == 0 || !sameSlice(s, *field(all[i-1])) {
			distinct = append(distinct, s...)
		}
	}
	if first := *field(all[0]); len(distinct) == len(first) {
		return first
	}
	return merged(distinct)
}

// and returns a class with the packets that are in both. Either may be nil.
func (c *class) and(other *class) *class {
	if c.empty() || other.empty() {
		return nil
	}
	both := &class{
		v6: c.v6, src: c.src.and(other.src), dst: c.dst.and(other.dst), sport: c.sport.and(other.sport), dport: c.dport.and(other.dport),
		in: c.in.and(func(i int) bool { return other.in[i] }), out: c.out.and(func(i int) bool { return other.out[i] }),
		states: c.states & other.states, protocols: c.protocols & other.protocols,
	}
	if both.empty() {
		return nil
	}
	return both
}

// classes are the packets of a family that the shortcut may take: from pods of this node to pods; from pods of other
// nodes to those of this one; of clients outside to these, if they use a Service; and the replies of the clients'.
func (s *Subject) classes(v6 bool) (all []*class) {
	pods, local := s.addresses(v6)
	outside, remote := everything(v6).without(pods), pods.without(local)
	any := s.devices(func(*Device) bool { return true })
	uplinks := s.devices(func(d *Device) bool { return d.Uplink })
	devices := s.devices(func(d *Device) bool { return !d.Uplink })
	for _, c := range []*class{
		{src: local, dst: pods, in: devices, out: any, states: ctAll},
		{src: remote, dst: local, in: uplinks, out: devices, states: ctAll},
		{src: outside, dst: local, in: uplinks, out: devices, states: ctAll},
		{src: local, dst: outside, in: devices, out: uplinks, states: ctAll &^ ctNew},
	} {
		c.v6, c.protocols, c.sport, c.dport = v6, allProtocols, allPorts, allPorts
		if !c.empty() {
			all = append(all, c)
		}
	}
	return all
}

// addresses returns the pod networks of a family, and the addresses of pods of this node there.
func (s *Subject) addresses(v6 bool) (networks, local spans) {
	for _, p := range s.Networks {
		if p.Addr().Is6() == v6 {
			networks = append(networks, spanOf(p))
		}
	}
	var pods []netip.Addr
	for _, d := range s.Devices {
		pods = append(pods, d.Pods...)
	}
	return merged(networks), addressSpans(pods, v6)
}

func (s *Subject) devices(f func(*Device) bool) deviceSet {
	set := make(deviceSet, len(s.Devices))
	for i := range s.Devices {
		set[i] = f(&s.Devices[i])
	}
	return set
}

// local is the addresses of pods of this node in a family.
type local struct {
	all  spans
	pods []podAddress // in the order of their addresses
}

type podAddress struct {
	addr   netip.Addr
	device int // of the subject
}

func (s *Subject) local(v6 bool) (l local) {
	_, l.all = s.addresses(v6)
	for i, d := range s.Devices {
		for _, a := range d.Pods {
			if a.Is6() == v6 {
				l.pods = append(l.pods, podAddress{a, i})
			}
		}
	}
	slices.SortFunc(l.pods, func(a, b podAddress) int { return a.addr.Compare(b.addr) })
	return l
}

// concerned returns the devices of pods without which the shortcut takes no packet of a class.
func (s *Subject) concerned(c *class, l *local) []int {
	from, fromNodes := s.ends(c.in, c.src, l)
	to, toNodes := s.ends(c.out, c.dst, l)
	switch {
	case fromNodes && toNodes:
		return joined(from, to)
	case fromNodes:
		return to
	case toNodes:
		return from
	case len(from) == 0 || len(to) == 0 || len(from) == 1 && slices.Equal(from, to):
		return nil
	case len(to) < len(from):
		return to
	}
	return from
}

// ends returns the devices of pods with such addresses, and whether pods of other nodes or clients outside have such.
func (s *Subject) ends(devices deviceSet, addresses spans, l *local) (pods []int, nodes bool) {
	for _, one := range addresses {
		first := sort.Search(len(l.pods), func(i int) bool { return one.first.Compare(l.pods[i].addr) <= 0 })
		for _, p := range l.pods[first:] {
			if one.last.Compare(p.addr) < 0 {
				break
			}
			if d := p.device; devices[d] && !s.Devices[d].Uplink {
				pods = append(pods, s.Devices[d].Index)
			}
		}
	}
	for i := range s.Devices {
		if devices[i] && s.Devices[i].Uplink {
			nodes = len(addresses.without(l.all)) > 0
			break
		}
	}
	return joined(pods, nil), nodes
}

func joined(a, b []int) []int {
	all := slices.Concat(a, b)
	slices.Sort(all)
	return slices.Compact(all)
}
