// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// refuseForeignEdge refuses the edge of another Beeline at a device to which this one is not attached yet:
// each would translate what the other has translated.
func (d *Datapath) refuseForeignEdge(device int, hook EdgeHook) error {
	if _, err := os.Stat(ownedLinkPath(d.options.BPFFS, edgeName, uint64(device), string(hook))); err == nil {
		return nil
	}
	id, err := d.foreignLink(device, hook)
	if errors.Is(err, ebpf.ErrNotSupported) || errors.Is(err, unix.EINVAL) { // the latter before Linux 6.6
		id, err = foreignFilter(d.options.BPFFS, device, hook)
	}
	if err != nil || id == 0 {
		return err
	}
	return fmt.Errorf("another Beeline serves the device already (program %d): stop it and run `beeline cleanup` with its --pins, "+
		"or leave the device out with --devices, or disable the edge with --edge-mode=off", id)
}

// foreignLink finds another Beeline's program in the links of a tc hook; 0: there is none.
func (d *Datapath) foreignLink(device int, hook EdgeHook) (ebpf.ProgramID, error) {
	found, err := link.QueryPrograms(link.QueryOptions{Target: device, Attach: hook.declared().Attach})
	if err != nil {
		return 0, err
	}
	for _, p := range found.Programs {
		info, err := programInfo(p.ID)
		if err == nil && info.Name != "" && strings.HasPrefix(hook.declared().programAt(device), info.Name) && !d.loaded(p.ID) {
			return p.ID, nil
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

// foreignFilter is foreignLink for kernels that have only filters.
func foreignFilter(bpffs string, device int, hook EdgeHook) (ebpf.ProgramID, error) {
	l, err := netlink.LinkByIndex(device)
	if err != nil {
		return 0, err
	}
	filters, err := netlink.FilterList(l, filterParents[hook.declared().Attach])
	if err != nil {
		return 0, nil // there is no clsact
	}
	for _, f := range filters {
		f, ok := f.(*netlink.BpfFilter)
		if ok && f.Priority == edgeFilterPriority && f.Name != filterName(bpffs, edgeName) && strings.HasPrefix(f.Name, filterNamePrefix(edgeName)) {
			return ebpf.ProgramID(f.Id), nil
		}
	}
	return 0, nil
}
