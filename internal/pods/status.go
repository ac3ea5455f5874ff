// SPDX-License-Identifier: Apache-2.0

package pods

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"beeline.io/beeline/internal/condition"
)

// Status is the state of the pod shortcut.
type Status struct {
	// Unavailable is why there is no shortcut although it is enabled.
	Unavailable string `json:"unavailable,omitempty"`
	// Devices are those of pods, in the order of their names.
	Devices []DeviceStatus `json:"devices"`
	// Uplinks are the names of the devices that lead to other nodes.
	Uplinks []string `json:"uplinks"`
	// Packets by their path.
	Packets map[string]uint64 `json:"packets,omitempty"`
}

// DeviceStatus is a device of pods.
type DeviceStatus struct {
	Name string       `json:"name"`
	Pods []netip.Addr `json:"pods"`
	// Filters are why its packets take the stack; empty: they take the shortcut.
	Filters []string `json:"filters,omitempty"`
}

// withhold takes the pods whose packets a filter concerns out of the shortcut, and returns the status.
func (s *Shortcut) withhold(n *network, at map[netip.Addr]place, filters []filter) Status {
	status := Status{Devices: []DeviceStatus{}, Uplinks: []string{}}
	for _, addr := range sortedAddresses(at) {
		l := n.link(at[addr].device)
		i := slices.IndexFunc(status.Devices, func(d DeviceStatus) bool { return d.Name == l.name })
		if i < 0 {
			i = len(status.Devices)
			status.Devices = append(status.Devices, DeviceStatus{Name: l.name, Filters: concerning(filters, l.index)})
		}
		d := &status.Devices[i]
		d.Pods = append(d.Pods, addr)
		if len(d.Filters) > 0 && !s.config.IgnoreFilters {
			delete(at, addr)
		}
	}
	for _, l := range n.uplinks(s.networks) {
		status.Uplinks = append(status.Uplinks, l.name)
	}
	slices.SortFunc(status.Devices, func(a, b DeviceStatus) int { return strings.Compare(a.Name, b.Name) })
	return status
}

// concerning describes the filters of a device.
func concerning(filters []filter, device int) (what []string) {
	for _, f := range filters {
		if f.device == 0 || f.device == device {
			what = append(what, f.what)
		}
	}
	return what
}

// Status returns the state.
func (s *Shortcut) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	status := s.status
	status.Devices = slices.Clone(status.Devices)
	return status
}

// Line is the status in one line.
func (s *Status) Line() string {
	if s.Unavailable != "" {
		return s.Unavailable
	}
	pods, withheld := 0, 0
	for _, d := range s.Devices {
		if len(d.Filters) > 0 {
			withheld += len(d.Pods)
		} else {
			pods += len(d.Pods)
		}
	}
	line := fmt.Sprintf("%d pod addresses", pods)
	if len(s.Uplinks) > 0 {
		line += ", to other nodes by " + strings.Join(s.Uplinks, ", ")
	}
	if withheld > 0 {
		line += fmt.Sprintf("; %d take the stack because of filters", withheld)
	}
	return line
}

// Conditions returns what prevents the shortcut.
func (s *Shortcut) Conditions() condition.List {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.problems)
}
