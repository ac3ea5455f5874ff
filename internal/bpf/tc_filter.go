// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"cmp"
	"errors"
	"fmt"
	"hash/fnv"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/node/tcfilter"
)

// Where the kernel has no links for tc (before Linux 6.6) the programs are filters of the qdisc clsact, identified
// by their priority, handle and name. Two components at one device have different priorities.
const (
	componentFilterPriority = 191
	filterHandle            = 0xbee
)

// filterNamePrefix is the prefix of the names of a component's filters.
func filterNamePrefix(component string) string { return tcfilter.OwnPrefix + component + "_" }

// filterName distinguishes the agents of several bpffs directories.
func filterName(bpffs, component string) string {
	h := fnv.New32a()
	h.Write([]byte(bpffs))
	return fmt.Sprintf("%s%08x", filterNamePrefix(component), h.Sum32())
}

func (c *Component) filterPriority() uint16 { return cmp.Or(c.FilterPriority, componentFilterPriority) }

var filterParents = map[ebpf.AttachType]uint32{
	ebpf.AttachTCXIngress: netlink.HANDLE_MIN_INGRESS, ebpf.AttachTCXEgress: netlink.HANDLE_MIN_EGRESS,
}

// AttachFilter attaches a program, or replaces that of an earlier agent atomically.
func (c *Component) AttachFilter(bpffs string, device int, at ebpf.AttachType, program *ebpf.Program) error {
	qdisc := &netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: device, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT,
	}}
	if err := netlink.QdiscAdd(qdisc); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("add the qdisc clsact: %w", err)
	}
	return netlink.FilterReplace(&netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{
			LinkIndex: device, Parent: filterParents[at], Handle: filterHandle, Priority: c.filterPriority(), Protocol: unix.ETH_P_ALL,
		},
		Fd: program.FD(), Name: filterName(bpffs, c.Name), DirectAction: true,
	})
}

// A foundFilter is a filter in this network namespace.
type foundFilter struct {
	*netlink.BpfFilter
	at ebpf.AttachType
}

// filters finds its filters of a bpffs directory in this network namespace.
func (c *Component) filters(bpffs string) ([]foundFilter, error) {
	qdiscs, err := netlink.QdiscList(nil)
	if err != nil {
		return nil, fmt.Errorf("list qdiscs: %w", err)
	}
	var all []foundFilter
	for _, q := range qdiscs {
		if q.Type() != "clsact" {
			continue
		}
		device, err := netlink.LinkByIndex(q.Attrs().LinkIndex)
		if err != nil {
			continue // removed meanwhile
		}
		for at, parent := range filterParents {
			list, err := netlink.FilterList(device, parent)
			if err != nil {
				return nil, fmt.Errorf("list the filters of %s: %w", device.Attrs().Name, err)
			}
			for _, f := range list {
				f, ok := f.(*netlink.BpfFilter)
				if ok && f.Handle == filterHandle && f.Priority == c.filterPriority() && f.Name == filterName(bpffs, c.Name) {
					all = append(all, foundFilter{f, at})
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
