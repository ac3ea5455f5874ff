// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"cmp"
	"slices"

	"beeline.io/beeline/internal/node/flow"
)

// Findings are the rules with an effect on packets of established flows that a shortcut of flow offload would bypass:
// those that count, limit, queue, log, mark or change packets, and those that drop some packets of a flow and accept
// others. Rules that decide alike for all packets of a flow are none: flow offload learns a flow from packets that
// they have accepted, and again after each change of rules.
type Findings struct {
	All []Finding
	// Routes: rules that flows meet decide by routes, such as a reverse-path filter. When routes change they may
	// decide otherwise.
	Routes bool
}

// About returns a finding about a flow or its replies; nil: none. It does not report what only hardware bypasses.
func (f *Findings) About(one flow.Flow) *Finding { return f.about(one, false) }

// AboutInHardware returns a finding about a flow or its replies if the hardware is to forward them; nil: none.
func (f *Findings) AboutInHardware(one flow.Flow) *Finding { return f.about(one, true) }

func (f *Findings) about(one flow.Flow, hardware bool) *Finding {
	replies := one.Reverse()
	for i := range f.All {
		found := &f.All[i]
		if found.Hardware && !hardware {
			continue
		}
		if slices.ContainsFunc(found.areas, func(a area) bool { return a.has(&one) || a.has(&replies) }) {
			return found
		}
	}
	return nil
}

// Ingress returns a finding about all flows that arrive by a device, and their replies.
func Ingress(device int, what string) Finding {
	return Finding{Devices: []int{device}, What: what, areas: []area{{in: []int{device}}}}
}

// Egress returns a finding about all flows that leave by a device, and their replies, if the hardware forwards them.
func Egress(device int, what string) Finding {
	return Finding{Devices: []int{device}, What: what, Hardware: true, areas: []area{{out: []int{device}}}}
}

// An area is the flows whose packets a rule sees.
type area struct {
	in, out []int  // indexes of devices; nil: any
	class   *class // without devices; nil: all
	stages  []stage
}

// A stage is where on its way a packet is: NAT of destinations is done before forwarding, NAT of sources after it.
type stage struct{ sourceDone, destinationDone bool }

func (a *area) has(f *flow.Flow) bool {
	if !mayBe(a.in, f.InDevice) || !mayBe(a.out, f.OutDevice) {
		return false
	}
	return a.class == nil || slices.ContainsFunc(a.stages, func(s stage) bool { return a.class.has(s.tuple(f)) })
}

// mayBe reports whether a device may be one of some. nil: these are all; 0: the device is not known.
func mayBe(devices []int, device int) bool {
	return devices == nil || device == 0 || slices.Contains(devices, device)
}

// tuple returns what packets have at a stage.
func (s stage) tuple(f *flow.Flow) flow.Tuple {
	t := f.In
	if s.sourceDone {
		t.Source = f.Out.Source
	}
	if s.destinationDone {
		t.Destination = f.Out.Destination
	}
	return t
}

// has compares a tuple with a class.
func (c *class) has(t flow.Tuple) bool {
	return c.leadsTo(t.Destination, t.Protocol) && c.src.has(t.Source.Addr()) && c.sport.has(port(t.Source.Port()))
}

// Priorities at which conntrack sees packets, and NAT is done (NF_IP_PRI_* of linux/netfilter_ipv4.h). Rules of the
// same priority may be before or after.
const (
	priorityConntrack   = -200
	priorityDestination = -100
	prioritySource      = 100
)

// stages returns the stages at which a chain may see packets.
func (b *base) stages() []stage {
	before, done, after := stage{}, stage{destinationDone: true}, stage{true, true}
	switch {
	case b.hook == forward:
		return []stage{done}
	case b.hook < prerouting || b.hook == prerouting && b.priority < priorityDestination:
		return []stage{before}
	case b.hook == prerouting && b.priority == priorityDestination:
		return []stage{before, done}
	case b.hook == prerouting || b.hook == postrouting && b.priority < prioritySource:
		return []stage{done}
	case b.hook == postrouting && b.priority == prioritySource:
		return []stage{done, after}
	}
	return []stage{after}
}

// findForOffload returns what flows between devices would bypass.
func findForOffload(devices []Device, bases []base) (*Findings, error) {
	slices.SortStableFunc(bases, func(a, b base) int { return cmp.Or(cmp.Compare(a.hook, b.hook), cmp.Compare(a.priority, b.priority)) })
	// Rules may have marked a connection when it was new; its packets get the mark when a rule restores it.
	w := &walk{subject: &Subject{Devices: devices}, offload: true, connectionsMarked: true, left: mostRules}
	for i := range bases {
		w.base, w.markedBefore = &bases[i], w.marked
		for _, v6 := range []bool{false, true} {
			if w.base.sees(v6) {
				w.startFlows(v6)
			}
		}
	}
	return &Findings{All: w.found, Routes: w.routes}, w.err
}

// startFlows follows the packets of established flows into the base chain.
func (w *walk) startFlows(v6 bool) {
	all := w.subject.devices(func(*Device) bool { return true })
	c := packets(v6, all, ctEstablished)
	b := w.base
	switch {
	case b.mayPrecedeConntrack():
		c.states |= ctInvalid
	case b.family == familyBridge: // packets of the flow cache have no conntrack entry there
		all := c
		all.states = ctInvalid
		unknown := all
		unknown.varying = &all
		w.onlyLosses = true
		w.start(&unknown)
		w.onlyLosses = false
	}
	w.start(&c)
}

// bypassed reports whether packets of the flow cache do not pass the chain. They leave by a bridge as packets of the
// node do. The kernel has packets that a program of tc redirects skip the chains at egress of netdev (nf_skip_egress).
func (b *base) bypassed() bool { return b.family != familyBridge }

// lost returns the packets of a class whose loss matters: to flow offload those of flows of which others are accepted.
func (w *walk) lost(c *class) *class {
	if !w.offload {
		return c
	}
	return c.and(c.varying)
}

// reportFlows adds a finding about the flows of a class.
func (w *walk) reportFlows(c *class, what string) {
	hardware := !w.base.bypassed() && !w.onlyLosses
	a := area{in: w.indexes(c.in), out: w.indexes(c.out), class: c, stages: w.base.stages()}
	i := slices.IndexFunc(w.found, func(f Finding) bool { return f.What == what && f.Hardware == hardware })
	if i < 0 {
		i = len(w.found)
		w.found = append(w.found, Finding{What: what, Hardware: hardware, Legacy: w.base.legacy})
	}
	f := &w.found[i]
	f.Devices = joined(f.Devices, joined(a.in, a.out))
	f.areas = append(f.areas, a)
}

func (w *walk) indexes(s deviceSet) (all []int) {
	for i, d := range w.subject.Devices {
		if s[i] {
			all = append(all, d.Index)
		}
	}
	return all
}
