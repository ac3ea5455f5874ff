// SPDX-License-Identifier: Apache-2.0

package twin

import (
	"slices"
	"time"
)

// A walk carries out a plan: it makes changes, and sends frames of new flows and of those of steps before.
type walk struct {
	*world
	plan    *plan
	able    map[string]bool // changes that this kernel can make
	made    int
	ports   []uint16 // of flows that a shortcut has learned
	running []Frame  // of flows that a later step sends again
	excuses faults
	settled time.Time
}

// renewed is after how many steps a shortcut that learns flows learns others: odd frames end some of them.
const renewed = 10

func newWalk(w *world, p *plan, excuses faults) *walk {
	k := &walk{world: w, plan: p, able: map[string]bool{}, excuses: excuses}
	for _, group := range p.groups {
		for _, c := range group {
			k.able[c.name] = w.lacks(c) == ""
		}
	}
	return k
}

// step carries out the next step, and returns it with what differs.
func (k *walk) step() (step, []Difference) {
	k.t.Helper()
	s := k.plan.next()
	switch {
	case s.made != nil && k.able[s.made.name]:
		k.make(*s.made)
		k.made++
		k.follows(*s.made)
	case s.unmade != nil && k.able[s.unmade.name]:
		k.restore(*s.unmade)
	}
	if k.layout.learns > 0 && s.number%renewed == 1 && len(k.changes) == 0 {
		k.ports = []uint16{k.nextPort(), k.nextPort()}
		for _, port := range k.ports {
			k.warm(port, port == k.ports[0])
		}
	}
	if k.withoutAgent() {
		time.Sleep(time.Until(k.settled))
		k.running = nil
	}
	frames := k.again(s.repeat)
	for _, d := range s.frames {
		frames = append(frames, k.frames(d)...)
	}
	for i, f := range k.forged(k.nextPort()) {
		if s.sources>>(i%64)&3 == 3 { // a quarter
			frames = append(frames, f)
		}
	}
	k.running = frames[max(0, len(frames)-16):]
	found := k.differences(frames, max(0, time.Until(k.settled)))
	if slices.ContainsFunc(found, func(d Difference) bool { return !k.excuses.explain(d) }) {
		found = k.differences(framesOf(found), busy)
	}
	// The port may by chance be one that another flow was translated to. In the other lab that flow has another.
	found = slices.DeleteFunc(found, func(d Difference) bool {
		return d.Kind() == Elsewhere && k.sides[0].ofNoFlow(d.Frame) && k.sides[1].ofNoFlow(d.Frame)
	})
	return s, found
}

// busy is the patience with a machine that does much besides.
const busy = 3 * time.Second

func (k *walk) restore(c change) {
	k.t.Helper()
	k.unmake(c)
	for _, s := range k.sides {
		k.must(s.meetAll())
	}
	k.settle()
	k.follows(c)
}

// withoutAgent reports whether a change has ended the agent. What comes after it is seen when the agent's last search
// is too old, and flows that began before stay.
func (k *walk) withoutAgent() bool {
	return slices.ContainsFunc(k.plan.active, func(c change) bool { return c.ended && k.able[c.name] })
}

func (k *walk) follows(c change) {
	wait := c.follows
	if c.ended {
		wait = max(wait, filterAge)
	}
	if at := time.Now().Add(wait); at.After(k.settled) {
		k.settled = at
	}
}

// end undoes what is in force.
func (k *walk) end() {
	k.t.Helper()
	for _, c := range k.plan.active {
		if k.able[c.name] {
			k.restore(c)
		}
	}
}

// again are some frames of the last steps.
func (k *walk) again(which uint64) (some []Frame) {
	for i, f := range k.running {
		if which>>i&1 == 1 {
			some = append(some, f)
		}
	}
	return some
}

// frames are those of a draft: in a new flow, or one that the shortcut has learned.
func (k *walk) frames(d draft) []Frame {
	k.t.Helper()
	flow, port := k.flows()[d.flow], k.nextPort()
	if len(k.ports) > 0 && d.id%4 != 0 {
		port = k.ports[int(d.id)%len(k.ports)]
	}
	f := flow.datagram(port)
	switch d.protocol {
	case 0:
		f = flow.segment(port, "PA", 0)
	case 1:
		f = flow.echo(port)
	}
	f.ID, f.DF, f.Length = d.id, d.df, d.length
	for _, odd := range d.kinds {
		odd.make(&f)
	}
	if f.Protocol == icmp && f.To.IsMulticast() && !f.To.Is4() {
		f.Reply = true // the node answers requests from link-local addresses, which differ in two labs
	}
	if f.Rest >= f.Length {
		f.Rest = 0 // a kind has taken the payload
	}
	if f.Segment > 0 && f.unmerged() {
		f.Segment, f.Length = 0, min(f.Length, 1000)
	}
	if k.layout.objects != nil {
		k.tame(&f)
	}
	plain := flow.datagram(port)
	if f.Protocol != icmp && f.Ports == flow.echo(port).Ports { // an echo that a kind has made a segment
		f.Ports = plain.Ports
	}
	if f.Protocol == tcp {
		plain = flow.segment(port, "PA", 100)
	}
	if len(d.kinds) == 0 || !d.after {
		return []Frame{f}
	}
	return []Frame{plain, f}
}

// tame leaves out of a frame to a Service what follows from two causes of which one is documented (differences.md): the
// edge handles fragments one by one, where the node reassembles them; it does not fragment merged packets, nor answer
// pings in fragments; it drops what opens no connection, but not in fragments; and it does not look at the checksums of
// later packets, while conntrack translates back also those of quoted packets that are half done.
func (k *walk) tame(f *Frame) {
	const longest = 1400 // of segments: a tunnel's may need fragments
	ends, inFragments := slices.Contains(f.Kinds, "a FIN"), f.Rest > 0 || f.Segment > longest && !f.DF
	if f.TTL > 0 && f.TTL <= 2 && (inFragments || ends || f.Partial) {
		f.TTL = 64
	}
	if ends {
		f.Rest = 0
	}
	if f.Wrong == wrongChecksum && (f.Extension != nil || f.Rest > 0) {
		f.Wrong = ""
	}
	if f.Protocol == icmp {
		f.Rest = 0
	}
	if f.Segment > 0 && len(k.changes) > 0 {
		f.DF = true
	}
}

// unmerged reports whether a frame is none of merged segments. With extension headers a veth splits them when it sends
// (gso_features_check, Linux 6.17), which a redirect to the peer passes by: the same octets arrive in another number of
// packets. No stack makes the others: it merges no fragments and no single segment, and what it has not checksummed
// yet has the right length.
func (f Frame) unmerged() bool {
	return f.Extension != nil || f.More || f.Offset > 0 || f.Rest > 0 || f.Wrong == wrongLength || f.Length <= f.Segment
}

// plain is the scenario of frames that are not odd, while no change is in force.
const plain = "plain frames"

// scenarios are the kinds of a difference's frame, and the changes in force.
func (d Difference) scenarios() []string {
	all := slices.Concat(d.Frame.combined(), d.Changes)
	if len(all) == 0 {
		return []string{plain}
	}
	return all
}
