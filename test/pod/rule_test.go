// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"strings"
	"testing"
	"time"

	"beeline.io/beeline/test/lab"
	"beeline.io/beeline/test/needs"
)

// Routing rules decide about packets on the shortcut by all that they match: packets that a rule drops do not arrive,
// and those that differ in one field take the shortcut.
func TestRoutingRules(t *testing.T) {
	w := startWorld(t, lab.Shape{})
	received := w.listen()
	for _, c := range []struct{ drop, keep string }{
		{"tos 0x10", "tos 0x08"},
		{"ipproto udp", "ipproto tcp"},
		{"ipproto udp sport 9100", "ipproto udp sport 9101"},
		{"ipproto udp dport 9000", "ipproto udp dport 9001"},
		{"iif a1", "iif a2"},
	} {
		for i, family := range []string{"-4", "-6"} {
			for _, rule := range []string{c.drop, c.keep} {
				undo := w.rule(family, rule+" blackhole")
				for to, path := range map[string]string{"a2": "path_local", "b1": "path_out"} {
					f := frame{
						name: "IPv" + family[1:] + " to " + to + ", " + rule, host: "a1", port: 9100, tos: 0x10,
						from: addresses(w.Host("a1"), 0)[i].Addr(), to: addresses(w.Host(to), 0)[i].Addr(),
					}
					if rule == c.keep {
						f.past, f.arrives = []string{path}, to
					}
					t.Run(f.name, func(t *testing.T) { w.in(t).wantFrame(f, received) })
				}
				undo()
			}
		}
	}
}

// Rules by mark drop packets of a tunnel, which have the mark of the outer packet. What gives them the mark is a
// filter, which the shortcut ignores here.
func TestRoutingRulesByMark(t *testing.T) {
	if err := lab.Supports(lab.NetworkVXLAN); err != nil {
		t.Skipf("this kernel has no VXLAN: %v", err)
	}
	needs.Kernel(t, needs.MarkedLookups) // without, the shortcut is withheld
	w := startWorld(t, lab.Shape{Network: lab.NetworkVXLAN}, "--pod-ignore-filters")
	w.rules("node-a", `table netdev outer {
		chain in {
			type filter hook ingress device eth0 priority 0
			meta mark set 7
		}
	}`)
	received := w.listen()
	f := frame{host: "b1", from: w.Host("b1").Addr4, to: w.Host("a1").Addr4}
	for _, mark := range []string{"7", "8"} {
		undo := w.rule("-4", "to "+f.to.String()+" fwmark "+mark+" blackhole") // not the packet's source
		f.name = "fwmark " + mark
		if mark == "8" {
			f.past, f.arrives = []string{"path_in"}, "a1"
		}
		t.Run(f.name, func(t *testing.T) { w.in(t).wantFrame(f, received) })
		undo()
	}
}

// rule adds a routing rule at node-a, and waits until no route that was found without it is remembered. undo deletes
// the rule.
func (w *world) rule(family, text string) (undo func()) {
	w.t.Helper()
	do := func(verb string) {
		w.run("node-a", append([]string{"ip", family, "rule", verb, "pref", "70"}, strings.Fields(text)...)...)
		time.Sleep(100 * time.Millisecond)
	}
	do("add")
	return func() { do("del") }
}
