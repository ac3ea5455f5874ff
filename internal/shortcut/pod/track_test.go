// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"net/netip"
	"slices"
	"testing"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/conntrack/kernelct"
	"beeline.io/beeline/internal/node"
	"beeline.io/beeline/internal/node/netdev"
)

// trackingDatapath has flows, and notes which of them conntrack has.
type trackingDatapath struct {
	*fakeDatapath
	t               *testing.T
	flows, returned []kernelct.Flow
	beginning       []kernelct.Flow // begin when others have been tracked
}

func (d *trackingDatapath) Pods() bpf.Hash[bpf.Address, Row] { return d.pods }

func (d *trackingDatapath) TrackFlows(ends map[netip.Addr]bool) (all []kernelct.Flow, err error) {
	for _, f := range d.flows {
		if ends[f.Source.Addr()] || ends[f.Destination.Addr()] {
			all = append(all, f)
		}
	}
	d.flows = slices.DeleteFunc(d.flows, func(f kernelct.Flow) bool { return slices.Contains(all, f) })
	for end := range ends {
		if row, ok := d.pods[bpf.AddressFrom(end)]; ok && len(all) > 0 && row.Withheld == 0 {
			d.t.Errorf("flows of %s are tracked before its new flows take the stack", end)
		}
	}
	if len(all) > 0 {
		d.flows, d.beginning = append(d.flows, d.beginning...), nil
	}
	return all, nil
}

func (d *trackingDatapath) UntrackFlows(flows []kernelct.Flow) error {
	d.returned = append(d.returned, flows...)
	return nil
}

// Flows of a pod that leaves the shortcut are tracked before its row is deleted; they return when all pods for which
// they were tracked have returned. So do flows that begin until the row is deleted. Those of a pod that has ended are
// not tracked.
func TestFlowsLeaveAndReturn(t *testing.T) {
	a, b, c := netip.MustParseAddrPort("10.0.0.1:1"), netip.MustParseAddrPort("10.0.0.2:2"), netip.MustParseAddrPort("10.0.0.3:3")
	flow := kernelct.Flow{Source: a, Destination: b, Protocol: 6}
	ended := kernelct.Flow{Source: c, Destination: netip.MustParseAddrPort("10.0.1.1:1"), Protocol: 6}
	late := kernelct.Flow{Source: netip.AddrPortFrom(a.Addr(), 9), Destination: b, Protocol: 6}
	d := &trackingDatapath{fakeDatapath: newFakeDatapath(), t: t, flows: []kernelct.Flow{flow, ended}, beginning: []kernelct.Flow{late}}
	s := newShortcut(d, Config{Network: new(node.Network)})
	n := &network{devices: []netdev.Device{{Index: 1}, {Index: 2}}} // the device of c is gone
	n.prepare()
	podRows := func(ends ...netip.AddrPort) map[bpf.Address]Row {
		all := map[bpf.Address]Row{}
		for _, end := range ends {
			all[bpf.AddressFrom(end.Addr())] = Row{Device: uint32(end.Port())}
		}
		return all
	}
	write := func(ends ...netip.AddrPort) {
		t.Helper()
		if err := s.write(&rows{network: n, pods: podRows(ends...)}); err != nil {
			t.Fatal(err)
		}
		if len(d.pods) != len(ends) {
			t.Errorf("the table has %d pods, want %d", len(d.pods), len(ends))
		}
	}
	write(a, b, c)
	write()
	if !slices.Equal(d.flows, []kernelct.Flow{ended}) {
		t.Errorf("all pods have left the shortcut: conntrack does not have the flows %v, want it to have all but %v, whose pod has ended", d.flows, ended)
	}
	write(a)
	if len(d.returned) > 0 {
		t.Errorf("%s is on the shortcut again, %s is not: the flows %v between them have returned, want none", a.Addr(), b.Addr(), d.returned)
	}
	write(a, b)
	if !slices.Equal(d.returned, []kernelct.Flow{flow, late}) {
		t.Errorf("%s and %s are on the shortcut again: the flows %v have returned, want %v and %v", a.Addr(), b.Addr(), d.returned, flow, late)
	}
}
