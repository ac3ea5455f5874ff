// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"fmt"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// If the kernel has no links for tc, filters are used: replaced in place, found again, and removed with
// their qdisc unless another program has a filter there.
func TestFilters(t *testing.T) {
	w := newEdgeWorld(t)
	attach := func(p *ebpf.Program) {
		w.do(func() error {
			return errors.Join(edgeAt().AttachFilter(w.options.BPFFS, w.device, ebpf.AttachTCXEgress, p), edgeAt().AttachFilter(w.options.BPFFS, w.device, ebpf.AttachTCXIngress, p))
		})
	}
	hooks := fmt.Sprintf("%[1]d egress, %[1]d ingress", w.device)
	for range 2 {
		p := anyProgram(t, ebpf.SchedCLS)
		attach(p)
		w.want(hooks)
		for _, a := range w.attached() {
			if a.ProgramID != idOf(t, p) {
				t.Errorf("%s has program %d, want %d", a.Hook, a.ProgramID, idOf(t, p))
			}
		}
	}
	foreign := &netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{LinkIndex: w.device, Parent: netlink.HANDLE_MIN_EGRESS, Handle: 1, Priority: 1, Protocol: unix.ETH_P_ALL},
		Fd:          anyProgram(t, ebpf.SchedCLS).FD(), Name: "other", DirectAction: true,
	}
	w.do(func() error { return netlink.FilterAdd(foreign) })
	w.do(func() error { return edgeAt().detachAll(w.options.BPFFS + "_other") })
	w.want(hooks)
	w.do(func() error { return edgeAt().detachAll(w.options.BPFFS) })
	w.want("")
	if n := w.clsacts(); n != 1 {
		t.Fatalf("%d qdiscs, and another program's filter was there", n)
	}
	attach(anyProgram(t, ebpf.SchedCLS))
	w.do(func() error { return errors.Join(netlink.FilterDel(foreign), edgeAt().detachAll(w.options.BPFFS)) })
	if n := w.clsacts(); n != 0 {
		t.Errorf("%d qdiscs are left", n)
	}
}

func (w *edgeWorld) clsacts() (n int) {
	w.t.Helper()
	w.do(func() error {
		all, err := netlink.QdiscList(nil)
		for _, q := range all {
			if q.Type() == "clsact" {
				n++
			}
		}
		return err
	})
	return n
}
