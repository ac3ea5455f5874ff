// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/bpf/pinfs"
)

// foreign is what others have on the node: a program at its cgroup, one at eth1's XDP hook, a pin, and a filter
// of tc at eth0. Nothing may touch it.
type foreign struct {
	*world
	cgroup, xdp *ebpf.Program
	link        link.Link
	pin         string
}

func (w *world) newForeign() *foreign {
	w.t.Helper()
	f := &foreign{world: w}
	var err error
	f.cgroup, err = returning("foreign_connect", ebpf.CGroupSockAddr, ebpf.AttachCGroupInet4Connect, 1)
	w.must(err)
	f.link, err = link.AttachCgroup(link.CgroupOptions{Path: w.Host("node-a").CgroupRoot, Attach: ebpf.AttachCGroupInet4Connect, Program: f.cgroup})
	w.must(err)
	w.t.Cleanup(func() { f.link.Close() })
	f.xdp, err = returning("foreign_xdp", ebpf.XDP, ebpf.AttachXDP, 2 /* XDP_PASS */)
	w.must(err)
	filter, err := returning("foreign_filter", ebpf.SchedCLS, ebpf.AttachNone, int32(netlink.TC_ACT_UNSPEC))
	w.must(err)
	defer filter.Close()
	w.must(f.pinIt())
	w.must(f.attachXDP())
	w.must(w.Host("node-a").Do(func() error {
		eth0, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		at := netlink.QdiscAttrs{LinkIndex: eth0.Attrs().Index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT}
		if err := netlink.QdiscAdd(&netlink.GenericQdisc{QdiscAttrs: at, QdiscType: "clsact"}); err != nil {
			return err
		}
		return netlink.FilterAdd(&netlink.BpfFilter{
			FilterAttrs: netlink.FilterAttrs{LinkIndex: at.LinkIndex, Parent: netlink.HANDLE_MIN_INGRESS, Priority: 7, Protocol: unix.ETH_P_ALL},
			Fd:          filter.FD(), Name: "foreign_filter", DirectAction: true,
		})
	}))
	return f
}

// returning is a program that returns a number.
func returning(name string, kind ebpf.ProgramType, attach ebpf.AttachType, number int32) (*ebpf.Program, error) {
	return ebpf.NewProgram(&ebpf.ProgramSpec{Name: name, Type: kind, AttachType: attach, License: "Dual BSD/GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, number), asm.Return()}})
}

// pinIt pins the program beside the agent's directory; inside of it if that is a file system of its own.
func (f *foreign) pinIt() error {
	f.pin = filepath.Join(f.Host("node-a").BPFFS, "foreign")
	if on, err := pinfs.IsFS(filepath.Dir(f.pin), unix.BPF_FS_MAGIC); err != nil {
		return err
	} else if !on {
		f.pin = filepath.Join(f.agent.BPFFS(), "foreign")
	}
	c, err := f.cgroup.Clone()
	if err != nil {
		return err
	}
	defer c.Close()
	return c.Pin(f.pin)
}

func (f *foreign) attachXDP() error {
	return f.Host("node-a").Do(func() error {
		eth1, err := netlink.LinkByName("eth1")
		if err != nil {
			return err
		}
		return netlink.LinkSetXdpFdWithFlags(eth1, f.xdp.FD(), nl.XDP_FLAGS_DRV_MODE)
	})
}

// check returns an error if any of it has changed.
func (f *foreign) check() error {
	return errors.Join(f.checkCgroup(), f.checkPin(), f.Host("node-a").Do(f.checkDevices))
}

func (f *foreign) checkCgroup() error {
	root, err := os.Open(f.Host("node-a").CgroupRoot)
	if err != nil {
		return err
	}
	defer root.Close()
	found, err := link.QueryPrograms(link.QueryOptions{Target: int(root.Fd()), Attach: ebpf.AttachCGroupInet4Connect})
	if err != nil {
		return err
	}
	if id := idOf(f.cgroup); !slices.ContainsFunc(found.Programs, func(p link.AttachedProgram) bool { return p.ID == id }) {
		return errors.New("the foreign program was detached from the cgroup")
	}
	return nil
}

func (f *foreign) checkPin() error {
	p, err := ebpf.LoadPinnedProgram(f.pin, nil)
	if err != nil {
		return fmt.Errorf("the foreign pin: %w", err)
	}
	defer p.Close()
	if idOf(p) != idOf(f.cgroup) {
		return errors.New("the foreign pin has another program")
	}
	return nil
}

func (f *foreign) checkDevices() error {
	eth0, err := netlink.LinkByName("eth0")
	if err != nil {
		return err
	}
	eth1, err := netlink.LinkByName("eth1")
	if err != nil {
		return err
	}
	if xdp := eth1.Attrs().Xdp; xdp == nil || xdp.ProgId != uint32(idOf(f.xdp)) {
		return fmt.Errorf("eth1 has another XDP program: %+v", xdp)
	}
	filters, err := netlink.FilterList(eth0, netlink.HANDLE_MIN_INGRESS)
	if err != nil {
		return err
	}
	if len(filters) != 1 || filters[0].Attrs().Priority != 7 {
		return fmt.Errorf("eth0 has other filters: %v", filters)
	}
	return nil
}

func idOf(p *ebpf.Program) ebpf.ProgramID {
	info, err := p.Info()
	if err != nil {
		return 0
	}
	id, _ := info.ID()
	return id
}
