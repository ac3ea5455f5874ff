// SPDX-License-Identifier: Apache-2.0

package offload

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ti-mo/conntrack"
)

// legacy replaces the table filter of iptables-legacy at the router: 40 chains, and rules.
func (w *world) legacy(rules string) {
	w.t.Helper()
	var table strings.Builder
	table.WriteString("*filter\n:FORWARD ACCEPT [0:0]\n")
	for i := range 40 {
		fmt.Fprintf(&table, ":c%02d - [0:0]\n", i)
	}
	w.feed("router", table.String()+rules+"COMMIT\n", "iptables-legacy-restore")
}

// Rules of iptables-legacy have their effect on flows that were offloaded, a condition names them, and flows are
// offloaded again when they are gone.
func TestLegacyRules(t *testing.T) {
	w := newWorld(t, "--offload-devices=c0,s?")
	w.start()
	limited, other, six := w.open("udp", plain, 0), w.open("tcp", dnat, 0), w.open("tcp", plain, 1)
	w.settle(limited, other, six)
	w.legacy(fmt.Sprintf("-A FORWARD -p udp --dport %d -j c39\n-A c39 -m limit --limit 1/min --limit-burst 1 -j RETURN\n-A c39 -j DROP\n", limited.port))
	limited.stops()
	other.wantStack()
	w.settle(six)
	if text, _ := w.agent.CLI("status"); !*stack && (!strings.Contains(text, "OffloadLegacyRules: iptables-legacy rules in chain FORWARD of table filter") || !strings.Contains(text, "iptables-nft")) {
		t.Errorf("status:\n%s", text)
	}
	w.legacy("")
	w.settle(limited, other, six)
	if text, _ := w.agent.CLI("status"); strings.Contains(text, "OffloadLegacyRules") {
		t.Errorf("status:\n%s", text)
	}
	w.wantNoneInvalid()
}

// A flow that was offloaded ends when what rules decide by changes to what they drop: the mark of its conntrack entry,
// the group of its device, the realm of its route.
func TestFlowsThatRulesComeToDrop(t *testing.T) {
	w := newWorld(t, "--offload-devices=c0,s?")
	w.start()
	for _, c := range []struct {
		name, match string
		do, undo    func(*flow)
	}{
		{"connection mark", "ct mark 7", func(f *flow) { f.setMark(7) }, func(f *flow) { f.setMark(5) }},
		{"device group", "iifgroup 7", func(*flow) { w.ip("router", "link set c0 group 7") }, func(*flow) { w.ip("router", "link set c0 group 0") }},
		{"realm of the route", "rt classid 7", func(*flow) { w.ip("router", "route replace 10.9.0.0/24 via 10.2.0.2 realm 7") },
			func(*flow) { w.ip("router", "route replace 10.9.0.0/24 via 10.2.0.2") }},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := w.in(t)
			f := w.open("udp", plain, 0)
			w.nft(fmt.Sprintf("table ip late { chain forward { type filter hook forward priority 5; th dport %d %s drop; }; }", f.port, c.match))
			time.Sleep(2 * soon) // the agent notices the rule, which returns all flows
			f.settle()
			c.do(f)
			f.stops()
			c.undo(f)
			f.continues(10 * soon * load)
			f.settle()
			w.nft("delete table ip late")
		})
	}
	w.wantNoneInvalid()
}

// setMark sets the mark of a flow's conntrack entry, as conntrack -U does.
func (f *flow) setMark(mark uint32) {
	f.w.t.Helper()
	f.w.must(f.w.host("router").Do(func() error {
		c, err := conntrack.Dial(nil)
		if err != nil {
			return err
		}
		defer c.Close()
		all, err := c.Dump(nil)
		if err != nil {
			return err
		}
		for _, one := range all {
			if one.TupleReply.Proto.SourcePort != f.port {
				continue
			}
			// The kernel refuses attributes that cannot change.
			change := conntrack.Flow{TupleOrig: one.TupleOrig, TupleReply: one.TupleReply, Mark: mark}
			if err := c.Update(change); err != nil {
				return err
			}
		}
		return nil
	}))
}
