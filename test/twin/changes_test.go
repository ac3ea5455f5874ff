// SPDX-License-Identifier: Apache-2.0

package twin

import (
	"flag"
	"fmt"
	"net/netip"
	"slices"
	"testing"
)

var only = flag.String("only", "", "compare this change, or this kind of frames, alone")

// Each change of the node's configuration has the same effect on flows that run, on new ones, and after it has been
// undone, within the time in which a shortcut follows it. With -short only one change of each fault is made, in one
// layout, by two pairs of labs at the same time.
func TestChanges(t *testing.T) {
	if testing.Short() {
		for half := range 2 {
			t.Run(fmt.Sprintf("%s, half %d", layouts[0].name, half), func(t *testing.T) {
				t.Parallel()
				compareChanges(t, layouts[0], func(c change) bool {
					return c.needs == "" && example(c.name) && slices.IndexFunc(changes, c.is)%2 == half
				})
			})
		}
		return
	}
	for _, l := range layouts {
		t.Run(l.name, func(t *testing.T) {
			t.Parallel()
			compareChanges(t, l, func(c change) bool { return c.needs == "" })
		})
	}
}

// The same of changes that not every kernel can make (test/kernels/plan), in a layout of each kind: emulation is slow.
func TestChangesOfSomeKernels(t *testing.T) {
	some := func(c change) bool { return c.needs != "" }
	for _, l := range layouts {
		if testing.Short() || !slices.Contains([]string{"routed", "bridge", "netkit", "offload", "balancer", "balancer by XDP"}, l.name) {
			continue
		}
		t.Run(l.name, func(t *testing.T) {
			t.Parallel()
			compareChanges(t, l, some)
		})
	}
}

// wantNamed fails if -only is no whole name: nothing would be compared.
func wantNamed(t *testing.T) {
	t.Helper()
	if *only != "" && !slices.Contains(scenarioNames(), *only) {
		t.Fatalf("-only=%q: no change (changes.go) and no kind of frames (odd.go) has this name", *only)
	}
}

// compareChanges makes those changes of a layout that a test selects.
func compareChanges(t *testing.T, l *layout, selects func(change) bool) {
	wantNamed(t)
	inTime(t, ofChanges)
	w := newWorld(t, l)
	for _, c := range changesOf(l) {
		if *only == c.name || *only == "" && selects(c) {
			t.Run(c.name, func(t *testing.T) { w.in(t).wantChange(c) })
		}
	}
	w.report()
}

// wantChange compares frames before, during and after a change.
func (w *world) wantChange(c change) {
	w.t.Helper()
	inTime(w.t, ofChanges)
	if why := w.lacks(c); why != "" {
		w.t.Skip(why)
	}
	w.renew()
	running := w.changeFrames(true)
	for _, d := range w.differences(running, 0) {
		if !w.ping(d) {
			w.t.Errorf("before the change: %s", d)
		}
	}
	for _, f := range mustList(w.t) {
		if f.conditions != nil && f.covers(w.layout.name, c.name) {
			w.wantNoCondition(f.conditions)
		}
	}
	w.make(c)
	found := w.differences(append(running, w.changeFrames(false)...), c.follows)
	if slices.ContainsFunc(found, func(d Difference) bool { return !excuses(w.t).explain(d) }) {
		found = w.differences(framesOf(found), max(c.follows, busy))
	}
	w.judge(c.name, found)
	w.unmake(c)
	w.renew()
	for _, d := range w.differences(append(running, w.changeFrames(false)...), 2*max(c.follows, soon)) {
		if !w.ping(d) {
			w.t.Errorf("after the change: %s", d)
		}
	}
}

// changeFrames are frames of new flows of each pair: short ones, and such as an MTU concerns.
func (w *world) changeFrames(withUDP bool) (all []Frame) {
	w.t.Helper()
	port := w.nextPort()
	w.warm(port, withUDP)
	for _, f := range w.flows() {
		long, echo, merged := f.datagram(port), f.echo(port), f.segment(port, "PA", 4000)
		long.Length, echo.TOS, merged.Segment = 1430, 0x10, 1380
		all = append(all, f.datagram(port), long, echo, f.open(port), merged)
	}
	return append(all, w.forged(port)...)
}

// forged are frames from the fabric whose source address is none of its own, by each uplink.
func (w *world) forged(port uint16) (all []Frame) {
	to := w.sides[0].Host("a1")
	for _, by := range []string{uplink, uplink2} {
		if _, ok := w.layout.points[by]; !ok {
			continue
		}
		for _, from := range w.layout.forged {
			f := Frame{At: by, From: netip.MustParseAddr(from), To: to.Addr4, Protocol: udp, Ports: [2]uint16{port, 80}, Length: 100, DF: true}
			if f.From.Is6() {
				f.To = to.Addr6
			}
			all = append(all, f)
		}
	}
	return all
}
