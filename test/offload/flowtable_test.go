// SPDX-License-Identifier: Apache-2.0

package offload

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/report/condition"
)

// TestFlowtable has the agent use the kernel's flowtable. A kernel without one is refused in words, with its error, and
// all flows take the stack.
func TestFlowtable(t *testing.T) {
	w := newWorld(t, "--offload-devices=c0,s?,x0", "--offload-provider=flowtable", fmt.Sprintf("--offload-exclude-ports=%d", portExcluded))
	w.path = api.PathFlowtable
	if *stack {
		t.Skip("about agents")
	}
	w.start()
	if !w.hasFlowtable() {
		w.wantUnavailable()
		w.open("tcp", both, 0).wantStack()
		return
	}
	for _, group := range []struct {
		name  string
		cases func(*world)
	}{
		{"transfers", transfers},
		{"stays on the stack", staysOnStack},
		{"what people see", flowtableViews},
		{"changes", flowtableChanges},
		{"killed and started again", (*world).killed},
	} {
		t.Run(group.name, func(t *testing.T) {
			w := w.in(t)
			group.cases(w)
			w.wantNoneInvalid()
		})
	}
}

// hasFlowtable reports what nft says, of a table that it does not keep.
func (w *world) hasFlowtable() bool {
	w.t.Helper()
	cmd := w.host("router").Command(w.t.Context(), "nft", "-c", "add table inet try; add flowtable inet try f { hook ingress priority 0; devices = { c0 }; }")
	out, err := cmd.CombinedOutput()
	w.t.Logf("nft on a flowtable: %v %s", err, out)
	return err == nil
}

func (w *world) wantUnavailable() {
	w.t.Helper()
	const want = "flowtable: the flowtable is not available: the kernel has no modules nf_flow_table_inet and nft_flow_offload"
	w.must(w.agent.WaitFor("without a provider", func(s *api.Status) bool {
		for _, c := range s.Conditions {
			if c.Code == condition.OffloadUnavailable.Code {
				return strings.HasPrefix(c.Message, want) && strings.Contains(c.Message, "no such file or directory")
			}
		}
		return false
	}))
	text, err := w.agent.CLI("offload", "status")
	w.must(err)
	if !strings.Contains(text, "Offload: off: "+want) {
		w.t.Errorf("beeline offload status: %s", text)
	}
}

// flowtableViews: a flow is shown with its path and what conntrack counts, one that stays on the stack with the reason.
func flowtableViews(w *world) {
	f := w.open("tcp", both, 0)
	f.settle()
	w.must(f.exchange(50))
	shown := f.shown()
	if shown.FromClient.Path != api.PathFlowtable || shown.ToClient.Path != api.PathFlowtable || shown.FromClient.Packets < 50 {
		w.t.Errorf("%s is shown as %+v", f, shown)
	}
	for _, ends := range [][2]netip.AddrPort{{shown.Client, shown.Address}, {shown.Backend, shown.SeenAs}} {
		text, err := w.agent.CLI("explain", "packet", ends[0].String(), ends[1].String()+"/tcp")
		w.must(err)
		if !strings.Contains(text, "in a flowtable of the kernel (flowtable)") {
			w.t.Errorf("explain packet %v: %s", ends, text)
		}
	}
	f.finish()
	for port, reason := range map[uint16]string{portExcluded: "--offload-exclude-ports", portLimited: "it would bypass", portHelper: "helper"} {
		f := w.openPort("tcp", dnat, 1, port)
		w.must(f.exchange(60))
		for _, d := range []api.FlowDirection{f.shown().FromClient, f.shown().ToClient} {
			if d.Path != api.PathRefused || !strings.Contains(d.Reason, reason) {
				w.t.Errorf("%s is shown as %+v, want it refused: %s", f, d, reason)
			}
		}
		f.abort()
	}
}

// flowtableChanges are those that have to be followed by the agent.
func flowtableChanges(w *world) {
	all := w.everyFlow()
	for _, c := range everyChange {
		// The kernel notices a MAC address that is not announced when the stack would, and takes of flows whose
		// answers come by another device only one direction (offload.md).
		if strings.Contains(c.name, "not announced") || c.name == "other next hop" {
			continue
		}
		w.t.Run(c.name, func(t *testing.T) { w.in(t).changed(c, all) })
	}
	w.t.Run("own table deleted", func(t *testing.T) { w.in(t).ownTable(all) })
	w.t.Run("new drop rule", func(t *testing.T) { w.in(t).dropRule(all) })
	w.t.Run("deleted conntrack entry", func(t *testing.T) { w.in(t).forgotten(all) })
}
