// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"fmt"

	"github.com/vishvananda/netlink"

	"beeline.io/beeline/internal/node/tcfilter"
)

// queues finds the queues of pods' devices, and the filters of tc there and at the devices that lead to other nodes.
// Packets on the shortcut skip the queue of the node's end of a pod's device; they pass those of uplinks.
func (f *finder) queues(s surroundings) ([]filter, error) {
	list, err := f.network.Queues()
	if err != nil {
		return nil, err
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

// passed reports whether packets on the shortcut pass a direction of a device nevertheless: what is sent to other
// nodes leaves by the uplink's egress.
func (s *surroundings) passed(device int, d tcfilter.Direction) bool {
	return d == tcfilter.Egress && s.isUplink(device)
}

// classifiers finds the filters of a device with a qdisc of this kind that are not Beeline's.
func (f *finder) classifiers(s surroundings, device int, kind string) (all []filter, err error) {
	for _, direction := range []tcfilter.Direction{tcfilter.Egress, tcfilter.Ingress} {
		if s.passed(device, direction) || kind == "ingress" && direction == tcfilter.Egress {
			continue
		}
		found, err := f.tc.Classifiers(device, direction)
		if err != nil {
			return nil, fmt.Errorf("list the filters of tc at %s: %w", s.network.device(device).Name, err)
		}
		for _, what := range found {
			all = append(all, s.filtersAt(device, what)...)
		}
	}
	return all, nil
}
