// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// If the kernel has no links for tc, filters are used: replaced in place, found again, and removed with
// their qdisc unless another program has a filter there.
func TestFilters(t *testing.T) {
	w := newDeviceWorld(t)
	c := passing(DeviceHook{Name: "egress", Attach: ebpf.AttachTCXEgress}, DeviceHook{Name: "ingress", Attach: ebpf.AttachTCXIngress})
	want := func(count int, program uint32) {
		t.Helper()
		w.do(func() error {
			all, err := c.DeviceAttachments(w.options.BPFFS)
			if len(all) != count {
				t.Errorf("attached: %+v, want %d filters", all, count)
			}
			for i, l := range all {
				if l.Hook != c.DeviceHooks[i].Name || l.Device() != w.device || l.Program != ebpf.ProgramID(program) {
					t.Errorf("attached: %+v, want %s at device %d with program %d", l, c.DeviceHooks[i].Name, w.device, program)
				}
			}
			return err
		})
	}
	attach := func(p *ebpf.Program) {
		w.do(func() error {
			return errors.Join(c.AttachFilter(w.options.BPFFS, w.device, ebpf.AttachTCXEgress, p), c.AttachFilter(w.options.BPFFS, w.device, ebpf.AttachTCXIngress, p))
		})
	}
	attach(anyProgram(t, ebpf.SchedCLS))
	p := anyProgram(t, ebpf.SchedCLS)
	attach(p)
	want(2, idOf(t, p))
	foreign := &netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{LinkIndex: w.device, Parent: netlink.HANDLE_MIN_EGRESS, Handle: 1, Priority: 1, Protocol: unix.ETH_P_ALL},
		Fd:          anyProgram(t, ebpf.SchedCLS).FD(), Name: "other", DirectAction: true,
	}
	w.do(func() error { return netlink.FilterAdd(foreign) })
	w.do(func() error { return c.detachAll(w.options.BPFFS + "_other") })
	want(2, idOf(t, p))
	w.do(func() error { return c.detachAll(w.options.BPFFS) })
	want(0, 0)
	if n := w.clsacts(); n != 1 {
		t.Fatalf("%d qdiscs, and another program's filter was there", n)
	}
	attach(anyProgram(t, ebpf.SchedCLS))
	w.do(func() error { return errors.Join(netlink.FilterDel(foreign), c.detachAll(w.options.BPFFS)) })
	if n := w.clsacts(); n != 0 {
		t.Errorf("%d qdiscs are left", n)
	}
}

// anyProgram passes all packets.
func anyProgram(t *testing.T, kind ebpf.ProgramType) *ebpf.Program {
	t.Helper()
	verdict := int32(2) // XDP_PASS
	if kind == ebpf.SchedCLS {
		verdict = -1 // TC_ACT_UNSPEC
	}
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: kind, License: "Dual BSD/GPL", Instructions: asm.Instructions{
		asm.Mov.Imm(asm.R0, verdict), asm.Return(),
	}})
	must(t, err)
	t.Cleanup(func() { p.Close() })
	return p
}

func idOf(t *testing.T, p *ebpf.Program) uint32 {
	t.Helper()
	info, err := p.Info()
	must(t, err)
	id, _ := info.ID()
	return uint32(id)
}

func (w *deviceWorld) clsacts() (n int) {
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
