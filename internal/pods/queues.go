// SPDX-License-Identifier: Apache-2.0

package pods

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/netdev"
)

// queues finds the queues of pods' devices, and the filters of tc there and at the devices that lead to other nodes.
// Packets on the shortcut skip the queue of the node's end of a pod's device; they pass those of uplinks.
func (f *finder) queues(s surroundings) ([]filter, error) {
	list, err := netdev.Dump(func() ([]netlink.Qdisc, error) { return netlink.QdiscList(nil) })
	if err != nil {
		return nil, fmt.Errorf("list qdiscs: %w", err)
	}
	var all []filter
	for _, q := range list {
		device := q.Attrs().LinkIndex
		pods, uplink := len(s.behind[device]) > 0, s.isUplink(device)
		switch kind := q.Type(); {
		case !pods && !uplink:
		case kind == "clsact" || kind == "ingress":
			found, err := f.classifiers(s, device, kind)
			if err != nil {
				return nil, err
			}
			all = append(all, found...)
		case pods && q.Attrs().Parent == netlink.HANDLE_ROOT && kind != "noqueue":
			all = append(all, s.filtersAt(device, "qdisc "+kind)...)
		}
	}
	return all, nil
}

// directions are the parents of the filters of a qdisc clsact.
var directions = map[string]uint32{"ingress": netlink.HANDLE_MIN_INGRESS, "egress": netlink.HANDLE_MIN_EGRESS}

// passed reports whether packets on the shortcut pass a direction of a device nevertheless: what is sent to other
// nodes leaves by the uplink's egress.
func (s *surroundings) passed(device int, direction string) bool {
	return s.isUplink(device) && direction == "egress"
}

// classifiers finds the filters of a device with a qdisc of this kind that are not Beeline's.
func (f *finder) classifiers(s surroundings, device int, kind string) (all []filter, err error) {
	for _, direction := range slices.Sorted(maps.Keys(directions)) {
		if s.passed(device, direction) || kind == "ingress" && direction == "egress" {
			continue
		}
		list, err := netdev.Dump(func() ([]netlink.Filter, error) {
			return netlink.FilterList(&netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: device}}, directions[direction])
		})
		switch {
		case errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EINVAL): // removed meanwhile
			continue
		case err != nil:
			return nil, fmt.Errorf("list the filters of tc at %s: %w", s.network.link(device).name, err)
		}
		for _, c := range list {
			what := fmt.Sprintf("tc filter %s at %s", c.Type(), direction)
			if b, ok := c.(*netlink.BpfFilter); ok {
				if !f.isForeign(uint32(b.Id)) {
					continue
				}
				what = fmt.Sprintf("BPF program %s (tc filter at %s)", f.nameOf(uint32(b.Id)), direction)
			}
			all = append(all, s.filtersAt(device, what)...)
		}
	}
	return all, nil
}
