// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"
	"hash/fnv"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Where the kernel has no links for tc (before Linux 6.6) the programs are filters of the clsact qdisc,
// identified by these numbers and their name.
const (
	filterPriority = 190
	filterHandle   = 0xbee

	filterNamePrefix = "beeline_edge_"
)

// filterName distinguishes the agents of several bpffs directories.
func filterName(bpffs string) string {
	h := fnv.New32a()
	h.Write([]byte(bpffs))
	return fmt.Sprintf("%s%08x", filterNamePrefix, h.Sum32())
}

var filterParents = map[EdgeHook]uint32{EdgeIngress: netlink.HANDLE_MIN_INGRESS, EdgeEgress: netlink.HANDLE_MIN_EGRESS}

// attachFilter attaches a program, or replaces that of an earlier agent atomically.
func attachFilter(bpffs string, device int, hook EdgeHook, program *ebpf.Program) error {
	qdisc := &netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: device, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT,
	}}
	if err := netlink.QdiscAdd(qdisc); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("add the qdisc clsact: %w", err)
	}
	return netlink.FilterReplace(&netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{
			LinkIndex: device, Parent: filterParents[hook], Handle: filterHandle, Priority: filterPriority, Protocol: unix.ETH_P_ALL,
		},
		Fd: program.FD(), Name: filterName(bpffs), DirectAction: true,
	})
}

// edgeFilters finds a bpffs directory's filters in this network namespace.
func edgeFilters(bpffs string) ([]EdgeAttachment, error) {
	qdiscs, err := netlink.QdiscList(nil)
	if err != nil {
		return nil, fmt.Errorf("list qdiscs: %w", err)
	}
	var all []EdgeAttachment
	for _, q := range qdiscs {
		if q.Type() != "clsact" {
			continue
		}
		device, err := netlink.LinkByIndex(q.Attrs().LinkIndex)
		if err != nil {
			continue // removed meanwhile
		}
		for hook, parent := range filterParents {
			filters, err := netlink.FilterList(device, parent)
			if err != nil {
				return nil, fmt.Errorf("list the filters of %s: %w", device.Attrs().Name, err)
			}
			for _, f := range filters {
				if f, ok := f.(*netlink.BpfFilter); ok && f.Handle == filterHandle && f.Priority == filterPriority && f.Name == filterName(bpffs) {
					all = append(all, EdgeAttachment{Device: f.LinkIndex, Hook: hook, ProgramID: uint32(f.Id), filter: f})
				}
			}
		}
	}
	return all, nil
}

// removeFilter removes a filter, and the qdisc if it has no other filters.
func removeFilter(f *netlink.BpfFilter) error {
	if err := netlink.FilterDel(f); err != nil {
		return err
	}
	device, err := netlink.LinkByIndex(f.LinkIndex)
	if err != nil {
		return nil
	}
	for _, parent := range filterParents {
		left, err := netlink.FilterList(device, parent)
		if err != nil || len(left) > 0 {
			return err
		}
	}
	return netlink.QdiscDel(&netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: f.LinkIndex, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT,
	}})
}
