// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"os"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// ForeignAt finds the program of another Beeline at a component's hook at tc of a device to which this one is not
// attached yet; 0: there is none.
func (d *Datapath) ForeignAt(c *Component, h *DeviceHook, device int) (ebpf.ProgramID, error) {
	if _, err := os.Stat(ownedLinkPath(d.options.BPFFS, c.Name, uint64(device), h.Name)); err == nil {
		return 0, nil
	}
	id, err := d.foreignLink(h, device)
	if errors.Is(err, ebpf.ErrNotSupported) || errors.Is(err, unix.EINVAL) { // the latter before Linux 6.6
		return c.foreignFilter(d.options.BPFFS, h, device)
	}
	return id, err
}

// foreignLink finds another Beeline's program in the links of a tc hook; 0: there is none.
func (d *Datapath) foreignLink(h *DeviceHook, device int) (ebpf.ProgramID, error) {
	found, err := link.QueryPrograms(link.QueryOptions{Target: device, Attach: h.Attach})
	if err != nil {
		return 0, err
	}
	for _, p := range found.Programs {
		info, err := programInfo(p.ID)
		if err == nil && info.Name != "" && strings.HasPrefix(h.ProgramFor(device), info.Name) && !d.loaded(p.ID) {
			return p.ID, nil
		}
	}
	return 0, nil
}

// foreignFilter is foreignLink for kernels that have only filters.
func (c *Component) foreignFilter(bpffs string, h *DeviceHook, device int) (ebpf.ProgramID, error) {
	l, err := netlink.LinkByIndex(device)
	if err != nil {
		return 0, err
	}
	filters, err := netlink.FilterList(l, filterParents[h.Attach])
	if err != nil {
		return 0, nil // there is no clsact
	}
	for _, f := range filters {
		f, ok := f.(*netlink.BpfFilter)
		if ok && f.Priority == c.filterPriority() && f.Name != filterName(bpffs, c.Name) && strings.HasPrefix(f.Name, filterNamePrefix(c.Name)) {
			return ebpf.ProgramID(f.Id), nil
		}
	}
	return 0, nil
}

// ForeignProgram reports whether a program is not one that this agent has loaded, and its name; empty: not known.
func (d *Datapath) ForeignProgram(id uint32) (name string, foreign bool) {
	if d.loaded(ebpf.ProgramID(id)) {
		return "", false
	}
	if info, err := programInfo(ebpf.ProgramID(id)); err == nil {
		name = info.Name
	}
	return name, true
}

// loaded reports whether this agent has loaded a program: a link whose pin was removed holds its program
// for a moment longer.
func (d *Datapath) loaded(id ebpf.ProgramID) bool {
	d.loading.Lock()
	defer d.loading.Unlock()
	for _, p := range d.programs {
		if info, err := p.Info(); err == nil {
			if own, ok := info.ID(); ok && own == id {
				return true
			}
		}
	}
	return false
}
